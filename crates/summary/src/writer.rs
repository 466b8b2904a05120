//! The writer of one event file.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::event::{Tensor, What, event};
use crate::graph::{GraphNode, graph_def};
use crate::hparams::{self, HParam, HParamMetric, SessionStatus};
use crate::record::framed;
use crate::{Histogram, Image};

/// Who writes the files, for those who look into them.
const WRITER: &str = "phalanx-summary";
/// The files that this process has begun: the last part of their names, so that no two of a second have the same.
static FILES: AtomicU64 = AtomicU64::new(0);

/// What goes wrong with event files.
#[derive(Debug, thiserror::Error)]
pub enum SummaryError {
    /// The file system refused to write or read one.
    #[error("cannot {action} {}: {source}; check that the folder is there, may be used and has space", path.display())]
    Io {
        /// The event file, or its folder.
        path: PathBuf,
        /// The verb of what was refused: `create`, `write`, `read`.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// An image is none.
    #[error("{0}")]
    Image(String),
}

/// When events are handed to the system, after which other processes see them: by default TensorFlow's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushPolicy {
    /// As soon as this many events wait.
    pub events: usize,
    /// With the next event, once this much time has passed since the last time.
    pub interval: Duration,
}

impl Default for FlushPolicy {
    fn default() -> Self {
        Self {
            events: 10,
            interval: Duration::from_secs(120),
        }
    }
}

/// Writes one event file, which grows with each event. What waits at its end is written, and errors of that are not told: call
/// [`flush`](Self::flush) before.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: BufWriter<File>,
    policy: FlushPolicy,
    waiting: usize,
    flushed: Instant,
}

