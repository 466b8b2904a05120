//! Datasets that come with the library.

use crate::data::{CsvOptions, Dataset, Header, HostTensor, parse_csv};
use crate::hash::{fraction, splitmix64};
use crate::{Error, Result};

const DIGITS: &[u8] = include_bytes!("../data/digits.csv.gz");

/// The 1,797 handwritten digits of the UCI repository (8 x 8 pixels, E. Alpaydin and C. Kaynak, CC BY 4.0).
///
/// x is f32 `[8, 8, 1]` with raw values 0 to 16 (scale them in the model with a rescaling layer of 1/16),
/// y an i32 scalar from 0 to 9. By convention rows 0 to 1,436 train and the last 360 test:
///
/// ```
/// let (train, test) = phalanx::datasets::digits()?.split_at(1437)?;
/// assert_eq!((train.len(), test.len()), (Some(1437), Some(360)));
/// # Ok::<(), phalanx::Error>(())
/// ```
///
/// # Errors
/// None in practice: the data are part of the library.
pub fn digits() -> Result<Dataset> {
    let options = CsvOptions {
        header: Header::No,
        features: vec![8, 8, 1],
        ..CsvOptions::default()
    };
    parse_csv(DIGITS, "digits.csv.gz", &options)
}

/// Made-up clicks: whether users clicked items, with taste that a [`Recommender`](crate::models::Recommender) can find.
///
/// Inputs: a user `i32 []` below `users`, an item `i32 []` below `items`, few of which are most of the clicks; output: 1 or 0, f32
/// `[1]`. Each user and item has a vector of four numbers, drawn evenly from -1 to 1; the click is drawn with the probability
/// `1 / (1 + exp(-6 u v))` of their product, by which an AUC of about 0.94 is the best that there can be. All follows from the seed.
///
/// # Errors
/// There are no users, items or examples.
pub fn clicks(users: u32, items: u32, count: usize, seed: u64) -> Result<Dataset> {
    if users == 0 || items == 0 {
        return Err(Error::user(format!(
            "clicks of {users} users and {items} items; expected at least one of each"
        )));
    }
    let mut who = Vec::with_capacity(count);
    let mut what = Vec::with_capacity(count);
    let mut clicked = Vec::with_capacity(count);
    for example in 0..count as u64 {
        let draw = |stream| unit(seed, stream, example);
        let user = (draw(1) * f64::from(users)) as i32;
        let item = (draw(2).powi(2) * f64::from(items)) as i32;
        let click = draw(3) < click_probability(seed, user, item);
        who.push(user);
        what.push(item);
        clicked.push(f32::from(u8::from(click)));
    }
    let x = vec![
        HostTensor::new([count], &who),
        HostTensor::new([count], &what),
    ];
    Dataset::from_arrays(x, HostTensor::new([count, 1], &clicked))
}

/// How likely a user is to click an item in [`clicks`].
fn click_probability(seed: u64, user: i32, item: i32) -> f64 {
    let taste =
        |stream: u64, of: i32| move |k: u64| 2.0 * unit(seed, stream, of as u64 * 4 + k) - 1.0;
    let (user, item) = (taste(4, user), taste(5, item));
    let product: f64 = (0..4).map(|k| user(k) * item(k)).sum();
    1.0 / (1.0 + (-6.0 * product).exp())
}

/// Draw `index` of a stream, from 0 to below 1.
fn unit(seed: u64, stream: u64, index: u64) -> f64 {
    fraction(splitmix64(splitmix64(splitmix64(seed) ^ stream) ^ index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_the_published_ones() {
        let digits = digits().unwrap();
        assert_eq!(digits.len(), Some(1797));
        let mut counts = [0; 10];
        let mut ink = 0.0;
        for i in 0..1797 {
            let example = digits.get(0, i).unwrap();
            assert_eq!(example.x[0].dims(), [8, 8, 1]);
            assert_eq!(example.y[0].dims(), [] as [usize; 0]);
            counts[example.y[0].values::<i32>().unwrap()[0] as usize] += 1;
            ink += example.x[0].to_f64().iter().sum::<f64>();
        }
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert_eq!(ink, 561_718.0);
    }

    #[test]
    fn clicks_follow_taste_and_the_seed() {
        let rows = clicks(50, 30, 4000, 3).unwrap();
        let again = clicks(50, 30, 4000, 3).unwrap();
        let mut scored = Vec::new();
        for i in 0..4000 {
            let example = rows.get(0, i).unwrap();
            assert_eq!(example.x, again.get(0, i).unwrap().x);
            let id = |at: usize| example.x[at].values::<i32>().unwrap()[0];
            assert!((0..50).contains(&id(0)) && (0..30).contains(&id(1)));
            let clicked = example.y[0].to_f64()[0];
            scored.push((click_probability(3, id(0), id(1)), clicked));
        }
        let clicks: f64 = scored.iter().map(|(_, clicked)| clicked).sum();
        let expected: f64 = scored.iter().map(|(probability, _)| probability).sum();
        // Three deviations of 4,000 draws.
        assert!((clicks - expected).abs() < 95.0, "{clicks} {expected}");
        // The area under the curve: how often a click has the higher probability of two.
        scored.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut below, mut pairs) = (0.0, 0.0);
        for (_, clicked) in &scored {
            match *clicked == 1.0 {
                true => pairs += below,
                false => below += 1.0,
            }
        }
        let auc = pairs / (below * (4000.0 - below));
        assert!((0.92..0.96).contains(&auc), "{auc}");
    }
}
