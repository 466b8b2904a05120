//! Steps that are more than one gradient of a loss, and losses of other kinds, as `ports.rs` has them.

use phalanx::prelude::*;

use crate::assert_near;
use crate::keras::Case;
use crate::own_layers::Switch;
use crate::ports::{dense, follow, hard, learn, of_keras};

/// Variables moved by so much of some numbers.
fn moved(variables: &[Tensor], by: &[Tensor], share: f64) -> Vec<Tensor> {
    let both = variables.iter().zip(by);
    both.map(|(variable, by)| variable + by * share).collect()
}

/// Gradients are of the variables that were set, and the update of those that were set again.
#[test]
fn gradients_of_moved_weights_are_applied_to_those_before_as_in_keras() {
    of_keras("sharpness", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", dense(3, 6, 3, tanh))]);
        let adam = case.optimizer(Adam::new(0.01), &[&model]);
        let hard = hard();
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let before = cx.variables(&model);
            let logits = cx.train(&model, &batch.x).remove(0);
            let first = cx.loss(&hard, &batch.y[0], &logits, None);
            let gradients = cx.gradients(&first, &adam);
            let gradients = cx.all_reduce_gradients(&gradients);
            let up: Vec<Tensor> = gradients
                .iter()
                .map(|(_, gradient)| gradient.clone())
                .collect();
            let squares = up.iter().map(|gradient| gradient.square().sum_all());
            let norm = squares.reduce(|all, next| all + next).unwrap().sqrt();
            let up: Vec<Tensor> = up.iter().map(|gradient| gradient / &norm).collect();
            cx.set_variables(&model, &moved(&before, &up, 0.5));
            let logits = cx.train(&model, &batch.x).remove(0);
            let second = cx.loss(&hard, &batch.y[0], &logits, None);
            let gradients = cx.gradients(&second, &adam);
            let gradients = cx.all_reduce_gradients(&gradients);
            cx.set_variables(&model, &before);
            cx.apply(&adam, &gradients);
            [first, second]
        });
        case.follow(step);
    });
}

#[test]
fn a_model_goes_some_way_towards_where_descent_ends_as_in_keras() {
    of_keras("reptile", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", dense(3, 6, 1, tanh))]);
        let sgd = Sgd::new(0.2).momentum(0.5);
        let sgd = case.optimizer(sgd, &[&model]);
        let squares = Loss::from(MeanSquaredError);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let before = cx.variables(&model);
            let losses = [(); 2].map(|()| {
                let found = cx.train(&model, &batch.x[..1]).remove(0);
                let loss = cx.loss(&squares, &batch.x[1], &found, None);
                learn(cx, &loss, &sgd);
                loss
            });
            let after = cx.variables(&model);
            let way: Vec<Tensor> = after
                .iter()
                .zip(&before)
                .map(|(new, old)| new - old)
                .collect();
            cx.set_variables(&model, &moved(&before, &way, 0.25));
            losses
        });
        case.follow(step);
    });
}

/// The experts are chosen, and their balance judged, among the rows of a replica.
#[test]
fn rows_are_routed_to_experts_as_in_keras() {
    for alone in [1, 2] {
        of_keras(&format!("switch on {alone}"), |record, replicas| {
            if replicas != alone {
                return;
            }
            let model = Sequential::new([3]).add(Switch).build().unwrap();
            let (mut case, [model]) = Case::new(record, replicas, [("model", model)]);
            let adam = case.optimizer(Adam::new(0.01), &[&model]);
            let squares = Loss::from(MeanSquaredError);
            let step = case.strategy.function(move |cx, batch: Inputs| {
                let found = cx.train(&model, &batch.x[..1]).remove(0);
                let error = cx.loss(&squares, &batch.x[1], &found, None);
                let added = cx.penalties(&model);
                let loss = &error + &added;
                learn(cx, &loss, &adam);
                [loss, error, added]
            });
            case.follow(step);
        });
    }
}

fn features() -> Model {
    let mut net = Network::new();
    let x = net.input([4, 4, 2]);
    let conv = |filters| {
        Conv2d::new(filters, 3)
            .padding(Padding::Same)
            .activation(relu)
    };
    let first = net.add(conv(3), &[x]);
    let pooled = net.add(MaxPool2d::new(2), &[first]);
    let second = net.add(conv(4), &[pooled]);
    net.build(&[x], &[first, second]).unwrap()
}

/// The mean squared difference of products of features over all places.
fn unlike(one: &Tensor, other: &Tensor) -> Tensor {
    let gram = |x: &Tensor| {
        let x = x.reshape(&[x.dim(1) * x.dim(2), x.dim(3)]);
        x.transpose(&[1, 0]).matmul(&x)
    };
    (gram(one) - gram(other)).square().mean_all()
}

