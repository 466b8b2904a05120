//! What a training uses of its machine, as Linux tells it in `/proc`, and what else is asked.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::EventWriter;

/// Ticks of a second in `/proc`: Linux' number towards programs, whatever the kernel counts in.
const TICKS: f64 = 100.0;
const MIB: f64 = (1 << 20) as f64;

/// What was counted up to a moment.
#[derive(Clone, Debug, PartialEq)]
struct Counters {
    at: Instant,
    /// Ticks in which processors did something, and all ticks.
    busy: f64,
    ticks: f64,
    /// Ticks that this process took.
    own: f64,
    /// Bytes received and sent by all interfaces but the loopback.
    received: f64,
    sent: f64,
    /// MiB that this process holds, and that others could have.
    held: f64,
    available: f64,
}

/// The files of `/proc` that are read.
struct Texts {
    stat: String,
    own: String,
    network: String,
    status: String,
    memory: String,
}

impl Counters {
    /// None where there is no `/proc`, or one of another form.
    fn now() -> Option<Self> {
        let read = |path| fs::read_to_string(path).ok();
        Self::of(&Texts {
            stat: read("/proc/stat")?,
            own: read("/proc/self/stat")?,
            network: read("/proc/net/dev").unwrap_or_default(),
            status: read("/proc/self/status")?,
            memory: read("/proc/meminfo")?,
        })
    }

    fn of(texts: &Texts) -> Option<Self> {
        let all = texts.stat.lines().next()?.strip_prefix("cpu ")?;
        let all = numbers(all);
        // User, nice, system, idle, waiting for disks, interrupts (two), taken by the hypervisor; guests are in the first two.
        let ticks: f64 = all.iter().take(8).sum();
        let idle: f64 = all.iter().skip(3).take(2).sum();
        // The name of the program is in brackets and may hold anything.
        let own = numbers(texts.own.rsplit_once(')')?.1);
        let traffic: Vec<Vec<f64>> = (texts.network.lines().skip(2))
            .filter_map(|line| line.split_once(':'))
            .filter(|(interface, _)| interface.trim() != "lo")
            .map(|(_, counts)| numbers(counts))
            .collect();
        let total = |place: usize| traffic.iter().filter_map(|counts| counts.get(place)).sum();
        Some(Self {
            at: Instant::now(),
            busy: ticks - idle,
            ticks,
            own: own.get(11)? + own.get(12)?,
            received: total(0),
            sent: total(8),
            held: kib(&texts.status, "VmRSS:")? / 1024.0,
            available: kib(&texts.memory, "MemAvailable:")? / 1024.0,
        })
    }

    /// Tags with what was used since other counters.
    fn since(&self, before: &Self) -> [(&'static str, f64); 6] {
        let seconds = (self.at - before.at).as_secs_f64().max(1e-3);
        let ticks = (self.ticks - before.ticks).max(1.0);
        let rate = |now: f64, then: f64| (now - then) / seconds / MIB;
        [
            (
                "system/cpu_percent",
                100.0 * (self.busy - before.busy) / ticks,
            ),
            (
                "system/process_cpu_percent",
                100.0 * (self.own - before.own) / TICKS / seconds,
            ),
            ("system/memory_mib", self.held),
            ("system/memory_available_mib", self.available),
            (
                "system/network_received_mib_s",
                rate(self.received, before.received),
            ),
            ("system/network_sent_mib_s", rate(self.sent, before.sent)),
        ]
    }
}

fn numbers(text: &str) -> Vec<f64> {
    let numbers = text.split_ascii_whitespace();
    numbers.map(|word| word.parse().unwrap_or(0.0)).collect()
}

fn kib(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    numbers(line).first().copied()
}

/// How long the end of the thread is waited for: a driver that hangs keeps it.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Writes what a process uses of its machine to an event file once in a while, on a thread of its own: tags that begin with
/// `system/`, processors in percent of all of the machine (`cpu_percent`) and of one (`process_cpu_percent`), memory in MiB, network
/// in MiB a second, and what the caller knows. Dropping it writes once more and ends the thread, unless that takes over ten seconds.
/// Where there is no `/proc` nothing is written.
#[derive(Debug)]
pub struct SystemMonitor {
    end: Option<Sender<()>>,
    /// Nobody sends: it is closed when the thread has ended.
    ended: Receiver<()>,
    end_within: Duration,
}

impl SystemMonitor {
    /// Begins to write every `interval`, under the step that `step` holds then; `others`, which the thread calls each time, are tags and
    /// values beside the ones of the machine. A file that cannot be written any more ends it without a word: no training depends on it.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(
        file: EventWriter,
        interval: Duration,
        step: Arc<AtomicI64>,
        others: impl FnMut() -> Vec<(String, f64)> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (end, is_ended) = channel();
        let (end_told, ended) = channel();
        let watch = move || {
            watch(file, interval, &step, &is_ended, others);
            drop(end_told);
        };
        thread::Builder::new()
            .name("phalanx-system".into())
            .spawn(watch)?;
        Ok(Self {
            end: Some(end),
            ended,
            end_within: END_WITHIN,
        })
    }
}

