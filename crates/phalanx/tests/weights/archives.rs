//! Archives for Keras: what `make_archives.py` read in them, and what models of Keras answered that were loaded from them.
//!
//! `PHALANX_KERAS_ARCHIVES=FOLDER` has them written to a folder, with their inputs, for that script.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use phalanx::nn::{
    Activation, Cx, Dense, Model, MultiHeadAttention, Network, Sequential, TimeDistributed,
};
use phalanx::saved::SavedModel;
use phalanx_graph::{DType, HostTensor};
use phalanx_testkit::{Scratch, assert_close};
use serde_json::{Value, json};

use super::archive_models::{einsums, frames, signals, spectral, still, tied, unshared};
use super::oracle::{Batch, array, engine, formula_value, name, records, uniform};
use super::{LoadWeights, zeroed};

/// Models with every kind of layer that Keras has, and their inputs.
pub(super) fn models() -> Vec<(Model, Vec<HostTensor>)> {
    let models = [
        images(),
        channels(),
        pictures(),
        volumes(),
        words(),
        steps(),
        attended(),
        nested(),
        graph(),
        padded(),
        handed(),
        led(),
        categories(),
        grouped(),
        einsums(),
        frames(),
        spectral(),
        signals(),
        unshared(),
        still(),
        tied(),
    ];
    let inputs = |model: &Model| {
        let inputs = model.inputs().enumerate();
        inputs
            .map(|(number, (_, shape))| {
                let dims = [&[2], &shape.dims[..]].concat();
                let name = format!("input{number}");
                let values = uniform(&name, dims.iter().product());
                let values: Vec<f32> = match shape.dtype {
                    DType::F32 => values.map(|u| u as f32).collect(),
                    _ => values.map(|u| (2.5 * u + 2.5) as f32).collect(),
                };
                HostTensor::new(&dims[..], &values).convert(shape.dtype)
            })
            .collect()
    };
    models
        .into_iter()
        .map(|config| Model::from_config(&config).unwrap())
        .map(|model| (model.clone(), inputs(&model)))
        .collect()
}

fn images() -> Value {
    json!({"name": "images", "input": {"name": "pixels", "shape": [8, 8, 3], "dtype": "u8"}, "layers": [
        {"preprocess": {"mode": "torch"}},
        {"conv2d": {"filters": 4, "kernel_size": 3, "strides": 2, "padding": "same", "activation": "relu",
            "kernel_regularizer": {"l2": {"l2": 0.1}}, "use_bias": false, "name": "stem",
            "kernel_constraint": {"max_norm": {"max_value": 3, "axis": [0, 1, 2]}}}},
        {"zero_padding2d": {"padding": [[2, 0], [0, 2]]}},
        {"cropping2d": {"cropping": [[1, 0], [0, 1]]}},
        {"depthwise_conv2d": {"kernel_size": 3, "depth_multiplier": 2, "kernel_regularizer": {"l1": {"l1": 0.1}},
            "kernel_constraint": "non_neg"}},
        {"batch_norm": {"momentum": 0.9, "epsilon": 1e-2, "trainable": false}},
        {"activation": {"activation": {"leaky_relu": {"negative_slope": 0.3}}}},
        {"separable_conv2d": {"filters": 4, "kernel_size": 2, "padding": "same",
            "kernel_regularizer": {"l1_l2": {"l1": 0.1, "l2": 0.2}}, "activation": "gelu",
            "kernel_constraint": {"unit_norm": {"axis": -1}}}},
        {"activation": {"activation": {"general_relu": {"max_value": 2.0, "negative_slope": 0.5, "threshold": 0.1}},
            "activity_regularizer": {"l1": {"l1": 0.1}}}},
        {"separable_conv2d": {"filters": 4, "kernel_size": 1, "pointwise_regularizer": {"l2": {"l2": 0.1}},
            "depthwise_constraint": {"min_max_norm": {"rate": 0.5}}, "activation": {"general_relu": {"max_value": 1.0}}}},
        {"max_pool2d": {"pool_size": 2, "strides": 1}},
        {"conv2d_transpose": {"filters": 3, "kernel_size": 3, "strides": 2, "activation": {"elu": {"alpha": 0.5}}}},
        {"average_pool2d": {"pool_size": 2, "padding": "same"}},
        {"up_sampling2d": {"size": [1, 2], "interpolation": "bilinear"}},
        {"layer_norm": {"epsilon": 1e-2}},
        {"dropout": {"rate": 0.1, "noise_shape": [null, 1, 1, 1]}},
        {"global_average_pool2d": null},
        {"dense": {"units": 5, "activation": "mish"}},
        {"dropout": {"rate": 0.5}},
        {"dense": {"units": 3, "activation": "softmax", "name": "classes"}}
    ]})
}

