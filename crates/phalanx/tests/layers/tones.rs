//! Layers that change images at random: what is drawn, against its ranges and against formulas.

use phalanx::nn::{
    AugMix, ContrastLimitedAdaptiveHistogramEqualization, LayerSpec, RandAugment,
    RandomElasticTransform, RandomErasing, RandomGaussianBlur, RandomPerspective,
    RandomPosterization, Sequential, Solarization,
};
use phalanx_graph::{HostTensor, Shape};

use crate::modes::{check_share, noisy};
use crate::{array, golden};

#[test]
fn bits_are_drawn_from_the_first_number_to_below_the_second() {
    let x = HostTensor::full(Shape::f32([600, 1, 1, 1]), 255.0);
    let bits = |layer: RandomPosterization| -> Vec<f64> {
        let found = noisy(layer, &x, [1, 2], 0).to_f64();
        found.iter().map(|y| 8.0 - (256.0 - y).log2()).collect()
    };
    for (layer, all) in [
        (RandomPosterization::new([2.0, 5.0]), [2.0, 3.0, 4.0]),
        (RandomPosterization::new(4.0), [1.0, 2.0, 3.0]),
    ] {
        let found = bits(layer);
        assert!(found.iter().all(|bits| all.contains(bits)), "{found:?}");
        for one in all {
            check_share("bits", 1.0 / 3.0, found.iter().map(|&bits| bits == one));
        }
    }
}

#[test]
fn thresholds_are_drawn_in_parts_of_the_range() {
    // What is above is turned over.
    let values: Vec<f32> = (0..=100).map(|i| i as f32 / 100.0).collect();
    let x = HostTensor::new([600, 1, 101, 1], &values.repeat(600));
    let layer = Solarization::new(0.0, [0.2, 0.6]).value_range([0.0, 1.0]);
    let found = noisy(layer, &x, [1, 2], 0).f32s();
    let thresholds: Vec<usize> = found
        .chunks(101)
        .map(|image| {
            let kept = image
                .iter()
                .zip(&values)
                .take_while(|(y, x)| (*y - *x).abs() < 1e-5);
            let kept = kept.count();
            let rest = image.iter().zip(&values).skip(kept);
            assert!(rest.into_iter().all(|(y, x)| (y - (1.0 - x)).abs() < 1e-5));
            kept
        })
        .collect();
    assert!(thresholds.iter().all(|kept| (20..=61).contains(kept)));
    check_share(
        "below the middle",
        0.5,
        thresholds.iter().map(|&kept| kept <= 40),
    );
    check_share(
        "below a quarter",
        0.25,
        thresholds.iter().map(|&kept| kept <= 30),
    );
}

