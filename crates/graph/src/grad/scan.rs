//! The derivative of a scan is a scan in the other direction over what the first one saved.
//!
//! Products weigh most in a step, so as few as possible stay in the reverse loop. Those of the forward step are saved
//! and not repeated; and where the gradient of a constant is a sum over steps of products, as for a recurrent
//! kernel is, the factors are stacked and multiplied once behind the loop.

use std::collections::HashMap;

use super::{Gradients, Step, backpropagate, lets_gradients_pass};
use crate::op::{BinaryOp, DotDims, Op, ReduceOp, ScanDims, Subgraph, Value};
use crate::simplify::is_root;
use crate::{Graph, Shape, Tensor};

/// What the reverse loop reads, and which parts of it have a gradient.
struct Roles {
    /// Rows of the carried values at the start of each step, `[length, ..]`.
    carries: Vec<Tensor>,
    xs: Vec<Tensor>,
    constants: Vec<Tensor>,
    /// Rows of the products that a forward step computes, and their values in its body.
    products: Vec<(Tensor, Value)>,
    /// The outputs with rows that have a cotangent, and it.
    ys: Vec<(usize, Tensor)>,
}

pub(super) fn scan(step: &Step, dims: &ScanDims) -> Gradients {
    // A step is computed again on the way back, and so would act again.
    if is_root(&step.node.op) {
        return Err("a scan whose steps have side effects has no derivative; make the calls behind it, on the rows that it gives".into());
    }
    let input = |range: std::ops::Range<usize>| range.map(|i| step.input(i)).collect();
    let (carry, xs, all) = (dims.carry, dims.xs, step.node.inputs.len());
    let products = products(dims);
    let with_rows = |&j: &usize| step.output(j).dtype().is_float();
    let ys = (carry..step.node.shapes.len()).filter(with_rows);
    let roles = Roles {
        carries: step.graph.save_rows(step.index, &carried(dims)),
        xs: input(carry..carry + xs),
        constants: input(carry + xs..all),
        products: (step.graph.save_rows(step.index, &products).into_iter())
            .zip(products)
            .collect(),
        ys: ys
            .filter_map(|j| Some((j, step.cotangents[j].clone()?)))
            .collect(),
    };
    let gradient = reversed(step, dims, &roles);
    Ok((0..all)
        .map(|i| gradient(i).filter(|_| step.wants(i)))
        .collect())
}

/// The carried values at the start of a step.
fn carried(dims: &ScanDims) -> Vec<Value> {
    let mut places = vec![Value { node: 0, output: 0 }; dims.carry];
    for (node, at) in dims.body.nodes.iter().zip(0..) {
        if let Op::Parameter(index) = node.op
            && index < dims.carry
        {
            places[index].node = at;
        }
    }
    places
}

/// Products of a step that cost more to repeat than to keep: an element of one over `k` terms is `2 k` operations, an
/// element kept a write and a read. The same steps one after another, without a loop, would keep them all.
fn products(dims: &ScanDims) -> Vec<Value> {
    const TERMS: usize = 8;
    let body = &dims.body;
    let mut varies: Vec<bool> = Vec::with_capacity(body.nodes.len());
    let mut found = Vec::new();
    for (at, node) in body.nodes.iter().enumerate() {
        varies.push(match node.op {
            Op::Parameter(index) => index < dims.carry + dims.xs,
            _ => node.inputs.iter().any(|input| varies[input.node]),
        });
        if let Op::Dot(dot) = &node.op {
            let lhs = &body.shape(node.inputs[0]).dims;
            let terms: usize = dot.lhs_contract.iter().map(|&dim| lhs[dim]).product();
            let value = Value {
                node: at,
                output: 0,
            };
            found.extend((varies[at] && terms >= TERMS).then_some(value));
        }
    }
    found
}

fn floats(tensors: &[Tensor]) -> Vec<usize> {
    let is_float = |i: &usize| tensors[*i].dtype().is_float();
    (0..tensors.len()).filter(is_float).collect()
}

