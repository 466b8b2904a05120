//! Layers of a model as Keras' files have them: which variables each has, and in which group of a file they lie.

use std::collections::HashMap;

use crate::nn::{KerasFile, Model, RECURRENT};

/// Variables of the model that belong together: a layer has them, or a part of one.
pub(crate) struct ModelLayer {
    pub(crate) path: String,
    /// Its classes, numbered, joined by `/`; empty where Keras would have no such layer.
    pub(super) place: String,
    /// The same where Keras has functional models alone in the model, which may be stacks as well.
    pub(super) functional_place: String,
    /// The group of Keras' files that is its own, and the one below it with its variables.
    pub(crate) group: String,
    pub(crate) vars: String,
    /// The number of the layer among all of them, as Keras orders them.
    number: usize,
    /// Its kind, or what it is in attention.
    pub(super) kind: &'static str,
    pub(crate) variables: Vec<usize>,
}

/// The variables of the model by the layer they are in; for a file of Keras in its order of the layers.
pub(crate) fn owners(model: &Model, file: Option<KerasFile>) -> Vec<ModelLayer> {
    let file_or_read = file.unwrap_or(KerasFile::Read);
    let places = places(model, file_or_read, |kind| kind);
    let mut owners: Vec<ModelLayer> = Vec::new();
    for (index, variable) in model.variables().iter().enumerate() {
        let path = variable.name.rsplit_once('/').map_or("", |(path, _)| path);
        match owners.iter_mut().find(|owner| owner.path == path) {
            Some(owner) => owner.variables.push(index),
            None => owners.push(ModelLayer::new(path, index, &places)),
        }
    }
    let functional = self::places(model, file_or_read, functional);
    for owner in &mut owners {
        owner.kind = direction_kind(model, owner).unwrap_or(owner.kind);
        owner.functional_place = place_of(&owner.path, &functional).place;
    }
    if file.is_some() {
        owners.sort_by_key(|owner| owner.number);
    }
    owners
}

/// The kind of one direction of two: by the columns of its kernel for each unit.
fn direction_kind(model: &Model, owner: &ModelLayer) -> Option<&'static str> {
    let variables = owner
        .variables
        .iter()
        .map(|&index| &model.variables()[index]);
    let mut variables = variables.filter(|_| owner.kind.is_empty());
    let recurrent = variables.find(|variable| variable.name.ends_with("/recurrent_kernel"))?;
    let &[units, columns] = &recurrent.shape.dims[..] else {
        return None;
    };
    match columns.checked_div(units)? {
        1 => Some("simple_rnn"),
        3 => Some("gru"),
        4 => Some("lstm"),
        _ => None,
    }
}

impl ModelLayer {
    /// The kernel of the layer inside, which Keras keeps in this one, too, before its own variables.
    pub(crate) fn kept_twice(&self, model: &Model) -> Option<usize> {
        let kernel = format!("{}/layer/kernel", self.path);
        let mut variables = model.variables().iter();
        let found = variables.position(|variable| variable.name == kernel);
        found.filter(|_| self.kind == "spectral_norm")
    }

    /// A layer, or a part of one such as one direction of two, with its first variable.
    fn new(path: &str, variable: usize, places: &HashMap<String, KerasPlace>) -> Self {
        let known = place_of(path, places);
        Self {
            path: path.to_owned(),
            place: known.place,
            functional_place: String::new(),
            vars: if known.has_cell {
                format!("{}/cell/vars", known.group)
            } else {
                format!("{}/vars", known.group)
            },
            group: known.group,
            number: known.number,
            kind: known.kind,
            variables: vec![variable],
        }
    }
}

/// The place of a layer, or of a part of one.
fn place_of(path: &str, places: &HashMap<String, KerasPlace>) -> KerasPlace {
    match (places.get(path), path.rsplit_once('/')) {
        (Some(known), _) => known.clone(),
        (None, Some((layer, part))) => {
            let part = |known: &KerasPlace| known.part(part);
            places.get(layer).map(part).unwrap_or_default()
        }
        (None, None) => KerasPlace::default(),
    }
}

