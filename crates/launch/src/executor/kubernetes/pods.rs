//! What an API server tells of a pod, and the thread that copies its log.

use std::fs;
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::api::Api;
use super::objects::CONTAINER;
use super::package;
use crate::lifecycle::TaskEnd;
use crate::logs::{Sink, timestamp};
use crate::store::now;

/// Why a pod waits that will wait for ever.
const HOPELESS: [&str; 4] = [
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerError",
    "RunContainerError",
];
/// Why a pod waits that may yet get what it waits for, and after this time will not.
const DOUBTFUL: [&str; 3] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "CreateContainerConfigError",
];
const DOUBT: u64 = 120_000;
/// How long after the time at which a pod was to have ended its node counts as gone, in milliseconds.
const OVERDUE: u64 = 60_000;
/// How often a log that broke off is asked for again.
const AGAIN: Duration = Duration::from_millis(500);

/// A pod as the watcher needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) node: String,
    /// When it was made, as the cluster writes it.
    made: String,
    /// Whether its container has run, or runs.
    pub(super) started: bool,
    /// When it started, as the cluster writes it.
    pub(super) since: String,
    /// How it ended, and when.
    pub(super) ended: Option<(TaskEnd, String)>,
    /// Why it will never start.
    pub(super) hopeless: Option<String>,
    /// Why it ended by what was none of its own: its node has gone, or room was needed.
    pub(super) lost: Option<String>,
}

impl Pod {
    /// A pod as the cluster has it; `told` says whether we have had it end.
    pub(super) fn of(pod: &Json, told: bool) -> Self {
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let state = state(&pod["status"]["containerStatuses"], CONTAINER);
        let package = state_of_package(pod);
        let (running, terminated) = (&state["running"], &state["terminated"]);
        let since = [&running["startedAt"], &terminated["startedAt"]]
            .into_iter()
            .map(text);
        Self {
            name: text(&pod["metadata"]["name"]),
            node: text(&pod["spec"]["nodeName"]),
            made: text(&pod["metadata"]["creationTimestamp"]),
            started: running.is_object() || terminated.is_object(),
            since: since.max().unwrap_or_default(),
            ended: terminated
                .is_object()
                .then(|| (end(terminated), text(&terminated["finishedAt"]))),
            hopeless: hopeless(pod, &state["waiting"])
                .or_else(|| hopeless(pod, &package["waiting"]))
                .or_else(|| package::missing(&package["terminated"])),
            lost: lost(pod, terminated).or_else(|| overdue(pod).filter(|_| !told)),
        }
    }

    /// What a task's pods are sorted by: when they were made, and within a second of that the one that has not ended is the last, or else
    /// the one that ended later or well. A Job makes no other pod while one runs.
    pub(super) fn order(&self) -> (String, bool, Option<String>, bool) {
        let ended = self.ended.clone();
        let well = (ended.as_ref()).is_some_and(|(end, _)| end.code == Some(0));
        let over = ended.is_some() || self.lost.is_some();
        let when = ended.map(|(_, when)| when);
        (self.made.clone(), !over, when, well)
    }

    /// How it ended, if the cluster says so: a pod that was lost ended by what was none of its own.
    pub(super) fn end(&self) -> Option<TaskEnd> {
        let lost = TaskEnd {
            code: None,
            signal: Some(9),
            told: false,
        };
        match (&self.lost, &self.ended) {
            (Some(_), _) => Some(lost),
            (None, ended) => ended.as_ref().map(|(end, _)| *end),
        }
    }
}

/// How one of the containers is.
fn state<'a>(statuses: &'a Json, container: &str) -> &'a Json {
    let mut statuses = statuses.as_array().into_iter().flatten();
    let status = statuses.find(|status| status["name"] == container);
    status.map_or(&Json::Null, |status| &status["state"])
}

/// How the container is that brings the package.
fn state_of_package(pod: &Json) -> &Json {
    state(&pod["status"]["initContainerStatuses"], package::CONTAINER)
}

/// How a Job has ended that makes no other pod.
pub(super) enum JobEnd {
    Complete,
    Failed(String),
}

