//! Exchanges with the replicas of other processes: the custom calls `phalanx.exchange_start`, `phalanx.exchange_done` and
//! `phalanx.first_replica`.
//!
//! What: `start` copies a replica's arrays and returns a handle at once. When all replicas of this process have started an
//! exchange, it is handed to the [`Exchange`], which carries it out on threads of its own. `done` waits for the result and
//! copies it to the replica.
//!
//! Invariants: a program starts its exchanges in one order, on every replica and in every process, so the count of a replica's
//! starts is the number of the exchange everywhere. An exchange that fails does not fail the program: `done` says so, with
//! zeros, and the program keeps its old state.
//!
//! The table of bound exchanges belongs to the process, as XLA's own registry of custom calls does. A run names its entry by its
//! launch id ([`launch_id`]), so that a program's text is the same whatever carries its exchanges.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_pjrt::{
    Client, CustomCallAttribute, CustomCallError, CustomCallFrame, ElementType, StatusCode,
};

use crate::handlers::register;
use crate::library::KernelError;
use crate::sync::lock;

/// What carries values between the replicas of several processes.
pub trait Exchange: Send + Sync {
    /// The number of this process' first replica among the replicas of all processes.
    fn first_replica(&self) -> u32;

    /// Memory of this many bytes for the arrays of one replica, aligned to 64 bytes; its contents are arbitrary.
    fn memory(&self, bytes: usize) -> Box<dyn ExchangeMemory>;

    /// Begins an exchange and returns; `request.done` is called from any thread, sooner than [`deadline`](Self::deadline).
    fn start(&self, request: ExchangeRequest);

    /// How long an exchange can take before it has failed.
    fn deadline(&self) -> Duration;
}

/// Memory that an [`Exchange`] sends from and receives into.
pub trait ExchangeMemory: Send + Sync {
    /// Its bytes.
    fn bytes(&self) -> &[u8];
    /// Its bytes, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// One exchange of the replicas of this process with the replicas of all others.
pub struct ExchangeRequest {
    /// Its number, from 0 on without a gap, the same in every process.
    pub number: u64,
    /// What becomes of the elements.
    pub op: ExchangeOp,
    /// The type of all elements.
    pub element: ElementType,
    /// The elements of each replica of this process, in order: its arrays, end to end.
    pub replicas: Vec<Box<dyn ExchangeMemory>>,
    /// Takes the result: the combined arrays laid out as one replica's, or, of a gather, every replica's memory in turn; `None`
    /// where the exchange failed.
    pub done: ExchangeDone,
}

/// Takes the result of an exchange.
pub type ExchangeDone = Box<dyn FnOnce(Option<Box<dyn ExchangeMemory>>) + Send>;

/// What becomes of exchanged arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeOp {
    /// Their sum, in the order of replicas.
    Sum,
    /// The largest of each element; of truth values, whether one is true.
    Max,
    /// The smallest of each element; of truth values, whether all are true.
    Min,
    /// Every replica's.
    Gather,
}

/// An exchange that programs of this process can reach by its slot, for as long as this lives.
pub struct ExchangeBinding {
    slot: u32,
    local_replicas: usize,
    waits: Arc<AtomicU64>,
}

/// The bits of a launch id that say which exchange it is.
const SLOT_BITS: u32 = 10;

/// A launch id for a run of a program that exchanges values by the exchange of this slot: another one for each run.
///
/// It is negative, as no id that the plugin gives by itself is.
#[must_use]
pub fn launch_id(slot: u32) -> i32 {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed) << SLOT_BITS;
    i32::MIN | (run | slot).cast_signed()
}

static LINKS: Mutex<BTreeMap<u32, Arc<Link>>> = Mutex::new(BTreeMap::new());

impl ExchangeBinding {
    /// Makes an exchange reachable for programs of this client, with this many replicas in this process.
    ///
    /// # Errors
    /// The plugin has no custom calls, or the process has more exchanges than launch ids tell apart.
    pub fn new(
        client: &Client,
        exchange: Arc<dyn Exchange>,
        local_replicas: usize,
    ) -> Result<Self, KernelError> {
        register(client, "phalanx.exchange_start", start)?;
        register(client, "phalanx.exchange_done", done)?;
        register(client, "phalanx.first_replica", first_replica)?;
        let mut links = lock(&LINKS);
        let free = (0..1 << SLOT_BITS).find(|slot| !links.contains_key(slot));
        let slot = free.ok_or_else(|| KernelError::Register {
            reason: format!("{} exchanges between processes are bound", links.len()),
        })?;
        let waits = Arc::default();
        let link = Link::new(exchange, local_replicas, Arc::clone(&waits));
        links.insert(slot, Arc::new(link));
        Ok(Self {
            slot,
            local_replicas,
            waits,
        })
    }

