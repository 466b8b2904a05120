//! Parameter servers: what they hold and how they update it, and a worker's session with them.

mod contents;
mod layout;
mod narrow;
mod row_cache;
mod session;
mod table;
mod values;

pub(crate) use layout::{Pushed, StateLayout};
pub(crate) use narrow::Wire;
pub(crate) use row_cache::CacheOptions;
pub(crate) use session::{ExchangeOptions, PulledRows, PulledValues, Servers};
pub(crate) use table::HeldTable;
pub(crate) use values::HeldValues;

use phalanx_ps::PsError;

use crate::Error;

/// The error of the library that an error of the servers is.
pub(crate) fn explained(error: PsError) -> Error {
    match error {
        PsError::User(message) => Error::User(message),
        PsError::Stopped => Error::Stopped("the training was asked to stop".into()),
        PsError::Protocol(message) => Error::Cluster(message),
        other => Error::Cluster(other.to_string()),
    }
}
