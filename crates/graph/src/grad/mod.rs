//! Derivatives: reverse mode, graph to graph.
//!
//! A new op gets an arm in [`vjp`]; the gradient it adds is made of primitives, so it can be
//! printed, simplified and differentiated again.

pub(crate) mod convolution;
mod gathered;
mod gru;
mod jacobian;
mod linear;
mod lstm;
mod pullback;
mod recompute;
mod scan;
mod scattered;
mod slices;
pub(crate) mod window;

use std::collections::HashMap;

use gathered::gather;
use jacobian::all_owned;
use recompute::Recomputed;
use scattered::total;

pub use jacobian::{batch_jacobian, jacobian};
pub use pullback::Pullback;
pub use scattered::Scattered;

use crate::op::{BinaryOp, CompareOp, Node, Op, PadDim, ReduceOp, SliceDim, UnaryOp, Value, Via};
use crate::{FusedActivation, Graph, Kernel, Mask, Shape, Tensor};

/// What each input of a node receives; `None` where no gradient flows.
type Gradients = Result<Vec<Option<Tensor>>, String>;

/// The derivative of a scalar with respect to tensors; `None` for a tensor that `loss` does not depend on
/// through floating-point values.
///
/// Ties: `maximum` and `minimum` send the gradient to the second operand (so `max(x, 0)` has derivative 0
/// at 0, as TensorFlow's relu), `reduce max` shares it between equal elements, windows give it to the first.
/// Over replicas the *sum* of their losses is derived.
///
/// Records a mistake on the graph when `loss` is not a floating-point scalar, when a tensor is of another graph, or when the path
/// passes through an op without derivative (`while`, custom calls).
#[must_use]
#[track_caller]
pub fn gradients(loss: &Tensor, wrt: &[&Tensor]) -> Vec<Option<Tensor>> {
    let shape = loss.shape();
    if shape.rank() != 0 || !shape.dtype.is_float() {
        let message = format!("expected a floating-point scalar, got {shape}; reduce it first");
        loss.graph().fail("gradients", message);
        return vec![None; wrt.len()];
    }
    if !all_owned("gradients", (loss, "loss"), wrt) {
        return vec![None; wrt.len()];
    }
    let seed = loss.like(1.0);
    backpropagate(loss.graph(), &[(loss.value(), seed)], wrt)
}

/// Pulls the cotangents of some values back to `wrt`.
#[track_caller]
fn backpropagate(graph: &Graph, seeds: &[(Value, Tensor)], wrt: &[&Tensor]) -> Vec<Option<Tensor>> {
    let Some(last) = seeds.iter().map(|(value, _)| value.node).max() else {
        return vec![None; wrt.len()];
    };
    let relevant = dependents(graph, wrt, last);
    let mut cotangents = HashMap::new();
    for (value, seed) in seeds {
        accumulate(&mut cotangents, *value, seed.clone());
    }
    let mut recomputed = Recomputed::new(graph);
    for index in (0..=last).rev().filter(|&index| relevant[index]) {
        let node = graph.node(index);
        let value = |output| Value {
            node: index,
            output,
        };
        let results = (0..node.shapes.len()).map(value);
        if !results
            .clone()
            .any(|result| cotangents.contains_key(&result))
        {
            continue;
        }
        let place = recomputed.place(graph, index, &mut cotangents);
        let outputs = results.map(|result| cotangents.get(&result).cloned());
        let step = Step::new(graph, place, &node, outputs.collect(), &relevant);
        let label = step.node.label.clone();
        match graph.under_label(label, || vjp(&step)) {
            Ok(inputs) => {
                for (i, gradient) in inputs.into_iter().enumerate() {
                    if let Some(gradient) = gradient.filter(|_| step.wants(i)) {
                        accumulate(&mut cotangents, node.inputs[i], gradient);
                    }
                }
            }
            Err(message) => graph.fail("gradients", message),
        }
    }
    let take = |tensor: &&Tensor| cotangents.get(&tensor.value()).cloned();
    wrt.iter().map(take).collect()
}

fn accumulate(cotangents: &mut HashMap<Value, Tensor>, value: Value, gradient: Tensor) {
    let total = match cotangents.remove(&value) {
        Some(sum) => total(sum, gradient),
        None => gradient,
    };
    cotangents.insert(value, total);
}

