//! What does not fit is named.

use phalanx::models::{Recommender, RecommenderKind, TransformerEncoder, TransformerNmt};
use phalanx::prelude::*;
use serde_json::json;

use crate::translation::nmt;

/// A kind, its settings as JSON, the shapes of its inputs, and the error.
type Mistake = (
    &'static str,
    &'static str,
    &'static [&'static [usize]],
    &'static str,
);

const MISTAKES: [Mistake; 24] = [
    (
        "conv_lstm2d",
        r#"{"filters": 2, "kernel_size": 3}"#,
        &[&[3, 4, 2]],
        "expected sequences of images [batch, steps, height, width, channels], got f32[batch,3,4,2]; reshape them first",
    ),
    (
        "conv_lstm1d",
        r#"{"filters": 2, "kernel_size": 3, "dilation_rate": 2}"#,
        &[&[3, 4, 2]],
        "a window of 5 does not fit rows of 4; use `padding` same or a smaller window",
    ),
    (
        "conv_lstm2d",
        r#"{"filters": 2, "kernel_size": 2}"#,
        &[&[3, 4, 4, 2], &[4, 4, 2], &[3, 3, 2]],
        "expected first states f32[batch,3,3,2], got f32[batch,4,4,2]",
    ),
    (
        "conv_lstm3d",
        r#"{"filters": 2, "kernel_size": 2, "bias_initializer": "ones"}"#,
        &[&[3, 4, 4, 4, 2]],
        "`unit_forget_bias` needs a `bias_initializer` of zeros; set it to false",
    ),
    (
        "multi_head_attention",
        r#"{"num_heads": 0, "key_dim": 2}"#,
        &[&[3, 4]],
        "`num_heads` must be a whole number from 1 to 2147483647, got 0",
    ),
    (
        "multi_head_attention",
        r#"{"num_heads": 2, "key_dim": 2}"#,
        &[&[4]],
        "the query must be floats [batch, length, features], got f32[batch,4]",
    ),
    (
        "multi_head_attention",
        r#"{"num_heads": 2, "key_dim": 2}"#,
        &[&[3, 4], &[5, 4], &[6, 4]],
        "expected query, value and key of one batch, value and key of one length, got f32[batch,3,4], f32[batch,5,4] and f32[batch,6,4]",
    ),
    (
        "multi_head_attention",
        r#"{"num_heads": 2, "key_dim": 2}"#,
        &[&[3, 4], &[5, 4], &[5, 4], &[5, 3]],
        "the mask must be [batch, 3, 5], a number for each query and key, got f32[batch,5,3]",
    ),
    (
        "multi_head_attention",
        r#"{"num_heads": 2, "key_dim": 2}"#,
        &[&[3, 4], &[3, 4], &[3, 4], &[3, 3], &[1]],
        "expected query, value, key and mask, got 5 inputs",
    ),
    (
        "group_query_attention",
        r#"{"head_dim": 2, "num_query_heads": 4, "num_key_value_heads": 3}"#,
        &[&[3, 4]],
        "`num_key_value_heads` must divide `num_query_heads`, got 3 and 4",
    ),
    (
        "group_query_attention",
        r#"{"head_dim": 2, "num_query_heads": 4, "num_key_value_heads": 2}"#,
        &[&[3, 4], &[5, 6]],
        "expected query and value with as many features, got f32[batch,3,4] and f32[batch,5,6]; bring them there with `dense`",
    ),
    (
        "attention",
        r#"{"score_mode": "product"}"#,
        &[&[3, 4]],
        "`score_mode` must be dot or concat, got \"product\"",
    ),
    (
        "additive_attention",
        "{}",
        &[&[3, 4], &[5, 3]],
        "expected query and key with as many features, got f32[batch,3,4] and f32[batch,5,3]",
    ),
    (
        "position_embedding",
        r#"{"sequence_length": 3}"#,
        &[&[4, 2]],
        "expected sequences of at most 3, got 4; raise `sequence_length` or cut them",
    ),
    (
        "sinusoidal_position",
        r#"{"max_wavelength": 0}"#,
        &[&[4, 2]],
        "`max_wavelength` must be a number above 0, got 0",
    ),
    (
        "embedding",
        r#"{"input_dim": 3, "output_dim": 2, "mask_zero": true}"#,
        &[&[4, 2]],
        "`mask_zero` needs indices [batch, steps], got f32[batch,4,2]",
    ),
    (
        "lstm",
        r#"{"units": 3}"#,
        &[&[4]],
        "expected sequences [batch, length, features], got f32[batch,4]; embed or reshape them first",
    ),
    (
        "lstm",
        r#"{"units": 3}"#,
        &[&[4, 2], &[3]],
        "expected a sequence and no or 2 first states, got 2 inputs",
    ),
    (
        "gru",
        r#"{"units": 3}"#,
        &[&[4, 2], &[2]],
        "expected first states f32[batch,3], got f32[batch,2]",
    ),
    (
        "lstm",
        r#"{"units": 3, "bias_initializer": "ones"}"#,
        &[&[4, 2]],
        "`unit_forget_bias` needs a `bias_initializer` of zeros; set it to false",
    ),
    (
        "embedding_bag",
        r#"{"input_dim": 3, "output_dim": 2}"#,
        &[&[4], &[3]],
        "expected a weight for each index of f32[batch,4], got f32[batch,3]",
    ),
    (
        "dot",
        "{}",
        &[&[4], &[3]],
        "expected as many numbers along the axes [-1, -1], got f32[batch,4] and f32[batch,3]",
    ),
    (
        "dot",
        r#"{"axes": [2, 3]}"#,
        &[&[4, 3], &[5, 3]],
        "expected floats [batch, ..] with the axes 2 and 3, got f32[batch,4,3] and f32[batch,5,3]",
    ),
    (
        "interaction",
        "{}",
        &[&[4]],
        "expected 2 to 1000 inputs, got 1",
    ),
];

