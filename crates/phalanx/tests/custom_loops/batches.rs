//! Batches over replicas: shapes, rows that only fill up, random numbers, rows of steps.

use std::cell::Cell;

use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx::strategy::{DistributedBatch, Function, ReplicaCx};
use phalanx_graph::op::ReduceOp;
use phalanx_graph::{Shape, Tensor};

use crate::{assert_near, assert_says, column, engine, mirrored, rows, told};

#[test]
fn a_function_is_traced_once_for_each_shape() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let bodies = Cell::new(0);
    let mut function = strategy.function(|cx, batch: Inputs| {
        bodies.set(bodies.get() + 1);
        [cx.all_reduce(ReduceOp::Sum, &(cx.examples() + batch.x[0].sum_all() * 0.0))]
    });
    let data = strategy.distribute_dataset(&rows(27).batch(8));
    let mut counts = Vec::new();
    for epoch in 0..2 {
        for batch in data.epoch(epoch) {
            let [count] = function.call(&mut state, &batch.unwrap()).unwrap();
            counts.push(count.value().unwrap().f32s()[0]);
        }
    }
    assert_eq!(counts, [8.0, 8.0, 8.0, 3.0, 8.0, 8.0, 8.0, 3.0]);
    assert_eq!((bodies.get(), function.traces()), (2, 2));
}

