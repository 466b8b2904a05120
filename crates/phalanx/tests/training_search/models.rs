//! Random models, a few small layers each.

use phalanx::nn::{Model, Node};
use phalanx::prelude::*;

use crate::draw::Draw;
use crate::rows::{Feed, STEPS, Target};

/// A model with what it is fed and compared with.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) model: Model,
    pub(crate) feeds: Vec<Feed>,
    pub(crate) targets: Vec<Target>,
}

/// Draws one.
pub(crate) fn model(draw: &Draw) -> phalanx::Result<Drawn> {
    let mut net = Network::new();
    let kinds: &[&str] = match draw.has("inputs without steps", 1.0) {
        true => &["numbers", "picture", "ids", "frames", "two inputs"],
        false => &["ids", "frames", "two inputs"],
    };
    let kind = draw.random("kind").of_list(kinds);
    let (feeds, nodes, body) = match kind {
        "numbers" => numbers(draw, &mut net)?,
        "picture" => picture(draw, &mut net),
        "ids" => ids(draw, &mut net),
        "frames" => frames(draw, &mut net),
        _ => two(draw, &mut net),
    };
    let (outputs, targets) = heads(draw, &mut net, &body);
    let mut model = net.build(&nodes, &outputs)?;
    if draw.has("frozen layer", 0.15) {
        let layers = model.layers();
        let path = &layers[draw.random("which is frozen").from(0, layers.len() - 1)];
        model.freeze(path)?;
    }
    Ok(Drawn {
        model,
        feeds,
        targets,
    })
}

/// What the heads take: a node of features, or of features of each of so many steps.
struct Body {
    features: Node,
    steps: Option<(Node, usize)>,
}

type Made = (Vec<Feed>, Vec<Node>, Body);

fn penalty(draw: &Draw, feature: &'static str) -> Option<Regularizer> {
    let drawn = match draw.random("penalty").from(0, 2) {
        0 => Regularizer::L1 { l1: 0.01 },
        1 => Regularizer::L2 { l2: 0.02 },
        _ => Regularizer::L1L2 { l1: 0.01, l2: 0.01 },
    };
    draw.has(feature, 0.2).then_some(drawn)
}

fn dense(draw: &Draw, units: usize, is_before_norm: bool) -> Dense {
    // A shift before a normalization has a gradient of rounding alone.
    let mut dense = Dense::new(units).use_bias(!is_before_norm);
    if let Some(penalty) = penalty(draw, "penalty of a kernel") {
        dense = dense.kernel_regularizer(penalty);
    }
    if let Some(penalty) = penalty(draw, "penalty of outputs") {
        dense = dense.activity_regularizer(penalty);
    }
    if draw.has("constraint of a kernel", 0.2) {
        let norm = match draw.random("constraint").from(0, 1) {
            0 => Constraint::max_norm(0.7),
            _ => Constraint::unit_norm(),
        };
        dense = dense.kernel_constraint(norm);
    }
    dense
}

/// What may stand behind a layer of features in its last dim.
fn behind(draw: &Draw, net: &mut Network, mut node: Node, normalizes: bool) -> Node {
    if normalizes {
        let norm: LayerSpec = match draw.has("batch normalization", 0.5) {
            true => {
                let norm = BatchNorm::new().momentum(0.6).epsilon(0.05);
                norm.synchronized(!draw.has("statistics of a replica", 0.4))
                    .into()
            }
            false => LayerNorm::new().epsilon(0.05).into(),
        };
        node = net.add(norm, &[node]);
    }
    node = net.add(ActivationLayer::new(tanh), &[node]);
    if draw.has("dropout", 0.25) {
        node = net.add(Dropout::new(0.25), &[node]);
    }
    node
}

fn numbers(draw: &Draw, net: &mut Network) -> phalanx::Result<Made> {
    let feed = Feed::Numbers(vec![5]);
    let x = net.input(feed.input());
    let normalizes = draw.has("normalization", 0.5);
    let first = dense(draw, 6, normalizes);
    let mut node = match draw.has("spectral norm", 0.1) {
        true => net.add(SpectralNorm::new(first), &[x]),
        false => net.add(first, &[x]),
    };
    node = behind(draw, net, node, normalizes);
    if draw.has("shared layer", 0.25) {
        let shared = net.layer(Dense::new(6).activation(tanh));
        let once = net.call(shared, &[node]);
        let twice = net.call(shared, &[once]);
        node = net.add(Add, &[node, twice]);
    }
    if draw.has("nested model", 0.25) {
        let inner = Sequential::new([6])
            .named("inner")
            .add(dense(draw, 5, false).activation(tanh))
            .add(Dense::new(6));
        node = net.add(inner.build()?, &[node]);
    }
    if draw.has("noise", 0.1) {
        node = net.add(GaussianNoise::new(0.1), &[node]);
    }
    let body = Body {
        features: node,
        steps: None,
    };
    Ok((vec![feed], vec![x], body))
}

fn picture(draw: &Draw, net: &mut Network) -> Made {
    let feed = Feed::Numbers(vec![6, 6, 2]);
    let x = net.input(feed.input());
    let normalizes = draw.has("normalization", 0.5);
    let mut first = Conv2d::new(3, 3)
        .padding(Padding::Same)
        .use_bias(!normalizes);
    if let Some(penalty) = penalty(draw, "penalty of a kernel") {
        first = first.kernel_regularizer(penalty);
    }
    let mut node = net.add(first, &[x]);
    node = behind(draw, net, node, normalizes);
    node = match draw.random("pool").from(0, 2) {
        0 => net.add(AveragePool2d::new(2), &[node]),
        1 => net.add(Conv2d::new(4, 2).strides(2).activation(tanh), &[node]),
        _ => net.add(DepthwiseConv2d::new(3).strides(2), &[node]),
    };
    node = match draw.has("global pool", 0.4) {
        true => net.add(GlobalAveragePool2d::new(), &[node]),
        false => net.add(Flatten, &[node]),
    };
    let body = Body {
        features: node,
        steps: None,
    };
    (vec![feed], vec![x], body)
}

