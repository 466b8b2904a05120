//! How a daemon proves who it is before it gets the token: an HMAC-SHA256 by the token over the address that a command asks at and a
//! random number of the command. Whoever has taken the port of a daemon that has gone cannot make one.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The header of the random number.
pub(crate) const CHALLENGE: &str = "phalanx-challenge";
/// The header of the proof.
pub(crate) const PROOF: &str = "phalanx-proof";

/// The proof of who has this token, for a Host and a random number.
pub(crate) fn proof(token: &str, host: &str, challenge: &str) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).ok()?;
    for part in ["phalanx jobs 1", host, challenge] {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part.as_bytes());
    }
    Some(phalanx_launch::hex(&mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_token_address_and_challenge() {
        let first = proof("token", "127.0.0.1:1", "5");
        assert_eq!(first.as_ref().unwrap().len(), 64);
        assert_eq!(first, proof("token", "127.0.0.1:1", "5"));
        for (token, host, challenge) in [
            ("other", "127.0.0.1:1", "5"),
            ("token", "127.0.0.1:2", "5"),
            ("token", "127.0.0.1:1", "6"),
            ("token", "127.0.0.1:", "15"),
        ] {
            assert_ne!(
                first,
                proof(token, host, challenge),
                "{token} {host} {challenge}"
            );
        }
    }
}
