//! Executables: compiled programs on their devices.

use std::sync::Arc;

use crate::buffer::{Buffer, known_type};
use crate::client::{Client, ClientInner};
use crate::element::ElementType;
use crate::error::{PjrtError, StatusCode};
use crate::event::Event;
use crate::plugin::slice;
use crate::sys::{self, Args};

/// A compiled program, loaded on its devices.
pub struct Executable {
    client: Arc<ClientInner>,
    loaded: *mut sys::LoadedExecutable,
    inner: *mut sys::Executable,
    outputs: Vec<Output>,
    devices: Vec<usize>,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// Type and shape of one output, per device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// Type of the elements.
    pub element: ElementType,
    /// The dimensions.
    pub dims: Vec<i64>,
}

/// Memory of a compiled program on one device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompiledMemory {
    /// Machine code (zero on CPU).
    pub code: i64,
    /// Arguments.
    pub arguments: i64,
    /// Outputs.
    pub outputs: i64,
    /// Outputs that reuse the memory of arguments.
    pub aliased: i64,
    /// Intermediate values.
    pub temporary: i64,
}

impl CompiledMemory {
    /// Bytes that one execution needs: arguments, outputs that are not arguments, and intermediate values.
    #[must_use]
    pub fn total(&self) -> i64 {
        self.arguments
            .saturating_add(self.outputs)
            .saturating_sub(self.aliased)
            .saturating_add(self.temporary)
    }
}

/// How a program is executed.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExecuteOptions<'a> {
    /// Tag that custom calls see as their run id (on CPU); 0 for one of the plugin's own, which no other
    /// execution of the process has. Custom calls through which executions meet need that.
    pub launch_id: i32,
    /// Arguments to keep although the program donates them; the plugin copies them where it must.
    pub non_donatable: &'a [i64],
    /// Whether the execution takes less than a millisecond and leaves a processor idle: who waits for it then keeps that awake for a while
    /// instead of sleeping at once.
    pub ends_soon: bool,
}

/// A started execution.
#[derive(Debug)]
#[non_exhaustive]
pub struct Execution {
    /// The outputs, per device in the order of [`Executable::devices`]; their contents may not be computed yet.
    pub outputs: Vec<Vec<Buffer>>,
    /// Completion, per device.
    pub done: Vec<Event>,
}

impl Executable {
    /// # Safety
    /// `loaded` is a live executable of this client that nobody else destroys.
    pub(crate) unsafe fn from_raw(
        client: &Client,
        loaded: *mut sys::LoadedExecutable,
    ) -> Result<Self, PjrtError> {
        let client = Arc::clone(&client.0);
        let mut this = Self {
            client,
            loaded,
            inner: std::ptr::null_mut(),
            outputs: Vec::new(),
            devices: Vec::new(),
        };
        let mut get = sys::LoadedGetExecutable {
            loaded,
            ..Args::empty()
        };
        // SAFETY: the executable is live.
        unsafe { this.client.api.call(&mut get)? };
        this.inner = get.executable;
        this.outputs = this.read_outputs()?;
        this.devices = this.read_devices()?;
        Ok(this)
    }

    /// Types and shapes of the outputs, per device.
    #[must_use]
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Indices into [`Client::devices`] in the order in which arguments and outputs are listed.
    #[must_use]
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// Starts the program with one list of arguments per device of [`Executable::devices`] and returns before it is done.
    ///
    /// Arguments that the module marks with `tf.aliasing_output` or `jax.buffer_donor` are donated: their buffers are dead afterwards
    /// and must only be dropped, unless [`ExecuteOptions::non_donatable`] lists them. On CPU the call blocks while 32 executions of the
    /// device are in flight.
    ///
    /// # Errors
    /// The number of devices or arguments is wrong, a buffer belongs to another client or was donated, or the plugin's own.
    /// A failure of the computation itself is reported by the events and by reading the outputs.
    pub fn execute(
        &self,
        arguments: &[&[&Buffer]],
        options: &ExecuteOptions<'_>,
    ) -> Result<Execution, PjrtError> {
        let inputs = self.check_arguments(arguments)?;
        let (devices, count, each) = (
            self.devices.len(),
            inputs.len() / self.devices.len(),
            self.outputs.len(),
        );
        let mut outputs: Vec<*mut sys::Buffer> = vec![std::ptr::null_mut(); devices * each];
        let mut events: Vec<*mut sys::Event> = vec![std::ptr::null_mut(); devices];
        // `wrapping_add` because an empty vector has no element to point at.
        let input_lists: Vec<*const *mut sys::Buffer> = (0..devices)
            .map(|device| inputs.as_ptr().wrapping_add(device * count))
            .collect();
        let output_lists: Vec<*mut *mut sys::Buffer> = (0..devices)
            .map(|device| outputs.as_mut_ptr().wrapping_add(device * each))
            .collect();
        let mut c_options = c_options(options);
        let mut args = sys::LoadedExecute {
            executable: self.loaded,
            options: &raw mut c_options,
            argument_lists: input_lists.as_ptr(),
            num_devices: devices,
            num_args: count,
            output_lists: output_lists.as_ptr(),
            complete_events: events.as_mut_ptr(),
            ..Args::empty()
        };
        // SAFETY: the lists have the sizes given and live over the call; all buffers are live and of this client; results are ours.
        unsafe {
            self.client.api.call(&mut args).map_err(explain_donated)?;
            let done = events
                .into_iter()
                .map(|raw| {
                    Event::from_raw(Arc::clone(&self.client), raw).ending_soon(options.ends_soon)
                })
                .collect();
            let mut outputs = outputs.into_iter().map(|raw| Buffer {
                client: Arc::clone(&self.client),
                raw,
                ends_soon: options.ends_soon,
            });
            let outputs = (0..devices)
                .map(|_| outputs.by_ref().take(each).collect())
                .collect();
            Ok(Execution { outputs, done })
        }
    }

