//! Values of a state, and variables of its models.

use phalanx::prelude::*;
use phalanx::strategy::{State, ValueKind};
use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Tensor};

use crate::{assert_near, column, mirrored, mlp};

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
