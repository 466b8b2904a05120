//! Files of safetensors: `weights.safetensors` has every variable under its name.
//!
//! The crate of the format reads and checks the header. What it does not check is here: names that are there twice,
//! sizes before memory is taken, and that the tensors are the model's variables.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};

use phalanx_graph::{AlignedBytes, DType, HostTensor, Shape};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::config::suggest;
use crate::nn::Variable;
use crate::storage::{document, problem};
use crate::{Error, Result, import};

/// Bytes of the length of the header, at the start of the file.
const LENGTH_BYTES: u64 = 8;
/// Of a file of which nothing else is known; a million tensors fit.
const LONGEST_HEADER: u64 = 100 << 20;
const SAVE_AGAIN: &str = "copy the file again, or save the model again";
const OTHER_MODEL: &str =
    "save the model again, or take the `model.json` that belongs to this file";

/// Tensors under their names, ready to be written.
pub(crate) struct Tensors<'a> {
    header: Vec<u8>,
    /// In the order of the file.
    values: Vec<&'a HostTensor>,
}

impl<'a> Tensors<'a> {
    /// Of names that differ.
    pub(crate) fn new(named: impl IntoIterator<Item = (&'a str, &'a HostTensor)>) -> Result<Self> {
        let bug = |error: &dyn std::fmt::Display| Error::Bug(format!("header of tensors: {error}"));
        let mut named: Vec<(&str, &HostTensor)> = named.into_iter().collect();
        let layers = order_of(named.iter().map(|(name, _)| *name))?;
        // Large elements first, as the format asks: each value then lies at a multiple of its element's size.
        named.sort_by_key(|(_, value)| Reverse(foreign(value.dtype())));
        let mut start = 0;
        let tensors = named.iter().map(|(name, value)| {
            let end = start + value.bytes().len();
            let info = TensorInfo {
                dtype: foreign(value.dtype()),
                shape: value.dims().to_vec(),
                data_offsets: (start, end),
            };
            start = end;
            ((*name).to_owned(), info)
        });
        let notes = [(import::ORDER.to_owned(), layers)];
        let metadata = Metadata::new(Some(notes.into_iter().collect()), tensors.collect())
            .map_err(|error| bug(&error))?;
        let mut text = serde_json::to_vec(&metadata).map_err(|error| bug(&error))?;
        text.resize(text.len().next_multiple_of(8), b' ');
        let length = text.len() as u64;
        Ok(Self {
            header: [&length.to_le_bytes()[..], &text].concat(),
            values: named.into_iter().map(|(_, value)| value).collect(),
        })
    }

    /// The bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        let values = self.values.iter().map(|value| value.bytes().len());
        (self.header.len() + values.sum::<usize>()) as u64
    }

    /// Writes the file.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.header)?;
        let mut values = self.values.iter();
        values.try_for_each(|value| out.write_all(value.bytes()))
    }
}

/// The layers in the order of the model, as a note: neither offsets nor names tell it.
fn order_of<'a>(names: impl Iterator<Item = &'a str>) -> Result<String> {
    let mut layers: Vec<&str> = Vec::new();
    let mut known = HashSet::new();
    for name in names {
        let layer = name.rsplit_once('/');
        let layer = layer.map_or("", |(layer, _)| layer);
        if known.insert(layer) {
            layers.push(layer);
        }
    }
    let bug = |error| Error::Bug(format!("order of layers: {error}"));
    serde_json::to_string(&layers).map_err(bug)
}

/// Values for the variables, from a file of `len` bytes; `name` is the file in errors.
///
/// No more memory is taken than the file has bytes and the variables ask for.
pub(super) fn read(
    name: &str,
    source: &mut dyn Read,
    len: u64,
    variables: &[Variable],
) -> Result<Vec<HostTensor>> {
    let file = File { name, len };
    let metadata = file.header(source, "the model's variables", longest_header(variables))?;
    file.check_names(&metadata, variables)?;
    file.check_memory(&metadata)?;
    let indices = variables.iter().enumerate();
    let indices: HashMap<&str, usize> = indices
        .map(|(index, variable)| (&*variable.name, index))
        .collect();
    let mut values: Vec<Option<HostTensor>> = vec![None; variables.len()];
    // In the order of the file, which is read once from start to end.
    for tensor in metadata.offset_keys() {
        if let Some(&index) = indices.get(&*tensor) {
            values[index] = Some(file.value(source, &metadata, &variables[index])?);
        }
    }
    let values: Option<Vec<HostTensor>> = values.into_iter().collect();
    values.ok_or_else(|| Error::Bug("a variable has no value".into()))
}

