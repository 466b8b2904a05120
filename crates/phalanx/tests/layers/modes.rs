//! Layers that do something else in training: batch normalisation and dropout.

use phalanx::nn::{BatchNorm, Cx, Dense, Dropout, Model, Sequential};
use phalanx_graph::{Graph, HostTensor, Shape};
use phalanx_testkit::assert_close;

use crate::{call, ramp};

#[test]
fn rows_that_fill_up_a_batch_do_not_count_in_batch_norm() {
    let model = Sequential::new([2, 3])
        .add(BatchNorm::new().momentum(0.5))
        .build()
        .unwrap();
    let variables = model.init(0).unwrap();
    let training = |mask: Option<Vec<f32>>| {
        move |graph: &Graph, cx: Cx| {
            let cx = cx.with_training(true);
            match mask {
                Some(mask) => {
                    cx.with_example_mask(graph.constant(HostTensor::new([mask.len()], &mask)))
                }
                None => cx,
            }
        }
    };
    let short = ramp(&[3, 2, 3]);
    let (expected, moved, _) = call(
        &model,
        &variables,
        std::slice::from_ref(&short),
        training(None),
    );
    let mut bytes = short.pad_rows(5).f32s();
    bytes[18..].fill(f32::INFINITY);
    let padded = HostTensor::new([5, 2, 3], &bytes);
    let mask = vec![1.0, 1.0, 1.0, 0.0, 0.0];
    let (got, moved_padded, _) = call(
        &model,
        &variables,
        std::slice::from_ref(&padded),
        training(Some(mask)),
    );
    assert_same("outputs", &got[0].slice_rows(0, 3), &expected[0]);
    assert_eq!(moved.len(), 2);
    for ((index, a), (other, b)) in moved.iter().zip(&moved_padded) {
        assert_eq!(index, other);
        assert_same("moving statistics", a, b);
    }
    // A batch of no example at all leaves the moving statistics as they are.
    let (_, kept, _) = call(&model, &variables, &[short], training(Some(vec![0.0; 3])));
    assert_eq!(kept[0].1, variables[kept[0].0]);
    assert_eq!(kept[1].1, variables[kept[1].0]);
}

fn assert_same(what: &str, got: &HostTensor, expected: &HostTensor) {
    assert_eq!(got.shape(), expected.shape());
    assert_close(what, &got.to_f64(), &expected.to_f64(), 1e-5);
}

#[test]
fn a_frozen_batch_norm_runs_in_inference_mode() {
    let mut model = Sequential::new([3])
        .add(BatchNorm::new())
        .add(Dense::new(2))
        .build()
        .unwrap();
    let input = [ramp(&[4, 3])];
    let variables = model.init(0).unwrap();
    let train = |model: &Model| call(model, &variables, &input, |_, cx| cx.with_training(true));
    let (live, updates, _) = train(&model);
    assert_eq!(updates.len(), 2);
    model.freeze("batch_norm").unwrap();
    let flags: Vec<bool> = model
        .variables()
        .iter()
        .map(|variable| variable.trainable)
        .collect();
    assert_eq!(flags, [false, false, false, false, true, true]);
    let (frozen, updates, _) = train(&model);
    assert!(updates.is_empty());
    let (inference, ..) = call(&model, &variables, &input, |_, cx| cx);
    assert_eq!(frozen, inference);
    assert_ne!(frozen, live);
    model.unfreeze("batch_norm").unwrap();
    assert_eq!(train(&model).0, live);
}

#[test]
fn dropout_depends_on_the_row_of_the_example() {
    let model = Sequential::new([50])
        .add(Dropout::new(0.25))
        .add(Dropout::new(0.0))
        .build()
        .unwrap();
    let ones = HostTensor::full(Shape::f32([40, 50]), 1.0);
    let dropped = |input: &HostTensor, key: [u32; 2], first: u32| {
        let prepare = |graph: &Graph, cx: Cx| {
            let key = graph.constant(HostTensor::new([2], &key));
            let first = graph.constant(HostTensor::scalar(first));
            cx.with_training(true).with_random(key, first)
        };
        call(&model, &[], std::slice::from_ref(input), prepare)
            .0
            .swap_remove(0)
    };
    let whole = dropped(&ones, [1, 2], 100);
    let half = dropped(&ones.slice_rows(0, 20), [1, 2], 120);
    assert_eq!(whole.slice_rows(20, 40), half);
    assert_ne!(whole, dropped(&ones, [1, 3], 100));
    let values = whole.f32s();
    assert!(
        values
            .iter()
            .all(|&x| x == 0.0 || (x - 4.0 / 3.0).abs() < 1e-6)
    );
    let rate = values.iter().filter(|&&x| x == 0.0).count() as f64 / values.len() as f64;
    assert!((rate - 0.25).abs() < 0.05, "{rate}");
    let (kept, ..) = call(&model, &[], std::slice::from_ref(&ones), |_, cx| cx);
    assert_eq!(kept[0], ones);
}

#[test]
fn dropout_in_training_asks_for_a_key() {
    let model = Sequential::new([2]).add(Dropout::new(0.5)).build().unwrap();
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32([1, 2]));
    let mut cx = Cx::new(&graph, &model, &[]).with_training(true);
    let _ = model.call(&mut cx, &[x]);
    let error = graph.error().unwrap().to_string();
    assert!(
        error.contains("needs random bits, but the caller gave no key, in dropout"),
        "{error}"
    );
}
