//! The commands, a file each where they are long.

mod dry_run;
mod estimate;
mod logs;
mod package;
mod prices;
mod search;
mod show;
mod spec;
mod submit;
mod training_file;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use phalanx_cluster::launch::TRY_AGAIN;
use phalanx_launch::store::Store;
use phalanx_launch::supervise::supervise;
use phalanx_launch::transfer::transfer;
use serde_json::{Map, Value as Json, json};

use crate::args::{Args, Command, Format, Submit, UpdateArgs};
use crate::client::{Client, root};
use crate::daemon;
use crate::failure::{FAILED, Failure};
use crate::trust;

/// How often a job is changed again that has changed in the meantime.
const MOST_UPDATES: u32 = 20;

/// What every command is given.
pub(crate) struct Context {
    root: PathBuf,
    /// Whom to trust where the daemon serves by TLS.
    ca: Option<PathBuf>,
    project: String,
    format: Format,
}

impl Context {
    fn client(&self) -> Result<Client, Failure> {
        Client::connect(&self.root, &self.project, self.ca.as_deref())
    }

    /// Prints a result as it was asked for, or by `text`.
    fn print(&self, json: &Json, text: impl FnOnce(&Json) -> String) -> Result<(), Failure> {
        let out = match &self.format {
            Format::Json => format!("{json:#}\n"),
            Format::Yaml => phalanx_yaml::to_yaml(json),
            Format::Text => text(json),
            Format::Value(fields) => show::values(json, fields),
        };
        show::out(&out).map(drop)
    }
}

type Done = Result<ExitCode, Failure>;

/// Runs what was typed.
pub(crate) fn run(args: Args) -> Done {
    let root = match args.command {
        // In a pod, or in the background of one job: neither looks at other jobs.
        Command::BringPackage { .. } | Command::Guard { .. } => PathBuf::new(),
        _ => root(args.root.as_deref())?,
    };
    let context = Context {
        root,
        ca: args
            .ca
            .or_else(|| std::env::var_os(trust::VARIABLE).map(PathBuf::from)),
        project: args.project,
        format: args.format,
    };
    match args.command {
        Command::Submit(Submit::Training(args)) => submit::training(&context, &args),
        Command::Tune(args) => submit::tune(&context, &args),
        Command::List(args) => show::list(&context, &args),
        Command::Describe { job, summarize } => show::describe(&context, &job, summarize),
        Command::Logs(args) => logs::logs(&context, &args, args.follow),
        Command::StreamLogs(args) => logs::logs(&context, &args, true),
        Command::Cancel { job } => cancel(&context, &job),
        Command::Update(args) => update(&context, &args),
        Command::Queue => show::queue(&context),
        Command::Wait { job, timeout } => wait(&context, &job, timeout),
        Command::Dashboard => {
            show::out(&format!("{}\n", context.client()?.dashboard()))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Serve(args) => daemon::serve(&context.root, &args).map(|()| ExitCode::SUCCESS),
        Command::Supervise { job } => run_job(&context.root, &job),
        Command::Transfer { job } => copy(&context.root, &job),
        Command::BringPackage { url, folder } => package::bring(&url, &folder),
        Command::Guard { attempt, run } => {
            phalanx_cluster::launch::guard(&run, Some(&attempt), std::io::stdin());
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_job(root: &Path, job: &str) -> Done {
    let _ = rustix::process::setsid();
    let store = Store::open(root).map_err(Failure::not_ready)?;
    let name = job.parse().map_err(Failure::usage)?;
    let gpus = daemon::keep_to_share(&store.folder(&name))?;
    supervise(&store, &name, gpus).map_err(Failure::not_ready)?;
    Ok(ExitCode::SUCCESS)
}

/// Says on standard output what the supervisor is to know.
fn copy(root: &Path, job: &str) -> Done {
    let store = Store::open(root).map_err(Failure::not_ready)?;
    let name = job.parse().map_err(Failure::usage)?;
    // The supervisor may have gone.
    let say = |line: &str| {
        let mut out = std::io::stdout();
        let _ = writeln!(out, "{}", line.replace('\n', " ")).and_then(|()| out.flush());
    };
    match transfer(&store, &name, std::io::stdin(), &say) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(why) => {
            say(&why);
            Ok(ExitCode::from(FAILED))
        }
    }
}

fn cancel(context: &Context, job: &str) -> Done {
    context.client()?.cancel(job)?;
    context.print(&json!({"jobId": job, "state": "CANCELLING"}), |_| {
        format!("Cancelling job [{job}].\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn update(context: &Context, args: &UpdateArgs) -> Done {
    if args.update_labels.is_empty() && args.remove_labels.is_empty() && !args.clear_labels {
        return Err(Failure::usage(
            "nothing is to be changed; add --update-labels KEY=VALUE, --remove-labels KEY or --clear-labels",
        ));
    }
    let added = spec::pairs("--update-labels", &args.update_labels)?;
    let mut tries = 1;
    let changed = loop {
        match relabel(context, args, &added) {
            // The job has changed in the meantime, or the daemon is about to end.
            Err(failure) if failure.exit == TRY_AGAIN && tries < MOST_UPDATES => tries += 1,
            changed => break changed?,
        }
    };
    context.print(&changed, |_| format!("Updated job [{}].\n", args.job))?;
    Ok(ExitCode::SUCCESS)
}

/// Changes the labels that a job has now.
fn relabel(
    context: &Context,
    args: &UpdateArgs,
    added: &[(String, String)],
) -> Result<Json, Failure> {
    let client = context.client()?;
    let job = client.job(&args.job)?;
    let mut labels = match &job["labels"] {
        Json::Object(labels) if !args.clear_labels => labels.clone(),
        _ => Map::new(),
    };
    for name in &args.remove_labels {
        labels.remove(name);
    }
    for (name, value) in added {
        labels.insert(name.clone(), Json::from(value.as_str()));
    }
    client.patch(&args.job, &json!({"labels": labels, "etag": job["etag"]}))
}

/// The exit code of a job by its state: 0, 1, or 130 for one that was cancelled.
fn code(state: &str) -> ExitCode {
    ExitCode::from(match state {
        "SUCCEEDED" => 0,
        "CANCELLED" => 130,
        _ => 1,
    })
}

fn wait(context: &Context, job: &str, timeout: Option<u64>) -> Done {
    let client = context.client()?;
    // A time that the clock does not reach is no bound.
    let until = timeout.and_then(|time| Instant::now().checked_add(Duration::from_secs(time)));
    loop {
        let shown = client.job(job)?;
        if let Some(state) = shown["state"]
            .as_str()
            .filter(|_| shown["endTime"].is_string())
        {
            context.print(&shown, show::summary)?;
            return Ok(code(state));
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            let message = format!(
                "job {job} is {} still; wait again, or look at `phalanx jobs logs {job}`",
                shown["state"]
            );
            return Err(Failure::new(TRY_AGAIN, message));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
