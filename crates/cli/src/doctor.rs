//! Judgements of `phalanx doctor`: facts in, lines out.

use std::fmt;
use std::path::{Path, PathBuf};

use phalanx_cluster::{Explanation, may_have_password};
use serde_json::{Value, json};

use crate::machine::{Machine, bytes};

const MIB: u64 = 1 << 20;

/// One line of the report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Check {
    /// What was looked at.
    pub(crate) name: &'static str,
    /// How it is.
    pub(crate) state: State,
    /// What was found.
    pub(crate) found: String,
}

/// How good something is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// It works, less well than it could; the text says what to do.
    Warn(String),
    /// Training will not work; the text says what to do.
    Fail(String),
}

impl Check {
    /// Nothing to complain of.
    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Ok,
            found: found.into(),
        }
    }

    /// Something to improve.
    pub(crate) fn warn(
        name: &'static str,
        found: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state: State::Warn(next.into()),
            found: found.into(),
        }
    }

    /// Something to repair.
    pub(crate) fn fail(
        name: &'static str,
        found: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state: State::Fail(next.into()),
            found: found.into(),
        }
    }

    /// Whether training will not work.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.state, State::Fail(_))
    }

    /// The state in a word, and what to do.
    const fn state(&self) -> (&'static str, Option<&String>) {
        match &self.state {
            State::Ok => ("ok", None),
            State::Warn(next) => ("warn", Some(next)),
            State::Fail(next) => ("fail", Some(next)),
        }
    }

    /// The line as an object.
    pub(crate) fn to_json(&self) -> Value {
        let (state, next) = self.state();
        let (name, found) = (self.name, &self.found);
        json!({"event": "check", "name": name, "state": state, "found": found, "next": next})
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, next) = self.state();
        write!(f, "{word:<5} {:<11} {}", self.name, self.found)?;
        next.map_or(Ok(()), |next| write!(f, "\n{:18}next: {next}", ""))
    }
}

/// The vector instructions.
pub(crate) fn processor(machine: &Machine) -> Check {
    let features = machine.features.join(" ");
    let found = format!(
        "{} ({})",
        machine.processor,
        if features.is_empty() {
            "no vector features known"
        } else {
            &features
        }
    );
    if cfg!(target_arch = "x86_64") && !machine.features.contains(&"avx2") {
        return Check::warn(
            "processor",
            found,
            "expect slow training: use a processor with avx2 (or let the virtual machine show it)",
        );
    }
    Check::ok("processor", found)
}

/// Processors, and the share of them that the control group grants.
pub(crate) fn cores(machine: &Machine) -> Check {
    let cores = machine.cores;
    match machine.quota {
        Some(quota) if quota < cores as f64 => Check::warn(
            "cores",
            format!("{cores}, of which the control group grants {quota:.1}"),
            format!(
                "raise the cpu limit to {cores}, or pin the process to fewer processors (taskset): threads that are paused slow every step"
            ),
        ),
        _ => Check::ok("cores", format!("{cores}")),
    }
}

/// Memory that can still be used, of the machine or of the control group.
pub(crate) fn memory(machine: &Machine) -> Check {
    let Some((total, available)) = machine.memory else {
        return Check::warn(
            "memory",
            "cannot be read from /proc/meminfo",
            "check that /proc is mounted",
        );
    };
    let (found, left) = match machine.memory_limit {
        Some((limit, used)) if limit < total => (
            format!(
                "{} available of {}; the control group may use {}",
                bytes(available),
                bytes(total),
                bytes(limit)
            ),
            available.min(limit.saturating_sub(used)),
        ),
        _ => (
            format!("{} available of {}", bytes(available), bytes(total)),
            available,
        ),
    };
    match left {
        0..=268_435_455 => Check::fail(
            "memory",
            found,
            "end other programs or raise the limit: compiling alone takes about 256 MiB",
        ),
        268_435_456..=1_073_741_823 => Check::warn(
            "memory",
            found,
            "end other programs or choose small batches: less than 1 GiB is left",
        ),
        _ => Check::ok("memory", found),
    }
}

