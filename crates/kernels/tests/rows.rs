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

/// Sums of rows `[sums, columns]` of a table `[rows, columns]` at indices `[sums, rows of each]`, perhaps weighed.
fn row_sums(
    (table, columns): (&[f32], usize),
    (indices, of_each): (&[i32], usize),
    weights: Option<&[f32]>,
) -> Vec<f32> {
    let (rows, sums) = (table.len() / columns, indices.len() / of_each);
    let of_table = format!("tensor<{rows}x{columns}xf32>");
    let of_indices = format!("tensor<{sums}x{of_each}xi32>");
    let of_weights = format!("tensor<{sums}x{of_each}xf32>");
    let result = format!("tensor<{sums}x{columns}xf32>");
    let (third, operand, kind) = match weights {
        Some(_) => (
            format!(", %c: {of_weights}"),
            ", %c",
            format!(", {of_weights}"),
        ),
        None => (String::new(), "", String::new()),
    };
    let text = format!(
        "func.func public @main(%a: {of_table}, %b: {of_indices}{third}) -> {result} {{
           %0 = stablehlo.custom_call @phalanx.row_sums(%a, %b{operand}) {{api_version = 4 : i32, backend_config = {{}}}} : ({of_table}, {of_indices}{kind}) -> {result}
           return %0 : {result}
         }}"
    );
    let program = client().compile(&text, &CompileOptions::default()).unwrap();
    let dims = [sums, of_each].map(|size| size as i64);
    let put = |element, dims: &[i64], bytes: &[u8]| -> Buffer {
        client().buffer(0, element, dims, bytes).unwrap()
    };
    let mut buffers = vec![
        put(
            ElementType::F32,
            &[rows as i64, columns as i64],
            bytes_of(table),
        ),
        put(ElementType::I32, &dims, bytes_of(indices)),
    ];
    buffers.extend(weights.map(|weights| put(ElementType::F32, &dims, bytes_of(weights))));
    let buffers: Vec<&Buffer> = buffers.iter().collect();
    let execution = program.execute(&[&buffers], &ExecuteOptions::default());
    let output = execution.unwrap().outputs.remove(0).remove(0);
    let bytes = output.to_host(LONG).unwrap();
    let numbers = bytes.as_chunks::<4>().0.iter();
    numbers.map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn sums_of_rows_are_those_of_f64() {
    // Rows of the table, numbers of a row, sums, rows of each: blocks with and without a rest, one task and several.
    let cases = [
        [5, 1, 1, 1],
        [97, 8, 3, 4],
        [97, 33, 7, 63],
        [300, 64, 40, 130],
        [11, 1000, 5, 257],
    ];
    for [rows, columns, sums, of_each] in cases {
        let number = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 256.0 - 2.0;
        let table: Vec<f32> = (0..rows * columns).map(number).collect();
        let weights: Vec<f32> = (0..sums * of_each).map(|i| number(i + 5)).collect();
        // Some are left out.
        let index = |i: usize| ((i * 31 + 5) % (rows + 2)) as i32 - 2;
        let indices: Vec<i32> = (0..sums * of_each).map(index).collect();
        for weights in [None, Some(&weights[..])] {
            let got = row_sums((&table, columns), (&indices, of_each), weights);
            for (at, got) in got.iter().enumerate() {
                let (sum, column) = (at / columns, at % columns);
                let of_sum = sum * of_each..(sum + 1) * of_each;
                let terms = of_sum.filter(|&place| indices[place] >= 0).map(|place| {
                    let number = table[indices[place] as usize * columns + column];
                    f64::from(number) * weights.map_or(1.0, |weights| f64::from(weights[place]))
                });
                let (expected, size) = terms.fold((0.0, 0.0), |(sum, size), term: f64| {
                    (sum + term, size + term.abs())
                });
                assert!(
                    (f64::from(*got) - expected).abs() <= 1e-6 * size,
                    "{rows} rows of {columns}, {of_each} each: {got}, expected {expected}"
                );
            }
            let again = row_sums((&table, columns), (&indices, of_each), weights);
            assert_eq!(bytes_of(&got), bytes_of(&again));
        }
    }
}

#[test]
fn a_row_past_the_table_is_nan_and_one_left_out_is_not_read() {
    let mut table = vec![1.0f32; 4 * 16];
    table[..16].fill(f32::NAN);
    let indices = [1, -1, i32::MIN, 1, 4, 2, 0, 3];
    let sums = row_sums((&table, 16), (&indices, 2), None);
    let of_each: Vec<&[f32]> = sums.chunks_exact(16).collect();
    assert_eq!(of_each[0], [1.0; 16]);
    assert_eq!(of_each[1], [1.0; 16]);
    assert!(of_each[2..].concat().iter().all(|number| number.is_nan()));
    let sums = row_sums(
        (&table, 16),
        (&[-1, -5, 1, 0], 2),
        Some(&[f32::NAN, 1.0, 1.0, 0.0]),
    );
    assert_eq!(sums[..16], [0.0; 16]);
    assert!(sums[16..].iter().all(|number| number.is_nan()));
}
