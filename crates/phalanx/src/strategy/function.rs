//! Functions that replicas run together: traced once for each shape of their arguments, and compiled to one program.

use std::collections::BTreeSet;
use std::sync::Arc;

use phalanx_graph::{Graph, HostTensor, Program, Shape, Tensor, Value};
use phalanx_pjrt::Buffer;

use super::distributed_batch::{DistributedBatch, ExampleRows};
use super::handle::StrategyHandle;
use super::per_replica::{FirstDim, PerReplica, ReplicaBuffer};
use super::replica_context::{BatchRows, ReplicaCx, SentShapes, Wholes};
use super::replication::ReplicationAnalysis;
use super::state::{State, StateId};
use crate::engine::Compiled;
use crate::nn::Policy;
use crate::{Error, Result};

/// A batch as a function sees it: this replica's part of each tensor.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The inputs, each `[rows, ..]`.
    pub x: Vec<Tensor>,
    /// The outputs wanted, each `[rows, ..]`.
    pub y: Vec<Tensor>,
    /// The sample weights, if there are any. Padded rows have arbitrary weights, so pass them to [`ReplicaCx::mean`] or
    /// [`ReplicaCx::update_metric`], which leave padding out.
    pub weight: Option<Tensor>,
}

/// What a function can be given: `()`, [`Tensor`], an array of them, [`Inputs`], or inputs and one of the others.
///
/// The type of the function's argument says what its call takes: a [`PerReplica`] for a tensor, a
/// [`DistributedBatch`] for inputs.
pub trait Argument: Sized + private::Sealed {
    /// What the call takes.
    type Given;
    /// The tensors given, with names for messages.
    #[doc(hidden)]
    fn tensors(given: &Self::Given) -> Vec<(String, &PerReplica)>;
    /// The argument made of as many symbols.
    #[doc(hidden)]
    fn traced(given: &Self::Given, symbols: &mut dyn Iterator<Item = Tensor>) -> Option<Self>;
    /// The batch among what is given.
    #[doc(hidden)]
    #[must_use]
    fn batch(_: &Self::Given) -> Option<&DistributedBatch> {
        None
    }
}

mod private {
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for phalanx_graph::Tensor {}
    impl<const M: usize> Sealed for [phalanx_graph::Tensor; M] {}
    impl Sealed for super::Inputs {}
    impl<T: Sealed> Sealed for (super::Inputs, T) {}
}

impl Argument for () {
    type Given = ();

    fn tensors((): &()) -> Vec<(String, &PerReplica)> {
        Vec::new()
    }

    fn traced((): &(), _: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
        Some(())
    }
}

impl Argument for Tensor {
    type Given = PerReplica;

    fn tensors(given: &PerReplica) -> Vec<(String, &PerReplica)> {
        vec![("the argument".into(), given)]
    }

    fn traced(_: &PerReplica, symbols: &mut dyn Iterator<Item = Self>) -> Option<Self> {
        symbols.next()
    }
}

impl<const M: usize> Argument for [Tensor; M] {
    type Given = [PerReplica; M];

    fn tensors(given: &[PerReplica; M]) -> Vec<(String, &PerReplica)> {
        numbered("argument", given)
    }

    fn traced(_: &[PerReplica; M], symbols: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
        let tensors: Vec<Tensor> = symbols.take(M).collect();
        Self::try_from(tensors).ok()
    }
}

impl Argument for Inputs {
    type Given = DistributedBatch;

    fn tensors(given: &DistributedBatch) -> Vec<(String, &PerReplica)> {
        let mut tensors = numbered("x", &given.x);
        tensors.extend(numbered("y", &given.y));
        tensors.extend(
            given
                .weight
                .iter()
                .map(|weight| ("the weight".into(), weight)),
        );
        tensors
    }

    fn traced(given: &DistributedBatch, symbols: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
        Some(Self {
            x: symbols.take(given.x.len()).collect(),
            y: symbols.take(given.y.len()).collect(),
            weight: given.weight.as_ref().and_then(|_| symbols.next()),
        })
    }

    fn batch(given: &DistributedBatch) -> Option<&DistributedBatch> {
        Some(given)
    }
}

impl<T: Argument> Argument for (Inputs, T) {
    type Given = (DistributedBatch, T::Given);

    fn tensors(given: &Self::Given) -> Vec<(String, &PerReplica)> {
        let mut tensors = Inputs::tensors(&given.0);
        tensors.extend(T::tensors(&given.1));
        tensors
    }

