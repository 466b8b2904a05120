//! Tensors of the features of a `tf.train.Example`, as `tf.io.parse_example` makes them.

use phalanx_graph::{DType, HostTensor};

use super::tf_example::{Feature, Features, in_item};
use crate::Result;
use crate::data::Example;

/// One tensor of an example, made of a feature of a `tf.train.Example`.
///
/// Floats become f32, integers i32 or i64, and a string of bytes u8, a number for each byte.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureSpec {
    name: String,
    dtype: DType,
    /// `None` for as many values as there are.
    dims: Option<Vec<usize>>,
    default: Option<f64>,
}

impl FeatureSpec {
    /// As many values as these dims have (`tf.io.FixedLenFeature`); an example without them is an error.
    #[must_use]
    pub fn fixed(name: impl Into<String>, dtype: DType, dims: impl Into<Vec<usize>>) -> Self {
        Self {
            name: name.into(),
            dtype,
            dims: Some(dims.into()),
            default: None,
        }
    }

    /// A tensor of as many values as the example has, none where the feature is absent (`tf.io.RaggedFeature`; `tf.io.VarLenFeature`
    /// without its places): batches are padded by [`Batches::pad`](crate::data::Batches::pad), or by length in
    /// [`Dataset::bucket_by_sequence_length`](crate::data::Dataset::bucket_by_sequence_length).
    #[must_use]
    pub fn any_length(name: impl Into<String>, dtype: DType) -> Self {
        Self {
            name: name.into(),
            dtype,
            dims: None,
            default: None,
        }
    }

    /// What each value is where the feature is absent and has fixed dims (`default_value`).
    #[must_use]
    pub const fn default(mut self, value: f64) -> Self {
        self.default = Some(value);
        self
    }

    fn tensor(&self, features: &Features) -> Result<HostTensor> {
        match features.get(&self.name) {
            Some(feature) => self.of_step(feature, || format!("feature `{}`", self.name)),
            None => self.absent(features),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) const fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn dims(&self) -> Option<&[usize]> {
        self.dims.as_deref()
    }

    pub(super) const fn may_be_absent(&self) -> bool {
        self.dims.is_none() || self.default.is_some()
    }

    /// The tensor of a feature, which `place` names.
    pub(super) fn of_step(
        &self,
        feature: &Feature,
        place: impl Fn() -> String,
    ) -> Result<HostTensor> {
        let wrong = |expected: &str| {
            in_item(
                &place(),
                format!(
                    "found {} values of {}, expected {expected}; correct the specification, or the writer",
                    feature.len(),
                    feature.kind()
                ),
            )
        };
        let flat = match (self.dtype, feature) {
            (DType::F32, Feature::Floats(values)) => HostTensor::new([values.len()], values),
            (DType::I64, Feature::Ints(values)) => HostTensor::new([values.len()], values),
            (DType::I32, Feature::Ints(values)) => {
                let small = values.iter().map(|&value| i32::try_from(value));
                let small = small.collect::<std::result::Result<Vec<i32>, _>>();
                let small = small.map_err(|_| wrong("numbers that fit into i32; ask for i64"))?;
                HostTensor::new([small.len()], &small)
            }
            (DType::U8, Feature::Bytes(values)) if values.len() == 1 => {
                HostTensor::new([values[0].len()], &values[0])
            }
            _ => return Err(wrong(kind(self.dtype))),
        };
        match &self.dims {
            None => Ok(flat),
            Some(dims) => flat.reshape(dims.clone()).ok_or_else(|| {
                let count = dims.iter().copied().fold(1, usize::saturating_mul);
                wrong(&format!("{count} numbers for the dims {dims:?}"))
            }),
        }
    }

    fn absent(&self, features: &Features) -> Result<HostTensor> {
        match (&self.dims, self.default) {
            (None, _) => Ok(self.of(&[0], 0.0)),
            (Some(dims), Some(value)) => Ok(self.of(dims, value)),
            (Some(_), None) => Err(features.none_of(&self.name)),
        }
    }

    fn of(&self, dims: &[usize], value: f64) -> HostTensor {
        HostTensor::full(phalanx_graph::Shape::new(self.dtype, dims.to_vec()), value)
    }
}

/// What a feature must be for a type.
const fn kind(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "floats for f32",
        DType::I32 | DType::I64 => "integers for i32 or i64",
        DType::U8 => "1 string of bytes for u8",
        _ => "no such type: ask for f32, i32, i64 or u8",
    }
}

