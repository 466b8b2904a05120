//! Convolutions over time, spectrograms, poolings to a number of windows and normalized kernels, with random settings.

use serde_json::{Value, json};

use crate::layers::{activation, dropped, layer};
use crate::network::Described;
use crate::random::Random;

/// A long short-term memory by convolutions in so many directions.
pub(crate) fn conv_lstm(random: &mut Random, directions: usize) -> Described {
    let kind = ["conv_lstm1d", "conv_lstm2d", "conv_lstm3d"][directions - 1];
    let mut sizes = |most: usize| -> Value {
        let sizes: Vec<usize> = (0..directions).map(|_| random.size(most)).collect();
        one_or_list(&sizes)
    };
    let (size, strides, dilation) = (sizes(3), sizes(2), sizes(2));
    let dropped = [dropped(random), dropped(random)];
    let mut settings = json!({"filters": random.size(3), "kernel_size": size, "strides": strides,
        "dilation_rate": dilation, "padding": random.of_list(&["valid", "same"]), "use_bias": random.chance(0.8),
        "return_sequences": random.chance(0.5), "go_backwards": random.chance(0.2), "dropout": dropped[0],
        "recurrent_dropout": dropped[1]});
    if random.chance(0.2) {
        settings["recurrent_activation"] = json!("hard_sigmoid");
    }
    layer(kind, settings)
}

/// A pooling to a number of windows of a sequence, an image or a volume of these sizes.
pub(crate) fn adaptive(random: &mut Random, sizes: &[usize]) -> Described {
    let kinds = [
        ["adaptive_average_pool1d", "adaptive_max_pool1d"],
        ["adaptive_average_pool2d", "adaptive_max_pool2d"],
        ["adaptive_average_pool3d", "adaptive_max_pool3d"],
    ][sizes.len() - 1];
    // More windows than there are elements, too.
    let counts: Vec<usize> = (sizes.iter().map(|&size| random.from(1, size + 1))).collect();
    let settings = json!({"output_size": one_or_list(&counts)});
    layer(random.of_list(&kinds), settings)
}

/// One number by itself, several as a list.
fn one_or_list(sizes: &[usize]) -> Value {
    match sizes {
        [size] => json!(size),
        _ => json!(sizes),
    }
}

/// A layer with a kernel that is divided by its largest singular value.
pub(crate) fn spectral(random: &mut Random, inside: &Described) -> Described {
    layer(
        "spectral_norm",
        json!({"layer": {inside.kind: inside.settings}, "power_iterations": random.from(1, 2)}),
    )
}

/// The frequencies of a sequence of these many steps, by kernels that are trained.
pub(crate) fn stft(random: &mut Random, steps: usize) -> Described {
    let modes = ["log", "magnitude", "psd", "real", "imag", "angle", "stft"];
    let length = random.from(2, steps.clamp(2, 12));
    let step = random.from(1, length);
    let settings = json!({"mode": random.of_list(&modes), "frame_length": length,
        "frame_step": random.of_list(&[None, Some(step)]),
        "fft_length": random.of_list(&[None, Some(16), Some(length + length % 2)]),
        "window": random.of_list(&[None, Some("hann"), Some("hamming")]), "periodic": random.chance(0.5),
        "scaling": random.of_list(&[None, Some("density"), Some("spectrum")]),
        "padding": random.of_list(&["valid", "same"]), "expand_dims": random.chance(0.3)});
    layer("stft_spectrogram", settings)
}

/// The pitches of a signal of these many samples.
pub(crate) fn mel(random: &mut Random, samples: usize) -> Described {
    let length = random.from(2, samples.clamp(2, 24));
    let settings = json!({"num_mel_bins": random.size(5), "sampling_rate": 4000.0, "fft_length": length,
        "sequence_stride": random.from(1, length), "sequence_length": random.of_list(&[None, Some(length.div_ceil(2))]),
        "window": random.of_list(&[None, Some("hann"), Some("hamming")]), "mag_exp": random.of_list(&[1.0, 2.0, 1.5]),
        "power_to_db": random.chance(0.6), "top_db": random.of_list(&[80.0, 10.0])});
    layer("mel_spectrogram", settings)
}

/// A layer of volumes that follow each other, `[steps, depth, height, width, channels]`.
pub(crate) fn on_frames(random: &mut Random, dims: &[usize]) -> Described {
    match random.from(0, 3) {
        0 | 1 => conv_lstm(random, 3),
        2 => layer(
            "reshape",
            json!({"target_shape": [dims[0] * dims[1], dims[2], dims[3], dims[4]]}),
        ),
        _ => layer("activation", json!({"activation": activation(random)})),
    }
}
