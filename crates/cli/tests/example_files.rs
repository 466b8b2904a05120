//! Training files on IDX, CIFAR, TFRecord, WebDataset and Parquet files: the same rows give the same model whatever holds them.

#[path = "example_files/inputs.rs"]
mod inputs;
#[path = "example_files/tables.rs"]
mod tables;
#[path = "example_files/tfds.rs"]
mod tfds;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use parquet::data_type::{DoubleType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use phalanx::data::{Features, TfRecordWriter};
use phalanx_testkit::Scratch;

/// Rows `x, y` and the class 1 where x is greater.
const ROWS: usize = 60;

fn row(i: usize) -> ([u8; 2], u8) {
    let (x, y) = ((i * 7) % 13, (i * 5) % 11);
    ([x as u8, y as u8], u8::from(x > y))
}

/// A column of a table, and what it has of a row.
type TableColumn = (&'static str, fn(&[u8; 2]) -> f64);

/// A folder with the rows in every format, the last twenty as a test of their own; removed at the end.
struct Folder(Scratch);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Scratch::temporary(&format!("examples-{name}"));
        let folder = Self(path);
        for (part, rows) in [("train", 0..ROWS - 20), ("test", ROWS - 20..ROWS)] {
            let rows: Vec<_> = rows.map(row).collect();
            folder.write_csv(part, &rows);
            folder.write_idx(part, &rows);
            folder.write_numpy(part, &rows);
            folder.write_tfrecord(part, &rows);
            folder.write_parquet(part, &rows);
        }
        folder
    }

    /// Two row groups with the columns `kind`, `other`, `x` and `y`.
    fn write_parquet(&self, part: &str, rows: &[([u8; 2], u8)]) {
        let values: [TableColumn; 3] = [
            ("other", |_| 0.5),
            ("x", |x| f64::from(x[0])),
            ("y", |x| f64::from(x[1])),
        ];
        self.write_table(part, rows, &values);
    }

    /// Two row groups with the columns `kind` and these.
    fn write_table(&self, part: &str, rows: &[([u8; 2], u8)], columns: &[TableColumn]) {
        let fields: String = columns
            .iter()
            .map(|(name, _)| format!("required double {name}; "))
            .collect();
        let message = format!("message rows {{ required int32 kind; {fields}}}");
        let schema = Arc::new(parse_message_type(&message).unwrap());
        let file = fs::File::create(self.0.join(format!("{part}-0.parquet"))).unwrap();
        let properties = Arc::new(WriterProperties::builder().build());
        let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
        for rows in rows.chunks(rows.len().div_ceil(2)) {
            let mut group = writer.next_row_group().unwrap();
            let kinds: Vec<i32> = rows.iter().map(|(_, kind)| i32::from(*kind)).collect();
            let mut column = group.next_column().unwrap().unwrap();
            let written = column.typed::<Int32Type>().write_batch(&kinds, None, None);
            written.unwrap();
            column.close().unwrap();
            for (_, value) in columns {
                let values: Vec<f64> = rows.iter().map(|(x, _)| value(x)).collect();
                let mut column = group.next_column().unwrap().unwrap();
                let written = column
                    .typed::<DoubleType>()
                    .write_batch(&values, None, None);
                written.unwrap();
                column.close().unwrap();
            }
            group.close().unwrap();
        }
        writer.close().unwrap();
    }

    /// A tar file of these members.
    fn write_tar(&self, name: &str, members: &[(String, Vec<u8>)]) {
        let mut bytes: Vec<u8> = members
            .iter()
            .flat_map(|(path, bytes)| tar_member(path, bytes))
            .collect();
        bytes.extend([0; 1024]);
        fs::write(self.0.join(name), bytes).unwrap();
    }

