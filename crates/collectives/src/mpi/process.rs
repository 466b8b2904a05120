//! MPI in this process: started once, by a thread that stays until it is to be ended.
//!
//! MPI has no deadlines. Starting it waits for the other processes, so that is done by a thread that this one waits for as long as it
//! may. Ending it waits, too: it happens as the process exits, where nothing failed; otherwise the launcher ends the job.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::abi::NO_REQUEST;
use super::launch::MpiLaunch;
use super::library::Api;
use crate::error::CollectiveError;
use crate::state::Announce;
use crate::sync::lock;

/// The exit code of a job that lost a rank: `TRY_AGAIN` of phalanx-cluster, which this crate does not use.
pub(super) const LOST: c_int = 75;
/// How long the other processes may take to their end after this one's. What one does after its last exchange (an export, an evaluation)
/// is no failure, and the launcher ends all where one is lost: only a process that hangs is ended by this.
const END_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);
/// How often the end of the others is looked for, at first and later.
const LOOK_EVERY: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(50)];

/// MPI, started in this process.
pub struct Mpi {
    pub(super) api: &'static Api,
    rank: usize,
    size: usize,
    /// Whether an exchange failed, so that the others cannot be waited for.
    failed: AtomicBool,
    ending: AtomicBool,
    ended: AtomicBool,
    /// Whoever ends MPI; none where the program started it itself.
    owner: OnceLock<Thread>,
}

static STARTED: OnceLock<Mpi> = OnceLock::new();

unsafe extern "C" {
    /// Of C's library, which is always there.
    fn atexit(callback: extern "C" fn()) -> c_int;
}

impl Mpi {
    /// Opens the library of the launcher and starts MPI, once in a process; waits for the other processes no longer than `within`.
    ///
    /// # Errors
    /// There is no such library, it does not fit, or it counts other processes than the launcher: then it belongs to another one.
    pub fn start(launch: &MpiLaunch, within: Duration) -> Result<&'static Self, CollectiveError> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = lock(&ONE_AT_A_TIME);
        if let Some(mpi) = STARTED.get() {
            return Ok(mpi);
        }
        let api = Api::open_first(&launch.libraries)?;
        let (ready, started) = channel();
        let own = move || {
            let mpi = start(api).map(|mpi| STARTED.get_or_init(|| mpi));
            let owner = mpi.as_ref().ok().filter(|mpi| mpi.owner.get().is_some());
            let owner = owner.copied();
            // Nobody listens where it took too long.
            let _ = ready.send(mpi);
            if let Some(mpi) = owner {
                mpi.end_when_told();
            }
        };
        let spawned = thread::Builder::new().name("phalanx-mpi".into()).spawn(own);
        spawned.map_err(|error| CollectiveError::local("start a thread", error))?;
        let late = |_| {
            let seconds = within.as_secs_f64();
            let reason = format!(
                "{} has waited {seconds:.0} s for the other processes; see whether all of them were started and open the same library",
                api.name
            );
            CollectiveError::local("start MPI", reason)
        };
        let mpi = started.recv_timeout(within).map_err(late)??;
        mpi.belongs_to(launch)?;
        Ok(mpi)
    }

    /// What the library says it is, and where it was found: `Open MPI v4.1.4 (libmpi.so.40)`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} ({})", self.api.name, self.api.path)
    }

    /// The number of this process.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// A library under the launcher of another starts happily, as many jobs of one process.
    fn belongs_to(&self, launch: &MpiLaunch) -> Result<(), CollectiveError> {
        if (self.rank, self.size) == (launch.rank, launch.size) {
            return Ok(());
        }
        Err(CollectiveError::local(
            "use MPI",
            format!(
                "{} says that this is rank {} of {}, its launcher says rank {} of {} ({}): the library belongs to another launcher; name the right one by {}",
                self.name(),
                self.rank,
                self.size,
                launch.rank,
                launch.size,
                launch.variable,
                super::MPI_LIBRARY_VARIABLE
            ),
        ))
    }

    /// The sum of f32 elements over all ranks by one call of the library, which waits as long as it takes: what our exchanges are
    /// measured against.
    ///
    /// # Errors
    /// What the library says.
    #[doc(hidden)]
    pub fn bare_sum(&self, data: &mut [f32], spins: bool) -> Result<(), CollectiveError> {
        let (api, abi, world) = (self.api, &self.api.abi, self.api.abi.world);
        let (count, in_place) = (data.len() as c_int, abi.in_place as *const _);
        let to = data.as_mut_ptr().cast();
        // SAFETY: the array has so many elements, and it is waited for.
        unsafe {
            if !spins {
                let code = (api.allreduce)(in_place, to, count, abi.f32, abi.sum, world);
                return api.check("MPI_Allreduce", code);
            }
            let (mut request, mut done) = (NO_REQUEST, 0);
            let code = (api.iallreduce)(in_place, to, count, abi.f32, abi.sum, world, &mut request);
            api.check("MPI_Iallreduce", code)?;
            while done == 0 {
                let status = abi.status_ignore as *mut _;
                api.check("MPI_Test", (api.test)(&mut request, &mut done, status))?;
            }
        }
        Ok(())
    }

    /// From now on the other processes are not waited for at the end.
    pub(super) fn set_failed(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Ends all processes of the job, with the exit code of a lost one.
    pub(super) fn abort(&self) {
        // SAFETY: may be called by any thread at any time after the start.
        unsafe { (self.api.abort)(self.api.abi.world, LOST) };
    }

    fn end_when_told(&self) {
        while !self.ending.load(Ordering::Acquire) {
            thread::park();
        }
        // SAFETY: this thread started MPI, and nobody exchanges any more.
        unsafe { (self.api.finalize)() };
        self.ended.store(true, Ordering::Release);
    }
}

