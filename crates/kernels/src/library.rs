//! Finding and loading oneDNN, and the pinned build that is installed where there is none.

use std::path::{Path, PathBuf};

use phalanx_pjrt::{EXPLICIT, PinnedWheel, PluginSearch, first_named};

use crate::onednn::OneDnnError;
use crate::sys::{self, Api};

/// The environment variable that names the library.
pub const VARIABLE: &str = "PHALANX_ONEDNN_LIBRARY";

/// oneDNN for Linux on x86-64 with GNU OpenMP.
pub const ONEDNN: PinnedWheel = PinnedWheel {
    name: "kernels",
    title: "kernel library onednn",
    variable: VARIABLE,
    megabytes: 39,
    package: "onednn-cpu-gomp",
    version: "2023.2.0",
    sha256: "2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb",
    member: "onednn_cpu_gomp-2023.2.0.data/data/lib/libdnnl.so.3",
};

/// The command that installs the library.
pub const INSTALL: &str = "phalanx plugin install kernels";

/// What the system's loader finds by itself.
const SYSTEM: &str = "libdnnl.so.3";
const OLDEST: (i32, i32) = (3, 2);
const NEXT: &str = "run `phalanx plugin install kernels`, or set PHALANX_ONEDNN_LIBRARY to the path of a libdnnl.so.3";

/// Why there are no kernels; XLA's own lowering serves without them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The library is in none of the usual places.
    #[error("onednn was not found; looked at:\n{}{NEXT}", lines(looked_at))]
    NotFound {
        /// Every place that was looked at, in order.
        looked_at: Vec<String>,
    },
    /// There is a file, and it cannot be loaded.
    #[error("cannot load onednn from {source_of}: {reason}; {next}")]
    Load {
        /// The path and who named it.
        source_of: String,
        /// What the system said.
        reason: String,
        /// What to do.
        next: &'static str,
    },
    /// It is too old, of another major version, or built for other threads than OpenMP's.
    #[error("the onednn of {source_of} cannot be used: it is {found}, needed is {needed}; {NEXT}")]
    Unfit {
        /// The path and who named it.
        source_of: String,
        /// What it is.
        found: String,
        /// What would do.
        needed: String,
    },
    /// Its thread or its engine does not start.
    #[error("onednn does not start: {reason}")]
    Start {
        /// What it, or the system, said.
        reason: String,
    },
    /// The plugin does not take them.
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

/// Tells OpenMP, where the user said nothing else, that its threads sleep between two pieces of work: by default they spin for a while, on
/// processors that XLA's threads then lack. Sets the environment variable `OMP_WAIT_POLICY`, which processes started from here inherit,
/// at the first call in a process; later ones do nothing.
///
/// OpenMP reads it when the library is loaded. Call this before other threads start, and before XLA's plugin is loaded: a thread that
/// reads the environment from C, not through `std::env`, at the very moment of the first call could see a torn list.
pub fn prepare_environment() {
    const POLICY: &str = "OMP_WAIT_POLICY";
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let said = |name: &str| std::env::var_os(name).is_some();
        if !said(POLICY) && !said("GOMP_SPINCOUNT") {
            // SAFETY: not guaranteed here. Rust's readers and writers of the environment take turns; that no thread reads it from C
            // meanwhile is the caller's part, as documented: the function is safe to call from where unsafe code is forbidden.
            unsafe { std::env::set_var(POLICY, "passive") };
        }
    });
}

fn lines(search: &[String]) -> String {
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

/// Finds and loads the library: the explicit path, the environment variable, the per-user cache, the system's. What the user named must
/// be good; of the others the first that is.
pub(crate) fn find(search: &PluginSearch, explicit: Option<&Path>) -> Result<Library, KernelError> {
    let named = [
        (EXPLICIT.to_owned(), explicit.map(Path::to_path_buf)),
        (VARIABLE.to_owned(), search.path_variable(VARIABLE)),
    ];
    let mut looked_at = Vec::new();
    if let Some((source, path)) = first_named(named, &mut looked_at) {
        return load(&path, &source);
    }
    match search
        .cache_dir()
        .map(|cache| ONEDNN.installed_path(&cache))
    {
        Some(path) if path.is_file() => return load(&path, "the per-user cache"),
        Some(path) => looked_at.push(format!("the per-user cache: {}", path.display())),
        None => looked_at.push("the per-user cache: there is none".into()),
    }
    load(Path::new(SYSTEM), "the system").map_err(|error| match error {
        KernelError::Load { reason, .. } if !lacks_openmp(&reason) => {
            looked_at.push(format!("the system: {SYSTEM} ({reason})"));
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
            NEXT
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
    if major != OLDEST.0 || minor < OLDEST.1 {
        let needed = format!("{0}.{1} or a newer {0}", OLDEST.0, OLDEST.1);
        return unfit(format!("version {major}.{minor}.{patch}"), needed);
    }
    if runtime != sys::RUNTIME_OPENMP {
        let found = format!("built for threads of another kind (runtime {runtime})");
        return unfit(found, "a build for openmp (runtime 2)".into());
    }
    Ok(())
}

/// The loader's own words, without libloading's around them.
fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

fn lacks_openmp(reason: &str) -> bool {
    reason.contains("libgomp")
}

/// The threads that XLA's pool has: `PJRT_NPROC`, else `NPROC`, else the processors of this process.
#[must_use]
pub fn pool_threads(search: &PluginSearch) -> usize {
    let variable = |name: &str| {
        let value = search.environment.get(std::ffi::OsStr::new(name))?;
        value
            .to_str()?
            .trim()
            .parse()
            .ok()
            .filter(|&count| count > 0)
    };
    variable("PJRT_NPROC")
        .or_else(|| variable("NPROC"))
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1)
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
        let variable = search(&[(VARIABLE, "/no/such/other.so")]);
        let error = find(&variable, None).err().unwrap().to_string();
        assert!(
            error.contains("/no/such/other.so (PHALANX_ONEDNN_LIBRARY)"),
            "{error}"
        );
        assert!(error.contains("phalanx plugin install kernels"), "{error}");
    }

    #[test]
    fn threads_are_those_of_xla() {
        assert_eq!(
            pool_threads(&search(&[("PJRT_NPROC", "5"), ("NPROC", "3")])),
            5
        );
        assert_eq!(
            pool_threads(&search(&[("PJRT_NPROC", "many"), ("NPROC", "3")])),
            3
        );
        assert!(pool_threads(&search(&[])) >= 1);
    }
}
