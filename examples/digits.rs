//! Trains a small convolutional network on 1,437 handwritten digits and tests it on 360 others.
//!
//! `cargo run --release --example digits`. With `PHALANX_EXAMPLE_STEPS` set it stops after so many steps of one epoch.

use phalanx::prelude::*;

const EPOCHS: usize = 40;
const MODEL: &str = "runs/digits.phx";

fn main() -> phalanx::Result<()> {
    let (train, test) = datasets::digits()?.split_at(1437)?;
    let train = train.shuffle(42).batch(32).prefetch(2);
    let test = test.batch(360);

    let model = Sequential::new([8, 8, 1]).add(Rescaling::new(1.0 / 16.0));
    let model = convolution(model, 32).add(MaxPool2d::new(2));
    let model = convolution(model, 64).add(Dropout::new(0.5));
    let model = convolution(model, 64)
        .add(GlobalAveragePool2d::new())
        .add(Dropout::new(0.5))
        .add(Dense::new(10))
        .build()?;
    println!("{}", model.summary());

    let steps = train.len().unwrap_or(1) * EPOCHS;
    let mut trainer = OneDeviceStrategy::new()?.compile(
        model,
        Compile {
            optimizer: Adam::new(CosineDecay::new(4e-3, steps as u64)).into(),
            loss: SparseCategoricalCrossentropy::from_logits().into(),
            metrics: vec![Accuracy.into()],
            ..Compile::default()
        },
    )?;
    let few = std::env::var("PHALANX_EXAMPLE_STEPS").ok();
    let fit = match few.and_then(|steps| steps.parse().ok()) {
        Some(steps) => Fit::epochs(1).steps_per_epoch(train.len().unwrap_or(1).min(steps)),
        None => Fit::epochs(EPOCHS),
    };
    trainer.fit(&train, fit.validation(&test))?;
    println!("test: {}", trainer.evaluate(&test)?);
    trainer.save(MODEL)?;
    println!("model: {MODEL}");
    Ok(())
}

/// A convolution that keeps the size, normalized and rectified.
fn convolution(model: Sequential, filters: usize) -> Sequential {
    model
        .add(Conv2d::new(filters, 3).padding(Padding::Same))
        .add(BatchNorm::new().momentum(0.95))
        .add(ActivationLayer::new(relu))
}
