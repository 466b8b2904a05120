//! What a good `train.yaml` says.

use std::path::{Path, PathBuf};

use phalanx::data::CorruptPolicy;
use phalanx::fit::{LossScale, TensorBoard, UpdateFreq};
use phalanx::image::{ImagePipeline, Region, Scale};
use phalanx_cli::config::{
    Cloud, Column, Component, Csv, CsvInput, Data, Fit, ImageTest, Images, Label, LabelType, Mix,
    Position, SaveFreq, Test, TrainConfig, Validation, parse,
};
use serde_json::json;

const FULL: &str = "\
data:
  csv: [a.csv, /data/b.csv.gz]
  header: true
  label: price
  label_type: class
  delimiter: ;
  features: [8, 8, 1]
  divide_by: 16
  test: {last: 360}
model:
  - conv2d: {filters: 16, kernel_size: [3, 3], activation: relu}
  - flatten
  - dense:
      units: 10
      name: out
      kernel_regularizer: {l2: {l2: 1e-4}}
optimizer:
  adam: {learning_rate: 0.01}
loss: mean_squared_error
metrics: [mean_absolute_error, auc: {num_thresholds: 50}]
fit:
  epochs: 20
  batch_size: 64
  shuffle: false
  seed: 7
  validation: {split: 0.25}
  class_weight: {0: 1, 12: 2.5}
output: ../runs/x
";

fn read(text: &str) -> TrainConfig {
    parse(text, Path::new("conf/train.yaml")).unwrap_or_else(|problems| panic!("{problems}"))
}

fn names(components: &[Component]) -> Vec<&str> {
    components
        .iter()
        .map(|component| component.name.as_str())
        .collect()
}

fn csv_of(config: &TrainConfig) -> &Csv {
    match &config.data {
        Data::Csv(csv) => csv,
        other => panic!("data are {other:?}"),
    }
}

fn images_of(config: &TrainConfig) -> &Images {
    match &config.data {
        Data::Images(images) => images,
        other => panic!("expected images, found {other:?}"),
    }
}

#[test]
fn every_key_is_read() {
    let config = read(FULL);
    let data = csv_of(&config);
    let csv: Vec<_> = data.csv.iter().map(|path| path.value.clone()).collect();
    assert_eq!(csv, [PathBuf::from("conf/a.csv"), "/data/b.csv.gz".into()]);
    assert_eq!(
        data.csv[1].at,
        Position {
            line: 2,
            column: 16
        }
    );
    assert_eq!(
        (data.header, data.delimiter, data.divide_by),
        (Some(true), ';', 16.0)
    );
    assert_eq!(
        (&data.label.value, data.label_type),
        (&Label::Name("price".into()), LabelType::Class)
    );
    assert_eq!(data.features.value, [8, 8, 1]);
    assert_eq!(
        data.test.as_ref().map(|test| &test.value),
        Some(&Test::Last(360))
    );
}

#[test]
fn every_key_of_models_and_their_training_is_read() {
    let config = read(FULL);
    assert_eq!(names(config.layers()), ["conv2d", "flatten", "dense"]);
    assert_eq!(
        config.layers()[0].settings,
        json!({"filters": 16, "kernel_size": [3, 3], "activation": "relu"})
    );
    assert_eq!(config.layers()[1].settings, json!({}));
    let dense = json!({"units": 10, "name": "out", "kernel_regularizer": {"l2": {"l2": 1e-4}}});
    assert_eq!(
        (&config.layers()[2].settings, config.layers()[2].at),
        (
            &dense,
            Position {
                line: 13,
                column: 5
            }
        )
    );
    assert_eq!(
        (config.optimizer.name.as_str(), &config.optimizer.settings),
        ("adam", &json!({"learning_rate": 0.01}))
    );
    assert_eq!(config.losses[0].component.name, "mean_squared_error");
    let metrics = config.metrics.iter().map(|metric| metric.component.clone());
    let metrics: Vec<Component> = metrics.collect();
    assert_eq!(names(&metrics), ["mean_absolute_error", "auc"]);
    let fit = &config.fit;
    assert_eq!(
        (fit.epochs, fit.batch_size, fit.shuffle, fit.seed),
        (20, 64, false, 7)
    );
    assert_eq!(
        fit.validation.as_ref().map(|data| &data.value),
        Some(&Validation::Split(0.25))
    );
    let weights = fit
        .class_weight
        .as_ref()
        .map(|weights| weights.value.as_slice());
    assert_eq!(weights, Some(&[(0, 1.0), (12, 2.5)][..]));
    assert_eq!(config.output, Path::new("../runs/x"));
}

