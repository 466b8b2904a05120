//! Layers of PyTorch and of its examples that are written here as they are there.

use phalanx::prelude::*;
use serde_json::{Value, json};

use crate::own_layers::own_layers;

own_layers! {
    /// `nn.PixelShuffle(2)`: the channels of a pixel become four pixels, in the order channel, row, column.
    PixelShuffle = pixel_shuffle;
    /// `F.grid_sample` of images `[rows, height, width, channels]` by `F.affine_grid` of `[rows, 6]`, without `align_corners`.
    AffineSample = affine_sample;
    /// `parametrizations.spectral_norm` of a dense layer to 5.
    SpectralDense = spectral_dense;
    /// `parametrizations.weight_norm` of a dense layer to 3.
    NormedDense = normed_dense;
    /// Two LSTM cells in a loop, which in prediction goes on for two steps with what it has found.
    Sines = sines;
    /// A decoder of three steps that looks at the steps of an encoder by Bahdanau's attention.
    Translation = translation;
}

fn pixel_shuffle(_: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let [rows, height, width, channels] = [0, 1, 2, 3].map(|dim| inputs[0].dim(dim));
    let cut = inputs[0].reshape(&[rows, height, width, channels / 4, 2, 2]);
    let pixels = cut.transpose(&[0, 1, 4, 2, 5, 3]);
    pixels.reshape(&[rows, 2 * height, 2 * width, channels / 4])
}

fn affine_sample(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let [image, affine] = [&inputs[0], &inputs[1]];
    let [rows, height, width, channels] = [0, 1, 2, 3].map(|dim| image.dim(dim));
    let pixels = height * width;
    let graph = cx.graph();
    // The middles of pixels are at these places from -1 to 1.
    let middles = |dim: usize, size: usize| {
        (graph.iota(Shape::f32([height, width]), dim) * 2.0 + 1.0) / size as f64 - 1.0
    };
    let (x, y) = (middles(1, width), middles(0, height));
    let places = Tensor::stack(&[&x, &y, &(x.zeros_like() + 1.0)], 0).reshape(&[3, pixels]);
    let places = affine.reshape(&[2 * rows, 3]).matmul(&places);
    let places = places.reshape(&[rows, 2, pixels]);
    let in_pixels = |of: usize, size: usize| {
        let place = places.slice_dim(1, of, of + 1).reshape(&[rows, pixels]);
        ((place + 1.0) * size as f64 - 1.0) / 2.0
    };
    let (x, y) = (in_pixels(0, width), in_pixels(1, height));
    let first = graph.iota(Shape::f32([rows, pixels]), 0) * pixels as f64;
    let all = image.reshape(&[rows * pixels, channels]);
    // Of the two neighbours on an axis: the place, and the weight where there is a pixel.
    let neighbour = |at: &Tensor, next: f64, size: usize| {
        let (low, most) = (at.floor(), size as f64 - 1.0);
        let place = &low + next;
        let is_there = place.equal(&place.clamp(0.0, most)).convert(DType::F32);
        let weight = if next == 0.0 {
            1.0 - (at - low)
        } else {
            at - low
        };
        (place.clamp(0.0, most), weight * is_there)
    };
    let corners = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)].map(|(down, right)| {
        let (row, row_weight) = neighbour(&y, down, height);
        let (column, column_weight) = neighbour(&x, right, width);
        let index = (row * width as f64 + column + &first).convert(DType::I32);
        let seen = all.gather(&index.reshape(&[rows * pixels]), 0);
        seen.reshape(&[rows, pixels, channels]) * (row_weight * column_weight).keep_dims(&[2])
    });
    let [a, b, c, d] = corners;
    (a + b + c + d).reshape(&image.dims())
}

