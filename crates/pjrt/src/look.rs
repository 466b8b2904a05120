//! Looking for the end of short work before sleeping until it.
//!
//! Work of a fraction of a millisecond ends sooner than a thread that sleeps until its end would be awake again: on a virtual machine the idle
//! processor must be woken, too. So who waits looks for a while first, and lets everybody else have the processor between two looks. That is
//! only faster where the processor has nothing else to do, which a look finds out: it ends where another thread took the processor, or
//! after a while without a result, and the next ones are left out for longer each time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a look takes at most: what takes longer loses little by a thread that must be woken.
const LONGEST: Duration = Duration::from_micros(500);
/// When a processor comes back later than this, somebody else had it.
const GIVEN_AWAY: Duration = Duration::from_micros(30);
/// For how long nobody looks after the first look in vain, and after many.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(256)];

/// Whether waits of a client look first, by how the last ones went.
#[derive(Debug)]
pub(crate) struct Look {
    start: Instant,
    /// The end of the pause, in nanoseconds after `start`.
    next: AtomicU64,
    /// The length of the last pause, in nanoseconds; 0 after a look that found the end.
    pause: AtomicU64,
}

impl Look {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            next: AtomicU64::new(0),
            pause: AtomicU64::new(0),
        }
    }

    /// Whether the work was done within a look.
    ///
    /// # Errors
    /// Those of `is_done`.
    pub(crate) fn finds<E>(
        &self,
        timeout: Duration,
        is_done: impl Fn() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let begin = Instant::now();
        if nanoseconds(begin - self.start) < self.next.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let end = begin + LONGEST.min(timeout);
        let mut last = begin;
        while last < end {
            if is_done()? {
                self.pause.store(0, Ordering::Relaxed);
                return Ok(true);
            }
            thread::yield_now();
            let now = Instant::now();
            if now - last > GIVEN_AWAY {
                break;
            }
            last = now;
        }
        self.pause();
        Ok(false)
    }

    /// Nobody looks for twice as long as the last time.
    fn pause(&self) {
        let [least, most] = PAUSES.map(nanoseconds);
        let pause = (2 * self.pause.load(Ordering::Relaxed)).clamp(least, most);
        self.pause.store(pause, Ordering::Relaxed);
        self.next
            .store(nanoseconds(self.start.elapsed()) + pause, Ordering::Relaxed);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(9);

    /// Looks until the given time it is asked, and returns what it found and how often it asked.
    fn look(look: &Look, done_at: u32, asking: impl Fn()) -> (bool, u32) {
        let asked = Cell::new(0);
        let found = look.finds(TIMEOUT, || {
            asking();
            asked.set(asked.get() + 1);
            Ok::<_, ()>(asked.get() == done_at)
        });
        (found.unwrap(), asked.get())
    }

    #[test]
    fn a_look_in_vain_is_followed_by_a_pause() {
        let state = Look::new();
        assert_eq!(look(&state, 1, || {}), (true, 1));
        let (found, asked) = look(&state, u32::MAX, || {});
        assert!(!found && asked > 0);
        assert!(state.next.load(Ordering::Relaxed) >= nanoseconds(PAUSES[0]));
        state.next.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(look(&state, 1, || {}), (false, 0));
    }

    #[test]
    fn pauses_grow_up_to_a_longest_until_something_is_found() {
        let state = Look::new();
        let mut last = 0;
        for _ in 0..20 {
            state.next.store(0, Ordering::Relaxed);
            assert!(!look(&state, u32::MAX, || thread::sleep(2 * GIVEN_AWAY)).0);
            let pause = state.pause.load(Ordering::Relaxed);
            assert!(pause == (2 * last).clamp(nanoseconds(PAUSES[0]), nanoseconds(PAUSES[1])));
            last = pause;
        }
        assert_eq!(last, nanoseconds(PAUSES[1]));
        state.next.store(0, Ordering::Relaxed);
        assert!(look(&state, 1, || {}).0);
        assert_eq!(state.pause.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_look_ends_where_the_processor_was_given_away() {
        let away = || thread::sleep(2 * GIVEN_AWAY);
        assert_eq!(look(&Look::new(), u32::MAX, away), (false, 1));
        let failed = Look::new().finds(TIMEOUT, || Err("no"));
        assert_eq!(failed, Err("no"));
        assert!(
            !Look::new()
                .finds(Duration::ZERO, || Ok::<_, ()>(true))
                .unwrap()
        );
    }
}
