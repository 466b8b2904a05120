//! What a task runs, as words: a program and its arguments, never a line for a shell.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use phalanx_store::ObjectUrl;

use super::Run;
use super::variables::Variables;
use crate::spec::{Program, Spec, TaskPlan};
use crate::transfer::CHECKPOINT;

/// The container engines that an image can be run with, the first that is found.
const ENGINES: [&str; 3] = ["docker", "podman", "apptainer"];

/// What of a run differs from trial to trial.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunArgs {
    /// The number of the trial, of a search.
    pub trial: Option<u32>,
    /// Values of hyperparameters by name.
    pub values: Vec<(String, String)>,
    /// Where the results go.
    pub job_dir: Option<String>,
    /// The folder from which they go there, where that is a bucket.
    pub results: Option<String>,
    /// Which part of the machine the trial has; all of it where this is `None`.
    pub lane: Option<Lane>,
    /// Whether a supervisor before this one, which was killed, began the trial.
    pub was_begun: bool,
}

/// One of the equal parts of a machine, of which each has one trial of a search at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    /// Which, from 0.
    pub number: usize,
    /// How many there are.
    pub of: usize,
}

impl RunArgs {
    /// The folder in which tasks write what goes to `job_dir`.
    #[must_use]
    pub fn folder(&self) -> Option<&str> {
        self.results.as_deref().or(self.job_dir.as_deref())
    }
}

/// The words that a task runs on a machine, as the job's program asks for.
#[must_use]
pub fn words(program: &Program, task: &TaskPlan, run: &RunArgs, phalanx: &str) -> Vec<String> {
    let mut words: Vec<String> = match program {
        Program::Training { file } => {
            let mut words: Vec<String> = [phalanx, "train", file, "--resume"]
                .map(Into::into)
                .to_vec();
            if let Some(folder) = run.folder() {
                words.extend(["--output", folder].map(Into::into));
            }
            if let (Some(url), true) = (&run.job_dir, run.results.is_some()) {
                words.extend(["--set".to_owned(), format!("checkpoint={url}/{CHECKPOINT}")]);
            }
            words
        }
        Program::Command { program } if program == "phalanx" => vec![phalanx.to_owned()],
        Program::Command { program } => vec![program.clone()],
        Program::Python { module } => ["python3", "-m", module].map(Into::into).to_vec(),
        Program::Image => task.command.to_vec(),
    };
    words.extend(task.args.iter().cloned());
    let is_training = matches!(program, Program::Training { .. });
    for (name, value) in &run.values {
        match is_training {
            true => words.extend(["--set".to_owned(), format!("{name}={value}")]),
            false => words.push(format!("--{name}={value}")),
        }
    }
    // AI Platform gives programs the folder so.
    if let (Some(folder), Program::Python { .. } | Program::Image) = (&run.job_dir, program) {
        words.extend(["--job-dir".to_owned(), folder.clone()]);
    }
    words
}

/// A container for a task.
pub(crate) struct Container<'a> {
    pub(crate) image: &'a str,
    /// What runs in place of the image's entry point.
    pub(crate) command: &'a [String],
    /// Arguments of the one or the other.
    pub(crate) args: &'a [String],
    /// What containers of the same run have alike.
    pub(crate) label: &'a str,
    /// Folders that are in the container as they are outside.
    pub(crate) folders: &'a [PathBuf],
    /// The one of them in which the task starts.
    pub(crate) directory: &'a Path,
    /// Variables, which the engine takes from its own.
    pub(crate) variables: &'a [String],
    pub(crate) gpus: ContainerGpus<'a>,
}

/// The GPUs of a container.
#[derive(Clone, Copy)]
pub(crate) enum ContainerGpus<'a> {
    /// This number of those that the engine finds.
    Any(u32),
    /// These, by the names that NVIDIA's driver has for them.
    Named(&'a [String]),
}

impl ContainerGpus<'_> {
    const fn is_empty(self) -> bool {
        match self {
            Self::Any(count) => count == 0,
            Self::Named(names) => names.is_empty(),
        }
    }

    /// The options of docker or podman.
    fn options(self, engine: &str) -> Vec<String> {
        let is_docker = engine == "docker";
        match self {
            _ if self.is_empty() => Vec::new(),
            Self::Any(count) if is_docker => vec![format!("--gpus={count}")],
            Self::Any(_) => vec!["--device=nvidia.com/gpu=all".to_owned()],
            // It divides the option at commas outside of quotes.
            Self::Named(names) if is_docker => {
                vec![format!("--gpus=\"device={}\"", names.join(","))]
            }
            Self::Named(names) => {
                let option = |name: &String| format!("--device=nvidia.com/gpu={name}");
                names.iter().map(option).collect()
            }
        }
    }
}

impl Container<'_> {
    /// The words that run it by an engine.
    pub(crate) fn words(&self, engine: &str) -> Vec<String> {
        let mut all = vec![engine.to_owned()];
        let folders = self.folders.iter().map(|folder| folder.display());
        let directory = self.directory.display().to_string();
        if engine == "apptainer" {
            // It passes variables on by itself, but for the search paths.
            let own = if self.command.is_empty() {
                "run"
            } else {
                "exec"
            };
            all.extend([own, "--pwd", &directory].map(Into::into));
            all.extend(folders.map(|folder| format!("--bind={folder}")));
            all.extend((!self.gpus.is_empty()).then(|| "--nv".to_owned()));
            let is_file = self.image.contains("://") || self.image.ends_with(".sif");
            let scheme = if is_file { "" } else { "docker://" };
            all.push(format!("{scheme}{}", self.image));
            all.extend(self.command.iter().chain(self.args).cloned());
            return all;
        }
        all.extend(["run", "--rm", "--init", "--network=host", "--ipc=host"].map(Into::into));
        all.push(format!("--label=phalanx={}", self.label));
        all.push(format!("--workdir={directory}"));
        all.extend(folders.map(|folder| format!("--volume={folder}:{folder}")));
        all.extend(self.variables.iter().map(|name| format!("--env={name}")));
        all.extend(self.gpus.options(engine));
        let mut rest = self.command.iter();
        all.extend(rest.next().map(|entry| format!("--entrypoint={entry}")));
        all.push(self.image.to_owned());
        all.extend(rest.chain(self.args).cloned());
        all
    }
}

