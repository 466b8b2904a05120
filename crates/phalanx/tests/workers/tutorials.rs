//! What TensorFlow's tutorials do with several workers, in the combinations that users make of it: loops of their own against `fit`.

use phalanx::checkpoint::TrainingState;
use phalanx::data::Example;
use phalanx::prelude::*;
use phalanx::strategy::{InputContext, Pipelines};
use phalanx_testkit::Scratch;

use crate::{TOLERANCE, apart, cases, engine, on_workers};

/// Rows of a batch: of 16 the last one has two, fewer than three workers.
const BATCH: usize = 7;
const EPOCHS: u64 = 3;

/// What is trained: settings that have something to do with each other.
struct Combination {
    name: &'static str,
    optimizer: Optimizer,
    loss_scale: LossScale,
    averages: bool,
}

fn combinations() -> Vec<Combination> {
    let momentum = || Optimizer::from(Sgd::new(0.1).momentum(0.9));
    let scale = |initial| LossScale::Dynamic {
        initial,
        growth_steps: 2,
    };
    vec![
        Combination {
            name: "accumulation, clipping by the norm of all, averages",
            optimizer: momentum()
                .global_clipnorm(0.2)
                .gradient_accumulation(2)
                .ema(0.8),
            loss_scale: LossScale::Off,
            averages: true,
        },
        Combination {
            name: "averages that take the variables' place, a scale that overflows, decay",
            optimizer: Optimizer::from(Adam::new(0.05).epsilon(1e-3))
                .clipnorm(0.3)
                .weight_decay(0.01)
                .ema(0.8)
                .ema_overwrite_frequency(3),
            loss_scale: scale(8e37),
            averages: true,
        },
        Combination {
            name: "accumulation, a scale that overflows, a schedule",
            optimizer: Optimizer::from(Adam::new(CosineDecay::new(0.05, 9)).epsilon(1e-3))
                .global_clipnorm(0.3)
                .gradient_accumulation(3),
            loss_scale: scale(8e37),
            averages: false,
        },
    ]
}

fn weighted(count: usize) -> Dataset {
    let weights: Vec<f32> = (0..count).map(|i| (i % 4) as f32 * 0.5).collect();
    let weights = HostTensor::new([count], &weights);
    cases::rows(count).with_weights(&weights).unwrap()
}

fn network() -> Model {
    let l2 = Regularizer::L2 { l2: 0.01 };
    let model = Sequential::new([6])
        .add(Dense::new(8).activation(tanh).kernel_regularizer(l2))
        .add(BatchNorm::new().epsilon(0.1).synchronized(true))
        .add(Dense::new(3));
    model.build().unwrap()
}

/// The same first values for loops and `fit`.
fn first_values() -> SavedModel {
    let one = OneDeviceStrategy::on(engine(0, 1));
    let trainer = one.compile(network(), Compile::default()).unwrap();
    trainer.saved_model().unwrap()
}

fn loss() -> Loss {
    SparseCategoricalCrossentropy::from_logits().into()
}

/// What a training is left with: variables, and an accuracy of the last epoch.
type Left = Vec<(String, Vec<f64>)>;

fn left(variables: Vec<(String, HostTensor)>, accuracy: f64) -> Left {
    let values = variables.into_iter();
    let values = values.map(|(name, value)| (name, value.to_f64()));
    values
        .chain([("accuracy".to_owned(), vec![accuracy])])
        .collect()
}

fn by_fit(case: &Combination, data: &Dataset) -> Left {
    let compile = Compile {
        optimizer: case.optimizer.clone(),
        loss: loss().into(),
        loss_scale: case.loss_scale,
        weighted_metrics: vec![Accuracy.into()],
        ..Compile::default()
    };
    let strategy = OneDeviceStrategy::on(engine(0, 1));
    let mut trainer = strategy.compile(first_values(), compile).unwrap();
    let fit = Fit::epochs(EPOCHS as usize).progress(Progress::Silent);
    let history = trainer.fit(&data.batch(BATCH), fit).unwrap();
    let last = &history.epochs.last().unwrap().logs;
    left(trainer.variables().unwrap(), last.get("accuracy").unwrap())
}

