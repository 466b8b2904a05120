//! The derivative of a gather.

use super::Step;
use crate::op::Op;
use crate::{HostTensor, Tensor};

/// Most elements that receive from one: above, the cotangent is scattered.
const MOST: usize = 8;

pub(super) fn gather(step: &Step, g: &Tensor, dim: usize) -> Vec<Option<Tensor>> {
    let (table, indices) = (step.input(0), step.input(1));
    // Gather clamps where scatter drops: clamp first.
    let last = table.dims()[dim] as f64 - 1.0;
    let gradient = constant(step, dim)
        .and_then(|places| gathered(&table, &places, g, dim))
        .unwrap_or_else(|| {
            let zeros = table.zeros_like();
            zeros.scatter_add(&indices.clamp(0.0, last), g, dim)
        });
    vec![Some(gradient), None]
}

/// The indices of a gather that is always of the same elements of each row, as when images are resized. Rows of a table stay scattered:
/// optimizers ask which of them have a gradient.
fn constant(step: &Step, dim: usize) -> Option<Vec<i32>> {
    match step.graph.node(step.node.inputs[1].node).op {
        Op::Constant(indices) if dim > 0 && indices.dims().len() == 1 => indices.values(),
        _ => None,
    }
}

/// What each element receives from the ones that were made of it, by gathers, which compilers fuse, unlike scatters: its first one, its
/// second, and so on, zero where there is none.
fn gathered(table: &Tensor, indices: &[i32], g: &Tensor, dim: usize) -> Option<Tensor> {
    let mut of_each = vec![Vec::new(); table.dim(dim)];
    let last = of_each.len().checked_sub(1)?;
    for (place, &index) in indices.iter().enumerate() {
        let element = usize::try_from(index).unwrap_or(0).min(last);
        of_each[element].push(place as i32);
    }
    let most = of_each
        .iter()
        .map(Vec::len)
        .max()
        .filter(|&most| most <= MOST)?;
    let g = g.convert(g.wide());
    let part = |number: usize| {
        let places = of_each.iter().map(|places| places.get(number));
        let is_there: Vec<bool> = places.clone().map(|place| place.is_some()).collect();
        let places: Vec<i32> = places.map(|place| place.copied().unwrap_or(0)).collect();
        let constant = |value| g.graph().constant(value);
        let found = g.gather(&constant(HostTensor::new([places.len()], &places)), dim);
        if is_there.iter().all(|&is_there| is_there) {
            return found;
        }
        let is_there = constant(HostTensor::new([is_there.len()], &is_there));
        let is_there = is_there.broadcast_in(&found.dims(), &[dim]);
        is_there.select(&found, &found.zeros_like())
    };
    let sum = (0..most).map(part).reduce(|sum, part| sum + part)?;
    Some(sum.convert(table.dtype()))
}
