//! Submitting jobs.

use std::process::ExitCode;

use phalanx_launch::executor::Gpus;
use phalanx_launch::spec::{ExecutorKind, Plan, Source, Spec};
use phalanx_launch::usage::machine_memory;
use phalanx_yaml::Bytes;
use serde_json::{Value as Json, json};

use super::package::Upload;
use super::{Context, Done, dry_run, logs, search, spec};
use crate::args::{Format, SpecArgs, TrainingArgs, TuneArgs};
use crate::client::{Client, GPUS};
use crate::failure::{Failure, USAGE};

pub(super) fn training(context: &Context, args: &TrainingArgs) -> Done {
    let source = spec::source(&args.spec, None)?;
    let request = Request::new(context, &args.job, &args.spec, &source)?;
    if args.plan.dry_run {
        return dry_run::print(context, &args.job, &source, &request, &args.plan);
    }
    let client = context.client()?;
    let job = request.submit(&client)?;
    if args.stream_logs {
        return logs::follow(&client, &args.job, &context.format);
    }
    let name = &args.job;
    if context.format == Format::Text {
        eprintln!("Job [{name}] submitted successfully.");
        eprintln!(
            "Your job is still active. You may view the status of your job with the command\n"
        );
        eprintln!("  $ phalanx jobs describe {name}\n");
        eprintln!("or continue streaming the logs with the command\n");
        eprintln!("  $ phalanx jobs logs -f {name}");
    }
    context.print(&job, |job| {
        format!(
            "jobId: {name}\nstate: {}\n",
            job["state"].as_str().unwrap_or_default()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What submits a job.
pub(super) struct Request {
    /// The job file, with the job's name and where it was submitted.
    pub(super) body: Json,
    /// What is copied first.
    pub(super) upload: Option<Upload>,
}

impl Request {
    /// Of a job file, after everything was checked that can be checked first.
    fn new(
        context: &Context,
        job: &str,
        args: &SpecArgs,
        source: &Source,
    ) -> Result<Self, Failure> {
        let (_, spec) = Spec::of_job(job, source).map_err(Failure::usage)?;
        let plan = Plan::new(&spec).map_err(Failure::usage)?;
        let directory = std::env::current_dir().map_err(Failure::not_ready)?;
        let directory = spec
            .ours
            .directory
            .as_ref()
            .map_or(directory.clone(), |given| directory.join(given));
        if directory.to_str().is_none() {
            return Err(Failure::usage(format!(
                "the folder from which the job is submitted, {:?}, has a path that is not in UTF-8, as paths of jobs are; submit it from another",
                directory.to_string_lossy()
            )));
        }
        let upload = Upload::of(context, job, args, &spec)?;
        let package = upload.as_ref().map(|upload| upload.folder().to_owned());
        let package = package.or_else(|| spec.package.as_ref().map(|name| directory.join(name)));
        let of_machine = [fewer_trials(&spec, &plan), fewer_gpus(&spec, &plan)];
        for notice in spec.notices.iter().chain(of_machine.iter().flatten()) {
            eprintln!("note: {notice}");
        }
        dry_run::check_files(&spec, plan, &directory, package.as_deref())?;
        let mut body = source.to_json();
        body["jobId"] = json!(job);
        if !body["phalanx"].is_object() {
            body["phalanx"] = json!({});
        }
        body["phalanx"]["directory"] = json!(directory);
        if let Some(upload) = &upload {
            upload.name_in(&mut body)?;
        }
        // What is not of the job file is checked by the daemon.
        body["environment"] = json!(phalanx_launch::environment());
        Ok(Self { body, upload })
    }

    /// Copies the package, and submits the job.
    fn submit(&self, client: &Client) -> Result<Json, Failure> {
        let Some(upload) = &self.upload else {
            return client.create(&self.body);
        };
        upload.send()?;
        client.create(&self.body).inspect_err(|failure| {
            // After another failure, such as an answer that is lost, the job may be in the queue.
            if failure.exit == USAGE {
                upload.remove();
            }
        })
    }
}

/// A notice where this machine has not the memory, or the GPUs, for all trials that are to run at the same time.
fn fewer_trials(spec: &Spec, plan: &Plan) -> Option<String> {
    let most = spec.hyperparameters.as_ref()?.max_parallel;
    let (memory, gpus) = (machine_memory().unwrap_or(u64::MAX), machine_gpus());
    let fits = plan.trials_at_once(spec, memory, gpus);
    if fits == plan.trials_at_once(spec, u64::MAX, 0) {
        return None;
    }
    let why = match plan.trials_at_once(spec, memory, 0) == fits {
        true => format!(
            "phalanx.memory for {} tasks, and this machine has {}",
            plan.tasks.len(),
            Bytes(memory)
        ),
        false => format!(
            "GPUs of its own, {} in all, and this machine has {gpus}",
            plan.gpus()
        ),
    };
    Some(format!(
        "{fits} of {most} trials run at the same time: each is to have {why}"
    ))
}

/// The number of this machine's GPUs for jobs, for a daemon that has the same variables; 0 where none are known.
pub(super) fn machine_gpus() -> usize {
    let given = std::env::var(GPUS).ok();
    Gpus::of_machine(given.as_deref()).map_or(0, |gpus| gpus.names.len())
}

/// A notice where this machine has fewer GPUs than the tasks ask for. What the daemon has decides.
fn fewer_gpus(spec: &Spec, plan: &Plan) -> Option<String> {
    let (asked, there) = (plan.gpus(), machine_gpus());
    if spec.ours.executor != ExecutorKind::Local || !spec.names_gpus() || asked <= there {
        return None;
    }
    Some(match plan.gpus_of_tasks(there) {
        Ok(each) => format!(
            "the tasks have {} of the {asked} GPUs that they ask for: this machine has {there} for jobs",
            each.iter().sum::<usize>()
        ),
        Err(why) => format!("the job will fail: {why}"),
    })
}

/// Starts a search and follows it: a line for each trial, then all of them.
pub(super) fn tune(context: &Context, args: &TuneArgs) -> Done {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => format!("tune_{}", phalanx_launch::store::now()),
    };
    let source = search::source(args)?;
    let request = Request::new(context, &name, &args.spec, &source)?;
    if args.plan.dry_run {
        return dry_run::print(context, &name, &source, &request, &args.plan);
    }
    if request.body["trainingInput"]["hyperparameters"].is_null() {
        return Err(Failure::usage(
            "nothing is searched; add --search NAME=VALUES, or `hyperparameters` to a job file given by --config",
        ));
    }
    let client = context.client()?;
    request.submit(&client)?;
    search::follow(context, &client, &name)
}