/// Which nodes up to `last` depend on any of `wrt`.
fn dependents(graph: &Graph, wrt: &[&Tensor], last: usize) -> Vec<bool> {
    let mut relevant = vec![false; last + 1];
    for tensor in wrt {
        if let Some(flag) = relevant.get_mut(tensor.value().node) {
            *flag = true;
        }
    }
    graph.each_node(last + 1, |index, node| {
        if lets_gradients_pass(node) && node.inputs.iter().any(|input| relevant[input.node]) {
            relevant[index] = true;
        }
    });
    relevant
}

/// Whether a gradient may flow through a node: what is behind one that stops it need not have a derivative.
fn lets_gradients_pass(node: &Node) -> bool {
    let is_flat = matches!(
        node.op,
        Op::StopGradient
            | Op::Unary(UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round)
    );
    !is_flat && node.shapes.iter().any(|shape| shape.dtype.is_float())
}

/// One node on the way back, or the copy of it that is computed again.
struct Step<'a> {
    graph: &'a Graph,
    index: usize,
    node: Node,
    /// Cotangent of each output.
    cotangents: Vec<Option<Tensor>>,
    wanted: Vec<bool>,
}

impl<'a> Step<'a> {
    fn new(
        graph: &'a Graph,
        index: usize,
        original: &Node,
        cotangents: Vec<Option<Tensor>>,
        relevant: &[bool],
    ) -> Self {
        let wanted =
            |input: &Value| relevant[input.node] && graph.shape_of(*input).dtype.is_float();
        let wanted = original.inputs.iter().map(wanted).collect();
        Self {
            graph,
            index,
            node: graph.node(index),
            cotangents,
            wanted,
        }
    }

    fn input(&self, i: usize) -> Tensor {
        Tensor::new(self.graph.clone(), self.node.inputs[i])
    }

    fn output(&self, output: usize) -> Tensor {
        let node = self.index;
        Tensor::new(self.graph.clone(), Value { node, output })
    }

    /// Cotangent of an output, zeros when nothing uses it.
    fn cotangent(&self, output: usize) -> Tensor {
        let zeros = || self.output(output).zeros_like();
        self.cotangents[output].clone().unwrap_or_else(zeros)
    }

    fn wants(&self, i: usize) -> bool {
        self.wanted[i]
    }

    fn wants_any(&self) -> bool {
        self.wanted.contains(&true)
    }

    /// The gradient of input `i`, built only when it is wanted.
    fn when(&self, i: usize, build: impl FnOnce() -> Tensor) -> Option<Tensor> {
        self.wants(i).then(build)
    }
}

