//! Inputs of any length: batches as long as their longest example train what batches of one length train.

use phalanx::data::{Example, Pad, Source};
use phalanx::engine::EngineOptions;

use super::*;

/// The lengths of 22 examples; with batches of 4 three lengths of a batch, and a tail of 2.
const OF_EXAMPLES: [usize; 22] = [
    3, 1, 4, 2, 7, 5, 6, 1, 2, 2, 4, 3, 7, 1, 1, 5, 4, 4, 3, 4, 2, 7,
];

/// Sequences of words, none of which is 0, with a class each.
pub(crate) struct Sentences;

impl Source for Sentences {
    fn len(&self) -> usize {
        OF_EXAMPLES.len()
    }

    fn get(&self, i: usize) -> phalanx::Result<Example> {
        let words: Vec<i32> = (0..OF_EXAMPLES[i])
            .map(|k| 1 + ((i * 5 + k * 3 + i * k) % 8) as i32)
            .collect();
        Ok(Example {
            x: vec![HostTensor::new([words.len()], &words)],
            y: vec![HostTensor::new([], &[(i * i % 7 % 3) as i32])],
            ..Example::default()
        })
    }
}

/// Padded to a multiple of this number, by zeros, which the model leaves out.
fn batches(multiple: usize) -> Batches {
    let pad = Pad {
        multiple,
        ..Pad::default()
    };
    Dataset::from_source(Sentences).batch(4).pad(pad)
}

pub(crate) fn classifier(input: Input) -> Sequential {
    Sequential::new(input)
        .add(Embedding::new(9, 5).mask_zero(true))
        .add(Gru::new(6))
        .add(Dense::new(3))
}

pub(crate) fn indices(length: usize) -> Input {
    Input::new([length]).dtype(DType::I32)
}

pub(crate) fn two_devices() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let options = EngineOptions {
            cpu_devices: 2,
            ..any_device::options()
        };
        Engine::new(&options).unwrap()
    })
}

fn trained(strategy: &impl Strategy, input: Input, multiple: usize) -> (Vec<HostTensor>, Logs) {
    let mut trainer = strategy.compile(classifier(input), tokens_loss()).unwrap();
    let fit = Fit::epochs(3).progress(Progress::Silent);
    trainer.fit(&batches(multiple), fit).unwrap();
    let logs = trainer.evaluate(&batches(multiple)).unwrap();
    let values = trainer.variables().unwrap();
    (values.into_iter().map(|(_, value)| value).collect(), logs)
}

#[test]
fn batches_as_long_as_their_longest_train_as_those_of_one_length() {
    let one = OneDeviceStrategy::on(two_devices());
    let replicas = MirroredStrategy::on(two_devices());
    let central = CentralStorageStrategy::on(two_devices());
    let (expected, expected_logs) = trained(&one, indices(7), 7);
    for (values, logs) in [
        trained(&one, indices(7).any_length(), 1),
        trained(&replicas, indices(7).any_length(), 1),
        trained(&central, indices(7).any_length(), 1),
    ] {
        for (value, expected) in values.iter().zip(&expected) {
            assert_close("weights", &value.to_f64(), &expected.to_f64(), 1e-5);
        }
        let (got, want) = (logs["loss"], expected_logs["loss"]);
        assert!((got - want).abs() < 1e-5, "{got} {want}");
    }
}

#[test]
fn predictions_of_batches_of_several_lengths_are_in_one_tensor_where_they_have_one_shape() {
    let mut padded = trainer(classifier(indices(7)), tokens_loss());
    let mut ragged = trainer(classifier(indices(7).any_length()), tokens_loss());
    let expected = padded.predict(&batches(7)).unwrap();
    let got = ragged.predict(&batches(1)).unwrap();
    assert_eq!(got[0].dims(), [22, 3]);
    assert_close("predictions", &got[0].to_f64(), &expected[0].to_f64(), 1e-6);

    let steps = Sequential::new(indices(7).any_length()).add(Embedding::new(9, 2));
    let mut tagger = trainer(steps, tokens_loss());
    let first = batches(1).get(0, 0).unwrap();
    let words = tagger.predict_on_batch(&first.x).unwrap();
    assert_eq!(words[0].dims(), [4, 4, 2]);
    let error = tagger.predict(&batches(1)).unwrap_err().to_string();
    assert!(
        error.contains(
            "output 0 is [4, 2] for examples of one batch and [7, 2] for those of another"
        ),
        "{error}"
    );
}

/// Sequences of words with a class for each word.
struct Tagged;

impl Source for Tagged {
    fn len(&self) -> usize {
        Sentences.len()
    }

    fn get(&self, i: usize) -> phalanx::Result<Example> {
        let example = Sentences.get(i)?;
        let classes: Vec<i32> = (0..OF_EXAMPLES[i])
            .map(|k| ((i + k * k) % 3) as i32)
            .collect();
        Ok(Example {
            y: vec![HostTensor::new([classes.len()], &classes)],
            ..example
        })
    }
}

#[test]
fn a_step_counts_as_much_in_metrics_however_long_its_batch_is() {
    let crossentropy = SparseCategoricalCrossentropy::from_logits();
    let compile = Compile {
        metrics: vec![Accuracy.into(), Loss::from(crossentropy).into()],
        ..tokens_loss()
    };
    let model = Sequential::new(indices(7).any_length())
        .add(Embedding::new(9, 5).mask_zero(true))
        .add(Dense::new(3));
    let mut tagger = trainer(model, compile);
    let data = Dataset::from_source(Tagged);
    let whole = tagger
        .evaluate(&data.batch(22).pad(Pad::default()))
        .unwrap();
    let (loss, metric) = (whole["loss"], whole["sparse_categorical_crossentropy"]);
    assert!((loss - metric).abs() < 1e-6, "{whole:?}");
    let cut = tagger.evaluate(&data.batch(4).pad(Pad::default())).unwrap();
    for ((name, cut), (_, whole)) in cut.iter().zip(whole.iter()) {
        assert!((cut - whole).abs() < 1e-6, "{name}: {cut} {whole}");
    }
}

