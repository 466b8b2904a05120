//! What Transformers are made of: cross-entropy over a vocabulary, embeddings, kernel gradients, normalization, GELU.

use std::f64::consts::FRAC_1_SQRT_2;

use phalanx::losses::{Loss, SparseCategoricalCrossentropy};
use phalanx_graph::op::DotDims;
use phalanx_graph::{DType, Graph, Shape, Tensor, gradients};

use crate::form::{Form, Row};

const TOKENS: usize = 2048;
const VOCABULARY: usize = 8000;
const WIDTH: usize = 256;

pub(crate) fn rows() -> Vec<Row> {
    vec![
        cross_entropy(),
        embedding(),
        kernel_gradient(),
        gelu(),
        layer_norm(),
    ]
}

fn cross_entropy() -> Row {
    let inputs = |g: &Graph| {
        let labels = g.parameter("labels", Shape::new(DType::I32, [16, 128]));
        (
            g.parameter("logits", Shape::f32([16, 128, VOCABULARY])),
            labels,
        )
    };
    let library = move |g: &Graph| {
        let (x, y) = inputs(g);
        let loss: Loss = SparseCategoricalCrossentropy::from_logits().into();
        with_gradient(loss.per_example(&y, &x).mean_all(), &x)
    };
    let compared = move |g: &Graph| {
        let (x, y) = inputs(g);
        let shifted = &x - x.max(&[2]).stop_gradient().keep_dims(&[2]);
        let hot = y.one_hot(VOCABULARY, DType::Bool);
        let chosen = hot.select(&shifted, &shifted.like(0.0)).sum(&[2]);
        with_gradient((shifted.exp().sum(&[2]).log() - chosen).mean_all(), &x)
    };
    let one_hot = move |g: &Graph| {
        let (x, y) = inputs(g);
        let hot = y.one_hot(VOCABULARY, DType::F32);
        with_gradient(-(hot * x.log_softmax(2)).sum(&[2]).mean_all(), &x)
    };
    Row {
        name: "cross_entropy",
        shown: "cross-entropy of 2048 rows of 8000 logits, with gradient",
        why: "the logit of the class is gathered and its gradient added in place, so no pass over all logits is for it",
        forms: vec![
            Form::new("gathered, scattered in place", library),
            Form::new("compared with every class, summed", compared),
            Form::new("one-hot times log-softmax", one_hot),
        ],
    }
}

fn with_gradient(loss: Tensor, x: &Tensor) -> Vec<Tensor> {
    let slope = gradients(&loss, &[x]).remove(0);
    std::iter::once(loss).chain(slope).collect()
}

fn embedding() -> Row {
    let inputs = |g: &Graph| {
        let y = g.parameter("indices", Shape::new(DType::I32, [TOKENS]));
        (g.parameter("above", Shape::f32([TOKENS, WIDTH])), y)
    };
    Row {
        name: "embedding",
        shown: "gradient of a table of 8000 x 256 from 2048 looked-up rows",
        why: "a scatter touches the rows that were looked up; a product touches the table for each of them",
        forms: vec![
            Form::new("scatter", move |g| {
                let (d, y) = inputs(g);
                let zeros = g.full(&Shape::f32([VOCABULARY, WIDTH]), 0.0);
                vec![zeros.scatter_add(&y, &d, 0)]
            }),
            Form::new("product with one-hot rows", move |g| {
                let (d, y) = inputs(g);
                let hot = y.one_hot(VOCABULARY, DType::F32);
                vec![hot.transpose(&[1, 0]).matmul(&d)]
            }),
        ],
    }
}

/// With the GELU before it, which a transposed operand would compute in strides.
fn kernel_gradient() -> Row {
    let form = |transposed: bool| {
        move |g: &Graph| {
            let x = gelu_of(&g.parameter("x", Shape::f32([16, 128, 1024])));
            let above = g.parameter("above", Shape::f32([16, 128, WIDTH]));
            let dims = |lhs: Vec<usize>, rhs: Vec<usize>| DotDims {
                lhs_batch: vec![],
                rhs_batch: vec![],
                lhs_contract: lhs,
                rhs_contract: rhs,
                dtype: DType::F32,
            };
            if transposed {
                let x = x.transpose(&[2, 0, 1]);
                return vec![x.dot(&above, dims(vec![1, 2], vec![0, 1]))];
            }
            vec![x.dot(&above, dims(vec![0, 1], vec![0, 1]))]
        }
    };
    Row {
        name: "kernel_gradient",
        shown: "kernel gradient 1024 x 256 from gelu of 16x128x1024",
        why: "as a matrix the operand reaches the library as it is, instead of being made in strides",
        forms: vec![
            Form::new("two contracted dims as one", form(false)),
            Form::new("transposed operand", form(true)),
        ],
    }
}

fn gelu_of(x: &Tensor) -> Tensor {
    x * (((x * FRAC_1_SQRT_2).erf() + 1.0) * 0.5)
}

fn gelu() -> Row {
    Row {
        name: "gelu",
        shown: "gelu of 2048 x 1024, with gradient",
        why: "exact, as Keras' default; the approximation by tanh would save little",
        forms: vec![
            Form::new("erf", elementwise([TOKENS, 1, 1024], gelu_of)),
            Form::new(
                "tanh",
                elementwise([TOKENS, 1, 1024], |x| {
                    let inner = (x + x * x * x * 0.044_715) * (2.0 / std::f64::consts::PI).sqrt();
                    x * (inner.tanh() + 1.0) * 0.5
                }),
            ),
        ],
    }
}

fn layer_norm() -> Row {
    Row {
        name: "layer_norm",
        shown: "layer normalization of 2048 x 256, with gradient",
        why: "rows stay in the cache between passes, and the variance is exact where the mean is large",
        forms: vec![
            Form::new(
                "mean, then variance",
                elementwise([16, 128, WIDTH], |x| {
                    let centred = x - x.mean(&[2]).keep_dims(&[2]);
                    let variance = centred.square().mean(&[2]).keep_dims(&[2]);
                    centred * (variance + 1e-3).rsqrt()
                }),
            ),
            Form::new(
                "both in one pass",
                elementwise([16, 128, WIDTH], |x| {
                    let mean = x.mean(&[2]);
                    let variance = x.square().mean(&[2]) - mean.square();
                    (x - mean.keep_dims(&[2])) * (variance + 1e-3).rsqrt().keep_dims(&[2])
                }),
            ),
        ],
    }
}

/// A function of one tensor and its gradient, from what a layer above would send.
fn elementwise(
    dims: [usize; 3],
    function: fn(&Tensor) -> Tensor,
) -> impl Fn(&Graph) -> Vec<Tensor> {
    move |g| {
        let x = g.parameter("x", Shape::f32(dims));
        let above = g.parameter("above", Shape::f32(dims));
        let y = function(&x);
        let slope = gradients(&(&y * &above).sum_all(), &[&x]).remove(0);
        std::iter::once(y).chain(slope).collect()
    }
}
