//! Joins what follows a kernel to the kernel: bias, residual, rectifier, selection. Each saves a pass over memory.
//!
//! Done after derivatives: their masks compare the rectified value instead, which is positive, or below the ceiling,
//! exactly where the value before was.

use std::sync::Arc;

use crate::op::{BinaryOp, CompareOp, ConvDims, Node, Op, Subgraph, Value};
use crate::{DType, FusedActivation, HostTensor, Kernel, Mask, Program, Shape};

impl Program {
    /// The same function with fewer passes over memory, for devices that have the kernels.
    #[must_use]
    pub(crate) fn fused(&self) -> Self {
        let outputs = self.outputs.iter().map(|(_, value)| *value);
        let (nodes, values) = fused(&self.nodes, outputs.collect());
        let mut parameters = self.parameters.clone();
        for (place, node) in nodes.iter().enumerate() {
            if let Op::Parameter(index) = node.op {
                parameters[index].node = place;
            }
        }
        let names = self.outputs.iter().map(|(name, _)| name.clone());
        Self {
            nodes,
            parameters,
            outputs: names.zip(values).collect(),
            ..self.clone()
        }
    }
}

/// The nodes that make `outputs` with fewer passes, and where these are among them.
fn fused(nodes: &[Node], outputs: Vec<Value>) -> (Vec<Node>, Vec<Value>) {
    let mut fuser = Fuser {
        nodes: nodes.to_vec(),
        outputs,
        gone: vec![false; nodes.len()],
    };
    for index in 0..fuser.nodes.len() {
        fuser.join(index);
    }
    for index in 0..fuser.nodes.len() {
        fuser.join_mask(index);
    }
    for index in 0..fuser.nodes.len() {
        fuser.join_selection(index);
    }
    fuser.in_order()
}

struct Fuser {
    nodes: Vec<Node>,
    outputs: Vec<Value>,
    /// Nodes that something else stands for now.
    gone: Vec<bool>,
}

impl Fuser {
    fn join(&mut self, index: usize) {
        match &self.nodes[index].op {
            Op::Conv(_) => {
                if let Some(sum) = self.join_bias(index)
                    && self.nodes[sum].shapes[0].dtype == DType::F32
                {
                    let sum = self.join_residual(sum).unwrap_or(sum);
                    self.join_activation(sum);
                }
            }
            Op::Kernel(Kernel::BatchNorm {
                activation: FusedActivation::None,
                ..
            }) if self.nodes[index].inputs.len() == 3 => {
                let index = self.join_residual(index).unwrap_or(index);
                self.join_activation(index);
            }
            Op::Case(branches) => {
                let branches = branches.iter().map(|branch| {
                    let (nodes, outputs) = fused(&branch.nodes, branch.outputs.clone());
                    let parameters = branch.parameters.clone();
                    Arc::new(Subgraph {
                        nodes,
                        parameters,
                        outputs,
                    })
                });
                self.nodes[index].op = Op::Case(branches.collect());
            }
            _ => {}
        }
    }

    /// `conv + broadcast(bias)`, when the sum is the only use of the convolution.
    fn join_bias(&mut self, index: usize) -> Option<usize> {
        let (dims, sum, bias) = self.bias_of(index)?;
        let activation = FusedActivation::None;
        self.nodes[sum].op = Op::Kernel(Kernel::ConvBias { dims, activation });
        self.nodes[sum].inputs = self.nodes[index].inputs.clone();
        self.nodes[sum].inputs.push(bias);
        self.gone[index] = true;
        Some(sum)
    }

    fn bias_of(&self, index: usize) -> Option<(ConvDims, usize, Value)> {
        let Op::Conv(dims) = &self.nodes[index].op else {
            return None;
        };
        let (sum, other) = self.only_sum(index)?;
        let Op::Broadcast { map, .. } = &self.nodes[other.node].op else {
            return None;
        };
        let bias = self.nodes[other.node].inputs[0];
        let channels = self.nodes[index].shapes[0].dims[dims.output.feature];
        let fits = *map == [dims.output.feature]
            && self.nodes[bias.node].shapes[bias.output].dims == [channels];
        fits.then(|| (dims.clone(), sum, bias))
    }

