//! From a program to an executable: kernels, StableHLO, options of the compiler, the cache, the memory check.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use phalanx_graph::{
    CompilerOption, HostAllReduce, HostMatmul, Lowering, NodeCost, Prepared, Program,
    compiler_options,
};
use phalanx_kernels::has_fast_bf16;
use phalanx_pjrt::{CacheOutcome, CompileOptions, CompiledMemory, OverrideValue};

use super::compile_notice::notice_if_slow;
use super::{Compiled, Engine, device_error, memory, mesh, tell_once};
use crate::{Error, Result};

/// The process is ended only after this many deadlines, when every wait of the engine has failed long before.
const DEADLINES_BEFORE_TERMINATION: u64 = 16;

/// Work up to which a program is short: a thread computes it in about a millisecond, of which a few hand-overs to other threads are a part.
const SHORT: NodeCost = NodeCost {
    flops: 1 << 27,
    bytes: 1 << 26,
};
/// Threads of a device that a short program leaves to others but for one. More have not been tried.
const FEW_THREADS: usize = 2;

/// XLA flags whose value is a comma-separated list, to which every source adds its own entries.
const LIST_FLAGS: [&str; 1] = ["xla_disable_hlo_passes"];

/// A program to compile, and where it will run.
#[derive(Clone, Copy, Debug)]
pub struct CompileRequest<'a> {
    name: &'a str,
    program: &'a Program,
    devices: Option<&'a [usize]>,
    other_devices: usize,
    /// The slot of the exchange with other processes.
    world_exchange: Option<u32>,
}

impl<'a> CompileRequest<'a> {
    /// A program for the first devices of the engine, and the name it has in messages and in the compiled module.
    #[must_use]
    pub const fn new(name: &'a str, program: &'a Program) -> Self {
        Self {
            name,
            program,
            devices: None,
            other_devices: 0,
            world_exchange: None,
        }
    }

    /// Runs on these devices, by position: one for each replica, or for each part of the program on a mesh.
    #[must_use]
    pub const fn on(self, devices: &'a [usize]) -> Self {
        Self {
            devices: Some(devices),
            ..self
        }
    }

    /// Number of other devices of the engine that run programs of their own at the same time; 0 unless set.
    #[must_use]
    pub(crate) const fn with_other_devices(self, other_devices: usize) -> Self {
        Self {
            other_devices,
            ..self
        }
    }

    /// Exchanges values with the replicas of other processes by the exchange of this slot.
    #[must_use]
    pub(crate) const fn with_world_exchange(self, slot: u32) -> Self {
        Self {
            world_exchange: Some(slot),
            ..self
        }
    }

    /// The number of devices that compute at the same time.
    fn busy_devices(&self) -> usize {
        self.program.devices() + self.other_devices
    }
}

impl Engine {
    /// Compiles a program, or takes it from the cache.
    ///
    /// # Errors
    /// [`Error::Device`] when the plugin refuses it, or when it needs more memory than there is; when the kernel library that
    /// [`KernelsMode::Path`](super::KernelsMode::Path) names cannot be used. [`Error::User`] when the engine lacks a device
    /// of the request.
    pub fn compile(&self, request: CompileRequest<'_>) -> Result<Compiled> {
        let compiled = self.load_or_compile(request)?;
        memory::check(&self.0.client, &compiled, request.program.devices())?;
        Ok(compiled)
    }

    /// A program divided by how often its parts must run, for leading parameters that change seldom; nothing where it would not gain.
    ///
    /// # Errors
    /// [`Error::Device`] when the kernel library that [`KernelsMode::Path`](super::KernelsMode::Path) names cannot be used.
    pub(crate) fn prepared(&self, program: &Program, constant: usize) -> Result<Option<Prepared>> {
        let kernels = self.0.kernels.support(&self.0.client, program)?;
        Ok(kernels.and_then(|kernels| program.prepared(constant, kernels)))
    }

    /// The memory that a program needs on one device, which may be more than there is.
    ///
    /// # Errors
    /// [`Error::Device`] when the plugin refuses the program, or does not know.
    pub fn memory(&self, request: CompileRequest<'_>) -> Result<CompiledMemory> {
        let compiled = self.load_or_compile(request)?;
        let memory = compiled.executable.memory_stats();
        memory.map_err(|error| device_error("find the memory of", request.name, &error))
    }

