//! What a training step takes: memory and work, found without a step.

use phalanx_graph::Shape;

use super::batch::check_values;
use super::compile::Compile;
use super::setup::Setup;
use super::step_program::{BatchShape, StepBuilder};
use super::trainer::Trainer;
use crate::data::Batch;
use crate::engine::CompileRequest;
use crate::nn::Model;
use crate::replicas::{Layout, Placement};
use crate::{Error, Result};

/// What a training step takes on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Examples of the step.
    pub rows: usize,
    /// Bytes of the variables: parameters, and state such as moving statistics.
    pub variables: u64,
    /// Bytes that the optimizer and the loss scale carry.
    pub optimizer: u64,
    /// Bytes of the batch.
    pub batch: u64,
    /// Bytes of intermediate values, by the compiler's plan: activations kept for the way back, and work space.
    pub temporary: u64,
    /// Bytes of the outputs of all layers ([`Model::activation_bytes`](crate::nn::Model::activation_bytes)), of which
    /// `temporary` holds as many as the compiler could not avoid.
    pub activations: u64,
    /// All that is needed at once, by the compiler's plan; batches that wait for their step come on top.
    pub total: u64,
    /// Floating-point operations of the step, counted from shapes as [`phalanx_graph::Cost`] says.
    pub flops: u64,
}

/// The largest batch whose training step fits, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargestBatch {
    /// The step that fits; `None` when not even one example does.
    pub fits: Option<Estimate>,
    /// Bytes of a step of one example, where that does not fit.
    pub least: u64,
    /// The numbers of examples for which a step was compiled.
    pub compiled: Vec<usize>,
}

/// More examples in one batch than this are not tried.
const MOST_ROWS: usize = 1 << 20;
/// The largest number of programs that a search compiles.
const MOST_COMPILED: usize = 8;

/// A training step that is known by its shapes alone: no variable has a value, and nothing is put on a device.
pub struct StepEstimator {
    placement: Placement,
    setup: Setup,
}

impl StepEstimator {
    pub(crate) fn new(placement: &Placement, model: Model, compile: Compile) -> Result<Self> {
        Ok(Self {
            placement: placement.clone(),
            setup: Setup::on(placement, model, compile)?,
        })
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.setup.model
    }

    /// What looks like a mistake in how the model and its loss fit together, as a training says it when it begins.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.setup.warnings()
    }

    /// As [`Trainer::check_batch`].
    ///
    /// # Errors
    /// As [`Trainer::check_batch`].
    pub fn check_batch(&self, batch: &Batch) -> Result<()> {
        check_values(&self.setup, batch)
    }

    /// What a training step on batches like this one takes with `rows` examples: compiles it and runs nothing.
    ///
    /// # Errors
    /// When the batch does not fit the model, or the compiler fails.
    pub fn estimate(&self, batch: &Batch, rows: usize) -> Result<Estimate> {
        estimate(&self.setup, &self.placement, batch, rows)
    }

    /// The largest batch whose training step needs no more than `memory` bytes.
    ///
    /// Steps of two sizes are compiled, the size is read off the line through them, and steps around it are compiled
    /// until one takes at least 98 in 100 of the memory, or one fits and another at most 1 in 50 larger does not; or 8
    /// were compiled.
    ///
    /// # Errors
    /// As [`estimate`](Self::estimate).
    pub fn largest_batch(&self, batch: &Batch, memory: u64) -> Result<LargestBatch> {
        let mut search = Search {
            memory,
            tried: Vec::new(),
        };
        while let Some(rows) = search.next(batch.rows()) {
            search.tried.push(self.estimate(batch, rows)?);
        }
        Ok(search.result())
    }
}

impl std::fmt::Debug for StepEstimator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StepEstimator of `{}`", self.setup.model.name())
    }
}

impl Trainer {
    /// As [`StepEstimator::estimate`], of this trainer's step.
    ///
    /// # Errors
    /// As [`StepEstimator::estimate`].
    pub fn estimate(&self, batch: &Batch, rows: usize) -> Result<Estimate> {
        estimate(&self.compiled.setup, self.placement(), batch, rows)
    }
}

fn estimate(setup: &Setup, placement: &Placement, batch: &Batch, rows: usize) -> Result<Estimate> {
    setup.objective.require_loss("estimate a training step")?;
    if rows == 0 {
        return Err(Error::user(
            "cannot estimate a step of 0 examples; expected 1 or more",
        ));
    }
    if matches!(placement.layout(), Layout::Pipelined(_)) {
        return Err(Error::user(
            "the memory of a model in stages is not estimated; estimate it on one device, of which each stage needs its part",
        ));
    }
    // With unequal shares every device has arrays of the largest part.
    let partition = placement.partition(rows, rows);
    let whole = BatchShape::of(setup, batch)?;
    let shape = whole.part(&partition, false, setup.branches_by_size());
    let local = setup.with_local_parameters();
    let step = StepBuilder::new(&local).train_steps(&shape, &[local.window().last_part()])?;
    let program = step.program;
    let memory = placement
        .engine()
        .memory(CompileRequest::new("train_step", &program))?;
    let variables = setup.model.variables().iter();
    let of_model = setup.model.activation_bytes(setup.precision);
    let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    Ok(Estimate {
        rows,
        variables: total(variables.map(|variable| &variable.shape)),
        optimizer: total(setup.state.slots.iter().map(|slot| &slot.shape)),
        batch: total(shape.all()),
        temporary: bytes(memory.temporary),
        activations: of_model.saturating_mul(rows as u64),
        total: bytes(memory.total()),
        flops: program.simplified().cost().total.flops,
    })
}

