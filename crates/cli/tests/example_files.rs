//! Training files on IDX, CIFAR and TFRecord files: the same rows give the same model whatever holds them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use phalanx::data::{Features, TfRecordWriter};

/// Rows `x, y` and the class 1 where x is greater.
const ROWS: usize = 60;

fn row(i: usize) -> ([u8; 2], u8) {
    let (x, y) = ((i * 7) % 13, (i * 5) % 11);
    ([x as u8, y as u8], u8::from(x > y))
}

/// A folder with the rows in every format, the last twenty as a test of their own; removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("phalanx-examples-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let folder = Self(path);
        for (part, rows) in [("train", 0..ROWS - 20), ("test", ROWS - 20..ROWS)] {
            let rows: Vec<_> = rows.map(row).collect();
            folder.write_csv(part, &rows);
            folder.write_idx(part, &rows);
            folder.write_tfrecord(part, &rows);
        }
        folder
    }

    fn write_csv(&self, part: &str, rows: &[([u8; 2], u8)]) {
        let line = |([x, y], class): &([u8; 2], u8)| format!("{x},{y},{class}\n");
        let text: String = rows.iter().map(line).collect();
        fs::write(self.0.join(format!("{part}.csv")), text).unwrap();
    }

    fn write_idx(&self, part: &str, rows: &[([u8; 2], u8)]) {
        let head = |dims: &[u32]| {
            let mut head = vec![0, 0, 8, dims.len() as u8];
            head.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
            head
        };
        let count = rows.len() as u32;
        let mut images = head(&[count, 2]);
        images.extend(rows.iter().flat_map(|(x, _)| *x));
        let mut labels = head(&[count]);
        labels.extend(rows.iter().map(|(_, class)| *class));
        fs::write(self.0.join(format!("{part}-x.idx")), images).unwrap();
        fs::write(self.0.join(format!("{part}-y.idx")), labels).unwrap();
    }

    fn write_tfrecord(&self, part: &str, rows: &[([u8; 2], u8)]) {
        let path = self.0.join(format!("{part}-0.tfrecord"));
        let mut writer = TfRecordWriter::create(path).unwrap();
        for (i, (x, class)) in rows.iter().enumerate() {
            let features = Features::new()
                .with_ints("kind", vec![i64::from(*class)])
                .with_floats("value", vec![f32::from(x[0])]);
            // Floats, integers and raw bytes mean the same.
            let features = match i % 3 {
                0 => features.with_floats("x", x.iter().map(|&x| f32::from(x)).collect()),
                1 => features.with_ints("x", x.iter().map(|&x| i64::from(x)).collect()),
                _ => features.with_bytes("x", vec![x.to_vec()]),
            };
            writer.write(&features.to_bytes()).unwrap();
        }
        writer.finish().unwrap();
    }

    fn phalanx(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command
            .args(arguments)
            .current_dir(&self.0)
            .stdin(Stdio::null());
        command.output().unwrap()
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.phalanx(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn training(&self, name: &str, data: &str) -> String {
        let text = format!(
            "data: {data}\nmodel: [{{dense: {{units: 2, activation: softmax}}}}]\noptimizer: sgd\n\
             loss: sparse_categorical_crossentropy\nmetrics: [accuracy]\n\
             fit: {{epochs: 3, batch_size: 8, validation: {{split: 0.2}}}}\noutput: {name}\n"
        );
        let file = format!("{name}.yaml");
        fs::write(self.0.join(&file), text).unwrap();
        file
    }

    /// The weights of a training on these data, its test and its predictions.
    fn trained(&self, name: &str, data: &str) -> (Vec<u8>, String, String) {
        let file = self.training(name, data);
        self.succeed(&["train", &file]);
        let weights = fs::read(self.0.join(name).join("model/weights.safetensors")).unwrap();
        let evaluated = self.succeed(&["evaluate", name]);
        (weights, evaluated, self.succeed(&["predict", name]))
    }

    /// What is said of data that cannot be used.
    fn refused(&self, data: &str) -> String {
        let file = self.training("refused", data);
        let output = self.phalanx(&["train", &file]);
        assert_eq!(output.status.code(), Some(2), "{data}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const IDX: &str = "{idx: {images: train-x.idx, labels: train-y.idx}, divide_by: 10, test: {idx: {images: test-x.idx, labels: test-y.idx}}}";
const TFRECORD: &str = "{tfrecord: 'train-*.tfrecord', input: x, label: kind, divide_by: 10, test: {tfrecord: 'test-*.tfrecord'}}";

#[test]
fn the_same_rows_train_the_same_model() {
    let folder = Folder::new("same");
    let csv = folder.trained(
        "csv",
        "{csv: train.csv, divide_by: 10, test: {csv: test.csv}}",
    );
    for (name, data) in [("idx", IDX), ("tfrecord", TFRECORD)] {
        let (weights, evaluated, predicted) = folder.trained(name, data);
        assert!(weights == csv.0, "{name}: other weights");
        assert_eq!(evaluated, csv.1, "{name}");
        assert_eq!(predicted, csv.2, "{name}");
    }
}

#[test]
fn cifar_trains() {
    let folder = Folder::new("cifar");
    let record = |i: usize| {
        let mut record = vec![(i % 10) as u8];
        record.extend((0..3072).map(|pixel| ((i * 31 + pixel * 7) % 256) as u8));
        record
    };
    let bytes: Vec<u8> = (0..40).flat_map(record).collect();
    fs::write(folder.0.join("data_batch_1.bin"), bytes).unwrap();
    let text = "data: {cifar10: 'data_batch_*.bin', divide_by: 255, test: {split: 0.25}}\n\
                model: [flatten, {dense: {units: 10, activation: softmax}}]\noptimizer: sgd\n\
                loss: sparse_categorical_crossentropy\nfit: {epochs: 1, batch_size: 10}\noutput: out\n";
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    folder.succeed(&["train", "t.yaml"]);
    let predicted = folder.succeed(&["predict", "out"]);
    // A line names the columns.
    assert_eq!(predicted.lines().count(), 11, "{predicted}");
}

#[test]
fn mistakes_say_what_the_files_have() {
    let folder = Folder::new("mistakes");
    let cases = [
        (
            "{tfrecord: 'train-*.tfrecord', label: kind}",
            "no feature `image`, only kind, value, x; write `input: NAME` in data",
        ),
        ("{tfrecord: 'none-*.tfrecord'}", "none-*.tfrecord"),
        (
            "{tfrecord: 'train-*.tfrecord', input: x, label: kind, features: [3]}",
            "has 2 numbers, expected 3 for the dims [3]; correct `features`",
        ),
        ("{idx: {images: train-x.idx, labels: test-y.idx}}", "20"),
        ("{idx: {images: train-x.idx}}", "lacks the key `labels`"),
        ("{cifar10: train-x.idx}", "train-x.idx"),
        (
            "{idx: {images: train-x.idx, labels: train-y.idx}, test: {last: 3}}",
            "test has no key \"last\"; known are idx, split",
        ),
    ];
    for (data, expected) in cases {
        let told = folder.refused(data);
        assert!(told.contains(expected), "{data}: {told}");
    }
}
