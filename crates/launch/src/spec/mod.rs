//! What a job asks for: AI Platform's `trainingInput` as it is, and our keys under `phalanx`.
//!
//! A [`Source`] is a tree of values that each know whether they come from a file, a flag or a request. [`Spec::read`] takes all of it
//! and collects every mistake; [`Plan::new`] says which tasks follow from it.

mod check;
mod fields;
mod hyperparameters;
mod machines;
mod name;
mod phalanx_keys;
mod plan;
mod pods;
mod read;
mod source;
mod units;

pub(crate) use hyperparameters::MOST_INTEGERS;
pub use hyperparameters::{Algorithm, Goal, Hyperparameters, Parameter, ParameterKind, Scale};
pub use machines::{Machine, machine, machine_names};
pub use name::{JobName, NameError};
pub(crate) use phalanx_keys::SCRIPT_PREFIX;
pub use phalanx_keys::{DESCRIBED, ExecutorKind, KubernetesKeys, Ours, SlurmKeys};
pub(crate) use plan::task_name;
pub use plan::{Plan, Program, Resources, TaskPlan};
pub use pods::Toleration;
pub use read::{Accelerator, Role, Scheduling, Spec};
pub use source::{Flag, Source};
