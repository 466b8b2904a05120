//! `phalanx doctor`.

use std::fs;
use std::path::Path;

use phalanx_cluster::{Variables, explain};
use phalanx_kernels::{INSTALL_COMMAND, KernelError, Kernels};
use phalanx_pjrt::{Attribute, CPU_PLUGIN, Client, FoundPlugin, Platform, Plugin};

use super::Context;
use crate::doctor::{
    Cache, Check, cache, cores, disk, flags, memory, processor, variables, worker,
};
use crate::failure::{Exit, Failure};
use crate::machine::{Machine, free_space, size_of};

/// Looks at the machine and prints a line for each thing that training needs or goes by.
pub(crate) fn run(context: &mut Context) -> Result<(), Failure> {
    let mut checks = vec![of_program()];
    checks.extend(of_machine());
    checks.extend(of_environment());
    checks.extend(of_disks(context));
    // Last: a plugin that dies takes the process with it, and the lines above are printed by then.
    for check in &checks {
        print(context, check)?;
    }
    let of_plugins = of_plugins(context);
    for check in &of_plugins {
        print(context, check)?;
    }
    let failed = checks
        .iter()
        .chain(&of_plugins)
        .filter(|check| check.is_failure())
        .count();
    match failed {
        0 => Ok(()),
        1 => Err(
            Failure::new(Exit::NotReady, "this machine is not ready: 1 check failed")
                .next("do what the line marked fail says"),
        ),
        _ => Err(Failure::new(
            Exit::NotReady,
            format!("this machine is not ready: {failed} checks failed"),
        )
        .next("do what the lines marked fail say")),
    }
}

fn print(context: &mut Context, check: &Check) -> Result<(), Failure> {
    context.print(&check.to_string(), &check.to_json())
}

/// The version, and where it is known the commit that it is built from.
fn of_program() -> Check {
    let commit = option_env!("PHALANX_COMMIT");
    let commit = commit.map_or(String::new(), |commit| format!(" of commit {commit}"));
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    let version = env!("CARGO_PKG_VERSION");
    Check::ok("phalanx", format!("{version}{commit} for {arch}-{os}"))
}

fn of_environment() -> Vec<Check> {
    let explanation = explain(&Variables::of_process());
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut checks = vec![worker(&explanation)];
    checks.extend(variables(&explanation, all));
    checks
}

fn of_machine() -> Vec<Check> {
    let machine = Machine::read(Path::new("/"));
    let set = std::env::var("XLA_FLAGS").unwrap_or_default();
    vec![
        processor(&machine),
        cores(&machine),
        memory(&machine),
        flags(&set),
    ]
}

fn of_disks(context: &Context) -> Vec<Check> {
    let folder = context.search.cache_dir();
    let known = folder.as_ref().map(|folder| Cache {
        folder: folder.clone(),
        size: size_of(folder),
        refused: refusal(folder),
    });
    let mut checks = vec![cache(known.as_ref())];
    checks.extend(folder.iter().map(|folder| disk(folder, free_space(folder))));
    let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
    checks.push(disk(&here, free_space(&here)));
    checks
}

/// Why a folder cannot be made or written to.
fn refusal(folder: &Path) -> Option<String> {
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    let tried = fs::create_dir_all(folder).and_then(|()| fs::write(&probe, "x"));
    let _ = fs::remove_file(&probe);
    tried.err().map(|error| error.to_string())
}

fn of_plugins(context: &Context) -> Vec<Check> {
    let explicit = context.global.plugin.as_deref();
    let mut checks = Vec::new();
    match context.search.find(Platform::Cpu, explicit) {
        Ok(found) => {
            checks.push(Check::ok(
                "plugin",
                format!("{} (from {})", found.path.display(), found.source),
            ));
            checks.extend(of_loaded(&found));
        }
        Err(missing) if missing.named => {
            checks.push(Check::fail(
                "plugin",
                missing.reason,
                format!(
                    "correct the path, or remove it and run `{}`",
                    Platform::Cpu.install_command()
                ),
            ));
        }
        Err(_) => checks.push(not_installed(context)),
    }
    checks.push(of_kernels(context));
    let others = Platform::ALL
        .into_iter()
        .filter(|platform| *platform != Platform::Cpu);
    for found in others.filter_map(|platform| context.search.find(platform, None).ok()) {
        checks.push(Check::ok(
            "plugin",
            format!(
                "{}: {} (from {})",
                found.platform,
                found.path.display(),
                found.source
            ),
        ));
    }
    if let Some(platform) = context.search.unserved_gpus() {
        let found = format!("there is one, and no {platform} plugin: it is not used");
        let next = format!("run `{}`", platform.install_command());
        checks.push(Check::warn("gpu", found, next));
    }
    checks
}

/// The kernels make the CPU faster; nothing fails without them.
fn of_kernels(context: &Context) -> Check {
    let next = format!("run `{INSTALL_COMMAND}`");
    match Kernels::find(&context.search, None) {
        Ok(kernels) => Check::ok("kernels", kernels.describe()),
        Err(KernelError::NotFound { .. }) => Check::warn(
            "kernels",
            "onednn is not installed: convolutions run on xla's own kernels",
            format!("{next}; the first training that gains from it does so too"),
        ),
        Err(error) => Check::warn("kernels", error.to_string(), next),
    }
}

fn not_installed(context: &Context) -> Check {
    let found = format!(
        "the cpu plugin ({}) is not installed",
        CPU_PLUGIN.requirement()
    );
    let next = format!("run `{}`", Platform::Cpu.install_command());
    if context.global.offline {
        Check::fail(
            "plugin",
            format!("{found}, and --offline forbids the download"),
            next,
        )
    } else {
        Check::warn(
            "plugin",
            found,
            format!("{next}; the first command that needs it does so too"),
        )
    }
}

/// What the plugin says once it runs.
fn of_loaded(found: &FoundPlugin) -> Vec<Check> {
    let next = "run `phalanx plugin install cpu` and give no other path";
    let plugin = match Plugin::load(&found.path) {
        Ok(plugin) => plugin,
        Err(error) => return vec![Check::fail("plugin", error.to_string(), next)],
    };
    let (major, minor) = plugin.api_version();
    let spoken = format!("pjrt api {major}.{minor}{}", stablehlo(&plugin));
    let versions = match plugin.warning() {
        None => Check::ok("versions", spoken),
        Some(warning) => Check::warn("versions", format!("{spoken}: {warning}"), next),
    };
    let devices = match Client::new(&plugin, &[]) {
        Ok(client) => Check::ok("devices", format!("{} starts", client.platform())),
        Err(error) => Check::fail("devices", error.to_string(), next),
    };
    vec![versions, devices]
}

/// `, stablehlo 1.20.0` where the plugin says so.
fn stablehlo(plugin: &Plugin) -> String {
    let version = plugin
        .attributes()
        .ok()
        .and_then(|mut attributes| attributes.remove("stablehlo_current_version"));
    match version {
        Some(Attribute::Ints(parts)) => {
            let parts: Vec<String> = parts.iter().map(i64::to_string).collect();
            format!(", stablehlo {}", parts.join("."))
        }
        _ => String::new(),
    }
}
