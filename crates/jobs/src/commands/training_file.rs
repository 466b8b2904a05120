//! Whether a training file can be trained, as far as that is seen in a moment: `phalanx train --dry-run` reads it, the arguments and the data.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use phalanx_launch::executor::{RunArgs, phalanx, task_variables, words};
use phalanx_launch::spec::{ExecutorKind, Hyperparameters, Plan, Program, Spec, TaskPlan};
use serde_json::Value as Json;

use crate::failure::{Failure, NOT_READY};

/// How long that may take; what takes longer is seen when the job starts.
const WITHIN: Duration = Duration::from_secs(20);

/// Refuses a training file that this machine cannot train where it is to, or not with any values such as trials have. For other machines, which
/// may have what this one has not, it is a note.
pub(super) fn check(spec: &Spec, plan: &Plan, directory: &Path) -> Result<(), Failure> {
    let (Program::Training { .. }, Some(task)) = (&plan.program, plan.tasks.first()) else {
        return Ok(());
    };
    let own = task_variables(spec, directory).map_err(|why| Failure::new(NOT_READY, why))?;
    let mut variables = phalanx_launch::environment();
    variables.extend(own);
    let refused = |values: &[(String, String)]| {
        let words = dry_run(spec, &plan.program, task, values);
        refusal(&words, directory, &variables, WITHIN)
    };
    let trials = (spec.hyperparameters.as_ref()).map_or_else(Vec::new, Hyperparameters::samples);
    let why = match trials.first() {
        None => refused(&[]),
        // What is wrong with the file itself is said as if nothing were searched; what some trials can start with is theirs to find.
        Some(first) => refused(first).and_then(|why| {
            let own = refused(&[]);
            let all = trials[1..].iter().all(|values| refused(values).is_some());
            own.or_else(|| all.then(|| of_trial(first, &why)))
        }),
    };
    let Some(why) = why else {
        return Ok(());
    };
    if spec.ours.executor == ExecutorKind::Local && task.image.is_none() {
        return Err(Failure::usage(why));
    }
    for line in why.lines() {
        eprintln!("note: on this machine the training would not start: {line}");
    }
    Ok(())
}

/// The words of a dry run, with values of hyperparameters.
fn dry_run(
    spec: &Spec,
    program: &Program,
    task: &TaskPlan,
    values: &[(String, String)],
) -> Vec<String> {
    let job_dir = spec.job_dir.clone().unwrap_or_else(|| "runs".to_owned());
    let run = RunArgs {
        job_dir: Some(job_dir),
        values: values.to_vec(),
        ..RunArgs::default()
    };
    let mut words = words(program, task, &run, &phalanx());
    words.push("--dry-run".to_owned());
    if !task.args.iter().any(|arg| arg.starts_with("--progress")) {
        words.push("--progress=json".to_owned());
    }
    words
}

/// What is wrong with the values of a trial.
fn of_trial(values: &[(String, String)], why: &str) -> String {
    let values: Vec<String> = values
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    format!("a trial with {} would not start: {why}", values.join(" "))
}

/// What a dry run says that does not come as far as the model.
fn refusal(
    words: &[String],
    directory: &Path,
    variables: &BTreeMap<String, String>,
    within: Duration,
) -> Option<String> {
    let child = Command::new(words.first()?)
        .args(&words[1..])
        .current_dir(directory)
        .env_clear()
        .envs(variables)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    // Without the program there is nothing to ask.
    let mut child = child.ok()?;
    let said = child.stderr.take().map(|mut stderr| {
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    if has_data(&mut child, within) {
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    let has_failed = child.wait().is_ok_and(|status| !status.success());
    let said = said?.join().unwrap_or_default();
    let said = said.trim_end().replace("error: ", "");
    let said = match said.split_once("\n\n") {
        // A mistake in the arguments, and how they are written.
        Some((mistake, _)) if mistake.contains("'--output <") => {
            "the job gives `--output` itself, its job directory; use --job-dir, and leave --output out"
                .to_owned()
        }
        Some((mistake, _)) => format!("phalanx train says: {mistake}; correct the arguments"),
        None => said,
    };
    has_failed.then_some(said).filter(|said| !said.is_empty())
}

/// Whether the data are read, or take longer than this; not so if the program ends first.
fn has_data(child: &mut Child, within: Duration) -> bool {
    let Some(stdout) = child.stdout.take() else {
        return true;
    };
    let (send, ended) = mpsc::channel();
    thread::spawn(move || {
        let is_data = |line: &String| {
            serde_json::from_str(line).is_ok_and(|line: Json| line["event"] == "data")
        };
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let _ = send.send(lines.any(|line| is_data(&line)));
    });
    ended.recv_timeout(within).unwrap_or(true)
}
