//! Long short-term memories and gated recurrent units in f32 on host processors, as calls of `phalanx.lstm`, `phalanx.gru` and of their
//! gradients.

use super::custom_call;
use super::kernels::computing_at_once;
use super::writer::{Operand, Writer};
use crate::op::{CustomCall, Node, Op, any_node};
use crate::{DType, Kernel, Program, Shape};

impl Program {
    /// Whether this program has recurrent layers that calls of `phalanx.lstm` or `phalanx.gru` compute.
    #[must_use]
    pub fn gains_from_host_lstm(&self) -> bool {
        let is_called = |_: &[Node], node: &Node| match &node.op {
            Op::Kernel(kernel) => target(kernel, &node.shapes).is_some(),
            _ => false,
        };
        self.mesh.is_none() && any_node(&self.nodes, &is_called)
    }
}

/// The name of the call for an op with these results, if there is one.
fn target(kernel: &Kernel, results: &[Shape]) -> Option<&'static str> {
    let name = match kernel {
        Kernel::Lstm => "phalanx.lstm",
        Kernel::LstmGradient => "phalanx.lstm_gradient",
        Kernel::Gru => "phalanx.gru",
        Kernel::GruGradient => "phalanx.gru_gradient",
        _ => return None,
    };
    let taken = results.iter().all(|shape| shape.dtype == DType::F32);
    taken.then_some(name)
}

/// The op as a call, where there is one.
pub(super) fn host_lstm(
    w: &mut Writer,
    kernel: &Kernel,
    node: &Node,
    inputs: &[Operand],
) -> Option<Vec<Operand>> {
    let target = target(kernel, &node.shapes).filter(|_| w.host_lstm)?;
    let call = CustomCall {
        target: target.to_owned(),
        outputs: node.shapes.clone(),
        attributes: computing_at_once(w).into_iter().collect(),
        has_side_effect: false,
    };
    Some(custom_call(w, &call, inputs))
}
