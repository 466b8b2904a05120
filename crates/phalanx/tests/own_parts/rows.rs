//! Rules that look beyond an element, with a table of which a batch has few rows.

use phalanx::optim::{ParamSpec, UpdateRule, Updated};
use phalanx::replicas::{Reduction, SparseGradients};
use serde_json::json;

use super::counted::Counted;
use super::*;

const ROWS: usize = 1000;
const WIDTH: usize = 2;
const RATE: f64 = 0.1;

/// `w -= rate |w| / |g| g`, You et al. 2017 without momentum.
#[derive(Debug)]
struct ByNorms(Schedule);

impl UpdateRule for ByNorms {
    fn kind(&self) -> &'static str {
        "by_norms"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn learning_rate(&self) -> &Schedule {
        &self.0
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    fn update(
        &self,
        _: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        _: &[Tensor],
    ) -> Updated {
        let norm = |x: &Tensor| x.square().sum_all().sqrt();
        let share = norm(param) / norm(gradient) * &scalars[0];
        Updated::new(param - gradient * share, [])
    }

    fn keeps_what_has_no_gradient(&self) -> bool {
        true
    }
}

/// Rows of the table as they are.
fn table() -> Model {
    let layers = Sequential::new([1]).add(Embedding::new(ROWS, WIDTH));
    layers.add(Flatten).build().unwrap()
}

fn with(optimizer: Optimizer) -> Compile {
    Compile {
        optimizer,
        loss: MeanSquaredError.into(),
        ..Compile::default()
    }
}

/// Six of four rows, others in each step.
fn indices(step: usize) -> Vec<i32> {
    let index = |place: usize| ((place * 3 + step) % 4 * 300) as i32;
    (0..6).map(index).collect()
}

fn targets(step: usize) -> Vec<f32> {
    let target = |place: usize| (place as f32 * 0.7 + step as f32).sin();
    (0..6 * WIDTH).map(target).collect()
}

/// The table after a step on the mean of `(w - y)^2`.
fn stepped(table: &[f64], step: usize) -> Vec<f64> {
    let (indices, targets) = (indices(step), targets(step));
    let mut gradient = vec![0.0; table.len()];
    for (place, &y) in targets.iter().enumerate() {
        let at = indices[place / WIDTH] as usize * WIDTH + place % WIDTH;
        gradient[at] += 2.0 * (table[at] - f64::from(y)) / targets.len() as f64;
    }
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let share = RATE * norm(table) / norm(&gradient);
    let moved = table.iter().zip(&gradient).map(|(w, g)| w - share * g);
    moved.collect()
}

#[test]
fn norms_are_of_the_whole_table() {
    let never = Reduction::new().sparse(SparseGradients::Never);
    let strategies: [Box<dyn Strategy>; 3] = [
        Box::new(OneDeviceStrategy::on(engine())),
        Box::new(mirrored()),
        Box::new(mirrored().reduction(never)),
    ];
    for (number, strategy) in strategies.iter().enumerate() {
        let compile = with(Optimizer::custom(ByNorms(RATE.into())));
        let mut trainer = strategy.compile(table(), compile).unwrap();
        let now = |trainer: &Trainer| trainer.variables().unwrap()[0].1.to_f64();
        let mut expected = now(&trainer);
        for step in 0..3 {
            let x = HostTensor::new([6, 1], &indices(step));
            let y = HostTensor::new([6, WIDTH], &targets(step));
            let batches = Dataset::from_arrays(x, y).unwrap().batch(6);
            trainer.train_on_batch(&batches.get(0, 0).unwrap()).unwrap();
            expected = stepped(&expected, step);
            let what = format!("strategy {number}, step {step}");
            assert_close(&what, &now(&trainer), &expected, TOLERANCE);
        }
    }
}

#[test]
fn lazy_is_refused_with_a_slot_of_other_dims() {
    let compile = with(Optimizer::custom(Counted(RATE.into())).lazy());
    let made = OneDeviceStrategy::on(engine()).compile(table(), compile);
    let x = HostTensor::new([6, 1], &indices(0));
    let data = Dataset::from_arrays(x, HostTensor::new([6, WIDTH], &targets(0))).unwrap();
    let fitted = made.and_then(|mut trainer| trainer.fit(&data.batch(6), quiet(1)));
    let said = fitted.unwrap_err().to_string();
    let expected = "counted: `lazy` updates rows alone, and a slot of `embedding/embeddings` has other dims than its [1000, 2]; leave `lazy` out";
    assert!(said.contains(expected), "{said}");
}
