//! What the tasks of a job use of this machine, measured from outside, so that it is known of any program.
//!
//! A line of `usage.jsonl` in the job's folder is the time and, for each task, processors in percent of one and memory in MiB: summed over all
//! processes of the task's group.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::curves::{Curve, Thinned};
use crate::logs::part;
use crate::store::now;

/// Ticks of a second in `/proc`: Linux' number towards programs.
const TICKS: f64 = 100.0;
const MIB: f64 = (1 << 20) as f64;
/// The file in a job's folder.
const FILE: &str = "usage.jsonl";
/// Every second at first, then less often: a week of it is 8 MB for a task.
const OFTEN: (Duration, u32) = (Duration::from_secs(1), 600);
const SELDOM: Duration = Duration::from_secs(10);
/// The most bytes that are read.
const MOST_BYTES: u64 = 64 << 20;
/// More than the lines of `SELDOM` have, of as many trials and tasks as a machine runs.
const LAST_BYTES: u64 = 1 << 20;
/// A line that is older than some that are missing says nothing of now.
const FRESH: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Sample {
    /// Milliseconds since 1970.
    at: u64,
    /// By task: percent of a processor, and MiB.
    tasks: BTreeMap<String, (f64, f64)>,
}

/// What a group of processes has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Used {
    ticks: f64,
    pages: f64,
}

/// Writes what tasks use, once in a while.
pub(crate) struct Meter {
    file: File,
    before: BTreeMap<i32, Used>,
    at: Instant,
    samples: u32,
}

impl Meter {
    /// Appends to the file of a job; `None` where it cannot be written, and no task depends on it.
    pub(crate) fn of(folder: &Path) -> Option<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .append(true)
            .create(true)
            .mode(0o600)
            .open(folder.join(FILE));
        Some(Self {
            file: file.ok()?,
            before: groups(),
            at: Instant::now(),
            samples: 0,
        })
    }

    /// Writes a line if it is time for one; `tasks` are names with the groups of their processes.
    pub(crate) fn look(&mut self, tasks: impl Iterator<Item = (String, i32)>) {
        let every = if self.samples < OFTEN.1 {
            OFTEN.0
        } else {
            SELDOM
        };
        let seconds = self.at.elapsed();
        if seconds < every {
            return;
        }
        let now_used = groups();
        let of = |group: i32| {
            let used = now_used.get(&group).copied().unwrap_or_default();
            let before = self.before.get(&group).copied().unwrap_or_default();
            let ticks = (used.ticks - before.ticks).max(0.0);
            let percent = 100.0 * ticks / TICKS / seconds.as_secs_f64();
            let page = rustix::param::page_size() as f64;
            (rounded(percent), rounded(used.pages * page / MIB))
        };
        let tasks = tasks.map(|(name, group)| (name, of(group))).collect();
        let line = serde_json::to_string(&Sample { at: now(), tasks });
        // As a whole: other trials write into the file, too.
        let line = format!("{}\n", line.unwrap_or_default());
        let _ = self.file.write_all(line.as_bytes());
        (self.before, self.at) = (now_used, Instant::now());
        self.samples += 1;
    }
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// What each group of processes has used.
fn groups() -> BTreeMap<i32, Used> {
    let mut all: BTreeMap<i32, Used> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        let stat = is_process.then(|| fs::read_to_string(entry.path().join("stat")));
        let Some(Ok(stat)) = stat else { continue };
        if let Some((group, used)) = of_stat(&stat) {
            let sum = all.entry(group).or_default();
            sum.ticks += used.ticks;
            sum.pages += used.pages;
        }
    }
    all
}

/// The group of a process and what it has used, with its children that have ended, by its line in `/proc`.
fn of_stat(stat: &str) -> Option<(i32, Used)> {
    // The name of the program is in brackets and may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let ticks = (11..15).map(number).sum::<Option<f64>>()?;
    let pages = number(21)?;
    Some((fields.get(2)?.parse().ok()?, Used { ticks, pages }))
}

