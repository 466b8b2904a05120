//! Compiles programs, keeps state on devices, runs steps: the only user of `phalanx-pjrt` and `phalanx-kernels`.

mod compile;
mod compile_notice;
mod gpu;
mod kernels;
mod memory;
mod mesh;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_graph::{AlignedBytes, HostTensor, Shape};
use phalanx_kernels::launch_id;
use phalanx_pjrt::{
    Buffer, CPU_PLUGIN, Client, CompileCache, ElementType, Event, Executable, ExecuteOptions,
    Installer, OptionValue, PinnedWheel, PjrtError, Platform, Plugin, PluginSearch, SharedBytes,
    keep_freed_memory,
};

use self::kernels::EngineKernels;
use crate::{Error, Result};

pub use self::compile::CompileRequest;
pub use self::gpu::{GpuAllocator, GpuOptions};
pub use self::kernels::KernelsMode;

/// Receives one-line notices, such as that a plugin is being installed.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// Which devices to use and how.
#[derive(Clone)]
pub struct EngineOptions {
    /// Kind of device.
    pub platform: Platform,
    /// The plugin file; if absent, the one that `phalanx plugin where` prints.
    pub plugin: Option<PathBuf>,
    /// Forbids the installation of a missing CPU plugin or kernel library.
    pub offline: bool,
    /// Whether programs call oneDNN's kernels, on the CPU.
    pub kernels: KernelsMode,
    /// How many devices the CPU is divided into; other platforms have what they have.
    pub cpu_devices: usize,
    /// Which GPUs are used and how their memory is taken, where the platform has some.
    pub gpu: GpuOptions,
    /// Whether GPUs and TPUs round the operands of f32 products and convolutions to fewer digits (TF32 on NVIDIA's: 10 bits of a fraction
    /// instead of 23), which is several times faster. As in TensorFlow and JAX they do unless this is `false`; PyTorch does so in
    /// convolutions alone. CPUs never do.
    pub tensor_float_32: bool,
    /// Whether compiled programs are kept on disk, in the per-user cache.
    pub compile_cache: bool,
    /// Whether CPU programs are compiled in a third of the time and run slower, for trying models out.
    pub quick_compile: bool,
    /// Whether the process keeps all memory that CPU programs free for the next run: several times faster on large tensors, but the
    /// memory never returns to the system. A program that builds this crate with the feature `allocator` keeps large blocks whole.
    pub keep_freed_memory: bool,
    /// Longest wait for one result of a device.
    pub deadline: Duration,
    /// Where notices go: standard error by default.
    pub notice: Notice,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            platform: Platform::Cpu,
            plugin: None,
            offline: false,
            kernels: KernelsMode::Auto,
            cpu_devices: 1,
            gpu: GpuOptions::default(),
            tensor_float_32: true,
            compile_cache: true,
            quick_compile: false,
            keep_freed_memory: true,
            deadline: Duration::from_secs(600),
            notice: Arc::new(|line| eprintln!("{line}")),
        }
    }
}

/// The devices of a plugin and what is compiled for them; clones share them.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    client: Client,
    platform: Platform,
    kernels: EngineKernels,
    cache: Option<CompileCache>,
    quick_compile: bool,
    full_f32: bool,
    deadline: Duration,
    notice: Notice,
}

impl Engine {
    /// The CPU of this machine as one device.
    ///
    /// # Errors
    /// As for [`Engine::new`].
    pub fn cpu() -> Result<Self> {
        Self::new(&EngineOptions::default())
    }