/// The cotangents of a node's inputs from its outputs' cotangents.
fn vjp(step: &Step) -> Gradients {
    let none = || Ok(vec![None; step.node.inputs.len()]);
    if !step.wants_any() {
        return none();
    }
    let g = step.cotangent(0);
    match &step.node.op {
        Op::Parameter(_) | Op::Constant(_) | Op::Iota(_) | Op::ReplicaId => none(),
        Op::ExchangesSucceeded | Op::ArgSort => none(),
        Op::Compare(_) | Op::StopGradient | Op::Bitcast(_) | Op::RandomBits(_) => none(),
        Op::WithGradient(pullback) => pullback.of(step),
        Op::Unary(op) => Ok(vec![unary(*op, step, &g)]),
        Op::Binary(op) => Ok(binary(*op, step, &g)),
        Op::Select => Ok(select(step, &g)),
        Op::Convert(_) => Ok(vec![Some(g.convert(step.input(0).dtype()))]),
        Op::Reshape(_) => Ok(vec![Some(g.reshape(&step.input(0).dims()))]),
        Op::Transpose(perm) => Ok(vec![Some(g.transpose(&inverse(perm)))]),
        Op::Broadcast { map, .. } => Ok(vec![Some(unbroadcast(&g, &step.input(0).dims(), map))]),
        Op::Reverse(dims) => Ok(vec![Some(g.reverse(dims))]),
        Op::Pad(pads) => Ok(pad(step, &g, pads)),
        Op::Slice(slices) => Ok(vec![Some(unslice(&g, &step.input(0).dims(), slices))]),
        Op::DynamicSlice(_) => Ok(dynamic_slice(step, &g)),
        Op::DynamicUpdateSlice => Ok(dynamic_update_slice(step, &g)),
        Op::Concat(dim) => Ok(concat(step, &g, *dim)),
        Op::Gather { dim } => Ok(gather(step, &g, *dim)),
        Op::ScatterAdd { dim } => Ok(scatter_add(step, &g, *dim)),
        Op::ScatterSet { dim } => Ok(scatter_set(step, &g, *dim)),
        Op::Dot(dims) => Ok(linear::dot(step, &g, dims)),
        Op::Conv(dims) => Ok(convolution::conv(step, &g, dims)),
        Op::Kernel(kernel) => Ok(kernel_op(step, kernel)),
        Op::Reduce { kind, dims } => Ok(vec![window::reduce(*kind, dims, step, &g)]),
        Op::ReduceWindow { kind, window } => window::reduce_window(*kind, window, step, &g),
        Op::Scan(dims) => scan::scan(step, dims),
        Op::AllReduce {
            kind: ReduceOp::Sum,
            via,
        } => Ok(all_reduce(step, *via)),
        Op::OptimizationBarrier => Ok(step.cotangents.clone()),
        Op::Sharded(sharding) => Ok(vec![Some(g.sharded(sharding))]),
        Op::AllGather { dim } => Ok(vec![Some(g.reduce_scatter(*dim))]),
        Op::ReduceScatter { dim } => Ok(vec![Some(g.all_gather(*dim))]),
        Op::AllToAll { split, concat } => Ok(vec![Some(g.all_to_all(*concat, *split))]),
        Op::CollectivePermute(pairs) => Ok(vec![Some(g.collective_permute(&swapped(pairs)))]),
        Op::AllReduce { kind, .. } => Err(format!(
            "all_reduce {} has no derivative; stop_gradient its input, or reduce a sum",
            kind.name()
        )),
        Op::While { .. } => {
            Err("a while loop has no derivative, for its length is unknown; use scan".into())
        }
        Op::Case(_) => Err("a case has no derivative; differentiate inside its branches".into()),
        Op::CustomCall(call) => Err(format!(
            "custom call {} has no derivative; stop_gradient its inputs",
            call.target
        )),
    }
}

fn kernel_op(step: &Step, kernel: &Kernel) -> Vec<Option<Tensor>> {
    let g = step.cotangent(0);
    match kernel {
        Kernel::ConvInputGradient { dims, .. } if step.node.inputs.len() == 2 => {
            convolution::input_gradient_vjp(step, &g, dims)
        }
        Kernel::ConvKernelGradient { dims, .. } => convolution::kernel_gradient_vjp(step, &g, dims),
        Kernel::MaxPool2d(pool) => {
            let input = step.input(0).dims();
            let op = Op::Kernel(Kernel::MaxPool2dGradient { pool: *pool, input });
            vec![Some(step.graph.push(op, &[&step.output(1), &g]))]
        }
        Kernel::BatchNorm {
            epsilon,
            activation: FusedActivation::None,
        } if step.node.inputs.len() == 3 && step.cotangents[1..].iter().all(Option::is_none) => {
            let given = [
                g,
                step.input(0),
                step.output(1),
                step.output(2),
                step.input(1),
            ];
            let given: Vec<&Tensor> = given.iter().collect();
            let (epsilon, mask) = (*epsilon, Mask::None);
            let op = Op::Kernel(Kernel::BatchNormGradient { epsilon, mask });
            let found = step.graph.push_many(op, &given);
            found.into_iter().map(Some).collect()
        }
        // Gates are no results for programs: only a second derivative has cotangents of them.
        Kernel::Lstm if step.cotangents[2].is_none() => lstm::lstm(step),
        Kernel::Gru if step.cotangents[1].is_none() => gru::gru(step),
        Kernel::Lstm
        | Kernel::LstmGradient
        | Kernel::Gru
        | Kernel::GruGradient
        | Kernel::ConvInputGradient { .. }
        | Kernel::ConvBias { .. }
        | Kernel::BatchNorm { .. }
        | Kernel::BatchNormGradient { .. }
        | Kernel::MaxPool2dGradient { .. } => of_decomposed(step, kernel),
    }
}

