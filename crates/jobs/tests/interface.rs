//! The REST interface: Google's own client, who may ask, and a daemon that is killed.

#![cfg(target_os = "linux")]

mod service;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_proof::{Secret, hex};
use rustix::process::{Pid, Signal, kill_process};
use service::{PATIENCE, Service, ask, daemon};

#[test]
fn googles_client_works_unchanged() {
    let python = std::env::var("PHALANX_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python)
        .args(["-c", "import googleapiclient, google.oauth2"])
        .output();
    if !has.is_ok_and(|output| output.status.success()) {
        phalanx_testkit::skip(
            "install google-api-python-client and google-auth, or name a Python with them in PHALANX_TEST_PYTHON",
        );
        return;
    }
    let service = Service::new("google");
    let (address, token) = daemon(&service);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/google_client.py");
    let output = Command::new(python)
        .arg(script)
        .args([format!("http://{address}"), token])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO",
];

/// The paths that the router has, as its source says.
fn routes() -> Vec<String> {
    let source = include_str!("../src/daemon/routes.rs");
    let routes = source
        .split(".route(")
        .skip(1)
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    let mut routes: Vec<String> = routes
        .map(|route| route.replace("{project}", "local").replace("{job}", "demo"))
        .collect();
    assert!(routes.len() >= 5, "{routes:?}");
    routes.extend(
        [
            "/",
            "/v1/projects/local/jobs/demo:cancel",
            "/nothing",
            "/../etc/passwd",
            "//",
            "/assets/x.js",
        ]
        .map(str::to_owned),
    );
    routes
}

#[test]
fn nothing_is_answered_without_the_token_or_to_another_page() {
    let service = Service::new("auth");
    service.script("demo", &[], "exec sleep 1000");
    service.state("demo", "RUNNING");
    let (address, token) = daemon(&service);
    let mode = fs::metadata(service.root().join("token"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(address.starts_with("127.0.0.1:"));
    let (host, right) = (("Host", address.as_str()), format!("Bearer {token}"));
    let right = ("Authorization", right.as_str());
    let shorter = format!("Bearer {}", &token[1..]);
    let (_, port) = address.rsplit_once(':').unwrap();
    let cookie = format!("phalanx_{port}={token}; phalanx_token={token}");
    let query = format!("?token={token}");
    for path in routes() {
        for method in METHODS {
            for headers in [
                vec![host],
                vec![host, ("Authorization", "Bearer ")],
                vec![host, ("Authorization", shorter.as_str())],
                vec![host, ("Authorization", token.as_str())],
                vec![host, ("Cookie", cookie.as_str())],
                vec![("Host", "evil.example"), right],
                vec![("Host", "127.0.0.1"), right],
                vec![("Host", "127.0.0.1.evil.example:1"), right],
                vec![right],
                vec![host, right, ("Origin", "http://evil.example")],
                vec![host, right, ("Origin", "null")],
            ] {
                let (status, answer) = ask(&address, method, &path, &headers);
                let refused = [401, 403, 405].contains(&status);
                assert!(refused, "{method} {path} {headers:?}: {answer}");
                assert!(!answer.contains(&token), "{answer}");
            }
        }
        if path != "/" {
            let (status, _) = ask(&address, "GET", &format!("{path}{query}"), &[host]);
            assert!(status == 401, "{path}: {status}");
        }
    }
    assert_eq!(ask(&address, "GET", "/healthz", &[host]).0, 200);
    assert_eq!(
        ask(&address, "GET", "/healthz", &[("Host", "evil.example")]).0,
        403
    );
    let own = format!("http://{address}");
    let (status, answer) = ask(
        &address,
        "GET",
        "/v1/projects/local/jobs",
        &[host, right, ("Origin", &own)],
    );
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("default-src 'none'"), "{answer}");
    assert_eq!(service.job("demo")["state"], "RUNNING");
}

#[test]
fn a_browser_keeps_a_cookie_of_each_daemon_and_no_token() {
    let services = ["one", "other"].map(Service::new);
    let daemons = services.each_ref().map(daemon);
    let cookies = daemons.each_ref().map(|(address, token)| {
        let path = format!("/?token={token}");
        let (status, answer) = ask(address, "GET", &path, &[("Host", address)]);
        assert!(status == 303 && !answer.contains(token), "{answer}");
        let set = answer
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        let cookie = set.unwrap().split(';').next().unwrap();
        cookie
            .split_once('=')
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .unwrap()
    });
    let [(one, value), (other, others)] = &cookies;
    assert!(one != other && value != others, "{cookies:?}");
    // A browser sends both to either.
    let both = format!("{one}={value}; {other}={others}");
    let exchanged = format!("{one}={others}; {other}={value}");
    for (address, _) in &daemons {
        for (cookies, expected) in [(&both, 200), (&exchanged, 401)] {
            let headers = [("Host", address.as_str()), ("Cookie", cookies)];
            assert_eq!(ask(address, "GET", "/", &headers).0, expected);
        }
    }
}

/// Listens in the place of a daemon that was killed.
fn in_its_place(service: &Service) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let place = serde_json::json!({"address": address, "pid": 1}).to_string();
    fs::write(service.root().join("daemon.json"), place).unwrap();
    listener
}

#[test]
fn who_has_taken_the_daemons_port_and_says_nothing_holds_nobody_up() {
    let service = Service::new("silent");
    service.ok(&["list"]);
    let pid = Pid::from_raw(service.daemon().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    // Connections are made, and nobody reads them.
    let _silent = in_its_place(&service);
    let began = Instant::now();
    service.ok(&["list"]);
    let took = began.elapsed();
    // Less than who reads of it waits for an answer.
    assert!(took < Duration::from_secs(28), "{took:?}");
}

/// Takes the place of a daemon that was killed; gives what it is asked.
fn another_program(service: &Service) -> Arc<Mutex<String>> {
    let listener = in_its_place(service);
    let asked = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&asked);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).unwrap_or(0);
            heard
                .lock()
                .unwrap()
                .push_str(&String::from_utf8_lossy(&bytes[..count]));
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nphalanx-proof: 00\r\n\r\nok\n",
            );
        }
    });
    asked
}