    fn traced(given: &Self::Given, symbols: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
        Some((
            Inputs::traced(&given.0, symbols)?,
            T::traced(&given.1, symbols)?,
        ))
    }

    fn batch(given: &Self::Given) -> Option<&DistributedBatch> {
        Some(&given.0)
    }
}

fn numbered<'a>(name: &str, values: &'a [PerReplica]) -> Vec<(String, &'a PerReplica)> {
    let values = values.iter().enumerate();
    values
        .map(|(index, value)| (format!("{name}[{index}]"), value))
        .collect()
}

/// A function that all replicas of a strategy run together on a [`State`] and an argument.
///
/// It is traced when it is called with arguments of new shapes, and compiled to one program of all replicas: what the
/// body does on the host happens once for each trace, not at each call. See
/// [`CustomTraining::function`](super::CustomTraining::function).
pub struct Function<'f, A: Argument, const N: usize> {
    strategy: StrategyHandle,
    body: Box<FunctionBody<'f, A, N>>,
    policy: Policy,
    traces: Vec<Trace>,
    /// Warnings that the user has had.
    told: BTreeSet<String>,
}

type FunctionBody<'f, A, const N: usize> = dyn Fn(&mut ReplicaCx<'_>, A) -> [Tensor; N] + 'f;

/// The program for arguments of one shape.
struct Trace {
    key: TraceKey,
    compiled: Compiled,
    /// The entries of the state it takes, then the arguments.
    bound: Vec<usize>,
    /// The entries it replaces, which it gives first.
    changed: Vec<usize>,
    results: Vec<ResultSpec>,
    /// What it gives last, for parameter servers.
    sent: Option<SentShapes>,
}

/// The results of a run, and the arrays that are for parameter servers.
type Ran<const N: usize> = ([PerReplica; N], Vec<Buffer>);
/// What a run has for parameter servers, on the host.
type SentValues<'t> = (&'t SentShapes, Vec<HostTensor>);

struct ResultSpec {
    shape: Shape,
    same: bool,
    /// Whether its first dim is the batch; `None` where that is not said and may be.
    per_example: Option<bool>,
}

/// What a trace depends on.
struct TraceKey {
    state_id: StateId,
    arguments: Vec<(Shape, bool)>,
    /// ExampleRows of the batch on each replica, and whether they may only fill up.
    rows: Option<(usize, bool)>,
    counts: [usize; 3],
    /// The processes that train together, which may come and go in a `fit`.
    workers: usize,
}

impl TraceKey {
    fn is(&self, other: &Self) -> bool {
        self.state_id.is(&other.state_id)
            && self.arguments == other.arguments
            && self.rows == other.rows
            && self.counts == other.counts
            && self.workers == other.workers
    }
}

/// The number of traces after which a warning says that every batch seems to have a new shape.
const MANY_TRACES: usize = 8;

