//! `Communicator`: one rank's end of the group, and the order in which its exchanges run.
//!
//! Exchanges run one at a time, in the order of tickets. A blocking call takes the next ticket and runs its exchange on the calling
//! thread, which saves small ones two changes of thread. What is handed over by `start_*` runs on a thread of the communicator when
//! its ticket's turn comes, and its callback on another one, so that a callback that computes for long holds up no exchange.

use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::algorithms::AlgorithmTable;
use crate::arena::{Arena, Buffer};
use crate::element::{Element, ReduceOp, check, whole};
use crate::engine::Engine;
use crate::error::CollectiveError;
use crate::frame::Call;
use crate::mpi::{EndOfJob, Mpi, MpiLinks};
use crate::options::{CommunicatorOptions, Transport};
use crate::shared::{Array, Shared};
use crate::shares::share;
use crate::state::{Announce, State};
use crate::sync::lock;
use crate::tickets::{Answer, Job};

/// Gets the array back when its exchange is done, or why it failed; called by a thread of the communicator.
pub type Done = Box<dyn FnOnce(Result<Buffer, CollectiveError>) + Send>;
/// Gets the arrays of all ranks in their order, or why the exchange failed; called by a thread of the communicator.
pub type Gathered = Box<dyn FnOnce(Result<Vec<Vec<u8>>, CollectiveError>) + Send>;

/// What [`Communicator::start_all_reduce`] is handed.
#[derive(Debug)]
pub struct AllReduce {
    /// The elements, then the results.
    pub buffer: Buffer,
    /// Their type.
    pub element: Element,
    /// The reduction.
    pub op: ReduceOp,
}

/// One worker's end of a group of equal workers: sums and gathers over all of them. Cheap to clone.
///
/// All ranks must make the same calls with the same tickets; which ticket a blocking call gets follows from the calls before it.
/// The results have the same bits on all ranks, in every run, and whatever carries them: elements are reduced in the order of ranks.
///
/// The first failure of an exchange is final. All ranks hear of it, and every later call gets it at once. A rank that had all it
/// needed before may still have completed the exchange that failed on others, but never the one after it.
#[derive(Clone)]
pub struct Communicator(Arc<Handle>);

struct Handle {
    state: Arc<State>,
    engine: Arc<Mutex<Engine>>,
    arena: Option<Arc<Arena>>,
    table: AlgorithmTable,
    /// The MPI library that carries exchanges, if one does.
    library: Option<String>,
    threads: OnceLock<()>,
}

impl Communicator {
    /// Joins the group as `rank`: `addresses` is where each rank listens, `listener` where this one does.
    ///
    /// It returns when all ranks are connected. Ranks may come in any order; a connection that is refused is tried again until the
    /// join timeout. The listener is non-blocking afterwards, and may serve the next generation.
    ///
    /// # Errors
    /// A rank cannot be reached in time, is of another job or generation, or has other options.
    pub fn connect(
        rank: usize,
        addresses: &[SocketAddr],
        listener: &TcpListener,
        options: &CommunicatorOptions,
    ) -> Result<Self, CollectiveError> {
        let group = crate::connect::connect(rank, addresses, listener, options)?;
        Ok(Self::new(group.state, group.engine, group.arena))
    }

    /// Joins the group of all processes that MPI's launcher started; all make the same communicators at the same time.
    ///
    /// Of the options the algorithm, the timeout and the wire count. A failure ends the whole job some seconds later, with exit code
    /// 75: MPI can neither take back an exchange nor go on without a rank.
    ///
    /// # Errors
    /// Another rank has other options, or does not come within the timeout; the options make no sense.
    pub fn over_mpi(
        mpi: &'static Mpi,
        options: &CommunicatorOptions,
    ) -> Result<Self, CollectiveError> {
        options.check()?;
        let addresses = (0..mpi.size()).map(|rank| format!("rank {rank} of MPI's"));
        let state = State::new(
            mpi.rank(),
            addresses.collect(),
            options.generation,
            options.timeout,
        );
        let state = Arc::new(state);
        let _ = state.announce.set(Box::new(EndOfJob(mpi)));
        let links = MpiLinks::new(mpi, &state).map_err(|error| state.fail(error))?;
        let engine = Engine::over_mpi(Arc::clone(&state), links, options);
        let communicator = Self::with_library(state, engine, None, Some(mpi.name()));
        let said = format!("{:?} {:?}", options.algorithm, options.wire);
        let all = communicator.all_gather(said.as_bytes(), Element::U8)?;
        match all.iter().position(|other| other != said.as_bytes()) {
            None => Ok(communicator),
            Some(rank) => {
                let got = String::from_utf8_lossy(&all[rank]).into_owned();
                Err(communicator.0.state.fail(CollectiveError::Mismatch {
                    rank,
                    expected: format!("the options {said} (algorithm, wire)"),
                    got,
                }))
            }
        }
    }

