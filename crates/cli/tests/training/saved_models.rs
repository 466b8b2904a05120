//! Training files that name a whole model in the place of layers.

use std::fs;
use std::path::Path;

use crate::Folder;
use crate::processes::value_of;

/// The training file with another model, which is trained without changing it.
fn with_model(folder: &Folder, model: &str) -> &'static str {
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let lines = text.lines().map(|line| match line.split_once(": ") {
        Some(("model", _)) => format!("model: {model}\n"),
        Some(("optimizer", _)) => "optimizer: {sgd: {learning_rate: 0}}\n".to_owned(),
        _ => format!("{line}\n"),
    });
    fs::write(folder.0.join("saved.yaml"), lines.collect::<String>()).unwrap();
    "saved.yaml"
}

/// Runs a command that is written as one line.
fn run(folder: &Folder, command: &str) -> String {
    folder.succeed(&command.split(' ').collect::<Vec<_>>())
}

fn trained(name: &str) -> Folder {
    let folder = Folder::new(name, "adam");
    run(&folder, "train t.yaml --quiet --epochs 8");
    run(&folder, "export out m.keras");
    folder
}

#[test]
fn a_saved_model_is_trained_from_its_values() {
    let folder = trained("saved");
    let before = run(&folder, "evaluate out");
    for model in ["m.keras", "out/model"] {
        let file = with_model(&folder, model);
        let train = format!("train {file} --output again --set fit.save_freq=epoch");
        let said = run(&folder, &format!("{train} --overwrite --epochs 1"));
        assert!(said.contains("4 of 4 variables have values"), "{said}");
        assert_eq!(run(&folder, "evaluate again"), before, "{model}");
        run(&folder, &format!("{train} --resume --epochs 2"));
        assert_eq!(run(&folder, "evaluate again"), before, "{model}");
    }
    // Other values in the place of its own.
    run(&folder, "train t.yaml --quiet --epochs 1 --output other");
    run(
        &folder,
        "train saved.yaml --set weights=other/model --output third --epochs 1",
    );
    assert_eq!(
        run(&folder, "evaluate third"),
        run(&folder, "evaluate other")
    );
}

#[test]
fn workers_train_a_saved_model() {
    let folder = trained("saved-two");
    let file = with_model(&folder, "m.keras");
    let program = env!("CARGO_BIN_EXE_phalanx");
    run(
        &folder,
        &format!("launch --workers 2 -- {program} train {file} --output two --epochs 1"),
    );
    let loss = |output: &str| value_of(&run(&folder, &format!("evaluate {output}")), "loss");
    let (one, two) = (loss("out"), loss("two"));
    assert!((one - two).abs() < 1e-4, "{one} {two}");
}

/// A folder with rows of four numbers and one of the models that Keras compiled, as `m.keras`.
fn compiled(name: &str, file: &str) -> Folder {
    let folder = Folder::new(name, "adam");
    let row = |i: u32| format!("{},{},{},{},{}\n", i % 5, i % 7, i % 3, i % 11, i % 3);
    fs::write(folder.0.join("f.csv"), (0..60).map(row).collect::<String>()).unwrap();
    let golden = "../../tests/golden/keras/compiled";
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(golden);
    fs::copy(golden.join(file), folder.0.join("m.keras")).unwrap();
    let text = "data: {csv: f.csv, divide_by: 10, test: {last: 20}}\nmodel: m.keras\n\
        fit: {epochs: 3, batch_size: 8}\n";
    fs::write(folder.0.join("short.yaml"), text).unwrap();
    folder
}

#[test]
fn a_model_is_trained_with_what_keras_compiled_it_with() {
    let folder = compiled("compiled", "plain.keras");
    let text = fs::read_to_string(folder.0.join("short.yaml")).unwrap();
    let long = format!(
        "{text}optimizer: adam\nloss: sparse_categorical_crossentropy\nmetrics: [accuracy]\n"
    );
    fs::write(folder.0.join("long.yaml"), long).unwrap();
    run(&folder, "train short.yaml --quiet --output short");
    run(&folder, "train long.yaml --quiet --output long");
    let found = run(&folder, "evaluate short");
    assert_eq!(found, run(&folder, "evaluate long"));
    // What is said on the command line changes a setting, or all of them.
    run(
        &folder,
        "train short.yaml --quiet --output changed --set optimizer.adam.learning_rate=0",
    );
    run(
        &folder,
        "train long.yaml --quiet --output still --set optimizer.adam.learning_rate=0",
    );
    let changed = run(&folder, "evaluate changed");
    assert_eq!(changed, run(&folder, "evaluate still"));
    assert_ne!(changed, found);
    // The folder of the model says all that is needed.
    fs::remove_file(folder.0.join("m.keras")).unwrap();
    assert_eq!(run(&folder, "evaluate short"), found);
}