impl JobEnd {
    /// How a Job has ended, if it has.
    pub(super) fn of(job: &Json) -> Option<Self> {
        let mut conditions = job["status"]["conditions"].as_array().into_iter().flatten();
        conditions.find_map(|condition| {
            let text = |name: &str| condition[name].as_str().unwrap_or_default();
            match text("type") {
                _ if text("status") != "True" => None,
                "Complete" => Some(Self::Complete),
                "Failed" => Some(Self::Failed(format!(
                    "{} {}",
                    text("reason"),
                    text("message")
                ))),
                _ => None,
            }
        })
    }
}

/// Whether a Job has failed, and makes no other pod.
pub(super) fn has_failed(job: &Json) -> bool {
    matches!(JobEnd::of(job), Some(JobEnd::Failed(_)))
}

fn end(terminated: &Json) -> TaskEnd {
    let code = terminated["exitCode"].as_i64().unwrap_or(1);
    TaskEnd::told_by_code(u8::try_from(code).unwrap_or(u8::MAX))
}

fn hopeless(pod: &Json, waiting: &Json) -> Option<String> {
    let reason = waiting["reason"].as_str()?;
    let doubtful = DOUBTFUL.contains(&reason) && waited(pod).is_some_and(|age| age > DOUBT);
    let why = format!(
        "{reason}: {}",
        waiting["message"].as_str().unwrap_or_default()
    );
    (doubtful || HOPELESS.contains(&reason)).then_some(why)
}

/// How long a container may have waited for its image, in milliseconds: since the pod has a node, and what runs before has ended.
fn waited(pod: &Json) -> Option<u64> {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let begins = |condition: &&Json| {
        let begins = ["PodScheduled", "Initialized"];
        condition["status"] == "True" && begins.into_iter().any(|name| condition["type"] == name)
    };
    let since = conditions
        .filter(begins)
        .filter_map(|condition| age(&condition["lastTransitionTime"]));
    since
        .min()
        .or_else(|| age(&pod["metadata"]["creationTimestamp"]))
}

/// How long ago a time of the cluster was, in milliseconds.
fn age(time: &Json) -> Option<u64> {
    let time = humantime::parse_rfc3339(time.as_str()?).ok()?;
    Some(time.elapsed().ok()?.as_millis() as u64)
}

/// Why a pod is lost that was to have ended long ago.
fn overdue(pod: &Json) -> Option<String> {
    let over = age(&pod["metadata"]["deletionTimestamp"]).is_some_and(|age| age > OVERDUE);
    over.then(|| "it was to end, and its node does not answer".to_owned())
}

fn lost(pod: &Json, terminated: &Json) -> Option<String> {
    let status = &pod["status"];
    let reason = status["reason"].as_str().unwrap_or_default();
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let disrupted = conditions
        .find(|condition| condition["type"] == "DisruptionTarget" && condition["status"] == "True");
    let failed = status["phase"] == "Failed";
    if let (true, Some(condition)) = (failed, disrupted) {
        return Some(
            condition["reason"]
                .as_str()
                .unwrap_or("DisruptionTarget")
                .to_owned(),
        );
    }
    // Without a container's end the pod ended for another reason: eviction, a node that has gone.
    let other = failed && (!terminated.is_object() || reason == "Evicted");
    other.then(|| {
        if reason.is_empty() {
            "it failed before it started".to_owned()
        } else {
            reason.to_owned()
        }
    })
}

/// The thread that copies a pod's log to a file.
pub(super) struct Reader(JoinHandle<()>);

impl Reader {
    pub(super) fn start(api: Arc<Api>, pod: &Pod, path: &Path) -> Option<Self> {
        let sink = Sink::append_to(path).ok()?;
        let pod = pod.clone();
        // A supervisor before this one may have copied a part.
        let copied = copied(path, &pod.since);
        let thread = thread::Builder::new().name(format!("{}-log", pod.name));
        let thread = thread.spawn(move || copy(&api, &pod.name, &sink, copied));
        thread.ok().map(Self)
    }

    /// Waits for the end of the log, but no longer than until a time.
    pub(super) fn join(self, until: Instant) {
        while !self.0.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        if self.0.is_finished() {
            let _ = self.0.join();
        }
    }
}

