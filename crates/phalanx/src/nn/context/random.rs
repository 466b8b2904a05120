//! Random numbers of layers.

use std::collections::HashMap;

use phalanx_graph::{HostTensor, Tensor};

use super::Cx;
use crate::nn::masks::rows_to_each;
use crate::nn::random_numbers::{normal_numbers, uniform_numbers};
use crate::nn::sampling::path_hash;

pub(super) struct RandomKeys {
    key: Tensor,
    first_row: Tensor,
    /// The rows of the batch, once the model is called.
    pub(super) rows: Option<usize>,
    uses: HashMap<String, usize>,
}

impl Cx {
    /// Gives layers randomness: a `u32[2]` key, new for each step, and the number of the first row of the batch
    /// among all examples of the step (a u32 scalar), so that a row draws the same bits in any split of a batch.
    #[must_use]
    pub fn with_random(mut self, key: Tensor, first_row: Tensor) -> Self {
        let uses = HashMap::new();
        self.random = Some(RandomKeys {
            key,
            first_row,
            rows: None,
            uses,
        });
        self
    }

    /// Random u32 numbers: a function of the step's key, this layer, how often it asked before, the number of the
    /// row (dim 0) among the step's examples, and the place in the row. Rows several to an example, as of a batch whose
    /// steps were folded into its rows, count on: a row's number is its example's times the number of steps.
    ///
    /// Only training draws: it is a mistake to ask in prediction and evaluation, so look at [`training`](Self::training) first. Keras'
    /// `keras.random` draws there, too.
    #[must_use]
    #[track_caller]
    pub fn random_bits(&mut self, dims: &[usize]) -> Tensor {
        let path = self.path().to_owned();
        let Some(random) = &mut self.random else {
            return self.fail(
                "needs random bits, but the caller gave no key: only training draws, so ask for them where `Cx::training` is true alone"
                    .into(),
            );
        };
        let uses = random.uses.entry(path.clone()).or_default();
        let stream = path_hash(&format!("{path}#{uses}"));
        *uses += 1;
        let halves = [(stream >> 32) as u32, stream as u32];
        let stream = self.graph.constant(HostTensor::new([2], &halves));
        let key = random.key.xor(&stream);
        let rows = dims.first().zip(random.rows);
        let first = match rows.and_then(|(&own, rows)| rows_to_each(own, rows)) {
            Some(many) => &random.first_row * many as f64,
            None => random.first_row.clone(),
        };
        self.graph.random_bits(&key, &first, dims)
    }

    /// Random f32 numbers of these dims, evenly distributed over [0, 1): Keras' `keras.random.uniform`; see
    /// [`random_bits`](Self::random_bits).
    #[must_use]
    #[track_caller]
    pub fn uniform(&mut self, dims: &[usize]) -> Tensor {
        uniform_numbers(&self.random_bits(dims))
    }

    /// Random f32 numbers of these dims, normally distributed with mean 0 and variance 1: Keras' `keras.random.normal`; see
    /// [`random_bits`](Self::random_bits).
    ///
    /// ```
    /// use phalanx::prelude::*;
    /// use phalanx::serde_json::{Value, json};
    ///
    /// /// The point of a code, `[batch, code]`, that its mean and the logarithm of its variance say, as in variational autoencoders.
    /// #[derive(Debug)]
    /// struct Sampling;
    ///
    /// impl Layer for Sampling {
    ///     fn kind(&self) -> &'static str {
    ///         "sampling"
    ///     }
    ///     fn config(&self) -> Value {
    ///         json!({})
    ///     }
    ///     fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
    ///         let [mean, log_variance] = inputs else {
    ///             return cx.fail("takes two inputs".to_owned());
    ///         };
    ///         // The divergence from a standard normal distribution, a number for each example.
    ///         let divergence = (log_variance.exp() + mean.square() - log_variance - 1.0) * 0.5;
    ///         cx.add_loss(&divergence.sum(&[1]));
    ///         match cx.training() {
    ///             true => mean + (log_variance * 0.5).exp() * cx.normal(&mean.dims()),
    ///             false => mean.clone(),
    ///         }
    ///     }
    /// }
    ///
    /// let mut net = Network::new();
    /// let x = net.input([4]);
    /// let [mean, log_variance] = [(); 2].map(|()| net.add(Dense::new(2), &[x]));
    /// let code = net.add(Sampling, &[mean, log_variance]);
    /// let x_again = net.add(Dense::new(4), &[code]);
    /// let model = net.build(&[x], &[x_again])?;
    /// assert_eq!(model.outputs()[0].dims, [4]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn normal(&mut self, dims: &[usize]) -> Tensor {
        let [one, other] = [(); 2].map(|()| self.random_bits(dims));
        normal_numbers([&one, &other])
    }
}
