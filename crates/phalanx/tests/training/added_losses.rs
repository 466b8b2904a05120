//! What layers add to the loss by hand.

use phalanx::prelude::*;
use phalanx_testkit::assert_close;

use crate::{arrays, dataset, message, sgd, silent, trainer, values};

/// Adds a penalty for its kernel by hand.
#[derive(Debug)]
struct Penalized;

impl Layer for Penalized {
    fn kind(&self) -> &'static str {
        "penalized"
    }
    fn config(&self) -> serde_json::Value {
        serde_json::json!({})
    }
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let kernel = cx.variable("kernel", Shape::f32([6, 3]), &Initializer::GlorotUniform);
        cx.add_loss(&(kernel.square().sum(&[0, 1]) * 0.1));
        inputs[0].matmul(&kernel)
    }
}

#[test]
fn what_a_layer_adds_to_the_loss_is_trained_as_a_penalty_is() {
    let trained = |model: Sequential| {
        let mut trainer = trainer(model.build().unwrap(), sgd(0.1));
        let logs = trainer.fit(&dataset(20).batch(8), silent(2)).unwrap();
        (logs.last().unwrap()["loss"], values(&trainer))
    };
    let penalty = Regularizer::L2 { l2: 0.1 };
    let dense = Dense::new(3).use_bias(false).kernel_regularizer(penalty);
    let (loss, penalized) = trained(Sequential::new([6]).add(dense.named("kernels")));
    let (by_hand, own) = trained(Sequential::new([6]).add(Penalized.named("kernels")));
    assert!((loss - by_hand).abs() < 1e-6, "{loss} {by_hand}");
    assert_close("kernels", &own, &penalized, 1e-6);
}

/// Adds half the sum of the squares of each example.
#[derive(Debug)]
struct AddsSquares;

impl Layer for AddsSquares {
    fn kind(&self) -> &'static str {
        "adds_squares"
    }
    fn config(&self) -> serde_json::Value {
        serde_json::json!({})
    }
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        cx.add_loss(&(inputs[0].square().sum(&[1]) * 0.5));
        inputs[0].clone()
    }
}

#[test]
fn what_a_layer_adds_for_each_example_counts_once_whatever_the_batch_size() {
    let zeros = Dense::new(3).kernel_initializer(Initializer::Zeros);
    let mut trainer = trainer(Sequential::new([6]).add(AddsSquares).add(zeros), sgd(0.1));
    let squares = arrays(10).0.to_f64().iter().map(|x| x * x).sum::<f64>();
    let expected = 3f64.ln() + 0.5 * squares / 10.0;
    for size in [10, 8, 3, 1, 16] {
        let loss = trainer.evaluate(&dataset(10).batch(size)).unwrap()["loss"];
        assert!(
            (loss - expected).abs() < 1e-6,
            "{size}: {loss}, not {expected}"
        );
    }
}

#[test]
fn what_a_layer_adds_must_be_a_scalar_or_a_number_for_each_row() {
    #[derive(Debug)]
    struct AddsAll;
    impl Layer for AddsAll {
        fn kind(&self) -> &'static str {
            "adds_all"
        }
        fn config(&self) -> serde_json::Value {
            serde_json::json!({})
        }
        fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
            cx.add_loss(&inputs[0]);
            inputs[0].clone()
        }
    }
    let error = message(Sequential::new([6]).add(AddsAll).build());
    assert!(
        error.contains("add_loss: expected a floating-point scalar, or a number for each of")
            && error.contains(",6]; take the mean over other dims before"),
        "{error}"
    );
}
