//! Where a model is trained: which devices, and later which machines.

mod one_device;

pub use one_device::OneDeviceStrategy;
