//! Reuse of the memory of batches.

use std::sync::{Arc, Mutex, PoisonError};

use phalanx_graph::{AlignedBytes, HostTensor};

/// Buffers of past batches, reused once nobody else holds them, which saves clearing and faulting in fresh memory.
#[derive(Default)]
pub(super) struct BufferPool(Mutex<Vec<Arc<AlignedBytes>>>);

impl BufferPool {
    /// Smaller buffers are cheaper to allocate than to find.
    const MIN_BYTES: usize = 16 << 10;
    const MAX_BUFFERS: usize = 16;

    /// A buffer of `len` bytes with any content.
    pub(super) fn take(&self, len: usize) -> AlignedBytes {
        self.take_free(len)
            .unwrap_or_else(|| AlignedBytes::zeroed(len))
    }

    fn take_free(&self, len: usize) -> Option<AlignedBytes> {
        if len < Self::MIN_BYTES {
            return None;
        }
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |b: &Arc<AlignedBytes>| Arc::strong_count(b) == 1 && (**b).as_ref().len() == len;
        let at = buffers.iter().position(free)?;
        Arc::try_unwrap(buffers.swap_remove(at)).ok()
    }

    /// Remembers the buffer of a batch that is handed out.
    pub(super) fn lend(&self, tensor: &HostTensor) {
        if tensor.bytes().len() < Self::MIN_BYTES {
            return;
        }
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() == Self::MAX_BUFFERS {
            buffers.remove(0);
        }
        buffers.push(Arc::clone(tensor.shared_bytes().memory()));
    }
}
