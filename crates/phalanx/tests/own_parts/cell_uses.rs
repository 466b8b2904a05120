//! Recurrent layers around cells: as the layers of their names, from batch to batch, in files, in 16 bits, and mistakes.

use std::slice::from_ref;

use phalanx::nn::{RnnCell, layer_from_config};
use phalanx_graph::gradients;
use phalanx_testkit::{Array, Interpreter, Scratch};
use serde_json::json;

use super::cells::{Memory, Minimal};
use super::*;

fn memory() -> Memory {
    Memory { units: 3, slots: 2 }
}

fn predictor(model: impl IntoModel, precision: Policy) -> Trainer {
    let compile = Compile {
        precision,
        ..Compile::default()
    };
    let one = OneDeviceStrategy::on(engine());
    one.compile(model, compile).unwrap()
}

/// Numbers of which none is zero, and no two neighbours are near each other.
fn scattered(dims: &[usize], first: usize) -> HostTensor {
    let each = first..first + dims.iter().product::<usize>();
    let values = each.map(|i| (i * 29 % 37) as f32 / 18.0 - 0.99);
    HostTensor::new(dims, &values.collect::<Vec<f32>>())
}

fn predicted(trainer: &mut Trainer, x: &[HostTensor]) -> Vec<Vec<f64>> {
    let outputs = trainer.predict_on_batch(x).unwrap();
    outputs.iter().map(HostTensor::to_f64).collect()
}

/// Gives each variable, by its place, numbers that no initializer has.
fn scatter_variables(trainer: &mut Trainer) {
    let variables = trainer.variables().unwrap().into_iter().enumerate();
    let values = variables.map(|(at, (name, value))| (name, scattered(value.dims(), 5 * at)));
    trainer.set_variables(&values.collect::<Vec<_>>()).unwrap();
}

fn cells_and_layers() -> Vec<(Vec<LayerSpec>, LayerSpec)> {
    let relu_gru = || {
        Gru::new(4)
            .reset_after(false)
            .activation(relu)
            .use_bias(false)
    };
    let steps = |rnn: Rnn| rnn.return_sequences(true);
    let lstm = || Lstm::new(4).return_sequences(true);
    let simple = SimpleRnn::new(4).return_sequences(true);
    vec![
        (vec![Lstm::new(4).into()], Rnn::new(LstmCell::new(4)).into()),
        (
            vec![Gru::new(4).go_backwards(true).into()],
            Rnn::new(GruCell::new(4)).go_backwards(true).into(),
        ),
        (
            vec![relu_gru().into()],
            Rnn::new(GruCell::from(relu_gru())).into(),
        ),
        (
            vec![simple.into()],
            steps(Rnn::new(SimpleRnnCell::new(4))).into(),
        ),
        (
            vec![lstm().into(), relu_gru().into()],
            Rnn::new(LstmCell::new(4))
                .cell(GruCell::from(relu_gru()))
                .into(),
        ),
        (
            vec![Bidirectional::new(lstm()).into()],
            Bidirectional::new(steps(Rnn::new(LstmCell::new(4)))).into(),
        ),
    ]
}

/// With the same values, and padding at the first steps of a row and at the last of another.
#[test]
fn cells_of_the_library_are_its_layers() {
    let mut x = scattered(&[4, 5, 3], 0).f32s();
    x[9..21].fill(0.0);
    let x = HostTensor::new([4, 5, 3], &x);
    for (precision, tolerance) in [(Policy::Float32, 1e-5), (Policy::MixedBfloat16, 0.06)] {
        for (layers, cells) in cells_and_layers() {
            let what = format!("{:?} {}", precision, cells.config());
            let [expected, got] = [layers, vec![cells]].map(|layers| {
                let steps = Sequential::new([5, 3]).add(Masking::new(0.0));
                let net = layers.into_iter().fold(steps, Sequential::add);
                let mut trainer = predictor(net.add(Dense::new(2)), precision);
                scatter_variables(&mut trainer);
                predicted(&mut trainer, from_ref(&x)).remove(0)
            });
            assert_close(&what, &got, &expected, tolerance);
        }
    }
}

