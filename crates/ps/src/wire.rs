//! One end of a connection: frames, each followed by the proof that who sent it knows the job's secret, where there is one.
//!
//! The proof is an HMAC-SHA256 over who speaks, a random number of each side, the number of the frame in its direction, the header and the
//! text of the frame, and its bytes where they are few. The bytes of values and gradients are covered by the frame's checksum, as those
//! of the collectives are: what they hold can be read, and a stranger between the two can change it, but nobody can join, ask or push.

use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use phalanx_proof::{BoundedStream, PROOF, Seal, Secret, Side, draw};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::PsError;
use crate::message::{Frame, FrameProblem, RawFrame, encode_frame};

/// What proofs of these connections are made under.
const LABEL: &str = "phalanx parameter servers 1";
/// Bytes of a frame up to this number are covered by its proof.
const COVERED: usize = 64 << 10;
/// The most bytes of somebody who has proved nothing yet.
const UNPROVED: u64 = 64 << 10;

/// One end of a connection.
pub(crate) struct Wire {
    /// A frame without bytes is read at once, and large bytes go where they belong without another copy.
    stream: BufReader<BoundedStream<TcpStream>>,
    /// What is sent, and what comes.
    seals: Option<(Seal, Seal)>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream: BufReader::new(BoundedStream {
                stream,
                until: None,
                left: Some(UNPROVED),
            }),
            seals: None,
        }
    }

    /// Sets how long all may take that comes before [`Wire::trust`], and each write.
    pub(crate) fn prepare(&mut self, stranger: Duration, write: Duration) -> io::Result<()> {
        let bounded = self.stream.get_mut();
        bounded.until = Some(Instant::now() + stranger);
        bounded.stream.set_nonblocking(false)?;
        bounded.stream.set_nodelay(true)?;
        bounded.stream.set_write_timeout(Some(write))
    }

    /// From now on every frame is proved, by the numbers that both sides drew; without a secret none is.
    pub(crate) fn seal(&mut self, secret: Option<&Secret>, own: Side, server: u128, worker: u128) {
        let other = match own {
            Side::Accepting => Side::Connecting,
            Side::Connecting => Side::Accepting,
        };
        let of = |side| secret.map(|secret| Seal::new(secret, LABEL, side, server, worker));
        self.seals = of(own).zip(of(other));
    }

    /// Takes frames of any size from now on; a read takes at most this time.
    pub(crate) fn trust(&mut self, read: Duration) -> io::Result<()> {
        let bounded = self.stream.get_mut();
        (bounded.until, bounded.left) = (None, None);
        bounded.stream.set_read_timeout(Some(read))
    }

    pub(crate) fn send(&mut self, message: &impl Serialize, bytes: &[u8]) -> Result<(), PsError> {
        let head = encode_frame(message, bytes)?;
        let proof = self.seals.as_mut();
        let proof = proof.map(|(seal, _)| seal.prove_next(&[&head, covered(bytes)]));
        let proof = proof.as_ref().map_or(&[][..], |proof| &proof[..]);
        write_all(&self.stream.get_ref().stream, [&head[..], bytes, proof])
            .map_err(|error| PsError::Lost(error.to_string()))
    }

    /// The next frame; `None` where the other side has ended the connection.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<Frame<T>>, FrameProblem> {
        let most = self.stream.get_ref().left.unwrap_or(u64::MAX);
        let Some(raw) = RawFrame::read(&mut self.stream, most)? else {
            return Ok(None);
        };
        if let Some((_, seal)) = &mut self.seals {
            let mut proof = [0; PROOF];
            (self.stream.read_exact(&mut proof)).map_err(FrameProblem::Io)?;
            if !seal.proves_next(&[&raw.head, covered(&raw.bytes)], &proof) {
                return Err(FrameProblem::Unproved);
            }
        }
        raw.parse().map(Some)
    }
}

/// What of the bytes of a frame its proof covers; how many there are is in its header.
const fn covered(bytes: &[u8]) -> &[u8] {
    match bytes.len() {
        ..=COVERED => bytes,
        _ => &[],
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
pub(crate) fn draw_number() -> Result<u128, PsError> {
    let drawn = draw().map_err(|error| PsError::Lost(format!("no random numbers: {error}")))?;
    Ok(u128::from_le_bytes(drawn))
}
