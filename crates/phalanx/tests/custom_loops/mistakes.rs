//! What is refused, and what the error says.

use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx::strategy::{InputContext, OptimizerRef, Pipelines, ReplicaCx, ValueKind};
use phalanx::{Error, Result};
use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Shape, Tensor};

use crate::{assert_says, column, engine, mirrored, rows, text};

/// The error of a function of a batch of three rows on two replicas, with a model of a dense layer.
fn traced(body: impl Fn(&mut ReplicaCx<'_>, &Scene, Inputs) -> Tensor) -> Result<HostTensor> {
    let strategy = mirrored(2);
    let mut state = strategy.state(1)?;
    let model = state.add_model("net", Sequential::new([1]).add(Dense::new(1)))?;
    let frozen = Sequential::new([1]).add(LayerSpec::from(Dense::new(1)).trainable(false));
    let frozen = state.add_model("frozen", frozen)?;
    let sgd = state.add_optimizer(Sgd::new(0.1), &[&model])?;
    let other = state.add_model("other", Sequential::new([1]).add(Dense::new(1)))?;
    let of_other = state.add_optimizer(Sgd::new(0.1), &[&other])?;
    let value = state.add_value("beta", &HostTensor::scalar(1.0f32), ValueKind::Replicated)?;
    let f1 = state.add_metric(F1Score::default())?;
    let scene = Scene {
        model,
        frozen,
        sgd,
        of_other,
        value,
        f1,
    };
    let mut function = strategy.function(|cx, batch: Inputs| [body(cx, &scene, batch)]);
    let batch = strategy.distribute_batch(&column(&[1.0, 2.0, 3.0]))?;
    let [result] = function.call(&mut state, &batch)?;
    strategy.reduce(Reduce::Sum, &result, None)
}

struct Scene {
    model: phalanx::strategy::ModelRef,
    frozen: phalanx::strategy::ModelRef,
    sgd: OptimizerRef,
    of_other: OptimizerRef,
    value: phalanx::strategy::ValueRef,
    f1: phalanx::strategy::MetricRef,
}

#[test]
fn values_of_another_strategy_are_refused_by_both_names() {
    let (one, two) = (OneDeviceStrategy::on(engine()), mirrored(2));
    let names = [
        "OneDeviceStrategy on cpu:0",
        "MirroredStrategy on cpu:0, cpu:1",
    ];
    let with = |what| [what, names[0], names[1], "make both with one strategy"];
    let mut state = one.state(1).unwrap();
    let mut function = two.function(|_, batch: Inputs| [batch.x[0].clone()]);
    let batch = two.distribute_batch(&column(&[1.0, 2.0])).unwrap();
    assert_says(function.call(&mut state, &batch), &with("a state"));
    let mut state = two.state(1).unwrap();
    let foreign = one.distribute_batch(&column(&[1.0, 2.0])).unwrap();
    assert_says(function.call(&mut state, &foreign), &with("x[0]"));
    let value = one.broadcast(&HostTensor::scalar(1.0f32)).unwrap();
    assert_says(two.reduce(Reduce::Sum, &value, None), &with("a value"));
    assert_says(two.gather(&value, 0), &with("a value"));
    // The same devices are the same place, whatever the strategy is called.
    let value = mirrored(1).broadcast(&HostTensor::scalar(1.0f32)).unwrap();
    assert_eq!(one.reduce(Reduce::Sum, &value, None).unwrap().f32s(), [1.0]);
}

#[test]
fn a_mesh_has_no_replicas_for_loops_of_ones_own() {
    let mesh = MeshStrategy::on(engine(), &Mesh::new([("data", 3)])).unwrap();
    let words = [
        "MeshStrategy on cpu:0, cpu:1, cpu:2",
        "over a mesh",
        "`compile` and `fit`",
    ];
    assert_says(mesh.state(1), &words);
    assert_says(mesh.broadcast(&HostTensor::scalar(1.0f32)), &words);
}

#[test]
fn handles_of_another_state_are_refused() {
    let strategy = mirrored(2);
    let mut other = strategy.state(1).unwrap();
    let model = other
        .add_model("net", Sequential::new([1]).add(Dense::new(1)))
        .unwrap();
    let sgd = other.add_optimizer(Sgd::new(0.1), &[&model]).unwrap();
    let metric = other.add_metric(Accuracy).unwrap();
    let value = other
        .add_value("v", &HostTensor::scalar(1i32), ValueKind::First)
        .unwrap();
    let mut state = strategy.state(1).unwrap();
    let belongs = "belongs to another state";
    assert_says(
        state.variables(&model),
        &["model `net`", belongs, "add_model"],
    );
    assert_says(
        state.add_optimizer(Sgd::new(0.1), &[&model]),
        &["model `net`", belongs],
    );
    assert_says(
        state.set_learning_rate(&sgd, 0.1),
        &["an optimizer", belongs],
    );
    assert_says(state.result(&metric), &["metric `accuracy`", belongs]);
    assert_says(state.value(&value), &["a value", belongs]);
    let mut call = |body: &dyn Fn(&mut ReplicaCx<'_>)| {
        let mut function = strategy.function(|cx, ()| {
            body(cx);
            [cx.replica_id()]
        });
        text(function.call(&mut state, &()))
    };
    let x = |cx: &ReplicaCx<'_>| cx.graph().full(&Shape::f32([2, 1]), 1.0);
    let texts = [
        call(&|cx| drop(cx.train(&model, &[x(cx)]))),
        call(&|cx| drop(cx.gradients(&x(cx).sum_all(), &sgd))),
        call(&|cx| cx.update_metric(&metric, &x(cx), &x(cx), None)),
        call(&|cx| drop(cx.value(&value))),
    ];
    for text in texts {
        assert!(
            text.contains(belongs) && text.contains("mistakes.rs"),
            "{text}"
        );
    }
}

#[test]
fn devices_that_are_not_there_are_told() {
    let on = |names: &[&str]| MirroredStrategy::on(engine()).devices(names.to_vec());
    let existing = "cpu:0, cpu:1, cpu:2";
    assert_says(on(&["cpu:0", "cpu:7"]), &["no device `cpu:7`", existing]);
    assert_says(on(&["/gpu:0"]), &["no device `/gpu:0`", existing]);
    assert_says(
        on(&["cpu:0", "/CPU:0"]),
        &["`/CPU:0` is named twice", existing],
    );
    assert_says(on(&[]), &["no device is named", existing]);
    assert_says(
        OneDeviceStrategy::device(engine(), "disk"),
        &["disk", existing],
    );
}

#[test]
fn batches_that_cannot_be_divided_are_told() {
    let strategy = mirrored(2);
    let context = InputContext {
        num_input_pipelines: 1,
        input_pipeline_id: 0,
        num_replicas_in_sync: 2,
    };
    assert_eq!(context.per_replica_batch_size(6).unwrap(), 3);
    for size in [7, 0] {
        let expected = format!("a global batch of {size} does not divide by 2 replicas");
        assert_says(
            context.per_replica_batch_size(size),
            &[&expected, "a multiple of 2"],
        );
    }
    let distribute = |batch: &Batch| strategy.distribute_batch(batch);
    let mut batch = column(&[]);
    assert_says(distribute(&batch), &["has no rows", "leave it out"]);
    batch = column(&[1.0, 2.0]);
    batch.y = vec![HostTensor::new([3], &[1i32, 2, 3])];
    assert_says(
        distribute(&batch),
        &["it has 2 rows, but y is i32[3]", "first dim"],
    );
    batch = column(&[1.0, 2.0]);
    batch.weight = Some(HostTensor::scalar(1.0f32));
    assert_says(
        distribute(&batch),
        &["it has 2 rows, but the weight is f32[]"],
    );
}

#[test]
fn data_that_make_no_batches_are_told() {
    let strategy = mirrored(2);
    let data = |width: usize| {
        let x = HostTensor::zeros(Shape::f32([4, width]));
        Dataset::from_arrays(x, HostTensor::zeros(Shape::f32([4]))).unwrap()
    };
    let data = strategy.distribute_datasets_from_function(Pipelines::PerReplica, |cx| {
        Ok(data(1 + cx.input_pipeline_id).batch(2))
    });
    let step = data.unwrap().epoch(0).next().unwrap();
    assert_says(
        step,
        &[
            "batches of one step differ",
            "x f32[1], y f32[]",
            "x f32[2], y f32[]",
        ],
    );
    let broken = strategy
        .distribute_dataset(&rows(4).batch(0))
        .epoch(0)
        .next()
        .unwrap();
    assert_says(broken, &["batch size is 0"]);
    let failing = |_| Err(Error::User("no such file".into()));
    let data = strategy.distribute_datasets_from_function(Pipelines::PerWorker, failing);
    assert_says(data, &["no such file"]);
    // A wrong number of columns is found where the model is called.
    let mut state = strategy.state(1).unwrap();
    let net = state
        .add_model("net", Sequential::new([3]).add(Dense::new(1)))
        .unwrap();
    let mut function = strategy.function(|cx, batch: Inputs| [cx.call(&net, &batch.x).remove(0)]);
    let batch = strategy.distribute_batch(&column(&[1.0, 2.0])).unwrap();
    assert_says(
        function.call(&mut state, &batch),
        &["[3]", "f32[1,1]", "mistakes.rs"],
    );
}

/// Zeros of a shape for each replica.
fn zeros(strategy: &MirroredStrategy, shapes: &[Shape; 2]) -> PerReplica {
    strategy
        .distribute_values_from_function(|cx| HostTensor::zeros(shapes[cx.replica_id].clone()))
        .unwrap()
}

#[test]
fn shapes_that_differ_between_replicas_are_told() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let values = |shapes: [Shape; 2]| zeros(&strategy, &shapes);
    let uneven = values([Shape::f32([2, 3]), Shape::f32([1, 3])]);
    let mut function = strategy.function(|_, x: Tensor| [x]);
    let words = [
        "f32[2,3] on replica 0",
        "f32[1,3] on replica 1",
        "one shape",
    ];
    assert_says(function.call(&mut state, &uneven), &words);
    let both = ["replica 0 has f32[2,3]", "replica 1 has f32[1,3]"];
    assert_says(
        strategy.gather(&uneven, 1),
        &[both[0], both[1], "all dims but dim 1 must be equal"],
    );
    assert_says(
        strategy.reduce(Reduce::Sum, &uneven, None),
        &[both[0], both[1], "Some(0)"],
    );
    assert_eq!(strategy.gather(&uneven, 0).unwrap().dims(), [3, 3]);
    let ranks = values([Shape::f32([2, 3]), Shape::f32([2])]);
    assert_says(
        strategy.gather(&ranks, 0),
        &["replica 1 has f32[2]", "must be equal"],
    );
    let types = values([Shape::f32([2]), Shape::new(DType::I32, [2])]);
    assert_says(strategy.gather(&types, 0), &["replica 1 has i32[2]"]);
    let scalar = values([Shape::f32([]), Shape::f32([])]);
    assert_says(
        strategy.gather(&scalar, 0),
        &["f32[]", "no dim to join along", "reshape(&[1])"],
    );
    assert_says(
        strategy.reduce(Reduce::Mean, &scalar, Some(0)),
        &["dim 0", "f32[]", "rank 0"],
    );
    let whole = values([Shape::f32([2]), Shape::f32([2])]);
    assert_says(
        strategy.gather(&whole, 1),
        &["cannot gather along dim 1", "rank 1"],
    );
    assert_says(
        whole.value(),
        &[
            "differs between replicas",
            "`reduce`, `gather` or `local_results`",
        ],
    );
}

