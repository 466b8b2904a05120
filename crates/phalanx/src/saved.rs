//! Models on disk: a folder of `model.json`, the architecture, and `weights.safetensors`, the variables by their names.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use phalanx_graph::{DType, HostTensor, Shape};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::nn::{Model, Registry};
use crate::{Error, Result};

const ARCHITECTURE: &str = "model.json";
const WEIGHTS: &str = "weights.safetensors";
/// Most bytes of an architecture.
const MOST_ARCHITECTURE: u64 = 16 << 20;
/// Most bytes of a weights file beside the values: names, shapes and padding.
const MOST_HEADER: u64 = 64 << 20;

/// A model and the values of its variables.
#[derive(Clone, Debug)]
pub struct SavedModel {
    /// The architecture.
    pub model: Model,
    /// Name and value of each variable, in the order of [`Model::variables`].
    pub values: Vec<(String, HostTensor)>,
}

impl SavedModel {
    /// Writes the folder, in place of one that holds a saved model.
    ///
    /// The files are complete before the folder has its name: no reader sees half a model.
    ///
    /// # Errors
    /// [`Error::User`] when something that is no saved model has the name; [`Error::Io`] when the file system refuses.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        check_replaceable(folder)?;
        let beside = |end: &str| beside(folder, end);
        let (made, old) = (beside("new"), beside("old"));
        let written = self.write(&made).and_then(|()| {
            if folder.exists() {
                fs::rename(folder, &old).map_err(|error| refused("replace", folder, error))?;
            }
            fs::rename(&made, folder).map_err(|error| refused("make", folder, error))
        });
        // What is left over is of no use, and harms nobody where it cannot be removed.
        let _ = fs::remove_dir_all(if written.is_ok() { &old } else { &made });
        written
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let architecture = format!("{:#}\n", self.model.config());
        let views = self
            .values
            .iter()
            .map(|(name, value)| Ok((name, view(name, value)?)));
        let views: Vec<_> = views.collect::<Result<_>>()?;
        let weights = safetensors::serialize(views, None)
            .map_err(|error| Error::Bug(format!("weights cannot be written: {error}")))?;
        fs::create_dir_all(folder).map_err(|error| refused("make", folder, error))?;
        for (name, bytes) in [(ARCHITECTURE, architecture.as_bytes()), (WEIGHTS, &weights)] {
            let path = folder.join(name);
            let written = File::create(&path).and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_all()
            });
            written.map_err(|error| refused("write", &path, error))?;
        }
        Ok(())
    }

    /// Reads a folder that [`save`](Self::save) wrote, of layers of this library.
    ///
    /// # Errors
    /// [`Error::Io`] when a file cannot be read; [`Error::Data`] when it is cut, foreign, or does not fit the other.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(folder, &Registry::standard())
    }

    /// [`load`](Self::load) with layers of your own.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_with(folder: impl AsRef<Path>, registry: &Registry) -> Result<Self> {
        let path = folder.as_ref().join(ARCHITECTURE);
        let model = architecture(&path, &read(&path, MOST_ARCHITECTURE)?, registry)?;
        let path = folder.as_ref().join(WEIGHTS);
        let bytes = read(&path, most_weights(&model))?;
        let values = weights(&path, &bytes, &model)?;
        Ok(Self { model, values })
    }

    /// [`load`](Self::load) from the bytes of the two files.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn from_bytes(model: &[u8], values: &[u8]) -> Result<Self> {
        let model = architecture(Path::new(ARCHITECTURE), model, &Registry::standard())?;
        let values = weights(Path::new(WEIGHTS), values, &model)?;
        Ok(Self { model, values })
    }
}

/// A name next to the folder's that no other process uses.
fn beside(folder: &Path, end: &str) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    folder.with_file_name(format!(".{name}.{}.{end}", std::process::id()))
}

