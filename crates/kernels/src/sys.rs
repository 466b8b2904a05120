//! C layouts of oneDNN 3, which keeps them through its minor versions.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

/// An engine, stream, memory, memory descriptor, primitive or primitive descriptor.
pub(crate) type Handle = *mut c_void;
pub(crate) type Status = c_int;
pub(crate) type Dims = *const i64;

pub(crate) const UNIMPLEMENTED: Status = 3;

pub(crate) const ENGINE_CPU: c_int = 1;
pub(crate) const STREAM_IN_ORDER: c_uint = 1;
pub(crate) const RUNTIME_OPENMP: c_uint = 2;
pub(crate) const ISA_AVX512_BF16: c_uint = 0xe7;
pub(crate) const ISA_AVX512_AMX: c_uint = 0xfef;

pub(crate) const FORMAT_ANY: c_int = 1;
/// Most dimensions of a memory descriptor.
pub(crate) const MAX_DIMS: usize = 12;

/// The caller brings the scratchpad.
pub(crate) const SCRATCHPAD_USER: c_int = 1;

pub(crate) const FORWARD_TRAINING: c_int = 64;
pub(crate) const CONVOLUTION_DIRECT: c_int = 1;

/// What a primitive descriptor is asked for.
pub(crate) mod query {
    use std::ffi::c_int;

    pub(crate) const IMPLEMENTATION: c_int = 8;
    /// The memory descriptor of the scratchpad, of the one index 0.
    pub(crate) const SCRATCHPAD: c_int = 136;
    /// The memory descriptor of an argument by its index in an execution.
    pub(crate) const EXEC_ARG_MD: c_int = 255;
}

/// Indices of arguments of an execution.
pub(crate) mod argument {
    use std::ffi::c_int;

    pub(crate) const SRC: c_int = 1;
    pub(crate) const DST: c_int = 17;
    pub(crate) const WEIGHTS: c_int = 33;
    pub(crate) const BIAS: c_int = 41;
    pub(crate) const SCRATCHPAD: c_int = 80;
    pub(crate) const DIFF_SRC: c_int = 129;
    pub(crate) const DIFF_DST: c_int = 145;
    pub(crate) const DIFF_WEIGHTS: c_int = 161;
}

#[repr(C)]
pub(crate) struct Version {
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
    pub(crate) patch: c_int,
    pub(crate) hash: *const c_char,
    pub(crate) cpu_runtime: c_uint,
    pub(crate) gpu_runtime: c_uint,
}

/// `dnnl_exec_arg_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExecArgument {
    pub(crate) index: c_int,
    pub(crate) memory: Handle,
}

macro_rules! api {
    ($($name:ident: $symbol:literal fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library that are used here.
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the functions alive.
            _library: Library,
        }

        impl Api {
            /// Loads the library; it is never unloaded, because its threads outlive every use.
            ///
            /// # Errors
            /// What the system's loader says.
            pub(crate) fn load(path: &Path) -> Result<&'static Self, libloading::Error> {
                // SAFETY: oneDNN's initialisation has no conditions; the symbols have the C types of its header.
                unsafe {
                    let library = Library::open(Some(path), RTLD_NOW | RTLD_LOCAL)?;
                    $(let $name: Symbol<unsafe extern "C" fn($($argument),*) $(-> $result)?> = library.get($symbol)?;)*
                    $(let $name = *$name;)*
                    Ok(Box::leak(Box::new(Self { $($name,)* _library: library })))
                }
            }
        }
    };
}

