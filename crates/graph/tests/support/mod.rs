//! Runs programs on the CPU plugin (found, or installed), one client with eight devices per test binary, or on the devices of
//! `PHALANX_TEST_PLATFORM`.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

mod oracle;

use std::sync::OnceLock;
use std::time::Duration;

use phalanx_graph::{
    CompilerOption, DType, HostTensor, Lowering, Platform, Program, Shape, compiler_options,
};
use phalanx_pjrt::{
    Buffer, CPU_PLUGIN, Client, CompileOptions, ElementType, Executable, ExecuteOptions, Installer,
    OptionValue, OverrideValue, Plugin, PluginSearch,
};
use phalanx_testkit::test_platform;

const LONG: Duration = Duration::from_secs(120);

/// The client of this test binary; CPUs are eight devices.
pub fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let search = PluginSearch::from_process();
        if test_platform() != Platform::Cpu {
            let found = search.find(test_platform(), None).unwrap();
            let grows = [("preallocate", OptionValue::Bool(false))];
            return Client::new(&Plugin::load(found.path).unwrap(), &grows).unwrap();
        }
        let path = match search.find(Platform::Cpu, None) {
            Ok(found) => found.path,
            Err(_) => Installer::new(search.cache_dir().unwrap())
                .install(&CPU_PLUGIN)
                .unwrap(),
        };
        let plugin = Plugin::load(path).unwrap();
        Client::new(&plugin, &[("cpu_device_count", OptionValue::Int(8))]).unwrap()
    })
}

/// The StableHLO text that tests compile.
pub fn text(program: &Program) -> String {
    program.to_stablehlo(&Lowering {
        full_f32: test_platform() != Platform::Cpu,
        ..Lowering::new(test_platform(), "test")
    })
}

/// Compiles a program for as many devices as it has replicas; a failure shows the text.
pub fn compile(program: &Program) -> Executable {
    compile_text(&text(program), program.replicas)
}

/// Compiles StableHLO text.
pub fn compile_text(text: &str, replicas: usize) -> Executable {
    let named = |(name, value): (&str, CompilerOption)| {
        let value = match value {
            CompilerOption::Switch(on) => OverrideValue::Bool(on),
            CompilerOption::Text(text) => OverrideValue::Text(text.to_owned()),
        };
        (name.to_owned(), value)
    };
    let is_quick = test_platform() == Platform::Cpu
        && phalanx_testkit::is_quick_commit(env!("CARGO_CRATE_NAME"));
    let unoptimized = is_quick.then(|| {
        (
            "xla_backend_optimization_level".to_owned(),
            OverrideValue::Int(0),
        )
    });
    let options = CompileOptions {
        replicas,
        overrides: compiler_options(test_platform(), text)
            .into_iter()
            .map(named)
            .chain(unoptimized)
            .collect(),
        ..CompileOptions::default()
    };
    match client().compile(text, &options) {
        Ok(executable) => executable,
        Err(error) => panic!("{error}\n{text}"),
    }
}

/// The outputs of a program of one replica.
pub fn run(program: &Program, inputs: &[HostTensor]) -> Vec<HostTensor> {
    run_replicas(program, &[inputs.to_vec()]).swap_remove(0)
}

/// The outputs of each replica, given the inputs of each; they must be what the interpreter finds.
pub fn run_replicas(program: &Program, inputs: &[Vec<HostTensor>]) -> Vec<Vec<HostTensor>> {
    assert_eq!(
        inputs.len(),
        program.replicas,
        "one list of inputs per replica"
    );
    check_inputs(program, inputs);
    let outputs = execute(&compile(program), inputs);
    oracle::check(program, inputs, &outputs);
    outputs
}

/// The outputs of each device of a compiled program.
pub fn execute(executable: &Executable, inputs: &[Vec<HostTensor>]) -> Vec<Vec<HostTensor>> {
    let buffers: Vec<Vec<Buffer>> = inputs
        .iter()
        .zip(executable.devices())
        .map(|(list, &device)| list.iter().map(|input| upload(device, input)).collect())
        .collect();
    let lists: Vec<Vec<&Buffer>> = buffers.iter().map(|list| list.iter().collect()).collect();
    let arguments: Vec<&[&Buffer]> = lists.iter().map(Vec::as_slice).collect();
    let execution = executable
        .execute(&arguments, &ExecuteOptions::default())
        .unwrap();
    execution
        .outputs
        .iter()
        .map(|list| list.iter().map(download).collect())
        .collect()
}

fn check_inputs(program: &Program, inputs: &[Vec<HostTensor>]) {
    for list in inputs {
        assert_eq!(
            list.len(),
            program.parameters.len(),
            "one input per parameter"
        );
        for (input, parameter) in list.iter().zip(&program.parameters) {
            assert_eq!(
                *input.shape(),
                parameter.shape,
                "parameter `{}`",
                parameter.name
            );
        }
    }
}

fn upload(device: usize, value: &HostTensor) -> Buffer {
    let dims: Vec<i64> = value.dims().iter().map(|&dim| dim as i64).collect();
    client()
        .buffer(device, element(value.dtype()), &dims, value.bytes())
        .unwrap()
}

fn download(buffer: &Buffer) -> HostTensor {
    let dims: Vec<usize> = buffer
        .dims()
        .unwrap()
        .iter()
        .map(|&dim| dim as usize)
        .collect();
    let dtype = DType::ALL
        .into_iter()
        .find(|&dtype| element(dtype) == buffer.element_type().unwrap())
        .unwrap();
    let bytes = buffer.to_host(LONG).unwrap();
    HostTensor::from_bytes(Shape::new(dtype, dims), &bytes).unwrap()
}

fn element(dtype: DType) -> ElementType {
    ElementType::from_name(dtype.stablehlo()).unwrap()
}
