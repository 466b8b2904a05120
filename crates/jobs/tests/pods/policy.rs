//! What a cluster makes of the end of a Job's pod, by its `podFailurePolicy` and its `backoffLimit`.

use serde_json::{Value as Json, json};

/// What follows from the end of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another pod, whose making costs one of `backoffLimit` or none.
    Another { counts: bool },
    /// The Job has failed.
    Over,
}

/// What follows from the end of the Job's pod with an exit code, or with its node, after some failures that counted.
pub(super) fn next(job: &Json, code: i32, lost: bool, failures: u64) -> Next {
    let rules = job["spec"]["podFailurePolicy"]["rules"].as_array();
    let action = rules.into_iter().flatten().find_map(|rule| {
        let matches = match rule["onExitCodes"]["values"].as_array() {
            Some(codes) => {
                assert_eq!(rule["onExitCodes"]["operator"], "NotIn", "{rule}");
                !lost && !codes.contains(&json!(code))
            }
            None => lost,
        };
        matches.then(|| rule["action"].as_str().unwrap())
    });
    let most = job["spec"]["backoffLimit"].as_u64().unwrap();
    match action {
        Some("Ignore") => Next::Another { counts: false },
        Some("FailJob") => Next::Over,
        _ if failures >= most => Next::Over,
        _ => Next::Another { counts: true },
    }
}
