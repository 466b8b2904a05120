//! The reader of IDX arrays, plain or gzip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::Error;
use phalanx::data::parse_idx;

fuzz_target!(|input: &[u8]| {
    match parse_idx(input, "f.idx", 1 << 20) {
        Ok(array) => assert!(array.bytes().len() <= 1 << 20),
        Err(Error::Data { source_name, place, message }) => {
            assert!(source_name == "f.idx" && place.starts_with("byte "), "{place}: {message}");
            assert!(message.contains("; "), "no next action: {message}");
        }
        Err(error) => panic!("expected an error of the data, got {error}"),
    }
});
