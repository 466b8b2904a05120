//! Layers without variables that move values.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::layer::Layer;
use super::sizes::{check_size, one_input};
use crate::config::{self, Component, Described, Field, Kind};

/// All dims of an example as one; kind `flatten`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flatten;

impl Described for Flatten {
    const COMPONENT: Component = Component {
        name: "flatten",
        doc: "makes one dimension of all dimensions of an example",
        fields: &[],
    };
}

impl Layer for Flatten {
    fn kind(&self) -> &'static str {
        "flatten"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        one_input(inputs).map(|_| ())
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let dims = inputs[0].dims();
        inputs[0].reshape(&[dims[0], dims[1..].iter().product()])
    }
}

/// The elements of an example under other dims; kind `reshape`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    target_shape: Vec<i64>,
}

impl Reshape {
    /// The dims of one example; a -1 among them stands for what is left.
    #[must_use]
    pub fn new(target_shape: impl Into<Vec<i64>>) -> Self {
        let target_shape = target_shape.into();
        Self { target_shape }
    }

    /// The dims of the output for an input.
    fn dims(&self, input: &Shape) -> Result<Vec<usize>, String> {
        let elements: usize = input.dims[1..].iter().product();
        let mut known = self.target_shape.iter().filter(|&&dim| dim != -1);
        let known = known.try_fold(1, |total: usize, &dim| {
            total.checked_mul(usize::try_from(dim).ok()?)
        });
        let target = &self.target_shape;
        let fits = match known {
            Some(known) if target.contains(&-1) => known > 0 && elements.is_multiple_of(known),
            Some(known) => known == elements,
            None => false,
        };
        let Some(known) = known.filter(|_| fits) else {
            return Err(format!(
                "examples of {input} have {elements} elements, which do not fill `target_shape` {target:?}; give dims for {elements} elements, or -1 for one of them"
            ));
        };
        let size = |&dim: &i64| usize::try_from(dim).unwrap_or(elements / known);
        let dims = target.iter().map(size);
        Ok([input.dims[0]].into_iter().chain(dims).collect())
    }
}

impl Described for Reshape {
    const COMPONENT: Component = Component {
        name: "reshape",
        doc: "gives examples other dimensions",
        fields: &[Field::required(
            "target_shape",
            Kind::List(&Kind::INTEGER, 0, 16),
            "the dimensions of an example; one of them may be -1, which takes what is left",
        )
        .example("[28, 28, 1]")],
    };
}

impl Layer for Reshape {
    fn kind(&self) -> &'static str {
        "reshape"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        let target = &self.target_shape;
        let free = target.iter().filter(|&&dim| dim == -1).count();
        if free > 1 || target.iter().any(|&dim| dim == 0 || dim < -1) {
            return Err(format!(
                "`target_shape` must hold positive sizes and at most one -1, got {target:?}"
            ));
        }
        Ok(())
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.dims(one_input(inputs)?).map(|_| ())
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        match self.dims(&inputs[0].shape()) {
            Ok(dims) => inputs[0].reshape(&dims),
            Err(message) => cx.fail(message),
        }
    }
}

/// The dims of an example in another order; kind `permute`.
///
/// `dims` are numbers from 1 on, as in Keras, whose dim 0 is the batch: `[2, 1]` exchanges the two dims of a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permute {
    dims: Vec<usize>,
}

impl Permute {
    /// For each dim of the output, from the first after the batch on, the number of the input's dim.
    #[must_use]
    pub fn new(dims: impl Into<Vec<usize>>) -> Self {
        Self { dims: dims.into() }
    }
}

impl Described for Permute {
    const COMPONENT: Component = Component {
        name: "permute",
        doc: "gives the dimensions of examples another order",
        fields: &[Field::required(
            "dims",
            Kind::List(&Kind::SIZE, 1, 15),
            "for each dimension of the output the number of the input's, from 1 on",
        )
        .example("[2, 1]")],
    };
}

impl Layer for Permute {
    fn kind(&self) -> &'static str {
        "permute"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        let mut sorted = self.dims.clone();
        sorted.sort_unstable();
        if sorted.iter().copied().eq(1..=self.dims.len()) {
            return Ok(());
        }
        let (count, dims) = (self.dims.len(), &self.dims);
        Err(format!(
            "`dims` must hold each of 1 to {count} once, got {dims:?}"
        ))
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_input(inputs)?;
        if input.rank() == self.dims.len() + 1 {
            return Ok(());
        }
        let dims = &self.dims;
        Err(format!(
            "`dims` {dims:?} are for examples of {} dims, got {input} with the batch first",
            dims.len()
        ))
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let order: Vec<usize> = [0].into_iter().chain(self.dims.iter().copied()).collect();
        inputs[0].transpose(&order)
    }
}

/// An example `[features]` as each step of a sequence `[n, features]`; kind `repeat_vector`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepeatVector {
    n: usize,
}

impl RepeatVector {
    /// So many steps.
    #[must_use]
    pub const fn new(n: usize) -> Self {
        Self { n }
    }
}

impl Described for RepeatVector {
    const COMPONENT: Component = Component {
        name: "repeat_vector",
        doc: "makes a sequence of one vector",
        fields: &[Field::required("n", Kind::SIZE, "number of steps").example("10")],
    };
}

impl Layer for RepeatVector {
    fn kind(&self) -> &'static str {
        "repeat_vector"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`n`", self.n)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_input(inputs)?;
        if input.rank() == 2 {
            return Ok(());
        }
        Err(format!("expected vectors [batch, features], got {input}"))
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        x.broadcast_in(&[x.dim(0), self.n, x.dim(1)], &[0, 2])
    }
}
