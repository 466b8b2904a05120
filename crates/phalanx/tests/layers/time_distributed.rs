//! Layers applied to each step where Keras has no numbers: rows that fill up a batch, random bits, penalties, mistakes.

use phalanx::nn::{
    BatchNorm, Conv2d, Cx, Dense, Dropout, Flatten, Regularizer, Sequential, SpectralNorm,
    TimeDistributed, layer_from_config,
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

/// A matrix of f64 by rows.
type Rows = Vec<Vec<f64>>;

fn product(a: &Rows, b: &Rows) -> Rows {
    let cell = |row: &Vec<f64>, j: usize| row.iter().zip(b).map(|(x, y)| x * y[j]).sum();
    a.iter()
        .map(|row| (0..b[0].len()).map(|j| cell(row, j)).collect())
        .collect()
}

fn transposed(a: &Rows) -> Rows {
    (0..a[0].len())
        .map(|j| a.iter().map(|row| row[j]).collect())
        .collect()
}

fn scaled(a: &Rows, by: f64) -> Rows {
    a.iter()
        .map(|row| row.iter().map(|x| x * by).collect())
        .collect()
}

fn unit(a: &Rows) -> Rows {
    scaled(a, 1.0 / a[0].iter().map(|x| x * x).sum::<f64>().sqrt())
}

fn rows(of: &HostTensor) -> Rows {
    let width = *of.dims().last().unwrap();
    of.to_f64().chunks(width).map(<[f64]>::to_vec).collect()
}

/// In training each step finds the kernel that the one before it left, and divides it once more; in prediction nothing changes.
#[test]
fn a_kernel_is_normalized_before_every_step() {
    let model = Sequential::new([4, 3])
        .add(TimeDistributed::new(SpectralNorm::new(Dense::new(2))))
        .build()
        .unwrap();
    let [kernel, u] = [[3, 2], [1, 2]].map(|dims| ramp(&dims));
    let value = |name: &str, dims: &[usize]| match name {
        "kernel" => kernel.clone(),
        "vector_u" => u.clone(),
        _ => HostTensor::zeros(Shape::f32(dims)),
    };
    let variables = model.variables().iter().map(|variable| {
        let name = variable.name.rsplit('/').next().unwrap();
        value(name, &variable.shape.dims)
    });
    let variables: Vec<HostTensor> = variables.collect();
    let x = ramp(&[5, 4, 3]);
    let (found, updates, _) = call(&model, &variables, std::slice::from_ref(&x), |_, cx| {
        cx.with_training(true)
    });
    let (mut kernel, mut u) = (rows(&kernel), rows(&u));
    let steps = rows(&x);
    let outputs = rows(&found[0]);
    for step in 0..4 {
        let v = unit(&product(&u, &transposed(&kernel)));
        u = unit(&product(&v, &kernel));
        let largest = product(&product(&v, &kernel), &transposed(&u))[0][0];
        kernel = scaled(&kernel, 1.0 / largest);
        for example in 0..5 {
            let at = example * 4 + step;
            let expected = product(&vec![steps[at].clone()], &kernel);
            assert_close("step", &outputs[at], &expected[0], 1e-5);
        }
    }
    assert_eq!(updates.len(), 2);
    for (index, value) in &updates {
        let expected = if variables[*index].dims() == [3, 2] {
            &kernel
        } else {
            &u
        };
        assert_close("left", &value.to_f64(), &expected.concat(), 1e-5);
    }
    let (kept, updates, _) = call(&model, &variables, &[x], |_, cx| cx);
    assert!(updates.is_empty());
    let expected = product(&steps, &rows(&variables[0]));
    assert_close("prediction", &kept[0].to_f64(), &expected.concat(), 1e-5);
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
