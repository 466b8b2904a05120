//! What recurrent layers share: settings, inputs, and the loop over steps.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::settings::WeightSettings;
use super::sizes::check_range;
use super::{Activation, Constraint, Cx, Dropout, Initializer, Regularizer, fields};
use crate::config::{Field, joined};

/// The kinds of recurrent layers, whose inputs are a sequence and perhaps first states.
pub(crate) const RECURRENT: [&str; 6] = [
    "lstm",
    "gru",
    "simple_rnn",
    "conv_lstm1d",
    "conv_lstm2d",
    "conv_lstm3d",
];

/// The settings that all recurrent layers share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RecurrentSettings {
    pub(super) activation: Activation,
    #[serde(flatten)]
    pub(super) weights: WeightSettings,
    pub(super) recurrent_initializer: Initializer,
    pub(super) recurrent_regularizer: Option<Regularizer>,
    pub(super) recurrent_constraint: Option<Constraint>,
    pub(super) dropout: f64,
    pub(super) recurrent_dropout: f64,
    pub(super) return_sequences: bool,
    pub(super) return_state: bool,
    pub(super) go_backwards: bool,
}

impl RecurrentSettings {
    /// All but `activation`, which stands first in a layer's list and has words of its own there.
    pub(super) const FIELDS: &[Field] = joined!(
        WeightSettings::FIELDS,
        &[
            fields::RECURRENT_INITIALIZER,
            fields::RECURRENT_REGULARIZER,
            fields::RECURRENT_CONSTRAINT,
            fields::DROPOUT,
            fields::RECURRENT_DROPOUT,
            fields::RETURN_SEQUENCES,
            fields::RETURN_STATE,
            fields::GO_BACKWARDS,
        ],
    );

