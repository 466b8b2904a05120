//! Values of a state, and variables of its models.

use phalanx::import::LoadWeights;
use phalanx::prelude::*;
use phalanx::strategy::{State, ValueKind};
use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Tensor};

use crate::{assert_near, assert_says, column, mirrored, mlp};

#[test]
fn values_of_ones_own_are_read_as_their_kind_says() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let two = HostTensor::scalar(2.0f32);
    let kinds = [
        ValueKind::Replicated,
        ValueKind::Sum,
        ValueKind::Mean,
        ValueKind::First,
    ];
    let values = kinds.map(|kind| state.add_value("x", &two, kind).unwrap());
    let mut function = strategy.function(|cx, ()| {
        let step = cx.replica_id().convert(DType::F32) + 1.0;
        let mut now = Vec::new();
        for (value, kind) in values.iter().zip(kinds) {
            let added = match kind {
                ValueKind::Replicated => cx.all_reduce(ReduceOp::Max, &step),
                _ => step.clone(),
            };
            now.push(cx.value(value));
            let next = cx.value(value) + added;
            cx.set_value(value, &next);
        }
        [now.remove(1)]
    });
    let read = |state: &State| values.each_ref().map(|v| state.value(v).unwrap().f32s()[0]);
    assert_eq!(read(&state), [2.0, 2.0, 2.0, 2.0]);
    let [sum] = function.call(&mut state, &()).unwrap();
    // Of a sum the first replica has all; replica 1 adds 2 where replica 0 adds 1.
    let parts = sum.local_results().unwrap();
    assert_eq!([parts[0].f32s(), parts[1].f32s()], [[2.0], [0.0]]);
    assert_eq!(read(&state), [4.0, 5.0, 3.5, 3.0]);
    state
        .set_value(&values[1], &HostTensor::scalar(10.0f32))
        .unwrap();
    assert_eq!(read(&state), [4.0, 10.0, 3.5, 3.0]);
}

#[test]
fn functions_take_values_that_were_made_for_each_replica() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let mut function = strategy.function(|cx, (batch, [a, b]): (Inputs, [Tensor; 2])| {
        let sum = &batch.x[0] + (&a + &b).broadcast_to(&[cx.rows(), 1]);
        [cx.per_example(&sum), a + b]
    });
    let own = strategy
        .distribute_values_from_function(|cx| HostTensor::scalar(10.0 * cx.replica_id as f32))
        .unwrap();
    let same = strategy.broadcast(&HostTensor::scalar(1.0f32)).unwrap();
    assert_eq!(same.value().unwrap().f32s(), [1.0]);
    let batch = strategy
        .distribute_batch(&column(&[1.0, 2.0, 3.0]))
        .unwrap();
    let given = (batch, [own, same.clone()]);
    let [sum, _] = function.call(&mut state, &given).unwrap();
    assert_eq!(strategy.gather(&sum, 0).unwrap().f32s(), [2.0, 3.0, 14.0]);
    // Results go on to the next function without a way over the host.
    let mut double = strategy.function(|cx, x: Tensor| {
        let mean = cx.mean(&x, None);
        [cx.per_example(&(x * 2.0)), mean]
    });
    let [twice, mean] = double.call(&mut state, &sum).unwrap();
    assert_eq!(twice.local_results().unwrap()[0].f32s(), [4.0, 6.0]);
    // With the rows of the batch that they were computed from.
    assert_eq!(strategy.gather(&twice, 0).unwrap().f32s(), [4.0, 6.0, 28.0]);
    let mean = strategy.reduce(Reduce::Sum, &mean, None).unwrap();
    assert_near("mean", &mean.to_f64(), &[19.0 / 3.0], 1e-6);
}

