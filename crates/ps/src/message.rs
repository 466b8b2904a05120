//! What workers and servers say to each other, and how that is framed.
//!
//! A frame is `PHXP`, the CRC32C of all that follows (u32), the length of a JSON text (u32), the length of the bytes after it (u64), all
//! little endian, the text, and the bytes. Values of tensors travel as bytes, in the order that both sides know.

use std::io::{self, ErrorKind, Read};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::{Grant, PhaseKind};
use crate::task_queue::{Task, TaskEnd};
use crate::{ControlSettings, PsError};

pub(crate) const MAGIC: [u8; 4] = *b"PHXP";
pub(crate) const HEADER: usize = 20;
/// No text of a message is longer.
const MOST_TEXT: usize = 16 << 20;
/// Memory is taken in steps of this size, whatever a header says.
const CHUNK: usize = 16 << 20;

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// What tells the job from others.
    pub job: String,
    /// The version of the program.
    pub version: String,
    /// The number of the worker.
    pub worker: usize,
    /// Differs between two processes with the same number; the later one is larger.
    pub incarnation: u64,
    /// How the job is run; equal in all workers.
    pub settings: ControlSettings,
}

/// What a push is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushKey {
    /// The piece of work that it is of.
    pub work: u64,
    /// The worker that computed it, and which process of that number.
    pub worker: usize,
    /// See [`Hello::incarnation`].
    pub incarnation: u64,
    /// No piece of work below this number will be pushed again: servers forget what they know of them.
    pub done_below: u64,
}

/// A part of a step that workers take together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The piece of work.
    pub work: u64,
    /// The weight of its examples in the loss.
    #[serde(with = "crate::numbers")]
    pub weight: f64,
    /// The number of its examples.
    #[serde(with = "crate::numbers")]
    pub rows: f64,
}

