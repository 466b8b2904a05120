//! Normalizations where Keras has no numbers for them: 16-bit floats, nothing to divide by, groups that do not fit.

use phalanx::nn::{GroupNorm, LayerSpec, Normalization, Policy, Sequential, UnitNorm};
use phalanx_graph::{Graph, HostTensor, gradients};
use phalanx_testkit::{Random, assert_close};

use crate::{call, execute, ramp};

/// What a layer makes of an input under a policy.
fn under(policy: Policy, layer: impl Into<LayerSpec>, input: &HostTensor) -> Vec<f64> {
    let model = Sequential::new(&input.dims()[1..]).add(layer);
    let model = model.build().unwrap();
    let variables = model.init(0).unwrap();
    let (outputs, ..) = call(&model, &variables, std::slice::from_ref(input), |_, cx| {
        cx.with_policy(policy)
    });
    outputs[0].to_f64()
}

/// Sums of squares that an f16 cannot hold, and means of which a bf16 has three digits.
#[test]
fn statistics_are_f32_in_mixed_precision() {
    let large: Vec<f32> = (0..2 * 64)
        .map(|i| 300.0 + (i * 37 % 64) as f32 * 4.0)
        .collect();
    let input = HostTensor::new([2, 16, 4], &large);
    let [mean, variance] = [500.0, 90000.0].map(HostTensor::scalar::<f32>);
    let layers = || -> [LayerSpec; 3] {
        [
            GroupNorm::new().groups(2).into(),
            UnitNorm::new().axes([1, 2]).into(),
            Normalization::new().statistics(&mean, &variance).into(),
        ]
    };
    for (policy, tolerance) in [(Policy::MixedFloat16, 1e-3), (Policy::MixedBfloat16, 8e-3)] {
        let exact = layers().map(|layer| under(Policy::Float32, layer, &input));
        let mixed = layers().map(|layer| under(policy, layer, &input));
        for (mixed, exact) in mixed.iter().zip(&exact) {
            assert_close(policy.name(), mixed, exact, tolerance);
        }
    }
}

#[test]
fn a_vector_of_zeros_stays_and_has_no_gradient() {
    let model = Sequential::new([3]).add(UnitNorm::new()).build().unwrap();
    let graph = Graph::new();
    let input = HostTensor::new([2, 3], &[0.0f32, 0.0, 0.0, 3.0, 0.0, -4.0]);
    let x = graph.parameter("x", input.shape().clone());
    let mut cx = phalanx::nn::Cx::new(&graph, &model, &[]);
    let y = model.call(&mut cx, std::slice::from_ref(&x)).swap_remove(0);
    let slope = gradients(&y.sum_all(), &[&x]).swap_remove(0).unwrap();
    let results = execute(&graph, &[("y", &y), ("slope", &slope)], &[input]);
    let expected = [0.0, 0.0, 0.0, 0.6, 0.0, -0.8];
    assert_close("lengths", &results[0].to_f64(), &expected, 1e-6);
    // (1 - y sum(y)) / 5.
    let expected = [0.0, 0.0, 0.0, 0.224, 0.2, 0.168];
    assert_close("gradient", &results[1].to_f64(), &expected, 1e-6);
}

#[test]
fn groups_of_one_channel_are_instances() {
    let input = ramp(&[2, 5, 3]);
    let each = under(Policy::Float32, GroupNorm::new().groups(3), &input);
    assert_eq!(under(Policy::Float32, GroupNorm::instance(), &input), each);
}

/// `(x - mean) / sqrt(variance + 0.001)` of one group, and its gradient where the result's is `slope`.
fn normal_and_gradient(x: &[f64], slope: &[f64]) -> Vec<[f64; 2]> {
    let mean = |of: &dyn Fn(usize) -> f64| (0..x.len()).map(of).sum::<f64>() / x.len() as f64;
    let average = mean(&|i| x[i]);
    let inverse = (mean(&|i| (x[i] - average).powi(2)) + 1e-3).sqrt().recip();
    let normal = |i: usize| (x[i] - average) * inverse;
    let (even, along) = (mean(&|i| slope[i]), mean(&|i| slope[i] * normal(i)));
    let gradient = |i: usize| inverse * (slope[i] - even - normal(i) * along);
    (0..x.len()).map(|i| [normal(i), gradient(i)]).collect()
}

