//! The parser of tf.train.Example: what is read and written again reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::Error;
use phalanx::data::Features;

fuzz_target!(|input: &[u8]| {
    match Features::parse(input) {
        Ok(features) => {
            let bytes = features.to_bytes();
            let again = Features::parse(&bytes).expect("what is written can be read");
            assert!(again.to_bytes() == bytes, "another reading of the same features");
        }
        Err(Error::Data { place, message, .. }) => {
            assert!(place.starts_with("byte "), "{place}: {message}");
            assert!(message.contains("; "), "no next action: {message}");
        }
        Err(error) => panic!("expected an error of the data, got {error}"),
    }
});
