//! The readers of foreign weights: HDF5, `.keras` archives, safetensors of ours and of PyTorch.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use phalanx::import::LoadWeights;
use phalanx::nn::{BatchNorm, Conv2d, Dense, Flatten, Layer, Sequential};
use phalanx::saved::SavedModel;

/// The model of the seeds.
static MODEL: LazyLock<SavedModel> = LazyLock::new(|| {
    let stack = Sequential::new([2, 2, 1])
        .add(Conv2d::new(2, 1).named("conv"))
        .add(BatchNorm::new().named("bn"));
    let model = stack
        .add(Flatten)
        .add(Dense::new(2).named("out"))
        .build()
        .expect("the model is right");
    let values = model.init(0).expect("it is small");
    SavedModel::new(model, values).expect("the values are its own")
});

fuzz_target!(|input: &[u8]| {
    for skip_mismatch in [false, true] {
        let mut saved = MODEL.clone();
        let options = LoadWeights {
            skip_mismatch,
            ..LoadWeights::default()
        };
        match saved.load_weights_from("weights", input, options) {
            Ok(report) => {
                assert!(skip_mismatch || report.is_complete(), "{report}");
                let found = report.matched.len() + report.missing.len() + report.mismatched.len();
                assert_eq!(found, saved.values().len());
                SavedModel::new(saved.model().clone(), saved.values().to_vec())
                    .expect("shapes stay");
                assert!(!report.to_string().contains(char::is_control), "{report}");
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.starts_with("weights: "), "{error}");
                assert!(
                    error.len() < 16384 && !error.contains(char::is_control),
                    "{error:?}"
                );
                assert!(!error.contains("bug in phalanx"), "{error}");
            }
        }
    }
});
