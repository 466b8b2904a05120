//! Models with several outputs.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Folder;
use crate::inputs::test_line;
use crate::processes::value_of;

fn golden(file: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/keras");
    folder.join(file)
}

const DATA: &str = "data: {csv: rows.csv, inputs: {who: who, about: [a, b]}, labels: {kind: species, size: [length, width]}, test: {last: 16}}\n";
const FIT: &str =
    "fit: {epochs: 4, batch_size: 8, shuffle: false, validation: test}\noutput: out\n";
const LAYERS: &str = "model:\n\
    - embedding: {inputs: who, input_dim: 5, output_dim: 3, name: vector}\n\
    - concatenate: {inputs: [vector, about]}\n\
    - dense: {units: 8, activation: tanh, name: trunk}\n\
    - dense: {units: 3, activation: softmax, name: kind}\n\
    - concatenate: {inputs: [trunk, kind]}\n\
    - dense: {units: 2, name: size}\n\
    weights: model.keras\noptimizer: {sgd: {learning_rate: 0.05, momentum: 0.9}}\n\
    loss: {size: mse, kind: sparse_categorical_crossentropy}\n\
    loss_weights: {kind: 1.5, size: 0.25}\n\
    metrics: {size: mae, kind: [accuracy]}\n";

/// The rows and the model that Keras trained, with files of training on them: by its layers, and by the model.
fn with_outputs(name: &str) -> Folder {
    let folder = Folder::new(name, "sgd");
    for file in ["rows.csv", "model.keras"] {
        fs::copy(golden("outputs").join(file), folder.0.join(file)).unwrap();
    }
    let write = |name: &str, model: &str| {
        fs::write(folder.0.join(name), format!("{DATA}{model}{FIT}")).unwrap();
    };
    write("layers.yaml", LAYERS);
    write("saved.yaml", "model: model.keras\n");
    folder
}

fn near(found: &Value, expected: &Value, what: &str) {
    let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
    let most = 1e-5 * expected.abs().max(1.0);
    assert!(
        (found - expected).abs() <= most,
        "{what}: {found}, Keras has {expected}"
    );
}

/// The answers of the last rows, and the class of each.
fn check_predictions(folder: &Folder, run: &str, keras: &Value) {
    let csv = folder.succeed(&["predict", run]);
    let mut lines = csv.lines();
    let header =
        "kind_class,kind_score_ant,kind_score_bee,kind_score_cat,size_score_0,size_score_1";
    assert_eq!((lines.next(), csv.lines().count()), (Some(header), 17));
    let json = folder.succeed(&["predict", run, "--format", "jsonl"]);
    for (row, (csv, json)) in lines.zip(json.lines()).enumerate() {
        let json: Value = serde_json::from_str(json).unwrap();
        let fields: Vec<&str> = csv.split(',').collect();
        assert_eq!(json["kind"]["class"], fields[0]);
        let scores = json["kind"]["scores"].as_array().unwrap();
        let values = json["size"]["scores"].as_array().unwrap();
        for (place, found) in scores.iter().chain(values).enumerate() {
            let written: Value = fields[1 + place].parse::<f64>().unwrap().into();
            let expected = match place {
                0..3 => &keras["kind"]["data"][3 * row + place],
                _ => &keras["size"]["data"][2 * row + place - 3],
            };
            near(found, expected, "an answer");
            near(&written, expected, "an answer");
        }
    }
}

