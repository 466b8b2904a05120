//! The encoder of the Transformer.

use phalanx_graph::DType;
use serde::{Deserialize, Serialize};

use crate::nn::{
    Add, Dense, Dropout, Embedding, GlobalAveragePool1d, Initializer, Input, Layer, LayerNorm,
    LayerSpec, Model, MultiHeadAttention, Network, Node, PositionEmbedding, SinusoidalPosition,
    gelu,
};
use crate::{Error, Result};

/// The output layer of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncoderHead {
    /// A logit for each token of the vocabulary at each position: `[batch, length, vocabulary]`.
    Tokens,
    /// Logits of this many classes from the mean over the positions that are not padding: `[batch, classes]`.
    Classes(usize),
    /// The normalized vectors: `[batch, length, width]`.
    Features,
}

/// How positions are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionEncoding {
    /// A trained vector for each position.
    Learned,
    /// Sines and cosines of different wavelengths, not trained (Vaswani et al. 2017).
    Sinusoidal,
}

/// A pre-norm Transformer encoder: from tokens `i32[batch, length]` to the output of its head.
///
/// Embedding and positions; blocks of `x + attention(norm(x))` and `x + dense(gelu(dense(norm(x))))`; a last norm; the
/// head. As in Vaswani et al. 2017 with the norms moved before each half (Xiong et al. 2020); layers have Keras'
/// defaults (GELU by the error function, Glorot kernels).
///
/// ```
/// use phalanx::models::{EncoderHead, TransformerEncoder};
///
/// let settings = TransformerEncoder { layers: 2, head: EncoderHead::Classes(2), ..TransformerEncoder::default() };
/// assert_eq!(settings.build()?.outputs()[0].dims, [2]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransformerEncoder {
    /// Size of the vocabulary; 8000 by default.
    pub vocabulary: usize,
    /// Tokens of one example; 128 by default.
    pub length: usize,
    /// Number of blocks; 4 by default.
    pub layers: usize,
    /// Size of the vectors, a multiple of `heads`; 256 by default.
    pub width: usize,
    /// Number of attention heads; 4 by default.
    pub heads: usize,
    /// Units of the hidden layer of each block; 1024 by default.
    pub feed_forward: usize,
    /// Dropout rate after the embedding, in attention and after each half of a block; 0 by default.
    pub dropout: f64,
    /// What norms add to the variance; 1e-3 by default, as in Keras. PyTorch's default is 1e-5.
    pub epsilon: f64,
    /// Whether a position attends only to itself and the positions before it (causal attention); not by default.
    pub causal: bool,
    /// Whether token 0 is padding; not by default.
    pub mask_zero: bool,
    /// How positions are encoded; learned by default.
    pub positions: PositionEncoding,
    /// The output layer; logits per token by default.
    pub head: EncoderHead,
}

impl Default for TransformerEncoder {
    fn default() -> Self {
        Self {
            vocabulary: 8000,
            length: 128,
            layers: 4,
            width: 256,
            heads: 4,
            feed_forward: 1024,
            dropout: 0.0,
            epsilon: 1e-3,
            causal: false,
            mask_zero: false,
            positions: PositionEncoding::Learned,
            head: EncoderHead::Tokens,
        }
    }
}

impl TransformerEncoder {
    /// The model.
    ///
    /// # Errors
    /// When a setting makes no sense, such as a `width` that is no multiple of `heads`.
    pub fn build(&self) -> Result<Model> {
        self.check()?;
        let mut net = Network::new().named("transformer_encoder");
        let tokens = net.input(Input::new([self.length]).dtype(DType::I32).named("tokens"));
        let embedding = Embedding::new(self.vocabulary, self.width);
        let embedding = embedding.mask_zero(self.mask_zero);
        let embedded = net.add(embedding.named("embedding"), &[tokens]);
        let placed = position_encoding(&mut net, "position", self.positions, self.length, embedded);
        let mut x = with_dropout(&mut net, "dropout", self.dropout, placed);
        for number in 0..self.layers {
            let block = LayerSpec::from(self.block().encoder(self.length, self.causal)?);
            x = net.add(block.named(format!("block_{number}")), &[x]);
        }
        let x = net.add(self.block().norm().named("norm"), &[x]);
        let output = self.head(&mut net, x);
        net.build(&[tokens], &[output])
    }

    fn check(&self) -> Result<()> {
        check_heads("transformer_encoder", self.width, self.heads)
    }

