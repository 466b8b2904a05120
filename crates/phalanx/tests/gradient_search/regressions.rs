//! Networks whose gradients were wrong once, as the search printed them, and one of each family.

use phalanx::nn::{Input, LayerSpec, Model, Network, Sequential, layer_from_config};
use phalanx_graph::DType;
use serde_json::{Value, json};

use crate::check;
use crate::compare::mixed_is_close;
use crate::trial::{Aim, Source, Trial, Weights};

fn layer(kind: &str, settings: &Value) -> LayerSpec {
    layer_from_config(kind, settings).unwrap()
}

fn stack(input: impl Into<Input>, layers: &[(&str, Value)]) -> Model {
    let layers = layers.iter();
    let layers = layers.map(|(kind, settings)| layer(kind, settings));
    let stack = layers.fold(Sequential::new(input), Sequential::add);
    stack.build().unwrap()
}

/// On one replica; the seed makes it both with kernels and without.
fn trial(source: Source, rows: usize, aim: Aim) -> Trial {
    Trial {
        sources: vec![source],
        rows,
        replicas: 1,
        aim,
        weights: Weights::None,
        seed: 4,
    }
}

fn tokens(length: usize) -> Input {
    Input::new([length]).dtype(DType::I32)
}

#[test]
fn dense_layers() {
    let layers = [
        ("dense", json!({"units": 4, "activation": "tanh"})),
        ("dense", json!({"units": 3})),
    ];
    check(
        &stack([5], &layers),
        &Trial {
            weights: Weights::Random,
            ..trial(Source::Floats, 6, Aim::Classes)
        },
    );
}

/// All gradients are 0 but one of a bias in the tail of its GELU, of which constants rounded to f32 make 5e-5.
#[test]
fn a_gradient_in_the_tail_of_a_gelu() {
    let mut net = Network::new();
    let x = net.input(Input::new([3, 3, 1]));
    let window = |kernel: [usize; 2], activation: &str, padding: &str, use_bias: bool| json!({"activation": activation, "depth_multiplier": 1, "kernel_size": kernel, "padding": padding, "use_bias": use_bias});
    let one = window([3, 3], "log_softmax", "valid", false);
    let gelu = window([5, 1], "gelu", "same", true);
    let y = net.add(layer("batch_norm", &json!({})), &[x]);
    let y = net.add(layer("depthwise_conv2d", &one), &[y]);
    let y = net.add(layer("depthwise_conv2d", &gelu), &[y]);
    let model = net.build(&[x], &[y]).unwrap();
    let trial = Trial {
        seed: 159_504_699_198_712,
        ..trial(Source::Floats, 1, Aim::Squares)
    };
    check(&model, &trial);
}

/// The variance is that of what is left of the mean: the mean of squares less the squared mean would differ by 6e-4.
#[test]
fn normalizations_of_large_means() {
    for (kind, settings) in [
        ("batch_norm", json!({})),
        ("layer_norm", json!({})),
        ("layer_norm", json!({"axis": [-2, -1]})),
        ("group_norm", json!({"groups": 2})),
    ] {
        let layers = [
            ("rescaling", json!({"scale": 1.0, "offset": 100.0})),
            (kind, settings),
            ("flatten", json!({})),
            ("dense", json!({"units": 3})),
        ];
        let trial = trial(Source::Floats, 6, Aim::Squares);
        check(&stack([4, 5, 6], &layers), &trial);
    }
}

