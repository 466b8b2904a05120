//! The reader of training files.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use phalanx_cli::config::parse_bytes;

fuzz_target!(|input: &[u8]| {
    if let Err(problems) = parse_bytes(input, Path::new("train.yaml")) {
        assert!(!problems.list.is_empty(), "refused without a problem");
        assert!(problems.to_string().contains("train.yaml"));
    }
});
