//! What layers and models of sequences do beside Keras' numbers: masks in training, translation, files, errors.

#[path = "../any_device/mod.rs"]
mod any_device;
mod buckets;
mod dropped_states;
mod gated_units;
mod lengths;
mod memories;
mod mistakes;
mod outputs;
mod translation;

use std::sync::OnceLock;

use phalanx::data::Batch;
use phalanx::engine::{CompileRequest, Engine};
use phalanx::models::{
    EncoderHead, Recommender, RecommenderKind, TransformerEncoder, TransformerNmt,
};
use phalanx::prelude::*;
use phalanx_graph::{DType, Graph, Shape, Tensor};
use phalanx_testkit::assert_close;
use serde_json::{Value, json};

use crate::translation::nmt;

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(&any_device::options()).unwrap())
}

fn trainer(model: impl IntoModel, compile: Compile) -> Trainer {
    OneDeviceStrategy::on(engine())
        .compile(model, compile)
        .unwrap()
}

fn tokens_loss() -> Compile {
    Compile {
        optimizer: Sgd::new(0.5).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        weighted_metrics: vec![Accuracy.into()],
        ..Compile::default()
    }
}

/// Rows of words from 1 on, zeros behind the length of each.
fn words(lengths: &[usize], steps: usize, vocabulary: usize, factor: usize) -> HostTensor {
    let word = |(row, &length): (usize, &usize)| {
        let word = move |step: usize| match step < length {
            true => 1 + ((row * 5 + step * factor + row * step) % (vocabulary - 1)) as i32,
            false => 0,
        };
        (0..steps).map(word).collect::<Vec<i32>>()
    };
    let words: Vec<i32> = lengths.iter().enumerate().flat_map(word).collect();
    HostTensor::new([lengths.len(), steps], &words)
}

const LENGTHS: [usize; 6] = [4, 1, 3, 2, 4, 2];

/// A convolution drops the mask, by itself and normalized: this one has other steps than its input.
#[test]
fn a_normalized_layer_keeps_the_mask_that_it_keeps_by_itself() {
    let convolution = || Conv1d::new(4, 3);
    let built = |layer: &dyn Fn(Sequential) -> Sequential| {
        let words = Sequential::new([5]).add(Embedding::new(9, 5).mask_zero(true));
        layer(words)
            .add(GlobalAveragePool1d::new())
            .build()
            .map(|_| ())
    };
    built(&|model| model.add(convolution())).unwrap();
    built(&|model| model.add(SpectralNorm::new(convolution()))).unwrap();
}

fn tagger(mask_zero: bool) -> Sequential {
    Sequential::new(Input::new([4]).dtype(DType::I32))
        .add(Embedding::new(9, 5).mask_zero(mask_zero))
        .add(LayerNorm::new())
        .add(Dense::new(9))
}

fn batch(weight: Option<HostTensor>) -> Batch {
    Batch {
        x: vec![words(&LENGTHS, 4, 9, 3)],
        y: vec![words(&LENGTHS, 4, 9, 2)],
        weight,
        first: 0,
    }
}

fn values(trainer: &Trainer) -> Vec<f32> {
    let values = trainer.variables().unwrap();
    values.iter().flat_map(|(_, value)| value.f32s()).collect()
}