fn check_replaceable(folder: &Path) -> Result<()> {
    if folder.file_name().is_none() {
        let shown = folder.display();
        return Err(Error::user(format!(
            "`{shown}` has no name to save a model under; give the path of a folder"
        )));
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(refused("replace", folder, error)),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name != ARCHITECTURE && name != WEIGHTS {
            let (shown, name) = (folder.display(), name.to_string_lossy().into_owned());
            return Err(Error::user(format!(
                "{shown} holds {name:?}, so it is no saved model and is not replaced; choose another folder"
            )));
        }
    }
    Ok(())
}

fn refused(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        action,
        source,
    }
}

/// The bytes of a file of at most so many.
fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    read.map_err(|error| refused("read", path, error))?;
    if bytes.len() as u64 > most {
        let message = format!(
            "found more than {most} bytes, the most that this model's file has; check that it is the right one"
        );
        return Err(foreign(path, "the end", message));
    }
    Ok(bytes)
}

fn foreign(path: &Path, place: impl Into<String>, message: impl Into<String>) -> Error {
    Error::Data {
        source_name: path.display().to_string(),
        place: place.into(),
        message: message.into(),
    }
}

fn architecture(path: &Path, bytes: &[u8], registry: &Registry) -> Result<Model> {
    let json = serde_json::from_slice(bytes).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        foreign(
            path,
            place,
            "found no complete json; copy the model's folder again, or save it again",
        )
    })?;
    Model::from_config_with(&json, registry)
        .map_err(|error| foreign(path, "architecture", error.to_string()))
}

fn most_weights(model: &Model) -> u64 {
    let bytes = model
        .variables()
        .iter()
        .map(|variable| variable.shape.byte_len() as u64);
    bytes.fold(MOST_HEADER, u64::saturating_add)
}

fn weights(path: &Path, bytes: &[u8], model: &Model) -> Result<Vec<(String, HostTensor)>> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| {
        let message = format!("found no complete safetensors file ({error}); copy the model's folder again, or save it again");
        foreign(path, "header", message)
    })?;
    let variables = model.variables();
    let known: HashSet<&str> = variables
        .iter()
        .map(|variable| variable.name.as_str())
        .collect();
    if let Some(name) = file.names().into_iter().find(|name| !known.contains(*name)) {
        let message = "the model has no such variable; use the weights saved with it";
        return Err(foreign(path, format!("tensor {:?}", short(name)), message));
    }
    variables
        .iter()
        .map(|variable| {
            let place = || format!("variable {}", variable.name);
            let found = file.tensor(&variable.name).map_err(|_| {
                foreign(
                    path,
                    place(),
                    "it is not in the file; use the weights saved with the model",
                )
            })?;
            let value = value(&found, &variable.shape).ok_or_else(|| {
                let message = format!(
                    "found {:?} {:?}, expected {}; use the weights saved with the model",
                    found.dtype(),
                    found.shape(),
                    variable.shape
                );
                foreign(path, place(), message)
            })?;
            Ok((variable.name.clone(), value))
        })
        .collect()
}

fn value(found: &TensorView<'_>, shape: &Shape) -> Option<HostTensor> {
    let fits = dtype(shape.dtype) == found.dtype() && found.shape() == shape.dims;
    HostTensor::from_bytes(shape.clone(), found.data()).filter(|_| fits)
}

fn view<'v>(name: &str, value: &'v HostTensor) -> Result<TensorView<'v>> {
    TensorView::new(
        dtype(value.shape().dtype),
        value.dims().to_vec(),
        value.bytes(),
    )
    .map_err(|error| Error::Bug(format!("variable {name} cannot be written: {error}")))
}

