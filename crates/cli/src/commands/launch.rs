//! `phalanx launch`: the workers of a training on this machine.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use phalanx_cluster::launch::{self, Console, Launch, LaunchError, Outcome, Show, Stop, TRY_AGAIN};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use super::Context;
use crate::args::LaunchArgs;
use crate::failure::{Exit, Failure};
use crate::output::notice;
use crate::signals;

/// The hidden command that ends workers whose launch was killed.
const GUARD: &str = "launch-guard";
/// How often a lost worker is started again where nothing else is asked for.
const RESTARTS: u32 = 3;

/// Starts the workers and waits for their end.
pub(crate) fn run(context: &Context, args: &LaunchArgs) -> Result<(), Failure> {
    let launch = plan(args)?;
    let stop = stop().map_err(|error| {
        Failure::new(Exit::NotReady, format!("cannot watch for signals: {error}"))
    })?;
    if context.global.shows_text() {
        let servers = match launch.servers {
            0 => String::new(),
            count => format!(" and {count} parameter servers"),
        };
        let evaluator = if launch.evaluator {
            " and an evaluator"
        } else {
            ""
        };
        notice(format_args!(
            "launch: {} workers{servers}{evaluator}, logs in {}",
            launch.workers,
            launch.logs.display()
        ));
    }
    let console = Console {
        out: Box::new(io::stdout()),
        err: Box::new(io::stderr()),
    };
    let guard = own_program().map(|program| {
        let mut command = Command::new(program);
        command.arg(GUARD);
        command
    });
    let outcome = launch
        .run(&stop, console, guard)
        .map_err(|error| refused(&error))?;
    judge(&outcome, &launch)
}

/// What is left behind by a launch that was killed ends here.
pub(crate) fn guard(job: &str) {
    launch::guard(job, None, io::stdin());
}

fn plan(args: &LaunchArgs) -> Result<Launch, Failure> {
    let workers = args.workers.most.get();
    if let Some(rank) = args.ranks.iter().flatten().find(|rank| **rank >= workers) {
        let text = format!(
            "--ranks names worker {rank}, there are workers 0 to {}",
            workers - 1
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    let job = job();
    let logs = args
        .logs
        .clone()
        .unwrap_or_else(|| Path::new("runs").join(&job).join("logs"));
    let mut launch = Launch::new(program(&args.program), args.workers.most, job, logs);
    launch.least_workers = args.workers.least;
    let usual = if args.ps == 0 { RESTARTS } else { 0 };
    launch.max_restarts = args.max_restarts.unwrap_or(usual);
    launch.restarts_once_met = args.max_restarts.is_none();
    launch.recover_within = Duration::from_secs(args.recover_within.into());
    launch.servers = args.ps;
    launch.evaluator = args.evaluator;
    launch.devices_per_worker = args.devices_per_worker;
    launch.port = args.port;
    launch.pin = !args.no_pin;
    launch.grace = Duration::from_secs(args.grace.into());
    launch.stop_grace = Duration::from_secs(args.stop_grace.into());
    launch.show = match &args.ranks {
        Some(ranks) => Show::Ranks(ranks.clone()),
        None if args.tee => Show::All,
        None => Show::Chief,
    };
    Ok(launch)
}

/// The program to start; `phalanx` is this one, wherever it lies.
fn program(given: &[OsString]) -> Vec<OsString> {
    let mut program = given.to_vec();
    if let (Some(first), Some(own)) = (program.first_mut(), own_program())
        && first == "phalanx"
    {
        *first = own.into_os_string();
    }
    program
}

fn own_program() -> Option<PathBuf> {
    std::env::current_exe().ok()
}

/// A name that no other job of this machine has.
fn job() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    format!("launch-{seconds}-{}", std::process::id())
}

fn stop() -> io::Result<Stop> {
    let stop = Stop::default();
    flag::register(SIGINT, stop.interrupt.clone())?;
    flag::register(SIGTERM, stop.terminate.clone())?;
    flag::register(SIGUSR1, stop.user.clone())?;
    if !signals::ignores_hangup() {
        flag::register(SIGHUP, stop.hangup.clone())?;
    }
    Ok(stop)
}

fn refused(error: &LaunchError) -> Failure {
    let exit = match error {
        LaunchError::Watch(_) | LaunchError::Logs { .. } => Exit::NotReady,
        _ => Exit::Usage,
    };
    Failure::of(exit, error)
}

/// How the launch ends by how its workers did.
fn judge(outcome: &Outcome, launch: &Launch) -> Result<(), Failure> {
    let exit = match outcome.exit_code() {
        0 => return Ok(()),
        2 => Exit::Usage,
        3 => Exit::NotReady,
        TRY_AGAIN => Exit::TryAgain,
        130 => Exit::Interrupted,
        143 => Exit::Terminated,
        _ => Exit::Failed,
    };
    let Some(first) = outcome.first_failure() else {
        return Err(Failure::new(exit, "stopped by a signal"));
    };
    let who = match launch.task(first.rank) {
        task if task.kind.trains() => format!("worker {} of {}", first.rank, launch.workers),
        task => task.to_string(),
    };
    let mut text = format!(
        "{who} {} after {:.1} s",
        first.how,
        first.after.as_secs_f64()
    );
    if !outcome.last_lines.is_empty() {
        text.push_str("; its last lines:");
    }
    for line in &outcome.last_lines {
        text.push_str("\n    ");
        text.push_str(line);
    }
    let next = match exit {
        Exit::TryAgain => "start all workers again",
        Exit::Interrupted | Exit::Terminated => "go on with the same command and --resume",
        _ => "correct what its output says",
    };
    let log = outcome.log.as_deref().unwrap_or(&launch.logs);
    Err(Failure::new(exit, text).next(format!("{next}; all of its output is in {}", log.display())))
}
