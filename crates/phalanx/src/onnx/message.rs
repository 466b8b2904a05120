//! The messages of an ONNX file (`onnx/onnx.proto`, IR version 8), whose numbers of fields these are.

use phalanx_graph::{DType, HostTensor};
use phalanx_summary::Message;

use super::size::Size;

/// The newest version of the format that onnxruntime 1.14 reads, which is the first with all ops of [`OPSET`].
const IR_VERSION: u64 = 8;
/// The version of ONNX's own ops.
const OPSET: u64 = 18;

/// A static argument of a node.
pub(super) enum NodeArgument {
    Int(i64),
    Ints(Vec<i64>),
    Text(&'static str),
    /// The body of a loop: an encoded graph.
    Graph(Vec<u8>),
}

impl NodeArgument {
    pub(super) fn ints(values: impl IntoIterator<Item = usize>) -> Self {
        Self::Ints(values.into_iter().map(|value| value as i64).collect())
    }

    fn fill(&self, message: &mut Message, name: &str) {
        message.text(1, name);
        match self {
            Self::Int(value) => {
                message.integer(3, *value as u64);
                message.integer(20, 2);
            }
            Self::Text(text) => {
                message.text(4, text);
                message.integer(20, 3);
            }
            Self::Graph(graph) => {
                message.bytes(6, graph);
                message.integer(20, 5);
            }
            Self::Ints(values) => {
                for &value in values {
                    message.integer(8, value as u64);
                }
                message.integer(20, 7);
            }
        }
    }
}

/// A `NodeProto`.
pub(super) fn node(
    op: &str,
    name: &str,
    inputs: &[&str],
    outputs: &[String],
    arguments: &[(&str, NodeArgument)],
) -> Vec<u8> {
    Message::of(|message| {
        for input in inputs {
            message.text(1, input);
        }
        for output in outputs {
            message.text(2, output);
        }
        message.text(3, name);
        message.text(4, op);
        for (name, argument) in arguments {
            message.message(5, |message| argument.fill(message, name));
        }
    })
}

/// An input or output of a graph.
pub(super) struct Port {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) dims: Vec<Size>,
}

impl Port {
    fn fill(&self, message: &mut Message) {
        message.text(1, &self.name);
        message.message(2, |message| {
            message.message(1, |message| {
                message.integer(1, code(self.dtype));
                message.message(2, |message| {
                    for dim in &self.dims {
                        message.message(1, |message| dim.fill(message));
                    }
                });
            });
        });
    }
}

impl Size {
    fn fill(self, message: &mut Message) {
        match self {
            Self::Fixed(size) => message.integer(1, size as u64),
            Self::Batches(1) => message.text(2, "batch"),
            Self::Batches(count) => message.text(2, &format!("{count}*batch")),
        }
    }
}

/// Where the values of a tensor are.
pub(super) enum Values {
    /// In the file of the model.
    Inside,
    /// In a file beside it, from this byte.
    Beside(String, usize),
}

/// A graph: the whole of a model, or the body of a loop.
#[derive(Default)]
pub(super) struct GraphParts {
    pub(super) name: String,
    /// Encoded, each behind those that it uses.
    pub(super) nodes: Vec<Vec<u8>>,
    pub(super) weights: Vec<(String, HostTensor, Values)>,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
}

impl GraphParts {
    pub(super) fn encoded(&self) -> Vec<u8> {
        Message::of(|message| {
            for node in &self.nodes {
                message.bytes(1, node);
            }
            message.text(2, &self.name);
            for (name, tensor, values) in &self.weights {
                message.message(5, |message| fill_tensor(message, name, tensor, values));
            }
            for (field, ports) in [(11, &self.inputs), (12, &self.outputs)] {
                for port in ports {
                    message.message(field, |message| port.fill(message));
                }
            }
        })
    }
}

fn fill_tensor(message: &mut Message, name: &str, tensor: &HostTensor, values: &Values) {
    for &dim in tensor.dims() {
        message.integer(1, dim as u64);
    }
    message.integer(2, code(tensor.dtype()));
    message.text(8, name);
    match values {
        Values::Inside => message.bytes(9, tensor.bytes()),
        Values::Beside(file, start) => {
            let (start, length) = (start.to_string(), tensor.bytes().len().to_string());
            for (key, value) in [("location", file), ("offset", &start), ("length", &length)] {
                message.message(13, |message| {
                    message.text(1, key);
                    message.text(2, value);
                });
            }
            message.integer(14, 1);
        }
    }
}

/// A `ModelProto`.
pub(super) fn model(graph: &GraphParts) -> Vec<u8> {
    Message::of(|message| {
        message.integer(1, IR_VERSION);
        message.text(2, "phalanx");
        message.text(3, env!("CARGO_PKG_VERSION"));
        message.bytes(7, &graph.encoded());
        message.message(8, |message| {
            message.text(1, "");
            message.integer(2, OPSET);
        });
    })
}

/// The number of an element type in `TensorProto.DataType`.
pub(super) const fn code(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::Bf16 => 16,
    }
}
