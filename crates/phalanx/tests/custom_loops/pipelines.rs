//! Pipelines that a function makes: last batches that some replicas have no row of, and positions.

use phalanx::data::{AutoShardPolicy, Position, Worker};
use phalanx::prelude::*;
use phalanx::strategy::{DistributedDataset, InputContext, Pipelines};

use crate::{assert_says, mirrored, rows};

/// A part of 9 rows in batches of 4 for each of the pipelines.
fn part(context: InputContext) -> phalanx::Result<Batches> {
    let worker = Worker::new(context.input_pipeline_id, context.num_input_pipelines);
    rows(9).batch(4).shard(worker, AutoShardPolicy::Data)
}

fn data(replicas: usize, pipelines: Pipelines) -> DistributedDataset {
    let strategy = mirrored(replicas);
    let data = strategy.distribute_datasets_from_function(pipelines, part);
    data.unwrap()
}

#[test]
fn a_last_batch_need_not_have_a_row_for_each_pipeline() {
    let steps = data(2, Pipelines::PerReplica).epoch(0);
    let rows: Vec<Vec<usize>> = steps
        .map(|batch| batch.unwrap().rows_per_replica().to_vec())
        .collect();
    assert_eq!(rows, [[2, 2], [2, 2], [1, 0]]);
}

#[test]
fn a_position_is_of_as_many_pipelines() {
    let per_replica = data(2, Pipelines::PerReplica);
    let mut epoch = per_replica.epoch(3);
    epoch.next().unwrap().unwrap();
    let position = epoch.position().clone();
    assert_eq!(position.epoch, 3);
    let rest = per_replica.epoch_from(&position).unwrap();
    assert_eq!(rest.position(), &position);
    assert_eq!(rest.count(), 2);
    for (others, said) in [
        (data(3, Pipelines::PerReplica), "here there are 3"),
        (data(2, Pipelines::PerWorker), "here there are 1"),
    ] {
        let said = ["of 2 input pipelines", said];
        assert_says(others.epoch_from(&position), &said);
    }
    let one = data(2, Pipelines::PerWorker);
    let mut epoch = one.epoch(0);
    epoch.next().unwrap().unwrap();
    let of_one = epoch.position();
    assert_eq!(one.epoch_from(of_one).unwrap().count(), 1);
    let said = ["of 1 input pipelines", "here there are 2"];
    assert_says(per_replica.epoch_from(of_one), &said);
    let begin = per_replica.epoch_from(&Position::start(1));
    assert_eq!(begin.unwrap().count(), 3);
}
