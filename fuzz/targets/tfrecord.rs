//! TFRecord files: the first byte chooses the policy, the rest is the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::Error;
use phalanx::data::{CorruptPolicy, IndexCache, Records, TfRecordOptions, TfRecords};

fuzz_target!(|input: &[u8]| {
    let (skip, file) = match input.split_first() {
        Some((&choice, file)) if choice < 2 => (choice == 1, file),
        _ => (false, input),
    };
    let path = std::env::temp_dir().join(format!("phalanx-fuzz-{}.tfrecord", std::process::id()));
    std::fs::write(&path, file).expect("a file in the temporary folder");
    let options = TfRecordOptions {
        corrupt: if skip { CorruptPolicy::Skip } else { CorruptPolicy::Fail },
        index: IndexCache::Off,
        max_record: 1 << 10,
    };
    match TfRecords::open(&path.to_string_lossy(), &options) {
        Ok(records) => {
            let all: Vec<usize> = (0..records.len()).collect();
            let lost: u64 = records.lost().iter().map(|lost| lost.bytes).sum();
            // Unpacked, a file may have more records than bytes.
            let is_packed = file.starts_with(&[0x1f, 0x8b]) || file.first().is_some_and(|byte| byte & 0x8f == 8);
            assert!(is_packed || all.len() * 16 + lost as usize <= file.len());
            assert!(skip || lost == 0, "bytes are lost without being asked for");
            for (i, together) in records.get_each(&all).into_iter().enumerate() {
                let alone = records.get(i);
                assert!(alone.is_ok() == together.is_ok() && alone.ok() == together.ok(), "record {i}");
            }
        }
        Err(Error::Data { place, message, .. }) => {
            assert!(!skip && place.starts_with("record ") && message.contains("; "), "{place}: {message}");
        }
        Err(error) => panic!("expected an error of the data, got {error}"),
    }
});
