//! Compiles programs, keeps state on devices, runs steps: the only user of `phalanx-pjrt` and `phalanx-kernels`.

mod announce;
mod kernels;
mod memory;
mod mesh;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use phalanx_graph::{
    AlignedBytes, CompilerOption, DType, HostSums, HostTensor, Lowering, Program, Shape,
};
use phalanx_pjrt::{
    Buffer, Client, CompileCache, CompileOptions, CompiledMemory, ElementType, Event, Executable,
    ExecuteOptions, Installer, OptionValue, OverrideValue, PjrtError, Places, Platform, Plugin,
    SharedBytes, keep_freed_memory,
};

use self::announce::announced;
use self::kernels::EngineKernels;
use crate::{Error, Result};

pub use self::kernels::KernelsMode;

/// More runs than one wait is for: the longest wait is so many deadlines.
const RUNS_WAITED_FOR: u64 = 16;

/// Receives one-line notices, such as that a plugin is being installed.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// Which devices to use and how.
#[derive(Clone)]
pub struct EngineOptions {
    /// Kind of device.
    pub platform: Platform,
    /// The plugin file; found as `phalanx plugin where` tells when absent.
    pub plugin: Option<PathBuf>,
    /// Forbids the installation of a missing CPU plugin or kernel library.
    pub offline: bool,
    /// Whether programs call oneDNN's kernels, on the CPU.
    pub kernels: KernelsMode,
    /// How many devices the CPU is divided into; other platforms have what they have.
    pub cpu_devices: usize,
    /// Whether compiled programs are kept on disk, in the per-user cache.
    pub compile_cache: bool,
    /// Whether programs of the CPU are compiled in a third of the time and run slower, for models that are tried out.
    pub quick_compile: bool,
    /// Whether memory that a CPU program frees stays with the process, all of it, for the next run: several times faster
    /// on large tensors, at the price of never returning it to the system.
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
    platform: phalanx_graph::Platform,
    kernels: EngineKernels,
    cache: Option<CompileCache>,
    quick_compile: bool,
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
    /// [`Error::Device`]: no plugin, one that does not load, or devices that do not start.
    pub fn new(options: &EngineOptions) -> Result<Self> {
        if options.keep_freed_memory && options.platform == Platform::Cpu {
            // Before the plugin starts threads. Without, programs are slower and no less right.
            let _ = keep_freed_memory();
        }
        if options.platform == Platform::Cpu && options.kernels != KernelsMode::Off {
            // Before the plugin starts threads, too.
            phalanx_kernels::prepare_environment();
        }
        let places = Places::of_process();
        let path = plugin_path(&places, options)?;
        let plugin = Plugin::load(&path).map_err(Error::device)?;
        let count = i64::try_from(options.cpu_devices.max(1)).unwrap_or(i64::MAX);
        let named = [("cpu_device_count", OptionValue::Int(count))];
        let named = if options.platform == Platform::Cpu {
            named.as_slice()
        } else {
            &[]
        };
        let client = Client::new(&plugin, named).map_err(Error::device)?;
        if client.devices().is_empty() {
            return Err(Error::Device(format!(
                "the plugin {} has no device on this machine; `phalanx doctor` tells what is missing",
                path.display()
            )));
        }
        let cache = places.cache_dir().filter(|_| options.compile_cache);
        // A cache that cannot be opened costs time, not correctness.
        let cache = cache.and_then(|dir| {
            CompileCache::open(dir.join("programs"), CompileCache::DEFAULT_LIMIT).ok()
        });
        Ok(Self(Arc::new(Inner {
            client,
            platform: lowering_platform(options.platform),
            kernels: EngineKernels::new(options, &places)?,
            cache,
            quick_compile: options.quick_compile && options.platform == Platform::Cpu,
            deadline: options.deadline,
            notice: Arc::clone(&options.notice),
        })))
    }

    /// The client underneath.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Tells the user a line.
    pub fn notice(&self, line: &str) {
        (self.0.notice)(line);
    }

