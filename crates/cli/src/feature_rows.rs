//! Examples of several inputs, of TFRecord files of `tf.train.Example` and `tf.train.SequenceExample`.

use phalanx::data::{
    Dataset, Example, Feature, Features, HostTensor, SequenceExample, TfRecordOptions,
};
use phalanx::{Error, Result as Read};

use crate::config::{Examples, FeatureInput, InputFeatures};
use crate::data_facts::InputFact;
use crate::example_rows::{absent, labelled};

/// The examples, with an array for each input.
pub(crate) fn read(
    pattern: &str,
    options: &TfRecordOptions,
    data: &Examples,
    (inputs, label): (&[FeatureInput], &str),
) -> Read<Dataset> {
    let (inputs, label) = (inputs.to_vec(), label.to_owned());
    let (kind, divide_by) = (data.label_type, data.divide_by as f32);
    // An example that is no sequence is one without lists.
    Dataset::from_tf_sequence_examples(pattern, options, move |sequence: &SequenceExample| {
        let x = inputs.iter().map(|input| array(sequence, input, divide_by));
        Ok(Example {
            x: x.collect::<Read<_>>()?,
            y: vec![labelled(sequence.context(), &label, kind)?],
            weight: None,
        })
    })
}

/// What the inputs are, by the first example; none where there is one without a name.
pub(crate) fn facts(data: &Examples, all: &Dataset) -> Read<Vec<InputFact>> {
    let Some(inputs) = data.inputs() else {
        return Ok(Vec::new());
    };
    let first = all.get(0, 0)?;
    let fact = |(input, array): (&FeatureInput, &HostTensor)| {
        let (length, any_length) = match &input.of {
            InputFeatures::Sequence {
                length, buckets, ..
            } => (Some(*length), !buckets.is_empty()),
            _ => (None, false),
        };
        let is_numbers = matches!(input.of, InputFeatures::Numbers(_));
        InputFact {
            name: input.name.clone(),
            columns: Vec::new(),
            width: is_numbers.then(|| array.rows()),
            text: None,
            category: None,
            length,
            any_length,
        }
    };
    Ok(inputs.value.iter().zip(&first.x).map(fact).collect())
}

/// The examples, which must have as many numbers for each input as the first of the training: batches by length would pad fewer.
pub(crate) fn of_widths(examples: Dataset, inputs: &[InputFact]) -> Dataset {
    if inputs.iter().all(|input| input.width.is_none()) {
        return examples;
    }
    let inputs = inputs.to_vec();
    examples.map(move |example| {
        for (input, array) in inputs.iter().zip(&example.x) {
            if let Some(width) = input.width.filter(|width| *width != array.rows()) {
                return Err(Error::User(format!(
                    "an example has {} numbers for the input `{}`, expected {width} as the first of the training has; \
                     name features with as many in all examples",
                    array.rows(),
                    input.name
                )));
            }
        }
        Ok(example)
    })
}

fn array(sequence: &SequenceExample, input: &FeatureInput, divide_by: f32) -> Read<HostTensor> {
    let features = sequence.context();
    let is_list = |name: &str| features.get(name).is_none() && sequence.list(name).is_some();
    let absent = |name: &str| match is_list(name) {
        false => absent(features, name, "inputs"),
        true => Error::User(format!(
            "`{name}` is a list of features, one for each step, expected a feature; write `{{feature: {name}, length: 100}}` for a sequence of whole numbers"
        )),
    };
    match &input.of {
        InputFeatures::Index(feature) if is_list(feature) => Err(absent(feature)),
        InputFeatures::Index(feature) => match &whole(features, feature)?[..] {
            [index] => Ok(HostTensor::scalar(*index)),
            values => Err(Error::User(format!(
                "the feature `{feature}` has {} integers, expected one for the input `{}`; write `{{feature: {feature}, length: {}}}` for a sequence",
                values.len(),
                input.name,
                values.len().max(1)
            ))),
        },
        InputFeatures::Numbers(names) => {
            let mut values = Vec::new();
            for name in names {
                match features.get(name) {
                    Some(Feature::Floats(more)) => values.extend_from_slice(more),
                    Some(Feature::Ints(more)) => values.extend(more.iter().map(|&x| x as f32)),
                    Some(Feature::Bytes(_)) => {
                        return Err(Error::User(format!(
                            "the feature `{name}` is strings, expected numbers"
                        )));
                    }
                    None => return Err(absent(name)),
                }
            }
            values.iter_mut().for_each(|value| *value /= divide_by);
            Ok(HostTensor::new([values.len()], &values))
        }
        InputFeatures::Sequence {
            feature, length, ..
        } => {
            let mut values = of_steps(sequence, feature)?;
            values.resize(*length, 0);
            Ok(HostTensor::new([*length], &values))
        }
    }
}

/// The integers of a feature or of the steps of a list, one after the other; none where there is neither.
fn of_steps(sequence: &SequenceExample, name: &str) -> Read<Vec<i32>> {
    match (sequence.context().get(name), sequence.list(name)) {
        (None, None) => Ok(Vec::new()),
        (Some(feature), None) => whole_numbers(feature, name),
        (None, Some(steps)) => {
            let steps = steps.iter().filter(|step| !step.is_empty());
            let steps = steps.map(|step| whole_numbers(step, name));
            Ok(steps.collect::<Read<Vec<_>>>()?.concat())
        }
        (Some(_), Some(_)) => Err(Error::User(format!(
            "an example has `{name}` as a feature and as a list of features; write one of them under another name"
        ))),
    }
}

/// The integers of a feature, from 0 on.
fn whole(features: &Features, name: &str) -> Read<Vec<i32>> {
    let feature = features.get(name);
    whole_numbers(
        feature.ok_or_else(|| absent(features, name, "inputs"))?,
        name,
    )
}

fn whole_numbers(feature: &Feature, name: &str) -> Read<Vec<i32>> {
    match feature {
        Feature::Ints(values) => {
            let small = |&value: &i64| i32::try_from(value).ok().filter(|index| *index >= 0);
            let small = values.iter().map(|value| small(value).ok_or(value));
            small.collect::<Result<_, _>>().map_err(|value| {
                Error::User(format!(
                    "the feature `{name}` has {value}, expected whole numbers from 0 to {}",
                    i32::MAX
                ))
            })
        }
        other => Err(Error::User(format!(
            "the feature `{name}` is {} values of {}, expected integers; write a list of features for other numbers",
            other.len(),
            other.kind()
        ))),
    }
}
