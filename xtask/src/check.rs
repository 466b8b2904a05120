//! `cargo xtask check`: what every change must pass, one line a check.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::run;
use crate::workspace::Workspace;
use crate::{
    architecture, cloud, counts, deny, directions, examples, fences, kernel_tests, language,
    public_types, sizes,
};

/// No build or test run of the workspace takes longer than this on two processors.
const CARGO_LIMIT: Duration = Duration::from_secs(45 * 60);

/// One check: its name, what it asserts, and how. `Ok` holds a remark, `Err` what is wrong and what to do.
struct Check {
    name: &'static str,
    asserts: &'static str,
    run: fn(&Workspace) -> Result<String, String>,
}

/// Quick checks first. `test` comes before those that use what it built.
const CHECKS: [Check; 17] = [
    Check {
        name: "format",
        asserts: "the files are as cargo fmt --all writes them",
        run: |workspace| {
            cargo(
                workspace,
                "format",
                &["fmt", "--all", "--check", "--", "-l"],
            )
        },
    },
    Check {
        name: "directions",
        asserts: "crates and modules use only what docs/ARCHITECTURE.md lets them use",
        run: directions::check,
    },
    Check {
        name: "unsafe",
        asserts: "unsafe code stays inside its fence",
        run: fences::check,
    },
    Check {
        name: "architecture",
        asserts: "docs/ARCHITECTURE.md names what exists, and every crate and module directory",
        run: architecture::check,
    },
    Check {
        name: "sizes",
        asserts: "no function over 60 lines and no file over 600 but those listed with a reason",
        run: sizes::check,
    },
    Check {
        name: "language",
        asserts: "no type name has two meanings in a crate; documentation names numbers and nouns",
        run: language::check,
    },
    Check {
        name: "public-types",
        asserts: "docs/public-types.md lists the public types",
        run: public_types::check,
    },
    Check {
        name: "deny",
        asserts: "licences, banned and duplicate crates and sources are as deny.toml says",
        run: deny::check,
    },
    Check {
        name: "clippy",
        asserts: "no warning in any target",
        run: |workspace| {
            let arguments = [
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--quiet",
            ];
            cargo(
                workspace,
                "clippy",
                &[&arguments[..], &["--", "-D", "warnings"]].concat(),
            )
        },
    },
    Check {
        name: "aarch64",
        asserts: "the command compiles for aarch64, where rustup has that target",
        run: other_architecture,
    },
    Check {
        name: "test",
        asserts: "unit, golden, end-to-end and documentation tests pass",
        run: |workspace| {
            cargo(
                workspace,
                "test",
                &["test", "--workspace", "--locked", "--quiet"],
            )
        },
    },
    Check {
        name: "tour",
        asserts: "a training goes the way that docs/ARCHITECTURE.md shows, by stacks of a run",
        run: |workspace| {
            // With the whole workspace, as `test` has built it: alone the package would be built anew, with fewer features.
            let arguments = ["test", "--workspace", "--test", "tour", "--locked"];
            cargo(workspace, "tour", &[&arguments[..], &["--quiet"]].concat())
        },
    },
    Check {
        name: "avx2",
        asserts: "kernels are right without AVX-512 too, where the processor has it",
        run: kernel_tests::without_avx512,
    },
    Check {
        name: "counts",
        asserts: "eight kernels take at most 15 % more instructions than crates/kernels/counts.json says, where valgrind is",
        run: counts::check,
    },
    Check {
        name: "doc",
        asserts: "the documentation builds without a warning",
        run: |workspace| {
            let mut command = workspace.cargo();
            command.args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"]);
            command.env("RUSTDOCFLAGS", "-D warnings");
            run(&mut command, &workspace.log("doc"), CARGO_LIMIT).map(|_| String::new())
        },
    },
    Check {
        name: "cloud",
        asserts: "checkpoints in buckets are whole, on servers of S3's and Google's protocols",
        run: cloud::check,
    },
    Check {
        name: "examples",
        asserts: "every example runs for a few steps",
        run: examples::check,
    },
];

