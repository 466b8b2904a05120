//! Single layers with random settings.

use serde_json::{Value, json};

use crate::frames::{adaptive, conv_lstm, mel, spectral, stft};
use crate::network::Described;
use crate::pictures::picture;
use crate::random::Random;

pub(crate) fn layer(kind: &'static str, settings: Value) -> Described {
    Described { kind, settings }
}

pub(crate) fn activation(random: &mut Random) -> Value {
    let plain = [
        "relu",
        "relu",
        "relu",
        "relu6",
        "selu",
        "gelu",
        "gelu_tanh",
        "sigmoid",
        "hard_sigmoid",
        "hard_silu",
        "tanh",
        "softplus",
        "softsign",
        "silu",
        "mish",
        "softmax",
        "log_softmax",
        "celu",
        "hard_tanh",
        "log_sigmoid",
        "soft_shrink",
        "sparse_plus",
        "sparse_sigmoid",
        "sparsemax",
        "squareplus",
        "tanh_shrink",
    ];
    match random.from(0, plain.len() + 3) {
        number if number < plain.len() => json!(plain[number]),
        number if number == plain.len() => json!({"leaky_relu": {"negative_slope": 0.2}}),
        number if number == plain.len() + 1 => json!({"elu": {"alpha": 1.3}}),
        number if number == plain.len() + 2 => {
            // Without a threshold, where it jumps.
            json!({"general_relu": {"negative_slope": 0.1, "max_value": 1.3}})
        }
        _ => json!("linear"),
    }
}

/// The activation within a layer: mostly none.
fn inner(random: &mut Random) -> Value {
    match random.chance(0.3) {
        true => activation(random),
        false => json!("linear"),
    }
}

pub(crate) fn penalty(random: &mut Random) -> Value {
    match random.from(0, 19) {
        0 => json!({"l2": {"l2": 0.1}}),
        1 => json!({"l1": {"l1": 0.1}}),
        2 => json!({"l1_l2": {"l1": 0.05, "l2": 0.05}}),
        _ => Value::Null,
    }
}

/// A size of windows and a distance between them, the same in both directions or not.
fn pair(random: &mut Random, most: usize) -> Value {
    let first = random.size(most);
    let second = if random.chance(0.6) {
        first
    } else {
        random.size(most)
    };
    json!([first, second])
}

/// A size of windows over volumes and a distance between them, which is not larger.
fn windows_of_volumes(random: &mut Random) -> ([usize; 3], [usize; 3], &'static str) {
    let size = [0; 3].map(|_| random.size(3));
    let strides = match random.chance(0.5) {
        true => [1; 3],
        false => size.map(|most| random.from(1, most)),
    };
    (size, strides, random.of_list(&["same", "valid"]))
}

fn windows(random: &mut Random) -> (Value, Value, &'static str) {
    let size = pair(random, 5);
    let strides = match random.chance(0.5) {
        true => json!([1, 1]),
        false => pair(random, 4),
    };
    (size, strides, random.of_list(&["same", "valid"]))
}

pub(crate) fn on_image(random: &mut Random, dims: &[usize]) -> Described {
    let channels = dims[2];
    match random.from(0, 27) {
        27 => permuted(random, 3),
        22 | 23 => picture(random, channels),
        24 => conv_lstm(random, 1),
        25 => adaptive(random, &dims[..2]),
        26 => {
            let inside = match random.from(0, 2) {
                0 => convolution(random, channels),
                1 => depthwise(random),
                _ => transposed(random),
            };
            spectral(random, &inside)
        }
        21 => {
            let inside = recurrent(random, "lstm");
            each_step(&inside)
        }
        0..=4 => convolution(random, channels),
        17 => separable(random),
        18 | 19 => transposed(random),
        20 => {
            let interpolation = random.of_list(&["nearest", "bilinear"]);
            let size = pair(random, 3);
            layer(
                "up_sampling2d",
                json!({"size": size, "interpolation": interpolation}),
            )
        }
        5 | 6 => depthwise(random),
        7..=9 => pooling(random, "max_pool2d"),
        10 | 11 => pooling(random, "average_pool2d"),
        12 => layer("global_max_pool2d", json!({"keepdims": random.chance(0.3)})),
        13 => layer(
            "global_average_pool2d",
            json!({"keepdims": random.chance(0.3)}),
        ),
        14 => edges(random, &dims[..2]),
        15 => noise(random, "spatial_dropout2d"),
        _ if channels == 3 => layer("preprocess", json!({"mode": "torch"})),
        _ => layer("reshape", json!({"target_shape": [-1, channels]})),
    }
}

