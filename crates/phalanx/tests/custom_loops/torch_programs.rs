//! Programs of pytorch/examples and of PyTorch's tutorials; losses and weights are PyTorch's (`tests/golden/torch/make_programs.py`), on one
//! replica and on two, which have an uneven part each.

use phalanx::data::Batch;
use phalanx::optim::{ParamSpec, UpdateRule, Updated};
use phalanx::prelude::*;
use phalanx::schedules::ExponentialDecay;
use phalanx::strategy::{ModelRef, OptimizerRef, ReplicaCx};
use serde_json::{Value, json};

use crate::keras::{Case, compared};
use crate::oracle::array;
use crate::ports::{dense, hard, learn};
use crate::torch_models as models;
use crate::{assert_says, mirrored};

pub(crate) fn of_torch(wanted: &str, test: impl Fn(&Value, usize)) {
    compared("../torch/programs.json", wanted, test);
}

/// Adam as PyTorch's with an `eps` that does not matter.
pub(crate) fn adam(rate: f64) -> Adam {
    Adam::new(rate).epsilon(1e-12)
}

/// Follows a model that learns classes by cross-entropy.
pub(crate) fn classifies(name: &str, model: &Model, optimizer: impl Into<Optimizer>) {
    let optimizer = optimizer.into();
    of_torch(name, |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", model.clone())]);
        let optimizer = case.optimizer(optimizer.clone(), &[&model]);
        let step = case
            .strategy
            .function(move |cx, batch: Inputs| [classify(cx, &batch, &model, &optimizer)]);
        case.follow(step);
    });
}

fn classify(cx: &mut ReplicaCx<'_>, batch: &Inputs, model: &ModelRef, by: &OptimizerRef) -> Tensor {
    let (labels, inputs) = batch.y.split_last().unwrap();
    let given = [&batch.x[..], inputs].concat();
    let logits = cx.train(model, &given[..1]).remove(0);
    let loss = cx.loss(&hard(), labels, &logits, None);
    learn(cx, &loss, by);
    loss
}

#[test]
fn pixels_are_shuffled_as_in_pytorch() {
    of_torch("super_resolution", |record, replicas| {
        let models = [("model", models::super_resolution())];
        let (mut case, [model]) = Case::new(record, replicas, models);
        let adam = case.optimizer(adam(0.01), &[&model]);
        let squares = Loss::from(MeanSquaredError);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let made = cx.train(&model, &batch.x[..1]).remove(0);
            let loss = cx.loss(&squares, &batch.x[1], &made, None);
            learn(cx, &loss, &adam);
            [loss]
        });
        case.follow(step);
    });
}

#[test]
fn a_smooth_style_is_learnt_as_in_pytorch() {
    of_torch("style", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", models::style())]);
        let adam = case.optimizer(adam(0.01), &[&model]);
        let squares = Loss::from(MeanSquaredError);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let made = cx.train(&model, &batch.x).remove(0);
            let content = cx.loss(&squares, &batch.x[0], &made, None);
            let variation = [1, 2].map(|dim| {
                let step = made.slice_dim(dim, 1, 6) - made.slice_dim(dim, 0, 5);
                step.abs().sum(&[1, 2, 3])
            });
            let [down, right] = variation;
            let variation = cx.mean(&(down + right), None);
            learn(cx, &(&content + &variation * 0.01), &adam);
            [content, variation]
        });
        case.follow(step);
    });
}

#[test]
fn adversaries_learn_as_in_pytorch() {
    of_torch("dcgan", |record, replicas| {
        let models = [
            ("critic", models::critic()),
            ("generator", models::generator()),
        ];
        let (mut case, [critic, generator]) = Case::new(record, replicas, models);
        let [of_critic, of_generator] =
            [&critic, &generator].map(|model| case.optimizer(adam(0.002).beta_1(0.5), &[model]));
        let crossentropy = Loss::from(BinaryCrossentropy::from_probabilities());
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let judged = |cx: &mut ReplicaCx<'_>, images: &Tensor, wanted: f64| {
                let found = cx.train(&critic, std::slice::from_ref(images)).remove(0);
                let wanted = found.zeros_like() + wanted;
                cx.loss(&crossentropy, &wanted, &found, None)
            };
            let made = cx.train(&generator, &batch.x[1..]).remove(0);
            let of_real = judged(cx, &batch.x[0], 1.0);
            let of_both = of_real + judged(cx, &made, 0.0);
            learn(cx, &of_both, &of_critic);
            let loss = judged(cx, &made, 1.0);
            learn(cx, &loss, &of_generator);
            [of_both, loss]
        });
        case.follow(step);
    });
}

