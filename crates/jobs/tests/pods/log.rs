//! The log of a pod as it grows.

use std::fs;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::{Objects, Parameters, Shared, status};

pub(super) async fn log(
    State(state): State<Shared>,
    Path((_, name)): Path<(String, String)>,
    Query(query): Parameters,
) -> Response {
    // As a server does of a pod to which the cluster has added another container.
    if query.get("container").is_none_or(|name| name != "task") {
        let message = "a container name must be specified, choose one of: [task sidecar]";
        return status(StatusCode::BAD_REQUEST, message);
    }
    let breaks = {
        let objects = state.lock().unwrap();
        let Some(pod) = objects.pods.get(&name) else {
            return status(StatusCode::NOT_FOUND, "there is no such pod");
        };
        if objects.refuses_logs {
            return status(StatusCode::FORBIDDEN, "pods/log is forbidden");
        }
        objects.breaks_logs && pod.times.is_empty()
    };
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(16);
    tokio::spawn(async move {
        let mut sent = 0;
        loop {
            let Some((lines, over)) = lines(&mut state.lock().unwrap(), &name) else {
                return;
            };
            for line in lines.into_iter().skip(sent) {
                sent += 1;
                if sender.send(Ok(line.into())).await.is_err() || breaks {
                    return;
                }
            }
            if over {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|item| (item, receiver))
    });
    Body::from_stream(stream).into_response()
}

/// The whole lines of a pod's log, each with its time, and whether there will be no other.
fn lines(objects: &mut Objects, name: &str) -> Option<(Vec<Vec<u8>>, bool)> {
    objects.collect();
    let pod = objects.pods.get_mut(name)?;
    let over = pod.ended.is_some();
    let bytes = fs::read(&pod.log).unwrap_or_default();
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let whole: Vec<&[u8]> = lines.filter(|line| line.ends_with(b"\n")).collect();
    while pod.times.len() < whole.len() {
        let now = humantime::format_rfc3339_nanos(SystemTime::now());
        pod.times.push(now.to_string());
    }
    let timed = whole.iter().zip(&pod.times);
    let lines = timed.map(|(line, time)| [format!("{time} ").as_bytes(), line].concat());
    Some((lines.collect(), over))
}
