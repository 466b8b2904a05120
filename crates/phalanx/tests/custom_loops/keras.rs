//! Training steps by hand of Keras' examples: losses and weights are Keras' (`tests/golden/keras/make_loops.py`), on one replica and on two.

use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx::strategy::{DistributedBatch, Function, ModelRef, OptimizerRef, State, ValueKind};
use phalanx_testkit::assert_relatively_close;
use serde_json::Value;

use crate::oracle::{arrays, name, records};
use crate::ports::learn;
use crate::{assert_says, column, mirrored};

const TOLERANCE: f64 = 1e-5;

/// A state, and its models by their names with first values of a record.
pub(crate) struct Case<'a> {
    record: &'a Value,
    pub(crate) strategy: MirroredStrategy,
    pub(crate) state: State,
    models: Vec<(&'a str, ModelRef)>,
}

impl<'a> Case<'a> {
    pub(crate) fn new<const M: usize>(
        record: &'a Value,
        replicas: usize,
        models: [(&'a str, Model); M],
    ) -> (Self, [ModelRef; M]) {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(1).unwrap();
        let models = models.map(|(name, model)| {
            let saved = SavedModel::new(model, arrays(&record["initial"][name])).unwrap();
            (name, state.add_model(name, saved).unwrap())
        });
        let added = models.clone().map(|(_, model)| model);
        let case = Self {
            record,
            strategy,
            state,
            models: models.into(),
        };
        (case, added)
    }

    pub(crate) fn optimizer(
        &mut self,
        optimizer: impl Into<Optimizer>,
        models: &[&ModelRef],
    ) -> OptimizerRef {
        self.state.add_optimizer(optimizer, models).unwrap()
    }

    /// The batch of the record: `x` are its floats, `y` its whole numbers.
    pub(crate) fn batch(&self) -> DistributedBatch {
        let (x, y) = arrays(&self.record["inputs"])
            .into_iter()
            .partition(|input| input.dtype() == DType::F32);
        let batch = Batch {
            x,
            y,
            weight: None,
            first: 0,
        };
        self.strategy.distribute_batch(&batch).unwrap()
    }

    /// Repeats the step on the batch of the record, and compares what it gives and the weights it ends with.
    pub(crate) fn follow<const N: usize>(self, step: Function<'_, Inputs, N>) {
        let batch = self.batch();
        self.follow_on(&batch, step);
    }

    /// The same on another batch.
    pub(crate) fn follow_on<const N: usize>(
        mut self,
        batch: &DistributedBatch,
        mut step: Function<'_, Inputs, N>,
    ) {
        for number in 0..self.record["losses"].as_array().unwrap().len() {
            let got = step.call(&mut self.state, batch).unwrap();
            self.check_losses(number, &got);
        }
        self.check_variables();
    }

    /// Compares what a step gives with the losses of the step of this number.
    pub(crate) fn check_losses(&self, number: usize, got: &[PerReplica]) {
        let losses = self.record["losses"][number].clone();
        let expected: Vec<f64> = serde_json::from_value(losses).unwrap();
        let whole = |part| self.strategy.reduce(Reduce::Sum, part, None).unwrap();
        let got: Vec<f64> = got.iter().map(|part| whole(part).to_f64()[0]).collect();
        near(name(self.record), &got, &expected);
    }

    /// Compares the weights with those that the record ends with.
    pub(crate) fn check_variables(&self) {
        for (model, of) in &self.models {
            let variables = self.state.variables(of).unwrap();
            let expected = arrays(&self.record["final"][model]);
            assert_eq!(variables.len(), expected.len(), "variables of {model}");
            for ((variable, got), expected) in variables.iter().zip(expected) {
                let what = format!("{}, {model}/{variable}", name(self.record));
                near(&what, &got.to_f64(), &expected.to_f64());
            }
        }
    }
}

/// What is near 0 may be the sum of larger numbers, whose rounding it has.
pub(crate) fn near(what: &str, got: &[f64], expected: &[f64]) {
    assert_relatively_close(what, got, expected, TOLERANCE, 0.1);
}

fn of_keras(wanted: &str, test: impl Fn(&Value, usize)) {
    compared("loops.json", wanted, test);
}

/// Runs the test of a record of a file on one replica and on two.
pub(crate) fn compared(file: &str, wanted: &str, test: impl Fn(&Value, usize)) {
    let records = records(file);
    let record = records.iter().find(|record| name(record) == wanted);
    for replicas in [1, 2] {
        test(record.unwrap(), replicas);
    }
}

fn dense(input: usize, hidden: usize, output: Dense) -> Model {
    let layers = Sequential::new([input]).add(Dense::new(hidden).activation(relu));
    layers.add(output).build().unwrap()
}

fn encoder() -> Model {
    let mut net = Network::new();
    let x = net.input([5]);
    let hidden = net.add(Dense::new(4).activation(relu), &[x]);
    let both = [(); 2].map(|()| net.add(Dense::new(2), &[hidden]));
    net.build(&[x], &both).unwrap()
}

#[test]
fn a_variational_autoencoder_learns_as_in_keras() {
    of_keras("autoencoder", |record, replicas| {
        let models = [
            ("encoder", encoder()),
            ("decoder", dense(2, 4, Dense::new(5).activation(sigmoid))),
        ];
        let (mut case, [encoder, decoder]) = Case::new(record, replicas, models);
        let both = [&encoder, &decoder];
        let adam = case.optimizer(Adam::new(0.01), &both);
        let crossentropy = Loss::from(BinaryCrossentropy::from_probabilities());
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let [images, noise] = [&batch.x[0], &batch.x[1]];
            let code = cx.train(&encoder, std::slice::from_ref(images));
            let [mean, log_variance] = [&code[0], &code[1]];
            let point = mean + (log_variance * 0.5).exp() * noise;
            let again = &cx.train(&decoder, &[point])[0];
            let of_images = cx.mean(&(crossentropy.per_example(images, again) * 5.0), None);
            let divergence = (log_variance.exp() + mean.square() - log_variance - 1.0) * 0.5;
            let divergence = cx.mean(&divergence.sum(&[1]), None);
            let loss = &of_images + &divergence;
            learn(cx, &loss, &adam);
            [loss, of_images, divergence]
        });
        case.follow(step);
    });
}

