//! What a folder of TensorFlow Datasets says of itself: `dataset_info.json`, a separator, `features.json`. What is accepted can be read: a file
//! with a record of every feature lies beside it.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use phalanx::Error;
use phalanx::data::{Features, IndexCache, TfRecordOptions, TfdsFeature, TfdsFolder, write_tfrecord};

const SEPARATOR: &[u8] = b"\n---\n";
/// The file that the seeds speak of.
const FILE: &str = "signs-train.tfrecord-00000-of-00001";

fuzz_target!(|input: &[u8]| {
    let folder = std::env::temp_dir().join(format!("phalanx-fuzz-tfds-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the temporary folder");
    let (info, features) = split(input);
    for (name, bytes) in [("dataset_info.json", info), ("features.json", features)] {
        fs::write(folder.join(name), bytes).expect("a file in the temporary folder");
    }
    let opened = match TfdsFolder::open(&folder) {
        Ok(opened) => opened,
        Err(error) => return check(&error),
    };
    assert!(!opened.features().is_empty());
    let mut record = Vec::new();
    write_tfrecord(&mut record, &example(&opened).to_bytes()).expect("a record in memory");
    fs::write(folder.join(FILE), record).expect("a file in the temporary folder");
    let options = TfRecordOptions { index: IndexCache::Off, ..TfRecordOptions::default() };
    for split in opened.splits() {
        opened.examples(split).expect("a split that is there");
        for (name, feature) in opened.features() {
            if let Err(error) = opened.texts(split, name, &options) {
                check(&error);
            }
            let read = opened.dataset(split, &[name], &[], &options).and_then(|data| data.get(0, 0));
            match read {
                Ok(example) => check_dims(feature, example.x[0].dims()),
                Err(error) => check(&error),
            }
        }
    }
});

/// A record that has each feature, of one number or of as many as it says.
fn example(folder: &TfdsFolder) -> Features {
    let count = |dims: &[Option<usize>]| {
        let count = dims.iter().try_fold(1_usize, |count, dim| count.checked_mul(dim.unwrap_or(3)));
        count.filter(|&count| count < 1000).unwrap_or(1)
    };
    folder.features().iter().fold(Features::new(), |features, (name, feature)| match feature {
        TfdsFeature::Class(_) => features.with_ints(name, vec![1]),
        TfdsFeature::Ints(_, dims) => features.with_ints(name, vec![1; count(dims)]),
        TfdsFeature::Floats(dims) => features.with_floats(name, vec![1.0; count(dims)]),
        _ => features.with_bytes(name, vec![b"\x89PNG".to_vec()]),
    })
}

fn check_dims(feature: &TfdsFeature, found: &[usize]) {
    let dims = match feature {
        TfdsFeature::Class(_) => &[],
        TfdsFeature::Ints(_, dims) | TfdsFeature::Floats(dims) => &dims[..],
        _ => panic!("a tensor of {feature:?}"),
    };
    assert!(dims.len() == found.len(), "{dims:?} {found:?}");
    let mut pairs = dims.iter().zip(found);
    assert!(pairs.all(|(dim, found)| dim.is_none_or(|dim| dim == *found)), "{dims:?} {found:?}");
}

fn check(error: &Error) {
    match error {
        Error::Data { message, .. } | Error::User(message) => assert!(message.contains("; "), "no next action: {message}"),
        error => panic!("expected an error of the data, got {error}"),
    }
}

fn split(input: &[u8]) -> (&[u8], &[u8]) {
    let mut windows = input.windows(SEPARATOR.len());
    match windows.position(|window| window == SEPARATOR) {
        Some(at) => (&input[..at], &input[at + SEPARATOR.len()..]),
        None => (input, &[]),
    }
}
