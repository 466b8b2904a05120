//! A layer for every step of a sequence.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::inner_layer::InnerLayer;
use super::layer::Layer;
use super::sizes::one_input;
use super::{Activation, Cx, Regularizer};
use crate::config::{self, Component, Described, Family, Field, Kind};

/// A layer applied to every step of a sequence by itself, with the same variables; kind `time_distributed`.
///
/// `[batch, steps, ..]` to `[batch, steps, ..]`, of any layer with one input: `[batch, ..]` is what it gets. Variables: `layer/..`.
/// The output has the padding mask of the input, as in Keras.
///
/// Keras calls the layer once for each step. Here steps are folded into the batch, so that there is one call of `batch * steps` examples,
/// which is the same for layers that treat each example by itself; [dropout](super::Dropout) draws for every step in both.
/// [Batch normalization](super::BatchNorm), which does not, is called for each step as in Keras: each has statistics of its own, the
/// moving ones move once for every step, and padding does not count. Unlike Keras' the penalty on the output of the layer counts,
/// but for models that Keras saved; a model as the layer is not taken; read from JSON, the layer is one of this library.
///
/// ```
/// use phalanx::nn::{Conv2d, Sequential, TimeDistributed};
///
/// let frames = Sequential::new([5, 16, 16, 3]).add(TimeDistributed::new(Conv2d::new(8, 3)));
/// let model = frames.build()?;
/// assert_eq!(model.outputs()[0].dims, [5, 14, 14, 8]);
/// assert_eq!(model.variables()[0].name, "time_distributed/layer/kernel");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeDistributed {
    layer: InnerLayer,
}

impl TimeDistributed {
    /// A layer for every step.
    #[must_use]
    pub fn new(layer: impl Layer + 'static) -> Self {
        Self {
            layer: InnerLayer::new(layer),
        }
    }

    /// What the layer gets: the inputs of one step, or of all of them as examples.
    fn step(&self, input: &Shape) -> Shape {
        let rows = match self.layer.get().mixes_examples() {
            true => input.dims[0],
            false => input.dims[0].saturating_mul(input.dims[1]),
        };
        let dims = [&[rows], &input.dims[2..]].concat();
        Shape::new(input.dtype, dims)
    }

    /// One call for all steps, as examples.
    #[track_caller]
    fn folded(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let examples = x.reshape(&self.step(&x.shape()).dims);
        let y = self.layer.get().call(cx, &[examples]);
        let dims = y.dims();
        match dims.split_first() {
            Some((&rows, rest)) if rows == x.dim(0) * x.dim(1) => {
                y.reshape(&[&[x.dim(0), x.dim(1)], rest].concat())
            }
            _ => self.not_by_examples(cx, &y),
        }
    }

    /// A call for each step, of which rows that only fill up a batch and steps that are padding do not count.
    #[track_caller]
    fn one_by_one(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let padding = cx.padding_mask(x);
        let dims = self.step(&x.shape()).dims;
        let mut steps = Vec::with_capacity(x.dim(1));
        for at in 0..x.dim(1) {
            let of_step = |all: &Tensor, dims: &[usize]| all.slice_dim(1, at, at + 1).reshape(dims);
            let counts = padding.as_ref().map(|mask| of_step(mask, &dims[..1]));
            let example = of_step(x, &dims);
            let y = cx.counting(counts.as_ref(), |cx| {
                cx.inside("layer", cx.trainable(), cx.policy(), |cx| {
                    self.layer.get().call(cx, &[example])
                })
            });
            if y.dims().first() != dims.first() {
                return self.not_by_examples(cx, &y);
            }
            steps.push(y.keep_dims(&[1]));
        }
        Tensor::concat(&steps.iter().collect::<Vec<_>>(), 1)
    }

    #[track_caller]
    fn not_by_examples(&self, cx: &Cx, y: &Tensor) -> Tensor {
        let (kind, shape) = (self.layer.get().kind(), y.shape());
        cx.fail(format!(
            "`layer` {kind} makes {shape}, expected a row for each of its examples"
        ))
    }
}

impl Described for TimeDistributed {
    const COMPONENT: Component = Component {
        name: "time_distributed",
        doc: "applies a layer to every step of a sequence",
        fields: &[Field::required(
            "layer",
            Kind::Component(Family::Layer),
            "the layer, with its settings; it gets examples without steps",
        )
        .example("{conv2d: {filters: 8, kernel_size: 3}}")],
    };
}

impl Layer for TimeDistributed {
    fn kind(&self) -> &'static str {
        "time_distributed"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        let kind = self.layer.kind();
        match self.layer.get().outputs() {
            1 => self.layer.check_settings(),
            outputs => Err(format!(
                "`layer`: {kind}: it has {outputs} outputs, expected one of each step"
            )),
        }
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_input(inputs)?;
        if input.rank() < 3 {
            return Err(format!(
                "expected sequences [batch, steps, ..] of examples, got {input}; reshape it, or use the layer itself"
            ));
        }
        self.layer.check(&[self.step(input)])
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        if self.layer.get().mixes_examples() {
            return self.one_by_one(cx, &inputs[0]);
        }
        cx.inside("layer", cx.trainable(), cx.policy(), |cx| {
            self.folded(cx, &inputs[0])
        })
    }

    fn converts_inputs(&self) -> bool {
        self.layer.get().converts_inputs()
    }

    fn activation(&self) -> Option<Activation> {
        self.layer.get().activation()
    }

    fn index_range(&self) -> Option<(usize, Option<i32>)> {
        self.layer.get().index_range()
    }

    fn activity_regularizer(&self) -> Option<Regularizer> {
        self.layer.get().activity_regularizer()
    }

    fn mixes_examples(&self) -> bool {
        self.layer.get().mixes_examples()
    }

    fn wrapped(&self) -> Option<&dyn Layer> {
        Some(self.layer.get())
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
