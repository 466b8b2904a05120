//! The number of a commit, by which tests that cannot try everything choose what they try.

use std::process::Command;
use std::sync::OnceLock;

/// The first eight digits of the commit that is checked out, or `None` outside a repository: every run on a commit chooses
/// the same, the next commit something else.
#[must_use]
pub fn commit_number() -> Option<u32> {
    static NUMBER: OnceLock<Option<u32>> = OnceLock::new();
    *NUMBER.get_or_init(ask_git)
}

fn ask_git() -> Option<u32> {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let digits = String::from_utf8(output.ok()?.stdout).ok()?;
    u32::from_str_radix(digits.get(..8)?, 16).ok()
}

/// Whether the tests of a binary (`env!("CARGO_CRATE_NAME")`) compile without the compiler's last care on this commit, which takes a third
/// of the time.
///
/// Three commits of four do, and binaries take turns. Outside a repository, and where the whole table of replicas is trained
/// (`PHALANX_TEST_WHOLE_TABLE`), all are compiled with care.
#[must_use]
pub fn is_quick_commit(binary: &str) -> bool {
    let is_whole = std::env::var_os("PHALANX_TEST_WHOLE_TABLE").is_some();
    let place = binary.bytes().map(u32::from).sum::<u32>();
    let commit = commit_number().filter(|_| !is_whole);
    commit.is_some_and(|commit| !commit.wrapping_add(place).is_multiple_of(4))
}
