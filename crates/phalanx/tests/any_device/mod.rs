//! Options of an engine on the devices of `PHALANX_TEST_PLATFORM`, on the CPU where that is not set.

use phalanx::engine::{EngineOptions, GpuOptions};
use phalanx_pjrt::Platform;
use phalanx_testkit::test_platform;

/// With products of all digits, as the oracles have them, and memory as it is needed: several test binaries may run at once.
pub(crate) fn options() -> EngineOptions {
    let platform = test_platform();
    let grows = matches!(platform, Platform::Cuda | Platform::Rocm).then_some(false);
    EngineOptions {
        platform,
        gpu: GpuOptions {
            preallocate: grows,
            ..GpuOptions::default()
        },
        tensor_float_32: false,
        quick_compile: phalanx_testkit::is_quick_commit(env!("CARGO_CRATE_NAME")),
        ..EngineOptions::default()
    }
}
