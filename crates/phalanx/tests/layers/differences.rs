//! Gradients of layers in training against central differences: of every input and of every variable, in f64.

use phalanx::nn::{Cx, Model, Sequential, layer_from_config};
use phalanx_graph::{Graph, HostTensor, Program, Shape, Tensor, gradients};
use phalanx_testkit::{Array, Interpreter};
use serde_json::{Value, json};

/// How far elements are moved, and how far the quotient may be, relative to the largest.
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-7;

/// Numbers of which no two neighbours are near each other, so that no maximum changes hands.
fn scattered(shape: &Shape, first: usize) -> Vec<f64> {
    let each = first..first + shape.len();
    each.map(|i| (i * 37 % 101) as f64 / 50.0 - 1.0).collect()
}

/// A loss, of a weighted sum of what a model makes of an input.
type Loss = fn(&Tensor, &Tensor) -> Tensor;

/// As a critic's gradient penalty: its gradients are second derivatives.
fn square_of_slope(sum: &Tensor, x: &Tensor) -> Tensor {
    let slope = gradients(sum, &[x]).swap_remove(0);
    slope.unwrap().square().sum_all()
}

/// The loss of a model in training and its gradients by the input and by what is trained: those parameters' numbers come second.
fn program(model: &Model, rows: usize, loss: Loss) -> (Program, Vec<usize>) {
    let graph = Graph::new();
    let (_, shape) = model.inputs().next().unwrap();
    let x = graph.parameter("x", Shape::f32([&[rows], &shape.dims[..]].concat()));
    let variables = model.variables().iter();
    let variables: Vec<Tensor> = variables
        .map(|spec| graph.parameter(&spec.name, spec.shape.clone()))
        .collect();
    let mut cx = Cx::new(&graph, model, &variables).with_training(true);
    let y = model.call(&mut cx, std::slice::from_ref(&x)).swap_remove(0);
    let weights: Vec<f32> = scattered(&y.shape(), 3).iter().map(|&w| w as f32).collect();
    let weights = graph.constant(HostTensor::new(y.dims(), &weights));
    let loss = loss(&(&y * weights).sum_all(), &x);
    let mut wrt = vec![&x];
    let mut numbers = vec![0];
    for (at, spec) in model.variables().iter().enumerate() {
        if spec.trainable {
            wrt.push(&variables[at]);
            numbers.push(at + 1);
        }
    }
    let slopes: Vec<Tensor> = gradients(&loss, &wrt)
        .into_iter()
        .map(Option::unwrap)
        .collect();
    let mut outputs = vec![("loss", &loss)];
    outputs.extend(slopes.iter().map(|slope| ("slope", slope)));
    (graph.finish(&outputs).unwrap(), numbers)
}

/// Compares every element of every gradient.
fn check(name: &str, model: &Model, rows: usize) {
    check_loss(name, model, rows, |sum, _| sum.clone());
}

fn check_loss(name: &str, model: &Model, rows: usize, loss: Loss) {
    let (program, numbers) = program(model, rows, loss);
    let parameters = program.parameters.iter().enumerate();
    let values: Vec<Vec<f64>> = parameters
        .map(|(number, parameter)| scattered(&parameter.shape, 7 * number))
        .collect();
    let run = |values: &[Vec<f64>], outputs: &[usize]| -> Vec<Vec<f64>> {
        let inputs = values.iter().map(|x| Array::Floats(x.clone())).collect();
        let mut found = Interpreter::new(&program).run_arrays(&[inputs], outputs);
        let found = found.as_mut().map(|replicas| replicas.swap_remove(0));
        found.unwrap().iter().map(Array::to_f64).collect()
    };
    let outputs: Vec<usize> = (1..=numbers.len()).collect();
    for (slope, &number) in run(&values, &outputs).iter().zip(&numbers) {
        let most = slope.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
        for (at, got) in slope.iter().enumerate() {
            let loss = |change: f64| {
                let mut moved = values.clone();
                moved[number][at] += change;
                run(&moved, &[0])[0][0]
            };
            let expected = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
            let parameter = &program.parameters[number].name;
            assert!(
                (got - expected).abs() <= TOLERANCE * most,
                "{name}: d loss / d {parameter}[{at}] is {expected}, got {got}"
            );
        }
    }
}

fn check_each(input: &[usize], layers: &[(&str, Value)]) {
    for (kind, settings) in layers {
        let layer = layer_from_config(kind, settings).unwrap();
        let model = Sequential::new(input).add(layer).build().unwrap();
        check(&format!("{kind} {settings}"), &model, 2);
    }
}