#[test]
fn uneven_parts_are_filled_up_and_told() {
    let strategy = mirrored(3);
    let mut state = strategy.state(1).unwrap();
    let mut function = strategy.function(|cx, batch: Inputs| {
        let own = &batch.x[0] * 1.0;
        let mean = cx.mean(&own, None);
        let everyone = cx.all_gather(&cx.example_mask(), 0);
        [cx.per_example(&own), mean, everyone, cx.replica_id()]
    });
    let batch = strategy
        .distribute_batch(&column(&[1.0, 2.0, 3.0, 6.0]))
        .unwrap();
    assert_eq!(
        (batch.rows(), batch.rows_per_replica()),
        (4, &[2, 1, 1][..])
    );
    let [own, mean, mask, id] = function.call(&mut state, &batch).unwrap();
    let parts = own.local_results().unwrap();
    let parts: Vec<Vec<f32>> = parts.iter().map(HostTensor::f32s).collect();
    assert_eq!(parts, [vec![1.0, 2.0], vec![3.0], vec![6.0]]);
    assert_eq!(mask.value().unwrap().f32s(), [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
    assert_eq!(
        strategy.gather(&own, 0).unwrap().f32s(),
        [1.0, 2.0, 3.0, 6.0]
    );
    assert_eq!(strategy.gather(&own, 0).unwrap().dims(), [4, 1]);
    // The mean of the replicas' means is 3.5; that of the examples 3.
    let number = |how, value, dim| strategy.reduce(how, value, dim).unwrap().to_f64();
    assert_eq!(number(Reduce::Mean, &own, Some(0)), [3.0]);
    assert_eq!(number(Reduce::Sum, &mean, None), [3.0]);
    assert_eq!(number(Reduce::Max, &own, Some(0)), [6.0]);
    assert_eq!(number(Reduce::Sum, &id, None), [3.0]);
    // Two rows on three replicas: the last has none.
    let batch = strategy.distribute_batch(&column(&[5.0, 7.0])).unwrap();
    let [own, mean, ..] = function.call(&mut state, &batch).unwrap();
    assert_eq!(own.local_results().unwrap()[2].dims(), [0, 1]);
    assert_eq!(number(Reduce::Sum, &mean, None), [6.0]);
    assert_eq!(strategy.gather(&own, 0).unwrap().f32s(), [5.0, 7.0]);
}

#[test]
fn random_numbers_belong_to_examples_not_to_replicas() {
    let draw = |replicas: usize| {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(3).unwrap();
        let mut function = strategy.function(|cx, batch: Inputs| {
            let (rows, zero) = (cx.rows(), batch.x[0].sum_all() * 0.0);
            let (a, b) = (cx.normal(rows, &[2]), cx.uniform(rows, &[2]));
            [cx.per_example(&(a + &zero)), cx.per_example(&(b + zero))]
        });
        let batch = strategy.distribute_batch(&column(&[0.0; 301])).unwrap();
        let mut draws = Vec::new();
        for _ in 0..2 {
            let results = function.call(&mut state, &batch).unwrap();
            draws.extend(results.map(|r| strategy.gather(&r, 0).unwrap().to_f64()));
        }
        draws
    };
    let (one, three) = (draw(1), draw(3));
    assert_eq!(one, three);
    assert_ne!(one[0], one[2], "a step draws what the one before drew");
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let square = |x: &[f64]| mean(&x.iter().map(|x| x * x).collect::<Vec<_>>());
    assert!(mean(&one[0]).abs() < 0.12 && (square(&one[0]) - 1.0).abs() < 0.15);
    assert!((mean(&one[1]) - 0.5).abs() < 0.04 && one[1].iter().all(|x| (0.0..1.0).contains(x)));
}

/// Draws that are not of the batch, as the noise of a generator: no two are alike, also where the batch is filled up.
#[test]
fn draws_of_another_number_of_rows_differ_on_all_replicas() {
    let strategy = mirrored(2);
    let mut state = strategy.state(3).unwrap();
    let drop = state.add_model("drop", Sequential::new([4]).add(Dropout::new(0.5)));
    let drop = drop.unwrap();
    let mut function = strategy.function(|cx, batch: Inputs| {
        let zero = batch.x[0].sum_all() * 0.0;
        let draws = cx.uniform(8, &[1]) + &zero;
        let ones = cx.graph().full(&Shape::f32([8, 4]), 1.0) + zero;
        let dropped = cx.train(&drop, &[ones]).remove(0);
        let (draws, dropped) = (cx.per_replica(&draws), cx.per_replica(&dropped));
        [draws, dropped]
    });
    for rows in [4, 3] {
        let batch = column(&vec![1.0; rows]);
        let batch = strategy.distribute_batch(&batch).unwrap();
        let results = function.call(&mut state, &batch).unwrap();
        let [draws, dropped] = results.map(|r| strategy.gather(&r, 0).unwrap().f32s());
        let mut bits: Vec<u32> = draws.iter().map(|x| x.to_bits()).collect();
        bits.sort_unstable();
        bits.dedup();
        assert_eq!(bits.len(), 16, "{rows} rows: {draws:?}");
        assert_ne!(dropped[..32], dropped[32..], "{rows} rows");
        assert!(dropped[8..32] != dropped[32..56], "{rows} rows");
        assert!(dropped[4..32] != dropped[32..60], "{rows} rows");
    }
}

/// Steps folded into rows: a layer that only sees rows, several to an example.
#[derive(Clone, Debug)]
struct Folded;

impl Layer for Folded {
    fn kind(&self) -> &'static str {
        "folded"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let rows = x.reshape(&[x.dim(0) * x.dim(1), x.dim(2)]);
        let normal = BatchNorm::new().synchronized(true);
        let rows = cx.layer("normal", &normal, &[rows]);
        let rows = cx.layer("dropout", &Dropout::new(0.5), &[rows]);
        rows.reshape(&x.dims())
    }
}

#[test]
fn rows_of_steps_are_examples_where_their_rows_are() {
    let values: Vec<f32> = (0..30).map(|i| (i * i % 17) as f32).collect();
    let batch = Batch {
        x: vec![HostTensor::new([5, 2, 3], &values)],
        ..column(&[])
    };
    let run = |replicas: usize| {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(3).unwrap();
        let model = Sequential::new([2, 3]).add(Folded);
        let model = state.add_model("folded", model).unwrap();
        let mut function = strategy.function(|cx, batch: Inputs| {
            let y = cx.train(&model, &batch.x).remove(0);
            let folded = batch.x[0].mean(&[2]).reshape(&[cx.rows() * 2]);
            let folded = cx.folded(&folded);
            let mean = cx.mean(&folded, None);
            [cx.per_example(&y), cx.all_reduce(ReduceOp::Sum, &mean)]
        });
        let batch = strategy.distribute_batch(&batch).unwrap();
        let [y, mean] = function.call(&mut state, &batch).unwrap();
        (
            strategy.gather(&y, 0).unwrap().to_f64(),
            mean.value().unwrap().to_f64(),
        )
    };
    let (one, two) = (run(1), run(2));
    assert_near("outputs", &one.0, &two.0, 1e-5);
    assert!(one.0.contains(&0.0) && one.0.iter().any(|&y| y != 0.0));
    assert_near("mean", &one.1, &two.1, 1e-6);
    let mean = values.iter().sum::<f32>() / 30.0;
    assert_near("mean", &one.1, &[f64::from(mean)], 1e-6);
}

/// Made and real examples in one tensor, as a GAN's discriminator is trained on: of five the second replica has two and one that only
/// fills up, twice.
#[test]
fn rows_one_batch_after_the_other_are_examples_where_their_rows_are() {
    let run = |replicas: usize| {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(3).unwrap();
        let model = Sequential::new([1]).add(BatchNorm::new().synchronized(true));
        let model = state.add_model("normed", model).unwrap();
        let mut function = strategy.function(|cx, batch: Inputs| {
            let real = &batch.x[0];
            let both = Tensor::concat(&[&(real * 0.5 + 7.0), real], 0);
            let both = cx.concatenated(&both);
            let y = cx.train(&model, std::slice::from_ref(&both)).remove(0);
            let squares = (&y * &both).square();
            let squares = cx.concatenated(&squares);
            let mean = cx.mean(&squares, None);
            [cx.all_reduce(ReduceOp::Sum, &mean)]
        });
        let batch = column(&[1.0, 2.0, 3.0, 6.0, -4.0]);
        let batch = strategy.distribute_batch(&batch).unwrap();
        let [mean] = function.call(&mut state, &batch).unwrap();
        let variables = state.variables(&model).unwrap().into_iter();
        let variables = variables.flat_map(|(_, value)| value.to_f64());
        let mean = mean.value().unwrap().to_f64();
        mean.into_iter().chain(variables).collect::<Vec<f64>>()
    };
    assert_near("two replicas", &run(2), &run(1), 1e-5);
    let strategy = mirrored(2);
    let mut state = strategy.state(3).unwrap();
    let mut function = strategy.function(|cx, batch: Inputs| {
        let both = Tensor::concat(&[&batch.x[0], &batch.x[0]], 0);
        [cx.mean(&both, None)]
    });
    let batch = strategy.distribute_batch(&column(&[1.0, 2.0, 3.0]));
    let error = function.call(&mut state, &batch.unwrap());
    assert_says(error, &["4 rows", "`cx.folded`", "`cx.concatenated`"]);
}

/// Keras 3: the statistics are those of the steps that are not padding. A Reshape, even to the same dims, has no mask.
#[test]
fn padding_is_left_out_of_the_statistics_of_a_batch() {
    let mut values: Vec<f32> = (0..60).map(|i| (i * i % 23) as f32 - 9.0).collect();
    // In steps of two features: the last ones of each row but the first.
    let lens = [6, 2, 5, 1, 3];
    let is_padding = |i: usize| i / 2 % 6 >= lens[i / 12];
    for (i, value) in values.iter_mut().enumerate() {
        *value *= f32::from(!is_padding(i));
    }
    let batch = Batch {
        x: vec![HostTensor::new([5, 6, 2], &values)],
        ..column(&[])
    };
    let moments: Vec<[f64; 2]> = [0, 1]
        .map(|feature| {
            let kept = (0..60).filter(|&i| i % 2 == feature && !is_padding(i));
            let kept: Vec<f64> = kept.map(|i| f64::from(values[i])).collect();
            let mean = kept.iter().sum::<f64>() / kept.len() as f64;
            let apart = kept.iter().map(|x| (x - mean).powi(2));
            [mean, apart.sum::<f64>() / kept.len() as f64]
        })
        .into();
    for replicas in [1, 2] {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(3).unwrap();
        let normal = BatchNorm::new().synchronized(true).momentum(0.0);
        let masking = || Sequential::new([6, 2]).add(Masking::new(0.0));
        let mut add = |name, model: Sequential| state.add_model(name, model).unwrap();
        let model = add("masked", masking().add(normal.clone()));
        // The same as two models, of which the first finds the padding.
        let masked = add("masking", masking());
        let apart = add("apart", Sequential::new([6, 2]).add(normal));
        let reshaped = add("reshaped", masking().add(Reshape::new([6, 2])));
        let masks = Cell::new([true; 3]);
        let mut function = strategy.function(|cx, batch: Inputs| {
            let normal = cx.train(&model, &batch.x).remove(0);
            let same = cx.train(&reshaped, &batch.x).remove(0);
            let steps = cx.train(&masked, &batch.x);
            let second = cx.train(&apart, &steps).remove(0);
            masks.set([&normal, &second, &same].map(|y| cx.padding_mask(y).is_some()));
            [cx.per_example(&normal), cx.per_example(&same)]
        });
        let batch = strategy.distribute_batch(&batch).unwrap();
        let [_, same] = function.call(&mut state, &batch).unwrap();
        assert_eq!(masks.get(), [true, true, false]);
        assert_eq!(strategy.gather(&same, 0).unwrap().f32s(), values);
        let of_two = state.variables(&apart).unwrap();
        for (name, value) in state.variables(&model).unwrap().into_iter().chain(of_two) {
            let at = match name.rsplit('/').next() {
                Some("moving_mean") => 0,
                Some("moving_variance") => 1,
                _ => continue,
            };
            let expected = [moments[0][at], moments[1][at]];
            assert_near(&name, &expected, &value.to_f64(), 1e-5);
        }
    }
}

/// What is said where rows may be examples or fill up.
const UNSAID: [&str; 4] = [
    "result 0 of the function has 2 rows on each replica",
    "only [2, 1] are examples",
    "`cx.per_example(&result)`",
    "`cx.per_replica(&result)`",
];

/// Of the rows of a batch: themselves, said to be examples, said to be the replica's, their sum here and over replicas.
fn results(cx: &mut ReplicaCx<'_>, batch: &Inputs) -> [Tensor; 5] {
    let own = &batch.x[0] * 1.0;
    let (said, other) = (cx.per_example(&(&own + 0.0)), cx.per_replica(&(&own * 2.0)));
    let (sum, whole) = (own.sum(&[0]), own.all_reduce(ReduceOp::Sum));
    [own, said, other, sum, whole]
}

#[test]
fn rows_that_only_fill_up_are_never_taken_for_examples() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let mut function = strategy.function(|cx, batch: Inputs| results(cx, &batch));
    let batch = |values: &[f32]| strategy.distribute_batch(&column(values)).unwrap();
    let uneven = batch(&[1.0, 2.0, 3.0]);
    let [own, said, other, sum, whole] = function.call(&mut state, &uneven).unwrap();
    let expected = UNSAID;
    for dim in [None, Some(0), Some(1)] {
        assert_says(strategy.reduce(Reduce::Sum, &own, dim), &expected);
    }
    assert_says(strategy.gather(&own, 0), &expected);
    assert_says(own.local_results(), &expected);
    // What is said, what is as long as no batch, and what all replicas have alike is read.
    let sums = |value, dim| strategy.reduce(Reduce::Sum, value, dim).unwrap().f32s();
    assert_eq!(sums(&said, Some(0)), [6.0]);
    assert_eq!(strategy.gather(&other, 0).unwrap().dims(), [4, 1]);
    assert_eq!(strategy.gather(&sum, 0).unwrap().dims(), [2]);
    assert_eq!(whole.value().unwrap().dims(), [2, 1]);
    // Nor does another function forget it, or guess.
    let mut next = strategy.function(|_, x: Tensor| [x + 1.0]);
    let [more] = next.call(&mut state, &said).unwrap();
    assert_says(strategy.gather(&more, 0), &expected);
    let asks = [&["the argument: "], &expected[..]].concat();
    assert_says(next.call(&mut state, &own), &asks);
    next.call(&mut state, &other).unwrap();
    let mut two_ways = strategy.function(|cx, batch: Inputs| {
        let own = &batch.x[0] * 1.0;
        [cx.per_example(&own), cx.per_replica(&own)]
    });
    assert_says(
        two_ways.call(&mut state, &uneven),
        &[
            "per_replica",
            "is marked both `per_example` and `per_replica`",
        ],
    );
}

