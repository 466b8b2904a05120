//! The whole of a job file: every field of AI Platform's `trainingInput` is used, mapped, kept with a notice, or refused with a reason.

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx_cluster::TaskKind;
use phalanx_store::ObjectUrl;
use phalanx_yaml::{Node, Position, Value, nearest};
use serde_json::{Value as Json, json};

use super::check;
use super::fields::{Fields, Notes};
use super::hyperparameters::{self, Hyperparameters};
use super::machines::{ACCELERATORS, Machine, TIERS, machine, machine_names};
use super::name::JobName;
use super::phalanx_keys::{self, MOST_TASKS, Ours};
use super::source::Source;

/// What a job asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The roles that have tasks: the master first.
    pub roles: Vec<Role>,
    /// Whether TF_CONFIG calls the master `chief`, as it does where nothing is said, or `master`.
    pub chief: bool,
    /// Where the job's results go.
    pub job_dir: Option<String>,
    /// When it runs, and for how long.
    pub scheduling: Scheduling,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// A Python module, the program.
    pub python_module: Option<String>,
    /// The folder of the Python module or the program, or the URL of one in a bucket.
    pub package: Option<String>,
    /// A search over hyperparameters.
    pub hyperparameters: Option<Hyperparameters>,
    /// The service account of the pods.
    pub service_account: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Our keys.
    pub ours: Ours,
    /// What a user should know: fields that are kept and change nothing here.
    pub notices: Vec<String>,
}

/// The tasks of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Role {
    /// The kind; the master is [`TaskKind::Chief`].
    pub kind: TaskKind,
    /// How many, at least 1.
    pub count: usize,
    /// The machine of each, if one is named.
    pub machine: Option<Machine>,
    /// Accelerators of each.
    pub accelerator: Option<Accelerator>,
    /// The container image.
    pub image: Option<String>,
    /// What is run in the container in place of its entry point.
    pub command: Vec<String>,
    /// Arguments in place of the job's.
    pub args: Vec<String>,
}

/// Accelerators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accelerator {
    /// AI Platform's name of the type; empty for none of no type.
    pub kind: String,
    /// How many; 0 where a job says that it wants none.
    pub count: u32,
}

/// When a job runs, and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scheduling {
    /// From RUNNING on; 7 days where nothing is said.
    pub max_running: Duration,
    /// In the queue; without bound where nothing is said.
    pub max_wait: Option<Duration>,
    /// 0 to 1000; larger comes first.
    pub priority: u32,
}

const TOP: [&str; 3] = ["trainingInput", "labels", "phalanx"];
/// Fields of a job that a `describe` prints: a file made of it is read.
const TOP_IGNORED: [&str; 9] = [
    "jobId",
    "createTime",
    "startTime",
    "endTime",
    "state",
    "etag",
    "errorMessage",
    "jobPosition",
    "trainingOutput",
];
const FIELDS: [&str; 24] = [
    "scaleTier",
    "masterType",
    "masterConfig",
    "workerType",
    "workerConfig",
    "workerCount",
    "parameterServerType",
    "parameterServerConfig",
    "parameterServerCount",
    "evaluatorType",
    "evaluatorConfig",
    "evaluatorCount",
    "packageUris",
    "pythonModule",
    "args",
    "hyperparameters",
    "region",
    "jobDir",
    "runtimeVersion",
    "pythonVersion",
    "encryptionConfig",
    "scheduling",
    "network",
    "serviceAccount",
];
const SWITCHES: [&str; 2] = ["useChiefInTfConfig", "enableWebAccess"];
pub(super) const PATH: &str = "trainingInput";
/// Each role: its kind, the prefix of its fields.
const ROLES: [(TaskKind, &str); 4] = [
    (TaskKind::Chief, "master"),
    (TaskKind::Worker, "worker"),
    (TaskKind::ParameterServer, "parameterServer"),
    (TaskKind::Evaluator, "evaluator"),
];

