//! Histograms of gradients are those of the gradients that the step takes, however many replicas and processes have parts of its batch.

use phalanx::data::Dataset;
use phalanx::fit::TensorBoard;
use phalanx::prelude::*;
use phalanx_summary::{Histogram, Run};
use phalanx_testkit::Scratch;

use crate::{cases, engine, on_workers};

/// Weighted rows whose number no number of replicas divides.
fn rows() -> Dataset {
    let weights: Vec<f32> = (0..22).map(|row| (row % 4) as f32 * 0.5).collect();
    let weights = HostTensor::new([22], &weights);
    cases::rows(22).with_weights(&weights).unwrap()
}

/// Trains for two epochs of one step of rate 1 from zeros, so that the first gradient is the first value of the variables, less the sign;
/// returns these gradients by the names of variables.
fn train(strategy: &impl Strategy, folder: &std::path::Path) -> Vec<(String, Vec<f32>)> {
    let model = Sequential::new([6])
        .add(Dropout::new(0.25))
        .add(Dense::new(3).kernel_initializer(Initializer::Zeros));
    let compile = Compile {
        optimizer: Sgd::new(1.0).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        loss_scale: LossScale::Fixed(8.0),
        ..Compile::default()
    };
    let mut trainer = strategy.compile(model, compile).unwrap();
    let settings = TensorBoard::new(folder).histogram_freq(2).write_grads(true);
    let fit = |epochs| {
        let fit = Fit::epochs(epochs).progress(Progress::Silent);
        fit.tensorboard(settings.clone())
    };
    let data = rows().batch(22);
    trainer.fit(&data, fit(1)).unwrap();
    let values = trainer.variables().unwrap().into_iter();
    let gradients = values.map(|(name, value)| {
        let negated = value.f32s().iter().map(|x| -x).collect();
        (name, negated)
    });
    let gradients = gradients.collect();
    // The second epoch has no histograms, and computes no gradients.
    trainer.fit(&data, fit(2).initial_epoch(1)).unwrap();
    gradients
}

/// Two programs may round differently.
fn check_alike(found: &Histogram, expected: &Histogram, what: &str) {
    let (found, expected) = (&found.0, &expected.0);
    assert_eq!(found.len(), expected.len(), "{what}");
    let last = expected.len() - 1;
    let most = expected[0][0].abs().max(expected[last][1].abs());
    assert!(most > 1e-3, "{what}: all gradients are zero");
    let mut moved = 0.0;
    for (found, expected) in found.iter().zip(expected) {
        let edges = (found[0] - expected[0])
            .abs()
            .max((found[1] - expected[1]).abs());
        assert!(edges <= 1e-5 * most, "{what}: {found:?} {expected:?}");
        moved += (found[2] - expected[2]).abs();
    }
    // From one bucket into the next.
    assert!(moved <= 2.0, "{what}: {found:?} {expected:?}");
}

fn check(folder: &std::path::Path, gradients: &[(String, Vec<f32>)], what: &str) {
    let run = Run::read(folder.join("train")).unwrap();
    assert_eq!(gradients.len(), 2);
    for (name, gradient) in gradients {
        let found = &run.histograms[&format!("{name}/gradient")];
        let steps: Vec<i64> = found.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [0], "{what} {name}");
        let expected = Histogram::of(gradient);
        check_alike(&found[0].1, &expected, &format!("{what} {name}"));
    }
}

#[test]
fn histograms_of_gradients_are_those_of_the_step() {
    let scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "gradients");
    let folder = scratch.join("one");
    let gradients = train(&OneDeviceStrategy::on(engine(0, 1)), &folder);
    check(&folder, &gradients, "one device");
    let folder = scratch.join("replicas");
    let strategy = MirroredStrategy::on(engine(0, 2));
    check(&folder, &train(&strategy, &folder), "two replicas");
    let folder = scratch.join("central");
    let strategy = CentralStorageStrategy::on(engine(0, 2));
    check(&folder, &train(&strategy, &folder), "a parameter device");
    for (workers, devices) in [(2, 1), (3, 1), (2, 2)] {
        let what = format!("{workers} workers with {devices} devices");
        let folder = scratch.join(&what);
        let all = on_workers(workers, devices, |strategy| {
            let own = match strategy.is_chief() {
                true => folder.clone(),
                false => scratch.join("others"),
            };
            train(&strategy, &own)
        });
        check(&folder, &all[0], &what);
        assert!(all.iter().all(|other| *other == all[0]), "{what}");
    }
}
