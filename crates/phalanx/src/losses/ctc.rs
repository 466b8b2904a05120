//! Connectionist temporal classification: sequences of labels whose places in the steps are not known (Graves et al. 2006).

use phalanx_graph::op::PadDim;
use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::{ExampleLoss, in_float};
use crate::config::{Component, Described};

/// The logarithm of no probability: of a number, so that sums and derivatives stay numbers.
const NEVER: f64 = -1e30;

/// CTC loss: minus the logarithm of the probability that the steps, with repeated classes made one and blanks left out, are the labels.
///
/// Targets `[batch, labels]`: whole numbers of classes, filled up with 0 at the end. Predictions `[batch, steps, classes]`: logits, of
/// which class 0 is the blank. All steps count, as in Keras, and padding masks are refused. One number for each example.
///
/// Labels that do not fit into the steps (they take one each, and one more between two that are equal) have the loss infinity and the
/// derivative 0, which a training refuses before its step; Keras on TensorFlow has a loss of some 700 with a derivative there. A class that is not there gives NaN, where Keras
/// counts it as certain.
///
/// ```
/// # use phalanx::engine::{CompileRequest, Engine, EngineOptions};
/// use phalanx::losses::{Ctc, Loss};
/// use phalanx::{Graph, HostTensor};
///
/// let graph = Graph::new();
/// let y_true = graph.constant(HostTensor::new([1, 2], &[1, 0]));
/// let y_pred = graph.constant(HostTensor::new([1, 2, 2], &[0.0f32; 4]));
/// let loss = Loss::from(Ctc).per_example(&y_true, &y_pred);
/// # let program = graph.finish(&[("loss", &loss)])?;
/// # let engine = Engine::new(&EngineOptions::default())?;
/// # let compiled = engine.compile(CompileRequest::new("loss", &program))?;
/// # let results = compiled.run(&[&[]])?.0.swap_remove(0);
/// # let loss = engine.get(&results[0], &loss.shape())?.to_f64();
/// // Of the four ways through two steps, three are the label 1: `1 1`, `1 0` and `0 1`.
/// assert!((loss[0] + (0.75_f64).ln()).abs() < 1e-6);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ctc;

impl Described for Ctc {
    const COMPONENT: Component = Component {
        name: "ctc",
        doc: "how unlikely a sequence of labels is whose places in the steps are not known; of logits, with class 0 as the blank",
        fields: &[],
    };
}

impl Ctc {
    /// The steps that the labels of an example take: one each, and one more between two that are equal.
    pub(crate) fn steps_of(labels: &[f64]) -> usize {
        let is_label = |label: &&f64| **label != 0.0;
        let are_equal = |pair: &&[f64]| pair[0] != 0.0 && pair[0] == pair[1];
        labels.iter().filter(is_label).count() + labels.windows(2).filter(are_equal).count()
    }
}

impl ExampleLoss for Ctc {
    fn takes_logits(&self) -> Option<bool> {
        Some(true)
    }

    #[track_caller]
    fn per_example(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let Some(labels) = labels_of_steps(y_true, y_pred) else {
            return y_pred.clone();
        };
        let states = with_blanks(&labels);
        let log_p = in_float(y_pred).log_softmax(2);
        let likelihood = at_end(&forward(&of_states(&log_p, &states), &states), &labels);
        let loss = likelihood
            .less(&likelihood.like(NEVER / 2.0))
            .select(&likelihood.like(f64::INFINITY), &-&likelihood);
        are_classes(&labels, y_pred.dim(2)).select(&loss, &loss.like(f64::NAN))
    }
}

/// The labels as i32, or the graph's error.
#[track_caller]
fn labels_of_steps(y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
    let (labels, logits) = (y_true.dims(), y_pred.dims());
    let fits = labels.len() == 2 && logits.len() == 3 && labels[0] == logits[0];
    if !fits || labels[1] * logits[1] * logits[2] == 0 {
        let message = format!(
            "y_true {} and y_pred {} do not fit; expected labels [batch, labels], filled up with 0, and logits [batch, steps, classes], of which class 0 is the blank",
            y_true.shape(),
            y_pred.shape()
        );
        y_pred.graph().fail(Ctc::COMPONENT.name, message);
        return None;
    }
    Some(y_true.convert(DType::I32))
}

