//! How one program runs on several devices: which they are, which rows of a batch each gets, how their gradients
//! become one.

mod batch_partition;
mod choice;
mod devices;
mod exchange;
mod layout;
mod placement;
mod reduction;
#[cfg(test)]
mod reduction_tests;
mod regroup;
mod run_order;
mod wait_meter;
mod world;

pub use batch_partition::BatchPartition;
pub use choice::DeviceChoice;
pub(crate) use choice::MOST_CPU_DEVICES;
pub(crate) use devices::device_kind;
pub use devices::select_devices;
pub(crate) use layout::{Layout, MeshLayout, ParameterDevice, Stages};
pub(crate) use phalanx_cluster::Failure;
pub use placement::Placement;
pub use reduction::{CrossDeviceOps, Reduction, SparseGradients, WireFormat};
pub(crate) use regroup::{Link, Rendezvous, Session};
pub(crate) use run_order::RunOrder;
pub(crate) use wait_meter::WaitMeter;
pub(crate) use world::{SAME_PROGRAM, World, differs};