    /// Number of devices.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.0.client.devices().len()
    }

    /// The kind of the devices in their names: `cpu`, `gpu` or `tpu`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.0.platform {
            phalanx_graph::Platform::Cpu => "cpu",
            phalanx_graph::Platform::Tpu => "tpu",
            _ => "gpu",
        }
    }

    /// The name of the device at a position, as in `cpu:0`.
    #[must_use]
    pub fn device_name(&self, device: usize) -> String {
        format!("{}:{device}", self.kind())
    }

    /// Compiles a program for the first devices, or takes it from the cache.
    ///
    /// # Errors
    /// As for [`compile_on`](Self::compile_on).
    pub fn compile(&self, name: &str, program: &Program) -> Result<Compiled> {
        let devices: Vec<usize> = (0..program.devices()).collect();
        self.compile_on(name, program, &devices)
    }

    /// Compiles a program for one device a replica, or a part of one on a mesh, by their positions, or takes it from the cache.
    ///
    /// # Errors
    /// [`Error::Device`] when the plugin refuses it, or when it needs more memory than there is; when the kernel library that
    /// [`KernelsMode::Path`] names cannot be used. [`Error::User`] when there are not as many devices as the program is for.
    pub fn compile_on(&self, name: &str, program: &Program, devices: &[usize]) -> Result<Compiled> {
        self.compile_beside(name, program, devices, 0)
    }

    /// As [`compile_on`](Self::compile_on), where so many other devices run programs of their own at the same time.
    pub(crate) fn compile_beside(
        &self,
        name: &str,
        program: &Program,
        devices: &[usize],
        others: usize,
    ) -> Result<Compiled> {
        let compiled = self.compile_unchecked(name, program, devices, others)?;
        memory::check(&self.0.client, &compiled, program.devices())?;
        Ok(compiled)
    }

    /// The memory that a program needs on one device, which may be more than there is.
    ///
    /// # Errors
    /// [`Error::Device`] when the plugin refuses the program, or does not know.
    pub fn memory(&self, name: &str, program: &Program) -> Result<CompiledMemory> {
        let devices: Vec<usize> = (0..program.devices()).collect();
        let compiled = self.compile_unchecked(name, program, &devices, 0)?;
        let memory = compiled.executable.memory_stats();
        memory.map_err(|error| refused("find the memory of", name, &error))
    }

    fn compile_unchecked(
        &self,
        name: &str,
        program: &Program,
        devices: &[usize],
        beside: usize,
    ) -> Result<Compiled> {
        mesh::check(self, name, program)?;
        let program = program.simplified();
        let lowering = Lowering {
            // They are registered before the program is compiled or loaded, as it must be.
            kernels: self.0.kernels.support(&self.0.client, &program)?,
            bf16_products: has_bf16_products(),
            products: self.0.kernels.multiplies(&self.0.client, &program),
            beside,
            sums: (self.0.kernels.adds(&self.0.client, &program)).then(|| self.sums()),
            ..Lowering::new(self.0.platform, name)
        };
        let text = program.to_stablehlo(&lowering);
        let relied_on = self.0.platform.compiler_options(&text).into_iter();
        let options = CompileOptions {
            replicas: program.replicas,
            partitions: program.devices() / program.replicas,
            device_assignment: Some(self.device_ids(devices)?),
            overrides: relied_on
                .map(|(name, value)| (name.to_owned(), override_value(value)))
                .chain(self.patience(program.devices()))
                .chain(self.undivided(program.devices() + beside))
                .chain(self.0.quick_compile.then(unoptimized))
                .collect(),
        };
        let (client, cache) = (&self.0.client, self.0.cache.as_ref());
        let compile = || client.compile_cached(cache, &text, &options);
        let compiled = if cache.is_some_and(|cache| client.is_cached(cache, &text, &options)) {
            compile()
        } else {
            announced(&self.0.notice, name, cache.is_some(), compile)
        };
        let (executable, _) = compiled.map_err(|error| refused("compile", name, &error))?;
        Ok(Compiled {
            name: name.into(),
            executable,
        })
    }

    /// How long devices of the CPU wait for each other: XLA ends the process when one is 40 seconds late, unless told.
    ///
    /// It warns when the deadline of a run is over, and ends the process only after every wait of this engine has failed.
    fn patience(&self, devices: usize) -> Vec<(String, OverrideValue)> {
        if devices == 1 || self.kind() != "cpu" {
            return Vec::new();
        }
        let deadline = self.0.deadline.as_secs().max(1);
        let options = [
            ("xla_cpu_collective_call_warn_stuck_seconds", deadline),
            ("xla_cpu_collective_timeout_seconds", deadline),
            (
                "xla_cpu_collective_call_terminate_timeout_seconds",
                deadline.saturating_mul(RUNS_WAITED_FOR),
            ),
        ];
        let seconds = |seconds: u64| OverrideValue::Int(seconds.min(i32::MAX as u64) as i64);
        let options = options.into_iter();
        options
            .map(|(name, value)| (name.to_owned(), seconds(value)))
            .collect()
    }

    /// Where every device that computes has one thread, XLA's operations are not divided: pieces of one replica's would wait for
    /// threads that are busy with another's.
    fn undivided(&self, at_once: usize) -> Option<(String, OverrideValue)> {
        let alone = at_once > 1 && at_once >= phalanx_kernels::pool_threads(&Places::of_process());
        (alone && self.kind() == "cpu").then(|| {
            let pass = OverrideValue::Text("cpu-parallel-task-assigner".to_owned());
            ("xla_disable_hlo_passes".to_owned(), pass)
        })
    }

    /// Sums of our own wait as long as the engine does: within a run replicas are apart by less than a run.
    fn sums(&self) -> HostSums {
        let seconds = self.0.deadline.as_secs().max(1);
        HostSums {
            patience_seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
        }
    }

    fn device_ids(&self, devices: &[usize]) -> Result<Vec<i64>> {
        let known = self.0.client.devices();
        let id = |&device: &usize| {
            known.get(device).map(|device| device.id).ok_or_else(|| {
                Error::user(format!(
                    "a program is to run on device {device}, but the engine has {}, 0 to {}",
                    known.len(),
                    known.len().saturating_sub(1)
                ))
            })
        };
        devices.iter().map(id).collect()
    }

    /// Copies a tensor to a device, without a copy where the device is the host.
    ///
    /// # Errors
    /// [`Error::Device`] when the plugin refuses, for lack of memory say.
    pub fn put(&self, device: usize, tensor: &HostTensor) -> Result<Buffer> {
        let element = element_type(tensor.dtype());
        let dims = signed(tensor.dims());
        let shared: SharedBytes = Arc::new(tensor.shared_bytes());
        let buffer = self.0.client.buffer_shared(device, element, &dims, shared);
        buffer.map_err(|error| refused("copy to the device", &tensor.shape().to_string(), &error))
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
        if !self.is(from) {
            return self.put(device, &from.get(buffer, shape)?);
        }
        let copied = buffer.copy_to_device(device);
        copied.map_err(|error| refused("copy to another device", &shape.to_string(), &error))
    }

    /// Whether both are the same devices.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until a run is done, the last of `runs` that are.
    ///
    /// # Errors
    /// [`Error::Device`]: the computation failed, ran out of memory, or took longer than a deadline for each run.
    pub fn wait(&self, run: &Done, runs: usize) -> Result<()> {
        let deadline = self
            .0
            .deadline
            .saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX));
        let mut events = run.events.iter();
        let waited = events.try_for_each(|event| event.wait(deadline));
        waited.map_err(|error| refused("run", &run.name, &error))
    }

    /// Waits until a run is done on each replica, and returns how long after `start` that was.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub(crate) fn wait_each(&self, run: &Done, start: Instant) -> Result<Vec<Duration>> {
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
            waited.map_err(|error| refused("run", &run.name, &error))
        });
        each.collect()
    }

    /// Reads a buffer of a known shape back, waiting for it.
    ///
    /// # Errors
    /// [`Error::Device`]: the computation failed, ran out of memory, or took longer than the deadline.
    pub fn get(&self, buffer: &Buffer, shape: &Shape) -> Result<HostTensor> {
        let mut bytes = AlignedBytes::zeroed(shape.byte_len());
        buffer
            .copy_to(bytes.as_mut_slice(), self.0.deadline)
            .map_err(|error| refused("read", &shape.to_string(), &error))?;
        Ok(HostTensor::from_aligned(shape.clone(), bytes))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.client.fmt(f)
    }
}