    const fn block(&self) -> TransformerBlock {
        TransformerBlock {
            width: self.width,
            heads: self.heads,
            feed_forward: self.feed_forward,
            dropout: self.dropout,
            epsilon: self.epsilon,
        }
    }

    fn head(&self, net: &mut Network, x: Node) -> Node {
        match self.head {
            EncoderHead::Tokens => net.add(Dense::new(self.vocabulary).named("logits"), &[x]),
            EncoderHead::Classes(classes) => {
                let pooled = net.add(GlobalAveragePool1d::new().named("pool"), &[x]);
                net.add(Dense::new(classes).named("logits"), &[pooled])
            }
            EncoderHead::Features => x,
        }
    }
}

/// Settings of the blocks of an encoder or a decoder.
#[derive(Clone, Copy)]
pub(super) struct TransformerBlock {
    pub(super) width: usize,
    pub(super) heads: usize,
    pub(super) feed_forward: usize,
    pub(super) dropout: f64,
    pub(super) epsilon: f64,
}

impl TransformerBlock {
    /// A norm.
    pub(super) fn norm(&self) -> LayerNorm {
        LayerNorm::new().epsilon(self.epsilon)
    }

    /// `x + attention(norm(x))`, then `x + dense(gelu(dense(norm(x))))`.
    pub(super) fn encoder(&self, length: usize, causal: bool) -> Result<Model> {
        let mut net = Network::new().named("block");
        let x = net.input([length, self.width]);
        let seen = self.attend(&mut net, "attention", x, None, causal);
        let output = self.feed_forward(&mut net, seen);
        net.build(&[x], &[output])
    }

    /// As the encoder's, causal, with attention to the `memory` of another sequence between its halves.
    pub(super) fn decoder(&self, length: usize, memory: usize) -> Result<Model> {
        let mut net = Network::new().named("block");
        let x = net.input([length, self.width]);
        let memory = net.input([memory, self.width]);
        let seen = self.attend(&mut net, "self_attention", x, None, true);
        let read = self.attend(&mut net, "cross_attention", seen, Some(memory), false);
        let output = self.feed_forward(&mut net, read);
        net.build(&[x, memory], &[output])
    }

    /// `x + attention(norm(x), memory)`.
    fn attend(
        &self,
        net: &mut Network,
        name: &str,
        x: Node,
        memory: Option<Node>,
        causal: bool,
    ) -> Node {
        let attention = MultiHeadAttention::new(self.heads, self.width / self.heads)
            .dropout(self.dropout)
            .use_causal_mask(causal);
        let normal = net.add(self.norm().named(format!("{name}_norm")), &[x]);
        let inputs = [normal, memory.unwrap_or(normal)];
        let seen = net.add(attention.named(name), &inputs);
        let seen = with_dropout(net, &format!("{name}_dropout"), self.dropout, seen);
        net.add(Add.named(format!("{name}_add")), &[x, seen])
    }

    fn feed_forward(&self, net: &mut Network, x: Node) -> Node {
        let normal = net.add(self.norm().named("feed_forward_norm"), &[x]);
        let hidden = Dense::new(self.feed_forward).activation(gelu);
        let hidden = net.add(hidden.named("feed_forward"), &[normal]);
        let output = Dense::new(self.width).named("feed_forward_output");
        let output = net.add(output, &[hidden]);
        let output = with_dropout(net, "feed_forward_dropout", self.dropout, output);
        net.add(Add.named("feed_forward_add"), &[x, output])
    }
}

pub(super) fn position_encoding(
    net: &mut Network,
    name: &str,
    positions: PositionEncoding,
    length: usize,
    x: Node,
) -> Node {
    match positions {
        PositionEncoding::Learned => {
            let normal = Initializer::RandomNormal {
                mean: 0.0,
                stddev: 0.02,
            };
            let learned = PositionEmbedding::new(length).initializer(normal);
            net.add(learned.named(name), &[x])
        }
        PositionEncoding::Sinusoidal => net.add(SinusoidalPosition::new().named(name), &[x]),
    }
}

pub(super) fn with_dropout(net: &mut Network, name: &str, rate: f64, x: Node) -> Node {
    if rate == 0.0 {
        return x;
    }
    net.add(Dropout::new(rate).named(name), &[x])
}

pub(super) fn check_heads(model: &str, width: usize, heads: usize) -> Result<()> {
    if heads > 0 && width > 0 && width.is_multiple_of(heads) {
        return Ok(());
    }
    Err(Error::user(format!(
        "{model}: `width` must be a multiple of `heads`, got {width} and {heads}; the heads share the width"
    )))
}
