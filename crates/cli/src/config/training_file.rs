//! Every key of a training file: what it may be, what it is where it is left out, and what it does.
//!
//! The parser, its messages, the JSON Schema and the tables of `docs/train-yaml.md` are made of this. The settings of
//! layers, losses, metrics, optimizers and strategies are declared by the library.

use std::ops::Bound::{Excluded, Included};

use phalanx::config::{DefaultValue, Family, Field, Kind};
use phalanx::nn::Policy;

use super::example_table::{CIFAR, IDX, NUMPY, PARQUET, TFDS, TFRECORD, WEBDATASET};
use super::fine_tune::{FINE_TUNE, WEIGHTS};
use super::fit_table::{FIT, TENSORBOARD, VALIDATION};
use super::inputs::{COLUMN, INPUTS};
use super::loss_scale::{LOSS_SCALE, LOSS_SCALE_KIND};
use super::{categories, labels, texts, windows};

/// Most numbers of one example: what the CSV reader takes.
pub(crate) const MAX_FEATURES: i64 = 1 << 18;
/// Most layers of a model, and most metrics.
const MAX_COMPONENTS: usize = 4096;

/// What the loss of one of several outputs counts.
pub(super) const LOSS_WEIGHT: Kind = Kind::Number(Included(0.0), Included(1e30));

/// Metrics of the one output, or of each.
const METRICS: Kind = Kind::Worded(
    "a list of metrics, or one for each output",
    &Kind::Either(&[
        Kind::Components(Family::Metric, 0, MAX_COMPONENTS),
        Kind::Map(&Kind::Either(&[
            Kind::Components(Family::Metric, 0, MAX_COMPONENTS),
            Kind::Component(Family::Metric),
        ])),
    ]),
);

/// Without a file of Keras they are required.
const OF_KERAS: DefaultValue =
    DefaultValue::Words("required; what it was compiled with where `model` is a file of Keras");