/// A layer that draws random numbers, perhaps one for this rank alone.
fn noise(random: &mut Random, spatial: &'static str) -> Described {
    let kinds = [
        "dropout",
        "gaussian_dropout",
        "alpha_dropout",
        "gaussian_noise",
        "stochastic_depth",
        spatial,
        spatial,
    ];
    match random.of_list(&kinds) {
        // Keras' has no padding masks.
        "stochastic_depth" if spatial == "spatial_dropout1d" => {
            layer(spatial, json!({"rate": 0.3}))
        }
        "gaussian_noise" => layer("gaussian_noise", json!({"stddev": 0.3})),
        "stochastic_depth" => layer("stochastic_depth", json!({"drop_path_rate": 0.3})),
        kind => layer(kind, json!({"rate": 0.3})),
    }
}

/// Zeros around a sequence, an image or a volume of these sizes, or its middle.
fn edges(random: &mut Random, sizes: &[usize]) -> Described {
    let cuts = random.chance(0.5);
    let side = |&size: &usize| {
        let most = if cuts { (size - 1).min(2) } else { 2 };
        let first = random.from(0, most);
        [first, random.from(0, most - if cuts { first } else { 0 })]
    };
    let sides: Vec<[usize; 2]> = sizes.iter().map(side).collect();
    let sides = match sides[..] {
        [ends] => json!(ends),
        _ => json!(sides),
    };
    let paddings = ["zero_padding1d", "zero_padding2d", "zero_padding3d"];
    let croppings = ["cropping1d", "cropping2d", "cropping3d"];
    match cuts {
        true => layer(croppings[sizes.len() - 1], json!({"cropping": sides})),
        false => layer(paddings[sizes.len() - 1], json!({"padding": sides})),
    }
}

pub(crate) fn on_volume(random: &mut Random, dims: &[usize]) -> Described {
    let [_, height, width, channels] = [0, 1, 2, 3].map(|dim| dims[dim]);
    match random.from(0, 20) {
        20 => permuted(random, 4),
        0..=5 => volume_convolution(random, channels),
        16 | 17 => conv_lstm(random, 2),
        18 => adaptive(random, &dims[..3]),
        19 if random.chance(0.5) => {
            let inside = volume_convolution(random, channels);
            spectral(random, &inside)
        }
        19 => {
            let [steps, depth] = random.of_list(&[[dims[0], 1], [1, dims[0]], [2, dims[0] / 2]]);
            layer(
                "reshape",
                json!({"target_shape": [steps, depth, height, width, channels]}),
            )
        }
        15 => noise(random, "spatial_dropout3d"),
        13 => edges(random, &dims[..3]),
        14 if random.chance(0.5) => {
            let (size, strides, padding) = windows_of_volumes(random);
            let mut settings = json!({"filters": random.size(4), "kernel_size": size, "strides": strides,
                "padding": padding, "activation": inner(random), "use_bias": random.chance(0.7)});
            spread(random, &mut settings, &strides);
            layer("conv3d_transpose", settings)
        }
        14 => {
            let size = [0; 3].map(|_| random.size(2));
            layer("up_sampling3d", json!({"size": size}))
        }
        number @ 6..=9 => {
            let kind = ["max_pool3d", "average_pool3d"][number % 2];
            let (size, strides, padding) = windows_of_volumes(random);
            let strides = random.chance(0.6).then_some(strides);
            layer(
                kind,
                json!({"pool_size": size, "strides": strides, "padding": padding}),
            )
        }
        10 => {
            let kind = random.of_list(&["global_max_pool3d", "global_average_pool3d"]);
            layer(kind, json!({"keepdims": random.chance(0.3)}))
        }
        11 => {
            let (size, strides, padding) = windows(random);
            let inside = json!({"pool_size": size, "strides": strides, "padding": padding});
            each_step(&layer("max_pool2d", inside))
        }
        _ => layer(
            "reshape",
            json!({"target_shape": [-1, height * width, channels]}),
        ),
    }
}

fn volume_convolution(random: &mut Random, channels: usize) -> Described {
    let (size, strides, padding) = windows_of_volumes(random);
    let groups = match random.chance(0.2) {
        true => channels,
        false => 1,
    };
    let dilation = match random.chance(0.3) {
        true => [0; 3].map(|_| random.size(2)),
        false => [1; 3],
    };
    let settings = json!({"filters": random.size(4) * groups, "kernel_size": size, "strides": strides,
        "padding": padding, "dilation_rate": dilation, "groups": groups, "activation": inner(random),
        "use_bias": random.chance(0.7), "kernel_regularizer": penalty(random)});
    layer("conv3d", settings)
}

