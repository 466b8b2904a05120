//! Files of weights in any supported format.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::Path;

use phalanx_graph::{HostTensor, Shape};
use safetensors::SafeTensors;
use zip::ZipArchive;

use super::hdf5::{Hdf5, SIGNATURE};
use super::{keras_layers, problem, safetensors_layers, shown};
use crate::{Error, Result};

/// A layer of a file: its tensors under one name.
pub(super) struct FileLayer {
    /// Names of the layers it is in and its own, joined by `/`.
    pub(super) path: String,
    /// Where Keras keeps it: classes, numbered, joined by `/`; empty in other files.
    pub(super) place: String,
    pub(super) tensors: Vec<FileTensor>,
    pub(super) convention: Convention,
}

/// The layers of a file.
pub(super) struct FileLayers {
    pub(super) all: Vec<FileLayer>,
    /// Whether they are in the order of the saved model, not sorted by name.
    pub(super) ordered: bool,
    /// Whether each notes its name, which is not made of its class and a number.
    pub(super) named: bool,
    /// Whether Keras wrote them, which goes by the order of the layers, whatever their names are.
    pub(super) by_keras: bool,
}

/// Whose conventions the names and layouts of a layer follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Convention {
    /// Tensors in the order of the variables, in our layouts.
    Keras,
    /// Our names and layouts.
    Ours,
    /// PyTorch's names and layouts.
    Torch,
}

/// A tensor of a file, without its elements.
pub(super) struct FileTensor {
    pub(super) name: String,
    /// The last part of the name: `kernel`, `weight`; `0` in Keras' files.
    pub(super) field: String,
    pub(super) shape: Shape,
    /// The address of its header in an HDF5 file.
    pub(super) address: u64,
    /// Where it is one of several tensors stacked under one name: which of how many.
    pub(super) part: Option<(usize, usize)>,
    /// The tensor whose elements follow, where the two are rows of one.
    pub(super) second: Option<String>,
}

impl FileTensor {
    /// The names in the file of what it is made of.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        [Some(self.name.clone()), self.second.clone()]
            .into_iter()
            .flatten()
    }
}

/// Larger files are refused.
const MAX_BYTES: u64 = 1 << 40;
const ARCHIVED: &str = "model.weights.h5";

/// The contents of a file.
pub(super) fn contents(path: &Path) -> Result<Vec<u8>> {
    let io = |action| {
        move |source| Error::Io {
            path: path.to_owned(),
            action,
            source,
        }
    };
    // Before it is opened: to open a pipe is to wait for its other end.
    let found = fs::metadata(path).map_err(io("open"))?;
    if !found.is_file() {
        let shown = path.display();
        return Err(Error::user(format!(
            "`{shown}` is no plain file; give a file of weights: .weights.h5, .keras, .h5 or .safetensors"
        )));
    }
    let mut file = File::open(path).map_err(io("open"))?;
    let name = path.display().to_string();
    let mut bytes = reserved(&name, found.len())?;
    file.read_to_end(&mut bytes).map_err(io("read"))?;
    Ok(bytes)
}

/// An empty vector with room for `len` bytes.
fn reserved(name: &str, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let taken = usize::try_from(len.min(MAX_BYTES)).map(|len| bytes.try_reserve_exact(len));
    match taken {
        Ok(Ok(())) if len <= MAX_BYTES => Ok(bytes),
        _ => {
            let message =
                format!("{len} bytes are more than this machine can give; load it on a larger one");
            Err(problem(name, "size", message))
        }
    }
}

