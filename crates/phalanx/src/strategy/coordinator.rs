//! Functions that the first worker schedules and the others run, with variables on parameter servers: TensorFlow's
//! `ClusterCoordinator`.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use phalanx_ps::Mode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::distribute::InputContext;
use super::remote_value::{Chief, EndSlot, Pending, RemoteValue, ScheduleError};
use super::task_context::{MakeBatches, TaskContext, WorkerDataset};
use super::{ParameterServerStrategy, Strategy};
use crate::data::Batches;
use crate::servers::Servers;
use crate::{Error, Result};

/// The most functions that are scheduled and have not ended; [`ClusterCoordinator::schedule`] waits where there are more.
const MOST_SCHEDULED: usize = 256 * 1024;
/// A function that a [`ClusterCoordinator`] knows: of an `A`, with the result `R`.
pub struct TaskFunction<A, R> {
    name: String,
    marker: PhantomData<fn(A) -> R>,
}

impl<A, R> std::fmt::Debug for TaskFunction<A, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TaskFunction({})", self.name)
    }
}

/// Runs functions on the workers of parameter servers: the first worker schedules them, the others run them. For training loops of
/// your own.
///
/// Every process makes the coordinator in the same way: it gives names to functions, which get a state `S` that each process has for
/// itself, and then calls [`start`](Self::start). There the workers stay until the first one is done.
///
/// ```no_run
/// use phalanx::prelude::*;
/// use phalanx::strategy::{ClusterCoordinator, ParameterServerStrategy};
///
/// let Some(strategy) = ParameterServerStrategy::from_env()? else {
///     return Ok(()); // this process was a parameter server
/// };
/// let model = Sequential::new([8, 8, 1]).add(Flatten).add(Dense::new(10)).build()?;
/// let compile = Compile {
///     optimizer: Sgd::new(0.01).into(),
///     loss: SparseCategoricalCrossentropy::from_logits().into(),
///     ..Compile::default()
/// };
/// let trainer = strategy.compile(model, compile)?;
/// let mut cluster = ClusterCoordinator::new(&strategy, trainer)?;
/// let digits = cluster.per_worker_dataset(|context| {
///     let seed = context.input_pipeline_id as u64;
///     Ok(datasets::digits()?.shuffle(seed).batch(32))
/// });
/// let train = cluster.function("train", move |cx, trainer: &mut Trainer, steps: usize| {
///     let mut loss = 0.0;
///     for _ in 0..steps {
///         let batch = cx.next_batch(&digits)?;
///         loss += cx.train(trainer, &batch)?.get("loss").unwrap_or(f64::NAN);
///     }
///     Ok(loss / steps as f64)
/// })?;
/// if !cluster.start()? {
///     return Ok(()); // this process was a worker
/// }
/// let losses = (0..20).map(|_| cluster.schedule(&train, &10));
/// let losses = losses.collect::<std::result::Result<Vec<_>, _>>()?;
/// cluster.join()?;
/// println!("loss {}", losses[19].fetch()?);
/// # Ok::<(), phalanx::Error>(())
/// ```
///
/// A function that a lost worker had begun is run again by another, from its beginning; what it pushes counts once: the second run's
/// first push is the first run's again, and changes nothing where that was applied. The first function that fails cancels all that
/// nobody has begun, and the next call of [`schedule`](Self::schedule), [`join`](Self::join) or [`done`](Self::done) returns its error;
/// after that the coordinator goes on. A function with which four workers were lost has failed, too. A function that panics ends its
/// worker.
pub struct ClusterCoordinator<S> {
    servers: Arc<Servers>,
    state: S,
    functions: BTreeMap<String, Box<RunTask<S>>>,
    datasets: Vec<Box<MakeBatches>>,
    chief: Option<Arc<Chief>>,
}

type RunTask<S> = dyn Fn(&mut TaskContext<'_>, &mut S, &[u8]) -> Result<Vec<u8>>;

impl<S> std::fmt::Debug for ClusterCoordinator<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.functions.keys().collect();
        write!(f, "ClusterCoordinator of {names:?}")
    }
}