/// Runs the reversed loop; the result maps a wanted input of the forward loop to its gradient.
fn reversed(step: &Step, dims: &ScanDims, roles: &Roles) -> impl Fn(usize) -> Option<Tensor> {
    let carries = with_gradients(step, dims, roles);
    let wanted = |list: &[Tensor], first: usize| {
        let mut places = floats(list);
        places.retain(|&i| step.wants(first + i));
        places
    };
    let xs = wanted(&roles.xs, dims.carry);
    let constants = wanted(&roles.constants, dims.carry + dims.xs);
    let initial: Vec<Tensor> = carries.iter().map(|&i| step.cotangent(i)).collect();
    let wanted = [&carries, &xs, &constants];
    let back = Back::new(step.graph, dims, roles, &initial, wanted);
    let found = back.run(step.graph, dims, &initial);

    let (carry, rows) = (dims.carry, dims.xs);
    move |input| {
        let (list, gradients, first) = match input {
            input if input < carry => (&carries, &found.carries, 0),
            input if input < carry + rows => (&xs, &found.xs, carry),
            _ => (&constants, &found.constants, carry + rows),
        };
        let place = list.iter().position(|&at| at + first == input)?;
        Some(gradients[place].clone())
    }
}

/// The carried floats that lead to something with a cotangent, in their own step or a later one. A derivative of the others would be 0 times
/// what need not be a number, or of ops that have none.
fn with_gradients(step: &Step, dims: &ScanDims, roles: &Roles) -> Vec<usize> {
    let starts = carried(dims);
    let is_given = |&i: &usize| step.cotangents[i].is_some();
    let mut known: Vec<usize> = (0..dims.carry).filter(is_given).collect();
    loop {
        let ends = known.iter().chain(roles.ys.iter().map(|(j, _)| j));
        let ends = ends.map(|&i| dims.body.outputs[i].node);
        let passes = leading_to(&dims.body, ends);
        let leads = |i: &usize| known.contains(i) || passes[starts[*i].node];
        let more: Vec<usize> = (0..dims.carry).filter(leads).collect();
        if more == known {
            break;
        }
        known = more;
    }
    let floats = floats(&roles.carries);
    known.retain(|i| floats.contains(i));
    known
}

/// Whether a gradient comes to each node from one of these.
fn leading_to(body: &Subgraph, ends: impl Iterator<Item = usize>) -> Vec<bool> {
    let mut passes = vec![false; body.nodes.len()];
    ends.for_each(|end| passes[end] = true);
    for (at, node) in body.nodes.iter().enumerate().rev() {
        if passes[at] && lets_gradients_pass(node) {
            node.inputs
                .iter()
                .for_each(|input| passes[input.node] = true);
        }
    }
    passes
}

/// Those of the inputs of the forward loop that are asked for.
struct LoopGradients {
    carries: Vec<Tensor>,
    xs: Vec<Tensor>,
    constants: Vec<Tensor>,
}

/// The derivative of one step: its parameters are the cotangents of the carry, rows, constants, and once more rows, of
/// the products; its outputs are gradients of the carry, of the rows of `xs`, and what the step adds to the constants' gradients.
struct Back {
    body: Subgraph,
    carries: usize,
    xs: usize,
    rows: Vec<Tensor>,
    constants: Vec<Tensor>,
    products: Vec<Tensor>,
}

impl Back {
    fn new(
        graph: &Graph,
        dims: &ScanDims,
        roles: &Roles,
        cotangents: &[Tensor],
        [carries, xs, constants]: [&Vec<usize>; 3],
    ) -> Self {
        let dys = roles.ys.iter().map(|(_, dy)| dy);
        let rows: Vec<Tensor> = (roles.carries.iter().chain(&roles.xs).chain(dys))
            .cloned()
            .collect();
        let shapes: Vec<Shape> = (cotangents.iter().map(Tensor::shape))
            .chain(rows.iter().map(row_shape))
            .chain(roles.constants.iter().map(Tensor::shape))
            .collect();
        let mut forward = (*dims.body).clone();
        forward
            .outputs
            .extend(roles.products.iter().map(|(_, value)| *value));
        let mut products: Vec<Value> = Vec::new();
        let body = graph.subgraph(&shapes, |values| {
            let Some(graph) = values.first().map(Tensor::graph) else {
                return Vec::new();
            };
            let (state, rest) = values.split_at(cotangents.len());
            let (rows, fixed) = rest.split_at(rows.len());
            let (carry, rest) = rows.split_at(roles.carries.len());
            let (x, dy) = rest.split_at(roles.xs.len());
            let outputs = graph.inline(&forward, &[carry, x, fixed].concat());
            let results = dims.body.outputs.len();
            products.extend(outputs[results..].iter().map(Tensor::value));
            let seeds_carry = carries.iter().zip(state);
            let seeds_y = roles.ys.iter().map(|(j, _)| j).zip(dy);
            let seeds: Vec<_> = seeds_carry
                .chain(seeds_y)
                .map(|(&i, cotangent)| (outputs[i].value(), cotangent.clone()))
                .collect();
            let wrt: Vec<&Tensor> = (carries.iter().map(|&i| &carry[i]))
                .chain(xs.iter().map(|&i| &x[i]))
                .chain(constants.iter().map(|&i| &fixed[i]))
                .collect();
            let found = backpropagate(graph, &seeds, &wrt).into_iter().zip(&wrt);
            found
                .map(|(gradient, tensor)| gradient.unwrap_or_else(|| tensor.zeros_like()))
                .collect()
        });
        Self {
            body: reading(&body, &products),
            carries: carries.len(),
            xs: xs.len(),
            rows,
            constants: roles.constants.clone(),
            products: roles
                .products
                .iter()
                .map(|(rows, _)| rows.clone())
                .collect(),
        }
    }

