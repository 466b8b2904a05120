//! Layers frozen and unfrozen in the middle of a training.

use phalanx::data::Batch;
use phalanx::prelude::*;

fn batch(number: usize) -> Batch {
    let x: Vec<f32> = (0..48)
        .map(|i| ((i * 37 + i / 6 * 11 + number * 5) % 29) as f32 / 14.5 - 1.0)
        .collect();
    let y: Vec<i32> = (0..8).map(|i| ((i * i + number) % 3) as i32).collect();
    Batch {
        x: vec![HostTensor::new([8, 6], &x)],
        y: vec![HostTensor::new([8], &y)],
        weight: None,
        first: 0,
    }
}

/// A backbone with batch normalization, and a head.
fn model() -> Model {
    let backbone = Sequential::new([6])
        .named("backbone")
        .add(Dense::new(5).activation(tanh))
        .add(BatchNorm::new())
        .build()
        .unwrap();
    let model = Sequential::new([6]).add(backbone);
    model.add(Dense::new(3).named("head")).build().unwrap()
}

fn compile() -> Compile {
    Compile {
        optimizer: Optimizer::from(Sgd::new(0.05).momentum(0.9)).ema(0.5),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    }
}

fn values(trainer: &Trainer, prefix: &str) -> Vec<f32> {
    let variables = trainer.variables().unwrap();
    let chosen = variables
        .iter()
        .filter(|(name, _)| name.starts_with(prefix));
    chosen.flat_map(|(_, value)| value.f32s()).collect()
}

fn train(trainer: &mut Trainer, steps: std::ops::Range<usize>) {
    for number in steps {
        trainer.train_on_batch(&batch(number)).unwrap();
    }
}

#[test]
fn a_live_trainer_freezes_and_unfreezes() {
    let strategy = OneDeviceStrategy::new().unwrap();
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    train(&mut trainer, 0..3);

    trainer.freeze("backbone").unwrap();
    assert!(!trainer.model().variables()[0].trainable);
    let (backbone, head) = (values(&trainer, "backbone"), values(&trainer, "head"));
    let fresh = strategy.compile(trainer.saved_model().unwrap(), compile());
    let mut fresh = fresh.unwrap();
    train(&mut trainer, 3..5);
    // The moving statistics too: frozen batch normalization infers.
    assert_eq!(values(&trainer, "backbone"), backbone);
    assert_ne!(values(&trainer, "head"), head);
    assert_eq!(trainer.iterations(), 5);
    // The momentum of the head was kept, which a compilation anew does not have.
    train(&mut fresh, 3..5);
    assert_ne!(values(&fresh, "head"), values(&trainer, "head"));

    let count = trainer.set_trainable_where(true, |path| path.starts_with("backbone/"));
    assert_eq!(count.unwrap(), 2);
    train(&mut trainer, 5..6);
    let now = values(&trainer, "backbone");
    assert!(
        now.iter().zip(&backbone).all(|(now, then)| now != then),
        "{now:?}"
    );
    assert_eq!(trainer.iterations(), 6);
}

#[test]
fn freezing_equals_a_compilation_that_way() {
    let strategy = OneDeviceStrategy::new().unwrap();
    // Without momentum nothing is lost by compiling anew.
    let compile = Compile {
        optimizer: Sgd::new(0.05).into(),
        ..compile()
    };
    let mut trainer = strategy.compile(model(), compile.clone()).unwrap();
    train(&mut trainer, 0..2);
    for frozen in [true, false] {
        let layers = trainer.set_trainable_where(!frozen, |path| path != "head");
        assert_eq!(layers.unwrap(), 2);
        let saved = trainer.saved_model().unwrap();
        assert_eq!(saved.model().variables()[0].trainable, !frozen);
        let mut other = strategy.compile(saved, compile.clone()).unwrap();
        train(&mut trainer, 2..4);
        train(&mut other, 2..4);
        assert_eq!(values(&trainer, ""), values(&other, ""));
    }
}

#[test]
fn newcomers_begin_with_fresh_slots_and_others_keep_theirs() {
    let strategy = OneDeviceStrategy::new().unwrap();
    // In one training the head is frozen and unfrozen: its momentum is gone, that of the backbone is not.
    let mut whole = strategy.compile(model(), compile()).unwrap();
    let mut changed = strategy.compile(model(), compile()).unwrap();
    train(&mut whole, 0..2);
    train(&mut changed, 0..2);
    changed.freeze("head").unwrap();
    changed.unfreeze("head").unwrap();
    train(&mut whole, 2..3);
    train(&mut changed, 2..3);
    assert_eq!(values(&whole, "backbone"), values(&changed, "backbone"));
    assert_ne!(values(&whole, "head"), values(&changed, "head"));
}

#[test]
fn a_path_that_is_not_there_changes_nothing() {
    let strategy = OneDeviceStrategy::new().unwrap();
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    let error = trainer.freeze("backbon").unwrap_err().to_string();
    assert!(error.contains("did you mean `backbone"), "{error}");
    train(&mut trainer, 0..1);
    trainer.set_trainable_where(false, |_| true).unwrap();
    let before = values(&trainer, "");
    train(&mut trainer, 1..2);
    assert_eq!(values(&trainer, ""), before);
}

#[test]
fn evaluation_follows_what_is_frozen() {
    let strategy = OneDeviceStrategy::new().unwrap();
    let dense = Dense::new(3).kernel_regularizer(Regularizer::L2 { l2: 0.5 });
    let model = Sequential::new([6]).add(dense.named("head"));
    let mut trainer = strategy.compile(model.build().unwrap(), compile()).unwrap();
    let before = trainer.test_on_batch(&batch(0)).unwrap()["loss"];
    trainer.freeze("head").unwrap();
    let frozen = trainer.test_on_batch(&batch(0)).unwrap()["loss"];
    let saved = trainer.saved_model().unwrap();
    let mut fresh = strategy.compile(saved, compile()).unwrap();
    assert_eq!(frozen, fresh.test_on_batch(&batch(0)).unwrap()["loss"]);
    assert!(frozen < before, "{frozen} {before}");
    trainer.unfreeze("head").unwrap();
    assert_eq!(trainer.test_on_batch(&batch(0)).unwrap()["loss"], before);
}
