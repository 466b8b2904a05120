//! `tf.train.Example`: named lists of bytes, floats or integers, in the wire format of protocol buffers.
//!
//! The messages (`tensorflow/core/example/example.proto`, `feature.proto`): `Example { features: 1 }`,
//! `Features { map<string, Feature> feature: 1 }`, `Feature { oneof { bytes_list: 1, float_list: 2, int64_list: 3 } }`,
//! each list `{ repeated value: 1 }`, numbers packed or not.

use std::collections::BTreeMap;

use super::wire::{
    FieldReader, MalformedMessage, WireField, WireResult, put_bytes, put_varint, varint_len,
};
use crate::data::csv_table::first_names;
use crate::{Error, Result};

/// The most features of one example.
pub(super) const MAX_FEATURES: usize = 100_000;
/// The most bytes that one example's features may take in memory, which can be many times the size of the message.
pub(super) const MAX_BYTES: usize = 1 << 30;

/// A list of values under a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Feature {
    /// Strings of bytes: encoded images, texts.
    Bytes(Vec<Vec<u8>>),
    /// 32-bit floats.
    Floats(Vec<f32>),
    /// 64-bit integers.
    Ints(Vec<i64>),
}

/// The features of a `tf.train.Example`, by name.
///
/// A feature without a kind counts as absent, as in `tf.io.parse_example`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Features(BTreeMap<String, Feature>);

impl Features {
    /// No feature.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With a list of byte strings.
    #[must_use]
    pub fn with_bytes(self, name: impl Into<String>, values: Vec<Vec<u8>>) -> Self {
        self.with(name, Feature::Bytes(values))
    }

    /// With a list of floats.
    #[must_use]
    pub fn with_floats(self, name: impl Into<String>, values: Vec<f32>) -> Self {
        self.with(name, Feature::Floats(values))
    }

    /// With a list of integers.
    #[must_use]
    pub fn with_ints(self, name: impl Into<String>, values: Vec<i64>) -> Self {
        self.with(name, Feature::Ints(values))
    }

    fn with(mut self, name: impl Into<String>, feature: Feature) -> Self {
        self.0.insert(name.into(), feature);
        self
    }

    /// The features in the order of their names.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Feature)> {
        self.0
            .iter()
            .map(|(name, feature)| (name.as_str(), feature))
    }

    /// A feature, if there is one of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Feature> {
        self.0.get(name)
    }

    /// The only string of a feature.
    ///
    /// # Errors
    /// When there is no such feature, or it is not one string.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        match self.found(name)? {
            Feature::Bytes(values) if values.len() == 1 => Ok(&values[0]),
            other => Err(unexpected(name, other, "1 string of bytes")),
        }
    }

    /// The `count` floats of a feature.
    ///
    /// # Errors
    /// When there is no such feature, or it does not hold `count` floats.
    pub fn floats(&self, name: &str, count: usize) -> Result<&[f32]> {
        match self.found(name)? {
            Feature::Floats(values) if values.len() == count => Ok(values),
            other => Err(unexpected(name, other, &format!("{count} floats"))),
        }
    }

    /// The `count` integers of a feature.
    ///
    /// # Errors
    /// When there is no such feature, or it does not hold `count` integers.
    pub fn ints(&self, name: &str, count: usize) -> Result<&[i64]> {
        match self.found(name)? {
            Feature::Ints(values) if values.len() == count => Ok(values),
            other => Err(unexpected(name, other, &format!("{count} integers"))),
        }
    }

    fn found(&self, name: &str) -> Result<&Feature> {
        self.0.get(name).ok_or_else(|| self.none_of(name))
    }

    /// The error of a feature that is not there.
    pub(super) fn none_of(&self, name: &str) -> Error {
        let names: Vec<String> = self.0.keys().cloned().collect();
        in_item(
            &format!("feature `{name}`"),
            format!(
                "there is none of that name, only {}; correct the name, or the writer",
                first_names(&names)
            ),
        )
    }

    /// The features in a serialised `tf.train.Example`.
    ///
    /// # Errors
    /// [`Error::Data`] with the offset when the bytes are no such message, or their values would take more than 1 GiB.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        features_of(bytes, MemoryBudget(MAX_BYTES))
            .map_err(|malformed| no_message(&malformed, "tf.train.Example"))
    }

    /// The serialised `tf.train.Example`: what TensorFlow's `SerializeToString(deterministic=True)` gives, with the
    /// features in the order of their names.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let features = map_to_bytes(&self.0, Feature::to_bytes);
        let mut example = Vec::with_capacity(features.len() + 8);
        put_bytes(&mut example, 1, &features);
        example
    }
}

