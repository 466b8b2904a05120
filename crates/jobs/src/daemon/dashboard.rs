//! The dashboard: three files in this program, and what they ask for.

use std::sync::{Arc, PoisonError};

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use phalanx_launch::curves::Curve;
use phalanx_launch::lifecycle::Life;
use phalanx_launch::store::StoreError;
use phalanx_launch::supervise::{prepare, results_folder};
use phalanx_launch::usage::usage;
use serde_json::{Value as Json, json};

use super::Shared;
use super::error::ApiError;
use super::routes::{name, reply};

/// The newest jobs that the list shows.
const MOST_JOBS: usize = 500;

pub(super) async fn page() -> Response {
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (kind, include_str!("../../assets/index.html")).into_response()
}

pub(super) async fn asset(Path(file): Path<String>) -> Result<Response, ApiError> {
    let (kind, text) = match file.as_str() {
        "app.js" => (
            "text/javascript; charset=utf-8",
            include_str!("../../assets/app.js"),
        ),
        "style.css" => (
            "text/css; charset=utf-8",
            include_str!("../../assets/style.css"),
        ),
        _ => return Err(ApiError::not_found("there is no such file")),
    };
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// A job of any project.
fn life(shared: &Shared, job: &str) -> Result<Life, ApiError> {
    let name = name(job)?;
    let mut jobs = shared.jobs();
    let followed = jobs
        .get_mut(&name)
        .ok_or_else(|| StoreError::NoJob(name.clone()))?;
    shared.store.refresh(followed)?;
    Ok(followed.life.clone())
}

/// The jobs of all projects, the newest first.
pub(super) async fn jobs(State(shared): State<Arc<Shared>>) -> Response {
    let jobs = shared.jobs();
    let mut lives: Vec<&Life> = jobs.values().map(|followed| &followed.life).collect();
    lives.sort_by_key(|life| std::cmp::Reverse(life.created));
    let shown: Vec<Json> = lives
        .into_iter()
        .take(MOST_JOBS)
        .map(|life| shared.shown(life, None))
        .collect();
    reply(&json!({"jobs": shown}))
}

pub(super) async fn job(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<String>,
) -> Result<Response, ApiError> {
    Ok(reply(&shared.shown(&life(&shared, &job)?, None)))
}

/// Curves, as many points as a chart can show.
pub(super) async fn metrics(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<String>,
) -> Result<Response, ApiError> {
    let life = life(&shared, &job)?;
    let folder = prepare(&life)
        .ok()
        .map(|(spec, _)| results_folder(&life, &spec, &shared.store.folder(&life.job.name)));
    let trials: Vec<u32> = life.trials.keys().copied().collect();
    let reader = shared.curves(&life.job.name);
    let read = || {
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let curves = folder.map(|folder| reader.read(&folder, &trials));
        curves.unwrap_or_default()
    };
    let of_tasks = || usage(&shared.store.folder(&life.job.name));
    let (all, usage) = tokio::task::block_in_place(|| (read(), of_tasks()));
    let (speed, curves): (Vec<_>, Vec<_>) = all.into_iter().partition(Curve::is_of_speed);
    Ok(reply(
        &json!({"curves": curves, "speed": speed, "usage": usage}),
    ))
}

pub(super) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<String>,
    _: Bytes,
) -> Result<Response, ApiError> {
    shared.cancel(&name(&job)?)?;
    Ok(reply(&json!({})))
}
