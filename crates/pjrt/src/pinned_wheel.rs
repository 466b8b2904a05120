//! Libraries that are installed: wheels of a Python package index, pinned by version and hash.

use std::path::{Path, PathBuf};

/// A shared library in a wheel of a Python package index, pinned by version and hash. [`Installer::install`](crate::Installer::install)
/// installs it.
#[derive(Debug, Clone, Copy)]
pub struct PinnedWheel {
    /// Name in the cache and for `phalanx plugin install`.
    pub name: &'static str,
    /// What the library is, in words.
    pub title: &'static str,
    /// The environment variable that names a library to use instead.
    pub variable: &'static str,
    /// Size of the download.
    pub megabytes: u32,
    /// Name of the package.
    pub package: &'static str,
    /// Version of the package.
    pub version: &'static str,
    /// SHA-256 of the wheel file, in hexadecimal digits.
    pub sha256: &'static str,
    /// Path of the library inside the wheel.
    pub member: &'static str,
}

/// XLA's stock CPU plugin for Linux on x86-64.
pub const CPU_PLUGIN: PinnedWheel = PinnedWheel {
    name: "cpu",
    title: "cpu plugin",
    variable: "PHALANX_PJRT_CPU",
    megabytes: 63,
    package: "lammps-jax-pjrt-cpu",
    version: "0.11.2",
    sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
    member: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
};

impl PinnedWheel {
    /// The path of the library in a cache folder, whether it is installed or not.
    #[must_use]
    pub fn installed_path(&self, cache: &Path) -> PathBuf {
        self.folder(cache).join(self.file_name())
    }

    /// The package as pip writes it: `name==version`.
    #[must_use]
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    /// What is downloaded, for a message: package, version and size.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} ({} MB, with pip)", self.requirement(), self.megabytes)
    }

    /// The folder of the library in a cache folder.
    pub(crate) fn folder(&self, cache: &Path) -> PathBuf {
        let hash = self.sha256.get(..12).unwrap_or(self.sha256);
        let name = format!("{}-{}-{hash}", self.name, self.version);
        cache.join("plugins").join(name)
    }

    pub(crate) fn file_name(&self) -> &'static str {
        self.member.rsplit('/').next().unwrap_or(self.member)
    }
}
