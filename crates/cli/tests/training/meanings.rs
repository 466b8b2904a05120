//! What numbers of data mean is the same where a training goes on, is tested and predicts.

use std::fs;

use super::Folder;

/// Rows of two files whose columns are in another order: `id, size, kind` and `size, kind, id`.
fn kinds(name: &str) -> Folder {
    let folder = Folder::new(name, "adam");
    let write = |file: &str, text: &str| fs::write(folder.0.join(file), text).unwrap();
    let row = |i: usize| format!("{},{},{}\n", 100 + i, i % 7, ["lily", "rose"][i % 2]);
    let rows: String = (0..20).map(row).collect();
    write("a.csv", &format!("id,size,kind\n{rows}"));
    let row = |i: usize| format!("{},{},{}\n", i % 5, ["rose", "lily"][i % 2], 900 + i);
    let rows: String = (0..12).map(row).collect();
    write("b.csv", &format!("size,kind,id\n{rows}"));
    write(
        "t.yaml",
        "data: {csv: [a.csv, b.csv], columns: [size], test: {split: 0.25}}\n\
         model: [{dense: {units: 2}}]\noptimizer: adam\nloss: {sparse_categorical_crossentropy: {from_logits: true}}\n\
         fit: {epochs: 1, batch_size: 8, save_freq: epoch}\noutput: out\n",
    );
    folder
}

#[test]
fn classes_are_of_one_column_in_files_of_other_orders() {
    let folder = kinds("kinds");
    let text = folder.succeed(&["train", "t.yaml", "--progress", "plain"]);
    assert!(text.contains("2 classes: lily, rose"), "{text}");
}

#[test]
fn files_of_one_name_in_two_folders_are_not_swapped() {
    let folder = kinds("one-name");
    for (file, to) in [("a.csv", "one"), ("b.csv", "two")] {
        fs::create_dir_all(folder.0.join(to)).unwrap();
        fs::rename(folder.0.join(file), folder.0.join(to).join("rows.csv")).unwrap();
    }
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("[a.csv, b.csv]", "[one/rows.csv, two/rows.csv]");
    fs::write(&path, text.replace("split: 0.25", "last: 5")).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let resume = ["train", "t.yaml", "--resume", "--quiet", "--epochs", "2"];
    let swapped = ["--set", "data.csv=[two/rows.csv, one/rows.csv]"];
    let told = [
        "`csv` of t.yaml is [two/rows.csv, one/rows.csv], of which `test` is a part, and the checkpoint in out was trained with [one/rows.csv, two/rows.csv]",
    ];
    folder.fail(&[&resume[..], &swapped].concat(), 2, &told);
    // All of the data may have moved.
    fs::create_dir_all(folder.0.join("new")).unwrap();
    for of in ["one", "two"] {
        fs::rename(folder.0.join(of), folder.0.join("new").join(of)).unwrap();
    }
    let moved = ["--set", "data.csv=[new/one/rows.csv, new/two/rows.csv]"];
    folder.succeed(&[&resume[..], &moved].concat());
}

#[test]
fn a_checkpoint_that_moved_alone_knows_what_was_held_out() {
    let folder = kinds("moved-alone");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("columns: [size]", "label: kind, columns: [size]"),
    )
    .unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let alone = || fs::remove_file(folder.0.join("out/training.json")).unwrap();
    let resume = ["train", "t.yaml", "--resume", "--quiet", "--epochs", "2"];
    alone();
    for (key, test, then) in [
        (
            "test",
            "{last: 3}",
            "`test` is {last: 3}, and the checkpoint was trained with {split: 0.25}",
        ),
        (
            "test",
            "{split: 0.5}",
            "`test` is {split: 0.5}, and the checkpoint was trained with {split: 0.25}",
        ),
        (
            "csv",
            "[b.csv, a.csv]",
            "`csv` is [b.csv, a.csv], of which `test` is a part, and the checkpoint was trained with [a.csv, b.csv]",
        ),
    ] {
        let set = format!("data.{key}={test}");
        folder.fail(&[&resume[..], &["--set", &set]].concat(), 2, &[then]);
        // What was refused leaves no record that the next one is compared with.
        assert!(!folder.0.join("out/training.json").exists());
    }
    let rows = folder.0.join("b.csv");
    let whole = fs::read_to_string(&rows).unwrap();
    fs::write(&rows, whole.clone() + "7,rose,1000\n").unwrap();
    folder.fail(
        &resume,
        2,
        &["this is a part of 33 examples, and the training held it out of 32"],
    );
    fs::write(&rows, whole).unwrap();
    folder.succeed(&resume);
}

