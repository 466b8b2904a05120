//! Random networks.

use phalanx::nn::Registry;
use serde_json::json;

use crate::frames::{conv_lstm, on_frames};
use crate::keras;
use crate::layers::{
    activation, attention, grouped_attention, layer, on_image, on_sequence, on_vector, on_volume,
    recurrent, scored_attention,
};
use crate::network::{Described, Spec, is_tokens};
use crate::norms::{group_norm, known_statistics, slopes, some_dims};
use crate::random::Random;
use crate::trial::{Aim, Source, Trial, Weights};

/// Elements of one value of an example at most, and of all rows.
const MOST_ELEMENTS: usize = 6_000;
const MOST_IN_BATCH: usize = 24_000;

/// Network `number` of a seed.
pub(crate) fn network(seed: u64, number: u64) -> Spec {
    let mut random = Random::of(seed, number);
    // What a draw leads to may be too large, or have nothing to train.
    loop {
        let mut grower = Grower::new(&mut random);
        grower.grow();
        if let Some(spec) = grower.finished() {
            return spec;
        }
    }
}

/// A network that grows: its values with their dims, without the batch.
struct Grower<'a> {
    random: &'a mut Random,
    spec: Spec,
    values: Vec<Vec<usize>>,
}

impl<'a> Grower<'a> {
    fn new(random: &'a mut Random) -> Self {
        let mut inputs = Vec::new();
        let mut sources = Vec::new();
        let count = if random.chance(0.2) { 2 } else { 1 };
        let family = random.from(0, 11);
        for _ in 0..count {
            let (dims, source) = match family {
                0..=4 => image(random),
                5 | 6 => sequence(random),
                7 | 8 => tokens(random),
                9 => volume(random),
                10 => frames(random),
                _ => (vec![random.size(40)], Source::Floats),
            };
            inputs.push(dims);
            sources.push(source);
        }
        if count == 2 && random.chance(0.7) {
            // Alike, so that they can meet.
            (inputs[1], sources[1]) = (inputs[0].clone(), sources[0]);
        }
        let trial = Trial {
            sources,
            rows: random.size(40),
            replicas: if random.chance(0.12) { 3 } else { 1 },
            aim: Aim::Squares,
            weights: match random.chance(0.2) {
                true => Weights::Random,
                false => Weights::None,
            },
            seed: random.bits() >> 16,
        };
        let values = inputs.clone();
        let spec = Spec {
            inputs,
            layers: Vec::new(),
            uses: Vec::new(),
            trial,
        };
        Self {
            random,
            spec,
            values,
        }
    }

    fn grow(&mut self) {
        for input in 0..self.spec.inputs.len() {
            self.begin(input);
        }
        let mut at = self.values.len() - 1;
        // Before everything, so that what follows has variables on its way.
        if self.values[at].len() > 1 && self.random.chance(0.4) {
            let normalization = self.normalization(at);
            self.push(normalization, &[at]);
            at = self.values.len() - 1;
        }
        for _ in 0..self.random.of_list(&[1, 1, 2, 2, 2, 3, 3, 3, 4, 5]) {
            self.extend(at);
            at = self.values.len() - 1;
        }
        if self.spec.inputs.len() == 2 {
            self.join();
        }
        if self.random.chance(0.4) {
            self.head();
        }
    }

    /// The network, unless it trains nothing or is too large.
    fn finished(self) -> Option<Spec> {
        let mut spec = self.spec.pruned()?;
        let output = spec.output()?;
        let sizes = self.values.iter().map(|dims| dims.iter().product());
        let most: usize = sizes.max()?;
        if spec.model().ok()?.variables().is_empty() {
            return None;
        }
        spec.trial.rows = spec.trial.rows.min(MOST_IN_BATCH / most).max(1);
        spec.trial.aim = match self.random.from(0, 9) {
            0 | 1 if output.last().is_some_and(|&classes| classes > 1) => Aim::Classes,
            2 => self.random.of_list(&[Aim::Huber, Aim::Differences]),
            3 => Aim::Answers,
            4 if output.last().is_some_and(|&classes| classes > 1) => Aim::Distributions,
            5 if output.len() == 2 && output[1] > 1 && !spec.is_padded() => Aim::Labels,
            _ => Aim::Squares,
        };
        Some(spec)
    }

