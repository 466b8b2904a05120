//! The scripts of a run: the one that Slurm is given, and the one that each of its tasks runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use phalanx_cluster::TaskKind;

use super::super::Run;
use super::super::quoted::quoted;
use super::super::variables::Naming;
use super::{places, task};
use crate::lifecycle::Life;
use crate::spec::{Plan, Spec, TaskPlan};

/// How long before the end of its time Slurm tells a job, in seconds.
const WARNING: u64 = 60;
/// How long the others may go on after the first task has ended.
const WAIT: u64 = 30;
/// The same where an evaluator looks at the last checkpoint.
const EVALUATION: u64 = 600;

/// The name of the file that each task runs.
pub(super) const TASK: &str = "task.sh";

/// The folder of an attempt of the run's job or trial within the job's folder.
pub(super) fn folder_of(run: &Run<'_>, attempt: u32) -> PathBuf {
    let trial = run
        .args
        .trial
        .map_or_else(String::new, |trial| format!("trial-{trial}-"));
    run.job
        .folder()
        .join("slurm")
        .join(format!("{trial}{attempt}"))
}

/// What Slurm gives each task, or what is there on the submitter's machine only: of the submitter's own it would be another task's device,
/// and a folder that no node has.
const OF_NODES: [&str; 4] = [
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// The scripts of a run.
pub(super) struct Scripts {
    /// What Slurm is given.
    pub(super) batch: String,
    /// What each task runs, a file beside it: it may be larger than an argument or a variable may be.
    pub(super) task: String,
}

/// Writes the scripts of a run.
pub(super) fn scripts(run: &Run<'_>, life: &Life) -> Scripts {
    let folder = &folder_of(run, run.attempt);
    let (spec, plan) = (run.spec, run.plan);
    let secret = run.job.folder().join("secret");
    let id = run.id(life);
    let mut job = life.job.clone();
    job.environment
        .retain(|name, _| !OF_NODES.contains(&name.as_str()));
    let naming = Naming {
        job: &job,
        spec,
        plan,
        run: &id,
        attempt: run.attempt,
        restarts: run.restarts,
        args: &run.args,
        secret: &secret,
        apart: false,
    };
    let tasks = plan.tasks.len();
    let (nodes, each) = (nodes(spec, plan), tasks_of_node(spec, plan));
    let mut text = directives(spec, plan, life, folder);
    text.push_str(&places::written(tasks, each));
    let evaluates = plan
        .tasks
        .iter()
        .any(|task| task.task.kind == TaskKind::Evaluator);
    let wait = if evaluates { EVALUATION } else { WAIT };
    let keep = if spec.ours.elastic.is_some() {
        " --no-kill"
    } else {
        ""
    };
    let path = folder.join(TASK).display().to_string();
    let _ = writeln!(
        text,
        "exec srun --nodes={nodes} --ntasks={tasks} --ntasks-per-node={each} --distribution=block --kill-on-bad-exit=0 --wait={wait}{keep} \
         --export=ALL /bin/bash {}",
        quoted(&path)
    );
    Scripts {
        batch: text,
        task: task::script(run, &naming),
    }
}

/// How many nodes a job has.
fn nodes(spec: &Spec, plan: &Plan) -> usize {
    let tasks = plan.tasks.len();
    spec.ours.slurm.nodes.unwrap_or(tasks).min(tasks)
}

/// How many tasks run on each node, but perhaps fewer on the last.
fn tasks_of_node(spec: &Spec, plan: &Plan) -> usize {
    plan.tasks.len().div_ceil(nodes(spec, plan))
}

fn directives(spec: &Spec, plan: &Plan, life: &Life, folder: &Path) -> String {
    let tasks = plan.tasks.len();
    let nodes = nodes(spec, plan);
    // The time in which a training saves is no part of what it may run.
    let seconds = spec.scheduling.max_running.as_secs() + WARNING;
    let minutes = seconds.div_ceil(60);
    let mut lines = vec![
        format!("--job-name={}", life.job.name),
        format!("--nodes={nodes}"),
        format!("--ntasks={tasks}"),
        format!("--ntasks-per-node={}", tasks_of_node(spec, plan)),
        format!("--time={minutes}"),
        "--requeue".to_owned(),
        "--open-mode=append".to_owned(),
        format!("--signal=TERM@{WARNING}"),
    ];
    if spec.ours.elastic.is_some() {
        // The others go on when a node is lost.
        lines.push("--no-kill".to_owned());
    }
    lines.extend(resources(spec, plan));
    let mut text = "#!/bin/bash\n".to_owned();
    for line in lines {
        let _ = writeln!(text, "#SBATCH {line}");
    }
    for name in ["PATH", "SLURM_CONF"] {
        if let Some(value) = life.job.environment.get(name) {
            let _ = writeln!(text, "export {name}={}", quoted(value));
        }
    }
    let directory = quoted(&life.job.directory.display().to_string());
    let _ = writeln!(text, "cd {directory} || exit 3");
    let _ = writeln!(
        text,
        "export PHALANX_RUN={}/r\"${{SLURM_RESTART_COUNT:-0}}\"",
        quoted(&folder.display().to_string())
    );
    text.push_str("mkdir -p \"$PHALANX_RUN\" || exit 3\n");
    text
}

/// What each task needs, and where it may run.
fn resources(spec: &Spec, plan: &Plan) -> Vec<String> {
    let keys = &spec.ours.slurm;
    let mut lines = Vec::new();
    let most = |of: fn(&TaskPlan) -> u32| plan.tasks.iter().map(of).max().unwrap_or(0);
    let (cpus, gpus) = (
        most(|task| task.resources.cpus),
        most(|task| task.resources.gpus),
    );
    if cpus > 0 {
        lines.push(format!("--cpus-per-task={cpus}"));
    }
    if gpus > 0 {
        lines.push(format!("--gpus-per-task={gpus}"));
    }
    if let Some(memory) = spec.ours.memory {
        // Slurm counts it for a node, we for a task.
        let of_node = memory.saturating_mul(tasks_of_node(spec, plan) as u64);
        lines.push(format!("--mem={}M", of_node.div_ceil(1 << 20)));
    }
    for (name, value) in [
        ("partition", &keys.partition),
        ("account", &keys.account),
        ("qos", &keys.qos),
        ("constraint", &keys.constraint),
        ("reservation", &keys.reservation),
    ] {
        if let Some(value) = value {
            lines.push(format!("--{name}={value}"));
        }
    }
    lines
}