#[test]
fn padding_weighs_nothing_in_loss_gradients_and_metrics() {
    let steps = LENGTHS
        .iter()
        .flat_map(|&length| (0..4).map(move |step| step < length));
    let weights: Vec<f32> = steps.map(|counts| f32::from(u8::from(counts))).collect();
    let weights = HostTensor::new([6, 4], &weights);
    let mut masked = trainer(tagger(true), tokens_loss());
    let mut weighed = trainer(tagger(false), tokens_loss());
    let one = masked.train_on_batch(&batch(None)).unwrap();
    let other = weighed.train_on_batch(&batch(Some(weights))).unwrap();
    assert_eq!(one.get("loss"), other.get("loss"));
    // Without regard to sample weights padding still does not count.
    assert_eq!(one.get("accuracy"), other.get("weighted_accuracy"));
    assert_close("values", &values(&masked), &values(&weighed), 0.0);

    // Weights of examples weigh all their steps.
    let weights = [2.0f32, 0.0, 1.0, 0.5, 1.0, 3.0];
    let given = HostTensor::new([6], &weights);
    let by_example = masked.test_on_batch(&batch(Some(given))).unwrap();
    let by_step = weights.iter().zip(LENGTHS).flat_map(|(&weight, length)| {
        (0..4).map(move |step| if step < length { weight } else { 0.0 })
    });
    let by_step = HostTensor::new([6, 4], &by_step.collect::<Vec<_>>());
    let by_step = weighed.test_on_batch(&batch(Some(by_step))).unwrap();
    let difference = by_example.get("loss").unwrap() - by_step.get("loss").unwrap();
    assert!(difference.abs() < 1e-6, "{difference}");
}

#[test]
fn the_loss_of_padded_sequences_does_not_depend_on_batches() {
    let mut trainer = trainer(tagger(true), tokens_loss());
    let Batch { x, y, .. } = batch(None);
    let data = Dataset::from_arrays(x, y).unwrap();
    let mut losses = [6, 4, 1].map(|size| {
        let logs = trainer.evaluate(&data.batch(size)).unwrap();
        (logs.get("loss").unwrap(), logs.get("accuracy").unwrap())
    });
    let (loss, accuracy) = losses[0];
    for (other, rate) in &mut losses[1..] {
        assert!((*other - loss).abs() < 1e-6, "{other} {loss}");
        assert!((*rate - accuracy).abs() < 1e-6, "{rate} {accuracy}");
    }
}

#[test]
fn weights_of_other_shapes_are_refused() {
    let mut trainer = trainer(tagger(false), tokens_loss());
    let mut refused = |dims: &[usize]| {
        let weight = HostTensor::zeros(Shape::f32(dims));
        trainer
            .train_on_batch(&batch(Some(weight)))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(&[5, 4]),
        "the weights of a batch of 6 rows are f32[5,4], expected f32[6]; give a number for each example, or for each of its steps"
    );
    let message = refused(&[6, 3]);
    assert!(
        message.contains("weights f32[6,3] do not fit values f32[6,4]"),
        "{message}"
    );
}

#[test]
fn padded_blocks_and_loops_can_be_computed_again() {
    let encoder = TransformerEncoder {
        vocabulary: 9,
        length: 4,
        layers: 1,
        width: 4,
        heads: 2,
        feed_forward: 8,
        mask_zero: true,
        dropout: 0.2,
        head: EncoderHead::Features,
        ..TransformerEncoder::default()
    };
    let model = Sequential::new(Input::new([4]).dtype(DType::I32))
        .add(encoder.build().unwrap())
        .add(Gru::new(3).return_sequences(true))
        .add(Dense::new(9));
    let mut model = model.build().unwrap();
    let mut kept = trainer(model.clone(), tokens_loss());
    let again = |path: &str| path.ends_with("block_0") || path.ends_with("gru");
    assert_eq!(model.set_checkpointed_where(again), 2);
    let mut computed_again = trainer(model, tokens_loss());
    for trainer in [&mut kept, &mut computed_again] {
        trainer.train_on_batch(&batch(None)).unwrap();
    }
    assert_close("values", &values(&computed_again), &values(&kept), 1e-6);
}