fn convolution(random: &mut Random, channels: usize) -> Described {
    let (size, strides, padding) = windows(random);
    let dividing: Vec<usize> = (1..=channels)
        .filter(|&groups| channels.is_multiple_of(groups))
        .collect();
    let groups = if random.chance(0.3) {
        random.of_list(&dividing)
    } else {
        1
    };
    let filters = match random.chance(0.05) {
        true => 64,
        false => random.size(16),
    };
    let filters = filters.div_ceil(groups) * groups;
    let dilation = if random.chance(0.3) {
        pair(random, 3)
    } else {
        json!([1, 1])
    };
    let settings = json!({"filters": filters, "kernel_size": size, "strides": strides, "padding": padding,
        "dilation_rate": dilation, "groups": groups, "activation": inner(random),
        "use_bias": random.chance(0.7), "kernel_regularizer": penalty(random)});
    layer("conv2d", settings)
}

fn depthwise(random: &mut Random) -> Described {
    let (size, strides, padding) = windows(random);
    let dilation = if random.chance(0.3) {
        pair(random, 3)
    } else {
        json!([1, 1])
    };
    let settings = json!({"kernel_size": size, "strides": strides, "padding": padding,
        "dilation_rate": dilation, "depth_multiplier": random.size(3), "activation": inner(random),
        "use_bias": random.chance(0.7)});
    layer("depthwise_conv2d", settings)
}

fn separable(random: &mut Random) -> Described {
    let (size, strides, padding) = windows(random);
    let settings = json!({"filters": random.size(8), "kernel_size": size, "strides": strides,
        "padding": padding, "depth_multiplier": random.size(2), "activation": inner(random),
        "use_bias": random.chance(0.7), "kernel_regularizer": penalty(random),
        "depthwise_regularizer": penalty(random), "pointwise_regularizer": penalty(random)});
    layer("separable_conv2d", settings)
}

fn steps_of_each_channel(random: &mut Random) -> Described {
    let (stride, dilation) = match random.chance(0.3) {
        true => (1, random.size(3)),
        false => (random.size(3), 1),
    };
    let mut settings = json!({"kernel_size": random.size(4), "strides": stride,
        "padding": random.of_list(&["valid", "same"]),
        "dilation_rate": dilation, "depth_multiplier": random.size(2), "activation": inner(random),
        "use_bias": random.chance(0.7), "kernel_regularizer": penalty(random)});
    if random.chance(0.5) {
        return layer("depthwise_conv1d", settings);
    }
    settings["filters"] = random.size(6).into();
    layer("separable_conv1d", settings)
}

fn transposed(random: &mut Random) -> Described {
    let (size, strides, padding) = windows(random);
    let more = match random.chance(0.3) {
        true => {
            json!([0, 1].map(|at| random.from(0, strides[at].as_u64().unwrap_or(1) as usize - 1)))
        }
        false => Value::Null,
    };
    let dilation = match random.chance(0.3) {
        true => pair(random, 3),
        false => json!([1, 1]),
    };
    let settings = json!({"filters": random.size(8), "kernel_size": size, "strides": strides, "dilation_rate": dilation,
        "output_padding": more, "padding": padding, "activation": inner(random), "use_bias": random.chance(0.7)});
    layer("conv2d_transpose", settings)
}

/// A layer applied to each step, or to each row of an image.
fn each_step(inside: &Described) -> Described {
    layer(
        "time_distributed",
        json!({"layer": {inside.kind: inside.settings}}),
    )
}

fn step_convolution(random: &mut Random, channels: usize) -> Described {
    let groups = match random.chance(0.2) {
        true => channels,
        false => 1,
    };
    let settings = json!({"filters": random.size(4) * groups, "kernel_size": random.size(4),
        "strides": random.size(2), "padding": random.of_list(&["valid", "same", "causal"]),
        "dilation_rate": random.size(2), "groups": groups, "activation": inner(random),
        "use_bias": random.chance(0.7)});
    layer("conv1d", settings)
}

fn pooling(random: &mut Random, kind: &'static str) -> Described {
    let (size, strides, padding) = windows(random);
    let strides = if random.chance(0.4) {
        Value::Null
    } else {
        strides
    };
    layer(
        kind,
        json!({"pool_size": size, "strides": strides, "padding": padding}),
    )
}

