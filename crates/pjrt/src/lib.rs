//! PJRT plugins from Rust: loading, devices, buffers, compilation, execution.
//!
//! A plugin is a shared library with a compiler and a runtime for one kind of device behind a C interface. This crate and phalanx-kernels
//! and phalanx-collectives are the only ones of the workspace with `unsafe` code; what it exports is safe to call, `Send` and `Sync`, and needs no
//! order of dropping, but for [`Client::deserialize`], which runs what it is given. Plugins are trusted: they are machine code.
//!
//! ```no_run
//! use std::time::Duration;
//! use phalanx_pjrt::{Client, CompileOptions, ElementType, ExecuteOptions, Plugin, bytes_of, elements_of};
//!
//! let plugin = Plugin::load("/path/to/pjrt_c_api_cpu_plugin.so")?;
//! let client = Client::new(&plugin, &[])?;
//! let twice = client.compile(
//!     "func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
//!        %y = stablehlo.add %x, %x : tensor<2xf32>
//!        return %y : tensor<2xf32>
//!      }",
//!     &CompileOptions::default(),
//! )?;
//! let x = client.buffer(0, ElementType::F32, &[2], bytes_of(&[1.0f32, 2.0]))?;
//! let run = twice.execute(&[&[&x]], &ExecuteOptions::default())?;
//! let y = run.outputs[0][0].to_host(Duration::from_secs(10))?;
//! assert_eq!(elements_of::<f32>(&y), [2.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffer;
mod cache;

mod client;
mod compile;
mod cuda;
mod custom_call;
mod custom_call_copies;
mod custom_call_frame;
mod element;
mod environment;
mod error;
mod event;
mod executable;
mod host_memory;
mod install;
mod key_values;
#[cfg(all(target_os = "linux", target_env = "gnu", feature = "allocator"))]
mod large_blocks;
mod look;
mod nvml;
#[cfg(exported_operators)]
mod operators;
mod pinned_wheel;
mod plugin;
mod plugin_search;
mod sys;
mod sys_ffi;
#[cfg(test)]
mod testing;
mod trust;

pub use buffer::{Buffer, SharedBytes, ZERO_COPY_ALIGNMENT};
pub use cache::{CacheOutcome, CompileCache};
pub use client::{Client, Device, MemoryStats, OptionValue};
pub use compile::{CompileOptions, OverrideValue};
pub use custom_call_frame::{CustomCallAttribute, CustomCallError, CustomCallFrame};
pub use element::{Bf16, Element, ElementType, bytes_of, elements_of};
pub use environment::{limit_xla_threads, set_variable_while_alone, xla_threads};
pub use error::{LoadError, PjrtError, StatusCode};
pub use event::Event;
pub use executable::{CompiledMemory, Executable, ExecuteOptions, Execution, Output};
pub use host_memory::keep_freed_memory;
pub use install::{InstallError, Installer};
pub use key_values::{ClientGroup, KeyValueError, KeyValues};
pub use nvml::{GpuUse, NvidiaGpus};
pub use phalanx_platform::{Platform, UnknownPlatform};
pub use pinned_wheel::{CPU_PLUGIN, PinnedWheel};
pub use plugin::{Attribute, Plugin};
pub use plugin_search::{
    EXPLICIT, FoundPlugin, PluginNotFound, PluginSearch, first_named, idle_gpus,
};
pub use trust::{Untrusted, check_folder, check_library};
