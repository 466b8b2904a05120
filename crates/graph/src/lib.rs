//! Tensor graphs: built by calling methods of symbols, differentiated graph to graph, simplified, printed as
//! StableHLO for a compiler and as plain lines for people.
//!
//! ```
//! use phalanx_graph::{Graph, Lowering, Platform, Shape, gradients};
//!
//! let g = Graph::new();
//! let x = g.parameter("x", Shape::f32([8, 5]));
//! let kernel = g.parameter("kernel", Shape::f32([5, 3]));
//! let loss = x.matmul(&kernel).tanh().square().mean_all();
//! let slope = gradients(&loss, &[&kernel]).remove(0).expect("the loss depends on the kernel");
//! let program = g.finish(&[("loss", &loss), ("slope", &slope)])?.simplified();
//! assert!(program.to_stablehlo(&Lowering::new(Platform::Cpu, "example")).contains("stablehlo.tanh"));
//! assert!(program.cost().total.flops > 2 * 2 * 8 * 5 * 3);
//! println!("{}", program.dump());
//! # Ok::<(), phalanx_graph::GraphError>(())
//! ```
#![forbid(unsafe_code)]

mod cost;
mod dtype;
mod dump;
mod grad;
mod graph;
mod host;
mod infer;
mod kernel;
mod mesh;
pub mod op;
mod pieces;
mod prepare;
mod shape;
mod simplify;
mod stablehlo;
mod tensor;

pub use cost::{Cost, NodeCost};
pub use dtype::DType;
pub use grad::{Pullback, Scattered, batch_jacobian, gradients, jacobian};
pub use graph::{Graph, GraphError, Parameter, Program};
pub use host::{AlignedBytes, Element, HOST_ALIGNMENT, HostBytes, HostTensor};
pub use kernel::lstm::LstmSteps;
pub use kernel::{FusedActivation, Kernel, Mask, Pool2d};
pub use mesh::{Mesh, Sharding};
pub use op::{Op, Value};
pub use phalanx_platform::Platform;
pub use pieces::Piece;
pub use prepare::Prepared;
pub use shape::Shape;
pub use stablehlo::{
    Bf16Matmul, CompilerOption, HostAllReduce, HostMatmul, KernelSupport, Lowering,
    compiler_options,
};
pub use tensor::Tensor;