/// What a step is made of, once that is decided: the same on all servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// The number of updates before it.
    pub version: u64,
    /// Its parts, in their order.
    pub parts: Vec<Part>,
    /// By what each gradient is multiplied, by array, where gradients are clipped by their norms.
    #[serde(with = "crate::numbers")]
    pub factors: Option<Vec<f64>>,
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Who are you? The first message of every connection.
    Knock {
        /// A random number, in hexadecimal digits.
        nonce: String,
        /// Whether I know the job's secret.
        has_secret: bool,
    },
    /// I am here; the second message.
    Hello(Hello),
    /// I am alive. Kept of the first worker alone, where it has come after [`Request::Leave`].
    Heartbeat,
    /// The job's work goes on with this phase.
    Enter {
        /// Its name, equal in all workers.
        phase: String,
        /// What it is for.
        kind: PhaseKind,
        /// The first item.
        start: u64,
        /// The number after the last item; `u64::MAX` where that is not known yet, see [`Request::NoMore`].
        end: u64,
    },
    /// Which phase did the job begin last?
    LastPhase,
    /// Give me a piece of work.
    Next {
        /// Of this phase.
        phase: String,
        /// How long I wait, in milliseconds.
        within_ms: u64,
        /// The pieces of work that I have and have not done, at most one.
        #[serde(default)]
        has: Vec<u64>,
    },
    /// A piece of work is done; its results are the bytes: numbers that are added up, or an item's own.
    Done {
        /// The phase.
        phase: String,
        /// The piece of work.
        work: u64,
        /// The weight of its examples in the loss.
        #[serde(with = "crate::numbers")]
        weight: f64,
        /// The number of its examples.
        #[serde(with = "crate::numbers")]
        rows: f64,
        /// How many updates others made meanwhile.
        staleness: u64,
    },
    /// The data of a phase end: they have no such item, nor any after it.
    NoMore {
        /// The phase.
        phase: String,
        /// The item.
        item: u64,
    },
    /// Give me what the items of a phase left, from this one on.
    Items {
        /// The phase.
        phase: String,
        /// The item.
        from: u64,
    },
    /// Keep these bytes, unless the key has some.
    Put {
        /// The key.
        key: String,
    },
    /// Give me the bytes of a key, when somebody has put them.
    Get {
        /// The key.
        key: String,
        /// How long I wait, in milliseconds.
        within_ms: u64,
    },
    /// I schedule tasks from now on, and nobody else.
    OpenTasks,
    /// Have this function run by somebody; its arguments are the bytes.
    Schedule {
        /// The number of the task, each one more than the one before.
        task: u64,
        /// The name of the function.
        function: String,
    },
    /// Give me a task.
    Take {
        /// How long I wait, in milliseconds.
        within_ms: u64,
    },
    /// A task is done; its result is the bytes.
    Finish {
        /// The task.
        task: u64,
        /// Why it has failed, where it has.
        failure: Option<String>,
        /// Which tasks somebody had begun when it failed, as the control keeps it, for what it hands out is not kept.
        #[serde(default)]
        begun: Option<Vec<u64>>,
    },
    /// Tell me which tasks have ended.
    Ends {
        /// How long I wait for the first, in milliseconds.
        within_ms: u64,
    },
    /// I know how these tasks have ended, and whether one has failed.
    Acknowledge {
        /// The tasks.
        tasks: Vec<u64>,
        /// Whether what I schedule from now on is to be run after a failure.
        clears_failure: bool,
    },
    /// I schedule no more tasks.
    CloseTasks,
    /// All are to stop after the work that they have begun.
    Stop,
    /// How the control keeps [`Request::Stop`], for what it hands out is not kept.
    StopAt {
        /// The number after the last item that was handed out.
        end: Option<u64>,
    },
    /// I cannot go on, and neither can the job.
    Fail {
        /// Why.
        reason: String,
    },
    /// I have done all my work. Kept of the first worker alone.
    Leave,
    /// Hold these variables, unless you have some: the text describes them, the bytes are their values.
    Create {
        /// For whoever computes updates.
        description: String,
    },
    /// Give me the values, unless you have none newer than mine.
    Pull {
        /// The version and revision that I have.
        have: Option<(u64, u64)>,
        /// A step that is to be applied first, if it was not.
        commit: Option<Commit>,
        /// What I want of them, for whoever computes: all where it is empty.
        what: String,
    },
    /// Apply this gradient.
    Push {
        /// What it is known by.
        key: PushKey,
        /// What the bytes are, for whoever computes.
        what: String,
        /// By what each gradient is multiplied.
        #[serde(with = "crate::numbers")]
        factors: Option<Vec<f64>>,
    },
    /// Keep this gradient until its step is decided, or its norms are known.
    Stage {
        /// What it is known by.
        key: PushKey,
        /// The step, by the number of updates before it; none where it is a step by itself.
        version: Option<u64>,
        /// What the bytes are, for whoever computes.
        what: String,
    },
    /// Apply the gradient that you keep of this piece of work.
    Apply {
        /// What it is known by.
        key: PushKey,
        /// By what each gradient is multiplied.
        #[serde(with = "crate::numbers")]
        factors: Option<Vec<f64>>,
    },
    /// The squared norms, by array, of the mean of these parts of a step.
    Squares {
        /// The number of updates before the step.
        version: u64,
        /// The parts, in their order.
        parts: Vec<Part>,
    },
    /// Do something with the values that whoever computes understands, such as set one.
    Act {
        /// What.
        what: String,
    },
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The answer to a knock.
    Challenge {
        /// A random number, in hexadecimal digits.
        nonce: String,
        /// Whether I know the job's secret; what follows is proved then.
        has_secret: bool,
    },
    /// You are one of us.
    Welcome {
        /// Whether variables are held already.
        has_values: bool,
        /// How long a worker may be silent, in milliseconds.
        lease_ms: u64,
    },
    /// It is done.
    Done,
    /// I live, and my machine is about to end: stop after the work that you have begun.
    Ending,
    /// The name of the phase that the job began last.
    LastPhase(Option<String>),
    /// What you are to do.
    Grant(Box<Grant>),
    /// The values of a version; bytes follow unless you have it.
    Values(Pulled),
    /// Applied, now or before.
    Pushed {
        /// The number of updates after it.
        version: u64,
        /// Whether it had been applied before.
        duplicate: bool,
        /// The updates that were made between.
        applied_at: u64,
    },
    /// Kept.
    Staged {
        /// Squared norms by array of the gradient that is kept.
        #[serde(with = "crate::numbers")]
        squares: Vec<f64>,
        /// Whether it had been applied before.
        duplicate: bool,
    },
    /// Squared norms by array.
    Squares(#[serde(with = "crate::numbers")] Vec<f64>),
    /// The bytes that you asked for: of each item its number and length.
    Bytes {
        /// Number and length of each.
        items: Vec<(u64, u64)>,
    },
    /// What you are to run; its arguments are the bytes.
    Task(Task),
    /// No task will come any more.
    TasksOver,
    /// How tasks have ended, with the length of the result of each; the results are the bytes.
    Ends {
        /// The number of the next task.
        next: u64,
        /// Number, end, and length.
        ends: Vec<(u64, TaskEnd, u64)>,
    },
    /// Nothing yet: ask again.
    NotYet {
        /// Who or what is waited for.
        waiting_for: String,
    },
    /// All are to stop.
    Stopped,
    /// The job has failed.
    Failed {
        /// Who.
        who: String,
        /// Why.
        why: String,
    },
    /// What you ask for cannot be.
    Refused {
        /// Why.
        why: String,
        /// Whether your program or settings are the cause, so that it is refused again when the job is started again.
        #[serde(default)]
        is_user: bool,
    },
}