impl<S> ClusterCoordinator<S> {
    /// A coordinator without functions; `state` is what functions have in this process, such as a trainer.
    ///
    /// # Errors
    /// There is one worker, workers are not asynchronous, or they go on without the first one.
    pub fn new(strategy: &ParameterServerStrategy, state: S) -> Result<Self> {
        let servers = strategy.placement().servers().cloned();
        let servers = servers.ok_or_else(|| Error::Bug("a strategy without its servers".into()))?;
        let wrong = match servers.mode() {
            _ if servers.workers() < 2 => {
                "there is 1 worker, which schedules, and none to run what it schedules; start 2 or more"
            }
            Mode::Async if servers.goes_on_without_chief() => {
                "the first worker schedules functions, and the others go on without it; leave `go_on_without_chief` out"
            }
            Mode::Async => "",
            _ => {
                "functions run one by one, and the mode of the parameter servers is another than `Mode::Async`; use that one"
            }
        };
        match wrong {
            "" => Ok(Self {
                servers,
                state,
                functions: BTreeMap::new(),
                datasets: Vec::new(),
                chief: None,
            }),
            wrong => Err(Error::user(wrong)),
        }
    }

    /// Gives a function a name, which is the same in all processes. What it is given and returns travels as JSON, in which numbers are
    /// finite.
    ///
    /// # Errors
    /// Another function has the name, or the coordinator was started.
    pub fn function<A, R>(
        &mut self,
        name: &str,
        body: impl Fn(&mut TaskContext<'_>, &mut S, A) -> Result<R> + 'static,
    ) -> Result<TaskFunction<A, R>>
    where
        A: DeserializeOwned,
        R: Serialize,
    {
        if self.chief.is_some() || self.functions.contains_key(name) {
            return Err(Error::user(format!(
                "the function `{name}` is there already, or comes after `start`; give each a name of its own before"
            )));
        }
        let described = name.to_owned();
        let run = move |cx: &mut TaskContext<'_>, state: &mut S, arguments: &[u8]| {
            let given = serde_json::from_slice(arguments).map_err(|error| {
                Error::user(format!("what `{described}` is given is not what it takes: {error}; start all with the same program"))
            })?;
            let result = body(cx, state, given)?;
            written(&format!("the result of `{described}`"), &result)
        };
        self.functions.insert(name.to_owned(), Box::new(run));
        Ok(TaskFunction {
            name: name.to_owned(),
            marker: PhantomData,
        })
    }

    /// Batches for each worker, which `make` makes in the worker when a function first asks for one: shard or shuffle them by the
    /// context, whose pipelines are the workers that run functions.
    pub fn per_worker_dataset(
        &mut self,
        make: impl Fn(InputContext) -> Result<Batches> + 'static,
    ) -> WorkerDataset {
        self.datasets.push(Box::new(make));
        WorkerDataset {
            index: self.datasets.len() - 1,
        }
    }

    /// In the first worker `true`, at once. In the others it runs what that one schedules until it is done, and returns `false`.
    ///
    /// # Errors
    /// The job has failed: the first worker or a server is gone.
    pub fn start(&mut self) -> Result<bool> {
        if self.chief.is_some() {
            return Err(Error::user(
                "the coordinator was started before; start it once",
            ));
        }
        if self.servers.is_chief() {
            let next = self.servers.open_tasks()?;
            self.chief = Some(Arc::new(Chief {
                servers: Arc::clone(&self.servers),
                pending: Mutex::new(Pending {
                    next,
                    ..Pending::default()
                }),
            }));
            return Ok(true);
        }
        self.run_tasks()?;
        Ok(false)
    }

