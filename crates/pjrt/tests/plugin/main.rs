//! The whole crate against the CPU plugin (found, or installed): one plugin and one client with two devices for all tests.

mod cache;
mod custom_calls;
mod memory;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use phalanx_pjrt::{
    Buffer, CPU_PLUGIN, Client, CompileOptions, Element, ElementType, Executable, ExecuteOptions,
    Installer, LoadError, OptionValue, OverrideValue, Platform, Plugin, PluginSearch, StatusCode,
    bytes_of, elements_of,
};

const LONG: Duration = Duration::from_secs(60);

fn plugin() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| {
        let search = PluginSearch::from_process();
        let path = match search.find(Platform::Cpu, None) {
            Ok(found) => found.path,
            Err(_) => Installer::new(search.cache_dir().unwrap())
                .install(&CPU_PLUGIN)
                .unwrap(),
        };
        Plugin::load(path).unwrap()
    })
}

fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        Client::new(plugin(), &[("cpu_device_count", OptionValue::Int(2))]).unwrap()
    })
}

fn compile(code: &str) -> Executable {
    client().compile(code, &CompileOptions::default()).unwrap()
}

fn array<T: Element>(dims: &[i64], values: &[T]) -> Buffer {
    client().buffer(0, T::TYPE, dims, bytes_of(values)).unwrap()
}

fn run(program: &Executable, arguments: &[&Buffer]) -> Vec<Buffer> {
    program
        .execute(&[arguments], &ExecuteOptions::default())
        .unwrap()
        .outputs
        .remove(0)
}

fn values<T: Element>(buffer: &Buffer) -> Vec<T> {
    elements_of(&buffer.to_host(LONG).unwrap())
}

/// A module whose main function takes and returns `arguments`/`results` (types) and has this body.
fn module(arguments: &str, results: &str, body: &str) -> String {
    format!("func.func public @main({arguments}) -> ({results}) {{\n{body}\n}}")
}

fn add(size: usize) -> String {
    let t = format!("tensor<{size}xf32>");
    module(
        &format!("%x: {t}, %y: {t}"),
        &t,
        &format!("%0 = stablehlo.add %x, %y : {t}\nreturn %0 : {t}"),
    )
}

/// Adds one to a donated argument.
fn increment(size: usize) -> String {
    let t = format!("tensor<{size}xf32>");
    let body = format!(
        "%one = stablehlo.constant dense<1.0> : {t}\n%0 = stablehlo.add %x, %one : {t}\nreturn %0 : {t}"
    );
    module(
        &format!("%x: {t} {{tf.aliasing_output = 0 : i32}}"),
        &t,
        &body,
    )
}

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("phalanx-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_that_are_no_plugins_are_refused() {
    let dir = TempDir::new("load");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.0.join(name), bytes).unwrap();
        dir.0.join(name)
    };
    let error = |path: &Path| Plugin::load(path).unwrap_err();
    assert!(matches!(
        error(&dir.0.join("absent.so")),
        LoadError::Unreadable { .. }
    ));
    assert!(matches!(error(&dir.0), LoadError::NotALibrary { .. }));
    assert!(matches!(
        error(&write("text.so", b"not a library at all, only text\n")),
        LoadError::NotALibrary { .. }
    ));
    assert!(matches!(
        error(&write("empty.so", b"")),
        LoadError::NotALibrary { .. }
    ));
    let mut head = std::fs::read("/proc/self/exe").unwrap()[..4096].to_vec();
    head[16] = 3;
    let cut = error(&write("cut.so", &head));
    assert!(cut.to_string().contains("cut short"), "{cut}");
    head.truncate(64);
    assert!(
        error(&write("header.so", &head))
            .to_string()
            .contains("damaged")
    );
    head[18] = 0xf3;
    let foreign = error(&write("riscv.so", &head)).to_string();
    assert!(
        foreign.contains("another machine") && foreign.contains("built for this machine"),
        "{foreign}"
    );
    let libc = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = libc
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|path| path.contains("libc.so"))
        .unwrap()
        .to_owned();
    let error = error(Path::new(&libc));
    assert!(matches!(error, LoadError::NoEntry { .. }), "{error}");
}

