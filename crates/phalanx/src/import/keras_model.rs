//! The architecture in files of whole models: `config.json` of archives, the attribute `model_config` of HDF5 files, and all of what
//! `model.to_json()` gives; and what they were compiled with, in the same document, and in `training_config`.

use std::io::{Cursor, Read};

use serde_json::Value;
use zip::ZipArchive;

use super::hdf5::{Hdf5, SIGNATURE};
use super::problem;
use crate::Result;
use crate::nn::{Model, check_starts};

const ARCHIVED: &str = "config.json";
const METADATA: &str = "metadata.json";
const ATTRIBUTE: &str = "model_config";
/// Under what files note which Keras wrote them.
const VERSION: &str = "keras_version";
const COMPILED_ATTRIBUTE: &str = "training_config";
/// Longer descriptions of a model are refused.
const MAX_BYTES: u64 = 64 << 20;

/// Where a document that is a file of its own is in errors.
const DOCUMENT: &str = "the architecture";

/// Whether a file is a document of JSON, which has no values.
pub(super) fn is_document(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"{")
}

/// The model that a file describes, whose contents these are; errors call it `name`.
pub(super) fn model(name: &str, bytes: &[u8]) -> Result<Model> {
    let (place, config) = match bytes.starts_with(SIGNATURE) {
        true => (ATTRIBUTE, attribute(bytes, ATTRIBUTE)),
        false => {
            let (place, text) = document(bytes);
            (place, text.map(Some))
        }
    };
    let wrong = |message: String| problem(name, place, message);
    let text = config.map_err(wrong)?.ok_or_else(|| {
        wrong("the file has weights alone; expected a whole model, which `model.save(\"model.keras\")` writes, or load the weights into a model that you make".into())
    })?;
    let config = parsed(&text).map_err(wrong)?;
    let version = version(bytes, &config);
    if is_document(bytes) {
        check_starts(&config).map_err(wrong)?;
    }
    Model::from_keras_config(&config, version.as_deref()).map_err(wrong)
}

/// The version of Keras that wrote a file with such a description, where it says so.
fn version(bytes: &[u8], config: &Value) -> Option<String> {
    if bytes.starts_with(SIGNATURE) {
        return attribute(bytes, VERSION).ok().flatten();
    }
    let noted = match is_document(bytes) {
        true => config[VERSION].clone(),
        false => parsed(&member(bytes, METADATA).ok()?).ok()?[VERSION].take(),
    };
    noted.as_str().map(str::to_owned)
}

/// What the model of a file was compiled with, if it was; errors call it `name`.
pub(super) fn compilation(name: &str, bytes: &[u8]) -> Result<Option<Value>> {
    let (place, config) = match bytes.starts_with(SIGNATURE) {
        true => {
            let text = attribute(bytes, COMPILED_ATTRIBUTE);
            let config = text.and_then(|text| text.map(|text| parsed(&text)).transpose());
            (COMPILED_ATTRIBUTE, config)
        }
        false => {
            let (place, text) = document(bytes);
            let config = text.and_then(|text| parsed(&text));
            let compiled = config.map(|config| config.get("compile_config").cloned());
            (place, compiled)
        }
    };
    let config = config.map_err(|message| problem(name, place, message))?;
    // An archive of a model that was not compiled has an empty one.
    let is_some = |config: &Value| config.as_object().is_some_and(|fields| !fields.is_empty());
    Ok(config.filter(is_some))
}

fn parsed(text: &str) -> std::result::Result<Value, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("expected JSON: {error}; save the model again"))
}

/// The document in a file that is no HDF5 file, and its place there.
fn document(bytes: &[u8]) -> (&'static str, std::result::Result<String, String>) {
    if !is_document(bytes) {
        return (ARCHIVED, member(bytes, ARCHIVED));
    }
    let text = match std::str::from_utf8(bytes) {
        _ if bytes.len() as u64 > MAX_BYTES => Err(too_long(bytes.len() as u64)),
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(format!("expected JSON: {error}")),
    };
    (DOCUMENT, text)
}

fn too_long(bytes: u64) -> String {
    format!("{bytes} bytes, expected at most {MAX_BYTES}")
}

fn member(bytes: &[u8], name: &str) -> std::result::Result<String, String> {
    const NEXT: &str = "expected a model that `model.save(\"model.keras\")` wrote";
    let broken = |error: &dyn std::fmt::Display| format!("{error}; {NEXT}");
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| broken(&error))?;
    let member = archive.by_name(name).map_err(|error| broken(&error))?;
    let size = member.size();
    if size > MAX_BYTES {
        return Err(too_long(size));
    }
    let mut text = String::new();
    // The size is what the archive says, and what is unpacked may be more.
    let read = member.take(MAX_BYTES).read_to_string(&mut text);
    read.map_err(|error| broken(&error))?;
    Ok(text)
}

fn attribute(bytes: &[u8], name: &str) -> std::result::Result<Option<String>, String> {
    let file = Hdf5::open(bytes)?;
    let texts = file.texts(&file.root()?, name)?;
    Ok(texts.into_iter().flatten().next())
}
