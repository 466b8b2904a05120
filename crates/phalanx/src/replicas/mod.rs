//! How one program runs on several devices: which they are, which rows of a batch each gets, how their gradients
//! become one.

mod choice;
mod devices;
mod division;
mod placement;
mod reduction;
#[cfg(test)]
mod reduction_tests;
mod split;
mod stages;

pub use choice::DeviceChoice;
pub(crate) use choice::MOST_CPU_DEVICES;
pub(crate) use devices::device_kind;
pub use devices::select_devices;
pub(crate) use division::Division;
pub use placement::Placement;
pub use reduction::{CrossDeviceOps, Reduction, SparseGradients, WireFormat};
pub use split::Split;
pub(crate) use stages::Stages;
