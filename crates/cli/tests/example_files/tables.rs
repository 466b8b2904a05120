//! Tables of texts and numbers in Parquet files.

use std::fs;

use crate::Folder;

/// A folder with the tables that `make_parquet.py` writes.
fn with_tables(name: &str) -> Folder {
    let folder = Folder::new(name);
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/parquet/texts"
    );
    for end in [".csv", ".parquet", "_plain.parquet"] {
        let to = folder.0.join(format!("texts{end}"));
        fs::copy(format!("{golden}{end}"), to).unwrap();
    }
    folder
}

/// What a training leaves, and what is said of it.
#[derive(PartialEq)]
struct Trained {
    weights: Vec<u8>,
    evaluated: String,
    /// Of the rows as CSV and as Parquet.
    predicted: [String; 2],
}

fn trained(folder: &Folder, name: &str, files: &str, data: &str, model: &str) -> Trained {
    let text = format!("data: {{{files}, {data}}}\n{model}output: {name}\n");
    fs::write(folder.0.join(format!("{name}.yaml")), text).unwrap();
    folder.succeed(&["train", &format!("{name}.yaml")]);
    Trained {
        weights: fs::read(folder.0.join(name).join("model/weights.safetensors")).unwrap(),
        evaluated: folder.succeed(&["evaluate", name]),
        predicted: ["texts.csv", "texts.parquet"]
            .map(|file| folder.succeed(&["predict", name, file])),
    }
}

/// Trains on both forms of Parquet files, with the results of the CSV.
fn expect_equal(folder: &Folder, of_csv: &Trained, data: &str, model: &str) {
    for (name, file) in [
        ("dictionary", "texts.parquet"),
        ("plain", "texts_plain.parquet"),
    ] {
        let found = trained(folder, name, &format!("parquet: {file}"), data, model);
        assert!(found == *of_csv, "{file}");
    }
}

#[test]
fn texts_and_names_of_parquet_files_train_as_those_of_csv_files() {
    let folder = with_tables("parquet-texts");
    let data = "label: kind, inputs: {words: review, city: city, shop: shop, about: [price, size]}, \
        text: {column: review, length: 5}, category: {column: city}, standardize: true, test: {split: 0.2}";
    let model = "model:\n\
        - embedding: {inputs: words, input_dim: 20, output_dim: 4, mask_zero: true}\n\
        - global_average_pooling1d: {name: mean}\n\
        - embedding: {inputs: city, input_dim: 7, output_dim: 2, name: where}\n\
        - embedding: {inputs: shop, input_dim: 7, output_dim: 2, name: which}\n\
        - concatenate: {inputs: [mean, where, which, about]}\n\
        - dense: {units: 3, activation: softmax}\n\
        optimizer: sgd\nloss: sparse_categorical_crossentropy\nfit: {epochs: 2, batch_size: 4, validation: {split: 0.1}}\n";
    let of_csv = trained(&folder, "of-csv", "csv: texts.csv", data, model);
    let predicted = &of_csv.predicted;
    assert_eq!(
        (predicted[0].lines().count(), &predicted[0]),
        (31, &predicted[1])
    );
    expect_equal(&folder, &of_csv, data, model);
    let told = folder.refused("{parquet: texts.parquet, label: kind, columns: [size]}");
    assert!(
        told.contains("column `kind`: found BYTE_ARRAY (String), expected flags")
            && told.contains("`classes`"),
        "{told}"
    );
}

#[test]
fn labels_of_several_outputs_in_parquet_files_train_as_those_of_csv_files() {
    let folder = with_tables("parquet-labels");
    let data = "inputs: {words: review, shop: shop}, text: {column: review, length: 5}, labels: {kind: kind, about: [price, size]}, test: {split: 0.2}";
    let model = "model:\n\
        - embedding: {inputs: words, input_dim: 20, output_dim: 4, mask_zero: true}\n\
        - global_average_pooling1d: {name: mean}\n\
        - embedding: {inputs: shop, input_dim: 7, output_dim: 2, name: which}\n\
        - concatenate: {inputs: [mean, which], name: trunk}\n\
        - dense: {inputs: trunk, units: 3, activation: softmax, name: kind}\n\
        - dense: {inputs: trunk, units: 2, name: about}\n\
        optimizer: {sgd: {learning_rate: 0.01}}\nloss: {kind: sparse_categorical_crossentropy, about: mse}\n\
        metrics: {kind: [accuracy]}\nfit: {epochs: 2, batch_size: 4}\n";
    let of_csv = trained(&folder, "of-csv", "csv: texts.csv", data, model);
    let header =
        "kind_class,kind_score_axolotl,kind_score_cat,kind_score_dog,about_score_0,about_score_1";
    let mut predicted = of_csv.predicted[0].lines();
    assert_eq!((predicted.next(), predicted.count()), (Some(header), 30));
    assert_eq!(of_csv.predicted[0], of_csv.predicted[1]);
    let evaluated = &of_csv.evaluated;
    assert!(evaluated.contains("kind_accuracy"), "{evaluated}");
    expect_equal(&folder, &of_csv, data, model);
}
