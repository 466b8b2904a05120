//! Whole models that Keras saved (`make_saved.py`, and `make_keras2.py` of Keras 2), read with their architecture, and what Keras answered.
//!
//! `PHALANX_KERAS_MODELS=FOLDER` reads the models of another folder, with its `saved.json`.

use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use phalanx::fit::Compile;
use phalanx::import::{LoadWeights, Matching};
use phalanx::nn::{Activation, Cx, Input, Model};
use phalanx::saved::SavedModel;
use phalanx_graph::{DType, HostTensor, Tensor};
use phalanx_testkit::{Scratch, assert_close};
use proptest::prelude::*;
use serde_json::{Value, json};
use zip::{ZipArchive, ZipWriter};

use super::golden;
use super::oracle::{Batch, array, engine, name, records};

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
    check(&folder, &records);
}

#[test]
fn whole_models_answer_as_keras_2_does() {
    check(&golden("keras/keras2"), &records("keras2.json"));
}

fn check(folder: &Path, records: &[Value]) {
    for record in records {
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
            let mut cx = Cx::new(&case.graph, model, &values);
            let outputs = model.call(&mut cx, &inputs);
            outputs.iter().for_each(|output| case.output(output));
            let masks = outputs.iter().map(|output| cx.padding_mask(output));
            let masks: Vec<Option<Tensor>> = masks.collect();
            let steps = masks.iter().flatten();
            steps.for_each(|mask| case.output(&mask.convert(DType::F32)));
            let none = case.graph.scalar(DType::F32, 0.0);
            let penalty = cx.finish().losses.iter().fold(none, |sum, loss| sum + loss);
            case.output(&penalty);
            let expected = record["outputs"].as_array().unwrap();
            assert_eq!(outputs.len(), expected.len(), "{file}");
            let mut results = case.run(&engine());
            let penalty = results.pop().unwrap().to_f64()[0];
            let theirs = record["penalty"].as_f64().unwrap();
            assert!(
                (penalty - theirs).abs() <= 1e-5 * (1.0 + theirs),
                "{file}: penalty {penalty}, in Keras {theirs}"
            );
            for (got, expected) in results.iter().zip(expected) {
                let expected = array(expected).unwrap();
                assert_eq!(got.dims(), expected.dims(), "{file}");
                assert_close(file, &got.to_f64(), &expected.to_f64(), 1e-5);
            }
            let mut steps = results[expected.len()..].iter().map(HostTensor::to_f64);
            let masks = masks
                .iter()
                .map(|mask| mask.as_ref().and_then(|_| steps.next()));
            check_masks(file, &masks.collect::<Vec<_>>(), &record["masks"]);
        }
    }
}

/// Checks that outputs have the masks that they have in Keras, by which the loss counts their steps. In a mask of ones all count.
fn check_masks(file: &str, own: &[Option<Vec<f64>>], keras: &Value) {
    for (at, keras) in keras.as_array().into_iter().flatten().enumerate() {
        let keras = array(keras).map(|mask| mask.to_f64());
        let keras = keras.filter(|mask| mask.contains(&0.0));
        assert_eq!(own[at], keras, "{file}: output {at}");
    }
}

/// The members of an archive.
pub(crate) fn members(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = ZipArchive::new(File::open(path).unwrap()).unwrap();
    let names: Vec<String> = archive
        .file_names()
        .map(|name| name.unwrap().into_owned())
        .collect();
    let member = |name: String| {
        let mut bytes = Vec::new();
        let mut member = archive.by_name(&name).unwrap();
        member.read_to_end(&mut bytes).unwrap();
        (name, bytes)
    };
    names.into_iter().map(member).collect()
}

