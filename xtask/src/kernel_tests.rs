//! The kernels' test programs, as the build of the whole workspace's tests leaves them: built alone, the crate would be built anew, with
//! fewer features. And the check that runs them without AVX-512.

use std::process::Command;
use std::time::Duration;

use crate::built::{self, Program};
use crate::process::run;
use crate::workspace::Workspace;

const RUN_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs all tests of the kernels, those that compare them with plain loops among them, as if there were no AVX-512.
pub(crate) fn without_avx512(workspace: &Workspace) -> Result<String, String> {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !flags.contains(" avx512f ") {
        return Ok(
            "skipped: this processor has no AVX-512, and the tests have run without it".to_owned(),
        );
    }
    for program in build(workspace)? {
        let mut command = Command::new(program.path);
        command.arg("--quiet").env("PHALANX_TEST_AVX2_ONLY", "1");
        command.current_dir(workspace.root.join(FOLDER));
        run(
            &mut command,
            &workspace.log(&format!("avx2-{}", program.name)),
            RUN_LIMIT,
        )?;
    }
    Ok(String::new())
}

/// Where the crate is in the workspace.
const FOLDER: &str = "crates/kernels";

/// Builds the tests of the workspace; the kernels' programs, of which [`UNIT_TESTS`] is one.
pub(crate) fn build(workspace: &Workspace) -> Result<Vec<Program>, String> {
    let mut programs = built::programs(workspace, "kernel-tests", &["test", "--no-run"])?;
    let manifest = workspace.root.join(FOLDER).join("Cargo.toml");
    programs.retain(|program| program.manifest == manifest);
    match programs.iter().any(|program| program.name == UNIT_TESTS) {
        true => Ok(programs),
        false => Err("cargo named no program of the kernels' unit tests".to_owned()),
    }
}

/// What cargo calls the crate's unit tests.
pub(crate) const UNIT_TESTS: &str = "phalanx_kernels";
