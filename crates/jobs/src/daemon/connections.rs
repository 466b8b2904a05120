//! Connections: a limited number at a time, and none of them without an end where nobody asks.
//!
//! Whoever reaches the port holds one, token or not. The queue needs files, too, so it is not they who say how many are left.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// How long nothing is accepted after the system had no room for a connection.
const PAUSE: Duration = Duration::from_secs(1);
/// A request of which this many bytes have come has as long again.
const PART: usize = 16 << 10;

/// What connections may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How many there are at a time; others wait.
    most: usize,
    /// How long the next part of a request may take.
    request: Duration,
    /// How long a connection is kept after an answer.
    idle: Duration,
}

impl Limits {
    /// A half of the files that a process may have open by default.
    pub(super) const DEFAULT: Self = Self {
        most: 512,
        request: Duration::from_secs(10),
        idle: Duration::from_secs(60),
    };
}

/// Accepts connections within limits.
pub(super) struct Connections {
    listener: TcpListener,
    limits: Limits,
    free: Arc<Semaphore>,
}

impl Connections {
    pub(super) fn new(listener: TcpListener, limits: Limits) -> Self {
        let free = Arc::new(Semaphore::new(limits.most));
        Self {
            listener,
            limits,
            free,
        }
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // Nobody closes the semaphore.
        let place = Arc::clone(&self.free).acquire_owned().await.ok();
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let connection = Connection {
                        stream,
                        limits: self.limits,
                        until: Box::pin(sleep(self.limits.request)),
                        asks: true,
                        read: 0,
                        is_behind: false,
                        _place: place,
                    };
                    return (connection, from);
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when its client takes too long to ask.
pub(super) struct Connection {
    stream: TcpStream,
    limits: Limits,
    /// When it ends unless a part of a request, or an answer to one, has moved by then.
    until: Pin<Box<Sleep>>,
    /// Whether the client has begun a request that nothing is answered to.
    asks: bool,
    /// Bytes of the part of a request.
    read: usize,
    /// Whether an answer waits for the client to read it, which may take any time.
    is_behind: bool,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn wait(&mut self, time: Duration) {
        self.until.as_mut().reset(Instant::now() + time);
    }

    fn has_read(&mut self, bytes: usize) {
        self.read += bytes;
        if !self.asks || self.read >= PART {
            self.read = 0;
            self.wait(self.limits.request);
        }
        self.asks = true;
    }

    fn has_written(&mut self, written: &Poll<io::Result<usize>>) {
        self.is_behind = written.is_pending();
        if written.is_ready() {
            (self.asks, self.read) = (false, 0);
            self.wait(self.limits.idle);
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut own.stream).poll_read(context, buffer);
        if read.is_ready() {
            own.has_read(buffer.filled().len() - before);
            return read;
        }
        if !own.is_behind && own.until.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        let written = Pin::new(&mut own.stream).poll_write(context, bytes);
        own.has_written(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let own = self.get_mut();
        let written = Pin::new(&mut own.stream).poll_write_vectored(context, parts);
        own.has_written(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;
    use std::net::TcpStream as Client;

    use tokio::time::timeout;

    use super::*;

    const LIMITS: Limits = Limits {
        most: 1,
        request: Duration::from_secs(1),
        idle: Duration::from_secs(600),
    };
    /// Longer than a busy machine takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn read(connection: &mut Connection) -> io::Result<usize> {
        let mut bytes = [0; 64];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|context| Pin::new(&mut *connection).poll_read(context, &mut buffer)).await?;
        Ok(buffer.filled().len())
    }

    async fn listen() -> (Connections, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Connections::new(listener, LIMITS), address)
    }

    #[tokio::test]
    async fn a_client_that_does_not_finish_its_request_is_left() {
        let (mut connections, address) = listen().await;
        let mut client = Client::connect(address).unwrap();
        let (mut connection, _) = connections.accept().await;
        // Each byte comes in time; the request does not.
        client.write_all(b"G").unwrap();
        assert_eq!(read(&mut connection).await.unwrap(), 1);
        let end = timeout(PATIENCE, read(&mut connection)).await.unwrap();
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_client_that_was_answered_may_wait_before_it_asks_again() {
        let (mut connections, address) = listen().await;
        let _client = Client::connect(address).unwrap();
        let (mut connection, _) = connections.accept().await;
        let write = |context: &mut Context<'_>| Pin::new(&mut connection).poll_write(context, b"a");
        poll_fn(write).await.unwrap();
        let longer = LIMITS.request * 3;
        assert!(timeout(longer, read(&mut connection)).await.is_err());
    }

    #[tokio::test]
    async fn others_wait_for_the_place_of_a_connection() {
        let (mut connections, address) = listen().await;
        let _clients = [(); 2].map(|()| Client::connect(address).unwrap());
        let first = connections.accept().await;
        let soon = Duration::from_millis(100);
        assert!(timeout(soon, connections.accept()).await.is_err());
        drop(first);
        assert!(timeout(PATIENCE, connections.accept()).await.is_ok());
    }
}
