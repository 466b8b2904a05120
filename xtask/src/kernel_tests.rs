//! The kernels' test programs, as the build of the whole workspace's tests leaves them: built alone, the crate would be built anew, with
//! fewer features. And the check that runs them without AVX-512.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::process::run;
use crate::workspace::Workspace;

const BUILD_LIMIT: Duration = Duration::from_secs(45 * 60);
const RUN_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs all tests of the kernels, those that compare them with plain loops among them, as if there were no AVX-512.
pub(crate) fn without_avx512(workspace: &Workspace) -> Result<String, String> {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !flags.contains(" avx512f ") {
        return Ok(
            "skipped: this processor has no AVX-512, and the tests have run without it".to_owned(),
        );
    }
    for (name, program) in build(workspace)? {
        let mut command = Command::new(program);
        command.arg("--quiet").env("PHALANX_TEST_AVX2_ONLY", "1");
        command.current_dir(workspace.root.join(FOLDER));
        run(
            &mut command,
            &workspace.log(&format!("avx2-{name}")),
            RUN_LIMIT,
        )?;
    }
    Ok(String::new())
}

/// Where the crate is in the workspace.
const FOLDER: &str = "crates/kernels";

/// Builds the tests of the workspace; the names and files of the kernels' programs, of which [`UNIT_TESTS`] is one.
pub(crate) fn build(workspace: &Workspace) -> Result<Vec<(String, PathBuf)>, String> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--locked", "--quiet"]);
    command.args(["--no-run", "--message-format=json"]);
    command.current_dir(&workspace.root);
    let output = run(&mut command, &workspace.log("kernel-tests"), BUILD_LIMIT)?;
    let messages = output
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let manifest = workspace.root.join(FOLDER).join("Cargo.toml");
    let programs =
        messages.filter(|message| message["manifest_path"].as_str() == manifest.to_str());
    let programs: Vec<_> = programs
        .filter_map(|message| {
            let program = PathBuf::from(message["executable"].as_str()?);
            Some((message["target"]["name"].as_str()?.to_owned(), program))
        })
        .collect();
    match programs.iter().any(|(name, _)| name == UNIT_TESTS) {
        true => Ok(programs),
        false => Err("cargo named no program of the kernels' unit tests".to_owned()),
    }
}

/// What cargo calls the crate's unit tests.
pub(crate) const UNIT_TESTS: &str = "phalanx_kernels";
