//! Tasks as the tasks of a Slurm job: one batch script, `srun` in it, a script that each task runs, and files in the job's folder, which
//! all nodes see, by which tasks tell that they have started and how they ended.

mod places;
mod script;
mod task;
mod unrecorded;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use places::PLACES;
use script::{TASK, folder_of, scripts};

use super::command::made_folders;
use super::{Run, RunEnd, Stop};
use crate::lifecycle::{Event, Life, TaskEnd, is_tried_again};
use crate::spec::{Program, TaskPlan};

/// How often Slurm and the files are asked.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How long the files of tasks may take to be seen here after Slurm says that the job is over.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// How long Slurm's commands may fail before the job counts as lost.
const PATIENCE: Duration = Duration::from_secs(300);

/// How long they may fail where nobody waits for the job any more.
const CANCEL_WITHIN: Duration = Duration::from_secs(30);
/// What they say of a job that ended long ago.
const FORGOTTEN: &str = "Invalid job id";
/// The state of such a job, which is ours and not Slurm's.
const GONE: &str = "FORGOTTEN";

/// What stands before Slurm's number of a job.
const HANDLE: &str = "slurm ";

/// The scripts of a run, for people.
pub(super) fn shown(run: &Run<'_>, life: &Life) -> String {
    let scripts = scripts(run, life);
    format!(
        "{}\n# {TASK}, which each task runs:\n{}",
        scripts.batch, scripts.task
    )
}

pub(super) fn run(run: &Run<'_>) -> RunEnd {
    let life = match run.job.life() {
        Ok(life) => life,
        Err(error) => return RunEnd::Refused(error.to_string()),
    };
    let (id, folder) = match left(run, &life) {
        Ok(Some((Some(id), folder))) => (id, folder),
        Ok(Some((None, folder))) => {
            unrecorded::recorded(&folder);
            return Watching::of(run, "without a number".to_owned(), folder).judge_by_files();
        }
        Ok(None) => {
            let folder = folder_of(run, run.attempt);
            match submit(run, &life, &folder) {
                Ok(id) => (id, folder),
                Err(end) => return end,
            }
        }
        Err(_) if (run.stop)().is_some() => return RunEnd::Stopped,
        Err(why) => return RunEnd::Refused(why),
    };
    if handle(run, &life).is_none_or(|known| *known != id) {
        run.note(Event::Handle {
            handle: Some(format!("{HANDLE}{id}")),
            trial: run.args.trial,
        });
    }
    unrecorded::recorded(&folder);
    Watching::of(run, id, folder).watch()
}

/// Slurm's number of what runs already, as far as it was noted.
fn handle<'a>(run: &Run<'_>, life: &'a Life) -> Option<&'a str> {
    let handle = match run.args.trial {
        None => life.handle.as_ref(),
        Some(trial) => life.trial_handles.get(&trial),
    };
    handle?.strip_prefix(HANDLE)
}

/// Slurm's job and the folder of the attempt before, whose supervisor was killed: that job goes on. It has no number if nobody noted it and
/// Slurm has forgotten it; then all of its tasks have ended.
fn left(run: &Run<'_>, life: &Life) -> Result<Option<(Option<String>, PathBuf)>, String> {
    let mut before = (1..run.attempt).rev();
    let folder = before.find_map(|attempt| {
        let folder = folder_of(run, attempt);
        folder.is_dir().then_some(folder)
    });
    let Some(folder) = folder else {
        return Ok(None);
    };
    if let Some(id) = handle(run, life) {
        return Ok(Some((Some(id.to_owned()), folder)));
    }
    if !unrecorded::may_be(&folder) {
        return Ok(None);
    }
    let found = unrecorded::find(life, &folder, &give_up(run));
    let found = found
        .map_err(|why| format!("cannot find out whether Slurm has this job already: {why}"))?;
    if found.is_none() && !have_ended(run, &folder) {
        unrecorded::recorded(&folder);
        return Ok(None);
    }
    Ok(Some((found, folder)))
}

/// Whether all tasks have ended, by the files of Slurm's last start of them.
fn have_ended(run: &Run<'_>, folder: &Path) -> bool {
    let starts = (0..).map(|start| folder.join(format!("r{start}")));
    let last = starts.take_while(|folder| folder.is_dir()).last();
    last.is_some_and(|folder| {
        let end = |task: &TaskPlan| ended(&folder.join(format!("{}.exit", task.name())));
        run.plan.tasks.iter().all(|task| end(task).is_some())
    })
}