#[test]
fn normalizations_and_poolings_of_bf16() {
    let mut net = Network::new();
    let x = net.input(Input::new([12, 12, 3]));
    let mut add =
        |kind: &str, settings: &Value, inputs: &[_]| net.add(layer(kind, settings), inputs);
    let (kernel, none) = (
        json!({"filters": 8, "kernel_size": [3, 3], "padding": "same"}),
        json!({}),
    );
    let relu = json!({"activation": "relu"});
    let y = add("conv2d", &kernel, &[x]);
    let y = add("batch_norm", &none, &[y]);
    let y = add("activation", &relu, &[y]);
    let z = add("conv2d", &kernel, &[y]);
    let z = add("batch_norm", &none, &[z]);
    let sum = add("add", &none, &[z, y]);
    let sum = add("activation", &relu, &[sum]);
    let window = json!({"pool_size": [3, 3], "strides": [2, 2]});
    let pooled = add("max_pool2d", &window, &[sum]);
    let flat = add("flatten", &none, &[pooled]);
    let logits = add("dense", &json!({"units": 4}), &[flat]);
    let model = net.build(&[x], &[logits]).unwrap();
    let trial = trial(Source::Floats, 16, Aim::Classes);
    check(&model, &trial);
    mixed_is_close(&model, &trial).unwrap();
}

#[test]
fn a_recurrent_layer_with_padding() {
    let layers = [
        ("masking", json!({})),
        ("gru", json!({"units": 4, "return_sequences": true})),
        ("lstm", json!({"units": 3})),
    ];
    check(
        &stack([7, 3], &layers),
        &trial(Source::Padded, 5, Aim::Squares),
    );
}

/// Each is one op, with and without the kernel for it.
#[test]
fn memories_in_both_directions() {
    let layers = [
        (
            "lstm",
            json!({"units": 18, "return_sequences": true, "go_backwards": true}),
        ),
        (
            "bidirectional",
            json!({"layer": {"lstm": {"units": 5, "return_sequences": true}}}),
        ),
        (
            "lstm",
            json!({"units": 3, "use_bias": false, "unit_forget_bias": false}),
        ),
    ];
    check(
        &stack([7, 3], &layers),
        &trial(Source::Floats, 5, Aim::Squares),
    );
}

#[test]
fn attention_over_tokens_on_three_replicas() {
    let layers = [
        (
            "embedding",
            json!({"input_dim": 9, "output_dim": 6, "mask_zero": true}),
        ),
        (
            "multi_head_attention",
            json!({"num_heads": 2, "key_dim": 3}),
        ),
        ("global_average_pool1d", json!({})),
    ];
    let source = Source::Tokens {
        below: 9,
        padded: true,
    };
    check(
        &stack(tokens(6), &layers),
        &Trial {
            replicas: 3,
            ..trial(source, 8, Aim::Squares)
        },
    );
}

/// The window's winner was looked for among values that the compiler had computed a second time, with other rounding.
#[test]
fn a_pooling_behind_a_normalization() {
    let layers = [
        ("batch_norm", json!({})),
        (
            "max_pool2d",
            json!({"pool_size": [2, 2], "strides": [2, 2]}),
        ),
    ];
    for rows in [1, 3] {
        let model = stack([8, 8, 3], &layers);
        check(&model, &trial(Source::Floats, rows, Aim::Squares));
    }
}

#[test]
fn a_pooling_behind_a_rectified_normalization() {
    let layers = [
        ("conv2d", json!({"filters": 8, "kernel_size": [3, 3]})),
        ("batch_norm", json!({})),
        ("activation", json!({"activation": "relu"})),
        ("max_pool2d", json!({"pool_size": [2, 2]})),
        ("flatten", json!({})),
        ("dense", json!({"units": 3})),
    ];
    let model = stack([14, 14, 1], &layers);
    check(&model, &trial(Source::Floats, 8, Aim::Classes));
}

#[test]
fn the_largest_of_a_rectified_normalization() {
    let layers = [
        ("embedding", json!({"input_dim": 11, "output_dim": 4})),
        ("batch_norm", json!({})),
        ("activation", json!({"activation": "relu"})),
        ("global_max_pool1d", json!({})),
        ("dense", json!({"units": 2})),
    ];
    let source = Source::Tokens {
        below: 11,
        padded: false,
    };
    check(&stack(tokens(3), &layers), &trial(source, 3, Aim::Squares));
}

