//! Where plugins are looked for.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use phalanx_platform::Platform;

use crate::pinned_wheel::CPU_PLUGIN;
use crate::trust::check_library;

/// What the search for plugins and other libraries depends on: the environment and file system of the process, or of a test.
#[derive(Debug, Clone, Default)]
pub struct PluginSearch {
    /// Environment variables.
    pub environment: BTreeMap<OsString, OsString>,
    /// Root of the file system that `/usr` is looked for in.
    pub root: PathBuf,
}

/// A plugin file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPlugin {
    /// Its platform.
    pub platform: Platform,
    /// The file.
    pub path: PathBuf,
    /// Where it was found, in words.
    pub source: String,
}

/// No plugin for a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; looked at:\n{}to install one: {}\nor set {} to the path of a plugin", indented(looked_at), platform.install_command(), platform.variable())]
pub struct PluginNotFound {
    /// The platform.
    pub platform: Platform,
    /// What is wrong.
    pub reason: String,
    /// Whether the user named a place and no plugin is there; otherwise there is none in the usual places.
    pub named: bool,
    /// Every place that was looked at, in order.
    pub looked_at: Vec<String>,
}

fn indented(places: &[String]) -> String {
    places.iter().map(|place| format!("  {place}\n")).collect()
}

impl PluginSearch {
    /// The environment of this process and the real file system.
    #[must_use]
    pub fn from_process() -> Self {
        Self {
            environment: std::env::vars_os().collect(),
            root: PathBuf::from("/"),
        }
    }

    /// Finds the plugin of a platform: an explicit path, then `PHALANX_PJRT_<PLATFORM>`, then `PJRT_NAMES_AND_LIBRARY_PATHS`, then (TPU)
    /// `TPU_LIBRARY_PATH`, then the per-user cache, then site-packages folders. A path given by the user that is no file is an
    /// error, never skipped.
    ///
    /// # Errors
    /// None is found; the error lists every place and the command that installs one.
    pub fn find(
        &self,
        platform: Platform,
        explicit: Option<&Path>,
    ) -> Result<FoundPlugin, PluginNotFound> {
        let mut looked_at = Vec::new();
        if let Some((source, path)) = first_named(self.named(platform, explicit), &mut looked_at) {
            looked_at.push(format!("{source}: {}", path.display()));
            return match rejection(&path) {
                None => Ok(FoundPlugin {
                    platform,
                    path,
                    source,
                }),
                Some(rejection) => Err(PluginNotFound {
                    platform,
                    reason: format!(
                        "the {platform} plugin of {source}, {}, {rejection}",
                        path.display()
                    ),
                    named: true,
                    looked_at,
                }),
            };
        }
        for (source, path) in self.candidates(platform) {
            if path.is_file() {
                if source == CACHE
                    && let Err(untrusted) = check_library(&path)
                {
                    return Err(PluginNotFound {
                        platform,
                        reason: format!(
                            "the {platform} plugin of {CACHE} is not used: {untrusted}"
                        ),
                        named: true,
                        looked_at,
                    });
                }
                return Ok(FoundPlugin {
                    platform,
                    path,
                    source: source.into(),
                });
            }
            looked_at.push(format!("{source}: {}", path.display()));
        }
        Err(PluginNotFound {
            platform,
            reason: format!("no {platform} plugin was found"),
            named: false,
            looked_at,
        })
    }

    /// What may name the plugin, in order, with the path if it does.
    fn named(&self, platform: Platform, explicit: Option<&Path>) -> Vec<(String, Option<PathBuf>)> {
        const TPU_VARIABLE: &str = "TPU_LIBRARY_PATH";
        let variable = platform.variable();
        let of_variable = self.path_variable(&variable);
        let mut named = vec![
            (EXPLICIT.to_owned(), explicit.map(Path::to_path_buf)),
            (variable, of_variable),
            (
                "PJRT_NAMES_AND_LIBRARY_PATHS".to_owned(),
                self.named_library(platform),
            ),
        ];
        if platform == Platform::Tpu {
            named.push((TPU_VARIABLE.to_owned(), self.path_variable(TPU_VARIABLE)));
        }
        named
    }

