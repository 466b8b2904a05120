//! What a job keeps in buckets: its package comes from there before the tasks start, its results and logs go there while they run.
//!
//! A process of its own does it, with the variables and secrets of the job's tasks: so it asks the bucket as they do. When the process that
//! runs the job ends, however that ends, it copies what is left and ends, too.

mod results;

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_store::ObjectUrl;

use crate::executor::{Job, RunEnd, Stop, own_program, task_variables};
use crate::lifecycle::Life;
use crate::package;
use crate::spec::{JobName, Program, Spec};
use crate::store::Store;
use crate::supervise::{job_dir, prepare};
use results::Results;
pub(crate) use results::{CHECKPOINT, FOLDER};

/// The hidden command that runs [`transfer`].
pub const TRANSFER: &str = "transfer";

/// How long a package and earlier results may take to come.
const MOST_BEFORE: Duration = Duration::from_secs(6 * 3600);
/// How long the last results may take to go.
const MOST_AFTER: Duration = Duration::from_secs(3600);
/// How long they may take from the wish to end the job on.
const MOST_AFTER_STOP: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often it is looked for new results.
const COPY_EVERY: Duration = Duration::from_secs(5);
/// What it says when tasks may start.
const READY: &str = "ready";
const LOCK: &str = "transfer.lock";

/// The process, as the job's supervisor has it.
pub(crate) struct Transfer {
    process: Child,
    input: Option<ChildStdin>,
    said: Receiver<String>,
    last: String,
}

