//! `phalanx.column_sums` and `phalanx.row_reduction` against sums in f64 and plain maxima.

use crate::short_floats::{assert_rounded, in_bf16, rounded};
use crate::{Array, assert_close, client, kind, run};

const SUMS: &str = "phalanx.column_sums";
const ROW_SUMS: &str = "phalanx.row_reduction of sums";
const ROW_MAXIMA: &str = "phalanx.row_reduction of maxima";

/// A call of f32.
fn body(call: &str, dims: &[i64], replicas: usize) -> String {
    let (target, maximum) = match call {
        SUMS => (SUMS, ""),
        ROW_SUMS => ("phalanx.row_reduction", "maximum = false, "),
        _ => ("phalanx.row_reduction", "maximum = true, "),
    };
    let (x, result) = (kind(dims, "f32"), kind(&result_dims(call, dims), "f32"));
    format!(
        "%s = stablehlo.custom_call @{target}(%a0) {{api_version = 4 : i32, backend_config = {{{maximum}replicas = {replicas} : i64}}}} : ({x}) -> {result}
        return %s : {result}"
    )
}

fn result_dims(call: &str, dims: &[i64]) -> Vec<i64> {
    match call {
        SUMS => dims[dims.len() - 1..].to_vec(),
        _ => dims[..dims.len() - 1].to_vec(),
    }
}

fn bits(results: &[Vec<f32>]) -> Vec<u32> {
    results.concat().into_iter().map(f32::to_bits).collect()
}

#[test]
fn column_sums_equal_sums_in_f64() {
    let Some((client, _)) = client() else { return };
    for dims in [
        &[1, 1][..],
        &[5, 3],
        &[70_001, 7],
        &[2, 31, 30, 64],
        &[40, 20_000],
        &[300, 8, 129],
    ] {
        let columns = dims[dims.len() - 1];
        let x = rounded(Array::gaussian(dims, 21));
        let expected: Vec<f32> = (0..columns as usize)
            .map(|c| {
                let column = x.values.iter().skip(c).step_by(columns as usize);
                column.map(|&x| f64::from(x)).sum::<f64>() as f32
            })
            .collect();
        let results = [vec![columns]];
        let found = [1, 2].map(|replicas| {
            let body = body(SUMS, dims, replicas);
            let wide = run(client, &[&x], &results, &body).unwrap().remove(0);
            let short = in_bf16(&body, &[&x], &[]);
            let short = run(client, &[&x], &results, &short).unwrap().remove(0);
            assert_close(&format!("{dims:?}"), &wide, &expected);
            assert_rounded(&format!("{dims:?}"), &short, &expected);
            bits(&[wide, short])
        });
        assert_eq!(
            found[0], found[1],
            "{dims:?}: bits with half of the threads"
        );
    }
}

#[test]
fn column_sums_keep_nan_and_the_infinities() {
    let Some((client, _)) = client() else { return };
    let dims = [130, 5];
    let mut x = Array::gaussian(&dims, 22);
    let at = |row: usize, column: usize| row * 5 + column;
    x.values[at(7, 0)] = f32::NAN;
    x.values[at(77, 1)] = f32::INFINITY;
    x.values[at(3, 2)] = f32::INFINITY;
    x.values[at(129, 2)] = f32::NEG_INFINITY;
    x.values[at(129, 3)] = f32::NEG_INFINITY;
    let body = in_bf16(&body(SUMS, &dims, 1), &[&x], &[]);
    let sums = run(client, &[&x], &[vec![5]], &body).unwrap().remove(0);
    assert!(sums[0].is_nan() && sums[2].is_nan(), "{sums:?}");
    assert_eq!([sums[1], sums[3]], [f32::INFINITY, f32::NEG_INFINITY]);
    assert!(sums[4].is_finite(), "{sums:?}");
}

