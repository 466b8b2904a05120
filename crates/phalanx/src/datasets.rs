//! Datasets that come with the library.

use crate::Result;
use crate::data::{CsvOptions, Dataset, Header, parse_csv};

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
}
