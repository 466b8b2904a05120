//! The two ways between a worker and the service: channels within a process, and TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_proof::{BoundedStream, PROOF, Seal, Secret, Side};
use serde::de::DeserializeOwned;

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
            let proof = seal.prove_next(&[&frame]);
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
    Tcp(Box<Frames>),
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

/// What a side proves of its frames, by the numbers that the service and the worker drew; nothing without a secret.
pub(super) fn seal(
    secret: Option<&Secret>,
    side: Side,
    service: u128,
    worker: u128,
) -> Option<Seal> {
    secret.map(|secret| Seal::new(secret, "phalanx coordination 1", side, service, worker))
}

/// Messages out of a TCP connection.
pub(super) struct Frames {
    /// Bounded in bytes while who sends them has proven nothing.
    stream: BoundedStream<TcpStream>,
    buffer: Vec<u8>,
    /// What the frames are sealed with, once that is agreed on.
    pub(super) seal: Option<Seal>,
}

/// The most bytes of somebody who has proven nothing yet.
const UNPROVEN: u64 = 64 << 10;
/// What is there already is also read after the time is over.
const AT_ONCE: Duration = Duration::from_millis(1);

impl Frames {
    pub(super) const fn new(stream: TcpStream) -> Self {
        Self {
            stream: BoundedStream {
                stream,
                until: None,
                left: None,
            },
            buffer: Vec::new(),
            seal: None,
        }
    }

    /// Of somebody who has to prove who he is, see [`Frames::seal_from`].
    pub(super) fn of_stranger(stream: TcpStream) -> Self {
        let mut frames = Self::new(stream);
        frames.stream.left = Some(UNPROVEN);
        frames
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
                Ok(None) => {}
                Err(error) => return Next::Closed(error.to_string()),
            }
            self.stream.until = Some(match self.stream.left {
                Some(_) => until,
                None => until.max(Instant::now() + AT_ONCE),
            });
            match self.stream.read(&mut chunk) {
                Ok(0) => return Next::Closed("its connection was closed".into()),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::TimedOut => return Next::Silence,
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
        let proof = self.buffer.get(length..length + PROOF)?;
        let holds = seal.proves_next(&[&self.buffer[..length]], proof);
        self.buffer.drain(..length + PROOF);
        Some(holds)
    }

    /// Checks the seal of the message that was read last, which said how it is sealed, within the time of that message.
    pub(super) fn seal_from(&mut self, seal: Option<Seal>, frame: &[u8]) -> bool {
        self.seal = seal;
        if let Some(seal) = &mut self.seal {
            let mut proof = [0; PROOF];
            let read = (&self.buffer[..])
                .chain(&mut self.stream)
                .read_exact(&mut proof);
            self.buffer.drain(..PROOF.min(self.buffer.len()));
            if read.is_err() || !seal.proves_next(&[frame], &proof) {
                return false;
            }
        }
        self.stream.left = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Frames of a stranger who says this, the last part a byte at a time.
    fn of_one_who_says(at_once: Vec<u8>, slowly: Vec<u8>) -> Frames {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        thread::spawn(move || {
            let _ = far.write_all(&at_once);
            for byte in slowly {
                thread::sleep(Duration::from_millis(400));
                let _ = far.write_all(&[byte]);
            }
        });
        Frames::of_stranger(listener.accept().unwrap().0)
    }

    #[test]
    fn a_stranger_has_one_time_for_all_that_proves_him_and_few_bytes() {
        let request = Request::Set {
            id: 1,
            key: "k".into(),
        };
        let hello = encode(&request, b"").unwrap();
        let seal = || seal(Some(&Secret::new("s")), Side::Connecting, 1, 2);
        let proof = seal().unwrap().prove_next(&[&hello]).to_vec();
        for (at_once, slowly, is_believed) in [
            ([&hello[..], &proof].concat(), Vec::new(), true),
            (hello.clone(), proof.clone(), false),
        ] {
            let start = Instant::now();
            let mut frames = of_one_who_says(at_once, slowly);
            let next = frames.next::<Request>(Duration::from_secs(4));
            assert!(matches!(next, Next::Message(..)));
            assert_eq!(frames.seal_from(seal(), &hello), is_believed);
            assert!(start.elapsed() < Duration::from_secs(10));
        }
        let long = encode(&request, &vec![0; 1 << 20]).unwrap();
        let mut frames = of_one_who_says(long, Vec::new());
        let next = frames.next::<Request>(Duration::from_secs(20));
        let Next::Closed(why) = next else {
            panic!("a long message of a stranger was taken");
        };
        assert!(why.contains("more bytes"), "{why}");
        assert!(frames.buffer.len() <= UNPROVEN as usize);
    }
}
