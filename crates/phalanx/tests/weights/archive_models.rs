//! Models with layers of some families, for the archives.

use phalanx::nn::Model;
use phalanx::saved::SavedModel;
use phalanx_testkit::Scratch;
use serde_json::{Value, json};

use super::archives::filled;

/// Dense layers by equations.
pub(super) fn einsums() -> Value {
    json!({"name": "einsums", "input": {"name": "steps", "shape": [5, 4], "dtype": "f32"}, "layers": [
        {"einsum_dense": {"equation": "abc,cde->abde", "output_shape": [null, 2, 3], "bias_axes": "d", "activation": "tanh",
            "kernel_regularizer": {"l2": {"l2": 0.1}}, "bias_constraint": "non_neg"}},
        {"einsum_dense": {"equation": "...de,ed->...d", "output_shape": 2, "activity_regularizer": {"l1": {"l1": 0.1}}}},
        {"einsum_dense": {"equation": "ab...,bc->ac...", "output_shape": [3], "bias_axes": "c", "trainable": false}},
        {"time_distributed": {"layer": {"einsum_dense": {"equation": "ab,bc->ac", "output_shape": [2]}}}},
        {"flatten": null}
    ]})
}

/// Recurrent layers of convolutions.
pub(super) fn frames() -> Value {
    json!({"name": "frames", "input": {"name": "film", "shape": [3, 6, 5, 2], "dtype": "f32"}, "layers": [
        {"conv_lstm2d": {"filters": 3, "kernel_size": [2, 3], "padding": "same", "return_sequences": true, "recurrent_activation": "hard_sigmoid",
            "recurrent_regularizer": {"l2": {"l2": 0.1}}, "kernel_constraint": {"max_norm": {"max_value": 3}}, "dropout": 0.5}},
        {"bidirectional": {"layer": {"conv_lstm2d": {"filters": 2, "kernel_size": 3, "strides": [1, 2], "padding": "same", "return_sequences": true}}}},
        {"reshape": {"target_shape": [3, 18, 4]}},
        {"conv_lstm1d": {"filters": 2, "kernel_size": 3, "return_sequences": true, "go_backwards": true, "dilation_rate": 2}},
        {"reshape": {"target_shape": [3, 7, 2, 2, 1]}},
        {"conv_lstm3d": {"filters": 2, "kernel_size": [2, 1, 2], "use_bias": false, "unit_forget_bias": false, "recurrent_dropout": 0.5}},
        {"flatten": null}
    ]})
}

/// Kernels that are divided by their largest singular values.
pub(super) fn spectral() -> Value {
    json!({"name": "spectral", "input": {"name": "pixels", "shape": [6, 5, 2], "dtype": "f32"}, "layers": [
        {"spectral_norm": {"layer": {"conv2d": {"filters": 3, "kernel_size": 2, "activation": "relu", "kernel_regularizer": {"l2": {"l2": 0.1}}}}}},
        {"spectral_norm": {"layer": {"conv2d_transpose": {"filters": 2, "kernel_size": 2, "use_bias": false}}, "power_iterations": 3, "trainable": false}},
        {"spectral_norm": {"layer": {"depthwise_conv2d": {"kernel_size": 2}}}},
        {"global_average_pool2d": null},
        {"spectral_norm": {"layer": {"dense": {"units": 2}}, "name": "classes"}}
    ]})
}

