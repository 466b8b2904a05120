//! Files that are damaged, cut, or made to cost much.

use phalanx::image::{Decoder, DecoderOptions, ImagePipeline, Scale, Window};
use safetensors::SafeTensors;

use crate::{ODD, decode, difference, folders::plan, golden};

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

/// A WebP file of these chunks, by their names.
fn webp(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
    let chunk = |(name, data): &(&[u8; 4], &[u8])| {
        let len = u32::try_from(data.len()).unwrap();
        let pad = vec![0; data.len() % 2];
        [&name[..], &len.to_le_bytes(), data, &pad].concat()
    };
    let chunks: Vec<u8> = chunks.iter().flat_map(chunk).collect();
    let len = u32::try_from(4 + chunks.len()).unwrap();
    [b"RIFF", &len.to_le_bytes()[..], b"WEBP", &chunks].concat()
}

/// Two sizes as WebP announces them: less by one, three bytes each.
fn announced(width: u32, height: u32) -> Vec<u8> {
    let bytes = [width, height].map(|size| (size - 1).to_le_bytes());
    bytes.iter().flat_map(|bytes| bytes[..3].to_vec()).collect()
}

#[test]
fn a_webp_picture_of_another_size_than_announced_is_refused_before_it_is_decoded() {
    let bytes = golden();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let simple = tensors.tensor("file/lossy0.webp").unwrap().data();
    let whole = Decoder::default().decode(simple).unwrap();
    let (width, height) = (whole.width as u32, whole.height as u32);
    let lossy = &simple[20..];
    let refused = |file: &[u8]| {
        let error = Decoder::default().decode(file).expect_err("a refusal");
        let error = error.to_string();
        assert!(error.contains("and it announces"), "{error}");
        error
    };
    let still = |width, height, lossy: &[u8]| {
        let head = [&[0; 4][..], &announced(width, height)].concat();
        webp(&[(b"VP8X", &head), (b"VP8 ", lossy)])
    };
    assert_eq!(
        Decoder::default()
            .decode(&still(width, height, lossy))
            .unwrap(),
        whole
    );
    let mut large = lossy.to_vec();
    large[6..10].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    let error = refused(&still(1, 1, &large));
    assert!(
        error.contains("16383 x 16383 pixels, and it announces 1 x 1;"),
        "{error}"
    );
    // A frame with alpha.
    let animated = |width, height| {
        let alpha = vec![0; 1 + (width * height) as usize];
        let parts = webp(&[(b"ALPH", &alpha), (b"VP8 ", lossy)]);
        let frame = [
            &[0; 6][..],
            &announced(width, height),
            &[0; 4],
            &parts[12..],
        ]
        .concat();
        let head = [&[0x12, 0, 0, 0][..], &announced(width, height)].concat();
        webp(&[(b"VP8X", &head), (b"ANIM", &[0; 6]), (b"ANMF", &frame)])
    };
    let decoded = Decoder::default().decode(&animated(width, height));
    assert_eq!(decoded.unwrap().width, whole.width);
    refused(&animated(width - 1, height - 1));
    refused(&animated(width + 1, height + 1));
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
