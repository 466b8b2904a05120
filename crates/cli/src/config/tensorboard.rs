//! `tensorboard` of `fit`.

use phalanx::fit::{TensorBoard, UpdateFreq};
use phalanx_yaml::{Node, Value};

use super::fit_table::TENSORBOARD;
use super::reader::{Reader, Section, boolean, text, whole};
use super::sections::as_usize;

impl Reader {
    /// What is written for TensorBoard, if anything.
    pub(super) fn tensorboard(&mut self, fit: &Section<'_>) -> Option<TensorBoard> {
        let node = fit.node("tensorboard")?;
        if !matches!(node.value, Value::Map(_)) {
            return self.value(fit, "tensorboard", |node| text(node).map(TensorBoard::from));
        }
        let section = self.section(node, "tensorboard", TENSORBOARD)?;
        let folder = self.value(&section, "folder", |node| text(node).map(TensorBoard::from));
        let freq = self.value(&section, "histogram_freq", whole).map(as_usize);
        let update = self.value(&section, "update_freq", update_freq);
        let mut is = |name, default| self.value(&section, name, boolean).unwrap_or(default);
        let flags = [
            is("write_graph", true),
            is("write_images", false),
            is("write_grads", false),
            is("write_steps_per_second", false),
            is("write_system", true),
        ];
        let profiled = self.value(&section, "profile_batch", profile_batch);
        let folder = match profiled {
            Some((first, last)) => folder?.profile_batch(first, last),
            None => folder?,
        };
        Some(
            folder
                .histogram_freq(freq.unwrap_or(0))
                .update_freq(update.unwrap_or_default())
                .write_graph(flags[0])
                .write_images(flags[1])
                .write_grads(flags[2])
                .write_steps_per_second(flags[3])
                .write_system(flags[4]),
        )
    }
}

/// The first and the last step.
fn profile_batch(node: &Node) -> Option<(usize, usize)> {
    let Value::List(steps) = &node.value else {
        let step = as_usize(whole(node)?);
        return Some((step, step));
    };
    let steps: Option<Vec<usize>> = steps.iter().map(|step| whole(step).map(as_usize)).collect();
    match steps?[..] {
        [first, last] if first <= last => Some((first, last)),
        _ => None,
    }
}

fn update_freq(node: &Node) -> Option<UpdateFreq> {
    match text(node) {
        Some("epoch") => Some(UpdateFreq::Epoch),
        Some("batch") => Some(UpdateFreq::Steps(1)),
        _ => whole(node).map(|steps| UpdateFreq::Steps(as_usize(steps))),
    }
}
