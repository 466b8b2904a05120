//! Trainings of PyTorch, which one replica and two follow batch by batch.

use std::path::{Path, PathBuf};

use phalanx::import::LoadWeights;
use phalanx_testkit::assert_close;
use serde_json::Value;

use super::*;

const ROWS: usize = 8;

fn golden(file: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/torch/training");
    root.join(file)
}

fn model() -> Sequential {
    let norm = BatchNorm::new().epsilon(1e-5).momentum(0.9);
    Sequential::new([8, 8, 1])
        .add(ZeroPadding2d::new(1))
        .add(Conv2d::new(4, 3).use_bias(false))
        .add(norm.synchronized(true))
        .add(ActivationLayer::new(Activation::Relu))
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dense::new(10))
}

/// As `make_training.py` has it, in which one channel lies as ours does.
fn batch(step: usize) -> Batch {
    let numbers = step * ROWS * 64..(step + 1) * ROWS * 64;
    let x: Vec<f32> = numbers
        .map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5)
        .collect();
    let labels: Vec<i32> = (step * ROWS..(step + 1) * ROWS)
        .map(|row| (row * 7 % 10) as i32)
        .collect();
    Batch {
        x: vec![HostTensor::new([ROWS, 8, 8, 1], &x)],
        y: vec![HostTensor::new([ROWS], &labels)],
        weight: None,
        first: 0,
    }
}

/// Trains as PyTorch did and compares losses and the state at the end.
fn follow(name: &str, replicas: usize, optimizer: &Optimizer, weights: Option<&ClassWeights>) {
    let compile = Compile {
        optimizer: optimizer.clone(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let mut trainer = mirrored(replicas).compile(model(), compile).unwrap();
    let load = |file: &str, trainer: &mut Trainer| {
        trainer
            .load_weights(golden(file), LoadWeights::default())
            .unwrap();
        trainer.variables().unwrap()
    };
    let start = load("start.safetensors", &mut trainer);
    let losses: Value =
        serde_json::from_slice(&std::fs::read(golden("losses.json")).unwrap()).unwrap();
    let losses: Vec<f64> = serde_json::from_value(losses[name].clone()).unwrap();
    for (step, loss) in losses.iter().enumerate() {
        let batch = match weights {
            Some(weights) => weights.apply_to_batch(batch(step)).unwrap(),
            None => batch(step),
        };
        let got = trainer.train_on_batch(&batch).unwrap()["loss"];
        assert_close(&format!("{name}, loss {step}"), &[got], &[*loss], 1e-5);
    }
    let ours = trainer.variables().unwrap();
    let theirs = load(&format!("{name}.safetensors"), &mut trainer);
    for (((path, ours), (_, theirs)), (_, start)) in ours.iter().zip(&theirs).zip(&start) {
        let mut ours = ours.f32s();
        if path.ends_with("moving_variance") {
            // PyTorch divides by one less than there are numbers.
            let (count, kept) = ((ROWS * 64) as f32, 0.9f32.powi(losses.len() as i32));
            for (ours, start) in ours.iter_mut().zip(start.f32s()) {
                *ours += (*ours - kept * start) / (count - 1.0);
            }
        }
        assert_close(&format!("{name}, {path}"), &ours, &theirs.f32s(), 1e-5);
    }
}

#[test]
fn accumulated_and_clipped_gradients_follow_pytorch() {
    let optimizer = Optimizer::from(Sgd::new(0.1).momentum(0.9));
    let optimizer = optimizer.global_clipnorm(0.5).gradient_accumulation(2);
    for replicas in [1, 2] {
        follow("clipped", replicas, &optimizer, None);
    }
}

#[test]
fn class_weights_and_decoupled_decay_follow_pytorch() {
    let optimizer = AdamW::new(0.01).weight_decay(0.1).epsilon(1e-8).into();
    let weights = ClassWeights::new([(1, 3.0)]).unwrap();
    for replicas in [1, 2] {
        follow("weighted", replicas, &optimizer, Some(&weights));
    }
}
