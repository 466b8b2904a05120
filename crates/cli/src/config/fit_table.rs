//! The keys of `fit`.

use std::ops::Bound::Included;

use phalanx::config::{DefaultValue, Field, Kind};

use super::Cloud;
use super::training_file::{FOLDER, FRACTION, PATHS};

const ROWS_OF_A_STEP: Kind = Kind::Whole(1, 1 << 24);
const STEPS: Kind = Kind::Worded(
    "a whole number of batches from 1 to 1000000000",
    &Kind::Whole(1, 1_000_000_000),
);

/// `fit`.
pub(crate) const FIT: &[Field] = &[
    Field::new(
        "epochs",
        Kind::Whole(1, 1_000_000),
        DefaultValue::Value("1"),
        "how many times every example is seen",
    )
    .example("10"),
    Field::new(
        "batch_size",
        Kind::Worded(
            "a whole number from 1 to 16777216, or {per_replica: such a number}",
            &Kind::Either(&[ROWS_OF_A_STEP, Kind::OneKeyOf(BATCH_SIZE)]),
        ),
        DefaultValue::Value("32"),
        "examples in a step, over all devices; with `{per_replica: 64}`, for each replica of all workers",
    )
    .example("32"),
    Field::new(
        "steps_per_epoch",
        STEPS,
        DefaultValue::Words("all batches of the data"),
        "batches in an epoch, fewer than the data have or more: the next epoch goes on where one ended, as in Keras. In Rust this is `Batches::epochs_of`, while `Fit::steps_per_epoch` begins each epoch of the data anew. `--steps-per-epoch` takes its place",
    )
    .example("100"),
    Field::new(
        "steps_per_execution",
        Kind::Whole(1, 1024),
        DefaultValue::Value("1"),
        "steps of training that are one program, as in Keras: more are faster where a step takes less than about a millisecond. Callbacks are called once for all of them. For one device and for replicas in one process",
    )
    .example("8"),
    Field::new(
        "shuffle",
        Kind::Bool,
        DefaultValue::Value("true"),
        "whether every epoch has another order",
    )
    .example("true"),
    Field::new(
        "seed",
        Kind::COUNT,
        DefaultValue::Value("0"),
        "decides the initial weights, the order of examples and dropout",
    )
    .example("42"),
    Field::new(
        "validation",
        Kind::Worded(
            "test, or one of {split: fraction} and {csv: path}",
            &Kind::Either(&[Kind::OneOf(&["test"]), Kind::OneKeyOf(VALIDATION)]),
        ),
        DefaultValue::Words("none"),
        "what is evaluated after each epoch: a share of the training data, other files, or `test` for the test data",
    )
    .example("{split: 0.1}"),
    Field::new(
        "validation_steps",
        STEPS,
        DefaultValue::Words("all batches of the validation"),
        "how many batches of the validation are used, from its start, the same ones each time",
    )
    .example("20"),
    Field::new(
        "validation_freq",
        Kind::Whole(1, 1_000_000),
        DefaultValue::Value("1"),
        "after how many epochs there is a validation: with 2 after the second, the fourth and so on. What watches a log of it (`keep_best`, callbacks) counts these epochs alone",
    )
    .example("5"),
    Field::new(
        "keep_best",
        Kind::Worded("the name of a log", &Kind::Text),
        DefaultValue::Words("the last epoch"),
        "the log, such as `val_accuracy`, whose best epoch gives the model that is saved; the least of a loss or an error, the highest of others. A name with `val_` needs a `validation`",
    )
    .example("val_accuracy"),
    Field::new(
        "save_freq",
        Kind::Worded(
            "epoch, or a whole number of batches from 1 to 1000000000",
            &Kind::Either(&[Kind::OneOf(&["epoch"]), Kind::Whole(1, 1_000_000_000)]),
        ),
        DefaultValue::Words("never; with `--resume`, `epoch`"),
        "when a checkpoint is written, from which an interrupted training continues: after each `epoch`, or also after every given number of batches",
    )
    .example("epoch"),
    Field::new(
        "keep_checkpoints",
        Kind::Whole(1, 1_000_000),
        DefaultValue::Value("2"),
        "how many of the last of these checkpoints stay: the newest as `checkpoint`, the one before as `checkpoint.1` and so on. `--resume` goes on from the newest that is whole",
    )
    .example("3"),
    Field::new(
        "preemption_notice",
        Kind::OneOf(&Cloud::NAMES),
        DefaultValue::Words("none"),
        "whose notice that this machine is about to be taken away ends the training, as SIGTERM does: after a step that is the same for all workers, with a checkpoint of it, and with the exit code 143. Each worker and parameter server asks the [metadata server](checkpoints.md#notices-of-the-cloud) of its machine: Google's (`gce`), Amazon's (`aws`) or Microsoft's (`azure`)",
    )
    .example("gce"),
    Field::new(
        "tensorboard",
        Kind::Worded(
            "the path of a folder, or settings with one",
            &Kind::Either(&[Kind::Text, Kind::Section(TENSORBOARD)]),
        ),
        DefaultValue::Words("none"),
        "the folder of the event files that TensorBoard reads, as Keras' callback writes them: the results of each epoch, or what else the [settings](#tensorboard) ask for. Curves go on with `--resume`; another training begins them anew, so give each a folder of its own",
    )
    .example("runs/digits/tensorboard"),
    Field::new(
        "class_weight",
        Kind::Worded(
            "classes, whole numbers from 0, with weights, numbers from 0 to 1e30",
            &Kind::Map(&Kind::Number(Included(0.0), Included(1e30))),
        ),
        DefaultValue::Words("none"),
        "weights of classes; a class not listed has weight 1. The loss of a batch is divided by its weights: they tell its examples apart, and with one example a batch they change nothing",
    )
    .example("{0: 1.0, 1: 2.5}"),
];

