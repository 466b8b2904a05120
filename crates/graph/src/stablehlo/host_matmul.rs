//! Products of matrices in f32 on host processors, as calls of `phalanx.product`.

use super::custom_call;
use super::kernels::computing_at_once;
use super::writer::{Operand, Writer};
use crate::op::{Attribute, CustomCall, DotDims, Op};
use crate::{DType, Program, Shape};

/// Which products of f32 are calls of `phalanx.product`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HostMatmul {
    /// None: the compiler has its own.
    #[default]
    Never,
    /// Those so large that several threads gain from the call.
    WhereLarge,
    /// All that fill the call's blocks: for programs that one thread computes, which the compiler's own products would divide.
    AlsoSmall,
}

/// Multiplications from which a product gains more than a call costs that several threads share.
const MIN_MULTIPLICATIONS: usize = 1 << 25;
/// Rows, columns and depth from which the call's blocks are filled.
const MIN_SIZE: usize = 64;

/// A product of two matrices.
#[derive(Clone, Copy)]
struct MatmulPlan {
    left: MatrixView,
    right: MatrixView,
}

/// An operand as a matrix.
#[derive(Clone, Copy)]
struct MatrixView {
    /// Size of the dims that stay.
    count: usize,
    /// Size of those that are summed over.
    depth: usize,
    /// Whether those come last.
    depth_is_last: bool,
}

impl Program {
    /// Whether a product of this program is a call of `phalanx.product`, where these are.
    #[must_use]
    pub fn gains_from_host_matmul(&self, calls: HostMatmul) -> bool {
        let mut nodes = self.nodes.iter();
        self.mesh.is_none()
            && nodes.any(|node| match &node.op {
                Op::Dot(dims) => {
                    let [lhs, rhs] = [0, 1].map(|input| self.shape(node.inputs[input]));
                    matmul_plan(calls, lhs, rhs, dims, &node.shapes[0]).is_some()
                }
                _ => false,
            })
    }
}

/// The product by a call, where there is one and it gains.
pub(super) fn host_matmul(
    w: &mut Writer,
    lhs: &Operand,
    rhs: &Operand,
    dims: &DotDims,
    shape: &Shape,
) -> Option<Operand> {
    let matmul_plan = matmul_plan(w.host_matmul, &lhs.shape, &rhs.shape, dims, shape)?;
    let operands = [
        w.reshape(lhs, &matmul_plan.left.dims()),
        w.reshape(rhs, &matmul_plan.right.dims()),
    ];
    let flag = |name: &str, flag| (name.to_owned(), Attribute::Bool(flag));
    let attributes = [
        Some(flag("left_transposed", !matmul_plan.left.depth_is_last)),
        computing_at_once(w),
        Some(flag("right_transposed", matmul_plan.right.depth_is_last)),
    ];
    let call = CustomCall {
        target: "phalanx.product".to_owned(),
        outputs: vec![Shape::f32([
            matmul_plan.left.count,
            matmul_plan.right.count,
        ])],
        attributes: attributes.into_iter().flatten().collect(),
        has_side_effect: false,
    };
    let result = custom_call(w, &call, &operands).swap_remove(0);
    Some(w.reshape(&result, &shape.dims))
}

fn matmul_plan(
    calls: HostMatmul,
    lhs: &Shape,
    rhs: &Shape,
    dims: &DotDims,
    shape: &Shape,
) -> Option<MatmulPlan> {
    let f32s = [lhs, rhs, shape]
        .iter()
        .all(|shape| shape.dtype == DType::F32);
    if !f32s || !dims.lhs_batch.is_empty() {
        return None;
    }
    let left = MatrixView::of(lhs, &dims.lhs_contract)?;
    let right = MatrixView::of(rhs, &dims.rhs_contract)?;
    let sizes = [left.count, right.count, left.depth];
    let fills_blocks = sizes.iter().all(|&size| size >= MIN_SIZE);
    let is_call = match calls {
        HostMatmul::Never => false,
        HostMatmul::WhereLarge => sizes.iter().product::<usize>() >= MIN_MULTIPLICATIONS,
        HostMatmul::AlsoSmall => true,
    };
    (fills_blocks && is_call).then_some(MatmulPlan { left, right })
}

impl MatrixView {
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
            depth_is_last: last,
        })
    }

    fn dims(self) -> [usize; 2] {
        if self.depth_is_last {
            [self.count, self.depth]
        } else {
            [self.depth, self.count]
        }
    }
}