    /// Finds the plugin, installing the CPU's when it is missing, and starts its devices.
    ///
    /// # Errors
    /// [`Error::Device`]: no plugin, one that does not load, or devices that do not start; [`Error::User`]: options for GPUs of
    /// another platform, or that make no sense.
    pub fn new(options: &EngineOptions) -> Result<Self> {
        let mut named = options.gpu.of_client(options.platform)?;
        if options.keep_freed_memory && options.platform == Platform::Cpu {
            // Before the plugin starts threads. Without, programs are slower and no less right.
            let _ = keep_freed_memory();
        }
        let search = PluginSearch::from_process();
        let kernels = EngineKernels::new(options, &search)?;
        // Before the plugin starts threads, too.
        if !kernels.are_off() && !phalanx_kernels::set_openmp_wait_policy() {
            tell_once(
                &options.notice,
                "other threads run already, so that OMP_WAIT_POLICY cannot be set: idle threads of kernels take processors for a while; set OMP_WAIT_POLICY=passive, or start the engine before other threads",
            );
        }
        if options.platform == Platform::Cpu {
            phalanx_pjrt::limit_xla_threads();
        }
        let path = plugin_path(&search, options)?;
        let plugin = Plugin::load(&path).map_err(Error::device)?;
        let count = i64::try_from(options.cpu_devices.max(1)).unwrap_or(i64::MAX);
        if options.platform == Platform::Cpu {
            named.push(("cpu_device_count", OptionValue::Int(count)));
        }
        let client = Client::new(&plugin, &named).map_err(Error::device)?;
        if client.devices().is_empty() {
            return Err(Error::Device(format!(
                "the plugin {} has no device on this machine; `phalanx doctor` tells what is missing",
                path.display()
            )));
        }
        let cache = search.cache_dir().filter(|_| options.compile_cache);
        // A cache that cannot be opened costs time, not correctness.
        let cache = cache.and_then(|dir| {
            let opened = CompileCache::open(dir.join("programs"), CompileCache::DEFAULT_LIMIT);
            let told = opened.map_err(|error| {
                tell_once(
                    &options.notice,
                    &format!("warning: compiled programs are not kept: {error}"),
                );
            });
            told.ok()
        });
        Ok(Self(Arc::new(Inner {
            client,
            platform: options.platform,
            kernels,
            cache,
            quick_compile: options.quick_compile && options.platform == Platform::Cpu,
            full_f32: !options.tensor_float_32 && options.platform != Platform::Cpu,
            deadline: options.deadline,
            notice: Arc::clone(&options.notice),
        })))
    }

    /// The client underneath.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Sends a notice to the user.
    pub fn notice(&self, line: &str) {
        (self.0.notice)(line);
    }

    /// Where notices go, for whoever has no engine.
    pub(crate) fn notice_handle(&self) -> Notice {
        Arc::clone(&self.0.notice)
    }