impl Feature {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Ints(values) => values.len(),
        }
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the values are: `bytes`, `float`, `int64`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "bytes",
            Self::Floats(_) => "float",
            Self::Ints(_) => "int64",
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut list = Vec::new();
        let field = match self {
            Self::Bytes(values) => {
                values
                    .iter()
                    .for_each(|value| put_bytes(&mut list, 1, value));
                1
            }
            Self::Floats(values) if values.is_empty() => 2,
            Self::Floats(values) => {
                let packed: Vec<u8> = values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect();
                put_bytes(&mut list, 1, &packed);
                2
            }
            Self::Ints(values) if values.is_empty() => 3,
            Self::Ints(values) => {
                let len: usize = values.iter().map(|&value| varint_len(value as u64)).sum();
                let mut packed = Vec::with_capacity(len);
                values
                    .iter()
                    .for_each(|&value| put_varint(&mut packed, value as u64));
                put_bytes(&mut list, 1, &packed);
                3
            }
        };
        let mut feature = Vec::with_capacity(list.len() + 8);
        put_bytes(&mut feature, field, &list);
        feature
    }
}

/// An error of an item that does not know its file; the reader adds it.
pub(in crate::data) fn in_item(place: &str, message: String) -> Error {
    Error::Data {
        source_name: String::new(),
        place: place.to_owned(),
        message,
    }
}

fn unexpected(name: &str, found: &Feature, expected: &str) -> Error {
    in_item(
        &format!("feature `{name}`"),
        format!(
            "found {} values of {}, expected {expected}; correct the reader, or the writer",
            found.len(),
            found.kind()
        ),
    )
}

/// The entries of a map from names to messages.
pub(super) fn map_to_bytes<T>(
    map: &BTreeMap<String, T>,
    to_bytes: impl Fn(&T) -> Vec<u8>,
) -> Vec<u8> {
    let mut entries = Vec::new();
    for (name, value) in map {
        let mut entry = Vec::new();
        put_bytes(&mut entry, 1, name.as_bytes());
        put_bytes(&mut entry, 2, &to_bytes(value));
        put_bytes(&mut entries, 1, &entry);
    }
    entries
}

/// The error of bytes that are no message of this kind.
pub(super) fn no_message(malformed: &MalformedMessage, kind: &str) -> Error {
    in_item(
        &format!("byte {} of the example", malformed.offset),
        format!("{}; write the record again as a {kind}", malformed.message),
    )
}

/// Bytes of memory that are left for an example.
pub(super) struct MemoryBudget(pub(super) usize);

impl MemoryBudget {
    /// Takes the memory of `count` values of a type out of the budget, before they are made.
    pub(super) fn take<T>(&mut self, count: usize, field: WireField<'_>) -> WireResult<()> {
        let left = self.0.checked_sub(count.saturating_mul(size_of::<T>()));
        self.0 = left.ok_or_else(|| {
            field.malformed(
                "the values of the example need more memory than is allowed, 1 GiB; write fewer in each example".into(),
            )
        })?;
        Ok(())
    }
}

