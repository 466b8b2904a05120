//! The reader of checkpoints: the fields of `checkpoint.json` without its end, a separator, then the other files. Sizes and
//! checksums are made to fit, so that what is behind them is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::checkpoint::TrainingState;
use phalanx::data::{Dataset, HostTensor, Position};

const SEPARATOR: &[u8] = b"\n---\n";
/// Reaches the readers of the other files whatever the input is.
const SMALL: &[u8] = br#"{"format": "phalanx checkpoint", "version": 1, "phalanx": "0", "iterations": 7, "seed": 1,
    "replicas": 2, "optimizer": "adam", "settings": {}, "logs": ["loss"], "position": {"epoch": 0, "segments": []},
    "examples": null, "data": null, "skipped_before": 0, "callbacks": [["keep_best", {"log": "loss", "value": "NaN"}]]"#;
const FILES: [&str; 5] = [
    "weights.safetensors",
    "optimizer.safetensors",
    "epoch.safetensors",
    "callbacks.safetensors",
    "history.jsonl",
];

fuzz_target!(|input: &[u8]| {
    let mut parts = split(input).into_iter();
    let fields = parts.next().filter(|fields| !fields.is_empty());
    let files: Vec<(&str, &[u8])> = FILES.into_iter().zip(parts).collect();
    let manifest = manifest(fields.unwrap_or(SMALL), &files);
    let mut contents = vec![("checkpoint.json", &*manifest)];
    contents.extend(&files);
    match TrainingState::from_bytes(&contents) {
        Ok(state) => {
            let again = TrainingState::from_bytes(&contents).expect("it was read before");
            assert_eq!(again, state);
            go_on(state.position());
        }
        Err(error) => {
            let error = error.to_string();
            let names = ["checkpoint.json"].into_iter().chain(FILES);
            assert!(names.into_iter().any(|name| error.starts_with(&format!("{name}: "))), "{error}");
            assert!(error.len() < 4096 && !error.contains(char::is_control), "{error:?}");
            assert!(!error.contains("bug in phalanx"), "{error}");
        }
    }
});

/// A few batches of data that the position may not be of.
fn go_on(position: &Position) {
    let x = HostTensor::new([20], &[0.5f32; 20]);
    let batches = Dataset::from_arrays(x.clone(), x).expect("rows").shuffle(5).batch(6);
    match batches.iter_at(position) {
        Ok(iter) => {
            let steps: Vec<_> = iter.take(8).collect();
            assert!(steps.len() <= 4, "more steps than an epoch has");
        }
        Err(error) => assert!(!error.to_string().contains("bug in phalanx"), "{error}"),
    }
}

fn manifest(fields: &[u8], files: &[(&str, &[u8])]) -> Vec<u8> {
    let stamp = |(name, bytes): &(&str, &[u8])| {
        let (length, sum) = (bytes.len(), crc32c(bytes));
        format!(r#""{name}": {{"bytes": {length}, "crc32c": {sum}}}"#)
    };
    let stamps: Vec<String> = files.iter().map(stamp).collect();
    let mut text = fields.to_vec();
    text.extend(format!(",\n  \"files\": {{{}}}", stamps.join(", ")).bytes());
    let sum = crc32c(&text);
    text.extend(format!(",\n  \"crc32c\": \"{sum:08x}\"\n}}\n").bytes());
    text
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
    !bytes.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), step))
}

fn split(mut input: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some(at) = input.windows(SEPARATOR.len()).position(|window| window == SEPARATOR) {
        parts.push(&input[..at]);
        input = &input[at + SEPARATOR.len()..];
    }
    parts.push(input);
    parts
}
