//! AI Platform's REST resource `projects.jobs`, and what the commands and the dashboard ask for beside it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::{get, post};
use phalanx_launch::lifecycle::{Event, Life, Submitted};
use phalanx_launch::package;
use phalanx_launch::spec::{DESCRIBED, ExecutorKind, JobName, Plan, Source, Spec};
use phalanx_launch::store::{Followed, StoreError};
use phalanx_launch::supervise::resumes;
use serde_json::{Map, Value as Json, json};

use super::error::ApiError;
use super::filter::Filter;
use super::{Shared, access, dashboard, prometheus, queue, resource, stream};
use crate::proof::{CHALLENGE, PROOF, proof};

type Shares = State<Arc<Shared>>;
type Answer = Result<Response, ApiError>;
type Parameters = Query<BTreeMap<String, String>>;

/// The most bytes of a request.
const MOST_BYTES: usize = 4 << 20;

/// Every route with its methods, for the router and for the test that asks each without a token.
pub(super) fn router(shared: &Arc<Shared>) -> Router {
    Router::new()
        .route(access::HEALTH, get(health))
        .route("/v1/projects/{project}/jobs", get(list).post(create))
        .route(
            "/v1/projects/{project}/jobs/{job}",
            get(describe).post(act).patch(patch),
        )
        .route("/", get(dashboard::page))
        .route("/assets/{file}", get(dashboard::asset))
        .route("/api/jobs", get(dashboard::jobs))
        .route("/api/jobs/{job}", get(dashboard::job))
        .route("/api/jobs/{job}/metrics", get(dashboard::metrics))
        .route("/api/jobs/{job}/cancel", post(dashboard::cancel))
        .route("/api/queue", get(queue))
        .route("/metrics", get(prometheus::metrics))
        .route("/api/jobs/{job}/logs", get(stream::logs))
        .route("/api/changes", get(stream::changes))
        .route("/api/stop", post(stop))
        .fallback(nothing)
        .method_not_allowed_fallback(another_method)
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .layer(from_fn_with_state(Arc::clone(shared), access::check))
        .with_state(Arc::clone(shared))
}

/// That the daemon is there, with the proof that it is, where one is asked for.
async fn health(State(shared): Shares, headers: HeaderMap) -> Response {
    if shared.is_ending() {
        return ending().into_response();
    }
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let (host, challenge) = (text(header::HOST), text(HeaderName::from_static(CHALLENGE)));
    let proof = host
        .zip(challenge)
        .map(|(host, challenge)| proof(&shared.token, host, challenge));
    let proof = proof.map(|proof| (PROOF, proof));
    (AppendHeaders(proof), "ok\n").into_response()
}

/// To whom a daemon would give what it does not live to keep.
fn ending() -> ApiError {
    ApiError::unavailable("the daemon is about to end; ask again, and another one answers")
}

async fn nothing() -> ApiError {
    ApiError::not_found("there is nothing at this path")
}

/// The body is taken, since a connection with an unread one is closed.
async fn another_method(_: Bytes) -> ApiError {
    ApiError::no_method(
        "this path does not take the request's method; the header Allow names those it takes",
    )
}

/// Ends the daemon; supervisors and their jobs go on.
async fn stop(State(shared): Shares, _: Bytes) -> Response {
    shared
        .stop
        .store(true, std::sync::atomic::Ordering::Relaxed);
    reply(&json!({}))
}

pub(super) fn reply(json: &Json) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json; charset=utf-8")];
    (StatusCode::OK, headers, json.to_string()).into_response()
}

pub(super) fn name(text: &str) -> Result<JobName, ApiError> {
    text.parse()
        .map_err(|error| ApiError::invalid(format!("{error}")))
}

fn body(bytes: &Bytes) -> Result<Json, ApiError> {
    if bytes.is_empty() {
        return Ok(json!({}));
    }
    let body: Json = serde_json::from_slice(bytes)
        .map_err(|error| ApiError::invalid(format!("the body is no JSON: {error}")))?;
    match body.is_object() {
        true => Ok(body),
        false => Err(ApiError::invalid("the body is no JSON object")),
    }
}

