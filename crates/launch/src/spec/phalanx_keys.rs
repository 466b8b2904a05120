//! Our keys, under `phalanx`: where a job runs, what it runs, and what AI Platform has no word for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use phalanx_yaml::{Bytes, Node, shown};

use super::fields::{Fields, Notes};
use super::pods::{self, Toleration};

/// Where a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutorKind {
    /// On this machine.
    Local,
    /// On the nodes that Slurm gives.
    Slurm,
    /// In pods.
    Kubernetes,
}

impl ExecutorKind {
    /// All names.
    pub const NAMES: [&str; 3] = ["local", "slurm", "kubernetes"];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// The kind of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Local, Self::Slurm, Self::Kubernetes];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// All keys under `phalanx`.
#[derive(Debug, Clone, PartialEq)]
pub struct Ours {
    /// Where the job runs.
    pub executor: ExecutorKind,
    /// A training file (`.yaml`) or a program; `None` leaves it to the image, the Python module or the first argument.
    pub program: Option<String>,
    /// Workers without machine types, sharing what there is; the first is the chief.
    pub workers: Option<usize>,
    /// How often a job is started again after a loss (exit code 75); preemptions (143) do not count.
    pub restarts: u32,
    /// The least and the most workers of an elastic job.
    pub elastic: Option<(usize, usize)>,
    /// The folder in which tasks start.
    pub directory: Option<String>,
    /// Processors of each task, in place of the machine type's.
    pub cpus: Option<u32>,
    /// Memory of each task in bytes, in place of the machine type's.
    pub memory: Option<u64>,
    /// GPUs of each task but parameter servers, in place of its `acceleratorConfig`.
    pub gpus: Option<u32>,
    /// More variables of every task.
    pub env: BTreeMap<String, String>,
    /// Variables of every task whose values are in files, read when a task starts and shown nowhere.
    pub secrets: BTreeMap<String, String>,
    /// Slurm's own settings.
    pub slurm: SlurmKeys,
    /// Kubernetes' own settings.
    pub kubernetes: KubernetesKeys,
}

/// Settings that Slurm gets as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlurmKeys {
    /// `--partition`.
    pub partition: Option<String>,
    /// `--account`.
    pub account: Option<String>,
    /// `--qos`.
    pub qos: Option<String>,
    /// `--constraint`.
    pub constraint: Option<String>,
    /// `--reservation`.
    pub reservation: Option<String>,
    /// `--nodes`; as many as tasks where it is not given.
    pub nodes: Option<usize>,
}

/// Settings that Kubernetes gets as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KubernetesKeys {
    /// The namespace; where it is not given the context's, then `default`.
    pub namespace: Option<String>,
    /// The image, where no `imageUri` is given.
    pub image: Option<String>,
    /// The image with `phalanx-jobs` that brings a package from a bucket; the task's where it is not given.
    pub package_image: Option<String>,
    /// The service account of the pods.
    pub service_account: Option<String>,
    /// Labels that the nodes of the pods must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that keep no pod away.
    pub tolerations: Vec<Toleration>,
    /// The secrets by which images are pulled.
    pub image_pull_secrets: Vec<String>,
    /// A volume claim, mounted at the job's folder.
    pub claim: Option<String>,
    /// The API server's address; the cluster of the pod, or `kubectl proxy`, where it is not given.
    pub server: Option<String>,
}

/// All keys under `phalanx`, under its `elastic`, `slurm` and `kubernetes`; `docs/jobs.md` describes each.
const FIELDS: [&str; 13] = [
    "executor",
    "program",
    "workers",
    "restarts",
    "elastic",
    "directory",
    "cpus",
    "memory",
    "gpus",
    "env",
    "secrets",
    "slurm",
    "kubernetes",
];
/// What a `describe` shows beside them; a file made of it is read.
pub const DESCRIBED: [&str; 6] = [
    "tasks",
    "attempt",
    "jobDir",
    "handle",
    "firstFailure",
    "waitsFor",
];
const ELASTIC: [&str; 2] = ["minWorkers", "maxWorkers"];
const SLURM: [&str; 6] = [
    "partition",
    "account",
    "qos",
    "constraint",
    "reservation",
    "nodes",
];
const KUBERNETES: [&str; 9] = [
    "namespace",
    "image",
    "packageImage",
    "serviceAccount",
    "nodeSelector",
    "tolerations",
    "imagePullSecrets",
    "claim",
    "server",
];

