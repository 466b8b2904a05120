//! The output of tasks as files: a line is the time, `O` or `E` for the stream, and what the task wrote.
//!
//! Text alone, so that it can be read without this program, and so that what a task wrote last is there whoever was killed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;

/// A longer line is kept in parts.
const LONGEST_LINE: usize = 64 << 10;
/// A line that is drawn again and again is kept so often, as far as it has come.
const REDRAWN: Duration = Duration::from_secs(1);
/// More bytes than are needed to tell that lines are missing.
const LAST_WORDS: u64 = 128;
/// About the most bytes that one look takes.
const MOST_BYTES: u64 = 4 << 20;
/// The most that it takes of each of very many files: a line with its time is shorter.
const LEAST_SHARE: u64 = 128 << 10;

/// One line of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The time, as RFC 3339 writes it.
    pub time: String,
    /// `ERROR` for standard error, else `INFO`.
    pub severity: &'static str,
    /// The task, such as `worker-0`; one of a trial has the trial's number before it.
    pub task: String,
    /// What it wrote.
    pub message: String,
}

/// The time in milliseconds since 1970 as RFC 3339 writes it.
#[must_use]
pub fn timestamp(ms: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(ms);
    humantime::format_rfc3339_millis(time).to_string()
}

/// Appends what a task writes, of both of its streams.
#[derive(Debug, Clone)]
pub(crate) struct Sink(Arc<Mutex<LogFile>>);

/// The file of a task's output, and what it could not be given.
#[derive(Debug)]
struct LogFile {
    file: File,
    /// The number of lines that are missing at its end.
    lost: usize,
    /// Whether its last line is not whole.
    torn: bool,
}

impl LogFile {
    /// Takes whole lines with their time. A line in the place of lost ones says so, as soon as there is room for it.
    fn take(&mut self, time: &str, lines: &[u8]) {
        match self.tells(time) {
            true => self.lost = self.put(lines),
            false => self.lost += lines_in(lines),
        }
    }

    /// Tells what is missing at the end, over the last lines where there is no other room for it.
    fn end(&mut self, time: &str) {
        if self.tells(time) {
            return;
        }
        let length = self.file.metadata().map_or(0, |found| found.len());
        let kept = length.saturating_sub(LAST_WORDS);
        if self.file.set_len(kept).is_ok() {
            (self.torn, self.lost) = (kept > 0, self.lost + 1);
            self.tells(time);
        }
    }

    /// Says how many lines are missing; gives whether it could, or none are.
    fn tells(&mut self, time: &str) -> bool {
        if self.lost > 0 {
            let end = if self.torn { "\n" } else { "" };
            let told = format!(
                "{end}{time} E {} lines or more are missing here: the disk took no more\n",
                self.lost
            );
            if self.put(told.as_bytes()) > 0 {
                return false;
            }
            self.lost = 0;
        }
        true
    }

    /// Writes what the disk takes; gives the number of lines that it does not.
    fn put(&mut self, mut lines: &[u8]) -> usize {
        while !lines.is_empty() {
            match self.file.write(lines) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return lines_in(lines),
                Ok(count) => {
                    self.torn = lines[count - 1] != b'\n';
                    lines = &lines[count..];
                }
            }
        }
        0
    }
}

/// Where the first part of a long line ends: between two characters.
fn part_end(line: &[u8]) -> usize {
    if line.len() <= LONGEST_LINE {
        return line.len();
    }
    let continues = |at: &usize| line[*at] & 0b1100_0000 == 0b1000_0000;
    let mut ends = (LONGEST_LINE - 3..=LONGEST_LINE).rev();
    ends.find(|at| !continues(at)).unwrap_or(LONGEST_LINE)
}

fn lines_in(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}

impl Sink {
    pub(crate) fn append_to(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let (lost, torn) = (0, false);
        let log = LogFile { file, lost, torn };
        Ok(Self(Arc::new(Mutex::new(log))))
    }