impl Transfer {
    /// Starts it for a job that keeps anything in a bucket, and waits until the tasks may start.
    ///
    /// # Errors
    /// How the job ends where its package or its results did not come, or it was cancelled before they had.
    pub(crate) fn start(
        job: &Job,
        life: &Life,
        spec: &Spec,
        stop: &dyn Fn() -> Option<Stop>,
    ) -> Result<Option<Self>, RunEnd> {
        if !is_needed(life, spec) {
            return Ok(None);
        }
        let mut transfer = Self::spawn(job, life, spec).map_err(RunEnd::Refused)?;
        let since = Instant::now();
        loop {
            match transfer.said.recv_timeout(LOOK_EVERY) {
                Ok(line) if line == READY => return Ok(Some(transfer)),
                Ok(line) => transfer.last = line,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RunEnd::Refused(transfer.last.clone()));
                }
                Err(RecvTimeoutError::Timeout) if stop().is_some() => return Err(RunEnd::Stopped),
                Err(RecvTimeoutError::Timeout) if since.elapsed() < MOST_BEFORE => {}
                Err(RecvTimeoutError::Timeout) => {
                    let hours = MOST_BEFORE.as_secs() / 3600;
                    return Err(RunEnd::Refused(format!(
                        "what the job keeps in a bucket did not come within {hours} hours"
                    )));
                }
            }
        }
    }

    fn spawn(job: &Job, life: &Life, spec: &Spec) -> Result<Self, String> {
        let wrong =
            |error: io::Error| format!("the process that copies cannot be started: {error}");
        let mut variables = life.job.environment.clone();
        variables.extend(task_variables(spec, &life.job.directory)?);
        let mut process = command_in(&life.job.directory, &own_program().map_err(wrong)?)
            .arg("--root")
            .arg(job.root())
            .args([TRANSFER, life.job.name.as_str()])
            .env_clear()
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(wrong)?;
        let (send, said) = channel();
        let output = process.stdout.take();
        let input = process.stdin.take();
        let mut transfer = Self {
            process,
            input,
            said,
            last: "the process that copies was killed".to_owned(),
        };
        let read = move || {
            let lines = output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines());
            let _ = lines
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line));
        };
        let reader = thread::Builder::new().name("transfer".to_owned());
        if let Err(error) = reader.spawn(read) {
            transfer.input = None;
            return Err(wrong(error));
        }
        Ok(transfer)
    }

    /// Has it copy what is left. A job whose results have not arrived has not succeeded.
    pub(crate) fn finish(mut self, end: RunEnd, stop: &dyn Fn() -> Option<Stop>) -> RunEnd {
        let why = self.copies_what_is_left((MOST_AFTER, MOST_AFTER_STOP), stop);
        match (why, end) {
            (Some(why), RunEnd::Succeeded) => RunEnd::Refused(format!(
                "the tasks succeeded, and their results did not reach jobDir: {why}; they are in `results` in the job's folder"
            )),
            (_, end) => end,
        }
    }

    /// Waits for its end, for the first of these times, and for the second one from a wish to end the job on; a second wish leaves none. Gives
    /// why not all has arrived.
    fn copies_what_is_left(
        &mut self,
        (most, after_stop): (Duration, Duration),
        stop: &dyn Fn() -> Option<Stop>,
    ) -> Option<String> {
        self.input = None;
        let since = Instant::now();
        let mut until = since + most;
        let mut is_wished = false;
        loop {
            match self.said.recv_timeout(LOOK_EVERY) {
                Ok(line) => self.last = line,
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                    let seconds = since.elapsed().as_secs();
                    return Some(format!("they took longer than {seconds} s"));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let well = self.process.wait().is_ok_and(|status| status.success());
                    return (!well).then(|| self.last.clone());
                }
            }
            let Some(Stop { grace }) = stop() else {
                continue;
            };
            if grace.is_zero() {
                return Some("the job was ended at once".to_owned());
            }
            if !is_wished {
                is_wished = true;
                until = until.min(Instant::now() + after_stop);
            }
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.input = None;
        // Where it has ended these do nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A program that starts where tasks do: relative paths in its variables, such as of credentials, are theirs.
fn command_in(folder: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    if folder.is_dir() {
        command.current_dir(folder);
    }
    command
}

fn is_needed(life: &Life, spec: &Spec) -> bool {
    let is_url = |text: &String| ObjectUrl::is_url(text);
    let results = is_url(&job_dir(life, spec)) && cfg!(feature = "cloud");
    results || spec.package.as_ref().is_some_and(is_url)
}

/// Brings what a job has in buckets, says `ready`, and copies its results until `until` ends; then once more.
///
/// # Errors
/// What did not come or go, and why.
pub fn transfer(
    store: &Store,
    name: &JobName,
    until: impl Read + Send + 'static,
    say: &dyn Fn(&str),
) -> Result<(), String> {
    let life = store.load(name).map_err(|error| error.to_string())?.life;
    let (spec, plan) = prepare(&life)?;
    let folder = store.folder(name);
    let _held = hold(&folder)?;
    if let Some(package) = &spec.package {
        package::fetch(package, &life.job.directory, &folder.join("package"))?;
    }
    let url = job_dir(&life, &spec);
    let mut results = match ObjectUrl::is_url(&url) && cfg!(feature = "cloud") {
        true => Some(Results::open(&url, name, &folder)?),
        false => None,
    };
    // Other programs read from the bucket what they have written there, which may be a lot.
    let fetch = matches!(plan.program, Program::Training { .. });
    if let Some(results) = &results
        && (fetch || spec.hyperparameters.is_some())
    {
        results.restore(fetch)?;
    }
    say(READY);
    let (send, ended) = channel::<()>();
    let mut until = until;
    let read = move || {
        let _ = io::copy(&mut until, &mut io::sink());
        drop(send);
    };
    let reader = thread::Builder::new().name("input".to_owned()).spawn(read);
    reader.map_err(|error| format!("this machine starts no thread: {error}"))?;
    while ended.recv_timeout(COPY_EVERY) == Err(RecvTimeoutError::Timeout) {
        if let Some(results) = &mut results
            && let Err(why) = results.copy_changed()
        {
            say(&why);
        }
    }
    results.map_or(Ok(()), |mut results| results.copy_all())
}

/// Waits until no process before this one copies.
fn hold(folder: &Path) -> Result<std::fs::File, String> {
    let path = folder.join(LOCK);
    let wrong = |error: io::Error| format!("cannot lock {}: {error}", path.display());
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).mode(0o600).open(&path);
    let file = file.map_err(wrong)?;
    let since = Instant::now();
    while let Err(error) = file.try_lock() {
        match error {
            std::fs::TryLockError::Error(error) => return Err(wrong(error)),
            std::fs::TryLockError::WouldBlock if since.elapsed() > MOST_AFTER => {
                return Err(format!(
                    "another process copies the results for longer than {} s",
                    MOST_AFTER.as_secs()
                ));
            }
            std::fs::TryLockError::WouldBlock => thread::sleep(LOOK_EVERY),
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_in_the_folder_of_the_job_where_that_is_one() {
        let folder = |name: &str| {
            let command = command_in(Path::new(name), Path::new("p"));
            command.get_current_dir().map(Path::to_owned)
        };
        assert_eq!(folder("/").as_deref(), Some(Path::new("/")));
        assert_eq!(folder("/there is no such folder"), None);
    }

    #[test]
    fn a_job_that_is_to_end_waits_no_longer_for_a_bucket_that_does_not_answer() {
        let process = Command::new("sleep").arg("1000").spawn().unwrap();
        let (_says, said) = channel();
        let mut transfer = Transfer {
            process,
            input: None,
            said,
            last: String::new(),
        };
        let hour = Duration::from_secs(3600);
        let wish = |grace| move || Some(Stop { grace });
        let mut waits = |after_stop, grace| {
            let why = transfer.copies_what_is_left((hour, after_stop), &wish(grace));
            why.unwrap()
        };
        let took = waits(Duration::ZERO, hour);
        assert!(took.starts_with("they took longer than"), "{took}");
        assert_eq!(waits(hour, Duration::ZERO), "the job was ended at once");
    }
}