/// The whole file.
pub(crate) const FILE: &[Field] = &[
    Field::required(
        "data",
        Kind::Worded(
            "what to train on",
            &Kind::Either(&[
                Kind::Section(CSV),
                Kind::Section(IMAGES),
                Kind::Section(IDX),
                Kind::Section(NUMPY),
                Kind::Section(CIFAR[0]),
                Kind::Section(CIFAR[1]),
                Kind::Section(TFRECORD),
                Kind::Section(TFDS),
                Kind::Section(WEBDATASET),
                Kind::Section(PARQUET),
            ]),
        ),
        "the examples: rows of CSV files, a folder of images, or files of MNIST's, NumPy's, CIFAR's, TensorFlow's, TensorFlow Datasets', WebDataset's or Parquet's formats",
    )
    .example("{csv: data.csv}"),
    Field::required(
        "model",
        Kind::Worded(
            "a list of layers, or the path of a whole model",
            &Kind::Either(&[
                Kind::Components(Family::Layer, 1, MAX_COMPONENTS),
                Kind::Text,
            ]),
        ),
        "the layers, first to last; or a model that Keras saved (`.keras`, `.h5`), or the folder of one of this program, whose layers and values the training begins with; or its layers alone (`.json`)",
    )
    .example("[{dense: {units: 10}}]"),
    Field::new(
        "weights",
        WEIGHTS,
        DefaultValue::Words("random values"),
        "a file of weights of this program, Keras or PyTorch, which has a value for every variable of the model: what the training begins with",
    )
    .example("runs/before/model/weights.safetensors"),
    Field::new(
        "fine_tune",
        Kind::Section(FINE_TUNE),
        DefaultValue::Words("all layers are trained"),
        "weights of which the model has some, and layers that keep them",
    )
    .example("{weights: base.weights.h5, freeze: [dense]}"),
    Field::new(
        "optimizer",
        Kind::Component(Family::Optimizer),
        OF_KERAS,
        "how gradients change variables",
    )
    .example("adam"),
    Field::new(
        "loss",
        Kind::Worded(
            "a loss, or one for each output",
            &Kind::Either(&[
                Kind::Component(Family::Loss),
                Kind::Map(&Kind::Component(Family::Loss)),
            ]),
        ),
        OF_KERAS,
        "what training makes small; where `data` has `labels`, a loss for each of these outputs, `{kind: sparse_categorical_crossentropy, size: mean_squared_error}`, logged as `kind_loss` and `size_loss`, of which `loss` is the sum",
    )
    .example("sparse_categorical_crossentropy"),
    Field::new(
        "loss_weights",
        Kind::Worded(
            "names of outputs, each with a number from 0 to 1e30",
            &Kind::Map(&LOSS_WEIGHT),
        ),
        DefaultValue::Words("1 for each; with the loss left out, what Keras compiled it with"),
        "what the loss of an output counts in the sum",
    )
    .example("{size: 0.1}"),
    Field::new(
        "metrics",
        METRICS,
        DefaultValue::Words("none; with the loss left out, what Keras compiled it with"),
        "what is logged beside the loss; weights do not count in it. Where `data` has `labels`, metrics of these outputs, `{kind: [accuracy]}`, logged as `kind_accuracy`, or as `accuracy` where `kind` is the only one",
    )
    .example("[accuracy]"),
    Field::new(
        "weighted_metrics",
        METRICS,
        DefaultValue::Words("none; with the loss left out, what Keras compiled it with"),
        "the same, where the weights of examples count: the numbers in the column `weight` of CSV and Parquet files and, in training, the weights of `class_weight`. A metric that is also among `metrics` is logged as `weighted_NAME`",
    )
    .example("[accuracy]"),
    Field::new(
        "fit",
        Kind::Section(FIT),
        DefaultValue::Words("its defaults"),
        "how to train",
    )
    .example("{epochs: 10}"),
    Field::new(
        "callbacks",
        Kind::Components(Family::Callback, 0, MAX_COMPONENTS),
        DefaultValue::Words("none"),
        "what is called on the way of the training, in this order",
    )
    .example("[{early_stopping: {patience: 3}}]"),
    Field::new(
        "precision",
        Kind::OneOf(&Policy::NAMES),
        DefaultValue::Value("float32"),
        "what layers compute in",
    )
    .example("mixed_bfloat16"),
    Field::new(
        "loss_scale",
        LOSS_SCALE_KIND,
        DefaultValue::Words("with `mixed_float16` one that follows the gradients, or what a file of Keras has where `optimizer` is left to it, otherwise `off`"),
        "what the loss is multiplied by, and gradients divided by, so that small ones do not round to 0: a number for all steps, or the [settings](#loss_scale) of one that follows the gradients, Keras' `LossScaleOptimizer`",
    )
    .example("{initial: 1024}"),
    Field::new(
        "strategy",
        Kind::Component(Family::Strategy),
        DefaultValue::Value("mirrored"),
        "on which devices to train, and how they work together",
    )
    .example("{mirrored: {devices: \"cpu:2\"}}"),
    Field::new(
        "output",
        Kind::Worded("the path of a folder", &Kind::Text),
        DefaultValue::Words("`runs/NAME` for a file `NAME.yaml`"),
        "the folder of the model and the logs",
    )
    .example("runs/digits"),
    Field::new(
        "checkpoint",
        Kind::Worded("the path of a folder, or s3://bucket/prefix or gs://bucket/prefix", &Kind::Text),
        DefaultValue::Words("`checkpoint` in the folder of `output`"),
        "where checkpoints are written, and read by `--resume`. A URL needs a program with the feature `cloud`, and credentials in the environment",
    )
    .example("s3://my-bucket/runs/digits"),
];

pub(super) const PATHS: Kind = Kind::Worded(
    "a path or a list of paths",
    &Kind::Either(&[Kind::Text, Kind::List(&Kind::Text, 1, usize::MAX)]),
);
pub(super) const FOLDER: Kind = Kind::Worded("the path of a folder", &Kind::Text);
const ROWS: Kind = Kind::Worded(
    "a whole number of rows above 0",
    &Kind::Whole(1, 100_000_000),
);
pub(super) const FRACTION: Kind = Kind::Number(Excluded(0.0), Excluded(1.0));

pub(super) const LABEL: Field = Field::new(
    "label",
    Kind::Worded(
        "the name of a column, its position from 0, or -1 for the last",
        &Kind::Either(&[Kind::Whole(-1, MAX_FEATURES - 1), Kind::Text]),
    ),
    DefaultValue::Value("-1"),
    "the column of the label: its name, its position from 0, or -1 for the last",
)
.example("-1");