    /// Takes a stream until it ends. A disk that is full must not stop the task: what cannot be written is lost, as the log says later.
    pub(crate) fn take_all(&self, stream: char, mut from: impl Read) {
        let mut chunk = vec![0; 64 << 10];
        let mut pending: Vec<u8> = Vec::new();
        let mut written = Instant::now();
        loop {
            let length = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            pending.extend_from_slice(&chunk[..length]);
            let whole = pending.iter().rposition(|byte| *byte == b'\n');
            let drawn = || drawn(&pending).filter(|_| written.elapsed() >= REDRAWN);
            let until = whole.map(|at| at + 1).or_else(drawn);
            let until = until.or((pending.len() > LONGEST_LINE).then(|| part_end(&pending)));
            if let Some(until) = until {
                self.write(stream, &pending[..until]);
                pending.drain(..until);
                written = Instant::now();
            }
        }
        if !pending.is_empty() {
            self.write(stream, &pending);
        }
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.end(&timestamp(crate::store::now()));
    }

    fn write(&self, stream: char, lines: &[u8]) {
        self.write_at(&timestamp(crate::store::now()), stream, lines);
    }

    /// Takes whole lines that were written at a time.
    pub(crate) fn write_at(&self, time: &str, stream: char, lines: &[u8]) {
        let mut text = Vec::with_capacity(lines.len() + 64);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let mut rest = line;
            loop {
                let (part, after) = rest.split_at(part_end(rest));
                let _ = write!(text, "{time} {stream} ");
                text.extend_from_slice(part);
                text.push(b'\n');
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
        }
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.take(time, &text);
    }
}

/// The end of what a program has drawn and begun to draw again, as bars of progress are.
fn drawn(bytes: &[u8]) -> Option<usize> {
    let at = bytes.iter().rposition(|byte| *byte == b'\r')?;
    (at + 1 < bytes.len()).then_some(at + 1)
}

/// The output of all tasks of a job, read where it grows.
#[derive(Debug, Clone)]
pub struct Logs {
    folder: PathBuf,
    /// How far each task's file has been read.
    read: Vec<(String, u64)>,
    /// The task with which the next look begins.
    turn: usize,
    /// The bytes of each task that are read, where it is not all that it writes.
    ends: Option<BTreeMap<String, u64>>,
}