#[test]
fn a_training_with_other_classes_does_not_go_on() {
    let folder = kinds("renamed");
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    for file in ["a.csv", "b.csv"] {
        let path = folder.0.join(file);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace("lily", "tulip")).unwrap();
    }
    let told = [
        "the classes of the data are rose, tulip, and they were lily, rose in the training",
        "or train without --resume",
    ];
    let resume = ["train", "t.yaml", "--resume", "--epochs", "2"];
    folder.fail(&resume, 2, &told);
}

/// A model that has learned from numbers of one scale is not given others under the same names.
#[test]
fn rows_that_came_to_a_training_change_no_scaling_of_it() {
    let folder = kinds("scaled");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("test: {split: 0.25}", "standardize: true");
    fs::write(&path, &text).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let scaling = |file: &str| -> serde_json::Value {
        let record = fs::read(folder.0.join(file)).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        record["facts"]["scaling"].clone()
    };
    let before = scaling("out/training.json");
    assert!(before["standard"].is_array(), "{before}");
    let rows = folder.0.join("a.csv");
    let more = fs::read_to_string(&rows).unwrap() + "7,1000,lily\n8,2000,rose\n";
    fs::write(&rows, more.replace("105,5,", "105,500,")).unwrap();
    let resume = ["train", "t.yaml", "--resume", "--quiet", "--epochs", "2"];
    for (key, other) in [
        ("standardize", "false"),
        ("divide_by", "2"),
        ("missing", "mean"),
    ] {
        let set = format!("data.{key}={other}");
        let told = format!("`{key}` of t.yaml is ");
        let told = [&told, "the checkpoint in out was trained with"];
        folder.fail(&[&resume[..], &["--set", &set]].concat(), 2, &told);
    }
    folder.succeed(&resume);
    assert_eq!(scaling("out/training.json"), before);
    assert_eq!(scaling("out/model/training.json"), before);
}

#[test]
fn rows_that_were_trained_on_are_no_test() {
    let folder = kinds("tested");
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("0.25", "0.5")).unwrap();
    let told = [
        "`test` of t.yaml is {split: 0.5}",
        "was trained with {split: 0.25}",
    ];
    folder.fail(&["evaluate", "t.yaml"], 2, &told);
    // Other rows, and a file of its own.
    folder.succeed(&["evaluate", "t.yaml", "b.csv"]);
    fs::write(&path, text.replace("{split: 0.25}", "{csv: b.csv}")).unwrap();
    folder.succeed(&["evaluate", "t.yaml"]);
    fs::write(&path, text.replace(", test: {split: 0.25}", "")).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet", "--overwrite"]);
    fs::write(&path, &text).unwrap();
    let told = ["was trained with no part of its rows left out"];
    folder.fail(&["predict", "t.yaml"], 2, &told);
}

#[test]
fn a_training_that_goes_on_gets_no_test_of_rows_it_was_trained_on() {
    let folder = kinds("leaked");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let without = text.replace(", test: {split: 0.25}", "");
    fs::write(&path, &without).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let resume = ["train", "t.yaml", "--resume", "--quiet"];
    fs::write(&path, &text).unwrap();
    let told = [
        "`test` of t.yaml is {split: 0.25}, and the checkpoint in out was trained with no part of its rows left out",
        "bring `test` back to what it was",
    ];
    folder.fail(&resume, 2, &told);
    assert!(!folder.0.join("out/test.json").exists());
    folder.fail(&["evaluate", "out"], 2, &["has no test rows"]);
    // Other rows are one, at any time.
    fs::write(&path, text.replace("{split: 0.25}", "{csv: b.csv}")).unwrap();
    folder.succeed(&resume);
    assert!(folder.0.join("out/test.json").exists());
    // Another part has some of the others.
    fs::write(&path, &text).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet", "--overwrite"]);
    fs::write(&path, text.replace("0.25", "0.5")).unwrap();
    folder.fail(&resume, 2, &["was trained with {split: 0.25}"]);
    fs::write(&path, &text).unwrap();
    folder.succeed(&resume);
}

