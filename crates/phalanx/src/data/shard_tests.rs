//! Every example once per epoch, over any number of workers, whatever happens in between.

use phalanx_graph::HostTensor;
use proptest::prelude::*;

use super::*;
use crate::Result;

/// `0..` in files of these numbers of examples.
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
fn parts(
    batches: &Batches,
    count: usize,
    replicas: usize,
    policy: AutoShardPolicy,
) -> Vec<Batches> {
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
        let policy = if by_file { AutoShardPolicy::Auto } else { AutoShardPolicy::Data };
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
        let policy = if by_file { AutoShardPolicy::Auto } else { AutoShardPolicy::Data };
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
        let parts = parts(&batches, count, 2, AutoShardPolicy::Data);
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
    for policy in [
        AutoShardPolicy::File,
        AutoShardPolicy::Data,
        AutoShardPolicy::Off,
    ] {
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

/// Where two workers have equally many examples the next file goes to the one with fewer files; as many files as workers are enough.
#[test]
fn files_are_spread_by_examples_and_then_by_count() {
    let read = |files: Vec<usize>, count| {
        let batches = Dataset::from_source(Files(files)).batch(100);
        let parts = parts(&batches, count, 1, AutoShardPolicy::Auto);
        assert_eq!(parts[0].shard_policy(), AutoShardPolicy::File);
        let of = |part: &Batches| values(&part.iter(0, 0).next().unwrap().unwrap());
        parts.iter().map(of).collect::<Vec<_>>()
    };
    let of_second = (6..16).chain(20..21).collect::<Vec<i32>>();
    assert_eq!(read(vec![6, 5, 5, 3, 1, 1], 2)[1], of_second);
    assert_eq!(read(vec![1, 2], 2), [vec![1, 2], vec![0]]);
}

#[test]
fn where_a_workers_rows_lie_is_known() {
    let part = |rows, index, replicas| {
        let batches = Dataset::from_source(Files(vec![rows])).batch(12);
        let worker = Worker {
            index,
            count: 3,
            replicas,
        };
        let part = batches.shard(worker, AutoShardPolicy::Data).unwrap();
        let part = part.worker_part(0, 0).unwrap().unwrap();
        (part.first_row, part.is_even)
    };
    assert_eq!([0, 1, 2].map(|index| part(12, index, 2).0), [0, 4, 8]);
    assert!(part(12, 1, 2).1 && !part(11, 1, 2).1 && !part(7, 0, 1).1);
    // 12 rows over 9 replicas: 6, 3 and 3.
    let uneven = [0, 1, 2].map(|index| part(12, index, 3));
    assert_eq!(uneven, [(0, false), (6, false), (9, false)]);
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
        chosen(&data(1), 1, AutoShardPolicy::Auto),
        (AutoShardPolicy::Data, String::new())
    );
    assert_eq!(
        chosen(&data(4), 2, AutoShardPolicy::Auto).0,
        AutoShardPolicy::File
    );
    let too_few = (
        AutoShardPolicy::Data,
        "sharding by position: there are 1 files for 2 workers".to_owned(),
    );
    assert_eq!(chosen(&data(1), 2, AutoShardPolicy::Auto), too_few);
    assert_eq!(chosen(&data(1), 2, AutoShardPolicy::File), too_few);
    let taken = data(4).take(5);
    assert!(
        chosen(&taken, 2, AutoShardPolicy::Auto)
            .1
            .contains("take or skip counts")
    );
    let error = shard(&taken, 2, AutoShardPolicy::File)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot shard by file: take or skip"),
        "{error}"
    );
    assert!(
        data(1)
            .batch(2)
            .shard(Worker::new(2, 2), AutoShardPolicy::Auto)
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
fn the_least_that_any_worker_has_read_is_known() {
    for (count, replicas, batch) in [(1, 1, 5), (3, 2, 64), (4, 3, 5), (2, 8, 3), (5, 2, 13)] {
        for steps in 0..2 * count + 1 {
            let read = |index| {
                let worker = Worker {
                    index,
                    count,
                    replicas,
                };
                global_batch::consumed(worker, batch, steps)
            };
            let least = (0..count).map(read).min().unwrap();
            let all = shard::all_have_read(count, replicas, batch, steps);
            assert_eq!(all, least, "{count} {replicas} {batch} {steps}");
        }
    }
}

#[test]
fn what_not_all_have_read_is_left_where_each_reads_all() {
    let batches = Dataset::from_source(Files(vec![40])).batch(4);
    let worker = batches
        .shard(Worker::new(0, 2), AutoShardPolicy::Off)
        .unwrap();
    // Each worker has read 2 a step.
    let rest = worker.sharding.rest(&worker.input, 4, 3).unwrap();
    assert_eq!(rest.len(), Some(34));
}

/// One of several ways through the stages.
fn through(data: &Dataset, way: usize, seed: u64) -> Dataset {
    let half = data.len().unwrap() / 2;
    let (front, back) = (data.take(half), data.skip(half));
    match way {
        0 => data.clone(),
        1 => data.shuffle(seed).map(Ok),
        2 => data.shuffle(seed).repeat(2),
        3 => data.concatenate(&data.shuffle(seed)).unwrap().shuffle(seed),
        4 => back.concatenate(data).unwrap().shuffle(seed),
        5 => data.shuffle(seed).skip(2).take(half),
        6 => Dataset::interleave(&[front.shuffle(seed), back], 3).unwrap(),
        7 => data.zip(&data.shuffle(seed)),
        8 => Dataset::mix(&[(front.repeat_forever(), 1), (back.shuffle(seed), 2)]).unwrap(),
        9 => {
            let even = |example: &Example| example.x[0].to_f64()[0] % 2.0 == 0.0;
            data.filter(even).unwrap().shuffle(seed)
        }
        _ => data.cache().unwrap().shuffle(seed),
    }
}

const WAYS: usize = 11;
/// Those whose stages are over all files.
const NOT_BY_FILE: std::ops::Range<usize> = 4..WAYS;

/// All examples of an epoch in their order.
fn in_order(data: &Dataset, epoch: u64) -> Vec<i32> {
    let value = |i| data.get(epoch, i).unwrap().x[0].values::<i32>().unwrap()[0];
    (0..data.len().unwrap()).map(value).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_the_stages_each_example_is_read_once(
        files in prop::collection::vec(1usize..12, 1..6), way in 0..WAYS, policy in 0usize..3, seed: u64, epoch in 0u64..3,
        legs in prop::collection::vec((1usize..5, 1usize..7, prop::collection::vec(0usize..4, 1..4)), 0..5),
        last in (1usize..5, 1usize..7),
    ) {
        let data = through(&Dataset::from_source(Files(files)), way, seed);
        let policy = [AutoShardPolicy::Auto, AutoShardPolicy::File, AutoShardPolicy::Data][policy];
        if policy == AutoShardPolicy::File && NOT_BY_FILE.contains(&way) {
            let refused = data.batch(2).shard(Worker::new(0, 2), policy).unwrap_err().to_string();
            prop_assert!(refused.contains("cannot shard by file"), "{refused}");
            return Ok(());
        }
        let (mut all, mut position, mut steps) = (Vec::new(), Position::start(epoch), 0);
        // The same workers go on several times, then others do.
        for (count, batch, times) in legs.iter().chain(Some(&(last.0, last.1, vec![usize::MAX]))) {
            for &most in times {
                let (some, after) = read(&parts(&data.batch(*batch), *count, 1, policy), &position, most);
                all.extend(some);
                let taken: usize = after.segments.iter().map(|segment| segment.steps).sum();
                prop_assert!(taken >= steps && after.segments.len() <= 4, "{after:?}");
                steps = taken;
                position = after;
            }
        }
        prop_assert_eq!(sorted(all), sorted(in_order(&data, epoch)));
    }

    #[test]
    fn where_each_worker_reads_all_none_reads_twice_what_all_have_read(
        files in prop::collection::vec(1usize..12, 1..6), way in 0..WAYS, seed: u64, epoch in 0u64..3,
        count in 1usize..5, replicas in 1usize..3, batch in 1usize..7, steps in 0usize..5,
        others in prop::collection::vec((1usize..5, 1usize..7, 0usize..4), 0..4),
    ) {
        let data = through(&Dataset::from_source(Files(files)), way, seed);
        let order = in_order(&data, epoch);
        let mine = parts(&data.batch(batch), count, replicas, AutoShardPolicy::Off);
        let (mut read_before, mut position) = (Vec::new(), Position::start(epoch));
        for part in &mine {
            let (before, after) = read(std::slice::from_ref(part), &Position::start(epoch), steps);
            let (rest, _) = read(std::slice::from_ref(part), &after, usize::MAX);
            prop_assert_eq!([&before[..], &rest].concat(), &order[..]);
            read_before.push(before.len());
            position = after;
        }
        let mut first = read_before.into_iter().min().unwrap();
        for (count, batch, steps) in others {
            let theirs = parts(&data.batch(batch), count, 1, AutoShardPolicy::Off);
            let mut least = usize::MAX;
            let mut after = position.clone();
            for part in &theirs {
                let (some, next) = read(std::slice::from_ref(part), &position, steps);
                if position.segments.last().is_none_or(|last| (last.workers, last.replicas, last.batch) != (count, 1, batch)) {
                    prop_assert_eq!(&some[..], &order[first..first + some.len()]);
                    least = least.min(some.len());
                    after = next;
                }
            }
            if least < usize::MAX {
                (first, position) = (first + least, after);
            }
            prop_assert!(position.segments.len() <= 4, "{position:?}");
        }
        let (rest, _) = read(&parts(&data.batch(7), 1, 3, AutoShardPolicy::Off), &position, usize::MAX);
        prop_assert_eq!(&rest[..], &order[first..]);
    }

    #[test]
    fn an_example_has_its_key_wherever_it_is_read(
        files in prop::collection::vec(1usize..9, 1..6), way in 0..WAYS, seed: u64, epoch in 0u64..3,
        counts in prop::collection::vec((1usize..5, 1usize..7, 0usize..3), 1..4), by_file: bool,
    ) {
        let keyed = |data: &Dataset| data.map_random(5, |key, mut example| {
            example.x.truncate(1);
            example.x.push(HostTensor::scalar(key as i32));
            Ok(example)
        });
        let source = Dataset::from_source(Files(files));
        // Keys given after the stages, and before them.
        for data in [keyed(&through(&source, way, seed)), through(&keyed(&source), way, seed)] {
            let pair = |x: &[HostTensor]| -> Vec<(i32, i32)> {
                let [values, keys] = [0, 1].map(|t| x[t].values::<i32>().unwrap());
                values.into_iter().zip(keys).collect()
            };
            let each = (0..data.len().unwrap()).map(|i| {
                let x = data.get(epoch, i).unwrap().x;
                (x[0].values::<i32>().unwrap()[0], x[1].values::<i32>().unwrap()[0])
            });
            let mut expected: Vec<_> = each.collect();
            expected.sort_unstable();
            let policy = if by_file { AutoShardPolicy::Auto } else { AutoShardPolicy::Data };
            let (mut found, mut position) = (Vec::new(), Position::start(epoch));
            for (count, batch, steps) in counts.iter().copied().chain([(2, 3, usize::MAX)]) {
                let mut after = position.clone();
                for part in parts(&data.batch(batch), count, 1, policy) {
                    let mut iter = part.iter_at(&position).unwrap();
                    iter.by_ref().take(steps).for_each(|read| found.extend(pair(&read.unwrap().x)));
                    after = iter.position();
                }
                position = after;
            }
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn keys_differ_by_example_repetition_and_epoch() {
    let data = Dataset::from_source(Files(vec![4, 4]));
    let keys = |data: &Dataset, epoch| -> Vec<u64> {
        let keyed = data.map_random(1, |key, _| {
            Ok(Example {
                x: vec![HostTensor::scalar(key as i64)],
                ..Example::default()
            })
        });
        let key = |i| keyed.get(epoch, i).unwrap().x[0].values::<i64>().unwrap()[0] as u64;
        (0..keyed.len().unwrap()).map(key).collect()
    };
    let twice = data.shuffle(2).repeat(2);
    let tripled = data.concatenate(&data).unwrap();
    let tripled = tripled.concatenate(&data).unwrap();
    let mut all: Vec<u64> = [keys(&twice, 0), keys(&twice, 1)].concat();
    all.extend(keys(&tripled, 9));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), count), (56, 56));
    // The same example of an epoch has the same key in any order.
    let mut orders = [keys(&data, 3), keys(&data.shuffle(8), 3)];
    orders.iter_mut().for_each(|keys| keys.sort_unstable());
    assert_eq!(orders[0], orders[1]);
}

/// As without the change no two batches of an epoch have one key, which would draw the same again.
#[test]
fn batches_of_another_division_have_keys_of_their_own() {
    let data = Dataset::from_source(Files(vec![30, 30]));
    for data in [data.clone(), data.repeat_forever()] {
        for policy in [AutoShardPolicy::Data, AutoShardPolicy::Off] {
            let mut keys: Vec<u64> = Vec::new();
            let mut position = Position::start(2);
            for (count, batch) in [(2, 4), (3, 6), (1, 2), (2, 4)] {
                let keyed = data.batch(batch).map_random(5, |key, mut batch| {
                    batch.x = vec![HostTensor::new(
                        [batch.rows()],
                        &vec![key as i64; batch.rows()],
                    )];
                    Ok(batch)
                });
                // All workers have one key for their parts of a batch.
                let part = &parts(&keyed, count, 1, policy)[0];
                let mut iter = part.iter_at(&position).unwrap();
                for batch in iter.by_ref().take(3) {
                    keys.push(batch.unwrap().x[0].values::<i64>().unwrap()[0] as u64);
                }
                position = iter.position();
            }
            let count = keys.len();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!((keys.len(), count), (12, 12), "{policy:?}");
        }
    }
}

/// The examples that are left look like sequences of labels, and those before tell that they are not.
#[test]
fn what_is_padded_follows_from_all_data_after_another_division() {
    let values = |len: usize| HostTensor::new([len], &vec![1i32; len]);
    let data = Dataset::from_source(Files(vec![24])).map(move |example| {
        let i = example.x[0].to_f64()[0] as usize;
        // A class of three, of texts that are longer at first.
        let length = if i < 8 { 5 } else { 3 };
        Ok(Example {
            x: vec![values(length)],
            y: vec![values(3)],
            ..Example::default()
        })
    });
    let pad = Pad {
        multiple: 4,
        ..Pad::default()
    };
    let dims = |batch: Batch| [&batch.x, &batch.y].map(|of| of[0].dims()[1]);
    let whole = data.batch(2).pad(pad);
    let first = dims(whole.get(1, 4).unwrap());
    let mut before = data.batch(4).pad(pad).iter_at(&Position::start(0)).unwrap();
    before
        .by_ref()
        .take(2)
        .for_each(|batch| drop(batch.unwrap()));
    let resumed = data.batch(2).pad(pad);
    let mut rest = resumed.iter_at(&before.position()).unwrap();
    let of_rest = dims(rest.next().unwrap().unwrap());
    let later = dims(resumed.get(1, 4).unwrap());
    assert_eq!([first, of_rest, later], [[4, 3]; 3]);
}

/// Twenty changes of workers and batches take no more room than two.
#[test]
fn a_position_stays_small() {
    let data = Dataset::from_source(Files(vec![60; 4])).shuffle(3);
    let (mut all, mut position, mut steps) = (Vec::new(), Position::start(0), 0);
    for (count, batch) in [(4, 8)]
        .into_iter()
        .chain([(2, 3), (3, 5)].into_iter().cycle().take(40))
    {
        let parts = parts(&data.batch(batch), count, 1, AutoShardPolicy::Auto);
        let (some, after) = read(&parts, &position, 1);
        all.extend(some);
        position = after;
        steps += 1;
        let taken: usize = position.segments.iter().map(|segment| segment.steps).sum();
        assert!(
            taken == steps && position.segments.len() <= 4,
            "{position:?}"
        );
    }
    let (rest, _) = read(
        &parts(&data.batch(9), 1, 1, AutoShardPolicy::Auto),
        &position,
        usize::MAX,
    );
    all.extend(rest);
    assert!(sorted(all).into_iter().eq(0..240));
    // The same workers go on in the same segment, also behind files.
    let parts = parts(&data.batch(6), 2, 1, AutoShardPolicy::Auto);
    let (_, first) = read(&parts, &position, 1);
    let (_, second) = read(&parts, &first, 1);
    assert_eq!(first.segments.len(), second.segments.len());
    assert_eq!(second.segments.last().unwrap().steps, 2);
}

/// `0..len` of which only that at `good` can be read.
fn with_one_good(len: usize, good: usize) -> Dataset {
    Dataset::from_source(Files(vec![len])).map(move |example| {
        if example.x[0].to_f64()[0] as usize == good {
            return Ok(example);
        }
        Err(crate::Error::Data {
            source_name: "f".into(),
            place: "byte 0".into(),
            message: "no".into(),
        })
    })
}

#[test]
fn endless_data_that_are_all_corrupt_are_an_error() {
    let none = with_one_good(9, 99).skip_corrupt();
    for batches in [
        none.shuffle(1).repeat_forever().batch(4),
        none.batch(4).repeat_forever(),
        none.repeat_forever().skip(5).batch(4).prefetch(2),
        Dataset::mix(&[(none.repeat_forever(), 2), (none.repeat_forever(), 3)])
            .unwrap()
            .batch(4),
    ] {
        let mut iter = batches.iter(0, 0);
        let error = iter.next().unwrap().unwrap_err().to_string();
        assert!(
            error.contains("every example of the data is corrupt"),
            "{error}"
        );
        assert!(iter.next().is_none());
    }
    let part = none
        .repeat_forever()
        .batch(4)
        .shard(Worker::new(0, 2), AutoShardPolicy::Data);
    assert!(part.unwrap().get(0, 0).is_err());
    // A single good one is found, wherever it is in the order of each repetition.
    for seed in 0..20 {
        let one = with_one_good(9, 4).skip_corrupt().shuffle(seed);
        let read: Vec<Vec<i32>> = one
            .repeat_forever()
            .batch(1)
            .iter(0, 0)
            .take(5)
            .map(|batch| values(&batch.unwrap()))
            .collect();
        assert_eq!(read, vec![vec![4]; 5]);
    }
}

#[test]
fn what_is_read_only_for_its_tensors_is_not_counted_as_skipped() {
    let data = with_one_good(9, 8).skip_corrupt();
    let part = data
        .batch(4)
        .shard(Worker::new(0, 2), AutoShardPolicy::Data);
    assert_eq!(part.unwrap().get(0, 0).unwrap().rows(), 0);
    assert_eq!(data.skipped(), 2);
}

#[test]
fn a_position_knows_which_of_its_steps_were_left_out() {
    let batches = with_one_good(6, 4).skip_corrupt().batch(2);
    let mut iter = batches.iter(0, 0);
    assert_eq!(values(&iter.next().unwrap().unwrap()), [4]);
    let position = iter.position();
    assert_eq!((position.trained(), position.segments[0].steps), (1, 3));
    // As it is kept, gone on from, and merged by other batches.
    let again = batches.iter_at(&position).unwrap().position();
    assert_eq!(again.trained(), 1);
    let other = batches.dataset().batch(3).iter_at(&position).unwrap();
    assert_eq!(other.position().trained(), 1);
    let old = r#"{"epoch":0,"segments":[{"policy":"data","workers":1,"replicas":1,"batch":2,"steps":3}]}"#;
    assert_eq!(serde_json::from_str::<Position>(old).unwrap().trained(), 3);
}

#[test]
fn impossible_positions_are_refused_where_they_are_read() {
    let huge = usize::MAX;
    let segment = |workers, replicas, batch, steps| Segment {
        policy: AutoShardPolicy::Data,
        workers,
        replicas,
        batch,
        steps,
        left_out: 0,
        buckets: None,
    };
    let batches = Dataset::from_source(Files(vec![10])).batch(2);
    for wrong in [
        segment(0, 1, 2, 1),
        segment(1, 0, 2, 1),
        segment(huge, 1, 2, 1),
        segment(1, (1 << 20) + 1, 2, 1),
        segment(1, 1, huge, 0),
        segment(1, 1, 0, huge),
        segment(1, 1, 1 << 40, 1 << 40),
    ] {
        let position = Position {
            epoch: 0,
            segments: vec![wrong],
        };
        let text = serde_json::to_string(&position).unwrap();
        let error = serde_json::from_str::<Position>(&text).unwrap_err();
        assert!(error.to_string().contains("the file is damaged"), "{error}");
        assert!(batches.iter_at(&position).is_err());
    }
    let many = Position {
        epoch: 0,
        segments: vec![segment(1, 1, 1, 1); 17],
    };
    assert!(batches.iter_at(&many).is_err());
    // As large as is accepted: neither slow nor too large.
    let start = std::time::Instant::now();
    for policy in [AutoShardPolicy::Off, AutoShardPolicy::Data] {
        let most = Segment {
            policy,
            ..segment(1 << 20, 1 << 20, 1 << 28, (1 << 28) - 1)
        };
        let position = Position {
            epoch: u64::MAX,
            segments: vec![most; 16],
        };
        let endless = batches.dataset().repeat_forever().batch(3);
        for batches in [&batches, &endless] {
            let mut iter = batches.iter_at(&position).unwrap();
            let _ = iter.next();
            let _ = iter.position();
        }
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_position_is_gone_on_from_or_refused(
        epoch: u64, segments in prop::collection::vec((0u8..4, any_number(), any_number(), any_number(), any_number()), 0..5), size in 0usize..5, endless: bool,
    ) {
        let segments = segments.into_iter().map(|(policy, workers, replicas, batch, steps)| Segment {
            policy: [AutoShardPolicy::Auto, AutoShardPolicy::File, AutoShardPolicy::Data, AutoShardPolicy::Off][usize::from(policy)],
            workers, replicas, batch, steps, left_out: 0, buckets: None,
        });
        let text = serde_json::to_string(&Position { epoch, segments: segments.collect() }).unwrap();
        let data = Dataset::from_source(Files(vec![3, 5, 2]));
        let data = if endless { data.repeat_forever() } else { data };
        if let Ok(position) = serde_json::from_str(&text)
            && let Ok(mut iter) = data.batch(size).iter_at(&position) {
            for batch in iter.by_ref().take(3) {
                let _ = batch;
            }
            let _ = iter.position();
        }
    }
}

/// Mostly small, sometimes huge.
fn any_number() -> impl Strategy<Value = usize> {
    prop_oneof![
        0usize..6,
        (0u32..64).prop_map(|bits| 1usize << bits),
        Just(usize::MAX)
    ]
}

#[test]
fn a_worker_without_rows_has_the_tensors_of_the_others() {
    let corrupt = Dataset::from_source(Files(vec![3])).map(|example| {
        if example.x[0].to_f64()[0] > 1.0 {
            return Ok(example);
        }
        Err(crate::Error::Data {
            source_name: "f".into(),
            place: "byte 0".into(),
            message: "no".into(),
        })
    });
    let parts = parts(
        &corrupt.skip_corrupt().batch(4),
        4,
        1,
        AutoShardPolicy::Data,
    );
    let read: Vec<Batch> = parts.iter().map(|part| part.get(0, 0).unwrap()).collect();
    let rows: Vec<usize> = read.iter().map(Batch::rows).collect();
    assert_eq!(rows, [0, 0, 1, 0]);
    assert!(
        read.iter()
            .all(|batch| batch.x.len() == 1 && batch.x[0].dims().len() == 1)
    );
    for batch in read.iter().filter(|batch| batch.rows() == 0) {
        let row = batch.x[0].stand_in().unwrap();
        assert_eq!(
            (row.dims(), row.to_f64()),
            (&[1][..], read[2].x[0].to_f64())
        );
    }
    let none = corrupt
        .take(2)
        .skip_corrupt()
        .batch(4)
        .shard(Worker::new(0, 2), AutoShardPolicy::Data);
    let error = none.unwrap().get(0, 0).unwrap_err().to_string();
    assert!(
        error.contains("every example of the data is corrupt"),
        "{error}"
    );
}

#[test]
fn where_some_examples_have_weights_each_part_of_a_batch_has_them() {
    let rows = |count| {
        let x = HostTensor::new([count], &vec![1.0f32; count]);
        Dataset::from_arrays(x, Vec::new()).unwrap()
    };
    struct Weighted;
    impl Source for Weighted {
        fn len(&self) -> usize {
            4
        }

        fn get(&self, i: usize) -> Result<Example> {
            Ok(Example {
                x: vec![HostTensor::scalar(1.0f32)],
                weight: (i == 0).then_some(2.0),
                ..Example::default()
            })
        }
    }
    let weighted = rows(2).with_weights(&HostTensor::new([2], &[0.5f32, 2.0]));
    let both = weighted.unwrap().concatenate(&rows(2)).unwrap();
    let of = |data: &Dataset| {
        let batches = data.batch(4);
        parts(&batches, 2, 1, AutoShardPolicy::Data)
            .iter()
            .map(|part| part.get(0, 0).unwrap().weight.map(|weight| weight.f32s()))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(&both), [Some(vec![0.5, 2.0]), Some(vec![1.0, 1.0])]);
    let from_source = Dataset::from_source(Weighted);
    let expected = [Some(vec![2.0, 1.0]), Some(vec![1.0, 1.0])];
    assert_eq!(of(&from_source), expected);
    assert_eq!(of(&rows(4)), [None, None]);
}
