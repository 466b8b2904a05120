//! Settings that several layers share.

use crate::config::{Family, Field, Kind, Setting};

/// `activation`.
pub(super) const ACTIVATION: Field = Field::optional(
    "activation",
    Kind::Component(Family::Activation),
    "what is applied to the output",
);
/// `use_bias`.
pub(super) const USE_BIAS: Field =
    Field::optional("use_bias", Kind::Bool, "whether a bias is added");
/// `kernel_initializer`.
pub(super) const KERNEL_INITIALIZER: Field =
    initializer("kernel_initializer", "first values of the kernel");
/// `bias_initializer`.
pub(super) const BIAS_INITIALIZER: Field =
    initializer("bias_initializer", "first values of the bias");
/// `recurrent_initializer`.
pub(super) const RECURRENT_INITIALIZER: Field = initializer(
    "recurrent_initializer",
    "first values of the recurrent kernel",
);
/// `embeddings_initializer`.
pub(super) const EMBEDDINGS_INITIALIZER: Field =
    initializer("embeddings_initializer", "first values of the table");
/// `kernel_regularizer`.
pub(super) const KERNEL_REGULARIZER: Field =
    regularizer("kernel_regularizer", "penalty on the kernel");
/// `recurrent_regularizer`.
pub(super) const RECURRENT_REGULARIZER: Field =
    regularizer("recurrent_regularizer", "penalty on the recurrent kernel");
/// `bias_regularizer`.
pub(super) const BIAS_REGULARIZER: Field = regularizer("bias_regularizer", "penalty on the bias");
/// `activity_regularizer`.
pub(super) const ACTIVITY_REGULARIZER: Field =
    regularizer("activity_regularizer", "penalty on the output");
/// `embeddings_regularizer`.
pub(super) const EMBEDDINGS_REGULARIZER: Field =
    regularizer("embeddings_regularizer", "penalty on the table");
/// `kernel_constraint`.
pub(super) const KERNEL_CONSTRAINT: Field =
    constraint("kernel_constraint", "what updates bring the kernel back to");
/// `recurrent_constraint`.
pub(super) const RECURRENT_CONSTRAINT: Field = constraint(
    "recurrent_constraint",
    "what updates bring the recurrent kernel back to",
);
/// `bias_constraint`.
pub(super) const BIAS_CONSTRAINT: Field =
    constraint("bias_constraint", "what updates bring the bias back to");
/// `embeddings_constraint`.
pub(super) const EMBEDDINGS_CONSTRAINT: Field = constraint(
    "embeddings_constraint",
    "what updates bring the table back to",
);
/// `mask_zero`.
pub(super) const MASK_ZERO: Field = Field::optional(
    "mask_zero",
    Kind::Bool,
    "whether the index 0 is padding, which later layers leave out",
);
/// `padding` of windows.
pub(super) const PADDING: Field = Field::optional(
    "padding",
    Kind::OneOf(&["valid", "same"]),
    "`valid`: windows stay inside the image; `same`: zeros around it, so that a stride of 1 keeps its size",
);
/// `padding` of windows over volumes.
pub(super) const VOLUME_PADDING: Field = PADDING.doc(
    "`valid`: windows stay inside the volume; `same`: zeros around it, so that a stride of 1 keeps its size",
);
/// `padding` of windows over sequences.
pub(super) const STEP_PADDING: Field = PADDING.doc(
    "`valid`: windows stay inside the sequence; `same`: zeros around it, so that a stride of 1 keeps its length",
);
/// `strides` of a convolution.
pub(super) const STRIDES: Field =
    Field::optional("strides", Kind::PAIR, "step from one window to the next");
/// `dilation_rate`.
pub(super) const DILATION_RATE: Field = Field::optional(
    "dilation_rate",
    Kind::PAIR,
    "step from one element of a window to the next",
);
/// `kernel_size`.
pub(super) const KERNEL_SIZE: Field =
    Field::required("kernel_size", Kind::PAIR, "height and width of a window").example("3");
/// `dropout` of a recurrent layer's input.
pub(super) const DROPOUT: Field = Field::optional(
    "dropout",
    Kind::SHARE,
    "share of the input that is set to 0 in training",
);
/// `recurrent_dropout`.
pub(super) const RECURRENT_DROPOUT: Field = Field::optional(
    "recurrent_dropout",
    Kind::SHARE,
    "share of the state that each gate does not see in training",
);
/// `filters` of a convolution.
pub(super) const FILTERS: Field =
    Field::required("filters", Kind::SIZE, "number of output channels").example("32");
/// `units`.
pub(super) const UNITS: Field =
    Field::required("units", Kind::SIZE, "number of outputs").example("64");