/// LLVM, which takes most of the time on the CPU, leaves the code as it is.
fn unoptimized() -> (String, OverrideValue) {
    let name = "xla_backend_optimization_level".to_owned();
    (name, OverrideValue::Int(0))
}

fn plugin_path(places: &Places, options: &EngineOptions) -> Result<PathBuf> {
    let missing = match places.find(options.platform, options.plugin.as_deref()) {
        Ok(found) => return Ok(found.path),
        Err(missing) => missing,
    };
    let given = options.plugin.is_some() || !missing.reason.starts_with("no ");
    let cache = places.cache_dir();
    let (Some(cache), Platform::Cpu, false) = (cache, options.platform, given) else {
        return Err(Error::device(missing));
    };
    let mut installer = Installer::new(cache);
    installer.offline = options.offline;
    if !options.offline {
        let what = Installer::describe_cpu();
        (options.notice)(&format!("installing the XLA CPU plugin: {what}"));
    }
    installer.cpu().map_err(Error::device)
}

/// A program ready to run on the devices of its engine.
#[derive(Debug)]
pub struct Compiled {
    name: Arc<str>,
    executable: Executable,
}

impl Compiled {
    /// Starts the program with one list of arguments per replica and returns before it is done, with the results of
    /// each replica; the arguments that the program donates are dead afterwards.
    ///
    /// # Errors
    /// [`Error::Device`]: wrong arguments, or lack of memory. A failure of the computation itself shows when a
    /// result is read.
    pub fn run(&self, arguments: &[&[&Buffer]]) -> Result<(Vec<Vec<Buffer>>, Done)> {
        let options = ExecuteOptions::default();
        let execution = self.executable.execute(arguments, &options);
        let execution = execution.map_err(|error| refused("run", &self.name, &error))?;
        let done = Done {
            name: Arc::clone(&self.name),
            events: execution.done,
        };
        Ok((execution.outputs, done))
    }
}