    /// Number of devices.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.0.client.devices().len()
    }

    /// The kind of the devices in their names: `cpu`, `gpu` or `tpu`.
    #[must_use]
    pub fn platform_name(&self) -> &'static str {
        match self.0.platform {
            Platform::Cpu => "cpu",
            Platform::Tpu => "tpu",
            _ => "gpu",
        }
    }

    /// The name of the device at a position, as in `cpu:0`.
    #[must_use]
    pub fn device_name(&self, device: usize) -> String {
        format!("{}:{device}", self.platform_name())
    }

    /// Copies a tensor to a device, without a copy where the device is the host.
    ///
    /// # Errors
    /// [`Error::Device`] when the plugin refuses, for lack of memory say.
    pub fn put(&self, device: usize, tensor: &HostTensor) -> Result<Buffer> {
        let dims = signed(tensor.dims());
        let shared: SharedBytes = Arc::new(tensor.shared_bytes());
        let buffer = self
            .0
            .client
            .buffer_shared(device, element(tensor)?, &dims, shared);
        buffer.map_err(|error| not_put(tensor, &error))
    }

    /// Copies a tensor to a device, whose memory stays the tensor's alone. A step that donates what [`put`](Self::put) made copies it then,
    /// while the tensor is still there.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn put_copy(&self, device: usize, tensor: &HostTensor) -> Result<Buffer> {
        let dims = signed(tensor.dims());
        let client = &self.0.client;
        let buffer = client.buffer(device, element(tensor)?, &dims, tensor.bytes());
        buffer.map_err(|error| not_put(tensor, &error))
    }

    /// A copy of a buffer of known shape on a device of this engine; through the host when the buffer is another engine's.
    ///
    /// # Errors
    /// [`Error::Device`] when the plugin refuses, for lack of memory say, or what makes the buffer failed.
    pub fn copy(
        &self,
        from: &Self,
        buffer: &Buffer,
        shape: &Shape,
        device: usize,
    ) -> Result<Buffer> {
        if !self.is_same(from) {
            return self.put(device, &from.get(buffer, shape)?);
        }
        let copied = buffer.copy_to_device(device);
        copied.map_err(|error| device_error("copy to another device", &shape.to_string(), &error))
    }

    /// Whether both are clones of the same engine.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until a run is done, of `runs` runs that were started before it or with it.
    ///
    /// # Errors
    /// [`Error::Device`]: the computation failed, ran out of memory, or took longer than a deadline for each run.
    pub fn wait(&self, run: &PendingRun, runs: usize) -> Result<()> {
        Event::wait_all(&run.events, self.deadline_of(runs))
            .map_err(|error| device_error("run", &run.name, &error))
    }

    /// Waits until a run is done on each replica, and returns how long after `start` that was.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub(crate) fn wait_each(&self, run: &PendingRun, start: Instant) -> Result<Vec<Duration>> {
        let deadline = self.0.deadline;
        let waited: Vec<_> = thread::scope(|scope| {
            let wait =
                |event| scope.spawn(move || Event::wait(event, deadline).map(|()| start.elapsed()));
            let waiting: Vec<_> = run.events.iter().map(wait).collect();
            waiting
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        let ended = |_| Error::Bug("a wait ended early".into());
        let each = waited.into_iter().map(|waited| {
            let waited = waited.map_err(ended)?;
            waited.map_err(|error| device_error("run", &run.name, &error))
        });
        each.collect()
    }

    /// Reads a buffer of a known shape back, waiting for it.
    ///
    /// # Errors
    /// [`Error::Device`]: the computation failed, ran out of memory, or took longer than the deadline.
    pub fn get(&self, buffer: &Buffer, shape: &Shape) -> Result<HostTensor> {
        self.get_of(buffer, shape, 1)
    }

    /// The same of a buffer that the last of some runs makes, with a deadline for each.
    pub(crate) fn get_of(&self, buffer: &Buffer, shape: &Shape, runs: usize) -> Result<HostTensor> {
        let mut bytes = AlignedBytes::zeroed(shape.byte_len());
        self.read_of(buffer, shape, bytes.as_mut_slice(), runs)?;
        Ok(HostTensor::from_aligned(shape.clone(), bytes))
    }

    /// The longest wait for the last of some runs.
    fn deadline_of(&self, runs: usize) -> Duration {
        let runs = u32::try_from(runs.max(1)).unwrap_or(u32::MAX);
        self.0.deadline.saturating_mul(runs)
    }

    /// Reads a tensor of a known shape into memory of as many bytes, waiting for it.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(crate) fn read(&self, buffer: &Buffer, shape: &Shape, bytes: &mut [u8]) -> Result<()> {
        self.read_of(buffer, shape, bytes, 1)
    }

    fn read_of(&self, buffer: &Buffer, shape: &Shape, bytes: &mut [u8], runs: usize) -> Result<()> {
        buffer
            .copy_to(bytes, self.deadline_of(runs))
            .map_err(|error| device_error("read", &shape.to_string(), &error))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.client.fmt(f)
    }
}

/// Says something once in a process.
pub(super) fn tell_once(notice: &Notice, line: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.insert(line.to_owned()) {
        notice(line);
    }
}

/// Finds the plugin. Where there is none for the CPU and the user named none, installs it.
fn plugin_path(search: &PluginSearch, options: &EngineOptions) -> Result<PathBuf> {
    let missing = match search.find(options.platform, options.plugin.as_deref()) {
        Ok(found) => return Ok(found.path),
        Err(missing) => missing,
    };
    match search.cache_dir() {
        Some(cache) if options.platform == Platform::Cpu && !missing.named => {
            let title = "the XLA CPU plugin";
            install(&CPU_PLUGIN, title, cache, options.offline, &options.notice)
        }
        _ => Err(Error::device(missing)),
    }
}

