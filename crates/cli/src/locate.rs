//! The plugin a command uses: found, or installed where none is.

use std::path::PathBuf;

use phalanx_pjrt::{Found, InstallError, Installer, LoadError, NotFound, Places, Platform, Plugin};

use crate::args::Global;
use crate::failure::{Exit, Failure};
use crate::output::notice;

/// Finds the plugin of a platform. Where there is none for the CPU, installs it, unless `--offline` forbids that.
pub(crate) fn plugin(
    places: &Places,
    global: &Global,
    platform: Platform,
) -> Result<Found, Failure> {
    match places.find(platform, global.plugin.as_deref()) {
        Ok(found) => Ok(found),
        Err(missing) if platform == Platform::Cpu && !missing.named => install_cpu(places, global),
        Err(missing) => Err(not_found(&missing)),
    }
}

/// Installs the pinned CPU plugin unless it is installed.
pub(crate) fn install_cpu(places: &Places, global: &Global) -> Result<Found, Failure> {
    let what = format!("the cpu plugin, once: {}", Installer::describe_cpu());
    let installer = installer(places, global, &what)?;
    let path = installer.cpu().map_err(|error| install_failed(&error))?;
    Ok(Found {
        platform: Platform::Cpu,
        path,
        source: "the per-user cache".into(),
    })
}

/// Installs the pinned library of kernels unless it is installed.
pub(crate) fn install_kernels(places: &Places, global: &Global) -> Result<PathBuf, Failure> {
    let what = format!("the kernels, once: {}", Installer::describe_kernels());
    let installer = installer(places, global, &what)?;
    installer.kernels().map_err(|error| install_failed(&error))
}

/// An installer into the per-user cache, and the notice that it is at work.
fn installer(places: &Places, global: &Global, what: &str) -> Result<Installer, Failure> {
    let cache = places.cache_dir().ok_or_else(|| {
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
pub(crate) fn load(found: &Found) -> Result<Plugin, Failure> {
    Plugin::load(&found.path).map_err(|error| load_failed(found, &error))
}

fn not_found(missing: &NotFound) -> Failure {
    Failure::of(Exit::NotReady, missing)
}

fn install_failed(error: &InstallError) -> Failure {
    Failure::of(Exit::NotReady, error)
}

fn load_failed(found: &Found, error: &LoadError) -> Failure {
    Failure::of(Exit::NotReady, error).next(format!(
        "the {} plugin was taken from {}; `phalanx doctor` checks the rest of this machine",
        found.platform, found.source
    ))
}
