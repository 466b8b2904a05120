//! Exchanges between ranks that are threads, on every transport.

mod damage;
mod failures;
mod groups;
mod order;
mod strangers;
mod values;
