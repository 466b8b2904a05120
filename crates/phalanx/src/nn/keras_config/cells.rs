//! Recurrent layers that Keras has of cells: one is the layer of that name, several are a stack of such layers.

use serde_json::{Value, json};

use super::of_keras2::holds;
use super::read_layer::KerasLayer;

/// Keras' cells, and the layers of one.
const CELLS: [(&str, &str); 3] = [
    ("LSTMCell", "LSTM"),
    ("GRUCell", "GRU"),
    ("SimpleRNNCell", "SimpleRNN"),
];

/// The class of layers of any cell.
pub(super) const OF_CELL: &str = "RNN";

/// Whether there is a layer of a cell anywhere in a model.
pub(super) fn has_cells(model: &Value) -> bool {
    holds(model, &|field, value| {
        field == "class_name" && value == OF_CELL
    })
}

/// Puts Keras' layers of its cells in place of its layer of any cell; what has another cell stays as it is.
pub(super) fn name_cells(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(name_cells),
        Value::Array(items) => items.iter_mut().for_each(name_cells),
        _ => return,
    }
    if value["class_name"] == OF_CELL {
        let cell = &value["config"]["cell"];
        let named = match cell["config"]["cells"].as_array().map(Vec::as_slice) {
            _ if cell["class_name"] != "StackedRNNCells" => of_cell(value, cell),
            Some(cells) if is_read(value, cell) => of_cells(value, cells),
            _ => None,
        };
        if let Some(named) = named {
            *value = named;
        }
    }
}

/// Whether a cell is one of Keras' own, not of a user's program, and computes in the type of its layer.
fn is_read(layer: &Value, cell: &Value) -> bool {
    let [Ok(layer), Ok(own)] = [layer, cell].map(KerasLayer::of) else {
        return false;
    };
    let is_in_its_type = match (own.precision(), layer.precision()) {
        (Ok(None), _) => true,
        (Ok(Some(own)), Ok(of_layer)) => own == of_layer.unwrap_or_default(),
        _ => false,
    };
    // Classes that a program registers have a name, also where no module is noted.
    own.is_of_keras() && cell["registered_name"].is_null() && is_in_its_type
}

/// The layer of one cell, which trains where both do.
fn of_cell(layer: &Value, cell: &Value) -> Option<Value> {
    if !is_read(layer, cell) {
        return None;
    }
    let (_, class) = CELLS.iter().find(|(name, _)| cell["class_name"] == *name)?;
    let mut settings = cell["config"].as_object()?.clone();
    for (field, value) in layer["config"].as_object()? {
        if field != "cell" {
            settings.insert(field.clone(), value.clone());
        }
    }
    if cell["config"]["trainable"] == false {
        settings.insert("trainable".into(), false.into());
    }
    let mut named = layer.clone();
    named["class_name"] = (*class).into();
    named["config"] = settings.into();
    Some(named)
}

/// A stack of the layers of the cells, each but the last of which gives all steps, and the first of which turns them where they are turned; none where
/// states are given.
fn of_cells(layer: &Value, cells: &[Value]) -> Option<Value> {
    let given = &layer["config"];
    if given["return_state"] == true || given["stateful"] == true {
        return None;
    }
    let last = cells.len().checked_sub(1)?;
    let layers = cells.iter().enumerate().map(|(at, cell)| {
        let mut of_one = of_cell(layer, cell)?;
        if layer["config"]["cell"]["config"]["trainable"] == false {
            of_one["config"]["trainable"] = false.into();
        }
        of_one["config"]["name"] = cell["config"]["name"].clone();
        if at < last {
            of_one["config"]["return_sequences"] = true.into();
        }
        if at > 0 {
            of_one["config"]["go_backwards"] = false.into();
        }
        Some(of_one)
    });
    let layers: Vec<Value> = layers.collect::<Option<_>>()?;
    let mut stack = layer.clone();
    stack["class_name"] = "Sequential".into();
    stack["config"] =
        json!({"name": given["name"], "trainable": given["trainable"], "layers": layers});
    Some(stack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Model;

    fn object(module: &str, class: &str, config: &Value) -> Value {
        json!({"module": module, "class_name": class, "config": config, "registered_name": null})
    }

    /// The trained variables of a layer of this cell.
    fn trained(cell: &Value) -> Result<Vec<bool>, String> {
        let input = json!({"batch_shape": [null, 5, 4], "dtype": "float32", "name": "x"});
        let layer = json!({"cell": cell, "name": "steps", "trainable": true, "dtype": "float32"});
        let mut steps = object("keras.layers", OF_CELL, &layer);
        steps["build_config"] = json!({"input_shape": [null, 5, 4]});
        let layers = json!([object("keras.layers", "InputLayer", &input), steps]);
        let stack = object(
            "keras",
            "Sequential",
            &json!({"name": "stack", "layers": layers}),
        );
        let model = Model::from_keras_config(&stack, None)?;
        let variables = model.variables().iter();
        Ok(variables.map(|variable| variable.trainable).collect())
    }

    fn cell(field: &str, value: &Value) -> Value {
        let settings = json!({"units": 2, "name": "cell", field: value});
        object("keras.layers", "LSTMCell", &settings)
    }

    fn stacked(mut cells: [Value; 2], trainable: bool) -> Value {
        cells[1]["config"]["name"] = "second".into();
        let config = json!({"cells": cells, "name": "cells", "trainable": trainable});
        object("keras.layers", "StackedRNNCells", &config)
    }

    #[test]
    fn cells_of_a_program_are_refused() {
        let own = cell("trainable", &true.into());
        let two = stacked([own.clone(), own.clone()], true);
        for cell in [own, two] {
            trained(&cell).unwrap();
            for (field, value) in [("module", "mine"), ("registered_name", "mine>Cell")] {
                let mut of_program = cell.clone();
                of_program[field] = value.into();
                let refused = trained(&of_program).unwrap_err();
                assert!(
                    refused.starts_with("layer `steps` (RNN): its cell is read where"),
                    "{refused}"
                );
            }
        }
    }

    #[test]
    fn cells_are_frozen_by_themselves_and_compute_in_the_type_of_their_layer() {
        let [open, frozen] = [true, false].map(|trainable| cell("trainable", &trainable.into()));
        assert_eq!(trained(&frozen), Ok(vec![false; 3]));
        let of_second = [[true; 3], [false; 3]].concat();
        assert_eq!(
            trained(&stacked([open.clone(), frozen], true)),
            Ok(of_second)
        );
        assert_eq!(
            trained(&stacked([open.clone(), open], false)),
            Ok(vec![false; 6])
        );
        for other in ["mixed_float16", "float64"] {
            let refused = trained(&cell("dtype", &other.into())).unwrap_err();
            assert!(
                refused.contains("computes in the type of the layer"),
                "{refused}"
            );
        }
        trained(&cell("dtype", &"float32".into())).unwrap();
    }
}