/// The outputs of a model, in training when there is a key.
fn outputs(
    model: &Model,
    x: &[HostTensor],
    key: Option<[u32; 2]>,
    policy: Policy,
) -> Vec<HostTensor> {
    let graph = Graph::new();
    let values = model.init(3).unwrap();
    let parameter = |value: &HostTensor| graph.parameter("x", value.shape().clone());
    let variables: Vec<Tensor> = values.iter().map(parameter).collect();
    let inputs: Vec<Tensor> = x.iter().map(parameter).collect();
    let mut cx = Cx::new(&graph, model, &variables).with_policy(policy);
    if let Some(key) = key {
        let key = graph.constant(HostTensor::new([2], &key));
        let row = graph.scalar(DType::U32, 0.0);
        cx = cx.with_training(true).with_random(key, row);
    }
    let outputs = model.call(&mut cx, &inputs);
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("y", output)).collect();
    let program = graph.finish(&named).unwrap();
    let compiled = engine()
        .compile(CompileRequest::new("outputs", &program))
        .unwrap();
    let buffers = values.iter().chain(x).map(|x| engine().put(0, x).unwrap());
    let buffers: Vec<_> = buffers.collect();
    let arguments: Vec<_> = buffers.iter().collect();
    let results = compiled.run(&[&arguments]).unwrap().0.swap_remove(0);
    let read = |(buffer, output): (_, &Tensor)| engine().get(buffer, &output.shape()).unwrap();
    results.iter().zip(&outputs).map(read).collect()
}

fn ramp(dims: &[usize]) -> HostTensor {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).sin()).collect();
    HostTensor::new(dims, &values)
}

/// Gives the states beside the last output, joined: `[batch, 3 units]`.
#[derive(Debug)]
struct States(Lstm);

impl Layer for States {
    fn kind(&self) -> &'static str {
        "states"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let (output, states) = self.0.with_states(cx, "lstm", inputs);
        // A second sequence goes on from the states of the first.
        let more = [inputs[0].clone(), states[0].clone(), states[1].clone()];
        let (again, _) = Lstm::new(3).with_states(cx, "next", &more);
        Tensor::concat(&[&output, &states[0], &states[1], &again], 1)
    }
}

#[test]
fn states_come_out_and_go_in() {
    let model = Sequential::new([4, 2])
        .add(States(Lstm::new(3)))
        .build()
        .unwrap();
    let names: Vec<&str> = model.variables().iter().map(|v| v.name.as_str()).collect();
    assert_eq!(
        names[..2],
        ["states/lstm/kernel", "states/lstm/recurrent_kernel"]
    );
    assert_eq!(names[3], "states/next/kernel");
    // The forget gate starts open.
    let bias = model.init(3).unwrap()[2].f32s();
    assert_eq!(bias, [0., 0., 0., 1., 1., 1., 0., 0., 0., 0., 0., 0.]);
    let joined = outputs(&model, &[ramp(&[2, 4, 2])], None, Policy::Float32)[0].f32s();
    for row in joined.chunks(12) {
        assert_eq!(row[..3], row[3..6]);
        assert_ne!(row[3..6], row[6..9]);
    }
}

#[test]
fn sixteen_bits_and_dropout_change_little_and_something() {
    let mut net = Network::new();
    let x = net.input([5, 4]);
    let both = Bidirectional::new(Gru::new(3).return_sequences(true).dropout(0.3));
    let both = net.add(both, &[x]);
    let attention = MultiHeadAttention::new(2, 3)
        .dropout(0.3)
        .use_causal_mask(true);
    let seen = net.add(attention, &[both]);
    let last = net.add(SimpleRnn::new(3).dropout(0.3), &[seen]);
    let model = net.build(&[x], &[last]).unwrap();
    let x = [ramp(&[2, 5, 4])];
    let run = |key, policy| {
        outputs(&model, &x, key, policy)[0]
            .convert(DType::F32)
            .f32s()
    };
    let exact = run(None, Policy::Float32);
    assert_close("outputs", &run(None, Policy::MixedBfloat16), &exact, 0.03);
    let dropped = run(Some([1, 2]), Policy::Float32);
    assert!(dropped.iter().all(|x| x.is_finite()));
    assert_ne!(dropped, exact);
    assert_ne!(dropped, run(Some([1, 3]), Policy::Float32));
    assert_eq!(dropped, run(Some([1, 2]), Policy::Float32));
}