    /// A kernel's first result and a residual, when the sum is the only use of the former. What a broadcast repeats would have to be
    /// written for it.
    fn join_residual(&mut self, index: usize) -> Option<usize> {
        let (sum, other) = self.only_sum(index)?;
        let is_repeated = matches!(self.nodes[other.node].op, Op::Broadcast { .. });
        if is_repeated || self.depends(other, index) {
            return None;
        }
        let node = self.nodes[index].clone();
        let mut inputs = node.inputs.clone();
        inputs.push(other);
        self.nodes[sum].op = node.op;
        self.nodes[sum].inputs = inputs;
        self.nodes[sum].shapes = node.shapes;
        for output in 1..self.nodes[sum].shapes.len() {
            let from = Value {
                node: index,
                output,
            };
            self.replace(from, Value { node: sum, output });
        }
        self.gone[index] = true;
        Some(sum)
    }

    /// The rectifier of a kernel's first result, when all other uses ask only where it holds.
    fn join_activation(&mut self, index: usize) {
        let y = Value {
            node: index,
            output: 0,
        };
        if let Some((top, _)) = self.only_bound(y, BinaryOp::Max, CompareOp::Gt, None) {
            self.set_activation(index, FusedActivation::Relu);
            self.replace(top, y);
            if let Some((clipped, ceiling)) =
                self.only_bound(y, BinaryOp::Min, CompareOp::Lt, Some(CompareOp::Gt))
            {
                self.set_activation(index, FusedActivation::Clipped(ceiling));
                self.replace(clipped, y);
            }
        }
    }

    /// The selection of a cotangent by the activation of the normalization that it belongs to.
    fn join_mask(&mut self, index: usize) {
        let Some((mask, cotangent, by)) = self.mask_of(index) else {
            return;
        };
        let masked = self.nodes[index].inputs[0];
        if let Op::Kernel(Kernel::BatchNormGradient { mask: own, .. }) = &mut self.nodes[index].op {
            *own = mask;
        }
        let node = &mut self.nodes[index];
        node.inputs[0] = cotangent;
        node.inputs.push(by);
        if mask == Mask::Output {
            node.shapes.push(node.shapes[0].clone());
            self.replace(
                masked,
                Value {
                    node: index,
                    output: 3,
                },
            );
        }
    }

    /// The mask, the cotangent before it, and what the kernel finds it by.
    fn mask_of(&self, index: usize) -> Option<(Mask, Value, Value)> {
        let Op::Kernel(Kernel::BatchNormGradient {
            mask: Mask::None, ..
        }) = self.nodes[index].op
        else {
            return None;
        };
        let masked = self.nodes[index].inputs[0];
        let forward = self.nodes[index].inputs[2].node;
        let Op::Kernel(Kernel::BatchNorm { activation, .. }) = self.nodes[forward].op else {
            return None;
        };
        let y = Value {
            node: forward,
            output: 0,
        };
        let below = self.selected(masked, CompareOp::Gt, y, 0.0)?;
        let residual = self.nodes[forward].inputs.len() == 4;
        let alone = |value| self.uses(value).is_some_and(|uses| uses.len() == 1);
        match activation {
            FusedActivation::Relu if residual => {
                self.uses(masked).map(|_| (Mask::Output, below, y))
            }
            FusedActivation::Relu if alone(masked) => {
                Some((Mask::Beta(activation), below, self.nodes[forward].inputs[2]))
            }
            FusedActivation::Clipped(ceiling) if !residual && alone(masked) && alone(below) => {
                let cotangent = self.selected(below, CompareOp::Lt, y, ceiling)?;
                Some((
                    Mask::Beta(activation),
                    cotangent,
                    self.nodes[forward].inputs[2],
                ))
            }
            FusedActivation::None | FusedActivation::Relu | FusedActivation::Clipped(_) => None,
        }
    }

    /// The selection of a gradient by where a value is positive: the convolution's kernel takes that value along, both in f32. The gradient of a
    /// pooling of that value goes to the largest elements of windows, so that it is selected by these, before.
    fn join_selection(&mut self, index: usize) {
        let Some((gradient, y)) = self.positive(index) else {
            return;
        };
        let dtype = |value: Value| self.nodes[value.node].shapes[value.output].dtype;
        let are_f32 = [gradient, y].map(dtype) == [DType::F32; 2];
        let Node { op, inputs, .. } = &self.nodes[gradient.node];
        match (op, &inputs[..]) {
            (Op::Kernel(Kernel::ConvInputGradient { .. }), [_, _]) if are_f32 => {
                self.nodes[gradient.node].inputs.push(y);
            }
            (Op::Kernel(Kernel::MaxPool2dGradient { .. }), &[place, cotangent])
                if self.pools(place.node, y) =>
            {
                let largest = Value { output: 0, ..place };
                let chosen = self.where_positive(index, largest, cotangent);
                self.nodes[gradient.node].inputs[1] = chosen;
            }
            _ => return,
        }
        let selected = Value {
            node: index,
            output: 0,
        };
        self.replace(selected, gradient);
    }

