//! What a loop trains: as any number of replicas, as `fit`, in half precision, with two models.

use phalanx::Result;
use phalanx::checkpoint::TrainingState;
use phalanx::data::{AutoShardPolicy, Position, Worker};
use phalanx::nn::{Cx, Layer};
use phalanx::prelude::*;
use phalanx::replicas::{Reduction, WireFormat};
use phalanx::strategy::{DistributedDataset, InputContext, OptimizerRef, Pipelines};
use phalanx_graph::op::ReduceOp;
use phalanx_graph::{Shape, Tensor};

use crate::{
    assert_near, column, cross_entropy, engine, mirrored, mlp, optimizer, rows, text, told,
};

/// Variables after three epochs of a loop by hand, the last losses, and the accuracy.
type ByHand = (Vec<(String, HostTensor)>, Vec<f64>, f64);

fn by_hand(strategy: &impl Strategy) -> ByHand {
    by_hand_on(strategy, &rows(23).batch(8))
}

fn by_hand_on(strategy: &impl Strategy, batches: &Batches) -> ByHand {
    let mut state = strategy.state(0).unwrap();
    let model = state.add_model("mlp", mlp()).unwrap();
    let adam = state.add_optimizer(optimizer(), &[&model]).unwrap();
    let accuracy = state.add_metric(Accuracy).unwrap();
    let loss = cross_entropy();
    let mut step = strategy.function(|cx, batch: Inputs| {
        let logits = cx.train(&model, &batch.x).remove(0);
        let losses = loss.per_example(&batch.y[0], &logits);
        let loss = cx.mean(&losses, None) + cx.penalties(&model);
        let gradients = cx.gradients(&loss, &adam);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&adam, &gradients);
        cx.update_metric(&accuracy, &batch.y[0], &logits, None);
        [cx.all_reduce(ReduceOp::Sum, &loss)]
    });
    let data = strategy.distribute_dataset(batches);
    assert_eq!(data.steps(), batches.len());
    let mut losses = Vec::new();
    for epoch in 0..3 {
        state.reset(&accuracy).unwrap();
        for batch in data.epoch(epoch) {
            let [loss] = step.call(&mut state, &batch.unwrap()).unwrap();
            losses.push(loss);
        }
    }
    let losses = losses.iter().map(|loss| loss.value().unwrap().to_f64()[0]);
    let losses = losses.collect();
    let steps = 3 * batches.len().unwrap() as i64;
    assert_eq!(state.iterations(&adam).unwrap(), steps);
    (
        state.variables(&model).unwrap(),
        losses,
        state.result(&accuracy).unwrap(),
    )
}

#[test]
fn any_number_of_replicas_trains_as_one_by_hand() {
    let one = by_hand(&OneDeviceStrategy::on(engine()));
    for replicas in [2, 3] {
        let many = by_hand(&mirrored(replicas));
        for ((name, a), (_, b)) in one.0.iter().zip(&many.0) {
            assert_near(name, &a.to_f64(), &b.to_f64(), 1e-5);
        }
        assert_near("losses", &one.1, &many.1, 1e-5);
        assert_eq!(one.2, many.2);
    }
    let central = CentralStorageStrategy::on(engine()).compute_devices(["cpu:0", "cpu:1"]);
    let central = by_hand(&central.unwrap().parameter_device("cpu:2").unwrap());
    for ((name, a), (_, b)) in one.0.iter().zip(&central.0) {
        assert_near(name, &a.to_f64(), &b.to_f64(), 1e-5);
    }
    let again = by_hand(&mirrored(2));
    let before = by_hand(&mirrored(2));
    for ((name, a), (_, b)) in before.0.iter().zip(&again.0) {
        assert!(a == b, "{name} differs between two runs");
    }
}

