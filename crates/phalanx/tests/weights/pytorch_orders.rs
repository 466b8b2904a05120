//! PyTorch's weights around flattened images, whose channels are first there: `make_orders.py` has the models.

use phalanx::Result;
use phalanx::import::LoadWeights;
use phalanx::nn::{
    Activation, ActivationLayer, Add, BatchNorm, Concatenate, Conv1d, Conv2d, Conv2dTranspose,
    Conv3d, Cx, Dense, Dropout, Embedding, Flatten, GlobalAveragePool2d, IntoModel, Layer,
    LayerNorm, LayerSpec, MaxPool1d, MaxPool2d, Model, Multiply, Network, PRelu, Permute, Reshape,
    Sequential, TimeDistributed, relu, sigmoid, tanh,
};
use phalanx_graph::{HostTensor, Tensor};
use phalanx_testkit::assert_close;
use serde_json::{Value, json};

use crate::{answers, fresh, load, read_json, relu_layer};

/// Reads PyTorch's weights of this name, and compares what the model answers.
#[track_caller]
fn check(name: &str, model: Result<Model>) {
    let mut saved = fresh(model);
    let report = load(&mut saved, &format!("torch/orders/{name}.safetensors")).unwrap();
    assert!(
        report.is_complete() && report.unexpected.is_empty(),
        "{name}: {report}"
    );
    let golden = &read_json("torch/orders.json")[name];
    let numbers = |value: &Value| -> Vec<f64> { serde_json::from_value(value.clone()).unwrap() };
    let inputs = golden["inputs"].as_array().unwrap().iter().map(numbers);
    let inputs = inputs
        .zip(saved.model().inputs())
        .map(|(numbers, (_, shape))| {
            let dims = [&[2], &shape.dims[..]].concat();
            match shape.dtype.is_float() {
                true => {
                    HostTensor::new(dims, &numbers.iter().map(|&x| x as f32).collect::<Vec<_>>())
                }
                false => {
                    HostTensor::new(dims, &numbers.iter().map(|&x| x as i32).collect::<Vec<_>>())
                }
            }
        });
    let got = answers(&saved, inputs.collect());
    assert_close(name, &got, &numbers(&golden["output"]), 1e-5);
}

/// The convolutions of `images`, up to what flattens.
fn images() -> Sequential {
    Sequential::new([5, 6, 2])
        .add(Conv2d::new(3, 2))
        .add(BatchNorm::new().epsilon(1e-5))
        .add(relu_layer())
        .add(MaxPool2d::new((2, 1)))
}

fn read_flattened(images: Sequential) -> Result<Model> {
    images
        .add(BatchNorm::new().epsilon(1e-5))
        .add(Dropout::new(0.5))
        .add(LayerNorm::new().epsilon(1e-5))
        .add(Dense::new(5).activation(relu))
        .add(Dense::new(2))
        .build()
}

#[test]
fn flattened_images_are_read() {
    check("images", read_flattened(images().add(Flatten)));
    check("images", read_flattened(images().add(Reshape::new([-1]))));
    check(
        "images",
        read_flattened(images().add(Reshape::new([10, 3])).add(Flatten)),
    );
    let stack = Sequential::new([5, 4, 2]).add(Flatten).add(Dense::new(3));
    check("image", stack.build());
}

#[test]
fn images_whose_dims_were_permuted_before_are_read() {
    check(
        "images",
        read_flattened(images().add(Permute::new([3, 1, 2])).add(Flatten)),
    );
}

#[test]
fn flattened_sequences_and_volumes_are_read() {
    let steps = Sequential::new([9, 2])
        .add(Conv1d::new(3, 2).activation(relu))
        .add(MaxPool1d::new(2))
        .add(Flatten)
        .add(Dense::new(3));
    check("steps", steps.build());
    let volumes = Sequential::new([3, 4, 5, 2])
        .add(Conv3d::new(3, 2))
        .add(Flatten)
        .add(Dense::new(2));
    check("volumes", volumes.build());
    let mut words = Network::new();
    let input = words.input(phalanx::nn::Input::new([6]).dtype(phalanx_graph::DType::I32));
    let table = words.add(Embedding::new(7, 3).named("table"), &[input]);
    let conv = words.add(Conv1d::new(4, 2).named("conv"), &[table]);
    let flat = words.add(Flatten, &[conv]);
    let out = words.add(Dense::new(2).named("out"), &[flat]);
    check("words", words.build(&[input], &[out]));
}

#[test]
fn vectors_become_images() {
    let generator = Sequential::new([3])
        .add(Dense::new(24))
        .add(BatchNorm::new().epsilon(1e-5))
        .add(relu_layer())
        .add(Reshape::new([2, 3, 4]))
        .add(Conv2dTranspose::new(2, 2).activation(tanh));
    check("generator", generator.build());
    let painter = Sequential::new([3])
        .add(Dense::new(5).activation(relu))
        .add(Dense::new(24))
        .add(Reshape::new([2, 3, 4]))
        .add(ActivationLayer::new(Activation::Sigmoid));
    check("painter", painter.build());
    let steps = Sequential::new([3])
        .add(Dense::new(12))
        .add(Reshape::new([4, 3]))
        .add(Conv1d::new(2, 2));
    check("steps_generator", steps.build());
    let autoencoder = Sequential::new([3, 4, 2])
        .add(Conv2d::new(3, 2))
        .add(Flatten)
        .add(Dense::new(4))
        .add(Dense::new(18))
        .add(Reshape::new([2, 3, 3]))
        .add(Conv2dTranspose::new(2, 2));
    check("autoencoder", autoencoder.build());
}

