//! `phalanx predict train.yaml`.

use phalanx::data::HostTensor;

use super::Context;
use super::session::failed;
use super::trained_model::used;
use crate::args::PredictArgs;
use crate::config::{Data, LabelType, TrainConfig};
use crate::data_facts::Facts;
use crate::failure::{Exit, Failure};
use crate::files::write;
use crate::predictions::{Predicted, lines, without_scores};

/// What names the file.
const TO: &str = "--to";

/// Prints a prediction for each row, or writes them to a file.
pub(crate) fn run(context: &mut Context, args: &PredictArgs) -> Result<(), Failure> {
    let mut used = used(&args.of)?;
    if let Some(to) = &args.to {
        used.check_target(to, TO)?;
    }
    used.fetch(context)?;
    let (mut session, facts) = used.start(context)?;
    let (rows, names) = used.to_predict(context, &facts)?;
    let batches = session.in_order(&rows);
    let outputs = session
        .trainer
        .predict(&batches)
        .map_err(|error| failed(&error))?;
    let Some(first) = outputs.first() else {
        return Err(Failure::new(Exit::Failed, "the model has no output").next("train it again"));
    };
    let unknown = outputs.iter().map(without_scores).max().unwrap_or_default();
    if unknown > 0 {
        context.warn(&format!(
            "{unknown} of {} rows have no score that is a number: look at the values of these rows, and at the loss of the training",
            first.rows()
        ));
    }
    let text = lines(
        &predicted(&used.config, &facts, &outputs),
        names.as_deref(),
        args.format,
    );
    let Some(path) = &args.to else {
        return context.output.bytes(text.as_bytes());
    };
    write(path, text.as_bytes(), TO)
}

/// The outputs under their names where the data name several; else the first, which is all that was trained.
fn predicted<'a>(
    config: &TrainConfig,
    facts: &'a Facts,
    outputs: &'a [HostTensor],
) -> Vec<Predicted<'a>> {
    if !facts.labels.is_empty() {
        let named = facts.labels.iter().zip(outputs);
        let named = named.map(|(label, values)| Predicted {
            output: Some(&label.name),
            values,
            classes: label.is_class.then_some(&label.classes[..]),
        });
        return named.collect();
    }
    let classes = match &config.data {
        Data::Csv(data) if data.label_type == LabelType::Value => None,
        Data::Examples(data) if data.label_type == LabelType::Value => None,
        _ => Some(&facts.classes[..]),
    };
    let first = outputs.first().map(|values| Predicted {
        output: None,
        values,
        classes,
    });
    first.into_iter().collect()
}
