//! Spellings of Keras and PyTorch: those that mean exactly one name here are understood, others are answered with a hint.
//!
//! Beside the table, names that differ only in case and underscores are the same: `Conv2D` is `conv2d`, and
//! `CategoricalCrossentropy` is `categorical_crossentropy`.

use phalanx::config::Family;
use serde_json::Value as Json;

use super::component::catalog;

use self::Meaning::{Hint, Same};

/// What a spelling stands for.
#[derive(Clone, Copy)]
enum Meaning {
    /// This name.
    Same(&'static str),
    /// Nothing here; this is what to do.
    Hint(&'static str),
}

/// A spelling, with underscores and in lower case, and what it stands for.
type Alias = (&'static str, Meaning);

#[rustfmt::skip]
const LAYERS: &[Alias] = &[
    ("string_lookup", Hint("name the column in `category` of `data`, and take it by `inputs`")),
    ("text_vectorization", Hint("name the column in `text` of `data`")),
    ("batch_normalization", Same("batch_norm")),
    ("batch_norm2d", Same("batch_norm")),
    ("batch_norm3d", Same("batch_norm")),
    ("layer_normalization", Same("layer_norm")),
    ("group_normalization", Same("group_norm")),
    ("unit_normalization", Same("unit_norm")),
    ("rms_normalization", Same("rms_norm")),
    ("spectral_normalization", Same("spectral_norm")),
    ("instance_norm2d", Hint(INSTANCES)),
    ("instance_norm3d", Hint(INSTANCES)),
    ("max_pooling2d", Same("max_pool2d")),
    ("average_pooling2d", Same("average_pool2d")),
    ("avg_pool2d", Same("average_pool2d")),
    ("max_pooling3d", Same("max_pool3d")),
    ("adaptive_average_pooling1d", Same("adaptive_average_pool1d")),
    ("adaptive_average_pooling2d", Same("adaptive_average_pool2d")),
    ("adaptive_average_pooling3d", Same("adaptive_average_pool3d")),
    ("adaptive_avg_pool1d", Same("adaptive_average_pool1d")),
    ("adaptive_avg_pool2d", Same("adaptive_average_pool2d")),
    ("adaptive_avg_pool3d", Same("adaptive_average_pool3d")),
    ("adaptive_max_pooling1d", Same("adaptive_max_pool1d")),
    ("adaptive_max_pooling2d", Same("adaptive_max_pool2d")),
    ("adaptive_max_pooling3d", Same("adaptive_max_pool3d")),
    ("average_pooling3d", Same("average_pool3d")),
    ("avg_pool3d", Same("average_pool3d")),
    ("global_max_pooling3d", Same("global_max_pool3d")),
    ("global_average_pooling3d", Same("global_average_pool3d")),
    ("global_max_pooling2d", Same("global_max_pool2d")),
    ("global_average_pooling2d", Same("global_average_pool2d")),
    ("global_average_pooling1d", Same("global_average_pool1d")),
    ("global_max_pooling1d", Same("global_max_pool1d")),
    (
        "linear",
        Hint("write `dense: {units: N}`, or `activation: {activation: linear}`"),
    ),
    (
        "input",
        Hint("remove it: the input is one example of `data`"),
    ),
    (
        "input_layer",
        Hint("remove it: the input is one example of `data`"),
    ),
    ("max_pooling1d", Same("max_pool1d")),
    ("average_pooling1d", Same("average_pool1d")),
    ("avg_pool1d", Same("average_pool1d")),
    ("conv_transpose1d", Same("conv1d_transpose")),
    ("conv_transpose2d", Same("conv2d_transpose")),
    ("conv_transpose3d", Same("conv3d_transpose")),
    ("dropout1d", Same("spatial_dropout1d")),
    ("dropout2d", Same("spatial_dropout2d")),
    ("dropout3d", Same("spatial_dropout3d")),
    ("upsample", Same("up_sampling2d")),
    (
        "drop_path",
        Hint("write `stochastic_depth: {drop_path_rate: 0.1}`"),
    ),
    (
        "activity_regularization",
        Hint(
            "write `activation: {activation: linear, activity_regularizer: {l1_l2: {l1: 0.01, l2: 0.01}}}`",
        ),
    ),
    ("custom_scale_layer", Same("scaled_add")),
    ("grouped_query_attention", Same("group_query_attention")),
];
const INSTANCES: &str = "write `group_norm: {groups: -1}`";
const LOSSES: &[Alias] = &[
    ("mse", Same("mean_squared_error")),
    ("mse_loss", Same("mean_squared_error")),
    ("mae", Same("mean_absolute_error")),
    ("l1_loss", Same("mean_absolute_error")),
    ("huber_loss", Same("huber")),
    ("kld", Same("kl_divergence")),
    ("kullback_leibler_divergence", Same("kl_divergence")),
    ("mape", Same("mean_absolute_percentage_error")),
    ("msle", Same("mean_squared_logarithmic_error")),
    ("logcosh", Same("log_cosh")),
    (
        "poisson_nll_loss",
        Hint("write `poisson`, which takes rates: give the last layer the activation exponential"),
    ),
    ("focal_loss", Hint(FOCAL)),
    ("focal", Hint(FOCAL)),
    ("ctc_loss", Same("ctc")),
    ("dice_loss", Same("dice")),
    ("tversky_loss", Same("tversky")),
    ("bce", Same("binary_crossentropy")),
    (
        "cross_entropy",
        Hint(
            "write `sparse_categorical_crossentropy` for classes given as numbers, with `from_logits: true` for a model without softmax",
        ),
    ),
    (
        "cross_entropy_loss",
        Hint("write `sparse_categorical_crossentropy: {from_logits: true}`"),
    ),
    (
        "bce_with_logits_loss",
        Hint("write `binary_crossentropy: {from_logits: true}`"),
    ),
    ("bce_loss", Same("binary_crossentropy")),
    (
        "nll_loss",
        Hint("end the model with softmax and write `sparse_categorical_crossentropy`"),
    ),
];
const FOCAL: &str = "write `binary_focal_crossentropy` or `categorical_focal_crossentropy`";
const METRICS: &[Alias] = &[
    ("acc", Same("accuracy")),
    ("mse", Same("mean_squared_error")),
    ("mae", Same("mean_absolute_error")),
    ("f1", Same("f1_score")),
    (
        "crossentropy",
        Hint("write the name of the loss, such as `sparse_categorical_crossentropy`"),
    ),
    (
        "top_k_accuracy",
        Hint("write `sparse_top_k_categorical_accuracy: {k: 5}` for classes given as numbers"),
    ),
    ("loss", Hint("remove it: the loss is always logged")),
    ("mape", Same("mean_absolute_percentage_error")),
    ("msle", Same("mean_squared_logarithmic_error")),
    ("logcosh", Same("log_cosh")),
    ("log_cosh_error", Same("log_cosh")),
    ("rmse", Same("root_mean_squared_error")),
    ("r2", Same("r2_score")),
    ("mean_iou", Same("mean_io_u")),
    ("iou", Same("mean_io_u")),
    ("one_hot_io_u", Same("mean_io_u")),
    ("one_hot_mean_io_u", Same("mean_io_u")),
    ("f_beta", Same("fbeta_score")),
];
const OPTIMIZERS: &[Alias] = &[
    ("momentum", Hint("write `sgd: {momentum: 0.9}`")),
    (
        "nesterov",
        Hint("write `sgd: {momentum: 0.9, nesterov: true}`"),
    ),
    ("gradient_descent", Same("sgd")),
    ("lbfgs", Hint("it is not there; write `adam`")),
];
const STRATEGIES: &[Alias] = &[
    ("mirrored_strategy", Same("mirrored")),
    ("one_device_strategy", Same("one_device")),
    ("central_storage_strategy", Same("central_storage")),
    ("multi_worker_mirrored_strategy", Same("multi_worker")),
    ("parameter_server_strategy", Same("parameter_server")),
    ("tpu_strategy", Hint("write `mirrored: {devices: tpu}`")),
    ("data_parallel", Hint("write `mirrored`")),
    ("distributed_data_parallel", Hint("write `mirrored`")),
    ("ddp", Hint("write `mirrored`")),
    (
        "fsdp",
        Hint("write `mesh`, with a `sharding` for large layers"),
    ),
    ("model_parallel", Hint("write `mesh` or `pipeline`")),
];

const ACTIVATIONS: &[Alias] = &[
    ("swish", Hint("write `silu`")),
    ("hard_swish", Hint("write `hard_silu`")),
    ("none", Hint("write `linear`, or leave it out")),
    ("prelu", Hint("write `leaky_relu`")),
];
const INITIALIZERS: &[Alias] = &[
    ("xavier_uniform", Hint("write `glorot_uniform`")),
    ("xavier_normal", Hint("write `glorot_normal`")),
    ("kaiming_uniform", Hint("write `he_uniform`")),
    ("kaiming_normal", Hint("write `he_normal`")),
    ("uniform", Hint("write `random_uniform`")),
    ("normal", Hint("write `random_normal`")),
];
const SCHEDULES: &[Alias] = &[
    (
        "step_lr",
        Hint("write `exponential_decay` with `staircase: true`"),
    ),
    ("cosine_annealing_lr", Hint("write `cosine_decay`")),
    (
        "one_cycle_lr",
        Hint("write `one_cycle: {max_learning_rate: 0.1, total_steps: 1000}`"),
    ),
    (
        "warmup",
        Hint("write `cosine_decay` with `warmup_target` and `warmup_steps`"),
    ),
];

const CALLBACKS: &[Alias] = &[
    ("tensor_board", Hint("write `tensorboard: FOLDER` in `fit`")),
    (
        "history",
        Hint("remove it: `history.jsonl` in the folder of `output` has the logs of each epoch"),
    ),
    (
        "progbar_logger",
        Hint("remove it: `--progress` on the command line says how progress is shown"),
    ),
];

/// Settings of all components of a family.
const LAYER_SETTINGS: &[Alias] = &[
    ("out_features", Same("units")),
    ("hidden_size", Same("units")),
    ("out_channels", Same("filters")),
    ("num_groups", Same("groups")),
    ("stride", Same("strides")),
    ("dilation", Same("dilation_rate")),
    ("bias", Same("use_bias")),
    ("eps", Same("epsilon")),
    ("p", Same("rate")),
    ("num_embeddings", Same("input_dim")),
    ("embedding_dim", Same("output_dim")),
    (
        "input_shape",
        Hint("remove it: the input is one example of `data`"),
    ),
    (
        "batch_input_shape",
        Hint("remove it: the input is one example of `data`"),
    ),
    (
        "in_features",
        Hint("remove it: the layer takes what comes before it"),
    ),
    (
        "in_channels",
        Hint("remove it: the layer takes what comes before it"),
    ),
    ("data_format", Hint("remove it: channels are always last")),
    (
        "dtype",
        Hint("write `precision`, such as `precision: mixed_bfloat16`"),
    ),
    (
        "seed",
        Hint("remove it: `fit.seed` decides all random numbers"),
    ),
    (
        "kernel_constraint",
        Hint("constraints are not there; remove it"),
    ),
    (
        "weights",
        Hint("weights come from a file: write `fine_tune: {weights: FILE}` at the top of the file"),
    ),
];
const OPTIMIZER_SETTINGS: &[Alias] = &[
    ("lr", Same("learning_rate")),
    ("eps", Same("epsilon")),
    (
        "momentum",
        Hint(
            "this optimizer has none: its `beta_1` is the share that the mean of gradients keeps; `sgd` and `rmsprop` take `momentum`",
        ),
    ),
    ("betas", Hint("write `beta_1` and `beta_2`")),
    ("alpha", Hint("write `rho`")),
    (
        "decay",
        Hint("write a schedule, `learning_rate: {exponential_decay: {..}}`, or `weight_decay`"),
    ),
    ("max_grad_norm", Hint("write `global_clipnorm`")),
    ("grad_clip", Hint("write `global_clipnorm` or `clipvalue`")),
    ("jit_compile", Hint("remove it: every step is compiled")),
    (
        "loss_scale_factor",
        Hint(
            "write `loss_scale: NUMBER` at the top of the file; `precision: mixed_float16` scales the loss by itself",
        ),
    ),
];
const LOSS_SETTINGS: &[Alias] = &[
    (
        "reduction",
        Hint("remove it: losses are averaged over the batch"),
    ),
    ("logits", Same("from_logits")),
    (
        "num_classes",
        Hint("remove it: the model's outputs are the classes"),
    ),
];
const STRATEGY_SETTINGS: &[Alias] = &[
    (
        "num_gpus",
        Hint("write `devices: gpu`, or name them: `devices: \"gpu:0,gpu:1\"`"),
    ),
    (
        "cross_device_ops",
        Hint("write `reduction: {cross_device_ops: ..}`"),
    ),
    ("num_stages", Same("stages")),
    ("num_micro_batches", Same("micro_batches")),
];

/// Keys of sections, by the section's name in messages.
const KEYS: &[(&str, &str, &str)] = &[
    ("the file", "layers", "write them in `model`"),
    ("text", "max_tokens", "write `vocabulary`"),
    ("text", "output_sequence_length", "write `length`"),
    ("the file", "dataset", "write `data`"),
    ("the file", "train", "write `fit`"),
    ("the file", "trainer", "write `fit`"),
    (
        "the file",
        "device",
        "write `strategy: {one_device: {devices: ..}}`",
    ),
    (
        "the file",
        "devices",
        "write `strategy: {mirrored: {devices: ..}}`",
    ),
    ("the file", "distribute", "write `strategy`"),
    (
        "the file",
        "mixed_precision",
        "write `precision: mixed_bfloat16` or `mixed_float16`",
    ),
    ("the file", "policy", "write `precision`"),
    ("loss_scale", "initial_scale", "write `initial`"),
    ("loss_scale", "init_scale", "write `initial`"),
    ("loss_scale", "dynamic_growth_steps", "write `growth_steps`"),
    ("loss_scale", "growth_interval", "write `growth_steps`"),
    ("fit", "val_split", "write `validation: {split: 0.1}`"),
    (
        "fit",
        "validation_data",
        "write `validation: {csv: FILE}`, or `validation: test`",
    ),
    ("fit", "num_epochs", "write `epochs`"),
    ("tensorboard", "log_dir", "write `folder`"),
    (
        "tensorboard",
        "profile_batch",
        "run `phalanx trace` on the training file",
    ),
    ("fit", "max_epochs", "write `epochs`"),
    (
        "fit",
        "device",
        "write `strategy: {one_device: {devices: ..}}` outside `fit`",
    ),
    (
        "data",
        "path",
        "write `csv: FILE` or `image_folder: FOLDER`",
    ),
    ("data", "file", "write `csv: FILE`"),
    ("data", "folder", "write `image_folder`"),
    ("data", "target", "write `label`"),
    ("data", "sep", "write `delimiter`"),
    ("data", "separator", "write `delimiter`"),
    (
        "data",
        "normalize",
        "write `divide_by: 255` for pixels, or the layer `rescaling`",
    ),
    ("data", "input_shape", "write `features`"),
    (
        "data",
        "split",
        "write `test: {last: N}`, or `validation: {split: 0.1}` in `fit`",
    ),
    ("data", "validation", "write it in `fit`"),
];

/// Keys that people look for in the file, in `fit` or in `data`, and that are elsewhere or not there.
const ANYWHERE: &[(&str, &str)] = &[
    (
        "lr",
        "write it as a setting of the optimizer, as in `adam: {learning_rate: 0.001}`",
    ),
    (
        "learning_rate",
        "write it as a setting of the optimizer, as in `adam: {learning_rate: 0.001}`",
    ),
    (
        "validation_split",
        "write `validation: {split: 0.1}` in `fit`",
    ),
    (
        "callbacks",
        "write `callbacks` at the top of the file; `keep_best` and `save_freq` in `fit` save models and checkpoints, `tensorboard` writes for TensorBoard",
    ),
    (
        "early_stopping",
        "write `callbacks: [{early_stopping: {monitor: val_loss}}]` at the top of the file",
    ),
    (
        "initial_epoch",
        "remove it: `phalanx train --resume` continues a training",
    ),
    (
        "verbose",
        "give `--progress` or `--quiet` on the command line",
    ),
    (
        "sample_weight",
        "write `weight: COLUMN` in `data` where a column of CSV files has the weights; `class_weight` in `fit` weighs classes",
    ),
];

/// Layers of PyTorch with a setting that means something else under the name that they have here, and what to do.
const OTHERWISE: [(&str, &str, &str); 2] = [
    ("batch_norm2d", "momentum", MOMENTUM),
    ("batch_norm3d", "momentum", MOMENTUM),
];
const MOMENTUM: &str = "write `batch_norm: {momentum: 0.9}` for PyTorch's 0.1, which is the share of the new statistics and not of the old ones";

/// The setting that a layer of PyTorch has and that means something else here, and what to do.
pub(super) fn otherwise(
    family: Family,
    written: &str,
    settings: &Json,
) -> Option<(&'static str, &'static str)> {
    let settings = settings.as_object().filter(|_| family == Family::Layer)?;
    let (_, setting, hint) = OTHERWISE.iter().find(|(layer, setting, _)| {
        plain(layer) == plain(written) && settings.keys().any(|key| plain(key) == *setting)
    })?;
    Some((setting, hint))
}

/// What a spelling stands for among the names of a family.
pub(super) fn name(family: Family, written: &str, known: &[&'static str]) -> Option<&'static str> {
    resolve(written, known, names_of(family))
}

/// What a spelling stands for among the settings of a component.
pub(super) fn setting(
    family: Family,
    written: &str,
    known: &[&'static str],
) -> Option<&'static str> {
    resolve(written, known, settings_of(family))
}

/// What to do instead of a name that is not there.
pub(super) fn name_hint(family: Family, written: &str) -> Option<String> {
    let hint = hint(names_of(family), written);
    if hint.is_some() || family != Family::Layer {
        return hint;
    }
    if let Some((.., hint)) = OTHERWISE
        .iter()
        .find(|(layer, ..)| plain(layer) == plain(written))
    {
        return Some((*hint).to_owned());
    }
    let mut names = catalog(Family::Activation)
        .iter()
        .map(|activation| activation.name);
    let name = names.find(|name| plain(name) == plain(written))?;
    Some(format!("write `activation: {{activation: {name}}}`"))
}

/// What to do instead of a setting that is not there.
pub(super) fn setting_hint(family: Family, written: &str) -> Option<String> {
    hint(settings_of(family), written)
}

/// What to do instead of a key that a section does not have.
pub(super) fn key_hint(section: &str, written: &str) -> Option<String> {
    let written = plain(written);
    let mut keys = KEYS.iter();
    let here = keys.find(|(of, key, _)| *of == section && plain(key) == written);
    let mut anywhere = ANYWHERE.iter();
    let mut anywhere = || anywhere.find(|(key, _)| plain(key) == written);
    here.map(|(_, _, hint)| (*hint).to_owned())
        .or_else(|| anywhere().map(|(_, hint)| (*hint).to_owned()))
        .or_else(|| elsewhere(section, &written))
}

/// Where a key belongs that is written in another of the large sections.
fn elsewhere(section: &str, written: &str) -> Option<String> {
    const LARGE: [&str; 3] = ["the file", "data", "fit"];
    if !LARGE.contains(&section) {
        return None;
    }
    let others = super::training_file::SECTIONS.into_iter();
    let mut others = others.filter(|(name, _)| LARGE.contains(name) && *name != section);
    others.find_map(|(name, fields)| {
        let key = fields
            .iter()
            .find(|field| plain(field.name) == written)?
            .name;
        Some(match name {
            "the file" => {
                format!("`{key}` stands outside `{section}`: write it without indentation")
            }
            _ => format!("`{key}` is a key of `{name}`: write it there"),
        })
    })
}

/// All that is understood: whose, what is written, what it means.
pub(super) fn understood() -> Vec<(String, &'static str, &'static str)> {
    let families = Family::ALL.into_iter();
    let each = families.flat_map(|family| {
        let names = same(names_of(family)).map(move |(a, n)| (family.many().to_owned(), a, n));
        let settings = same(settings_of(family))
            .map(move |(a, n)| (format!("settings of {}", family.many()), a, n));
        names.chain(settings)
    });
    each.collect()
}

fn names_of(family: Family) -> &'static [Alias] {
    match family {
        Family::Layer => LAYERS,
        Family::Loss => LOSSES,
        Family::Metric => METRICS,
        Family::Optimizer => OPTIMIZERS,
        Family::Strategy => STRATEGIES,
        Family::Activation => ACTIVATIONS,
        Family::Initializer => INITIALIZERS,
        Family::Schedule => SCHEDULES,
        Family::Callback => CALLBACKS,
        Family::Regularizer | Family::Constraint => &[],
    }
}

fn settings_of(family: Family) -> &'static [Alias] {
    match family {
        Family::Layer => LAYER_SETTINGS,
        Family::Loss | Family::Metric => LOSS_SETTINGS,
        Family::Optimizer => OPTIMIZER_SETTINGS,
        Family::Strategy => STRATEGY_SETTINGS,
        _ => &[],
    }
}

fn resolve(written: &str, known: &[&'static str], table: &'static [Alias]) -> Option<&'static str> {
    if written.len() > 64 || known.contains(&written) {
        return None;
    }
    let written = plain(written);
    let mut aliases = same(table);
    let meant = aliases.find(|(alias, _)| plain(alias) == written);
    let meant = meant
        .map(|(_, name)| name)
        .filter(|name| known.contains(name));
    meant.or_else(|| known.iter().copied().find(|name| plain(name) == written))
}

fn hint(table: &[Alias], written: &str) -> Option<String> {
    let written = plain(written);
    table.iter().find_map(|(alias, meaning)| match meaning {
        Hint(hint) if plain(alias) == written => Some((*hint).to_owned()),
        _ => None,
    })
}

fn same(table: &'static [Alias]) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.iter().filter_map(|(alias, meaning)| match meaning {
        Same(name) => Some((*alias, *name)),
        Hint(_) => None,
    })
}

/// A name without case and underscores.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(|letter| *letter != '_');
    letters.flat_map(char::to_lowercase).collect()
}