/// One iteration towards the largest singular value in each call of training; it is differentiated by the kernel alone.
fn spectral_dense(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let (ones, zeros) = (Initializer::Ones, Initializer::Zeros);
    let kernel = cx.variable("kernel", Shape::f32([4, 5]), &Initializer::GlorotUniform);
    let (mut u, mut v) = (
        cx.state("u", Shape::f32([5]), &ones),
        cx.state("v", Shape::f32([4]), &ones),
    );
    let unit = |x: Tensor| &x / x.square().sum_all().sqrt();
    if cx.training() {
        let kept = kernel.stop_gradient();
        u = unit(v.reshape(&[1, 4]).matmul(&kept).reshape(&[5]));
        v = unit(kept.matmul(&u.reshape(&[5, 1])).reshape(&[4]));
        cx.update("u", &u);
        cx.update("v", &v);
    }
    let sigma = (v.reshape(&[1, 4]).matmul(&kernel).reshape(&[5]) * u).sum_all();
    inputs[0].matmul(&(kernel / sigma)) + cx.variable("bias", Shape::f32([5]), &zeros)
}

fn normed_dense(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let direction = cx.variable("direction", Shape::f32([5, 3]), &Initializer::GlorotUniform);
    let length = cx.variable("length", Shape::f32([3]), &Initializer::Ones);
    let kernel = &direction * (length / direction.square().sum(&[0]).sqrt());
    inputs[0].matmul(&kernel) + cx.variable("bias", Shape::f32([3]), &Initializer::Zeros)
}

fn sines(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let (x, cell) = (&inputs[0], Lstm::new(3));
    let [rows, steps] = [x.dim(0), x.dim(1)];
    let zeros = cx.graph().full(&Shape::f32([rows, 3]), 0.0);
    let mut states = [(); 2].map(|()| vec![zeros.clone(), zeros.clone()]);
    let mut found: Vec<Tensor> = Vec::new();
    for step in 0..if cx.training() { steps } else { steps + 2 } {
        let mut given = match step < steps {
            true => x.slice_dim(1, step, step + 1),
            false => found[step - 1].clone(),
        };
        for (name, states) in ["first", "second"].iter().zip(&mut states) {
            let one = given.reshape(&[rows, 1, given.dim(1)]);
            (given, *states) = cell.with_states(cx, name, &[&[one], &states[..]].concat());
        }
        found.push(cx.layer("out", &Dense::new(1), &[given]));
    }
    Tensor::concat(&found.iter().collect::<Vec<_>>(), 1)
}

fn translation(cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    let rows = inputs[0].dim(0);
    let words = cx.layer("words", &Embedding::new(7, 4), &inputs[..1]);
    let encoder = Gru::new(4).return_sequences(true);
    let (seen, mut states) = encoder.with_states(cx, "encoder", &[words]);
    let mut word = inputs[1].slice_dim(1, 0, 1).zeros_like();
    let mut logits = Vec::new();
    for step in 0..3 {
        let given = cx.layer("words_out", &Embedding::new(6, 4), &[word]);
        let query = cx.layer("query", &Dense::new(4), &states).keep_dims(&[1]);
        let key = cx.layer("key", &Dense::new(4), std::slice::from_ref(&seen));
        let score = cx.layer(
            "score",
            &Dense::new(1).use_bias(false),
            &[(query + key).tanh()],
        );
        let context = (score.softmax(1) * &seen).sum(&[1]).reshape(&[rows, 1, 4]);
        let given = Tensor::concat(&[&given, &context], 2);
        let decoder = Gru::new(4);
        (_, states) = decoder.with_states(cx, "decoder", &[&[given], &states[..]].concat());
        logits.push(cx.layer("out", &Dense::new(6), &states));
        word = inputs[1].slice_dim(1, step, step + 1);
    }
    Tensor::stack(&logits.iter().collect::<Vec<_>>(), 1)
}

/// `nn.ReflectionPad2d`.
#[derive(Debug)]
pub(super) struct ReflectionPad(pub(super) usize);

impl Layer for ReflectionPad {
    fn kind(&self) -> &'static str {
        "reflection_pad"
    }

    fn config(&self) -> Value {
        json!({"padding": self.0})
    }

    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let by = self.0;
        let padded = |x: &Tensor, dim: usize| {
            let size = x.dim(dim);
            let before = x.slice_dim(dim, 1, by + 1).reverse(&[dim]);
            let after = x.slice_dim(dim, size - 1 - by, size - 1).reverse(&[dim]);
            Tensor::concat(&[&before, x, &after], dim)
        };
        padded(&padded(&inputs[0], 1), 2)
    }
}