/// Few enough that a table is updated as a whole, or so many that rows are.
fn words(draw: &Draw) -> usize {
    match draw.has("large table", 0.4) {
        true => 400,
        false => 9,
    }
}

const fn steps(draw: &Draw) -> usize {
    STEPS + draw.padding()
}

fn ids(draw: &Draw, net: &mut Network) -> Made {
    let feed = Feed::Ids(steps(draw), words(draw));
    let x = net.input(feed.input());
    let node = net.add(embedding(draw), &[x]);
    (vec![feed], vec![x], sequence(draw, net, node, 4))
}

fn has_padding(draw: &Draw) -> bool {
    !draw.has("all steps count", 0.3) && draw.has("padding", 1.0)
}

fn embedding(draw: &Draw) -> Embedding {
    let mut table = Embedding::new(words(draw), 4).mask_zero(has_padding(draw));
    if let Some(penalty) = penalty(draw, "penalty of a table") {
        table = table.embeddings_regularizer(penalty);
    }
    table
}

fn frames(draw: &Draw, net: &mut Network) -> Made {
    let feed = Feed::Frames(steps(draw), 3);
    let x = net.input(feed.input());
    let mut node = x;
    if has_padding(draw) {
        node = net.add(Masking::new(0.0), &[x]);
    }
    (vec![feed], vec![x], sequence(draw, net, node, 3))
}

/// Layers over steps of `width` features.
fn sequence(draw: &Draw, net: &mut Network, node: Node, width: usize) -> Body {
    let kind = draw.random("sequence").from(0, 5);
    let normalizes = draw.has("normalization", 0.3);
    let steps = match kind {
        0 => net.add(recurrent(draw, Lstm::new(4)), &[node]),
        1 => net.add(recurrent_gru(draw), &[node]),
        2 => net.add(SimpleRnn::new(4).return_sequences(true), &[node]),
        3 => {
            let both = Bidirectional::new(Lstm::new(3).return_sequences(true));
            net.add(both, &[node])
        }
        4 => {
            let attended = net.add(MultiHeadAttention::new(2, 2), &[node, node, node]);
            let sum = net.add(Add, &[node, attended]);
            net.add(LayerNorm::new().epsilon(0.05), &[sum])
        }
        _ => net.add(dense(draw, width + 1, normalizes), &[node]),
    };
    let steps = behind(draw, net, steps, normalizes);
    let features = match draw.has("last step", 0.4) {
        true => net.add(Gru::new(4), &[steps]),
        false => net.add(GlobalAveragePool1d::new(), &[steps]),
    };
    Body {
        features,
        steps: Some((steps, self::steps(draw))),
    }
}

fn recurrent(draw: &Draw, layer: Lstm) -> Lstm {
    let mut layer = layer.return_sequences(true);
    if draw.has("dropout of a recurrent layer", 0.2) {
        layer = layer.dropout(0.25).recurrent_dropout(0.25);
    }
    if let Some(penalty) = penalty(draw, "penalty of a recurrent kernel") {
        layer = layer.recurrent_regularizer(penalty);
    }
    layer.go_backwards(draw.has("backwards", 0.2))
}

fn recurrent_gru(draw: &Draw) -> Gru {
    let layer = Gru::new(4).return_sequences(true);
    layer.reset_after(draw.has("reset after", 0.5))
}

fn two(draw: &Draw, net: &mut Network) -> Made {
    let feeds = vec![Feed::Numbers(vec![3]), Feed::Ids(steps(draw), words(draw))];
    let numbers = net.input(feeds[0].input());
    let ids = net.input(feeds[1].input());
    let table = net.add(embedding(draw), &[ids]);
    let pooled = net.add(GlobalAveragePool1d::new(), &[table]);
    let wide = net.add(dense(draw, 4, false).activation(tanh), &[numbers]);
    let node = match draw.has("product of inputs", 0.3) {
        true => net.add(Multiply, &[wide, pooled]),
        false => net.add(Concatenate::new(), &[wide, pooled]),
    };
    let node = behind(draw, net, node, false);
    let body = Body {
        features: node,
        steps: None,
    };
    (feeds, vec![numbers, ids], body)
}

/// One output or two.
fn heads(draw: &Draw, net: &mut Network, body: &Body) -> (Vec<Node>, Vec<Target>) {
    let mut outputs = Vec::new();
    let mut targets = Vec::new();
    let count = 1 + usize::from(draw.has("two outputs", 0.25));
    for choice in ["first target", "second target"].into_iter().take(count) {
        let steps = body.steps.filter(|_| draw.has("classes of steps", 0.35));
        let node = steps.map_or(body.features, |(node, _)| node);
        let number = match draw.has("any target", 1.0) {
            true => draw.random(choice).from(0, 3),
            false => 0,
        };
        let target = match (steps, number) {
            (Some((_, steps)), _) => Target::Classes(steps, 3),
            (None, 0) => Target::Class(3),
            (None, 1) => Target::OneHot(3),
            (None, 2) => Target::Binary,
            (None, _) => Target::Numbers(2),
        };
        let head = match target {
            Target::Class(units)
            | Target::Classes(_, units)
            | Target::OneHot(units)
            | Target::Numbers(units) => Dense::new(units),
            Target::Binary => Dense::new(1).activation(sigmoid),
        };
        outputs.push(net.add(head, &[node]));
        targets.push(target);
    }
    (outputs, targets)
}
