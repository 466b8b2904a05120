//! Names of older directories: `name.1`, `name.2` and so on.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

/// The name with a number.
pub(super) fn numbered(name: &OsStr, number: usize) -> OsString {
    let mut numbered = name.to_owned();
    numbered.push(format!(".{number}"));
    numbered
}

/// The numbers above 0 that are taken in a folder, ascending.
pub(super) fn taken_numbers(folder: &Path, name: &OsStr) -> Vec<usize> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |entry: &OsStr| {
        let rest = entry.as_encoded_bytes();
        let rest = rest.strip_prefix(name.as_encoded_bytes())?;
        let number = std::str::from_utf8(rest).ok()?.strip_prefix('.')?;
        let number = number.parse::<usize>().ok().filter(|&number| number > 0)?;
        // `name.01` is another name.
        (entry == numbered(name, number)).then_some(number)
    };
    let mut numbers: Vec<usize> = entries.filter_map(|e| number(&e.file_name())).collect();
    numbers.sort_unstable();
    numbers
}
