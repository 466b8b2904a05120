//! The kernels called by several devices at once, against one device alone.
//!
//! Both libraries are installed where they are missing; without a network the tests pass with a notice.

mod start;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_pjrt::{
    Buffer, Client, CompileOptions, ElementType, ExecuteOptions, OptionValue, bytes_of,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const LONG: Duration = Duration::from_secs(180);
const DEVICES: usize = 4;
/// Set in the process that runs a test on one processor.
const PINNED: &str = "PHALANX_TEST_PINNED";

#[test]
fn replicas_compute_at_once_and_alike() {
    if std::env::var_os(PINNED).is_some() {
        pin().unwrap();
    }
    let client = match client() {
        Ok(client) => client,
        Err(why) => return phalanx_testkit::skip(format_args!("there are no kernels: {why}")),
    };
    let alone = run(&client, 1, 1).swap_remove(0);
    assert!(alone.iter().any(|byte| *byte != 0));
    for replicas in [1, 2, DEVICES] {
        let results = run(&client, replicas, 12);
        for other in &results {
            assert!(*other == results[0], "{replicas} replicas differ in a bit");
        }
        let (first, alone) = (floats(&results[0]), floats(&alone));
        for (index, (found, expected)) in first.zip(alone).enumerate() {
            assert!(
                (found - expected).abs() <= 1e-4 * expected.abs().max(1.0),
                "{replicas} replicas, element {index}: {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn replicas_compute_on_one_processor() {
    if std::env::var_os(PINNED).is_some() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "replicas_compute_at_once_and_alike"])
        .env(PINNED, "1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > 4 * LONG {
            child.kill().unwrap();
            panic!("no end after {:?}", start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success());
}

/// Keeps this thread, and those that it starts, on one processor.
fn pin() -> rustix::io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set(
        (0..CpuSet::MAX_CPU)
            .find(|&cpu| allowed.is_set(cpu))
            .unwrap_or(0),
    );
    sched_setaffinity(None, &one)
}

/// A client with all devices.
fn client() -> Result<Client, Box<dyn std::error::Error>> {
    let devices = OptionValue::Int(DEVICES as i64);
    let (client, _) = start::start(&[("cpu_device_count", devices)])?;
    Ok(client)
}

/// The bytes of each result of each run of each replica: the same program with the same arguments on as many devices, several runs
/// under way at once.
fn run(client: &Client, replicas: usize, runs: usize) -> Vec<Vec<u8>> {
    let options = CompileOptions {
        replicas,
        ..CompileOptions::default()
    };
    let program = client.compile(&program(replicas), &options).unwrap();
    let arguments: Vec<Vec<Buffer>> = program.devices().iter().map(|&d| put(client, d)).collect();
    let lists: Vec<Vec<&Buffer>> = arguments.iter().map(|list| list.iter().collect()).collect();
    let lists: Vec<&[&Buffer]> = lists.iter().map(Vec::as_slice).collect();
    let begin = |_| program.execute(&lists, &ExecuteOptions::default()).unwrap();
    let begun: Vec<_> = (0..runs).map(begin).collect();
    let outputs = begun.iter().flat_map(|execution| &execution.outputs);
    let bytes = |list: &Vec<Buffer>| -> Vec<u8> {
        list.iter()
            .flat_map(|output| output.to_host(LONG).unwrap())
            .collect()
    };
    outputs.map(bytes).collect()
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
}

const X: [i64; 4] = [6, 12, 12, 16];
const KERNEL: [i64; 4] = [3, 3, 16, 16];

fn put(client: &Client, device: usize) -> Vec<Buffer> {
    let of_channels = [16];
    let dims: [&[i64]; 3] = [&X, &KERNEL, &of_channels];
    let buffer = |(seed, dims): (usize, &&[i64])| {
        let count = dims.iter().product::<i64>() as usize;
        let value = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0;
        let values: Vec<f32> = (0..count).map(value).collect();
        let bytes = bytes_of(&values);
        client.buffer(device, ElementType::F32, dims, bytes)
    };
    let buffers = dims.iter().enumerate().map(buffer);
    buffers.collect::<Result<_, _>>().unwrap()
}

/// Calls that depend on each other and calls that may run at once, between them means over the replicas, where replicas wait for each
/// other.
fn program(replicas: usize) -> String {
    let kind = |dims: &[i64]| {
        let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
        format!("tensor<{}xf32>", dims.join("x"))
    };
    let (x, w, c) = (kind(&X), kind(&KERNEL), kind(&[16]));
    let config = |more: &str| {
        format!(
            "{{api_version = 4 : i32, backend_config = {{replicas = {replicas} : i64, {more}}}}}"
        )
    };
    let pair = |name: &str, value: i64| format!("{name} = array<i64: {value}, {value}>");
    let window = [
        pair("strides", 1),
        pair("padding_low", 1),
        pair("padding_high", 1),
    ]
    .join(", ");
    let conv = config(&format!(
        "{window}, {}, groups = 1 : i64",
        pair("dilation", 1)
    ));
    let pool = config(&format!("{window}, {}", pair("window", 3)));
    let norm = config("epsilon = 1.0e-3 : f32, ceiling = 0.0 : f32, relu = true");
    let groups: Vec<String> = (0..replicas).map(|replica| replica.to_string()).collect();
    let groups = format!(
        "dense<[[{}]]> : tensor<1x{replicas}xi64>",
        groups.join(", ")
    );
    let search = x.replace("f32", "ui8");
    let mut body = String::new();
    for (i, w_in) in ["%w".to_owned(), "%mean0".to_owned()].iter().enumerate() {
        body += &format!(
            "%y{i} = stablehlo.custom_call @phalanx.conv(%x, {w_in}) {conv} : ({x}, {w}) -> {x}
            %n{i}:3 = stablehlo.custom_call @phalanx.batch_norm(%y{i}, %c, %c) {norm} : ({x}, {c}, {c}) -> ({x}, {c}, {c})
            %p{i}:2 = stablehlo.custom_call @phalanx.max_pool(%n{i}#0) {pool} : ({x}) -> ({x}, {search})
            %d{i} = stablehlo.custom_call @phalanx.max_pool_gradient(%p{i}#1, %x) {pool} : ({search}, {x}) -> {x}
            %b{i}:3 = stablehlo.custom_call @phalanx.batch_norm_gradient(%d{i}, %y{i}, %n{i}#1, %n{i}#2, %c, %c) {norm} : ({x}, {x}, {c}, {c}, {c}, {c}) -> ({x}, {c}, {c})
            %dx{i} = stablehlo.custom_call @phalanx.conv_input_gradient(%b{i}#0, {w_in}) {conv} : ({x}, {w}) -> {x}
            %dw{i} = stablehlo.custom_call @phalanx.conv_kernel_gradient(%x, %b{i}#0) {conv} : ({x}, {x}) -> {w}
            %sum{i} = \"stablehlo.all_reduce\"(%dw{i}) <{{replica_groups = {groups}}}> ({{
            ^bb0(%l: tensor<f32>, %r: tensor<f32>):
                %s = stablehlo.add %l, %r : tensor<f32>
                stablehlo.return %s : tensor<f32>
            }}) : ({w}) -> {w}
            %count{i} = stablehlo.constant dense<{replicas}.0> : {w}
            %mean{i} = stablehlo.divide %sum{i}, %count{i} : {w}\n"
        );
    }
    format!(
        "module attributes {{mhlo.num_replicas = {replicas} : i32}} {{
        func.func public @main(%x: {x}, %w: {w}, %c: {c}) -> ({x}, {x}, {w}) {{
            {body}
            return %dx0, %dx1, %mean1 : {x}, {x}, {w}
        }} }}"
    )
}
