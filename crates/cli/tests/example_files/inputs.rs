//! Several inputs of TFRecord files.

use std::fs;
use std::ops::Range;

use phalanx::data::{Feature, Features, SequenceExample, TfRecordWriter};

use crate::{Folder, ROWS, row};

const MODEL_OF_INPUTS: &str = "model:\n\
    - embedding: {inputs: words, input_dim: 12, output_dim: 4, mask_zero: true}\n\
    - global_average_pooling1d: {name: mean}\n\
    - embedding: {inputs: user, input_dim: 7, output_dim: 2, name: who}\n\
    - concatenate: {inputs: [mean, who, about]}\n\
    - dense: {units: 2, activation: softmax}\n\
    optimizer: sgd\nloss: sparse_categorical_crossentropy\nmetrics: [accuracy]\nfit: {epochs: 3, batch_size: 8}\n";

/// The words of a row: up to six of nine.
fn words_of(i: usize) -> Vec<String> {
    (0..1 + i * 5 % 6)
        .map(|k| format!("w{}", (i * 3 + k * k) % 9))
        .collect()
}

/// Rows of texts, a user and numbers in a CSV file, and the same in TFRecord files with the numbers that the training has given the words.
#[test]
fn several_inputs_of_records_train_as_those_of_a_table() {
    let folder = Folder::new("inputs");
    let trained = |name: &str, data: &str| {
        let text = format!("data: {data}\n{MODEL_OF_INPUTS}output: {name}\n");
        fs::write(folder.0.join(format!("{name}.yaml")), text).unwrap();
        folder.succeed(&["train", &format!("{name}.yaml")]);
        let weights = fs::read(folder.0.join(name).join("model/weights.safetensors")).unwrap();
        let results = [
            folder.succeed(&["evaluate", name]),
            folder.succeed(&["predict", name]),
        ];
        (weights, results)
    };
    let parts = [("train", 0..ROWS - 20), ("test", ROWS - 20..ROWS)];
    for (part, rows) in parts.clone() {
        let line = |i: usize| {
            let ([x, y], class) = row(i);
            format!("{},{},{x},{y},{class}\n", words_of(i).join(" "), i % 7)
        };
        let rows: String = rows.map(line).collect();
        let name = folder.0.join(format!("{part}-words.csv"));
        fs::write(name, format!("review,user,x,y,kind\n{rows}")).unwrap();
    }
    let csv = "{csv: train-words.csv, label: kind, inputs: {words: review, user: user, about: [x, y]}, divide_by: 10, \
        text: {column: review, length: 6BUCKETS}, test: {csv: test-words.csv}}";
    let records = "{tfrecord: 'train-words-*', label: kind, inputs: {words: {feature: tokens, length: 6BUCKETS}, user: user, about: [x, y]}, \
        divide_by: 10, test: {tfrecord: 'test-words-*'}}";
    let plain = trained("plain", &csv.replace("BUCKETS", ""));
    let record = fs::read(folder.0.join("plain/model/training.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let known: Vec<String> =
        serde_json::from_value(record["facts"]["texts"][0]["words"].clone()).unwrap();
    for (part, rows) in parts {
        write_records(&folder, part, rows, &known);
    }
    assert!(trained("records", &records.replace("BUCKETS", "")) == plain);
    let steps = records.replace("-words-*", "-steps-*");
    assert!(trained("steps", &steps.replace("BUCKETS", "")) == plain);
    lists_are_no_features(&folder, &steps.replace("BUCKETS", ""));
    let of_csv = trained("csv-buckets", &csv.replace("BUCKETS", ", buckets: [2, 4]"));
    let of_records = trained("buckets", &records.replace("BUCKETS", ", buckets: [2, 4]"));
    assert!(of_csv == of_records && of_csv != plain);
    other_buckets_are_no_other_numbers(&folder);
    few_texts_are_measured_alike(&folder);
}

/// Rows as records with the numbers of their words, and as sequences whose steps have these.
fn write_records(folder: &Folder, part: &str, rows: Range<usize>, known: &[String]) {
    let path = folder.0.join(format!("{part}-words-0"));
    let mut writer = TfRecordWriter::create(path).unwrap();
    let path = folder.0.join(format!("{part}-steps-0"));
    let mut of_steps = TfRecordWriter::create(path).unwrap();
    for i in rows {
        let number = |word: &String| known.iter().position(|other| other == word);
        let numbers: Vec<i64> = words_of(i)
            .iter()
            .map(|word| number(word).map_or(1, |at| at as i64 + 2))
            .collect();
        // Steps of two numbers, and one of none.
        let steps = numbers.chunks(2).chain([&[][..]]);
        let steps = steps.map(|step| Feature::Ints(step.to_vec()));
        let sequence = SequenceExample::new().with_list("tokens", steps.collect());
        let ([x, y], class) = row(i);
        let features = Features::new()
            .with_ints("user", vec![i as i64 % 7])
            .with_floats("x", vec![f32::from(x)])
            .with_ints("y", vec![i64::from(y)])
            .with_ints("kind", vec![i64::from(class)]);
        let sequence = sequence.with_context(features.clone());
        of_steps.write(&sequence.to_bytes()).unwrap();
        let features = features.with_ints("tokens", numbers);
        writer.write(&features.to_bytes()).unwrap();
    }
    writer.finish().unwrap();
    of_steps.finish().unwrap();
}

fn lists_are_no_features(folder: &Folder, data: &str) {
    for of in ["tokens", "[tokens, x]"] {
        let data = data.replace("{feature: tokens, length: 6}", of);
        let text = format!("data: {data}\n{MODEL_OF_INPUTS}output: lists\n");
        fs::write(folder.0.join("lists.yaml"), text).unwrap();
        let output = folder.phalanx(&["train", "lists.yaml"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        let expected = "`tokens` is a list of features, one for each step, expected a feature; write `{feature: tokens, length: 100}`";
        assert!(told.contains(expected), "{told}");
    }
}

/// Other buckets make other batches of the same numbers; with none a model has a fixed length.
fn other_buckets_are_no_other_numbers(folder: &Folder) {
    let changed = |name: &str, from: &str, to: &str| {
        let file = format!("{name}.yaml");
        let text = fs::read_to_string(folder.0.join(&file)).unwrap();
        assert!(text.contains(from));
        fs::write(folder.0.join(&file), text.replace(from, to)).unwrap();
        file
    };
    for name in ["csv-buckets", "buckets"] {
        let expected = loss(&folder.succeed(&["evaluate", name]));
        let file = changed(name, "buckets: [2, 4]", "buckets: [3]");
        let found = loss(&folder.succeed(&["evaluate", &file]));
        // Four decimals are shown, of sums in another order.
        assert!((found - expected).abs() < 1.5e-4, "{found} {expected}");
    }
    for (name, key) in [("plain", "`text`"), ("records", "`inputs`")] {
        let file = changed(name, "length: 6", "length: 6, buckets: [2]");
        let output = folder.phalanx(&["evaluate", &file]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(&format!("{key} of {file} is ")), "{told}");
    }
}

/// The loss in the results of an evaluation.
fn loss(text: &str) -> f64 {
    let (_, loss) = text.split_once("loss ").unwrap_or_else(|| panic!("{text}"));
    let end = loss.find(|c: char| !"0123456789.e-".contains(c));
    loss[..end.unwrap_or(loss.len())].parse().unwrap()
}

/// The loss of three rows is the mean of their own, also of a text that has as many words as another input has numbers.
fn few_texts_are_measured_alike(folder: &Folder) {
    let rows = ["w1 w2,3,4,1,1", "w4,2,1,0,0", "w3 w0 w1 w5 w6 w8,1,2,2,0"];
    let measured = |rows: &[&str]| {
        let text = format!("review,user,x,y,kind\n{}\n", rows.join("\n"));
        fs::write(folder.0.join("few.csv"), text).unwrap();
        loss(&folder.succeed(&["evaluate", "csv-buckets.yaml", "few.csv"]))
    };
    let each: f64 = rows.iter().map(|row| measured(&[row])).sum();
    let all = measured(&rows);
    assert!((each / 3.0 - all).abs() < 2e-4, "{each} {all}");
}

#[test]
fn numbers_of_an_input_are_as_many_in_all_records() {
    let folder = Folder::new("inputs-uneven");
    let mut writer = TfRecordWriter::create(folder.0.join("uneven")).unwrap();
    for i in 0..20 {
        let features = Features::new()
            .with_ints("tokens", vec![1; 1 + i % 4])
            .with_floats("age", vec![0.5; 2 + usize::from(i == 17)])
            .with_ints("kind", vec![i as i64 % 2]);
        writer.write(&features.to_bytes()).unwrap();
    }
    writer.finish().unwrap();
    for buckets in ["", ", buckets: [2]"] {
        let data = format!(
            "{{tfrecord: uneven, label: kind, inputs: {{words: {{feature: tokens, length: 4{buckets}}}, about: [age]}}}}"
        );
        let model = MODEL_OF_INPUTS.replace("[mean, who, about]", "[mean, about]");
        let model = model.lines().filter(|line| !line.contains("who"));
        let text = format!("data: {data}\n{}\n", model.collect::<Vec<_>>().join("\n"));
        fs::write(folder.0.join("uneven.yaml"), text).unwrap();
        let output = folder.phalanx(&["train", "uneven.yaml"]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{told}");
        assert!(
            told.contains("has 3 numbers for the input `about`, expected 2"),
            "{told}"
        );
    }
}

#[test]
fn inputs_that_records_have_not_are_refused() {
    let folder = Folder::new("inputs-refused");
    for (inputs, expected) in [
        (
            "{a: value}",
            "the feature `value` is 1 values of float, expected integers",
        ),
        (
            "{a: none}",
            "no feature `none`, only kind, value, x; write `inputs: NAME`",
        ),
        (
            "{a: kind, b: [x]}",
            "the first layer does not say which of the inputs a, b it takes",
        ),
        (
            "{a: {feature: value, length: 3}}",
            "values of float, expected integers",
        ),
        (
            "{a: {feature: kind, length: 3, buckets: [3]}}",
            "all below `length`, which is 3",
        ),
        (
            "{a: {feature: kind, length: 3, buckets: [1]}, b: {feature: kind, length: 3, buckets: [2]}}",
            "is in two inputs",
        ),
        ("{a: {feature: kind}}", "length"),
        ("{a: 3}", "expected names of inputs, each with a feature"),
        ("{a: []}", "expected names of inputs, each with a feature"),
        ("kind", "expected names of inputs, each with a feature"),
        ("{}", "expected names of inputs, each with a feature"),
        ("{a.b: kind}", "with `:`, `.` or `/`"),
    ] {
        let error = folder.refused(&format!(
            "{{tfrecord: 'train-*.tfrecord', label: kind, inputs: {inputs}}}"
        ));
        assert!(error.contains(expected), "{inputs}: {error}");
    }
    let both = "{tfrecord: 'train-*.tfrecord', label: kind, inputs: {a: kind}, input: x, features: [2], image_size: [8, 8]}";
    let error = folder.refused(both);
    for other in [
        "`input` is there too",
        "`features` is there too",
        "`image_size` is there too",
    ] {
        assert!(error.contains(other), "{error}");
    }
}
