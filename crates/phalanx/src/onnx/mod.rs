//! A program as an ONNX model: opset 18, for any batch where two programs of different batches show how it follows them.
//!
//! Each op becomes one node or a few (`lower`); what it does not become is refused with the layer's name. Repeated elements are left to
//! ONNX's own broadcasting, and are made only where an op needs them.

mod contract;
mod elementwise;
mod loops;
mod lower;
mod message;
mod rearrange;
mod size;
mod window;
mod writer;

use std::collections::HashSet;

use phalanx_graph::op::Node;
use phalanx_graph::{DType, HostTensor, Op, Program, Shape, Value};

use self::lower::{NodesPair, lower_all};
use self::message::{GraphParts, Port, Values};
use self::writer::{OnnxValue, OnnxWriter};
use crate::hash::{fnv1a, mixed};
use crate::{Error, Result};

/// Two batches that no model has for a size: primes, of which no multiples are alike. What is otherwise in a model of such a size does no
/// harm: sizes are compared, not looked up.
pub(crate) const BATCHES: [usize; 2] = [1009, 1013];
/// Bytes of a tensor from which it goes into the file beside the model, where there is one.
const LARGE: usize = 1 << 10;

/// An ONNX model, and the bytes of the file beside it, where there is one.
pub(crate) struct OnnxFile {
    /// The encoded model.
    pub(crate) model: Vec<u8>,
    /// The name of the file beside it, which follows from its bytes: another export has another, and the two are never mixed.
    pub(crate) beside_name: String,
    /// What the file beside it has, in order.
    pub(crate) beside: Vec<HostTensor>,
}

/// The name of the file beside a model: `digits.onnx.0123456789abcdef.data`.
fn beside_name(model: &str, parts: &[HostTensor]) -> String {
    let add = |hash: u64, part: &HostTensor| mixed(hash ^ fnv1a(part.bytes()));
    let hash = parts.iter().fold(0, add);
    format!("{model}.{hash:016x}.data")
}

/// Whether a file has such a name.
pub(crate) fn is_beside(model: &str, name: &str) -> bool {
    let hash = name
        .strip_prefix(model)
        .and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".data"));
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    hash.is_some_and(|hash| hash.len() == 16 && hash.bytes().all(is_digit))
}

/// The model of a program whose first parameters are `weights`, and the others inputs with the batch for their first dim.
///
/// `programs` are the same for batches of these sizes, which are equal where the model is for this batch alone. Where weights have more than
/// `limit` bytes, they are in a file beside it: the encoding of the model holds 2 GiB. `file` is the name of the model's own.
pub(crate) fn onnx(
    programs: [&Program; 2],
    batches: [usize; 2],
    weights: &[HostTensor],
    file: &str,
    limit: usize,
) -> Result<OnnxFile> {
    let program = programs[0];
    check_types(program)?;
    let names = PortNames::of(program, weights.len());
    let mut w = OnnxWriter::new(batches, &names.parameters[weights.len()], names.taken);
    let shapes = |index: usize| programs.map(|program| &program.parameters[index].shape);
    let parameters = names.parameters.iter().enumerate();
    let parameters = parameters.map(|(index, name)| {
        let dims = w.dims(shapes(index))?;
        Ok(OnnxValue::new(name.clone(), shapes(index)[0].dtype, dims))
    });
    let parameters: Vec<OnnxValue> = parameters.collect::<Result<_>>()?;
    for (index, weight) in weights.iter().enumerate() {
        if is_used(program, index) {
            w.weights
                .push((names.parameters[index].clone(), weight.clone()));
        }
    }
    let values = programs.map(|program| program.outputs.iter().map(|output| output.1).collect());
    let [first, second]: [Vec<Value>; 2] = values;
    let pair = NodesPair {
        nodes: programs.map(|program| &*program.nodes),
        outputs: [&first, &second],
    };
    let results = lower_all(&mut w, pair, &parameters)?;
    let outputs = results.iter().zip(&names.outputs);
    let outputs: Vec<Port> = outputs
        .map(|(result, name)| {
            w.name_output(result, name);
            result.renamed(name.clone(), result.dtype).port()
        })
        .collect();
    let (nodes, tensors) = w.into_nodes();
    let inputs = parameters[weights.len()..].iter().map(OnnxValue::port);
    let beside = outside(&tensors, limit);
    let beside_name = beside_name(file, &beside);
    let weights = placed(tensors, &beside_name, !beside.is_empty());
    let graph = GraphParts {
        name: "prediction".to_owned(),
        nodes,
        weights,
        inputs: inputs.collect(),
        outputs,
    };
    Ok(OnnxFile {
        model: message::model(&graph),
        beside_name,
        beside,
    })
}

/// PortNames of the values that are seen from outside, no two alike: inputs keep theirs.
struct PortNames {
    parameters: Vec<String>,
    outputs: Vec<String>,
    taken: HashSet<String>,
}

