//! Batch normalisation, its statistics and its gradient.

use crate::{Array, assert_close, client, kind, product, run};

/// What a normalisation and its gradient should be, in f64: y, mean, variance, dx, dgamma, dbeta, gradient of what was added.
pub(crate) fn normalised(
    x: &Array,
    gamma: &[f32],
    beta: &[f32],
    added: Option<&Array>,
    relu: Option<f64>,
    dy: &Array,
) -> [Vec<f32>; 7] {
    let channels = gamma.len();
    let rows = (x.values.len() / channels) as f64;
    let at = |array: &Array, row: usize, c: usize| f64::from(array.values[row * channels + c]);
    let mut found: [Vec<f32>; 7] = Default::default();
    for index in [0, 3, 6] {
        found[index] = vec![0.0; x.values.len()];
    }
    for c in 0..channels {
        let over = |each: &dyn Fn(usize) -> f64| (0..rows as usize).map(each).sum::<f64>();
        let mean = over(&|row| at(x, row, c)) / rows;
        let variance = over(&|row| (at(x, row, c) - mean).powi(2)) / rows;
        let inverse = 1.0 / (variance + f64::from(EPSILON)).sqrt();
        let hat = |row: usize| (at(x, row, c) - mean) * inverse;
        let y = |row: usize| {
            let added = added.map_or(0.0, |added| at(added, row, c));
            hat(row) * f64::from(gamma[c]) + f64::from(beta[c]) + added
        };
        let passed = |row: usize| {
            let slope = |ceiling| y(row) > 0.0 && (ceiling == 0.0 || y(row) < ceiling);
            if relu.is_none_or(slope) {
                at(dy, row, c)
            } else {
                0.0
            }
        };
        let dbeta = over(&passed);
        let dgamma = over(&|row| passed(row) * hat(row));
        for row in 0..rows as usize {
            let value = match relu {
                None => y(row),
                Some(0.0) => y(row).max(0.0),
                Some(ceiling) => y(row).clamp(0.0, ceiling),
            };
            found[0][row * channels + c] = value as f32;
            let dx = f64::from(gamma[c])
                * inverse
                * (passed(row) - dbeta / rows - hat(row) * dgamma / rows);
            found[3][row * channels + c] = dx as f32;
            found[6][row * channels + c] = passed(row) as f32;
        }
        found[1].push(mean as f32);
        found[2].push(variance as f32);
        found[4].push(dgamma as f32);
        found[5].push(dbeta as f32);
    }
    found
}

const EPSILON: f32 = 1e-3;

