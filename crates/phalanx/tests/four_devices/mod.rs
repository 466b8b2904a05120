//! The CPU as four devices, shared by the tests of a binary.

use std::sync::OnceLock;

use phalanx::engine::{Engine, EngineOptions};

#[allow(dead_code, reason = "a binary has such models or not")]
pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| made(phalanx_testkit::is_quick_commit(env!("CARGO_CRATE_NAME"))))
}

/// The same compiled with the compiler's last care.
#[allow(dead_code, reason = "a binary has such models or not")]
pub(crate) fn careful_engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| made(false))
}

/// The same compiled without, for models that compile long and run for a moment.
#[allow(dead_code, reason = "a binary has such models or not")]
pub(crate) fn quick_engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| made(true))
}

fn made(quick_compile: bool) -> Engine {
    let options = EngineOptions {
        cpu_devices: 4,
        quick_compile,
        ..EngineOptions::default()
    };
    Engine::new(&options).unwrap()
}
