//! Layers of HDF5 files as Keras writes them.
//!
//! Keras 3 (`.weights.h5`, `.keras`) writes a group `layers/<class>` per layer, with the classes numbered, the variables in
//! `vars/0`, `vars/1`, .. and the layer's name in an attribute of `vars`. Older versions (`.h5`) write a group per layer under
//! its name, with an attribute `weight_names` that lists its variables in order; where the model is saved too, these are under
//! `model_weights`.

use std::collections::HashMap;

use phalanx_graph::Shape;

use super::hdf5::{Hdf5, Object, ReadResult};
use super::weights_file::{Convention, FileLayer, FileLayers, FileTensor};

/// The attribute of files that this program writes: its version.
pub(crate) const WRITER: &str = "phalanx";
/// Deeper nesting of groups is treated as damage.
const MAX_DEPTH: usize = 64;
/// More tensors in one file are treated as damage.
const MAX_TENSORS: usize = 1 << 20;
/// The states of random generators, which are not weights.
const GENERATOR: &str = "seed_generator";
/// The parts of a layer in both directions.
const DIRECTIONS: [&str; 2] = ["forward", "backward"];
/// The layer in another.
const WRAPPED: &str = "layer";
/// How names of recurrent layers' cells begin.
const CELLS: [&str; 4] = ["lstm_cell", "gru_cell", "simple_rnn_cell", "conv_lstm_cell"];

/// The layers with variables.
pub(super) fn layers(file: &Hdf5<'_>) -> ReadResult<FileLayers> {
    let (all, named) = with_variables(file)?;
    Ok(FileLayers {
        all,
        ordered: true,
        named,
        by_keras: file.texts(&file.root()?, WRITER)?.is_none(),
    })
}

/// And whether each notes its name.
fn with_variables(file: &Hdf5<'_>) -> ReadResult<(Vec<FileLayer>, bool)> {
    let root = file.root()?;
    if let Some(names) = names(file, &root, "layer_names")? {
        return Ok((legacy(file, &root, names)?, true));
    }
    for (name, address) in file.children(&root)? {
        if name == "model_weights" {
            let group = file.object(address)?;
            let names = names(file, &group, "layer_names")?;
            let names = names.ok_or("`model_weights` has no attribute `layer_names`")?;
            return Ok((legacy(file, &group, names)?, true));
        }
    }
    let mut walk = Walk {
        file,
        layers: Vec::new(),
        tensors: 0,
        named: true,
    };
    walk.group(&root, "", "", 0)?;
    Ok((walk.layers, walk.named))
}

/// The elements of a tensor.
pub(super) fn read(file: &Hdf5<'_>, stored: &FileTensor) -> ReadResult<Vec<u8>> {
    let array = file.array(&file.object(stored.address)?)?;
    file.read(&array.ok_or("it is no array")?)
}

/// The way through a file of Keras 3.
struct Walk<'a, 'f> {
    file: &'a Hdf5<'f>,
    layers: Vec<FileLayer>,
    tensors: usize,
    /// Whether all layers so far have a name.
    named: bool,
}

impl Walk<'_, '_> {
    /// `place` is the path of classes, `path` the path of names.
    fn group(
        &mut self,
        group: &Object<'_>,
        place: &str,
        path: &str,
        depth: usize,
    ) -> ReadResult<()> {
        if depth > MAX_DEPTH {
            return Err(format!("groups are nested more than {MAX_DEPTH} deep"));
        }
        self.file.charge(place.len() + path.len())?;
        let children = self.file.children(group)?;
        let mut path = path.to_owned();
        let vars = children.iter().find(|(name, _)| name == "vars");
        let is_layer = vars.is_some();
        if let Some((_, address)) = vars {
            let vars = self.file.object(*address)?;
            let is_part = last(place) == WRAPPED || DIRECTIONS.contains(&last(place));
            // The model's own name is not part of the names of its layers.
            if depth > 0 {
                let name = self.file.texts(&vars, "name")?.filter(|_| !is_part);
                let name = name.and_then(|texts| texts.into_iter().next());
                self.named &= name.is_some() || is_part;
                path = joined(&path, name.as_deref().unwrap_or_else(|| last(place)));
            }
            self.layer(&vars, place, &path)?;
        }
        for (name, address) in children {
            let state = name == "vars" || name.starts_with(GENERATOR);
            if state || (depth == 0 && name == "optimizer") {
                continue;
            }
            let child = self.file.object(address)?;
            match name.as_str() {
                // The list of layers is no layer.
                "layers" => self.group(&child, place, &path, depth + 1)?,
                // A recurrent layer keeps its variables in its cell.
                "cell" if is_layer => self.cell(&child, place, &path, depth + 1)?,
                name => self.group(&child, &joined(place, part(name)), &path, depth + 1)?,
            }
        }
        Ok(())
    }