impl Logs {
    /// The output in the folder of a job.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        Self {
            folder: folder.join("logs"),
            read: Vec::new(),
            turn: 0,
            ends: None,
        }
    }

    /// The file of a task, also of one that has written nothing.
    #[must_use]
    pub fn path(folder: &Path, task: &str) -> PathBuf {
        folder.join("logs").join(format!("{task}.log"))
    }

    /// Starts with the last lines of each task: `lines` of them.
    pub fn start_at_last(&mut self, lines: usize) {
        for task in self.tasks() {
            let path = self.folder.join(format!("{task}.log"));
            let from = start_of_last(&path, lines).unwrap_or(0);
            self.read.push((task, from));
        }
    }

    /// Ends with what has been written so far.
    pub fn end_here(&mut self) {
        let length = |task: &String| {
            let found = fs::metadata(self.folder.join(format!("{task}.log")));
            found.map_or(0, |found| found.len())
        };
        let tasks = self.tasks().into_iter();
        let ends = tasks.map(|task| (length(&task), task));
        self.ends = Some(ends.map(|(end, task)| (task, end)).collect());
    }

    /// How many bytes of each task have been read, for [`Logs::go_on_from`].
    #[must_use]
    pub fn positions(&self) -> BTreeMap<&str, u64> {
        let read = self.read.iter();
        read.map(|(task, at)| (task.as_str(), *at)).collect()
    }

    /// Goes on where others stopped: at these bytes of tasks, and where it is of tasks that are not among them.
    pub fn go_on_from(&mut self, positions: BTreeMap<String, u64>) {
        self.read.retain(|(task, _)| !positions.contains_key(task));
        self.read.extend(positions);
    }

    /// What has been written since the last call, by time; at most some megabytes of all tasks together. Lines that are not whole wait,
    /// unless the job is over, and nobody will end them.
    pub fn next(&mut self, wanted: &dyn Fn(&str) -> bool, is_over: bool) -> Vec<Line> {
        let mut tasks = self.tasks();
        tasks.retain(|task| wanted(task));
        let count = tasks.len().max(1);
        let share = (MOST_BYTES / count as u64).max(LEAST_SHARE);
        tasks.rotate_left(self.turn % count);
        let (mut lines, mut left) = (Vec::<(String, Line)>::new(), MOST_BYTES);
        for task in tasks {
            if left == 0 {
                break;
            }
            self.turn = (self.turn + 1) % count;
            let taken = self.next_of(&task, share, is_over);
            left = left.saturating_sub(taken.len() as u64);
            let texts = taken.split(|byte| *byte == b'\n');
            let texts = texts.filter(|text| !text.is_empty());
            lines.extend(in_order(texts.map(|text| line(&task, text))));
        }
        lines.sort_by(|(one, _), (other, _)| one.cmp(other));
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// The next lines of a task, `most` bytes at most.
    fn next_of(&mut self, task: &str, most: u64, is_over: bool) -> Vec<u8> {
        let at = self.read.iter().position(|(known, _)| known == task);
        let at = at.unwrap_or_else(|| {
            self.read.push((task.to_owned(), 0));
            self.read.len() - 1
        });
        let path = self.folder.join(format!("{task}.log"));
        let from = self.read[at].1;
        let left = self.ends.as_ref().map_or(most, |ends| {
            let end = ends.get(task).copied().unwrap_or(0);
            end.saturating_sub(from)
        });
        let mut bytes = part(&path, from, most.min(left)).unwrap_or_default();
        let is_full = bytes.len() as u64 == most;
        let last = bytes.iter().rposition(|byte| *byte == b'\n');
        let taken = match last {
            _ if is_over && !is_full => bytes.len(),
            Some(last) => last + 1,
            // A line as long as this is passed on in parts.
            None if is_full => bytes.len(),
            None => 0,
        };
        self.read[at].1 += taken as u64;
        bytes.truncate(taken);
        bytes
    }

    /// The tasks that have written, with the number of their trial before them.
    #[must_use]
    pub fn tasks(&self) -> Vec<String> {
        let mut tasks = logs_in(&self.folder, "");
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.parse::<u32>().is_ok() {
                tasks.extend(logs_in(&entry.path(), &format!("{name}/")));
            }
        }
        tasks.sort();
        tasks
    }
}

/// The lines of a task, each with the latest time so far: within a task the order is the one of its file, also of lines without a time, and where
/// the clock was set back.
fn in_order(lines: impl Iterator<Item = Line>) -> impl Iterator<Item = (String, Line)> {
    let mut latest = String::new();
    lines.map(move |line| {
        if line.time > latest {
            latest.clone_from(&line.time);
        }
        (latest.clone(), line)
    })
}

fn logs_in(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.strip_suffix(".log")?.to_owned();
        Some(format!("{prefix}{name}"))
    };
    entries.filter_map(name).collect()
}

/// At most this number of a file's bytes, from one on.
pub(crate) fn part(path: &Path, from: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The byte at which the last `lines` lines of a file begin, looked for in its last megabytes.
fn start_of_last(path: &Path, lines: usize) -> io::Result<u64> {
    let length = fs::metadata(path)?.len();
    let from = length.saturating_sub(MOST_BYTES);
    let bytes = part(path, from, MOST_BYTES)?;
    let ends = bytes
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, byte)| **byte == b'\n');
    // The end of the last line is none of a line before the wanted ones.
    let before = ends.map(|(at, _)| at).nth(lines);
    let first = bytes.iter().position(|byte| *byte == b'\n');
    Ok(match (before, from, first) {
        (Some(at), ..) => from + at as u64 + 1,
        (None, 0, _) => 0,
        // The first line in sight may have begun before.
        (None, _, Some(first)) => from + first as u64 + 1,
        (None, _, None) => length,
    })
}

