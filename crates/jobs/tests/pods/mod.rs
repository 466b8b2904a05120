//! A cluster of Kubernetes for one test: its API server answers what the executor asks, and each pod is a process of this machine.
//!
//! Names of pods become ports of the loopback interface, and mounted Secrets and empty volumes folders; nothing else is changed.
#![allow(dead_code, reason = "each test binary uses its own part")]

mod log;
mod policy;
mod running;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as Parts, Query, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use base64::Engine as _;
use policy::Next as After;
use running::{Running, spawn};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value as Json, json};

/// The token that every request must have.
const TOKEN: &str = "token-of-the-test";

/// The cluster; its end is that of all pods.
pub(crate) struct Cluster {
    address: String,
    state: Arc<Mutex<Objects>>,
    _runtime: tokio::runtime::Runtime,
}

struct Objects {
    folder: PathBuf,
    /// By kind and name.
    all: BTreeMap<(String, String), Json>,
    pods: BTreeMap<String, Running>,
    /// All objects that were ever made, in order.
    made: Vec<Json>,
    ports: BTreeMap<String, u16>,
    number: usize,
    /// How many pods of each Job have failed and count.
    failures: BTreeMap<String, u64>,
    /// How many of the next Jobs fail without a pod.
    without: usize,
    /// How many of the next objects are not made, since the cluster is away.
    unmade: usize,
    /// How many of the next lists are refused.
    refusals: usize,
    /// Whether each pod's log ends after its first line when it is asked for the first time.
    breaks_logs: bool,
    /// Whether logs are refused.
    refuses_logs: bool,
}

type Shared = Arc<Mutex<Objects>>;

fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