/// Of batches of 10 this process has 5 rows, which two devices have no even parts of, and nobody has the others.
#[test]
fn data_that_are_sharded_by_hand_train_as_on_one_device() {
    let worker = Worker::new(0, 2);
    let part = rows(20).batch(10).shard(worker, AutoShardPolicy::Data);
    let part = part.unwrap();
    let batch = mirrored(2).distribute_dataset(&part).epoch(0).next();
    assert_eq!(batch.unwrap().unwrap().rows_per_replica(), [3, 2]);
    let one = by_hand_on(&OneDeviceStrategy::on(engine()), &part);
    let two = by_hand_on(&mirrored(2), &part);
    for ((name, a), (_, b)) in one.0.iter().zip(&two.0) {
        assert_near(name, &a.to_f64(), &b.to_f64(), 1e-5);
    }
    assert_near("losses", &one.1, &two.1, 1e-5);
    assert_eq!(one.2, two.2);
}

#[test]
fn a_loop_by_hand_is_what_fit_does() {
    let hand = by_hand(&mirrored(2));
    let compile = Compile {
        optimizer: optimizer(),
        loss: cross_entropy().into(),
        metrics: vec![Accuracy.into()],
        seed: 0,
        ..Compile::default()
    };
    let mut trainer = mirrored(2).compile(mlp(), compile).unwrap();
    let fit = Fit::epochs(3).progress(Progress::Silent);
    let history = trainer.fit(&rows(23).batch(8), fit).unwrap();
    for ((name, a), (_, b)) in trainer.variables().unwrap().iter().zip(&hand.0) {
        assert_near(name, &a.to_f64(), &b.to_f64(), 1e-6);
    }
    let logs = &history.epochs[2].logs;
    assert_near(
        "accuracy",
        &[logs.get("accuracy").unwrap()],
        &[hand.2],
        1e-12,
    );
}

/// A model without dropout, whose draws a skipped step uses up in a loop.
fn without_dropout() -> Sequential {
    Sequential::new([4])
        .add(Dense::new(8).activation(relu))
        .add(BatchNorm::new().synchronized(true))
        .add(Dense::new(3))
}

/// Half precision by hand is what it is in `fit`: a first scale that overflows, steps that change nothing, a scale that grows.
#[test]
fn a_loop_in_half_precision_skips_the_steps_that_fit_skips() {
    let loss_scale = LossScale::Dynamic {
        initial: 2f64.powi(22),
        growth_steps: 3,
    };
    let model = without_dropout;
    let strategy = mirrored(2);
    let compile = Compile {
        optimizer: optimizer(),
        loss: cross_entropy().into(),
        precision: Policy::MixedFloat16,
        loss_scale,
        ..Compile::default()
    };
    let data = rows(24).batch(8);
    let mut trainer = strategy.compile(model(), compile).unwrap();
    let fit = Fit::epochs(4).progress(Progress::Silent);
    let history = trainer.fit(&data, fit).unwrap();
    let mut state = strategy.state(0).unwrap();
    let model = state.add_model("mlp", model()).unwrap();
    let adam = state.add_optimizer_with(optimizer(), loss_scale, &[&model]);
    let adam = adam.unwrap();
    let plain = state.add_optimizer(optimizer(), &[&model]).unwrap();
    let loss = cross_entropy();
    let step = |optimizer: OptimizerRef| {
        let (loss, model) = (&loss, &model);
        let function = strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(model, &batch.x).remove(0);
            let losses = loss.per_example(&batch.y[0], &logits);
            let loss = cx.mean(&losses, None) + cx.penalties(model);
            let gradients = cx.gradients(&loss, &optimizer);
            let gradients = cx.all_reduce_gradients(&gradients);
            cx.apply(&optimizer, &gradients);
            []
        });
        function.policy(Policy::MixedFloat16)
    };
    let mut scaled = step(adam.clone());
    let batches = strategy.distribute_dataset(&data);
    for epoch in 0..4 {
        for batch in batches.epoch(epoch) {
            let [] = scaled.call(&mut state, &batch.unwrap()).unwrap();
        }
    }
    let (scale, skipped) = state.loss_scale(&adam).unwrap().unwrap();
    assert_eq!(vec![skipped as f64], history.of("skipped_steps")[3..]);
    assert_eq!(vec![scale], history.of("loss_scale")[3..]);
    assert!(skipped > 0 && state.iterations(&adam).unwrap() == 12 - skipped as i64);
    let hand = state.variables(&model).unwrap();
    for ((name, hand), (_, fit)) in hand.iter().zip(&trainer.variables().unwrap()) {
        assert_near(name, &hand.to_f64(), &fit.to_f64(), 1e-5);
    }
    let batch = batches.epoch(0).next().unwrap().unwrap();
    let error = text(step(plain).call(&mut state, &batch));
    assert!(error.contains("has no loss scale; add it with"), "{error}");
}

