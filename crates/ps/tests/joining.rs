//! Who does not know the job's secret is refused, at once and with a word to both sides; who comes late is let in.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use phalanx_proof::Secret;
use phalanx_ps::{
    Client, ClientOptions, ControlSettings, Grant, Hello, Mode, Part, PhaseKind, PsError, Reply,
    Request, Server, ServerOptions, Tell, Values, decode_frame, encode_frame,
};

/// Nothing is held.
struct Nothing;

impl Values for Nothing {
    fn create(&mut self, _: &str, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn pull(&mut self, _: &str, _: &[u8]) -> Result<Arc<Vec<u8>>, String> {
        Ok(Arc::new(vec![7; 300_000]))
    }
    fn mean(&mut self, _: &[(Part, &str, &[u8])]) -> Result<(String, Vec<u8>), String> {
        Err("nobody steps together here".into())
    }
    fn apply(&mut self, _: &str, _: &[u8], _: Option<&[f64]>) -> Result<(), String> {
        Ok(())
    }
    fn squares(&mut self, _: &str, _: &[u8]) -> Result<Vec<f64>, String> {
        Ok(Vec::new())
    }
    fn act(&mut self, _: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
        Ok(bytes.to_vec())
    }
    fn save(&mut self) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }
    fn load(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

fn join(address: &str, secret: Option<&str>) -> Result<Client, PsError> {
    join_as((0, 1), &[address.to_owned()], secret)
}

/// Joins as a worker of how many.
fn join_as(
    place: (usize, usize),
    servers: &[String],
    secret: Option<&str>,
) -> Result<Client, PsError> {
    join_job("", place, servers, secret)
}

fn join_job(
    job: &str,
    (worker, workers): (usize, usize),
    servers: &[String],
    secret: Option<&str>,
) -> Result<Client, PsError> {
    join_process(1, job, (worker, workers), servers, secret)
}

/// Joins as one of the processes that have a worker's number in turn.
fn join_process(
    incarnation: u64,
    job: &str,
    (worker, workers): (usize, usize),
    servers: &[String],
    secret: Option<&str>,
) -> Result<Client, PsError> {
    Client::connect(ClientOptions {
        servers: servers.to_vec(),
        hello: Hello {
            job: job.into(),
            version: String::new(),
            worker,
            incarnation,
            settings: ControlSettings {
                workers,
                mode: Mode::Async,
                goes_on_without_chief: false,
            },
        },
        join_within: Duration::from_secs(60),
        server_within: Duration::from_secs(60),
        stop_within: Duration::from_millis(100),
        answer_within: Duration::from_secs(60),
        secret: secret.map(Secret::new),
        tell: Tell(Arc::new(|_| {})),
    })
}

/// What a server with a secret, or without, says of those who come with these; the last one is let in and works.
fn refused(own: Option<&str>, strangers: &[Option<&str>]) -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let options = ServerOptions {
        secret: own.map(Secret::new),
        tell: Tell(Arc::new(move |line| {
            heard.lock().unwrap().push(line.to_owned());
        })),
        ..ServerOptions::default()
    };
    let server = Server::new(options, Box::new(Nothing)).unwrap();
    let running = thread::spawn(move || server.run(&listener));
    for stranger in strangers {
        let start = Instant::now();
        let error = join(&address, *stranger).err().unwrap();
        assert!(matches!(error, PsError::User(_)), "{error}");
        assert!(error.to_string().contains("secret"), "{error}");
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it was tried again and again"
        );
    }
    // Nobody gets far by leaving the questions out, either.
    let mut stream = TcpStream::connect(&address).unwrap();
    let request = Request::Pull {
        have: None,
        commit: None,
        what: String::new(),
    };
    stream
        .write_all(&encode_frame(&request, &[]).unwrap())
        .unwrap();
    let reply = decode_frame::<Reply>(&mut stream).unwrap().unwrap();
    assert!(matches!(reply.message, Reply::Refused { .. }), "{reply:?}");
    let client = join(&address, own).unwrap();
    for bytes in [0, 10, 1 << 20] {
        let sent = vec![3; bytes];
        let act = Request::Act {
            what: String::new(),
        };
        let (_, back) = client.ask_server(0, &act, &sent).unwrap();
        assert_eq!(back, sent);
    }
    client.leave();
    drop(client);
    running.join().unwrap().unwrap();
    said.lock().unwrap().clone()
}

#[test]
fn who_does_not_know_the_secret_is_refused_and_named() {
    let said = refused(Some("right"), &[Some("wrong"), None]);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("127.0.0.1") && said[0].contains("another secret"),
        "{said:?}"
    );
    assert!(said[1].contains("no secret"), "{said:?}");
    let said = refused(None, &[Some("one")]);
    assert!(said[0].contains("this server none"), "{said:?}");
}

