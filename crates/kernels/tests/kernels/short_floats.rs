//! Calls on arrays of bf16, which are f32 in registers only: against f64 formulas of the rounded arguments.

use crate::normalisations::{normalisation_body, normalised};
use crate::poolings::{POOLS, pooling_body};
use crate::{Array, assert_close, client, kind, run};

/// The nearest bf16 of each number, of two the even one.
pub(crate) fn rounded(mut array: Array) -> Array {
    for value in &mut array.values {
        let [down, up] = [0, 0x1_0000].map(|more| {
            let bits = (value.to_bits() & 0xffff_0000).wrapping_add(more);
            f32::from_bits(bits)
        });
        let [below, above] = [down, up].map(|near| (f64::from(near) - f64::from(*value)).abs());
        let even = (down.to_bits() >> 16).is_multiple_of(2);
        *value = match below.total_cmp(&above) {
            std::cmp::Ordering::Less => down,
            std::cmp::Ordering::Greater => up,
            std::cmp::Ordering::Equal => [up, down][usize::from(even)],
        };
    }
    array
}

/// The same calls with arrays of bf16 but for those of the types that are named; arguments and results stay f32.
pub(crate) fn in_bf16(body: &str, arguments: &[&Array], f32_kinds: &[String]) -> String {
    let narrow = |kind: &str| match f32_kinds.iter().any(|kept| kept == kind) {
        true => kind.to_owned(),
        false => kind.replace("xf32>", "xbf16>"),
    };
    let (calls, results) = body.split_once("return ").unwrap();
    let mut text = String::new();
    let mut calls = calls.to_owned();
    for (index, argument) in arguments.iter().enumerate() {
        let (wide, short) = (argument.kind(), narrow(&argument.kind()));
        text += &format!("%b{index} = stablehlo.convert %a{index} : ({wide}) -> {short}\n");
        calls = calls.replace(&format!("%a{index}"), &format!("%b{index}"));
    }
    for kept in f32_kinds {
        calls = calls.replace(kept, &kept.replace("xf32>", "xF32>"));
    }
    text += &calls.replace("xf32>", "xbf16>").replace("xF32>", "xf32>");
    let (names, kinds) = results.split_once(" : ").unwrap();
    let kinds: Vec<&str> = kinds.trim().split(", ").collect();
    let mut wide = Vec::new();
    for (index, (name, kind)) in names.split(", ").zip(&kinds).enumerate() {
        if name.starts_with("%a") {
            wide.push(name.to_owned());
            continue;
        }
        let short = narrow(kind);
        text += &format!("%r{index} = stablehlo.convert {name} : ({short}) -> {kind}\n");
        wide.push(format!("%r{index}"));
    }
    text + &format!("return {} : {}", wide.join(", "), kinds.join(", "))
}

/// Channels of the formula's values before the rectifier in which none is so close to its bounds that rounding decides.
fn clear_channels(before: &[f32], channels: usize, relu: Option<f64>) -> Vec<bool> {
    let mut clear = vec![true; channels];
    let bounds = relu.map(|ceiling| [0.0, ceiling as f32]);
    for (i, y) in before.iter().enumerate() {
        let near = |bound: &f32| (y - bound).abs() < 4e-6;
        clear[i % channels] &= !bounds.is_some_and(|bounds| bounds.iter().any(near));
    }
    assert!(clear.iter().filter(|clear| **clear).count() > channels / 2);
    clear
}

/// Fails where a number is further from the expected one than by its rounding to bf16 and that of f32 sums.
pub(crate) fn assert_rounded(name: &str, found: &[f32], expected: &[f32]) {
    let largest = expected.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let allowed = expected.abs() / 256.0 + 2e-5 * largest;
        let error = (found - expected).abs();
        assert!(error <= allowed, "{name}: {i}: {found}, not {expected}");
    }
}

