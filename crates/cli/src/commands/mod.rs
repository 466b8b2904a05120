//! The commands, a file each.

mod buckets;
mod ckpt;
mod cluster_doctor;
mod compare;
mod completions;
mod data;
mod data_numpy;
mod devices;
mod doctor;
mod env;
mod estimate;
mod evaluate;
mod export;
mod follow;
mod launch;
mod plot;
mod plugin;
mod predict;
mod schema;
pub(crate) mod session;
mod smoke;
mod trace;
mod train;
mod trained_model;

use phalanx::fit::Logs;
use phalanx_cluster::{Membership, TaskKind, Variables, membership_from_env};
use phalanx_pjrt::PluginSearch;
use serde_json::{Value, json};

use crate::args::{Args, Command, Global, Progress};
use crate::config::TrainConfig;
use crate::data_facts::Facts;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};
use crate::record::Record;

/// What every command is given: the options of all commands, the process's surroundings, and where results go.
pub(crate) struct Context {
    pub(crate) global: Global,
    pub(crate) search: PluginSearch,
    pub(crate) output: Output,
    /// The place of this process among the workers of a training, where there are several.
    pub(crate) worker: Option<Membership>,
    /// How the training shows its progress in the first process, which another one becomes when it is lost.
    pub(crate) progress: phalanx::fit::Progress,
    /// Whether this process evaluates what others train.
    pub(crate) is_evaluator: bool,
    /// Whether there is such a process, which needs checkpoints.
    pub(crate) is_followed: bool,
}

impl Context {
    /// Warns the user, unless only errors are to be told.
    pub(crate) fn warn(&self, warning: &str) {
        if !self.global.quiet {
            output::notice(format_args!("warning: {warning}"));
        }
    }

    /// Prints a result: as a line for people, or as JSON where that is asked for.
    pub(crate) fn print(&mut self, line: &str, json: &Value) -> Result<(), Failure> {
        match self.global.progress {
            Progress::Json => self.output.line(json),
            _ => self.output.line(line),
        }
    }

    /// Finds out whether this process is one of several workers; all but the first are silent.
    pub(crate) fn find_workers(&mut self) -> Result<(), Failure> {
        let variables = Variables::of_process();
        let found = membership_from_env(&variables);
        let found = found.map_err(|error| Failure::of(Exit::Usage, &error))?;
        let kind = found.as_ref().map(|membership| membership.task.kind);
        if kind == Some(TaskKind::Evaluator) {
            self.is_evaluator = true;
            return Ok(());
        }
        self.is_followed = variables.get("PHALANX_EVALUATOR").is_some();
        self.worker = found.filter(|membership| {
            let cluster = membership.cluster.as_ref();
            let servers = cluster.map_or(0, |cluster| cluster.count(TaskKind::ParameterServer));
            membership.workers > 1 || servers > 0
        });
        if !self.is_chief() {
            self.global.quiet = true;
            self.output = Output::to(std::io::sink());
        }
        Ok(())
    }

    /// Whether this process writes files and results: the first of several workers, or the only one.
    pub(crate) fn is_chief(&self) -> bool {
        self.worker.as_ref().is_none_or(Membership::is_chief)
    }

    /// This process is the first of its training by now, and prints what comes of it.
    pub(crate) fn become_chief(&mut self) {
        if !self.is_chief() {
            self.output = Output::stdout();
        }
    }

    /// Whether this process is a parameter server.
    pub(crate) fn is_server(&self) -> bool {
        let kind = self.worker.as_ref().map(|membership| membership.task.kind);
        kind == Some(TaskKind::ParameterServer)
    }

    /// The record of a training that is begun here.
    pub(crate) fn record(&self, config: &TrainConfig, facts: &Facts) -> Record {
        let devices = self.global.devices.as_ref().map(ToString::to_string);
        let workers = self.worker.as_ref().map(|membership| membership.workers);
        Record::new(config, facts).on(devices, workers)
    }

    /// Prints results: a line for a person, or a JSON object.
    pub(crate) fn result(&mut self, event: &str, logs: &Logs) -> Result<(), Failure> {
        match self.global.progress {
            Progress::Json => {
                let line = json!({ "event": event, "logs": logs.to_json() });
                self.output.line(line)
            }
            _ => self.output.line(format_args!("{event}: {logs}")),
        }
    }
}

/// Runs a command.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut context = Context {
        progress: args.global.fit_progress(),
        global: args.global,
        search: PluginSearch::from_process(),
        output: Output::stdout(),
        worker: None,
        is_evaluator: false,
        is_followed: false,
    };
    match args.command {
        Command::Train(args) => train::run(&mut context, &args),
        Command::Launch(args) => launch::run(&context, &args),
        Command::LaunchGuard { job } => {
            launch::guard(&job);
            Ok(())
        }
        Command::Jobs | Command::Tune => Err(Failure::new(
            Exit::Usage,
            "`jobs` and `tune` take no options before them",
        )
        .next("write them behind the command")),
        Command::Env { explain } => env::run(&mut context, explain),
        Command::Estimate(args) => estimate::run(&mut context, &args),
        Command::Evaluate(args) => evaluate::run(&mut context, &args),
        Command::Predict(args) => predict::run(&mut context, &args),
        Command::Export(args) => export::run(&mut context, &args),
        Command::Plot(args) => plot::run(&mut context, &args),
        Command::Compare(args) => compare::run(&mut context, &args),
        Command::Trace(args) => trace::run(&mut context, &args),
        Command::Data(what) => data::run(&mut context, &what),
        Command::Plugin(what) => plugin::run(&mut context, &what),
        Command::Devices { platform } => devices::run(&mut context, platform),
        Command::Ckpt(what) => ckpt::run(&mut context, &what),
        Command::Doctor(args) if args.cluster => cluster_doctor::run(&mut context, &args),
        Command::Doctor(_) => doctor::run(&mut context),
        Command::Schema => schema::run(&mut context),
        Command::Completions { shell } => completions::run(&mut context, shell),
    }
}
