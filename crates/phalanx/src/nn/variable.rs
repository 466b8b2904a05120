//! What a variable is.

use phalanx_graph::{Shape, Sharding};

use super::{Constraint, Initializer};

/// A variable of a model: what it is, not its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Path in the model: names of layers and of the variable joined by `/`, as in `dense/kernel`.
    pub name: String,
    /// Element type and dims.
    pub shape: Shape,
    /// Where its first value comes from.
    pub initializer: Initializer,
    /// Whether optimizers change it: not for state, nor in a frozen layer.
    pub trainable: bool,
    /// Whether it is state of a layer, such as moving statistics, that a call itself updates.
    pub state: bool,
    /// What every update brings it back to; left as it is where absent.
    pub constraint: Option<Constraint>,
    /// How it is cut over a mesh of devices; whole on each where absent.
    pub sharding: Option<Sharding>,
}
