//! How a daemon proves who it is before it gets the token: an HMAC-SHA256 by the token over the address that a command asks at and a
//! random number of the command. Whoever has taken the port of a daemon that has gone cannot make one.

use phalanx_proof::{Secret, hex};

/// The header of the random number.
pub(crate) const CHALLENGE: &str = "phalanx-challenge";
/// The header of the proof.
pub(crate) const PROOF: &str = "phalanx-proof";

/// The proof of who has this token, for a Host and a random number.
pub(crate) fn proof(token: &str, host: &str, challenge: &str) -> String {
    let parts = [host.as_bytes(), challenge.as_bytes()];
    hex(&Secret::new(token).prove("phalanx jobs 1", &parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_token_address_and_challenge() {
        let first = proof("token", "127.0.0.1:1", "5");
        assert_eq!(first.len(), 64);
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
