//! `phalanx.lstm`, `phalanx.gru` and their gradients inside programs of the CPU plugin; on processors that have no such calls the tests pass with a
//! notice. What they compute is tested beside the loops themselves.

#[path = "start/plugin.rs"]
mod plugin;

use std::sync::OnceLock;
use std::time::Duration;

use phalanx_kernels::register_lstm;
use phalanx_pjrt::{
    Buffer, Client, CompileOptions, ElementType, ExecuteOptions, bytes_of, elements_of,
};

const LONG: Duration = Duration::from_secs(60);
const BATCH: usize = 9;
const STEPS: usize = 4;
const UNITS: usize = 5;

fn client() -> Option<&'static Client> {
    static CLIENT: OnceLock<Option<Client>> = OnceLock::new();
    let made = CLIENT.get_or_init(|| {
        start()
            .inspect_err(|why| phalanx_testkit::skip(format_args!("there are no calls: {why}")))
            .ok()
    });
    made.as_ref()
}

fn start() -> Result<Client, plugin::Failure> {
    let client = plugin::client(&[])?;
    register_lstm(&client)?;
    // A second time changes nothing.
    register_lstm(&client)?;
    Ok(client)
}

fn kind(dims: &[usize]) -> String {
    let sizes: String = dims.iter().map(|dim| format!("{dim}x")).collect();
    format!("tensor<{sizes}f32>")
}

/// Runs a call with operands of numbers that look random.
fn run(
    target: &str,
    operands: &[&[usize]],
    results: &[&[usize]],
    config: &str,
) -> Result<Vec<Vec<f32>>, String> {
    let client = client().expect("callers ask first");
    let kinds: Vec<String> = operands.iter().map(|dims| kind(dims)).collect();
    let names: Vec<String> = (0..kinds.len()).map(|i| format!("%a{i}")).collect();
    let typed: Vec<String> = (names.iter().zip(&kinds))
        .map(|(name, kind)| format!("{name}: {kind}"))
        .collect();
    let made: Vec<String> = results.iter().map(|dims| kind(dims)).collect();
    let found: Vec<String> = (0..made.len()).map(|i| format!("%0#{i}")).collect();
    let text = format!(
        "func.func public @main({}) -> ({made}) {{
           %0:{} = stablehlo.custom_call @{target}({}) {{api_version = 4 : i32, backend_config = {{{config}}}}} : ({}) -> ({made})
           return {} : {made}
         }}",
        typed.join(", "),
        made.len(),
        names.join(", "),
        kinds.join(", "),
        found.join(", "),
        made = made.join(", "),
    );
    let program = client.compile(&text, &CompileOptions::default());
    let program = program.map_err(|error| error.to_string())?;
    let buffers: Vec<Buffer> = (operands.iter().enumerate())
        .map(|(seed, dims)| {
            let count: usize = dims.iter().product();
            let value = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0;
            let values: Vec<f32> = (0..count).map(value).collect();
            let dims: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
            let bytes = bytes_of(&values);
            client.buffer(0, ElementType::F32, &dims, bytes).unwrap()
        })
        .collect();
    let buffers: Vec<&Buffer> = buffers.iter().collect();
    let execution = program.execute(&[&buffers], &ExecuteOptions::default());
    let mut execution = execution.map_err(|error| error.to_string())?;
    let outputs = execution.outputs.remove(0).into_iter();
    let host = |buffer: Buffer| buffer.to_host(LONG).map(|bytes| elements_of(&bytes));
    let outputs: Result<Vec<Vec<f32>>, _> = outputs.map(host).collect();
    outputs.map_err(|error| error.to_string())
}

const X: &[usize] = &[BATCH, STEPS, 4 * UNITS];
const KERNEL: &[usize] = &[UNITS, 4 * UNITS];
const BIAS: &[usize] = &[4 * UNITS];
const STATE: &[usize] = &[BATCH, UNITS];
const STATES: &[usize] = &[BATCH, STEPS, UNITS];

fn forward(config: &str) -> Result<Vec<Vec<f32>>, String> {
    let operands = [X, KERNEL, BIAS, STATE, STATE];
    run("phalanx.lstm", &operands, &[STATES, STATES, X], config)
}

fn backward(config: &str) -> Result<Vec<Vec<f32>>, String> {
    let operands = [STATES, KERNEL, STATE, STATES, X, STATES];
    run(
        "phalanx.lstm_gradient",
        &operands,
        &[X, STATE, STATE],
        config,
    )
}

const GRU_X: &[usize] = &[BATCH, STEPS, 3 * UNITS];
const GRU_KERNEL: &[usize] = &[UNITS, 3 * UNITS];
const GRU_BIAS: &[usize] = &[3 * UNITS];

fn gru(config: &str) -> Result<Vec<Vec<f32>>, String> {
    let operands = [GRU_X, GRU_KERNEL, GRU_BIAS, STATE];
    run("phalanx.gru", &operands, &[STATES, X], config)
}

fn gru_gradient(config: &str) -> Result<Vec<Vec<f32>>, String> {
    let operands = [STATES, GRU_KERNEL, STATE, STATES, X];
    let results = [GRU_X, GRU_X, STATE];
    run("phalanx.gru_gradient", &operands, &results, config)
}

