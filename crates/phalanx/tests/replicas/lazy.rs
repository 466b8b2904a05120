//! Lazy steps of tables leave the same rows alone, however gradients come to the optimizer.

use phalanx::nn::Embedding;
use phalanx_graph::HostTensor;

use super::*;

/// More than four for each index of a large batch and fewer for each of a small one.
const VOCABULARY: usize = 24;
const NAMED: i32 = 7;
/// A step of many indices, then one of few, whose rows are others.
const BATCHES: [usize; 3] = [18, 3, 11];

fn model() -> Sequential {
    Sequential::new([1])
        .add(Embedding::new(VOCABULARY, 3))
        .add(Flatten)
        .add(Dense::new(2))
}

fn indices(step: usize, rows: usize) -> Batch {
    let index = |row: usize| ((row * 5 + step * 3) as i32) % NAMED;
    let x: Vec<i32> = (0..rows).map(index).collect();
    let y: Vec<i32> = (0..rows as i32).map(|row| row % 2).collect();
    let x = HostTensor::new([rows, 1], &x);
    let data = Dataset::from_arrays(x, HostTensor::new([rows], &y)).unwrap();
    data.batch(rows).get(0, 0).unwrap()
}

fn trained(strategy: &impl Strategy) -> Vec<(String, Vec<f64>)> {
    let compile = Compile {
        optimizer: Optimizer::from(Adam::new(0.1)).lazy(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        seed: 3,
        ..Compile::default()
    };
    let mut trainer = strategy.compile(model(), compile).unwrap();
    let table = |trainer: &Trainer| values(trainer)[0].1.clone();
    let before = table(&trainer);
    for (step, rows) in BATCHES.into_iter().enumerate() {
        trainer.train_on_batch(&indices(step, rows)).unwrap();
    }
    let after = table(&trainer);
    let named = NAMED as usize * 3;
    assert_eq!(before[named..], after[named..], "{}", strategy.name());
    assert!(before[..named] != after[..named]);
    values(&trainer)
}

#[test]
fn rows_without_a_gradient_stay_on_any_number_of_replicas() {
    let expected = trained(&OneDeviceStrategy::on(engine()));
    let central = CentralStorageStrategy::on(engine()).compute_devices(names(2));
    let strategies: [Box<dyn Strategy>; 3] = [
        Box::new(mirrored(2)),
        Box::new(mirrored(3)),
        Box::new(central.unwrap()),
    ];
    for strategy in strategies {
        for ((name, found), (_, expected)) in trained(&strategy).iter().zip(&expected) {
            let far = apart(found, expected);
            assert!(far < TOLERANCE, "{}, {name}: {far}", strategy.name());
        }
    }
}
