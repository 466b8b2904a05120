//! Folders that TensorFlow Datasets wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::Folder;
use phalanx_testkit::Scratch;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tensorflow_datasets")
}

fn new(name: &str) -> Folder {
    Folder(Scratch::temporary(name))
}

/// What a command printed.
fn text(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{error}")
}

/// A training file on the made-up signs.
fn write(folder: &Folder, data: &str, model: &str) {
    let signs = golden().join("signs/1.0.0");
    let data = data.replace("SIGNS", &signs.display().to_string());
    let file = format!(
        "data: {data}\nmodel: [{model}]\noptimizer: adam\nloss: sparse_categorical_crossentropy\nfit: {{epochs: 1, batch_size: 4}}\noutput: out\n"
    );
    fs::write(folder.0.join("t.yaml"), file).unwrap();
}

#[test]
fn a_split_is_trained_and_another_tested() {
    let folder = new("tfds-splits");
    let both =
        "{tfds: {folder: SIGNS}, divide_by: 255, test: {tfds: {folder: SIGNS, split: test}}}";
    write(
        &folder,
        both,
        "flatten, {dense: {units: 3, activation: softmax}}",
    );
    let trained = folder.phalanx(&["train", "t.yaml", "--progress", "plain"]);
    let shown = text(&trained);
    let data = "data: 7 examples to train on, 3 to test; each of [6, 5, 1]; 3 classes: stop, go left, Straße";
    assert!(trained.status.success() && shown.contains(data), "{shown}");
    let predicted = folder.phalanx(&["predict", "out"]);
    let shown = String::from_utf8_lossy(&predicted.stdout).into_owned();
    assert!(
        shown.starts_with("class,score_stop,score_go left,score_Straße\n"),
        "{shown}"
    );
    assert_eq!(shown.lines().count(), 4);
    assert!(folder.phalanx(&["evaluate", "out"]).status.success());
}

#[test]
fn images_of_several_sizes_are_made_of_one() {
    let folder = new("tfds-sizes");
    let photos = "{tfds: {folder: SIGNS}, input: photo, SIZE test: {split: 0.3}}";
    let model = "flatten, {dense: {units: 3, activation: softmax}}";
    write(&folder, &photos.replace("SIZE", ""), model);
    let refused = text(&folder.phalanx(&["train", "t.yaml"]));
    assert!(
        refused
            .contains("the images `photo` have several sizes; write `image_size: [ROWS, COLUMNS]`"),
        "{refused}"
    );
    write(
        &folder,
        &photos.replace("SIZE", "image_size: [8, 8],"),
        model,
    );
    let shown = text(&folder.phalanx(&["train", "t.yaml", "--progress", "plain"]));
    assert!(
        shown.contains("4 examples to train on, 3 to test; each of [8, 8, 3]; 3 classes: stop,"),
        "{shown}"
    );
}

/// A folder of the same dataset in which something differs is tested, with images that are made of one size.
#[test]
fn a_test_folder_that_is_cut_or_numbers_its_classes_otherwise_is_refused() {
    let folder = new("tfds-tests");
    let signs = golden().join("signs/1.0.0");
    let other = folder.0.join("other");
    fs::create_dir(&other).unwrap();
    for entry in fs::read_dir(&signs).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), other.join(entry.file_name())).unwrap();
    }
    let data = format!(
        "{{tfds: {{folder: SIGNS}}, image_size: [8, 8], test: {{tfds: {{folder: {}, split: test}}}}}}",
        other.display()
    );
    let model = "flatten, {dense: {units: 3, activation: softmax}}";
    write(&folder, &data, model);
    let refused = |what: &str| {
        let trained = folder.phalanx(&["train", "t.yaml", "--overwrite"]);
        let shown = text(&trained);
        assert!(!trained.status.success() && shown.contains(what), "{shown}");
    };
    let names = other.join("label.labels.txt");
    let lines = fs::read_to_string(&names).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    fs::write(
        &names,
        format!("{}\n{}\n{}\n", lines[0], lines[2], lines[1]),
    )
    .unwrap();
    refused("class 1 is `Straße` in ");
    fs::copy(signs.join("label.labels.txt"), &names).unwrap();
    let files = fs::read_dir(&other).unwrap().map(|entry| entry.unwrap());
    let shards = files.filter(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .contains("-test.tfrecord")
    });
    fs::write(shards.last().unwrap().path(), "").unwrap();
    refused("; copy the folder again");
}

#[test]
fn features_of_numbers_are_inputs_and_labels() {
    let folder = new("tfds-numbers");
    let model = "flatten, {dense: {units: 4, activation: softmax}}";
    write(
        &folder,
        "{tfds: {folder: SIGNS}, input: size, label: place/kind}",
        model,
    );
    let shown = text(&folder.phalanx(&["train", "t.yaml", "--progress", "plain"]));
    assert!(
        shown.contains("7 examples to train on; each of [2, 3, 1]"),
        "{shown}"
    );
    let inputs = "{tfds: {folder: SIGNS}, inputs: {kind: place/kind, rest: [size, weight], words: {feature: words, length: 5}}, label: label}";
    let layers = "{embedding: {inputs: kind, input_dim: 4, output_dim: 2, name: a}}, {embedding: {inputs: words, input_dim: 9, output_dim: 2, name: b}}, \
        {global_average_pool1d: {inputs: b, name: c}}, {concatenate: {inputs: [a, rest, c]}}, {dense: {units: 3, activation: softmax}}";
    write(&folder, inputs, layers);
    let trained = folder.phalanx(&["train", "t.yaml", "--overwrite"]);
    assert!(trained.status.success(), "{}", text(&trained));
    for (data, told) in [
        (
            "{tfds: {folder: SIGNS}, input: note}",
            "is a text, expected an image, a class or numbers",
        ),
        (
            "{tfds: {folder: SIGNS}, label: weight}",
            "which is no class; write `label_type: value`",
        ),
        (
            "{tfds: {folder: SIGNS, split: validation}}",
            "has no split `validation`, only test, train",
        ),
        ("{tfds: {folder: none}}", "dataset_info.json"),
    ] {
        write(&folder, data, model);
        let refused = folder.phalanx(&["train", "t.yaml", "--overwrite"]);
        assert!(
            !refused.status.success() && text(&refused).contains(told),
            "{data}: {}",
            text(&refused)
        );
    }
}
