//! The reader of saved models: `model.json`, a separator, `weights.safetensors`; a small model where there is no JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::nn::{Model, Registry};
use phalanx::saved::SavedModel;

const SEPARATOR: &[u8] = b"\n---\n";
/// Reaches the reader of weights whatever the input is.
const SMALL: &[u8] = br#"{"format": "phalanx model", "version": 1, "phalanx": "0", "model":
    {"input": {"shape": [3]}, "layers": [{"dense": {"units": 2}}, "batch_norm"]}}"#;

fuzz_target!(|input: &[u8]| {
    let (manifest, weights) = split(input);
    let manifest = if manifest.is_empty() { SMALL } else { manifest };
    match SavedModel::from_bytes(manifest, weights, &Registry::standard()) {
        Ok(saved) => {
            let config = saved.model().config();
            let again = Model::from_config(&config).expect("an accepted model is read again");
            assert_eq!(again.config(), config);
            assert_eq!(again.variables(), saved.model().variables());
            SavedModel::new(again, saved.values().to_vec()).expect("the values are its own");
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.starts_with("model.json: ") || error.starts_with("weights.safetensors: "));
            assert!(error.len() < 4096 && !error.contains(char::is_control), "{error:?}");
            assert!(!error.contains("bug in phalanx"), "{error}");
        }
    }
});

fn split(input: &[u8]) -> (&[u8], &[u8]) {
    let mut windows = input.windows(SEPARATOR.len());
    match windows.position(|window| window == SEPARATOR) {
        Some(at) => (&input[..at], &input[at + SEPARATOR.len()..]),
        None => (input, &[]),
    }
}