/// How the names of variables begin that belong to the script that starts tasks.
pub(crate) const SCRIPT_PREFIX: &str = "phalanx_";

/// Variables that a shell does not pass on as it was given them.
const OF_THE_SHELL: [&str; 16] = [
    "UID",
    "EUID",
    "PPID",
    "GROUPS",
    "SHELLOPTS",
    "RANDOM",
    "SRANDOM",
    "SECONDS",
    "EPOCHSECONDS",
    "EPOCHREALTIME",
    "LINENO",
    "FUNCNAME",
    "DIRSTACK",
    "HISTCMD",
    "OPTIND",
    "_",
];

/// More tasks than this are a mistake.
pub(super) const MOST_TASKS: i64 = 10_000;

/// Reads what is under `phalanx`, in a job file or in what a `describe` shows of a job.
pub(super) fn read(node: Option<&Node>, is_described: bool, notes: &mut Notes) -> Ours {
    let empty = Node {
        value: phalanx_yaml::Value::Null,
        at: phalanx_yaml::Position::START,
    };
    let described = DESCRIBED.iter().filter(|_| is_described);
    let known: Vec<&str> = FIELDS.iter().chain(described).copied().collect();
    let fields = Fields::of(node.unwrap_or(&empty), "phalanx", &known, notes);
    let executor = fields.word("executor", &ExecutorKind::NAMES, notes);
    let elastic = fields.get("elastic").and_then(|node| elastic(node, notes));
    let env = fields.map("env", notes);
    let secrets = fields.map("secrets", notes);
    for (key, name) in
        (env.keys().map(|name| ("env", name))).chain(secrets.keys().map(|name| ("secrets", name)))
    {
        check_variable(key, name, &fields, notes);
    }
    let memory = fields.text("memory", notes).and_then(|text| {
        let read: Result<Bytes, String> = text.parse();
        let wrong = |why: String| {
            let message = format!("phalanx.memory: {why}");
            notes.wrong(fields.place("memory"), message, "write it as 4GiB");
        };
        read.map(|Bytes(bytes)| bytes).map_err(wrong).ok()
    });
    Ours {
        executor: executor
            .and_then(ExecutorKind::named)
            .unwrap_or(ExecutorKind::Local),
        program: fields.text("program", notes),
        workers: fields
            .whole("workers", 1, MOST_TASKS, notes)
            .map(|n| n as usize),
        restarts: fields
            .whole("restarts", 0, 1000, notes)
            .map_or(3, |n| n as u32),
        elastic,
        directory: fields.text("directory", notes),
        cpus: fields.whole("cpus", 1, 4096, notes).map(|n| n as u32),
        memory,
        gpus: fields.whole("gpus", 0, 1024, notes).map(|n| n as u32),
        env,
        secrets,
        slurm: slurm(fields.get("slurm"), notes),
        kubernetes: kubernetes(fields.get("kubernetes"), notes),
    }
}

fn check_variable(key: &str, name: &str, fields: &Fields<'_>, notes: &mut Notes) {
    let mut characters = name.chars();
    let first = characters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !first || !characters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        let message = format!("{name:?} is no name of a variable");
        notes.wrong(fields.place(key), message, "use letters, digits and `_`");
    }
    if super::plan::OURS.contains(&name) {
        let message = format!("{name} is set by the job itself");
        notes.wrong(fields.place(key), message, "remove it");
    }
    // A shell reads secrets where Slurm starts tasks; all other variables never are variables of that shell.
    let shell = OF_THE_SHELL.contains(&name) || name.starts_with("BASH");
    if key == "secrets" && (shell || name.starts_with(SCRIPT_PREFIX)) {
        let message = format!("{name} is a variable of the shell that starts tasks");
        notes.wrong(fields.place(key), message, "give the secret another name");
    }
}

