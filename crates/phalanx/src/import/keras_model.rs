//! The architecture in files of whole models: `config.json` of archives, the attribute `model_config` of HDF5 files.

use std::io::{Cursor, Read};

use serde_json::Value;
use zip::ZipArchive;

use super::hdf5::{Hdf5, SIGNATURE};
use super::problem;
use crate::Result;
use crate::nn::Model;

const ARCHIVED: &str = "config.json";
const ATTRIBUTE: &str = "model_config";
/// Longer descriptions of a model are refused.
const MAX_BYTES: u64 = 64 << 20;

/// The model that a file describes, whose contents these are; errors call it `name`.
pub(super) fn model(name: &str, bytes: &[u8]) -> Result<Model> {
    let (place, text) = match bytes.starts_with(SIGNATURE) {
        true => (ATTRIBUTE, attribute(bytes)),
        false => (ARCHIVED, member(bytes)),
    };
    let wrong = |message: String| problem(name, place, message);
    let text = text.map_err(wrong)?;
    let config: Value = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("expected JSON: {error}; save the model again")))?;
    Model::from_keras_config(&config).map_err(wrong)
}

fn member(bytes: &[u8]) -> std::result::Result<String, String> {
    const NEXT: &str = "expected a model that `model.save(\"model.keras\")` wrote";
    let broken = |error: &dyn std::fmt::Display| format!("{error}; {NEXT}");
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| broken(&error))?;
    let member = archive.by_name(ARCHIVED).map_err(|error| broken(&error))?;
    let size = member.size();
    if size > MAX_BYTES {
        return Err(format!("{size} bytes, expected at most {MAX_BYTES}"));
    }
    let mut text = String::new();
    // The size is what the archive says, and what is unpacked may be more.
    let read = member.take(MAX_BYTES).read_to_string(&mut text);
    read.map_err(|error| broken(&error))?;
    Ok(text)
}

fn attribute(bytes: &[u8]) -> std::result::Result<String, String> {
    let file = Hdf5::open(bytes)?;
    let texts = file.texts(&file.root()?, ATTRIBUTE)?;
    let mut texts = texts.into_iter().flatten();
    texts.next().ok_or_else(|| {
        "the file has weights alone; expected a whole model, which `model.save(\"model.keras\")` writes, or load the weights into a model that you make".into()
    })
}