#[test]
fn one_output_may_be_named_by_labels() {
    let folder = compiled("one-output", "plain.keras");
    let rows = fs::read_to_string(folder.0.join("f.csv")).unwrap();
    fs::write(folder.0.join("f.csv"), format!("p,q,r,s,c\n{rows}")).unwrap();
    let text = fs::read_to_string(folder.0.join("short.yaml")).unwrap();
    let write = |labels: &str| {
        let text = text.replace("csv: f.csv", &format!("csv: f.csv, labels: {labels}"));
        fs::write(folder.0.join("named.yaml"), text).unwrap();
    };
    run(&folder, "train short.yaml --quiet --output short");
    write("{y: c}");
    let told = run(&folder, "train named.yaml --progress plain --output named");
    assert!(
        told.contains(" accuracy ") && !told.contains("y_accuracy"),
        "{told}"
    );
    assert_eq!(
        run(&folder, "evaluate named"),
        run(&folder, "evaluate short")
    );
    write("{kind: c}");
    let told = [
        "named.yaml:2:8: m.keras has the outputs y, and the data have labels of kind",
        "in this order, by `labels` of `data`",
    ];
    folder.fail(&["train", "named.yaml", "--output", "new"], 2, &told);
}

#[test]
fn weighted_metrics_of_keras_are_logged() {
    let folder = compiled("weighted", "scheduled.keras");
    let text = run(&folder, "train short.yaml --progress plain --output new");
    for log in [" acc ", " among_two ", " sparse_categorical_accuracy "] {
        assert!(text.contains(log), "no {log} in {text}");
    }
}

#[test]
fn what_a_training_file_cannot_leave_to_keras_is_told() {
    let folder = compiled("not-compiled", "several.keras");
    let train = ["train", "short.yaml", "--output", "new"];
    let told = [
        "`loss` has the keys \"a\", \"z\", as of several outputs, and `data` names none",
        "by `labels` of `data`",
    ];
    folder.fail(&train, 2, &told);
    run(&folder, "train t.yaml --quiet --epochs 1");
    run(&folder, "export out m.keras");
    let told = ["m.keras", "the model was not compiled in Keras"];
    folder.fail(&train, 2, &told);
    let text = fs::read_to_string(folder.0.join("short.yaml")).unwrap();
    let text = text.replace("m.keras", "out/model");
    fs::write(folder.0.join("short.yaml"), text).unwrap();
    let told = ["lacks the key `optimizer`", "lacks the key `loss`"];
    folder.fail(&train, 2, &told);
}

#[test]
fn a_description_alone_is_trained_from_new_values() {
    let folder = trained("described");
    let file = with_model(&folder, "out/model/model.json");
    let said = run(&folder, &format!("train {file} --output new --epochs 1"));
    assert!(!said.contains("variables have values"), "{said}");
    // Nothing is learnt at this rate, so that both say what begins by the seed.
    let untrained = "train t.yaml --output layers --epochs 1 --set optimizer.adam.learning_rate=0";
    run(&folder, untrained);
    assert_eq!(
        run(&folder, "evaluate new"),
        run(&folder, "evaluate layers")
    );
    let of_keras = compiled("described-keras", "plain.json");
    fs::rename(of_keras.0.join("m.keras"), of_keras.0.join("m.json")).unwrap();
    let text = fs::read_to_string(of_keras.0.join("short.yaml")).unwrap();
    fs::write(
        of_keras.0.join("short.yaml"),
        text.replace("m.keras", "m.json"),
    )
    .unwrap();
    let said = run(&of_keras, "train short.yaml --progress plain --output new");
    assert!(
        said.contains("accuracy") && !said.contains("variables have values"),
        "{said}"
    );
}

#[test]
fn what_is_wrong_with_a_saved_model_is_said_at_its_line() {
    let folder = trained("no-saved");
    run(&folder, "export out m.weights.h5");
    let cases = [
        ("absent.keras", "saved.yaml:2:8: cannot open absent.keras"),
        (
            "m.weights.h5",
            "saved.yaml:2:8: m.weights.h5: model_config: the file has weights alone",
        ),
        ("a.csv", "saved.yaml:2:8: a.csv: config.json: "),
        ("out", "saved.yaml:2:8: "),
        (
            "3",
            "saved.yaml:2:8: `model` of the file is 3, expected a list of layers, or the path of a whole model",
        ),
    ];
    for (model, told) in cases {
        let file = with_model(&folder, model);
        folder.fail(&["train", file, "--output", "new"], 2, &[told]);
    }
    fs::write(folder.0.join("a.csv"), "1,2,3,0\n2,1,3,1\n".repeat(30)).unwrap();
    let file = with_model(&folder, "m.keras");
    let told = [
        "saved.yaml:2:8: m.keras: variable `dense/kernel` of model `sequential` is f32[2,16], and would be f32[3,16]",
        "`features`",
    ];
    folder.fail(&["train", file, "--output", "new"], 2, &told);
}