fn channels() -> Value {
    json!({"name": "channels", "input": {"name": "pixels", "shape": [4, 4, 3], "dtype": "f32"}, "layers": [
        {"preprocess": {"mode": "tf"}},
        {"rescaling": {"scale": [1.0, 2.0, 3.0], "offset": 0.5}},
        {"normalization": {"mean": [0.5, -0.5, 1.0], "variance": [2.0, 0.5, 1.0]}},
        {"normalization": {"axis": [3, 1]}},
        {"normalization": {"axis": [], "invert": true}},
        {"time_distributed": {"layer": {"batch_norm": {"epsilon": 0.1}}, "trainable": false}},
        {"time_distributed": {"layer": {"bidirectional": {"layer": {"lstm": {"units": 3, "return_sequences": true}}}}, "name": "columns"}},
        {"conv2d": {"filters": 6, "kernel_size": 2, "groups": 3, "dilation_rate": 2}},
        {"group_norm": {"groups": 2, "epsilon": 1e-2, "beta_regularizer": {"l2": {"l2": 0.1}}}},
        {"unit_norm": {"axis": [1, 2]}},
        {"rms_norm": {"epsilon": 1e-3}},
        {"activation": {"activation": "hard_silu"}},
        {"group_norm": {"groups": -1, "center": false}},
        {"global_max_pool2d": {"keepdims": true}},
        {"flatten": null}
    ]})
}

fn pictures() -> Value {
    json!({"name": "pictures", "input": {"name": "photos", "shape": [7, 9, 3], "dtype": "f32"}, "layers": [
        {"resizing": {"height": 12, "width": 11, "interpolation": "bicubic", "pad_to_aspect_ratio": true, "fill_value": 2.5}},
        {"random_flip": {"mode": "horizontal"}},
        {"random_rotation": {"factor": [-0.1, 0.2], "fill_mode": "constant", "fill_value": 3.0}},
        {"random_zoom": {"height_factor": 0.2, "interpolation": "nearest"}},
        {"random_zoom": {"height_factor": [-0.3, -0.1], "width_factor": [0.0, 0.2]}},
        {"random_translation": {"height_factor": 0.1, "width_factor": [-0.2, 0.1], "fill_mode": "wrap"}},
        {"random_brightness": {"factor": 0.2, "value_range": [0.0, 1.0]}},
        {"random_contrast": {"factor": [0.1, 0.3]}},
        {"random_hue": {"factor": 0.2, "value_range": [0.0, 1.0]}},
        {"random_saturation": {"factor": 0.6}},
        {"random_color_degeneration": {"factor": [-0.1, 0.3]}},
        {"random_sharpness": {"factor": [0.3, 0.6]}},
        {"random_invert": {"factor": 0.2}},
        {"random_grayscale": {"factor": 0.2}},
        {"auto_contrast": {"value_range": [-1.0, 1.0]}},
        {"random_shear": {"x_factor": [0.0, 0.2], "y_factor": [0.1, 0.3], "fill_mode": "nearest"}},
        {"random_perspective": {"factor": [0.2, 0.5], "scale": 0.3, "interpolation": "nearest", "fill_value": 2.0}},
        {"random_gaussian_blur": {"kernel_size": [3, 5], "sigma": 0.5}},
        {"random_erasing": {"scale": 0.2, "fill_value": [1.0, 2.0, 3.0]}},
        {"random_erasing": {"factor": 0.5}},
        {"random_posterization": {"factor": 5}},
        {"solarization": {"addition_factor": [0.1, 0.2], "threshold_factor": 0.5}},
        {"random_color_jitter": {"brightness_factor": 0.1, "contrast_factor": 0.2, "saturation_factor": 0.3, "hue_factor": 0.4}},
        {"rand_augment": {"factor": 0.3, "num_ops": 1}},
        {"aug_mix": {"num_chains": 2, "chain_depth": 1, "factor": [0.1, 0.2], "alpha": 0.5, "all_ops": false, "interpolation": "nearest"}},
        {"random_elastic_transform": {"factor": 0.5, "scale": [0.2, 0.3], "fill_mode": "wrap"}},
        {"center_crop": {"height": 6, "width": 13}},
        {"random_crop": {"height": 6, "width": 13}},
        {"flatten": null},
        {"dense": {"units": 2}}
    ]})
}