/// The states that the steps go through, `[batch, states]`: a blank before, between and behind the labels.
#[track_caller]
fn with_blanks(labels: &Tensor) -> Tensor {
    let pad = |low, high, interior| PadDim {
        low,
        high,
        interior,
    };
    labels.pad(&[pad(0, 0, 0), pad(1, 1, 1)], 0.0)
}

/// The logarithm of the probability of each state at each step, `[steps, batch, states]`.
#[track_caller]
fn of_states(log_p: &Tensor, states: &Tensor) -> Tensor {
    let [batch, steps, classes] = [0, 1, 2].map(|dim| log_p.dim(dim));
    let dims = [steps, batch, states.dim(1)];
    let kind = match i32::try_from(log_p.shape().len()) {
        Ok(_) => DType::I32,
        Err(_) => DType::I64,
    };
    let counted = |dim| log_p.graph().iota(Shape::new(kind, dims), dim);
    let row = counted(1) * steps as f64 + counted(0);
    let class = states.clamp(0.0, (classes - 1) as f64).convert(kind);
    let place = row * classes as f64 + class.broadcast_in(&dims, &[1, 2]);
    let flat = log_p.reshape(&[batch * steps * classes]);
    let picked = flat.gather(&place, 0);
    picked.maximum(&picked.like(NEVER))
}

/// The logarithm of the probability of all ways to each state at the last step, `[batch, states]`.
#[track_caller]
fn forward(scores: &Tensor, states: &Tensor) -> Tensor {
    let (graph, steps) = (scores.graph(), scores.dim(0));
    let shape = Shape::new(scores.dtype(), states.dims());
    let place = graph.iota(shape, 1);
    // Before the first step every way is at the first blank, from which a step stays or goes to the first label.
    let never = place.like(NEVER);
    let start = place
        .equal(&place.like(0.0))
        .select(&place.like(0.0), &never);
    // From a label to the next one, without the blank between them, unless they are the same.
    let skips = states
        .not_equal(&shifted(states, 2, 0.0))
        .and(&states.not_equal(&states.zeros_like()))
        .select(&place.like(0.0), &never);
    let (last, _) = graph.scan(
        steps,
        &[&start],
        &[scores],
        &[&skips],
        |carry, rows, constants| {
            let [before, skips] = [&carry[0], &constants[0]];
            let next = shifted(before, 1, NEVER);
            let skipped = shifted(before, 2, NEVER) + skips;
            (
                vec![log_of_sum([before, &next, &skipped]) + &rows[0]],
                Vec::new(),
            )
        },
    );
    last.into_iter().next().unwrap_or(start)
}

/// The elements of each row that many places further, behind as many of a value.
#[track_caller]
fn shifted(rows: &Tensor, places: i64, value: f64) -> Tensor {
    let pad = |low, high| PadDim {
        low,
        high,
        interior: 0,
    };
    rows.pad(&[pad(0, 0), pad(places, -places)], value)
}

/// `log(e^a + e^b + e^c)`.
#[track_caller]
fn log_of_sum([a, b, c]: [&Tensor; 3]) -> Tensor {
    let most = a.maximum(b).maximum(c).stop_gradient();
    let sum = (a - &most).exp() + (b - &most).exp() + (c - &most).exp();
    sum.log() + most
}

/// Of the ways to each state those that end with the last label or the blank behind it, `[batch]`.
#[track_caller]
fn at_end(ways: &Tensor, labels: &Tensor) -> Tensor {
    let is_label = labels.not_equal(&labels.zeros_like());
    let count = is_label.convert(DType::I32).sum(&[1]);
    let dims = ways.dims();
    let place = labels.graph().iota(Shape::new(DType::I32, dims.clone()), 1);
    let behind = place - (count * 2.0).broadcast_in(&dims, &[0]);
    let is_end = behind
        .equal(&behind.like(0.0))
        .or(&behind.equal(&behind.like(-1.0)));
    is_end.select(ways, &ways.like(NEVER)).logsumexp(1)
}

/// Whether all labels of an example are among the classes, `[batch]`.
#[track_caller]
fn are_classes(labels: &Tensor, classes: usize) -> Tensor {
    let least = labels.min(&[1]);
    let most = labels.max(&[1]);
    least
        .greater_equal(&least.like(0.0))
        .and(&most.less(&most.like(classes as f64)))
}
