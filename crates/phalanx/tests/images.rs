//! Pixels against TensorFlow's: tests/golden/tensorflow/make_images.py made them.

use phalanx::image::{Channels, Decoder, DecoderOptions, Idct, Pixels, Window};
use safetensors::SafeTensors;

const GOLDEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/golden/tensorflow/images.safetensors"
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

#[test]
fn damaged_files_are_errors_with_a_place_and_a_next_action() {
    let bytes = golden();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut decoder = Decoder::default();
    for name in [
        "420_sequential_q75.jpg",
        "422_progressive_q75.jpg",
        "rgb0.png",
        "lossless0.webp",
        "lossy0.webp",
    ] {
        let file = tensors
            .tensor(&format!("file/{name}"))
            .unwrap()
            .data()
            .to_vec();
        for keep in [0, 1, 3, 11, 30, file.len() / 2, file.len() * 3 / 4] {
            let error = decoder.decode(&file[..keep]).expect_err(name).to_string();
            assert!(
                error.contains("byte ") && error.contains("; "),
                "{name}, {keep} bytes: {error}"
            );
        }
    }
    let jpeg = tensors.tensor("file/420_sequential_q75.jpg").unwrap();
    let mut small = Decoder::new(DecoderOptions {
        max_pixels: 100,
        ..DecoderOptions::default()
    });
    for name in ["420_sequential_q75.jpg", "rgb0.png", "lossless0.webp"] {
        let file = tensors.tensor(&format!("file/{name}")).unwrap();
        let error = small.decode(file.data()).unwrap_err().to_string();
        assert!(error.contains("the most accepted is 100"), "{error}");
    }
    let beyond = Window {
        x: 1,
        ..Window::of(40, 40)
    };
    let error = decoder
        .open(jpeg.data())
        .unwrap()
        .read(&beyond, |_, _| {})
        .unwrap_err();
    assert!(
        error.to_string().contains("not inside the image"),
        "{error}"
    );
}

#[test]
fn a_file_does_not_see_the_tables_of_the_one_before() {
    let bytes = golden();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let whole = tensors
        .tensor("file/420_sequential_q75.jpg")
        .unwrap()
        .data();
    let mut decoder = Decoder::default();
    decoder.decode(whole).unwrap();
    // Its Huffman tables (marker c4) are made comments (fe).
    let mut without = whole.to_vec();
    for at in 0..without.len() - 1 {
        if without[at..].starts_with(&[0xff, 0xc4]) {
            without[at + 1] = 0xfe;
        }
    }
    let error = decoder.decode(&without).unwrap_err().to_string();
    assert!(error.contains("a table that was not given"), "{error}");
}
