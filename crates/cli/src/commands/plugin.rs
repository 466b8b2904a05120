//! `phalanx plugin list | install | where`.

use phalanx_pjrt::Platform;

use super::Context;
use crate::args::Plugin;
use crate::failure::{Exit, Failure};
use crate::locate;

/// Runs one of the plugin commands.
pub(crate) fn run(context: &mut Context, what: &Plugin) -> Result<(), Failure> {
    match *what {
        Plugin::List => list(context),
        Plugin::Install { platform } => install(context, platform),
        Plugin::Where { platform } => print_path(context, platform),
    }
}

fn list(context: &mut Context) -> Result<(), Failure> {
    for platform in Platform::ALL {
        let explicit = context.global.plugin.as_deref();
        let explicit = explicit.filter(|_| platform == Platform::Cpu);
        let line = match context.places.find(platform, explicit) {
            Ok(found) => format!("{}  (from {})", found.path.display(), found.source),
            Err(missing) if missing.named => format!("not usable: {}", missing.reason),
            Err(_) => format!("not found; to install: {}", platform.install_command()),
        };
        context
            .output
            .line(format_args!("{:<7} {line}", platform.name()))?;
    }
    Ok(())
}

fn install(context: &mut Context, platform: Platform) -> Result<(), Failure> {
    if platform != Platform::Cpu {
        return Err(Failure::new(
            Exit::Usage,
            format!("phalanx installs the cpu plugin only, not that of {platform}"),
        )
        .next(format!(
            "run `{}`; phalanx finds it in the active python environment",
            platform.install_command()
        )));
    }
    let found = locate::install_cpu(&context.places, &context.global)?;
    context.output.line(found.path.display())
}

/// Unlike the commands that use a plugin, installs nothing.
fn print_path(context: &mut Context, platform: Platform) -> Result<(), Failure> {
    let explicit = context.global.plugin.as_deref();
    let found = context
        .places
        .find(platform, explicit)
        .map_err(|missing| Failure::of(Exit::NotReady, &missing))?;
    context.output.line(found.path.display())
}