impl BatchShape {
    fn all(&self) -> impl Iterator<Item = &Shape> {
        self.x.iter().chain(&self.y).chain(&self.weight)
    }
}

fn total<'a>(shapes: impl Iterator<Item = &'a Shape>) -> u64 {
    shapes.map(|shape| shape.byte_len() as u64).sum()
}

/// The steps compiled so far.
struct Search {
    memory: u64,
    tried: Vec<Estimate>,
}

impl Search {
    /// The size to try next; `None` when the largest is known well enough.
    fn next(&self, first: usize) -> Option<usize> {
        let first = first.clamp(1, MOST_ROWS / 2);
        let (fits, fails) = (self.fits(), self.fails());
        let next = match (self.tried.len(), fits, fails) {
            (0, _, _) => first,
            (MOST_COMPILED.., _, _) => return None,
            (_, Some(fits), _) if fits.total as f64 >= 0.98 * self.memory as f64 => return None,
            (1, Some(_), _) => first * 2,
            (_, Some(fits), None) => {
                let most = fits.rows.saturating_mul(64);
                self.on_line(self.tried.iter()).clamp(fits.rows + 1, most)
            }
            (_, None, Some(fails)) if fails.rows > 1 => {
                self.on_line(self.tried.iter()).clamp(1, fails.rows / 2)
            }
            (_, Some(fits), Some(fails)) => {
                if fails.rows <= fits.rows + fits.rows / 50 + 1 {
                    return None;
                }
                // Every other time the middle, for there may be no line.
                let middle = fits.rows.midpoint(fails.rows);
                let on_line = self.on_line([fits, fails].into_iter());
                let next = if self.tried.len().is_multiple_of(2) {
                    on_line
                } else {
                    middle
                };
                next.clamp(fits.rows + 1, fails.rows - 1)
            }
            (_, None, _) => return None,
        };
        let next = next.min(MOST_ROWS);
        let is_new = self.tried.iter().all(|tried| tried.rows != next);
        (next > 0 && is_new).then_some(next)
    }

    /// The largest that fits.
    fn fits(&self) -> Option<&Estimate> {
        let fit = self.tried.iter().filter(|tried| tried.total <= self.memory);
        fit.max_by_key(|tried| tried.rows)
    }

    /// The smallest that does not.
    fn fails(&self) -> Option<&Estimate> {
        let fail = self.tried.iter().filter(|tried| tried.total > self.memory);
        fail.min_by_key(|tried| tried.rows)
    }

    /// Where the line through the first and last of these sizes meets the limit, rounded down.
    fn on_line<'a>(&self, tried: impl Iterator<Item = &'a Estimate>) -> usize {
        let mut points: Vec<&Estimate> = tried.collect();
        points.sort_by_key(|tried| tried.rows);
        let [first, .., last] = points[..] else {
            return 1;
        };
        let slope = (last.total as f64 - first.total as f64) / (last.rows - first.rows) as f64;
        let more = (self.memory as f64 - last.total as f64) / slope.max(1.0);
        (last.rows as f64 + more).clamp(1.0, MOST_ROWS as f64) as usize
    }

    fn result(self) -> LargestBatch {
        let least = self.tried.iter().map(|tried| tried.total).min();
        LargestBatch {
            fits: self.fits().copied(),
            least: least.unwrap_or(0),
            compiled: self.tried.iter().map(|tried| tried.rows).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where a step of n rows takes `cost(n)` bytes.
    fn search(first: usize, memory: u64, cost: impl Fn(usize) -> u64) -> LargestBatch {
        let mut search = Search {
            memory,
            tried: Vec::new(),
        };
        while let Some(rows) = search.next(first) {
            let bytes = cost(rows);
            search.tried.push(Estimate {
                rows,
                variables: 0,
                optimizer: 0,
                batch: 0,
                temporary: bytes,
                activations: 0,
                total: bytes,
                flops: 0,
            });
        }
        search.result()
    }

    #[test]
    fn a_line_is_found_with_few_programs() {
        for (first, memory) in [(32, 1_000_000), (4096, 1_000_000), (1, 5_000), (32, 5_000)] {
            let found = search(first, memory, |rows| 4_000 + 96 * rows as u64);
            let expected = ((memory - 4_000) / 96) as usize;
            let rows = found.fits.unwrap().rows;
            assert!(rows <= expected && rows * 51 >= expected * 50, "{found:?}");
            assert!(found.compiled.len() <= 8, "{found:?}");
        }
    }

    #[test]
    fn what_is_no_line_is_found_too() {
        let steps = |rows: usize| 1_000 + rows.next_multiple_of(64) as u64 * 100;
        let found = search(32, 100_000, steps);
        let rows = found.fits.unwrap().rows;
        assert!((900..=960).contains(&rows), "{found:?}");
        let constant = search(32, 100_000, |_| 10);
        assert!(constant.fits.unwrap().rows >= 1 << 17, "{constant:?}");
    }

    #[test]
    fn what_never_fits_is_said() {
        let found = search(64, 100, |rows| 1_000 + rows as u64);
        assert_eq!((found.fits, found.least), (None, 1_001));
    }
}