fn volumes() -> Value {
    json!({"name": "volumes", "input": {"name": "scan", "shape": [5, 6, 4, 2], "dtype": "f32"}, "layers": [
        {"conv3d": {"filters": 4, "kernel_size": [2, 3, 1], "strides": [1, 2, 1], "padding": "same", "activation": "relu",
            "kernel_regularizer": {"l2": {"l2": 0.1}}}},
        {"conv3d": {"filters": 4, "kernel_size": 2, "dilation_rate": [2, 1, 1], "groups": 2, "use_bias": false}},
        {"max_pool3d": {"pool_size": [1, 2, 2], "strides": 1}},
        {"average_pool3d": {"pool_size": 2, "padding": "same"}},
        {"spatial_dropout3d": {"rate": 0.5, "trainable": false, "precision": "float32"}},
        {"time_distributed": {"layer": {"spatial_dropout2d": {"rate": 0.5}}}},
        {"zero_padding3d": {"padding": [[0, 1], [2, 0], [1, 1]]}},
        {"up_sampling3d": {"size": [1, 2, 3]}},
        {"conv3d_transpose": {"filters": 3, "kernel_size": [1, 2, 1], "padding": "same", "activation": "tanh"}},
        {"cropping3d": {"cropping": [[0, 1], [3, 1], [2, 1]]}},
        {"global_average_pool3d": {"keepdims": true}},
        {"p_relu": {"shared_axes": [1, 2, 3], "alpha_regularizer": {"l2": {"l2": 0.1}}}},
        {"layer_scale": {"init_values": 0.1}},
        {"stochastic_depth": {"drop_path_rate": 0.1}},
        {"global_max_pool3d": null},
        {"p_relu": null}
    ]})
}

fn words() -> Value {
    json!({"name": "words", "input": {"name": "ids", "shape": [6], "dtype": "i32"}, "layers": [
        {"embedding": {"input_dim": 5, "output_dim": 4, "mask_zero": true}},
        {"time_distributed": {"layer": {"dense": {"units": 4, "activation": {"leaky_relu": {"negative_slope": 0.1}}}}}},
        {"bidirectional": {"layer": {"gru": {"units": 3, "return_sequences": true, "reset_after": false}}, "merge_mode": "sum"}},
        {"lstm": {"units": 4, "return_sequences": true, "recurrent_activation": "hard_sigmoid"}},
        {"gru": {"units": 4, "return_sequences": true}},
        {"bidirectional": {"layer": {"lstm": {"units": 2, "return_sequences": true}}}},
        {"simple_rnn": {"units": 3, "activation": "relu"}}
    ]})
}

