//! All-reduce (sum) over the replicas of a CPU program in the memory that they share: the custom call `phalanx.sum`.
//!
//! What: each replica arrives at a rendezvous with the addresses of its addends and of its sums. When all have arrived, each replica
//! reduces one chunk of the elements: it adds that chunk of every replica, in the order of replicas, and writes the sums to all of them.
//! Two replicas with few elements add all of them, each for itself. A replica leaves after the others have added.
//!
//! Why: XLA's own all-reduce between CPU devices puts every replica's thread to sleep several times. Here a thread spins for
//! `SPIN_TIME` before it sleeps, and each element is read once per replica and written once per replica. What is in another
//! processor's cache costs more than an addition: a chunk fetches lines of the addends and lines of the sums from there, and the
//! replica fetches sums once more when it uses them. Adding all fetches the addends alone: two thirds of the lines for two replicas,
//! as many for three. Arrays that no cache holds are read twice as often by it.
//!
//! Invariants: each sum has one writer; nobody leaves before all have added, so that no array is freed while another thread uses it;
//! the order of addition is fixed, so that all replicas get the same bits in every run.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use phalanx_pjrt::{Client, CustomCallError, CustomCallFrame, StatusCode};

use crate::executor::FlushDenormals;
use crate::handlers::register;
use crate::library::KernelError;
use crate::sync::lock;

/// How long a replica spins before it sleeps, where there is a processor for each.
const SPIN_TIME: Duration = Duration::from_micros(200);
/// Spins between two readings of the clock.
const SPINS_PER_CLOCK_READ: usize = 64;
/// Elements of a cache line, at multiples of which chunks begin.
const CACHE_LINE: usize = 16;
/// Elements summed at a time, whose sums stay in registers until they are written.
const BLOCK: usize = 32;
/// The most elements that two replicas add each for itself: 1 MiB, which the second-level caches of processors hold.
const MAX_OWN: usize = 1 << 18;

/// Registers `phalanx.sum` with this client's plugin for the rest of the process; does nothing when it is registered already.
///
/// # Errors
/// The plugin has no custom calls.
pub fn register_all_reduce(client: &Client) -> Result<(), KernelError> {
    let pending = PendingSums::default();
    register(client, "phalanx.sum", move |call| pending.all_reduce(call))
}

/// The sums at which some replicas have arrived and others have not, by execution and by number of the call in its program.
#[derive(Default)]
struct PendingSums(Mutex<HashMap<(i64, i64), Arc<Rendezvous>>>);

/// One sum of one execution.
struct Rendezvous {
    arrivals: Mutex<Arrivals>,
    /// Each array of all replicas, set when the last one arrives.
    all: OnceLock<Vec<Vec<ReducedArray>>>,
    added: AtomicUsize,
    changed: Condvar,
}

/// The arrays of each replica that has arrived.
struct Arrivals {
    arrays: Vec<Option<Vec<ReducedArray>>>,
    /// The error that the others get when they arrive.
    failed: Option<CustomCallError>,
    /// Replicas that have got it.
    told: usize,
}

/// One array of one replica: what it adds, and where the sums go.
#[derive(Clone, Copy)]
struct ReducedArray {
    addends: *const f32,
    sums: *mut f32,
    length: usize,
}

// SAFETY: an array is used between the first and the last `wait` of its replica, whose call keeps the arrays alive and untouched.
unsafe impl Send for ReducedArray {}
// SAFETY: as above; each element of the sums is written by one thread.
unsafe impl Sync for ReducedArray {}

impl PendingSums {
    /// Operands: the number of the replica (u32), the addends (f32). Results: the number again, which orders the calls of a program,
    /// and the sums.
    fn all_reduce(&self, call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
        let replicas = positive(call, "replicas")?;
        let timeout = Duration::from_secs(positive(call, "patience_seconds")? as u64);
        let replica = *call.operand::<u32>(0)?.first().ok_or_else(|| {
            CustomCallError::new(
                StatusCode::InvalidArgument,
                "the number of the replica is empty",
            )
        })?;
        call.result::<u32>(0)?.fill(replica);
        let key = (call.run_id()?, call.int("number")?);
        let arrays = arrays(call)?;
        self.add(key, [replicas, replica as usize], arrays, timeout)
    }

    /// Adds the arrays of one of the replicas to the others', when all are there.
    fn add(
        &self,
        key: (i64, i64),
        [replicas, replica]: [usize; 2],
        arrays: Vec<ReducedArray>,
        timeout: Duration,
    ) -> Result<(), CustomCallError> {
        let arrived = self.arrive(key, replicas, replica, arrays);
        let reduced = arrived.and_then(|sum| sum.reduce(replicas, replica, timeout));
        reduced.inspect_err(|_| self.leave(key, replicas))
    }

