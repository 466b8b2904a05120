//! `phalanx.softmax` inside programs of the CPU plugin: rows of several threads, and what is refused; on processors that have no such call the tests
//! pass with a notice.

#[path = "start/plugin.rs"]
mod plugin;

use std::sync::OnceLock;
use std::time::Duration;

use phalanx_kernels::register_softmax;
use phalanx_pjrt::{Client, CompileOptions, ElementType, ExecuteOptions, bytes_of, elements_of};

const LONG: Duration = Duration::from_secs(60);

fn client() -> Option<&'static Client> {
    static CLIENT: OnceLock<Option<Client>> = OnceLock::new();
    let made = CLIENT.get_or_init(|| {
        start()
            .inspect_err(|why| phalanx_testkit::skip(format_args!("there is no softmax: {why}")))
            .ok()
    });
    made.as_ref()
}

fn start() -> Result<Client, plugin::Failure> {
    let client = plugin::client(&[])?;
    register_softmax(&client)?;
    // A second time changes nothing.
    register_softmax(&client)?;
    Ok(client)
}

/// Exponentials, sums and maxima of an array of these dims, with other dims of the sums if they are given.
fn softmax(
    client: &Client,
    dims: &[i64],
    x: &[f32],
    sums: Option<&[i64]>,
) -> Result<[Vec<f32>; 3], String> {
    let kind = |dims: &[i64]| {
        let dims: String = dims.iter().map(|dim| format!("{dim}x")).collect();
        format!("tensor<{dims}f32>")
    };
    let rows = &dims[..dims.len() - 1];
    let (whole, rows, sums) = (kind(dims), kind(rows), kind(sums.unwrap_or(rows)));
    let results = format!("{whole}, {sums}, {rows}");
    let text = format!(
        "func.func public @main(%x: {whole}) -> ({results}) {{
           %0:3 = stablehlo.custom_call @phalanx.softmax(%x) {{api_version = 4 : i32, backend_config = {{}}}} : ({whole}) -> ({results})
           return %0#0, %0#1, %0#2 : {results}
         }}"
    );
    let failed = |error: phalanx_pjrt::PjrtError| error.to_string();
    let program = client.compile(&text, &CompileOptions::default());
    let x = client.buffer(0, ElementType::F32, dims, bytes_of(x));
    let x = x.map_err(failed)?;
    let program = program.map_err(failed)?;
    let execution = program.execute(&[&[&x]], &ExecuteOptions::default());
    let outputs = execution.map_err(failed)?.outputs.remove(0);
    let found = outputs.iter().map(|output| output.to_host(LONG));
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let found = found.iter().map(|bytes| elements_of(bytes));
    found
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| "three results".to_owned())
}

#[test]
fn each_row_of_many_is_found_by_itself() {
    let Some(client) = client() else { return };
    let (rows, columns) = (700, 130);
    let x: Vec<f32> = (0..rows * columns)
        .map(|i| (i * 7919 % 1009) as f32 / 100.0 + (i / columns) as f32)
        .collect();
    let dims = [7, 100, columns as i64];
    let found = softmax(client, &dims, &x, None).unwrap();
    let [exponentials, sums, largest] = &found;
    for (row, numbers) in x.chunks_exact(columns).enumerate() {
        let most = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(largest[row], most, "row {row}");
        let mut total = 0.0f64;
        for (number, found) in numbers.iter().zip(&exponentials[row * columns..]) {
            let exact = f64::from(number - most).exp();
            total += exact;
            assert!((f64::from(*found) / exact - 1.0).abs() < 1e-6, "row {row}");
        }
        assert!((f64::from(sums[row]) / total - 1.0).abs() < 1e-6);
    }
    assert_eq!(softmax(client, &dims, &x, None).unwrap(), found);
}

#[test]
fn results_of_other_sizes_and_arrays_without_rows_are_refused() {
    let Some(client) = client() else { return };
    let error = softmax(client, &[4, 5], &[0.0; 20], Some(&[5])).unwrap_err();
    assert!(error.contains("[4]") && error.contains("[5]"), "{error}");
    let error = softmax(client, &[4, 0], &[], None).unwrap_err();
    assert!(error.contains("rows with elements"), "{error}");
}
