//! Tests that a machine cannot run.

use std::fmt::Display;
use std::io::{self, Write};
use std::thread;

/// Says that a test, or a part of one, is not run here, and what it needs.
///
/// It is seen although the test passes: the text goes past what test programs keep to themselves of tests that pass.
///
/// # Panics
/// Where PHALANX_NO_SKIP is set, for machines that should have all that tests need.
pub fn skip(why: impl Display) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test").to_owned();
    assert!(
        std::env::var_os("PHALANX_NO_SKIP").is_none(),
        "`{test}` cannot be skipped where PHALANX_NO_SKIP is set: {why}"
    );
    let _ = writeln!(io::stderr(), "skipped: {test}: {why}");
}
