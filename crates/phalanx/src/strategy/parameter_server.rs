//! Variables on parameter servers, and workers that come and go.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use phalanx_cluster::{Membership, Task, TaskKind, Variables, membership_from_env};
use phalanx_proof::Secret;
use phalanx_ps::{
    Client, ClientOptions, ControlSettings, Durability, Hello, Mode, Partitioner, Server,
    ServerOptions, Tell,
};

use super::Strategy;
use super::communication::secret_of_job;
use super::multi_worker::devices_per_worker;
use crate::engine::{Engine, EngineOptions};
use crate::optim::Optimizer;
use crate::replicas::{Placement, WireFormat};
use crate::servers::{CacheOptions, ExchangeOptions, HeldValues, Servers, Wire, explained};
use crate::{Error, Result};

/// How long a worker that was asked to stop waits for a server that is away: as long as it takes to start it again.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Keeps the variables on parameter servers; workers take batches in turns, compute gradients and push them.
///
/// Every process of the job runs the same program. Results do not depend on which worker does what, but for the order of updates; a
/// worker that dies costs the batch that it had, which another takes, and one that comes later joins in. Unlike TensorFlow's it
/// places variables by bytes, applies each push at most once, evaluates exactly, predicts with all workers, and its servers end with
/// the job. Training loops of your own are functions of a [`ClusterCoordinator`](super::ClusterCoordinator), which take steps of a
/// trainer or, by [`TaskContext::step`](super::TaskContext::step), run functions of [`CustomTraining`](super::CustomTraining). Dynamic
/// loss scales and `train_on_batch` are not for it.
#[derive(Clone, Debug)]
pub struct ParameterServerStrategy(Placement);

/// How workers and servers of a job work together; equal in all its processes.
#[derive(Clone, Debug)]
pub struct ParameterServerOptions {
    mode: Mode,
    exchange: ExchangeOptions,
    wire: WireFormat,
    durability: Durability,
    folder: Option<PathBuf>,
    goes_on_without_chief: bool,
    timeout: Duration,
    pub(super) server_timeout: Duration,
    join_timeout: Duration,
    lease: Duration,
    secret: Option<Secret>,
    ending: Option<Arc<AtomicBool>>,
    optimizers: Vec<Optimizer>,
}

impl Default for ParameterServerOptions {
    /// Asynchronous, with whole variables; what was acknowledged survives a server's process where PHALANX_PS_STATE names a folder.
    fn default() -> Self {
        Self {
            mode: Mode::Async,
            exchange: ExchangeOptions {
                partitioner: Partitioner::Whole,
                table_bytes: 16 << 20,
                overlaps: false,
                wire: Wire::Same,
                cache: CacheOptions { rows: 0, steps: 0 },
            },
            wire: WireFormat::Same,
            durability: Durability::Process,
            folder: None,
            goes_on_without_chief: false,
            timeout: Duration::from_secs(600),
            server_timeout: Duration::from_secs(60),
            join_timeout: Duration::from_secs(300),
            lease: Duration::from_secs(10),
            secret: None,
            ending: None,
            optimizers: Vec::new(),
        }
    }
}

