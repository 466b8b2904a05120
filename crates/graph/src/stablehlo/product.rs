//! Large products of matrices in f32 on host processors, as calls of `phalanx.product`.

use super::custom_call;
use super::kernels::computing_at_once;
use super::writer::{Operand, Writer};
use crate::op::{Attribute, CustomCall, DotDims, Op};
use crate::{DType, Program, Shape};

/// Multiplications from which a product gains more than a call costs.
const WORTH_CALL: usize = 1 << 25;
/// Rows, columns and depth from which the call's blocks are filled.
const LEAST: usize = 64;

/// A product of two matrices.
#[derive(Clone, Copy)]
struct Plan {
    left: Side,
    right: Side,
}

/// An operand as a matrix.
#[derive(Clone, Copy)]
struct Side {
    /// Size of the dims that stay.
    count: usize,
    /// Size of those that are summed over.
    depth: usize,
    /// Whether those come last.
    whole: bool,
}

impl Program {
    /// Whether a product of this program gains from a call of `phalanx.product`.
    #[must_use]
    pub fn wants_products(&self) -> bool {
        let mut nodes = self.nodes.iter();
        self.mesh.is_none()
            && nodes.any(|node| match &node.op {
                Op::Dot(dims) => {
                    let [lhs, rhs] = [0, 1].map(|input| self.shape(node.inputs[input]));
                    plan(lhs, rhs, dims, &node.shapes[0]).is_some()
                }
                _ => false,
            })
    }
}

/// The product by a call, where there is one and it gains.
pub(super) fn product(
    w: &mut Writer,
    lhs: &Operand,
    rhs: &Operand,
    dims: &DotDims,
    shape: &Shape,
) -> Option<Operand> {
    let plan = plan(&lhs.shape, &rhs.shape, dims, shape).filter(|_| w.products)?;
    let operands = [
        w.reshape(lhs, &plan.left.dims()),
        w.reshape(rhs, &plan.right.dims()),
    ];
    let flag = |name: &str, flag| (name.to_owned(), Attribute::Bool(flag));
    let attributes = [
        Some(flag("left_transposed", !plan.left.whole)),
        computing_at_once(w),
        Some(flag("right_transposed", plan.right.whole)),
    ];
    let call = CustomCall {
        target: "phalanx.product".to_owned(),
        outputs: vec![Shape::f32([plan.left.count, plan.right.count])],
        attributes: attributes.into_iter().flatten().collect(),
        has_side_effect: false,
    };
    let result = custom_call(w, &call, &operands).swap_remove(0);
    Some(w.reshape(&result, &shape.dims))
}

fn plan(lhs: &Shape, rhs: &Shape, dims: &DotDims, shape: &Shape) -> Option<Plan> {
    let f32s = [lhs, rhs, shape]
        .iter()
        .all(|shape| shape.dtype == DType::F32);
    if !f32s || !dims.lhs_batch.is_empty() {
        return None;
    }
    let left = Side::of(lhs, &dims.lhs_contract)?;
    let right = Side::of(rhs, &dims.rhs_contract)?;
    let sizes = [left.count, right.count, left.depth];
    let large = sizes.iter().all(|&size| size >= LEAST);
    (large && sizes.iter().product::<usize>() >= WORTH_CALL).then_some(Plan { left, right })
}

impl Side {
    /// None where the dims that are summed over are neither the first nor the last, in order.
    fn of(shape: &Shape, contract: &[usize]) -> Option<Self> {
        let rank = shape.rank();
        let follow = |first: usize| contract.iter().copied().eq(first..first + contract.len());
        let (first, last) = (follow(0), follow(rank - contract.len()));
        let depth = contract.iter().map(|&dim| shape.dims[dim]).product();
        let all: usize = shape.dims.iter().product();
        (first || last).then(|| Self {
            count: all.checked_div(depth).unwrap_or(0),
            depth,
            whole: last,
        })
    }

    fn dims(self) -> [usize; 2] {
        if self.whole {
            [self.count, self.depth]
        } else {
            [self.depth, self.count]
        }
    }
}