fn steps() -> Value {
    json!({"name": "steps", "input": {"name": "steps", "shape": [8, 4], "dtype": "f32"}, "layers": [
        {"masking": {"mask_value": 0.5}},
        {"conv1d": {"filters": 6, "kernel_size": 2, "padding": "causal", "dilation_rate": 2, "activation": "tanh"}},
        {"spatial_dropout1d": {"rate": 0.5}},
        {"time_distributed": {"layer": {"alpha_dropout": {"rate": 0.5}}}},
        {"gaussian_noise": {"stddev": 0.5}},
        {"gaussian_dropout": {"rate": 0.5, "trainable": false}},
        {"conv1d_transpose": {"filters": 6, "kernel_size": 3, "padding": "same"}},
        {"depthwise_conv1d": {"kernel_size": 2, "padding": "same", "kernel_regularizer": {"l2": {"l2": 0.1}}}},
        {"separable_conv1d": {"filters": 6, "kernel_size": 3, "padding": "same", "depth_multiplier": 2,
            "kernel_regularizer": {"l1": {"l1": 0.1}}, "depthwise_regularizer": {"l2": {"l2": 0.1}}}},
        {"activation": {"activation": "linear", "activity_regularizer": {"l1_l2": {"l1": 0.1, "l2": 0.2}}}},
        {"zero_padding1d": {"padding": [3, 1]}},
        {"cropping1d": {"cropping": [1, 3]}},
        {"up_sampling1d": {"size": 3}},
        {"max_pool1d": {"pool_size": 6}},
        {"average_pool1d": {"pool_size": 2, "strides": 1, "padding": "same"}},
        {"permute": {"dims": [2, 1]}},
        {"reshape": {"target_shape": [4, -1]}},
        {"global_max_pool1d": null},
        {"repeat_vector": {"n": 3}},
        {"gru": {"units": 4, "return_sequences": true, "go_backwards": true}},
        {"global_average_pool1d": null}
    ]})
}

/// A layer that Keras calls with several arguments, which no layer of its stacks is.
fn attended() -> Value {
    json!({"name": "attended", "input": {"name": "steps", "shape": [5, 4], "dtype": "f32"}, "layers": [
        {"multi_head_attention": {"num_heads": 2, "key_dim": 3}},
        {"attention": {"use_scale": true, "dropout": 0.5}},
        {"additive_attention": {"use_causal_mask": true}},
        {"flatten": null}
    ]})
}

/// Models in a stack, one a stack for Keras and one not.
fn nested() -> Value {
    let steps = json!({"name": "steps", "shape": [5, 4], "dtype": "f32"});
    json!({"name": "nested", "input": steps, "layers": [
        {"model": {"name": "attending", "input": steps, "layers": [
            {"multi_head_attention": {"num_heads": 2, "key_dim": 3}}, {"dense": {"units": 3}}]}},
        {"model": {"name": "plain", "input": {"name": "steps", "shape": [5, 3], "dtype": "f32"}, "layers": [{"dense": {"units": 2}}]}},
        {"flatten": null}
    ]})
}