/// A stack of layers as Keras' functional interface builds it.
fn functional(kind: &'static str) -> &'static str {
    match kind {
        "sequential" => "functional",
        other => other,
    }
}

/// Where Keras would keep a layer.
#[derive(Clone, Default)]
struct KerasPlace {
    /// Classes, numbered, joined by `/`.
    place: String,
    /// The same with the lists of layers between them, as groups of a file.
    group: String,
    /// Whether its variables are in a cell, as recurrent layers have them.
    has_cell: bool,
    /// Its number among all layers.
    number: usize,
    kind: &'static str,
}

impl KerasPlace {
    /// The layer that this one applies.
    fn of_inner(&self, number: usize, kind: &'static str) -> Self {
        Self {
            place: format!("{}/layer", self.place),
            group: format!("{}/layer", self.group),
            has_cell: has_cell(kind),
            number,
            kind,
        }
    }

    /// A part of the layer.
    fn part(&self, part: &str) -> Self {
        let of_cells = format!("cell/cells/{part}");
        let (place, group, kind) = match (self.kind, part) {
            ("multi_head_attention", "query") => ("query_dense", "query_dense", "to_heads"),
            ("multi_head_attention", "key") => ("key_dense", "key_dense", "to_heads"),
            ("multi_head_attention", "value") => ("value_dense", "value_dense", "to_heads"),
            ("multi_head_attention", "attention_output") => {
                ("output_dense", "output_dense", "from_heads")
            }
            // Parts that Keras hides are read without the `_`.
            ("group_query_attention", "query") => ("query_dense", "_query_dense", "to_heads"),
            ("group_query_attention", "key") => ("key_dense", "_key_dense", "to_heads"),
            ("group_query_attention", "value") => ("value_dense", "_value_dense", "to_heads"),
            ("group_query_attention", "attention_output") => {
                ("output_dense", "_output_dense", "from_heads")
            }
            ("bidirectional", "forward") => (part, "forward_layer", ""),
            ("bidirectional", "backward") => (part, "backward_layer", ""),
            ("rnn", _) => (part, &*of_cells, ""),
            _ => (part, part, ""),
        };
        Self {
            place: format!("{}/{place}", self.place),
            group: format!("{}/{group}", self.group),
            has_cell: self.kind == "bidirectional",
            number: self.number,
            kind,
        }
    }
}

/// Path and group in a file of Keras of every layer and of every model in the model, in any order.
pub(crate) fn groups(model: &Model, file: KerasFile) -> impl Iterator<Item = (String, String)> {
    let places = places(model, file, |kind| kind).into_iter();
    places.map(|(path, place)| (path, place.group))
}

/// By path of a layer: where Keras would keep it, if its kind is what `kind_of` makes of ours.
fn places(
    model: &Model,
    file: KerasFile,
    kind_of: fn(&'static str) -> &'static str,
) -> HashMap<String, KerasPlace> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut places: HashMap<String, KerasPlace> = HashMap::new();
    // A model comes before its layers.
    for (number, (path, kind)) in model.layer_kinds(file).into_iter().enumerate() {
        let kind = kind_of(kind);
        let above = path
            .rsplit_once('/')
            .and_then(|(above, _)| places.get(above));
        if let Some(above) = above.filter(|above| WRAPPERS.contains(&above.kind)) {
            let place = above.of_inner(number, kind);
            places.insert(path, place);
            continue;
        }
        let (place, group) = match above {
            Some(above) => (format!("{}/", above.place), format!("{}/", above.group)),
            None => Default::default(),
        };
        let class = class(kind);
        let count = counts.entry(format!("{place}{class}")).or_default();
        let numbered = match *count {
            0 => class.to_owned(),
            count => format!("{class}_{count}"),
        };
        *count += 1;
        let place = KerasPlace {
            place: format!("{place}{numbered}"),
            group: format!("{group}layers/{numbered}"),
            has_cell: has_cell(kind),
            number,
            kind,
        };
        places.insert(path, place);
    }
    places
}

/// Whether Keras has the variables of such a layer in a cell.
fn has_cell(kind: &str) -> bool {
    kind == "rnn" || RECURRENT.contains(&kind)
}

/// The kinds of layers that apply another.
const WRAPPERS: [&str; 2] = ["spectral_norm", "time_distributed"];

/// The name of Keras' class for a kind of ours, in its files.
pub(super) fn class(kind: &str) -> &str {
    match kind {
        "batch_norm" => "batch_normalization",
        "layer_norm" => "layer_normalization",
        "group_norm" => "group_normalization",
        "group_query_attention" => "grouped_query_attention",
        "rms_norm" => "rms_normalization",
        "p_relu" => "p_re_lu",
        "spectral_norm" => "spectral_normalization",
        "scaled_add" => "custom_scale_layer",
        other => other,
    }
}