/// The folders that the containers of a run have: the job's, where its results go and its package where these are elsewhere, and the one
/// in which it was submitted.
pub(crate) fn folders_of(run: &Run<'_>, directory: &Path) -> Vec<PathBuf> {
    let own = [run.job.folder(), directory];
    let named = [run.args.folder(), run.spec.package.as_deref()];
    let here = |name: &&str| !ObjectUrl::is_url(name);
    let named = named.into_iter().flatten().filter(here);
    let elsewhere = named
        .map(|name| without_dots(&directory.join(name)))
        .filter(|folder| !own.iter().any(|own| folder.starts_with(own)));
    let mut folders: Vec<PathBuf> = own.map(Path::to_owned).into();
    folders.extend(elsewhere);
    folders
}

/// The folders that the containers of a run have, made where they are not there: engines of containers refuse such a folder, or make it as
/// another user. The one in which the job was submitted is not made: its program would find nothing in it.
pub(crate) fn made_folders(run: &Run<'_>, directory: &Path) -> Result<Vec<PathBuf>, String> {
    if !directory.is_dir() {
        return Err(format!(
            "the folder {}, in which the job was submitted, is gone; submit it again in one that stays",
            directory.display()
        ));
    }
    let folders = folders_of(run, directory);
    for folder in &folders {
        fs::create_dir_all(folder)
            .map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
    }
    Ok(folders)
}

fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// Ends containers that a run has left: an engine's daemon keeps them when its client is killed.
pub(crate) fn end_containers(label: &str) {
    let Some(engine) = engine().filter(|engine| *engine != "apptainer") else {
        return;
    };
    let filter = format!("label=phalanx={label}");
    let found = Command::new(engine)
        .args(["ps", "--all", "--quiet", "--filter", &filter])
        .output();
    let found = found
        .map(|found| String::from_utf8_lossy(&found.stdout).into_owned())
        .unwrap_or_default();
    let ids: Vec<&str> = found.split_whitespace().collect();
    if !ids.is_empty() {
        let _ = Command::new(engine)
            .args(["rm", "--force"])
            .args(ids)
            .output();
    }
}

/// The variables that a container is given: without the variables of the submitter's own machine, such as where programs are.
pub(crate) fn of_container(spec: &Spec, environment: &Variables, all: &Variables) -> Vec<String> {
    let is_of_job =
        |name: &String| spec.ours.env.contains_key(name) || spec.ours.secrets.contains_key(name);
    let own = |name: &&String| !environment.contains_key(*name) || is_of_job(name);
    all.keys().filter(own).cloned().collect()
}

/// The container engine of this machine, if there is one.
pub(crate) fn engine() -> Option<&'static str> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let has = |engine: &&&str| folders.iter().any(|folder| folder.join(engine).is_file());
    ENGINES.iter().find(has).copied()
}

/// This program, to start it again: where its file has been replaced, as the system still has it.
///
/// # Errors
/// The system does not know it.
pub fn own_program() -> io::Result<PathBuf> {
    Ok(as_it_runs(std::env::current_exe()?))
}

fn as_it_runs(path: PathBuf) -> PathBuf {
    // Linux writes ` (deleted)` behind the path of a file that is gone.
    let running = Path::new("/proc/self/exe");
    match path.is_file() || !running.exists() {
        true => path,
        false => running.to_owned(),
    }
}

/// The `phalanx` beside this program, or else the one in PATH.
#[must_use]
pub fn phalanx() -> String {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join("phalanx")));
    match beside.filter(|path| path.is_file()) {
        Some(path) => path.display().to_string(),
        None => "phalanx".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Plan, Source};

    #[test]
    fn a_folder_in_a_bucket_is_one_with_a_slash_at_its_end_or_without() {
        let words_of = |folder: &str| {
            let input = serde_json::json!({"jobDir": folder, "pythonModule": "a.b"});
            let job = serde_json::json!({"trainingInput": input});
            let spec = Spec::read(&Source::of_json(&job)).unwrap();
            let plan = Plan::new(&spec).unwrap();
            let run = RunArgs {
                job_dir: spec.job_dir,
                results: Some("results".to_owned()),
                ..RunArgs::default()
            };
            let file = "train.yaml".to_owned();
            let all = [&plan.program, &Program::Training { file }];
            all.map(|program| words(program, &plan.tasks[0], &run, "phalanx").join(" "))
        };
        let [module, training] = words_of("s3://bucket/x/");
        assert!(module.ends_with("--job-dir s3://bucket/x"), "{module}");
        let checkpoint = "--set checkpoint=s3://bucket/x/checkpoint";
        assert!(training.contains(checkpoint), "{training}");
        assert!(words_of("runs/x/")[0].ends_with("--job-dir runs/x/"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_program_whose_file_was_replaced_is_the_one_that_runs() {
        let own = own_program().unwrap();
        assert_eq!(own, std::env::current_exe().unwrap());
        let replaced = PathBuf::from(format!("{} (deleted)", own.display()));
        let running = as_it_runs(replaced);
        assert_eq!(fs::canonicalize(running).unwrap(), own);
    }
}
