//! `phalanx evaluate train.yaml`.

use super::Context;
use super::session::{self, Session, failed};
use crate::args::UseArgs;
use crate::failure::Failure;

/// Prints loss and metrics of a trained model.
pub(crate) fn run(context: &mut Context, args: &UseArgs) -> Result<(), Failure> {
    let config = session::used(args)?;
    let mut session = Session::resume(context, &config)?;
    let rows = session.labelled(args)?;
    let batches = session.batches(&rows);
    let logs = session
        .trainer
        .evaluate(&batches)
        .map_err(|error| failed(&error))?;
    context.result("evaluate", &logs)
}