    /// Adds a layer, if it takes the values; says whether it did.
    fn push(&mut self, mut layer: Described, inputs: &[usize]) -> bool {
        match self.random.from(0, 39) {
            0 | 1 => layer.settings["checkpointed"] = json!(true),
            2 => layer.settings["trainable"] = json!(false),
            _ => {}
        }
        let Some((spec, dims)) = self.spec.with(layer, inputs) else {
            return false;
        };
        if dims.iter().product::<usize>() > MOST_ELEMENTS {
            return false;
        }
        self.spec = spec;
        self.values.push(dims);
        true
    }

    /// The layers that must come first on an input.
    fn begin(&mut self, input: usize) {
        match self.spec.trial.sources[input] {
            Source::Tokens { below, padded } => {
                let features = self.random.size(16);
                if self.random.chance(0.25) {
                    return self.bag(input, below, padded);
                }
                if self.random.chance(0.15) {
                    return self.categories(input, below);
                }
                if self.random.chance(0.1) {
                    return self.there_and_back(input, below, padded);
                }
                let settings =
                    json!({"input_dim": below, "output_dim": features, "mask_zero": padded});
                self.push(layer("embedding", settings), &[input]);
            }
            Source::Padded => {
                self.push(layer("masking", json!({})), &[input]);
                if self.random.chance(0.2) {
                    self.padded_frames();
                }
            }
            Source::Floats => {}
        }
    }

    /// Tokens looked up in a table that gives scores of them, too.
    fn there_and_back(&mut self, input: usize, below: usize, padded: bool) {
        let cap = self.random.of_list(&[None, Some(1.5)]);
        let table = json!({"input_dim": below, "output_dim": self.random.size(9), "mask_zero": padded,
            "tie_weights": self.random.chance(0.7), "logit_soft_cap": cap});
        let layer_of_both = self.spec.layers.len();
        if !self.push(layer("reversible_embedding", table), &[input]) {
            return;
        }
        let at = self.values.len() - 1;
        self.push(layer("activation", json!({"activation": "tanh"})), &[at]);
        let last = self.values.len() - 1;
        if let Some((spec, dims)) = self.spec.clone().using(layer_of_both, &[last]) {
            self.spec = spec;
            self.values.push(dims);
        }
    }

    /// A convolutional memory of the steps of the last value, each made a row or an image.
    fn padded_frames(&mut self) {
        let features = self.values[self.values.len() - 1][1];
        let sides = (1..=features).filter(|&side| features.is_multiple_of(side));
        let side = self.random.of_list(&sides.collect::<Vec<_>>());
        let (shape, directions) = match self.random.chance(0.5) {
            true => (json!([side, features / side]), 1),
            false => (json!([side, features / side, 1]), 2),
        };
        let frames = json!({"layer": {"reshape": {"target_shape": shape}}});
        if self.push(layer("time_distributed", frames), &[self.values.len() - 1]) {
            let memory = conv_lstm(self.random, directions);
            self.push(memory, &[self.values.len() - 1]);
        }
    }