    /// Ranks in this process, for tests and simulations; hand each to a thread. They share memory whatever the options say.
    ///
    /// # Errors
    /// The system has no address space for them; the options make no sense.
    pub fn in_memory(
        size: usize,
        options: &CommunicatorOptions,
    ) -> Result<Vec<Self>, CollectiveError> {
        options.check()?;
        let arenas = (0..size).map(|_| Arena::in_process().map(Arc::new));
        let arenas = arenas.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<String> = (0..size).map(|rank| format!("thread {rank}")).collect();
        let state = |rank| State::new(rank, addresses.clone(), options.generation, options.timeout);
        let states: Vec<Arc<State>> = (0..size).map(|rank| Arc::new(state(rank))).collect();
        let ranks = arenas.iter().enumerate().zip(&states);
        let ranks = ranks.map(|((rank, arena), state)| {
            let peers = states.iter().map(Arc::downgrade).collect();
            let _ = state.announce.set(Box::new(ToThreads { rank, peers }));
            let shared = Shared::new((0..size).collect(), rank, arenas.clone());
            let options = CommunicatorOptions {
                transport: Transport::SharedMemory,
                ..options.clone()
            };
            let engine = Engine::new(Arc::clone(state), Some(shared), None, &options);
            Self::new(Arc::clone(state), engine, Some(Arc::clone(arena)))
        });
        Ok(ranks.collect())
    }

    fn new(state: Arc<State>, engine: Engine, arena: Option<Arc<Arena>>) -> Self {
        Self::with_library(state, engine, arena, None)
    }

    fn with_library(
        state: Arc<State>,
        engine: Engine,
        arena: Option<Arc<Arena>>,
        library: Option<String>,
    ) -> Self {
        Self(Arc::new(Handle {
            table: engine.table().clone(),
            library,
            state,
            engine: Arc::new(Mutex::new(engine)),
            arena,
            threads: OnceLock::new(),
        }))
    }

