//! Waiting for requests: MPI moves bytes only while it is looked at, and knows no deadline.

use std::time::{Duration, Instant};

use super::abi::{MpiHandle, NO_REQUEST};
use super::{Mpi, MpiLinks};
use crate::error::CollectiveError;
use crate::state::Wait;

/// How long to look without a pause: a sleep costs as much as a small exchange.
const EAGER: Duration = Duration::from_micros(100);
/// While bytes are under way the library moves them only when it is looked at, so it is for as long as they should take: nanoseconds of a
/// byte on a slow network.
const NANOSECONDS_OF_A_BYTE: u64 = 2;
const SHORT_NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_micros(500);

impl MpiLinks {
    /// Waits until all requests are done, which are of this many bytes.
    pub(super) fn complete(
        &mut self,
        bytes: usize,
        wait: &Wait<'_>,
    ) -> Result<(), CollectiveError> {
        self.until(bytes, wait, Self::test)?;
        self.memory.requests.clear();
        Ok(())
    }

    /// Goes on with an exchange of this many bytes until it is done.
    pub(super) fn until(
        &mut self,
        bytes: usize,
        wait: &Wait<'_>,
        mut go_on: impl FnMut(&mut Self) -> Result<bool, CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let since = Instant::now();
        let eager = EAGER + Duration::from_nanos(bytes as u64 * NANOSECONDS_OF_A_BYTE);
        loop {
            for _ in 0..8 {
                if go_on(self)? {
                    return Ok(());
                }
            }
            let left = wait.left(|| self.waited_for())?;
            let waited = since.elapsed();
            if waited < eager {
                std::thread::yield_now();
            } else if bytes > 0 {
                std::thread::sleep(SHORT_NAP.min(left));
            } else {
                // Nothing is lost by a longer one: another rank computes.
                std::thread::sleep((waited / 16).clamp(SHORT_NAP, LONG_NAP).min(left));
            }
        }
    }

    /// Whether all requests are done.
    fn test(&mut self) -> Result<bool, CollectiveError> {
        let mpi = self.mpi;
        let mut all = true;
        for request in &mut self.memory.requests {
            all &= is_done(mpi, request)?;
        }
        Ok(all)
    }

    /// The ranks that are waited for: those whose header is missing; of its own collectives MPI does not tell.
    fn waited_for(&self) -> Vec<usize> {
        let others = (0..self.mpi.size()).filter(|&rank| rank != self.mpi.rank());
        let others: Vec<usize> = others.collect();
        let requests = &self.memory.requests;
        if requests.len() != 2 * others.len() {
            return others;
        }
        // A meeting: of each rank a receive, then a send.
        let receives = requests.iter().step_by(2);
        let missing = others.iter().zip(receives);
        let missing = missing.filter(|(_, receive)| **receive != NO_REQUEST);
        let missing: Vec<usize> = missing.map(|(&rank, _)| rank).collect();
        match missing.is_empty() {
            true => others,
            false => missing,
        }
    }
}

/// Whether a request is done; then there is none any more.
pub(super) fn is_done(mpi: &Mpi, request: &mut MpiHandle) -> Result<bool, CollectiveError> {
    if *request == NO_REQUEST {
        return Ok(true);
    }
    let (mut done, status) = (0, mpi.api.abi.status_ignore as *mut _);
    // SAFETY: the request is active.
    let code = unsafe { (mpi.api.test)(request, &mut done, status) };
    mpi.api.check("MPI_Test", code)?;
    if done != 0 {
        *request = NO_REQUEST;
    }
    Ok(done != 0)
}