#[test]
fn one_program_trains_two_models_against_each_other() {
    let train = |replicas: usize| {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(5).unwrap();
        let line = |units| {
            Sequential::new([1])
                .add(Dense::new(units))
                .add(Dense::new(1))
        };
        let maker = state.add_model("maker", line(3)).unwrap();
        let judge = state.add_model("judge", line(4)).unwrap();
        let of_maker = state.add_optimizer(Sgd::new(0.1), &[&maker]).unwrap();
        let of_judge = state.add_optimizer(Adam::new(0.1), &[&judge]).unwrap();
        let mut step = strategy.function(|cx, batch: Inputs| {
            let made = cx.train(&maker, &batch.x);
            let (real, fake) = (cx.train(&judge, &batch.x), cx.train(&judge, &made));
            let judged = cx.mean(&(fake[0].square() - real[0].tanh()), None);
            let fooled = cx.mean(&(1.0 - &fake[0]).square(), None);
            let a = cx.gradients(&judged, &of_judge);
            let b = cx.gradients(&fooled, &of_maker);
            let (a, b) = (cx.all_reduce_gradients(&a), cx.all_reduce_gradients(&b));
            cx.apply(&of_judge, &a);
            cx.apply(&of_maker, &b);
            [cx.all_reduce(ReduceOp::Sum, &judged)]
        });
        let batch = strategy
            .distribute_batch(&column(&[1.0, -2.0, 3.0]))
            .unwrap();
        let losses = (0..3).map(|_| {
            step.call(&mut state, &batch)
                .unwrap()
                .map(|l| l.value().unwrap())
        });
        let losses: Vec<f64> = losses.flat_map(|[loss]| loss.to_f64()).collect();
        let saved = state.saved_model(&maker).unwrap();
        assert_eq!(saved.model().variables().len(), 4);
        let both = [
            saved.values().to_vec(),
            state.saved_model(&judge).unwrap().values().to_vec(),
        ];
        (losses, both.concat())
    };
    let (one, two) = (train(1), train(2));
    assert_ne!(one.0[0], one.0[2]);
    assert_near("losses", &one.0, &two.0, 1e-5);
    for (a, b) in one.1.iter().zip(&two.1) {
        assert_near("variables", &a.to_f64(), &b.to_f64(), 1e-5);
    }
}

#[test]
fn pipelines_deal_their_batches_to_replicas() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let mut own = strategy.function(|cx, batch: Inputs| {
        let first = batch.x[0].slice_dim(1, 0, 1);
        [cx.per_example(&first)]
    });
    let numbers = |count: usize| {
        let x: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let y = HostTensor::zeros(Shape::f32([count]));
        Dataset::from_arrays(HostTensor::new([count, 1], &x), y).unwrap()
    };
    let mut steps = |data: &DistributedDataset| -> Vec<Vec<Vec<f32>>> {
        let steps = data.epoch(0).map(|batch| {
            let [own] = own.call(&mut state, &batch.unwrap()).unwrap();
            own.local_results()
                .unwrap()
                .iter()
                .map(HostTensor::f32s)
                .collect()
        });
        steps.collect()
    };
    let mut contexts = Vec::new();
    let data = strategy.distribute_datasets_from_function(Pipelines::PerWorker, |cx| {
        contexts.push(cx);
        Ok(numbers(5).batch(cx.per_replica_batch_size(4)?))
    });
    let data = data.unwrap();
    let expected = [
        vec![vec![0.0, 1.0], vec![2.0, 3.0]],
        vec![vec![4.0], vec![]],
    ];
    assert_eq!(steps(&data), expected);
    assert_eq!(data.steps(), Some(2));
    let context = InputContext {
        num_input_pipelines: 1,
        input_pipeline_id: 0,
        num_replicas_in_sync: 2,
    };
    assert_eq!(contexts, [context]);
    let sharded = |cx: InputContext| {
        let (id, count) = (cx.input_pipeline_id, cx.num_input_pipelines);
        assert_eq!((count, cx.num_replicas_in_sync), (2, 2));
        Ok(numbers(10).skip(5 * id).take(5).batch(3))
    };
    let data = strategy.distribute_datasets_from_function(Pipelines::PerReplica, sharded);
    let expected = [
        vec![vec![0.0, 1.0, 2.0], vec![5.0, 6.0, 7.0]],
        vec![vec![3.0, 4.0], vec![8.0, 9.0]],
    ];
    assert_eq!(steps(&data.unwrap()), expected);
    let warning = "input pipelines 0 and 1 begin with the same batch";
    assert!(!told(warning));
    let same = |_| Ok(numbers(4).batch(2));
    strategy
        .distribute_datasets_from_function(Pipelines::PerReplica, same)
        .unwrap();
    assert!(told(warning));
}

