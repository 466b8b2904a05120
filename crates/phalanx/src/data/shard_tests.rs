//! Every example once per epoch, over any number of workers, whatever happens in between.

use phalanx_graph::HostTensor;
use proptest::prelude::*;

use super::*;
use crate::Result;

/// `0..` in files of so many examples.
struct Files(Vec<usize>);

impl Source for Files {
    fn len(&self) -> usize {
        self.0.iter().sum()
    }

    fn get(&self, i: usize) -> Result<Example> {
        Ok(Example {
            x: vec![HostTensor::scalar(i as i32)],
            ..Example::default()
        })
    }

    fn per_file(&self) -> Vec<usize> {
        self.0.clone()
    }
}

fn values(batch: &Batch) -> Vec<i32> {
    batch.x[0].values().unwrap()
}

/// The parts of all workers.
fn parts(batches: &Batches, count: usize, replicas: usize, policy: AutoShard) -> Vec<Batches> {
    let part = |index| {
        batches
            .shard(
                Worker {
                    index,
                    count,
                    replicas,
                },
                policy,
            )
            .unwrap()
    };
    (0..count).map(part).collect()
}

/// What all workers read from a position on, in at most `steps` steps each, and the position after them.
fn read(parts: &[Batches], position: &Position, steps: usize) -> (Vec<i32>, Position) {
    let mut read = Vec::new();
    let mut positions = Vec::new();
    for part in parts {
        let mut iter = part.iter_at(position).unwrap();
        for batch in iter.by_ref().take(steps) {
            read.extend(values(&batch.unwrap()));
        }
        positions.push(iter.position());
    }
    assert!(
        positions.windows(2).all(|pair| pair[0] == pair[1]),
        "workers are at different positions"
    );
    (read, positions.remove(0))
}

fn sorted(mut values: Vec<i32>) -> Vec<i32> {
    values.sort_unstable();
    values
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_example_is_read_once_by_any_number_of_workers(
        files in prop::collection::vec(0usize..20, 1..7), count in 1usize..6, replicas in 1usize..3,
        batch in 1usize..9, seed: u64, epoch in 0u64..3, by_file: bool,
    ) {
        let total: usize = files.iter().sum();
        let data = Dataset::from_source(Files(files)).shuffle(seed).map(Ok);
        let policy = if by_file { AutoShard::Auto } else { AutoShard::Data };
        let parts = parts(&data.batch(batch), count, replicas, policy);
        let steps: Vec<_> = parts.iter().map(Batches::len).collect();
        prop_assert!(steps.windows(2).all(|pair| pair[0] == pair[1]), "{steps:?}");
        let (read, _) = read(&parts, &Position::start(epoch), usize::MAX);
        prop_assert!(sorted(read).into_iter().eq(0..total as i32));
    }

    #[test]
    fn what_is_left_is_read_by_any_number_of_workers(
        files in prop::collection::vec(0usize..20, 1..7), counts in prop::collection::vec((1usize..5, 1usize..9, 0usize..5), 1..4),
        prefetch in 0usize..3, seed: u64, by_file: bool,
    ) {
        let total: usize = files.iter().sum();
        let data = Dataset::from_source(Files(files)).shuffle(seed);
        let policy = if by_file { AutoShard::Auto } else { AutoShard::Data };
        let (mut all, mut position) = (Vec::new(), Position::start(1));
        for (count, batch, steps) in counts {
            let parts = parts(&data.batch(batch).prefetch(prefetch), count, 1, policy);
            let (some, after) = read(&parts, &position, steps);
            all.extend(some);
            let text = serde_json::to_string(&after).unwrap();
            position = serde_json::from_str(&text).unwrap();
        }
        let (rest, _) = read(&parts(&data.batch(3), 2, 1, policy), &position, usize::MAX);
        all.extend(rest);
        prop_assert!(sorted(all).into_iter().eq(0..total as i32));
    }

    #[test]
    fn by_position_the_steps_are_the_same_for_any_number_of_workers(
        len in 0usize..60, count in 1usize..6, batch in 1usize..9, seed: u64,
    ) {
        let batches = Dataset::from_source(Files(vec![len])).shuffle(seed).batch(batch);
        let parts = parts(&batches, count, 2, AutoShard::Data);
        for step in 0..batches.len().unwrap() {
            let together: Vec<i32> = parts.iter().flat_map(|part| values(&part.get(0, step).unwrap())).collect();
            prop_assert_eq!(together, values(&batches.get(0, step).unwrap()));
        }
    }
}

