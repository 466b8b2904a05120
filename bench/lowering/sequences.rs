//! What Transformers are made of: cross-entropy over a vocabulary, embeddings, normalization, GELU, Adam.

use phalanx::losses::{Loss, SparseCategoricalCrossentropy};
use phalanx_graph::{DType, Graph, Shape, Tensor, gradients};

use crate::form::{Form, Row};

const TOKENS: usize = 2048;
const VOCABULARY: usize = 8000;
const WIDTH: usize = 256;

pub(crate) fn rows() -> Vec<Row> {
    vec![cross_entropy(), embedding(), gelu(), layer_norm()]
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
        let loss = loss.per_example(&y, &x).mean_all();
        with_gradient(loss, &x)
    };
    // Written out by hand from here on: the loss and its derivative.
    let by_hand = move |form: fn(&Tensor, &Tensor) -> Vec<Tensor>| {
        move |g: &Graph| {
            let (x, y) = inputs(g);
            form(&x, &y)
        }
    };
    Row {
        name: "cross_entropy",
        shown: "cross-entropy of 2048 rows of 8000 logits, and gradient",
        why: "",
        forms: vec![
            Form::new("library", library),
            Form::new(
                "A pick by gather, exp recomputed",
                by_hand(|x, y| {
                    let shift = x.max(&[2]);
                    let total = (x - shift.keep_dims(&[2])).exp().sum(&[2]);
                    let lse = total.log() + &shift;
                    let loss = (&lse - picked(x, y)).mean_all();
                    let p = (x - lse.keep_dims(&[2])).exp();
                    let hot = y.one_hot(VOCABULARY, DType::Bool);
                    let scale = 1.0 / TOKENS as f64;
                    let slope = (hot.select(&(&p - 1.0), &p)) * scale;
                    vec![loss, slope]
                }),
            ),
            Form::new(
                "A2 same, exp shared",
                by_hand(|x, y| {
                    let shift = x.max(&[2]);
                    let e = (x - shift.keep_dims(&[2])).exp();
                    let total = e.sum(&[2]);
                    let lse = total.log() + &shift;
                    let loss = (&lse - picked(x, y)).mean_all();
                    let scale = 1.0 / TOKENS as f64;
                    let p = e * (scale / total).keep_dims(&[2]);
                    let hot = y.one_hot(VOCABULARY, DType::Bool);
                    vec![loss, hot.select(&(&p - scale), &p)]
                }),
            ),
            Form::new(
                "H A2 with zeros scatter + add",
                by_hand(|x, y| {
                    let shift = x.max(&[2]);
                    let e = (x - shift.keep_dims(&[2])).exp();
                    let total = e.sum(&[2]);
                    let lse = total.log() + &shift;
                    let loss = (&lse - picked(x, y)).mean_all();
                    let scale = 1.0 / TOKENS as f64;
                    let p = e * (scale / total).keep_dims(&[2]);
                    let (place, u) = places(x, y, scale);
                    let z = x
                        .graph()
                        .full(&Shape::f32([TOKENS * VOCABULARY]), 0.0)
                        .scatter_add(&place, &u, 0);
                    vec![loss, p + z.reshape(&[16, 128, VOCABULARY])]
                }),
            ),
            Form::new(
                "I A2 with scatter into p",
                by_hand(|x, y| {
                    let shift = x.max(&[2]);
                    let e = (x - shift.keep_dims(&[2])).exp();
                    let total = e.sum(&[2]);
                    let lse = total.log() + &shift;
                    let loss = (&lse - picked(x, y)).mean_all();
                    let scale = 1.0 / TOKENS as f64;
                    let p = e * (scale / total).keep_dims(&[2]);
                    let (place, u) = places(x, y, scale);
                    let z = p.reshape(&[TOKENS * VOCABULARY]).scatter_add(&place, &u, 0);
                    vec![loss, z.reshape(&[16, 128, VOCABULARY])]
                }),
            ),
            Form::new(
                "B exp in reduce via dot ones",
                by_hand(|x, y| {
                    let shift = x.max(&[2]);
                    let e = (x - shift.keep_dims(&[2])).exp();
                    let ones = x.graph().full(&Shape::f32([VOCABULARY]), 1.0);
                    let total = e
                        .reshape(&[TOKENS, VOCABULARY])
                        .matmul(&ones.reshape(&[VOCABULARY, 1]))
                        .reshape(&[16, 128]);
                    let lse = total.log() + &shift;
                    let loss = (&lse - picked(x, y)).mean_all();
                    let scale = 1.0 / TOKENS as f64;
                    let p = e * (scale / total).keep_dims(&[2]);
                    let hot = y.one_hot(VOCABULARY, DType::Bool);
                    vec![loss, hot.select(&(&p - scale), &p)]
                }),
            ),
            Form::new("C forward only max", by_hand(|x, _| vec![x.max(&[2])])),
            Form::new(
                "D forward only sum exp",
                by_hand(|x, _| vec![x.exp().sum(&[2])]),
            ),
            Form::new("E only exp", by_hand(|x, _| vec![x.exp()])),
            Form::new("F only x+1", by_hand(|x, _| vec![x + 1.0])),
            Form::new("G only sum", by_hand(|x, _| vec![x.sum(&[2])])),
        ],
    }
}