    /// Every platform's plugin that can be found, at most one each.
    #[must_use]
    pub fn list(&self) -> Vec<FoundPlugin> {
        Platform::ALL
            .into_iter()
            .filter_map(|platform| self.find(platform, None).ok())
            .collect()
    }

    /// The platform of this machine's GPUs, whose files a driver made, where there is no plugin for them: programs would pass them over in
    /// silence. [`idle_gpus`] is what to say.
    #[must_use]
    pub fn unserved_gpus(&self) -> Option<Platform> {
        let kinds = [(Platform::Cuda, "dev/nvidia0"), (Platform::Rocm, "dev/kfd")];
        let kinds = kinds.into_iter();
        let mut there = kinds.filter(|(_, file)| self.root.join(file).exists());
        let unserved = there.find(|(platform, _)| self.find(*platform, None).is_err());
        unserved.map(|(platform, _)| platform)
    }

    /// The per-user cache folder: `PHALANX_CACHE_DIR`, or `phalanx` in `XDG_CACHE_HOME`, or `~/.cache/phalanx`; none without a home.
    #[must_use]
    pub fn cache_dir(&self) -> Option<PathBuf> {
        let xdg = || {
            self.path_variable("XDG_CACHE_HOME")
                .filter(|path| path.is_absolute())
                .map(|path| path.join("phalanx"))
        };
        self.path_variable("PHALANX_CACHE_DIR")
            .or_else(xdg)
            .or_else(|| Some(self.path_variable("HOME")?.join(".cache/phalanx")))
    }

    /// The files to try, in order, with where each is.
    fn candidates(&self, platform: Platform) -> Vec<(&'static str, PathBuf)> {
        let cache = self.cache_dir().filter(|_| platform == Platform::Cpu);
        let mut all: Vec<_> = cache
            .map(|cache| (CACHE, CPU_PLUGIN.installed_path(&cache)))
            .into_iter()
            .collect();
        let roots = self.site_packages();
        all.extend(roots.iter().flat_map(|root| {
            plugin_files(platform)
                .iter()
                .map(|file| ("site-packages", root.join(file)))
        }));
        all
    }

    /// The site-packages folders that exist, without asking Python.
    fn site_packages(&self) -> Vec<PathBuf> {
        let mut roots: Vec<PathBuf> = match self.environment.get(&OsString::from("PYTHONPATH")) {
            Some(value) => std::env::split_paths(value)
                .filter(|path| path.is_absolute())
                .collect(),
            None => Vec::new(),
        };
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(|name| self.path_variable(name));
        let python = self.python_prefix();
        let home = self.path_variable("HOME").map(|home| home.join(".local"));
        let system = ["usr/local", "usr"].map(|folder| self.root.join(folder));
        for prefix in prefixes.chain(python).chain(home).chain(system) {
            roots.extend(python_folders(&prefix.join("lib")));
        }
        roots.dedup();
        roots
    }

    /// Where the Python is installed that `python3` starts: a virtual environment whose folder of programs is in PATH need not be active.
    fn python_prefix(&self) -> Option<PathBuf> {
        let path = self.environment.get(&OsString::from("PATH"))?;
        let bin = std::env::split_paths(path)
            .find(|folder| folder.is_absolute() && folder.join("python3").is_file())?;
        bin.parent().map(Path::to_path_buf)
    }

    /// The path in an environment variable; none if it is unset or empty.
    #[must_use]
    pub fn path_variable(&self, name: &str) -> Option<PathBuf> {
        self.environment
            .get(&OsString::from(name))
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    }

    /// The path for the platform in `PJRT_NAMES_AND_LIBRARY_PATHS`, which is `name:path,name:path`.
    fn named_library(&self, platform: Platform) -> Option<PathBuf> {
        let list = self
            .environment
            .get(&OsString::from("PJRT_NAMES_AND_LIBRARY_PATHS"))?
            .to_str()?;
        let pairs = list
            .split(',')
            .filter_map(|pair| pair.trim().split_once(':'));
        pairs
            .into_iter()
            .find(|(name, _)| name.parse() == Ok(platform))
            .map(|(_, path)| PathBuf::from(path))
    }
}

/// That GPUs of this platform are not used, and what to do.
#[must_use]
pub fn idle_gpus(platform: Platform) -> String {
    let command = platform.install_command();
    format!(
        "this machine has a gpu that is not used: there is no {platform} plugin; run `{command}`"
    )
}

