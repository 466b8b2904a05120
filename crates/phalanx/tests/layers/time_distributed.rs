//! Layers applied to each step where Keras has no numbers: rows that fill up a batch, random bits, penalties, mistakes.

use phalanx::nn::{
    BatchNorm, Conv2d, Cx, Dense, Dropout, Flatten, Regularizer, Sequential, TimeDistributed,
    layer_from_config,
};
use phalanx_graph::{Graph, HostTensor, Shape};
use phalanx_testkit::assert_close;
use serde_json::json;

use crate::{call, ramp};

#[test]
fn rows_that_fill_up_a_batch_do_not_count_in_any_step() {
    let model = Sequential::new([2, 3])
        .add(TimeDistributed::new(BatchNorm::new().momentum(0.5)))
        .build()
        .unwrap();
    let variables = model.init(0).unwrap();
    let short = ramp(&[3, 2, 3]);
    let (expected, moved, _) = call(&model, &variables, std::slice::from_ref(&short), |_, cx| {
        cx.with_training(true)
    });
    let mut values = short.pad_rows(5).f32s();
    values[18..].fill(f32::INFINITY);
    let padded = HostTensor::new([5, 2, 3], &values);
    let (got, moved_padded, _) = call(&model, &variables, &[padded], |graph: &Graph, cx: Cx| {
        let mask = HostTensor::new([5], &[1.0f32, 1.0, 1.0, 0.0, 0.0]);
        cx.with_training(true)
            .with_example_mask(graph.constant(mask))
    });
    let rows = got[0].slice_rows(0, 3);
    assert_close("outputs", &rows.to_f64(), &expected[0].to_f64(), 1e-5);
    assert_eq!(moved.len(), 2);
    for ((at, moved), (other, padded)) in moved.iter().zip(&moved_padded) {
        assert_eq!(at, other);
        assert_close("statistics", &padded.to_f64(), &moved.to_f64(), 1e-5);
    }
}

#[test]
fn dropout_draws_for_every_step_and_row() {
    let model = Sequential::new([4, 20])
        .add(TimeDistributed::new(Dropout::new(0.5)))
        .build()
        .unwrap();
    let ones = HostTensor::full(Shape::f32([6, 4, 20]), 1.0);
    let dropped = |input: &HostTensor, first: u32| {
        let prepare = |graph: &Graph, cx: Cx| {
            let key = graph.constant(HostTensor::new([2], &[1u32, 2]));
            let first = graph.constant(HostTensor::scalar(first));
            cx.with_training(true).with_random(key, first)
        };
        call(&model, &[], std::slice::from_ref(input), prepare)
            .0
            .swap_remove(0)
    };
    let whole = dropped(&ones, 10);
    assert_eq!(
        whole.slice_rows(2, 6),
        dropped(&ones.slice_rows(0, 4), 12),
        "rows in another part of the batch"
    );
    let values = whole.f32s();
    let steps: Vec<&[f32]> = values.chunks(20).collect();
    for (at, step) in steps.iter().enumerate() {
        assert!(!steps[..at].contains(step), "step {at} is as one before");
    }
}

#[test]
fn a_penalty_of_the_output_counts_as_without_it() {
    let penalty = Regularizer::L2 { l2: 0.1 };
    let dense = || Dense::new(2).activity_regularizer(penalty);
    let loss = |model: Sequential| {
        let model = model.build().unwrap();
        let variables = model.init(3).unwrap();
        let kernel = HostTensor::new([3, 2], &[0.5f32, -1.0, 0.25, 2.0, 1.0, -0.5]);
        let variables = [kernel, variables[1].clone()];
        call(&model, &variables, &[ramp(&[4, 5, 3])], |_, cx| {
            cx.with_training(true)
        })
        .2
    };
    let plain = loss(Sequential::new([5, 3]).add(dense()));
    let wrapped = loss(Sequential::new([5, 3]).add(TimeDistributed::new(dense())));
    assert!(plain > 0.0);
    assert_close("penalty", &[wrapped], &[plain], 1e-6);
}

#[test]
fn layers_that_do_not_fit_a_step_are_told() {
    let told = |model: Sequential| model.build().unwrap_err().to_string();
    let vectors = told(Sequential::new([3]).add(TimeDistributed::new(Dense::new(2))));
    assert!(
        vectors.contains("expected sequences [batch, steps, ..] of examples, got"),
        "{vectors}"
    );
    let images = told(Sequential::new([3, 4]).add(TimeDistributed::new(Conv2d::new(2, 2))));
    assert!(
        images.contains("`layer`: conv2d: expected images [batch, height, width, channels]"),
        "{images}"
    );
    let rate = told(Sequential::new([3, 4]).add(TimeDistributed::new(Dropout::new(2.0))));
    assert!(rate.contains("`layer`: dropout: `rate` must be"), "{rate}");
    let nested = Sequential::new([3, 4]).add(TimeDistributed::new(TimeDistributed::new(Flatten)));
    assert!(told(nested).contains("`layer`: time_distributed: expected sequences"));
}

#[test]
fn mistakes_in_the_settings_of_a_step_are_told() {
    for (settings, message) in [
        (json!({}), "field `layer` is missing"),
        (json!({"layer": {}}), "`layer` must be"),
        (
            json!({"layer": {"dens": {"units": 1}}}),
            "`layer`: unknown layer `dens`; did you mean `dense`?",
        ),
        (
            json!({"layer": {"dense": {"unit": 1}}}),
            "dense: unknown field `unit`; did you mean `units`?",
        ),
        (
            json!({"layer": {"dense": {"units": 1, "name": "inner"}}}),
            "dense: `name` is of the layer around it, write it beside `layer`",
        ),
        (json!({"layer": "dense"}), "field `units` is missing"),
    ] {
        let error = layer_from_config("time_distributed", &settings).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("time_distributed: "), "{error}");
        assert!(error.contains(message), "{error}");
    }
    let plain = layer_from_config("time_distributed", &json!({"layer": "flatten"})).unwrap();
    assert_eq!(plain.config()["layer"], json!({"flatten": {}}));
}