#[test]
fn a_rectangle_of_an_image_is_erased() {
    let (height, width) = (20, 30);
    let x = HostTensor::full(Shape::f32([400, height, width, 3]), 5.0);
    let layer = RandomErasing::new([1.0, 1.0])
        .scale([0.04, 0.25])
        .fill_value([1.0, 2.0, 300.0]);
    let found = noisy(layer, &x, [1, 2], 0).f32s();
    let mut sides = Vec::new();
    for image in found.chunks(height * width * 3) {
        let is_erased: Vec<bool> = image
            .chunks(3)
            .map(|pixel| {
                assert!(pixel == [5.0; 3] || pixel == [1.0, 2.0, 255.0], "{pixel:?}");
                pixel[0] == 1.0
            })
            .collect();
        let rows = (0..height).filter(|y| (0..width).any(|x| is_erased[y * width + x]));
        let columns = (0..width).filter(|x| (0..height).any(|y| is_erased[y * width + x]));
        let (rows, columns): (Vec<_>, Vec<_>) = (rows.collect(), columns.collect());
        let erased = is_erased.iter().filter(|&&erased| erased).count();
        assert_eq!(erased, rows.len() * columns.len(), "no rectangle");
        sides.push((rows, columns));
    }
    // From the root of 0.04 to that of 0.25, and a pixel for where it begins.
    assert!(
        sides
            .iter()
            .all(|(rows, columns)| (4..=11).contains(&rows.len())
                && (6..=16).contains(&columns.len()))
    );
    // The root of a number drawn from 0.04 to 0.25 is below 0.35 in 0.3929 of the cases; sides are whole, on the mean the same.
    let mean = sides.iter().map(|(rows, _)| rows.len() as f64).sum::<f64>() / 400.0;
    let expected = 20.0 * (2.0 / 3.0) * (0.125 - 0.008) / 0.21;
    assert!((mean - expected).abs() < 0.3, "{mean}, expected {expected}");
    check_share(
        "erased above the middle",
        0.5,
        sides.iter().map(|(rows, _)| {
            let middle = rows[0] + rows[rows.len() - 1];
            middle < height - 1 || middle == height - 1 && rows[0] % 2 == 0
        }),
    );
    let some = noisy(RandomErasing::new(0.5), &x, [1, 2], 0).f32s();
    let kept = some
        .chunks(height * width * 3)
        .map(|image| image.iter().all(|&x| x == 5.0));
    check_share("kept", 0.75, kept);
    assert!(some.iter().all(|x| (0.0..=255.0).contains(x)));
    let two = RandomErasing::new(1.0).fill_value([1.0, 2.0]);
    let error = Sequential::new([4, 4, 3]).add(two).build().unwrap_err();
    let expected = "`fill_value` must be a number, or one for each of the 3 channels, got 2";
    assert!(error.to_string().contains(expected), "{error}");
}

/// Of one white pixel the middle keeps a part that says how wide the Gaussian was.
#[test]
fn widths_of_blurs_are_drawn_for_each_image() {
    let mut pixels = [0.0f32; 9];
    pixels[4] = 1.0;
    let x = HostTensor::new([600, 3, 3, 1], &pixels.repeat(600));
    check_widths(&x, [0.4, 1.0], 0.55);
    check_widths(&x, [0.1, 2.0], 0.575);
}

/// A quarter of the widths drawn between two is below a number.
fn check_widths(x: &HostTensor, [least, most]: [f64; 2], quarter: f64) {
    let layer = RandomGaussianBlur::new(3, [least, most]).factor([1.0, 1.0]);
    let found = noisy(layer, x, [1, 2], 0).to_f64();
    let mut widths = [Vec::new(), Vec::new()];
    for image in found.chunks(9) {
        // exp(-1 / 2 s^2) is the share of a neighbour of the middle's.
        let width = |at: usize| (-0.5 / (image[at] / image[4]).ln()).sqrt();
        widths[0].push(width(1));
        widths[1].push(width(3));
        assert!((image[0] - image[1] * image[3] / image[4]).abs() < 1e-6);
        assert!((image.iter().sum::<f64>() - 1.0).abs() < 1e-5);
    }
    for widths in &widths {
        assert!(
            widths
                .iter()
                .all(|s| (least - 0.001..most + 0.001).contains(s)),
            "{widths:?}"
        );
        check_share("in a quarter", 0.25, widths.iter().map(|&s| s < quarter));
    }
    let pairs = widths[0].iter().zip(&widths[1]);
    check_share(
        "wider across",
        0.5,
        pairs.map(|(down, across)| across > down),
    );
}

