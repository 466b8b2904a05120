//! Sequences in programs of PyTorch, as `torch_programs.rs` has others.

use phalanx::data::Batch;
use phalanx::prelude::*;

use crate::keras::{Case, near};
use crate::oracle::array;
use crate::ports::{hard, learn};
use crate::torch_layers::{Sines, Translation};
use crate::torch_models as models;
use crate::torch_programs::{adam, classifies, of_torch};

/// Columns of whole numbers.
fn columns(all: &HostTensor, first: usize, count: usize) -> HostTensor {
    let numbers = all.to_f64();
    let rows = numbers.chunks(all.dims()[1]);
    let cut: Vec<i32> = rows
        .flat_map(|row| &row[first..first + count])
        .map(|number| *number as i32)
        .collect();
    HostTensor::new([all.dims()[0], count], &cut)
}

/// Truncated back-propagation through time: a state that a step gives is the next one's argument, which no gradient goes on into.
#[test]
fn states_go_on_from_batch_to_batch_as_in_pytorch() {
    of_torch("language", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", models::language())]);
        let sgd = Optimizer::from(Sgd::new(2.0)).global_clipnorm(0.25);
        let sgd = case.optimizer(sgd, &[&model]);
        let hard = hard();
        let mut begin = case.strategy.function(|cx, _: Inputs| {
            let zeros = Shape::f32([cx.rows(), 5]);
            [(); 4].map(|()| {
                let state = cx.graph().full(&zeros, 0.0);
                cx.per_example(&state)
            })
        });
        let mut step = case
            .strategy
            .function(|cx, (batch, states): (Inputs, [Tensor; 4])| {
                let given = [&batch.x[..], &states[..]].concat();
                let outputs = cx.train(&model, &given);
                let loss = cx.loss(&hard, &batch.y[0], &outputs[0], None);
                learn(cx, &loss, &sgd);
                let [a, b, c, d] = [1, 2, 3, 4].map(|output| cx.per_example(&outputs[output]));
                [loss, a, b, c, d]
            });
        let text = array(&record["inputs"][0]).unwrap();
        let mut states = None;
        for number in 0..6 {
            let start = number % 3 * 4;
            let batch = Batch {
                x: vec![columns(&text, start, 4)],
                y: vec![columns(&text, start + 1, 4)],
                weight: None,
                first: 0,
            };
            let batch = case.strategy.distribute_batch(&batch).unwrap();
            let before = match states.take() {
                Some(states) if start > 0 => states,
                _ => begin.call(&mut case.state, &batch).unwrap(),
            };
            let got = step.call(&mut case.state, &(batch, before)).unwrap();
            let [loss, a, b, c, d] = got;
            states = Some([a, b, c, d]);
            case.check_losses(number, &[loss]);
        }
        case.check_variables();
    });
}

/// `torch.optim.LBFGS` without a line search: where it goes next, by the gradients on its way.
#[derive(Default)]
struct Lbfgs {
    /// Ways, and how the gradient changed on them.
    pairs: Vec<[Vec<f64>; 2]>,
    before: Option<[Vec<f64>; 2]>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(a: &[f64], share: f64, b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + share * b).collect()
}

impl Lbfgs {
    fn way(&mut self, rate: f64, gradient: &[f64]) -> Vec<f64> {
        let mut rate = rate;
        match self.before.take() {
            Some([way, old]) => {
                let change = add(gradient, -1.0, &old);
                if dot(&way, &change) > 1e-10 {
                    self.pairs.push([way, change]);
                }
            }
            None => rate *= (1.0 / gradient.iter().map(|x| x.abs()).sum::<f64>()).min(1.0),
        }
        let mut way: Vec<f64> = gradient.iter().map(|x| -x).collect();
        let mut shares = Vec::new();
        for [then, change] in self.pairs.iter().rev() {
            shares.push(dot(then, &way) / dot(then, change));
            way = add(&way, -shares[shares.len() - 1], change);
        }
        if let Some([then, change]) = self.pairs.last() {
            let scale = dot(then, change) / dot(change, change);
            way.iter_mut().for_each(|x| *x *= scale);
        }
        for ([then, change], share) in self.pairs.iter().zip(shares.iter().rev()) {
            way = add(&way, share - dot(change, &way) / dot(then, change), then);
        }
        way.iter_mut().for_each(|x| *x *= rate);
        self.before = Some([way.clone(), gradient.to_vec()]);
        way
    }
}