    fn load_or_compile(&self, request: CompileRequest<'_>) -> Result<Compiled> {
        let name = request.name;
        mesh::check(self, name, request.program)?;
        check_processes(&request)?;
        let program = request.program.simplified();
        let threads = self.thread_plan(request, &program);
        let lowering = self.lowering(request, &program, threads)?;
        let text = program.to_stablehlo(&lowering);
        let options = CompileOptions {
            replicas: program.local_replicas(),
            partitions: program.devices() / program.local_replicas(),
            device_assignment: Some(self.device_ids(request)?),
            overrides: self.overrides(request, threads, &text),
        };
        let (client, cache) = (&self.0.client, self.0.cache.as_ref());
        let compile = || client.compile_cached(cache, &text, &options);
        let compiled = if cache.is_some_and(|cache| client.is_cached(cache, &text, &options)) {
            compile()
        } else {
            notice_if_slow(&self.0.notice, name, cache.is_some(), compile)
        };
        let (executable, outcome) =
            compiled.map_err(|error| device_error("compile", name, &error))?;
        if let CacheOutcome::NotStored(reason) = outcome {
            let line = format!("warning: compiled programs are not kept: {reason}");
            tell_once(&self.0.notice, &line);
        }
        Ok(Compiled {
            name: name.into(),
            executable,
            fingerprint: fingerprint(&program, &lowering, &text),
            flops: (program.cost().total.flops).saturating_mul(program.replicas as u64),
            ends_soon: threads.ends_soon,
            world_exchange: request.world_exchange,
            exchanges: request.world_exchange.is_some() && program.communication().is_some(),
        })
    }

    /// How the program is printed; registers the kernels that it calls, which must happen before it is compiled or loaded.
    fn lowering(
        &self,
        request: CompileRequest<'_>,
        program: &Program,
        threads: ThreadPlan,
    ) -> Result<Lowering> {
        let (kernels, client) = (&self.0.kernels, &self.0.client);
        let products = match threads.one_thread {
            true => HostMatmul::AlsoSmall,
            false => HostMatmul::WhereLarge,
        };
        Ok(Lowering {
            kernels: kernels.support(client, program)?,
            native_bf16_dot: has_fast_bf16(),
            host_matmul: kernels.host_matmul(client, program, products),
            bf16_matmul: kernels.bf16_matmul(client, program)?,
            host_lstm: kernels.supports_lstm(client, program),
            host_reductions: kernels.supports_reductions(client, program),
            host_rows: kernels.supports_rows(client, program),
            host_softmax: kernels.supports_softmax(client, program),
            full_f32: self.0.full_f32,
            other_devices: request.other_devices,
            host_all_reduce: kernels
                .supports_all_reduce(client, program)
                .then(|| self.host_all_reduce()),
            ..Lowering::new(self.0.platform, request.name)
        })
    }

    /// Values for flags of the compiler, from all that set some.
    fn overrides(
        &self,
        request: CompileRequest<'_>,
        threads: ThreadPlan,
        text: &str,
    ) -> BTreeMap<String, OverrideValue> {
        let of_platform = compiler_options(self.0.platform, text).into_iter();
        let of_platform = of_platform.map(|(name, value)| (name, override_value(value)));
        // LLVM, which takes most of the time on the CPU, leaves the code as it is.
        let unoptimized = ("xla_backend_optimization_level", OverrideValue::Int(0));
        merged(
            of_platform
                .chain(self.collective_timeouts(request.program.devices()))
                .chain(threads.one_thread.then(disable_parallel_tasks))
                .chain(self.equal_sums(request.program))
                .chain(self.0.quick_compile.then_some(unoptimized)),
        )
    }