    /// The number by which runs name the exchange, by their [`launch_id`]: the lowest that is free.
    #[must_use]
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Nanoseconds in which all replicas of this process have waited for results at the same time, while they are counted: what computation
    /// did not hide.
    #[must_use]
    pub fn waits(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.waits)
    }

    /// Puts another exchange in the place of this one, whose numbers begin at 0 again. No program may be running.
    pub fn replace(&self, exchange: Arc<dyn Exchange>) {
        let waits = Arc::clone(&self.waits);
        let link = Arc::new(Link::new(exchange, self.local_replicas, waits));
        lock(&LINKS).insert(self.slot, link);
    }
}

impl Drop for ExchangeBinding {
    fn drop(&mut self) {
        lock(&LINKS).remove(&self.slot);
    }
}

/// An exchange, and the calls of this process' replicas that belong to it.
struct Link {
    exchange: Arc<dyn Exchange>,
    state: Mutex<LinkState>,
    changed: Condvar,
    /// Nanoseconds in which all replicas have waited for results.
    waits: Arc<AtomicU64>,
}

struct LinkState {
    /// The number of exchanges that each replica has started.
    started: Vec<u64>,
    /// Exchanges that some replicas of this process have not started.
    arriving: HashMap<u64, PendingExchange>,
    /// Results that some replicas of this process have not taken.
    results: HashMap<u64, Received>,
}

struct PendingExchange {
    op: ExchangeOp,
    element: ElementType,
    replicas: Vec<Option<Box<dyn ExchangeMemory>>>,
}

struct Received {
    memory: Option<Arc<Box<dyn ExchangeMemory>>>,
    /// The number of replicas that will take it.
    left: usize,
    /// The least that a replica has waited for it: what it waited for the slowest of its own process is no wait for others.
    least: Duration,
}

impl Link {
    fn new(exchange: Arc<dyn Exchange>, local_replicas: usize, waits: Arc<AtomicU64>) -> Self {
        Self {
            exchange,
            state: Mutex::new(LinkState {
                started: vec![0; local_replicas.max(1)],
                arriving: HashMap::new(),
                results: HashMap::new(),
            }),
            changed: Condvar::new(),
            waits,
        }
    }

    fn of(call: &CustomCallFrame<'_>) -> Result<Arc<Self>, CustomCallError> {
        let run = call.run_id()?;
        if run >= 0 {
            return Err(internal(format!(
                "run {run} exchanges values with other processes, and its launch id names no exchange"
            )));
        }
        let slot = (run & ((1 << SLOT_BITS) - 1)) as u32;
        lock(&LINKS).get(&slot).cloned().ok_or_else(|| {
            CustomCallError::new(
                StatusCode::FailedPrecondition,
                format!("the program exchanges values with other processes by slot {slot}, which is not bound; its strategy was dropped"),
            )
        })
    }

    /// Adds a replica's arrays to its next exchange; the last replica of this process begins it.
    fn arrive(
        self: &Arc<Self>,
        replica: usize,
        op: ExchangeOp,
        element: ElementType,
        memory: Box<dyn ExchangeMemory>,
    ) -> Result<u64, CustomCallError> {
        let mut state = lock(&self.state);
        let local = state.started.len();
        let Some(started) = state.started.get_mut(replica) else {
            return Err(internal(format!(
                "replica {replica} of {local} in an exchange"
            )));
        };
        let number = *started;
        *started += 1;
        let arrivals = state
            .arriving
            .entry(number)
            .or_insert_with(|| PendingExchange {
                op,
                element,
                replicas: (0..local).map(|_| None).collect(),
            });
        if (arrivals.op, arrivals.element) != (op, element) {
            return Err(internal(format!(
                "replica {replica} comes to exchange {number} with {op:?} of {element:?}, another with {:?} of {:?}",
                arrivals.op, arrivals.element
            )));
        }
        arrivals.replicas[replica] = Some(memory);
        if arrivals.replicas.iter().any(Option::is_none) {
            return Ok(number);
        }
        let arrivals = state.arriving.remove(&number);
        drop(state);
        if let Some(arrivals) = arrivals {
            self.begin(number, arrivals);
        }
        Ok(number)
    }

