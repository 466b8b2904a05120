//! Gated recurrent units as one op, which devices may have a kernel for, against the loop over steps, which the layer takes where parts of the
//! state are dropped, here none: with padding behind, in front and between, and a sequence of nothing else.

use phalanx::engine::{Engine, EngineOptions, KernelsMode};
use phalanx::prelude::*;
use phalanx_testkit::assert_close;

use crate::memories::{BATCH, CLASSES, FEATURES, STEPS, UNITS, data, trained};
use crate::{any_device, engine};

/// What stands where there is padding.
const PADDING: f32 = 1e9;

fn is_padding(sequence: usize, step: usize) -> bool {
    match sequence {
        0 => false,
        1 => step < 2,
        2 => step == 3,
        3 => true,
        _ => step >= 8 - sequence,
    }
}

fn padded(targets: &[usize]) -> phalanx::data::Batch {
    let mut batch = data(targets);
    let mut x = batch.x[0].f32s();
    for (place, features) in x.chunks_mut(FEATURES).enumerate() {
        if is_padding(place / STEPS, place % STEPS) {
            features.fill(PADDING);
        }
    }
    batch.x[0] = HostTensor::new([BATCH, STEPS, FEATURES], &x);
    batch
}

fn network(layer: Gru, both: bool) -> Sequential {
    let masked = Sequential::new([STEPS, FEATURES]).add(Masking::new(PADDING.into()));
    let network = match both {
        true => masked.add(Bidirectional::new(layer)),
        false => masked.add(layer),
    };
    network.add(Dense::new(CLASSES))
}

#[test]
fn masked_units_train_alike_by_kernels_loops_and_plain_ops() {
    let plain = Engine::new(&EngineOptions {
        kernels: KernelsMode::Off,
        ..any_device::options()
    });
    let plain = plain.unwrap();
    let gru = || Gru::new(UNITS);
    let cases = [
        ("last of both directions", gru(), true),
        ("sequences of both", gru().return_sequences(true), true),
        ("last, no bias", gru().use_bias(false), false),
    ];
    for (name, layer, both) in cases {
        let targets: &[usize] = match name.starts_with("sequences") {
            true => &[BATCH, STEPS],
            false => &[BATCH],
        };
        for batch in [data(targets), padded(targets)] {
            let (losses, values) = trained(engine(), network(layer.clone(), both), &batch);
            let (other, others) = trained(&plain, network(layer.clone(), both), &batch);
            assert_close(&format!("{name}, plain ops"), &losses, &other, 2e-6);
            assert_close(&format!("{name}, plain ops"), &values, &others, 1e-5);
            // Too rare to happen.
            let looped = layer.clone().recurrent_dropout(1e-12);
            let (other, _) = trained(engine(), network(looped, both), &batch);
            assert_close(&format!("{name}, loop"), &losses, &other, 2e-6);
        }
    }
}
