//! Shares of a processor that processes are held to, where this system lets them be set: control groups of Linux, version 1 or 2.

use std::io;
use std::path::{Path, PathBuf};

/// How often a share is given anew, in microseconds.
const PERIOD: u64 = 100_000;

/// A group of processes that have a share of a processor together; gone when this is dropped and they have ended.
pub(crate) struct Quota(PathBuf);

impl Quota {
    /// A group with this percentage of a processor.
    ///
    /// # Errors
    /// There are no control groups for processors, or this process may make none.
    pub(crate) fn new(name: &str, percent: f64) -> io::Result<Self> {
        let share = (percent / 100.0 * PERIOD as f64).max(1000.0) as u64;
        let (first, second) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        if first.is_dir() {
            let group = Self::made(first.join(name))?;
            group.set("cpu.cfs_period_us", &PERIOD.to_string())?;
            group.set("cpu.cfs_quota_us", &share.to_string())?;
            return Ok(group);
        }
        // Fails where it is set already or by others; then the last line says so.
        let _ = std::fs::write(second.join("cgroup.subtree_control"), "+cpu");
        let group = Self::made(second.join(name))?;
        group.set("cpu.max", &format!("{share} {PERIOD}"))?;
        Ok(group)
    }

    fn made(folder: PathBuf) -> io::Result<Self> {
        std::fs::create_dir(&folder)?;
        Ok(Self(folder))
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        std::fs::write(self.0.join(file), value)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Puts this process with all its threads into the group of a folder.
    ///
    /// # Errors
    /// There is no such group.
    pub(crate) fn join(folder: &Path) -> io::Result<()> {
        let own = std::process::id().to_string();
        std::fs::write(folder.join("cgroup.procs"), own)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // What is left is an empty group, which does nothing.
        let _ = std::fs::remove_dir(&self.0);
    }
}