/// Two inputs, three outputs, a layer called twice, models in the model, attention with all its arguments, first states.
fn graph() -> Value {
    json!({"name": "graph",
        "inputs": [
            {"name": "a", "shape": [5, 4], "dtype": "f32"},
            {"name": "b", "shape": [5, 4], "dtype": "f32"},
            {"name": "mask", "shape": [5, 5], "dtype": "i32"}
        ],
        "layers": [
            {"dense": {"units": 4, "name": "shared"}},
            {"multi_head_attention": {"num_heads": 2, "key_dim": 3, "value_dim": 2, "use_causal_mask": true, "name": "among"}},
            {"multi_head_attention": {"num_heads": 1, "key_dim": 2, "output_shape": 3, "name": "within"}},
            {"model": {"name": "pair", "inputs": [
                {"name": "x", "shape": [5, 4], "dtype": "f32"}, {"name": "y", "shape": [5, 4], "dtype": "f32"}],
                "layers": [{"subtract": {"name": "subtract"}}, {"multiply": {"name": "multiply"}}, {"average": {"name": "average"}}],
                "calls": [{"layer": "subtract", "inputs": ["x", "y"]}, {"layer": "multiply", "inputs": ["x", "y"]},
                    {"layer": "average", "inputs": ["subtract", "multiply"]}],
                "outputs": ["average", "subtract"]}},
            {"model": {"name": "tower", "input": {"name": "input", "shape": [5, 4], "dtype": "f32"},
                "layers": [{"dense": {"units": 3}}, {"layer_norm": null}]}},
            {"maximum": {"name": "maximum"}}, {"minimum": {"name": "minimum"}}, {"add": {"name": "add"}}, {"scaled_add": {"scale": 0.5, "name": "scaled_add"}}, {"concatenate": {"name": "concatenate"}},
            {"attention": {"use_scale": true, "score_mode": "concat", "use_causal_mask": true, "name": "scored"}},
            {"additive_attention": {"use_scale": false, "name": "added"}},
            {"global_average_pool1d": {"name": "mean"}},
            {"global_max_pool1d": {"name": "most"}},
            {"dot": {"normalize": true, "name": "dot"}},
            {"global_average_pool1d": {"name": "start"}},
            {"lstm": {"units": 4, "name": "memory"}},
            {"gru": {"units": 4, "name": "memories"}}
        ],
        "calls": [
            {"layer": "shared", "inputs": ["a"]},
            {"layer": "shared", "inputs": ["b"]},
            {"layer": "among", "inputs": ["shared", "shared:1", "b", "mask"]},
            {"layer": "within", "inputs": ["among"]},
            {"layer": "pair", "inputs": ["shared:1", "among"]},
            {"layer": "tower", "inputs": ["pair:0.1"]},
            {"layer": "maximum", "inputs": ["within", "tower"]},
            {"layer": "minimum", "inputs": ["within", "tower"]},
            {"layer": "add", "inputs": ["maximum", "minimum", "tower"]},
            {"layer": "scaled_add", "inputs": ["add", "within"]},
            {"layer": "scored", "inputs": ["scaled_add", "pair", "tower"]},
            {"layer": "added", "inputs": ["within", "tower"]},
            {"layer": "concatenate", "inputs": ["scored", "added"]},
            {"layer": "mean", "inputs": ["concatenate"]},
            {"layer": "most", "inputs": ["concatenate"]},
            {"layer": "dot", "inputs": ["mean", "most"]},
            {"layer": "start", "inputs": ["b"]},
            {"layer": "memory", "inputs": ["a", "start", "start"]},
            {"layer": "memories", "inputs": ["b", "memory"]},
            {"layer": "pair", "inputs": ["a", "among"]}
        ],
        "outputs": ["dot", "concatenate", "memories", "pair:1", "pair:0.1"]})
}

/// Branches alike but for masks, whose operations Keras makes again: they put layers deeper, and must not have the names of layers.
fn padded() -> Value {
    json!({"name": "padded",
        "inputs": [{"name": "ids", "shape": [5], "dtype": "i32"}, {"name": "steps", "shape": [5, 4], "dtype": "f32"}],
        "layers": [
            {"embedding": {"input_dim": 5, "output_dim": 4, "mask_zero": true, "name": "embedding"}},
            {"masking": {"name": "not_equal"}}, {"concatenate": {"name": "concatenate"}}, {"concatenate": {"name": "concatenate_layer"}},
            {"dense": {"units": 4, "name": "dense"}}, {"dense": {"units": 4, "name": "dense_1"}}, {"dense": {"units": 4, "name": "dense_2"}},
            {"dropout": {"rate": 0.5, "name": "first"}}, {"dropout": {"rate": 0.5, "name": "second"}}, {"dropout": {"rate": 0.5, "name": "third"}},
            {"gru": {"units": 3, "name": "gru"}}, {"gru": {"units": 3, "name": "gru_1"}}
        ],
        "calls": [
            {"layer": "embedding", "inputs": ["ids"]},
            {"layer": "dense", "inputs": ["embedding"]},
            {"layer": "dense_1", "inputs": ["steps"]},
            {"layer": "not_equal", "inputs": ["dense_1"]},
            {"layer": "concatenate", "inputs": ["dense", "not_equal"]},
            {"layer": "gru", "inputs": ["concatenate"]},
            {"layer": "dense_2", "inputs": ["steps"]},
            {"layer": "first", "inputs": ["dense_2"]},
            {"layer": "second", "inputs": ["first"]},
            {"layer": "third", "inputs": ["second"]},
            {"layer": "gru_1", "inputs": ["third"]},
            {"layer": "concatenate_layer", "inputs": ["gru_1", "gru"]}
        ],
        "outputs": ["concatenate_layer"]})
}