#[test]
fn every_key_of_images_is_read() {
    let config = read(
        "\
data:
  image_folder: pictures
  image_size: [48, 64]
  scale: signed
  corrupt: skip
  test: {image_folder: apart}
  augment:
    region: area
    least_area: 0.25
    flip: true
    brightness: 0.125
    contrast: 0.25
    saturation: 0.5
    hue: 0.0625
    rotation: 90
model: [flatten]
optimizer: sgd
loss: huber
fit: {keep_best: val_loss, validation: test, validation_freq: 3, save_freq: 50, keep_checkpoints: 5, preemption_notice: aws, tensorboard: runs/events}
",
    );
    let images = images_of(&config).clone();
    assert_eq!(images.folder.value, Path::new("conf/pictures"));
    assert_eq!(images.settings.corrupt, CorruptPolicy::Skip);
    let apart = images.test.map(|test| test.value);
    assert_eq!(apart, Some(ImageTest::Folder("conf/apart".into())));
    let expected = ImagePipeline {
        scale: Scale::Signed,
        region: Region::Area { least: 0.25 },
        flip: true,
        brightness: 0.125,
        contrast: 0.25,
        saturation: 0.5,
        hue: 0.0625,
        rotation: std::f32::consts::FRAC_PI_2,
        ..ImagePipeline::new(48, 64)
    };
    assert_eq!(images.settings.plan, expected);
    let kept = config.fit.keep_best.map(|log| log.value);
    assert_eq!(kept.as_deref(), Some("val_loss"));
    assert_eq!(config.fit.save_freq, Some(SaveFreq::Batches(50)));
    assert_eq!(config.fit.keep_checkpoints, 5);
    assert_eq!(config.fit.preemption_notice, Some(Cloud::Aws));
    assert_eq!(config.fit.validation_freq.value, 3);
    assert_eq!(config.fit.tensorboard, Some("runs/events".into()));
}

#[test]
fn scales_of_the_loss_are_read() {
    let scale = |text: &str| {
        let file = "data: {image_folder: a, image_size: [8, 9]}\nmodel: [flatten]\noptimizer: sgd\nloss: huber\n";
        read(&format!("{file}{text}"))
            .loss_scale
            .map(|scale| scale.value)
    };
    let dynamic = |initial, growth_steps| {
        Some(LossScale::Dynamic {
            initial,
            growth_steps,
        })
    };
    assert_eq!(scale(""), None);
    assert_eq!(scale("loss_scale: off\n"), Some(LossScale::Off));
    assert_eq!(scale("loss_scale: 128\n"), Some(LossScale::Fixed(128.0)));
    assert_eq!(scale("loss_scale: {initial: 64}\n"), dynamic(64.0, 2000));
    let both = "loss_scale: {initial: 1.5, growth_steps: 7}\n";
    assert_eq!(scale(both), dynamic(1.5, 7));
    assert_eq!(scale("loss_scale: {}\n"), Some(LossScale::DYNAMIC));
}

#[test]
fn every_key_of_tensorboard_is_read() {
    let config = read(
        "data: {image_folder: a, image_size: [8, 9]}\nmodel: [flatten]\noptimizer: sgd\nloss: huber\n\
         fit: {tensorboard: {folder: e, histogram_freq: 2, update_freq: batch, write_images: true, write_system: false}}\n",
    );
    let expected = TensorBoard::new("e")
        .histogram_freq(2)
        .update_freq(UpdateFreq::Steps(1))
        .write_images(true)
        .write_system(false);
    assert_eq!(config.fit.tensorboard, Some(expected));
}

#[test]
fn images_have_defaults() {
    let config = read(
        "data: {image_folder: a, image_size: [8, 9]}\nmodel: [flatten]\noptimizer: sgd\nloss: huber\n",
    );
    let images = images_of(&config).clone();
    assert_eq!(images.settings.plan, ImagePipeline::new(8, 9));
    assert_eq!(
        (images.settings.corrupt, images.test),
        (CorruptPolicy::Fail, None)
    );
}

/// A file of images with more keys of `data`.
fn of_images(more: &str, loss: &str) -> String {
    format!(
        "data: {{image_folder: a, image_size: [8, 9], {more}}}\nmodel: [flatten]\noptimizer: sgd\nloss: {loss}\n"
    )
}

#[test]
fn images_are_scaled_by_channel_and_mixed() {
    let more =
        "scale: {mean: 0.5, std: [0.25, 0.5, 1]}, augment: {cut_mix: 0.5, region: centre_crop}";
    let config = read(&of_images(more, "categorical_crossentropy"));
    let images = images_of(&config).clone();
    let expected = ImagePipeline {
        scale: Scale::Standard {
            mean: [0.5; 3],
            std: [0.25, 0.5, 1.0],
        },
        region: Region::CentreCrop,
        ..ImagePipeline::new(8, 9)
    };
    assert_eq!(images.settings.plan, expected);
    assert_eq!(
        images.settings.mix.map(|mix| mix.value),
        Some(Mix::Cut(0.5))
    );

    let wrong = [
        (
            "scale: {mean: 0.5, std: [0.25, 0, 1]}",
            "huber",
            "std above 0",
        ),
        (
            "scale: {mean: [1, 2], std: 1}",
            "huber",
            "a list of one for",
        ),
        ("scale: {std: 1}", "huber", "lacks the key `mean`"),
        ("augment: {mix_up: 0}", "huber", "above 0, up to 4"),
        (
            "augment: {mix_up: 1, cut_mix: 1}",
            "huber",
            "at most one of them",
        ),
        (
            "augment: {mix_up: 1}",
            "sparse_categorical_crossentropy",
            "write `loss: categorical_crossentropy`",
        ),
        (
            "augment: {cut_mix: 1}",
            "mean_squared_error",
            "the loss is mean_squared_error",
        ),
    ];
    for (more, loss, part) in wrong {
        let problems = parse(&of_images(more, loss), Path::new("t.yaml"));
        let text = problems.unwrap_err().to_string();
        assert!(text.contains(part), "{more}: {text}");
    }
}

