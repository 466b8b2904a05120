//! Files of images that stand in the records of TFRecord and WebDataset files.

use phalanx::data::{
    CorruptPolicy, Dataset, EncodedImage, EncodedImages, Features, Records, TfRecordOptions,
    TfRecords, WebDataset, WebSample,
};
use phalanx::image::ImagePipeline;
use phalanx::{Error, Result as Read};

use crate::config::{ExampleFiles, Examples};
use crate::example_rows::{absent, class, named};
use crate::image_rows::MAX_BYTES;
use crate::tfds_rows::split_of;

/// The images of files as examples, by a pipeline; where corrupt ones are skipped, the first must still be whole: a wrong name would
/// skip them all.
///
/// # Errors
/// Files that cannot be read, or whose first example has no image and class under these names.
pub(crate) fn images(
    data: &Examples,
    files: &ExampleFiles,
    pipeline: &ImagePipeline,
    seed: u64,
) -> Read<Dataset> {
    let (input, label) = named(&data.parts);
    let images = match files {
        ExampleFiles::TfRecord { .. } | ExampleFiles::Tfds { .. } => {
            let pattern = tfrecords(files)?;
            let records = TfRecords::open(&pattern, &tfrecord_options(data.corrupt))?;
            let image =
                move |bytes: Vec<u8>| of_features(&Features::parse(&bytes)?, &input, &label);
            opened(EncodedImages::new(records, image), pipeline, seed)
        }
        ExampleFiles::WebDataset { pattern } => {
            let records = WebDataset::open(pattern, MAX_BYTES)?;
            if records.is_empty() {
                return Err(Error::User(format!(
                    "{pattern} has no sample, such as 0001.jpg and 0001.cls; check the files"
                )));
            }
            let image = move |sample| of_sample(sample, &input, &label);
            opened(EncodedImages::new(records, image), pipeline, seed)
        }
        _ => Err(Error::Bug("files that hold no images".into())),
    }?;
    Ok(match data.corrupt {
        CorruptPolicy::Fail => images,
        CorruptPolicy::Skip => images.skip_corrupt(),
    })
}

fn opened(
    images: impl Records<Item = EncodedImage>,
    pipeline: &ImagePipeline,
    seed: u64,
) -> Read<Dataset> {
    if !images.is_empty() {
        images.get(0)?;
    }
    Dataset::from_images(images, pipeline, seed)
}

/// The pattern of the TFRecord files.
pub(crate) fn tfrecords(files: &ExampleFiles) -> Read<String> {
    match files {
        ExampleFiles::TfRecord { pattern } => Ok(pattern.clone()),
        _ => {
            let (folder, split) = split_of(files)?;
            folder.pattern(split)
        }
    }
}

/// How TFRecord files are read.
pub(crate) fn tfrecord_options(corrupt: CorruptPolicy) -> TfRecordOptions {
    TfRecordOptions {
        corrupt,
        ..TfRecordOptions::default()
    }
}

fn of_features(features: &Features, input: &str, label: &str) -> Read<EncodedImage> {
    for (name, key) in [(input, "input"), (label, "label")] {
        if features.get(name).is_none() {
            return Err(absent(features, name, key));
        }
    }
    let place = || format!("feature `{label}`");
    Ok(EncodedImage {
        bytes: features.bytes(input)?.to_vec(),
        class: numbered(&class(features, label)?.to_string()).map_err(|why| wrong(place(), why))?,
    })
}

fn of_sample(mut sample: WebSample, input: &str, label: &str) -> Read<EncodedImage> {
    let there: Vec<String> = sample.fields.keys().cloned().collect();
    let mut field = |name: &str, key: &str| {
        let absent = || {
            let there = there.join(", ");
            let message = format!(
                "there is none, only {there}; write `{key}: NAME` in data, or leave the sample out"
            );
            wrong(format!("member `{name}`"), message)
        };
        sample.fields.remove(name).ok_or_else(absent)
    };
    let (bytes, class) = (field(input, "input")?, field(label, "label")?);
    let class = numbered(&String::from_utf8_lossy(&class));
    Ok(EncodedImage {
        bytes,
        class: class.map_err(|why| wrong(format!("member `{label}`"), why))?,
    })
}

/// A class from its text.
fn numbered(text: &str) -> Result<u32, String> {
    let class = text.trim().parse::<u32>().ok();
    class.filter(|&class| i32::try_from(class).is_ok()).ok_or_else(|| {
        let found: String = text.chars().take(40).collect();
        format!(
            "found {found:?}, expected a class, a whole number from 0 to {}; number the classes from 0",
            i32::MAX
        )
    })
}

/// What is wrong in a record, whose reader adds the file and where in it.
const fn wrong(place: String, message: String) -> Error {
    Error::Data {
        source_name: String::new(),
        place,
        message,
    }
}

/// The format of an image file by its first bytes.
pub(crate) fn format(bytes: &[u8]) -> Option<&'static str> {
    let formats: [(&[u8], &str); 3] = [
        (b"\xff\xd8\xff", "JPEG"),
        (b"\x89PNG\r\n", "PNG"),
        (b"RIFF", "WebP"),
    ];
    let found = formats
        .into_iter()
        .find(|(start, _)| bytes.starts_with(start));
    found.map(|(_, name)| name)
}

/// Whether bytes are a `TensorProto` of TensorFlow: its type, its shape and, to the end, its content.
pub(crate) fn is_serialized_tensor(bytes: &[u8]) -> bool {
    let [0x08, 1..=23, 0x12, shape, rest @ ..] = bytes else {
        return false;
    };
    let Some((_, [0x22, rest @ ..])) = rest.split_at_checked(usize::from(*shape)) else {
        return false;
    };
    // A number in base 128, its last digits first.
    let digits = rest.iter().take_while(|&&byte| byte >= 0x80).count() + 1;
    let Some((length, content)) = rest.split_at_checked(digits.min(5)) else {
        return false;
    };
    let length = length.iter().rev();
    length.fold(0, |sum: u64, &byte| sum << 7 | u64::from(byte & 0x7f)) == content.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_that_tensorflow_serialized_are_known() {
        // tf.io.serialize_tensor(tf.constant([[1.5], [2.0]])), and of a scalar.
        let two = b"\x08\x01\x12\x08\x12\x02\x08\x02\x12\x02\x08\x01\x22\x08\x00\x00\xc0\x3f\x00\x00\x00\x40";
        let one = b"\x08\x09\x12\x00\x22\x08\x07\x00\x00\x00\x00\x00\x00\x00";
        assert!(is_serialized_tensor(two) && is_serialized_tensor(one));
        let many = [
            &b"\x08\x04\x12\x05\x12\x03\x08\xac\x02\x22\xac\x02"[..],
            &[7; 300],
        ]
        .concat();
        assert!(is_serialized_tensor(&many));
        for pixels in [
            &two[..21],
            &many[..200],
            b"",
            b"\x08",
            b"\x08\x01\x12\xff\x22",
            &[8; 64],
            &[0x22; 30],
        ] {
            assert!(!is_serialized_tensor(pixels), "{pixels:?}");
        }
    }

    #[test]
    fn classes_are_whole_numbers_from_zero() {
        assert_eq!(numbered(" 17\n"), Ok(17));
        for wrong in ["-1", "1.0", "cat", "", "2147483648", "99999999999999999999"] {
            assert!(
                numbered(wrong)
                    .unwrap_err()
                    .contains("number the classes from 0"),
                "{wrong}"
            );
        }
    }
}
