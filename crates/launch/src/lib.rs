//! Jobs: what is asked for, their life, and how they run on this machine, Slurm and Kubernetes.
//!
//! [`spec`] reads a job file and plans its tasks; [`lifecycle`] is the state machine of a job, [`store`] keeps it on disk, and [`supervise`]
//! runs it by an [`executor`]. Nothing here trains: tasks are programs with arguments and variables.
#![forbid(unsafe_code)]

pub mod curves;
pub mod executor;
pub mod lifecycle;
pub mod logs;
pub mod package;
pub mod spec;
pub mod store;
pub mod supervise;
#[cfg(test)]
mod testing;
pub mod transfer;
mod tune;
pub mod usage;

/// The variables of this process that tasks are given, by name or by the start of it: what programs need to find their libraries,
/// devices and caches, and nothing that may be a secret.
#[must_use]
pub fn environment() -> std::collections::BTreeMap<String, String> {
    const NAMES: [&str; 28] = [
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
        // Where buckets are, and which files have the credentials; these themselves are secrets.
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "STORAGE_EMULATOR_HOST",
    ];
    const STARTS: [&str; 9] = [
        "LC_", "XDG_", "CUDA_", "NVIDIA_", "XLA_", "OMP_", "TF_CPP_", "PHALANX_", "PJRT_",
    ];
    // What told this process of its own place says nothing of a task's.
    const NOT: [&str; 5] = [
        "PHALANX_JOBS_DIR",
        "PHALANX_CLUSTER",
        "PHALANX_RENDEZVOUS",
        "PHALANX_WORKERS",
        "PHALANX_MIN_WORKERS",
    ];
    let given = |name: &str| {
        let known = NAMES.contains(&name) || STARTS.iter().any(|start| name.starts_with(start));
        known
            && !NOT.contains(&name)
            && !name.contains("SECRET")
            && !name.contains("TOKEN")
            && !name.contains("JOB_ID")
    };
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| given(name))
        .collect()
}