impl Spec {
    /// Reads all of a job file with its flags.
    ///
    /// # Errors
    /// Every mistake, a line each, with its place and what to do.
    pub fn read(source: &Source) -> Result<Self, String> {
        let mut notes = Notes {
            problems: source.problems().to_vec(),
            ..Notes::default()
        };
        let known: Vec<&str> = TOP.iter().chain(&TOP_IGNORED).copied().collect();
        let top = Fields::of(source.root(), "the job", &known, &mut notes);
        let empty = Node {
            value: Value::Null,
            at: Position::START,
        };
        let known: Vec<&str> = FIELDS.iter().chain(&SWITCHES).copied().collect();
        let node = top.get(PATH).unwrap_or(&empty);
        let input = Fields::of(node, PATH, &known, &mut notes);
        let is_described = top.get("createTime").is_some();
        let ours = phalanx_keys::read(top.get("phalanx"), is_described, &mut notes);
        let roles = check::counted(roles(&input, &ours, &mut notes), &ours);
        let spec = Self {
            chief: input.flag("useChiefInTfConfig", &mut notes).unwrap_or(true),
            job_dir: job_dir(&input, &mut notes),
            scheduling: scheduling(input.get("scheduling"), &mut notes),
            args: input.texts("args", &mut notes),
            python_module: input.text("pythonModule", &mut notes),
            package: packages(&input, &mut notes),
            hyperparameters: input
                .get("hyperparameters")
                .and_then(|node| hyperparameters::read(node, &mut notes)),
            service_account: account(&input, &ours, &mut notes),
            labels: labels(&top, &mut notes),
            roles,
            ours,
            notices: Vec::new(),
        };
        check::kept(&input, &spec, &mut notes);
        check::program(&input, &spec, &mut notes);
        check::elastic(&input, &spec, &mut notes);
        check::nodes(&top, &spec, &mut notes);
        check::visible_gpus(&spec, &mut notes);
        if notes.problems.is_empty() {
            let notices = notes.notices;
            Ok(Self { notices, ..spec })
        } else {
            Err(source.describe(notes.problems))
        }
    }

    /// Reads the job file of a job with this name.
    ///
    /// # Errors
    /// The mistake in the name, and every mistake of [`Spec::read`], a line each.
    pub fn of_job(name: &str, source: &Source) -> Result<(JobName, Self), String> {
        match (name.parse::<JobName>(), Self::read(source)) {
            (Ok(name), Ok(spec)) => Ok((name, spec)),
            (Ok(_), Err(mistakes)) => Err(mistakes),
            (Err(error), Ok(_)) => Err(error.to_string()),
            (Err(error), Err(mistakes)) => Err(format!("{error}\n{mistakes}")),
        }
    }

    /// What follows for the job of this name where its file says nothing: keys and values, the same as [`Spec::read`] takes.
    #[must_use]
    pub fn defaults(&self, job: &str) -> Vec<(&'static str, Json)> {
        let seconds = |time: Duration| format!("{}s", time.as_secs());
        let wait = self.scheduling.max_wait.map(seconds);
        vec![
            ("trainingInput.jobDir", json!(format!("runs/{job}"))),
            (
                "trainingInput.scheduling.maxRunningTime",
                json!(seconds(self.scheduling.max_running)),
            ),
            (
                "trainingInput.scheduling.maxWaitTime",
                wait.map_or(json!("without bound"), Json::from),
            ),
            (
                "trainingInput.scheduling.priority",
                json!(self.scheduling.priority),
            ),
            ("trainingInput.useChiefInTfConfig", json!(self.chief)),
            ("phalanx.executor", json!(self.ours.executor.name())),
            ("phalanx.restarts", json!(self.ours.restarts)),
        ]
    }

    /// The number of tasks.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.roles.iter().map(|role| role.count).sum()
    }

    /// The master's role.
    #[must_use]
    pub fn master(&self) -> Option<&Role> {
        self.roles.first()
    }
}