    fn cell(&mut self, cell: &Object<'_>, place: &str, path: &str, depth: usize) -> ReadResult<()> {
        for (name, address) in self.file.children(cell)? {
            let object = self.file.object(address)?;
            match name.as_str() {
                "vars" => self.layer(&object, place, path)?,
                // Of several cells each has its own.
                "cells" => self.group(&object, place, path, depth + 1)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn layer(&mut self, vars: &Object<'_>, place: &str, path: &str) -> ReadResult<()> {
        let mut tensors = Vec::new();
        for (name, address) in self.file.children(vars)? {
            let full = format!("{place}/vars/{name}");
            tensors.extend(stored(self.file, full, name, address)?);
        }
        // By number; by name, 10 comes before 2.
        tensors.sort_by_key(|stored| stored.field.parse::<u64>().unwrap_or(u64::MAX));
        self.tensors += tensors.len();
        if tensors.len() > 1 && is_spectral(place) {
            // The kernel of the layer inside, which is there, too.
            tensors.remove(0);
        }
        if self.tensors > MAX_TENSORS {
            return Err(format!("more than {MAX_TENSORS} tensors"));
        }
        if !tensors.is_empty() {
            self.layers.push(FileLayer {
                path: path.to_owned(),
                place: place.to_owned(),
                tensors,
                convention: Convention::Keras,
            });
        }
        Ok(())
    }
}

fn stored(
    file: &Hdf5<'_>,
    name: String,
    field: String,
    address: u64,
) -> ReadResult<Option<FileTensor>> {
    let object = file.object(address)?;
    file.charge(name.len())?;
    let array = file
        .array(&object)
        .map_err(|message| format!("`{name}`: {message}"))?;
    Ok(array.map(|array| FileTensor {
        name,
        field,
        shape: Shape::new(array.dtype, array.dims),
        address,
        part: None,
        second: None,
    }))
}

/// Whether a layer, by its class and number, normalizes the kernel of another.
fn is_spectral(place: &str) -> bool {
    let class = last(place).trim_end_matches(|c: char| c == '_' || c.is_ascii_digit());
    class == "spectral_normalization"
}

/// The layers of a file of before Keras 3; models in it are one group, with the names of their layers in the tensors'.
fn legacy(file: &Hdf5<'_>, root: &Object<'_>, order: Vec<String>) -> ReadResult<Vec<FileLayer>> {
    let groups: HashMap<String, u64> = file.children(root)?.into_iter().collect();
    let mut layers: Vec<FileLayer> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for layer in order {
        // A name of several parts is one of groups in each other.
        let address = match layer.split_once('/') {
            Some((first, rest)) => match groups.get(first) {
                Some(&above) => descend(file, above, rest)?,
                None => None,
            },
            None => groups.get(&layer).copied(),
        };
        let Some(address) = address else {
            return Err(format!("there is no group `{layer}` of `layer_names`"));
        };
        let group = file.object(address)?;
        let names = names(file, &group, "weight_names")?.unwrap_or_default();
        let spectral: Vec<String> = names.iter().filter_map(|name| normalizing(name)).collect();
        for name in names {
            let Some(address) = descend(file, address, &name)? else {
                return Err(format!("there is no array `{name}` in group `{layer}`"));
            };
            let (owner, variable) = name.rsplit_once('/').unwrap_or((&layer, &name));
            let above = owner.rsplit_once('/').map_or("", |(above, _)| above);
            let outer = [owner, above].map(|path| spectral.iter().find(|outer| *outer == path));
            let path = match outer[0].or(outer[1]) {
                Some(outer) if normalizing(&name).is_none() => {
                    joined(&path_of(&layer, outer), WRAPPED)
                }
                _ => path_of(&layer, owner),
            };
            let variable = variable.split(':').next().unwrap_or(variable).to_owned();
            let stored = stored(file, name.clone(), variable, address)?;
            file.charge(path.len())?;
            let place = *places.entry(path.clone()).or_insert(layers.len());
            if place == layers.len() {
                layers.push(FileLayer {
                    path,
                    place: String::new(),
                    tensors: Vec::new(),
                    convention: Convention::Keras,
                });
            }
            layers[place].tensors.extend(stored);
        }
    }
    Ok(layers)
}

/// The layer that normalizes the kernel of another, of which this is the variable of its own.
fn normalizing(variable: &str) -> Option<String> {
    let (layer, own) = variable.rsplit_once('/')?;
    (own.split(':').next() == Some("vector_u")).then(|| layer.to_owned())
}

/// The path of the layer that has variables with such a prefix in the group of a layer or of a model.
fn path_of(group: &str, prefix: &str) -> String {
    if prefix == group {
        return group.replace('/', "_");
    }
    let (above, own) = prefix.rsplit_once('/').unwrap_or(("", prefix));
    let is_cell = CELLS.iter().any(|cell| own.starts_with(cell));
    if own == group || !is_cell || above.is_empty() {
        return below(group, own);
    }
    let (above, own) = above.rsplit_once('/').unwrap_or(("", above));
    let is_of = |direction: &&&str| {
        own.strip_prefix(**direction)
            .is_some_and(|rest| rest.starts_with('_'))
    };
    match DIRECTIONS.iter().find(is_of) {
        Some(direction) if !above.is_empty() => joined(&below(group, last(above)), direction),
        _ => below(group, own),
    }
}

fn below(group: &str, layer: &str) -> String {
    match group == layer {
        true => group.to_owned(),
        false => joined(group, layer),
    }
}

/// Our name of a part of a layer that Keras calls by its field.
fn part(field: &str) -> &str {
    match field {
        "forward_layer" => DIRECTIONS[0],
        "backward_layer" => DIRECTIONS[1],
        // Keras 2 hides some parts, and Keras 3 those of `GroupQueryAttention`.
        other => other.strip_prefix('_').unwrap_or(other),
    }
}

/// The address of what lies at a path below a group.
fn descend(file: &Hdf5<'_>, group: u64, path: &str) -> ReadResult<Option<u64>> {
    let mut address = group;
    for part in path.split('/').take(MAX_DEPTH) {
        let children = file.children(&file.object(address)?)?;
        match children.into_iter().find(|(name, _)| name == part) {
            Some((_, child)) => address = child,
            None => return Ok(None),
        }
    }
    Ok(Some(address))
}

/// A list of names, which Keras cuts into `<attribute>0`, `<attribute>1`, .. when it is long.
fn names(file: &Hdf5<'_>, object: &Object<'_>, attribute: &str) -> ReadResult<Option<Vec<String>>> {
    if let Some(whole) = file.texts(object, attribute)? {
        return Ok(Some(whole));
    }
    let mut all = None::<Vec<String>>;
    for part in 0..MAX_TENSORS {
        let Some(texts) = file.texts(object, &format!("{attribute}{part}"))? else {
            break;
        };
        all.get_or_insert_default().extend(texts);
    }
    Ok(all)
}

fn joined(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}/{name}"),
    }
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
