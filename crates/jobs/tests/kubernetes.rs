//! Jobs in pods: the objects against the schemas of Kubernetes, and their life in a cluster whose pods are processes of this machine.

#![cfg(target_os = "linux")]

mod digits;
mod lost_worker;
mod pods;
mod service;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pods::Cluster;
use serde_json::Value as Json;
use service::Service;

/// The job file of the article that this project began with, in the repaired form of AI Platform's documentation.
const ARTICLE: &str = "trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-8
  masterConfig:
    acceleratorConfig: {count: 1, type: NVIDIA_TESLA_T4}
    imageUri: gcr.io/project/image
  useChiefInTfConfig: true
  workerType: n1-standard-8
  workerCount: 1
  workerConfig:
    acceleratorConfig: {count: 1, type: NVIDIA_TESLA_T4}
    imageUri: gcr.io/project/image
";

/// A folder of jobs with a cluster.
struct World {
    service: Service,
    cluster: Cluster,
}

impl World {
    fn new(name: &str) -> Self {
        let service = Service::new(name);
        let cluster = Cluster::new(&service.folder);
        cluster.config(&service.folder);
        Self { service, cluster }
    }

    /// Submits a job of two workers, or of as many as the options say.
    fn submit(&self, name: &str, options: &[&str], words: &[&str]) {
        let keys = "phalanx: {kubernetes: {image: img, claim: folder}, restarts: 2, secrets: {API_KEY: key.txt}}\n";
        fs::write(self.service.folder.join("job.yaml"), keys).unwrap();
        fs::write(self.service.folder.join("key.txt"), "canary-of-the-test\n").unwrap();
        let start = ["submit", "training", name, "--to", "kubernetes"];
        let file = ["--config", "job.yaml"];
        self.ok(&[&start[..], &file, options, &["--"], words].concat());
    }

    /// Runs a command with the cluster in its environment.
    fn ok(&self, args: &[&str]) {
        let mut command = self.service.command();
        let config = self.service.folder.join("kubeconfig");
        let output = command
            .args(args)
            .env("KUBECONFIG", config)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
    }

    fn script(&self, name: &str, script: &str) {
        self.submit(name, &["--workers", "2"], &["sh", "-c", script]);
    }