/// States that recurrent layers give.
fn handed() -> Value {
    json!({"name": "handed",
        "inputs": [{"name": "ids", "shape": [5], "dtype": "i32"}, {"name": "steps", "shape": [4, 3], "dtype": "f32"}],
        "layers": [
            {"embedding": {"input_dim": 5, "output_dim": 4, "mask_zero": true, "name": "embedding"}},
            {"lstm": {"units": 3, "return_sequences": true, "return_state": true, "name": "encoder"}},
            {"lstm": {"units": 3, "return_state": true, "name": "decoder"}},
            {"bidirectional": {"layer": {"gru": {"units": 2, "return_state": true}}, "name": "both"}},
            {"concatenate": {"name": "concatenate"}}
        ],
        "calls": [
            {"layer": "embedding", "inputs": ["ids"]},
            {"layer": "encoder", "inputs": ["embedding"]},
            {"layer": "decoder", "inputs": ["steps", "encoder:0.1", "encoder:0.2"]},
            {"layer": "both", "inputs": ["encoder"]},
            {"layer": "concatenate", "inputs": ["both", "both:0.1", "both:0.2", "decoder:0.2"]}
        ],
        "outputs": ["concatenate", "decoder:0.1"]})
}

/// First states of a layer in both directions.
fn led() -> Value {
    json!({"name": "led",
        "inputs": [{"name": "steps", "shape": [4, 3], "dtype": "f32"}, {"name": "others", "shape": [5, 2], "dtype": "f32"}],
        "layers": [
            {"bidirectional": {"layer": {"lstm": {"units": 2, "return_state": true}}, "name": "both"}},
            {"bidirectional": {"layer": {"gru": {"units": 2}}, "merge_mode": "ave", "name": "again"}},
            {"concatenate": {"name": "concatenate"}}
        ],
        "calls": [
            {"layer": "both", "inputs": ["steps"]},
            {"layer": "again", "inputs": ["others", "both:0.1", "both:0.4"]},
            {"layer": "concatenate", "inputs": ["both", "again"]}
        ],
        "outputs": ["concatenate"]})
}

/// Bins, numbers and vectors of categories.
fn categories() -> Value {
    json!({"name": "categories",
        "inputs": [{"name": "amounts", "shape": [3], "dtype": "f32"}, {"name": "ids", "shape": [4], "dtype": "i32"}],
        "layers": [
            {"discretization": {"bin_boundaries": [-0.5, 0.0, 0.5], "name": "bins"}},
            {"embedding": {"input_dim": 4, "output_dim": 2, "name": "table"}},
            {"flatten": {"name": "flat"}},
            {"discretization": {"bin_boundaries": [0.25], "output_mode": "multi_hot", "name": "sides"}},
            {"category_encoding": {"num_tokens": 5, "output_mode": "count", "name": "counts"}},
            {"integer_lookup": {"vocabulary": [-1, 3, 4], "num_oov_indices": 2, "mask_token": 2, "name": "numbers"}},
            {"embedding": {"input_dim": 6, "output_dim": 2, "name": "users"}},
            {"flatten": {"name": "flat_users"}},
            {"hashing": {"num_bins": 6, "mask_value": 3, "output_mode": "multi_hot", "name": "hashes"}},
            {"concatenate": {"name": "all"}},
            {"dense": {"units": 2, "name": "dense"}}
        ],
        "calls": [
            {"layer": "bins", "inputs": ["amounts"]},
            {"layer": "table", "inputs": ["bins"]},
            {"layer": "flat", "inputs": ["table"]},
            {"layer": "sides", "inputs": ["amounts"]},
            {"layer": "counts", "inputs": ["ids"]},
            {"layer": "numbers", "inputs": ["ids"]},
            {"layer": "users", "inputs": ["numbers"]},
            {"layer": "flat_users", "inputs": ["users"]},
            {"layer": "hashes", "inputs": ["ids"]},
            {"layer": "all", "inputs": ["flat", "sides", "counts", "flat_users", "hashes"]},
            {"layer": "dense", "inputs": ["all"]}
        ],
        "outputs": ["dense"]})
}

