//! Lazy steps of tables leave the same rows alone, however gradients come to the optimizer.

use phalanx::nn::{Cx, Embedding, Layer};
use phalanx::replicas::{Reduction, SparseGradients};
use phalanx_graph::{Shape, Tensor};
use serde_json::{Value, json};

use super::*;

/// More than four for each index of a large batch and fewer for each of a small one.
const VOCABULARY: usize = 24;
const NAMED: i32 = 7;
/// A step of many indices, then one of few, whose rows are others.
const BATCHES: [usize; 3] = [18, 3, 11];

fn model() -> Sequential {
    Sequential::new([1])
        .add(Embedding::new(VOCABULARY, 3))
        .add(Flatten)
        .add(Dense::new(2))
}

/// Rows of a table of its own, under this name.
#[derive(Debug)]
struct Rows(&'static str);

impl Layer for Rows {
    fn kind(&self) -> &'static str {
        "rows"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let shape = Shape::f32([VOCABULARY, 3]);
        let table = cx.variable(self.0, shape, &Initializer::GlorotUniform);
        let indices = inputs[0].convert(DType::I32);
        table.gather(&indices.reshape(&[indices.dim(0)]), 0)
    }
}

fn indices(step: usize, rows: usize) -> Batch {
    let index = |row: usize| ((row * 5 + step * 3) as i32) % NAMED;
    let x: Vec<i32> = (0..rows).map(index).collect();
    let y: Vec<i32> = (0..rows as i32).map(|row| row % 2).collect();
    let x = HostTensor::new([rows, 1], &x);
    let data = Dataset::from_arrays(x, HostTensor::new([rows], &y)).unwrap();
    data.batch(rows).get(0, 0).unwrap()
}

fn trained(strategy: &impl Strategy, model: Sequential) -> Vec<(String, Vec<f64>)> {
    let compile = Compile {
        optimizer: Optimizer::from(Adam::new(0.1)).lazy(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        seed: 3,
        ..Compile::default()
    };
    let model = model.build().unwrap();
    let mut trainer = strategy.compile(model, compile).unwrap();
    let table = |trainer: &Trainer| values(trainer)[0].1.clone();
    let before = table(&trainer);
    for (step, rows) in BATCHES.into_iter().enumerate() {
        trainer.train_on_batch(&indices(step, rows)).unwrap();
    }
    let after = table(&trainer);
    let named = NAMED as usize * 3;
    assert_eq!(before[named..], after[named..], "{}", strategy.name());
    assert!(before[..named] != after[..named]);
    values(&trainer)
}

/// Compares strategies with one device.
fn check(model: impl Fn() -> Sequential) {
    let expected = trained(&OneDeviceStrategy::on(quick_engine()), model());
    let never = Reduction::new().sparse(SparseGradients::Never);
    let whole = MirroredStrategy::on(quick_engine()).devices(names(2));
    let mut strategies: Vec<Box<dyn Strategy>> = vec![Box::new(whole.unwrap().reduction(never))];
    let places = [
        Place::Mirrored(2),
        Place::Mirrored(3),
        Place::Central(2),
        Place::Pipeline(2),
    ];
    strategies.extend(places.map(|place| Way::of(place).strategy(quick_engine(), 2, 64)));
    for strategy in strategies {
        let found = trained(&strategy, model());
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            let far = apart(found, expected);
            assert!(far < TOLERANCE, "{}, {name}: {far}", strategy.name());
        }
    }
}

#[test]
fn rows_without_a_gradient_stay_whatever_the_strategy() {
    check(model);
}

/// By its name, whatever the strategy makes of its gradient.
#[test]
fn a_table_of_ones_own_is_lazy_by_its_name() {
    for name in ["embeddings", "table"] {
        check(|| Sequential::new([1]).add(Rows(name)).add(Dense::new(2)));
    }
}
