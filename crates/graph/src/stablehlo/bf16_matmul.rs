//! Products of bf16 on host processors, as calls of `phalanx.bf16_product`.

use super::custom_call;
use super::kernels::computing_at_once;
use super::writer::{Operand, Writer};
use crate::op::{Attribute, CustomCall, DotDims, Node, Op, Value, any_node};
use crate::{DType, Program, Shape};

/// Which products of bf16 are calls of `phalanx.bf16_product`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bf16Matmul {
    /// None: the compiler has its own.
    #[default]
    Never,
    /// Those so large that the call's faster multiplications are worth the call.
    WhereLarge,
    /// All that have elements.
    Always,
}

/// Multiplications from which a product gains more than a call costs: both take 0.1 ms at half of it.
const MIN_MULTIPLICATIONS: usize = 1 << 26;
/// Rows, columns and depth from which the tiles of AMX, 16 rows of 32 bf16, are well filled.
const MIN_SIZE: usize = 64;

/// Products of matrices, as many as there are elements of the batch dims.
struct BatchedMatmulPlan {
    left: MatricesView,
    right: MatricesView,
}

/// An operand as a batch of matrices.
pub(super) struct MatricesView {
    /// The dims in the order of the matrices.
    pub(super) order: Vec<usize>,
    pub(super) batch: usize,
    /// Size of the dims that stay.
    pub(super) count: usize,
    /// Size of those that are summed over.
    pub(super) depth: usize,
    /// Whether those come last.
    pub(super) depth_is_last: bool,
}

impl Program {
    /// Whether a product of this program gains from a call of `phalanx.bf16_product` on a processor with AMX.
    #[must_use]
    pub fn gains_from_bf16_matmul(&self) -> bool {
        let calls = Bf16Matmul::WhereLarge;
        let gains = |[lhs, rhs]: [&Shape; 2], dims: &DotDims, result: &Shape| {
            batched_matmul_plan(calls, lhs, rhs, dims, result).is_some()
        };
        self.mesh.is_none() && any_product(&self.nodes, &gains)
    }
}

/// Whether a function of the operands and the result takes a product of these nodes, or of a loop or branch among them.
pub(super) fn any_product(
    nodes: &[Node],
    takes: &dyn Fn([&Shape; 2], &DotDims, &Shape) -> bool,
) -> bool {
    any_node(nodes, &|nodes, node| match &node.op {
        Op::Dot(dims) => {
            let shape = |value: Value| &nodes[value.node].shapes[value.output];
            let operands = [0, 1].map(|input| shape(node.inputs[input]));
            takes(operands, dims, &node.shapes[0])
        }
        _ => false,
    })
}

/// The product by a call, where there is one and it is wanted.
pub(super) fn bf16_matmul(
    w: &mut Writer,
    lhs: &Operand,
    rhs: &Operand,
    dims: &DotDims,
    shape: &Shape,
) -> Option<Operand> {
    let plan = batched_matmul_plan(w.bf16_matmul, &lhs.shape, &rhs.shape, dims, shape)?;
    let operands = [plan.left.of(w, lhs), plan.right.of(w, rhs)];
    let flag = |name: &str, flag| (name.to_owned(), Attribute::Bool(flag));
    let attributes = [
        Some(flag("left_transposed", !plan.left.depth_is_last)),
        computing_at_once(w),
        Some(flag("right_transposed", plan.right.depth_is_last)),
    ];
    let results = [plan.left.batch, plan.left.count, plan.right.count];
    let call = CustomCall {
        target: "phalanx.bf16_product".to_owned(),
        outputs: vec![Shape::new(shape.dtype, results)],
        attributes: attributes.into_iter().flatten().collect(),
        has_side_effect: false,
    };
    let result = custom_call(w, &call, &operands).swap_remove(0);
    Some(w.reshape(&result, &shape.dims))
}

fn batched_matmul_plan(
    calls: Bf16Matmul,
    lhs: &Shape,
    rhs: &Shape,
    dims: &DotDims,
    shape: &Shape,
) -> Option<BatchedMatmulPlan> {
    let takes = [lhs.dtype, rhs.dtype] == [DType::Bf16; 2]
        && matches!(shape.dtype, DType::Bf16 | DType::F32)
        && ![lhs, rhs, shape].iter().any(|shape| shape.is_empty());
    if !takes {
        return None;
    }
    let left = MatricesView::new(lhs, &dims.lhs_batch, &dims.lhs_contract);
    let right = MatricesView::new(rhs, &dims.rhs_batch, &dims.rhs_contract);
    let sizes = [left.count, right.count, left.depth];
    let gains = || {
        let multiplications = sizes.iter().product::<usize>().saturating_mul(left.batch);
        sizes.iter().all(|&size| size >= MIN_SIZE) && multiplications >= MIN_MULTIPLICATIONS
    };
    let wanted = match calls {
        Bf16Matmul::Never => false,
        Bf16Matmul::WhereLarge => gains(),
        Bf16Matmul::Always => true,
    };
    wanted.then_some(BatchedMatmulPlan { left, right })
}

impl MatricesView {
    /// Where the operand's own order serves, it is kept; else the dims that are summed over go last.
    pub(super) fn new(shape: &Shape, batch: &[usize], contract: &[usize]) -> Self {
        let size = |dims: &[usize]| dims.iter().map(|&dim| shape.dims[dim]).product();
        let stays = |dim: &usize| !batch.contains(dim) && !contract.contains(dim);
        let kept: Vec<usize> = (0..shape.rank()).filter(stays).collect();
        let depth_first = [batch, contract, &kept].concat();
        let depth_is_last = !depth_first.is_sorted() || contract.is_empty();
        Self {
            order: match depth_is_last {
                true => [batch, &kept, contract].concat(),
                false => depth_first,
            },
            batch: size(batch),
            count: size(&kept),
            depth: size(contract),
            depth_is_last,
        }
    }

    /// The operand as `[batch, count, depth]` or `[batch, depth, count]`.
    pub(super) fn of(&self, w: &mut Writer, operand: &Operand) -> Operand {
        let ordered = w.transpose(operand, &self.order);
        w.reshape(&ordered, &self.dims())
    }

    /// `[batch, count, depth]` or `[batch, depth, count]`.
    pub(super) fn dims(&self) -> [usize; 3] {
        match self.depth_is_last {
            true => [self.batch, self.count, self.depth],
            false => [self.batch, self.depth, self.count],
        }
    }
}
