//! Checksums of large arrays that went over TCP, which all ranks compare in the end.
//!
//! A changed byte may be in results that its receiver has passed on by the time it is found. So each rank says of every other what it sent
//! to it and what it received, and all come to the same verdict before any of them counts the exchange as done.

use crate::arena::HEADER;
use crate::error::CollectiveError;
use crate::frame::Header;
use crate::shared::Array;
use crate::state::Wait;
use crate::tcp::{Flow, Links};

/// Bytes of a rank's sums for another.
const EACH: usize = 8;

/// For each rank the checksums of what was sent to it, and received from it, over all connections.
pub(crate) struct Sums(Vec<u8>);

impl Sums {
    pub(crate) fn of(flows: &[Flow<'_>], size: usize) -> Self {
        let mut both = vec![(0u32, 0u32); size];
        for flow in flows {
            let (peer, (sent, received)) = flow.sums();
            // Several connections have the same order at both ends.
            let all = &mut both[peer];
            *all = (all.0.rotate_left(5) ^ sent, all.1.rotate_left(5) ^ received);
        }
        let bytes = both.into_iter().flat_map(|(sent, received)| {
            let words = [sent.to_le_bytes(), received.to_le_bytes()];
            words.into_iter().flatten()
        });
        Self(bytes.collect())
    }
}

impl Links {
    /// Waits for the sums of all ranks.
    ///
    /// # Errors
    /// Something did not arrive as it was sent: on all ranks, with the same sender.
    pub(crate) fn compare_sums(
        &mut self,
        sums: &mut Sums,
        wait: &Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let header = Header {
            length: sums.0.len() as u64,
            ..*wait.header
        };
        let array = Array {
            pointer: sums.0.as_mut_ptr(),
            length: sums.0.len(),
            offset: None,
            is_lent: false,
        };
        let all = self.messages(array, true, &mut wait.for_part(&header))?;
        let said = |by: usize, of: usize| all[by][HEADER..].chunks_exact(EACH).nth(of);
        for from in 0..self.size {
            for to in 0..self.size {
                let (Some(sent), Some(received)) = (said(from, to), said(to, from)) else {
                    return Err(CollectiveError::local(
                        "compare checksums",
                        "some are missing",
                    ));
                };
                if sent[..4] != received[4..] {
                    return Err(CollectiveError::Corrupt {
                        rank: from,
                        detail: format!("what rank {to} received has another checksum"),
                    });
                }
            }
        }
        Ok(())
    }
}