impl Cluster {
    pub(crate) fn new(folder: &Path) -> Self {
        let folder = folder.join("cluster");
        fs::create_dir_all(&folder).unwrap();
        let state = Arc::new(Mutex::new(Objects {
            folder,
            all: BTreeMap::new(),
            pods: BTreeMap::new(),
            made: Vec::new(),
            ports: BTreeMap::new(),
            number: 0,
            failures: BTreeMap::new(),
            without: 0,
            unmade: 0,
            refusals: 0,
            breaks_logs: false,
            refuses_logs: false,
        }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new()
            .route(
                "/{group}/{version}/namespaces/{namespace}/{kind}",
                any(of_core),
            )
            .route(
                "/apis/batch/v1/namespaces/{namespace}/{kind}",
                any(of_batch),
            )
            .route(
                "/api/v1/namespaces/{namespace}/pods/{pod}/log",
                get(log::log),
            )
            .route("/api/v1/namespaces/{namespace}/{kind}/{name}", any(one))
            .layer(from_fn(authorized))
            .with_state(Arc::clone(&state));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        runtime.spawn(async move { axum::serve(listener, app).await });
        drop(_entered);
        Self {
            address,
            state,
            _runtime: runtime,
        }
    }

    /// Writes the file by which it is found, for KUBECONFIG.
    pub(crate) fn config(&self, folder: &Path) -> PathBuf {
        let config = format!(
            "current-context: test\ncontexts: [{{name: test, context: {{cluster: c, user: u, namespace: train}}}}]\nclusters: [{{name: c, cluster: {{server: '{}'}}}}]\nusers: [{{name: u, user: {{token: {TOKEN}}}}}]\n",
            self.address
        );
        let path = folder.join("kubeconfig");
        fs::write(&path, config).unwrap();
        path
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.state.lock().unwrap()
    }

    /// All objects that were ever made.
    pub(crate) fn made(&self) -> Vec<Json> {
        self.objects().made.clone()
    }

    /// What there is now: kinds and names of objects, and pods.
    pub(crate) fn left(&self) -> Vec<String> {
        let objects = self.objects();
        let all = objects
            .all
            .keys()
            .map(|(kind, name)| format!("{kind}/{name}"));
        all.chain(objects.pods.keys().map(|name| format!("pods/{name}")))
            .collect()
    }

    /// Has the next Jobs fail before anybody sees their pods.
    pub(crate) fn make_no_pods(&self, jobs: usize) {
        self.objects().without = jobs;
    }

    /// Makes none of the next objects, as a cluster that is away.
    pub(crate) fn make_none(&self, objects: usize) {
        self.objects().unmade = objects;
    }

    /// Refuses the next lists, as after a change of what the user may do.
    pub(crate) fn refuse_lists(&self, lists: usize) {
        self.objects().refusals = lists;
    }

    /// Refuses the log of each pod, or does so no longer.
    pub(crate) fn refuse_logs(&self, are_refused: bool) {
        self.objects().refuses_logs = are_refused;
    }

    /// Has the log of each pod end while the pod runs on.
    pub(crate) fn break_logs(&self) {
        self.objects().breaks_logs = true;
    }

    /// Has a node vanish with the pod of a task.
    pub(crate) fn lose(&self, task: &str) {
        let mut objects = self.objects();
        let pod = objects
            .pods
            .values_mut()
            .find(|pod| pod.labels["phalanx/task"] == task && pod.ended.is_none())
            .unwrap();
        pod.lost = true;
        signal(&pod.child, Signal::KILL);
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for pod in self.pods.values_mut() {
            signal(&pod.child, Signal::KILL);
            let _ = pod.child.wait();
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    let _ = kill_process_group(Pid::from_child(child), signal);
}

async fn authorized(request: Request, next: Next) -> Response {
    let given = request
        .headers()
        .get("authorization")
        .and_then(|value| value.to_str().ok());
    match given == Some(&format!("Bearer {TOKEN}")) {
        true => next.run(request).await,
        false => status(StatusCode::UNAUTHORIZED, "Unauthorized"),
    }
}

fn status(code: StatusCode, message: &str) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code.as_u16()});
    (code, body.to_string()).into_response()
}

type Parameters = Query<BTreeMap<String, String>>;

async fn of_core(
    state: State<Shared>,
    Parts((_, _, _, kind)): Parts<(String, String, String, String)>,
    method: Method,
    query: Parameters,
    body: Bytes,
) -> Response {
    many(&state.0, &kind, &method, &query, &body)
}

async fn of_batch(
    state: State<Shared>,
    Parts((_, kind)): Parts<(String, String)>,
    method: Method,
    query: Parameters,
    body: Bytes,
) -> Response {
    many(&state.0, &kind, &method, &query, &body)
}

fn many(
    state: &Shared,
    kind: &str,
    method: &Method,
    query: &BTreeMap<String, String>,
    body: &[u8],
) -> Response {
    let mut objects = state.lock().unwrap();
    let selector = query.get("labelSelector").cloned().unwrap_or_default();
    let grace = query
        .get("gracePeriodSeconds")
        .and_then(|grace| grace.parse().ok());
    match *method {
        Method::POST if objects.unmade > 0 => {
            objects.unmade -= 1;
            return status(StatusCode::SERVICE_UNAVAILABLE, "away");
        }
        Method::POST => return objects.make(kind, &serde_json::from_slice(body).unwrap()),
        Method::DELETE if kind == "pods" => objects.end_pods(&selector, grace.unwrap_or(30)),
        Method::DELETE => objects.remove(kind, &selector),
        _ if objects.refusals > 0 => {
            objects.refusals -= 1;
            return status(StatusCode::FORBIDDEN, "forbidden");
        }
        _ => {}
    }
    objects.collect();
    (
        StatusCode::OK,
        json!({"kind": "List", "items": objects.list(kind, &selector)}).to_string(),
    )
        .into_response()
}

async fn one(
    State(state): State<Shared>,
    Parts((_, kind, name)): Parts<(String, String, String)>,
    method: Method,
) -> Response {
    let mut objects = state.lock().unwrap();
    if let ("pods", Some(pod)) = (&*kind, objects.pods.get(&name)) {
        return (StatusCode::OK, pod.shown(&name).to_string()).into_response();
    }
    let there = match (kind.as_str(), &method) {
        (_, &Method::DELETE) => objects.all.remove(&(kind, name)).is_some(),
        _ => objects.all.contains_key(&(kind, name)),
    };
    match there {
        true => (StatusCode::OK, "{}").into_response(),
        false => status(StatusCode::NOT_FOUND, "not found"),
    }
}

fn matches(labels: &Json, selector: &str) -> bool {
    let (name, value) = selector.split_once('=').unwrap_or((selector, ""));
    labels[name] == value
}

impl Objects {
    fn make(&mut self, kind: &str, object: &Json) -> Response {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = (kind.to_owned(), name.clone());
        if self.all.contains_key(&key) {
            return status(StatusCode::CONFLICT, "already exists");
        }
        self.made.push(object.clone());
        let mut kept = object.clone();
        match kind == "jobs" {
            true if self.without > 0 => {
                self.without -= 1;
                let failed = json!([{"type": "Failed", "status": "True", "reason": "NoRoom"}]);
                kept["status"] = json!({"conditions": failed});
            }
            true => self.start(&name, object),
            false => {}
        }
        self.all.insert(key, kept);
        (StatusCode::CREATED, object.to_string()).into_response()
    }