    /// How often each token occurs, or a bin of the first alone, as vectors.
    fn categories(&mut self, input: usize, below: usize) {
        let bins = self.random.size(9);
        if self.values[input] == [1] && self.random.chance(0.7) {
            let crossing =
                json!({"num_bins": bins, "output_mode": self.random.of_list(&["int", "one_hot"])});
            let is_whole = crossing["output_mode"] == "int";
            if self.push(layer("hashed_crossing", crossing), &[input, input]) && is_whole {
                let table = json!({"input_dim": bins, "output_dim": self.random.size(6)});
                self.push(layer("embedding", table), &[self.values.len() - 1]);
            }
            return;
        }
        let mode = self.random.of_list(&["one_hot", "multi_hot", "count"]);
        let known: Vec<usize> = (0..below.div_ceil(2)).collect();
        let encoding = match self.random.from(0, 5) {
            0 => layer(
                "discretization",
                json!({"bin_boundaries": [0.5, 3.0, 3.5], "output_mode": mode}),
            ),
            1 => layer(
                "integer_lookup",
                json!({"vocabulary": known, "num_oov_indices": 2, "output_mode": mode}),
            ),
            2 | 3 => layer(
                "category_encoding",
                json!({"num_tokens": below, "output_mode": mode}),
            ),
            _ => layer("hashing", json!({"num_bins": bins, "output_mode": mode})),
        };
        self.push(encoding, &[input]);
    }

    /// A bag of embeddings, weighed by learned numbers or not.
    fn bag(&mut self, input: usize, below: usize, padded: bool) {
        let steps = self.values[input][0];
        let mut inputs = vec![input];
        if self.random.chance(0.3) {
            let weights = [
                layer("embedding", json!({"input_dim": below, "output_dim": 1})),
                layer("activation", json!({"activation": "softplus"})),
                layer("reshape", json!({"target_shape": [steps]})),
            ];
            let mut last = input;
            for layer in weights {
                if !self.push(layer, &[last]) {
                    return;
                }
                last = self.values.len() - 1;
            }
            inputs.push(last);
        }
        let combiner = self.random.of_list(&["mean", "sum", "sqrtn"]);
        let settings = json!({"input_dim": below, "output_dim": self.random.size(16),
            "combiner": combiner, "padding": padded.then_some(0)});
        self.push(layer("embedding_bag", settings), &inputs);
    }

    /// One more layer, or a few that belong together, on a value.
    fn extend(&mut self, at: usize) {
        for _ in 0..20 {
            let before = self.values.len();
            match self.random.from(0, 19) {
                0 => self.skip(at),
                1 => self.again(at),
                2 if self.values[at].len() == 2 => self.with_states(at),
                2..=4 => {
                    let normalization = self.normalization(at);
                    self.push(normalization, &[at]);
                }
                5 | 6 => {
                    let activation = activation(self.random);
                    self.push(
                        layer("activation", json!({"activation": activation})),
                        &[at],
                    );
                }
                _ => {
                    let one = self.one(at);
                    self.push(one, &[at]);
                }
            }
            if self.values.len() > before {
                return;
            }
        }
    }

    /// A layer of what fits the rank.
    fn one(&mut self, at: usize) -> Described {
        let dims = self.values[at].clone();
        let random = &mut *self.random;
        match dims.len() {
            5 => on_frames(random, &dims),
            4 => on_volume(random, &dims),
            3 => on_image(random, &dims),
            2 => on_sequence(random, &dims),
            _ => on_vector(random, &dims),
        }
    }

    fn normalization(&mut self, at: usize) -> Described {
        let dims = self.values[at].clone();
        let (rank, features) = (dims.len(), dims.last().copied());
        let is_padded = self.spec.is_padded() && keras::is_given();
        let random = &mut *self.random;
        // Of few numbers nothing is left but signs, and of their gradients rounding.
        let is_few = features < Some(4) || self.spec.trial.rows < 4;
        let epsilon = if is_few {
            1.0
        } else {
            random.of_list(&[1e-3, 1e-5, 0.1])
        };
        if random.chance(0.3) {
            let axis = some_dims(random, rank);
            return layer("layer_norm", json!({"axis": axis, "epsilon": epsilon}));
        }
        if random.chance(0.3) {
            return group_norm(random, &dims, epsilon);
        }
        if random.chance(0.1) {
            return layer("unit_norm", json!({"axis": some_dims(random, rank)}));
        }
        // Keras' have no padding masks.
        if random.chance(0.1) && !is_padded {
            let axis = some_dims(random, rank);
            return layer("rms_norm", json!({"axis": axis, "epsilon": epsilon}));
        }
        if random.chance(0.2) {
            return known_statistics(random, &dims);
        }
        if random.chance(0.15) {
            return slopes(random, &dims);
        }
        // Keras' have no padding masks.
        if random.chance(0.1) && !is_padded {
            return layer("layer_scale", json!({"init_values": 0.5}));
        }
        let axis = match random.chance(0.1) {
            true => random.from(1, rank) as i64,
            false => -1,
        };
        let settings = json!({"axis": axis, "epsilon": epsilon, "scale": random.chance(0.85),
            "center": random.chance(0.85), "synchronized": random.chance(0.4)});
        layer("batch_norm", settings)
    }

