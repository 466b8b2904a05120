//! The programs that a build by cargo makes, as it names them itself.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::process::run;
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(45 * 60);

/// A program of a build.
pub(crate) struct Program {
    /// The manifest of its package.
    pub(crate) manifest: PathBuf,
    /// Its target.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Runs cargo with these arguments, its output in the log of this name; what it has built. The error of a build that fails is the compiler's.
pub(crate) fn programs(
    workspace: &Workspace,
    log: &str,
    arguments: &[&str],
) -> Result<Vec<Program>, String> {
    let mut command = workspace.cargo();
    command.args(arguments);
    command.args(["--workspace", "--locked", "--quiet"]);
    command.arg("--message-format=json");
    let output = run(&mut command, &workspace.log(log), LIMIT);
    let output = output.map_err(|report| rendered(&report))?;
    let text = |value: &Value| Some(value.as_str()?.to_owned());
    let program = |message: Value| {
        Some(Program {
            manifest: text(&message["manifest_path"])?.into(),
            name: text(&message["target"]["name"])?,
            path: text(&message["executable"])?.into(),
        })
    };
    Ok(messages(&output).filter_map(program).collect())
}

fn messages(output: &str) -> impl Iterator<Item = Value> {
    output
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
}

/// The compiler's messages as it prints them, for a build that failed.
fn rendered(output: &str) -> String {
    let text = |message: Value| Some(message["message"]["rendered"].as_str()?.to_owned());
    let plain = output.lines().filter(|line| !line.starts_with('{'));
    messages(output)
        .filter_map(text)
        .chain(plain.map(|line| format!("{line}\n")))
        .collect()
}