#[test]
fn the_plugin_and_its_devices_describe_themselves() {
    assert_eq!(plugin().api_version().0, 0);
    assert_eq!(plugin().warning(), None);
    assert!(
        plugin()
            .attributes()
            .unwrap()
            .contains_key("stablehlo_current_version")
    );
    let client = client();
    assert_eq!(
        (
            client.platform(),
            client.process_index(),
            client.devices().len()
        ),
        ("cpu", 0, 2)
    );
    assert_eq!(
        (client.devices()[1].id, client.devices()[1].kind.as_str()),
        (1, "cpu")
    );
    assert!(client.memory_stats(0).unwrap_err().is_unimplemented());
    assert!(
        client
            .memory_stats(2)
            .unwrap_err()
            .message
            .contains("has 2 devices")
    );
}

#[test]
fn client_options_are_checked_by_the_plugin() {
    let error = |name: &str, value| Client::new(plugin(), &[(name, value)]).unwrap_err();
    let unknown = error("no_such_option", OptionValue::Int(1));
    assert_eq!(unknown.code, StatusCode::InvalidArgument);
    assert!(unknown.message.contains("no_such_option"), "{unknown}");
    assert_eq!(
        error("cpu_device_count", OptionValue::Text("2".into())).code,
        StatusCode::InvalidArgument
    );
    assert_eq!(
        error("asynchronous", OptionValue::Int(1)).code,
        StatusCode::InvalidArgument
    );
}

#[test]
fn adds_and_multiplies() {
    let x = array(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]);
    let code = module(
        "%x: tensor<2x2xf32>",
        "tensor<2x2xf32>, tensor<i32>",
        "%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
         %1 = stablehlo.add %0, %x : tensor<2x2xf32>
         %2 = stablehlo.constant dense<7> : tensor<i32>
         return %1, %2 : tensor<2x2xf32>, tensor<i32>",
    );
    let program = compile(&code);
    let outputs = run(&program, &[&x]);
    assert_eq!(values::<f32>(&outputs[0]), [8.0, 12.0, 18.0, 26.0]);
    assert_eq!(values::<i32>(&outputs[1]), [7]);
    assert_eq!(
        (
            outputs[0].element_type().unwrap(),
            outputs[0].dims().unwrap()
        ),
        (ElementType::F32, &[2, 2][..])
    );
    assert_eq!(
        (
            program.outputs()[1].element,
            program.outputs()[1].dims.len()
        ),
        (ElementType::I32, 0)
    );
    let mut target = [0u8; 16];
    outputs[0].copy_to(&mut target, LONG).unwrap();
    assert_eq!(elements_of::<f32>(&target), [8.0, 12.0, 18.0, 26.0]);
    assert!(
        outputs[0]
            .copy_to(&mut [0u8; 15], LONG)
            .unwrap_err()
            .message
            .contains("16 bytes, the target 15")
    );
}

#[test]
fn every_element_type_goes_there_and_back() {
    use ElementType as T;
    for element in [
        T::Pred,
        T::I8,
        T::I16,
        T::I32,
        T::I64,
        T::U8,
        T::U16,
        T::U32,
        T::U64,
        T::F16,
        T::F32,
        T::F64,
        T::Bf16,
    ] {
        let bytes: Vec<u8> = (0..6 * element.bytes())
            .map(|index| {
                if element == T::Pred {
                    (index % 2) as u8
                } else {
                    index as u8
                }
            })
            .collect();
        let buffer = client().buffer(1, element, &[2, 3], &bytes).unwrap();
        assert_eq!(buffer.element_type().unwrap(), element);
        assert_eq!(buffer.to_host(LONG).unwrap(), bytes, "{element}");
        let code = module(
            &format!("%x: tensor<2x{}>", element.name()),
            &format!("tensor<2x{}>", element.name()),
            &format!("return %x : tensor<2x{}>", element.name()),
        );
        assert_eq!(compile(&code).outputs()[0].element, element);
    }
    for dims in [&[0i64, 3][..], &[0]] {
        assert_eq!(
            client()
                .buffer(0, T::F32, dims, &[])
                .unwrap()
                .to_host(LONG)
                .unwrap(),
            [0u8; 0]
        );
    }
}

