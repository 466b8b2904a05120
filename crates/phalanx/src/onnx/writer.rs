//! The graph under construction: named values, weights and constants, shapes that are computed from the batch.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::mem::{swap, take};
use std::sync::Arc;

use phalanx_graph::op::Node;
use phalanx_graph::{DType, HostTensor, Shape};

use super::message::{NodeArgument, Port, code, node};
use super::size::Size;
use crate::{Error, Result};

/// A value of the graph.
#[derive(Clone, Debug)]
pub(super) struct OnnxValue {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// The dims that the program means.
    pub(super) dims: Vec<Size>,
    /// The dims that it has: 1 where elements repeat, and none for leading dims along which they do. ONNX's elementwise ops take these,
    /// [`OnnxWriter::full`] makes the meant ones of them.
    pub(super) stored: Vec<Size>,
}

impl OnnxValue {
    pub(super) fn new(name: String, dtype: DType, dims: Vec<Size>) -> Self {
        Self {
            name,
            dtype,
            stored: dims.clone(),
            dims,
        }
    }

    pub(super) fn port(&self) -> Port {
        Port {
            name: self.name.clone(),
            dtype: self.dtype,
            dims: self.dims.clone(),
        }
    }

    /// Another value with the same dims.
    pub(super) fn renamed(&self, name: String, dtype: DType) -> Self {
        Self {
            name,
            dtype,
            ..self.clone()
        }
    }
}

/// What to do where there is no way for any batch.
const ONE_SIZE: &str =
    "export it for batches of one size: `--batch-size`, in Rust `OnnxOptions::batch_size`";

/// An ONNX graph under construction.
pub(super) struct OnnxWriter {
    /// The batches of the two programs, which are equal where the graph is for this batch alone.
    batches: [usize; 2],
    /// An input whose first dim is the batch.
    input: String,
    pub(super) weights: Vec<(String, HostTensor)>,
    constants: HashMap<(DType, Vec<usize>, Vec<u8>), String>,
    /// Sizes and shapes that follow from the batch: known before all else, in loops too.
    prelude: Vec<Vec<u8>>,
    shapes: HashMap<Vec<Size>, String>,
    /// Of the block at hand.
    nodes: Vec<Vec<u8>>,
    taken: HashSet<String>,
    /// The layer and the op at hand.
    label: Option<Arc<str>>,
    place: String,
    next: usize,
}

impl OnnxWriter {
    /// A graph whose inputs and outputs have these names.
    pub(super) fn new(batches: [usize; 2], input: &str, taken: HashSet<String>) -> Self {
        Self {
            batches,
            input: input.to_owned(),
            weights: Vec::new(),
            constants: HashMap::new(),
            prelude: Vec::new(),
            shapes: HashMap::new(),
            nodes: Vec::new(),
            taken,
            label: None,
            place: String::new(),
            next: 0,
        }
    }

    /// All nodes in order.
    pub(super) fn into_nodes(mut self) -> (Vec<Vec<u8>>, Vec<(String, HostTensor)>) {
        self.prelude.append(&mut self.nodes);
        (self.prelude, self.weights)
    }

    /// Names the node that follows in names and errors; what was named before comes back.
    pub(super) fn at(&mut self, node: &Node) {
        self.label.clone_from(&node.label);
        self.place = format!("`{}` ({})", node.op.name(), node.location);
    }

    /// What cannot be written, and what to do.
    pub(super) fn refused(&self, message: impl Display) -> Error {
        let layer = self.label.as_deref().unwrap_or("the model");
        Error::User(format!(
            "`{layer}`, op {} is not written as ONNX: {message}",
            self.place
        ))
    }

    /// The error for what is another thing for each batch.
    pub(super) fn bound_to_batch(&self, what: impl Display) -> Error {
        let [first, second] = self.batches;
        self.refused(format!(
            "{what} is neither the same for every batch nor a multiple of it ({first} and {second} examples were compared); {ONE_SIZE}"
        ))
    }

    /// The dims that a value has for any batch.
    pub(super) fn dims(&self, shapes: [&Shape; 2]) -> Result<Vec<Size>> {
        let [first, second] = shapes;
        let sizes = first.dims.iter().zip(&second.dims);
        let sizes = sizes.map(|(&a, &b)| Size::of([a, b], self.batches));
        let dims: Option<Vec<Size>> = sizes.collect();
        dims.filter(|_| first.dtype == second.dtype && first.rank() == second.rank())
            .ok_or_else(|| self.bound_to_batch(format!("its size, {first} and {second},")))
    }

