//! The reduction of gradients over replicas.

use std::fmt;

use phalanx_graph::op::{ReduceOp, Via};
use phalanx_graph::{DType, Graph, Scattered, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;
use crate::bytes::{counted, format_bytes};
use crate::config::{self, Component, Described, Field, Kind};

/// How gradients are summed over replicas: TensorFlow's `cross_device_ops` and its options.
///
/// By default the devices' own library all-reduces them in packs of 32 MiB and in their own element type; gradients of
/// embeddings are sent as rows where that takes fewer bytes. Every choice gives the same results up to rounding, and every
/// run the same bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduction {
    cross_device_ops: CrossDeviceOps,
    bytes_per_pack: usize,
    wire: WireFormat,
    sparse: SparseGradients,
}

impl Described for Reduction {
    const COMPONENT: Component = Component {
        name: "reduction",
        doc: "how gradients are added",
        fields: &[
            Field::optional(
                "cross_device_ops",
                Kind::OneOf(&[
                    "AllReduce",
                    "HierarchicalCopyAllReduce",
                    "ReductionToOneDevice",
                    "NcclAllReduce",
                ]),
                "who adds in a process: all replicas at once (`NcclAllReduce` is the same), groups of up to 8 first, or replica 0 alone",
            ),
            Field::optional(
                "bytes_per_pack",
                Kind::COUNT,
                "gradients are sent in packs of at least this many bytes; 0 for one pack",
            ),
            Field::optional(
                "wire",
                Kind::OneOf(&["same", "bf16", "f16", "bfloat16", "float16"]),
                "the element type in which 32-bit gradients travel; `same` is their own",
            ),
            Field::optional(
                "sparse",
                Kind::OneOf(&["when_smaller", "never"]),
                "whether gradients of embeddings travel as rows and indices",
            ),
        ],
    };
}

/// By which algorithm gradients are summed within a process. Between processes they are summed by the communicator, whatever this
/// says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CrossDeviceOps {
    /// The all-reduce of the devices' own library, as TensorFlow's `NcclAllReduce`: NCCL on NVIDIA GPUs.
    #[default]
    #[serde(alias = "NcclAllReduce")]
    AllReduce,
    /// Groups of up to 8 replicas add parts among themselves, then across groups. TensorFlow's is made for one machine
    /// of 8 GPUs; this is for any number of replicas, and pays where groups are linked faster inside than outside.
    HierarchicalCopyAllReduce,
    /// Replica 0 adds all gradients, in the order of replicas, and sends the sums: slow, and easy to reason about.
    ReductionToOneDevice,
}

/// The element type in which f32 gradients are sent between replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireFormat {
    /// Their own.
    #[default]
    Same,
    /// `bfloat16`: half the bytes, 8 bits of precision, the range of f32.
    #[serde(alias = "bfloat16")]
    Bf16,
    /// `float16`: half the bytes, 11 bits of precision, up to 65504. What is beyond becomes infinite and so skips the
    /// step of a loss scale, which this is to be used with; what is below 6e-8 becomes 0.
    #[serde(alias = "float16")]
    F16,
}

/// How sparse gradients, such as the gradients of embeddings, are reduced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SparseGradients {
    /// Replicas exchange indices and rows where all of them together take fewer bytes than the dense gradient.
    #[default]
    WhenSmaller,
    /// They are summed as dense tensors.
    Never,
}

/// TensorFlow's default is one pack (0), which waits for the last gradient before the first is sent.
impl Default for Reduction {
    fn default() -> Self {
        Self {
            cross_device_ops: CrossDeviceOps::default(),
            bytes_per_pack: 32 << 20,
            wire: WireFormat::default(),
            sparse: SparseGradients::default(),
        }
    }
}

impl Reduction {
    /// The default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the algorithm.
    #[must_use]
    pub const fn cross_device_ops(mut self, ops: CrossDeviceOps) -> Self {
        self.cross_device_ops = ops;
        self
    }

