//! Functions of custom training loops as steps of scheduled functions: the same as in one process, counted once although workers die,
//! and what servers cannot do is refused.

use phalanx::data::Batch;
use phalanx::strategy::{
    ClusterCoordinator, Function, MetricRef, ModelRef, OptimizerRef, ReplicaCx, State, TaskContext,
    ValueKind,
};

use super::schedule::{Door, one_row, unless_killed};
use super::*;

type Step = Function<'static, Inputs, 1>;

/// What a training loop has.
struct Loop {
    state: State,
    model: ModelRef,
    optimizer: OptimizerRef,
    step: Step,
    /// The predictions of a batch, which change nothing.
    predict: Step,
}

/// The loop of a step, with predictions.
fn with_predictions(
    strategy: &impl CustomTraining,
    state: State,
    (model, optimizer): (ModelRef, OptimizerRef),
    step: Step,
) -> Loop {
    let of_predict = model.clone();
    let predict = strategy.function(move |cx: &mut ReplicaCx<'_>, batch: Inputs| {
        [cx.call(&of_predict, &batch.x).remove(0)]
    });
    Loop {
        state,
        model,
        optimizer,
        step,
        predict,
    }
}

/// A layer with state of its own, random numbers, a loss that is none of ours, and gradients that the function changes.
fn training_loop(strategy: &impl CustomTraining, optimizer: Optimizer, dropout: f64) -> Loop {
    let mut state = strategy.state(5).unwrap();
    let network = Sequential::new([3])
        .add(Dense::new(8).activation(relu))
        .add(BatchNorm::new())
        .add(Dropout::new(dropout))
        .add(Dense::new(2));
    let model = state.add_model("net", network).unwrap();
    let error: MetricRef = state.add_metric(Metric::from(Accuracy)).unwrap();
    let optimizer = state.add_optimizer(optimizer, &[&model]).unwrap();
    let (of_step, updated) = (model.clone(), optimizer.clone());
    let step = strategy.function(move |cx: &mut ReplicaCx<'_>, batch: Inputs| {
        let y = cx.train(&of_step, &batch.x).remove(0);
        let apart = &y - &batch.y[0];
        let softened = (&apart * &apart + 1.0).sqrt();
        let loss = cx.mean(&softened, None);
        let gradients = cx.gradients(&loss, &updated);
        let gradients = gradients.map(|name, gradient| match name.ends_with("bias") {
            true => gradient * 2.0,
            false => gradient.clone(),
        });
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.update_metric(&error, &batch.y[0], &y, None);
        cx.apply(&updated, &gradients);
        [loss]
    });
    with_predictions(strategy, state, (model, optimizer), step)
}

fn batches(count: usize) -> Vec<Batch> {
    let number = |i: usize| (i as f32 * 0.7).sin();
    let batch = |at: usize| {
        let numbers = |n: usize, from: usize| -> Vec<f32> {
            (0..4 * n).map(|i| number(from + 31 * at + i)).collect()
        };
        Batch {
            x: vec![HostTensor::new([4, 3], &numbers(3, 0))],
            y: vec![HostTensor::new([4, 2], &numbers(2, 500))],
            weight: None,
            first: 4 * at as u64,
        }
    };
    (0..count).map(batch).collect()
}

/// The value of a result on the one replica.
fn number(result: &PerReplica) -> phalanx::Result<f64> {
    Ok(result.local_results()?[0].to_f64()[0])
}

/// All values of a state but the ones that each process has for itself.
fn values(state: &State) -> Vec<(String, Vec<f64>)> {
    let state = state.training_state().unwrap();
    let values = state.variables().iter().cloned();
    let shared = values.filter(|(name, _)| name != "draws" && !name.starts_with("accuracy"));
    shared.map(|(name, value)| (name, value.to_f64())).collect()
}

/// Losses, then predictions, and the state after a loop.
type Trained = (Vec<f64>, Vec<(String, Vec<f64>)>);

/// A loop of one process; `between` sees the state after three steps.
fn in_one_process(
    (optimizer, dropout): (Optimizer, f64),
    data: &[Batch],
    mut between: impl FnMut(&State),
) -> Trained {
    let strategy = OneDeviceStrategy::on(engine(0));
    let mut own = training_loop(&strategy, optimizer, dropout);
    let mut losses = Vec::new();
    for (index, batch) in data.iter().enumerate() {
        if index == 3 {
            between(&own.state);
        }
        let batch = strategy.distribute_batch(batch).unwrap();
        let [loss] = own.step.call(&mut own.state, &batch).unwrap();
        losses.push(number(&loss).unwrap());
    }
    take_averages(&mut own);
    let batch = strategy.distribute_batch(&data[0]).unwrap();
    let [predicted] = own.predict.call(&mut own.state, &batch).unwrap();
    losses.extend(predicted.local_results().unwrap()[0].to_f64());
    (losses, values(&own.state))
}

