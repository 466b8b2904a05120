//! Mistakes, and the words that each is answered with.

use std::fs;
use std::path::Path;

use crate::{Folder, rows, training};

/// What is told of mistakes, one after the other.
struct Told<'a> {
    folder: &'a Folder,
    /// How most of them train.
    train: &'static str,
    found: String,
}

impl<'a> Told<'a> {
    const fn new(folder: &'a Folder, train: &'static str) -> Self {
        Self {
            folder,
            train,
            found: String::new(),
        }
    }

    /// Runs a command with these sections in the training file.
    fn tell(&mut self, arguments: &str, sections: &[(&str, &str)]) {
        self.folder.write("m.yaml", &training(sections));
        let told = self.folder.told(arguments);
        let sections: Vec<String> = sections.iter().map(|(k, v)| format!("{k}: {v}")).collect();
        self.found += &format!("$ {arguments}  # {}\n{told}\n\n", sections.join(", "));
    }

    fn train(&mut self, sections: &[(&str, &str)]) {
        self.tell(self.train, sections);
    }

    fn change(&mut self, name: &str, value: &str) {
        self.train(&[(name, value)]);
    }
}

#[test]
fn each_mistake_is_answered_in_the_expected_words() {
    let folder = Folder::new("mistakes");
    folder.write(
        "from1.csv",
        &rows().replace(",1\n", ",2\n").replace(",0\n", ",1\n"),
    );
    folder.write("late.csv", &format!("{}1,2,7\n", rows()));
    let sorted: String = (0..40).map(|i| format!("{i},1,{}\n", i / 20)).collect();
    folder.write("sorted.csv", &sorted);
    folder.write("index.csv", &"1,2,0\n3,9,1\n".repeat(8));
    folder.write("headed.csv", &format!("x,y,c\n{}", rows()));
    folder.write("turned.csv", "y,x,c\n1,2,0\n");
    folder.write("other.csv", "y,z,c\n1,2,0\n");
    let mut told = Told::new(&folder, "train m.yaml --quiet --output new");
    values_that_a_model_cannot_take(&mut told);
    settings_without_an_effect_and_overrides(&mut told);
    what_is_no_mistake_and_looks_like_one(&mut told);
    models_that_are_not_there_or_of_other_data(&mut told);
    files_of_data(&mut told);
    columns_of_texts(&mut told);
    compare(&told.found, "expected.txt");
}

fn values_that_a_model_cannot_take(told: &mut Told) {
    let embedding = "[{embedding: {input_dim: 8, output_dim: 2}}, flatten, {dense: {units: 2, activation: softmax}}]";
    told.train(&[("data", "{csv: late.csv, test: {last: 5}}")]);
    told.train(&[("data", "{csv: from1.csv}")]);
    told.train(&[("data", "{csv: index.csv}"), ("model", embedding)]);
    told.train(&[("fit", "{class_weight: {0: 1.0, 9: 2.0}}")]);
    told.train(&[("data", "{csv: headed.csv, columns: [x, q]}")]);
    told.train(&[("data", "{csv: headed.csv, columns: [x, c]}")]);
    told.train(&[("data", "{csv: a.csv, classes: [a, a]}")]);
    told.train(&[("data", "{csv: a.csv, classes: [a, b], label_type: value}")]);
    told.train(&[("data", "{csv: a.csv, missing: median}")]);
    told.train(&[("data", "{csv: a.csv, test: {split: 0.001}}")]);
}

fn settings_without_an_effect_and_overrides(told: &mut Told) {
    // Settings without an effect.
    told.train(&[(
        "strategy",
        "{mirrored: {devices: \"cpu:2\", shares: [1, 0]}}",
    )]);
    told.train(&[(
        "strategy",
        "{mirrored: {devices: \"cpu:2\", verify_every: 0}}",
    )]);
    told.tell("train m.yaml --epochs 0", &[]);
    told.tell("train m.yaml --steps-per-epoch -1", &[]);
    // Overrides.
    told.tell("train m.yaml --dry-run --set fit.batchsize=64", &[]);
    told.tell("train m.yaml --dry-run --set fit.batch_size", &[]);
    told.tell("train m.yaml --dry-run --set model.7.dense=1", &[]);
    told.tell("train m.yaml --dry-run --set fit.batch_size=[", &[]);
    told.tell("train m.yaml --dry-run --set fit.batch_size=many", &[]);
}

