//! Exchanges between the replicas of several processes, as calls of `phalanx.exchange_start` and `phalanx.exchange_done`.
//!
//! `start` hands a replica's arrays over and returns at once; `done` waits for what became of them. Gradients are handed over in
//! the order in which the backward pass finds them, and `done` follows only where a result is first used, so the network
//! works while the rest of the backward pass computes. Four rules make that safe on a device that runs ops in any order
//! that their operands allow, on one thread or several:
//!
//! - each `start` takes the handle of the one before, so all processes begin exchanges in one order, and no number has to say
//!   which is which;
//! - each `done` takes the handle of the last `start` so far, so no thread waits in a `done` before all that was to be
//!   handed over is;
//! - each `done` takes what the one before gave, so one thread of each replica waits, and replicas that share threads leave
//!   each other some;
//! - exchanges are not in loops or branches, which could be entered more often in one process than in another.

use super::custom_call;
use super::indexing::dynamic_slice;
use super::writer::{Operand, Writer};
use crate::op::{Attribute, CustomCall, Node, Op, ReduceOp};
use crate::{DType, Program, Shape};

/// The exchanges of a program so far.
pub(super) struct WorldExchangeCalls {
    local_replicas: usize,
    /// The handle of the last exchange begun.
    last: Option<Operand>,
    /// Exchanges whose results nothing has used yet.
    pending: Vec<Pending>,
    /// Whether each finished exchange succeeded.
    succeeded: Vec<Operand>,
}

/// An exchange that was begun.
struct Pending {
    /// The node in its list, once that is known.
    node: Option<usize>,
    handle: Operand,
    /// The positions among the node's results of those that are exchanged.
    places: Vec<usize>,
    /// The shapes of the exchanged arrays, as each replica gives them.
    sent: Vec<Shape>,
    results: Results,
}

/// What comes back.
enum Results {
    /// One array for each that was sent, combined.
    Reduced,
    /// The arrays of all replicas, joined along a dim to this shape.
    Joined { dim: usize, shape: Shape },
    /// This replica's slice of this shape, along a dim, of the one array that was sent, combined.
    Scattered { dim: usize, shape: Shape },
}

impl WorldExchangeCalls {
    pub(super) const fn new(local_replicas: usize) -> Self {
        Self {
            local_replicas,
            last: None,
            pending: Vec::new(),
            succeeded: Vec::new(),
        }
    }

    /// Takes out the exchanges begun, which a nested list of nodes knows nothing of.
    pub(super) fn take_pending(&mut self) -> PendingExchanges {
        PendingExchanges(std::mem::take(&mut self.pending))
    }

    /// Puts back what was taken out.
    pub(super) fn restore_pending(&mut self, pending: PendingExchanges) {
        self.pending = pending.0;
    }
}

/// The exchanges begun in one list of nodes.
pub(super) struct PendingExchanges(Vec<Pending>);

/// Begins the combination of every replica's tensors, an exchange for each element type; what has no elements stays at home.
/// Returns stand-ins, which [`finish`] replaces.
pub(super) fn all_reduce(w: &mut Writer, kind: ReduceOp, inputs: &[Operand]) -> Vec<Operand> {
    for dtype in DType::ALL {
        let is_sent = |x: &Operand| x.shape.dtype == dtype && !x.shape.is_empty();
        let places = (0..inputs.len()).filter(|&place| is_sent(&inputs[place]));
        let places = places.collect();
        start(w, kind.name(), inputs, places, Results::Reduced);
    }
    inputs.to_vec()
}

/// Begins the joining of every replica's tensor along a dim. Returns a stand-in, which [`finish`] replaces.
pub(super) fn all_gather(w: &mut Writer, x: &Operand, dim: usize, shape: &Shape) -> Operand {
    let results = Results::Joined {
        dim,
        shape: shape.clone(),
    };
    let places = if x.shape.is_empty() { vec![] } else { vec![0] };
    start(w, "gather", std::slice::from_ref(x), places, results);
    x.clone()
}