/// Steps in two batches, the states handed on: what Keras' `stateful` does.
#[test]
fn states_are_handed_on() {
    let layer = || Rnn::new(memory()).cell(Minimal { units: 2 });
    let model = |steps: usize, given: bool| {
        let mut net = Network::new();
        let mut nodes = vec![net.input([steps, 2])];
        if given {
            nodes.extend([3, 2, 2].map(|size| net.input([size])));
        }
        let rnn = net.layer(layer().return_state(true).return_sequences(true));
        let outputs = net.call_many(rnn, &nodes);
        let mut trainer = predictor(net.build(&nodes, &outputs).unwrap(), Policy::Float32);
        scatter_variables(&mut trainer);
        trainer
    };
    let x = scattered(&[1, 5, 2], 0);
    let cut =
        |from: usize, to: usize| HostTensor::new([1, to - from, 2], &x.f32s()[2 * from..2 * to]);
    let whole = predicted(&mut model(5, false), from_ref(&x));
    let mut first = model(3, false).predict_on_batch(&[cut(0, 3)]).unwrap();
    let mut given = first.split_off(1);
    given.insert(0, cut(3, 5));
    let mut second = predicted(&mut model(2, true), &given);
    second[0] = [first[0].to_f64(), second[0].clone()].concat();
    for (at, (got, expected)) in second.iter().zip(&whole).enumerate() {
        assert_close(&format!("output {at}"), got, expected, 1e-6);
    }
}

/// Saved, read with the cell of the program, and read without it.
#[test]
fn cells_are_read_back_from_files() {
    let scratch = Scratch::temporary("own-cells");
    let path = scratch.join("model");
    let layers = Sequential::new([5, 2])
        .add(Bidirectional::new(
            Rnn::new(memory()).return_sequences(true),
        ))
        .add(Rnn::new(LstmCell::new(2)).cell(memory()).unroll(true));
    let mut written = predictor(layers, Policy::Float32);
    scatter_variables(&mut written);
    let saved = written.saved_model().unwrap();
    saved.save(&path).unwrap();
    let size = |settings: &Value, name: &str| settings[name].as_u64().unwrap_or(0) as usize;
    let read_memory = move |settings: &Value| {
        Ok(Memory {
            units: size(settings, "units"),
            slots: size(settings, "slots"),
        })
    };
    let registry = Registry::standard()
        .with_cell("memory", read_memory)
        .unwrap();
    let read = SavedModel::load_with(&path, &registry).unwrap();
    let x = [scattered(&[3, 5, 2], 1)];
    let mut read = predictor(read, Policy::Float32);
    assert_eq!(predicted(&mut read, &x), predicted(&mut written, &x));

    let said = |error: phalanx::Error| error.to_string();
    let error = said(SavedModel::load(&path).unwrap_err());
    let expected = "unknown cell `memory`";
    assert!(
        error.contains(expected) && error.contains("Registry::with_cell"),
        "{error}"
    );
    let error = said(saved.save_keras(scratch.join("model.keras")).unwrap_err());
    assert!(
        error.contains(
            "layer `bidirectional` (bidirectional): layers around cells are not written for Keras"
        ),
        "{error}"
    );
    for kind in ["memory", "lstm"] {
        let error = registry.clone().with_cell(kind, read_memory).unwrap_err();
        let expected = format!("there is a kind of cell `{kind}` already; give yours another name");
        assert_eq!(error.to_string(), expected);
    }
}

/// In Keras' files a cell is in its layer, and several are by the names of their classes.
#[test]
fn weights_are_where_keras_has_them() {
    let scratch = Scratch::temporary("weights-of-cells");
    let written = |layer: Rnn, name: &str| {
        let path = scratch.join(name);
        let trainer = predictor(Sequential::new([5, 2]).add(layer), Policy::Float32);
        trainer.saved_model().unwrap().save_weights(&path).unwrap();
        let bytes = std::fs::read(path).unwrap();
        move |group: &str| {
            let named = [b"\0", group.as_bytes(), b"\0"].concat();
            bytes.windows(named.len()).any(|part| part == named)
        }
    };
    let has = written(Rnn::new(memory()), "one.weights.h5");
    assert!(has("rnn") && has("cell") && !has("cells") && !has("memory"));
    let cells = Rnn::new(LstmCell::new(2)).cell(memory());
    let has = written(cells.cell(LstmCell::new(3)), "three.weights.h5");
    let all = ["rnn", "cell", "cells", "lstm_cell", "memory", "lstm_cell_1"];
    assert!(all.into_iter().all(has));
}