fn what_is_no_mistake_and_looks_like_one(told: &mut Told) {
    let dry = "train m.yaml --dry-run --progress json";
    told.tell(dry, &[]);
    told.tell(dry, &[("data", "{csv: sorted.csv, test: {last: 20}}")]);
    told.tell(
        dry,
        &[
            ("data", "{csv: sorted.csv}"),
            ("fit", "{validation: {split: 0.5}}"),
        ],
    );
    told.tell(
        dry,
        &[("data", "{csv: sorted.csv}"), ("fit", "{shuffle: false}")],
    );
    told.tell(dry, &[("data", "{csv: sorted.csv, test: {split: 0.2}}")]);
    let three = "[{dense: {units: 3, activation: softmax}}]";
    told.tell(dry, &[("data", "{csv: from1.csv}"), ("model", three)]);
    told.tell(dry, &[("model", "[{dense: {units: 2}}]")]);
    let logits = "{sparse_categorical_crossentropy: {from_logits: true}}";
    told.tell(dry, &[("loss", logits)]);
    told.tell(dry, &[("loss", logits), ("model", "[{dense: {units: 2}}]")]);
}

fn models_that_are_not_there_or_of_other_data(told: &mut Told) {
    told.tell("evaluate out", &[]);
    told.tell("predict nowhere", &[]);
    told.tell("evaluate m.yaml --checkpoint", &[]);
    told.folder.write("saved.keras", "PK\u{3}\u{4}..");
    told.tell("predict saved.keras", &[]);
    let named = [(
        "data",
        "{csv: headed.csv, divide_by: 16, test: {split: 0.2}}",
    )];
    told.folder.write("m.yaml", &training(&named));
    told.folder.succeed("train m.yaml --quiet");
    told.tell("train m.yaml --quiet", &named);
    told.tell("train m.yaml --quiet --resume", &named);
    told.tell("predict out other.csv", &named);
    told.tell(
        "evaluate m.yaml",
        &[(
            "data",
            "{csv: headed.csv, divide_by: 255, test: {split: 0.2}}",
        )],
    );
    told.tell("evaluate m.yaml", &[named[0], ("fit", "{seed: 3}")]);
    told.tell("evaluate out --images .", &named);
    told.tell("evaluate out a.csv --csv a.csv", &named);
}

fn files_of_data(told: &mut Told) {
    told.tell("data inspect nothing.csv", &[]);
    told.tell("data inspect nothing*.csv", &[]);
    told.tell("data inspect t.yaml", &[]);
    told.folder
        .succeed("data shard a.csv --to shards --shards 2");
    told.tell("data shard a.csv --to shards --shards 3", &[]);
}

fn columns_of_texts(told: &mut Told) {
    let text = "review,stars,y\n\"Good,\nvery good\",5,1\nbad,1,0\n\"\",3,1\n";
    told.folder.write("reviews.csv", text);
    let with = |rest: &str| format!("{{csv: reviews.csv, {rest}}}");
    let of_text = |rest: &str| with(&format!("text: {{column: review, length: 4}}{rest}"));
    let words = |rows: usize| {
        format!(
            "[{{embedding: {{input_dim: {rows}, output_dim: 2}}}}, flatten, {{dense: {{units: 2, activation: softmax}}}}]"
        )
    };
    // What somebody meets who has not read about texts.
    told.train(&[("data", "{csv: reviews.csv}")]);
    told.train(&[("data", &with("one_hot: [review]"))]);
    told.train(&[("data", &with("text: {column: review}"))]);
    told.train(&[("data", &of_text(""))]);
    told.train(&[("data", &of_text(", missing: drop"))]);
    told.train(&[("data", &of_text(", missing: drop")), ("model", &words(4))]);
    let inputs = of_text(", missing: drop, inputs: {says: review, stars: [stars]}");
    told.train(&[("data", &inputs), ("model", &words(5))]);
    let dense = "[{dense: {units: 2, inputs: says, name: d}}, {concatenate: {inputs: [d, stars]}}]";
    told.train(&[("data", &inputs), ("model", dense)]);
    let dry = "train m.yaml --dry-run --progress json";
    let kept = [("data", &*of_text(", missing: 0")), ("model", &*words(5))];
    told.tell(dry, &kept);
}

