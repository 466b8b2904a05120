//! How a communicator does its work.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use phalanx_proof::Secret;

use crate::element::Element;
use crate::error::CollectiveError;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory between ranks of one machine, TCP between machines.
    #[default]
    Auto,
    /// TCP everywhere.
    Tcp,
    /// Shared memory only; making the group fails where a rank is on another machine.
    SharedMemory,
}

/// How ranks exchange; [`Algorithm::Auto`] but for tests and measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// What the [`crate::AlgorithmTable`] says for the size.
    #[default]
    Auto,
    /// Everything to everybody at once: one hop.
    Direct,
    /// Each rank reduces a share of the elements and hands it to all.
    Pairwise,
    /// Partial sums go from machine to machine and the sums go round after them.
    Ring,
    /// What the MPI library does, in an order of addition of its own: what [`Algorithm::Auto`] takes for more than 16 ranks of MPI. All
    /// others have them add in the order of ranks. Without MPI it is [`Algorithm::Auto`].
    Library,
}

/// Options of a [`crate::Communicator`]; equal on all ranks.
#[derive(Clone, Debug)]
pub struct CommunicatorOptions {
    /// What carries the bytes.
    pub transport: Transport,
    /// How all-reduces are done.
    pub algorithm: Algorithm,
    /// The longest that an exchange waits for other ranks without getting a byte on (default 60 s); by MPI without a block of at most
    /// 512 KiB, and by what an MPI library does itself without 64 MiB. It must be longer than ranks may
    /// be apart in their work: the slowest step, a compilation, a checkpoint of one rank. Who waits only for ranks that wait for others
    /// waits up to a quarter longer, so that the cause is named.
    pub timeout: Duration,
    /// The longest that the group waits until all ranks are connected (default 5 min).
    pub join_timeout: Duration,
    /// A 16-bit float in which f32 arrays travel: contributions and the result are rounded to it, sums are made in f32.
    pub wire: Option<Element>,
    /// Connections between each two ranks that large arrays are divided over (default 1).
    pub connections: usize,
    /// The name of the job; ranks of other jobs are refused.
    pub job: String,
    /// The incarnation of the group; ranks of others are refused.
    pub generation: u64,
    /// What ranks prove to each other that they know, by HMAC-SHA256 over the handshake.
    pub secret: Option<Secret>,
    /// Ends the wait for other ranks when it is set: somebody has heard that they will not come.
    pub cancel: Option<Arc<AtomicBool>>,
    /// The identity of this machine: ranks that say the same share memory. By default boot id and host name.
    pub host: Option<String>,
}

impl Default for CommunicatorOptions {
    fn default() -> Self {
        Self {
            transport: Transport::Auto,
            algorithm: Algorithm::Auto,
            timeout: Duration::from_secs(60),
            join_timeout: Duration::from_secs(300),
            wire: None,
            connections: 1,
            job: String::new(),
            generation: 0,
            secret: None,
            cancel: None,
            host: None,
        }
    }
}

impl CommunicatorOptions {
    /// Whether a group can be made with these.
    pub(crate) fn check(&self) -> Result<(), CollectiveError> {
        let wrong = if !(1..=64).contains(&self.connections) {
            format!("over {} connections; choose 1 to 64", self.connections)
        } else if !matches!(self.wire, None | Some(Element::Bf16 | Element::F16)) {
            "over a wire that is neither bf16 nor f16".into()
        } else {
            return Ok(());
        };
        Err(CollectiveError::Unsupported { what: wrong })
    }
}
