//! Layers that resize, cut and augment images: Keras' numbers where nothing is left to chance, and what is drawn otherwise.

use phalanx::image::Fill;
use phalanx::nn::{
    Cx, Flip, Input, LayerSpec, Network, Policy, RandomBrightness, RandomContrast, RandomCrop,
    RandomFlip, RandomRotation, RandomTranslation, RandomZoom, Resizing, Sequential,
    layer_from_config,
};
use phalanx_graph::{DType, HostTensor, Shape};
use phalanx_testkit::assert_relatively_close;
use serde_json::Value;

use crate::modes::{check_share, noisy};
use crate::{Checks, array, call, golden};

fn kind(keras: &str) -> &'static str {
    match keras {
        "Resizing" => "resizing",
        "CenterCrop" => "center_crop",
        "RandomCrop" => "random_crop",
        "RandomRotation" => "random_rotation",
        "RandomTranslation" => "random_translation",
        "RandomZoom" => "random_zoom",
        "RandomBrightness" => "random_brightness",
        "RandomContrast" => "random_contrast",
        other => panic!("no layer for Keras' {other}"),
    }
}

/// Adds what a layer makes of a record's images, in training but for windows, which are in the middle otherwise.
fn check_picture(checks: &mut Checks, record: &Value) {
    let name = record["name"].as_str().unwrap();
    let layer = record["layer"].as_str().unwrap();
    let mut input = array(&record["input"]);
    if record["bytes"] == true {
        input = input.convert(DType::U8);
    }
    let layer = layer_from_config(kind(layer), &record["config"]).unwrap();
    let is_training = !name.contains("crop");
    let mut net = Network::new();
    let node = net.input(Input::new(&input.dims()[1..]).dtype(input.dtype()));
    let output = net.add(layer, &[node]);
    let model = net.build(&[node], &[output]).unwrap();
    let x = checks.given(&input);
    let key = checks.graph.constant(HostTensor::new([2], &[1u32, 2]));
    let first = checks.graph.constant(HostTensor::scalar(0u32));
    let cx = Cx::new(&checks.graph, &model, &[]).with_training(is_training);
    let mut cx = cx.with_random(key, first);
    let got = model.call(&mut cx, &[x]).swap_remove(0);
    checks.expect(name.to_owned(), &got, array(&record["output"]));
}

#[test]
fn pictures_are_keras() {
    let mut checks = Checks::default();
    let records = golden("image_layers.json");
    assert!(records.len() > 130);
    for record in &records {
        check_picture(&mut checks, record);
    }
    checks.verify(2e-5);
}

/// Images of numbers that are all different: `[images, height, width, 2]`.
fn images(count: usize, height: usize, width: usize) -> HostTensor {
    let dims = [count, height, width, 2];
    let size = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..size).map(|i| (i * 37 % 251) as f32).collect();
    HostTensor::new(dims, &values)
}

/// The element of an image of two channels.
fn pixel(image: &[f32], width: usize, (y, x): (usize, usize)) -> &[f32] {
    &image[(y * width + x) * 2..][..2]
}

#[test]
fn half_of_the_images_are_mirrored_each_way() {
    let (height, width) = (3, 4);
    let x = images(400, height, width);
    let found = noisy(RandomFlip::default(), &x, [1, 2], 0).f32s();
    let size = height * width * 2;
    let given = x.f32s();
    let ways: Vec<(bool, bool)> = given
        .chunks(size)
        .zip(found.chunks(size))
        .map(|(given, found)| {
            let is = |turned: bool, upside_down: bool| {
                let all = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
                all.into_iter().all(|(y, x)| {
                    let from = (
                        if upside_down { height - 1 - y } else { y },
                        if turned { width - 1 - x } else { x },
                    );
                    pixel(found, width, (y, x)) == pixel(given, width, from)
                })
            };
            let all = [(false, false), (false, true), (true, false), (true, true)];
            all.into_iter().find(|&(x, y)| is(x, y)).unwrap()
        })
        .collect();
    check_share("left to right", 0.5, ways.iter().map(|way| way.0));
    check_share("top to bottom", 0.5, ways.iter().map(|way| way.1));
    check_share("both", 0.25, ways.iter().map(|&way| way == (true, true)));
    let found = noisy(RandomFlip::new(Flip::Horizontal), &x, [1, 2], 0);
    assert_ne!(found, x);
    let sorted = |row: &[f32]| {
        let mut row = row.to_vec();
        row.sort_by(f32::total_cmp);
        row
    };
    let rows = found.f32s();
    let rows = rows.chunks(width * 2).zip(given.chunks(width * 2));
    assert!(rows.into_iter().all(|(a, b)| sorted(a) == sorted(b)));
}

