//! Pixels against TensorFlow's: make_images.py, make_resized.py and make_odd.py in tests/golden/tensorflow made them.

use phalanx::data::{Batch, Dataset, HostTensor, ImageFolder, cut_mix, mix_up};
use phalanx::image::{
    Channels, Decoder, DecoderOptions, Fill, Idct, ImagePipeline, Pixels, Region, Scale, Window,
    adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation, resize, rotate,
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
fn odd_files_are_read_as_tensorflow_reads_them() {
    let bytes = std::fs::read(ODD).expect("the golden file");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut compared = 0;
    for (name, file) in tensors.iter() {
        let Some(name) = name.strip_prefix("file/") else {
            continue;
        };
        let pixels = decode(file.data(), &DecoderOptions::default());
        let expected = tensors.tensor(name).unwrap();
        assert_eq!([pixels.height, pixels.width, 3], expected.shape(), "{name}");
        let (most, _) = difference(&pixels.bytes, expected.data());
        assert_eq!(most, 0, "{name}");
        compared += 1;
    }
    assert_eq!(compared, 8);
}

/// Where markers of a kind are.
fn places_of(marker: u8, file: &[u8]) -> Vec<usize> {
    let pairs = file.windows(2).enumerate();
    pairs
        .filter_map(|(at, pair)| (pair == [0xff, marker]).then_some(at))
        .collect()
}

/// The file with height and width of its frame (marker c2) replaced.
fn sized(file: &[u8], height: u16, width: u16) -> Vec<u8> {
    let at = places_of(0xc2, file)[0];
    let mut changed = file.to_vec();
    changed[at + 5..at + 7].copy_from_slice(&height.to_be_bytes());
    changed[at + 7..at + 9].copy_from_slice(&width.to_be_bytes());
    changed
}

/// The file with its second refinement of first coefficients `count` times more often.
fn refined_again(file: &[u8], count: usize) -> Vec<u8> {
    let scans = places_of(0xda, file);
    let is_refinement = |at: &&usize| file[**at + 11] == 0 && file[**at + 13] >> 4 == 1;
    let start = *scans.iter().find(is_refinement).expect("a refinement");
    let len = file[start + 2..]
        .windows(2)
        .position(|pair| pair[0] == 0xff && pair[1] != 0);
    let end = start + 2 + len.unwrap();
    [&file[..end], &file[start..end].repeat(count), &file[end..]].concat()
}

#[test]
fn small_files_of_much_work_are_refused_before_it_is_done() {
    let bytes = golden();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let progressive = tensors.tensor("file/444_progressive_q75.jpg").unwrap();
    let file = progressive.data();
    let refused = |file: &[u8], options: &DecoderOptions| {
        let decoded = Decoder::new(options.clone()).decode(file);
        decoded.expect_err("a refusal").to_string()
    };
    let default = DecoderOptions::default();
    let error = refused(&sized(file, 8000, 8000), &default);
    assert!(error.contains("too short for the picture; get"), "{error}");
    let few = DecoderOptions {
        max_coefficient_bytes: 2000,
        ..default.clone()
    };
    let error = refused(file, &few);
    assert!(
        error.contains("the most accepted are 2000; save"),
        "{error}"
    );

    let error = refused(&refined_again(file, 70), &default);
    assert!(error.contains("scan 65 is one too many"), "{error}");
    let whole = Decoder::default().decode(file).unwrap();
    let blocks = whole.height.div_ceil(8) * whole.width.div_ceil(8) * 3;
    let just = DecoderOptions {
        max_coefficient_bytes: blocks * 128,
        ..default.clone()
    };
    assert_eq!(decode(file, &just), whole);
    assert_eq!(decode(&refined_again(file, 8), &just), whole);
    let error = refused(&refined_again(file, 20), &just);
    assert!(error.contains("is one too many"), "{error}");

    let last = *places_of(0xda, file).last().unwrap();
    let coarse = [&file[..last], &[0xff, 0xd9]].concat();
    let error = refused(&coarse, &default);
    assert!(
        error.contains("the finer parts of the picture are missing"),
        "{error}"
    );

    let mut png = tensors.tensor("file/rgb0.png").unwrap().data().to_vec();
    for at in [16, 20] {
        png[at..at + 4].copy_from_slice(&8000u32.to_be_bytes());
    }
    let crc = crc32(&png[12..29]);
    png[29..33].copy_from_slice(&crc.to_be_bytes());
    let error = refused(&png, &default);
    assert!(error.contains("too short for its picture; get"), "{error}");
}

#[test]
fn files_cut_between_scans_are_refused() {
    let bytes = golden();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let progressive = tensors.tensor("file/444_progressive_q75.jpg").unwrap();
    let file = progressive.data();
    let scans = places_of(0xda, file);
    let end = *places_of(0xd9, file).last().unwrap();
    let decoded = |parts: &[&[u8]]| Decoder::default().decode(&parts.concat());
    let error = |parts: &[&[u8]]| decoded(parts).expect_err("a refusal").to_string();
    for &cut in &scans[1..] {
        error(&[&file[..cut]]);
    }
    // TensorFlow refuses it too.
    let cut = error(&[&file[..end]]);
    assert!(cut.contains("without the marker of its end; get"), "{cut}");
    // A scan for each component.
    let apart = tensors.tensor("file/extra_410.jpg").unwrap();
    let apart = apart.data();
    let scans = places_of(0xda, apart);
    assert_eq!(scans.len(), 3);
    for &cut in &scans[1..] {
        let error = error(&[&apart[..cut]]);
        assert!(
            error.contains("without the marker of its end; get"),
            "{error}"
        );
    }
    // One scan of all, and no end: nothing can be missing.
    let single = tensors.tensor("file/444_sequential_q75.jpg").unwrap();
    let single = single.data();
    let end = *places_of(0xd9, single).last().unwrap();
    assert_eq!(
        decoded(&[&single[..end]]).unwrap(),
        decoded(&[single]).unwrap()
    );
}

/// The checksum of PNG.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

#[test]
fn deviations_are_above_zero() {
    for std in [0.0, -1.0, f32::NAN] {
        let scale = Scale::Standard {
            mean: [0.5; 3],
            std: [0.2, std, 0.2],
        };
        let error = ImagePipeline { scale, ..plan() }
            .check()
            .unwrap_err()
            .to_string();
        assert!(error.contains("expected finite numbers"), "{error}");
    }
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

/// A folder of the golden files, as many classes as kinds of files.
fn folder(name: &str) -> std::path::PathBuf {
    let bytes = golden();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let folder = std::env::temp_dir().join(format!("phalanx-images-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    for (name, file) in tensors.iter() {
        if let Some(name) = name.strip_prefix("file/") {
            let class = folder.join(name.rsplit('.').next().unwrap());
            std::fs::create_dir_all(&class).unwrap();
            std::fs::write(class.join(name), file.data()).unwrap();
        }
    }
    folder
}

fn plan() -> ImagePipeline {
    ImagePipeline {
        region: Region::Crop,
        flip: true,
        ..ImagePipeline::new(16, 12)
    }
}

#[test]
fn random_examples_follow_from_seed_epoch_and_index_alone() {
    let folder = ImageFolder::open(folder("keyed"), 1 << 20).unwrap();
    assert_eq!(folder.classes(), ["jpg", "png", "webp"]);
    let colours = ImagePipeline {
        brightness: 0.2,
        contrast: 0.3,
        saturation: 0.3,
        hue: 0.1,
        rotation: 0.3,
        region: Region::Area { least: 0.3 },
        ..plan()
    };
    for plan in [plan(), colours] {
        let data = folder.dataset(&plan, 7).unwrap().shuffle(3);
        let whole: Vec<_> = data.batch(8).iter(1, 0).map(Result::unwrap).collect();
        let threads: Vec<_> = data
            .batch(8)
            .threads(3)
            .iter(1, 0)
            .map(Result::unwrap)
            .collect();
        assert_eq!(whole, threads);
        for (i, row) in (0..20).map(|i| (i, data.get(1, i).unwrap())) {
            let batched = &whole[i / 8].x[0];
            let row_bytes = batched.row_bytes();
            assert_eq!(
                row.x[0].bytes(),
                &batched.bytes()[i % 8 * row_bytes..][..row_bytes],
                "example {i}"
            );
        }
        let other = data.batch(8).get(2, 0).unwrap();
        assert_ne!(other.x, whole[0].x);
    }
    let fixed = folder.dataset(&plan().without_augmentation(), 7).unwrap();
    assert_eq!(fixed.get(0, 3).unwrap(), fixed.get(5, 3).unwrap());
}

#[test]
fn a_crop_is_a_part_of_the_image_or_its_mirror() {
    let folder = ImageFolder::open(folder("crop"), 1 << 20).unwrap();
    let at = folder
        .images()
        .iter()
        .position(|(path, _)| path.ends_with("444_sequential_q95.jpg"))
        .unwrap();
    let whole = Decoder::default()
        .decode(&std::fs::read(&folder.images()[at].0).unwrap())
        .unwrap();
    let plan = ImagePipeline {
        size: (10, 11),
        scale: Scale::Bytes,
        ..plan()
    };
    let data = folder.dataset(&plan, 1).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for epoch in 0..40 {
        let got: Vec<u8> = data.get(epoch, at).unwrap().x[0]
            .f32s()
            .iter()
            .map(|&v| v as u8)
            .collect();
        let pixel = |y: usize, x: usize| &whole.bytes[(y * whole.width + x) * 3..][..3];
        let mut places = (0..=whole.height - 10)
            .flat_map(|y| (0..=whole.width - 11).flat_map(move |x| [(y, x, false), (y, x, true)]));
        let found = places.find(|&(y, x, flip)| {
            (0..110).all(|i| {
                let column = if flip { 10 - i % 11 } else { i % 11 };
                pixel(y + i / 11, x + column) == &got[i * 3..][..3]
            })
        });
        seen.insert(found.expect("a part of the image"));
    }
    assert!(seen.len() > 30 && seen.iter().any(|s| s.2) && seen.iter().any(|s| !s.2));
}

#[test]
fn a_corrupt_image_is_named_or_left_out_and_counted() {
    let path = folder("corrupt");
    let bad = path.join("png").join("rgb0.png");
    let bytes = std::fs::read(&bad).unwrap();
    std::fs::write(&bad, &bytes[..bytes.len() / 2]).unwrap();
    let folder = ImageFolder::open(&path, 1 << 20).unwrap();
    let data = folder.dataset(&plan(), 0).unwrap();
    let batches = data.batch(64);
    let error = batches
        .iter(0, 0)
        .find_map(Result::err)
        .unwrap()
        .to_string();
    assert!(
        error.contains("rgb0.png: the image, byte 0: the PNG file is damaged"),
        "{error}"
    );
    let skipping = data.skip_corrupt();
    let rows: usize = skipping
        .batch(64)
        .iter(0, 0)
        .map(|batch| batch.unwrap().rows())
        .sum();
    assert_eq!((rows, skipping.skipped()), (folder.images().len() - 1, 1));
}

#[test]
fn validation_is_drawn_by_the_seed() {
    let folder = ImageFolder::open(folder("split"), 1 << 20).unwrap();
    let (train, held) = folder.validation_split(0.25, 9).unwrap();
    assert_eq!(
        held.images().len(),
        (folder.images().len() as f64 * 0.25).round() as usize
    );
    let mut both = [train.images(), held.images()].concat();
    both.sort();
    assert_eq!(both, folder.images());
    assert_eq!(
        folder.validation_split(0.25, 9).unwrap().1.images(),
        held.images()
    );
    assert_ne!(
        folder.validation_split(0.25, 8).unwrap().1.images(),
        held.images()
    );
    let error = folder.validation_split(1.0, 0).unwrap_err().to_string();
    assert!(error.contains("leaves a part empty"), "{error}");
}

#[test]
fn mixed_batches_keep_their_totals() {
    let x = HostTensor::new(
        [4, 4, 4, 1],
        &(0..64).map(|v| (v / 16) as f32).collect::<Vec<_>>(),
    );
    let y = HostTensor::new([4], &[0i32, 1, 2, 1]);
    let data = Dataset::from_arrays(x, y).unwrap().batch(4);
    for mix in [mix_up, cut_mix] {
        let mixed = data.map_random(5, move |key, batch| mix(key, &batch, 3, 1.0));
        let batch = mixed.get(0, 0).unwrap();
        let labels = batch.y[0].f32s();
        assert_eq!(batch.y[0].dims(), [4, 3]);
        for row in labels.chunks(3) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6 && row.iter().all(|&v| v >= 0.0));
        }
        let total: f32 = batch.x[0].f32s().iter().sum();
        // Image k is all k, its class is 0, 1, 2 or 1: what is left of it shows in both alike.
        assert!(total > 0.0 && total < 192.0);
        assert_eq!(mixed.get(0, 0).unwrap(), batch);
        assert_ne!(mixed.get(1, 0).unwrap(), batch);
    }
    // Each of class 1 weighs 3, as its share of a mixed one does.
    let weights = HostTensor::new([4], &[1.0f32, 3.0, 1.0, 3.0]);
    let weighted = Batch {
        weight: Some(weights),
        ..data.get(0, 0).unwrap()
    };
    for mix in [mix_up, cut_mix] {
        let batch = mix(9, &weighted, 3, 1.0).unwrap();
        let shares = batch.y[0].f32s();
        let expected = shares.chunks(3).map(|row| 1.0 + 2.0 * row[1]);
        let pairs = expected.zip(batch.weight.unwrap().f32s());
        for (expected, weight) in pairs {
            assert!(
                (expected - weight).abs() < 1e-6,
                "{weight}, expected {expected}"
            );
        }
    }
    let one = mix_up(0, &data.get(0, 0).unwrap(), 1, 1.0).unwrap_err();
    assert!(
        one.to_string().contains("2 or more classes, got 1"),
        "{one}"
    );
    assert!(
        mix_up(0, &data.get(0, 0).unwrap(), 2, 1.0)
            .unwrap_err()
            .to_string()
            .contains("class from 0 to 1")
    );
    assert!(mix_up(0, &data.get(0, 0).unwrap(), 3, 0.0).is_err());
}
