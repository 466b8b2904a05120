//! What NVIDIA's driver counts of GPUs, by its management library, which is opened at run time.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;

use libloading::Library;

/// The name by which the system's loader finds the library, which comes with the driver.
const SYSTEM_LIBRARY: &str = "libnvidia-ml.so.1";
/// The length of the longest name of a GPU, its end included (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const NAME_SIZE: usize = 96;

/// A GPU within the library.
type Handle = *mut c_void;

#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[repr(C)]
#[derive(Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// The functions that are called; each but the first two has results behind its last pointer. All return 0 when they succeed.
struct Functions {
    init: unsafe extern "C" fn() -> c_int,
    shutdown: unsafe extern "C" fn() -> c_int,
    count: unsafe extern "C" fn(*mut c_uint) -> c_int,
    by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int,
    by_name: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int,
    name: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int,
    utilization: unsafe extern "C" fn(Handle, *mut Utilization) -> c_int,
    memory: unsafe extern "C" fn(Handle, *mut Memory) -> c_int,
    power: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int,
}

impl Functions {
    /// None where the library lacks one.
    fn of(library: &Library) -> Option<Self> {
        // SAFETY: these are the types that `nvml.h` declares for these names, and the pointers live as long as the library, beside
        // which they are kept.
        unsafe {
            Some(Self {
                init: *library.get(b"nvmlInit_v2\0").ok()?,
                shutdown: *library.get(b"nvmlShutdown\0").ok()?,
                count: *library.get(b"nvmlDeviceGetCount_v2\0").ok()?,
                by_index: *library.get(b"nvmlDeviceGetHandleByIndex_v2\0").ok()?,
                by_name: *library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?,
                name: *library.get(b"nvmlDeviceGetUUID\0").ok()?,
                utilization: *library.get(b"nvmlDeviceGetUtilizationRates\0").ok()?,
                memory: *library.get(b"nvmlDeviceGetMemoryInfo\0").ok()?,
                power: *library.get(b"nvmlDeviceGetPowerUsage\0").ok()?,
            })
        }
    }
}

/// GPUs of this process, as NVIDIA's driver watches them.
pub struct NvidiaGpus {
    functions: Functions,
    /// The number of each in this process, and what the library calls it.
    gpus: Vec<(usize, Handle)>,
    _library: Library,
}

// SAFETY: NVML may be called from any thread, and its handles belong to none.
unsafe impl Send for NvidiaGpus {}

/// What a GPU does at a moment; nothing where the driver does not tell it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct GpuUse {
    /// The number of the GPU in this process.
    pub gpu: usize,
    /// The share of the last sample of the driver (up to a second) in which a kernel ran, in percent.
    pub busy_percent: Option<f64>,
    /// The share of that time in which the memory was read or written, in percent.
    pub memory_access_percent: Option<f64>,
    /// Bytes of memory that all processes hold, and the driver itself.
    pub memory_used: Option<u64>,
    /// What it takes, in watts.
    pub power_watts: Option<f64>,
}

impl NvidiaGpus {
    /// The GPUs with these numbers among those that `visible`, the value of CUDA_VISIBLE_DEVICES, lists; without a value, among all of
    /// the machine, in the order of their bus addresses. None without a driver, and where it knows none of them.
    #[must_use]
    pub fn open(gpus: &[usize], visible: Option<&str>) -> Option<Self> {
        Self::open_library(Path::new(SYSTEM_LIBRARY), gpus, visible)
    }

    /// As [`open`](Self::open), by the library at this path. It is machine code, and trusted.
    #[must_use]
    pub fn open_library(path: &Path, gpus: &[usize], visible: Option<&str>) -> Option<Self> {
        // SAFETY: as any plugin, the library is trusted; what it does when it is loaded is its own.
        let library = unsafe { Library::new(path) }.ok()?;
        let functions = Functions::of(&library)?;
        // SAFETY: this is how the library is begun; the matching call is in `drop`.
        if unsafe { (functions.init)() } != 0 {
            return None;
        }
        let mut opened = Self {
            functions,
            gpus: Vec::new(),
            _library: library,
        };
        let names: Option<Vec<&str>> = visible.map(|list| list.split(',').map(str::trim).collect());
        let found = gpus.iter().filter_map(|&gpu| {
            let handle = match &names {
                None => opened.by_index(gpu),
                Some(names) => opened.by_name(names.get(gpu)?),
            };
            Some((gpu, handle?))
        });
        opened.gpus = found.collect();
        (!opened.gpus.is_empty()).then_some(opened)
    }

