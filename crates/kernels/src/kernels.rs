//! The public handle.

use std::ffi::c_uint;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use phalanx_pjrt::{Client, PluginSearch};

use crate::batch_norm;
use crate::bf16_matmul::MatmulDesc;
use crate::bf16_rate::has_fast_bf16;
use crate::convolution::ConvolutionDesc;
use crate::epilogue::Epilogue;
use crate::handlers;
use crate::library::{self, KernelError, Library};
use crate::max_pool::{self, MaxPool};
use crate::onednn::OneDnnError;
use crate::stored::Stored;
use crate::sys;
use crate::worker_pool::{WorkerError, WorkerPool};
use crate::worker_state::WorkerState;

/// What the kernels can do on this processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Support {
    /// Whether convolutions of bf16 run on instructions of the processor for them, which are faster than f32's. Else they are computed in f32.
    pub bf16: bool,
    /// Whether products of bf16 run on AMX: the processor has it, and the system lets this process use it.
    pub amx_bf16: bool,
    /// Whether there are convolutions by Winograd's tiles and by products of ours, which may be given kernels in the form that they compute with.
    pub tiles: bool,
}

impl Support {
    /// By what oneDNN says that the processor has, and that it may use; and by how fast that is.
    fn of_isa(isa: c_uint, has_fast_bf16: bool) -> Self {
        let has = |wanted| isa & wanted == wanted;
        Self {
            bf16: has(sys::ISA_AVX512_BF16) && has_fast_bf16,
            amx_bf16: has(sys::ISA_AVX512_AMX),
            tiles: has_tiles(),
        }
    }
}

/// A loaded oneDNN with the threads for its operations; clones share it.
#[derive(Clone)]
pub struct Kernels(Arc<Inner>);

struct Inner {
    library: Library,
    support: Support,
    /// Workers with 1, 2, .. threads, up to the number of processors; started when first used.
    pools: Vec<OnceLock<WorkerPool>>,
}

impl Kernels {
    /// Finds the library, loads it and starts a thread for its operations: `explicit`, then `PHALANX_ONEDNN_LIBRARY`, then the per-user cache, then the
    /// system's `libdnnl.so.3`. It uses as many threads as XLA's pool has (`PJRT_NPROC`, else the processors of this process).
    ///
    /// [`set_openmp_wait_policy`](crate::set_openmp_wait_policy) is to be called before, once.
    ///
    /// # Errors
    /// See [`KernelError`]: what was looked at and what to do.
    pub fn find(search: &PluginSearch, explicit: Option<&Path>) -> Result<Self, KernelError> {
        let library = library::find(search, explicit)?;
        // SAFETY: the function has no conditions.
        let limit = unsafe { (library.api.omp_get_thread_limit)() };
        let threads = phalanx_pjrt::xla_threads().min(usize::try_from(limit).unwrap_or(1).max(1));
        let pools: Vec<OnceLock<WorkerPool>> = (0..threads).map(|_| OnceLock::new()).collect();
        let all = WorkerPool::start(library.api, threads, threads)?;
        pools[threads - 1].get_or_init(|| all);
        // SAFETY: the function has no conditions.
        let isa = unsafe { (library.api.effective_isa)() };
        Ok(Self(Arc::new(Inner {
            library,
            support: Support::of_isa(isa, has_fast_bf16()),
            pools,
        })))
    }

    /// Registers the kernels with this client's plugin for the rest of the process; kernels that are registered already stay.
    ///
    /// # Errors
    /// The plugin is not for the CPU, or has no custom calls.
    pub fn register(&self, client: &Client) -> Result<(), KernelError> {
        let platform = client.platform();
        if platform != "cpu" {
            let reason = format!("they are for the cpu, not for the platform {platform}");
            return Err(KernelError::Register { reason });
        }
        let all = handlers::ALL.iter().chain(handlers::BY_PREPARED);
        all.copied().try_for_each(|(name, handler)| {
            let kernels = self.clone();
            handlers::register(client, name, move |call| handler(&kernels, call))
        })
    }

    /// What they can do on this processor.
    #[must_use]
    pub fn support(&self) -> Support {
        self.0.support
    }

    /// Number of threads of an operation while `replicas` replicas of a program compute at the same time.
    #[must_use]
    pub fn threads(&self, replicas: usize) -> usize {
        (self.0.pools.len() / replicas.max(1)).max(1)
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
        let pools = self.0.pools.iter().filter_map(OnceLock::get);
        let mut lines: Vec<String> = pools.flat_map(WorkerPool::describe).collect();
        lines.sort();
        lines.dedup();
        lines
    }

