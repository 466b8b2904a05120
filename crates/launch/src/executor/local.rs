//! Tasks as processes of this machine.
//!
//! Each task leads a process group of its own, and has the run's name in PHALANX_JOB_ID: by that a guard, which waits for the end of this
//! process, finds whatever is left, also what has left its group; and the next run looks once more before it starts.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::TaskKind;
use phalanx_cluster::launch::{self, Guard, ProcessGroup, Readers, ReservedPorts};
use rustix::process::Signal;
use rustix::thread::CpuSet;

use super::command::{end_containers, own_program};
use super::crew::{Crew, Next};
use super::recipe::{Recipe, not_started};
use super::{Lane, Run, RunEnd, Stop};
use crate::lifecycle::{Event, TaskEnd};
use crate::logs::{Logs, Sink};
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
/// How long what the tasks wrote may take to be read once they have ended.
const OUTPUT_WITHIN: Duration = Duration::from_secs(5);

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
    recipe: Recipe,
    /// Says who is started again, in an elastic job.
    crew: Option<Crew>,
    /// The processors of each task.
    cores: Vec<CpuSet>,
    running: Vec<Running>,
    /// The ends so far, in their order, by place in the plan.
    ended: Vec<(usize, TaskEnd)>,
    readers: Readers,
    guard: Option<Guard>,
    _ports: ReservedPorts,
    failed: Option<Instant>,
    /// When the chief ended as it should.
    done: Option<Instant>,
    told: Option<(Instant, Duration)>,
    stopped: bool,
}

struct Running {
    at: usize,
    process: ProcessGroup,
    told: bool,
}

fn start<'a>(run: &'a Run<'a>) -> Result<Tasks<'a>, String> {
    let life = run.job.life().map_err(|error| error.to_string())?;
    let id = run.id(&life);
    // What a run before has left: none of it can be told to end by anybody else any more.
    launch::end_what_is_left(&id);
    if run.plan.program == Program::Image {
        end_containers(&id);
    }
    let ports =
        ReservedPorts::new(run.plan.tasks.len(), None).map_err(|error| error.to_string())?;
    let recipe = Recipe::new(run, life.job, &id, &ports)?;
    let mut note = teller(run, 0)?;
    if let Some(text) = &recipe.gpus.note {
        note(text);
    }
    let crew = Crew::new(run.spec, &id, &recipe.cluster, note)?;
    let guard = guard(&id, run.attempt)
        .map_err(|error| format!("cannot start the guard of the tasks: {error}"));
    let mut tasks = Tasks {
        run,
        id,
        recipe,
        crew,
        cores: cores(
            run.plan.tasks.len(),
            run.args.lane,
            launch::processor_shares,
        ),
        running: Vec::new(),
        ended: Vec::new(),
        readers: Readers::default(),
        guard: guard.map(Some)?,
        _ports: ports,
        failed: None,
        done: None,
        told: None,
        stopped: false,
    };
    for at in 0..run.plan.tasks.len() {
        if let Err(why) = tasks.start(at) {
            tasks.kill();
            return Err(why);
        }
    }
    Ok(tasks)
}

/// The processors of each task: none of them another task's, nor one of another lane. Where there are too few for that, the tasks of a
/// lane share its processors; empty where there are fewer than lanes, or than tasks without lanes.
fn cores<T: Clone>(tasks: usize, lane: Option<Lane>, shares: impl Fn(usize) -> Vec<T>) -> Vec<T> {
    let Some(Lane { number, of }) = lane else {
        return shares(tasks);
    };
    let each = shares(tasks * of);
    if !each.is_empty() {
        return each[number * tasks..][..tasks].to_vec();
    }
    let lanes = shares(of);
    lanes
        .get(number)
        .map_or_else(Vec::new, |own| vec![own.clone(); tasks])
}

