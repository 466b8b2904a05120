//! Sequential models as Keras describes them, read.

use serde_json::{Value, json};

use super::Translated;
use super::read::{
    ConfigReading, ReadModel, dims, entry, input, input_value, list, model, of_layer,
};
use super::read_calls::{KerasCall, REVERSIBLE};
use super::read_layer::{KerasLayer, cut, plain};
use super::read_masks::{MaskTable, depends_on_masks, without_mask};
use super::read_network::name_layer;

/// A stack, whose input has a mask where it is `given`.
pub(super) fn stack(
    model: &KerasLayer<'_>,
    object: &Value,
    reading: ConfigReading<'_>,
    given: &[bool],
) -> Translated<ReadModel> {
    let (input, layers) = input_and_layers(model, object)?;
    let name = input["name"].as_str().unwrap_or_default().to_owned();
    let names = [name.clone()];
    let mut stack = Stack {
        masks: MaskTable::of_inputs(&names, given, false),
        value: name,
        layers: Vec::with_capacity(layers.len()),
    };
    let is_whole = !input["dtype"].as_str().unwrap_or("f32").contains('f');
    for layer in layers {
        if layer["class_name"] == REVERSIBLE && !(is_whole && stack.layers.is_empty()) {
            // Floats would go the other way here.
            let message =
                "in a stack it is read as the first layer, of indices that are declared as int32";
            return Err(of_layer(&KerasLayer::of(layer)?, message));
        }
        stack.add(layer, reading)?;
    }
    let masks = stack
        .masks
        .of_model(&names, &[stack.value.clone()], reading.ends_masks())?;
    if reading.is_for_loss() && masks.only_here().any(|only_here| only_here) {
        // The loss counts steps as in Keras.
        stack.take_mask_off();
    }
    Ok((json!({"input": input, "layers": stack.layers}), masks))
}

/// The input, which is a layer of its own, or said by the first layer or the model; and the layers.
fn input_and_layers<'a>(
    model: &KerasLayer<'a>,
    object: &Value,
) -> Translated<(Value, &'a [Value])> {
    let layers = list(model.settings, "layers")?;
    if let [first, rest @ ..] = layers
        && first["class_name"] == "InputLayer"
    {
        return Ok((input(&KerasLayer::of(first)?)?, rest));
    }
    let first = layers.first().unwrap_or(&Value::Null);
    let places = [
        &first["config"]["batch_input_shape"],
        &first["build_config"]["input_shape"],
        &object["build_config"]["input_shape"],
    ];
    let shape = places.into_iter().find(|shape| shape.is_array());
    let shape = shape.ok_or_else(|| {
        format!(
            "`{}` does not say what it takes; call or build the model in Keras before it is saved",
            cut(model.name)
        )
    })?;
    let (dims, open) = dims(shape)?;
    Ok((input_value("input", &dims, "f32", open), layers))
}

/// A stack on its way here.
struct Stack {
    masks: MaskTable,
    /// The last value.
    value: String,
    layers: Vec<Value>,
}

impl Stack {
    fn add(&mut self, object: &Value, reading: ConfigReading<'_>) -> Translated<()> {
        let layer = KerasLayer::of(object)?;
        check_outputs(&layer)?;
        let name = plain(layer.name);
        let call = KerasCall::plain(vec![self.value.clone()], vec![Value::Null]);
        let masks = self.masks.of_call(&call, 0);
        let architecture = match layer.is_model() {
            true => None,
            false => Some(entry(object)?),
        };
        let depends = architecture.as_ref().is_none_or(depends_on_masks);
        let bare = match depends {
            true => masks.bare(&name)?,
            false => vec![false],
        };
        if bare == [true] {
            self.take_mask_off();
        }
        let architecture = match architecture {
            Some(layer) => {
                let masks = masks.without(&bare);
                self.masks.carry(&name, &layer, &call.inputs, masks);
                layer
            }
            None => {
                let (read, of_model) = model(object, reading.inside(), &masks.given())?;
                self.masks.carry_model(&name, &call.inputs, &of_model);
                json!({"model": read})
            }
        };
        self.layers.push(architecture);
        self.value = name;
        Ok(())
    }

    /// Adds a layer that only stands here.
    fn take_mask_off(&mut self) {
        let (name, mut layer) = without_mask(&self.value, &Value::Null);
        name_layer(&mut layer, &name);
        self.layers.push(layer);
    }
}

/// Refuses a layer that gives more than one value.
fn check_outputs(layer: &KerasLayer<'_>) -> Translated<()> {
    let wrapped = &layer.setting("layer")["config"]["return_state"];
    match *layer.setting("return_state") == true || *wrapped == true {
        false => Ok(()),
        true => Err(of_layer(
            layer,
            "it gives its states, for which a stack has no place; make it a functional model in Keras",
        )),
    }
}