#[test]
fn reductions_that_a_type_does_not_have_are_told() {
    let strategy = mirrored(2);
    let values = |shapes: [Shape; 2]| zeros(&strategy, &shapes);
    let own = values([Shape::new(DType::Bool, [1]), Shape::new(DType::Bool, [1])]);
    assert_says(
        strategy.reduce(Reduce::Sum, &own, None),
        &["bool[1] by Sum", "`And`"],
    );
    let own = values([Shape::new(DType::I32, [1]), Shape::new(DType::I32, [1])]);
    assert_says(
        strategy.reduce(Reduce::Mean, &own, None),
        &["i32[1] by Mean", "floating-point"],
    );
    assert_says(
        strategy.reduce(Reduce::And, &own, None),
        &["i32[1] by And", "truth values"],
    );
}

#[test]
fn steps_that_would_let_replicas_drift_apart_are_refused() {
    let forgotten = traced(|cx, scene, batch| {
        let loss = cx.train(&scene.model, &batch.x)[0].square();
        let loss = cx.mean(&loss, None);
        let gradients = cx.gradients(&loss, &scene.sgd);
        cx.apply(&scene.sgd, &gradients);
        loss
    });
    let drift = "would become different on each replica";
    let words = [
        "`net/dense/kernel`",
        drift,
        "mistakes.rs:",
        "cx.all_reduce_gradients",
    ];
    assert_says(forgotten, &words);
    let set = traced(|cx, scene, batch| {
        let own = batch.x[0].sum_all();
        cx.set_value(&scene.value, &own);
        own
    });
    assert_says(set, &["`beta`", drift, "ValueKind::Sum"]);
    let wrong = traced(|cx, scene, batch| {
        cx.set_value(&scene.value, &batch.x[0]);
        batch.x[0].sum_all()
    });
    assert_says(wrong, &["`beta` is f32[], got f32[2,1]"]);
}