fn roles(input: &Fields<'_>, ours: &Ours, notes: &mut Notes) -> Vec<Role> {
    let tiers: Vec<&str> = TIERS.iter().map(|tier| tier.name).collect();
    let words: Vec<&str> = tiers.iter().copied().chain(["CUSTOM"]).collect();
    let given = input.word("scaleTier", &words, notes);
    let custom = [
        "masterType",
        "workerType",
        "workerCount",
        "parameterServerType",
        "parameterServerCount",
        "evaluatorType",
        "evaluatorCount",
    ];
    let named = custom.iter().find(|name| input.get(name).is_some());
    if let Some(workers) = ours.workers {
        if let Some(name) = named {
            let message =
                format!("phalanx.workers and {PATH}.{name} both say how many tasks there are");
            notes.wrong(input.place(name), message, "remove one of the two");
        }
        return plain_roles(workers, input, notes);
    }
    let most = ours.elastic.map_or(1, |(_, most)| most);
    match (given, named) {
        (Some("CUSTOM"), _) => custom_roles(input, notes),
        (None, Some(_)) if input.get("scaleTier").is_some() => custom_roles(input, notes),
        (None, Some(name)) => {
            let message =
                format!("{PATH}.{name} is for scaleTier CUSTOM, and no scaleTier is given");
            notes.wrong(input.place(name), message, "add `scaleTier: CUSTOM`");
            custom_roles(input, notes)
        }
        (Some(tier), Some(name)) => {
            let message = format!("{PATH}.{name} is for scaleTier CUSTOM, it is {tier}");
            let next = "write `scaleTier: CUSTOM`, or remove the field";
            notes.wrong(input.place(name), message, next);
            Vec::new()
        }
        // Nothing is said of machines: one task with what there is, or as many as an elastic job may have.
        (None, None) => plain_roles(most, input, notes),
        (Some(tier), None) => tier_roles(tier, input, notes),
    }
}

fn plain_roles(workers: usize, input: &Fields<'_>, notes: &mut Notes) -> Vec<Role> {
    let master = role(TaskKind::Chief, 1, None, "master", input, notes);
    let mut roles = vec![master];
    if workers > 1 {
        let mut worker = role(TaskKind::Worker, workers - 1, None, "worker", input, notes);
        inherit(&mut worker, &roles[0]);
        roles.push(worker);
    }
    roles
}

fn tier_roles(name: &str, input: &Fields<'_>, notes: &mut Notes) -> Vec<Role> {
    let Some(tier) = TIERS.iter().find(|tier| tier.name == name) else {
        return Vec::new();
    };
    let shares = [Some((tier.master, 1)), tier.workers, tier.servers];
    let mut roles: Vec<Role> = Vec::new();
    for ((kind, prefix), share) in ROLES.into_iter().zip(shares) {
        let Some((name, count)) = share else { continue };
        let mut role = role(kind, count as usize, machine(name), prefix, input, notes);
        if let Some(master) = roles.first() {
            inherit(&mut role, master);
        } else if let Some((kind, count)) = tier.accelerator {
            let kind = kind.to_owned();
            role.accelerator.get_or_insert(Accelerator { kind, count });
        }
        roles.push(role);
    }
    roles
}

fn custom_roles(input: &Fields<'_>, notes: &mut Notes) -> Vec<Role> {
    let mut roles: Vec<Role> = Vec::new();
    for (kind, prefix) in ROLES {
        let (count_name, type_name) = (format!("{prefix}Count"), format!("{prefix}Type"));
        let most = if kind == TaskKind::Evaluator {
            1
        } else {
            MOST_TASKS
        };
        let count = match kind {
            TaskKind::Chief => 1,
            _ => input.whole(&count_name, 0, most, notes).unwrap_or(0) as usize,
        };
        let machine = machine_of(input, &type_name, notes);
        if count > 0 && input.get(&type_name).is_none() {
            let message = match kind {
                TaskKind::Chief => format!("scaleTier CUSTOM needs {PATH}.masterType"),
                _ => format!("{PATH}.{count_name} is {count}, and there is no {type_name}"),
            };
            let place = match kind {
                TaskKind::Chief => input.place("scaleTier"),
                _ => input.place(&count_name),
            };
            notes.wrong(
                place,
                message,
                format!("add {type_name}, such as n1-standard-8"),
            );
        }
        if count == 0 {
            if input.get(&type_name).is_some() {
                let message = format!("{PATH}.{type_name} is given, and there are no such tasks");
                notes.wrong(
                    input.place(&type_name),
                    message,
                    format!("add {count_name}: 1, or remove {type_name}"),
                );
            }
            continue;
        }
        let mut role = role(kind, count, machine, prefix, input, notes);
        if let Some(master) = roles.first() {
            inherit(&mut role, master);
        }
        roles.push(role);
    }
    roles
}

/// What the other roles take from the master where they say nothing.
fn inherit(role: &mut Role, master: &Role) {
    if role.image.is_none() {
        role.image.clone_from(&master.image);
        if role.command.is_empty() {
            role.command.clone_from(&master.command);
        }
        if role.args.is_empty() {
            role.args.clone_from(&master.args);
        }
    }
}