impl<'f, A: Argument, const N: usize> Function<'f, A, N> {
    pub(super) fn new(
        strategy: StrategyHandle,
        body: impl Fn(&mut ReplicaCx<'_>, A) -> [Tensor; N] + 'f,
    ) -> Self {
        Self {
            strategy,
            body: Box::new(body),
            policy: Policy::Float32,
            traces: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    /// Sets in which element types the layers of models compute. Under [`Policy::MixedFloat16`] optimizers need a loss scale
    /// ([`State::add_optimizer_with`]).
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self.traces.clear();
        self
    }

    /// How often it was traced: once for each shape of its argument, and each state.
    #[must_use]
    pub const fn traces(&self) -> usize {
        self.traces.len()
    }

    /// Begins one run on all replicas: replaces what the function sets of the state, and returns its results before
    /// they are computed.
    ///
    /// # Errors
    /// When state or argument belong to another strategy, replicas are given different shapes, the body makes a
    /// mistake or would let replicas differ or wait for one another, or the device fails. A failure of the
    /// computation itself shows when a result or the state is read.
    pub fn call(&mut self, state: &mut State, given: &A::Given) -> Result<[PerReplica; N]> {
        let trace = self.traced(state, given)?;
        if self.traces[trace].sent.is_some() {
            return Err(Error::user(
                "the function applies gradients to variables on parameter servers, where each update has the number of a scheduled function; let a `ClusterCoordinator` schedule one that calls `TaskContext::step`",
            ));
        }
        state.pull()?;
        let (results, _) = self.begin(trace, state, given)?;
        Ok(results)
    }

    /// One run with the values that a state has pulled from parameter servers: its results, and what it has for the servers.
    pub(super) fn run_for_servers(
        &mut self,
        state: &mut State,
        given: &A::Given,
    ) -> Result<([PerReplica; N], Option<SentValues<'_>>)> {
        let trace = self.traced(state, given)?;
        let (results, buffers) = self.begin(trace, state, given)?;
        let Some(sent) = &self.traces[trace].sent else {
            return Ok((results, None));
        };
        let engine = self.strategy.placement.engine();
        let tensors = buffers.iter().zip(&sent.shapes);
        let tensors = tensors.map(|(buffer, shape)| engine.get(buffer, shape));
        Ok((results, Some((sent, tensors.collect::<Result<_>>()?))))
    }

    /// The position of the trace for an argument, which is made where there is none.
    fn traced(&mut self, state: &State, given: &A::Given) -> Result<usize> {
        self.strategy.check("a state", &state.strategy)?;
        let key = self.key(state, given)?;
        if let Some(index) = self.traces.iter().position(|trace| trace.key.is(&key)) {
            return Ok(index);
        }
        let trace = self.trace(state, given, key)?;
        self.traces.push(trace);
        self.warn_of_many();
        Ok(self.traces.len() - 1)
    }

    fn begin(&self, trace: usize, state: &mut State, given: &A::Given) -> Result<Ran<N>> {
        let tensors = A::tensors(given);
        let rows = rows_of::<A>(given)?;
        let trace = &self.traces[trace];
        let begun = run(&self.strategy, trace, state, &tensors, rows.as_ref());
        self.strategy.placement.or_fail_together(begun)
    }

    fn key(&self, state: &State, given: &A::Given) -> Result<TraceKey> {
        let tensors = A::tensors(given);
        let mut arguments = Vec::with_capacity(tensors.len());
        for (name, tensor) in &tensors {
            tensor.check_strategy(name, &self.strategy)?;
            arguments.push((tensor.common_shape(name)?.clone(), tensor.is_replicated()));
        }
        let batch = A::batch(given);
        if let Some(batch) = batch {
            batch.check_strategy(&self.strategy)?;
        }
        let rows = rows_of::<A>(given)?;
        Ok(TraceKey {
            state_id: state.state_id.clone(),
            arguments,
            rows: rows.map(|rows| (rows.each, rows.filled.is_some())),
            counts: batch.map_or([0; 3], |batch| {
                [
                    batch.x.len(),
                    batch.y.len(),
                    usize::from(batch.weight.is_some()),
                ]
            }),
            workers: self.strategy.placement.workers(),
        })
    }

    fn trace(&mut self, state: &State, given: &A::Given, key: TraceKey) -> Result<Trace> {
        let placement = &self.strategy.placement;
        let graph = Graph::with_workers(placement.workers(), placement.local_replicas());
        let (symbols, mut replicated, rows) = parameters::<A>(&graph, given, &key);
        let argument = A::traced(given, &mut symbols.into_iter())
            .ok_or_else(|| Error::Bug("an argument without its tensors".into()))?;
        let settings = (self.policy, placement.reduction());
        let mut cx = ReplicaCx::new(&graph, state, settings, rows);
        let results = (self.body)(&mut cx, argument);
        let mut changed = cx.committed();
        let sending = cx.sending(&mut changed);
        let values = changed.iter().map(|(_, value)| ("state", value));
        let sent = sending.iter().flat_map(|sending| &sending.tensors);
        let outputs: Vec<(&str, &Tensor)> = values
            .chain(results.iter().map(|result| ("result", result)))
            .chain(sent.map(|tensor| ("sent", tensor)))
            .collect();
        let mut program = graph.finish(&outputs)?;
        for &entry in &cx.bound {
            replicated.push(cx.must_be_replicated(entry));
        }
        let analysis = ReplicationAnalysis::new(&program, &replicated);
        let outputs = program.outputs.iter().map(|(_, value)| *value);
        let own = changed.iter().map(|(entry, _)| *entry).zip(outputs.clone());
        let sent = sending
            .iter()
            .flat_map(|sending| sending.entries.iter().copied());
        let sent = sent.zip(outputs.skip(changed.len() + N));
        check(&cx, &analysis, own.chain(sent))?;
        let warnings = check_losses(&cx, &analysis, &program)?;
        cx.warnings.extend(warnings);
        let first = program.parameters.len() - cx.bound.len();
        let place = |entry| cx.bound.iter().position(|&bound| bound == entry);
        let donated = changed.iter().enumerate();
        program.donated = donated
            .filter_map(|(output, (entry, _))| Some((first + place(*entry)?, output)))
            .collect();
        for warning in std::mem::take(&mut cx.warnings) {
            if self.told.insert(warning.clone()) {
                placement.engine().notice(&warning);
            }
        }
        let specs = results.iter().zip(&program.outputs[changed.len()..]);
        Ok(Trace {
            compiled: self.compile(&program)?,
            results: specs
                .map(|(result, (_, value))| ResultSpec {
                    shape: result.shape(),
                    same: analysis.is_replicated(*value),
                    per_example: cx.is_per_example(result, analysis.is_replicated(*value)),
                })
                .collect(),
            changed: changed.into_iter().map(|(entry, _)| entry).collect(),
            sent: sending.map(|sending| cx.sent_shapes(&sending)),
            bound: cx.bound,
            key,
        })
    }

    /// The compiled program, which all processes have alike.
    fn compile(&self, program: &Program) -> Result<Compiled> {
        let compiled = self.strategy.placement.compile("function", program);
        let compiled = self.strategy.placement.or_fail_together(compiled)?;
        if let Some(world) = self.strategy.world() {
            let program = format!("program {:016x}", compiled.fingerprint());
            world.agree("a function of a training loop", &program)?;
        }
        Ok(compiled)
    }

    fn warn_of_many(&self) {
        if self.traces.len() == MANY_TRACES + 1 {
            self.strategy.placement.engine().notice(&format!(
                "warning: a function was traced and compiled {} times, for arguments of as many shapes; give batches one size, or pad what varies",
                self.traces.len()
            ));
        }
    }
}

/// The symbols of what a function is given, which arguments of the program are the same on all replicas, and the rows of the batch.
fn parameters<A: Argument>(
    graph: &Graph,
    given: &A::Given,
    key: &TraceKey,
) -> (Vec<Tensor>, Vec<bool>, Option<BatchRows>) {
    let mut replicated = Vec::new();
    let mut symbols = Vec::new();
    for ((name, _), (shape, same)) in A::tensors(given).iter().zip(&key.arguments) {
        symbols.push(graph.parameter(name, shape.clone()));
        replicated.push(*same);
    }
    let rows = key.rows.map(|(each, filled)| {
        let number = |name| graph.parameter(name, Shape::scalar(phalanx_graph::DType::U32));
        let filled = filled.then(|| [number("rows"), number("first_row")]);
        BatchRows { each, filled }
    });
    if key.rows.is_some_and(|(_, filled)| filled) {
        replicated.extend([false; 2]);
    }
    (symbols, replicated, rows)
}

/// The rows of the batch that a function is given, or of the one that its arguments were computed from.
fn rows_of<A: Argument>(given: &A::Given) -> Result<Option<Arc<ExampleRows>>> {
    let tensors = A::tensors(given);
    for (name, tensor) in &tensors {
        if let Some(why) = tensor.unsaid() {
            return Err(Error::user(format!("{name}: {why}")));
        }
    }
    let named = tensors.iter().map(|(name, t)| (name.as_str(), t.rows()));
    let batch = A::batch(given).map(|batch| ("the batch", Some(&batch.rows)));
    let all = batch.into_iter().chain(named);
    let mut all = all.filter_map(|(name, rows)| Some((name, rows?)));
    let Some((first, rows)) = all.next() else {
        return Ok(None);
    };
    if let Some((name, other)) = all.find(|(_, other)| !rows.is_like(other)) {
        return Err(Error::user(format!(
            "{first} has {:?} examples on the replicas, in arrays of {} rows, and {name} {:?}, in arrays of {}: only one can say which rows are examples; give one function values of one batch",
            rows.counts, rows.each, other.counts, other.each
        )));
    }
    Ok(Some(Arc::clone(rows)))
}

/// Refuses what would let replicas differ, of entries and what they become.
fn check(
    cx: &ReplicaCx<'_>,
    analysis: &ReplicationAnalysis,
    changed: impl Iterator<Item = (usize, Value)>,
) -> Result<()> {
    for (entry, value) in changed {
        if cx.must_be_replicated(entry) && !analysis.is_replicated(value) {
            let (name, place) = (&cx.state.entries[entry].name, cx.place_of(entry));
            return Err(Error::user(format!(
                "`{name}` would become different on each replica: what it is set to at {}:{} depends on the replica's own part of the batch; reduce gradients with `cx.all_reduce_gradients` before `cx.apply`, other values with `cx.all_reduce`, or add a value that may differ with ValueKind::Sum, Mean or First",
                place.file(),
                place.line()
            )));
        }
    }
    Ok(())
}

/// Refuses sums of the gradients of a loss that each replica has as a whole, and warns where a term of it is one.
fn check_losses(
    cx: &ReplicaCx<'_>,
    analysis: &ReplicationAnalysis,
    program: &Program,
) -> Result<Vec<String>> {
    let is_replicated = |value| analysis.is_replicated(value);
    let wholes = Wholes::new(cx, program, &is_replicated);
    let mut losses = cx.summed.iter();
    if let Some(whole) = losses.find(|loss| wholes.is_one(loss)) {
        return Err(Error::user(format!(
            "the loss whose gradients are taken at {}:{} is the same on all replicas, and the sum of its gradients is as many times too large as there are replicas; take a replica's share of it, `cx.share(&loss)`, in place of a division of your own, or the mean of its gradients: `gradients.map(|_, own| cx.all_reduce_mean(own))`",
            whole.place.file(),
            whole.place.line()
        )));
    }
    let parted = cx.summed.iter().filter(|loss| wholes.is_term_of(loss));
    let warnings = parted.map(|loss| format!(
        "warning: a term of the loss whose gradients are taken at {}:{} is the same on all replicas, and unless it is divided by their number the sum of its gradients is as many times too large; write `cx.share(&term)` in place of the term, or of a division of your own",
        loss.place.file(),
        loss.place.line()
    ));
    Ok(warnings.collect())
}

fn run<const N: usize>(
    strategy: &StrategyHandle,
    trace: &Trace,
    state: &mut State,
    tensors: &[(String, &PerReplica)],
    rows: Option<&Arc<ExampleRows>>,
) -> Result<Ran<N>> {
    let copies = state.copies(&trace.bound)?;
    state.begin_after_others(&trace.bound)?;
    let mut lists: Vec<Vec<&Buffer>> = Vec::with_capacity(strategy.local_replicas());
    for replica in 0..strategy.local_replicas() {
        let mut list: Vec<&Buffer> = tensors.iter().map(|(_, t)| t.buffer(replica)).collect();
        let filled = rows.and_then(|rows| rows.filled.as_ref());
        list.extend(
            filled
                .into_iter()
                .flatten()
                .map(|number| number.buffer(replica)),
        );
        list.extend(state.on_replica(&trace.bound, &copies, replica)?);
        lists.push(list);
    }
    let slices: Vec<&[&Buffer]> = lists.iter().map(Vec::as_slice).collect();
    let begun = trace.compiled.run(&slices);
    // What a run that does not begin has done with the arrays it was to replace, no one knows.
    state.lose(&trace.changed);
    let (outputs, done) = begun?;
    let mut outputs: Vec<_> = outputs.into_iter().map(Vec::into_iter).collect();
    let mut next = || -> Vec<Buffer> { outputs.iter_mut().filter_map(Iterator::next).collect() };
    for &entry in &trace.changed {
        state.replace(entry, next())?;
    }
    let runs = state.in_flight.steps() + 1;
    let results = trace.results.iter().enumerate().map(|(index, spec)| {
        let parts = next().into_iter().map(|buffer| ReplicaBuffer {
            buffer,
            shape: spec.shape.clone(),
        });
        let first_dim = match (spec.per_example, rows) {
            (Some(true), Some(rows)) => FirstDim::Examples(Arc::clone(rows)),
            (None, Some(rows)) => FirstDim::Unsaid(Arc::clone(rows), index),
            _ => FirstDim::Other,
        };
        PerReplica::new(strategy, parts.collect(), spec.same, first_dim).after(runs)
    });
    let results: Vec<PerReplica> = results.collect();
    // Gradients are summed over replicas, so the first has them.
    let sent = trace.sent.iter().flat_map(|sent| &sent.shapes);
    let sent = sent.filter_map(|_| next().into_iter().next()).collect();
    state.began(done, &trace.changed)?;
    let results = <[PerReplica; N]>::try_from(results)
        .map_err(|_| Error::Bug("a function without its results".into()))?;
    Ok((results, sent))
}

impl<A: Argument, const N: usize> std::fmt::Debug for Function<'_, A, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Function of {} traces on {}",
            self.traces.len(),
            self.strategy
        )
    }
}
