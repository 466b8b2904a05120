//! The commands' side of the API: finds the daemon, or starts it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_cluster::launch::TRY_AGAIN;
use phalanx_launch::executor::Gpus;
use serde_json::Value as Json;

use crate::daemon::{TOKEN, WHERE};
use crate::failure::{FAILED, Failure, NOT_READY};
use crate::proof::{CHALLENGE, PROOF, proof};
use crate::trust;

/// What a daemon that a command starts is given as its `--gpus`.
pub(crate) const GPUS: &str = "PHALANX_JOBS_GPUS";
/// How long a daemon may take to answer for the first time.
const START: Duration = Duration::from_secs(20);
/// How long it has before another is started, which ends at once if the first one serves.
const START_AGAIN: Duration = Duration::from_secs(3);
/// How long a connection to it may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How long it may take to say that it is the daemon, as it is looked for: another program may have its port, and say nothing.
const SAY: Duration = Duration::from_secs(3);
/// How long it may take to answer later.
const ANSWER: Duration = Duration::from_secs(30);

/// A daemon that answers.
pub(crate) struct Client {
    agent: ureq::Agent,
    /// `http` or `https`.
    scheme: &'static str,
    /// Such as `127.0.0.1:8080`.
    host: String,
    token: String,
    project: String,
    /// What it was found by.
    root: PathBuf,
    ca: Option<PathBuf>,
}

/// One event of a stream.
pub(crate) struct Event<'a> {
    pub(crate) name: &'a str,
    /// With this the stream goes on after the event.
    pub(crate) id: &'a str,
    pub(crate) data: Json,
}

/// The folder of all jobs.
///
/// # Errors
/// Nothing says where it is; its path is not in UTF-8, and descriptions of jobs have it; or others may write to it.
pub(crate) fn root(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let root = found_root(given).ok_or_else(|| {
        Failure::usage(
            "neither HOME nor XDG_STATE_HOME says where the folder of all jobs is; name it with --root or PHALANX_JOBS_DIR",
        )
    })?;
    if root.to_str().is_none() {
        return Err(Failure::usage(format!(
            "the path of the folder of all jobs, {:?}, is not in UTF-8; name another with --root or PHALANX_JOBS_DIR",
            root.to_string_lossy()
        )));
    }
    check_owner(&root)?;
    Ok(root)
}

/// Whether a folder that is there is the user's alone to write to: who puts a token into it runs jobs as this user.
fn check_owner(root: &Path) -> Result<(), Failure> {
    let Ok(found) = fs::metadata(root) else {
        return Ok(());
    };
    let (user, path) = (rustix::process::geteuid().as_raw(), root.display());
    if found.uid() != user {
        return Err(Failure::not_ready(format!(
            "the folder of all jobs, {path}, is of user {}, and this is user {user}; name another with --root or PHALANX_JOBS_DIR",
            found.uid()
        )));
    }
    if found.mode() & 0o022 != 0 {
        return Err(Failure::not_ready(format!(
            "others may write to the folder of all jobs, {path}; keep them out by `chmod go-w {path}`, or name another with --root or PHALANX_JOBS_DIR"
        )));
    }
    Ok(())
}

fn found_root(given: Option<&Path>) -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(root) = given
        .map(Path::to_owned)
        .or_else(|| variable("PHALANX_JOBS_DIR"))
    {
        return Some(std::path::absolute(&root).unwrap_or(root));
    }
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    Some(state?.join("phalanx"))
}

