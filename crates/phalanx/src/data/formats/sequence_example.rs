//! `tf.train.SequenceExample`: features of a whole sequence, and lists of features, one for each of its steps.
//!
//! The messages (`tensorflow/core/example/example.proto`, `feature.proto`): `SequenceExample { Features context: 1, FeatureLists feature_lists: 2 }`,
//! `FeatureLists { map<string, FeatureList> feature_list: 1 }`, `FeatureList { repeated Feature feature: 1 }`.

use std::collections::BTreeMap;

use phalanx_graph::{HostTensor, Shape};

use super::feature_spec::FeatureSpec;
use super::tf_example::{
    Feature, Features, MAX_BYTES, MAX_FEATURES, MemoryBudget, add_features, feature_of, in_item,
    map_to_bytes, name_of, no_message,
};
use super::wire::{FieldReader, WireField, WireResult, put_bytes};
use crate::data::csv_table::first_names;
use crate::{Error, Result};

/// A `tf.train.SequenceExample`: the context, which is features as a `tf.train.Example` has them, and lists of features by name, a feature for
/// each step.
///
/// A `tf.train.Example` is one without lists. A step without a kind has no values, as in `tf.io.parse_single_sequence_example`.
///
/// ```
/// use phalanx::DType;
/// use phalanx::data::{Feature, FeatureSpec, Features, SequenceExample};
///
/// let frames = vec![Feature::Floats(vec![0.5, 1.0]), Feature::Floats(vec![1.5, 2.0])];
/// let written = SequenceExample::new()
///     .with_context(Features::new().with_ints("label", vec![3]))
///     .with_list("frames", frames);
/// let read = SequenceExample::parse(&written.to_bytes())?;
/// assert_eq!(read.context().ints("label", 1)?, [3]);
/// let frames = read.tensor(&FeatureSpec::fixed("frames", DType::F32, [2]))?;
/// assert_eq!((frames.dims(), frames.f32s()), (&[2, 2][..], vec![0.5, 1.0, 1.5, 2.0]));
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceExample {
    context: Features,
    lists: BTreeMap<String, Vec<Feature>>,
}

impl SequenceExample {
    /// No feature and no list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With these features of the whole.
    #[must_use]
    pub fn with_context(self, context: Features) -> Self {
        Self { context, ..self }
    }

    /// With a list of features, one for each step.
    #[must_use]
    pub fn with_list(mut self, name: impl Into<String>, steps: Vec<Feature>) -> Self {
        self.lists.insert(name.into(), steps);
        self
    }

    /// The features of the whole.
    #[must_use]
    pub const fn context(&self) -> &Features {
        &self.context
    }