/// Where the pixels of an image of places come from says where its corners went: these are drawn within their range.
#[test]
fn corners_are_moved_by_up_to_half_of_the_scale() {
    let (height, width, count) = (9, 11, 400);
    let places =
        (0..height * width).flat_map(|i| [(i % width) as f32 + 1.0, (i / width) as f32 + 1.0]);
    let places: Vec<f32> = places.collect();
    let x = HostTensor::new([count, height, width, 2], &places.repeat(count));
    let scale = 0.6;
    let layer = RandomPerspective::new(scale).factor([1.0, 1.0]);
    let found = noisy(layer, &x, [1, 2], 0).to_f64();
    let mut parts = [const { Vec::new() }; 4];
    for image in found.chunks(height * width * 2) {
        let at = |x: usize, y: usize| {
            let pixel = &image[(y * width + x) * 2..][..2];
            [pixel[0] - 1.0, pixel[1] - 1.0]
        };
        // a x / (c x + 1) along the upper edge: two pixels give a and c; b and d by the left one.
        let of_edge = |near: f64, far: f64| {
            let c = (far - 2.0 * near) / (2.0 * near - 2.0 * far);
            (near * (c + 1.0), c)
        };
        let (a, c) = of_edge(at(1, 0)[0], at(2, 0)[0]);
        let (b, d) = of_edge(at(0, 1)[1], at(0, 2)[1]);
        let (w, h) = (width as f64 - 1.0, height as f64 - 1.0);
        let inside = at(2, 3);
        let expected = [2.0 * a, 3.0 * b].map(|x| x / (2.0 * c + 3.0 * d + 1.0));
        assert!((inside[0] - expected[0]).abs() < 2e-3 && (inside[1] - expected[1]).abs() < 2e-3);
        // The corners that lead to those of the image.
        let (p, q) = (w / (a - w * c), h / (b - h * d));
        let (left, up) = (a - w * c, b - h * d);
        // left r - w d s = w and up s - h c r = h.
        let r = (w * up + w * d * h) / (left * up - w * d * h * c);
        let s = (h + h * c * r) / up;
        for (parts, part) in parts.iter_mut().zip([p / w, q / h, r / w, s / h]) {
            parts.push(part - 1.0);
        }
    }
    for parts in &parts {
        assert!(
            parts.iter().all(|part| part.abs() < scale / 2.0 + 0.01),
            "{parts:?}"
        );
        check_share("less", 0.5, parts.iter().map(|&part| part < 0.0));
        check_share(
            "much less",
            0.25,
            parts.iter().map(|&part| part < -scale / 4.0),
        );
    }
    let some = noisy(RandomPerspective::new(scale).factor(0.5), &x, [1, 2], 0).f32s();
    let kept = some.chunks(height * width * 2).map(|image| image == places);
    check_share("kept", 0.75, kept);
}

/// With a factor of 0 six ways change nothing, and the others are known.
#[test]
fn each_image_is_changed_by_ways_of_its_own() {
    let records = golden("image_layers.json");
    let ways = records.iter().filter(|record| {
        let name = record["name"].as_str().unwrap();
        name.starts_with("rand_augment_")
    });
    let ways: Vec<_> = ways.collect();
    assert_eq!(ways.len(), 5);
    let one = array(&ways[0]["input"]);
    let size = one.f32s().len();
    let x = HostTensor::new([1100, 5, 7, 3], &one.f32s().repeat(1100));
    let layer = RandAugment::new([0.0, 0.0]).num_ops(1);
    let found = noisy(layer, &x, [1, 2], 0).f32s();
    let is = |image: &[f32], other: &[f32]| {
        let mut pairs = image.iter().zip(other);
        pairs.all(|(a, b)| (a - b).abs() < 2e-3)
    };
    let mut known = vec![one.f32s()];
    known.extend(ways.iter().map(|way| array(&way["output"]).f32s()));
    let number = |image: &[f32]| known.iter().position(|way| is(image, way));
    let numbers: Vec<usize> = found
        .chunks(size)
        .map(|image| number(image).unwrap())
        .collect();
    check_share(
        "unchanged",
        6.0 / 11.0,
        numbers.iter().map(|&number| number == 0),
    );
    for way in 1..6 {
        check_share(
            "a way",
            1.0 / 11.0,
            numbers.iter().map(|&number| number == way),
        );
    }
    let none = noisy(RandAugment::new(1.0).num_ops(0), &x, [1, 2], 0);
    assert_eq!(none, x);
}

