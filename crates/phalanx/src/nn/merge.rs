//! Layers of several inputs.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::layer::Layer;
use super::preprocess::as_float;
use super::sizes::feature_dim;
use crate::config::{self, Component, Described, Field, Kind};

/// A layer that makes one element of the elements of its inputs at the same place.
macro_rules! elementwise {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $about:literal, $merge:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name;

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[],
            };
        }

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                stretchable($kind, inputs)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let merge: fn(&[Tensor], &[Option<Tensor>]) -> Tensor = $merge;
                let merged = merge(inputs, &masks_of_elements(cx, inputs));
                keep_mask_of_all(cx, inputs, &merged);
                merged
            }
        }
    };
}

elementwise! {
    /// The sum of its inputs, whose dims are equal or 1; kind `add`.
    Add, "add", "the sum of its inputs",
    |inputs, _| merged_in_turn(inputs, |sum, input| sum + input)
}
elementwise! {
    /// The product of its inputs element by element, whose dims are equal or 1; kind `multiply`.
    ///
    /// What is padding in an input counts as 1, and what is in all of them makes 0.
    Multiply, "multiply", "the product of its inputs, element by element",
    product
}
elementwise! {
    /// The mean of its inputs, whose dims are equal or 1, in f32 where they are integers; kind `average`.
    Average, "average", "the mean of its inputs",
    |inputs, _| {
        let inputs: Vec<Tensor> = inputs.iter().map(as_float).collect();
        merged_in_turn(&inputs, |sum, input| sum + input) / inputs.len() as f64
    }
}
elementwise! {
    /// The largest of its inputs' elements at each place, dims equal or 1; kind `maximum`.
    ///
    /// What is padding in an input does not count beside what is none.
    Maximum, "maximum", "the largest element of its inputs at each place",
    |inputs, masks| chosen_in_turn(inputs, masks, Tensor::maximum)
}
elementwise! {
    /// The smallest of its inputs' elements at each place, dims equal or 1; kind `minimum`.
    ///
    /// What is padding in an input does not count beside what is none.
    Minimum, "minimum", "the smallest element of its inputs at each place",
    |inputs, masks| chosen_in_turn(inputs, masks, Tensor::minimum)
}
elementwise! {
    /// The first input less the others (Keras takes two), dims equal or 1; kind `subtract`.
    Subtract, "subtract", "the first input less the others",
    |inputs, _| merged_in_turn(inputs, |rest, input| rest - input)
}

/// The first input and the second times a number, dims equal or 1, for residual branches; kind `scaled_add`.
///
/// It is the `CustomScaleLayer` of Keras' Inception-ResNet, but for padding masks, of which that makes none: a step is padding that is in
/// both inputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaledAdd {
    scale: f64,
}

impl ScaledAdd {
    /// Multiplies the second input by this number.
    #[must_use]
    pub const fn new(scale: f64) -> Self {
        Self { scale }
    }
}

impl Described for ScaledAdd {
    const COMPONENT: Component = Component {
        name: "scaled_add",
        doc: "the first input and the second times a number",
        fields: &[Field::required(
            "scale",
            Kind::REAL,
            "what the second input is multiplied by",
        )
        .example("0.1")],
    };
}

impl Layer for ScaledAdd {
    fn kind(&self) -> &'static str {
        "scaled_add"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        match self.scale.is_finite() {
            true => Ok(()),
            false => Err(format!(
                "`scale` must be a finite number, got {}",
                self.scale
            )),
        }
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        stretchable("add", inputs)?;
        match inputs.len() {
            2 if inputs[0].dtype.is_float() => Ok(()),
            2 => Err(format!("expected floats, got {}", inputs[0])),
            count => Err(format!("expected 2 inputs, got {count}")),
        }
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let sum = &inputs[0] + &inputs[1] * self.scale;
        keep_mask_of_all(cx, inputs, &sum);
        sum
    }
}

/// All inputs as one, the first two first.
fn merged_in_turn(inputs: &[Tensor], merge: fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
    let rest = inputs.iter().skip(1);
    rest.fold(inputs[0].clone(), |merged, input| merge(&merged, input))
}

/// Whether each element of each input is no padding, with dims that broadcast to the input's; `None` for inputs without a mask.
fn masks_of_elements(cx: &Cx, inputs: &[Tensor]) -> Vec<Option<Tensor>> {
    let mask_of = |x: &Tensor| {
        let mask = cx.padding_mask(x)?;
        let mut dims = mask.dims();
        dims.resize(x.rank(), 1);
        Some(mask.reshape(&dims))
    };
    inputs.iter().map(mask_of).collect()
}

/// Keras' rule: factors that are padding are left out.
fn product(inputs: &[Tensor], masks: &[Option<Tensor>]) -> Tensor {
    let factors = inputs.iter().zip(masks).map(|(x, mask)| match mask {
        Some(mask) => mask.select(x, &x.like(1.0)),
        None => x.clone(),
    });
    let product = merged_in_turn(&factors.collect::<Vec<_>>(), |product, x| product * x);
    let all: Option<Vec<&Tensor>> = masks.iter().map(Option::as_ref).collect();
    let any = all.and_then(|masks| masks.into_iter().cloned().reduce(|any, mask| any.or(&mask)));
    match any {
        Some(any) => any.select(&product, &product.zeros_like()),
        None => product,
    }
}