#[test]
fn slopes_of_rectifiers_are_read() {
    let of_channels = || PRelu::new().shared_axes([1, 2]);
    let rectified = |reshaped: PRelu, all: PRelu| {
        Sequential::new([4, 5, 2])
            .add(Conv2d::new(3, 2))
            .add(of_channels())
            .add(Flatten)
            .add(PRelu::new())
            .add(Dense::new(24))
            .add(Reshape::new([2, 3, 4]))
            .add(reshaped)
            .add(Conv2d::new(3, 2))
            .add(all)
    };
    let all = || PRelu::new().shared_axes([1, 2, 3]);
    check("rectified", rectified(of_channels(), all()).build());
    let file = "torch/orders/rectified.safetensors";
    let refused = load(&mut fresh(rectified(PRelu::new(), all())), file);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("`p_relu_2/alpha` needs f32[2,3,4], `6.weight` is f32[4]"),
        "{refused}"
    );
    let refused = load(&mut fresh(rectified(of_channels(), of_channels())), file);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("`p_relu_3/alpha` needs f32[3], `8.weight` is f32[1]"),
        "{refused}"
    );
}

#[test]
fn a_vector_that_becomes_images_is_read_beside() {
    let mut net = Network::new();
    let input = net.input([3]);
    let first = net.add(Dense::new(24).named("first"), &[input]);
    let vector = net.add(LayerNorm::new().epsilon(1e-5).named("norm"), &[first]);
    // Before it is known that the vector becomes images.
    let beside = net.add(Dense::new(2).named("beside"), &[vector]);
    let images = net.add(Reshape::new([3, 4, 2]), &[vector]);
    let images = net.add(Conv2d::new(3, 2).named("conv"), &[images]);
    let flat = net.add(Flatten, &[images]);
    let behind = net.add(Dense::new(2).named("behind"), &[flat]);
    let sum = net.add(Add, &[beside, behind]);
    check("conditioned", net.build(&[input], &[sum]));
}

#[test]
fn joined_and_added_branches_are_read() {
    let mut net = Network::new();
    let (image, vector) = (net.input([4, 5, 2]), net.input([3]));
    let wide = net.add(Conv2d::new(3, (1, 2)).named("wide"), &[image]);
    let wide = net.add(Flatten, &[wide]);
    let dense = net.add(Dense::new(5).named("vector"), &[vector]);
    let deep = net.add(Conv2d::new(4, 3).named("deep"), &[image]);
    let deep = net.add(Flatten, &[deep]);
    let all = net.add(Concatenate::new(), &[wide, dense, deep]);
    let hidden = net.add(Dense::new(6).activation(relu).named("hidden"), &[all]);
    let out = net.add(Dense::new(2).named("out"), &[hidden]);
    check("joined", net.build(&[image, vector], &[out]));

    let mut net = Network::new();
    let (image, vector) = (net.input([4, 5, 2]), net.input([3]));
    let conv = net.add(Conv2d::new(3, 2).named("conv"), &[image]);
    let flat = net.add(Flatten, &[conv]);
    let dense = net.add(Dense::new(36).activation(tanh).named("vector"), &[vector]);
    let sum = net.add(Add, &[flat, dense]);
    let norm = net.add(BatchNorm::new().epsilon(1e-5).named("norm"), &[sum]);
    let out = net.add(Dense::new(2).named("out"), &[norm]);
    check("summed", net.build(&[image, vector], &[out]));
}

#[test]
fn models_in_models_are_read() {
    let encoder = Sequential::new([4, 5, 2])
        .add(Conv2d::new(3, 2).named("conv"))
        .add(Flatten);
    let head = Sequential::new([36])
        .add(LayerNorm::new().epsilon(1e-5).named("norm"))
        .add(Dense::new(2).named("dense"));
    let model = Sequential::new([4, 5, 2])
        .add(LayerSpec::from(encoder.build().unwrap()).named("encoder"))
        .add(LayerSpec::from(head.build().unwrap()).named("head"));
    check("nested", model.build());
}

#[test]
fn images_of_each_step_are_read() {
    let mut net = Network::new();
    let frames = net.input([3, 3, 4, 2]);
    let images = net.add(
        TimeDistributed::new(Conv2d::new(3, 2)).named("conv"),
        &[frames],
    );
    let flat = net.add(TimeDistributed::new(Flatten), &[images]);
    let each = net.add(
        TimeDistributed::new(Dense::new(4).activation(relu)).named("dense"),
        &[flat],
    );
    let each = net.add(Flatten, &[each]);
    let both = net.add(Dense::new(2).named("both"), &[each]);
    let all = net.add(Flatten, &[images]);
    let all = net.add(Dense::new(2).named("all"), &[all]);
    let sum = net.add(Add, &[both, all]);
    check("frames", net.build(&[frames], &[sum]));
}