/// A name of a foreign file, for a message.
fn short(name: &str) -> String {
    name.chars().take(100).collect()
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::F64 => Dtype::F64,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U32 => Dtype::U32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{BatchNorm, Conv2d, Dense, Flatten, Sequential};

    fn sample() -> SavedModel {
        let stack = Sequential::new([4, 4, 1])
            .add(Conv2d::new(2, 3))
            .add(BatchNorm::new())
            .add(Flatten)
            .add(Dense::new(3));
        let model = stack.build().unwrap();
        let names = model
            .variables()
            .iter()
            .map(|variable| variable.name.clone());
        let values = names.zip(model.init(7).unwrap()).collect();
        SavedModel { model, values }
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("phalanx-saved-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_saved_is_loaded_and_a_second_save_replaces_the_first() {
        let folder = Folder::new("round");
        let path = folder.0.join("m.phx");
        let mut saved = sample();
        saved.save(&path).unwrap();
        saved.values[1].1 = HostTensor::new([2], &[0.5f32, -0.5]);
        saved.save(&path).unwrap();
        let loaded = SavedModel::load(&path).unwrap();
        assert_eq!(loaded.model.config(), saved.model.config());
        assert_eq!(loaded.values, saved.values);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_is_no_model_is_not_replaced() {
        let folder = Folder::new("foreign");
        fs::write(folder.0.join("thesis.txt"), "years of work").unwrap();
        let message = sample().save(&folder.0).unwrap_err().to_string();
        assert!(
            message.contains("thesis.txt") && message.contains("choose another folder"),
            "{message}"
        );
        assert!(folder.0.join("thesis.txt").exists());
        assert!(matches!(SavedModel::load(&folder.0), Err(Error::Io { .. })));
    }

    #[test]
    fn cut_and_changed_files_are_refused_and_never_panic() {
        let folder = Folder::new("cut");
        let path = folder.0.join("m");
        sample().save(&path).unwrap();
        let model = fs::read(path.join(ARCHITECTURE)).unwrap();
        let values = fs::read(path.join(WEIGHTS)).unwrap();
        assert!(SavedModel::from_bytes(&model, &values).is_ok());
        for end in 0..values.len() {
            assert!(
                SavedModel::from_bytes(&model, &values[..end]).is_err(),
                "{end}"
            );
        }
        for end in 0..model.trim_ascii_end().len() {
            let message = SavedModel::from_bytes(&model[..end], &values)
                .unwrap_err()
                .to_string();
            assert!(
                message.starts_with("model.json: ") && message.contains("; "),
                "{message}"
            );
        }
        for at in 0..model.len() {
            let mut changed = model.clone();
            changed[at] ^= 4;
            let _ = SavedModel::from_bytes(&changed, &values);
        }
        for at in 0..values.len().min(900) {
            for bit in 0..8 {
                let mut changed = values.clone();
                changed[at] ^= 1 << bit;
                let _ = SavedModel::from_bytes(&model, &changed);
            }
        }
    }

    #[test]
    fn weights_of_another_model_are_refused_by_name() {
        let folder = Folder::new("other");
        let (one, other) = (folder.0.join("one"), folder.0.join("other"));
        sample().save(&one).unwrap();
        let cases = [
            (
                Sequential::new([4, 4, 1]).add(Conv2d::new(2, 3)),
                "no such variable",
            ),
            (
                Sequential::new([4, 4, 1])
                    .add(Conv2d::new(5, 3))
                    .add(BatchNorm::new())
                    .add(Flatten)
                    .add(Dense::new(3)),
                "variable conv2d/kernel: found F32 [3, 3, 1, 2]",
            ),
            (
                Sequential::new([4, 4, 1])
                    .add(Conv2d::new(2, 3))
                    .add(BatchNorm::new())
                    .add(Flatten)
                    .add(Dense::new(3))
                    .add(Dense::new(3)),
                "variable dense_1/kernel: it is not in the file",
            ),
        ];
        for (stack, part) in cases {
            let model = stack.build().unwrap();
            fs::create_dir_all(&other).unwrap();
            fs::write(other.join(ARCHITECTURE), model.config().to_string()).unwrap();
            fs::copy(one.join(WEIGHTS), other.join(WEIGHTS)).unwrap();
            let message = SavedModel::load(&other).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
