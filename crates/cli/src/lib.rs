//! The `phalanx` command.
//!
//! What was typed is [`args`]; each command is a file of `commands`. Training itself is the library's: nothing here computes.
#![forbid(unsafe_code)]

pub mod args;
pub mod bins;
pub mod categories;
mod checks;
pub mod clicks;
mod cluster_doctor;
mod commands;
pub mod config;
mod csv_fields;
pub mod data_facts;
mod doctor;
mod encoded;
mod example_rows;
mod failure;
mod feature_rows;
mod files;
mod held_out;
mod image_rows;
mod locate;
mod machine;
pub mod model;
mod named_columns;
mod output;
pub mod output_labels;
pub mod predictions;
mod preemption;
mod record;
mod resumed_settings;
pub mod reviews;
pub mod rows;
pub mod rows_to_predict;
mod run_folder;
mod runs;
pub mod scaling;
mod sibling_program;
mod signals;
mod speed_log;
mod split;
mod synth;
pub mod texts;
mod tfds_rows;
mod trained_args;
pub mod windows;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

/// Runs the command that `arguments` (the program's name first) spell, and says how it ended.
///
/// 0 done; 1 training failed; 2 usage or configuration; 3 the machine is not ready; 75 a peer or the infrastructure was lost, try
/// again; 130 interrupted and 143 ended by SIGTERM, SIGHUP or SIGUSR1, a training after a save.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(arguments) = sibling_program::arguments(&arguments) {
        let failure = sibling_program::run(arguments);
        output::report(&failure);
        return failure.exit.into();
    }
    let args = match args::Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => {
            // Nowhere is left to report that the terminal is gone.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match commands::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::report(&failure);
            failure.exit.into()
        }
    }
}
