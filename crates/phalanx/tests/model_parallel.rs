//! Models that are larger than a device: divided over a mesh they train as on one device.

mod four_devices;

use four_devices::engine;
use phalanx::optim::{Adafactor, Muon};
use phalanx::prelude::*;

fn columns() -> Sharding {
    [None, Some("model")].into()
}

fn rows() -> Sharding {
    [Some("model"), None].into()
}

/// Column-parallel, then row-parallel, with what differs between training and testing.
fn perceptron() -> Sequential {
    let penalty = Regularizer::L2 { l2: 0.01 };
    let wide = Dense::new(8).activation(relu).kernel_regularizer(penalty);
    Sequential::new([4])
        .add(wide.sharded("kernel", columns()))
        .add(BatchNorm::new())
        .add(Dropout::new(0.25))
        .add(Dense::new(8).activation(tanh).sharded("kernel", rows()))
        .add(Dense::new(3))
}

/// Heads over the model axis, a table cut by rows.
fn transformer() -> Sequential {
    let heads = [None, Some("model"), None];
    let attention = MultiHeadAttention::new(4, 2)
        .dropout(0.25)
        .sharded("query/kernel", heads)
        .sharded("key/kernel", heads)
        .sharded("value/kernel", heads)
        .sharded("attention_output/kernel", [Some("model"), None, None]);
    Sequential::new(Input::new([5]).dtype(DType::I32))
        .add(
            Embedding::new(12, 8)
                .mask_zero(true)
                .sharded("embeddings", rows()),
        )
        .add(attention)
        .add(LayerNorm::new())
        .add(GlobalAveragePool1d::new())
        .add(Dense::new(3))
}

/// Heads of queries, and the heads of keys and values that they share, over the model axis.
fn shared_heads() -> Sequential {
    let heads = [None, Some("model"), None];
    let attention = GroupQueryAttention::new(3, 4, 2)
        .sharded("query/kernel", heads)
        .sharded("key/kernel", heads)
        .sharded("value/kernel", heads)
        .sharded("attention_output/kernel", [Some("model"), None, None]);
    Sequential::new(Input::new([5]).dtype(DType::I32))
        .add(Embedding::new(12, 8).mask_zero(true))
        .add(attention)
        .add(GlobalAveragePool1d::new())
        .add(Dense::new(3))
}

/// Convolutions that see some of the channels.
fn grouped() -> Sequential {
    Sequential::new([6, 6, 4])
        .add(DepthwiseConv2d::new(3).padding(Padding::Same))
        .add(Conv2d::new(4, 3).groups(2).strides(2))
        .add(Flatten)
        .add(Dense::new(3).sharded("kernel", rows()))
}

fn images(count: usize) -> Dataset {
    let x: Vec<f32> = (0..count * 144).map(|i| (i as f32 * 0.37).sin()).collect();
    labelled(HostTensor::new([count, 6, 6, 4], &x), count)
}