fn elastic(node: &Node, notes: &mut Notes) -> Option<(usize, usize)> {
    let fields = Fields::of(node, "phalanx.elastic", &ELASTIC, notes);
    let least = fields.whole("minWorkers", 1, MOST_TASKS, notes)?;
    let most = fields.whole("maxWorkers", 1, MOST_TASKS, notes)?;
    if least > most {
        let message = format!("phalanx.elastic goes from {least} to {most} workers");
        notes.wrong(
            fields.place("maxWorkers"),
            message,
            "make maxWorkers at least minWorkers",
        );
        return None;
    }
    Some((least as usize, most as usize))
}

/// A word that may stand in a script and in YAML without quotes.
fn word(fields: &Fields<'_>, name: &str, notes: &mut Notes) -> Option<String> {
    let text = fields.text(name, notes)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@,&|=+".contains(c);
    if text.is_empty() || !text.chars().all(plain) || text.starts_with('-') {
        let message = format!("{name} is {:?}", text.chars().take(40).collect::<String>());
        notes.wrong(
            fields.place(name),
            message,
            "use letters, digits and ._-/:@,",
        );
        return None;
    }
    Some(text)
}

/// A name of an object in Kubernetes, as RFC 1123 has it: of one label, or of several with dots between them.
pub(super) fn object_name(
    fields: &Fields<'_>,
    name: &str,
    dots: bool,
    notes: &mut Notes,
) -> Option<String> {
    let text = fields.text(name, notes)?;
    let named = is_object_name(&text, dots);
    if !named {
        let most = longest_name(dots);
        notes.wrong(
            fields.place(name),
            format!("{name} is {}, which is no name in Kubernetes", shown(&text)),
            format!("use small letters, digits and `-` within, {most} at most"),
        );
    }
    named.then_some(text)
}

const fn longest_name(dots: bool) -> usize {
    if dots { 253 } else { 63 }
}

/// Whether a text is a name of an object in Kubernetes: of one label, or of several with dots between them.
pub(super) fn is_object_name(text: &str, dots: bool) -> bool {
    let is_label = |label: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && label.chars().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= longest_name(dots)
        && text.split('.').all(is_label)
        && (dots || !text.contains('.'))
}

fn slurm(node: Option<&Node>, notes: &mut Notes) -> SlurmKeys {
    let Some(node) = node else {
        return SlurmKeys::default();
    };
    let fields = Fields::of(node, "phalanx.slurm", &SLURM, notes);
    SlurmKeys {
        partition: word(&fields, "partition", notes),
        account: word(&fields, "account", notes),
        qos: word(&fields, "qos", notes),
        constraint: word(&fields, "constraint", notes),
        reservation: word(&fields, "reservation", notes),
        nodes: fields
            .whole("nodes", 1, MOST_TASKS, notes)
            .map(|n| n as usize),
    }
}

