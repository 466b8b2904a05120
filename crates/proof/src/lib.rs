//! How processes prove to each other that they know a secret, and how strangers are heard until they have.
//!
//! A [`Secret`] proves parts of bytes under a label, which tells one kind of proof from all others of the same secret. Whoever asks for a
//! proof draws a number for it ([`draw`]), so that no proof is of use twice. On a connection each frame has a proof by a [`Seal`]. Until
//! somebody has proved anything, a [`BoundedStream`] limits how long and how much is read.
//!
//! What is proved can be read by others: nothing here encrypts.
#![forbid(unsafe_code)]

mod bounded_stream;
mod random;
mod secret;

pub use bounded_stream::BoundedStream;
pub use random::{draw, draw_hex, hex};
pub use secret::{PROOF, Seal, Secret, Side};