#[test]
fn what_is_left_out_has_the_documented_value() {
    let config = read("data: {csv: a.csv}\nmodel: [flatten]\noptimizer: sgd\nloss: huber\nfit:\n");
    let data = csv_of(&config);
    assert_eq!(
        (data.header, data.delimiter, data.divide_by),
        (None, ',', 1.0)
    );
    assert_eq!(
        (&data.label.value, data.label_type),
        (&Label::Last, LabelType::Class)
    );
    assert!(data.features.value.is_empty() && data.test.is_none() && config.metrics.is_empty());
    assert_eq!(config.fit, Fit::default());
    assert_eq!(config.output, Path::new("runs/train"));
}

#[test]
fn a_mistake_of_the_library_is_shown_at_the_setting_it_names() {
    let config = read(FULL);
    let at = |component: &Component, message: &str| component.problem(message).at;
    assert_eq!(
        at(&config.layers()[0], "conv2d: `kernel_size`: too large"),
        Position {
            line: 11,
            column: 27
        }
    );
    assert_eq!(
        at(&config.layers()[2], "dense: `l2`: negative"),
        Position {
            line: 16,
            column: 28
        }
    );
    assert_eq!(
        at(&config.layers()[2], "dense: `nothing` is wrong"),
        config.layers()[2].at
    );
}

#[test]
fn what_decides_the_data_is_the_same_text_however_it_is_written() {
    let text = |data: &str, fit: &str| {
        let text = format!(
            "data: {data}\nmodel: [{{dense: {{units: 2}}}}]\noptimizer: sgd\nloss: mean_squared_error\nfit: {fit}\n"
        );
        read(&text).data_text
    };
    let one = text("{csv: a.csv, label: last}", "{validation: {split: 0.5}}");
    let same = text(
        "\n  label: \"last\"\n  csv: 'a.csv'",
        "\n  epochs: 7\n  validation:\n    split: 0.5",
    );
    assert_eq!(one, same);
    for (data, fit) in [
        ("{csv: b.csv, label: last}", "{validation: {split: 0.5}}"),
        ("{csv: a.csv, label: last}", "{validation: {split: 0.25}}"),
        (
            "{csv: a.csv, label: last}",
            "{shuffle: false, validation: {split: 0.5}}",
        ),
        ("{csv: a.csv}", "{validation: {split: 0.5}}"),
        (
            "{csv: a.csv, label: last}",
            "{class_weight: {0: 50.0}, validation: {split: 0.5}}",
        ),
    ] {
        assert_ne!(one, text(data, fit), "{data} {fit}");
    }
}

#[test]
fn inputs_are_indices_or_lists_of_numbers() {
    let text = "data: {csv: a.csv, label: y, inputs: {user: user, about: [age, 3]}}\n\
        model:\n\
        - embedding: {input_dim: 9, output_dim: 2, inputs: user, name: vector}\n\
        - concatenate: {inputs: [vector, about]}\n\
        - dense: {units: 1}\n\
        optimizer: sgd\nloss: huber\n";
    let config = read(text);
    let data = csv_of(&config);
    let name = |name: &str| Column::Name(name.into());
    let input = |name: &str, columns: Vec<Column>, is_index| CsvInput {
        name: name.into(),
        columns,
        is_index,
    };
    let expected = [
        input("user", vec![name("user")], true),
        input("about", vec![name("age"), Column::Index(3)], false),
    ];
    assert_eq!(data.inputs.value, expected);
    assert_eq!(data.columns, [name("user"), name("age"), Column::Index(3)]);
    let taken = config.layers().iter().map(|layer| {
        let names = layer.inputs.iter().flatten();
        names.map(|name| name.value.clone()).collect::<Vec<_>>()
    });
    let taken: Vec<Vec<String>> = taken.collect();
    assert_eq!(taken, [vec!["user"], vec!["vector", "about"], vec![]]);
    // The connections of a layer are no setting of the library's.
    assert_eq!(config.layers()[1].settings, json!({}));
    assert_eq!(
        config.layers()[0].settings,
        json!({"input_dim": 9, "output_dim": 2, "name": "vector"})
    );
}
