//! Layers that change images at random as Keras describes them.

use serde_json::{Value, json};

use super::call_shapes::changes_dims;
use super::read_layer::cut;
use super::{Settings, Translated};
use crate::nn::layer::Body;
use crate::nn::model::Model;

/// Refuses a model of Keras 3, also in another, in which a `RandomCrop` cuts: in prediction it leaves images of any size as they are there.
pub(super) fn check_crops(model: &Model) -> Translated<()> {
    for (at, entry) in model.layers.iter().enumerate() {
        match &entry.body {
            Body::Model(inner) => check_crops(inner)?,
            Body::Layer { layer, .. }
                if layer.kind() == "random_crop" && changes_dims(model, at) =>
            {
                return Err(format!(
                    "layer `{}` (RandomCrop): in prediction Keras 3 leaves images as large as they are, and here the middle is taken; \
                     put a `CenterCrop` in its place in Keras, or make the layers here and load its weights",
                    cut(&entry.name)
                ));
            }
            Body::Layer { .. } => {}
        }
    }
    Ok(())
}

/// Makes settings of a layer ours that mean something else in Keras.
pub(super) fn of_keras(kind: &str, settings: &mut Settings) {
    match kind {
        // The two parts of a contrast have no order.
        "random_contrast" => {}
        "random_color_jitter" => jitter_of_keras(settings),
        _ => in_ascending_order(settings),
    }
}

/// One number is one end of a range, and what the other one is depends on the layer.
fn jitter_of_keras(settings: &mut Settings) {
    for (field, least) in [("contrast_factor", 0.0), ("saturation_factor", -1.0)] {
        let factor = settings.get_mut(field);
        if let Some((most, factor)) = factor.and_then(|factor| Some((factor.as_f64()?, factor))) {
            *factor = json!([least * most, most]);
        }
    }
}

/// Ranges of random numbers as Keras reads them: the ends in either order, and one number as far either way.
fn in_ascending_order(settings: &mut Settings) {
    let ranges = [
        "factor",
        "height_factor",
        "width_factor",
        "x_factor",
        "y_factor",
    ];
    for (_, range) in settings
        .iter_mut()
        .filter(|(name, _)| ranges.contains(&name.as_str()))
    {
        *range = match (range.as_f64(), range.as_array().map(Vec::as_slice)) {
            (Some(most), _) => most.abs().into(),
            (_, Some([first, second])) if first.as_f64() > second.as_f64() => {
                json!([second, first])
            }
            _ => range.clone(),
        };
    }
}

/// Makes settings Keras' that mean something else here.
pub(super) fn for_keras(kind: &str, config: &Value, settings: &mut Settings) -> Translated<()> {
    let factor = &config["factor"];
    match kind {
        "random_contrast" if factor.is_number() => {
            // Keras 3 takes one number for more contrast alone.
            settings.insert("factor".into(), json!([factor, factor]));
        }
        "random_saturation" | "random_color_degeneration" if factor.is_number() => {
            // Keras 3 takes one number for as far either way.
            settings.insert("factor".into(), json!([0.0, factor]));
        }
        "random_posterization" => {
            // Keras draws whole numbers between whole ones.
            settings.insert("factor".into(), whole(factor));
        }
        "random_color_jitter" => jitter_for_keras(config, settings),
        "random_shear" => shear_for_keras(settings)?,
        _ => {}
    }
    Ok(())
}

/// As the layers by themselves are written.
fn jitter_for_keras(config: &Value, settings: &mut Settings) {
    let none = json!(0.0);
    let contrast = &config["contrast_factor"];
    for (field, least) in [("contrast_factor", contrast), ("saturation_factor", &none)] {
        if config[field].is_number() {
            settings.insert(field.into(), json!([least, config[field]]));
        }
    }
}

/// Factors as Keras takes them: from 0 on, or as far either way.
fn shear_for_keras(settings: &mut Settings) -> Translated<()> {
    for field in ["x_factor", "y_factor"] {
        let ends = settings.get(field).and_then(Value::as_array);
        let [Some(least), Some(most)] = [0, 1].map(|at| ends?.get(at)?.as_f64()) else {
            continue;
        };
        if least == -most {
            settings.insert(field.into(), most.into());
        } else if least < 0.0 {
            return Err("Keras' `RandomShear` takes no two factors of which one is below 0".into());
        }
    }
    Ok(())
}

/// Whole numbers without a point.
fn whole(numbers: &Value) -> Value {
    match numbers {
        Value::Array(numbers) => numbers.iter().map(whole).collect(),
        number => number
            .as_f64()
            .map_or_else(|| number.clone(), |number| (number as i64).into()),
    }
}