/// Gradients of a layer around both cells, backwards and forwards, against central differences in f64.
#[test]
fn gradients_of_cells_are_the_derivatives() {
    for unroll in [false, true] {
        let rnn = Rnn::new(memory())
            .cell(Minimal { units: 2 })
            .cell(GruCell::new(2));
        let both = Bidirectional::new(rnn.return_sequences(true).unroll(unroll));
        let model = Sequential::new([3, 2]).add(both).build().unwrap();
        let graph = Graph::new();
        let x = graph.parameter("x", Shape::f32([2, 3, 2]));
        let mask = graph.constant(HostTensor::new(
            [2, 3],
            &[false, true, true, true, true, false],
        ));
        let specs = model.variables().iter();
        let variables: Vec<Tensor> = specs
            .map(|spec| graph.parameter(&spec.name, spec.shape.clone()))
            .collect();
        let mut cx = Cx::new(&graph, &model, &variables).with_training(true);
        cx.set_padding_mask(&x, &mask);
        let y = model.call(&mut cx, from_ref(&x)).remove(0);
        let loss = (&y * graph.constant(scattered(&y.dims(), 3))).sum_all();
        let wanted: Vec<&Tensor> = [&x].into_iter().chain(&variables).collect();
        let slopes: Vec<Tensor> = gradients(&loss, &wanted)
            .into_iter()
            .map(Option::unwrap)
            .collect();
        let outputs: Vec<(&str, &Tensor)> = [&loss]
            .into_iter()
            .chain(&slopes)
            .map(|t| ("y", t))
            .collect();
        let program = graph.finish(&outputs).unwrap();
        let at = wanted.iter().enumerate();
        let at: Vec<Vec<f64>> = at
            .map(|(number, t)| scattered(&t.dims(), 7 * number).to_f64())
            .collect();
        let run = |values: &[Vec<f64>], outputs: &[usize]| -> Vec<Vec<f64>> {
            let inputs = values.iter().map(|x| Array::Floats(x.clone())).collect();
            let found = Interpreter::new(&program).run_arrays(&[inputs], outputs);
            found.unwrap()[0].iter().map(Array::to_f64).collect()
        };
        let numbers: Vec<usize> = (1..=wanted.len()).collect();
        for (number, slope) in run(&at, &numbers).iter().enumerate() {
            let difference = |element: usize| {
                let [ahead, behind] = [1e-5, -1e-5].map(|change| {
                    let mut moved = at.clone();
                    moved[number][element] += change;
                    run(&moved, &[0])[0][0]
                });
                (ahead - behind) / 2e-5
            };
            let expected: Vec<f64> = (0..slope.len()).map(difference).collect();
            let name = &program.parameters[number].name;
            assert_close(name, slope, &expected, 1e-7);
        }
    }
}

