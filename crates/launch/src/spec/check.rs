//! What the fields of a job file must have in common, and those that change nothing here or cannot be honoured.

use phalanx_cluster::TaskKind;
use phalanx_cluster::launch::VISIBLE_GPUS;
use phalanx_store::ObjectUrl;
use phalanx_yaml::shown;

use super::fields::{Fields, Notes};
use super::phalanx_keys::{ExecutorKind, Ours};
use super::read::{Accelerator, PATH, Role, Spec};

/// Fields that change nothing here, and those that cannot be honoured.
pub(super) fn kept(input: &Fields<'_>, spec: &Spec, notes: &mut Notes) {
    for (name, why) in [
        (
            "encryptionConfig",
            "there is no key service here: put jobDir where the disk or the store is encrypted",
        ),
        (
            "network",
            "a job has the network of the machine it runs on: peer it there",
        ),
    ] {
        if input.get(name).is_some() {
            let message = format!("{PATH}.{name} cannot be honoured");
            notes.wrong(input.place(name), message, format!("{why}; remove it"));
        }
    }
    if spec.ours.executor == ExecutorKind::Kubernetes {
        check_pods(input, spec, notes);
    }
    let order = match spec.ours.executor {
        ExecutorKind::Local => None,
        ExecutorKind::Slurm => {
            Some("Slurm orders its queue itself, by phalanx.slurm.qos and its like")
        }
        ExecutorKind::Kubernetes => Some("the cluster orders its pods itself"),
    };
    if let Some(order) = order.filter(|_| spec.scheduling.priority > 0) {
        notes
            .notices
            .push(format!("{PATH}.scheduling.priority is kept; {order}"));
    }
    accelerators(input, spec, notes);
    for (name, why) in [
        ("region", "the job runs where the executor is"),
        ("runtimeVersion", "the program brings its own libraries"),
        (
            "pythonVersion",
            "`python3` of the machine or the image is used",
        ),
        (
            "enableWebAccess",
            "the dashboard shows the job; there is no shell in it",
        ),
    ] {
        if input.get(name).is_some() {
            let _ = input.text(name, notes);
            notes.notices.push(format!("{PATH}.{name} is kept; {why}"));
        }
    }
}

/// An elastic job: no parameter servers, and as many workers at the start as it may have.
pub(super) fn elastic(input: &Fields<'_>, spec: &Spec, notes: &mut Notes) {
    let Some((least, most)) = spec.ours.elastic else {
        return;
    };
    let is_server = |role: &Role| role.kind == TaskKind::ParameterServer;
    if spec.roles.iter().any(is_server) {
        notes.wrong(
            input.at(),
            "an elastic job has no parameter servers",
            "remove phalanx.elastic or the parameter servers",
        );
    }
    let trains = spec.roles.iter().filter(|role| role.kind.trains());
    let workers: usize = trains.map(|role| role.count).sum();
    if workers != most {
        let message = format!(
            "phalanx.elastic.maxWorkers is {most}, and the job has {workers} workers, the chief among them"
        );
        notes.wrong(
            input.at(),
            message,
            format!("write maxWorkers: {workers}, or change the number of workers"),
        );
    }
    if spec.ours.executor != ExecutorKind::Local {
        notes.notices.push(format!(
            "phalanx.elastic from {least} to {most}: the chief coordinates, and a worker that is lost is started again while the others wait; after a loss of the chief all tasks start again from the checkpoint"
        ));
    }
}

/// Tasks fill one node of Slurm after another, and Slurm gives each node one at least.
pub(super) fn nodes(top: &Fields<'_>, spec: &Spec, notes: &mut Notes) {
    let (Some(nodes), tasks) = (spec.ours.slurm.nodes, spec.tasks()) else {
        return;
    };
    let each = tasks.div_ceil(nodes);
    if nodes >= tasks || tasks.div_ceil(each) == nodes {
        return;
    }
    let slurm = top.get("phalanx").and_then(|node| node.entry("slurm"));
    let node = slurm.and_then(|node| node.entry("nodes"));
    let fitting = tasks.div_ceil(each);
    notes.wrong(
        node.map_or(top.at(), |node| node.at),
        format!(
            "phalanx.slurm.nodes is {nodes}, and {tasks} tasks, {each} on a node, fill {fitting}"
        ),
        format!("write nodes: {fitting}, or another number that divides {tasks}"),
    );
}

/// What pods need that processes do not.
fn check_pods(input: &Fields<'_>, spec: &Spec, notes: &mut Notes) {
    let ours = &spec.ours.kubernetes;
    let without = |role: &Role| role.image.is_none() && ours.image.is_none();
    if spec.roles.iter().any(without) {
        notes.wrong(
            input.at(),
            "pods of Kubernetes need an image, and none is named",
            "add masterConfig.imageUri, or phalanx.kubernetes.image",
        );
    }
    let is_wrong = |image: &&String| {
        let wrong = |c: char| c.is_whitespace() || c.is_control();
        image.is_empty() || image.contains(wrong)
    };
    let images = spec.roles.iter().filter_map(|role| role.image.as_ref());
    if let Some(image) = images.into_iter().find(is_wrong) {
        notes.wrong(
            input.place("masterConfig"),
            format!("imageUri is {}, which is no image", shown(image)),
            "write it without blanks, as registry.example/name:tag",
        );
    }
    let into_bucket = (spec.job_dir.as_deref()).is_some_and(ObjectUrl::is_url);
    if ours.claim.is_some() || into_bucket {
        return;
    }
    if spec.hyperparameters.is_some() {
        notes.wrong(
            input.place("hyperparameters"),
            "a search reads its metric from the volume of its pods, and none is named",
            "name a volume claim that this machine sees as well, in phalanx.kubernetes.claim",
        );
    } else {
        notes.notices.push(format!(
            "{PATH}.jobDir is in the pods and ends with them; name a volume claim in phalanx.kubernetes.claim to keep it"
        ));
    }
}