/// Installs a library into the cache, after a notice.
fn install(
    wheel: &PinnedWheel,
    title: &str,
    cache: PathBuf,
    offline: bool,
    notice: &Notice,
) -> Result<PathBuf> {
    if !offline {
        notice(&format!("installing {title}: {}", wheel.describe()));
    }
    let installer = Installer {
        offline,
        ..Installer::new(cache)
    };
    installer.install(wheel).map_err(Error::device)
}

/// A program ready to run on the devices of its engine.
#[derive(Debug)]
pub struct Compiled {
    name: Arc<str>,
    executable: Executable,
    fingerprint: u64,
    flops: u64,
    /// The slot of the exchange with other processes.
    world_exchange: Option<u32>,
    /// Whether it exchanges anything with other processes.
    exchanges: bool,
    /// Whether who waits for a run stays awake for a while.
    ends_soon: bool,
}

impl Compiled {
    /// A hash of what was compiled, choices of its kernels among it: equal in processes that compute alike.
    pub(crate) const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// FLOPs of a run on all replicas of all processes, [counted](phalanx_graph::Cost) and not measured.
    pub(crate) const fn flops(&self) -> u64 {
        self.flops
    }

    /// Whether it exchanges anything with other processes: then runs of which neither takes what the other gives must follow each other.
    pub(crate) const fn exchanges(&self) -> bool {
        self.exchanges
    }

    /// Starts the program with one list of arguments per replica and returns before it is done, with the results of
    /// each replica; the arguments that the program donates are dead afterwards.
    ///
    /// # Errors
    /// [`Error::Device`]: wrong arguments, or lack of memory. A failure of the computation itself shows when a
    /// result is read.
    pub fn run(&self, arguments: &[&[&Buffer]]) -> Result<(Vec<Vec<Buffer>>, PendingRun)> {
        let options = ExecuteOptions {
            launch_id: self.world_exchange.map_or(0, launch_id),
            ends_soon: self.ends_soon,
            ..ExecuteOptions::default()
        };
        let execution = self.executable.execute(arguments, &options);
        let execution = execution.map_err(|error| device_error("run", &self.name, &error))?;
        let done = PendingRun {
            name: Arc::clone(&self.name),
            events: execution.done,
        };
        Ok((execution.outputs, done))
    }
}

/// The end of a run that was begun; see [`Engine::wait`].
#[derive(Debug)]
pub struct PendingRun {
    name: Arc<str>,
    events: Vec<Event>,
}

impl PendingRun {
    /// Number of runs: one for each device.
    pub(crate) const fn runs(&self) -> usize {
        self.events.len()
    }

    /// Calls `callback` once for each run when it is done or has failed, on a thread of the plugin: it must be quick.
    pub(crate) fn on_each_done(&self, callback: impl Fn() + Clone + Send + 'static) -> Result<()> {
        for event in &self.events {
            let callback = callback.clone();
            let asked = event.on_ready(move |_| callback());
            asked.map_err(|error| device_error("watch", &self.name, &error))?;
        }
        Ok(())
    }
}

/// The error that the user sees when the plugin refuses.
fn element(tensor: &HostTensor) -> Result<ElementType> {
    let name = tensor.dtype().stablehlo();
    ElementType::from_name(name)
        .ok_or_else(|| Error::Bug(format!("PJRT has no element type {name}")))
}

fn not_put(tensor: &HostTensor, error: &PjrtError) -> Error {
    device_error("copy to the device", &tensor.shape().to_string(), error)
}

fn device_error(doing: &str, what: &str, error: &PjrtError) -> Error {
    if error.is_out_of_memory() {
        return Error::Device(format!(
            "out of memory: cannot {doing} {what}: {}; use a smaller batch or model, or a device with more memory",
            error.message
        ));
    }
    if error.is_timeout() {
        return Error::Device(format!(
            "no answer in time: cannot {doing} {what}: {}; the device is stuck or very slow: try a smaller batch, or raise EngineOptions::deadline",
            error.message
        ));
    }
    Error::Device(format!("cannot {doing} {what}: {error}"))
}

fn signed(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&dim| dim as i64).collect()
}