#[test]
fn what_is_done_about_missing_values_is_told_as_it_is_written() {
    let folder = kinds("missing");
    folder.succeed(&["train", "t.yaml", "--quiet", "--resume"]);
    let resume = ["train", "t.yaml", "--quiet", "--resume"];
    for (value, shown) in [("drop", "drop"), ("1.5", "1.5")] {
        let set = format!("data.missing={value}");
        let told = format!(
            "`missing` of t.yaml is {shown}, and the checkpoint in out was trained with fail (the default)"
        );
        folder.fail(&[&resume[..], &["--set", &set]].concat(), 2, &[&told]);
    }
}

/// Rows that were left out and are trained on now are no harm to the test, others would be.
#[test]
fn a_test_on_fewer_of_the_rows_left_out_is_one() {
    let folder = kinds("fewer");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let write = |test: &str| fs::write(&path, text.replace("{split: 0.25}", test)).unwrap();
    for (kind, other) in [("first", "last"), ("last", "first")] {
        write(&format!("{{{kind}: 9}}"));
        folder.succeed(&["train", "t.yaml", "--quiet", "--overwrite"]);
        let more = [format!("{{{kind}: 10}}"), format!("{{{other}: 5}}")];
        let resume = ["train", "t.yaml", "--resume", "--quiet", "--epochs", "2"];
        for test in more {
            write(&test);
            folder.fail(&["evaluate", "t.yaml"], 2, &["was trained with "]);
            folder.fail(&resume, 2, &["was trained with "]);
        }
        write(&format!("{{{kind}: 5}}"));
        folder.succeed(&["evaluate", "t.yaml"]);
        folder.succeed(&resume);
        // The others have been trained on.
        write(&format!("{{{kind}: 9}}"));
        folder.fail(&["evaluate", "t.yaml"], 2, &["was trained with "]);
    }
}

#[test]
fn files_in_another_order_have_another_part_to_test_on() {
    let folder = kinds("order");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let order = |files: &str| {
        let text = text.replace("[a.csv, b.csv]", files);
        fs::write(&path, text).unwrap();
    };
    order("[b.csv, a.csv]");
    let told = ["`csv` of t.yaml is [b.csv, a.csv]", "with [a.csv, b.csv]"];
    folder.fail(&["evaluate", "t.yaml"], 2, &told);
    let resume = ["train", "t.yaml", "--resume", "--quiet", "--epochs", "2"];
    folder.fail(&resume, 2, &told);
    // The same files in another folder.
    fs::create_dir(folder.0.join("moved")).unwrap();
    for file in ["a.csv", "b.csv"] {
        let (from, to) = (folder.0.join(file), folder.0.join("moved").join(file));
        fs::rename(from, to).unwrap();
    }
    order("[moved/a.csv, moved/b.csv]");
    folder.succeed(&["evaluate", "t.yaml"]);
    folder.succeed(&resume);
}

/// What is refused within an epoch does not take the place of what the checkpoint is of.
#[test]
fn a_refused_training_leaves_the_record_of_the_one_before() {
    let folder = kinds("within");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("save_freq: epoch", "save_freq: 2");
    fs::write(&path, &text).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    // The one of the second of three steps, as Ctrl-C leaves it.
    let checkpoint = folder.0.join("out/checkpoint");
    fs::remove_dir_all(&checkpoint).unwrap();
    fs::rename(folder.0.join("out/checkpoint.1"), &checkpoint).unwrap();
    let record = || fs::read(folder.0.join("out/training.json")).unwrap();
    let before = record();
    let resume = ["train", "t.yaml", "--resume", "--quiet"];
    fs::write(&path, text.replace(", test: {split: 0.25}", "")).unwrap();
    let told = ["was interrupted within epoch 1, of data with 24 examples"];
    folder.fail(&resume, 2, &told);
    assert!(record() == before && folder.0.join("out/test.json").exists());
    fs::write(&path, &text).unwrap();
    folder.succeed(&resume);
}

