//! Whole models that Keras saved (`make_saved.py`), read with their architecture, and what Keras answered.
//!
//! `PHALANX_KERAS_MODELS=FOLDER` reads the models of another folder, with its `saved.json`.

use std::path::{Path, PathBuf};

use phalanx::nn::{Cx, Model};
use phalanx::saved::SavedModel;
use phalanx_graph::DType;
use phalanx_testkit::assert_close;
use serde_json::Value;

use super::golden;
use super::oracle::{Batch, array, engine, name};

/// The folder of the models, and its records.
fn saved() -> (PathBuf, Vec<Value>) {
    let (folder, list) = match std::env::var_os("PHALANX_KERAS_MODELS") {
        Some(folder) => (
            PathBuf::from(&folder),
            Path::new(&folder).join("saved.json"),
        ),
        None => (golden("keras/saved"), golden("keras/saved.json")),
    };
    let list: Value = serde_json::from_slice(&std::fs::read(list).unwrap()).unwrap();
    (folder, list["records"].as_array().unwrap().clone())
}

fn dtypes(model: &Model) -> Vec<DType> {
    model.inputs().map(|(_, shape)| shape.dtype).collect()
}

#[test]
fn whole_models_answer_as_keras_does() {
    let (folder, records) = saved();
    for record in &records {
        for file in record["files"].as_array().unwrap() {
            let file = file.as_str().unwrap();
            let saved = SavedModel::load_keras(folder.join(file)).unwrap();
            let model = saved.model();
            assert_eq!(model.name(), name(record), "{file}");
            let frozen = model
                .variables()
                .iter()
                .filter(|variable| !variable.trainable);
            assert_eq!(
                frozen.count() as u64,
                record["frozen"].as_u64().unwrap(),
                "{file}"
            );
            let mut case = Batch::default();
            let inputs = record["inputs"]
                .as_array()
                .unwrap()
                .iter()
                .zip(dtypes(model));
            let inputs: Vec<_> = inputs
                .map(|(x, dtype)| case.input(array(x).unwrap().convert(dtype)))
                .collect();
            let values = saved.values().iter().cloned();
            let values: Vec<_> = values.map(|value| case.shared(value)).collect();
            let outputs = model.call(&mut Cx::new(&case.graph, model, &values), &inputs);
            outputs.iter().for_each(|output| case.output(output));
            let expected = record["outputs"].as_array().unwrap();
            assert_eq!(outputs.len(), expected.len(), "{file}");
            for (got, expected) in case.run(&engine()).iter().zip(expected) {
                let expected = array(expected).unwrap();
                assert_eq!(got.dims(), expected.dims(), "{file}");
                assert_close(file, &got.to_f64(), &expected.to_f64(), 1e-5);
            }
        }
    }
}
