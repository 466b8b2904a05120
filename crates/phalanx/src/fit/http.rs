//! Short conversations in HTTP, without encryption, each within a time.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use phalanx_proof::BoundedStream;

/// Sends a request to `host`, a name or address with a port, and reads at most `most` bytes of the answer: all of it within this time,
/// however slowly it comes.
pub(super) fn ask(host: &str, request: &str, most: usize, within: Duration) -> Result<Vec<u8>> {
    let until = Instant::now() + within;
    let mut stream = connect(host, until)?;
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(request.as_bytes())?;
    let bounded = BoundedStream {
        stream,
        until: Some(until),
        left: None,
    };
    let mut answer = Vec::new();
    bounded.take(most as u64).read_to_end(&mut answer)?;
    Ok(answer)
}

/// The first address of the name that answers.
fn connect(host: &str, until: Instant) -> Result<TcpStream> {
    let mut failed = Error::from(ErrorKind::AddrNotAvailable);
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn left(until: Instant) -> Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero())
        .then_some(left)
        .ok_or_else(|| ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn an_answer_that_comes_slowly_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let start = Instant::now();
        let error = ask(
            &host,
            "GET / HTTP/1.0\r\n\r\n",
            1 << 16,
            Duration::from_millis(300),
        );
        assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn each_address_of_a_name_is_tried() {
        // A server on one of the two addresses that this name often has.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"hello").unwrap();
        });
        let answer = ask(&format!("localhost:{port}"), "", 3, Duration::from_secs(20));
        assert_eq!(answer.unwrap(), b"hel");
    }
}
