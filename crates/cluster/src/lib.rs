//! Who the workers of a training are, what told them so, and how they find and watch each other.
//!
//! [`membership_from_env`] reads the variables that launchers and schedulers set (TF_CONFIG, torchrun's names, Slurm, Kubernetes,
//! MPI) and says which worker this process is and where the chief listens; [`explain`] says how it came to that. A [`ClusterSpec`]
//! is the list of tasks that TF_CONFIG carries.
//!
//! With that, a [`Coordinator`] joins the others: it learns where each listens for data, waits for them at barriers, agrees with them,
//! and hears of the first failure.
//!
//! Nothing here computes, and nothing but [`Variables::of_process`] looks at the process's own environment.

#![forbid(unsafe_code)]

mod address;
pub mod coordination;
mod env;
mod etcd_cluster;
pub mod launch;
mod listen;
mod membership;
mod spec;

pub use address::{Address, AddressError};
pub use coordination::{
    ClusterError, Coordinator, Failure, JoinRequest, Missing, Recovery, Roster, Timing,
};
pub use env::{
    EnvError, Explanation, Said, Variable, Variables, explain, may_have_password,
    membership_from_env,
};
pub use env::{host_list, tf_config};
pub use etcd_cluster::{EtcdCluster, EtcdTls, EtcdUser};
pub use listen::own_host;
pub use membership::{LocalRank, Membership, OutsideCoordinator, Rendezvous, Source};
pub use spec::{ClusterSpec, Task, TaskKind};
