//! `phalanx export`: a trained model for other programs.

use phalanx::saved::SavedModel;
use serde_json::json;

use super::Context;
use super::session::failed;
use super::trained_model::used;
use crate::args::{ExportArgs, UseArgs};
use crate::failure::{Exit, Failure};
use crate::run_folder::is_model;

/// Writes a trained model, or its weights alone.
pub(crate) fn run(context: &mut Context, args: &ExportArgs) -> Result<(), Failure> {
    let file = args.file.display();
    let name = args.file.file_name().map(|name| name.to_string_lossy());
    let ends = |ending: &str| name.as_ref().is_some_and(|name| name.ends_with(ending));
    let hint = if ends(".keras") {
        format!("; in Keras: keras.models.load_model(\"{file}\")")
    } else if ends(".weights.h5") {
        format!("; in Keras, with the same layers: model.load_weights(\"{file}\")")
    } else if ends(".safetensors") {
        String::new()
    } else {
        let message = format!(
            "`{file}` says no format by its ending, expected .keras, .weights.h5 (Keras) or .safetensors"
        );
        return Err(Failure::new(Exit::Usage, message).next("name the file so"));
    };
    let saved = saved(context, args)?;
    let written = match ends(".keras") {
        true => saved.save_keras(&args.file),
        false => saved.save_weights(&args.file),
    };
    written.map_err(|error| failed(&error))?;
    let variables = saved.values().len();
    let json = json!({"exported": args.file, "variables": variables});
    context.print(&format!("{variables} variables are in {file}{hint}"), &json)
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
    let mut used = used(&of)?;
    used.fetch_model(context)?;
    used.saved(context)
}