    /// The features of the steps of a list, if there is one of that name.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&[Feature]> {
        self.lists.get(name).map(Vec::as_slice)
    }

    /// The lists in the order of their names.
    #[must_use]
    pub fn lists(&self) -> impl ExactSizeIterator<Item = (&str, &[Feature])> {
        let lists = self.lists.iter();
        lists.map(|(name, steps)| (name.as_str(), steps.as_slice()))
    }

    /// The tensor of a list: `[steps, dims..]` of a specification with dims (`tf.io.FixedLenSequenceFeature`), and the values of all steps one after
    /// the other, `[values]`, of one of any length (the values of `tf.io.VarLenFeature`). A list that is absent has no steps where the specification has
    /// a default (`allow_missing`), or is of any length.
    ///
    /// # Errors
    /// When the list is absent otherwise, or the values of a step are of another type or number.
    pub fn tensor(&self, spec: &FeatureSpec) -> Result<HostTensor> {
        let steps = match self.list(spec.name()) {
            Some(steps) => steps,
            None if spec.may_be_absent() => &[],
            None => return Err(self.none_of(spec.name())),
        };
        let (mut bytes, mut values) = (Vec::new(), 0);
        for (step, feature) in steps.iter().enumerate() {
            // Of what kind it would be is unknown where no step has a kind.
            if spec.dims().is_none() && feature.is_empty() {
                continue;
            }
            let place = || format!("feature list `{}`, step {step}", spec.name());
            let tensor = spec.of_step(feature, place)?;
            values += tensor.dims().iter().product::<usize>();
            bytes.extend_from_slice(tensor.bytes());
        }
        let dims = match spec.dims() {
            None => vec![values],
            Some(dims) => [&[steps.len()], dims].concat(),
        };
        HostTensor::from_bytes(Shape::new(spec.dtype(), dims), &bytes)
            .ok_or_else(|| Error::Bug("steps of another size than their dims".into()))
    }

    fn none_of(&self, name: &str) -> Error {
        let names: Vec<String> = self.lists.keys().cloned().collect();
        in_item(
            &format!("feature list `{name}`"),
            format!(
                "there is none of that name, only {}; correct the name, or the writer",
                first_names(&names)
            ),
        )
    }

    /// The features in a serialised `tf.train.SequenceExample`, or in a `tf.train.Example`, which has no lists.
    ///
    /// # Errors
    /// [`Error::Data`] with the offset when the bytes are no such message, or their values would take more than 1 GiB.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        sequence_of(bytes, MemoryBudget(MAX_BYTES))
            .map_err(|malformed| no_message(&malformed, "tf.train.Example or SequenceExample"))
    }

    /// The serialised `tf.train.SequenceExample`: what TensorFlow's `SerializeToString(deterministic=True)` gives, with the features and the lists
    /// in the order of their names.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = match self.context.iter().len() {
            0 => Vec::new(),
            _ => self.context.to_bytes(),
        };
        if !self.lists.is_empty() {
            let lists = map_to_bytes(&self.lists, |steps| {
                let mut list = Vec::new();
                let steps = steps.iter().map(Feature::to_bytes);
                steps.for_each(|step| put_bytes(&mut list, 1, &step));
                list
            });
            put_bytes(&mut bytes, 2, &lists);
        }
        bytes
    }
}

fn sequence_of(bytes: &[u8], mut budget: MemoryBudget) -> WireResult<SequenceExample> {
    let mut example = SequenceExample::new();
    // A message may come in parts, which are merged.
    for part in FieldReader::new(bytes) {
        match part? {
            (1, field) => add_features(field, &mut example.context, &mut budget)?,
            (2, field) => add_lists(field, &mut example.lists, &mut budget)?,
            _ => {}
        }
    }
    Ok(example)
}

fn add_lists(
    field: WireField<'_>,
    lists: &mut BTreeMap<String, Vec<Feature>>,
    budget: &mut MemoryBudget,
) -> WireResult<()> {
    for entry in field.message("FeatureLists")? {
        let (1, field) = entry? else { continue };
        budget.take::<(String, Vec<Feature>)>(1, field)?;
        let (mut name, mut steps) = (String::new(), Vec::new());
        for part in field.message("a map entry")? {
            match part? {
                (1, field) => name = name_of(field, budget)?,
                (2, field) => add_steps(field, &mut steps, budget)?,
                _ => {}
            }
        }
        lists.insert(name, of_one_kind(steps));
        if lists.len() > MAX_FEATURES {
            return Err(field.malformed(format!("more than {MAX_FEATURES} lists of features")));
        }
    }
    Ok(())
}

fn add_steps(
    field: WireField<'_>,
    steps: &mut Vec<Option<Feature>>,
    budget: &mut MemoryBudget,
) -> WireResult<()> {
    for step in field.message("FeatureList")? {
        let (1, field) = step? else { continue };
        // What is kept, and what it is made of.
        budget.take::<[Option<Feature>; 2]>(1, field)?;
        steps.push(feature_of(field.message("Feature")?, None, budget)?);
    }
    Ok(())
}