/// Steps of a loop with two optimizers of one kind, from a checkpoint where there is one; an epoch has three.
fn stepped(
    strategy: &impl Strategy,
    from: Option<&TrainingState>,
    steps: usize,
) -> (TrainingState, Vec<(String, HostTensor)>) {
    let mut state = strategy.state(3).unwrap();
    let one = Sequential::new([4]).add(Dense::new(3));
    let (one, other) = (
        state.add_model("one", one.clone()),
        state.add_model("other", one),
    );
    let (one, other) = (one.unwrap(), other.unwrap());
    let first = state.add_optimizer(Adam::new(0.1), &[&one]).unwrap();
    let second = state.add_optimizer(Adam::new(0.2), &[&other]).unwrap();
    if let Some(from) = from {
        state.set_training_state(from).unwrap();
    }
    let loss = cross_entropy();
    let mut step = strategy.function(|cx, batch: Inputs| {
        for (model, optimizer) in [(&one, &first), (&other, &second)] {
            let logits = cx.train(model, &batch.x).remove(0);
            let losses = loss.per_example(&batch.y[0], &logits);
            let loss = cx.mean(&losses, None);
            let gradients = cx.gradients(&loss, optimizer);
            let gradients = cx.all_reduce_gradients(&gradients);
            cx.apply(optimizer, &gradients);
        }
        []
    });
    let data = strategy.distribute_dataset(&rows(23).shuffle(5).batch(8));
    let mut position = from.map_or_else(Position::default, |from| from.position().clone());
    let mut left = steps;
    while left > 0 {
        let mut epoch = data.epoch_from(&position).unwrap();
        while let Some(batch) = (left > 0).then(|| epoch.next()).flatten() {
            let [] = step.call(&mut state, &batch.unwrap()).unwrap();
            left -= 1;
        }
        position = match left {
            0 => epoch.position().clone(),
            _ => Position::start(position.epoch + 1),
        };
    }
    let values = [state.variables(&one), state.variables(&other)];
    let values = values.map(Result::unwrap).concat();
    (state.training_state_at(&position).unwrap(), values)
}

#[test]
fn a_loop_goes_on_from_a_checkpoint_on_another_strategy() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("custom-checkpoint");
    let (_, whole) = stepped(&mirrored(2), None, 5);
    // In the middle of the first epoch.
    let (state, _) = stepped(&mirrored(2), None, 1);
    state.save(&path).unwrap();
    let saved = TrainingState::load(&path).unwrap();
    let (_, same) = stepped(&mirrored(2), Some(&saved), 4);
    assert_eq!(same, whole);
    let (_, near) = stepped(&mirrored(1), Some(&saved), 4);
    for ((name, a), (_, b)) in whole.iter().zip(&near) {
        assert_near(name, &a.to_f64(), &b.to_f64(), 1e-4);
    }
    // Another loop: an optimizer is missing.
    let mut other = mirrored(1).state(3).unwrap();
    other
        .add_model("one", Sequential::new([4]).add(Dense::new(3)))
        .unwrap();
    let error = other.set_training_state(&saved).unwrap_err().to_string();
    assert!(
        error.contains("the state has no `adam/iterations`"),
        "{error}"
    );
    TrainingState::remove(&path).unwrap();
}

