//! Oracles for tests: an f64 interpreter of graphs that shares no code with the compiler's lowering or with our
//! derivatives, comparisons that see what is not a number, numbers from a seed or the commit, folders, programs and buckets of tests, a metadata server, words of tests that are not run, waits.
#![forbid(unsafe_code)]

mod commit;
mod compare;
mod gate;
mod interpreter;
mod metadata_server;
mod platform;
mod program;
mod random;
mod scratch;
mod searched;
mod skip;
mod stores;
mod wait;

pub use commit::{commit_number, is_quick_commit};
pub use compare::{assert_close, assert_relatively_close, largest_difference, relative_difference};
pub use gate::{Answer, Gate};
pub use interpreter::{Array, Dual, Interpreter};
pub use metadata_server::MetadataServer;
pub use platform::test_platform;
pub use program::write_program;
pub use random::Random;
pub use scratch::Scratch;
pub use searched::{asked_number, search_seed};
pub use skip::skip;
pub use stores::{bucket_urls, put_empty_at};
pub use wait::wait_until;