impl Features {
    /// The tensors of an example by these specifications, for inputs and outputs in their order (`tf.io.parse_single_example`).
    ///
    /// ```
    /// use phalanx::DType;
    /// use phalanx::data::{FeatureSpec, Features};
    ///
    /// let features = Features::new().with_ints("words", vec![5, 3, 9]).with_floats("price", vec![0.5]).with_ints("stars", vec![4]);
    /// let inputs = [FeatureSpec::any_length("words", DType::I32), FeatureSpec::fixed("price", DType::F32, [1])];
    /// let example = features.example(&inputs, &[FeatureSpec::fixed("stars", DType::I32, [])])?;
    /// assert_eq!((example.x[0].dims(), example.y[0].to_f64()), (&[3][..], vec![4.0]));
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a feature is absent without a default, or its values are of another type or number.
    pub fn example(&self, inputs: &[FeatureSpec], outputs: &[FeatureSpec]) -> Result<Example> {
        let tensors = |specs: &[FeatureSpec]| -> Result<Vec<HostTensor>> {
            specs.iter().map(|spec| spec.tensor(self)).collect()
        };
        Ok(Example {
            x: tensors(inputs)?,
            y: tensors(outputs)?,
            weight: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::data::{Dataset, LengthBuckets, TfRecordOptions};

    fn specs() -> [FeatureSpec; 5] {
        [
            FeatureSpec::fixed("label", DType::I64, []),
            FeatureSpec::any_length("ids", DType::I64),
            FeatureSpec::any_length("floats", DType::F32),
            FeatureSpec::fixed("pair", DType::F32, [2, 1]).default(-1.5),
            FeatureSpec::any_length("none", DType::I32),
        ]
    }

    fn golden(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tensorflow");
        format!("{folder}/{name}")
    }

    #[test]
    fn tensors_are_those_of_parse_example() {
        let text = std::fs::read_to_string(golden("features.json")).unwrap();
        let expected: Vec<Value> = serde_json::from_str(&text).unwrap();
        let options = TfRecordOptions::default();
        let parse = |features: &Features| features.example(&specs(), &[]);
        let data =
            Dataset::from_tf_examples(&golden("examples.tfrecord"), &options, parse).unwrap();
        assert_eq!(data.len(), Some(expected.len()));
        for (i, expected) in expected.iter().enumerate() {
            for (tensor, expected) in data
                .get(0, i)
                .unwrap()
                .x
                .iter()
                .zip(expected.as_array().unwrap())
            {
                let dims: Vec<usize> = serde_json::from_value(expected["dims"].clone()).unwrap();
                let values: Vec<f64> = serde_json::from_value(expected["values"].clone()).unwrap();
                assert_eq!((tensor.dims(), tensor.to_f64()), (&dims[..], values), "{i}");
            }
        }
        // Of any length: in batches of similar ones.
        let buckets = LengthBuckets::new([4, 8], [3, 2, 2]).unwrap();
        let length = |example: &Example| example.x[1].rows();
        let batches = data.bucket_by_sequence_length(length, &buckets).unwrap();
        let dims = batches
            .iter(0, 0)
            .map(|batch| batch.unwrap().x[1].dims().to_vec());
        let expected = [[3, 2], [2, 5], [2, 7], [2, 9], [2, 11], [1, 3]];
        assert_eq!(dims.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn bytes_and_small_integers_are_read_and_others_refused() {
        let features = Features::new()
            .with_bytes("image", vec![vec![1, 2, 3, 255]])
            .with_bytes("words", vec![vec![1], vec![2]])
            .with_ints("id", vec![1 << 40])
            .with_ints("few", vec![7, 8])
            .with_floats("x", vec![1.0]);
        let tensor = |spec: FeatureSpec| {
            features
                .example(&[spec], &[])
                .map(|example| example.x[0].clone())
        };
        let image = tensor(FeatureSpec::fixed("image", DType::U8, [2, 2])).unwrap();
        assert_eq!(image, HostTensor::new([2, 2], &[1u8, 2, 3, 255]));
        let few = tensor(FeatureSpec::any_length("few", DType::I32)).unwrap();
        assert_eq!(few, HostTensor::new([2], &[7i32, 8]));
        for (spec, expected) in [
            (
                FeatureSpec::fixed("few", DType::I32, [3]),
                "feature `few`: found 2 values of int64, expected 3 numbers for the dims [3]",
            ),
            (
                FeatureSpec::any_length("id", DType::I32),
                "expected numbers that fit into i32",
            ),
            (
                FeatureSpec::any_length("few", DType::F32),
                "expected floats for f32",
            ),
            (
                FeatureSpec::any_length("words", DType::U8),
                "found 2 values of bytes, expected 1 string",
            ),
            (FeatureSpec::any_length("x", DType::F64), "no such type"),
            (
                FeatureSpec::fixed("y", DType::F32, [1]),
                "feature `y`: there is none of that name",
            ),
            (
                FeatureSpec::fixed("few", DType::F32, [2]).default(0.0),
                "expected floats",
            ),
        ] {
            let error = tensor(spec).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
