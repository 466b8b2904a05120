//! Hosts in network namespaces of this machine, for tests: what `netns-hosts` beside this file makes.

use std::process::Command;

const TOOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/tools/netns-hosts");

/// What the tool and its programs say where this user or this kernel does not let hosts be made.
const MISSING: [&str; 7] = [
    "needs root",
    "is not installed",
    "Operation not permitted",
    "Permission denied",
    "Read-only file system",
    "not supported",
    "No such file or directory",
];

/// Hosts h1, h2 .. with addresses of their own, which end with this, and whatever runs on them.
pub(crate) struct Hosts(String);

impl Hosts {
    /// So many hosts; `kind` is a letter that tells the hosts of one test from another's. None where this user may not make them.
    pub(crate) fn start(kind: char, count: usize) -> Option<Self> {
        let hosts = Self(format!("{kind}{}", std::process::id()));
        let mut command = Command::new(TOOL);
        let started = command.args(["start", &hosts.0, &count.to_string()]);
        let started = started.output().unwrap();
        if !started.status.success() {
            let why = String::from_utf8_lossy(&started.stderr);
            assert!(MISSING.iter().any(|one| why.contains(one)), "{why}");
            eprintln!("skipped: {why}; it takes root and Debian's packages iproute2 and nftables");
            return None;
        }
        Some(hosts)
    }

    /// Does something to the network: a verb of the tool and its words.
    pub(crate) fn set(&self, words: &[&str]) {
        assert!(self.try_set(words), "{words:?}");
    }

    /// Does something to the network that not every kernel can do; whether this one can.
    pub(crate) fn try_set(&self, words: &[&str]) -> bool {
        let mut command = Command::new(TOOL);
        let done = command.arg(words[0]).arg(&self.0).args(&words[1..]);
        let done = done.output().unwrap();
        let why = String::from_utf8_lossy(&done.stderr);
        if !done.status.success() {
            assert!(MISSING.iter().any(|one| why.contains(one)), "{why}");
            eprintln!("skipped: {words:?}: {why}");
        }
        done.status.success()
    }

    /// The words to put before a command so that it runs on a host, counted from 1.
    pub(crate) fn on(&self, host: usize) -> Vec<String> {
        vec![
            TOOL.to_owned(),
            "exec".to_owned(),
            self.0.clone(),
            host.to_string(),
        ]
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Where they were never made there is nothing to end.
        let _ = Command::new(TOOL).args(["stop", &self.0]).output();
    }
}
