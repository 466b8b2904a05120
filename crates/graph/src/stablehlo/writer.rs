//! The text under construction: numbered values, indentation, locations, and the ops that several lowerings need.

use std::collections::BTreeSet;

use super::host_all_reduce::HostAllReduceCalls;
use super::literal;
use super::world_exchange::WorldExchangeCalls;
use super::{Bf16Matmul, HostMatmul, KernelSupport, Label, Platform};
use crate::{DType, HostTensor, Shape};

/// A value of the text: its name and type.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) name: String,
    pub(super) shape: Shape,
}

/// StableHLO text under construction.
pub(super) struct Writer {
    pub(super) platform: Platform,
    pub(super) kernels: Option<KernelSupport>,
    pub(super) replicas: usize,
    /// The exchanges with other processes, where there are some.
    pub(super) world: Option<WorldExchangeCalls>,
    /// How many devices compute at once.
    pub(super) devices: usize,
    /// Whether products of bf16 are printed as products of f32.
    pub(super) widens_bf16: bool,
    /// Which products of f32 are calls.
    pub(super) host_matmul: HostMatmul,
    /// Which products of bf16 are calls.
    pub(super) bf16_matmul: Bf16Matmul,
    /// Whether long short-term memories are calls.
    pub(super) host_lstm: bool,
    /// Whether sums of columns and reductions of rows are calls.
    pub(super) host_reductions: bool,
    /// Whether rows of large tables are taken by calls.
    pub(super) host_rows: bool,
    /// Whether the parts of softmax are calls.
    pub(super) host_softmax: bool,
    /// Whether products of f32 use all digits.
    pub(super) full_f32: bool,
    /// How replicas add, where it is not left to the compiler.
    pub(super) host_all_reduce: Option<HostAllReduceCalls>,
    /// The layer of the node at hand, printed as the location of its ops.
    pub(super) label: Label,
    /// Dims of the random tensors whose functions must follow `main`.
    pub(super) random: BTreeSet<Vec<usize>>,
    text: String,
    depth: usize,
    next: usize,
}

/// Joined with commas.
pub(super) fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

