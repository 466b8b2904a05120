//! `phalanx predict train.yaml`.

use std::fs;

use super::Context;
use super::session::failed;
use super::trained_model::used;
use crate::args::PredictArgs;
use crate::config::{Data, LabelType};
use crate::failure::{Exit, Failure};
use crate::predictions::{lines, without_scores};

/// Prints a prediction for each row, or writes them to a file.
pub(crate) fn run(context: &mut Context, args: &PredictArgs) -> Result<(), Failure> {
    let mut used = used(&args.of)?;
    used.fetch(context)?;
    let (mut session, facts) = used.start(context)?;
    let (rows, names) = used.to_predict(context, &facts)?;
    let batches = session.in_order(&rows);
    let outputs = session
        .trainer
        .predict(&batches)
        .map_err(|error| failed(&error))?;
    let Some(outputs) = outputs.first() else {
        return Err(Failure::new(Exit::Failed, "the model has no output").next("train it again"));
    };
    let unknown = without_scores(outputs);
    if unknown > 0 {
        context.warn(&format!(
            "{unknown} of {} rows have no score that is a number: look at the values of these rows, and at the loss of the training",
            outputs.rows()
        ));
    }
    let classes = match &used.config.data {
        Data::Csv(data) if data.label_type == LabelType::Value => None,
        Data::Examples(data) if data.label_type == LabelType::Value => None,
        _ => Some(&facts.classes[..]),
    };
    let text = lines(outputs, classes, names.as_deref(), args.format);
    let Some(path) = &args.to else {
        return context.output.bytes(text.as_bytes());
    };
    fs::write(path, text).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("cannot write {}: {error}", path.display()),
        )
        .next("choose another --to")
    })
}
