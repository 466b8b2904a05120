//! The reader of architectures of Keras: `config.json` of an archive, whose weights have no value.
#![no_main]

use std::io::{Cursor, Write};

use libfuzzer_sys::fuzz_target;
use phalanx::saved::SavedModel;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

fuzz_target!(|input: &[u8]| {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let plain = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    archive.start_file("config.json", plain).expect("it is new");
    archive.write_all(input).expect("there is memory");
    let bytes = archive.finish().expect("there is memory").into_inner();
    let read = SavedModel::from_keras_bytes("model", &bytes);
    let error = read.expect_err("there are no values").to_string();
    assert!(error.starts_with("model: "), "{error}");
    assert!(
        error.len() < 4096 && !error.contains(char::is_control),
        "{error:?}"
    );
    assert!(!error.contains("bug in phalanx"), "{error}");
});
