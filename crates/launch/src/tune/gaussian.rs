//! A Gaussian process over the unit cube, and where it expects the most.
//!
//! Costs, standardized, are taken for a draw from a process with a Matérn 5/2 kernel with one length for each dimension. The lengths are
//! the ones under which the costs seen are likeliest, looked for one dimension at a time over a list. The next place is where the
//! improvement over the best cost is expected to be largest: with the prediction's mean m and deviation s, and z = (best - m) / s, that
//! is s (z Φ(z) + φ(z)) (Jones, Schonlau and Welch, 1998). It is looked for among random places and among places around the best one.

/// Lengths that are tried for each dimension.
const LENGTHS: [f64; 6] = [0.1, 0.2, 0.4, 0.8, 1.6, 4.0];
/// Rounds over the dimensions.
const ROUNDS: usize = 2;
/// What two runs of the same values differ by, as a share of the variance of all.
const NOISE: f64 = 1e-4;
/// Places that are looked at, half of them near the best.
const PLACES: usize = 600;
/// More trials than this cost more than they teach: the best and the last are kept.
const MOST: usize = 150;

/// Random numbers by SplitMix64 (Steele, Lea and Flood, 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number from 0 to 1, without 1.
    pub(super) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number of the normal distribution, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let (one, other) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
    }
}

/// The place of the cube whose cost is expected to improve most on the known ones, which are at least two.
pub(super) fn best_place(mut known: Vec<(Vec<f64>, f64)>, random: &mut Random) -> Option<Vec<f64>> {
    if known.len() > MOST {
        let recent = known.split_off(known.len() - MOST / 2);
        known.sort_by(|one, other| one.1.total_cmp(&other.1));
        known.truncate(MOST - recent.len());
        known.extend(recent);
    }
    let (places, costs): (Vec<_>, Vec<_>) = known.into_iter().unzip();
    let costs = standardized(&costs);
    let process = Process::fitted(places, &costs)?;
    let best = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let center = process.places[costs.iter().position(|cost| *cost == best)?].clone();
    let mut found: Option<(f64, Vec<f64>)> = None;
    for number in 0..PLACES {
        let place = candidate(&center, number, random);
        let gain = process.improvement(&place, best);
        if gain.is_finite() && found.as_ref().is_none_or(|(most, _)| gain > *most) {
            found = Some((gain, place));
        }
    }
    found.map(|(_, place)| place)
}

/// A random place of the cube, or every other time one near the best, at distances of several sizes.
fn candidate(center: &[f64], number: usize, random: &mut Random) -> Vec<f64> {
    let width = [0.2, 0.05, 0.01][number / 2 % 3];
    let near = |at: &f64, random: &mut Random| (at + width * random.normal()).clamp(0.0, 1.0);
    match number % 2 {
        0 => center.iter().map(|_| random.uniform()).collect(),
        _ => center.iter().map(|at| near(at, random)).collect(),
    }
}

/// Costs with mean 0 and variance 1. A cost far above the others would flatten all that matters: it counts as three deviations above
/// the median at most.
fn standardized(costs: &[f64]) -> Vec<f64> {
    let mut sorted = costs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    let spread = (median - sorted[0]).max(1e-12);
    let costs: Vec<f64> = costs
        .iter()
        .map(|cost| cost.min(median + 3.0 * spread))
        .collect();
    let mean = costs.iter().sum::<f64>() / costs.len() as f64;
    let variance = costs.iter().map(|cost| (cost - mean).powi(2)).sum::<f64>() / costs.len() as f64;
    let deviation = variance.sqrt().max(1e-12);
    costs.iter().map(|cost| (cost - mean) / deviation).collect()
}

struct Process {
    places: Vec<Vec<f64>>,
    lengths: Vec<f64>,
    /// The lower factor of the covariances, row by row.
    factor: Vec<Vec<f64>>,
    /// The inverse of the covariances times the costs.
    weights: Vec<f64>,
}

impl Process {
    /// The process with the likeliest lengths.
    fn fitted(places: Vec<Vec<f64>>, costs: &[f64]) -> Option<Self> {
        let mut lengths = vec![0.4; places[0].len()];
        let mut likeliest = likelihood(&places, &lengths, costs)
            .map_or(f64::NEG_INFINITY, |(likelihood, ..)| likelihood);
        for _ in 0..ROUNDS {
            for dimension in 0..lengths.len() {
                for length in LENGTHS {
                    let mut tried = lengths.clone();
                    tried[dimension] = length;
                    if let Some((likelihood, ..)) = likelihood(&places, &tried, costs)
                        && likelihood > likeliest
                    {
                        (likeliest, lengths) = (likelihood, tried);
                    }
                }
            }
        }
        let (_, factor, weights) = likelihood(&places, &lengths, costs)?;
        Some(Self {
            places,
            lengths,
            factor,
            weights,
        })
    }

    fn improvement(&self, place: &[f64], best: f64) -> f64 {
        let covariances: Vec<f64> = self
            .places
            .iter()
            .map(|known| kernel(known, place, &self.lengths))
            .collect();
        let mean: f64 = covariances
            .iter()
            .zip(&self.weights)
            .map(|(one, other)| one * other)
            .sum();
        let explained: f64 = solve_lower(&self.factor, &covariances)
            .iter()
            .map(|part| part * part)
            .sum();
        let deviation = (1.0 - explained).max(1e-12).sqrt();
        let z = (best - mean) / deviation;
        let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
        deviation * (z * normal_below(z) + density)
    }
}