/// With a ReLU and its ceiling (0: none): x, gamma, beta, dy and what is added -> y, mean, variance, dx, dgamma, dbeta, gradient of what was added.
pub(crate) fn normalisation_body(dims: &[i64], added: bool, relu: Option<f64>) -> String {
    let (relu, ceiling) = (relu.is_some(), relu.unwrap_or(0.0));
    let (x, c) = (kind(dims, "f32"), kind(&dims[dims.len() - 1..], "f32"));
    let (operands, kinds) = if added {
        (", %a4", format!(", {x}"))
    } else {
        ("", String::new())
    };
    let (mask, mask_kind) = match (relu, added) {
        (true, true) => (", %y#0", format!(", {x}")),
        (true, false) => (", %a2", format!(", {c}")),
        _ => ("", String::new()),
    };
    let with_four = relu && added;
    let (count, last) = if with_four {
        (4, format!(", {x}"))
    } else {
        (3, String::new())
    };
    let gradient_of_added = if with_four { "%d#3" } else { "%a3" };
    format!(
        "%y:3 = stablehlo.custom_call @phalanx.batch_norm(%a0, %a1, %a2{operands}) {{api_version = 4 : i32, backend_config = {{ceiling = {ceiling:.6} : f32, epsilon = {EPSILON:.6} : f32, relu = {relu}}}}} : ({x}, {c}, {c}{kinds}) -> ({x}, {c}, {c})
        %d:{count} = stablehlo.custom_call @phalanx.batch_norm_gradient(%a3, %a0, %y#1, %y#2, %a1{mask}) {{api_version = 4 : i32, backend_config = {{ceiling = {ceiling:.6} : f32, epsilon = {EPSILON:.6} : f32}}}} : ({x}, {x}, {c}, {c}, {c}{mask_kind}) -> ({x}, {c}, {c}{last})
        return %y#0, %y#1, %y#2, %d#0, %d#1, %d#2, {gradient_of_added} : {x}, {c}, {c}, {x}, {c}, {c}, {x}"
    )
}

#[test]
fn normalisations_equal_their_formula() {
    let Some((client, _)) = client() else { return };
    let shapes: [&[i64]; 5] = [
        &[2, 5, 7, 8],
        &[3, 9],
        &[1000, 3],
        &[13, 5, 2048],
        &[2, 64, 64, 24],
    ];
    for (case, dims) in shapes.into_iter().enumerate() {
        let ramps = [
            (false, None),
            (false, Some(0.0)),
            (true, Some(0.0)),
            (true, None),
            (false, Some(1.25)),
        ];
        for (added, relu) in ramps {
            let channels = &dims[dims.len() - 1..];
            let mut x = Array::noise(dims, 8);
            // Far from zero, where the sum of squares alone would lose everything.
            x.values.iter_mut().for_each(|x| *x += 40.0 * case as f32);
            let (gamma, beta) = (Array::noise(channels, 9), Array::noise(channels, 10));
            let (dy, r) = (Array::noise(dims, 11), Array::noise(dims, 12));
            let expected = normalised(
                &x,
                &gamma.values,
                &beta.values,
                added.then_some(&r),
                relu,
                &dy,
            );
            let results =
                [dims, channels, channels, dims, channels, channels, dims].map(<[i64]>::to_vec);
            let body = normalisation_body(dims, added, relu);
            let mut arguments = vec![&x, &gamma, &beta, &dy];
            arguments.extend(added.then_some(&r));
            let found = run(client, &arguments, &results, &body).unwrap();
            let names = [
                "y",
                "mean",
                "variance",
                "dx",
                "dgamma",
                "dbeta",
                "gradient of what was added",
            ];
            for ((name, found), expected) in names.iter().zip(&found).zip(&expected) {
                let last = *name == names[6] && !(relu.is_some() && added);
                if !last {
                    assert_close(
                        &format!("{dims:?}, added {added}, relu {relu:?}: {name}"),
                        found,
                        expected,
                    );
                }
            }
        }
    }
}

/// A batch of 8 images whose corners are far from everything else, as with a frame: the rows that the shift is estimated from must not
/// be the corners of all of them.
#[test]
fn statistics_are_exact_where_corners_are_far() {
    let Some((client, _)) = client() else { return };
    let dims = [8, 16, 16, 8];
    let mut x = Array::gaussian(&dims, 17);
    for (b, row, column, c) in product(dims) {
        let is_corner = [row, column].iter().all(|at| [0, 15].contains(at));
        let at = x.at([b, row, column, c]);
        x.values[at] += if is_corner { 500.0 } else { 0.0 };
    }
    let (gamma, beta) = (Array::gaussian(&[8], 1), Array::gaussian(&[8], 2));
    let dy = Array::gaussian(&dims, 3);
    let expected = normalised(&x, &gamma.values, &beta.values, None, None, &dy);
    let all: [&[i64]; 7] = [&dims, &[8], &[8], &dims, &[8], &[8], &dims];
    let body = normalisation_body(&dims, false, None);
    let found = run(
        client,
        &[&x, &gamma, &beta, &dy],
        &all.map(<[i64]>::to_vec),
        &body,
    )
    .unwrap();
    for (found, expected) in found[2].iter().zip(&expected[2]) {
        let error = (found - expected).abs() / expected;
        assert!(
            error < 1e-6,
            "variance {found}, expected {expected}: {error:e}"
        );
    }
}

#[test]
fn statistics_are_exact_with_outliers() {
    let Some((client, _)) = client() else { return };
    let (rows, channels) = (5000, 8);
    let dims = [rows, channels];
    for outlier in [0, rows / 2, rows - 1] {
        let mut x = Array::noise(&dims, 17);
        x.values.iter_mut().for_each(|x| *x *= 0.05);
        let row = (outlier * channels) as usize;
        x.values[row..][..channels as usize].fill(1000.0);
        let of_channels = Array::noise(&[channels], 18);
        let (gamma, beta) = (&of_channels.values, &of_channels.values);
        let expected = normalised(&x, gamma, beta, None, None, &x);
        let results = [&dims[..], &[8], &[8], &dims, &[8], &[8], &dims].map(<[i64]>::to_vec);
        let arguments = [&x, &of_channels, &of_channels, &x];
        let body = normalisation_body(&dims, false, None);
        let found = run(client, &arguments, &results, &body).unwrap();
        for (what, at) in [("mean", 1), ("variance", 2)] {
            for (found, expected) in found[at].iter().zip(&expected[at]) {
                assert!(
                    (found - expected).abs() <= 1e-5 * expected.abs(),
                    "row {outlier}, {what}: {found}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn a_nan_is_not_hidden_by_a_fused_relu() {
    let Some((client, _)) = client() else { return };
    let dims = [4, 8];
    let mut x = Array::noise(&dims, 13);
    x.values[3] = f32::NAN;
    let channels = Array::noise(&[8], 14);
    let results = [&dims[..], &[8], &[8], &dims, &[8], &[8], &dims].map(<[i64]>::to_vec);
    let arguments = [&x, &channels, &channels, &x];
    let found = run(
        client,
        &arguments,
        &results,
        &normalisation_body(&dims, false, Some(6.0)),
    )
    .unwrap();
    for result in &found[..5] {
        assert!(result.iter().any(|value| value.is_nan()), "{found:?}");
    }
}