/// The derivative of what a kernel is made of, found in a graph of its own: here the inputs depend on each other.
fn of_decomposed(step: &Step, kernel: &Kernel) -> Vec<Option<Tensor>> {
    let count = step.node.inputs.len();
    let mut given: Vec<Tensor> = (0..count).map(|i| step.input(i)).collect();
    let used: Vec<usize> = (0..step.cotangents.len())
        .filter(|&output| step.cotangents[output].is_some())
        .collect();
    given.extend(step.cotangents.iter().flatten().cloned());
    let shapes: Vec<Shape> = given.iter().map(Tensor::shape).collect();
    let wanted: Vec<usize> = (0..count).filter(|&i| step.wants(i)).collect();
    let body = step.graph.subgraph(&shapes, |values| {
        let (inputs, cotangents) = values.split_at(count);
        let outputs = kernel.decompose(inputs);
        let seeds = used.iter().zip(cotangents);
        let seeds = seeds.map(|(&output, seed)| (outputs[output].value(), seed.clone()));
        let wrt: Vec<&Tensor> = wanted.iter().map(|&i| &inputs[i]).collect();
        let found = backpropagate(inputs[0].graph(), &seeds.collect::<Vec<_>>(), &wrt);
        let found = found.into_iter().zip(&wrt);
        found
            .map(|(gradient, x)| gradient.unwrap_or_else(|| x.zeros_like()))
            .collect()
    });
    let mut all = vec![None; count];
    for (i, gradient) in wanted.into_iter().zip(step.graph.inline(&body, &given)) {
        all[i] = Some(gradient);
    }
    all
}

fn unary(op: UnaryOp, step: &Step, g: &Tensor) -> Option<Tensor> {
    let (x, y) = (step.input(0), step.output(0));
    Some(match op {
        UnaryOp::Neg => -g,
        UnaryOp::Abs => g * x.sign(),
        UnaryOp::Exp => g * y,
        // Far below 0 `y + 1` would be 0: `y` is rounded to -1.
        UnaryOp::Expm1 => g * x.exp(),
        UnaryOp::Log => g / x,
        UnaryOp::Log1p => g / (x + 1.0),
        UnaryOp::Sqrt => g * 0.5 / y,
        // In this order nothing overflows that is finite in the end: `y` cubed would.
        UnaryOp::Rsqrt => (g * -0.5 * &y) * y.square(),
        UnaryOp::Tanh => g * (1.0 - y.square()),
        UnaryOp::Logistic => g * (&y * (1.0 - &y)),
        UnaryOp::Erf => g * ((-x.square()).exp() * std::f64::consts::FRAC_2_SQRT_PI),
        UnaryOp::Sin => g * x.cos(),
        UnaryOp::Cos => -(g * x.sin()),
        UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => return None,
        UnaryOp::Not | UnaryOp::IsFinite => return None,
    })
}

fn binary(op: BinaryOp, step: &Step, g: &Tensor) -> Vec<Option<Tensor>> {
    let (a, b) = (step.input(0), step.input(1));
    let (first, second) = match op {
        BinaryOp::Add => (step.when(0, || g.clone()), step.when(1, || g.clone())),
        BinaryOp::Sub => (step.when(0, || g.clone()), step.when(1, || -g)),
        BinaryOp::Mul => (step.when(0, || g * &b), step.when(1, || g * &a)),
        BinaryOp::Div => (
            step.when(0, || g / &b),
            step.when(1, || -(g * step.output(0) / &b)),
        ),
        BinaryOp::Pow => (
            step.when(0, || g * pow_base(&a, &b)),
            step.when(1, || g * pow_exponent(&a, &step.output(0))),
        ),
        BinaryOp::Rem => (
            step.when(0, || g.clone()),
            // The whole quotient by the remainder itself: of a / b, rounded, the whole part may be the next.
            step.when(1, || -(g * ((&a - &step.output(0)) / &b).round())),
        ),
        BinaryOp::Max => winner(step, g, &a.greater(&b)),
        BinaryOp::Min => winner(step, g, &a.less(&b)),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => (None, None),
        BinaryOp::ShiftLeft | BinaryOp::ShiftRight => (None, None),
    };
    vec![first, second]
}

fn winner(step: &Step, g: &Tensor, first_wins: &Tensor) -> (Option<Tensor>, Option<Tensor>) {
    let zero = g.like(0.0);
    (
        step.when(0, || first_wins.select(g, &zero)),
        step.when(1, || first_wins.select(&zero, g)),
    )
}

