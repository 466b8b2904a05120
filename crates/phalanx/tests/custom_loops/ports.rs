//! More of Keras' examples as training steps by hand: losses and weights are Keras' (`tests/golden/keras/make_ports.py`), on one replica and
//! on two, which have an uneven part each.

use phalanx::prelude::*;
use phalanx::strategy::{ModelRef, OptimizerRef, ReplicaCx};
use phalanx_graph::op::PadDim;
use serde_json::Value;

use crate::keras::{Case, compared};
use crate::oracle::array;
use crate::own_layers::{
    GraphAttention, PatchEncoder, Quantizer, SpatialGate, TiedEmbedding, Waves,
};

pub(crate) fn of_keras(wanted: &str, test: impl Fn(&Value, usize)) {
    compared("ports.json", wanted, test);
}

pub(crate) fn dense(
    inputs: usize,
    hidden: usize,
    outputs: usize,
    activation: impl Into<Activation>,
) -> Model {
    let layers = Sequential::new([inputs]).add(Dense::new(hidden).activation(activation));
    layers.add(Dense::new(outputs)).build().unwrap()
}

pub(crate) fn learn(cx: &mut ReplicaCx<'_>, loss: &Tensor, optimizer: &OptimizerRef) {
    let gradients = cx.gradients(loss, optimizer);
    let gradients = cx.all_reduce_gradients(&gradients);
    cx.apply(optimizer, &gradients);
}

pub(crate) fn hard() -> Loss {
    SparseCategoricalCrossentropy::from_logits().into()
}

/// Each view of an example is told from the other views of the whole batch.
#[test]
fn views_are_contrasted_over_all_replicas_as_in_keras() {
    of_keras("contrastive", |record, replicas| {
        let models = [("encoder", dense(4, 6, 3, tanh))];
        let (mut case, [encoder]) = Case::new(record, replicas, models);
        let adam = case.state.add_optimizer(Adam::new(0.01), &[&encoder]);
        let (adam, hard) = (adam.unwrap(), hard());
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let [a, b] = [0, 1].map(|view| {
                let code = cx.train(&encoder, &batch.x[view..=view]).remove(0);
                &code / code.square().sum(&[1]).keep_dims(&[1]).sqrt()
            });
            let counts = cx.all_gather(&cx.example_mask(), 0);
            let own = cx.graph().iota(Shape::new(DType::I32, [cx.rows()]), 0);
            let places = own + cx.replica_id().convert(DType::I32) * cx.rows() as f64;
            let told = |one: &Tensor, other: &Tensor| {
                let all = cx.all_gather(other, 0).transpose(&[1, 0]);
                let similarities = one.matmul(&all) / 0.5 + (&counts - 1.0) * 1e9;
                cx.mean(&hard.per_example(&places, &similarities), None)
            };
            let both = [told(&a, &b), told(&b, &a)];
            let loss = (&both[0] + &both[1]) / 2.0;
            learn(cx, &loss, &adam);
            let [one, other] = both;
            [loss, one, other]
        });
        case.follow(step);
    });
}

/// The loss is of sums over all replicas, and so the same on each: gradients are their mean.
#[test]
fn a_loss_of_correlations_over_all_replicas_is_as_in_keras() {
    of_keras("redundancy", |record, replicas| {
        let models = [("encoder", dense(4, 6, 3, tanh))];
        let (mut case, [encoder]) = Case::new(record, replicas, models);
        let sgd = case.optimizer(Sgd::new(0.01), &[&encoder]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let mask = cx.example_mask().keep_dims(&[1]);
            let count = cx.all_reduce(ReduceOp::Sum, &cx.examples());
            let [a, b] = [0, 1].map(|view| {
                let code = cx.train(&encoder, &batch.x[view..=view]).remove(0);
                let mean =
                    |x: &Tensor| cx.all_reduce(ReduceOp::Sum, &(x * &mask).sum(&[0])) / &count;
                let centred = &code - mean(&code);
                &centred / mean(&centred.square()).sqrt() * &mask
            });
            let products = cx.all_reduce(ReduceOp::Sum, &a.transpose(&[1, 0]).matmul(&b));
            let graph = cx.graph();
            let one = graph
                .iota(Shape::new(DType::I32, [3]), 0)
                .one_hot(3, DType::F32);
            let off = products / count - &one;
            let loss = (off.square() * (one * 0.9 + 0.1)).sum_all();
            let gradients = cx.gradients(&loss, &sgd);
            let gradients = gradients.map(|_, own| cx.all_reduce_mean(own));
            cx.apply(&sgd, &gradients);
            [loss * (1.0 / replicas as f64)]
        });
        case.follow(step);
    });
}