    /// Runs the step in the order opposite to `dims`'.
    fn run(self, graph: &Graph, dims: &ScanDims, cotangents: &[Tensor]) -> LoopGradients {
        let (results, added) = self.body.outputs.split_at(self.carries + self.xs);
        let (next, row_gradients) = results.split_at(self.carries);
        let mut known = self.known_rows();
        let (mut kept, mut stacked) = (Vec::new(), row_gradients.to_vec());
        for &value in added {
            match self.factors_to_stack(value, &known, &stacked) {
                Some(factors) => stacked.extend(factors),
                None => kept.push(value),
            }
        }
        // Sums of 16-bit floats are in f32, as other sums are: they would stop growing after some hundred steps.
        let zero = |&value: &Value| {
            let shape = self.body.shape(value);
            graph.full(&shape.with_dtype(shape.dtype.wide()), 0.0)
        };
        let zeros = kept.iter().map(zero);
        let initial: Vec<Tensor> = cotangents.iter().cloned().chain(zeros).collect();
        let outputs = [next, &kept, &stacked].concat();
        let mut last = self.backwards(graph, dims, &initial, outputs);
        let rows = last.split_off(initial.len());
        let totals = last.split_off(self.carries);
        known.extend(stacked.iter().copied().zip(rows.iter().cloned()));
        let sum = |value: &Value| match kept.iter().position(|at| at == value) {
            Some(place) => totals[place].convert(self.body.shape(*value).dtype),
            None => sum(graph, &self.body, *value, &known),
        };
        LoopGradients {
            carries: last,
            constants: added.iter().map(sum).collect(),
            xs: rows[..self.xs].to_vec(),
        }
    }

    /// The parameters of the step that are rows.
    fn known_rows(&self) -> HashMap<Value, Tensor> {
        let mut parameters: Vec<Option<&Tensor>> = vec![None; self.carries];
        parameters.extend(self.rows.iter().map(Some));
        parameters.extend(vec![None; self.constants.len()]);
        parameters.extend(self.products.iter().map(Some));
        let places = self.body.nodes.iter().enumerate();
        let rows = places.filter_map(|(node, at)| match at.op {
            Op::Parameter(index) => Some((Value { node, output: 0 }, parameters[index]?.clone())),
            _ => None,
        });
        rows.collect()
    }

    /// What has to be stacked, besides what is, for the sum over steps of a value to be computed behind the loop; `None`
    /// when the sum is better carried through it.
    ///
    /// A carried sum is read and written at each step, and takes the memory of one row: new rows may weigh as much as
    /// that traffic. Beyond, at large batches, memory counts, and the product in the loop is large enough to be fast.
    fn factors_to_stack(
        &self,
        value: Value,
        known: &HashMap<Value, Tensor>,
        stacked: &[Value],
    ) -> Option<Vec<Value>> {
        let mut factors = Vec::new();
        if !collect_factors(&self.body, value, &mut factors) {
            return None;
        }
        factors.sort_unstable();
        factors.dedup();
        factors.retain(|factor| !known.contains_key(factor) && !stacked.contains(factor));
        // The same at each step: no row.
        let fixed = |factor: &Value| match self.body.nodes[factor.node].op {
            Op::Parameter(index) => index >= self.carries,
            _ => false,
        };
        if factors.iter().any(fixed) {
            return None;
        }
        let bytes = |value: &Value| self.body.shape(*value).byte_len();
        let new: usize = factors.iter().map(bytes).sum();
        (new <= 2 * bytes(&value)).then_some(factors)
    }

