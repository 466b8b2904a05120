//! What workers and the coordination service say to each other, and how that is framed.
//!
//! A frame is `PHX1`, the length of the body, its CRC32C (both u32, little endian), and the body: the length of a JSON text (u32),
//! the text, and bytes that belong to it. JSON, so that versions that differ can still tell each other so.

use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Failure;

const MAGIC: [u8; 4] = *b"PHX1";
const HEADER: usize = 12;
/// No body is longer: what is exchanged here is small.
const MOST_BYTES: usize = 64 << 20;
/// The most bytes that all workers together bring to a meeting or to a key: the rest of a body is what is said with them.
pub(super) const MOST_VALUE: usize = MOST_BYTES - (1 << 20);
/// The most of one worker where etcd keeps them, which takes requests of 1.5 MiB.
pub(super) const MOST_IN_ETCD: usize = 1 << 20;

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// I am here; the first message of every connection.
    Hello(Hello),
    /// I am alive.
    Heartbeat,
    /// I have come to a place where all workers meet, with my bytes.
    Meet {
        /// What the answer carries.
        id: u64,
        /// The name of the place.
        name: String,
        /// How long I wait, in milliseconds.
        within_ms: u64,
    },
    /// Keep these bytes.
    Set {
        /// What the answer carries.
        id: u64,
        /// Under this key.
        key: String,
    },
    /// Give me the bytes of a key, when somebody has set them.
    Get {
        /// What the answer carries.
        id: u64,
        /// The key.
        key: String,
        /// How long I wait, in milliseconds.
        within_ms: u64,
    },
    /// Whether others may come to this generation from now on, as far as I am concerned; at first they may not.
    Admit {
        /// What the answer carries.
        id: u64,
        /// Whether they may.
        comers: bool,
    },
    /// I cannot go on.
    Fail {
        /// Why.
        reason: String,
    },
    /// I have lost another worker.
    Lost {
        /// Which.
        worker: usize,
        /// How.
        reason: String,
    },
    /// I have done my work.
    Leave {
        /// What the answer carries.
        id: u64,
        /// How long I wait for the others, in milliseconds.
        #[serde(default)]
        within_ms: u64,
    },
}

/// How a worker introduces itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// What tells its job from others.
    pub job: String,
    /// The version of its program.
    pub version: String,
    /// Its number.
    pub worker: usize,
    /// How many workers it knows of.
    pub workers: usize,
    /// Differs between two processes with the same number.
    pub incarnation: u64,
    /// A number that it drew, for seals.
    #[serde(default)]
    pub nonce: u128,
    /// Where it listens for data of other workers; an unspecified IP address stands for the one that it is seen at.
    pub data_address: SocketAddr,
    /// The generation that it was a member of last; 0 of none.
    #[serde(default)]
    pub generation: u64,
    /// How far its training is; none where it has not begun.
    #[serde(default)]
    pub progress: Option<u64>,
    /// How long it waits for all to join, in milliseconds.
    #[serde(default)]
    pub within_ms: u64,
    /// Its process group, by which a launcher on its machine knows it; 0 if it does not say.
    #[serde(default)]
    pub group: i32,
}

/// A member of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// The number with which it joined.
    pub worker: usize,
    /// Where it listens for data.
    pub address: SocketAddr,
    /// How far its training is; none where it has not begun.
    pub progress: Option<u64>,
}

/// What the service says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Here is a coordinator; the first message of every connection.
    Challenge {
        /// A number that it drew, for seals.
        nonce: u128,
        /// Whether all frames after this one are sealed with a secret.
        sealed: bool,
    },
    /// You are not one of us.
    Refused(Refusal),
    /// You are, and others are missing.
    Waiting {
        /// The workers that have not come.
        missing: Vec<usize>,
        /// Who was refused, and why.
        notes: Vec<String>,
    },
    /// You will be, as soon as all members admit you.
    Lobby,
    /// All are here.
    Welcome {
        /// The number of this set of members.
        generation: u64,
        /// All members, by their numbers.
        seats: Vec<Seat>,
        /// How long a worker may be silent, in milliseconds.
        lease_ms: u64,
    },
    /// I am alive.
    Pong,
    /// All have met; the bytes of all workers, one after the other.
    Met {
        /// Of the question.
        id: u64,
        /// How many bytes each worker brought.
        sizes: Vec<usize>,
    },
    /// It is done.
    Done {
        /// Of the question.
        id: u64,
    },
    /// The bytes that you asked for.
    Value {
        /// Of the question.
        id: u64,
    },
    /// The time is over.
    Late {
        /// Of the question.
        id: u64,
        /// Who has not come, and for how many milliseconds nothing was heard of it.
        missing: Vec<(usize, u64)>,
    },
    /// A worker that was waited for has left.
    Left {
        /// Of the question.
        id: u64,
        /// Which.
        worker: usize,
    },
    /// The generation has failed, for all.
    Failed(Failure),
}

