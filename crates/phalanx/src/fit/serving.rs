//! A model as a program for other systems to serve: StableHLO text beside its weights, or an ONNX model.

use std::fs;
use std::path::{Path, PathBuf};

use phalanx_graph::{HostTensor, Lowering, Platform, Program, Shape};
use serde_json::{Value, json};

use super::compile::Compile;
use super::setup::Setup;
use super::step_program::{BatchShape, StepBuilder};
use crate::nn::{Model, Policy};
use crate::onnx::{self, onnx};
use crate::replicas::Reduction;
use crate::saved::{MODEL_DIR, SavedModel};
use crate::storage::{atomic_dir, remove_file};
use crate::{Error, Result};

/// The field `format` of the description.
const FORMAT: &str = "phalanx stablehlo";
/// The field `version` of it, which grows when readers of the old version could not read the new one.
const VERSION: u64 = 1;
/// The ending of a program.
const ENDING: &str = "mlir";
/// The ending of an ONNX model.
const ONNX_ENDING: &str = "onnx";
/// Bytes of weights that are in the file of an ONNX model itself; more go beside it.
const ONNX_LIMIT: usize = 1 << 30;

/// For which calls [`SavedModel::save_stablehlo`] writes a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingOptions {
    /// Examples of a call; 1 by default.
    pub batch_size: usize,
    /// In which element types layers compute: what the model was compiled with, f32 by default.
    pub precision: Policy,
    /// The kind of device for which the program is written, the CPU by default. Others compute the same, maybe slower.
    pub platform: Platform,
}

impl Default for ServingOptions {
    fn default() -> Self {
        Self {
            batch_size: 1,
            precision: Policy::default(),
            platform: Platform::Cpu,
        }
    }
}

/// For which calls [`SavedModel::save_onnx`] writes a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnnxOptions {
    /// Examples of a call; any number where it is not given, as by default.
    pub batch_size: Option<usize>,
}

impl SavedModel {
    /// Writes the prediction of a batch for other systems to serve: to `digits.mlir` as StableHLO text, which XLA compiles as it is,
    /// the weights to `digits.safetensors`, and to `digits.mlir.json` name, element type and dims of each argument and result.
    ///
    /// The function `main` takes the variables in the order of [`Model::variables`](crate::nn::Model::variables), then the inputs, each
    /// `[batch_size, ..]`, and gives the outputs of the model, which are what [`Trainer::predict`](super::Trainer::predict) gives. All of it is
    /// StableHLO and CHLO (`erf`), with no kernels of this library. Dims of inputs that are open have the size that the model shows, and
    /// [`with_inputs`](Self::with_inputs) gives them another. Keras' `model.export` writes TensorFlow's SavedModel instead.
    ///
    /// # Errors
    /// When the name does not end in `.mlir`, the batch has no example, or a layer of your own calls a kernel that other systems do not have:
    /// nothing is written then, nor where weights of this name are there that are no export's. When a file cannot be written, such as for lack of
    /// space: no program is there then.
    pub fn save_stablehlo(&self, path: impl AsRef<Path>, options: &ServingOptions) -> Result<()> {
        let path = path.as_ref();
        let [weights, description] = beside(path)?;
        let program = self.prediction(options.batch_size, options.precision)?;
        let description_text = self.description(&program, path, &weights)?;
        let text = program.to_stablehlo(&Lowering::new(options.platform, self.model().name()));
        // Where this is interrupted, weights are those of an export, and no older program is beside them.
        write(&description, &[description_text.as_bytes()])?;
        remove_file(path)?;
        self.save_weights(&weights)?;
        write(path, &[text.as_bytes()])
    }

    /// Writes the prediction to an ONNX model (opset 18) with its weights, which onnxruntime and others run with batches of any size.
    ///
    /// Inputs, outputs and weights have the model's names, the first dim of inputs and outputs is the open dim `batch`; other open dims have the
    /// size that the model shows, and [`with_inputs`](Self::with_inputs) gives them another. All is computed in f32, whatever precision the
    /// model was trained with, and the outputs are what [`Trainer::predict`](super::Trainer::predict) gives in it. More than 1 GiB of weights are in a file beside it,
    /// `digits.onnx.HASH.data`, whose name the model has; a later export with other weights writes one of another name, then the model, and
    /// deletes the old one. Keras' `model.export(path, format="onnx")` does this by tf2onnx or torch.
    ///
    /// # Errors
    /// When the name does not end in `.onnx`, the model has variables of 16 bits, or a layer has an op that ONNX does not have or that is
    /// something else for each batch, which is named, with what to do. When a file cannot be written, such as for lack of space.
    pub fn save_onnx(&self, path: impl AsRef<Path>, options: &OnnxOptions) -> Result<()> {
        self.write_onnx(path.as_ref(), options, ONNX_LIMIT)
    }

