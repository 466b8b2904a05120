//! Predictions and evaluations with normalizations folded into convolutions and kernels transformed once: the results of the whole program, with
//! the values of now, on every strategy.

use phalanx::data::Batch;
use phalanx::engine::{Engine, EngineOptions, KernelsMode};
use phalanx::import::LoadWeights;
use phalanx::nn::{Model, Network};
use phalanx::prelude::*;
use phalanx_testkit::{Random, Scratch};

const ROWS: usize = 6;
const IMAGE: [usize; 3] = [12, 12, 16];
const CLASSES: usize = 3;

fn engine(kernels: KernelsMode) -> Engine {
    Engine::new(&EngineOptions {
        kernels,
        cpu_devices: 2,
        quick_compile: phalanx_testkit::is_quick_commit(env!("CARGO_CRATE_NAME")),
        ..EngineOptions::default()
    })
    .unwrap()
}

/// 3x3 convolutions by tiles with and without a bias, a depthwise one, one of 1x1 with steps, each with a normalization; one without.
fn model() -> Model {
    let bare = || Conv2d::new(16, (3, 3)).padding(Padding::Same);
    Sequential::new(IMAGE)
        .add(bare().use_bias(false))
        .add(BatchNorm::new())
        .add(ActivationLayer::new(relu))
        .add(DepthwiseConv2d::new((3, 3)))
        .add(BatchNorm::new().scale(false))
        .add(ActivationLayer::new(relu6))
        .add(bare())
        .add(BatchNorm::new())
        .add(bare().activation(relu))
        .add(Conv2d::new(24, (1, 1)).strides((2, 2)))
        .add(BatchNorm::new().center(false))
        .add(Flatten)
        .add(Dense::new(CLASSES))
        .build()
        .unwrap()
}

/// Results that are used twice, residual connections, groups, steps, distances between taps, edges that are cut off, and a normalization that
/// is not trained.
fn branched() -> Model {
    let mut net = Network::new();
    let bare = |filters, side| Conv2d::new(filters, (side, side)).padding(Padding::Same);
    let x = net.input(IMAGE);
    let both = net.add(bare(16, 3), &[x]);
    let normal = net.add(BatchNorm::new(), &[both]);
    let sum = net.add(Add, &[normal, both]);
    let bent = net.add(ActivationLayer::new(relu), &[sum]);
    let inner = net.add(bare(16, 3).use_bias(false), &[bent]);
    let inner = net.add(
        BatchNorm::new().named("fixed_norm").trainable(false),
        &[inner],
    );
    let sum = net.add(Add, &[inner, bent]);
    let mut last = net.add(ActivationLayer::new(relu), &[sum]);
    let valid = Conv2d::new(16, (3, 3));
    for convolution in [
        bare(32, 3).strides((2, 2)),
        bare(32, 3),
        bare(32, 3).groups(4),
        bare(16, 3).dilation((2, 2)),
        bare(16, 5),
        valid,
    ] {
        let convolved = net.add(convolution, &[last]);
        let normal = net.add(BatchNorm::new(), &[convolved]);
        last = net.add(ActivationLayer::new(relu), &[normal]);
    }
    let flat = net.add(Flatten, &[last]);
    let logits = net.add(Dense::new(CLASSES), &[flat]);
    net.build(&[x], &[logits]).unwrap()
}

fn models() -> [Model; 2] {
    [model(), branched()]
}

fn compile() -> Compile {
    Compile {
        optimizer: Sgd::new(0.05).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    }
}

fn batch_of(rows: usize) -> Batch {
    let mut random = Random::new(5);
    let count = rows * IMAGE.iter().product::<usize>();
    let x: Vec<f32> = (0..count).map(|_| normal(&mut random) as f32).collect();
    let y: Vec<i32> = (0..rows).map(|row| (row % CLASSES) as i32).collect();
    Batch {
        x: vec![HostTensor::new([rows, 12, 12, 16], &x)],
        y: vec![HostTensor::new([rows], &y)],
        weight: None,
        first: 0,
    }
}

fn batch() -> Batch {
    batch_of(ROWS)
}

/// Nearly Gaussian, of variance 1: a sum of twelve.
fn normal(random: &mut Random) -> f64 {
    let uniform = (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20));
    uniform.sum::<f64>() - 6.0
}

type Values = Vec<(String, HostTensor)>;

/// Random values: negative and zero scales, variances with a zero.
fn values(trainer: &Trainer, seed: u64) -> Values {
    let mut random = Random::new(seed);
    let variables = trainer.variables().unwrap().into_iter();
    let drawn = variables.map(|(name, old)| {
        let mut values: Vec<f64> = (0..old.f32s().len()).map(|_| normal(&mut random)).collect();
        match name.rsplit('/').next() {
            Some("moving_variance") => {
                values.iter_mut().for_each(|value| *value = value.abs());
                values[1] = 0.0;
            }
            Some("gamma") => values[2] = 0.0,
            Some("kernel") | Some("depthwise_kernel") => {
                values.iter_mut().for_each(|value| *value *= 0.1);
            }
            _ => {}
        }
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        (name, HostTensor::new(old.dims().to_vec(), &values))
    });
    drawn.collect()
}