impl Writer {
    pub(super) fn new(platform: Platform, kernels: Option<KernelSupport>, replicas: usize) -> Self {
        Self {
            platform,
            kernels,
            replicas,
            world: None,
            devices: replicas,
            widens_bf16: false,
            host_matmul: HostMatmul::Never,
            bf16_matmul: Bf16Matmul::Never,
            host_lstm: false,
            host_reductions: false,
            host_rows: false,
            host_softmax: false,
            full_f32: false,
            host_all_reduce: None,
            label: None,
            random: BTreeSet::new(),
            text: String::new(),
            depth: 0,
            next: 0,
        }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Begins a function: its values are numbered from 0.
    pub(super) fn open_function(&mut self, line: &str) {
        self.open(line);
        self.next = 0;
    }

    /// Writes a line and indents what follows.
    pub(super) fn open(&mut self, line: &str) {
        self.raw(line);
        self.depth += 1;
    }

    /// Ends the indentation and writes a line.
    pub(super) fn close(&mut self, line: &str) {
        self.depth -= 1;
        self.raw(line);
    }

    /// Writes a line that ends one block and begins the next.
    pub(super) fn reopen(&mut self, line: &str) {
        self.close(line);
        self.depth += 1;
    }

    pub(super) fn raw(&mut self, line: &str) {
        self.text.extend(std::iter::repeat_n("  ", self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// ` loc("layer")` of the node at hand, or nothing.
    pub(super) fn location(&self) -> String {
        let label = self.label.as_deref();
        label.map_or(String::new(), |label| {
            format!(" loc({})", literal::quoted(label))
        })
    }

    /// A name for a value that is not an op's result: an argument of a block.
    pub(super) fn fresh(&mut self, shape: &Shape) -> Operand {
        let name = format!("%{}", self.next);
        self.next += 1;
        Operand {
            name,
            shape: shape.clone(),
        }
    }

    /// Writes an op of one result.
    pub(super) fn line(&mut self, shape: &Shape, text: &str) -> Operand {
        let result = self.fresh(shape);
        let line = format!("{} = {text}{}", result.name, self.location());
        self.raw(&line);
        result
    }

    /// Writes an op of any number of results.
    pub(super) fn lines(&mut self, shapes: &[Shape], text: &str) -> Vec<Operand> {
        let (binding, results) = self.bind(shapes);
        let line = format!("{binding}{text}{}", self.location());
        self.raw(&line);
        results
    }

    /// Writes the first line of an op with regions, and returns its results; [`Self::close`] ends it.
    pub(super) fn header(&mut self, shapes: &[Shape], text: &str) -> Vec<Operand> {
        let (binding, results) = self.bind(shapes);
        self.raw(&format!("{binding}{text}"));
        results
    }

    /// `%4:2 = ` and the operands `%4#0`, `%4#1`.
    fn bind(&mut self, shapes: &[Shape]) -> (String, Vec<Operand>) {
        if shapes.is_empty() {
            return (String::new(), Vec::new());
        }
        let first = self.fresh(&shapes[0]);
        if shapes.len() == 1 {
            return (format!("{} = ", first.name), vec![first]);
        }
        let results = shapes.iter().enumerate().map(|(index, shape)| Operand {
            name: format!("{}#{index}", first.name),
            shape: shape.clone(),
        });
        let results = results.collect();
        (format!("{}:{} = ", first.name, shapes.len()), results)
    }

    /// Writes the terminator of a block.
    pub(super) fn finish_block(&mut self, terminator: &str, results: &[Operand]) {
        if results.is_empty() {
            return self.raw(terminator);
        }
        let names = list(results.iter().map(|result| result.name.clone()));
        let types = list(results.iter().map(|result| result.shape.stablehlo()));
        self.raw(&format!("{terminator} {names} : {types}"));
    }

    /// An op whose operands and result share one type.
    pub(super) fn elementwise(&mut self, name: &str, inputs: &[Operand], shape: &Shape) -> Operand {
        let names = list(inputs.iter().map(|input| input.name.clone()));
        self.line(
            shape,
            &format!("stablehlo.{name} {names} : {}", shape.stablehlo()),
        )
    }

    /// An op with static arguments; `same_type` when its type is printed once.
    pub(super) fn typed(
        &mut self,
        name: &str,
        inputs: &[Operand],
        attributes: &str,
        shape: &Shape,
        same_type: bool,
    ) -> Operand {
        let names = list(inputs.iter().map(|input| input.name.clone()));
        let attributes = match attributes {
            "" => String::new(),
            text => format!(", {text}"),
        };
        let types = if same_type {
            shape.stablehlo()
        } else {
            signature(inputs, std::slice::from_ref(shape))
        };
        self.line(
            shape,
            &format!("stablehlo.{name} {names}{attributes} : {types}"),
        )
    }

    /// A literal, under `shape`.
    pub(super) fn constant(&mut self, value: &HostTensor, shape: &Shape) -> Operand {
        let text = format!(
            "stablehlo.constant {} : {}",
            literal::dense(value),
            shape.stablehlo()
        );
        self.line(shape, &text)
    }

    /// A repeated number.
    pub(super) fn full(&mut self, shape: &Shape, value: f64) -> Operand {
        let scalar = HostTensor::full(Shape::scalar(shape.dtype), value);
        self.constant(&scalar, shape)
    }

    pub(super) fn convert(&mut self, x: &Operand, dtype: DType) -> Operand {
        if x.shape.dtype == dtype {
            return x.clone();
        }
        let shape = x.shape.with_dtype(dtype);
        self.typed("convert", std::slice::from_ref(x), "", &shape, false)
    }

    pub(super) fn reshape(&mut self, x: &Operand, dims: &[usize]) -> Operand {
        if x.shape.dims == dims {
            return x.clone();
        }
        let shape = Shape::new(x.shape.dtype, dims);
        self.typed("reshape", std::slice::from_ref(x), "", &shape, false)
    }

    pub(super) fn transpose(&mut self, x: &Operand, perm: &[usize]) -> Operand {
        if perm.iter().enumerate().all(|(to, &from)| to == from) {
            return x.clone();
        }
        let dims: Vec<usize> = perm.iter().map(|&dim| x.shape.dims[dim]).collect();
        let shape = Shape::new(x.shape.dtype, dims);
        let attributes = format!("dims = {perm:?}");
        self.typed(
            "transpose",
            std::slice::from_ref(x),
            &attributes,
            &shape,
            false,
        )
    }

    /// Elements `start..limit` of a row.
    pub(super) fn slice(&mut self, x: &Operand, start: usize, limit: usize) -> Operand {
        let shape = Shape::new(x.shape.dtype, [limit - start]);
        if shape == x.shape {
            return x.clone();
        }
        let (from, to) = (x.shape.stablehlo(), shape.stablehlo());
        let text = format!(
            "stablehlo.slice {} [{start}:{limit}] : ({from}) -> {to}",
            x.name
        );
        self.line(&shape, &text)
    }

    /// A row with zeros behind it.
    pub(super) fn lengthen(&mut self, x: &Operand, shape: &Shape) -> Operand {
        if x.shape == *shape {
            return x.clone();
        }
        let zero = self.full(&Shape::scalar(shape.dtype), 0.0);
        let more = shape.len() - x.shape.len();
        let attributes = format!("low = [0], high = [{more}], interior = [0]");
        self.typed("pad", &[x.clone(), zero], &attributes, shape, false)
    }

    pub(super) fn broadcast(&mut self, x: &Operand, dims: &[usize], map: &[usize]) -> Operand {
        if x.shape.dims == dims {
            return x.clone();
        }
        let shape = Shape::new(x.shape.dtype, dims);
        let attributes = format!("dims = {map:?}");
        self.typed(
            "broadcast_in_dim",
            std::slice::from_ref(x),
            &attributes,
            &shape,
            false,
        )
    }
}

/// `(operand types) -> result types`.
pub(super) fn signature(inputs: &[Operand], results: &[Shape]) -> String {
    let from = list(inputs.iter().map(|input| input.shape.stablehlo()));
    match results {
        [one] => format!("({from}) -> {}", one.stablehlo()),
        many => format!("({from}) -> ({})", list(many.iter().map(Shape::stablehlo))),
    }
}
