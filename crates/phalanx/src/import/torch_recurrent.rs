//! Recurrent modules of PyTorch: one has the tensors of several layers in both directions, `lstm.weight_hh_l1_reverse`.

use std::collections::BTreeMap;

use phalanx_graph::Shape;

use super::weights_file::{Convention, FileLayer, FileTensor};

/// What a tensor is, before the number of its layer.
const PARTS: [&str; 5] = [
    "weight_ih",
    "weight_hh",
    "bias_ih",
    "bias_hh",
    OUTPUT_PROJECTION,
];

/// The kernel of `proj_size`, which no layer of ours has.
pub(super) const OUTPUT_PROJECTION: &str = "weight_hr";

/// The layers of a recurrent module, one for each of its layers and directions; any other layer as it is.
///
/// Those of the module `lstm` are called `lstm`, `lstm_1`, `lstm_2` .., as we call layers of one kind; with two directions
/// `lstm/forward`, `lstm/backward`, `lstm_1/forward` .. Fields lose the number and the direction.
pub(super) fn layers_of(module: FileLayer) -> Vec<FileLayer> {
    let is_recurrent = |stored: &FileTensor| part_of(&stored.field).is_some();
    if module.convention != Convention::Torch || !module.tensors.iter().any(is_recurrent) {
        return vec![module];
    }
    let mut own = Vec::new();
    let mut parts: BTreeMap<(usize, bool), Vec<FileTensor>> = BTreeMap::new();
    for mut stored in module.tensors {
        let Some((part, place)) = part_of(&stored.field) else {
            own.push(stored);
            continue;
        };
        stored.field = part.to_owned();
        parts.entry(place).or_default().push(stored);
    }
    let has_directions = parts.keys().any(|(_, is_backward)| *is_backward);
    let layer = |path: String, tensors| FileLayer {
        path,
        place: String::new(),
        tensors,
        convention: Convention::Torch,
    };
    let path = |(number, is_backward): (usize, bool)| {
        let direction = match (has_directions, is_backward) {
            (false, _) => "",
            (true, false) => ".forward",
            (true, true) => ".backward",
        };
        match number {
            0 => format!("{}{direction}", module.path),
            _ => format!("{}_{number}{direction}", module.path),
        }
    };
    let parts = parts.into_iter();
    let mut layers: Vec<FileLayer> = parts
        .map(|(place, tensors)| layer(path(place), with_joined_biases(tensors)))
        .collect();
    if !own.is_empty() {
        layers.push(layer(module.path.clone(), own));
    }
    layers
}

/// What a tensor is, and of which layer, and whether it is of the direction backwards. Cells have no number.
fn part_of(field: &str) -> Option<(&'static str, (usize, bool))> {
    let parts = PARTS.into_iter();
    let (part, rest) = parts
        .filter_map(|part| Some((part, field.strip_prefix(part)?)))
        .next()?;
    if rest.is_empty() {
        return Some((part, (0, false)));
    }
    let number = rest.strip_prefix("_l")?;
    let (number, is_backward) = match number.strip_suffix("_reverse") {
        Some(number) => (number, true),
        None => (number, false),
    };
    Some((part, (number.parse().ok()?, is_backward)))
}

/// Both biases as the rows of one tensor, where there are two.
fn with_joined_biases(mut tensors: Vec<FileTensor>) -> Vec<FileTensor> {
    let place = |field| tensors.iter().position(|stored| stored.field == field);
    let (Some(input), Some(recurrent)) = (place("bias_ih"), place("bias_hh")) else {
        return tensors;
    };
    if tensors[input].shape != tensors[recurrent].shape {
        return tensors;
    }
    let second = tensors[recurrent].name.clone();
    let joined = &mut tensors[input];
    joined.shape = Shape::new(joined.shape.dtype, [&[2], &joined.shape.dims[..]].concat());
    joined.second = Some(second);
    tensors.remove(recurrent);
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(fields: &[&str]) -> FileLayer {
        let stored = |field: &&str| FileTensor {
            name: format!("rnn.{field}"),
            field: (*field).to_owned(),
            shape: Shape::f32([4]),
            address: 0,
            part: None,
            second: None,
        };
        FileLayer {
            path: "rnn".into(),
            place: String::new(),
            tensors: fields.iter().map(stored).collect(),
            convention: Convention::Torch,
        }
    }

    #[test]
    fn a_module_has_a_layer_for_each_number_and_direction() {
        let parted = |fields: &[&str]| -> Vec<(String, Vec<String>)> {
            let layers = layers_of(module(fields)).into_iter();
            let fields = |layer: FileLayer| layer.tensors.into_iter().map(|stored| stored.field);
            layers
                .map(|layer| (layer.path.clone(), fields(layer).collect()))
                .collect()
        };
        let of = |path: &str, fields: &[&str]| -> (String, Vec<String>) {
            let fields = fields.iter().map(|field| (*field).to_owned());
            (path.to_owned(), fields.collect())
        };
        assert_eq!(
            parted(&["bias_hh_l0", "bias_ih_l0", "weight_hh_l10", "weight_hh_l2"]),
            [
                of("rnn", &["bias_ih"]),
                of("rnn_2", &["weight_hh"]),
                of("rnn_10", &["weight_hh"])
            ]
        );
        assert_eq!(
            parted(&[
                "weight_ih_l1",
                "weight_ih_l0_reverse",
                "scale",
                "weight_hr_l0"
            ]),
            [
                of("rnn.forward", &["weight_hr"]),
                of("rnn.backward", &["weight_ih"]),
                of("rnn_1.forward", &["weight_ih"]),
                of("rnn", &["scale"]),
            ]
        );
        // A cell, and what only begins as such names do.
        assert_eq!(parted(&["weight_ih"]), [of("rnn", &["weight_ih"])]);
        let others = ["weight_ih_l", "weight_ih_lx", "weight_ihl0", "weight"];
        assert_eq!(parted(&others), [of("rnn", &others)]);
    }
}
