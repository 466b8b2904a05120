//! What a function sends to parameter servers in the place of an update of its own.

use std::panic::Location;

use phalanx_graph::{HostTensor, Shape, Tensor};

use super::ReplicaCx;
use crate::servers::Pushed;
use crate::strategy::state::OptimizerRef;

/// The gradients that servers are to apply, by entries, and where the function says so.
pub(super) struct AppliedGradients {
    of: Vec<(usize, Tensor)>,
    from: &'static Location<'static>,
}

/// What a function sends: gradients of some entries, then the changes of others, which layers made.
pub(in crate::strategy) struct Sending {
    pub(in crate::strategy) entries: Vec<usize>,
    pub(in crate::strategy) tensors: Vec<Tensor>,
    gradients: usize,
}

/// The same without its tensors, by the positions of the servers.
pub(in crate::strategy) struct SentShapes {
    connected: Vec<usize>,
    changed: Vec<usize>,
    pub(in crate::strategy) shapes: Vec<Shape>,
}

impl SentShapes {
    /// A push of values of these shapes.
    pub(in crate::strategy) fn pushed<'a>(&'a self, tensors: &'a [HostTensor]) -> Pushed<'a> {
        Pushed {
            connected: &self.connected,
            changed: &self.changed,
            tensors,
            named: &[],
            takes_turns: true,
        }
    }
}

impl ReplicaCx<'_> {
    /// Leaves an update to the servers.
    #[track_caller]
    pub(super) fn send(&mut self, optimizer: &OptimizerRef, gradients: &[Option<Tensor>]) {
        if self.sent.is_some() {
            return self.graph.fail(
                "apply",
                "a function applies gradients once where variables are on parameter servers; make the second update in another function".into(),
            );
        }
        let mut of = Vec::with_capacity(gradients.len());
        for ((spec, entry), gradient) in optimizer.params.iter().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            let gradient = gradient.convert(spec.shape.dtype);
            if gradient.shape() != spec.shape {
                let (name, expected, got) = (&spec.name, &spec.shape, gradient.shape());
                let message = format!("the gradient of `{name}` is {got}, expected {expected}");
                return self.graph.fail("apply", message);
            }
            of.push((*entry, gradient));
        }
        let from = Location::caller();
        self.sent = Some(AppliedGradients { of, from });
    }

    /// Refuses to read what servers will have changed: it would be the value before.
    #[track_caller]
    pub(super) fn check_not_sent(&self, entry: usize) {
        if self.sent.is_some() && self.state.shared_position(entry).is_some() {
            let name = &self.state.entries[entry].name;
            self.graph.fail(
                "state",
                format!("`{name}` is read after `apply`, and parameter servers update it when the function has ended; read it before, or in another function"),
            );
        }
    }

    /// What the function sends, where it applies gradients, and takes that out of what it sets.
    #[track_caller]
    pub(in crate::strategy) fn sending(&self, set: &mut Vec<(usize, Tensor)>) -> Option<Sending> {
        let is_shared = |(entry, _): &(usize, Tensor)| self.state.shared_position(*entry).is_some();
        let (shared, own): (Vec<_>, Vec<_>) = std::mem::take(set).into_iter().partition(is_shared);
        *set = own;
        for (entry, _) in &shared {
            let name = &self.state.entries[*entry].name;
            if self.state.is_trained_on_servers(*entry) {
                self.graph.fail("state", format!(
                    "`{name}` is set by the function, and parameter servers update it by the optimizer; freeze its layer, or give gradients to `apply`"
                ));
            }
            if self.sent.is_none() {
                self.graph.fail("state", format!(
                    "`{name}` changes in a function that applies no gradients, and parameter servers take changes with gradients alone; `call` the model rather than `train` it, or `apply` gradients"
                ));
            }
        }
        let gradients = &self.sent.as_ref()?.of;
        let changes = shared.iter().map(|(entry, value)| {
            let change = match value.dtype() {
                // Servers add what workers have added, and take the largest of numbers that count.
                dtype if dtype.is_float() => value - &self.originals[entry],
                _ => value.clone(),
            };
            (*entry, change)
        });
        let all = gradients.iter().cloned().chain(changes);
        let (entries, tensors) = all.unzip();
        Some(Sending {
            entries,
            tensors,
            gradients: gradients.len(),
        })
    }

    /// What is sent, by the positions of the servers.
    pub(in crate::strategy) fn sent_shapes(&self, sending: &Sending) -> SentShapes {
        let entries = sending.entries.iter();
        let positions = entries.filter_map(|&entry| self.state.shared_position(entry));
        let mut connected: Vec<usize> = positions.collect();
        let changed = connected.split_off(sending.gradients);
        SentShapes {
            connected,
            changed,
            shapes: sending.tensors.iter().map(Tensor::shape).collect(),
        }
    }

    /// Where the function sets an entry or gives its gradient.
    pub(in crate::strategy) fn place_of(&self, entry: usize) -> &'static Location<'static> {
        let set = self.set.get(&entry).copied();
        let sent = self.sent.as_ref().map(|sent| sent.from);
        set.or(sent).unwrap_or_else(|| Location::caller())
    }
}