fn residual(net: &mut Network, x: Node, widths: [usize; 2]) -> Node {
    let conv = |size| Conv2d::new(widths[1], size).padding(Padding::Same);
    let norm = BatchNorm::new()
        .center(false)
        .scale(false)
        .synchronized(true);
    let y = net.add(norm, &[x]);
    let y = net.add(conv(3).activation(silu), &[y]);
    let y = net.add(conv(3), &[y]);
    let skip = match widths[0] == widths[1] {
        true => x,
        false => net.add(conv(1), &[x]),
    };
    net.add(Add, &[y, skip])
}

fn denoiser() -> Model {
    let mut net = Network::new();
    let (images, variances) = (net.input([4, 4, 1]), net.input([1, 1, 1]));
    let e = net.add(Waves, &[variances]);
    let e = net.add(UpSampling2d::new(4), &[e]);
    let x = net.add(Conv2d::new(3, 1), &[images]);
    let x = net.add(Concatenate::new(), &[x, e]);
    let skip = residual(&mut net, x, [7, 3]);
    let x = net.add(AveragePool2d::new(2), &[skip]);
    let x = residual(&mut net, x, [3, 4]);
    let larger = UpSampling2d::new(2).interpolation(Interpolation::Bilinear);
    let x = net.add(larger, &[x]);
    let x = net.add(Concatenate::new(), &[x, skip]);
    let x = residual(&mut net, x, [7, 3]);
    let found = net.add(Conv2d::new(1, 1), &[x]);
    net.build(&[images, variances], &[found]).unwrap()
}

#[test]
fn a_denoising_network_and_its_average_learn_as_in_keras() {
    of_keras("diffusion", |record, replicas| {
        let models = [("network", denoiser()), ("average", denoiser())];
        let (mut case, [network, average]) = Case::new(record, replicas, models);
        let sgd = Optimizer::from(Sgd::new(0.01)).weight_decay(0.1);
        let sgd = case.optimizer(sgd, &[&network]);
        let [first, last] = [0.95f64.acos(), 0.02f64.acos()];
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let [images, noise, times] = [0, 1, 2].map(|input| &batch.x[input]);
            let angles = times * (last - first) + first;
            let (signal_rate, noise_rate) = (angles.cos(), angles.sin());
            let noisy = &signal_rate * images + &noise_rate * noise;
            let found = cx
                .train(&network, &[noisy.clone(), noise_rate.square()])
                .remove(0);
            let again = (noisy - &noise_rate * &found) / &signal_rate;
            let loss = cx.mean(&(found - noise).abs(), None);
            let of_images = cx.mean(&(again - images).abs(), None);
            learn(cx, &loss, &sgd);
            follow(cx, &average, &network, 0.9);
            [loss, of_images]
        });
        case.follow(step);
    });
}

/// Moves the variables of a model towards another's.
pub(crate) fn follow(cx: &mut ReplicaCx<'_>, model: &ModelRef, other: &ModelRef, kept: f64) {
    let (own, others) = (cx.variables(model), cx.variables(other));
    let moved = own.iter().zip(&others);
    let moved: Vec<Tensor> = moved
        .map(|(own, other)| own * kept + other * (1.0 - kept))
        .collect();
    cx.set_variables(model, &moved);
}

