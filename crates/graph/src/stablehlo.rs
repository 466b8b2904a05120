//! StableHLO text of a program: the only place where a node becomes what the compiler sees.
//!
//! Elementwise and layout ops map one to one. What is a choice is kept apart and depends on the [`Platform`]:
//! convolutions as dots (`contract`), loops (`loops`), reductions and scatters of narrow floats in f32
//! (`reduction`), random bits (`threefry`).

mod bf16_matmul;
mod biased_matmul;
mod collective;
mod contract;
mod host_all_reduce;
mod host_lstm;
mod host_matmul;
mod host_reductions;
mod host_rows;
mod host_softmax;
mod indexing;
mod kernels;
mod literal;
mod loops;

mod reduction;
mod row_sums;
mod sharding;

mod threefry;
mod world_exchange;
mod writer;

use phalanx_platform::Platform;

pub use self::bf16_matmul::Bf16Matmul;
use self::biased_matmul::BiasedProducts;
pub use self::host_matmul::HostMatmul;
use self::host_softmax::Softmaxes;
pub(crate) use self::kernels::{relu_attributes, window};
use self::row_sums::RowSums;
use self::world_exchange::WorldExchangeCalls;
use self::writer::{Operand, Writer, list};
use crate::kernel::Label;
use crate::op::{
    Attribute, CompareOp, CustomCall, Node, Op, PadDim, ReduceOp, SliceDim, UnaryOp, Value,
};
use crate::{DType, Mesh, Parameter, Program, Shape};

/// How a program is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowering {
    /// The kind of device; it decides between forms of equal meaning and different speed.
    pub platform: Platform,
    /// Name of the module, which profilers and dumps show; characters outside `[A-Za-z0-9_]` become `_`.
    pub module: String,
    /// Kernels registered with the device beside its compiler's own.
    pub kernels: Option<KernelSupport>,
    /// Whether the processor has instructions for bf16 products that are faster than f32's. Without instructions XLA:CPU takes twice the
    /// time of f32, so operands are widened to f32, which changes no product.
    pub native_bf16_dot: bool,
    /// Which products of f32 call `phalanx.product`, where that is registered.
    pub host_matmul: HostMatmul,
    /// Which products of bf16 call `phalanx.bf16_product`, where that is registered.
    pub bf16_matmul: Bf16Matmul,
    /// Whether `phalanx.lstm`, `phalanx.gru` and their gradients are registered.
    pub host_lstm: bool,
    /// Whether sums of columns and reductions of rows call `phalanx.column_sums` and `phalanx.row_reduction`, where those are registered.
    pub host_reductions: bool,
    /// Whether `phalanx.rows` and `phalanx.row_sums` are registered.
    pub host_rows: bool,
    /// Whether the parts of softmax call `phalanx.softmax`, where that is registered.
    pub host_softmax: bool,
    /// Whether products and convolutions of f32 use all digits of their operands; NVIDIA's GPUs and TPUs round them to fewer otherwise.
    pub full_f32: bool,
    /// Number of other devices that run programs of their own at the same time.
    pub other_devices: usize,
    /// How sums over replicas are computed where `phalanx.sum` is registered, for programs that exchange nothing else.
    pub host_all_reduce: Option<HostAllReduce>,
}

/// All-reduces of replicas on host processors by `phalanx.sum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostAllReduce {
    /// How long a replica waits for the others.
    pub timeout_seconds: u32,
}

/// What the registered image kernels on host processors (`phalanx.conv` and others) can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelSupport {
    /// Whether there are convolutions by Winograd's tiles and by products, which may be given kernels in the form that they compute with.
    pub tiles: bool,
}

/// The value of a compiler option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompilerOption {
    /// On or off.
    Switch(bool),
    /// Names, separated by commas.
    Text(&'static str),
}