/// `torch.optim.SGD` with Nesterov's momentum: the velocity has no rate in it, and kernels alone decay.
#[derive(Clone, Debug)]
struct TorchSgd {
    rate: Schedule,
    momentum: f64,
    decay: f64,
}

impl UpdateRule for TorchSgd {
    fn kind(&self) -> &'static str {
        "torch_sgd"
    }

    fn config(&self) -> Value {
        json!({"momentum": self.momentum, "decay": self.decay})
    }

    fn learning_rate(&self) -> &Schedule {
        &self.rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("velocity", 0.0)]
    }

    fn update(
        &self,
        spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let decay = if spec.shape.rank() > 1 {
            self.decay
        } else {
            0.0
        };
        let gradient = gradient + param * decay;
        let velocity = &slots[0] * self.momentum + &gradient;
        let step = gradient + &velocity * self.momentum;
        Updated::new(param - step * &scalars[0], [velocity])
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

#[test]
fn a_rate_that_falls_in_steps_leaves_pytorchs_velocity_as_it_is() {
    of_torch("imagenet", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", models::classifier())]);
        let sgd = Optimizer::custom(TorchSgd {
            rate: ExponentialDecay::new(0.1, 2, 0.1).staircase().into(),
            momentum: 0.9,
            decay: 0.05,
        });
        let sgd = case.optimizer(sgd, &[&model]);
        let smooth = CategoricalCrossentropy::from_logits().label_smoothing(0.1);
        let smooth = Loss::from(smooth);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.x).remove(0);
            let wanted = batch.y[0].one_hot(3, DType::F32);
            let loss = cx.loss(&smooth, &wanted, &logits, None);
            learn(cx, &loss, &sgd);
            [loss]
        });
        case.follow(step);
    });
}

/// A sum over examples is of the examples of all replicas, without rows that only fill up.
#[test]
fn a_policy_learns_by_a_sum_over_an_episode_as_in_pytorch() {
    of_torch("reinforce", |record, replicas| {
        let (mut case, [policy]) = Case::new(record, replicas, [("model", dense(3, 4, 2, tanh))]);
        let adam = case.optimizer(adam(0.02), &[&policy]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logs = cx.train(&policy, &batch.x[..1]).remove(0).log_softmax(1);
            let chosen = (logs * batch.y[0].one_hot(2, DType::F32)).sum(&[1]);
            let loss = -(chosen * &batch.x[1] * cx.example_mask()).sum_all();
            learn(cx, &loss, &adam);
            [loss]
        });
        let [x, rewards, actions] = [0, 1, 2].map(|i| array(&record["inputs"][i]).unwrap());
        let mut returns = rewards.to_f64();
        for step in (0..4).rev() {
            returns[step] += 0.9 * returns[step + 1];
        }
        let mean = returns.iter().sum::<f64>() / 5.0;
        // `Tensor.std` divides by one less than there are.
        let squares: f64 = returns.iter().map(|x| (x - mean).powi(2)).sum();
        let of_one = (squares / 4.0).sqrt() + 1e-7;
        let returns: Vec<f32> = returns
            .iter()
            .map(|x| ((x - mean) / of_one) as f32)
            .collect();
        let batch = Batch {
            x: vec![x, HostTensor::new([5], &returns)],
            y: vec![actions],
            weight: None,
            first: 0,
        };
        let batch = case.strategy.distribute_batch(&batch).unwrap();
        case.follow_on(&batch, step);
    });
}

#[test]
fn images_are_seen_through_a_learnt_window_as_in_pytorch() {
    classifies("spatial_transformer", &models::spatial(), Sgd::new(0.02));
}

#[test]
fn gradients_of_each_example_and_by_inputs_are_as_in_pytorch() {
    of_torch("derivatives", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", dense(4, 5, 3, tanh))]);
        let sgd = case.optimizer(Sgd::new(0.3), &[&model]);
        let hard = hard();
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let (x, labels) = (&batch.x[0], &batch.y[0]);
            let variables = cx.variables(&model);
            let logits = cx.train(&model, &batch.x).remove(0);
            let losses = hard.per_example(labels, &logits);
            let loss = cx.mean(&losses, None);
            let slopes = cx.derivatives(&losses.sum_all(), &[x]).remove(0);
            let curved = cx.batch_jacobian(&slopes, &[x]).remove(0);
            let curved = cx.mean(&curved.square().sum(&[1, 2]), None);
            let attacked = (x + slopes.sign() * 0.1).clamp(-2.0, 2.0);
            let logits = cx.call(&model, &[attacked]).remove(0);
            let fooled = cx.mean(&hard.per_example(labels, &logits), None);
            let each = cx.jacobian(&losses, &variables.iter().collect::<Vec<_>>());
            let flat = |of: &Tensor| of.reshape(&[of.dim(0), of.shape().len() / of.dim(0)]);
            let squares = each.iter().map(|of| flat(of).square().sum(&[1]));
            let norms = squares.reduce(|all, next| all + next).unwrap().sqrt();
            let count = cx.all_reduce(ReduceOp::Sum, &cx.examples());
            let shares = (0.5 / norms).clamp(0.0, 1.0) * cx.example_mask() / count;
            let mut clipped = each.iter();
            let gradients = cx.gradients(&loss, &sgd).map(|_, _| {
                let own = clipped.next().unwrap();
                (own * shares.broadcast_in(&own.dims(), &[0])).sum(&[0])
            });
            let gradients = cx.all_reduce_gradients(&gradients);
            cx.apply(&sgd, &gradients);
            [loss, fooled, curved]
        });
        case.follow(step);
    });
}

