//! A package in a bucket, as pods get it: a container that runs before the task's brings it into a volume that both have.

use serde_json::{Value as Json, json};

use super::objects::unexpanded;
use crate::package;
use crate::spec::{Spec, TaskPlan};

/// The name of the container, and of the volume.
pub(super) const CONTAINER: &str = "package";

/// The package of a job whose pods bring it themselves.
pub(super) fn of(spec: &Spec) -> Option<&str> {
    let package = spec.package.as_deref();
    package.filter(|package| phalanx_store::ObjectUrl::is_url(package))
}

/// The volume, empty at first.
pub(super) fn volume() -> Json {
    json!({"name": CONTAINER, "emptyDir": {}})
}

/// Where the volume is in both containers.
pub(super) fn mount() -> Json {
    json!({"name": CONTAINER, "mountPath": package::IN_PODS})
}

/// The container that brings the package, with variables by which it asks the bucket. Its last lines are in the status of the pod.
pub(super) fn container(
    spec: &Spec,
    url: &str,
    task: &TaskPlan,
    variables: &[Json],
    resources: Option<Json>,
) -> Json {
    let image = (spec.ours.kubernetes.package_image.as_deref()).or(task.image.as_deref());
    let command = ["phalanx-jobs", package::BRING, url, package::IN_PODS].map(unexpanded);
    let mut container = json!({
        "name": CONTAINER,
        "image": image.unwrap_or_default(),
        "command": command,
        "env": variables,
        "securityContext": {"allowPrivilegeEscalation": false},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount()],
    });
    // It ends before the task begins, which has the same: the pod asks for no more. It needs no GPU.
    if let Some(mut resources) = resources {
        if let Some(limits) = resources["limits"].as_object_mut() {
            limits.remove("nvidia.com/gpu");
        }
        container["resources"] = resources;
    }
    container
}

/// Why the package did not come, of the end of its container: a mistake or a refusal, and no loss of the node.
pub(super) fn missing(terminated: &Json) -> Option<String> {
    let code = terminated["exitCode"].as_i64()?;
    let said = ["message", "reason"].map(|name| terminated[name].as_str().unwrap_or_default());
    let said = said
        .into_iter()
        .map(str::trim)
        .find(|said| !said.is_empty());
    (1..=128).contains(&code).then(|| {
        format!(
            "its package did not come: {}; phalanx.kubernetes.packageImage must name an image with phalanx-jobs, built with the feature `cloud`",
            said.unwrap_or("its container said nothing")
        )
    })
}