pub(super) const LABEL_TYPE: Field = Field::new(
    "label_type",
    Kind::OneOf(&["class", "value"]),
    DefaultValue::Value("class"),
    "`class` for whole numbers from 0, `value` for any numbers",
)
.example("class");

pub(super) const WEIGHT: Field = Field::new(
    "weight",
    Kind::Worded("the name of a column, or its position from 0", &COLUMN),
    DefaultValue::Words("all rows count alike"),
    "the column of the weights of rows, numbers from 0: how much each counts in the loss and in `weighted_metrics`, also in validation and tests. It is none of the features. The loss of a batch is divided by its weights, and `class_weight` multiplies them. To `predict` it can be left out",
)
.example("times_seen");

pub(super) const ONE_HOT: Field = Field::new(
    "one_hot",
    Kind::Worded(
        "a list of names of columns, or of their positions from 0",
        &Kind::List(
            &Kind::Either(&[Kind::Whole(0, MAX_FEATURES - 1), Kind::Text]),
            1,
            MAX_FEATURES as usize,
        ),
    ),
    DefaultValue::Words("none"),
    "columns of texts or numbers that name something, such as a colour: each value in these files, in alphabetical order, becomes a feature that is 1 in its rows and 0 in all others. The values are kept with the model; one that is not among them is an error, and a missing one that is filled is none of them. `standardize` leaves these features as they are",
)
.example("[colour, shop]");

pub(super) const CLASSES: Field = Field::new(
    "classes",
    Kind::Worded(
        "a list of names of classes",
        &Kind::List(
            &Kind::Either(&[Kind::Text, Kind::Whole(i64::MIN, i64::MAX)]),
            1,
            1 << 16,
        ),
    ),
    DefaultValue::Words("numbers from 0; or, where labels are texts, these in alphabetical order"),
    "the labels of the classes as they stand in the file, texts or numbers; the first is class 0",
)
.example("[setosa, versicolor, virginica]");

pub(super) const MISSING: Field = Field::new(
    "missing",
    Kind::Worded(
        "fail, drop, mean or a number",
        &Kind::Either(&[
            Kind::OneOf(&["fail", "drop", "mean"]),
            Kind::Number(Included(-1e30), Included(1e30)),
        ]),
    ),
    DefaultValue::Value("fail"),
    "what is done about fields that are empty or say `NA`, `nan`, `null`, `none` or `?`: `fail`, where such a word in a `category` is a name; `drop` their rows; or fill them with the `mean` of their column in the training rows, or with a number. Rows without a label are left out unless it is `fail`",
)
.example("mean");

pub(super) const STANDARDIZE: Field = Field::new(
    "standardize",
    Kind::Bool,
    DefaultValue::Value("false"),
    "whether every feature is given the mean 0 and the standard deviation 1 of the training rows; both are kept with the model",
)
.example("true");