    /// Keras' defaults.
    pub(super) const fn new() -> Self {
        Self {
            activation: Activation::Tanh,
            weights: WeightSettings::new(),
            recurrent_initializer: Initializer::Orthogonal { gain: 1.0 },
            recurrent_regularizer: None,
            recurrent_constraint: None,
            dropout: 0.0,
            recurrent_dropout: 0.0,
            return_sequences: false,
            return_state: false,
            go_backwards: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.activation.check()?;
        check_range("`dropout`", self.dropout, 0.0..=1.0)?;
        check_range("`recurrent_dropout`", self.recurrent_dropout, 0.0..=1.0)
    }

    /// The products of all steps with the kernel, in one dot: `[steps, batch, columns]`.
    #[track_caller]
    pub(super) fn products(&self, cx: &mut Cx, x: &Tensor, columns: usize) -> Tensor {
        let shape = Shape::new(x.dtype(), [x.dim(2), columns]);
        let kernel = self.weights.kernel(cx, "kernel", shape);
        let dropped = self.dropped(cx, x);
        dropped.transpose(&[1, 0, 2]).matmul(&kernel)
    }

    /// The same in the order of the input, `[batch, steps, columns]`, with the steps turned that are taken backwards.
    #[track_caller]
    pub(super) fn turned_products(&self, cx: &mut Cx, x: &Tensor, columns: usize) -> Tensor {
        let shape = Shape::new(x.dtype(), [x.dim(2), columns]);
        let kernel = self.weights.kernel(cx, "kernel", shape);
        let dropped = self.dropped(cx, x);
        let turned = match self.go_backwards {
            true => dropped.reverse(&[1]),
            false => dropped,
        };
        turned.matmul(&kernel)
    }

    /// The kernel of the state.
    #[track_caller]
    pub(super) fn recurrent(&self, cx: &mut Cx, shape: Shape) -> Tensor {
        let limits = (
            self.recurrent_regularizer,
            self.recurrent_constraint.as_ref(),
        );
        cx.limited(
            "recurrent_kernel",
            shape,
            &self.recurrent_initializer,
            limits,
        )
    }

    #[track_caller]
    pub(super) fn bias(&self, cx: &mut Cx, dtype: DType, dims: &[usize]) -> Option<Tensor> {
        self.weights.bias(cx, "bias", Shape::new(dtype, dims))
    }

    /// An activation's result in the type of the states, which softmax leaves.
    #[track_caller]
    pub(super) fn activated(activation: Activation, x: &Tensor) -> Tensor {
        activation.apply(x).convert(x.dtype())
    }

    /// Whether parts of the state are dropped.
    pub(super) fn drops_state(&self, cx: &Cx) -> bool {
        cx.training() && self.recurrent_dropout > 0.0
    }

    /// What [`state_product`] takes for a part of the recurrent kernel, of some gates: that kernel; where parts of the state are dropped, each
    /// gate's own, and then what each keeps of the state, `[batch, units]`, the same at each step.
    #[track_caller]
    pub(super) fn state_constants(
        &self,
        cx: &mut Cx,
        part: &str,
        kernel: &Tensor,
        batch: usize,
    ) -> Vec<Tensor> {
        if !self.drops_state(cx) {
            return vec![kernel.clone()];
        }
        let (units, columns) = (kernel.dim(0), kernel.dim(1));
        let ones = (kernel.graph()).full(&Shape::new(kernel.dtype(), [batch, columns]), 1.0);
        let dropout = Dropout::new(self.recurrent_dropout);
        let kept = cx.layer(&format!("dropout_of_{part}"), &dropout, &[ones]);
        let cut = |x: &Tensor| -> Vec<Tensor> {
            let gates = (0..columns).step_by(units);
            gates
                .map(|start| x.slice_dim(1, start, start + units))
                .collect()
        };
        [cut(kernel), cut(&kept)].concat()
    }

    /// The inputs without the features that are dropped, which are the same at each step.
    #[track_caller]
    fn dropped(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        if !cx.training() || self.dropout == 0.0 {
            return x.clone();
        }
        let dims = [x.dim(0), x.dim(2)];
        let ones = x.graph().full(&Shape::new(x.dtype(), dims), 1.0);
        let dropout = Dropout::new(self.dropout);
        let kept = cx.layer("dropout", &dropout, &[ones]);
        x * kept.broadcast_in(&x.dims(), &[0, 2])
    }
}

/// Builders of a recurrent layer's [`RecurrentSettings`], which are its field `settings`.
macro_rules! recurrent_settings {
    () => {
        /// Sets the function of the candidate state, and of the state where there is an output gate; tanh by default.
        #[must_use]
        pub fn activation(mut self, activation: impl Into<Activation>) -> Self {
            self.settings.activation = activation.into();
            self
        }

        crate::nn::settings::weight_settings!(settings.weights);

        /// Sets where first values of the recurrent kernel come from; orthogonal by default.
        #[must_use]
        pub const fn recurrent_initializer(mut self, initializer: Initializer) -> Self {
            self.settings.recurrent_initializer = initializer;
            self
        }

        /// Sets a penalty on the recurrent kernel.
        #[must_use]
        pub const fn recurrent_regularizer(mut self, regularizer: Regularizer) -> Self {
            self.settings.recurrent_regularizer = Some(regularizer);
            self
        }

        /// Sets what every update brings the recurrent kernel back to.
        #[must_use]
        pub fn recurrent_constraint(mut self, constraint: Constraint) -> Self {
            self.settings.recurrent_constraint = Some(constraint);
            self
        }

        /// Sets the fraction of input features dropped in training, the same ones at each step; 0 by default.
        #[must_use]
        pub const fn dropout(mut self, rate: f64) -> Self {
            self.settings.dropout = rate;
            self
        }

        /// Sets the fraction of the state that each gate does not see in training, the same at each step; 0 by default. LSTMs and GRUs
        /// then have no kernel of their own in training, and take longer.
        #[must_use]
        pub const fn recurrent_dropout(mut self, rate: f64) -> Self {
            self.settings.recurrent_dropout = rate;
            self
        }

        /// Sets whether the output holds every step, not the last alone; not by default.
        #[must_use]
        pub const fn return_sequences(mut self, return_sequences: bool) -> Self {
            self.settings.return_sequences = return_sequences;
            self
        }

        /// Sets whether the states after the last step are further outputs: `h`, and of an LSTM `c`; not by default.
        ///
        /// [`Network::call_many`](crate::nn::Network::call_many) gives all of them: the first states of a decoder, say.
        #[must_use]
        pub const fn return_state(mut self, return_state: bool) -> Self {
            self.settings.return_state = return_state;
            self
        }

        /// Sets whether steps are taken from the last to the first; outputs then are in that order, too.
        #[must_use]
        pub const fn go_backwards(mut self, go_backwards: bool) -> Self {
            self.settings.go_backwards = go_backwards;
            self
        }

        /// Calls the layer inside another, its variables under `name`, and gives the states after the last step, too.
        #[must_use]
        #[track_caller]
        pub fn with_states(
            &self,
            cx: &mut Cx,
            name: &str,
            inputs: &[Tensor],
        ) -> (Tensor, Vec<Tensor>) {
            let (trainable, policy) = (cx.trainable(), cx.policy());
            cx.inside(name, trainable, policy, |cx| {
                let shapes: Vec<Shape> = inputs.iter().map(Tensor::shape).collect();
                if let Err(message) = self.check_settings().and_then(|()| self.check(&shapes)) {
                    return (cx.fail(message), Vec::new());
                }
                let done = self.steps(cx, inputs, false);
                (done.output(cx, self.settings.return_sequences), done.states)
            })
        }
    };
}
pub(super) use recurrent_settings;

/// What every recurrent layer answers in the same way.
macro_rules! recurrent_layer {
    ($kind:literal) => {
        fn kind(&self) -> &'static str {
            $kind
        }

        fn config(&self) -> Value {
            config::write(self.kind(), self)
        }

        fn check(&self, inputs: &[Shape]) -> Result<(), String> {
            check_inputs(inputs, Self::STATES, |sequence| self.state(sequence))
        }

        fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
            self.call_many(cx, inputs).swap_remove(0)
        }

