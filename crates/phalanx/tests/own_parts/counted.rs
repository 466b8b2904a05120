//! A rule that has a number for each row of a variable.

use phalanx::optim::{ParamSpec, UpdateRule, Updated};
use phalanx::prelude::*;
use serde_json::{Value, json};

/// `w -= rate / t g` with the number `t` of the update, which is a slot of as many elements as the variable has rows.
#[derive(Debug)]
pub(crate) struct Counted(pub(crate) Schedule);

impl UpdateRule for Counted {
    fn kind(&self) -> &'static str {
        "counted"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn learning_rate(&self) -> &Schedule {
        &self.0
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("count", 0.0)]
    }

    fn slot_dims(&self, _: &str, spec: &ParamSpec) -> Vec<usize> {
        spec.shape.dims[..1].to_vec()
    }

    fn update(
        &self,
        _: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let count = &slots[0] + 1.0;
        let counts = count.broadcast_in(&param.dims(), &[0]);
        Updated::new(param - gradient / counts * &scalars[0], [count])
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}
