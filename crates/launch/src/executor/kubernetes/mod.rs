//! Tasks as pods of Kubernetes: a Job for each, a Service for their names, and a Secret.

mod access;
mod api;
mod objects;
mod package;
mod pods;

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use access::Access;
use api::{Api, Refusal};
use objects::{Making, Names};
use phalanx_cluster::TaskKind;
use pods::{JobEnd, Pod, Reader, has_failed};
use serde_json::Value as Json;

use super::variables::secrets;
use super::{Run, RunEnd, Stop, is_replaced};
use crate::lifecycle::{Event, Life, TaskEnd};
use crate::logs::Logs;
use crate::spec::Spec;

/// How often the cluster is asked for the pods.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long it may not answer before the tasks count as lost.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a cluster may be busy that may not be one.
const BUSY: Duration = Duration::from_secs(4);
/// The longest pause before it is asked again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How long the others may go on after the first failure, to hear of it themselves, or after the chief has ended.
const GRACE: Duration = Duration::from_secs(10);
/// How long they may take to end once they were told to.
const STOP_GRACE: Duration = Duration::from_secs(30);
/// How long an evaluator may look at the last checkpoint after the chief has ended.
const EVALUATION: Duration = Duration::from_secs(600);
/// How long the last lines of pods that have ended may take.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// What stands before the namespace and the name of a run.
const HANDLE: &str = "kubernetes ";

/// The objects of a run as YAML, without what is secret.
pub(super) fn manifests(run: &Run<'_>, life: &Life) -> String {
    objects::shown(&Making::of(run, life))
}

/// The cluster that a job runs in.
fn connect(spec: &Spec, life: &Life) -> Result<Api, String> {
    let keys = spec.ours.kubernetes.clone();
    let variables = life.job.environment.clone();
    Api::new(keys.namespace.as_deref(), move || {
        Access::find(keys.server.as_deref(), &variables)
    })
}

