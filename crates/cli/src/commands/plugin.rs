//! `phalanx plugin list | install | where`.

use phalanx_kernels::{INSTALL_COMMAND, KernelError, Kernels};
use phalanx_pjrt::Platform;

use super::Context;
use crate::args::{Library, Plugin};
use crate::failure::{Exit, Failure};
use crate::locate;

/// Runs one of the plugin commands.
pub(crate) fn run(context: &mut Context, what: &Plugin) -> Result<(), Failure> {
    match *what {
        Plugin::List => list(context),
        Plugin::Install {
            what: Library::Plugin(platform),
        } => install(context, platform),
        Plugin::Install {
            what: Library::Kernels,
        } => install_kernels(context),
        Plugin::Where {
            what: Library::Plugin(platform),
        } => print_path(context, platform),
        Plugin::Where {
            what: Library::Kernels,
        } => print_path_of_kernels(context),
    }
}

fn list(context: &mut Context) -> Result<(), Failure> {
    for platform in Platform::ALL {
        let explicit = context.global.plugin.as_deref();
        let explicit = explicit.filter(|_| platform == Platform::Cpu);
        let line = match context.search.find(platform, explicit) {
            Ok(found) => format!("{}  (from {})", found.path.display(), found.source),
            Err(missing) if missing.named => format!("not usable: {}", missing.reason),
            Err(_) => format!("not found; to install: {}", platform.install_command()),
        };
        context
            .output
            .line(format_args!("{:<7} {line}", platform.name()))?;
    }
    let line = match Kernels::find(&context.search, None) {
        Ok(kernels) => kernels.describe(),
        Err(KernelError::NotFound { .. }) => format!("not found; to install: {INSTALL_COMMAND}"),
        Err(error) => format!("not usable: {error}"),
    };
    context.output.line(format_args!("kernels {line}"))
}

fn install(context: &mut Context, platform: Platform) -> Result<(), Failure> {
    if platform != Platform::Cpu {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "phalanx installs the cpu plugin and its kernels only, not the plugin of {platform}"
            ),
        )
        .next(format!(
            "run `{}`; phalanx finds it in the active python environment",
            platform.install_command()
        )));
    }
    let found = locate::install_cpu(&context.search, &context.global)?;
    context.output.line(found.path.display())
}

fn install_kernels(context: &mut Context) -> Result<(), Failure> {
    let path = locate::install_kernels(&context.search, &context.global)?;
    // What is wrong with it, a missing OpenMP say, is told now and not in the middle of a training.
    Kernels::find(&context.search, Some(&path))
        .map_err(|error| Failure::of(Exit::NotReady, &error))?;
    context.output.line(path.display())
}

fn print_path_of_kernels(context: &mut Context) -> Result<(), Failure> {
    let kernels = Kernels::find(&context.search, None)
        .map_err(|error| Failure::of(Exit::NotReady, &error))?;
    context.output.line(kernels.path().display())
}

/// Unlike the commands that use a plugin, installs nothing.
fn print_path(context: &mut Context, platform: Platform) -> Result<(), Failure> {
    let explicit = context.global.plugin.as_deref();
    let found = context
        .search
        .find(platform, explicit)
        .map_err(|missing| Failure::of(Exit::NotReady, &missing))?;
    context.output.line(found.path.display())
}
