//! What a narrow wire does to a training, to the bit.

use half::{bf16, f16};
use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx::replicas::{Reduction, WireFormat};

use crate::ways::OPS;
use crate::{cases, mirrored, values};

const COLUMNS: usize = 6;

fn batch(rows: std::ops::Range<usize>) -> Batch {
    let x = &cases::wave(8 * COLUMNS, 0.37)[rows.start * COLUMNS..rows.end * COLUMNS];
    let y: Vec<i32> = rows.clone().map(|row| (row * row % 3) as i32).collect();
    Batch {
        x: vec![HostTensor::new([rows.len(), COLUMNS], x)],
        y: vec![HostTensor::new([rows.len()], &y)],
        weight: None,
        first: 0,
    }
}

/// The gradient of the loss of these rows, exactly: what a step of rate 1 takes from zeros.
fn gradient(strategy: &MirroredStrategy, rows: std::ops::Range<usize>) -> Vec<f64> {
    let compile = Compile {
        optimizer: Sgd::new(1.0).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let last = Dense::new(3).use_bias(false);
    let model = Sequential::new([COLUMNS]).add(last.kernel_initializer(Initializer::Zeros));
    let mut trainer = strategy.compile(model, compile).unwrap();
    trainer.train_on_batch(&batch(rows)).unwrap();
    let kernel = values(&trainer).remove(0).1;
    kernel.iter().map(|x| -x).collect()
}

fn rounded(x: f64, wire: WireFormat) -> f64 {
    match wire {
        WireFormat::Same => f64::from(x as f32),
        WireFormat::Bf16 => bf16::from_f32(x as f32).to_f64(),
        WireFormat::F16 => f16::from_f32(x as f32).to_f64(),
    }
}

/// Two replicas: each sends its gradient, rounded to the wire's precision, and goes on with the sum, rounded again.
#[test]
fn what_travels_is_rounded_as_the_wire_says() {
    // Of the mean over a half of the rows, so half of it is a replica's share.
    let (first, last) = (gradient(&mirrored(1), 0..4), gradient(&mirrored(1), 4..8));
    for wire in [WireFormat::Same, WireFormat::Bf16, WireFormat::F16] {
        let expected: Vec<f64> = (first.iter().zip(&last))
            .map(|(a, b)| rounded(rounded(a / 2.0, wire) + rounded(b / 2.0, wire), wire))
            .collect();
        for ops in OPS {
            let reduction = Reduction::new().cross_device_ops(ops).wire(wire);
            let got = gradient(&mirrored(2).reduction(reduction), 0..8);
            assert_eq!(got, expected, "{ops:?}, {wire:?}");
        }
        // One replica sends nothing.
        let alone = mirrored(1).reduction(Reduction::new().wire(wire));
        assert_eq!(gradient(&alone, 0..4), first, "{wire:?}");
    }
}