/// The last lines of a task as it wrote them.
#[must_use]
pub fn last_lines(folder: &Path, task: &str, lines: usize) -> Vec<String> {
    let path = Logs::path(folder, task);
    let from = start_of_last(&path, lines).unwrap_or(0);
    let bytes = part(&path, from, MOST_BYTES).unwrap_or_default();
    let texts = bytes
        .split(|byte| *byte == b'\n')
        .filter(|text| !text.is_empty());
    let mut texts: Vec<String> = texts.map(|text| line(task, text).message).collect();
    let first = texts.len().saturating_sub(lines);
    texts.split_off(first)
}

fn line(task: &str, text: &[u8]) -> Line {
    let text = String::from_utf8_lossy(text);
    // Where a task writes its file itself, as on nodes of Slurm, lines are as the program wrote them.
    let stream = text.get(23..27);
    let dated = text.get(4..5) == Some("-") && [Some("Z O "), Some("Z E ")].contains(&stream);
    if !dated {
        return Line {
            time: String::new(),
            severity: "INFO",
            task: task.to_owned(),
            message: text.into_owned(),
        };
    }
    let mut parts = text.splitn(3, ' ');
    let (time, stream, message) = (parts.next(), parts.next(), parts.next());
    Line {
        time: time.unwrap_or_default().to_owned(),
        severity: if stream == Some("E") { "ERROR" } else { "INFO" },
        task: task.to_owned(),
        message: message.unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn a_line_without_an_end_holds_up_none_after_it() {
        let scratch = Scratch::new("long-line");
        let path = Logs::path(&scratch.0, "worker-0");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let long = vec![b'x'; MOST_BYTES as usize + 5];
        fs::write(&path, [&long[..], b"\nlast\n"].concat()).unwrap();
        let mut logs = Logs::of(&scratch.0);
        let mut lines = logs.next(&|_| true, false);
        lines.extend(logs.next(&|_| true, false));
        let lengths: Vec<usize> = lines.iter().map(|line| line.message.len()).collect();
        assert_eq!(lengths, [MOST_BYTES as usize, 5, 4]);
    }

    #[test]
    fn lines_come_once_whole_and_by_time() {
        let scratch = Scratch::new("logs");
        let mut logs = Logs::of(&scratch.0);
        let all = |_: &str| true;
        assert!(logs.next(&all, false).is_empty());
        let one = Sink::append_to(&Logs::path(&scratch.0, "worker-0")).unwrap();
        let other = Sink::append_to(&Logs::path(&scratch.0, "2/worker-1")).unwrap();
        one.take_all('O', &b"a\n\nb  c\r\nd"[..]);
        other.take_all('E', &b"\xff<script>\n"[..]);
        let texts = |lines: &[Line]| -> Vec<String> {
            lines
                .iter()
                .map(|l| format!("{}|{}|{}", l.task, l.severity, l.message))
                .collect()
        };
        let mut got = texts(&logs.next(&all, false));
        got.sort_by_key(|text| text.starts_with('2'));
        let mut expected: Vec<_> = ["a", "", "b  c", "d"]
            .map(|m| format!("worker-0|INFO|{m}"))
            .to_vec();
        expected.push("2/worker-1|ERROR|\u{fffd}<script>".to_owned());
        assert_eq!(got, expected);
        assert!(logs.next(&all, false).is_empty());
        one.take_all('O', &b"e\n"[..]);
        assert_eq!(texts(&logs.next(&all, false)), ["worker-0|INFO|e"]);
        // A line that another process is still writing.
        let path = Logs::path(&scratch.0, "worker-0");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"2026-11-22T00:00:00.000Z O hal").unwrap();
        assert!(logs.next(&all, false).is_empty());
        file.write_all(b"f\n").unwrap();
        assert_eq!(texts(&logs.next(&all, false)), ["worker-0|INFO|half"]);
        // What nobody will end.
        file.write_all(b"2026-11-22T00:00:00.000Z E last").unwrap();
        assert!(logs.next(&all, false).is_empty());
        assert_eq!(texts(&logs.next(&all, true)), ["worker-0|ERROR|last"]);
        assert!(logs.next(&all, true).is_empty());
    }

    #[test]
    fn lines_of_a_task_keep_their_order_whatever_their_times_are() {
        let scratch = Scratch::new("order");
        let time = |minute: u32| format!("2026-11-22T00:{minute:02}:00.000Z O");
        fs::create_dir_all(scratch.0.join("logs")).unwrap();
        let set_back = format!("{0} a\n{1} b\n{2} c\n", time(5), time(4), time(7));
        let undated = format!("{} d\ne\n{} f\n", time(6), time(8));
        fs::write(Logs::path(&scratch.0, "chief-0"), set_back).unwrap();
        fs::write(Logs::path(&scratch.0, "worker-0"), undated).unwrap();
        let lines = Logs::of(&scratch.0).next(&|_| true, true);
        let order: Vec<&str> = lines.iter().map(|line| line.message.as_str()).collect();
        assert_eq!(order, ["a", "b", "d", "e", "c", "f"]);
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_told_in_their_place() {
        let scratch = Scratch::new("full");
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            options.append(true).create(true).open(path).unwrap()
        };
        for (before, torn) in [("", false), ("a\n", false), ("a\nb", true)] {
            let path = scratch.0.join("log");
            fs::write(&path, before).unwrap();
            let (file, lost) = (open(Path::new("/dev/full")), 0);
            let mut log = LogFile { file, lost, torn };
            log.take("t1", b"c\nd\n");
            log.take("t2", b"e\n");
            log.end("t3");
            log.file = open(&path);
            log.take("t4", b"f\n");
            log.take("t5", b"g\n");
            log.end("t6");
            let end = if torn { "\n" } else { "" };
            let told = "t4 E 3 lines or more are missing here: the disk took no more";
            let kept = fs::read_to_string(&path).unwrap();
            assert_eq!(kept, format!("{before}{end}{told}\nf\ng\n"));
        }
    }

    #[test]
    fn what_is_written_after_the_end_that_was_set_is_not_read() {
        let scratch = Scratch::new("end-here");
        let path = Logs::path(&scratch.0, "chief-0");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "one\ntwo\nthr").unwrap();
        let mut logs = Logs::of(&scratch.0);
        logs.end_here();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"ee\nfour\n").unwrap();
        fs::write(Logs::path(&scratch.0, "worker-0"), "late\n").unwrap();
        let mut messages = |is_over| {
            let lines = logs.next(&|_| true, is_over).into_iter();
            lines.map(|line| line.message).collect::<Vec<_>>()
        };
        assert_eq!(messages(false), ["one", "two"]);
        assert!(messages(false).is_empty());
        assert_eq!(messages(true), ["thr"]);
        assert!(messages(true).is_empty());
    }

    #[test]
    fn lines_that_begin_with_a_time_of_their_own_are_whole() {
        for text in [
            "2026-11-22T00:00:00.000Z INFO started",
            "2026-11-22T00:00:00.000Z Of old",
            "2026-11-22T00:00:00.000Z",
        ] {
            assert_eq!(line("chief-0", text.as_bytes()).message, text);
        }
        let kept = line("chief-0", b"2026-11-22T00:00:00.000Z E a b");
        assert_eq!((kept.message.as_str(), kept.severity), ("a b", "ERROR"));
    }

    #[test]
    fn a_look_at_many_tasks_takes_as_much_as_one_at_a_few_and_leaves_none_out() {
        let scratch = Scratch::new("many-logs");
        fs::create_dir_all(scratch.0.join("logs")).unwrap();
        let length = 2 * LEAST_SHARE as usize;
        let text = [vec![b'x'; 99], vec![b'\n']].concat().repeat(length / 100);
        for task in 0..80 {
            fs::write(Logs::path(&scratch.0, &format!("worker-{task}")), &text).unwrap();
        }
        let mut logs = Logs::of(&scratch.0);
        let (mut seen, mut count) = (BTreeMap::new(), 0);
        loop {
            let lines = logs.next(&|_| true, true);
            let bytes = lines.len() as u64 * 100;
            assert!(bytes <= MOST_BYTES + LEAST_SHARE, "{bytes}");
            for line in &lines {
                assert_eq!(line.message.len(), 99);
                *seen.entry(line.task.clone()).or_insert(0) += 1;
            }
            if lines.is_empty() {
                break;
            }
            count += 1;
            // All have their turn before one has its second.
            assert!(count != 3 || seen.len() == 80, "{seen:?}");
        }
        assert!(seen.len() == 80 && seen.values().all(|lines| *lines == length / 100));
    }

    #[test]
    fn a_bar_of_progress_is_seen_while_it_grows() {
        /// Writes a bar, and again what it looks like after a while.
        struct Bar<'a>(&'a Path, u32);
        impl Read for Bar<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.1 += 1;
                let text = match self.1 {
                    1 => "10%\r20%",
                    2 => {
                        std::thread::sleep(REDRAWN);
                        "\r30%\r40%"
                    }
                    3 => {
                        let last = last_lines(self.0, "chief-0", 1);
                        assert_eq!(last, ["10%\r20%\r30%"]);
                        "\r"
                    }
                    4 => "\nend\n",
                    _ => "",
                };
                buffer[..text.len()].copy_from_slice(text.as_bytes());
                Ok(text.len())
            }
        }
        let scratch = Scratch::new("bar");
        let sink = Sink::append_to(&Logs::path(&scratch.0, "chief-0")).unwrap();
        sink.take_all('O', Bar(&scratch.0, 0));
        let all = last_lines(&scratch.0, "chief-0", 20);
        assert_eq!(all, ["10%\r20%\r30%", "40%", "end"]);
    }

    #[test]
    fn the_last_lines_are_the_last() {
        let scratch = Scratch::new("last");
        let sink = Sink::append_to(&Logs::path(&scratch.0, "chief-0")).unwrap();
        for count in 1..60u32 {
            sink.take_all('O', format!("{count}\n").as_bytes());
            let last = last_lines(&scratch.0, "chief-0", 20);
            let first = count.saturating_sub(19).max(1);
            let expected: Vec<_> = (first..=count).map(|n| n.to_string()).collect();
            assert_eq!(last, expected);
        }
        let mut logs = Logs::of(&scratch.0);
        logs.start_at_last(3);
        let lines = logs.next(&|_| true, false);
        assert_eq!(
            lines.iter().map(|l| l.message.as_str()).collect::<Vec<_>>(),
            ["57", "58", "59"]
        );
        assert_eq!(last_lines(&scratch.0, "none", 20), Vec::<String>::new());
        let long = "日本語".repeat(30_000);
        let kept = Sink::append_to(&Logs::path(&scratch.0, "worker-0")).unwrap();
        kept.take_all('O', format!("{long}\n{long}").as_bytes());
        let parts = last_lines(&scratch.0, "worker-0", 20);
        assert_eq!(parts.concat(), long.repeat(2), "a character was divided");
        sink.take_all('O', &vec![b'x'; 200 << 10][..]);
        assert!(
            last_lines(&scratch.0, "chief-0", 20)
                .iter()
                .all(|line| line.len() <= LONGEST_LINE)
        );
    }
}