/// Why somebody is no member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The service is of another job.
    OtherJob {
        /// Which.
        job: String,
    },
    /// Another process has this number.
    Taken {
        /// Where that one listens for data.
        by: SocketAddr,
    },
    /// Another process has taken this place since.
    Stale {
        /// Where that one listens for data.
        by: SocketAddr,
        /// The generation that runs now.
        generation: u64,
    },
    /// The number is not below the number of workers.
    NoSuchWorker {
        /// The number of workers.
        workers: usize,
    },
    /// The workers have met already, and this one has something other than they have.
    Differs {
        /// What.
        how: String,
    },
}

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// They begin otherwise.
    #[error("it does not speak Phalanx' protocol")]
    Magic,
    /// They say that more follow than are allowed.
    #[error("a message of {0} bytes, at most {MOST_BYTES}")]
    TooLong(usize),
    /// They were changed on the way.
    #[error("a message was damaged on the way (checksum)")]
    Checksum,
    /// They are none of the messages.
    #[error("a message that this version does not know: {0}")]
    Unknown(String),
}

/// A message with its bytes, and how long its frame is.
pub type Decoded<T> = (T, Vec<u8>, usize);

/// The frame of a message.
///
/// # Errors
/// It is too long.
pub fn encode(message: &impl Serialize, bytes: &[u8]) -> Result<Vec<u8>, FrameError> {
    let text =
        serde_json::to_vec(message).map_err(|error| FrameError::Unknown(error.to_string()))?;
    let body = 4 + text.len() + bytes.len();
    if body > MOST_BYTES {
        return Err(FrameError::TooLong(body));
    }
    let mut frame = Vec::with_capacity(HEADER + body);
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&(body as u32).to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&(text.len() as u32).to_le_bytes());
    frame.extend_from_slice(&text);
    frame.extend_from_slice(bytes);
    let checksum = crc32c::crc32c(&frame[HEADER..]);
    frame[8..HEADER].copy_from_slice(&checksum.to_le_bytes());
    Ok(frame)
}

/// The first message in `buffer`; `None` while it is not there as a whole.
///
/// # Errors
/// What is there is no frame, or was damaged.
pub fn decode<T: DeserializeOwned>(buffer: &[u8]) -> Result<Option<Decoded<T>>, FrameError> {
    let known = buffer.len().min(MAGIC.len());
    if buffer[..known] != MAGIC[..known] {
        return Err(FrameError::Magic);
    }
    let Some(header) = buffer.get(..HEADER) else {
        return Ok(None);
    };
    let length = number(&header[4..8]);
    if length > MOST_BYTES {
        return Err(FrameError::TooLong(length));
    }
    let Some(body) = buffer.get(HEADER..HEADER + length) else {
        return Ok(None);
    };
    if crc32c::crc32c(body) as usize != number(&header[8..12]) {
        return Err(FrameError::Checksum);
    }
    let split = body
        .split_at_checked(4)
        .and_then(|(size, rest)| rest.split_at_checked(number(size)));
    let (text, bytes) = split.ok_or_else(|| FrameError::Unknown("it is cut off".into()))?;
    let message =
        serde_json::from_slice(text).map_err(|error| FrameError::Unknown(error.to_string()))?;
    Ok(Some((message, bytes.to_vec(), HEADER + length)))
}

fn number(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

/// Milliseconds, as they travel.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meet() -> Request {
        Request::Meet {
            id: 7,
            name: "step 1".into(),
            within_ms: u64::MAX,
        }
    }

    #[test]
    fn frames_are_read_as_they_were_written_and_only_as_a_whole() {
        let mut frame = encode(&meet(), b"bytes").unwrap();
        let whole = frame.len();
        for cut in 0..whole {
            assert_eq!(decode::<Request>(&frame[..cut]), Ok(None), "{cut}");
        }
        frame.extend_from_slice(b"PHX");
        assert_eq!(decode(&frame), Ok(Some((meet(), b"bytes".to_vec(), whole))));
    }

    #[test]
    fn every_damaged_bit_is_seen() {
        let frame = encode(&meet(), b"bytes").unwrap();
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A longer length is a frame that has not come as a whole.
            let read = decode::<Request>(&damaged);
            assert!(!matches!(read, Ok(Some(_))), "bit {bit}: {read:?}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        assert_eq!(decode::<Request>(b"HTTP/1.1 400"), Err(FrameError::Magic));
        assert_eq!(decode::<Request>(b"H"), Err(FrameError::Magic));
        let long = [b"PHX1".as_slice(), &u32::MAX.to_le_bytes(), &[0; 4]].concat();
        assert_eq!(
            decode::<Request>(&long),
            Err(FrameError::TooLong(u32::MAX as usize))
        );
        let unknown = encode(&"dance", &[]).unwrap();
        assert!(matches!(
            decode::<Request>(&unknown),
            Err(FrameError::Unknown(_))
        ));
        let too_long = vec![0; MOST_BYTES];
        assert!(matches!(
            encode(&meet(), &too_long),
            Err(FrameError::TooLong(_))
        ));
    }
}