/// Of each row the element that an index names, by a gather from the flat tensor.
fn picked(x: &Tensor, y: &Tensor) -> Tensor {
    let row = x.graph().iota(Shape::new(DType::I32, [TOKENS]), 0);
    let place = row * VOCABULARY as f64 + y.reshape(&[TOKENS]);
    x.reshape(&[TOKENS * VOCABULARY])
        .gather(&place, 0)
        .reshape(&[16, 128])
}

fn places(x: &Tensor, y: &Tensor, scale: f64) -> (Tensor, Tensor) {
    let row = x.graph().iota(Shape::new(DType::I32, [TOKENS]), 0);
    (
        row * VOCABULARY as f64 + y.reshape(&[TOKENS]),
        x.graph().full(&Shape::f32([TOKENS]), -scale),
    )
}

fn with_gradient(loss: Tensor, x: &Tensor) -> Vec<Tensor> {
    let slope = gradients(&loss, &[x])
        .remove(0)
        .expect("the loss depends on it");
    vec![loss, slope]
}

fn embedding() -> Row {
    let inputs = |g: &Graph| {
        let y = g.parameter("indices", Shape::new(DType::I32, [TOKENS]));
        (g.parameter("updates", Shape::f32([TOKENS, WIDTH])), y)
    };
    Row {
        name: "embedding",
        shown: "gradient of 2048 rows looked up in a table of 8000 by 256",
        why: "",
        forms: vec![
            Form::new("scatter", move |g| {
                let (d, y) = inputs(g);
                vec![
                    g.full(&Shape::f32([VOCABULARY, WIDTH]), 0.0)
                        .scatter_add(&y, &d, 0),
                ]
            }),
            Form::new("one-hot dot", move |g| {
                let (d, y) = inputs(g);
                vec![
                    y.one_hot(VOCABULARY, DType::F32)
                        .transpose(&[1, 0])
                        .matmul(&d),
                ]
            }),
        ],
    }
}

fn gelu() -> Row {
    let form = |f: fn(&Tensor) -> Tensor| {
        move |g: &Graph| {
            let x = g.parameter("x", Shape::f32([TOKENS, 1024]));
            let c = g.parameter("c", Shape::f32([TOKENS, 1024]));
            let y = f(&x);
            let slope = gradients(&(&y * &c).sum_all(), &[&x])
                .remove(0)
                .expect("depends");
            vec![y, slope]
        }
    };
    Row {
        name: "gelu",
        shown: "gelu of 2048 x 1024 and gradient",
        why: "",
        forms: vec![
            Form::new(
                "erf",
                form(|x| x * (((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5)),
            ),
            Form::new(
                "tanh",
                form(|x| {
                    let inner = (x + x * x * x * 0.044715) * 0.797_884_560_8;
                    x * (inner.tanh() + 1.0) * 0.5
                }),
            ),
            Form::new("relu", form(|x| x.maximum(&x.like(0.0)))),
        ],
    }
}

fn layer_norm() -> Row {
    let form = |f: fn(&Tensor) -> Tensor| {
        move |g: &Graph| {
            let x = g.parameter("x", Shape::f32([16, 128, WIDTH]));
            let c = g.parameter("c", Shape::f32([16, 128, WIDTH]));
            let y = f(&x);
            let slope = gradients(&(&y * &c).sum_all(), &[&x])
                .remove(0)
                .expect("depends");
            vec![y, slope]
        }
    };
    Row {
        name: "layer_norm",
        shown: "layer norm of 2048 x 256 and gradient",
        why: "",
        forms: vec![
            Form::new(
                "two passes",
                form(|x| {
                    let c = x - x.mean(&[2]).keep_dims(&[2]);
                    let v = c.square().mean(&[2]).keep_dims(&[2]);
                    c * (v + 1e-3).rsqrt()
                }),
            ),
            Form::new(
                "one pass",
                form(|x| {
                    let m = x.mean(&[2]);
                    let v = x.square().mean(&[2]) - m.square();
                    (x - m.keep_dims(&[2])) * (v + 1e-3).rsqrt().keep_dims(&[2])
                }),
            ),
        ],
    }
}