/// Writes every `interval`, and once more when `end` is closed.
fn watch(
    mut file: EventWriter,
    interval: Duration,
    step: &AtomicI64,
    end: &Receiver<()>,
    mut others: impl FnMut() -> Vec<(String, f64)>,
) {
    let Some(mut before) = Counters::now() else {
        return;
    };
    loop {
        let is_end = end.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
        let Some(now) = Counters::now() else { return };
        let step = step.load(Ordering::Relaxed);
        let tags = now
            .since(&before)
            .map(|(tag, value)| (tag.to_owned(), value));
        let written: Result<Vec<()>, _> = (tags.into_iter().chain(others()))
            .map(|(tag, value)| file.scalar(&tag, value as f32, step))
            .collect();
        if written.and_then(|_| file.flush()).is_err() || is_end {
            return;
        }
        before = now;
    }
}

impl Drop for SystemMonitor {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.ended.recv_timeout(self.end_within);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Run;

    fn texts(busy: u64, own: u64, received: u64) -> Texts {
        Texts {
            stat: format!("cpu  {busy} 0 0 700 50 0 0 0 9 9\ncpu0 1 1\n"),
            own: format!("7 (a b) c) R 1 1 1 0 -1 4 100 0 0 0 {own} 5 0 0 20 0 9 0 1 1 1"),
            network: format!(
                "Inter-|\n face |\n    lo: 999 1 0 0 0 0 0 0 999 1\n  eth0: {received} 1 0 0 0 0 0 0 2097152 1\n"
            ),
            status: "Name:\tx\nVmRSS:\t    2048 kB\n".into(),
            memory: "MemTotal: 9 kB\nMemAvailable:    4096 kB\n".into(),
        }
    }

    #[test]
    fn counters_are_those_of_proc() {
        let before = Counters::of(&texts(250, 10, 0)).unwrap();
        let mut after = Counters::of(&texts(1250, 110, 1 << 20)).unwrap();
        after.at = before.at + Duration::from_secs(2);
        assert_eq!(
            after.since(&before),
            [
                ("system/cpu_percent", 100.0),
                ("system/process_cpu_percent", 50.0),
                ("system/memory_mib", 2.0),
                ("system/memory_available_mib", 4.0),
                ("system/network_received_mib_s", 0.5),
                ("system/network_sent_mib_s", 0.0),
            ]
        );
        assert_eq!(
            (before.busy, before.ticks, before.sent),
            (250.0, 1000.0, 2097152.0)
        );
        let none = Texts {
            stat: String::new(),
            ..texts(1, 1, 1)
        };
        assert_eq!(Counters::of(&none), None);
    }

    /// An event file in a folder of a test, which is removed at the end.
    struct File(std::path::PathBuf);

    impl File {
        fn create(name: &str) -> (Self, EventWriter) {
            let folder = format!("phalanx-system-{name}-{}", std::process::id());
            let folder = Self(std::env::temp_dir().join(folder));
            let file = EventWriter::create(&folder.0).unwrap();
            (folder, file)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_used_is_written_at_the_end_at_least() {
        let (folder, file) = File::create("end");
        let step = Arc::new(AtomicI64::new(0));
        let others = || vec![("system/gpu_0_percent".to_owned(), 71.0)];
        let interval = Duration::from_secs(600);
        let monitor = SystemMonitor::start(file, interval, Arc::clone(&step), others);
        step.store(7, Ordering::Relaxed);
        drop(monitor.unwrap());
        let run = Run::read(&folder.0).unwrap();
        assert_eq!(run.scalars.len(), 7);
        let memory = &run.scalars["system/memory_mib"];
        assert!(
            memory.len() == 1 && memory[0].step == 7 && memory[0].value > 1.0,
            "{memory:?}"
        );
        let other = &run.scalars["system/gpu_0_percent"];
        assert!(
            other.len() == 1 && other[0].step == 7 && other[0].value == 71.0,
            "{other:?}"
        );
    }

    /// The test ends only if the monitor's end does not wait for the driver, which waits for the test.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_driver_that_hangs_is_not_waited_for() {
        let (_folder, file) = File::create("hangs");
        let (asked, is_asked) = channel();
        let (answer, answered) = channel::<()>();
        let others = move || {
            asked.send(()).unwrap();
            let _ = answered.recv();
            Vec::new()
        };
        let step = Arc::new(AtomicI64::new(0));
        let monitor = SystemMonitor::start(file, Duration::from_millis(1), step, others);
        let mut monitor = monitor.unwrap();
        is_asked.recv_timeout(Duration::from_secs(60)).unwrap();
        monitor.end_within = Duration::from_millis(1);
        drop(monitor);
        drop(answer);
    }
}