/// The lines of a file that were written since a time, which this pod wrote.
fn copied(path: &Path, since: &str) -> usize {
    let text = fs::read(path).unwrap_or_default();
    let since = since.trim_end_matches('Z');
    let lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .filter(|line| {
            let is_of_pod = line.split(|byte| *byte == b' ').nth(1) == Some(b"O");
            is_of_pod && (line.get(..since.len())).is_some_and(|time| time >= since.as_bytes())
        })
        .count()
}

/// Copies a log from its first line, without those that were copied before, until its container has ended: an answer may end before. After
/// a server has begun a new file it tells the lines of that one only, so those that are later than the last one are new whatever their number.
/// What the server has against it is said in the log, once.
fn copy(api: &Api, pod: &str, sink: &Sink, mut copied: usize) {
    let (mut last, mut said) = (None, false);
    loop {
        let log = api.log(pod);
        let refusal = log.as_ref().err().filter(|refusal| !refusal.passes());
        let refusal = refusal.map(|refusal| refusal.message.clone());
        let whole = log.is_ok_and(|log| copy_answer(log, sink, &mut copied, &mut last));
        let shown = api.pod(pod);
        if let (Ok(Some(_)), Some(why), false) = (&shown, refusal, said) {
            let line = format!("phalanx-jobs: what the task writes is missing here: {why}\n");
            sink.write_at(&timestamp(now()), 'E', line.as_bytes());
            said = true;
        }
        match shown {
            Ok(Some(pod)) if whole && !runs(&pod) => return,
            // Its node does not answer, or not to the end: what can still be read is read next time.
            Ok(Some(_)) => thread::sleep(AGAIN),
            Err(refusal) if refusal.passes() => thread::sleep(AGAIN),
            Ok(None) | Err(_) => return,
        }
    }
}

/// Copies the new lines of an answer, and keeps how many there are and the latest of their times, which need not be in order. Whether it came
/// to its end.
fn copy_answer(
    mut log: impl BufRead,
    sink: &Sink,
    copied: &mut usize,
    last: &mut Option<u64>,
) -> bool {
    let before = last.unwrap_or(u64::MAX);
    let (mut number, mut line, mut is_new) = (0, Vec::new(), false);
    loop {
        line.clear();
        match log.read_until(b'\n', &mut line) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
        number += 1;
        let (time, text) = timed(&line);
        is_new = is_new || number > *copied || time.is_some_and(|time| time > before);
        if is_new {
            sink.write_at(&timestamp(time.unwrap_or_else(now)), 'O', text);
            (*copied, *last) = (number, time.max(*last));
        }
    }
}

fn runs(pod: &Json) -> bool {
    state(&pod["status"]["containerStatuses"], CONTAINER)["running"].is_object()
}

