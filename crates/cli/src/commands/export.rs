//! `phalanx export`: the weights of a trained model, for other programs.

use phalanx::saved::SavedModel;
use serde_json::json;

use super::Context;
use super::session::failed;
use super::trained_model::used;
use crate::args::{ExportArgs, UseArgs};
use crate::failure::{Exit, Failure};
use crate::run_folder::is_model;

/// Writes the weights of a trained model.
pub(crate) fn run(context: &mut Context, args: &ExportArgs) -> Result<(), Failure> {
    let name = args.file.file_name().map(|name| name.to_string_lossy());
    let is_of_keras = name
        .as_ref()
        .is_some_and(|name| name.ends_with(".weights.h5"));
    if !is_of_keras && args.file.extension() != Some("safetensors".as_ref()) {
        let message = format!(
            "`{}` says no format by its ending, expected .weights.h5 (Keras) or .safetensors",
            args.file.display()
        );
        return Err(Failure::new(Exit::Usage, message).next("name the file so"));
    }
    let saved = saved(context, args)?;
    saved
        .save_weights(&args.file)
        .map_err(|error| failed(&error))?;
    let (variables, file) = (saved.values().len(), args.file.display());
    let json = json!({"exported": args.file, "variables": variables});
    let hint = match is_of_keras {
        true => format!("; in Keras, with the same layers: model.load_weights(\"{file}\")"),
        false => String::new(),
    };
    let line = format!("{variables} variables are in {file}{hint}");
    context.print(&line, &json)
}

/// The model of the folder of a training or of a saved model, or of a training file.
fn saved(context: &Context, args: &ExportArgs) -> Result<SavedModel, Failure> {
    if is_model(&args.run) && !args.checkpoint {
        return SavedModel::load(&args.run).map_err(|error| failed(&error));
    }
    let of = UseArgs {
        file: args.run.clone(),
        data: Vec::new(),
        csv: Vec::new(),
        images: None,
        output: None,
        checkpoint: args.checkpoint,
    };
    used(&of)?.saved(context)
}
