//! The curves of a job's metrics: from `history.jsonl`, `speed.jsonl` and event files of its folder, and of the folders of its trials.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
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

impl Curve {
    /// Whether it says how fast a training is, and not how good.
    #[must_use]
    pub fn is_of_speed(&self) -> bool {
        [STEP_TIME, EXAMPLES].contains(&self.metric.as_str())
            || self.metric.starts_with("step_time_ms")
            || self.metric.ends_with("steps_per_second")
    }
}

/// What curves of speed are called that histories and logs of speed give.
const STEP_TIME: &str = "time of a step, ms";
const EXAMPLES: &str = "examples per second";

/// How far a training is, by the lines of its history and of its speed: none is known of another program.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Pace {
    /// Epochs done.
    pub epochs: i64,
    /// Steps done, with the steps of an epoch that is not done where its speed is known.
    pub steps: u64,
    /// When the last epoch ended, in seconds since 1970.
    pub at: Option<f64>,
    /// Steps a second, without compilation and validation: of the last seconds of steps, or else of the last epoch.
    pub steps_per_second: Option<f64>,
    /// Examples a second of the same time, over all workers.
    pub examples_per_second: Option<f64>,
    /// The loss of the last epoch.
    pub loss: Option<f64>,
    /// The loss of its validation.
    pub val_loss: Option<f64>,
}

/// Reads the curves of a job again and again. Of a history that has grown only what is new is read, of event files that have changed all.
#[derive(Debug, Default)]
pub struct CurveReader {
    histories: BTreeMap<PathBuf, History>,
    events: BTreeMap<PathBuf, (Stamp, Vec<Curve>)>,
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

    /// How far the training in a folder is, where it has written of that.
    pub fn pace(&mut self, folder: &Path) -> Option<Pace> {
        let path = folder.join("history.jsonl");
        let epochs = self.history(&path).pace.clone();
        let speed = self.history(&folder.join("speed.jsonl")).pace.clone();
        let epochs = epochs.map(|pace| Pace {
            at: written(&path),
            ..pace
        });
        match (epochs, speed) {
            (Some(epochs), Some(speed)) => Some(Pace {
                steps: epochs.steps.max(speed.steps),
                steps_per_second: speed.steps_per_second,
                examples_per_second: speed.examples_per_second,
                ..epochs
            }),
            (epochs, speed) => epochs.or(speed),
        }
    }

    /// The history in a file as it is now; an empty one where it cannot be read.
    fn history(&mut self, path: &Path) -> &History {
        let history = self.histories.entry(path.to_owned()).or_default();
        if history.follow(path).is_err() {
            *history = History::default();
        }
        history
    }

    fn of_folder(&mut self, folder: &Path, name: &str) -> Vec<Curve> {
        let mut all = shown(&self.history(&folder.join("history.jsonl")).lines, name);
        let speed = shown(&self.history(&folder.join("speed.jsonl")).lines, name);
        // Over the steps, where a training writes that, and not over the epochs.
        all.retain(|of_epochs| speed.is_empty() || !of_epochs.is_of_speed());
        all.extend(speed);
        if !all.is_empty() || !name.is_empty() {
            return all;
        }
        let mut all = Vec::new();
        for run in phalanx_summary::find_runs(folder).unwrap_or_default() {
            let files = fs::read_dir(&run).into_iter().flatten().flatten();
            let of_run = stamp(files.map(|file| file.path()));
            let kept = self.events.get(&run).filter(|(seen, _)| *seen == of_run);
            if kept.is_none() {
                let mut lines = Lines::new();
                events(folder, &run, &mut lines);
                let curves = shown(&lines, "");
                self.events.insert(run.clone(), (of_run, curves));
            }
            all.extend(self.events[&run].1.iter().cloned());
        }
        all
    }
}