/// `return_sequences`.
pub(super) const RETURN_SEQUENCES: Field = Field::optional(
    "return_sequences",
    Kind::Bool,
    "whether every step has an output, not the last alone",
);
/// `return_state`.
pub(super) const RETURN_STATE: Field = Field::optional(
    "return_state",
    Kind::Bool,
    "whether the states after the last step are further outputs",
);
/// `go_backwards`.
pub(super) const GO_BACKWARDS: Field = Field::optional(
    "go_backwards",
    Kind::Bool,
    "whether steps are read from the last to the first",
);
/// `recurrent_activation`.
pub(super) const RECURRENT_ACTIVATION: Field = Field::optional(
    "recurrent_activation",
    Kind::Component(Family::Activation),
    "activation of the gates",
);
/// `keepdims`.
pub(super) const KEEPDIMS: Field = Field::optional(
    "keepdims",
    Kind::Bool,
    "whether reduced dimensions stay, with size 1",
);
/// `input_dim` of a table of embeddings.
pub(super) const INPUT_DIM: Field =
    Field::required("input_dim", Kind::SIZE, "number of rows of the table").example("10000");
/// `output_dim` of a table of embeddings.
pub(super) const OUTPUT_DIM: Field =
    Field::required("output_dim", Kind::SIZE, "size of each row").example("64");
/// Names an axis of the input, counted from the end when negative.
pub(super) const AXIS: Field = Field::optional(
    "axis",
    Kind::INTEGER,
    "the dimension of the channels, counted from the end when negative",
);
/// `epsilon` of normalizations.
pub(super) const EPSILON: Field = Field::optional(
    "epsilon",
    Kind::AT_LEAST_ZERO,
    "what is added to the variance",
);
/// `center`.
pub(super) const CENTER: Field = Field::optional("center", Kind::Bool, "whether `beta` is added");
/// `scale` of normalizations.
pub(super) const SCALE: Field = Field::optional(
    "scale",
    Kind::Bool,
    "whether the output is multiplied by `gamma`",
);
/// `beta_initializer`.
pub(super) const BETA_INITIALIZER: Field =
    initializer("beta_initializer", "first values of `beta`");
/// `gamma_initializer`.
pub(super) const GAMMA_INITIALIZER: Field =
    initializer("gamma_initializer", "first values of `gamma`");
/// `beta_regularizer`.
pub(super) const BETA_REGULARIZER: Field = regularizer("beta_regularizer", "penalty on `beta`");
/// `gamma_regularizer`.
pub(super) const GAMMA_REGULARIZER: Field = regularizer("gamma_regularizer", "penalty on `gamma`");
/// `beta_constraint`.
pub(super) const BETA_CONSTRAINT: Field =
    constraint("beta_constraint", "what updates bring `beta` back to");
/// `gamma_constraint`.
pub(super) const GAMMA_CONSTRAINT: Field =
    constraint("gamma_constraint", "what updates bring `gamma` back to");

/// Settings of every layer, beside its own.
pub(super) const EVERY_LAYER: &[Field] = &[
    Field::optional(
        "name",
        Kind::Text,
        "a name, used in summaries, logs and files",
    ),
    Field::optional(
        "trainable",
        Kind::Bool,
        "whether training changes its variables",
    ),
    Field::optional(
        "training",
        Kind::Bool,
        "whether it behaves in training as it does then; `false`: dropouts pass everything, and batch normalizations keep their statistics",
    ),
    Field::optional(
        "precision",
        Kind::OneOf(&super::Policy::NAMES),
        "what it computes in",
    ),
    Field::optional(
        "checkpointed",
        Kind::Bool,
        "whether the backward pass computes its inner values again instead of keeping them: less memory, more time",
    ),
    Field::optional(
        "sharding",
        Kind::Map(&Kind::List(
            &Kind::Worded(
                "the name of an axis or null",
                &Kind::Either(&[Kind::Text, Kind::Null]),
            ),
            0,
            16,
        )),
        "how a `mesh` divides its variables: for each, an axis or null for every dimension",
    )
    .example("{kernel: [null, model]}"),
];

/// [`EVERY_LAYER`] with the defaults.
pub(crate) fn every_layer_settings() -> Vec<Setting> {
    let defaults = serde_json::json!({"trainable": true, "training": true, "checkpointed": false});
    let settings = EVERY_LAYER.iter().map(|field| Setting {
        field: *field,
        default: defaults.get(field.name).cloned().unwrap_or_default(),
    });
    settings.collect()
}

/// A setting that is an initializer.
pub(super) const fn initializer(name: &'static str, doc: &'static str) -> Field {
    Field::optional(name, Kind::Component(Family::Initializer), doc)
}

/// A setting that is a constraint.
pub(super) const fn constraint(name: &'static str, doc: &'static str) -> Field {
    Field::optional(name, Kind::Component(Family::Constraint), doc)
}

/// A setting that is a penalty.
pub(super) const fn regularizer(name: &'static str, doc: &'static str) -> Field {
    Field::optional(name, Kind::Component(Family::Regularizer), doc)
}
