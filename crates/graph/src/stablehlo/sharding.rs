//! Meshes and shardings in Shardy's dialect, which XLA's partitioner reads.

use super::literal::quoted;
use super::writer::{Operand, Writer, list};
use crate::{Mesh, Sharding};

/// `sdy.mesh @mesh = <["data"=2]>`.
pub(super) fn mesh(mesh: &Mesh) -> String {
    let axes = mesh.axes.iter();
    let axes = axes.map(|(name, size)| format!("{}={size}", quoted(name)));
    format!("sdy.mesh @mesh = <[{}]>", list(axes))
}

/// `sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>`, of a parameter or a result.
pub(super) fn attribute(sharding: &Sharding) -> String {
    format!("sdy.sharding = #sdy.sharding<{}>", text(sharding))
}

pub(super) fn constraint(w: &mut Writer, x: &Operand, sharding: &Sharding) -> Operand {
    let line = format!(
        "sdy.sharding_constraint {} <{}> : {}",
        x.name,
        text(sharding),
        x.shape.stablehlo()
    );
    w.line(&x.shape, &line)
}

/// Each dim is closed: what has no axis stays whole.
fn text(sharding: &Sharding) -> String {
    let dims = sharding.dims.iter();
    let dims = dims.map(|axis| match axis {
        Some(axis) => format!("{{{}}}", quoted(axis)),
        None => "{}".into(),
    });
    format!("@mesh, [{}]", list(dims))
}