/// Keras' rule: of two elements one of which is padding the other is chosen.
fn chosen_in_turn(
    inputs: &[Tensor],
    masks: &[Option<Tensor>],
    choose: fn(&Tensor, &Tensor) -> Tensor,
) -> Tensor {
    let (mut chosen, mut kept) = (inputs[0].clone(), masks[0].clone());
    for (x, mask) in inputs.iter().zip(masks).skip(1) {
        let mut next = choose(&chosen, x);
        if let Some(kept) = &kept {
            next = kept.select(&next, x);
        }
        if let Some(mask) = mask {
            next = mask.select(&next, &chosen);
        }
        // What is no padding in an input without a mask is none from there on.
        kept = kept.zip(mask.as_ref()).map(|(kept, mask)| kept.or(mask));
        chosen = next;
    }
    chosen
}

/// Checks that there are several inputs whose dims are equal or 1, but for the batch.
fn stretchable(kind: &str, inputs: &[Shape]) -> Result<(), String> {
    let first = several(inputs)?;
    let stretches = |(&a, &b): (&usize, &usize)| a == b || a == 1 || b == 1;
    let fits = |input: &&Shape| {
        input.dims[0] == first.dims[0] && input.dims.iter().zip(&first.dims).all(stretches)
    };
    match inputs.iter().find(|input| !fits(input)) {
        Some(other) => Err(format!(
            "cannot {kind} {first} and {other}: dims must be equal or 1"
        )),
        None => Ok(()),
    }
}

/// Keras' rule: a step is padding when it is in every input, and none is when one input has no mask.
#[track_caller]
fn keep_mask_of_all(cx: &mut Cx, inputs: &[Tensor], merged: &Tensor) {
    let masks: Option<Vec<Tensor>> = inputs.iter().map(|x| cx.padding_mask(x)).collect();
    let either = masks.and_then(|masks| masks.into_iter().reduce(|all, mask| all.or(&mask)));
    if let Some(mask) = either.filter(|mask| merged.dims().starts_with(&mask.dims())) {
        cx.set_padding_mask(merged, &mask);
    }
}

/// Its inputs joined along a dim, the last by default; kind `concatenate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concatenate {
    axis: i64,
}

impl Concatenate {
    /// Joins along the last dim.
    #[must_use]
    pub const fn new() -> Self {
        Self { axis: -1 }
    }

    /// Sets the dim, of which 0 is the batch; negative ones count from the end.
    #[must_use]
    pub const fn axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }
}

impl Default for Concatenate {
    fn default() -> Self {
        Self::new()
    }
}

impl Described for Concatenate {
    const COMPONENT: Component = Component {
        name: "concatenate",
        doc: "its inputs one after the other",
        fields: &[Field::optional(
            "axis",
            Kind::INTEGER,
            "the dimension in which they follow each other, counted from the end when negative",
        )],
    };
}

impl Layer for Concatenate {
    fn kind(&self) -> &'static str {
        "concatenate"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let first = several(inputs)?;
        let along = feature_dim(self.axis, first.rank())?;
        let fits = |input: &&Shape| {
            let pairs = input.dims.iter().zip(&first.dims).enumerate();
            pairs
                .into_iter()
                .all(|(dim, (a, b))| dim == along || a == b)
        };
        match inputs.iter().find(|input| !fits(input)) {
            Some(other) => Err(format!(
                "cannot join {first} and {other} along dim {along}: the other dims must be equal"
            )),
            None => Ok(()),
        }
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let parts: Vec<&Tensor> = inputs.iter().collect();
        match feature_dim(self.axis, inputs[0].rank()) {
            Ok(dim) => {
                let joined = Tensor::concat(&parts, dim);
                if let Some(mask) = joined_mask(cx, inputs, dim) {
                    cx.set_padding_mask(&joined, &mask);
                }
                joined
            }
            Err(message) => cx.fail(message),
        }
    }
}

/// Keras' rule: joined along the steps, masks are joined; along features, a step counts where it does in any input.
#[track_caller]
fn joined_mask(cx: &Cx, inputs: &[Tensor], dim: usize) -> Option<Tensor> {
    let masks: Vec<Option<Tensor>> = inputs.iter().map(|x| cx.padding_mask(x)).collect();
    if masks.iter().all(Option::is_none) {
        return None;
    }
    let all = |x: &Tensor| {
        x.graph()
            .full(&Shape::new(DType::Bool, &x.dims()[..2]), 1.0)
    };
    let masks = masks.into_iter().zip(inputs);
    let masks: Vec<Tensor> = masks
        .map(|(mask, x)| mask.unwrap_or_else(|| all(x)))
        .collect();
    if dim == 1 {
        return Some(Tensor::concat(&masks.iter().collect::<Vec<_>>(), 1));
    }
    masks.into_iter().reduce(|either, mask| either.or(&mask))
}

/// The first of two or more inputs of one type and rank.
fn several(inputs: &[Shape]) -> Result<&Shape, String> {
    let [first, rest @ ..] = inputs else {
        return Err("expected 2 inputs or more, got 0".into());
    };
    if rest.is_empty() {
        return Err("expected 2 inputs or more, got 1".into());
    }
    if first.rank() == 0 {
        return Err("expected batches of examples, got a scalar".into());
    }
    let differs = |input: &&Shape| input.dtype != first.dtype || input.rank() != first.rank();
    match rest.iter().find(differs) {
        Some(other) => Err(format!(
            "expected inputs of one type and rank, got {first} and {other}"
        )),
        None => Ok(first),
    }
}
