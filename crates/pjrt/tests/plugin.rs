//! The whole crate against the CPU plugin (found, or installed): one plugin and one client with two devices for all tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use phalanx_pjrt::{
    Buffer, CPU_PLUGIN, CacheOutcome, Client, CompileCache, CompileOptions, CustomCallAttribute,
    CustomCallError, Element, ElementType, Executable, ExecuteOptions, Installer, LoadError,
    OptionValue, OverrideValue, Platform, Plugin, PluginSearch, SharedBytes, StatusCode, bytes_of,
    elements_of,
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

#[test]
fn donated_arguments_are_dead_and_others_live() {
    let program = compile(&increment(1024));
    let mut state = array(&[1024], &[0.0f32; 1024]);
    for _ in 0..100 {
        let next = run(&program, &[&state]).remove(0);
        assert!(state.is_deleted().unwrap());
        state = next;
    }
    assert_eq!(values::<f32>(&state), [100.0; 1024]);
    let kept = array(&[1024], &[1.0f32; 1024]);
    let options = ExecuteOptions {
        non_donatable: &[0],
        ..ExecuteOptions::default()
    };
    let outputs = program.execute(&[&[&kept]], &options).unwrap().outputs;
    assert_eq!(
        (values::<f32>(&kept)[0], values::<f32>(&outputs[0][0])[0]),
        (1.0, 2.0)
    );
    run(&program, &[&kept]);
    for error in [
        program
            .execute(&[&[&kept]], &ExecuteOptions::default())
            .unwrap_err(),
        kept.to_host(LONG).unwrap_err(),
    ] {
        assert!(error.message.contains("donated"), "{error}");
    }
    let error = program
        .execute(&[&[&kept]], &ExecuteOptions::default())
        .unwrap_err();
    assert!(
        error.message.contains("pass the output that replaced it"),
        "{error}"
    );
}

