//! Arguments that name a trained model.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::args::count;

/// What trained model to use, on what.
#[derive(Debug, Clone, clap::Args)]
pub struct UseArgs {
    /// The folder of a training or of its model, or the file that it was trained with
    #[arg(value_name = "RUN")]
    pub file: PathBuf,
    /// CSV files, or a folder of images, to use instead of the test data
    #[arg(value_name = "DATA", conflicts_with_all = ["csv", "images"])]
    pub data: Vec<PathBuf>,
    /// Use the rows of this file instead of the test rows; may be given again
    #[arg(long, value_name = "PATH")]
    pub csv: Vec<PathBuf>,
    /// Use the images of this folder instead of the test images: to evaluate, a folder for each class
    #[arg(long, value_name = "FOLDER", conflicts_with = "csv")]
    pub images: Option<PathBuf>,
    /// The folder that the model was saved in, whatever the file says
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Use the checkpoint of a training that was stopped instead of a model
    #[arg(long)]
    pub checkpoint: bool,
}

/// What to write, and where.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// The folder of a training or of a saved model, or the file that it was trained with
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Where to write: NAME.keras for Keras' `load_model`, NAME.weights.h5 for its `Model.load_weights`, NAME.safetensors, NAME.onnx for
    /// the prediction as onnxruntime runs it, or NAME.mlir for it as StableHLO, beside which NAME.safetensors has the weights and NAME.mlir.json
    /// says what it takes and gives
    pub file: PathBuf,
    /// Use the checkpoint of a training that was stopped instead of a model
    #[arg(long)]
    pub checkpoint: bool,
    /// Examples of a call; 1 for NAME.mlir if it is not given, any number for NAME.onnx
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub batch_size: Option<NonZeroUsize>,
}
