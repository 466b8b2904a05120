//! The curves of a job's metrics: from `history.jsonl` and event files of its folder, and of the folders of its trials.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value as Json;

/// The most points of a curve that is shown.
const MOST_POINTS: usize = 400;
/// The most bytes of a file that is read.
const MOST_BYTES: u64 = 256 << 20;

/// A metric over the steps or epochs of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// What is measured.
    pub metric: String,
    /// Of what: `train`, `validation`, the number of a trial, or a folder of event files.
    pub run: String,
    /// Step and value; as many as a chart can show.
    pub points: Vec<(i64, f64)>,
}

/// Reads the curves of a job again and again: a file that has not changed since is not read a second time.
#[derive(Debug, Default)]
pub struct CurveReader {
    seen: BTreeMap<PathBuf, (Stamp, Vec<Curve>)>,
}

/// What changes when files do: their number, their bytes, and when the last was written.
type Stamp = (usize, u64, Option<SystemTime>);

impl CurveReader {
    /// All curves of the results of a job in a folder.
    pub fn read(&mut self, folder: &Path, trials: &[u32]) -> Vec<Curve> {
        let mut all = self.of_folder(folder, "");
        for trial in trials {
            let name = format!("trial {trial}");
            all.extend(self.of_folder(&folder.join(trial.to_string()), &name));
        }
        all.sort_by(|one, other| (&one.metric, &one.run).cmp(&(&other.metric, &other.run)));
        all
    }

    fn of_folder(&mut self, folder: &Path, name: &str) -> Vec<Curve> {
        let file = folder.join("history.jsonl");
        let all = self.kept(&file, stamp([file.clone()]), || {
            let mut lines = Lines::new();
            history(&file, &mut lines);
            shown(lines, name)
        });
        if !all.is_empty() || !name.is_empty() {
            return all;
        }
        let mut all = Vec::new();
        for run in phalanx_summary::find_runs(folder).unwrap_or_default() {
            let files = fs::read_dir(&run).into_iter().flatten().flatten();
            let of_run = stamp(files.map(|file| file.path()));
            all.extend(self.kept(&run, of_run, || {
                let mut lines = Lines::new();
                events(folder, &run, &mut lines);
                shown(lines, "")
            }));
        }
        all
    }

    /// What was read before of files with this stamp, or is read now.
    fn kept(&mut self, path: &Path, stamp: Stamp, read: impl FnOnce() -> Vec<Curve>) -> Vec<Curve> {
        if let Some((_, curves)) = self.seen.get(path).filter(|(seen, _)| *seen == stamp) {
            return curves.clone();
        }
        let curves = read();
        self.seen.insert(path.to_owned(), (stamp, curves.clone()));
        curves
    }
}

fn stamp(files: impl IntoIterator<Item = PathBuf>) -> Stamp {
    let files = files.into_iter().filter_map(|file| fs::metadata(file).ok());
    files.fold((0, 0, None), |(count, bytes, last), file| {
        (
            count + 1,
            bytes + file.len(),
            last.max(file.modified().ok()),
        )
    })
}

fn shown(lines: Lines, name: &str) -> Vec<Curve> {
    let curve = |((metric, run), points): ((String, String), BTreeMap<i64, f64>)| Curve {
        metric,
        run: [name, run.as_str()].join(" ").trim().to_owned(),
        points: fewer(points.into_iter().collect()),
    };
    lines.into_iter().map(curve).collect()
}

type Lines = BTreeMap<(String, String), BTreeMap<i64, f64>>;

/// A line for each epoch, with the metrics of validation under `val_`.
fn history(path: &Path, lines: &mut Lines) {
    if fs::metadata(path).is_ok_and(|file| file.len() > MOST_BYTES) {
        return;
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    for (at, line) in text.lines().enumerate() {
        let Ok(Json::Object(line)) = serde_json::from_str(line) else {
            continue;
        };
        let epoch = line
            .get("epoch")
            .and_then(Json::as_i64)
            .unwrap_or(at as i64 + 1);
        let logs = line.get("logs").and_then(Json::as_object).unwrap_or(&line);
        for (name, value) in logs {
            let Some(value) = value.as_f64().filter(|_| name != "epoch") else {
                continue;
            };
            let key = match name.strip_prefix("val_") {
                Some(metric) => (metric.to_owned(), "validation".to_owned()),
                None => (name.clone(), "train".to_owned()),
            };
            lines.entry(key).or_default().insert(epoch, value);
        }
    }
}

/// The scalars of one run.
fn events(folder: &Path, run: &Path, lines: &mut Lines) {
    let Ok(read) = phalanx_summary::Run::read(run) else {
        return;
    };
    let name = run
        .strip_prefix(folder)
        .unwrap_or(run)
        .display()
        .to_string();
    for (tag, points) in read.scalars {
        let entry = lines.entry((tag, name.clone())).or_default();
        let finite = points.iter().filter(|point| point.value.is_finite());
        entry.extend(finite.map(|point| (point.step, point.value)));
    }
}

/// As many points as a chart can show: of each stretch the least and the largest, so that no spike is lost.
pub(crate) fn fewer(points: Vec<(i64, f64)>) -> Vec<(i64, f64)> {
    if points.len() <= MOST_POINTS {
        return points;
    }
    let stretch = points.len().div_ceil(MOST_POINTS / 2);
    let ends = |part: &[(i64, f64)]| {
        let by_value = |one: &&(i64, f64), other: &&(i64, f64)| one.1.total_cmp(&other.1);
        let mut ends: Vec<(i64, f64)> =
            [part.iter().min_by(by_value), part.iter().max_by(by_value)]
                .into_iter()
                .flatten()
                .copied()
                .collect();
        ends.sort_by_key(|(step, _)| *step);
        ends.dedup();
        ends
    };
    points.chunks(stretch).flat_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn curves_come_from_history_and_trials_and_are_short() {
        let scratch = Scratch::new("curves");
        fs::create_dir_all(scratch.0.join("3")).unwrap();
        let text: String = (1..=100_000)
            .map(|n| {
                format!(
                    "{{\"epoch\":{n},\"loss\":{},\"val_loss\":2.0}}\n",
                    if n == 77_777 { 9.0 } else { 1.0 }
                )
            })
            .collect();
        fs::write(scratch.0.join("history.jsonl"), text).unwrap();
        fs::write(
            scratch.0.join("3/history.jsonl"),
            "{\"epoch\":1,\"loss\":0.5}\nnot json\n",
        )
        .unwrap();
        let mut reader = CurveReader::default();
        let all = reader.read(&scratch.0, &[3, 4]);
        let names: Vec<_> = all
            .iter()
            .map(|curve| (curve.metric.as_str(), curve.run.as_str()))
            .collect();
        assert_eq!(
            names,
            [
                ("loss", "train"),
                ("loss", "trial 3 train"),
                ("loss", "validation")
            ]
        );
        assert!(all[0].points.len() <= MOST_POINTS);
        assert!(all[0].points.contains(&(77_777, 9.0)), "a spike is lost");
        assert_eq!(all[1].points, [(1, 0.5)]);
        // What has not changed is as before, what has grown is read again.
        assert_eq!(reader.read(&scratch.0, &[3, 4]), all);
        let more = "{\"epoch\":1,\"loss\":0.5}\n{\"epoch\":2,\"loss\":0.25}\n";
        fs::write(scratch.0.join("3/history.jsonl"), more).unwrap();
        let grown = reader.read(&scratch.0, &[3, 4]);
        assert_eq!(grown[1].points, [(1, 0.5), (2, 0.25)]);
        assert_eq!(grown[0], all[0]);
    }
}