#[test]
fn each_image_has_a_window_of_its_own() {
    let (height, width) = (5, 4);
    let x = images(300, height, width);
    let found = noisy(RandomCrop::new(3, 3), &x, [1, 2], 0);
    assert_eq!(found.dims(), [300, 3, 3, 2]);
    let (given, found) = (x.f32s(), found.f32s());
    let starts: Vec<(usize, usize)> = given
        .chunks(height * width * 2)
        .zip(found.chunks(18))
        .map(|(given, found)| {
            let starts = (0..3).flat_map(|top| (0..2).map(move |left| (top, left)));
            let is = |top: usize, left: usize| {
                (0..9).all(|i| {
                    let (y, x) = (i / 3, i % 3);
                    pixel(found, 3, (y, x)) == pixel(given, width, (top + y, left + x))
                })
            };
            starts.into_iter().find(|&(y, x)| is(y, x)).unwrap()
        })
        .collect();
    for top in 0..3 {
        check_share("top", 1.0 / 3.0, starts.iter().map(|start| start.0 == top));
    }
    check_share("left", 0.5, starts.iter().map(|start| start.1 == 1));
}

#[test]
fn contrast_is_drawn_between_less_and_more() {
    let x = images(300, 3, 4);
    let layer = RandomContrast::new([0.25, 0.5]).value_range([-1e6, 1e6]);
    let found = noisy(layer, &x, [1, 2], 0).to_f64();
    let mut factors = Vec::new();
    for (given, found) in x.to_f64().chunks(24).zip(found.chunks(24)) {
        for channel in 0..2 {
            let of = |image: &[f64]| -> Vec<f64> {
                image.iter().skip(channel).step_by(2).copied().collect()
            };
            let (given, found) = (of(given), of(found));
            let mean = given.iter().sum::<f64>() / 12.0;
            let factor = (found[0] - mean) / (given[0] - mean);
            for (given, found) in given.iter().zip(&found) {
                assert!((found - mean - (given - mean) * factor).abs() < 1e-3);
            }
            factors.push(factor);
        }
    }
    assert!(factors.iter().all(|f| (0.749..1.501).contains(f)));
    // Both channels of an image have the same.
    let pairs = factors.chunks(2).map(|pair| (pair[0] - pair[1]).abs());
    assert!(pairs.fold(0.0, f64::max) < 1e-4);
    let each = factors.iter().step_by(2).copied().collect::<Vec<_>>();
    check_share("below 1", 1.0 / 3.0, each.iter().map(|&f| f < 1.0));
    check_share("above 1.25", 1.0 / 3.0, each.iter().map(|&f| f > 1.25));
}

#[test]
fn brightness_is_drawn_in_parts_of_the_range_and_clipped() {
    let x = HostTensor::full(Shape::f32([300, 1, 1, 1]), 0.5);
    let layer = RandomBrightness::new([-0.5, 1.0]).value_range([0.0, 2.0]);
    let found = noisy(layer, &x, [1, 2], 0).to_f64();
    assert!(found.iter().all(|y| (0.0..=2.0).contains(y)));
    check_share("clipped below", 1.0 / 6.0, found.iter().map(|&y| y == 0.0));
    check_share("clipped above", 1.0 / 6.0, found.iter().map(|&y| y == 2.0));
    check_share("darker", 1.0 / 3.0, found.iter().map(|&y| y < 0.5));
}

