//! `cargo xtask bench models`: training steps of whole models, ours beside other frameworks'.
//!
//! All programs of a work are alive at once and take a few steps by turns, round after round, so that a machine that grows
//! slow is slow for all. A program that takes too long for a step is left out, with a line that says how long it had.

use super::bench_run::BenchRun;
use super::peer::{self, Peer};
use super::score::{Score, table};
use super::{build, machine, parse_options, write};
use crate::workspace::Workspace;

/// What is timed.
struct ModelCase {
    name: &'static str,
    batch: &'static str,
    shown: &'static str,
    /// Steps of a turn.
    steps: usize,
    /// Other ways to run a framework: its name, and the variant's.
    variants: &'static [(&'static str, &'static str)],
}

/// Training steps of a recurrent layer over 100 steps, and a dense layer behind it.
const fn recurrent(
    name: &'static str,
    batch: &'static str,
    shown: &'static str,
    steps: usize,
) -> ModelCase {
    ModelCase {
        name,
        batch,
        shown,
        steps,
        variants: &[],
    }
}

const WORKS: [ModelCase; 12] = [
    ModelCase {
        name: "resnet50",
        batch: "16",
        shown: "ResNet-50, 224x224, batch 16, f32",
        steps: 1,
        variants: &[],
    },
    ModelCase {
        name: "resnet50_bf16",
        batch: "16",
        shown: "ResNet-50, 224x224, batch 16, bf16",
        steps: 1,
        variants: &[],
    },
    ModelCase {
        name: "mobilenet_v2",
        batch: "16",
        shown: "MobileNetV2, 224x224, batch 16, f32",
        steps: 1,
        variants: &[],
    },
    ModelCase {
        name: "cnn",
        batch: "128",
        shown: "CNN, 28x28, batch 128, f32",
        steps: 8,
        variants: &[],
    },
    ModelCase {
        name: "transformer",
        batch: "16",
        shown: "Transformer encoder (4 layers, d 256), 128 tokens, batch 16, vocabulary 8000, f32",
        steps: 3,
        variants: &[("torch", "compiled"), ("tf", "xla")],
    },
    recurrent("lstm_128", "32", "LSTM 128, 100 steps, batch 32, f32", 8),
    recurrent("lstm_128", "256", "LSTM 128, 100 steps, batch 256, f32", 3),
    recurrent("lstm_256", "32", "LSTM 256, 100 steps, batch 32, f32", 4),
    recurrent("lstm_256", "256", "LSTM 256, 100 steps, batch 256, f32", 2),
    recurrent("lstm_512", "32", "LSTM 512, 100 steps, batch 32, f32", 2),
    recurrent("lstm_512", "256", "LSTM 512, 100 steps, batch 256, f32", 1),
    recurrent("gru_128", "32", "GRU 128, 100 steps, batch 32, f32", 8),
];

/// Times ours and what the Pythons have; prints a table, and keeps it in `bench/results` if asked to.
pub(crate) fn models(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    let works = chosen(&options.only)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let peers = peer::all(&workspace, "models", &options.pythons)?;
    let rounds = if options.quick { 2 } else { 5 };
    let mut text = String::new();
    for work in works {
        let scores = time_all(&workspace, work, &peers, rounds);
        let found = table(work.shown, &scores);
        println!("{found}");
        text += &format!("{found}\n");
    }
    if options.write {
        let what = "Written by `cargo xtask bench models --write`";
        let machine = machine::description();
        let page = format!(
            "# Whole models\n\n{what}: {machine}.\nMedians of {rounds} rounds, in which the frameworks take turns; a step \
             ends when its loss is on the host.\n\n{text}"
        );
        write(&workspace, "models.md", page.trim_end())?;
    }
    Ok(())
}

fn chosen(only: &[String]) -> Result<Vec<&'static ModelCase>, String> {
    let names = || WORKS.map(|work| work.name).join(", ");
    if let Some(unknown) = only
        .iter()
        .find(|name| WORKS.iter().all(|work| work.name != **name))
    {
        return Err(format!("found no work {unknown:?}, expected {}", names()));
    }
    let is_chosen =
        |work: &&ModelCase| only.is_empty() || only.iter().any(|name| name == work.name);
    Ok(WORKS.iter().filter(is_chosen).collect())
}

/// All rounds of a work.
fn time_all(workspace: &Workspace, work: &ModelCase, peers: &[Peer], rounds: usize) -> Vec<Score> {
    let mut runs = Vec::new();
    let run = |peer, variant: &str| {
        let more = ["--variant", variant];
        let more = if variant.is_empty() {
            &[][..]
        } else {
            &more[..]
        };
        let arguments = [&[work.name, work.batch], more].concat();
        BenchRun::start(workspace, peer, &arguments, variant)
    };
    for peer in peers {
        runs.push(run(peer, ""));
        let variants = work.variants.iter();
        for (_, variant) in variants.filter(|(name, _)| *name == peer.name) {
            runs.push(run(peer, variant));
        }
    }
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: {}", work.shown);
        for run in &mut runs {
            run.time_steps(work.steps);
        }
    }
    runs.into_iter().map(|run| run.score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), WORKS.len());
        assert_eq!(chosen(&["cnn".to_owned()]).unwrap()[0].name, "cnn");
        let unknown = chosen(&["vgg".to_owned()]).err().unwrap();
        assert!(unknown.contains("\"vgg\", expected resnet50"), "{unknown}");
    }
}
