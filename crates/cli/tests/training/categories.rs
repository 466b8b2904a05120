//! Models of columns that name something.

use std::fs;

use crate::Folder;
use crate::inputs::test_line;
use crate::processes::value_of;

/// Users by frequency, equally frequent ones in descending order: what has the numbers from 2 on.
const USERS: [&str; 6] = ["f g", "eve", "dan", "cat", "bob", "ann"];
const ITEMS: [&str; 4] = ["40", "30", "20", "010"];

/// Sixty clicks of users on items, those of users with a number above the item's, by names and by the numbers that these have.
fn with_names(name: &str) -> Folder {
    let folder = Folder::new(name, "sgd");
    let (mut names, mut numbers) = (String::new(), String::new());
    for i in 0..60 {
        let (user, item, price) = (i % 6, (i / 6) % 4, (i * 7) % 10);
        let clicked = u8::from(user > item);
        names += &format!("{price},{},\"{}\",{clicked}\n", ITEMS[item], USERS[user]);
        numbers += &format!("{price},{},{},{clicked}\n", item + 2, user + 2);
    }
    for (file, rows) in [("names.csv", names), ("numbers.csv", numbers)] {
        let text = format!("price,item,user,clicked\n{rows}");
        fs::write(folder.0.join(file), text).unwrap();
    }
    let text = |file: &str, category: &str| {
        format!(
            "data: {{csv: {file}, label: clicked, standardize: true, test: {{first: 12}}, inputs: {{user: user, about: [price], item: item}}{category}}}\n\
        model:\n\
        - embedding: {{inputs: user, input_dim: 8, output_dim: 4, name: user_vector}}\n\
        - embedding: {{inputs: item, input_dim: 6, output_dim: 4, name: item_vector}}\n\
        - dense: {{inputs: about, units: 4, name: about_vector}}\n\
        - concatenate: {{inputs: [user_vector, about_vector, item_vector]}}\n\
        - dense: {{units: 16, activation: tanh}}\n\
        - dense: {{units: 1}}\n\
        optimizer: {{adagrad: {{learning_rate: 0.3}}}}\nloss: {{binary_crossentropy: {{from_logits: true}}}}\n\
        fit: {{epochs: 4, batch_size: 8, save_freq: epoch}}\n"
        )
    };
    let category = ", category: [{column: user}, {column: item}]";
    for (file, text) in [
        ("names.yaml", text("names.csv", category)),
        ("numbers.yaml", text("numbers.csv", "")),
    ] {
        fs::write(folder.0.join(file), text).unwrap();
    }
    folder
}

#[test]
fn names_train_as_their_numbers_do_and_are_kept_with_the_model() {
    let folder = with_names("names");
    let train = |file: &str, output: &str, more: &[&str]| {
        let train = ["train", file, "--output", output, "--progress", "plain"];
        folder.succeed(&[&train[..], more].concat())
    };
    let text = train("names.yaml", "names", &[]);
    let told = "each of user a category, about [1], item a category; 6 names of user, a vocabulary of 8; 4 names of item, a vocabulary of 6";
    assert!(text.contains(told), "{text}");
    let one = test_line(&text);
    assert_eq!(one, test_line(&train("numbers.yaml", "numbers", &[])));
    train("names.yaml", "half", &["--epochs", "2"]);
    assert_eq!(test_line(&train("names.yaml", "half", &["--resume"])), one);
    for run in ["names", "half"] {
        let evaluated = folder.succeed(&["evaluate", run]);
        assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    }
    let program = ["--", env!("CARGO_BIN_EXE_phalanx"), "train", "names.yaml"];
    let launch = ["launch", "--workers", "2"];
    let two = ["--output", "two", "--progress", "plain"];
    let several = test_line(&folder.succeed(&[&launch[..], &program, &two].concat()));
    let (one, several) = (value_of(&one, "loss"), value_of(&several, "loss"));
    assert!((one - several).abs() <= 2e-4, "{one} {several}");
    let facts = ["names", "two"].map(|run| folder.facts(run));
    assert_eq!(facts[0], facts[1]);
    assert_eq!(
        facts[0]["categories"][0]["values"],
        serde_json::json!(USERS)
    );
    // A name that is not known is the number 1.
    fs::write(
        folder.0.join("a.csv"),
        "user,item,price\nzoe,010,3\nann,7,3\n",
    )
    .unwrap();
    fs::write(folder.0.join("b.csv"), "user,item,price\n1,5,3\n7,1,3\n").unwrap();
    let predicted = ["names", "numbers"].map(|run| {
        let file = if run == "names" { "a.csv" } else { "b.csv" };
        folder.succeed(&["predict", run, file])
    });
    assert_eq!(predicted[0], predicted[1]);
    assert_eq!(predicted[0].lines().count(), 3);
}