    fn until(&self, holds: impl Fn() -> bool) {
        let until = Instant::now() + service::PATIENCE;
        while !holds() {
            assert!(Instant::now() < until, "left: {:?}", self.cluster.left());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the cluster has nothing of any job.
    fn until_empty(&self) {
        self.until(|| self.cluster.left().is_empty());
    }
}

#[test]
fn pods_know_who_they_are_and_are_seen() {
    let world = World::new("pods");
    let odd = "$(PATH) $$ $HOME `id` \"'\\ é\n*";
    let script = "printf 'rank %s of %s, %s of %s here, machine %s of %s\\n' $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE; echo \"$TF_CONFIG\"; test ${#API_KEY} = 18; wc -c < $PHALANX_SECRET_FILE; printf %s \"$1\" > arg-$RANK";
    world.submit(
        "Demo_1",
        &["--workers", "2"],
        &["sh", "-c", script, "sh", odd],
    );
    let job = world.service.end("Demo_1");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    for rank in 0..2 {
        let arg = fs::read_to_string(world.service.folder.join(format!("arg-{rank}")));
        assert_eq!(arg.unwrap(), odd);
    }
    let logs = world.service.ok(&["logs", "Demo_1", "--format", "json"]);
    let lines: Vec<Json> = logs
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (task, rank, kind) in [("chief-0", 0, "chief"), ("worker-0", 1, "worker")] {
        let of: Vec<&str> = lines
            .iter()
            .filter(|line| line["task"] == task)
            .map(|line| line["message"].as_str().unwrap())
            .collect();
        let place = format!("rank {rank} of 2, 0 of 1 here, machine {rank} of 2");
        assert_eq!(of[0], place);
        let config: Json = serde_json::from_str(of[1]).unwrap();
        assert_eq!(
            (&config["task"]["type"], &config["task"]["index"]),
            (&kind.into(), &0.into())
        );
        assert_eq!(of[2], "64", "the job's secret: {of:?}");
    }
    let task = &job["phalanx"]["tasks"][0];
    assert!(
        task["place"].as_str().unwrap().contains(" on node-1"),
        "{task}"
    );
    world.until_empty();
    // What is secret is in the Secret and nowhere else.
    for object in world.cluster.made() {
        let text = object.to_string();
        assert!(!text.contains("canary"), "{text}");
        assert_eq!(
            object["kind"] == "Secret",
            text.contains("Y2FuYXJ5"),
            "{text}"
        );
    }
}

#[test]
fn exit_codes_losses_and_cancels_are_as_on_this_machine() {
    let world = World::new("pod-ends");
    world.script(
        "bad",
        "if [ $RANK = 1 ]; then for i in $(seq 30); do echo line $i; done; exit 1; fi; sleep 1000",
    );
    let job = world.service.end("bad");
    assert_eq!(
        (&job["state"], &job["errorMessage"]),
        (
            &"FAILED".into(),
            &"worker-0 (rank 1) ended with exit code 1".into()
        ),
        "{job:#}"
    );
    let lines: Vec<_> = (11..=30).map(|n| Json::from(format!("line {n}"))).collect();
    assert_eq!(
        job["phalanx"]["firstFailure"]["lastLines"],
        Json::from(lines)
    );
    for (name, code, times, state, attempts) in [
        ("lost", 75, 2, "SUCCEEDED", 3),
        ("often", 75, 3, "FAILED", 3),
        ("saved", 143, 3, "SUCCEEDED", 4),
    ] {
        let script = format!("echo x >> {name}; [ $(wc -l < {name}) -gt {times} ] || exit {code}");
        world.submit(name, &["--workers", "1"], &["sh", "-c", &script]);
        let job = world.service.end(name);
        assert_eq!(
            (&job["state"], job["phalanx"]["attempt"].as_u64()),
            (&state.into(), Some(attempts)),
            "{job:#}"
        );
    }
    // A node that goes is a loss, and not the program's fault.
    world.script(
        "node",
        "echo x >> node-$RANK; [ $(wc -l < node-$RANK) -gt 1 ] || sleep 1000",
    );
    world.service.state("node", "RUNNING");
    let has_begun = |rank| world.service.folder.join(format!("node-{rank}")).exists();
    world.until(|| has_begun(0) && has_begun(1));
    world.cluster.lose("worker-0");
    let job = world.service.end("node");
    assert_eq!(
        (&job["state"], job["phalanx"]["attempt"].as_u64()),
        (&"SUCCEEDED".into(), Some(2)),
        "{job:#}"
    );
    world.script("long", "trap '' TERM; echo up; while :; do sleep 0.2; done");
    world.service.state("long", "RUNNING");
    world.service.ok(&["cancel", "long"]);
    world.service.ok(&["cancel", "long"]);
    assert_eq!(world.service.end("long")["state"], "CANCELLED");
    world.until_empty();
}

#[test]
fn a_task_whose_job_fails_without_a_pod_is_lost_and_time_begins_with_the_pod() {
    let world = World::new("pod-none");
    world.cluster.make_no_pods(1);
    world.script("once", "true");
    let job = world.service.end("once");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    assert_eq!(job["phalanx"]["attempt"], 2, "{job:#}");
    world.cluster.make_no_pods(usize::MAX);
    world.script("never", "true");
    let job = world.service.end("never");
    assert_eq!(job["state"], "FAILED", "{job:#}");
    let why = job["errorMessage"].as_str().unwrap();
    assert!(
        why.starts_with("chief-0 has no pod, and its Job has failed: NoRoom"),
        "{why}"
    );
    let made = world.cluster.made();
    let job = made.iter().find(|object| object["kind"] == "Job").unwrap();
    let limit = |spec: &Json| spec["activeDeadlineSeconds"].as_u64();
    assert_eq!(limit(&job["spec"]), None);
    assert_eq!(limit(&job["spec"]["template"]["spec"]), Some(604_860));
}

/// What an elastic job of pods says of itself.
const POD: &str = "executor: kubernetes, kubernetes: {image: img, claim: folder}";

#[test]
fn a_lost_worker_gets_another_pod_while_the_others_wait() {
    let world = World::new("pod-lost");
    lost_worker::write(&world.service.folder, POD);
    let start = ["submit", "training", "demo", "--config", lost_worker::JOB];
    let words = ["--", "sh", "-c", lost_worker::SCRIPT];
    world.ok(&[&start[..], &words].concat());
    lost_worker::was_replaced(&world.service, "demo");
    world.until_empty();
    // A mistake is no loss, and a chief that is lost takes all with it.
    let run = |name: &str, script: &str| {
        let start = ["submit", "training", name, "--config", lost_worker::JOB];
        world.ok(&[&start[..], &["--", "sh", "-c", script]].concat());
        let job = world.service.end(name);
        let attempt = job["phalanx"]["attempt"].as_u64().unwrap();
        (job["state"].as_str().unwrap().to_owned(), attempt, job)
    };
    let (state, attempt, job) = run("bad", "[ $RANK = 0 ] || exit 2; sleep 1000");
    assert_eq!((&*state, attempt), ("FAILED", 1), "{job:#}");
    assert_eq!(job["phalanx"]["firstFailure"]["exitCode"], 2, "{job:#}");
    let script = "[ $RANK != 0 ] || { echo >> chief; [ $(wc -l < chief) = 2 ] || exit 75; }";
    let (state, attempt, job) = run("chief", script);
    assert_eq!((&*state, attempt), ("SUCCEEDED", 2), "{job:#}");
}

#[test]
fn a_worker_whose_node_goes_gets_another_pod_that_costs_no_restart() {
    let world = World::new("pod-node");
    let keys =
        format!("phalanx: {{elastic: {{minWorkers: 2, maxWorkers: 2}}, restarts: 0, {POD}}}\n");
    fs::write(world.service.folder.join("node.yaml"), keys).unwrap();
    let script = "echo >> started-$RANK; until [ -e go ]; do sleep 0.05; done";
    let start = ["submit", "training", "demo", "--config", "node.yaml"];
    world.ok(&[&start[..], &["--", "sh", "-c", script]].concat());
    world.service.state("demo", "RUNNING");
    world.cluster.lose("worker-0");
    let restarts = |job: &Json| lost_worker::task(job, "worker-0")["restarts"] == 1;
    world.service.until("demo", restarts);
    fs::write(world.service.folder.join("go"), "").unwrap();
    let job = world.service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    assert_eq!(job["phalanx"]["attempt"], 1, "{job:#}");
}

#[test]
fn a_killed_worker_costs_the_digits_no_bit() {
    if !digits::can_train() {
        return;
    }
    let world = World::new("pod-killed");
    lost_worker::costs_no_bit(&world.service, POD, |args| world.ok(args));
}

#[test]
fn pods_outlive_the_process_that_watches_them() {
    let world = World::new("pods-go-on");
    world.script(
        "demo",
        "echo first $RANK; while [ ! -f go ]; do sleep 0.05; done; echo last $RANK",
    );
    world.service.until("demo", |_| {
        world.service.ok(&["logs", "demo"]).matches("first").count() == 2
    });
    let watchers: Vec<i32> = world
        .service
        .processes()
        .iter()
        .filter(|line| line.contains("supervise"))
        .filter_map(|line| line.split(['/', ' ']).nth(2)?.parse().ok())
        .collect();
    assert_eq!(watchers.len(), 1);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(watchers[0]).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    world
        .service
        .until("demo", |job| job["phalanx"]["attempt"] == 2);
    fs::write(world.service.folder.join("go"), "").unwrap();
    let job = world.service.end("demo");
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    let logs = world.service.ok(&["logs", "demo"]);
    for line in ["first 0", "first 1", "last 0", "last 1"] {
        assert_eq!(logs.matches(line).count(), 1, "{logs}");
    }
    world.until_empty();
}

#[test]
fn the_digits_have_the_same_weights_in_pods_and_on_this_machine() {
    if !digits::can_train() {
        return;
    }
    let world = World::new("pod-digits");
    digits::write(&world.service.folder);
    for (name, to) in [("remote", "kubernetes"), ("here", "local")] {
        world.ok(&[
            "submit",
            "training",
            name,
            "--to",
            to,
            "--config",
            digits::JOB,
        ]);
        digits::succeeds(&world.service, name);
    }
    digits::equal(&world.service.folder, "remote", "here");
}

/// PyPI's kubernetes-validate in a folder of the test; `None` where it cannot be installed.
fn validator(folder: &Path) -> Option<PathBuf> {
    let venv = folder.join("venv");
    let run = |program: &Path, args: &[&str]| {
        Command::new(program)
            .args(args)
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let made = run(
        Path::new("python3"),
        &["-m", "venv", &venv.display().to_string()],
    ) && run(
        &venv.join("bin/pip"),
        &["install", "--quiet", "kubernetes-validate==1.37.0"],
    );
    if !made {
        phalanx_testkit::skip(
            "python3 with venv and pip must be able to install kubernetes-validate",
        );
    }
    made.then(|| venv.join("bin/kubernetes-validate"))
}

/// What Kubernetes would be given for a job file.
fn objects(service: &Service, config: &str, more: &[&str]) -> String {
    fs::write(service.folder.join("config.yaml"), config).unwrap();
    let plan = dry_run(service, "kubernetes", more);
    plan["preview"].as_str().unwrap().to_owned()
}

/// The plan of the job in `config.yaml`.
fn dry_run(service: &Service, to: &str, more: &[&str]) -> Json {
    let start = "submit training demo --config config.yaml --dry-run --format json --to";
    let start: Vec<&str> = start.split(' ').chain([to]).collect();
    let plan = service.ok(&[&start, more].concat());
    serde_json::from_str(&plan).unwrap()
}

#[test]
fn the_articles_job_is_accepted_unchanged_by_all_executors_and_its_objects_are_valid() {
    let service = Service::new("article");
    fs::write(service.folder.join("config.yaml"), ARTICLE).unwrap();
    let dry = |to: &str, more: &[&str]| dry_run(&service, to, more);
    for to in ["local", "slurm", "kubernetes"] {
        let plan = dry(to, &["--", "--epochs", "3"]);
        let tasks = plan["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), 2, "{plan:#}");
        assert!(
            tasks
                .iter()
                .all(|task| task["image"] == "gcr.io/project/image" && task["gpus"] == 1),
            "{plan:#}"
        );
    }
    let Some(validate) = validator(&service.folder) else {
        return;
    };
    let given = |config: &str, more: &[&str]| objects(&service, config, more);
    let plain = given(ARTICLE, &["--", "--epochs", "3"]);
    for file in ["train.yaml", "key.txt"] {
        fs::write(service.folder.join(file), "").unwrap();
    }
    let keys = "phalanx: {program: train.yaml, kubernetes: {image: img, claim: folder, serviceAccount: robot, nodeSelector: {spot: true}, tolerations: [{key: spot, value: true, effect: NoExecute, tolerationSeconds: 60}, {operator: Exists}], imagePullSecrets: [registry]}, env: {A: 'yes', B: \"0x1\\n\"}, secrets: {KEY: key.txt}}\ntrainingInput: {scaleTier: STANDARD_1}\n";
    let full = given(keys, &[]);
    assert_eq!(full.matches("kind: Job").count(), 8);
    let keys = "phalanx: {program: train.yaml, kubernetes: {image: img}, elastic: {minWorkers: 1, maxWorkers: 3}}\n";
    let elastic = given(keys, &[]);
    assert_eq!(elastic.matches("podFailurePolicy").count(), 2);
    let keys = "phalanx: {kubernetes: {image: img, packageImage: phalanx}, env: {A: b$}, secrets: {KEY: key.txt}}\ntrainingInput: {scaleTier: CUSTOM, masterType: n1-standard-8, masterConfig: {acceleratorConfig: {count: 1, type: NVIDIA_TESLA_T4}}, pythonModule: code.task, packageUris: ['s3://bucket/staging/code']}\n";
    let packaged = given(keys, &[]);
    assert!(packaged.contains("initContainers"), "{packaged}");
    let (good, bad) = (
        service.folder.join("good.yaml"),
        service.folder.join("bad.yaml"),
    );
    let all = format!("{plain}---\n{full}---\n{elastic}---\n{packaged}");
    fs::write(&good, &all).unwrap();
    fs::write(&bad, all.replace("backoffLimit: 0", "backoffLimit: none")).unwrap();
    for version in ["1.25.0", "1.31.0", "1.37.0"] {
        let check = |file: &Path| {
            Command::new(&validate)
                .args(["--strict", "-k", version])
                .arg(file)
                .output()
                .unwrap()
        };
        let output = check(&good);
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{version}: {said}\n{all}");
        assert!(!check(&bad).status.success(), "what is wrong is found");
    }
}

#[test]
fn each_object_names_the_namespace_of_the_job() {
    let service = Service::new("namespace");
    let keys =
        "phalanx: {program: 'true', workers: 2, kubernetes: {namespace: train, image: img}}\n";
    let all = objects(&service, keys, &[]);
    assert_eq!(all.matches("apiVersion:").count(), 4, "{all}");
    assert_eq!(all.matches("\n  namespace: train\n").count(), 4, "{all}");
}

#[test]
fn a_package_that_pods_would_not_see_is_refused_with_what_to_do() {
    let world = World::new("pod-package");
    let service = &world.service;
    fs::create_dir(service.folder.join("code")).unwrap();
    fs::write(service.folder.join("code/words"), "as it was\n").unwrap();
    let keys = |keys: &str| {
        let keys = format!("phalanx: {{kubernetes: {{image: img{keys}}}}}\n");
        fs::write(service.folder.join("package.yaml"), keys).unwrap();
    };
    let start = "submit training demo --to kubernetes --config package.yaml --workers 2";
    let start: Vec<&str> = start.split(' ').collect();
    let words = ["--", "sh", "-c", "cat $PHALANX_PACKAGE/words"];
    let package = ["--package-path", "code"];
    let refused = |more: &[&str], said: &str| {
        let (code, error) = service.fails(&[&start[..], more, &words].concat());
        assert!(code == 2 && error.contains(said), "{code}: {error}");
        assert!(!service.folder.join("root/jobs/demo").exists());
    };
    keys("");
    let said = "pods see no folder of this machine, and the package ";
    refused(&package, said);
    refused(
        &["--package-path", "code", "--staging-bucket", "kept"],
        said,
    );
    refused(&["--packages", "code"], said);
    keys(", claim: folder");
    let outside = std::env::temp_dir().display().to_string();
    for outside in [&*outside, "../kept"] {
        let staging = ["--package-path", "code", "--staging-bucket", outside];
        refused(&staging, "their volume is at");
    }
    assert!(
        !service.folder.join("kept").exists(),
        "nothing is copied first"
    );
    // On the volume the copy is in jobDir, unless the job says otherwise.
    world.ok(&[&start[..], &package, &words].concat());
    fs::write(service.folder.join("code/words"), "changed\n").unwrap();
    let job = service.end("demo");
    let logs = service.ok(&["logs", "demo"]);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}\n{logs}");
    assert_eq!(logs.matches("as it was").count(), 2, "{logs}");
    let copy = job["trainingInput"]["packageUris"][0].as_str().unwrap();
    let place = service.folder.join("runs/demo/packages/demo-");
    assert!(copy.starts_with(&place.display().to_string()), "{copy}");
}

/// Certificates of an authority, a server at 127.0.0.1 and a client, and a server that wants the client's and refuses everything.
const SECURE: &str = r#"set -e
new() { openssl req "$@" -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes 2>> openssl.log; }
new -x509 -keyout ca.key -out ca.pem -subj /CN=ca -days 2 -addext basicConstraints=critical,CA:TRUE
new -x509 -keyout other.key -out other.pem -subj /CN=ca -days 2 -addext basicConstraints=critical,CA:TRUE
echo subjectAltName=IP:127.0.0.1 > san
for who in server client; do
  new -keyout $who.key -out $who.csr -subj /CN=$who
  openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $who.pem -days 2 -extfile san 2>> openssl.log
done
cat > server.py <<'END'
import http.server, os, ssl
class Refuses(http.server.BaseHTTPRequestHandler):
    def do_DELETE(self):
        body = b'{"kind": "Status", "message": "%s may not"}' % self.connection.getpeercert()["subject"][0][0][1].encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile="ca.pem")
context.verify_mode = ssl.CERT_REQUIRED
context.load_cert_chain("server.pem", "server.key")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
open("port.new", "w").write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
END
exec python3 server.py 2> server.log
"#;

/// The server of `SECURE`, and its port.
fn secure_server(folder: &Path) -> (Child, String) {
    let mut server = Command::new("bash")
        .args(["-c", SECURE])
        .current_dir(folder)
        .spawn()
        .unwrap();
    let until = Instant::now() + service::PATIENCE;
    while !folder.join("port").is_file() {
        assert!(
            Instant::now() < until && server.try_wait().unwrap().is_none(),
            "there is no server"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    (server, fs::read_to_string(folder.join("port")).unwrap())
}

#[test]
fn a_cluster_is_asked_by_https_with_the_clients_certificate() {
    let has = |name: &str| Command::new(name).arg("version").output().is_ok();
    if !has("openssl") || !has("python3") {
        phalanx_testkit::skip("install openssl and python3");
        return;
    }
    let service = Service::new("https");
    let folder = &service.folder;
    let (mut server, port) = secure_server(folder);
    for (name, authority, client, expected) in [
        (
            "known",
            "ca",
            "client-certificate: client.pem, client-key: client.key",
            "with 403: client may not",
        ),
        (
            "other",
            "other",
            "client-certificate: client.pem, client-key: client.key",
            "does not answer",
        ),
        ("nobody", "ca", "token: x", "does not answer"),
    ] {
        let config = format!(
            "current-context: t\ncontexts: [{{name: t, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}', certificate-authority: {authority}.pem}}}}]\nusers: [{{name: u, user: {{{client}}}}}]\n"
        );
        fs::write(folder.join(name), config).unwrap();
        let mut command = service.command();
        command.args([
            "submit",
            "training",
            name,
            "--to",
            "kubernetes",
            "--master-image-uri",
            "img",
        ]);
        assert!(
            command
                .env("KUBECONFIG", folder.join(name))
                .output()
                .unwrap()
                .status
                .success()
        );
        let job = service.end(name);
        assert!(
            job["errorMessage"].as_str().unwrap().contains(expected),
            "{job:#}"
        );
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