    fn remove(&mut self, kind: &str, selector: &str) {
        let of = kind.to_owned();
        self.all.retain(|(kind, _), object| {
            *kind != of || !matches(&object["metadata"]["labels"], selector)
        });
    }

    fn list(&self, kind: &str, selector: &str) -> Vec<Json> {
        if kind == "pods" {
            let pods = self
                .pods
                .iter()
                .filter(|(_, pod)| matches(&pod.labels, selector));
            return pods.map(|(name, pod)| pod.shown(name)).collect();
        }
        let of = self.all.iter().filter(|((of, _), _)| of == kind);
        let of = of.filter(|(_, object)| matches(&object["metadata"]["labels"], selector));
        of.map(|(_, object)| object.clone()).collect()
    }

    /// Tells pods to end; those that have ended are removed.
    fn end_pods(&mut self, selector: &str, grace: u64) {
        self.collect();
        self.pods
            .retain(|_, pod| pod.ended.is_none() || !matches(&pod.labels, selector));
        for pod in self
            .pods
            .values_mut()
            .filter(|pod| matches(&pod.labels, selector))
        {
            signal(&pod.child, Signal::TERM);
            let until = Instant::now() + Duration::from_secs(grace);
            pod.deadline = Some(pod.deadline.map_or(until, |before| before.min(until)));
        }
    }

    /// Takes note of pods that have ended.
    fn collect(&mut self) {
        self.pods.retain(|_, pod| {
            pod.look();
            // A pod that was deleted goes when its processes have.
            pod.ended.is_none() || pod.deadline.is_none()
        });
        self.follow();
    }

    /// Has Jobs make other pods for those that have failed, or fail.
    fn follow(&mut self) {
        let failed = self.pods.values_mut().filter_map(|pod| {
            let (code, _) = pod.ended.clone()?;
            let job = pod.job.take()?;
            (code != 0).then_some((job, code, pod.lost))
        });
        for (name, code, lost) in failed.collect::<Vec<_>>() {
            let key = ("jobs".to_owned(), name.clone());
            // The pods of a Job that was removed end with it.
            let Some(job) = self.all.get(&key).cloned() else {
                continue;
            };
            let failures = self.failures.entry(name.clone()).or_default();
            match policy::next(&job, code, lost, *failures) {
                After::Another { counts } => {
                    *failures += u64::from(counts);
                    self.start(&name, &job);
                }
                After::Over => {
                    let conditions = json!([{"type": "Failed", "status": "True"}]);
                    let job = self.all.get_mut(&key).unwrap();
                    job["status"] = json!({"conditions": conditions});
                }
            }
        }
    }

    fn start(&mut self, job: &str, object: &Json) {
        self.number += 1;
        let template = &object["spec"]["template"];
        let pod = format!("{job}-{:05x}", self.number);
        let folder = self.folder.join(&pod);
        fs::create_dir_all(&folder).unwrap();
        let spec = &template["spec"];
        let log = folder.join("log");
        let mut task = self.command(spec, &spec["containers"][0], &folder, &log);
        let (child, before) = match spec["initContainers"].as_array() {
            None => (spawn(&mut task), None),
            Some(first) => {
                let log = folder.join("log-before");
                let mut first = self.command(spec, &first[0], &folder, &log);
                (spawn(&mut first), Some((task, log)))
            }
        };
        let labels = template["metadata"]["labels"].clone();
        let running = Running {
            job: Some(job.to_owned()),
            labels,
            child,
            before,
            log,
            times: Vec::new(),
            started: now(),
            ended: None,
            deadline: None,
            lost: false,
        };
        self.pods.insert(pod, running);
    }

    /// What a container of a pod runs, with its output in a file.
    fn command(&mut self, spec: &Json, container: &Json, folder: &Path, log: &Path) -> Command {
        let mounts = self.mount(spec, container, folder);
        let variables = self.variables(container, &mounts);
        let words = |name: &str| -> Vec<String> {
            let words = container[name].as_array().into_iter().flatten();
            words
                .map(|word| here(&expanded(word.as_str().unwrap(), &variables), &mounts))
                .collect()
        };
        let mut words = [words("command"), words("args")].concat();
        if container["image"] == "bare" {
            // An image without the command: its runtime says so, and with this code.
            let script = "echo exec: $1: not found >&2; exit 128";
            words = ["sh", "-c", script, "sh", &words[0]]
                .map(str::to_owned)
                .to_vec();
        }
        let file = File::create(log).unwrap();
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env_clear()
            .envs(&variables)
            .env("PATH", path())
            .env("HOME", std::env::var_os("HOME").unwrap_or_default())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .process_group(0);
        if let Some(folder) = container["workingDir"].as_str() {
            command.current_dir(folder);
        }
        command
    }

