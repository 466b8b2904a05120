//! Files of weights that are refused, and what of them is left out where a misfit is allowed.

use std::io::Cursor;
use std::ops::Range;
use std::time::{Duration, Instant};

use phalanx::Error;
use phalanx::import::{LoadWeights, Matching};
use phalanx::nn::{BatchNorm, Conv2d, Dense, Flatten, Layer, Sequential};

use crate::{fresh, golden, golden_path, load, tiny};

/// To go on would be to train from random values.
#[test]
fn a_file_of_which_nothing_fits_is_refused() {
    let skip = LoadWeights {
        skip_mismatch: true,
        ..LoadWeights::default()
    };
    let mut stranger = fresh(Sequential::new([2]).add(Dense::new(9).named("stranger")));
    let error = stranger
        .load_weights(golden_path("tiny.keras"), skip)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no variable of the model has a value in it: 0 of 2 variables have values"),
        "{error}"
    );
}

/// Keras' files have variables by number alone, so that with one less all after it would get their neighbours' values.
#[test]
fn layers_with_other_numbers_of_variables_get_no_values() {
    let model = Sequential::new([7, 7, 2])
        .add(Conv2d::new(4, 3).strides(2).named("stem"))
        .add(BatchNorm::new().scale(false).named("bn"))
        .add(Flatten)
        .add(Dense::new(5).use_bias(false).named("hidden"));
    let wanted = fresh(model);
    for file in ["tiny.weights.h5", "tiny.keras", "tiny.h5"] {
        for matching in [Matching::Auto, Matching::Names] {
            let mut saved = wanted.clone();
            let options = |skip_mismatch| LoadWeights {
                skip_mismatch,
                matching,
            };
            let refused = saved.load_weights(golden_path(file), options(false));
            let refused = refused.unwrap_err().to_string();
            let counts = "2 layers do not fit: `bn` has 3 variables, in the file 4, `hidden` has 1 variables, in the file 2";
            assert!(refused.contains(counts), "{file}: {refused}");
            assert_eq!(saved.values(), wanted.values());
            let report = saved.load_weights(golden_path(file), options(true));
            let report = report.unwrap();
            let missing = [
                "bn/beta",
                "bn/moving_mean",
                "bn/moving_variance",
                "hidden/kernel",
            ];
            assert_eq!(report.missing, missing, "{file}");
            assert_eq!(saved.values()[2..], wanted.values()[2..], "{file}");
        }
    }
}

#[test]
fn what_is_no_file_of_weights_is_refused() {
    let mut saved = fresh(tiny(str::to_owned));
    let mut message = |bytes: &[u8]| {
        let loaded = saved.load_weights_from("w", bytes, LoadWeights::default());
        loaded.unwrap_err().to_string()
    };
    assert!(message(b"hello").starts_with("w: start: neither HDF5, nor a .keras archive"));
    assert!(message(b"PK\x03\x04").starts_with("w: model.weights.h5: expected a .keras archive"));
    assert!(
        message(b"\x89HDF\r\n\x1a\n").starts_with("w: HDF5: 1 bytes expected where 0 are left")
    );
    let absent = load(&mut saved, "keras/weights/absent.h5").unwrap_err();
    assert!(
        matches!(absent, Error::Io { action: "open", .. }),
        "{absent}"
    );
    let folder = load(&mut saved, "keras/weights").unwrap_err().to_string();
    assert!(
        folder.contains("is no plain file; give a file of weights"),
        "{folder}"
    );
}

/// Small files that ask for much: see `hostile` of `make_weight_seeds.py`.
#[test]
fn what_asks_for_too_much_is_refused_at_once() {
    let model = Sequential::new([2, 2, 1]).add(Conv2d::new(2, 1).use_bias(false));
    let skip = LoadWeights {
        skip_mismatch: true,
        ..LoadWeights::default()
    };
    let cases = [
        ("filters.h5", "filter 1 twice, expected once"),
        (
            "chunks.h5",
            "chunks [4096, 4096, 1, 1] of an array [1, 1, 1, 2]",
        ),
        ("repeats.h5", "more chunks than its array has"),
        (
            "archive.keras",
            "model.weights.h5: 25165824 bytes when it is unpacked, expected at most 16777280 for this model",
        ),
    ];
    let mut saved = fresh(model);
    for (file, expected) in cases {
        let path = golden(&format!("../../fuzz/seeds/weights/hostile_{file}"));
        let start = Instant::now();
        let error = saved.load_weights(path, skip).unwrap_err().to_string();
        assert!(error.contains(expected), "{file}: {error}");
        assert!(start.elapsed() < Duration::from_secs(10), "{file}");
    }
}

/// Cut or changed anywhere, a file is refused or read, and nothing panics. An archive has a checksum of its weights, so that a change of
/// them is always refused.
#[test]
fn damage_is_an_error() {
    for file in ["tiny.weights.h5", "tiny.h5", "tiny.keras"] {
        let whole = std::fs::read(golden_path(file)).unwrap();
        let checked = match file {
            "tiny.keras" => stored(&whole, "model.weights.h5"),
            _ => 0..0,
        };
        let mut saved = fresh(tiny(str::to_owned));
        for step in 0..400 {
            let place = step * 7919 % whole.len();
            let mut bytes = whole.clone();
            match step % 4 {
                0 => bytes.truncate(place),
                1 => bytes[place] ^= 0xFF,
                2 => bytes[place] = bytes[place].wrapping_add(1),
                _ => bytes[place..]
                    .iter_mut()
                    .take(8)
                    .for_each(|byte| *byte = 0xFF),
            }
            let loaded = saved.load_weights_from(file, &bytes, LoadWeights::default());
            let is_changed = bytes.get(checked.clone()) != whole.get(checked.clone());
            assert!(!is_changed || loaded.is_err(), "{file}: byte {place}");
        }
    }
}

/// Where a member lies in an archive that does not compress it.
fn stored(archive: &[u8], name: &str) -> Range<usize> {
    let mut opened = zip::ZipArchive::new(Cursor::new(archive)).unwrap();
    let member = opened.by_name(name).unwrap();
    assert_eq!(member.compression(), zip::CompressionMethod::Stored);
    let start = member.data_start().unwrap() as usize;
    start..start + member.size() as usize
}
