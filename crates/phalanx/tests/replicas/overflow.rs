//! Half precision: what overflows on one replica is skipped by all.

use phalanx::data::Batch;
use phalanx::losses::Loss;
use phalanx::metrics::Metric;
use phalanx::nn::Model;
use phalanx::prelude::*;
use phalanx::replicas::{CrossDeviceOps, Reduction, WireFormat};

use crate::ways::{OPS, PLACES, Place, Way};
use crate::{engine, mirrored, pairs, values};

/// Four rows of small whole numbers, of which one may have a number that makes its gradient, times the first loss scale,
/// more than a float16 holds, though neither the prediction nor the loss is, nor is the gradient more than an f32 holds.
///
/// All other gradients are numbers that float16 has, so that it loses nothing in whatever order they are added.
fn batch(spoiled: Option<usize>) -> Batch {
    let mut x: Vec<f32> = (0..24).map(|i| (i * i % 5 % 3) as f32 - 1.0).collect();
    if let Some(row) = spoiled {
        x[row * 6] = 100.0;
    }
    Batch {
        x: vec![HostTensor::new([4, 6], &x)],
        y: vec![HostTensor::new([4, 1], &[0.5_f32, -1.5, 2.5, -0.5])],
        weight: None,
        first: 0,
    }
}

fn compile(precision: Policy) -> Compile {
    Compile {
        optimizer: Sgd::new(0.125).into(),
        loss: MeanAbsoluteError.into(),
        precision,
        loss_scale: match precision {
            Policy::MixedFloat16 => LossScale::Auto,
            _ => LossScale::DYNAMIC,
        },
        ..Compile::default()
    }
}

fn model() -> Sequential {
    let last = Dense::new(1).kernel_initializer(Initializer::Zeros);
    // Two layers, for a pipeline.
    Sequential::new([6]).add(Flatten).add(last)
}

type Left = (Vec<(String, Vec<f64>)>, i64, Vec<(String, f64)>);

/// Variables, steps counted, and the logs of the last step.
fn train(way: &Way, precision: Policy, rows: &[Option<usize>]) -> Left {
    let model = model().build().unwrap();
    train_model(model, way, compile(precision), &batches(rows))
}

fn batches(rows: &[Option<usize>]) -> Vec<Batch> {
    rows.iter().map(|row| batch(*row)).collect()
}

/// In micro-batches of two rows where there are some.
fn train_model(model: Model, way: &Way, compile: Compile, batches: &[Batch]) -> Left {
    let mut trainer = way
        .strategy(engine(), 2, 64)
        .compile(model, compile)
        .unwrap();
    let mut logs = Vec::new();
    for batch in batches {
        logs = pairs(&trainer.train_on_batch(batch).unwrap());
    }
    (values(&trainer), trainer.iterations(), logs)
}

fn logged(left: &Left, name: &str) -> f64 {
    let found = left.2.iter().find(|(other, _)| other == name);
    found.unwrap().1
}

/// The first row is the first replica's alone, the last the last's. The steps that count are those of one device, to
/// the bit.
#[test]
fn float16_overflows_on_one_replica_are_skipped_by_all() {
    let one = Way::of(Place::OneDevice);
    let clean = train(&one, Policy::MixedFloat16, &[None; 4]);
    assert_eq!(
        (
            logged(&clean, "skipped_steps"),
            logged(&clean, "loss_scale")
        ),
        (0.0, 32768.0)
    );
    let spoiled = [None, Some(0), None, Some(3), None, None];
    // In f32 nothing overflows.
    let wide = train(&one, Policy::Float32, &spoiled[..2]);
    assert_eq!(logged(&wide, "skipped_steps"), 0.0);
    for (turn, place) in PLACES.into_iter().enumerate() {
        let ops = OPS[turn % OPS.len()];
        let way = Way {
            ops,
            ..Way::of(place)
        };
        let left = train(&way, Policy::MixedFloat16, &spoiled);
        assert_eq!(left.1, 4, "{way:?}");
        assert_eq!(logged(&left, "skipped_steps"), 2.0, "{way:?}");
        assert_eq!(logged(&left, "loss_scale"), 8192.0, "{way:?}");
        assert_eq!(left.0, clean.0, "{way:?}");
    }
}

/// The gradients of the first layer overflow, for its input is large; that of the last is not, for the first has zeros.
fn early() -> Model {
    let mut net = Network::new();
    let x = net.input([6]);
    let zeros = Dense::new(6).kernel_initializer(Initializer::Zeros);
    let first = net.add(zeros, &[x]);
    let norm = net.add(BatchNorm::new().momentum(0.5), &[x]);
    let sum = net.add(Add, &[first, norm]);
    let output = net.add(Dense::new(1), &[sum]);
    net.build(&[x], &[output]).unwrap()
}