/// What is known of the per-user cache.
pub(crate) struct Cache {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// Bytes in it.
    pub(crate) size: u64,
    /// Why it cannot be written to.
    pub(crate) refused: Option<String>,
}

/// The per-user cache; none without a home.
pub(crate) fn cache(cache: Option<&Cache>) -> Check {
    let Some(cache) = cache else {
        return Check::fail(
            "cache",
            "neither PHALANX_CACHE_DIR, XDG_CACHE_HOME nor HOME is set",
            "set PHALANX_CACHE_DIR to a folder you can write to",
        );
    };
    let found = format!("{} ({})", cache.folder.display(), bytes(cache.size));
    match &cache.refused {
        None => Check::ok("cache", found),
        Some(why) => Check::fail(
            "cache",
            format!("{found} cannot be written to: {why}"),
            "set PHALANX_CACHE_DIR to a folder you can write to",
        ),
    }
}

/// Free space where a kind of files goes.
pub(crate) fn disk(folder: &Path, free: Option<u64>) -> Check {
    let Some(free) = free else {
        return Check::warn(
            "disk",
            format!("the free space of {} cannot be read", folder.display()),
            "check that the folder exists and is readable",
        );
    };
    let found = format!("{} free for {}", bytes(free), folder.display());
    if free < 400 * MIB {
        Check::fail(
            "disk",
            found,
            "free some space: the cpu plugin takes 250 MiB, and models and logs come on top",
        )
    } else if free < 2048 * MIB {
        Check::warn(
            "disk",
            found,
            "free some space: the compile cache alone may grow to 2 GiB",
        )
    } else {
        Check::ok("disk", found)
    }
}

/// Variables that change what the compiler does.
pub(crate) fn flags(flags: &str) -> Check {
    if flags.trim().is_empty() {
        Check::ok("xla flags", "XLA_FLAGS is not set")
    } else {
        Check::warn(
            "xla flags",
            format!("XLA_FLAGS is {flags:?}"),
            "unset XLA_FLAGS unless you need it: a flag that the plugin does not know ends the process at once",
        )
    }
}

/// Which of how many workers this process is.
pub(crate) fn worker(explanation: &Explanation) -> Check {
    match &explanation.outcome {
        Ok(None) => Check::ok("worker", "the only one"),
        Ok(Some(membership)) => Check::ok("worker", membership.to_string()),
        Err(error) => Check::fail("worker", error.to_string(), "see `phalanx env --explain`"),
    }
}

/// Starts of the names of variables that this program or its libraries go by, beside those that tell of workers.
const VARIABLES: [&str; 12] = [
    "PHALANX_", "OMP_", "GOMP_", "ONEDNN_", "DNNL_", "PJRT_", "NPROC", "CUDA_", "NCCL_", "TPU_",
    "TF_CPP_", "LD_",
];
/// Parts of the names of variables whose values nobody may see.
const SECRET: [&str; 5] = ["SECRET", "TOKEN", "PASSWORD", "KEY", "CREDENTIAL"];

/// The variables that a training goes by, a line each, secrets without their values.
pub(crate) fn variables(
    explanation: &Explanation,
    all: impl Iterator<Item = (String, String)>,
) -> Vec<Check> {
    let has = |parts: &[&str], found: &dyn Fn(&str) -> bool| parts.iter().any(|part| found(part));
    let is_read = |name: &str| explanation.variables.iter().any(|read| read.name == name);
    let mut chosen: Vec<(String, String)> = all
        .filter(|(name, _)| has(&VARIABLES, &|part| name.starts_with(part)) || is_read(name))
        .collect();
    chosen.sort();
    let chosen = chosen.into_iter();
    let lines = chosen.map(|(name, value)| {
        match has(&SECRET, &|part| name.contains(part)) || may_have_password(&value) {
            true => format!("{name} is set"),
            false => format!("{name}={}", value.replace(['\n', '\r'], " ")),
        }
    });
    lines.map(|line| Check::ok("variable", line)).collect()
}

#[cfg(test)]
mod tests {
    use phalanx_cluster::{Variables, explain};

    use super::*;

