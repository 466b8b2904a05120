//! Pixels against TensorFlow's: make_images.py, make_resized.py and make_odd.py in tests/golden/tensorflow made them.

mod damaged;
mod folders;

use phalanx::image::{
    Channels, Decoder, DecoderOptions, Fill, Idct, Pixels, Window, adjust_brightness,
    adjust_contrast, adjust_hue, adjust_saturation, resize, rotate,
};
use safetensors::SafeTensors;

const GOLDEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/golden/tensorflow/images.safetensors"
);

const RESIZED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/golden/tensorflow/resized.safetensors"
);

const ODD: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/golden/tensorflow/odd.safetensors"
);

fn golden() -> Vec<u8> {
    std::fs::read(GOLDEN).expect("the golden file")
}

/// Largest and mean difference.
fn difference(got: &[u8], expected: &[u8]) -> (u8, f64) {
    assert_eq!(got.len(), expected.len());
    let each = got.iter().zip(expected).map(|(a, b)| a.abs_diff(*b));
    let sum: f64 = each.clone().map(f64::from).sum();
    (each.max().unwrap_or(0), sum / got.len() as f64)
}

fn decode(bytes: &[u8], options: &DecoderOptions) -> Pixels {
    Decoder::new(options.clone()).decode(bytes).unwrap()
}

#[test]
fn pixels_are_those_of_tensorflow() {
    let bytes = golden();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let ways = [
        ("fast", Idct::Fast, Channels::Rgb),
        ("accurate", Idct::Accurate, Channels::Rgb),
        ("gray", Idct::Fast, Channels::Gray),
    ];
    let (mut images, mut means) = (0, 0.0);
    for (way, idct, channels) in ways {
        let options = DecoderOptions {
            idct,
            channels,
            ..DecoderOptions::default()
        };
        for (name, expected) in tensors.iter() {
            let Some(file) = name
                .strip_prefix(way)
                .and_then(|rest| rest.strip_prefix('/'))
            else {
                continue;
            };
            let pixels = decode(
                tensors.tensor(&format!("file/{file}")).unwrap().data(),
                &options,
            );
            let dims = [pixels.height, pixels.width, pixels.channels];
            assert_eq!(dims, expected.shape(), "{name}");
            let (most, mean) = difference(&pixels.bytes, expected.data());
            // The one decoder that is not libjpeg's twin is that of lossy WebP.
            let bound = if name.contains("lossy") { 3 } else { 0 };
            assert!(
                most <= bound && mean <= 1.0,
                "{name}: {most} at most, {mean} on average"
            );
            images += 1;
            means += mean;
        }
    }
    assert!(images > 100, "{images} comparisons");
    assert!(means / f64::from(images) < 0.05);
}

#[test]
fn a_window_is_cut_from_the_whole() {
    let bytes = golden();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut decoder = Decoder::default();
    for (name, file) in tensors.iter() {
        if !name.starts_with("file/") {
            continue;
        }
        let whole = decoder.decode(file.data()).unwrap();
        let (height, width) = (whole.height, whole.width);
        let windows = [
            (0, 0, 1, 1),
            (height - 1, width - 1, 1, 1),
            (
                height / 2,
                width / 3,
                height - height / 2,
                width - width / 3,
            ),
            (
                height / 3,
                0,
                height.div_ceil(3).min(height - height / 3),
                width,
            ),
            (0, width / 2, height, (width - width / 2).min(17)),
            (height / 2, width / 2, 1, 1),
        ];
        for (y, x, rows, columns) in windows {
            let window = Window {
                x,
                y,
                width: columns,
                height: rows,
            };
            let mut got = Vec::new();
            let image = decoder.open(file.data()).unwrap();
            image
                .read(&window, |_, row| got.extend_from_slice(row))
                .unwrap();
            let expected = (y..y + rows).flat_map(|y| {
                let start = (y * width + x) * 3;
                whole.bytes[start..start + columns * 3].iter().copied()
            });
            assert!(expected.eq(got), "{name} {window:?}");
        }
    }
}

/// The largest difference of f32 values.
fn off(got: &[f32], expected: &[u8]) -> f32 {
    let expected = expected
        .chunks_exact(4)
        .map(|v| f32::from_le_bytes(v.try_into().unwrap()));
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).fold(0.0, |most, (got, expected)| {
        most.max((got - expected).abs())
    })
}

