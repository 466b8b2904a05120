//! How targets, predictions and weights of different ranks are matched.

use phalanx_graph::{DType, Tensor};

/// The tensor in the type losses are computed in: f32, or f64 when it is that already.
#[track_caller]
pub(crate) fn in_float(tensor: &Tensor) -> Tensor {
    match tensor.dtype() {
        DType::F64 => tensor.clone(),
        _ => tensor.convert(DType::F32),
    }
}

/// Targets and predictions in one shape `[batch, .., outputs]` and one float type, or the graph's error.
///
/// A last dim of size 1 that only one of them has is put in or taken out as Keras does; two of rank 1
/// become `[batch, 1]`. Nothing else is broadcast, unlike Keras.
#[track_caller]
pub(crate) fn paired(op: &str, y_true: &Tensor, y_pred: &Tensor) -> Option<(Tensor, Tensor)> {
    let given = (y_true.shape(), y_pred.shape());
    let y_pred = in_float(y_pred);
    let y_true = y_true.convert(y_pred.dtype());
    let (mut a, mut b) = (y_true.dims(), y_pred.dims());
    if a.len() == 1 && b.len() == 1 {
        a.push(1);
        b.push(1);
    } else if a.len() + 1 == b.len() && b.last() == Some(&1) {
        add_or_drop_one(&mut a, &mut b);
    } else if b.len() + 1 == a.len() && a.last() == Some(&1) {
        add_or_drop_one(&mut b, &mut a);
    }
    if a != b || a.is_empty() {
        let (a, b) = given;
        let next = way_to_same_dims(op, &a.dims, &b.dims);
        let message =
            format!("y_true {a} and y_pred {b} must have the same dims, [batch, ..]; {next}");
        y_pred.graph().fail(op, message);
        return None;
    }
    Some((y_true.reshape(&a), y_pred.reshape(&b)))
}

/// Targets as a function of the program is given them: in the dims of the predictions where a last dim of 1 is all that differs.
#[track_caller]
pub(crate) fn in_dims_of(y_pred: &Tensor, y_true: &Tensor) -> Tensor {
    let (targets, predictions) = (y_true.dims(), y_pred.dims());
    let differ_by_one = |short: &[usize], long: &[usize]| [short, &[1]].concat() == long;
    match differ_by_one(&targets, &predictions) || differ_by_one(&predictions, &targets) {
        true => y_true.reshape(&predictions),
        false => y_true.clone(),
    }
}

/// What `of_pair` makes of targets and predictions in one shape, `[batch, .., outputs]`; the graph's error where they have not.
#[track_caller]
pub(super) fn of_pairs(
    op: &str,
    y_true: &Tensor,
    y_pred: &Tensor,
    of_pair: impl FnOnce(&Tensor, &Tensor) -> Tensor,
) -> Tensor {
    match paired(op, y_true, y_pred) {
        Some((y_true, y_pred)) => of_pair(&y_true, &y_pred),
        None => y_pred.clone(),
    }
}

/// The mean over the last dim.
#[track_caller]
pub(super) fn mean_of_last(values: &Tensor) -> Tensor {
    values.mean(&[values.rank() - 1])
}

/// What to do about targets of these dims and predictions of those.
fn way_to_same_dims(op: &str, targets: &[usize], predictions: &[usize]) -> String {
    let (columns, rows) = match predictions.split_last() {
        Some((columns, rows)) if !rows.is_empty() => (*columns, rows),
        _ => return "give both as many dims".to_owned(),
    };
    let is_one_each = targets == rows || targets.split_last() == Some((&1, rows));
    match op {
        "categorical_crossentropy" | "categorical_accuracy" | "top_k_categorical_accuracy"
            if is_one_each =>
        {
            format!("targets that are numbers of classes need `sparse_{op}`")
        }
        "binary_crossentropy" if is_one_each => {
            "targets that are numbers of classes need `sparse_categorical_crossentropy`, and a yes or no for each example a last layer of 1 unit".to_owned()
        }
        "precision" | "recall" | "auc" | "f1_score" | "fbeta_score" | "binary_accuracy" | "binary_io_u" if is_one_each => format!(
            "it counts a yes or no for each of {columns} outputs: give one-hot targets, or count classes by `accuracy`"
        ),
        _ if is_one_each => format!(
            "the model has {columns} outputs for a target of one number: give the last layer 1 unit, or targets of {columns} numbers"
        ),
        _ => "give the last layer the dims of the targets, or change the targets".to_owned(),
    }
}

