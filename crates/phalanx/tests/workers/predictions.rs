//! Predictions of models whose layers exchange values with the other workers.

use phalanx::nn::{Cx, Layer};
use phalanx::prelude::*;
use phalanx_graph::op::ReduceOp;
use phalanx_graph::{HostTensor, Tensor};

use crate::on_workers;

const BATCHES: usize = 40;
/// How many products of matrices a batch takes that takes long.
const ROUNDS: f64 = 40.0;

/// The sum of the rows of all replicas. Each second batch takes long before that, where the other worker's does not: runs that were not
/// waited for would come to their exchanges in another order than the other worker's.
#[derive(Debug)]
struct SumOfAll;

impl Layer for SumOfAll {
    fn kind(&self) -> &'static str {
        "sum_of_all"
    }
    fn config(&self) -> serde_json::Value {
        serde_json::json!({})
    }
    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        // Rows are `2 * batch + worker`.
        let row = x.sum(&[0, 1]);
        let batch = (&row * 0.5).floor();
        let worker = &row - &batch * 2.0;
        let turn = &batch + &worker;
        let rounds = (&turn - (&turn * 0.5).floor() * 2.0) * ROUNDS;
        let matrix = row.like(0.01).broadcast_to(&[100, 100]);
        let left = x.graph().while_loop(
            &[&rounds, &matrix],
            |values| values[0].greater(&values[0].like(0.0)),
            |values| vec![&values[0] - 1.0, values[1].matmul(&values[1])],
        );
        (x + left[1].sum(&[0, 1]) * 0.0).all_reduce(ReduceOp::Sum)
    }
}

/// The next run takes nothing of the one before. A device that runs several at a time would mix their exchanges if they were not waited
/// for; the CPU runs one after the other, as the test found when nothing waited. That they are waited for there, too, is a test of
/// `crates/phalanx/src/fit/predict.rs`.
#[test]
fn sums_over_workers_are_of_one_batch() {
    let rows: Vec<f32> = (0..2 * BATCHES).map(|row| row as f32).collect();
    let predicted = on_workers(2, 1, |strategy| {
        let model = Sequential::new([1]).add(SumOfAll).build().unwrap();
        let compile = Compile {
            loss: MeanSquaredError.into(),
            ..Compile::default()
        };
        let mut trainer = strategy.compile(model, compile).unwrap();
        let x = HostTensor::new([2 * BATCHES, 1], &rows);
        let data = Dataset::from_arrays(x.clone(), x).unwrap();
        trainer.predict(&data.batch(2)).unwrap()[0].to_f64()
    });
    let expected: Vec<f64> = (0..BATCHES)
        .flat_map(|k| [4.0 * k as f64 + 1.0; 2])
        .collect();
    for one in predicted {
        assert_eq!(one, expected);
    }
}
