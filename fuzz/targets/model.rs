//! The reader of saved models: the architecture up to the first NUL byte, the weights after it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::saved::SavedModel;

fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|&byte| byte == 0).unwrap_or(input.len());
    let (model, weights) = input.split_at(end);
    if let Err(error) = SavedModel::from_bytes(model, weights.get(1..).unwrap_or_default()) {
        assert!(!error.to_string().is_empty());
    }
});