/// A model of an index and two numbers, trained.
fn of_two_inputs(name: &str) -> Folder {
    let folder = Folder::new(name, "adam");
    let row = |i: u32| format!("{},{},{},{}\n", i % 5, (i * 7) % 13, (i * 5) % 11, i % 3);
    let rows: String = (0..60).map(row).collect();
    fs::write(folder.0.join("i.csv"), format!("user,a,b,y\n{rows}")).unwrap();
    fs::write(
        folder.0.join("new.csv"),
        format!("y,b,a,user\n{}", "0,3,2,4\n1,5,9,0\n"),
    )
    .unwrap();
    let text = "data: {csv: i.csv, inputs: {who: user, about: [a, b]}, test: {last: 20}}\n\
        model: [{embedding: {inputs: who, input_dim: 5, output_dim: 3, name: vector}}, {concatenate: {inputs: [vector, about]}}, {dense: {units: 3}}]\n\
        optimizer: adam\nloss: {sparse_categorical_crossentropy: {from_logits: true}}\nfit: {epochs: 2}\noutput: out\n";
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    run(&folder, "train t.yaml --quiet");
    folder
}

#[test]
fn a_saved_model_of_several_inputs_is_trained() {
    let folder = of_two_inputs("saved-inputs");
    run(&folder, "export out m.keras");
    let before = run(&folder, "evaluate out");
    for model in ["m.keras", "out/model"] {
        let file = with_model(&folder, model);
        run(
            &folder,
            &format!("train {file} --output again --overwrite --epochs 1"),
        );
        assert_eq!(run(&folder, "evaluate again"), before, "{model}");
        assert_eq!(
            run(&folder, "predict again new.csv"),
            run(&folder, "predict out new.csv")
        );
    }
    let text = fs::read_to_string(folder.0.join("saved.yaml")).unwrap();
    let text = text.replace("{who: user, about: [a, b]}", "{about: [a, b], who: user}");
    fs::write(folder.0.join("saved.yaml"), text).unwrap();
    let told = ["takes the inputs who, about", "in this order"];
    folder.fail(&["train", "saved.yaml", "--output", "other"], 2, &told);
}

/// As `Trainer::save` leaves it: without a record of how the data were read.
#[test]
fn a_model_of_several_inputs_without_a_record_is_used_by_the_training_file() {
    let folder = of_two_inputs("no-record");
    fs::create_dir(folder.0.join("plain")).unwrap();
    for file in ["model.json", "weights.safetensors"] {
        let saved = folder.0.join("out/model").join(file);
        fs::copy(saved, folder.0.join("plain").join(file)).unwrap();
    }
    for (of_record, of_file) in [
        (
            "predict out new.csv",
            "predict t.yaml new.csv --output plain",
        ),
        ("evaluate out i.csv", "evaluate t.yaml i.csv --output plain"),
    ] {
        assert_eq!(run(&folder, of_record), run(&folder, of_file));
    }
    let told = [
        "plain has no trained model with a training.json",
        "with --output and this folder",
    ];
    folder.fail(&["predict", "plain", "new.csv"], 2, &told);
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let refused = |from: &str, to: &str, told: &[&str]| {
        fs::write(folder.0.join("o.yaml"), text.replace(from, to)).unwrap();
        folder.fail(
            &["predict", "o.yaml", "new.csv", "--output", "plain"],
            2,
            told,
        );
    };
    refused(
        "{who: user, about: [a, b]}",
        "{about: [a, b], who: user}",
        &["plain takes the inputs who, about", "in this order"],
    );
    refused(
        "i.csv,",
        "i.csv, standardize: true,",
        &["the means of the columns", "train again"],
    );
    refused(
        "i.csv,",
        "i.csv, one_hot: [b],",
        &["the values of the one-hot columns"],
    );
}

#[test]
fn a_model_without_a_record_is_given_the_number_for_missing_values() {
    let folder = Folder::new("no-fill", "adam");
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let text = text.replace("csv: a.csv,", "csv: a.csv, missing: 5,");
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    run(&folder, "train t.yaml --quiet --epochs 1");
    fs::write(folder.0.join("gap.csv"), "1,,0\n").unwrap();
    let expected = run(&folder, "predict out gap.csv");
    fs::remove_file(folder.0.join("out/model/training.json")).unwrap();
    assert_eq!(run(&folder, "predict t.yaml gap.csv"), expected);
    assert!(!expected.contains("NaN"), "{expected}");
}