impl Lowering {
    /// Printing of a module of the given name for a kind of device.
    #[must_use]
    pub fn new(platform: Platform, module: &str) -> Self {
        Self {
            platform,
            module: module.to_owned(),
            kernels: None,
            native_bf16_dot: true,
            host_matmul: HostMatmul::Never,
            bf16_matmul: Bf16Matmul::Never,
            host_lstm: false,
            host_reductions: false,
            host_rows: false,
            host_softmax: false,
            full_f32: false,
            other_devices: 0,
            host_all_reduce: None,
        }
    }
}

/// Compiler options, by name, to pass with the compilation of a printed module.
///
/// XLA:CPU lets maxima and minima drop NaN unless told not to, which would hide a diverged loss. Its newest library
/// (YNNPACK) is slower than the one before for f32 convolutions on processors without AMX, so it is left reductions and
/// single products; and products alone where there are 16-bit floats, whose sums it got wrong: see `docs/decisions`.
///
/// XLA:CPU takes optimization barriers out before it fuses, unlike XLA for GPUs and TPUs; then a value behind one would be
/// computed again in each fusion that uses it, rounded differently. So the pass that takes them out is left out; what a
/// barrier becomes is nothing at run time. Nor may it make a kernel of a small loop: in one a barrier ends the process.
#[must_use]
pub fn compiler_options(platform: Platform, module: &str) -> Vec<(&'static str, CompilerOption)> {
    // The end of a type such as `tensor<8xbf16>`.
    let library = match module.contains("f16>") {
        true => "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
        false => "LIBRARY_FUSION_TYPE_REDUCE,LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    };
    match platform {
        Platform::Cpu => {
            let passes = match module.contains("stablehlo.while") {
                true => "cse_barrier_expander,small-while-loop-hoisting",
                false => "cse_barrier_expander",
            };
            let barriers = module.contains("stablehlo.optimization_barrier");
            let barriers =
                barriers.then_some(("xla_disable_hlo_passes", CompilerOption::Text(passes)));
            let always = [
                ("xla_cpu_enable_fast_min_max", CompilerOption::Switch(false)),
                (
                    "xla_cpu_experimental_ynn_fusion_type",
                    CompilerOption::Text(library),
                ),
            ];
            always.into_iter().chain(barriers).collect()
        }
        Platform::Cuda | Platform::Rocm | Platform::Tpu | Platform::Oneapi => Vec::new(),
    }
}

/// Whether convolutions that are matrix products are printed as dots: measured faster on XLA:CPU, where the
/// product reaches the matrix library; elsewhere the vendor's library makes this choice.
const fn prefers_dots(platform: Platform) -> bool {
    matches!(platform, Platform::Cpu)
}

impl Program {
    /// The StableHLO module whose public function `main` takes the parameters and returns the outputs in order.
    ///
    /// Labels become locations, donated parameters carry `tf.aliasing_output`, and the module says its number of replicas.
    #[must_use]
    pub fn to_stablehlo(&self, lowering: &Lowering) -> String {
        match lowering.kernels {
            Some(_) => self.fused().print(lowering),
            None => self.print(lowering),
        }
    }

    fn print(&self, lowering: &Lowering) -> String {
        let mut writer = Writer::new(lowering.platform, lowering.kernels, self.replicas);
        writer.devices = self.devices() + lowering.other_devices;
        writer.world = (self.workers > 1).then(|| WorldExchangeCalls::new(self.local_replicas()));
        let sums = lowering
            .host_all_reduce
            .filter(|_| self.exchanges_only_sums());
        writer.host_all_reduce =
            sums.map(|sums| host_all_reduce::HostAllReduceCalls::new(sums.timeout_seconds));
        writer.host_matmul = lowering.host_matmul;
        writer.bf16_matmul = lowering.bf16_matmul;
        writer.host_lstm = lowering.host_lstm;
        writer.host_reductions = lowering.host_reductions;
        writer.host_rows = lowering.host_rows;
        writer.host_softmax = lowering.host_softmax;
        writer.full_f32 = lowering.full_f32;
        writer.widens_bf16 = lowering.platform == Platform::Cpu && !lowering.native_bf16_dot;
        writer.open(&format!(
            "module @{} attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = {} : i32}} {{",
            symbol(&lowering.module),
            self.mesh.as_ref().map_or(1, Mesh::size),
            self.local_replicas()
        ));
        if let Some(mesh) = &self.mesh {
            writer.raw(&sharding::mesh(mesh));
        }
        let parameters: Vec<Operand> = (0..self.parameters.len())
            .map(|index| Operand {
                name: format!("%arg{index}"),
                shape: self.parameters[index].shape.clone(),
            })
            .collect();
        writer.open_function(&format!(
            "func.func public @main({}) -> ({}) {{",
            self.parameter_list(),
            self.result_list()
        ));
        let outputs: Vec<Value> = self.outputs.iter().map(|(_, value)| *value).collect();
        let results = lower_nodes(&mut writer, &self.nodes, &parameters, &outputs);
        writer.finish_block("return", &results);
        writer.close("}");
        threefry::write_functions(&mut writer);
        writer.close("}");
        writer.into_text()
    }

    fn parameter_list(&self) -> String {
        let one = |(index, parameter): (usize, &Parameter)| {
            let alias = self.donated.iter().find(|(from, _)| *from == index);
            let alias = alias.map(|(_, to)| format!("tf.aliasing_output = {to} : i32"));
            let cut = self.mesh.as_ref();
            let cut = cut.map(|_| sharding::attribute(&parameter.sharding()));
            let attributes = attributes(alias.into_iter().chain(cut));
            let location = format!(" loc({})", literal::quoted(&parameter.name));
            let shape = parameter.shape.stablehlo();
            format!("%arg{index}: {shape}{attributes}{location}")
        };
        list(self.parameters.iter().enumerate().map(one))
    }

    fn result_list(&self) -> String {
        let outputs = self.outputs.iter().zip(&self.output_shardings);
        list(outputs.map(|((name, value), sharding)| {
            let shape = self.shape(*value).stablehlo();
            let name = format!("jax.result_info = {}", literal::quoted(name));
            let cut = self.mesh.as_ref();
            let cut = cut.map(|_| sharding::attribute(sharding));
            format!("{shape}{}", attributes([name].into_iter().chain(cut)))
        }))
    }
}

fn attributes(items: impl Iterator<Item = String>) -> String {
    match list(items) {
        none if none.is_empty() => none,
        some => format!(" {{{some}}}"),
    }
}

fn symbol(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = name.chars().map(plain).collect();
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name
    } else {
        format!("phalanx_{name}")
    }
}