#[test]
fn buffers_are_copied_to_other_devices_and_on_their_own() {
    let values = [1.0_f32, 2.0, 3.0];
    let here = array(&[3], &values);
    let there = here.copy_to_device(1).unwrap();
    let again = here.copy_to_device(0).unwrap();
    drop(here);
    for copy in [&there, &again] {
        assert_eq!(self::values::<f32>(copy), values);
    }
    let error = there.copy_to_device(2).unwrap_err().to_string();
    assert!(error.contains("device 2 does not exist"), "{error}");
}

#[test]
fn wrong_sizes_and_devices_are_refused_before_the_plugin_sees_them() {
    let error = |device, dims: &[i64], bytes: &[u8]| {
        client()
            .buffer(device, ElementType::F32, dims, bytes)
            .unwrap_err()
            .message
    };
    assert!(error(0, &[2, 2], &[0; 15]).contains("16 bytes, got 15"));
    assert!(error(0, &[-1], &[0; 4]).contains("cannot exist"));
    assert!(error(0, &[i64::MAX, i64::MAX], &[0; 4]).contains("cannot exist"));
    assert!(error(9, &[1], &[0; 4]).contains("device 9 does not exist"));
}

#[test]
fn wrong_arguments_are_refused() {
    let program = compile(&add(4));
    let x = array(&[4], &[1.0f32; 4]);
    let error = |arguments: &[&[&Buffer]]| {
        program
            .execute(arguments, &ExecuteOptions::default())
            .unwrap_err()
    };
    assert!(
        error(&[])
            .message
            .contains("runs on 1 devices, got arguments for 0")
    );
    assert_eq!(error(&[&[&x]]).code, StatusCode::InvalidArgument);
    assert_eq!(error(&[&[&x, &x, &x]]).code, StatusCode::InvalidArgument);
    let small = array(&[2], &[1.0f32; 2]);
    assert_eq!(error(&[&[&x, &small]]).code, StatusCode::InvalidArgument);
    let other = Client::new(plugin(), &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
    let foreign = other.buffer(0, ElementType::F32, &[4], &[0; 16]).unwrap();
    assert!(error(&[&[&x, &foreign]]).message.contains("another client"));
    let elsewhere = client()
        .buffer(1, ElementType::F32, &[4], &[0; 16])
        .unwrap();
    assert_eq!(
        error(&[&[&x, &elsewhere]]).code,
        StatusCode::InvalidArgument
    );
}

#[test]
fn malformed_modules_and_options_are_errors() {
    let error = |code: &str| {
        client()
            .compile(code, &CompileOptions::default())
            .unwrap_err()
    };
    for code in [
        "",
        "nonsense",
        "func.func @main( {",
        &add(4).replace("stablehlo.add", "stablehlo.nothing"),
    ] {
        let error = error(code);
        assert_eq!(error.call, "PJRT_Client_Compile", "{error}");
    }
    let undeclared = error(&add(4).replace("%x, %y :", "%x, %z :"));
    assert!(
        undeclared.message.contains("undeclared SSA value name"),
        "{undeclared}"
    );
    let overrides = BTreeMap::from([("xla_no_such_flag".to_owned(), OverrideValue::Bool(true))]);
    let error = client()
        .compile(
            &add(4),
            &CompileOptions {
                overrides,
                ..CompileOptions::default()
            },
        )
        .unwrap_err();
    assert!(error.message.contains("xla_no_such_flag"), "{error}");
    let options = CompileOptions {
        device_assignment: Some(vec![0, 1]),
        ..CompileOptions::default()
    };
    assert!(
        client()
            .compile(&add(4), &options)
            .unwrap_err()
            .message
            .contains("1 replicas times 1 partitions")
    );
}

#[test]
fn overrides_of_every_kind_are_accepted() {
    let overrides = BTreeMap::from([
        (
            "xla_cpu_enable_fast_math".to_owned(),
            OverrideValue::Bool(false),
        ),
        (
            "xla_backend_optimization_level".to_owned(),
            OverrideValue::Int(1),
        ),
        (
            "xla_cpu_prefer_vector_width".to_owned(),
            OverrideValue::Text("128".into()),
        ),
    ]);
    let program = client()
        .compile(
            &add(4),
            &CompileOptions {
                overrides,
                ..CompileOptions::default()
            },
        )
        .unwrap();
    let x = array(&[4], &[1.0f32; 4]);
    assert_eq!(values::<f32>(&run(&program, &[&x, &x])[0]), [2.0; 4]);
}

fn all_reduce() -> String {
    let body = r#"%0 = "stablehlo.all_reduce"(%x) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
        }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>}
        : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>"#;
    format!(
        "module attributes {{mhlo.num_replicas = 2 : i32}} {{\n{}\n}}",
        module("%x: tensor<4xf32>", "tensor<4xf32>", body)
    )
}