pub(crate) fn archive(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default();
    for (name, bytes) in members {
        archive.start_file(name, stored).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// Every value in a document, by its pointer.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), value))
            .collect(),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(i, item)| (i.to_string(), item))
            .collect(),
        _ => Vec::new(),
    };
    for (key, child) in children {
        let at = format!("{at}/{key}");
        pointers(child, &at, all);
        all.push(at);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is wrong in a description is an error that says where, and what is read has all its values.
    #[test]
    fn damaged_descriptions_are_errors(which in 0_usize..5, places in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..8), 1..3)) {
        let file = ["saved/vision", "saved/shared", "saved/text", "keras2/operated", "keras2/nested"][which];
        let mut members = members(&golden(&format!("keras/{file}.keras")));
        let config = members.iter_mut().find(|(name, _)| name == "config.json").unwrap();
        let mut document: Value = serde_json::from_slice(&config.1).unwrap();
        for (place, with) in places {
            let mut all = Vec::new();
            pointers(&document, "", &mut all);
            let values = [json!(null), json!(-1), json!(1e300), json!("x"), json!([]), json!({}), json!([[["a", 0, 0]]]), json!(true)];
            *document.pointer_mut(&all[place.index(all.len())]).unwrap() = values[with].clone();
        }
        config.1 = document.to_string().into_bytes();
        match SavedModel::from_keras_bytes("damaged", &archive(&members)) {
            Ok(saved) => prop_assert_eq!(saved.values().len(), saved.model().variables().len()),
            Err(error) => {
                let error = error.to_string();
                prop_assert!(error.starts_with("damaged: ") && !error.contains("bug in phalanx"), "{}", error);
                prop_assert!(error.len() < 4096 && !error.contains(char::is_control), "{}", error);
            }
        }
    }
}

#[test]
fn files_without_a_whole_model_are_refused() {
    let refused = |file: &str| {
        let error = SavedModel::load_keras(golden(file)).unwrap_err();
        error.to_string()
    };
    let weights = refused("keras/weights/tiny.weights.h5");
    assert!(
        weights.contains("model_config: the file has weights alone"),
        "{weights}"
    );
    let text = refused("keras/make_saved.py");
    assert!(
        text.contains("config.json: ") && text.contains("expected a model that `model.save"),
        "{text}"
    );
    let records = refused("keras/saved.json");
    assert!(
        records.contains("saved.json: the architecture: "),
        "{records}"
    );
    let absent = refused("keras/saved/absent.keras");
    assert!(absent.contains("cannot open"), "{absent}");
    let members = members(&golden("keras/saved/volumes.keras"));
    let without = |name: &str| {
        let left: Vec<_> = members
            .iter()
            .filter(|member| member.0 != name)
            .cloned()
            .collect();
        let error = SavedModel::from_keras_bytes("part", &archive(&left)).unwrap_err();
        error.to_string()
    };
    assert!(without("config.json").starts_with("part: config.json: "));
    assert!(without("model.weights.h5").starts_with("part: model.weights.h5: "));
}

/// Checks that every way of pairing gives a model of Keras the values that it was saved with.
fn check_pairings(name: &str) {
    let folder = golden("keras/saved");
    let expected = SavedModel::load_keras(folder.join(format!("{name}.keras"))).unwrap();
    // As a training keeps it.
    let model = Model::from_config(&expected.model().config()).unwrap();
    for ending in ["weights.h5", "h5", "keras"] {
        for matching in [Matching::Auto, Matching::Names, Matching::Order] {
            let values = model.init(1).unwrap();
            let mut read = SavedModel::new(model.clone(), values).unwrap();
            let options = LoadWeights {
                matching,
                ..LoadWeights::default()
            };
            let file = format!("{name}.{ending}");
            let report = read.load_weights(folder.join(&file), options).unwrap();
            assert!(report.unexpected.is_empty(), "{file}: {report}");
            assert!(read.values() == expected.values(), "{file}: {matching:?}");
        }
    }
}

/// Layers without variables stand between those with some, whose shapes are equal: a layer that is skipped would exchange them.
#[test]
fn dropouts_between_layers_change_no_pairing() {
    check_pairings("dropouts");
}

/// Keras counts the operations that find masks among those between layers.
#[test]
fn masks_change_the_order_of_layers_as_in_keras() {
    check_pairings("uneven");
}

/// A layer that only stands here, to take a mask off, is not counted.
#[test]
fn operations_on_masked_values_change_no_pairing() {
    check_pairings("gated");
}

/// Of a model in a model, `.h5` files have what is not trained last, whatever its place.
#[test]
fn layers_alike_of_which_some_are_frozen_go_by_their_names() {
    let folder = golden("keras/saved");
    let expected = SavedModel::load_keras(folder.join("partly.keras")).unwrap();
    for name in ["partly.h5", "partly.keras"] {
        let path = folder.join(name);
        let read = SavedModel::load_keras(&path).unwrap();
        assert!(read.values() == expected.values(), "{name}");
        let model = SavedModel::architecture(&path).unwrap();
        let mut trained = SavedModel::new(model.clone(), model.init(1).unwrap()).unwrap();
        trained.load_weights(&path, LoadWeights::default()).unwrap();
        assert!(trained.values() == expected.values(), "{name} by itself");
    }
}