/// Ends all of a job that nobody watches any more.
pub(crate) fn cancel(life: &Life, spec: &Spec) {
    let Ok(api) = connect(spec, life) else { return };
    let names = Names::new(life, None, 1);
    let until = Instant::now() + STOP_GRACE;
    while Instant::now() < until {
        if remove(&api, &names.of_job(), 4).is_ok() {
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Removes Jobs, pods, Services and Secrets with these labels, and returns when no pod is left.
fn remove(api: &Api, labels: &str, grace: u64) -> Result<(), Refusal> {
    end(api, labels, grace)?;
    let asked = Instant::now();
    while !api.list("pods", labels)?.is_empty() {
        if asked.elapsed() > Duration::from_secs(grace) + STOP_GRACE {
            // A node that does not answer ends nothing: its pods are given up.
            api.delete("pods", labels, Some(0))?;
        }
        thread::sleep(LOOK_EVERY);
        if asked.elapsed() > PATIENCE {
            break;
        }
    }
    for kind in ["services", "secrets"] {
        for object in api.list(kind, labels)? {
            api.delete_one(
                kind,
                object["metadata"]["name"].as_str().unwrap_or_default(),
            )?;
        }
    }
    Ok(())
}

/// Tells Jobs and their pods to end.
fn end(api: &Api, labels: &str, grace: u64) -> Result<(), Refusal> {
    // First the Jobs: they would make other pods.
    api.delete("jobs", labels, None)?;
    api.delete("pods", labels, Some(grace))
}

pub(super) fn run(run: &Run<'_>) -> RunEnd {
    let begun = run.job.life().map_err(|error| error.to_string());
    let begun = begun.and_then(|life| Ok((connect(run.spec, &life)?, life)));
    let (api, life) = match begun {
        Ok((api, life)) => (Arc::new(api), life),
        Err(why) => return RunEnd::Refused(why),
    };
    let making = Making::of(run, &life);
    if let Some(names) = left(run, &life) {
        return PodWatch::of(run, api, names).watch();
    }
    let names = making.names.clone();
    if let Err(end) = submit(run, &api, &making) {
        let _ = remove(&api, &names.of_part(), 0);
        return end;
    }
    if run.args.trial.is_none() {
        let handle = Some(format!("{HANDLE}{} {}", api.namespace(), names.run));
        run.note(Event::Handle {
            handle,
            trial: None,
        });
    }
    PodWatch::of(run, api, names).watch()
}

/// The run of the attempt before, whose supervisor was killed: it goes on.
fn left(run: &Run<'_>, life: &Life) -> Option<Names> {
    let handle = life.handle.as_ref().filter(|_| run.args.trial.is_none())?;
    let (_, name) = handle.strip_prefix(HANDLE)?.split_once(' ')?;
    let attempts = (1..run.attempt).map(|attempt| Names::new(life, None, attempt));
    attempts.into_iter().find(|names| names.run == name)
}

fn submit(run: &Run<'_>, api: &Api, making: &Making<'_>) -> Result<(), RunEnd> {
    let objects = objects_of(run, making).map_err(RunEnd::Refused)?;
    // What took a job before may take it again; at first its address may be wrong.
    let is_known = run.attempt > 1;
    let since = Instant::now();
    let over = || {
        let patience = if is_known { PATIENCE } else { BUSY };
        since.elapsed() >= patience || (run.stop)().is_some()
    };
    // First what an attempt before has left, whose supervisor was killed.
    let removed = patiently(over, || remove(api, &making.names.of_part(), 0));
    let made = removed.and_then(|()| {
        let mut objects = objects.iter();
        objects.try_for_each(|object| patiently(over, || api.create(object)))
    });
    made.map_err(|refusal| match refusal.passes() {
        true if (run.stop)().is_some() => RunEnd::Stopped,
        true if is_known => RunEnd::Lost(refusal.message),
        _ => RunEnd::Refused(refusal.message),
    })
}

/// All objects of a run, with what is secret.
fn objects_of(run: &Run<'_>, making: &Making<'_>) -> Result<Vec<Json>, String> {
    let folder = run.job.folder();
    let path =
        super::secret(folder).map_err(|error| format!("cannot write the job's secret: {error}"))?;
    let secret = fs::read_to_string(&path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let hidden = secrets(run.spec, &making.life.job.directory)?;
    Ok(making.objects(&secret, &hidden))
}

/// Asks again and again where the cluster is busy, until it is `over`.
fn patiently(
    over: impl Fn() -> bool,
    ask: impl Fn() -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut wait = Duration::from_millis(250);
    loop {
        match ask() {
            Err(refusal) if refusal.passes() && !over() => thread::sleep(wait),
            answer => return answer,
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// The same for a while.
fn a_few_times(ask: impl Fn() -> Result<(), Refusal>) -> Result<(), Refusal> {
    let since = Instant::now();
    patiently(|| since.elapsed() >= BUSY, ask)
}

/// A task as far as the cluster has told of it.
#[derive(Default)]
struct Seen {
    /// Its pods that have started, the last one last.
    pods: Vec<String>,
    readers: Vec<Reader>,
    /// How its last pod ended, while its Job may make another.
    away: Option<TaskEnd>,
    end: Option<TaskEnd>,
}

struct PodWatch<'a> {
    run: &'a Run<'a>,
    api: Arc<Api>,
    names: Names,
    tasks: Vec<Seen>,
    /// The ends so far with the cluster's time of each.
    ended: Vec<(usize, String, TaskEnd)>,
    answered: Instant,
    running: bool,
    failed: Option<Instant>,
    done: Option<Instant>,
    told: Option<(Instant, Duration)>,
    stopped: bool,
    lost: Option<String>,
    refused: Option<String>,
}

impl<'a> PodWatch<'a> {
    fn of(run: &'a Run<'a>, api: Arc<Api>, names: Names) -> Self {
        Self {
            run,
            api,
            names,
            tasks: run.plan.tasks.iter().map(|_| Seen::default()).collect(),
            ended: Vec::new(),
            answered: Instant::now(),
            running: false,
            failed: None,
            done: None,
            told: None,
            stopped: false,
            lost: None,
            refused: None,
        }
    }

    fn watch(mut self) -> RunEnd {
        loop {
            match self.api.list("pods", &self.names.of_run()) {
                Ok(pods) => {
                    self.answered = Instant::now();
                    self.look(&pods);
                    self.give_up();
                }
                // Also what is refused now may be allowed again: the pods run on.
                Err(refusal) if self.answered.elapsed() > PATIENCE => {
                    return RunEnd::Lost(refusal.message);
                }
                Err(_) => {}
            }
            self.press();
            let over = self.tasks.iter().all(|task| task.end.is_some());
            if over || self.lost.is_some() || self.refused.is_some() {
                break;
            }
            thread::sleep(LOOK_EVERY);
        }
        self.finish()
    }

    /// Reads out what is left of the logs, removes all objects and judges.
    fn finish(mut self) -> RunEnd {
        let until = Instant::now() + LAST_WORDS;
        for reader in (self.tasks.iter_mut()).flat_map(|task| task.readers.drain(..)) {
            reader.join(until);
        }
        let grace = if self.stopped {
            4
        } else {
            STOP_GRACE.as_secs()
        };
        let removed = a_few_times(|| remove(&self.api, &self.names.of_run(), grace));
        if self.run.args.trial.is_none() && removed.is_ok() {
            self.run.note(Event::Handle {
                handle: None,
                trial: None,
            });
        }
        self.judge()
    }

    fn look(&mut self, pods: &[Json]) {
        let mut of_task = vec![Vec::new(); self.tasks.len()];
        for pod in pods {
            if let Some(at) = objects::task_of(self.run.plan, pod) {
                of_task[at].push(Pod::of(pod, self.told.is_some()));
            }
        }
        for (at, pods) in of_task.iter_mut().enumerate() {
            pods.sort_by_key(Pod::order);
            for pod in pods.iter().filter(|pod| pod.started) {
                self.began(at, pod);
            }
            match pods.last() {
                Some(pod) => self.look_at(at, pod),
                None => self.look_after(at),
            }
        }
        let has_none = |at: &usize| {
            of_task[*at].is_empty()
                && self.tasks[*at].pods.is_empty()
                && self.tasks[*at].end.is_none()
        };
        let without: Vec<usize> = (0..self.tasks.len()).filter(has_none).collect();
        self.look_for_jobs(&without);
        if self.told.is_some() && pods.is_empty() {
            // Those that had no pod yet get none any more.
            for at in 0..self.tasks.len() {
                if self.tasks[at].end.is_none() {
                    self.ended(
                        at,
                        String::new(),
                        TaskEnd {
                            code: None,
                            signal: Some(15),
                            told: true,
                        },
                    );
                }
            }
        }
        if !self.running && self.tasks.iter().all(|task| !task.pods.is_empty()) {
            self.running = true;
            (self.run.started)();
        }
    }

    /// Takes note of a pod that has started.
    fn began(&mut self, at: usize, pod: &Pod) {
        if self.tasks[at].pods.contains(&pod.name) {
            return;
        }
        let task = self.name(at);
        self.run.note(Event::TaskStarted {
            task: task.clone(),
            attempt: self.run.attempt,
            place: format!("pod {} on {}", pod.name, pod.node),
        });
        let path = Logs::path(self.run.job.folder(), &task);
        let reader = Reader::start(Arc::clone(&self.api), pod, &path);
        let seen = &mut self.tasks[at];
        seen.pods.push(pod.name.clone());
        seen.readers.extend(reader);
        seen.away = None;
    }

    /// Takes note of a task that has no pod any more.
    fn look_after(&mut self, at: usize) {
        let task = &self.tasks[at];
        let (Some(pod), None, None) = (task.pods.last(), task.away, task.end) else {
            return;
        };
        let end = TaskEnd {
            code: None,
            signal: Some(15),
            told: true,
        };
        if self.told.is_none() && is_replaced(self.run.spec, self.run.plan, at) {
            return self.went(at, end);
        }
        if self.told.is_none() {
            self.lost
                .get_or_insert(format!("the pod {pod} was removed"));
        }
        self.ended(at, String::new(), end);
    }

    /// Looks for the Jobs of tasks that have no pod and had none that was seen: a Job that has gone or failed makes none.
    fn look_for_jobs(&mut self, without: &[usize]) {
        if without.is_empty() || self.told.is_some() {
            return;
        }
        let Ok(jobs) = self.api.list("jobs", &self.names.of_run()) else {
            return;
        };
        for at in without {
            let of = |job: &&Json| objects::task_of(self.run.plan, job) == Some(*at);
            let why = match jobs.iter().find(of).map(JobEnd::of) {
                Some(None) => continue,
                Some(Some(JobEnd::Complete)) => {
                    self.ended(*at, String::new(), TaskEnd::code(0));
                    continue;
                }
                Some(Some(JobEnd::Failed(why))) => format!("its Job has failed: {why}"),
                None => "its Job was removed".to_owned(),
            };
            let name = self.name(*at);
            self.lost
                .get_or_insert(format!("{name} has no pod, and {why}"));
        }
    }

    /// Takes note of the end of a pod whose Job may make another.
    fn went(&mut self, at: usize, end: TaskEnd) {
        let task = self.name(at);
        self.run.note(Event::TaskEnded { task, end });
        self.tasks[at].away = Some(end);
    }

    /// Gives up the workers whose Job makes no other pod: the others go on without them, or the chief fails.
    fn give_up(&mut self) {
        let is_away = |task: &Seen| task.away.is_some() && task.end.is_none();
        if !self.tasks.iter().any(is_away) {
            return;
        }
        let Ok(jobs) = self.api.list("jobs", &self.names.of_run()) else {
            return;
        };
        for (at, task) in self.tasks.iter_mut().enumerate() {
            let of = |job: &&Json| objects::task_of(self.run.plan, job) == Some(at);
            if is_away(task) && jobs.iter().find(of).is_none_or(has_failed) {
                task.end = task.away;
            }
        }
    }

    fn look_at(&mut self, at: usize, pod: &Pod) {
        if let Some(why) = &pod.hopeless {
            self.refused
                .get_or_insert(format!("the pod {} cannot start: {why}", pod.name));
        }
        if self.tasks[at].end.is_some() {
            return;
        }
        if let (true, Some(end)) = (is_replaced(self.run.spec, self.run.plan, at), pod.end()) {
            return self.left(at, pod, end);
        }
        if let Some(why) = &pod.lost {
            self.lost
                .get_or_insert_with(|| format!("the pod {} was lost: {why}", pod.name));
        }
        if let Some((end, when)) = &pod.ended {
            let told = self.told.is_some();
            self.ended(at, when.clone(), TaskEnd { told, ..*end });
        }
    }

    /// Takes note of the end of a worker that the others may go on without.
    fn left(&mut self, at: usize, pod: &Pod, end: TaskEnd) {
        let told = self.told.is_some();
        if told || !self.run.goes_on_without(at, end) {
            let when = pod.ended.as_ref().map(|(_, when)| when.clone());
            return self.ended(at, when.unwrap_or_default(), TaskEnd { told, ..end });
        }
        if self.tasks[at].away.is_none() {
            self.went(at, end);
        }
    }

    fn name(&self, at: usize) -> String {
        self.run.task_name(&self.run.plan.tasks[at].name())
    }

    fn ended(&mut self, at: usize, when: String, end: TaskEnd) {
        self.tasks[at].end = Some(end);
        self.ended.push((at, when, end));
        let task = self.name(at);
        self.run.note(Event::TaskEnded { task, end });
        if at == 0 && end.code == Some(0) {
            self.done.get_or_insert_with(Instant::now);
        }
        if end.failed() && self.done.is_none() {
            self.failed.get_or_insert_with(Instant::now);
        }
    }

    /// Whether the tasks that are left have had their time: after a failure, after the chief's end, at a wish.
    fn press(&mut self) {
        if let Some((told, grace)) = self.told {
            let hurried = (self.run.stop)().is_some_and(|stop| stop.grace.is_zero());
            if hurried || told.elapsed() > grace + STOP_GRACE {
                let _ = self.api.delete("pods", &self.names.of_run(), Some(0));
            }
            return;
        }
        if let Some(Stop { grace }) = (self.run.stop)() {
            self.stopped = true;
            return self.tell(grace);
        }
        let kind = |at: usize| self.run.plan.tasks[at].task.kind;
        let left: Vec<usize> = (0..self.tasks.len())
            .filter(|at| self.tasks[*at].end.is_none())
            .collect();
        let evaluates = left.iter().any(|at| kind(*at) == TaskKind::Evaluator);
        let patience = if evaluates { EVALUATION } else { GRACE };
        let trained = self.running && !left.iter().any(|at| kind(*at).trains());
        // Nobody asks parameter servers any more.
        let idle = trained && left.iter().all(|at| kind(*at) == TaskKind::ParameterServer);
        let over = |since: Option<Instant>, patience| {
            since.is_some_and(|since| since.elapsed() >= patience)
        };
        if over(self.failed, GRACE) || over(self.done, patience) || (idle && !left.is_empty()) {
            self.tell(STOP_GRACE);
        }
    }

    fn tell(&mut self, grace: Duration) {
        let _ = a_few_times(|| end(&self.api, &self.names.of_run(), grace.as_secs()));
        self.told = Some((Instant::now(), grace));
    }

    fn judge(mut self) -> RunEnd {
        self.ended
            .sort_by(|(_, one, _), (_, other, _)| one.cmp(other));
        let done = self.done.is_some();
        let ends = self.ended.iter().map(|(at, _, end)| (*at, *end));
        if self.stopped && !self.run.has_succeeded(ends.clone()) {
            return RunEnd::Stopped;
        }
        if let Some(why) = self.refused {
            return RunEnd::Refused(why);
        }
        if let Some(why) = self.lost.filter(|_| !done) {
            return RunEnd::Lost(why);
        }
        let first = self.run.first_failure(ends);
        first.map_or(RunEnd::Succeeded, RunEnd::Failed)
    }
}