#[test]
fn norms_of_weights_are_divided_by_as_in_pytorch() {
    classifies("parametrized", &models::parametrized(), Sgd::new(0.3));
}

#[test]
fn weights_are_averaged_and_their_statistics_taken_again_as_in_pytorch() {
    of_torch("averaged", |record, replicas| {
        // Moving statistics that are the batch's own.
        let models = [
            ("model", models::normed(models::norm())),
            ("average", models::normed(models::norm().momentum(0.0))),
        ];
        let (mut case, [model, average]) = Case::new(record, replicas, models);
        let sgd = case.optimizer(Sgd::new(0.3), &[&model]);
        let mut step = case
            .strategy
            .function(|cx, batch: Inputs| [classify(cx, &batch, &model, &sgd)]);
        let mixed = |old: &[Tensor], new: &[Tensor], share: &Tensor| -> Vec<Tensor> {
            let both = old.iter().zip(new);
            both.map(|(old, new)| old + (new - old) * share).collect()
        };
        let mut take = case.strategy.function(|cx, share: Tensor| {
            let (old, new) = (cx.variables(&average), cx.variables(&model));
            let mut taken = mixed(&old, &new, &share);
            taken[3..5].clone_from_slice(&old[3..5]);
            cx.set_variables(&average, &taken);
            [share]
        });
        let mut refresh = case
            .strategy
            .function(|cx, (batch, share): (Inputs, Tensor)| {
                let old = cx.variables(&average);
                let _ = cx.train(&average, &batch.x[..1]);
                let taken = mixed(&old, &cx.variables(&average), &share);
                cx.set_variables(&average, &taken);
                [share]
            });
        let share = |number: usize| HostTensor::scalar(1.0 / (number + 1) as f32);
        let batch = case.batch();
        for number in 0..5 {
            let got = step.call(&mut case.state, &batch).unwrap();
            case.check_losses(number, &got);
            if number >= 2 {
                let share = case.strategy.broadcast(&share(number - 2)).unwrap();
                let _ = take.call(&mut case.state, &share).unwrap();
            }
        }
        for number in 0..2 {
            let share = case.strategy.broadcast(&share(number)).unwrap();
            let batch = Batch {
                x: vec![array(&record["inputs"][number]).unwrap()],
                y: Vec::new(),
                weight: None,
                first: 0,
            };
            let batch = case.strategy.distribute_batch(&batch).unwrap();
            let _ = refresh.call(&mut case.state, &(batch, share)).unwrap();
        }
        case.check_variables();
    });
}

#[test]
fn layers_learn_one_after_another_as_in_pytorch() {
    of_torch("forward_forward", |record, replicas| {
        let layer = |inputs: usize, outputs: usize| {
            models::build(Sequential::new([inputs]).add(Dense::new(outputs).activation(relu)))
        };
        let models = [("first", layer(4, 5)), ("second", layer(5, 4))];
        let (mut case, layers) = Case::new(record, replicas, models);
        let adams = [0, 1].map(|at| case.optimizer(adam(0.03), &[&layers[at]]));
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let call = |cx: &mut ReplicaCx<'_>, layer: &ModelRef, x: &Tensor| {
                let norm = x.square().sum(&[1]).keep_dims(&[1]).sqrt();
                cx.train(layer, &[x / (norm + 1e-4)]).remove(0)
            };
            let mut given = [batch.x[0].clone(), batch.x[1].clone()];
            [0, 1].map(|at| {
                let [good, bad] =
                    [0, 1].map(|which| call(cx, &layers[at], &given[which]).square().mean(&[1]));
                let margins = Tensor::concat(&[&(2.0 - good), &(bad - 2.0)], 0);
                let losses = cx.concatenated(&margins.exp().log1p());
                let loss = cx.mean(&losses, None);
                learn(cx, &loss, &adams[at]);
                given = [0, 1].map(|which| call(cx, &layers[at], &given[which]).stop_gradient());
                loss
            })
        });
        case.follow(step);
    });
}

