//! Sums over the replicas of a program on the CPU, in the memory that they share: the call `phalanx.sum`.
//!
//! XLA's own all-reduce between CPU devices wakes every replica's thread several times, each after it slept. Here a replica brings
//! where its addends are and where the sums go, waits for the others without sleep at first, adds its part of the elements of all
//! replicas, in their order, and writes the sums to all of them. Nobody leaves before all have added: so every replica gets the same
//! bits, at each run the same.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use phalanx_pjrt::{Call, CallError, Client, Code};

use crate::library::KernelError;

/// How long a replica looks for the others before it sleeps, where each has a processor.
const LOOKS: Duration = Duration::from_micros(200);
/// Looks between two readings of the clock.
const LOOKS_AT_ONCE: usize = 64;
/// Parts begin at multiples of so many elements, a line of the cache.
const LINE: usize = 16;
/// Elements added at a time, so that sums stay in the nearest cache until all replicas have them.
const BLOCK: usize = 1024;

/// Makes `phalanx.sum` callable from programs of this client's plugin, for the rest of the process; where it is already, that serves.
///
/// # Errors
/// The plugin has no custom calls.
pub fn register_sums(client: &Client) -> Result<(), KernelError> {
    let meetings = Meetings::default();
    let registered = client.register_custom_call("phalanx.sum", move |call| meetings.sum(call));
    registered.or_else(|error| match error.code {
        Code::AlreadyExists => Ok(()),
        _ => Err(KernelError::Register {
            reason: error.to_string(),
        }),
    })
}

/// The meetings that some replicas have come to and others have not, by execution and by call of the program.
#[derive(Default)]
struct Meetings(Mutex<HashMap<(i64, i64), Arc<Meeting>>>);

/// One sum of one execution.
struct Meeting {
    brought: Mutex<Brought>,
    /// What all replicas brought, once the last has come.
    all: OnceLock<Vec<Vec<Part>>>,
    added: AtomicUsize,
    changed: Condvar,
}

/// What each replica brought so far.
struct Brought {
    parts: Vec<Option<Vec<Part>>>,
    /// Why the others need not come.
    failed: Option<CallError>,
}

/// An array of one replica.
#[derive(Clone, Copy)]
struct Part {
    addends: *const f32,
    sums: *mut f32,
    length: usize,
}

// SAFETY: a part is used between the first and the last `wait` of its replica, whose call keeps the arrays alive and untouched.
unsafe impl Send for Part {}
// SAFETY: as above; each element of the sums is written by one thread.
unsafe impl Sync for Part {}

impl Meetings {
    /// Operands: the number of the replica (u32), the addends (f32). Results: the number again, which orders the calls of a program,
    /// and the sums.
    fn sum(&self, call: &mut Call<'_>) -> Result<(), CallError> {
        let replicas = positive(call, "replicas")?;
        let patience = Duration::from_secs(positive(call, "patience_seconds")? as u64);
        let replica = *call.operand::<u32>(0)?.first().ok_or_else(|| {
            CallError::new(Code::InvalidArgument, "the number of the replica is empty")
        })?;
        call.result::<u32>(0)?.fill(replica);
        let key = (call.run_id()?, call.int("number")?);
        let parts = parts(call)?;
        let meeting = self.join(key, replicas, replica as usize, parts)?;
        meeting.attend(replicas, replica as usize, patience)
    }

    /// The meeting of a key with one more replica; the last to come lets all go on.
    fn join(
        &self,
        key: (i64, i64),
        replicas: usize,
        replica: usize,
        parts: Vec<Part>,
    ) -> Result<Arc<Meeting>, CallError> {
        let mut meetings = lock(&self.0);
        let meeting = meetings
            .entry(key)
            .or_insert_with(|| Arc::new(Meeting::of(replicas)));
        let meeting = Arc::clone(meeting);
        let joined = meeting.join(replica, parts);
        if meeting.all.get().is_some() {
            meetings.remove(&key);
        }
        joined.map(|()| meeting)
    }
}

impl Meeting {
    fn of(replicas: usize) -> Self {
        Self {
            brought: Mutex::new(Brought {
                parts: (0..replicas).map(|_| None).collect(),
                failed: None,
            }),
            all: OnceLock::new(),
            added: AtomicUsize::new(0),
            changed: Condvar::new(),
        }
    }

