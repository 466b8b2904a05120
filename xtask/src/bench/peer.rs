//! Who is timed: our program, and a script for each framework that a given Python has.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::Workspace;

/// A framework and the modules it needs.
const FRAMEWORKS: [(&str, &[&str]); 3] = [
    ("torch", &["torch", "torchvision"]),
    ("tf", &["tensorflow"]),
    ("jax", &["jax", "flax", "optax"]),
];

/// A program that speaks the protocol of `bench/peers/README.md`.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) script: Option<PathBuf>,
    /// Where ours keeps compiled programs; `None` for the user's own folder.
    pub(super) cache: Option<PathBuf>,
    /// Whether `perf` takes samples: oneDNN then writes in a file where its kernels are.
    pub(super) is_sampled: bool,
}

impl Peer {
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.script);
        if let Some(cache) = &self.cache {
            command.env("PHALANX_CACHE_DIR", cache);
        }
        if self.is_sampled {
            command.env("ONEDNN_JIT_PROFILE", "2");
        }
        command
    }
}

/// Our program of a family such as `single`: `bench-single`.
pub(super) fn ours(workspace: &Workspace, family: &str) -> Peer {
    let program = format!("target/release/bench-{family}");
    Peer {
        name: "phalanx",
        program: workspace.root.join(program),
        script: None,
        cache: None,
        is_sampled: false,
    }
}

/// Ours, then the frameworks in order that have a script, each with the first Python that has it, in a family of programs such as `single`:
/// `bench-single` and `single_torch.py`.
pub(super) fn all(
    workspace: &Workspace,
    family: &str,
    pythons: &[String],
) -> Result<Vec<Peer>, String> {
    let mut peers = vec![ours(workspace, family)];
    let mut modules = Vec::new();
    for python in pythons {
        modules.push((python, installed(python)?));
    }
    for (name, needs) in FRAMEWORKS {
        // Only models need more than the framework.
        let needs = if ["breadth", "checkpoints", "collectives", "embeddings"].contains(&family) {
            &needs[..1]
        } else {
            needs
        };
        let script = format!("bench/peers/{family}_{name}.py");
        let script = workspace.root.join(script);
        if !script.is_file() {
            continue;
        }
        let has_all = |installed: &[String]| {
            needs
                .iter()
                .all(|module| installed.iter().any(|found| found == module))
        };
        match modules.iter().find(|(_, installed)| has_all(installed)) {
            Some((python, _)) => peers.push(Peer {
                name,
                program: PathBuf::from(python),
                script: Some(script),
                cache: None,
                is_sampled: false,
            }),
            None => eprintln!(
                "{name} is left out: no Python given with --python has {}",
                needs.join(", ")
            ),
        }
    }
    Ok(peers)
}

/// Each program as it is, and behind it in the other variants that a list has for its name.
pub(super) fn variants<'p>(
    peers: &'p [Peer],
    others: &'static [(&'static str, &'static str)],
) -> impl Iterator<Item = (&'p Peer, &'static str)> {
    peers.iter().flat_map(move |peer| {
        let others = others.iter().filter(|(name, _)| *name == peer.name);
        let all = std::iter::once("").chain(others.map(|(_, variant)| *variant));
        all.map(move |variant| (peer, variant))
    })
}

/// Which of the frameworks' modules a Python has.
fn installed(python: &str) -> Result<Vec<String>, String> {
    let modules: Vec<&str> = FRAMEWORKS
        .iter()
        .flat_map(|(_, modules)| modules.iter().copied())
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
