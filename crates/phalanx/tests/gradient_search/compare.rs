//! Whether the gradients of a network are right.

use std::panic::AssertUnwindSafe;

use phalanx::nn::Model;
use phalanx::prelude::Policy;
use phalanx_graph::{HostMatmul, Op};
use phalanx_kernels::has_fast_bf16;
use phalanx_testkit::largest_difference;

use crate::algorithms::{ALGORITHMS, BF16_PRODUCTS, is_cpu};
use crate::jax;
use crate::keras;
use crate::random::Random;
use crate::step::{Left, Replaced, Step};
use crate::trial::Trial;

/// How far the compiler's gradient may be from that in f64, relative to the largest element.
const TOLERANCE: f64 = 1e-4;
/// How far it may be under a policy of bf16, beside what noise makes: so far that only a wrong formula or place exceeds it.
const MIXED_TOLERANCE: f64 = 0.25;
/// One of four networks with kernels is computed in bf16, too, in searches that are asked for: how often rounding alone looks wrong
/// is not known well enough for every run of the tests.
const MIXED: u64 = 4;
/// Of so many networks with kernels the convolutions of one are computed by another algorithm, too.
const FORCED: u64 = 4;
/// How far the derivative along a direction may be: constants of a program are rounded, and no more.
const ALONG: f64 = 1e-6;
/// Gradients that are so much smaller than the largest of the network are zero but for rounding.
pub(crate) const NEGLIGIBLE: f64 = 1e-3;
/// And so much smaller those that are zero in f64: that of a bias before a normalization.
const ZERO: f64 = 1e-9;
/// Where all gradients are smaller, they are zero but for rounding: two normalizations in a row leave nothing of some networks.
const NOTHING: f64 = 1e-10;
/// Interpretations with noise, and by how much more than their spread a difference may be.
const NOISY: u64 = 4;
const SPREADS: f64 = 8.0;

/// What a comparison found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// All gradients agree; the largest relative difference.
    Right(f64),
    /// They differ where noise makes as much of a difference.
    NearTie(String),
    /// They differ.
    Wrong(String),
    /// The network is no trial: it cannot be built, or is too large.
    Skipped(String),
}

/// A program of more operations takes the interpreter too long.
pub(crate) const MOST_FLOPS: u64 = 60_000_000;

/// Whether the gradients of a step with this algorithm in its convolutions are right; false where it computes none of them.
pub(crate) fn right_by(model: &Model, trial: &Trial, algorithm: &str) -> Result<bool, String> {
    let step = Step::new(model, trial, Policy::Float32).map_err(|error| error.to_string())?;
    let exact = step.interpreted(None)?;
    let left = step.by_algorithm(algorithm);
    let Some(left) = left.map_err(|error| format!("does not run: {error}"))? else {
        return Ok(false);
    };
    against(&step, &exact, &left, &scales(&step, &exact), TOLERANCE).map(|_| true)
}

/// Compares the gradients of a network; a panic is wrong, too.
pub(crate) fn verdict(model: &Model, trial: &Trial) -> Verdict {
    let caught = std::panic::catch_unwind(AssertUnwindSafe(|| found(model, trial)));
    caught.unwrap_or_else(|_| Verdict::Wrong("panicked".into()))
}

/// Whether the gradients of a step in f64 are the derivative of its loss: no compiler takes part.
pub(crate) fn is_derivative(model: &Model, trial: &Trial) -> Result<(), String> {
    let step = Step::new(model, trial, Policy::Float32).map_err(|error| error.to_string())?;
    let exact = step.interpreted(None)?;
    if !step.loss_is_finite()? || largest_gradient(&step, &exact) < NOTHING {
        return Ok(());
    }
    match not_finite(&step, &exact) {
        Some(what) => Err(what),
        None => forward(&step, &exact, &scales(&step, &exact), trial),
    }
}

fn found(model: &Model, trial: &Trial) -> Verdict {
    if trial.replicas > 1 && !is_cpu() {
        return Verdict::Skipped("it has replicas, and there may be one device".into());
    }
    let step = match Step::new(model, trial, Policy::Float32) {
        Ok(step) => step,
        Err(error) => return Verdict::Skipped(error.to_string()),
    };
    if step.flops() > MOST_FLOPS {
        return Verdict::Skipped(format!("{} operations", step.flops()));
    }
    let verdict = compared(model, &step, trial).unwrap_or_else(Verdict::Wrong);
    let asked = std::env::var_os("PHALANX_FUZZ_MINUTES").is_some();
    let mixed = asked && !keras::is_given() && trial.seed % MIXED == 2;
    if !mixed || !matches!(verdict, Verdict::Right(_)) {
        return verdict;
    }
    // Without kernels the types alone are looked at, in fewer networks.
    let is_looked_at = has_kernels(&step) || trial.seed % (4 * MIXED) == 2;
    let kernels = match is_looked_at || !is_cpu() {
        true => mixed_is_close(model, trial),
        false => Ok(()),
    };
    match kernels.and_then(|()| mixed_by_products(model, trial)) {
        Ok(_) => verdict,
        Err(what) => Verdict::Wrong(format!("in bf16: {what}")),
    }
}