/// One function gives the loss and its gradient, which the host makes a way of, and another goes there.
#[test]
fn waves_are_learnt_by_lbfgs_as_in_pytorch() {
    of_torch("sines", |record, replicas| {
        let waves = models::build(Sequential::new([6]).add(Sines));
        let (mut case, [model]) = Case::new(record, replicas, [("model", waves)]);
        let sgd = case.optimizer(Sgd::new(0.0), &[&model]);
        let squares = Loss::from(MeanSquaredError);
        let mut look = case.strategy.function(|cx, batch: Inputs| {
            let found = cx.train(&model, &batch.x[..1]).remove(0);
            let loss = cx.loss(&squares, &batch.x[1], &found, None);
            let gradients = cx.gradients(&loss, &sgd);
            let gradients = cx.all_reduce_gradients(&gradients);
            let flat = gradients
                .iter()
                .map(|(_, of)| of.reshape(&[of.shape().len()]));
            let flat: Vec<Tensor> = flat.collect();
            [loss, Tensor::concat(&flat.iter().collect::<Vec<_>>(), 0)]
        });
        let mut go = case.strategy.function(|cx, way: Tensor| {
            let mut first = 0;
            let before = cx.variables(&model);
            let moved = before.iter().map(|of| {
                let end = first + of.shape().len();
                let part = way.slice_dim(0, first, end).reshape(&of.dims());
                first = end;
                of + part
            });
            let moved: Vec<Tensor> = moved.collect();
            cx.set_variables(&model, &moved);
            [way.sum_all()]
        });
        let batch = case.batch();
        let mut lbfgs = Lbfgs::default();
        for number in 0..6 {
            let [loss, gradient] = look.call(&mut case.state, &batch).unwrap();
            if number % 3 == 0 {
                case.check_losses(number / 3, &[loss]);
            }
            let way = lbfgs.way(0.8, &gradient.value().unwrap().to_f64());
            let way: Vec<f32> = way.iter().map(|x| *x as f32).collect();
            let way = case.strategy.broadcast(&HostTensor::new([way.len()], &way));
            let _ = go.call(&mut case.state, &way.unwrap()).unwrap();
        }
        case.check_variables();
        let mut further = case.strategy.function(|cx, batch: Inputs| {
            let found = cx.call(&model, &batch.x[..1]).remove(0);
            [cx.per_example(&found)]
        });
        let [found] = further.call(&mut case.state, &batch).unwrap();
        let found = case.strategy.gather(&found, 0).unwrap();
        let expected = array(&record["further"]).unwrap();
        near("further steps", &found.to_f64(), &expected.to_f64());
    });
}

/// PyTorch's LSTM has two biases of which ours is the sum, and the sum of two steps is twice a step.
#[test]
fn packed_sequences_are_masked_ones_of_pytorch() {
    let sgd = Optimizer::from(Sgd::new(0.5));
    let sgd = sgd.learning_rate_factor("bidirectional/forward/bias", 2.0);
    let sgd = sgd.learning_rate_factor("bidirectional/backward/bias", 2.0);
    classifies("snli", &models::sentences(), sgd);
}

#[test]
fn a_decoder_looks_at_steps_as_in_pytorch() {
    of_torch("translation", |record, replicas| {
        let mut net = Network::new();
        let words = [4, 3].map(|steps| net.input(Input::new([steps]).dtype(DType::I32)));
        let logits = net.add(Translation, &words);
        let model = net.build(&words, &[logits]).unwrap();
        let (mut case, [model]) = Case::new(record, replicas, [("model", model)]);
        let adam = case.optimizer(adam(0.01), &[&model]);
        let hard = hard();
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.y).remove(0);
            let loss = cx.loss(&hard, &batch.y[1], &logits, None);
            learn(cx, &loss, &adam);
            [loss]
        });
        case.follow(step);
    });
}