#[test]
fn a_model_of_several_outputs_trains_as_in_keras() {
    let folder = with_outputs("outputs");
    let keras: Value = serde_json::from_slice(&fs::read(golden("outputs.json")).unwrap()).unwrap();
    let keras = &keras["records"][0];
    for (file, run) in [("layers.yaml", "layers"), ("saved.yaml", "saved")] {
        let train = ["train", file, "--output", run, "--progress", "plain"];
        let text = folder.succeed(&train);
        assert!(text.contains("kind of 3 classes: ant, bee, cat"), "{text}");
        let history = fs::read_to_string(folder.0.join(run).join("history.jsonl")).unwrap();
        let epochs: Vec<Value> = history
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(epochs.len(), 4);
        for (epoch, found) in epochs.iter().enumerate() {
            for (name, expected) in keras["logs"].as_object().unwrap() {
                near(
                    &found["logs"][name],
                    &expected[epoch],
                    &format!("{file} {name} of epoch {epoch}"),
                );
            }
        }
        let evaluated = folder.succeed(&["evaluate", run]);
        for (name, expected) in keras["evaluated"].as_object().unwrap() {
            let found = value_of(&evaluated, name);
            assert!(
                (found - expected.as_f64().unwrap()).abs() < 1e-4,
                "{evaluated}"
            );
        }
        check_predictions(&folder, run, keras);
    }
    // Rows of a file of their own, its columns in another order and without labels.
    let rows = "b,x,who,a\n1.0,7,0,0.4\n1.3,8,4,-1.7\n";
    fs::write(folder.0.join("new.csv"), rows).unwrap();
    let both = "a,length,species,who,b,width\n0.4,1,ant,0,1.0,1\n-1.7,1,bee,4,1.3,1\n";
    fs::write(folder.0.join("labelled.csv"), both).unwrap();
    let [new, labelled] =
        ["new.csv", "labelled.csv"].map(|file| folder.succeed(&["predict", "layers", file]));
    assert_eq!(new, labelled);
    folder.succeed(&["evaluate", "layers", "labelled.csv"]);
    folder.fail(
        &["evaluate", "layers", "new.csv"],
        2,
        &["no column named", "species"],
    );
}

#[test]
fn several_outputs_train_alike_on_replicas_on_workers_and_after_a_pause() {
    let folder = with_outputs("outputs-alike");
    let train = ["train", "layers.yaml", "--progress", "plain"];
    let one = test_line(&folder.succeed(&[&train[..], &["--output", "one"]].concat()));
    let half = [
        &train[..],
        &["--output", "half", "--set", "fit.save_freq=epoch"],
    ]
    .concat();
    folder.succeed(&[&half[..], &["--epochs", "2"]].concat());
    let resumed = folder.succeed(&[&half[..], &["--resume"]].concat());
    assert_eq!(test_line(&resumed), one);
    let program = [
        "launch",
        "--workers",
        "2",
        "--",
        env!("CARGO_BIN_EXE_phalanx"),
    ];
    for (launch, output) in [
        (&[][..], &["--output", "two", "--devices", "cpu:2"][..]),
        (&program, &["--output", "workers"]),
    ] {
        let several = match launch {
            [] => folder.succeed(&[&train[..], output].concat()),
            launch => folder.succeed(&[launch, &train, output].concat()),
        };
        let several = test_line(&several);
        for log in [
            "loss",
            "kind_loss",
            "size_loss",
            "kind_accuracy",
            "size_mean_absolute_error",
        ] {
            let (one, several) = (value_of(&one, log), value_of(&several, log));
            assert!((one - several).abs() <= 2e-4, "{log} {one} {several}");
        }
    }
}

#[test]
fn an_output_is_monitored_under_its_names() {
    let folder = with_outputs("outputs-best");
    let best = "fit.keep_best=val_size_mae";
    let text = folder.succeed(&["train", "layers.yaml", "--progress", "plain", "--set", best]);
    assert!(text.contains("val_size_mean_absolute_error"), "{text}");
    let history = fs::read_to_string(folder.0.join("out/history.jsonl")).unwrap();
    assert_eq!(history.lines().count(), 4);
}

#[test]
fn classes_of_outputs_that_look_wrong_are_told() {
    let folder = Folder::new("outputs-classes", "sgd");
    let row = |i: u32| format!("{},{},{}\n", i % 7, 1 + i / 12, i % 5);
    let rows: String = (0..36).map(row).collect();
    fs::write(folder.0.join("c.csv"), format!("x,kind,size\n{rows}")).unwrap();
    let write = |units: u32, data: &str, fit: &str| {
        let text = format!(
            "data: {{csv: c.csv, labels: {{size: [size], kind: kind}}{data}}}\n\
             model: [{{dense: {{units: 4, name: trunk}}}}, {{dense: {{inputs: trunk, units: 1, name: size}}}}, {{dense: {{inputs: trunk, units: {units}, activation: softmax, name: kind}}}}]\n\
             optimizer: sgd\nloss: {{size: mse, kind: sparse_categorical_crossentropy}}\nfit: {{{fit}}}\n"
        );
        fs::write(folder.0.join("c.yaml"), text).unwrap();
    };
    let train = ["train", "c.yaml", "--dry-run", "--progress", "json"];
    write(3, "", "epochs: 1");
    let told = [
        "the class 3 of example 24",
        "the labels of `kind` begin at 1, and classes at 0: number them from 0, or write them as texts",
    ];
    folder.fail(&train, 2, &told);
    write(4, ", test: {last: 12}", "shuffle: false");
    let told = [
        "no training row is of class 0 of `kind`: where labels begin at 1, number them from 0, or write them as texts",
        "no training row is of class 3 of `kind`, which test rows are of",
        "the rows are sorted by class of `kind`, and `shuffle` is false",
    ];
    folder.fail(&train, 0, &told);
}

