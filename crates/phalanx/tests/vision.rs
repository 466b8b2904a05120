//! Image models against Keras': structure, outputs, and the gradients of one training step.
//!
//! Both sides make weights and images by the formula of `tests/golden/keras/make_models.py`.

mod oracle;

use oracle::{Batch, array, formula_value, name, records, uniform};
use phalanx::losses::{Loss, SparseCategoricalCrossentropy};
use phalanx::models::{FineTune, MobileNetV2, Pooling, ResNet50};
use phalanx::nn::{Activation, Cx, Input, Model, Preprocess, Rescaling, Sequential, Variable};
use phalanx_graph::{DType, Graph, HostTensor, Shape, gradients};
use phalanx_testkit::assert_close;
use serde_json::Value;

fn images(rows: usize, size: usize) -> HostTensor {
    let dims = [rows, size, size, 3];
    let values = uniform("images", dims.iter().product());
    HostTensor::new(dims, &values.map(|u| u as f32).collect::<Vec<_>>())
}

fn record(model: &str) -> Value {
    let mut records = records("models.json").into_iter();
    records.find(|record| name(record) == model).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().unwrap();
    list.iter().map(|x| x.as_f64().unwrap()).collect()
}

fn count(model: &Model, trainable: bool) -> u64 {
    let variables = model.variables().iter();
    let counted = variables.filter(|variable| variable.trainable || !trainable);
    counted
        .map(|variable| variable.shape.dims.iter().product::<usize>() as u64)
        .sum()
}

/// Layers and variables have Keras' names, shapes and order, and the whole model as many parameters.
fn check_structure(record: &Value, ours: &Model, full: &Model) {
    let expected: Vec<&str> = record["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_str().unwrap())
        .collect();
    assert_eq!(ours.layers(), expected);
    for (ours, keras) in ours
        .variables()
        .iter()
        .zip(record["variables"].as_array().unwrap())
    {
        let dims: Vec<f64> = ours.shape.dims.iter().map(|&dim| dim as f64).collect();
        assert_eq!(
            (&*ours.name, dims),
            (keras[0].as_str().unwrap(), numbers(&keras[1]))
        );
    }
    assert_eq!(count(full, false), record["parameters"].as_u64().unwrap());
    assert_eq!(count(full, true), record["trainable"].as_u64().unwrap());
}

/// Runs the model on Keras' weights, and compares outputs in inference and gradients of one step of training.
fn check_numbers(record: &Value, model: &Model) {
    let mut case = Batch::default();
    let rows = record["labels"].as_array().unwrap().len();
    let labels: Vec<i32> = numbers(&record["labels"])
        .into_iter()
        .map(|x| x as i32)
        .collect();
    let size = record["size"].as_u64().unwrap() as usize;
    let x = case.input(images(rows, size));
    let y = case.input(HostTensor::new([rows], &labels));
    let variables = model.variables().iter();
    let values: Vec<_> = variables
        .map(|v| case.input(formula_value(&v.name, &v.shape.dims)))
        .collect();
    let call = |training| Cx::new(&case.graph, model, &values).with_training(training);
    let output = model
        .call(&mut call(false), std::slice::from_ref(&x))
        .remove(0);
    let trained = model.call(&mut call(true), &[x]).remove(0);
    let loss = Loss::from(SparseCategoricalCrossentropy::from_logits())
        .per_example(&y, &trained)
        .mean(&[0]);
    let trainable = || {
        model
            .variables()
            .iter()
            .zip(&values)
            .filter(|(v, _)| v.trainable)
    };
    let wrt: Vec<_> = trainable().map(|(_, value)| value).collect();
    let slopes = gradients(&loss, &wrt);
    case.output(&output);
    case.output(&loss);
    for slope in &slopes {
        case.output(slope.as_ref().expect("every variable counts"));
    }
    let results = case.run(&oracle::engine());

    let (got, expected) = (results[0].to_f64(), numbers(&record["outputs"]["data"]));
    let largest = expected.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
    let error = phalanx_testkit::largest_difference(&got, &expected) / largest;
    println!("outputs: largest relative error {error:.1e}");
    assert!(error <= 1e-4, "outputs: relative error {error}");
    let expected = record["loss"].as_f64().unwrap();
    assert_close("loss", &results[1].to_f64(), &[expected], 1e-5);
    let names = trainable().map(|(variable, _)| variable.name.as_str());
    check_gradients(record, names, &results[2..]);
}

/// By variable: the norm, and the products with two vectors, against which every element counts.
fn check_gradients<'a>(
    record: &Value,
    names: impl Iterator<Item = &'a str>,
    slopes: &[HostTensor],
) {
    let global = record["global_norm"].as_f64().unwrap();
    let (mut total, mut worst) = (0.0, (0.0, ""));
    for (name, slope) in names.zip(slopes) {
        let slope = slope.to_f64();
        let expected = numbers(&record["gradients"][name]);
        let norm = slope.iter().map(|x| x * x).sum::<f64>().sqrt();
        let product = |i| {
            slope
                .iter()
                .zip(uniform(&format!("{name}/{i}"), slope.len()))
                .map(|(x, u)| x * u)
                .sum()
        };
        let got = [norm, product(0), product(1)];
        // A bias before a batch normalization has the gradient 0, of which rounding makes something.
        let size = expected[0].max(1e-3 * global);
        for (got, expected) in got.iter().zip(&expected) {
            let error = (got - expected).abs() / size;
            assert!(
                error <= 1e-3,
                "gradient of {name}: {got}, expected {expected}"
            );
            if error > worst.0 {
                worst = (error, name);
            }
        }
        total += norm * norm;
    }
    println!(
        "gradients: largest relative error {:.1e}, of {}",
        worst.0, worst.1
    );
    let error = (total.sqrt() - global).abs() / global;
    println!("global norm: relative error {error:.1e}");
    assert!(
        error <= 1e-3,
        "global norm {}, expected {global}",
        total.sqrt()
    );
}

