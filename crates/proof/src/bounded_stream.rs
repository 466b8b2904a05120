//! Reading of somebody who has proved nothing yet.

use std::borrow::Borrow;
use std::io::{Error, ErrorKind, Read, Result};
use std::net::TcpStream;
use std::time::Instant;

/// A connection that is read until a time and for a number of bytes, as far as these are set.
pub struct BoundedStream<S> {
    /// The connection, which must block.
    pub stream: S,
    /// When reading ends with [`ErrorKind::TimedOut`], however often bytes have come until then.
    pub until: Option<Instant>,
    /// The bytes that may still come: who wants to read more gets [`ErrorKind::InvalidData`].
    pub left: Option<u64>,
}

impl<S: Borrow<TcpStream>> Read for BoundedStream<S> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let mut stream = self.stream.borrow();
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
        }
        if self.left == Some(0) {
            let why = "more bytes than somebody may send who has proved nothing";
            return Err(Error::new(ErrorKind::InvalidData, why));
        }
        let most = self.left.map_or(bytes.len(), |left| {
            usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
        });
        let count = stream
            .read(&mut bytes[..most])
            .map_err(|error| match error.kind() {
                // What the system says of a time that is over.
                ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
                _ => error,
            })?;
        self.left = self.left.map(|left| left - count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn a_stranger_who_is_slow_is_left_when_the_time_is_over() {
        let (near, mut far) = pair();
        let speaks = thread::spawn(move || {
            while far.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let start = Instant::now();
        let until = Some(start + Duration::from_secs(2));
        let mut stream = BoundedStream {
            stream: near,
            until,
            left: None,
        };
        let mut heard = Vec::new();
        let error = stream.read_to_end(&mut heard).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(heard.len() > 1, "each byte came in time");
        let took = start.elapsed();
        assert!((2000..20_000).contains(&took.as_millis()), "{took:?}");
        drop(stream);
        speaks.join().unwrap();
    }

    #[test]
    fn a_stranger_who_is_silent_is_left_when_the_time_is_over() {
        let (near, mut far) = pair();
        let until = Some(Instant::now() + Duration::from_millis(50));
        let mut stream = BoundedStream {
            stream: &near,
            until,
            left: None,
        };
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        far.write_all(b"too late").unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_stranger_may_say_what_is_left_to_say_and_no_more() {
        let (near, mut far) = pair();
        far.write_all(b"0123456789").unwrap();
        let mut stream = BoundedStream {
            stream: &near,
            until: None,
            left: Some(8),
        };
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"01234");
        assert_eq!(stream.left, Some(3));
        let error = stream.read_exact(&mut heard).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(&heard[..3], b"567");
        stream.left = None;
        stream.read_exact(&mut heard[..2]).unwrap();
        assert_eq!(&heard[..2], b"89", "known now, and heard without a bound");
    }
}
