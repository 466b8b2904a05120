//! Ops with a kernel of their own on some devices, made of other ops on the rest.
//!
//! Each says its shapes, its [`decompose`](Kernel::decompose)d form and its derivative; which of them a device has is
//! the [`Lowering`](crate::Lowering)'s to say.

pub(crate) mod gru;
pub(crate) mod image_forms;
pub(crate) mod lstm;

use std::sync::Arc;

use crate::grad::{convolution, window};
use crate::op::{ConvDims, ConvSpec, ReduceOp, Subgraph, WindowDim};
use crate::{Graph, Shape, Tensor};

/// The layer that a node belongs to, shared with its neighbours.
pub(crate) type Label = Option<Arc<str>>;

/// An op that some devices have a kernel for.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// `(cotangent, kernel[, by]) -> gradient of the input` of a convolution; 0 where `by` is not positive, which is made by
    /// fusion.
    ConvInputGradient {
        /// The convolution; without groups of the batch.
        dims: ConvDims,
        /// Dims of its input.
        input: Vec<usize>,
    },
    /// `(input, cotangent) -> gradient of the kernel` of a convolution.
    ConvKernelGradient {
        /// The convolution; without groups of the batch.
        dims: ConvDims,
        /// Dims of its kernel.
        kernel: Vec<usize>,
    },
    /// `(input, kernel, bias[, residual]) -> convolution + bias + residual`, then [`FusedActivation`]; made by fusion.
    ConvBias {
        /// The convolution.
        dims: ConvDims,
        /// What is applied to the sum.
        activation: FusedActivation,
    },
    /// `(x, gamma, beta[, residual]) -> (y, mean, variance)` over all dims but the last, `y` normalized with the mean and
    /// the population variance of `x`, scaled, shifted, the residual added, then [`FusedActivation`]; the last two are made by fusion.
    /// All but `x`, the residual and `y` are f32 where those are 16-bit floats: all is computed in f32, and `y` is rounded once.
    BatchNorm {
        /// What is added to the variance.
        epsilon: f64,
        /// What is applied to the result.
        activation: FusedActivation,
    },
    /// `(cotangent, x, mean, variance, gamma[, by]) -> gradients of (x, gamma, beta[, residual])`; what follows
    /// `gamma` and the last gradient come with the [`Mask`], made by fusion.
    BatchNormGradient {
        /// What is added to the variance.
        epsilon: f64,
        /// Where the cotangent passes.
        mask: Mask,
    },
    /// `x -> (largest of each window, its place in the window)`: places count row-major, the first of equal elements is
    /// the largest, and the first NaN before all others. Places are u8, i32 where a window has more than 256.
    MaxPool2d(Pool2d),
    /// `(place, cotangent) -> gradient of x`.
    MaxPool2dGradient {
        /// The pooling.
        pool: Pool2d,
        /// Dims of `x`.
        input: Vec<usize>,
    },
    /// `(x, recurrent kernel, bias, first state, first cells) -> (states, cells, gates)`: see [`Tensor::lstm`]. The gates of all
    /// steps, shaped like `x`, are what their functions gave.
    Lstm,
    /// `(cotangent of the states, recurrent kernel, first cells, cells, gates[, cotangent of the cells]) -> gradients of (x, first
    /// state, first cells)`.
    LstmGradient,
    /// `(x, recurrent kernel, recurrent bias, first state) -> (states, gates)`: see [`Tensor::gru`]. The gates of all steps, `[batch, steps,
    /// 4 units]`, are what the functions of update gate, reset gate and candidate gave, and what the reset gate multiplies.
    Gru,
    /// `(cotangent of the states, recurrent kernel, first state, states, gates) -> gradients of (x, product of the state with the kernel
    /// at each step, first state)`.
    GruGradient,
}

/// What follows a kernel's own work, elementwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FusedActivation {
    /// Nothing.
    None,
    /// `max(y, 0)`.
    Relu,
    /// `min(max(y, 0), ceiling)`.
    Clipped(f64),
}

/// Where a fused activation lets cotangents through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mask {
    /// Everywhere: there is no activation.
    None,
    /// Where the normalized value, found again with `beta`, is where the activation has slope 1.
    Beta(FusedActivation),
    /// Where the result of the normalization is positive; there the cotangent is also the residual's gradient.
    Output,
}

