//! The keys of `data` for files of examples: IDX, NumPy, CIFAR, TFRecord, TensorFlow Datasets, WebDataset and Parquet.

use std::ops::Bound::Included;

use phalanx::config::{DefaultValue, Field, Kind};

use super::feature_inputs::OF_TFRECORD;
use super::inputs::INPUTS;
use super::training_file::{
    AUGMENTED, CLASSES, CORRUPT, FRACTION, IMAGE_SIZE, LABEL, LABEL_TYPE, MAX_FEATURES, MISSING,
    ONE_HOT, REQUIRED_IMAGE_SIZE, SCALE, STANDARDIZE, WEIGHT,
};
use super::{categories, labels, texts, windows};

const PATTERN: Kind = Kind::Worded("a path or a pattern such as `part-*`", &Kind::Text);
const DIVIDE_BY: Field = Field::new(
    "divide_by",
    Kind::Number(Included(1e-30), Included(1e30)),
    DefaultValue::Value("1"),
    "the number that every number of an example is divided by, such as 255 for pixels",
)
.example("255");
const DIMS: Field = Field::new(
    "features",
    Kind::Worded(
        "up to 8 whole numbers above 0 whose product is the size of an example",
        &Kind::List(&Kind::Whole(1, MAX_FEATURES), 1, 8),
    ),
    DefaultValue::Words("as in the files; images without a channel get one"),
    "the dimensions of one example, such as `[28, 28, 1]`",
)
.example("[28, 28, 1]");
const LAST: Field = Field::optional(
    "split",
    FRACTION,
    "this share of the examples, from the end",
)
.example("0.1");

/// `idx`, in `data` and in its `test`.
pub(crate) const IDX_FILES: &[Field] = &[
    Field::required(
        "images",
        Kind::Worded("a path", &Kind::Text),
        "the file of the examples, plain or gzip",
    )
    .example("train-images-idx3-ubyte.gz"),
    Field::required(
        "labels",
        Kind::Worded("a path", &Kind::Text),
        "the file of their classes",
    )
    .example("train-labels-idx1-ubyte.gz"),
];
const IDX_KEY: Kind = Kind::Worded("two files of MNIST's format", &Kind::Section(IDX_FILES));

/// `data` of IDX files.
pub(crate) const IDX: &[Field] = &[
    Field::required("idx", IDX_KEY, "two files of MNIST's format")
        .example("{images: train-images-idx3-ubyte.gz, labels: train-labels-idx1-ubyte.gz}"),
    DIMS,
    DIVIDE_BY,
    example_test(IDX_TEST),
];

/// `test` of IDX files.
pub(crate) const IDX_TEST: &[Field] = &[
    Field::optional("idx", IDX_KEY, "two files of their own")
        .example("{images: t10k-images-idx3-ubyte.gz, labels: t10k-labels-idx1-ubyte.gz}"),
    LAST,
];

/// `numpy`, in `data` and in its `test`.
pub(crate) const NUMPY_ARRAYS: &[Field] = &[
    Field::new(
        "file",
        Kind::Worded("a path", &Kind::Text),
        DefaultValue::Words("`input` and `label` are files of their own, `.npy`"),
        "the archive that has both, `.npz`",
    )
    .example("mnist.npz"),
    Field::required(
        "input",
        Kind::Worded("the name of an array, or a path", &Kind::Text),
        "the array of the examples, one after the other",
    )
    .example("x_train"),
    Field::required(
        "label",
        Kind::Worded("the name of an array, or a path", &Kind::Text),
        "the array of their labels, one number for each",
    )
    .example("y_train"),
];
const NUMPY_KEY: Kind = Kind::Worded("two arrays of NumPy", &Kind::Section(NUMPY_ARRAYS));

/// `data` of arrays that NumPy saved.
pub(crate) const NUMPY: &[Field] = &[
    Field::required("numpy", NUMPY_KEY, "two arrays of NumPy")
        .example("{file: mnist.npz, input: x_train, label: y_train}"),
    DIMS,
    LABEL_TYPE,
    DIVIDE_BY,
    example_test(NUMPY_TEST),
];

/// `test` of arrays that NumPy saved.
pub(crate) const NUMPY_TEST: &[Field] = &[
    Field::optional("numpy", NUMPY_KEY, "two arrays of their own")
        .example("{file: mnist.npz, input: x_test, label: y_test}"),
    LAST,
];

