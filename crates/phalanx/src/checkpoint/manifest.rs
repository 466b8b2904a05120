//! `checkpoint.json`: what the state is besides tensors, and by what each file is known to be whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::FILES;
use super::history::JsonFloat;
use crate::data::Position;
use crate::storage::document::Document;
use crate::storage::problem;
use crate::{Error, Result};

/// `checkpoint.json`.
pub(super) const DOCUMENT: Document = Document {
    format: "phalanx checkpoint",
    version: 1,
    fields: &[
        "format",
        "version",
        "phalanx",
        "iterations",
        "seed",
        "replicas",
        "workers",
        "generation",
        "optimizer",
        "settings",
        "logs",
        "position",
        "examples",
        "data",
        "meaning",
        "skipped_before",
        "callbacks",
        "files",
        CHECKSUM,
    ],
    what: "checkpoint",
    again: "copy the directory again, or restore another checkpoint",
};
const CHECKSUM: &str = "crc32c";

/// What the state is besides tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Batches seen, skipped ones left out.
    pub(crate) iterations: i64,
    pub(crate) seed: u64,
    /// Replicas that it was trained by.
    pub(crate) replicas: usize,
    /// Processes that it was trained by.
    #[serde(default = "one")]
    pub(crate) workers: usize,
    /// How often these processes had met when it was written, where they train together.
    #[serde(default)]
    pub(crate) generation: u64,
    /// The kind of the optimizer, and what it was configured with.
    pub(crate) optimizer: String,
    pub(crate) settings: Value,
    /// Names of the logs of an epoch.
    pub(crate) logs: Vec<String>,
    pub(crate) position: Position,
    /// Examples of the data that the position is of; none of a stream, of endless data, and before the first `fit`.
    pub(crate) examples: Option<u64>,
    /// The CRC-32C of what [`Fit::data_settings`](crate::fit::Fit::data_settings) says of them.
    pub(crate) data: Option<u32>,
    /// The CRC-32C of what [`Fit::data_meaning`](crate::fit::Fit::data_meaning) says of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) meaning: Option<u32>,
    /// Steps skipped before the epoch.
    pub(crate) skipped_before: JsonFloat,
    /// What callbacks remember beside tensors, by their names.
    #[serde(default)]
    pub(crate) callbacks: Vec<(String, Value)>,
}

const fn one() -> usize {
    1
}

/// By what a file is known to be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileChecksum {
    pub(super) bytes: u64,
    pub(super) crc32c: u32,
}

/// The checksums of files by their names.
pub(super) type FileChecksums = BTreeMap<String, FileChecksum>;

/// The file, which can be read: checkpoints that can are replaced by it.
pub(super) fn write(manifest: &Manifest, checksums: &FileChecksums) -> Result<Vec<u8>> {
    let text = text(manifest, checksums)?;
    read(FILES[0], &text).map_err(|error| {
        Error::user(format!(
            "the checkpoint is not saved, since it could not be read again: {error}. Let callbacks remember less beside their tensors; a checkpoint written before stays as it was"
        ))
    })?;
    Ok(text)
}

fn text(manifest: &Manifest, checksums: &FileChecksums) -> Result<Vec<u8>> {
    let bug = |error: serde_json::Error| Error::Bug(format!("checkpoint: {error}"));
    let Value::Object(mut fields) = serde_json::to_value(manifest).map_err(bug)? else {
        return Err(Error::Bug("a checkpoint is an object".into()));
    };
    fields.insert(
        "files".to_owned(),
        serde_json::to_value(checksums).map_err(bug)?,
    );
    fields.insert("format".to_owned(), DOCUMENT.format.into());
    fields.insert("version".to_owned(), DOCUMENT.version.into());
    fields.insert("phalanx".to_owned(), env!("CARGO_PKG_VERSION").into());
    let mut text = serde_json::to_vec_pretty(&fields).map_err(bug)?;
    text.truncate(text.len() - "\n}".len());
    let end = ending(crc32c::crc32c(&text));
    text.extend(end.into_bytes());
    Ok(text)
}

/// The end of the file, which says the checksum of what is before it.
fn ending(checksum: u32) -> String {
    format!(",\n  \"{CHECKSUM}\": \"{checksum:08x}\"\n}}\n")
}

