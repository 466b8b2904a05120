//! Models with layers of some families, for the archives.

use serde_json::{Value, json};

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