/// A loop over the data from where a checkpoint was, if any, that ends after `most` steps: what is left, and the state then.
fn by_hand(
    strategy: &impl Strategy,
    case: &Combination,
    data: &Dataset,
    from: Option<&TrainingState>,
    most: usize,
) -> phalanx::Result<(Left, TrainingState)> {
    let data = strategy.distribute_dataset(&data.batch(BATCH));
    let mut state = strategy.state(7)?;
    let model = state.add_model("net", first_values())?;
    let optimizer = state.add_optimizer_with(case.optimizer.clone(), case.loss_scale, &[&model])?;
    let accuracy = state.add_metric(Accuracy)?;
    let loss = loss();
    let mut step = strategy.function(|cx, batch: Inputs| {
        let y = cx.train(&model, &batch.x);
        let weight = batch.weight.as_ref();
        let mean = cx.mean(&loss.per_example(&batch.y[0], &y[0]), weight);
        let total = mean + cx.penalties(&model);
        let gradients = cx.gradients(&total, &optimizer);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&optimizer, &gradients);
        cx.update_metric(&accuracy, &batch.y[0], &y[0], weight);
        []
    });
    let mut epoch = match from {
        None => data.epoch(0),
        Some(from) => {
            state.set_training_state(from)?;
            data.epoch_from(from.position())?
        }
    };
    let mut steps = 0;
    while steps < most {
        match epoch.next() {
            Some(batch) => {
                let [] = step.call(&mut state, &batch?)?;
                steps += 1;
            }
            None if epoch.position().epoch + 1 == EPOCHS => break,
            None => {
                state.reset(&accuracy)?;
                epoch = data.epoch(epoch.position().epoch + 1);
            }
        }
    }
    let reached = state.training_state_at(epoch.position())?;
    if case.averages {
        state.take_averages(&optimizer)?;
    }
    let result = state.result(&accuracy)?;
    Ok((left(state.variables(&model)?, result), reached))
}

fn check(what: &str, expected: &Left, got: &Left) {
    assert_eq!(expected.len(), got.len(), "{what}");
    for ((name, a), (_, b)) in expected.iter().zip(got) {
        let apart = apart(a, b);
        assert!(apart <= TOLERANCE, "{what}: {name} is {apart:e} apart");
    }
}

#[test]
fn loops_by_hand_on_any_workers_train_as_fit_does() {
    for case in combinations() {
        let data = weighted(16).shuffle(5);
        let expected = by_fit(&case, &data);
        let one = OneDeviceStrategy::on(engine(0, 1));
        let central = CentralStorageStrategy::on(engine(0, 2));
        let mut all = vec![
            by_hand(&one, &case, &data, None, usize::MAX),
            by_hand(&central, &case, &data, None, usize::MAX),
        ];
        for (workers, devices) in [(2, 1), (3, 1), (2, 2)] {
            all.extend(on_workers(workers, devices, |strategy| {
                by_hand(&strategy, &case, &data, None, usize::MAX)
            }));
        }
        for (place, got) in all.into_iter().enumerate() {
            let what = format!("{}, the loop {place}", case.name);
            check(&what, &expected, &got.unwrap().0);
        }
    }
}

#[test]
fn an_optimizer_without_averages_says_so() {
    let one = OneDeviceStrategy::on(engine(0, 1));
    let mut state = one.state(7).unwrap();
    let model = state.add_model("net", network()).unwrap();
    let sgd = state.add_optimizer(Sgd::new(0.1), &[&model]).unwrap();
    let error = state.take_averages(&sgd).unwrap_err().to_string();
    assert!(
        error.contains("the optimizer of `net` keeps no averages"),
        "{error}"
    );
}

/// The first worker saves within an epoch, and another number of workers, or one process, goes on.
#[test]
fn a_loop_goes_on_within_an_epoch_on_another_number_of_workers() {
    let scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "workers-tutorials");
    for (case, at) in combinations().iter().zip([2, 4, 5]) {
        let data = weighted(16).shuffle(5);
        let expected = by_fit(case, &data);
        let path = scratch.join(at.to_string());
        on_workers(2, 1, |strategy| {
            let (_, reached) = by_hand(&strategy, case, &data, None, at).unwrap();
            if strategy.is_chief() {
                reached.save(&path).unwrap();
            }
        });
        let saved = TrainingState::load(&path).unwrap();
        let one = OneDeviceStrategy::on(engine(0, 1));
        let one = by_hand(&one, case, &data, Some(&saved), usize::MAX)
            .unwrap()
            .0;
        check(&format!("one device, {}", case.name), &expected, &one);
        for workers in [2, 3] {
            let all = on_workers(workers, 1, |strategy| {
                by_hand(&strategy, case, &data, Some(&saved), usize::MAX)
                    .unwrap()
                    .0
            });
            for got in &all {
                check(&format!("{workers} workers, {}", case.name), &expected, got);
            }
        }
    }
}

