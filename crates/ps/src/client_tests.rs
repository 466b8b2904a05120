//! Tests of how long a worker waits for a server.

use std::net::TcpListener;

use super::*;
use crate::{ControlSettings, Mode};

/// A server that is away for this number of attempts to connect, lets the worker in, and is away again when it is asked; it answers when
/// it was away `times` times.
fn away_again(times: usize, attempts: usize) -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let body = move || {
        let come = || listener.accept().unwrap().0;
        for time in 1..=times {
            (0..attempts).for_each(|_| drop(come()));
            let mut wire = Wire::new(come());
            let challenge = Reply::Challenge {
                nonce: "1".into(),
                has_secret: false,
            };
            let welcome = Reply::Welcome {
                has_values: true,
                lease_ms: 1,
            };
            for reply in [Some(challenge), Some(welcome), None] {
                wire.receive::<Request>().unwrap().unwrap();
                if let Some(reply) = reply.or((time == times).then_some(Reply::Done)) {
                    wire.send(&reply, &[]).unwrap();
                }
            }
        }
    };
    (address, thread::spawn(body))
}

/// The options of a worker that waits for a server for `within`, and for an answer for `answer_within`.
fn options(address: &str, within: Duration, answer_within: Duration) -> ClientOptions {
    let settings = ControlSettings {
        workers: 1,
        mode: Mode::Async,
        goes_on_without_chief: true,
    };
    ClientOptions {
        servers: vec![address.into()],
        hello: Hello {
            job: String::new(),
            version: String::new(),
            worker: 0,
            incarnation: 1,
            settings,
        },
        join_within: within,
        server_within: within,
        stop_within: within,
        answer_within,
        secret: None,
        tell: Tell(Arc::new(|_| {})),
    }
}

/// What such a worker is answered.
fn asked(address: &str, within: Duration, answer_within: Duration) -> Result<Reply, PsError> {
    let mut line = Line::to(0, &News::of(1));
    let options = options(address, within, answer_within);
    let answer = line.ask(&options, &Request::Heartbeat, &[]);
    answer.map(|(reply, _)| reply)
}

/// Two restarts of a server within one request are not one long one.
#[test]
fn how_long_a_server_is_away_counts_anew_when_it_has_come_back() {
    let within = Duration::from_secs(2);
    // More than it may be away, in eight parts, each of which leaves a busy machine time.
    let attempts = within.div_duration_f64(RETRY_EVERY).ceil() as usize / 7;
    let (address, server) = away_again(8, attempts + 1);
    let reply = asked(&address, within, Duration::from_secs(60)).unwrap();
    assert_eq!(reply, Reply::Done);
    server.join().unwrap();
}

/// Nor does anybody wait for ever for a server that goes whenever it is asked.
#[test]
fn a_server_that_goes_again_and_again_is_given_up() {
    let (within, answer_within) = (Duration::from_millis(300), Duration::from_secs(1));
    let (address, _) = away_again(100, 1);
    let error = asked(&address, within, answer_within).unwrap_err();
    assert!(matches!(error, PsError::Lost(_)), "{error}");
}

/// A server that cannot keep who is there is no mistake of the user.
#[test]
fn a_refused_hello_is_the_users_mistake_only_where_the_server_says_so() {
    for is_user in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let mut wire = Wire::new(listener.accept().unwrap().0);
            let challenge = Reply::Challenge {
                nonce: "1".into(),
                has_secret: false,
            };
            let why = "no room".into();
            for reply in [challenge, Reply::Refused { why, is_user }] {
                wire.receive::<Request>().unwrap().unwrap();
                wire.send(&reply, &[]).unwrap();
            }
            // The line is closed: what followed on it would be answered by nobody who knows this worker.
            wire.receive::<Request>().unwrap().is_none()
        });
        let long = Duration::from_secs(60);
        let mut line = Line::to(0, &News::of(1));
        let error = line.ask(&options(&address, long, long), &Request::Heartbeat, &[]);
        let error = error.unwrap_err();
        assert!(error.to_string().contains("no room"), "{error}");
        assert_eq!(matches!(error, PsError::User(_)), is_user, "{error:?}");
        assert!(server.join().unwrap());
    }
}