        fn outputs(&self) -> usize {
            match self.settings.return_state {
                true => 1 + Self::STATES,
                false => 1,
            }
        }

        fn call_many(&self, cx: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
            let done = self.steps(cx, inputs, false);
            done.outputs(cx, &self.settings)
        }
    };
}
pub(super) use recurrent_layer;

/// What a state of `units` numbers for each example has.
macro_rules! units_state {
    () => {
        /// Checks a sequence; the dims of a state of one example.
        pub(super) fn state(&self, sequence: &[Shape]) -> Result<Vec<usize>, String> {
            one_sequence(sequence).map(|_| vec![self.units])
        }
    };
}
pub(super) use units_state;

/// A state times a recurrent kernel, of which there is what [`RecurrentSettings::state_constants`] gives.
#[track_caller]
pub(super) fn state_product(h: &Tensor, constants: &[Tensor]) -> Tensor {
    if let [kernel] = constants {
        return h.matmul(kernel);
    }
    let (kernels, kept) = constants.split_at(constants.len() / 2);
    let gates = kernels.iter().zip(kept);
    let products: Vec<Tensor> = gates
        .map(|(kernel, kept)| (h * kept).matmul(kernel))
        .collect();
    Tensor::concat(&products.iter().collect::<Vec<_>>(), 1)
}

/// The sequence, and the first states where they are given; `state` checks a sequence and says which dims a state of an example has.
pub(super) fn check_inputs(
    inputs: &[Shape],
    states: usize,
    state: impl FnOnce(&[Shape]) -> Result<Vec<usize>, String>,
) -> Result<(), String> {
    let (sequence, given) = inputs.split_at(inputs.len().min(1));
    let state = state(sequence)?;
    if !given.is_empty() && given.len() != states {
        let count = inputs.len();
        return Err(format!(
            "expected a sequence and no or {states} first states, got {count} inputs"
        ));
    }
    let dims = [&sequence[0].dims[..1], &state].concat();
    let expected = Shape::new(sequence[0].dtype, dims);
    match given.iter().find(|&state| *state != expected) {
        Some(state) => Err(format!("expected first states {expected}, got {state}")),
        None => Ok(()),
    }
}

/// A loop over steps, ready to run.
pub(super) struct Loop<'a> {
    /// The sequence and the first states, as the layer got them.
    pub(super) inputs: &'a [Tensor],
    /// A row for each step: `[steps, batch, ..]`.
    pub(super) rows: Tensor,
    /// The dims of a state of one example.
    pub(super) state: Vec<usize>,
    pub(super) states: usize,
    pub(super) backwards: bool,
    /// Whether padding outputs zeros instead of repeating the output of the step before.
    pub(super) zero_padding: bool,
}

/// What a loop leaves.
pub(super) struct Done {
    /// Outputs in the order in which steps were taken: `[batch, steps, ..]`.
    pub(super) outputs: Tensor,
    pub(super) last: Tensor,
    /// The states after the last step, `[batch, ..]` each.
    pub(super) states: Vec<Tensor>,
    /// `[batch, steps]`, in the same order.
    pub(super) mask: Option<Tensor>,
}

impl Done {
    /// What steps leave of which all outputs and states are known, `[batch, steps, units]` each, and the first states.
    #[track_caller]
    pub(super) fn of_sequences(outputs: Tensor, states: &[Tensor], first: &[&Tensor]) -> Self {
        let steps = outputs.dim(1);
        let last = |(all, first): (&Tensor, &&Tensor)| match steps {
            0 => (*first).clone(),
            _ => all.slice_dim(1, steps - 1, steps).reshape(&first.dims()),
        };
        let states: Vec<Tensor> = states.iter().zip(first).map(last).collect();
        Self {
            outputs,
            last: states[0].clone(),
            states,
            mask: None,
        }
    }

