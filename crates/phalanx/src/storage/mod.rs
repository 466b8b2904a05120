//! Files of this library on disk and in buckets: directories that are replaced as a whole, and versioned JSON documents.

pub(crate) mod atomic_dir;
mod disk;
pub(crate) mod document;
pub(crate) mod foreign_ending;
mod numbered;
mod objects;
mod processes;
mod staging;
pub(crate) mod store;

pub(crate) use disk::remove_file;
pub(crate) use processes::this_process;

use crate::Error;

/// The error of a malformed file. What it quotes of the file is shortened and printable, so that it cannot flood or control a terminal.
pub(crate) fn problem(name: &str, place: &str, message: impl Into<String>) -> Error {
    Error::Data {
        source_name: name.to_owned(),
        place: place.to_owned(),
        message: brief(&message.into()),
    }
}

/// Printable text of bounded length: what is too long loses its middle.
fn brief(text: &str) -> String {
    const HEAD: usize = 500;
    const TAIL: usize = 200;
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let count = text.chars().count();
    if count <= HEAD + TAIL {
        return text.chars().map(printable).collect();
    }
    let head: String = text.chars().take(HEAD).map(printable).collect();
    let tail: String = text.chars().skip(count - TAIL).map(printable).collect();
    format!("{head} .. {tail}")
}
