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
mod proof;
mod trust;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use failure::Failure;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

fn main() -> ExitCode {
    // Its memory has the token, and secrets of jobs: neither stays behind as a core dump, nor can other programs of the user read it. What
    // it starts is as it was.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if let Err(failure) = check_words(std::env::args_os()) {
        failure.report();
        return ExitCode::from(failure.exit);
    }
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let failed = failure::is_read(error.print()).err();
            failed.iter().for_each(Failure::report);
            let exit = u8::try_from(error.exit_code()).unwrap_or(2);
            return ExitCode::from(failed.map_or(exit, |failure| exit.max(failure.exit)));
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

/// Jobs are kept and told of as text: other bytes are refused before anything is made of them.
fn check_words(words: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    for (at, word) in words.enumerate().skip(1) {
        if word.to_str().is_none() {
            let shown: String = word.to_string_lossy().chars().take(60).collect();
            return Err(Failure::usage(format!(
                "argument {at}, {shown:?}, is not in UTF-8, as arguments and paths of jobs are; write the bytes into a file, or rename the file that it names"
            )));
        }
    }
    Ok(())
}
