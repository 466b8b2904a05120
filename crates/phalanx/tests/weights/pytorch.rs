//! Files of PyTorch and torchvision.

use crate::oracle::uniform;
use phalanx::import::{LoadReport, LoadWeights, PairedBy};
use phalanx::models::{MobileNetV2, ResNet50, TransformerEncoder};
use phalanx::nn::{
    AveragePool3d, BatchNorm, Conv2d, Conv3d, Dense, DepthwiseConv2d, EinsumDense,
    GlobalAveragePool2d, GlobalAveragePool3d, IntoModel, Layer, LayerNorm, Lstm, MaxPool3d,
    Sequential, ZeroPadding2d, relu,
};
use phalanx_graph::HostTensor;
use phalanx_testkit::assert_close;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::{answer, fresh, load, read_json, relu_layer};

#[test]
fn a_stack_of_pytorch_is_read() {
    let model = Sequential::new([8, 8, 2])
        .add(ZeroPadding2d::new(1))
        .add(Conv2d::new(6, 3).strides(2))
        .add(BatchNorm::new().epsilon(1e-5))
        .add(relu_layer())
        .add(
            DepthwiseConv2d::new(3)
                .depth_multiplier(2)
                .use_bias(false)
                .activation(relu),
        )
        .add(GlobalAveragePool2d::new())
        .add(Dense::new(4).activation(relu))
        .add(LayerNorm::new().epsilon(1e-5))
        .add(Dense::new(3));
    let mut saved = fresh(model);
    let report = load(&mut saved, "torch/stack.safetensors").unwrap();
    assert_eq!(
        report.to_string(),
        "13 of 13 variables have values, by order"
    );
    let golden = read_json("torch/stack.json");
    let numbers = |value: &Value| -> Vec<f64> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_f64().unwrap())
            .collect()
    };
    // From [batch, channels, height, width].
    let theirs = numbers(&golden["input"]);
    let place = |i: usize| ((i / 128 * 2 + i % 2) * 8 + i / 16 % 8) * 8 + i / 2 % 8;
    let x: Vec<f32> = (0..theirs.len()).map(|i| theirs[place(i)] as f32).collect();
    let got = answer(&saved, HostTensor::new([2, 8, 8, 2], &x));
    assert_close("stack", &got, &numbers(&golden["output"]), 1e-5);
}

#[test]
fn a_stack_of_volumes_of_pytorch_is_read() {
    let model = Sequential::new([5, 6, 7, 2])
        .add(Conv3d::new(6, (1, 2, 3)))
        .add(BatchNorm::new().epsilon(1e-5))
        .add(relu_layer())
        .add(MaxPool3d::new((1, 2, 1)))
        .add(
            Conv3d::new(4, (2, 1, 2))
                .strides((2, 1, 1))
                .groups(2)
                .use_bias(false),
        )
        .add(AveragePool3d::new(2).strides(1))
        .add(GlobalAveragePool3d::new())
        .add(Dense::new(3));
    let mut saved = fresh(model);
    let report = load(&mut saved, "torch/volumes.safetensors").unwrap();
    assert_eq!(report.to_string(), "9 of 9 variables have values, by order");
    let golden = read_json("torch/volumes.json");
    let numbers =
        |field: &str| -> Vec<f64> { serde_json::from_value(golden[field].clone()).unwrap() };
    // From [batch, channels, places].
    let (theirs, places) = (numbers("input"), 5 * 6 * 7);
    let place = |i: usize| (i / (2 * places) * 2 + i % 2) * places + i / 2 % places;
    let x: Vec<f32> = (0..theirs.len()).map(|i| theirs[place(i)] as f32).collect();
    let got = answer(&saved, HostTensor::new([2, 5, 6, 7, 2], &x));
    assert_close("volumes", &got, &numbers("output"), 1e-5);
}

#[test]
fn a_transformer_of_pytorch_is_read() {
    let golden = read_json("torch/transformer.json");
    let numbers =
        |field: &str| -> Vec<f64> { serde_json::from_value(golden[field].clone()).unwrap() };
    let tokens: Vec<i32> = numbers("input").iter().map(|&token| token as i32).collect();
    for (epsilon, output) in [(1e-3, "output"), (1e-5, "output_of_default_epsilon")] {
        let settings = TransformerEncoder {
            vocabulary: 11,
            length: 5,
            layers: 2,
            width: 8,
            heads: 2,
            feed_forward: 12,
            epsilon,
            ..TransformerEncoder::default()
        };
        let mut saved = fresh(settings.build());
        let report = load(&mut saved, "torch/transformer.safetensors").unwrap();
        assert!(report.unexpected.is_empty(), "{report}");
        assert_eq!(report.to_string(), "38 of 38 variables have values, by map");
        let got = answer(&saved, HostTensor::new([2, 5], &tokens));
        assert_close(output, &got, &numbers(output), 1e-5);
    }
}

/// A file of torchvision's names and shapes, with values by the formula of `make_torch.py`.
fn torchvision_file(model: &str) -> Vec<u8> {
    let names = read_json("torch/names.json");
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, dims) in names[model].as_object().unwrap() {
        let dims: Vec<usize> = dims
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_u64().unwrap() as usize)
            .collect();
        let start = data.len();
        let fan_in: usize = dims.iter().skip(1).product();
        let scaled = |u: f64| match () {
            () if dims.len() > 1 => u * (6.0 / fan_in as f64).sqrt(),
            () if name.ends_with("running_var") => 1.0 + 0.5 * u,
            () if name.ends_with("weight") => 0.7 + 0.2 * u,
            () => 0.1 * u,
        };
        for u in uniform(name, dims.iter().product()) {
            data.extend_from_slice(&(scaled(u) as f32).to_le_bytes());
        }
        let info = json!({"dtype": "F32", "shape": dims, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), info);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// Loads torchvision's weights and answers as torchvision does.
