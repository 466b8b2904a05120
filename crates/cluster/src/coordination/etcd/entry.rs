//! What is written to the log of a job, and how its writer proves that it knows the job's secret.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::super::event::{Connection, Event};
use super::super::message::{Request, decode, encode};

const PROOF: usize = 32;

/// Something that happened, by the clock of the job.
#[derive(Debug, PartialEq)]
pub(super) struct Happened {
    pub(super) at: Duration,
    pub(super) event: Event,
}

/// The bytes of what happened, for the entry of this key.
pub(super) fn write(happened: &Happened, key: &str, secret: Option<&[u8]>) -> Option<Vec<u8>> {
    let mut bytes = (happened.at.as_millis() as u64).to_le_bytes().to_vec();
    let (kind, connection, rest) = match &happened.event {
        Event::Message {
            connection,
            request,
            bytes,
            ..
        } => (0, *connection, encode(request, bytes).ok()?),
        Event::Closed { connection, why } => (1, *connection, why.clone().into_bytes()),
        _ => (2, 0, Vec::new()),
    };
    bytes.push(kind);
    bytes.extend_from_slice(&connection.to_le_bytes());
    bytes.extend_from_slice(&rest);
    if let Some(mac) = proof(&bytes, key, secret) {
        bytes.extend_from_slice(&mac.finalize().into_bytes());
    }
    Some(bytes)
}

/// What happened by the bytes of an entry; none where they are damaged, or not written with the secret.
pub(super) fn read(bytes: &[u8], key: &str, secret: Option<&[u8]>) -> Option<Happened> {
    let bytes = match secret {
        None => bytes,
        Some(_) => {
            let (bytes, given) = bytes.split_at_checked(bytes.len().checked_sub(PROOF)?)?;
            proof(bytes, key, secret)?.verify_slice(given).ok()?;
            bytes
        }
    };
    let (at, rest) = bytes.split_first_chunk()?;
    let (kind, rest) = rest.split_first()?;
    let (connection, rest) = rest.split_first_chunk()?;
    let connection = Connection::from_le_bytes(*connection);
    let event = match kind {
        0 => {
            let (request, bytes, _) = decode::<Request>(rest).ok()??;
            Event::Message {
                connection,
                from: None,
                request,
                bytes,
            }
        }
        1 => Event::Closed {
            connection,
            why: String::from_utf8_lossy(rest).into_owned(),
        },
        _ => Event::Tick,
    };
    Some(Happened {
        at: Duration::from_millis(u64::from_le_bytes(*at)),
        event,
    })
}

/// What tells secrets apart and says nothing about them; none without a secret.
pub(super) fn print_of_secret(secret: Option<&[u8]>) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret?).ok()?;
    mac.update(b"phalanx keys 1");
    let print = mac.finalize().into_bytes();
    Some(
        print[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
    )
}

fn proof(bytes: &[u8], key: &str, secret: Option<&[u8]>) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret?).ok()?;
    mac.update(b"phalanx log 1");
    mac.update(&(key.len() as u64).to_le_bytes());
    mac.update(key.as_bytes());
    mac.update(bytes);
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_only_with_their_key_and_secret() {
        let events = [
            Event::Message {
                connection: 7,
                from: None,
                request: Request::Set {
                    id: 3,
                    key: "k".into(),
                },
                bytes: vec![1, 2, 3],
            },
            Event::Closed {
                connection: 9,
                why: "gone".into(),
            },
            Event::Tick,
        ];
        for event in events {
            let at = Duration::from_millis(12_345);
            let happened = Happened { at, event };
            for secret in [None, Some(&b"s"[..])] {
                let bytes = write(&happened, "log/1", secret).unwrap();
                assert_eq!(read(&bytes, "log/1", secret).as_ref(), Some(&happened));
                assert_eq!(read(&bytes[..5], "log/1", secret), None);
            }
            let bytes = write(&happened, "log/1", Some(b"s")).unwrap();
            assert_eq!(read(&bytes, "log/2", Some(b"s")), None);
            assert_eq!(read(&bytes, "log/1", Some(b"t")), None);
        }
    }

    #[test]
    fn damaged_entries_are_read_as_something_or_nothing() {
        let request = Request::Set {
            id: 3,
            key: "k".into(),
        };
        let event = Event::Message {
            connection: 7,
            from: None,
            request,
            bytes: vec![1, 2, 3],
        };
        let at = Duration::from_millis(u64::MAX);
        let bytes = write(&Happened { at, event }, "log/1", None).unwrap();
        let sealed = {
            let whole = read(&bytes, "log/1", None).unwrap();
            write(&whole, "log/1", Some(b"s")).unwrap()
        };
        for index in 0..bytes.len() {
            assert_eq!(read(&bytes[..index], "log/1", Some(b"s")), None);
            // It must not panic; what it is without a secret is anybody's.
            let _ = read(&bytes[..index], "log/1", None);
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[index] ^= 1 << bit;
                let _ = read(&damaged, "log/1", None);
                let mut damaged = sealed.clone();
                damaged[index] ^= 1 << bit;
                assert_eq!(read(&damaged, "log/1", Some(b"s")), None);
            }
        }
    }
}