/// Pinned: a change here changes what every worker of a cluster reads.
#[test]
fn the_order_of_workers_is_pinned() {
    let batches = Dataset::from_source(Files(vec![3, 5, 2, 4]))
        .shuffle(42)
        .batch(5);
    let golden = include_str!("shard_order.txt");
    let mut text = String::new();
    for policy in [AutoShard::File, AutoShard::Data, AutoShard::Off] {
        for (worker, part) in parts(&batches, 2, 1, policy).iter().enumerate() {
            let read: Vec<Vec<i32>> = part
                .iter(1, 0)
                .map(|batch| values(&batch.unwrap()))
                .collect();
            text += &format!("{policy:?} {worker}: {read:?}\n");
        }
    }
    assert_eq!(text, golden);
}

#[test]
fn the_choice_is_explained() {
    let data = |files: usize| Dataset::from_source(Files(vec![4; files]));
    let shard = |data: &Dataset, count, policy| data.batch(2).shard(Worker::new(0, count), policy);
    let chosen = |data: &Dataset, count, policy| {
        let part = shard(data, count, policy).unwrap();
        (
            part.shard_policy(),
            part.shard_notice().unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(
        chosen(&data(1), 1, AutoShard::Auto),
        (AutoShard::Data, String::new())
    );
    assert_eq!(chosen(&data(4), 2, AutoShard::Auto).0, AutoShard::File);
    let too_few = (
        AutoShard::Data,
        "sharding by position: there are 1 files for 2 workers".to_owned(),
    );
    assert_eq!(chosen(&data(1), 2, AutoShard::Auto), too_few);
    assert_eq!(chosen(&data(1), 2, AutoShard::File), too_few);
    let taken = data(4).take(5);
    assert!(
        chosen(&taken, 2, AutoShard::Auto)
            .1
            .contains("take or skip counts")
    );
    let error = shard(&taken, 2, AutoShard::File).unwrap_err().to_string();
    assert!(
        error.contains("cannot shard by file: take or skip"),
        "{error}"
    );
    assert!(
        data(1)
            .batch(2)
            .shard(Worker::new(2, 2), AutoShard::Auto)
            .is_err()
    );
    let repeated = data(4).batch(2).repeat(2);
    let position = Position {
        epoch: 0,
        segments: vec![Segment {
            workers: 3,
            batch: 4,
            ..repeated.segment()
        }],
    };
    assert!(
        repeated
            .iter_at(&position)
            .unwrap_err()
            .to_string()
            .contains("put them before batch")
    );
}

#[test]
fn many_threads_keep_the_order() {
    let slow = |example: Example| {
        let value = example.x[0].values::<i32>().unwrap()[0];
        std::thread::sleep(std::time::Duration::from_micros(u64::from(
            value as u32 * 7919 % 300,
        )));
        Ok(example)
    };
    let batches = Dataset::from_source(Files(vec![200]))
        .shuffle(3)
        .map(slow)
        .batch(3);
    let all = |batches: &Batches| -> Vec<Vec<i32>> {
        batches
            .iter(0, 5)
            .map(|batch| values(&batch.unwrap()))
            .collect()
    };
    let expected = all(&batches);
    for ahead in [
        batches.prefetch(4),
        batches.threads(4),
        batches.threads(3).prefetch(2),
        batches.autotune(),
    ] {
        assert_eq!(all(&ahead), expected);
        assert_eq!(ahead.iter(0, 0).take(2).count(), 2);
    }
    let failing = batches.map(|batch| {
        if batch.first == 30 {
            Err(crate::Error::user("no"))
        } else {
            Ok(batch)
        }
    });
    let read: Vec<bool> = failing
        .threads(4)
        .iter(0, 0)
        .map(|batch| batch.is_ok())
        .collect();
    assert_eq!(read, [&[true; 10][..], &[false]].concat());
}

#[test]
fn what_not_all_have_read_is_left_where_each_reads_all() {
    let batches = Dataset::from_source(Files(vec![40])).batch(4);
    let worker = batches.shard(Worker::new(0, 2), AutoShard::Off).unwrap();
    // Each worker has read 2 a step.
    let rest = worker.sharding.rest(&worker.input, 4, 3).unwrap();
    assert_eq!(rest.len(), Some(34));
}
