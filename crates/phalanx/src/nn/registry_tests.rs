//! Settings of all kinds, read back, and mistakes in them.

use super::*;
use serde_json::json;

/// Settings of kinds with variables.
fn with_weights() -> Value {
    json!({
        "dense": {"units": 3},
        "einsum_dense": {"equation": "...ab,bc->...ca", "output_shape": [4, null], "bias_axes": "c"},
        "conv2d": {"filters": 4, "kernel_size": 3},
        "depthwise_conv1d": {"kernel_size": 3, "depth_multiplier": 2},
        "depthwise_conv2d": {"kernel_size": [3, 2]},
        "separable_conv1d": {"filters": 4, "kernel_size": 3, "padding": "same"},
        "separable_conv2d": {"filters": 4, "kernel_size": 3, "depth_multiplier": 2, "depthwise_regularizer": {"l2": {"l2": 0.5}}},
        "conv2d_transpose": {"filters": 4, "kernel_size": 3, "padding": "same"},
        "conv1d_transpose": {"filters": 4, "kernel_size": 3, "strides": 2},
        "conv3d_transpose": {"filters": 4, "kernel_size": [1, 2, 3], "dilation_rate": 2},
        "conv1d": {"filters": 4, "kernel_size": 3, "padding": "causal"},
        "conv3d": {"filters": 4, "kernel_size": [1, 2, 3], "strides": 2},
        "group_norm": {"groups": -1, "axis": 1},
        "unit_norm": {"axis": [1, 2]},
        "rms_norm": {"axis": [1, 2], "epsilon": 0.1},
        "embedding": {"input_dim": 6, "output_dim": 3, "mask_zero": true},
        "multi_head_attention": {"num_heads": 2, "key_dim": 3, "value_dim": 4},
        "group_query_attention": {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2, "use_padding_mask": false},
        "attention": {"use_scale": true, "score_mode": "concat", "dropout": 0.5},
        "additive_attention": {"use_scale": false, "use_causal_mask": true},
        "position_embedding": {"sequence_length": 5},
        "embedding_bag": {"input_dim": 6, "output_dim": 3, "combiner": "sqrtn", "padding": -1},
        "lstm": {"units": 3, "return_sequences": true},
        "gru": {"units": 3, "reset_after": false},
        "simple_rnn": {"units": 3, "go_backwards": true},
        "conv_lstm1d": {"filters": 3, "kernel_size": 2, "strides": 2, "recurrent_dropout": 0.5},
        "conv_lstm2d": {"filters": 3, "kernel_size": [1, 2], "padding": "same", "recurrent_activation": "hard_sigmoid"},
        "conv_lstm3d": {"filters": 3, "kernel_size": 2, "unit_forget_bias": false, "return_state": true},
        "time_distributed": {"layer": {"time_distributed": {"layer": {"conv2d": {"filters": 2, "kernel_size": 3}}}}},
        "rnn": {"cells": [{"lstm": {"units": 3, "activation": "relu"}}, {"gru": {"units": 2}}], "unroll": true},
        "bidirectional": {"layer": {"gru": {"units": 3}}, "merge_mode": "sum"},
        "spectral_norm": {"layer": {"conv2d": {"filters": 2, "kernel_size": 3}}, "power_iterations": 3},
        "p_relu": {"shared_axes": [1, 2], "alpha_regularizer": {"l2": {"l2": 0.5}}},
        "activation": {"activation": {"general_relu": {"max_value": 0.5}}, "activity_regularizer": {"l1": {"l1": 0.1}}},
    })
}