/// The end of a run that was begun; see [`Engine::wait`].
#[derive(Debug)]
pub struct Done {
    name: Arc<str>,
    events: Vec<Event>,
}

impl Done {
    /// Number of runs: one for each device.
    pub(crate) const fn runs(&self) -> usize {
        self.events.len()
    }

    /// Calls `callback` once for each run when it is done or has failed, on a thread of the plugin: it must be quick.
    pub(crate) fn on_each(&self, callback: impl Fn() + Clone + Send + 'static) -> Result<()> {
        for event in &self.events {
            let callback = callback.clone();
            let asked = event.on_ready(move |_| callback());
            asked.map_err(|error| refused("watch", &self.name, &error))?;
        }
        Ok(())
    }
}

/// What the user reads when a plugin refuses.
fn refused(doing: &str, what: &str, error: &PjrtError) -> Error {
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

fn override_value(option: CompilerOption) -> OverrideValue {
    match option {
        CompilerOption::Switch(on) => OverrideValue::Bool(on),
        CompilerOption::Text(text) => OverrideValue::Text(text.to_owned()),
    }
}

const fn lowering_platform(platform: Platform) -> phalanx_graph::Platform {
    match platform {
        Platform::Cpu => phalanx_graph::Platform::Cpu,
        Platform::Cuda => phalanx_graph::Platform::Cuda,
        Platform::Rocm => phalanx_graph::Platform::Rocm,
        Platform::Tpu => phalanx_graph::Platform::Tpu,
        Platform::Oneapi => phalanx_graph::Platform::Oneapi,
    }
}

fn signed(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&dim| dim as i64).collect()
}

const fn element_type(dtype: DType) -> ElementType {
    match dtype {
        DType::F32 => ElementType::F32,
        DType::Bf16 => ElementType::Bf16,
        DType::F16 => ElementType::F16,
        DType::F64 => ElementType::F64,
        DType::I32 => ElementType::I32,
        DType::I64 => ElementType::I64,
        DType::U32 => ElementType::U32,
        DType::U8 => ElementType::U8,
        DType::Bool => ElementType::Pred,
    }
}
/// Whether the processor multiplies bf16 by instructions for it; taken for granted where that cannot be asked.
fn has_bf16_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

#[cfg(test)]
mod tests {
    use phalanx_graph::Graph;
    use phalanx_graph::op::{ReduceOp, Via};

    use super::*;

    #[test]
    fn replicas_wait_for_each_other_as_long_as_the_engine_does() {
        let engine = Engine::new(&EngineOptions {
            cpu_devices: 2,
            deadline: Duration::from_secs(90),
            kernels: KernelsMode::Off,
            compile_cache: false,
            ..EngineOptions::default()
        })
        .unwrap();
        assert_eq!(engine.patience(1), []);
        let last = engine.patience(2).pop().unwrap();
        let name = "xla_cpu_collective_call_terminate_timeout_seconds";
        assert_eq!(last, (name.to_owned(), OverrideValue::Int(16 * 90)));
        // The plugin refuses names that it does not know.
        engine.compile("sum", &sum_of_two(2)).unwrap();
    }

