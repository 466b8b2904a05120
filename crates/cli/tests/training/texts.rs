//! Models of texts.

use std::fs;

use crate::Folder;
use crate::inputs::test_line;
use crate::processes::value_of;

/// Reviews that are positive where `good` or `not bad` stands among other words, in quoted fields of several lines.
fn with_reviews(name: &str) -> Folder {
    let folder = Folder::new(name, "sgd");
    let row = |i: usize| {
        let (is_good, about) = (i.is_multiple_of(2), ["plot", "cast", "end"][i % 3]);
        let says = match (is_good, i % 4 < 2) {
            (true, true) => "Good",
            (true, false) => "not  bad",
            (false, true) => "bad",
            (false, false) => "not \"\"good\"\"",
        };
        let sentiment = if is_good { "pos" } else { "neg" };
        format!("{sentiment},\"Well, the {about} was\n{says}!\",{i}\n")
    };
    let rows: String = (0..60).map(row).collect();
    let text = format!("sentiment,review,id\n{rows}pos,unheard words,60\n");
    fs::write(folder.0.join("a.csv"), text).unwrap();
    let text = "data: {csv: a.csv, label: sentiment, test: {last: 21}, text: {column: review, vocabulary: 50, length: 8}}\n\
        model:\n\
        - embedding: {input_dim: 50, output_dim: 8, mask_zero: true}\n\
        - lstm: {units: 16}\n\
        - dense: {units: 2}\n\
        optimizer: {adam: {learning_rate: 0.05}}\n\
        loss: {sparse_categorical_crossentropy: {from_logits: true}}\n\
        metrics: [accuracy]\n\
        fit: {epochs: 40, batch_size: 8, save_freq: epoch}\noutput: out\n";
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    folder
}

/// What `not` turns round, a sum of words cannot tell, and a sum of words and pairs can.
#[test]
fn pairs_of_words_have_numbers_of_their_own() {
    let folder = with_reviews("ngrams");
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let text = text
        .replace("lstm: {units: 16}", "global_average_pooling1d")
        .replace("length: 8", "length: 20, ngrams: 2");
    fs::write(folder.0.join("pairs.yaml"), &text).unwrap();
    let single = text.replace(", ngrams: 2", "");
    fs::write(folder.0.join("single.yaml"), single).unwrap();
    let accuracy = |file: &str, output: &str| {
        let train = ["train", file, "--output", output, "--progress", "plain"];
        let line = test_line(&folder.succeed(&train));
        let evaluated = folder.succeed(&["evaluate", output]);
        assert_eq!(evaluated.trim_end().replace("evaluate", "test"), line);
        value_of(&line, "accuracy")
    };
    let (pairs, single) = (
        accuracy("pairs.yaml", "pairs"),
        accuracy("single.yaml", "single"),
    );
    assert!(pairs >= 0.95 && single <= 0.8, "{pairs} {single}");
}

#[test]
fn a_model_of_texts_trains_alike_alone_on_replicas_and_on_workers_and_takes_raw_texts() {
    let folder = with_reviews("texts");
    let text = folder.succeed(&["train", "t.yaml", "--progress", "plain"]);
    let told = "40 examples to train on, 21 to test; each of 8 words; 2 classes: neg, pos; 9 words of review, a vocabulary of 11";
    assert!(text.contains(told), "{text}");
    let one = test_line(&text);
    // The last row has no word that was trained on.
    assert!(value_of(&one, "accuracy") >= 0.95, "{one}");
    // From the checkpoint of half of the way.
    let half = ["train", "t.yaml", "--output", "half", "--progress", "plain"];
    folder.succeed(&[&half[..], &["--epochs", "20"]].concat());
    let resumed = test_line(&folder.succeed(&[&half[..], &["--resume"]].concat()));
    assert_eq!(resumed, one);
    for of in [&["out"][..], &["half"], &["out", "--checkpoint"]] {
        let evaluated = folder.succeed(&[&["evaluate"], of].concat());
        assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    }
    trains_as_one_on_several(&folder, &one);
    let facts = ["out", "half", "two", "replicas"].map(|run| folder.facts(run));
    assert!(facts.iter().all(|found| *found == facts[0]));
    let new = "id,review\n7,\"The end\nwas \"\"good\"\"\"\n8,well the plot was not good\n";
    fs::write(folder.0.join("new.csv"), new).unwrap();
    let predicted = folder.succeed(&["predict", "out", "new.csv"]);
    let classes: Vec<&str> = predicted
        .lines()
        .map(|line| line.split(',').next().unwrap())
        .collect();
    assert_eq!(classes, ["class", "pos", "neg"]);
}

