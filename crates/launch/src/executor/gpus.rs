//! The GPUs of this machine that a job may use, and what each of its tasks sees of them.

use phalanx_cluster::launch::{VISIBLE_GPUS, visible_gpus};
use serde::{Deserialize, Serialize};

use super::Run;
use super::variables::Variables;
use crate::spec::Spec;

/// The variable that says what the numbers in CUDA_VISIBLE_DEVICES count.
const ORDER: &str = "CUDA_DEVICE_ORDER";

/// GPUs of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// Their names, as CUDA_VISIBLE_DEVICES has them.
    pub names: Vec<String>,
    /// What numbers among the names count, as CUDA_DEVICE_ORDER has it.
    pub order: String,
    /// Whether the job has them for itself, to divide among its tasks. Else they are what other jobs have left, and all tasks see all.
    pub are_own: bool,
}

impl Gpus {
    /// The GPUs that jobs of this machine may be given: those that are `given`, those that CUDA_VISIBLE_DEVICES of this process names, or all.
    /// `None` where nothing names any and NVIDIA's driver has none.
    #[must_use]
    pub fn of_machine(given: Option<&str>) -> Option<Self> {
        let variable = std::env::var(VISIBLE_GPUS).ok();
        let is_of_cuda = given.is_none() && variable.is_some();
        let list = given.or(variable.as_deref());
        let names = visible_gpus(list);
        // Without a word of it CUDA counts the fastest first, and all others by their places.
        let order = match is_of_cuda {
            true => "FASTEST_FIRST",
            false => "PCI_BUS_ID",
        };
        let order = std::env::var(ORDER).unwrap_or_else(|_| order.to_owned());
        (list.is_some() || !names.is_empty()).then_some(Self {
            names,
            order,
            are_own: false,
        })
    }

    /// What a task sees that is given nothing of its own: the GPUs that other jobs left, of those that the submission's variable names.
    fn left(&self, submitted: Option<&String>) -> Vec<String> {
        match submitted {
            None => self.names.clone(),
            Some(list) => {
                let is_left = |name: &String| self.names.contains(name);
                visible_gpus(Some(list))
                    .into_iter()
                    .filter(is_left)
                    .collect()
            }
        }
    }
}

/// What the tasks of a run see of the machine's GPUs.
#[derive(Debug, Default)]
pub(super) struct TaskGpus {
    /// By place in the plan; nothing where nothing is known of GPUs, or the job says itself what its tasks see.
    of_tasks: Vec<Vec<String>>,
    order: String,
    /// Whether tasks have GPUs, and no two see the same.
    pub(super) are_own: bool,
}

impl TaskGpus {
    /// Of a run whose job was submitted with these variables.
    ///
    /// # Errors
    /// There are fewer GPUs than tasks that ask for some.
    pub(super) fn of(run: &Run<'_>, submitted: &Variables) -> Result<Self, String> {
        let Some(gpus) = run.job.gpus() else {
            return Ok(Self::default());
        };
        let of_tasks = if gpus.are_own {
            divided(run, &gpus.names)?
        } else if says_itself(run.spec) {
            Vec::new()
        } else {
            vec![gpus.left(submitted.get(VISIBLE_GPUS)); run.plan.tasks.len()]
        };
        Ok(Self {
            of_tasks,
            order: gpus.order.clone(),
            are_own: gpus.are_own && !gpus.names.is_empty(),
        })
    }

    /// The GPUs of a task that are no other task's.
    pub(super) fn own(&self, at: usize) -> &[String] {
        let own = self.of_tasks.get(at).filter(|_| self.are_own);
        own.map_or(&[], Vec::as_slice)
    }

    /// The variables of a task by which it sees its GPUs.
    pub(super) fn variables(&self, at: usize) -> Variables {
        let own = self.of_tasks.get(at).into_iter();
        own.flat_map(|own| [(VISIBLE_GPUS, own.join(",")), (ORDER, self.order.clone())])
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// Whether a variable names GPUs by the numbers of this machine, which are others in a container that has some of them.
    pub(super) fn is_of_machine(&self, variable: &str) -> bool {
        !self.of_tasks.is_empty() && [VISIBLE_GPUS, ORDER].contains(&variable)
    }
}

/// Whether a job says itself what its tasks see.
fn says_itself(spec: &Spec) -> bool {
    spec.ours.env.contains_key(VISIBLE_GPUS)
}

/// The GPUs of each task, none of them another task's, nor one of another lane.
fn divided(run: &Run<'_>, names: &[String]) -> Result<Vec<Vec<String>>, String> {
    let (number, of) = run
        .args
        .lane
        .map_or((0, 1), |lane| (lane.number, lane.of.max(1)));
    let each = names.len() / of;
    let mut own = names.iter().skip(number * each).take(each).cloned();
    let counts = run.plan.gpus_of_tasks(each)?;
    Ok(counts
        .into_iter()
        .map(|count| own.by_ref().take(count).collect())
        .collect())
}
