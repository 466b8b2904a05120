//! A generative adversarial network: one model draws handwritten digits from noise, another judges which are real, and
//! one program trains both on two replicas of the CPU, each with an optimizer of its own.
//!
//! `cargo run --release --example gan` shows ten drawings at the end, a 0 to a 9. With `PHALANX_EXAMPLE_STEPS` set it
//! stops after so many steps.

use phalanx::data::Batch;
use phalanx::engine::EngineOptions;
use phalanx::prelude::*;

const EPOCHS: u64 = 200;
const GLOBAL_BATCH: usize = 64;
const NOISE: usize = 16;
const LEAKY: Activation = Activation::LeakyRelu {
    negative_slope: 0.2,
};

fn main() -> phalanx::Result<()> {
    let strategy = MirroredStrategy::with(&EngineOptions {
        cpu_devices: 2,
        ..EngineOptions::default()
    })?;
    let batches = datasets::digits()?
        .shuffle(1)
        .batch(GLOBAL_BATCH)
        .prefetch(2);
    let digits = strategy.distribute_dataset(&batches);

    // Both are told the digit: ten numbers behind the noise, and behind the pixels.
    let generator = Sequential::new([NOISE + 10])
        .add(Dense::new(128).activation(LEAKY))
        .add(Dense::new(128).activation(LEAKY))
        .add(Dense::new(64).activation(sigmoid));
    let discriminator = Sequential::new([64 + 10])
        .add(Dense::new(128).activation(LEAKY))
        .add(Dropout::new(0.3))
        .add(Dense::new(128).activation(LEAKY))
        .add(Dropout::new(0.3))
        .add(Dense::new(1));
    let mut state = strategy.state(11)?;
    let generator = state.add_model("generator", generator)?;
    let discriminator = state.add_model("discriminator", discriminator)?;
    let slow = || Adam::new(1e-3).beta_1(0.5);
    let of_generator = state.add_optimizer(slow(), &[&generator])?;
    let of_discriminator = state.add_optimizer(slow(), &[&discriminator])?;

    let loss = Loss::from(BinaryCrossentropy::from_logits());
    let judged =
        |logits: &Tensor, as_real: f64| loss.per_example(&(logits.zeros_like() + as_real), logits);
    let mut step = strategy.function(|cx, batch: Inputs| {
        let rows = cx.rows();
        let digit = batch.y[0].one_hot(10, DType::F32);
        let real = batch.x[0].reshape(&[rows, 64]) * (1.0 / 16.0);
        let noise = cx.normal(rows, &[NOISE]);
        let drawn = &cx.train(&generator, &[Tensor::concat(&[&noise, &digit], 1)])[0];

        // The judge learns from drawings as they are: nothing of its loss goes back to the generator.
        let on_real = &cx.train(&discriminator, &[Tensor::concat(&[&real, &digit], 1)])[0];
        let on_drawn = [Tensor::concat(&[&drawn.stop_gradient(), &digit], 1)];
        let on_drawn = &cx.train(&discriminator, &on_drawn)[0];
        let losses = judged(on_real, 0.9) + judged(on_drawn, 0.0);
        let discriminator_loss = cx.mean(&losses, None);
        let gradients = cx.gradients(&discriminator_loss, &of_discriminator);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&of_discriminator, &gradients);

        // The generator learns from the judge as it is now.
        let on_drawn = &cx.train(&discriminator, &[Tensor::concat(&[drawn, &digit], 1)])[0];
        let generator_loss = cx.mean(&judged(on_drawn, 1.0), None);
        let gradients = cx.gradients(&generator_loss, &of_generator);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&of_generator, &gradients);
        [discriminator_loss, generator_loss]
    });

    let few = std::env::var("PHALANX_EXAMPLE_STEPS").ok();
    let few: Option<usize> = few.and_then(|steps| steps.parse().ok());
    for epoch in 0..few.map_or(EPOCHS, |_| 1) {
        let mut last = None;
        for batch in digits.epoch(epoch).take(few.unwrap_or(usize::MAX)) {
            last = Some(step.call(&mut state, &batch?)?);
        }
        if let Some([discriminator, generator]) = last.filter(|_| epoch % 20 == 0) {
            let loss = |value| -> phalanx::Result<f64> {
                Ok(strategy.reduce(Reduce::Sum, value, None)?.to_f64()[0])
            };
            let (discriminator, generator) = (loss(&discriminator)?, loss(&generator)?);
            println!("epoch {epoch:3}: discriminator {discriminator:.3}, generator {generator:.3}");
        }
    }

    let mut draw = strategy.function(|cx, batch: Inputs| {
        let digit = batch.x[0].one_hot(10, DType::F32);
        let noise = cx.normal(cx.rows(), &[NOISE]);
        let drawn = &cx.call(&generator, &[Tensor::concat(&[&noise, &digit], 1)])[0];
        [cx.per_example(drawn)]
    });
    let wanted: Vec<i32> = (0..10).collect();
    let wanted = Batch {
        x: vec![HostTensor::new([10], &wanted)],
        y: Vec::new(),
        weight: None,
        first: 0,
    };
    let [drawn] = draw.call(&mut state, &strategy.distribute_batch(&wanted)?)?;
    let drawn = strategy.gather(&drawn, 0)?.f32s();
    for five in drawn.chunks(5 * 64) {
        println!("{}", picture(five));
    }
    state.save(&generator, "runs/gan.phx")?;
    println!("generator: runs/gan.phx");
    Ok(())
}

/// Drawings of 8 x 8 pixels side by side, two letters a pixel.
fn picture(drawings: &[f32]) -> String {
    let shades: Vec<char> = " .:-=+*#%@".chars().collect();
    let mut text = String::new();
    for row in 0..8 {
        for drawing in drawings.chunks(64) {
            for ink in &drawing[row * 8..][..8] {
                let shade = shades[(ink * 9.99) as usize];
                text.extend([shade, shade]);
            }
            text.push_str("  ");
        }
        text.push('\n');
    }
    text
}
