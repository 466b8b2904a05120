//! Layers that resize, cut and augment images: Keras' numbers where nothing is left to chance, and what is drawn otherwise.

use phalanx::image::Fill;
use phalanx::nn::{
    AugMix, AutoContrast, ContrastLimitedAdaptiveHistogramEqualization, Cx, Equalization, Flip,
    Input, LayerSpec, Network, Policy, RandAugment, RandomBrightness, RandomColorDegeneration,
    RandomColorJitter, RandomContrast, RandomCrop, RandomElasticTransform, RandomErasing,
    RandomFlip, RandomGaussianBlur, RandomGrayscale, RandomHue, RandomInvert, RandomPerspective,
    RandomPosterization, RandomRotation, RandomSaturation, RandomSharpness, RandomShear,
    RandomTranslation, RandomZoom, Resizing, Sequential, Solarization, layer_from_config,
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
        "RandomHue" => "random_hue",
        "RandomSaturation" => "random_saturation",
        "RandomColorDegeneration" => "random_color_degeneration",
        "RandomSharpness" => "random_sharpness",
        "RandomInvert" => "random_invert",
        "RandomGrayscale" => "random_grayscale",
        "AutoContrast" => "auto_contrast",
        "RandomPosterization" => "random_posterization",
        "Solarization" => "solarization",
        "Equalization" => "equalization",
        "ContrastLimitedAdaptiveHistogramEqualization" => {
            "contrast_limited_adaptive_histogram_equalization"
        }
        "RandomGaussianBlur" => "random_gaussian_blur",
        "RandomColorJitter" => "random_color_jitter",
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
    assert!(records.len() > 200);
    // Which way a hue is turned is drawn, and where corners are.
    let of_draws = [
        "RandomHue",
        "RandomShear",
        "RandomPerspective",
        "RandomElasticTransform",
    ];
    let is_fixed = |record: &&Value| !of_draws.contains(&record["layer"].as_str().unwrap());
    for record in records.iter().filter(is_fixed) {
        check_picture(&mut checks, record);
    }
    checks.verify(2e-5);
}

/// Keras' numbers where each image of many is changed one way or the other.
fn check_ways(kind: &str, most: impl Fn(&Value) -> f64) {
    let records = golden("image_layers.json");
    let turned = |way: &str| {
        let start = format!("{kind}_{way}_");
        let of_way = move |record: &&Value| record["name"].as_str().unwrap().starts_with(&start);
        records.iter().filter(of_way).collect::<Vec<_>>()
    };
    for (on, back) in turned("on").into_iter().zip(turned("back")) {
        let input = array(&on["input"]);
        let ways = [on, back].map(|record| array(&record["output"]).to_f64());
        let size = ways[0].len();
        let many = HostTensor::new([200, 5, 7, 3], &input.f32s().repeat(100));
        let layer = layer_from_config(kind, &on["config"]).unwrap();
        let found = noisy(layer, &many, [1, 2], 0).to_f64();
        let most = most(on);
        let is = |image: usize, way: usize| {
            let half = size / 2;
            let expected = &ways[way][image % 2 * half..][..half];
            let found = &found[image * half..][..half];
            let mut pairs = found.iter().zip(expected);
            pairs.all(|(found, expected)| (found - expected).abs() < 1e-5 * most)
        };
        let name = &on["name"];
        assert!((0..200).all(|image| is(image, 0) || is(image, 1)), "{name}");
        check_share(kind, 0.5, (0..200).map(|image| is(image, 1)));
    }
}

#[test]
fn hues_are_turned_either_way() {
    check_ways("random_hue", |record| {
        record["config"]["value_range"][1].as_f64().unwrap()
    });
}

#[test]
fn images_lean_over_either_way() {
    check_ways("random_shear", |_| 255.0);
}

