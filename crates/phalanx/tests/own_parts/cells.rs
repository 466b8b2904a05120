//! Recurrent layers around cells of a program and of the library, after Keras' (`tests/golden/keras/make_cells.py` has the same cells).

use phalanx::data::Batch;
use phalanx::nn::{Node, RnnCell};
use phalanx_graph::gradients;
use serde_json::json;

use super::*;

/// `h = x kernel + h recurrent_kernel`.
#[derive(Debug)]
pub(crate) struct Minimal {
    pub(crate) units: usize,
}

/// Two states of different sizes, the second of which begins with halves, and an output of a third.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) units: usize,
    pub(crate) slots: usize,
}

#[track_caller]
fn weight(cx: &mut Cx, input: &Shape, name: &str, dims: [usize; 2]) -> Tensor {
    let shape = Shape::new(input.dtype, dims);
    cx.variable(name, shape, &Initializer::GlorotUniform)
}

impl RnnCell for Minimal {
    fn kind(&self) -> &'static str {
        "minimal"
    }

    fn config(&self) -> Value {
        json!({"units": self.units})
    }

    fn state_dims(&self) -> Vec<Vec<usize>> {
        vec![vec![self.units]]
    }

    fn constants(&self, cx: &mut Cx, input: &Shape) -> Vec<Tensor> {
        let (features, units) = (input.dims[1], self.units);
        vec![
            weight(cx, input, "kernel", [features, units]),
            weight(cx, input, "recurrent_kernel", [units, units]),
        ]
    }

    fn step(&self, x: &Tensor, states: &[Tensor], constants: &[Tensor]) -> (Tensor, Vec<Tensor>) {
        let h = x.matmul(&constants[0]) + states[0].matmul(&constants[1]);
        (h.clone(), vec![h])
    }
}

impl RnnCell for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn config(&self) -> Value {
        json!({"units": self.units, "slots": self.slots})
    }

    fn state_dims(&self) -> Vec<Vec<usize>> {
        vec![vec![self.units], vec![self.slots]]
    }

    fn output_dims(&self) -> Vec<usize> {
        vec![self.units + self.slots]
    }

    fn constants(&self, cx: &mut Cx, input: &Shape) -> Vec<Tensor> {
        let (units, slots) = (self.units, self.slots);
        vec![
            weight(cx, input, "kernel", [input.dims[1], units]),
            weight(cx, input, "recurrent_kernel", [units, units]),
            weight(cx, input, "read", [slots, units]),
            weight(cx, input, "write", [units, slots]),
        ]
    }

    fn first_states(&self, input: &Shape, constants: &[Tensor]) -> Option<Vec<Tensor>> {
        let full = |size: usize, value: f64| {
            let shape = Shape::new(input.dtype, [input.dims[0], size]);
            constants[0].graph().full(&shape, value)
        };
        Some(vec![full(self.units, 0.0), full(self.slots, 0.5)])
    }

    fn step(&self, x: &Tensor, states: &[Tensor], constants: &[Tensor]) -> (Tensor, Vec<Tensor>) {
        let [kernel, recurrent, read, write] = constants else {
            unreachable!("four are asked for")
        };
        let h = x.matmul(kernel) + states[0].matmul(recurrent) + states[1].matmul(read);
        let h = h.tanh();
        // The logistic function by its formula.
        let slots = &states[1] * 0.75 + 1.0 / (1.0 + (-h.matmul(write)).exp());
        (Tensor::concat(&[&h, &slots], 1), vec![h, slots])
    }
}

/// Says which steps are not padding, by a second input, and leaves nothing of the others.
#[derive(Debug)]
struct Masked;

impl Layer for Masked {
    fn kind(&self) -> &'static str {
        "masked"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let mask = &inputs[1];
        let kept = mask.broadcast_in(&inputs[0].dims(), &[0, 1]);
        let kept = kept.select(&inputs[0], &inputs[0].zeros_like());
        cx.set_padding_mask(&kept, mask);
        kept
    }
}

fn with_cell(rnn: Option<Rnn>, cell: &Value) -> Rnn {
    let (kind, settings) = cell.as_object().unwrap().iter().next().unwrap();
    let size = |name: &str| settings[name].as_u64().unwrap_or(0) as usize;
    macro_rules! add {
        ($cell:expr) => {
            match rnn {
                None => Rnn::new($cell),
                Some(rnn) => rnn.cell($cell),
            }
        };
    }
    let units = size("units");
    match kind.as_str() {
        "minimal" => add!(Minimal { units }),
        "memory" => add!(Memory {
            units,
            slots: size("slots")
        }),
        "lstm" => add!(LstmCell::new(units)),
        "simple_rnn" => add!(SimpleRnnCell::new(units)),
        "gru" => {
            let reset_after = settings["reset_after"] != false;
            add!(GruCell::from(Gru::new(units).reset_after(reset_after)))
        }
        other => panic!("no cell {other}"),
    }
}

/// The layer of a record.
fn layer(record: &Value) -> LayerSpec {
    let cells = record["cells"].as_array().unwrap().iter();
    let is = |option: &str| record["options"][option] == true;
    let rnn = cells
        .fold(None, |rnn, cell| Some(with_cell(rnn, cell)))
        .unwrap()
        .return_sequences(is("return_sequences"))
        .return_state(is("return_state"))
        .go_backwards(is("go_backwards"))
        .unroll(is("unroll"))
        .zero_output_for_mask(is("zero_output_for_mask"));
    match record["both"] == true {
        true => Bidirectional::new(rnn).merge_mode(MergeMode::Sum).into(),
        false => rnn.into(),
    }
}

