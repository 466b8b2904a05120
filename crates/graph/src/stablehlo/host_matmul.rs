//! Products of matrices on host processors, summed in f32, as calls of `phalanx.product`.

use super::bf16_matmul::{MatricesView, any_product};
use super::custom_call;
use super::kernels::computing_at_once;
use super::writer::{Operand, Writer};
use crate::op::{Attribute, CustomCall, DotDims};
use crate::{DType, Program, Shape};

/// Which products are calls of `phalanx.product`: of f32, and of bf16 where the processor multiplies them no faster.
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

/// A product of two matrices, or of each of some with its partner.
struct MatmulPlan {
    left: OperandPlan,
    right: OperandPlan,
}

/// An operand as matrices.
struct OperandPlan {
    /// The order of its dims in which these are.
    order: Vec<usize>,
    /// The dims of the matrices: `[rows, columns]`, `[matrices, rows, columns]` or `[matrices, rows, heads, columns]`.
    dims: Vec<usize>,
    /// How many there are.
    batch: usize,
    /// Size of the dims that stay.
    count: usize,
    /// Size of those that are summed over.
    depth: usize,
    /// Whether those come last.
    depth_is_last: bool,
}

impl Program {
    /// Whether a product of this program is a call of `phalanx.product`, where these are, on a processor that multiplies bf16 faster than f32 or
    /// does not.
    #[must_use]
    pub fn gains_from_host_matmul(&self, calls: HostMatmul, native_bf16_dot: bool) -> bool {
        let gains = |[lhs, rhs]: [&Shape; 2], dims: &DotDims, result: &Shape| {
            are_taken([lhs, rhs, result], !native_bf16_dot)
                && matmul_plan(calls, lhs, rhs, dims).is_some()
        };
        self.mesh.is_none() && any_product(&self.nodes, &gains)
    }
}

/// Whether a product of these operands to this result is a call.
pub(super) fn is_call(w: &Writer, [lhs, rhs, result]: [&Shape; 3], dims: &DotDims) -> bool {
    are_taken([lhs, rhs, result], w.widens_bf16)
        && matmul_plan(w.host_matmul, lhs, rhs, dims).is_some()
}

/// The product by a call, where there is one and it gains, and the bias of its columns, in f32.
pub(super) fn host_matmul(
    w: &mut Writer,
    [lhs, rhs]: [&Operand; 2],
    bias: Option<&Operand>,
    dims: &DotDims,
    shape: &Shape,
) -> Option<Operand> {
    if !are_taken([&lhs.shape, &rhs.shape, shape], w.widens_bf16) {
        return None;
    }
    let MatmulPlan { left, right } = matmul_plan(w.host_matmul, &lhs.shape, &rhs.shape, dims)?;
    let mut operands = vec![left.of_operand(w, lhs), right.of_operand(w, rhs)];
    operands.extend(bias.map(|bias| w.reshape(bias, &[right.count])));
    let flag = |name: &str, flag| (name.to_owned(), Attribute::Bool(flag));
    let attributes = [
        Some(flag("left_transposed", !left.depth_is_last)),
        computing_at_once(w),
        Some(flag("right_transposed", right.depth_is_last)),
    ];
    let matrix = [left.count, right.count];
    let batch = if dims.lhs_batch.is_empty() {
        &[][..]
    } else {
        &[left.batch]
    };
    let call = CustomCall {
        target: "phalanx.product".to_owned(),
        outputs: vec![Shape::new(shape.dtype, [batch, &matrix].concat())],
        attributes: attributes.into_iter().flatten().collect(),
        has_side_effect: false,
    };
    let result = custom_call(w, &call, &operands).swap_remove(0);
    Some(w.reshape(&result, &shape.dims))
}

/// Whether the call has these elements of operands and the result.
fn are_taken([lhs, rhs, result]: [&Shape; 3], widens_bf16: bool) -> bool {
    match (lhs.dtype, rhs.dtype, result.dtype) {
        (DType::F32, DType::F32, DType::F32) => true,
        (DType::Bf16, DType::Bf16, DType::Bf16 | DType::F32) => widens_bf16,
        _ => false,
    }
}

fn matmul_plan(calls: HostMatmul, lhs: &Shape, rhs: &Shape, dims: &DotDims) -> Option<MatmulPlan> {
    let left = OperandPlan::of(lhs, &dims.lhs_batch, &dims.lhs_contract)?;
    let right = OperandPlan::of(rhs, &dims.rhs_batch, &dims.rhs_contract)?;
    let sizes = [left.count, right.count, left.depth, left.batch];
    let fills_blocks = sizes[..3].iter().all(|&size| size >= MIN_SIZE);
    let is_call = match calls {
        HostMatmul::Never => false,
        HostMatmul::WhereLarge => sizes.iter().product::<usize>() >= MIN_MULTIPLICATIONS,
        HostMatmul::AlsoSmall => true,
    };
    (fills_blocks && is_call).then_some(MatmulPlan { left, right })
}

impl OperandPlan {
    /// None where nothing is to be in batches and the dims that are summed over are neither the first nor the last, in order.
    fn of(shape: &Shape, batch: &[usize], contract: &[usize]) -> Option<Self> {
        if batch.is_empty() {
            return Self::one(shape, contract);
        }
        Self::between(shape, batch, contract).or_else(|| Some(Self::some(shape, batch, contract)))
    }

    fn one(shape: &Shape, contract: &[usize]) -> Option<Self> {
        let rank = shape.rank();
        let follow = |first: usize| contract.iter().copied().eq(first..first + contract.len());
        let (first, last) = (follow(0), follow(rank - contract.len()));
        let depth = contract.iter().map(|&dim| shape.dims[dim]).product();
        let all: usize = shape.dims.iter().product();
        let count = all.checked_div(depth).unwrap_or(0);
        (first || last).then(|| Self {
            order: (0..shape.rank()).collect(),
            dims: if last {
                vec![count, depth]
            } else {
                vec![depth, count]
            },
            batch: 1,
            count,
            depth,
            depth_is_last: last,
        })
    }

    /// Where the rows of some matrices are between each other's, as the rows of heads: `[matrices, rows, heads, columns]`.
    fn between(shape: &Shape, batch: &[usize], contract: &[usize]) -> Option<Self> {
        let ([0, 2], [contract], [_, _, _, _]) = (batch, contract, &shape.dims[..]) else {
            return None;
        };
        let depth_is_last = *contract == 3;
        let kept = if depth_is_last { 1 } else { 3 };
        Some(Self {
            order: (0..shape.rank()).collect(),
            dims: shape.dims.clone(),
            batch: shape.dims[0] * shape.dims[2],
            count: shape.dims[kept],
            depth: shape.dims[*contract],
            depth_is_last,
        })
    }

    /// Each behind the other, in the operand's own order where that serves.
    fn some(shape: &Shape, batch: &[usize], contract: &[usize]) -> Self {
        let view = MatricesView::new(shape, batch, contract);
        Self {
            dims: view.dims().to_vec(),
            order: view.order,
            batch: view.batch,
            count: view.count,
            depth: view.depth,
            depth_is_last: view.depth_is_last,
        }
    }

    fn of_operand(&self, w: &mut Writer, operand: &Operand) -> Operand {
        let ordered = w.transpose(operand, &self.order);
        w.reshape(&ordered, &self.dims)
    }
}
