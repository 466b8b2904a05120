//! Examples kept in a file: a TFRecord file of `tf.train.Example`, a feature for the bytes and the shape of each tensor.

use std::path::Path;

use phalanx_graph::{DType, HostTensor, Shape};

use super::formats::tf_example::in_item;
use super::{Dataset, Example, Features, TfRecordOptions, TfRecordWriter};
use crate::{Error, Result};

/// In the order of their numbers in a file, which stay as they are.
const DTYPES: [DType; 9] = [
    DType::F32,
    DType::Bf16,
    DType::F16,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::U32,
    DType::U8,
    DType::Bool,
];

impl Dataset {
    /// The examples kept in a file, as they are in epoch 0: written now if there is no such file, else read from it.
    ///
    /// A file with another number of examples is an error; remove the file when the data or the stages before change.
    /// Examples that are corrupt and left out have a place in the file, and are left out and counted when it is read.
    ///
    /// # Errors
    /// When the dataset is endless, an example cannot be read, or the file cannot be written or is another's.
    pub fn cache_file(&self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let Some(len) = self.len() else {
            return Err(Error::user(
                "cannot cache an endless dataset; put cache_file before repeat_forever",
            ));
        };
        if !path.exists() {
            let mut writer = TfRecordWriter::create(path)?;
            for i in 0..len {
                let kept = self.read(0, i)?.map(|example| features(&example));
                writer.write(&kept.map_or_else(Vec::new, |features| features.to_bytes()))?;
            }
            writer.finish()?;
        }
        let pattern = path.to_string_lossy();
        let kept = Self::from_tfrecords(&pattern, &TfRecordOptions::default(), read)?;
        if kept.len() != Some(len) {
            return Err(Error::User(format!(
                "the cache {pattern} has {} examples, the data {len}; remove the file to write it anew",
                kept.len().unwrap_or(0)
            )));
        }
        Ok(if self.skips_corrupt() {
            kept.skip_corrupt()
        } else {
            kept
        })
    }
}

/// An example of the file; an empty record has the place of one that was left out.
fn read(record: &[u8]) -> Result<Example> {
    if record.is_empty() {
        return Err(in_item(
            "the example",
            "it was corrupt and left out when the cache was written; keep skip_corrupt before cache_file, or remove the file".into(),
        ));
    }
    example(&Features::parse(record)?)
}

fn features(example: &Example) -> Features {
    let mut features = Features::new();
    for (name, tensors) in [("x", &example.x), ("y", &example.y)] {
        for (t, tensor) in tensors.iter().enumerate() {
            let dtype = DTYPES.iter().position(|dtype| *dtype == tensor.dtype());
            let shape = dtype
                .into_iter()
                .chain(tensor.dims().iter().copied())
                .map(|n| n as i64);
            features = features
                .with_ints(format!("{name}{t}.shape"), shape.collect())
                .with_bytes(format!("{name}{t}"), vec![tensor.bytes().to_vec()]);
        }
    }
    match example.weight {
        Some(weight) => features.with_floats("weight", vec![weight]),
        None => features,
    }
}

fn example(features: &Features) -> Result<Example> {
    let tensors = |name: &str| -> Result<Vec<HostTensor>> {
        let names = (0..).map(|t| format!("{name}{t}"));
        let names = names.take_while(|name| features.get(name).is_some());
        names.map(|name| tensor(features, &name)).collect()
    };
    let weight = features
        .get("weight")
        .is_some()
        .then(|| features.floats("weight", 1).map(|weight| weight[0]));
    Ok(Example {
        x: tensors("x")?,
        y: tensors("y")?,
        weight: weight.transpose()?,
    })
}

fn tensor(features: &Features, name: &str) -> Result<HostTensor> {
    let key = format!("{name}.shape");
    let count = features.get(&key).map_or(1, super::Feature::len);
    let numbers = features.ints(&key, count)?;
    let dims: Option<Vec<usize>> = numbers
        .iter()
        .skip(1)
        .map(|&dim| usize::try_from(dim).ok())
        .collect();
    let dtype = numbers
        .first()
        .and_then(|&code| DTYPES.get(usize::try_from(code).ok()?));
    let bytes = features.bytes(name)?;
    let shape = dims.zip(dtype).filter(|(dims, _)| {
        let elements = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        elements.is_some_and(|n| n <= bytes.len())
    });
    let tensor =
        shape.and_then(|(dims, dtype)| HostTensor::from_bytes(Shape::new(*dtype, dims), bytes));
    tensor.ok_or_else(|| Error::Data {
        source_name: String::new(),
        place: format!("feature `{name}`"),
        message: format!(
            "{} bytes do not fit the shape {numbers:?}; remove the file to write it anew",
            bytes.len()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::test_folder;

    #[test]
    fn examples_come_back_from_the_file() {
        let path = test_folder::create("cache_file").join("kept");
        let x = HostTensor::new([3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let y = HostTensor::new([3], &[1i32, 0, 1]);
        let data = Dataset::from_arrays(x, y).unwrap();
        let data = data
            .with_weights(&HostTensor::new([3], &[1.0f32, 0.5, 0.25]))
            .unwrap();
        let kept = data.cache_file(&path).unwrap();
        (0..3).for_each(|i| assert_eq!(kept.get(0, i).unwrap(), data.get(0, i).unwrap()));
        let broken = data.map(|_| Err(Error::user("read again")));
        assert_eq!(
            broken.cache_file(&path).unwrap().get(0, 2).unwrap(),
            data.get(0, 2).unwrap()
        );
        let error = data.take(2).cache_file(&path).err().unwrap().to_string();
        assert!(error.contains("has 3 examples, the data 2"), "{error}");
        assert!(broken.cache_file(path.with_extension("new")).is_err());
        assert!(!path.with_extension("new").exists());
    }

    #[test]
    fn what_was_left_out_stays_left_out_and_is_counted() {
        let folder = test_folder::create("cache_skips");
        let data = Dataset::from_arrays(HostTensor::new([5], &[0i32, 1, 2, 3, 4]), Vec::new());
        let failing = data.unwrap().map(|example| match example.x[0].to_f64()[0] {
            1.0 | 4.0 => Err(in_item("the value", "no".into())),
            _ => Ok(example),
        });
        let read = |kept: &Dataset, epoch| -> Vec<Vec<i32>> {
            let batches = kept.batch(2).iter(epoch, 0);
            batches
                .map(|batch| batch.unwrap().x[0].values().unwrap())
                .collect()
        };
        let skipping = failing.skip_corrupt();
        // Written, then read from the file, then kept in memory.
        let in_file = || skipping.cache_file(folder.join("kept")).unwrap();
        for kept in [in_file(), in_file(), skipping.cache().unwrap()] {
            for epoch in 0..3 {
                let before = kept.skipped();
                assert_eq!(read(&kept, epoch), [vec![0], vec![2, 3]]);
                assert_eq!(kept.skipped() - before, 2, "epoch {epoch}");
            }
        }
        let strict = failing.cache_file(folder.join("kept")).unwrap();
        let error = strict.get(0, 1).unwrap_err().to_string();
        assert!(error.contains("kept: record 1 at byte"), "{error}");
        assert!(
            error.contains("left out when the cache was written"),
            "{error}"
        );
    }
}