/// `b a^(b-1)`, 0 where `b` is 0 even where `1 / a` is not finite. Elsewhere the exponent stays what it is, for derivatives of this.
fn pow_base(a: &Tensor, b: &Tensor) -> Tensor {
    let finite = (a.like(1.0) / a).is_finite();
    let undefined = b.equal(&b.like(0.0)).and(&finite.not());
    let exponent = undefined.select(&b.like(1.0), b) - 1.0;
    b * a.pow(&exponent)
}

/// `a^b log(a)`, 0 where `a` is not positive, as TensorFlow has it.
fn pow_exponent(a: &Tensor, y: &Tensor) -> Tensor {
    let positive = a.greater(&a.like(0.0));
    let log = positive.select(a, &a.like(1.0)).log();
    y * positive.select(&log, &a.like(0.0))
}

fn select(step: &Step, g: &Tensor) -> Vec<Option<Tensor>> {
    let condition = step.input(0);
    let zero = g.like(0.0);
    vec![
        None,
        step.when(1, || condition.select(g, &zero)),
        step.when(2, || condition.select(&zero, g)),
    ]
}

fn inverse(perm: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; perm.len()];
    for (i, &dim) in perm.iter().enumerate() {
        inverse[dim] = i;
    }
    inverse
}

/// Sums over the dims that a broadcast added or stretched.
fn unbroadcast(g: &Tensor, dims: &[usize], map: &[usize]) -> Tensor {
    let own = g.dims();
    let kept = |dim: &usize| {
        let source = map.iter().position(|to| to == dim);
        source.is_some_and(|from| dims[from] == own[*dim])
    };
    let summed: Vec<usize> = (0..own.len()).filter(|dim| !kept(dim)).collect();
    let sum = sum_behind_batch_norm(g, &summed).unwrap_or_else(|| g.sum(&summed));
    sum.reshape(dims)
}

/// The sum over all dims but the last of the gradient of what a batch normalization takes: 0, for what is added to a whole channel goes
/// with its mean. So a bias before it is not trained, where rounding would move it, and one pass over the activations less is made. The
/// terms keep what is not a number.
fn sum_behind_batch_norm(g: &Tensor, summed: &[usize]) -> Option<Tensor> {
    let Value { node, output: 0 } = g.value() else {
        return None;
    };
    let Op::Kernel(Kernel::BatchNormGradient { .. }) = g.graph().node(node).op else {
        return None;
    };
    let others = 0..g.rank() - 1;
    let term = |output| Tensor::new(g.graph().clone(), Value { node, output });
    others
        .eq(summed.iter().copied())
        .then(|| ((term(1) + term(2)) * 0.0).convert(g.dtype()))
}

fn pad(step: &Step, g: &Tensor, pads: &[PadDim]) -> Vec<Option<Tensor>> {
    let dims = step.input(0).dims();
    let inner = unpad(g, &dims, pads);
    let value = step.when(1, || g.sum_all() - inner.sum_all());
    vec![Some(inner), value]
}

/// Undoes a padding: the elements that came from the padded tensor, zeros where they were cut.
fn unpad(g: &Tensor, dims: &[usize], pads: &[PadDim]) -> Tensor {
    if dims.contains(&0) {
        return g.like(0.0).broadcast_to(dims);
    }
    let edges: Vec<PadDim> = pads
        .iter()
        .map(|pad| PadDim {
            low: -pad.low,
            high: -pad.high,
            interior: 0,
        })
        .collect();
    let limit = |n: usize, interior: usize| (n - 1) * (interior + 1) + 1;
    let strides: Vec<SliceDim> = dims
        .iter()
        .zip(pads)
        .map(|(&n, pad)| SliceDim {
            start: 0,
            limit: limit(n, pad.interior),
            stride: pad.interior + 1,
        })
        .collect();
    let uncut = if edges.iter().all(|edge| edge.low == 0 && edge.high == 0) {
        g.clone()
    } else {
        g.pad(&edges, 0.0)
    };
    if pads.iter().all(|pad| pad.interior == 0) {
        return uncut;
    }
    uncut.slice(&strides)
}