fn vision() -> Model {
    let mut net = Network::new();
    let images = net.input([4, 4, 2]);
    let norm = || LayerNorm::new().epsilon(1e-6);
    let x = net.add(PatchEncoder, &[images]);
    let y = net.add(norm(), &[x]);
    let y = net.add(MultiHeadAttention::new(2, 6), &[y, y]);
    let x = net.add(Add, &[y, x]);
    let y = net.add(norm(), &[x]);
    let y = net.add(Dense::new(12).activation(gelu), &[y]);
    let y = net.add(Dense::new(6), &[y]);
    let x = net.add(Add, &[y, x]);
    let y = net.add(LayerNorm::new(), &[x]);
    let y = net.add(Dense::new(8).activation(gelu), &[y]);
    let y = net.add(SpatialGate, &[y]);
    let y = net.add(Dense::new(6), &[y]);
    let x = net.add(Add, &[y, x]);
    let x = net.add(GlobalAveragePool1d::default(), &[x]);
    let logits = net.add(Dense::new(3), &[x]);
    net.build(&[images], &[logits]).unwrap()
}

#[test]
fn a_vision_transformer_learns_as_in_keras() {
    of_keras("vision", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", vision())]);
        let sgd = Optimizer::from(Sgd::new(0.1)).weight_decay(0.1);
        let sgd = case.optimizer(sgd, &[&model]);
        let hard = hard();
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.x).remove(0);
            let loss = cx.loss(&hard, &batch.y[0], &logits, None);
            learn(cx, &loss, &sgd);
            [loss]
        });
        case.follow(step);
    });
}

fn language() -> Model {
    let mut net = Network::new();
    let words = net.input(Input::new([4]).dtype(DType::I32));
    let norm = || LayerNorm::new().epsilon(1e-6);
    let table = net.layer(TiedEmbedding);
    let x = net.call(table, &[words]);
    let x = net.add(PositionEmbedding::new(4), &[x]);
    let causal = MultiHeadAttention::new(2, 3).use_causal_mask(true);
    let y = net.add(causal, &[x, x]);
    let x = net.add(Add, &[x, y]);
    let x = net.add(norm(), &[x]);
    let y = net.add(Dense::new(8).activation(relu), &[x]);
    let y = net.add(Dense::new(6), &[y]);
    let x = net.add(Add, &[x, y]);
    let x = net.add(norm(), &[x]);
    let logits = net.call(table, &[x]);
    net.build(&[words], &[logits]).unwrap()
}

/// One layer, called on words and on vectors, has the table for both.
#[test]
fn a_language_model_with_tied_weights_learns_as_in_keras() {
    of_keras("language", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", language())]);
        let sgd = Optimizer::from(Sgd::new(0.1)).global_clipnorm(0.5);
        let sgd = case.optimizer(sgd, &[&model]);
        let hard = hard();
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.y[..1]).remove(0);
            let loss = cx.loss(&hard, &batch.y[1], &logits, Some(&batch.x[0]));
            learn(cx, &loss, &sgd);
            [loss]
        });
        case.follow(step);
    });
}