/// Each replica differentiates the whole loss: two gave twice its gradient.
#[test]
fn sums_of_the_gradients_of_a_whole_loss_are_refused() {
    // What the loss is made of a whole and of its share.
    type Made = fn(&ReplicaCx<'_>, &Tensor, &Tensor) -> Tensor;
    let made: [Made; 5] = [
        |_, whole, _| whole.clone(),
        |_, whole, share| whole + share,
        |_, _, share| share * share,
        |_, _, share| share + 1.0,
        |cx, _, share| cx.all_reduce(ReduceOp::Sum, share),
    ];
    let words = [
        "mistakes.rs:",
        "is the same on all replicas",
        "`cx.share(&loss)`",
        "cx.all_reduce_mean(own)",
    ];
    for loss_of in made {
        let whole = traced(|cx, scene, batch| {
            let own = cx.train(&scene.model, &batch.x)[0].square();
            let whole = cx.all_reduce(ReduceOp::Sum, &cx.mean(&own, None));
            let loss = loss_of(cx, &whole, &cx.share(&whole));
            let gradients = cx.gradients(&loss, &scene.sgd);
            let gradients = cx.all_reduce_gradients(&gradients);
            cx.apply(&scene.sgd, &gradients);
            loss
        });
        assert_says(whole, &words);
    }
}

/// A penalty of the weights beside a mean, as a program would write it for one replica.
#[test]
fn terms_of_a_loss_that_are_whole_are_warned_of_unless_they_train_nothing() {
    // What the loss is made of the mean and a penalty of the variables.
    type Made = fn(&ReplicaCx<'_>, &Tensor, &Tensor) -> Tensor;
    let warnings = || {
        let notices = crate::NOTICES.lock().unwrap();
        let told =
            |line: &&String| line.contains("a term of the loss") && line.contains("mistakes.rs:");
        notices.iter().filter(told).count()
    };
    let is_warned_of = |loss_of: Made| {
        let before = warnings();
        let traced = traced(|cx, scene, batch| {
            let errors = cx.train(&scene.model, &batch.x)[0].square();
            let penalty = cx.variables(&scene.model)[0].square().sum_all();
            let loss = loss_of(cx, &cx.mean(&errors, None), &penalty);
            let gradients = cx.gradients(&loss, &scene.sgd);
            let gradients = cx.all_reduce_gradients(&gradients);
            cx.apply(&scene.sgd, &gradients);
            loss
        });
        traced.unwrap();
        warnings() > before
    };
    let wrong: [Made; 5] = [
        |_, mean, penalty| mean + penalty,
        |_, mean, penalty| (mean - &(penalty * 0.1)) * 2.0,
        |_, mean, penalty| -&((mean + penalty) / 3.0),
        |_, mean, penalty| mean * penalty + penalty,
        |_, mean, penalty| mean + &(penalty - 0.5),
    ];
    for loss_of in wrong {
        assert!(is_warned_of(loss_of));
    }
    let right: [Made; 7] = [
        |cx, mean, penalty| mean + &cx.share(penalty),
        |cx, mean, penalty| mean + &cx.share(&penalty.reshape(&[1, 1])).reshape(&[]),
        |cx, mean, penalty| mean + &cx.share(&penalty.broadcast_in(&[3], &[])).sum_all(),
        |cx, mean, penalty| (cx.share(penalty) - 0.5) + mean,
        |_, mean, _| mean * -1.0 + 1.0,
        |_, mean, penalty| mean + &penalty.stop_gradient(),
        |_, mean, penalty| mean * penalty,
    ];
    for loss_of in right {
        assert!(!is_warned_of(loss_of));
    }
}

#[test]
fn collectives_that_some_replicas_would_not_reach_are_refused() {
    let looped = |cx: &ReplicaCx<'_>, start: &Tensor| {
        let results = cx.graph().while_loop(
            &[start],
            |v| v[0].less(&v[0].like(100.0)),
            |v| vec![v[0].all_reduce(ReduceOp::Sum)],
        );
        results[0].clone()
    };
    let own = traced(|cx, _, batch| looped(cx, &batch.x[0].sum_all()));
    let words = [
        "all_reduce between 2 replicas",
        "wait forever",
        "mistakes.rs:",
    ];
    assert_says(own, &words);
    // In a loop of known length all reach it.
    let scanned = traced(|cx, _, batch| {
        let sum = batch.x[0].sum_all();
        let (sums, _) = cx.graph().scan(2, &[&sum], &[], &[], |carry, _, _| {
            (vec![carry[0].all_reduce(ReduceOp::Sum)], vec![])
        });
        sums[0].clone()
    });
    assert_eq!(scanned.unwrap().f32s(), [2.0 * 2.0 * 9.0]);
}

#[test]
fn gradients_that_are_not_there_are_told() {
    let unrelated = traced(|cx, scene, batch| {
        let loss = batch.x[0].sum_all();
        let _ = cx.gradients(&loss, &scene.sgd);
        loss
    });
    assert_says(
        unrelated,
        &[
            "no trainable variable of `net`",
            "before an optimizer is applied",
        ],
    );
    let stale = traced(|cx, scene, batch| {
        let loss = cx.train(&scene.model, &batch.x)[0].square();
        let loss = cx.mean(&loss, None);
        let gradients = cx.gradients(&loss, &scene.sgd);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&scene.sgd, &gradients);
        let _ = cx.gradients(&loss, &scene.sgd);
        loss
    });
    assert_says(stale, &["no trainable variable of `net`"]);
    let foreign = traced(|cx, scene, batch| {
        let loss = cx.train(&scene.model, &batch.x)[0].sum_all();
        let gradients = cx.gradients(&loss, &scene.sgd);
        cx.apply(&scene.of_other, &gradients);
        loss
    });
    assert_says(
        foreign,
        &[
            "the optimizer of `other`",
            "`net/dense/kernel`",
            "its own gradients",
        ],
    );
}