/// Compares what was told with a file of `first_use`.
fn compare(found: &str, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/first_use");
    let path = folder.join(name);
    if std::env::var_os("PHALANX_UPDATE_EXPECTED").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    for (found, expected) in found.split("\n\n").zip(expected.split("\n\n")) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn mistakes_of_models_settings_and_commands_are_answered() {
    let folder = Folder::new("settings");
    folder.write("empty.csv", "");
    folder.write("uneven.csv", "1,2,0\n1,2\n");
    folder.write("words.csv", &format!("{}1,two,0\n", rows()));
    folder.write("nan.csv", &format!("{}nan,2,0\n", rows()));
    folder.write("far.csv", &"1e30,1e30,1\n".repeat(24));
    folder.write("half.csv", &"1,2,0.5\n".repeat(24));
    folder.write("wide.csv", "1,2,3,4,0\n");
    folder.write("file", "not a folder");
    fs::create_dir_all(folder.0.join("pictures/none")).unwrap();
    let mut told = Told::new(&folder, "train m.yaml --quiet --overwrite --output new");
    data_and_models(&mut told);
    what_models_are_trained_with(&mut told);
    commands(&mut told);
    weights_of_a_training_before(&mut told);
    compare(&told.found, "settings.txt");
}

/// A model that has another layer than `t.yaml`'s.
const WIDER: &str = "[{dense: {units: 3}}, {dense: {units: 2, activation: softmax}}]";

fn data_and_models(told: &mut Told) {
    // Files of data.
    for file in ["nowhere", "empty", "uneven", "words", "nan", "half"] {
        told.change("data", &format!("{{csv: {file}.csv}}"));
    }
    told.change("data", "{csv: a.csv, test: {last: 60}}");
    told.change("data", "{csv: a.csv, label: 7}");
    told.change("data", "{image_folder: pictures, size: [8, 8]}");
    // Pictures of three classes, and a model of two.
    let synth = "data synth --to photos --classes 3 --count 6 --width 8 --height 8";
    told.folder.succeed(synth);
    let photos = ("data", "{image_folder: photos, image_size: [8, 8]}");
    let one = "[flatten, {dense: {units: 1, activation: sigmoid}}]";
    told.train(&[photos, ("model", one), ("loss", "binary_crossentropy")]);
    let two = "[flatten, {dense: {units: 2, activation: softmax}}]";
    told.train(&[photos, ("model", two)]);
    // Models.
    told.change("model", "[{dens: {units: 2}}]");
    told.change("model", "[{dense: {units: 0}}]");
    told.change("model", "[{dense: {}}]");
    told.change(
        "model",
        "[{dropout: {rate: 1.5}}, {dense: {units: 2, activation: softmax}}]",
    );
    told.change(
        "model",
        "[{conv2d: {filters: 4, kernel_size: 3}}, {dense: {units: 2}}]",
    );
    told.change("model", "[{dense: {units: 2, activation: softmaxx}}]");
    told.change("model", "[{dense: {units: 1, activation: softmax}}]");
    told.change("model", "[]");
}

fn what_models_are_trained_with(told: &mut Told) {
    told.change("optimizer", "adamm");
    told.change("optimizer", "{adam: {lr: 0.1}}");
    told.change("optimizer", "{adam: {learning_rate: -0.1}}");
    told.change("optimizer", "{sgd: {momentum: 1.5}}");
    told.change(
        "optimizer",
        "{adam: {learning_rate: {cosine_decay: {decay_steps: 0}}}}",
    );
    told.change("loss", "categorical_crossentropy");
    told.change("loss", "binary_crossentropy");
    told.change("loss", "cross_entropy");
    told.change("metrics", "[acc, f2]");
    told.change("fit", "{epochs: 1.5}");
    told.change("fit", "{epochs: 1, batch_size: 0}");
    told.change("fit", "{epochs: 1, validation: {split: 1.5}}");
    told.change("fit", "{epochs: 1, early_stopping: {patience: 3}}");
    told.change("fit", "{epochs: 1, keep_best: {metric: val_loss}}");
    told.change("fit", "{epochs: 1, precision: fp16}");
    told.change("fit", "{epochs: 1, keep_best: val_accuracy}");
    told.change("callbacks", "[{early_stopping: {monitor: val_loss}}]");
    told.change("callbacks", "[{early_stopping: {monitor: accuracyy}}]");
    told.change("strategy", "{miror: {}}");
    told.change(
        "strategy",
        "{mirrored: {devices: \"cpu:2\", shares: [1, 2, 3]}}",
    );
    told.change("learning_rate", "0.1");
    told.train(&[
        ("data", "{csv: far.csv, label_type: value}"),
        ("model", "[{dense: {units: 1}}]"),
        ("loss", "mean_squared_error"),
        ("metrics", "[]"),
    ]);
}

fn commands(told: &mut Told) {
    told.tell("trian m.yaml", &[]);
    told.tell("train", &[]);
    told.tell("train nowhere.yaml", &[]);
    told.tell("train .", &[]);
    told.tell("train m.yaml --quiet --output file", &[]);
    told.tell(
        "train m.yaml --quiet --overwrite --devices printer --output new",
        &[],
    );
    told.tell("train m.yaml --quiet --batch-size 0", &[]);
    told.tell("estimate nowhere.yaml", &[]);
    told.folder.succeed("train t.yaml --quiet --resume");
    told.tell("predict out wide.csv", &[]);
    told.tell("evaluate out words.csv", &[]);
    told.tell(
        "train m.yaml --quiet --resume --epochs 2",
        &[("model", WIDER)],
    );
    told.tell(
        "train m.yaml --quiet --resume --epochs 2",
        &[("optimizer", "sgd")],
    );
    for fit in [
        "{validation_steps: 3}",
        "{validation_freq: 2}",
        "{validation: {split: 0.1}, validation_freq: 0}",
        "{keep_checkpoints: 0}",
        "{preemption_notice: google}",
        "{steps_per_epoch: 0}",
        "{batch_size: {per_replica: 0}}",
        "{batch_size: {}}",
        "{batch_size: {each: 4}}",
    ] {
        told.tell("train m.yaml --dry-run", &[("fit", fit)]);
    }
    for scale in ["0.5", "on", "{initial_scale: 8}", "{growth_steps: 0}"] {
        told.tell("train m.yaml --dry-run", &[("loss_scale", scale)]);
    }
    let skips = ("callbacks", "[{terminate_on_nan: {policy: skip}}]");
    told.tell("train m.yaml --dry-run", &[("loss_scale", "8"), skips]);
}

fn weights_of_a_training_before(told: &mut Told) {
    let change = |told: &mut Told, name: &str, value: &str| {
        told.train(&[(name, value), ("model", WIDER)]);
    };
    let file = "out/model/weights.safetensors";
    change(told, "weights", "nowhere.safetensors");
    change(told, "weights", file);
    change(told, "weights", "a.csv");
    change(told, "fine_tune", &format!("{{weights: {file}}}"));
    change(
        told,
        "fine_tune",
        &format!("{{weights: {file}, freeze: [dence]}}"),
    );
    change(
        told,
        "fine_tune",
        &format!("{{weights: {file}, freez: [dense]}}"),
    );
    change(
        told,
        "fine_tune",
        &format!("{{weights: {file}}}\nweights: {file}"),
    );
}