#[test]
fn normalisations_of_bf16_equal_their_formula() {
    let Some((client, _)) = client() else { return };
    let shapes: [&[i64]; 4] = [&[2, 5, 7, 8], &[3, 9], &[13, 5, 2048], &[2, 64, 64, 24]];
    let ramps = [
        (false, None),
        (false, Some(0.0)),
        (true, Some(0.0)),
        (true, None),
        (false, Some(1.25)),
    ];
    for (case, dims) in shapes.into_iter().enumerate() {
        for (added, relu) in ramps {
            let channels = &dims[dims.len() - 1..];
            let mut x = Array::gaussian(dims, 8);
            x.values.iter_mut().for_each(|x| *x += 3.0 * case as f32);
            let [x, dy, r] = [x, Array::gaussian(dims, 11), Array::gaussian(dims, 12)].map(rounded);
            let (gamma, beta) = (Array::gaussian(channels, 9), Array::gaussian(channels, 10));
            let other = added.then_some(&r);
            let of = |relu| normalised(&x, &gamma.values, &beta.values, other, relu, &dy);
            let expected = of(relu);
            let clear = clear_channels(&of(None)[0], gamma.values.len(), relu);
            let only_clear = |values: &[f32]| -> Vec<f32> {
                let each = values.iter().enumerate();
                let each = each.filter(|(i, _)| clear[i % clear.len()]);
                each.map(|(_, value)| *value).collect()
            };
            let results =
                [dims, channels, channels, dims, channels, channels, dims].map(<[i64]>::to_vec);
            let mut arguments = vec![&x, &gamma, &beta, &dy];
            arguments.extend(other);
            let body = normalisation_body(dims, added, relu);
            let body = in_bf16(&body, &arguments, &[kind(channels, "f32")]);
            let found = run(client, &arguments, &results, &body).unwrap();
            let again = run(client, &arguments, &results, &body).unwrap();
            let bits = |results: &[Vec<f32>]| -> Vec<u32> {
                results.iter().flatten().map(|x| x.to_bits()).collect()
            };
            assert_eq!(bits(&found), bits(&again), "{dims:?}: bits of two runs");
            for (at, name) in ["y", "mean", "variance", "dx", "dgamma", "dbeta", "dr"]
                .iter()
                .enumerate()
            {
                let name = format!("{dims:?}, added {added}, relu {relu:?}: {name}");
                let [found, expected] = [&found[at], &expected[at]].map(|x| only_clear(x));
                match at {
                    0 | 3 => assert_rounded(&name, &found, &expected),
                    6 if relu.is_none() || !added => {}
                    _ => assert_close(&name, &found, &expected),
                }
            }
        }
    }
}

#[test]
fn a_nan_of_bf16_stays_in_its_channel() {
    let Some((client, _)) = client() else { return };
    let dims = [40, 8];
    for (added, relu) in [(false, Some(6.0)), (true, Some(0.0)), (false, None)] {
        let mut x = Array::gaussian(&dims, 13);
        x.values[11] = f32::NAN;
        let channels = Array::gaussian(&[8], 14);
        let r = Array::gaussian(&dims, 15);
        let mut arguments = vec![&x, &channels, &channels, &r];
        arguments.extend(added.then_some(&r));
        let results = [&dims[..], &[8], &[8], &dims, &[8], &[8], &dims].map(<[i64]>::to_vec);
        let body = normalisation_body(&dims, added, relu);
        let body = in_bf16(&body, &arguments, &[kind(&[8], "f32")]);
        let found = run(client, &arguments, &results, &body).unwrap();
        for (at, result) in found[..3].iter().enumerate() {
            for (i, value) in result.iter().enumerate() {
                assert_eq!(value.is_nan(), i % 8 == 3, "result {at}, {i}: {value}");
            }
        }
    }
}

#[test]
fn poolings_of_bf16_equal_those_of_f32() {
    let Some((client, _)) = client() else { return };
    for case in POOLS {
        // These, and sums of nine of them, have at most 8 bits.
        let mut x = Array::noise(&case.x_dims(), 4);
        let dy = Array::noise(&case.y_dims(), 5);
        let places = x.values.len();
        x.values[places / 3] = f32::NAN;
        x.values[places / 2] = f32::NEG_INFINITY;
        let body = pooling_body(&case);
        let shapes = [case.y_dims(), case.x_dims()];
        let wide = run(client, &[&x, &dy], &shapes, &body).unwrap();
        let short = in_bf16(&body, &[&x, &dy], &[]);
        let short = run(client, &[&x, &dy], &shapes, &short).unwrap();
        for (wide, short) in wide.iter().zip(&short) {
            for (i, (wide, short)) in wide.iter().zip(short).enumerate() {
                let same = wide == short || wide.is_nan() && short.is_nan();
                assert!(same, "{}: {i}: {short}, not {wide}", case.name);
            }
        }
    }
}