/// Heads that share heads of keys and values, with all arguments.
fn grouped() -> Value {
    json!({"name": "grouped",
        "inputs": [
            {"name": "ids", "shape": [5], "dtype": "i32"},
            {"name": "steps", "shape": [4, 3], "dtype": "f32"},
            {"name": "mask", "shape": [4, 5], "dtype": "i32"}
        ],
        "layers": [
            {"embedding": {"input_dim": 5, "output_dim": 3, "mask_zero": true, "name": "embedding"}},
            {"group_query_attention": {"head_dim": 2, "num_query_heads": 4, "num_key_value_heads": 2, "use_causal_mask": true,
                "kernel_regularizer": {"l2": {"l2": 0.1}}, "name": "within"}},
            {"group_query_attention": {"head_dim": 3, "num_query_heads": 2, "num_key_value_heads": 1, "use_bias": false,
                "dropout": 0.5, "name": "between"}},
            {"global_average_pool1d": {"name": "mean"}}
        ],
        "calls": [
            {"layer": "embedding", "inputs": ["ids"]},
            {"layer": "within", "inputs": ["embedding"]},
            {"layer": "between", "inputs": ["steps", "within", "embedding", "mask"]},
            {"layer": "mean", "inputs": ["within"]}
        ],
        "outputs": ["between", "mean"]})
}

/// The model with values by the formula.
pub(super) fn filled(model: &Model) -> SavedModel {
    let value = |variable: &phalanx::nn::Variable| {
        let parts: Vec<&str> = variable.name.rsplitn(3, '/').collect();
        let value = formula_value(&format!("{}/{}", parts[1], parts[0]), &variable.shape.dims);
        value.convert(variable.shape.dtype)
    };
    let values = model.variables().iter().map(value).collect();
    SavedModel::new(model.clone(), values).unwrap()
}

fn config(archive: &Path) -> Value {
    let mut archive = zip::ZipArchive::new(File::open(archive).unwrap()).unwrap();
    let mut text = String::new();
    let mut member = archive.by_name("config.json").unwrap();
    member.read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn values_as_json(value: &HostTensor) -> Value {
    json!({"shape": value.dims(), "dtype": value.dtype().name(), "data": value.to_f64()})
}

#[test]
fn keras_answers_as_we_do_from_archives() {
    let folder = Scratch::temporary("archives");
    let kept = std::env::var_os("PHALANX_KERAS_ARCHIVES");
    let folder = kept.as_ref().map_or(&*folder, |kept| Path::new(kept));
    let golden = if kept.is_some() {
        Vec::new()
    } else {
        records("archives.json")
    };
    let mut case = Batch::default();
    for (model, inputs) in models() {
        let saved = filled(&model);
        let path = folder.join(format!("{}.keras", model.name()));
        saved.save_keras(&path).unwrap();
        if kept.is_some() {
            let inputs: Vec<Value> = inputs.iter().map(values_as_json).collect();
            let text = Value::from(inputs).to_string();
            fs::write(path.with_extension("json"), text).unwrap();
            continue;
        }
        let record = golden.iter().find(|record| name(record) == model.name());
        assert_eq!(config(&path), record.unwrap()["config"], "{}", model.name());
        let trained = model.variables().iter().filter(|spec| spec.trainable);
        assert_eq!(
            record.unwrap()["trained"],
            trained.count(),
            "{}",
            model.name()
        );
        let mut again = zeroed(&model);
        again.load_weights(&path, LoadWeights::default()).unwrap();
        assert_eq!(again.values(), saved.values(), "{}", model.name());
        let inputs: Vec<_> = inputs.into_iter().map(|x| case.input(x)).collect();
        let values = saved.values().iter().cloned();
        let values: Vec<_> = values.map(|value| case.shared(value)).collect();
        let outputs = model.call(&mut Cx::new(&case.graph, &model, &values), &inputs);
        outputs.iter().for_each(|output| case.output(output));
    }
    let mut outputs = case.run(&engine()).into_iter();
    for record in &golden {
        for expected in record["outputs"].as_array().unwrap() {
            let (got, expected) = (outputs.next().unwrap(), array(expected).unwrap());
            assert_eq!(got.dims(), expected.dims(), "{}", name(record));
            assert_close(name(record), &got.to_f64(), &expected.to_f64(), 1e-5);
        }
    }
}

/// In prediction it answers with the whole image.
#[test]
fn a_random_crop_of_other_dims_is_not_written_for_keras() {
    let folder = Scratch::temporary("no-crop");
    let cut = phalanx::nn::RandomCrop::new(2, 1);
    let model = Sequential::new([2, 2, 3]).add(cut).build().unwrap();
    let error = filled(&model).save_keras(folder.join("m.keras"));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("`RandomCrop` cuts nothing out in prediction"),
        "{error}"
    );
}