    /// The sum of a value and an earlier one, or both joined.
    fn skip(&mut self, at: usize) {
        let earlier = (0..at).filter(|&value| {
            let (a, b) = (&self.values[value], &self.values[at]);
            a.len() == b.len() && a[..a.len() - 1] == b[..b.len() - 1]
        });
        // Tokens are no floats.
        let sources = self
            .spec
            .trial
            .sources
            .iter()
            .map(|source| is_tokens(*source));
        let tokens: Vec<bool> = sources.collect();
        let earlier: Vec<usize> = earlier
            .filter(|&value| !tokens.get(value).copied().unwrap_or(false))
            .collect();
        if earlier.is_empty() {
            return;
        }
        let other = self.random.of_list(&earlier);
        let pair = match self.random.chance(0.5) {
            true => [at, other],
            false => [other, at],
        };
        self.meet(pair);
    }

    fn meet(&mut self, pair: [usize; 2]) {
        let choice = self.random.from(0, 9);
        let met = match choice {
            0..=4 => {
                let kinds = [
                    "add",
                    "add",
                    "multiply",
                    "average",
                    "maximum",
                    "minimum",
                    "subtract",
                    "scaled_add",
                ];
                match self.random.of_list(&kinds) {
                    "scaled_add" if self.spec.is_padded() => layer("add", json!({})),
                    "scaled_add" => layer("scaled_add", json!({"scale": -0.5})),
                    kind => layer(kind, json!({})),
                }
            }
            5 if self.values[pair[0]].len() <= 2 => {
                let axes = pair.map(|value| self.random.from(1, self.values[value].len()));
                layer(
                    "dot",
                    json!({"axes": axes, "normalize": self.random.chance(0.5)}),
                )
            }
            6 if self.values[pair[0]].len() == 1 => layer("interaction", json!({})),
            7 if self.values[pair[0]].len() == 2 => {
                let attention = match self.random.from(0, 2) {
                    0 => attention(self.random),
                    1 => grouped_attention(self.random),
                    _ => scored_attention(self.random),
                };
                // Values and keys, the same or not.
                let others = [pair[1], pair[self.random.from(0, 1)]];
                let given = [pair[0], others[0], others[1]];
                let count = self.random.from(2, 3);
                self.push(attention, &given[..count]);
                return;
            }
            8 => {
                let axis = self.random.from(1, self.values[pair[0]].len());
                layer("concatenate", json!({"axis": axis}))
            }
            _ => layer("concatenate", json!({})),
        };
        self.push(met, &pair);
    }

    /// A recurrent layer with first states that are made of its sequence.
    fn with_states(&mut self, at: usize) {
        let (kind, states) = self
            .random
            .of_list(&[("lstm", 2), ("gru", 1), ("simple_rnn", 1)]);
        let recurrent = recurrent(self.random, kind);
        let units = recurrent.settings["units"].clone();
        let mut inputs = vec![at];
        for _ in 0..states {
            let pooled = layer("global_average_pool1d", json!({}));
            let dense = layer("dense", json!({"units": units, "activation": "tanh"}));
            if !self.push(pooled, &[at]) || !self.push(dense, &[self.values.len() - 1]) {
                return;
            }
            inputs.push(self.values.len() - 1);
        }
        self.push(recurrent, &inputs);
    }

