//! Finding and loading oneDNN, and the pinned build that is installed where there is none.

use std::path::{Path, PathBuf};

use phalanx_pjrt::{
    EXPLICIT, PinnedWheel, PluginSearch, Untrusted, check_library, first_named,
    set_variable_while_alone,
};

use crate::onednn::OneDnnError;
use crate::sys::{self, Api};

/// The environment variable with the path of a oneDNN library.
pub const LIBRARY_VARIABLE: &str = "PHALANX_ONEDNN_LIBRARY";

/// oneDNN for Linux on x86-64 with GNU OpenMP.
pub const ONEDNN: PinnedWheel = PinnedWheel {
    name: "kernels",
    title: "kernel library onednn",
    variable: LIBRARY_VARIABLE,
    megabytes: 39,
    package: "onednn-cpu-gomp",
    version: "2023.2.0",
    sha256: "2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb",
    member: "onednn_cpu_gomp-2023.2.0.data/data/lib/libdnnl.so.3",
};

/// The command that installs oneDNN.
pub const INSTALL_COMMAND: &str = "phalanx plugin install kernels";

/// The name by which the system's loader finds the library.
const SYSTEM_LIBRARY: &str = "libdnnl.so.3";
const MIN_VERSION: (i32, i32) = (3, 2);
const HINT: &str = "run `phalanx plugin install kernels`, or set PHALANX_ONEDNN_LIBRARY to the path of a libdnnl.so.3";

/// Why there are no kernels; XLA's own lowering serves without them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The library is in none of the places that are searched.
    #[error("onednn was not found; looked at:\n{}{HINT}", indented(looked_at))]
    NotFound {
        /// Every place that was looked at, in order.
        looked_at: Vec<String>,
    },
    /// There is a file that cannot be loaded.
    #[error("cannot load onednn from {source_of}: {reason}; {next}")]
    Load {
        /// The path and who named it.
        source_of: String,
        /// What the system said.
        reason: String,
        /// What to do.
        next: &'static str,
    },
    /// Others can write to the installed library, or it was changed.
    #[error("the onednn of the per-user cache is not used: {0}")]
    Untrusted(#[from] Untrusted),
    /// The library is too old, of another major version, or built for a threading runtime other than OpenMP.
    #[error("the onednn of {source_of} cannot be used: it is {found}, needed is {needed}; {HINT}")]
    Unfit {
        /// The path and who named it.
        source_of: String,
        /// What it is.
        found: String,
        /// What would do.
        needed: String,
    },
    /// The worker's thread or oneDNN's engine does not start.
    #[error("onednn does not start: {reason}")]
    Start {
        /// What it, or the system, said.
        reason: String,
    },
    /// The plugin refuses to register the kernels.
    #[error("the kernels cannot be called from this plugin's programs: {reason}")]
    Register {
        /// Why.
        reason: String,
    },
}

impl From<std::io::Error> for KernelError {
    fn from(error: std::io::Error) -> Self {
        Self::Start {
            reason: format!("no thread: {error}"),
        }
    }
}

impl From<OneDnnError> for KernelError {
    fn from(refused: OneDnnError) -> Self {
        Self::Start {
            reason: refused.to_string(),
        }
    }
}

/// How often an idle OpenMP thread looks for work before it sleeps: for some 20 to 100 microseconds, depending on the processor.
const LOOKS_BEFORE_SLEEP: &str = "2000";

/// Makes idle OpenMP threads sleep soon, unless the user configured something else. By default they spin for milliseconds, on processors that
/// XLA's threads need; where they sleep at once, operations of a fifth of a millisecond wait for them to wake up.
/// OpenMP reads the environment variables `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT` when the library is loaded; child processes inherit them.
///
/// They can be set only while the process has no other thread: call this first of all. Returns whether threads will sleep, or do
/// what the user said.
#[must_use]
pub fn set_openmp_wait_policy() -> bool {
    let (policy, looks) = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT");
    let is_set = |name| std::env::var_os(name).is_some();
    is_set(policy)
        || is_set(looks)
        || (set_variable_while_alone(policy, "passive")
            && set_variable_while_alone(looks, LOOKS_BEFORE_SLEEP))
}

fn indented(search: &[String]) -> String {
    search.iter().map(|place| format!("  {place}\n")).collect()
}

/// The loaded library.
pub(crate) struct Library {
    pub(crate) api: &'static Api,
    /// The path it was loaded from.
    pub(crate) path: PathBuf,
    /// Where that was found, in words.
    pub(crate) source: String,
    pub(crate) version: (i32, i32, i32),
}