/// `data` of CSV files.
pub(crate) const CSV: &[Field] = &[
    Field::required(
        "csv",
        PATHS,
        "a path, a pattern such as `part-*.csv`, or a list of them, plain or gzip. Several files have the same columns and are read one after the other; files of a pattern in the order of their names",
    )
    .example("data.csv"),
    Field::new(
        "header",
        Kind::Worded(
            "true, false or auto",
            &Kind::Either(&[Kind::Bool, Kind::OneOf(&["auto"])]),
        ),
        DefaultValue::Value("auto"),
        "whether the first line names the columns; `auto` looks at the file",
    )
    .example("auto"),
    LABEL,
    LABEL_TYPE,
    WEIGHT,
    labels::OF_CSV,
    Field::new(
        "delimiter",
        Kind::Worded(
            "one character that is no digit, letter, sign, dot or quote",
            &Kind::Text,
        ),
        DefaultValue::Value("\",\""),
        "the character between fields, such as `\";\"` or `\"\\t\"`",
    )
    .example("\",\""),
    Field::new(
        "decimal",
        Kind::OneOf(&[".", ","]),
        DefaultValue::Value("\".\""),
        "what stands before the decimals of a number; with `\",\"`, as in `2,5`, the delimiter is another, such as `\";\"`",
    )
    .example("\",\""),
    Field::new(
        "features",
        Kind::Worded(
            "up to 8 whole numbers above 0 whose product is the number of feature columns, at most 262144",
            &Kind::List(&Kind::Whole(1, MAX_FEATURES), 1, 8),
        ),
        DefaultValue::Words("one dimension with all feature columns"),
        "the dimensions of one example, such as `[28, 28, 1]`; their product is the number of feature columns",
    )
    .example("[8, 8, 1]"),
    Field::new(
        "columns",
        Kind::Worded(
            "a list of names of columns, or of their positions from 0",
            &Kind::List(
                &Kind::Either(&[Kind::Whole(0, MAX_FEATURES - 1), Kind::Text]),
                1,
                MAX_FEATURES as usize,
            ),
        ),
        DefaultValue::Words("all but the label and the weights"),
        "the columns of the features, in this order; others are not read",
    )
    .example("[petal_length, petal_width]"),
    INPUTS,
    ONE_HOT,
    texts::OF_CSV,
    categories::OF_CSV,
    windows::OF_CSV,
    CLASSES,
    Field::new(
        "skip_rows",
        Kind::Whole(0, 1_000_000),
        DefaultValue::Value("0"),
        "lines at the start of each file that are not read",
    )
    .example("1"),
    MISSING,
    STANDARDIZE,
    Field::new(
        "divide_by",
        // So far from the ends of f32 that no quotient is infinite because of it.
        Kind::Number(Included(1e-30), Included(1e30)),
        DefaultValue::Value("1"),
        "the number that every feature is divided by, such as 255 for pixels",
    )
    .example("255"),
    Field::new(
        "test",
        Kind::OneKeyOf(TEST),
        DefaultValue::Words("none"),
        "rows that training does not see",
    )
    .example("{last: 100}"),
];

/// `test` of CSV files.
pub(crate) const TEST: &[Field] = &[
    Field::optional("first", ROWS, "this many rows from the start").example("100"),
    Field::optional("last", ROWS, "this many rows from the end").example("100"),
    Field::optional("csv", PATHS, "other files with the same columns").example("test.csv"),
    Field::optional(
        "split",
        FRACTION,
        "this share of the rows, drawn by the seed, of each class the same share",
    )
    .example("0.2"),
];

pub(super) const IMAGE_SIZE: Kind = Kind::Worded(
    "rows and columns, whole numbers from 1 to 4096",
    &Kind::List(&Kind::Whole(1, 4096), 2, 2),
);
pub(super) const SCALE: Field = Field::new(
    "scale",
    Kind::Worded(
        "unit, signed, bytes, or {mean: .., std: ..}",
        &Kind::Either(&[
            Kind::OneOf(&["unit", "signed", "bytes"]),
            Kind::Section(STANDARD),
        ]),
    ),
    DefaultValue::Value("unit"),
    "what bytes become: `unit` 0 to 1, `signed` -1 to 1, `bytes` 0 to 255; or `{mean: .., std: ..}`, which is `(byte / 255 - mean) / std`",
)
.example("signed");
pub(super) const CORRUPT: Field = Field::new(
    "corrupt",
    Kind::OneOf(&["fail", "skip"]),
    DefaultValue::Value("fail"),
    "`fail` at what cannot be read, or `skip` it; the line of an epoch says how many were left out",
)
.example("skip");
pub(super) const AUGMENTED: Field = Field::new(
    "augment",
    Kind::Worded("what is changed at random", &Kind::Section(AUGMENT)),
    DefaultValue::Words("none"),
    "random changes in training",
)
.example("{flip: true}");

pub(super) const REQUIRED_IMAGE_SIZE: Field =
    Field::required("image_size", IMAGE_SIZE, "rows and columns of an example").example("[96, 96]");

/// `data` of a folder of images.
pub(crate) const IMAGES: &[Field] = &[
    Field::required(
        "image_folder",
        FOLDER,
        "a folder with one folder of JPEG, PNG or WebP files for each class; classes are numbered in the order of their names",
    )
    .example("images"),
    REQUIRED_IMAGE_SIZE,
    SCALE,
    CORRUPT,
    AUGMENTED,
    Field::new(
        "test",
        Kind::OneKeyOf(IMAGE_TEST),
        DefaultValue::Words("none"),
        "images that training does not see",
    )
    .example("{split: 0.1}"),
];

