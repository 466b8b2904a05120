//! Activations and gradients that a program defines.

use phalanx::nn::{Activation, Lstm, gelu};
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
fn an_own_activation_is_written_by_its_program_alone() {
    let scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "own-parts");
    let path = scratch.join("model");
    let one = OneDeviceStrategy::on(engine());
    let trainer = one.compile(steps(own_tanh()), Compile::default()).unwrap();
    let saved = trainer.saved_model().unwrap();
    saved.save(&path).unwrap();
    let said = SavedModel::load(&path).unwrap_err().to_string();
    let expected = "the activation \"own_tanh\" is a function of the program that wrote the model; build the model there, and load the weights alone (`SavedModel::load_weights`)";
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

#[test]
fn an_activation_that_changes_dims_is_refused() {
    let sum = Activation::custom("sum", |x| x.sum(&[1]));
    let layers = Sequential::new([3]).add(Dense::new(2).activation(sum));
    let said = layers.build().unwrap_err().to_string();
    for part in ["sum", "an activation keeps the dims of f32["] {
        assert!(said.contains(part), "{said}");
    }
}