#[test]
fn radiance_along_rays_is_learnt_as_in_keras() {
    of_keras("radiance", |record, replicas| {
        let models = [("model", dense(12, 8, 4, tanh))];
        let (mut case, [model]) = Case::new(record, replicas, models);
        let adam = case.optimizer(Adam::new(0.01), &[&model]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let [points, colours, depths] = [0, 1, 2].map(|input| &batch.x[input]);
            let rows = cx.rows();
            let waves = [1.0, 2.0].map(|speed| [(points * speed).sin(), (points * speed).cos()]);
            let encoded = Tensor::concat(&waves.iter().flatten().collect::<Vec<_>>(), 2);
            let encoded = encoded.reshape(&[rows * 4, 12]);
            let answers = cx
                .train(&model, &[encoded])
                .remove(0)
                .reshape(&[rows, 4, 4]);
            let rgb = answers.slice_dim(2, 0, 3).logistic();
            let density = answers.slice_dim(2, 3, 4).reshape(&[rows, 4]);
            let density = density.maximum(&density.like(0.0));
            let far = depths.slice_dim(1, 0, 1).zeros_like() + 1e10;
            let near = depths.slice_dim(1, 1, 4) - depths.slice_dim(1, 0, 3);
            let through = (-density * Tensor::concat(&[&near, &far], 1)).exp();
            let weights = (1.0 - &through) * before(&(through + 1e-10));
            let seen = (weights.keep_dims(&[2]) * rgb).sum(&[1]);
            let loss = cx.mean(&(seen - colours).square(), None);
            learn(cx, &loss, &adam);
            let whole = cx.all_reduce(ReduceOp::Sum, &loss);
            let ratio = whole.log() * (-10.0 / std::f64::consts::LN_10);
            [loss, ratio / replicas as f64]
        });
        case.follow(step);
    });
}

/// The product of what comes before each element of a row.
fn before(x: &Tensor) -> Tensor {
    let shift = PadDim {
        low: 1,
        high: -1,
        interior: 0,
    };
    x.cumprod(1).pad(&[PadDim::default(), shift], 1.0)
}

const EDGES: &[[i32; 2]] = &[
    [0, 1],
    [1, 0],
    [1, 2],
    [2, 3],
    [3, 1],
    [4, 0],
    [4, 2],
    [5, 4],
    [5, 5],
];

#[test]
fn a_graph_attention_network_learns_as_in_keras() {
    of_keras("graph", |record, replicas| {
        let attention = GraphAttention {
            nodes: array(&record["nodes"]).unwrap(),
            edges: EDGES,
        };
        let input = Input::new([]).dtype(DType::I32);
        let model = Sequential::new(input).add(attention).build().unwrap();
        let (mut case, [model]) = Case::new(record, replicas, [("model", model)]);
        let adam = case.optimizer(Adam::new(0.01), &[&model]);
        let hard = hard();
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.y[..1]).remove(0);
            let loss = cx.mean(&hard.per_example(&batch.y[1], &logits), None);
            learn(cx, &loss, &adam);
            [loss]
        });
        case.follow(step);
    });
}

#[test]
fn deep_q_learning_is_as_in_keras() {
    of_keras("deep_q", |record, replicas| {
        let models = ["network", "target"].map(|name| (name, dense(3, 6, 2, relu)));
        let (mut case, [network, target]) = Case::new(record, replicas, models);
        let adam = Optimizer::from(Adam::new(0.01)).clipnorm(0.1);
        let adam = case.optimizer(adam, &[&network]);
        let huber = Loss::from(Huber::default());
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let [rewards, ends] = [2, 3].map(|input| &batch.x[input]);
            let next = cx.call(&target, &batch.x[1..2]).remove(0).max(&[1]);
            let wanted = rewards + (1.0 - ends) * next * 0.99;
            let values = cx.train(&network, &batch.x[..1]).remove(0);
            let taken = (values * batch.y[0].one_hot(2, DType::F32)).sum(&[1]);
            let losses = huber.per_example(&wanted.keep_dims(&[1]), &taken.keep_dims(&[1]));
            let loss = cx.mean(&losses, None);
            learn(cx, &loss, &adam);
            follow(cx, &target, &network, 0.8);
            [loss]
        });
        case.follow(step);
    });
}

