//! The Transformer for translation.

use phalanx_graph::DType;
use serde::{Deserialize, Serialize};

use super::transformer::{
    PositionEncoding, TransformerBlock, check_heads, position_encoding, with_dropout,
};
use crate::Result;
use crate::nn::{
    Dense, Embedding, Input, Layer, LayerSpec, Model, Network, Node, Rescaling, Shared,
};

/// An encoder and a decoder for translation: tokens `source` `i32[batch, source_length]` and `target`
/// `i32[batch, target_length]` to logits of the next token of the target `[batch, target_length, target_vocabulary]`.
///
/// Token 0 is padding on both sides. It is trained by teacher forcing: `target` is the translation behind a start
/// token, and the labels are the translation with an end token behind; padding of the target counts in no loss.
/// [`Translator`](super::Translator) translates with it. As in Vaswani et al. 2017 (embeddings times `sqrt(width)`
/// plus waves), with norms before each part of a block and GELU as in
/// [`TransformerEncoder`](super::TransformerEncoder), and a separate output layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransformerNmt {
    /// Number of source tokens, including 0 for padding; 8000 by default.
    pub source_vocabulary: usize,
    /// Number of target tokens, including 0 for padding; 8000 by default.
    pub target_vocabulary: usize,
    /// Whether source and target share one embedding, and so the vocabulary; not by default.
    pub shared_embedding: bool,
    /// Tokens of a source; 64 by default.
    pub source_length: usize,
    /// Tokens of a target; 64 by default.
    pub target_length: usize,
    /// Number of blocks in the encoder, and in the decoder; 4 by default.
    pub layers: usize,
    /// Numbers of one vector, a multiple of `heads`; 128 by default.
    pub width: usize,
    /// Heads of each attention; 8 by default.
    pub heads: usize,
    /// Units of the hidden layer of each block; 512 by default.
    pub feed_forward: usize,
    /// Dropout rate after embeddings, in attention and after each part of a block; 0.1 by default.
    pub dropout: f64,
    /// What norms add to the variance; 1e-3 by default, as in Keras.
    pub epsilon: f64,
    /// How positions are encoded; sinusoidal by default, as in the paper.
    pub positions: PositionEncoding,
}

impl Default for TransformerNmt {
    fn default() -> Self {
        Self {
            source_vocabulary: 8000,
            target_vocabulary: 8000,
            shared_embedding: false,
            source_length: 64,
            target_length: 64,
            layers: 4,
            width: 128,
            heads: 8,
            feed_forward: 512,
            dropout: 0.1,
            epsilon: 1e-3,
            positions: PositionEncoding::Sinusoidal,
        }
    }
}

impl TransformerNmt {
    /// The model.
    ///
    /// # Errors
    /// When a setting makes no sense, such as a `width` that is no multiple of `heads`.
    pub fn build(&self) -> Result<Model> {
        self.check()?;
        let mut net = Network::new().named("transformer_nmt");
        let tokens = |length: usize, name: &str| Input::new([length]).dtype(DType::I32).named(name);
        let source = net.input(tokens(self.source_length, "source"));
        let target = net.input(tokens(self.target_length, "target"));
        let (of_source, of_target) = self.embeddings(&mut net);

        let embedded = self.embed(&mut net, "source", of_source, source);
        let mut memory = embedded;
        for number in 0..self.layers {
            let block = self.block().encoder(self.source_length, false)?;
            let block = LayerSpec::from(block).named(format!("encoder_{number}"));
            memory = net.add(block, &[memory]);
        }
        let memory = net.add(self.block().norm().named("encoder_norm"), &[memory]);

        let mut x = self.embed(&mut net, "target", of_target, target);
        for number in 0..self.layers {
            let (length, source_length) = (self.target_length, self.source_length);
            let block = self.block().decoder(length, source_length)?;
            let block = LayerSpec::from(block).named(format!("decoder_{number}"));
            x = net.add(block, &[x, memory]);
        }
        let x = net.add(self.block().norm().named("decoder_norm"), &[x]);
        let logits = Dense::new(self.target_vocabulary).named("logits");
        let logits = net.add(logits, &[x]);
        net.build(&[source, target], &[logits])
    }

    fn check(&self) -> Result<()> {
        check_heads("transformer_nmt", self.width, self.heads)?;
        if self.shared_embedding && self.source_vocabulary != self.target_vocabulary {
            let (source, target) = (self.source_vocabulary, self.target_vocabulary);
            return Err(crate::Error::user(format!(
                "transformer_nmt: `shared_embedding` needs vocabularies of one size, got {source} and {target}; make them equal"
            )));
        }
        Ok(())
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

    fn embeddings(&self, net: &mut Network) -> (Shared, Shared) {
        let table = |vocabulary| Embedding::new(vocabulary, self.width).mask_zero(true);
        if self.shared_embedding {
            let shared = net.layer(table(self.source_vocabulary).named("embedding"));
            return (shared, shared);
        }
        let source = net.layer(table(self.source_vocabulary).named("source_embedding"));
        let target = net.layer(table(self.target_vocabulary).named("target_embedding"));
        (source, target)
    }

    /// Tokens as vectors that know their places.
    fn embed(&self, net: &mut Network, side: &str, table: Shared, tokens: Node) -> Node {
        let length = match side {
            "source" => self.source_length,
            _ => self.target_length,
        };
        let embedded = net.call(table, &[tokens]);
        let scale = Rescaling::new((self.width as f64).sqrt());
        let scaled = net.add(scale.named(format!("{side}_scale")), &[embedded]);
        let name = format!("{side}_position");
        let placed = position_encoding(net, &name, self.positions, length, scaled);
        with_dropout(net, &format!("{side}_dropout"), self.dropout, placed)
    }
}