#[test]
fn other_names_than_those_of_the_checkpoint_are_refused() {
    let folder = with_names("other-names");
    let train = [
        "train",
        "names.yaml",
        "--output",
        "out",
        "--progress",
        "plain",
    ];
    folder.succeed(&[&train[..], &["--epochs", "1"]].concat());
    let text = fs::read_to_string(folder.0.join("names.csv")).unwrap();
    fs::write(folder.0.join("names.csv"), text.replace("bob", "rob")).unwrap();
    let resumed = [&train[..], &["--resume"]].concat();
    folder.fail(
        &resumed,
        2,
        &["the categories of the data are user: rob, f g, "],
    );
}

/// Of other rows, in which a table of the same shape has another's vector for each name.
#[test]
fn weights_of_other_names_are_refused_and_fine_tuning_warns() {
    let folder = with_names("names-of-weights");
    let train = |output: &str, set: &str| {
        let train = format!("train names.yaml --epochs 1 --overwrite --output {output}");
        let mut arguments: Vec<String> = train.split(' ').map(str::to_owned).collect();
        arguments.extend(["--set".to_owned(), set.to_owned()]);
        arguments
    };
    let run = |output: &str, set: &str| {
        let arguments = train(output, set);
        folder.phalanx(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let told = |output: std::process::Output, code: i32| {
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{told}");
        told
    };
    let sets = [
        "weights=january/model",
        "weights=january/model/weights.safetensors",
        "model=january/model",
        "fine_tune={weights: january/model}",
    ];
    told(run("january", "fit.seed=1"), 0);
    for set in sets {
        let text = told(run("same", set), 0);
        assert!(!text.contains("categories of the data"), "{set}: {text}");
    }
    let text = fs::read_to_string(folder.0.join("names.csv")).unwrap();
    fs::write(folder.0.join("names.csv"), text.replace("bob", "rob")).unwrap();
    for set in sets {
        let is_refused = !set.starts_with("fine_tune");
        let text = told(run("other", set), if is_refused { 2 } else { 0 });
        let parts = [
            "the categories of the data are user: rob, f g, ",
            "in the training of january/model/weights.safetensors",
            if is_refused {
                "by `fine_tune`"
            } else {
                "warning: the categories"
            },
            "another `name`",
        ];
        for part in parts {
            assert!(text.contains(part), "{set}: no {part:?} in {text}");
        }
    }
}

#[test]
fn a_model_of_names_that_lost_its_record_tells_what_is_lost() {
    let folder = with_names("names-lost");
    let text = fs::read_to_string(folder.0.join("names.yaml")).unwrap();
    let hashed = text.replace("{column: user}", "{column: user, hash: 8}");
    let hashed = hashed.replace("{column: item}", "{column: item, hash: 6}");
    fs::write(folder.0.join("hashed.yaml"), hashed).unwrap();
    for (file, what) in [
        ("names.yaml", "the names of the categories"),
        ("hashed.yaml", "the columns whose names are hashed"),
    ] {
        let train = ["train", file, "--output", "lost", "--epochs", "1"];
        folder.succeed(&[&train[..], &["--overwrite"]].concat());
        fs::remove_file(folder.0.join("lost/model/training.json")).unwrap();
        let told = format!("lost/model has no training.json, which has {what}\n");
        folder.fail(&["evaluate", file, "--output", "lost"], 2, &[&told]);
    }
}
