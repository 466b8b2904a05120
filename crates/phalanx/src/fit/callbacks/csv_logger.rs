//! The results of epochs as a CSV file.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::python_format::repr;
use super::{Callback, CallbackContext, CallbackState};
use crate::config::{Component, Described, Field, Kind, setters, write};
use crate::fit::{EpochLogs, Logs};
use crate::{Error, Result};

/// Writes the results of each epoch to a CSV file as a row: Keras' `CSVLogger`, byte for byte but for `learning_rate`, which has the digits
/// that it was set with (`0.001`), where Keras writes the digits of its f32 (`0.0010000000474974513`).
///
/// The columns are `epoch`, from 0, and the logs of the first epoch by name; where none of them is of a validation, a column
/// beginning with `val_` for each. What an epoch lacks is `NA`. A training that goes on from a checkpoint goes on with its
/// file, without the rows of epochs that are done again; Keras begins the file anew. The first process writes.
#[derive(Debug, Serialize, Deserialize)]
pub struct CsvLogger {
    filename: PathBuf,
    separator: String,
    append: bool,
    #[serde(skip)]
    seen: RowsWritten,
    #[serde(skip)]
    file: Option<File>,
    #[serde(skip)]
    needs_header: bool,
    /// Whether the last rows could not be written.
    #[serde(skip)]
    is_refused: bool,
}

/// What it has written of a training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowsWritten {
    keys: Option<Vec<String>>,
    /// The length of the file; none in a process that has none.
    bytes: Option<u64>,
    /// Rows that could not be written yet.
    #[serde(default)]
    unwritten: String,
}

impl Described for CsvLogger {
    const COMPONENT: Component = Component {
        name: "csv_logger",
        doc: "writes the results of each epoch to a CSV file",
        fields: &[
            Field::required("filename", Kind::Text, "the path of the file").example("training.csv"),
            Field::optional(
                "separator",
                Kind::Text,
                "what is between the columns, a character",
            ),
            Field::optional(
                "append",
                Kind::Bool,
                "whether rows are added to a file that is there, which is replaced otherwise",
            ),
        ],
    };
}

impl Clone for CsvLogger {
    /// The settings: each has a file of its own.
    fn clone(&self) -> Self {
        Self {
            filename: self.filename.clone(),
            separator: self.separator.clone(),
            append: self.append,
            ..Self::default()
        }
    }
}

impl Default for CsvLogger {
    fn default() -> Self {
        Self::new("training.csv")
    }
}

impl CsvLogger {
    /// Writes to this file, with commas, in the place of one that is there.
    #[must_use]
    pub fn new(filename: impl Into<PathBuf>) -> Self {
        Self {
            filename: filename.into(),
            separator: ",".to_owned(),
            append: false,
            seen: RowsWritten::default(),
            file: None,
            needs_header: true,
            is_refused: false,
        }
    }

    /// What is between the columns; a comma by default.
    #[must_use]
    pub fn separator(mut self, separator: char) -> Self {
        self.separator = separator.to_string();
        self
    }

    /// Opens the file; of one that a training goes on with, in this epoch, only the rows of the epochs before stay.
    fn open(&mut self, resumed_in: Option<usize>) -> std::io::Result<()> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(!self.append && resumed_in.is_none())
            .open(&self.filename)?;
        if let Some(epoch) = resumed_in {
            let length = match self.seen.bytes {
                Some(bytes) => file.metadata()?.len().min(bytes),
                None => self.end_of_rows_before(&mut file, epoch)?,
            };
            file.set_len(length)?;
        }
        let bytes = file.seek(SeekFrom::End(0))?;
        self.seen.bytes = Some(bytes);
        let has_header = self.seen.unwritten.starts_with("epoch");
        self.needs_header = bytes == 0 && !has_header;
        self.file = Some(file);
        Ok(())
    }

    /// Where the rows of epochs before this one end, in a file that another process has written. Where other trainings have
    /// rows before this one's, the last row alone can be of a later epoch of this one.
    fn end_of_rows_before(&self, file: &mut File, epoch: usize) -> std::io::Result<u64> {
        let (mut text, mut at, mut end) = (Vec::new(), 0, 0);
        file.read_to_end(&mut text)?;
        if self.append {
            let lines = String::from_utf8_lossy(&text);
            let last = lines.split_inclusive('\n').next_back().unwrap_or_default();
            let row = last.split(&*self.separator).next().unwrap_or_default();
            let is_later = row.parse() == Ok(epoch) || !last.ends_with('\n');
            let kept = text.len()
                - if is_later {
                    last.len().min(text.len())
                } else {
                    0
                };
            return Ok(kept as u64);
        }
        for line in String::from_utf8_lossy(&text).split_inclusive('\n') {
            at += line.len() as u64;
            let first = line.split(&*self.separator).next().unwrap_or_default();
            let is_before = first.parse().is_ok_and(|row: usize| row < epoch);
            if is_before || first == "epoch" {
                end = at;
            }
        }
        Ok(end.min(text.len() as u64))
    }

    /// Adds text at the end of what was written whole.
    fn write_whole(&mut self, text: &str) -> std::io::Result<()> {
        let (Some(file), Some(bytes)) = (&mut self.file, self.seen.bytes) else {
            return Ok(());
        };
        file.set_len(bytes)?;
        file.seek(SeekFrom::Start(bytes))?;
        file.write_all(text.as_bytes())?;
        self.seen.bytes = Some(bytes + text.len() as u64);
        self.is_refused = false;
        Ok(())
    }

    fn row(&self, fields: impl Iterator<Item = String>) -> String {
        let quoted = |field: String| {
            let special = [&*self.separator, "\"", "\r", "\n"];
            match special.iter().any(|special| field.contains(special)) {
                true => format!("\"{}\"", field.replace('"', "\"\"")),
                false => field,
            }
        };
        let fields: Vec<String> = fields.map(quoted).collect();
        fields.join(&self.separator) + "\r\n"
    }
}

