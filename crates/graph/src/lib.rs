//! Tensor graphs.
#![forbid(unsafe_code)]

mod cost;
mod dtype;
mod dump;
mod grad;
mod graph;
mod host;
mod infer;
pub mod op;
mod shape;
mod simplify;
mod stablehlo;
mod tensor;

pub use cost::{Cost, NodeCost};
pub use dtype::DType;
pub use grad::gradients;
pub use graph::{Graph, GraphError, Parameter, Program};
pub use host::{AlignedBytes, Element, HOST_ALIGNMENT, HostTensor};
pub use op::{Op, Value};
pub use shape::Shape;
pub use stablehlo::{Lowering, Platform};
pub use tensor::Tensor;
