//! The gradients of a step by JAX in f64, where `PHALANX_FUZZ_PYTHON` is the path of a Python that has it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use phalanx_graph::op::{Node, WindowDim};
use phalanx_graph::{DType, HostTensor, Kernel, Op, Shape, Value as Place};
use serde_json::{Value, json};

use crate::python::Script;
use crate::step::Step;

static JAX: Script = Script {
    variable: "PHALANX_FUZZ_PYTHON",
    file: "jax_gradients.py",
    running: Mutex::new(None),
};
static COMPARED: AtomicU64 = AtomicU64::new(0);

/// How many steps were compared with JAX so far.
pub(crate) fn compared() -> u64 {
    COMPARED.load(Ordering::Relaxed)
}

/// The gradients of the trained variables, in the order of the arrays that the step replaces; `None` where there is no Python, or
/// a step is none that it can do: of several replicas, or with random numbers.
pub(crate) fn gradients(step: &Step) -> Option<Result<Vec<Vec<f64>>, String>> {
    if !JAX.is_given() || step.program.replicas > 1 {
        return None;
    }
    let request = request(step)?;
    COMPARED.fetch_add(1, Ordering::Relaxed);
    Some(JAX.ask(&request))
}

/// What the Python is asked: the nodes that the loss needs, the arguments, and which of them are trained.
fn request(step: &Step) -> Option<Value> {
    let program = &step.program;
    let tally = program.outputs[step.tally].1;
    let graph = graph(&program.nodes, &[tally])?;
    let trained = step.replaced.iter().filter(|replaced| replaced.trained);
    let wrt: Vec<usize> = trained.map(|replaced| replaced.parameter).collect();
    let arguments: Vec<Value> = step.inputs[0].iter().map(tensor).collect();
    Some(json!({"graph": graph, "arguments": arguments, "wrt": wrt}))
}

fn graph(nodes: &[Node], outputs: &[Place]) -> Option<Value> {
    let mut needed = vec![false; nodes.len()];
    for output in outputs {
        needed[output.node] = true;
    }
    for (number, node) in nodes.iter().enumerate().rev() {
        if needed[number] {
            for input in &node.inputs {
                needed[input.node] = true;
            }
        }
    }
    let kept = nodes
        .iter()
        .enumerate()
        .filter(|(number, _)| needed[*number]);
    let kept: Option<Vec<Value>> = kept
        .map(|(number, node)| Some(json!([number, described(node)?])))
        .collect();
    Some(json!({"nodes": kept?, "outputs": places(outputs)}))
}

fn places(values: &[Place]) -> Vec<[usize; 2]> {
    values
        .iter()
        .map(|value| [value.node, value.output])
        .collect()
}

/// A node in the words of the script; `None` for what it does not know.
fn described(node: &Node) -> Option<Value> {
    let mut text = match &node.op {
        Op::Parameter(index) => json!({"op": "parameter", "index": index}),
        Op::Constant(value) => json!({"op": "constant", "value": tensor(value)}),
        Op::Iota(dim) => json!({"op": "iota", "dim": dim}),
        Op::Unary(op) => json!({"op": "unary", "function": op.name()}),
        Op::Binary(op) => json!({"op": "binary", "function": op.name()}),
        Op::Compare(op) => json!({"op": "compare", "function": op.name()}),
        Op::Select => json!({"op": "select"}),
        Op::Convert(dtype) => json!({"op": "convert", "dtype": name(*dtype)}),
        Op::StopGradient => json!({"op": "stop_gradient"}),
        Op::OptimizationBarrier => json!({"op": "barrier"}),
        Op::Concat(dim) => json!({"op": "concat", "dim": dim}),
        Op::Gather { dim } => json!({"op": "gather", "dim": dim}),
        Op::ScatterAdd { dim } => json!({"op": "scatter_add", "dim": dim}),
        Op::DynamicSlice(sizes) => json!({"op": "dynamic_slice", "sizes": sizes}),
        Op::DynamicUpdateSlice => json!({"op": "dynamic_update_slice"}),
        Op::Reshape(_) | Op::Transpose(_) | Op::Broadcast { .. } | Op::Reverse(_) => {
            moved(&node.op)?
        }
        Op::Pad(_) | Op::Slice(_) => moved(&node.op)?,
        other => computed(other)?,
    };
    text["inputs"] = json!(places(&node.inputs));
    text["shape"] = shape(&node.shapes[0]);
    Some(text)
}