fn kubernetes(node: Option<&Node>, notes: &mut Notes) -> KubernetesKeys {
    let Some(node) = node else {
        return KubernetesKeys::default();
    };
    let fields = Fields::of(node, "phalanx.kubernetes", &KUBERNETES, notes);
    KubernetesKeys {
        namespace: object_name(&fields, "namespace", false, notes),
        image: word(&fields, "image", notes),
        package_image: word(&fields, "packageImage", notes),
        service_account: object_name(&fields, "serviceAccount", true, notes),
        node_selector: pods::node_selector(&fields, notes),
        tolerations: pods::tolerations(&fields, notes),
        image_pull_secrets: pods::pull_secrets(&fields, notes),
        claim: object_name(&fields, "claim", true, notes),
        server: word(&fields, "server", notes),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ELASTIC, FIELDS, KUBERNETES, SLURM};
    use crate::spec::{Source, Spec};

    #[test]
    fn every_key_has_a_row_in_the_page() {
        let page = include_str!("../../../../docs/jobs.md");
        let rows: Vec<&str> = (page.lines())
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        let inner = [
            ("elastic.", &ELASTIC[..]),
            ("slurm.", &SLURM),
            ("kubernetes.", &KUBERNETES),
        ];
        let has_no_keys = |name: &&&str| !["elastic", "slurm", "kubernetes"].contains(name);
        let own = FIELDS
            .iter()
            .filter(has_no_keys)
            .map(|name| (*name).to_owned());
        let inner = inner.into_iter();
        let inner =
            inner.flat_map(|(of, names)| names.iter().map(move |name| format!("{of}{name}")));
        for name in own.chain(inner) {
            assert!(rows.contains(&&*name), "docs/jobs.md has no row of {name}");
        }
    }

    #[test]
    fn nodes_of_slurm_have_a_task_each() {
        let read = |workers: u32, nodes: u32| {
            let slurm = json!({"nodes": nodes});
            let ours =
                json!({"program": "echo", "executor": "slurm", "workers": workers, "slurm": slurm});
            Spec::read(&Source::of_json(&json!({ "phalanx": ours }))).map(drop)
        };
        for (workers, nodes) in [(4, 1), (4, 2), (4, 4), (5, 2), (3, 8)] {
            assert_eq!(read(workers, nodes), Ok(()), "{workers} on {nodes}");
        }
        let why = read(4, 3).unwrap_err();
        assert!(
            why.contains("4 tasks, 2 on a node, fill 2; write nodes: 2"),
            "{why}"
        );
    }

    #[test]
    fn names_of_kubernetes_are_checked() {
        let read = |key: &str, name: &str| {
            let ours = json!({"program": "echo", "executor": "kubernetes", "kubernetes": {"image": "i", (key): name}});
            Spec::read(&Source::of_json(&json!({ "phalanx": ours }))).map(drop)
        };
        for (key, name, is_right) in [
            ("namespace", "train-1", true),
            ("namespace", "a.b", false),
            ("namespace", "a/../B_c", false),
            ("namespace", &"a".repeat(64), false),
            ("claim", "shared.v1", true),
            ("claim", "Bad_Name", false),
            ("claim", "a..b", false),
            ("serviceAccount", "robot", true),
            ("serviceAccount", "x/y", false),
            ("serviceAccount", "-x", false),
        ] {
            let read = read(key, name);
            let said = format!("{key} is ");
            assert_eq!(read.is_ok(), is_right, "{key} {name}: {read:?}");
            assert!(read.is_ok() || read.unwrap_err().contains(&said), "{key}");
        }
        let input = json!({"masterConfig": {"imageUri": "a b\nc"}});
        let ours = json!({"executor": "kubernetes"});
        let read = Spec::read(&Source::of_json(
            &json!({"trainingInput": input, "phalanx": ours}),
        ));
        assert!(read.unwrap_err().contains("which is no image"));
    }

    #[test]
    fn any_name_is_a_variable_and_secrets_have_none_of_the_shell() {
        let read = |key: &str, name: &str| {
            let mut job = json!({"phalanx": {"program": "echo"}});
            job["phalanx"][key] = json!({ name: "x" });
            Spec::read(&Source::of_json(&job)).map(drop)
        };
        for name in ["name", "phalanx_words", "UID", "RANDOM", "BASH_ENV"] {
            assert_eq!(read("env", name), Ok(()), "{name}");
            let why = read("secrets", name);
            assert_eq!(why.is_ok(), name == "name", "{name}: {why:?}");
            let said = format!("{name} is a variable of the shell that starts tasks");
            assert!(
                why.is_ok() || why.clone().is_err_and(|why| why.contains(&said)),
                "{why:?}"
            );
        }
        let why = read("secrets", "TF_CONFIG").unwrap_err();
        assert!(why.contains("TF_CONFIG is set by the job itself"), "{why}");
    }
}