pub(crate) fn on_sequence(random: &mut Random, dims: &[usize]) -> Described {
    let (steps, features) = (dims[0], dims[1]);
    match random.from(0, 26) {
        26 => permuted(random, 2),
        21 => edges(random, &dims[..1]),
        23 => adaptive(random, &dims[..1]),
        24 => stft(random, steps),
        25 => {
            let inside = match random.chance(0.5) {
                true => dense(random),
                false => step_convolution(random, features),
            };
            spectral(random, &inside)
        }
        22 if random.chance(0.6) => longer(random),
        22 => layer("up_sampling1d", json!({"size": random.size(3)})),
        20 => {
            let inside = match random.chance(0.5) {
                true => dense(random),
                false => layer("batch_norm", json!({"epsilon": 0.1})),
            };
            each_step(&inside)
        }
        16 | 17 if random.chance(0.4) => steps_of_each_channel(random),
        16 | 17 => step_convolution(random, features),
        18 | 19 => step_pooling(random),
        0 | 1 => recurrent(random, "lstm"),
        2 | 3 => recurrent(random, "gru"),
        4 if random.chance(0.5) => around_cells(random),
        4 => recurrent(random, "simple_rnn"),
        5 => {
            let inside = random.of_list(&["lstm", "gru", "simple_rnn"]);
            let inside = recurrent(random, inside);
            let merge = random.of_list(&["concat", "sum", "ave", "mul"]);
            layer(
                "bidirectional",
                json!({"layer": {inside.kind: inside.settings}, "merge_mode": merge}),
            )
        }
        6 => attention(random),
        7 => grouped_attention(random),
        8 => scored_attention(random),
        9 => layer(
            "position_embedding",
            json!({"sequence_length": steps + random.from(0, 2)}),
        ),
        10 => layer("sinusoidal_position", json!({})),
        11 => layer("global_max_pool1d", json!({"keepdims": random.chance(0.3)})),
        12 => layer(
            "global_average_pool1d",
            json!({"keepdims": random.chance(0.3)}),
        ),
        13 => layer("reshape", json!({"target_shape": [steps, 1, features]})),
        14 => noise(random, "spatial_dropout1d"),
        15 => einsum(random, [steps, features]),
        _ => dense(random),
    }
}

fn longer(random: &mut Random) -> Described {
    let strides = [random.size(3)];
    let mut settings = json!({"filters": random.size(6), "kernel_size": random.size(4), "strides": strides[0],
        "padding": random.of_list(&["valid", "same"]), "activation": inner(random), "use_bias": random.chance(0.7)});
    spread(random, &mut settings, &strides);
    layer("conv1d_transpose", settings)
}

/// Gaps within the kernel of a transposed convolution of these strides, or more elements behind its result.
fn spread(random: &mut Random, settings: &mut Value, strides: &[usize]) {
    let draw: Vec<usize> = match random.from(0, 3) {
        0 => strides.iter().map(|_| random.size(2)).collect(),
        1 => (strides.iter().map(|&stride| random.from(0, stride - 1))).collect(),
        _ => return,
    };
    let name = ["dilation_rate", "output_padding"][usize::from(draw.contains(&0))];
    settings[name] = json!(draw);
}

/// The dims of an example in another order.
fn permuted(random: &mut Random, rank: usize) -> Described {
    let mut left: Vec<usize> = (1..=rank).collect();
    let order = (1..=rank)
        .rev()
        .map(|last| left.swap_remove(random.from(0, last - 1)));
    let order: Vec<usize> = order.collect();
    layer("permute", json!({"dims": order}))
}

fn step_pooling(random: &mut Random) -> Described {
    let kind = random.of_list(&["max_pool1d", "average_pool1d"]);
    let padding = random.of_list(&["valid", "same"]);
    let strides = random.of_list(&[None, Some(1), Some(2), Some(3)]);
    let settings = json!({"pool_size": random.size(3), "strides": strides, "padding": padding});
    layer(kind, settings)
}

pub(crate) fn recurrent(random: &mut Random, kind: &'static str) -> Described {
    let mut settings = json!({"units": random.size(10), "use_bias": random.chance(0.8),
        "return_sequences": random.chance(0.6), "go_backwards": random.chance(0.2),
        "dropout": dropped(random), "recurrent_dropout": dropped(random), "recurrent_regularizer": penalty(random)});
    if kind == "gru" {
        settings["reset_after"] = json!(random.chance(0.5));
    }
    if kind == "lstm" {
        settings["unit_forget_bias"] = json!(random.chance(0.5));
    }
    if kind != "simple_rnn" && random.chance(0.2) {
        settings["recurrent_activation"] = json!(random.of_list(&["hard_sigmoid", "tanh"]));
    }
    if random.chance(0.2) {
        settings["activation"] = json!(random.of_list(&["softsign", "relu", "sigmoid"]));
    }
    layer(kind, settings)
}