/// The same by one worker, which one function has run, from a state on where one is given.
fn on_servers(
    (optimizer, dropout): (&Optimizer, f64),
    data: &[Batch],
    from: Option<&TrainingState>,
    servers: usize,
) -> Trained {
    let all = on_workers((2, servers), &ParameterServerOptions::new(), |strategy| {
        let mut own = training_loop(&strategy, optimizer.clone(), dropout);
        if let Some(from) = from {
            own.state.set_training_state(from).unwrap();
        }
        let mut cluster = ClusterCoordinator::new(&strategy, own).unwrap();
        let (of_worker, own_data) = (strategy.clone(), data.to_vec());
        let steps = move |cx: &mut TaskContext<'_>, own: &mut Loop, ()| {
            let step = |batch: &Batch| {
                let batch = of_worker.distribute_batch(batch)?;
                let [loss] = cx.step(&mut own.step, &mut own.state, &batch)?;
                number(&loss)
            };
            own_data
                .iter()
                .map(step)
                .collect::<phalanx::Result<Vec<f64>>>()
        };
        let steps = cluster.function("steps", steps).unwrap();
        if !cluster.start().unwrap() {
            return None;
        }
        let mut losses = cluster.schedule(&steps, &()).unwrap().fetch().unwrap();
        let own = cluster.state_mut();
        assert_eq!(own.state.variables(&own.model).unwrap().len(), 8);
        take_averages(own);
        let batch = strategy.distribute_batch(&data[0]).unwrap();
        let [predicted] = own.predict.call(&mut own.state, &batch).unwrap();
        losses.extend(predicted.local_results().unwrap()[0].to_f64());
        Some((losses, values(&own.state)))
    });
    all.into_iter().next().flatten().unwrap()
}

fn compare_loops(what: &str, one: &Trained, other: &Trained) {
    let losses = apart(&one.0, &other.0);
    assert!(losses <= 1e-6, "{what}: losses are {losses:e} apart");
    assert_eq!(one.1.len(), other.1.len());
    for ((name, a), (other, b)) in one.1.iter().zip(&other.1) {
        assert_eq!(name, other);
        let apart = apart(a, b);
        assert!(apart <= 1e-6, "{what}: {name} is {apart:e} apart");
    }
}

fn optimizers() -> [(&'static str, Optimizer); 3] {
    [
        ("sgd", Sgd::new(0.05).momentum(0.9).into()),
        ("adam", Adam::new(0.01).into()),
        (
            "clipped",
            Optimizer::from(Sgd::new(0.05))
                .global_clipnorm(0.5)
                .ema(0.8),
        ),
    ]
}

/// The averages in the place of the variables, where there are some.
fn take_averages(own: &mut Loop) {
    let averages = |name: &str| name.contains("average");
    if values(&own.state).iter().any(|(name, _)| averages(name)) {
        own.state.take_averages(&own.optimizer).unwrap();
    }
}

#[test]
fn a_function_of_a_custom_loop_on_one_worker_trains_as_in_one_process() {
    let data = batches(8);
    for (name, optimizer) in optimizers() {
        let one = in_one_process((optimizer.clone(), 0.25), &data, |_| {});
        // It learns: the comparison is of something.
        assert!(one.0[7] < 0.95 * one.0[0], "{name}: {:?}", one.0);
        for servers in [1, 2] {
            let other = on_servers((&optimizer, 0.25), &data, None, servers);
            compare_loops(&format!("{name} on {servers} servers"), &one, &other);
        }
    }
}

/// Two outputs whose losses take turns, a function for each.
struct Turns {
    state: State,
    model: ModelRef,
    optimizer: OptimizerRef,
    steps: [Step; 2],
}

impl Turns {
    fn new(strategy: &impl CustomTraining, optimizer: Optimizer) -> Self {
        let mut network = Network::new();
        let x = network.input([3]);
        let outputs = ["one", "other"].map(|name| network.add(Dense::new(2).named(name), &[x]));
        let mut state = strategy.state(5).unwrap();
        let network = network.build(&[x], &outputs).unwrap();
        let model = state.add_model("net", network).unwrap();
        let optimizer = state.add_optimizer(optimizer, &[&model]).unwrap();
        let steps = [0, 1].map(|output| {
            let (of_step, updated) = (model.clone(), optimizer.clone());
            let step = move |cx: &mut ReplicaCx<'_>, batch: Inputs| {
                let y = cx.train(&of_step, &batch.x).swap_remove(output);
                let apart = &y - &batch.y[0];
                let loss = cx.mean(&(&apart * &apart), None);
                let gradients = cx.gradients(&loss, &updated);
                let gradients = cx.all_reduce_gradients(&gradients);
                cx.apply(&updated, &gradients);
                [loss]
            };
            strategy.function(step)
        });
        Self {
            state,
            model,
            optimizer,
            steps,
        }
    }

    /// The variables, and the averages in their place.
    fn values(&mut self) -> Vec<f64> {
        let all = |own: &Self| {
            let values = own.state.variables(&own.model).unwrap().into_iter();
            values.flat_map(|(_, value)| value.to_f64()).collect()
        };
        let variables: Vec<f64> = all(self);
        self.state.take_averages(&self.optimizer).unwrap();
        [variables, all(self)].concat()
    }
}

