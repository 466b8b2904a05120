//! Archives of Keras 3, `.keras`: the architecture and the values, for its `load_model`.

use std::io::{self, Write};

use serde_json::Value;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::import::hdf5::writer::Hdf5File;
use crate::nn::KERAS_WRITTEN;

/// Writes an archive of the architecture and the values, which are not compressed, as Keras leaves them.
pub(super) fn write(out: &mut dyn Write, config: &Value, weights: &Hdf5File<'_>) -> io::Result<()> {
    let metadata = serde_json::json!({"keras_version": KERAS_WRITTEN});
    let mut archive = ZipWriter::new_stream(out);
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, document) in [("metadata.json", &metadata), ("config.json", config)] {
        archive.start_file(name, stored)?;
        archive.write_all(document.to_string().as_bytes())?;
    }
    // Lengths are known once they are written; those of a file that may be long take more bytes.
    archive.start_file("model.weights.h5", stored.large_file(true))?;
    weights.write(&mut archive)?;
    archive.finish()?;
    Ok(())
}
