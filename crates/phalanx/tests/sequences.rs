//! Layers and models of sequences against Keras' numbers (`tests/golden/keras`), with and without masks.

mod oracle;

use oracle::{Batch, array, name};
use phalanx::losses::{Loss, SparseCategoricalCrossentropy};
use phalanx::models::{TransformerEncoder, TransformerNmt};
use phalanx::nn::{Cx, Input, Lstm, Model, Network, layer_from_config};
use phalanx_graph::{DType, HostTensor, Tensor, gradients};
use serde_json::{Value, json};

/// The greatest difference over the greatest size of what is expected, or over `floor` where that is larger: what is
/// zero but for rounding, such as the gradient of a bias of keys, has no digits.
fn relative_error(got: &HostTensor, expected: &HostTensor, floor: f64) -> f64 {
    assert_eq!(got.shape(), expected.shape());
    let (got, expected) = (got.to_f64(), expected.to_f64());
    let scale = expected
        .iter()
        .fold(floor, |most: f64, x| most.max(x.abs()));
    let far = got.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    far.fold(
        0.0,
        |most: f64, x| if x > most || x.is_nan() { x } else { most },
    ) / scale
}

/// Expected values in the order in which they were asked for.
#[derive(Default)]
struct Expected(Vec<(String, HostTensor, f64)>);

impl Expected {
    fn add(
        &mut self,
        batch: &mut Batch,
        what: String,
        got: &Tensor,
        value: HostTensor,
        within: f64,
    ) {
        batch.output(got);
        self.0.push((what, value, within));
    }