#[test]
fn sizes_and_colours_change_as_in_tensorflow() {
    let bytes = golden();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let image = tensors.tensor("image").unwrap();
    let pixels = Pixels {
        height: image.shape()[0],
        width: image.shape()[1],
        channels: 3,
        bytes: image.data().to_vec(),
    };
    let unit = tensors.tensor("unit").unwrap();
    let start: Vec<f32> = unit
        .data()
        .chunks_exact(4)
        .map(|v| f32::from_le_bytes(v.try_into().unwrap()))
        .collect();
    let mut compared = 0;
    for (name, expected) in tensors.iter() {
        let Some((what, how)) = name.split_once('/') else {
            continue;
        };
        let number = || how.split('/').next().unwrap().parse::<f32>().unwrap();
        let mut got = start.clone();
        match what {
            "resize" => {
                let (height, width) = (expected.shape()[0], expected.shape()[1]);
                got = resize(&pixels, height, width, how.ends_with("antialias"));
                got.iter_mut().for_each(|value| *value /= 255.0);
                let scaled: Vec<u8> = expected
                    .data()
                    .chunks_exact(4)
                    .flat_map(|v| (f32::from_le_bytes(v.try_into().unwrap()) / 255.0).to_le_bytes())
                    .collect();
                assert!(off(&got, &scaled) < 1e-5, "{name}: {}", off(&got, &scaled));
                compared += 1;
                continue;
            }
            "brightness" => adjust_brightness(&mut got, number()),
            "contrast" => adjust_contrast(&mut got, 3, number()),
            "saturation" => adjust_saturation(&mut got, number()),
            "hue" => adjust_hue(&mut got, number()),
            "rotation" => {
                let fill = match how.rsplit('/').next().unwrap() {
                    "constant" => Fill::Constant,
                    "nearest" => Fill::Nearest,
                    _ => Fill::Reflect,
                };
                got = rotate(&got, (unit.shape()[0], unit.shape()[1]), number(), fill);
            }
            _ => continue,
        }
        assert!(
            off(&got, expected.data()) < 2e-5,
            "{name}: {}",
            off(&got, expected.data())
        );
        compared += 1;
    }
    assert_eq!(compared, 14 + 1 + 6 + 6);
}

/// `NAME/HEIGHTxWIDTH/KIND` of resized.safetensors.
fn resized_name(name: &str) -> Option<(&str, usize, usize, bool)> {
    let [file, size, kind] = name.split('/').collect::<Vec<_>>()[..] else {
        return None;
    };
    let (height, width) = size.split_once('x')?;
    Some((
        file,
        height.parse().ok()?,
        width.parse().ok()?,
        kind == "antialias",
    ))
}

#[test]
fn decoded_and_resized_images_are_those_of_tensorflow() {
    let (bytes, resized) = (golden(), std::fs::read(RESIZED).expect("the golden file"));
    let files = SafeTensors::deserialize(&bytes).unwrap();
    let resized = SafeTensors::deserialize(&resized).unwrap();
    let mut images = std::collections::BTreeSet::new();
    let (mut worst, mut compared) = (0.0f32, 0);
    for (name, expected) in resized.iter() {
        let Some((file, height, width, antialias)) = resized_name(name) else {
            continue;
        };
        let key = format!("file/{file}");
        let file_bytes = files
            .tensor(&key)
            .or_else(|_| resized.tensor(&key))
            .unwrap();
        let pixels = decode(file_bytes.data(), &DecoderOptions::default());
        let got = resize(&pixels, height, width, antialias);
        let stride = (height * width).div_ceil(60);
        let got_some = got.chunks_exact(3).step_by(stride).flatten();
        let some = expected.data().as_chunks::<2>().0;
        assert_eq!(some.len(), (height * width).div_ceil(stride) * 3, "{name}");
        let off = got_some
            .zip(some)
            .map(|(got, &some)| (got - f32::from(u16::from_le_bytes(some)) / 256.0).abs());
        let (most, sum) = off.fold((0.0f32, 0.0f32), |(most, sum), off| {
            (most.max(off), sum + off)
        });
        // The one decoder that is not libjpeg's twin is that of lossy WebP; 1/512 is the golden file's own rounding.
        let bound = if file.contains("lossy") { 3.0 } else { 0.005 };
        assert!(
            most <= bound && sum / some.len() as f32 <= 1.0,
            "{name}: {most} of 255"
        );
        let mean = resized.tensor(&format!("{name}/mean")).unwrap();
        let got_mean = got.iter().map(|&v| f64::from(v)).sum::<f64>() / got.len() as f64;
        let mean = f32::from_le_bytes(mean.data().try_into().unwrap());
        assert!(
            (got_mean - f64::from(mean)).abs() < f64::from(bound.min(1.0)),
            "{name}: {got_mean}, not {mean}"
        );
        worst = worst.max(most);
        compared += 1;
        images.insert(file.to_owned());
    }
    assert!(
        images.len() >= 50 && compared == 4 * images.len(),
        "{compared}"
    );
    assert!(worst > 0.0 && worst <= 3.0);
}
