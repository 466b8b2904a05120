//! Activations and gradients that a program defines.

use phalanx::nn::{Activation, Bidirectional, Lstm, Registry, gelu};
use phalanx_testkit::Scratch;

use super::*;

fn own_tanh() -> Activation {
    Activation::custom("own_tanh", |x| 1.0 - 2.0 / ((x * 2.0).exp() + 1.0))
}

/// `tanh` in two layers, one of which uses it in each step.
fn steps(tanh: Activation) -> Model {
    let layers = Sequential::new([3, 1]).add(Lstm::new(4).activation(tanh));
    layers.add(Dense::new(1).activation(tanh)).build().unwrap()
}

/// A training with it is the training with ours.
#[test]
fn an_own_activation_trains_as_ours() {
    let record = &oracle::records("own_parts.json")[0];
    let data = data(record).map(|mut example| {
        let x: Vec<f32> = example.x[0].values().unwrap();
        example.x[0] = HostTensor::new([3, 1], &x);
        Ok(example)
    });
    let trained = |activation: Activation| {
        let one = OneDeviceStrategy::on(engine());
        let compile = compile(Sgd::new(0.1).into());
        let mut trainer = one.compile(steps(activation), compile).unwrap();
        trainer.fit(&data.batch(6), quiet(2)).unwrap();
        trainer.variables().unwrap()
    };
    let (own, ours) = (trained(own_tanh()), trained(Activation::Tanh));
    for ((name, own), (_, ours)) in own.iter().zip(&ours) {
        assert_close(name, &own.to_f64(), &ours.to_f64(), TOLERANCE);
    }
}

#[test]
fn an_own_activation_that_is_not_registered_is_named() {
    let scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "own-parts");
    let path = scratch.join("model");
    let one = OneDeviceStrategy::on(engine());
    let trainer = one.compile(steps(own_tanh()), Compile::default()).unwrap();
    let saved = trainer.saved_model().unwrap();
    saved.save(&path).unwrap();
    let said = SavedModel::load(&path).unwrap_err().to_string();
    let expected = "the activation \"own_tanh\" is a function of the program that wrote the model, and not registered here; add it by `Registry::with_activation`";
    assert!(
        said.contains(expected) && said.contains("layers[0].lstm"),
        "{said}"
    );
    let said = saved.save_keras(scratch.join("model.keras")).unwrap_err();
    assert!(
        said.to_string()
            .contains("Keras' files have no name for its activation `own_tanh`"),
        "{said}"
    );
    assert_eq!(own_tanh(), own_tanh());
    assert_ne!(own_tanh(), Activation::custom("own_tanh", |x| x.tanh()));
    assert_ne!(own_tanh(), gelu());
}

/// `x^2` whose gradient is another than the derivative.
fn half_square() -> Activation {
    Activation::custom("half_square", |x| {
        x.square().with_gradient(&[x], |g, x| vec![g * &x[0]])
    })
}

/// In a layer around a layer and in a model in a model too, and with the gradient that the function claims.
#[test]
fn a_registered_activation_is_read_back() {
    let scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "own-parts-registered");
    let inner = Sequential::new([8])
        .add(Dense::new(4).activation(half_square()))
        .build()
        .unwrap();
    let both = Bidirectional::new(Lstm::new(4).activation(own_tanh()));
    let model = Sequential::new([3, 1])
        .add(both)
        .add(inner)
        .add(Dense::new(1))
        .build()
        .unwrap();
    let one = OneDeviceStrategy::on(engine());
    let record = &oracle::records("own_parts.json")[0];
    let data = data(record).map(|mut example| {
        let x: Vec<f32> = example.x[0].values().unwrap();
        example.x[0] = HostTensor::new([3, 1], &x);
        Ok(example)
    });
    let trained = |mut trainer: Trainer| {
        trainer.fit(&data.batch(6), quiet(2)).unwrap();
        trainer.variables().unwrap()
    };
    let written = one.compile(model, compile(Sgd::new(0.1).into())).unwrap();
    let saved = written.saved_model().unwrap();
    saved.save(scratch.join("model")).unwrap();
    let registry = Registry::standard().with_activation(own_tanh()).unwrap();
    let said = SavedModel::load_with(scratch.join("model"), &registry)
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("the activation \"half_square\" is a function") && !said.contains("own_tanh"),
        "{said}"
    );
    let registry = registry.with_activation(half_square()).unwrap();
    let read = SavedModel::load_with(scratch.join("model"), &registry).unwrap();
    let read = one.compile(read, compile(Sgd::new(0.1).into())).unwrap();
    assert_eq!(trained(written), trained(read));
    // Another read on this thread knows of none.
    SavedModel::load(scratch.join("model")).unwrap_err();
    for (activation, part) in [
        (half_square(), "an activation `half_square` already"),
        (Activation::Relu, "got Relu"),
    ] {
        let said = registry
            .clone()
            .with_activation(activation)
            .unwrap_err()
            .to_string();
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn an_activation_that_changes_dims_is_refused() {
    let sum = Activation::custom("sum", |x| x.sum(&[1]));
    let layers = Sequential::new([3]).add(Dense::new(2).activation(sum));
    let said = layers.build().unwrap_err().to_string();
    for part in ["sum", "an activation keeps the dims of f32["] {
        assert!(said.contains(part), "{said}");
    }
}
