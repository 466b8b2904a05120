//! Layers that do something else in training: batch normalisation, dropout and noise.

use phalanx::nn::{
    AdaptiveAveragePool1d, AlphaDropout, BatchNorm, Cx, Dense, Dropout, GaussianDropout,
    GaussianNoise, LayerSpec, Model, Policy, Sequential, SpatialDropout1d, SpatialDropout2d,
    SpatialDropout3d, StochasticDepth, TimeDistributed,
};
use phalanx_graph::{Graph, HostTensor, Shape};
use phalanx_testkit::assert_close;

use crate::{call, ramp};

#[test]
fn rows_that_fill_up_a_batch_do_not_count_in_batch_norm() {
    let model = Sequential::new([2, 3])
        .add(BatchNorm::new().momentum(0.5))
        .build()
        .unwrap();
    let variables = model.init(0).unwrap();
    let training = |mask: Option<Vec<f32>>| {
        move |graph: &Graph, cx: Cx| {
            let cx = cx.with_training(true);
            match mask {
                Some(mask) => {
                    cx.with_example_mask(graph.constant(HostTensor::new([mask.len()], &mask)))
                }
                None => cx,
            }
        }
    };
    let short = ramp(&[3, 2, 3]);
    let (expected, moved, _) = call(
        &model,
        &variables,
        std::slice::from_ref(&short),
        training(None),
    );
    let mut bytes = short.pad_rows(5).f32s();
    bytes[18..].fill(f32::INFINITY);
    let padded = HostTensor::new([5, 2, 3], &bytes);
    let mask = vec![1.0, 1.0, 1.0, 0.0, 0.0];
    let (got, moved_padded, _) = call(
        &model,
        &variables,
        std::slice::from_ref(&padded),
        training(Some(mask)),
    );
    assert_same("outputs", &got[0].slice_rows(0, 3), &expected[0]);
    assert_eq!(moved.len(), 2);
    for ((index, a), (other, b)) in moved.iter().zip(&moved_padded) {
        assert_eq!(index, other);
        assert_same("moving statistics", a, b);
    }
    // A batch of no example at all leaves the moving statistics as they are.
    let (_, kept, _) = call(&model, &variables, &[short], training(Some(vec![0.0; 3])));
    assert_eq!(kept[0].1, variables[kept[0].0]);
    assert_eq!(kept[1].1, variables[kept[1].0]);
}

fn assert_same(what: &str, got: &HostTensor, expected: &HostTensor) {
    assert_eq!(got.shape(), expected.shape());
    assert_close(what, &got.to_f64(), &expected.to_f64(), 1e-5);
}

#[test]
fn a_frozen_batch_norm_runs_in_inference_mode() {
    let mut model = Sequential::new([3])
        .add(BatchNorm::new())
        .add(Dense::new(2))
        .build()
        .unwrap();
    let input = [ramp(&[4, 3])];
    let variables = model.init(0).unwrap();
    let train = |model: &Model| call(model, &variables, &input, |_, cx| cx.with_training(true));
    let (live, updates, _) = train(&model);
    assert_eq!(updates.len(), 2);
    model.freeze("batch_norm").unwrap();
    let flags: Vec<bool> = model
        .variables()
        .iter()
        .map(|variable| variable.trainable)
        .collect();
    assert_eq!(flags, [false, false, false, false, true, true]);
    let (frozen, updates, _) = train(&model);
    assert!(updates.is_empty());
    let (inference, ..) = call(&model, &variables, &input, |_, cx| cx);
    assert_eq!(frozen, inference);
    assert_ne!(frozen, live);
    model.unfreeze("batch_norm").unwrap();
    assert_eq!(train(&model).0, live);
}