#[test]
fn who_has_taken_the_daemons_port_does_not_get_the_token() {
    let service = Service::new("port");
    service.ok(&["list"]);
    let pid = Pid::from_raw(service.daemon().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let asked = another_program(&service);
    // It is no daemon: another one is started.
    service.script("demo", &[], "true");
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
    let asked = asked.lock().unwrap();
    assert!(asked.contains("GET /healthz"), "{asked}");
    assert!(!asked.to_lowercase().contains("bearer"), "{asked}");
}

/// Proves once that it is the daemon, as one does that ends before the next request.
fn daemon_that_ends(service: &Service) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let place = serde_json::json!({"address": address, "pid": 0}).to_string();
    fs::write(service.root().join("daemon.json"), place).unwrap();
    let token = fs::read_to_string(service.root().join("token")).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        let asked = String::from_utf8_lossy(&bytes[..count]);
        let challenge = asked
            .lines()
            .find_map(|line| line.strip_prefix("phalanx-challenge: "));
        let parts = [address.as_bytes(), challenge.unwrap().as_bytes()];
        let proof = hex(&Secret::new(token.as_str()).prove("phalanx jobs 1", &parts));
        let answer =
            format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nphalanx-proof: {proof}\r\n\r\nok\n");
        stream.write_all(answer.as_bytes()).unwrap();
    });
}

#[test]
fn a_daemon_that_ends_before_it_is_asked_gives_way_to_the_next() {
    let service = Service::new("ended");
    service.script("demo", &[], "sleep 1000");
    service.state("demo", "RUNNING");
    for command in [
        &["submit", "training", "other", "--", "true"] as &[&str],
        &["list"],
        &["logs", "other", "-f"],
        &["update", "demo", "--update-labels", "a=b"],
        &["cancel", "demo"],
    ] {
        if let Some(pid) = service.daemon().and_then(Pid::from_raw) {
            kill_process(pid, Signal::KILL).unwrap();
        }
        daemon_that_ends(&service);
        service.ok(command);
    }
    assert_eq!(service.end("other")["state"], "SUCCEEDED");
    let job = service.end("demo");
    assert!(
        job["state"] == "CANCELLED" && job["labels"]["a"] == "b",
        "{job:#}"
    );
}