/// Writes a list of nodes and returns the operands that stand for `outputs`.
fn lower_nodes(
    writer: &mut Writer,
    nodes: &[Node],
    parameters: &[Operand],
    outputs: &[Value],
) -> Vec<Operand> {
    let outer = writer.label.take();
    let before = writer.world.as_mut().map(WorldExchangeCalls::take_pending);
    let uses = uses(nodes, outputs);
    let idle = idle_barriers(nodes, &uses);
    let biased = BiasedProducts::of(writer, nodes, &uses);
    let row_sums = RowSums::of(writer, nodes, &uses);
    let mut softmaxes = Softmaxes::of(writer, nodes);
    let mut values: Vec<Vec<Operand>> = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        writer.label.clone_from(&node.label);
        if world_exchange::must_finish(writer, node) {
            world_exchange::finish(writer, &mut values);
        }
        if biased.is_delayed(index) || row_sums.is_delayed(index) {
            values.push(Vec::new());
            continue;
        }
        let inputs = row_sums.inputs(index);
        let inputs = inputs.unwrap_or_else(|| biased.inputs(nodes, index));
        let inputs: Vec<Operand> = inputs
            .iter()
            .map(|value| values[value.node][value.output].clone())
            .collect();
        let joined = biased
            .lower(writer, (nodes, index), &inputs)
            .or_else(|| row_sums.lower(writer, (nodes, index), &inputs))
            .or_else(|| softmaxes.lower(writer, index, &inputs));
        values.push(match (idle[index], joined) {
            (true, _) => inputs,
            (_, Some(joined)) => vec![joined],
            (_, None) => lower(writer, node, &inputs, parameters),
        });
        world_exchange::begun(writer, values.len() - 1);
    }
    world_exchange::finish(writer, &mut values);
    if let (Some(world), Some(before)) = (&mut writer.world, before) {
        world.restore_pending(before);
    }
    writer.label = outer;
    outputs
        .iter()
        .map(|value| values[value.node][value.output].clone())
        .collect()
}