#[test]
fn dropout_depends_on_the_row_of_the_example() {
    let model = Sequential::new([50])
        .add(Dropout::new(0.25))
        .add(Dropout::new(0.0))
        .build()
        .unwrap();
    let ones = HostTensor::full(Shape::f32([40, 50]), 1.0);
    let dropped = |input: &HostTensor, key: [u32; 2], first: u32| {
        let prepare = |graph: &Graph, cx: Cx| {
            let key = graph.constant(HostTensor::new([2], &key));
            let first = graph.constant(HostTensor::scalar(first));
            cx.with_training(true).with_random(key, first)
        };
        call(&model, &[], std::slice::from_ref(input), prepare)
            .0
            .swap_remove(0)
    };
    let whole = dropped(&ones, [1, 2], 100);
    let half = dropped(&ones.slice_rows(0, 20), [1, 2], 120);
    assert_eq!(whole.slice_rows(20, 40), half);
    assert_ne!(whole, dropped(&ones, [1, 3], 100));
    let values = whole.f32s();
    assert!(
        values
            .iter()
            .all(|&x| x == 0.0 || (x - 4.0 / 3.0).abs() < 1e-6)
    );
    let rate = values.iter().filter(|&&x| x == 0.0).count() as f64 / values.len() as f64;
    assert!((rate - 0.25).abs() < 0.05, "{rate}");
    let (kept, ..) = call(&model, &[], std::slice::from_ref(&ones), |_, cx| cx);
    assert_eq!(kept[0], ones);
}

#[test]
fn stochastic_depth_drops_whole_examples() {
    let ones = HostTensor::full(Shape::f32([4000, 2, 3]), 1.0);
    let found = noisy(StochasticDepth::new(0.2), &ones, [1, 2], 0).to_f64();
    let examples = found.chunks(6);
    assert!(
        examples
            .clone()
            .all(|example| example == [0.0; 6] || example == [1.25; 6])
    );
    check_share("dropped", 0.2, examples.map(|example| example[0] == 0.0));
    let half = noisy(
        StochasticDepth::new(0.2),
        &ones.slice_rows(0, 2000),
        [1, 2],
        2000,
    );
    assert_eq!(
        found[12_000..],
        half.to_f64(),
        "which has the second half of the rows"
    );
    let all = noisy(StochasticDepth::new(1.0), &ones, [1, 2], 0).to_f64();
    assert!(all.iter().all(|&x| x == 0.0));
}

/// What a layer makes of a tensor in training with a key, whose first row has a number.
pub(crate) fn noisy(
    layer: impl Into<LayerSpec>,
    input: &HostTensor,
    key: [u32; 2],
    first: u32,
) -> HostTensor {
    let model = Sequential::new(&input.dims()[1..]).add(layer);
    let model = model.build().unwrap();
    let prepare = |graph: &Graph, cx: Cx| {
        let key = graph.constant(HostTensor::new([2], &key));
        let first = graph.constant(HostTensor::scalar(first));
        cx.with_training(true).with_random(key, first)
    };
    let (mut outputs, ..) = call(&model, &[], std::slice::from_ref(input), prepare);
    outputs.swap_remove(0)
}

/// Checks that so large a share of the numbers holds, within five deviations of it.
pub(crate) fn check_share(what: &str, expected: f64, holds: impl ExactSizeIterator<Item = bool>) {
    let count = holds.len() as f64;
    let share = holds.filter(|&holds| holds).count() as f64 / count;
    let deviation = (expected * (1.0 - expected) / count).sqrt();
    let error = (share - expected).abs();
    assert!(
        error < 5.0 * deviation,
        "{what}: {share}, expected {expected}"
    );
}

/// Checks normally distributed numbers of mean 0 and variance 1 by five of their quantiles, and that neighbours are of no other sign
/// than chance gives them.
fn check_normal(what: &str, numbers: &[f64]) {
    let below = [
        (-2.0, 0.022_750),
        (-1.0, 0.158_655),
        (0.0, 0.5),
        (1.0, 0.841_345),
        (2.0, 0.977_250),
    ];
    for (bound, share) in below {
        check_share(what, share, numbers.iter().map(|&x| x < bound));
    }
    check_share(what, 0.002_700, numbers.iter().map(|x| x.abs() > 3.0));
    let pairs = numbers.windows(2).step_by(2);
    check_share(what, 0.5, pairs.map(|pair| pair[0] * pair[1] > 0.0));
}

#[test]
fn noise_is_normally_distributed() {
    let x = HostTensor::full(Shape::f32([400, 100]), 2.0);
    let added = noisy(GaussianNoise::new(0.25), &x, [1, 2], 0).to_f64();
    let added: Vec<f64> = added.iter().map(|y| (y - 2.0) / 0.25).collect();
    check_normal("noise", &added);
    // sqrt(0.2 / 0.8) is 0.5.
    let factors = noisy(GaussianDropout::new(0.2), &x, [1, 2], 0).to_f64();
    let factors: Vec<f64> = factors.iter().map(|y| (y / 2.0 - 1.0) / 0.5).collect();
    check_normal("factors", &factors);
}