    /// With more than `limit` bytes of weights in a file beside the model.
    fn write_onnx(&self, path: &Path, options: &OnnxOptions, limit: usize) -> Result<()> {
        check_onnx_path(path)?;
        let batches = options.batch_size.map_or(onnx::BATCHES, |rows| [rows; 2]);
        let of = |rows| self.prediction(rows, Policy::Float32);
        let [first, second] = [of(batches[0])?, of(batches[1])?];
        let programs = [&first, &second];
        let file = onnx(programs, batches, self.values(), &file_name(path), limit)?;
        let beside = path.with_file_name(&file.beside_name);
        let was_there = beside.exists();
        let older = weights_of(path)?;
        if !file.beside.is_empty() {
            let parts: Vec<&[u8]> = file.beside.iter().map(HostTensor::bytes).collect();
            write(&beside, &parts)?;
        }
        if let Err(error) = write(path, &[&file.model]) {
            if !was_there {
                let _ = fs::remove_file(&beside);
            }
            return Err(error);
        }
        let mut older = older.into_iter().filter(|path| *path != beside);
        older.try_for_each(|path| remove_file(&path))
    }

    /// The program of a prediction, whose parameters and outputs have the names that the model has for them.
    fn prediction(&self, rows: usize, precision: Policy) -> Result<Program> {
        let model = self.model();
        if rows == 0 {
            return Err(Error::user(
                "`batch_size` is 0, expected 1 or more: how many examples a call has",
            ));
        }
        let batched = |shape: Shape| Shape::new(shape.dtype, [&[rows], &shape.dims[..]].concat());
        let batch = BatchShape {
            x: model.inputs().map(|(_, shape)| batched(shape)).collect(),
            y: Vec::new(),
            weight: None,
            filled: false,
            sizes: Vec::new(),
        };
        let compile = Compile {
            precision,
            ..Compile::default()
        };
        let setup = Setup::new(model.clone(), compile, 1, Reduction::default())?;
        let program = StepBuilder::new(&setup).predict_step(&batch)?.program;
        let program = program.simplified();
        match program.custom_calls().first() {
            None => Ok(named(program, model)),
            Some(kernel) => Err(Error::User(format!(
                "model `{}` calls the kernel `{kernel}`, which other systems do not have, expected ops alone; compute the same with the methods of `Tensor` in the layer that calls it",
                model.name()
            ))),
        }
    }

    /// What the arguments and results are, for people and programs.
    fn description(&self, program: &Program, path: &Path, weights: &Path) -> Result<String> {
        let count = self.values().len();
        let arguments = program.parameters.iter().enumerate();
        let arguments = arguments.map(|(index, parameter)| {
            let source = if index < count { "weights" } else { "input" };
            let mut argument = described(&parameter.name, &parameter.shape);
            argument["source"] = json!(source);
            argument
        });
        let results = program.outputs.iter();
        let results = results.map(|(name, value)| described(name, program.shape(*value)));
        let description = json!({
            "format": FORMAT,
            "version": VERSION,
            "phalanx": env!("CARGO_PKG_VERSION"),
            "program": file_name(path),
            "function": "main",
            "weights": file_name(weights),
            "arguments": arguments.collect::<Vec<Value>>(),
            "results": results.collect::<Vec<Value>>(),
        });
        let text = serde_json::to_string_pretty(&description);
        text.map(|text| text + "\n")
            .map_err(|error| Error::Bug(format!("description of a program: {error}")))
    }
}

/// The same with the model's names of variables, inputs and outputs.
fn named(mut program: Program, model: &Model) -> Program {
    let variables = model.variables().iter().map(|variable| &*variable.name);
    let names = variables.chain(model.inputs().map(|(name, _)| name));
    for (parameter, name) in program.parameters.iter_mut().zip(names) {
        name.clone_into(&mut parameter.name);
    }
    for ((old, _), name) in program.outputs.iter_mut().zip(model.output_names()) {
        *old = name;
    }
    program
}

fn described(name: &str, shape: &Shape) -> Value {
    json!({"name": name, "dtype": shape.dtype.name(), "dims": shape.dims})
}