    /// Notes that a replica has heard of a failure. The last of them ends the rendezvous.
    fn leave(&self, key: (i64, i64), replicas: usize) {
        let mut pending = lock(&self.0);
        let Some(rendezvous) = pending.get(&key) else {
            return;
        };
        let told = {
            let mut arrivals = lock(&rendezvous.arrivals);
            arrivals.told += 1;
            arrivals.told
        };
        if told >= replicas {
            pending.remove(&key);
        }
    }

    /// Adds a replica to the rendezvous of a key; the last one to arrive releases the others.
    fn arrive(
        &self,
        key: (i64, i64),
        replicas: usize,
        replica: usize,
        arrays: Vec<ReducedArray>,
    ) -> Result<Arc<Rendezvous>, CustomCallError> {
        let mut pending = lock(&self.0);
        let rendezvous = pending
            .entry(key)
            .or_insert_with(|| Arc::new(Rendezvous::of(replicas)));
        let rendezvous = Arc::clone(rendezvous);
        let arrived = rendezvous.arrive(replica, arrays);
        if rendezvous.all.get().is_some() {
            pending.remove(&key);
        }
        arrived.map(|()| rendezvous)
    }
}

impl Rendezvous {
    fn of(replicas: usize) -> Self {
        Self {
            arrivals: Mutex::new(Arrivals {
                arrays: (0..replicas).map(|_| None).collect(),
                failed: None,
                told: 0,
            }),
            all: OnceLock::new(),
            added: AtomicUsize::new(0),
            changed: Condvar::new(),
        }
    }