/// Padding is left out, so that predictions, which are of texts of one length, are right as often as the test, in batches by length.
#[test]
fn texts_in_batches_by_length_train_alike_alone_on_replicas_and_on_workers() {
    let folder = with_reviews("texts-buckets");
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let text = text.replace("length: 8}", "length: 9, buckets: [5, 7]}");
    let rows = fs::read_to_string(folder.0.join("a.csv")).unwrap();
    // Of 5 to 9 words.
    let longer = |(i, row): (usize, &str)| match (i % 3, row.contains("Well")) {
        (0, true) => row.replace("Well, the", "the"),
        (1, true) => row.replace("Well,", "Well, so I say"),
        _ => row.to_owned(),
    };
    let rows: Vec<String> = rows.lines().enumerate().map(longer).collect();
    fs::write(folder.0.join("a.csv"), rows.join("\n") + "\n").unwrap();
    fs::write(folder.0.join("t.yaml"), &text).unwrap();
    let text = folder.succeed(&["train", "t.yaml", "--progress", "plain"]);
    assert!(text.contains("each of up to 9 words"), "{text}");
    let one = test_line(&text);
    assert!(value_of(&one, "accuracy") >= 0.9, "{one}");
    let evaluated = folder.succeed(&["evaluate", "out"]);
    assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    let predicted = folder.succeed(&["predict", "out"]);
    let sentiments = rows
        .iter()
        .filter(|row| row.starts_with("neg,") || row.starts_with("pos,"));
    let sentiments: Vec<&str> = sentiments.map(|row| &row[..3]).collect();
    let last = &sentiments[sentiments.len() - 21..];
    let right = predicted.lines().skip(1).zip(last);
    let right = right
        .filter(|(line, expected)| line.starts_with(**expected))
        .count();
    assert!(
        (right as f64 / 21.0 - value_of(&one, "accuracy")).abs() < 1e-4,
        "{right} {one}"
    );
    let half = ["train", "t.yaml", "--output", "half", "--progress", "plain"];
    folder.succeed(&[&half[..], &["--epochs", "20"]].concat());
    let resumed = test_line(&folder.succeed(&[&half[..], &["--resume"]].concat()));
    assert_eq!(resumed, one);
    trains_as_one_on_several(&folder, &one);
}

/// Trains on two workers, into `two`, and on two replicas, into `replicas`: their tests are as the line of one device.
fn trains_as_one_on_several(folder: &Folder, one: &str) {
    let program = ["--", env!("CARGO_BIN_EXE_phalanx"), "train", "t.yaml"];
    let workers = ["launch", "--workers", "2"];
    let two = ["--output", "two", "--progress", "plain"];
    let replicas = [
        "train",
        "t.yaml",
        "--output",
        "replicas",
        "--progress",
        "plain",
    ];
    let mirrored = ["--set", "strategy={mirrored: {devices: \"cpu:2\"}}"];
    for train in [
        [&workers[..], &program, &two].concat(),
        [&replicas[..], &mirrored].concat(),
    ] {
        let several = test_line(&folder.succeed(&train));
        for log in ["loss", "accuracy"] {
            let (one, several) = (value_of(one, log), value_of(&several, log));
            assert!((one - several).abs() <= 2e-4, "{log} {one} {several}");
        }
    }
}

#[test]
fn first_weights_are_refused_where_words_have_other_numbers() {
    let folder = with_reviews("texts-weights");
    folder.succeed(&["train", "t.yaml", "--quiet", "--epochs", "1"]);
    let rows = fs::read_to_string(folder.0.join("a.csv")).unwrap();
    fs::write(folder.0.join("a.csv"), rows.replacen("plot", "plots", 1)).unwrap();
    let begun = [
        "train",
        "t.yaml",
        "--output",
        "next",
        "--set",
        "weights=out/model",
    ];
    let parts = [
        "the words of the data are review: ",
        "in the training of out/model/weights.safetensors",
    ];
    folder.fail(&begun, 2, &parts);
}