    /// This worker's number, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.state.rank
    }

    /// The number of workers.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.state.size
    }

    /// The incarnation of the group.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.state.generation
    }

    /// The MPI library that carries the exchanges, as it names itself; none where connections and shared memory do.
    #[must_use]
    pub fn library(&self) -> Option<&str> {
        self.0.library.as_deref()
    }

    /// Which algorithm exchanges of which size use; it prints as a table.
    #[must_use]
    pub fn algorithms(&self) -> &AlgorithmTable {
        &self.0.table
    }

    /// Memory for an array, where other ranks of this machine can read it: what lies there is not copied before it is exchanged.
    /// It holds anything.
    #[must_use]
    pub fn buffer(&self, length: usize) -> Buffer {
        match &self.0.arena {
            Some(arena) => Buffer::in_arena(arena, length),
            None => Buffer::on_heap(length),
        }
    }

    /// Reduces `data` over all ranks, in place.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    pub fn all_reduce(
        &self,
        data: &mut [u8],
        element: Element,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        check(data.len(), element, op)?;
        self.run(Call::AllReduce(op), element, slice(data))
            .map(drop)
    }

    /// As [`Communicator::all_reduce`], without copies where the buffer is from [`Communicator::buffer`].
    ///
    /// # Errors
    /// See [`CollectiveError`]; then the buffer may hold anything.
    pub fn all_reduce_buffer(
        &self,
        buffer: &mut Buffer,
        element: Element,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        check(buffer.len(), element, op)?;
        let array = self.0.array(buffer);
        let done = self.run(Call::AllReduce(op), element, array);
        if done.is_err() && lock(&self.0.engine).may_still_use(&array) {
            buffer.leave();
        }
        done.map(drop)
    }

    /// Reduces `data` over all ranks; afterwards each has the results of its [`share`] in place, and anything around it. Returns
    /// the share, in elements.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    pub fn reduce_scatter(
        &self,
        data: &mut [u8],
        element: Element,
        op: ReduceOp,
    ) -> Result<Range<usize>, CollectiveError> {
        check(data.len(), element, op)?;
        let share = share(data.len() / element.size(), self.size(), self.rank());
        self.run(Call::ReduceScatter(op), element, slice(data))?;
        Ok(share)
    }

    /// The arrays of all ranks, in the order of ranks; they may differ in length.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    pub fn all_gather(
        &self,
        data: &[u8],
        element: Element,
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        whole(data.len(), element)?;
        let array = Array {
            // Gathers only read.
            pointer: data.as_ptr().cast_mut(),
            length: data.len(),
            offset: None,
            is_lent: true,
        };
        self.run(Call::AllGather, element, array)
    }

    /// Copies the `data` of rank `root` to all.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    pub fn broadcast(&self, root: usize, data: &mut [u8]) -> Result<(), CollectiveError> {
        if root >= self.size() {
            return Err(CollectiveError::Unsupported {
                what: format!("the array of rank {root} in a group of {}", self.size()),
            });
        }
        self.run(Call::Broadcast(root), Element::U8, slice(data))
            .map(drop)
    }

    /// Waits until all ranks have come.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        self.run(Call::Barrier, Element::U8, slice(&mut []))
            .map(drop)
    }

    /// Reserves a number of tickets and returns the first: for exchanges that are started in an order that may differ between ranks.
    /// The reservations themselves must be made in the same order on all ranks, also with blocking calls, which take one each.
    #[must_use]
    pub fn reserve_tickets(&self, count: u64) -> u64 {
        let mut turns = lock(&self.0.state.turns);
        let first = turns.reserved;
        turns.reserved += count;
        first
    }

    /// Hands over an all-reduce; it runs when all smaller tickets are done. Never waits.
    ///
    /// `done` is called by a thread that has denormals flushed to zero, as the threads have that run compiled programs; callbacks
    /// follow one another. After a failure it is called at once, by whichever thread finds it.
    pub fn start_all_reduce(&self, ticket: u64, request: AllReduce, done: Done) {
        let AllReduce {
            buffer,
            element,
            op,
        } = request;
        let checked = check(buffer.len(), element, op);
        let job = Job {
            call: Call::AllReduce(op),
            element,
            buffer,
            answer: Answer::Array(done),
        };
        self.start(ticket, checked, job);
    }

    /// Hands over an all-gather, as [`Communicator::start_all_reduce`] an all-reduce.
    pub fn start_all_gather(&self, ticket: u64, buffer: Buffer, element: Element, done: Gathered) {
        let checked = whole(buffer.len(), element);
        let job = Job {
            call: Call::AllGather,
            element,
            buffer,
            answer: Answer::Arrays(done),
        };
        self.start(ticket, checked, job);
    }

    /// Ends the work of the group: every waiting and every coming call fails at once, here and on all other ranks.
    pub fn abort(&self, reason: &str) {
        self.0.state.fail(CollectiveError::Aborted {
            by: self.rank(),
            blamed: Vec::new(),
            reason: reason.to_owned(),
        });
    }

    /// Tells the other ranks that this one has had its last exchange, as its end does: who waits for it learns that it waits in vain.
    pub fn leave(&self) {
        if let Some(announce) = self.0.state.announce.get() {
            announce.leaves();
        }
    }

    /// Why the group works no more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<CollectiveError> {
        self.0.state.failure()
    }

    fn run(
        &self,
        call: Call,
        element: Element,
        array: Array,
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let ticket = self.reserve_tickets(1);
        let state = &self.0.state;
        state.enter(ticket).map_err(|error| state.fail(error))?;
        let result = lock(&self.0.engine).run(ticket, call, element, array);
        state.leave();
        result
    }

    fn start(&self, ticket: u64, checked: Result<(), CollectiveError>, job: Job) {
        let state = &self.0.state;
        if let Err(error) = checked {
            // Its ticket will never be used here, so nobody can go on.
            state.fail(error);
        }
        self.0.start_threads();
        let mut turns = lock(&state.turns);
        let taken = ticket < turns.turn || turns.pending.contains_key(&ticket);
        if taken {
            drop(turns);
            job.answer.failed(state.fail(CollectiveError::Unsupported {
                what: format!("two arrays under ticket {ticket}"),
            }));
        } else if let Some(failure) = state.failure() {
            drop(turns);
            job.answer.failed(failure);
        } else {
            turns.pending.insert(ticket, job);
            state.wake(&turns);
        }
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, size) = (self.rank(), self.size());
        write!(
            f,
            "Communicator(rank {rank} of {size}, generation {})",
            self.generation()
        )
    }
}

/// An array that is not in the arena.
fn slice(data: &mut [u8]) -> Array {
    Array {
        pointer: data.as_mut_ptr(),
        length: data.len(),
        offset: None,
        is_lent: true,
    }
}

impl Handle {
    fn array(&self, buffer: &Buffer) -> Array {
        array_of(buffer, self.arena.as_ref())
    }