#[test]
fn derivatives_that_do_not_exist_are_told() {
    let vector = traced(|cx, scene, batch| {
        let loss = cx.train(&scene.model, &batch.x)[0].clone();
        let _ = cx.gradients(&loss, &scene.sgd);
        loss.sum_all()
    });
    assert_says(vector, &["expected a floating-point scalar, got f32[2,1]"]);
    let none = traced(|cx, _, batch| {
        let id = cx.replica_id();
        cx.derivatives(&batch.x[0].sum_all(), &[&id]).remove(0)
    });
    assert_says(
        none,
        &[
            "cannot be differentiated with respect to a tensor that is not floating-point",
            "u32[]",
        ],
    );
    let none = traced(|cx, _, batch| {
        let other = &batch.x[0] * 2.0;
        cx.derivatives(&batch.x[0].sum_all(), &[&other]).remove(0)
    });
    assert_says(none, &["does not depend on it", "f32[2,1]"]);
    let none = traced(|cx, _, batch| {
        let other = &batch.x[0] * 2.0;
        cx.jacobian(&batch.x[0], &[&other]).remove(0).sum_all()
    });
    assert_says(none, &["the target does not depend on it", "f32[2,1]"]);
    let rows = traced(|cx, _, batch| {
        let one = batch.x[0].sum_all();
        cx.batch_jacobian(&batch.x[0], &[&one]).remove(0).sum_all()
    });
    assert_says(rows, &["expected tensors of as many rows as the target"]);
    let maximum = traced(|cx, _, batch| {
        let loss = cx.all_reduce(ReduceOp::Max, &batch.x[0].sum_all());
        cx.derivatives(&loss, &[&batch.x[0]]).remove(0)
    });
    assert_says(maximum, &["all_reduce", "max"]);
}