/// What tasks used over the seconds since the first line, as curves. Of a large file these are of its end.
#[must_use]
pub fn usage(folder: &Path) -> Vec<Curve> {
    usage_within(&folder.join(FILE), MOST_BYTES)
}

fn usage_within(path: &Path, most: u64) -> Vec<Curve> {
    let bytes = end_of(path, most).unwrap_or_default();
    let samples = samples(&bytes);
    let mut first = begin_of(path);
    let mut lines: BTreeMap<(&str, String), Thinned> = BTreeMap::new();
    for sample in samples {
        let first = *first.get_or_insert(sample.at);
        let seconds = (sample.at.saturating_sub(first) / 1000) as i64;
        for (task, (percent, mib)) in sample.tasks {
            for (metric, value) in [("processors, % of one", percent), ("memory, MiB", mib)] {
                let line = lines.entry((metric, task.clone())).or_default();
                line.push(seconds, value);
            }
        }
    }
    let curve = |((metric, run), line): ((&str, String), Thinned)| Curve {
        metric: metric.to_owned(),
        run,
        points: line.points(),
    };
    lines.into_iter().map(curve).collect()
}

/// What a task uses now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskUsage {
    /// Processors: 1.5 is one and a half.
    pub processors: f64,
    /// Bytes of memory.
    pub memory: f64,
}

/// What the tasks of a job used last, by name, those among them that have just ended; nothing where that is not measured. Each trial of a
/// search has lines of its own.
#[must_use]
pub fn usage_now(folder: &Path) -> BTreeMap<String, TaskUsage> {
    let bytes = end_of(&folder.join(FILE), LAST_BYTES).unwrap_or_default();
    let since = now().saturating_sub(FRESH.as_millis() as u64);
    let fresh = samples(&bytes).rev();
    let mut last = BTreeMap::new();
    for sample in fresh.take_while(|sample| sample.at >= since) {
        for (task, (percent, mib)) in sample.tasks {
            last.entry(task).or_insert(TaskUsage {
                processors: percent / 100.0,
                memory: mib * MIB,
            });
        }
    }
    last
}

/// The last bytes of a file.
fn end_of(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let length = fs::metadata(path)?.len();
    part(path, length.saturating_sub(most), most)
}

/// The time of the first line.
fn begin_of(path: &Path) -> Option<u64> {
    let mut begin = Vec::new();
    let file = BufReader::new(File::open(path).ok()?);
    file.take(LAST_BYTES).read_until(b'\n', &mut begin).ok()?;
    samples(&begin).next().map(|sample| sample.at)
}

/// The lines that are whole.
fn samples(bytes: &[u8]) -> impl DoubleEndedIterator<Item = Sample> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok())
}