/// Sums of the rows and of their weights, step by step.
fn sums(
    strategy: &impl Strategy,
    data: &phalanx::strategy::DistributedDataset,
    steps: usize,
) -> Vec<f64> {
    let mut state = strategy.state(1).unwrap();
    let mut sum = strategy.function(|cx, batch: Inputs| {
        let row = batch.x[0].sum(&[1]);
        let weight = batch.weight.as_ref();
        [cx.mean(&row, weight), cx.examples()]
    });
    let mut found = Vec::new();
    for batch in data.epoch(0).take(steps) {
        let both = sum.call(&mut state, &batch.unwrap()).unwrap();
        for value in &both {
            found.push(strategy.reduce(Reduce::Sum, value, None).unwrap().to_f64()[0]);
        }
    }
    found
}

/// Of the rows of a batch one worker may have all that have weights.
#[test]
fn weights_that_some_rows_have_are_those_of_one_process_in_a_loop() {
    let data = weighted(3).concatenate(&cases::rows(9)).unwrap().batch(6);
    let one = OneDeviceStrategy::on(engine(0, 1));
    let one = sums(&one, &one.distribute_dataset(&data), usize::MAX);
    for workers in [2, 3] {
        for got in on_workers(workers, 1, |strategy| {
            sums(&strategy, &strategy.distribute_dataset(&data), usize::MAX)
        }) {
            assert!(
                apart(&one, &got) <= TOLERANCE,
                "{workers}: {one:?} and {got:?}"
            );
        }
    }
}

#[test]
fn endless_data_are_taken_step_by_step_as_in_one_process() {
    let data = weighted(17).shuffle(3).repeat_forever().batch(6);
    let one = OneDeviceStrategy::on(engine(0, 1));
    let one = sums(&one, &one.distribute_dataset(&data), 7);
    assert_eq!(one.len(), 14);
    for got in on_workers(2, 1, |strategy| {
        sums(&strategy, &strategy.distribute_dataset(&data), 7)
    }) {
        assert!(apart(&one, &got) <= TOLERANCE, "{one:?} and {got:?}");
    }
}

/// One process' pipeline is endless, the other's ends first.
#[test]
fn an_endless_pipeline_goes_on_beside_one_that_ends() {
    let own = |context: InputContext| {
        Ok(match context.input_pipeline_id {
            0 => weighted(8).repeat_forever().batch(4),
            _ => weighted(11).skip(8).batch(3),
        })
    };
    let all = on_workers(2, 1, |strategy| {
        let data = strategy.distribute_datasets_from_function(Pipelines::PerWorker, own);
        sums(&strategy, &data.unwrap(), 3)
    });
    let rows = |first: usize, count: usize| -> Vec<(f64, f64)> {
        let values = |example: Example| example.x[0].f32s().iter().map(|x| f64::from(*x)).sum();
        let weight = |i: usize| (i % 4) as f64 * 0.5;
        let data = cases::rows(11);
        (first..first + count)
            .map(|i| (values(data.get(0, i).unwrap()), weight(i)))
            .collect()
    };
    let mean = |rows: &[(f64, f64)]| {
        let weights: f64 = rows.iter().map(|(_, weight)| weight).sum();
        rows.iter().map(|(x, weight)| x * weight).sum::<f64>() / weights
    };
    let first = [rows(0, 4), rows(8, 3)].concat();
    let expected = [
        mean(&first),
        7.0,
        mean(&rows(4, 4)),
        4.0,
        mean(&rows(0, 4)),
        4.0,
    ];
    for got in all {
        assert!(
            apart(&expected, &got) <= TOLERANCE,
            "{expected:?} and {got:?}"
        );
    }
}