    /// The program in the plugin's own format, for [`Client::deserialize`] by the same plugin on a machine with the same CPU features.
    ///
    /// Never call it on a program that was compiled with oneDNN overrides on CPU: XLA ends the process for some of them.
    ///
    /// # Errors
    /// `Unimplemented` for programs that cannot be serialised, or the plugin's own.
    pub fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        let mut args = sys::ExecutableSerialize {
            executable: self.inner,
            ..Args::empty()
        };
        // SAFETY: the executable is live; the bytes live until the deleter runs.
        unsafe {
            self.client.api.call(&mut args)?;
            let bytes = slice(args.bytes.cast::<u8>(), args.bytes_size).to_vec();
            if let Some(deleter) = args.deleter {
                deleter(args.handle);
            }
            Ok(bytes)
        }
    }

    /// A text that identifies the compiled program, in the plugin's format.
    ///
    /// # Errors
    /// The plugin's own, `Unimplemented` among them.
    pub fn fingerprint(&self) -> Result<Vec<u8>, PjrtError> {
        let mut args = sys::ExecutableFingerprint {
            executable: self.inner,
            ..Args::empty()
        };
        // SAFETY: the executable is live, and the text lives as long as it does.
        unsafe {
            self.client.api.call(&mut args)?;
            Ok(slice(args.fingerprint.cast::<u8>(), args.fingerprint_size).to_vec())
        }
    }

    /// Memory that the program needs on one device.
    ///
    /// # Errors
    /// The plugin's own.
    pub fn memory_stats(&self) -> Result<CompiledMemory, PjrtError> {
        let mut args = sys::ExecutableMemoryStats {
            executable: self.inner,
            ..Args::empty()
        };
        // SAFETY: the executable is live.
        unsafe { self.client.api.call(&mut args)? };
        let sys::ExecutableMemoryStats {
            code,
            arguments,
            outputs,
            aliased,
            temporary,
            ..
        } = args;
        Ok(CompiledMemory {
            code,
            arguments,
            outputs,
            aliased,
            temporary,
        })
    }

    /// The C handles of all arguments, device by device.
    fn check_arguments(
        &self,
        arguments: &[&[&Buffer]],
    ) -> Result<Vec<*mut sys::Buffer>, PjrtError> {
        let invalid = |message: String| Err(PjrtError::invalid(sys::LoadedExecute::CALL, message));
        if arguments.len() != self.devices.len() {
            return invalid(format!(
                "the program runs on {} devices, got arguments for {}",
                self.devices.len(),
                arguments.len()
            ));
        }
        let count = arguments[0].len();
        let mut inputs = Vec::with_capacity(count * arguments.len());
        for (device, list) in arguments.iter().enumerate() {
            if list.len() != count {
                return invalid(format!(
                    "device 0 has {count} arguments, device {device} has {}",
                    list.len()
                ));
            }
            if let Some(index) = list
                .iter()
                .position(|buffer| !Arc::ptr_eq(&buffer.client, &self.client))
            {
                return invalid(format!(
                    "argument {index} for device {device} is a buffer of another client"
                ));
            }
            inputs.extend(list.iter().map(|buffer| buffer.raw));
        }
        Ok(inputs)
    }

    fn read_outputs(&self) -> Result<Vec<Output>, PjrtError> {
        let executable = self.inner;
        let mut number = sys::ExecutableNumOutputs {
            executable,
            ..Args::empty()
        };
        let mut types = sys::ExecutableOutputElementTypes {
            executable,
            ..Args::empty()
        };
        let mut shapes = sys::ExecutableOutputDimensions {
            executable,
            ..Args::empty()
        };
        // SAFETY: the executable is live, and so are the lists it returns; `dims` holds the dimensions of all outputs one after another.
        unsafe {
            self.client.api.call(&mut number)?;
            self.client.api.call(&mut types)?;
            self.client.api.call(&mut shapes)?;
            let types = slice(types.output_types, types.num_output_types);
            let ranks = slice(shapes.dim_sizes, shapes.num_outputs);
            let mut dims = slice(shapes.dims, ranks.iter().sum());
            if types.len() != number.num_outputs || ranks.len() != number.num_outputs {
                let message = format!(
                    "the program has {} outputs, {} types and {} shapes",
                    number.num_outputs,
                    types.len(),
                    ranks.len()
                );
                return Err(PjrtError::new(
                    sys::ExecutableNumOutputs::CALL,
                    StatusCode::Internal,
                    message,
                ));
            }
            types
                .iter()
                .zip(ranks)
                .map(|(element, rank)| {
                    let (these, rest) = dims.split_at(*rank);
                    dims = rest;
                    Ok(Output {
                        element: known_type(*element, sys::ExecutableOutputElementTypes::CALL)?,
                        dims: these.to_vec(),
                    })
                })
                .collect()
        }
    }

    fn read_devices(&self) -> Result<Vec<usize>, PjrtError> {
        let mut args = sys::LoadedAddressableDevices {
            executable: self.loaded,
            ..Args::empty()
        };
        // SAFETY: the executable is live, and so is the list it returns.
        let devices = unsafe {
            self.client.api.call(&mut args)?;
            slice(args.devices, args.num_devices)
        };
        let unknown = || {
            PjrtError::new(
                sys::LoadedAddressableDevices::CALL,
                StatusCode::Internal,
                "the program runs on a device that the client does not list",
            )
        };
        if devices.is_empty() {
            return Err(PjrtError::invalid(
                sys::LoadedAddressableDevices::CALL,
                "the program runs on no device of this process",
            ));
        }
        devices
            .iter()
            .map(|raw| self.client.device_index(*raw).ok_or_else(unknown))
            .collect()
    }
}

