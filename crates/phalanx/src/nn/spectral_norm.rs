//! A layer whose kernel is divided by its largest singular value.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::inner_layer::InnerLayer;
use super::layer::Layer;
use super::sizes::check_size;
use super::{Activation, Cx, Initializer, Regularizer};
use crate::config::{self, Component, Described, Family, Field, Kind};

/// Divides the kernel of a layer by its largest singular value before each step of training (Miyato et al. 2018, of which the kernel itself
/// changes here as in Keras); kind `spectral_norm`.
///
/// Inputs and output are the layer's. The kernel, all dims but the last as rows, and the vector `u` give `v = u kernel^T / |..|` and
/// `u = v kernel / |..|`, as often as `power_iterations` says; the kernel becomes `kernel / (v kernel u^T)`, and the optimizer's update starts
/// there. A kernel of zeros stays. In prediction, and in tests, both are what training left.
///
/// For layers with one kernel: dense ones and convolutions. Variables: the layer's, under `layer/..`, and the state `vector_u` `[1, columns]`.
/// Not for training in a pipeline or with parameter servers. There is none of an embedding, whose numbers Keras rounds; read from JSON, the
/// layer is one of this library.
///
/// ```
/// use phalanx::nn::{Conv2d, Sequential, SpectralNorm};
///
/// let model = Sequential::new([16, 16, 3]).add(SpectralNorm::new(Conv2d::new(8, 3))).build()?;
/// assert_eq!(model.outputs()[0].dims, [14, 14, 8]);
/// assert_eq!(model.variables()[2].name, "spectral_norm/vector_u");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpectralNorm {
    layer: InnerLayer,
    power_iterations: usize,
}

/// Layers with one kernel.
const NORMALIZED: [&str; 10] = [
    "dense",
    "einsum_dense",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv1d_transpose",
    "conv2d_transpose",
    "conv3d_transpose",
    "depthwise_conv1d",
    "depthwise_conv2d",
];

/// The variable of the layer that is normalized.
const KERNEL: &str = "layer/kernel";

/// The state.
const VECTOR: &str = "vector_u";

/// How it begins, in Keras.
const FIRST: Initializer = Initializer::TruncatedNormal {
    mean: 0.0,
    stddev: 0.02,
};

impl SpectralNorm {
    /// A layer with a kernel, in which one step of power iteration is made before each step of training.
    #[must_use]
    pub fn new(layer: impl Layer + 'static) -> Self {
        Self {
            layer: InnerLayer::new(layer),
            power_iterations: 1,
        }
    }

    /// Sets how many steps of power iteration there are before each step of training, 1 by default.
    #[must_use]
    pub const fn power_iterations(mut self, power_iterations: usize) -> Self {
        self.power_iterations = power_iterations;
        self
    }

    /// Normalizes the kernel for this step and those after it.
    #[track_caller]
    fn normalize(&self, cx: &mut Cx) {
        let Some(kernel) = cx.value_of(KERNEL) else {
            return;
        };
        let vector = vector(cx, &kernel);
        let (vector, kernel) = self.normalized(&kernel.stop_gradient(), &vector);
        cx.update(VECTOR, &vector);
        cx.replace(KERNEL, &kernel);
    }

    /// The next vector, and the kernel divided by its largest singular value as far as the vector tells.
    #[track_caller]
    fn normalized(&self, kernel: &Tensor, vector: &Tensor) -> (Tensor, Tensor) {
        let columns = vector.dim(1);
        let rows = kernel.shape().len() / columns;
        let weights = kernel.reshape(&[rows, columns]);
        let turned = weights.transpose(&[1, 0]);
        let (mut u, mut v) = (vector.clone(), vector.clone());
        for _ in 0..self.power_iterations {
            v = of_length_one(&u.matmul(&turned));
            u = of_length_one(&v.matmul(&weights));
        }
        let largest = (v.matmul(&weights) * &u).sum_all();
        let most = kernel.abs().max(&(0..kernel.rank()).collect::<Vec<_>>());
        let is_zero = most.equal(&most.like(0.0));
        let kept = |old: &Tensor, new: &Tensor| is_zero.select(old, new);
        (kept(vector, &u), kept(kernel, &(kernel / largest)))
    }
}

/// The vector for a kernel.
#[track_caller]
fn vector(cx: &mut Cx, kernel: &Tensor) -> Tensor {
    let columns = kernel.dim(kernel.rank() - 1);
    cx.state(VECTOR, Shape::new(kernel.dtype(), [1, columns]), &FIRST)
}

/// A vector divided by its length.
#[track_caller]
fn of_length_one(x: &Tensor) -> Tensor {
    // As in Keras, a vector of zeros stays one.
    let squares = x.square().sum_all();
    x * squares.maximum(&squares.like(1e-14)).rsqrt()
}

impl Described for SpectralNorm {
    const COMPONENT: Component = Component {
        name: "spectral_norm",
        doc: "divides the kernel of a layer by its largest singular value",
        fields: &[
            Field::required(
                "layer",
                Kind::Component(Family::Layer),
                "the layer, with its settings: a dense one or a convolution with one kernel",
            )
            .example("{conv2d: {filters: 8, kernel_size: 3}}"),
            Field::optional(
                "power_iterations",
                Kind::SIZE,
                "steps of power iteration before each step of training",
            ),
        ],
    };
}

impl Layer for SpectralNorm {
    fn kind(&self) -> &'static str {
        "spectral_norm"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`power_iterations`", self.power_iterations)?;
        let kind = self.layer.kind();
        match NORMALIZED.contains(&kind) {
            true => self.layer.check_settings(),
            false => Err(format!(
                "`layer` {kind} has not one kernel, expected one of {}",
                NORMALIZED.join(", ")
            )),
        }
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.layer.check(inputs)
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        if cx.training() {
            self.normalize(cx);
        }
        let y = cx.inside("layer", cx.trainable(), cx.policy(), |cx| {
            self.layer.get().call(cx, inputs)
        });
        match cx.value_of(KERNEL) {
            // So that it is a variable of a model that is never called in training, too.
            Some(kernel) if !cx.training() => {
                let _ = vector(cx, &kernel);
            }
            _ => {}
        }
        y
    }

    fn activation(&self) -> Option<Activation> {
        self.layer.get().activation()
    }

    fn activity_regularizer(&self) -> Option<Regularizer> {
        self.layer.get().activity_regularizer()
    }

    fn wrapped(&self) -> Option<&dyn Layer> {
        Some(self.layer.get())
    }

    /// Each call in training goes on with the vector, so that steps of a [`TimeDistributed`](super::TimeDistributed) are calls of their own.
    fn mixes_examples(&self) -> bool {
        true
    }

    fn keeps_mask(&self) -> bool {
        self.layer.get().keeps_mask()
    }
}