    /// Sets the least number of bytes in a pack: gradients are packed from the last layer to the first until they reach it.
    /// 0 makes one pack of all. 32 MiB by default.
    #[must_use]
    pub const fn bytes_per_pack(mut self, bytes: usize) -> Self {
        self.bytes_per_pack = bytes;
        self
    }

    /// Sets the element type in which f32 gradients are sent; they are summed in f32 in any case.
    #[must_use]
    pub const fn wire(mut self, wire: WireFormat) -> Self {
        self.wire = wire;
        self
    }

    /// Sets how the gradients of embeddings are reduced.
    #[must_use]
    pub const fn sparse(mut self, sparse: SparseGradients) -> Self {
        self.sparse = sparse;
        self
    }

    /// The reduction with these fields, others as by default: `cross_device_ops` (`AllReduce`,
    /// `HierarchicalCopyAllReduce` or `ReductionToOneDevice`), `bytes_per_pack`, `wire` (`same`, `bf16` or `f16`) and
    /// `sparse` (`when_smaller` or `never`).
    ///
    /// # Errors
    /// When a field is unknown, or its value is none of these; the error names the field.
    pub fn from_config(fields: &Value) -> Result<Self> {
        config::read("reduction", &Self::default(), fields)
    }

    /// The settings that [`from_config`](Self::from_config) reads.
    pub(crate) const FIELDS: &'static [Field] = Self::COMPONENT.fields;

    /// The fields that [`from_config`](Self::from_config) reads.
    #[must_use]
    pub fn config(&self) -> Value {
        config::write("reduction", self)
    }

    /// The sums over replicas of local gradients, given and returned in the order in which variables were created.
    #[track_caller]
    pub(crate) fn sum(&self, gradients: &[Tensor]) -> Vec<Tensor> {
        let mut sums = gradients.to_vec();
        let Some(graph) = self.graph_of(gradients) else {
            return sums;
        };
        let plan = self.plan(gradients);
        for (place, rows) in &plan.rows {
            sums[*place] = self.sum_rows(rows, &gradients[*place]);
        }
        for pack in &plan.packs {
            for (&place, sum) in pack.iter().zip(self.sum_pack(&graph, gradients, pack)) {
                sums[place] = sum;
            }
        }
        sums
    }

    /// The values that all replicas agree on, of tensors that differ between them: the [mean](Self::mean_of) of floats, the
    /// maximum of integers.
    #[track_caller]
    pub(crate) fn agreed(&self, values: &[Tensor], weight: Option<&Tensor>) -> Vec<Tensor> {
        let floats = values.iter().filter(|value| value.dtype().is_float());
        let means = self.mean_of(&floats.cloned().collect::<Vec<_>>(), weight);
        let mut means = means.into_iter();
        let agreed = values.iter().map(|value| {
            let mean = value.dtype().is_float().then(|| means.next()).flatten();
            mean.unwrap_or_else(|| value.all_reduce(ReduceOp::Max))
        });
        agreed.collect()
    }

    /// The weighted means over replicas of small tensors, in one exchange. `weight` is a scalar of this replica, such as its
    /// number of examples; without it replicas count alike. A replica of weight 0 does not count, even if it has NaN; where all have this
    /// weight, each keeps its own values. 16-bit floats are multiplied, sent and added in f32.
    #[track_caller]
    pub(crate) fn mean_of(&self, values: &[Tensor], weight: Option<&Tensor>) -> Vec<Tensor> {
        let Some(graph) = self.graph_of(values) else {
            return values.to_vec();
        };
        let Some(weight) = weight else {
            return graph.all_mean(&values.iter().collect::<Vec<_>>(), self.via());
        };
        let weighted = |value: &Tensor| {
            let value = value.convert(value.dtype().wide());
            let weight = weight.convert(value.dtype());
            let counts = weight.not_equal(&weight.like(0.0));
            let counts = counts.broadcast_to(&value.dims());
            counts.select(&(&value * weight), &value.zeros_like())
        };
        let mut sent: Vec<Tensor> = values.iter().map(weighted).collect();
        sent.push(weight.clone());
        let sent: Vec<&Tensor> = sent.iter().collect();
        let mut sums = graph.all_reduce(&sent, ReduceOp::Sum, self.via());
        let Some(total) = sums.pop() else {
            return sums;
        };
        let nothing = total.equal(&total.like(0.0));
        let total = nothing.select(&total.like(1.0), &total);
        let mean = |(sum, own): (&Tensor, &Tensor)| {
            let nothing = nothing.broadcast_to(&own.dims());
            let mean = sum / total.convert(sum.dtype());
            nothing.select(own, &mean.convert(own.dtype()))
        };
        sums.iter().zip(values).map(mean).collect()
    }

