//! A layer in another.

use std::sync::Arc;

use phalanx_graph::Shape;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::fields;
use super::layer::{Body, Layer};
use super::registry::layer_from_config;

/// Layers in layers deeper than this are taken for a mistake: each is read more than once.
const MAX_DEPTH: usize = 4;

/// The layer that another applies, which JSON has as `{kind: settings}`.
#[derive(Clone, Debug)]
pub(super) struct InnerLayer(Arc<dyn Layer>);

impl Serialize for InnerLayer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json!({self.0.kind(): self.0.config()}).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for InnerLayer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if depth(&value) > MAX_DEPTH {
            return Err(D::Error::custom(format!(
                "layers are in each other more than {MAX_DEPTH} deep, expected one or two; reshape the input instead"
            )));
        }
        let mut given = value.as_object().into_iter().flatten();
        let (kind, settings) = match (&value, given.next(), given.next()) {
            (Value::String(kind), ..) => (kind, &Value::Null),
            (_, Some(one), None) => one,
            _ => {
                return Err(D::Error::custom(
                    "expected a layer such as {\"dense\": {\"units\": 8}}",
                ));
            }
        };
        let every = fields::EVERY_LAYER.iter().map(|field| field.name);
        for field in every {
            if settings.get(field).is_some() {
                return Err(D::Error::custom(format!(
                    "{kind}: `{field}` is of the layer around it, write it beside `layer`"
                )));
            }
        }
        match layer_from_config(kind, settings).map(|spec| spec.body) {
            Ok(Body::Layer { layer, .. }) => Ok(Self(layer)),
            Ok(Body::Model(_)) => Err(D::Error::custom("expected a layer, got a model")),
            Err(error) => Err(D::Error::custom(error)),
        }
    }
}

/// How many layers of JSON are in each other.
fn depth(layer: &Value) -> usize {
    std::iter::successors(Some(layer), |layer| {
        let settings = layer.as_object()?.values().next()?;
        settings.get("layer")
    })
    .take(MAX_DEPTH + 1)
    .count()
}

impl InnerLayer {
    pub(super) fn new(layer: impl Layer + 'static) -> Self {
        Self(Arc::new(layer))
    }

    pub(super) fn get(&self) -> &dyn Layer {
        &*self.0
    }

    pub(super) fn kind(&self) -> &'static str {
        self.0.kind()
    }

    /// What is wrong with its settings.
    pub(super) fn check_settings(&self) -> Result<(), String> {
        self.0.check_settings().map_err(|wrong| self.within(&wrong))
    }

    /// What is wrong with inputs of these shapes.
    pub(super) fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.0.check(inputs).map_err(|wrong| self.within(&wrong))
    }

    fn within(&self, wrong: &str) -> String {
        format!("`layer`: {}: {wrong}", self.kind())
    }
}