/// Early versions of Keras 3 note no names beside the values.
#[test]
fn archives_without_names_of_layers_are_read_in_keras_order() {
    for name in ["uneven", "gated"] {
        let path = golden("keras/saved").join(format!("{name}.keras"));
        let mut members = members(&path);
        let weights = members.iter_mut().find(|(name, _)| name.ends_with(".h5"));
        let (_, bytes) = weights.unwrap();
        let mut count = 0;
        for at in 0..bytes.len() - 4 {
            if bytes[at..].starts_with(b"name\0") {
                bytes[at..at + 4].copy_from_slice(b"none");
                count += 1;
            }
        }
        let expected = SavedModel::load_keras(&path).unwrap();
        assert!(count >= expected.values().len() / 2, "{count}");
        let unnamed = SavedModel::from_keras_bytes(name, &archive(&members)).unwrap();
        assert!(unnamed.values() == expected.values(), "{name}");
    }
}

/// In an archive, a layer that takes a mask off is one as any other, and counts.
#[test]
fn what_is_written_of_a_model_of_keras_goes_back_to_it() {
    let folder = Scratch::temporary("gated");
    let saved = SavedModel::load_keras(golden("keras/saved/gated.keras")).unwrap();
    for file in ["gated.keras", "gated.weights.h5"] {
        let path = folder.join(file);
        match file.ends_with(".keras") {
            true => saved.save_keras(&path).unwrap(),
            false => saved.save_weights(&path).unwrap(),
        }
        let values = saved.model().init(1).unwrap();
        let mut read = SavedModel::new(saved.model().clone(), values).unwrap();
        read.load_weights(&path, LoadWeights::default()).unwrap();
        assert!(read.values() == saved.values(), "{file}");
    }
    let again = SavedModel::load_keras(folder.join("gated.keras")).unwrap();
    for variable in saved.model().variables() {
        let name = &variable.name;
        assert_eq!(again.value(name), saved.value(name), "{name}");
    }
}

/// Before 3.16, Keras 3 took what is noted for nothing.
#[test]
fn training_in_a_call_counts_as_in_the_version_that_wrote_it() {
    let read = |version: &str, noted: &str| {
        let mut members = members(&golden("keras/saved/unnoted.keras"));
        for (name, bytes) in &mut members {
            let text = || String::from_utf8(bytes.clone()).unwrap();
            match name.as_str() {
                "metadata.json" => *bytes = text().replace("3.15.1", version).into_bytes(),
                "config.json" => {
                    // Of the LSTM: of a dropout it is the default, which versions before note, too.
                    let noted = format!("\"training\": {noted}, \"mask\"");
                    let text = text().replace("\"training\": false, \"mask\"", &noted);
                    assert!(text.contains(&noted));
                    *bytes = text.into_bytes();
                }
                _ => {}
            }
        }
        SavedModel::from_keras_bytes("unnoted", &archive(&members))
    };
    let is_fixed = |model: &Model| {
        let config = model.config();
        let mut layers = config["layers"].as_array().unwrap().iter();
        layers.any(|layer| layer["lstm"]["training"] == false)
    };
    for (version, expected) in [("3.15.1", false), ("3.16.0", true), ("4.0.0", true)] {
        let saved = read(version, "false").unwrap();
        assert_eq!(is_fixed(saved.model()), expected, "{version}");
        assert_eq!(read(version, "true").is_err(), expected, "{version}");
    }
    let refused = read("3.16.0", "true").unwrap_err().to_string();
    let expected = "layer `lstm_11` (LSTM): it is called with `training` true";
    assert!(refused.contains(expected), "{refused}");
    let mut bytes = std::fs::read(golden("keras/saved/unnoted.h5")).unwrap();
    let at = bytes.windows(6).position(|bytes| bytes == b"3.15.1");
    let at = at.unwrap();
    bytes[at..at + 6].copy_from_slice(b"3.16.0");
    let saved = SavedModel::from_keras_bytes("unnoted", &bytes).unwrap();
    assert!(is_fixed(saved.model()));
}