/// Ends what Slurm has of a job and of its trials that nobody watches any more; the job's folder is this.
pub(crate) fn cancel(folder: &Path, life: &Life) {
    let until = Instant::now() + CANCEL_WITHIN;
    let handles = life.handle.iter().chain(life.trial_handles.values());
    let handles = handles.filter_map(|handle| handle.strip_prefix(HANDLE));
    let mut ids: Vec<String> = handles.map(str::to_owned).collect();
    for folder in unrecorded::folders(folder) {
        if let Ok(found) = unrecorded::find(life, &folder, &|| Instant::now() >= until) {
            ids.extend(found);
            unrecorded::recorded(&folder);
        }
    }
    for id in ids {
        while let Err(why) = ask(tool("scancel", life).arg(&id)) {
            if why.contains(FORGOTTEN) || Instant::now() >= until {
                break;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Whether what Slurm does not answer is to be given up: it had its time, or the job is to end.
fn give_up(run: &Run<'_>) -> impl Fn() -> bool {
    let (until, stop) = (Instant::now() + PATIENCE, run.stop);
    move || Instant::now() >= until || stop().is_some()
}

/// Slurm's number of a new job. One that did not reach Slurm is submitted again.
fn submit(run: &Run<'_>, life: &Life, folder: &Path) -> Result<String, RunEnd> {
    let mut sbatch = sbatch(run, life, folder).map_err(RunEnd::Refused)?;
    let over = give_up(run);
    loop {
        let why = match ask(&mut sbatch) {
            Ok(answer) => return number(&answer).map_err(RunEnd::Refused),
            Err(why) => why,
        };
        let passes = passes(&why);
        // It may not have heard Slurm's answer; if nor do we, who ends the job asks again.
        let found = match passes {
            true => unrecorded::find(life, folder, &over),
            false => unrecorded::look(life, folder),
        };
        match found {
            Ok(Some(id)) => return Ok(id),
            Ok(None) if passes && !over() && unrecorded::renewed(folder).is_ok() => continue,
            Ok(None) => unrecorded::recorded(folder),
            Err(_) => {}
        }
        return Err(match passes {
            true if (run.stop)().is_some() => RunEnd::Stopped,
            // What it was once given it may be given again.
            true if run.attempt > 1 => RunEnd::Lost(why),
            _ => RunEnd::Refused(why),
        });
    }
}

/// Whether what a command of Slurm's says may be otherwise later: that it did not reach Slurm, or had no answer.
fn passes(why: &str) -> bool {
    let why = why.to_lowercase();
    [
        "unable to contact",
        "connection",
        "communication",
        "timed out",
        "zero bytes",
        "send failure",
        "receive failure",
        "standby mode",
        "temporarily un",
    ]
    .iter()
    .any(|said| why.contains(said))
}

/// The number of a job in the answer of `sbatch`.
fn number(answer: &str) -> Result<String, String> {
    let id = answer.trim().split(';').next().unwrap_or_default();
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("sbatch answers {answer:?}, and no number of a job"));
    }
    Ok(id.to_owned())
}

/// The command that submits a run, whose scripts it has in this folder.
fn sbatch(run: &Run<'_>, life: &Life, folder: &Path) -> Result<Command, String> {
    let wrong = |error: std::io::Error| format!("cannot write {}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(wrong)?;
    super::secret(run.job.folder()).map_err(wrong)?;
    if run.plan.program == Program::Image {
        made_folders(run, &life.job.directory)?;
    }
    let path = folder.join("job.sbatch");
    let scripts = scripts(run, life);
    for (path, script) in [(&path, scripts.batch), (&folder.join(TASK), scripts.task)] {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o700);
        let written = options
            .open(path)
            .and_then(|mut file| file.write_all(script.as_bytes()));
        written.map_err(wrong)?;
    }
    let output = format!("--output={}", folder.join("batch.log").display());
    let mark = unrecorded::mark(folder).map_err(wrong)?;
    let mut command = tool("sbatch", life);
    command
        .args(["--parsable", "--export=NONE", &output])
        .arg(format!("--comment={mark}"))
        .arg(&path);
    Ok(command)
}

/// A command of Slurm's with the submitter's variables, which say where its configuration is.
fn tool(name: &str, life: &Life) -> Command {
    let mut command = Command::new(name);
    let environment = life.job.environment.iter();
    command.envs(environment.filter(|(name, _)| name.starts_with("SLURM_CONF") || *name == "PATH"));
    command
}

fn ask(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| {
        format!(
            "cannot start {name}: {error}; submit where Slurm's commands are, or with --to local"
        )
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name} refuses: {}", error.trim()))
}

struct Watching<'a> {
    run: &'a Run<'a>,
    id: String,
    folder: PathBuf,
    /// How often Slurm has started the job again, as far as its files tell.
    newest: u32,
    started: Vec<usize>,
    /// How often each task was started again by itself, by place in the plan.
    again: Vec<u32>,
    ended: Vec<(usize, u64, TaskEnd)>,
    answered: Instant,
    told: Option<Instant>,
    /// Whether Slurm has been told to end the job.
    cancelled: bool,
    /// Whether what is left of the tasks was ended without any more time.
    killed: bool,
    running: bool,
    /// The job's nodes as Slurm last wrote them.
    nodes: String,
    /// Why the tasks cannot go on, though Slurm lets those run that are left, and since when they are being ended.
    lost: Option<(String, Instant)>,
}

impl<'a> Watching<'a> {
    fn of(run: &'a Run<'a>, id: String, folder: PathBuf) -> Self {
        Self {
            run,
            id,
            folder,
            newest: 0,
            started: Vec::new(),
            again: vec![0; run.plan.tasks.len()],
            ended: Vec::new(),
            answered: Instant::now(),
            told: None,
            cancelled: false,
            killed: false,
            running: false,
            nodes: String::new(),
            lost: None,
        }
    }

    fn watch(mut self) -> RunEnd {
        loop {
            self.look_at_files();
            self.press();
            match self.state() {
                Ok(state) if is_over(&state) => {
                    self.settle(&state);
                    return self.judge(&state);
                }
                Ok(_) => self.answered = Instant::now(),
                Err(why) if why.contains(FORGOTTEN) => return self.judge_by_files(),
                Err(why) if self.answered.elapsed() > PATIENCE => return RunEnd::Lost(why),
                Err(_) => {}
            }
            if (self.told.or(self.lost.as_ref().map(|(_, since)| *since)))
                .is_some_and(|told| told.elapsed() > PATIENCE)
            {
                return RunEnd::Lost(format!("Slurm does not end job {}", self.id));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Has the tasks end where they are to: Slurm gives them the time that it is set to, but for a second wish.
    fn press(&mut self) {
        let stop = (self.run.stop)();
        if stop.is_some() {
            self.told.get_or_insert_with(Instant::now);
        }
        if (stop.is_some() || self.lost.is_some()) && !self.cancelled {
            self.cancelled = self.command("scancel", &[]).is_ok();
        }
        let Some(Stop { grace }) = stop else { return };
        if grace.is_zero() && !self.killed {
            self.killed = self
                .command("scancel", &["--signal=KILL", "--full"])
                .is_ok();
        }
    }

    fn command(&self, name: &str, args: &[&str]) -> Result<String, String> {
        let life = self.run.job.life().map_err(|error| error.to_string())?;
        ask(tool(name, &life).args(args).arg(&self.id))
    }

    /// Slurm's word for how the job is, such as RUNNING or NODE_FAIL.
    fn state(&mut self) -> Result<String, String> {
        let shown = self.command("scontrol", &["--oneliner", "show", "job"])?;
        let field = |name| (shown.split_whitespace()).find_map(|part| part.strip_prefix(name));
        let state = field("JobState=");
        let state = state.ok_or_else(|| format!("scontrol does not say how job {} is", self.id))?;
        if let (Some(nodes), "RUNNING") = (field("NodeList="), state)
            && nodes != self.nodes
        {
            self.look_at_nodes(nodes)?;
        }
        Ok(state.to_owned())
    }

    /// Ends the job where it has lost its first node, with the batch script and the chief: with `--no-kill` Slurm lets the others run, which
    /// have nobody to meet at any more.
    fn look_at_nodes(&mut self, nodes: &str) -> Result<(), String> {
        let Some(first) = self.first_node() else {
            return Ok(());
        };
        let life = self.run.job.life().map_err(|error| error.to_string())?;
        let names = ask(tool("scontrol", &life).args(["show", "hostnames", nodes]))?;
        nodes.clone_into(&mut self.nodes);
        if self.lost.is_none() && !names.lines().any(|name| name == first) {
            let why = format!("Slurm's job {} lost its first node, {first}", self.id);
            // It is ended at the next look.
            self.lost = Some((why, Instant::now()));
        }
        Ok(())
    }

    /// The name of the node of the first task, as Slurm lists it, once the batch script has written it: BatchHost may be another name.
    fn first_node(&self) -> Option<String> {
        let path = self.folder.join(format!("r{}", self.newest)).join(PLACES);
        let places = fs::read_to_string(path).ok()?;
        Some(places.split(' ').next()?.to_owned())
    }

    /// Files of the last tasks may come a little after Slurm says that they have ended; all tasks of a job that is completed have some, also
    /// those that began and ended since the last look.
    fn settle(&mut self, state: &str) {
        let until = Instant::now() + SETTLE_WITHIN;
        loop {
            self.look_at_files();
            let expected = match state {
                "COMPLETED" => self.run.plan.tasks.len(),
                _ => self.started.len(),
            };
            if self.ended.len() >= expected || Instant::now() >= until {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn look_at_files(&mut self) {
        while self.folder.join(format!("r{}", self.newest + 1)).is_dir() {
            // Slurm has started all tasks once more, after the loss of a node or a preemption.
            self.newest += 1;
            (self.started, self.ended) = (Vec::new(), Vec::new());
            self.again.fill(0);
        }
        let folder = self.folder.join(format!("r{}", self.newest));
        for (at, plan) in self.run.plan.tasks.iter().enumerate() {
            let (name, task) = (plan.name(), self.run.task_name(&plan.name()));
            if !self.started.contains(&at)
                && let Some(place) = node(&folder, &name)
            {
                self.started.push(at);
                self.began(&task, place);
            }
            while let Some((end, _)) =
                ended(&folder.join(format!("{name}.again-{}", self.again[at] + 1)))
            {
                self.again[at] += 1;
                self.run.note(Event::TaskEnded {
                    task: task.clone(),
                    end,
                });
                self.began(&task, node(&folder, &name).unwrap_or_default());
            }
            let known = self.ended.iter().any(|(known, ..)| *known == at);
            if !known && let Some((end, when)) = ended(&folder.join(format!("{name}.exit"))) {
                let told = self.told.is_some();
                let end = TaskEnd { told, ..end };
                self.ended.push((at, when, end));
                self.run.note(Event::TaskEnded { task, end });
            }
        }
        if !self.running && self.started.len() == self.run.plan.tasks.len() {
            self.running = true;
            (self.run.started)();
        }
    }

    fn began(&self, task: &str, place: String) {
        self.run.note(Event::TaskStarted {
            task: task.to_owned(),
            attempt: self.run.attempt,
            place,
        });
    }

    /// How a job ended that Slurm does not know any more.
    fn judge_by_files(mut self) -> RunEnd {
        self.settle(GONE);
        self.judge(GONE)
    }

    fn judge(mut self, state: &str) -> RunEnd {
        self.run.note(Event::Handle {
            handle: None,
            trial: self.run.args.trial,
        });
        self.ended.sort_by_key(|(_, when, _)| *when);
        let chief = (self.ended.iter()).any(|(at, _, end)| *at == 0 && end.code == Some(0));
        let counts = |at: usize, end: TaskEnd| !(chief && self.run.goes_on_without(at, end));
        let ends = self.ended.iter().map(|(at, _, end)| (*at, *end));
        let ends = ends.filter(|(at, end)| counts(*at, *end));
        let lost = ["NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"].contains(&state);
        if self.told.is_some() {
            return RunEnd::Stopped;
        }
        if let Some((why, _)) = self.lost.take().filter(|_| !chief) {
            return RunEnd::Lost(why);
        }
        // What a cancel in Slurm ends looks as if it was preempted, and would come back again and again.
        let is_cancelled = |end: TaskEnd| state == "CANCELLED" && is_tried_again(end);
        let first = self.run.first_failure(ends);
        if let Some(failure) = first.filter(|first| !lost && !is_cancelled(first.end)) {
            return RunEnd::Failed(failure);
        }
        let batch = self.folder.join("batch.log");
        match state {
            // A chief that a cancel in Slurm ended may have saved and exited with 0.
            _ if chief && (state != "CANCELLED" || self.cancelled) => RunEnd::Succeeded,
            _ if lost => RunEnd::Lost(format!("Slurm's job {} ended as {state}", self.id)),
            "TIMEOUT" | "DEADLINE" => {
                RunEnd::Refused(format!("Slurm's job {} had no more time", self.id))
            }
            GONE => RunEnd::Lost(format!(
                "Slurm has forgotten job {}, and not all of its tasks have told how they ended",
                self.id
            )),
            "CANCELLED" => {
                RunEnd::Refused(format!("Slurm's job {} was cancelled in Slurm", self.id))
            }
            state => RunEnd::Refused(format!(
                "Slurm's job {} ended as {state} without a word of its tasks; look at {}",
                self.id,
                batch.display()
            )),
        }
    }
}

/// Where a task runs, by the file that it leaves: none before its line is whole, since the shell makes the file first and then writes.
fn node(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(format!("{name}.start"))).ok()?;
    Some(format!("node {}", text.strip_suffix('\n')?))
}

fn is_over(state: &str) -> bool {
    ![
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESIZING",
        "SUSPENDED",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
    ]
    .contains(&state)
}

/// How a task ended, and when, by the file that it leaves.
fn ended(path: &Path) -> Option<(TaskEnd, u64)> {
    let text = fs::read_to_string(path).ok()?;
    let (code, when) = text.trim().split_once(' ')?;
    let code: u8 = code.parse().ok()?;
    Some((TaskEnd::told_by_code(code), when.parse().ok()?))
}

#[cfg(test)]
mod tests;