/// Finds and loads the library: the explicit path, the environment variable, the per-user cache, or the system's. A library that the
/// user named must be usable; otherwise the first one that is found is taken.
pub(crate) fn find(search: &PluginSearch, explicit: Option<&Path>) -> Result<Library, KernelError> {
    let named = [
        (EXPLICIT.to_owned(), explicit.map(Path::to_path_buf)),
        (
            LIBRARY_VARIABLE.to_owned(),
            search.path_variable(LIBRARY_VARIABLE),
        ),
    ];
    let mut looked_at = Vec::new();
    if let Some((source, path)) = first_named(named, &mut looked_at) {
        return load(&path, &source);
    }
    match search
        .cache_dir()
        .map(|cache| ONEDNN.installed_path(&cache))
    {
        Some(path) if path.is_file() => {
            check_library(&path)?;
            return load(&path, "the per-user cache");
        }
        Some(path) => looked_at.push(format!("the per-user cache: {}", path.display())),
        None => looked_at.push("the per-user cache: there is none".into()),
    }
    load(Path::new(SYSTEM_LIBRARY), "the system").map_err(|error| match error {
        KernelError::Load { reason, .. } if !lacks_openmp(&reason) => {
            looked_at.push(format!("the system: {SYSTEM_LIBRARY} ({reason})"));
            KernelError::NotFound { looked_at }
        }
        other => other,
    })
}

fn load(path: &Path, source: &str) -> Result<Library, KernelError> {
    let source_of = format!("{} ({source})", path.display());
    let api = Api::load(path).map_err(|error| {
        let reason = reason(&error);
        let next = if lacks_openmp(&reason) {
            "install gnu openmp: the debian package is libgomp1"
        } else {
            HINT
        };
        KernelError::Load {
            source_of: source_of.clone(),
            reason,
            next,
        }
    })?;
    // SAFETY: the function gives a structure that lives as long as the library.
    let (version, runtime) = unsafe {
        let version = &*(api.version)();
        (
            (version.major, version.minor, version.patch),
            version.cpu_runtime,
        )
    };
    check_fit(version, runtime, &source_of)?;
    Ok(Library {
        api,
        path: path.to_path_buf(),
        source: source.into(),
        version,
    })
}

fn check_fit(version: (i32, i32, i32), runtime: u32, source_of: &str) -> Result<(), KernelError> {
    let unfit = |found, needed| {
        Err(KernelError::Unfit {
            source_of: source_of.into(),
            found,
            needed,
        })
    };
    let (major, minor, patch) = version;
    if major != MIN_VERSION.0 || minor < MIN_VERSION.1 {
        let needed = format!("{0}.{1} or a newer {0}", MIN_VERSION.0, MIN_VERSION.1);
        return unfit(format!("version {major}.{minor}.{patch}"), needed);
    }
    if runtime != sys::RUNTIME_OPENMP {
        let found = format!("built for threads of another kind (runtime {runtime})");
        return unfit(found, "a build for openmp (runtime 2)".into());
    }
    Ok(())
}

/// The loader's own message, without libloading's around it.
fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

fn lacks_openmp(reason: &str) -> bool {
    reason.contains("libgomp")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(pairs: &[(&str, &str)]) -> PluginSearch {
        PluginSearch {
            environment: pairs
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            root: "/nowhere".into(),
        }
    }

    #[test]
    fn versions_and_runtimes_are_checked() {
        let message = |version, runtime| {
            check_fit(version, runtime, "x")
                .err()
                .map(|error| error.to_string())
        };
        assert_eq!(message((3, 2, 0), 2), None);
        assert_eq!(message((3, 12, 3), 2), None);
        assert!(
            message((3, 1, 9), 2)
                .unwrap()
                .contains("version 3.1.9, needed is 3.2")
        );
        assert!(message((4, 0, 0), 2).unwrap().contains("version 4.0.0"));
        assert!(message((3, 2, 0), 4).unwrap().contains("runtime 4"));
    }

    #[test]
    fn a_named_library_must_be_good() {
        let given = Path::new("/no/such/libdnnl.so.3");
        let error = find(&search(&[]), Some(given)).err().unwrap().to_string();
        assert!(
            error.contains("/no/such/libdnnl.so.3 (the path that was given)"),
            "{error}"
        );
        let variable = search(&[(LIBRARY_VARIABLE, "/no/such/other.so")]);
        let error = find(&variable, None).err().unwrap().to_string();
        assert!(
            error.contains("/no/such/other.so (PHALANX_ONEDNN_LIBRARY)"),
            "{error}"
        );
        assert!(error.contains("phalanx plugin install kernels"), "{error}");
    }
}
