//! Whether two ways to train gave the same.

use phalanx::checkpoint::TrainingState;
use phalanx::prelude::*;

use crate::case::{Case, perturb};
use crate::draw::Draw;
use crate::outcome::Outcome;
use crate::places::one;

/// What was found of a training.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Both ways are alike; the largest difference.
    Right(f64),
    /// They differ no more than rounding makes such a training differ from itself, which is much.
    NearTie(String),
    /// The relation does not hold for such trainings, or there is no such training.
    Skipped(String),
    /// The second way is refused.
    Refused(String),
    Wrong(String),
}

/// As far apart as two ways may be that round differently.
pub(crate) const BOUND: f64 = 1e-5;

/// How much further than a change of the last bits takes a training.
const FACTOR: f64 = 20.0;

/// Behind which such a change says that nothing can be said.
const TIE: f64 = 1e-3;

/// `false` of what is no number.
pub(crate) fn is_within(apart: f64, bound: f64) -> bool {
    apart <= bound
}

pub(crate) fn skipped(why: &str) -> phalanx::Result<Verdict> {
    Ok(Verdict::Skipped(why.into()))
}

/// The verdict where all bits must be the same.
pub(crate) fn exact(one: &Outcome, other: &Outcome) -> Verdict {
    one.other_bits(other)
        .map_or(Verdict::Right(0.0), Verdict::Wrong)
}

/// A trainer, where it begins, and what it does.
pub(crate) struct First<'a, F: Fn(&mut Trainer) -> phalanx::Result<Outcome>> {
    case: &'a Case<'a>,
    trainer: Trainer,
    begin: TrainingState,
    run: F,
}

impl<'a, F: Fn(&mut Trainer) -> phalanx::Result<Outcome>> First<'a, F> {
    pub(crate) fn new(case: &'a Case<'a>, run: F) -> phalanx::Result<Self> {
        let trainer = case.trainer(&one())?;
        let begin = trainer.training_state()?;
        Ok(Self {
            case,
            trainer,
            begin,
            run,
        })
    }

    /// Whether another way did the same, but for rounding.
    pub(crate) fn judge(
        mut self,
        other: phalanx::Result<Outcome>,
        words: &str,
    ) -> phalanx::Result<Verdict> {
        let expected = (self.run)(&mut self.trainer)?;
        let found = match other {
            Ok(found) => found,
            Err(error) => return Ok(Verdict::Refused(format!("{words}: {error}"))),
        };
        let apart = match expected.apart(&found) {
            Ok(apart) => apart,
            Err(what) => vec![(what, f64::INFINITY)],
        };
        let most = apart.iter().fold(0.0, |most: f64, (_, x)| most.max(*x));
        // Sums of 16-bit numbers in another order.
        let bound = match self.case.compile.precision {
            Policy::Float32 => BOUND,
            Policy::MixedFloat16 => 1e-3,
            Policy::MixedBfloat16 => 1e-2,
        };
        if most <= bound {
            return Ok(Verdict::Right(most));
        }
        let mut allowed = vec![0.0f64; apart.len()];
        for seed in 0..4 {
            match self.perturbed(seed)?.apart(&expected) {
                Ok(by_rounding) if by_rounding.len() == allowed.len() => {
                    for (allowed, (_, apart)) in allowed.iter_mut().zip(by_rounding) {
                        *allowed = allowed.max(apart);
                    }
                }
                _ => return Ok(Verdict::NearTie(format!("{words}: epochs end elsewhere"))),
            }
        }
        let pairs = apart.into_iter().zip(&allowed);
        let wrong =
            pairs.filter(|((_, apart), allowed)| !is_within(*apart, bound + FACTOR * **allowed));
        let wrong = wrong.max_by(|((_, a), x), ((_, b), y)| (a / **x).total_cmp(&(b / **y)));
        if let Some(((what, apart), allowed)) = wrong {
            return Ok(Verdict::Wrong(format!(
                "{words}: {what} is {apart:e} apart, by rounding {allowed:e}"
            )));
        }
        match allowed.iter().any(|allowed| *allowed > TIE) {
            true => Ok(Verdict::NearTie(format!("{words}: {most:e}"))),
            false => Ok(Verdict::Right(most)),
        }
    }

    fn perturbed(&mut self, seed: u64) -> phalanx::Result<Outcome> {
        let share = match self.case.compile.precision {
            Policy::Float32 => 3e-7,
            Policy::MixedFloat16 => 5e-4,
            Policy::MixedBfloat16 => 4e-3,
        };
        perturb(&mut self.trainer, &self.begin, share, seed)?;
        (self.run)(&mut self.trainer)
    }
}

/// What a whole `fit` on one device is judged by.
pub(crate) fn fitted<'a>(
    case: &'a Case<'a>,
) -> phalanx::Result<First<'a, impl Fn(&mut Trainer) -> phalanx::Result<Outcome>>> {
    First::new(case, |trainer| {
        let history = trainer.fit(&case.batches, case.fit()?)?;
        case.outcome(trainer, &history)
    })
}

/// The state alone, without what the end of a `fit` puts in the place of variables.
pub(crate) fn state(trainer: &Trainer) -> phalanx::Result<Outcome> {
    let mut outcome = Outcome::default();
    outcome.add_state(trainer)?;
    Ok(outcome.only(|name| !name.ends_with("as it is used")))
}

pub(crate) fn quiet(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

pub(crate) fn has_any(draw: &Draw, features: &[&str]) -> bool {
    let has = draw.features();
    features.iter().any(|feature| has.contains(feature))
}