impl ParameterServerOptions {
    /// The default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how far workers may be apart.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how variables are cut into shards.
    #[must_use]
    pub const fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.exchange.partitioner = partitioner;
        self
    }

    /// Sets what of the servers' state survives what.
    #[must_use]
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the folder in which each server keeps its state, in a folder `ps-<number>`; a server that is started again goes on from
    /// there. PHALANX_PS_STATE names it otherwise; without any, a server that dies ends the job.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Lets the others go on when the first worker is lost, until the next thing that only it does (a validation begins, a checkpoint
    /// is written): they wait there for another process in its place. Otherwise the job ends, with exit code 75 of each process.
    #[must_use]
    pub const fn go_on_without_chief(mut self) -> Self {
        self.goes_on_without_chief = true;
        self
    }

    /// Sets the longest that a worker waits for others.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the longest that a server may be away: as long as it takes to start it again.
    #[must_use]
    pub const fn server_timeout(mut self, timeout: Duration) -> Self {
        self.server_timeout = timeout;
        self
    }

    /// Sets how long a worker may be silent before its work goes to others: three seconds at least.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets from how many bytes on a table of an [`Embedding`](crate::nn::Embedding) is kept by its rows, 16 MiB by default: of such a
    /// table only the rows that a batch names travel, each once, and a server has memory for those that were changed alone. It must be
    /// looked up by inputs of the model and nothing else, without `mask_zero`, regularizer and constraint, under an optimizer that leaves
    /// rows without a gradient alone (SGD without momentum, Adagrad, or any with `lazy`) and does not clip norms; others are pulled and
    /// pushed whole.
    #[must_use]
    pub const fn table_bytes(mut self, bytes: usize) -> Self {
        self.exchange.table_bytes = bytes;
        self
    }

    /// Lets each worker take its next batch, pull the variables and push the last gradient while it computes. A gradient is then taken
    /// without the worker's own update before it, whose push is still under way. How far workers may be apart is
    /// bounded as before. For the modes in which workers do not step together.
    #[must_use]
    pub const fn overlap(mut self) -> Self {
        self.exchange.overlaps = true;
        self
    }

    /// Sets the element type in which f32 travels between servers and steps: pulled values of trained variables, rows of tables, and
    /// gradients. `Bf16` halves the bytes; servers keep and update f32, and evaluations, checkpoints and models are of these. `F16` is
    /// refused, since it needs a loss scale.
    #[must_use]
    pub const fn wire_dtype(mut self, wire: WireFormat) -> Self {
        self.wire = wire;
        self.exchange.wire = match wire {
            WireFormat::Bf16 => Wire::Bf16,
            WireFormat::Same | WireFormat::F16 => Wire::Same,
        };
        self
    }

    /// Sets how many rows of tables (see [`table_bytes`](Self::table_bytes)) each worker keeps after it has pulled them; the row that was
    /// used longest ago gives way. 0 by default, since a row that is kept lacks the worker's own last updates too, which a worker sees
    /// in all that it pulls. A row is not pulled again while the mode permits: in [`Mode::BoundedStaleness`] a step sees of every
    /// worker, its own too, all batches but the last `steps`; in [`Mode::Async`] see [`cache_steps`](Self::cache_steps); in
    /// [`Mode::Sync`] no row is kept.
    #[must_use]
    pub const fn cache_rows(mut self, rows: usize) -> Self {
        self.exchange.cache.rows = rows;
        self
    }

    /// Sets for how many of its next batches an asynchronous worker uses a row that it has pulled; 0 by default: each step pulls.
    /// For [`Mode::Async`] with [`cache_rows`](Self::cache_rows); another mode has a bound of its own.
    #[must_use]
    pub const fn cache_steps(mut self, steps: u64) -> Self {
        self.exchange.cache.steps = steps;
        self
    }

    /// Sets what all processes prove to each other that they know; who does not is refused, and the log names it. `phalanx launch`
    /// draws one for each job; otherwise the file that PHALANX_SECRET_FILE names has it. Without one, whoever reaches a server's port
    /// can join. What is sent can be read by others on the network.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(Secret::new(secret));
        self
    }

    /// Has a server whose machine is about to end say so: once the flag is set in its process, the workers hear of it within a second and end
    /// the training as by their own [`Fit::stop_when`](crate::fit::Fit::stop_when), which they must have. For a
    /// [`PreemptionWatcher`](crate::fit::preemption::PreemptionWatcher) in the process of a server.
    #[must_use]
    pub fn ending_when(mut self, flag: &Arc<AtomicBool>) -> Self {
        self.ending = Some(Arc::clone(flag));
        self
    }

    /// Gives the servers an optimizer that they cannot make from its settings, since its [rule](crate::optim::UpdateRule) or its
    /// [schedule](crate::schedules::LearningRateSchedule) is of your own: the one that the model is compiled with. Servers update with it
    /// where the workers have the same kind and settings.
    #[must_use]
    pub fn optimizer(mut self, optimizer: impl Into<Optimizer>) -> Self {
        self.optimizers.push(optimizer.into());
        self
    }

    /// The secret of the job, of whoever gives one.
    fn secret_of(&self, membership: &Membership) -> Result<Option<Secret>> {
        if self.secret.is_some() {
            return Ok(self.secret.clone());
        }
        if let Some(launcher) = &membership.launcher {
            return Ok(Some(launcher.secret.clone()));
        }
        secret_of_job(&Variables::of_process())
    }

    /// Refuses what does not go together.
    fn check_exchange(&self) -> Result<()> {
        let (exchange, mode) = (&self.exchange, self.mode);
        if exchange.overlaps && mode.backup_workers().is_some() {
            return Err(Error::User(format!(
                "`overlap` begins a step before the one before it is an update, and the mode of this job is {mode}, in which a step follows from the last; leave one of them out"
            )));
        }
        if exchange.cache.steps > 0 && mode != Mode::Async {
            return Err(Error::User(format!(
                "`cache_steps` is for asynchronous training, and the mode of this job is {mode}, which says how old values may be; leave it out"
            )));
        }
        if exchange.cache.steps > 0 && exchange.cache.rows == 0 {
            return Err(Error::user(
                "`cache_steps` says how long a worker keeps rows, and `cache_rows` is 0: it keeps none; say how many with `cache_rows`, or leave `cache_steps` out",
            ));
        }
        if self.wire == WireFormat::F16 {
            return Err(Error::user(
                "float16 ends at 65504 and so needs a loss scale, which parameter servers do not have; let values travel as bfloat16",
            ));
        }
        Ok(())
    }

    fn settings(&self, workers: usize) -> ControlSettings {
        ControlSettings {
            workers,
            mode: self.mode,
            goes_on_without_chief: self.goes_on_without_chief,
        }
    }

    fn folder_of(&self, server: usize) -> Option<PathBuf> {
        let named = std::env::var_os("PHALANX_PS_STATE").map(PathBuf::from);
        let folder = self.folder.clone().or(named);
        folder.map(|folder| folder.join(format!("ps-{server}")))
    }
}