#[test]
fn models_of_sequences_are_read_back_as_written() {
    let encoder = TransformerEncoder {
        head: EncoderHead::Classes(2),
        mask_zero: true,
        dropout: 0.1,
        layers: 1,
        ..TransformerEncoder::default()
    };
    let shared = TransformerNmt {
        shared_embedding: true,
        target_vocabulary: 8,
        ..nmt()
    };
    let of = |interest: RecommenderKind, categories: &[usize]| {
        Recommender::new(interest, categories)
            .numbers(3)
            .build()
            .unwrap()
    };
    let stack = Sequential::new(Input::new([4]).dtype(DType::I32))
        .add(Embedding::new(9, 4).mask_zero(true))
        .add(Bidirectional::new(Lstm::new(2).return_sequences(true)).merge_mode(MergeMode::Mul))
        .add(Gru::new(2).return_sequences(true))
        .add(SimpleRnn::new(2).return_sequences(true))
        .add(GlobalMaxPool1d::new());
    let models = [
        encoder.build().unwrap(),
        nmt().build().unwrap(),
        shared.build().unwrap(),
        of(RecommenderKind::TwoTower, &[5, 6]),
        of(RecommenderKind::Dlrm, &[5, 6, 7]),
        of(RecommenderKind::WideAndDeep, &[5, 6, 7]),
        stack.build().unwrap(),
    ];
    for model in models {
        let again = Model::from_config(&model.config()).unwrap();
        assert_eq!(again.config(), model.config());
        assert_eq!(again.variables(), model.variables());
    }
}

/// As many parameters as the script of the benchmark counts.
#[test]
fn the_encoder_has_the_parameters_of_the_benchmark() {
    let model = TransformerEncoder::default().build().unwrap();
    let count: usize = model.variables().iter().map(|v| v.shape.len()).sum();
    let block = 4 * (256 * 256 + 256) + 2 * 256 * 1024 + 1024 + 256 + 4 * 256;
    assert_eq!(
        count,
        8000 * 256 + 128 * 256 + 4 * block + 512 + 256 * 8000 + 8000
    );
}

#[test]
fn recommenders_learn_who_likes_what() {
    let rows = 64;
    let users: Vec<i32> = (0..rows).map(|i| i % 8).collect();
    let items: Vec<i32> = (0..rows).map(|i| i / 8 % 6).collect();
    let likes = users
        .iter()
        .zip(&items)
        .map(|(user, item)| (user % 2 == item % 2) as i32);
    let likes: Vec<i32> = likes.collect();
    let numbers = ramp(&[rows as usize, 2]);
    let rows = [rows as usize];
    for interest in [
        RecommenderKind::TwoTower,
        RecommenderKind::Dlrm,
        RecommenderKind::WideAndDeep,
    ] {
        let model = Recommender::new(interest, [8, 6])
            .numbers(2)
            .width(8)
            .hidden([16]);
        let mut trainer = trainer(
            model,
            Compile {
                optimizer: Adam::new(0.02).into(),
                loss: BinaryCrossentropy::from_logits().into(),
                metrics: vec![Accuracy.into()],
                ..Compile::default()
            },
        );
        let batch = Batch {
            x: vec![
                HostTensor::new(rows, &users),
                HostTensor::new(rows, &items),
                numbers.clone(),
            ],
            y: vec![HostTensor::new(rows, &likes)],
            weight: None,
            first: 0,
        };
        for _ in 0..80 {
            trainer.train_on_batch(&batch).unwrap();
        }
        let logs = trainer.test_on_batch(&batch).unwrap();
        assert!(logs.get("accuracy").unwrap() > 0.95, "{interest:?}: {logs}");
    }
}

