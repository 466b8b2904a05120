//! The `phalanx-jobs` command: submit, watch, cancel and tune jobs; their API and their dashboard.
//!
//! `phalanx jobs` and `phalanx tune` run it. Commands are clients of a daemon (`serve`), which the first of them starts; the daemon
//! starts a supervisor (`supervise`) for each job.
#![forbid(unsafe_code)]

mod args;
mod client;
mod commands;
mod daemon;
mod failure;
mod trust;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match commands::run(args) {
        Ok(code) => code,
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.exit)
        }
    }
}
