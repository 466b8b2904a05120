//! The tasks that follow from a job file: what each runs, with how much of the machine.

use std::path::Path;
use std::sync::Arc;

use phalanx_cluster::{Task, TaskKind};
use phalanx_store::ObjectUrl;
use serde::{Deserialize, Serialize};

use super::check::gpus_of;
use super::phalanx_keys::ExecutorKind;
use super::read::{Role, Spec};

/// Variables that the job sets, and a user does not.
pub(super) const OURS: [&str; 10] = [
    "TF_CONFIG",
    "CLUSTER_SPEC",
    "CLOUD_ML_JOB",
    "CLOUD_ML_TRIAL_ID",
    "PHALANX_JOB_ID",
    "PHALANX_MIN_WORKERS",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// More bytes of arguments than this are refused.
const MOST_ARGUMENT_BYTES: usize = 64 << 10;

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

/// One task. What the tasks of a role have alike they share: there may be thousands.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPlan {
    /// Which.
    pub task: Task,
    /// What of a machine it takes.
    pub resources: Resources,
    /// Its image, where it has one.
    pub image: Option<Arc<str>>,
    /// What runs in place of the image's entry point.
    pub command: Arc<[String]>,
    /// The arguments.
    pub args: Arc<[String]>,
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
    /// There is no program at all, there are more arguments than a process can be given, or the results are to go where the program
    /// cannot write.
    pub fn new(spec: &Spec) -> Result<Self, String> {
        let mut args = spec.args.clone();
        let program = program(spec, &mut args)?;
        check_job_dir(spec, &program)?;
        let args: Arc<[String]> = args.into();
        let mut tasks = Vec::with_capacity(spec.tasks());
        for role in &spec.roles {
            let first = first_task(spec, role, &args);
            check_size(&first)?;
            tasks.extend((0..role.count).map(|index| TaskPlan {
                task: Task::new(role.kind, index),
                ..first.clone()
            }));
        }
        Ok(Self { program, tasks })
    }

    /// The plan with its program in the folder of a package, if that has a file of its name; tasks have the folder at `place`.
    #[must_use]
    pub fn in_package(mut self, package: &Path, place: &Path) -> Self {
        if let Program::Training { file: name } | Program::Command { program: name } =
            &mut self.program
            && package.join(&*name).is_file()
        {
            *name = place.join(&*name).display().to_string();
        }
        self
    }

    /// How many trials of its search run at the same time on a machine with this memory in bytes and this number of GPUs: no more than fit,
    /// where the job itself says how much memory a task takes, and none that shares a GPU with another. What memory a machine type has is
    /// another machine's, and limits nothing here. Without a search 1.
    #[must_use]
    pub fn trials_at_once(&self, spec: &Spec, memory: u64, gpus: usize) -> usize {
        let Some(search) = &spec.hyperparameters else {
            return 1;
        };
        let wanted = search.max_parallel.min(search.max_trials).max(1);
        let each = spec
            .ours
            .memory
            .unwrap_or(0)
            .saturating_mul(self.tasks.len() as u64);
        if spec.ours.executor != ExecutorKind::Local {
            return wanted;
        }
        let by_memory = memory.checked_div(each).map(|fit| fit as usize);
        // Without a GPU tasks run without.
        let by_gpus = gpus.checked_div(self.gpus());
        let by_gpus = by_gpus.filter(|_| gpus > 0 && spec.names_gpus());
        let fits = [by_memory, by_gpus].into_iter().flatten();
        fits.fold(wanted, |least, fit| least.min(fit.max(1)))
    }

    /// The GPUs that all tasks ask for together.
    #[must_use]
    pub fn gpus(&self) -> usize {
        self.tasks
            .iter()
            .map(|task| task.resources.gpus as usize)
            .sum()
    }

    /// The GPUs of each task on a machine that has this number for them: what it asks for. Where there are fewer in all, no task has more than
    /// the largest number at which there are enough, since machine types name machines of others; where there is none, all run without. What
    /// the tasks get in all is divided in the same way.
    ///
    /// # Errors
    /// There are fewer than tasks that ask for some.
    pub fn gpus_of_tasks(&self, there: usize) -> Result<Vec<usize>, String> {
        let asked = || self.tasks.iter().map(|task| task.resources.gpus as usize);
        let fits = |most: &usize| asked().map(|gpus| gpus.min(*most)).sum::<usize>() <= there;
        let largest = asked().max().unwrap_or(0).min(there);
        let most = (1..=largest).rev().find(fits).unwrap_or(0);
        if largest > 0 && most == 0 {
            let (wanted, who) = (self.gpus(), asked().filter(|gpus| *gpus > 0).count());
            return Err(format!(
                "{who} of its tasks ask for GPUs, {wanted} in all, and this machine has {there} for jobs: fewer than one for each; ask for fewer tasks, or write phalanx.gpus: 0 to run without"
            ));
        }
        Ok(asked().map(|gpus| gpus.min(most)).collect())
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

/// The first task of a role.
fn first_task(spec: &Spec, role: &Role, args: &Arc<[String]>) -> TaskPlan {
    let machine = role.machine.as_ref();
    let gpus = role.accelerator.as_ref().filter(|a| a.is_gpu());
    let gpus = gpus.map_or(0, |accelerator| accelerator.count);
    let pods = spec.ours.executor == ExecutorKind::Kubernetes;
    let of_pods = spec.ours.kubernetes.image.as_ref().filter(|_| pods);
    let image = role.image.as_ref().or(of_pods);
    TaskPlan {
        task: Task::new(role.kind, 0),
        resources: Resources {
            cpus: spec.ours.cpus.or(machine.map(|m| m.cpus)).unwrap_or(0),
            memory: spec.ours.memory.or(machine.map(|m| m.memory)).unwrap_or(0),
            gpus: gpus_of(role.kind, &spec.ours).unwrap_or(gpus),
        },
        image: image.map(|image| image.as_str().into()),
        command: role.command.as_slice().into(),
        args: match role.args.as_slice() {
            [] => Arc::clone(args),
            own => own.into(),
        },
    }
}

/// Where results go into a bucket: for `phalanx train` and searches by a copy of a folder, other programs may write there themselves, as AI
/// Platform's do with `--job-dir`.
fn check_job_dir(spec: &Spec, program: &Program) -> Result<(), String> {
    let Some(folder) = spec.job_dir.as_ref().filter(|name| ObjectUrl::is_url(name)) else {
        return Ok(());
    };
    ObjectUrl::parse(folder).map_err(|error| format!("trainingInput.jobDir: {error}"))?;
    let who = match (program, &spec.hyperparameters) {
        (Program::Training { .. }, _) => "phalanx train writes into a folder first",
        (_, Some(_)) => "a search reads its metric from a folder",
        _ => return Ok(()),
    };
    let why = if spec.ours.executor == ExecutorKind::Kubernetes {
        "the folders of pods are not copied"
    } else if cfg!(feature = "cloud") {
        return Ok(());
    } else {
        "this program was built without the feature `cloud`; build it with `cargo build --release -p phalanx-cli -p phalanx-jobs --features phalanx-cli/cloud,phalanx-jobs/cloud`"
    };
    Err(format!(
        "trainingInput.jobDir is {folder:?}, {who}, and {why}; or name a folder of a file system that all machines have"
    ))
}

/// The arguments stand in a variable, too, and Linux takes 128 KiB of each.
fn check_size(task: &TaskPlan) -> Result<(), String> {
    let words = task.command.iter().chain(&*task.args);
    let bytes: usize = words.map(|word| word.len() + 1).sum();
    if bytes <= MOST_ARGUMENT_BYTES {
        return Ok(());
    }
    Err(format!(
        "the arguments of {} have {bytes} bytes, expected at most {MOST_ARGUMENT_BYTES}; write them into a file and give the program its path",
        task.name()
    ))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Source;

    fn plan(workers: usize, argument: usize) -> Result<Plan, String> {
        let argument = "x".repeat(argument);
        let job = serde_json::json!({
            "trainingInput": {"args": ["true", argument]},
            "phalanx": {"workers": workers},
        });
        Plan::new(&Spec::read(&Source::of_json(&job)).unwrap())
    }

    #[test]
    fn thousands_of_tasks_have_one_copy_of_their_arguments() {
        let plan = plan(10_000, 60_000).unwrap();
        assert_eq!(plan.tasks.len(), 10_000);
        let first = &plan.tasks[1].args;
        assert!(
            plan.tasks[1..]
                .iter()
                .all(|task| Arc::ptr_eq(&task.args, first))
        );
        assert_eq!((first.len(), plan.tasks[9_999].task.index), (1, 9_998));
    }

    #[test]
    fn gpus_of_tasks_are_what_they_ask_for_or_as_many_as_there_are_for_all() {
        let input = serde_json::json!({
            "args": ["true"], "scaleTier": "CUSTOM", "masterType": "a2-highgpu-4g",
            "workerType": "a2-highgpu-1g", "workerCount": 2,
            "parameterServerType": "n1-standard-4", "parameterServerCount": 1,
        });
        let plan = |ours: serde_json::Value| {
            let job = serde_json::json!({"trainingInput": input, "phalanx": ours});
            Plan::new(&Spec::read(&Source::of_json(&job)).unwrap()).unwrap()
        };
        let of_types = plan(serde_json::json!({}));
        for (there, each) in [
            (9, [4, 1, 1, 0]),
            (6, [4, 1, 1, 0]),
            (5, [3, 1, 1, 0]),
            (3, [1, 1, 1, 0]),
            (0, [0; 4]),
        ] {
            assert_eq!(of_types.gpus_of_tasks(there).unwrap(), each, "{there}");
            let in_all = each.iter().sum();
            assert_eq!(of_types.gpus_of_tasks(in_all).unwrap(), each, "{in_all}");
        }
        let why = of_types.gpus_of_tasks(2).unwrap_err();
        assert!(
            why.starts_with("3 of its tasks ask for GPUs, 6 in all, and this machine has 2"),
            "{why}"
        );
        // Ours takes the place of all types' but parameter servers', which have none.
        for gpus in [0, 2] {
            let each = plan(serde_json::json!({"gpus": gpus})).gpus_of_tasks(8);
            assert_eq!(each.unwrap(), [gpus, gpus, gpus, 0]);
        }
    }

    #[test]
    fn an_archive_is_refused_with_what_to_do_instead() {
        let read = |package: &str| {
            let job = serde_json::json!({"trainingInput": {"packageUris": [package], "pythonModule": "a.b"}});
            Spec::read(&Source::of_json(&job)).map(|spec| spec.package)
        };
        for package in [
            "trainer-0.1.tar.gz",
            "gs://bucket/trainer.ZIP",
            "s3://bucket/a.whl",
        ] {
            let error = read(package).unwrap_err();
            assert!(
                error.contains(&format!("{package:?} is an archive")),
                "{error}"
            );
            assert!(error.contains("unpack it and name its folder"), "{error}");
        }
        for package in ["code/trainer.tar.d", "gs://bucket/trainer-1.2"] {
            assert_eq!(read(package), Ok(Some(package.to_owned())));
        }
    }

    #[test]
    fn programs_run_in_images_in_pods_only() {
        let plan = |executor: &str, input: serde_json::Value, program: Option<&str>| {
            let ours = serde_json::json!({"program": program, "executor": executor, "kubernetes": {"image": "img"}});
            let job = serde_json::json!({"trainingInput": input, "phalanx": ours});
            Spec::read(&Source::of_json(&job)).and_then(|spec| Plan::new(&spec))
        };
        let images = |plan: Result<Plan, String>| plan.map(|plan| plan.tasks[0].image.clone());
        let own = serde_json::json!({"masterConfig": {"imageUri": "own"}});
        let mut module = own.clone();
        module["pythonModule"] = "trainer.task".into();
        for (input, program) in [(&own, Some("true")), (&module, None)] {
            for executor in ["local", "slurm"] {
                let why = plan(executor, input.clone(), program).unwrap_err();
                assert!(why.contains("only pods run a program in an image"), "{why}");
            }
            let image = images(plan("kubernetes", input.clone(), program));
            assert_eq!(image.unwrap().as_deref(), Some("own"));
        }
        for (executor, image) in [
            ("local", None),
            ("slurm", None),
            ("kubernetes", Some("img")),
        ] {
            let found = images(plan(executor, serde_json::json!({}), Some("true")));
            assert_eq!(found.unwrap().as_deref(), image, "{executor}");
        }
    }

    #[test]
    fn accelerators_are_named() {
        let read = |config: serde_json::Value| {
            let master = serde_json::json!({"acceleratorConfig": config});
            let input = serde_json::json!({
                "args": ["true"], "scaleTier": "CUSTOM", "masterType": "a2-highgpu-1g", "masterConfig": master,
            });
            let spec = Spec::read(&Source::of_json(
                &serde_json::json!({"trainingInput": input}),
            ))?;
            Ok::<_, String>(spec.roles[0].accelerator.clone().map(|given| given.count))
        };
        let why = read(serde_json::json!({"count": 2})).unwrap_err();
        assert!(why.contains("acceleratorConfig has no type"), "{why}");
        assert!(why.contains("NVIDIA_TESLA_T4"), "{why}");
        let given = serde_json::json!({"count": 2, "type": "NVIDIA_TESLA_T4"});
        assert_eq!(read(given), Ok(Some(2)));
        assert_eq!(read(serde_json::json!({"count": 0})), Ok(Some(0)));
    }

    #[test]
    fn results_go_into_buckets_where_somebody_can_take_them_there() {
        let plan = |folder: &str, program: &str, executor: &str, search: serde_json::Value| {
            let job = serde_json::json!({
                "trainingInput": {"jobDir": folder, "hyperparameters": search},
                "phalanx": {"program": program, "executor": executor, "kubernetes": {"image": "img"}},
            });
            Plan::new(&Spec::read(&Source::of_json(&job)).unwrap())
        };
        let (url, none) = ("gs://bucket/run", serde_json::Value::Null);
        for executor in ExecutorKind::NAMES {
            assert!(plan(url, "./my_program", executor, none.clone()).is_ok());
        }
        let search = serde_json::json!({"maxTrials": 2, "params": [{"parameterName": "x", "type": "DOUBLE", "minValue": 0, "maxValue": 1, "scaleType": "UNIT_LINEAR_SCALE"}]});
        for (program, search, who) in [
            (
                "train.yaml",
                &none,
                "phalanx train writes into a folder first",
            ),
            (
                "./my_program",
                &search,
                "a search reads its metric from a folder",
            ),
        ] {
            let error = plan(url, program, "kubernetes", search.clone()).unwrap_err();
            let said =
                format!("\"gs://bucket/run\", {who}, and the folders of pods are not copied");
            assert!(error.contains(&said), "{error}");
            let here = plan(url, program, "local", search.clone());
            assert_eq!(here.is_ok(), cfg!(feature = "cloud"));
            if let Err(error) = here {
                assert!(error.contains("without the feature `cloud`"), "{error}");
            }
        }
        let error = plan("s3://bucket", "true", "local", none).unwrap_err();
        assert!(
            error.contains("jobDir: ") && error.contains("expected a prefix"),
            "{error}"
        );
    }

    #[test]
    fn a_search_in_pods_has_a_volume_and_others_are_told_of_none() {
        let read = |claim: serde_json::Value, folder: &str, search: bool| {
            let params = serde_json::json!([{"parameterName": "x", "type": "DISCRETE", "discreteValues": [1]}]);
            let search = search.then(|| serde_json::json!({ "params": params }));
            let job = serde_json::json!({
                "trainingInput": {"jobDir": folder, "hyperparameters": search},
                "phalanx": {"program": "./a", "executor": "kubernetes", "kubernetes": {"image": "img", "claim": claim}},
            });
            Spec::read(&Source::of_json(&job)).map(|spec| spec.notices)
        };
        let (none, claim) = (serde_json::Value::Null, serde_json::json!("shared"));
        let why = read(none.clone(), "runs/x", true).unwrap_err();
        let said = "a search reads its metric from the volume of its pods, and none is named";
        assert!(why.contains(said), "{why}");
        assert_eq!(read(claim, "runs/x", true), Ok(Vec::new()));
        // A program writes into a bucket itself, and nothing is lost with its pods.
        assert_eq!(read(none.clone(), "gs://bucket/run", false), Ok(Vec::new()));
        let notices = read(none, "runs/x", false).unwrap();
        assert!(notices[0].contains("jobDir is in the pods"), "{notices:?}");
    }

    #[test]
    fn more_arguments_than_a_process_can_be_given_are_refused() {
        let error = plan(2, 65_536).unwrap_err();
        assert!(
            error.contains("chief-0 have 65537 bytes, expected at most 65536"),
            "{error}"
        );
    }
}