/// All tensors of a file of `len` bytes, in its order; `name` is the file in errors.
///
/// No more memory is taken than the file has bytes.
pub(crate) fn read_all(
    name: &str,
    source: &mut dyn Read,
    len: u64,
) -> Result<Vec<(String, HostTensor)>> {
    let file = File { name, len };
    let metadata = file.header(source, "tensors of a checkpoint", LONGEST_HEADER)?;
    file.check_memory(&metadata)?;
    let mut tensors = Vec::new();
    for tensor in metadata.offset_keys() {
        let value = file.tensor(source, &metadata, &tensor)?;
        tensors.push((tensor, value));
    }
    Ok(tensors)
}

/// A file being read.
struct File<'a> {
    name: &'a str,
    len: u64,
}

impl File<'_> {
    fn header(&self, source: &mut dyn Read, whose: &str, most: u64) -> Result<Metadata> {
        let mut length = [0; LENGTH_BYTES as usize];
        if self.len < LENGTH_BYTES {
            return Err(self.truncated(LENGTH_BYTES));
        }
        self.fill(source, &mut length)?;
        let length = u64::from_le_bytes(length);
        if length > most {
            let message = format!(
                "{length} bytes, and {whose} need at most {most}; check that it is a safetensors file, and the one of this model"
            );
            return Err(problem(self.name, "header", message));
        }
        if length > self.len - LENGTH_BYTES {
            return Err(self.truncated(length.saturating_add(LENGTH_BYTES)));
        }
        // Not more than the file has, and a few megabytes for any model that fits in memory.
        let mut text = vec![0; length as usize];
        self.fill(source, &mut text)?;
        let metadata = self.parse(&text)?;
        let whole = (LENGTH_BYTES + length).saturating_add(metadata.data_len() as u64);
        match whole.checked_sub(self.len) {
            Some(0) => Ok(metadata),
            Some(_) => Err(self.truncated(whole)),
            None => {
                let more = self.len - whole;
                let message =
                    format!("{more} bytes after the last tensor, expected none; {SAVE_AGAIN}");
                Err(problem(self.name, "end", message))
            }
        }
    }

    fn parse(&self, text: &[u8]) -> Result<Metadata> {
        let broken = |error: serde_json::Error| {
            let message =
                format!("expected the header of a safetensors file: {error}; {SAVE_AGAIN}");
            problem(self.name, "header", message)
        };
        document::check(text, usize::MAX).map_err(broken)?;
        serde_json::from_slice(text).map_err(broken)
    }

    fn check_names(&self, metadata: &Metadata, variables: &[Variable]) -> Result<()> {
        let is_missing = |variable: &&Variable| metadata.info(&variable.name).is_none();
        let absent: Vec<&str> = variables
            .iter()
            .filter(is_missing)
            .map(|variable| variable.name.as_str())
            .collect();
        let known: HashSet<&str> = variables.iter().map(|variable| &*variable.name).collect();
        let mut tensors = metadata.offset_keys();
        tensors.sort();
        let extra: Vec<&str> = tensors
            .iter()
            .map(String::as_str)
            .filter(|tensor| !known.contains(tensor))
            .collect();
        let found = match (absent.first(), extra.first()) {
            (None, None) => return Ok(()),
            (Some(_), None) => format!("no value for {} of the model", listed(&absent)),
            (None, Some(_)) => format!("the model has no variable for {}", listed(&extra)),
            (Some(_), Some(first)) => format!(
                "no value for {} of the model, and no variable in it for {}; `{}`: {}",
                listed(&absent),
                listed(&extra),
                shortened(first),
                suggest(first, absent.iter().copied().take(5)),
            ),
        };
        let message = format!("{found}; {OTHER_MODEL}");
        Err(problem(self.name, "tensors", message))
    }

    /// Takes the memory once and gives it back: a refusal is an error here, and the end of the process later.
    fn check_memory(&self, metadata: &Metadata) -> Result<()> {
        let bytes = metadata.data_len();
        if Vec::<u8>::new().try_reserve_exact(bytes).is_ok() {
            return Ok(());
        }
        let message = format!(
            "{bytes} bytes of values are more than this machine can give; load it on a larger one"
        );
        Err(problem(self.name, "tensors", message))
    }

    fn value(
        &self,
        source: &mut dyn Read,
        metadata: &Metadata,
        variable: &Variable,
    ) -> Result<HostTensor> {
        let place = || format!("tensor `{}`", variable.name);
        let Some(info) = metadata.info(&variable.name) else {
            return Err(Error::Bug(format!("{} was checked", place())));
        };
        let shape = &variable.shape;
        if info.dtype != foreign(shape.dtype) || info.shape != shape.dims {
            let message = format!(
                "expected {} as in the model, got {}; {OTHER_MODEL}",
                written(foreign(shape.dtype), &shape.dims),
                written(info.dtype, &info.shape)
            );
            return Err(problem(self.name, &place(), message));
        }
        self.filled(source, &variable.name, shape)
    }

    /// The next tensor, of whatever shape the file says.
    fn tensor(&self, source: &mut dyn Read, metadata: &Metadata, name: &str) -> Result<HostTensor> {
        let place = format!("tensor `{}`", shortened(name));
        let Some(info) = metadata.info(name) else {
            return Err(Error::Bug(format!("{place} was listed")));
        };
        let Some(dtype) = ours(info.dtype) else {
            let message = format!("elements of type {}; {SAVE_AGAIN}", info.dtype);
            return Err(problem(self.name, &place, message));
        };
        self.filled(source, name, &Shape::new(dtype, info.shape.clone()))
    }

    fn filled(&self, source: &mut dyn Read, name: &str, shape: &Shape) -> Result<HostTensor> {
        let mut bytes = AlignedBytes::zeroed(shape.byte_len());
        self.fill(source, bytes.as_mut_slice())?;
        let odd = bytes.as_ref().iter().find(|&&byte| byte > 1);
        if let (DType::Bool, Some(byte)) = (shape.dtype, odd) {
            let place = format!("tensor `{}`", shortened(name));
            let message = format!("expected 0 or 1 for a truth value, got {byte}; {SAVE_AGAIN}");
            return Err(problem(self.name, &place, message));
        }
        Ok(HostTensor::from_aligned(shape.clone(), bytes))
    }

    fn fill(&self, source: &mut dyn Read, bytes: &mut [u8]) -> Result<()> {
        source
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    let message = format!(
                        "it became shorter than {} bytes while it was read; {SAVE_AGAIN}",
                        self.len
                    );
                    problem(self.name, "end", message)
                }
                _ => Error::Io {
                    path: self.name.into(),
                    action: "read",
                    source: error,
                },
            })
    }

    fn truncated(&self, expected: u64) -> Error {
        let got = self.len;
        let message =
            format!("the file ends too early: expected {expected} bytes, got {got}; {SAVE_AGAIN}");
        problem(self.name, "end", message)
    }
}