#[test]
fn images_are_inverted_and_made_gray_by_chance() {
    let x = HostTensor::full(Shape::f32([600, 1, 1, 3]), 50.0);
    let inverted = |layer: RandomInvert| noisy(layer, &x, [1, 2], 0).to_f64();
    let share = |found: &[f64]| -> Vec<bool> {
        assert!(found.iter().all(|&y| y == 50.0 || y == 150.0));
        let of_each = found.chunks(3);
        of_each
            .map(|pixel| pixel.iter().all(|&y| y == 150.0))
            .collect()
    };
    let to = |layer: RandomInvert| layer.value_range([0.0, 200.0]);
    // The chance is drawn, too.
    let half = share(&inverted(to(RandomInvert::new(1.0))));
    check_share("of chances up to 1", 0.5, half.into_iter());
    let more = share(&inverted(to(RandomInvert::new([0.5, 1.0]))));
    check_share("of chances from a half", 0.75, more.into_iter());
    let x: Vec<f32> = [30.0, 60.0, 90.0].repeat(600);
    let x = HostTensor::new([600, 1, 1, 3], &x);
    let found = noisy(RandomGrayscale::new(0.25), &x, [1, 2], 0).to_f64();
    let is_gray = found.chunks(3).map(|pixel| {
        let gray = 30.0 * 0.2989 + 60.0 * 0.587 + 90.0 * 0.114;
        let is_gray = pixel.iter().all(|y| (y - gray).abs() < 1e-4);
        assert!(is_gray || pixel == [30.0, 60.0, 90.0], "{pixel:?}");
        is_gray
    });
    let is_gray: Vec<bool> = is_gray.collect();
    check_share("gray", 0.25, is_gray.into_iter());
}

