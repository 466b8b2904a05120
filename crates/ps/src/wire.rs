//! One end of a connection: frames, each followed by the proof that who sent it knows the job's secret, where there is one.
//!
//! The proof is an HMAC-SHA256 over who speaks, a random number of each side, the number of the frame in its direction, the header and the
//! text of the frame, and its bytes where they are few. The bytes of values and gradients are covered by the frame's checksum, as those
//! of the collectives are: what they hold can be read, and a stranger between the two can change it, but nobody can join, ask or push.

use std::fmt;
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;

use crate::PsError;
use crate::message::{Frame, FrameProblem, RawFrame, encode_frame};

/// Bytes that follow each frame of a connection with a secret.
const PROOF: usize = 32;
/// Bytes of a frame up to this number are covered by its proof.
const COVERED: usize = 64 << 10;
/// The most bytes of a frame of somebody who has proved nothing yet.
const UNPROVED: u64 = 64 << 10;

/// What the processes of a job prove to each other that they know.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Which side a process is of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server = 0,
    Worker = 1,
}

/// One direction of a connection.
struct Seal {
    mac: Hmac<Sha256>,
    count: u64,
}

impl Seal {
    fn new(secret: &Secret, side: Side, server: u128, worker: u128) -> Option<Self> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).ok()?;
        mac.update(b"phalanx parameter servers 1");
        mac.update(&[side as u8]);
        mac.update(&server.to_le_bytes());
        mac.update(&worker.to_le_bytes());
        Some(Self { mac, count: 0 })
    }

    fn of_next(&mut self, head: &[u8], bytes: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&self.count.to_le_bytes());
        mac.update(head);
        if bytes.len() <= COVERED {
            mac.update(bytes);
        }
        self.count += 1;
        mac
    }
}

/// A stream that is read until a time, as long as one is set: however slowly its bytes come.
struct Timed {
    stream: TcpStream,
    until: Option<Instant>,
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(bytes)
    }
}

/// One end of a connection.
pub(crate) struct Wire {
    /// A frame without bytes is read at once, and large bytes go where they belong without another copy.
    stream: BufReader<Timed>,
    /// What is sent, and what comes.
    seals: Option<(Seal, Seal)>,
    is_trusted: bool,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream: BufReader::new(Timed {
                stream,
                until: None,
            }),
            seals: None,
            is_trusted: false,
        }
    }

    /// Sets how long all may take that comes before [`Wire::trust`], and each write.
    pub(crate) fn prepare(&mut self, stranger: Duration, write: Duration) -> io::Result<()> {
        let timed = self.stream.get_mut();
        timed.until = Some(Instant::now() + stranger);
        timed.stream.set_nonblocking(false)?;
        timed.stream.set_nodelay(true)?;
        timed.stream.set_write_timeout(Some(write))
    }

    /// From now on every frame is proved, by the numbers that both sides drew; without a secret none is.
    pub(crate) fn seal(&mut self, secret: Option<&Secret>, own: Side, server: u128, worker: u128) {
        let other = match own {
            Side::Server => Side::Worker,
            Side::Worker => Side::Server,
        };
        let of = |side| secret.and_then(|secret| Seal::new(secret, side, server, worker));
        self.seals = of(own).zip(of(other));
    }

    /// Takes frames of any size from now on; a read takes at most this time.
    pub(crate) fn trust(&mut self, read: Duration) -> io::Result<()> {
        self.is_trusted = true;
        let timed = self.stream.get_mut();
        timed.until = None;
        timed.stream.set_read_timeout(Some(read))
    }

    pub(crate) fn send(&mut self, message: &impl Serialize, bytes: &[u8]) -> Result<(), PsError> {
        let head = encode_frame(message, bytes)?;
        let proof = match &mut self.seals {
            Some((seal, _)) => seal.of_next(&head, bytes).finalize().into_bytes().to_vec(),
            None => Vec::new(),
        };
        write_all(
            &self.stream.get_ref().stream,
            [&head[..], bytes, &proof[..]],
        )
        .map_err(|error| PsError::Lost(error.to_string()))
    }

    /// The next frame; `None` where the other side has ended the connection.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<Frame<T>>, FrameProblem> {
        let most = if self.is_trusted { u64::MAX } else { UNPROVED };
        let Some(raw) = RawFrame::read(&mut self.stream, most)? else {
            return Ok(None);
        };
        if let Some((_, seal)) = &mut self.seals {
            let mut proof = [0; PROOF];
            (self.stream.read_exact(&mut proof)).map_err(FrameProblem::Io)?;
            let expected = seal.of_next(&raw.head, &raw.bytes);
            if expected.verify_slice(&proof).is_err() {
                return Err(FrameProblem::Unproved);
            }
        }
        raw.parse().map(Some)
    }
}

/// Writes parts one after the other, in as few calls as they fit into: each call may wake the other side.
fn write_all(mut stream: &TcpStream, parts: [&[u8]; 3]) -> io::Result<()> {
    let mut slices = parts.map(IoSlice::new);
    let mut left = &mut slices[..];
    // Without the parts that have no bytes, of which nothing would be written.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut left, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A number that nobody can foresee.
pub(crate) fn draw() -> Result<u128, PsError> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let drawn = getrandom(&mut bytes[filled..], GetRandomFlags::empty());
        filled += drawn.map_err(|error| PsError::Lost(format!("no random numbers: {error}")))?;
    }
    Ok(u128::from_le_bytes(bytes))
}