impl EventWriter {
    /// Begins a new event file in this folder, which is made where it is missing. Other files there stay as they are, and TensorBoard
    /// shows the events of all as one run.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(folder: impl AsRef<Path>) -> Result<Self, SummaryError> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder).map_err(error("create", folder))?;
        let (path, file) = new_file(folder)?;
        let mut writer = Self {
            path,
            file: BufWriter::new(file),
            policy: FlushPolicy::default(),
            waiting: 0,
            flushed: Instant::now(),
        };
        // TensorFlow gives this event whole seconds, those of the file's name.
        let seconds = since_1970().as_secs() as f64;
        let begun = writer
            .write(&event(seconds, 0, What::FileVersion { writer: WRITER }))
            .and_then(|()| writer.flush());
        if let Err(error) = begun {
            // An empty file is of no use.
            let _ = fs::remove_file(&writer.path);
            return Err(error);
        }
        Ok(writer)
    }

    /// When events are handed to the system.
    #[must_use]
    pub const fn flush_policy(mut self, policy: FlushPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a number of this step under a tag, such as `epoch_loss`. It may be infinite or not a number, which TensorBoard
    /// shows.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn scalar(&mut self, tag: &str, value: f32, step: i64) -> Result<(), SummaryError> {
        self.add(step, What::scalar(tag, value))
    }

    /// Writes how often values fall between edges.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn histogram(
        &mut self,
        tag: &str,
        histogram: &Histogram,
        step: i64,
    ) -> Result<(), SummaryError> {
        let rows = Tensor::Triples(&histogram.0);
        self.add(step, of_plugin(tag, "histograms", &[], rows))
    }

    /// Writes images of one size under one tag.
    ///
    /// # Errors
    /// Those of the file system; [`SummaryError::Image`] where there is none, or one of another size.
    pub fn images(&mut self, tag: &str, images: &[Image], step: i64) -> Result<(), SummaryError> {
        let size = images.first().map(Image::size);
        let Some((width, height)) =
            size.filter(|&size| images.iter().all(|image| image.size() == size))
        else {
            return Err(SummaryError::Image(format!(
                "the {} images of `{tag}` are not of one size; write them under tags of their own",
                images.len()
            )));
        };
        let sizes = [width.to_string(), height.to_string()];
        let sizes = sizes.iter().map(String::as_bytes);
        let strings: Vec<&[u8]> = sizes.chain(images.iter().map(Image::png)).collect();
        self.add(
            step,
            of_plugin(tag, "images", &[], Tensor::Strings(&strings)),
        )
    }

    /// Writes text, which TensorBoard shows as Markdown.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn text(&mut self, tag: &str, text: &str, step: i64) -> Result<(), SummaryError> {
        self.add(step, of_plugin(tag, "text", &[], Tensor::Text(text)))
    }

    /// Writes the graph of a model, of which a run shows one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn graph(&mut self, nodes: &[GraphNode]) -> Result<(), SummaryError> {
        self.add(0, What::Graph(&graph_def(nodes)))
    }

    /// Writes which settings the trainings of an experiment have and what they are compared by: once, in a run at the top of the
    /// folder that TensorBoard opens.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn hparams_experiment(
        &mut self,
        settings: &[(&str, HParam)],
        metrics: &[HParamMetric],
    ) -> Result<(), SummaryError> {
        let content = hparams::experiment(since_1970().as_secs_f64(), settings, metrics);
        self.hparams("_hparams_/experiment", &content)
    }

    /// Writes the settings of a training that starts. Trainings of one `group` are repetitions of each other.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn hparams_start(
        &mut self,
        group: &str,
        settings: &[(&str, HParam)],
    ) -> Result<(), SummaryError> {
        let content = hparams::session_start(since_1970().as_secs_f64(), group, settings);
        self.hparams("_hparams_/session_start_info", &content)
    }

    /// Writes how that training ended.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn hparams_end(&mut self, status: SessionStatus) -> Result<(), SummaryError> {
        let content = hparams::session_end(since_1970().as_secs_f64(), status);
        self.hparams("_hparams_/session_end_info", &content)
    }

    fn hparams(&mut self, tag: &str, content: &[u8]) -> Result<(), SummaryError> {
        self.add(0, of_plugin(tag, hparams::PLUGIN, content, Tensor::Nothing))
    }

    /// Marks that a training starts at this step: TensorBoard forgets what files before this one, and this one so far, have
    /// of this step and later ones.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn session_start(&mut self, step: i64) -> Result<(), SummaryError> {
        self.add(step, What::SessionStart)
    }

    /// Hands all events to the system.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn flush(&mut self) -> Result<(), SummaryError> {
        self.file.flush().map_err(error("write", &self.path))?;
        self.waiting = 0;
        self.flushed = Instant::now();
        Ok(())
    }

    fn add(&mut self, step: i64, what: What<'_>) -> Result<(), SummaryError> {
        self.write(&event(since_1970().as_secs_f64(), step, what))?;
        self.waiting += 1;
        let is_late = self.flushed.elapsed() >= self.policy.interval;
        if is_late || self.waiting >= self.policy.events {
            self.flush()?;
        }
        Ok(())
    }

    fn write(&mut self, event: &[u8]) -> Result<(), SummaryError> {
        let written = self.file.write_all(&framed(event));
        written.map_err(error("write", &self.path))
    }
}

const fn of_plugin<'a>(
    tag: &'a str,
    plugin: &'a str,
    content: &'a [u8],
    tensor: Tensor<'a>,
) -> What<'a> {
    What::Summary {
        tag,
        plugin,
        content,
        tensor,
    }
}

pub(crate) fn error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SummaryError {
    let path = path.to_owned();
    move |source| SummaryError::Io {
        path,
        action,
        source,
    }
}

/// The time since 1970; none by a clock that is before it.
fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// A file that was not there, by TensorFlow's names, with zeros before the number: TensorBoard reads files in the order of these, and
/// so of their seconds and numbers.
fn new_file(folder: &Path) -> Result<(PathBuf, File), SummaryError> {
    let (seconds, host, process) = (since_1970().as_secs(), host_name(), process::id());
    loop {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(
            "events.out.tfevents.{seconds:010}.{host}.{process}.{number:06}.v2"
        ));
        match File::create_new(&path) {
            Ok(file) => return Ok((path, file)),
            // Of a process of another container that has this name and number.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(source) => return Err(error("create", &path)(source)),
        }
    }
}