    fn start_threads(&self) {
        self.threads.get_or_init(|| {
            let (send, receive) = channel();
            let (state, engine) = (Arc::clone(&self.state), Arc::clone(&self.engine));
            let arena = self.arena.clone();
            let exchange = move || exchange_thread(&state, &engine, arena.as_ref(), &send);
            let spawned = std::thread::Builder::new()
                .name("phalanx-exchange".into())
                .spawn(exchange)
                .and_then(|_| {
                    let completions = std::thread::Builder::new().name("phalanx-done".into());
                    completions.spawn(move || completion_thread(&receive))
                });
            if let Err(error) = spawned {
                self.state
                    .fail(CollectiveError::local("start a thread", error));
            }
        });
    }
}

impl Drop for Handle {
    /// Leaves the group. Exchanges that were handed over and have not been answered fail, here and elsewhere.
    fn drop(&mut self) {
        let mut turns = lock(&self.state.turns);
        turns.closing = true;
        let unfinished = turns.running || !turns.pending.is_empty();
        drop(turns);
        if unfinished {
            self.state.fail(CollectiveError::Aborted {
                by: self.state.rank,
                blamed: Vec::new(),
                reason: "its communicator was dropped before its exchanges were done".into(),
            });
        }
        if let Some(announce) = self.state.announce.get() {
            announce.leaves();
        }
        self.state.turned.notify_all();
    }
}

fn array_of(buffer: &Buffer, arena: Option<&Arc<Arena>>) -> Array {
    Array {
        pointer: buffer.pointer(),
        length: buffer.len(),
        offset: arena.and_then(|arena| buffer.offset_in(arena)),
        is_lent: false,
    }
}

type Completion = Box<dyn FnOnce() + Send>;

/// Carries out what was handed over, until the communicator is dropped or fails, and then answers all that is left.
fn exchange_thread(
    state: &State,
    engine: &Mutex<Engine>,
    arena: Option<&Arc<Arena>>,
    completions: &Sender<Completion>,
) {
    // The other thread takes completions as long as this one has the sender.
    let complete = |completion: Completion| drop(completions.send(completion));
    while let Some((ticket, job)) = state.next_job() {
        let array = array_of(&job.buffer, arena);
        let mut engine = lock(engine);
        let result = engine.run(ticket, job.call, job.element, array);
        let is_used = result.is_err() && engine.may_still_use(&array);
        drop(engine);
        state.leave();
        let mut buffer = job.buffer;
        if is_used {
            buffer.leave();
        }
        complete(match job.answer {
            Answer::Array(done) => Box::new(move || done(result.map(|_| buffer))),
            Answer::Arrays(done) => Box::new(move || done(result)),
        });
    }
    let failure = state.failure();
    for job in state.drain() {
        let error = failure.clone().unwrap_or_else(|| CollectiveError::Aborted {
            by: state.rank,
            blamed: Vec::new(),
            reason: "its communicator was dropped".into(),
        });
        complete(Box::new(move || job.answer.failed(error)));
    }
}

fn completion_thread(completions: &Receiver<Completion>) {
    flush_denormals();
    for completion in completions {
        completion();
    }
}

/// Has this thread take and give zero for denormals.
fn flush_denormals() {
    #[cfg(target_arch = "x86_64")]
    {
        const FLUSH_TO_ZERO_AND_DENORMALS_ARE_ZERO: u32 = 0x8040;
        let mut control = 0u32;
        // SAFETY: reads and writes the control register of floating-point arithmetic of this thread, which runs callbacks only (decision 62).
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &mut control, options(nostack, preserves_flags));
            control |= FLUSH_TO_ZERO_AND_DENORMALS_ARE_ZERO;
            std::arch::asm!("ldmxcsr [{}]", in(reg) &control, options(nostack, preserves_flags));
        }
    }
}

/// Tells ranks in the same process.
struct ToThreads {
    rank: usize,
    peers: Vec<Weak<State>>,
}

impl ToThreads {
    fn others(&self) -> impl Iterator<Item = Arc<State>> {
        let others = self.peers.iter().enumerate();
        let others = others.filter(|(rank, _)| *rank != self.rank);
        others.filter_map(|(_, state)| state.upgrade())
    }
}

impl Announce for ToThreads {
    fn failed(&self, error: &CollectiveError) {
        for peer in self.others() {
            peer.fail(error.as_told_by(self.rank));
        }
    }

    fn waits(&self) {
        for peer in self.others() {
            peer.set_waits(self.rank);
        }
    }

    fn leaves(&self) {
        for peer in self.others() {
            peer.set_left(self.rank);
        }
    }
}