/// The values that a pull gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulled {
    /// The number of updates that made them.
    pub version: u64,
    /// How often they were changed by other things than updates.
    pub revision: u64,
    /// Whether the caller has them already.
    pub unchanged: bool,
}

/// A message as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame<T> {
    /// What.
    pub message: T,
    /// The bytes with it.
    pub bytes: Vec<u8>,
}

/// The header and the text of a frame; its bytes follow as they are.
///
/// # Errors
/// A text that is too long.
pub fn encode_frame<T: Serialize>(message: &T, bytes: &[u8]) -> Result<Vec<u8>, PsError> {
    let text = serde_json::to_vec(message)
        .map_err(|error| PsError::Protocol(format!("cannot write a message: {error}")))?;
    if text.len() > MOST_TEXT {
        return Err(PsError::Protocol(format!(
            "the text of a message has {} bytes, at most {MOST_TEXT} are sent",
            text.len()
        )));
    }
    let mut head = Vec::with_capacity(HEADER + text.len());
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&(text.len() as u32).to_le_bytes());
    head.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    head.extend_from_slice(&text);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head[8..]), bytes);
    head[4..8].copy_from_slice(&sum.to_le_bytes());
    Ok(head)
}

/// Reads one frame; `None` where the input ends before its first byte.
///
/// # Errors
/// The input ends within it or fails, or the bytes are no frame of ours.
pub fn decode_frame<T: DeserializeOwned>(
    input: &mut impl Read,
) -> Result<Option<Frame<T>>, FrameProblem> {
    match RawFrame::read(input, u64::MAX)? {
        Some(raw) => raw.parse().map(Some),
        None => Ok(None),
    }
}

/// A frame whose checksum fits and whose text nobody has read.
pub(crate) struct RawFrame {
    /// The header and the text.
    pub(crate) head: Vec<u8>,
    pub(crate) bytes: Vec<u8>,
}