/// Two servers that close a connection which is silent for longer than `idle_within`, and their addresses.
fn two_servers(idle_within: Duration) -> (Vec<JoinHandle<Result<(), PsError>>>, [String; 2]) {
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = listeners
        .each_ref()
        .map(|listener| listener.local_addr().unwrap().to_string());
    let start = |(server, listener): (usize, TcpListener)| {
        let options = ServerOptions {
            server,
            idle_within,
            ..ServerOptions::default()
        };
        let server = Server::new(options, Box::new(Nothing)).unwrap();
        thread::spawn(move || server.run(&listener))
    };
    let running = listeners.into_iter().enumerate().map(start);
    (running.collect(), addresses)
}

/// The first worker computes something by itself for longer than a connection may be silent.
#[test]
fn a_worker_that_asks_nothing_for_long_is_not_lost() {
    let (running, addresses) = two_servers(Duration::from_secs(4));
    let client = join_as((0, 1), &addresses, None).unwrap();
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(4500));
        for server in 0..2 {
            let act = Request::Act {
                what: String::new(),
            };
            client.ask_server(server, &act, &[]).unwrap();
        }
    }
    thread::sleep(Duration::from_millis(4500));
    client.leave();
    drop(client);
    for server in running {
        server.join().unwrap().unwrap();
    }
}

#[test]
fn a_worker_that_comes_when_another_has_done_all_work_is_let_in() {
    let (running, addresses) = two_servers(Duration::from_secs(120));
    let first = join_as((0, 2), &addresses, None).unwrap();
    first.leave();
    drop(first);
    // Many times what a server takes to end.
    thread::sleep(Duration::from_millis(500));
    let second = join_as((1, 2), &addresses, None).unwrap();
    second.leave();
    drop(second);
    for server in running {
        server.join().unwrap().unwrap();
    }
}

/// A heartbeat that opened its connection while its worker left.
#[test]
fn what_comes_late_of_a_worker_that_has_left_is_no_worker() {
    let (running, addresses) = two_servers(Duration::from_secs(120));
    let first = join_as((0, 2), &addresses, None).unwrap();
    first.leave();
    drop(first);
    drop(join_as((0, 2), &addresses, None).unwrap());
    let second = join_as((1, 2), &addresses, None).unwrap();
    second.leave();
    drop(second);
    for server in running {
        server.join().unwrap().unwrap();
    }
}

/// A server of a job that keeps its state in a folder, and where it is.
fn keeping(job: &str, folder: &Path) -> Result<(String, JoinHandle<Result<(), PsError>>), PsError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = ServerOptions {
        job: job.into(),
        folder: Some(folder.join("ps-0")),
        alone_within: Duration::from_secs(6),
        ..ServerOptions::default()
    };
    let server = Server::new(options, Box::new(Nothing))?;
    Ok((address, thread::spawn(move || server.run(&listener))))
}

/// What a job does with servers that keep their state: puts `own` under a key, and returns what is there.
fn put(client: &Client, own: &[u8]) -> Vec<u8> {
    let key = "key".to_owned();
    let request = Request::Put { key: key.clone() };
    client.ask(&request, own).unwrap();
    let within_ms = 0;
    client.ask(&Request::Get { key, within_ms }, &[]).unwrap().1
}

#[test]
fn what_a_server_kept_is_taken_up_by_its_job_until_that_has_ended() {
    let folder = std::env::temp_dir().join(format!("phalanx-ps-of-a-job-{}", std::process::id()));
    let serve = |job| keeping(job, &folder).unwrap();
    let of = |job: &str, address: &str| join_job(job, (0, 1), &[address.to_owned()], None).unwrap();
    // The only worker is gone without a word, and the server waits no longer: the job goes on later.
    let (address, server) = serve("one");
    assert_eq!(put(&of("one", &address), b"first"), b"first");
    assert!(server.join().unwrap().is_err());
    let error = keeping("two", &folder).unwrap_err();
    assert!(matches!(error, PsError::User(_)), "{error}");
    let shown = error.to_string();
    assert!(shown.contains("job `one`, which has not ended"), "{shown}");
    let (address, server) = serve("one");
    let client = of("one", &address);
    assert_eq!(put(&client, b"second"), b"first");
    client.leave();
    drop(client);
    server.join().unwrap().unwrap();
    // Now it has ended.
    for job in ["two", "two"] {
        let (address, server) = serve(job);
        let client = of(job, &address);
        assert_eq!(put(&client, b"third"), b"third");
        // What failed would fail again.
        client.fail("the loss is not a number");
        drop(client);
        assert!(matches!(
            server.join().unwrap(),
            Err(PsError::Failed { .. })
        ));
    }
    // Nobody else knows what was scheduled.
    for job in ["three", "four"] {
        let (address, server) = serve(job);
        let client = of(job, &address);
        assert_eq!(put(&client, b"fourth"), b"fourth");
        client.ask(&Request::OpenTasks, &[]).unwrap();
        drop(client);
        assert!(server.join().unwrap().is_err());
    }
    std::fs::remove_dir(&folder).unwrap();
}

/// The first worker enters a training phase of ten items.
fn enter(client: &Client, phase: &str) {
    let enter = Request::Enter {
        phase: phase.into(),
        kind: PhaseKind::Train,
        start: 0,
        end: 10,
    };
    client.ask(&enter, &[]).unwrap();
}

