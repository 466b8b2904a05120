//! A server that is slow, and one that is silent. `cargo xtask check cloud` builds what this is of.
#![cfg(feature = "cloud")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use phalanx_store::{Bucket, Limits, ObjectUrl};

const SILENCE: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(2500);

/// Answers with a byte after each pause, longer than a server may be silent.
fn answer_slowly(mut client: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 1 << 14];
    assert!(client.read(&mut request)? > 0);
    let head = "HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\nContent-Range: bytes 0-3/4\r\nETag: \"1\"\r\n\
                Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n";
    client.write_all(head.as_bytes())?;
    for byte in b"slow" {
        thread::sleep(PAUSE);
        client.write_all(&[*byte])?;
    }
    Ok(())
}

#[test]
fn a_slow_server_is_waited_for_and_a_silent_one_is_not() {
    let name = "a_slow_server_is_waited_for_and_a_silent_one_is_not";
    if std::env::var_os("PHALANX_STORE_TEST_CLIENT").is_some() {
        return read_twice();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let mut clients = listener.incoming().map(Result::unwrap);
        answer_slowly(clients.next().unwrap()).unwrap();
        // Held open.
        clients.collect::<Vec<_>>()
    });
    // A process of its own, whose environment names the server.
    let mut client = Command::new(std::env::current_exe().unwrap());
    client.args([name, "--exact"]).envs([
        ("PHALANX_STORE_TEST_CLIENT", "1"),
        ("AWS_ENDPOINT_URL", &*address),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("AWS_REGION", "us-east-1"),
    ]);
    let output = client.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}");
}

fn read_twice() {
    let url = ObjectUrl::parse("s3://bucket/x").unwrap();
    let limits = Limits {
        retry: Duration::from_millis(1),
        silence: SILENCE,
    };
    let bucket = Bucket::open(&url, limits).unwrap();
    assert_eq!(bucket.read(&url, 0, 4).unwrap(), b"slow");
    let error = bucket.read(&url, 0, 4).unwrap_err().to_string();
    assert!(error.contains("took and sent nothing"), "{error}");
}