/// Each step averages all variables, whichever has a gradient, and overwrites them where that is due.
#[test]
fn servers_average_what_has_no_gradient_as_one_process_does() {
    let data = batches(7);
    let averaged = || Optimizer::from(Sgd::new(0.5)).ema(0.5);
    for optimizer in [averaged(), averaged().ema_overwrite_frequency(3)] {
        let strategy = OneDeviceStrategy::on(engine(0));
        let mut own = Turns::new(&strategy, optimizer.clone());
        for (number, batch) in data.iter().enumerate() {
            let batch = strategy.distribute_batch(batch).unwrap();
            let [_] = own.steps[number % 2].call(&mut own.state, &batch).unwrap();
        }
        let one = own.values();
        let all = on_workers((2, 2), &ParameterServerOptions::new(), |strategy| {
            let own = Turns::new(&strategy, optimizer.clone());
            let mut cluster = ClusterCoordinator::new(&strategy, own).unwrap();
            let (of_worker, own_data) = (strategy.clone(), data.clone());
            let steps = move |cx: &mut TaskContext<'_>, own: &mut Turns, ()| {
                for (number, batch) in own_data.iter().enumerate() {
                    let batch = of_worker.distribute_batch(batch)?;
                    let [_] = cx.step(&mut own.steps[number % 2], &mut own.state, &batch)?;
                }
                Ok(())
            };
            let steps = cluster.function("steps", steps).unwrap();
            if !cluster.start().unwrap() {
                return Vec::new();
            }
            cluster.schedule(&steps, &()).unwrap().fetch().unwrap();
            cluster.state_mut().values()
        });
        let apart = apart(&one, &all[0]);
        assert!(apart <= 1e-6, "{apart:e} apart");
    }
}

#[test]
fn a_custom_loop_goes_on_on_servers_from_a_state_of_one_process() {
    let data = batches(7);
    let (_, optimizer) = optimizers().into_iter().nth(1).unwrap();
    let mut saved = None;
    let one = in_one_process((optimizer.clone(), 0.25), &data, |state| {
        saved = Some(state.training_state().unwrap());
    });
    let mut other = on_servers((&optimizer, 0.25), &data[3..], saved.as_ref(), 2);
    // It ends with predictions of its own first batch, which is another.
    let rest = one.0.iter().skip(3).take(4).copied().collect();
    other.0.truncate(4);
    compare_loops("from a checkpoint", &(rest, one.1), &other);
}

/// A model of one weight, from 0 on, which each step raises by exactly 1, whatever its value: so it counts steps.
fn counter(strategy: &impl CustomTraining) -> Loop {
    let mut state = strategy.state(1).unwrap();
    let weight = Dense::new(1)
        .use_bias(false)
        .kernel_initializer(Initializer::Zeros);
    let model = state
        .add_model("counter", Sequential::new([1]).add(weight))
        .unwrap();
    let optimizer = state.add_optimizer(Sgd::new(1.0), &[&model]).unwrap();
    let (of_step, updated) = (model.clone(), optimizer.clone());
    let step = strategy.function(move |cx: &mut ReplicaCx<'_>, batch: Inputs| {
        let y = cx.train(&of_step, &batch.x).remove(0);
        let loss = cx.mean(&(&batch.y[0] - &y), None);
        let gradients = cx.gradients(&loss, &updated);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&updated, &gradients);
        [loss]
    });
    with_predictions(strategy, state, (model, optimizer), step)
}