#[test]
fn pruned_weights_stay_out_as_in_pytorch() {
    of_torch("pruned", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", dense(4, 5, 3, tanh))]);
        let sgd = case.optimizer(Sgd::new(0.1).momentum(0.9), &[&model]);
        let mask = array(&record["mask"]).unwrap();
        let hard = hard();
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.x).remove(0);
            let loss = cx.loss(&hard, &batch.y[0], &logits, None);
            let mask = cx.graph().constant(mask.clone());
            let gradients = cx.gradients(&loss, &sgd).map(|name, of| match name {
                "model/dense/kernel" => of * &mask,
                _ => of.clone(),
            });
            let gradients = cx.all_reduce_gradients(&gradients);
            cx.apply(&sgd, &gradients);
            [loss]
        });
        case.follow(step);
    });
}

#[test]
fn groups_of_parameters_have_rates_of_their_own_as_in_pytorch() {
    let adam = AdamW::new(CosineDecay::new(0.002, 8)).epsilon(1e-12);
    let adam = Optimizer::from(adam.weight_decay(1.0));
    let adam = adam.exclude_from_weight_decay(["bias", "layer_norm"]);
    let adam = adam.learning_rate_factor("head", 10.0);
    classifies("groups", &models::with_head(), adam);
}

#[test]
fn factors_of_no_variable_are_refused() {
    let factors = |optimizer: Optimizer| {
        let strategy = mirrored(1);
        let mut state = strategy.state(0).unwrap();
        let model = state.add_model("model", models::with_head()).unwrap();
        let in_loop = state.add_optimizer(optimizer.clone(), &[&model]);
        let compile = Compile {
            optimizer,
            loss: hard().into(),
            ..Compile::default()
        };
        let in_fit = strategy.compile(models::with_head(), compile);
        (in_loop.map(drop), in_fit.map(drop))
    };
    let of = |kind: Optimizer, text: &str, factor| factors(kind.learning_rate_factor(text, factor));
    let unknown = of(Sgd::new(0.1).into(), "haed", 2.0);
    let says = ["sgd: `learning_rate_factors` has `haed`", "dense/kernel"];
    assert_says(unknown.0, &says);
    assert_says(unknown.1, &says);
    let negative = of(Sgd::new(0.1).into(), "head", -1.0);
    let says = ["`learning_rate_factors` of `head` must be a number of at least 0, got -1"];
    assert_says(negative.0, &says);
}

/// With the settings of PyTorch's defaults, and `NAdam(momentum_decay=1)`.
#[test]
fn optimizers_with_pytorchs_settings_learn_as_in_pytorch() {
    let falling = ExponentialDecay::new(1.0, 1, 0.7);
    let adadelta = Adadelta::new(falling).rho(0.9).epsilon(1e-6);
    classifies("mnist", &dense(4, 5, 3, tanh), adadelta);
    let nadam = Nadam::new(0.02).epsilon(1e-12);
    classifies("nadam", &dense(4, 5, 3, tanh), nadam);
    let adagrad = Adagrad::new(0.05).initial_accumulator_value(0.0);
    classifies("adagrad", &dense(4, 5, 3, tanh), adagrad.epsilon(1e-20));
}

#[test]
fn losses_are_called_and_scaled_otherwise_than_in_pytorch() {
    of_torch("losses", |record, replicas| {
        let (case, []) = Case::new(record, replicas, []);
        let step = case.strategy.function(|cx, batch: Inputs| {
            let [x, y, counts, shares, steps] = [0, 1, 2, 3, 4].map(|input| &batch.x[input]);
            let labels = &batch.y[0];
            let lengths = labels.greater(&labels.like(0.0)).convert(DType::F32);
            let mean = |loss: Loss, y_true: &Tensor, y_pred: &Tensor| {
                cx.mean(&loss.per_example(y_true, y_pred), None)
            };
            let cosine = CosineSimilarity.into();
            let ctc = Loss::from(Ctc).per_example(labels, steps) / lengths.sum(&[1]);
            [
                mean(Huber::new(0.5).into(), y, x) / 0.5,
                mean(KlDivergence.into(), shares, &x.softmax(1)),
                mean(Poisson.into(), counts, &x.exp()),
                mean(cosine, y, x) + cx.share(&cx.graph().scalar(DType::F32, 1.0)),
                cx.mean(&ctc, None),
            ]
        });
        case.follow(step);
    });
}