fn strategies(engine: &Engine, model: &Model) -> Vec<(&'static str, Trainer)> {
    let mirrored = MirroredStrategy::on(engine).devices(["cpu:0", "cpu:1"]);
    let central = CentralStorageStrategy::on(engine).compute_devices(["cpu:0", "cpu:1"]);
    let one = OneDeviceStrategy::on(engine);
    vec![
        ("one device", one.compile(model.clone(), compile()).unwrap()),
        (
            "mirrored",
            mirrored.unwrap().compile(model.clone(), compile()).unwrap(),
        ),
        (
            "central storage",
            central.unwrap().compile(model.clone(), compile()).unwrap(),
        ),
    ]
}

/// A trainer on one device.
fn trainer(kernels: KernelsMode, model: Model, compile: Compile) -> Trainer {
    let engine = engine(kernels);
    OneDeviceStrategy::on(&engine)
        .compile(model, compile)
        .unwrap()
}

/// The outputs and the loss of a batch.
fn results(trainer: &mut Trainer, batch: &Batch) -> (Vec<f32>, f64) {
    let outputs = trainer.predict_on_batch(&batch.x).unwrap();
    let logs = trainer.test_on_batch(batch).unwrap();
    (outputs[0].f32s().to_vec(), logs.get("loss").unwrap())
}

/// Of the largest output. Ten layers follow each other, tiles round by some 1e-6 each, and a channel whose variance is 0 is multiplied by 31.
const TOLERANCE: f32 = 2e-5;

fn assert_close(what: &str, found: &(Vec<f32>, f64), expected: &(Vec<f32>, f64)) {
    let largest = expected.0.iter().fold(1.0_f32, |most, x| most.max(x.abs()));
    for (found, expected) in found.0.iter().zip(&expected.0) {
        let apart = (found - expected).abs() / largest;
        assert!(
            apart <= TOLERANCE,
            "{what}: {found}, expected {expected}, {apart:e} of the largest apart"
        );
    }
    let apart = (found.1 - expected.1).abs() / expected.1.abs().max(1.0);
    assert!(
        apart <= 1e-5,
        "{what}: {}, expected {}",
        found.1,
        expected.1
    );
}

/// What XLA alone computes with the values of another trainer.
struct Whole(Trainer);

impl Whole {
    fn new(model: Model) -> Self {
        Self(trainer(KernelsMode::Off, model, compile()))
    }

    fn results(&mut self, values: &Values, batch: &Batch) -> (Vec<f32>, f64) {
        self.0.set_variables(values).unwrap();
        results(&mut self.0, batch)
    }

    /// Compares the results of a trainer with its values of now.
    fn check(&mut self, what: &str, trainer: &mut Trainer, batch: &Batch) -> (Vec<f32>, f64) {
        let expected = self.results(&trainer.variables().unwrap(), batch);
        assert_close(what, &results(trainer, batch), &expected);
        expected
    }
}

#[test]
fn results_follow_every_change_of_a_value() {
    let batch = batch();
    let folder = Scratch::temporary("prepared");
    let (file, saved) = (
        folder.join("weights.safetensors"),
        folder.join("checkpoint"),
    );
    for model in models() {
        let mut whole = Whole::new(model.clone());
        for (name, mut trainer) in strategies(&engine(KernelsMode::Always), &model) {
            let mut check = |trainer: &mut Trainer| whole.check(name, trainer, &batch);
            trainer.set_variables(&values(&trainer, 1)).unwrap();
            trainer.save_weights(&file).unwrap();
            let of_first = check(&mut trainer);
            // Once more, with what was prepared.
            assert_close(name, &check(&mut trainer), &of_first);
            let second = values(&trainer, 2);
            for one in &second {
                trainer.set_variables(std::slice::from_ref(one)).unwrap();
                if !one.0.contains("dense") {
                    check(&mut trainer);
                }
            }
            trainer.save_checkpoint(&saved).unwrap();
            let of_second = check(&mut trainer);
            assert_ne!(of_first, of_second);
            for _ in 0..2 {
                let before = check(&mut trainer);
                trainer.train_on_batch(&batch).unwrap();
                assert_ne!(check(&mut trainer), before);
            }
            trainer.restore_checkpoint(&saved).unwrap();
            assert_close(name, &check(&mut trainer), &of_second);
            trainer
                .set_trainable_where(false, |path| path.contains("norm"))
                .unwrap();
            assert_close(name, &check(&mut trainer), &of_second);
            trainer.train_on_batch(&batch).unwrap();
            assert_ne!(check(&mut trainer), of_second);
            trainer.load_weights(&file, LoadWeights::default()).unwrap();
            assert_close(name, &check(&mut trainer), &of_first);
        }
    }
}