/// Masks that no value has here are refused, where they would go unseen.
#[test]
fn masks_of_their_own_are_refused() {
    let records = records("own_masks.json");
    assert_eq!(records.len(), 5);
    for record in records {
        let config = record["config"].to_string().into_bytes();
        let archive = archive(&[("config.json".into(), config)]);
        let error = SavedModel::from_keras_bytes("own", &archive).unwrap_err();
        let error = error.to_string();
        let expected = "it is called with a mask of its own";
        assert!(error.contains(expected), "{}: {error}", name(&record));
    }
}

/// A model in a model is one here.
#[test]
fn models_that_are_called_with_masks_and_without_are_refused_where_they_differ() {
    for record in records("mixed_masks.json") {
        let config = record["config"].to_string().into_bytes();
        let archive = archive(&[("config.json".into(), config)]);
        let error = SavedModel::from_keras_bytes("mixed", &archive).unwrap_err();
        let error = error.to_string();
        let expected = "it is called with masks of padding and without";
        assert!(error.contains(expected), "{}: {error}", name(&record));
    }
}

/// A layer that takes a mask off an output is not Keras'.
#[test]
fn outputs_without_their_masks_keep_their_names() {
    for file in ["taken.keras", "taken.h5"] {
        let path = golden("keras/saved").join(file);
        let model = SavedModel::architecture(&path).unwrap();
        let names = model.output_names();
        assert_eq!(names[..3], ["sum", "labels", "whole"], "{file}");
        let activation = Some(Activation::Sigmoid);
        assert_eq!(model.output_activations()[1], activation, "{file}");
        Compile::of_keras(&path).unwrap();
    }
}

/// A description has no values, from which layers could go on.
#[test]
fn descriptions_that_begin_otherwise_than_here_are_refused() {
    let folder = Scratch::temporary("starts");
    for record in records("starts.json") {
        let path = folder.join("model.json");
        std::fs::write(&path, record["config"].to_string()).unwrap();
        let read = SavedModel::architecture(&path);
        let setting = name(&record);
        match setting.ends_with("_initializer") {
            false => drop(read.unwrap()),
            true => {
                let error = read.unwrap_err().to_string();
                let expected = format!("its `{setting}` is ");
                assert!(error.contains(&expected), "{setting}: {error}");
                assert!(error.contains("set another one"), "{error}");
            }
        }
    }
}

#[test]
fn inputs_of_other_sizes_are_given_later() {
    let read = |file: &str| SavedModel::load_keras(golden("keras/saved").join(file)).unwrap();
    let text = read("text.keras");
    let shape = |saved: &SavedModel| saved.model().inputs().next().unwrap().1;
    assert_eq!(shape(&text).dims, [128]);
    let short = text
        .with_inputs(&[Input::new([9]).dtype(DType::I32)])
        .unwrap();
    assert_eq!(shape(&short).dims, [9]);
    // Models inside follow, whose own sizes are open or not.
    for (file, dims) in [
        ("anywhere.keras", [12, 14, 3]),
        ("backbone.keras", [10, 12, 3]),
        ("backbone.h5", [4, 4, 3]),
    ] {
        let wide = read(file).with_inputs(&[Input::new(dims)]).unwrap();
        assert_eq!(shape(&wide).dims, dims, "{file}");
    }
    let vision = read("vision.keras");
    let wide = vision
        .clone()
        .with_inputs(&[Input::new([12, 10, 3])])
        .unwrap();
    assert_eq!(
        (shape(&wide).dims, wide.values().len()),
        (vec![12, 10, 3], vision.values().len())
    );
    let refused = |inputs: &[Input]| vision.clone().with_inputs(inputs).unwrap_err().to_string();
    assert_eq!(
        refused(&[]),
        "model `vision` has 1 inputs, got 0; give one for each"
    );
    let grey = refused(&[Input::new([8, 8, 1])]);
    assert!(grey.contains("rescaling"), "{grey}");
    let dense = phalanx::nn::Sequential::new([3])
        .add(phalanx::nn::Dense::new(2))
        .build()
        .unwrap();
    assert_eq!(
        dense
            .with_inputs(&[Input::new([4])])
            .unwrap_err()
            .to_string(),
        "variable `dense/kernel` of model `sequential` is f32[3,2], and would be f32[4,2] for these inputs; \
         give inputs of the dims that the model was made for"
    );
}
