//! The names of activations, with their settings.

use crate::config::{Component, Field, Kind};

/// Activations by name.
pub(super) const ACTIVATIONS: &[Component] = &[
    Component {
        name: "linear",
        doc: "`x`",
        fields: &[],
    },
    Component {
        name: "relu",
        doc: "`max(x, 0)`",
        fields: &[],
    },
    Component {
        name: "relu6",
        doc: "`min(max(x, 0), 6)`",
        fields: &[],
    },
    Component {
        name: "leaky_relu",
        doc: "`x` where positive, else `negative_slope x`",
        fields: &[Field::optional(
            "negative_slope",
            Kind::REAL,
            "slope where `x` is negative",
        )],
    },
    Component {
        name: "general_relu",
        doc: "`x` above `threshold`, else `negative_slope (x - threshold)`, and `max_value` at most",
        fields: &[
            Field::optional("negative_slope", Kind::REAL, "slope up to the threshold"),
            Field::optional("max_value", Kind::AT_LEAST_ZERO, "the greatest value"),
            Field::optional(
                "threshold",
                Kind::AT_LEAST_ZERO,
                "where `x` begins to count",
            ),
        ],
    },
    Component {
        name: "elu",
        doc: "`x` where positive, else `alpha (e^x - 1)`",
        fields: &[Field::optional(
            "alpha",
            Kind::REAL,
            "minus the limit at minus infinity",
        )],
    },
    Component {
        name: "selu",
        doc: "scaled ELU, which keeps mean 0 and variance 1",
        fields: &[],
    },
    Component {
        name: "gelu",
        doc: "`x P(X <= x)` for a standard normal X",
        fields: &[],
    },
    Component {
        name: "gelu_tanh",
        doc: "the approximation of `gelu` by tanh",
        fields: &[],
    },
    Component {
        name: "sigmoid",
        doc: "`1 / (1 + e^-x)`",
        fields: &[],
    },
    Component {
        name: "hard_sigmoid",
        doc: "`relu6(x + 3) / 6`",
        fields: &[],
    },
    Component {
        name: "hard_sigmoid_keras2",
        doc: "`min(max(0.2 x + 0.5, 0), 1)`, the `hard_sigmoid` of Keras 2",
        fields: &[],
    },
    Component {
        name: "hard_silu",
        doc: "`x hard_sigmoid(x)`",
        fields: &[],
    },
    Component {
        name: "tanh",
        doc: "hyperbolic tangent",
        fields: &[],
    },
    Component {
        name: "softplus",
        doc: "`log(1 + e^x)`",
        fields: &[],
    },
    Component {
        name: "softsign",
        doc: "`x / (1 + |x|)`",
        fields: &[],
    },
    Component {
        name: "silu",
        doc: "`x sigmoid(x)`, also called swish",
        fields: &[],
    },
    Component {
        name: "mish",
        doc: "`x tanh(softplus(x))`",
        fields: &[],
    },
    Component {
        name: "softmax",
        doc: "`e^x / sum(e^x)` over the last dimension",
        fields: &[],
    },
    Component {
        name: "log_softmax",
        doc: "logarithm of `softmax`",
        fields: &[],
    },
    Component {
        name: "exponential",
        doc: "`e^x`",
        fields: &[],
    },
    Component {
        name: "threshold",
        doc: "`x` above `threshold`, else `default_value`",
        fields: &[
            Field::required("threshold", Kind::REAL, "above which `x` stays").example("0.5"),
            Field::required("default_value", Kind::REAL, "what is given elsewhere").example("0.5"),
        ],
    },
    Component {
        name: "celu",
        doc: "`max(x, 0) + min(0, alpha (e^(x / alpha) - 1))`",
        fields: &[Field::optional(
            "alpha",
            Kind::ABOVE_ZERO,
            "minus the limit at minus infinity",
        )],
    },
    Component {
        name: "hard_shrink",
        doc: "`x` where it is further than `threshold` from 0, else 0",
        fields: &[Field::optional(
            "threshold",
            Kind::AT_LEAST_ZERO,
            "how far from 0 `x` begins to count",
        )],
    },
    Component {
        name: "hard_tanh",
        doc: "`min(max(x, -1), 1)`",
        fields: &[],
    },
    Component {
        name: "log_sigmoid",
        doc: "logarithm of `sigmoid`",
        fields: &[],
    },
    Component {
        name: "soft_shrink",
        doc: "`x` brought nearer to 0 by `threshold`, at most to 0",
        fields: &[Field::optional("threshold", Kind::AT_LEAST_ZERO, "how far")],
    },
    Component {
        name: "sparse_plus",
        doc: "`x` from 1 on, 0 up to -1, `(x + 1)^2 / 4` in between",
        fields: &[],
    },
    Component {
        name: "sparse_sigmoid",
        doc: "`(x + 1) / 2`, at least 0 and at most 1",
        fields: &[],
    },
    Component {
        name: "sparsemax",
        doc: "the point of the simplex that is nearest, over the last dimension",
        fields: &[],
    },
    Component {
        name: "squareplus",
        doc: "`(x + sqrt(x^2 + b)) / 2`",
        fields: &[Field::optional("b", Kind::AT_LEAST_ZERO, "how smooth")],
    },
    Component {
        name: "tanh_shrink",
        doc: "`x - tanh(x)`",
        fields: &[],
    },
];