    /// Pictures of three classes in `photos`, the same in `photos-00000-of-00001.tfrecord` and in `photos.tar`.
    fn write_images(&self) {
        let sizes = [
            "--classes",
            "3",
            "--count",
            "18",
            "--width",
            "20",
            "--height",
            "16",
        ];
        self.succeed(&[&["data", "synth", "--to", "photos"], &sizes[..]].concat());
        let one = ["--to", ".", "--name", "photos", "--shards", "1"];
        self.succeed(&[&["data", "shard", "photos"], &one[..]].concat());
        let mut members = Vec::new();
        for class in 0..3 {
            let folder = self.0.join(format!("photos/class_{class:02}"));
            let mut paths: Vec<PathBuf> = fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
            paths.sort();
            for path in paths {
                let key = format!("{:04}", members.len() / 2);
                members.push((format!("{key}.CLS"), format!("{class}\n").into_bytes()));
                members.push((format!("{key}.jpg"), fs::read(path).unwrap()));
            }
        }
        self.write_tar("photos.tar", &members);
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

    /// Arrays of both kinds of numbers, labels as a column.
    fn write_numpy(&self, part: &str, rows: &[([u8; 2], u8)]) {
        let write = |name: &str, kind: &str, width: usize, values: Vec<u8>| {
            let head = format!(
                "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}, {width}), }}\n",
                rows.len()
            );
            let length = u16::try_from(head.len()).unwrap().to_le_bytes();
            let start = [&b"\x93NUMPY\x01\x00"[..], &length, head.as_bytes()].concat();
            let path = self.0.join(format!("{part}-{name}.npy"));
            fs::write(path, [start, values].concat()).unwrap();
        };
        let numbers = rows.iter().flat_map(|(x, _)| *x);
        let numbers = numbers.flat_map(|x| f64::from(x).to_le_bytes());
        write("x", "<f8", 2, numbers.collect());
        let classes = rows.iter().map(|(_, class)| i64::from(*class));
        let classes = classes.flat_map(i64::to_le_bytes);
        write("y", "<i8", 1, classes.collect());
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
            "data: {data}\nmodel: [flatten, {{dense: {{units: 2, activation: softmax}}}}]\noptimizer: sgd\n\
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

/// A member of a tar file with its ustar header.
fn tar_member(path: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    header[..path.len()].copy_from_slice(path.as_bytes());
    header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
    header[156] = b'0';
    header[257..263].copy_from_slice(b"ustar\0");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let padding = bytes.len().next_multiple_of(512) - bytes.len();
    [&header[..], bytes, &vec![0; padding]].concat()
}

const IDX: &str = "{idx: {images: train-x.idx, labels: train-y.idx}, divide_by: 10, test: {idx: {images: test-x.idx, labels: test-y.idx}}}";
const NUMPY: &str = "{numpy: {input: train-x.npy, label: train-y.npy}, divide_by: 10, test: {numpy: {input: test-x.npy, label: test-y.npy}}}";
const TFRECORD: &str = "{tfrecord: 'train-*.tfrecord', input: x, label: kind, divide_by: 10, test: {tfrecord: 'test-*.tfrecord'}}";
const PARQUET: &str = "{parquet: 'train-*.parquet', columns: [x, y], label: kind, divide_by: 10, test: {parquet: 'test-*.parquet'}}";

#[test]
fn the_same_rows_train_the_same_model() {
    let folder = Folder::new("same");
    let csv = folder.trained(
        "csv",
        "{csv: train.csv, divide_by: 10, test: {csv: test.csv}}",
    );
    for (name, data) in [
        ("idx", IDX),
        ("numpy", NUMPY),
        ("tfrecord", TFRECORD),
        ("parquet", PARQUET),
    ] {
        let (weights, evaluated, predicted) = folder.trained(name, data);
        assert!(weights == csv.0, "{name}: other weights");
        assert_eq!(evaluated, csv.1, "{name}");
        assert_eq!(predicted, csv.2, "{name}");
    }
}

#[test]
fn columns_of_a_table_are_found_by_their_names_in_its_test() {
    let folder = Folder::new("table-order");
    let rows: Vec<_> = (ROWS - 20..ROWS).map(row).collect();
    let turned: [TableColumn; 3] = [
        ("y", |x| f64::from(x[1])),
        ("x", |x| f64::from(x[0])),
        ("other", |_| 0.5),
    ];
    folder.write_table("turned", &rows, &turned);
    let data = "{parquet: 'train-*.parquet', label: 0, test: {parquet: 'NAME-*.parquet'}}";
    let expected = folder.trained("as-trained", &data.replace("NAME", "test"));
    let found = folder.trained("by-name", &data.replace("NAME", "turned"));
    assert_eq!(found, expected);
    // A table that was written again after the training, too.
    fs::copy(
        folder.0.join("turned-0.parquet"),
        folder.0.join("test-0.parquet"),
    )
    .unwrap();
    fs::copy(
        folder.0.join("turned-0.parquet"),
        folder.0.join("train-0.parquet"),
    )
    .unwrap();
    assert_eq!(folder.succeed(&["evaluate", "as-trained"]), expected.1);
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

/// Folders, TFRecord and WebDataset files hold the same images in the same order, so their random changes are the same too.
#[test]
fn the_same_images_train_the_same_model() {
    let folder = Folder::new("images");
    folder.write_images();
    let images =
        "image_size: [12, 12], scale: signed, augment: {region: crop, flip: true, brightness: 0.2}";
    let trained = |name: &str, data: &str| {
        let text = format!(
            "data: {{{data}, {images}}}\nmodel: [flatten, {{dense: {{units: 3, activation: softmax}}}}]\noptimizer: sgd\n\
             loss: sparse_categorical_crossentropy\nmetrics: [accuracy]\nfit: {{epochs: 2, batch_size: 6}}\noutput: {name}\n"
        );
        fs::write(folder.0.join(format!("{name}.yaml")), text).unwrap();
        folder.succeed(&["train", &format!("{name}.yaml")]);
        let weights = fs::read(folder.0.join(name).join("model/weights.safetensors")).unwrap();
        (weights, folder.succeed(&["evaluate", name]))
    };
    let expected = trained(
        "folder",
        "image_folder: photos, test: {image_folder: photos}",
    );
    let records = "photos-*.tfrecord";
    let named = "input: image/encoded, label: image/class/label";
    let record = format!("tfrecord: '{records}', {named}, test: {{tfrecord: '{records}'}}");
    let tar = "webdataset: photos.tar, test: {webdataset: photos.tar}";
    for (name, data) in [("record", record.as_str()), ("tar", tar)] {
        assert!(trained(name, data) == expected, "{name}");
    }
    assert_eq!(folder.succeed(&["predict", "tar"]).lines().count(), 19);
}

#[test]
fn mixed_images_of_records_have_shares_of_classes() {
    let folder = Folder::new("mixed");
    folder.write_images();
    let text = "data: {webdataset: photos.tar, image_size: [8, 8], augment: {mix_up: 0.4}, test: {split: 0.2}}\n\
                model: [flatten, {dense: {units: 3, activation: softmax}}]\noptimizer: sgd\n\
                loss: LOSS\nfit: {epochs: 1, batch_size: 4}\noutput: out\n";
    let write =
        |loss: &str| fs::write(folder.0.join("t.yaml"), text.replace("LOSS", loss)).unwrap();
    write("categorical_crossentropy");
    folder.succeed(&["train", "t.yaml"]);
    write("sparse_categorical_crossentropy");
    let refused = folder.phalanx(&["train", "t.yaml"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        told.contains("mixed images have shares of several classes"),
        "{told}"
    );
}

#[test]
fn a_weight_of_a_class_that_no_image_can_have_is_refused() {
    let folder = Folder::new("image-weights");
    folder.write_images();
    let records = "tfrecord: 'photos-*.tfrecord', input: image/encoded, label: image/class/label";
    for data in ["webdataset: photos.tar", records] {
        let text = format!(
            "data: {{{data}, image_size: [8, 8]}}\nmodel: [flatten, {{dense: {{units: 3, activation: softmax}}}}]\n\
             optimizer: sgd\nloss: sparse_categorical_crossentropy\nfit: {{class_weight: {{0: 1, 3: 2}}}}\n"
        );
        fs::write(folder.0.join("t.yaml"), text).unwrap();
        let refused = folder.phalanx(&["train", "t.yaml", "--dry-run"]);
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains("`class_weight` weighs class 3"), "{told}");
    }
}

/// What a training file says of its data, and what is told of it.
const IMAGE_MISTAKES: [(&str, &str); 17] = [
    (
        "{webdataset: photos.tar}",
        "data lacks the key `image_size`",
    ),
    (
        "{webdataset: photos.tar, image_size: [0, 8]}",
        "`image_size` of data is",
    ),
    (
        "{webdataset: photos.tar, image_size: [8, 8], features: [8]}",
        "data has no key \"features\"",
    ),
    ("{webdataset: 'no-*.tar', image_size: [8, 8]}", "no-*.tar"),
    (
        "{webdataset: text.tar, image_size: [8, 8]}",
        "text.tar: sample `a` at byte 512, member `cls`: found \"cat\", expected a class",
    ),
    (
        "{webdataset: bare.tar, image_size: [8, 8]}",
        "member `jpg`: there is none, only cls, png; write `input: NAME` in data",
    ),
    (
        "{webdataset: none.tar, image_size: [8, 8]}",
        "none.tar has no sample",
    ),
    ("{webdataset: far.tar, image_size: [8, 8]}", "the class 9"),
    (
        "{webdataset: cut.tar, image_size: [8, 8]}",
        "cut.tar: sample `a`",
    ),
    (
        "{webdataset: short.tar, image_size: [8, 8]}",
        "short.tar: byte ",
    ),
    (
        "{tfrecord: 'photos-*', input: image/encoded, label: image/class/label}",
        "is a JPEG file, expected numbers; write `image_size: [ROWS, COLUMNS]` in data",
    ),
    (
        "{tfrecord: 'photos-*', input: image/class/label, label: image/class/label, image_size: [8, 8]}",
        "record 0 at byte 0, feature `image/class/label`: found 1 values of int64, expected 1 string of bytes",
    ),
    (
        "{tfrecord: 'photos-*', input: image/class/text, label: image/class/label, image_size: [8, 8]}",
        "record 0 at byte 0",
    ),
    (
        "{tfrecord: 'photos-*', image_size: [8, 8]}",
        "no feature `image`, only image/class/label, image/class/text, image/encoded; write `input: NAME`",
    ),
    (
        "{tfrecord: 'photos-*', image_size: [8, 8], divide_by: 255}",
        "`divide_by` is about numbers",
    ),
    (
        "{tfrecord: 'photos-*', image_size: [8, 8], label_type: value}",
        "`label_type` is value, and images have classes",
    ),
    (
        "{tfrecord: 'photos-*', augment: {flip: true}}",
        "`augment` is about images, and data has no `image_size`",
    ),
];

/// The bytes of a picture that `write_images` made.
fn an_image(folder: &Folder) -> Vec<u8> {
    let class = folder.0.join("photos/class_00");
    fs::read(class.join(first_of(&class))).unwrap()
}

/// A member of a tar archive.
fn sample(name: &str, end: &str, bytes: &[u8]) -> (String, Vec<u8>) {
    (format!("{name}.{end}"), bytes.to_vec())
}

#[test]
fn mistakes_in_images_of_records_say_where_they_are() {
    let folder = Folder::new("image-mistakes");
    folder.write_images();
    let image = an_image(&folder);
    folder.write_tar(
        "text.tar",
        &[sample("a", "jpg", &image), sample("a", "cls", b"cat")],
    );
    folder.write_tar(
        "bare.tar",
        &[sample("a", "png", &image), sample("a", "cls", b"0")],
    );
    folder.write_tar("none.tar", &[]);
    let far: Vec<_> = ["a", "b", "c"]
        .iter()
        .flat_map(|name| [sample(name, "jpg", &image), sample(name, "cls", b"9")])
        .collect();
    folder.write_tar("far.tar", &far);
    let cut = &image[..image.len() / 2];
    let cut: Vec<_> = ["a", "b", "c"]
        .iter()
        .flat_map(|name| [sample(name, "jpg", cut), sample(name, "cls", b"1")])
        .collect();
    folder.write_tar("cut.tar", &cut);
    let whole = fs::read(folder.0.join("photos.tar")).unwrap();
    fs::write(folder.0.join("short.tar"), &whole[..1300]).unwrap();
    for (data, expected) in IMAGE_MISTAKES {
        let told = folder.refused(data);
        assert!(told.contains(expected), "{data}: {told}");
    }
}

#[test]
fn what_cannot_be_read_is_left_out_where_the_file_says_so() {
    let folder = Folder::new("image-skips");
    folder.write_images();
    let image = an_image(&folder);
    let mut members = Vec::new();
    for i in 0..6 {
        let (image, class) = match i {
            1 => (&b"no image"[..], &b"1"[..]),
            2 => (&image[..], &b"many"[..]),
            _ => (&image[..], &b"1"[..]),
        };
        let name = i.to_string();
        members.extend([sample(&name, "jpg", image), sample(&name, "cls", class)]);
    }
    folder.write_tar("mixed.tar", &members);
    let file = folder.training(
        "skips",
        "{webdataset: mixed.tar, image_size: [8, 8], corrupt: skip}",
    );
    let told = folder.succeed(&["train", &file]);
    assert!(told.contains("2 corrupt"), "{told}");
}

fn first_of(folder: &std::path::Path) -> PathBuf {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.swap_remove(0)
}

#[test]
fn mistakes_say_what_the_files_have() {
    let folder = Folder::new("mistakes");
    let cut = fs::read(folder.0.join("train-0.parquet")).unwrap();
    fs::write(folder.0.join("cut.parquet"), &cut[..cut.len() - 9]).unwrap();
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
        ("{parquet: 'none-*.parquet'}", "none-*.parquet"),
        (
            "{parquet: cut.parquet, label: kind}",
            "cut.parquet: footer: found",
        ),
        ("{parquet: train.csv}", "expected PAR1"),
        (
            "{parquet: train-0.parquet, label: class}",
            "found no column named \"class\"; choose among \"kind\", \"other\", \"x\", \"y\"",
        ),
        (
            "{parquet: train-0.parquet, columns: [z], label: kind}",
            "found no column named \"z\"",
        ),
        ("{parquet: train-0.parquet, label: 9}", "label column 9"),
        (
            "{parquet: train-0.parquet, columns: [x, kind], label: other}",
            "column `other`, row 0 of the group: found 0.5, expected a class",
        ),
        (
            "{parquet: train-0.parquet, columns: x}",
            "`columns` of data is",
        ),
        (
            "{parquet: train-0.parquet, image_size: [8, 8]}",
            "data has no key \"image_size\"",
        ),
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