/// Begins the sum of every replica's tensor, of which each gets a slice along a dim: the whole sum is sent to all. Returns a
/// stand-in, which [`finish`] replaces.
pub(super) fn reduce_scatter(w: &mut Writer, x: &Operand, dim: usize, shape: &Shape) -> Operand {
    let results = Results::Scattered {
        dim,
        shape: shape.clone(),
    };
    let places = if x.shape.is_empty() { vec![] } else { vec![0] };
    let sum = ReduceOp::Sum.name();
    start(w, sum, std::slice::from_ref(x), places, results);
    x.clone()
}

fn start(w: &mut Writer, op: &str, inputs: &[Operand], places: Vec<usize>, results: Results) {
    let Some(mut world) = w.world.take() else {
        return;
    };
    if !places.is_empty() {
        let own = Shape::scalar(DType::U32);
        let replica = w.line(&own, "stablehlo.replica_id : tensor<ui32>");
        let handle = Shape::scalar(DType::I64);
        let last = match world.last.take() {
            Some(last) => last,
            None => w.full(&handle, 0.0),
        };
        let sent = places.iter().map(|&place| inputs[place].clone());
        let operands: Vec<Operand> = [replica, last].into_iter().chain(sent).collect();
        let attributes = [
            ("op", Attribute::Text(op.to_owned())),
            ("replicas", Attribute::Int(world.local_replicas as i64)),
        ];
        let begun = call(w, "exchange_start", vec![handle], &attributes, &operands).swap_remove(0);
        world.last = Some(begun.clone());
        world.pending.push(Pending {
            node: None,
            handle: begun,
            sent: operands[2..].iter().map(|x| x.shape.clone()).collect(),
            places,
            results,
        });
    }
    w.world = Some(world);
}

fn call(
    w: &mut Writer,
    name: &str,
    outputs: Vec<Shape>,
    attributes: &[(&str, Attribute)],
    operands: &[Operand],
) -> Vec<Operand> {
    let named = attributes.iter();
    let call = CustomCall {
        target: format!("phalanx.{name}"),
        outputs,
        attributes: named
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        has_side_effect: false,
    };
    custom_call(w, &call, operands)
}

/// Notes which node began the last exchanges.
pub(super) fn begun(w: &mut Writer, node: usize) {
    for pending in w.world.iter_mut().flat_map(|world| &mut world.pending) {
        pending.node.get_or_insert(node);
    }
}

/// Whether the node uses what was exchanged, so that it must be there.
pub(super) fn must_finish(w: &Writer, node: &Node) -> bool {
    let Some(world) = &w.world else { return false };
    let is_pending = |of: usize| world.pending.iter().any(|begun| begun.node == Some(of));
    node.op == Op::ExchangesSucceeded || node.inputs.iter().any(|input| is_pending(input.node))
}

/// Waits for all exchanges begun, and puts what came back in the place of the stand-ins.
pub(super) fn finish(w: &mut Writer, values: &mut [Vec<Operand>]) {
    let Some(mut world) = w.world.take() else {
        return;
    };
    for begun in std::mem::take(&mut world.pending) {
        let (Some(last), Some(node)) = (&world.last, begun.node) else {
            continue;
        };
        let truth = Shape::scalar(DType::Bool);
        let shapes = begun.received(w.replicas);
        let outputs: Vec<Shape> = std::iter::once(truth).chain(shapes).collect();
        let attributes = [("replicas", Attribute::Int(world.local_replicas as i64))];
        let own = Shape::scalar(DType::U32);
        let replica = w.line(&own, "stablehlo.replica_id : tensor<ui32>");
        let before = world.succeeded.last().cloned();
        let operands = [replica, begun.handle.clone(), last.clone()];
        let operands: Vec<Operand> = operands.into_iter().chain(before).collect();
        let mut received = call(w, "exchange_done", outputs, &attributes, &operands);
        world.succeeded.push(received.remove(0));
        for (&place, result) in begun.places.iter().zip(received) {
            values[node][place] = match &begun.results {
                Results::Reduced => result,
                Results::Joined { dim, shape } => joined(w, &result, *dim, shape),
                Results::Scattered { dim, shape } => {
                    let own = own_number(w);
                    own_slice(w, &result, &own, *dim, shape)
                }
            };
        }
    }
    w.world = Some(world);
}

