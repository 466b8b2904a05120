//! Layers, activations, regularizers and initializers against Keras' numbers, and models that run.

use std::sync::OnceLock;

use phalanx::engine::Engine;
use phalanx::nn::{
    Activation, Conv2d, Cx, Dense, Dropout, Flatten, MaxPool2d, Model, Sequential, relu,
};
use phalanx_graph::{Graph, HostTensor, Tensor};

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::cpu().unwrap())
}

/// Builds a program of tensors, runs it and reads its results.
fn run(
    inputs: &[HostTensor],
    build: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
) -> Vec<HostTensor> {
    let graph = Graph::new();
    let parameter = |(i, input): (usize, &HostTensor)| {
        graph.parameter(&format!("input {i}"), input.shape().clone())
    };
    let parameters: Vec<Tensor> = inputs.iter().enumerate().map(parameter).collect();
    let outputs = build(&graph, &parameters);
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("output", output)).collect();
    let program = graph.finish(&named).unwrap();
    let compiled = engine().compile("test", &program).unwrap();
    let buffers: Vec<_> = inputs
        .iter()
        .map(|input| engine().put(0, input).unwrap())
        .collect();
    let arguments: Vec<_> = buffers.iter().collect();
    let results = compiled.run(&[&arguments]).unwrap().swap_remove(0);
    let get = |(buffer, output): (_, &Tensor)| engine().get(buffer, &output.shape()).unwrap();
    results.iter().zip(&outputs).map(get).collect()
}

/// The outputs of a model in inference mode.
fn predict(model: &Model, variables: &[HostTensor], input: &HostTensor) -> HostTensor {
    let inputs = [variables, std::slice::from_ref(input)].concat();
    let outputs = run(&inputs, |graph, parameters| {
        let (variables, inputs) = parameters.split_at(variables.len());
        let mut cx = Cx::new(graph, model, variables);
        model.call(&mut cx, inputs)
    });
    outputs.into_iter().next().unwrap()
}

#[test]
fn a_stack_of_layers_traces_compiles_and_runs() {
    let model = Sequential::new([8, 8, 1])
        .add(Conv2d::new(4, 3).activation(relu))
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dropout::new(0.5))
        .add(Dense::new(10).activation(Activation::Softmax))
        .build()
        .unwrap();
    let names: Vec<&str> = model
        .variables()
        .iter()
        .map(|variable| variable.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["conv2d/kernel", "conv2d/bias", "dense/kernel", "dense/bias"]
    );
    let variables = model.init(7).unwrap();
    let values: Vec<f32> = (0..128).map(|i| (i as f32 * 0.37).sin()).collect();
    let output = predict(&model, &variables, &HostTensor::new([2, 8, 8, 1], &values));
    assert_eq!(output.dims(), [2, 10]);
    for row in output.f32s().chunks(10) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }
}