fn features_of(bytes: &[u8], mut budget: MemoryBudget) -> WireResult<Features> {
    let mut features = Features::new();
    // A message may come in parts, which are merged.
    for example in FieldReader::new(bytes) {
        let (1, field) = example? else { continue };
        add_features(field, &mut features, &mut budget)?;
    }
    Ok(features)
}

/// Adds the features of a message `Features` to those before.
pub(super) fn add_features(
    field: WireField<'_>,
    features: &mut Features,
    budget: &mut MemoryBudget,
) -> WireResult<()> {
    for entry in field.message("Features")? {
        let (1, field) = entry? else { continue };
        budget.take::<(String, Feature)>(1, field)?;
        let (name, feature) = entry_of(field.message("a map entry")?, budget)?;
        match feature {
            Some(feature) => drop(features.0.insert(name, feature)),
            None => drop(features.0.remove(&name)),
        }
        if features.0.len() > MAX_FEATURES {
            return Err(field.malformed(format!("more than {MAX_FEATURES} features")));
        }
    }
    Ok(())
}

/// The name in an entry of a map.
pub(super) fn name_of(field: WireField<'_>, budget: &mut MemoryBudget) -> WireResult<String> {
    let bytes = field.bytes("the name of a feature")?;
    budget.take::<u8>(bytes.len(), field)?;
    String::from_utf8(bytes.to_vec())
        .map_err(|_| field.malformed("the name of a feature is not UTF-8".into()))
}

fn entry_of(
    fields: FieldReader<'_>,
    budget: &mut MemoryBudget,
) -> WireResult<(String, Option<Feature>)> {
    let (mut name, mut feature) = (String::new(), None);
    for field in fields {
        match field? {
            (1, field) => name = name_of(field, budget)?,
            (2, field) => feature = feature_of(field.message("Feature")?, feature, budget)?,
            _ => {}
        }
    }
    Ok((name, feature))
}

/// The feature, merged with what earlier parts of the same message held: lists of one kind are joined.
pub(super) fn feature_of(
    fields: FieldReader<'_>,
    earlier: Option<Feature>,
    budget: &mut MemoryBudget,
) -> WireResult<Option<Feature>> {
    let mut feature = earlier;
    for field in fields {
        feature = match (field?, feature) {
            ((1, field), feature) => {
                let mut values = match feature {
                    Some(Feature::Bytes(values)) => values,
                    _ => Vec::new(),
                };
                byte_list(field.message("BytesList")?, &mut values, budget)?;
                Some(Feature::Bytes(values))
            }
            ((2, field), feature) => {
                let mut values = match feature {
                    Some(Feature::Floats(values)) => values,
                    _ => Vec::new(),
                };
                float_list(field.message("FloatList")?, &mut values, budget)?;
                Some(Feature::Floats(values))
            }
            ((3, field), feature) => {
                let mut values = match feature {
                    Some(Feature::Ints(values)) => values,
                    _ => Vec::new(),
                };
                int_list(field.message("Int64List")?, &mut values, budget)?;
                Some(Feature::Ints(values))
            }
            (_, feature) => feature,
        };
    }
    Ok(feature)
}

fn byte_list(
    fields: FieldReader<'_>,
    values: &mut Vec<Vec<u8>>,
    budget: &mut MemoryBudget,
) -> WireResult<()> {
    for field in fields {
        if let (1, field) = field? {
            let bytes = field.bytes("a value of BytesList")?;
            budget.take::<Vec<u8>>(1, field)?;
            budget.take::<u8>(bytes.len(), field)?;
            values.push(bytes.to_vec());
        }
    }
    Ok(())
}