    /// Whether a node is a maximum pooling of a value.
    fn pools(&self, node: usize, x: Value) -> bool {
        let node = &self.nodes[node];
        matches!(node.op, Op::Kernel(Kernel::MaxPool2d(_))) && node.inputs[..] == [x]
    }

    /// `a` and `y` of `select(y > 0, a, 0)`, when it is the only use of `a`.
    fn positive(&self, index: usize) -> Option<(Value, Value)> {
        let [condition, ..] = self.nodes[index].inputs[..] else {
            return None;
        };
        let y = *self.nodes[condition.node].inputs.first()?;
        let selection = Value {
            node: index,
            output: 0,
        };
        let chosen = self.selected(selection, CompareOp::Gt, y, 0.0)?;
        (self.uses(chosen)? == [index]).then_some((chosen, y))
    }

    /// `select(y > 0, chosen, 0)`, in the place of the selection at `like`.
    fn where_positive(&mut self, like: usize, y: Value, chosen: Value) -> Value {
        let shape = self.nodes[y.node].shapes[y.output].clone();
        let scalar = Shape::scalar(shape.dtype);
        let mut add = |op, inputs: &[Value], shape| {
            self.nodes.push(Node {
                op,
                inputs: inputs.to_vec(),
                shapes: vec![shape],
                ..self.nodes[like].clone()
            });
            self.gone.push(false);
            Value {
                node: self.nodes.len() - 1,
                output: 0,
            }
        };
        let zero = add(Op::Constant(HostTensor::zeros(scalar.clone())), &[], scalar);
        let (dims, map) = (shape.dims.clone(), Vec::new());
        let zeros = add(Op::Broadcast { dims, map }, &[zero], shape.clone());
        let positive = shape.with_dtype(DType::Bool);
        let positive = add(Op::Compare(CompareOp::Gt), &[y, zeros], positive);
        add(Op::Select, &[positive, chosen, zeros], shape)
    }

    /// `a` of `select(compare(y, bound), a, 0)`.
    fn selected(&self, value: Value, kind: CompareOp, y: Value, bound: f64) -> Option<Value> {
        let node = &self.nodes[value.node];
        let [condition, chosen, zero] = node.inputs[..] else {
            return None;
        };
        let compare = &self.nodes[condition.node];
        let fits = node.op == Op::Select
            && compare.op == Op::Compare(kind)
            && compare.inputs[0] == y
            && self.splat(compare.inputs[1]) == Some(bound)
            && self.splat(zero) == Some(0.0);
        fits.then_some(chosen)
    }

    fn set_activation(&mut self, index: usize, new: FusedActivation) {
        if let Op::Kernel(
            Kernel::BatchNorm { activation, .. } | Kernel::ConvBias { activation, .. },
        ) = &mut self.nodes[index].op
        {
            *activation = new;
        }
    }

    /// The one `op(y, bound)` among the uses of `y`, when the others are comparisons `mask(y, bound)`, or, where a kind
    /// is given, comparisons of that kind with 0. The bound of a maximum is 0.
    fn only_bound(
        &self,
        y: Value,
        op: BinaryOp,
        mask: CompareOp,
        with_zero: Option<CompareOp>,
    ) -> Option<(Value, f64)> {
        let uses = self.uses(y)?;
        let is_bound = |&&at: &&usize| self.nodes[at].op == Op::Binary(op);
        let mut found = uses.iter().filter(is_bound);
        let (at, more) = (*found.next()?, found.next());
        let bound = self.splat(self.other(at, y)?)?;
        let fits = if op == BinaryOp::Max {
            bound == 0.0
        } else {
            bound > 0.0
        };
        if more.is_some() || !fits {
            return None;
        }
        let compares = |at: usize| {
            let node = &self.nodes[at];
            let [first, second] = node.inputs[..] else {
                return None;
            };
            let with = self.splat(second).filter(|_| first == y)?;
            let same = node.op == Op::Compare(mask) && with == bound;
            let zero = with_zero.is_some_and(|kind| node.op == Op::Compare(kind) && with == 0.0);
            (same || zero).then_some(())
        };
        let others = uses.iter().filter(|&&user| user != at);
        let all = others
            .map(|&user| compares(user))
            .collect::<Option<Vec<()>>>();
        all.map(|_| {
            (
                Value {
                    node: at,
                    output: 0,
                },
                bound,
            )
        })
    }