/// When a file was written, in seconds since 1970; none where that is not known.
#[must_use]
pub fn written(path: &Path) -> Option<f64> {
    let at = fs::metadata(path).ok()?.modified().ok()?;
    let at = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(at.as_secs_f64())
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

fn shown(lines: &Lines, name: &str) -> Vec<Curve> {
    let curve = |((metric, run), line): (&(String, String), &Thinned)| Curve {
        metric: metric.clone(),
        run: [name, run.as_str()].join(" ").trim().to_owned(),
        points: line.points(),
    };
    lines.iter().map(curve).collect()
}

/// Lines by metric and run.
type Lines = BTreeMap<(String, String), Thinned>;

/// A `history.jsonl` as far as it was read, a line for each epoch, with the metrics of validation under `val_`; or a `speed.jsonl`, a line
/// for some seconds of steps.
#[derive(Debug, Default)]
struct History {
    lines: Lines,
    /// Bytes that were read, to the end of a line.
    read: u64,
    /// The last of them: a file that has others there is another one.
    last: Vec<u8>,
    /// Lines that were read.
    count: i64,
    /// How far they go, if any is of a training.
    pace: Option<Pace>,
}

impl History {
    /// Reads what is new.
    fn follow(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        if size > MOST_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut last = vec![0; self.last.len()];
        file.seek(SeekFrom::Start(self.read - last.len() as u64))?;
        if file.read_exact(&mut last).is_err() || last != self.last {
            *self = Self::default();
            file.rewind()?;
        }
        let mut file = BufReader::new(file);
        let mut line = Vec::new();
        while file.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            self.count += 1;
            self.read += line.len() as u64;
            self.add(&line);
            std::mem::swap(&mut self.last, &mut line);
            line.clear();
        }
        Ok(())
    }

    fn add(&mut self, line: &[u8]) {
        let Ok(Json::Object(line)) = serde_json::from_slice(line) else {
            return;
        };
        if let Some(step) = step_of_speed(&line) {
            return self.add_speed(step, &line);
        }
        let epoch = line.get("epoch").and_then(Json::as_i64);
        let epoch = epoch.unwrap_or(self.count);
        let logs = line.get("logs").and_then(Json::as_object).unwrap_or(&line);
        for (name, value) in logs {
            let Some(value) = value.as_f64().filter(|_| name != "epoch") else {
                continue;
            };
            let key = match name.strip_prefix("val_") {
                Some(metric) => (metric.to_owned(), "validation".to_owned()),
                None => (name.clone(), "train".to_owned()),
            };
            self.lines.entry(key).or_default().push(epoch, value);
        }
        self.add_pace(epoch, &line);
    }

    /// What the line of an epoch says of speed.
    fn add_pace(&mut self, epoch: i64, line: &serde_json::Map<String, Json>) {
        let number = |name: &str| line.get("throughput")?.get(name)?.as_f64();
        let Some(steps) = line.get("steps").and_then(Json::as_u64) else {
            return;
        };
        let log = |name: &str| line.get("logs")?.get(name)?.as_f64();
        let before = self.pace.as_ref().map_or(0, |pace| pace.steps);
        let pace = Pace {
            epochs: epoch,
            steps: before + steps,
            at: None,
            steps_per_second: number("steps_per_second"),
            examples_per_second: number("examples_per_second"),
            loss: log("loss"),
            val_loss: log("val_loss"),
        };
        self.draw_speed(epoch, &pace);
        self.pace = Some(pace);
    }

    /// What a line says of the steps up to this one.
    fn add_speed(&mut self, step: i64, line: &serde_json::Map<String, Json>) {
        let number = |name: &str| line.get(name)?.as_f64();
        let pace = Pace {
            steps: step.unsigned_abs(),
            steps_per_second: number("steps_per_second"),
            examples_per_second: number("examples_per_second"),
            ..Pace::default()
        };
        self.draw_speed(step, &pace);
        self.pace = Some(pace);
    }

    fn draw_speed(&mut self, at: i64, pace: &Pace) {
        let step_time = pace.steps_per_second.filter(|rate| *rate > 0.0);
        let speed = [
            (STEP_TIME, step_time.map(|rate| 1e3 / rate)),
            (EXAMPLES, pace.examples_per_second),
        ];
        for (metric, value) in speed {
            let Some(value) = value else { continue };
            let key = (metric.to_owned(), "train".to_owned());
            self.lines.entry(key).or_default().push(at, value);
        }
    }
}