/// The weights in a `.keras` archive; the contents of any other file as they are.
///
/// A few kilobytes can unpack to gigabytes, so that the weights may only be a few times as long as the archive, or as
/// the values of the model, of which there are `model` bytes; an optimizer's come on top of the layers'.
pub(super) fn unpacked<'a>(name: &str, bytes: &'a [u8], model: u64) -> Result<Cow<'a, [u8]>> {
    if !bytes.starts_with(b"PK") {
        return Ok(Cow::Borrowed(bytes));
    }
    let broken = |error: &dyn std::fmt::Display| {
        let message = format!("expected a .keras archive with it: {error}; save the model again");
        problem(name, ARCHIVED, message)
    };
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| broken(&error))?;
    let member = archive.by_name(ARCHIVED).map_err(|error| broken(&error))?;
    let size = member.size();
    let archive = (bytes.len() as u64).saturating_mul(4);
    let most = archive.max(model.saturating_mul(8).saturating_add(16 << 20));
    if size > most {
        let message = format!(
            "{size} bytes when it is unpacked, expected at most {most} for this model; check that it is the archive of this model"
        );
        return Err(problem(name, ARCHIVED, message));
    }
    let mut weights = reserved(name, size)?;
    // One byte more: the checksum is compared where the member ends.
    let read = member.take(size + 1).read_to_end(&mut weights);
    match read.map_err(|error| broken(&error))? as u64 {
        read if read == size => Ok(Cow::Owned(weights)),
        read => Err(broken(&format!("{read} bytes where {size} are noted"))),
    }
}

/// A file of weights that can be read from.
pub(super) struct WeightsFile<'a> {
    name: &'a str,
    format: WeightsFormat<'a>,
}

enum WeightsFormat<'a> {
    Hdf5(Hdf5<'a>),
    /// With our note of the order of its layers.
    Safetensors(SafeTensors<'a>, Option<String>),
}

impl<'a> WeightsFile<'a> {
    pub(super) fn new(name: &'a str, bytes: &'a [u8]) -> Result<Self> {
        let format = if bytes.starts_with(SIGNATURE) {
            let file = Hdf5::open(bytes).map_err(|message| problem(name, "HDF5", message))?;
            WeightsFormat::Hdf5(file)
        } else {
            let broken = |error| {
                let message = format!(
                    "neither HDF5, nor a .keras archive, nor safetensors ({error}); PyTorch's .pt and .pth files are \
                     to be written again by `safetensors.torch.save_file`"
                );
                problem(name, "start", message)
            };
            let (_, header) = SafeTensors::read_metadata(bytes).map_err(broken)?;
            let file = SafeTensors::deserialize(bytes).map_err(broken)?;
            let notes = header.metadata().as_ref();
            let order = notes.and_then(|notes| notes.get(safetensors_layers::ORDER).cloned());
            WeightsFormat::Safetensors(file, order)
        };
        Ok(Self { name, format })
    }

    /// The layers, in the order of the file as far as it has one.
    pub(super) fn layers(&self) -> Result<FileLayers> {
        match &self.format {
            WeightsFormat::Hdf5(file) => {
                let layers = keras_layers::layers(file);
                layers.map_err(|message| problem(self.name, "HDF5", message))
            }
            WeightsFormat::Safetensors(file, order) => {
                safetensors_layers::layers(self.name, file, order.as_deref())
            }
        }
    }

    /// The elements of a tensor.
    pub(super) fn read(&self, stored: &FileTensor) -> Result<HostTensor> {
        let place = || format!("tensor `{}`", shown(&stored.name));
        let read = match &self.format {
            WeightsFormat::Hdf5(file) => keras_layers::read(file, stored),
            WeightsFormat::Safetensors(file, _) => {
                let found = file.tensor(&stored.name);
                let all = found.map(|view| view.data());
                let part = all.map(|all| match stored.part {
                    Some((part, of)) => &all[all.len() / of * part..][..all.len() / of],
                    None => all,
                });
                let second = stored.second.as_ref().map(|name| file.tensor(name));
                let second = second.transpose();
                let bytes = part.and_then(|part| {
                    let second = second?.map_or(&[][..], |view| view.data());
                    Ok([part, second].concat())
                });
                bytes.map_err(|error| error.to_string())
            }
        };
        let bytes = read.map_err(|message| problem(self.name, &place(), message))?;
        HostTensor::from_bytes(stored.shape.clone(), &bytes)
            .ok_or_else(|| problem(self.name, &place(), "its size does not fit its shape"))
    }
}
