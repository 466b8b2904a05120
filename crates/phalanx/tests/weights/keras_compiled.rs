//! Models that Keras compiled (`make_compiled.py`, and `make_keras2.py` of Keras 2), trained on as Keras does.

use phalanx::Error;
use phalanx::data::Batch;
use phalanx::fit::LossScale;
use phalanx::prelude::*;
use phalanx_testkit::{Scratch, assert_close};
use serde_json::{Value, json};

use super::golden;
use super::keras_models::{archive, members};
use super::oracle::{array, name, records};

#[test]
fn compiled_models_are_trained_on_as_in_keras() {
    check("compiled.json", "keras/compiled");
    check("keras2_compiled.json", "keras/keras2");
}

fn check(list: &str, folder: &str) {
    for record in records(list) {
        let list = |field: &str| record[field].as_array().unwrap().iter();
        for file in list("files") {
            let path = golden(folder).join(file.as_str().unwrap());
            let compile = Compile::of_keras(&path).unwrap();
            let saved = SavedModel::load_keras(&path).unwrap();
            let mut trainer = OneDeviceStrategy::new()
                .unwrap()
                .compile(saved, compile)
                .unwrap();
            let batch = Batch {
                x: vec![array(&record["x"]).unwrap()],
                y: list("targets")
                    .map(|target| array(target).unwrap())
                    .collect(),
                weight: None,
                first: 0,
            };
            for (step, expected) in list("logs").enumerate() {
                let logs = trainer.train_on_batch(&batch).unwrap();
                for (key, expected) in expected.as_object().unwrap() {
                    let got = logs.get(key).unwrap_or(f64::NAN);
                    let expected = expected.as_f64().unwrap();
                    assert!(
                        (got - expected).abs() < 1e-5,
                        "{file}: `{key}` of step {step} is {expected} in Keras, got {logs:?}"
                    );
                }
            }
            // Those that are trained, and others.
            let variables = trainer.model().variables().iter();
            let values = trainer.variables().unwrap();
            let all = values.into_iter().zip(variables);
            let (trained, fixed): (Vec<_>, Vec<_>) = all.partition(|(_, v)| v.trainable);
            for (own, keras) in [(trained, "weights"), (fixed, "fixed")] {
                let expected = record[keras].as_array().into_iter().flatten();
                let expected: Vec<_> = expected.map(|x| array(x).unwrap().to_f64()).collect();
                assert_eq!(own.len(), expected.len(), "{file}");
                for (((_, value), _), expected) in own.iter().zip(&expected) {
                    assert_close(name(&record), &value.to_f64(), expected, 1e-5);
                }
            }
        }
    }
}

/// A compilation in which a value is another one.
#[track_caller]
fn altered(file: &str, pointer: &str, with: Value) -> phalanx::Result<Compile> {
    let mut members = members(&golden("keras/compiled").join(file));
    let config = members.iter_mut().find(|(name, _)| name == "config.json");
    let (_, text) = config.unwrap();
    let mut document: Value = serde_json::from_slice(text).unwrap();
    let place = document
        .pointer_mut(&format!("/compile_config{pointer}"))
        .unwrap();
    *place = with;
    *text = document.to_string().into_bytes();
    let folder = Scratch::temporary("compiled");
    let path = folder.join("m.keras");
    std::fs::write(&path, archive(&members)).unwrap();
    Compile::of_keras(&path)
}

/// What the refusal of such a compilation says.
#[track_caller]
fn refusal(file: &str, pointer: &str, with: Value) -> String {
    let refused = altered(file, pointer, with).unwrap_err();
    assert!(matches!(refused, Error::Data { .. }), "{refused}");
    let refused = refused.to_string();
    assert!(
        refused.ends_with("; name the optimizer, the loss and the metrics yourself"),
        "{refused}"
    );
    refused
}

/// Where something else is the default.
#[test]
fn what_is_switched_off_stays_so() {
    for (class, settings) in [
        (
            "Muon",
            json!({"rms_rate": null, "adam_weight_decay": null, "weight_decay": null, "clipnorm": null}),
        ),
        ("AdamW", json!({"weight_decay": null, "clipnorm": null})),
    ] {
        let noted = json!({"module": "keras.optimizers", "class_name": class, "config": settings});
        let optimizer = altered("plain.keras", "/optimizer", noted)
            .unwrap()
            .optimizer;
        let config = optimizer.config();
        for (name, _) in settings.as_object().unwrap() {
            assert!(config[name].is_null(), "{name}: {config}");
        }
        // As servers make it.
        let again = Optimizer::from_config(optimizer.kind(), &config).unwrap();
        assert_eq!(again.config(), config);
    }
}

