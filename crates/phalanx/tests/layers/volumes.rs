//! Layers of volumes where Keras has no numbers: equal elements, 16 bits, mistakes.

use phalanx::nn::{
    AveragePool3d, Conv3d, Cx, GlobalMaxPool3d, MaxPool3d, Padding, Policy, Sequential, tanh,
};
use phalanx_graph::{Graph, HostTensor, Tensor, gradients};
use phalanx_testkit::assert_close;

use crate::{execute, ramp};

/// Output and gradients by the input and by what is trained of the sum of squares, under a policy.
fn step(model: Sequential, x: &HostTensor, policy: Policy) -> Vec<Vec<f64>> {
    let model = model.build().unwrap();
    let graph = Graph::new();
    let values = [&[x.clone()][..], &model.init(3).unwrap()].concat();
    let given: Vec<Tensor> = values
        .iter()
        .map(|value| graph.parameter("given", value.shape().clone()))
        .collect();
    let mut cx = Cx::new(&graph, &model, &given[1..]).with_policy(policy);
    let y = model.call(&mut cx, &given[..1]).swap_remove(0);
    let found = gradients(&y.square().sum_all(), &given.iter().collect::<Vec<_>>());
    let found: Vec<Tensor> = found.into_iter().map(Option::unwrap).collect();
    let outputs: Vec<(&str, &Tensor)> = [&y].into_iter().chain(&found).map(|y| ("", y)).collect();
    let results = execute(&graph, &outputs, &values);
    results.iter().map(HostTensor::to_f64).collect()
}

#[test]
fn sixteen_bits_come_close_to_f32() {
    let model = Sequential::new([4, 6, 5, 2])
        .add(Conv3d::new(4, 3).padding(Padding::Same).activation(tanh))
        .add(Conv3d::new(4, (1, 2, 2)).groups(2).strides((1, 2, 1)))
        .add(AveragePool3d::new(2).strides(1).padding(Padding::Same));
    let x = ramp(&[3, 4, 6, 5, 2]);
    let exact = step(model.clone(), &x, Policy::Float32);
    for (policy, tolerance) in [(Policy::MixedFloat16, 8e-3), (Policy::MixedBfloat16, 6e-2)] {
        let mixed = step(model.clone(), &x, policy);
        assert_ne!(mixed, exact, "{policy:?}");
        for (number, (mixed, exact)) in mixed.iter().zip(&exact).enumerate() {
            assert_close(&format!("{policy:?} {number}"), mixed, exact, tolerance);
        }
    }
}

/// The maximum itself is not rounded.
#[test]
fn a_maximum_of_bf16_is_one_of_its_elements() {
    let model = Sequential::new([4, 4, 4, 1]).add(MaxPool3d::new(2));
    let x: Vec<f32> = (0..64).map(|i| (i * 37 % 64) as f32 / 64.0).collect();
    let window = |at: usize| {
        let corner = at / 4 * 32 + at / 2 % 2 * 8 + at % 2 * 2;
        let inside = [0, 1, 4, 5, 16, 17, 20, 21].map(|place| f64::from(x[corner + place]));
        inside.into_iter().fold(0.0, f64::max)
    };
    let expected: Vec<f64> = (0..8).map(window).collect();
    let x = HostTensor::new([1, 4, 4, 4, 1], &x);
    for policy in [Policy::Float32, Policy::MixedBfloat16] {
        assert_eq!(step(model.clone(), &x, policy)[0], expected, "{policy:?}");
    }
}

#[test]
fn the_first_of_equal_elements_has_the_gradient() {
    let model = Sequential::new([2, 2, 2, 1]).add(MaxPool3d::new(2));
    let x = [1.0f32, 2.0, 2.0, 0.0, 2.0, 1.0, 2.0, 2.0];
    let x = HostTensor::new([1, 2, 2, 2, 1], &x);
    let found = step(model, &x, Policy::Float32);
    assert_eq!(found[0], [2.0]);
    assert_eq!(found[1], [0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn windows_of_one_place_pick_places() {
    let model = Sequential::new([1, 1, 5, 1])
        .add(MaxPool3d::new(1).strides((1, 1, 2)).padding(Padding::Same));
    let x = HostTensor::new([1, 1, 1, 5, 1], &[1.0f32, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(step(model, &x, Policy::Float32)[0], [1.0, 3.0, 5.0]);
}

#[test]
fn volumes_that_do_not_fit_are_told() {
    let told = |model: Sequential| model.build().unwrap_err().to_string();
    let volumes = || Sequential::new([2, 4, 4, 3]);
    let window = told(volumes().add(Conv3d::new(2, 3)));
    let expected = "a window of 3 by 3 by 3 does not fit volumes of 2 by 4 by 4; use `padding` same or a smaller window";
    assert!(window.contains(expected), "{window}");
    let window = told(volumes().add(MaxPool3d::new((1, 5, 1))));
    assert!(
        window.contains("a window of 1 by 5 by 1 does not fit"),
        "{window}"
    );
    let groups = told(volumes().add(Conv3d::new(4, 1).groups(2)));
    let expected = "`groups` must divide the channels of the input, got 2 and 3";
    assert!(groups.contains(expected), "{groups}");
    let span = Conv3d::new(1, 1 << 20).dilation(1 << 20);
    let span = told(volumes().add(span));
    assert!(
        span.contains("the span of a window must be between"),
        "{span}"
    );
    let images = Sequential::new([4, 4, 3]).add(GlobalMaxPool3d::new());
    let expected = "expected volumes [batch, depth, height, width, channels], got f32[batch,4,4,3]; reshape them first";
    let images = told(images);
    assert!(images.contains(expected), "{images}");
}

#[test]
fn a_large_mean_of_f16_is_one() {
    let model = Sequential::new([7, 7, 7, 1]).add(AveragePool3d::new(7));
    let x = HostTensor::new([1, 7, 7, 7, 1], &[1400.0f32; 343]);
    let found = step(model, &x, Policy::MixedFloat16);
    assert_eq!(found[0], [1400.0]);
}
