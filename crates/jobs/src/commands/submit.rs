//! Submitting jobs.

use std::process::ExitCode;

use phalanx_launch::spec::{Plan, Source, Spec};
use serde_json::{Value as Json, json};

use super::{Context, Done, dry_run, logs, search, spec};
use crate::args::{Format, TrainingArgs, TuneArgs};
use crate::failure::Failure;

pub(super) fn training(context: &Context, args: &TrainingArgs) -> Done {
    let source = spec::source(&args.spec, None)?;
    let body = body(&args.job, &source)?;
    if args.plan.dry_run {
        return dry_run::print(context, &args.job, &source, &body, &args.plan);
    }
    let client = context.client()?;
    let job = client.create(&body)?;
    if args.stream_logs {
        return logs::follow(&client, &args.job, context.format);
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
    });
    Ok(ExitCode::SUCCESS)
}

/// The request that submits a job, after everything was checked that can be checked first.
fn body(job: &str, source: &Source) -> Result<Json, Failure> {
    job.parse::<phalanx_launch::spec::JobName>()
        .map_err(Failure::usage)?;
    let spec = Spec::read(source).map_err(Failure::usage)?;
    let plan = Plan::new(&spec).map_err(Failure::usage)?;
    let directory = std::env::current_dir().map_err(Failure::not_ready)?;
    let directory = spec
        .ours
        .directory
        .as_ref()
        .map_or(directory.clone(), |given| directory.join(given));
    dry_run::check_files(&plan, &directory)?;
    for notice in &spec.notices {
        eprintln!("note: {notice}");
    }
    let mut body = source.to_json();
    body["jobId"] = json!(job);
    if !body["phalanx"].is_object() {
        body["phalanx"] = json!({});
    }
    body["phalanx"]["directory"] = json!(directory);
    body["environment"] = json!(phalanx_launch::environment());
    Ok(body)
}

/// Starts a search and follows it: a line for each trial, then all of them.
pub(super) fn tune(context: &Context, args: &TuneArgs) -> Done {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => format!("tune_{}", phalanx_launch::store::now()),
    };
    let source = search::source(args)?;
    let body = body(&name, &source)?;
    if args.plan.dry_run {
        return dry_run::print(context, &name, &source, &body, &args.plan);
    }
    if body["trainingInput"]["hyperparameters"].is_null() {
        return Err(Failure::usage(
            "nothing is searched; add --search NAME=VALUES, or `hyperparameters` to a job file given by --config",
        ));
    }
    let client = context.client()?;
    client.create(&body)?;
    search::follow(context, &client, &name)
}
