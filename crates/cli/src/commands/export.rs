//! `phalanx export`: a trained model for other programs.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use phalanx::fit::{OnnxOptions, ServingOptions};
use phalanx::nn::Policy;
use phalanx::replicas::DeviceChoice;
use phalanx::saved::SavedModel;
use phalanx_pjrt::Platform;
use serde_json::json;

use super::Context;
use super::session::failed;
use super::trained_model::used;
use crate::args::{ExportArgs, UseArgs};
use crate::config::{Data, Missing};
use crate::failure::{Exit, Failure};
use crate::files::{FILE, check_target};
use crate::output;
use crate::record::Record;
use crate::run_folder::is_model;

/// What a file is by its ending.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ExportFormat {
    /// Keras' archive.
    Keras,
    /// The weights alone, for Keras.
    KerasWeights,
    /// The weights alone.
    Weights,
    /// A program, beside its weights.
    StableHlo,
    /// A program with its weights.
    Onnx,
}

impl ExportFormat {
    const ENDINGS: [(&'static str, Self); 5] = [
        (".keras", Self::Keras),
        (".weights.h5", Self::KerasWeights),
        (".safetensors", Self::Weights),
        (".mlir", Self::StableHlo),
        (".onnx", Self::Onnx),
    ];

    fn of(file: &Path) -> Option<Self> {
        let name = file.file_name()?.to_string_lossy();
        let mut formats = Self::ENDINGS.iter();
        let found = formats.find(|(ending, _)| name.ends_with(ending));
        found.map(|(_, format)| *format)
    }

    /// Whether the file is a model, not weights alone.
    const fn answers(self) -> bool {
        matches!(self, Self::Keras | Self::StableHlo | Self::Onnx)
    }

    /// How the file is used.
    fn hint(self, file: &Path) -> String {
        let shown = file.display();
        match self {
            Self::Keras => format!("; in Keras: keras.models.load_model(\"{shown}\")"),
            Self::KerasWeights => {
                format!("; in Keras, with the same layers: model.load_weights(\"{shown}\")")
            }
            Self::Weights => String::new(),
            Self::StableHlo => format!("; {shown}.json says what {shown} takes and gives"),
            Self::Onnx => {
                format!("; in Python: onnxruntime.InferenceSession(\"{shown}\").run(None, {{..}})")
            }
        }
    }
}

/// Writes a trained model, its prediction as a program, or its weights alone.
pub(crate) fn run(context: &mut Context, args: &ExportArgs) -> Result<(), Failure> {
    let format = format(args)?;
    let saved = saved(context, args, format)?;
    let written = match format {
        ExportFormat::Keras => saved.save_keras(&args.file),
        ExportFormat::KerasWeights | ExportFormat::Weights => saved.save_weights(&args.file),
        ExportFormat::StableHlo => saved.save_stablehlo(&args.file, &serving(context, args)?),
        ExportFormat::Onnx => saved.save_onnx(&args.file, &onnx(args)),
    };
    written.map_err(|error| failed(&error))?;
    if format.answers() && !context.global.quiet {
        tell_of_preparation(args);
    }
    let weights = match format {
        ExportFormat::StableHlo => weights_beside(&args.file),
        _ => args.file.clone(),
    };
    let (variables, weights) = (saved.values().len(), weights.display());
    let hint = format.hint(&args.file);
    let json = json!({"exported": args.file, "variables": variables});
    context.print(
        &format!("{variables} variables are in {weights}{hint}"),
        &json,
    )
}

/// Says what the training did to its data before the model, which the file does not do.
fn tell_of_preparation(args: &ExportArgs) {
    let Ok(used) = used(&of(args)) else {
        return;
    };
    let keys: Vec<String> = preparation(&used.config.data)
        .iter()
        .map(|key| format!("`{key}`"))
        .collect();
    if !keys.is_empty() {
        let (file, keys) = (args.file.display(), keys.join(", "));
        output::notice(format!(
            "note: {file} has the model alone: who calls it does to the data what the training file says ({keys}); docs/serving.md says how, or which layers do it"
        ));
    }
}

/// The keys by which examples are prepared before the model sees them.
fn preparation(data: &Data) -> Vec<&'static str> {
    let of_images = || vec![("image_size", true), ("scale", true)];
    let keys = match data {
        Data::Csv(csv) => {
            let fills = matches!(csv.missing, Missing::Mean | Missing::Number(_));
            vec![
                ("divide_by", csv.divide_by != 1.0),
                ("standardize", csv.standardize),
                ("missing", fills),
                ("one_hot", !csv.one_hot.value.is_empty()),
                ("text", !csv.text.is_empty()),
                ("category", !csv.category.is_empty()),
                ("window", csv.window.is_some()),
            ]
        }
        Data::Images(_) => of_images(),
        Data::Examples(examples) if examples.images.is_some() => of_images(),
        Data::Examples(examples) => vec![("divide_by", examples.divide_by != 1.0)],
    };
    let given = keys.into_iter().filter(|(_, given)| *given);
    given.map(|(key, _)| key).collect()
}