/// A job as it is now, with its place in the queue.
fn shown(shared: &Shared, name: &JobName, project: Option<&str>) -> Result<Json, ApiError> {
    let mut jobs = shared.jobs();
    let missing = || ApiError::from(StoreError::NoJob(name.clone()));
    // One that cannot be read is not among them.
    let unread = || {
        shared
            .store
            .load(name)
            .map_or_else(ApiError::from, |_| missing())
    };
    let followed = jobs.get_mut(name).ok_or_else(unread)?;
    if project.is_some_and(|project| project != followed.life.job.project) {
        return Err(missing());
    }
    shared.store.refresh(followed)?;
    let life = followed.life.clone();
    let place = queue::in_order(shared, &jobs)
        .iter()
        .position(|waiting| waiting == name);
    Ok(shared.shown(&life, place.map(|place| place + 1)))
}

pub(super) async fn create(
    State(shared): Shares,
    Path(project): Path<String>,
    bytes: Bytes,
) -> Answer {
    let body = body(&bytes)?;
    let job = submitted(&project, &body)?;
    let name = job.name.clone();
    {
        let mut jobs = shared.jobs();
        if shared.is_ending() {
            return Err(ending());
        }
        check_resumed(&job, &jobs)?;
        let created = shared.store.create(job)?;
        jobs.insert(name.clone(), created);
    }
    shared.changed();
    shown(&shared, &name, None).map(|job| reply(&job))
}

/// Refuses a search that goes on from one that is not there.
fn check_resumed(job: &Submitted, jobs: &BTreeMap<JobName, Followed>) -> Result<(), ApiError> {
    let Some(previous) = resumes(job) else {
        return Ok(());
    };
    let found = previous.parse::<JobName>().ok();
    let found = found.and_then(|name| jobs.get(&name));
    if found.is_some_and(|found| found.life.job.training_input["hyperparameters"].is_object()) {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "resumePreviousJobId is {previous:?}, and there is no search of that name; `phalanx jobs list` shows the jobs that there are"
    )))
}

/// The job that a request asks for, checked as a job file is.
pub(crate) fn submitted(project: &str, body: &Json) -> Result<Submitted, ApiError> {
    let id = body["jobId"].as_str();
    let id = id.ok_or_else(|| ApiError::invalid("the job has no jobId; name it"))?;
    if body.get("predictionInput").is_some() {
        return Err(ApiError::invalid(
            "predictionInput asks for a batch prediction, which is no job here; use `phalanx predict`",
        ));
    }
    let mut tree = body.clone();
    let environment = tree
        .as_object_mut()
        .and_then(|tree| tree.remove("environment"));
    let environment: Option<BTreeMap<String, String>> = environment
        .map(serde_json::from_value)
        .transpose()
        .map_err(|_| ApiError::invalid("environment is no mapping of names to texts"))?;
    let (name, spec) = Spec::of_job(id, &Source::of_json(&tree)).map_err(ApiError::invalid)?;
    Plan::new(&spec).map_err(ApiError::invalid)?;
    let home = || std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let directory = (spec.ours.directory.clone()).map_or_else(home, PathBuf::from);
    let is_here = spec.ours.executor == ExecutorKind::Local;
    if !directory.is_absolute() || (is_here && !directory.is_dir()) {
        return Err(ApiError::invalid(format!(
            "phalanx.directory is {}, expected the absolute path of a folder that is there; correct it",
            directory.display()
        )));
    }
    package::check_for_pods(&spec, &directory).map_err(ApiError::invalid)?;
    let object = |name: &str| match &body[name] {
        Json::Null => Json::Object(Map::new()),
        value => value.clone(),
    };
    let mut phalanx = object("phalanx");
    if let Some(keys) = phalanx.as_object_mut() {
        keys.retain(|key, _| !DESCRIBED.contains(&key.as_str()));
    }
    Ok(Submitted {
        name,
        project: project.to_owned(),
        training_input: object("trainingInput"),
        phalanx,
        labels: spec.labels,
        directory,
        environment: environment.unwrap_or_else(phalanx_launch::environment),
    })
}

async fn describe(State(shared): Shares, Path((project, job)): Path<(String, String)>) -> Answer {
    shown(&shared, &name(&job)?, Some(&project)).map(|job| reply(&job))
}