/// Six functions of two steps; worker 1 dies in its first, after one of them.
#[test]
fn what_a_killed_worker_has_applied_in_a_custom_loop_counts_once() {
    let door = Door::default();
    let results = on_workers((3, 2), &ParameterServerOptions::new(), |strategy| {
        let door = door.clone();
        unless_killed(move || {
            let mut cluster = ClusterCoordinator::new(&strategy, counter(&strategy)).unwrap();
            let of_worker = strategy.clone();
            let train = move |cx: &mut TaskContext<'_>, own: &mut Loop, ()| {
                if cx.worker() == 2 {
                    door.pass();
                }
                let batch = of_worker.distribute_batch(&one_row())?;
                cx.step(&mut own.step, &mut own.state, &batch)?;
                if cx.worker() == 1 {
                    door.open();
                    panic!("worker 1 is killed");
                }
                cx.step(&mut own.step, &mut own.state, &batch)?;
                Ok(cx.worker())
            };
            let train = cluster.function("train", train).unwrap();
            if !cluster.start().unwrap() {
                return None;
            }
            let values = (0..6).map(|_| cluster.schedule(&train, &()).unwrap());
            let values: Vec<_> = values.collect();
            cluster.join().unwrap();
            let by = values.iter().map(|value| value.fetch().unwrap());
            assert_eq!(by.collect::<Vec<_>>(), [2; 6]);
            let own = cluster.state_mut();
            let weight = own.state.variables(&own.model).unwrap()[0].1.to_f64()[0];
            Some((weight, own.state.iterations(&own.optimizer).unwrap()))
        })
    });
    assert_eq!(results, [Some((12.0, 12)), None, None]);
}

/// Of two functions of two steps that push nothing.
#[test]
fn steps_that_push_nothing_draw_other_random_numbers() {
    let results = on_workers((2, 1), &ParameterServerOptions::new(), |strategy| {
        let own = counter(&strategy);
        let draw: Step = strategy.function(|cx: &mut ReplicaCx<'_>, batch: Inputs| {
            [cx.uniform(4, &[1]) + batch.x[0].sum_all() * 0.0]
        });
        let mut cluster = ClusterCoordinator::new(&strategy, (own, draw)).unwrap();
        let of_worker = strategy.clone();
        let draws = move |cx: &mut TaskContext<'_>, (own, draw): &mut (Loop, Step), ()| {
            let batch = of_worker.distribute_batch(&one_row())?;
            let steps = (0..2).map(|_| {
                let [drawn] = cx.step(draw, &mut own.state, &batch)?;
                Ok(drawn.local_results()?[0].to_f64())
            });
            steps.collect::<phalanx::Result<Vec<Vec<f64>>>>()
        };
        let draws = cluster.function("draws", draws).unwrap();
        if !cluster.start().unwrap() {
            return Vec::new();
        }
        let drawn = (0..2).map(|_| cluster.schedule(&draws, &()).unwrap());
        let drawn: Vec<_> = drawn.collect();
        let drawn = drawn.iter().flat_map(|value| value.fetch().unwrap());
        drawn.collect::<Vec<Vec<f64>>>()
    });
    let mut drawn = results[0].clone();
    drawn.sort_by(|a, b| a[0].total_cmp(&b[0]));
    drawn.dedup();
    assert_eq!(drawn.len(), 4, "{drawn:?}");
}

