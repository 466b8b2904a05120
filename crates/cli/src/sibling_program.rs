//! Commands of another program, found beside this one as cargo finds its own: so that this one builds without their dependencies.

use std::env::consts::EXE_SUFFIX;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Exit, Failure};

/// The commands that `phalanx-jobs` has: `jobs` is its name, `tune` a command of it.
const COMMANDS: [&str; 2] = ["jobs", "tune"];

/// The arguments for `phalanx-jobs`, if `arguments` (the program's name first) are a command of it.
pub(crate) fn arguments(arguments: &[OsString]) -> Option<&[OsString]> {
    let command = arguments.get(1)?.to_str()?;
    COMMANDS.contains(&command).then(|| match command {
        "jobs" => &arguments[2..],
        _ => &arguments[1..],
    })
}

/// Becomes `phalanx-jobs`; returns only if that cannot be.
pub(crate) fn run(arguments: &[OsString]) -> Failure {
    let name = format!("phalanx-jobs{EXE_SUFFIX}");
    let Some(program) = find(&name) else {
        let message = format!(
            "`phalanx jobs` and `phalanx tune` are the program {name}, which is not beside this one"
        );
        let next = "build it with `cargo build --release -p phalanx-jobs`, or install it with `cargo install --path crates/jobs`";
        return Failure::new(Exit::Usage, message).next(next);
    };
    let error = become_it(Command::new(&program).args(arguments));
    Failure::new(
        Exit::NotReady,
        format!("cannot start {}: {error}", program.display()),
    )
}

/// Beside this program, or in PATH.
fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(std::env::split_paths(&path));
    folders
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

#[cfg(unix)]
fn become_it(command: &mut Command) -> std::io::Error {
    use std::os::unix::process::CommandExt;
    command.exec()
}

#[cfg(not(unix))]
fn become_it(command: &mut Command) -> std::io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}
