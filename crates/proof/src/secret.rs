//! What processes know, and what proves it: HMAC-SHA256.

use std::path::Path;
use std::{fmt, fs, io};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a proof.
pub const PROOF: usize = 32;

/// What processes prove to each other that they know; it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// What a file holds, without the line break that an editor ends it with.
    ///
    /// # Errors
    /// The file cannot be read, or is empty.
    pub fn read(path: &Path) -> io::Result<Self> {
        let read = fs::read(path)?;
        match read.trim_ascii() {
            [] => Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty")),
            secret => Ok(Self::new(secret)),
        }
    }

    /// The proof of these parts under a label, which always comes with the same number of parts. Bytes cannot move from one part to the
    /// next: the proof covers the lengths too.
    #[must_use]
    pub fn prove(&self, label: &str, parts: &[&[u8]]) -> [u8; PROOF] {
        self.begin(label, parts).finalize().into_bytes().into()
    }

    /// Whether this is [`Self::prove`] of the same, in a time that does not depend on where it is wrong.
    #[must_use]
    pub fn proves(&self, label: &str, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.begin(label, parts).verify_slice(proof).is_ok()
    }

    fn begin(&self, label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mac = Hmac::new_from_slice(&self.0);
        let mut mac = mac.expect("a key of any length is one of HMAC");
        update(&mut mac, &[label.as_bytes()]);
        update(&mut mac, parts);
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

fn update(mac: &mut Hmac<Sha256>, parts: &[&[u8]]) {
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
}

/// Which side of a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that listens.
    Accepting = 0,
    /// The one that connects.
    Connecting = 1,
}

/// The proofs of one direction of a connection: of who speaks, of the numbers that both sides drew for it, of how many frames came before, and
/// of a frame. So none can be replayed, reordered, sent back or made by others.
pub struct Seal {
    mac: Hmac<Sha256>,
    count: u64,
}

impl Seal {
    /// What a side says on the connection for which the accepting and the connecting side drew these numbers.
    #[must_use]
    pub fn new(
        secret: &Secret,
        label: &str,
        side: Side,
        accepting: u128,
        connecting: u128,
    ) -> Self {
        let drawn = [accepting, connecting].map(u128::to_le_bytes);
        let mac = secret.begin(label, &[&[side as u8], &drawn[0], &drawn[1]]);
        Self { mac, count: 0 }
    }

    /// The proof of the next frame, whose parts are as many in every frame.
    pub fn prove_next(&mut self, frame: &[&[u8]]) -> [u8; PROOF] {
        self.of_next(frame).finalize().into_bytes().into()
    }

    /// Whether this is the proof of the next frame, in a time that does not depend on where it is wrong.
    pub fn proves_next(&mut self, frame: &[&[u8]], proof: &[u8]) -> bool {
        self.of_next(frame).verify_slice(proof).is_ok()
    }

    fn of_next(&mut self, frame: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        update(&mut mac, &[&self.count.to_le_bytes()]);
        update(&mut mac, frame);
        self.count += 1;
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_secret_label_and_division_into_parts() {
        let secret = Secret::new("secret");
        let proof = secret.prove("label", &[b"ab", b"c"]);
        assert!(secret.proves("label", &[b"ab", b"c"], &proof));
        assert!(!Secret::new("Secret").proves("label", &[b"ab", b"c"], &proof));
        assert!(!secret.proves("labe1", &[b"ab", b"c"], &proof));
        assert!(!secret.proves("label", &[b"ab", b"d"], &proof));
        assert!(!secret.proves("label", &[b"a", b"bc"], &proof));
        assert!(!secret.proves("label", &[b"abc"], &proof));
        assert!(!secret.proves("label", &[b"ab", b"c"], &proof[..31]));
        assert!(!secret.proves("label", &[b"ab", b"c"], b""));
        for bit in 0..8 * PROOF {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.proves("label", &[b"ab", b"c"], &wrong));
        }
        assert_eq!(format!("{:?}", Some(secret)), "Some(Secret)");
    }

    #[test]
    fn a_proof_is_hmac_sha256() {
        // Of the lengths and bytes of the label and the part, by Python's hmac.
        let proof = Secret::new("key").prove("label", &[b"part"]);
        assert_eq!(
            crate::hex(&proof),
            "846a14918058213525bffa8465445e4df744a707052ddf4679414d79390fb3b4"
        );
    }

    #[test]
    fn a_secret_of_a_file_has_no_line_break_and_is_not_empty() {
        let path = std::env::temp_dir().join(format!("phalanx-proof-{}", std::process::id()));
        fs::write(&path, "of the job\n").unwrap();
        assert_eq!(Secret::read(&path).unwrap(), Secret::new("of the job"));
        fs::write(&path, "\n").unwrap();
        let error = Secret::read(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        fs::remove_file(&path).unwrap();
        assert!(Secret::read(&path).is_err());
    }

    fn seal(secret: &str, side: Side, drawn: [u128; 2]) -> Seal {
        Seal::new(&Secret::new(secret), "label", side, drawn[0], drawn[1])
    }

    #[test]
    fn a_seal_is_of_one_secret_side_connection_and_frame() {
        let proof = seal("secret", Side::Connecting, [1, 2]).prove_next(&[b"head", b"bytes"]);
        let holds =
            |mut seal: Seal, head: &[u8], bytes: &[u8]| seal.proves_next(&[head, bytes], &proof);
        let own = || seal("secret", Side::Connecting, [1, 2]);
        assert!(holds(own(), b"head", b"bytes"));
        assert!(!holds(own(), b"heat", b"bytes"));
        assert!(!holds(own(), b"head", b"bytez"));
        assert!(!holds(own(), b"headb", b"ytes"));
        assert!(!holds(
            seal("Secret", Side::Connecting, [1, 2]),
            b"head",
            b"bytes"
        ));
        // Sent back to the side that said it.
        assert!(!holds(
            seal("secret", Side::Accepting, [1, 2]),
            b"head",
            b"bytes"
        ));
        // Of another connection.
        assert!(!holds(
            seal("secret", Side::Connecting, [3, 2]),
            b"head",
            b"bytes"
        ));
        assert!(!holds(
            seal("secret", Side::Connecting, [1, 3]),
            b"head",
            b"bytes"
        ));
        let other = Seal::new(&Secret::new("secret"), "other", Side::Connecting, 1, 2);
        assert!(!holds(other, b"head", b"bytes"));
    }

    #[test]
    fn frames_are_neither_replayed_nor_left_out() {
        let (mut says, mut hears) = (
            seal("s", Side::Accepting, [1, 2]),
            seal("s", Side::Accepting, [1, 2]),
        );
        let frames = [0; 3].map(|_| says.prove_next(&[b"frame"]));
        assert!(hears.proves_next(&[b"frame"], &frames[0]));
        assert!(!hears.proves_next(&[b"frame"], &frames[0]), "replayed");
        assert!(
            hears.proves_next(&[b"frame"], &frames[2]),
            "the third in its place"
        );
        let mut hears = seal("s", Side::Accepting, [1, 2]);
        assert!(
            !hears.proves_next(&[b"frame"], &frames[1]),
            "the first was left out"
        );
    }
}
