//! The folder of a training: `model`, `checkpoint`, `history.jsonl`, `test.json`.

use std::fs;
use std::path::{Path, PathBuf};

use phalanx::fit::{History, Logs};
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Failure};

/// The folder of a training.
#[derive(Debug, Clone)]
pub(crate) struct RunFolder(PathBuf);

impl RunFolder {
    /// The folder of a training that was.
    pub(crate) fn of(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Makes the folder where there is none. What a training before left there stays until this one has its own.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let folder = Self::of(path);
        fs::create_dir_all(path).map_err(|error| folder.refused("make", path, &error))?;
        let probe = format!(".{}.probe", std::process::id());
        folder.write(&probe, "")?;
        let _ = fs::remove_file(path.join(probe));
        Ok(folder)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Where the model is.
    pub(crate) fn model(&self) -> PathBuf {
        self.0.join("model")
    }

    /// Where the checkpoint is.
    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.0.join("checkpoint")
    }

    /// Writes a JSON object a line for each epoch.
    pub(crate) fn write_history(&self, history: &History) -> Result<(), Failure> {
        let lines = history.epochs.iter().map(|epoch| {
            let line = json!({
                "epoch": epoch.epoch + 1,
                "steps": epoch.steps,
                "seconds": epoch.seconds,
                "logs": object(&epoch.logs),
            });
            format!("{line}\n")
        });
        self.write("history.jsonl", &lines.collect::<String>())
    }

    /// Writes the results of the test rows, if there are any.
    pub(crate) fn write_test(&self, logs: Option<&Logs>) -> Result<(), Failure> {
        let Some(logs) = logs else {
            // What is not there needs no removal.
            let _ = fs::remove_file(self.0.join("test.json"));
            return Ok(());
        };
        self.write("test.json", &format!("{}\n", object(logs)))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|error| self.refused("write", &path, &error))
    }

    fn refused(&self, action: &str, path: &Path, error: &std::io::Error) -> Failure {
        Failure::new(
            Exit::Failed,
            format!("cannot {action} {}: {error}", path.display()),
        )
        .next("choose another folder with --output")
    }
}

/// Results as JSON; what is not finite is null.
pub(crate) fn object(logs: &Logs) -> Value {
    let values = logs
        .iter()
        .map(|(name, value)| (name.to_owned(), json!(value)));
    Value::Object(values.collect::<Map<_, _>>())
}
