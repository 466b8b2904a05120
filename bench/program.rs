//! How a program of the benchmarks ends.

use std::error::Error;
use std::process::ExitCode;

/// Success, or the error on stderr.
pub(crate) fn exit(result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