    fn arrive(&self, replica: usize, arrays: Vec<ReducedArray>) -> Result<(), CustomCallError> {
        let mut arrivals = lock(&self.arrivals);
        if let Some(failed) = &arrivals.failed {
            return Err(failed.clone());
        }
        let free = arrivals.arrays.get(replica).is_some_and(Option::is_none);
        let lengths =
            |arrays: &[ReducedArray]| arrays.iter().map(|array| array.length).collect::<Vec<_>>();
        let mut others = arrivals.arrays.iter().flatten();
        let alike = others.all(|other| lengths(other) == lengths(&arrays));
        if !free || !alike {
            let failed = CustomCallError::new(
                StatusCode::Internal,
                format!(
                    "replica {replica} came to a sum of {} replicas with arrays of {:?} elements, where others have arrays of other lengths or it was already",
                    arrivals.arrays.len(),
                    lengths(&arrays)
                ),
            );
            arrivals.failed = Some(failed.clone());
            self.changed.notify_all();
            return Err(failed);
        }
        arrivals.arrays[replica] = Some(arrays);
        if arrivals.arrays.iter().all(Option::is_some) {
            let by_replica: Vec<Vec<ReducedArray>> = arrivals.arrays.drain(..).flatten().collect();
            let of_array = |index| by_replica.iter().map(|arrays| arrays[index]).collect();
            // Only the last to arrive gets here.
            let _ = self
                .all
                .set((0..by_replica[0].len()).map(of_array).collect());
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits for the others, adds this replica's part, and waits until the others have added theirs.
    fn reduce(
        &self,
        replicas: usize,
        replica: usize,
        timeout: Duration,
    ) -> Result<(), CustomCallError> {
        let all = self.wait_for_all(replicas, replica, timeout)?;
        let length: usize = all.iter().map(|arrays| arrays[replica].length).sum();
        // Both replicas that add for themselves get the same bits.
        let _flushed = FlushDenormals::new();
        if replicas == 2 && length <= MAX_OWN {
            add(all, 0..length, replica..replica + 1);
        } else {
            add(all, chunk(length, replicas, replica), 0..replicas);
        }
        self.added.fetch_add(1, Ordering::Release);
        drop(lock(&self.arrivals));
        self.changed.notify_all();
        // No deadline: the others only add numbers in memory, and our arrays must stay alive until they are done.
        let is_done = || (self.added.load(Ordering::Acquire) == replicas).then_some(());
        if spin_until(replicas, is_done).is_some() {
            return Ok(());
        }
        let mut arrivals = lock(&self.arrivals);
        while is_done().is_none() {
            arrivals = self
                .changed
                .wait(arrivals)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn wait_for_all(
        &self,
        replicas: usize,
        replica: usize,
        timeout: Duration,
    ) -> Result<&[Vec<ReducedArray>], CustomCallError> {
        if let Some(all) = spin_until(replicas, || self.all.get()) {
            return Ok(all);
        }
        let start = Instant::now();
        let mut arrivals = lock(&self.arrivals);
        loop {
            if let Some(all) = self.all.get() {
                return Ok(all);
            }
            if let Some(failed) = &arrivals.failed {
                return Err(failed.clone());
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                let failed = timeout_error(&arrivals, replica, timeout);
                arrivals.failed = Some(failed.clone());
                self.changed.notify_all();
                return Err(failed);
            };
            let waited = self.changed.wait_timeout(arrivals, left);
            arrivals = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn timeout_error(arrivals: &Arrivals, replica: usize, timeout: Duration) -> CustomCallError {
    let missing = arrivals.arrays.iter().enumerate();
    let missing = missing.filter(|(_, arrays)| arrays.is_none());
    let missing: Vec<usize> = missing.map(|(index, _)| index).collect();
    CustomCallError::new(
        StatusCode::DeadlineExceeded,
        format!(
            "replica {replica} waited {} s for what replicas {missing:?} add to a sum; they failed or are stuck",
            timeout.as_secs()
        ),
    )
}

/// Polls for `SPIN_TIME`, or once where there are fewer processors than replicas and spinning would keep one from its work.
fn spin_until<T>(replicas: usize, found: impl Fn() -> Option<T>) -> Option<T> {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    let processors = PROCESSORS.get_or_init(phalanx_pjrt::xla_threads);
    if replicas > *processors {
        return found();
    }
    let start = Instant::now();
    loop {
        for _ in 0..SPINS_PER_CLOCK_READ {
            if let Some(found) = found() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN_TIME {
            return None;
        }
    }
}

/// The elements that one replica reduces.
fn chunk(length: usize, replicas: usize, replica: usize) -> Range<usize> {
    let each = length.div_ceil(replicas).next_multiple_of(CACHE_LINE);
    (each * replica).min(length)..(each * (replica + 1)).min(length)
}

/// Adds a range of the elements of all arrays, laid end to end, for the replicas of `to`.
fn add(all: &[Vec<ReducedArray>], range: Range<usize>, to: Range<usize>) {
    let mut first = 0;
    for arrays in all {
        let length = arrays[0].length;
        let (start, end) = (range.start.max(first), range.end.min(first + length));
        if start < end {
            // SAFETY: the elements are within the arrays, which live until all replicas have added; nobody else writes these sums.
            unsafe { add_elements(arrays, start - first..end - first, &arrays[to.clone()]) };
        }
        first += length;
    }
}

/// # Safety
/// The elements are within all arrays, which are alive; nothing else reads or writes these elements of the sums of `to`.
unsafe fn add_elements(arrays: &[ReducedArray], elements: Range<usize>, to: &[ReducedArray]) {
    let blocks_end = elements.end - elements.len() % BLOCK;
    for at in (elements.start..blocks_end).step_by(BLOCK) {
        // SAFETY: the caller's promise.
        unsafe { add_block::<BLOCK>(arrays, at, to) };
    }
    for at in blocks_end..elements.end {
        // SAFETY: the caller's promise.
        unsafe { add_block::<1>(arrays, at, to) };
    }
}

/// # Safety
/// As [`add_elements`], for `N` elements.
#[inline]
unsafe fn add_block<const N: usize>(arrays: &[ReducedArray], at: usize, to: &[ReducedArray]) {
    // SAFETY: the caller's promise; nobody writes addends.
    let read = |array: &ReducedArray| unsafe { array.addends.add(at).cast::<[f32; N]>().read() };
    let mut sums = read(&arrays[0]);
    for array in &arrays[1..] {
        let addends = read(array);
        for (sum, addend) in sums.iter_mut().zip(addends) {
            *sum += addend;
        }
    }
    for array in to {
        // SAFETY: the caller's promise.
        unsafe { array.sums.add(at).cast::<[f32; N]>().write(sums) };
    }
}

/// The addends and sums of a call.
fn arrays(call: &mut CustomCallFrame<'_>) -> Result<Vec<ReducedArray>, CustomCallError> {
    (1..call.operands().max(call.results()))
        .map(|index| {
            let (addends, sums) = (call.operand::<f32>(index)?, call.result::<f32>(index)?);
            if addends.len() != sums.len() {
                let (found, expected) = (sums.len(), addends.len());
                return Err(CustomCallError::new(
                    StatusCode::InvalidArgument,
                    format!("result {index} has {found} elements, expected {expected}"),
                ));
            }
            Ok(ReducedArray {
                addends: addends.as_ptr(),
                sums: sums.as_mut_ptr(),
                length: sums.len(),
            })
        })
        .collect()
}

fn positive(call: &CustomCallFrame<'_>, name: &str) -> Result<usize, CustomCallError> {
    let value = call.int(name)?;
    let positive = usize::try_from(value).ok().filter(|&value| value > 0);
    positive.ok_or_else(|| {
        CustomCallError::new(
            StatusCode::InvalidArgument,
            format!("the attribute `{name}` must be positive, got {value}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// What each replica has after a sum of arrays of these lengths.
    fn summed(replicas: usize, lengths: &[usize], runs: i64) -> Vec<Vec<Vec<f32>>> {
        let pending = PendingSums::default();
        std::thread::scope(|scope| {
            let replica = |replica: usize| {
                let pending = &pending;
                scope.spawn(move || {
                    let mut sums = Vec::new();
                    for run in 0..runs {
                        let given = addends(replica, lengths);
                        sums = lengths.iter().map(|&length| vec![0.0; length]).collect();
                        let arrays = given.iter().zip(&mut sums).map(
                            |(given, sums): (&Vec<f32>, &mut Vec<f32>)| ReducedArray {
                                addends: given.as_ptr(),
                                sums: sums.as_mut_ptr(),
                                length: given.len(),
                            },
                        );
                        let arrays = arrays.collect();
                        let rendezvous =
                            pending.arrive((run, 3), replicas, replica, arrays).unwrap();
                        rendezvous.reduce(replicas, replica, LONG).unwrap();
                    }
                    sums
                })
            };
            let running: Vec<_> = (0..replicas).map(replica).collect();
            let results = running.into_iter().map(|thread| thread.join().unwrap());
            let results = results.collect();
            assert!(lock(&pending.0).is_empty());
            results
        })
    }

    fn addends(replica: usize, lengths: &[usize]) -> Vec<Vec<f32>> {
        let value = |array: usize, i: usize| 0.1 + ((replica + 1) * (7 * i + array)) as f32 * 1e-3;
        let lengths = lengths.iter().enumerate();
        let arrays = lengths.map(|(array, &length)| (0..length).map(|i| value(array, i)).collect());
        arrays.collect()
    }

    #[test]
    fn every_replica_has_the_sums_in_the_order_of_replicas() {
        let few = [1, 5000, 0, 16, 33];
        let many = [7, MAX_OWN, 31];
        let cases = (1..=5).map(|replicas| (replicas, &few[..]));
        for (replicas, lengths) in cases.chain([(2, &many[..])]) {
            let results = summed(replicas, lengths, 20);
            let mut expected = addends(0, lengths);
            for replica in 1..replicas {
                let more = addends(replica, lengths);
                let sums = expected.iter_mut().flatten();
                sums.zip(more.iter().flatten())
                    .for_each(|(sum, addend)| *sum += addend);
            }
            assert!(results.iter().all(|found| *found == expected), "{replicas}");
        }
    }

    #[test]
    fn shares_are_all_elements_once() {
        for length in [0, 1, 15, 16, 17, 100, 4096, 4099] {
            for replicas in 1..6 {
                let mut next = 0;
                for replica in 0..replicas {
                    let chunk = chunk(length, replicas, replica);
                    assert_eq!(chunk.start, next, "{length} {replicas}");
                    next = chunk.end;
                }
                assert_eq!(next, length);
            }
        }
    }

    #[test]
    fn who_waits_too_long_and_who_comes_later_hear_of_it() {
        let pending = PendingSums::default();
        let wait = Duration::from_millis(5);
        let add = |replica| pending.add((1, 1), [3, replica], Vec::new(), wait);
        let error = add(1).unwrap_err();
        assert_eq!(error.code, StatusCode::DeadlineExceeded);
        assert!(error.message.contains("replicas [0, 2]"), "{error}");
        assert_eq!(add(0), Err(error.clone()));
        assert_eq!(lock(&pending.0).len(), 1);
        assert_eq!(add(2), Err(error));
        assert!(lock(&pending.0).is_empty());
    }

    #[test]
    fn arrays_of_other_lengths_and_strangers_are_refused() {
        let array = |length| ReducedArray {
            addends: std::ptr::null(),
            sums: std::ptr::null_mut(),
            length,
        };
        for (replica, length) in [(1, 3), (0, 2), (2, 2)] {
            let pending = PendingSums::default();
            let rendezvous = pending.arrive((1, 1), 2, 0, vec![array(2)]).unwrap();
            let refused = pending.arrive((1, 1), 2, replica, vec![array(length)]);
            assert!(refused.is_err_and(|error| error.code == StatusCode::Internal));
            assert!(rendezvous.reduce(2, 0, LONG).is_err());
        }
    }
}
