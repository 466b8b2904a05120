//! Every primitive, computed by the CPU plugin, against a plain f64 computation on the host, and against the f64
//! interpreter of `phalanx-testkit`.
//!
//! The cases of a topic are outputs of one program, for a compilation costs more than a case.
#![allow(
    unreachable_pub,
    clippy::type_complexity,
    clippy::needless_pass_by_value,
    reason = "tables of cases, in modules of one test binary"
)]

mod cases;
mod collectives;
mod contractions;
mod elementwise;
mod every_op;
mod indexing;
mod layout;
mod loops;
mod random;
mod reductions;
mod selections;
#[path = "../support/mod.rs"]
mod support;
