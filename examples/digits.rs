//! Trains a small convolutional network on 1,437 handwritten digits and tests it on 360 others.
//!
//! `cargo run --release --example digits`

use phalanx::prelude::*;

fn main() -> phalanx::Result<()> {
    let strategy = OneDeviceStrategy::new()?;
    let (train, test) = datasets::digits()?.split_at(1437)?;
    let train = train.shuffle(42).batch(32).prefetch(2);
    let test = test.batch(360);

    let model = Sequential::new([8, 8, 1])
        .add(Rescaling::new(1.0 / 16.0))
        .add(Conv2d::new(32, 3).padding(Padding::Same).activation(relu))
        .add(MaxPool2d::new(2))
        .add(Conv2d::new(64, 3).padding(Padding::Same).activation(relu))
        .add(Flatten)
        .add(Dropout::new(0.3))
        .add(Dense::new(10))
        .build()?;
    println!("{}", model.summary());

    let mut trainer = strategy.compile(
        model,
        Compile {
            optimizer: Adam::new(1e-3).into(),
            loss: SparseCategoricalCrossentropy::from_logits().into(),
            metrics: vec![Accuracy.into()],
            ..Compile::default()
        },
    )?;
    // `cargo xtask check` runs each example for a few steps.
    let fit = match std::env::var("PHALANX_EXAMPLE_STEPS") {
        Ok(steps) => Fit::epochs(1).steps_per_epoch(steps.parse().expect("a number of steps")),
        Err(_) => Fit::epochs(15),
    };
    trainer.fit(&train, fit.validation(&test))?;
    println!("test: {}", trainer.evaluate(&test)?);
    Ok(())
}
