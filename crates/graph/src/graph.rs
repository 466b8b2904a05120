//! Graphs under construction and finished programs.

mod changes;
mod exchange;
mod loops;
mod rematerialization;
mod rows;

use std::cell::RefCell;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) use rematerialization::Region;

use crate::infer::{check_size, infer};
use crate::op::{CustomCall, Node, Op, Subgraph, Value, custom_calls};
use crate::{DType, HostTensor, Mesh, Shape, Sharding, Tensor};

/// A graph under construction; clones are handles of the same graph.
///
/// Building does not return `Result`: the first mistake is kept with the caller's file and line and
/// reported by [`finish`](Self::finish).
#[derive(Clone)]
pub struct Graph(Rc<RefCell<Inner>>);

struct Inner {
    nodes: Vec<Node>,
    parameters: Vec<Parameter>,
    error: Option<GraphError>,
    label: Option<Arc<str>>,
    regions: Vec<Region>,
    replicas: usize,
    workers: usize,
    mesh: Option<Mesh>,
}

/// An input of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name in dumps and errors.
    pub name: String,
    /// What must be given.
    pub shape: Shape,
    /// The node that stands for it.
    pub node: usize,
    /// How it is cut over the program's mesh; whole on every device where absent.
    pub sharding: Option<Sharding>,
}

/// The first mistake made while building a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: {message}{}, at {file}:{line}", in_label(.label))]
pub struct GraphError {
    /// The op that was asked for.
    pub op: String,
    /// What is wrong: expected and got.
    pub message: String,
    /// The layer being built, when there is one.
    pub label: Option<String>,
    /// Source file of the caller.
    pub file: String,
    /// Line of the caller.
    pub line: u32,
}

fn in_label(label: &Option<String>) -> String {
    label
        .as_ref()
        .map_or(String::new(), |label| format!(", in {label}"))
}

/// A finished graph: plain data, ready to be printed as StableHLO.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Nodes in topological order.
    pub nodes: Vec<Node>,
    /// Inputs by position.
    pub parameters: Vec<Parameter>,
    /// Results by position, with their names.
    pub outputs: Vec<(String, Value)>,
    /// How many replicas run the program together, in all processes.
    pub replicas: usize,
    /// How many processes they are divided among, evenly.
    pub workers: usize,
    /// The devices among which the compiler divides the program; all shapes are of whole tensors.
    pub mesh: Option<Mesh>,
    /// How each output is cut over the mesh: as [`Tensor::sharded`] said of it last, or not.
    pub output_shardings: Vec<Sharding>,
    /// `(parameter, output)` pairs that may share memory: the parameter is given up by the caller.
    pub donated: Vec<(usize, usize)>,
}

impl Program {
    /// Shape of a value.
    #[must_use]
    pub fn shape(&self, value: Value) -> &Shape {
        &self.nodes[value.node].shapes[value.output]
    }

    /// The names of the kernels that it calls by [`Op::CustomCall`], those in loops and branches among them.
    #[must_use]
    pub fn custom_calls(&self) -> Vec<&str> {
        custom_calls(&self.nodes)
    }

    /// How many of the replicas run in one process.
    #[must_use]
    pub const fn local_replicas(&self) -> usize {
        self.replicas / self.workers
    }

    /// How many devices of one process run it: its replicas, each divided among the devices of the mesh.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.local_replicas() * self.mesh.as_ref().map_or(1, Mesh::size)
    }
}

impl Parameter {
    /// How it is cut over a mesh.
    #[must_use]
    pub fn sharding(&self) -> Sharding {
        let whole = || Sharding::replicated(self.shape.rank());
        self.sharding.clone().unwrap_or_else(whole)
    }
}

impl Graph {
    /// An empty graph for one replica.
    #[must_use]
    pub fn new() -> Self {
        Self::with_replicas(1)
    }

    /// An empty graph of a program that `replicas` replicas run together.
    #[must_use]
    pub fn with_replicas(replicas: usize) -> Self {
        Self::with_workers(1, replicas)
    }

    /// An empty graph of a program that `local_replicas` replicas in each of `workers` processes run together.
    #[must_use]
    pub fn with_workers(workers: usize, local_replicas: usize) -> Self {
        Self::made(workers.max(1), local_replicas.max(1), None)
    }

    /// An empty graph of a program that the compiler divides among the devices of a mesh: one replica, built as for one
    /// device, on whole tensors. [`parameter_sharded`](Self::parameter_sharded) and [`Tensor::sharded`] say how to cut.
    #[must_use]
    #[track_caller]
    pub fn with_mesh(mesh: &Mesh) -> Self {
        let graph = Self::made(1, 1, Some(mesh.clone()));
        if let Err(message) = mesh.check() {
            graph.fail("mesh", message);
        }
        graph
    }

