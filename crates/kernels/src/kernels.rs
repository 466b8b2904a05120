//! The public handle.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use phalanx_pjrt::{Client, Code, Places};

use crate::convolution::Key;
use crate::executor::{Executor, flush_denormals};
use crate::handlers;
#[cfg(target_arch = "x86_64")]
use crate::kernel_gradient;
use crate::library::{self, KernelError, Library};
use crate::norm;
use crate::onednn::{OneDnn, Operation, Refused, Scratch};
use crate::pooling::{self, Pool};
use crate::sys;
use crate::team::Team;

/// What the kernels can do on this processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Support {
    /// Whether operations on bf16 run on instructions of the processor for them.
    pub bf16: bool,
}

/// A loaded oneDNN with its thread; clones share it.
#[derive(Clone)]
pub struct Kernels(Arc<Inner>);

struct Inner {
    library: Library,
    threads: usize,
    support: Support,
    executor: Executor<State>,
}

impl Kernels {
    /// Finds the library, loads it and starts its thread: `explicit`, then `PHALANX_ONEDNN_LIBRARY`, then the per-user cache, then the
    /// system's `libdnnl.so.3`. It uses as many threads as XLA's pool has (`PJRT_NPROC`, else the processors of this process).
    ///
    /// [`prepare_environment`](crate::prepare_environment) is to be called before, once.
    ///
    /// # Errors
    /// See [`KernelError`]: what was looked at and what to do.
    pub fn find(places: &Places, explicit: Option<&Path>) -> Result<Self, KernelError> {
        let library = library::find(places, explicit)?;
        let (api, threads) = (library.api, library::threads(places));
        let executor = Executor::start(move || {
            flush_denormals();
            let onednn = OneDnn::start(api, threads)?;
            Ok::<_, KernelError>(State::new(onednn, Team::new(api, threads)))
        })?;
        // SAFETY: the function has no conditions.
        let isa = unsafe { (api.effective_isa)() };
        let support = Support {
            bf16: isa & sys::ISA_AVX512_BF16 == sys::ISA_AVX512_BF16,
        };
        Ok(Self(Arc::new(Inner {
            library,
            threads,
            support,
            executor,
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

    /// Number of threads that an operation uses.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.0.threads
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
            self.0.threads
        )
    }

    /// One line for each operation that was made: its key and oneDNN's implementation.
    #[must_use]
    pub fn operations(&self) -> Vec<String> {
        self.0.executor.run(|state| {
            let lines = state.operations.iter();
            lines
                .map(|(key, operation)| format!("{key:?}: {}", operation.describe()))
                .collect()
        })
    }

    /// Seconds that it takes to hand an empty job to the kernels' thread and back, the median of `times`.
    #[must_use]
    pub fn hand_over_seconds(&self, times: usize) -> f64 {
        let time = || {
            let start = std::time::Instant::now();
            self.0.executor.run(|_| ());
            start.elapsed().as_secs_f64()
        };
        let mut seconds: Vec<f64> = (0..times.max(1)).map(|_| time()).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    }

    /// Runs the operation of this key on the kernels' thread.
    pub(crate) fn run(
        &self,
        key: Key,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), Refused> {
        self.0.executor.run(|state| state.run(key, inputs, outputs))
    }

    /// Normalises on the kernels' threads.
    pub(crate) fn batch_norm(&self, job: norm::Forward<'_>) {
        self.0
            .executor
            .run(|state| job.run(&state.team, &mut state.scratch));
    }

    /// The gradient of [`Kernels::batch_norm`].
    pub(crate) fn batch_norm_gradient(&self, job: norm::Gradient<'_>) {
        self.0
            .executor
            .run(|state| job.run(&state.team, &mut state.scratch));
    }

    /// The largest elements of windows, found on the kernels' threads.
    pub(crate) fn max_pool(&self, pool: &Pool, job: pooling::Forward<'_>) {
        self.0.executor.run(|state| pool.forward(job, &state.team));
    }

    /// The gradient of [`Kernels::max_pool`].
    pub(crate) fn max_pool_gradient(&self, pool: &Pool, job: pooling::Gradient<'_>) {
        self.0.executor.run(|state| pool.gradient(job, &state.team));
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels({})", self.describe())
    }
}

/// Operations kept at most; programs have hundreds, so that more are of programs that are gone.
const MOST_OPERATIONS: usize = 4096;

/// What the kernels' thread owns. The operations come first: they are dropped before what they were made with.
struct State {
    operations: HashMap<Key, Operation>,
    scratch: Scratch,
    team: Team,
    onednn: OneDnn,
}

/// Most arguments of an operation.
const MOST_ARGUMENTS: usize = 8;

impl State {
    fn new(onednn: OneDnn, team: Team) -> Self {
        Self {
            operations: HashMap::new(),
            scratch: Scratch::default(),
            team,
            onednn,
        }
    }

    fn run(
        &mut self,
        key: Key,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), Refused> {
        let mut data = [(std::ptr::null_mut(), 0); MOST_ARGUMENTS];
        let count = inputs.len() + outputs.len();
        let (first, rest) = data.split_at_mut(inputs.len());
        for (slot, input) in first.iter_mut().zip(inputs) {
            *slot = (input.as_ptr().cast_mut(), input.len());
        }
        for (slot, output) in rest.iter_mut().zip(&mut *outputs) {
            *slot = (output.as_mut_ptr(), output.len());
        }
        #[cfg(target_arch = "x86_64")]
        if let ([x, dy], [dw]) = (inputs, &mut *outputs)
            && kernel_gradient::suits(&key, self.team.threads())
        {
            let (x, dy, dw) = (floats(x), floats(dy), floats_mut(dw));
            kernel_gradient::run(&key, x, dy, dw, &self.team, &mut self.scratch);
            return Ok(());
        }
        if !self.operations.contains_key(&key) {
            if self.operations.len() >= MOST_OPERATIONS {
                self.operations.clear();
            }
            self.operations.insert(key, key.operation(&self.onednn)?);
        }
        // SAFETY: the pointers are those of the slices, which are borrowed until this returns; the operation writes only to outputs.
        unsafe { self.operations[&key].run(&self.onednn, &data[..count], &mut self.scratch) }
    }
}

/// # Panics
/// The bytes are not aligned, which those of XLA are.
#[cfg(target_arch = "x86_64")]
fn floats(bytes: &[u8]) -> &[f32] {
    // SAFETY: every pattern is a number.
    let (before, floats, after) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && after.is_empty());
    floats
}

/// As [`floats`].
#[cfg(target_arch = "x86_64")]
fn floats_mut(bytes: &mut [u8]) -> &mut [f32] {
    // SAFETY: every pattern is a number, and its bytes are bytes.
    let (before, floats, after) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && after.is_empty());
    floats
}
