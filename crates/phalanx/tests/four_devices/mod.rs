//! The CPU as four devices, shared by the tests of a binary.

use std::sync::OnceLock;

use phalanx::engine::{Engine, EngineOptions};

pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let options = EngineOptions {
            cpu_devices: 4,
            ..EngineOptions::default()
        };
        Engine::new(&options).unwrap()
    })
}