/// A table that goes both ways, activations, penalties and sizes of transposed convolutions.
pub(super) fn tied() -> Value {
    json!({"name": "tied",
        "inputs": [{"name": "words", "shape": [5], "dtype": "i32"}],
        "layers": [
            {"reversible_embedding": {"input_dim": 6, "output_dim": 4, "logit_soft_cap": 2.0, "mask_zero": true, "name": "table"}},
            {"reversible_embedding": {"input_dim": 3, "output_dim": 4, "tie_weights": false, "name": "apart"}},
            {"dense": {"units": 4, "activation": "celu", "kernel_regularizer": {"orthogonal": {"factor": 0.1, "mode": "columns"}}, "name": "dense"}},
            {"dense": {"units": 3, "activation": "soft_shrink", "name": "shares"}},
            {"conv1d_transpose": {"filters": 2, "kernel_size": 3, "strides": 2, "output_padding": 1, "padding": "same", "activation": "tanh_shrink",
                "name": "longer"}}
        ],
        "calls": [
            {"layer": "table", "inputs": ["words"]},
            {"layer": "dense", "inputs": ["table"]},
            {"layer": "table", "inputs": ["dense"]},
            {"layer": "apart", "inputs": ["dense"]},
            {"layer": "shares", "inputs": ["apart"]},
            {"layer": "longer", "inputs": ["shares"]}
        ],
        "outputs": ["table:1", "longer"]
    })
}

/// Frequencies of signals, windows of any sizes, columns that are crossed.
pub(super) fn signals() -> Value {
    json!({"name": "signals",
        "inputs": [
            {"name": "wave", "shape": [80], "dtype": "f32"},
            {"name": "sound", "shape": [40, 2], "dtype": "f32"},
            {"name": "first", "shape": [1], "dtype": "i32"},
            {"name": "second", "shape": [1], "dtype": "i32"}
        ],
        "layers": [
            {"mel_spectrogram": {"num_mel_bins": 5, "sampling_rate": 4000.0, "fft_length": 32, "sequence_stride": 8, "sequence_length": 20,
                "window": null, "mag_exp": 1.0, "top_db": 1e4, "name": "pitches"}},
            {"adaptive_max_pool1d": {"output_size": 3, "name": "some_pitches"}},
            {"stft_spectrogram": {"mode": "magnitude", "frame_length": 8, "frame_step": 3, "fft_length": 12, "window": "hamming",
                "scaling": null, "padding": "same", "expand_dims": true, "trainable": false, "name": "frames"}},
            {"adaptive_average_pool2d": {"output_size": [4, 6], "name": "images"}},
            {"reshape": {"target_shape": [4, 2, 3, 2], "name": "cubes"}},
            {"adaptive_max_pool3d": {"output_size": [3, 1, 2], "name": "cube"}},
            {"adaptive_average_pool3d": {"output_size": 1, "name": "point"}},
            {"adaptive_max_pool2d": {"output_size": 2, "name": "image"}},
            {"stft_spectrogram": {"mode": "psd", "frame_length": 16, "name": "powers"}},
            {"adaptive_average_pool1d": {"output_size": 2, "name": "few"}},
            {"hashed_crossing": {"num_bins": 4, "output_mode": "one_hot", "name": "crossed"}},
            {"flatten": {"name": "flat_pitches"}}, {"flatten": {"name": "flat_cube"}}, {"flatten": {"name": "flat_image"}},
            {"flatten": {"name": "flat_few"}},
            {"concatenate": {"name": "all"}},
            {"dense": {"units": 2, "name": "dense"}}
        ],
        "calls": [
            {"layer": "pitches", "inputs": ["wave"]},
            {"layer": "some_pitches", "inputs": ["pitches"]},
            {"layer": "flat_pitches", "inputs": ["some_pitches"]},
            {"layer": "frames", "inputs": ["sound"]},
            {"layer": "images", "inputs": ["frames"]},
            {"layer": "cubes", "inputs": ["images"]},
            {"layer": "cube", "inputs": ["cubes"]},
            {"layer": "flat_cube", "inputs": ["cube"]},
            {"layer": "point", "inputs": ["cubes"]},
            {"layer": "image", "inputs": ["images"]},
            {"layer": "flat_image", "inputs": ["image"]},
            {"layer": "powers", "inputs": ["sound"]},
            {"layer": "few", "inputs": ["powers"]},
            {"layer": "flat_few", "inputs": ["few"]},
            {"layer": "crossed", "inputs": ["first", "second"]},
            {"layer": "all", "inputs": ["flat_pitches", "flat_cube", "flat_image", "flat_few", "crossed"]},
            {"layer": "dense", "inputs": ["all"]}
        ],
        "outputs": ["dense", "point"]})
}

