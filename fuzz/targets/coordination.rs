//! Frames of the coordination service, and its state under any messages of any number of connections.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use phalanx_cluster::coordination::{
    Coordination, Event, Recovery, Reply, Request, Settings, decode, encode,
};

/// A line is the number of a connection (one digit) and a message as JSON; any other line is the end of connection 0, or time.
fn event(line: &[u8]) -> Event {
    let connection = u64::from(line.first().map_or(0, |digit| digit.wrapping_sub(b'0')));
    match serde_json::from_slice::<Request>(line.get(1..).unwrap_or_default()) {
        Ok(request) => Event::Message {
            connection,
            from: Some([10, 0, 0, 1].into()),
            request,
            bytes: line.to_vec(),
        },
        Err(_) if line.len() == 1 => Event::Closed {
            connection,
            why: "it ended".into(),
        },
        Err(_) => Event::Tick,
    }
}

fuzz_target!(|input: &[u8]| {
    let _ = decode::<Reply>(input);
    if let Ok(Some((request, bytes, length))) = decode::<Request>(input) {
        assert!(length <= input.len());
        let frame = encode(&request, &bytes).expect("it was shorter");
        assert_eq!(decode(&frame), Ok(Some((request, bytes, frame.len()))));
    }
    let recovers = input.first().is_some_and(|byte| byte % 2 == 0);
    let mut state = Coordination::new(Settings {
        workers: 2,
        job: String::new(),
        version: String::new(),
        generation: 1,
        lease: Duration::from_secs(1),
        join_within: Some(Duration::from_secs(9)),
        recovery: recovers.then_some(Recovery {
            within: Duration::from_secs(2),
            least: 1,
        }),
    });
    let mut failure = None;
    for (at, line) in input.split(|byte| *byte == b'\n').enumerate() {
        state.on(Duration::from_millis(at as u64 * 100), event(line));
        assert!(
            failure.is_none() || state.failure() == failure.as_ref(),
            "two first failures"
        );
        failure = state.failure().cloned();
    }
});