/// Plugin files below a site-packages folder, best first.
fn plugin_files(platform: Platform) -> &'static [&'static str] {
    match platform {
        Platform::Cpu => &["lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"],
        Platform::Cuda => &[
            "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
            "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
        ],
        Platform::Rocm => &[
            "jax_plugins/xla_rocm10/xla_rocm_plugin.so",
            "jax_plugins/xla_rocm7/xla_rocm_plugin.so",
            "jax_plugins/xla_rocm60/xla_rocm_plugin.so",
        ],
        Platform::Tpu => &["libtpu/libtpu.so"],
        Platform::Oneapi => &["jax_plugins/xla_oneapi/xla_oneapi_plugin.so"],
    }
}

/// How messages call the folder of installed libraries.
const CACHE: &str = "the per-user cache";

/// How messages call a path that the caller gave.
pub const EXPLICIT: &str = "the path that was given";

/// The first of several sources, such as environment variables, that names a path. Those before it are added to `looked_at`.
pub fn first_named(
    sources: impl IntoIterator<Item = (String, Option<PathBuf>)>,
    looked_at: &mut Vec<String>,
) -> Option<(String, PathBuf)> {
    for (source, path) in sources {
        match path {
            Some(path) => return Some((source, path)),
            None => looked_at.push(format!("{source}: not set")),
        }
    }
    None
}

/// Why a path that the user gave cannot be a plugin, if it cannot.
fn rejection(path: &Path) -> Option<&'static str> {
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        return Some(
            "is a json description, which phalanx does not read: give the path of the library itself",
        );
    }
    (!path.is_file()).then_some("is not a file")
}

