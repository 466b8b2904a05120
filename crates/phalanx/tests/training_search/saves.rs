//! What is written and read again is as before.

use phalanx::import::LoadWeights;
use phalanx::prelude::*;

use crate::case::Case;
use crate::judge::{Verdict, exact};
use crate::outcome::Outcome;
use crate::places::one;
use crate::stops::scratch;

/// Models, weights and checkpoints, and a training that goes on from one.
pub(crate) fn saved(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let folder = scratch();
    let mut trainer = case.trainer(&one())?;
    trainer.fit(&case.batches, case.fit()?)?;
    let expected = tests(case, &mut trainer)?;
    for way in [Way::Folder, Way::Hdf5, Way::Keras] {
        let path = folder.join(way.name());
        match way.read(case, &trainer, &path) {
            Ok(mut read) => {
                if let Some(what) = expected.other_bits(&tests(case, &mut read)?) {
                    return Ok(Verdict::Wrong(format!("{}: {what}", way.name())));
                }
            }
            // Not every layer has a counterpart.
            Err(error) if way == Way::Keras => println!("not written for Keras: {error}"),
            Err(error) => return Ok(Verdict::Refused(error.to_string())),
        }
    }
    let path = folder.join("checkpoint");
    trainer.save_checkpoint(&path)?;
    let mut other = other(case)?;
    other.restore_checkpoint(&path)?;
    let on = |mut trainer: Trainer| {
        let mut further = Case::drawn(case.draw)?;
        further.epochs += 1;
        let history = trainer.fit(&case.batches, further.fit()?.resume())?;
        case.outcome(&mut trainer, &history)
    };
    Ok(exact(&on(trainer)?, &on(other)?))
}

fn tests(case: &Case<'_>, trainer: &mut Trainer) -> phalanx::Result<Outcome> {
    let mut outcome = Outcome::default();
    outcome.add_tests(trainer, &case.held_out)?;
    Ok(outcome)
}

/// A trainer that begins elsewhere.
fn other(case: &Case<'_>) -> phalanx::Result<Trainer> {
    let compile = Compile {
        seed: 54321,
        ..case.compile.clone()
    };
    one().compile(case.model.clone(), compile)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Folder,
    Hdf5,
    Keras,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Folder => "model",
            Self::Hdf5 => "model.weights.h5",
            Self::Keras => "model.keras",
        }
    }

    /// A trainer with what was written.
    fn read(
        self,
        case: &Case<'_>,
        trainer: &Trainer,
        path: &std::path::Path,
    ) -> phalanx::Result<Trainer> {
        let compile = case.compile.clone();
        match self {
            Self::Folder => {
                trainer.save(path)?;
                one().compile(SavedModel::load(path)?, compile)
            }
            Self::Hdf5 => {
                trainer.save_weights(path)?;
                let mut other = other(case)?;
                other.load_weights(path, LoadWeights::default())?;
                Ok(other)
            }
            Self::Keras => {
                trainer.saved_model()?.save_keras(path)?;
                one().compile(SavedModel::load_keras(path)?, compile)
            }
        }
    }
}