    fn begin(self: &Arc<Self>, number: u64, arrivals: PendingExchange) {
        let (link, left) = (Arc::clone(self), arrivals.replicas.len());
        let done = move |memory: Option<Box<dyn ExchangeMemory>>| {
            let received = Received {
                memory: memory.map(Arc::new),
                left,
                least: Duration::MAX,
            };
            lock(&link.state).results.insert(number, received);
            link.changed.notify_all();
        };
        self.exchange.start(ExchangeRequest {
            number,
            op: arrivals.op,
            element: arrivals.element,
            replicas: arrivals.replicas.into_iter().flatten().collect(),
            done: Box::new(done),
        });
    }

    /// Waits for the result of an exchange, and takes it for one replica.
    fn take(&self, number: u64) -> Result<Option<Arc<Box<dyn ExchangeMemory>>>, CustomCallError> {
        let (start, deadline) = (Instant::now(), self.exchange.deadline());
        let mut state = lock(&self.state);
        loop {
            if let Some(received) = state.results.get_mut(&number) {
                received.left -= 1;
                received.least = received.least.min(start.elapsed());
                let (left, least) = (received.left, received.least);
                let taken = received.memory.clone();
                if left == 0 {
                    state.results.remove(&number);
                    let waited = u64::try_from(least.as_nanos()).unwrap_or(u64::MAX);
                    self.waits.fetch_add(waited, Ordering::Relaxed);
                }
                return Ok(taken);
            }
            let Some(left) = deadline.checked_sub(start.elapsed()) else {
                return Err(CustomCallError::new(
                    StatusCode::DeadlineExceeded,
                    format!(
                        "exchange {number} has no result after {} s; another replica of this process is stuck or failed",
                        deadline.as_secs()
                    ),
                ));
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Operands: the number of the replica in this process (u32), the handle of the exchange started before (i64), arrays.
/// Result: a handle.
fn start(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let link = Link::of(call)?;
    let op = match call.attribute("op")? {
        CustomCallAttribute::Text("add") => ExchangeOp::Sum,
        CustomCallAttribute::Text("maximum" | "or") => ExchangeOp::Max,
        CustomCallAttribute::Text("minimum" | "and") => ExchangeOp::Min,
        CustomCallAttribute::Text("gather") => ExchangeOp::Gather,
        other => return Err(internal(format!("there is no exchange {other:?}"))),
    };
    let within = link.exchange.deadline();
    let replica = u32::from_ne_bytes(scalar(call, 0, within)?) as usize;
    let (element, _) = call.operand_shape(2)?;
    let arrays = 2..call.operands();
    let lengths = arrays.clone().map(|index| call.operand_size(index));
    let mut memory = link.exchange.memory(lengths.sum::<Result<_, _>>()?);
    call.copy_operands(arrays, memory.bytes_mut(), within)?;
    let number = link.arrive(replica, op, element, memory)? as i64;
    call.copy_to_results(0..1, Some(&number.to_ne_bytes()), within)
}

/// Operands: the number of the replica (u32), the handle of the exchange, the handle of the last one that must be started before
/// this waits, and whether the one before succeeded, so that this waits after it. Results: whether it succeeded, the arrays.
fn done(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let link = Link::of(call)?;
    let within = link.exchange.deadline();
    let number = i64::from_ne_bytes(scalar(call, 1, within)?);
    let memory = link.take(number.unsigned_abs())?;
    let succeeded = [u8::from(memory.is_some())];
    call.copy_to_results(0..1, Some(&succeeded), within)?;
    let arrays = memory.as_ref().map(|memory| memory.bytes());
    call.copy_to_results(1..call.results(), arrays, within)
}

fn first_replica(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let exchange = &Link::of(call)?.exchange;
    let first = exchange.first_replica().to_ne_bytes();
    call.copy_to_results(0..1, Some(&first), exchange.deadline())
}

/// The bytes of an operand that is a scalar.
fn scalar<const BYTES: usize>(
    call: &CustomCallFrame<'_>,
    index: usize,
    within: Duration,
) -> Result<[u8; BYTES], CustomCallError> {
    let mut bytes = [0; BYTES];
    call.copy_operands(index..index + 1, &mut bytes, within)?;
    Ok(bytes)
}

fn internal(message: String) -> CustomCallError {
    CustomCallError::new(StatusCode::Internal, message)
}