/// Whether the gradients of a step under a policy of bf16, with kernels, are those of its formulas in f64 but for rounding.
pub(crate) fn mixed_is_close(model: &Model, trial: &Trial) -> Result<(), String> {
    let step = Step::new(model, trial, Policy::MixedBfloat16).map_err(|error| error.to_string())?;
    let exact = step.interpreted(None)?;
    let scales = scales(&step, &exact);
    let left = (step.compiled(true)).map_err(|error| format!("does not run: {error}"))?;
    mixed_against(&step, &exact, &left, &scales)
}

/// The same with the library's products of bf16; false where there are none.
pub(crate) fn mixed_by_products(model: &Model, trial: &Trial) -> Result<bool, String> {
    let step = Step::new(model, trial, Policy::MixedBfloat16).map_err(|error| error.to_string())?;
    let left = step.by_algorithm(BF16_PRODUCTS);
    let Some(left) = left.map_err(|error| format!("{BF16_PRODUCTS}: does not run: {error}"))?
    else {
        return Ok(false);
    };
    let exact = step.interpreted(None)?;
    let scales = scales(&step, &exact);
    mixed_against(&step, &exact, &left, &scales)
        .map(|()| true)
        .map_err(|what| format!("{BF16_PRODUCTS}: {what}"))
}

fn mixed_against(step: &Step, exact: &Left, left: &Left, scales: &[f64]) -> Result<(), String> {
    match against(step, exact, left, scales, MIXED_TOLERANCE) {
        Ok(_) => Ok(()),
        Err(_) => explained(step, exact, left, scales, MIXED_TOLERANCE).map(drop),
    }
}

fn compared(model: &Model, step: &Step, trial: &Trial) -> Result<Verdict, String> {
    let exact = step.interpreted(None)?;
    let scales = scales(step, &exact);
    if !step.loss_is_finite()? {
        return Ok(Verdict::Skipped("the loss is not finite".into()));
    }
    if let Some(what) = not_finite(step, &exact) {
        return Err(what);
    }
    if largest_gradient(step, &exact) < NOTHING {
        return Ok(Verdict::Skipped("nothing has a gradient".into()));
    }
    if keras::is_given() {
        return beside_keras(model, step, trial, &exact, &scales);
    }
    forward(step, &exact, &scales, trial)?;
    beside_jax(step, &exact, &scales)?;
    let mut worst = 0.0f64;
    let mut tie = None;
    let mut judge = |how: &str, left: &Left| {
        match against(step, &exact, left, &scales, TOLERANCE) {
            Ok(difference) => worst = worst.max(difference),
            Err(_) => {
                let tied = explained(step, &exact, left, &scales, TOLERANCE);
                tie = Some(tied.map_err(|what| format!("{how}: {what}"))?);
            }
        }
        Ok::<(), String>(())
    };
    let failed = |error| format!("does not run: {error}");
    for &kernels in modes(step, trial) {
        let how = if kernels { "kernels on" } else { "kernels off" };
        judge(how, &step.compiled(kernels).map_err(failed)?)?;
    }
    if trial.seed % FORCED == 3 && has_kernels(step) {
        let number = trial.seed / FORCED % ALGORITHMS.len() as u64;
        let algorithm = ALGORITHMS[number as usize];
        if let Some(left) = step
            .by_algorithm(algorithm)
            .map_err(|error| format!("{algorithm}: does not run: {error}"))?
        {
            judge(algorithm, &left)?;
        }
    }
    Ok(match tie {
        Some(what) => Verdict::NearTie(what),
        None => Verdict::Right(worst),
    })
}

/// Whether it is compiled with kernels, without, or both; where there are none for it, both would be one program.
fn modes(step: &Step, trial: &Trial) -> &'static [bool] {
    let program = step.program.simplified();
    let gains = has_kernels(step)
        || program.gains_from_host_matmul(HostMatmul::AlsoSmall, has_fast_bf16())
        || program.gains_from_host_reductions()
        || program.replicas > 1;
    if !gains || !is_cpu() {
        return &[true];
    }
    // Compilation takes nearly all of the time.
    match trial.seed % 4 {
        0 => &[true, false],
        1 => &[false],
        _ => &[true],
    }
}