    /// The sum that is the only use of a node's first result, and its other operand, of the same shape.
    fn only_sum(&self, index: usize) -> Option<(usize, Value)> {
        let y = Value {
            node: index,
            output: 0,
        };
        let [user] = self.uses(y)?[..] else {
            return None;
        };
        let sum = self.nodes[user].op == Op::Binary(BinaryOp::Add);
        let other = self.other(user, y)?;
        (sum && other != y).then_some((user, other))
    }

    /// The nodes that use a value, unless the program returns it.
    fn uses(&self, value: Value) -> Option<Vec<usize>> {
        let users = self.nodes.iter().enumerate();
        let users =
            users.filter(|(index, node)| !self.gone[*index] && node.inputs.contains(&value));
        (!self.outputs.contains(&value)).then(|| users.map(|(index, _)| index).collect())
    }

    fn other(&self, user: usize, value: Value) -> Option<Value> {
        match self.nodes[user].inputs[..] {
            [a, b] if a == value => Some(b),
            [a, b] if b == value => Some(a),
            _ => None,
        }
    }

    /// The number that a value repeats.
    fn splat(&self, value: Value) -> Option<f64> {
        let node = &self.nodes[value.node];
        match &node.op {
            Op::Constant(number) if number.dims().is_empty() => Some(number.to_f64()[0]),
            Op::Broadcast { .. } => self.splat(node.inputs[0]),
            _ => None,
        }
    }

    fn depends(&self, value: Value, on: usize) -> bool {
        let mut seen = vec![false; self.nodes.len()];
        let mut open = vec![value.node];
        while let Some(index) = open.pop() {
            if index == on {
                return true;
            }
            if !std::mem::replace(&mut seen[index], true) {
                open.extend(self.nodes[index].inputs.iter().map(|value| value.node));
            }
        }
        false
    }

    /// Puts one value in the place of another, whose node goes when it has no other result.
    fn replace(&mut self, from: Value, to: Value) {
        self.gone[from.node] |= self.nodes[from.node].shapes.len() == 1;
        let inputs = self.nodes.iter_mut().flat_map(|node| &mut node.inputs);
        for value in inputs
            .chain(&mut self.outputs)
            .filter(|value| **value == from)
        {
            *value = to;
        }
    }

    /// The nodes in an order in which operands come first, for a fused one has operands that came after its first part.
    fn in_order(self) -> (Vec<Node>, Vec<Value>) {
        let order = self.order();
        let mut places = vec![usize::MAX; self.nodes.len()];
        for (place, &index) in order.iter().enumerate() {
            places[index] = place;
        }
        let moved = |value: &Value| Value {
            node: places[value.node],
            output: value.output,
        };
        let node = |&index: &usize| {
            let node = &self.nodes[index];
            let inputs = node.inputs.iter().map(moved).collect();
            Node {
                inputs,
                ..node.clone()
            }
        };
        let nodes = order.iter().map(node).collect();
        (nodes, self.outputs.iter().map(moved).collect())
    }

    /// What outputs need, operands first, and else as it was.
    fn order(&self) -> Vec<usize> {
        let mut done = vec![false; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        let live = super::live(&self.nodes, &self.outputs);
        for root in (0..self.nodes.len()).filter(|&index| live[index]) {
            let mut path = vec![root];
            while let Some(&index) = path.last() {
                let waits = self.nodes[index].inputs.iter().map(|value| value.node);
                let waits: Vec<usize> = waits.filter(|&node| !done[node]).collect();
                if done[index] || waits.is_empty() {
                    path.pop();
                    if !std::mem::replace(&mut done[index], true) {
                        order.push(index);
                    }
                } else {
                    path.extend(waits);
                }
            }
        }
        order
    }
}
