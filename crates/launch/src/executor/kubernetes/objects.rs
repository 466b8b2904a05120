//! The objects of a run: a Secret, a Service that gives each pod a name, and a Job for each task.
//!
//! A Job for each task, and no indexed Job for a role: tasks differ in TF_CONFIG and RANK, which the pods of an indexed Job have alike;
//! and a Job whose pod fails ends its other pods at once, when they have yet to say why. The Job of a worker of an elastic job makes another
//! pod of the same name when its pod is lost.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use phalanx_cluster::{Address, ClusterSpec};
use serde_json::{Value as Json, json};

use super::super::command::words;
use super::super::variables::{Naming, Variables};
use super::super::{Run, RunArgs, is_replaced};
use super::package;
use crate::lifecycle::{Life, Submitted};
use crate::spec::{Plan, Program, Spec, TaskPlan, task_name};

/// The port at which every task listens: each pod has an address of its own.
const PORT: u16 = 2222;
/// The folder of a pod in which the job's secret is.
const SECRETS: &str = "/run/phalanx";
/// The key of the job's secret: no name of a variable, so that none of the user's secrets has it.
const JOB_SECRET: &str = "job-secret";
/// How long a pod that is ended from outside has to save.
const GRACE: u64 = 60;
/// How long ended Jobs stay where nobody removes them, in seconds.
const KEPT: u64 = 3600;
/// The container of a pod.
pub(super) const CONTAINER: &str = "task";

/// What the objects of a run are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    /// Of the run: the Service, the Secret, and the start of each Job's name.
    pub(super) run: String,
    /// What all runs of a job have.
    pub(super) job: String,
    /// What all attempts of a job, or of one trial, have.
    pub(super) part: String,
}

impl Names {
    pub(super) fn new(life: &Life, trial: Option<u32>, attempt: u32) -> Self {
        let lower = life.job.name.to_string().to_lowercase().replace('_', "-");
        // A name of a Service has 63 characters at most; what is cut off is in the number.
        let readable: String = lower.chars().take(24).collect();
        let text = format!("{} {}", life.job.name, life.created);
        let number = crc32c::crc32c(text.as_bytes());
        let job = format!("{}-{number:08x}", readable.trim_end_matches('-'));
        let part = trial.map_or(format!("{job}-job"), |trial| format!("{job}-t{trial}"));
        let run = trial.map_or(format!("{job}-{attempt}"), |trial| {
            format!("{job}-t{trial}-{attempt}")
        });
        Self { run, job, part }
    }

    /// The selector of all of a run.
    pub(super) fn of_run(&self) -> String {
        format!("phalanx/run={}", self.run)
    }

    /// The selector of all attempts.
    pub(super) fn of_part(&self) -> String {
        format!("phalanx/part={}", self.part)
    }

    /// The selector of all runs of the job.
    pub(super) fn of_job(&self) -> String {
        format!("phalanx/job={}", self.job)
    }

    fn labels(&self, task: Option<&str>) -> Json {
        let mut labels =
            json!({"phalanx/run": self.run, "phalanx/part": self.part, "phalanx/job": self.job});
        if let Some(task) = task {
            labels["phalanx/task"] = json!(task);
        }
        labels
    }
}

/// What a run is made of, for its objects.
pub(super) struct Making<'a> {
    pub(super) life: &'a Life,
    pub(super) spec: &'a Spec,
    pub(super) plan: &'a Plan,
    pub(super) args: &'a RunArgs,
    pub(super) attempt: u32,
    pub(super) restarts: u32,
    /// What tells the processes of the run from all others.
    pub(super) id: String,
    pub(super) names: Names,
}

impl<'a> Making<'a> {
    pub(super) fn of(run: &'a Run<'_>, life: &'a Life) -> Self {
        Self {
            life,
            spec: run.spec,
            plan: run.plan,
            args: &run.args,
            attempt: run.attempt,
            restarts: run.restarts,
            id: run.id(life),
            names: Names::new(life, run.args.trial, run.attempt),
        }
    }

    /// All objects in the order in which they are made: what pods ask for first.
    pub(super) fn objects(&self, secret: &str, hidden: &Variables) -> Vec<Json> {
        let mut objects = vec![self.secret(secret, hidden), self.service()];
        // The submitter's own variables are those of another machine.
        let job = Submitted {
            environment: Variables::new(),
            ..self.life.job.clone()
        };
        let path = format!("{SECRETS}/secret");
        let package = package::of(self.spec).map(crate::package::in_pods);
        let spec = Spec {
            package: package.or_else(|| self.spec.package.clone()),
            ..self.spec.clone()
        };
        let naming = Naming {
            job: &job,
            spec: &spec,
            plan: self.plan,
            run: &self.id,
            attempt: self.attempt,
            restarts: self.restarts,
            args: self.args,
            secret: path.as_ref(),
            apart: true,
        };
        let cluster = naming.cluster(|at| Address::new(self.host(at), PORT));
        objects.extend((0..self.plan.tasks.len()).map(|at| self.job(at, &naming, &cluster)));
        if let Some(namespace) = &self.spec.ours.kubernetes.namespace {
            for object in &mut objects {
                object["metadata"]["namespace"] = json!(namespace);
            }
        }
        objects
    }

