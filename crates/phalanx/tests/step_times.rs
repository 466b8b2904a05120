//! Where the time of real trainings goes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::callbacks::Lambda;
use phalanx::fit::{StepPart, StepTimes};
use phalanx::prelude::*;

fn trainer() -> Trainer {
    let engine = Engine::new(&EngineOptions::default()).unwrap();
    let compile = Compile {
        optimizer: Adam::new(0.01).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        ..Compile::default()
    };
    let model = Sequential::new([16])
        .add(Dense::new(64))
        .add(Dense::new(3))
        .build()
        .unwrap();
    OneDeviceStrategy::on(&engine)
        .compile(model, compile)
        .unwrap()
}

fn batches() -> Batches {
    let x: Vec<f32> = (0..16 * 160).map(|i| (i as f32 * 0.7).sin()).collect();
    let y: Vec<i32> = (0..160).map(|i| i % 3).collect();
    let rows = Dataset::from_arrays(HostTensor::new([160, 16], &x), HostTensor::new([160], &y));
    rows.unwrap().batch(16)
}

fn slow() -> Batches {
    let slow = batches().map(|batch| {
        // Ten of them are well above what is worth a word, also where devices run during some of it.
        std::thread::sleep(Duration::from_millis(20));
        Ok(batch)
    });
    slow.prefetch(0)
}