#[test]
fn a_folder_that_others_write_to_is_refused_and_ours_is_closed() {
    let service = Service::new("folder");
    let root = service.root();
    let mode = |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o777;
    let set = |path: &str, mode| {
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    service.script("demo", &[], "true");
    service.end("demo");
    for (path, expected) in [
        ("", 0o700),
        ("token", 0o600),
        ("daemon.log", 0o600),
        ("jobs/demo/share.json", 0o600),
    ] {
        assert_eq!(mode(path), expected, "{path}");
    }
    for open in [0o777, 0o770, 0o1777] {
        set("", open);
        let (code, error) = service.fails(&["list"]);
        assert!(code == 3 && error.contains("chmod go-w"), "{error}");
    }
    set("", 0o755);
    // A token that others may have read is replaced by the next daemon.
    let token = fs::read(root.join("token")).unwrap();
    set("token", 0o644);
    let pid = Pid::from_raw(service.daemon().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    service.ok(&["list"]);
    assert_ne!(fs::read(root.join("token")).unwrap(), token);
    assert_eq!(mode("token"), 0o600);
    let mut command = service.command();
    for name in ["PHALANX_JOBS_DIR", "XDG_STATE_HOME", "HOME"] {
        command.env_remove(name);
    }
    let output = command.arg("list").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && error.contains("name it with --root"),
        "{error}"
    );
}

#[test]
fn other_machines_are_served_by_tls_only() {
    let service = Service::new("plain");
    let (code, error) = service.fails(&["serve", "--listen", "0.0.0.0:0"]);
    assert!(
        code == 2 && error.contains("add --tls-certificate"),
        "{error}"
    );
}

#[test]
fn the_token_and_secrets_are_in_no_command_line_log_or_plan() {
    let service = Service::new("canary");
    let canary = "CANARYc0ffee";
    fs::write(service.folder.join("secret.txt"), format!("{canary}\n")).unwrap();
    let config = "phalanx:\n  secrets: {API_KEY: secret.txt}\n";
    fs::write(service.folder.join("config.yaml"), config).unwrap();
    let script = "test \"$API_KEY\" = CANARY\"c0ffee\" && echo right; sleep 1000";
    let plan = [
        "submit",
        "training",
        "demo",
        "--config",
        "config.yaml",
        "--dry-run",
        "--",
        "sh",
        "-c",
        script,
    ];
    let shown = service.ok(&plan);
    assert!(
        !shown.contains(canary) && shown.contains("config.yaml:2"),
        "{shown}"
    );
    service.script("demo", &["--config", "config.yaml"], script);
    service.until("demo", |_| service.ok(&["logs", "demo"]).contains("right"));
    let (_, token) = daemon(&service);
    let described = service.ok(&["describe", "demo"]);
    for hidden in [canary, &token] {
        assert!(!described.contains(hidden));
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            assert!(
                !String::from_utf8_lossy(&words).contains(hidden),
                "{:?}",
                entry.path()
            );
        }
        let mut folders = vec![service.root()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.file_name().unwrap() != "token" {
                    let text = fs::read(&path).unwrap();
                    assert!(!String::from_utf8_lossy(&text).contains(hidden), "{path:?}");
                }
            }
        }
    }
}

/// How often the daemon is killed: PHALANX_TEST_KILLS, or a few times.
fn kills() -> u32 {
    let given = std::env::var("PHALANX_TEST_KILLS").ok();
    given.and_then(|kills| kills.parse().ok()).unwrap_or(8)
}

