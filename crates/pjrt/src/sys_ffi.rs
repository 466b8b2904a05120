//! C layouts of XLA's foreign function interface (custom calls), versions 0.1 to 0.4, which agree on everything used here.

use std::ffi::{c_char, c_int, c_void};

/// Newest `XLA_FFI_API_MINOR` whose layouts are those below.
pub(crate) const MAX_MINOR: c_int = 4;

/// Byte offsets of functions inside `XLA_FFI_Api`.
pub(crate) mod table {
    pub(crate) const MINOR: usize = 36;
    pub(crate) const ERROR_CREATE: usize = 48;
    pub(crate) const STREAM_GET: usize = 80;
    pub(crate) const THREAD_POOL_SCHEDULE: usize = 136;
    pub(crate) const THREAD_POOL_NUM_THREADS: usize = 144;
    pub(crate) const RUN_ID_GET: usize = 176;
    pub(crate) const DEVICE_ORDINAL_GET: usize = 184;
}

pub(crate) const EXTENSION_METADATA: c_int = 1;
pub(crate) const STAGE_EXECUTE: c_int = 3;

/// A handler as XLA calls it; it returns `XLA_FFI_Error*`.
pub(crate) type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut c_void;

#[repr(C)]
pub(crate) struct Extension {
    pub(crate) struct_size: usize,
    pub(crate) kind: c_int,
    pub(crate) next: *const Self,
    /// Only in the metadata extension.
    pub(crate) metadata: *mut Metadata,
}

#[repr(C)]
pub(crate) struct Metadata {
    pub(crate) struct_size: usize,
    pub(crate) version_size: usize,
    pub(crate) version_extension: *const c_void,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
    pub(crate) traits: u32,
}

#[repr(C)]
pub(crate) struct CallFrame {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const Extension,
    pub(crate) api: *const u8,
    pub(crate) context: *mut c_void,
    pub(crate) stage: c_int,
    pub(crate) operands: Buffers,
    pub(crate) results: Buffers,
    pub(crate) attributes: Attributes,
    pub(crate) future: *mut c_void,
}

#[repr(C)]
pub(crate) struct Buffers {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const Extension,
    pub(crate) count: i64,
    pub(crate) kinds: *const c_int,
    pub(crate) values: *const *const Buffer,
}

#[repr(C)]
pub(crate) struct Attributes {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const Extension,
    pub(crate) count: i64,
    pub(crate) kinds: *const c_int,
    pub(crate) names: *const *const ByteSpan,
    pub(crate) values: *const *const c_void,
}

#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const Extension,
    pub(crate) element_type: c_int,
    pub(crate) data: *mut c_void,
    pub(crate) rank: i64,
    pub(crate) dims: *const i64,
}

#[repr(C)]
pub(crate) struct ByteSpan {
    pub(crate) pointer: *const c_char,
    pub(crate) size: usize,
}

#[repr(C)]
pub(crate) struct Scalar {
    pub(crate) element_type: c_int,
    pub(crate) value: *const c_void,
}

#[repr(C)]
pub(crate) struct Array {
    pub(crate) element_type: c_int,
    pub(crate) size: usize,
    pub(crate) data: *const c_void,
}

#[repr(C)]
pub(crate) struct ErrorCreate {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const Extension,
    pub(crate) message: *const c_char,
    pub(crate) code: c_int,
}

/// `XLA_FFI_RunId_Get_Args`; `XLA_FFI_DeviceOrdinal_Get_Args` is the same with a 32-bit value, `XLA_FFI_Stream_Get_Args` with a pointer.
#[repr(C)]
pub(crate) struct ContextGet<T> {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const Extension,
    pub(crate) context: *mut c_void,
    pub(crate) value: T,
}

/// `XLA_FFI_ThreadPool_Schedule_Args`.
#[repr(C)]
pub(crate) struct Schedule {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *const Extension,
    pub(crate) context: *mut c_void,
    pub(crate) task: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn structs_have_the_layout_of_the_c_header() {
        assert_eq!(size_of::<CallFrame>(), 176);
        assert_eq!(offset_of!(CallFrame, stage), 32);
        assert_eq!(offset_of!(CallFrame, operands), 40);
        assert_eq!(offset_of!(CallFrame, results), 80);
        assert_eq!(offset_of!(CallFrame, attributes), 120);
        assert_eq!(offset_of!(CallFrame, future), 168);
        assert_eq!(
            (size_of::<Buffers>(), offset_of!(Buffers, values)),
            (40, 32)
        );
        assert_eq!(
            (size_of::<Attributes>(), offset_of!(Attributes, values)),
            (48, 40)
        );
        assert_eq!(
            (
                size_of::<Buffer>(),
                offset_of!(Buffer, data),
                offset_of!(Buffer, dims)
            ),
            (48, 24, 40)
        );
        assert_eq!(offset_of!(Extension, metadata), 24);
        assert_eq!(
            (
                offset_of!(Metadata, major),
                offset_of!(Metadata, minor),
                offset_of!(Metadata, traits)
            ),
            (24, 28, 32)
        );
        assert_eq!(
            (
                offset_of!(ErrorCreate, message),
                offset_of!(ErrorCreate, code)
            ),
            (16, 24)
        );
        assert_eq!(offset_of!(ContextGet<i64>, value), 24);
        assert_eq!(
            (
                offset_of!(Scalar, value),
                offset_of!(Array, size),
                offset_of!(Array, data)
            ),
            (8, 8, 16)
        );
    }
}
