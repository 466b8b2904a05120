//! A training loop written by hand: a classifier of handwritten digits on two replicas of the CPU. It should reach 97 %
//! on the 360 digits it was not trained on.
//!
//! `cargo run --release --example custom_loop`. With `PHALANX_EXAMPLE_STEPS` set it stops after so many steps.

use phalanx::engine::EngineOptions;
use phalanx::prelude::*;

const EPOCHS: u64 = 24;
const GLOBAL_BATCH: usize = 32;

fn main() -> phalanx::Result<()> {
    let strategy = MirroredStrategy::with(&EngineOptions {
        cpu_devices: 2,
        ..EngineOptions::default()
    })?;
    let (train, test) = datasets::digits()?.split_at(1437)?;
    // 1,437 is no multiple of 32, nor is what remains one of 2: parts are filled up, and examples count once.
    let train = strategy.distribute_dataset(&train.shuffle(42).batch(GLOBAL_BATCH).prefetch(2));
    let test = strategy.distribute_dataset(&test.batch(GLOBAL_BATCH));

    let model = Sequential::new([8, 8, 1]).add(Rescaling::new(1.0 / 16.0));
    let model = convolution(model, 32).add(MaxPool2d::new(2));
    let model = convolution(model, 64).add(Dropout::new(0.5));
    let model = convolution(model, 64)
        .add(GlobalAveragePool2d::new())
        .add(Dropout::new(0.5))
        .add(Dense::new(10));
    let mut state = strategy.state(7)?;
    let model = state.add_model("digits", model)?;
    let steps = train.steps().unwrap_or(1) as u64 * EPOCHS;
    let adam = Adam::new(CosineDecay::new(4e-3, steps));
    let adam = state.add_optimizer(adam, &[&model])?;
    let accuracy = state.add_metric(Accuracy)?;
    let tested = state.add_metric(Accuracy)?;
    let loss = Loss::from(SparseCategoricalCrossentropy::from_logits());

    // What one replica does with its part of a batch; the sums over replicas make one step of it.
    let mut train_step = strategy.function(|cx, batch: Inputs| {
        let labels = &batch.y[0];
        let logits = &cx.train(&model, &batch.x)[0];
        let loss = cx.loss(&loss, labels, logits, None);
        let gradients = cx.gradients(&loss, &adam);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&adam, &gradients);
        cx.update_metric(&accuracy, labels, logits, None);
        [loss]
    });
    let mut test_step = strategy.function(|cx, batch: Inputs| {
        let logits = cx.call(&model, &batch.x);
        cx.update_metric(&tested, &batch.y[0], &logits[0], None);
        []
    });

    let few = std::env::var("PHALANX_EXAMPLE_STEPS").ok();
    let few: Option<usize> = few.and_then(|steps| steps.parse().ok());
    for epoch in 0..few.map_or(EPOCHS, |_| 1) {
        state.reset(&accuracy)?;
        state.reset(&tested)?;
        let mut losses = Vec::new();
        for batch in train.epoch(epoch).take(few.unwrap_or(usize::MAX)) {
            losses.extend(train_step.call(&mut state, &batch?)?);
        }
        for batch in test.epoch(0) {
            test_step.call(&mut state, &batch?)?;
        }
        // The shares of the replicas add up to the loss. Nothing was waited for until here.
        let mut sum = 0.0;
        for loss in &losses {
            sum += strategy.reduce(Reduce::Sum, loss, None)?.to_f64()[0];
        }
        let mean = sum / losses.len() as f64;
        println!(
            "epoch {epoch:2}: loss {mean:.4}, accuracy {:.4}, of the test {:.4}",
            state.result(&accuracy)?,
            state.result(&tested)?
        );
    }
    state.save(&model, "runs/custom_loop.phx")?;
    println!("model: runs/custom_loop.phx");
    Ok(())
}

/// A convolution that keeps the size, normalized over the global batch and rectified.
fn convolution(model: Sequential, filters: usize) -> Sequential {
    model
        .add(Conv2d::new(filters, 3).padding(Padding::Same))
        .add(BatchNorm::new().momentum(0.95).synchronized(true))
        .add(ActivationLayer::new(relu))
}