/// Layers of sequences with their settings, and whether their output has the mask of the input.
fn layers_and_masks() -> Vec<(&'static str, Value, bool)> {
    vec![
        ("activation", json!({"activation": "relu"}), true),
        ("batch_norm", json!({}), true),
        ("dense", json!({"units": 2}), true),
        ("dropout", json!({"rate": 0.5}), true),
        ("spatial_dropout1d", json!({"rate": 0.5}), true),
        ("gaussian_noise", json!({"stddev": 0.5}), true),
        ("gaussian_dropout", json!({"rate": 0.5}), true),
        ("alpha_dropout", json!({"rate": 0.5}), true),
        ("layer_norm", json!({}), true),
        ("group_norm", json!({"groups": 2}), true),
        ("unit_norm", json!({}), true),
        ("rms_norm", json!({}), true),
        ("normalization", json!({}), true),
        ("p_relu", json!({}), true),
        ("layer_scale", json!({}), true),
        ("stochastic_depth", json!({"drop_path_rate": 0.5}), true),
        (
            "time_distributed",
            json!({"layer": {"dense": {"units": 2}}}),
            true,
        ),
        (
            "multi_head_attention",
            json!({"num_heads": 1, "key_dim": 2}),
            true,
        ),
        (
            "group_query_attention",
            json!({"head_dim": 1, "num_query_heads": 2, "num_key_value_heads": 1}),
            true,
        ),
        ("attention", json!({}), true),
        ("additive_attention", json!({}), true),
        ("position_embedding", json!({"sequence_length": 4}), true),
        ("rescaling", json!({"scale": 2.0}), true),
        ("sinusoidal_position", json!({}), true),
        ("gru", json!({"units": 2, "return_sequences": true}), true),
        (
            "rnn",
            json!({"cells": [{"lstm": {"units": 2}}], "return_sequences": true}),
            true,
        ),
        (
            "conv_lstm2d",
            json!({"filters": 2, "kernel_size": 2, "return_sequences": true}),
            true,
        ),
    ]
}

/// Layers of sequences whose output has none.
fn layers_without_masks() -> Vec<(&'static str, Value, bool)> {
    vec![
        ("gru", json!({"units": 2}), false),
        (
            "conv_lstm2d",
            json!({"filters": 2, "kernel_size": 2}),
            false,
        ),
        (
            "einsum_dense",
            json!({"equation": "abc,cd->abd", "output_shape": [null, 2]}),
            false,
        ),
        ("flatten", json!({}), false),
        ("reshape", json!({"target_shape": [2, 4]}), false),
        ("global_average_pool1d", json!({}), false),
        ("zero_padding1d", json!({"padding": 0}), false),
        ("depthwise_conv1d", json!({"kernel_size": 1}), false),
        (
            "separable_conv1d",
            json!({"filters": 2, "kernel_size": 1}),
            false,
        ),
        (
            "conv1d_transpose",
            json!({"filters": 2, "kernel_size": 1}),
            false,
        ),
        ("cropping1d", json!({"cropping": 0}), false),
        ("up_sampling1d", json!({"size": 1}), false),
    ]
}

#[test]
fn masks_travel_through_layers_that_treat_each_step_by_itself() {
    let layers = layers_and_masks().into_iter().chain(layers_without_masks());
    for (kind, settings, keeps) in layers {
        let layer = layer_from_config(kind, &settings).unwrap();
        let dims: &[usize] = match kind {
            "conv_lstm2d" => &[4, 3, 3, 2],
            _ => &[4, 2],
        };
        let model = Sequential::new(dims).add(layer).build().unwrap();
        let graph = Graph::new();
        let variables = model.variables().iter();
        let variables: Vec<Tensor> = variables
            .map(|v| graph.parameter(&v.name, v.shape.clone()))
            .collect();
        let x = graph.parameter("x", Shape::f32([&[3], dims].concat()));
        let mask = graph.parameter("mask", Shape::new(DType::Bool, [3, 4]));
        let mut cx = Cx::new(&graph, &model, &variables);
        cx.set_padding_mask(&x, &mask);
        let output = model.call(&mut cx, &[x]).swap_remove(0);
        assert_eq!(cx.padding_mask(&output).is_some(), keeps, "{kind}");
    }
}

#[test]
fn a_mask_of_another_shape_is_refused() {
    let model = Sequential::new([4, 2])
        .add(GlobalAveragePool1d::new())
        .build()
        .unwrap();
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32([3, 4, 2]));
    let mask = graph.parameter("mask", Shape::new(DType::Bool, [3, 5]));
    let mut cx = Cx::new(&graph, &model, &[]);
    cx.set_padding_mask(&x, &mask);
    let message = graph.error().unwrap().to_string();
    assert!(
        message
            .contains("a padding mask of f32[3,4,2] must be a bool for each step, got bool[3,5]"),
        "{message}"
    );
}
