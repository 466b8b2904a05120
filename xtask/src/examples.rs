//! The check of the examples: each is built, and runs for a few steps in an empty folder.
//!
//! Every `examples/*.rs` must be an example target of a package, and every example target is run with
//! `PHALANX_EXAMPLE_STEPS` set, which each example honours: one epoch of that many steps. Every `examples/*.yaml` is
//! given to `phalanx train` with the same limits as options, after the `phalanx data` commands that its head tells the
//! reader to run first.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::built;
use crate::process::run;
use crate::source::words;
use crate::workspace::Workspace;

/// How an example learns that it is to run for a few steps.
const STEPS_VARIABLE: &str = "PHALANX_EXAMPLE_STEPS";
const STEPS: &str = "3";
/// Many times what a first compilation by XLA and the download of its plugin take, since tests may have the processors meanwhile.
const RUN_LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    // All examples, and the program that takes training files.
    let arguments = ["build", "--examples", "--bin", "phalanx"];
    let built = built::programs(workspace, "examples", &arguments)?;
    let mut problems = undeclared(workspace)?;
    for path in files(workspace, "rs")? {
        let name = workspace.relative(&path).display();
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {name}: {error}"))?;
        problems.extend(inner_crates(&text).map(|(line, inner)| {
            format!("{name}:{line}: a program of a reader has no {inner}; name what `phalanx` has")
        }));
    }
    let mut runs: Vec<Run> = built
        .iter()
        .filter(|program| program.name != "phalanx")
        .map(|program| program_run(&program.name, &program.path))
        .collect();
    if let Some(program) = built.iter().find(|program| program.name == "phalanx") {
        for path in files(workspace, "yaml")? {
            runs.push(file_run(workspace, &program.path, &path)?);
        }
    }
    for run in &mut runs {
        if let Err(report) = run_in_own_folder(workspace, run) {
            problems.push(format!("{}: {report}", run.name));
        }
    }
    if problems.is_empty() {
        Ok(format!("{} examples", runs.len()))
    } else {
        Err(problems.join("\n"))
    }
}

/// What is run for one example, one command after the other.
struct Run {
    name: String,
    commands: Vec<Command>,
}

fn program_run(name: &str, path: &Path) -> Run {
    let mut command = Command::new(path);
    command.env(STEPS_VARIABLE, STEPS);
    Run {
        name: name.to_owned(),
        commands: vec![command],
    }
}

fn file_run(workspace: &Workspace, program: &Path, path: &Path) -> Result<Run, String> {
    let name = workspace.relative(path).display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut commands: Vec<Command> = preparations(&text)
        .map(|arguments| {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        })
        .collect();
    let mut train = Command::new(program);
    train
        .args(["train", "--epochs", "1", "--steps-per-epoch", STEPS])
        .args(["--output", "run", "--overwrite"])
        .arg(&name);
    commands.push(train);
    Ok(Run { name, commands })
}

/// The arguments of each `phalanx data` command in the comment that a file begins with.
fn preparations(text: &str) -> impl Iterator<Item = impl Iterator<Item = &str>> {
    text.lines()
        .map_while(|line| line.strip_prefix('#'))
        .filter_map(|line| line.trim().strip_prefix("phalanx "))
        .filter(|command| command.starts_with("data "))
        .map(str::split_whitespace)
}

/// Examples in the folder that no package builds, so that nothing would notice their rot.
fn undeclared(workspace: &Workspace) -> Result<Vec<String>, String> {
    let declared: Vec<&Path> = workspace
        .ours()
        .flat_map(|package| &package.targets)
        .filter(|target| target.kind.iter().any(|kind| kind == "example"))
        .map(|target| target.src_path.as_path())
        .collect();
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let declared: Vec<PathBuf> = declared.into_iter().map(canonical).collect();
    let undeclared = files(workspace, "rs")?
        .into_iter()
        .filter(|path| !declared.contains(&canonical(path)));
    Ok(undeclared
        .map(|path| {
            let path = workspace.relative(&path).display().to_string();
            format!("{path}: no package builds it; add an [[example]] with path = \"../../{path}\" to crates/phalanx/Cargo.toml")
        })
        .collect())
}

/// The crates behind `phalanx` that a program names, with their lines: one that depends on `phalanx` alone cannot.
fn inner_crates(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        let inner = words(line).filter(|word| word.starts_with("phalanx_"));
        inner.map(move |word| (index + 1, word))
    })
}

/// The files of `examples/` with an extension, in order; none if there is no such folder.
fn files(workspace: &Workspace, extension: &str) -> Result<Vec<PathBuf>, String> {
    let folder = workspace.root.join("examples");
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(&folder)
        .map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    paths.sort();
    Ok(paths)
}

/// Runs an example where `examples` and `crates` are as in the repository and all else is empty.
fn run_in_own_folder(workspace: &Workspace, example: &mut Run) -> Result<(), String> {
    let name = example.name.replace(['/', '.'], "-");
    let folder = workspace.root.join("target/xtask/examples").join(&name);
    make_folder(workspace, &folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let log = workspace.log(&format!("example-{name}"));
    for command in &mut example.commands {
        run(command.current_dir(&folder), &log, RUN_LIMIT)?;
    }
    Ok(())
}

fn make_folder(workspace: &Workspace, folder: &Path) -> std::io::Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    // Files are copied, for what they name is looked for beside them.
    let examples = folder.join("examples");
    std::fs::create_dir_all(&examples)?;
    for entry in std::fs::read_dir(workspace.root.join("examples"))? {
        let entry = entry?;
        std::fs::copy(entry.path(), examples.join(entry.file_name()))?;
    }
    std::os::unix::fs::symlink(workspace.root.join("crates"), folder.join("crates"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_crates_are_found() {
        let text = "use phalanx::prelude::*;\nuse phalanx_graph::{DType, Tensor};\n";
        assert_eq!(
            inner_crates(text).collect::<Vec<_>>(),
            [(2, "phalanx_graph")]
        );
        assert_eq!(
            inner_crates("//! `phalanx launch`, PHALANX_RANK").next(),
            None
        );
    }
}