#[test]
fn group_norm_has_second_derivatives() {
    for groups in [2, -1] {
        let settings = json!({"groups": groups, "center": false});
        let layer = layer_from_config("group_norm", &settings).unwrap();
        let model = Sequential::new([3, 4]).add(layer).build().unwrap();
        check_loss(&settings.to_string(), &model, 2, square_of_slope);
    }
}

#[test]
fn normalizations_of_examples() {
    check_each(
        &[2, 3, 4],
        &[
            ("group_norm", json!({"groups": 2})),
            ("group_norm", json!({"groups": -1, "epsilon": 0.1})),
            (
                "group_norm",
                json!({"groups": 3, "axis": 2, "scale": false}),
            ),
            ("unit_norm", json!({})),
            ("unit_norm", json!({"axis": [1, 3]})),
            ("rms_norm", json!({})),
            ("rms_norm", json!({"axis": [1, -1], "epsilon": 0.1})),
            (
                "normalization",
                json!({"axis": [1, 3], "mean": [[0.5], [-1.0]], "variance": [[2.0], [0.25]]}),
            ),
            (
                "normalization",
                json!({"axis": [], "mean": 0.5, "variance": 3.0, "invert": true}),
            ),
        ],
    );
}

#[test]
fn products_by_equations() {
    check_each(
        &[3, 4],
        &[
            (
                "einsum_dense",
                json!({"equation": "abc,bcd->adb", "output_shape": [2, 3], "bias_axes": "d"}),
            ),
            (
                "einsum_dense",
                json!({"equation": "...c,bd->...bd", "output_shape": [2, 2], "bias_axes": "b", "activation": "tanh"}),
            ),
        ],
    );
}

#[test]
fn convolutions_and_pools_of_volumes() {
    check_each(
        &[3, 4, 3, 2],
        &[
            (
                "conv3d",
                json!({"filters": 2, "kernel_size": 2, "padding": "same", "dilation_rate": [1, 2, 1]}),
            ),
            (
                "conv3d",
                json!({"filters": 4, "kernel_size": [2, 1, 3], "strides": [1, 2, 1], "groups": 2}),
            ),
            (
                "max_pool3d",
                json!({"pool_size": [2, 3, 2], "strides": 1, "padding": "same"}),
            ),
            (
                "average_pool3d",
                json!({"pool_size": [2, 3, 2], "strides": [1, 2, 1], "padding": "same"}),
            ),
            ("global_max_pool3d", json!({})),
            ("global_average_pool3d", json!({"keepdims": true})),
        ],
    );
}

#[test]
fn pools_to_a_number_of_windows() {
    for pool in ["max", "average"] {
        let of = |dims: &[usize], settings: Value| {
            let kind = format!("adaptive_{pool}_pool{}d", dims.len() - 1);
            check_each(dims, &[(&kind, settings)]);
        };
        of(&[7, 2], json!({"output_size": 3}));
        of(&[3, 4, 2], json!({"output_size": [2, 5]}));
        of(&[2, 3, 4, 1], json!({"output_size": [2, 2, 3]}));
    }
}

#[test]
fn spectrograms() {
    // The derivatives of an angle are not those of the polynomial that finds it: Keras' numbers have them.
    let modes = ["log", "magnitude", "psd", "real", "imag", "stft"];
    for mode in modes {
        let settings =
            json!({"mode": mode, "frame_length": 4, "frame_step": 3, "expand_dims": true});
        check_each(&[8, 2], &[("stft_spectrogram", settings)]);
    }
    let frames = |mut settings: Value| {
        settings["num_mel_bins"] = 3.into();
        settings["min_freq"] = 100.0.into();
        ("mel_spectrogram", settings)
    };
    check_each(
        &[20],
        &[
            frames(json!({"fft_length": 12, "sequence_stride": 5})),
            frames(
                json!({"fft_length": 7, "sequence_stride": 4, "power_to_db": false, "mag_exp": 1.0}),
            ),
            frames(json!({"fft_length": 16, "sequence_stride": 9, "top_db": 2.0})),
        ],
    );
}

#[test]
fn convolutions_of_each_channel_of_sequences() {
    check_each(
        &[5, 2],
        &[
            (
                "depthwise_conv1d",
                json!({"kernel_size": 2, "strides": 2, "depth_multiplier": 2}),
            ),
            (
                "separable_conv1d",
                json!({"filters": 3, "kernel_size": 3, "padding": "same", "dilation_rate": 2}),
            ),
        ],
    );
}