impl FusedActivation {
    fn apply(self, y: &Tensor) -> Tensor {
        match self {
            Self::None => y.clone(),
            Self::Relu => y.maximum(&y.like(0.0)),
            Self::Clipped(ceiling) => y.clamp(0.0, ceiling),
        }
    }

    /// Where the derivative is 1; elsewhere it is 0.
    fn slopes(self, y: &Tensor) -> Tensor {
        let positive = y.greater(&y.like(0.0));
        match self {
            Self::None => positive.or(&positive.not()),
            Self::Relu => positive,
            Self::Clipped(ceiling) => positive.and(&y.less(&y.like(ceiling))),
        }
    }
}

/// Windows over the height and width of images `[batch, height, width, channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool2d {
    /// Height and width of a window.
    pub size: [usize; 2],
    /// Distance between windows.
    pub strides: [usize; 2],
    /// Padding before and after, of height and of width.
    pub padding: [(usize, usize); 2],
}

impl Pool2d {
    /// The window of each of the four dims.
    #[must_use]
    pub fn window(&self) -> [WindowDim; 4] {
        let dim = |i: usize| WindowDim {
            size: self.size[i],
            stride: self.strides[i],
            dilation: 1,
            low: self.padding[i].0,
            high: self.padding[i].1,
        };
        [WindowDim::identity(), dim(0), dim(1), WindowDim::identity()]
    }
}

impl Kernel {
    /// The lower-case name in dumps.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ConvInputGradient { .. } => "conv_input_gradient",
            Self::ConvKernelGradient { .. } => "conv_kernel_gradient",
            Self::ConvBias { .. } => "conv_bias",
            Self::BatchNorm { .. } => "batch_norm",
            Self::BatchNormGradient { .. } => "batch_norm_gradient",
            Self::MaxPool2d(_) => "max_pool",
            Self::MaxPool2dGradient { .. } => "max_pool_gradient",
            Self::Lstm => "lstm",
            Self::LstmGradient => "lstm_gradient",
            Self::Gru => "gru",
            Self::GruGradient => "gru_gradient",
        }
    }

    /// The same computation of inputs of these shapes as a graph of other ops, under the label of a layer.
    #[must_use]
    pub fn decomposed(&self, inputs: &[Shape], label: Option<Arc<str>>) -> Arc<Subgraph> {
        let graph = Graph::new();
        let body = graph.under_label(label, || graph.subgraph(inputs, |x| self.decompose(x)));
        debug_assert!(graph.error().is_none(), "{self:?}: {:?}", graph.error());
        body
    }

    #[track_caller]
    pub(crate) fn decompose(&self, x: &[Tensor]) -> Vec<Tensor> {
        match self {
            Self::ConvInputGradient { dims, input } => {
                let gradient = convolution::input_gradient(&x[0], input, &x[1], dims);
                vec![where_positive(&gradient, x.get(2))]
            }
            Self::ConvKernelGradient { dims, kernel } => {
                vec![convolution::kernel_gradient(&x[1], &x[0], kernel, dims)]
            }
            Self::ConvBias { dims, activation } => {
                let y = x[0].conv(&x[1], dims.clone());
                let bias = x[2].broadcast_in(&y.dims(), &[dims.output.feature]);
                let biased = y + bias;
                let sum = x
                    .get(3)
                    .map_or_else(|| biased.clone(), |residual| &biased + residual);
                vec![activation.apply(&sum)]
            }
            Self::BatchNorm {
                epsilon,
                activation,
            } => {
                let wide = |tensor: &Tensor| tensor.convert(tensor.wide());
                let (y, mean, variance) = batch_norm(&wide(&x[0]), &x[1], &x[2], *epsilon);
                let sum = x
                    .get(3)
                    .map_or_else(|| y.clone(), |residual| &y + wide(residual));
                vec![activation.apply(&sum).convert(x[0].dtype()), mean, variance]
            }
            Self::BatchNormGradient { epsilon, mask } => batch_norm_gradient(x, *epsilon, *mask),
            Self::MaxPool2d(pool) => {
                let window = pool.window();
                let largest = x[0].reduce_window(ReduceOp::Max, &window);
                vec![largest, window::winner(ReduceOp::Max, &window, &x[0])]
            }
            Self::MaxPool2dGradient { pool, input } => {
                vec![window::to_winner(&pool.window(), input, &x[0], &x[1])]
            }
            Self::Lstm => lstm::decompose(x),
            Self::LstmGradient => lstm::decompose_gradient(x),
            Self::Gru => gru::decompose(x),
            Self::GruGradient => gru::decompose_gradient(x),
        }
    }
}

