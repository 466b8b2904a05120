//! Folders of images as data: examples at random, what cannot be read, mixed batches.

use phalanx::data::{Batch, Dataset, HostTensor, ImageFolder, cut_mix, mix_up};
use phalanx::image::{Decoder, ImagePipeline, Region, Scale};
use safetensors::SafeTensors;

use crate::golden;

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

pub(crate) fn plan() -> ImagePipeline {
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
