//! What a job would do, and where each value of it comes from.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use phalanx_launch::executor::{self, RunArgs, quoted, words};
use phalanx_launch::lifecycle::Life;
use phalanx_launch::spec::{ExecutorKind, Plan, Program, Source, Spec};
use phalanx_launch::store::now;
use phalanx_launch::supervise::prepare;
use phalanx_yaml::Bytes;
use serde_json::{Value as Json, json};

use super::estimate::{self, EstimateRequest};
use super::package::{self, Upload};
use super::prices::Prices;
use super::submit::Request;
use super::{Context, Done, training_file};
use crate::args::PlanArgs;
use crate::daemon::submitted;
use crate::failure::{Failure, NOT_READY};

/// Whether the files of the job's secrets can be read.
fn check_secrets(spec: &Spec, directory: &Path) -> Result<(), Failure> {
    for (name, file) in &spec.ours.secrets {
        let path = directory.join(file);
        // A folder can be opened, too.
        let file = std::fs::File::open(&path).and_then(|file| file.metadata());
        let why = match file {
            Ok(found) if !found.is_dir() => continue,
            Ok(_) => "it is a folder".to_owned(),
            Err(error) => error.to_string(),
        };
        let message = format!(
            "the secret {name} cannot be read from {}: {why}; correct phalanx.secrets",
            path.display()
        );
        return Err(Failure::new(NOT_READY, message));
    }
    Ok(())
}

/// Whether the folders of PATH have a program.
fn is_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Whether a package is a folder, and not in a bucket.
fn is_folder(package: &Path) -> bool {
    !package.to_string_lossy().contains("://")
}

/// Whether what the tasks read and run is there, in the job's package or in the folder that it is submitted from.
pub(super) fn check_files(
    spec: &Spec,
    plan: Plan,
    directory: &Path,
    package: Option<&Path>,
) -> Result<(), Failure> {
    check_secrets(spec, directory)?;
    if package.is_some_and(|package| !is_folder(package)) {
        // What is in a bucket is seen when the tasks start.
        return Ok(());
    }
    if let Some(package) = package.filter(|folder| !folder.is_dir()) {
        let message = format!(
            "the package {} is no folder; check the path, which starts at {}",
            package.display(),
            directory.display()
        );
        return Err(Failure::new(NOT_READY, message));
    }
    let plan = match package {
        Some(package) => plan.in_package(package, package),
        None => plan,
    };
    check_program(&plan.program, directory, spec.ours.executor)?;
    training_file::check(spec, &plan, directory)
}

fn check_program(
    program: &Program,
    directory: &Path,
    executor: ExecutorKind,
) -> Result<(), Failure> {
    let failure = |message: String| Err(Failure::new(NOT_READY, message));
    let missing = |path: &str| {
        let full = directory.join(path);
        failure(format!(
            "{} is not there; check the path, which starts at {}",
            full.display(),
            directory.display()
        ))
    };
    match program {
        Program::Training { file } if !directory.join(file).is_file() => missing(file),
        Program::Command { program } if program.contains('/') => {
            match directory.join(program).is_file() {
                true => Ok(()),
                false => missing(program),
            }
        }
        // Nodes and images may have other programs than this machine.
        Program::Command { program }
            if executor == ExecutorKind::Local && program != "phalanx" && !is_in_path(program) =>
        {
            failure(format!(
                "the program {program:?} is in none of the folders of PATH; correct its name, install it, or give its path, such as ./{program}"
            ))
        }
        _ => Ok(()),
    }
}

/// What Slurm or Kubernetes would be given.
fn preview(
    context: &Context,
    body: &Json,
    plan: &Plan,
    args: &RunArgs,
) -> Result<Option<String>, Failure> {
    let job = submitted(&context.project, body).map_err(|error| Failure::usage(error.message))?;
    let life = Life::new(now(), job);
    let (spec, _) = prepare(&life).map_err(Failure::usage)?;
    Ok(executor::preview(&context.root, &life, &spec, plan, args))
}

/// Each value with where it comes from: those that were given, then those that follow where nothing was said.
fn origins(source: &Source, spec: &Spec, job: &str) -> Vec<Json> {
    let given = source.origins();
    let mut defaults = spec.defaults(job);
    defaults.retain(|(name, _)| given.iter().all(|(path, ..)| path != name));
    let defaults = (defaults.into_iter())
        .map(|(path, value)| (path.to_owned(), value.to_string(), "default".to_owned()));
    (given.into_iter().chain(defaults))
        .map(|(path, value, origin)| json!({"key": path, "value": value, "origin": origin}))
        .collect()
}