fn check_torchvision(name: &str, model: impl IntoModel) {
    let mut saved = fresh(model);
    let bytes = torchvision_file(name);
    let report = saved
        .load_weights_from(name, &bytes, LoadWeights::default())
        .unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!((report.unexpected.len(), report.paired), (0, PairedBy::Map));
    let x: Vec<f64> = uniform("image", 3 * 64 * 64).collect();
    let x: Vec<f32> = (0..x.len())
        .map(|i| x[i % 3 * 64 * 64 + i / 3] as f32)
        .collect();
    let got = answer(&saved, HostTensor::new([1, 64, 64, 3], &x));
    let golden = read_json("torch/outputs.json");
    let expected: Vec<f64> = golden[name]
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect();
    assert_close(name, &got[..expected.len()], &expected, 1e-4);
}

#[test]
fn mobilenet_v2_of_torchvision_is_read() {
    check_torchvision(
        "mobilenet_v2",
        MobileNetV2::torchvision().input([64, 64, 3]),
    );
}

#[test]
fn resnet50_of_torchvision_is_read() {
    check_torchvision("resnet50", ResNet50::torchvision().input([64, 64, 3]));
}

/// A file of these tensors, all of zeros.
fn zeros(tensors: &[(&str, Dtype, &[usize])]) -> Vec<u8> {
    let bytes = [0; 4096];
    let views = tensors.iter().map(|&(name, dtype, dims)| {
        let len = dims.iter().product::<usize>() * dtype.bitsize() / 8;
        (
            name,
            TensorView::new(dtype, dims.to_vec(), &bytes[..len]).unwrap(),
        )
    });
    safetensors::serialize(views, None).unwrap()
}

/// The report, without an error only where all was well.
fn loaded(model: Sequential, tensors: &[(&str, Dtype, &[usize])]) -> Result<LoadReport, String> {
    let report = fresh(model).load_weights_from("torch", &zeros(tensors), LoadWeights::default());
    report.map_err(|error| error.to_string())
}

/// Without them the model would answer otherwise than PyTorch's.
#[test]
fn tensors_that_layers_leave_are_refused() {
    let kernel = ("fc.weight", Dtype::F32, &[3, 4][..]);
    let bias = ("fc.bias", Dtype::F32, &[3][..]);
    let fc = || Dense::new(3).use_bias(false).named("fc");
    let refused = loaded(Sequential::new([4]).add(fc()), &[kernel, bias]).unwrap_err();
    assert!(
        refused.contains("1 not in the model: `fc.bias`"),
        "{refused}"
    );
    // Layers of other names may be those of a longer model; by numbers alone they are the rest of this one.
    let head = ("head.weight", Dtype::F32, &[2, 3][..]);
    let report = loaded(Sequential::new([4]).add(fc()), &[kernel, head]).unwrap();
    assert_eq!(report.unexpected, ["head.weight"]);
    let stack = ["0.weight", "2.weight", "4.weight"].map(|name| (name, Dtype::F32, &[4, 4][..]));
    let dense = || Dense::new(4).use_bias(false);
    let two = || Sequential::new([4]).add(dense()).add(dense());
    let refused = loaded(two(), &stack).unwrap_err();
    assert!(
        refused.contains("1 not in the model: `4.weight`"),
        "{refused}"
    );
    assert!(loaded(two().add(dense()), &stack).is_ok());
    // Two layers of one module.
    let parts = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"];
    let names = parts.iter().flat_map(|part| {
        [
            format!("lstm.{part}"),
            format!("lstm.{}", part.replace("l0", "l1")),
        ]
    });
    let names: Vec<String> = names.collect();
    let dims = |name: &str| {
        if name.contains("bias") {
            &[8][..]
        } else {
            &[8, 2][..]
        }
    };
    let module: Vec<_> = names
        .iter()
        .map(|name| (&**name, Dtype::F32, dims(name)))
        .collect();
    let refused = loaded(Sequential::new([3, 2]).add(Lstm::new(2)), &module).unwrap_err();
    assert!(
        refused.contains("4 not in the model: `lstm.bias_ih_l1`"),
        "{refused}"
    );
}

/// A square one would be taken as it lies, and PyTorch's is turned.
#[test]
fn kernels_whose_layout_in_pytorch_is_not_known_find_no_value() {
    let equation = EinsumDense::new("abc,cd->abd", [None, Some(4)]).named("proj");
    let model = Sequential::new([2, 4]).add(equation);
    let refused = loaded(model, &[("proj.weight", Dtype::F32, &[4, 4])]).unwrap_err();
    assert!(
        refused.contains("1 not in the model: `proj.weight`"),
        "{refused}"
    );
}

#[test]
fn buffers_of_truth_values_are_in_nobodys_way() {
    let model = Sequential::new([4]).add(Dense::new(3).use_bias(false).named("fc"));
    let kernel = ("fc.weight", Dtype::F32, &[3, 4][..]);
    let report = loaded(model, &[kernel, ("mask", Dtype::BOOL, &[2, 2])]).unwrap();
    assert_eq!(report.unexpected, ["mask"]);
}