    /// Has processes with GPUs add alike what their replicas hold alike: the compiler's first choices are theirs, not those that it has
    /// timed, and rows of a table that come several times are added in one order, not as threads come to them.
    fn equal_sums(&self, program: &Program) -> Vec<(&'static str, OverrideValue)> {
        let may_differ = program.workers > 1 && self.platform_name() == "gpu";
        if !may_differ || !program.adds_after_exchange() {
            return Vec::new();
        }
        vec![
            ("xla_gpu_autotune_level", OverrideValue::Int(0)),
            (
                "xla_gpu_exclude_nondeterministic_ops",
                OverrideValue::Bool(true),
            ),
        ]
    }

    /// How long devices of the CPU wait for each other: XLA ends the process when one is 40 seconds late, unless told.
    ///
    /// It warns when the deadline of a run is over, and ends the process only after every wait of this engine has failed.
    fn collective_timeouts(&self, devices: usize) -> Vec<(&'static str, OverrideValue)> {
        if devices == 1 || self.platform_name() != "cpu" {
            return Vec::new();
        }
        let deadline = self.0.deadline.as_secs().max(1);
        let terminate = deadline.saturating_mul(DEADLINES_BEFORE_TERMINATION);
        let seconds = |seconds: u64| OverrideValue::Int(seconds.min(i32::MAX as u64) as i64);
        vec![
            (
                "xla_cpu_collective_call_warn_stuck_seconds",
                seconds(deadline),
            ),
            ("xla_cpu_collective_timeout_seconds", seconds(deadline)),
            (
                "xla_cpu_collective_call_terminate_timeout_seconds",
                seconds(terminate),
            ),
        ]
    }

    /// How many threads compute a program of the host, and how it is waited for.
    fn thread_plan(&self, request: CompileRequest<'_>, program: &Program) -> ThreadPlan {
        if self.platform_name() != "cpu" {
            return ThreadPlan::default();
        }
        let (threads, devices) = (phalanx_pjrt::xla_threads(), request.busy_devices());
        ThreadPlan::new(threads, devices, program)
    }

    /// Our own all-reduce waits as long as the engine does: within a run, replicas differ by less than the time of a run.
    fn host_all_reduce(&self) -> HostAllReduce {
        let seconds = self.0.deadline.as_secs().max(1);
        HostAllReduce {
            timeout_seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
        }
    }

    fn device_ids(&self, request: CompileRequest<'_>) -> Result<Vec<i64>> {
        let known = self.0.client.devices();
        let id = |device: usize| {
            known.get(device).map(|device| device.id).ok_or_else(|| {
                Error::user(format!(
                    "a program is to run on device {device}, but the engine has {}, 0 to {}",
                    known.len(),
                    known.len().saturating_sub(1)
                ))
            })
        };
        match request.devices {
            Some(devices) => devices.iter().copied().map(id).collect(),
            None => (0..request.program.devices()).map(id).collect(),
        }
    }
}

/// How a program of the host uses its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadPlan {
    /// Whether one thread computes it on each device: neither XLA's operations nor our products are divided.
    ///
    /// Where every busy device has one thread, the parts of a replica's operations would wait for threads that are busy with another's. And the
    /// parts of a short program take less time than the threads that would compute them need to wake up.
    one_thread: bool,
    /// Whether it is short, and leaves a processor to who waits for it.
    ends_soon: bool,
}

impl ThreadPlan {
    /// On as many devices at once, which have these threads together.
    fn new(threads: usize, devices: usize, program: &Program) -> Self {
        let one_each = threads <= devices;
        let short = !one_each && threads <= FEW_THREADS * devices && is_short(program);
        Self {
            one_thread: one_each || short,
            ends_soon: short && program.workers == 1,
        }
    }
}

/// Whether one thread computes it in about a millisecond. How often a loop turns that ends by a condition is not known.
fn is_short(program: &Program) -> bool {
    let cost = program.cost().total;
    cost.flops <= SHORT.flops && cost.bytes <= SHORT.bytes && !program.has_open_loops()
}

/// Leaves XLA's operations whole.
fn disable_parallel_tasks() -> (&'static str, OverrideValue) {
    let pass = OverrideValue::Text("cpu-parallel-task-assigner".to_owned());
    ("xla_disable_hlo_passes", pass)
}