    fn fresh(&mut self, op: &str) -> String {
        loop {
            let layer = self.label.as_deref();
            let layer = layer.map_or(String::new(), |label| format!("{label}/"));
            let name = format!("{layer}{op}_{}", self.next);
            self.next += 1;
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    /// Writes a node of several results.
    pub(super) fn nodes(
        &mut self,
        op: &str,
        inputs: &[&str],
        arguments: &[(&str, NodeArgument)],
        results: usize,
    ) -> Vec<String> {
        let name = self.fresh(op);
        let others = (1..results).map(|number| format!("{name}:{number}"));
        let outputs: Vec<String> = std::iter::once(name.clone()).chain(others).collect();
        self.nodes
            .push(node(op, &name, inputs, &outputs, arguments));
        outputs
    }

    /// Writes a node and gives the name of its result.
    pub(super) fn node(
        &mut self,
        op: &str,
        inputs: &[&str],
        arguments: &[(&str, NodeArgument)],
    ) -> String {
        self.nodes(op, inputs, arguments, 1).swap_remove(0)
    }

    /// Gives a value the name of an output.
    pub(super) fn name_output(&mut self, value: &OnnxValue, name: &str) {
        let value = self.full(value);
        let outputs = [name.to_owned()];
        self.nodes
            .push(node("Identity", name, &[&value.name], &outputs, &[]));
    }

    /// The nodes that `build` writes, apart from the others: the body of a loop.
    pub(super) fn block<T>(
        &mut self,
        build: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(Vec<Vec<u8>>, T)> {
        let outer = take(&mut self.nodes);
        let built = build(self);
        let nodes = std::mem::replace(&mut self.nodes, outer);
        Ok((nodes, built?))
    }

    /// The place to go on from after a loop.
    pub(super) fn place(&self) -> (Option<Arc<str>>, String) {
        (self.label.clone(), self.place.clone())
    }

    pub(super) fn return_to(&mut self, (label, place): (Option<Arc<str>>, String)) {
        (self.label, self.place) = (label, place);
    }

    /// A name for an argument or a result of a block.
    pub(super) fn argument(&mut self, dtype: DType, dims: Vec<Size>) -> OnnxValue {
        OnnxValue::new(self.fresh("argument"), dtype, dims)
    }

    /// A value under another name, as bodies of loops need for what they give.
    pub(super) fn copied(&mut self, value: &OnnxValue) -> OnnxValue {
        let full = self.full(value);
        let name = self.node("Identity", &[&full.name], &[]);
        full.renamed(name, full.dtype)
    }

    /// A literal.
    pub(super) fn constant(&mut self, value: &HostTensor) -> OnnxValue {
        let key = (value.dtype(), value.dims().to_vec(), value.bytes().to_vec());
        let dims = value.dims().iter().map(|&size| Size::Fixed(size));
        let dims = dims.collect();
        if let Some(name) = self.constants.get(&key) {
            return OnnxValue::new(name.clone(), value.dtype(), dims);
        }
        let outer = self.label.take();
        let name = self.fresh("constant");
        self.label = outer;
        self.constants.insert(key, name.clone());
        self.weights.push((name.clone(), value.clone()));
        OnnxValue::new(name, value.dtype(), dims)
    }

    /// A number.
    pub(super) fn scalar(&mut self, dtype: DType, number: f64) -> String {
        let value = HostTensor::full(Shape::scalar(dtype), number);
        self.constant(&value).name
    }

    /// Whole numbers, as axes and shapes are given.
    pub(super) fn ints(&mut self, values: &[i64]) -> String {
        let value = HostTensor::new([values.len()], values);
        self.constant(&value).name
    }

    /// Sizes or places of dims.
    pub(super) fn sizes(&mut self, values: &[usize]) -> String {
        let values: Vec<i64> = values.iter().map(|&value| value as i64).collect();
        self.ints(&values)
    }

    /// A shape.
    fn shape(&mut self, dims: &[Size]) -> String {
        if let Some(fixed) = fixed(dims) {
            return self.sizes(&fixed);
        }
        if let Some(name) = self.shapes.get(dims) {
            return name.clone();
        }
        let name = match *dims {
            [Size::Batches(1)] => self.of_batch(|w| {
                let input = w.input.clone();
                let ends = [("start", 0), ("end", 1)];
                let ends = ends.map(|(name, end)| (name, NodeArgument::Int(end)));
                w.node("Shape", &[&input], &ends)
            }),
            [Size::Batches(count)] => {
                let batch = self.batch(1);
                let count = self.sizes(&[count]);
                self.of_batch(|w| w.node("Mul", &[&batch, &count], &[]))
            }
            _ => {
                let parts: Vec<String> = dims.iter().map(|&dim| self.shape(&[dim])).collect();
                let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
                self.of_batch(|w| w.node("Concat", &parts, &[("axis", NodeArgument::Int(0))]))
            }
        };
        self.shapes.insert(dims.to_vec(), name.clone());
        name
    }

    /// So many times the batch, as a shape of one dim.
    pub(super) fn batch(&mut self, count: usize) -> String {
        self.shape(&[Size::Batches(count)])
    }

    /// Writes what follows from the batch alone.
    fn of_batch(&mut self, write: impl FnOnce(&mut Self) -> String) -> String {
        let label = self.label.replace("batch".into());
        swap(&mut self.nodes, &mut self.prelude);
        let name = write(self);
        swap(&mut self.nodes, &mut self.prelude);
        self.label = label;
        name
    }

    /// The same with all elements there.
    pub(super) fn full(&mut self, x: &OnnxValue) -> OnnxValue {
        if x.stored == x.dims {
            return x.clone();
        }
        let shape = self.shape(&x.dims);
        let name = self.node("Expand", &[&x.name, &shape], &[]);
        OnnxValue::new(name, x.dtype, x.dims.clone())
    }

    /// The same with as many dims as are meant.
    pub(super) fn ranked(&mut self, x: &OnnxValue) -> OnnxValue {
        let missing = x.dims.len() - x.stored.len();
        self.unsqueezed(x, &(0..missing).collect::<Vec<_>>())
    }

    /// With new dims of 1 at these places of the result, among the stored ones alone.
    pub(super) fn unsqueezed(&mut self, x: &OnnxValue, axes: &[usize]) -> OnnxValue {
        if axes.is_empty() {
            return x.clone();
        }
        let places = self.sizes(axes);
        let mut value = x.clone();
        value.name = self.node("Unsqueeze", &[&x.name, &places], &[]);
        for &axis in axes {
            value.stored.insert(axis, Size::ONE);
        }
        value
    }

    /// The same elements under other dims.
    pub(super) fn reshape(&mut self, x: &OnnxValue, dims: &[Size]) -> OnnxValue {
        let x = self.full(x);
        if x.dims == dims {
            return x;
        }
        let is_open = |dim: &&Size| dim.fixed().is_none();
        let is_empty = dims.contains(&Size::Fixed(0));
        let shape = match dims.iter().filter(is_open).count() {
            1 if !is_empty => {
                let places = dims
                    .iter()
                    .map(|dim| dim.fixed().map_or(-1, |size| size as i64));
                self.ints(&places.collect::<Vec<_>>())
            }
            _ => self.shape(dims),
        };
        // Otherwise 0 stands for the size that the dim has.
        let allowed = [("allowzero", NodeArgument::Int(1))];
        let name = self.node(
            "Reshape",
            &[&x.name, &shape],
            &allowed[..usize::from(is_empty)],
        );
        OnnxValue::new(name, x.dtype, dims.to_vec())
    }

    /// Dim `i` of the result is dim `perm[i]`.
    pub(super) fn transpose(&mut self, x: &OnnxValue, perm: &[usize]) -> OnnxValue {
        if perm.iter().copied().eq(0..perm.len()) {
            return x.clone();
        }
        let x = self.ranked(x);
        let order = ("perm", NodeArgument::ints(perm.iter().copied()));
        let turned = |dims: &[Size]| perm.iter().map(|&dim| dims[dim]).collect();
        OnnxValue {
            name: self.node("Transpose", &[&x.name], &[order]),
            dtype: x.dtype,
            dims: turned(&x.dims),
            stored: turned(&x.stored),
        }
    }

    pub(super) fn convert(&mut self, x: &OnnxValue, dtype: DType) -> OnnxValue {
        if x.dtype == dtype {
            return x.clone();
        }
        let to = ("to", NodeArgument::Int(code(dtype) as i64));
        let name = self.node("Cast", &[&x.name], &[to]);
        x.renamed(name, dtype)
    }
}

/// The sizes of dims none of which follows the batch.
pub(super) fn fixed(dims: &[Size]) -> Option<Vec<usize>> {
    dims.iter().map(|dim| dim.fixed()).collect()
}