#[test]
fn transposed_convolutions() {
    check_each(
        &[4, 2],
        &[
            (
                "conv1d_transpose",
                json!({"filters": 3, "kernel_size": 3, "strides": 2, "padding": "same"}),
            ),
            (
                "conv1d_transpose",
                json!({"filters": 2, "kernel_size": 2, "dilation_rate": 2}),
            ),
        ],
    );
    check_each(
        &[2, 3, 2, 2],
        &[(
            "conv3d_transpose",
            json!({"filters": 3, "kernel_size": [2, 1, 3], "strides": [1, 2, 2]}),
        )],
    );
    check_each(
        &[2, 1, 2, 2],
        &[(
            "conv3d_transpose",
            json!({"filters": 2, "kernel_size": 1, "strides": 3, "padding": "same"}),
        )],
    );
}

#[test]
fn slopes() {
    // As few numbers as have no 0 among them.
    check_each(
        &[1, 2, 3],
        &[
            ("p_relu", json!({})),
            ("p_relu", json!({"shared_axes": [1, 3]})),
            ("layer_scale", json!({"init_values": 0.5})),
        ],
    );
}

#[test]
fn edges_and_repeated_elements() {
    check_each(
        &[5, 2],
        &[
            ("zero_padding1d", json!({"padding": [2, 0]})),
            ("cropping1d", json!({"cropping": [1, 2]})),
            ("up_sampling1d", json!({"size": 3})),
        ],
    );
    check_each(
        &[3, 4, 2],
        &[("cropping2d", json!({"cropping": [[0, 1], [2, 0]]}))],
    );
    check_each(
        &[3, 2, 4, 1],
        &[
            (
                "zero_padding3d",
                json!({"padding": [[0, 1], [2, 0], [1, 1]]}),
            ),
            ("cropping3d", json!({"cropping": [[0, 2], [1, 0], [1, 1]]})),
            ("up_sampling3d", json!({"size": [2, 1, 3]})),
        ],
    );
}

#[test]
fn recurrent_layers_of_cells() {
    let cells = json!([
        {"lstm": {"units": 2}},
        {"gru": {"units": 3, "reset_after": false}},
        {"gru": {"units": 1, "use_bias": false}},
        {"simple_rnn": {"units": 2}},
    ]);
    check_each(
        &[3, 2],
        &[
            ("rnn", json!({"cells": cells, "return_sequences": true})),
            (
                "rnn",
                json!({"cells": cells, "unroll": true, "go_backwards": true}),
            ),
        ],
    );
}

#[test]
fn recurrent_layers_of_convolutions() {
    check_each(
        &[2, 3, 2],
        &[(
            "conv_lstm1d",
            json!({"filters": 2, "kernel_size": 2, "dilation_rate": 2, "return_sequences": true}),
        )],
    );
    check_each(
        &[2, 3, 2, 1],
        &[
            (
                "conv_lstm2d",
                json!({"filters": 2, "kernel_size": [2, 1], "strides": [1, 2], "padding": "same"}),
            ),
            (
                "bidirectional",
                json!({"layer": {"conv_lstm2d": {"filters": 1, "kernel_size": 2}}, "merge_mode": "mul"}),
            ),
        ],
    );
    check_each(
        &[2, 2, 1, 2, 1],
        &[(
            "conv_lstm3d",
            json!({"filters": 1, "kernel_size": [2, 1, 2], "use_bias": false, "go_backwards": true}),
        )],
    );
}

#[test]
fn layers_of_each_step() {
    let layers = |layers: &[Value]| -> Vec<(&str, Value)> {
        let each = layers.iter();
        each.map(|layer| ("time_distributed", json!({"layer": layer})))
            .collect()
    };
    let on_sequences = [
        json!({"dense": {"units": 2, "activation": "tanh"}}),
        json!({"batch_norm": {"epsilon": 0.1}}),
    ];
    check_each(&[3, 2], &layers(&on_sequences));
    let on_images = [
        json!({"conv2d": {"filters": 2, "kernel_size": 2}}),
        json!({"batch_norm": {"epsilon": 0.1}}),
        json!({"time_distributed": {"layer": {"lstm": {"units": 2}}}}),
    ];
    check_each(&[2, 3, 2, 2], &layers(&on_images));
}
