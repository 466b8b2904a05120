//! Fine-tunes MobileNetV2: learns to tell four drawn shapes apart, keeps the base, and learns two new shapes from few
//! images: first with the base frozen, then with all of it.
//!
//! `cargo run --release --example fine_tune`. With `PHALANX_EXAMPLE_STEPS` set each part stops after so many steps.

use phalanx::import::LoadWeights;
use phalanx::models::{FineTune, MobileNetV2};
use phalanx::prelude::*;

const SIZE: usize = 48;
const BATCH: usize = 32;
const WEIGHTS: &str = "runs/shapes.safetensors";

fn main() -> phalanx::Result<()> {
    let strategy = OneDeviceStrategy::new()?;

    let many = shapes(2048, 1, &[disc, square, plus, diamond])?;
    let loss = SparseCategoricalCrossentropy::from_logits();
    let full = network().classes(4).activation(Activation::Linear);
    let mut trainer = strategy.compile(full, settings(3e-3, loss.into()))?;
    train(&mut trainer, "four shapes", &many, 6)?;
    trainer.save_weights(WEIGHTS)?;

    let (few, test) = shapes(512, 2, &[ring, frame])?.split_at(256)?;
    let loss = BinaryCrossentropy::from_logits();
    let mut base = network().include_top(false).build()?;
    base.set_trainable(false);
    let mut trainer = strategy.compile(FineTune::new(base), settings(1e-3, loss.into()))?;
    // The head is new; everything else is in the file.
    let report = trainer.load_weights(
        WEIGHTS,
        LoadWeights {
            skip_mismatch: true,
            ..LoadWeights::default()
        },
    )?;
    println!("{report}");
    train(&mut trainer, "new head", &few, 6)?;
    println!(
        "frozen base, new head: {}",
        trainer.evaluate(&test.batch(BATCH))?
    );

    trainer.unfreeze("mobilenet_v2")?;
    trainer.set_learning_rate(5e-4)?;
    train(&mut trainer, "all of it", &few, 6)?;
    println!(
        "all of it trained: {}",
        trainer.evaluate(&test.batch(BATCH))?
    );
    Ok(())
}

/// A narrow MobileNetV2, whose moving statistics follow a short training.
fn network() -> MobileNetV2 {
    MobileNetV2::new()
        .input([SIZE, SIZE, 3])
        .alpha(0.35)
        .momentum(0.9)
}

fn settings(rate: f64, loss: Losses) -> Compile {
    Compile {
        optimizer: Adam::new(rate).into(),
        loss,
        metrics: vec![Accuracy.into()],
        ..Compile::default()
    }
}

fn train(trainer: &mut Trainer, what: &str, data: &Dataset, epochs: usize) -> phalanx::Result<()> {
    let batches = data.shuffle(7).batch(BATCH);
    let few = std::env::var("PHALANX_EXAMPLE_STEPS").ok();
    let fit = match few.and_then(|steps| steps.parse().ok()) {
        Some(steps) => Fit::epochs(1).steps_per_epoch(batches.len().unwrap_or(1).min(steps)),
        None => Fit::epochs(epochs),
    };
    println!("{what}:");
    trainer.fit(&batches, fit)?;
    Ok(())
}

/// Whether a point of a shape is inked, by its place relative to the centre, in units of the shape's size.
type Shape = fn(f64, f64) -> bool;

fn disc(x: f64, y: f64) -> bool {
    x.hypot(y) < 1.0
}

fn square(x: f64, y: f64) -> bool {
    x.abs().max(y.abs()) < 0.9
}

fn plus(x: f64, y: f64) -> bool {
    x.abs().max(y.abs()) < 1.0 && x.abs().min(y.abs()) < 0.3
}

fn diamond(x: f64, y: f64) -> bool {
    x.abs() + y.abs() < 1.2
}

fn ring(x: f64, y: f64) -> bool {
    disc(x, y) && !disc(x / 0.65, y / 0.65)
}

fn frame(x: f64, y: f64) -> bool {
    square(x, y) && !square(x / 0.65, y / 0.65)
}

/// Images of shapes in random places, sizes and colours on a noisy ground, ready for MobileNetV2, and which shape it is.
fn shapes(count: usize, seed: u64, kinds: &[Shape]) -> phalanx::Result<Dataset> {
    let mut random = Random(seed);
    let mut pixels = Vec::with_capacity(count * SIZE * SIZE * 3);
    let mut labels = Vec::with_capacity(count);
    for _ in 0..count {
        let kind = random.below(kinds.len());
        labels.push(kind as i32);
        let size = random.between(0.2, 0.4) * SIZE as f64;
        let centre = [(); 2].map(|()| random.between(0.35, 0.65) * SIZE as f64);
        let mut colour = |low, high| [(); 3].map(|()| random.between(low, high));
        let (ink, ground) = (colour(150.0, 255.0), colour(0.0, 100.0));
        for place in 0..SIZE * SIZE {
            let [x, y] = [place % SIZE, place / SIZE].map(|at| at as f64 + 0.5);
            let inked = kinds[kind]((x - centre[0]) / size, (y - centre[1]) / size);
            let colour = if inked { ink } else { ground };
            pixels
                .extend(colour.map(|c| (c + random.between(-20.0, 20.0)).clamp(0.0, 255.0) as u8));
        }
    }
    let images = Preprocess::tf().apply(&HostTensor::new([count, SIZE, SIZE, 3], &pixels))?;
    Dataset::from_arrays(images, HostTensor::new([count, 1], &labels))
}

/// A small generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn between(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let fraction = ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        low + fraction * (high - low)
    }

    fn below(&mut self, count: usize) -> usize {
        self.between(0.0, count as f64) as usize
    }
}
