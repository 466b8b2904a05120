//! Layers of categories: Keras' numbers, and NaN where Keras ends with an error or says nothing.

use phalanx::nn::{
    CategoryEncoding, CategoryOutput, Cx, Discretization, Embedding, HashedCrossing, Hashing,
    Input, IntegerLookup, LayerSpec, Network, Policy, Sequential, layer_from_config,
};
use phalanx_graph::{DType, HostTensor};
use phalanx_testkit::assert_close;
use serde_json::Value;

use crate::{Checks, array, arrays, call, golden};

fn kind(keras: &str) -> &'static str {
    match keras {
        "Discretization" => "discretization",
        "CategoryEncoding" => "category_encoding",
        "Hashing" => "hashing",
        "HashedCrossing" => "hashed_crossing",
        "IntegerLookup" => "integer_lookup",
        other => panic!("no layer for Keras' {other}"),
    }
}

/// A stack of one layer for examples as these are.
fn stack(layer: impl Into<LayerSpec>, x: &HostTensor) -> Sequential {
    Sequential::new(Input::new(&x.dims()[1..]).dtype(x.dtype())).add(layer)
}

/// What a layer makes of an array.
fn of(layer: impl Into<LayerSpec>, x: &HostTensor) -> HostTensor {
    let model = stack(layer, x).build().unwrap();
    let (mut outputs, ..) = call(&model, &[], std::slice::from_ref(x), |_, cx| cx);
    outputs.swap_remove(0)
}

fn check_record(checks: &mut Checks, record: &Value) {
    let kind = kind(record["layer"].as_str().unwrap());
    let layer = layer_from_config(kind, &record["config"]).unwrap();
    let given = match record["inputs"].is_array() {
        true => arrays(&record["inputs"]),
        false => vec![array(&record["input"])],
    };
    let mut net = Network::new();
    let nodes = given
        .iter()
        .map(|x| net.input(Input::new(&x.dims()[1..]).dtype(x.dtype())));
    let nodes: Vec<_> = nodes.collect();
    let output = net.add(layer, &nodes);
    let model = net.build(&nodes, &[output]).unwrap();
    let inputs: Vec<_> = given.iter().map(|x| checks.given(x)).collect();
    let mut cx = Cx::new(&checks.graph, &model, &[]);
    let output = model.call(&mut cx, &inputs).swap_remove(0);
    let name = record["name"].as_str().unwrap().to_owned();
    checks.expect(name, &output, array(&record["output"]));
}

#[test]
fn layers_of_categories_are_keras() {
    let mut checks = Checks::default();
    let records = golden("categories.json");
    let records = records.iter().filter(|record| record["layer"].is_string());
    let count = records
        .inspect(|record| check_record(&mut checks, record))
        .count();
    assert!(count > 20, "only {count} records");
    checks.verify(0.0);
}

#[test]
fn quantiles_are_what_keras_adapts_to() {
    let records = golden("categories.json");
    let records = records
        .iter()
        .filter(|record| record["num_bins"].is_number());
    let mut count = 0;
    for record in records {
        let bins = usize::try_from(record["num_bins"].as_u64().unwrap()).unwrap();
        let found = Discretization::quantiles(array(&record["values"]).f32s(), bins).unwrap();
        let boundaries: Vec<f64> =
            serde_json::from_value(LayerSpec::from(found).config()["bin_boundaries"].take())
                .unwrap();
        let expected = array(&record["bin_boundaries"]).to_f64();
        assert_close(
            record["name"].as_str().unwrap(),
            &boundaries,
            &expected,
            1e-6,
        );
        count += 1;
    }
    assert!(count > 10, "only {count} records");
}

#[test]
fn quantiles_of_too_few_values_or_of_no_numbers_are_refused() {
    let error = |values: &[f32], bins| {
        let found = Discretization::quantiles(values.iter().copied(), bins);
        found.unwrap_err().to_string()
    };
    assert!(error(&[1.0, 2.0], 3).contains("3 bins of 2 values"));
    assert!(error(&[1.0, 2.0], 1).contains("choose 2 bins or more"));
    assert!(error(&[1.0, f32::NAN, 2.0], 2).contains("found the value NaN"));
}

#[test]
fn what_is_no_number_is_in_the_last_bin_and_infinities_at_the_ends() {
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
    let bins = of(
        Discretization::new([0.0, 1.0, 2.0]),
        &HostTensor::new([4], &x),
    );
    assert_eq!(bins, HostTensor::new([4], &[3i32, 3, 0, 3]));
}

#[test]
fn columns_that_cannot_be_crossed_are_told() {
    let crossed = |shapes: &[(&[usize], DType)]| {
        let mut net = Network::new();
        let inputs = shapes
            .iter()
            .map(|&(dims, dtype)| net.input(Input::new(dims).dtype(dtype)));
        let inputs: Vec<_> = inputs.collect();
        let output = net.add(HashedCrossing::new(9), &inputs);
        net.build(&inputs, &[output]).unwrap_err().to_string()
    };
    let whole: (&[usize], DType) = (&[1], DType::I32);
    for shapes in [
        vec![whole],
        vec![whole, (&[1], DType::F32)],
        vec![whole, (&[], DType::I32)],
        vec![(&[2], DType::I32); 2],
    ] {
        let error = crossed(&shapes);
        let expected =
            "expected 2 inputs or more of whole numbers, all [batch] or all [batch, 1], got i32[";
        assert!(error.contains(expected), "{error}");
    }
}

