//! The public handle.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use phalanx_pjrt::{Client, Code, Places};

use crate::convolution::Key;
use crate::epilogue::Epilogue;
use crate::handlers;
use crate::lanes::{Lanes, NoLane};
use crate::library::{self, KernelError, Library};
use crate::norm;
use crate::onednn::Refused;
use crate::pooling::{self, Pool};
use crate::state::State;
use crate::sys;

/// What the kernels can do on this processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Support {
    /// Whether operations on bf16 run on instructions of the processor for them.
    pub bf16: bool,
}

/// A loaded oneDNN with the threads for its operations; clones share it.
#[derive(Clone)]
pub struct Kernels(Arc<Inner>);

struct Inner {
    library: Library,
    support: Support,
    /// By number of threads of an operation, less 1: one entry for each number up to that of the processors.
    lanes: Vec<OnceLock<Lanes>>,
}

impl Kernels {
    /// Finds the library, loads it and starts a thread for its operations: `explicit`, then `PHALANX_ONEDNN_LIBRARY`, then the per-user cache, then the
    /// system's `libdnnl.so.3`. It uses as many threads as XLA's pool has (`PJRT_NPROC`, else the processors of this process).
    ///
    /// [`prepare_environment`](crate::prepare_environment) is to be called before, once.
    ///
    /// # Errors
    /// See [`KernelError`]: what was looked at and what to do.
    pub fn find(places: &Places, explicit: Option<&Path>) -> Result<Self, KernelError> {
        let library = library::find(places, explicit)?;
        let threads = library::pool_threads(places);
        let lanes: Vec<OnceLock<Lanes>> = (0..threads).map(|_| OnceLock::new()).collect();
        let all = Lanes::start(library.api, threads, threads)?;
        lanes[threads - 1].get_or_init(|| all);
        // SAFETY: the function has no conditions.
        let isa = unsafe { (library.api.effective_isa)() };
        let support = Support {
            bf16: isa & sys::ISA_AVX512_BF16 == sys::ISA_AVX512_BF16,
        };
        Ok(Self(Arc::new(Inner {
            library,
            support,
            lanes,
        })))
    }

    /// Makes the kernels callable from programs of this client's plugin, for the rest of the process; where some are already, those serve.
    ///
    /// # Errors
    /// The plugin is not for the CPU, or has no custom calls.
    pub fn register(&self, client: &Client) -> Result<(), KernelError> {
        let refused = |reason| KernelError::Register { reason };
        if client.platform() != "cpu" {
            return Err(refused(format!(
                "they are for the cpu, not for the platform {}",
                client.platform()
            )));
        }
        handlers::ALL.iter().try_for_each(|&(name, handler)| {
            let kernels = self.clone();
            let registered = client.register_custom_call(name, move |call| handler(&kernels, call));
            registered.or_else(|error| match error.code {
                Code::AlreadyExists => Ok(()),
                _ => Err(refused(error.to_string())),
            })
        })
    }

    /// What they can do on this processor.
    #[must_use]
    pub fn support(&self) -> Support {
        self.0.support
    }

    /// Number of threads of an operation while so many replicas of a program compute at once.
    #[must_use]
    pub fn threads(&self, replicas: usize) -> usize {
        (self.0.lanes.len() / replicas.max(1)).max(1)
    }

    /// The file of the library, or its name where the system's loader found it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.library.path
    }

    /// Version and origin of the library, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let Library {
            path,
            source,
            version: (major, minor, patch),
            ..
        } = &self.0.library;
        format!(
            "onednn {major}.{minor}.{patch} from {source}: {} ({} threads)",
            path.display(),
            self.threads(1)
        )
    }

    /// One line for each operation that was made and does not run at the moment: its key and oneDNN's implementation.
    #[must_use]
    pub fn operations(&self) -> Vec<String> {
        let lanes = self.0.lanes.iter().filter_map(OnceLock::get);
        let mut lines: Vec<String> = lanes.flat_map(Lanes::describe).collect();
        lines.sort();
        lines.dedup();
        lines
    }

    /// Seconds that it takes to hand an empty job to the thread of operations that use all processors and back, the median of `times`.
    ///
    /// # Panics
    /// Such operations took 10 minutes.
    #[must_use]
    pub fn hand_over_seconds(&self, times: usize) -> f64 {
        let time = || {
            let start = std::time::Instant::now();
            self.on_lane(1, |_| ()).expect("operations end");
            start.elapsed().as_secs_f64()
        };
        let mut seconds: Vec<f64> = (0..times.max(1)).map(|_| time()).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    }

    /// Runs the operation of this key.
    pub(crate) fn run(
        &self,
        replicas: usize,
        key: Key,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        epilogue: Epilogue<'_>,
    ) -> Result<Result<(), Refused>, NoLane> {
        self.on_lane(replicas, |state| state.run(key, inputs, outputs, epilogue))
    }

    /// Normalises.
    pub(crate) fn batch_norm(&self, replicas: usize, job: norm::Forward<'_>) -> Result<(), NoLane> {
        self.on_lane(replicas, |state| job.run(&state.team, &mut state.scratch))
    }

    /// The gradient of [`Kernels::batch_norm`].
    pub(crate) fn batch_norm_gradient(
        &self,
        replicas: usize,
        job: norm::Gradient<'_>,
    ) -> Result<(), NoLane> {
        self.on_lane(replicas, |state| job.run(&state.team, &mut state.scratch))
    }

    /// The largest elements of windows.
    pub(crate) fn max_pool(
        &self,
        replicas: usize,
        pool: &Pool,
        job: pooling::Forward<'_>,
    ) -> Result<(), NoLane> {
        self.on_lane(replicas, |state| pool.forward(job, &state.team))
    }

    /// The gradient of [`Kernels::max_pool`].
    pub(crate) fn max_pool_gradient(
        &self,
        replicas: usize,
        pool: &Pool,
        job: pooling::Gradient<'_>,
    ) -> Result<(), NoLane> {
        self.on_lane(replicas, |state| pool.gradient(job, &state.team))
    }

    /// Runs a job with the share of the processors that one of so many replicas has.
    fn on_lane<R: Send>(
        &self,
        replicas: usize,
        job: impl FnOnce(&mut State) -> R + Send,
    ) -> Result<R, NoLane> {
        let threads = self.threads(replicas);
        let place = &self.0.lanes[threads - 1];
        let lanes = match place.get() {
            Some(lanes) => lanes,
            None => {
                let lanes = Lanes::start(self.0.library.api, threads, self.0.lanes.len())?;
                place.get_or_init(|| lanes)
            }
        };
        lanes.run(job)
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels({})", self.describe())
    }
}
