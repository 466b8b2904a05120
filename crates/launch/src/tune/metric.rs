//! The metric of a trial: from what its program reports, in one of three places of its folder.
//!
//! `hypertune/output.metrics` (CLOUD_ML_HP_METRIC_FILE) is the file of Google's `cloudml-hypertune`: JSON, a line each. `history.jsonl` is
//! what `phalanx train` keeps of each epoch. Event files count by their tags, in a folder within by the folder's name and the tag, as in
//! `validation/epoch_loss`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value as Json;

/// A metric as far as it is written.
#[derive(Debug, Default, PartialEq)]
pub(super) struct MetricValues {
    /// The finite ones by step.
    pub(super) finite: Vec<(i64, f64)>,
    /// Whether the last one is none of them: the training has diverged, and what was before says nothing of it.
    pub(super) has_diverged: bool,
}

/// The values of a metric in the first place that has any.
pub(super) fn read(folder: &Path, tag: &str) -> MetricValues {
    let readers = [hypertune, history, events];
    let found = readers.iter().map(|read| read(folder, tag));
    let mut finite = found
        .into_iter()
        .find(|values| !values.is_empty())
        .unwrap_or_default();
    let has_diverged = finite.last().is_some_and(|(_, value)| !value.is_finite());
    finite.retain(|(_, value)| value.is_finite());
    MetricValues {
        finite,
        has_diverged,
    }
}

/// A number, or text that is one, as `cloudml-hypertune` writes it.
fn number(json: &Json) -> Option<f64> {
    json.as_f64().or_else(|| json.as_str()?.trim().parse().ok())
}

fn lines(path: &Path) -> Vec<Json> {
    let text = fs::read(path).unwrap_or_default();
    // What one line has that is no text says nothing against the others.
    String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn hypertune(folder: &Path, tag: &str) -> Vec<(i64, f64)> {
    let lines = lines(&folder.join("hypertune/output.metrics"));
    let value = |(at, line): (usize, &Json)| {
        let step = number(&line["global_step"]).map_or(at as i64, |step| step as i64);
        Some((step, number(&line[tag])?))
    };
    sorted(lines.iter().enumerate().filter_map(value))
}

fn history(folder: &Path, tag: &str) -> Vec<(i64, f64)> {
    let lines = lines(&folder.join("history.jsonl"));
    let value = |(at, line): (usize, &Json)| {
        let epoch = number(&line["epoch"]).map_or(at as i64, |epoch| epoch as i64);
        let logs = line.get("logs").unwrap_or(line);
        let value = match logs.get(tag).or_else(|| line.get(tag))? {
            // What is not finite is so in our file.
            Json::Null => f64::NAN,
            value => number(value)?,
        };
        Some((epoch, value))
    };
    sorted(lines.iter().enumerate().filter_map(value))
}

fn events(folder: &Path, tag: &str) -> Vec<(i64, f64)> {
    let Ok(folders) = phalanx_summary::find_runs(folder) else {
        return Vec::new();
    };
    for run in folders {
        let Ok(read) = phalanx_summary::Run::read(&run) else {
            continue;
        };
        let within = run
            .strip_prefix(folder)
            .unwrap_or(&run)
            .display()
            .to_string();
        for (name, points) in scalars(&read) {
            let full = if within.is_empty() {
                name.clone()
            } else {
                format!("{within}/{name}")
            };
            if name == tag || full == tag {
                return sorted(points.into_iter());
            }
        }
    }
    Vec::new()
}

/// The scalars of a run by tag.
fn scalars(run: &phalanx_summary::Run) -> BTreeMap<String, Vec<(i64, f64)>> {
    let points = run.scalars.iter();
    points
        .map(|(tag, points)| {
            (
                tag.clone(),
                points
                    .iter()
                    .map(|point| (point.step, point.value))
                    .collect(),
            )
        })
        .collect()
}

/// By step; of a step that comes again the last counts. Where the first one does, the training began anew after a restart, and what it told before is
/// of an attempt that was lost.
fn sorted(values: impl Iterator<Item = (i64, f64)>) -> Vec<(i64, f64)> {
    let mut all = BTreeMap::new();
    for (step, value) in values {
        if all
            .first_key_value()
            .is_some_and(|(first, _)| step <= *first)
        {
            all.clear();
        }
        all.insert(step, value);
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn every_place_of_a_metric_is_read() {
        let scratch = Scratch::new("metric");
        let folder = |name: &str| {
            let folder = scratch.0.join(name);
            fs::create_dir_all(folder.join("hypertune")).unwrap();
            folder
        };
        let told = |finite: &[(i64, f64)], has_diverged| MetricValues {
            finite: finite.to_vec(),
            has_diverged,
        };
        let none = folder("none");
        assert_eq!(read(&none, "loss"), told(&[], false));
        let google = folder("google");
        let text = "{\"timestamp\": 1.5, \"trial\": \"1\", \"loss\": \"0.5\", \"global_step\": \"10\"}\n{\"loss\": \"0.25\", \"global_step\": \"20\"}\n{\"loss\": \"nan\", \"global_step\": \"30\"}\n{\"lo";
        fs::write(google.join("hypertune/output.metrics"), text).unwrap();
        assert_eq!(read(&google, "loss"), told(&[(10, 0.5), (20, 0.25)], true));
        // The second attempt began at the first step again, and came to its end sooner.
        let again = folder("again");
        let lines = [1, 2, 3, 1, 2]
            .map(|step| format!("{{\"loss\": 0.{step}, \"global_step\": {step}}}\n"));
        let text = [b"\xff\n", lines.concat().as_bytes()].concat();
        fs::write(again.join("hypertune/output.metrics"), text).unwrap();
        assert_eq!(read(&again, "loss"), told(&[(1, 0.1), (2, 0.2)], false));
        let ours = folder("ours");
        let text = "{\"epoch\": 1, \"loss\": 2.0, \"val_loss\": 3.0}\n{\"epoch\": 2, \"loss\": 1.0}\n{\"epoch\": 2, \"loss\": 0.5}\n{\"epoch\": 3, \"logs\": {\"val_loss\": null}}\n";
        fs::write(ours.join("history.jsonl"), text).unwrap();
        assert_eq!(read(&ours, "loss"), told(&[(1, 2.0), (2, 0.5)], false));
        assert_eq!(read(&ours, "val_loss"), told(&[(1, 3.0)], true));
        let events = folder("events");
        let mut writer = phalanx_summary::EventWriter::create(events.join("validation")).unwrap();
        writer.scalar("epoch_loss", 0.5, 3).unwrap();
        writer.flush().unwrap();
        let first = told(&[(3, 0.5)], false);
        assert_eq!(read(&events, "validation/epoch_loss"), first);
        assert_eq!(read(&events, "epoch_loss"), first);
        writer.scalar("epoch_loss", f32::NAN, 4).unwrap();
        writer.flush().unwrap();
        assert_eq!(read(&events, "epoch_loss"), told(&[(3, 0.5)], true));
    }
}