/// The picture is the one variable of a model that is never called; no batch divides the work, so the loss is the same everywhere.
#[test]
fn a_picture_takes_the_style_of_another_as_in_keras() {
    of_keras("style", |record, replicas| {
        let picture = Sequential::new([1]).add(Dense::new(32).use_bias(false));
        let models = [
            ("features", features()),
            ("picture", picture.build().unwrap()),
        ];
        let (mut case, [features, picture]) = Case::new(record, replicas, models);
        let adam = case.optimizer(Adam::new(0.05), &[&picture]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            // A replica without rows has nothing that could be looked at.
            let both = [0, 1].map(|input| cx.all_gather(&batch.x[input], 0).slice_dim(0, 0, 1));
            let image = cx.variables(&picture).remove(0).reshape(&[1, 4, 4, 2]);
            let own = cx.call(&features, std::slice::from_ref(&image));
            let wanted = cx.call(&features, &both[..1]);
            let styled = cx.call(&features, &both[1..]);
            let of_style = unlike(&own[0], &styled[0]) + unlike(&own[1], &styled[1]);
            let part = |row, column| {
                image
                    .slice_dim(1, row, row + 3)
                    .slice_dim(2, column, column + 3)
            };
            let here = part(0, 0);
            let flow = (&here - part(1, 0)).square() + (here - part(0, 1)).square() + 1e-3;
            let smooth = flow.pow(&flow.like(1.25)).sum_all();
            let near = (&own[1] - &wanted[1]).square().sum_all();
            let loss = of_style * 0.1 + near + smooth * 0.01;
            let gradients = cx.gradients(&loss, &adam);
            let gradients = gradients.map(|_, own| cx.all_reduce_mean(own));
            cx.apply(&adam, &gradients);
            [loss / replicas as f64]
        });
        case.follow(step);
    });
}

#[test]
fn labels_without_places_are_learnt_as_in_keras() {
    of_keras("captcha", |record, replicas| {
        let layers = Sequential::new([6, 4])
            .add(
                Conv1d::new(4, 3)
                    .padding(StepPadding::Same)
                    .activation(relu),
            )
            .add(Bidirectional::new(Lstm::new(3).return_sequences(true)))
            .add(Dense::new(4));
        let (mut case, [model]) = Case::new(record, replicas, [("model", layers.build().unwrap())]);
        let adam = case.optimizer(Adam::new(0.01), &[&model]);
        let ctc = Loss::from(Ctc);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.x).remove(0);
            let loss = cx.loss(&ctc, &batch.y[0], &logits, None);
            learn(cx, &loss, &adam);
            [loss]
        });
        case.follow(step);
    });
}

/// Steps of padding and of a class that is left out, with weights and without; the accuracy is of all classes.
#[test]
fn what_counts_of_a_loss_is_as_in_keras() {
    of_keras("left_out", |record, replicas| {
        let layers = Sequential::new(Input::new([4]).dtype(DType::I32))
            .add(Embedding::new(6, 3).mask_zero(true))
            .add(Lstm::new(4).return_sequences(true))
            .add(Dense::new(3));
        let (mut case, [model]) = Case::new(record, replicas, [("model", layers.build().unwrap())]);
        let sgd = case.optimizer(Sgd::new(0.1), &[&model]);
        let accuracy = case.state.add_metric(Accuracy).unwrap();
        let mut count = case.strategy.function(|cx, batch: Inputs| {
            let logits = cx.call(&model, &batch.y[..1]).remove(0);
            let labels = batch.y[1].maximum(&batch.y[1].like(0.0));
            cx.update_metric(&accuracy, &labels, &logits, None);
            []
        });
        let batch = case.batch();
        let [] = count.call(&mut case.state, &batch).unwrap();
        let counted = case.state.result(&accuracy).unwrap();
        assert_near(
            "accuracy",
            &[counted],
            &[record["accuracy"].as_f64().unwrap()],
            1e-6,
        );
        drop(count);
        let of_labels = Loss::from(SparseCategoricalCrossentropy::from_logits().ignore_class(-1));
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let logits = cx.train(&model, &batch.y[..1]).remove(0);
            let loss = cx.loss(&of_labels, &batch.y[1], &logits, Some(&batch.x[0]));
            let unweighted = cx.loss(&of_labels, &batch.y[1], &logits, None);
            learn(cx, &loss, &sgd);
            [loss, unweighted]
        });
        case.follow(step);
    });
}

