//! Replicas on several devices equal one with the whole batch.

use std::sync::OnceLock;

use phalanx::engine::{Engine, EngineOptions};
use phalanx::prelude::*;

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        Engine::new(&EngineOptions {
            cpu_devices: 4,
            ..EngineOptions::default()
        })
        .unwrap()
    })
}

fn mirrored(replicas: usize) -> MirroredStrategy {
    let names = (0..replicas).map(|device| format!("cpu:{device}"));
    MirroredStrategy::on(engine()).devices(names).unwrap()
}

fn mlp() -> Sequential {
    Sequential::new([4])
        .add(Dense::new(8).activation(relu))
        .add(Dropout::new(0.25))
        .add(Dense::new(3))
}

fn rows(count: usize) -> Dataset {
    let x: Vec<f32> = (0..count * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<i32> = (0..count).map(|i| (i % 3) as i32).collect();
    Dataset::from_arrays(
        HostTensor::new([count, 4], &x),
        HostTensor::new([count], &y),
    )
    .unwrap()
}

fn compile() -> Compile {
    Compile {
        optimizer: Adam::new(0.01).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        ..Compile::default()
    }
}

#[test]
fn replicas_train_as_one() {
    let data = rows(23).batch(8);
    let run = |replicas: usize| {
        let mut trainer = mirrored(replicas).compile(mlp(), compile()).unwrap();
        let fit = Fit::epochs(3).progress(Progress::Silent);
        let history = trainer.fit(&data, fit).unwrap();
        let tested = trainer.evaluate(&data).unwrap();
        let predicted = trainer.predict(&data).unwrap();
        (history, tested, predicted, trainer.variables().unwrap())
    };
    let one = run(1);
    for replicas in 2..=5 {
        let many = if replicas < 5 {
            run(replicas)
        } else {
            let strategy = CentralStorageStrategy::on(engine())
                .compute_devices(["cpu:1", "cpu:2"])
                .unwrap();
            let mut trainer = strategy.compile(mlp(), compile()).unwrap();
            let fit = Fit::epochs(3).progress(Progress::Silent);
            let history = trainer.fit(&data, fit).unwrap();
            let tested = trainer.evaluate(&data).unwrap();
            let predicted = trainer.predict(&data).unwrap();
            (history, tested, predicted, trainer.variables().unwrap())
        };
        println!("{replicas} {:?} {:?}", many.0.epochs.last(), many.1);
        for ((name, a), (_, b)) in one.3.iter().zip(&many.3) {
            let (a, b) = (a.to_f64(), b.to_f64());
            let worst = a
                .iter()
                .zip(&b)
                .map(|(a, b)| (a - b).abs() / a.abs().max(1e-3))
                .fold(0.0, f64::max);
            println!("{name} {worst:e}");
        }
        println!(
            "{:?}",
            one.2[0]
                .to_f64()
                .iter()
                .zip(many.2[0].to_f64())
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max)
        );
    }
    println!("{:?} {:?}", one.0.epochs.last(), one.1);
}