fn checked(what: &str, got: &HostTensor, expected: &HostTensor) {
    assert_eq!(got.dims(), expected.dims(), "{what}");
    assert_close(what, &got.to_f64(), &expected.to_f64(), TOLERANCE);
}

/// All outputs, and the gradients by the inputs and the variables.
#[test]
fn cells_do_as_in_keras() {
    let records = oracle::records("cells.json");
    assert_eq!(records.len(), 20);
    let (mut batch, mut expected) = (oracle::Batch::default(), Vec::new());
    for record in &records {
        let first = oracle::arrays(&record["first"]);
        let mut net = Network::new();
        let values = [&[array(&record["x"]).unwrap()], &first[..]].concat();
        let nodes = values.iter().map(|x| net.input(&x.dims()[1..]));
        let nodes: Vec<Node> = nodes.collect();
        let shared = net.layer(layer(record));
        let outputs = net.call_many(shared, &nodes);
        let model = net.build(&nodes, &outputs).unwrap();

        let weights = oracle::arrays(&record["weights"]);
        let [inputs, variables] = [values, weights]
            .map(|all| all.into_iter().map(|x| batch.input(x)).collect::<Vec<_>>());
        let mut cx = Cx::new(&batch.graph, &model, &variables);
        if let Some(mask) = array(&record["mask"]) {
            cx.set_padding_mask(&inputs[0], &batch.input(mask));
        }
        let outputs = model.call(&mut cx, &inputs);
        let mut total = batch.graph.scalar(DType::F32, 0.0);
        for (output, cotangent) in outputs.iter().zip(oracle::arrays(&record["cotangents"])) {
            total = total + (output * batch.input(cotangent)).sum_all();
        }
        let wanted: Vec<&Tensor> = inputs.iter().chain(&variables).collect();
        let found = gradients(&total, &wanted).into_iter().map(Option::unwrap);
        for tensor in outputs.iter().cloned().chain(found) {
            batch.output(&tensor);
        }
        for part in ["outputs", "gradients"] {
            let values = oracle::arrays(&record[part]).into_iter().enumerate();
            expected.extend(values.map(|(at, x)| (format!("{}: {part} {at}", name(record)), x)));
        }
    }
    let results = batch.run(&oracle::engine());
    assert_eq!(results.len(), expected.len());
    for ((what, expected), got) in expected.iter().zip(&results) {
        checked(what, got, expected);
    }
}

/// The layer of a record with a dense one on top of all it gives, and the batch of the record.
fn trained(record: &Value) -> (Model, Batch) {
    let mut net = Network::new();
    let mut x = vec![array(&record["x"]).unwrap()];
    let mut nodes = vec![net.input(&x[0].dims()[1..])];
    let mut sequence = nodes[0];
    if let Some(mask) = array(&record["mask"]) {
        nodes.push(net.input(Input::new(&mask.dims()[1..]).dtype(DType::Bool)));
        x.push(mask);
        sequence = net.add(Masked, &nodes);
    }
    let output = net.add(layer(record), &[sequence]);
    let output = net.add(Flatten, &[output]);
    let output = net.add(Dense::new(2), &[output]);
    let batch = Batch {
        x,
        y: vec![array(&record["y"]).unwrap()],
        weight: None,
        first: 0,
    };
    (net.build(&nodes, &[output]).unwrap(), batch)
}

/// Three steps, on one device and on two, of which one has a row more.
#[test]
fn trainings_of_cells_are_those_of_keras() {
    let mut records = oracle::records("cells.json");
    records.retain(|record| record["losses"].is_array());
    assert_eq!(records.len(), 5);
    for record in &records {
        let (model, batch) = trained(record);
        let compile = || Compile {
            optimizer: Sgd::new(0.05).into(),
            loss: MeanSquaredError.into(),
            ..Compile::default()
        };
        let one = OneDeviceStrategy::on(engine()).compile(model.clone(), compile());
        let two = mirrored().compile(model, compile());
        for trainer in [one, two] {
            follow_batch(record, &batch, trainer.unwrap());
        }
    }
}

fn follow_batch(record: &Value, batch: &Batch, mut trainer: Trainer) {
    let variables = trainer.variables().unwrap().into_iter();
    let names: Vec<String> = variables.map(|(name, _)| name).collect();
    let first = [&record["weights"], &record["dense"]].map(oracle::arrays);
    let first = names.iter().zip(first.concat());
    trainer.set_variables(&first.collect::<Vec<_>>()).unwrap();
    let mut step = || trainer.train_on_batch(batch).unwrap().get("loss").unwrap();
    let losses = [step(), step(), step()];
    let expected: Vec<f64> = serde_json::from_value(record["losses"].clone()).unwrap();
    assert_close(name(record), &losses, &expected, TOLERANCE);
    let variables = trainer.variables().unwrap();
    let expected = oracle::arrays(&record["final"]);
    assert_eq!(variables.len(), expected.len());
    for ((variable, got), expected) in variables.iter().zip(&expected) {
        checked(&format!("{}, {variable}", name(record)), got, expected);
    }
}