/// The gradients of the last layer overflow, for its input is large; those of the first are 0, for the last has zeros.
fn late() -> Model {
    let first = Dense::new(8).kernel_initializer(Initializer::Ones);
    let last = Dense::new(1).kernel_initializer(Initializer::Zeros);
    let model = Sequential::new([6]).add(first).add(last);
    model.build().unwrap()
}

/// Gradients overflow in one stage alone, in one of two micro-batches: neither variables and slots of the other stage nor
/// moving statistics, metrics and iterations, which the micro-batches have moved, are others than without that step.
#[test]
fn float16_overflows_of_one_micro_batch_are_skipped_by_all_stages() {
    let pipeline = Way::of(Place::Pipeline(2));
    let compile = || Compile {
        optimizer: Sgd::new(0.125).momentum(0.5).into(),
        metrics: vec![Metric::from(Loss::from(MeanAbsoluteError)).into()],
        ..compile(Policy::MixedFloat16)
    };
    for (name, model) in [("early", early()), ("late", late())] {
        for row in [0, 3] {
            let train = |rows: &[Option<usize>]| {
                train_model(model.clone(), &pipeline, compile(), &batches(rows))
            };
            let clean = train(&[None; 3]);
            let left = train(&[Some(row), Some(row), None, None, None]);
            assert_eq!(left.1, 3, "{name} {row}");
            assert_eq!(logged(&left, "skipped_steps"), 2.0, "{name} {row}");
            assert_eq!(logged(&left, "loss_scale"), 8192.0, "{name} {row}");
            assert_eq!(left.0, clean.0, "{name} {row}");
        }
    }
}

/// The square of a target is more than an f32 holds, its gradient is not.
fn far(row: usize) -> Batch {
    let mut batch = batch(None);
    let mut y = batch.y[0].f32s().to_vec();
    y[row] = 1e20;
    batch.y = vec![HostTensor::new([4, 1], &y)];
    batch
}

#[test]
fn infinite_losses_of_one_replica_are_skipped_by_all() {
    let compile = || Compile {
        loss: MeanSquaredError.into(),
        loss_scale: LossScale::SkipNonFinite,
        ..compile(Policy::Float32)
    };
    for place in PLACES {
        let way = Way::of(place);
        let train = |batches: &[Batch]| {
            let model = model().build().unwrap();
            train_model(model, &way, compile(), batches)
        };
        let clean = train(&[batch(None), batch(None)]);
        let left = train(&[far(0), batch(None), far(3), batch(None)]);
        assert_eq!(left.1, 2, "{way:?}");
        assert_eq!(logged(&left, "skipped_steps"), 2.0, "{way:?}");
        assert_eq!(left.0, clean.0, "{way:?}");
    }
}

/// Halving has not been tried.
#[test]
fn an_infinite_loss_is_no_fault_of_a_scale_above_one() {
    let strategy = Way::of(Place::OneDevice).strategy(engine(), 2, 64);
    let compile = Compile {
        loss: MeanSquaredError.into(),
        ..compile(Policy::Float32)
    };
    let model = model().build().unwrap();
    let mut trainer = strategy.compile(model, compile).unwrap();
    let error = trainer.train_on_batch(&far(0)).unwrap_err().to_string();
    assert!(
        error.starts_with("the loss of step 0 (counted from 0) is infinite")
            && !error.contains("loss scale"),
        "{error}"
    );
}

/// Gradients that an f32 holds and float16 does not are lost only on their way.
#[test]
fn what_overflows_on_a_narrow_wire_is_skipped_by_all() {
    let skipped = |wire: WireFormat| {
        let reduction = Reduction::new()
            .cross_device_ops(CrossDeviceOps::AllReduce)
            .wire(wire);
        let strategy = mirrored(2).reduction(reduction).verify_every(1);
        let mut trainer = strategy.compile(model(), compile(Policy::Float32)).unwrap();
        let logs = trainer.train_on_batch(&batch(Some(3))).unwrap();
        (logs["skipped_steps"], trainer.iterations())
    };
    assert_eq!(skipped(WireFormat::Same), (0.0, 1));
    assert_eq!(skipped(WireFormat::Bf16), (0.0, 1));
    assert_eq!(skipped(WireFormat::F16), (1.0, 0));
}