fn moved(op: &Op) -> Option<Value> {
    Some(match op {
        Op::Reshape(dims) => json!({"op": "reshape", "dims": dims}),
        Op::Transpose(perm) => json!({"op": "transpose", "perm": perm}),
        Op::Broadcast { dims, map } => json!({"op": "broadcast", "dims": dims, "map": map}),
        Op::Reverse(dims) => json!({"op": "reverse", "dims": dims}),
        Op::Pad(pads) => {
            let pads = pads
                .iter()
                .map(|pad| json!([pad.low, pad.high, pad.interior]));
            json!({"op": "pad", "pads": pads.collect::<Vec<_>>()})
        }
        Op::Slice(slices) => {
            let slices = slices.iter();
            let slices = slices.map(|slice| [slice.start, slice.limit, slice.stride]);
            json!({"op": "slice", "slices": slices.collect::<Vec<_>>()})
        }
        _ => return None,
    })
}

fn computed(op: &Op) -> Option<Value> {
    Some(match op {
        Op::Dot(dims) => {
            json!({"op": "dot", "lhs_batch": dims.lhs_batch, "rhs_batch": dims.rhs_batch,
            "lhs_contract": dims.lhs_contract, "rhs_contract": dims.rhs_contract})
        }
        Op::Conv(dims) => {
            let specs = [&dims.input, &dims.kernel, &dims.output];
            let specs = specs.map(|spec| [&[spec.batch, spec.feature], &spec.spatial[..]].concat());
            json!({"op": "conv", "specs": specs, "strides": dims.strides, "padding": dims.padding,
                "input_dilation": dims.input_dilation, "kernel_dilation": dims.kernel_dilation,
                "feature_groups": dims.feature_groups, "batch_groups": dims.batch_groups})
        }
        Op::Reduce { kind, dims } => json!({"op": "reduce", "kind": kind.name(), "dims": dims}),
        Op::ReduceWindow { kind, window } => {
            json!({"op": "reduce_window", "kind": kind.name(), "window": window_dims(window)})
        }
        Op::Kernel(Kernel::MaxPool2d(pool)) => {
            json!({"op": "max_pool", "window": window_dims(&pool.window())})
        }
        Op::Kernel(Kernel::BatchNorm { epsilon, .. }) => {
            json!({"op": "batch_norm", "epsilon": epsilon})
        }
        Op::Kernel(Kernel::Lstm) => json!({"op": "lstm"}),
        Op::Kernel(Kernel::Gru) => json!({"op": "gru"}),
        Op::Scan(dims) => {
            json!({"op": "scan", "body": graph(&dims.body.nodes, &dims.body.outputs)?,
            "length": dims.length, "carry": dims.carry, "xs": dims.xs, "reverse": dims.reverse})
        }
        _ => return None,
    })
}

fn window_dims(window: &[WindowDim]) -> Vec<[usize; 5]> {
    let dims = window.iter();
    dims.map(|dim| [dim.size, dim.stride, dim.dilation, dim.low, dim.high])
        .collect()
}

fn name(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

fn shape(shape: &Shape) -> Value {
    json!({"dtype": name(shape.dtype), "dims": shape.dims})
}

/// Numbers as JSON; those that are not finite as words.
pub(crate) fn tensor(value: &HostTensor) -> Value {
    let number = |x: f64| match x.is_finite() {
        true => json!(x),
        false => json!(x.to_string()),
    };
    let values: Vec<Value> = value.to_f64().into_iter().map(number).collect();
    json!({"dtype": name(value.dtype()), "dims": value.dims(), "values": values})
}