    /// With the mask of the steps as they were taken, `[batch, steps]`, whose padding has zeros for outputs where `zero_padding` says so.
    #[track_caller]
    pub(super) fn masked(mut self, mask: Option<Tensor>, zero_padding: bool) -> Self {
        if let Some(mask) = mask.as_ref().filter(|_| zero_padding) {
            let kept = mask.broadcast_in(&self.outputs.dims(), &[0, 1]);
            self.outputs = kept.select(&self.outputs, &self.outputs.zeros_like());
        }
        self.mask = mask;
        self
    }

    /// The outputs of a layer with these settings: of its steps, and the states where it gives them.
    #[track_caller]
    pub(super) fn outputs(self, cx: &mut Cx, settings: &RecurrentSettings) -> Vec<Tensor> {
        self.returned(cx, settings.return_sequences, settings.return_state)
    }

    /// The output of all steps or of the last, and the states where they are wanted.
    #[track_caller]
    pub(super) fn returned(mut self, cx: &mut Cx, sequences: bool, states: bool) -> Vec<Tensor> {
        let mut outputs = vec![self.output(cx, sequences)];
        if states {
            outputs.append(&mut self.states);
        }
        outputs
    }

    /// The outputs of all steps `[batch, steps, ..]` with their mask, or of the last step `[batch, ..]`.
    #[track_caller]
    pub(super) fn output(&self, cx: &mut Cx, sequences: bool) -> Tensor {
        if !sequences {
            return self.last.clone();
        }
        if let Some(mask) = &self.mask {
            cx.set_padding_mask(&self.outputs, mask);
        }
        self.outputs.clone()
    }
}

impl Loop<'_> {
    /// Takes the steps. `step(row, states, constants)` gives the next states, the first of which is the output.
    ///
    /// At a step that is padding the states stay, and the output of the step before is repeated, zeros at first: Keras'
    /// rule.
    #[track_caller]
    pub(super) fn run(
        &self,
        cx: &Cx,
        constants: &[Tensor],
        step: impl Fn(&Tensor, &[Tensor], &[Tensor]) -> Vec<Tensor>,
    ) -> Done {
        let turned = |rows: &Tensor| match self.backwards {
            true => rows.reverse(&[0]),
            false => rows.clone(),
        };
        let mask = cx.padding_mask(&self.inputs[0]);
        let mask = mask.map(|mask| turned(&mask.transpose(&[1, 0])));
        let (steps, batch) = (self.rows.dim(0), self.rows.dim(1));
        let state = Shape::new(self.rows.dtype(), [&[batch], &self.state[..]].concat());
        let zeros = cx.graph().full(&state, 0.0);
        let mut initial: Vec<Tensor> = match &self.inputs[1..] {
            [] => vec![zeros.clone(); self.states],
            given => given.to_vec(),
        };
        // What padding repeats differs from the first state only until the first step that is none.
        let repeats = mask.is_some() && self.inputs.len() > 1;
        initial.extend(repeats.then(|| zeros.clone()));
        let mut rows = vec![turned(&self.rows)];
        rows.extend(mask.clone());

        let body = |carried: &[Tensor], row: &[Tensor], constants: &[Tensor]| {
            let (states, previous) = carried.split_at(self.states);
            let mut next = step(&row[0], states, constants);
            let mut output = next[0].clone();
            if let Some(mask) = row.get(1) {
                let kept = mask.broadcast_in(&state.dims, &[0]);
                let before = previous.first().unwrap_or(&states[0]);
                output = kept.select(&output, before);
                let pairs = next.iter().zip(states);
                next = pairs.map(|(new, old)| kept.select(new, old)).collect();
            }
            next.extend(repeats.then(|| output.clone()));
            (next, vec![output])
        };
        let (last, mut outputs) = cx.graph().scan(
            steps,
            &initial.iter().collect::<Vec<_>>(),
            &rows.iter().collect::<Vec<_>>(),
            &constants.iter().collect::<Vec<_>>(),
            body,
        );
        let outputs = outputs.swap_remove(0);
        self.done(last, &outputs, mask)
    }

    #[track_caller]
    fn done(&self, mut carried: Vec<Tensor>, outputs: &Tensor, mask: Option<Tensor>) -> Done {
        let last = carried.get(self.states).unwrap_or(&carried[0]).clone();
        carried.truncate(self.states);
        let mask = mask.map(|mask| mask.transpose(&[1, 0]));
        let done = Done {
            outputs: swapped(outputs),
            last,
            states: carried,
            mask: None,
        };
        done.masked(mask, self.zero_padding)
    }
}

/// `[steps, batch, ..]` of `[batch, steps, ..]`, and the other way round.
#[track_caller]
pub(super) fn swapped(x: &Tensor) -> Tensor {
    let perm: Vec<usize> = [1, 0].into_iter().chain(2..x.rank()).collect();
    x.transpose(&perm)
}
