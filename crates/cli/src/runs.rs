//! Trainings that were: the curves in their folders, and the settings by which they differ.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use phalanx_summary::{Run, SummaryError, find_runs};
use serde_json::Value;

use crate::failure::{Exit, Failure};
use crate::record::{self, Record};

/// The folder of a training, or one with event files of any program.
#[derive(Debug)]
pub(crate) struct PastRun {
    /// The folder as it was given.
    pub(crate) name: String,
    /// Values by the names of logs, with the numbers of their epochs or steps.
    pub(crate) logs: BTreeMap<String, Vec<(f64, f64)>>,
    /// What the training was told, by the paths of keys: `optimizer.adam.learning_rate`.
    pub(crate) settings: BTreeMap<String, String>,
    /// The last line of `history.jsonl`.
    pub(crate) last: Option<Value>,
    /// `test.json`.
    pub(crate) test: Option<Value>,
}

impl PastRun {
    /// What is in a folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, Failure> {
        let name = folder.display().to_string();
        let history = folder.join("history.jsonl");
        let mut run = Self {
            name,
            logs: BTreeMap::new(),
            settings: settings(folder)?,
            last: None,
            test: json_file(&folder.join("test.json"))?,
        };
        match fs::read_to_string(&history) {
            Ok(text) => run.add_history(&text, &history)?,
            Err(_) => run.add_events(folder)?,
        }
        if run.logs.is_empty() {
            let message = format!("{} has no results of a training", run.name);
            return Err(Failure::new(Exit::Usage, message).next(
                "give the folder of a training, which has a history.jsonl, or one with event files",
            ));
        }
        Ok(run)
    }

    fn add_history(&mut self, text: &str, path: &Path) -> Result<(), Failure> {
        for (number, line) in text.lines().enumerate() {
            let epoch: Value = serde_json::from_str(line).map_err(|error| {
                let message = format!("{} line {}: {error}", path.display(), number + 1);
                Failure::new(Exit::Usage, message).next("copy the file again, or train again")
            })?;
            let at = epoch["epoch"].as_f64().unwrap_or(number as f64 + 1.0);
            let logs = epoch["logs"].as_object().into_iter().flatten();
            for (name, value) in logs {
                let value = value.as_f64().unwrap_or(f64::NAN);
                self.logs.entry(name.clone()).or_default().push((at, value));
            }
            self.last = Some(epoch);
        }
        Ok(())
    }

    /// Adds the scalars of event files: epochs under the names of logs, others under their tags.
    fn add_events(&mut self, folder: &Path) -> Result<(), Failure> {
        for path in find_runs(folder).map_err(|error| unreadable(&error))? {
            let run = Run::read(&path).map_err(|error| unreadable(&error))?;
            let part = path.strip_prefix(folder).unwrap_or(&path);
            let is_validation = part == Path::new("validation");
            for (tag, points) in run.scalars {
                let name = match (tag.strip_prefix("epoch_"), is_validation) {
                    (Some(log), true) => format!("val_{log}"),
                    (Some(log), false) => log.to_owned(),
                    _ => tag,
                };
                let points = points.iter().map(|point| (point.step as f64, point.value));
                self.logs.entry(name).or_default().extend(points);
            }
        }
        Ok(())
    }
}

fn unreadable(error: &SummaryError) -> Failure {
    Failure::of(Exit::Usage, error)
}

fn json_file(path: &Path) -> Result<Option<Value>, Failure> {
    let Ok(text) = fs::read_to_string(path) else {
        return Ok(None);
    };
    serde_json::from_str(&text).map(Some).map_err(|error| {
        let message = format!("{}: {error}", path.display());
        Failure::new(Exit::Usage, message).next("copy the file again, or train again")
    })
}

/// The settings of the training file of a folder, and where it ran; none where there is no such file.
fn settings(folder: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let mut settings = BTreeMap::new();
    if let Some(record) = Record::read(folder)? {
        if let Ok(document) = record.document() {
            flatten("", &document, &mut settings);
        }
        settings.extend(record.places());
    }
    Ok(settings)
}

/// The values of a document by their paths.
pub(crate) fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let key = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                flatten(&key(name), value, into);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                flatten(&key(&index.to_string()), value, into);
            }
        }
        Value::String(text) => {
            into.insert(path.to_owned(), text.clone());
        }
        other => {
            into.insert(path.to_owned(), other.to_string());
        }
    }
}

/// The settings in which runs differ, with the value of each run; `-` where a run has none.
pub(crate) fn differences(runs: &[PastRun]) -> Vec<(String, Vec<String>)> {
    let mut keys: Vec<&String> = runs.iter().flat_map(|run| run.settings.keys()).collect();
    keys.sort();
    keys.dedup();
    let of = |key: &String| -> Vec<String> {
        let value = |run: &PastRun| run.settings.get(key).cloned();
        let values = runs.iter().map(value);
        values.map(|value| value.unwrap_or("-".into())).collect()
    };
    keys.into_iter()
        .map(|key| (key.clone(), of(key)))
        .filter(|(_, values)| values.iter().any(|value| *value != values[0]))
        .collect()
}

/// The files that [`PastRun::read`] reads, event files by a pattern.
pub(crate) fn files_of(folder: &Path) -> Vec<PathBuf> {
    let names = ["history.jsonl", "test.json", record::NAME, "**/*tfevents*"];
    names.map(|name| folder.join(name)).to_vec()
}

/// Reads the runs of these folders.
pub(crate) fn read_all(folders: &[PathBuf]) -> Result<Vec<PastRun>, Failure> {
    folders.iter().map(|folder| PastRun::read(folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::document_with;

    #[test]
    fn settings_differ_by_the_paths_of_their_keys() {
        let run = |text: &str, overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
            let mut settings = BTreeMap::new();
            flatten("", &document_with(text, &overrides).unwrap(), &mut settings);
            PastRun {
                name: String::new(),
                logs: BTreeMap::new(),
                settings,
                last: None,
                test: None,
            }
        };
        let one = "optimizer: {adam: {learning_rate: 0.1}}\nmodel: [flatten, {dense: {units: 3}}]\nloss: huber\n";
        let runs = [
            run(one, &[]),
            run(one, &["optimizer.adam.learning_rate=0.2", "fit.epochs=3"]),
        ];
        let text =
            |words: &[&str]| -> Vec<String> { words.iter().map(ToString::to_string).collect() };
        assert_eq!(
            differences(&runs),
            [
                ("fit.epochs".to_owned(), text(&["-", "3"])),
                (
                    "optimizer.adam.learning_rate".to_owned(),
                    text(&["0.1", "0.2"])
                ),
            ]
        );
    }

    #[test]
    fn a_damaged_history_is_named_with_its_line() {
        let mut run = PastRun {
            name: String::new(),
            logs: BTreeMap::new(),
            settings: BTreeMap::new(),
            last: None,
            test: None,
        };
        let text = "{\"epoch\":1,\"logs\":{\"loss\":0.5,\"bad\":null}}\n{\"epoch\":2";
        let error = run.add_history(text, Path::new("h")).unwrap_err();
        assert!(error.message.starts_with("h line 2: "), "{}", error.message);
        assert_eq!(run.logs["loss"], [(1.0, 0.5)]);
        assert!(run.logs["bad"][0].1.is_nan());
    }
}