/// Puts a slice back in its place among zeros.
fn unslice(g: &Tensor, dims: &[usize], slices: &[SliceDim]) -> Tensor {
    let own = g.dims();
    if own.contains(&0) {
        return g.like(0.0).broadcast_to(dims);
    }
    let pads = slices
        .iter()
        .zip(&own)
        .zip(dims)
        .map(|((slice, &count), &size)| {
            let end = slice.start + (count - 1) * slice.stride + 1;
            PadDim {
                low: slice.start as i64,
                high: size as i64 - end as i64,
                interior: slice.stride - 1,
            }
        });
    g.pad(&pads.collect::<Vec<_>>(), 0.0)
}

fn dynamic_slice(step: &Step, g: &Tensor) -> Vec<Option<Tensor>> {
    let starts: Vec<Tensor> = (1..step.node.inputs.len()).map(|i| step.input(i)).collect();
    let starts: Vec<&Tensor> = starts.iter().collect();
    let whole = step.input(0).zeros_like().dynamic_update_slice(g, &starts);
    let mut inputs = vec![None; step.node.inputs.len()];
    inputs[0] = Some(whole);
    inputs
}

fn dynamic_update_slice(step: &Step, g: &Tensor) -> Vec<Option<Tensor>> {
    let starts: Vec<Tensor> = (2..step.node.inputs.len()).map(|i| step.input(i)).collect();
    let starts: Vec<&Tensor> = starts.iter().collect();
    let update = step.input(1);
    let mut inputs = vec![None; step.node.inputs.len()];
    inputs[0] = step.when(0, || g.dynamic_update_slice(&update.zeros_like(), &starts));
    inputs[1] = step.when(1, || g.dynamic_slice(&starts, &update.dims()));
    inputs
}

fn concat(step: &Step, g: &Tensor, dim: usize) -> Vec<Option<Tensor>> {
    let mut start = 0;
    let parts = (0..step.node.inputs.len()).map(|i| {
        let limit = start + step.input(i).dims()[dim];
        let part = step.when(i, || g.slice_dim(dim, start, limit));
        start = limit;
        part
    });
    parts.collect()
}

fn scatter_add(step: &Step, g: &Tensor, dim: usize) -> Vec<Option<Tensor>> {
    vec![Some(g.clone()), None, scattered_updates(step, g, dim)]
}

/// The rows that were replaced have no gradient in the base.
fn scatter_set(step: &Step, g: &Tensor, dim: usize) -> Vec<Option<Tensor>> {
    let base = step.when(0, || {
        let zeros = step.input(2).like(0.0).broadcast_to(&step.input(2).dims());
        g.scatter_set(&step.input(1), &zeros, dim)
    });
    vec![base, None, scattered_updates(step, g, dim)]
}

/// The gradient of the rows that a scatter adds or sets.
fn scattered_updates(step: &Step, g: &Tensor, dim: usize) -> Option<Tensor> {
    let indices = step.input(1);
    step.when(2, || {
        let picked = g.gather(&indices, dim);
        // Scatter dropped what was out of range, gather clamps it: mask.
        let size = indices.like(g.dims()[dim] as f64);
        let inside = indices
            .greater_equal(&indices.like(0.0))
            .and(&indices.less(&size));
        let map: Vec<usize> = (dim..dim + indices.rank()).collect();
        let inside = inside.broadcast_in(&picked.dims(), &map);
        inside.select(&picked, &picked.like(0.0))
    })
}

/// One exchange of the cotangents that there are.
fn all_reduce(step: &Step, via: Via) -> Vec<Option<Tensor>> {
    let mut gradients = step.cotangents.clone();
    for (i, gradient) in gradients.iter_mut().enumerate() {
        *gradient = gradient.take().filter(|_| step.wants(i));
    }
    let found: Vec<&Tensor> = gradients.iter().flatten().collect();
    let sums = step.graph.all_reduce(&found, ReduceOp::Sum, via);
    for (gradient, sum) in gradients.iter_mut().flatten().zip(sums) {
        *gradient = sum;
    }
    gradients
}

fn swapped(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    pairs.iter().map(|&(from, to)| (to, from)).collect()
}

/// 1 where two tensors compare so, else 0, in the element type of the first.
fn indicator(op: CompareOp, a: &Tensor, b: &Tensor) -> Tensor {
    a.graph().push(Op::Compare(op), &[a, b]).convert(a.dtype())
}
