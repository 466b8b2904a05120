//! The case of parts that a program defines.

#[path = "own.rs"]
pub(crate) mod own;

use super::*;

/// An update rule, a schedule and a metric of the program.
pub(crate) fn own_parts() -> Case {
    let compile = Compile {
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..own::compile()
    };
    let data = weighted(&rows(24), Part::None);
    Case {
        batch: 7,
        ..plain("own parts", mlp(), data, compile)
    }
}
