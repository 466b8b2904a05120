//! Layers of safetensors files: ours, whose names have `/`, and PyTorch's, whose names have `.`.

use std::cmp::Ordering;
use std::collections::HashMap;

use phalanx_graph::{DType, Shape};
use safetensors::{Dtype, SafeTensors};

use super::weights_file::{Convention, FileLayer, FileLayers, FileTensor};
use super::{problem, shown, torch_recurrent};
use crate::Result;

/// What batch normalization counts and nobody needs.
const COUNTER: &str = "num_batches_tracked";

/// How names begin of what attention of PyTorch stacks: `in_proj_weight`, `in_proj_bias`.
const STACKED: &str = "in_proj_";

/// What it stacks, in this order, in equal parts of the rows.
const PARTS: [&str; 3] = ["query", "key", "value"];

/// The note in our files of the order of layers: a list of their paths as JSON.
pub(crate) const ORDER: &str = "layers";

/// The layers of a file: as its note says, or else ordered by their names with numbers by value.
pub(super) fn layers(
    file: &str,
    tensors: &SafeTensors<'_>,
    note: Option<&str>,
) -> Result<FileLayers> {
    let all = by_names(file, tensors)?;
    let order = note.and_then(|note| serde_json::from_str::<Vec<String>>(note).ok());
    let FileLayers { all, ordered, .. } = in_order(all, &order.unwrap_or_default());
    // A module tells the order of its own layers.
    let all = all.into_iter().flat_map(torch_recurrent::layers_of);
    Ok(FileLayers {
        all: all.collect(),
        ordered,
        named: true,
        by_keras: false,
    })
}

/// Layers in an order that names each of them once; a note of another program says nothing.
fn in_order(mut all: Vec<FileLayer>, order: &[String]) -> FileLayers {
    let places = order.iter().enumerate();
    let places: HashMap<&str, usize> = places.map(|(i, path)| (path.as_str(), i)).collect();
    let noted = all.iter().all(|layer| places.contains_key(&*layer.path));
    if noted && places.len() == all.len() && order.len() == all.len() {
        all.sort_by_key(|layer| places[&*layer.path]);
        return FileLayers {
            all,
            ordered: true,
            named: true,
            by_keras: false,
        };
    }
    // Names in an alphabet's order say nothing about the model's.
    let ordered = are_numbered(&all);
    FileLayers {
        all,
        ordered,
        named: true,
        by_keras: false,
    }
}

fn by_names(file: &str, tensors: &SafeTensors<'_>) -> Result<Vec<FileLayer>> {
    let mut names = tensors.names();
    names.sort_by(|a, b| natural(a, b));
    let mut layers: Vec<FileLayer> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for name in names {
        let convention = if name.contains('/') {
            Convention::Ours
        } else {
            Convention::Torch
        };
        let (path, field) = name.rsplit_once(['/', '.']).unwrap_or(("", name));
        if field == COUNTER {
            continue;
        }
        let shape = shape(file, tensors, name)?;
        let rows = shape
            .dims
            .first()
            .filter(|_| convention == Convention::Torch);
        let is_stacked = rows.is_some_and(|rows| rows.is_multiple_of(PARTS.len()));
        if let (true, Some(field)) = (is_stacked, field.strip_prefix(STACKED)) {
            projections(&mut layers, path, name, field, &shape);
            continue;
        }
        let stored = FileTensor {
            name: name.to_owned(),
            field: field.to_owned(),
            shape,
            address: 0,
            part: None,
            second: None,
        };
        // Not always beside each other: `conv/bias`, `conv_bn/beta`, `conv/kernel`.
        let place = *places.entry(path).or_insert_with(|| {
            layers.push(FileLayer {
                path: path.to_owned(),
                place: String::new(),
                tensors: Vec::new(),
                convention,
            });
            layers.len() - 1
        });
        layers[place].tensors.push(stored);
    }
    Ok(layers)
}

/// What attention of PyTorch stacks, as layers of their own below it: `self_attn.query`, `.key`, `.value`.
fn projections(layers: &mut Vec<FileLayer>, path: &str, name: &str, field: &str, shape: &Shape) {
    let mut dims = shape.dims.clone();
    dims[0] /= PARTS.len();
    for (number, part) in PARTS.into_iter().enumerate() {
        let path = format!("{path}.{part}");
        let stored = FileTensor {
            name: name.to_owned(),
            field: field.to_owned(),
            shape: Shape::new(shape.dtype, dims.clone()),
            address: 0,
            part: Some((number, PARTS.len())),
            second: None,
        };
        // Its bias comes right before, if there is one: a few layers back.
        let mut last = layers.iter_mut().rev().take(PARTS.len());
        match last.find(|layer| layer.path == path) {
            Some(layer) => layer.tensors.push(stored),
            None => layers.push(FileLayer {
                path,
                place: String::new(),
                tensors: vec![stored],
                convention: Convention::Torch,
            }),
        }
    }
}