#[test]
fn words_that_changed_are_not_trained_on_and_damaged_ones_not_used() {
    let folder = with_reviews("texts-changed");
    folder.succeed(&["train", "t.yaml", "--quiet", "--epochs", "1"]);
    let write = |name: &str, text: &str| fs::write(folder.0.join(name), text).unwrap();
    let rows = fs::read_to_string(folder.0.join("a.csv")).unwrap();
    write("a.csv", &rows.replacen("plot", "plots", 1));
    let parts = [
        "the words of review in the training rows are others than those of the checkpoint in out",
        "or train without --resume",
    ];
    folder.fail(&["train", "t.yaml", "--resume"], 2, &parts);
    // A test row has no part in it.
    write("a.csv", &rows.replace("unheard", "unseen"));
    folder.succeed(&["train", "t.yaml", "--resume", "--quiet", "--epochs", "2"]);
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    write("t.yaml", &text.replace("length: 8", "length: 9"));
    folder.fail(&["evaluate", "t.yaml"], 2, &["`text` of t.yaml is"]);
    let kept = fs::read_to_string(folder.0.join("out/model/training.json")).unwrap();
    for (from, to, why) in [
        (
            "\"not\"",
            "\"was\"",
            "a vocabulary of 9 keys has 8 different ones",
        ),
        ("\"not\"", "\"\"", "the vocabulary has the word \"\""),
        (
            "\"vocabulary\": 50",
            "\"vocabulary\": 10",
            "of 11 numbers is more than the 10",
        ),
        (
            "\"length\": 8",
            "\"length\": 0",
            "texts of length 0 have no words",
        ),
        (
            "\"whitespace\"",
            "\"words\"",
            "`split` of a text is \"words\"",
        ),
        (
            "\"lower_and_strip_punctuation\"",
            "\"upper\"",
            "`standardize` of a text is \"upper\"",
        ),
        ("\"split\": ", "\"cut\": ", "unknown field `cut`"),
    ] {
        assert_eq!(kept.matches(from).count(), 1, "{from}");
        write("out/model/training.json", &kept.replace(from, to));
        folder.fail(
            &["predict", "out", "a.csv"],
            2,
            &["training.json cannot be used: ", why],
        );
    }
}

/// With the tokenizer that `make_tokenizers.py` trains.
#[test]
fn a_model_of_subwords_resumes_and_predicts_with_its_own_tokenizer() {
    let folder = with_reviews("subwords");
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/tokenizers/wordpiece.json"
    );
    let (tokenizer, file) = (
        fs::read_to_string(golden).unwrap(),
        folder.0.join("tokenizer.json"),
    );
    fs::write(&file, &tokenizer).unwrap();
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let text = text
        .replace(
            "vocabulary: 50, length: 8",
            "tokenizer: tokenizer.json, length: 24, buckets: [18]",
        )
        .replace("input_dim: 50", "input_dim: 200");
    fs::write(folder.0.join("t.yaml"), &text).unwrap();
    let train = ["train", "t.yaml", "--progress", "plain", "--epochs"];
    let told = folder.succeed(&[&train[..], &["4"]].concat());
    let expected = "each of up to 24 subwords; 2 classes: neg, pos; subwords of review by a tokenizer of 200 tokens";
    assert!(told.contains(expected), "{told}");
    let one = test_line(&told);
    let half = [&train[..], &["2", "--output", "half"]].concat();
    folder.succeed(&half);
    let rest = [&train[..], &["4", "--output", "half", "--resume"]].concat();
    assert_eq!(test_line(&folder.succeed(&rest)), one);
    fs::write(&file, tokenizer.replace("\"great\"", "\"grate\"")).unwrap();
    let parts = ["the tokenizer of review is another than the one of the checkpoint in half"];
    folder.fail(&rest, 2, &parts);
    fs::remove_file(&file).unwrap();
    folder.fail(
        &[&train[..], &["2", "--output", "absent"]].concat(),
        2,
        &["tokenizer.json", "correct the path, the file or `length`"],
    );
    fs::write(
        folder.0.join("new.csv"),
        "id,review\n7,\"The end\nwas good\"\n8,unheard\n",
    )
    .unwrap();
    for run in ["out", "half"] {
        let evaluated = folder.succeed(&["evaluate", run]);
        assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
        assert_eq!(
            folder.succeed(&["predict", run, "new.csv"]).lines().count(),
            3
        );
    }
    assert_eq!(
        folder.succeed(&["predict", "out", "new.csv"]),
        folder.succeed(&["predict", "half", "new.csv"])
    );
}