impl ParameterServerStrategy {
    /// This worker of the cluster that TF_CONFIG describes. In a process that is a parameter server it serves until the job ends, and
    /// returns `None` then: there is nothing left to do. The worker trains on the CPU, also where there are GPUs, in as many parts as
    /// PHALANX_DEVICES_PER_WORKER says.
    ///
    /// # Errors
    /// As for [`from_env_with`](Self::from_env_with).
    pub fn from_env() -> Result<Option<Self>> {
        let options = EngineOptions::default();
        let engine = Engine::new(&EngineOptions {
            cpu_devices: devices_per_worker()?.unwrap_or(options.cpu_devices),
            ..options
        })?;
        Self::from_env_with(&engine, &ParameterServerOptions::default())
    }

    /// The same with the devices of an engine. Returns when all servers are there.
    ///
    /// # Errors
    /// [`Error::User`] when the environment describes no parameter servers, or this process is an evaluator; [`Error::Cluster`] when a
    /// process is missing or gone, or the job has failed.
    pub fn from_env_with(
        engine: &Engine,
        options: &ParameterServerOptions,
    ) -> Result<Option<Self>> {
        Self::from_env_on(Placement::all(engine), options)
    }

    /// The same with some devices of an engine alone.
    pub(super) fn from_env_on(
        placement: Placement,
        options: &ParameterServerOptions,
    ) -> Result<Option<Self>> {
        let found = membership_from_env(&Variables::of_process());
        let found = found.map_err(|error| Error::user(error.to_string()))?;
        let membership = found.ok_or_else(no_servers)?;
        match membership.task.kind {
            TaskKind::Chief | TaskKind::Worker => {
                Self::join_on(placement, &membership, options).map(Some)
            }
            TaskKind::ParameterServer => {
                Self::serve(placement.engine(), &membership, options)?;
                Ok(None)
            }
            TaskKind::Evaluator => Err(Error::user(
                "this process is the evaluator of its cluster, which does not train: it evaluates checkpoints; start it by `phalanx launch --evaluator`, or call `Trainer::follow` in it",
            )),
        }
    }