/// As in a bucket, from which another machine goes on.
#[test]
fn a_checkpoint_without_its_folder_knows_what_numbers_meant() {
    let folder = kinds("moved");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap() + "checkpoint: kept\n";
    let rows = folder.0.join("a.csv");
    let before = fs::read_to_string(&rows).unwrap();
    let scaled = text.replace("test: {split: 0.25}", "standardize: true");
    let words = "text: {column: kind, length: 4}, label: size, label_type: value, test: {last: 3}";
    let words = text
        .replace("columns: [size], test: {split: 0.25}", words)
        .replace(
            "[{dense: {units: 2}}]",
            "[{embedding: {input_dim: 9, output_dim: 2}}, flatten, {dense: {units: 1}}]",
        )
        .replace(
            "{sparse_categorical_crossentropy: {from_logits: true}}",
            "mse",
        );
    let longer = format!("{before}7,1000,lily\n");
    let other = before.replace("100,0,lily", "100,0,lotus");
    for (text, changed) in [(scaled, longer), (words, other)] {
        fs::write(&path, &text).unwrap();
        fs::write(&rows, &before).unwrap();
        folder.succeed(&["train", "t.yaml", "--quiet", "--overwrite"]);
        fs::remove_dir_all(folder.0.join("out")).unwrap();
        fs::write(&rows, changed).unwrap();
        let resume = ["train", "t.yaml", "--resume", "--quiet", "--epochs", "2"];
        // What is refused leaves no record of itself.
        folder.fail(&resume, 2, &["numbers meant something else", "begin anew"]);
        fs::write(&rows, &before).unwrap();
        folder.succeed(&resume);
        fs::remove_dir_all(folder.0.join("out")).unwrap();
    }
}

#[test]
fn files_of_a_test_are_evaluated_without_the_rows_of_the_training() {
    let folder = kinds("apart");
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("{split: 0.25}", "{csv: b.csv}, standardize: true");
    fs::write(&path, text.replace("csv: [a.csv, b.csv]", "csv: a.csv")).unwrap();
    let told = folder.succeed(&["train", "t.yaml", "--progress", "plain"]);
    fs::remove_file(folder.0.join("a.csv")).unwrap();
    let evaluated = folder.succeed(&["evaluate", "out"]);
    let evaluated = evaluated.replace("evaluate: ", "test: ");
    assert!(told.contains(evaluated.trim_end()), "{evaluated} in {told}");
}

#[test]
fn a_checkpoint_that_is_there_is_not_replaced_where_training_goes_on() {
    let folder = kinds("both");
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let both = [
        "train",
        "t.yaml",
        "--resume",
        "--overwrite",
        "--epochs",
        "2",
    ];
    let output = folder.phalanx(&both);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && told.contains("note: --overwrite replaces nothing"),
        "{told}"
    );
}

#[test]
fn each_row_of_a_test_file_has_a_prediction() {
    let folder = kinds("each");
    let test = "id,size,kind\n1,2,lily\n2,,rose\n3,4,rose\n";
    fs::write(folder.0.join("c.csv"), test).unwrap();
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("{split: 0.25}", "{csv: c.csv}, missing: drop");
    fs::write(&path, text.replace("missing: drop", "missing: mean")).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    let predicted = folder.succeed(&["predict", "out"]);
    assert_eq!(predicted.lines().count(), 1 + 3, "{predicted}");
    fs::write(&path, text).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet", "--overwrite"]);
    folder.fail(&["predict", "out"], 2, &["c.csv", "missing"]);
}

#[test]
fn shards_stay_where_there_is_nothing_to_replace_them_with() {
    let folder = kinds("shards");
    let shard = |data: &'static str| ["data", "shard", data, "--to", "s", "--overwrite"];
    fs::write(folder.0.join("n.csv"), "1,2,0\n3,4,1\n").unwrap();
    folder.succeed(&shard("n.csv"));
    let files = || fs::read_dir(folder.0.join("s")).unwrap().count();
    let listed = fs::read_dir(folder.0.join("s")).unwrap();
    let written = Vec::from_iter(listed.map(|file| file.unwrap().path()));
    let before = files();
    let failed = folder.phalanx(&shard("typo.csv"));
    assert!(!failed.status.success());
    assert!(before > 0 && files() == before);
    // One that cannot be written, when others are.
    let sorted = || {
        let said = folder.succeed(&["data", "inspect", "s"]);
        said.lines().next().map(str::to_owned)
    };
    let told = sorted();
    for start in [".data", "data"] {
        fs::create_dir(folder.0.join(format!("s/{start}-00001-of-00002.tfrecord"))).unwrap();
    }
    let fewer = [&shard("n.csv")[..], &["--shards", "2"]].concat();
    assert!(!folder.phalanx(&fewer).status.success());
    assert_eq!((sorted(), files()), (told, before + 2));
    // One that cannot take its name.
    fs::remove_dir(folder.0.join("s/.data-00001-of-00002.tfrecord")).unwrap();
    assert!(!folder.phalanx(&fewer).status.success());
    assert!(written.iter().all(|path| path.is_file()));
    assert!(!folder.0.join("s/.data-00001-of-00002.tfrecord").exists());
}