/// In the first step the two ratios are equal, and the gradient is that of either.
#[test]
fn proximal_policy_optimization_is_as_in_keras() {
    of_keras("proximal", |record, replicas| {
        let models = [
            ("actor", dense(3, 5, 3, tanh)),
            ("critic", dense(3, 5, 1, tanh)),
        ];
        let (mut case, [actor, critic]) = Case::new(record, replicas, models);
        let of_actor = case.optimizer(Adam::new(0.03), &[&actor]);
        let of_critic = case.optimizer(Adam::new(0.01), &[&critic]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let [advantages, returns, before] = [1, 2, 3].map(|input| &batch.x[input]);
            let logs = cx.train(&actor, &batch.x[..1]).remove(0).log_softmax(1);
            let chosen = (&logs * batch.y[0].one_hot(3, DType::F32)).sum(&[1]);
            let ratio = (&chosen - before).exp();
            let clipped = ratio.clamp(0.95, 1.05) * advantages;
            let entropy = (logs.exp() * &logs).sum(&[1]);
            let gain = (ratio * advantages).minimum(&clipped) - entropy * 0.01;
            let loss = -cx.mean(&gain, None);
            let moved = cx.mean(&(before - chosen), None);
            learn(cx, &loss, &of_actor);
            let value = cx.train(&critic, &batch.x[..1]).remove(0);
            let error = cx.mean(&(returns - value.sum(&[1])).square(), None);
            learn(cx, &error, &of_critic);
            [loss, moved, error]
        });
        case.follow(step);
    });
}

fn detector() -> Model {
    let mut net = Network::new();
    let images = net.input([4, 4, 2]);
    let conv = |filters| Conv2d::new(filters, 3).padding(Padding::Same);
    let features = net.add(conv(4).dilation(2).activation(relu), &[images]);
    let heads = [3, 4].map(|width| {
        let head = net.add(conv(width), &[features]);
        net.add(Reshape::new([16, width as i64]), &[head])
    });
    net.build(&[images], &heads).unwrap()
}

/// Focal loss of the classes of anchors: of `labels` below 0 there is none.
fn focal(labels: &Tensor, logits: &Tensor) -> Tensor {
    let wanted = labels.one_hot(3, DType::F32);
    let is_wanted = wanted.equal(&wanted.like(1.0));
    let crossentropy =
        logits.maximum(&logits.like(0.0)) - logits * &wanted + (-logits.abs()).exp().log1p();
    let probability = logits.logistic();
    let right = is_wanted.select(&probability, &(1.0 - &probability));
    let alpha = is_wanted.select(&wanted.like(0.25), &wanted.like(0.75));
    let losses = (alpha * (1.0 - right).square() * crossentropy).sum(&[2]);
    let ignored = labels.equal(&labels.like(-2.0));
    ignored.select(&losses.like(0.0), &losses)
}

#[test]
fn a_detector_with_two_heads_learns_as_in_keras() {
    of_keras("detection", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", detector())]);
        let sgd = Sgd::new(0.01).momentum(0.9).nesterov(true);
        let sgd = case.optimizer(sgd, &[&model]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let (wanted, labels) = (&batch.x[1], &batch.y[0]);
            let found = cx.train(&model, &batch.x[..1]);
            let focal = focal(labels, &found[0]);
            let distance = (wanted - &found[1]).abs();
            let is_near = distance.less(&distance.like(1.0));
            let smooth = is_near
                .select(&(distance.square() * 0.5), &(&distance - 0.5))
                .sum(&[2]);
            let positive = labels.greater_equal(&labels.like(0.0));
            let smooth = positive.select(&smooth, &smooth.like(0.0));
            let count = positive.convert(DType::F32).sum(&[1]).clamp(1.0, 1e9);
            let [focal, smooth] = [focal, smooth].map(|of| cx.mean(&(of.sum(&[1]) / &count), None));
            let loss = &focal + &smooth;
            learn(cx, &loss, &sgd);
            [loss, focal, smooth]
        });
        case.follow(step);
    });
}