/// The second of two steps in one function overflows: the first one stays, as if each were a function of its own.
#[test]
fn a_skipped_step_undoes_itself_alone() {
    let run = |together: bool| {
        let strategy = mirrored(1);
        let mut state = strategy.state(0).unwrap();
        let model = state.add_model("mlp", without_dropout()).unwrap();
        let adam = state.add_optimizer_with(optimizer(), LossScale::SkipNonFinite, &[&model]);
        let adam = adam.unwrap();
        let none = state.loss_scale(&adam).unwrap();
        assert_eq!(none, Some((1.0, 0)));
        let mut steps = Vec::new();
        let factors: &[&[f64]] = match together {
            true => &[&[1.0, f64::INFINITY, 1.0]],
            false => &[&[1.0], &[f64::INFINITY], &[1.0]],
        };
        for &factors in factors {
            let (model, adam) = (&model, &adam);
            steps.push(strategy.function(move |cx, batch: Inputs| {
                for factor in factors {
                    let logits = cx.train(model, &batch.x).remove(0);
                    let losses = cross_entropy().per_example(&batch.y[0], &logits);
                    let loss = cx.mean(&losses, None) * *factor;
                    let gradients = cx.gradients(&loss, adam);
                    let gradients = cx.all_reduce_gradients(&gradients);
                    cx.apply(adam, &gradients);
                }
                []
            }));
        }
        let batch = rows(8).batch(8).get(0, 0).unwrap();
        let batch = strategy.distribute_batch(&batch).unwrap();
        for step in &mut steps {
            let [] = step.call(&mut state, &batch).unwrap();
        }
        drop(steps);
        assert_eq!(state.loss_scale(&adam).unwrap(), Some((1.0, 1)));
        assert_eq!(state.iterations(&adam).unwrap(), 2);
        state.variables(&model).unwrap()
    };
    for ((name, together), (_, apart)) in run(true).iter().zip(run(false)) {
        assert_near(name, &together.to_f64(), &apart.to_f64(), 1e-6);
    }
}

/// As in Keras each kernel's penalty is one term, also where a function calls a model twice.
#[test]
fn penalties_count_once_however_often_a_model_is_called() {
    let strategy = mirrored(1);
    let mut state = strategy.state(0).unwrap();
    let penalized = Dense::new(2).kernel_regularizer(Regularizer::L2 { l2: 0.5 });
    let model = Sequential::new([4]).add(penalized);
    let model = state.add_model("penalized", model).unwrap();
    let mut function = strategy.function(|cx, batch: Inputs| {
        let first = cx.train(&model, &batch.x).remove(0);
        let one = cx.penalties(&model);
        let second = cx.train(&model, &batch.x).remove(0);
        let nothing = (first + second).sum_all() * 0.0;
        let two = cx.penalties(&model) + nothing;
        let doubled = cx.variables(&model)[0].clone() * 2.0;
        let bias = cx.variables(&model)[1].clone();
        cx.set_variables(&model, &[doubled, bias]);
        let _ = cx.train(&model, &batch.x);
        [one, two, cx.penalties(&model)]
    });
    let batch = rows(4).batch(4).get(0, 0).unwrap();
    let batch = strategy.distribute_batch(&batch).unwrap();
    let [one, two, doubled] = function.call(&mut state, &batch).unwrap();
    let number = |value: &PerReplica| value.value().unwrap().f32s()[0];
    let one = number(&one);
    assert!(one > 0.0);
    assert_eq!([number(&two), number(&doubled)], [one, one * 4.0]);
}

/// Adds half the sum of the squares of each example.
#[derive(Debug)]
struct AddsSquares;

impl Layer for AddsSquares {
    fn kind(&self) -> &'static str {
        "adds_squares"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        cx.add_loss(&(inputs[0].square().sum(&[1]) * 0.5));
        inputs[0].clone()
    }
}

