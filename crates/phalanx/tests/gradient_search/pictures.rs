//! Layers that resize, cut, colour or blur images, with random settings.

use serde_json::json;

use crate::layers::layer;
use crate::network::Described;
use crate::random::Random;

/// Between which pixels are: normal numbers seldom leave it.
const RANGE: [f64; 2] = [-9.0, 9.0];

/// A layer that resizes, cuts, augments or colours images of these channels.
pub(crate) fn picture(random: &mut Random, channels: usize) -> Described {
    match random.from(0, 2) {
        0 => coloured(random),
        1 if channels == 3 => of_colours(random),
        _ => moved(random),
    }
}

fn moved(random: &mut Random) -> Described {
    let [height, width] = [(); 2].map(|()| random.size(6));
    let fill = random.of_list(&["reflect", "nearest", "constant", "wrap"]);
    let interpolation = random.of_list(&["nearest", "bilinear"]);
    let beyond = json!({"factor": 0.2, "fill_mode": fill, "interpolation": interpolation});
    let resampling = random.of_list(&["nearest", "bilinear", "bicubic", "lanczos3"]);
    match random.from(0, 8) {
        0 => layer("random_rotation", beyond),
        1 => layer(
            "random_zoom",
            json!({"height_factor": 0.3, "fill_mode": fill}),
        ),
        2 => layer(
            "random_translation",
            json!({"height_factor": 0.3, "width_factor": [0.0, 0.5], "fill_mode": fill}),
        ),
        3 => layer("random_flip", json!({})),
        4 => layer(
            "random_shear",
            json!({"x_factor": 0.3, "y_factor": [0.0, 0.4], "fill_mode": fill, "interpolation": interpolation}),
        ),
        5 => layer(
            "random_perspective",
            json!({"factor": 1.0, "scale": 0.4, "interpolation": interpolation}),
        ),
        6 => layer("random_crop", json!({"height": height, "width": width})),
        7 => layer("center_crop", json!({"height": height, "width": width})),
        _ => layer(
            "resizing",
            json!({"height": height, "width": width, "interpolation": resampling,
            "antialias": random.chance(0.5), "crop_to_aspect_ratio": random.chance(0.3)}),
        ),
    }
}

/// A layer that changes values of any number of channels.
fn coloured(random: &mut Random) -> Described {
    let windows = [(); 2].map(|()| random.from(0, 2) * 2 + 1);
    match random.from(0, 11) {
        10 => layer(
            "random_elastic_transform",
            json!({"factor": 1.0, "scale": [0.3, 0.9], "value_range": [-1e4, 1e4],
            "fill_mode": random.of_list(&["reflect", "nearest", "constant", "wrap"])}),
        ),
        11 => layer(
            "contrast_limited_adaptive_histogram_equalization",
            json!({"tile_grid_size": [random.from(1, 3), 2], "value_range": RANGE}),
        ),
        8 => layer(
            "random_posterization",
            json!({"factor": [2, 5], "value_range": RANGE}),
        ),
        9 => layer(
            "equalization",
            json!({"bins": random.from(2, 32), "value_range": RANGE}),
        ),
        0 => layer(
            "random_contrast",
            json!({"factor": 0.3, "value_range": [-1e4, 1e4]}),
        ),
        1 => layer(
            "random_brightness",
            json!({"factor": 0.1, "value_range": RANGE}),
        ),
        2 => layer(
            "random_sharpness",
            json!({"factor": 0.9, "value_range": RANGE}),
        ),
        3 => layer(
            "random_invert",
            json!({"factor": 1.0, "value_range": RANGE}),
        ),
        4 => layer(
            "solarization",
            json!({"addition_factor": 0.1, "threshold_factor": [0.2, 0.9], "value_range": RANGE}),
        ),
        5 => layer("auto_contrast", json!({"value_range": RANGE})),
        6 => layer(
            "random_erasing",
            json!({"factor": 1.0, "scale": [0.1, 0.8], "fill_value": random.of_list(&[None, Some(0.5)]),
            "value_range": RANGE}),
        ),
        _ => layer(
            "random_gaussian_blur",
            json!({"factor": 1.0, "kernel_size": windows, "sigma": [0.3, 1.5], "value_range": RANGE}),
        ),
    }
}

/// A layer that changes red, green and blue.
fn of_colours(random: &mut Random) -> Described {
    match random.from(0, 6) {
        6 => layer(
            "aug_mix",
            json!({"factor": 0.3, "num_chains": 2, "chain_depth": 1, "all_ops": random.chance(0.5), "value_range": RANGE}),
        ),
        5 => layer(
            "rand_augment",
            json!({"factor": 0.3, "num_ops": random.from(1, 2), "value_range": RANGE}),
        ),
        0 => layer("random_hue", json!({"factor": 0.6, "value_range": RANGE})),
        1 => layer(
            "random_saturation",
            json!({"factor": [0.2, 0.6], "value_range": RANGE}),
        ),
        2 => layer(
            "random_color_degeneration",
            json!({"factor": 0.8, "value_range": RANGE}),
        ),
        3 => layer("random_grayscale", json!({"factor": 0.5})),
        _ => layer(
            "random_color_jitter",
            json!({"brightness_factor": 0.1, "contrast_factor": 0.3, "saturation_factor": [0.3, 0.6],
            "hue_factor": 0.2, "value_range": RANGE}),
        ),
    }
}