/// Up to two cells, each on the output of the one before.
fn around_cells(random: &mut Random) -> Described {
    let mut cell = || {
        let kind = random.of_list(&["lstm", "gru", "simple_rnn"]);
        let settings = json!({"units": random.size(6), "use_bias": random.chance(0.8)});
        json!({kind: settings})
    };
    let (first, second) = (cell(), cell());
    let cells = match random.chance(0.5) {
        true => vec![first],
        false => vec![first, second],
    };
    layer(
        "rnn",
        json!({"cells": cells, "return_sequences": random.chance(0.6), "go_backwards": random.chance(0.2)}),
    )
}

pub(crate) fn attention(random: &mut Random) -> Described {
    let optional = |value: usize, given: bool| given.then_some(value);
    let value_dim = optional(random.size(6), random.chance(0.3));
    let output = optional(random.size(10), random.chance(0.3));
    let settings = json!({"num_heads": random.size(4), "key_dim": random.size(8), "value_dim": value_dim,
        "output_shape": output, "use_causal_mask": random.chance(0.3), "use_bias": random.chance(0.8),
        "use_padding_mask": random.chance(0.9),
        "dropout": dropped(random)});
    layer("multi_head_attention", settings)
}

/// Attention of which several heads of queries share a head of keys and values.
pub(crate) fn grouped_attention(random: &mut Random) -> Described {
    let groups = random.size(3);
    let settings = json!({"head_dim": random.size(6), "num_query_heads": groups * random.size(3),
        "num_key_value_heads": groups, "use_causal_mask": random.chance(0.3), "use_bias": random.chance(0.8),
        "use_padding_mask": random.chance(0.9), "dropout": dropped(random)});
    layer("group_query_attention", settings)
}

/// Attention of one head without projections.
pub(crate) fn scored_attention(random: &mut Random) -> Described {
    let mut settings = json!({"use_scale": random.chance(0.6), "use_causal_mask": random.chance(0.3),
        "dropout": dropped(random)});
    if random.chance(0.4) {
        return layer("additive_attention", settings);
    }
    settings["score_mode"] = json!(random.of_list(&["dot", "concat"]));
    layer("attention", settings)
}

fn dense(random: &mut Random) -> Described {
    let of_kernel = match random.chance(0.05) {
        true => {
            json!({"orthogonal": {"factor": 0.1, "mode": random.of_list(&["rows", "columns"])}})
        }
        false => penalty(random),
    };
    let settings = json!({"units": random.size(24), "activation": inner(random),
        "use_bias": random.chance(0.8), "kernel_regularizer": of_kernel,
        "bias_regularizer": penalty(random), "activity_regularizer": penalty(random)});
    layer("dense", settings)
}

/// A dense layer by an equation, of sequences.
fn einsum(random: &mut Random, [steps, features]: [usize; 2]) -> Described {
    let (size, other) = (random.size(8), random.size(3));
    let forms = [
        ("...x,xy->...y", json!([size]), "y"),
        ("abc,cd->abd", json!([steps, size]), "bd"),
        ("abc,bcd->abd", json!([steps, size]), "b"),
        ("abc,bc->abc", json!([steps, features]), "c"),
        ("abc,cde->abed", json!([null, other, size]), "e"),
    ];
    let (equation, shape, bias) = forms[random.from(0, forms.len() - 1)].clone();
    let bias = random.chance(0.7).then_some(bias);
    let settings = json!({"equation": equation, "output_shape": shape, "bias_axes": bias,
        "activation": inner(random), "kernel_regularizer": penalty(random)});
    layer("einsum_dense", settings)
}

pub(crate) fn on_vector(random: &mut Random, dims: &[usize]) -> Described {
    let features = dims[0];
    match random.from(0, 12) {
        0..=5 => dense(random),
        11 => mel(random, features),
        12 => {
            let inside = dense(random);
            spectral(random, &inside)
        }
        10 => layer("repeat_vector", json!({"n": random.size(4)})),
        6 => noise(random, "dropout"),
        7 if features.is_multiple_of(2) => {
            layer("reshape", json!({"target_shape": [features / 2, 2]}))
        }
        8 if features.is_multiple_of(4) => {
            layer("reshape", json!({"target_shape": [2, features / 4, 2]}))
        }
        _ => layer("rescaling", json!({"scale": 0.7})),
    }
}

/// A share that is dropped, seldom any.
pub(crate) fn dropped(random: &mut Random) -> f64 {
    match random.chance(0.1) {
        true => 0.3,
        false => 0.0,
    }
}