/// Of squares less the square of the mean nothing would be left; a mean of f32 numbers near 10000 is wrong by 0.0005.
#[test]
fn groups_far_from_zero_keep_their_variance() {
    let (dims, groups) = ([2, 30, 20, 16], 4);
    let mut random = Random::new(5);
    let mut unit = || random.below(1 << 24) as f32 / (1 << 24) as f32;
    let mut gaussian = || (0..12).map(|_| unit()).sum::<f32>() - 6.0;
    let count: usize = dims.iter().product();
    let x: Vec<f32> = (0..count).map(|_| 1e4 + gaussian()).collect();
    let slope: Vec<f32> = (0..count).map(|_| gaussian()).collect();
    let inputs = [&x, &slope].map(|values| HostTensor::new(dims, values));
    let layer = GroupNorm::new().groups(groups as i64);
    let layer = layer.center(false).scale(false);
    let model = Sequential::new(&dims[1..]).add(layer).build().unwrap();
    let graph = Graph::new();
    let [given, weights] =
        ["x", "slope"].map(|name| graph.parameter(name, inputs[0].shape().clone()));
    let mut cx = phalanx::nn::Cx::new(&graph, &model, &[]);
    let y = model
        .call(&mut cx, std::slice::from_ref(&given))
        .swap_remove(0);
    let found = gradients(&(&y * weights).sum_all(), &[&given])
        .swap_remove(0)
        .unwrap();
    let results = execute(&graph, &[("y", &y), ("gradient", &found)], &inputs);
    let of_group = |values: &[f32], image: usize, group: usize| -> Vec<f64> {
        let places = (0..count).filter(|i| i / 9600 == image && i % 16 / 4 == group);
        places.map(|i| f64::from(values[i])).collect()
    };
    for (image, group) in (0..2).flat_map(|image| (0..groups).map(move |group| (image, group))) {
        let exact =
            normal_and_gradient(&of_group(&x, image, group), &of_group(&slope, image, group));
        for (at, name) in ["y", "gradient"].into_iter().enumerate() {
            let exact: Vec<f64> = exact.iter().map(|both| both[at]).collect();
            assert_close(
                name,
                &of_group(&results[at].f32s(), image, group),
                &exact,
                1e-2,
            );
        }
    }
}

#[test]
fn groups_that_do_not_divide_the_channels_are_told() {
    for (groups, message) in [
        (
            4,
            "`groups` must divide the channels of the input, got 4 and 6; choose a divisor, or -1",
        ),
        (12, "got 12 and 6"),
        (0, "`groups` must be a whole number above 0, or -1, got 0"),
        (-2, "`groups` must be a whole number above 0, or -1, got -2"),
    ] {
        let model = Sequential::new([5, 6]).add(GroupNorm::new().groups(groups));
        let error = model.build().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// What the layer makes of its own data has the mean 0 and the variance 1 of each element of the axes.
#[test]
fn data_that_a_layer_was_adapted_to_are_normal() {
    let dims = [6, 2, 3];
    let values: Vec<f32> = (0..36).map(|i| ((i * i) % 17) as f32 + 100.0).collect();
    let data = HostTensor::new(dims, &values);
    let cell_of = |axes: &[usize], i: usize| {
        let places = [i / 6, i / 3 % 2, i % 3];
        axes.iter()
            .fold(0, |cell, &axis| cell * dims[axis] + places[axis])
    };
    for axes in [&[][..], &[1], &[2], &[1, 2], &[2, 1]] {
        let layer = Normalization::new();
        let layer = layer.axes(axes.iter().map(|&axis| axis as i64).collect::<Vec<_>>());
        let got = under(Policy::Float32, layer.adapt(&data).unwrap(), &data);
        let count: usize = axes.iter().map(|&axis| dims[axis]).product();
        for cell in 0..count {
            let of_cell = (0..36).filter(|&i| cell_of(axes, i) == cell);
            let of_cell: Vec<f64> = of_cell.map(|i| got[i]).collect();
            let mean = |power: i32| {
                let powers = of_cell.iter().map(|value| value.powi(power));
                powers.sum::<f64>() / of_cell.len() as f64
            };
            let moments = [mean(1), mean(2)];
            assert_close(&format!("{axes:?}, {cell}"), &moments, &[0.0, 1.0], 1e-5);
        }
    }
}

#[test]
fn a_layer_adapts_to_finite_numbers_of_its_axes_alone() {
    let error =
        |layer: Normalization, data: HostTensor| layer.adapt(&data).unwrap_err().to_string();
    let missing = HostTensor::new([2, 1], &[1.0f32, f32::NAN]);
    let message = error(Normalization::new(), missing);
    assert!(message.contains("expected finite numbers"), "{message}");
    let none = HostTensor::new([0, 1], &[0.0f32; 0]);
    assert!(error(Normalization::new(), none).contains("one at least"));
    let rows = HostTensor::new([2, 1], &[1.0f32; 2]);
    let message = error(Normalization::new().axes([2]), rows);
    assert!(message.contains("cannot adapt: "), "{message}");
}
