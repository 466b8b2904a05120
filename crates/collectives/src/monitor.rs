//! The connections on which ranks tell each other that they fail or leave, and whose end says that a process is gone.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{SendFlags, send};

use crate::error::CollectiveError;
use crate::state::{Announce, State};

/// The longest reason that is passed on, in bytes.
const REASON: usize = 4096;
/// Bytes of a notice before its lists.
const FIXED: usize = 16;
/// More ranks are not blamed by name.
const BLAMED: usize = 1024;

/// What a rank tells the others.
#[derive(Clone, Debug, PartialEq)]
enum Notice {
    /// It works no more.
    Failed {
        by: u32,
        blamed: Vec<u32>,
        reason: String,
    },
    /// It has had its last exchange.
    Leaves,
    /// It waits for others.
    Waits,
}

impl Notice {
    fn encode(&self) -> Vec<u8> {
        let (kind, by, blamed, reason): (u32, _, &[u32], _) = match self {
            Self::Failed { by, blamed, reason } => (1, *by, blamed, reason.as_str()),
            Self::Leaves => (2, 0, &[], ""),
            Self::Waits => (3, 0, &[], ""),
        };
        let blamed = &blamed[..blamed.len().min(BLAMED)];
        let reason = &reason.as_bytes()[..reason.len().min(REASON)];
        let numbers = [kind, by, blamed.len() as u32, reason.len() as u32];
        let numbers = numbers.iter().chain(blamed);
        let mut bytes: Vec<u8> = numbers.flat_map(|number| number.to_le_bytes()).collect();
        bytes.extend_from_slice(reason);
        bytes
    }

    /// The notice at the start of these bytes, and its length; `None` while bytes are missing.
    fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, String> {
        let number = |index: usize| {
            let part = bytes.get(index * 4..index * 4 + 4)?;
            Some(u32::from_le_bytes([part[0], part[1], part[2], part[3]]))
        };
        let [Some(kind), Some(by), Some(count), Some(length)] = [0, 1, 2, 3].map(number) else {
            return Ok(None);
        };
        let (count, length) = (count as usize, length as usize);
        if count > BLAMED || length > REASON || !matches!(kind, 1..=3) {
            return Err(format!(
                "found a notice {kind} with {count} ranks and {length} bytes"
            ));
        }
        let reason = FIXED + count * 4;
        let Some(text) = bytes.get(reason..reason + length) else {
            return Ok(None);
        };
        let notice = match kind {
            1 => Self::Failed {
                by,
                blamed: (4..4 + count).filter_map(number).collect(),
                reason: String::from_utf8_lossy(text).into_owned(),
            },
            2 => Self::Leaves,
            _ => Self::Waits,
        };
        Ok(Some((notice, reason + length)))
    }
}

/// Reads notices as a fuzzer's bytes give them.
#[doc(hidden)]
#[must_use]
pub fn notice_round_trip(bytes: &[u8]) -> Option<bool> {
    let (notice, _) = Notice::decode(bytes).ok()??;
    let again = Notice::decode(&notice.encode());
    // What was no text has grown, and may have been cut.
    let (Ok(Some((again, _))), Notice::Failed { by, .. }) = (again, &notice) else {
        return Some(!matches!(notice, Notice::Failed { .. }));
    };
    Some(matches!(again, Notice::Failed { by: found, .. } if found == *by))
}

/// Tells ranks in other processes.
pub(crate) struct ToProcesses {
    pub(crate) rank: usize,
    /// To each rank but this one.
    pub(crate) control: Arc<Vec<Option<TcpStream>>>,
    /// Closed on failure, which ends whatever waits for them.
    pub(crate) data: Arc<Vec<Vec<TcpStream>>>,
    /// Ends the monitor.
    pub(crate) end: Arc<OwnedFd>,
}

