//! A server process that is killed again and again while workers push: what was acknowledged is there, once.
//!
//! PHALANX_PUSHES sets how many pushes there are (10,000 otherwise).

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_proof::Secret;
use phalanx_ps::{
    Client, ClientOptions, ControlSettings, Hello, Mode, Part, PushKey, Reply, Request, Server,
    ServerOptions, Tell, Values,
};

const WORKERS: usize = 3;

/// How often each piece of work was applied.
#[derive(Default)]
struct Counts(BTreeMap<u64, u64>);

impl Values for Counts {
    fn create(&mut self, _: &str, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn pull(&mut self, _: &str, _: &[u8]) -> Result<Arc<Vec<u8>>, String> {
        self.save().map(Arc::new)
    }

    fn mean(&mut self, _: &[(Part, &str, &[u8])]) -> Result<(String, Vec<u8>), String> {
        Err("nobody steps together here".into())
    }

    fn apply(&mut self, _: &str, gradient: &[u8], _: Option<&[f64]>) -> Result<(), String> {
        let work = gradient.try_into().map_err(|_| "8 bytes")?;
        *self.0.entry(u64::from_le_bytes(work)).or_insert(0) += 1;
        Ok(())
    }

    fn squares(&mut self, _: &str, _: &[u8]) -> Result<Vec<f64>, String> {
        Ok(Vec::new())
    }

    fn act(&mut self, _: &str, _: &[u8]) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }

    fn save(&mut self) -> Result<Vec<u8>, String> {
        let numbers = self.0.iter().flat_map(|(work, count)| [*work, *count]);
        Ok(numbers.flat_map(u64::to_le_bytes).collect())
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), String> {
        let number = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes);
        for at in (0..bytes.len()).step_by(16) {
            let pair = number(at).and_then(|work| Ok((work, number(at + 8)?)));
            let (work, count) = pair.map_err(|_| "8 bytes")?;
            self.0.insert(work, count);
        }
        Ok(())
    }
}

/// The process that is killed: a run of this test program that is told so.
#[test]
fn server_process() {
    let (Ok(port), Ok(folder)) = (std::env::var("PS_PORT"), std::env::var("PS_FOLDER")) else {
        return;
    };
    let options = ServerOptions {
        job: "crashes".into(),
        folder: Some(folder.into()),
        // Snapshots now and then, too.
        snapshot_bytes: 100 << 10,
        control_snapshot_bytes: 10 << 10,
        secret: Some(Secret::new("crashes")),
        ..ServerOptions::default()
    };
    let server = Server::new(options, Box::<Counts>::default()).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap();
    server.run(&listener).unwrap();
}

fn start(port: u16, folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "server_process", "--nocapture"])
        .env("PS_PORT", port.to_string())
        .env("PS_FOLDER", folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

fn client(port: u16, worker: usize) -> Client {
    let settings = ControlSettings {
        workers: WORKERS,
        mode: Mode::Async,
        goes_on_without_chief: true,
    };
    let options = ClientOptions {
        servers: vec![format!("127.0.0.1:{port}")],
        hello: Hello {
            job: "crashes".into(),
            version: String::new(),
            worker,
            incarnation: 1,
            settings,
        },
        join_within: Duration::from_secs(30),
        server_within: Duration::from_secs(30),
        stop_within: Duration::from_millis(100),
        answer_within: Duration::from_secs(30),
        secret: Some(Secret::new("crashes")),
        tell: Tell(Arc::new(|_| {})),
    };
    Client::connect(options).unwrap()
}

/// Pushes each piece of work, some of them twice.
fn push(client: &Client, worker: usize, pushes: u64, pushed: &AtomicU64) {
    for number in 0..pushes {
        let work = number * WORKERS as u64 + worker as u64;
        let key = PushKey {
            work,
            worker,
            incarnation: 1,
            done_below: 0,
        };
        for _ in 0..1 + u64::from(number % 7 == 0) {
            let request = Request::Push {
                key,
                what: String::new(),
                factors: None,
            };
            let answer = client.ask_server(0, &request, &work.to_le_bytes());
            assert!(matches!(answer.unwrap().0, Reply::Pushed { .. }));
        }
        pushed.fetch_add(1, Ordering::Relaxed);
    }
}

/// What workers and the process that kills the server know of each other.
struct Progress {
    pushed: AtomicU64,
    total: u64,
}

impl Progress {
    fn pushed(&self) -> u64 {
        self.pushed.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.pushed() == self.total
    }
}

/// The server's process, how often it was killed, and how long it took at most until pushes were acknowledged again.
struct Killed {
    server: Child,
    kills: u64,
    longest: Duration,
}

impl Killed {
    /// Kills the server, starts it, and waits until workers push.
    fn kill(&mut self, port: u16, folder: &Path, progress: &Progress) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        let (at, since) = (progress.pushed(), Instant::now());
        self.server = start(port, folder);
        while progress.pushed() <= at + WORKERS as u64 && !progress.is_over() {
            assert!(
                since.elapsed() < Duration::from_secs(30),
                "it does not come back"
            );
            thread::sleep(Duration::from_millis(1));
        }
        self.longest = self.longest.max(since.elapsed());
        self.kills += 1;
    }
}

