//! What `phalanx doctor --cluster` finds out: on this node alone, of all nodes by comparison, and of the network between them.

mod exchange;
mod local;
mod nodes;

pub(crate) use exchange::{network, of_measured};
pub(crate) use local::{environment, folder, names, ports};
pub(crate) use nodes::{NodeFacts, clocks, equality, sharing};