    fn machine() -> Machine {
        Machine {
            processor: "A CPU".into(),
            features: vec!["avx2", "fma"],
            cores: 4,
            quota: None,
            memory: Some((8 << 30, 4 << 30)),
            memory_limit: None,
        }
    }

    #[test]
    fn a_good_machine_is_ok() {
        let machine = machine();
        for check in [
            processor(&machine),
            cores(&machine),
            memory(&machine),
            disk(Path::new("/"), Some(9 << 30)),
            flags(""),
        ] {
            assert_eq!(check.state, State::Ok, "{check}");
        }
    }

    #[test]
    fn each_fault_is_seen_and_says_what_to_do() {
        let change = |edit: fn(&mut Machine)| {
            let mut machine = machine();
            edit(&mut machine);
            machine
        };
        let refused = Cache {
            folder: "/c".into(),
            size: 5,
            refused: Some("read-only".into()),
        };
        let faults = [
            (
                cores(&change(|m| m.quota = Some(1.5))),
                false,
                "raise the cpu limit to 4",
            ),
            (
                memory(&change(|m| m.memory = Some((8 << 30, 100 << 20)))),
                true,
                "end other programs",
            ),
            (
                memory(&change(|m| m.memory_limit = Some((1 << 30, 600 << 20)))),
                false,
                "end other programs",
            ),
            (memory(&change(|m| m.memory = None)), false, "/proc"),
            (disk(Path::new("/x"), Some(MIB)), true, "free some space"),
            (
                disk(Path::new("/x"), Some(1 << 30)),
                false,
                "free some space",
            ),
            (disk(Path::new("/x"), None), false, "exists"),
            (flags("--xla_foo"), false, "unset XLA_FLAGS"),
            (cache(None), true, "PHALANX_CACHE_DIR"),
            (cache(Some(&refused)), true, "PHALANX_CACHE_DIR"),
        ];
        for (check, fails, next) in faults {
            assert_ne!(check.state, State::Ok, "{check}");
            assert_eq!(check.is_failure(), fails, "{check}");
            assert!(check.to_string().contains(next), "{check}");
        }
    }

    #[test]
    fn variables_are_told_without_secrets() {
        let set = [
            ("WORLD_SIZE", "2"),
            ("RANK", "1"),
            ("MASTER_ADDR", "one"),
            ("PHALANX_TOKEN", "hunter2"),
            ("PHALANX_KERNELS", "off"),
            ("PHALANX_RENDEZVOUS", "etcd://me:hunter2@node1:2379"),
            ("HOME", "/root"),
        ];
        let told = explain(&set.into_iter().collect());
        let all = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = |check: Check| check.found;
        let lines: Vec<String> = variables(&told, all.into_iter())
            .into_iter()
            .map(found)
            .collect();
        let expected = [
            "MASTER_ADDR=one",
            "PHALANX_KERNELS=off",
            "PHALANX_RENDEZVOUS is set",
            "PHALANX_TOKEN is set",
            "RANK=1",
            "WORLD_SIZE=2",
        ];
        assert_eq!(lines, expected);
        let workers = [("WORLD_SIZE", "2"), ("RANK", "1"), ("MASTER_ADDR", "one")];
        assert!(
            worker(&explain(&workers.into_iter().collect()))
                .to_string()
                .starts_with("ok    worker      worker 1 of 2")
        );
        assert!(!format!("{told}{}", worker(&told)).contains("hunter2"));
        assert_eq!(
            worker(&explain(&Variables::default())).found,
            "the only one"
        );
        let wrong = explain(&[("TF_CONFIG", "{")].into_iter().collect());
        assert!(worker(&wrong).is_failure());
    }

    #[test]
    fn a_line_is_an_object_too() {
        let fault = Check::warn("disk", "full", "free some");
        let expected = json!({"event": "check", "name": "disk", "state": "warn", "found": "full", "next": "free some"});
        assert_eq!(fault.to_json(), expected);
        assert_eq!(Check::ok("disk", "free").to_json()["next"], Value::Null);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_processor_without_avx2_is_slow() {
        let machine = Machine {
            features: Vec::new(),
            ..machine()
        };
        assert!(matches!(processor(&machine).state, State::Warn(_)));
    }
}