/// Of the text that a process with many threads has: which small products are calls depends on their number, and is no difference between
/// processes.
fn fingerprint(program: &Program, lowering: &Lowering, text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    if program.workers > 1 && lowering.host_matmul == HostMatmul::AlsoSmall {
        let host_matmul = match program
            .gains_from_host_matmul(HostMatmul::WhereLarge, lowering.native_bf16_dot)
        {
            true => HostMatmul::WhereLarge,
            false => HostMatmul::Never,
        };
        let of_many = Lowering {
            host_matmul,
            ..lowering.clone()
        };
        program.to_stablehlo(&of_many).hash(&mut hasher);
    } else {
        text.hash(&mut hasher);
    }
    hasher.finish()
}

/// Refuses a program of several processes that the exchange between processes cannot serve.
fn check_processes(request: &CompileRequest<'_>) -> Result<()> {
    let (name, workers) = (request.name, request.program.workers);
    if workers > 1 && request.world_exchange.is_none() {
        return Err(Error::Bug(format!(
            "`{name}` is a program of {workers} processes, but nothing is bound to carry its exchanges"
        )));
    }
    match request.program.unsupported_between_processes() {
        Some(what) => Err(Error::user(format!(
            "`{name}` needs {what}, which is not supported; train on the devices of one process, or leave it out"
        ))),
        None => Ok(()),
    }
}