fn quiet(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

/// What the last epoch of a training waits for, and its verdict.
fn bound(data: &Batches, fit: Fit) -> (Option<StepPart>, String) {
    let history = trainer().fit(data, fit).unwrap();
    let last = history.epochs.last().unwrap();
    let verdict = last.verdict.clone().unwrap_or_default();
    (last.times.unwrap().bound(), verdict)
}

#[test]
fn slow_data_and_slow_callbacks_are_told_apart() {
    let (part, verdict) = bound(&slow(), quiet(2));
    assert_eq!(part, Some(StepPart::Input), "{verdict}");
    assert!(verdict.contains("slowest stage: map"), "{verdict}");
    let pause = quiet(2).after_epoch(|_| {
        std::thread::sleep(Duration::from_millis(200));
        Ok(())
    });
    let (part, verdict) = bound(&batches(), pause);
    assert_eq!(part, Some(StepPart::Callbacks), "{verdict}");
}

/// A model of many variables, whose checkpoints take longer than its steps.
fn wide() -> Trainer {
    let engine = Engine::new(&EngineOptions::default()).unwrap();
    let compile = Compile {
        optimizer: Adam::new(0.01).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let model = Sequential::new([16])
        .add(Embedding::new(4000, 64))
        .add(Flatten)
        .add(Dense::new(3))
        .build()
        .unwrap();
    OneDeviceStrategy::on(&engine)
        .compile(model, compile)
        .unwrap()
}

#[test]
fn slow_examples_are_told_from_slow_maps() {
    let x: Vec<f32> = (0..16 * 160).map(|i| (i as f32 * 0.7).sin()).collect();
    let y: Vec<i32> = (0..160).map(|i| i % 3).collect();
    let rows = Dataset::from_arrays(HostTensor::new([160, 16], &x), HostTensor::new([160], &y));
    let slow = rows.unwrap().map(|example| {
        std::thread::sleep(Duration::from_millis(2));
        Ok(example)
    });
    let (part, verdict) = bound(&slow.batch(16).prefetch(0), quiet(2));
    assert_eq!(part, Some(StepPart::Input), "{verdict}");
    assert!(verdict.contains("slowest stage: examples"), "{verdict}");
}

#[test]
fn slow_checkpoints_are_told() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("slow-checkpoints");
    let _ = std::fs::remove_dir_all(&folder);
    let x = HostTensor::new(
        [160, 16],
        &(0..160 * 16).map(|i| i % 4000).collect::<Vec<i32>>(),
    );
    let y = HostTensor::new([160], &(0..160).map(|i| i % 3).collect::<Vec<i32>>());
    let rows = Dataset::from_arrays(x, y).unwrap().batch(16);
    let fit = quiet(2).checkpoint(folder.join("c")).save_freq(1);
    let history = wide().fit(&rows, fit).unwrap();
    let last = history.epochs.last().unwrap();
    let verdict = last.verdict.clone().unwrap_or_default();
    let part = last.times.unwrap().bound();
    assert_eq!(
        part,
        Some(StepPart::Checkpoint),
        "{verdict} {:?}",
        last.times
    );
    assert!(verdict.contains("write fewer (`save_freq`)"), "{verdict}");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn the_parts_add_up_to_the_time_that_passed() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("step-times");
    let _ = std::fs::remove_dir_all(&folder);
    let five = [
        (batches(), quiet(4)),
        (slow(), quiet(4)),
        (batches(), quiet(4).validation(&slow())),
        (
            batches(),
            quiet(4).checkpoint(folder.join("checkpoint")).save_freq(1),
        ),
        (
            batches().prefetch(2),
            quiet(4).tensorboard(folder.join("events")),
        ),
    ];
    for (index, (data, fit)) in five.into_iter().enumerate() {
        let begun = Instant::now();
        let history = trainer().fit(&data, fit).unwrap();
        let passed = begun.elapsed();
        let times: Vec<StepTimes> = history.epochs.iter().map(|e| e.times.unwrap()).collect();
        for (epoch, times) in history.epochs.iter().zip(&times) {
            assert_eq!(times.steps, epoch.steps);
        }
        // By the clock of the counting itself: what is between two readings of another one is the machine's affair.
        let wall = times[3].until().unwrap() - times[0].until().unwrap();
        let told: Duration = times[1..].iter().map(StepTimes::total).sum();
        let apart = wall.abs_diff(told);
        assert!(
            apart < wall.mul_f64(0.03),
            "workload {index}: {told:?} of {wall:?}"
        );
        let all: Duration = times.iter().map(StepTimes::total).sum();
        assert!(all <= passed, "workload {index}: {all:?} in {passed:?}");
        // Of each of the last epochs all but what follows the results is in them.
        let seconds: f64 = history.epochs[1..].iter().map(|epoch| epoch.seconds).sum();
        assert!(seconds <= told.as_secs_f64() + 1e-6, "workload {index}");
        let part = |part| history.epochs[1].times.unwrap().of(part);
        assert!(part(StepPart::Compute) > Duration::ZERO);
        assert_eq!(part(StepPart::Compile), Duration::ZERO, "workload {index}");
        assert_eq!(part(StepPart::Checkpoint) > Duration::ZERO, index == 3);
        assert_eq!(part(StepPart::Validation) > Duration::ZERO, index == 2);
    }
    let _ = std::fs::remove_dir_all(&folder);
}

/// Readings of the tests' own clock: after each batch and after each epoch.
type Readings = Arc<Mutex<[Vec<Instant>; 2]>>;

/// Trains with a clock of the test's own: the parts of all epochs but the first fill the time from the end of that one's last step on.
fn fills_the_time(name: &str, strategy: &dyn Fn(Model) -> Trainer, model: Model, data: &Batches) {
    let readings = Readings::default();
    let read = |kind: usize| {
        let readings = readings.clone();
        move || readings.lock().unwrap()[kind].push(Instant::now())
    };
    let (after_batch, after_epoch) = (read(0), read(1));
    let hooks = Lambda::new()
        .on_train_batch_end(move |_, _| {
            after_batch();
            Ok(())
        })
        .on_epoch_end(move |_, _| {
            after_epoch();
            Ok(())
        });
    let history = strategy(model).fit(data, quiet(4).callback(hooks)).unwrap();
    let [batches, epochs] = readings.lock().unwrap().clone();
    assert_eq!((batches.len(), epochs.len()), (40, 4), "{name}");
    let told: Duration = (history.epochs[1..].iter())
        .map(|epoch| epoch.times.unwrap().total())
        .sum();
    // An epoch ends, in the breakdown, between its last step and its callbacks.
    let (least, most) = (batches[39] - epochs[0], epochs[3] - batches[9]);
    let (least, most) = (least.mul_f64(0.97), most.mul_f64(1.03));
    assert!(
        least <= told && told <= most,
        "{name}: {told:?}, and {least:?} to {most:?} passed"
    );
}

#[test]
fn the_parts_fill_the_time_of_five_models() {
    let engine = Engine::new(&EngineOptions::default()).unwrap();
    let two = EngineOptions {
        cpu_devices: 2,
        ..EngineOptions::default()
    };
    let two = Engine::new(&two).unwrap();
    let compile = |optimizer: Optimizer| Compile {
        optimizer,
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let adam = || Optimizer::from(Adam::new(0.01));
    let one = |model| OneDeviceStrategy::on(&engine).compile(model, compile(adam()));
    let accumulated = |model| {
        OneDeviceStrategy::on(&engine).compile(model, compile(adam().gradient_accumulation(2)))
    };
    let mirrored = |model| MirroredStrategy::on(&two).compile(model, compile(adam()));
    let flat = || Sequential::new([16]);
    let dense = || flat().add(Dense::new(64)).add(Dense::new(3));
    let images = flat().add(Reshape::new([4, 4, 1])).add(Conv2d::new(4, 3));
    let images = images.add(Flatten).add(Dense::new(3));
    let sequences = flat().add(Reshape::new([8, 2])).add(Lstm::new(8));
    let sequences = sequences.add(Dense::new(3));
    let data = batches();
    let run =
        |name: &str, strategy: &dyn Fn(Model) -> phalanx::Result<Trainer>, model: Sequential| {
            let strategy = |model| strategy(model).unwrap();
            fills_the_time(name, &strategy, model.build().unwrap(), &data);
        };
    run("dense", &one, dense());
    run("convolution", &one, images);
    run("recurrent", &one, sequences);
    run("accumulation", &accumulated, dense());
    run("replicas", &mirrored, dense());
}
