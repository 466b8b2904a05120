//! What a worker asks the service, and how long it waits for the answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::{Answer, ON_THE_WAY, Place, Shared};
use crate::coordination::message::{FrameError, MOST_IN_ETCD, MOST_VALUE, Reply, Request};
use crate::coordination::request::JOIN_WITHIN;
use crate::coordination::{ClusterError, Missing};

/// How long a flag may be set before who waits sees it.
const LOOK_EVERY: Duration = Duration::from_millis(50);

const SMALL_VALUES: &str = "the coordinator is for small values, send large ones as data";

impl Shared {
    /// Whether the service can keep this many bytes, and send them to all with as many of each of some workers.
    pub(super) fn check_length(
        &self,
        name: &str,
        length: usize,
        workers: usize,
    ) -> Result<(), ClusterError> {
        let most = match self.place {
            Place::Etcd => MOST_IN_ETCD,
            Place::FirstWorker | Place::Launcher => MOST_VALUE / workers.max(1),
        };
        if length <= most {
            return Ok(());
        }
        Err(ClusterError::User(format!(
            "{name:?}: {length} bytes, here at most {most} of one worker; {SMALL_VALUES}"
        )))
    }

    /// Asks the service and waits for the answer, for `deadline` and the time that the answer may be on its way.
    pub(super) fn ask(
        &self,
        name: &str,
        request: impl FnOnce(u64) -> Request,
        bytes: Vec<u8>,
        deadline: Duration,
    ) -> Result<Answer, ClusterError> {
        self.ask_unless(name, request, bytes, (deadline, None))
    }

    /// The same; a flag that is found set ends the wait, as the deadline does, but not before the time beside it has gone by.
    pub(super) fn ask_unless(
        &self,
        name: &str,
        request: impl FnOnce(u64) -> Request,
        bytes: Vec<u8>,
        (deadline, stop): (Duration, Option<(&AtomicBool, Duration)>),
    ) -> Result<Answer, ClusterError> {
        let (id, answer) = self.question()?;
        if let Err(error) = self.outgoing.send(request(id), bytes) {
            self.lock().waiting.remove(&id);
            return Err(too_long(name, &error));
        }
        let answer = wait(&answer, deadline.saturating_add(ON_THE_WAY), stop);
        self.lock().waiting.remove(&id);
        match answer {
            Some((Reply::Failed(failure), _)) => Err(ClusterError::Failed { failure }),
            Some(answer) => Ok(answer),
            None => Err(ClusterError::Late {
                name: name.into(),
                missing: vec![self.silent()],
                within: deadline,
            }),
        }
    }

    /// How long what needs no other worker may take: where it goes through an etcd, which may be started again, as long as joining.
    pub(super) const fn done_within(&self) -> Duration {
        match self.place {
            Place::Etcd => JOIN_WITHIN,
            Place::FirstWorker | Place::Launcher => self.timing.lease,
        }
    }

    /// Who does not answer.
    fn silent(&self) -> Missing {
        let (worker, why) = match self.place {
            Place::FirstWorker => (0, "it does not answer"),
            Place::Launcher => (
                self.worker,
                "the launcher, which coordinates, does not answer it",
            ),
            Place::Etcd => (
                self.worker,
                "etcd, in which the workers meet, does not answer it",
            ),
        };
        self.missing(worker, why.into())
    }

    fn question(&self) -> Result<(u64, Receiver<Answer>), ClusterError> {
        let mut state = self.lock();
        if let Some(failure) = state.failure.clone() {
            return Err(ClusterError::Failed { failure });
        }
        if state.left {
            let text = "this worker has left the cluster; a handle is of no use after `leave`";
            return Err(ClusterError::User(text.into()));
        }
        let (sender, receiver) = channel();
        let id = state.next;
        state.next += 1;
        state.waiting.insert(id, sender);
        Ok((id, receiver))
    }

    /// Sends what is answered by a failure, and waits for that no longer than the lease.
    pub(super) fn tell(&self, request: Request) {
        let Ok((id, answer)) = self.question() else {
            return;
        };
        if self.outgoing.send(request, Vec::new()).is_ok() {
            let _ = wait(&answer, self.timing.lease, None);
        }
        self.lock().waiting.remove(&id);
    }
}

