//! The callbacks of a `fit`, and their states by name.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{
    Callback, CallbackContext, CallbackState, CallbackStates, HookPlace, SharedCallback, Training,
    Wishes,
};
use crate::checkpoint::TrainingState;
use crate::{Error, Result};

/// The callbacks of a `fit`, in their order. Copies share them.
#[derive(Clone, Default)]
pub(in crate::fit) struct Callbacks(Vec<SharedCallback>);

impl Callbacks {
    pub(in crate::fit) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(in crate::fit) fn push(&mut self, callback: impl IntoCallback) {
        self.0.push(callback.into_shared());
    }

    /// The checkpoint that a callback goes on from, if it is there.
    pub(in crate::fit) fn backup(&self) -> Result<Option<PathBuf>> {
        for path in self.backups() {
            if TrainingState::is_at(&path)? {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn backups(&self) -> Vec<PathBuf> {
        let paths = self.0.iter().filter_map(|callback| {
            let callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
            callback.backup().map(Path::to_path_buf)
        });
        paths.collect()
    }

    /// Everything from which the training can go on: the checkpoints that callbacks replace, and their backups.
    pub(in crate::fit) fn places_to_go_on_from(&self) -> Vec<PathBuf> {
        [self.checkpoints(), self.backups()].concat()
    }

    /// Refuses a callback that would write where older checkpoints of another are.
    pub(in crate::fit) fn check_names(&self) -> Result<()> {
        for place in self.places_to_go_on_from() {
            for callback in &self.0 {
                let callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
                if callback.takes_names_of_older(&place) {
                    let (kind, place) = (callback.kind(), place.display());
                    return Err(Error::user(format!(
                        "{kind} would write to paths such as `{place}.1`, which are of the checkpoints before `{place}`: each would replace and remove the other's; give {kind} another path"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The checkpoints that callbacks replace.
    pub(in crate::fit) fn checkpoints(&self) -> Vec<PathBuf> {
        let paths = self.0.iter().filter_map(|callback| {
            let callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
            callback.checkpoint().map(Path::to_path_buf)
        });
        paths.collect()
    }

    /// The same with others before and after them.
    pub(in crate::fit) fn between(
        &self,
        before: Vec<SharedCallback>,
        after: Vec<SharedCallback>,
    ) -> Self {
        let own = self.0.iter().map(Arc::clone);
        Self(before.into_iter().chain(own).chain(after).collect())
    }

    /// Whether one of a kind is there.
    pub(in crate::fit) fn has(&self, kind: &str) -> bool {
        self.names().iter().any(|name| name == kind)
    }

    pub(in crate::fit) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// After how many batches, 1 or more, one of them has something to do.
    pub(in crate::fit) fn batches_until_due(&self) -> Option<usize> {
        let due = self.0.iter().filter_map(|callback| {
            let callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
            callback.batches_until_due()
        });
        due.min().map(|batches| batches.max(1))
    }

    /// Calls a hook of each; `states` are from the checkpoint that training goes on from.
    pub(in crate::fit) fn each(
        &self,
        training: &mut dyn Training,
        (place, wishes, states): (HookPlace, &mut Wishes, &CallbackStates),
        mut hook: impl FnMut(&mut dyn Callback, &mut CallbackContext<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        // Names are needed to find what was restored alone.
        let names = match states.is_empty() {
            true => Vec::new(),
            false => self.names(),
        };
        for (number, callback) in self.0.iter().enumerate() {
            let name = names.get(number);
            let restored = states.iter().find(|(other, _)| Some(other) == name);
            let mut callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
            let mut cx = CallbackContext {
                training: &mut *training,
                place,
                wishes: &mut *wishes,
                restored: restored.map(|(name, state)| (&**name, state)),
            };
            hook(&mut *callback, &mut cx)?;
        }
        Ok(())
    }

    /// What a checkpoint keeps of each that has a state.
    pub(in crate::fit) fn states(&self) -> CallbackStates {
        let callbacks = self.0.iter().zip(self.names());
        let states = callbacks.map(|(callback, name)| {
            let callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
            (name, callback.state())
        });
        states
            .filter(|(_, state)| *state != CallbackState::default())
            .collect()
    }

    /// The name of each in checkpoints: its kind, and from the second of a kind on its number, as in `early_stopping_2`.
    pub(in crate::fit) fn names(&self) -> Vec<String> {
        let mut kinds: Vec<&'static str> = Vec::with_capacity(self.0.len());
        let kind = |callback: &SharedCallback| {
            callback
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .kind()
        };
        let names = self.0.iter().map(|callback| {
            let kind = kind(callback);
            kinds.push(kind);
            match kinds.iter().filter(|other| **other == kind).count() {
                1 => kind.to_owned(),
                number => format!("{kind}_{number}"),
            }
        });
        names.collect()
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// A callback, or one that the program keeps a handle to, to look at it after the training.
pub trait IntoCallback {
    /// What a `fit` and the program share.
    fn into_shared(self) -> SharedCallback;
}

impl<C: Callback + 'static> IntoCallback for C {
    fn into_shared(self) -> SharedCallback {
        Arc::new(Mutex::new(self))
    }
}

impl IntoCallback for SharedCallback {
    fn into_shared(self) -> SharedCallback {
        self
    }
}

impl<C: Callback + 'static> IntoCallback for Arc<Mutex<C>> {
    fn into_shared(self) -> SharedCallback {
        self
    }
}