#[test]
fn a_student_learns_from_its_teacher_as_in_keras() {
    of_keras("distillation", |record, replicas| {
        let models = [
            ("teacher", dense(4, 6, Dense::new(3))),
            ("student", dense(4, 3, Dense::new(3))),
        ];
        let (mut case, [teacher, student]) = Case::new(record, replicas, models);
        let adam = case.state.add_optimizer(Adam::new(0.01), &[&student]);
        let adam = adam.unwrap();
        let hard = Loss::from(SparseCategoricalCrossentropy::from_logits());
        let soft = Loss::from(KlDivergence);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let taught = &cx.call(&teacher, &batch.x)[0];
            let learnt = &cx.train(&student, &batch.x)[0];
            let [taught, softened] = [taught, learnt].map(|logits| (logits / 3.0).softmax(1));
            let of_labels = cx.mean(&hard.per_example(&batch.y[0], learnt), None);
            let distilled = cx.mean(&soft.per_example(&taught, &softened), None) * 9.0;
            let loss = &of_labels * 0.1 + &distilled * 0.9;
            learn(cx, &loss, &adam);
            [loss, of_labels, distilled]
        });
        case.follow(step);
    });
}

fn adversaries() -> [(&'static str, Model); 2] {
    let slope = Activation::LeakyRelu {
        negative_slope: 0.2,
    };
    let critic = Sequential::new([4, 4, 1])
        .add(Conv2d::new(3, 3).strides(2).padding(Padding::Same))
        .add(ActivationLayer::new(slope))
        .add(Flatten)
        .add(Dense::new(3).activation(tanh))
        .add(Dense::new(1));
    let generator = Sequential::new([2])
        .add(Dense::new(16).activation(tanh))
        .add(Reshape::new([4, 4, 1]));
    let (critic, generator) = (critic.build(), generator.build());
    [
        ("critic", critic.unwrap()),
        ("generator", generator.unwrap()),
    ]
}

/// The penalty is of gradients, and has a gradient itself.
#[test]
fn a_critic_with_a_penalty_of_gradients_learns_as_in_keras() {
    of_keras("adversaries", |record, replicas| {
        let (mut case, [critic, generator]) = Case::new(record, replicas, adversaries());
        let adam = || Adam::new(0.01).beta_1(0.5).beta_2(0.9);
        let of_critic = case.optimizer(adam(), &[&critic]);
        let of_generator = case.optimizer(adam(), &[&generator]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let [real, noise, between] = [&batch.x[0], &batch.x[1], &batch.x[2]];
            let made = cx.train(&generator, std::slice::from_ref(noise));
            let mixed = real + between.broadcast_to(&real.dims()) * (&made[0] - real);
            let judged = &cx.train(&critic, std::slice::from_ref(&mixed))[0];
            let slopes = &cx.derivatives(&judged.sum_all(), &[&mixed])[0];
            let norms = slopes.square().sum(&[1, 2, 3]).sqrt();
            let penalty = cx.mean(&(norms - 1.0).square(), None);
            let on_made = cx.train(&critic, &made).remove(0);
            let on_real = cx.train(&critic, std::slice::from_ref(real)).remove(0);
            let loss = cx.mean(&(on_made - on_real), None) + &penalty * 10.0;
            learn(cx, &loss, &of_critic);
            let judged = cx.train(&critic, &made).remove(0);
            let generator_loss = -cx.mean(&judged, None);
            learn(cx, &generator_loss, &of_generator);
            [loss, penalty, generator_loss]
        });
        case.follow(step);
    });
}

/// As in Keras, whose variables are what they were set to: a loss after an update does not depend on what the update was computed from.
#[test]
fn gradients_do_not_go_through_what_set_a_variable_or_a_value() {
    let strategy = mirrored(1);
    let mut state = strategy.state(1).unwrap();
    let line = || Sequential::new([1]).add(Dense::new(1).use_bias(false));
    let [a, b] = ["a", "b"].map(|name| state.add_model(name, line()).unwrap());
    let [of_a, of_b] = [&a, &b].map(|model| state.add_optimizer(Sgd::new(0.1), &[model]).unwrap());
    let zero = HostTensor::scalar(0.0f32);
    let kept = state
        .add_value("kept", &zero, ValueKind::Replicated)
        .unwrap();
    let batch = strategy.distribute_batch(&column(&[1.0, 2.0])).unwrap();
    for updates in [true, false] {
        let mut step = strategy.function(|cx, batch: Inputs| {
            let [of_first, of_other] = [&a, &b].map(|model| cx.train(model, &batch.x).remove(0));
            let loss = cx.mean(&(of_first * of_other), None);
            let after = if updates {
                learn(cx, &loss, &of_a);
                cx.train(&a, &batch.x).remove(0).sum_all()
            } else {
                let loss = cx.all_reduce(ReduceOp::Sum, &loss);
                cx.set_value(&kept, &loss);
                cx.value(&kept)
            };
            let _ = cx.gradients(&after, &of_b);
            [after]
        });
        let refused = step.call(&mut state, &batch);
        let what = "the loss depends on no trainable variable of";
        assert_says(refused, &[what]);
    }
}