#[test]
fn every_run_and_every_share_of_the_threads_gives_the_same_bits() {
    if client().is_none() {
        return;
    }
    for call in [forward, backward, gru, gru_gradient] {
        let first = call("").unwrap();
        assert!(first.iter().flatten().all(|value| value.is_finite()));
        for replicas in [1, 1, 2, 1000] {
            let again = call(&format!("replicas = {replicas} : i64")).unwrap();
            assert_eq!(again, first, "{replicas} replicas");
        }
    }
}

#[test]
fn operands_are_where_they_are_expected() {
    if client().is_none() {
        return;
    }
    let made = forward("").unwrap();
    let [hs, cs, gates] = [&made[0], &made[1], &made[2]];
    for place in 0..BATCH * STEPS {
        let gate = |number: usize, unit: usize| gates[(place * 4 + number) * UNITS + unit];
        for unit in 0..UNITS {
            let at = place * UNITS + unit;
            let before = match place % STEPS {
                0 => ((place / STEPS * UNITS + unit) * 37 + 4 * 11) as f32 % 101.0 / 50.0 - 1.0,
                _ => cs[at - UNITS],
            };
            let c = gate(1, unit) * before + gate(0, unit) * gate(2, unit);
            assert!((cs[at] - c).abs() < 1e-5, "cell {at}: {} for {c}", cs[at]);
            let h = gate(3, unit) * c.tanh();
            assert!((hs[at] - h).abs() < 1e-5, "state {at}: {} for {h}", hs[at]);
        }
    }
}

#[test]
fn operands_of_gated_units_are_where_they_are_expected() {
    if client().is_none() {
        return;
    }
    let made = gru("").unwrap();
    let [hs, gates] = [&made[0], &made[1]];
    let given = |i: usize, seed: usize| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0;
    for place in 0..BATCH * STEPS {
        for unit in 0..UNITS {
            let [z, r, g, inner] = [0, 1, 2, 3].map(|i| gates[(place * 4 + i) * UNITS + unit]);
            let x = given((place * 3 + 2) * UNITS + unit, 0);
            assert!((g - (x + r * inner).tanh()).abs() < 1e-5, "{place} {unit}");
            let at = place * UNITS + unit;
            let before = match place % STEPS {
                0 => given(place / STEPS * UNITS + unit, 3),
                _ => hs[at - UNITS],
            };
            let h = z * before + (1.0 - z) * g;
            assert!((hs[at] - h).abs() < 1e-5, "state {at}: {} for {h}", hs[at]);
        }
    }
}

#[test]
fn nothing_in_is_nothing_out() {
    if client().is_none() {
        return;
    }
    let (none, x): (&[usize], &[usize]) = (&[BATCH, 0, UNITS], &[BATCH, 0, 4 * UNITS]);
    let operands = [x, KERNEL, BIAS, STATE, STATE];
    let made = run("phalanx.lstm", &operands, &[none, none, x], "").unwrap();
    assert!(made.iter().all(Vec::is_empty));
    let operands = [none, KERNEL, STATE, none, x];
    let made = run("phalanx.lstm_gradient", &operands, &[x, STATE, STATE], "").unwrap();
    assert_eq!(
        made[1..],
        [vec![0.0; BATCH * UNITS], vec![0.0; BATCH * UNITS]]
    );
}

#[test]
fn arrays_of_other_sizes_are_refused() {
    if client().is_none() {
        return;
    }
    let right = [X, KERNEL, BIAS, STATE, STATE];
    let wrong: &[usize] = &[3, 7];
    for place in 0..right.len() {
        let mut operands = right;
        operands[place] = wrong;
        let error = run("phalanx.lstm", &operands, &[STATES, STATES, X], "").unwrap_err();
        assert!(
            error.contains("expected the dimensions"),
            "{place}: {error}"
        );
    }
    let right = [STATES, KERNEL, STATE, STATES, X, STATES];
    for place in 1..right.len() {
        let mut operands = right;
        operands[place] = wrong;
        let results = [X, STATE, STATE];
        let error = run("phalanx.lstm_gradient", &operands, &results, "").unwrap_err();
        assert!(
            error.contains("expected the dimensions"),
            "{place}: {error}"
        );
    }
    let right = [GRU_X, GRU_KERNEL, GRU_BIAS, STATE];
    for place in 0..right.len() {
        let mut operands = right;
        operands[place] = wrong;
        let error = run("phalanx.gru", &operands, &[STATES, X], "").unwrap_err();
        assert!(
            error.contains("expected the dimensions"),
            "{place}: {error}"
        );
    }
    let right = [STATES, GRU_KERNEL, STATE, STATES, X];
    for place in 1..right.len() {
        let mut operands = right;
        operands[place] = wrong;
        let results = [GRU_X, GRU_X, STATE];
        let error = run("phalanx.gru_gradient", &operands, &results, "").unwrap_err();
        assert!(
            error.contains("expected the dimensions"),
            "{place}: {error}"
        );
    }
    let error = forward("replicas = 0 : i64").unwrap_err();
    assert!(
        error.contains("`replicas` must be a positive integer"),
        "{error}"
    );
}