/// Values with masks that attentions and other layers take, in a model and in one inside, with masks of each kind.
pub(super) fn unshared() -> Value {
    let attention =
        |name: &str| json!({"multi_head_attention": {"num_heads": 2, "key_dim": 3, "name": name}});
    let steps = json!({"name": "steps", "shape": [5, 4], "dtype": "f32"});
    json!({"name": "unshared",
        "inputs": [{"name": "ids", "shape": [5], "dtype": "i32"}, {"name": "others", "shape": [4], "dtype": "i32"}],
        "layers": [
            {"embedding": {"input_dim": 5, "output_dim": 4, "mask_zero": true, "name": "table"}},
            {"embedding": {"input_dim": 5, "output_dim": 3, "mask_zero": true, "name": "theirs"}},
            attention("first"), {"add": {"name": "sum"}}, {"dropout": {"rate": 0.5, "name": "dropped"}}, {"layer_norm": {"name": "norm"}},
            attention("second"), {"add": {"name": "total"}},
            {"multi_head_attention": {"num_heads": 1, "key_dim": 2, "use_causal_mask": true, "name": "crossed"}}, {"add": {"name": "kept"}},
            {"bidirectional": {"layer": {"lstm": {"units": 2, "return_sequences": true}}, "name": "both"}},
            {"time_distributed": {"layer": {"dense": {"units": 2}}, "name": "each"}},
            {"group_query_attention": {"head_dim": 2, "num_query_heads": 2, "num_key_value_heads": 1, "name": "grouped"}},
            {"model": {"name": "block", "inputs": [steps],
                "layers": [attention("within"), {"add": {"name": "more"}}, {"attention": {"name": "scored"}}],
                "calls": [{"layer": "within", "inputs": ["steps"]}, {"layer": "more", "inputs": ["steps", "within"]}, {"layer": "scored", "inputs": ["more", "steps"]}],
                "outputs": ["scored"]}},
            {"model": {"name": "stack", "input": steps, "layers": [attention("alone"), {"lstm": {"units": 2}}]}},
            {"masking": {"mask_value": 0.5, "name": "masking"}}, {"multiply": {"name": "product"}},
            {"global_average_pool1d": {"name": "mean"}}, {"gru": {"units": 2, "name": "their_last"}}, {"gru": {"units": 2, "name": "last"}},
            {"concatenate": {"name": "all"}}
        ],
        "calls": [
            {"layer": "table", "inputs": ["ids"]},
            {"layer": "theirs", "inputs": ["others"]},
            {"layer": "first", "inputs": ["table"]},
            {"layer": "sum", "inputs": ["table", "first"]},
            {"layer": "dropped", "inputs": ["sum"]},
            {"layer": "norm", "inputs": ["dropped"]},
            {"layer": "second", "inputs": ["norm"]},
            {"layer": "total", "inputs": ["norm", "second"]},
            {"layer": "crossed", "inputs": ["total", "theirs"]},
            {"layer": "kept", "inputs": ["total", "crossed"]},
            {"layer": "both", "inputs": ["theirs"]},
            {"layer": "each", "inputs": ["both"]},
            {"layer": "grouped", "inputs": ["total"]},
            {"layer": "block", "inputs": ["total"]},
            {"layer": "stack", "inputs": ["kept"]},
            {"layer": "masking", "inputs": ["grouped"]},
            {"layer": "product", "inputs": ["masking", "kept", "block"]},
            {"layer": "mean", "inputs": ["product"]},
            {"layer": "their_last", "inputs": ["each"]},
            {"layer": "last", "inputs": ["block"]},
            {"layer": "all", "inputs": ["mean", "their_last", "last", "stack"]}
        ],
        "outputs": ["all", "product"]})
}

