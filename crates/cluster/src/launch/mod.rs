//! A supervisor: starts the workers of this machine, coordinates them, passes their output on, starts those again that were lost, and
//! ends all when they cannot go on.
//!
//! Each worker is the leader of a process group of its own, so that what it started ends with it. Everything started here has the
//! variable PHALANX_JOB_ID; a guard ([`guard`]) finds by that what has left its group, or is left when this process was killed.

mod cores;
mod gpus;
mod guard;
mod logs;
mod outcome;
mod ports;
mod process_group;
mod readers;
mod variables;
mod workers;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use phalanx_proof::{Secret, draw_hex};

use crate::coordination::{Host, Recovery, Settings, Timing};
use crate::{Task, TaskKind};

pub use cores::{on as on_processors, shares as processor_shares};
pub use gpus::{VISIBLE as VISIBLE_GPUS, driver_gpus, is_gpu, visible_gpus};
pub use guard::{Guard, end_what_is_left, guard};
pub use outcome::{Ended, How, Outcome, TRY_AGAIN};
pub use ports::Reserved as ReservedPorts;
pub use process_group::{Output, ProcessGroup};
pub use readers::Readers;

/// What to start, and how.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program with its arguments.
    pub program: Vec<OsString>,
    /// The number of workers.
    pub workers: NonZeroUsize,
    /// With how many workers the training goes on when others are lost for good.
    pub least_workers: NonZeroUsize,
    /// How often each worker is started again when it is lost.
    pub max_restarts: u32,
    /// Whether only workers that have all met through this launch are started again: others cannot go on without a lost one, and one that is
    /// started again by itself would wait for them in vain.
    pub restarts_once_met: bool,
    /// How long the others wait for a worker that was started again, before they go on without it or end.
    pub recover_within: Duration,
    /// The number of parameter servers beside them.
    pub servers: usize,
    /// Whether an evaluator is beside them, which follows the checkpoints of the training; its failure ends nobody else.
    pub evaluator: bool,
    /// Devices of each worker; `None` leaves that to the program. GPUs are divided by CUDA_VISIBLE_DEVICES.
    pub devices_per_worker: Option<NonZeroUsize>,
    /// The port of worker 0 in TF_CONFIG and MASTER_PORT; `None` takes one that is free.
    pub port: Option<u16>,
    /// What tells this job from others.
    pub job: String,
    /// The folder of the logs, which is made.
    pub logs: PathBuf,
    /// What of the output is shown.
    pub show: Show,
    /// Whether each worker gets processors of its own.
    pub pin: bool,
    /// How long the others may go on after the first failure, to hear of it themselves.
    pub grace: Duration,
    /// How long a worker may take to end once it was told to.
    pub stop_grace: Duration,
}

/// What of the workers' output is shown; the logs hold all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Show {
    /// All of worker 0 as it is, and the standard error of the others, each line with the worker's name.
    Chief,
    /// All of these workers, each line with the worker's name.
    Ranks(Vec<usize>),
    /// All of all workers, each line with the worker's name.
    All,
}

/// Which signals have come: set by a handler, taken back here.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// SIGINT.
    pub interrupt: Arc<AtomicBool>,
    /// SIGTERM.
    pub terminate: Arc<AtomicBool>,
    /// SIGHUP: the terminal was closed.
    pub hangup: Arc<AtomicBool>,
    /// SIGUSR1, which Slurm sends some time before the end of a job.
    pub user: Arc<AtomicBool>,
}

/// Where output goes.
pub struct Console {
    /// Standard output.
    pub out: Box<dyn Write + Send>,
    /// Standard error.
    pub err: Box<dyn Write + Send>,
}

/// Why workers were not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// There is nothing to start.
    #[error("no program to start; write it after --")]
    NoProgram,
    /// The system does not start the program.
    #[error("cannot start {program}: {source}; check its path")]
    Program {
        /// The program.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A folder or file of the logs cannot be written.
    #[error("cannot write {}: {source}; choose another folder with --logs", path.display())]
    Logs {
        /// The folder or file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// No port is free, or not the one that was asked for.
    #[error("cannot take {}", port_refused(*port, source))]
    Port {
        /// The port; 0 for any.
        port: u16,
        /// The system's reason.
        source: io::Error,
    },
    /// More GPUs were asked for than there are.
    #[error("{workers} workers with {devices} devices each need {} GPUs, there are {found}; ask for fewer", workers * devices)]
    Gpus {
        /// The workers.
        workers: usize,
        /// The devices of each.
        devices: usize,
        /// The GPUs that are visible.
        found: usize,
    },
    /// The system refuses a thread, a pipe or a signal.
    #[error(
        "cannot watch the workers: {0}; raise the limits of processes and files (ulimit -u, -n)"
    )]
    Watch(io::Error),
}

