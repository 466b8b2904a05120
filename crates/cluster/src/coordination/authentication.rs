//! Proof that both sides of a connection know the job's secret: every frame is followed by an HMAC-SHA256 over who speaks, a random
//! number of each side, the number of the frame in its direction, and the frame. Nothing can be replayed, reordered or sent by
//! others; it can be read.

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

/// Bytes that follow each frame of a sealed connection.
pub(super) const SEAL: usize = 32;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Service = 0,
    Worker = 1,
}

/// One direction of a connection.
pub(super) struct Seal {
    mac: Hmac<Sha256>,
    count: u64,
}

impl Seal {
    /// What `side` says on the connection for which the service and the worker drew these numbers; `None` without a secret.
    pub(super) fn new(
        secret: Option<&[u8]>,
        side: Side,
        service: u128,
        worker: u128,
    ) -> Option<Self> {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret?).ok()?;
        mac.update(b"phalanx coordination 1");
        mac.update(&[side as u8]);
        mac.update(&service.to_le_bytes());
        mac.update(&worker.to_le_bytes());
        Some(Self { mac, count: 0 })
    }

    /// What follows the next frame.
    pub(super) fn next(&mut self, frame: &[u8]) -> [u8; SEAL] {
        self.of_next(frame).finalize().into_bytes().into()
    }

    /// Whether `seal` is what follows the next frame.
    pub(super) fn holds(&mut self, frame: &[u8], seal: &[u8]) -> bool {
        self.of_next(frame).verify_slice(seal).is_ok()
    }

    fn of_next(&mut self, frame: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&self.count.to_le_bytes());
        mac.update(frame);
        self.count += 1;
        mac
    }
}

/// A number that nobody can foresee.
pub(super) fn draw() -> std::io::Result<u128> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_of_one_secret_side_connection_place_and_frame() {
        let seal = |secret: &[u8], side, service, worker| {
            Seal::new(Some(secret), side, service, worker).unwrap()
        };
        let mut ours = seal(b"secret", Side::Worker, 1, 2);
        let (first, second) = (ours.next(b"frame"), ours.next(b"frame"));
        assert_ne!(first, second);
        let holds = |mut seal: Seal, frame: &[u8]| seal.holds(frame, &first);
        assert!(holds(seal(b"secret", Side::Worker, 1, 2), b"frame"));
        assert!(!holds(seal(b"secret", Side::Worker, 1, 2), b"fram3"));
        assert!(!holds(seal(b"Secret", Side::Worker, 1, 2), b"frame"));
        assert!(!holds(seal(b"secret", Side::Service, 1, 2), b"frame"));
        assert!(!holds(seal(b"secret", Side::Worker, 3, 2), b"frame"));
        assert!(!holds(seal(b"secret", Side::Worker, 1, 3), b"frame"));
        assert!(Seal::new(None, Side::Worker, 1, 2).is_none());
        assert_ne!(draw().unwrap(), draw().unwrap());
    }
}