#[test]
fn a_daemon_killed_at_any_moment_loses_no_job() {
    let service = Service::with_cpus("kill", 3);
    // Each job adds a line when it starts and one when it ends: a job that is run twice or lost shows.
    let script = "echo start >> $CLOUD_ML_JOB_ID; sleep 0.$((RANK + 1)); echo end >> $CLOUD_ML_JOB_ID; [ $CLOUD_ML_JOB_ID != bad_$1 ]";
    let script = script.replace("$1", "${CLOUD_ML_JOB_ID#*_}");
    let mut submitted = Vec::new();
    let mut seed = 12345_u64;
    for kill in 0..kills() {
        for kind in ["good", "bad"] {
            let name = format!("{kind}_{kill}");
            // A command that the kill met in the middle may have submitted the job, or not.
            let output = service.run(&["submit", "training", &name, "--", "sh", "-c", &script]);
            submitted.push((name, output.status.success()));
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let wait = Duration::from_micros(seed >> 33 & 0x3ffff);
            thread::sleep(wait / if kind == "good" { 8 } else { 2 });
            if let Some(pid) = service.daemon().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
    let until = Instant::now() + PATIENCE;
    for (name, known) in &submitted {
        let there = service.root().join("jobs").join(name).exists();
        assert!(there || !known, "{name} was submitted and is lost");
        if !there {
            continue;
        }
        let job = service.end(name);
        let expected = if name.starts_with("good") {
            "SUCCEEDED"
        } else {
            "FAILED"
        };
        assert_eq!(job["state"], expected, "{job:#}");
        let lines = fs::read_to_string(service.folder.join(name)).unwrap();
        assert_eq!(lines, "start\nend\n", "{name}");
        assert_eq!(job["phalanx"]["attempt"], 1);
        assert!(Instant::now() < until + PATIENCE);
    }
}

#[test]
fn a_job_whose_supervisor_is_killed_starts_again_without_orphans() {
    let service = Service::new("supervisor");
    service.script(
        "demo",
        &["--workers", "2"],
        "echo $$ >> pids; exec sleep 1000",
    );
    let pids = || -> Vec<String> {
        let text = fs::read_to_string(service.folder.join("pids")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let sleeps = |pid: &String| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains("sleep")
    };
    service.until("demo", |job| job["state"] == "RUNNING" && pids().len() == 2);
    let supervisor = service
        .processes()
        .into_iter()
        .find(|line| line.contains("supervise"))
        .unwrap();
    let pid = supervisor
        .split(['/', ' '])
        .nth(2)
        .unwrap()
        .parse()
        .unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    // While one program takes the place of another a process has no command line.
    let job = service.until("demo", |job| {
        let pids = pids();
        job["phalanx"]["attempt"] == 2 && pids.len() == 4 && pids[2..].iter().all(sleeps)
    });
    assert_eq!(job["state"], "RUNNING");
    let pids = pids();
    assert_eq!(
        pids.iter().map(sleeps).collect::<Vec<_>>(),
        [false, false, true, true],
        "{pids:?}"
    );
}

#[test]
fn a_reader_that_pauses_and_a_half_request_do_not_keep_the_next_daemon_out() {
    let service = Service::new("half");
    service.script("demo", &[], "seq 200000");
    service.end("demo");
    let (address, token) = daemon(&service);
    let before = service.daemon();
    let mut half = TcpStream::connect(&address).unwrap();
    half.write_all(b"GET /healthz HTTP/1.1\r\nHost: x").unwrap();
    let mut paused = TcpStream::connect(&address).unwrap();
    let request = format!(
        "GET /api/jobs/demo/logs HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    paused.write_all(request.as_bytes()).unwrap();
    paused.read_exact(&mut [0; 64]).unwrap();
    let bearer = format!("Bearer {token}");
    let headers = [("Host", address.as_str()), ("Authorization", &bearer)];
    assert_eq!(ask(&address, "POST", "/api/stop", &headers).0, 200);
    let begun = Instant::now();
    service.ok(&["list"]);
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_ne!(service.daemon(), before);
    drop((half, paused));
}

#[test]
fn who_follows_a_job_goes_on_by_the_next_daemon() {
    let service = Service::new("follow");
    let script = "echo line 1; echo line 2; until [ -e go ]; do sleep 0.05; done; echo line 3";
    service.script("demo", &[], script);
    let mut command = service.command();
    command.args(["logs", "-f", "demo"]).stdout(Stdio::piped());
    let mut following = command.spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    while !next().contains("line 2") {}
    let daemon = Pid::from_raw(service.daemon().unwrap()).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    fs::write(service.folder.join("go"), "").unwrap();
    // Each line is shown once.
    assert!(next().contains("line 3"));
    assert!(lines.next().is_none());
    assert!(following.wait().unwrap().success());
    assert_eq!(service.end("demo")["state"], "SUCCEEDED");
}