/// The bytes of memory of this machine.
#[must_use]
pub fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn a_line_of_proc_is_read_whatever_the_program_is_called() {
        let stat =
            "12 (a) b (c)) S 1 77 77 0 -1 4194560 9 8 7 6 100 20 3 4 20 0 1 0 5 1000 250 18446";
        let used = Used {
            ticks: 127.0,
            pages: 250.0,
        };
        assert_eq!(of_stat(stat), Some((77, used)));
        assert_eq!(of_stat("12 (a) S 1"), None);
    }

    #[test]
    fn what_tasks_use_now_is_in_whole_lines_that_are_not_old() {
        let scratch = Scratch::new("now");
        let now_used = |text: &str| {
            fs::write(scratch.0.join(FILE), text).unwrap();
            usage_now(&scratch.0)
        };
        assert!(usage_now(&scratch.0).is_empty());
        let line = |at: u64| format!("{{\"at\":{at},\"tasks\":{{\"worker-0\":[150.0,2.0]}}}}\n");
        let used = TaskUsage {
            processors: 1.5,
            memory: f64::from(2 << 20),
        };
        let found = now_used(&format!("{}{}{{\"at\":", line(1), line(now())));
        assert_eq!(found, BTreeMap::from([("worker-0".to_owned(), used)]));
        assert!(now_used(&line(now() - 120_000)).is_empty());
        for wrong in ["", "\n", "x\n", "{\"at\":1"] {
            assert!(now_used(wrong).is_empty(), "{wrong:?}");
        }
    }

    #[test]
    fn each_trial_has_lines_of_its_own() {
        let scratch = Scratch::new("trials");
        let at = now();
        let line = |at: u64, trial: u32, mib: u32| {
            format!("{{\"at\":{at},\"tasks\":{{\"{trial}.chief-0\":[100.0,{mib}.0]}}}}\n")
        };
        let lines = [
            line(at - 120_000, 1, 1),
            line(at - 9_000, 2, 2),
            line(at - 2_000, 3, 3),
            line(at - 1_000, 3, 4),
        ];
        fs::write(scratch.0.join(FILE), lines.concat()).unwrap();
        let found = usage_now(&scratch.0);
        let found = found
            .iter()
            .map(|(task, used)| (&**task, used.memory / MIB));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [("2.chief-0", 2.0), ("3.chief-0", 4.0)]
        );
    }

    #[test]
    fn a_large_file_is_shown_from_where_it_fits() {
        let scratch = Scratch::new("large");
        let path = scratch.0.join(FILE);
        let line = |second: u64| {
            format!(
                "{{\"at\":{},\"tasks\":{{\"chief-0\":[100.0,{second}.0]}}}}\n",
                second * 1000
            )
        };
        let lines: Vec<String> = (10..99).map(line).collect();
        fs::write(&path, lines.concat()).unwrap();
        let memory = |most: usize| {
            let curves = usage_within(&path, most as u64);
            let memory = curves
                .into_iter()
                .find(|curve| curve.metric == "memory, MiB");
            memory.unwrap().points
        };
        let part: usize = lines[86..].iter().map(String::len).sum();
        let expected = [(86, 96.0), (87, 97.0), (88, 98.0)];
        assert_eq!(memory(part), expected);
        assert_eq!(memory(part + 7), expected);
        assert_eq!(memory(lines.concat().len()).len(), lines.len());
    }

    #[test]
    fn a_busy_task_is_told_from_one_that_waits() {
        let scratch = Scratch::new("usage");
        let start = |script: &str| {
            Command::new("sh")
                .args(["-c", script])
                .process_group(0)
                .spawn()
                .unwrap()
        };
        // The work is a child's of the group.
        let mut tasks = [
            start("(while :; do :; done) & wait"),
            start("exec sleep 1000"),
        ];
        let groups: Vec<i32> = tasks.iter().map(|task| task.id() as i32).collect();
        let mut meter = Meter::of(&scratch.0).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let last = loop {
            meter.look(
                ["busy", "idle"]
                    .map(str::to_owned)
                    .into_iter()
                    .zip(groups.clone()),
            );
            let curves = usage(&scratch.0);
            let last = |metric: &str, run: &str| {
                let curve = curves
                    .iter()
                    .find(|curve| curve.metric.starts_with(metric) && curve.run == run);
                curve.map_or(0.0, |curve| curve.points[curve.points.len() - 1].1)
            };
            // However busy the machine is, at some second the loop has had a part of it.
            if last("processors", "busy") > 5.0 || Instant::now() > until {
                break [
                    last("processors", "busy"),
                    last("processors", "idle"),
                    last("memory", "busy"),
                    last("memory", "idle"),
                ];
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        for (task, group) in tasks.iter_mut().zip(groups) {
            let group = rustix::process::Pid::from_raw(group).unwrap();
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
            task.wait().unwrap();
        }
        assert!(
            last[0] > 5.0 && last[1] < 5.0 && last[2] > 0.1 && last[3] > 0.1,
            "{last:?}"
        );
    }
}