async fn list(
    State(shared): Shares,
    Path(project): Path<String>,
    Query(query): Parameters,
) -> Answer {
    let filter = query
        .get("filter")
        .filter(|filter| !filter.trim().is_empty());
    let filter = filter
        .map(|filter| Filter::parse(filter))
        .transpose()
        .map_err(ApiError::invalid)?;
    let size = match query.get("pageSize").map(|size| size.parse::<usize>()) {
        None | Some(Ok(0)) => 20,
        Some(Ok(size)) => size.min(100),
        Some(Err(_)) => return Err(ApiError::invalid("pageSize is no whole number")),
    };
    let after = query
        .get("pageToken")
        .map(|token| position(token))
        .transpose()?;
    let jobs = shared.jobs();
    let queue = queue::in_order(&shared, &jobs);
    let mut lives: Vec<&Life> = jobs.values().map(|followed| &followed.life).collect();
    lives.retain(|life| life.job.project == project);
    lives.sort_by_key(|life| std::cmp::Reverse(key(life)));
    let mut page = Vec::new();
    let mut more = None;
    for life in lives {
        if after.as_ref().is_some_and(|after| key(life) >= *after) {
            continue;
        }
        let place = queue.iter().position(|name| *name == life.job.name);
        let job = shared.shown(life, place.map(|place| place + 1));
        if filter.as_ref().is_some_and(|filter| !filter.takes(&job)) {
            continue;
        }
        if page.len() == size {
            more = page.last().map(|(key, _)| token(key));
            break;
        }
        page.push((key(life), job));
    }
    let jobs: Vec<Json> = page.into_iter().map(|(_, job)| job).collect();
    let mut answer = json!({"jobs": jobs});
    if let Some(token) = more {
        answer["nextPageToken"] = json!(token);
    }
    Ok(reply(&answer))
}

/// What jobs are listed by; no two have the same.
fn key(life: &Life) -> (u64, String) {
    (life.created, life.job.name.to_string())
}

fn token((created, name): &(u64, String)) -> String {
    format!("{created:x}.{name}")
}

fn position(token: &str) -> Result<(u64, String), ApiError> {
    let parts = token.split_once('.');
    let read = parts.and_then(|(created, name)| {
        Some((u64::from_str_radix(created, 16).ok()?, name.to_owned()))
    });
    read.ok_or_else(|| ApiError::invalid("pageToken is none that a list before this one gave"))
}

/// `JOB:cancel`. The body is taken, since a connection with an unread one is closed.
async fn act(
    State(shared): Shares,
    Path((project, job)): Path<(String, String)>,
    _: Bytes,
) -> Answer {
    let Some(job) = job.strip_suffix(":cancel") else {
        return Err(ApiError::not_found("a job takes POST for :cancel only"));
    };
    let name = name(job)?;
    shown(&shared, &name, Some(&project))?;
    shared.cancel(&name)?;
    Ok(reply(&json!({})))
}

/// Replaces the labels.
async fn patch(
    State(shared): Shares,
    Path((project, job)): Path<(String, String)>,
    Query(query): Parameters,
    bytes: Bytes,
) -> Answer {
    let (name, body) = (name(&job)?, body(&bytes)?);
    shown(&shared, &name, Some(&project))?;
    let mask = query.get("updateMask").map_or("", String::as_str);
    let fields: Vec<&str> = mask.split(',').filter(|field| *field != "etag").collect();
    if fields != ["labels"] {
        return Err(ApiError::invalid(format!(
            "updateMask is {mask:?}; expected labels, all else of a job stays as it is"
        )));
    }
    let tree = json!({"labels": body.get("labels").cloned().unwrap_or(json!({}))});
    let labels = Spec::read(&Source::of_json(&tree))
        .map_err(ApiError::invalid)?
        .labels;
    {
        let mut jobs = shared.jobs();
        let missing = || StoreError::NoJob(name.clone());
        let followed = jobs.get_mut(&name).ok_or_else(missing)?;
        shared.store.update(followed, |life| match body["etag"].as_str() {
            Some(etag) if etag != resource::etag(life) => Err(ApiError::aborted(
                "the job has changed since its etag was read; get it again, and change it again",
            )),
            _ => Ok(Some(Event::Labelled { labels })),
        })?;
    }
    shared.changed();
    shown(&shared, &name, Some(&project)).map(|job| reply(&job))
}

/// Jobs that wait, in the order in which they will start.
async fn queue(State(shared): Shares) -> Answer {
    let jobs = shared.jobs();
    let waiting = queue::in_order(&shared, &jobs);
    let lives = waiting.iter().filter_map(|name| jobs.get(name));
    let shown = lives
        .enumerate()
        .map(|(at, followed)| shared.shown(&followed.life, Some(at + 1)));
    let shown: Vec<Json> = shown.collect();
    Ok(reply(
        &json!({"jobs": shown, "address": shared.address.to_string()}),
    ))
}