/// The time with which a line begins, in milliseconds since 1970, and what follows.
fn timed(line: &[u8]) -> (Option<u64>, &[u8]) {
    let space = line.iter().position(|byte| *byte == b' ');
    let (time, text) = line.split_at(space.unwrap_or(0));
    let read = std::str::from_utf8(time)
        .ok()
        .and_then(|time| humantime::parse_rfc3339(time).ok());
    let since = read.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    match since {
        Some(since) => (Some(since.as_millis() as u64), &text[1..]),
        None => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: &Json) -> Pod {
        Pod::of(
            &json!({"metadata": {"name": "p", "creationTimestamp": "2020-01-01T00:00:00Z"}, "spec": {"nodeName": "n"}, "status": status}),
            false,
        )
    }

    fn container(state: &Json) -> Json {
        json!([{"name": "sidecar", "state": {"running": {}}}, {"name": "task", "state": state}])
    }

    #[test]
    fn lines_whose_times_are_not_in_order_are_copied_once() {
        let folder = crate::testing::Scratch::new("out-of-order");
        let sink = Sink::append_to(&folder.0.join("log")).unwrap();
        let line = |second: usize| format!("2020-01-01T00:00:0{second}Z line {second}\n");
        let log = [5, 4].map(line).concat();
        let (mut copied, mut last) = (0, None);
        for _ in 0..3 {
            assert!(copy_answer(log.as_bytes(), &sink, &mut copied, &mut last));
        }
        let written = fs::read_to_string(folder.0.join("log")).unwrap();
        assert_eq!(written.lines().count(), 2, "{written}");
        // A new file, of which the line is later.
        let new = line(6);
        assert!(copy_answer(new.as_bytes(), &sink, &mut copied, &mut last));
        let written = fs::read_to_string(folder.0.join("log")).unwrap();
        assert_eq!(written.lines().count(), 3, "{written}");
    }

    #[test]
    fn exit_codes_are_those_of_this_machine() {
        for (code, expected) in [
            (0, TaskEnd::code(0)),
            (75, TaskEnd::code(75)),
            (255, TaskEnd::code(255)),
            (143, TaskEnd::code(143)),
        ] {
            let state =
                json!({"terminated": {"exitCode": code, "finishedAt": "t", "startedAt": "s"}});
            let pod = pod(&json!({"phase": "Failed", "containerStatuses": container(&state)}));
            assert_eq!(pod.ended, Some((expected, "t".to_owned())));
            assert_eq!(
                (pod.started, pod.lost, pod.since.as_str()),
                (true, None, "s")
            );
        }
        let state = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        let (end, _) = pod(&json!({"phase": "Failed", "containerStatuses": container(&state)}))
            .ended
            .unwrap();
        assert_eq!((end.code, end.signal), (None, Some(9)));
    }

    #[test]
    fn what_was_lost_and_what_cannot_start_is_told_apart() {
        let evicted = pod(&json!({"phase": "Failed", "reason": "Evicted"}));
        assert_eq!(evicted.lost.as_deref(), Some("Evicted"));
        let state = json!({"terminated": {"exitCode": 143}});
        let conditions = json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
        let preempted = json!({"phase": "Failed", "conditions": conditions, "containerStatuses": container(&state)});
        assert_eq!(
            pod(&preempted).lost.as_deref(),
            Some("PreemptionByScheduler")
        );
        let waiting = |reason: &str| json!({"phase": "Pending", "containerStatuses": container(&json!({"waiting": {"reason": reason, "message": "m"}}))});
        assert_eq!(
            pod(&waiting("InvalidImageName")).hopeless.as_deref(),
            Some("InvalidImageName: m")
        );
        assert_eq!(
            pod(&waiting("ImagePullBackOff")).hopeless.as_deref(),
            Some("ImagePullBackOff: m")
        );
        let creating = pod(&waiting("ContainerCreating"));
        assert_eq!(
            (creating.hopeless, creating.started, creating.lost),
            (None, false, None)
        );
    }

    #[test]
    fn a_pod_that_does_not_end_when_it_is_to_is_lost() {
        let status =
            json!({"phase": "Running", "containerStatuses": container(&json!({"running": {}}))});
        let gone = |time: &str, told| {
            Pod::of(
                &json!({"metadata": {"name": "p", "deletionTimestamp": time}, "status": status}),
                told,
            )
        };
        let old = gone("2020-01-01T00:00:00Z", false);
        let why = "it was to end, and its node does not answer";
        assert_eq!(old.lost.as_deref(), Some(why));
        assert_eq!(gone("2020-01-01T00:00:00Z", true).lost, None);
        let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        assert_eq!(gone(&now, false).lost, None);
    }

    #[test]
    fn the_wait_for_an_image_begins_with_the_node() {
        let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        let old = "2020-01-01T00:00:00Z";
        let waiting = container(&json!({"waiting": {"reason": "ErrImagePull", "message": "m"}}));
        for (scheduled, initialized, hopeless) in
            [(&*now, old, false), (old, &now, false), (old, old, true)]
        {
            let condition = |name: &str, time: &str| json!({"type": name, "status": "True", "lastTransitionTime": time});
            let conditions = [
                condition("PodScheduled", scheduled),
                condition("Initialized", initialized),
            ];
            let pod = pod(&json!({"conditions": conditions, "containerStatuses": waiting}));
            assert_eq!(pod.hopeless.is_some(), hopeless, "{conditions:?}");
        }
    }
}
