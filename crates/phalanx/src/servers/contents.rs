//! What a server holds, in words that travel: arrays in an order, and the optimizer that updates them.
//!
//! Bytes between workers and servers are tensors one after the other, in these orders:
//! the *values* are `iterations` (i64) and every array; the *state* is the values and then every slot of the optimizer; a *gradient* is
//! one tensor for each of its `connected` arrays, then one for each of its `changed` arrays. Where f32 travels as bfloat16, that is so of
//! trained arrays in the values that a step is computed with, of gradients, and of rows of tables.

use std::collections::BTreeSet;

use phalanx_graph::{DType, HostTensor, Shape};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::narrow::{Wire, is_narrow, widened};
use super::table::{HeldTable, TableRows};
use crate::nn::Constraint;
use crate::optim::{Optimizer, ParamSpec, SlotSpec};
use crate::{Error, Result};

/// All that a server holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) arrays: Vec<HeldArray>,
    /// Tables of which each server has some rows; the same for all servers.
    pub(crate) tables: Vec<HeldTable>,
    /// The kind of the optimizer and its settings.
    pub(crate) optimizer: (String, Value),
    /// Replicas that a schedule scales its maximum by.
    pub(crate) replicas: usize,
}

/// Consecutive rows of a variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HeldArray {
    /// The path of the variable, with the number of the part where it is cut.
    pub(crate) name: String,
    /// The path alone, where the variable is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) part_of: Option<String>,
    pub(crate) dtype: String,
    pub(crate) dims: Vec<usize>,
    /// Whether the optimizer updates it.
    pub(crate) is_trained: bool,
    /// Whether weight decay takes from it.
    pub(crate) decays: bool,
    /// What every update brings it back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) constraint: Option<Constraint>,
}

/// What the bytes of a push are, by positions among the arrays of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GradientSpec {
    /// Trained arrays that the loss depends on: their gradients.
    pub(crate) connected: Vec<usize>,
    /// Other arrays that layers have changed: of floats the difference, of integers the new values.
    pub(crate) changed: Vec<usize>,
    /// Tables: rows of their gradients follow, as [`TableRows`] writes them.
    pub(crate) tables: Vec<usize>,
    /// Whether other losses may reach the other trained arrays, which are averaged all the same; else these are their own averages.
    #[serde(default)]
    pub(crate) takes_turns: bool,
    /// As what the gradients of f32 travel; what layers have changed travels as it is.
    #[serde(default)]
    pub(crate) wire: Wire,
}

impl HeldArray {
    pub(crate) fn shape(&self) -> Shape {
        let dtype = DType::from_name(&self.dtype).unwrap_or(DType::F32);
        Shape::new(dtype, self.dims.clone())
    }

    /// Whether its values travel as bfloat16 to a step.
    pub(super) fn is_narrow(&self, wire: Wire) -> bool {
        self.is_trained && is_narrow(self.shape().dtype, wire)
    }
}

impl Held {
    /// The optimizer, without clipping by norms, which takes the gradients of all servers. One that is of the program is among the `given`.
    pub(crate) fn optimizer(&self, given: &[Optimizer]) -> Result<Optimizer> {
        let (kind, settings) = &self.optimizer;
        let is_it = |given: &&Optimizer| given.kind() == kind && given.config() == *settings;
        let optimizer = match given.iter().find(is_it) {
            Some(given) => given.clone(),
            None => Optimizer::from_config(kind, settings).map_err(|error| {
                Error::user(format!(
                    "a parameter server cannot make the optimizer `{kind}` with {settings} ({error}); give a rule or a schedule of your own to the servers too, by `ParameterServerOptions::optimizer` with equal settings"
                ))
            })?,
        };
        let kept = self.arrays.iter().filter(|array| !array.decays);
        let kept = kept.map(|array| array.name.clone());
        let tables = self.tables.iter().filter(|table| !table.decays);
        let kept: BTreeSet<String> = kept.chain(tables.map(|table| table.name.clone())).collect();
        let optimizer = optimizer
            .without_norm_clipping()
            .for_replicas(self.replicas);
        Ok(optimizer.exclude_from_weight_decay_if(move |name| kept.contains(name)))
    }

    /// Positions of the arrays that are trained, and what the optimizer knows of them.
    pub(crate) fn trained(&self) -> (Vec<usize>, Vec<ParamSpec>) {
        let arrays = self.arrays.iter().enumerate();
        let trained = arrays.filter(|(_, array)| array.is_trained);
        trained
            .map(|(index, array)| {
                let spec = ParamSpec {
                    constraint: array.constraint.clone(),
                    part_of: array.part_of.clone(),
                    ..ParamSpec::new(&array.name, array.shape())
                };
                (index, spec)
            })
            .unzip()
    }