impl Client {
    /// Loads a program that [`Executable::serialize`] wrote. The custom calls it uses must be registered before.
    ///
    /// # Errors
    /// The plugin's own: damaged bytes, another version of the plugin, missing CPU features.
    ///
    /// # Safety
    /// The bytes are those that [`Executable::serialize`] gave, or are none at all: they hold machine code, which the plugin runs as
    /// it is.
    pub unsafe fn deserialize(&self, bytes: &[u8]) -> Result<Executable, PjrtError> {
        let mut args = sys::DeserializeAndLoad {
            client: self.0.raw,
            bytes: bytes.as_ptr().cast(),
            bytes_size: bytes.len(),
            ..Args::empty()
        };
        // SAFETY: the bytes live over the call; the executable is ours.
        unsafe {
            self.0.api.call(&mut args)?;
            Executable::from_raw(self, args.loaded)
        }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: we own both handles; the plugin keeps what running executions need.
        unsafe {
            if !self.inner.is_null() {
                self.client.api.destroy(sys::ExecutableDestroy {
                    executable: self.inner,
                    ..Args::empty()
                });
            }
            self.client.api.destroy(sys::LoadedDestroy {
                executable: self.loaded,
                ..Args::empty()
            });
        }
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executable")
            .field("outputs", &self.outputs)
            .field("devices", &self.devices)
            .finish()
    }
}

fn c_options(options: &ExecuteOptions<'_>) -> sys::ExecuteOptions {
    // SAFETY: integers, raw pointers and a bool, all valid as zero.
    let zero: sys::ExecuteOptions = unsafe { std::mem::zeroed() };
    sys::ExecuteOptions {
        struct_size: size_of::<sys::ExecuteOptions>(),
        launch_id: options.launch_id,
        non_donatable: options.non_donatable.as_ptr(),
        num_non_donatable: options.non_donatable.len(),
        ..zero
    }
}

/// Adds what to do to the plugin's error about a buffer that is gone.
fn explain_donated(mut error: PjrtError) -> PjrtError {
    if error.message.contains("deleted or donated") {
        error.message.push_str("; an argument was deleted, or donated to an earlier execution: pass the output that replaced it");
    }
    error
}
