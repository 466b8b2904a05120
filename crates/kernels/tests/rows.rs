//! `phalanx.rows` inside programs of the CPU plugin: the bytes of each row, whatever they say and however many rows there are.

#[path = "start/plugin.rs"]
mod plugin;

use std::sync::OnceLock;
use std::time::Duration;

use phalanx_kernels::register_rows;
use phalanx_pjrt::{Buffer, Client, CompileOptions, ElementType, ExecuteOptions, bytes_of};

const LONG: Duration = Duration::from_secs(60);

fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let client = plugin::client(&[]).unwrap_or_else(|why| panic!("{why}"));
        register_rows(&client).unwrap();
        // A second time changes nothing.
        register_rows(&client).unwrap();
        client
    })
}

/// The rows of a table at some indices, by a call whose result has these dims.
fn rows(
    element: &str,
    (table, bytes): (&[i64], &[u8]),
    (places, indices): (&[i64], &[i32]),
    result: &[i64],
) -> Result<Vec<u8>, String> {
    let kind = |dims: &[i64], element: &str| {
        let dims: String = dims.iter().map(|dim| format!("{dim}x")).collect();
        format!("tensor<{dims}{element}>")
    };
    let types = [
        kind(table, element),
        kind(places, "i32"),
        kind(result, element),
    ];
    let [of_table, of_places, of_result] = &types;
    let text = format!(
        "func.func public @main(%a: {of_table}, %b: {of_places}) -> {of_result} {{
           %0 = stablehlo.custom_call @phalanx.rows(%a, %b) {{api_version = 4 : i32, backend_config = {{}}}} : ({of_table}, {of_places}) -> {of_result}
           return %0 : {of_result}
         }}"
    );
    let failed = |error: phalanx_pjrt::PjrtError| error.to_string();
    let program = client().compile(&text, &CompileOptions::default());
    let put = |element, dims: &[i64], bytes: &[u8]| -> Buffer {
        client().buffer(0, element, dims, bytes).unwrap()
    };
    let buffers = [
        put(ElementType::from_name(element).unwrap(), table, bytes),
        put(ElementType::I32, places, bytes_of(indices)),
    ];
    let buffers: Vec<&Buffer> = buffers.iter().collect();
    let execution = program
        .map_err(failed)?
        .execute(&[&buffers], &ExecuteOptions::default());
    let output = execution.map_err(failed)?.outputs.remove(0).remove(0);
    output.to_host(LONG).map_err(failed)
}

/// Bytes that look random, among them all patterns of NaN and of numbers that are denormal.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 7u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn rows_are_those_at_the_indices_to_the_bit() {
    // The type, its bytes, the dims of a row, and of the indices: one task and several, with and without a rest.
    let cases: [(&str, usize, &[i64], &[i64]); 7] = [
        ("f32", 4, &[1], &[5]),
        ("f32", 4, &[64], &[3, 7]),
        ("f32", 4, &[64], &[32, 16]),
        ("bf16", 2, &[3, 33], &[257]),
        ("f16", 2, &[1000], &[1]),
        ("i32", 4, &[], &[300]),
        ("f64", 8, &[2, 2], &[1030]),
    ];
    const ROWS: i32 = 97;
    for (element, size, of_row, places) in cases {
        let row = size * of_row.iter().product::<i64>() as usize;
        let bytes = noise(ROWS as usize * row);
        let count = places.iter().product::<i64>() as i32;
        let mut indices: Vec<i32> = (0..count).map(|i| (i * 31 + 5) % ROWS).collect();
        indices[0] = i32::MIN;
        indices[count as usize / 2] = i32::MAX;
        indices[count as usize - 1] = ROWS;
        let table = [&[i64::from(ROWS)], of_row].concat();
        let result = [places, of_row].concat();
        let got = rows(element, (&table, &bytes), (places, &indices), &result).unwrap();
        let expected: Vec<u8> = indices
            .iter()
            .flat_map(|&index| {
                let start = index.clamp(0, ROWS - 1) as usize * row;
                bytes[start..start + row].to_vec()
            })
            .collect();
        assert!(
            got == expected,
            "{element} rows of {of_row:?} at {places:?}"
        );
    }
}

#[test]
fn nothing_gives_nothing_and_other_shapes_are_refused() {
    let bytes = noise(4 * 8 * 4);
    let table: (&[i64], &[u8]) = (&[8, 4], &bytes);
    assert_eq!(rows("f32", table, (&[0], &[]), &[0, 4]), Ok(Vec::new()));
    let refused = |table: (&[i64], &[u8]), result: &[i64]| {
        let error = rows("f32", table, (&[2], &[1, 2]), result).unwrap_err();
        assert!(error.contains("expected rows"), "{error}");
    };
    refused(table, &[2, 5]);
    refused(table, &[3, 4]);
    refused((&[0, 4], &[]), &[2, 4]);
}
