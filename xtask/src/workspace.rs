//! What `cargo metadata` says of the workspace and its dependencies.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// The workspace: its folder and every package that it is made of or needs, on any platform.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// A package.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Where it comes from; `None` for a folder of the workspace.
    pub(crate) source: Option<String>,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
    pub(crate) manifest_path: PathBuf,
}

/// A package that another asks for.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None`, `dev` or `build`.
    pub(crate) kind: Option<String>,
    /// The folder, for a package of the workspace.
    pub(crate) path: Option<PathBuf>,
}

/// A library, program, test or example of a package.
#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

impl Workspace {
    /// Asks cargo, with the lock file as it is.
    pub(crate) fn load() -> Result<Self, String> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new("cargo")
            .args(["metadata", "--format-version", "1", "--locked"])
            .current_dir(here)
            .output()
            .map_err(|error| format!("cannot start cargo metadata: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let metadata: Metadata = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("cannot read what cargo metadata wrote: {error}"))?;
        Ok(Self {
            root: metadata.workspace_root,
            packages: metadata.packages,
        })
    }

    /// Cargo in the workspace, without what `cargo xtask` tells this program of its own package: scripts of dependencies (ring's) look at
    /// it, and half of the workspace would be built anew with it, under running tests too.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(&self.root);
        for (name, _) in std::env::vars_os() {
            let is_of_package = name.to_str().is_some_and(|name| {
                name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
            });
            if is_of_package {
                command.env_remove(name);
            }
        }
        command
    }

    /// The packages of the workspace itself.
    pub(crate) fn ours(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| package.source.is_none())
    }

    /// The file that keeps the output of a check.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.root
            .join("target/xtask")
            .join(name)
            .with_extension("log")
    }

    /// A path as it is written from the root of the workspace.
    pub(crate) fn relative<'p>(&self, path: &'p Path) -> &'p Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

impl Package {
    /// The folder of its manifest.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }
}
