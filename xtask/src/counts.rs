//! The check of the instructions that eight kernels of ours take, which other work on the machine does not change: valgrind counts them, with
//! AVX2 whatever the processor has. What still differs between processors and compilers is why counts are kept for each pair of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::kernel_tests;
use crate::process::run;
use crate::workspace::Workspace;

const EXPECTED: &str = "crates/kernels/counts.json";
/// A kernel may take this part more.
const SLACK: f64 = 0.15;
/// It takes seconds; the machine may be busy.
const COUNT_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Renews what is expected, as of other tests.
const UPDATE: &str = "PHALANX_UPDATE_EXPECTED";
/// The test that runs the kernels, and how it names one.
const TEST: &str = "counts::kernels_run_between_the_marks";
const COUNTED: &str = "counted: ";

/// Counts by the name of a kernel.
type Counts = Vec<(String, u64)>;

/// Counts the instructions of the kernels and compares them with those in `crates/kernels/counts.json`.
pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    if let Some(why) = why_not() {
        return Ok(format!("skipped: {why}"));
    }
    let key = key();
    let path = workspace.root.join(EXPECTED);
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("cannot read {EXPECTED}: {error}"))?;
    let mut expected: Map<String, Value> =
        serde_json::from_str(&text).map_err(|error| format!("cannot read {EXPECTED}: {error}"))?;
    let count = || count(workspace, &test_program(workspace)?);
    if std::env::var_os(UPDATE).is_some() {
        expected.insert(key, Value::Object(json(&count()?)));
        let written = serde_json::to_string_pretty(&expected).unwrap_or_default();
        std::fs::write(&path, format!("{written}\n"))
            .map_err(|error| format!("cannot write {EXPECTED}: {error}"))?;
        return Ok(format!("{EXPECTED} was written"));
    }
    match expected.get(&key).and_then(Value::as_object) {
        Some(expected) => compare(&count()?, expected),
        None => Ok(format!(
            "skipped: {EXPECTED} has no counts of {key}; add them: {UPDATE}=1 cargo xtask check counts"
        )),
    }
}

/// What this machine lacks.
fn why_not() -> Option<&'static str> {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !cfg!(target_arch = "x86_64") || !flags.contains(" avx2 ") || !flags.contains(" fma ") {
        return Some("this processor has no AVX2 with FMA, whose instructions are counted");
    }
    let version = Command::new("valgrind").arg("--version").output();
    match version.is_ok_and(|output| output.status.success()) {
        true => None,
        false => Some("valgrind, which counts, is not installed"),
    }
}

/// The processor's family and the compiler, as far as counts depend on them.
fn key() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or("unknown", |(_, value)| value.trim())
    };
    let (vendor, family) = (field("vendor_id"), field("cpu family"));
    let compiler = Command::new("rustc").arg("--version").output();
    let compiler = compiler.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let compiler = compiler.unwrap_or_default();
    let version = compiler.split_whitespace().nth(1).unwrap_or("unknown");
    format!("{vendor} family {family}, rustc {version}")
}

/// Builds the unit tests of the kernels; where they are.
fn test_program(workspace: &Workspace) -> Result<PathBuf, String> {
    let mut programs = kernel_tests::build(workspace)?.into_iter();
    let unit_tests = programs.find(|program| program.name == kernel_tests::UNIT_TESTS);
    unit_tests
        .map(|program| program.path)
        .ok_or_else(|| "found no unit tests of the kernels".to_owned())
}