impl RawFrame {
    /// Reads one whose text and bytes are no longer than `most`; `None` where the input ends before its first byte.
    pub(crate) fn read(input: &mut impl Read, most: u64) -> Result<Option<Self>, FrameProblem> {
        let mut header = [0; HEADER];
        let mut filled = 0;
        while filled < HEADER {
            match input.read(&mut header[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(FrameProblem::Io(ErrorKind::UnexpectedEof.into())),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(FrameProblem::Io(error)),
            }
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let length = u64::from(word(12)) | u64::from(word(16)) << 32;
        if header[..4] != MAGIC {
            return Err(FrameProblem::NotOurs(
                "found something else than a message of a parameter server".into(),
            ));
        }
        let text_length = u64::from(word(8));
        if text_length > most.min(MOST_TEXT as u64) || length > most {
            return Err(FrameProblem::NotOurs(format!(
                "a message of {text_length} bytes of text and {length} others is too long"
            )));
        }
        let text = read_exactly(input, text_length)?;
        let bytes = read_exactly(input, length)?;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&header[8..]), &text);
        if crc32c::crc32c_append(sum, &bytes) != word(4) {
            return Err(FrameProblem::NotOurs(
                "the checksum of a message does not fit".into(),
            ));
        }
        let head = [&header[..], &text].concat();
        Ok(Some(Self { head, bytes }))
    }

    pub(crate) fn parse<T: DeserializeOwned>(self) -> Result<Frame<T>, FrameProblem> {
        let message = serde_json::from_slice(&self.head[HEADER..]).map_err(|error| {
            FrameProblem::NotOurs(format!("a message is not understood: {error}"))
        })?;
        let bytes = self.bytes;
        Ok(Frame { message, bytes })
    }
}

/// Why no frame could be read.
#[derive(Debug)]
pub enum FrameProblem {
    /// The input ended or failed.
    Io(io::Error),
    /// The bytes are something else.
    NotOurs(String),
    /// Who sent it does not know the job's secret.
    Unproved,
}

impl std::fmt::Display for FrameProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::NotOurs(why) => write!(f, "{why}"),
            Self::Unproved => write!(f, "it has another secret; start all with the same"),
        }
    }
}

/// So many bytes; memory is taken as they come.
fn read_exactly(input: &mut impl Read, length: u64) -> Result<Vec<u8>, FrameProblem> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < length {
        let begin = bytes.len();
        let step = (length - begin as u64).min(CHUNK as u64) as usize;
        bytes.resize(begin + step, 0);
        input
            .read_exact(&mut bytes[begin..])
            .map_err(FrameProblem::Io)?;
    }
    Ok(bytes)
}

/// Reads a frame as a fuzzer's bytes give it; what is read is written to the same bytes again.
#[doc(hidden)]
#[must_use]
pub fn frame_round_trip(bytes: &[u8]) -> Option<bool> {
    let frame: Frame<Request> = decode_frame(&mut &bytes[..]).ok()??;
    let again = encode_frame(&frame.message, &frame.bytes).ok()?;
    let all = [again, frame.bytes.clone()].concat();
    let second: Frame<Request> = decode_frame(&mut &all[..]).ok()??;
    // Not the messages, which may have numbers that differ from themselves.
    let third = encode_frame(&second.message, &second.bytes).ok()?;
    Some(all == [third, second.bytes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_no_flipped_bit_goes_unseen() {
        let request = Request::Put { key: "k".into() };
        let body = [7; 100];
        let mut all = encode_frame(&request, &body).unwrap();
        all.extend_from_slice(&body);
        let frame: Frame<Request> = decode_frame(&mut &all[..]).unwrap().unwrap();
        assert_eq!((frame.message, &frame.bytes[..]), (request, &body[..]));
        assert_eq!(frame_round_trip(&all), Some(true));
        for bit in 0..all.len() * 8 {
            let mut flipped = all.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let read = decode_frame::<Request>(&mut &flipped[..]);
            assert!(read.is_err(), "bit {bit}");
        }
        let none = decode_frame::<Request>(&mut &all[..0]).unwrap();
        assert_eq!(none, None);
        assert!(decode_frame::<Request>(&mut &all[..50]).is_err());
    }
}
