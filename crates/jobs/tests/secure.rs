//! The daemon by TLS. `tls` has certificates for 127.0.0.1 and localhost until the year 2120: `own` and `itself` (which says that it is an
//! authority) have signed themselves, `signed` and `expired` are of `authority`.

#![cfg(target_os = "linux")]

mod service;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use service::{PATIENCE, Service};

fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    folder.join(name).display().to_string()
}

/// A daemon that serves with a certificate; killed at the end.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon, and waits until it has said where it is.
fn serve(service: &Service, certificate: &str, key: &str, more: &[&str]) -> (Daemon, Json) {
    let place = service.root().join("daemon.json");
    let _ = std::fs::remove_file(&place);
    let mut command = service.command();
    command
        .args(["serve", "--tls-certificate", &file(certificate)])
        .args(["--tls-key", &file(key)])
        .args(more)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let mut daemon = Daemon(command.spawn().unwrap());
    let until = Instant::now() + PATIENCE;
    loop {
        if let Ok(text) = std::fs::read(&place) {
            return (daemon, serde_json::from_slice(&text).unwrap());
        }
        if daemon.0.try_wait().unwrap().is_some() {
            let mut said = String::new();
            let mut error = daemon.0.stderr.take().unwrap();
            error.read_to_string(&mut said).unwrap();
            panic!("{said}");
        }
        assert!(
            Instant::now() < until,
            "the daemon says nowhere where it is"
        );
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_certificate_that_has_signed_itself_is_trusted_by_its_own_commands() {
    let service = Service::new("tls-own");
    let (_daemon, place) = serve(&service, "own.pem", "own.key", &[]);
    service.script("demo", &[], "echo said");
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    // The stream of events goes by TLS, too.
    assert!(service.ok(&["logs", "-f", "demo"]).contains("said"));
    let address = place["address"].as_str().unwrap();
    let dashboard = service.ok(&["dashboard"]);
    assert!(
        dashboard.starts_with(&format!("https://{address}/?token=")),
        "{dashboard}"
    );
    // Who trusts somebody else only is told so, and starts no other daemon.
    let ca = file("authority.pem");
    let (code, error) = service.fails(&["--ca", &ca, "list"]);
    assert!(
        code == 3 && error.contains("UnknownIssuer; give --ca the file"),
        "{error}"
    );
    // Nothing is answered without TLS, and nobody waits for who says nothing.
    let _silent = TcpStream::connect(address).unwrap();
    let mut plain = TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut line = Vec::new();
    let _ = BufReader::new(plain).read_until(b'\n', &mut line);
    assert!(
        !line.starts_with(b"HTTP"),
        "{}",
        String::from_utf8_lossy(&line)
    );
    assert!(service.ok(&["list"]).contains("demo"));
}

#[test]
fn what_a_daemon_that_was_killed_leaves_holds_nobody_up() {
    let service = Service::new("tls-killed");
    let leave = |certificate: String, address: &str| {
        let place = json!({"address": address, "pid": 1, "certificate": certificate});
        std::fs::write(service.root().join("daemon.json"), place.to_string()).unwrap();
    };
    let stop = || {
        let pid = service.daemon().and_then(Pid::from_raw).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    };
    service.ok(&["list"]);
    // Its port is free, and its certificate was removed.
    stop();
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    leave("none.pem".to_owned(), &free.to_string());
    service.ok(&["list"]);
    // A server without TLS has its port.
    stop();
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    leave(file("own.pem"), &plain.local_addr().unwrap().to_string());
    thread::spawn(move || {
        for mut stream in plain.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    service.ok(&["list"]);
}

#[test]
fn an_authority_is_trusted_when_it_is_given() {
    let service = Service::new("tls-authority");
    let (_daemon, place) = serve(
        &service,
        "signed.pem",
        "signed.key",
        &["--host", "localhost"],
    );
    assert!(
        place["address"].as_str().unwrap().starts_with("localhost:"),
        "{place}"
    );
    let ca = file("authority.pem");
    service.ok(&["--ca", &ca, "list"]);
    let output = service
        .command()
        .env("PHALANX_JOBS_CA", &ca)
        .arg("list")
        .output();
    assert!(output.unwrap().status.success());
    let (code, error) = service.fails(&["--ca", &file("own.pem"), "list"]);
    assert!(code == 3 && error.contains("is not trusted"), "{error}");
    let (code, error) = service.fails(&["--ca", &file("own.key"), "list"]);
    assert!(
        code == 3 && error.contains("it has no certificate"),
        "{error}"
    );
    let missing = service.folder.join("none.pem");
    let (code, error) = service.fails(&["--ca", &missing.display().to_string(), "list"]);
    assert!(code == 3 && error.contains("No such file"), "{error}");
}

#[test]
fn certificates_that_prove_nothing_are_refused_with_what_to_do() {
    let authority = file("authority.pem");
    for (name, certificate, key, ca, said) in [
        (
            "expired",
            "expired.pem",
            "signed.key",
            Some(&authority),
            "start the daemon with a new one",
        ),
        (
            "itself",
            "itself.pem",
            "own.key",
            None,
            "basicConstraints=critical,CA:FALSE",
        ),
    ] {
        let service = Service::new(name);
        let (_daemon, _) = serve(&service, certificate, key, &[]);
        let ca = ca.map_or_else(Vec::new, |ca| vec!["--ca", ca.as_str()]);
        let (code, error) = service.fails(&[&ca[..], &["list"]].concat());
        assert!(code == 3 && error.contains(said), "{name}: {error}");
    }
    // A name that the certificate has not.
    let service = Service::new("name");
    let (_daemon, _) = serve(&service, "own.pem", "own.key", &["--listen", "127.0.0.2:0"]);
    let (code, error) = service.fails(&["list"]);
    assert!(
        code == 3 && error.contains("--host and a name that it has"),
        "{error}"
    );
}

#[test]
fn files_that_are_no_certificate_and_key_are_refused_at_the_start() {
    let service = Service::new("tls-files");
    let missing: PathBuf = service.folder.join("none");
    let missing = missing.display().to_string();
    for (certificate, key, said) in [
        (
            file("own.pem"),
            file("signed.key"),
            "give the key that the certificate was made for",
        ),
        (file("own.key"), file("own.key"), "it has no certificate"),
        (file("own.pem"), file("own.pem"), "--tls-key names"),
        (missing.clone(), file("own.key"), "--tls-certificate names"),
        (file("own.pem"), missing, "--tls-key names"),
    ] {
        let serve = [
            "serve",
            "--tls-certificate",
            &certificate,
            "--tls-key",
            &key,
        ];
        let (code, error) = service.fails(&serve);
        assert!(code == 3 && error.contains(said), "{error}");
    }
    let (code, error) = service.fails(&["serve", "--tls-certificate", &file("own.pem")]);
    assert!(code == 2 && error.contains("--tls-key"), "{error}");
}