/// A worker, from its connection to its last push.
fn work(port: u16, worker: usize, pushes: u64, progress: &Progress) -> Client {
    let client = client(port, worker);
    let create = Request::Create {
        description: String::new(),
    };
    client.ask_server(0, &create, &[]).unwrap();
    push(&client, worker, pushes, &progress.pushed);
    client
}

/// How often the server has applied each piece of work.
fn applied(client: &Client) -> Counts {
    let pull = Request::Pull {
        have: None,
        commit: None,
        what: String::new(),
    };
    let (_, bytes) = client.ask_server(0, &pull, &[]).unwrap();
    let mut counts = Counts::default();
    counts.load(&bytes).unwrap();
    counts
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_worker_that_is_to_stop_does_not_wait_long_for_a_server() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("stops");
    let _ = std::fs::remove_dir_all(&folder);
    let port = free_port();
    let mut server = start(port, &folder);
    let client = client(port, 0);
    server.kill().unwrap();
    server.wait().unwrap();
    client.stop_when(&Arc::new(AtomicBool::new(true)));
    let start = Instant::now();
    let error = client.ask_server(0, &Request::Heartbeat, &[]).unwrap_err();
    let shown = error.to_string();
    let expected = "worker 0 was asked to stop and does not reach parameter server 0 at 127.0.0.1";
    assert!(shown.starts_with(expected), "{shown}");
    assert!(start.elapsed() < Duration::from_secs(10), "{start:?}");
}

#[test]
fn acknowledged_pushes_survive_a_server_that_is_killed_again_and_again() {
    let pushes = std::env::var("PHALANX_PUSHES").ok();
    let pushes: u64 = pushes.and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let each = pushes.div_ceil(WORKERS as u64);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("crashes");
    let _ = std::fs::remove_dir_all(&folder);
    let port = free_port();
    let mut killed = Killed {
        server: start(port, &folder),
        kills: 0,
        longest: Duration::ZERO,
    };
    let progress = &Progress {
        pushed: AtomicU64::new(0),
        total: each * WORKERS as u64,
    };
    thread::scope(|scope| {
        let workers =
            (0..WORKERS).map(|worker| scope.spawn(move || work(port, worker, each, progress)));
        let workers: Vec<_> = workers.collect();
        // The server dies after each few hundred pushes, in the middle of others.
        let mut next = 50;
        while !progress.is_over() {
            assert!(workers.iter().all(|w| !w.is_finished()) || progress.pushed() > 0);
            if progress.pushed() >= next {
                killed.kill(port, &folder, progress);
                next = progress.pushed() + 100 + (killed.kills * 37) % 400;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let clients: Vec<Client> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        let counts = applied(&clients[0]);
        clients.iter().for_each(Client::leave);
        assert_eq!(counts.0.len() as u64, progress.total, "pushes were lost");
        let twice = counts.0.values().filter(|count| **count != 1).count();
        assert_eq!(twice, 0, "pushes were applied twice");
    });
    killed.server.wait().unwrap();
    let (kills, longest) = (killed.kills, killed.longest);
    let total = progress.total;
    println!(
        "{total} pushes, {kills} kills, at most {longest:?} until pushes were acknowledged again"
    );
    assert!(kills > 5, "{kills}");
}
