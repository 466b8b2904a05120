//! Running a command with its output in a file and a limit on its time.

use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);

/// Runs a command to its end; what it wrote to stdout and stderr, in order.
///
/// The error of a command that fails, or is ended for taking longer than `limit`, says so and holds what it wrote.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<String, String> {
    let shown = shown(command);
    let told = |what: &str, error: std::io::Error| format!("cannot {what} {shown}: {error}");
    let (stdout, stderr) = open(log).map_err(|error| told("keep the output of", error))?;
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut child = command.spawn().map_err(|error| told("start", error))?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| told("wait for", error))? {
            Some(status) => break Some(status),
            None if start.elapsed() > limit => break None,
            None => sleep(POLL),
        }
    };
    if status.is_none() {
        child
            .kill()
            .and_then(|()| child.wait())
            .map_err(|error| told("end", error))?;
    }
    let output = std::fs::read(log).map_err(|error| told("read the output of", error))?;
    let output = String::from_utf8_lossy(&output).into_owned();
    match status {
        Some(status) if status.success() => Ok(output),
        status => Err(format!("{output}\n{shown}: {}", ending(status, limit))),
    }
}

fn ending(status: Option<ExitStatus>, limit: Duration) -> String {
    match status {
        Some(status) => status.to_string(),
        None => format!("ended after {} s, its limit", limit.as_secs()),
    }
}

fn open(log: &Path) -> std::io::Result<(File, File)> {
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = File::create(log)?;
    Ok((file.try_clone()?, file))
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String, String> {
        let name = format!("xtask-process-{}-{}.log", std::process::id(), script.len());
        let log = std::env::temp_dir().join(name);
        let ran = run(Command::new("sh").args(["-c", script]), &log, limit);
        std::fs::remove_file(&log).unwrap();
        ran
    }

    #[test]
    fn output_status_and_limit_are_told() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo a; echo b >&2", long).unwrap(), "a\nb\n");
        let failed = shell("echo reason; exit 3", long).unwrap_err();
        assert!(
            failed.contains("reason") && failed.contains("exit status: 3"),
            "{failed}"
        );
        let late = shell("exec sleep 60", Duration::from_millis(50)).unwrap_err();
        assert!(late.contains("its limit"), "{late}");
        let absent = run(
            &mut Command::new("/nowhere/x"),
            &std::env::temp_dir().join("x.log"),
            long,
        );
        assert!(absent.unwrap_err().contains("cannot start /nowhere/x"));
    }
}