/// GPUs of the wanted number and any type; TPUs are no GPUs, which is all that Slurm and Kubernetes are asked for.
fn accelerators(input: &Fields<'_>, spec: &Spec, notes: &mut Notes) {
    let wanted = || {
        let given = spec.roles.iter();
        let given = given.filter_map(|role| role.accelerator.as_ref());
        given.filter(|accelerator| accelerator.count > 0)
    };
    let executor = spec.ours.executor;
    let tpu = wanted().find(|accelerator| !accelerator.is_gpu());
    if let (Some(tpu), false) = (tpu, executor == ExecutorKind::Local) {
        let message = format!(
            "{PATH} asks for {}, and a job on {} gets GPUs only",
            tpu.kind,
            executor.name()
        );
        let next = "ask for GPUs, or use --to local on the TPU's host";
        notes.wrong(input.place("scaleTier"), message, next);
    } else if wanted().next().is_some() {
        let why = match executor {
            ExecutorKind::Local if tpu.is_some() => {
                "a program finds the TPUs of this machine itself"
            }
            ExecutorKind::Local => "tasks get this number of the GPUs of this machine",
            ExecutorKind::Slurm => {
                "tasks get this number of the GPUs that the cluster's nodes have"
            }
            ExecutorKind::Kubernetes => "pods get the GPUs that the cluster's nodes have",
        };
        let notice = format!("acceleratorConfig.type is kept; {why}");
        notes.notices.push(notice);
    }
}

impl Accelerator {
    /// Whether it is a GPU; all others are TPUs.
    pub(super) fn is_gpu(&self) -> bool {
        !self.kind.starts_with("TPU")
    }
}

impl Spec {
    /// Whether the job says how many GPUs its tasks have, and leaves it to others which.
    #[must_use]
    pub fn names_gpus(&self) -> bool {
        self.counts_gpus() && !self.ours.env.contains_key(VISIBLE_GPUS)
    }

    fn counts_gpus(&self) -> bool {
        let mut accelerators = self
            .roles
            .iter()
            .filter_map(|role| role.accelerator.as_ref());
        self.ours.gpus.is_some() || accelerators.any(Accelerator::is_gpu)
    }
}

/// The GPUs of each task of a kind that `phalanx.gpus` says, if it is there.
pub(super) fn gpus_of(kind: TaskKind, ours: &Ours) -> Option<u32> {
    match kind {
        TaskKind::ParameterServer => ours.gpus.map(|_| 0),
        _ => ours.gpus,
    }
}

/// Roles with as many GPUs as `phalanx.gpus` says, if it is there, and of the type that they have.
pub(super) fn counted(mut roles: Vec<Role>, ours: &Ours) -> Vec<Role> {
    for role in &mut roles {
        let Some(count) = gpus_of(role.kind, ours) else {
            continue;
        };
        if let Some(given) = role
            .accelerator
            .take_if(|given| given.is_gpu() && !given.kind.is_empty())
        {
            role.accelerator = (count > 0).then_some(Accelerator { count, ..given });
        }
    }
    roles
}

/// Tasks that say themselves which GPUs they see are given none.
pub(super) fn visible_gpus(spec: &Spec, notes: &mut Notes) {
    let is_local = spec.ours.executor == ExecutorKind::Local;
    if is_local && spec.counts_gpus() && spec.ours.env.contains_key(VISIBLE_GPUS) {
        notes.notices.push(format!(
            "phalanx.env.{VISIBLE_GPUS} says which GPUs tasks see; the job waits for none and has none for itself, whatever number it asks for"
        ));
    }
}

/// What the tasks run: exactly one of a program, a Python module and an image, or the first argument. Pods run either of the first two in
/// their image.
pub(super) fn program(input: &Fields<'_>, spec: &Spec, notes: &mut Notes) {
    let image = spec.roles.first().and_then(|role| role.image.as_ref());
    if image.is_some() && input.get("runtimeVersion").is_some() {
        notes.wrong(
            input.place("runtimeVersion"),
            "only one of masterConfig.imageUri and runtimeVersion can be set",
            "remove runtimeVersion",
        );
    }
    let beside = match (&spec.ours.program, &spec.python_module) {
        (Some(_), _) => Some("phalanx.program"),
        (None, module) => module.as_ref().map(|_| "pythonModule"),
    };
    let of_image = spec.roles.iter().any(|role| role.image.is_some());
    if let (Some(beside), true) = (beside, of_image)
        && spec.ours.executor != ExecutorKind::Kubernetes
    {
        notes.wrong(
            input.place("masterConfig"),
            format!(
                "imageUri and {beside} are both given, and only pods run a program in an image"
            ),
            "remove one of the two; containerCommand names a program of the image",
        );
    }
    if let (Some(module), Some(program)) = (&spec.python_module, &spec.ours.program) {
        let message =
            format!("pythonModule {module:?} and phalanx.program {program:?} are both given");
        notes.wrong(
            input.place("pythonModule"),
            message,
            "remove one of the two",
        );
    }
    if let Some(module) = &spec.python_module {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        if module.is_empty() || !module.chars().all(plain) {
            notes.wrong(
                input.place("pythonModule"),
                format!("{module:?} is no Python module"),
                "write it as trainer.task",
            );
        }
    }
}