#[test]
fn rows_are_summed_and_their_maxima_found() {
    let Some((client, _)) = client() else { return };
    for dims in [
        &[1, 1][..],
        &[5, 3],
        &[7, 31],
        &[2, 31, 30, 64],
        &[3, 100_001],
        &[9001, 33],
        &[300, 8, 129],
    ] {
        let columns = dims[dims.len() - 1] as usize;
        let x = rounded(Array::gaussian(dims, 23));
        let rows = || x.values.chunks_exact(columns);
        let sum = |row: &[f32]| row.iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
        let sums: Vec<f32> = rows().map(sum).collect();
        let maxima = rows().map(|row| row.iter().copied().fold(f32::MIN, f32::max));
        let maxima: Vec<f32> = maxima.collect();
        let by = |call: &str, replicas| {
            let results = [result_dims(call, dims)];
            let body = body(call, dims, replicas);
            let short = in_bf16(&body, &[&x], &[]);
            [body, short].map(|body| run(client, &[&x], &results, &body).unwrap().remove(0))
        };
        let name = format!("{dims:?}");
        let [wide, short] = by(ROW_SUMS, 1);
        assert_close(&name, &wide, &sums);
        assert_rounded(&name, &short, &sums);
        assert_eq!(
            bits(&by(ROW_SUMS, 2)),
            bits(&[wide, short]),
            "{name}: bits with half of the threads"
        );
        // Numbers of bf16 have an exact maximum.
        assert_eq!(by(ROW_MAXIMA, 1), [maxima.clone(), maxima], "{name}");
    }
}

#[test]
fn rows_keep_nan_and_the_infinities() {
    let Some((client, _)) = client() else { return };
    // A number of the first pass, one of the rest, and in each place of a row a NaN.
    let dims = [200, 100];
    let mut x = Array::gaussian(&dims, 24);
    for row in 0..100 {
        x.values[row * 100 + row] = f32::NAN;
    }
    x.values[100 * 100 + 3] = f32::INFINITY;
    x.values[101 * 100 + 99] = f32::NEG_INFINITY;
    x.values[102 * 100..][..100].fill(f32::NEG_INFINITY);
    x.values[103 * 100] = f32::INFINITY;
    x.values[103 * 100 + 1] = f32::NEG_INFINITY;
    for call in [ROW_SUMS, ROW_MAXIMA] {
        let body = body(call, &dims, 1);
        for body in [in_bf16(&body, &[&x], &[]), body] {
            let found = run(client, &[&x], &[vec![200]], &body).unwrap().remove(0);
            assert!(found[..100].iter().all(|value| value.is_nan()), "{found:?}");
            assert_eq!([found[100], found[102]], [f32::INFINITY, f32::NEG_INFINITY]);
            assert!(found[104..].iter().all(|value| value.is_finite()));
            match call {
                ROW_SUMS => assert!(found[101] == f32::NEG_INFINITY && found[103].is_nan()),
                _ => assert!(found[101].is_finite() && found[103] == f32::INFINITY),
            }
        }
    }
}

#[test]
fn reductions_of_other_shapes_and_elements_are_refused() {
    let Some((client, _)) = client() else { return };
    let x = Array::gaussian(&[4, 6], 25);
    let refused = |body: &str, results: &[Vec<i64>]| {
        run(client, &[&x], results, body).expect_err("a reduction of other shapes")
    };
    let to = |text: String, from: &str, other: &str| text.replace(from, other);
    let wrong = to(body(ROW_SUMS, &[4, 6], 1), "tensor<4xf32>", "tensor<6xf32>");
    let error = refused(&wrong, &[vec![6]]);
    assert!(
        error.contains("expected the dimensions [4], got [6]"),
        "{error}"
    );
    let wrong = to(body(SUMS, &[4, 6], 1), "tensor<6xf32>", "tensor<4xf32>");
    let error = refused(&wrong, &[vec![4]]);
    assert!(
        error.contains("expected the dimensions [6], got [4]"),
        "{error}"
    );
    let wrong = to(body(ROW_SUMS, &[4, 6], 1), "maximum = false, ", "");
    let error = refused(&wrong, &[vec![4]]);
    assert!(error.contains("maximum"), "{error}");
}