#[test]
fn a_loss_by_hand_compares_the_examples_of_all_replicas_as_in_keras() {
    of_keras("circle", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", dense(4, 6, 3, tanh))]);
        let sgd = case.optimizer(Sgd::new(0.01), &[&model]);
        let compared = Loss::from(Circle::default().gamma(2.0));
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let code = cx.train(&model, &batch.x).remove(0);
            let unit = &code / code.square().sum(&[1]).keep_dims(&[1]).sqrt();
            let loss = cx.loss(&compared, &batch.y[0], &unit, None);
            learn(cx, &loss, &sgd);
            [loss]
        });
        case.follow(step);
    });
}

/// Derivatives of derivatives by the inputs, which the loss is made of.
#[test]
fn a_network_is_held_to_a_differential_equation_as_in_keras() {
    of_keras("physics", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", dense(2, 6, 1, tanh))]);
        let adam = case.optimizer(Adam::new(0.01), &[&model]);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let points = &batch.x[0];
            let u = cx.train(&model, &batch.x).remove(0);
            let first = cx.derivatives(&u.sum_all(), &[points]).remove(0);
            let slope = first.slice_dim(1, 1, 2);
            let second = cx.derivatives(&slope.sum_all(), &[points]).remove(0);
            let residual = first.slice_dim(1, 0, 1) + &u * slope - second.slice_dim(1, 1, 2) * 0.1;
            let wanted = points.slice_dim(1, 0, 1).sin();
            let of_equation = cx.mean(&residual.square(), None);
            let loss = &of_equation + cx.mean(&(u - wanted).square(), None);
            learn(cx, &loss, &adam);
            [loss, of_equation]
        });
        case.follow(step);
    });
}

fn normalized(outputs: usize) -> Model {
    let layers = Sequential::new([3])
        .add(Dense::new(5).use_bias(false))
        .add(BatchNorm::new().synchronized(true))
        .add(ActivationLayer::new(relu))
        .add(Dense::new(outputs));
    layers.build().unwrap()
}

/// Each call moves the statistics of a model on from where the call before left them.
#[test]
fn a_network_predicts_what_a_slower_one_sees_as_in_keras() {
    of_keras("bootstrapped", |record, replicas| {
        let models = [
            ("network", normalized(4)),
            ("target", normalized(4)),
            ("predictor", dense(4, 5, 4, relu)),
        ];
        let (mut case, [network, target, predictor]) = Case::new(record, replicas, models);
        let both = [&network, &predictor];
        let sgd = case.optimizer(Sgd::new(0.1), &both);
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let unit = |x: &Tensor| x / x.square().sum(&[1]).keep_dims(&[1]).sqrt();
            let parts = [[0, 1], [1, 0]].map(|[one, other]| {
                let seen = cx.train(&network, &batch.x[one..=one]);
                let predicted = unit(&cx.train(&predictor, &seen)[0]);
                let wanted = unit(&cx.train(&target, &batch.x[other..=other])[0]);
                let alike = (predicted * wanted.stop_gradient()).sum(&[1]);
                cx.mean(&(2.0 - alike * 2.0), None)
            });
            let loss = &parts[0] + &parts[1];
            learn(cx, &loss, &sgd);
            let statistics: Vec<Tensor> = cx.variables(&target)[3..5].to_vec();
            follow(cx, &target, &network, 0.9);
            let mut variables = cx.variables(&target);
            variables.splice(3..5, statistics);
            cx.set_variables(&target, &variables);
            let [one, other] = parts;
            [loss, one, other]
        });
        case.follow(step);
    });
}

/// Three batches are one for the model and its statistics.
#[test]
fn what_a_model_is_sure_of_teaches_it_as_in_keras() {
    of_keras("consistent", |record, replicas| {
        let (mut case, [model]) = Case::new(record, replicas, [("model", normalized(3))]);
        let sgd = case.optimizer(Sgd::new(0.1), &[&model]);
        let hard = hard();
        let step = case.strategy.function(move |cx, batch: Inputs| {
            let (all, rows) = (batch.x.iter().collect::<Vec<_>>(), cx.rows());
            let all = cx.concatenated(&Tensor::concat(&all, 0));
            let logits = cx.train(&model, &[all]).remove(0);
            let [known, weak, strong] =
                [0, 1, 2].map(|part| logits.slice_dim(0, part * rows, (part + 1) * rows));
            let shares = weak.softmax(1).stop_gradient();
            let largest = shares.max(&[1]);
            let sure = largest.greater(&largest.like(0.5)).convert(DType::F32);
            let taught = hard.per_example(&shares.argmax(1), &strong) * sure;
            let taught = cx.mean(&taught, None);
            let supervised = cx.loss(&hard, &batch.y[0], &known, None);
            let loss = &supervised + &taught * 0.5;
            learn(cx, &loss, &sgd);
            [loss, supervised, taught]
        });
        case.follow(step);
    });
}
