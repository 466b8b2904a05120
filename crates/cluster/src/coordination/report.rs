//! Telling who is missing at a rendezvous, and finding out why.

use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Address, Membership};

/// Tells each 10 seconds who is missing, and keeps the deadline.
pub(super) struct Report {
    worker: usize,
    start: Instant,
    deadline: Duration,
    next: Duration,
    /// Whether nobody is to be waited for any more.
    stop: Option<Arc<AtomicBool>>,
    tell: Box<dyn FnMut(&str) + Send>,
}

/// What a worker waits for that has come late.
pub(super) const IN_LOBBY: &str = "the others to let it in: they train without this worker, and do so while all of them are in `fit`";

const EVERY: Duration = Duration::from_secs(10);

impl Report {
    pub(super) fn new(
        membership: &Membership,
        (deadline, stop): (Duration, Option<Arc<AtomicBool>>),
        tell: Box<dyn FnMut(&str) + Send>,
    ) -> Self {
        Self {
            worker: membership.worker,
            start: Instant::now(),
            deadline,
            next: EVERY,
            stop,
            tell,
        }
    }

    /// The time until the deadline.
    pub(super) fn left(&self) -> Duration {
        match self.is_stopped() {
            true => Duration::ZERO,
            false => self.deadline.saturating_sub(self.start.elapsed()),
        }
    }

    /// The time since the deadline.
    pub(super) fn overdue(&self) -> Duration {
        match self.is_stopped() {
            true => Duration::MAX,
            false => self.start.elapsed().saturating_sub(self.deadline),
        }
    }

    fn is_stopped(&self) -> bool {
        let stop = self.stop.as_ref();
        stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Tells what `text` says, if it is time.
    pub(super) fn perhaps(&mut self, text: impl FnOnce() -> String) {
        let waited = self.start.elapsed();
        if waited < self.next {
            return;
        }
        let line = format!(
            "worker {}: waiting for {} ({:.0} s of {:.0} s)",
            self.worker,
            text(),
            waited.as_secs_f64(),
            self.deadline.as_secs_f64()
        );
        (self.tell)(&line);
        self.next = self.start.elapsed() + EVERY;
    }
}

/// Connects to the first address of a name that answers.
pub(super) fn dial(address: &Address, within: Duration) -> Result<TcpStream, String> {
    let resolved = (address.host.as_str(), address.port).to_socket_addrs();
    let resolved =
        resolved.map_err(|error| format!("the name {:?} is not known ({error})", address.host))?;
    let mut why = format!("the name {:?} has no address", address.host);
    for address in resolved {
        match TcpStream::connect_timeout(&address, within) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = format!("{} ({address})", explain(&error, within)),
        }
    }
    Err(why)
}

/// What there is to see at the address of a worker that has not joined.
pub(super) fn reach(address: &Address) -> String {
    match dial(address, Duration::from_secs(1)) {
        Ok(_) => "it listens, but has not joined".into(),
        Err(why) => format!("it has not connected, and {why}"),
    }
}

fn explain(error: &std::io::Error, within: Duration) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => {
            "connection refused: its machine is there, nothing listens at the port".into()
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            format!(
                "no answer within {:.1} s: a firewall, or the machine is down",
                within.as_secs_f64()
            )
        }
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            "no route to its machine".into()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    #[test]
    fn who_is_missing_is_told_when_it_is_time_and_not_before() {
        let (sender, told) = channel();
        let membership = Membership::new(2, 1, Address::new("127.0.0.1", 1));
        let tell = move |line: &str| sender.send(line.to_owned()).unwrap();
        let mut report = Report::new(
            &membership,
            (Duration::from_secs(300), None),
            Box::new(tell),
        );
        report.perhaps(|| panic!("it is too early"));
        report.next = Duration::ZERO;
        report.perhaps(|| "worker 0".into());
        report.perhaps(|| panic!("it was just told"));
        assert_eq!(
            told.try_iter().collect::<Vec<_>>(),
            ["worker 1: waiting for worker 0 (0 s of 300 s)"]
        );
    }

    #[test]
    fn what_is_seen_at_an_address_is_said_in_words() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::new("127.0.0.1", listener.local_addr().unwrap().port());
        assert_eq!(reach(&address), "it listens, but has not joined");
        // Nothing has listened at that port for decades.
        let refused = reach(&Address::new("127.0.0.1", 1));
        assert!(refused.contains("connection refused"), "{refused}");
        for (kind, words) in [
            (ErrorKind::TimedOut, "no answer within 2.0 s: a firewall"),
            (ErrorKind::HostUnreachable, "no route"),
            (ErrorKind::NetworkUnreachable, "no route"),
        ] {
            let said = explain(&kind.into(), Duration::from_secs(2));
            assert!(said.contains(words), "{said}");
        }
    }
}