    /// A few words for the line at the start of a training with this number of processes.
    pub(crate) fn describe(&self, workers: usize) -> String {
        let ops = match self.cross_device_ops {
            _ if workers > 1 => "all-reduce",
            CrossDeviceOps::AllReduce => "all-reduce",
            CrossDeviceOps::HierarchicalCopyAllReduce => "hierarchical all-reduce",
            CrossDeviceOps::ReductionToOneDevice => "reduction to one device",
        };
        match self.wire {
            WireFormat::Same => ops.to_owned(),
            WireFormat::Bf16 => format!("{ops} in bf16"),
            WireFormat::F16 => format!("{ops} in f16"),
        }
    }

    /// Describes the exchange of these gradients: how many are sent in how many packs, and how many as rows.
    #[must_use]
    pub fn report(&self, gradients: &[Tensor]) -> String {
        let plan = self.plan(gradients);
        plan.to_string()
    }

    /// Whether gradients travel in 16 bits.
    pub(crate) const fn is_narrow(&self) -> bool {
        !matches!(self.wire, WireFormat::Same)
    }

    fn via(&self) -> Via {
        match self.cross_device_ops {
            CrossDeviceOps::AllReduce => Via::Native,
            CrossDeviceOps::HierarchicalCopyAllReduce => Via::Hierarchical,
            CrossDeviceOps::ReductionToOneDevice => Via::OneDevice,
        }
    }

    /// The graph of the tensors, if there is something to add and someone to add it with.
    fn graph_of(&self, tensors: &[Tensor]) -> Option<Graph> {
        let graph = tensors.first()?.graph();
        (graph.replicas() > 1).then(|| graph.clone())
    }

    fn on_wire(&self, dtype: DType) -> DType {
        match (dtype, self.wire) {
            (DType::F32, WireFormat::Bf16) => DType::Bf16,
            (DType::F32, WireFormat::F16) => DType::F16,
            (other, _) => other,
        }
    }

    fn plan(&self, gradients: &[Tensor]) -> SendPlan {
        let mut rows = Vec::new();
        let mut dense = Vec::new();
        for (place, gradient) in gradients.iter().enumerate() {
            match self.rows_of(gradient) {
                Some(found) => rows.push((place, found)),
                None => dense.push((
                    place,
                    self.on_wire(gradient.dtype()),
                    gradient.shape().len(),
                )),
            }
        }
        SendPlan {
            packs: packs(&dense, self.bytes_per_pack),
            dense_bytes: dense.iter().map(|(_, dtype, len)| dtype.size() * len).sum(),
            row_bytes: rows.iter().map(|(_, rows)| self.row_bytes(rows)).sum(),
            rows,
        }
    }

    /// The indices and rows of a sparse gradient, where all replicas' together take fewer bytes than the dense one.
    pub(crate) fn rows_of(&self, gradient: &Tensor) -> Option<Scattered> {
        if self.sparse == SparseGradients::Never {
            return None;
        }
        let rows = gradient.scattered()?;
        let whole = self.on_wire(gradient.dtype()).size() * gradient.shape().len();
        (self.row_bytes(&rows) * gradient.graph().replicas() < whole).then_some(rows)
    }

    /// The bytes that one replica sends of its rows and indices.
    fn row_bytes(&self, rows: &Scattered) -> usize {
        let row = self.on_wire(rows.rows.dtype()).size() * rows.rows.shape().len();
        row + rows.indices.shape().byte_len()
    }