/// Fusion ended the compiler where a value that goes into a rectifier also goes into a function of one operand.
#[test]
fn a_rectifier_beside_another_function() {
    let mut net = Network::new();
    let x0 = net.input(Input::new([5, 5, 3]));
    let layer0 = net.layer(layer("batch_norm", &json!({})));
    let layer1 = net.layer(layer("activation", &json!({"activation": "relu"})));
    let layer2 = net.layer(layer("activation", &json!({"activation": "tanh"})));
    let layer3 = net.layer(layer("add", &json!({})));
    let x1 = net.call(layer0, &[x0]);
    let x2 = net.call(layer1, &[x1]);
    let x3 = net.call(layer2, &[x1]);
    let x4 = net.call(layer3, &[x2, x3]);
    let model = net.build(&[x0], &[x4]).unwrap();
    check(&model, &trial(Source::Floats, 6, Aim::Squares));
}

/// The library's gradient of such kernels is wrong, or does not end.
#[test]
fn a_kernel_of_one_place_with_strides() {
    let mut net = Network::new();
    let x0 = net.input(Input::new([21]).dtype(DType::I32));
    let layer0 = net.layer(layer(
        "embedding",
        &json!({"input_dim": 18, "output_dim": 1}),
    ));
    let layer1 = net.layer(layer("reshape", &json!({"target_shape": [21, 1, 1]})));
    let layer2 = net.layer(layer(
        "conv2d",
        &json!({"filters": 1, "kernel_size": [1, 1], "strides": [3, 1], "use_bias": false}),
    ));
    let x1 = net.call(layer0, &[x0]);
    let x2 = net.call(layer1, &[x1]);
    let x3 = net.call(layer2, &[x2]);
    let model = net.build(&[x0], &[x3]).unwrap();
    let source = Source::Tokens {
        below: 18,
        padded: true,
    };
    check(&model, &trial(source, 2, Aim::Squares));
}

/// A batch whose only row is padding has no weight, and a gradient by its penalties alone.
#[test]
fn a_penalty_of_a_batch_without_weight() {
    let mut net = Network::new();
    let x0 = net.input(Input::new([1, 1]));
    let layer0 = net.layer(layer("masking", &json!({})));
    let penalty = json!({"l1_l2": {"l1": 0.05, "l2": 0.05}});
    let dense = json!({"activity_regularizer": penalty, "units": 1});
    let layer1 = net.layer(layer("dense", &dense));
    let x1 = net.call(layer0, &[x0]);
    let x2 = net.call(layer1, &[x1]);
    let model = net.build(&[x0], &[x2]).unwrap();
    check(&model, &trial(Source::Padded, 1, Aim::Squares));
}

#[test]
fn layers_of_volumes_on_two_replicas() {
    let layers = [
        (
            "conv3d",
            json!({"filters": 4, "kernel_size": 2, "padding": "same", "activation": "tanh"}),
        ),
        ("max_pool3d", json!({"pool_size": [1, 2, 2], "strides": 1})),
        ("zero_padding3d", json!({"padding": [0, 1, 0]})),
        ("up_sampling3d", json!({"size": [2, 1, 1]})),
        (
            "conv3d_transpose",
            json!({"filters": 4, "kernel_size": [1, 2, 1], "padding": "same"}),
        ),
        ("cropping3d", json!({"cropping": [[1, 2], [1, 1], [0, 0]]})),
        (
            "conv3d",
            json!({"filters": 4, "kernel_size": [2, 1, 2], "strides": [1, 2, 1], "groups": 2}),
        ),
        (
            "average_pool3d",
            json!({"pool_size": 2, "strides": 1, "padding": "same"}),
        ),
        ("global_max_pool3d", json!({})),
    ];
    check(
        &stack([3, 4, 5, 2], &layers),
        &Trial {
            replicas: 2,
            ..trial(Source::Floats, 5, Aim::Squares)
        },
    );
}