/// What a training of `file` by steps of all its rows gives, with other keys of `data`.
fn tested(folder: &Folder, file: &str, data: &str) -> String {
    let text = format!(
        "data: {{csv: {file}, label: y, {data}test: {{csv: {file}}}}}\n\
         model: [{{dense: {{units: 2}}}}]\noptimizer: {{sgd: {{learning_rate: 0.1}}}}\n\
         loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}\nweighted_metrics: [accuracy]\n\
         fit: {{epochs: 5, batch_size: 64, shuffle: false}}\noutput: {file}.out\n"
    );
    fs::write(folder.0.join("w.yaml"), text).unwrap();
    let told = folder.succeed(&["train", "w.yaml", "--progress", "plain"]);
    let is_result = |line: &&str| line.starts_with("epoch ") || line.starts_with("test: ");
    let lines = told.lines().filter(is_result);
    let evaluated = folder.succeed(&["evaluate", &format!("{file}.out"), file]);
    let lines = lines.map(|line| line.split(" (").next().unwrap_or(line));
    lines.chain([&*evaluated]).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_row_of_weight_two_is_two_rows() {
    let folder = Folder::new("row-weights", "adam");
    let mut weighted = "x,w,y\n".to_owned();
    let mut repeated = "x,y\n".to_owned();
    for i in 0..12_u32 {
        let (x, y) = (i * 7 % 13, i * i % 3 % 2);
        weighted += &format!("{x},{},{y}\n", i % 3);
        repeated += &format!("{x},{y}\n").repeat(i as usize % 3);
    }
    fs::write(folder.0.join("weighted.csv"), weighted).unwrap();
    fs::write(folder.0.join("repeated.csv"), repeated).unwrap();
    let found = tested(&folder, "weighted.csv", "weight: w, ");
    let expected = tested(&folder, "repeated.csv", "");
    assert!(expected.contains("epoch 5/5: loss "), "{expected}");
    assert_eq!(found, expected);
}

/// Rows that came to one of several files stand before those of the next.
#[test]
fn rows_that_came_between_others_move_the_last_ones() {
    let folder = Folder::new("between", "adam");
    let rows = |from: usize| -> String {
        let row = |i: usize| format!("{},{},{}\n", i % 5, i % 7, i % 2);
        (from..from + 20).map(row).collect()
    };
    let add = |name: &str, from: usize| {
        let path = folder.0.join(name);
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, text + &rows(from)).unwrap();
    };
    add("first.csv", 0);
    add("second.csv", 20);
    for (file, csv) in [
        ("one.yaml", "second.csv"),
        ("two.yaml", "[first.csv, second.csv]"),
    ] {
        let text = format!(
            "data: {{csv: {csv}, test: {{last: 10}}}}\nmodel: [{{dense: {{units: 2}}}}]\noptimizer: adam\n\
             loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}\nfit: {{epochs: 1, batch_size: 8}}\noutput: {file}.out\n"
        );
        fs::write(folder.0.join(file), text).unwrap();
        folder.succeed(&["train", file, "--quiet"]);
    }
    add("second.csv", 40);
    folder.succeed(&["evaluate", "one.yaml"]);
    let told = ["this is a part of 60 examples, and the training held it out of 40"];
    folder.fail(&["evaluate", "two.yaml"], 2, &told);
}

#[test]
fn weights_of_another_column_are_another_meaning() {
    let folder = Folder::new("weighed", "adam");
    let row = |i: usize| format!("{},{},{},{},{}\n", 1 + i % 2, i % 5, i % 7, i % 3, i % 2);
    fs::write(folder.0.join("a.csv"), (0..40).map(row).collect::<String>()).unwrap();
    let text = "data: {csv: a.csv, weight: 0, test: {last: 10}}\nmodel: [{dense: {units: 2}}]\noptimizer: adam\n\
        loss: {sparse_categorical_crossentropy: {from_logits: true}}\nfit: {epochs: 1, batch_size: 8}\noutput: out\n";
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    folder.succeed(&["evaluate", "t.yaml"]);
    fs::write(
        folder.0.join("t.yaml"),
        text.replace("weight: 0", "weight: 3"),
    )
    .unwrap();
    folder.fail(&["evaluate", "t.yaml"], 2, &["`weight` of t.yaml is"]);
    // Without the record nobody knows which columns were the features.
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    fs::remove_file(folder.0.join("out/model/training.json")).unwrap();
    folder.fail(
        &["predict", "t.yaml", "a.csv"],
        2,
        &["which column has the weights"],
    );
}
