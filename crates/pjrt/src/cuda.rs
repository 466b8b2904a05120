//! Copies between the host and the memory of NVIDIA's GPUs, in the order of a stream, by the driver's library, which is opened at run time: what
//! custom calls of programs for GPUs read and write. The functions are those that `cuda.h` declares, by the names that it gives them today.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libloading::Library;

/// The name by which the system's loader finds the library, which comes with the driver.
const SYSTEM_LIBRARY: &str = "libcuda.so.1";
/// `CUDA_ERROR_NOT_READY`: a stream has work left.
const NOT_READY: c_int = 600;
/// How long a wait looks before it sleeps, and how long it sleeps.
const LOOKS_FOR: Duration = Duration::from_micros(200);
const SLEEPS_FOR: Duration = Duration::from_micros(50);

/// An address in the memory of a GPU.
type DevicePointer = u64;

/// The functions that are called; all return 0 when they succeed.
struct DriverFunctions {
    context_of: unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int,
    push: unsafe extern "C" fn(*mut c_void) -> c_int,
    pop: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, DevicePointer, usize, *mut c_void) -> c_int,
    to_device: unsafe extern "C" fn(DevicePointer, *const c_void, usize, *mut c_void) -> c_int,
    fill: unsafe extern "C" fn(DevicePointer, c_uchar, usize, *mut c_void) -> c_int,
    query: unsafe extern "C" fn(*mut c_void) -> c_int,
    synchronize: unsafe extern "C" fn(*mut c_void) -> c_int,
    name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

impl DriverFunctions {
    fn of(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: these are the types that `cuda.h` declares for these names, and the library is kept for as long as they are.
        unsafe {
            Ok(Self {
                context_of: *library.get(b"cuStreamGetCtx\0")?,
                push: *library.get(b"cuCtxPushCurrent_v2\0")?,
                pop: *library.get(b"cuCtxPopCurrent_v2\0")?,
                to_host: *library.get(b"cuMemcpyDtoHAsync_v2\0")?,
                to_device: *library.get(b"cuMemcpyHtoDAsync_v2\0")?,
                fill: *library.get(b"cuMemsetD8Async\0")?,
                query: *library.get(b"cuStreamQuery\0")?,
                synchronize: *library.get(b"cuStreamSynchronize\0")?,
                name: *library.get(b"cuGetErrorName\0")?,
            })
        }
    }
}

/// The driver of NVIDIA's GPUs.
pub(crate) struct CudaDriver {
    functions: DriverFunctions,
    _library: Option<Library>,
}

impl CudaDriver {
    /// The driver of this machine, opened when first asked for and kept, as XLA's plugin keeps it.
    pub(crate) fn of_system() -> Result<&'static Self, String> {
        static DRIVER: OnceLock<Result<CudaDriver, String>> = OnceLock::new();
        let driver = DRIVER.get_or_init(|| {
            // SAFETY: the driver's library is trusted as any plugin is; what it does when it is loaded is its own.
            let library = unsafe { Library::new(SYSTEM_LIBRARY) };
            let opened = library.and_then(|library| {
                let functions = DriverFunctions::of(&library)?;
                Ok(Self {
                    functions,
                    _library: Some(library),
                })
            });
            opened.map_err(|error| format!("cannot open {SYSTEM_LIBRARY}: {error}"))
        });
        driver.as_ref().map_err(Clone::clone)
    }

    fn check(&self, status: c_int, what: &str) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the name is a constant text of the library, or is left null.
        let name = unsafe {
            (self.functions.name)(status, &raw mut name);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy())
        };
        let name = name.unwrap_or("an unknown error".into());
        Err(format!("the GPU's driver cannot {what}: {name} ({status})"))
    }
}

/// A stream whose GPU is the current one of this thread until this is dropped.
pub(crate) struct CudaStream<'d> {
    driver: &'d CudaDriver,
    stream: *mut c_void,
}