    fn made(workers: usize, local_replicas: usize, mesh: Option<Mesh>) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            nodes: Vec::new(),
            parameters: Vec::new(),
            error: None,
            label: None,
            regions: Vec::new(),
            replicas: workers * local_replicas,
            workers,
            mesh,
        })))
    }

    /// The devices among which the program is divided, if it is.
    #[must_use]
    pub fn mesh(&self) -> Option<Mesh> {
        self.0.borrow().mesh.clone()
    }

    /// How many replicas run the program together, in all processes.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.0.borrow().replicas
    }

    /// How many processes the replicas are divided among.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.0.borrow().workers
    }

    /// Adds an input.
    #[must_use]
    #[track_caller]
    pub fn parameter(&self, name: &str, shape: Shape) -> Tensor {
        if let Err(message) = check_size(&shape) {
            self.fail("parameter", format!("`{name}`: {message}"));
        }
        let mut inner = self.0.borrow_mut();
        let (index, node) = (inner.parameters.len(), inner.nodes.len());
        inner.parameters.push(Parameter {
            name: name.to_owned(),
            shape: shape.clone(),
            node,
            sharding: None,
        });
        drop(inner);
        self.declare(Op::Parameter(index), shape)
    }

    /// Adds an input that is cut over the mesh; without a mesh, any input.
    #[must_use]
    #[track_caller]
    pub fn parameter_sharded(&self, name: &str, shape: Shape, sharding: &Sharding) -> Tensor {
        let checked = self.mesh().map(|mesh| sharding.check(&shape, &mesh));
        if let Some(Err(message)) = &checked {
            self.fail("parameter", format!("`{name}`: {message}"));
        }
        let tensor = self.parameter(name, shape);
        if checked.is_some() {
            let mut inner = self.0.borrow_mut();
            if let Some(parameter) = inner.parameters.last_mut() {
                parameter.sharding = Some(sharding.clone());
            }
        }
        tensor
    }

    /// A literal.
    #[must_use]
    #[track_caller]
    pub fn constant(&self, value: HostTensor) -> Tensor {
        let shape = value.shape().clone();
        self.declare(Op::Constant(value), shape)
    }

    /// A scalar literal, converted to the element type.
    #[must_use]
    #[track_caller]
    pub fn scalar(&self, dtype: DType, value: f64) -> Tensor {
        self.constant(HostTensor::full(Shape::scalar(dtype), value))
    }

    /// A tensor of one repeated number.
    #[must_use]
    #[track_caller]
    pub fn full(&self, shape: &Shape, value: f64) -> Tensor {
        self.scalar(shape.dtype, value).broadcast_to(&shape.dims)
    }

    /// Counts 0, 1, .. along `dim`, repeated over the other dims.
    #[must_use]
    #[track_caller]
    pub fn iota(&self, shape: Shape, dim: usize) -> Tensor {
        if dim >= shape.rank() {
            let message = format!("dim {dim} of {shape}, which has rank {}", shape.rank());
            self.fail("iota", message);
        } else if shape.dtype == DType::Bool {
            self.fail(
                "iota",
                format!("expected numbers, got {shape}; convert after"),
            );
        } else if let Err(message) = check_size(&shape) {
            self.fail("iota", message);
        }
        self.declare(Op::Iota(dim), shape)
    }

    /// u32 hashes of counters: element `(i, j..)` of the result depends only on `key` (`u32[2]`),
    /// `first_row + i` and the flat index of `j..`, so a batch may be cut anywhere between its rows.
    #[must_use]
    #[track_caller]
    pub fn random_bits(&self, key: &Tensor, first_row: &Tensor, dims: &[usize]) -> Tensor {
        self.push(Op::RandomBits(dims.to_vec()), &[key, first_row])
    }

    /// Calls a kernel registered with the engine.
    #[must_use]
    #[track_caller]
    pub fn custom_call(&self, call: CustomCall, inputs: &[&Tensor]) -> Vec<Tensor> {
        self.push_many(Op::CustomCall(call), inputs)
    }

    /// Names the layer that nodes built by `build` belong to, in dumps and errors.
    pub fn labelled<T>(&self, label: &str, build: impl FnOnce() -> T) -> T {
        let outer = {
            let mut inner = self.0.borrow_mut();
            let outer = inner.label.clone();
            let path = outer
                .as_ref()
                .map_or_else(|| label.to_owned(), |o| format!("{o}/{label}"));
            inner.label = Some(path.into());
            outer
        };
        let result = build();
        self.0.borrow_mut().label = outer;
        result
    }

    /// Records a mistake found outside the primitives; only the first is kept.
    #[track_caller]
    pub fn fail(&self, op: &str, message: String) {
        let location = Location::caller();
        let mut inner = self.0.borrow_mut();
        let label = inner.label.as_deref().map(str::to_owned);
        inner.error.get_or_insert_with(|| GraphError {
            op: op.to_owned(),
            message,
            label,
            file: location.file().to_owned(),
            line: location.line(),
        });
    }

    /// The first mistake so far.
    #[must_use]
    pub fn error(&self) -> Option<GraphError> {
        self.0.borrow().error.clone()
    }

    /// The program that computes `outputs`, or the first mistake made while building.
    ///
    /// # Errors
    /// The first [`GraphError`] recorded.
    #[track_caller]
    pub fn finish(&self, outputs: &[(&str, &Tensor)]) -> Result<Program, GraphError> {
        let foreign = outputs.iter().find(|(_, tensor)| !self.owns(tensor));
        if let Some((name, _)) = foreign {
            self.fail(
                "finish",
                format!("output `{name}` belongs to another graph"),
            );
        }
        let inner = self.0.borrow();
        if let Some(error) = &inner.error {
            return Err(error.clone());
        }
        let named = |&(name, tensor): &(&str, &Tensor)| (name.to_owned(), tensor.value());
        let sharding = |(_, tensor): &(&str, &Tensor)| {
            let Value { node, output } = tensor.value();
            match &inner.nodes[node].op {
                Op::Sharded(sharding) => sharding.clone(),
                _ => Sharding::replicated(inner.nodes[node].shapes[output].rank()),
            }
        };
        Ok(Program {
            nodes: inner.nodes.clone(),
            parameters: inner.parameters.clone(),
            outputs: outputs.iter().map(named).collect(),
            replicas: inner.replicas,
            workers: inner.workers,
            mesh: inner.mesh.clone(),
            output_shardings: outputs.iter().map(sharding).collect(),
            donated: Vec::new(),
        })
    }

    #[track_caller]
    pub(crate) fn subgraph(
        &self,
        shapes: &[Shape],
        build: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Arc<Subgraph> {
        let workers = self.workers();
        let graph = Self::made(workers, self.replicas() / workers, self.mesh());
        graph.0.borrow_mut().label = self.0.borrow().label.clone();
        let mut parameters = Vec::new();
        // No closure: it would be the caller that the nodes remember.
        for shape in shapes {
            parameters.push(graph.parameter("body", shape.clone()));
        }
        let outputs = build(&parameters);
        if outputs.iter().any(|tensor| !graph.owns(tensor)) {
            let message = "a loop's body or a branch captures a tensor from outside; pass it in";
            graph.fail("loop", message.into());
        }
        let own = |tensor: &Tensor| {
            let stand_in = || graph.stand_in(tensor.shape()).value();
            if graph.owns(tensor) {
                tensor.value()
            } else {
                stand_in()
            }
        };
        let outputs = outputs.iter().map(own).collect();
        let inner = graph.0.borrow();
        if let Some(error) = &inner.error {
            self.0.borrow_mut().error.get_or_insert(error.clone());
        }
        Arc::new(Subgraph {
            nodes: inner.nodes.clone(),
            parameters: shapes.to_vec(),
            outputs,
        })
    }

    #[track_caller]
    fn declare(&self, op: Op, shape: Shape) -> Tensor {
        let node = self.add(op, Vec::new(), vec![shape]);
        Tensor::new(self.clone(), Value { node, output: 0 })
    }

    #[track_caller]
    fn add(&self, op: Op, inputs: Vec<Value>, shapes: Vec<Shape>) -> usize {
        self.add_at(op, inputs, shapes, Location::caller())
    }

    fn add_at(
        &self,
        op: Op,
        inputs: Vec<Value>,
        shapes: Vec<Shape>,
        location: &'static Location<'static>,
    ) -> usize {
        let mut inner = self.0.borrow_mut();
        let label = inner.label.clone();
        inner.nodes.push(Node {
            op,
            inputs,
            shapes,
            label,
            location,
        });
        inner.nodes.len() - 1
    }

    #[track_caller]
    pub(crate) fn push(&self, op: Op, inputs: &[&Tensor]) -> Tensor {
        self.push_many(op, inputs).swap_remove(0)
    }

    /// What building goes on with after a mistake.
    #[track_caller]
    fn stand_in(&self, shape: Shape) -> Tensor {
        let zero = HostTensor::full(Shape::scalar(shape.dtype), 0.0);
        self.declare(Op::Constant(zero), shape)
    }

    /// Appends a node. After a mistake, operands' shapes stand in for results so that building goes on.
    #[track_caller]
    pub(crate) fn push_many(&self, op: Op, inputs: &[&Tensor]) -> Vec<Tensor> {
        let owned: Vec<Shape> = inputs.iter().map(|tensor| tensor.shape()).collect();
        let shapes: Vec<&Shape> = owned.iter().collect();
        let inferred = if inputs.iter().all(|tensor| self.owns(tensor)) {
            infer(&op, &shapes, self.replicas())
        } else {
            Err("operands belong to different graphs".into())
        };
        let shapes = match inferred {
            Ok(shapes) => shapes,
            Err(message) => {
                self.fail(op.name(), message);
                let shapes = stand_in_shapes(&op, &owned).into_iter();
                return shapes.map(|shape| self.stand_in(shape)).collect();
            }
        };
        let count = shapes.len();
        let values = inputs.iter().map(|tensor| tensor.value()).collect();
        let node = self.add(op, values, shapes);
        (0..count)
            .map(|output| Tensor::new(self.clone(), Value { node, output }))
            .collect()
    }

    pub(crate) fn node(&self, index: usize) -> Node {
        self.0.borrow().nodes[index].clone()
    }

    /// Visits the first `count` nodes in order.
    pub(crate) fn each_node(&self, count: usize, mut visit: impl FnMut(usize, &Node)) {
        let inner = self.0.borrow();
        for (index, node) in inner.nodes.iter().take(count).enumerate() {
            visit(index, node);
        }
    }

    /// Builds under exactly this label, whatever the current one is.
    pub(crate) fn under_label<T>(&self, label: Option<Arc<str>>, build: impl FnOnce() -> T) -> T {
        let outer = std::mem::replace(&mut self.0.borrow_mut().label, label);
        let result = build();
        self.0.borrow_mut().label = outer;
        result
    }

    /// Repeats the nodes of a subgraph here, on these arguments.
    pub(crate) fn inline(&self, body: &Subgraph, arguments: &[Tensor]) -> Vec<Tensor> {
        let mut copies: Vec<usize> = Vec::with_capacity(body.nodes.len());
        let mut places: Vec<Option<Value>> = Vec::with_capacity(body.nodes.len());
        let moved = |copies: &[usize], places: &[Option<Value>], value: &Value| {
            places[value.node].unwrap_or(Value {
                node: copies[value.node],
                output: value.output,
            })
        };
        for node in &body.nodes {
            if let Op::Parameter(index) = node.op {
                places.push(Some(arguments[index].value()));
                copies.push(0);
                continue;
            }
            let inputs = node.inputs.iter();
            let inputs = inputs.map(|value| moved(&copies, &places, value)).collect();
            let copy = self.add_at(node.op.clone(), inputs, node.shapes.clone(), node.location);
            copies.push(copy);
            places.push(None);
        }
        let outputs = body.outputs.iter();
        outputs
            .map(|value| Tensor::new(self.clone(), moved(&copies, &places, value)))
            .collect()
    }

    pub(crate) fn shape_of(&self, value: Value) -> Shape {
        self.0.borrow().nodes[value.node].shapes[value.output].clone()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn owns(&self, tensor: &Tensor) -> bool {
        self.is_same(tensor.graph())
    }
}

impl Default for Graph {
    fn default() -> Self {
        Self::new()
    }
}

/// As many shapes as the op has results, for the caller of a loop takes them by position.
fn stand_in_shapes(op: &Op, inputs: &[Shape]) -> Vec<Shape> {
    match op {
        Op::While { .. } | Op::AllReduce { .. } => inputs.to_vec(),
        Op::Scan(scan) => {
            let carried = inputs.iter().take(scan.carry).cloned();
            let rows = scan.body.outputs.iter().skip(scan.carry);
            let rows = rows.map(|&value| scan.body.shape(value).clone());
            carried.chain(rows).collect()
        }
        Op::Case(branches) => branches.first().map_or_else(Vec::new, |branch| {
            let outputs = branch.outputs.iter();
            outputs.map(|&value| branch.shape(value).clone()).collect()
        }),
        _ => {
            let first = inputs.first().cloned();
            vec![first.unwrap_or(Shape::scalar(DType::F32))]
        }
    }
}