#[test]
fn noise_on_two_replicas() {
    let layers = [
        ("gaussian_noise", json!({"stddev": 0.3})),
        ("conv2d", json!({"filters": 6, "kernel_size": 2})),
        ("spatial_dropout2d", json!({"rate": 0.3})),
        ("normalization", json!({"axis": [1, -1]})),
        ("layer_scale", json!({"init_values": 0.5})),
        ("stochastic_depth", json!({"drop_path_rate": 0.3})),
        ("gaussian_dropout", json!({"rate": 0.3})),
        ("flatten", json!({})),
        ("dense", json!({"units": 5, "activation": "selu"})),
        ("alpha_dropout", json!({"rate": 0.3})),
    ];
    check(
        &stack([4, 4, 2], &layers),
        &Trial {
            replicas: 2,
            ..trial(Source::Floats, 5, Aim::Squares)
        },
    );
}

#[test]
fn pictures_on_two_replicas() {
    let colours = |factor: f64| json!({"factor": factor, "value_range": [-1e4, 1e4]});
    let layers = [
        ("conv2d", json!({"filters": 2, "kernel_size": 1})),
        ("random_flip", json!({})),
        (
            "random_rotation",
            json!({"factor": 0.3, "fill_mode": "wrap"}),
        ),
        ("random_zoom", json!({"height_factor": 0.4})),
        (
            "random_translation",
            json!({"height_factor": 0.4, "width_factor": 0.4, "fill_mode": "constant"}),
        ),
        ("random_contrast", colours(0.3)),
        ("random_brightness", colours(1e-4)),
        (
            "resizing",
            json!({"height": 4, "width": 7, "interpolation": "bicubic"}),
        ),
        ("random_crop", json!({"height": 3, "width": 5})),
        ("center_crop", json!({"height": 4, "width": 3})),
        ("flatten", json!({})),
        ("dense", json!({"units": 3})),
    ];
    check(
        &stack([5, 6, 2], &layers),
        &Trial {
            replicas: 2,
            ..trial(Source::Floats, 5, Aim::Squares)
        },
    );
}

#[test]
fn groups_of_channels_and_lengths_on_two_replicas() {
    let layers = [
        (
            "conv2d",
            json!({"filters": 6, "kernel_size": 2, "activation": "tanh"}),
        ),
        ("group_norm", json!({"groups": 3, "epsilon": 0.01})),
        ("unit_norm", json!({"axis": [1, 3]})),
        (
            "group_norm",
            json!({"groups": -1, "axis": 1, "scale": false}),
        ),
        ("flatten", json!({})),
        ("group_norm", json!({"groups": 1})),
        ("unit_norm", json!({})),
    ];
    check(
        &stack([4, 4, 2], &layers),
        &Trial {
            replicas: 2,
            ..trial(Source::Floats, 5, Aim::Squares)
        },
    );
}

#[test]
fn layers_of_each_step_on_two_replicas() {
    let conv = json!({"conv2d": {"filters": 3, "kernel_size": 2, "activation": "tanh"}});
    let normal = json!({"batch_norm": {"epsilon": 0.1, "synchronized": true}});
    let layers = [conv, normal, json!({"flatten": {}})];
    let mut layers: Vec<(&str, Value)> = layers
        .into_iter()
        .map(|layer| ("time_distributed", json!({"layer": layer})))
        .collect();
    layers.push(("lstm", json!({"units": 3})));
    check(
        &stack([3, 4, 4, 2], &layers),
        &Trial {
            replicas: 2,
            ..trial(Source::Floats, 5, Aim::Squares)
        },
    );
}

/// TensorFlow's gradient of such a pool is not the derivative of what it computes, which its own finite differences show.
#[test]
fn a_pool_that_is_wider_than_what_cropping_left() {
    let layers = [
        ("layer_norm", json!({})),
        ("cropping2d", json!({"cropping": [[0, 0], [2, 0]]})),
        (
            "average_pool2d",
            json!({"padding": "same", "pool_size": [1, 5], "strides": [3, 3]}),
        ),
        ("flatten", json!({})),
    ];
    check(
        &stack([1, 6, 2], &layers),
        &trial(Source::Floats, 3, Aim::Squares),
    );
}