fn has_kernels(step: &Step) -> bool {
    let mut ops = step.program.nodes.iter().map(|node| &node.op);
    ops.any(|op| matches!(op, Op::Conv(_) | Op::Kernel(_)))
}

/// What is not finite, though the loss is.
fn not_finite(step: &Step, left: &Left) -> Option<String> {
    let mut each = step.replaced.iter().zip(&left[0]);
    let (replaced, _) = each.find(|(_, values)| values.iter().any(|value| !value.is_finite()))?;
    Some(format!(
        "in f64 {} is not finite, the loss is",
        replaced.name
    ))
}

/// The largest element of all gradients.
fn largest_gradient(step: &Step, exact: &Left) -> f64 {
    let gradients = step.replaced.iter().zip(&exact[0]);
    let gradients = gradients.filter(|(replaced, _)| replaced.trained);
    gradients.fold(0.0f64, |most, (_, values)| most.max(largest(values)))
}

pub(crate) fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0f64, |most, x| most.max(x.abs()))
}

/// The largest element of each array, of gradients at least a small part of the largest gradient; of those that are 0, which
/// the compiler's are but for rounding, that itself.
fn scales(step: &Step, exact: &Left) -> Vec<f64> {
    let most = largest_gradient(step, exact);
    let each = step.replaced.iter().zip(&exact[0]);
    each.map(|(replaced, values)| match replaced.trained {
        true if largest(values) < ZERO * most => most,
        true => largest(values).max(NEGLIGIBLE * most),
        false => largest(values),
    })
    .collect()
}

/// The largest difference between two lists relative to a scale; infinite where one is not a number.
fn apart(a: &[f64], b: &[f64], scale: f64) -> f64 {
    let most = largest_difference(a, b);
    if most == 0.0 { 0.0 } else { most / scale }
}

/// The largest relative difference of all arrays, or what is wrong.
fn against(
    step: &Step,
    exact: &Left,
    left: &Left,
    scales: &[f64],
    tolerance: f64,
) -> Result<f64, String> {
    let mut worst = 0.0f64;
    for (replica, (exact, left)) in exact.iter().zip(left).enumerate() {
        for (number, replaced) in step.replaced.iter().enumerate() {
            let difference = apart(&exact[number], &left[number], scales[number]);
            if difference > tolerance {
                return Err(told(
                    replaced,
                    replica,
                    difference,
                    &exact[number],
                    &left[number],
                ));
            }
            worst = worst.max(difference);
        }
    }
    Ok(worst)
}

fn told(replaced: &Replaced, replica: usize, difference: f64, a: &[f64], b: &[f64]) -> String {
    let worst = a
        .iter()
        .zip(b)
        .enumerate()
        .max_by(|(_, (a, b)), (_, (c, d))| {
            let (first, second) = ((*a - *b).abs(), (*c - *d).abs());
            first.total_cmp(&second)
        });
    let (place, (right, got)) = worst.unwrap_or((0, (&0.0, &0.0)));
    format!(
        "{} of {} on replica {replica} differs by {difference:.2e} of the largest, at {place} of {}: {got:e}, right is {right:e}",
        if replaced.trained {
            "the gradient"
        } else {
            "the new value"
        },
        replaced.name,
        a.len()
    )
}

/// Whether noise in the ops makes as much of a difference: what differs, else an error.
fn explained(
    step: &Step,
    exact: &Left,
    left: &Left,
    scales: &[f64],
    tolerance: f64,
) -> Result<String, String> {
    let noisy = noisy(step)?;
    let mut tie = String::new();
    for (replica, (exact, left)) in exact.iter().zip(left).enumerate() {
        for (number, replaced) in step.replaced.iter().enumerate() {
            let (exact, left, scale) = (&exact[number], &left[number], scales[number]);
            let difference = apart(exact, left, scale);
            if difference <= tolerance {
                continue;
            }
            let spread = noisy
                .iter()
                .map(|noisy| apart(exact, &noisy[replica][number], scale));
            let spread = spread.fold(0.0, f64::max);
            let what = told(replaced, replica, difference, exact, left);
            let what = format!("{what}; noise makes {spread:.2e}");
            // What is finite is not made infinite by rounding.
            if !difference.is_finite() || difference > tolerance + SPREADS * spread {
                return Err(what);
            }
            tie = what;
        }
    }
    Ok(tie)
}

