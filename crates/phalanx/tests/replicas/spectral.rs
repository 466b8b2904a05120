//! Kernels that a layer normalizes before each update: replicas do as one.

use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx::strategy::{CentralStorageStrategy, PipelineStrategy};
use phalanx_testkit::relative_difference as apart;

use crate::{TOLERANCE, cases, engine, mirrored, names, values};

fn model() -> Sequential {
    let penalty = Regularizer::L2 { l2: 0.01 };
    let conv = Conv2d::new(4, 2)
        .activation(tanh)
        .kernel_regularizer(penalty);
    Sequential::new([3, 3, 2])
        .add(SpectralNorm::new(conv))
        .add(Flatten)
        .add(
            SpectralNorm::new(Dense::new(5))
                .power_iterations(3)
                .named("frozen")
                .trainable(false),
        )
        .add(Dense::new(3))
}

fn compile(accumulation: Option<u64>) -> Compile {
    let optimizer = Optimizer::from(Sgd::new(0.5).momentum(0.9));
    Compile {
        optimizer: match accumulation {
            Some(batches) => optimizer.gradient_accumulation(batches),
            None => optimizer,
        },
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    }
}

fn batch(rows: usize) -> Batch {
    let labels: Vec<i32> = (0..rows).map(|i| (i * i % 3) as i32).collect();
    Batch {
        x: vec![HostTensor::new(
            [rows, 3, 3, 2],
            &cases::wave(rows * 18, 0.7),
        )],
        y: vec![HostTensor::new([rows], &labels)],
        weight: None,
        first: 0,
    }
}

fn trained(strategy: &impl Strategy, accumulation: Option<u64>) -> Vec<(String, Vec<f64>)> {
    let mut trainer = strategy
        .compile(model().build().unwrap(), compile(accumulation))
        .unwrap();
    // The last batch has fewer rows than the replicas.
    for rows in [7, 5, 6, 2] {
        trainer.train_on_batch(&batch(rows)).unwrap();
    }
    values(&trainer)
}

#[test]
fn replicas_normalize_kernels_as_one_does() {
    let central = CentralStorageStrategy::on(engine()).compute_devices(names(3));
    let many: [Box<dyn Strategy>; 3] = [
        Box::new(mirrored(3)),
        Box::new(central.unwrap()),
        Box::new(MeshStrategy::on(engine(), &Mesh::new([("data", 2)])).unwrap()),
    ];
    for accumulation in [None, Some(2)] {
        let one = trained(&OneDeviceStrategy::on(engine()), accumulation);
        for strategy in &many {
            let name = strategy.name();
            for (many, (variable, expected)) in trained(strategy, accumulation).iter().zip(&one) {
                let apart = apart(expected, &many.1);
                assert!(apart <= TOLERANCE, "{name}: {variable} is off by {apart:e}");
            }
        }
    }
}

#[test]
fn a_pipeline_does_not_normalize_kernels() {
    let pipeline = PipelineStrategy::on(engine(), 2, 2).unwrap();
    let trainer = pipeline.compile(model(), compile(None));
    let told = trainer.and_then(|mut trainer| trainer.train_on_batch(&batch(4)).map(drop));
    let told = told.unwrap_err().to_string();
    assert!(
        told.contains("variable `spectral_norm/layer/kernel` is normalized by its layer before each update, which training in a pipeline does not do"),
        "{told}"
    );
}