/// Bytes that a header of these variables can take, with every letter escaped, the order of layers, and some for notes
/// of other programs.
fn longest_header(variables: &[Variable]) -> u64 {
    const NOTES: u64 = 1 << 20;
    const FIXED: u64 = 256;
    const NUMBER: u64 = 24;
    const ESCAPED: u64 = 6;
    let longest = |variable: &Variable| {
        FIXED + 2 * ESCAPED * variable.name.len() as u64 + NUMBER * variable.shape.rank() as u64
    };
    variables.iter().map(longest).sum::<u64>() + NOTES
}

/// The first few names, and how many more there are.
fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("`{}`", shortened(name)))
        .collect();
    if names.len() > SHOWN {
        text.push(format!("{} more", names.len() - SHOWN));
    }
    text.join(", ")
}

fn shortened(name: &str) -> String {
    const LONGEST: usize = 60;
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}..", &name[..end]),
        None => name.to_owned(),
    }
}

fn written(dtype: Dtype, dims: &[usize]) -> String {
    const SHOWN: usize = 16;
    let mut text: Vec<String> = dims.iter().take(SHOWN).map(usize::to_string).collect();
    if dims.len() > SHOWN {
        text.push("..".to_owned());
    }
    format!("{dtype}[{}]", text.join(","))
}

const fn foreign(dtype: DType) -> Dtype {
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

const fn ours(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::BF16 => DType::Bf16,
        Dtype::F16 => DType::F16,
        Dtype::F64 => DType::F64,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U32 => DType::U32,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}