/// `batch_size` of `fit`.
pub(crate) const BATCH_SIZE: &[Field] = &[Field::optional(
    "per_replica",
    ROWS_OF_A_STEP,
    "examples of each replica in a step",
)
.example("64")];

/// `validation` of `fit`.
pub(crate) const VALIDATION: &[Field] = &[
    Field::optional(
        "split",
        FRACTION,
        "this share of the training data, which is not trained on: the last rows, or images drawn by the seed",
    )
    .example("0.1"),
    Field::optional("csv", PATHS, "other files with the same columns").example("validation.csv"),
];

/// `tensorboard` of `fit`.
pub(crate) const TENSORBOARD: &[Field] = &[
    Field::required("folder", FOLDER, "the folder of the event files")
        .example("runs/digits/tensorboard"),
    Field::new(
        "histogram_freq",
        Kind::Whole(0, 1_000_000_000),
        DefaultValue::Value("0"),
        "after how many epochs histograms of the variables are written; 0 is never",
    )
    .example("1"),
    Field::new(
        "write_graph",
        Kind::Bool,
        DefaultValue::Value("true"),
        "whether the graph of the model is written",
    )
    .example("true"),
    Field::new(
        "write_images",
        Kind::Bool,
        DefaultValue::Value("false"),
        "whether variables are written as images too, with the histograms",
    )
    .example("true"),
    Field::new(
        "write_grads",
        Kind::Bool,
        DefaultValue::Value("false"),
        "whether histograms of gradients are written, too: of the loss over the first batch of the epoch. Not with parameter servers or stages",
    )
    .example("true"),
    Field::new(
        "write_steps_per_second",
        Kind::Bool,
        DefaultValue::Value("false"),
        "whether the steps of a second are written",
    )
    .example("true"),
    Field::new(
        "update_freq",
        Kind::Worded(
            "epoch, batch, or a whole number of steps from 1 to 1000000000",
            &Kind::Either(&[
                Kind::OneOf(&["epoch", "batch"]),
                Kind::Whole(1, 1_000_000_000),
            ]),
        ),
        DefaultValue::Value("epoch"),
        "when results are written: at the end of an `epoch`, or also after each `batch` or every given number of steps, and training waits for each. Not with parameter servers, but for `epoch`",
    )
    .example("100"),
    Field::new(
        "write_system",
        Kind::Bool,
        DefaultValue::Value("true"),
        "whether each worker writes its use of processors, memory, network and NVIDIA's GPUs",
    )
    .example("false"),
    Field::optional(
        "profile_batch",
        Kind::Worded(
            "a step, or the first and the last of several, whole numbers from 2 to 1000000000",
            &Kind::Either(&[STEP, Kind::List(&STEP, 2, 2)]),
        ),
        "the steps that TensorBoard's profiler plug-in shows, counted from 1 where the training begins or goes on; the first step, which is compiled in its course, is none of them. Not with parameter servers",
    )
    .example("[10, 19]"),
];

const STEP: Kind = Kind::Whole(2, 1_000_000_000);