#[test]
fn rows_of_two_batches_are_never_taken_for_those_of_one() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let mut function = strategy.function(|cx, batch: Inputs| results(cx, &batch));
    let batch = |values: &[f32]| strategy.distribute_batch(&column(values)).unwrap();
    let [_, said, ..] = function.call(&mut state, &batch(&[1.0, 2.0, 3.0])).unwrap();
    let sums = |value, dim| strategy.reduce(Reduce::Sum, value, dim).unwrap().f32s();
    let mut both = strategy.function(|_, [_, b]: [Tensor; 2]| [b * 2.0]);
    let mut apart = strategy.state(1).unwrap();
    let mut pair = |a: &PerReplica, b: &PerReplica| both.call(&mut apart, &[a.clone(), b.clone()]);
    let [_, full, ..] = function.call(&mut state, &batch(&[1.0; 4])).unwrap();
    assert_says(
        pair(&said, &full),
        &["argument[0] has [2, 1] examples", "argument[1] [2, 2]"],
    );
    // Of batches whose arrays are of different lengths neither says which rows of the other are examples.
    for longer in [5, 6] {
        let [_, long, ..] = function
            .call(&mut state, &batch(&vec![1.0; longer]))
            .unwrap();
        let arrays = [
            "in arrays of 3 rows",
            "in arrays of 2",
            "values of one batch",
        ];
        assert_says(pair(&long, &said), &arrays);
        assert_says(pair(&said, &long), &arrays[2..]);
    }
    // A batch that divides has nothing to say.
    let [own, ..] = function
        .call(&mut state, &batch(&[1.0, 2.0, 3.0, 4.0]))
        .unwrap();
    assert_eq!(sums(&own, Some(0)), [10.0]);
    let mut sum = strategy.function(|_, [a, b]: [Tensor; 2]| [a + b]);
    let [sum] = sum.call(&mut state, &[own, full]).unwrap();
    assert_eq!(
        strategy.gather(&sum, 0).unwrap().f32s(),
        [2.0, 3.0, 4.0, 5.0]
    );
}

#[test]
fn many_traces_are_told_once() {
    let strategy = OneDeviceStrategy::on(engine());
    let mut state = strategy.state(1).unwrap();
    let mut function: Function<'_, Inputs, 1> =
        strategy.function(|_, batch: Inputs| [batch.x[0].sum_all()]);
    for rows in 1..=9 {
        let batch: DistributedBatch = strategy
            .distribute_batch(&column(&vec![1.0; rows]))
            .unwrap();
        let [sum] = function.call(&mut state, &batch).unwrap();
        assert_eq!(sum.value().unwrap().f32s(), [rows as f32]);
        assert_eq!(told("a function was traced and compiled"), rows == 9);
    }
}
