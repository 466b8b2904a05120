//! Which process a staging directory is of, and whether it can still be at work.

use std::fs;
use std::path::Path;

/// This process, in the names of its staging directories: its number, and among which processes that number counts.
pub(crate) fn this_process() -> String {
    format!("{:08x}-{}", numbering(), std::process::id())
}

/// Tells machines and containers apart, whose numbers of processes mean nothing to each other: on a shared disk each sees
/// the staging directories of all. It is another one after a restart of the machine.
fn numbering() -> u32 {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    crc32c::crc32c_append(
        crc32c::crc32c(&boot),
        namespace.as_os_str().as_encoded_bytes(),
    )
}

/// Whether a staging directory, by the end of its name, is of a process that would be seen here and is not.
pub(super) fn is_of_ended_process(rest: &[u8]) -> bool {
    let rest = std::str::from_utf8(rest).unwrap_or_default();
    let mut parts = rest.split('-');
    let here = format!("{:08x}", numbering());
    let process = match (parts.next(), parts.next()) {
        (Some(numbering), Some(process)) if numbering == here => process.parse::<u32>().ok(),
        _ => None,
    };
    let known = Path::new("/proc");
    process.is_some_and(|process| {
        known.join("self").exists() && !known.join(process.to_string()).exists()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_this_machine_are_known_to_have_ended() {
        // No process has this number.
        let gone = u32::MAX;
        assert!(is_of_ended_process(
            format!("{:08x}-{gone}-0", numbering()).as_bytes()
        ));
        assert!(!is_of_ended_process(
            format!("{:08x}-{gone}-0", !numbering()).as_bytes()
        ));
        assert!(!is_of_ended_process(
            format!("{}-0", this_process()).as_bytes()
        ));
        assert!(!is_of_ended_process(b""));
    }
}
