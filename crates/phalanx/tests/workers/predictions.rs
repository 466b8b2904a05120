//! Predictions of models whose layers exchange values with the other workers.

use phalanx::nn::{Cx, Layer};
use phalanx::prelude::*;
use phalanx_graph::op::ReduceOp;
use phalanx_graph::{HostTensor, Tensor};

use crate::on_workers;

const BATCHES: usize = 40;

/// The sum of the rows of all replicas, after some work.
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
        let square = x.sum(&[0, 1]).broadcast_to(&[300, 300]);
        let nothing = square.matmul(&square).sum(&[0, 1]) * 0.0;
        (x + &nothing).all_reduce(ReduceOp::Sum)
    }
}

/// A run would not be waited for by the next one, which takes nothing of it, and their exchanges would mix.
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