    /// The name of a task's pod within the namespace.
    fn host(&self, at: usize) -> String {
        format!("{}.{}", self.plan.tasks[at].name(), self.names.run)
    }

    fn secret(&self, secret: &str, hidden: &Variables) -> Json {
        let mut data = json!({(JOB_SECRET): STANDARD.encode(secret)});
        for (name, value) in hidden {
            data[name] = json!(STANDARD.encode(value));
        }
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.names.run, "labels": self.names.labels(None)},
            "type": "Opaque",
            "data": data,
        })
    }

    fn service(&self) -> Json {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.names.run, "labels": self.names.labels(None)},
            "spec": {
                "clusterIP": "None",
                // Workers look for each other before any of them is ready.
                "publishNotReadyAddresses": true,
                "selector": {"phalanx/run": self.names.run},
                "ports": [{"name": "cluster", "port": PORT}],
            },
        })
    }

    fn job(&self, at: usize, naming: &Naming<'_>, cluster: &ClusterSpec) -> Json {
        let task = &self.plan.tasks[at];
        let name = task.name();
        let labels = self.names.labels(Some(&name));
        let pod = self.pod(task, naming, cluster);
        let mut spec = json!({
            "completions": 1,
            "parallelism": 1,
            // Whether to start again is decided by exit codes, for all tasks together.
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": KEPT,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        });
        if is_replaced(self.spec, self.plan, at) {
            spec["backoffLimit"] = json!(self.spec.ours.restarts);
            spec["podFailurePolicy"] = replaced();
        }
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": format!("{}-{name}", self.names.run),
                "labels": labels,
                "annotations": {"phalanx/name": self.life.job.name.to_string()},
            },
            "spec": spec,
        })
    }

    fn pod(&self, task: &TaskPlan, naming: &Naming<'_>, cluster: &ClusterSpec) -> Json {
        let keys = &self.spec.ours.kubernetes;
        let run = &self.names.run;
        let item = json!([{"key": JOB_SECRET, "path": "secret"}]);
        let mut pod = json!({
            "restartPolicy": "Never",
            "hostname": task.name(),
            "subdomain": run,
            "enableServiceLinks": false,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": GRACE,
            // Where nobody watches any more. A Job's would begin while its pod still waits for a node.
            "activeDeadlineSeconds": self.spec.scheduling.max_running.as_secs().max(1) + GRACE,
            "containers": [self.container(task, naming, cluster)],
            "volumes": [{"name": "secret", "secret": {"secretName": run, "items": item}}],
        });
        let account = keys
            .service_account
            .as_ref()
            .or(self.spec.service_account.as_ref());
        if let Some(account) = account {
            pod["serviceAccountName"] = json!(account);
            pod["automountServiceAccountToken"] = json!(true);
        }
        let secrets = keys.image_pull_secrets.iter();
        let secrets: Vec<Json> = secrets.map(|name| json!({"name": name})).collect();
        for (field, value) in [
            ("nodeSelector", json!(keys.node_selector)),
            ("tolerations", json!(keys.tolerations)),
            ("imagePullSecrets", json!(secrets)),
        ] {
            if value != json!({}) && value != json!([]) {
                pod[field] = value;
            }
        }
        let claim = keys
            .claim
            .as_ref()
            .map(|claim| json!({"name": "folder", "persistentVolumeClaim": {"claimName": claim}}));
        let package = package::of(self.spec);
        if let Some(volumes) = pod["volumes"].as_array_mut() {
            volumes.extend(claim);
            volumes.extend(package.map(|_| package::volume()));
        }
        if let Some(url) = package {
            let variables = [named(&self.spec.ours.env), self.hidden()].concat();
            let resources = self.resources(task);
            let brings = package::container(self.spec, url, task, &variables, resources);
            pod["initContainers"] = json!([brings]);
        }
        pod
    }

    fn container(&self, task: &TaskPlan, naming: &Naming<'_>, cluster: &ClusterSpec) -> Json {
        let mut variables = naming.of_task(task.task, cluster);
        variables.insert("PHALANX_CLUSTER".to_owned(), "tf_config".to_owned());
        let all = [named(&variables), self.hidden()].concat();
        let mut words = words(&self.plan.program, task, self.args, "phalanx");
        // Without a command of its own the image's entry point gets the arguments.
        let args = match self.plan.program {
            Program::Image => words.split_off(task.command.len()),
            _ => Vec::new(),
        };
        let unexpanded = |words: &[String]| -> Vec<String> {
            words.iter().map(|word| unexpanded(word)).collect()
        };
        let mut mounts = vec![json!({"name": "secret", "mountPath": SECRETS, "readOnly": true})];
        let mut container = json!({
            "name": CONTAINER,
            "image": task.image.as_deref().unwrap_or_default(),
            "env": all,
            "ports": [{"name": "cluster", "containerPort": PORT}],
            "securityContext": {"allowPrivilegeEscalation": false},
        });
        if self.spec.ours.kubernetes.claim.is_some() {
            let folder = self.life.job.directory.display().to_string();
            mounts.push(json!({"name": "folder", "mountPath": folder}));
            container["workingDir"] = json!(folder);
        }
        mounts.extend(package::of(self.spec).map(|_| package::mount()));
        container["volumeMounts"] = json!(mounts);
        if !words.is_empty() {
            container["command"] = json!(unexpanded(&words));
        }
        if !args.is_empty() {
            container["args"] = json!(unexpanded(&args));
        }
        if let Some(resources) = self.resources(task) {
            container["resources"] = resources;
        }
        container
    }

    /// The variables whose values are in the Secret.
    fn hidden(&self) -> Vec<Json> {
        let one = |name: &String| {
            let key = json!({"name": self.names.run, "key": name});
            json!({"name": name, "valueFrom": {"secretKeyRef": key}})
        };
        self.spec.ours.secrets.keys().map(one).collect()
    }

    /// What a pod asks for. A machine type stands for a node of that size, of which the system takes a part: three quarters of it are
    /// asked for, and processors are not limited. What `phalanx.cpus` and `phalanx.memory` say is asked for as it is.
    fn resources(&self, task: &TaskPlan) -> Option<Json> {
        let wanted = task.resources;
        let mut resources = json!({});
        if wanted.cpus > 0 {
            let share = if self.spec.ours.cpus.is_some() {
                1000
            } else {
                750
            };
            resources["requests"]["cpu"] = json!(format!("{}m", u64::from(wanted.cpus) * share));
        }
        if wanted.memory > 0 {
            let exact = self.spec.ours.memory.is_some();
            let asked = if exact {
                wanted.memory
            } else {
                wanted.memory / 4 * 3
            };
            resources["requests"]["memory"] = json!(asked.to_string());
            resources["limits"]["memory"] = json!(wanted.memory.to_string());
        }
        if wanted.gpus > 0 {
            resources["limits"]["nvidia.com/gpu"] = json!(wanted.gpus);
        }
        resources
            .as_object()
            .is_some_and(|all| !all.is_empty())
            .then_some(resources)
    }
}