#[test]
fn batches_of_many_sizes_have_their_own_results() {
    let model = branched();
    let mut whole = Whole::new(model.clone());
    let mut trainer = trainer(KernelsMode::Always, model, compile());
    trainer.set_variables(&values(&trainer, 4)).unwrap();
    // Of these sizes two, one and none of the kinds of layers have few tiles.
    let batches = [3, 40, 80].map(batch_of);
    for batch in batches.iter().chain(&batches).chain(&batches[..1]) {
        whole.check("sizes", &mut trainer, batch);
    }
    trainer.set_variables(&values(&trainer, 5)).unwrap();
    for batch in &batches {
        whole.check("sizes after a change", &mut trainer, batch);
    }
}

#[test]
fn validations_between_epochs_have_the_values_of_their_epoch() {
    let model = branched();
    let mut whole = trainer(KernelsMode::Off, model.clone(), compile());
    let Batch { x, y, .. } = batch();
    let data = Dataset::from_arrays(x[0].clone(), y[0].clone())
        .unwrap()
        .batch(4);
    for (name, mut trainer) in strategies(&engine(KernelsMode::Always), &model) {
        let mut before = f64::NAN;
        for epochs in [1, 2] {
            let fit = Fit::epochs(epochs)
                .progress(Progress::Silent)
                .validation(&data);
            let history = trainer.fit(&data, fit).unwrap();
            let found = history.of("val_loss").last().copied().unwrap();
            whole.set_variables(&trainer.variables().unwrap()).unwrap();
            let expected = whole.evaluate(&data).unwrap().get("loss").unwrap();
            let again = trainer.evaluate(&data).unwrap().get("loss").unwrap();
            for found in [found, again] {
                let apart = (found - expected).abs();
                assert!(
                    apart <= 1e-5 * expected.abs().max(1.0),
                    "{name}: {found}, expected {expected}"
                );
            }
            let is_other = before.is_nan() || (expected - before).abs() > 1e-3;
            assert!(is_other, "{name}: {expected} after {before}");
            before = expected;
        }
    }
}

#[test]
fn mixed_precisions_have_the_values_of_now() {
    let batch = batch();
    for precision in [Policy::MixedBfloat16, Policy::MixedFloat16] {
        for model in models() {
            let compile = || Compile {
                precision,
                ..compile()
            };
            let mut whole = trainer(KernelsMode::Off, model.clone(), compile());
            let mut mixed = trainer(KernelsMode::Always, model, compile());
            let mut before = Vec::new();
            for seed in [1, 2] {
                let mut values = values(&mixed, seed);
                // What is divided by the root of a variance of 0 is no f16.
                let variances = values.iter_mut();
                for (_, value) in variances.filter(|(name, _)| name.ends_with("moving_variance")) {
                    let larger: Vec<f32> = value.f32s().iter().map(|x| x + 1.0).collect();
                    *value = HostTensor::new(value.dims().to_vec(), &larger);
                }
                mixed.set_variables(&values).unwrap();
                whole.set_variables(&values).unwrap();
                let expected = results(&mut whole, &batch).0;
                let largest = expected.iter().fold(1.0_f32, |most, x| most.max(x.abs()));
                let apart = |others: &[f32]| {
                    let pairs = expected.iter().zip(others);
                    let apart = pairs.map(|(a, b)| (a - b).abs() / largest);
                    apart.fold(0.0, |most: f32, x| if x >= most { x } else { most })
                };
                // The second time with what was prepared.
                let [first, again] = [(); 2].map(|()| results(&mut mixed, &batch).0);
                for found in [&first, &again] {
                    assert!(found.iter().all(|x| x.is_finite()));
                    assert!(apart(found) < 0.05, "{precision:?}: {}", apart(found));
                }
                let is_other = seed == 1 || apart(&before) > 0.2;
                assert!(is_other, "{precision:?}: {}", apart(&before));
                before = first;
            }
        }
    }
}

#[test]
fn a_nan_of_a_variable_reaches_the_outputs() {
    let batch = batch();
    let mut trainer = trainer(KernelsMode::Always, model(), compile());
    let sound = values(&trainer, 3);
    for (index, (name, value)) in sound.iter().enumerate() {
        let mut broken = sound.clone();
        let mut numbers = value.f32s().to_vec();
        numbers[0] = f32::NAN;
        broken[index].1 = HostTensor::new(value.dims().to_vec(), &numbers);
        trainer.set_variables(&broken).unwrap();
        let outputs = trainer.predict_on_batch(&batch.x).unwrap();
        assert!(outputs[0].f32s().iter().any(|x| x.is_nan()), "{name}");
    }
}
