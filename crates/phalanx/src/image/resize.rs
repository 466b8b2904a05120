//! Resizing with the numbers of `tf.image.resize`: bilinear, centres of pixels at halves.

/// What one output coordinate is made of.
#[derive(Clone, Debug)]
struct Taps {
    start: usize,
    weights: Vec<f32>,
}

/// Rows of an image made rows of another size, as they come.
#[derive(Debug)]
pub(super) struct Resizer {
    channels: usize,
    columns: Vec<Taps>,
    rows: Vec<Taps>,
    /// The first output row that needs this or later input rows.
    pending: usize,
    /// An input row at the new width.
    narrow: Vec<f32>,
}

impl Resizer {
    /// From (height, width) to (height, width).
    pub(super) fn new(
        from: (usize, usize),
        to: (usize, usize),
        channels: usize,
        antialias: bool,
    ) -> Self {
        Self {
            channels,
            columns: taps(from.1, to.1, antialias),
            rows: taps(from.0, to.0, antialias),
            pending: 0,
            narrow: vec![0.0; to.1 * channels],
        }
    }

    /// Adds what input row `y` gives to the output, which is zeros before the first.
    pub(super) fn add(&mut self, y: usize, row: &[u8], out: &mut [f32]) {
        let ends_before = |taps: &Taps| taps.start + taps.weights.len() <= y;
        while self.rows.get(self.pending).is_some_and(ends_before) {
            self.pending += 1;
        }
        let stride = self.narrow.len();
        let mut narrowed = false;
        for (i, taps) in self.rows.iter().enumerate().skip(self.pending) {
            let Some(&weight) = y.checked_sub(taps.start).and_then(|k| taps.weights.get(k)) else {
                break;
            };
            if !narrowed {
                narrow(&self.columns, self.channels, row, &mut self.narrow);
                narrowed = true;
            }
            for (sum, value) in out[i * stride..][..stride].iter_mut().zip(&self.narrow) {
                *sum += weight * value;
            }
        }
    }
}

fn narrow(columns: &[Taps], channels: usize, row: &[u8], out: &mut [f32]) {
    for (taps, pixel) in columns.iter().zip(out.chunks_exact_mut(channels)) {
        pixel.fill(0.0);
        let samples = row[taps.start * channels..].chunks_exact(channels);
        for (weight, sample) in taps.weights.iter().zip(samples) {
            for (sum, &value) in pixel.iter_mut().zip(sample) {
                *sum += weight * f32::from(value);
            }
        }
    }
}

fn taps(from: usize, to: usize, antialias: bool) -> Vec<Taps> {
    let scale = from as f32 / to as f32;
    let centre = |i: usize| (i as f32 + 0.5) * scale;
    (0..to)
        .map(|i| {
            if antialias {
                spread(centre(i), scale.max(1.0), from)
            } else {
                nearest_two(centre(i), from)
            }
        })
        .collect()
}

/// The two pixels beside a place.
fn nearest_two(centre: f32, from: usize) -> Taps {
    let place = centre - 0.5;
    let low = place.floor();
    let start = (low.max(0.0) as usize).min(from - 1);
    let share = place - low;
    let last = (place.ceil().max(0.0) as usize).min(from - 1);
    let weights = if last > start {
        vec![1.0 - share, share]
    } else {
        vec![1.0]
    };
    Taps { start, weights }
}

/// A triangle over the pixels that an output pixel covers, at least two wide.
fn spread(centre: f32, radius: f32, from: usize) -> Taps {
    let start = (centre - radius - 0.5).ceil().max(0.0) as usize;
    let last = ((centre + radius - 0.5).floor().max(0.0) as usize).min(from - 1);
    let start = start.min(last);
    let weight = |x: usize| (1.0 - ((x as f32 + 0.5 - centre) / radius).abs()).max(0.0);
    let weights: Vec<f32> = (start..=last).map(weight).collect();
    let total: f32 = weights.iter().sum();
    Taps {
        start,
        weights: weights.into_iter().map(|weight| weight / total).collect(),
    }
}
