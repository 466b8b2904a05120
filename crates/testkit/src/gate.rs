//! A gate before a server: it writes down what is asked, and lets it pass, breaks the connection or answers in the server's place.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Longer than any answer takes.
const LIMIT: Duration = Duration::from_secs(120);

/// What becomes of a request.
pub enum Answer {
    /// The server gets it.
    Pass,
    /// The connection ends.
    Close,
    /// It is answered that there are too many.
    Busy,
}

/// The gate, as long as the test runs.
pub struct Gate {
    /// Its address, as the server's is written.
    pub address: String,
    requests: Arc<Mutex<Vec<String>>>,
    answered: Arc<AtomicU64>,
}

impl Gate {
    /// Opens a gate before the server at an address; `judge` is asked about the first line of each request.
    ///
    /// # Panics
    /// When this machine gives no port.
    pub fn before(server: &str, judge: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = server.trim_start_matches("http://").to_owned();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (kept, judge) = (Arc::clone(&requests), Arc::new(judge));
        let answered: Arc<AtomicU64> = Arc::default();
        let counted = Arc::clone(&answered);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (server, kept, judge) = (server.clone(), Arc::clone(&kept), Arc::clone(&judge));
                let counted = Arc::clone(&counted);
                let pass = move |client: TcpStream| -> io::Result<()> {
                    client.set_read_timeout(Some(LIMIT))?;
                    let request = request(&client)?;
                    let first = request
                        .split(|byte| *byte == b'\r')
                        .next()
                        .unwrap_or_default();
                    // Google's names have all but letters and digits as codes.
                    let first = String::from_utf8_lossy(first).replace("%2E", ".");
                    kept.lock().unwrap().push(first.clone());
                    match judge(&first) {
                        Answer::Close => client.shutdown(Shutdown::Both),
                        Answer::Busy => busy(&client),
                        Answer::Pass => forward(&client, &server, &request, &counted),
                    }
                };
                thread::spawn(move || client.and_then(pass));
            }
        });
        Self {
            address,
            requests,
            answered,
        }
    }

    /// The bytes of all answers that it has let pass.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// The first lines of the requests with this method.
    ///
    /// # Panics
    /// When a thread of the gate has panicked.
    #[must_use]
    pub fn requests(&self, method: &str) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let with = requests.iter().filter(|line| line.starts_with(method));
        with.cloned().collect()
    }
}

/// A whole request: head, and as many bytes as it announces.
fn request(mut client: &TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut part = [0; 1 << 16];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
            if bytes.len() >= end + 4 + length {
                // One request a connection: the server is to end it.
                let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
                let mut changed = format!("{head}\r\nConnection: close\r\n\r\n").into_bytes();
                changed.extend_from_slice(&bytes[end + 4..]);
                return Ok(changed);
            }
        }
        match client.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
}

fn forward(
    mut client: &TcpStream,
    server: &str,
    request: &[u8],
    counted: &AtomicU64,
) -> io::Result<()> {
    let mut server = TcpStream::connect(server)?;
    server.set_read_timeout(Some(LIMIT))?;
    server.write_all(request)?;
    let bytes = io::copy(&mut server, &mut client)?;
    counted.fetch_add(bytes, Ordering::Relaxed);
    client.shutdown(Shutdown::Both)
}

fn busy(mut client: &TcpStream) -> io::Result<()> {
    let body = "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>";
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 503 Slow Down\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    client.shutdown(Shutdown::Write)
}