/// What of the file is written otherwise, how, and what is told.
const MISTAKES: [(&str, &str, &[&str]); 13] = [
    (
        "name: kind}",
        "name: kin}",
        &[
            "`labels` names the output \"kind\", and no layer has this `name`",
            "did you mean `kin`?",
        ],
    ),
    (
        "loss: {size: mse",
        "loss: {sise: mse",
        &[
            "`loss` names \"sise\", and the outputs are kind, size",
            "did you mean `size`?",
            "`loss` has none for the output \"size\"",
        ],
    ),
    (
        "{size: mse, kind: sparse_categorical_crossentropy}",
        "mse",
        &[
            "`loss` is the text \"mse\"",
            "expected a mapping of the outputs kind, size",
        ],
    ),
    (
        "loss_weights: {kind",
        "loss_weights: {kid",
        &[
            "`loss_weights` names \"kid\", and the outputs are kind, size",
            "did you mean `kind`?",
        ],
    ),
    (
        "size: 0.25",
        "size: many",
        &["`loss_weights` of the file is", "from 0 to 1e30"],
    ),
    (
        "metrics: {size: mae",
        "metrics: {other: mae",
        &["`metrics` names \"other\"", "kind, size"],
    ),
    (
        "metrics: {size: mae, kind: [accuracy]}",
        "metrics: [mae]",
        &["expected a mapping of the outputs kind, size"],
    ),
    (
        "labels: {",
        "label: who, labels: {",
        &["`labels` has a label for each output, and `label` is about one"],
    ),
    (
        "batch_size: 8",
        "batch_size: 8, class_weight: {0: 2}",
        &["`class_weight` weighs the classes of one output"],
    ),
    (
        "labels: {kind: species, size: [length, width]}, ",
        "",
        &[
            "`loss` has the keys \"size\", \"kind\", as of several outputs, and `data` names none",
            "by `labels` of `data`",
        ],
    ),
    (
        "name: size}",
        "name: other}",
        &["`labels` names the output \"size\", and no layer has this `name`"],
    ),
    (
        "[trunk, kind]}\n",
        "[trunk, kind]}\n- dense: {inputs: trunk, units: 2}\n",
        &["no layer takes what this \"concatenate\" gives"],
    ),
    (
        "size: [length, width]",
        "size: [length, wide]",
        &["rows.csv has no column \"wide\" of labels"],
    ),
];

#[test]
fn what_does_not_fit_the_outputs_is_told_with_those_that_there_are() {
    let folder = with_outputs("outputs-mistakes");
    let text = fs::read_to_string(folder.0.join("layers.yaml")).unwrap();
    for (from, to, told) in MISTAKES {
        assert!(text.contains(from), "{from}");
        fs::write(folder.0.join("wrong.yaml"), text.replace(from, to)).unwrap();
        folder.fail(&["train", "wrong.yaml", "--output", "new"], 2, told);
    }
    let text = fs::read_to_string(folder.0.join("saved.yaml")).unwrap();
    let text = text.replace(
        "{kind: species, size: [length, width]}",
        "{size: [length, width], kind: species}",
    );
    fs::write(folder.0.join("wrong.yaml"), text).unwrap();
    let told = [
        "model.keras has the outputs kind, size, and the data have labels of size, kind",
        "in this order",
    ];
    folder.fail(&["train", "wrong.yaml", "--output", "new"], 2, &told);
}
