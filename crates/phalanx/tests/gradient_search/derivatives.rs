//! Small networks around each layer in turn, whose gradients are the derivatives of their losses: in f64 alone, which no compiler takes long for.

use phalanx_testkit::{asked_number, search_seed};
use serde_json::json;

use crate::compare::is_derivative;
use crate::frames::{conv_lstm, on_frames};
use crate::layers::{layer, on_image, on_sequence, on_vector, on_volume};
use crate::network::{Described, Spec};
use crate::pictures::picture;
use crate::random::Random;
use crate::trial::{Aim, Source, Trial, Weights};

/// So many networks of each family are drawn, or as many as `PHALANX_FUZZ_ROUNDS` says.
const ROUNDS: u64 = 6;

pub(crate) type Draw = fn(&mut Random, &[usize]) -> Described;

/// The dims of an example with what is drawn for it.
pub(crate) const FAMILIES: [(&[usize], Source, Draw); 12] = [
    (&[5, 4, 3], Source::Floats, |random, _| picture(random, 3)),
    (&[6, 5, 3], Source::Floats, |random, _| picture(random, 3)),
    (&[4, 5, 2], Source::Floats, |random, _| picture(random, 2)),
    (&[5, 4, 3], Source::Floats, on_image),
    (&[3, 4, 2, 2], Source::Floats, on_volume),
    (&[6, 4], Source::Floats, on_sequence),
    (&[5, 3], Source::Padded, on_sequence),
    (&[12], Source::Floats, on_vector),
    (&[2, 2, 3, 3, 2], Source::Floats, on_frames),
    (&[3, 4, 2], Source::Floats, |random, _| conv_lstm(random, 1)),
    (&[3, 4, 3, 2], Source::Floats, |random, _| {
        conv_lstm(random, 2)
    }),
    (&[2, 3, 2, 2, 2], Source::Floats, |random, _| {
        conv_lstm(random, 3)
    }),
];

/// The layer behind one with variables, and before another.
pub(crate) fn network(
    random: &mut Random,
    (dims, source, draw): (&[usize], Source, Draw),
) -> Option<Spec> {
    let features = dims.last()?;
    let trial = Trial {
        sources: vec![source],
        rows: random.from(1, 4),
        replicas: 1,
        aim: random.of_list(&[Aim::Squares, Aim::Squares, Aim::Answers]),
        weights: random.of_list(&[Weights::None, Weights::Random]),
        seed: random.bits() >> 16,
    };
    let mut spec = Spec {
        inputs: vec![dims.to_vec()],
        layers: Vec::new(),
        uses: Vec::new(),
        trial,
    };
    let mut layers = vec![layer("dense", json!({"units": features}))];
    if source == Source::Padded {
        layers.insert(0, layer("masking", json!({})));
    }
    let tried = draw(random, dims);
    layers.extend([
        tried,
        layer("flatten", json!({})),
        layer("dense", json!({"units": 2})),
    ]);
    for (at, layer) in layers.into_iter().enumerate() {
        (spec, _) = spec.with(layer, &[at])?;
    }
    Some(spec)
}

#[test]
fn gradients_of_each_layer_are_derivatives() {
    let rounds = asked_number("PHALANX_FUZZ_ROUNDS").unwrap_or(ROUNDS);
    let seed = search_seed();
    println!("seed {seed}");
    let (mut tried, mut wrong) = (0, Vec::new());
    for round in 0..rounds {
        for (number, family) in FAMILIES.into_iter().enumerate() {
            let mut random = Random::of(seed, round * 100 + number as u64);
            // What is drawn may not fit.
            let Some(spec) = (0..50).find_map(|_| network(&mut random, family)) else {
                continue;
            };
            tried += 1;
            if let Err(what) = is_derivative(&spec.model().unwrap(), &spec.trial) {
                wrong.push(format!(
                    "{what}\n{}",
                    spec.test(&format!("round_{round}_{number}"))
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "seed {seed}, {} of {tried}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(tried >= rounds * 10, "only {tried} networks");
}