impl PortNames {
    fn of(program: &Program, weights: usize) -> Self {
        let mut taken = HashSet::new();
        let mut free = |name: &str| {
            let mut name = name.to_owned();
            while !taken.insert(name.clone()) {
                name.push('_');
            }
            name
        };
        let mut parameters = vec![String::new(); program.parameters.len()];
        let (variables, inputs) = parameters.split_at_mut(weights);
        for (name, input) in inputs.iter_mut().zip(&program.parameters[weights..]) {
            *name = free(&input.name);
        }
        let outputs = program.outputs.iter().map(|(name, _)| free(name)).collect();
        for (name, variable) in variables.iter_mut().zip(&program.parameters) {
            *name = free(&variable.name);
        }
        Self {
            parameters,
            outputs,
            taken,
        }
    }
}

fn is_used(program: &Program, index: usize) -> bool {
    let node = program.parameters[index].node;
    let inputs = program.nodes.iter().flat_map(|node| &node.inputs);
    let outputs = program.outputs.iter().map(|(_, output)| output);
    inputs.chain(outputs).any(|value| value.node == node)
}

fn is_large(tensor: &HostTensor) -> bool {
    tensor.bytes().len() >= LARGE
}

/// The tensors of the file beside the model: the large ones, where all have more than `limit` bytes.
fn outside(tensors: &[(String, HostTensor)], limit: usize) -> Vec<HostTensor> {
    let all: usize = tensors.iter().map(|(_, tensor)| tensor.bytes().len()).sum();
    let tensors = tensors.iter().map(|(_, tensor)| tensor);
    tensors
        .filter(|tensor| all > limit && is_large(tensor))
        .cloned()
        .collect()
}

/// Tensors with the place of their values, the large ones one after the other in the file `beside` where there is one.
fn placed(
    tensors: Vec<(String, HostTensor)>,
    beside: &str,
    has_beside: bool,
) -> Vec<(String, HostTensor, Values)> {
    let mut end = 0;
    let mut place = |tensor: &HostTensor| {
        if !has_beside || !is_large(tensor) {
            return Values::Inside;
        }
        let start = end;
        end += tensor.bytes().len();
        Values::Beside(beside.to_owned(), start)
    };
    let placed = tensors.into_iter().map(|(name, tensor)| {
        let values = place(&tensor);
        (name, tensor, values)
    });
    placed.collect()
}

/// 16-bit floats are refused: onnxruntime has few ops for them on CPUs.
fn check_types(program: &Program) -> Result<()> {
    let is_short = |shape: &Shape| matches!(shape.dtype, DType::Bf16 | DType::F16);
    let found = |node: &&Node| node.shapes.iter().any(is_short);
    let Some(node) = program.nodes.iter().find(found) else {
        return Ok(());
    };
    let layer = match &node.op {
        Op::Parameter(index) => &program.parameters[*index].name,
        _ => node.label.as_deref().unwrap_or("the model"),
    };
    Err(Error::User(format!(
        "`{layer}` is of {}, and ONNX is written in f32; give its layer the precision `float32`, or export the model as StableHLO (`NAME.mlir`)",
        node.shapes[0]
    )))
}

#[cfg(test)]
mod tests {
    use phalanx_graph::Graph;
    use phalanx_summary::{Fields, Wire};

    use super::*;

    #[test]
    fn weights_above_the_limit_are_in_a_file_beside_the_model() {
        let graph = Graph::new();
        let parameter = |name, dims: [usize; 2]| graph.parameter(name, Shape::f32(dims));
        let [a, b] = ["a", "b"].map(|name| parameter(name, [16, 16]));
        let x = parameter("x", [3, 16]);
        let y = x.matmul(&a).matmul(&b) + 0.5;
        let program = graph.finish(&[("y", &y)]).unwrap().simplified();
        let weights = [1.0, 2.0].map(|value| HostTensor::full(Shape::f32([16, 16]), value));
        let write = |limit| onnx([&program; 2], [3; 2], &weights, "m.onnx", limit).unwrap();
        let (inside, outside) = (write(2048 + 4), write(2048 + 3));
        assert!(inside.beside.is_empty() && inside.model.len() > 2048);
        assert!(outside.beside == weights && outside.model.len() < 1024);

        let graph = Fields::last(&outside.model, 7).unwrap().bytes();
        let tensors = Fields::of(graph).filter(|(number, _)| *number == 5);
        let entries = tensors.map(|(_, tensor)| {
            let fields = Fields::of(tensor.bytes()).filter(|(number, _)| *number == 13);
            let value =
                |entry: Wire| Fields::last(entry.bytes(), 2).map_or(String::new(), Wire::text);
            fields.map(|(_, entry)| value(entry)).collect::<Vec<_>>()
        });
        let entries: Vec<_> = entries.collect();
        let none: [&str; 0] = [];
        assert_eq!(
            entries,
            [
                &[&*outside.beside_name, "0", "1024"][..],
                &[&*outside.beside_name, "1024", "1024"],
                &none
            ]
        );
        assert!(is_beside("m.onnx", &outside.beside_name));
        for other in [
            "m.onnx.data",
            "m.onnx.0123456789abcde.data",
            "m.onnx.0123456789abcdeg.data",
            "m.onnx",
        ] {
            assert!(!is_beside("m.onnx", other), "{other}");
        }
    }
}