impl<'d> CudaStream<'d> {
    /// # Safety
    /// `stream` is a stream of the driver that lives for `'d`.
    pub(crate) unsafe fn enter(
        driver: &'d CudaDriver,
        stream: *mut c_void,
    ) -> Result<Self, String> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        unsafe {
            let status = (driver.functions.context_of)(stream, &raw mut context);
            driver.check(status, "tell the context of a stream")?;
            driver.check((driver.functions.push)(context), "enter a context")?;
        }
        Ok(Self { driver, stream })
    }

    /// Waits until all that was begun on the stream is done.
    pub(crate) fn wait(&self, within: Duration) -> Result<(), String> {
        let start = Instant::now();
        loop {
            // SAFETY: the stream lives.
            let status = unsafe { (self.driver.functions.query)(self.stream) };
            if status != NOT_READY {
                return self.driver.check(status, "finish what was begun");
            }
            let waited = start.elapsed();
            if waited > within {
                let seconds = within.as_secs();
                return Err(format!("the GPU is not done after {seconds} s"));
            }
            match waited > LOOKS_FOR {
                true => std::thread::sleep(SLEEPS_FOR),
                false => std::hint::spin_loop(),
            }
        }
    }

    /// Begins a copy of as many bytes to the host, which [`finish`](Self::finish) waits for.
    ///
    /// # Safety
    /// As many bytes of a GPU's memory are at `from`, and both lives last until `finish`.
    pub(crate) unsafe fn copy_to_host(
        &self,
        from: *const c_void,
        to: &mut [u8],
    ) -> Result<(), String> {
        if to.is_empty() {
            return Ok(());
        }
        let (from, bytes) = (from as DevicePointer, to.len());
        // SAFETY: the caller's promise.
        let status = unsafe {
            (self.driver.functions.to_host)(to.as_mut_ptr().cast(), from, bytes, self.stream)
        };
        self.driver.check(status, "copy to the host")
    }

    /// Begins a copy of bytes of the host, which [`finish`](Self::finish) waits for; of as many zeros where there are none.
    ///
    /// # Safety
    /// There is room for as many bytes in a GPU's memory at `to`, and both lives last until `finish`.
    pub(crate) unsafe fn copy_to_device(
        &self,
        from: Option<&[u8]>,
        to: *mut c_void,
        bytes: usize,
    ) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        let (to, functions) = (to as DevicePointer, &self.driver.functions);
        // SAFETY: the caller's promise; a slice that is shorter is never given.
        let status = unsafe {
            match from {
                Some(from) => {
                    assert_eq!(from.len(), bytes, "a copy to a GPU");
                    (functions.to_device)(to, from.as_ptr().cast(), bytes, self.stream)
                }
                None => (functions.fill)(to, 0, bytes, self.stream),
            }
        };
        self.driver.check(status, "copy from the host")
    }

    /// Waits for copies, which take no longer than the memory needs once [`wait`](Self::wait) has returned.
    pub(crate) fn finish(&self) -> Result<(), String> {
        // SAFETY: the stream lives.
        let status = unsafe { (self.driver.functions.synchronize)(self.stream) };
        self.driver.check(status, "finish a copy")
    }
}

impl Drop for CudaStream<'_> {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: this thread entered a context when this was made. Where it cannot be left, nothing can be done.
        let _ = unsafe { (self.driver.functions.pop)(&raw mut context) };
    }
}

/// A driver whose GPU is the host.
#[cfg(test)]
pub(crate) mod fake {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Contexts that this thread has entered and not left.
        pub(crate) static ENTERED: Cell<usize> = const { Cell::new(0) };
        /// How often a stream is still busy.
        pub(crate) static BUSY: Cell<usize> = const { Cell::new(0) };
        /// What copies answer.
        pub(crate) static FAILS_WITH: Cell<c_int> = const { Cell::new(0) };
    }

    unsafe extern "C" fn context_of(_: *mut c_void, context: *mut *mut c_void) -> c_int {
        // SAFETY: there is room for it.
        unsafe { *context = std::ptr::without_provenance_mut(1) };
        0
    }
    unsafe extern "C" fn push(_: *mut c_void) -> c_int {
        ENTERED.set(ENTERED.get() + 1);
        0
    }
    unsafe extern "C" fn pop(_: *mut *mut c_void) -> c_int {
        ENTERED.set(ENTERED.get() - 1);
        0
    }
    unsafe extern "C" fn to_host(
        to: *mut c_void,
        from: u64,
        bytes: usize,
        _: *mut c_void,
    ) -> c_int {
        let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
        // SAFETY: both are the host's.
        unsafe { std::ptr::copy(from, to.cast(), bytes) };
        FAILS_WITH.get()
    }
    unsafe extern "C" fn to_device(
        to: u64,
        from: *const c_void,
        bytes: usize,
        _: *mut c_void,
    ) -> c_int {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
        // SAFETY: both are the host's.
        unsafe { std::ptr::copy(from.cast(), to, bytes) };
        FAILS_WITH.get()
    }
    unsafe extern "C" fn fill(to: u64, byte: c_uchar, bytes: usize, _: *mut c_void) -> c_int {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
        // SAFETY: it is the host's.
        unsafe { std::ptr::write_bytes(to, byte, bytes) };
        FAILS_WITH.get()
    }
    unsafe extern "C" fn query(_: *mut c_void) -> c_int {
        match BUSY.get() {
            0 => 0,
            busy => {
                BUSY.set(busy - 1);
                NOT_READY
            }
        }
    }
    unsafe extern "C" fn synchronize(_: *mut c_void) -> c_int {
        0
    }
    unsafe extern "C" fn name(_: c_int, name: *mut *const c_char) -> c_int {
        // SAFETY: there is room for it.
        unsafe { *name = c"CUDA_ERROR_OF_A_TEST".as_ptr() };
        0
    }

    pub(crate) static DRIVER: CudaDriver = CudaDriver {
        functions: DriverFunctions {
            context_of,
            push,
            pop,
            to_host,
            to_device,
            fill,
            query,
            synchronize,
            name,
        },
        _library: None,
    };
}