/// Each layer that draws numbers.
fn all() -> [LayerSpec; 7] {
    [
        RandomFlip::default().into(),
        RandomRotation::new(0.1).into(),
        RandomTranslation::new(0.2, [-0.1, 0.3])
            .fill_mode(Fill::Wrap)
            .into(),
        RandomZoom::new(0.3).width_factor(0.2).into(),
        RandomBrightness::new(0.2).into(),
        RandomContrast::new(0.2).into(),
        RandomCrop::new(3, 3).into(),
    ]
}

#[test]
fn what_is_drawn_for_images_depends_on_the_key_and_the_row() {
    let x = images(20, 4, 5);
    for layer in all() {
        let kind = layer.kind();
        let whole = noisy(layer.clone(), &x, [1, 2], 100);
        let half = noisy(layer.clone(), &x.slice_rows(10, 20), [1, 2], 110);
        // The compiler rounds angles as suits the number of rows.
        let of_whole = whole.slice_rows(10, 20).f32s();
        assert_relatively_close(kind, &half.f32s(), &of_whole, 1e-6, 255.0);
        assert_ne!(whole, noisy(layer.clone(), &x, [1, 3], 100), "{kind}");
        if kind == "random_crop" {
            continue;
        }
        let model = Sequential::new([4, 5, 2]).add(layer).build().unwrap();
        let (kept, ..) = call(&model, &[], std::slice::from_ref(&x), |_, cx| cx);
        assert_eq!(kept[0], x, "{kind}");
    }
}

/// Pixels of a model in 16 bits are not rounded before they are changed.
#[test]
fn pictures_of_mixed_models_are_those_of_f32() {
    let x = images(4, 4, 5);
    for layer in all() {
        let exact = noisy(layer.clone(), &x, [1, 2], 0);
        let mixed = noisy(layer.precision(Policy::MixedBfloat16), &x, [1, 2], 0);
        assert_eq!(mixed.convert(DType::F32), exact);
    }
}

#[test]
fn settings_of_pictures_are_checked() {
    let refused = |layer: LayerSpec| {
        let stack = Sequential::new([4, 5, 2]).add(layer);
        stack.build().unwrap_err().to_string()
    };
    let cases: [(LayerSpec, &str); 8] = [
        (
            RandomRotation::new(1.5).into(),
            "`factor` must be in -1.0..=1.0, got 1.5",
        ),
        (
            RandomRotation::new(f64::NAN).into(),
            "`factor` must be in -1.0..=1.0, got NaN",
        ),
        (
            RandomTranslation::new(0.1, [0.5, 0.2]).into(),
            "`width_factor` must be a number of at least 0, or two in ascending order, got [0.5, 0.2]",
        ),
        (
            RandomZoom::new(-0.1).into(),
            "`height_factor` must be a number of at least 0, or two in ascending order, got -0.1",
        ),
        (
            RandomZoom::new([-1.0, 0.0]).into(),
            "`height_factor` must be above -1, which shows nothing",
        ),
        (
            RandomBrightness::new(0.1).value_range([1.0, 0.5]).into(),
            "`value_range` must be the least and the largest value, got [1.0, 0.5]",
        ),
        (
            RandomCrop::new(0, 3).into(),
            "`height` must be between 1 and 2147483647, got 0",
        ),
        (
            Resizing::new(5_000_000, 3).into(),
            "height and width must be at most 1048576, got 5000000",
        ),
    ];
    for (layer, expected) in cases {
        let error = refused(layer);
        assert!(error.contains(expected), "{error}");
    }
    let both = Resizing::new(3, 3)
        .crop_to_aspect_ratio()
        .pad_to_aspect_ratio(0.0);
    assert!(
        refused(both.into()).contains("one of `crop_to_aspect_ratio` and `pad_to_aspect_ratio`")
    );
    let flat = Sequential::new([4]).add(RandomFlip::default()).build();
    let flat = flat.unwrap_err().to_string();
    assert!(
        flat.contains("expected images [batch, height, width, channels], got f32[batch,4]"),
        "{flat}"
    );
}
