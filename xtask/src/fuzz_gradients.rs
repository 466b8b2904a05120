//! `cargo xtask fuzz-gradients`: the search of `crates/phalanx/tests/gradient_search` for as long as asked, and then the search of
//! `crates/phalanx/tests/loss_search` where a Python with Keras is given.

use crate::workspace::Workspace;

/// What was asked for, by the variables that the search reads.
type Variables = Vec<(&'static str, String)>;

/// Runs the searches, whose output goes where ours does.
pub(crate) fn command(arguments: &[&str]) -> Result<(), String> {
    let variables = parse(arguments)?;
    let workspace = Workspace::load()?;
    let mut command = workspace.cargo();
    command.envs(variables).args([
        "test",
        "--locked",
        "--quiet",
        "--package",
        "phalanx",
        "--test",
        "gradient_search",
        "--test",
        "loss_search",
        "search::search",
        "--",
        "--exact",
        "--nocapture",
    ]);
    let status = command.status();
    let status = status.map_err(|error| format!("cannot start cargo: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("the search failed: {status}")),
    }
}

fn parse(arguments: &[&str]) -> Result<Variables, String> {
    let mut variables = vec![("PHALANX_FUZZ_MINUTES", "2".to_owned())];
    let mut words = arguments.iter();
    while let Some(&word) = words.next() {
        let (variable, what) = match word {
            "--seed" => ("PHALANX_FUZZ_SEED", "a whole number"),
            "--minutes" => ("PHALANX_FUZZ_MINUTES", "a whole number"),
            "--python" => ("PHALANX_FUZZ_PYTHON", "the path of a Python with jax"),
            "--keras" => ("PHALANX_FUZZ_KERAS", "the path of a Python with keras"),
            word => {
                return Err(format!(
                    "found {word:?}, expected --seed S, --minutes M, --python PATH or --keras PATH"
                ));
            }
        };
        let value = words.next().ok_or(format!("{word} needs {what}"))?;
        let is_path = ["--python", "--keras"].contains(&word);
        if !is_path && value.parse::<u64>().is_err() {
            return Err(format!("{word} needs {what}, got {value:?}"));
        }
        variables.retain(|(name, _)| *name != variable);
        variables.push((variable, (*value).to_owned()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let two_minutes = ("PHALANX_FUZZ_MINUTES", "2".to_owned());
        assert_eq!(parse(&[]).unwrap(), [two_minutes]);
        let found = parse(&["--seed", "7", "--minutes", "120"]).unwrap();
        let minutes = ("PHALANX_FUZZ_MINUTES", "120".to_owned());
        assert_eq!(found, [("PHALANX_FUZZ_SEED", "7".to_owned()), minutes]);
        let found = parse(&["--keras", "bin/python"]).unwrap();
        assert_eq!(found[1], ("PHALANX_FUZZ_KERAS", "bin/python".to_owned()));
        assert!(parse(&["--seed", "x"]).unwrap_err().contains("got \"x\""));
        assert!(parse(&["--minutes"]).unwrap_err().contains("needs a whole"));
        assert!(parse(&["--fast"]).unwrap_err().contains("--minutes M"));
    }
}
