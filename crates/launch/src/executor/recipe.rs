//! What the commands of a run's tasks on this machine are made of, for the first start and for each that follows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use phalanx_cluster::launch::ReservedPorts;
use phalanx_cluster::{Address, ClusterSpec};

use super::command::{
    Container, ContainerGpus, engine, made_folders, of_container, phalanx, words,
};
use super::crew::Crew;
use super::gpus::TaskGpus;
use super::variables::{Naming, Variables, secrets};
use super::{Run, secret};
use crate::lifecycle::Submitted;
use crate::spec::Program;

/// What all tasks of a run have alike.
pub(super) struct Recipe {
    job: Submitted,
    /// What tells the processes of the run from all others.
    id: String,
    /// The file of the job's secret.
    secret: PathBuf,
    /// Who is where.
    pub(super) cluster: ClusterSpec,
    /// Variables whose values are in files.
    hidden: Variables,
    /// What tasks see of the machine's GPUs.
    pub(super) gpus: TaskGpus,
}

impl Recipe {
    /// Of a run whose tasks have these ports.
    pub(super) fn new(
        run: &Run<'_>,
        job: Submitted,
        id: &str,
        ports: &ReservedPorts,
    ) -> Result<Self, String> {
        let secret = secret(run.job.folder())
            .map_err(|error| format!("cannot write the job's secret: {error}"))?;
        let hidden = secrets(run.spec, &job.directory)?;
        let gpus = TaskGpus::of(run, &job.environment)?;
        // Not the folder of the job itself, where that is gone.
        let is_trial = run.args.trial.is_some() && job.directory.is_dir();
        if let Some(folder) = run.args.folder().filter(|_| is_trial) {
            let folder = job.directory.join(folder).join("hypertune");
            fs::create_dir_all(&folder).map_err(|error| {
                format!(
                    "cannot make {}, the folder in which the trial tells its metric: {error}; give the search a jobDir that can be written to",
                    folder.display()
                )
            })?;
        }
        let mut recipe = Self {
            job,
            id: id.to_owned(),
            secret,
            cluster: ClusterSpec::new(),
            hidden,
            gpus,
        };
        let address = |at: usize| Address::new("127.0.0.1", ports.of_workers()[at]);
        recipe.cluster = recipe.naming(run).cluster(address);
        Ok(recipe)
    }

    fn naming<'a>(&'a self, run: &'a Run<'a>) -> Naming<'a> {
        Naming {
            job: &self.job,
            spec: run.spec,
            plan: run.plan,
            run: &self.id,
            attempt: run.attempt,
            restarts: run.restarts,
            args: &run.args,
            secret: &self.secret,
            // As programs of torchrun have it, which take the GPU of their number on the machine.
            apart: self.gpus.are_own,
        }
    }

    /// The command of a task, the variables of its crew among the others.
    pub(super) fn command(
        &self,
        run: &Run<'_>,
        at: usize,
        crew: Option<&Crew>,
    ) -> Result<Command, String> {
        let plan = &run.plan.tasks[at];
        let mut variables = self.naming(run).of_task(plan.task, &self.cluster);
        variables.extend(self.hidden.clone());
        variables.extend(self.gpus.variables(at));
        let of_crew = crew.filter(|_| plan.task.kind.trains());
        variables.extend(
            of_crew
                .map(|crew| crew.variables(at, run.restarts))
                .unwrap_or_default(),
        );
        let (directory, environment) = (self.job.directory.as_path(), &self.job.environment);
        let mut all = words(&run.plan.program, plan, &run.args, &phalanx());
        if let (Program::Image, Some(image)) = (&run.plan.program, &plan.image) {
            let Some(engine) = engine() else {
                return Err(format!(
                    "the image {image} needs docker, podman or apptainer, and none is in PATH; install one, or name a program in phalanx.program"
                ));
            };
            let args = all.split_off(plan.command.len());
            let folders = made_folders(run, directory)?;
            let mut passed = of_container(run.spec, environment, &variables);
            if engine != "apptainer" {
                passed.retain(|name| !self.gpus.is_of_machine(name));
            }
            let container = Container {
                image,
                command: &all,
                args: &args,
                label: &variables["PHALANX_JOB_ID"],
                folders: &folders,
                directory,
                variables: &passed,
                // Those there are: a job that asks for them runs without, too.
                gpus: ContainerGpus::Named(self.gpus.of_container(at, engine)?),
            };
            all = container.words(engine);
        }
        let (program, args) = all.split_first().ok_or("the task has no program")?;
        let path = Path::new(program);
        // As a shell has it: a name alone is looked for in PATH, a path starts at the folder.
        let program = if program.contains('/') {
            directory.join(path)
        } else {
            path.to_owned()
        };
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .envs(variables)
            .current_dir(directory);
        Ok(command)
    }
}

/// Why a task has not started, and what to do.
pub(super) fn not_started(command: &Command, error: &io::Error) -> String {
    let program = Path::new(command.get_program()).display();
    if error.kind() == io::ErrorKind::ArgumentListTooLong {
        let size = |text: &std::ffi::OsStr| text.len() + 1;
        let longest = command
            .get_envs()
            .filter_map(|(name, value)| Some((size(name) + size(value?), name.to_string_lossy())));
        let (bytes, name) = longest.max().unwrap_or_default();
        return format!(
            "cannot start {program}: its largest variable, {name}, has {bytes} bytes, and the system takes 131072; ask for fewer tasks or shorter arguments"
        );
    }
    format!("cannot start {program}: {error}; check the path, and the folder it starts at")
}