fn wait(
    answer: &Receiver<Answer>,
    within: Duration,
    stop: Option<(&AtomicBool, Duration)>,
) -> Option<Answer> {
    // Beyond some time instants cannot be counted.
    let within = within.min(Duration::from_secs(1 << 32));
    let Some((stop, at_least)) = stop else {
        return answer.recv_timeout(within).ok();
    };
    let start = Instant::now();
    while start.elapsed() < at_least || !stop.load(Ordering::Acquire) {
        let left = within.checked_sub(start.elapsed())?;
        match answer.recv_timeout(left.min(LOOK_EVERY)) {
            Err(RecvTimeoutError::Timeout) => {}
            answer => return answer.ok(),
        }
    }
    None
}

fn too_long(name: &str, error: &FrameError) -> ClusterError {
    ClusterError::User(format!("{name:?}: {error}; {SMALL_VALUES}"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::{Coordinator, Handle};
    use super::*;
    use crate::coordination::link::Outgoing;
    use crate::{Failure, Timing};

    /// A worker's handle whose questions nobody reads.
    fn unheard(place: Place) -> Coordinator {
        let shared = Shared {
            outgoing: Outgoing::Memory {
                connection: 0,
                to: channel().0,
            },
            worker: 1,
            workers: 2,
            place,
            generation: 1,
            timing: Timing {
                heartbeat: LOOK_EVERY,
                lease: LOOK_EVERY,
            },
            addresses: None,
            has_comers: false,
            state: Mutex::default(),
        };
        Coordinator(Arc::new(Handle {
            shared: Arc::new(shared),
            hosted: None,
            reading: Mutex::new(channel().1),
        }))
    }

    #[test]
    fn an_etcd_that_is_away_is_waited_for_and_a_failure_ends_the_wait() {
        let away = unheard(Place::Etcd);
        let failure = Failure {
            worker: 1,
            reason: "has lost its place".into(),
            next: None,
        };
        let ended = std::thread::scope(|scope| {
            let waits = [
                scope.spawn(|| away.set("key", Vec::new())),
                scope.spawn(|| away.admit(true, None)),
            ];
            std::thread::sleep(ON_THE_WAY + 4 * LOOK_EVERY);
            assert!(waits.iter().all(|wait| !wait.is_finished()));
            away.0.shared.fail(&failure);
            waits.map(|wait| wait.join().unwrap().unwrap_err())
        });
        assert_eq!(ended[0], ClusterError::Failed { failure });
        assert_eq!(ended[1], ended[0]);
    }

    #[test]
    fn a_flag_ends_the_wait_for_an_etcd_once_the_lease_is_over() {
        let (away, stop, start) = (unheard(Place::Etcd), AtomicBool::new(true), Instant::now());
        let late = away.admit(false, Some(&stop));
        assert!(matches!(late, Err(ClusterError::Late { .. })), "{late:?}");
        assert!((LOOK_EVERY..JOIN_WITHIN / 10).contains(&start.elapsed()));
        // A service that is there answers before that.
        let all = Coordinator::in_memory(1);
        all[0].admit(false, Some(&stop)).unwrap();
    }

    #[test]
    fn the_error_says_who_does_not_answer() {
        for (place, who) in [
            (Place::FirstWorker, "worker 0: it does not answer"),
            (Place::Launcher, "worker 1: the launcher, "),
            (Place::Etcd, "worker 1: etcd, "),
        ] {
            let none = unheard(place).barrier("b", Duration::ZERO);
            let told = none.unwrap_err().to_string();
            assert!(told.contains(who), "{told}");
        }
    }

    #[test]
    fn a_flag_ends_the_wait_for_a_key_and_a_key_that_is_there_is_read() {
        let all = Coordinator::in_memory(1);
        let (stop, long) = (AtomicBool::new(false), Duration::from_secs(60));
        all[0].set("there", vec![7]).unwrap();
        let get = |key| all[0].get_unless(key, long, Some(&stop));
        assert_eq!(get("there").unwrap(), [7]);
        let start = Instant::now();
        let late = std::thread::scope(|scope| {
            let late = scope.spawn(|| get("missing"));
            std::thread::sleep(2 * LOOK_EVERY);
            stop.store(true, Ordering::Release);
            late.join().unwrap()
        });
        assert!(matches!(late, Err(ClusterError::Late { .. })), "{late:?}");
        assert!(start.elapsed() < long / 2);
    }
}