/// One value for each flag: of several sources the last counts, but the entries of a list are joined.
fn merged(
    overrides: impl Iterator<Item = (&'static str, OverrideValue)>,
) -> BTreeMap<String, OverrideValue> {
    let mut merged = BTreeMap::new();
    for (name, value) in overrides {
        let before = merged.remove(name);
        let value = match (before, value) {
            (Some(OverrideValue::Text(list)), OverrideValue::Text(more))
                if LIST_FLAGS.contains(&name) =>
            {
                OverrideValue::Text(format!("{list},{more}"))
            }
            (_, value) => value,
        };
        merged.insert(name.to_owned(), value);
    }
    merged
}

fn override_value(option: CompilerOption) -> OverrideValue {
    match option {
        CompilerOption::Switch(on) => OverrideValue::Bool(on),
        CompilerOption::Text(text) => OverrideValue::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use phalanx_graph::op::{ReduceOp, Via};
    use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor};
    use phalanx_pjrt::Buffer;

    use super::super::{EngineOptions, KernelsMode};
    use super::*;

    #[test]
    fn lists_of_passes_are_joined_and_other_values_replaced() {
        let passes = |text: &str| ("xla_disable_hlo_passes", OverrideValue::Text(text.into()));
        let level = |level| ("xla_backend_optimization_level", OverrideValue::Int(level));
        let merged = merged([passes("a"), level(1), passes("b,c"), level(0)].into_iter());
        let expected = [level(0), passes("a,b,c")];
        assert!(
            merged
                .into_iter()
                .eq(expected.map(|(name, value)| (name.to_owned(), value)))
        );
    }

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
        assert_eq!(engine.collective_timeouts(1), []);
        let last = engine.collective_timeouts(2).pop().unwrap();
        let name = "xla_cpu_collective_call_terminate_timeout_seconds";
        assert_eq!(last, (name, OverrideValue::Int(16 * 90)));
        // The plugin refuses names that it does not know.
        let program = sum_of_two(2);
        engine
            .compile(CompileRequest::new("sum", &program))
            .unwrap();
    }

    #[test]
    fn what_one_thread_computes_is_not_divided() {
        let engine = Engine::new(&EngineOptions {
            cpu_devices: 2,
            kernels: KernelsMode::Off,
            compile_cache: false,
            ..EngineOptions::default()
        })
        .unwrap();
        // The plugin says nothing of passes that it does not know: what it writes of its work tells.
        assert!(is_divided(&engine, None));
        assert!(!is_divided(&engine, Some(disable_parallel_tasks())));
    }

    #[test]
    fn short_programs_and_replicas_with_a_thread_each_are_one_threads() {
        let squares = |count: usize, replicas| {
            let graph = Graph::with_replicas(replicas);
            let x = graph.parameter("x", Shape::f32([count]));
            graph.finish(&[("y", &x.square())]).unwrap()
        };
        let plan = |threads, devices, count| {
            let plan = ThreadPlan::new(threads, devices, &squares(count, devices));
            (plan.one_thread, plan.ends_soon)
        };
        // Both factors are read and the product written, 4 bytes each.
        let short = SHORT.bytes as usize / 12;
        let long = short + 1;
        assert_eq!(plan(1, 1, short), (true, false));
        assert_eq!(plan(1, 1, long), (true, false));
        assert_eq!(plan(2, 1, short), (true, true));
        assert_eq!(plan(2, 1, long), (false, false));
        assert_eq!(plan(2, 2, short), (true, false));
        assert_eq!(plan(2, 3, long), (true, false));
        assert_eq!(plan(3, 1, short), (false, false));
        assert_eq!(plan(4, 2, short), (true, true));
        assert_eq!(plan(4, 2, long), (false, false));
        assert_eq!(plan(3, 2, short), (true, true));
        assert_eq!(plan(3, 2, long), (false, false));
        let graph = Graph::new();
        let x = graph.parameter("x", Shape::scalar(DType::F32));
        let going = |x: &[Tensor]| x[0].less(&x[0].like(9.0));
        let turned = graph.while_loop(&[&x], going, |x| vec![&x[0] + 1.0]);
        let program = graph.finish(&[("x", &turned[0])]).unwrap();
        assert!(!ThreadPlan::new(2, 1, &program).ends_soon);
    }

    #[test]
    fn processes_with_other_numbers_of_threads_compile_alike() {
        let program = |side, workers| {
            let graph = Graph::new();
            let x = graph.parameter("x", Shape::f32([side, side]));
            let y = x.matmul(&x);
            Program {
                workers,
                ..graph.finish(&[("y", &y)]).unwrap()
            }
        };
        let of = |program: &Program, host_matmul| {
            let lowering = Lowering {
                host_matmul,
                ..Lowering::new(phalanx_pjrt::Platform::Cpu, "alike")
            };
            fingerprint(program, &lowering, &program.to_stablehlo(&lowering))
        };
        let small = program(64, 2);
        let alike = of(&small, HostMatmul::AlsoSmall);
        assert_eq!(alike, of(&small, HostMatmul::Never));
        let large = program(512, 2);
        let alike = of(&large, HostMatmul::AlsoSmall);
        assert_eq!(alike, of(&large, HostMatmul::WhereLarge));
        assert_ne!(alike, of(&large, HostMatmul::Never));
        // A large product in a loop is a call with many threads too, the small one beside it is not.
        let graph = Graph::new();
        let (x, y) = (
            graph.parameter("x", Shape::f32([512, 512])),
            graph.parameter("y", Shape::f32([64, 64])),
        );
        let going = |x: &[Tensor]| x[0].sum_all().less(&x[0].sum_all().like(9.0));
        let turned = graph.while_loop(&[&x], going, |x| vec![x[0].matmul(&x[0])]);
        let outputs = [("x", &turned[0]), ("y", &y.matmul(&y))];
        let in_a_loop = Program {
            workers: 2,
            ..graph.finish(&outputs).unwrap()
        };
        let alike = of(&in_a_loop, HostMatmul::AlsoSmall);
        assert_eq!(alike, of(&in_a_loop, HostMatmul::WhereLarge));
        assert_ne!(alike, of(&in_a_loop, HostMatmul::Never));
        // Within a process it names what is compiled.
        let alone = program(64, 1);
        assert_ne!(
            of(&alone, HostMatmul::AlsoSmall),
            of(&alone, HostMatmul::Never)
        );
    }

    /// Whether the compiler divides an operation on many elements among its threads, by its own account.
    fn is_divided(engine: &Engine, more: Option<(&str, OverrideValue)>) -> bool {
        let name = format!("phalanx-engine-{}-{}", std::process::id(), more.is_some());
        let account = std::env::temp_dir().join(name);
        let folder = OverrideValue::Text(account.to_str().unwrap().to_owned());
        let options = CompileOptions {
            overrides: [("xla_dump_to", folder)]
                .into_iter()
                .chain(more)
                .map(|(name, value)| (name.to_owned(), value))
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
            let program = sum_of_two(replicas);
            let compiled = engine
                .compile(CompileRequest::new("sums", &program))
                .unwrap();
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
