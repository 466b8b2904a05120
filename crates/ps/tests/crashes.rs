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

use phalanx_cluster::launch::ReservedPorts;
use phalanx_proof::Secret;
use phalanx_ps::{
    Client, ClientOptions, ControlSettings, Hello, Mode, Part, PsError, PushKey, Reply, Request,
    Server, ServerOptions, Tell, Values,
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
    client_within(port, worker, Duration::from_secs(30))
}

/// A worker that waits this long for a server that is away.
fn client_within(port: u16, worker: usize, server_within: Duration) -> Client {
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
        server_within,
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

/// A port that nobody else is given until the tests end, also while its server is away.
fn free_port() -> u16 {
    Box::leak(Box::new(ReservedPorts::new(1, None).unwrap())).of_workers()[0]
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

/// A folder of this test, and a server that keeps its state there.
fn started(name: &str, port: u16) -> Child {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    start(port, &folder)
}

fn kill(mut server: Child) {
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Who asks a server for longer than it may be away waits for the next one all the same.
#[test]
fn how_long_a_server_is_away_counts_from_when_it_goes() {
    let port = free_port();
    let server = started("goes", port);
    let client = client_within(port, 1, Duration::from_secs(8));
    let asked = thread::spawn(move || {
        let (key, within_ms) = ("key".to_owned(), 9_000);
        let answer = client.ask(&Request::Get { key, within_ms }, &[]);
        answer.map(|(reply, _)| reply)
    });
    thread::sleep(Duration::from_millis(8_500));
    kill(server);
    let next = started("comes", port);
    let reply = asked.join().unwrap().unwrap();
    assert!(matches!(reply, Reply::NotYet { .. }), "{reply:?}");
    kill(next);
}

/// Every line to it is told, also of a worker that has brought it nothing.
#[test]
fn a_server_that_comes_back_with_nothing_is_lost() {
    let port = free_port();
    let server = started("had-values", port);
    let clients = [0, 1].map(|worker| client(port, worker));
    let create = Request::Create {
        description: String::new(),
    };
    clients[0].ask_server(0, &create, &[]).unwrap();
    clients.iter().for_each(|client| drop(applied(client)));
    kill(server);
    let next = started("has-none", port);
    for client in &clients {
        let heartbeat = client.ask(&Request::Heartbeat, &[]);
        let pull = client.ask_server(0, &create, &[]);
        for answer in [heartbeat, pull] {
            let error = answer.unwrap_err();
            assert!(matches!(error, PsError::Lost(_)), "{error}");
            let shown = error.to_string();
            assert!(shown.contains("without what it held"), "{shown}");
        }
    }
    kill(next);
}

/// A machine that has vanished says nothing, and closes nothing.
#[test]
fn a_server_that_is_silent_holds_up_no_worker() {
    let port = free_port();
    let server = started("silent", port);
    let client = client_within(port, 0, Duration::from_secs(1));
    let signal = |name: &str| {
        let pid = server.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    let start = Instant::now();
    // The signal may come after an answer.
    while client.ask_server(0, &Request::Heartbeat, &[]).is_ok() {}
    drop(client);
    // An answer may take 30 s.
    assert!(start.elapsed() < Duration::from_secs(28), "{start:?}");
    kill(server);
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
