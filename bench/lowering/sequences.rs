//! What models of sequences are made of: cross-entropy over a vocabulary, embeddings, products, normalization, GELU, loops.

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
        gather(),
        embedding(),
        embedding_update(),
        kernel_gradient(),
        product("product 2048 x 256 by 256 x 1024, forward", [1, 0]),
        product("product 2048 x 256 by 256 x 1024, input gradient", [1, 1]),
        product("product 2048 x 256 by 256 x 1024, kernel gradient", [0, 0]),
        bf16(),
        gelu(),
        layer_norm(),
        lstm(),
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
        shown: "cross-entropy of 2048 rows of 8000 logits, with gradient".into(),
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

fn gather() -> Row {
    let inputs = |g: &Graph| {
        let y = g.parameter("indices", Shape::new(DType::I32, [TOKENS]));
        (g.parameter("table", Shape::f32([VOCABULARY, WIDTH])), y)
    };
    Row {
        name: "embedding",
        shown: "2048 rows looked up in a table of 8000 x 256".into(),
        why: "a gather reads the rows that are asked for; a product reads the table for all of them",
        forms: vec![
            Form::new("gather", move |g| {
                let (table, y) = inputs(g);
                vec![table.gather(&y, 0)]
            }),
            Form::new("product with one-hot rows", move |g| {
                let (table, y) = inputs(g);
                vec![y.one_hot(VOCABULARY, DType::F32).matmul(&table)]
            }),
        ],
    }
}

/// An update by SGD, whose table is not donated here: each form copies it once.
fn embedding_update() -> Row {
    let inputs = |g: &Graph| {
        let y = g.parameter("indices", Shape::new(DType::I32, [TOKENS]));
        let table = g.parameter("table", Shape::f32([VOCABULARY, WIDTH]));
        (table, g.parameter("above", Shape::f32([TOKENS, WIDTH])), y)
    };
    Row {
        name: "embedding",
        shown: "update by SGD of a table of 8000 x 256 from 2048 looked-up rows".into(),
        why: "any optimizer, clipping and all-reduce take a dense gradient; the sparse form serves SGD without momentum alone",
        forms: vec![
            Form::new("dense gradient, subtracted", move |g| {
                let (table, d, y) = inputs(g);
                let zeros = table.zeros_like();
                vec![&table - zeros.scatter_add(&y, &d, 0) * 0.01]
            }),
            Form::new("rows added to the table", move |g| {
                let (table, d, y) = inputs(g);
                vec![table.scatter_add(&y, &(d * -0.01), 0)]
            }),
        ],
    }
}

/// A product of the feed-forward half of an encoder or one of its gradients, by the dims that are summed over.
fn product(shown: &'static str, contract: [usize; 2]) -> Row {
    let build = move |g: &Graph| {
        let (a, b) = match contract {
            [0, 0] => ([TOKENS, WIDTH], [TOKENS, 1024]),
            [1, 1] => ([TOKENS, 1024], [WIDTH, 1024]),
            _ => ([TOKENS, WIDTH], [WIDTH, 1024]),
        };
        let dims = DotDims {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![contract[0]],
            rhs_contract: vec![contract[1]],
            dtype: DType::F32,
        };
        let a = g.parameter("a", Shape::f32(a));
        vec![a.dot(&g.parameter("b", Shape::f32(b)), dims)]
    };
    Row {
        name: "product",
        shown: shown.into(),
        why: "our loops run at nine tenths of what the processor multiplies, and pack a transposed operand as fast as another; see decision 26",
        forms: vec![Form::with_kernels("call", build), Form::new("XLA", build)],
    }
}

/// As in a mixed policy: operands of 16 bits, the product rounded once.
fn bf16() -> Row {
    let inputs = |g: &Graph, dtype: DType| {
        let a = g.parameter("a", Shape::f32([TOKENS, WIDTH])).convert(dtype);
        let b = g.parameter("b", Shape::f32([WIDTH, 1024])).convert(dtype);
        (a, b)
    };
    let rounded = |x: &Tensor| x.convert(DType::Bf16).convert(DType::F32);
    Row {
        name: "bf16",
        shown: "product 2048 x 256 by 256 x 1024 in bf16, f32 operands rounded".into(),
        why: "operands are widened where the processor has no bf16 instructions: f32 holds the products exactly, see decision 19",
        forms: vec![
            Form::new("bf16 product", move |g| {
                let (a, b) = inputs(g, DType::Bf16);
                vec![a.matmul(&b)]
            }),
            Form::new("f32 product of rounded operands", move |g| {
                let (a, b) = inputs(g, DType::F32);
                vec![rounded(&a).matmul(&rounded(&b)).convert(DType::Bf16)]
            }),
            Form::new("f32 product, not rounded", move |g| {
                let (a, b) = inputs(g, DType::F32);
                vec![a.matmul(&b)]
            }),
        ],
    }
}

/// 64 steps of an LSTM of 128 units, with the gradients of its kernels.
fn lstm() -> Row {
    const UNITS: usize = 128;
    let form = |order: [usize; 4]| {
        move |g: &Graph| {
            let x = g.parameter("x", Shape::f32([64 * 32, UNITS]));
            let kernels = ["kernel", "recurrent"]
                .map(|name| g.parameter(name, Shape::f32([UNITS, 4 * UNITS])));
            let [kernel, recurrent] = kernels.each_ref().map(|kernel| kernel * 0.1);
            let rows = x.matmul(&kernel).reshape(&[64, 32, 4 * UNITS]);
            let zeros = g.full(&Shape::f32([32, UNITS]), 0.0);
            let body = |states: &[Tensor], row: &[Tensor], fixed: &[Tensor]| {
                let z = &row[0] + states[0].matmul(&fixed[0]);
                let cuts = order.map(|gate| z.slice_dim(1, gate * UNITS, (gate + 1) * UNITS));
                let gate = |wanted: usize| {
                    let place = order.iter().position(|&gate| gate == wanted).unwrap_or(0);
                    &cuts[place]
                };
                let c = gate(1).logistic() * &states[1] + gate(0).logistic() * gate(2).tanh();
                let h = gate(3).logistic() * c.tanh();
                (vec![h.clone(), c], vec![h])
            };
            let (_, outputs) = g.scan(64, &[&zeros, &zeros], &[&rows], &[&recurrent], body);
            let slopes = gradients(&outputs[0].square().mean_all(), &kernels.each_ref());
            slopes.into_iter().flatten().collect()
        }
    };
    Row {
        name: "lstm",
        shown: "LSTM of 128 units, 64 steps, batch 32, with gradient".into(),
        why: "the gradients of the four gates are joined in the loop; as a sum each reaches over the places of all",
        forms: vec![
            Form::new("gates cut in order: joined", form([0, 1, 2, 3])),
            Form::new("cut out of order: padded, summed", form([0, 2, 1, 3])),
        ],
    }
}

fn embedding() -> Row {
    let inputs = |g: &Graph| {
        let y = g.parameter("indices", Shape::new(DType::I32, [TOKENS]));
        (g.parameter("above", Shape::f32([TOKENS, WIDTH])), y)
    };
    Row {
        name: "embedding",
        shown: "gradient of a table of 8000 x 256 from 2048 looked-up rows".into(),
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
        shown: "kernel gradient 1024 x 256 from gelu of 16x128x1024".into(),
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
        shown: "gelu of 2048 x 1024, with gradient".into(),
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
        shown: "layer normalization of 2048 x 256, with gradient".into(),
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