fn machine_of(input: &Fields<'_>, field: &str, notes: &mut Notes) -> Option<Machine> {
    let name = input.text(field, notes)?;
    let found = machine(&name);
    if found.is_none() {
        let names = machine_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let message = format!(
            "{PATH}.{field} is {:?}, which is no machine type",
            name.chars().take(40).collect::<String>()
        );
        let next = match nearest(&name, &names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "use one such as n1-standard-8, n1-highmem-8 or a2-highgpu-1g".to_owned(),
        };
        notes.wrong(input.place(field), message, next);
    }
    found
}

/// The `..Config` of a role.
fn role(
    kind: TaskKind,
    count: usize,
    machine: Option<Machine>,
    prefix: &str,
    input: &Fields<'_>,
    notes: &mut Notes,
) -> Role {
    let of_machine = machine
        .as_ref()
        .and_then(|machine| machine.accelerators.clone());
    let of_machine = of_machine.map(|(kind, count)| Accelerator { kind, count });
    let mut role = Role {
        kind,
        count,
        machine,
        accelerator: of_machine,
        image: None,
        command: Vec::new(),
        args: Vec::new(),
    };
    let Some(node) = input.get(&format!("{prefix}Config")) else {
        return role;
    };
    let path = format!("{PATH}.{prefix}Config");
    let known = [
        "acceleratorConfig",
        "imageUri",
        "containerCommand",
        "containerArgs",
        "diskConfig",
        "tpuTfVersion",
    ];
    let fields = Fields::of(node, &path, &known, notes);
    role.image = fields.text("imageUri", notes);
    role.command = fields.texts("containerCommand", notes);
    role.args = fields.texts("containerArgs", notes);
    if let Some(node) = fields.get("acceleratorConfig") {
        role.accelerator = accelerator(node, &path, notes);
    }
    if let Some(node) = fields.get("diskConfig") {
        disk(node, &path, notes);
        notes.notices.push(format!(
            "{path}.diskConfig is kept; the machines' own disks are used"
        ));
    }
    if fields.get("tpuTfVersion").is_some() {
        let message = format!("{path}.tpuTfVersion asks for TensorFlow on a TPU's host");
        notes.wrong(fields.place("tpuTfVersion"), message, "remove it");
    }
    if !role.args.is_empty() && input.get("args").is_some() {
        let message = format!("{path}.containerArgs and {PATH}.args are both given");
        notes.wrong(
            fields.place("containerArgs"),
            message,
            "give one of the two",
        );
    }
    role
}

/// A disk changes nothing here; mistakes in it are mistakes with AI Platform.
fn disk(node: &Node, path: &str, notes: &mut Notes) {
    let path = format!("{path}.diskConfig");
    let known = ["bootDiskType", "bootDiskSizeGb"];
    let fields = Fields::of(node, &path, &known, notes);
    let _ = fields.word("bootDiskType", &["pd-ssd", "pd-standard"], notes);
    let _ = fields.whole("bootDiskSizeGb", 1, 65_536, notes);
}

fn accelerator(node: &Node, path: &str, notes: &mut Notes) -> Option<Accelerator> {
    let path = format!("{path}.acceleratorConfig");
    let fields = Fields::of(node, &path, &["count", "type"], notes);
    let count = fields.whole("count", 0, 1024, notes).unwrap_or(1) as u32;
    if count > 0 && fields.get("type").is_none() {
        let next = format!("add one of {}", ACCELERATORS.join(", "));
        notes.wrong(fields.at(), format!("{path} has no type"), next);
    }
    let none = (count == 0).then_some("");
    let kind = fields.word("type", &ACCELERATORS, notes).or(none)?;
    let kind = kind.to_owned();
    Some(Accelerator { kind, count })
}

fn scheduling(node: Option<&Node>, notes: &mut Notes) -> Scheduling {
    let mut scheduling = Scheduling {
        max_running: Duration::from_secs(604_800),
        max_wait: None,
        priority: 0,
    };
    let Some(node) = node else { return scheduling };
    let known = ["maxRunningTime", "maxWaitTime", "priority"];
    let fields = Fields::of(node, "trainingInput.scheduling", &known, notes);
    if let Some(time) = fields.duration("maxRunningTime", 1, notes) {
        scheduling.max_running = time;
    }
    // AI Platform asks for 1800 s at least, for what took it ten minutes to start.
    scheduling.max_wait = fields.duration("maxWaitTime", 1, notes);
    scheduling.priority = fields.whole("priority", 0, 1000, notes).unwrap_or(0) as u32;
    scheduling
}