fn start(api: &'static Api) -> Result<Mpi, CollectiveError> {
    let (abi, mut is_started, mut level) = (&api.abi, 0, 0);
    let (mut rank, mut size) = (0, 0);
    // SAFETY: the calls have the arguments of the standard; all pointers are to variables here.
    unsafe {
        api.check("MPI_Initialized", (api.initialized)(&mut is_started))?;
        if is_started == 0 {
            let none = std::ptr::null_mut();
            let code = (api.init_thread)(none, none.cast(), abi.thread_multiple, &mut level);
            api.check("MPI_Init_thread", code)?;
        } else {
            api.check("MPI_Query_thread", (api.query_thread)(&mut level))?;
        }
        api.check("MPI_Comm_size", (api.comm_size)(abi.world, &mut size))?;
        api.check("MPI_Comm_rank", (api.comm_rank)(abi.world, &mut rank))?;
    }
    if level < abi.thread_enough {
        let reason = format!("{} allows calls from one thread only", api.name);
        return Err(CollectiveError::local("use MPI", reason));
    }
    let owner = OnceLock::new();
    if is_started == 0 {
        owner.get_or_init(thread::current);
        // SAFETY: the function lives as long as the process. Handlers run in reverse order, so this one before the library's.
        unsafe { atexit(at_exit) };
    }
    Ok(Mpi {
        api,
        rank: rank.max(0) as usize,
        size: size.max(0) as usize,
        failed: AtomicBool::new(false),
        ending: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        owner,
    })
}

/// Ends MPI where all went well, so that no launcher takes the end of this process for its death.
extern "C" fn at_exit() {
    let Some(mpi) = STARTED.get() else { return };
    let Some(owner) = mpi.owner.get() else { return };
    if mpi.failed.load(Ordering::Acquire) {
        return;
    }
    mpi.ending.store(true, Ordering::Release);
    owner.unpark();
    if !is_set_within(&mpi.ended, END_WITHIN) {
        mpi.abort();
    }
}

/// Waits for a flag; whether it was set in time.
fn is_set_within(flag: &AtomicBool, within: Duration) -> bool {
    let (start, [least, most]) = (Instant::now(), LOOK_EVERY);
    while !flag.load(Ordering::Acquire) {
        let waited = start.elapsed();
        if waited > within {
            return false;
        }
        thread::sleep((waited / 16).clamp(least, most));
    }
    true
}

/// How long a program may take to say why it cannot go on before the job is ended.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Ends the job when this rank has failed: no exchange of MPI can be taken back, and the other ranks wait in theirs.
pub(crate) struct EndOfJob(pub(crate) &'static Mpi);

impl Announce for EndOfJob {
    fn failed(&self, error: &CollectiveError) {
        self.0.set_failed();
        let (mpi, error) = (self.0, error.to_string());
        let end = move || {
            thread::sleep(LAST_WORDS);
            eprintln!("phalanx: MPI ends the job: {error}");
            mpi.abort();
        };
        if thread::Builder::new()
            .name("phalanx-mpi-end".into())
            .spawn(end)
            .is_err()
        {
            self.0.abort();
        }
    }

    fn waits(&self) {}

    fn leaves(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_others_is_waited_for_and_not_for_ever() {
        let flag = AtomicBool::new(false);
        assert!(!is_set_within(&flag, Duration::from_millis(2)));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| is_set_within(&flag, END_WITHIN));
            flag.store(true, Ordering::Release);
            assert!(waiting.join().unwrap());
        });
    }
}