/// How often each node is used, by others or as an output.
fn uses(nodes: &[Node], outputs: &[Value]) -> Vec<usize> {
    let mut uses = vec![0; nodes.len()];
    let inputs = nodes.iter().flat_map(|node| &node.inputs);
    for value in inputs.chain(outputs) {
        uses[value.node] += 1;
    }
    uses
}

/// Which nodes are barriers that nothing but one maximum or minimum uses, as where no derivative is taken: a value with one
/// use is computed once anyway, and XLA:CPU cannot compile a barrier that it fuses with the reduction behind it.
fn idle_barriers(nodes: &[Node], uses: &[usize]) -> Vec<bool> {
    let mut reduced = vec![false; nodes.len()];
    for node in nodes {
        if let Op::Reduce {
            kind: ReduceOp::Max | ReduceOp::Min,
            ..
        } = node.op
        {
            reduced[node.inputs[0].node] = true;
        }
    }
    let idle = |(index, node): (usize, &Node)| {
        let alone = node.inputs.len() == 1 && uses[index] == 1 && reduced[index];
        alone && node.op == Op::OptimizationBarrier
    };
    nodes.iter().enumerate().map(idle).collect()
}

/// Writes one node; nodes that only pass a value on write nothing.
fn lower(
    writer: &mut Writer,
    node: &Node,
    inputs: &[Operand],
    parameters: &[Operand],
) -> Vec<Operand> {
    let shape = node.shapes.first();
    let single = |writer: &mut Writer| {
        let shape = shape.expect("ops other than custom calls and collectives have an output");
        lower_single(writer, &node.op, inputs, shape)
    };
    match &node.op {
        Op::Parameter(index) => vec![parameters[*index].clone()],
        Op::While { condition, body } => loops::while_loop(writer, condition, body, inputs),
        Op::Scan(scan) => loops::scan(writer, scan, inputs, &node.shapes),
        Op::Case(branches) => loops::case(writer, branches, inputs, &node.shapes),
        Op::AllReduce { kind, via } => collective::all_reduce(writer, *kind, *via, inputs),
        Op::CustomCall(call) => custom_call(writer, call, inputs),
        Op::OptimizationBarrier => barrier(writer, inputs),
        Op::Kernel(kernel) => kernels::lower(writer, kernel, node, inputs),
        _ => vec![single(writer)],
    }
}