#[test]
fn two_devices_reduce_in_the_order_of_the_assignment() {
    for assignment in [None, Some(vec![0, 1]), Some(vec![1, 0])] {
        let options = CompileOptions {
            replicas: 2,
            device_assignment: assignment.clone(),
            ..CompileOptions::default()
        };
        let program = client().compile(&all_reduce(), &options).unwrap();
        let expected: Vec<usize> = assignment
            .unwrap_or(vec![0, 1])
            .iter()
            .map(|id| usize::try_from(*id).unwrap())
            .collect();
        assert_eq!(program.devices(), expected);
        let shards: Vec<Buffer> = program
            .devices()
            .iter()
            .map(|device| {
                client()
                    .buffer(
                        *device,
                        ElementType::F32,
                        &[4],
                        bytes_of(&[*device as f32 + 1.0; 4]),
                    )
                    .unwrap()
            })
            .collect();
        let run = program
            .execute(
                &[&[&shards[0]], &[&shards[1]]],
                &ExecuteOptions {
                    launch_id: 5,
                    ..ExecuteOptions::default()
                },
            )
            .unwrap();
        run.done.iter().for_each(|done| done.wait(LONG).unwrap());
        assert!(
            run.outputs
                .iter()
                .all(|outputs| values::<f32>(&outputs[0]) == [3.0; 4])
        );
        let error = program
            .execute(&[&[&shards[0]]], &ExecuteOptions::default())
            .unwrap_err();
        assert!(error.message.contains("runs on 2 devices"), "{error}");
    }
}

#[test]
fn programs_tell_their_memory_and_fingerprint() {
    let memory = compile(&increment(1024)).memory_stats().unwrap();
    assert_eq!(
        (memory.arguments, memory.outputs, memory.aliased),
        (4096, 4096, 4096)
    );
    assert_eq!(memory.total(), 4096 + memory.temporary);
    let fingerprint = compile(&add(8)).fingerprint();
    assert!(
        fingerprint.as_ref().is_ok_and(|print| !print.is_empty())
            || fingerprint.is_err_and(|error| error.is_unimplemented())
    );
}

/// 1.6 million squared floats: as an output, or (20 TB) only in between.
#[test]
fn a_program_that_needs_too_much_memory_is_an_error() {
    let t = "tensor<1600000x1600000xf32>";
    let product = format!(
        "%0 = stablehlo.iota dim = 0 : {t}
         %1 = stablehlo.sine %0 : {t}
         %2 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [0] : ({t}, {t}) -> {t}
         %3 = stablehlo.slice %2 [0:1, 0:1] : ({t}) -> tensor<1x1xf32>
         return %3 : tensor<1x1xf32>"
    );
    let output = format!("%0 = stablehlo.iota dim = 0 : {t}\nreturn %0 : {t}");
    for (results, body) in [("tensor<1x1xf32>", product), (t, output)] {
        let program = compile(&module("", results, &body));
        assert!(program.memory_stats().unwrap().total() > 10_000_000_000_000);
        let run = program.execute(&[&[]], &ExecuteOptions::default());
        let error = run
            .and_then(|run| run.outputs[0][0].ready()?.wait(LONG))
            .unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn handles_are_shared_between_threads() {
    let program = compile(&add(1 << 16));
    let x = array(&[1 << 16], &vec![1.0f32; 1 << 16]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..20)
                    .for_each(|_| assert_eq!(values::<f32>(&run(&program, &[&x, &x])[0])[9], 2.0));
            });
        }
    });
}