/// `d x^2 w / d x` of each row, by itself and among all rows, and what the derivative of their sum is.
#[test]
fn jacobians_are_of_the_rows_of_a_replica() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let weights = HostTensor::new([1, 3], &[1.0f32, -2.0, 0.5]);
    let mut function = strategy.function(|cx, batch: Inputs| {
        let x = &batch.x[0];
        let y = x.square().matmul(&x.graph().constant(weights.clone()));
        let own = cx.batch_jacobian(&y, &[x]).remove(0);
        let whole = cx.jacobian(&y, &[x]).remove(0);
        let of_sum = cx.derivatives(&whole.sum_all(), &[x]).remove(0);
        [cx.per_example(&own), cx.per_example(&of_sum)]
    });
    let batch = strategy
        .distribute_batch(&column(&[1.0, 2.0, 3.0, -4.0]))
        .unwrap();
    let [own, of_sum] = function.call(&mut state, &batch).unwrap();
    let own = strategy.gather(&own, 0).unwrap();
    assert_eq!(own.dims(), [4, 3, 1]);
    let expected = [1.0f32, 2.0, 3.0, -4.0].map(|x| [2.0 * x, -4.0 * x, x]);
    assert_eq!(own.f32s(), expected.concat());
    // The sum of `2 x w` over the weights and the row itself alone.
    assert_eq!(strategy.gather(&of_sum, 0).unwrap().f32s(), [-1.0; 4]);
}

#[test]
fn a_models_variables_are_read_set_and_saved() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let one = Sequential::new([1]).add(Dense::new(1)).build().unwrap();
    let a = state.add_model("a", one.clone()).unwrap();
    let values = vec![
        HostTensor::new([1, 1], &[3.0f32]),
        HostTensor::new([1], &[1.0f32]),
    ];
    let b = state
        .add_model("b", SavedModel::new(one, values).unwrap())
        .unwrap();
    state
        .set_variables(&a, &[("dense/bias", HostTensor::new([1], &[9.0f32]))])
        .unwrap();
    let mut average = strategy.function(|cx, x: Tensor| {
        let (target, source) = (cx.variables(&a), cx.variables(&b));
        let mean: Vec<Tensor> = target
            .iter()
            .zip(&source)
            .map(|(a, b)| (a + b) * 0.5)
            .collect();
        cx.set_variables(&a, &mean);
        [cx.call(&a, &[x]).remove(0)]
    });
    let x = strategy
        .broadcast(&HostTensor::new([1, 1], &[0.0f32]))
        .unwrap();
    let [y] = average.call(&mut state, &x).unwrap();
    assert_eq!(y.value().unwrap().f32s(), [5.0]);
    let saved = state.saved_model(&a).unwrap();
    assert_eq!(saved.value("dense/bias").unwrap().f32s(), [5.0]);
}

#[test]
fn a_model_of_any_layers_is_saved_and_read_back() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let model = state.add_model("mlp", mlp()).unwrap();
    let path = std::env::temp_dir().join(format!("phalanx-loops-{}.phx", std::process::id()));
    state.save(&model, &path).unwrap();
    let read = SavedModel::load(&path).unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    assert_eq!(read.values(), state.saved_model(&model).unwrap().values());
}

/// Two critics that begin alike and learn alike would be one. The first model begins as by `compile`.
#[test]
fn models_of_the_same_layers_begin_with_values_of_their_own() {
    let strategy = mirrored(2);
    let mut state = strategy.state(5).unwrap();
    let models = ["a", "b", "c"].map(|name| state.add_model(name, mlp()).unwrap());
    let [a, b, c] = models
        .each_ref()
        .map(|model| state.saved_model(model).unwrap());
    assert_eq!(a.values(), mlp().build().unwrap().init(5).unwrap());
    let kernels = [&a, &b, &c].map(|model| model.value("dense/kernel").unwrap().f32s());
    assert!(kernels[0] != kernels[1] && kernels[1] != kernels[2] && kernels[0] != kernels[2]);
    let copy = state.add_model("copy", b.clone()).unwrap();
    assert_eq!(state.saved_model(&copy).unwrap().values(), b.values());
}