    /// The scan: it has the step's results, the first of them carried; what is behind the carry is added up.
    fn backwards(
        &self,
        graph: &Graph,
        dims: &ScanDims,
        initial: &[Tensor],
        outputs: Vec<Value>,
    ) -> Vec<Tensor> {
        let rows: Vec<&Tensor> = self.rows.iter().chain(&self.products).collect();
        let shapes: Vec<Shape> = (initial.iter().map(Tensor::shape))
            .chain(rows.iter().map(|rows| row_shape(rows)))
            .chain(self.constants.iter().map(Tensor::shape))
            .collect();
        let step = Subgraph {
            outputs,
            ..self.body.clone()
        };
        let body = graph.subgraph(&shapes, |values| {
            let (state, rest) = values.split_at(initial.len());
            let (given, constants) = rest.split_at(rows.len());
            let (given, products) = given.split_at(self.rows.len());
            let (cotangents, sums) = state.split_at(self.carries);
            let Some(first) = values.first() else {
                return Vec::new();
            };
            let inputs = [cotangents, given, constants, products].concat();
            let mut results = first.graph().inline(&step, &inputs);
            for (result, sum) in results[self.carries..].iter_mut().zip(sums) {
                *result = sum + result.convert(sum.dtype());
            }
            results
        });
        let op = Op::Scan(ScanDims {
            body,
            length: dims.length,
            carry: initial.len(),
            xs: rows.len(),
            reverse: !dims.reverse,
        });
        let inputs: Vec<&Tensor> = (initial.iter().chain(rows))
            .chain(&self.constants)
            .collect();
        graph.push_many(op, &inputs)
    }
}

/// The same graph, where more parameters, behind those it has, stand for some values.
fn reading(body: &Subgraph, values: &[Value]) -> Subgraph {
    let mut body = body.clone();
    for value in values {
        let node = &mut body.nodes[value.node];
        node.op = Op::Parameter(body.parameters.len());
        node.inputs.clear();
        body.parameters.push(node.shapes[0].clone());
    }
    body
}

fn row_shape(rows: &Tensor) -> Shape {
    let shape = rows.shape();
    Shape::new(shape.dtype, &shape.dims[1..])
}

/// Finds the values of a step whose rows the sum over steps of `value` can be computed from: the factors of products, and
/// what is reduced to a sum, behind ops that a sum passes through. False where there is anything else.
fn collect_factors(body: &Subgraph, value: Value, found: &mut Vec<Value>) -> bool {
    // A value added to itself again and again has more paths to it than anyone would walk.
    const MOST: usize = 32;
    let node = &body.nodes[value.node];
    if takes_rows(&node.op) {
        found.extend(&node.inputs);
        return found.len() <= MOST;
    }
    let float = |input: &Value| body.shape(*input).dtype.is_float();
    let passes = match node.op {
        Op::Reshape(_) | Op::Transpose(_) | Op::Binary(BinaryOp::Add) => true,
        Op::Convert(_) => node.inputs.iter().all(float),
        _ => false,
    };
    let mut inputs = node.inputs.iter();
    passes && inputs.all(|&input| collect_factors(body, input, found))
}

/// Whether the op can sum over the steps of its operands, too.
const fn takes_rows(op: &Op) -> bool {
    match op {
        Op::Dot(_) => true,
        Op::Reduce { kind, .. } => matches!(kind, ReduceOp::Sum),
        _ => false,
    }
}

/// The sum over steps of `value`, from the rows of its factors.
fn sum(graph: &Graph, body: &Subgraph, value: Value, rows: &HashMap<Value, Tensor>) -> Tensor {
    let node = &body.nodes[value.node];
    let inputs: Vec<Tensor> = match takes_rows(&node.op) {
        true => node
            .inputs
            .iter()
            .map(|factor| rows[factor].clone())
            .collect(),
        false => (node.inputs.iter())
            .map(|&input| sum(graph, body, input, rows))
            .collect(),
    };
    let op = match &node.op {
        Op::Dot(dims) => Op::Dot(over_steps(dims)),
        Op::Reduce { kind, dims } => Op::Reduce {
            kind: *kind,
            dims: [vec![0], behind_steps(dims)].concat(),
        },
        op => op.clone(),
    };
    graph.push(op, &inputs.iter().collect::<Vec<_>>())
}

/// The product of stacked factors, summed over steps.
fn over_steps(dims: &DotDims) -> DotDims {
    DotDims {
        lhs_batch: behind_steps(&dims.lhs_batch),
        rhs_batch: behind_steps(&dims.rhs_batch),
        lhs_contract: [vec![0], behind_steps(&dims.lhs_contract)].concat(),
        rhs_contract: [vec![0], behind_steps(&dims.rhs_contract)].concat(),
        dtype: dims.dtype,
    }
}

/// Where dims of a row are in the stacked rows.
fn behind_steps(dims: &[usize]) -> Vec<usize> {
    dims.iter().map(|dim| dim + 1).collect()
}