    /// An earlier layer once more, with the same variables.
    fn again(&mut self, at: usize) {
        if self.spec.layers.is_empty() {
            return;
        }
        let number = self.random.from(0, self.spec.layers.len() - 1);
        // The numbers of its output are no indices.
        if self.spec.layers[number].kind.contains("embedding") {
            return;
        }
        let Some((spec, dims)) = self.spec.clone().using(number, &[at]) else {
            return;
        };
        if dims.iter().product::<usize>() <= MOST_ELEMENTS {
            self.spec = spec;
            self.values.push(dims);
        }
    }

    /// Makes one value of what the last use gives and what became of the other input.
    fn join(&mut self) {
        let last = self.values.len() - 1;
        let is_used = |value: &usize| {
            self.spec
                .uses
                .iter()
                .any(|used| used.inputs.contains(value))
        };
        let Some(other) = (0..last).find(|value| !is_used(value)) else {
            return;
        };
        let before = self.values.len();
        if self.values[other].len() == self.values[last].len() {
            for _ in 0..3 {
                self.meet([last, other]);
                if self.values.len() > before {
                    return;
                }
            }
        }
        self.vector(other);
        let other = self.values.len() - 1;
        self.vector(last);
        let last = self.values.len() - 1;
        self.push(layer("concatenate", json!({})), &[last, other]);
    }

    /// Makes a value a vector.
    fn vector(&mut self, at: usize) {
        let kind = match (self.values[at].len(), self.random.from(0, 2)) {
            (4, 0) => "global_max_pool3d",
            (4, 1) => "global_average_pool3d",
            (3, 0) => "global_max_pool2d",
            (3, 1) => "global_average_pool2d",
            (2, 0) => "global_max_pool1d",
            (2, 1) => "global_average_pool1d",
            (1, _) => "activation",
            _ => "flatten",
        };
        self.push(layer(kind, json!({})), &[at]);
    }

    /// A vector and a dense layer on it.
    fn head(&mut self) {
        self.vector(self.values.len() - 1);
        let units = self.random.size(10);
        self.push(
            layer("dense", json!({"units": units})),
            &[self.values.len() - 1],
        );
    }
}

fn image(random: &mut Random) -> (Vec<usize>, Source) {
    let channels = match random.from(0, 19) {
        0 => random.from(32, 80),
        1..=3 => 3,
        _ => random.size(16),
    };
    let side = random.size(40);
    let other = if random.chance(0.5) {
        side
    } else {
        random.size(40)
    };
    let most = MOST_ELEMENTS / channels;
    let side = side.min(most);
    (vec![side, other.min(most / side), channels], Source::Floats)
}

fn volume(random: &mut Random) -> (Vec<usize>, Source) {
    let sides = [0; 3].map(|_| random.size(7));
    let dims = [&sides[..], &[random.size(6)]].concat();
    (dims, Source::Floats)
}

/// Rows or images that follow each other.
fn frames(random: &mut Random) -> (Vec<usize>, Source) {
    let sides = (0..random.from(1, 2)).map(|_| random.size(7));
    let mut dims: Vec<usize> = sides.collect();
    dims.insert(0, random.size(6));
    dims.push(random.size(4));
    (dims, Source::Floats)
}

fn sequence(random: &mut Random) -> (Vec<usize>, Source) {
    let source = if random.chance(0.4) {
        Source::Padded
    } else {
        Source::Floats
    };
    (vec![random.size(24), random.size(16)], source)
}

fn tokens(random: &mut Random) -> (Vec<usize>, Source) {
    let (below, padded) = (random.from(2, 30), random.chance(0.5));
    (vec![random.size(24)], Source::Tokens { below, padded })
}

/// A layer that nothing here names is not searched.
#[test]
fn every_kind_of_layer_is_drawn() {
    let drawn = [
        include_str!("generate.rs"),
        include_str!("layers.rs"),
        include_str!("frames.rs"),
        include_str!("norms.rs"),
        include_str!("pictures.rs"),
    ]
    .concat();
    let registry = Registry::standard();
    let missing = (registry.kinds()).filter(|kind| !drawn.contains(&format!("\"{kind}\"")));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new());
}
