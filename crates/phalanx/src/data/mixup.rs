//! Augmentation of whole batches: examples mixed with one another, their labels in the same proportion.

use phalanx_graph::{DType, HostTensor};

use super::Batch;
use crate::image::Rng;
use crate::{Error, Result};

/// Each image with another one of the batch shining through, and labels `[rows, classes]` in the same proportion, which is
/// drawn from Beta(alpha, alpha) for each image (Zhang et al., arXiv 1710.09412). A weight is in that proportion too, of the
/// weights of both.
///
/// For [`Batches::map_random`](crate::data::Batches::map_random), with a loss for labels of several classes, such as `categorical_crossentropy`.
///
/// # Errors
/// When `x` is not one f32 tensor, `y` not one i32 tensor of classes below `classes`, there are fewer than 2 classes, or `alpha` not above 0.
pub fn mix_up(key: u64, batch: &Batch, classes: usize, alpha: f32) -> Result<Batch> {
    mix(key, batch, classes, alpha, |_, share, _, mine, other| {
        for (mine, other) in mine.iter_mut().zip(other) {
            *mine = *mine * share + other * (1.0 - share);
        }
        share
    })
}

/// Each image with a rectangle of another one of the batch, and labels `[rows, classes]` by their areas, whose share is
/// drawn from Beta(alpha, alpha) for each image (Yun et al., arXiv 1905.04899).
///
/// # Errors
/// As [`mix_up`], and when `x` is not `[rows, height, width, channels]`.
pub fn cut_mix(key: u64, batch: &Batch, classes: usize, alpha: f32) -> Result<Batch> {
    if batch.x.first().is_none_or(|x| x.dims().len() != 4) {
        return Err(Error::user(
            "cut_mix needs images [rows, height, width, channels]; put it before stages that change that",
        ));
    }
    mix(
        key,
        batch,
        classes,
        alpha,
        |rng, share, dims, mine, other| {
            let &[height, width, channels] = dims else {
                return share;
            };
            let side = |size: usize| (size as f32 * (1.0 - share).sqrt()).round() as usize;
            let (rows, columns) = (side(height), side(width));
            let (top, left) = (rng.below(height - rows + 1), rng.below(width - columns + 1));
            for y in top..top + rows {
                let start = (y * width + left) * channels;
                let span = start..start + columns * channels;
                mine[span.clone()].copy_from_slice(&other[span]);
            }
            1.0 - (rows * columns) as f32 / (height * width) as f32
        },
    )
}

/// Mixes each example with the one a random number of rows further; `blend` returns the share that stays the example's own.
fn mix(
    key: u64,
    batch: &Batch,
    classes: usize,
    alpha: f32,
    blend: impl Fn(&mut Rng, f32, &[usize], &mut [f32], &[f32]) -> f32,
) -> Result<Batch> {
    let (images, labels) = check(batch, classes, alpha)?;
    let (rows, dims) = (images.rows(), &images.dims()[1..]);
    let values = images.f32s();
    let mut mixed = values.clone();
    let mut targets = vec![0.0f32; rows * classes];
    let given = batch.weight.as_ref().map(HostTensor::f32s);
    let mut weights = given.clone();
    let mut rng = Rng::new(key);
    let step = if rows > 1 { 1 + rng.below(rows - 1) } else { 0 };
    let len = values.len() / rows.max(1);
    for row in 0..rows {
        let other = (row + step) % rows;
        let share = rng.share(alpha);
        let mine = &mut mixed[row * len..][..len];
        let left = blend(&mut rng, share, dims, mine, &values[other * len..][..len]);
        targets[row * classes + labels[row] as usize] += left;
        targets[row * classes + labels[other] as usize] += 1.0 - left;
        if let (Some(weights), Some(given)) = (&mut weights, &given) {
            weights[row] = given[row] * left + given[other] * (1.0 - left);
        }
    }
    Ok(Batch {
        x: vec![HostTensor::new(images.dims(), &mixed)],
        y: vec![HostTensor::new([rows, classes], &targets)],
        weight: weights.map(|weights| HostTensor::new([rows], &weights)),
        first: batch.first,
    })
}

fn check(batch: &Batch, classes: usize, alpha: f32) -> Result<(&HostTensor, Vec<i32>)> {
    let ([images], [labels]) = (&batch.x[..], &batch.y[..]) else {
        return Err(Error::user(
            "mixing needs one input and one label; mix before other inputs are added",
        ));
    };
    if batch
        .weight
        .as_ref()
        .is_some_and(|weight| weight.dims() != [images.rows()])
    {
        return Err(Error::user(
            "mixing needs one weight for each image; leave out the weights of steps",
        ));
    }
    if classes < 2 {
        return Err(Error::User(format!(
            "mixing needs 2 or more classes, got {classes}; give the model an output for each class"
        )));
    }
    if images.dtype() != DType::F32 || !(alpha > 0.0 && alpha <= 4.0) {
        return Err(Error::User(format!(
            "mixing needs f32 images and an alpha above 0, up to 4; got {} and {alpha}",
            images.shape()
        )));
    }
    let fits = |labels: &Vec<i32>| {
        labels.len() == images.rows()
            && labels
                .iter()
                .all(|&c| usize::try_from(c).is_ok_and(|c| c < classes))
    };
    match labels.values::<i32>().filter(fits) {
        Some(labels) => Ok((images, labels)),
        None => Err(Error::User(format!(
            "mixing needs a class from 0 to {} for each row as i32, got {}; mix once, before labels are changed",
            classes.saturating_sub(1),
            labels.shape()
        ))),
    }
}