/// As Keras before 2.3 notes it.
#[test]
fn rates_of_early_files_are_read() {
    let early =
        json!({"class_name": "Adam", "config": {"lr": 0.02, "decay": 0.0, "epsilon": null}});
    let compile = altered("plain.keras", "/optimizer", early).unwrap();
    assert_eq!(compile.optimizer.learning_rate().value(3), 0.02);
    // Its accumulators began with zeros, and a norm was of one gradient or of all.
    let early = json!({"class_name": "Adagrad", "config": {"lr": 0.02, "decay": 0.0}});
    let compile = altered("plain.keras", "/optimizer", early).unwrap();
    assert_eq!(compile.optimizer.config()["initial_accumulator_value"], 0.0);
    let early = json!({"class_name": "SGD", "config": {"lr": 0.02, "clipnorm": 1.0}});
    let error = altered("plain.keras", "/optimizer", early).unwrap_err();
    assert!(error.to_string().contains("`clipnorm`"), "{error}");
}

/// A function of a program may have the name of a class of Keras.
#[test]
fn functions_and_classes_of_programs_are_not_taken_for_those_here() {
    let function =
        |name: &str| json!({"class_name": "function", "module": "builtins", "config": name});
    let mean = |function: Value, name: &str| json!({"class_name": "MeanMetricWrapper", "config": {"fn": function, "name": name}});
    let own = json!({"class_name": "Accuracy", "module": "__main__", "config": {}});
    for (metric, part) in [
        (function("f1_score"), "a function `f1_score` of a program"),
        (
            mean(function("recall"), "recall"),
            "a function `recall` of a program",
        ),
        (own, "which there is not here"),
        (
            mean(function("mine"), "accuracy"),
            "`mine`, which there is not here",
        ),
    ] {
        let error = altered("plain.keras", "/metrics", json!([metric])).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    for metric in [
        function("mean_absolute_error"),
        mean(function("binary_accuracy"), "accuracy"),
    ] {
        altered("plain.keras", "/metrics", json!([metric])).unwrap();
    }
}

/// A program may have weights of losses as arrays and tensors; whatever else they are, they are not left out.
#[test]
fn weights_of_losses_are_read_in_every_form_or_refused() {
    let outputs = ["z", "a"].map(str::to_owned);
    let tensor = |value: Value| json!({"class_name": "__tensor__", "config": {"value": value, "dtype": "float32"}});
    let array =
        json!({"class_name": "__numpy__", "config": {"value": [2.0, 0.5], "dtype": "float64"}});
    for weights in [
        json!({"z": 2.0, "a": 0.5}),
        json!([tensor(json!(2.0)), 0.5]),
        array,
    ] {
        let compile = altered("several.keras", "/loss_weights", weights).unwrap();
        let settings = compile.loss_settings(&outputs).unwrap();
        assert_eq!(settings["loss_weights"], json!({"z": 2.0, "a": 0.5}));
    }
    let refused = refusal("several.keras", "/loss_weights", json!(["2.0", 0.5]));
    let expected = "a weight of its losses is \"2.0\", expected a number";
    assert!(refused.contains(expected), "{refused}");
}

/// Not under ours, `equality`.
#[test]
fn the_class_accuracy_is_logged_under_its_name() {
    for (config, expected) in [
        (json!({"name": "accuracy"}), "accuracy"),
        (json!({"name": "exact"}), "exact"),
    ] {
        let noted = json!([{"class_name": "Accuracy", "config": config}]);
        let compile = altered("plain.keras", "/metrics", noted).unwrap();
        let settings = compile.loss_settings(&[]).unwrap();
        assert_eq!(settings["metrics"][0]["equality"]["name"], expected);
    }
}

#[test]
fn scales_of_the_loss_are_read() {
    let scale = |file: &str| {
        let compile = Compile::of_keras(golden("keras/compiled").join(file));
        compile.unwrap().loss_scale
    };
    let scaled = LossScale::Dynamic {
        initial: 64.0,
        growth_steps: 2,
    };
    assert_eq!(scale("scaled.keras"), scaled);
    assert_eq!(scale("scaled.h5"), scaled);
    assert_eq!(scale("partly.keras"), LossScale::Fixed(8.0));
    assert_eq!(scale("plain.keras"), LossScale::Auto);
    let around = |settings: Value| {
        let mut config = json!({"inner_optimizer": {"class_name": "Adam", "config": {}}});
        config
            .as_object_mut()
            .unwrap()
            .extend(settings.as_object().unwrap().clone());
        json!({"class_name": "LossScaleOptimizerV3", "config": config})
    };
    let fixed = around(json!({"dynamic": false, "initial_scale": 16.0}));
    let fixed = altered("plain.keras", "/optimizer", fixed).unwrap();
    assert_eq!(fixed.loss_scale, LossScale::Fixed(16.0));
    for (settings, expected) in [
        (json!({}), "`initial_scale`"),
        (json!({"initial_scale": 16.0}), "`dynamic_growth_steps`"),
    ] {
        let refused = refusal("plain.keras", "/optimizer", around(settings));
        assert!(refused.contains(expected), "{refused}");
    }
}

/// Ours takes scores.
#[test]
fn overlaps_of_numbers_of_classes_are_refused() {
    let settings = json!({"num_classes": 3, "sparse_y_pred": true});
    let noted = json!([{"class_name": "MeanIoU", "config": settings}]);
    let refused = refusal("plain.keras", "/metrics", noted);
    assert!(
        refused.contains("unknown field `sparse_y_pred`"),
        "{refused}"
    );
}

/// Keras notes them as an array.
#[test]
fn weights_of_labels_are_read() {
    let weights =
        json!({"class_name": "__tensor__", "config": {"value": [1.0, 0.5], "dtype": "float32"}});
    let settings = json!({"multi_label": true, "num_labels": 2, "label_weights": weights});
    let noted = json!([{"class_name": "AUC", "config": settings}]);
    let compile = altered("plain.keras", "/metrics", noted).unwrap();
    let metric = format!("{:?}", compile.metrics);
    assert!(
        metric.contains("label_weights: Some([1.0, 0.5])"),
        "{metric}"
    );
}

#[test]
fn what_there_is_not_here_is_refused() {
    let own = |module: &str, settings: Value| json!({"module": module, "class_name": "MeanSquaredError", "config": settings});
    let lambda = json!({"class_name": "__lambda__", "config": {"value": ["4wIA", null, null]}});
    let of_class = json!({"class_name": "SparseCategoricalCrossentropy", "config": {"axis": -1, "unknown": 0}});
    let summed = own("keras.losses", json!({"reduction": "sum"}));
    let cases = [
        ("", json!({}), "was not compiled in Keras"),
        ("/loss", Value::Null, "it has no loss"),
        ("/optimizer", Value::Null, "it has no optimizer"),
        (
            "/optimizer",
            json!({"class_name": "Muon", "config": {"exclude_layers": ["dense_[12]"]}}),
            "its `exclude_layers` has regular expressions",
        ),
        ("/loss", lambda, "its loss is `__lambda__`"),
        (
            "/loss",
            own("mine", json!({})),
            "its loss is `MeanSquaredError`, which there is not here",
        ),
        ("/loss", of_class, "unknown field `unknown`"),
        ("/loss", summed, "its loss: its `reduction` is `sum`"),
        (
            "/loss",
            json!({"b": "mse"}),
            "it names the output `b`, and the model has y",
        ),
        (
            "/loss",
            json!(["mse", "mae"]),
            "expected a part for each of 1 outputs",
        ),
        (
            "/optimizer/class_name",
            json!("Shampoo"),
            "its optimizer is `Shampoo`",
        ),
        (
            "/optimizer/config/learning_rate",
            json!({"class_name": "Mine"}),
            "its schedule is `Mine`",
        ),
        (
            "/metrics",
            json!(["crossentropy"]),
            "its metric is `crossentropy`",
        ),
    ];
    for (pointer, with, expected) in cases {
        let refused = refusal("plain.keras", pointer, with);
        assert!(refused.contains(expected), "{refused}");
    }
}

/// A loss of the first output alone needs no names of outputs in a training file.
#[test]
fn losses_are_written_by_outputs_where_these_have_names() {
    let outputs = ["z", "a"].map(str::to_owned);
    let adam = json!({"module": "keras.optimizers", "class_name": "Adam", "config": {}});
    let first = json!({"optimizer": adam, "loss": {"z": "mse"}, "metrics": {"z": ["mae"]}});
    let compile = altered("several.keras", "", first).unwrap();
    let settings = compile.loss_settings(&[]).unwrap();
    let kinds = |value: &Value| value.as_object().unwrap().keys().next().cloned().unwrap();
    assert_eq!(kinds(&settings["loss"]), "mean_squared_error");
    assert_eq!(kinds(&settings["metrics"][0]), "mean_absolute_error");
    assert!(!settings.contains_key("loss_weights"));
    assert_eq!(kinds(&compile.optimizer_settings().unwrap()), "adam");
    let refused = compile.loss_settings(&outputs).unwrap_err().to_string();
    assert!(
        refused.contains("the output `a` was not compiled with one loss"),
        "{refused}"
    );
    let elsewhere = json!({"optimizer": adam, "loss": {"z": "mse"}, "metrics": {"a": ["mae"]}});
    let elsewhere = altered("several.keras", "", elsewhere).unwrap();
    let refused = elsewhere.loss_settings(&[]).unwrap_err().to_string();
    assert!(
        refused.contains("a metric is of an output without a loss"),
        "{refused}"
    );
    let both = Compile::of_keras(golden("keras/compiled/several.keras")).unwrap();
    let settings = both.loss_settings(&outputs).unwrap();
    assert_eq!(settings["loss_weights"], json!({"z": 2.0, "a": 0.5}));
    let refused = both.loss_settings(&[]).unwrap_err().to_string();
    assert!(
        refused.contains("was not compiled with one loss"),
        "{refused}"
    );
    let one = Compile::of_keras(golden("keras/compiled/plain.keras")).unwrap();
    let settings = one.loss_settings(&["y".to_owned()]).unwrap();
    assert_eq!(
        kinds(&settings["loss"]["y"]),
        "sparse_categorical_crossentropy"
    );
}

#[test]
fn files_without_a_compilation_say_what_they_have() {
    for (file, expected) in [
        ("saved/dropouts.keras", "was not compiled"),
        ("saved/dropouts.h5", "was not compiled"),
        ("weights/tiny.weights.h5", "weights alone"),
    ] {
        let refused = Compile::of_keras(golden("keras").join(file)).unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}

#[test]
fn descriptions_alone_say_what_whole_models_do() {
    for record in records("compiled.json") {
        let file = |ending: &str| {
            golden("keras/compiled")
                .join(name(&record))
                .with_extension(ending)
        };
        let (whole, alone) = (file("keras"), file("json"));
        let model = SavedModel::load_keras(&whole).unwrap();
        let described = SavedModel::architecture(&alone).unwrap();
        assert_eq!(described.config(), model.model().config());
        assert_eq!(described.variables(), model.model().variables());
        let compiled = |path| Compile::of_keras(path).map(|compile| format!("{compile:?}"));
        assert_eq!(compiled(&alone).unwrap(), compiled(&whole).unwrap());
        let refused = SavedModel::load_keras(&alone).unwrap_err().to_string();
        assert!(
            refused.contains("describes a model and has no values"),
            "{refused}"
        );
    }
}

#[test]
fn a_description_of_our_own_is_read_and_a_damaged_one_refused() {
    let folder = Scratch::temporary("described");
    let saved = SavedModel::load_keras(golden("keras/saved/stated.keras")).unwrap();
    saved.save(folder.join("m")).unwrap();
    let file = folder.join("m/model.json");
    let read = SavedModel::architecture(&file).unwrap();
    assert_eq!(read.config(), saved.model().config());
    let compiled = Compile::of_keras(&file).unwrap_err().to_string();
    assert!(compiled.contains("was not compiled in Keras"), "{compiled}");
    let mut text = std::fs::read(&file).unwrap();
    text.truncate(text.len() / 2);
    for (text, expected) in [
        (text, "the architecture: expected JSON: EOF"),
        (
            b"{\"a\": \"\xff\"}".to_vec(),
            "the architecture: expected JSON: invalid utf-8",
        ),
        (b" {}".to_vec(), "the architecture: "),
    ] {
        std::fs::write(&file, text).unwrap();
        let refused = SavedModel::architecture(&file).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}