/// A cell that is wrong in the way its name says.
#[derive(Debug)]
struct Wrong(&'static str);

impl RnnCell for Wrong {
    fn kind(&self) -> &'static str {
        match self.0 {
            "kind" => "lstm",
            _ => "wrong",
        }
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn state_dims(&self) -> Vec<Vec<usize>> {
        vec![vec![if self.0 == "size" { 0 } else { 4 }]]
    }

    fn constants(&self, _cx: &mut Cx, _input: &Shape) -> Vec<Tensor> {
        Vec::new()
    }

    fn first_states(&self, input: &Shape, _constants: &[Tensor]) -> Option<Vec<Tensor>> {
        let none = |_| Vec::new();
        (self.0 == "first").then_some(input.dims.len()).map(none)
    }

    fn step(
        &self,
        input: &Tensor,
        states: &[Tensor],
        _constants: &[Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        // In f32 whatever is computed in, and as whole numbers.
        let next =
            vec![(&states[0] + 1.0).convert(DType::F32); if self.0 == "count" { 2 } else { 1 }];
        match self.0 {
            "dims" => (input.clone(), next),
            _ => (next[0].convert(DType::I32), next),
        }
    }

    fn check(&self, input: &[usize]) -> Result<(), String> {
        match input {
            [3] => Ok(()),
            _ => Err(format!("expected three numbers, got {input:?}")),
        }
    }

    fn check_settings(&self) -> Result<(), String> {
        match self.0 {
            "settings" => Err("`size` must be odd, got 4".into()),
            _ => Ok(()),
        }
    }
}

#[test]
fn mistakes_of_cells_name_the_cell() {
    let shapes = "as its `output_dims` and `state_dims` say";
    for (wrong, features, expected) in [
        (
            "count",
            3,
            format!(
                "cell `wrong`: a step gave the output i32[2,4] and the states [f32[2,4], f32[2,4]], expected f32[2,4] and [f32[2,4]] {shapes}"
            ),
        ),
        (
            "dims",
            3,
            format!(
                "cell `wrong`: a step gave the output f32[2,3] and the states [f32[2,4]], expected f32[2,4] and [f32[2,4]] {shapes}"
            ),
        ),
        (
            "first",
            3,
            "cell `wrong`: its `first_states` are [], expected [f32[batch,4]] as its `state_dims` say"
                .into(),
        ),
        (
            "input",
            5,
            "cell `wrong`: expected three numbers, got [5]".into(),
        ),
        (
            "settings",
            3,
            "cell `wrong`: `size` must be odd, got 4".into(),
        ),
        (
            "kind",
            3,
            "cell `lstm`: a cell of this library is of this kind; give yours another".into(),
        ),
        ("size", 3, "cell `wrong`: every dim of a state or the output must be between 1 and 2147483647, got 0".into()),
    ] {
        let error = Sequential::new([6, features])
            .add(Rnn::new(Wrong(wrong)))
            .build();
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
    }
}

/// Six steps of a cell that counts, whose results are of other types than the layer computes in.
#[test]
fn results_of_cells_are_in_the_type_of_the_layer() {
    for precision in [Policy::Float32, Policy::MixedBfloat16, Policy::MixedFloat16] {
        let model = Sequential::new([6, 3]).add(Rnn::new(Wrong("")));
        let mut trainer = predictor(model, precision);
        let counted = predicted(&mut trainer, &[scattered(&[2, 6, 3], 0)]);
        assert_eq!(counted, [vec![6.0; 8]]);
    }
}

#[test]
fn cells_of_this_library_take_no_whole_numbers() {
    let numbers = Input::new([5, 3]).dtype(DType::I32);
    let built = Sequential::new(numbers)
        .add(Rnn::new(LstmCell::new(4)))
        .build();
    let error = built.unwrap_err().to_string();
    assert!(
        error.contains("expected floats, got i32[") && error.contains("f32"),
        "{error}"
    );
}

#[test]
fn mistakes_of_layers_around_cells_say_what_to_do() {
    let built = |layer: Rnn, dims: &[usize], states: &[usize]| {
        let mut net = Network::new();
        let mut nodes = vec![net.input(dims)];
        nodes.extend(states.iter().map(|&size| net.input([size])));
        let output = net.add(layer, &nodes);
        net.build(&nodes, &[output]).unwrap_err().to_string()
    };
    let memory = || Rnn::new(memory());
    let of_lstm = |lstm: Lstm| Rnn::new(LstmCell::from(lstm));
    for (error, expected) in [
        (
            built(memory(), &[], &[]),
            "expected a sequence [batch, steps, ..], got f32[",
        ),
        (
            built(memory(), &[5, 2], &[3]),
            "expected a sequence and no or 2 first states, got 2 inputs",
        ),
        (
            built(memory(), &[5, 2], &[3, 4]),
            "expected first state 1 f32[batch,2], got f32[batch,4]",
        ),
        (
            built(memory().unroll(true), &[1001, 2], &[]),
            "`unroll` is for at most 1000 steps, got 1001; leave it out",
        ),
        (
            built(of_lstm(Lstm::new(2)), &[5], &[]),
            "cell `lstm`: expected a vector at each step, [batch, steps, features], got dims [] at each",
        ),
        (
            built(of_lstm(Lstm::new(0)), &[5, 2], &[]),
            "cell `lstm`: `units` must be",
        ),
        (
            built(of_lstm(Lstm::new(2).return_state(true)), &[5, 2], &[]),
            "are settings of the `rnn` around its cells",
        ),
        (
            built(of_lstm(Lstm::new(2).dropout(0.5)), &[5, 2], &[]),
            "expected a cell without `dropout` and `recurrent_dropout`, got 0.5 and 0",
        ),
    ] {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn lists_of_cells_that_are_wrong_are_refused() {
    for (cells, expected) in [
        (
            json!([]),
            "`cells` must be a list of lstm, gru and simple_rnn with their settings, got []",
        ),
        (
            json!({"lstm": {"units": 2}}),
            "`cells` must be a list of lstm, gru and simple_rnn with their settings, got {\"lstm\":",
        ),
        (json!(["lstm"]), "expected a cell such as"),
        (
            json!([{"lstm": {"units": 2}, "gru": {"units": 2}}]),
            "`cells` must be a list of lstm, gru and simple_rnn with their settings, got [{",
        ),
        (
            json!([{"lsmt": {"units": 2}}]),
            "unknown cell `lsmt`; did you mean `lstm`?",
        ),
        (
            json!([{"lstm": {"unit": 2}}]),
            "lstm: unknown field `unit`; did you mean `units`?",
        ),
    ] {
        let error = layer_from_config("rnn", &json!({"cells": cells})).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
