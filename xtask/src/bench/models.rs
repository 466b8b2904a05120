//! `cargo xtask bench models`: training steps, predictions and evaluations of whole models, ours beside other frameworks'.
//!
//! All programs of a work are alive at once and take a few steps by turns, round after round, so that a machine that grows
//! slow is slow for all. A program that takes too long for a step is left out, with a line that says how long it had.

use super::bench_run::BenchRun;
use super::peer::{self, Peer};
use super::score::{Score, table};
use super::table::OURS;
use super::{build, machine, parse_options, write};
use crate::workspace::Workspace;

/// What is timed.
pub(super) struct ModelCase {
    pub(super) name: &'static str,
    pub(super) model: &'static str,
    pub(super) batch: &'static str,
    /// `train`, `predict` or `evaluate`.
    work: &'static str,
    pub(super) shown: &'static str,
    /// Steps of a turn.
    steps: usize,
    /// Other ways to run a framework: its name, and the variant's.
    variants: &'static [Variant],
    /// What `bench all --quick` runs of the peers: those that were first of their framework.
    quick: &'static [Variant],
}

/// A framework, and one of its ways to do the work; the plain way has no name.
type Variant = (&'static str, &'static str);

const ALL: &[Variant] = &[("torch", "compiled"), ("tf", "xla")];
const PLAIN: &[Variant] = &[("torch", ""), ("tf", "")];

/// Whole training steps of a model.
const fn training(
    name: &'static str,
    batch: &'static str,
    shown: &'static str,
    steps: usize,
) -> ModelCase {
    ModelCase {
        name,
        model: name,
        batch,
        work: "train",
        shown,
        steps,
        variants: ALL,
        quick: PLAIN,
    }
}

impl ModelCase {
    /// The work of a model that trains no more.
    const fn forward(self, model: &'static str, work: &'static str) -> Self {
        Self {
            model,
            work,
            quick: &[("torch", "compiled"), ("tf", "")],
            ..self
        }
    }

    const fn quick(self, quick: &'static [Variant]) -> Self {
        Self { quick, ..self }
    }

    const fn without_variants(self) -> Self {
        Self {
            variants: &[],
            ..self
        }
    }
}

/// Training steps of a recurrent layer over 100 steps, and a dense layer behind it.
const fn recurrent(
    name: &'static str,
    batch: &'static str,
    shown: &'static str,
    steps: usize,
) -> ModelCase {
    training(name, batch, shown, steps)
        .without_variants()
        .quick(&[("torch", "")])
}

const TRANSFORMER: &[Variant] = &[("torch", "compiled"), ("tf", "xla"), ("jax", "")];

pub(super) const WORKS: [ModelCase; 21] = [
    training("resnet50", "16", "ResNet-50, 224x224, batch 16, f32", 1),
    training(
        "resnet50_bf16",
        "16",
        "ResNet-50, 224x224, batch 16, bf16",
        1,
    ),
    training(
        "mobilenet_v2",
        "16",
        "MobileNetV2, 224x224, batch 16, f32",
        1,
    ),
    training("cnn", "128", "CNN, 28x28, batch 128, f32", 8),
    training(
        "transformer",
        "16",
        "Transformer encoder (4 layers, d 256), 128 tokens, batch 16, vocabulary 8000, f32",
        3,
    )
    .quick(TRANSFORMER),
    training(
        "transformer_bf16",
        "16",
        "Transformer encoder (4 layers, d 256), 128 tokens, batch 16, vocabulary 8000, bf16",
        3,
    )
    .quick(TRANSFORMER),
    recurrent("lstm_128", "32", "LSTM 128, 100 steps, batch 32, f32", 8),
    recurrent("lstm_128", "256", "LSTM 128, 100 steps, batch 256, f32", 3),
    recurrent("lstm_256", "32", "LSTM 256, 100 steps, batch 32, f32", 4),
    recurrent("lstm_256", "256", "LSTM 256, 100 steps, batch 256, f32", 2),
    recurrent("lstm_512", "32", "LSTM 512, 100 steps, batch 32, f32", 2),
    recurrent("lstm_512", "256", "LSTM 512, 100 steps, batch 256, f32", 1),
    recurrent("gru_128", "32", "GRU 128, 100 steps, batch 32, f32", 8),
    training(
        "predict_resnet50",
        "1",
        "predict, ResNet-50, 224x224, batch 1, f32",
        10,
    )
    .forward("resnet50", "predict"),
    training(
        "predict_resnet50",
        "16",
        "predict, ResNet-50, 224x224, batch 16, f32",
        2,
    )
    .forward("resnet50", "predict"),
    training(
        "predict_resnet50",
        "64",
        "predict, ResNet-50, 224x224, batch 64, f32",
        1,
    )
    .forward("resnet50", "predict"),
    training(
        "predict_mobilenet_v2",
        "16",
        "predict, MobileNetV2, 224x224, batch 16, f32",
        5,
    )
    .forward("mobilenet_v2", "predict"),
    training(
        "predict_transformer",
        "16",
        "predict, Transformer encoder, batch 16, f32",
        5,
    )
    .forward("transformer", "predict"),
    training(
        "evaluate_resnet50",
        "16",
        "evaluate, ResNet-50, 224x224, batch 16, f32",
        2,
    )
    .forward("resnet50", "evaluate"),
    training(
        "evaluate_mobilenet_v2",
        "16",
        "evaluate, MobileNetV2, 224x224, batch 16, f32",
        5,
    )
    .forward("mobilenet_v2", "evaluate"),
    training(
        "evaluate_transformer",
        "16",
        "evaluate, Transformer encoder, batch 16, f32",
        5,
    )
    .forward("transformer", "evaluate"),
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
        let scores = time_all(&workspace, work, &peers, rounds, false);
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

/// All rounds of a work; a quick one leaves out variants that were not first of their framework.
pub(super) fn time_all(
    workspace: &Workspace,
    work: &ModelCase,
    peers: &[Peer],
    rounds: usize,
    quick: bool,
) -> Vec<Score> {
    let mut runs: Vec<BenchRun> = programs(work, peers, quick)
        .into_iter()
        .map(|(peer, variant)| work.start(workspace, peer, variant))
        .collect();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: {}", work.shown);
        for run in &mut runs {
            run.time_steps(work.steps);
        }
    }
    runs.into_iter().map(BenchRun::finish).collect()
}

/// The programs of a work, with a variant each.
fn programs<'p>(work: &ModelCase, peers: &'p [Peer], quick: bool) -> Vec<(&'p Peer, &'static str)> {
    let is_run = |(peer, variant): &(&Peer, &str)| {
        !quick || peer.name == OURS || work.quick.contains(&(peer.name, *variant))
    };
    peer::variants(peers, work.variants)
        .filter(is_run)
        .collect()
}

impl ModelCase {
    /// What of the model runs, as `bench-models --cost` names it.
    pub(super) fn pass(&self) -> &'static str {
        if self.work == "train" {
            "train"
        } else {
            "forward"
        }
    }

    /// A program of this work after its first steps.
    pub(super) fn start(&self, workspace: &Workspace, peer: &Peer, variant: &str) -> BenchRun {
        let mut arguments = vec![self.model, self.batch];
        if self.work != "train" {
            arguments.extend(["--work", self.work]);
        }
        BenchRun::start(workspace, peer, &arguments, variant)
    }
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
