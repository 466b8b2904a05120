//! Custom calls: Rust functions that compiled programs call.
//!
//! XLA's handlers are C functions without a user pointer. So each registered Rust handler gets one of a fixed number of C functions
//! (trampolines), which differ only in the slot of a global table that they call. XLA's own registry is global too, and neither ever
//! removes a handler.

use std::any::Any;
use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::client::Client;
use crate::compile::CompileOptions;
use crate::cuda::CudaDriver;
use crate::custom_call_frame::{CallMemory, CustomCallError, CustomCallFrame, function};
use crate::error::{PjrtError, StatusCode};
use crate::sys;
use crate::sys_ffi::{self as ffi, CallFrame};

const REGISTER: &str = "PJRT_FFI_Register_Handler";

impl Client {
    /// Makes a Rust function callable from programs of this client's plugin as `stablehlo.custom_call @name` with `api_version = 4`.
    ///
    /// The handler runs on threads of the plugin, several at the same time if there are several devices; while it blocks, so does the
    /// device. A panic in it becomes an error of the execution. The plugin does not report whether it accepted a handler, so this compiles
    /// a program of one operation to find out. Handlers stay registered until the process ends; there are at most 64.
    ///
    /// On GPUs operands and results are in their memory, where the host neither reads nor writes: a handler copies them
    /// ([`CustomCallFrame::copy_operands`], [`CustomCallFrame::copy_to_results`]), and what else takes them is an error. Only NVIDIA's are known.
    ///
    /// # Errors
    /// The name is not an identifier, it is registered already (`AlreadyExists`), no slot is left, or the plugin has no custom calls
    /// or does not take this one; the plugin is not asked twice for one name. The platform is neither the CPU nor CUDA, or its driver cannot be
    /// opened.
    pub fn register_custom_call(
        &self,
        name: &str,
        handler: impl Fn(&mut CustomCallFrame<'_>) -> Result<(), CustomCallError>
        + Send
        + Sync
        + 'static,
    ) -> Result<(), PjrtError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(PjrtError::invalid(
                REGISTER,
                format!(
                    "a custom call's name is made of letters, digits, `_` and `.`, got `{name}`"
                ),
            ));
        }
        let registered = Registered {
            plugin: self.0.api.address(),
            name: name.into(),
            handler: Box::new(handler),
            memory: self.call_memory()?,
            refused: OnceLock::new(),
        };
        take_slot(registered, |handler| {
            self.register_handler(name, handler)?;
            self.check_registered(name)
        })
    }

    /// Where operands and results are.
    fn call_memory(&self) -> Result<CallMemory, PjrtError> {
        let refused = |why| PjrtError::new(REGISTER, StatusCode::Unimplemented, why);
        match self.platform() {
            "cpu" => Ok(CallMemory::Host),
            "cuda" => CudaDriver::of_system()
                .map(CallMemory::Cuda)
                .map_err(refused),
            other => Err(refused(format!(
                "custom calls run on the CPU and on CUDA, and these devices are of the platform `{other}`"
            ))),
        }
    }

    fn register_handler(&self, name: &str, handler: ffi::Handler) -> Result<(), PjrtError> {
        let unsupported = || {
            PjrtError::new(
                REGISTER,
                StatusCode::Unimplemented,
                "this plugin has no custom calls (no ffi extension)",
            )
        };
        let register = self
            .0
            .api
            .ffi()
            .and_then(|extension| extension.register_handler)
            .ok_or_else(unsupported)?;
        let platform = match self.platform() {
            "cpu" => "Host".to_owned(),
            other => other.to_uppercase(),
        };
        let mut args = sys::FfiRegisterHandler {
            struct_size: std::mem::offset_of!(sys::FfiRegisterHandler, traits) + size_of::<c_int>(),
            target_name: name.as_ptr().cast(),
            target_name_size: name.len(),
            handler: handler as *mut c_void,
            platform_name: platform.as_ptr().cast(),
            platform_name_size: platform.len(),
            traits: 0,
        };
        // SAFETY: the names live over the call and the handler for ever; a returned error is ours.
        unsafe {
            let error = register(&raw mut args);
            if error.is_null() {
                Ok(())
            } else {
                Err(self.0.api.take_error(error, REGISTER))
            }
        }
    }

    /// Compiles one call of the handler: the plugin reports a refused registration only here.
    fn check_registered(&self, name: &str) -> Result<(), PjrtError> {
        let code = format!(
            "func.func public @main() -> tensor<f32> {{
               %0 = stablehlo.custom_call @{name}() {{api_version = 4 : i32, has_side_effect = true}} : () -> tensor<f32>
               return %0 : tensor<f32>
             }}"
        );
        self.compile(&code, &CompileOptions::default()).map(drop).map_err(|error| {
            let message = format!("the plugin did not take the custom call `{name}`: {}; its version of xla's ffi may not be one of 0.1 to 0.{}", error.message, ffi::MAX_MINOR);
            PjrtError::new(REGISTER, error.code, message)
        })
    }
}

