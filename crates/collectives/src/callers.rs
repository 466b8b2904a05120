//! Connections that have not proven yet which rank they are. They are heard side by side, so that a stranger who says nothing, or says
//! it slowly, holds up nobody.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use phalanx_proof::PROOF;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::handshake::HELLO;

/// How long an accepted connection may take to prove who it is.
const WITHIN: Duration = Duration::from_secs(3);
/// Callers at a time: of more, those that came first are left. A rank takes a few milliseconds, and comes again.
const MOST: usize = 256;

/// Who has connected and is not known.
pub(crate) struct Caller {
    pub(crate) stream: TcpStream,
    until: Instant,
    /// What has come of its hello, then of its proof.
    pub(crate) bytes: Vec<u8>,
    /// Its hello and the answer, once they were exchanged.
    pub(crate) hellos: Option<[[u8; HELLO]; 2]>,
}

impl Caller {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            until: Instant::now() + WITHIN,
            bytes: Vec::new(),
            hellos: None,
        })
    }

    /// Takes what has come; whether what is waited for is whole.
    pub(crate) fn is_whole(&mut self) -> Result<bool> {
        let wanted = if self.hellos.is_some() { PROOF } else { HELLO };
        let mut part = [0; HELLO];
        while self.bytes.len() < wanted {
            let missing = wanted - self.bytes.len();
            match self.stream.read(&mut part[..missing]) {
                Ok(0) => return Err(Error::from(ErrorKind::UnexpectedEof)),
                Ok(length) => self.bytes.extend_from_slice(&part[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Those that are heard.
#[derive(Default)]
pub(crate) struct Callers(VecDeque<Caller>);

impl Callers {
    /// Accepts all that wait at a listener that does not block.
    pub(crate) fn accept(&mut self, listener: &TcpListener) -> Result<()> {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    // One that is gone already is none.
                    self.0.extend(Caller::new(stream).ok());
                    if self.0.len() > MOST {
                        self.0.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Hears each once, by a function that gives those back that have more to say; those whose time is over are left.
    pub(crate) fn hear(&mut self, mut next: impl FnMut(Caller) -> Option<Caller>) {
        let now = Instant::now();
        let callers = std::mem::take(&mut self.0);
        let heard = callers.into_iter().filter(|caller| now < caller.until);
        self.0 = heard.filter_map(&mut next).collect();
    }

    /// Waits until one says something or another comes, for no longer than `within`.
    pub(crate) fn wait(&self, listener: &TcpListener, within: Duration) {
        let streams = self.0.iter().map(|caller| &caller.stream);
        let streams = streams.map(|stream| PollFd::new(stream, PollFlags::IN));
        let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
        polled.extend(streams);
        let within = within.min(Duration::from_millis(200));
        let within = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(within.subsec_nanos()),
        };
        // Interrupted: whoever waits looks again.
        let _ = poll(&mut polled, Some(&within));
    }
}
