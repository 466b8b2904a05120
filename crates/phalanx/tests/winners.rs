//! Gradients where a normalization comes before a maximum, against Keras' in f64: the compiler computes the normalization in several
//! fusions, and no two of them need agree on which element is the largest.

mod oracle;

use oracle::{Batch, array, formula_value, name, records, uniform};
use phalanx::engine::{Engine, EngineOptions, KernelsMode};
use phalanx::losses::{Loss, MeanSquaredError};
use phalanx::nn::{
    Activation, ActivationLayer, BatchNorm, Conv2d, Cx, Dense, Embedding, Flatten, GlobalMaxPool1d,
    Input, Layer, MaxPool2d, Model, Sequential, ZeroPadding2d,
};
use phalanx_graph::{DType, HostTensor, Pool2d, gradients};
use serde_json::Value;

/// By the formula of `make_winners.py`.
fn weight(path: &str, dims: &[usize]) -> HostTensor {
    if path.ends_with("beta") || path.ends_with("embeddings") {
        let values = uniform(path, dims.iter().product()).map(|u| u as f32);
        return HostTensor::new(dims, &values.collect::<Vec<_>>());
    }
    formula_value(path, dims)
}

fn relu_layer() -> ActivationLayer {
    ActivationLayer::new(Activation::Relu)
}

fn cnn() -> Model {
    let model = Sequential::new([28, 28, 1])
        .add(Conv2d::new(8, 3).named("conv"))
        .add(BatchNorm::new().named("norm"))
        .add(relu_layer())
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dense::new(2).named("dense"));
    model.build().unwrap()
}

fn stem() -> Model {
    let model = Sequential::new([32, 32, 3])
        .add(ZeroPadding2d::new(3))
        .add(Conv2d::new(16, 7).strides(2).named("conv"))
        .add(BatchNorm::new().epsilon(1.001e-5).named("norm"))
        .add(relu_layer())
        .add(ZeroPadding2d::new(1))
        .add(MaxPool2d::new(3).strides(2))
        .add(Flatten)
        .add(Dense::new(2).named("dense"));
    model.build().unwrap()
}

fn tokens(steps: usize, dim: usize) -> Model {
    let model = Sequential::new(Input::new([steps]).dtype(DType::I32))
        .add(Embedding::new(11, dim).named("embedding"))
        .add(BatchNorm::new().named("norm"))
        .add(relu_layer())
        .add(GlobalMaxPool1d::new())
        .add(Dense::new(2).named("dense"));
    model.build().unwrap()
}

/// Adds the gradients of a record's network to a program.
fn add(case: &mut Batch, record: &Value, model: &Model) -> Vec<String> {
    let dims = record["input"].as_array().unwrap().iter();
    let dims: Vec<usize> = dims.map(|dim| dim.as_u64().unwrap() as usize).collect();
    let drawn = |what: &str, dims: &[usize]| {
        let name = format!("{}/{what}", name(record));
        let values = uniform(&name, dims.iter().product());
        HostTensor::new(dims, &values.map(|u| u as f32).collect::<Vec<_>>())
    };
    let x = match dims.len() {
        2 => {
            let name = format!("{}/x", name(record));
            let values = uniform(&name, dims.iter().product());
            let tokens: Vec<i32> = values.map(|u| ((u + 1.0) * 5.5) as i32).collect();
            HostTensor::new(dims.clone(), &tokens)
        }
        _ => drawn("x", &dims),
    };
    let (x, y) = (case.input(x), case.input(drawn("targets", &[dims[0], 2])));
    let variables = model.variables();
    let values: Vec<_> = variables
        .iter()
        .map(|v| case.input(weight(&v.name, &v.shape.dims)))
        .collect();
    let mut cx = Cx::new(&case.graph, model, &values).with_training(true);
    let output = model.call(&mut cx, &[x]).remove(0);
    let loss = Loss::from(MeanSquaredError)
        .per_example(&y, &output)
        .mean(&[0]);
    let trained = variables.iter().zip(&values).filter(|(v, _)| v.trainable);
    let (names, wrt): (Vec<String>, Vec<_>) =
        trained.map(|(v, value)| (v.name.clone(), value)).unzip();
    for slope in gradients(&loss, &wrt) {
        case.output(&slope.expect("every variable counts"));
    }
    names
}

/// The largest difference, as a part of the largest number of any gradient of the network; fails on what is no number.
fn error(record: &Value, names: &[String], results: &[HostTensor]) -> f64 {
    let expected = |name: &String| array(&record["gradients"][name]).unwrap().to_f64();
    let all = names.iter().flat_map(expected);
    let scale = all.fold(0.0, |most: f64, value| most.max(value.abs()));
    let mut worst = 0.0;
    for (variable, result) in names.iter().zip(results) {
        let expected = expected(variable);
        let got = result.to_f64();
        assert_eq!(got.len(), expected.len(), "{variable}");
        for (got, expected) in got.iter().zip(&expected) {
            let error = (got - expected).abs() / scale;
            assert!(error.is_finite(), "{}: {variable}: {got}", name(record));
            worst = error.max(worst);
        }
    }
    worst
}