/// Writes an op of one result.
fn lower_single(w: &mut Writer, op: &Op, inputs: &[Operand], shape: &Shape) -> Operand {
    match op {
        Op::Parameter(_)
        | Op::While { .. }
        | Op::Scan(_)
        | Op::Case(_)
        | Op::AllReduce { .. }
        | Op::OptimizationBarrier
        | Op::Kernel(_)
        | Op::CustomCall(_) => {
            unreachable!("ops of several results are written by `lower`")
        }
        Op::Constant(value) => w.constant(value, shape),
        Op::Iota(dim) => w.line(
            shape,
            &format!("stablehlo.iota dim = {dim} : {}", shape.stablehlo()),
        ),
        Op::Unary(op) => unary(w, *op, &inputs[0], shape),
        Op::Binary(op) => w.elementwise(op.name(), inputs, shape),
        Op::Compare(op) => compare(w, *op, inputs, shape),
        Op::Select => select(w, inputs, shape),
        Op::Convert(dtype) => w.convert(&inputs[0], *dtype),
        Op::Bitcast(_) => bitcast(w, &inputs[0], shape),
        Op::StopGradient | Op::WithGradient(_) => inputs[0].clone(),
        Op::Reshape(_) => w.reshape(&inputs[0], &shape.dims),
        Op::Transpose(perm) => w.transpose(&inputs[0], perm),
        Op::Broadcast { map, .. } => w.broadcast(&inputs[0], &shape.dims, map),
        Op::Reverse(dims) => w.typed("reverse", inputs, &format!("dims = {dims:?}"), shape, true),
        Op::Pad(pads) => pad(w, &inputs[0], &inputs[1], pads, shape),
        Op::Slice(slices) => slice(w, &inputs[0], slices),
        Op::DynamicSlice(sizes) => indexing::dynamic_slice(w, inputs, sizes, shape),
        Op::DynamicUpdateSlice => indexing::dynamic_update_slice(w, inputs),
        Op::Concat(dim) => w.typed("concatenate", inputs, &format!("dim = {dim}"), shape, false),
        Op::Gather { dim } => indexing::gather(w, inputs, *dim, shape),
        Op::ScatterAdd { dim } => indexing::scatter_add(w, inputs, *dim),
        Op::ScatterSet { dim } => indexing::scatter_set(w, inputs, *dim),
        Op::ArgSort => indexing::argsort(w, &inputs[0]),
        Op::Dot(dims) => contract::dot(w, &inputs[0], &inputs[1], dims, shape),
        Op::Conv(dims) => kernels::conv(w, inputs, dims, shape)
            .unwrap_or_else(|| contract::conv(w, &inputs[0], &inputs[1], dims, shape)),
        Op::Reduce { kind, dims } => reduction::reduce(w, *kind, &inputs[0], dims),
        Op::ReduceWindow { kind, window } => {
            reduction::reduce_window(w, *kind, &inputs[0], window, shape)
        }
        Op::RandomBits(_) => threefry::call(w, &inputs[0], &inputs[1], shape),
        Op::AllGather { dim } => collective::all_gather(w, &inputs[0], *dim, shape),
        Op::ReduceScatter { dim } => collective::reduce_scatter(w, &inputs[0], *dim, shape),
        Op::AllToAll { split, concat } => {
            collective::all_to_all(w, &inputs[0], *split, *concat, shape)
        }
        Op::CollectivePermute(pairs) => collective::permute(w, &inputs[0], pairs),
        Op::Sharded(cut) => sharding::constraint(w, &inputs[0], cut),
        Op::ReplicaId => world_exchange::replica_id(w)
            .unwrap_or_else(|| w.line(shape, "stablehlo.replica_id : tensor<ui32>")),
        Op::ExchangesSucceeded => world_exchange::succeeded(w),
    }
}

/// StableHLO's `abs` and `sign` exclude unsigned integers, for which they are trivial.
fn unary(w: &mut Writer, op: UnaryOp, x: &Operand, shape: &Shape) -> Operand {
    let unsigned = matches!(x.shape.dtype, DType::U32 | DType::U8);
    match op {
        UnaryOp::Abs if unsigned => x.clone(),
        UnaryOp::Sign if unsigned => {
            let one = w.full(&x.shape, 1.0);
            w.elementwise("minimum", &[x.clone(), one], shape)
        }
        UnaryOp::Erf => {
            let types = shape.stablehlo();
            let text = format!("chlo.erf {} : {types} -> {types}", x.name);
            w.line(shape, &text)
        }
        UnaryOp::IsFinite => w.typed("is_finite", std::slice::from_ref(x), "", shape, false),
        _ => w.elementwise(op.name(), std::slice::from_ref(x), shape),
    }
}

