//! Tasks as processes of this machine.
//!
//! Each task leads a process group of its own, and has the run's name in PHALANX_JOB_ID: by that a guard, which waits for the end of this
//! process, finds whatever is left, also what has left its group; and the next run looks once more before it starts.

use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::launch::{self, ReservedPorts};
use phalanx_cluster::{Address, TaskKind};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::command::{Container, end_containers, engine, of_container, phalanx, words};
use super::variables::{Naming, Variables, secrets};
use super::{Run, RunEnd, Stop, secret};
use crate::life::{Event, FirstFailure, Submitted, TaskEnd};
use crate::logs::{Logs, Sink, last_lines};
use crate::spec::{Program, TaskPlan};
use crate::usage::Meter;

/// How often ends and wishes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the others may go on after the first failure, to hear of it themselves, or after the chief has ended.
const GRACE: Duration = Duration::from_secs(10);
/// How long they may take to end once they were told to.
const STOP_GRACE: Duration = Duration::from_secs(30);
/// How long an evaluator may look at the last checkpoint after the chief has ended.
const EVALUATION: Duration = Duration::from_secs(600);
/// Lines of the task that failed first.
const LAST_LINES: usize = 20;

/// The hidden command that ends what is left of a run whose supervisor was killed.
pub const GUARD: &str = "job-guard";

pub(super) fn run(run: &Run<'_>) -> RunEnd {
    match start(run) {
        Ok(tasks) => {
            (run.started)();
            tasks.watch()
        }
        Err(why) => RunEnd::Refused(why),
    }
}

struct Tasks<'a> {
    run: &'a Run<'a>,
    /// What tells its processes from all others.
    id: String,
    running: Vec<Running>,
    /// The ends so far, in their order, by place in the plan.
    ended: Vec<(usize, TaskEnd)>,
    readers: Vec<thread::JoinHandle<()>>,
    guard: Option<(Child, ChildStdin)>,
    _ports: ReservedPorts,
    failed: Option<Instant>,
    /// When the chief ended as it should.
    done: Option<Instant>,
    told: Option<(Instant, Duration)>,
    stopped: bool,
}

struct Running {
    at: usize,
    child: Child,
    group: Pid,
    told: bool,
}

fn start<'a>(run: &'a Run<'a>) -> Result<Tasks<'a>, String> {
    let life = run.job.life().map_err(|error| error.to_string())?;
    let id = run.id(&life);
    // What a run before has left: none of it can be told to end by anybody else any more.
    launch::guard(&id, io::empty());
    if run.plan.program == Program::Image {
        end_containers(&id);
    }
    let secret = secret(run.job.folder())
        .map_err(|error| format!("cannot write the job's secret: {error}"))?;
    let ports =
        ReservedPorts::new(run.plan.tasks.len(), None).map_err(|error| error.to_string())?;
    let naming = Naming {
        job: &life.job,
        spec: run.spec,
        plan: run.plan,
        run: &id,
        attempt: run.attempt,
        trial: run.args.trial,
        job_dir: run.args.job_dir.as_deref(),
        secret: &secret,
    };
    let cluster = naming.cluster(|at| Address::new("127.0.0.1", ports.of_workers()[at]));
    let hidden = secrets(run.spec, &life.job.directory)?;
    if let Some(folder) = &run.args.job_dir {
        let path = life.job.directory.join(folder).join("hypertune");
        let _ = run.args.trial.map(|_| fs::create_dir_all(path));
    }
    let mut tasks = Tasks {
        run,
        id: id.clone(),
        running: Vec::new(),
        ended: Vec::new(),
        readers: Vec::new(),
        guard: guard(&id)
            .map(Some)
            .map_err(|error| format!("cannot start the guard of the tasks: {error}"))?,
        _ports: ports,
        failed: None,
        done: None,
        told: None,
        stopped: false,
    };
    let cores = launch::processor_shares(run.plan.tasks.len());
    for (at, plan) in run.plan.tasks.iter().enumerate() {
        let mut variables = naming.of_task(plan.task, &cluster);
        variables.extend(hidden.clone());
        let mut command = command(run, plan, &life.job, &variables)?;
        let started = launch::on_processors(cores.get(at), || tasks.start(at, &mut command));
        if let Err(why) = started {
            tasks.kill();
            return Err(why);
        }
    }
    Ok(tasks)
}