/// Settings of kinds without.
fn without_weights() -> Value {
    json!({
        "resizing": {"height": 3, "width": 4, "interpolation": "lanczos3", "antialias": true, "pad_to_aspect_ratio": true, "fill_value": 1.5},
        "center_crop": {"height": 3, "width": 4},
        "random_crop": {"height": 3, "width": 4},
        "random_flip": {"mode": "vertical"},
        "random_rotation": {"factor": [-0.1, 0.2], "fill_mode": "wrap"},
        "random_translation": {"height_factor": 0.1, "width_factor": [0.0, 0.2], "interpolation": "nearest"},
        "random_zoom": {"height_factor": 0.1, "width_factor": 0.2, "fill_value": 2.0},
        "random_brightness": {"factor": 0.5, "value_range": [0.0, 1.0]},
        "random_contrast": {"factor": [0.5, 0.1]},
        "up_sampling2d": {"size": [2, 3], "interpolation": "bilinear"},
        "up_sampling3d": {"size": [2, 1, 3]},
        "zero_padding1d": {"padding": [1, 0]},
        "zero_padding3d": {"padding": [1, 0, 2]},
        "cropping1d": {"cropping": 2},
        "reversible_embedding": {"input_dim": 5, "output_dim": 2, "logit_soft_cap": 30.0},
        "cropping2d": {"cropping": [1, 0]},
        "cropping3d": {"cropping": [[0, 1], [2, 0], [1, 1]]},
        "permute": {"dims": [2, 1]},
        "repeat_vector": {"n": 3},
        "dropout": {"rate": 0.5},
        "spatial_dropout1d": {"rate": 0.5},
        "spatial_dropout2d": {"rate": 0.5},
        "spatial_dropout3d": {"rate": 1.0},
        "gaussian_noise": {"stddev": 0.5},
        "gaussian_dropout": {"rate": 0.5},
        "alpha_dropout": {"rate": 0.5},
        "stochastic_depth": {"drop_path_rate": 0.5},
        "scaled_add": {"scale": 0.5},
        "layer_scale": {"init_values": 0.5},
        "reshape": {"target_shape": [3, -1]},
        "rescaling": {"scale": [0.5, 1.0]},
        "preprocess": {"mode": "caffe"},
        "normalization": {"axis": [1, -1], "mean": [[0.5], [-2.0]], "variance": [[1.0], [0.0]], "invert": true},
    })
}

/// Settings of kinds that colour images.
fn of_colours() -> Value {
    json!({
        "random_hue": {"factor": 0.5, "value_range": [0.0, 1.0]},
        "random_saturation": {"factor": [0.25, 0.75]},
        "random_color_degeneration": {"factor": 0.5},
        "random_sharpness": {"factor": 0.5},
        "random_invert": {"factor": [0.0, 0.5]},
        "random_grayscale": {"factor": 0.25},
        "auto_contrast": {"value_range": [0.0, 1.0]},
        "random_posterization": {"factor": [2, 5], "value_range": [0.0, 1.0]},
        "solarization": {"addition_factor": 0.1, "threshold_factor": [0.2, 0.5]},
        "equalization": {"bins": 64},
        "random_shear": {"x_factor": [0.1, 0.2], "y_factor": 0.3, "fill_mode": "wrap"},
        "random_perspective": {"factor": [0.5, 1.0], "scale": 0.3, "interpolation": "nearest", "fill_value": 2.0},
        "random_gaussian_blur": {"kernel_size": [3, 5], "sigma": [0.5, 1.0]},
        "random_erasing": {"scale": 0.2, "fill_value": [1.0, 2.0, 3.0]},
        "random_color_jitter": {"brightness_factor": 0.1, "contrast_factor": [0.5, 0.1], "hue_factor": 0.2},
        "aug_mix": {"factor": [0.1, 0.3], "num_chains": 2, "alpha": 0.5, "all_ops": false},
        "random_elastic_transform": {"factor": [0.5, 1.0], "scale": 0.3, "fill_mode": "wrap"},
        "contrast_limited_adaptive_histogram_equalization": {"clip_limit": 2.0, "tile_grid_size": [4, 3]},
        "rand_augment": {"factor": [0.1, 0.3], "num_ops": 1, "interpolation": "nearest"},
    })
}

/// Settings of kinds of a number of windows, and of signals.
fn of_windows() -> Value {
    json!({
        "adaptive_average_pool1d": {"output_size": 3},
        "adaptive_average_pool2d": {"output_size": [2, 3]},
        "adaptive_average_pool3d": {"output_size": 2},
        "adaptive_max_pool1d": {"output_size": 3},
        "adaptive_max_pool2d": {"output_size": 2},
        "adaptive_max_pool3d": {"output_size": [1, 2, 3]},
        "stft_spectrogram": {"mode": "psd", "frame_length": 9, "frame_step": 2, "fft_length": 12, "window": null, "scaling": "spectrum"},
        "mel_spectrogram": {"num_mel_bins": 5, "sequence_length": 100, "window": "hamming", "max_freq": 3000.0, "mag_exp": 1.0},
    })
}