    fn run_tasks(&mut self) -> Result<()> {
        let mut iterators = BTreeMap::new();
        while let Some((task, arguments)) = self.servers.take_task()? {
            let mut cx = TaskContext {
                servers: &self.servers,
                task: &task,
                pushes: 0,
                steps: 0,
                datasets: &self.datasets,
                iterators: &mut iterators,
            };
            let result = match self.functions.get(&task.function) {
                Some(run) => run(&mut cx, &mut self.state, &arguments),
                None => Err(Error::user(format!(
                    "there is no function `{}` here; start all with the same program",
                    task.function
                ))),
            };
            let result = match result {
                // It is the job that cannot go on, or not with this process.
                Err(error @ Error::Cluster(_)) => return Err(error),
                other => other.map_err(|error| error.to_string()),
            };
            self.servers.finish_task(task.number, result)?;
        }
        Ok(())
    }

    /// Has a function run by one of the workers, whichever is free first, and returns at once; but where 262,144 functions have not
    /// ended it waits for one.
    ///
    /// # Errors
    /// The first error of a function before it, only once; the job has failed, or this is not the first worker.
    pub fn schedule<A: Serialize, R>(
        &self,
        function: &TaskFunction<A, R>,
        arguments: &A,
    ) -> std::result::Result<RemoteValue<R>, ScheduleError> {
        let chief = self.chief()?;
        let what = format!("what `{}` is given", function.name);
        let bytes = written(&what, arguments)?;
        let mut pending = chief.pending();
        chief.hear(&mut pending, Duration::ZERO)?;
        chief.raise(&mut pending)?;
        let mut since = Instant::now();
        while pending.outstanding.len() >= MOST_SCHEDULED {
            chief.wait(&mut pending, &mut since)?;
            chief.raise(&mut pending)?;
        }
        let number = pending.next;
        chief.servers.first_step(|| chief.servers.updates())?;
        chief.servers.schedule(number, &function.name, &bytes)?;
        pending.next += 1;
        let slot = Arc::new(EndSlot {
            function: function.name.clone(),
            end: Mutex::default(),
        });
        pending.outstanding.insert(number, Arc::clone(&slot));
        Ok(RemoteValue {
            chief: Arc::clone(chief),
            slot,
            marker: PhantomData,
        })
    }

    /// Waits until all functions that were scheduled have ended.
    ///
    /// # Errors
    /// The first error of a function, only once: when what was begun has ended, and nothing runs any more. The job has failed,
    /// no function has ended for longer than [`timeout`](super::ParameterServerOptions::timeout), or this is not the first worker.
    pub fn join(&self) -> std::result::Result<(), ScheduleError> {
        let chief = self.chief()?;
        let mut pending = chief.pending();
        let mut since = Instant::now();
        chief.hear(&mut pending, Duration::ZERO)?;
        while pending.error.is_none() && !pending.outstanding.is_empty() {
            chief.wait(&mut pending, &mut since)?;
        }
        chief.raise(&mut pending)
    }

    /// Whether all functions that were scheduled have ended.
    ///
    /// # Errors
    /// As [`join`](Self::join); it waits where there is one.
    pub fn done(&self) -> std::result::Result<bool, ScheduleError> {
        let chief = self.chief()?;
        let mut pending = chief.pending();
        chief.hear(&mut pending, Duration::ZERO)?;
        chief.raise(&mut pending)?;
        Ok(pending.outstanding.is_empty())
    }

    /// What functions have in this process.
    pub const fn state(&self) -> &S {
        &self.state
    }

    /// What functions have in this process, to change it: in the first worker a trainer to evaluate or to save. Call
    /// [`join`](Self::join) before.
    pub const fn state_mut(&mut self) -> &mut S {
        &mut self.state
    }

    fn chief(&self) -> Result<&Arc<Chief>> {
        self.chief.as_ref().ok_or_else(|| {
            Error::user("functions are scheduled by the first worker, after `start`")
        })
    }
}

/// The workers are done; what goes wrong then is no failure of what was done.
impl<S> Drop for ClusterCoordinator<S> {
    fn drop(&mut self) {
        if self.chief.is_some() && !std::thread::panicking() {
            let _ = self.servers.close_tasks();
        }
    }
}

fn written<T: Serialize>(what: &str, value: &T) -> Result<Vec<u8>> {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| Error::user(format!("{what} cannot be sent: {error}")))?;
    Ok(bytes)
}