/// What a function with this body says on servers.
fn refused(
    strategy: &ParameterServerStrategy,
    own: &mut Loop,
    body: impl Fn(&mut ReplicaCx<'_>, &Inputs, &ModelRef, &OptimizerRef) -> Tensor,
) -> String {
    let (model, optimizer) = (own.model.clone(), own.optimizer.clone());
    let mut function = strategy
        .function(|cx: &mut ReplicaCx<'_>, batch: Inputs| [body(cx, &batch, &model, &optimizer)]);
    let batch = strategy.distribute_batch(&batches(1)[0]).unwrap();
    let error = function.call(&mut own.state, &batch).unwrap_err();
    error.to_string()
}

/// The usual step of a loop.
fn applied(
    cx: &mut ReplicaCx<'_>,
    batch: &Inputs,
    model: &ModelRef,
    optimizer: &OptimizerRef,
) -> Tensor {
    let y = cx.train(model, &batch.x).remove(0);
    let loss = cx.mean(&(&y * &y), None);
    let gradients = cx.gradients(&loss, optimizer);
    let gradients = cx.all_reduce_gradients(&gradients);
    cx.apply(optimizer, &gradients);
    loss
}

fn check_refused_functions(strategy: &ParameterServerStrategy, own: &mut Loop) {
    let says = |error: String, what: &str| assert!(error.contains(what), "{error}");
    says(refused(strategy, own, applied), "calls `TaskContext::step`");
    let twice = |cx: &mut ReplicaCx<'_>, batch: &Inputs, m: &ModelRef, o: &OptimizerRef| {
        let y = cx.train(m, &batch.x).remove(0);
        let loss = cx.mean(&(&y * &y), None);
        let gradients = cx.gradients(&loss, o);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(o, &gradients);
        cx.apply(o, &gradients);
        loss
    };
    says(refused(strategy, own, twice), "applies gradients once");
    let reads = |cx: &mut ReplicaCx<'_>, batch: &Inputs, m: &ModelRef, o: &OptimizerRef| {
        applied(cx, batch, m, o);
        cx.call(m, &batch.x).remove(0)
    };
    says(refused(strategy, own, reads), "is read after `apply`");
    let trains = |cx: &mut ReplicaCx<'_>, batch: &Inputs, m: &ModelRef, _: &OptimizerRef| {
        cx.train(m, &batch.x).remove(0)
    };
    says(refused(strategy, own, trains), "applies no gradients");
    let sets = |cx: &mut ReplicaCx<'_>, _: &Inputs, m: &ModelRef, _: &OptimizerRef| {
        let values = cx.variables(m);
        let halves: Vec<Tensor> = values.iter().map(|value| value * 0.5).collect();
        cx.set_variables(m, &halves);
        cx.graph().scalar(DType::F32, 0.0)
    };
    says(refused(strategy, own, sets), "is set by the function");
    let unequal = |cx: &mut ReplicaCx<'_>, batch: &Inputs, m: &ModelRef, o: &OptimizerRef| {
        let y = cx.train(m, &batch.x).remove(0);
        let loss = cx.mean(&(&y * &y), None);
        let gradients = cx.gradients(&loss, o);
        cx.apply(o, &gradients);
        loss
    };
    says(refused(strategy, own, unequal), "different on each replica");
}

#[test]
fn what_servers_cannot_do_in_a_custom_loop_is_refused() {
    on_workers((2, 1), &ParameterServerOptions::new(), |strategy| {
        let says = |error: phalanx::Error, what: &str| {
            let error = error.to_string();
            assert!(error.contains(what), "{error}");
        };
        let mut own = training_loop(&strategy, Sgd::new(0.1).into(), 0.0);
        let model = own.model.clone();
        let again = own.state.add_optimizer(Sgd::new(0.1), &[&model]);
        says(again.unwrap_err(), "the one optimizer");
        let late = own
            .state
            .add_model("late", Sequential::new([1]).add(Dense::new(1)));
        says(late.unwrap_err(), "add all models first");
        let zero = HostTensor::scalar(0.0f32);
        let same = own.state.add_value("same", &zero, ValueKind::Replicated);
        says(same.unwrap_err(), "add it as another kind");
        own.state.add_value("own", &zero, ValueKind::First).unwrap();
        let mut other = strategy.state(1).unwrap();
        let scaled = other.add_model("net", Sequential::new([3]).add(Dense::new(1)));
        let scaled = scaled.unwrap();
        let dynamic = other.add_optimizer_with(Sgd::new(0.1), LossScale::DYNAMIC, &[&scaled]);
        says(dynamic.unwrap_err(), "no dynamic loss scale");
        let unshared = strategy.function(move |cx: &mut ReplicaCx<'_>, batch: Inputs| {
            [cx.call(&scaled, &batch.x).remove(0)]
        });
        let mut unshared: Step = unshared;
        let batch = strategy.distribute_batch(&batches(1)[0]).unwrap();
        let error = unshared.call(&mut other, &batch).unwrap_err();
        says(error, "call `add_optimizer` first");
        check_refused_functions(&strategy, &mut own);
    });
}

#[test]
fn a_state_of_another_strategy_is_refused_by_a_step() {
    let failed = on_workers((2, 1), &ParameterServerOptions::new(), |strategy| {
        let own = counter(&OneDeviceStrategy::on(engine(0)));
        let mut cluster = ClusterCoordinator::new(&strategy, own).unwrap();
        let of_worker = strategy.clone();
        let train = move |cx: &mut TaskContext<'_>, own: &mut Loop, ()| {
            let batch = of_worker.distribute_batch(&one_row())?;
            cx.step(&mut own.step, &mut own.state, &batch).map(drop)
        };
        let train = cluster.function("train", train).unwrap();
        if !cluster.start().unwrap() {
            return None;
        }
        let error = cluster.schedule(&train, &()).unwrap().fetch().unwrap_err();
        assert!(cluster.join().is_err());
        Some(error.to_string())
    });
    let failed = failed.into_iter().next().flatten().unwrap();
    assert!(
        failed.contains("the state is of another strategy"),
        "{failed}"
    );
}
