//! What is told when replicas are used wrongly, word by word, for each row of what a strategy promises.
//!
//! - *Mixing strategies*: a trainer belongs to the strategy that compiled it, so only values of loops of one's own can be
//!   mixed: `values_of_another_strategy_are_refused_by_both_names` and `handles_of_another_state_are_refused` of
//!   `custom_loops`, which has the texts of everything below that is said there: *run* (arguments of different shapes:
//!   `shapes_that_differ_between_replicas_are_told`), *reduce* and *gather* (the same), *collectives in a branch*
//!   (`collectives_that_some_replicas_would_not_reach_are_refused`), *what may not be differentiated*
//!   (`gradients_that_are_not_there_are_told`), *batches per replica, pipelines of data*
//!   (`batches_that_cannot_be_divided_are_told`, `pipelines_deal_their_batches_to_replicas`), *kinds of variables*
//!   (`what_a_state_cannot_hold_is_told`, `steps_that_would_let_replicas_drift_apart_are_refused`).
//! - *Wrong device*: `devices_are_told_apart` here, and meshes and pipelines below and in `model_parallel`.
//! - *Wrong batch*, *the loss of a replica*, *shares*, *replicas that went apart* (`fit::verify`): below.

use phalanx::data::Batch;
use phalanx::losses::Loss;
use phalanx::prelude::*;

use crate::{cases, engine, mirrored, names};

