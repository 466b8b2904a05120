//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a thread that panicked while it held the lock has left nothing half done that we rely on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