fn float_list(
    fields: FieldReader<'_>,
    values: &mut Vec<f32>,
    budget: &mut MemoryBudget,
) -> WireResult<()> {
    for field in fields {
        let (1, field) = field? else { continue };
        match field {
            WireField::Fixed32 { value, .. } => {
                budget.take::<f32>(1, field)?;
                values.push(f32::from_bits(value));
            }
            _ => {
                let packed = field.bytes("values of FloatList")?;
                let (chunks, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(field.malformed(format!(
                        "packed floats have {} bytes, expected a multiple of 4",
                        packed.len()
                    )));
                }
                budget.take::<f32>(chunks.len(), field)?;
                values.extend(chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
        }
    }
    Ok(())
}

fn int_list(
    fields: FieldReader<'_>,
    values: &mut Vec<i64>,
    budget: &mut MemoryBudget,
) -> WireResult<()> {
    for field in fields {
        let (1, field) = field? else { continue };
        match field {
            WireField::Varint { value, .. } => {
                budget.take::<i64>(1, field)?;
                values.push(value as i64);
            }
            _ => {
                // A number ends with the byte that has no highest bit.
                let numbers = field.bytes("values of Int64List")?.iter();
                budget.take::<i64>(numbers.filter(|&&byte| byte < 0x80).count(), field)?;
                let mut packed = field.message("values of Int64List")?;
                while let Some(value) = packed.varint()? {
                    values.push(value as i64);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::{Records, TfRecordOptions, TfRecordWriter, TfRecords, test_folder};

    #[test]
    fn packed_and_unpacked_numbers_are_read() {
        // Example{features{feature{"a": int64_list{5, -1}}}}, first unpacked, then packed in two parts.
        let minus_one = [0xff; 9].iter().copied().chain([1]).collect::<Vec<u8>>();
        let unpacked: Vec<u8> = [&[0x08, 5, 0x08][..], &minus_one].concat();
        let packed: Vec<u8> = [&[0x0a, 1, 5, 0x0a, 10][..], &minus_one].concat();
        for list in [unpacked, packed] {
            let mut feature = Vec::new();
            put_bytes(&mut feature, 3, &list);
            assert_eq!(one("a", &feature), Some(Feature::Ints(vec![5, -1])));
        }
        let unpacked = [0x0d, 0, 0, 0x80, 0x3f, 0x0d, 0, 0, 0, 0x40];
        let mut feature = Vec::new();
        put_bytes(&mut feature, 2, &unpacked);
        assert_eq!(one("x", &feature), Some(Feature::Floats(vec![1.0, 2.0])));
        assert_eq!(one("none", &[]), None);
    }

    fn one(name: &str, feature: &[u8]) -> Option<Feature> {
        Features::parse(&message(name, feature))
            .unwrap()
            .get(name)
            .cloned()
    }

    fn message(name: &str, feature: &[u8]) -> Vec<u8> {
        let (mut entry, mut features, mut example) = (Vec::new(), Vec::new(), Vec::new());
        put_bytes(&mut entry, 1, name.as_bytes());
        put_bytes(&mut entry, 2, feature);
        put_bytes(&mut features, 1, &entry);
        put_bytes(&mut example, 1, &features);
        example
    }

    #[test]
    fn mistakes_name_the_feature_or_the_byte() {
        let features = Features::new().with_ints("label", vec![1, 2]);
        let cases = [
            (
                features.ints("label", 1).unwrap_err(),
                "feature `label`: found 2 values of int64, expected 1 int",
            ),
            (
                features.floats("label", 2).unwrap_err(),
                "expected 2 floats",
            ),
            (
                features.bytes("image").unwrap_err(),
                "feature `image`: there is none of that name, only \"label\"",
            ),
            (
                Features::parse(&[0x0a, 5, 1]).unwrap_err(),
                "byte 1 of the example: 5 bytes are announced",
            ),
            (Features::parse(&[0x0f]).unwrap_err(), "wire type 7"),
            (Features::parse(&[0x08, 1]).unwrap_err(), "Features"),
            (
                Features::parse(&message("x", &[0x12, 5, 0x0a, 3, 1, 2, 3])).unwrap_err(),
                "multiple of 4",
            ),
            (
                Features::parse(&[0xff; 11]).unwrap_err(),
                "more than 64 bits",
            ),
        ];
        for (error, expected) in cases {
            assert!(
                error.to_string().contains(expected),
                "{error} has no {expected}"
            );
        }
    }

    #[test]
    fn what_needs_too_much_memory_is_refused_before_it_is_made() {
        let name = size_of::<(String, Feature)>() + 1;
        let packed = Features::new().with_ints("a", vec![1; 100]).to_bytes();
        let floats = Features::new().with_floats("a", vec![1.0; 100]).to_bytes();
        let empty = Features::new()
            .with_bytes("a", vec![Vec::new(); 100])
            .to_bytes();
        let unpacked = {
            let mut feature = Vec::new();
            put_bytes(&mut feature, 3, &[8, 1].repeat(100));
            message("a", &feature)
        };
        let cases = [
            (packed, 100 * 8),
            (unpacked, 100 * 8),
            (floats, 100 * 4),
            (empty, 100 * size_of::<Vec<u8>>()),
        ];
        for (bytes, needed) in cases {
            assert!(features_of(&bytes, MemoryBudget(name + needed)).is_ok());
            let refused = features_of(&bytes, MemoryBudget(name + needed - 1))
                .err()
                .unwrap();
            assert!(
                refused.message.contains("more memory than is allowed"),
                "{}",
                refused.message
            );
        }
    }

    /// As `make_tfrecord.py` writes it.
    fn golden(i: usize) -> Features {
        let id =
            |k: usize| 3i64.pow((k * i % 40) as u32) * if k.is_multiple_of(2) { 1 } else { -1 };
        let words = (0..i % 3).map(|k| format!("wörd{k}").into_bytes());
        Features::new()
            .with_ints("label", vec![i as i64 - 2])
            .with_ints("ids", (0..i).map(id).collect())
            .with_floats("floats", (0..i).map(|k| k as f32 / 7.0).collect())
            .with_bytes(
                "image",
                vec![(0..i * 50).map(|k| (i * k % 256) as u8).collect()],
            )
            .with_bytes("words", words.collect())
            .with_bytes("clé", vec![vec![0, 0xff]])
    }

    #[test]
    fn files_are_what_tensorflow_writes() {
        let golden_path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/tensorflow/examples.tfrecord"
        );
        let records = TfRecords::open(golden_path, &TfRecordOptions::default()).unwrap();
        assert_eq!(records.len(), 12);
        for i in 0..records.len() {
            assert_eq!(
                Features::parse(&records.get(i).unwrap()).unwrap(),
                golden(i),
                "example {i}"
            );
        }
        let ours = test_folder::create("golden").join("ours.tfrecord");
        let mut writer = TfRecordWriter::create(&ours).unwrap();
        (0..12).for_each(|i| writer.write(&golden(i).to_bytes()).unwrap());
        writer.finish().unwrap();
        assert!(
            std::fs::read(ours).unwrap() == std::fs::read(golden_path).unwrap(),
            "our file differs from TensorFlow's"
        );
    }

    fn feature() -> impl Strategy<Value = Feature> {
        prop_oneof![
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..4)
                .prop_map(Feature::Bytes),
            prop::collection::vec(-1e30f32..1e30, 0..20).prop_map(Feature::Floats),
            prop::collection::vec(any::<i64>(), 0..20).prop_map(Feature::Ints),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_written_is_read(features in prop::collection::btree_map("[a-z/é]{0,12}", feature(), 0..5)) {
            let features = Features(features);
            prop_assert_eq!(Features::parse(&features.to_bytes()).unwrap(), features);
        }

        #[test]
        fn bytes_that_are_cut_or_changed_do_no_harm(cut in 0usize..60, at in 0usize..60, byte: u8) {
            let features = Features::new().with_ints("a", vec![1, -5]).with_floats("b", vec![0.5]).with_bytes("c", vec![vec![7; 9]]);
            let mut bytes = features.to_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len().saturating_sub(cut).max(1));
            let _ = Features::parse(&bytes);
        }
    }
}