#[test]
fn resnet50_is_keras() {
    let record = record("resnet50");
    let small = ResNet50::new()
        .input([64, 64, 3])
        .classes(10)
        .activation(Activation::Linear);
    let small = small.build().unwrap();
    let full = ResNet50::new().build().unwrap();
    assert_eq!(count(&full, false), 25_636_712);
    check_structure(&record, &small, &full);
    check_numbers(&record, &small);
}

#[test]
fn mobilenet_v2_is_keras() {
    let record = record("mobilenet_v2");
    let small = MobileNetV2::new()
        .input([96, 96, 3])
        .classes(10)
        .activation(Activation::Linear);
    let small = small.build().unwrap();
    let full = MobileNetV2::new().build().unwrap();
    assert_eq!(count(&full, false), 3_538_984);
    check_structure(&record, &small, &full);
    check_numbers(&record, &small);
}

#[test]
fn torchvisions_variants_have_its_parameters() {
    let resnet = ResNet50::torchvision().build().unwrap();
    assert_eq!(count(&resnet, true), 25_557_032);
    let mobilenet = MobileNetV2::torchvision().build().unwrap();
    assert_eq!(count(&mobilenet, true), 3_504_872);
}

#[test]
fn tops_and_poolings() {
    let base = || {
        MobileNetV2::new()
            .input([33, 47, 3])
            .alpha(0.35)
            .include_top(false)
    };
    let dims = |model: Model| model.outputs()[0].dims.clone();
    assert_eq!(dims(base().build().unwrap()), [2, 2, 1280]);
    assert_eq!(dims(base().pooling(Pooling::Max).build().unwrap()), [1280]);
    assert_eq!(
        dims(base().alpha(1.4).pooling(Pooling::Average).build().unwrap()),
        [1792]
    );
    let error = base().input([32]).build().unwrap_err().to_string();
    assert_eq!(
        error,
        "model `mobilenet_v2` takes images: expected an input [height, width, channels], got [32]"
    );
    let error = base().alpha(0.0).build().unwrap_err().to_string();
    assert_eq!(
        error,
        "model `mobilenet_v2`: `alpha` must be above 0 and at most 100, got 0"
    );
}

#[test]
fn a_base_freezes_with_its_statistics() {
    let base = ResNet50::new()
        .input([32, 32, 3])
        .include_top(false)
        .build()
        .unwrap();
    let mut model = FineTune::new(base).build().unwrap();
    assert_eq!(
        model.layers()[model.layers().len() - 4..],
        ["global_average_pooling2d", "hidden", "dropout", "logits"]
    );
    model.freeze("resnet50").unwrap();
    assert_eq!(count(&model, true), 2048 * 512 + 512 + 512 + 1);
    let graph = Graph::new();
    let parameter = |v: &Variable| graph.parameter(&v.name, v.shape.clone());
    let values: Vec<_> = model.variables().iter().map(parameter).collect();
    let zeros = || Shape::new(DType::U32, []);
    let key = graph.parameter("key", Shape::new(DType::U32, [2]));
    let mut cx = Cx::new(&graph, &model, &values).with_training(true);
    cx = cx.with_random(key, graph.parameter("row", zeros()));
    let x = graph.parameter("x", Shape::f32([2, 32, 32, 3]));
    let _ = model.call(&mut cx, &[x]);
    assert!(graph.error().is_none(), "{:?}", graph.error());
    assert!(
        cx.finish().updates.is_empty(),
        "frozen statistics do not move"
    );
}

#[test]
fn preprocessing_is_keras() {
    let mut layers = Batch::default();
    let mut cases = Vec::new();
    for (mode, ours) in [
        ("caffe", Preprocess::caffe()),
        ("tf", Preprocess::tf()),
        ("torch", Preprocess::torch()),
    ] {
        let record = record(&format!("preprocess_{mode}"));
        let input = array(&record["input"]).unwrap();
        let expected = array(&record["output"]).unwrap().to_f64();
        let on_host = ours.apply(&input).unwrap().to_f64();
        assert_close(mode, &on_host, &expected, 1e-6);
        let x = layers.input(input);
        let image = Input::new(&x.dims()[1..]).dtype(x.dtype());
        let model = Sequential::new(image).add(ours).build().unwrap();
        let y = model.call(&mut Cx::new(&layers.graph, &model, &[]), &[x]);
        layers.output(&y[0]);
        cases.push((mode, expected));
    }
    let results = layers.run(&oracle::engine());
    for ((mode, expected), result) in cases.iter().zip(&results) {
        assert_close(mode, &result.to_f64(), expected, 1e-6);
    }
    let error = Preprocess::tf().apply(&HostTensor::zeros(Shape::f32([2, 4])));
    assert!(
        error
            .unwrap_err()
            .to_string()
            .starts_with("preprocess takes images")
    );
}

#[test]
fn rescaling_checks_its_channels() {
    let build = |layer: Rescaling| Sequential::new([2, 3]).add(layer).build();
    let message = |layer| build(layer).unwrap_err().to_string();
    let wrong = message(Rescaling::new([1.0, 2.0]));
    assert!(
        wrong.contains("`scale` has 2 numbers, expected one for each channel"),
        "{wrong}"
    );
    let wrong = message(Rescaling::new(1.0).offset(vec![]));
    assert!(
        wrong.contains("`offset` must have a number for each channel"),
        "{wrong}"
    );
}