#[test]
fn a_model_takes_the_weights_of_a_file() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let model = state.add_model("mlp", mlp()).unwrap();
    let other = state.add_model("other", mlp()).unwrap();
    let narrow = Sequential::new([4]).add(Dense::new(2).named("narrow"));
    let narrow = state.add_model("narrow", narrow).unwrap();
    let first = state.saved_model(&model).unwrap();
    assert_ne!(first.values(), state.saved_model(&other).unwrap().values());
    for ending in ["weights.h5", "safetensors"] {
        let name = format!("phalanx-loops-{}.{ending}", std::process::id());
        let path = std::env::temp_dir().join(name);
        first.save_weights(&path).unwrap();
        let others = [("dense/bias", HostTensor::new([8], &[7.0f32; 8]))];
        state.set_variables(&other, &others).unwrap();
        let read = state.load_weights(&other, &path, LoadWeights::default());
        assert!(read.unwrap().is_complete());
        let before = state.variables(&narrow).unwrap();
        let refused = state.load_weights(&narrow, &path, LoadWeights::default());
        std::fs::remove_file(&path).unwrap();
        assert_says(refused, &["`narrow/kernel`"]);
        assert_eq!(state.variables(&narrow).unwrap(), before);
        let same = state.saved_model(&other).unwrap();
        assert_eq!(first.values(), same.values(), "{ending}");
    }
}

/// Gives two normal numbers and one from 0 to 1 for each example, in training.
#[derive(Debug)]
struct Draws;

impl Layer for Draws {
    fn kind(&self) -> &'static str {
        "draws"
    }
    fn config(&self) -> serde_json::Value {
        serde_json::json!({})
    }
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        if !cx.training() {
            return inputs[0].clone();
        }
        let rows = inputs[0].dim(0);
        let [normal, uniform] = [cx.normal(&[rows, 2]), cx.uniform(&[rows, 1])];
        Tensor::concat(&[&normal, &uniform], 1)
    }
}

#[test]
fn what_layers_draw_is_normal_or_even_and_the_same_however_a_batch_is_divided() {
    const ROWS: usize = 4001;
    let drawn = |replicas: usize| {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(3).unwrap();
        let model = state
            .add_model("draws", Sequential::new([3]).add(Draws))
            .unwrap();
        let mut step = strategy.function(|cx, batch: Inputs| {
            let drawn = cx.train(&model, &batch.x).remove(0);
            [cx.per_example(&drawn)]
        });
        let mut batch = column(&vec![0.0; 3 * ROWS]);
        batch.x[0] = batch.x[0].reshape([ROWS, 3]).unwrap();
        let batch = strategy.distribute_batch(&batch).unwrap();
        let mut values = || {
            let [drawn] = step.call(&mut state, &batch).unwrap();
            strategy.gather(&drawn, 0).unwrap().to_f64()
        };
        [values(), values()]
    };
    let [first, second] = drawn(1);
    assert_eq!(drawn(2), [first.clone(), second.clone()]);
    assert_ne!(first, second);
    let column = |at: usize| -> Vec<f64> { first.chunks(3).map(|row| row[at]).collect() };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / ROWS as f64;
    let moment = |values: &[f64], power: i32| {
        mean(
            &values
                .iter()
                .map(|value| value.powi(power))
                .collect::<Vec<_>>(),
        )
    };
    let (a, b, even) = (column(0), column(1), column(2));
    // Five standard errors of the moments of a normal distribution.
    let within = |what: &str, got: f64, expected: f64, variance: f64| {
        let error = 5.0 * (variance / ROWS as f64).sqrt();
        assert!((got - expected).abs() < error, "{what}: {got}");
    };
    for normal in [&a, &b] {
        within("mean", mean(normal), 0.0, 1.0);
        within("variance", moment(normal, 2), 1.0, 2.0);
        within("kurtosis", moment(normal, 4), 3.0, 96.0);
    }
    let products: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a * b).collect();
    within("correlation", mean(&products), 0.0, 1.0);
    within("mean of the even ones", mean(&even), 0.5, 1.0 / 12.0);
    within(
        "square of the even ones",
        moment(&even, 2),
        1.0 / 3.0,
        4.0 / 45.0,
    );
    assert!(even.iter().all(|value| (0.0..1.0).contains(value)));
}