#[test]
fn alpha_dropout_keeps_mean_and_variance() {
    let ones = HostTensor::full(Shape::f32([400, 100]), 1.0);
    let found = noisy(AlphaDropout::new(0.3), &ones, [3, 4], 0).to_f64();
    // Its paper: a = ((1 - p) (1 + p a'^2))^(-1/2) and b = -a p a' with a' = -1.758..
    let least = -1.758_099_340_847_376_6_f64;
    let a = (0.7 * (1.0 + 0.3 * least * least)).powf(-0.5);
    let [dropped, kept] = [least, 1.0].map(|x| a * x - a * 0.3 * least);
    let is = |expected: f64| move |y: &f64| (y - expected).abs() < 1e-6;
    assert!(found.iter().all(|y| is(dropped)(y) || is(kept)(y)));
    check_share("dropped", 0.3, found.iter().map(is(dropped)));
    let normal = noisy(
        GaussianNoise::new(1.0),
        &HostTensor::zeros(Shape::f32([400, 100])),
        [5, 6],
        0,
    );
    let found = noisy(AlphaDropout::new(0.3), &normal, [3, 4], 0).to_f64();
    let mean = found.iter().sum::<f64>() / 40_000.0;
    let variance = found.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / 40_000.0;
    assert!(
        mean.abs() < 0.025 && (variance - 1.0).abs() < 0.04,
        "{mean} {variance}"
    );
}

#[test]
fn spatial_dropout_drops_channels() {
    let check = |layer: LayerSpec, dims: &[usize]| {
        let ones = HostTensor::full(Shape::f32(dims.to_vec()), 1.0);
        let found = noisy(layer, &ones, [1, 2], 0).to_f64();
        let channels = *dims.last().unwrap();
        let places = found.len() / dims[0] / channels;
        let mut dropped = Vec::new();
        for example in found.chunks(places * channels) {
            let first = &example[..channels];
            assert!(example.chunks(channels).all(|place| place == first));
            assert!(
                first
                    .iter()
                    .all(|&y| y == 0.0 || (y - 4.0 / 3.0).abs() < 1e-6)
            );
            dropped.extend(first.iter().map(|&y| y == 0.0));
        }
        check_share("dropped", 0.25, dropped.iter().copied());
        let pairs = dropped.chunks_exact(2).map(|pair| pair[0] && pair[1]);
        check_share("both dropped", 0.0625, pairs);
    };
    check(SpatialDropout1d::new(0.25).into(), &[200, 3, 20]);
    check(SpatialDropout2d::new(0.25).into(), &[200, 3, 2, 20]);
    let of_channels = Dropout::new(0.25).noise_shape([None, Some(1), Some(1), None]);
    check(of_channels.into(), &[200, 3, 2, 20]);
    // All channels of an example are one.
    let whole = Dropout::new(0.25).noise_shape([None, Some(1), Some(1)]);
    check(whole.into(), &[4000, 3, 1]);
    let ones = HostTensor::full(Shape::f32([400, 3, 2]), 1.0);
    let whole = Dropout::new(0.25).noise_shape([None, Some(1), Some(1)]);
    let found = noisy(LayerSpec::from(whole), &ones, [1, 2], 0).to_f64();
    assert!(
        found
            .chunks(6)
            .all(|example| example.iter().all(|y| *y == example[0]))
    );
    check(SpatialDropout3d::new(0.25).into(), &[200, 2, 1, 3, 20]);
}

#[test]
fn a_noise_shape_fits_its_input() {
    let refused = |shape: &[Option<usize>]| {
        let layer = Dropout::new(0.5).noise_shape(shape);
        let stack = Sequential::new([4, 3]).add(layer);
        stack.build().unwrap_err().to_string()
    };
    let first = refused(&[Some(1), None, None]);
    assert!(
        first.contains("must begin with null for the batch"),
        "{first}"
    );
    let short = refused(&[None, Some(1)]);
    assert!(
        short.contains("for each dim of f32[batch,4,3], got [null, 1]"),
        "{short}"
    );
    let other = refused(&[None, Some(2), None]);
    assert!(other.contains("got [null, 2, null]"), "{other}");
}

