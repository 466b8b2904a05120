//! What is written to the log of a job, and how its writer proves that it knows the job's secret.

use std::time::Duration;

use phalanx_proof::{PROOF, Secret, hex};

use super::super::event::{Connection, Event};
use super::super::message::{Request, decode, encode};

/// What proofs of entries are made under.
const LABEL: &str = "phalanx log 1";

/// Something that happened, by the clock of the job.
#[derive(Debug, PartialEq)]
pub(super) struct Happened {
    pub(super) at: Duration,
    pub(super) event: Event,
}

/// The bytes of what happened, for the entry of this key.
pub(super) fn write(happened: &Happened, key: &str, secret: Option<&Secret>) -> Option<Vec<u8>> {
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
    if let Some(secret) = secret {
        let proof = secret.prove(LABEL, &[key.as_bytes(), &bytes]);
        bytes.extend_from_slice(&proof);
    }
    Some(bytes)
}

/// What happened by the bytes of an entry; none where they are damaged, or not written with the secret.
pub(super) fn read(bytes: &[u8], key: &str, secret: Option<&Secret>) -> Option<Happened> {
    let bytes = match secret {
        None => bytes,
        Some(secret) => {
            let (bytes, given) = bytes.split_at_checked(bytes.len().checked_sub(PROOF)?)?;
            let holds = secret.proves(LABEL, &[key.as_bytes(), bytes], given);
            holds.then_some(bytes)?
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
pub(super) fn print_of_secret(secret: Option<&Secret>) -> Option<String> {
    Some(hex(&secret?.prove("phalanx keys 1", &[])[..8]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_only_with_their_key_and_secret() {
        let ours = Secret::new("s");
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
            for secret in [None, Some(&ours)] {
                let bytes = write(&happened, "log/1", secret).unwrap();
                assert_eq!(read(&bytes, "log/1", secret).as_ref(), Some(&happened));
                assert_eq!(read(&bytes[..5], "log/1", secret), None);
            }
            let bytes = write(&happened, "log/1", Some(&ours)).unwrap();
            assert_eq!(read(&bytes, "log/2", Some(&ours)), None);
            assert_eq!(read(&bytes, "log/1", Some(&Secret::new("t"))), None);
        }
    }

    #[test]
    fn damaged_entries_are_read_as_something_or_nothing() {
        let ours = Secret::new("s");
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
            write(&whole, "log/1", Some(&ours)).unwrap()
        };
        for index in 0..bytes.len() {
            assert_eq!(read(&bytes[..index], "log/1", Some(&ours)), None);
            // It must not panic; what it is without a secret is anybody's.
            let _ = read(&bytes[..index], "log/1", None);
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[index] ^= 1 << bit;
                let _ = read(&damaged, "log/1", None);
                let mut damaged = sealed.clone();
                damaged[index] ^= 1 << bit;
                assert_eq!(read(&damaged, "log/1", Some(&ours)), None);
            }
        }
    }
}
