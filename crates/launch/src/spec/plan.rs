//! The tasks that follow from a job file: what each runs, with how much of the machine.

use std::path::Path;

use phalanx_cluster::{Task, TaskKind};
use serde::{Deserialize, Serialize};

use super::ours::ExecutorKind;
use super::read::{Role, Spec};

/// Variables that the job sets, and a user does not.
pub(super) const OURS: [&str; 9] = [
    "TF_CONFIG",
    "CLUSTER_SPEC",
    "CLOUD_ML_JOB",
    "CLOUD_ML_TRIAL_ID",
    "PHALANX_JOB_ID",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// What a job runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What the tasks run.
    pub program: Program,
    /// The tasks, the chief first.
    pub tasks: Vec<TaskPlan>,
}

/// What a task runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    /// `phalanx train` with a training file.
    Training {
        /// The file.
        file: String,
    },
    /// A program, by path or by name.
    Command {
        /// The path or name.
        program: String,
    },
    /// `python3 -m`.
    Python {
        /// The module.
        module: String,
    },
    /// The entry point of the task's image, or its `containerCommand`.
    Image,
}

/// One task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPlan {
    /// Which.
    pub task: Task,
    /// What of a machine it takes.
    pub resources: Resources,
    /// Its image, where it has one.
    pub image: Option<String>,
    /// What runs in place of the image's entry point.
    pub command: Vec<String>,
    /// The arguments.
    pub args: Vec<String>,
}

/// What of a machine a task takes. Zero processors stand for a share of what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resources {
    /// Processors.
    pub cpus: u32,
    /// Bytes of memory; 0 where nothing is said.
    pub memory: u64,
    /// GPUs.
    pub gpus: u32,
}

impl Plan {
    /// The plan of a job. Without a program, a Python module and an image, the first argument is the program.
    ///
    /// # Errors
    /// There is no program at all.
    pub fn new(spec: &Spec) -> Result<Self, String> {
        let mut args = spec.args.clone();
        let program = program(spec, &mut args)?;
        let tasks = spec.roles.iter().flat_map(|role| {
            let (args, spec) = (&args, spec);
            (0..role.count).map(move |index| task(spec, role, index, args))
        });
        let tasks = tasks.collect();
        Ok(Self { program, tasks })
    }

    /// The number of a task among the workers, the chief first; `None` for parameter servers and evaluators.
    #[must_use]
    pub fn rank(&self, task: Task) -> Option<usize> {
        let mut workers = self.tasks.iter().filter(|plan| plan.task.kind.trains());
        workers.position(|plan| plan.task == task)
    }

    /// The number of workers, the chief among them.
    #[must_use]
    pub fn workers(&self) -> usize {
        let trains = |plan: &&TaskPlan| plan.task.kind.trains();
        self.tasks.iter().filter(trains).count()
    }
}

fn program(spec: &Spec, args: &mut Vec<String>) -> Result<Program, String> {
    if let Some(program) = &spec.ours.program {
        return Ok(named(program));
    }
    if let Some(module) = &spec.python_module {
        return Ok(Program::Python {
            module: module.clone(),
        });
    }
    let image = spec.roles.first().is_some_and(|role| role.image.is_some());
    let none = args.is_empty() || args[0].starts_with('-');
    let pods =
        spec.ours.executor == ExecutorKind::Kubernetes && spec.ours.kubernetes.image.is_some();
    // Arguments beside an imageUri are its entry point's, as AI Platform has it.
    if image || (pods && none) {
        return Ok(Program::Image);
    }
    if none {
        return Err(
            "the job has no program; add `phalanx: {program: train.yaml}` to the job file, or write the program after --"
                .to_owned(),
        );
    }
    Ok(named(&args.remove(0)))
}

fn named(program: &str) -> Program {
    let extension = Path::new(program).extension().and_then(|e| e.to_str());
    match extension {
        Some("yaml" | "yml") => Program::Training {
            file: program.to_owned(),
        },
        _ => Program::Command {
            program: program.to_owned(),
        },
    }
}

fn task(spec: &Spec, role: &Role, index: usize, args: &[String]) -> TaskPlan {
    let machine = role.machine.as_ref();
    let is_gpu = |kind: &str| kind.starts_with("NVIDIA");
    let gpus = role.accelerator.as_ref().filter(|a| is_gpu(&a.kind));
    TaskPlan {
        task: Task::new(role.kind, index),
        resources: Resources {
            cpus: spec.ours.cpus.or(machine.map(|m| m.cpus)).unwrap_or(0),
            memory: spec.ours.memory.or(machine.map(|m| m.memory)).unwrap_or(0),
            gpus: gpus.map_or(0, |accelerator| accelerator.count),
        },
        image: role
            .image
            .clone()
            .or_else(|| spec.ours.kubernetes.image.clone()),
        command: role.command.clone(),
        args: if role.args.is_empty() {
            args.to_vec()
        } else {
            role.args.clone()
        },
    }
}

impl TaskPlan {
    /// The name of the task, such as `worker-0`; the chief is `chief-0` also where AI Platform says `master`.
    #[must_use]
    pub fn name(&self) -> String {
        task_name(self.task)
    }
}

/// The name of a task, such as `worker-0`.
pub(crate) fn task_name(task: Task) -> String {
    let kind = match task.kind {
        TaskKind::ParameterServer => "ps",
        kind => kind.name(),
    };
    format!("{kind}-{}", task.index)
}
