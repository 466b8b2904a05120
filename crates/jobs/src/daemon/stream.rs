//! What goes on for as long as somebody listens, as server-sent events.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use phalanx_launch::logs::Logs;
use phalanx_launch::spec::JobName;
use phalanx_launch::store::now;
use serde_json::json;

use super::Shared;
use super::error::ApiError;
use super::routes::name;

/// How often logs are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

struct Following {
    shared: Arc<Shared>,
    job: JobName,
    logs: Logs,
    task: Option<String>,
    follow: bool,
    over: bool,
}

/// The lines of a job: `lines` with a list of them, then `end` with its state. `follow` goes on until the job has ended, `task` names
/// a task or a kind of them, `tail` is the number of lines of each task to begin with. Who sends the id of an event as `Last-Event-ID`, as
/// browsers do when they ask again, is given what comes after it.
pub(super) async fn logs(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let job = name(&job)?;
    if !shared.jobs().contains_key(&job) {
        return Err(ApiError::not_found(format!("there is no job {job}")));
    }
    let mut logs = Logs::of(&shared.store.folder(&job));
    if let Some(tail) = query.get("tail") {
        let tail = tail
            .parse()
            .map_err(|_| ApiError::invalid("tail is no whole number"))?;
        logs.start_at_last(tail);
    }
    let after = headers.get("last-event-id");
    if let Some(positions) = after.and_then(|id| serde_json::from_slice(id.as_bytes()).ok()) {
        logs.go_on_from(positions);
    }
    let follow = query.get("follow").is_some_and(|follow| follow != "0");
    if !follow {
        // A task may write as fast as this is read.
        logs.end_here();
    }
    let following = Following {
        shared,
        job,
        logs,
        task: query.get("task").cloned(),
        follow,
        over: false,
    };
    let stream = unfold(following, |mut following| async move {
        let event = following.next().await?;
        Some((Ok::<_, Infallible>(event), following))
    });
    Ok(Sse::new(stream)
        .keep_alive(KeepAlive::default())
        .into_response())
}

impl Following {
    async fn next(&mut self) -> Option<Event> {
        while !self.over {
            // Read before the lines are: what a job wrote before its end is in them.
            let state = {
                let mut jobs = self.shared.jobs();
                let followed = jobs.get_mut(&self.job)?;
                let _ = self.shared.store.refresh(followed);
                followed.life.state
            };
            let (logs, task) = (&mut self.logs, &self.task);
            let wanted = |name: &str| task.as_ref().is_none_or(|task| is_task(name, task));
            let lines = tokio::task::block_in_place(|| logs.next(&wanted, state.is_final()));
            if !lines.is_empty() {
                return Some(
                    Event::default()
                        .event("lines")
                        .id(json!(self.logs.positions()).to_string())
                        .data(serde_json::to_string(&lines).unwrap_or_default()),
                );
            }
            let goes_on = self.follow && !state.is_final();
            if goes_on && self.shared.is_ending() {
                // Without an `end`, so that who follows asks the next daemon.
                return None;
            }
            if !goes_on {
                self.over = true;
                return Some(
                    Event::default()
                        .event("end")
                        .data(json!({"state": state.name()}).to_string()),
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        None
    }
}

/// Whether a task has this name, or is of this kind, or of this trial.
pub(crate) fn is_task(name: &str, wanted: &str) -> bool {
    let bare = name.rsplit('/').next().unwrap_or(name);
    let kind = bare.rsplit_once('-').map_or(bare, |(kind, _)| kind);
    let trial = name.split_once('/').map(|(trial, _)| trial);
    let is_trial = trial.is_some() && trial == wanted.strip_prefix("trial-");
    name == wanted || bare == wanted || kind == wanted || is_trial
}

/// An event whenever a job has changed, and each ten seconds.
pub(super) async fn changes(State(shared): State<Arc<Shared>>) -> Response {
    let changes = shared.changes.subscribe();
    let stream = unfold((shared, changes), |(shared, mut changes)| async move {
        let wait = tokio::time::timeout(Duration::from_secs(10), changes.changed());
        let stop = async {
            while !shared.is_ending() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let over = tokio::select! { _ = wait => false, () = stop => true };
        if over {
            return None;
        }
        let event = Event::default().event("changed").data(now().to_string());
        Some((Ok::<_, Infallible>(event), (shared, changes)))
    });
    Sse::new(stream)
        .keep_alive(KeepAlive::default())
        .into_response()
}