fn format(args: &ExportArgs) -> Result<ExportFormat, Failure> {
    let file = args.file.display();
    let Some(format) = ExportFormat::of(&args.file) else {
        let message = format!(
            "`{file}` says no format by its ending, expected .keras, .weights.h5 (Keras), .mlir (StableHLO), .onnx or .safetensors"
        );
        return Err(Failure::new(Exit::Usage, message).next("name the file so"));
    };
    let is_program = matches!(format, ExportFormat::StableHlo | ExportFormat::Onnx);
    if args.batch_size.is_some() && !is_program {
        let message = format!("--batch-size is of a program, and `{file}` takes any batch");
        return Err(Failure::new(Exit::Usage, message)
            .next("leave it out, or name the file .mlir for StableHLO or .onnx"));
    }
    Ok(format)
}

/// For which calls the program is.
fn serving(context: &Context, args: &ExportArgs) -> Result<ServingOptions, Failure> {
    let devices = context.global.devices.as_ref();
    let default = ServingOptions::default();
    Ok(ServingOptions {
        batch_size: args
            .batch_size
            .map_or(default.batch_size, NonZeroUsize::get),
        precision: precision(args)?,
        platform: devices.map_or(Platform::Cpu, DeviceChoice::platform),
    })
}

/// For which calls the ONNX model is.
fn onnx(args: &ExportArgs) -> OnnxOptions {
    OnnxOptions {
        batch_size: args.batch_size.map(NonZeroUsize::get),
    }
}

/// In which element types the model was trained; f32 for a model that a program saved, which does not say.
fn precision(args: &ExportArgs) -> Result<Policy, Failure> {
    match is_model(&args.run) && Record::read(&args.run)?.is_none() {
        true => Ok(Policy::default()),
        false => Ok(used(&of(args))?.config.precision),
    }
}

/// The model of the folder of a training or of a saved model, or of a training file, where it can be written to the file that is named.
fn saved(
    context: &Context,
    args: &ExportArgs,
    format: ExportFormat,
) -> Result<SavedModel, Failure> {
    let files = written(&args.file, format);
    if is_model(&args.run) && !args.checkpoint {
        let read = [args.run.clone()];
        let checked = files
            .iter()
            .try_for_each(|file| check_target(file, &read, FILE));
        checked?;
        return SavedModel::load(&args.run).map_err(|error| failed(&error));
    }
    let mut used = used(&of(args))?;
    let checked = files
        .iter()
        .try_for_each(|file| used.check_target(file, FILE));
    checked?;
    used.fetch_model(context)?;
    used.saved(context)
}

/// The files that are written.
fn written(file: &Path, format: ExportFormat) -> Vec<PathBuf> {
    let mut files = vec![file.to_owned()];
    if format == ExportFormat::StableHlo {
        let description = format!("{}.json", file.display());
        files.extend([weights_beside(file), description.into()]);
    }
    files
}

/// The file of the weights of a program.
fn weights_beside(file: &Path) -> PathBuf {
    file.with_extension("safetensors")
}

fn of(args: &ExportArgs) -> UseArgs {
    UseArgs {
        file: args.run.clone(),
        data: Vec::new(),
        csv: Vec::new(),
        images: None,
        output: None,
        checkpoint: args.checkpoint,
    }
}
