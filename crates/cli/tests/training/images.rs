//! Trainings on folders of images.

use std::fs;

use crate::Folder;

/// The folder with `pictures` of two classes, and an `i.yaml` that trains on them.
fn with_images(name: &str, data: &str) -> Folder {
    let folder = Folder::new(name, "adam");
    let synth = "data synth --classes 2 --count 40 --width 12 --height 12 --to";
    let synth: Vec<&str> = synth.split(' ').collect();
    folder.succeed(&[&synth[..], &["pictures"]].concat());
    let text = format!(
        "data: {{image_folder: pictures, image_size: [8, 8]{data}}}\n\
         model: [flatten, {{dense: {{units: 2, activation: softmax}}}}]\n\
         optimizer: adam\nloss: sparse_categorical_crossentropy\nmetrics: [accuracy]\n\
         fit: {{epochs: 2, batch_size: 8, validation: {{split: 0.25}}, keep_best: val_loss}}\noutput: out\n"
    );
    fs::write(folder.0.join("i.yaml"), text).unwrap();
    folder
}

/// Random regions are the centre where nothing is trained, and the whole image is another.
#[test]
fn images_are_seen_as_in_the_training() {
    let folder = with_images("regions", ", augment: {region: area}");
    folder.succeed(&["train", "i.yaml", "--quiet", "--epochs", "1"]);
    let path = folder.0.join("i.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let predict = ["predict", "i.yaml", "--images", "pictures"];
    fs::write(&path, text.replace("region: area", "region: centre")).unwrap();
    folder.succeed(&predict);
    fs::write(&path, text.replace(", augment: {region: area}", "")).unwrap();
    let told = ["`region` of i.yaml is whole", "was trained with area"];
    folder.fail(&predict, 2, &told);
}

#[test]
fn a_model_of_images_is_tested_evaluated_and_predicts() {
    let folder = with_images("images", ", test: {split: 0.3}");
    let text = folder.succeed(&["train", "i.yaml", "--progress", "plain"]);
    let mut lines = text.lines();
    let tested = lines.find_map(|line| line.strip_prefix("test: ")).unwrap();
    let evaluated = folder.succeed(&["evaluate", "i.yaml"]);
    let evaluated = evaluated.trim_end().strip_prefix("evaluate: ");
    assert_eq!(evaluated, Some(tested));
    let predicted = folder.succeed(&["predict", "i.yaml"]);
    assert_eq!(predicted.lines().count(), 1 + 12, "{predicted}");

    // All images: the classes are the folders, in the order of predictions without them.
    let all = folder.succeed(&["evaluate", "i.yaml", "--images", "pictures"]);
    let predicted = folder.succeed(&["predict", "i.yaml", "--images", "pictures"]);
    assert_eq!(predicted.lines().count(), 1 + 40);
    assert!(
        predicted.starts_with("file,class,score_class_00,score_class_01\nclass_00/00000"),
        "{predicted}"
    );
    let right = |(i, line): &(usize, &str)| {
        let class = line.split(',').nth(1);
        class == Some(if *i < 20 { "class_00" } else { "class_01" })
    };
    let right = predicted.lines().skip(1).enumerate().filter(right).count();
    let accuracy = format!("accuracy {:.4}", right as f64 / 40.0);
    assert!(all.contains(&accuracy), "no {accuracy} in {all}");

    let wrong = [
        ("--csv", "a.csv", "name a folder of images with --images"),
        ("--images", "pictures/class_00", "has 0 folders"),
    ];
    for (option, value, next) in wrong {
        folder.fail(&["evaluate", "i.yaml", option, value], 2, &[next]);
    }
    fs::create_dir(folder.0.join("pictures/none")).unwrap();
    fs::create_dir_all(folder.0.join("new/class_00")).unwrap();
    let (from, to) = ("pictures/class_00/000000.jpg", "new/class_00/a.jpg");
    fs::copy(folder.0.join(from), folder.0.join(to)).unwrap();
    let classes = "the classes of new are class_00, expected the training's, class_00, class_01;";
    folder.fail(&["evaluate", "i.yaml", "--images", "new"], 2, &[classes]);
    folder.succeed(&["predict", "i.yaml", "--images", "new"]);

    fs::write(folder.0.join("new/class_00/b.gif"), "GIF89a").unwrap();
    let told = ["warning: 1 images below new are left out", "convert them"];
    folder.fail(&["predict", "i.yaml", "--images", "new"], 0, &told);
    fs::remove_dir(folder.0.join("pictures/none")).unwrap();
    fs::write(folder.0.join("pictures/class_00/c.BMP"), "BM").unwrap();
    let told = ["warning: 1 images below pictures are left out"];
    let dry = ["train", "i.yaml", "--dry-run", "--overwrite"];
    folder.fail(&dry, 0, &told);
}

#[test]
fn mixed_images_train_with_labels_as_shares() {
    let folder = with_images("mixed", ", test: {split: 0.3}, augment: {mix_up: 0.3}");
    let path = folder.0.join("i.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("sparse_", "")).unwrap();
    folder.succeed(&["train", "i.yaml", "--progress", "plain"]);
    let evaluated = folder.succeed(&["evaluate", "i.yaml"]);
    assert!(evaluated.contains("accuracy"), "{evaluated}");
    let all = folder.succeed(&["evaluate", "i.yaml", "--images", "pictures"]);
    assert!(all.contains("accuracy"), "{all}");

    let text = text.replace("sparse_", "").replace("units: 2", "units: 1");
    fs::write(&path, text).unwrap();
    let parts = [":1:", "the model has 1 output", "a unit for each class"];
    folder.fail(&["train", "i.yaml", "--overwrite"], 2, &parts);
}

#[test]
fn a_model_of_images_without_a_test_says_what_is_missing() {
    let folder = with_images("no-test", "");
    folder.succeed(&["train", "i.yaml", "--epochs", "1", "--quiet"]);
    for command in ["evaluate", "predict"] {
        let parts = [
            "i.yaml has no test images",
            "with --images, or add `test: {split: 0.1}` to data",
        ];
        folder.fail(&[command, "i.yaml"], 2, &parts);
    }
    folder.succeed(&["train", "t.yaml", "--epochs", "1", "--quiet", "--overwrite"]);
    folder.fail(
        &["predict", "t.yaml", "--images", "pictures"],
        2,
        &["name a CSV file with --csv"],
    );
}
