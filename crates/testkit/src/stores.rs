//! The buckets of tests.

use std::io::{Read, Write};
use std::net::TcpStream;

/// The URLs, ending with `name`, of a folder that no other test writes to, in each bucket of PHALANX_TEST_STORES. Without that variable there are
/// none, and it says so.
#[must_use]
pub fn bucket_urls(name: &str) -> Vec<String> {
    let Ok(stores) = std::env::var("PHALANX_TEST_STORES") else {
        crate::skip("PHALANX_TEST_STORES names no bucket; `cargo xtask check cloud` does");
        return Vec::new();
    };
    let process = std::process::id();
    let url = |store: &str| format!("{store}/{process}/{name}");
    stores.split_whitespace().map(url).collect()
}

/// Puts an object of no bytes into a bucket of Google Cloud Storage's stand-in, under a name that no library lets through, such as `a//b` or `folder/`.
///
/// # Panics
/// When the server does not take it.
pub fn put_empty_at(url: &str) {
    let key = url.strip_prefix("gs://").expect("a URL of gs://");
    let server = std::env::var("STORAGE_EMULATOR_HOST").expect("a server");
    let address = server.trim_start_matches("http://");
    let mut connection = TcpStream::connect(address).expect("the server listens");
    let head = format!(
        "PUT /{key} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let sent = connection.write_all(head.as_bytes());
    let mut answer = String::new();
    let answered = sent.and_then(|()| connection.read_to_string(&mut answer));
    let is_there = answered.is_ok() && answer.starts_with("HTTP/1.1 200");
    assert!(is_there, "{url}: {answer}");
}
