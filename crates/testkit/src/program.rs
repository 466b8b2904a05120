//! Programs of tests.

use std::path::Path;
use std::process::Command;

/// Writes a script that can be run, with its first line.
///
/// By another process: what this one writes cannot be run ("text file busy") while a process has it open that a test beside this one has
/// just started.
///
/// # Panics
/// It cannot be written.
pub fn write_program(path: impl AsRef<Path>, text: &str) {
    let mut write = Command::new("sh");
    let write = write.args(["-c", r#"printf %s "$1" > "$0" && chmod 755 "$0""#]);
    let written = write.arg(path.as_ref()).arg(text).status();
    assert!(written.expect("a shell").success(), "{text}");
}