fn granted(client: &Client, phase: &str) -> Grant {
    let next = Request::Next {
        phase: phase.into(),
        within_ms: 0,
        has: Vec::new(),
    };
    match client.ask(&next, &[]).unwrap().0 {
        Reply::Grant(grant) => *grant,
        other => panic!("{other:?}"),
    }
}

/// Does the next piece of work of a phase.
fn work(client: &Client, phase: &str) {
    let Grant::Work(work) = granted(client, phase) else {
        panic!("`{phase}` is over");
    };
    let done = Request::Done {
        phase: phase.into(),
        work: work.id,
        weight: 1.0,
        rows: 1.0,
        staleness: 0,
    };
    client.ask(&done, &[]).unwrap();
}

/// What would be refused again is told from what a restart may mend.
#[test]
fn a_worker_hears_whether_it_is_to_change_what_it_asks() {
    let (address, running) = serving();
    let client = join(&address, None).unwrap();
    enter(&client, "phase");
    let other = Request::Enter {
        phase: "phase".into(),
        kind: PhaseKind::Train,
        start: 0,
        end: 11,
    };
    let error = client.ask(&other, &[]).unwrap_err();
    assert!(matches!(error, PsError::User(_)), "{error}");
    assert!(error.to_string().contains("others have 0..10"), "{error}");
    let (phase, item) = ("another".into(), 1);
    let unknown = client.ask(&Request::NoMore { phase, item }, &[]);
    assert!(matches!(unknown, Err(PsError::Lost(_))), "{unknown:?}");
    client.leave();
    drop(client);
    running.join().unwrap().unwrap();
}

/// A job that was asked to stop, was killed when it had, and is started again: however many connections its new first worker opens, in
/// whichever process of the server, the others go on with it.
#[test]
fn workers_wait_until_a_new_first_worker_is_where_the_job_had_stopped() {
    let name = format!("phalanx-ps-started-again-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let serve = || keeping("job", &folder).unwrap();
    let join = |incarnation, worker, address: &str| {
        let servers = [address.to_owned()];
        join_process(incarnation, "job", (worker, 2), &servers, None).unwrap()
    };
    let (address, server) = serve();
    let chief = join(1, 0, &address);
    enter(&chief, "first");
    (0..10).for_each(|_| work(&chief, "first"));
    enter(&chief, "second");
    work(&chief, "second");
    chief.ask(&Request::Stop, &[]).unwrap();
    let over = granted(&chief, "second");
    assert!(matches!(over, Grant::Over(phase) if phase.stopped));
    drop(chief);
    assert!(server.join().unwrap().is_err());
    // The process that goes on, the same at another server's, and the next one.
    for incarnation in [2, 2, 3] {
        let (address, server) = serve();
        let workers = [join(incarnation, 0, &address), join(1, 1, &address)];
        for _ in 0..2 {
            let grant = granted(&workers[1], "second");
            assert!(matches!(grant, Grant::Wait { .. }), "{grant:?}");
            enter(&workers[0], "first");
        }
        drop(workers);
        assert!(server.join().unwrap().is_err());
    }
    let (address, server) = serve();
    let workers = [join(3, 0, &address), join(1, 1, &address)];
    enter(&workers[0], "second");
    (0..9).for_each(|_| work(&workers[1], "second"));
    workers.iter().for_each(Client::leave);
    drop(workers);
    server.join().unwrap().unwrap();
    std::fs::remove_dir(&folder).unwrap();
}

/// A server without a secret, and where it is.
fn serving() -> (String, JoinHandle<Result<(), PsError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::new(ServerOptions::default(), Box::new(Nothing)).unwrap();
    (address, thread::spawn(move || server.run(&listener)))
}

#[test]
fn a_stranger_who_speaks_slowly_is_left() {
    let (address, running) = serving();
    let mut stranger = TcpStream::connect(&address).unwrap();
    stranger
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let start = Instant::now();
    let is_left = |stranger: &mut TcpStream| match stranger.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    while !is_left(&mut stranger) {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "it is still heard"
        );
        let _ = stranger.write_all(b"P");
    }
    let client = join(&address, None).unwrap();
    client.leave();
    drop(client);
    running.join().unwrap().unwrap();
}

#[test]
fn strangers_who_take_all_descriptors_end_no_server() {
    let own = std::env::current_exe().unwrap();
    let script = r#"ulimit -n 64; exec "$0" --exact few_descriptors --ignored"#;
    let run = Command::new("sh")
        .args(["-c", script])
        .arg(own)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "in a process with few descriptors, which the test above starts"]
fn few_descriptors() {
    let (address, running) = serving();
    let connect = |_| TcpStream::connect(&address).ok();
    let strangers: Vec<TcpStream> = (0..100).map_while(connect).collect();
    assert!(strangers.len() < 100, "there were enough for all");
    thread::sleep(Duration::from_millis(200));
    drop(strangers);
    let client = join(&address, None).unwrap();
    client.leave();
    drop(client);
    running.join().unwrap().unwrap();
}
