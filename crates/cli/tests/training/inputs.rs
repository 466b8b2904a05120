//! Models with several inputs.

use std::fs;

use crate::Folder;
use crate::processes::value_of;

/// Sixty clicks of users 0 to 5 on items 0 to 3 at prices, those of users with a number above the item's.
fn with_inputs(name: &str) -> Folder {
    let folder = Folder::new(name, "sgd");
    let row = |i: u32| {
        let (user, item, price) = (i % 6, (i / 6) % 4, (i * 7) % 10);
        format!("{price},{item},{user},{}\n", u8::from(user > item))
    };
    let rows: String = (0..60).map(row).collect();
    fs::write(
        folder.0.join("a.csv"),
        format!("price,item,user,clicked\n{rows}"),
    )
    .unwrap();
    let text = "data: {csv: a.csv, label: clicked, standardize: true, test: {last: 20}, inputs: {user: user, about: [price], item: item}}\n\
        model:\n\
        - embedding: {inputs: user, input_dim: 6, output_dim: 4, name: user_vector}\n\
        - embedding: {inputs: item, input_dim: 4, output_dim: 4, name: item_vector}\n\
        - dense: {inputs: about, units: 4, name: about_vector}\n\
        - concatenate: {inputs: [user_vector, about_vector, item_vector]}\n\
        - dense: {units: 16, activation: tanh}\n\
        - dense: {units: 1}\n\
        optimizer: {adagrad: {learning_rate: 0.3}}\nloss: {binary_crossentropy: {from_logits: true}}\n\
        metrics: [auc: {from_logits: true}]\n\
        fit: {epochs: 30, batch_size: 8, save_freq: epoch}\noutput: out\n";
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    folder
}

/// The results on the test rows.
pub(crate) fn test_line(text: &str) -> String {
    let line = text.lines().find(|line| line.starts_with("test: "));
    line.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn a_model_of_several_inputs_trains_alike_alone_on_workers_and_on_servers() {
    let folder = with_inputs("inputs");
    let dry = folder.succeed(&["train", "t.yaml", "--dry-run"]);
    assert!(
        dry.contains("each of user an index, about [1], item an index"),
        "{dry}"
    );
    let one = test_line(&folder.succeed(&["train", "t.yaml", "--progress", "plain"]));
    assert!(value_of(&one, "auc") > 0.9, "{one}");
    // From the checkpoint of half of the way.
    let half = ["train", "t.yaml", "--output", "half", "--progress", "plain"];
    folder.succeed(&[&half[..], &["--epochs", "15"]].concat());
    let resumed = test_line(&folder.succeed(&[&half[..], &["--resume"]].concat()));
    assert_eq!(resumed, one);
    for run in ["out", "half"] {
        let evaluated = folder.succeed(&["evaluate", run]);
        assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    }
    let evaluated = folder.succeed(&["evaluate", "out", "--checkpoint"]);
    assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    let program = ["--", env!("CARGO_BIN_EXE_phalanx"), "train", "t.yaml"];
    let workers = ["launch", "--workers", "2"];
    let servers = ["launch", "--workers", "1", "--ps", "2"];
    let sync = "strategy={parameter_server: {mode: sync, table_bytes: 0}}";
    for (launch, output) in [
        (&workers[..], &["--output", "two"][..]),
        (&servers, &["--output", "ps", "--set", sync]),
    ] {
        let train = [launch, &program, output, &["--progress", "plain"]].concat();
        let several = test_line(&folder.succeed(&train));
        for log in ["loss", "auc"] {
            let (one, several) = (value_of(&one, log), value_of(&several, log));
            assert!((one - several).abs() <= 2e-4, "{log} {one} {several}");
        }
    }
}

#[test]
fn columns_of_several_inputs_are_found_by_their_names() {
    let folder = with_inputs("inputs-by-name");
    folder.succeed(&["train", "t.yaml", "--quiet"]);
    // In any order and with others between them.
    let write = |name: &str, text: &str| fs::write(folder.0.join(name), text).unwrap();
    write("as-was.csv", "price,item,user,clicked\n3,1,0,1\n4,2,4,0\n");
    write("other.csv", "user,shop,price,item\n0,x,3,1\n4,y,4,2\n");
    let predicted =
        ["as-was.csv", "other.csv"].map(|file| folder.succeed(&["predict", "out", file]));
    assert_eq!(predicted[0], predicted[1]);
    let values: Vec<f64> = predicted[0]
        .lines()
        .skip(1)
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(values[0] < 0.0 && values[1] > 0.0, "{values:?}");
    write("beyond.csv", "user,price,item\n6,3,1\n");
    let parts = [
        "the index 6 of example 0",
        "of the layer `user_vector`, 0 to 5",
    ];
    folder.fail(&["predict", "out", "beyond.csv"], 2, &parts);
    // Another meaning of the inputs.
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let text = text
        .replace("user: user,", "user: item,")
        .replace("item: item", "item: user");
    write("t.yaml", &text);
    let told = [
        "`inputs` of t.yaml is {about: [price], item: user, user: item},",
        "was trained with {about: [price], item: item, user: user}",
    ];
    folder.fail(&["evaluate", "t.yaml"], 2, &told);
}