/// `lib/python3*/{site,dist}-packages`, newest Python first, that exist.
fn python_folders(lib: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(lib)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let minor = |path: &Path| -> Option<u32> {
        let version = path.file_name()?.to_str()?.strip_prefix("python3")?;
        if version.is_empty() {
            Some(0)
        } else {
            version.strip_prefix('.')?.parse().ok()
        }
    };
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|path| Some((minor(&path)?, path)))
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    let packages = found
        .into_iter()
        .flat_map(|(_, path)| ["site-packages", "dist-packages"].map(|name| path.join(name)));
    packages.filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn places(root: &Path, variables: &[(&str, &str)]) -> PluginSearch {
        let environment = variables
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)))
            .collect();
        PluginSearch {
            environment,
            root: root.to_path_buf(),
        }
    }

    fn touch(path: &Path) -> PathBuf {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
        path.to_path_buf()
    }

    #[test]
    fn each_place_is_beaten_by_the_one_before_it() {
        let dir = TempDir::new();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let explicit = touch(&dir.join("explicit.so"));
        let ours = touch(&dir.join("ours.so"));
        let named = touch(&dir.join("named.so"));
        let cache = dir.join("cache");
        let cached = touch(&CPU_PLUGIN.installed_path(&cache));
        let environment =
            touch(&dir.join(
                "venv/lib/python3.9/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
            ));
        let newer = touch(&dir.join(
            "venv/lib/python3.12/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
        ));
        let system = touch(
            &dir.join("usr/lib/python3/dist-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"),
        );
        touch(&dir.join("other/bin/python3"));
        let other = touch(&dir.join(
            "other/lib/python3.13/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
        ));
        let mut variables = vec![
            ("PHALANX_PJRT_CPU", text(&ours)),
            (
                "PJRT_NAMES_AND_LIBRARY_PATHS",
                format!("cuda:/no.so,cpu:{}", text(&named)),
            ),
            ("PHALANX_CACHE_DIR", text(&cache)),
            ("VIRTUAL_ENV", text(&dir.join("venv"))),
            ("PATH", format!("bin:{}", text(&dir.join("other/bin")))),
        ];
        let find = |variables: &[(&str, String)], explicit: Option<&Path>| {
            let variables: Vec<_> = variables
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            places(&dir, &variables)
                .find(Platform::Cpu, explicit)
                .unwrap()
                .path
        };
        assert_eq!(find(&variables, Some(&explicit)), explicit);
        for expected in [&ours, &named, &cached] {
            assert_eq!(&find(&variables, None), expected);
            variables.remove(0);
        }
        assert_eq!(find(&variables, None), newer);
        std::fs::remove_file(newer).unwrap();
        assert_eq!(find(&variables, None), environment);
        variables.remove(0);
        // Of an environment that is not active, whose Python is the first.
        assert_eq!(find(&variables, None), other);
        assert_eq!(find(&[], None), system);
    }

    #[test]
    fn a_given_path_that_is_no_file_is_an_error_and_not_skipped() {
        let dir = TempDir::new();
        touch(&dir.join("usr/lib/python3.11/site-packages/libtpu/libtpu.so"));
        assert!(places(&dir, &[]).find(Platform::Tpu, None).is_ok());
        let error = places(&dir, &[("PHALANX_PJRT_TPU", "/no/such.so")])
            .find(Platform::Tpu, None)
            .unwrap_err();
        assert!(
            error.reason.contains("PHALANX_PJRT_TPU") && error.reason.contains("/no/such.so"),
            "{error}"
        );
        let error = places(&dir, &[("PJRT_NAMES_AND_LIBRARY_PATHS", "tpu:/x/tpu.json")])
            .find(Platform::Tpu, None)
            .unwrap_err();
        assert!(error.reason.contains("json"), "{error}");
        let error = places(&dir, &[])
            .find(Platform::Tpu, Some(&dir))
            .unwrap_err();
        assert!(error.reason.contains("is not a file"), "{error}");
    }

    #[test]
    fn a_gpu_without_a_plugin_is_told() {
        let dir = TempDir::new();
        let unserved = || places(&dir, &[]).unserved_gpus();
        assert_eq!(unserved(), None);
        touch(&dir.join("dev/nvidia0"));
        assert_eq!(unserved(), Some(Platform::Cuda));
        assert!(idle_gpus(Platform::Cuda).ends_with("run `pip install 'jax[cuda13]'`"));
        touch(&dir.join("usr/lib/python3/dist-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so"));
        assert_eq!(unserved(), None);
        touch(&dir.join("dev/kfd"));
        assert_eq!(unserved(), Some(Platform::Rocm));
    }

    #[test]
    fn nothing_found_lists_the_places_and_the_install_command() {
        let dir = TempDir::new();
        std::fs::create_dir_all(dir.join("usr/lib/python3.11/site-packages")).unwrap();
        let error = places(&dir, &[("HOME", "/home/u")])
            .find(Platform::Cpu, None)
            .unwrap_err()
            .to_string();
        for part in [
            "PHALANX_PJRT_CPU: not set",
            "/home/u/.cache/phalanx/plugins/cpu-0.11.2-",
            "python3.11/site-packages",
            "phalanx plugin install cpu",
        ] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
        assert!(!error.contains("TPU_"), "{error}");
    }

    #[test]
    fn malformed_environments_find_nothing_and_do_not_panic() {
        let dir = TempDir::new();
        for value in [
            "",
            ",",
            ":",
            "cpu",
            "cpu:",
            ",,cpu",
            "a:b:c,::",
            "\u{1F600}:x",
        ] {
            let places = places(
                &dir,
                &[
                    ("PJRT_NAMES_AND_LIBRARY_PATHS", value),
                    ("PYTHONPATH", ":::"),
                    ("VIRTUAL_ENV", value),
                    ("XDG_CACHE_HOME", value),
                ],
            );
            assert!(places.find(Platform::Cpu, None).is_err(), "{value}");
            assert!(places.list().is_empty());
        }
    }

    #[test]
    fn the_cache_folder_follows_the_environment() {
        let cache = |variables: &[(&str, &str)]| places(Path::new("/"), variables).cache_dir();
        assert_eq!(cache(&[]), None);
        assert_eq!(cache(&[("HOME", "/h")]), Some("/h/.cache/phalanx".into()));
        assert_eq!(
            cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]),
            Some("/x/phalanx".into())
        );
        assert_eq!(
            cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "relative")]),
            Some("/h/.cache/phalanx".into())
        );
        assert_eq!(
            cache(&[("XDG_CACHE_HOME", "/x"), ("PHALANX_CACHE_DIR", "/p")]),
            Some("/p".into())
        );
    }
}