/// The step of a line that is of the speed up to a step; none of a line of an epoch.
fn step_of_speed(line: &serde_json::Map<String, Json>) -> Option<i64> {
    let is_of_speed = line.contains_key("steps_per_second") && !line.contains_key("epoch");
    let step = line.get("step")?.as_i64();
    step.filter(|step| is_of_speed && *step >= 0)
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
        finite.for_each(|point| entry.push(point.step, point.value));
    }
}

/// A curve of as many points as a chart can show: of each stretch the least and the largest, so that no spike is lost. Stretches grow with the
/// curve, and no point is kept twice: a curve of any length takes as much memory and is shown as fast.
#[derive(Debug, Default, Clone)]
pub(crate) struct Thinned {
    stretches: Vec<Stretch>,
    /// How many points a stretch has, as a power of 2.
    power: u32,
    /// How many points the last stretch has.
    points: usize,
    /// The last point, which is shown whatever it is.
    last: Option<(i64, f64)>,
}

/// Consecutive points: the least and the largest of them.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    least: (i64, f64),
    largest: (i64, f64),
}

impl Stretch {
    fn with(self, other: Self) -> Self {
        let is_less = |one: f64, other: f64| one.total_cmp(&other).is_lt();
        Self {
            least: match is_less(other.least.1, self.least.1) {
                true => other.least,
                false => self.least,
            },
            largest: match is_less(self.largest.1, other.largest.1) {
                true => other.largest,
                false => self.largest,
            },
        }
    }

    fn points(&self) -> impl Iterator<Item = (i64, f64)> {
        let (first, second) = match self.least.0 <= self.largest.0 {
            true => (self.least, self.largest),
            false => (self.largest, self.least),
        };
        [first, second]
            .into_iter()
            .take(1 + usize::from(first != second))
    }
}

impl Thinned {
    /// Adds a point. A step that is not after the last one is made again: what was known of it and of later ones is forgotten.
    pub(crate) fn push(&mut self, step: i64, value: f64) {
        let after = |stretch: &Stretch| stretch.least.0.max(stretch.largest.0) >= step;
        while self.stretches.last().is_some_and(after) {
            self.forget(step);
        }
        let point = (step, value);
        self.last = Some(point);
        let new = Stretch {
            least: point,
            largest: point,
        };
        match self.stretches.last_mut() {
            Some(last) if self.points < 1 << self.power => {
                *last = last.with(new);
                self.points += 1;
            }
            _ => {
                self.stretches.push(new);
                self.points = 1;
            }
        }
        // A stretch of one point is shown as one, a longer one as two; and then there is the last point.
        while self.stretches.len()
            > if self.power == 0 {
                MOST_POINTS
            } else {
                MOST_POINTS / 2 - 1
            }
        {
            self.merge();
        }
    }

    /// Removes points at and after a step from the last stretch: all of it, where neither of the two that are known is before.
    fn forget(&mut self, step: i64) {
        let Some(mut last) = self.stretches.pop() else {
            return;
        };
        // What is left, if anything, is a stretch that is full: it is not known how many points of it were before.
        self.points = 1 << self.power;
        if last.least.0 < step || last.largest.0 < step {
            let left = match last.least.0 < step {
                true => last.least,
                false => last.largest,
            };
            (last.least, last.largest) = (left, left);
            self.stretches.push(last);
        }
    }

    /// Makes one stretch of two.
    fn merge(&mut self) {
        let pairs = self.stretches.chunks(2);
        if self.stretches.len().is_multiple_of(2) {
            self.points += 1 << self.power;
        }
        self.stretches = pairs
            .map(|pair| {
                pair[1..]
                    .iter()
                    .fold(pair[0], |one, other| one.with(*other))
            })
            .collect();
        self.power += 1;
    }