fn compare(w: &mut Writer, op: CompareOp, inputs: &[Operand], shape: &Shape) -> Operand {
    let direction = format!("compare {},", op.name());
    w.typed(&direction, inputs, "", shape, false)
}

fn select(w: &mut Writer, inputs: &[Operand], shape: &Shape) -> Operand {
    let names = list(inputs.iter().map(|input| input.name.clone()));
    let condition = inputs[0].shape.stablehlo();
    let text = format!(
        "stablehlo.select {names} : {condition}, {}",
        shape.stablehlo()
    );
    w.line(shape, &text)
}

/// A truth value has one bit in StableHLO and one byte for us, so its cast is a conversion.
fn bitcast(w: &mut Writer, x: &Operand, shape: &Shape) -> Operand {
    if x.shape.dtype == DType::Bool || shape.dtype == DType::Bool {
        return w.convert(x, shape.dtype);
    }
    w.typed("bitcast_convert", std::slice::from_ref(x), "", shape, false)
}

fn pad(w: &mut Writer, x: &Operand, value: &Operand, pads: &[PadDim], shape: &Shape) -> Operand {
    let low: Vec<i64> = pads.iter().map(|pad| pad.low).collect();
    let high: Vec<i64> = pads.iter().map(|pad| pad.high).collect();
    let interior: Vec<usize> = pads.iter().map(|pad| pad.interior).collect();
    let attributes = format!("low = {low:?}, high = {high:?}, interior = {interior:?}");
    w.typed(
        "pad",
        &[x.clone(), value.clone()],
        &attributes,
        shape,
        false,
    )
}

fn slice(w: &mut Writer, x: &Operand, slices: &[SliceDim]) -> Operand {
    let dims: Vec<usize> = slices
        .iter()
        .map(|slice| (slice.limit - slice.start).div_ceil(slice.stride))
        .collect();
    if dims == x.shape.dims {
        return x.clone();
    }
    let shape = Shape::new(x.shape.dtype, dims);
    let ranges = list(slices.iter().map(|slice| match slice.stride {
        1 => format!("{}:{}", slice.start, slice.limit),
        stride => format!("{}:{}:{stride}", slice.start, slice.limit),
    }));
    let (from, to) = (x.shape.stablehlo(), shape.stablehlo());
    let text = format!("stablehlo.slice {} [{ranges}] : ({from}) -> {to}", x.name);
    w.line(&shape, &text)
}

fn barrier(w: &mut Writer, inputs: &[Operand]) -> Vec<Operand> {
    let names = list(inputs.iter().map(|input| input.name.clone()));
    let shapes: Vec<Shape> = inputs.iter().map(|input| input.shape.clone()).collect();
    let types = list(shapes.iter().map(Shape::stablehlo));
    let text = format!("stablehlo.optimization_barrier {names} : {types}");
    w.lines(&shapes, &text)
}

fn custom_call(w: &mut Writer, call: &CustomCall, inputs: &[Operand]) -> Vec<Operand> {
    let config = list(call.attributes.iter().map(|(name, value)| {
        let name = literal::quoted(name);
        match value {
            Attribute::Int(value) => format!("{name} = {value} : i64"),
            Attribute::Float(value) => format!("{name} = {} : f32", literal::f32_text(*value)),
            Attribute::Bool(value) => format!("{name} = {value}"),
            Attribute::Text(value) => format!("{name} = {}", literal::quoted(value)),
            Attribute::Ints(values) => format!("{name} = {}", literal::int_array(values)),
        }
    }));
    let names = list(inputs.iter().map(|input| input.name.clone()));
    let types = list(inputs.iter().map(|input| input.shape.stablehlo()));
    let results = list(call.outputs.iter().map(Shape::stablehlo));
    let text = format!(
        "stablehlo.custom_call @{}({names}) {{api_version = 4 : i32, backend_config = {{{config}}}, has_side_effect = {}}} : ({types}) -> ({results})",
        literal::quoted(&call.target),
        call.has_side_effect
    );
    w.lines(&call.outputs, &text)
}
