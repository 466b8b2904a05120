//! Models with several inputs of TFRecord files: the key `inputs` of these.

use phalanx::config::{DefaultValue, Field, Kind};
use phalanx_yaml::{Key, Node, Value};

use super::inputs::MAX_INPUTS;
use super::reader::{Reader, Section, list, text, whole};
use super::sections::as_usize;
use super::texts::{BUCKETS, rising};
use super::training_file::MAX_FEATURES;
use super::{Located, Position};

/// `inputs` of TFRecord files.
pub(super) const OF_TFRECORD: Field = Field::new(
    "inputs",
    Kind::Worded(
        "names of inputs, each with a feature, a list of features, or a mapping with the keys feature, length and buckets",
        &Kind::Map(&Kind::Either(&[
            Kind::Text,
            Kind::List(&Kind::Text, 1, MAX_FEATURES as usize),
            Kind::Section(SEQUENCE),
        ])),
    ),
    DefaultValue::Words("one input of the feature `input`"),
    "the inputs of a model that has several, in place of `input` and `features`; layers name them by their own `inputs`. A feature alone is one whole number from 0 for each example, as `embedding` takes it. A list of features holds floats or integers, which follow one another and are divided by `divide_by`. A mapping is a feature of any number of whole numbers, such as of words, or a list of features of a `tf.train.SequenceExample`; other features are in its context",
)
.example("{user: user_id, about: [age, price], words: {feature: tokens, length: 200}}");

/// The keys of an input that is a sequence.
pub(crate) const SEQUENCE: &[Field] = &[
    Field::required(
        "feature",
        Kind::Text,
        "the feature: any number of whole numbers from 0, or none where an example has not got it; in a `tf.train.SequenceExample` also a list of features, whose steps follow one another",
    )
    .example("tokens"),
    Field::required(
        "length",
        Kind::Whole(1, 1 << 16),
        "how many numbers an example has: of longer ones those at the end are left out, after shorter ones comes padding, which is 0",
    )
    .example("200"),
    BUCKETS,
];

/// An input that is made of features.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureInput {
    /// Its name.
    pub name: String,
    /// What it is made of.
    pub of: InputFeatures,
}

/// What an input of a TFRecord file is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputFeatures {
    /// The only integer of a feature.
    Index(String),
    /// The numbers of features, one after the other.
    Numbers(Vec<String>),
    /// Any number of integers, padded with 0.
    Sequence {
        /// The feature.
        feature: String,
        /// The most integers.
        length: usize,
        /// The lengths of batches below this; empty where all batches have it.
        buckets: Vec<usize>,
    },
}

impl Reader {
    /// The key `inputs` of TFRecord files.
    pub(super) fn feature_inputs(
        &mut self,
        section: &Section<'_>,
    ) -> Option<Located<Vec<FeatureInput>>> {
        let node = section.node(OF_TFRECORD.name)?;
        let field = section.field(OF_TFRECORD.name)?;
        let Value::Map(entries) = &node.value else {
            self.unexpected(section, field.name, node);
            return None;
        };
        if !(1..=MAX_INPUTS).contains(&entries.len()) {
            self.unexpected(section, field.name, node);
            return None;
        }
        for other in ["input", "features", "image_size"] {
            if let Some((key, _)) = section.entry(other) {
                let message =
                    format!("`inputs` has the features of each input, and `{other}` is there too");
                self.problem(key.at, message, "keep one of them");
            }
        }
        let inputs: Vec<Option<FeatureInput>> = entries
            .iter()
            .map(|entry| self.feature_input(section, node, entry))
            .collect();
        let inputs = inputs.into_iter().collect::<Option<Vec<FeatureInput>>>()?;
        self.check_bucketed_inputs(&inputs, node.at);
        Some(Located {
            value: inputs,
            at: node.at,
        })
    }

    fn feature_input(
        &mut self,
        section: &Section<'_>,
        all: &Node,
        (key, node): &(Key, Node),
    ) -> Option<FeatureInput> {
        if key.name.contains([':', '.', '/']) {
            let message = format!("an input is named {:?}, with `:`, `.` or `/`", key.name);
            self.problem(key.at, message, "choose another name");
        }
        let named = |node: &Node| text(node).map(str::to_owned);
        let of = match &node.value {
            Value::Map(_) => {
                let section = self.section(node, "inputs", SEQUENCE)?;
                let feature = self.value(&section, "feature", named);
                let number = |node: &Node| whole(node).map(as_usize);
                let length = self.value(&section, "length", number);
                let buckets = self.buckets(&section);
                if let (Some(length), Some(buckets)) = (length, &buckets) {
                    self.check_rising(buckets, length);
                }
                InputFeatures::Sequence {
                    feature: feature?,
                    length: length?,
                    buckets: buckets.map_or_else(Vec::new, |buckets| buckets.value),
                }
            }
            _ => {
                let features = list(node).map(|items| items.iter().map(named).collect());
                let numbers = |features: Option<Vec<String>>| {
                    let some = features.filter(|features| !features.is_empty());
                    some.map(InputFeatures::Numbers)
                };
                let of = match features {
                    Some(features) => numbers(features),
                    None => named(node).map(InputFeatures::Index),
                };
                if of.is_none() {
                    self.unexpected(section, OF_TFRECORD.name, all);
                }
                of?
            }
        };
        let name = key.name.clone();
        Some(FeatureInput { name, of })
    }

    fn check_bucketed_inputs(&mut self, inputs: &[FeatureInput], at: Position) {
        let is_bucketed = |input: &&FeatureInput| matches!(&input.of, InputFeatures::Sequence { buckets, .. } if !buckets.is_empty());
        if inputs.iter().filter(is_bucketed).count() > 1 {
            let message = "`buckets` is in two inputs, and batches are by the length of one";
            self.problem(at, message, "remove it from one of them");
        }
    }

    /// Refuses lengths of batches that do not rise, or reach the longest.
    pub(super) fn check_rising(&mut self, buckets: &Located<Vec<usize>>, length: usize) {
        if !rising(&buckets.value, length) {
            let message = format!(
                "`buckets` is {:?}, expected rising numbers, all below `length`, which is {length}",
                buckets.value
            );
            let next = "leave `length` out of it, and put the rest in order";
            self.problem(buckets.at, message, next);
        }
    }
}