    /// Its points in the order of their steps.
    pub(crate) fn points(&self) -> Vec<(i64, f64)> {
        let mut points: Vec<_> = self.stretches.iter().flat_map(Stretch::points).collect();
        if points.last() != self.last.as_ref() {
            points.extend(self.last);
        }
        points
    }
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
        // A line without its end is being written; what is trained again replaces what was, and a file may be another one.
        let shown = |reader: &mut CurveReader, text: &str| {
            fs::write(scratch.0.join("3/history.jsonl"), text).unwrap();
            reader.read(&scratch.0, &[3])[1].points.clone()
        };
        let cut = format!("{more}{{\"epoch\":3,");
        assert_eq!(shown(&mut reader, &cut), [(1, 0.5), (2, 0.25)]);
        let third = format!("{cut}\"loss\":0.125}}\n");
        assert_eq!(
            shown(&mut reader, &third),
            [(1, 0.5), (2, 0.25), (3, 0.125)]
        );
        let again = format!("{third}{{\"epoch\":2,\"loss\":0.75}}\n");
        assert_eq!(shown(&mut reader, &again), [(1, 0.5), (2, 0.75)]);
        let other = "{\"epoch\":1,\"loss\":3.0}\n";
        assert_eq!(shown(&mut reader, other), [(1, 3.0)]);
        fs::remove_file(scratch.0.join("3/history.jsonl")).unwrap();
        assert_eq!(reader.read(&scratch.0, &[3]).len(), 2);
    }

    #[test]
    fn a_history_says_how_far_and_how_fast_a_training_is() {
        let scratch = Scratch::new("pace");
        let path = scratch.0.join("history.jsonl");
        let mut reader = CurveReader::default();
        assert_eq!(reader.pace(&scratch.0), None);
        fs::write(&path, "{\"epoch\":1,\"loss\":0.5}\n").unwrap();
        assert_eq!(reader.pace(&scratch.0), None, "of another program");
        let first = r#"{"epoch":1,"steps":10,"seconds":9.0,"logs":{"loss":2.0}}"#;
        let second = r#"{"epoch":2,"steps":6,"throughput":{"steps_per_second":4.0,"examples_per_second":128.0},"logs":{"loss":null,"val_loss":0.25}}"#;
        fs::write(&path, format!("{first}\n{second}\n")).unwrap();
        let pace = reader.pace(&scratch.0).unwrap();
        assert_eq!((pace.epochs, pace.steps), (2, 16));
        assert_eq!((pace.loss, pace.val_loss), (None, Some(0.25)));
        let rates = (pace.steps_per_second, pace.examples_per_second);
        assert_eq!(rates, (Some(4.0), Some(128.0)));
        let age = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - pace.at.unwrap();
        assert!((-1.0..60.0).contains(&age), "{age}");
        let curves = reader.read(&scratch.0, &[]);
        let speed = curves.iter().filter(|curve| curve.is_of_speed());
        let speed: Vec<_> = speed
            .map(|curve| (curve.metric.as_str(), &curve.points[..]))
            .collect();
        let expected = [
            (EXAMPLES, &[(2, 128.0)][..]),
            (STEP_TIME, &[(2, 250.0)][..]),
        ];
        assert_eq!(speed, expected);
        // An epoch that is made again takes the place of its line and of what was counted of it.
        fs::write(&path, format!("{first}\n")).unwrap();
        assert_eq!(reader.pace(&scratch.0).unwrap().steps, 10);
    }

    #[test]
    fn within_an_epoch_the_speed_is_that_of_the_last_steps() {
        let scratch = Scratch::new("speed");
        let write = |name: &str, text: &str| fs::write(scratch.0.join(name), text).unwrap();
        let mut reader = CurveReader::default();
        let line = |step: u64, rate: f64| {
            format!(
                "{{\"step\":{step},\"steps_per_second\":{rate},\"examples_per_second\":{}}}\n",
                32.0 * rate
            )
        };
        // In the first epoch, of which there is no line.
        write("speed.jsonl", &line(20, 10.0));
        let pace = reader.pace(&scratch.0).unwrap();
        assert_eq!((pace.epochs, pace.steps, pace.at), (0, 20, None));
        let first = r#"{"epoch":1,"steps":30,"throughput":{"steps_per_second":9.0,"examples_per_second":288.0},"logs":{"loss":2.0}}"#;
        write("history.jsonl", &format!("{first}\n"));
        assert_eq!(reader.pace(&scratch.0).unwrap().steps, 30);
        write(
            "speed.jsonl",
            &format!("{}{}", line(20, 10.0), line(45, 4.0)),
        );
        let pace = reader.pace(&scratch.0).unwrap();
        assert_eq!((pace.epochs, pace.steps, pace.loss), (1, 45, Some(2.0)));
        let rates = (pace.steps_per_second, pace.examples_per_second);
        assert_eq!(rates, (Some(4.0), Some(128.0)));
        let curves = reader.read(&scratch.0, &[]);
        let shown = curves
            .iter()
            .map(|curve| (&curve.metric[..], &curve.points[..]));
        let expected = [
            (EXAMPLES, &[(20, 320.0), (45, 128.0)][..]),
            ("loss", &[(1, 2.0)]),
            (STEP_TIME, &[(20, 100.0), (45, 250.0)]),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        // Steps that are made again after a restart.
        let again = [line(20, 10.0), line(45, 4.0), line(30, 8.0)].concat();
        write("speed.jsonl", &again);
        let points = &reader.read(&scratch.0, &[])[0].points;
        assert_eq!(points, &[(20, 320.0), (30, 256.0)]);
        // Another program's history may have these names.
        let other = r#"{"epoch":3,"step":7,"steps_per_second":1.0,"loss":0.5}"#;
        write("history.jsonl", &format!("{other}\n"));
        assert!(
            reader
                .read(&scratch.0, &[])
                .iter()
                .any(|curve| curve.points == [(3, 0.5)])
        );
    }

    #[test]
    fn a_curve_of_any_length_keeps_its_least_and_largest_of_each_stretch() {
        for length in [1, 399, 400, 401, 799, 12_345] {
            let value = |step: i64| (step * 7919 % 10_007) as f64;
            let mut line = Thinned::default();
            (0..length).for_each(|step| line.push(step, value(step)));
            let points = line.points();
            assert!(points.len() <= MOST_POINTS && points.is_sorted_by_key(|(step, _)| *step));
            assert!(points.iter().all(|(step, shown)| *shown == value(*step)));
            if length <= MOST_POINTS as i64 {
                assert_eq!(points.len() as i64, length);
                continue;
            }
            assert!(points.len() > MOST_POINTS / 4, "{}", points.len());
            // Each stretch of the same length has its extremes.
            let size = 1_i64 << line.power;
            for start in (0..length).step_by(size as usize) {
                let steps = || start..(start + size).min(length);
                let of: Vec<f64> = steps().map(value).collect();
                let shown = points.iter().filter(|(step, _)| steps().contains(step));
                let shown: Vec<f64> = shown.map(|(_, value)| *value).collect();
                let most = |all: &[f64]| all.iter().copied().fold(f64::MIN, f64::max);
                let least = |all: &[f64]| all.iter().copied().fold(f64::MAX, f64::min);
                assert_eq!((least(&shown), most(&shown)), (least(&of), most(&of)));
            }
        }
    }

    #[test]
    fn steps_that_are_made_again_are_forgotten_first() {
        let mut line = Thinned::default();
        (0..10_000).for_each(|step| line.push(step, 1.0));
        (5_000..6_000).for_each(|step| line.push(step, 2.0));
        let points = line.points();
        assert!(points.is_sorted_by_key(|(step, _)| *step), "{points:?}");
        assert_eq!(points.last(), Some(&(5_999, 2.0)));
        assert!(
            points
                .iter()
                .all(|(step, value)| (*value == 2.0) == (*step >= 5_000))
        );
        line.push(-1, 3.0);
        assert_eq!(line.points(), [(-1, 3.0)]);
    }
}