#[test]
fn mistakes_say_what_was_expected_and_got() {
    for (kind, settings, inputs, expected) in MISTAKES {
        let settings = serde_json::from_str(settings).unwrap();
        let built = layer_from_config(kind, &settings).and_then(|layer| {
            let mut net = Network::new();
            let nodes: Vec<Node> = inputs.iter().map(|&dims| net.input(dims)).collect();
            let output = net.add(layer, &nodes);
            net.build(&nodes, &[output])
        });
        let message = built.unwrap_err().to_string();
        assert!(message.ends_with(expected), "{message}");
    }
}

#[test]
fn mistakes_in_whole_models_are_named() {
    let kind = json!({"layer": {"lstn": {"units": 3}}});
    let message = layer_from_config("bidirectional", &kind)
        .unwrap_err()
        .to_string();
    assert_eq!(
        message,
        "bidirectional: `layer`: unknown recurrent layer `lstn`; did you mean `lstm`?"
    );
    let heads = TransformerEncoder {
        heads: 3,
        ..TransformerEncoder::default()
    };
    assert_eq!(
        heads.build().unwrap_err().to_string(),
        "transformer_encoder: `width` must be a multiple of `heads`, got 256 and 3; the heads share the width"
    );
    let shared = TransformerNmt {
        shared_embedding: true,
        ..nmt()
    };
    assert_eq!(
        shared.build().unwrap_err().to_string(),
        "transformer_nmt: `shared_embedding` needs vocabularies of one size, got 8 and 7; make them equal"
    );
    let towers = Recommender::new(RecommenderKind::TwoTower, [3])
        .build()
        .unwrap_err()
        .to_string();
    assert_eq!(
        towers,
        "recommender: expected 2 categories for TwoTower, got 1; give the number of values of each"
    );
    let many = Recommender::new(RecommenderKind::Dlrm, vec![2; 10_001]).build();
    let many = many.unwrap_err().to_string();
    assert!(
        many.contains("expected 1 to 10000 categories for Dlrm, got 10001;"),
        "{many}"
    );
}
