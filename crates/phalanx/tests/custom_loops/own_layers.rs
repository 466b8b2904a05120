//! Layers that Keras' examples define themselves.

use phalanx::prelude::*;
use serde_json::{Value, json};

/// A layer without settings whose call is a function.
macro_rules! own_layers {
    ($($(#[$doc:meta])* $name:ident = $call:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name;

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                stringify!($call)
            }
            fn config(&self) -> Value {
                json!({})
            }
            fn converts_inputs(&self) -> bool {
                false
            }
            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                $call(cx, inputs)
            }
        }
    )*};
}
pub(crate) use own_layers;

own_layers! {
    /// Sines and cosines of a number at two speeds.
    Waves = waves;
    /// Vectors of patches of 2 x 2 pixels and of their places.
    PatchEncoder = patch_encoder;
    /// One half of the features times the other, which a dense layer mixes over places.
    SpatialGate = spatial_gate;
    /// Rows of a table for indices, and products with them for vectors.
    TiedEmbedding = tied_embedding;
    /// The nearest of four codes, which the gradient passes by.
    Quantizer = quantizer;
    /// Each row by the expert that a router likes best, of which each takes two rows of a replica.
    Switch = switch;
}

fn waves(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let tau = std::f64::consts::TAU;
    let speeds = [tau as f32, (tau * 10.0) as f32];
    let speeds = cx.graph().constant(HostTensor::new([2], &speeds));
    let angles = &inputs[0] * speeds;
    Tensor::concat(&[&angles.sin(), &angles.cos()], 3)
}

fn patch_encoder(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let rows = inputs[0].dim(0);
    let cut = inputs[0].reshape(&[rows, 2, 2, 2, 2, 2]);
    let patches = cut.transpose(&[0, 1, 3, 2, 4, 5]).reshape(&[rows, 4, 8]);
    let projected = cx.layer("projection", &Dense::new(6), &[patches]);
    let places = cx.graph().iota(Shape::new(DType::I32, [1, 4]), 1);
    projected + cx.layer("position", &Embedding::new(4, 6), &[places])
}

fn spatial_gate(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let [u, v] = [0, 4].map(|start| inputs[0].slice_dim(2, start, start + 4));
    let v = cx.layer("norm", &LayerNorm::new(), &[v]);
    let mixed = cx.layer("mix", &Dense::new(4), &[v.transpose(&[0, 2, 1])]);
    u * mixed.transpose(&[0, 2, 1])
}

fn tied_embedding(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let table = cx.variable("table", Shape::f32([7, 6]), &Initializer::GlorotUniform);
    match inputs[0].dtype().is_float() {
        true => inputs[0].matmul(&table.transpose(&[1, 0])),
        false => table.gather(&inputs[0], 0),
    }
}

fn quantizer(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let x = &inputs[0];
    let codes = cx.variable("codes", Shape::f32([2, 4]), &Initializer::GlorotUniform);
    let squares = x.square().sum(&[1]).keep_dims(&[1]) + codes.square().sum(&[0]);
    let nearest = (x.matmul(&codes) * 2.0 - squares).argmax(1);
    let chosen = codes.transpose(&[1, 0]).gather(&nearest, 0);
    let kept = (chosen.stop_gradient() - x).square().mean(&[1]);
    cx.add_loss(&(kept * 0.25 + (&chosen - x.stop_gradient()).square().mean(&[1])));
    x + (chosen - x).stop_gradient()
}

fn switch(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let glorot = Initializer::GlorotUniform;
    let router = cx.variable("router", Shape::f32([3, 3]), &glorot);
    let experts = cx.variable("experts", Shape::f32([3, 3, 4]), &glorot);
    let shares = inputs[0].matmul(&router).softmax(1);
    let chosen = shares.argmax(1).one_hot(3, DType::F32);
    let balance = (shares.mean(&[0]) * chosen.mean(&[0])).mean_all() * 9.0;
    cx.add_loss(&balance);
    let place = chosen.cumsum(0) * &chosen;
    let fits = place.less_equal(&place.like(2.0)).convert(DType::F32);
    let gates = chosen * fits * shares.max(&[1]).keep_dims(&[1]);
    let side_by_side = experts.transpose(&[1, 0, 2]).reshape(&[3, 12]);
    let answers = inputs[0].matmul(&side_by_side);
    let answers = answers.reshape(&[inputs[0].dim(0), 3, 4]);
    (answers * gates.keep_dims(&[2])).sum(&[1])
}

/// Attention between the nodes of a graph, which are the same for all examples; gives the nodes that the input names.
#[derive(Debug)]
pub(super) struct GraphAttention {
    pub(super) nodes: HostTensor,
    pub(super) edges: &'static [[i32; 2]],
}

impl Layer for GraphAttention {
    fn kind(&self) -> &'static str {
        "graph_attention"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn converts_inputs(&self) -> bool {
        false
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let kernel = cx.variable("kernel", Shape::f32([3, 4]), &Initializer::GlorotUniform);
        let attention = cx.variable("attention", Shape::f32([8, 1]), &Initializer::GlorotUniform);
        let graph = cx.graph().clone();
        let [to, from] = [0, 1].map(|end| {
            let ends: Vec<i32> = self.edges.iter().map(|edge| edge[end]).collect();
            graph.constant(HostTensor::new([ends.len()], &ends))
        });
        let states = graph.constant(self.nodes.clone()).matmul(&kernel);
        let pairs = Tensor::concat(&[&states.gather(&to, 0), &states.gather(&from, 0)], 1);
        let scores = pairs.matmul(&attention).reshape(&[self.edges.len()]);
        let slope = scores
            .greater(&scores.like(0.0))
            .select(&scores, &(&scores * 0.2));
        let scores = slope.clamp(-2.0, 2.0).exp();
        let none = graph.full(&Shape::f32([6]), 0.0);
        let shares = &scores / none.scatter_add(&to, &scores, 0).gather(&to, 0);
        let messages = states.gather(&from, 0) * shares.keep_dims(&[1]);
        let sums = states.zeros_like().scatter_add(&to, &messages, 0);
        sums.maximum(&sums.like(0.0)).gather(&inputs[0], 0)
    }
}