    /// The slots of the optimizer, in its order.
    pub(crate) fn slots(&self, optimizer: &Optimizer) -> Vec<SlotSpec> {
        optimizer.slots(&self.trained().1)
    }

    /// Shapes of the values, `iterations` first.
    pub(crate) fn value_shapes(&self) -> Vec<Shape> {
        let arrays = self.arrays.iter().map(HeldArray::shape);
        std::iter::once(Shape::scalar(DType::I64))
            .chain(arrays)
            .collect()
    }

    /// Shapes of the state.
    pub(crate) fn state_shapes(&self, optimizer: &Optimizer) -> Vec<Shape> {
        let mut shapes = self.value_shapes();
        shapes.extend(self.slots(optimizer).into_iter().map(|slot| slot.shape));
        shapes
    }

    /// Shapes of a gradient.
    pub(crate) fn gradient_shapes(&self, spec: &GradientSpec) -> Option<Vec<Shape>> {
        let indices = spec.connected.iter().chain(&spec.changed);
        indices
            .map(|&index| self.arrays.get(index).map(HeldArray::shape))
            .collect()
    }
}

/// A gradient as it came: of its arrays, and of rows of tables.
pub(crate) struct Gradient {
    pub(crate) arrays: Vec<HostTensor>,
    pub(crate) rows: Vec<TableRows>,
}

impl Held {
    /// Reads a gradient; what came as bfloat16 is f32 again.
    pub(crate) fn gradient(
        &self,
        spec: &GradientSpec,
        bytes: &[u8],
    ) -> std::result::Result<Gradient, String> {
        let shapes = self.gradient_shapes(spec);
        let mut shapes = shapes.ok_or("a gradient of an array that is not here")?;
        let mut is_narrowed = vec![false; shapes.len()];
        let gradients = shapes.iter_mut().zip(&mut is_narrowed);
        for (shape, is_narrowed) in gradients.take(spec.connected.len()) {
            if is_narrow(shape.dtype, spec.wire) {
                (*shape, *is_narrowed) = (shape.with_dtype(DType::Bf16), true);
            }
        }
        let length = shapes.iter().map(Shape::byte_len).sum();
        let split = bytes.split_at_checked(length);
        let (arrays, mut rest) = split.ok_or("a gradient that ends early")?;
        let mut rows = Vec::with_capacity(spec.tables.len());
        for &table in &spec.tables {
            let table = self.tables.get(table);
            let width = table.ok_or("a gradient of a table that is not here")?.width;
            let (read, others) = TableRows::read_as(rest, width, spec.wire)?;
            rows.push(read);
            rest = others;
        }
        match rest.len() {
            0 => {
                let mut arrays = divided(shapes, arrays)?;
                for (array, _) in arrays.iter_mut().zip(&is_narrowed).filter(|(_, is)| **is) {
                    *array = widened(array);
                }
                Ok(Gradient { arrays, rows })
            }
            more => Err(format!("{more} bytes of a gradient are too many")),
        }
    }
}

/// The bytes of tensors, one after the other.
pub(crate) fn joined(tensors: &[HostTensor]) -> Vec<u8> {
    let length = tensors.iter().map(|tensor| tensor.bytes().len()).sum();
    let mut bytes = Vec::with_capacity(length);
    for tensor in tensors {
        bytes.extend_from_slice(tensor.bytes());
    }
    bytes
}

/// The tensors of these shapes; an error where the bytes are more or fewer.
pub(crate) fn divided(
    shapes: impl IntoIterator<Item = Shape>,
    bytes: &[u8],
) -> std::result::Result<Vec<HostTensor>, String> {
    let mut rest = bytes;
    let mut tensors = Vec::new();
    for shape in shapes {
        let length = shape.byte_len();
        let wrong = || format!("{} bytes of tensors, expected more", bytes.len());
        let (own, others) = rest.split_at_checked(length).ok_or_else(wrong)?;
        tensors.push(HostTensor::from_bytes(shape, own).ok_or_else(wrong)?);
        rest = others;
    }
    match rest.len() {
        0 => Ok(tensors),
        more => Err(format!("{more} of {} bytes are too many", bytes.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a push was in a log before gradients could travel as bfloat16.
    #[test]
    fn a_gradient_of_an_older_log_travelled_as_it_is() {
        let text = r#"{"connected":[0,2],"changed":[1],"tables":[]}"#;
        let expected = GradientSpec {
            connected: vec![0, 2],
            changed: vec![1],
            ..GradientSpec::default()
        };
        assert_eq!(
            serde_json::from_str::<GradientSpec>(text).unwrap(),
            expected
        );
        assert_eq!(expected.wire, Wire::Same);
    }
}