/// Steps without a kind have no values of the kind that the others have.
fn of_one_kind(steps: Vec<Option<Feature>>) -> Vec<Feature> {
    let none = match steps.iter().flatten().next() {
        Some(Feature::Floats(_)) => Feature::Floats(Vec::new()),
        Some(Feature::Ints(_)) => Feature::Ints(Vec::new()),
        Some(Feature::Bytes(_)) | None => Feature::Bytes(Vec::new()),
    };
    let steps = steps.into_iter();
    steps
        .map(|step| step.unwrap_or_else(|| none.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use phalanx_graph::DType;
    use proptest::prelude::*;

    use super::*;
    use crate::data::{Dataset, Example, Records, TfRecordOptions, TfRecords};

    const GOLDEN: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/tensorflow/sequences.tfrecord"
    );

    /// As `make_sequences.py` writes it.
    fn golden(i: usize) -> SequenceExample {
        let text = |k: usize| format!("wörd{k}").into_bytes();
        let context = Features::new()
            .with_ints("label", vec![i as i64 % 3])
            .with_floats("weights", vec![0.5 * i as f32, -1.0])
            .with_bytes("name", vec![format!("number {i}").into_bytes()]);
        let frames = (0..i).map(|k| Feature::Floats(vec![k as f32 / 7.0, (k * i) as f32]));
        let tokens = (0..i)
            .map(|k| Feature::Ints((0..k % 3).map(|n| (n + k * i) as i64 * 1_000_003).collect()));
        let words = (0..i % 4).map(|k| Feature::Bytes(vec![text(k); k]));
        SequenceExample::new()
            .with_context(if i == 0 { Features::new() } else { context })
            .with_list("frames", frames.collect())
            .with_list("tokens", tokens.collect())
            .with_list("wörds", words.collect())
    }

    #[test]
    fn files_are_what_tensorflow_writes() {
        let records = TfRecords::open(GOLDEN, &TfRecordOptions::default()).unwrap();
        assert_eq!(records.len(), 8);
        for i in 0..records.len() {
            let bytes = records.get(i).unwrap();
            assert_eq!(SequenceExample::parse(&bytes).unwrap(), golden(i), "{i}");
            assert_eq!(golden(i).to_bytes(), bytes, "{i}");
        }
    }

    #[test]
    fn tensors_are_those_of_parse_single_sequence_example() {
        let text = std::fs::read_to_string(GOLDEN.replace(".tfrecord", ".json")).unwrap();
        let expected: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let specs = [
            FeatureSpec::fixed("frames", DType::F32, [2]),
            FeatureSpec::any_length("tokens", DType::I64),
            FeatureSpec::fixed("none", DType::I64, [3]).default(0.0),
        ];
        let data =
            Dataset::from_tf_sequence_examples(GOLDEN, &TfRecordOptions::default(), move |read| {
                let x = specs.iter().map(|spec| read.tensor(spec));
                Ok(Example {
                    x: x.collect::<Result<_>>()?,
                    ..Example::default()
                })
            });
        let data = data.unwrap();
        assert_eq!(data.len(), Some(expected.len()));
        for (i, expected) in expected.iter().enumerate() {
            for (place, tensor) in data.get(0, i).unwrap().x.iter().enumerate() {
                let dims: Vec<usize> =
                    serde_json::from_value(expected[place]["dims"].clone()).unwrap();
                let values: Vec<f64> =
                    serde_json::from_value(expected[place]["values"].clone()).unwrap();
                assert_eq!(
                    (tensor.dims(), tensor.to_f64()),
                    (&dims[..], values),
                    "{i} {place}"
                );
            }
        }
    }

    #[test]
    fn mistakes_name_the_list_and_the_step() {
        let example = golden(3);
        for (spec, expected) in [
            (
                FeatureSpec::fixed("frame", DType::F32, [2]),
                "feature list `frame`: there is none of that name, only \"frames\", \"tokens\"",
            ),
            (
                FeatureSpec::fixed("frames", DType::F32, [3]),
                "feature list `frames`, step 0: found 2 values of float, expected 3 numbers",
            ),
            (
                FeatureSpec::fixed("tokens", DType::I64, [1]),
                "feature list `tokens`, step 0: found 0 values of int64, expected 1 numbers",
            ),
            (
                FeatureSpec::any_length("tokens", DType::F32),
                "feature list `tokens`, step 1: found 1 values of int64, expected floats",
            ),
        ] {
            let error = example.tensor(&spec).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        // A list whose second step has no kind: no values of the kind of the first.
        let (mut list, mut entry, mut lists, mut bytes) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        put_bytes(&mut list, 1, &Feature::Ints(vec![7]).to_bytes());
        put_bytes(&mut list, 1, &[]);
        put_bytes(&mut entry, 1, b"a");
        put_bytes(&mut entry, 2, &list);
        put_bytes(&mut lists, 1, &entry);
        put_bytes(&mut bytes, 2, &lists);
        let read = SequenceExample::parse(&bytes).unwrap();
        assert_eq!(
            read.list("a"),
            Some(&[Feature::Ints(vec![7]), Feature::Ints(Vec::new())][..])
        );
        let error = SequenceExample::parse(&[0x12, 9, 0x0a])
            .unwrap_err()
            .to_string();
        assert!(error.contains("byte 1 of the example: 9 bytes are announced, 1 are left; write the record again as a tf.train.Example or SequenceExample"), "{error}");
    }

    /// As `tf.io.parse_single_sequence_example` reads `VarLenFeature`s of them.
    #[test]
    fn lists_without_a_kind_are_empty_of_any_length() {
        let (mut entry, mut lists, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        put_bytes(&mut entry, 1, b"a");
        put_bytes(&mut entry, 2, &[0x0a, 0].repeat(2));
        put_bytes(&mut lists, 1, &entry);
        put_bytes(&mut bytes, 2, &lists);
        let read = SequenceExample::parse(&bytes).unwrap();
        assert_eq!(read.list("a").map(<[Feature]>::len), Some(2));
        for dtype in [DType::F32, DType::I64, DType::I32, DType::U8] {
            let tensor = read.tensor(&FeatureSpec::any_length("a", dtype)).unwrap();
            assert_eq!((tensor.dims(), tensor.dtype()), (&[0][..], dtype));
        }
        let one = FeatureSpec::fixed("a", DType::F32, [1]);
        let error = read.tensor(&one).unwrap_err().to_string();
        assert!(
            error.contains("feature list `a`, step 0: found 0 values"),
            "{error}"
        );
    }

    #[test]
    fn what_needs_too_much_memory_is_refused_before_it_is_made() {
        // Two bytes of the message for a step without a kind.
        let steps = [0x0a, 0].repeat(100);
        let (mut entry, mut lists, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        put_bytes(&mut entry, 2, &steps);
        put_bytes(&mut lists, 1, &entry);
        put_bytes(&mut bytes, 2, &lists);
        let needed = size_of::<(String, Vec<Feature>)>() + 100 * 2 * size_of::<Option<Feature>>();
        assert!(sequence_of(&bytes, MemoryBudget(needed)).is_ok());
        let refused = sequence_of(&bytes, MemoryBudget(needed - 1)).err().unwrap();
        assert!(
            refused.message.contains("more memory than is allowed"),
            "{}",
            refused.message
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn bytes_that_are_cut_or_changed_do_no_harm(i in 1usize..6, cut in 0usize..300, at in 0usize..300, byte: u8) {
            let mut bytes = golden(i).to_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len().saturating_sub(cut).max(1));
            if let Ok(read) = SequenceExample::parse(&bytes) {
                // Bytes, as no NaN equals another.
                let written = read.to_bytes();
                prop_assert_eq!(SequenceExample::parse(&written).unwrap().to_bytes(), written);
            }
        }
    }
}
