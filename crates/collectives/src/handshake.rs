//! The first words on a connection: who speaks, for which job and generation, and that both know the secret.
//!
//! The connecting rank sends a `Hello`; the other answers with a verdict, its own `Hello` and a proof; the first sends its proof. A
//! proof is HMAC-SHA256 under the job's secret over both hellos, each with random bytes, and the side that speaks.

use phalanx_proof::{PROOF, Secret, Side};
use sha2::{Digest, Sha256};

use crate::arena::TOKEN;
use crate::options::CommunicatorOptions;

const MAGIC: [u8; 4] = *b"PHXH";
const VERSION: u8 = 1;
/// Bytes of an encoded hello.
pub(crate) const HELLO: usize = 168;
/// What proofs of handshakes are made under.
const LABEL: &str = "phalanx collectives 1";

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Which connection between two ranks this is: 0 is for failures, the others are for data.
    pub(crate) lane: u32,
    pub(crate) generation: u64,
    /// Of the name of the job.
    pub(crate) job: [u8; 32],
    /// Of the options that must be equal.
    pub(crate) options: [u8; 8],
    /// Of the identity of the machine.
    pub(crate) host: [u8; 32],
    pub(crate) pid: u32,
    /// The descriptor of the arena, or -1.
    pub(crate) descriptor: i32,
    pub(crate) token: [u8; TOKEN],
    pub(crate) nonce: [u8; 32],
}

/// What the accepting side thinks of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verdict {
    Welcome = 0,
    WrongJob = 1,
    WrongGeneration = 2,
    OtherOptions = 3,
    Taken = 4,
}

impl Verdict {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        let all = [
            Self::Welcome,
            Self::WrongJob,
            Self::WrongGeneration,
            Self::OtherOptions,
            Self::Taken,
        ];
        all.into_iter().find(|&verdict| verdict as u8 == code)
    }
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        put(&[VERSION, 0, 0, 0]);
        put(&self.rank.to_le_bytes());
        put(&self.size.to_le_bytes());
        put(&self.lane.to_le_bytes());
        put(&self.pid.to_le_bytes());
        put(&self.descriptor.to_le_bytes());
        put(&self.generation.to_le_bytes());
        put(&self.job);
        put(&self.options);
        put(&self.host);
        put(&self.token);
        put(&self.nonce);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HELLO]) -> Result<Self, String> {
        let mut rest = &bytes[..];
        if take(&mut rest) != MAGIC {
            return Err("found something else than a rank of a group".into());
        }
        let [version, ..] = take::<4>(&mut rest);
        if version != VERSION {
            return Err(format!(
                "found version {version} of the handshake, expected {VERSION}"
            ));
        }
        Ok(Self {
            rank: u32::from_le_bytes(take(&mut rest)),
            size: u32::from_le_bytes(take(&mut rest)),
            lane: u32::from_le_bytes(take(&mut rest)),
            pid: u32::from_le_bytes(take(&mut rest)),
            descriptor: i32::from_le_bytes(take(&mut rest)),
            generation: u64::from_le_bytes(take(&mut rest)),
            job: take(&mut rest),
            options: take(&mut rest),
            host: take(&mut rest),
            token: take(&mut rest),
            nonce: take(&mut rest),
        })
    }

    /// What this rank thinks of another's hello, but for its rank.
    pub(crate) fn judge(&self, other: &Self) -> Verdict {
        if self.job != other.job {
            Verdict::WrongJob
        } else if self.generation != other.generation {
            Verdict::WrongGeneration
        } else if self.options != other.options || self.size != other.size {
            Verdict::OtherOptions
        } else {
            Verdict::Welcome
        }
    }
}

/// The first bytes; a hello has all that are asked for, by its length.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let mut part = [0; N];
    let (first, others) = rest.split_at(N.min(rest.len()));
    part[..first.len()].copy_from_slice(first);
    *rest = others;
    part
}

pub(crate) fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// What must be equal on all ranks.
pub(crate) fn options_hash(options: &CommunicatorOptions) -> [u8; 8] {
    let CommunicatorOptions {
        transport,
        algorithm,
        wire,
        connections,
        ..
    } = options;
    let all = hash(&format!(
        "{transport:?} {algorithm:?} {wire:?} {connections}"
    ));
    let mut first = [0; 8];
    first.copy_from_slice(&all[..8]);
    first
}

/// What a side of a conversation with these hellos proves itself by.
pub(crate) fn proof(
    secret: &Secret,
    side: Side,
    connecting: &[u8],
    accepting: &[u8],
) -> [u8; PROOF] {
    secret.prove(LABEL, &[&[side as u8], connecting, accepting])
}

/// Whether a proof is right, in a time that does not depend on where it is wrong.
pub(crate) fn is_proven(
    secret: &Secret,
    side: Side,
    connecting: &[u8],
    accepting: &[u8],
    proof: &[u8],
) -> bool {
    secret.proves(LABEL, &[&[side as u8], connecting, accepting], proof)
}

/// Reads a hello as a fuzzer's bytes give it; what is read is written to the same bytes again.
#[doc(hidden)]
#[must_use]
pub fn hello_round_trip(bytes: &[u8]) -> Option<bool> {
    let hello = Hello::decode(bytes.first_chunk()?).ok()?;
    Some(Hello::decode(&hello.encode()) == Ok(hello))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            rank: 1,
            size: 2,
            lane: 3,
            generation: 4,
            job: [5; 32],
            options: [6; 8],
            host: [7; 32],
            pid: 8,
            descriptor: -1,
            token: [9; TOKEN],
            nonce: [10; 32],
        }
    }

    #[test]
    fn hellos_come_back() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
        assert!(Hello::decode(&[0; HELLO]).is_err());
    }

    #[test]
    fn a_proof_is_of_one_secret_side_and_conversation() {
        let (a, b) = (hello().encode(), [1; HELLO]);
        let (ours, other) = (Secret::new("secret"), Secret::new("other"));
        let given = proof(&ours, Side::Connecting, &a, &b);
        assert!(is_proven(&ours, Side::Connecting, &a, &b, &given));
        assert!(!is_proven(&other, Side::Connecting, &a, &b, &given));
        assert!(!is_proven(&ours, Side::Accepting, &a, &b, &given));
        assert!(!is_proven(&ours, Side::Connecting, &b, &a, &given));
    }
}