/// The name of this machine: Linux has a file of it, and others may have a variable.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| env::var("HOSTNAME").ok());
    let name = name.or_else(|| env::var("COMPUTERNAME").ok());
    file_name(name.as_deref().map_or("", str::trim))
}

/// A name without characters that a file name may not have.
fn file_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let plain = |c| if is_plain(c) { c } else { '_' };
    match name {
        "" => "localhost".to_owned(),
        name => name.chars().map(plain).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory for one test, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let folder = format!("phalanx-summary-{name}-{}", process::id());
            Self(env::temp_dir().join(folder))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn len(writer: &EventWriter) -> u64 {
        fs::metadata(writer.path()).unwrap().len()
    }

    #[test]
    fn files_are_named_as_tensorflow_names_them() {
        let scratch = Scratch::new("names");
        let folder = scratch.0.join("new/train");
        let paths = [0, 1].map(|_| EventWriter::create(&folder).unwrap().path().to_owned());
        assert_ne!(paths[0], paths[1]);
        for path in paths {
            let name = path.file_name().unwrap().to_str().unwrap();
            let rest = name.strip_prefix("events.out.tfevents.").unwrap();
            let (seconds, rest) = rest.split_once('.').unwrap();
            assert_eq!(seconds.len(), 10);
            let before = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.parse().unwrap());
            assert!(before.elapsed().unwrap() < Duration::from_secs(600));
            let rest = rest.strip_prefix(&format!("{}.", host_name())).unwrap();
            let rest = rest.strip_prefix(&format!("{}.", process::id())).unwrap();
            let number = rest.strip_suffix(".v2").unwrap();
            assert!(number.parse::<u64>().is_ok(), "{name}");
        }
        assert_eq!(file_name("a/b c.d-e_1"), "a_b_c.d-e_1");
        assert_eq!(file_name(""), "localhost");
    }

    #[test]
    fn events_are_flushed_by_count_by_time_and_at_the_end() {
        let scratch = Scratch::new("flush");
        let never = Duration::MAX;
        let policy = |events, interval| FlushPolicy { events, interval };
        let mut writer = EventWriter::create(&scratch.0).unwrap();
        let first = len(&writer);
        assert_eq!(first, (16 + 9 + 15 + 2 + 17) as u64);
        writer = writer.flush_policy(policy(2, never));
        writer.scalar("a", 1.0, 3).unwrap();
        assert_eq!(len(&writer), first);
        writer.session_start(4).unwrap();
        let both = len(&writer);
        assert!(both > first);
        writer = writer.flush_policy(policy(usize::MAX, Duration::ZERO));
        writer.scalar("a", 1.0, 3).unwrap();
        let three = len(&writer);
        assert!(three > both);
        writer = writer.flush_policy(policy(usize::MAX, never));
        writer.scalar("a", 1.0, 3).unwrap();
        assert_eq!(len(&writer), three);
        let path = writer.path().to_owned();
        drop(writer);
        let file = fs::read(path).unwrap();
        assert!(file.len() as u64 > three);
        // The events are those asked for, one record each.
        let marks = file.windows(4).filter(|at| *at == [0x3a, 2, 8, 1]);
        assert_eq!(marks.count(), 1);
    }

    #[test]
    fn errors_name_the_path() {
        let scratch = Scratch::new("errors");
        fs::create_dir_all(&scratch.0).unwrap();
        let file = scratch.0.join("file");
        fs::write(&file, "").unwrap();
        let error = EventWriter::create(&file).unwrap_err().to_string();
        let start = format!("cannot create {}: ", file.display());
        assert!(error.starts_with(&start), "{error}");
        #[cfg(target_os = "linux")]
        {
            let mut full = EventWriter::create(&scratch.0).unwrap();
            full.file = BufWriter::new(File::create("/dev/full").unwrap());
            full.scalar("a", 1.0, 0).unwrap();
            let error = full.flush().unwrap_err().to_string();
            let start = format!("cannot write {}: No space", full.path().display());
            assert!(error.starts_with(&start), "{error}");
        }
    }
}