#[test]
fn what_is_drawn_depends_on_the_key_and_the_row_of_the_example() {
    let layers = || -> [LayerSpec; 6] {
        [
            GaussianNoise::new(0.5).into(),
            GaussianDropout::new(0.5).into(),
            AlphaDropout::new(0.5).into(),
            SpatialDropout1d::new(0.5).into(),
            TimeDistributed::new(GaussianNoise::new(0.5)).into(),
            TimeDistributed::new(AlphaDropout::new(0.5)).into(),
        ]
    };
    let x = ramp(&[20, 3, 8]);
    let draw =
        |input: &HostTensor, key, first| layers().map(|layer| noisy(layer, input, key, first));
    let whole = draw(&x, [1, 2], 100);
    let half = draw(&x.slice_rows(10, 20), [1, 2], 110);
    let other = draw(&x, [1, 3], 100);
    for (number, layer) in layers().iter().enumerate() {
        let kind = layer.kind();
        assert_eq!(whole[number].slice_rows(10, 20), half[number], "{kind}");
        assert_ne!(whole[number], other[number], "{kind}");
        assert_ne!(whole[number], x, "{kind}");
        // Of two steps none draws what the other does.
        if kind == "time_distributed" {
            let ones = HostTensor::full(Shape::f32([1, 2, 64]), 1.0);
            let steps = noisy(layer.clone(), &ones, [1, 2], 0).f32s();
            assert_ne!(steps[..64], steps[64..]);
        }
    }
    for layer in layers() {
        let model = Sequential::new([3, 8]).add(layer).build().unwrap();
        let (kept, ..) = call(&model, &[], std::slice::from_ref(&x), |_, cx| cx);
        assert_eq!(kept[0], x);
    }
}

#[test]
fn all_is_dropped_at_a_rate_of_one_where_that_has_a_value() {
    let ones = HostTensor::full(Shape::f32([2, 3, 4]), 1.0);
    let found = noisy(SpatialDropout1d::new(1.0), &ones, [1, 2], 0);
    assert!(found.f32s().iter().all(|&y| y == 0.0));
    let layers: [LayerSpec; 2] = [
        GaussianDropout::new(1.0).into(),
        AlphaDropout::new(1.0).into(),
    ];
    for layer in layers {
        let error = Sequential::new([3]).add(layer).build().unwrap_err();
        let expected = "`rate` must be in 0.0..1.0, got 1";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// The noise itself has the digits that the type has.
#[test]
fn noise_of_sixteen_bits_is_noise_of_f32() {
    let x = HostTensor::full(Shape::f32([50, 40]), 1.0);
    let layers = || -> [LayerSpec; 2] {
        [
            GaussianNoise::new(0.5).into(),
            GaussianDropout::new(0.5).into(),
        ]
    };
    let exact = layers().map(|layer| noisy(layer, &x, [1, 2], 0));
    for policy in [Policy::MixedFloat16, Policy::MixedBfloat16] {
        let mixed = layers().map(|layer| noisy(layer.precision(policy), &x, [1, 2], 0));
        for (mixed, exact) in mixed.iter().zip(&exact) {
            assert_close(policy.name(), &mixed.to_f64(), &exact.to_f64(), 8e-3);
        }
    }
}

#[test]
fn dropout_in_training_asks_for_a_key() {
    let model = Sequential::new([2]).add(Dropout::new(0.5)).build().unwrap();
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32([1, 2]));
    let mut cx = Cx::new(&graph, &model, &[]).with_training(true);
    let _ = model.call(&mut cx, &[x]);
    let error = graph.error().unwrap().to_string();
    assert!(
        error.contains("so ask for them where `Cx::training` is true alone, in dropout"),
        "{error}"
    );
}

#[test]
fn what_is_no_number_is_in_the_means_of_its_own_windows_alone() {
    for odd in [f32::NAN, f32::INFINITY] {
        let x = HostTensor::new([1, 5, 1], &[odd, 1.0, 2.0, 3.0, 5.0]);
        let found = noisy(AdaptiveAveragePool1d::new(3), &x, [1, 2], 0).f32s();
        assert!(!found[0].is_finite(), "{found:?}");
        assert_eq!(found[1..], [2.0, 4.0]);
    }
}