/// Nor are others with which Keras fails.
#[test]
fn layers_with_which_keras_makes_no_model_are_not_written() {
    let folder = Scratch::temporary("no-model");
    let refused = |layer: phalanx::nn::LayerSpec| {
        let model = Sequential::new([2, 2, 3]).add(layer).build().unwrap();
        let error = filled(&model).save_keras(folder.join("m.keras"));
        error.unwrap_err().to_string()
    };
    let equal = refused(phalanx::nn::Equalization::new([0.0, 255.0]).into());
    assert!(
        equal.contains("Keras makes no model with its `Equalization`"),
        "{equal}"
    );
    let back = refused(phalanx::nn::RandomShear::new([-0.1, 0.3], 0.0).into());
    assert!(
        back.contains("Keras' `RandomShear` takes no two factors of which one is below 0"),
        "{back}"
    );
}

#[test]
fn what_keras_lacks_is_named() {
    let folder = Scratch::temporary("no-archives");
    let refused = |layers: Sequential| {
        let model = layers.build().unwrap();
        let error = filled(&model)
            .save_keras(folder.join("m.keras"))
            .unwrap_err();
        error.to_string()
    };
    let images = Sequential::new([2, 2, 3]);
    let error = refused(images.add(phalanx::nn::Preprocess::caffe()));
    assert!(
        error.contains("layer `preprocess` (preprocess): Keras has no layer that turns"),
        "{error}"
    );
    let vectors = Sequential::new([4]);
    let error = refused(vectors.add(Dense::new(2).activation(Activation::GeluTanh)));
    assert!(
        error.contains("no name for its activation `gelu_tanh`; write the weights alone"),
        "{error}"
    );
    let steps = Sequential::new([4, 3]);
    let error = refused(steps.add(phalanx::nn::PositionEmbedding::new(4)));
    assert!(
        error.contains("(position_embedding): Keras has no such layer"),
        "{error}"
    );
    let turned = phalanx::nn::Lstm::new(2).go_backwards(true);
    let steps = Sequential::new([4, 3]);
    let error = refused(steps.add(phalanx::nn::Bidirectional::new(turned)));
    assert!(error.contains("first one goes backwards"), "{error}");
    let sparse = phalanx::nn::Conv1d::new(2, 2).strides(2).dilation(2);
    let error = refused(Sequential::new([9, 3]).add(sparse));
    assert!(
        error.contains("layer `conv1d` (conv1d): Keras has no convolution with both strides"),
        "{error}"
    );
    let mut network = Network::new();
    let inputs = [(); 3].map(|()| network.input([4]));
    let less = network.add(phalanx::nn::Subtract, &inputs);
    let model = network.build(&inputs, &[less]).unwrap();
    let error = filled(&model).save_keras(folder.join("m.keras"));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("(subtract): Keras' `Subtract` takes two"),
        "{error}"
    );
    let images = Sequential::new([2, 4, 3]);
    let error = refused(images.add(TimeDistributed::new(MultiHeadAttention::new(1, 2))));
    assert!(
        error.contains("Keras' attention has several inputs"),
        "{error}"
    );
    assert_eq!(fs::read_dir(&*folder).unwrap().count(), 0);
    let masked = Sequential::new([4, 3]).add(MultiHeadAttention::new(1, 2));
    filled(&masked.build().unwrap())
        .save_keras(folder.join("m.keras"))
        .unwrap();
}
