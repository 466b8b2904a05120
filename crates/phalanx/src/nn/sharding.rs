//! How the variables of layers are cut over a mesh of devices.

use std::collections::BTreeMap;

use phalanx_graph::Sharding;
use serde_json::{Map, Value, json};

use super::Model;
use super::layer::Body;
use crate::config::suggest;
use crate::{Error, Result};

/// The variables of a layer that are cut, by their path inside it.
pub(super) type Shardings = BTreeMap<String, Sharding>;

impl Model {
    /// Sets how a variable is cut where a [`MeshStrategy`](crate::strategy::MeshStrategy) trains the model: as
    /// [`LayerSpec::sharded`](super::LayerSpec::sharded) does, for a model that is built or loaded already.
    ///
    /// # Errors
    /// When no variable has that path, or it has another number of dims.
    pub fn set_sharding(&mut self, variable: &str, sharding: impl Into<Sharding>) -> Result<()> {
        let (layer, inside) = variable.split_once('/').unwrap_or((variable, ""));
        let Some(at) = self.layers.iter().position(|entry| entry.name == layer) else {
            return Err(self.unknown(variable));
        };
        let said = &mut self.layers[at].shardings;
        let before = said.insert(inside.to_owned(), sharding.into());
        let settled = self.settle_shardings();
        if settled.is_err() {
            let said = &mut self.layers[at].shardings;
            match before {
                Some(before) => said.insert(inside.to_owned(), before),
                None => said.remove(inside),
            };
        }
        settled
    }

    /// Brings the variables in line with what was said of their layers.
    pub(super) fn settle_shardings(&mut self) -> Result<()> {
        let mut said = Vec::new();
        self.said_shardings("", &mut said);
        for (path, sharding) in said {
            let mut variables = self.variables.iter_mut();
            let Some(variable) = variables.find(|variable| variable.name == path) else {
                return Err(self.unknown(&path));
            };
            let (expected, given) = (variable.shape.rank(), sharding.dims.len());
            if expected != given {
                return Err(Error::user(format!(
                    "the sharding {sharding} of variable `{path}` is for {given} dims, but the variable is {}; name an axis or none for each dim",
                    variable.shape
                )));
            }
            variable.sharding = Some(sharding);
        }
        Ok(())
    }

    /// What was said about the variables of the layers, of models inside first.
    fn said_shardings(&self, prefix: &str, said: &mut Vec<(String, Sharding)>) {
        for entry in &self.layers {
            let path = format!("{prefix}{}/", entry.name);
            if let Body::Model(model) = &entry.body {
                model.said_shardings(&path, said);
            }
            let own = entry.shardings.iter();
            said.extend(own.map(|(name, sharding)| (format!("{path}{name}"), sharding.clone())));
        }
    }

    fn unknown(&self, variable: &str) -> Error {
        let known = self.variables.iter().map(|variable| variable.name.as_str());
        let hint = suggest(variable, known);
        let name = &self.name;
        Error::user(format!(
            "a sharding is given for `{variable}`, but model `{name}` has no such variable; {hint}"
        ))
    }
}

/// `{"kernel": [null, "model"]}`.
pub(super) fn write(shardings: &Shardings) -> Value {
    let shardings = shardings.iter();
    let fields = shardings.map(|(name, sharding)| (name.clone(), json!(sharding.dims)));
    Value::Object(fields.collect::<Map<_, _>>())
}

/// What [`write`] wrote.
pub(super) fn read(owner: &str, value: &Value) -> Result<Shardings> {
    let expected = || {
        Error::user(format!(
            "{owner}: `sharding`: expected an axis or null for each dim of a variable, as in {{\"kernel\": [null, \"model\"]}}, got {value}"
        ))
    };
    let fields = value.as_object().ok_or_else(expected)?;
    let axes = |value: &Value| serde_json::from_value::<Vec<Option<String>>>(value.clone());
    fields
        .iter()
        .map(|(name, value)| match axes(value) {
            Ok(dims) => Ok((name.clone(), Sharding { dims })),
            Err(_) => Err(expected()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Dense, Layer, Sequential};

    fn columns() -> [Option<&'static str>; 2] {
        [None, Some("model")]
    }

    fn block() -> Model {
        let inner = Sequential::new([4])
            .add(Dense::new(4).sharded("kernel", columns()))
            .add(Dense::new(4).named("out"))
            .build()
            .unwrap();
        Sequential::new([4])
            .named("net")
            .add(inner)
            .build()
            .unwrap()
    }

    fn cut(model: &Model) -> Vec<(String, String)> {
        let variables = model.variables().iter();
        let cut =
            variables.filter_map(|v| Some((v.name.clone(), v.sharding.as_ref()?.to_string())));
        cut.collect()
    }

    #[test]
    fn what_is_said_of_layers_inside_is_known_outside_and_written() {
        let mut model = block();
        let kernel = (
            "sequential/dense/kernel".to_owned(),
            "[_, model]".to_owned(),
        );
        assert_eq!(cut(&model), std::slice::from_ref(&kernel));
        model
            .set_sharding("sequential/out/kernel", [Some("model"), None])
            .unwrap();
        let out = ("sequential/out/kernel".to_owned(), "[model, _]".to_owned());
        assert_eq!(cut(&model), [kernel, out]);
        // What is refused does not stay.
        let before = model.config();
        for (variable, dims) in [
            ("sequential/outt", 2),
            ("sequential/out/kernl", 2),
            ("sequential/out/kernel", 1),
        ] {
            let wrong = Sharding {
                dims: vec![Some("model".to_owned()); dims],
            };
            assert!(model.set_sharding(variable, wrong).is_err());
            assert_eq!(model.config(), before);
        }
        let again = Model::from_config(&model.config()).unwrap();
        assert_eq!(again.variables(), model.variables());
        model.set_trainable(false);
        assert_eq!(cut(&model).len(), 2);
    }

    #[test]
    fn mistakes_name_the_variable() {
        let build = |spec| {
            Sequential::new([4])
                .add(spec)
                .build()
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            build(Dense::new(4).sharded("kernl", columns())),
            "a sharding is given for `dense/kernl`, but model `sequential` has no such variable; did you mean `dense/kernel`?"
        );
        assert_eq!(
            build(Dense::new(4).sharded("bias", columns())),
            "the sharding [_, model] of variable `dense/bias` is for 2 dims, but the variable is f32[4]; name an axis or none for each dim"
        );
        let mut config = block().config();
        config["layers"][0]["model"]["layers"][0]["dense"]["sharding"] = json!({"kernel": "model"});
        let error = Model::from_config(&config).unwrap_err().to_string();
        assert_eq!(
            error,
            "layers[0].model.layers[0].dense: `sharding`: expected an axis or null for each dim of a variable, as in {\"kernel\": [null, \"model\"]}, got {\"kernel\":\"model\"}"
        );
    }
}
