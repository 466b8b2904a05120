//! What the tasks of a job write.

use std::process::ExitCode;

use phalanx_yaml::suggest;
use serde_json::Value as Json;

use super::show::{failure, out, printable, values};
use super::{Context, Done, code};
use crate::args::{Format, LogArgs};
use crate::client::{Client, Event, encode};
use crate::daemon::is_task;
use crate::failure::Failure;

/// A daemon that ends this often while a job runs is killed again and again.
const MOST_DAEMONS: u32 = 100;

pub(super) fn logs(context: &Context, args: &LogArgs, follow: bool) -> Done {
    let client = context.client()?;
    // A job of another project is none.
    let job = client.job(&args.job)?;
    if let Some(wanted) = &args.task_name {
        has_task(&args.job, &job, wanted)?;
    }
    let mut path = format!(
        "/api/jobs/{}/logs?follow={}",
        encode(&args.job),
        u8::from(follow)
    );
    if let Some(task) = &args.task_name {
        path.push_str(&format!("&task={}", encode(task)));
    }
    if let Some(tail) = args.tail {
        path.push_str(&format!("&tail={tail}"));
    }
    stream(&client, &path, &context.format, true)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a task that a job has not. A job that waits has none yet, and a search gets more until its end.
fn has_task(name: &str, job: &Json, wanted: &str) -> Result<(), Failure> {
    let tasks = job["phalanx"]["tasks"].as_array().into_iter().flatten();
    let tasks: Vec<&str> = tasks.filter_map(|task| task["task"].as_str()).collect();
    let gets_more = job["endTime"].is_null() && job["trainingInput"]["hyperparameters"].is_object();
    if tasks.is_empty() || gets_more || tasks.iter().any(|task| is_task(task, wanted)) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the job {name} has no task {wanted:?}; {}",
        suggest(wanted, &tasks)
    )))
}

/// Follows a job until its end; the exit code says how that was.
pub(super) fn follow(client: &Client, job: &str, format: &Format) -> Done {
    let path = format!("/api/jobs/{}/logs?follow=1", encode(job));
    stream(client, &path, format, false)?;
    let shown = client.job(job)?;
    let state = shown["state"].as_str().unwrap_or_default();
    if let Some(error) = shown["errorMessage"].as_str() {
        eprint!(
            "job {job} {state}: {}\n{}",
            printable(error),
            failure(&shown["phalanx"]["firstFailure"])
        );
    }
    Ok(code(state))
}

/// Shows the lines of a stream to its end, or while anybody reads them. Where the daemon ends before, as the job does not, another one goes on.
fn stream(
    client: &Client,
    path: &str,
    format: &Format,
    ends_with_reader: bool,
) -> Result<(), Failure> {
    let mut shown = Shown {
        format,
        head: *format == Format::Text,
        last: String::new(),
        ends_with_reader,
        failure: None,
    };
    let mut next;
    let mut client = client;
    for _ in 0..MOST_DAEMONS {
        if client.events(path, &shown.last.clone(), |event| shown.take(event))? {
            return shown.failure.map_or(Ok(()), Err);
        }
        next = client.again()?;
        client = &next;
    }
    Err(Failure::not_ready(format!(
        "the daemon ended {MOST_DAEMONS} times while its logs were read; daemon.log in the folder of all jobs says why"
    )))
}

/// What was shown of a stream.
struct Shown<'a> {
    format: &'a Format,
    /// Whether the names of the columns are to come.
    head: bool,
    /// The id of the last event.
    last: String,
    /// Whether lines that nobody reads end it.
    ends_with_reader: bool,
    /// Why they cannot be shown.
    failure: Option<Failure>,
}

impl Shown<'_> {
    fn take(&mut self, event: &Event<'_>) -> bool {
        if event.name != "lines" {
            return event.name != "end";
        }
        let mut text = String::new();
        if std::mem::take(&mut self.head) {
            text.push_str("SEVERITY  TIMESTAMP                 TASK_NAME   MESSAGE\n");
        }
        for line in event.data.as_array().into_iter().flatten() {
            match self.format {
                Format::Text => text.push_str(&row(line)),
                Format::Value(fields) => text.push_str(&values(line, fields)),
                _ => text.push_str(&format!("{line}\n")),
            }
        }
        event.id.clone_into(&mut self.last);
        match out(&text) {
            Ok(is_read) => is_read || !self.ends_with_reader,
            Err(failure) => {
                self.failure = Some(failure);
                false
            }
        }
    }
}

fn row(line: &Json) -> String {
    let text = |name: &str| printable(line[name].as_str().unwrap_or_default());
    format!(
        "{:<8}  {:<24}  {:<10}  {}\n",
        text("severity"),
        text("time"),
        text("task"),
        text("message")
    )
}