    /// What each GPU does now. A driver that refuses to tell something leaves it out.
    #[must_use]
    pub fn sample(&self) -> Vec<GpuUse> {
        let each = self.gpus.iter();
        each.map(|&(gpu, handle)| self.of(gpu, handle)).collect()
    }

    fn of(&self, gpu: usize, handle: Handle) -> GpuUse {
        let (mut shares, mut memory) = (Utilization::default(), Memory::default());
        let mut milliwatts = 0;
        // SAFETY: the handle is one of this library, which is begun, and each result is one of its function.
        let told = unsafe {
            [
                (self.functions.utilization)(handle, &raw mut shares),
                (self.functions.memory)(handle, &raw mut memory),
                (self.functions.power)(handle, &raw mut milliwatts),
            ]
        };
        let [shares_told, memory_told, power_told] = told.map(|status| status == 0);
        GpuUse {
            gpu,
            busy_percent: shares_told.then(|| f64::from(shares.gpu)),
            memory_access_percent: shares_told.then(|| f64::from(shares.memory)),
            memory_used: memory_told.then_some(memory.used),
            power_watts: power_told.then(|| f64::from(milliwatts) / 1e3),
        }
    }

    fn by_index(&self, index: usize) -> Option<Handle> {
        let index = c_uint::try_from(index).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is begun; a number out of range is an error of its own.
        let status = unsafe { (self.functions.by_index)(index, &raw mut handle) };
        (status == 0).then_some(handle)
    }

    /// The GPU that CUDA_VISIBLE_DEVICES means by a number, or by a name or its beginning.
    fn by_name(&self, name: &str) -> Option<Handle> {
        if let Ok(index) = name.parse() {
            return self.by_index(index);
        }
        if name.starts_with("MIG-") {
            return self.by_whole_name(name);
        }
        if !name.starts_with("GPU-") {
            return None;
        }
        let mut count = 0;
        // SAFETY: the library is begun.
        let status = unsafe { (self.functions.count)(&raw mut count) };
        let all =
            (0..if status == 0 { count as usize } else { 0 }).filter_map(|i| self.by_index(i));
        let is_meant = |&handle: &Handle| {
            let found = self.name_of(handle);
            found.is_some_and(|found| found.starts_with(name))
        };
        let meant: Vec<Handle> = all.filter(is_meant).collect();
        match meant[..] {
            [one] => Some(one),
            _ => None,
        }
    }

    fn by_whole_name(&self, name: &str) -> Option<Handle> {
        let name = std::ffi::CString::new(name).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is begun, and the name ends with a zero.
        let status = unsafe { (self.functions.by_name)(name.as_ptr(), &raw mut handle) };
        (status == 0).then_some(handle)
    }

    fn name_of(&self, handle: Handle) -> Option<String> {
        let mut name = [0_u8; NAME_SIZE];
        let start = name.as_mut_ptr().cast();
        // SAFETY: the handle is one of this library, and there is room for the size that is given.
        let status = unsafe { (self.functions.name)(handle, start, NAME_SIZE as c_uint) };
        let name = CStr::from_bytes_until_nul(&name).ok()?;
        (status == 0).then(|| name.to_string_lossy().into_owned())
    }
}

impl Drop for NvidiaGpus {
    fn drop(&mut self) {
        // SAFETY: the library was begun once, and no handle is used after this. What it answers changes nothing.
        let _ = unsafe { (self.functions.shutdown)() };
    }
}

impl std::fmt::Debug for NvidiaGpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<usize> = self.gpus.iter().map(|&(gpu, _)| gpu).collect();
        f.debug_struct("NvidiaGpus")
            .field("gpus", &numbers)
            .finish()
    }
}