/// What writes what becomes of the tasks into the log of one of them.
fn teller(run: &Run<'_>, at: usize) -> Result<impl FnMut(&str) + Send + 'static, String> {
    let name = run.task_name(&run.plan.tasks[at].name());
    let sink = sink(run, &name)?;
    Ok(move |text: &str| sink.take_all('E', text.as_bytes()))
}

fn sink(run: &Run<'_>, task: &str) -> Result<Sink, String> {
    let path = Logs::path(run.job.folder(), task);
    Sink::append_to(&path).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// A guard of this attempt alone: the next supervisor of the job, if this one is killed, may start tasks before the guard is done.
fn guard(id: &str, attempt: u32) -> io::Result<Guard> {
    let mut command = Command::new(own_program()?);
    command.args([GUARD, &attempt.to_string()]);
    Guard::start(command, id)
}

impl Tasks<'_> {
    fn start(&mut self, at: usize) -> Result<(), String> {
        let name = self.run.task_name(&self.run.plan.tasks[at].name());
        let sink = sink(self.run, &name)?;
        let mut command = self.recipe.command(self.run, at, self.crew.as_ref())?;
        let started = ProcessGroup::start(&mut command, self.cores.get(at));
        let (process, (out, err)) = started.map_err(|error| not_started(&command, &error))?;
        let place = match self.recipe.gpus.own(at) {
            [] => format!("pid {}", process.id()),
            own => format!("pid {}, GPU {}", process.id(), own.join(",")),
        };
        self.running.push(Running {
            at,
            process,
            told: false,
        });
        let read = |stream, from: Box<dyn io::Read + Send>| {
            let sink = sink.clone();
            let read = move || sink.take_all(stream, from);
            self.readers.start(format!("{name}-output"), read)
        };
        let started = read('O', Box::new(out)).and_then(|()| read('E', Box::new(err)));
        started.map_err(|error| format!("cannot read the output of {name}: {error}"))?;
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
            self.end_left_behind();
            self.press();
            thread::sleep(LOOK_EVERY);
        }
        if let Some(guard) = self.guard.take() {
            guard.finish();
        }
        let killed = self.ended.iter().any(|(_, end)| end.signal.is_some());
        if killed && self.run.plan.program == Program::Image {
            end_containers(&self.id);
        }
        // A process that has left its group and forgotten its job may still hold a pipe.
        self.readers.finish(OUTPUT_WITHIN);
        self.judge()
    }

    /// The tasks that run, with the groups of their processes.
    fn groups(&self) -> impl Iterator<Item = (String, i32)> {
        let name = |at: usize| self.run.task_name(&self.run.plan.tasks[at].name());
        let running = self.running.iter();
        running.map(move |running| (name(running.at), running.process.id()))
    }

    fn judge(&self) -> RunEnd {
        if let Some(failure) = self.run.first_failure(self.ended.iter().copied()) {
            return RunEnd::Failed(failure);
        }
        match self.stopped && !self.run.has_succeeded(self.ended.iter().copied()) {
            true => RunEnd::Stopped,
            false => RunEnd::Succeeded,
        }
    }

    fn collect(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            let Some(status) = self.running[index].process.end() else {
                index += 1;
                continue;
            };
            let Running { at, told, .. } = self.running.remove(index);
            let code = status.code().map(|code| code as u8);
            let end = match (&self.run.plan.program, code) {
                // What ended the container, and not its engine.
                (Program::Image, Some(code)) => TaskEnd::told_by_code(code),
                _ => TaskEnd {
                    code,
                    signal: status.signal(),
                    told,
                },
            };
            let end = TaskEnd { told, ..end };
            let task = self.run.task_name(&self.run.plan.tasks[at].name());
            self.run.note(Event::TaskEnded { task, end });
            if self.goes_on_without(at, end) {
                continue;
            }
            self.ended.push((at, end));
            if at == 0 && end.code == Some(0) {
                self.done.get_or_insert_with(Instant::now);
            }
            if end.failed() && self.done.is_none() {
                self.failed.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Whether an elastic job goes on after the end of a worker: another is started in its place, or there are enough others.
    fn goes_on_without(&mut self, at: usize, end: TaskEnd) -> bool {
        let tasks = &self.run.plan.tasks;
        let Some(worker) = self.run.plan.rank(tasks[at].task) else {
            return false;
        };
        let trains = |at: &usize| tasks[*at].task.kind.trains();
        // Who has ended well has gone on to the end.
        let well = self.ended.iter().filter(|(_, end)| !end.failed());
        let others = self.running.iter().map(|running| running.at);
        let others = others.chain(well.map(|(at, _)| *at)).filter(trains).count();
        let next = match &mut self.crew {
            Some(crew) if self.told.is_none() => crew.lost(at, worker, end, others),
            _ => return false,
        };
        let (text, goes_on) = match next {
            Next::Over => return false,
            Next::Without(others) => (format!("{end}; {others} others go on"), true),
            Next::Again(number, most) => (
                format!("{end}, and is started again ({number} of {most})"),
                self.start(at).is_ok(),
            ),
        };
        if let Ok(mut tell) = teller(self.run, at) {
            tell(&format!("{} {text}", tasks[at].name()));
        }
        goes_on
    }

    /// Ends workers that the others went on without: another takes the place of each.
    fn end_left_behind(&mut self) {
        let left = self.crew.as_mut().map(Crew::left_behind);
        for (group, why) in left.into_iter().flatten() {
            let is_it = |running: &&Running| running.process.id() == group;
            if let Some(running) = self.running.iter().find(is_it) {
                if let Ok(mut tell) = teller(self.run, running.at) {
                    tell(&why);
                }
                // It is collected next.
                running.process.signal(Signal::KILL);
            }
        }
    }

    /// Whether the tasks that are left have had their time: after a failure, after the chief's end, at a wish.
    fn press(&mut self) {
        if let Some((told, grace)) = self.told {
            let grace = (self.run.stop)().map_or(grace, |stop| grace.min(stop.grace));
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
            running.process.signal(signal);
        }
    }

    /// Ends all tasks at once.
    fn kill(&mut self) {
        self.signal(Signal::KILL, |_| true);
        for mut running in self.running.drain(..) {
            running.process.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some processors, divided as the system's are: without shares where there are fewer than these.
    fn shares(processors: usize) -> impl Fn(usize) -> Vec<Vec<usize>> {
        move |count| {
            if processors < count {
                return Vec::new();
            }
            let bound = |at| at * processors / count;
            (0..count)
                .map(|at| (bound(at)..bound(at + 1)).collect())
                .collect()
        }
    }

    #[test]
    fn trials_at_the_same_time_have_processors_of_their_own() {
        for (processors, tasks, of) in [
            (8, 1, 2),
            (8, 2, 3),
            (6, 2, 3),
            (5, 2, 2),
            (4, 3, 2),
            (3, 2, 3),
        ] {
            let lane = |number| cores(tasks, Some(Lane { number, of }), shares(processors));
            let mut owner = vec![None; processors];
            for number in 0..of {
                let own = lane(number);
                assert_eq!(own.len(), tasks);
                for cpu in own.into_iter().flatten() {
                    let before = owner[cpu].replace(number);
                    assert!(
                        before.is_none_or(|lane| lane == number),
                        "{cpu} of {processors}"
                    );
                }
            }
            assert!(owner.iter().all(Option::is_some), "a processor has no work");
            let count = |number| owner.iter().filter(|lane| **lane == Some(number)).count();
            let counts: Vec<usize> = (0..of).map(count).collect();
            // The shares of tasks differ by one at most, and a lane has as many of them.
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= tasks, "{counts:?}");
        }
        assert!(cores(1, Some(Lane { number: 2, of: 3 }), shares(2)).is_empty());
        assert_eq!(cores(2, None, shares(4)), [vec![0, 1], vec![2, 3]]);
    }
}