#[test]
fn channels_times_a_factor_of_each_are_read() {
    let mut net = Network::new();
    let image = net.input([4, 5, 2]);
    let conv = net.add(Conv2d::new(4, 2).named("conv"), &[image]);
    let mean = net.add(GlobalAveragePool2d::new(), &[conv]);
    let few = net.add(Dense::new(3).activation(relu).named("few"), &[mean]);
    let factors = net.add(Dense::new(4).activation(sigmoid).named("factors"), &[few]);
    let factors = net.add(Reshape::new([1, 1, 4]), &[factors]);
    let scaled = net.add(Multiply, &[conv, factors]);
    let flat = net.add(Flatten, &[scaled]);
    let out = net.add(Dense::new(2).named("out"), &[flat]);
    check("squeezed", net.build(&[image], &[out]));
}

/// A file as PyTorch writes it for a model of normalizations and dense layers, with values that count up.
fn pytorch_file(model: &Model) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for variable in model.variables() {
        let dims: Vec<usize> = variable.shape.dims.iter().rev().copied().collect();
        let name = variable.name.replace('/', ".");
        let name = name
            .replace("kernel", "weight")
            .replace("gamma", "weight")
            .replace("beta", "bias");
        let start = data.len();
        let values = (0..dims.iter().product()).map(|at: usize| (at as f32).to_le_bytes());
        data.extend(values.flatten());
        let info = json!({"dtype": "F32", "shape": dims, "data_offsets": [start, data.len()]});
        header.insert(name, info);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// What the refusal of a model says.
#[track_caller]
fn refusal(model: impl IntoModel) -> String {
    let mut saved = fresh(model);
    let file = pytorch_file(saved.model());
    let refused = saved.load_weights_from("torch", &file, LoadWeights::default());
    refused.unwrap_err().to_string()
}

#[test]
fn what_cannot_be_known_is_refused() {
    let stack = |dims: &[usize]| {
        Sequential::new(dims)
            .add(LayerNorm::new())
            .add(MaxPool1d::new(1))
            .add(Flatten)
            .add(Dense::new(2))
    };
    let refused = refusal(stack(&[4, 3]));
    assert!(
        refused.contains("layer `dense`")
            && refused.contains("`max_pool1d`")
            && refused.contains("permute"),
        "{refused}"
    );
    // A permutation, which PyTorch's model may have or not.
    let turned = Sequential::new([4, 3])
        .add(Permute::new([2, 1]))
        .add(Flatten)
        .add(Dense::new(2));
    assert!(refusal(turned).contains("layer `dense`"));
    // Images of a vector that is given in PyTorch's order.
    let given = Sequential::new([24])
        .add(Reshape::new([2, 3, 4]))
        .add(MaxPool2d::new(1))
        .add(Flatten)
        .add(Dense::new(2));
    assert!(refusal(given).contains("layer `max_pool2d`"));
    // A vector as it is given, and flattened images.
    let mut net = Network::new();
    let (image, vector) = (net.input([2, 3, 4]), net.input([24]));
    let flat = net.add(Flatten, &[image]);
    let sum = net.add(Add, &[flat, vector]);
    let out = net.add(Dense::new(2), &[sum]);
    assert!(refusal(net.build(&[image, vector], &[out])).contains("layer `add`"));
    // A layer of which nothing is known.
    let own = Sequential::new([2, 3, 4])
        .add(Flatten)
        .add(Reversed)
        .add(Dense::new(2));
    assert!(refusal(own).contains("layer `reversed`"));
}

#[test]
fn what_is_the_same_in_any_order_is_read() {
    let read = |model: Sequential| {
        let mut saved = fresh(model);
        let file = pytorch_file(saved.model());
        let report = saved.load_weights_from("torch", &file, LoadWeights::default());
        assert!(report.unwrap().is_complete());
        let value = saved.values().last().unwrap().f32s();
        assert_eq!(value, [0.0, 1.0]);
    };
    for dims in [[4, 1], [1, 3]] {
        read(
            Sequential::new(dims)
                .add(LayerNorm::new())
                .add(MaxPool1d::new(1))
                .add(Flatten)
                .add(Dense::new(2)),
        );
    }
    // Images without channels, and sequences as they are.
    read(Sequential::new([3, 4, 1]).add(Flatten).add(Dense::new(2)));
    read(Sequential::new([3, 4]).add(Flatten).add(Dense::new(2)));
    read(
        Sequential::new([12])
            .add(Reshape::new([3, 4, 1]))
            .add(MaxPool2d::new(1))
            .add(Flatten)
            .add(Dense::new(2)),
    );
    read(Sequential::new([4]).add(Reversed).add(Dense::new(2)));
}

/// A layer of a user.
#[derive(Debug)]
struct Reversed;

impl Layer for Reversed {
    fn kind(&self) -> &'static str {
        "reversed"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        inputs[0].reverse(&[1])
    }
}