/// `data` of CIFAR-10 and of CIFAR-100.
pub(crate) const CIFAR: [&[Field]; 2] = [
    &[
        Field::required(
            "cifar10",
            PATTERN,
            "files of CIFAR-10's binary version: examples of `[32, 32, 3]` and 10 classes",
        )
        .example("cifar-10-batches-bin/data_batch_*.bin"),
        DIVIDE_BY,
        example_test(CIFAR_TEST[0]),
    ],
    &[
        Field::required(
            "cifar100",
            PATTERN,
            "files of CIFAR-100's binary version: examples of `[32, 32, 3]` and 100 classes",
        )
        .example("cifar-100-binary/train.bin"),
        DIVIDE_BY,
        example_test(CIFAR_TEST[1]),
    ],
];

/// `test` of CIFAR-10 and of CIFAR-100.
pub(crate) const CIFAR_TEST: [&[Field]; 2] = [
    &[
        Field::optional("cifar10", PATTERN, "files of their own")
            .example("cifar-10-batches-bin/test_batch.bin"),
        LAST,
    ],
    &[
        Field::optional("cifar100", PATTERN, "files of their own")
            .example("cifar-100-binary/test.bin"),
        LAST,
    ],
];

/// `data` of TFRecord files.
pub(crate) const TFRECORD: &[Field] = &[
    Field::required(
        "tfrecord",
        PATTERN,
        "files of `tf.train.Example`, or of `tf.train.SequenceExample` where there are `inputs`, plain or compressed as a whole by gzip or zlib",
    )
    .example("train-*.tfrecord"),
    Field::new(
        "input",
        Kind::Text,
        DefaultValue::Value("image"),
        "the feature that the model is given: floats, integers, or a string of one byte for each number; with `image_size`, a JPEG, PNG or WebP file",
    )
    .example("image"),
    Field::new(
        "label",
        Kind::Text,
        DefaultValue::Value("label"),
        "the feature of the label",
    )
    .example("label"),
    OF_TFRECORD,
    LABEL_TYPE,
    DIMS,
    DIVIDE_BY,
    Field::new(
        "image_size",
        IMAGE_SIZE,
        DefaultValue::Words("the input is numbers"),
        "says that the input is the file of an image, and its rows and columns as an example. Then `scale` and `augment` can be given, and `features` and `divide_by` cannot",
    )
    .example("[96, 96]"),
    SCALE,
    CORRUPT,
    AUGMENTED,
    example_test(TFRECORD_TEST),
];

/// `test` of TFRecord files.
pub(crate) const TFRECORD_TEST: &[Field] = &[
    Field::optional("tfrecord", PATTERN, "files of their own").example("test-*.tfrecord"),
    LAST,
];

/// `tfds`, in `data` and in its `test`.
pub(crate) const TFDS_FOLDER: &[Field] = &[
    Field::required(
        "folder",
        Kind::Worded("the path of a folder", &Kind::Text),
        "the folder of one version, in which `dataset_info.json`, `features.json` and the TFRecord files are: `builder.data_dir` in Python",
    )
    .example("tensorflow_datasets/mnist/3.0.1"),
    Field::new(
        "split",
        Kind::Text,
        DefaultValue::Value("train"),
        "the name of the split",
    )
    .example("test"),
];
const TFDS_KEY: Kind = Kind::Worded(
    "a folder of TensorFlow Datasets and a split of it",
    &Kind::Section(TFDS_FOLDER),
);

/// `data` of folders that TensorFlow Datasets wrote.
pub(crate) const TFDS: &[Field] = &[
    Field::required("tfds", TFDS_KEY, "a split of a dataset")
        .example("{folder: tensorflow_datasets/mnist/3.0.1}"),
    Field::new(
        "input",
        Kind::Text,
        DefaultValue::Words("the first of the dataset's `supervised_keys`, else `image`"),
        "the feature that the model is given, one of a feature of features as `outer/inner`: an image, numbers or flags, in the dimensions that the dataset says",
    )
    .example("image"),
    Field::new(
        "label",
        Kind::Text,
        DefaultValue::Words("the second of the dataset's `supervised_keys`, else `label`"),
        "the feature of the label; the names of its classes are kept with the model",
    )
    .example("label"),
    OF_TFRECORD,
    LABEL_TYPE,
    DIMS,
    DIVIDE_BY,
    Field::new(
        "image_size",
        IMAGE_SIZE,
        DefaultValue::Words("the dimensions that the dataset says"),
        "rows and columns as an example, for images of several sizes or to `augment`, in 3 channels. Then `scale` and `augment` can be given, and `features` and `divide_by` cannot",
    )
    .example("[96, 96]"),
    SCALE,
    CORRUPT,
    AUGMENTED,
    example_test(TFDS_TEST),
];

