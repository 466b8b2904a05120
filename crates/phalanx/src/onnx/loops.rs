//! Loops: of known length as `Scan`, others as `Loop`.

use phalanx_graph::op::ScanDims;
use phalanx_graph::{DType, HostTensor};

use super::lower::{NodePair, NodesPair, lower_all};
use super::message::{GraphParts, NodeArgument};
use super::writer::{OnnxValue, OnnxWriter};
use crate::Result;

/// The body of a loop of these arguments, as a graph.
fn body(
    w: &mut OnnxWriter,
    arguments: &[OnnxValue],
    build: impl FnOnce(&mut OnnxWriter) -> Result<Vec<OnnxValue>>,
) -> Result<NodeArgument> {
    let (nodes, results) = w.block(|w| {
        let results = build(w)?;
        Ok(results
            .iter()
            .map(|result| w.copied(result))
            .collect::<Vec<_>>())
    })?;
    let graph = GraphParts {
        name: "body".to_owned(),
        nodes,
        weights: Vec::new(),
        inputs: arguments.iter().map(OnnxValue::port).collect(),
        outputs: results.iter().map(OnnxValue::port).collect(),
    };
    Ok(NodeArgument::Graph(graph.encoded()))
}

fn arguments(w: &mut OnnxWriter, values: &[OnnxValue]) -> Vec<OnnxValue> {
    let one = |value: &OnnxValue| w.argument(value.dtype, value.dims.clone());
    values.iter().map(one).collect()
}

/// Constants are used from outside; a loop that reads no rows is given some that it does not read, which say how often it turns.
pub(super) fn scan(
    w: &mut OnnxWriter,
    dims: &ScanDims,
    pair: NodesPair,
    inputs: &[OnnxValue],
    node: NodePair,
) -> Result<Vec<OnnxValue>> {
    if dims.length == 0 || dims.reverse {
        return Err(
            w.refused("it has no steps, or goes from the last to the first, as gradients do")
        );
    }
    let (read, constants) = inputs.split_at(dims.carry + dims.xs);
    let mut read: Vec<OnnxValue> = read.iter().map(|value| w.full(value)).collect();
    if dims.xs == 0 {
        let steps: Vec<i64> = (0..dims.length as i64).collect();
        read.push(w.constant(&HostTensor::new([dims.length], &steps)));
    }
    let rows = read.len() - dims.carry;
    let row =
        |value: &OnnxValue| OnnxValue::new(String::new(), value.dtype, value.dims[1..].to_vec());
    let carried = read[..dims.carry].to_vec();
    let rows_of = read[dims.carry..].iter().map(row);
    let within: Vec<OnnxValue> = carried.into_iter().chain(rows_of).collect();
    let within = arguments(w, &within);
    let given = [&within[..dims.carry + dims.xs], constants].concat();
    let step = body(w, &within, |w| lower_all(w, pair, &given))?;
    let settings = [
        ("body", step),
        ("num_scan_inputs", NodeArgument::Int(rows as i64)),
    ];
    let names: Vec<&str> = read.iter().map(|value| &*value.name).collect();
    let names = w.nodes("Scan", &names, &settings, node.node().shapes.len());
    let result = |(number, name): (usize, String)| {
        let dtype = node.node().shapes[number].dtype;
        Ok(OnnxValue::new(name, dtype, node.dims(w, number)?))
    };
    names.into_iter().enumerate().map(result).collect()
}

/// The condition is computed before the first turn and at the end of each.
pub(super) fn while_loop(
    w: &mut OnnxWriter,
    condition: NodesPair,
    pair: NodesPair,
    inputs: &[OnnxValue],
) -> Result<Vec<OnnxValue>> {
    let carried: Vec<OnnxValue> = inputs.iter().map(|value| w.full(value)).collect();
    let holds = lower_all(w, condition, &carried)?;
    let holds = w.full(&holds[0]);
    let turn = w.argument(DType::I64, Vec::new());
    let held = w.argument(DType::Bool, Vec::new());
    let within = arguments(w, &carried);
    let all = [&[turn, held][..], &within].concat();
    let step = body(w, &all, |w| {
        let next = lower_all(w, pair, &within)?;
        let next: Vec<OnnxValue> = next.iter().map(|value| w.full(value)).collect();
        let mut results = lower_all(w, condition, &next)?;
        results.extend(next);
        Ok(results)
    })?;
    let mut names = vec!["", &holds.name];
    names.extend(carried.iter().map(|value| &*value.name));
    let names = w.nodes("Loop", &names, &[("body", step)], carried.len());
    let results = names.into_iter().zip(&carried);
    Ok(results
        .map(|(name, value)| value.renamed(name, value.dtype))
        .collect())
}