const CHANNELS: &str =
    "a number, or a list of one for red, green and blue, between -1000 and 1000; std above 0";
const MEAN: Kind = Kind::Number(Included(-1000.0), Included(1000.0));
const STD: Kind = Kind::Number(Excluded(0.0), Included(1000.0));

/// `scale` by mean and deviation.
pub(crate) const STANDARD: &[Field] = &[
    Field::required(
        "mean",
        Kind::Worded(CHANNELS, &Kind::Either(&[MEAN, Kind::List(&MEAN, 3, 3)])),
        "the mean, one number or one for red, green and blue",
    )
    .example("[0.485, 0.456, 0.406]"),
    Field::required(
        "std",
        Kind::Worded(CHANNELS, &Kind::Either(&[STD, Kind::List(&STD, 3, 3)])),
        "the standard deviation, one number or one for red, green and blue",
    )
    .example("[0.229, 0.224, 0.225]"),
];

const ALPHA: Kind = Kind::Number(Excluded(0.0), Included(4.0));

/// `augment` of images.
pub(crate) const AUGMENT: &[Field] = &[
    Field::new(
        "region",
        Kind::OneOf(&["whole", "centre", "centre_crop", "crop", "area"]),
        DefaultValue::Value("whole"),
        "the part that is used. `whole`: all of it. `centre`: the largest part of the right shape, resized. `crop` and `centre_crop`: a part of exactly `image_size`, at random or in the middle. `area`: a random part between 3/4 and 4/3 of the right shape, resized",
    )
    .example("crop"),
    Field::new(
        "least_area",
        FRACTION,
        DefaultValue::Value("0.3"),
        "the smallest part that `area` uses, as a share of the largest part of the right shape",
    )
    .example("0.3"),
    Field::new(
        "flip",
        Kind::Bool,
        DefaultValue::Value("false"),
        "whether half of the images are mirrored",
    )
    .example("true"),
    share("brightness", 1.0, "how far brightness may change", "0.2"),
    share("contrast", 1.0, "how far contrast may change", "0.2"),
    share("saturation", 1.0, "how far saturation may change", "0.2"),
    share("hue", 0.5, "how far hues may move, as a share of their circle", "0.05"),
    share("rotation", 180.0, "how far images may be turned either way, in degrees", "15"),
    Field::new(
        "mix_up",
        ALPHA,
        DefaultValue::Words("none"),
        "blends each image with another of the batch; their shares are drawn from Beta(alpha, alpha), and this is alpha",
    )
    .example("0.2"),
    Field::new(
        "cut_mix",
        ALPHA,
        DefaultValue::Words("none"),
        "covers a rectangle of each image with another of the batch; its share is drawn from Beta(alpha, alpha), and this is alpha",
    )
    .example("1"),
];

/// `test` of images.
pub(crate) const IMAGE_TEST: &[Field] = &[
    Field::optional(
        "split",
        FRACTION,
        "this share of the images, drawn by the seed",
    )
    .example("0.1"),
    Field::optional(
        "image_folder",
        FOLDER,
        "another folder with the same classes",
    )
    .example("test_images"),
];

/// The sections by the name that messages give them, with where they are.
pub(crate) const SECTIONS: [(&str, &[Field]); 14] = [
    ("the file", FILE),
    ("data", CSV),
    ("test", TEST),
    ("text", texts::TEXT),
    ("category", categories::CATEGORY),
    ("window", windows::WINDOW),
    ("data", IMAGES),
    ("scale", STANDARD),
    ("augment", AUGMENT),
    ("test", IMAGE_TEST),
    ("fit", FIT),
    ("validation", VALIDATION),
    ("tensorboard", TENSORBOARD),
    ("loss_scale", LOSS_SCALE),
];

/// How far something may change, 0 by default.
const fn share(name: &'static str, most: f64, doc: &'static str, example: &'static str) -> Field {
    let kind = Kind::Number(Included(0.0), Included(most));
    Field::new(name, kind, DefaultValue::Value("0"), doc).example(example)
}