type CustomCallHandler =
    Box<dyn Fn(&mut CustomCallFrame<'_>) -> Result<(), CustomCallError> + Send + Sync>;

struct Registered {
    plugin: usize,
    name: String,
    handler: CustomCallHandler,
    memory: CallMemory,
    /// Why the plugin did not take it.
    refused: OnceLock<PjrtError>,
}

const SLOTS: usize = 64;
static TABLE: [OnceLock<Registered>; SLOTS] = [const { OnceLock::new() }; SLOTS];

macro_rules! trampolines {
    ($($slot:literal)*) => { [$(trampoline::<$slot>),*] };
}
static TRAMPOLINES: [ffi::Handler; SLOTS] = trampolines!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);

/// Puts a handler into a free slot of the table and tells the plugin, once: whoever asks again hears what the plugin said.
fn take_slot(
    registered: Registered,
    tell_plugin: impl FnOnce(ffi::Handler) -> Result<(), PjrtError>,
) -> Result<(), PjrtError> {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let of_name =
        |entry: &&Registered| (entry.plugin, &entry.name) == (registered.plugin, &registered.name);
    if let Some(entry) = TABLE.iter().filter_map(OnceLock::get).find(of_name) {
        let exists = || {
            let message = format!(
                "the custom call `{}` is registered already",
                registered.name
            );
            PjrtError::new(REGISTER, StatusCode::AlreadyExists, message)
        };
        return Err(entry.refused.get().cloned().unwrap_or_else(exists));
    }
    let free = TABLE.iter().position(|entry| entry.get().is_none());
    let slot = free.ok_or_else(|| {
        PjrtError::new(
            REGISTER,
            StatusCode::ResourceExhausted,
            format!("all {SLOTS} slots for custom calls are used"),
        )
    })?;
    let entry = TABLE[slot].get_or_init(|| registered);
    tell_plugin(TRAMPOLINES[slot]).inspect_err(|error| {
        entry.refused.get_or_init(|| error.clone());
    })
}

/// The C function of a slot.
unsafe extern "C" fn trampoline<const SLOT: usize>(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: XLA passes a frame that lives during the call.
    let frame = unsafe { &*frame };
    // SAFETY: the extension list of a frame is null or starts with a live extension.
    if let Some(extension) = unsafe { frame.extension_start.as_ref() }
        && extension.kind == ffi::EXTENSION_METADATA
    {
        // SAFETY: this kind of extension holds the metadata to fill.
        unsafe { answer_metadata(frame.api, extension.metadata) };
        return std::ptr::null_mut();
    }
    let Some(registered) = TABLE[SLOT]
        .get()
        .filter(|_| frame.stage == ffi::STAGE_EXECUTE)
    else {
        return std::ptr::null_mut();
    };
    // SAFETY: the frame is one of the execute stage.
    let mut call = unsafe { CustomCallFrame::new(frame, registered.memory) };
    let outcome = catch_unwind(AssertUnwindSafe(|| (registered.handler)(&mut call)));
    let error = match outcome {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(error)) => error,
        Err(panic) => CustomCallError::new(
            StatusCode::Internal,
            format!("panicked: {}", panic_message(panic.as_ref())),
        ),
    };
    // SAFETY: the frame's table is XLA's.
    unsafe {
        make_error(
            frame.api,
            error.code,
            &format!("custom call `{}`: {}", registered.name, error.message),
        )
    }
}

/// Tells XLA which version of the interface the handler speaks.
///
/// # Safety
/// `metadata` is what the metadata extension holds, `api` is null or XLA's table.
unsafe fn answer_metadata(api: *const u8, metadata: *mut ffi::Metadata) {
    // SAFETY: the caller's promise.
    unsafe {
        let theirs = if api.is_null() {
            1
        } else {
            api.add(ffi::table::MINOR).cast::<c_int>().read()
        };
        (*metadata).major = 0;
        (*metadata).minor = theirs.min(ffi::MAX_MINOR);
        (*metadata).traits = 0;
    }
}

/// # Safety
/// `api` is XLA's table.
unsafe fn make_error(api: *const u8, code: StatusCode, message: &str) -> *mut c_void {
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let mut args = ffi::ErrorCreate {
        struct_size: 28,
        extension_start: std::ptr::null(),
        message: message.as_ptr(),
        code: code.to_c(),
    };
    // SAFETY: every table has this slot; XLA copies the message.
    unsafe {
        let Some(function) = function(api, ffi::table::ERROR_CREATE) else {
            std::process::abort()
        };
        let function: unsafe extern "C" fn(*mut ffi::ErrorCreate) -> *mut c_void =
            std::mem::transmute(function);
        function(&raw mut args)
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is not text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_once_refused_stays_refused() {
        let of = |plugin, name: &str| Registered {
            plugin,
            name: name.into(),
            handler: Box::new(|_| Ok(())),
            memory: CallMemory::Host,
            refused: OnceLock::new(),
        };
        let register = |answer: Result<(), PjrtError>| take_slot(of(1, "test.refused"), |_| answer);
        let refused = PjrtError::new(REGISTER, StatusCode::Unimplemented, "not here".to_owned());
        assert_eq!(register(Err(refused.clone())), Err(refused.clone()));
        assert_eq!(register(Ok(())), Err(refused));
        let take = |plugin| take_slot(of(plugin, "test.taken"), |_| Ok(()));
        assert_eq!(take(1), Ok(()));
        assert_eq!(take(1).unwrap_err().code, StatusCode::AlreadyExists);
        assert_eq!(take(2), Ok(()));
    }
}