/// Which port is not there, and what to do.
fn port_refused(port: u16, source: &io::Error) -> String {
    match port {
        0 => format!(
            "a free port for each worker: {source}; start fewer workers, or raise the limit of files (ulimit -n)"
        ),
        _ => format!("port {port}: {source}; choose another, or none to take one that is free"),
    }
}

impl Launch {
    /// `workers` workers of a program, with what is best on one machine.
    #[must_use]
    pub fn new(
        program: Vec<OsString>,
        workers: NonZeroUsize,
        job: impl Into<String>,
        logs: impl Into<PathBuf>,
    ) -> Self {
        Self {
            program,
            workers,
            least_workers: workers,
            max_restarts: 0,
            restarts_once_met: false,
            recover_within: Duration::from_secs(60),
            servers: 0,
            evaluator: false,
            devices_per_worker: None,
            port: None,
            job: job.into(),
            logs: logs.into(),
            show: Show::Chief,
            pin: true,
            grace: Duration::from_secs(10),
            stop_grace: Duration::from_secs(30),
        }
    }

    /// The number of processes: workers first, then parameter servers, then the evaluator.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.workers.get() + self.servers + usize::from(self.evaluator)
    }

    /// What a process is, by its number.
    #[must_use]
    pub fn task(&self, process: usize) -> Task {
        let workers = self.workers.get();
        match process.checked_sub(workers) {
            None => Task::new(TaskKind::Worker, process),
            Some(server) if server < self.servers => Task::new(TaskKind::ParameterServer, server),
            Some(other) => Task::new(TaskKind::Evaluator, other - self.servers),
        }
    }

    /// The name of a process in logs: `worker-0`, `ps-1`.
    fn name(&self, process: usize) -> String {
        let Task { kind, index } = self.task(process);
        format!("{kind}-{index}")
    }

    /// Starts the workers, and returns when all have ended. The program that `guard` starts must call [`guard`]; with `None`, what
    /// leaves its process group stays, and all workers do when this process is killed.
    ///
    /// # Errors
    /// Not all workers could be started: those that were have been ended.
    pub fn run(
        &self,
        stop: &Stop,
        console: Console,
        guard: Option<Command>,
    ) -> Result<Outcome, LaunchError> {
        let program = self.program.first().ok_or(LaunchError::NoProgram)?;
        let ports = ports::Reserved::new(self.processes(), self.port)?;
        let secret = draw_hex::<32>().map_err(LaunchError::Watch)?;
        let logs = logs::Logs::new(self, console)?;
        let host = self.coordinate(&secret, logs.teller())?;
        let variables = variables::of_workers(self, &ports, host.address(), &secret)?;
        let guard = guard.map(|command| Guard::start(command, &self.job));
        let guard = guard.transpose().map_err(LaunchError::Watch)?;
        let cores = if self.pin {
            cores::shares(self.workers.get())
        } else {
            Vec::new()
        };
        let make = |rank: usize, restarts: u32| {
            let mut command = Command::new(program);
            command.args(&self.program[1..]);
            for name in variables::REMOVED {
                command.env_remove(name);
            }
            command.envs(variables[rank].iter().cloned());
            command.envs(variables::of_restart(restarts));
            if let Some(folder) = self.state_of_servers() {
                command.env("PHALANX_PS_STATE", folder);
            }
            command
        };
        let mut workers = workers::Workers::new(self, logs, host, cores, &make);
        for rank in 0..self.processes() {
            if let Err(error) = workers.start(rank) {
                workers.kill();
                return Err(error);
            }
        }
        let outcome = workers.watch(stop);
        if let Some(guard) = guard {
            guard.finish();
        }
        if let Some(folder) = self.state_of_servers() {
            // Where servers have ended well nothing is there any more.
            let _ = fs::remove_dir_all(folder);
        }
        drop(ports);
        Ok(outcome)
    }

    /// Where servers that are started again find the state of those before them: of this job and no other.
    fn state_of_servers(&self) -> Option<PathBuf> {
        let is_kept = self.servers > 0 && self.max_restarts > 0;
        is_kept.then(|| self.logs.join(format!("state-{}", self.job)))
    }

    /// Starts the service that coordinates the workers, which outlives each of them.
    fn coordinate(
        &self,
        secret: &str,
        tell: impl FnMut(&str) + Send + 'static,
    ) -> Result<Host, LaunchError> {
        let timing = Timing::default();
        let recovery = Recovery {
            within: self.recover_within,
            least: self.least_workers.get(),
        };
        let is_elastic = self.max_restarts > 0 || self.least_workers < self.workers;
        let settings = Settings {
            workers: self.workers.get(),
            job: self.job.clone(),
            version: String::new(),
            generation: 1,
            lease: timing.lease,
            join_within: None,
            recovery: is_elastic.then_some(recovery),
        };
        let host = Host::start(settings, Some(Secret::new(secret)), tell);
        host.map_err(|error| LaunchError::Watch(io::Error::other(error.to_string())))
    }
}
