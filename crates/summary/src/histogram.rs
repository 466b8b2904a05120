//! Histograms as `tf.summary.histogram` makes them.

/// How many buckets a histogram has: TensorFlow's number.
const BUCKETS: usize = 30;

/// How often values fall between edges: rows of left edge, right edge and count, as many as TensorFlow's histogram has.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram(pub Vec<[f64; 3]>);

impl Histogram {
    /// The histogram of values: thirty buckets of the same width from the least value to the greatest. Where all values are the same, the
    /// last bucket has them; where there are none, all rows are 0. Values that are infinite or not a number are left out,
    /// where TensorFlow's edges become not a number with them.
    #[must_use]
    pub fn of(values: &[f32]) -> Self {
        let finite = || {
            values
                .iter()
                .filter(|x| x.is_finite())
                .map(|&x| f64::from(x))
        };
        let least = finite().fold(f64::INFINITY, f64::min);
        let greatest = finite().fold(f64::NEG_INFINITY, f64::max);
        if least > greatest {
            return Self(vec![[0.0; 3]; BUCKETS]);
        }
        let mut rows: Vec<[f64; 3]> = if least == greatest {
            vec![[greatest, greatest, 0.0]; BUCKETS]
        } else {
            rows_between(least, greatest)
        };
        let width = (greatest - least) / BUCKETS as f64;
        for value in finite() {
            // 0 divided by 0 for a single value: the last bucket.
            let bucket = ((value - least) / width).floor();
            let bucket = if bucket < BUCKETS as f64 {
                bucket as usize
            } else {
                BUCKETS
            };
            let bucket = if width == 0.0 { BUCKETS } else { bucket };
            rows[bucket.min(BUCKETS - 1)][2] += 1.0;
        }
        Self(rows)
    }

    /// How many values it counts.
    #[must_use]
    pub fn count(&self) -> f64 {
        self.0.iter().map(|row| row[2]).sum()
    }
}

fn rows_between(least: f64, greatest: f64) -> Vec<[f64; 3]> {
    let width = (greatest - least) / BUCKETS as f64;
    let edge = |place: usize| match place {
        BUCKETS => greatest,
        // Two roundings, as TensorFlow has.
        _ => least + width * place as f64,
    };
    (0..BUCKETS)
        .map(|place| [edge(place), edge(place + 1), 0.0])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_no_numbers_are_left_out() {
        let histogram = Histogram::of(&[f32::NAN, 1.0, f32::INFINITY, 3.0]);
        assert_eq!(histogram.count(), 2.0);
        assert_eq!(
            (histogram.0[0], histogram.0[29][1]),
            ([1.0, 1.0 + 2.0 / 30.0, 1.0], 3.0)
        );
        assert_eq!(Histogram::of(&[f32::NAN]).count(), 0.0);
    }
}