    /// Gathers the rows of all replicas, in their order, and scatters them at once, so that rows of one index are summed.
    fn sum_rows(&self, rows: &Scattered, gradient: &Tensor) -> Tensor {
        if rows.rows.shape().is_empty() {
            return gradient.clone();
        }
        let dtype = rows.rows.dtype();
        let sent = rows.rows.convert(self.on_wire(dtype));
        let all = Scattered {
            indices: self.gathered(&rows.indices, 0),
            rows: self.gathered(&sent, rows.dim).convert(dtype),
            ..rows.clone()
        };
        all.dense().reshape(&gradient.dims())
    }

    /// The tensors of all replicas joined along a dim, in their order: by the devices' own library or between processes, or, as the
    /// other ways only add, by adding what has zeros in the place of the others.
    #[track_caller]
    fn gathered(&self, tensor: &Tensor, dim: usize) -> Tensor {
        let graph = tensor.graph();
        if self.via() == Via::Native || graph.workers() > 1 {
            return tensor.all_gather(dim);
        }
        let mut dims = tensor.dims();
        dims.insert(dim, graph.replicas());
        let own: Vec<usize> = (0..dims.len()).filter(|&other| other != dim).collect();
        let tensors = tensor.broadcast_in(&dims, &own);
        let number = graph.iota(Shape::new(DType::U32, dims), dim);
        let is_own = number.equal(&graph.replica_id().broadcast_to(&number.dims()));
        let placed = is_own.select(&tensors, &tensors.zeros_like());
        let all = graph.all_reduce(&[&placed], ReduceOp::Sum, self.via());
        let mut joined = tensor.dims();
        joined[dim] *= graph.replicas();
        all[0].reshape(&joined)
    }

    fn sum_pack(&self, graph: &Graph, gradients: &[Tensor], pack: &[usize]) -> Vec<Tensor> {
        let narrow = |&place: &usize| {
            let gradient = &gradients[place];
            gradient.convert(self.on_wire(gradient.dtype()))
        };
        let sent: Vec<Tensor> = pack.iter().map(narrow).collect();
        let sent: Vec<&Tensor> = sent.iter().collect();
        let sums = graph.all_reduce(&sent, ReduceOp::Sum, self.via());
        let sums = sums.iter().zip(pack);
        sums.map(|(sum, &place)| sum.convert(gradients[place].dtype()))
            .collect()
    }
}

/// How each gradient is sent, by its position.
struct SendPlan {
    packs: Vec<Vec<usize>>,
    rows: Vec<(usize, Scattered)>,
    dense_bytes: usize,
    row_bytes: usize,
}

impl fmt::Display for SendPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: usize = self.packs.iter().map(Vec::len).sum();
        let bytes = format_bytes(self.dense_bytes as u64);
        let (count, packs) = (
            counted(count, "gradient"),
            counted(self.packs.len(), "pack"),
        );
        write!(f, "{count} ({bytes}) in {packs}")?;
        match self.rows.len() {
            0 => Ok(()),
            count => write!(
                f,
                ", {count} as rows ({})",
                format_bytes(self.row_bytes as u64)
            ),
        }
    }
}

/// Places of what is sent together, of `(place, element type, elements)`: from the last to the first, a pack for each
/// element type filled until it has as many bytes as `limit`; one for each when that is 0.
pub(super) fn packs(tensors: &[(usize, DType, usize)], limit: usize) -> Vec<Vec<usize>> {
    let mut full: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<(DType, usize, Vec<usize>)> = Vec::new();
    for &(place, dtype, length) in tensors.iter().rev() {
        let at = open
            .iter()
            .position(|(of, ..)| *of == dtype)
            .unwrap_or_else(|| {
                open.push((dtype, 0, Vec::new()));
                open.len() - 1
            });
        let (_, bytes, pack) = &mut open[at];
        *bytes += dtype.size() * length;
        pack.push(place);
        if limit > 0 && *bytes >= limit {
            full.push(open.remove(at).2);
        }
    }
    full.extend(open.into_iter().map(|(.., pack)| pack));
    full
}