    /// This worker among several. Returns when all servers are there.
    ///
    /// # Errors
    /// As for [`from_env_with`](Self::from_env_with).
    pub fn join(
        engine: &Engine,
        membership: &Membership,
        options: &ParameterServerOptions,
    ) -> Result<Self> {
        Self::join_on(Placement::all(engine), membership, options)
    }

    fn join_on(
        placement: Placement,
        membership: &Membership,
        options: &ParameterServerOptions,
    ) -> Result<Self> {
        let settings = options.settings(membership.workers);
        settings.check().map_err(explained)?;
        options.exchange.partitioner.check().map_err(explained)?;
        options.check_exchange()?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let notice = match membership.is_chief() {
            true => placement.engine().notice_handle(),
            // Whom a worker waits for is said also where the first one alone gives notices.
            false => Arc::new(|line: &str| eprintln!("{line}")),
        };
        let client = Client::connect(ClientOptions {
            servers: servers_of(membership)?,
            hello: Hello {
                job: membership.job.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                worker: membership.worker,
                incarnation: since.map_or(0, |since| since.as_nanos() as u64),
                settings,
            },
            join_within: options.join_timeout,
            server_within: options.server_timeout,
            stop_within: STOP_WITHIN.min(options.server_timeout),
            answer_within: options.timeout,
            secret: options.secret_of(membership)?,
            tell: Tell(Arc::clone(&notice)),
        });
        let client = client.map_err(explained)?;
        let servers = Servers::new(client, options.exchange, options.timeout, notice);
        Ok(Self(placement.with_servers(servers)))
    }

    /// Serves as the parameter server that this process is, until the job ends.
    ///
    /// # Errors
    /// [`Error::Cluster`] when the job failed or no worker came, [`Error::User`] when this process is no parameter server.
    pub fn serve(
        engine: &Engine,
        membership: &Membership,
        options: &ParameterServerOptions,
    ) -> Result<()> {
        let Task { kind, index } = membership.task;
        if kind != TaskKind::ParameterServer {
            return Err(Error::user(format!(
                "{} is no parameter server",
                membership.task
            )));
        }
        let listener = membership.task_listener().map_err(|error| {
            let address = membership
                .cluster
                .as_ref()
                .and_then(|c| c.address(membership.task));
            let address = address.map_or_else(String::new, |address| format!(" at {address}"));
            Error::Cluster(format!(
                "parameter server {index} cannot listen{address}: {error}"
            ))
        })?;
        let server = Server::new(
            ServerOptions {
                job: membership.job.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                server: index,
                folder: options.folder_of(index),
                durability: options.durability,
                lease: options.lease,
                alone_within: options.join_timeout,
                secret: options.secret_of(membership)?,
                ending: options.ending.clone(),
                tell: Tell(engine.notice_handle()),
                ..ServerOptions::default()
            },
            Box::new(HeldValues::new(engine, &options.optimizers)),
        );
        server
            .and_then(|server| server.run(&listener))
            .map_err(explained)
    }

    /// Whether this process writes files and shows progress.
    #[must_use]
    pub fn is_chief(&self) -> bool {
        self.0.is_chief()
    }
}

impl Strategy for ParameterServerStrategy {
    fn placement(&self) -> &Placement {
        &self.0
    }
}

/// The addresses of the servers of a cluster, in their order.
fn servers_of(membership: &Membership) -> Result<Vec<String>> {
    let cluster = membership.cluster.iter();
    let servers = cluster.flat_map(|cluster| cluster.of_kind(TaskKind::ParameterServer));
    let servers: Vec<String> = servers.map(|(_, address)| address.to_string()).collect();
    match servers.is_empty() {
        true => Err(no_servers()),
        false => Ok(servers),
    }
}

fn no_servers() -> Error {
    Error::user(
        "the environment describes no parameter server; start the program by `phalanx launch --workers 2 --ps 1 -- ..`, or set TF_CONFIG with a `ps`",
    )
}