/// Of a flat image of 100 with a factor of 0: posterization makes 0 of it, solarization 155, and five of seven ways and none leave it as it is.
fn mixed(layer: AugMix) -> Vec<f64> {
    let x = HostTensor::full(Shape::f32([2400, 1, 1, 3]), 100.0);
    let found = noisy(layer.all_ops(false), &x, [1, 2], 0).to_f64();
    found.chunks(3).map(|pixel| pixel[0]).collect()
}

#[test]
fn images_are_mixed_in_proportions_of_a_beta_distribution() {
    // How many are below a quarter.
    for (alpha, expected) in [(0.5, 1.0 / 3.0), (1.0, 0.25), (2.0, 0.15625)] {
        let layer = AugMix::new([0.0, 0.0]).num_chains(1).chain_depth(1);
        let found = mixed(layer.alpha(alpha));
        let is_of = |y: f64, way: f64| (y - 100.0) * (way - 100.0) > 1e-3;
        let mut shares = Vec::new();
        for way in [0.0, 155.0] {
            check_share("a way", 0.125, found.iter().map(|&y| is_of(y, way)));
            let changed = found.iter().filter(|&&y| is_of(y, way));
            shares.extend(changed.map(|y| (y - way) / (100.0 - way)));
        }
        assert!(shares.iter().all(|share| (-1e-6..1.0).contains(share)));
        let is_below = shares.iter().map(|&share| share < 0.25);
        check_share("below a quarter", expected, is_below);
    }
}

/// The means of what images are moved by, and of its square, by those of a chain and of the proportions.
#[test]
fn chains_are_mixed_in_proportions_of_a_dirichlet_distribution() {
    let (first, second) = (
        (-100.0 + 55.0) / 8.0,
        (100.0f64.powi(2) + 55.0 * 55.0) / 8.0,
    );
    for (alpha, chains) in [(1.0, 1), (1.0, 3), (0.3, 4), (5.0, 3)] {
        let layer = AugMix::new([0.0, 0.0]).chain_depth(1).num_chains(chains);
        let moved: Vec<f64> = mixed(layer.alpha(alpha))
            .iter()
            .map(|y| y - 100.0)
            .collect();
        let one = (alpha + 1.0) / (chains as f64 * alpha + 1.0);
        // Of the square of a share that is left: its variance and the square of a half.
        let left = 0.25 / (2.0 * alpha + 1.0) + 0.25;
        let squares: Vec<f64> = moved.iter().map(|by| by * by).collect();
        for (found, expected) in [
            (moved, 0.5 * first),
            (squares, left * (one * second + (1.0 - one) * first * first)),
        ] {
            let count = found.len() as f64;
            let mean = found.iter().sum::<f64>() / count;
            let variance = found.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / count;
            assert!(
                (mean - expected).abs() < 5.0 * (variance / count).sqrt(),
                "{chains} chains with alpha {alpha}: {mean}, expected {expected}"
            );
        }
    }
    let kept = AugMix::new(1.0).chain_depth(0);
    assert!(mixed(kept).iter().all(|y| (y - 100.0).abs() < 1e-4));
}

/// Each image stands between itself and Keras' numbers of a way.
#[test]
fn mixed_images_are_between_keras_numbers() {
    let records = golden("image_layers.json");
    let of_ways = |name: &str| name.starts_with("rand_augment_");
    let ways = records
        .iter()
        .filter(|record| of_ways(record["name"].as_str().unwrap()));
    let ways: Vec<_> = ways.collect();
    let one = array(&ways[0]["input"]).to_f64();
    let known: Vec<Vec<f64>> = ways
        .iter()
        .map(|way| array(&way["output"]).to_f64())
        .collect();
    let x: Vec<f32> = array(&ways[0]["input"]).f32s().repeat(200);
    let x = HostTensor::new([200, 5, 7, 3], &x);
    let layer = AugMix::new([0.0, 0.0]).num_chains(1).chain_depth(1);
    let found = noisy(layer, &x, [1, 2], 0).to_f64();
    let is_between = |image: &[f64], way: &[f64]| {
        let pairs = || image.iter().zip(way).zip(&one);
        let along: f64 = pairs().map(|((y, way), x)| (y - x) * (way - x)).sum();
        let length: f64 = pairs().map(|((_, way), x)| (way - x).powi(2)).sum();
        let part = along / length;
        (-1e-5..=1.0 + 1e-5).contains(&part)
            && pairs().all(|((y, way), x)| (y - x - part * (way - x)).abs() < 2e-3)
    };
    let is_kept = |image: &[f64]| image.iter().zip(&one).all(|(y, x)| (y - x).abs() < 1e-4);
    let mut changed = 0;
    for image in found.chunks(one.len()) {
        let is_known = known.iter().any(|way| is_between(image, way));
        assert!(is_kept(image) || is_known);
        changed += usize::from(!is_kept(image));
    }
    assert!(changed > 40, "{changed}");
}

