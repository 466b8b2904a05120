//! `cargo xtask table`: every case of the replica tests in every way, or a tenth of them.

use crate::workspace::Workspace;

/// Runs the tests of the table, whose output goes where ours does.
pub(crate) fn command(arguments: &[&str]) -> Result<(), String> {
    let (name, value) = parse(arguments)?;
    let workspace = Workspace::load()?;
    let mut command = workspace.cargo();
    command.env(name, value).args([
        "test",
        "--locked",
        "--quiet",
        "--package",
        "phalanx",
        "--test",
        "replicas",
        "table::",
    ]);
    let status = command.status();
    let status = status.map_err(|error| format!("cannot start cargo: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("the table failed: {status}")),
    }
}

/// The variable that the tests read, and its value.
fn parse<'a>(arguments: &[&'a str]) -> Result<(&'static str, &'a str), String> {
    match *arguments {
        [] => Ok(("PHALANX_TEST_WHOLE_TABLE", "1")),
        ["--tenth", tenth] if tenth.len() == 1 && tenth.parse::<u8>().is_ok() => {
            Ok(("PHALANX_TEST_TENTH", tenth))
        }
        _ => Err(format!(
            "found {:?}, expected nothing, or --tenth N with N from 0 to 9",
            arguments.join(" ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        assert_eq!(parse(&[]), Ok(("PHALANX_TEST_WHOLE_TABLE", "1")));
        assert_eq!(parse(&["--tenth", "7"]), Ok(("PHALANX_TEST_TENTH", "7")));
        for wrong in [&["--tenth"][..], &["--tenth", "10"], &["--all"]] {
            assert!(parse(wrong).unwrap_err().contains("--tenth N"), "{wrong:?}");
        }
    }
}
