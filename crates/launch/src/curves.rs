//! The curves of a job's metrics: from `history.jsonl` and event files of its folder, and of the folders of its trials.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

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

/// All curves of the results of a job in a folder.
#[must_use]
pub fn curves(folder: &Path, trials: &[u32]) -> Vec<Curve> {
    let mut all = of_folder(folder, "");
    for trial in trials {
        let name = format!("trial {trial}");
        all.extend(of_folder(&folder.join(trial.to_string()), &name));
    }
    all.sort_by(|one, other| (&one.metric, &one.run).cmp(&(&other.metric, &other.run)));
    all
}

fn of_folder(folder: &Path, name: &str) -> Vec<Curve> {
    let mut lines: BTreeMap<(String, String), BTreeMap<i64, f64>> = BTreeMap::new();
    history(folder, &mut lines);
    if lines.is_empty() && name.is_empty() {
        events(folder, &mut lines);
    }
    let curve = |((metric, run), points): ((String, String), BTreeMap<i64, f64>)| Curve {
        metric,
        run: [name, run.as_str()].join(" ").trim().to_owned(),
        points: fewer(points.into_iter().collect()),
    };
    lines.into_iter().map(curve).collect()
}

type Lines = BTreeMap<(String, String), BTreeMap<i64, f64>>;

/// A line for each epoch, with the metrics of validation under `val_`.
fn history(folder: &Path, lines: &mut Lines) {
    let path = folder.join("history.jsonl");
    if fs::metadata(&path).is_ok_and(|file| file.len() > MOST_BYTES) {
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

fn events(folder: &Path, lines: &mut Lines) {
    for run in phalanx_summary::find_runs(folder).unwrap_or_default() {
        let Ok(read) = phalanx_summary::Run::read(&run) else {
            continue;
        };
        let name = run
            .strip_prefix(folder)
            .unwrap_or(&run)
            .display()
            .to_string();
        for (tag, points) in read.scalars {
            let entry = lines.entry((tag, name.clone())).or_default();
            entry.extend(
                points
                    .iter()
                    .filter(|point| point.value.is_finite())
                    .map(|point| (point.step, point.value)),
            );
        }
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
        let all = curves(&scratch.0, &[3, 4]);
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
    }
}