api! {
    version: b"dnnl_version\0" fn() -> *const Version;
    effective_isa: b"dnnl_get_effective_cpu_isa\0" fn() -> c_uint;
    // These are of the OpenMP library that this one was linked with.
    omp_set_num_threads: b"omp_set_num_threads\0" fn(c_int);
    omp_set_dynamic: b"omp_set_dynamic\0" fn(c_int);
    omp_get_thread_limit: b"omp_get_thread_limit\0" fn() -> c_int;
    gomp_parallel: b"GOMP_parallel\0" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);
    engine_create: b"dnnl_engine_create\0" fn(*mut Handle, c_int, usize) -> Status;
    engine_destroy: b"dnnl_engine_destroy\0" fn(Handle) -> Status;
    stream_create: b"dnnl_stream_create\0" fn(*mut Handle, Handle, c_uint) -> Status;
    stream_destroy: b"dnnl_stream_destroy\0" fn(Handle) -> Status;
    stream_wait: b"dnnl_stream_wait\0" fn(Handle) -> Status;
    attributes_create: b"dnnl_primitive_attr_create\0" fn(*mut Handle) -> Status;
    attributes_set_scratchpad_mode: b"dnnl_primitive_attr_set_scratchpad_mode\0" fn(Handle, c_int) -> Status;
    attributes_destroy: b"dnnl_primitive_attr_destroy\0" fn(Handle) -> Status;
    memory_desc_with_tag: b"dnnl_memory_desc_create_with_tag\0" fn(*mut Handle, c_int, Dims, c_int, c_int) -> Status;
    memory_desc_with_strides: b"dnnl_memory_desc_create_with_strides\0" fn(*mut Handle, c_int, Dims, c_int, Dims) -> Status;
    memory_desc_clone: b"dnnl_memory_desc_clone\0" fn(*mut Handle, Handle) -> Status;
    memory_desc_equal: b"dnnl_memory_desc_equal\0" fn(Handle, Handle) -> c_int;
    memory_desc_size: b"dnnl_memory_desc_get_size\0" fn(Handle) -> usize;
    memory_desc_destroy: b"dnnl_memory_desc_destroy\0" fn(Handle) -> Status;
    memory_create: b"dnnl_memory_create\0" fn(*mut Handle, Handle, Handle, *mut c_void) -> Status;
    memory_set_handle: b"dnnl_memory_set_data_handle\0" fn(Handle, *mut c_void) -> Status;
    memory_destroy: b"dnnl_memory_destroy\0" fn(Handle) -> Status;
    primitive_desc_query: b"dnnl_primitive_desc_query\0" fn(Handle, c_int, c_int, *mut c_void) -> Status;
    primitive_desc_memory: b"dnnl_primitive_desc_query_md\0" fn(Handle, c_int, c_int) -> Handle;
    primitive_desc_destroy: b"dnnl_primitive_desc_destroy\0" fn(Handle) -> Status;
    primitive_create: b"dnnl_primitive_create\0" fn(*mut Handle, Handle) -> Status;
    primitive_execute: b"dnnl_primitive_execute\0" fn(Handle, Handle, c_int, *const ExecArgument) -> Status;
    primitive_destroy: b"dnnl_primitive_destroy\0" fn(Handle) -> Status;
    reorder: b"dnnl_reorder_primitive_desc_create\0" fn(*mut Handle, Handle, Handle, Handle, Handle, Handle) -> Status;
    matmul: b"dnnl_matmul_primitive_desc_create\0" fn(*mut Handle, Handle, Handle, Handle, Handle, Handle, Handle) -> Status;
    convolution: b"dnnl_convolution_forward_primitive_desc_create\0"
        fn(*mut Handle, Handle, c_int, c_int, Handle, Handle, Handle, Handle, Dims, Dims, Dims, Dims, Handle) -> Status;
    convolution_input_gradient: b"dnnl_convolution_backward_data_primitive_desc_create\0"
        fn(*mut Handle, Handle, c_int, Handle, Handle, Handle, Dims, Dims, Dims, Dims, Handle, Handle) -> Status;
    convolution_kernel_gradient: b"dnnl_convolution_backward_weights_primitive_desc_create\0"
        fn(*mut Handle, Handle, c_int, Handle, Handle, Handle, Handle, Dims, Dims, Dims, Dims, Handle, Handle) -> Status;
}
