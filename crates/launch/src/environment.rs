//! The variables of this process that tasks are given.

use phalanx_store::CERTIFICATE_VARIABLES;

/// The variables of this process that tasks are given, by name or by the start of it: what programs need to find their libraries,
/// devices, caches and buckets, and nothing that may be a secret.
#[must_use]
pub fn environment() -> std::collections::BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, value)| is_given(name, value))
        .collect()
}

/// What programs need to find their libraries and settings.
const NAMES: [&str; 19] = [
    "PATH",
    "SLURM_CONF",
    "KUBECONFIG",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TERM",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "CONDA_PREFIX",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "NO_COLOR",
];
/// Where buckets are and how they are asked, and which files have the credentials; these themselves are secrets.
const BUCKETS: [&str; 18] = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_SKIP_SIGNATURE",
    "AWS_ALLOW_HTTP",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SKIP_SIGNATURE",
    "GOOGLE_ALLOW_HTTP",
    "STORAGE_EMULATOR_HOST",
];
/// How servers are reached. Programs read them in small letters, too.
const PROXIES: [&str; 4] = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"];
/// Starts of names of settings.
const STARTS: [&str; 9] = [
    "LC_", "XDG_", "CUDA_", "NVIDIA_", "XLA_", "OMP_", "TF_CPP_", "PHALANX_", "PJRT_",
];
/// What told this process of its own place says nothing of a task's.
const NOT: [&str; 5] = [
    "PHALANX_JOBS_DIR",
    "PHALANX_CLUSTER",
    "PHALANX_RENDEZVOUS",
    "PHALANX_WORKERS",
    "PHALANX_MIN_WORKERS",
];

fn is_given(name: &str, value: &str) -> bool {
    if BUCKETS.contains(&name) || CERTIFICATE_VARIABLES.contains(&name) {
        return true;
    }
    if PROXIES.contains(&&*name.to_ascii_uppercase()) {
        // Before it stand a user and a password.
        return !value.contains('@');
    }
    let known = NAMES.contains(&name) || STARTS.iter().any(|start| name.starts_with(start));
    known
        && !NOT.contains(&name)
        && !name.contains("SECRET")
        && !name.contains("TOKEN")
        && !name.contains("JOB_ID")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_reach_the_buckets_that_the_submitter_does_and_are_given_no_secret() {
        let named = CERTIFICATE_VARIABLES.into_iter();
        let given = named.chain([
            "PATH",
            "PHALANX_STORE_RETRY",
            "AWS_ENDPOINT_URL",
            "AWS_ROLE_ARN",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_ALLOW_HTTP",
            "GOOGLE_ALLOW_HTTP",
            "HTTPS_PROXY",
            "no_proxy",
        ]);
        for name in given {
            assert!(is_given(name, "http://proxy:3128"), "{name}");
        }
        for (name, value) in [
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("AWS_SESSION_TOKEN", "x"),
            ("GOOGLE_BEARER_TOKEN", "x"),
            ("PHALANX_TOKEN", "x"),
            ("PHALANX_JOBS_DIR", "x"),
            ("https_proxy", "http://user:password@proxy:3128"),
        ] {
            assert!(!is_given(name, value), "{name}");
        }
    }
}