    fn join(&self, replica: usize, parts: Vec<Part>) -> Result<(), CallError> {
        let mut brought = lock(&self.brought);
        if let Some(failed) = &brought.failed {
            return Err(failed.clone());
        }
        let free = brought.parts.get(replica).is_some_and(Option::is_none);
        let lengths = |parts: &[Part]| parts.iter().map(|part| part.length).collect::<Vec<_>>();
        let mut others = brought.parts.iter().flatten();
        let alike = others.all(|other| lengths(other) == lengths(&parts));
        if !free || !alike {
            let failed = CallError::new(
                Code::Internal,
                format!(
                    "replica {replica} came to a sum of {} replicas with arrays of {:?} elements, where others have arrays of other lengths or it was already",
                    brought.parts.len(),
                    lengths(&parts)
                ),
            );
            brought.failed = Some(failed.clone());
            self.changed.notify_all();
            return Err(failed);
        }
        brought.parts[replica] = Some(parts);
        if brought.parts.iter().all(Option::is_some) {
            let all = brought.parts.drain(..).flatten().collect();
            // Only the last to come gets here.
            let _ = self.all.set(all);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits for the others, adds this replica's part, and waits until the others have added theirs.
    fn attend(&self, replicas: usize, replica: usize, patience: Duration) -> Result<(), CallError> {
        let all = self.wait_for_all(replicas, replica, patience)?;
        let length: usize = all[replica].iter().map(|part| part.length).sum();
        add(all, share(length, replicas, replica));
        self.added.fetch_add(1, Ordering::Release);
        drop(lock(&self.brought));
        self.changed.notify_all();
        // No deadline: the others add numbers in memory and wait for nothing, and our arrays must live until they are done.
        let is_done = || (self.added.load(Ordering::Acquire) == replicas).then_some(());
        if look(replicas, is_done).is_some() {
            return Ok(());
        }
        let mut brought = lock(&self.brought);
        while is_done().is_none() {
            brought = self
                .changed
                .wait(brought)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn wait_for_all(
        &self,
        replicas: usize,
        replica: usize,
        patience: Duration,
    ) -> Result<&[Vec<Part>], CallError> {
        if let Some(all) = look(replicas, || self.all.get()) {
            return Ok(all);
        }
        let start = Instant::now();
        let mut brought = lock(&self.brought);
        loop {
            if let Some(all) = self.all.get() {
                return Ok(all);
            }
            if let Some(failed) = &brought.failed {
                return Err(failed.clone());
            }
            let Some(left) = patience.checked_sub(start.elapsed()) else {
                let failed = late(&brought, replica, patience);
                brought.failed = Some(failed.clone());
                self.changed.notify_all();
                return Err(failed);
            };
            let waited = self.changed.wait_timeout(brought, left);
            brought = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn late(brought: &Brought, replica: usize, patience: Duration) -> CallError {
    let missing = brought.parts.iter().enumerate();
    let missing = missing.filter(|(_, parts)| parts.is_none());
    let missing: Vec<usize> = missing.map(|(index, _)| index).collect();
    CallError::new(
        Code::DeadlineExceeded,
        format!(
            "replica {replica} waited {} s for what replicas {missing:?} add to a sum; they failed or are stuck",
            patience.as_secs()
        ),
    )
}

/// Looks for something for a while without sleep, where there are processors enough that nobody is kept from work.
fn look<T>(replicas: usize, found: impl Fn() -> Option<T>) -> Option<T> {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    let processors = PROCESSORS
        .get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    if replicas > *processors {
        return found();
    }
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS_AT_ONCE {
            if let Some(found) = found() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > LOOKS {
            return None;
        }
    }
}

/// The elements that one replica adds.
fn share(length: usize, replicas: usize, replica: usize) -> Range<usize> {
    let each = length.div_ceil(replicas).next_multiple_of(LINE);
    (each * replica).min(length)..(each * (replica + 1)).min(length)
}

/// Adds a range of the elements of all replicas, laid end to end.
fn add(all: &[Vec<Part>], range: Range<usize>) {
    let mut first = 0;
    for (index, part) in all[0].iter().enumerate() {
        let start = range.start.max(first);
        let end = range.end.min(first + part.length);
        for block in (start..end).step_by(BLOCK) {
            let block = block - first..(block + BLOCK).min(end) - first;
            let parts = all.iter().map(|parts| &parts[index]);
            // SAFETY: the block is within the arrays, which live until all replicas have added; nobody else adds this block.
            unsafe { add_block(parts, block) };
        }
        first += part.length;
    }
}

/// # Safety
/// The block is within all parts, whose arrays are alive; nothing else reads or writes these elements of the sums.
unsafe fn add_block<'a>(parts: impl Iterator<Item = &'a Part> + Clone, block: Range<usize>) {
    let mut sums = [0.0; BLOCK];
    let sums = &mut sums[..block.len()];
    for (replica, part) in parts.clone().enumerate() {
        // SAFETY: the caller's promise; nobody writes addends.
        let addends =
            unsafe { std::slice::from_raw_parts(part.addends.add(block.start), block.len()) };
        if replica == 0 {
            sums.copy_from_slice(addends);
            continue;
        }
        for (sum, addend) in sums.iter_mut().zip(addends) {
            *sum += addend;
        }
    }
    for part in parts {
        // SAFETY: the caller's promise.
        let to = unsafe { std::slice::from_raw_parts_mut(part.sums.add(block.start), block.len()) };
        to.copy_from_slice(sums);
    }
}

/// The addends and sums of a call, of which there are as many.
fn parts(call: &mut Call<'_>) -> Result<Vec<Part>, CallError> {
    (1..call.operands().max(call.results()))
        .map(|index| {
            let (addends, sums) = (call.operand::<f32>(index)?, call.result::<f32>(index)?);
            if addends.len() != sums.len() {
                let (found, expected) = (sums.len(), addends.len());
                return Err(CallError::new(
                    Code::InvalidArgument,
                    format!("result {index} has {found} elements, expected {expected}"),
                ));
            }
            Ok(Part {
                addends: addends.as_ptr(),
                sums: sums.as_mut_ptr(),
                length: sums.len(),
            })
        })
        .collect()
}

fn positive(call: &Call<'_>, name: &str) -> Result<usize, CallError> {
    let value = call.int(name)?;
    let positive = usize::try_from(value).ok().filter(|&value| value > 0);
    positive.ok_or_else(|| {
        CallError::new(
            Code::InvalidArgument,
            format!("the attribute `{name}` must be positive, got {value}"),
        )
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// What each replica has after a sum of arrays of these lengths.
    fn summed(replicas: usize, lengths: &[usize], runs: i64) -> Vec<Vec<Vec<f32>>> {
        let meetings = Meetings::default();
        std::thread::scope(|scope| {
            let replica = |replica: usize| {
                let meetings = &meetings;
                scope.spawn(move || {
                    let mut sums = Vec::new();
                    for run in 0..runs {
                        let given = addends(replica, lengths);
                        sums = lengths.iter().map(|&length| vec![0.0; length]).collect();
                        let parts = given.iter().zip(&mut sums).map(
                            |(given, sums): (&Vec<f32>, &mut Vec<f32>)| Part {
                                addends: given.as_ptr(),
                                sums: sums.as_mut_ptr(),
                                length: given.len(),
                            },
                        );
                        let parts = parts.collect();
                        let meeting = meetings.join((run, 3), replicas, replica, parts).unwrap();
                        meeting.attend(replicas, replica, LONG).unwrap();
                    }
                    sums
                })
            };
            let running: Vec<_> = (0..replicas).map(replica).collect();
            let results = running.into_iter().map(|thread| thread.join().unwrap());
            let results = results.collect();
            assert!(lock(&meetings.0).is_empty());
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
        let lengths = [1, 5000, 0, 16, 33];
        for replicas in 1..=5 {
            let results = summed(replicas, &lengths, 20);
            let mut expected = addends(0, &lengths);
            for replica in 1..replicas {
                let more = addends(replica, &lengths);
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
                    let share = share(length, replicas, replica);
                    assert_eq!(share.start, next, "{length} {replicas}");
                    next = share.end;
                }
                assert_eq!(next, length);
            }
        }
    }

    #[test]
    fn who_waits_too_long_and_who_comes_later_hear_of_it() {
        let meetings = Meetings::default();
        let wait = Duration::from_millis(5);
        let meeting = meetings.join((1, 1), 3, 1, Vec::new()).unwrap();
        let error = meeting.attend(3, 1, wait).unwrap_err();
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert!(error.message.contains("replicas [0, 2]"), "{error}");
        assert_eq!(meetings.join((1, 1), 3, 0, Vec::new()).err(), Some(error));
    }

    #[test]
    fn arrays_of_other_lengths_and_strangers_are_refused() {
        let part = |length| Part {
            addends: std::ptr::null(),
            sums: std::ptr::null_mut(),
            length,
        };
        for (replica, length) in [(1, 3), (0, 2), (2, 2)] {
            let meetings = Meetings::default();
            let meeting = meetings.join((1, 1), 2, 0, vec![part(2)]).unwrap();
            let refused = meetings.join((1, 1), 2, replica, vec![part(length)]);
            assert!(refused.is_err_and(|error| error.code == Code::Internal));
            assert!(meeting.attend(2, 0, LONG).is_err());
        }
    }
}
