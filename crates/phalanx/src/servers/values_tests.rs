//! Tests of the values of a server.

use super::*;
use crate::engine::EngineOptions;
use crate::optim::Sgd;
use crate::servers::contents::HeldArray;

fn array(name: &str) -> HeldArray {
    HeldArray {
        part_of: None,
        name: name.into(),
        dtype: "f32".into(),
        dims: vec![2],
        is_trained: true,
        decays: true,
        constraint: None,
    }
}

/// As `fit` has it without servers.
#[test]
fn an_array_without_a_gradient_is_its_own_average() {
    let engine = Engine::new(&EngineOptions::default()).unwrap();
    let optimizer = Optimizer::from(Sgd::new(1.0)).ema(0.5);
    let held = Held {
        arrays: vec![array("a"), array("b")],
        tables: Vec::new(),
        optimizer: (optimizer.kind().to_owned(), optimizer.config()),
        replicas: 1,
    };
    let description = serde_json::to_string(&held).unwrap();
    let shapes = held.state_shapes(&optimizer);
    let names = held.slots(&optimizer).into_iter().map(|slot| slot.name);
    let names: Vec<String> = ["iterations", "a", "b"]
        .map(String::from)
        .into_iter()
        .chain(names)
        .collect();
    let state_of = |b: f64, average: f64| {
        let value = |name: &str| match name {
            "b" => b,
            "b/average" => average,
            Optimizer::LEARNING_RATE => 1.0,
            _ => 0.0,
        };
        let tensors = names.iter().zip(&shapes);
        let tensors = tensors.map(|(name, shape)| {
            HostTensor::from_f64(shape.clone(), &vec![value(name); shape.len()])
        });
        joined(&tensors.collect::<Vec<_>>())
    };
    let mut values = HeldValues::new(&engine, &[]);
    values.create(&description, &state_of(1.0, 1.0)).unwrap();
    // Another value is set, as by weights that are loaded: the state is taken as it is.
    values.act("set_state", &state_of(3.0, 1.0)).unwrap();
    let spec = GradientSpec {
        connected: vec![0],
        ..GradientSpec::default()
    };
    let gradient = joined(&[HostTensor::new([2], &[1.0f32, 1.0])]);
    let what = serde_json::to_string(&spec).unwrap();
    values.apply(&what, &gradient, None).unwrap();
    let state = values.pull("state", &[]).unwrap();
    let state = divided(shapes.iter().cloned(), &state).unwrap();
    let of = |name: &str| {
        let at = names.iter().position(|other| other == name);
        state[at.unwrap()].to_f64()
    };
    assert_eq!(of("a"), [-1.0; 2]);
    assert_eq!(of("b"), [3.0; 2]);
    assert_eq!(of("b/average"), [3.0; 2]);
}