fn check(kernels: KernelsMode) {
    let engine = Engine::new(&EngineOptions {
        compile_cache: false,
        kernels,
        ..EngineOptions::default()
    })
    .unwrap();
    let records = records("winners.json");
    let models = [cnn(), stem(), tokens(3, 8), tokens(4, 6), tokens(7, 16)];
    assert_eq!(records.len(), models.len());
    let mut errors = Vec::new();
    for (record, model) in records.iter().zip(models) {
        let mut case = Batch::default();
        let names = add(&mut case, record, &model);
        let results = case.run(&engine);
        errors.push((name(record), error(record, &names, &results)));
    }
    println!("{errors:?}");
    assert!(errors.iter().all(|(_, error)| *error <= 1e-5), "{errors:?}");
}

#[test]
fn with_kernels() {
    check(KernelsMode::Always);
}

#[test]
fn without_kernels() {
    check(KernelsMode::Off);
}

/// Dims of images, and the size and stride of a pooling's windows; none for the whole image.
type Case = ([usize; 4], Option<(usize, usize)>);

/// Windows that touch or overlap, and whole images.
const CASES: [Case; 14] = [
    ([1, 8, 8, 3], Some((2, 2))),
    ([1, 2, 2, 1], Some((2, 2))),
    ([2, 5, 7, 3], Some((2, 2))),
    ([3, 11, 6, 5], Some((2, 2))),
    ([4, 16, 16, 8], Some((2, 2))),
    ([1, 28, 28, 8], Some((2, 2))),
    ([2, 33, 20, 4], Some((2, 2))),
    ([2, 9, 9, 16], Some((3, 2))),
    ([1, 12, 13, 7], Some((3, 1))),
    ([2, 40, 1, 3], Some((1, 1))),
    ([2, 3, 1, 4], None),
    ([3, 7, 5, 3], None),
    ([1, 16, 16, 16], None),
    ([5, 4, 4, 1], None),
];

/// `sum(r max(normalized x))` for each case, and its gradients by `beta`: each maximum passes on its whole cotangent, to whichever
/// elements, so that the gradient is the sum of `r`. The multiples of 1/8 are exact in every type.
fn conserved(case: &mut Batch, dtype: DType) -> Vec<Vec<f64>> {
    let mut expected = Vec::new();
    for (number, (dims, pool)) in CASES.into_iter().enumerate() {
        let name = format!("case{number}");
        let values = uniform(&name, dims.iter().product()).map(|u| u as f32);
        let x = case.input(HostTensor::new(dims, &values.collect::<Vec<_>>()));
        let channels = dims[3];
        let of_channels = |name: String| {
            let values = uniform(&name, channels).map(|u| 1.0 + 0.5 * u as f32);
            HostTensor::new([channels], &values.collect::<Vec<_>>())
        };
        let gamma = case.input(of_channels(format!("{name}/gamma")));
        let beta = case.input(of_channels(format!("{name}/beta")));
        let [y, ..] = x.batch_norm(&gamma, &beta, 1e-3);
        let y = y.convert(dtype);
        let y = match pool {
            Some((size, stride)) => y.max_pool2d(Pool2d {
                size: [size.min(dims[1]), size.min(dims[2])],
                strides: [stride; 2],
                padding: [(0, 0); 2],
            }),
            None => y.max(&[1, 2]),
        };
        let r: Vec<f32> = uniform(&format!("{name}/r"), y.dims().iter().product())
            .map(|u| (8.0 * u).round() as f32 / 8.0)
            .collect();
        let mut sums = vec![0.0; channels];
        for (place, r) in r.iter().enumerate() {
            sums[place % channels] += f64::from(*r);
        }
        let r = case.input(HostTensor::new(y.dims(), &r));
        let loss = (y * r.convert(dtype)).convert(DType::F32).sum_all();
        case.output(&gradients(&loss, &[&beta])[0].clone().unwrap());
        expected.push(sums);
    }
    expected
}

#[test]
fn maxima_pass_on_their_cotangents_in_every_type() {
    for kernels in [KernelsMode::Always, KernelsMode::Off] {
        for quick_compile in [false, true] {
            let engine = Engine::new(&EngineOptions {
                compile_cache: false,
                kernels: kernels.clone(),
                quick_compile,
                ..EngineOptions::default()
            })
            .unwrap();
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                let mut case = Batch::default();
                let expected = conserved(&mut case, dtype);
                let results = case.run(&engine);
                for (number, (result, expected)) in results.iter().zip(&expected).enumerate() {
                    let what = format!("{kernels:?} {dtype:?} {:?}", CASES[number]);
                    // What ties share is rounded.
                    let shared = CASES[number].1.is_none() && dtype != DType::F32;
                    let tolerance = if shared { 1e-2 } else { 1e-6 };
                    phalanx_testkit::assert_close(&what, &result.to_f64(), expected, tolerance);
                }
            }
        }
    }
}