fn add_or_drop_one(shorter: &mut Vec<usize>, longer: &mut Vec<usize>) {
    if shorter.len() == 1 {
        shorter.push(1);
    } else {
        longer.pop();
    }
}

/// Integer classes as i32 of `y_pred`'s dims but the last, or the graph's error.
#[track_caller]
pub(crate) fn class_labels(op: &str, y_true: &Tensor, y_pred: &Tensor) -> Option<Tensor> {
    let (labels, scores) = (y_true.dims(), y_pred.dims());
    let graph = y_pred.graph();
    let Some((_, rows)) = scores.split_last().filter(|(_, rows)| !rows.is_empty()) else {
        let message = format!(
            "y_pred {} has no dim of classes; expected [batch, .., classes]",
            y_pred.shape()
        );
        graph.fail(op, message);
        return None;
    };
    let one_each = labels == rows || labels.split_last() == Some((&1, rows));
    if !one_each {
        let (a, b) = (y_true.shape(), y_pred.shape());
        let next = match labels == scores {
            true => format!(", and one-hot targets need `{}`", op.replace("sparse_", "")),
            false => String::new(),
        };
        let message = format!(
            "y_true {a} does not hold one class for each row of y_pred {b}; expected dims {rows:?}{next}"
        );
        graph.fail(op, message);
        return None;
    }
    Some(y_true.convert(DType::I32).reshape(rows))
}

/// Weights shaped to broadcast against `values`, aligned at the first dim, or the graph's error.
///
/// Weights `[batch]` weigh whole rows of values `[batch, n]`, which Keras only does for `[batch, 1]`.
#[track_caller]
pub(crate) fn aligned_weight(values: &Tensor, weight: &Tensor) -> Option<Tensor> {
    let aligned = aligned_if_it_fits(values, weight);
    if aligned.is_none() {
        let (w, v) = (weight.shape(), values.shape());
        let message = format!("weights {w} do not fit values {v}: expected one for each example");
        values.graph().fail("sample weight", message);
    }
    aligned
}

/// The same, or none where they do not fit.
#[track_caller]
pub(crate) fn aligned_if_it_fits(values: &Tensor, weight: &Tensor) -> Option<Tensor> {
    let own = values.dims();
    let mut dims = weight.dims();
    while dims.len() > own.len() && dims.last() == Some(&1) {
        dims.pop();
    }
    let fits = dims.len() <= own.len() && dims.iter().zip(&own).all(|(&w, &v)| w == v || w == 1);
    if !fits {
        return None;
    }
    if !dims.is_empty() {
        dims.resize(own.len(), 1);
    }
    Some(weight.convert(values.dtype()).reshape(&dims))
}

/// Predictions whose derivative is 0 where the weight of their example is 0, whatever the loss makes of the target.
///
/// A loss that is not a number has a derivative that is none either, and times a weight of 0 it still is none: it has to be
/// replaced behind the loss. Going forward nothing changes.
///
/// `kept` are the dims of the predictions that the loss has, in their order: weights have those.
#[track_caller]
pub(crate) fn without_unweighted(
    y_pred: &Tensor,
    weight: Option<&Tensor>,
    kept: &[usize],
) -> Tensor {
    // A weight that does not fit is a mistake where the loss is weighed.
    let weight = weight.map(|weight| placed(weight, kept, y_pred.rank()));
    let Some(weight) = weight.and_then(|weight| aligned_if_it_fits(y_pred, &weight)) else {
        return y_pred.clone();
    };
    let counts = weight.not_equal(&weight.zeros_like());
    let counts = counts.broadcast_to(&y_pred.dims());
    counts.select(y_pred, &y_pred.stop_gradient())
}

/// Weights with their dims at these places among as many as `rank`, where they have no more.
#[track_caller]
fn placed(weight: &Tensor, kept: &[usize], rank: usize) -> Tensor {
    let mut dims = vec![1; rank];
    for (size, &dim) in weight.dims().into_iter().zip(kept) {
        dims[dim] = size;
    }
    match dims.iter().product::<usize>() == weight.shape().len() {
        true => weight.reshape(&dims),
        false => weight.clone(),
    }
}

/// `values` times the weights of their examples, aligned and broadcast; what weighs nothing is 0, even if it is no number.
#[track_caller]
pub(crate) fn weighted_or_zero(values: &Tensor, weight: &Tensor) -> Tensor {
    let counts = weight.not_equal(&weight.zeros_like());
    counts.select(&(values * weight), &values.zeros_like())
}
