//! Loops and branches.

use std::rc::Rc;
use std::sync::Arc;

use phalanx_graph::op::{ScanDims, Subgraph};

use super::machine::{Machine, Plan};
use super::{Array, Dual, Tensors};

fn plan(graph: &Subgraph) -> Plan<'_> {
    Plan::new(&graph.nodes, &graph.outputs)
}

/// Steps of all replicas together; carried values, then rows, then constants.
pub(super) fn scan(
    machine: &Machine,
    dims: &ScanDims,
    inputs: &[Tensors],
    ranks: &[usize],
) -> Result<Vec<Tensors>, String> {
    let plan = plan(&dims.body);
    let read = dims.carry..dims.carry + dims.xs;
    if inputs.iter().any(|list| list.len() < read.end) || dims.body.outputs.len() < dims.carry {
        return Err("fewer values than it carries and reads".into());
    }
    let mut given: Vec<Tensors> = inputs.to_vec();
    let mut rows: Vec<Vec<Tensors>> = vec![vec![Vec::new(); dims.length]; ranks.len()];
    for step in 0..dims.length {
        let row = if dims.reverse {
            dims.length - 1 - step
        } else {
            step
        };
        for (given, whole) in given.iter_mut().zip(inputs) {
            for i in read.clone() {
                given[i] = Rc::new(row_of(&whole[i], row, dims.length));
            }
        }
        let made = machine.run(&plan, &given, ranks)?;
        for (place, mut made) in made.into_iter().enumerate() {
            rows[place][row] = made.split_off(dims.carry);
            for (slot, next) in given[place].iter_mut().zip(made) {
                *slot = next;
            }
        }
    }
    let stacked = given.into_iter().zip(&rows).map(|(given, rows)| {
        let mut outputs: Tensors = given.into_iter().take(dims.carry).collect();
        for (i, value) in dims.body.outputs.iter().enumerate().skip(dims.carry) {
            let float = dims.body.shape(*value).dtype.is_float();
            let parts = rows.iter().filter_map(|row| row.get(i - dims.carry));
            outputs.push(Rc::new(stack(
                &parts.map(Rc::as_ref).collect::<Vec<_>>(),
                float,
            )));
        }
        outputs
    });
    Ok(stacked.collect())
}

fn row_of(x: &Dual, row: usize, rows: usize) -> Dual {
    fn part<T: Copy>(values: &[T], row: usize, rows: usize) -> Vec<T> {
        let size = values.len() / rows;
        values[row * size..][..size].to_vec()
    }
    let value = match &x.value {
        Array::Floats(values) => Array::Floats(part(values, row, rows)),
        Array::Ints(values) => Array::Ints(part(values, row, rows)),
    };
    Dual {
        value,
        tangent: part(&x.tangent, row, rows),
    }
}

/// Rows end to end; the tangent of a row may be zero where another's is not.
fn stack(rows: &[&Dual], float: bool) -> Dual {
    if !float {
        let ints = rows.iter().flat_map(|row| match &row.value {
            Array::Ints(values) => values.as_slice(),
            Array::Floats(_) => &[],
        });
        return Dual::ints(ints.copied().collect());
    }
    let floats = rows.iter().flat_map(|row| match &row.value {
        Array::Floats(values) => values.as_slice(),
        Array::Ints(_) => &[],
    });
    let values: Vec<f64> = floats.copied().collect();
    if rows.iter().all(|row| row.tangent.is_empty()) {
        return Dual::floats(values, None);
    }
    let mut tangent = Vec::with_capacity(values.len());
    for row in rows {
        tangent.extend_from_slice(&row.tangent);
        let missing = row.value.len() - row.tangent.len();
        tangent.extend(std::iter::repeat_n(0.0, missing));
    }
    Dual::floats(values, Some(tangent))
}

/// The only element of an integer scalar.
fn scalar(x: &Dual) -> Result<i64, String> {
    match &x.value {
        Array::Ints(values) if values.len() == 1 => Ok(values[0]),
        _ => Err("expected an integer scalar".into()),
    }
}

/// A loop while a condition holds, each replica for itself.
pub(super) fn repeat(
    machine: &Machine,
    condition: &Subgraph,
    body: &Subgraph,
    inputs: &[Tensors],
    ranks: &[usize],
) -> Result<Vec<Tensors>, String> {
    let (holds, step) = (plan(condition), plan(body));
    let each = inputs.iter().zip(ranks).map(|(list, &rank)| {
        let mut carried = list.clone();
        loop {
            let given = std::slice::from_ref(&carried);
            let found = machine.run(&holds, given, &[rank])?.concat();
            let found = found.first().ok_or("the condition gives nothing")?;
            if scalar(found)? == 0 {
                return Ok(carried);
            }
            let mut next = machine.run(&step, given, &[rank])?.concat();
            next.truncate(list.len());
            carried = next;
        }
    });
    each.collect()
}

/// One of several branches, each replica for itself; the last one for an index that is none of them.
pub(super) fn case(
    machine: &Machine,
    branches: &[Arc<Subgraph>],
    inputs: &[Tensors],
    ranks: &[usize],
) -> Result<Vec<Tensors>, String> {
    let each = inputs.iter().zip(ranks).map(|(list, &rank)| {
        let (index, given) = list.split_first().ok_or("it has no index")?;
        let index = usize::try_from(scalar(index)?).unwrap_or(usize::MAX);
        let branch = branches.get(index).or(branches.last());
        let branch = branch.ok_or("it has no branches")?;
        Ok(machine
            .run(&plan(branch), &[given.to_vec()], &[rank])?
            .concat())
    });
    each.collect()
}
