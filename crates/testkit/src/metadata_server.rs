//! The metadata servers of Google's, Amazon's and Microsoft's machines in one, on this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Announces a preemption once it is asked to, in the words of each of the three. It ends with the process.
pub struct MetadataServer {
    address: String,
    announced: Arc<AtomicBool>,
}

impl Default for MetadataServer {
    fn default() -> Self {
        Self::new()
    }
}

impl MetadataServer {
    /// A server that has nothing to announce yet.
    ///
    /// # Panics
    /// Where there is no free port.
    #[must_use]
    pub fn new() -> Self {
        let announced = Arc::new(AtomicBool::new(false));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address").to_string();
        let server = Self {
            address,
            announced: Arc::clone(&announced),
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Who does not read the answer has ended.
                let _ = answer(&stream, announced.load(Ordering::Relaxed));
            }
        });
        server
    }

    /// Host and port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// From now on, or no more.
    pub fn announce(&self, is_announced: bool) {
        self.announced.store(is_announced, Ordering::Relaxed);
    }
}

fn answer(mut stream: &TcpStream, is_announced: bool) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut request = Vec::new();
    for line in lines.by_ref() {
        match line? {
            line if line.is_empty() => break,
            line => request.push(line),
        }
    }
    let has = |header: &str| request.iter().any(|line| line == header);
    let first = request.first().map_or("", String::as_str);
    let (status, body) = match first.trim_end_matches(" HTTP/1.0") {
        "GET /computeMetadata/v1/instance/preempted" if has("Metadata-Flavor: Google") => {
            (200, if is_announced { "TRUE" } else { "FALSE" }.to_owned())
        }
        "PUT /latest/api/token" if has("X-aws-ec2-metadata-token-ttl-seconds: 60") => {
            (200, "secret".to_owned())
        }
        "GET /latest/meta-data/spot/instance-action" if has("X-aws-ec2-metadata-token: secret") => {
            match is_announced {
                true => (
                    200,
                    r#"{"action": "terminate", "time": "2017-09-18T08:22:00Z"}"#.to_owned(),
                ),
                false => (404, "<html>Not Found</html>".to_owned()),
            }
        }
        "GET /metadata/scheduledevents?api-version=2020-07-01" if has("Metadata: true") => {
            (200, scheduled_events(is_announced))
        }
        "GET /metadata/instance/compute/name?api-version=2021-02-01&format=text"
            if has("Metadata: true") =>
        {
            (200, "workers_1".to_owned())
        }
        _ => (403, String::new()),
    };
    let length = body.len();
    let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(answer.as_bytes())
}

/// Another machine of the same scale set is taken away in any case, and this one is moved.
fn scheduled_events(is_announced: bool) -> String {
    let event = |kind: &str, machine: &str| {
        format!(
            r#"{{"EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventType": "{kind}", "ResourceType": "VirtualMachine",
            "Resources": ["{machine}"], "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2022 18:29:47 GMT",
            "Description": "", "EventSource": "Platform", "DurationInSeconds": -1}}"#
        )
    };
    let mut events = vec![event("Preempt", "workers_0"), event("Freeze", "workers_1")];
    if is_announced {
        events.push(event("Preempt", "WORKERS_1"));
    }
    let events = events.join(", ");
    format!(r#"{{"DocumentIncarnation": 1, "Events": [{events}]}}"#)
}