/// Settings of kinds of categories.
fn of_categories() -> Value {
    json!({
        "discretization": {"bin_boundaries": [-0.1, 2.0], "output_mode": "count"},
        "category_encoding": {"num_tokens": 3, "output_mode": "one_hot"},
        "hashing": {"num_bins": 5, "mask_value": -1, "output_mode": "one_hot"},
        "hashed_crossing": {"num_bins": 5, "output_mode": "one_hot"},
        "integer_lookup": {"vocabulary": [7, -3], "num_oov_indices": 2, "mask_token": 0, "output_mode": "multi_hot"},
    })
}

#[test]
fn every_kind_reads_back_what_it_writes() {
    let settings = [
        with_weights(),
        without_weights(),
        of_colours(),
        of_windows(),
        of_categories(),
    ];
    for kind in Registry::standard().kinds() {
        let fields = settings.iter().find_map(|settings| settings.get(kind));
        let fields = fields.unwrap_or(&Value::Null);
        let layer = layer_from_config(kind, fields).unwrap();
        assert_eq!(layer.kind(), kind);
        let again = layer_from_config(kind, &layer.config()).unwrap();
        assert_eq!(again.config(), layer.config(), "{kind}");
    }
}

/// A kind, its fields as JSON, and what is said of them.
const MISTAKES: [(&str, &str, &str); 12] = [
    ("dens", "{}", "unknown layer `dens`; did you mean `dense`?"),
    (
        "dense",
        r#"{"unit": 3, "units": 1}"#,
        "dense: unknown field `unit`; did you mean `units`?",
    ),
    ("dense", "{}", "dense: field `units` is missing; add it"),
    (
        "dense",
        r#"{"units": 0}"#,
        "dense: `units` must be a whole number from 1 to 2147483647, got 0",
    ),
    (
        "dense",
        r#"{"units": 3, "activation": "rleu"}"#,
        "dense: `activation`: unknown activation `rleu`; did you mean `relu`?",
    ),
    (
        "dense",
        r#"{"units": 3, "activation": {"relu": {"slope": 1}}}"#,
        "dense: `activation`: activation `relu` has no settings; write the name alone",
    ),
    (
        "dropout",
        r#"{"rate": 1.5}"#,
        "dropout: `rate` must be a number from 0 to 1, got 1.5",
    ),
    (
        "dense",
        r#"{"units": 3, "name": 4}"#,
        "dense: `name`: expected text, got 4",
    ),
    (
        "dense",
        r#"{"units": 3, "trainable": "no"}"#,
        "dense: `trainable`: expected true or false, got \"no\"",
    ),
    (
        "max_pool2d",
        r#"{"pool_size": 0}"#,
        "max_pool2d: `pool_size` must be a whole number above 0, or two: 3 or [3, 3], got 0",
    ),
    (
        "conv3d",
        r#"{"filters": 2, "kernel_size": [3, 3]}"#,
        "conv3d: `kernel_size` must be a whole number above 0, or three: 3 or [3, 3, 3], got [3,3]",
    ),
    (
        "conv3d",
        r#"{"filters": 4, "kernel_size": 3, "groups": 3}"#,
        "conv3d: `groups` must divide `filters`, got 3 and 4",
    ),
];

#[test]
fn mistakes_name_the_field_and_the_nearest_name() {
    let message =
        |kind: &str, fields: Value| layer_from_config(kind, &fields).unwrap_err().to_string();
    for (kind, fields, expected) in MISTAKES {
        let fields = serde_json::from_str(fields).unwrap();
        assert_eq!(message(kind, fields), expected);
    }
    let wrong = message("dense", json!({"units": "ten"}));
    assert_eq!(
        wrong,
        "dense: `units` must be a whole number from 1 to 2147483647, got \"ten\""
    );
    let wrong = message("dense", json!([1]));
    assert!(wrong.starts_with("dense: expected fields"), "{wrong}");
}