/// Whether names tell the order of layers, which are sorted: where two differ first, they have numbers, as `0`, `2` or
/// `net.0.1`, `net.1`.
fn are_numbered(layers: &[FileLayer]) -> bool {
    let parts = |layer: &'_ FileLayer| -> Vec<String> {
        let parts = layer.path.split(['/', '.']);
        parts.map(str::to_owned).collect()
    };
    layers.windows(2).all(|pair| {
        let (a, b) = (parts(&pair[0]), parts(&pair[1]));
        let mut differing = a.iter().zip(&b).filter(|(a, b)| a != b);
        let is_number = |part: &String| part.parse::<u64>().is_ok();
        differing
            .next()
            .is_some_and(|(a, b)| is_number(a) && is_number(b))
    })
}

fn shape(file: &str, tensors: &SafeTensors<'_>, name: &str) -> Result<Shape> {
    let place = || format!("tensor `{}`", shown(name));
    let view = tensors.tensor(name);
    let view = view.map_err(|error| problem(file, &place(), error.to_string()))?;
    let dtype = match view.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::F64 => DType::F64,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U32 => DType::U32,
        Dtype::U8 => DType::U8,
        // Masks among a module's buffers; no variable is of it.
        Dtype::BOOL => DType::Bool,
        other => {
            let message = format!("elements of type {other}; convert them to f32");
            return Err(problem(file, &place(), message));
        }
    };
    Ok(Shape::new(dtype, view.shape().to_vec()))
}

/// Orders names part by part, numbers by value and before words: `layers.2` before `layers.10`, and that before `layers.1a`.
fn natural(a: &str, b: &str) -> Ordering {
    let separators = ['/', '.', '_'];
    let mut right = b.split(separators);
    for part in a.split(separators) {
        let Some(other) = right.next() else {
            return Ordering::Greater;
        };
        // A number is `Ok`, which comes before `Err`.
        let by_value = |part: &str| part.parse::<u64>().map_err(|_| part.to_owned());
        let order = by_value(part).cmp(&by_value(other));
        if order != Ordering::Equal {
            return order;
        }
    }
    match right.next() {
        Some(_) => Ordering::Less,
        None => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn only_numbers_tell_an_order() {
        let numbered = |paths: &[&str]| {
            let layer = |path: &&str| FileLayer {
                path: (*path).to_owned(),
                place: String::new(),
                tensors: Vec::new(),
                convention: Convention::Torch,
            };
            are_numbered(&paths.iter().map(layer).collect::<Vec<_>>())
        };
        assert!(numbered(&["0", "2", "10"]));
        assert!(numbered(&["net.0.1", "net.1", "net.2"]));
        assert!(numbered(&["alone"]));
        assert!(!numbered(&["l.0.bn", "l.0.conv"]));
        assert!(!numbered(&["dense", "dense_1"]));
        assert!(!numbered(&["l.0", "l.0.inner"]));
        assert!(!numbered(&["0.bn", "0.conv", "1.bn", "1.conv"]));
    }

    #[test]
    fn what_is_not_stacked_is_a_tensor_like_others() {
        let data = [0; 4 * 6];
        let views = [("a", vec![4]), ("b", vec![]), ("c", vec![3, 2])].map(|(path, dims)| {
            let len = 4 * dims.iter().product::<usize>();
            let view = TensorView::new(Dtype::F32, dims, &data[..len]).unwrap();
            (format!("{path}.in_proj_weight"), view)
        });
        let file = safetensors::serialize(views, None).unwrap();
        let file = SafeTensors::deserialize(&file).unwrap();
        let found = layers("w", &file, None).unwrap().all;
        let found = found.iter().map(|layer| {
            let tensor = &layer.tensors[0];
            (&*layer.path, &*tensor.field, &tensor.shape.dims[..])
        });
        let expected: [(&str, &str, &[usize]); 5] = [
            ("a", "in_proj_weight", &[4]),
            ("b", "in_proj_weight", &[]),
            ("c.query", "weight", &[1, 2]),
            ("c.key", "weight", &[1, 2]),
            ("c.value", "weight", &[1, 2]),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn numbers_in_names_count() {
        let mut names = ["l.10.weight", "l.9.weight", "l.9.bias", "l", "a.2.b"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(
            names,
            ["a.2.b", "l", "l.9.bias", "l.9.weight", "l.10.weight"]
        );
        // In any order: by value 9 is before 10, by letters `10`, `1a`, `9`.
        for mut names in [
            ["c.9", "c.10", "c.1a"],
            ["c.1a", "c.9", "c.10"],
            ["c.10", "c.1a", "c.9"],
        ] {
            names.sort_by(|a, b| natural(a, b));
            assert_eq!(names, ["c.9", "c.10", "c.1a"]);
        }
    }
}