fn packages(input: &Fields<'_>, notes: &mut Notes) -> Option<String> {
    let uris = input.texts("packageUris", notes);
    match uris.as_slice() {
        [] => None,
        [one] if is_archive(one) => {
            let shown: String = one.chars().take(200).collect();
            notes.wrong(
                input.place("packageUris"),
                format!("{PATH}.packageUris: {shown:?} is an archive, and a package is a folder here"),
                "unpack it and name its folder with --package-path, which takes --staging-bucket too",
            );
            None
        }
        [one] if one.contains("://") => match ObjectUrl::parse(one) {
            Ok(url) => Some(url.to_string()),
            Err(error) => {
                let message = format!("{PATH}.packageUris: {error}");
                let next = "name a package that --staging-bucket has made, or a folder";
                notes.wrong(input.place("packageUris"), message, next);
                None
            }
        },
        [one] => Some(one.clone()),
        [one, ..] => {
            let shown: String = one.chars().take(60).collect();
            let message = format!(
                "{PATH}.packageUris has {} entries, the first {shown:?}; expected one folder, or one package in a bucket",
                uris.len()
            );
            notes.wrong(
                input.place("packageUris"),
                message,
                "unpack the package and name its folder with --package-path",
            );
            None
        }
    }
}

/// The folder of results; one in a bucket without slashes at its end, since names are put behind it.
fn job_dir(input: &Fields<'_>, notes: &mut Notes) -> Option<String> {
    let folder = input.text("jobDir", notes)?;
    if folder.trim().is_empty() {
        let (what, next) = (format!("{PATH}.jobDir is empty"), "name a folder");
        notes.wrong(input.place("jobDir"), what, next);
    }
    Some(ObjectUrl::parse(&folder).map_or(folder, |url| url.to_string()))
}

/// Whether a name is of what Python's tools pack.
fn is_archive(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    [
        ".tar.gz", ".tgz", ".tar.bz2", ".tar", ".zip", ".whl", ".egg",
    ]
    .iter()
    .any(|end| lower.ends_with(end))
}

/// Labels as Google takes them: lower-case letters, digits, `_` and `-`, at most 63 characters and 64 labels.
pub(crate) fn label_problem(name: &str, value: &str) -> Option<String> {
    let plain = |text: &str| {
        let fits = |c: char| c.is_lowercase() || c.is_numeric() || c == '_' || c == '-';
        text.chars().count() <= 63 && text.chars().all(fits)
    };
    let first = name.chars().next().is_some_and(char::is_lowercase);
    let wrong = !first || !plain(name) || !plain(value);
    wrong.then(|| format!("the label {name:?} is {value:?}; expected a name that begins with a letter, and lower-case letters, digits, _ and -, 63 at most"))
}

fn labels(top: &Fields<'_>, notes: &mut Notes) -> BTreeMap<String, String> {
    let labels = top.map("labels", notes);
    for (name, value) in &labels {
        if let Some(message) = label_problem(name, value) {
            notes.wrong(top.place("labels"), message, "rename it");
        }
    }
    if labels.len() > 64 {
        notes.wrong(
            top.place("labels"),
            format!("there are {} labels, expected at most 64", labels.len()),
            "remove some",
        );
    }
    labels
}

/// The service account, which only Kubernetes has.
fn account(input: &Fields<'_>, ours: &Ours, notes: &mut Notes) -> Option<String> {
    let in_pods = ours.executor == phalanx_keys::ExecutorKind::Kubernetes;
    let other = ours.kubernetes.service_account.as_ref();
    if in_pods && other.is_none() {
        return phalanx_keys::object_name(input, "serviceAccount", true, notes);
    }
    let account = input.text("serviceAccount", notes)?;
    let why = match other.filter(|_| in_pods) {
        Some(other) => format!("the pods have {other:?}"),
        None => "only Kubernetes has such accounts".to_owned(),
    };
    notes
        .notices
        .push(format!("{PATH}.serviceAccount {account:?} is kept; {why}"));
    None
}
