//! `phalanx evaluate train.yaml`.

use super::Context;
use super::follow;
use super::session::failed;
use super::trained_model::used;
use crate::args::EvaluateArgs;
use crate::failure::Failure;

/// Prints loss and metrics of a trained model.
pub(crate) fn run(context: &mut Context, args: &EvaluateArgs) -> Result<(), Failure> {
    if args.follow {
        return follow::run(context, &args.of, &args.how);
    }
    let mut used = used(&args.of)?;
    used.fetch(context)?;
    let (mut session, facts) = used.start(context)?;
    let rows = used.labelled(context, &facts)?;
    let batches = session.batches(&rows)?;
    let logs = session
        .trainer
        .evaluate(&batches)
        .map_err(|error| failed(&error))?;
    context.result("evaluate", &logs)
}