/// The logarithm of the likelihood of the costs up to a constant, with the factor and the weights.
fn likelihood(
    places: &[Vec<f64>],
    lengths: &[f64],
    costs: &[f64],
) -> Option<(f64, Vec<Vec<f64>>, Vec<f64>)> {
    let factor = factor(places, lengths)?;
    let half = solve_lower(&factor, costs);
    let weights = solve_upper(&factor, &half);
    let fit: f64 = half.iter().map(|part| part * part).sum();
    let volume: f64 = factor
        .iter()
        .enumerate()
        .map(|(at, row)| row[at].ln())
        .sum();
    let likelihood = -0.5 * fit - volume;
    likelihood
        .is_finite()
        .then_some((likelihood, factor, weights))
}

/// Matérn 5/2.
fn kernel(one: &[f64], other: &[f64], lengths: &[f64]) -> f64 {
    let parts = one.iter().zip(other).zip(lengths);
    let square: f64 = parts
        .map(|((one, other), length)| ((one - other) / length).powi(2))
        .sum();
    let distance = (5.0 * square).sqrt();
    (1.0 + distance + 5.0 / 3.0 * square) * (-distance).exp()
}

/// Cholesky's factor of the covariances; `None` where rounding has made them no longer positive.
fn factor(places: &[Vec<f64>], lengths: &[f64]) -> Option<Vec<Vec<f64>>> {
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(places.len());
    for (row, place) in places.iter().enumerate() {
        let mut new = Vec::with_capacity(row + 1);
        for column in 0..=row {
            let own = if column == row {
                1.0 + NOISE
            } else {
                kernel(place, &places[column], lengths)
            };
            let before = if column == row {
                &new[..]
            } else {
                &factor[column][..column]
            };
            let sum: f64 = new
                .iter()
                .zip(before)
                .map(|(one, other): (&f64, &f64)| one * other)
                .sum();
            let value = if column == row {
                (own - sum).sqrt()
            } else {
                (own - sum) / factor[column][column]
            };
            new.push(value);
        }
        if !new[row].is_finite() || new[row] <= 0.0 {
            return None;
        }
        factor.push(new);
    }
    Some(factor)
}

fn solve_lower(factor: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut solved: Vec<f64> = Vec::with_capacity(right.len());
    for (row, value) in factor.iter().zip(right) {
        let at = solved.len();
        let sum: f64 = row
            .iter()
            .zip(&solved)
            .map(|(one, other)| one * other)
            .sum();
        solved.push((value - sum) / row[at]);
    }
    solved
}

/// Solves with the transposed factor.
fn solve_upper(factor: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut solved = right.to_vec();
    for at in (0..solved.len()).rev() {
        solved[at] /= factor[at][at];
        let value = solved[at];
        for before in 0..at {
            solved[before] -= factor[at][before] * value;
        }
    }
    solved
}

/// The share of the normal distribution below `z`, by Abramowitz and Stegun 7.1.26; right to 1.5e-7.
fn normal_below(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = [
        1.061_405_429,
        -1.453_152_027,
        1.421_413_741,
        -0.284_496_736,
        0.254_829_592,
    ];
    let tail = series.iter().fold(0.0, |sum, part| (sum + part) * t) * (-x * x).exp();
    if z >= 0.0 {
        1.0 - 0.5 * tail
    } else {
        0.5 * tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_goes_through_what_it_was_given() {
        let mut random = Random(1);
        let places: Vec<Vec<f64>> = (0..25)
            .map(|_| vec![random.uniform(), random.uniform()])
            .collect();
        let costs: Vec<f64> = places
            .iter()
            .map(|at| (3.0 * at[0]).sin() + at[1])
            .collect();
        let costs = standardized(&costs);
        let process = Process::fitted(places.clone(), &costs).unwrap();
        let mean = |place: &[f64]| -> f64 {
            let known = process.places.iter().zip(&process.weights);
            known
                .map(|(known, weight)| weight * kernel(known, place, &process.lengths))
                .sum()
        };
        for (place, cost) in places.iter().zip(&costs) {
            assert!((mean(place) - cost).abs() < 0.02, "{} {cost}", mean(place));
        }
        // The product of the factor with its transpose is the matrix of covariances.
        for row in 0..places.len() {
            for column in 0..=row {
                let product: f64 = (0..=column)
                    .map(|at| process.factor[row][at] * process.factor[column][at])
                    .sum();
                let noise = if row == column { NOISE } else { 0.0 };
                let expected = kernel(&places[row], &places[column], &process.lengths) + noise;
                assert!((product - expected).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn the_normal_distribution_is_that_of_the_tables() {
        for (z, below) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746),
            (-1.96, 0.024_997_895),
            (3.0, 0.998_650_102),
            (-6.0, 9.87e-10),
        ] {
            assert!(
                (normal_below(z) - below).abs() < 2e-7,
                "{z}: {}",
                normal_below(z)
            );
        }
        let mut random = Random(7);
        let draws: Vec<f64> = (0..10_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / 1e4;
        let variance = draws.iter().map(|draw| draw * draw).sum::<f64>() / 1e4;
        assert!(
            mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05,
            "{mean} {variance}"
        );
    }

    #[test]
    fn equal_places_and_equal_costs_are_no_trouble() {
        let mut random = Random(3);
        for costs in [[1.0; 6], [1.0, 2.0, 1.0, 2.0, 1.0, 1e300]] {
            let known = costs.map(|cost| (vec![0.5, 0.5], cost)).to_vec();
            let place = best_place(known, &mut random);
            assert!(place.is_none_or(|place| place.iter().all(|at| (0.0..=1.0).contains(at))));
        }
    }
}