/// The gradient in f64 beside the derivative of the loss along a random direction, which shares no formula with it.
fn forward(step: &Step, exact: &Left, scales: &[f64], trial: &Trial) -> Result<(), String> {
    let mut random = Random::of(trial.seed, 5000);
    // Each variable moves so far that all of them count alike.
    let along = |(number, replaced): (usize, &Replaced)| {
        let (count, scale) = (replaced.before.len(), scales[number]);
        let far = if scale > 0.0 { 1.0 / scale } else { 1.0 };
        let far = far / (count as f64).sqrt();
        // What is set before it is updated goes by its gradient and a rounding of another number.
        let is_set = replaced.name.contains("spectral_norm");
        (replaced.trained && !is_set)
            .then(|| random.normals(count).iter().map(|x| x * far).collect())
    };
    let directions: Vec<Option<Vec<f64>>> = step.replaced.iter().enumerate().map(along).collect();
    let difference = apart_along(step, &exact[0], &directions)?;
    if difference <= ALONG {
        return Ok(());
    }
    // Constants of a program are rounded to f32, which counts where a gradient is what nearly cancels, as in the tail of a GELU.
    let noisy = noisy(step)?;
    let is_noise = |difference: f64, directions: &[Option<Vec<f64>>]| {
        let right = product(&exact[0], directions);
        let spread = (noisy.iter()).map(|left| (product(&left[0], directions) - right).abs());
        difference <= ALONG + SPREADS * spread.fold(0.0, f64::max)
    };
    for (number, replaced) in step.replaced.iter().enumerate() {
        let mut one = vec![None; directions.len()];
        one[number].clone_from(&directions[number]);
        if one[number].is_some() && !is_noise(apart_along(step, &exact[0], &one)?, &one) {
            return Err(format!(
                "the gradient of {} in f64 is not the derivative of the loss",
                replaced.name
            ));
        }
    }
    match is_noise(difference, &directions) {
        true => Ok(()),
        false => Err("the gradients in f64 are not the derivative of the loss".into()),
    }
}

/// What a step leaves when its ops make errors, several times.
fn noisy(step: &Step) -> Result<Vec<Left>, String> {
    (0..NOISY)
        .map(|seed| step.interpreted(Some(seed)))
        .collect()
}

/// The gradient in f64 beside that of JAX, where a Python with it was given.
fn beside_jax(step: &Step, exact: &Left, scales: &[f64]) -> Result<(), String> {
    let Some(theirs) = jax::gradients(step) else {
        return Ok(());
    };
    let theirs = theirs?;
    let mut theirs = theirs.iter();
    for (number, replaced) in step.replaced.iter().enumerate() {
        if !replaced.trained {
            continue;
        }
        let (ours, theirs) = (&exact[0][number], theirs.next().ok_or("JAX gave too few")?);
        let difference = apart(ours, theirs, scales[number]);
        if difference > ALONG {
            let what = told(replaced, 0, difference, theirs, ours);
            return Err(format!("in f64, beside JAX: {what}"));
        }
    }
    Ok(())
}

/// What the step leaves in f64 beside what it leaves by Keras.
fn beside_keras(
    model: &Model,
    step: &Step,
    trial: &Trial,
    exact: &Left,
    scales: &[f64],
) -> Result<Verdict, String> {
    let Some(theirs) = keras::found(model, step, trial) else {
        return Ok(Verdict::Skipped("nothing for Keras".into()));
    };
    let theirs = theirs?;
    let ours = keras::prediction(model, step, trial)?;
    let difference = apart(&ours, &theirs.prediction, largest(&ours));
    if difference > ALONG || ours.len() != theirs.prediction.len() {
        return Err(format!(
            "the prediction differs by {difference:.2e} of the largest from Keras'"
        ));
    }
    let Some(left) = theirs.left else {
        return Ok(Verdict::Right(difference));
    };
    let left = vec![left];
    match against(step, exact, &left, scales, ALONG) {
        Ok(difference) => Ok(Verdict::Right(difference)),
        Err(_) => explained(step, exact, &left, scales, ALONG).map(Verdict::NearTie),
    }
}

/// How far the gradients are from the derivative of the loss along these directions; infinite where one is not a number.
fn apart_along(
    step: &Step,
    exact: &[Vec<f64>],
    directions: &[Option<Vec<f64>>],
) -> Result<f64, String> {
    let slope = step.along(directions)?;
    let difference = (slope - product(exact, directions)).abs();
    Ok(if difference.is_nan() {
        f64::INFINITY
    } else {
        difference
    })
}

/// The derivative that gradients give along directions.
fn product(gradients: &[Vec<f64>], directions: &[Option<Vec<f64>>]) -> f64 {
    let each = gradients.iter().zip(directions);
    let sums = each.filter_map(|(gradient, direction)| {
        let products = gradient.iter().zip(direction.as_ref()?).map(|(g, v)| g * v);
        Some(products.sum::<f64>())
    });
    sums.sum()
}
