//! The check of dependencies: `cargo deny` keeps the rules of `deny.toml`, on machines where it is installed.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::run;
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(5 * 60);

/// Advisories are left out: they need a network, and change without a commit of ours.
const RULES: [&str; 3] = ["bans", "licenses", "sources"];

pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    if !is_installed() {
        return Ok("skipped: cargo-deny is not installed".to_owned());
    }
    let mut command = workspace.cargo();
    command.args(["deny", "--offline", "check"]).args(RULES);
    run(&mut command, &workspace.log("deny"), LIMIT).map(|_| String::new())
}

fn is_installed() -> bool {
    let mut version = Command::new("cargo");
    version.args(["deny", "--version"]);
    version.stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}
