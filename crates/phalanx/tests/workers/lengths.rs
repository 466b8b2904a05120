//! Inputs of any length in several processes: batches by length are of one shape in a step.

use phalanx::data::{Example, LengthBuckets, Pad, Source};
use phalanx::nn::GlobalAveragePool1d;
use phalanx::prelude::*;
use phalanx_graph::{DType, HostTensor};

use crate::{TOLERANCE, apart, engine, on_workers};

/// Rows of words, none of which is 0, with a class each.
struct Texts;

impl Source for Texts {
    fn len(&self) -> usize {
        31
    }

    fn get(&self, i: usize) -> phalanx::Result<Example> {
        let word = |k: usize| 1 + ((i * 5 + k * 3) % 8) as i32;
        let words: Vec<i32> = (0..1 + i * i % 9).map(word).collect();
        Ok(Example {
            x: vec![HostTensor::new([words.len()], &words)],
            y: vec![HostTensor::scalar((i % 3) as i32)],
            ..Example::default()
        })
    }
}

fn model() -> Sequential {
    Sequential::new(Input::new([9]).dtype(DType::I32).any_length())
        .add(Embedding::new(9, 6).mask_zero(true))
        .add(GlobalAveragePool1d::new())
        .add(Dense::new(3))
}

fn by_length(to_boundary: bool) -> Batches {
    let buckets = LengthBuckets::new([4, 7, 10], [6, 4, 5, 1]).unwrap();
    let buckets = buckets.shuffle(2);
    let buckets = match to_boundary {
        true => buckets.pad_to_boundary(),
        false => buckets,
    };
    let texts = Dataset::from_source(Texts);
    let made = texts.bucket_by_sequence_length(|example| example.x[0].rows(), &buckets);
    made.unwrap()
}

fn compile() -> Compile {
    Compile {
        optimizer: Sgd::new(0.5).momentum(0.9).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        ..Compile::default()
    }
}

/// The variables, loss and accuracy of the last epoch and of a test, and predictions.
fn trained(strategy: &impl Strategy, batches: &Batches) -> Vec<f64> {
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    let fit = Fit::epochs(3)
        .progress(Progress::Silent)
        .validation(batches);
    let history = trainer.fit(batches, fit).unwrap();
    let last = &history.epochs.last().unwrap().logs;
    let mut all: Vec<f64> = last.iter().map(|(_, value)| value).collect();
    all.extend(trainer.predict(batches).unwrap()[0].to_f64());
    for (_, value) in trainer.variables().unwrap() {
        all.extend(value.to_f64());
    }
    all
}

#[test]
fn workers_train_batches_by_length_as_one_process_does() {
    for to_boundary in [true, false] {
        let one = trained(
            &OneDeviceStrategy::on(engine(0, 1)),
            &by_length(to_boundary),
        );
        for (workers, devices) in [(2, 1), (3, 1), (2, 2)] {
            let all = on_workers(workers, devices, |strategy| {
                trained(&strategy, &by_length(to_boundary))
            });
            for other in &all {
                assert_eq!(other, &all[0], "workers have different bits");
                let apart = apart(&one, other);
                assert!(apart <= TOLERANCE, "{workers} workers: {apart:e}");
            }
        }
    }
}

#[test]
fn batches_whose_parts_may_have_other_lengths_are_refused() {
    let errors = on_workers(2, 1, |strategy| {
        let padded = Dataset::from_source(Texts).batch(4).pad(Pad::default());
        let mut trainer = strategy.compile(model(), compile()).unwrap();
        let fit = || Fit::epochs(1).progress(Progress::Silent);
        let batch = padded.get(0, 0).unwrap();
        let errors = [
            trainer
                .fit(&by_length(true), fit().validation(&padded))
                .unwrap_err(),
            trainer.fit(&padded, fit()).unwrap_err(),
            trainer.evaluate(&padded).unwrap_err(),
            trainer.predict(&padded).unwrap_err(),
            trainer.train_on_batch(&batch).unwrap_err(),
            trainer.test_on_batch(&batch).unwrap_err(),
            trainer.predict_on_batch(&batch.x).unwrap_err(),
        ];
        assert_eq!(trainer.iterations(), 0, "refused before the first step");
        errors.map(|error| error.to_string())
    });
    for error in errors.concat() {
        assert!(error.contains("`bucket_by_sequence_length`"), "{error}");
    }
}