    /// Median of `times` measurements of the seconds that it takes to run an empty job on a dedicated thread.
    ///
    /// # Panics
    /// Such operations took 10 minutes.
    #[must_use]
    pub fn dispatch_seconds(&self, times: usize) -> f64 {
        let time = || {
            let start = std::time::Instant::now();
            self.on_worker(1, |_| ()).expect("operations end");
            start.elapsed().as_secs_f64()
        };
        let mut seconds: Vec<f64> = (0..times.max(1)).map(|_| time()).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    }

    /// Runs a convolution.
    pub(crate) fn run(
        &self,
        replicas: usize,
        key: ConvolutionDesc,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        epilogue: Epilogue<'_>,
    ) -> Result<Result<(), OneDnnError>, WorkerError> {
        self.on_worker(replicas, |state| state.run(key, inputs, outputs, epilogue))
    }

    /// Multiplies matrices, in the same bits by any number of threads.
    pub(crate) fn matmul(
        &self,
        replicas: usize,
        desc: MatmulDesc,
        inputs: [&[u8]; 2],
        output: &mut [u8],
    ) -> Result<Result<(), OneDnnError>, WorkerError> {
        let threads = self.threads(replicas).min(desc.most_threads());
        self.on_threads(threads, |state| state.run_matmul(desc, inputs, output))
    }

    /// Normalises.
    pub(crate) fn batch_norm<T: Stored>(
        &self,
        replicas: usize,
        job: batch_norm::BatchNormForward<'_, T>,
    ) -> Result<(), WorkerError> {
        self.on_worker(replicas, |state| job.run(&state.team, &mut state.scratch))
    }

    /// The gradient of [`Kernels::batch_norm`].
    pub(crate) fn batch_norm_gradient<T: Stored>(
        &self,
        replicas: usize,
        job: batch_norm::BatchNormGradient<'_, T>,
    ) -> Result<(), WorkerError> {
        self.on_worker(replicas, |state| job.run(&state.team, &mut state.scratch))
    }

    /// The largest elements of windows.
    pub(crate) fn max_pool<T: Stored>(
        &self,
        replicas: usize,
        pool: &MaxPool,
        job: max_pool::MaxPoolForward<'_, T>,
    ) -> Result<(), WorkerError> {
        self.on_worker(replicas, |state| pool.forward(job, &state.team))
    }

    /// The gradient of [`Kernels::max_pool`].
    pub(crate) fn max_pool_gradient<T: Stored>(
        &self,
        replicas: usize,
        pool: &MaxPool,
        job: max_pool::MaxPoolGradient<'_, T>,
    ) -> Result<(), WorkerError> {
        self.on_worker(replicas, |state| pool.gradient(job, &state.team))
    }

    /// Runs a job with the share of the processors that one of `replicas` replicas has.
    pub(crate) fn on_worker<R: Send>(
        &self,
        replicas: usize,
        job: impl FnOnce(&mut WorkerState) -> R + Send,
    ) -> Result<R, WorkerError> {
        self.on_threads(self.threads(replicas), job)
    }

    /// Runs a job on the first free worker of this number of threads.
    fn on_threads<R: Send>(
        &self,
        threads: usize,
        job: impl FnOnce(&mut WorkerState) -> R + Send,
    ) -> Result<R, WorkerError> {
        let slot = &self.0.pools[threads - 1];
        let pool = match slot.get() {
            Some(pool) => pool,
            None => {
                let pool = WorkerPool::start(self.0.library.api, threads, self.0.pools.len())?;
                slot.get_or_init(|| pool)
            }
        };
        pool.run(job)
    }
}

#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    crate::simd::has_fma()
}

#[cfg(not(target_arch = "x86_64"))]
const fn has_tiles() -> bool {
    false
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels({})", self.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_says_what_it_may_use() {
        let of = |isa| {
            let support = Support::of_isa(isa, true);
            (support.bf16, support.amx_bf16)
        };
        assert!(!Support::of_isa(0xe7, false).bf16);
        // AVX2, AVX-512, with bf16, with fp16, with AMX, with AMX of fp16 too.
        let expected = [
            (0x7, (false, false)),
            (0x27, (false, false)),
            (0xe7, (true, false)),
            (0x1ef, (true, false)),
            (0xfef, (true, true)),
            (0x1fef, (true, true)),
        ];
        for (isa, support) in expected {
            assert_eq!(of(isa), support, "{isa:x}");
        }
    }
}