    /// Writes the Secrets that are mounted, and makes empty folders. Gives the paths in the pod, and where they are on this machine.
    fn mount(&self, spec: &Json, container: &Json, folder: &Path) -> Vec<(String, String)> {
        let mut mounts = Vec::new();
        for mount in container["volumeMounts"].as_array().unwrap() {
            let volumes = spec["volumes"].as_array().unwrap();
            let volume = volumes
                .iter()
                .find(|volume| volume["name"] == mount["name"])
                .unwrap();
            let path = mount["mountPath"].as_str().unwrap();
            let place = mounted(path, folder);
            if let Some(secret) = volume["secret"]["secretName"].as_str() {
                let data = &self.all[&("secrets".to_owned(), secret.to_owned())]["data"];
                for item in volume["secret"]["items"].as_array().unwrap() {
                    let path = place.join(item["path"].as_str().unwrap());
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(path, decoded(&data[item["key"].as_str().unwrap()])).unwrap();
                }
            } else if volume["emptyDir"].is_object() {
                fs::create_dir_all(&place).unwrap();
            } else {
                continue;
            }
            mounts.push((path.to_owned(), place.display().to_string()));
        }
        mounts
    }

    fn variables(
        &mut self,
        container: &Json,
        mounts: &[(String, String)],
    ) -> BTreeMap<String, String> {
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        for variable in container["env"].as_array().unwrap() {
            let from = &variable["valueFrom"]["secretKeyRef"];
            let value = match from["name"].as_str() {
                Some(name) => decoded(
                    &self.all[&("secrets".to_owned(), name.to_owned())]["data"]
                        [from["key"].as_str().unwrap()],
                ),
                None => expanded(variable["value"].as_str().unwrap(), &all),
            };
            all.insert(variable["name"].as_str().unwrap().to_owned(), value);
        }
        for value in all.values_mut() {
            *value = here(value, mounts);
        }
        self.resolve(&mut all);
        all
    }

    /// Replaces the addresses of pods: all are at this machine, each at a port of its own.
    fn resolve(&mut self, all: &mut BTreeMap<String, String>) {
        let config = all.get("TF_CONFIG");
        let Some(Ok(config)) = config.map(|text| serde_json::from_str::<Json>(text)) else {
            return;
        };
        let hosts: Vec<String> = config["cluster"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|hosts| hosts.as_array().unwrap().clone())
            .map(|host| host.as_str().unwrap().to_owned())
            .collect();
        for host in hosts {
            let free = || {
                TcpListener::bind("127.0.0.1:0")
                    .unwrap()
                    .local_addr()
                    .unwrap()
                    .port()
            };
            let port = *self.ports.entry(host.clone()).or_insert_with(free);
            for value in all.values_mut() {
                *value = value.replace(&host, &format!("127.0.0.1:{port}"));
            }
            if all
                .get("MASTER_ADDR")
                .is_some_and(|master| format!("{master}:2222") == host)
            {
                all.insert("MASTER_ADDR".to_owned(), "127.0.0.1".to_owned());
                all.insert("MASTER_PORT".to_owned(), port.to_string());
            }
        }
    }
}

/// Where programs are: beside the tested one, too.
fn path() -> String {
    let own = Path::new(env!("CARGO_BIN_EXE_phalanx-jobs"))
        .parent()
        .unwrap();
    format!("{}:{}", own.display(), std::env::var("PATH").unwrap())
}

fn mounted(path: &str, folder: &Path) -> PathBuf {
    folder.join(path.trim_start_matches('/'))
}

/// A text with the folders of this machine in place of the pod's.
fn here(text: &str, mounts: &[(String, String)]) -> String {
    let replaced = |text: String, (path, place): &(String, String)| text.replace(path, place);
    mounts.iter().fold(text.to_owned(), replaced)
}

fn decoded(value: &Json) -> String {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(value.as_str().unwrap())
        .unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Text as a kubelet passes it on: `$(NAME)` is a variable's value where there is one, `$$` is `$`.
fn expanded(text: &str, variables: &BTreeMap<String, String>) -> String {
    let (mut all, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$') {
        all.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            all.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        match name {
            Some((name, after)) => {
                let unknown = format!("$({name})");
                all.push_str(variables.get(name).unwrap_or(&unknown));
                rest = after;
            }
            None => all.push('$'),
        }
    }
    all + rest
}
