//! The plugin a command uses: found, or installed where none is.

use std::path::PathBuf;

use phalanx_kernels::ONEDNN;
use phalanx_pjrt::{
    CPU_PLUGIN, FoundPlugin, InstallError, Installer, LoadError, Platform, Plugin, PluginNotFound,
    PluginSearch,
};

use crate::args::Global;
use crate::failure::{Exit, Failure};
use crate::output::notice;

/// Finds the plugin of a platform. Where there is none for the CPU, installs it, unless `--offline` forbids that.
pub(crate) fn plugin(
    search: &PluginSearch,
    global: &Global,
    platform: Platform,
) -> Result<FoundPlugin, Failure> {
    match search.find(platform, global.plugin.as_deref()) {
        Ok(found) => Ok(found),
        Err(missing) if platform == Platform::Cpu && !missing.named => install_cpu(search, global),
        Err(missing) => Err(not_found(&missing)),
    }
}

/// Installs the pinned CPU plugin unless it is installed.
pub(crate) fn install_cpu(search: &PluginSearch, global: &Global) -> Result<FoundPlugin, Failure> {
    let what = format!("the cpu plugin, once: {}", CPU_PLUGIN.describe());
    let installer = installer(search, global, &what)?;
    let path = installer
        .install(&CPU_PLUGIN)
        .map_err(|error| install_failed(&error))?;
    Ok(FoundPlugin {
        platform: Platform::Cpu,
        path,
        source: "the per-user cache".into(),
    })
}

/// Installs the pinned library of kernels unless it is installed.
pub(crate) fn install_kernels(search: &PluginSearch, global: &Global) -> Result<PathBuf, Failure> {
    let what = format!("the kernels, once: {}", ONEDNN.describe());
    let installer = installer(search, global, &what)?;
    installer
        .install(&ONEDNN)
        .map_err(|error| install_failed(&error))
}

/// An installer into the per-user cache, and the notice that it is at work.
fn installer(search: &PluginSearch, global: &Global, what: &str) -> Result<Installer, Failure> {
    let cache = search.cache_dir().ok_or_else(|| {
        Failure::new(
            Exit::NotReady,
            "there is no folder to install into: neither PHALANX_CACHE_DIR, XDG_CACHE_HOME nor HOME is set",
        )
        .next("set PHALANX_CACHE_DIR to a folder you can write to")
    })?;
    if !global.quiet && !global.offline {
        notice(format_args!("installing {what} into {}", cache.display()));
    }
    Ok(Installer {
        offline: global.offline,
        ..Installer::new(&cache)
    })
}

/// Loads a plugin that was found.
pub(crate) fn load(found: &FoundPlugin) -> Result<Plugin, Failure> {
    Plugin::load(&found.path).map_err(|error| load_failed(found, &error))
}

fn not_found(missing: &PluginNotFound) -> Failure {
    Failure::of(Exit::NotReady, missing)
}

fn install_failed(error: &InstallError) -> Failure {
    Failure::of(Exit::NotReady, error)
}

fn load_failed(found: &FoundPlugin, error: &LoadError) -> Failure {
    Failure::of(Exit::NotReady, error).next(format!(
        "the {} plugin was taken from {}; `phalanx doctor` checks the rest of this machine",
        found.platform, found.source
    ))
}