/// 0.1 of 64 bits is below 0.1 of 32, to which Keras brings both.
#[test]
fn numbers_of_64_bits_are_compared_as_boundaries_are() {
    let x = HostTensor::new([3], &[0.1f64, 0.099, f64::NAN]);
    let bins = of(Discretization::new([0.1]), &x);
    assert_eq!(bins, HostTensor::new([3], &[1i32, 0, 1]));
}

/// Keras compares a float before it truncates it, and has these bins.
#[test]
fn a_float_is_masked_where_it_is_the_mask() {
    let masked = Hashing::new(5).mask_value(3);
    let x = [3.0f32, 3.9, -3.0];
    for x in [
        HostTensor::new([3], &x),
        HostTensor::new([3], &x.map(f64::from)),
    ] {
        assert_eq!(of(masked, &x), HostTensor::new([3], &[0i32, 2, 4]));
    }
}

/// 0.1 as bf16 is above 0.1.
#[test]
fn numbers_are_not_rounded_across_a_boundary_in_mixed_precision() {
    let x = HostTensor::new([2, 1], &[0.1f32, 0.1001]);
    let layer = Discretization::new([0.10005]).output_mode(CategoryOutput::OneHot);
    let model = stack(layer, &x).build().unwrap();
    for policy in [Policy::Float32, Policy::MixedBfloat16, Policy::MixedFloat16] {
        let (outputs, ..) = call(&model, &[], std::slice::from_ref(&x), |_, cx| {
            cx.with_policy(policy)
        });
        assert_eq!(
            outputs[0].to_f64(),
            [1.0, 0.0, 0.0, 1.0],
            "{}",
            policy.name()
        );
    }
}

/// More than a bf16 or an f16 counts one by one.
#[test]
fn many_are_counted_in_mixed_precision() {
    let x = HostTensor::new([1, 2048], &[1i32; 2048]);
    let layer = CategoryEncoding::new(2).output_mode(CategoryOutput::Count);
    let model = stack(layer, &x).build().unwrap();
    let (outputs, ..) = call(&model, &[], &[x], |_, cx| {
        cx.with_policy(Policy::MixedBfloat16)
    });
    assert_eq!(outputs[0].to_f64(), [0.0, 2048.0]);
}

#[test]
fn a_number_that_is_no_category_gives_nan() {
    for outside in [-1, 3, i32::MIN] {
        let x = HostTensor::new([2, 2], &[0, 2, 1, outside]);
        for mode in [CategoryOutput::MultiHot, CategoryOutput::Count] {
            let found = of(CategoryEncoding::new(3).output_mode(mode), &x).f32s();
            assert_eq!(found[..3], [1.0, 0.0, 1.0], "{outside}");
            assert!(
                found[3..].iter().all(|x| x.is_nan()),
                "{outside}: {found:?}"
            );
        }
        let found = of(
            CategoryEncoding::new(3).output_mode(CategoryOutput::OneHot),
            &x,
        );
        let found = found.f32s();
        assert_eq!(
            found[..9],
            [1., 0., 0., 0., 0., 1., 0., 1., 0.],
            "{outside}"
        );
        assert!(
            found[9..].iter().all(|x| x.is_nan()),
            "{outside}: {found:?}"
        );
    }
}

/// Where Keras ends with an error.
#[test]
fn an_unknown_value_without_a_number_gives_nan() {
    let x = HostTensor::new([2, 2], &[5i32, 9, 9, 4]);
    let known = || IntegerLookup::new([9, 5]).num_oov_indices(0).mask_token(1);
    let numbers = of(known(), &x);
    assert_eq!(numbers, HostTensor::new([2, 2], &[2i32, 1, 1, -1]));
    let hot = of(known().output_mode(CategoryOutput::Count), &x).f32s();
    assert_eq!(hot[..2], [1.0, 1.0]);
    assert!(hot[2..].iter().all(|x| x.is_nan()), "{hot:?}");
    let table = stack(known(), &x).add(Embedding::new(known().size(), 1));
    let model = table.build().unwrap();
    let (outputs, ..) = call(&model, &model.init(0).unwrap(), &[x], |_, cx| cx);
    let is_nan: Vec<bool> = outputs[0].f32s().iter().map(|x| x.is_nan()).collect();
    assert_eq!(is_nan, [false, false, false, true]);
}

/// Beyond what a float counts one by one.
#[test]
fn values_of_64_bits_are_told_apart() {
    let values = [i64::MAX, i64::MAX - 1, i64::MIN, i64::MIN + 1, 1 << 53];
    let x = HostTensor::new(
        [6],
        &[
            values[0],
            values[1],
            values[2],
            values[3],
            values[4],
            (1 << 53) + 1,
        ],
    );
    let found = of(IntegerLookup::new(values).mask_token(i64::MAX - 2), &x);
    assert_eq!(found, HostTensor::new([6], &[2i32, 3, 4, 5, 6, 1]));
    let masked = of(IntegerLookup::new([1]).mask_token(i64::MAX), &x);
    assert_eq!(masked, HostTensor::new([6], &[0i32, 1, 1, 1, 1, 1]));
}

#[test]
fn what_has_no_numbers_of_an_example_is_refused() {
    let of_batch = HostTensor::new([3], &[0i32, 1, 2]);
    let error = stack(CategoryEncoding::new(3), &of_batch)
        .build()
        .unwrap_err()
        .to_string();
    assert!(error.contains("take [batch, n], got i32[batch]"), "{error}");
    let flags = Sequential::new(Input::new([2]).dtype(DType::Bool));
    let error = flags
        .add(Discretization::new([0.5]))
        .build()
        .unwrap_err()
        .to_string();
    assert!(error.contains("expected numbers, got"), "{error}");
}
