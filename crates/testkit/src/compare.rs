//! Comparisons of numbers that no number and no infinity slips through.

/// The largest difference between two lists; infinite where one is not a number or the difference is infinite.
///
/// # Panics
/// The lists have different lengths.
#[must_use]
pub fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "lists of different lengths");
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    // `f64::max` would pass over what is not a number.
    differences.fold(0.0, |most: f64, difference| match difference.is_nan() {
        true => f64::INFINITY,
        false => most.max(difference),
    })
}

/// The largest difference, relative to the largest number of `a`, or to 0.01 where all are smaller; infinite where one is not a
/// number or infinite.
///
/// # Panics
/// As for [`largest_difference`].
#[must_use]
pub fn relative_difference(a: &[f64], b: &[f64]) -> f64 {
    let largest = a.iter().fold(0.01, |most: f64, x| most.max(x.abs()));
    let difference = largest_difference(a, b);
    match largest.is_finite() {
        true => difference / largest,
        false => f64::INFINITY,
    }
}

/// Fails unless each number is within `tolerance` of the expected one, or within that share of it where it is above 1. What is expected must
/// be finite.
///
/// # Panics
/// A number is too far from the expected one or not a number, or the lists have different lengths.
#[track_caller]
pub fn assert_close<T: Copy + Into<f64>>(what: &str, got: &[T], expected: &[T], tolerance: f64) {
    assert_relatively_close(what, got, expected, tolerance, 1.0);
}

/// As [`assert_close`], but `tolerance` is a share of the expected number, or of `least` where the number is smaller.
///
/// # Panics
/// As [`assert_close`].
#[track_caller]
pub fn assert_relatively_close<T: Copy + Into<f64>>(
    what: &str,
    got: &[T],
    expected: &[T],
    tolerance: f64,
    least: f64,
) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let (got, expected): (f64, f64) = (got.into(), expected.into());
        let allowed = tolerance * expected.abs().max(least);
        let is_close = expected.is_finite() && (got - expected).abs() <= allowed;
        assert!(
            is_close,
            "{what}: value {i} is {got}, expected {expected} within {allowed}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_numbers_are_finite() {
        assert_close("near", &[1.0, 200.0], &[1.1, 190.0], 0.1);
        let (nan, infinite) = (f64::NAN, f64::INFINITY);
        for (got, expected) in [
            (1.0, 1.2),
            (nan, 1.0),
            (1.0, nan),
            (nan, nan),
            (1.0, infinite),
            (infinite, 1.0),
            (infinite, infinite),
        ] {
            let compared = std::panic::catch_unwind(|| assert_close("", &[got], &[expected], 0.1));
            assert!(compared.is_err(), "{got} and {expected}");
        }
    }

    #[test]
    fn small_numbers_are_close_by_their_own_size() {
        assert_relatively_close("near", &[0.02, 0.001], &[0.021, 0.0019], 0.1, 0.01);
        for (got, expected) in [(0.02, 0.023), (0.001, 0.0021), (0.01, f64::INFINITY)] {
            let compare = || assert_relatively_close("", &[got], &[expected], 0.1, 0.01);
            assert!(std::panic::catch_unwind(compare).is_err(), "{expected}");
        }
    }

    #[test]
    fn what_is_no_number_is_apart_from_everything() {
        let (nan, infinite) = (f64::NAN, f64::INFINITY);
        assert_eq!(largest_difference(&[1.0, 2.0], &[1.5, 2.0]), 0.5);
        assert_eq!(relative_difference(&[4.0, 2.0], &[4.0, 3.0]), 0.25);
        assert_eq!(relative_difference(&[0.0], &[0.001]), 0.1);
        let spoilt: [([f64; 2], [f64; 2]); 6] = [
            ([nan, 1.0], [1.0, 1.0]),
            ([1.0, 1.0], [1.0, nan]),
            ([nan, nan], [nan, nan]),
            ([nan, 1.0], [nan, 2.0]),
            ([infinite, 1.0], [infinite, 1.0]),
            ([infinite, 1.0], [2.0, 1.0]),
        ];
        for (a, b) in spoilt {
            assert_eq!(largest_difference(&a, &b), infinite, "{a:?} {b:?}");
            assert_eq!(relative_difference(&a, &b), infinite, "{a:?} {b:?}");
        }
    }
}
