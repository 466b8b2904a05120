//! The `phalanx` command.
#![forbid(unsafe_code)]