impl ToProcesses {
    fn tell(&self, notice: &Notice) {
        let bytes = notice.encode();
        for stream in self.control.iter().flatten() {
            // Nobody waits for a rank that does not listen: the connection is otherwise idle, so that there is room.
            let _ = send(stream, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

impl Announce for ToProcesses {
    fn failed(&self, error: &CollectiveError) {
        if let CollectiveError::Aborted { by, blamed, reason } = error.as_told_by(self.rank) {
            self.tell(&Notice::Failed {
                by: by as u32,
                blamed: blamed.iter().map(|&rank| rank as u32).collect(),
                reason,
            });
        }
        for stream in self.data.iter().flatten() {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn waits(&self) {
        self.tell(&Notice::Waits);
    }

    fn leaves(&self) {
        self.tell(&Notice::Leaves);
        // A counter that is full has ended the monitor already.
        let _ = rustix::io::write(&*self.end, &1u64.to_ne_bytes());
    }
}

/// Makes what [`ToProcesses::end`] is.
pub(crate) fn end() -> Result<OwnedFd, CollectiveError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| CollectiveError::local("make an event", error))
}

/// Listens until the end; runs on a thread of its own.
pub(crate) fn monitor(state: &State, control: &[Option<TcpStream>], end: &OwnedFd) {
    let mut unread: Vec<Vec<u8>> = control.iter().map(|_| Vec::new()).collect();
    let mut open: Vec<bool> = control.iter().map(Option::is_some).collect();
    loop {
        let watched: Vec<(usize, &TcpStream)> = control
            .iter()
            .enumerate()
            .filter_map(|(rank, stream)| stream.as_ref().map(|stream| (rank, stream)))
            .filter(|(rank, _)| open[*rank])
            .collect();
        let mut polled = vec![PollFd::new(end, PollFlags::IN)];
        polled.extend(
            watched
                .iter()
                .map(|(_, stream)| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)),
        );
        if poll(&mut polled, None).is_err() {
            continue;
        }
        if !polled[0].revents().is_empty() {
            return;
        }
        let ready: Vec<usize> = watched
            .iter()
            .zip(&polled[1..])
            .filter(|(_, polled)| !polled.revents().is_empty())
            .map(|((rank, _), _)| *rank)
            .collect();
        for rank in ready {
            if let Some(stream) = &control[rank] {
                open[rank] = listen(state, rank, stream, &mut unread[rank]);
            }
        }
    }
}

/// Reads what a rank says; whether it may say more.
fn listen(state: &State, rank: usize, mut stream: &TcpStream, unread: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 1024];
    match stream.read(&mut bytes) {
        Ok(0) => return gone(state, rank, "its process has closed the connection"),
        Ok(count) => unread.extend_from_slice(&bytes[..count]),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        Err(error) => return gone(state, rank, &error.to_string()),
    }
    loop {
        match Notice::decode(unread) {
            Ok(Some((notice, length))) => {
                unread.drain(..length);
                hear(state, rank, notice);
            }
            Ok(None) => return true,
            Err(detail) => {
                state.fail(CollectiveError::Corrupt { rank, detail });
                return false;
            }
        }
    }
}

fn gone(state: &State, rank: usize, detail: &str) -> bool {
    if !state.has_left(rank) {
        state.fail(state.lost(rank, detail));
    }
    false
}

fn hear(state: &State, rank: usize, notice: Notice) {
    match notice {
        Notice::Leaves => state.set_left(rank),
        Notice::Waits => state.set_waits(rank),
        Notice::Failed { by, blamed, reason } => {
            state.fail(CollectiveError::Aborted {
                by: by as usize,
                blamed: blamed.iter().map(|&rank| rank as usize).collect(),
                reason,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_come_back_whole_or_not_at_all() {
        let failed = Notice::Failed {
            by: 3,
            blamed: vec![1, 2],
            reason: "no more".into(),
        };
        for notice in [failed, Notice::Leaves, Notice::Waits] {
            let bytes = notice.encode();
            for cut in 0..bytes.len() {
                assert_eq!(Notice::decode(&bytes[..cut]), Ok(None));
            }
            assert_eq!(Notice::decode(&bytes), Ok(Some((notice, bytes.len()))));
        }
        assert!(Notice::decode(&[9; 16]).is_err());
    }
}