impl Client {
    /// The daemon of a folder, started if none answers. `ca` is the file of whom to trust where it serves by TLS.
    pub(crate) fn connect(root: &Path, project: &str, ca: Option<&Path>) -> Result<Self, Failure> {
        let mut until = None;
        let mut started: Option<Instant> = None;
        loop {
            if let Some(client) = Self::find(root, project, ca)? {
                return Ok(client);
            }
            // Once more where the one before was still about to end.
            if started.is_none_or(|at| at.elapsed() >= START_AGAIN) {
                start(root)?;
                started = Some(Instant::now());
            }
            if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + START) {
                let log = root.join("daemon.log");
                return Err(Failure::not_ready(format!(
                    "the daemon of {} does not answer within {} s; {} says why",
                    root.display(),
                    START.as_secs(),
                    log.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The daemon that answers, if one does.
    ///
    /// # Errors
    /// One answers that is not trusted.
    fn find(root: &Path, project: &str, ca: Option<&Path>) -> Result<Option<Self>, Failure> {
        let place = fs::read(root.join(WHERE)).ok();
        let place = place.and_then(|text| serde_json::from_slice::<Json>(&text).ok());
        let token = fs::read_to_string(root.join(TOKEN)).ok();
        let (Some(place), Some(token)) = (place, token) else {
            return Ok(None);
        };
        let Some(address) = place["address"].as_str() else {
            return Ok(None);
        };
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .proxy(None);
        let certificate = place["certificate"].as_str().map(Path::new);
        if let Some(certificate) = certificate {
            config = match trust::only(ca.unwrap_or(certificate)) {
                Ok(trusted) => config.tls_config(trusted),
                // What a daemon was started with that is there no more is no matter once it has gone, too.
                Err(_) if ca.is_none() && !answers(address) => return Ok(None),
                Err(failure) => return Err(failure),
            };
        }
        let scheme = if certificate.is_some() {
            "https"
        } else {
            "http"
        };
        let client = Self {
            agent: config.build().into(),
            scheme,
            host: address.to_owned(),
            token,
            project: project.to_owned(),
            root: root.to_owned(),
            ca: ca.map(Path::to_owned),
        };
        match client.is_daemon(SAY) {
            Ok(is_daemon) => Ok(is_daemon.then_some(client)),
            Err(error) => match trust::refusal(&error) {
                Some(why) => Err(Failure::not_ready(why)),
                None => Ok(None),
            },
        }
    }

    /// Whether who answers within a time has the token, without telling it.
    fn is_daemon(&self, within: Duration) -> Result<bool, ureq::Error> {
        let challenge = phalanx_proof::draw_hex::<16>()?;
        let request = self.agent.get(self.url("/healthz"));
        let request = request
            .config()
            .timeout_global(Some(within))
            .build()
            .header("Host", &self.host)
            .header(CHALLENGE, &challenge);
        let mut answer = request.call()?;
        let given = answer.headers().get(PROOF);
        let given = given.and_then(|given| Some(given.to_str().ok()?.to_owned()));
        // The connection is used for the next request once all of the answer is read.
        let _ = answer.body_mut().with_config().limit(64).read_to_string();
        Ok(given.is_some_and(|given| given == proof(&self.token, &self.host, &challenge)))
    }

    /// Asks with the token as a header, for the daemon and nobody else. Where it has gone since it was found, and perhaps another
    /// program has its port, nothing was asked of it, and the next daemon is asked instead.
    fn authorized<T>(
        &self,
        ask: impl FnOnce(&Self, &str) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Ok(authorization) = self.authorization() {
            return ask(self, &authorization);
        }
        let next = self.again()?;
        let authorization = next.authorization()?;
        ask(&next, &authorization)
    }

    /// The token as a header.
    ///
    /// # Errors
    /// Who answers is not the daemon, or nobody does.
    fn authorization(&self) -> Result<String, Failure> {
        if self.is_daemon(ANSWER).map_err(|error| lost(&error))? {
            return Ok(format!("Bearer {}", self.token));
        }
        Err(Failure::not_ready(format!(
            "the daemon has gone, and another program answers at {}; try again",
            self.host
        )))
    }

    /// The daemon that serves the same jobs by now, started if none does.
    pub(crate) fn again(&self) -> Result<Self, Failure> {
        Self::connect(&self.root, &self.project, self.ca.as_deref())
    }

    fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.host)
    }

    fn jobs(&self) -> String {
        format!("/v1/projects/{}/jobs", encode(&self.project))
    }

    /// The address with which a browser may use the daemon.
    pub(crate) fn dashboard(&self) -> String {
        self.url(&format!("/?token={}", self.token))
    }

    /// The address of a job in the dashboard, without the token.
    pub(crate) fn page(&self, job: &str) -> String {
        self.url(&format!("/#{job}"))
    }

    /// What a GET answers, by the next daemon where this one has gone.
    pub(crate) fn get(&self, path: &str) -> Result<Json, Failure> {
        match self.ask(path) {
            Err(failure) if [NOT_READY, TRY_AGAIN].contains(&failure.exit) => {
                self.again()?.ask(path)
            }
            answer => answer,
        }
    }

    fn ask(&self, path: &str) -> Result<Json, Failure> {
        self.authorized(|client, authorization| {
            let request = client.agent.get(client.url(path));
            answer(request.header("Authorization", authorization).call())
        })
    }

    fn send(&self, method: &str, path: &str, body: &Json) -> Result<Json, Failure> {
        self.authorized(|client, authorization| {
            let url = client.url(path);
            let request = match method {
                "PATCH" => client.agent.patch(url),
                _ => client.agent.post(url),
            };
            let request = request
                .header("Authorization", authorization)
                .header("Content-Type", "application/json");
            answer(request.send(body.to_string()))
        })
    }

    /// Submits a job. A daemon that is about to end takes none, and the next one does.
    pub(crate) fn create(&self, job: &Json) -> Result<Json, Failure> {
        match self.send("POST", &self.jobs(), job) {
            Err(failure) if failure.exit == TRY_AGAIN => {
                self.again()?.send("POST", &self.jobs(), job)
            }
            answer => answer,
        }
    }

    /// The path of a job.
    fn of_job(&self, job: &str) -> Result<String, Failure> {
        if job.is_empty() {
            return Err(Failure::usage(
                "the name of the job is empty; `phalanx jobs list` shows all names",
            ));
        }
        Ok(format!("{}/{}", self.jobs(), encode(job)))
    }

    /// A job.
    pub(crate) fn job(&self, job: &str) -> Result<Json, Failure> {
        self.get(&self.of_job(job)?)
    }

    /// Has a job end.
    pub(crate) fn cancel(&self, job: &str) -> Result<Json, Failure> {
        self.send(
            "POST",
            &format!("{}:cancel", self.of_job(job)?),
            &Json::Null,
        )
    }

    /// Replaces the labels of a job, unless it has changed since its etag was read.
    pub(crate) fn patch(&self, job: &str, body: &Json) -> Result<Json, Failure> {
        let path = format!("{}?updateMask=labels", self.of_job(job)?);
        self.send("PATCH", &path, body)
    }

    /// All jobs that pass a filter, the newest first.
    pub(crate) fn list(
        &self,
        filter: Option<&str>,
        page: usize,
        limit: usize,
    ) -> Result<Vec<Json>, Failure> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let filter = filter.map(|filter| format!("&filter={}", encode(filter)));
            let path = format!(
                "{}?pageSize={page}{}{token}",
                self.jobs(),
                filter.unwrap_or_default()
            );
            let mut answer = self.get(&path)?;
            if let Some(jobs) = answer["jobs"].as_array_mut() {
                all.append(jobs);
            }
            match answer["nextPageToken"].as_str() {
                Some(next) if all.len() < limit => token = format!("&pageToken={}", encode(next)),
                _ => break,
            }
        }
        all.truncate(limit);
        Ok(all)
    }

    /// Gives each event of a stream that comes after the one with an id, until one says that it is enough. Returns whether one did: the
    /// daemon may end before.
    pub(crate) fn events(
        &self,
        path: &str,
        after: &str,
        mut take: impl FnMut(&Event<'_>) -> bool,
    ) -> Result<bool, Failure> {
        let response = self.authorized(|client, authorization| {
            let mut request = client.agent.get(client.url(path));
            if !after.is_empty() {
                request = request.header("Last-Event-ID", after);
            }
            let response = request.header("Authorization", authorization).call();
            response.map_err(|error| lost(&error))
        })?;
        if response.status() != 200 {
            return answer(Ok(response)).map(|_| true);
        }
        let (mut name, mut id) = (String::new(), String::new());
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let Ok(line) = line else { break };
            if let Some(event) = line.strip_prefix("event: ") {
                event.clone_into(&mut name);
            } else if let Some(text) = line.strip_prefix("id: ") {
                text.clone_into(&mut id);
            } else if let Some(data) = line.strip_prefix("data: ") {
                let data = serde_json::from_str(data).unwrap_or(Json::Null);
                let (name, id) = (&name, &id);
                if !take(&Event { name, id, data }) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Whether anybody takes connections at an address.
fn answers(address: &str) -> bool {
    let found = address.to_socket_addrs().into_iter().flatten();
    let connect = |address| TcpStream::connect_timeout(&address, CONNECT);
    found.map(connect).any(|made| made.is_ok())
}

/// A text as part of an address.
pub(crate) fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                (byte as char).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

fn lost(error: &ureq::Error) -> Failure {
    Failure::not_ready(format!("the daemon does not answer: {error}; try again"))
}

fn answer(
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<Json, Failure> {
    let mut response = response.map_err(|error| lost(&error))?;
    let text = response
        .body_mut()
        .with_config()
        .limit(1 << 30)
        .read_to_string();
    let text = text.map_err(|error| lost(&error))?;
    let json: Json = serde_json::from_str(&text).unwrap_or(Json::Null);
    if response.status().is_success() {
        return Ok(json);
    }
    let message = json["error"]["message"].as_str();
    let message = message.map_or_else(
        || format!("the daemon answers {}", response.status()),
        str::to_owned,
    );
    Err(match response.status().as_u16() {
        409 if json["error"]["status"] == "ABORTED" => Failure::new(TRY_AGAIN, message),
        400 | 404 | 409 => Failure::usage(message),
        401 | 403 => Failure::not_ready(message),
        503 => Failure::new(TRY_AGAIN, message),
        _ => Failure::new(FAILED, message),
    })
}

/// Starts a daemon that outlives this command.
fn start(root: &Path) -> Result<(), Failure> {
    let refused = |what: &str, error: std::io::Error| {
        Failure::not_ready(format!(
            "cannot {what} {}: {error}; choose another folder with --root",
            root.display()
        ))
    };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(root);
    made.map_err(|error| refused("make", error))?;
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(root.join("daemon.log"));
    let log = log.map_err(|error| refused("write into", error))?;
    let other = log
        .try_clone()
        .map_err(|error| refused("write into", error))?;
    let own = std::env::current_exe().map_err(Failure::not_ready)?;
    let mut command = Command::new(own);
    command.arg("--root").arg(root).arg("serve");
    let variable = |name| std::env::var(name).ok();
    // Refused here, since nobody reads what a daemon says that does not start.
    if let Some(why) = variable(GPUS).and_then(|gpus| Gpus::listed(&gpus).err()) {
        return Err(Failure::usage(format!("{GPUS}: {why}")));
    }
    for (name, option) in [("PHALANX_JOBS_CPUS", "--cpus"), (GPUS, "--gpus")] {
        command.args(variable(name).map(|value| format!("{option}={value}")));
    }
    // In the background by a shell's own rules: its parent is gone before anybody waits for it.
    let child = command
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(other)
        .current_dir("/")
        .env_remove("PHALANX_JOB_ID")
        .spawn();
    child
        .map(drop)
        .map_err(|error| refused("start the daemon of", error))
}