setters!(CsvLogger {
    /// Whether rows are added to a file that is there, which is replaced otherwise.
    append: bool,
});

impl Callback for CsvLogger {
    fn kind(&self) -> &'static str {
        Self::COMPONENT.name
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        let (kind, separator) = (self.kind(), &self.separator);
        if separator.chars().count() != 1 {
            return Err(Error::user(format!(
                "{kind}: `separator` is {separator:?}, expected one character"
            )));
        }
        let restored: Option<RowsWritten> = cx.restored()?;
        let resumed_in = restored.as_ref().map(|_| cx.epoch());
        self.seen = restored.unwrap_or_default();
        if !cx.is_chief() {
            self.seen.bytes = None;
            return Ok(());
        }
        self.open(resumed_in).map_err(|error| {
            let path = self.filename.display();
            Error::user(format!(
                "{kind} cannot open `{path}`: {error}; make its folder, or choose another `filename`"
            ))
        })
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        let keys = self.seen.keys.get_or_insert_with(|| columns(&done.logs));
        let keys = keys.clone();
        let mut text = std::mem::take(&mut self.seen.unwritten);
        if std::mem::take(&mut self.needs_header) {
            let names = std::iter::once("epoch".to_owned()).chain(keys.iter().cloned());
            text.insert_str(0, &self.row(names));
        }
        let values = keys.iter().map(|key| {
            let value = done.logs.get(key);
            value.map_or("NA".to_owned(), repr)
        });
        text += &self.row(std::iter::once(done.epoch.to_string()).chain(values));
        if let Err(error) = self.write_whole(&text) {
            // Training does not depend on it.
            if !std::mem::replace(&mut self.is_refused, true) {
                let (kind, path) = (self.kind(), self.filename.display());
                cx.notice(&format!(
                    "warning: {kind} cannot write to `{path}`: {error}; its rows are kept until it can"
                ));
            }
            self.seen.unwritten = text;
        }
        Ok(())
    }

    fn on_train_end(&mut self, _: &mut CallbackContext<'_>) -> Result<()> {
        self.file = None;
        Ok(())
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            values: write(self.kind(), &self.seen),
            tensors: Vec::new(),
        }
    }
}

/// The columns by the logs of the first epoch.
fn columns(logs: &Logs) -> Vec<String> {
    let mut keys: Vec<String> = logs.iter().map(|(name, _)| name.to_owned()).collect();
    keys.sort();
    if !keys.iter().any(|key| key.starts_with(Logs::VALIDATION)) {
        let of_validation = keys.iter().map(|key| format!("{}{key}", Logs::VALIDATION));
        keys.extend(of_validation.collect::<Vec<_>>());
    }
    keys
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn rows_of_other_trainings_stay() {
        let path = std::env::temp_dir().join(format!("phalanx-rows-{}.csv", std::process::id()));
        let kept = |rows: &str, append: bool, epoch: usize| {
            let mut file = File::create(&path).unwrap();
            file.write_all(rows.as_bytes()).unwrap();
            let mut file = File::open(&path).unwrap();
            let logger = CsvLogger::new(&path).append(append);
            let end = logger.end_of_rows_before(&mut file, epoch).unwrap();
            rows[..end as usize].to_owned()
        };
        let before = "epoch,loss\r\n0,3\r\n1,2\r\n";
        let own = format!("{before}2,1\r\n");
        assert_eq!(kept(&own, false, 2), before);
        assert_eq!(kept(before, true, 0), before);
        let both = format!("{before}0,9\r\n");
        assert_eq!(kept(&both, true, 0), before);
        assert_eq!(kept(&both, true, 1), both);
        assert_eq!(kept(&format!("{both}1,"), true, 1), both);
        std::fs::remove_file(path).unwrap();
    }
}
