//! Pictures of made-up classes, for examples and benchmarks: `phalanx data synth`.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use jpeg_encoder::{ColorType, Encoder};

/// What is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Synth {
    pub(crate) classes: usize,
    pub(crate) count: usize,
    pub(crate) width: u16,
    pub(crate) height: u16,
    pub(crate) seed: u64,
}

const QUALITY: u8 = 85;

impl Synth {
    /// Writes a folder of JPEG files for each class below `to`, image i of class i modulo their number.
    ///
    /// # Errors
    /// The file that cannot be written, and why.
    pub(crate) fn write(&self, to: &Path) -> Result<(), String> {
        let others = std::fs::read_dir(to).map_or(0, Iterator::count);
        if others > 0 {
            return Err(format!(
                "{} is not empty, and what is in it would be taken for classes and images, too; name a new folder, or remove it",
                to.display()
            ));
        }
        for class in 0..self.classes {
            let folder = to.join(format!("class_{class:02}"));
            std::fs::create_dir_all(&folder)
                .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        }
        let next = AtomicUsize::new(0);
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        std::thread::scope(|scope| {
            let work = || -> Result<(), String> {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= self.count {
                        return Ok(());
                    }
                    self.write_one(to, i)?;
                }
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ends = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a thread panicked".into()))
            });
            ends.collect::<Result<Vec<()>, String>>().map(|_| ())
        })
    }

    fn write_one(&self, to: &Path, i: usize) -> Result<(), String> {
        let class = i % self.classes;
        let path = to
            .join(format!("class_{class:02}"))
            .join(format!("{i:06}.jpg"));
        let failed =
            |error: &dyn std::fmt::Display| format!("cannot write {}: {error}", path.display());
        let mut bytes = Vec::new();
        Encoder::new(&mut bytes, QUALITY)
            .encode(&self.pixels(i), self.width, self.height, ColorType::Rgb)
            .map_err(|error| failed(&error))?;
        std::fs::write(&path, bytes).map_err(|error| failed(&error))
    }

    /// Image `i`: two colours that say nothing about its class, in a pattern that does, under noise and uneven light.
    fn pixels(&self, i: usize) -> Vec<u8> {
        let mut random = Random(self.seed ^ (i as u64).wrapping_mul(0xd134_2543_de82_ef95));
        let pattern = Pattern::new(i % self.classes, self.height.min(self.width), &mut random);
        let back: [f32; 3] = std::array::from_fn(|_| 40.0 + 130.0 * random.unit());
        let mark: [f32; 3] = std::array::from_fn(|c| back[c] + 45.0 + 40.0 * random.unit());
        let (light_x, light_y) = (random.unit() - 0.5, random.unit() - 0.5);
        let mut pixels = Vec::with_capacity(usize::from(self.width) * usize::from(self.height) * 3);
        for y in 0..self.height {
            for x in 0..self.width {
                let share = pattern.at(f32::from(x), f32::from(y));
                let across = f32::from(x) / f32::from(self.width) - 0.5;
                let down = f32::from(y) / f32::from(self.height) - 0.5;
                let light = 60.0 * (light_x * across + light_y * down);
                for c in 0..3 {
                    let noise = 24.0 * (random.unit() - 0.5);
                    pixels.push((back[c] + share * (mark[c] - back[c]) + light + noise) as u8);
                }
            }
        }
        pixels
    }
}

/// A texture: one of five kinds, coarser with each round of five classes.
struct Pattern {
    kind: usize,
    /// Radians a pixel.
    frequency: f32,
    turn: (f32, f32),
    shift: (f32, f32),
}

impl Pattern {
    fn new(class: usize, size: u16, random: &mut Random) -> Self {
        let waves = 9.0 / (1.0 + (class / 5) as f32 * 0.6) * (0.8 + 0.4 * random.unit());
        Self {
            kind: class % 5,
            frequency: waves * std::f32::consts::TAU / f32::from(size),
            turn: (random.unit() * std::f32::consts::TAU).sin_cos(),
            shift: (
                random.unit() * f32::from(size),
                random.unit() * f32::from(size),
            ),
        }
    }

    /// How much of the mark is seen at a place, from 0 to 1.
    fn at(&self, x: f32, y: f32) -> f32 {
        let (sin, cos) = self.turn;
        let (x, y) = (x + self.shift.0, y + self.shift.1);
        let (u, v) = (
            (x * cos - y * sin) * self.frequency,
            (x * sin + y * cos) * self.frequency,
        );
        let wave = match self.kind {
            // Stripes, checks, dots, rings, wavy stripes.
            0 => u.sin(),
            1 => (u.sin() * v.sin()).signum() * 0.8,
            2 => (u.sin() + v.sin() - 0.7) * 1.5,
            3 => {
                let tau = std::f32::consts::TAU * 1.5;
                let (a, b) = (u.rem_euclid(tau) - tau / 2.0, v.rem_euclid(tau) - tau / 2.0);
                ((a * a + b * b).sqrt() * 1.7).cos()
            }
            _ => (u + 1.6 * (v * 0.8).sin()).sin(),
        };
        (wave * 0.5 + 0.5).clamp(0.0, 1.0)
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number from 0, below 1.
    pub(crate) fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Synth = Synth {
        classes: 7,
        count: 30,
        width: 40,
        height: 32,
        seed: 5,
    };

    #[test]
    fn pictures_follow_from_seed_and_number_alone() {
        assert_eq!(SMALL.pixels(3), SMALL.pixels(3));
        assert_ne!(SMALL.pixels(3), SMALL.pixels(10));
        assert_ne!(Synth { seed: 6, ..SMALL }.pixels(3), SMALL.pixels(3));
    }

    #[test]
    fn mean_colours_say_nothing_about_the_class() {
        let many = Synth {
            classes: 5,
            ..SMALL
        };
        let brightness = |i: usize| {
            let pixels = many.pixels(i);
            pixels.iter().map(|&v| f64::from(v)).sum::<f64>() / pixels.len() as f64
        };
        let means: Vec<f64> = (0..5)
            .map(|class| (0..40).map(|k| brightness(class + 5 * k)).sum::<f64>() / 40.0)
            .collect();
        let spread = means
            .iter()
            .fold(0.0f64, |most, mean| most.max((mean - means[0]).abs()));
        // Single pictures spread over more than 100.
        assert!(spread < 25.0, "{means:?}");
    }
}