/// Shared memory that tells when it is dropped.
struct Watched {
    words: Vec<[f32; 16]>,
    offset: usize,
    dropped: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &bytes_of(self.words.as_flattened())[self.offset..self.offset + 64]
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
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
fn shared_memory_lives_until_the_plugin_is_done() {
    let program = compile(&increment(16));
    for misalignment in [0, 4] {
        let dropped = Arc::new(AtomicBool::new(false));
        let mut watched = Watched {
            words: vec![[3.0; 16]; 3],
            offset: 0,
            dropped: Arc::clone(&dropped),
        };
        watched.offset = bytes_of(watched.words.as_flattened())
            .as_ptr()
            .align_offset(64)
            + misalignment;
        let shared: SharedBytes = Arc::new(watched);
        let buffer = client()
            .buffer_shared(0, ElementType::F32, &[16], Arc::clone(&shared))
            .unwrap();
        let outputs = run(&program, &[&buffer]);
        assert_eq!(values::<f32>(&outputs[0]), [4.0; 16]);
        assert_eq!(
            elements_of::<f32>((*shared).as_ref()),
            [3.0; 16],
            "donation must not write to shared memory"
        );
        drop(shared);
        drop((buffer, outputs));
        wait_until("the plugin never let go of the memory", || {
            dropped.load(Ordering::SeqCst)
        });
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let shared = Arc::new(Watched {
        words: vec![[0.0; 16]; 2],
        offset: 0,
        dropped: Arc::clone(&dropped),
    });
    assert!(
        client()
            .buffer_shared(7, ElementType::F32, &[16], shared)
            .is_err()
    );
    assert!(
        dropped.load(Ordering::SeqCst),
        "a refused buffer must not keep the memory"
    );
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
fn programs_are_serialised_and_cached() {
    let dir = TempDir::new("cache");
    let cache = CompileCache::open(&dir.0, CompileCache::DEFAULT_LIMIT).unwrap();
    let options = CompileOptions::default();
    let x = array(&[32], &[1.0f32; 32]);
    let compile = |code: &str, options: &CompileOptions| {
        let (program, outcome) = client()
            .compile_cached(Some(&cache), code, options)
            .unwrap();
        assert_eq!(values::<f32>(&run(&program, &[&x, &x])[0]), [2.0; 32]);
        outcome
    };
    assert!(!client().is_cached(&cache, &add(32), &options));
    assert_eq!(compile(&add(32), &options), CacheOutcome::Stored);
    assert!(client().is_cached(&cache, &add(32), &options));
    assert_eq!(compile(&add(32), &options), CacheOutcome::Hit);
    let entries = || {
        std::fs::read_dir(&dir.0)
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|e| e == "exe"))
    };
    let entry = entries().next().unwrap();
    let good = std::fs::read(&entry).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 0x40;
    for damaged in [&bad[..], &good[..good.len() / 2], b""] {
        std::fs::write(&entry, damaged).unwrap();
        assert_eq!(compile(&add(32), &options), CacheOutcome::Replaced);
        assert_eq!(compile(&add(32), &options), CacheOutcome::Hit);
    }
    let level = |level| CompileOptions {
        overrides: BTreeMap::from([(
            "xla_backend_optimization_level".to_owned(),
            OverrideValue::Int(level),
        )]),
        ..CompileOptions::default()
    };
    assert_eq!(compile(&add(32), &level(0)), CacheOutcome::Stored);
    assert_eq!(compile(&add(32), &level(1)), CacheOutcome::Stored);
    let one = Client::new(plugin(), &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
    let (_, outcome) = one
        .compile_cached(Some(&cache), &add(32), &options)
        .unwrap();
    assert_eq!(
        outcome,
        CacheOutcome::Stored,
        "a client with other devices has its own entry"
    );
    assert_eq!(entries().count(), 4);
    let onednn = CompileOptions {
        overrides: BTreeMap::from([("xla_cpu_use_onednn".to_owned(), OverrideValue::Bool(true))]),
        ..CompileOptions::default()
    };
    assert!(matches!(
        compile(&add(32), &onednn),
        CacheOutcome::NotStored(_)
    ));
    assert_eq!(
        client().compile_cached(None, &add(32), &options).unwrap().1,
        CacheOutcome::Off
    );
    // SAFETY: they are no program at all.
    assert!(unsafe { client().deserialize(b"garbage") }.is_err());
    std::fs::remove_dir_all(&dir.0).unwrap();
    assert!(matches!(
        compile(&add(32), &options),
        CacheOutcome::NotStored(_)
    ));
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

fn call(name: &str, config: &str) -> String {
    let t = "tensor<4xf32>";
    let body = format!(
        "%0 = stablehlo.custom_call @{name}(%x) {{api_version = 4 : i32, has_side_effect = true, backend_config = {{{config}}}}} : ({t}) -> {t}\nreturn %0 : {t}"
    );
    module(&format!("%x: {t}"), t, &body)
}

/// Runs a one-call program and gives the result or the error, wherever it appears.
fn outcome(code: &str) -> Result<Vec<f32>, phalanx_pjrt::PjrtError> {
    let x = array(&[4], &[1.0f32, 2.0, 3.0, 4.0]);
    let run = compile(code).execute(
        &[&[&x]],
        &ExecuteOptions {
            launch_id: 42,
            ..ExecuteOptions::default()
        },
    )?;
    run.done[0].wait(LONG)?;
    Ok(elements_of(&run.outputs[0][0].to_host(LONG)?))
}

#[test]
fn custom_calls_compute_and_read_attributes() {
    let seen = Arc::new(AtomicU64::new(0));
    let run_id = Arc::clone(&seen);
    client()
        .register_custom_call("test.scale", move |call| {
            run_id.store(call.run_id()?.cast_unsigned(), Ordering::SeqCst);
            assert_eq!(
                (call.operands(), call.results(), call.device_ordinal()?),
                (1, 1, 0)
            );
            assert_eq!(call.operand_shape(0)?, (ElementType::F32, &[4i64][..]));
            assert_eq!(
                call.attribute("label")?,
                CustomCallAttribute::Text("a label")
            );
            assert_eq!(call.attribute("half")?, CustomCallAttribute::Float(0.5));
            assert_eq!(call.attribute("flag")?, CustomCallAttribute::Bool(true));
            assert_eq!(
                call.attribute("list")?,
                CustomCallAttribute::Ints(vec![1, -2])
            );
            assert_eq!(
                call.attribute("reals")?,
                CustomCallAttribute::Floats(vec![1.5, 2.5])
            );
            let missing = call.attribute("absent").unwrap_err().message;
            assert!(
                missing.contains("absent") && missing.contains("factor"),
                "{missing}"
            );
            let factor = call.int("factor")? as f32;
            let (input, output) = (call.operand::<f32>(0)?, call.result::<f32>(0)?);
            assert!(call.result::<f32>(0).is_err() && call.result_bytes(1).is_err());
            output
                .iter_mut()
                .zip(input)
                .for_each(|(output, input)| *output = input * factor);
            Ok(())
        })
        .unwrap();
    let config = "factor = 3 : i64, label = \"a label\", half = 0.5 : f32, flag = true, list = array<i64: 1, -2>, reals = array<f64: 1.5, 2.5>";
    assert_eq!(
        outcome(&call("test.scale", config)).unwrap(),
        [3.0, 6.0, 9.0, 12.0]
    );
    assert_eq!(seen.load(Ordering::SeqCst), 42);
    let again = client()
        .register_custom_call("test.scale", |_| Ok(()))
        .unwrap_err();
    assert_eq!(again.code, StatusCode::AlreadyExists);
    assert!(
        client()
            .register_custom_call("bad name", |_| Ok(()))
            .unwrap_err()
            .message
            .contains("bad name")
    );
}

#[test]
fn handlers_that_fail_or_panic_give_errors() {
    let register = |name: &str,
                    handler: fn(
        &mut phalanx_pjrt::CustomCallFrame<'_>,
    ) -> Result<(), CustomCallError>| {
        client().register_custom_call(name, handler).unwrap();
    };
    register("test.panic", |_| panic!("the handler fell over"));
    register("test.refuse", |_| {
        Err(CustomCallError::new(
            StatusCode::DeadlineExceeded,
            "rank 3 is missing",
        ))
    });
    register("test.wrong", |call| call.operand::<i32>(0).map(drop));
    let error = outcome(&call("test.panic", "")).unwrap_err();
    assert!(
        error
            .message
            .contains("custom call `test.panic`: panicked: the handler fell over"),
        "{error}"
    );
    let error = outcome(&call("test.refuse", "")).unwrap_err();
    assert!(
        error.code == StatusCode::DeadlineExceeded && error.message.contains("rank 3 is missing"),
        "{error}"
    );
    let error = outcome(&call("test.wrong", "")).unwrap_err();
    assert!(
        error.message.contains("type f32") && error.message.contains("expects i32"),
        "{error}"
    );
    let error = client()
        .compile(&call("test.unregistered", ""), &CompileOptions::default())
        .unwrap_err();
    assert!(error.message.contains("test.unregistered"), "{error}");
}

#[test]
fn an_operand_that_is_a_result_is_given_as_the_result_only() {
    client()
        .register_custom_call("test.in_place", |call| {
            let error = call.operand::<f32>(0).unwrap_err().message;
            assert!(error.contains("shares its memory with result 0"), "{error}");
            call.result::<f32>(0)?
                .iter_mut()
                .for_each(|value| *value += 10.0);
            Ok(())
        })
        .unwrap();
    let alias = "output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>], backend_config";
    let code = call("test.in_place", "").replace("backend_config", alias);
    assert_eq!(outcome(&code).unwrap(), [11.0, 12.0, 13.0, 14.0]);
}

#[test]
fn waits_end_at_their_deadline_and_the_work_goes_on() {
    client()
        .register_custom_call("test.slow", |call| {
            std::thread::sleep(Duration::from_secs(3));
            call.result::<f32>(0)?.fill(1.0);
            Ok(())
        })
        .unwrap();
    // XLA runs small programs inside `execute`; the product makes this one big enough for a thread.
    let code = module(
        "%x: tensor<64x64xf32>",
        "tensor<4xf32>",
        "%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
         %1 = stablehlo.slice %0 [0:1, 0:4] : (tensor<64x64xf32>) -> tensor<1x4xf32>
         %2 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
         %3 = stablehlo.custom_call @test.slow(%2) {api_version = 4 : i32, has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
         return %3 : tensor<4xf32>",
    );
    let x = client()
        .buffer(1, ElementType::F32, &[64, 64], &[0; 64 * 64 * 4])
        .unwrap();
    let options = CompileOptions {
        device_assignment: Some(vec![1]),
        ..CompileOptions::default()
    };
    let program = client().compile(&code, &options).unwrap();
    let start = Instant::now();
    let run = program
        .execute(&[&[&x]], &ExecuteOptions::default())
        .unwrap();
    let output = &run.outputs[0][0];
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "the program ran inside execute"
    );
    let short = Duration::from_millis(20);
    assert!(!run.done[0].is_ready().unwrap());
    assert!(run.done[0].wait(short).unwrap_err().is_timeout());
    assert!(output.to_host(short).unwrap_err().is_timeout());
    assert!(
        output
            .copy_to(&mut [0; 16], short)
            .unwrap_err()
            .is_timeout()
    );
    let (sender, receiver) = std::sync::mpsc::channel();
    run.done[0]
        .on_ready(move |result| sender.send(result).unwrap())
        .unwrap();
    receiver.recv_timeout(LONG).unwrap().unwrap();
    assert!(run.done[0].is_ready().unwrap());
    assert_eq!(values::<f32>(output), [1.0; 4]);
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

#[test]
fn values_may_be_dropped_in_any_order() {
    let client = Client::new(plugin(), &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
    let program = client.compile(&add(8), &CompileOptions::default()).unwrap();
    let x = client.buffer(0, ElementType::F32, &[8], &[0; 32]).unwrap();
    drop(client);
    let run = program
        .execute(&[&[&x, &x]], &ExecuteOptions::default())
        .unwrap();
    drop((program, x));
    assert_eq!(run.outputs[0][0].to_host(LONG).unwrap(), [0; 32]);
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
