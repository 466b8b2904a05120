//! Threads that read what processes write.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// The threads that read the output of one process, or of several.
///
/// A process that has left its group may hold a stream for as long as it likes: nobody waits for these threads without an end.
#[derive(Debug)]
pub struct Readers {
    /// Held by each of them.
    reading: Sender<()>,
    read: Receiver<()>,
}

impl Default for Readers {
    fn default() -> Self {
        let (reading, read) = channel();
        Self { reading, read }
    }
}

impl Readers {
    /// Starts another, which reads until its stream ends.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(&self, name: String, read: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let reading = self.reading.clone();
        let body = move || {
            let _reading = reading;
            read();
        };
        thread::Builder::new().name(name).spawn(body).map(drop)
    }

    /// Waits until they have read all, for no longer than `within`.
    pub fn finish(&mut self, within: Duration) {
        let Self { reading, read } = std::mem::take(self);
        drop(reading);
        // Nothing is ever sent: the wait ends when the last thread has ended.
        let _ = read.recv_timeout(within);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_stream_that_is_held_is_not_waited_for() {
        let (hold, held) = channel::<()>();
        let mut readers = Readers::default();
        let read = move || {
            let _ = held.recv();
        };
        readers.start("held".to_owned(), read).unwrap();
        let start = Instant::now();
        readers.finish(Duration::from_millis(20));
        assert!(start.elapsed() < Duration::from_secs(10));
        drop(hold);
    }

    #[test]
    fn what_was_written_is_read_before_the_end() {
        let mut readers = Readers::default();
        let (send, receive) = channel();
        for part in 0..2 {
            let send = send.clone();
            let read = move || {
                thread::sleep(Duration::from_millis(20));
                send.send(part).unwrap();
            };
            readers.start(format!("part-{part}"), read).unwrap();
        }
        readers.finish(Duration::from_secs(60));
        assert_eq!(receive.try_iter().count(), 2);
    }
}