fn numbers(count: usize) -> Dataset {
    let x: Vec<f32> = (0..count * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    labelled(HostTensor::new([count, 4], &x), count)
}

fn words(count: usize) -> Dataset {
    let x: Vec<i32> = (0..count * 5).map(|i| (i * 7 % 12) as i32).collect();
    labelled(HostTensor::new([count, 5], &x), count)
}

fn labelled(x: HostTensor, count: usize) -> Dataset {
    let y: Vec<i32> = (0..count).map(|i| (i * i % 3) as i32).collect();
    Dataset::from_arrays(x, HostTensor::new([count], &y)).unwrap()
}

fn compile(optimizer: impl Into<Optimizer>) -> Compile {
    Compile {
        optimizer: optimizer.into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        ..Compile::default()
    }
}

/// What a training leaves: losses and metrics of both kinds, predictions, variables.
struct Left {
    logs: Vec<f64>,
    predicted: HostTensor,
    variables: Vec<(String, HostTensor)>,
}

fn left(trainer: &mut Trainer, data: &Batches) -> Left {
    let fit = Fit::epochs(2).progress(Progress::Silent);
    let history = trainer.fit(data, fit).unwrap();
    let tested = trainer.evaluate(data).unwrap();
    let logs = history.epochs.iter().map(|epoch| &epoch.logs);
    let logs = logs.chain([&tested]).flat_map(|logs| {
        let values = logs.iter().map(|(_, value)| value);
        values.collect::<Vec<f64>>()
    });
    Left {
        logs: logs.collect(),
        predicted: trainer.predict(data).unwrap().remove(0),
        variables: trainer.variables().unwrap(),
    }
}

/// Compares within 1e-5 of the largest number.
fn assert_equal(one: &Left, many: &Left, what: &str) {
    let close = |name: &str, a: &[f64], b: &[f64]| {
        assert_eq!(a.len(), b.len(), "{what}: {name}");
        let largest = a.iter().fold(1e-2, |most: f64, x| most.max(x.abs()));
        for (a, b) in a.iter().zip(b) {
            let off = (a - b).abs() / largest;
            assert!(off < 1e-5, "{what}: {name} is {b}, expected {a}");
        }
    };
    close("logs", &one.logs, &many.logs);
    close(
        "predicted",
        &one.predicted.to_f64(),
        &many.predicted.to_f64(),
    );
    for ((name, a), (_, b)) in one.variables.iter().zip(&many.variables) {
        close(name, &a.to_f64(), &b.to_f64());
    }
}

#[test]
fn a_mesh_trains_as_one_device() {
    // The last of the batches has 3 rows, which do not divide by 2.
    let (numbers, words) = (numbers(19).batch(8), words(19).batch(8));
    let images = images(19).batch(8);
    let clipped = Optimizer::from(Adam::new(0.01)).clipnorm(1.0);
    let momentum = Optimizer::from(Sgd::new(0.1).momentum(0.9));
    for (name, model, data, optimizer, meshes) in [
        (
            "perceptron",
            perceptron(),
            &numbers,
            clipped,
            &[[1, 2], [1, 4], [2, 2]][..],
        ),
        ("grouped", grouped(), &images, momentum.clone(), &[[2, 2]]),
        (
            "transformer",
            transformer(),
            &words,
            momentum.clone(),
            &[[2, 2]],
        ),
        ("shared heads", shared_heads(), &words, momentum, &[[2, 2]]),
    ] {
        let compile = || compile(optimizer.clone());
        let one = OneDeviceStrategy::on(engine());
        let mut trainer = one.compile(model.clone(), compile()).unwrap();
        let expected = left(&mut trainer, data);
        for &[data_axis, model_axis] in meshes {
            let strategy = mesh(data_axis, model_axis);
            let mut trainer = strategy.compile(model.clone(), compile()).unwrap();
            let got = left(&mut trainer, data);
            assert_equal(&expected, &got, &format!("{name} on {}", strategy.mesh()));
        }
    }
}

fn mesh(data: usize, model: usize) -> MeshStrategy {
    let mesh = Mesh::new([("data", data), ("model", model)]);
    MeshStrategy::on(engine(), &mesh).unwrap()
}

#[test]
fn what_a_mesh_saves_is_a_plain_model() {
    let folder = std::env::temp_dir().join(format!("phalanx-mesh-{}", std::process::id()));
    let compile = || compile(Sgd::new(0.1));
    let (x, data) = (numbers(8).batch(8), numbers(8).batch(8));
    let mut trainer = mesh(2, 2).compile(perceptron(), compile()).unwrap();
    let fit = Fit::epochs(1).progress(Progress::Silent);
    trainer.fit(&data, fit).unwrap();
    let expected = trainer.predict(&x).unwrap()[0].to_f64();
    trainer.save(&folder).unwrap();
    let load = || SavedModel::load(&folder).unwrap();
    let one = OneDeviceStrategy::on(engine()).compile(load(), compile());
    let again = mesh(2, 2).compile(load(), compile());
    for trainer in [one, again] {
        let got = trainer.unwrap().predict(&x).unwrap()[0].to_f64();
        let off = phalanx_testkit::largest_difference(&expected, &got);
        assert!(off < 1e-5, "predictions are off by {off}");
    }
    let variables = load();
    let kernel = &variables.model().variables()[0];
    assert_eq!(kernel.sharding, Some(columns()), "{}", kernel.name);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_does_not_fit_a_mesh_is_told() {
    let refused = |strategy: &MeshStrategy| {
        let trainer = strategy.compile(perceptron(), compile(Sgd::new(0.1)));
        trainer.unwrap_err().to_string()
    };
    assert_eq!(
        refused(&MeshStrategy::on(engine(), &Mesh::new([("data", 2)])).unwrap()),
        "variable `dense/kernel`: sharding [_, model] of f32[4,8] names the axis `model`, expected one of mesh data=2; add it to the mesh, of size 1 if nothing is to be cut over it"
    );
    assert_eq!(
        refused(&mesh(1, 3)),
        "variable `dense/kernel`: dim 1 of f32[4,8] is cut over the axis `model` of mesh data=1 model=3, but 8 does not divide by 3; change the size, or leave the dim whole"
    );
    let larger = MeshStrategy::on(engine(), &Mesh::new([("data", 5)]));
    assert_eq!(
        larger.unwrap_err().to_string(),
        "mesh data=5 has 5 places, but there are 4 devices; make the mesh smaller, or divide the CPU into more devices with `EngineOptions::cpu_devices`"
    );
    let named = mesh(2, 2).devices(["cpu:0", "cpu:1"]);
    assert_eq!(
        named.unwrap_err().to_string(),
        "mesh data=2 model=2 has 4 places, but 2 devices are named; name one for each"
    );
}

/// A value that goes around the layers of a stage and into the next.
fn residual() -> Model {
    let mut net = Network::new();
    let x = net.input([4]);
    let penalty = Regularizer::L2 { l2: 0.01 };
    let first = Dense::new(8).activation(relu).kernel_regularizer(penalty);
    let first = net.add(first, &[x]);
    let dropped = net.add(Dropout::new(0.25), &[first]);
    let second = net.add(Dense::new(8).activation(tanh).named("second"), &[dropped]);
    let sum = net.add(Add, &[first, second]);
    let output = net.add(Dense::new(3).named("output"), &[sum]);
    net.build(&[x], &[output]).unwrap()
}

#[test]
fn a_pipeline_trains_as_one_device() {
    let (numbers, words) = (numbers(19).batch(8), words(19).batch(8));
    let clipped = Optimizer::from(Adam::new(0.01)).global_clipnorm(0.5);
    let momentum = Optimizer::from(Sgd::new(0.1).momentum(0.9));
    let perceptron = perceptron().build().unwrap();
    let transformer = transformer().build().unwrap();
    for (name, model, data, optimizer, sizes) in [
        (
            "residual",
            residual(),
            &numbers,
            clipped,
            &[[2, 2], [3, 4]][..],
        ),
        (
            "transformer",
            transformer,
            &words,
            momentum.clone(),
            &[[2, 3]],
        ),
        // With one micro-batch, statistics are those of the batch.
        ("perceptron", perceptron, &numbers, momentum, &[[2, 1]]),
    ] {
        let compile = || compile(optimizer.clone());
        let one = OneDeviceStrategy::on(engine());
        let mut trainer = one.compile(model.clone(), compile()).unwrap();
        let expected = left(&mut trainer, data);
        for &[stages, micro_batches] in sizes {
            let strategy = PipelineStrategy::on(engine(), stages, micro_batches).unwrap();
            let mut trainer = strategy.compile(model.clone(), compile()).unwrap();
            let got = left(&mut trainer, data);
            let what = format!("{name} in {stages} stages, {micro_batches} micro-batches");
            assert_equal(&expected, &got, &what);
        }
    }
}

/// Of some variables these rules leave slots as they are, which is no update of a stage's state.
#[test]
fn slots_that_no_rule_changes_stay_in_a_pipeline() {
    let rules = [
        Optimizer::from(Muon::new(0.01)),
        Optimizer::from(Adafactor::new(0.01)),
    ];
    let data = numbers(19).batch(8);
    for rule in rules.map(|rule| rule.gradient_accumulation(2)) {
        let one = OneDeviceStrategy::on(engine());
        let mut trainer = one.compile(residual(), compile(rule.clone())).unwrap();
        let expected = left(&mut trainer, &data);
        let strategy = PipelineStrategy::on(engine(), 2, 2).unwrap();
        let mut trainer = strategy.compile(residual(), compile(rule)).unwrap();
        let got = left(&mut trainer, &data);
        assert_equal(&expected, &got, "a pipeline with accumulation");
    }
}

#[test]
fn what_is_no_pipeline_is_told() {
    let strategy = |stages| PipelineStrategy::on(engine(), stages, 2);
    let refused = |strategy: PipelineStrategy| {
        let trainer = strategy.compile(residual(), compile(Sgd::new(0.1)));
        trainer.unwrap_err().to_string()
    };
    assert_eq!(
        strategy(5).unwrap_err().to_string(),
        "a pipeline of 5 stages with 2 micro-batches on 4 devices; expected 1 or more of each, and a device for each stage (`EngineOptions::cpu_devices` divides the CPU into more)"
    );
    assert_eq!(
        refused(strategy(2).unwrap().starting_at(["secnd"])),
        "a stage is to start at layer `secnd`, but model `functional` has none of that name outside of models in it; did you mean `second`?"
    );
    assert_eq!(
        refused(strategy(3).unwrap().starting_at(["output", "second"])),
        "3 stages start at the layers [\"output\", \"second\"]; name 2 layers behind the first, in the order of the model"
    );
}

/// Two outputs, of which the first has a loss; the second is there twice, and so is an input.
fn heads() -> Model {
    let mut net = Network::new();
    let x = net.input([4]);
    let body = net.add(Dense::new(8).activation(tanh), &[x]);
    let outputs = ["trained", "idle"].map(|name| net.add(Dense::new(3).named(name), &[body]));
    let dropped = net.add(Dropout::new(0.5), &[outputs[1]]);
    let all = [outputs[0], outputs[1], dropped, x];
    net.build(&[x], &all).unwrap()
}

#[test]
fn a_pipeline_has_every_output_and_averages_what_is_not_trained() {
    let loss = || SparseCategoricalCrossentropy::from_logits();
    let compile = || Compile {
        loss: Losses::default().and(0, loss(), 1.0),
        metrics: Vec::new(),
        ..compile(Optimizer::from(Sgd::new(0.1)).ema(0.9))
    };
    let data = numbers(19).batch(8);
    let run = |mut trainer: Trainer| {
        let left = left(&mut trainer, &data);
        let outputs = trainer.predict(&data).unwrap().into_iter();
        (
            left,
            outputs.map(|output| output.to_f64()).collect::<Vec<_>>(),
        )
    };
    let one = OneDeviceStrategy::on(engine()).compile(heads(), compile());
    let (expected, outputs) = run(one.unwrap());
    let strategy = PipelineStrategy::on(engine(), 2, 2).unwrap();
    let strategy = strategy.starting_at(["trained"]);
    let (got, predicted) = run(strategy.compile(heads(), compile()).unwrap());
    assert_equal(&expected, &got, "heads");
    for (at, (expected, got)) in outputs.iter().zip(&predicted).enumerate() {
        let off = phalanx_testkit::largest_difference(expected, got);
        assert!(off < 1e-5, "output {at} is off by {off}");
    }
}

#[test]
fn state_of_a_layer_in_two_stages_is_refused() {
    let mut net = Network::new();
    let x = net.input([4]);
    let norm = net.layer(BatchNorm::new().named("norm"));
    let first = net.call(norm, &[x]);
    let dense = net.add(Dense::new(4).named("second"), &[first]);
    let again = net.call(norm, &[dense]);
    let output = net.add(Dense::new(3), &[again]);
    let model = net.build(&[x], &[output]).unwrap();
    let strategy = PipelineStrategy::on(engine(), 2, 2).unwrap();
    let strategy = strategy.starting_at(["second"]);
    let mut trainer = strategy.compile(model, compile(Sgd::new(0.1))).unwrap();
    let fit = Fit::epochs(1).progress(Progress::Silent);
    let error = trainer.fit(&numbers(8).batch(8), fit).unwrap_err();
    let error = error.to_string();
    let expected = "is read in stage 0 of the pipeline and replaced in stage 1";
    assert!(
        error.starts_with("`norm/moving_") && error.contains(expected),
        "{error}"
    );
}