/// Where the weights and the description of a program are.
fn beside(path: &Path) -> Result<[PathBuf; 2]> {
    if path.extension().is_none_or(|ending| ending != ENDING) {
        return Err(Error::User(format!(
            "`{}` does not end in .{ENDING}, expected the name of a file of StableHLO, such as `digits.{ENDING}`; weights and description are written beside it",
            path.display()
        )));
    }
    let beside = ["safetensors", "mlir.json"].map(|ending| path.with_extension(ending));
    if let Some(folder) = [path, &beside[0], &beside[1]]
        .into_iter()
        .find(|path| path.is_dir())
    {
        return Err(Error::User(format!(
            "`{}` is a directory, expected a file; give another name than `{}`",
            folder.display(),
            path.display()
        )));
    }
    let [weights, description] = &beside;
    if weights.exists() && !description.exists() {
        return Err(Error::User(format!(
            "`{}` is there and was not exported with a program, expected a free name for the weights beside `{}`; give another name, or move that file away",
            weights.display(),
            path.display()
        )));
    }
    Ok(beside)
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn write(path: &Path, parts: &[&[u8]]) -> Result<()> {
    let len = parts.iter().map(|part| part.len() as u64).sum();
    atomic_dir::replace_file(&MODEL_DIR, path, len, |file| {
        parts.iter().try_for_each(|part| file.write_all(part))
    })
}

/// The weights of an earlier export of this name: those that the model which is there now names, so that a model that was renamed keeps
/// its own.
fn weights_of(model: &Path) -> Result<Vec<PathBuf>> {
    // Where the folder cannot be read, the model cannot be written either.
    let entries = fs::read_dir(model.with_file_name("."));
    let names = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let named: Vec<String> = names
        .filter(|name| onnx::is_beside(&file_name(model), name))
        .collect();
    if named.is_empty() || !model.exists() {
        return Ok(Vec::new());
    }
    let bytes = fs::read(model).map_err(|source| Error::Io {
        path: model.to_path_buf(),
        action: "read",
        source,
    })?;
    let has = |name: &String| {
        bytes
            .windows(name.len())
            .any(|part| part == name.as_bytes())
    };
    let own = named.into_iter().filter(has);
    Ok(own.map(|name| model.with_file_name(name)).collect())
}

fn check_onnx_path(path: &Path) -> Result<()> {
    if path.extension().is_none_or(|ending| ending != ONNX_ENDING) {
        return Err(Error::User(format!(
            "`{}` does not end in .{ONNX_ENDING}, expected the name of an ONNX file, such as `digits.{ONNX_ENDING}`",
            path.display()
        )));
    }
    if path.is_dir() {
        return Err(Error::User(format!(
            "`{}` is a directory, expected a file; give another name",
            path.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use phalanx_testkit::Scratch;

    use super::*;
    use crate::nn::{Dense, Sequential};

    fn saved(value: f64) -> SavedModel {
        let model = Sequential::new([16]).add(Dense::new(32)).build().unwrap();
        let shapes = model.variables().iter().map(|one| one.shape.clone());
        let values = shapes.map(|shape| HostTensor::full(shape, value)).collect();
        SavedModel::new(model, values).unwrap()
    }

    #[test]
    fn weights_beside_an_onnx_model_are_named_by_it_and_no_other_file_is_touched() {
        let folder = Scratch::temporary("onnx-beside");
        let path = folder.join("m.onnx");
        let foreign = [
            "m.onnx.data",
            "m.onnx.notes.data",
            "n.onnx.0123456789abcdef.data",
        ];
        for name in foreign {
            fs::write(folder.join(name), "mine").unwrap();
        }
        let write = |value, limit| {
            let options = OnnxOptions::default();
            saved(value).write_onnx(&path, &options, limit).unwrap();
            let names = folder.names().into_iter();
            let own = names.filter(|name| !name.ends_with(".onnx") && !foreign.contains(&&**name));
            own.collect::<Vec<String>>()
        };
        let mut seen = Vec::new();
        for value in [1.0, 2.0, 2.0] {
            let [name] = write(value, 0).try_into().unwrap();
            let values = [value as f32; 16 * 32].map(f32::to_le_bytes);
            assert!(fs::read(folder.join(&name)).unwrap() == values.concat());
            let model = fs::read(&path).unwrap();
            assert!(
                model
                    .windows(name.len())
                    .any(|part| part == name.as_bytes())
            );
            seen.push(name);
        }
        assert!(seen[0] != seen[1] && seen[1] == seen[2], "{seen:?}");
        // Of a model that has another name since.
        fs::rename(&path, folder.join("n.onnx")).unwrap();
        assert_eq!(write(3.0, 0).len(), 2);
        assert_eq!(write(2.0, 1 << 20), seen[2..]);
        for name in foreign {
            assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), "mine");
        }
    }

    #[test]
    fn where_an_onnx_model_cannot_be_written_its_weights_are_not() {
        let folder = Scratch::temporary("onnx-directory");
        let path = folder.join("m.onnx");
        fs::create_dir(&path).unwrap();
        let written = saved(1.0).write_onnx(&path, &OnnxOptions::default(), 0);
        let error = written.unwrap_err().to_string();
        assert!(error.contains("is a directory, expected a file"), "{error}");
        assert_eq!(folder.names(), ["m.onnx"]);
    }
}
