//! Who is timed: our program, and a script for each framework that a given Python has.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::Workspace;

/// A framework, the modules it needs, and its script.
const FRAMEWORKS: [(&str, &[&str], &str); 3] = [
    ("torch", &["torch"], "single_torch.py"),
    ("tf", &["tensorflow"], "single_tf.py"),
    ("jax", &["jax", "flax", "optax"], "single_jax.py"),
];

/// A program that speaks the protocol of `bench/peers/README.md`.
pub(super) struct Contestant {
    pub(super) name: &'static str,
    program: PathBuf,
    script: Option<PathBuf>,
}

impl Contestant {
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.script);
        command
    }
}

/// Ours, then the frameworks in order, each with the first Python that has it.
pub(super) fn all(workspace: &Workspace, pythons: &[String]) -> Result<Vec<Contestant>, String> {
    let mut contestants = vec![Contestant {
        name: "phalanx",
        program: workspace.root.join("target/release/bench-single"),
        script: None,
    }];
    let mut modules = Vec::new();
    for python in pythons {
        modules.push((python, installed(python)?));
    }
    for (name, needs, script) in FRAMEWORKS {
        let has_all = |installed: &[String]| {
            needs
                .iter()
                .all(|module| installed.iter().any(|found| found == module))
        };
        match modules.iter().find(|(_, installed)| has_all(installed)) {
            Some((python, _)) => contestants.push(Contestant {
                name,
                program: PathBuf::from(python),
                script: Some(workspace.root.join("bench/peers").join(script)),
            }),
            None => eprintln!(
                "{name} is left out: no Python given with --python has {}",
                needs.join(", ")
            ),
        }
    }
    Ok(contestants)
}

/// Which of the frameworks' modules a Python has.
fn installed(python: &str) -> Result<Vec<String>, String> {
    let modules: Vec<&str> = FRAMEWORKS
        .iter()
        .flat_map(|(_, modules, _)| modules.iter().copied())
        .collect();
    let script = "import importlib.util, sys; print(*[m for m in sys.argv[1:] if importlib.util.find_spec(m)])";
    let output = Command::new(python)
        .args(["-c", script])
        .args(modules)
        .output()
        .map_err(|error| {
            format!("cannot start {python}: {error}; --python needs the path of a Python")
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "{python} did not say which modules it has: {}",
            said.trim()
        ));
    }
    let words = String::from_utf8_lossy(&output.stdout);
    Ok(words.split_whitespace().map(str::to_owned).collect())
}