/// Of factors between two numbers, by what they do to a pixel that shows them.
#[test]
fn colours_are_drawn_between_the_least_and_the_most() {
    let x: Vec<f32> = [200.0, 100.0, 100.0].repeat(600);
    let x = HostTensor::new([600, 1, 1, 3], &x);
    let draws = |layer: LayerSpec, draw: &dyn Fn(&[f64]) -> f64| -> Vec<f64> {
        let found = noisy(layer, &x, [1, 2], 0).to_f64();
        found.chunks(3).map(draw).collect()
    };
    let check = |what: &str, draws: Vec<f64>, [least, most]: [f64; 2]| {
        let inside = least - 1e-4..most + 1e-4;
        assert!(
            draws.iter().all(|draw| inside.contains(draw)),
            "{what}: {draws:?}"
        );
        let middle = (least + most) / 2.0;
        check_share(what, 0.5, draws.iter().map(|&draw| draw < middle));
        let quarter = (3.0 * least + most) / 4.0;
        check_share(what, 0.25, draws.iter().map(|&draw| draw < quarter));
    };
    // Its saturation is a half, and becomes f / (1 - f) of that.
    let saturated = |pixel: &[f64]| {
        let times = 2.0 * (1.0 - pixel[1] / pixel[0]);
        times / (1.0 + times)
    };
    let layer = RandomSaturation::new(0.6).value_range([0.0, 1.0]);
    check("saturation", draws(layer.into(), &saturated), [0.0, 0.6]);
    let layer = RandomSaturation::new([0.25, 0.5]);
    check("saturation", draws(layer.into(), &saturated), [0.25, 0.5]);
    let gray = 200.0 * 0.2989 + 100.0 * (0.587 + 0.114);
    let degenerated = |pixel: &[f64]| (200.0 - pixel[0]) / (200.0 - gray);
    let layer = RandomColorDegeneration::new(0.5);
    check("colour", draws(layer.into(), &degenerated), [0.0, 0.5]);
    // Of a lone pixel the smoothed one has 5 / 13.
    let sharpened = |pixel: &[f64]| 0.5 * (1.0 - (pixel[1] / 100.0 - 1.0) / (5.0 / 13.0 - 1.0));
    let layer = RandomSharpness::new([0.2, 0.6]);
    check("sharpness", draws(layer.into(), &sharpened), [0.2, 0.6]);
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

/// Layers of three channels that draw numbers, and one that draws none.
fn of_colours() -> [LayerSpec; 17] {
    [
        RandomPosterization::new([1.0, 8.0]).into(),
        Solarization::new(0.5, 1.0).into(),
        Equalization::new([0.0, 255.0]).into(),
        RandomGaussianBlur::new(3, 1.0).into(),
        RandomErasing::new(1.0).into(),
        RandomColorJitter::new([0.0, 255.0])
            .brightness(0.2)
            .contrast(0.2)
            .saturation([0.4, 0.6])
            .hue(0.2)
            .into(),
        RandAugment::new(0.5).into(),
        AugMix::new(0.3).num_chains(2).chain_depth(1).into(),
        RandomElasticTransform::new(1.0).into(),
        ContrastLimitedAdaptiveHistogramEqualization::new(4.0, 2).into(),
        RandomHue::new(0.4).into(),
        RandomSaturation::new([0.3, 0.7]).into(),
        RandomColorDegeneration::new(0.5).into(),
        RandomSharpness::new(0.9).into(),
        RandomInvert::new(1.0).into(),
        RandomGrayscale::new(0.5).into(),
        AutoContrast::new([0.0, 255.0]).into(),
    ]
}

#[test]
fn what_is_drawn_for_colours_depends_on_the_key_and_the_row() {
    let values: Vec<f32> = (0..20 * 60).map(|i| (i * 37 % 251) as f32).collect();
    let x = HostTensor::new([20, 4, 5, 3], &values);
    for layer in of_colours() {
        let kind = layer.kind();
        let of_prediction = [
            "auto_contrast",
            "contrast_limited_adaptive_histogram_equalization",
        ];
        let of_prediction = of_prediction.contains(&kind);
        let draws = !of_prediction && kind != "equalization";
        let whole = noisy(layer.clone(), &x, [1, 2], 100);
        let half = noisy(layer.clone(), &x.slice_rows(10, 20), [1, 2], 110);
        let of_whole = whole.slice_rows(10, 20).f32s();
        assert_relatively_close(kind, &half.f32s(), &of_whole, 1e-6, 255.0);
        let other = noisy(layer.clone(), &x, [1, 3], 100);
        assert_eq!(whole != other, draws, "{kind}");
        let exact = noisy(layer.clone(), &x, [1, 2], 0);
        let mixed = layer.clone().precision(Policy::MixedBfloat16);
        let mixed = noisy(mixed, &x, [1, 2], 0);
        assert_eq!(mixed.convert(DType::F32), exact, "{kind}");
        let model = Sequential::new([4, 5, 3]).add(layer).build().unwrap();
        let (kept, ..) = call(&model, &[], std::slice::from_ref(&x), |_, cx| cx);
        assert_eq!(kept[0] == x, !of_prediction, "{kind}");
    }
    let four = Sequential::new([4, 5, 4]).add(RandomHue::new(0.1)).build();
    let four = four.unwrap_err().to_string();
    assert!(
        four.contains("expected images [batch, height, width, 3], got f32[batch,4,5,4]"),
        "{four}"
    );
}

/// Each layer that draws numbers.
fn all() -> [LayerSpec; 9] {
    [
        RandomShear::new(0.2, 0.3).into(),
        RandomPerspective::new(0.5).into(),
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
fn settings_of_colours_are_checked() {
    let refused = |layer: LayerSpec| {
        let stack = Sequential::new([4, 5, 3]).add(layer);
        stack.build().unwrap_err().to_string()
    };
    let sharp = refused(RandomSharpness::new([-0.1, 0.5]).into());
    assert!(
        sharp.contains("`factor` must be in 0.0..=1.0, got -0.1"),
        "{sharp}"
    );
    let gray = refused(RandomGrayscale::new(1.5).into());
    assert!(
        gray.contains("`factor` must be in 0.0..=1.0, got 1.5"),
        "{gray}"
    );
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
