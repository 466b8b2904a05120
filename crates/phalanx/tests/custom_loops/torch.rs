//! A training loop of PyTorch as it is written here; losses and weights are PyTorch's (`tests/golden/torch/make_loops.py`).

use phalanx::prelude::*;
use phalanx::schedules::OneCycle;

use crate::keras::{Case, compared};
use crate::ports::learn;

/// `cross_entropy` with weights of classes, `ignore_index` and `label_smoothing`: each of its two parts over the weights of the classes.
fn smoothed(logits: &Tensor, labels: &Tensor, of_classes: [f32; 3]) -> (Tensor, Tensor) {
    let of_classes = logits.graph().constant(HostTensor::new([3], &of_classes));
    let (logs, wanted) = (logits.log_softmax(1), labels.one_hot(3, DType::F32));
    let weight = (&wanted * &of_classes).sum(&[1]);
    let of_class = (&logs * wanted).sum(&[1]) * -0.9;
    let even = (logs * of_classes).mean(&[1]) * -0.1;
    // What is ignored has no class, and no weight.
    let counts = weight.greater(&weight.like(0.0));
    let even = even / counts.select(&weight, &weight.like(1.0));
    (of_class + even, weight)
}

/// Gradients of two batches are clipped together, as between `no_sync` and `clip_grad_norm_`.
#[test]
fn an_accumulating_loop_learns_as_in_pytorch() {
    compared("../torch/loops.json", "accumulated", |record, replicas| {
        let norm = BatchNorm::new().momentum(0.9).epsilon(1e-5);
        let layers = Sequential::new([4])
            .add(Dense::new(6).use_bias(false))
            .add(norm.synchronized(true))
            .add(ActivationLayer::new(relu))
            .add(Dense::new(3));
        let models = [("model", layers.build().unwrap())];
        let (mut case, [model]) = Case::new(record, replicas, models);
        let adam = Optimizer::from(AdamW::new(OneCycle::new(0.05, 10)).epsilon(1e-12));
        let adam = adam.weight_decay(0.1).global_clipnorm(0.1);
        let adam = adam.gradient_accumulation(2);
        let adam = case.optimizer(adam, &[&model]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.x).remove(0);
            let (values, weight) = smoothed(&logits, &batch.y[0], [0.5, 2.0, 1.0]);
            let loss = cx.mean(&values, Some(&weight));
            learn(cx, &loss, &adam);
            [loss]
        });
        case.follow(step);
    });
}
