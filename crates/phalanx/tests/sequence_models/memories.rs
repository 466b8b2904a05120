//! A long short-term memory as one op, which devices may have a kernel for, against its loop over steps: the layer takes the loop
//! where there is a mask, here one that leaves nothing out.

use phalanx::data::Batch;
use phalanx::engine::{Engine, EngineOptions, KernelsMode};
use phalanx::prelude::*;
use phalanx_testkit::{Random, assert_close};

use crate::{any_device, engine};

pub(crate) const BATCH: usize = 7;
pub(crate) const STEPS: usize = 6;
pub(crate) const FEATURES: usize = 5;
pub(crate) const UNITS: usize = 20;
pub(crate) const CLASSES: usize = 4;

fn network(layer: &Lstm, masked: bool, both: bool) -> Sequential {
    let mut network = Sequential::new([STEPS, FEATURES]);
    if masked {
        // No feature has this value.
        network = network.add(Masking::new(1e9));
    }
    network = match both {
        true => network.add(Bidirectional::new(layer.clone())),
        false => network.add(layer.clone()),
    };
    network.add(Dense::new(CLASSES))
}

pub(crate) fn data(targets: &[usize]) -> Batch {
    let count: usize = targets.iter().product();
    let mut numbers = Random::new(3);
    // The sum of twelve equal chances is nearly a normal number.
    let x: Vec<f32> = (0..BATCH * STEPS * FEATURES)
        .map(|_| {
            (0..12)
                .map(|_| numbers.below(1000) as f32 / 1000.0)
                .sum::<f32>()
                - 6.0
        })
        .collect();
    let y: Vec<i32> = (0..count).map(|i| (i * 7 % CLASSES) as i32).collect();
    Batch {
        x: vec![HostTensor::new([BATCH, STEPS, FEATURES], &x)],
        y: vec![HostTensor::new(targets, &y)],
        weight: None,
        first: 0,
    }
}

/// Losses of three steps, and all variables behind them.
pub(crate) fn trained(engine: &Engine, network: Sequential, batch: &Batch) -> (Vec<f64>, Vec<f32>) {
    let compile = Compile {
        optimizer: Sgd::new(0.5).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let mut trainer = OneDeviceStrategy::on(engine)
        .compile(network, compile)
        .unwrap();
    let step = |_| {
        let logs = trainer.train_on_batch(batch).unwrap();
        logs.get("loss").unwrap()
    };
    let losses = (0..3).map(step).collect();
    let variables = trainer.variables().unwrap();
    let values = variables.iter().flat_map(|(_, value)| value.f32s());
    (losses, values.collect())
}

#[test]
fn kernels_loops_and_plain_ops_train_alike() {
    let plain = Engine::new(&EngineOptions {
        kernels: KernelsMode::Off,
        ..any_device::options()
    });
    let plain = plain.unwrap();
    let lstm = || Lstm::new(UNITS);
    let cases = [
        ("last", lstm(), false),
        ("sequences", lstm().return_sequences(true), false),
        (
            "backwards",
            lstm().go_backwards(true).return_sequences(true),
            false,
        ),
        ("both directions", lstm().return_sequences(true), true),
        (
            "no bias",
            lstm().unit_forget_bias(false).use_bias(false),
            false,
        ),
    ];
    for (name, layer, both) in cases {
        let targets: &[usize] = match name {
            "last" | "no bias" => &[BATCH],
            _ => &[BATCH, STEPS],
        };
        let batch = data(targets);
        let make = |masked| network(&layer, masked, both);
        let (losses, values) = trained(engine(), make(false), &batch);
        let again = trained(engine(), make(false), &batch);
        assert_eq!((&losses, &values), (&again.0, &again.1), "{name}: two runs");
        for (how, (other, others)) in [
            ("loop", trained(engine(), make(true), &batch)),
            ("plain ops", trained(&plain, make(false), &batch)),
        ] {
            let what = format!("{name}, {how}");
            assert_close(&what, &losses, &other, 2e-6);
            assert_close(&what, &values, &others, 1e-5);
        }
    }
}