/// Instructions of each kernel, in the order of the test.
fn count(workspace: &Workspace, program: &Path) -> Result<Counts, String> {
    let folder = workspace.root.join("target/xtask/counts");
    let cannot = |error| format!("cannot make {} anew: {error}", folder.display());
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(cannot(error)),
        _ => std::fs::create_dir_all(&folder).map_err(cannot)?,
    }
    let profile = folder.join("profile");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--demangle=no"]);
    valgrind.args([
        "--dump-before=*counted_from_here*",
        "--dump-before=*counted_to_here*",
    ]);
    valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
    valgrind
        .arg(program)
        .args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
    let output = run(&mut valgrind, &workspace.log("counts"), COUNT_LIMIT)?;
    let names = output
        .lines()
        .filter_map(|line| Some(line.split_once(COUNTED)?.1.trim()));
    let one = |(index, name): (usize, &str)| {
        // Every other profile is of what came before a run.
        let count = total(&profile.with_extension((2 * index + 2).to_string()))?;
        Ok((name.to_owned(), count))
    };
    names.enumerate().map(one).collect()
}

/// The instructions in a profile of callgrind.
fn total(path: &Path) -> Result<u64, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut totals = text.lines().filter_map(|line| line.strip_prefix("totals:"));
    let total = totals.next().and_then(|text| text.trim().parse().ok());
    total.ok_or_else(|| format!("found no line of totals in {}", path.display()))
}

fn json(found: &[(String, u64)]) -> Map<String, Value> {
    let entries = found.iter();
    entries
        .map(|(name, count)| (name.clone(), Value::from(*count)))
        .collect()
}

/// A remark where all are as expected or less; else what takes more.
fn compare(found: &[(String, u64)], expected: &Map<String, Value>) -> Result<String, String> {
    let (mut problems, mut fewer) = (Vec::new(), Vec::new());
    for (name, count) in found {
        let Some(before) = expected.get(name).and_then(Value::as_u64) else {
            problems.push(format!("{name}: {EXPECTED} has no count of it"));
            continue;
        };
        let ratio = *count as f64 / before as f64;
        if ratio > 1.0 + SLACK {
            problems.push(format!(
                "{name}: {count} instructions, expected {before} or less: {ratio:.2}x"
            ));
        } else if ratio < 1.0 - SLACK {
            fewer.push(name.as_str());
        }
    }
    let known = |name: &String| found.iter().any(|(found, _)| found == name);
    let gone = expected.keys().filter(|name| !known(name));
    problems.extend(gone.map(|name| format!("{name}: no kernel of this name was run")));
    let renew = format!("{UPDATE}=1 cargo xtask check counts");
    if !problems.is_empty() {
        return Err(format!(
            "{}\nWhere that is meant, renew the counts: {renew}",
            problems.join("\n")
        ));
    }
    match fewer.is_empty() {
        true => Ok(format!("{} kernels", found.len())),
        false => Ok(format!(
            "{} take fewer instructions; renew: {renew}",
            fewer.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(product: u64, pooling: u64) -> Counts {
        vec![("product".into(), product), ("pooling".into(), pooling)]
    }

    #[test]
    fn more_than_the_slack_fails() {
        let expected = json(&counts(1000, 1000));
        assert_eq!(compare(&counts(1150, 850), &expected).unwrap(), "2 kernels");
        let more = compare(&counts(1151, 1000), &expected).unwrap_err();
        assert!(
            more.starts_with("product: 1151 instructions, expected 1000 or less: 1.15x\n"),
            "{more}"
        );
        let fewer = compare(&counts(1000, 849), &expected).unwrap();
        assert!(fewer.starts_with("pooling take fewer"), "{fewer}");
        let zero = compare(&counts(1, 1), &json(&counts(0, 1))).unwrap_err();
        assert!(zero.contains("infx"), "{zero}");
    }

    #[test]
    fn both_sides_have_the_same_kernels() {
        let found = &counts(1, 1)[..1];
        let gone = compare(found, &json(&counts(1, 1))).unwrap_err();
        assert!(gone.contains("pooling: no kernel"), "{gone}");
        let unknown = compare(&counts(1, 1), &json(found)).unwrap_err();
        assert!(
            unknown.contains(&format!("pooling: {EXPECTED} has no count")),
            "{unknown}"
        );
    }
}
