//! What the workers of parameter servers compare, with each other and with the state that the servers kept: what is trained and how.
//!
//! Gradients of another model, of other data or at another precision would be added without anybody's notice. Programs are not compared,
//! since workers may have different devices: only what they were made from.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::agreement::{length_of, or_none, owned, settings_of_data};
use super::callbacks::{KeptEpochs, values_of};
use super::servers::set_sums;
use super::setup::Setup;
use super::{Fit, Trainer};
use crate::checkpoint::JsonFloat;
use crate::data::{Facts, Position, TrainingData};
use crate::servers::Servers;
use crate::{Error, Result};

/// Refuses a model, a loss or a precision other than the first worker's.
pub(super) fn agree_on_model(servers: &Servers, setup: &Setup, seed: u64) -> Result<()> {
    check_statistics(servers, setup)?;
    let mut facts = Facts::new();
    let config = setup.model.config();
    let layers = config["layers"].as_array();
    for (at, layer) in layers.into_iter().flatten().enumerate() {
        facts.push((format!("layer {at} of the model"), layer.to_string()));
    }
    for part in ["input", "inputs", "calls", "outputs"] {
        let value = config[part].to_string();
        facts.push((format!("`{part}` of the model"), value));
    }
    let losses = setup.objective.losses.terms.iter();
    let losses = losses.map(|term| {
        let (output, name, config) = (term.output, term.loss.name(), term.loss.config());
        let what = format!("the loss of output {output}");
        (what, format!("{} times {name} {config}", term.weight))
    });
    facts.extend(losses);
    let metrics = setup.objective.metrics.iter();
    let metrics = metrics.map(|metric| {
        let what = format!("the metric `{}`", metric.name);
        (what, metric.metric.config().to_string())
    });
    facts.extend(metrics);
    let (optimizer, settings) = (setup.optimizer.kind(), setup.optimizer.config());
    facts.extend([
        ("the optimizer".into(), format!("{optimizer} {settings}")),
        ("the precision".into(), format!("{:?}", setup.precision)),
        ("the loss scale".into(), format!("{:?}", setup.loss_scale)),
        ("the seed".into(), seed.to_string()),
    ]);
    let number = servers.count("compile");
    servers.agree_on(&format!("compile {number}"), &facts)
}

/// Where a `fit` of the job began, and with what.
#[derive(Serialize, Deserialize)]
struct BeginOfFit {
    first: usize,
    position: Position,
    // The first two alone are what earlier versions have kept.
    /// The sums of the epoch so far, within one.
    #[serde(default)]
    sums: Option<Vec<JsonFloat>>,
    /// What callbacks remembered.
    #[serde(default)]
    callbacks: Vec<(String, Value)>,
}

impl BeginOfFit {
    /// Where this process would begin.
    fn of(trainer: &Trainer, first: usize) -> Result<Self> {
        let Trainer {
            compiled, progress, ..
        } = trainer;
        let sums = || compiled.state.read_epoch_totals(&compiled.setup);
        let sums = progress.is_mid_epoch.then(sums).transpose()?;
        Ok(Self {
            first,
            position: progress.position.clone(),
            sums: sums.map(|sums| sums.into_iter().map(JsonFloat).collect()),
            callbacks: values_of(&trainer.callback_states),
        })
    }
}

impl Trainer {
    /// Goes on where the first worker did when the job came to this `fit`, and names its phases. A process that was started again may know
    /// later epochs from its checkpoint; the servers answer with the results of all.
    pub(super) fn begin_with_servers(&mut self, servers: &Servers, first: usize) -> Result<usize> {
        let iterations = self.compiled.iterations;
        servers.first_step(|| Ok(iterations))?;
        self.progress.fit_number = servers.count("fit");
        let bug = |error: serde_json::Error| Error::Bug(format!("the begin of a fit: {error}"));
        let own = serde_json::to_vec(&BeginOfFit::of(self, first)?).map_err(bug)?;
        let begun = servers.of_chief(&format!("fit {}", self.progress.fit_number), &own)?;
        let begun: BeginOfFit = serde_json::from_slice(&begun).map_err(bug)?;
        let progress = &mut self.progress;
        progress
            .history
            .epochs
            .retain(|done| done.epoch < begun.first);
        if progress.position == begun.position {
            self.kept_epochs = KeptEpochs::default();
            return Ok(begun.first);
        }
        (progress.position, progress.is_mid_epoch) = (begun.position, begun.sums.is_some());
        if let Some(sums) = begun.sums {
            let sums: Vec<f64> = sums.iter().map(|JsonFloat(sum)| *sum).collect();
            set_sums(&mut self.compiled, &sums)?;
        }
        self.kept_epochs = KeptEpochs::take_from(&mut self.callback_states, begun.callbacks);
        Ok(begun.first)
    }

    /// Refuses to train on other data or in other steps than the first worker; from now on the flag of `fit` is looked at where servers
    /// are waited for.
    pub(super) fn agree_with_servers(
        &self,
        (first, fit): (usize, &Fit),
        data: &dyn TrainingData,
    ) -> Result<()> {
        let Some(servers) = self.compiled.placement.servers() else {
            return Ok(());
        };
        fit.stop.iter().for_each(|flag| servers.stop_when(flag));
        let save_freq = fit.save_freq.filter(|_| fit.checkpoint.is_some());
        let mut facts = owned(length_of(first, fit));
        facts.extend(owned([
            (
                "the number of batches between checkpoints",
                or_none(save_freq),
            ),
            ("`data_settings`", settings_of_data(fit).unwrap_or_default()),
        ]));
        facts.extend(self.training_facts(data));
        servers.agree_on(
            &format!("the begin of fit {}", self.progress.fit_number),
            &facts,
        )
    }
}

/// Refuses statistics of all rows of a step, of which each worker has its own alone.
fn check_statistics(servers: &Servers, setup: &Setup) -> Result<()> {
    let is_together = servers.mode().backup_workers().is_some() && servers.workers() > 1;
    let synchronized = setup.model.layers_with("synchronized");
    match synchronized.first() {
        Some(layer) if is_together => Err(Error::User(format!(
            "layer `{layer}` is `synchronized`, and in the mode {} of parameter servers each worker normalizes its own rows of a batch; leave `synchronized` out, train in the mode `async`, in which a batch is of one worker, or in copies (`strategy: multi_worker`)",
            servers.mode()
        ))),
        _ => Ok(()),
    }
}
