//! The two ways between a worker and the service: channels within a process, and TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::authentication::{SEAL, Seal};
use super::message::{FrameError, Reply, Request, decode, encode};
use super::service::Input;

/// A worker's side of its connection.
pub(super) struct Link {
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
}

/// What came, or did not.
pub(super) enum Next<T> {
    Message(T, Vec<u8>),
    Silence,
    Closed(String),
}

/// A stream to write to, and what each frame is sealed with.
pub(super) struct Sealed {
    pub(super) stream: TcpStream,
    pub(super) seal: Option<Seal>,
}

impl Sealed {
    /// Writes a frame. Half of one may be on its way when that fails: nothing more must follow it, and the connection is ended.
    pub(super) fn write(&mut self, mut frame: Vec<u8>) {
        if let Some(seal) = &mut self.seal {
            let proof = seal.next(&frame);
            frame.extend_from_slice(&proof);
        }
        if self.stream.write_all(&frame).is_err() {
            self.close();
        }
    }

    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Where a worker's requests go.
#[derive(Clone)]
pub(super) enum Outgoing {
    Memory { connection: u64, to: Sender<Input> },
    Tcp(Arc<Mutex<Sealed>>),
}

impl Outgoing {
    /// Sends a request. That the other side is gone is seen by who reads.
    pub(super) fn send(&self, request: Request, bytes: Vec<u8>) -> Result<(), FrameError> {
        match self {
            Self::Memory { connection, to } => {
                let _ = to.send(Input::Message {
                    connection: *connection,
                    from: None,
                    request,
                    bytes,
                });
            }
            Self::Tcp(stream) => {
                let frame = encode(&request, &bytes)?;
                stream
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .write(frame);
            }
        }
        Ok(())
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        match self {
            Self::Memory { connection, to } => {
                let _ = to.send(Input::Closed {
                    connection: *connection,
                    why: "its process gave up".into(),
                });
            }
            Self::Tcp(stream) => {
                stream
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .close();
            }
        }
    }
}

/// Where the service's replies come from.
pub(super) enum Incoming {
    Memory(Receiver<(Reply, Vec<u8>)>),
    Tcp(Frames),
}

impl Incoming {
    /// The next reply, waited for no longer than `within`.
    pub(super) fn next(&mut self, within: Duration) -> Next<Reply> {
        match self {
            Self::Memory(receiver) => match receiver.recv_timeout(within) {
                Ok((reply, bytes)) => Next::Message(reply, bytes),
                Err(RecvTimeoutError::Timeout) => Next::Silence,
                Err(RecvTimeoutError::Disconnected) => Next::Closed("its service ended".into()),
            },
            Self::Tcp(frames) => frames.next(within),
        }
    }
}

/// Messages out of a TCP connection.
pub(super) struct Frames {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// What the frames are sealed with, once that is agreed on.
    pub(super) seal: Option<Seal>,
    /// Whether who sends them has proven nothing yet.
    is_stranger: bool,
}

/// The most bytes that are kept of a message of somebody who has proven nothing yet.
const UNPROVEN: usize = 64 << 10;

impl Frames {
    pub(super) const fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            seal: None,
            is_stranger: false,
        }
    }

    /// Of somebody who has to prove who he is, see [`Frames::seal_from`].
    pub(super) fn of_stranger(stream: TcpStream) -> Self {
        Self {
            is_stranger: true,
            ..Self::new(stream)
        }
    }

    pub(super) fn next<T: DeserializeOwned>(&mut self, within: Duration) -> Next<T> {
        let until = Instant::now() + within;
        let mut chunk = [0; 16 << 10];
        loop {
            match decode(&self.buffer) {
                Ok(Some((message, bytes, length))) => match self.unseal(length) {
                    Some(true) => return Next::Message(message, bytes),
                    Some(false) => {
                        return Next::Closed(
                            "a message was not sealed with the job's secret".into(),
                        );
                    }
                    None => {}
                },
                Ok(None) if self.is_stranger && self.buffer.len() > UNPROVEN => {
                    return Next::Closed("a first message that is too long".into());
                }
                Ok(None) => {}
                Err(error) => return Next::Closed(error.to_string()),
            }
            let left = until.saturating_duration_since(Instant::now());
            // Zero would mean to wait for ever.
            let left = left.max(Duration::from_millis(1));
            if let Err(error) = self.stream.set_read_timeout(Some(left)) {
                return Next::Closed(error.to_string());
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Next::Closed("its connection was closed".into()),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Next::Silence,
                    ErrorKind::ConnectionReset => {
                        return Next::Closed("its connection was reset".into());
                    }
                    _ => return Next::Closed(error.to_string()),
                },
            }
        }
    }

    /// Takes a frame of this length and its seal out of the buffer, and says whether the seal holds; `None` while it is not there.
    fn unseal(&mut self, length: usize) -> Option<bool> {
        let Some(seal) = &mut self.seal else {
            self.buffer.drain(..length);
            return Some(true);
        };
        let proof = self.buffer.get(length..length + SEAL)?;
        let holds = seal.holds(&self.buffer[..length], proof);
        self.buffer.drain(..length + SEAL);
        Some(holds)
    }

    /// Checks the seal of the message that was read last, which said how it is sealed: its seal is still in the buffer.
    pub(super) fn seal_from(&mut self, seal: Option<Seal>, frame: &[u8], within: Duration) -> bool {
        let until = Instant::now() + within;
        self.seal = seal;
        let Some(seal) = &mut self.seal else {
            self.is_stranger = false;
            return true;
        };
        let mut chunk = [0; SEAL];
        while self.buffer.len() < SEAL {
            let missing = SEAL - self.buffer.len();
            match self.stream.read(&mut chunk[..missing]) {
                Ok(count @ 1..) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return false,
            }
            if Instant::now() >= until {
                return false;
            }
        }
        let holds = seal.holds(frame, &self.buffer[..SEAL]);
        self.buffer.drain(..SEAL);
        self.is_stranger = !holds;
        holds
    }
}