#[test]
fn bent_images_are_drawn_by_chance() {
    let (height, width) = (24, 30);
    let values: Vec<f32> = (0..height * width).map(|at| (at / width) as f32).collect();
    let x = HostTensor::new([400, height, width, 1], &values.repeat(400));
    let layer = RandomElasticTransform::new([0.5, 1.0]).factor([0.5, 1.0]);
    let found = noisy(layer, &x, [1, 2], 0).f32s();
    let images = || found.chunks(values.len());
    check_share("kept", 0.25, images().map(|image| image == values));
    // Rows are moved either way.
    let inside = |image: &[f32]| f64::from(image[12 * width + 15]) - 12.0;
    let moved: Vec<f64> = images().map(inside).filter(|&by| by != 0.0).collect();
    check_share("up", 0.5, moved.iter().map(|&by| by < 0.0));
    let none = noisy(RandomElasticTransform::new(0.0), &x, [1, 2], 0).f32s();
    assert_eq!(none, values.repeat(400));
}

#[test]
fn settings_of_tones_are_checked() {
    let refused = |layer: LayerSpec| {
        let stack = Sequential::new([4, 5, 3]).add(layer);
        stack.build().unwrap_err().to_string()
    };
    let bits = refused(RandomPosterization::new([0.5, 9.0]).into());
    assert!(bits.contains("`factor` must be a whole number of bits from 1 to 8, or two in ascending order, got [0.5, 9.0]"), "{bits}");
    let even = refused(RandomGaussianBlur::new(4, 1.0).into());
    assert!(
        even.contains("`kernel_size` must be odd and below 1000, got [4, 4]"),
        "{even}"
    );
    let wide = refused(RandomGaussianBlur::new(3, 1.5).into());
    assert!(
        wide.contains("`sigma` must be in 0.0..=1.0, got 1.5"),
        "{wide}"
    );
    let endless = refused(RandomGaussianBlur::new(3, [0.1, f64::INFINITY]).into());
    assert!(
        endless.contains("`sigma` must be in 0.0..=3.4") && endless.contains("got inf"),
        "{endless}"
    );
    let far = refused(RandomPerspective::new(1.5).into());
    assert!(
        far.contains("`scale` must be in 0.0..=1.0, got 1.5"),
        "{far}"
    );
    let bent = refused(RandomElasticTransform::new([0.5, 1.5]).into());
    assert!(
        bent.contains("`scale` must be in 0.0..=1.0, got 1.5"),
        "{bent}"
    );
    let alpha = refused(AugMix::new(0.3).alpha(0.0).into());
    assert!(
        alpha.contains("`alpha` must be in 0.001..=1000000.0, got 0"),
        "{alpha}"
    );
    let tiles = ContrastLimitedAdaptiveHistogramEqualization::new(4.0, [8, 0]);
    let tiles = refused(tiles.into());
    assert!(
        tiles.contains("`tile_grid_size` must be in 1.0..=1024.0, got 0"),
        "{tiles}"
    );
    let gray = Sequential::new([4, 5, 1])
        .add(RandAugment::new(0.5))
        .build();
    let gray = gray.unwrap_err().to_string();
    assert!(
        gray.contains("expected images [batch, height, width, 3]"),
        "{gray}"
    );
}