fn text<T>(result: phalanx::Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

fn compile() -> Compile {
    Compile {
        optimizer: Sgd::new(0.1).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    }
}

fn model() -> Sequential {
    Sequential::new([6]).add(Dense::new(3))
}

fn zeros(dims: &[usize]) -> HostTensor {
    HostTensor::new(dims.to_vec(), &vec![0.0f32; dims.iter().product()])
}

fn labels(labels: &[i32]) -> HostTensor {
    HostTensor::new([labels.len()], labels)
}

fn batch(x: HostTensor, y: HostTensor) -> Batch {
    Batch {
        x: vec![x],
        y: vec![y],
        weight: None,
        first: 0,
    }
}

/// Every strategy says of a wrong batch what one device says, and of a row the number that it has in the epoch.
#[test]
fn wrong_batches_are_told_of_the_whole_batch() {
    let mut weighted = batch(zeros(&[5, 6]), labels(&[0; 5]));
    weighted.weight = Some(zeros(&[4]));
    let mut late = batch(zeros(&[5, 6]), labels(&[0, 1, 2, 0, 3]));
    late.first = 10;
    let two = Batch {
        y: vec![labels(&[0; 5]), labels(&[0; 5])],
        ..batch(zeros(&[5, 6]), labels(&[]))
    };
    let wrong = [
        (
            batch(zeros(&[5, 4]), labels(&[0; 5])),
            "input `input` of the model takes examples of dims [6] (and as many rows as the other inputs), but the batch has f32[5,4]; reshape the data, or change the model's input",
        ),
        (
            batch(zeros(&[5, 6]), labels(&[0; 4])),
            "a batch has 5 rows in x, but y is i32[4]; give one for each example",
        ),
        (
            weighted,
            "the weights of a batch of 5 rows are f32[4], expected f32[5]; give a number for each example, or for each of its steps",
        ),
        (
            batch(zeros(&[0, 6]), labels(&[])),
            "a batch has no rows; leave it out",
        ),
        (
            two,
            "a batch has 2 targets (y), but 1 outputs of the model have a loss or a metric; give one for each",
        ),
        (
            late,
            "the class 3 of example 14 of the epoch is not among the 3 of the model's output, 0 to 2; correct the labels, or give the last layer more units",
        ),
    ];
    let central = CentralStorageStrategy::on(engine()).compute_devices(names(3));
    let strategies: [Box<dyn Strategy>; 5] = [
        Box::new(OneDeviceStrategy::on(engine())),
        Box::new(mirrored(3)),
        Box::new(central.unwrap()),
        Box::new(MeshStrategy::on(engine(), &Mesh::new([("data", 2)])).unwrap()),
        Box::new(PipelineStrategy::on(engine(), 1, 2).unwrap()),
    ];
    for strategy in strategies {
        let mut trainer = strategy.compile(model(), compile()).unwrap();
        for (batch, expected) in &wrong {
            assert_eq!(
                text(trainer.train_on_batch(batch)),
                *expected,
                "{}",
                strategy.name()
            );
        }
    }
}

/// Keras takes the loss of a replica for that of all when it is a scalar, which makes its gradients R times too large.
#[test]
fn a_loss_that_is_no_number_for_each_example_is_refused() {
    let scalar = |_: &Tensor, y: &Tensor| y.square().sum_all();
    for replicas in [1, 2] {
        let compile = Compile {
            loss: Loss::custom("energy", scalar).into(),
            ..compile()
        };
        let mut trainer = mirrored(replicas).compile(model(), compile).unwrap();
        let rows = 4 / replicas;
        assert_eq!(
            text(trainer.train_on_batch(&batch(zeros(&[4, 6]), zeros(&[4, 3])))),
            format!(
                "energy: the loss gives f32[], expected a number for each of {rows} examples; leave their mean to the trainer"
            )
        );
    }
}

#[test]
fn devices_and_shares_must_be_as_many_as_replicas() {
    assert_eq!(
        text(mirrored(2).shares(&[0, 0])),
        "the shares of the replicas are [0, 0]; expected a number for each, and not all of them 0"
    );
    let shared = mirrored(2).shares(&[1, 2]).unwrap();
    assert_eq!(
        text(shared.devices(names(3))),
        "there are 2 shares for 3 replicas; name the devices before the shares"
    );
    let central = CentralStorageStrategy::on(engine());
    assert_eq!(
        text(central.compute_devices(["cpu:0", "CPU:0"])),
        "device `CPU:0` is named twice; name each device once, of cpu:0, cpu:1, cpu:2, cpu:3"
    );
    let pipeline = || PipelineStrategy::on(engine(), 2, 2).unwrap();
    assert_eq!(
        text(pipeline().devices(names(3))),
        "3 devices are named for 2 stages; name one for each"
    );
    assert_eq!(
        text(pipeline().compile(model(), compile())),
        "model `sequential` has 1 layers, too few for 2 stages; use fewer stages (the layers of a model inside stay together)"
    );
}

/// Loops of one's own run on replicas.
#[test]
fn a_pipeline_and_a_mesh_have_no_replicas_for_loops_of_ones_own() {
    let pipeline = PipelineStrategy::on(engine(), 2, 2).unwrap();
    let told = text(pipeline.state(1));
    assert!(
        told.starts_with(
            "custom training loops run on replicas, and `PipelineStrategy on cpu:0, cpu:1`"
        ),
        "{told}"
    );
    assert!(
        told.ends_with("use another strategy, or `compile` and `fit`"),
        "{told}"
    );
    let data = cases::rows(4).batch(2);
    let told = text(CustomTraining::distribute_batch(
        &pipeline,
        &data.iter(0, 0).next().unwrap().unwrap(),
    ));
    assert!(told.contains("PipelineStrategy"), "{told}");
}

/// A pipeline has parts of a batch one after the other, and a loop of one's own some of the examples on each replica.
#[test]
fn examples_that_are_apart_are_not_compared() {
    let compile = || Compile {
        loss: Circle::default().into(),
        ..compile()
    };
    let data = cases::rows(8).batch(8);
    let model = Sequential::new([6]).add(Dense::new(4)).add(UnitNorm::new());
    let pipeline = PipelineStrategy::on(engine(), 2, 2).unwrap();
    let trainer = pipeline.compile(model, compile());
    let fitted = trainer.and_then(|mut trainer| {
        let fit = Fit::epochs(1).progress(Progress::Silent);
        trainer.fit(&data, fit).map(drop)
    });
    let told = text(fitted);
    assert!(
        told.contains("circle: it compares the examples of a batch, and the pipeline has 2 parts of it one after the other; set `micro_batches` to 1"),
        "{told}"
    );
    let graph = Graph::with_replicas(2);
    let y_true = graph.parameter("y_true", Shape::new(DType::I32, [4]));
    let y_pred = graph.parameter("y_pred", Shape::f32([4, 2]));
    let _ = Loss::from(Circle::default()).per_example(&y_true, &y_pred);
    let told = graph.error().unwrap().to_string();
    assert!(
        told.contains("each of 2 replicas has some of them; train with `fit`"),
        "{told}"
    );
}