/// The gradient where `by`, if there is one, is positive; else 0.
fn where_positive(gradient: &Tensor, by: Option<&Tensor>) -> Tensor {
    let passed = |by: &Tensor| {
        let passes = FusedActivation::Relu.slopes(by);
        passes.select(gradient, &gradient.zeros_like())
    };
    by.map_or_else(|| gradient.clone(), passed)
}

fn batch_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, epsilon: f64) -> (Tensor, Tensor, Tensor) {
    let channel = x.rank() - 1;
    let others: Vec<usize> = (0..channel).collect();
    let spread = |tensor: &Tensor| tensor.broadcast_in(&x.dims(), &[channel]);
    let mean = x.mean(&others);
    let centred = x - &spread(&mean);
    let variance = centred.square().mean(&others);
    let factor = (&variance + epsilon).rsqrt() * gamma;
    (centred * spread(&factor) + spread(beta), mean, variance)
}

/// With `z` the normalized `x` of `n` elements a channel: `gamma / sqrt(variance + epsilon) (g - mean(g) - z mean(g z))`.
fn batch_norm_gradient(given: &[Tensor], epsilon: f64, mask: Mask) -> Vec<Tensor> {
    let [g, x, mean, variance, gamma, by @ ..] = given else {
        unreachable!("five operands or more were inferred")
    };
    let stored = x.dtype();
    // f16 does not hold the number of elements of a channel, nor bf16 all of its digits.
    let (g, x) = (&g.convert(gamma.dtype()), &x.convert(gamma.dtype()));
    let channel = x.rank() - 1;
    let others: Vec<usize> = (0..channel).collect();
    let count: f64 = others.iter().map(|&dim| x.dim(dim) as f64).product();
    let spread = |tensor: &Tensor| tensor.broadcast_in(&x.dims(), &[channel]);
    let inverse = (variance + epsilon).rsqrt();
    let normal = (x - &spread(mean)) * spread(&inverse);
    let passes = match mask {
        Mask::None => None,
        Mask::Beta(activation) => {
            Some(activation.slopes(&(&normal * spread(gamma) + spread(&by[0]))))
        }
        Mask::Output => Some(FusedActivation::Relu.slopes(&by[0])),
    };
    let g = &passes.map_or_else(|| g.clone(), |passes| passes.select(g, &g.zeros_like()));
    let (to_beta, to_gamma) = (g.sum(&others), (g * &normal).sum(&others));
    let centred = g - &spread(&(&to_beta / count)) - normal * spread(&(&to_gamma / count));
    let to_x = centred * spread(&(gamma * &inverse));
    let mut found = vec![to_x.convert(stored), to_gamma, to_beta];
    found.extend((mask == Mask::Output).then(|| g.convert(stored)));
    found
}

impl ConvDims {
    /// Whether this is a convolution of images, channels last, `[height, width, in, out]` kernels, and nothing
    /// but strides, padding by less than the kernel's span, dilation of the kernel and groups of features.
    #[must_use]
    pub(crate) fn is_plain_2d(&self, kernel: &[usize]) -> bool {
        let image = ConvSpec::channels_last(2);
        self.input == image
            && self.output == image
            && self.kernel == ConvSpec::kernel(2)
            && self.input_dilation == [1, 1]
            && self.batch_groups == 1
            && (0..2).all(|i| {
                let span = ((kernel[i] - 1) * self.kernel_dilation[i] + 1) as i64;
                let (low, high) = self.padding[i];
                (0..span).contains(&low) && (0..span).contains(&high)
            })
    }
}
