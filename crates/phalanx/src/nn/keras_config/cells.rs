//! Recurrent layers that Keras has of cells: one is the layer of that name, several are a stack of such layers.

use serde_json::{Value, json};

/// Keras' cells, and the layers of one.
const CELLS: [(&str, &str); 3] = [
    ("LSTMCell", "LSTM"),
    ("GRUCell", "GRU"),
    ("SimpleRNNCell", "SimpleRNN"),
];

/// The class of layers of any cell.
const OF_CELL: &str = "RNN";

/// Whether there is a layer of a cell anywhere in a model.
pub(super) fn has_cells(value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            fields
                .get("class_name")
                .is_some_and(|class| class == OF_CELL)
                || fields.values().any(has_cells)
        }
        Value::Array(items) => items.iter().any(has_cells),
        _ => false,
    }
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
            Some(cells) => of_cells(value, cells),
            None => None,
        };
        if let Some(named) = named {
            *value = named;
        }
    }
}

/// The layer of one cell.
fn of_cell(layer: &Value, cell: &Value) -> Option<Value> {
    let (_, class) = CELLS.iter().find(|(name, _)| cell["class_name"] == *name)?;
    let mut settings = cell["config"].as_object()?.clone();
    for (field, value) in layer["config"].as_object()? {
        if field != "cell" {
            settings.insert(field.clone(), value.clone());
        }
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
