//! `phalanx completions SHELL`.

use clap::CommandFactory;
use clap_complete::Shell;

use super::Context;
use crate::args::Args;
use crate::failure::Failure;

/// Prints the completions of a shell.
pub(crate) fn run(context: &mut Context, shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "phalanx", &mut script);
    context.output.bytes(&script)
}