/// Variables as a container has them.
fn named(variables: &Variables) -> Vec<Json> {
    let one = |(name, value): (&String, &String)| json!({"name": name, "value": unexpanded(value)});
    variables.iter().map(one).collect()
}

/// When a worker gets another pod: after a loss, which costs one of the restarts, or because its node was needed or has gone, which costs
/// none. After a mistake another pod would make it, too.
fn replaced() -> Json {
    // 75 and the ends by SIGHUP, SIGINT and SIGKILL.
    let codes =
        json!({"containerName": CONTAINER, "operator": "NotIn", "values": [75, 129, 130, 137]});
    json!({"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        // Schemas before version 1.29 want the conditions also where there are none.
        {"action": "FailJob", "onExitCodes": codes, "onPodConditions": []},
    ]})
}

/// The objects without what is secret, for people.
pub(super) fn shown(making: &Making<'_>) -> String {
    let mut objects = making.objects("", &Variables::new());
    if let Some(secret) = objects.first_mut() {
        secret.as_object_mut().map(|fields| fields.remove("data"));
        secret["stringData"] = json!({(JOB_SECRET): "(made when the job starts)"});
        for (name, file) in &making.spec.ours.secrets {
            secret["stringData"][name] = json!(format!("(what {file} holds)"));
        }
    }
    let texts: Vec<String> = objects.iter().map(phalanx_yaml::to_yaml).collect();
    texts.join("---\n")
}

/// Text in which Kubernetes replaces nothing: `$(NAME)` stands for a variable there.
pub(super) fn unexpanded(text: &str) -> String {
    text.replace('$', "$$")
}

/// The task of a pod or a Job, by its place in the plan.
pub(super) fn task_of(plan: &Plan, object: &Json) -> Option<usize> {
    let name = object["metadata"]["labels"]["phalanx/task"].as_str()?;
    plan.tasks
        .iter()
        .position(|task| task_name(task.task) == name)
}
