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

#[test]
fn texts_and_names_of_parquet_files_train_as_those_of_csv_files() {
    let folder = with_tables("parquet-texts");
    let data = "{KEY: texts.END, label: kind, inputs: {words: review, city: city, shop: shop, about: [price, size]}, \
        text: {column: review, length: 5}, category: {column: city}, standardize: true, test: {split: 0.2}}";
    let model = "model:\n\
        - embedding: {inputs: words, input_dim: 20, output_dim: 4, mask_zero: true}\n\
        - global_average_pooling1d: {name: mean}\n\
        - embedding: {inputs: city, input_dim: 7, output_dim: 2, name: where}\n\
        - embedding: {inputs: shop, input_dim: 7, output_dim: 2, name: which}\n\
        - concatenate: {inputs: [mean, where, which, about]}\n\
        - dense: {units: 3, activation: softmax}\n\
        optimizer: sgd\nloss: sparse_categorical_crossentropy\nfit: {epochs: 2, batch_size: 4, validation: {split: 0.1}}\n";
    let trained = |name: &str, key: &str, end: &str| {
        let data = data
            .replace("KEY", key)
            .replace("texts.END", &format!("texts{end}"));
        let text = format!("data: {data}\n{model}output: {name}\n");
        fs::write(folder.0.join(format!("{name}.yaml")), text).unwrap();
        folder.succeed(&["train", &format!("{name}.yaml")]);
        let weights = fs::read(folder.0.join(name).join("model/weights.safetensors")).unwrap();
        let results =
            ["texts.csv", "texts.parquet"].map(|file| folder.succeed(&["predict", name, file]));
        (weights, folder.succeed(&["evaluate", name]), results)
    };
    let (weights, evaluated, predicted) = trained("of-csv", "csv", ".csv");
    assert_eq!(
        (predicted[0].lines().count(), &predicted[0]),
        (31, &predicted[1])
    );
    for (name, end) in [("dictionary", ".parquet"), ("plain", "_plain.parquet")] {
        let found = trained(name, "parquet", end);
        assert!(
            found == (weights.clone(), evaluated.clone(), predicted.clone()),
            "{end}"
        );
    }
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
    let trained = |name: &str, files: &str| {
        let text = format!("data: {{{files}, {data}}}\n{model}output: {name}\n");
        fs::write(folder.0.join(format!("{name}.yaml")), text).unwrap();
        folder.succeed(&["train", &format!("{name}.yaml")]);
        let weights = fs::read(folder.0.join(name).join("model/weights.safetensors")).unwrap();
        let results =
            ["texts.csv", "texts.parquet"].map(|file| folder.succeed(&["predict", name, file]));
        (weights, folder.succeed(&["evaluate", name]), results)
    };
    let of_csv = trained("of-csv", "csv: texts.csv");
    let header =
        "kind_class,kind_score_axolotl,kind_score_cat,kind_score_dog,about_score_0,about_score_1";
    let mut predicted = of_csv.2[0].lines();
    assert_eq!((predicted.next(), predicted.count()), (Some(header), 30));
    assert_eq!(of_csv.2[0], of_csv.2[1]);
    assert!(of_csv.1.contains("kind_accuracy"), "{}", of_csv.1);
    for (name, file) in [
        ("dictionary", "texts.parquet"),
        ("plain", "texts_plain.parquet"),
    ] {
        assert!(
            trained(name, &format!("parquet: {file}")) == of_csv,
            "{file}"
        );
    }
}