/// Gradients of the whole batch in each inner step, and the loss after it is differentiated through them.
#[test]
fn a_loss_is_differentiated_through_steps_of_descent_as_in_keras() {
    of_keras("meta", |record, replicas| {
        let models = [("model", dense(2, 5, 1, tanh))];
        let (mut case, [model]) = Case::new(record, replicas, models);
        let adam = case.optimizer(Adam::new(0.01), &[&model]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let [support, query, of_support, of_query] = [0, 1, 2, 3].map(|input| &batch.x[input]);
            let error = |cx: &ReplicaCx<'_>, weights: &[Tensor], x: &Tensor, y: &Tensor| {
                let mut call = Cx::new(cx.graph(), model.model(), weights);
                let found = model
                    .model()
                    .call(&mut call, std::slice::from_ref(x))
                    .remove(0);
                cx.mean(&(found - y).square(), None)
            };
            let mut weights = cx.variables(&model);
            let mut inner = error(cx, &weights, support, of_support);
            for turn in 0..2 {
                let own = cx.derivatives(&inner, &weights.iter().collect::<Vec<_>>());
                let moved = weights.iter().zip(&own);
                weights = moved
                    .map(|(weight, own)| weight - cx.all_reduce(ReduceOp::Sum, own) * 0.2)
                    .collect();
                if turn == 0 {
                    inner = error(cx, &weights, support, of_support);
                }
            }
            let loss = error(cx, &weights, query, of_query);
            learn(cx, &loss, &adam);
            [loss, inner]
        });
        case.follow(step);
    });
}

#[test]
fn codes_learn_by_the_losses_of_their_layer_as_in_keras() {
    of_keras("quantized", |record, replicas| {
        let layers = Sequential::new([4]).add(Dense::new(2)).add(Quantizer);
        let penalty = Regularizer::L2 { l2: 0.01 };
        let layers = layers.add(Dense::new(4).kernel_regularizer(penalty));
        let models = [("model", layers.build().unwrap())];
        let (mut case, [model]) = Case::new(record, replicas, models);
        let adam = case.optimizer(Adam::new(0.01), &[&model]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let again = cx.train(&model, &batch.x).remove(0);
            let error = cx.mean(&(again - &batch.x[0]).square(), None);
            let added = cx.penalties(&model);
            let loss = &error / 0.5 + &added;
            learn(cx, &loss, &adam);
            [loss, error, added]
        });
        case.follow(step);
    });
}

#[test]
fn mixtures_and_uncertain_tasks_learn_as_in_keras() {
    of_keras("mixture", |record, replicas| {
        let uncertainty = Sequential::new([1]).add(Dense::new(1)).build().unwrap();
        let models = [
            ("model", dense(2, 6, 7, tanh)),
            ("uncertainty", uncertainty),
        ];
        let (mut case, [model, uncertainty]) = Case::new(record, replicas, models);
        let both = [&model, &uncertainty];
        let adam = case.optimizer(Adam::new(0.01), &both);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let [x, y, labels] = [0, 1, 2].map(|input| &batch.x[input]);
            let found = cx.train(&model, std::slice::from_ref(x)).remove(0);
            let [logits, means, scales] =
                [0, 2, 4].map(|start| found.slice_dim(1, start, start + 2));
            let scales = Activation::Softplus.apply(&scales) + 1e-3;
            let normal = ((y - means) / &scales).square() * -0.5 - scales.log();
            let normal = normal - 0.5 * std::f64::consts::TAU.ln();
            let likelihood = (logits.log_softmax(1) + normal).logsumexp(1);
            let logit = found.slice_dim(1, 6, 7).sum(&[1]);
            let crossentropy = Activation::Softplus.apply(&logit) - &logit * labels;
            let parts = [-cx.mean(&likelihood, None), cx.mean(&crossentropy, None)];
            let logs = cx.variables(&uncertainty);
            let loss = |part: &Tensor, log: &Tensor| {
                let log = log.reshape(&[]);
                (-&log).exp() * part + cx.share(&log)
            };
            let loss = loss(&parts[0], &logs[0]) + loss(&parts[1], &logs[1]);
            learn(cx, &loss, &adam);
            let [one, other] = parts;
            [loss, one, other]
        });
        case.follow(step);
    });
}