/// `test` of folders that TensorFlow Datasets wrote.
pub(crate) const TFDS_TEST: &[Field] = &[
    Field::optional("tfds", TFDS_KEY, "another split")
        .example("{folder: tensorflow_datasets/mnist/3.0.1, split: test}"),
    LAST,
];

/// `data` of WebDataset's tar files.
pub(crate) const WEBDATASET: &[Field] = &[
    Field::required(
        "webdataset",
        PATTERN,
        "tar files whose neighbouring members with one key are an example, such as `0001.jpg` and `0001.cls`; not compressed",
    )
    .example("train-*.tar"),
    Field::new(
        "input",
        Kind::Text,
        DefaultValue::Value("jpg"),
        "the end of the name of the image, a JPEG, PNG or WebP file",
    )
    .example("png"),
    Field::new(
        "label",
        Kind::Text,
        DefaultValue::Value("cls"),
        "the end of the name of the label, a text of a whole number from 0",
    )
    .example("cls"),
    REQUIRED_IMAGE_SIZE,
    SCALE,
    CORRUPT,
    AUGMENTED,
    example_test(WEBDATASET_TEST),
];

/// `test` of WebDataset's tar files.
pub(crate) const WEBDATASET_TEST: &[Field] = &[
    Field::optional("webdataset", PATTERN, "files of their own").example("test-*.tar"),
    LAST,
];

/// `data` of Parquet files.
pub(crate) const PARQUET: &[Field] = &[
    Field::required(
        "parquet",
        PATTERN,
        "files of columns of numbers, without missing values, plain or compressed with snappy; their rows are read as they are needed. With one of the keys `inputs`, `labels`, `one_hot`, `text`, `category`, `window`, `classes`, `weight`, `missing` and `standardize` the files are read into memory as CSV files are, and may have columns of texts and, where `missing` says so, nulls",
    )
    .example("part-*.parquet"),
    Field::new(
        "columns",
        Kind::Worded(
            "a list of names of columns",
            &Kind::List(&Kind::Text, 1, MAX_FEATURES as usize),
        ),
        DefaultValue::Words("all but the label"),
        "the columns of the features, in this order; others are not read",
    )
    .example("[petal_length, petal_width]"),
    LABEL,
    LABEL_TYPE,
    labels::OF_CSV,
    DIMS,
    DIVIDE_BY,
    INPUTS,
    ONE_HOT,
    texts::OF_CSV,
    categories::OF_CSV,
    windows::OF_CSV,
    CLASSES,
    WEIGHT,
    MISSING,
    STANDARDIZE,
    example_test(PARQUET_TEST),
];

/// The keys with which Parquet files are read as tables in memory.
pub(crate) const PARQUET_TABLE: [&str; 10] = [
    INPUTS.name,
    labels::OF_CSV.name,
    ONE_HOT.name,
    texts::OF_CSV.name,
    categories::OF_CSV.name,
    windows::OF_CSV.name,
    CLASSES.name,
    WEIGHT.name,
    MISSING.name,
    STANDARDIZE.name,
];

/// `test` of Parquet files.
pub(crate) const PARQUET_TEST: &[Field] = &[
    Field::optional(
        "parquet",
        PATTERN,
        "files of their own with the same columns",
    )
    .example("test.parquet"),
    Field::optional(
        "split",
        FRACTION,
        "this share of the examples, from the end; where the files are read into memory, drawn by the seed, of each class the same share",
    )
    .example("0.1"),
];

const fn example_test(fields: &'static [Field]) -> Field {
    Field::new(
        "test",
        Kind::OneKeyOf(fields),
        DefaultValue::Words("none"),
        "examples that training does not see",
    )
    .example("{split: 0.1}")
}