#[test]
fn a_written_model_keeps_that_it_takes_any_length() {
    let model = classifier(indices(7).any_length()).build().unwrap();
    let read = Model::from_config(&model.config()).unwrap();
    assert_eq!(read.config(), model.config());
    let mut trainer = trainer(read, tokens_loss());
    assert!(trainer.predict(&batches(1)).is_ok());
    assert!(
        classifier(indices(7))
            .build()
            .unwrap()
            .config()
            .to_string()
            .find("any_length")
            .is_none()
    );
}

#[test]
fn images_of_any_size_are_answered_as_by_a_model_for_their_size() {
    let model = |input: Input| {
        Sequential::new(input)
            .add(Conv2d::new(4, 3))
            .add(GlobalAveragePool2d::new())
            .add(Dense::new(3))
    };
    let any = model(Input::new([9, 8, 2]).open_dims(2)).build().unwrap();
    let read = Model::from_config(&any.config()).unwrap();
    assert_eq!(read.config(), any.config());
    let mut any = trainer(read, tokens_loss());
    for [height, width] in [[5, 7], [9, 8], [3, 12]] {
        let mut fixed = trainer(model(Input::new([height, width, 2])), tokens_loss());
        let numbers: Vec<f32> = (0..4 * height * width).map(|i| (i % 7) as f32).collect();
        let images = [HostTensor::new([2, height, width, 2], &numbers)];
        let got = any.predict_on_batch(&images).unwrap();
        let expected = fixed.predict_on_batch(&images).unwrap();
        assert_close("images", &got[0].to_f64(), &expected[0].to_f64(), 1e-6);
    }
    let flat = Sequential::new(Input::new([6, 6, 2]).open_dims(2))
        .add(Flatten)
        .add(Dense::new(3));
    let error = flat.build().unwrap_err().to_string();
    assert!(error.contains("has any size, but variable"), "{error}");
}

#[test]
fn lengths_that_a_layer_or_a_strategy_cannot_take_are_refused() {
    let flat = Sequential::new(Input::new([6, 2]).any_length())
        .add(Flatten)
        .add(Dense::new(3));
    let error = flat.build().unwrap_err().to_string();
    assert!(
        error.contains("has any length, but variable `dense/kernel` depends on it: it is f32[12,3], and f32[10,3]"),
        "{error}"
    );
    // Where neighbouring lengths are rounded to one.
    let rounded = Sequential::new(Input::new([7, 8, 3]).any_length())
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dense::new(3));
    let error = rounded.build().unwrap_err().to_string();
    assert!(
        error.contains("variable `dense/kernel` depends on it"),
        "{error}"
    );
    // The shortest that a layer takes.
    let shortest = Sequential::new(Input::new([5, 8, 3]).any_length())
        .add(Conv2d::new(2, 5))
        .add(GlobalAveragePool2d::new())
        .add(Dense::new(3));
    assert!(shortest.build().is_ok());
    let single = Sequential::new(Input::new([]).any_length()).add(Dense::new(3));
    let error = single.build().unwrap_err().to_string();
    assert!(
        error.contains("has any length, 1 open dims, but its examples have 0 dims"),
        "{error}"
    );

    let mut fixed = trainer(classifier(indices(7)), tokens_loss());
    let error = fixed.predict(&batches(1)).unwrap_err().to_string();
    assert!(error.contains("takes examples of dims [7]"), "{error}");
    let mut ragged = trainer(
        Sequential::new(Input::new([6, 2]).any_length()).add(Dense::new(3)),
        tokens_loss(),
    );
    let wide = HostTensor::new([1, 4, 3], &[0.0f32; 12]);
    let error = ragged.predict_on_batch(&[wide]).unwrap_err().to_string();
    assert!(error.contains("takes examples of dims [6, 2]"), "{error}");

    let mesh = MeshStrategy::on(two_devices(), &Mesh::new([("data", 2)])).unwrap();
    let refused = mesh.compile(classifier(indices(7).any_length()), tokens_loss());
    let error = refused.unwrap_err().to_string();
    assert!(
        error
            .contains("input `input` has any length, and on a mesh every batch must have the same"),
        "{error}"
    );

    let mut config = classifier(indices(7)).build().unwrap().config();
    config["input"]["any_length"] = json!(3);
    let error = Model::from_config(&config).unwrap_err().to_string();
    assert!(error.contains("expected true or false, got 3"), "{error}");
}

/// A model of any length that halves it five times, in one of a length that five halvings divide but none of the lengths beside it.
#[test]
fn a_model_of_any_length_inside_is_saved_with_the_length_of_the_outer_one() {
    let mut net = Network::new();
    let x = net.input(Input::new([128, 2]).any_length());
    let mut levels = vec![x];
    for level in 0..5 {
        levels.push(net.add(MaxPool1d::new(2), &[levels[level]]));
    }
    let mut up = levels[5];
    for level in (0..5).rev() {
        up = net.add(UpSampling1d::new(2), &[up]);
        up = net.add(Concatenate::new(), &[up, levels[level]]);
    }
    let inner = net.build(&[x], &[up]).unwrap();
    let outer = Sequential::new([96, 2]).add(inner).build().unwrap();
    let again = Model::from_config(&outer.config()).unwrap();
    assert_eq!(again.outputs()[0].dims, outer.outputs()[0].dims);
}