/// Layers that never do as in training, in a stack and in a model in it.
pub(super) fn still() -> Value {
    let steps = json!({"name": "steps", "shape": [5, 4], "dtype": "f32"});
    json!({"name": "still", "input": steps, "layers": [
        {"dropout": {"rate": 0.5, "training": false}},
        {"batch_norm": {"training": false}},
        {"multi_head_attention": {"num_heads": 2, "key_dim": 3, "dropout": 0.5, "training": false}},
        {"model": {"name": "inside", "training": false, "input": steps, "layers": [{"gaussian_noise": {"stddev": 0.5}}, {"dense": {"units": 3}}]}},
        {"model": {"name": "within", "input": {"name": "steps", "shape": [5, 3], "dtype": "f32"}, "layers": [{"spatial_dropout1d": {"rate": 0.5, "training": false}}, {"dense": {"units": 3}}]}},
        {"bidirectional": {"layer": {"gru": {"units": 2, "dropout": 0.5}}, "training": false}},
        {"dense": {"units": 2, "training": false}}
    ]})
}

/// What is called without training is so in the file, which Keras obeys from 3.16 on.
#[test]
fn layers_that_never_train_are_read_again_as_such() {
    let folder = Scratch::temporary("still");
    let model = Model::from_config(&still()).unwrap();
    filled(&model).save_keras(folder.join("m.keras")).unwrap();
    let again = SavedModel::load_keras(folder.join("m.keras")).unwrap();
    let flags = |model: &Model| {
        let text = model.config().to_string();
        text.matches("\"training\":false").count()
    };
    // A dense layer has none.
    assert_eq!((flags(&model), flags(again.model())), (7, 6));
}

/// Keras has no such setting, and does the same without it where values have no masks.
#[test]
fn attention_that_looks_at_padding_is_read_back_so() {
    let folder = Scratch::temporary("looks");
    let file = folder.join("m.keras");
    let kept = |seen: bool| {
        let attention = |kind: &str, mut settings: Value| {
            settings["use_padding_mask"] = seen.into();
            json!({kind: settings})
        };
        let heads = json!({"num_heads": 2, "key_dim": 3});
        let groups = json!({"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2});
        let layers = json!([
            attention("multi_head_attention", heads),
            attention("group_query_attention", groups)
        ]);
        let input = json!({"name": "steps", "shape": [5, 4], "dtype": "f32"});
        let model = Model::from_config(&json!({"name": "m", "input": input, "layers": layers}));
        filled(&model.unwrap()).save_keras(&file).unwrap();
        let again = SavedModel::load_keras(&file).unwrap();
        again
            .model()
            .config()
            .to_string()
            .matches("\"use_padding_mask\":false")
            .count()
    };
    assert_eq!((kept(true), kept(false)), (0, 2));
}

/// Layers that lose a mask in Keras, and attention that leaves padding in.
#[test]
fn masks_that_keras_cannot_find_are_refused() {
    let folder = Scratch::temporary("no-masks");
    let embedding = json!({"embedding": {"input_dim": 5, "output_dim": 4, "mask_zero": true}});
    let attention = json!({"multi_head_attention": {"num_heads": 2, "key_dim": 3, "use_padding_mask": false, "name": "open"}});
    let save = |layers: &[Value]| {
        let layers = [std::slice::from_ref(&embedding), layers].concat();
        let input = json!({"name": "ids", "shape": [5], "dtype": "i32"});
        let model = Model::from_config(&json!({"name": "m", "input": input, "layers": layers}));
        let saved = filled(&model.unwrap()).save_keras(folder.join("m.keras"));
        saved.map_err(|error| error.to_string())
    };
    let (norm, gru) = (json!("rms_norm"), json!({"gru": {"units": 2}}));
    for (layers, expected) in [
        (
            &[norm.clone(), gru.clone()][..],
            "the mask of `rms_norm` is lost there",
        ),
        (
            &[attention.clone(), gru],
            "attention `open` would not look at padding",
        ),
    ] {
        let refused = save(layers).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
        assert!(refused.contains("write the weights alone"), "{refused}");
    }
    save(&[norm, json!({"dense": {"units": 2}})]).unwrap();
    // There the attention looks at padding, too, since the mask is lost.
    save(&[json!("rms_norm"), json!("flatten")]).unwrap();
}
