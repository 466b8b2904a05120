//! The devices of tests that any device must pass.

use phalanx_graph::Platform;

/// The kind of devices that `PHALANX_TEST_PLATFORM` names, such as `cuda`; the CPU where it is not set. See `docs/gpus.md`.
///
/// # Panics
/// When it names no platform.
#[must_use]
pub fn test_platform() -> Platform {
    match std::env::var("PHALANX_TEST_PLATFORM") {
        Ok(name) => name
            .parse()
            .unwrap_or_else(|error| panic!("PHALANX_TEST_PLATFORM: {error}")),
        Err(_) => Platform::Cpu,
    }
}