/// Of three rows one of two replicas has two, and of one row two of three have none.
#[test]
fn penalties_count_by_examples() {
    for (count, replicas) in [(3, 1), (3, 2), (1, 3), (4, 2)] {
        let strategy = mirrored(replicas);
        let mut state = strategy.state(0).unwrap();
        let l2 = Regularizer::L2 { l2: 0.5 };
        let ones = Dense::new(1).kernel_initializer(Initializer::Ones);
        let model = Sequential::new([4]).add(AddsSquares);
        let model = model.add(ones.kernel_regularizer(l2));
        let model = state.add_model("squares", model).unwrap();
        let mut function = strategy.function(|cx, batch: Inputs| {
            let y = cx.train(&model, &batch.x).remove(0);
            let nothing = cx.mean(&y, None) * 0.0;
            [cx.all_reduce(ReduceOp::Sum, &(cx.penalties(&model) + nothing))]
        });
        let batch = rows(count).batch(count).get(0, 0).unwrap();
        let squares = batch.x[0].to_f64().iter().map(|x| x * x).sum::<f64>();
        let expected = 0.5 * squares / count as f64 + 0.5 * 4.0;
        let batch = strategy.distribute_batch(&batch).unwrap();
        let [found] = function.call(&mut state, &batch).unwrap();
        let found = found.value().unwrap().to_f64()[0];
        assert!(
            (found - expected).abs() < 1e-6,
            "{count} on {replicas}: {found}, not {expected}"
        );
    }
}

/// As its own strategy says, whatever the strategy of the state does.
#[test]
fn a_function_adds_as_its_own_strategy_does() {
    let plain = mirrored(2);
    let narrow = mirrored(2).reduction(Reduction::default().wire(WireFormat::Bf16));
    let mut state = narrow.state(0).unwrap();
    let model = state.add_model("dense", Sequential::new([1]).add(Dense::new(1)));
    let model = model.unwrap();
    let sgd = state.add_optimizer(Sgd::new(0.1), &[&model]).unwrap();
    let mut gradient = |strategy: &MirroredStrategy| {
        let mut function = strategy.function(|cx, batch: Inputs| {
            let y = cx.train(&model, &batch.x).remove(0);
            let loss = cx.mean(&y, None);
            let gradients = cx.gradients(&loss, &sgd);
            let gradients = cx.all_reduce_gradients(&gradients);
            let (_, kernel) = gradients.iter().next().unwrap();
            [kernel * 1.0]
        });
        let batch = strategy.distribute_batch(&column(&[1.001, 3.003]));
        let [kernel] = function.call(&mut state, &batch.unwrap()).unwrap();
        kernel.local_results().unwrap()[0].f32s()[0]
    };
    assert_eq!(gradient(&narrow), 2.0);
    assert!((gradient(&plain) - 2.002).abs() < 1e-6);
}

/// Gradients that are too small for f16 arrive where they travel scaled.
#[test]
fn small_gradients_travel_scaled() {
    let reduction = Reduction::default().wire(WireFormat::F16);
    let strategy = mirrored(2).reduction(reduction);
    for loss_scale in [LossScale::DYNAMIC, LossScale::Fixed(32768.0)] {
        let mut state = strategy.state(0).unwrap();
        let model = state.add_model("dense", Sequential::new([1]).add(Dense::new(1)));
        let model = model.unwrap();
        let adam = state.add_optimizer_with(optimizer(), loss_scale, &[&model]);
        let adam = adam.unwrap();
        let mut function = strategy.function(|cx, batch: Inputs| {
            let y = cx.train(&model, &batch.x).remove(0);
            let loss = cx.mean(&(y * 2e-8), None);
            let gradients = cx.gradients(&loss, &adam);
            let gradients = cx.all_reduce_gradients(&gradients);
            let (_, kernel) = gradients.iter().next().unwrap();
            [kernel * 1.0]
        });
        let batch = strategy.distribute_batch(&column(&[1.0, 3.0])).unwrap();
        let [kernel] = function.call(&mut state, &batch).unwrap();
        let kernel = kernel.local_results().unwrap()[0].to_f64();
        assert_near("gradient", &[kernel[0] * 1e8], &[4.0], 1e-3);
    }
}