    #[test]
    fn replicas_with_a_thread_each_are_not_divided_further() {
        let engine = Engine::new(&EngineOptions {
            cpu_devices: 2,
            kernels: KernelsMode::Off,
            compile_cache: false,
            ..EngineOptions::default()
        })
        .unwrap();
        let threads = phalanx_kernels::pool_threads(&Places::of_process()).max(2);
        assert_eq!(engine.undivided(1), None);
        assert_eq!(engine.undivided(threads - 1), None);
        let undivided = engine.undivided(threads);
        assert!(undivided.is_some());
        // The plugin says nothing of passes that it does not know: what it writes of its work tells.
        assert!(is_divided(&engine, None));
        assert!(!is_divided(&engine, undivided));
    }

    /// Whether the compiler divides an operation on many elements among its threads, by its own account.
    fn is_divided(engine: &Engine, more: Option<(String, OverrideValue)>) -> bool {
        let name = format!("phalanx-engine-{}-{}", std::process::id(), more.is_some());
        let account = std::env::temp_dir().join(name);
        let folder = OverrideValue::Text(account.to_str().unwrap().to_owned());
        let options = CompileOptions {
            overrides: [("xla_dump_to".to_owned(), folder)]
                .into_iter()
                .chain(more)
                .collect(),
            ..CompileOptions::default()
        };
        let graph = Graph::new();
        let x = graph.parameter("x", Shape::f32([1000, 1000]));
        let program = graph.finish(&[("y", &x.exp().tanh())]).unwrap();
        let text = program.to_stablehlo(&Lowering::new(engine.0.platform, "account"));
        engine.client().compile(&text, &options).unwrap();
        let files = std::fs::read_dir(&account).unwrap();
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()));
        let texts: String = texts.filter_map(std::result::Result::ok).collect();
        std::fs::remove_dir_all(&account).unwrap();
        assert!(texts.contains("exponential"));
        texts.contains("\"outer_dimension_partitions\":[\"")
    }

    /// A program that adds two arrays over replicas.
    fn sum_of_two(replicas: usize) -> Program {
        let graph = Graph::with_replicas(replicas);
        let x = graph.parameter("x", Shape::f32([1000]));
        let y = graph.parameter("y", Shape::f32([3]));
        let sums = graph.all_reduce(&[&(&x * 3.0), &y], ReduceOp::Sum, Via::Native);
        let again = (&sums[0] * &x).all_reduce(ReduceOp::Sum);
        graph
            .finish(&[("x", &sums[0]), ("y", &sums[1]), ("again", &again)])
            .unwrap()
    }

    #[test]
    fn sums_in_shared_memory_are_those_of_the_compiler() {
        let replicas = 3;
        let sums = |kernels| {
            let engine = Engine::new(&EngineOptions {
                cpu_devices: replicas,
                kernels,
                compile_cache: false,
                ..EngineOptions::default()
            })
            .unwrap();
            let compiled = engine.compile("sums", &sum_of_two(replicas)).unwrap();
            let put = |device: usize, len: usize| {
                let values = (0..len).map(|i| 0.1 + ((device + 1) * i) as f32 * 1e-3);
                let values: Vec<f32> = values.collect();
                engine
                    .put(device, &HostTensor::new([len], &values))
                    .unwrap()
            };
            let given: Vec<Vec<Buffer>> = (0..replicas)
                .map(|device| vec![put(device, 1000), put(device, 3)])
                .collect();
            let lists: Vec<Vec<&Buffer>> = given.iter().map(|list| list.iter().collect()).collect();
            let lists: Vec<&[&Buffer]> = lists.iter().map(Vec::as_slice).collect();
            let (outputs, _) = compiled.run(&lists).unwrap();
            let read = |buffer, len| engine.get(buffer, &Shape::f32([len])).unwrap();
            let each = outputs.iter().map(|list| {
                [
                    read(&list[0], 1000),
                    read(&list[1], 3),
                    read(&list[2], 1000),
                ]
            });
            each.collect::<Vec<_>>()
        };
        let own = sums(KernelsMode::Auto);
        assert!(own.iter().all(|replica| *replica == own[0]));
        assert_eq!(own, sums(KernelsMode::Off));
    }
}