#[test]
fn what_a_state_cannot_hold_is_told() {
    let strategy = mirrored(2);
    let mut state = strategy.state(1).unwrap();
    let one = || Sequential::new([1]).add(Dense::new(1));
    let net = state.add_model("net", one()).unwrap();
    assert_says(
        state.add_model("net", one()),
        &["`net`", "a name of its own"],
    );
    let frozen = Sequential::new([1]).add(LayerSpec::from(Dense::new(1)).trainable(false));
    let frozen = state.add_model("frozen", frozen).unwrap();
    let sgd = || Sgd::new(0.1);
    assert_says(
        state.add_optimizer(sgd(), &[&frozen]),
        &["sgd", "`frozen`", "no trainable variable"],
    );
    assert_says(state.add_optimizer(sgd(), &[&net, &net]), &["`net` twice"]);
    assert_says(
        state.add_optimizer(Sgd::new(-1.0), &[&net]),
        &["`learning_rate`", "got -1"],
    );
    let scalar = HostTensor::scalar(1i32);
    assert_says(
        state.add_value("n", &scalar, ValueKind::Mean),
        &["`n` is i32[]", "Mean"],
    );
    let truth = HostTensor::scalar(true);
    assert_says(
        state.add_value("t", &truth, ValueKind::Sum),
        &["`t` is bool[]", "Sum"],
    );
    let wrong = [("dense/kernal", HostTensor::scalar(1.0f32))];
    assert_says(
        state.set_variables(&net, &wrong),
        &["no variable `dense/kernal`", "dense/kernel"],
    );
    let wrong = [("dense/kernel", HostTensor::scalar(1.0f32))];
    assert_says(
        state.set_variables(&net, &wrong),
        &["`net/dense/kernel` is f32[1,1], got f32[]"],
    );
    let adam = Adam::new(CosineDecay::new(0.1, 9));
    let adam = state.add_optimizer(adam, &[&net]).unwrap();
    assert_says(state.set_learning_rate(&adam, 0.1), &["follows a schedule"]);
    let sgd = state.add_optimizer(sgd(), &[&net]).unwrap();
    assert_says(
        state.set_learning_rate(&sgd, f64::NAN),
        &["at least 0, got NaN"],
    );
    state.set_learning_rate(&sgd, 0.5).unwrap();
}

#[test]
fn tensors_that_a_function_cannot_take_are_told() {
    let unbound = traced(|cx, scene, batch| {
        let (two, three) = (batch.x[0].broadcast_in(&[2, 3], &[0, 1]), &scene.f1);
        cx.update_metric(three, &two, &two, None);
        let _ = &scene.frozen;
        two.sum_all()
    });
    assert_says(unbound, &["f1_score"]);
    let scalar = traced(|cx, _, batch| cx.all_gather(&batch.x[0].sum_all(), 0));
    assert_says(scalar, &["a scalar has no dim to gather along"]);
    let rows = traced(|cx, _, batch| cx.per_example(&batch.x[0].sum_all()));
    assert_says(rows, &["expected a row for each of 2", "f32[]"]);
    let mean = traced(|cx, _, _| cx.all_reduce_mean(&cx.replica_id()));
    assert_says(mean, &["expected floats, got u32[]"]);
}