impl Pending {
    /// The shapes of what comes back.
    fn received(&self, replicas: usize) -> Vec<Shape> {
        let shape = |sent: &Shape| match self.results {
            Results::Reduced | Results::Scattered { .. } => sent.clone(),
            Results::Joined { .. } => {
                Shape::new(sent.dtype, [&[replicas], &sent.dims[..]].concat())
            }
        };
        self.sent.iter().map(shape).collect()
    }
}

/// Moves the dim of the replicas, the first, before the dim along which their tensors are joined.
fn joined(w: &mut Writer, all: &Operand, dim: usize, shape: &Shape) -> Operand {
    let rank = all.shape.rank();
    let mut order: Vec<usize> = (1..rank).collect();
    order.insert(dim, 0);
    let moved = match dim {
        0 => all.clone(),
        _ => w.transpose(all, &order),
    };
    w.reshape(&moved, &shape.dims)
}

/// The number of this replica among the replicas of all processes; `None` in a program of one process.
pub(super) fn replica_id(w: &mut Writer) -> Option<Operand> {
    w.world.is_some().then(|| own_number(w))
}

/// The slice of the replica of this number, along a dim.
fn own_slice(w: &mut Writer, x: &Operand, number: &Operand, dim: usize, shape: &Shape) -> Operand {
    let scalar = number.shape.clone();
    let each = w.full(&scalar, shape.dims[dim] as f64);
    let start = w.elementwise("multiply", &[number.clone(), each], &scalar);
    let zero = w.full(&scalar, 0.0);
    let starts = (0..shape.rank()).map(|other| if other == dim { &start } else { &zero });
    let operands: Vec<Operand> = std::iter::once(x).chain(starts).cloned().collect();
    dynamic_slice(w, &operands, &shape.dims, shape)
}

fn own_number(w: &mut Writer) -> Operand {
    let shape = Shape::scalar(DType::U32);
    let local = w.line(&shape, "stablehlo.replica_id : tensor<ui32>");
    let first = call(w, "first_replica", vec![shape.clone()], &[], &[]).swap_remove(0);
    w.elementwise("add", &[first, local], &shape)
}

/// Whether all exchanges so far succeeded.
pub(super) fn succeeded(w: &mut Writer) -> Operand {
    let truth = Shape::scalar(DType::Bool);
    let all = w.world.as_ref();
    let all = all.map_or(Vec::new(), |world| world.succeeded.clone());
    let all = all
        .into_iter()
        .reduce(|all, next| w.elementwise("and", &[all, next], &truth));
    all.unwrap_or_else(|| w.full(&truth, 1.0))
}

impl Program {
    /// What keeps the program from running in several processes, in words.
    #[must_use]
    pub fn unsupported_between_processes(&self) -> Option<String> {
        if self.workers == 1 {
            return None;
        }
        let nested = |op: &Op| {
            let mut bodies = op.bodies().into_iter();
            bodies.find_map(|body| crate::infer::communication(&body.nodes))
        };
        self.nodes.iter().find_map(|node| match &node.op {
            Op::AllToAll { .. } | Op::CollectivePermute(_) => {
                Some(format!("{} between processes", node.op.name()))
            }
            Op::AllReduce {
                kind: ReduceOp::Prod,
                ..
            } => Some("a product over the replicas of several processes".to_owned()),
            op => nested(op).map(|inner| format!("{inner} in a loop or branch, between processes")),
        })
    }
}