pub(super) fn print(
    context: &Context,
    job: &str,
    source: &Source,
    request: &Request,
    args: &PlanArgs,
) -> Done {
    let spec = Spec::read(source).map_err(Failure::usage)?;
    let plan = Plan::new(&spec).map_err(Failure::usage)?;
    let (body, upload) = (&request.body, request.upload.as_ref());
    let prices = args.prices.as_deref().map(Prices::read).transpose()?;
    let wanted = EstimateRequest {
        prices: prices.as_ref(),
        measure: args.measure,
    };
    let directory = Path::new(body["phalanx"]["directory"].as_str().unwrap_or("."));
    let (here, plan) = plans(plan, upload, &spec, directory);
    let estimate = estimate::of(&spec, &here, directory, &wanted);
    let job_dir = (spec.job_dir.clone()).unwrap_or_else(|| format!("runs/{job}"));
    let results = || context.root.join("jobs").join(job).join("results");
    // Nothing of this machine is seen by pods.
    let is_copied = job_dir.contains("://") && spec.ours.executor != ExecutorKind::Kubernetes;
    let run = RunArgs {
        results: is_copied.then(|| results().display().to_string()),
        job_dir: Some(job_dir),
        ..RunArgs::default()
    };
    let tasks: Vec<Json> = plan
        .tasks
        .iter()
        .map(|task| {
            json!({
                "task": task.name(),
                "command": words(&plan.program, task, &run, "phalanx"),
                "cpus": task.resources.cpus,
                "memory": task.resources.memory,
                "gpus": task.resources.gpus,
                "image": task.image.as_deref(),
            })
        })
        .collect();
    let origins = origins(source, &spec, job);
    let preview = preview(context, body, &plan, &run)?;
    let plan = json!({
        "jobId": job,
        "executor": spec.ours.executor.name(),
        "directory": body["phalanx"]["directory"],
        "tasks": tasks,
        "package": upload.map(Upload::to_json),
        "values": origins,
        "secrets": spec.ours.secrets.keys().collect::<Vec<_>>(),
        "estimate": estimate,
        "preview": preview,
    });
    context.print(&plan, text)?;
    Ok(ExitCode::SUCCESS)
}

/// The plan with the files as they are here, and as tasks have them.
fn plans(plan: Plan, upload: Option<&Upload>, spec: &Spec, directory: &Path) -> (Plan, Plan) {
    match (upload, &spec.package) {
        (Some(upload), _) => upload.plans(&plan),
        // A job takes it as it is; what is in a bucket is seen when the tasks start.
        (None, Some(package)) if is_folder(Path::new(package)) => {
            let package = directory.join(package);
            let plan = plan.in_package(&package, &package);
            (plan.clone(), plan)
        }
        _ => (plan.clone(), plan),
    }
}

fn text(plan: &Json) -> String {
    let mut all = format!(
        "job {} on {}\n\ntasks\n",
        plan["jobId"].as_str().unwrap_or_default(),
        plan["executor"].as_str().unwrap_or_default()
    );
    for task in plan["tasks"].as_array().into_iter().flatten() {
        let words = task["command"].as_array().into_iter().flatten();
        let words: Vec<String> = words
            .filter_map(|word| Some(quoted(word.as_str()?)))
            .collect();
        let cpus = match task["cpus"].as_u64() {
            Some(0) | None => "a share of the machine".to_owned(),
            Some(cpus) => format!(
                "{cpus} processors, {}",
                Bytes(task["memory"].as_u64().unwrap_or(0))
            ),
        };
        let mut has = cpus;
        match task["gpus"].as_u64() {
            Some(0) | None => {}
            Some(1) => has.push_str(", 1 GPU"),
            Some(gpus) => has.push_str(&format!(", {gpus} GPUs")),
        }
        if let Some(image) = task["image"].as_str() {
            has.push_str(&format!(", image {image}"));
        }
        let _ = writeln!(
            all,
            "  {:<12} {has}: {}",
            task["task"].as_str().unwrap_or_default(),
            words.join(" ")
        );
    }
    if plan["package"].is_object() {
        all.push_str(&package::text(&plan["package"]));
    }
    let _ = write!(all, "\nestimate\n{}", estimate::text(&plan["estimate"]));
    all.push_str("\nvalues\n");
    for value in plan["values"].as_array().into_iter().flatten() {
        let text = |name: &str| {
            value[name]
                .as_str()
                .map_or_else(|| value[name].to_string(), str::to_owned)
        };
        let _ = writeln!(
            all,
            "  {} = {}   ({})",
            text("key"),
            text("value"),
            text("origin")
        );
    }
    if let Some(preview) = plan["preview"].as_str() {
        let executor = plan["executor"].as_str().unwrap_or_default();
        let _ = write!(all, "\nwhat {executor} would be given\n{preview}");
    }
    all
}