/// What the file says; `name` is the file in errors.
pub(super) fn read(name: &str, text: &[u8]) -> Result<(Manifest, FileChecksums)> {
    let mut fields = DOCUMENT.read(name, text)?;
    let start = text.len().saturating_sub(ending(0).len());
    let (body, end) = text.split_at(start);
    if end != ending(crc32c::crc32c(body)).as_bytes() {
        let again = DOCUMENT.again;
        let message =
            format!("does not fit the rest of the file, so something in it was changed; {again}");
        return Err(problem(name, CHECKSUM, message));
    }
    let checksums: FileChecksums = taken(name, fields.remove("files").unwrap_or_default())?;
    if let Some(other) = checksums
        .keys()
        .find(|file| !FILES[1..].contains(&file.as_str()))
    {
        let message = format!("`{other}` is no file of a checkpoint; {}", DOCUMENT.again);
        return Err(problem(name, "files", message));
    }
    let manifest: Manifest = taken(name, without_frame(fields))?;
    check_counts(name, &manifest)?;
    Ok((manifest, checksums))
}

/// More epochs, steps and batches than any training has; what is counted on from them does not overflow.
pub(super) const MOST: u64 = 1 << 56;

fn check_counts(name: &str, manifest: &Manifest) -> Result<()> {
    let steps = manifest.position.segments.iter();
    let steps = steps.fold(0, |sum: usize, segment| sum.saturating_add(segment.steps));
    let counts = [
        ("iterations", u64::try_from(manifest.iterations).ok()),
        ("position", Some(manifest.position.epoch)),
        ("position", u64::try_from(steps).ok()),
        ("replicas", u64::try_from(manifest.replicas).ok()),
    ];
    for (field, count) in counts {
        if count.is_none_or(|count| count > MOST) {
            let message = format!("expected counts from 0 to {MOST}; {}", DOCUMENT.again);
            return Err(problem(name, field, message));
        }
    }
    Ok(())
}

/// The fields of [`Manifest`].
fn without_frame(mut fields: Map<String, Value>) -> Value {
    for field in ["format", "version", "phalanx", CHECKSUM] {
        fields.remove(field);
    }
    Value::Object(fields)
}

fn taken<T: serde::de::DeserializeOwned>(name: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| {
        let message = format!(
            "expected the fields of a checkpoint: {error}; {}",
            DOCUMENT.again
        );
        problem(name, "fields", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{AutoShardPolicy, Segment};

    fn manifest() -> Manifest {
        Manifest {
            iterations: 7,
            seed: u64::MAX,
            replicas: 2,
            workers: 2,
            generation: 3,
            optimizer: "adam".to_owned(),
            settings: Value::Null,
            logs: vec!["loss".to_owned()],
            position: Position {
                epoch: 1,
                segments: vec![Segment {
                    batch: 6,
                    steps: 3,
                    ..segment()
                }],
            },
            examples: Some(20),
            data: Some(5),
            meaning: Some(6),
            skipped_before: JsonFloat(0.0),
            callbacks: Vec::new(),
        }
    }

    fn segment() -> Segment {
        serde_json::from_value(serde_json::json!({
            "policy": AutoShardPolicy::Data, "workers": 1, "replicas": 1, "batch": 1, "steps": 0
        }))
        .unwrap()
    }

    #[test]
    fn files_that_no_checkpoint_has_are_refused() {
        let read_back = |file: &str| {
            let stamp = FileChecksum {
                bytes: 1,
                crc32c: 2,
            };
            let checksums = FileChecksums::from([(file.to_owned(), stamp)]);
            let text = text(&manifest(), &checksums).unwrap();
            read("c", &text).map(|(_, checksums)| checksums)
        };
        assert_eq!(read_back(FILES[1]).unwrap().len(), 1);
        for file in ["other", "../weights.safetensors", FILES[0]] {
            let error = read_back(file).unwrap_err().to_string();
            assert!(error.contains("is no file of a checkpoint"), "{error}");
        }
    }

    #[test]
    fn counts_that_overflow_are_refused() {
        let read_back = |manifest: &Manifest| {
            let text = text(manifest, &FileChecksums::new()).unwrap();
            read("c", &text).map(|(manifest, _)| manifest)
        };
        assert_eq!(read_back(&manifest()).unwrap(), manifest());
        let changes: [fn(&mut Manifest); 6] = [
            |manifest| manifest.iterations = -1,
            |manifest| manifest.iterations = i64::MAX,
            |manifest| manifest.position.epoch = u64::MAX,
            |manifest| manifest.position.segments[0].steps = usize::MAX,
            |manifest| manifest.position.segments = vec![manifest.position.segments[0]; 1 << 10],
            |manifest| manifest.replicas = usize::MAX,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut wrong = manifest();
            wrong.position.segments[0].steps = 1 << 50;
            change(&mut wrong);
            let error = read_back(&wrong).expect_err(&index.to_string()).to_string();
            assert!(error.starts_with("c: "), "{index}: {error}");
        }
    }
}
