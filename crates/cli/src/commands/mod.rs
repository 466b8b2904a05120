//! The commands, a file each.

mod completions;
mod devices;
mod doctor;
mod plugin;

use phalanx_pjrt::Places;

use crate::args::{Args, Command, Global};
use crate::failure::Failure;
use crate::output::Output;

/// What every command is given: the options of all commands, the process's surroundings, and where results go.
pub(crate) struct Context {
    pub(crate) global: Global,
    pub(crate) places: Places,
    pub(crate) output: Output,
}

/// Runs a command.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut context = Context {
        global: args.global,
        places: Places::of_process(),
        output: Output::stdout(),
    };
    match args.command {
        Command::Plugin(what) => plugin::run(&mut context, &what),
        Command::Devices { platform } => devices::run(&mut context, platform),
        Command::Doctor => doctor::run(&mut context),
        Command::Completions { shell } => completions::run(&mut context, shell),
    }
}