/// Compiles the `phalanx` command for another architecture, to see that no code is for x86-64 alone.
fn other_architecture(workspace: &Workspace) -> Result<String, String> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let installed = Command::new("rustup")
        .args(["target", "list", "--installed"])
        .output();
    let is_there = installed.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .any(|line| line == TARGET)
    });
    if !is_there {
        return Ok(format!(
            "left out: `rustup target add {TARGET}` installs it"
        ));
    }
    let mut command = workspace.cargo();
    command.args([
        "check",
        "--package",
        "phalanx-cli",
        "--locked",
        "--quiet",
        "--target",
        TARGET,
    ]);
    // What there is of C is compiled for this machine, which has no compiler for the other: nothing is linked.
    command.env("CC_aarch64_unknown_linux_gnu", "cc");
    // Warnings that other checks allow are errors here too: what is not used there may be missing.
    command.env("RUSTFLAGS", "-D warnings");
    run(&mut command, &workspace.log("aarch64"), CARGO_LIMIT).map(|_| String::new())
}

/// Runs the checks that the arguments name (all when none is), prints a line each, and the output of those that fail.
pub(crate) fn command(arguments: &[&str]) -> Result<(), String> {
    if arguments == ["--list"] {
        for check in &CHECKS {
            println!("{:<13} {}", check.name, check.asserts);
        }
        return Ok(());
    }
    let chosen = chosen(arguments)?;
    let workspace = Workspace::load()?;
    let failed: Vec<&str> = chosen
        .iter()
        .filter(|check| !passes(check, &workspace))
        .map(|check| check.name)
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} of {} checks failed: {}",
        failed.len(),
        chosen.len(),
        failed.join(", ")
    ))
}

fn chosen(arguments: &[&str]) -> Result<Vec<&'static Check>, String> {
    let (mut named, mut skipped) = (Vec::new(), Vec::new());
    let mut words = arguments.iter();
    while let Some(&word) = words.next() {
        match word {
            "--skip" => skipped.push(find(words.next().copied().unwrap_or_default())?.name),
            name => named.push(find(name)?.name),
        }
    }
    let chosen = CHECKS.iter().filter(|check| {
        !skipped.contains(&check.name) && (named.is_empty() || named.contains(&check.name))
    });
    Ok(chosen.collect())
}

fn find(name: &str) -> Result<&'static Check, String> {
    CHECKS
        .iter()
        .find(|check| check.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
            format!("found no check {name:?}; choose among {}", names.join(", "))
        })
}

/// Runs a check and prints its line: the name while it runs, then seconds and outcome.
fn passes(check: &Check, workspace: &Workspace) -> bool {
    print!("{:<13} ", check.name);
    // The line is for who watches; a closed stdout is no reason to stop checking.
    let _ = std::io::stdout().flush();
    let start = Instant::now();
    let outcome = (check.run)(workspace);
    let seconds = start.elapsed().as_secs_f64();
    match &outcome {
        Ok(remark) => println!("{:<6} {seconds:7.1} s  {remark}", "ok"),
        Err(report) => println!(
            "{:<6} {seconds:7.1} s  not met: {}\n{}\n",
            "FAILED",
            check.asserts,
            indented(report)
        ),
    }
    outcome.is_ok()
}

fn indented(text: &str) -> String {
    let lines: Vec<String> = text
        .trim_end()
        .lines()
        .map(|line| format!("    {line}"))
        .collect();
    lines.join("\n")
}

fn cargo(workspace: &Workspace, name: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = workspace.cargo();
    command.args(arguments);
    run(&mut command, &workspace.log(name), CARGO_LIMIT).map(|_| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(arguments: &[&str]) -> Result<Vec<&'static str>, String> {
        Ok(chosen(arguments)?.iter().map(|check| check.name).collect())
    }

    #[test]
    fn arguments_choose_checks() {
        assert_eq!(names(&[]).unwrap().len(), CHECKS.len());
        assert_eq!(names(&["test", "format"]).unwrap(), ["format", "test"]);
        let all_but_test = names(&["--skip", "test"]).unwrap();
        assert!(!all_but_test.contains(&"test") && all_but_test.len() == CHECKS.len() - 1);
        assert!(
            names(&["tests"])
                .unwrap_err()
                .contains("choose among format")
        );
        assert!(names(&["--skip"]).is_err());
    }
}