fn guard(id: &str) -> io::Result<(Child, ChildStdin)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([GUARD, id])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .env_remove("PHALANX_JOB_ID")
        .spawn()?;
    let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((child, pipe))
}

fn command(
    run: &Run<'_>,
    plan: &TaskPlan,
    job: &Submitted,
    variables: &Variables,
) -> Result<Command, String> {
    let (directory, environment) = (job.directory.as_path(), &job.environment);
    let mut all = words(&run.plan.program, plan, &run.args, &phalanx());
    if let (Program::Image, Some(image)) = (&run.plan.program, &plan.image) {
        let Some(engine) = engine() else {
            return Err(format!(
                "the image {image} needs docker, podman or apptainer, and none is in PATH; install one, or name a program in phalanx.program"
            ));
        };
        let args = all.split_off(plan.command.len());
        let container = Container {
            image,
            command: &all,
            args: &args,
            label: &variables["PHALANX_JOB_ID"],
            folders: [run.job.folder(), directory],
            variables: &of_container(run.spec, environment, variables),
            // Those there are: a job that asks for them runs without, too.
            gpus: if Path::new("/dev/nvidiactl").exists() {
                plan.resources.gpus
            } else {
                0
            },
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

impl Tasks<'_> {
    fn start(&mut self, at: usize, command: &mut Command) -> Result<(), String> {
        let name = self.run.task_name(&self.run.plan.tasks[at].name());
        let path = Logs::path(self.run.job.folder(), &name);
        let sink = Sink::append_to(&path)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        let spawned = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child = spawned.map_err(|error| {
            let program = Path::new(command.get_program()).display();
            format!("cannot start {program}: {error}; check the path, and the folder it starts at")
        })?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let group = Pid::from_child(&child);
        let place = format!("pid {}", child.id());
        self.running.push(Running {
            at,
            child,
            group,
            told: false,
        });
        let mut read = |stream, from: Box<dyn io::Read + Send>| {
            let sink = sink.clone();
            let thread = thread::Builder::new().name(format!("{name}-output"));
            let reader = thread.spawn(move || sink.take_all(stream, from));
            reader.map(|reader| self.readers.push(reader))
        };
        if let (Some(out), Some(err)) = (out, err) {
            let started = read('O', Box::new(out)).and_then(|()| read('E', Box::new(err)));
            started.map_err(|error| format!("cannot read the output of {name}: {error}"))?;
        }
        self.run.note(Event::TaskStarted {
            task: name,
            attempt: self.run.attempt,
            place,
        });
        Ok(())
    }

    /// Waits for the end of all tasks.
    fn watch(mut self) -> RunEnd {
        let mut meter = Meter::of(self.run.job.folder());
        while !self.running.is_empty() {
            if let Some(meter) = &mut meter {
                meter.look(self.groups());
            }
            self.collect();
            self.press();
            thread::sleep(LOOK_EVERY);
        }
        if let Some((mut guard, pipe)) = self.guard.take() {
            drop(pipe);
            let _ = guard.wait();
        }
        let killed = self.ended.iter().any(|(_, end)| end.signal.is_some());
        if killed && self.run.plan.program == Program::Image {
            end_containers(&self.id);
        }
        // All processes have gone, and with them the writers of the pipes.
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        self.judge()
    }

    /// The tasks that run, with the groups of their processes.
    fn groups(&self) -> impl Iterator<Item = (String, i32)> {
        let name = |at: usize| self.run.task_name(&self.run.plan.tasks[at].name());
        let running = self.running.iter();
        running.map(move |running| (name(running.at), running.group.as_raw_nonzero().get()))
    }

    fn judge(&self) -> RunEnd {
        if let Some((at, end)) = self.first_failure() {
            let plan = &self.run.plan.tasks[at];
            let task = self.run.task_name(&plan.name());
            let folder = self.run.job.folder();
            return RunEnd::Failed(Box::new(FirstFailure {
                rank: self.run.plan.rank(plan.task),
                attempt: self.run.attempt,
                end,
                last_lines: last_lines(folder, &task, LAST_LINES),
                log: Logs::path(folder, &task),
                task,
            }));
        }
        let done = self.done.is_some();
        if self.stopped && !done {
            RunEnd::Stopped
        } else {
            RunEnd::Succeeded
        }
    }

    /// The task whose failure made the others fail: the first that did not merely lose another.
    fn first_failure(&self) -> Option<(usize, TaskEnd)> {
        let mut failed = self.ended.iter().copied().filter(|(_, end)| end.failed());
        let own = |(_, end): &(usize, TaskEnd)| end.code != Some(75);
        failed.clone().find(own).or_else(|| failed.next())
    }

    fn collect(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            let Some(status) = self.running[index].end() else {
                index += 1;
                continue;
            };
            let Running { at, told, .. } = self.running.remove(index);
            let end = TaskEnd {
                code: status.code().map(|code| code as u8),
                signal: status.signal(),
                told,
            };
            let task = self.run.task_name(&self.run.plan.tasks[at].name());
            self.run.note(Event::TaskEnded { task, end });
            self.ended.push((at, end));
            if end.failed() {
                self.failed.get_or_insert_with(Instant::now);
            }
            if at == 0 && end.code == Some(0) {
                self.done.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Whether the tasks that are left have had their time: after a failure, after the chief's end, at a wish.
    fn press(&mut self) {
        if let Some((told, grace)) = self.told {
            if told.elapsed() >= grace {
                self.signal(Signal::KILL, |_| true);
            }
            return;
        }
        if let Some(Stop { grace }) = (self.run.stop)() {
            self.stopped = true;
            return self.tell(grace);
        }
        if self.failed.is_some_and(|failed| failed.elapsed() >= GRACE) {
            return self.tell(STOP_GRACE);
        }
        let kind = |plan: &TaskPlan| plan.task.kind;
        let tasks = &self.run.plan.tasks;
        let trains = self
            .running
            .iter()
            .any(|task| kind(&tasks[task.at]).trains());
        if !trains && self.failed.is_none() {
            // Nobody asks parameter servers any more.
            self.signal(Signal::TERM, |plan| kind(plan) == TaskKind::ParameterServer);
        }
        let evaluates = self
            .running
            .iter()
            .any(|task| kind(&tasks[task.at]) == TaskKind::Evaluator);
        let patience = if evaluates { EVALUATION } else { GRACE };
        if self.done.is_some_and(|done| done.elapsed() >= patience) {
            self.tell(STOP_GRACE);
        }
    }

    fn tell(&mut self, grace: Duration) {
        self.signal(Signal::TERM, |_| true);
        self.told = Some((Instant::now(), grace));
    }

    fn signal(&mut self, signal: Signal, which: impl Fn(&TaskPlan) -> bool) {
        for running in &mut self.running {
            if !which(&self.run.plan.tasks[running.at]) || (running.told && signal == Signal::TERM)
            {
                continue;
            }
            running.told = true;
            // A group that has ended meanwhile is collected next; one that is stopped only hears when it goes on.
            let _ = kill_process_group(running.group, signal);
            let _ = kill_process_group(running.group, Signal::CONT);
        }
    }

    /// Ends all tasks at once.
    fn kill(&mut self) {
        self.signal(Signal::KILL, |_| true);
        for running in &mut self.running {
            let _ = running.child.wait();
        }
        self.running.clear();
    }
}

impl Running {
    /// How the task ended, if it has. While its end is not collected nobody else is given its number, and its group can be ended.
    fn end(&mut self) -> Option<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match waitid(WaitId::Pid(self.group), options) {
            Ok(None) => return None,
            Ok(Some(_)) | Err(Errno::CHILD) => {}
            Err(_) => return None,
        }
        let _ = kill_process_group(self.group, Signal::KILL);
        Some(self.child.wait().unwrap_or(ExitStatus::from_raw(9)))
    }
}