    fn verify(self, batch: Batch, floor: f64) {
        let results = batch.run(&oracle::engine());
        let mut wrong = Vec::new();
        for ((what, expected, within), got) in self.0.iter().zip(&results) {
            let error = relative_error(got, expected, floor);
            if error.is_nan() || error > *within {
                wrong.push(format!("{what}: off by {error:e}"));
            }
        }
        assert!(
            wrong.is_empty(),
            "{} of {} differ:\n{}",
            wrong.len(),
            results.len(),
            wrong.join("\n")
        );
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn kind(keras: &str) -> &'static str {
    match keras {
        "MultiHeadAttention" => "multi_head_attention",
        "GroupQueryAttention" => "group_query_attention",
        "Attention" => "attention",
        "AdditiveAttention" => "additive_attention",
        "LSTM" => "lstm",
        "GRU" => "gru",
        "SimpleRNN" => "simple_rnn",
        "ConvLSTM1D" => "conv_lstm1d",
        "ConvLSTM2D" => "conv_lstm2d",
        "ConvLSTM3D" => "conv_lstm3d",
        "Bidirectional" => "bidirectional",
        "EmbeddingBag" => "embedding_bag",
        "Dot" => "dot",
        "Masking" => "masking",
        "GlobalAveragePooling1D" => "global_average_pool1d",
        "GlobalMaxPooling1D" => "global_max_pool1d",
        "Add" => "add",
        "Average" => "average",
        "Maximum" => "maximum",
        "Minimum" => "minimum",
        "Multiply" => "multiply",
        other => panic!("no layer for Keras' {other}"),
    }
}

/// A model of one layer for inputs of these shapes.
fn model_of(record: &Value, inputs: &[HostTensor]) -> Model {
    let kind = kind(record["layer"].as_str().unwrap());
    let layer = layer_from_config(kind, &record["config"]).unwrap();
    let mut net = Network::new();
    let nodes: Vec<_> = inputs
        .iter()
        .map(|input| net.input(Input::new(&input.dims()[1..]).dtype(input.dtype())))
        .collect();
    let mut output = net.add(layer, &nodes);
    if kind == "masking" {
        output = net.add(Lstm::new(3).return_sequences(true), &[output]);
    }
    net.build(&nodes, &[output]).unwrap()
}

#[test]
fn attention_and_pools_are_keras() {
    check_layers(
        |layer| layer.contains("Attention") || layer.contains("Pooling"),
        39,
    );
}

#[test]
fn layers_of_several_inputs_are_keras() {
    let kinds = ["Add", "Average", "Maximum", "Minimum", "Multiply"];
    check_layers(|layer| kinds.contains(&layer), 25);
}

#[test]
fn layers_of_recommenders_are_tensorflows() {
    check_layers(|layer| matches!(layer, "EmbeddingBag" | "Dot"), 15);
}

/// What a layer of this kind makes of the inputs with these variables.
fn called(
    batch: &mut Batch,
    layer: (&str, Value),
    inputs: &[HostTensor],
    variables: &[HostTensor],
) {
    let (kind, config) = layer;
    let layer = layer_from_config(kind, &config).unwrap();
    let mut net = Network::new();
    let input = |x: &HostTensor| Input::new(&x.dims()[1..]).dtype(x.dtype());
    let nodes: Vec<_> = inputs.iter().map(|x| net.input(input(x))).collect();
    let output = net.add(layer, &nodes);
    let model = net.build(&nodes, &[output]).unwrap();
    let mut given = |values: &[HostTensor]| -> Vec<Tensor> {
        values
            .iter()
            .map(|value| batch.input(value.clone()))
            .collect()
    };
    let (inputs, variables) = (given(inputs), given(variables));
    let output = model.call(&mut Cx::new(&batch.graph, &model, &variables), &inputs);
    batch.output(&output[0]);
}

/// Padding that no unsigned index can be, weights whose sum is 0, which `tf.nn.embedding_lookup_sparse` makes 0 of, and vectors that are
/// shorter than 1e-6 but not than Keras' 1e-7.
#[test]
fn bags_and_products_at_the_edges() {
    let mut batch = Batch::default();
    let table = HostTensor::new([9, 1], &[3f32, 1.0, 0.0, 0.0, 0.0, 6.0, 0.0, 12.0, 0.0]);
    let bag = |more: &[(&str, Value)]| {
        let mut config = json!({"input_dim": 9, "output_dim": 1, "combiner": "mean"});
        for (name, value) in more {
            config[*name] = value.clone();
        }
        ("embedding_bag", config)
    };
    let all = HostTensor::new([1, 3], &[0u32, 5, 7]);
    let padded = bag(&[("padding", json!(-1))]);
    let tables = [table];
    let given = [all, HostTensor::new([1, 3], &[0f32, 1.0, -1.0])];
    called(&mut batch, padded, &given[..1], &tables);
    called(&mut batch, bag(&[]), &given, &tables);
    let vector = |values: [f32; 2]| HostTensor::new([1, 2], &values);
    let pair = [vector([5e-7, 0.0]), vector([1.0, 0.0])];
    called(&mut batch, ("dot", json!({"normalize": true})), &pair, &[]);
    let got: Vec<f64> = batch
        .run(&oracle::engine())
        .iter()
        .flat_map(HostTensor::to_f64)
        .collect();
    let apart = got.iter().zip([7.0, 0.0, 1.0]).map(|(a, b)| (a - b).abs());
    assert!(apart.fold(0.0, f64::max) < 1e-6, "{got:?}");
}

#[test]
fn recurrent_layers_of_convolutions_are_keras() {
    check_layers(|layer| layer.starts_with("ConvLSTM"), 12);
}

#[test]
fn recurrent_layers_are_keras() {
    check_layers(
        |layer| {
            matches!(
                layer,
                "LSTM" | "GRU" | "SimpleRNN" | "Bidirectional" | "Masking"
            )
        },
        34,
    );
}

fn check_layers(wanted: impl Fn(&str) -> bool, count: usize) {
    let (mut batch, mut expected) = (Batch::default(), Expected::default());
    let mut records = oracle::records("sequences.json");
    records.retain(|record| wanted(record["layer"].as_str().unwrap()));
    assert_eq!(records.len(), count);
    for record in &records {
        check_layer(&mut batch, &mut expected, record);
    }
    expected.verify(batch, 0.2);
}

fn check_layer(batch: &mut Batch, expected: &mut Expected, record: &Value) {
    let values: Vec<HostTensor> = list(&record["inputs"]).iter().filter_map(array).collect();
    let model = model_of(record, &values);
    let ours = model.variables().iter().map(|variable| {
        let (layer, name) = variable.name.split_once('/').unwrap();
        match layer == "lstm" && record["layer"] == "Masking" {
            true => variable.name.clone(),
            false => name.to_owned(),
        }
    });
    let weights = list(&record["weights"]);
    let theirs: Vec<&str> = weights.iter().map(name).collect();
    assert_eq!(ours.collect::<Vec<_>>(), theirs, "{}", name(record));

    let inputs: Vec<Tensor> = values.into_iter().map(|value| batch.input(value)).collect();
    let variables = weights
        .iter()
        .map(|weight| batch.input(array(&weight["value"]).unwrap()));
    let variables: Vec<Tensor> = variables.collect();
    let mut cx = Cx::new(&batch.graph, &model, &variables);
    for (input, mask) in inputs.iter().zip(list(&record["masks"])) {
        if let Some(mask) = array(mask) {
            cx.set_padding_mask(input, &batch.input(mask));
        }
    }
    let output = model.call(&mut cx, &inputs).swap_remove(0);
    let what = |part: &str| format!("{} {part}", name(record));
    let value = array(&record["output"]).unwrap();
    expected.add(batch, what("output"), &output, value, 1e-5);

    let cotangent = batch.input(array(&record["cotangent"]).unwrap());
    let floats = inputs.iter().filter(|input| input.dtype().is_float());
    let wanted: Vec<&Tensor> = floats.chain(&variables).collect();
    let found = gradients(&(output * cotangent).sum_all(), &wanted);
    let by_input = list(&record["input_gradients"]).iter().map(array);
    let by_weight = list(&record["weight_gradients"])
        .iter()
        .map(|w| array(&w["value"]));
    for (i, (found, value)) in found.iter().zip(by_input.chain(by_weight)).enumerate() {
        let found = found.clone().unwrap_or_else(|| wanted[i].zeros_like());
        expected.add(
            batch,
            what(&format!("gradient {i}")),
            &found,
            value.unwrap(),
            2e-5,
        );
    }
}

/// The values that `make_transformer.py` gives the `index`-th variable.
fn formula(index: usize, name: &str, dims: &[usize]) -> HostTensor {
    let one = if name.ends_with("gamma") { 1.0 } else { 0.0 };
    let value = |k: usize| {
        let hash = (k * 7919 + index * 104_729 + k * k * 31) % 1000;
        ((hash as f64 / 1000.0 - 0.5) * 0.6 + one) as f32
    };
    let values: Vec<f32> = (0..dims.iter().product()).map(value).collect();
    HostTensor::new(dims, &values)
}

/// The sum over a gradient that `make_transformer.py` takes.
fn probe(batch: &mut Batch, index: usize, gradient: &Tensor) -> Tensor {
    let weight = |k: usize| (((k * 6361 + index * 271) % 1000) as f64 / 1000.0 - 0.5) as f32;
    let dims = gradient.dims();
    let weights: Vec<f32> = (0..dims.iter().product()).map(weight).collect();
    (gradient * batch.input(HostTensor::new(dims, &weights))).sum_all()
}

#[test]
fn transformers_are_keras() {
    let (mut batch, mut expected) = (Batch::default(), Expected::default());
    let records = oracle::records("transformer.json");
    assert!(records.len() > 2, "only {} records", records.len());
    for record in &records {
        let settings = &record["settings"];
        let model = match name(record).split('_').next() {
            Some("encoder") => {
                let settings: TransformerEncoder =
                    serde_json::from_value(settings.clone()).unwrap();
                settings.build()
            }
            Some("nmt") => {
                let settings: TransformerNmt = serde_json::from_value(settings.clone()).unwrap();
                settings.build()
            }
            other => panic!("model {other:?}"),
        };
        let model = model.unwrap();
        check_model(&mut batch, &mut expected, record, &model);
    }
    expected.verify(batch, 1e-4);
}

fn check_model(batch: &mut Batch, expected: &mut Expected, record: &Value, model: &Model) {
    let entries = list(&record["variables"]);
    // Keras orders layers by their distance from the output.
    let theirs: Vec<&str> = entries.iter().map(name).collect();
    let index = |ours: &str| theirs.iter().position(|&name| name == ours);
    let indices = model
        .variables()
        .iter()
        .map(|v| index(&v.name).unwrap_or_else(|| panic!("{}: {}", name(record), v.name)));
    let indices: Vec<usize> = indices.collect();
    assert_eq!(indices.len(), theirs.len(), "{}", name(record));
    let variables = model.variables().iter().zip(&indices);
    let variables = variables.map(|(v, &i)| batch.input(formula(i, &v.name, &v.shape.dims)));
    let variables: Vec<Tensor> = variables.collect();
    let inputs = list(&record["inputs"]).iter().filter_map(array);
    let inputs: Vec<Tensor> = inputs.map(|x| batch.input(x)).collect();
    let mut cx = Cx::new(&batch.graph, model, &variables);
    let output = model.call(&mut cx, &inputs).swap_remove(0);
    let what = |part: &str| format!("{} {part}", name(record));
    let value = array(&record["output"]).unwrap();
    expected.add(batch, what("output"), &output, value, 1e-4);

    let targets = batch.input(array(&record["targets"]).unwrap());
    let loss = Loss::from(SparseCategoricalCrossentropy::from_logits());
    let losses = loss.per_example(&targets, &output);
    let loss = match cx.padding_mask(&output) {
        Some(mask) => {
            let weight = mask.convert(losses.dtype());
            (losses * &weight).sum_all() / weight.sum_all()
        }
        None => losses.mean_all(),
    };
    let number = |field: &str| HostTensor::scalar(record[field].as_f64().unwrap() as f32);
    expected.add(batch, what("loss"), &loss, number("loss"), 1e-5);
    let found = gradients(&loss, &variables.iter().collect::<Vec<_>>());
    let found: Vec<Tensor> = found
        .into_iter()
        .map(|gradient| gradient.expect("connected"))
        .collect();
    let squares = check_gradients(batch, expected, record, &found, &indices);
    expected.add(
        batch,
        what("global norm"),
        &squares.sqrt(),
        number("global_norm"),
        1e-3,
    );
}

/// Compares the gradients of the variables at these places of the record; the sum of their squares.
fn check_gradients(
    batch: &mut Batch,
    expected: &mut Expected,
    record: &Value,
    found: &[Tensor],
    indices: &[usize],
) -> Tensor {
    let entries = list(&record["variables"]);
    let mut squares = batch.graph.scalar(DType::F32, 0.0);
    for (gradient, &i) in found.iter().zip(indices) {
        let entry = &entries[i];
        let scalar = |field: &str| HostTensor::scalar(entry[field].as_f64().unwrap() as f32);
        let what = |part: &str| format!("{} {} {part}", name(record), name(entry));
        let norm = gradient.square().sum_all();
        squares = squares + &norm;
        expected.add(batch, what("norm"), &norm.sqrt(), scalar("norm"), 1e-3);
        // A probe of a gradient that cancels has no digits; the norm is its size.
        let size = entry["norm"].as_f64().unwrap().max(1e-4);
        let probed = probe(batch, i, gradient) / size + 1.0;
        let probe = HostTensor::scalar((entry["probe"].as_f64().unwrap() / size + 1.0) as f32);
        expected.add(batch, what("probe"), &probed, probe, 1e-3);
        if let Some(full) = entry.get("gradient").and_then(array) {
            expected.add(batch, what("gradient"), gradient, full, 1e-3);
        }
    }
    squares
}
