//! C layouts of the PJRT functions this crate uses, as of PJRT 0.114 (0.115 added no function and grew no struct used here).
//!
//! A plugin refuses a call whose `struct_size` is smaller than its own struct, and accepts a larger one, so every struct here has its newest size.
//! `struct_size` is the end of the last field, not `size_of`: the two differ where the last field is a `bool` or an `int`.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// Newest `PJRT_API_MINOR` this crate was tested with.
pub(crate) const MAX_MINOR: i32 = 115;
/// Oldest `PJRT_API_MINOR` whose structs have the layouts below.
pub(crate) const MIN_MINOR: i32 = 90;

/// Byte offsets inside `PJRT_Api`.
pub(crate) mod table {
    pub(crate) const EXTENSION_START: usize = 8;
    pub(crate) const MAJOR: usize = 32;
    pub(crate) const MINOR: usize = 36;
    pub(crate) const ERROR_DESTROY: usize = 40;
    pub(crate) const ERROR_MESSAGE: usize = 48;
    pub(crate) const ERROR_GET_CODE: usize = 56;
    /// End of the last slot without which no plugin can be used (`PJRT_Buffer_ReadyEvent`).
    pub(crate) const LEAST_SIZE: usize = 624;
}

/// Extension type of the FFI (custom call) extension.
pub(crate) const EXTENSION_FFI: i32 = 5;

macro_rules! opaque {
    ($($name:ident),*) => { $(pub(crate) enum $name {})* };
}
opaque!(
    Error,
    Event,
    Client,
    Device,
    DeviceDescription,
    LoadedExecutable,
    Executable,
    SerializedExecutable,
    Buffer
);

/// An argument struct of one `PJRT_Api` function that returns `PJRT_Error*`.
///
/// # Safety
/// The type is `repr(C)`, starts with `struct_size` and `extension_start`, is valid when all its bytes are zero,
/// and matches the parameter of the function in slot `SLOT`.
pub(crate) unsafe trait Args: Sized {
    /// Name of the C function, for error messages.
    const CALL: &'static str;
    /// Byte offset of the function pointer inside `PJRT_Api`.
    const SLOT: usize;
    /// Value of `struct_size`: end of the last field.
    const SIZE: usize;

    /// All fields zero, `struct_size` set.
    fn empty() -> Self {
        // SAFETY: the trait's contract says that zero bytes are a valid value.
        let mut value: Self = unsafe { std::mem::zeroed() };
        // SAFETY: the trait's contract says that the struct starts with `struct_size`.
        unsafe { (&raw mut value).cast::<usize>().write(Self::SIZE) };
        value
    }
}

macro_rules! args {
    ($name:ident = $call:literal @ $slot:literal { $($field:ident: $ty:ty,)* [$last:ident: $last_ty:ty] }) => {
        #[repr(C)]
        pub(crate) struct $name {
            pub(crate) struct_size: usize,
            pub(crate) extension_start: *mut c_void,
            $(pub(crate) $field: $ty,)*
            pub(crate) $last: $last_ty,
        }
        // SAFETY: `repr(C)` with the header first; fields are integers, raw pointers, optional functions and C bools, all valid as zero.
        unsafe impl Args for $name {
            const CALL: &'static str = $call;
            const SLOT: usize = $slot;
            const SIZE: usize = offset_of!($name, $last) + size_of::<$last_ty>();
        }
    };
}

// Errors: these two functions return nothing, so they are called directly, not through `Api::call`.
args!(ErrorDestroy = "PJRT_Error_Destroy" @ 40 { [error: *mut Error] });
args!(ErrorMessage = "PJRT_Error_Message" @ 48 { error: *const Error, message: *const c_char, [message_size: usize] });
args!(ErrorGetCode = "PJRT_Error_GetCode" @ 56 { error: *const Error, [code: c_int] });

args!(PluginInitialize = "PJRT_Plugin_Initialize" @ 64 { [reserved: [u8; 0]] });
args!(PluginAttributes = "PJRT_Plugin_Attributes" @ 72 { attributes: *const NamedValue, [num_attributes: usize] });

args!(EventDestroy = "PJRT_Event_Destroy" @ 80 { [event: *mut Event] });
args!(EventIsReady = "PJRT_Event_IsReady" @ 88 { event: *mut Event, [is_ready: bool] });
args!(EventError = "PJRT_Event_Error" @ 96 { [event: *mut Event] });
args!(EventOnReady = "PJRT_Event_OnReady" @ 112 {
    event: *mut Event, callback: Option<unsafe extern "C" fn(*mut Error, *mut c_void)>, [user_arg: *mut c_void]
});

args!(ClientCreate = "PJRT_Client_Create" @ 120 {
    create_options: *const NamedValue, num_options: usize,
    kv_get_callback: *mut c_void, kv_get_user_arg: *mut c_void,
    kv_put_callback: *mut c_void, kv_put_user_arg: *mut c_void,
    client: *mut Client,
    kv_try_get_callback: *mut c_void, [kv_try_get_user_arg: *mut c_void]
});
args!(ClientDestroy = "PJRT_Client_Destroy" @ 128 { [client: *mut Client] });
args!(ClientPlatformName = "PJRT_Client_PlatformName" @ 136 { client: *mut Client, platform_name: *const c_char, [platform_name_size: usize] });
args!(ClientProcessIndex = "PJRT_Client_ProcessIndex" @ 144 { client: *mut Client, [process_index: c_int] });
args!(ClientPlatformVersion = "PJRT_Client_PlatformVersion" @ 152 {
    client: *mut Client, platform_version: *const c_char, [platform_version_size: usize]
});
args!(ClientAddressableDevices = "PJRT_Client_AddressableDevices" @ 168 {
    client: *mut Client, devices: *const *mut Device, [num_devices: usize]
});
args!(ClientCompile = "PJRT_Client_Compile" @ 200 {
    client: *mut Client, program: *const Program, compile_options: *const c_char, compile_options_size: usize,
    [executable: *mut LoadedExecutable]
});
args!(BufferFromHost = "PJRT_Client_BufferFromHostBuffer" @ 216 {
    client: *mut Client, data: *const c_void, element_type: c_int, dims: *const i64, num_dims: usize,
    byte_strides: *const i64, num_byte_strides: usize, semantics: c_int, device: *mut Device, memory: *mut c_void,
    device_layout: *mut c_void, done_with_host_buffer: *mut Event, [buffer: *mut Buffer]
});

args!(DescriptionId = "PJRT_DeviceDescription_Id" @ 224 { description: *mut DeviceDescription, [id: c_int] });
args!(DescriptionProcessIndex = "PJRT_DeviceDescription_ProcessIndex" @ 232 { description: *mut DeviceDescription, [process_index: c_int] });
args!(DescriptionAttributes = "PJRT_DeviceDescription_Attributes" @ 240 {
    description: *mut DeviceDescription, num_attributes: usize, [attributes: *const NamedValue]
});
args!(DescriptionKind = "PJRT_DeviceDescription_Kind" @ 248 {
    description: *mut DeviceDescription, device_kind: *const c_char, [device_kind_size: usize]
});
args!(DeviceGetDescription = "PJRT_Device_GetDescription" @ 272 { device: *mut Device, [description: *mut DeviceDescription] });
args!(DeviceLocalHardwareId = "PJRT_Device_LocalHardwareId" @ 288 { device: *mut Device, [local_hardware_id: c_int] });
args!(DeviceMemoryStats = "PJRT_Device_MemoryStats" @ 312 {
    device: *mut Device, bytes_in_use: i64, peak_bytes_in_use: i64, peak_bytes_in_use_is_set: bool,
    num_allocs: i64, num_allocs_is_set: bool, largest_alloc_size: i64, largest_alloc_size_is_set: bool,
    bytes_limit: i64, bytes_limit_is_set: bool, bytes_reserved: i64, bytes_reserved_is_set: bool,
    peak_bytes_reserved: i64, peak_bytes_reserved_is_set: bool, bytes_reservable_limit: i64, bytes_reservable_limit_is_set: bool,
    largest_free_block_bytes: i64, largest_free_block_bytes_is_set: bool, pool_bytes: i64, pool_bytes_is_set: bool,
    peak_pool_bytes: i64, peak_pool_bytes_is_set: bool, peak_allocated_bytes: i64, [peak_allocated_bytes_is_set: bool]
});

args!(ExecutableDestroy = "PJRT_Executable_Destroy" @ 360 { [executable: *mut Executable] });
args!(ExecutableNumOutputs = "PJRT_Executable_NumOutputs" @ 392 { executable: *mut Executable, [num_outputs: usize] });
args!(ExecutableSerialize = "PJRT_Executable_Serialize" @ 432 {
    executable: *const Executable, bytes: *const c_char, bytes_size: usize, handle: *mut SerializedExecutable,
    [deleter: Option<unsafe extern "C" fn(*mut SerializedExecutable)>]
});
args!(ExecutableOutputElementTypes = "PJRT_Executable_OutputElementTypes" @ 760 {
    executable: *mut Executable, output_types: *const c_int, [num_output_types: usize]
});
args!(ExecutableOutputDimensions = "PJRT_Executable_OutputDimensions" @ 768 {
    executable: *mut Executable, num_outputs: usize, dims: *const i64, [dim_sizes: *const usize]
});
args!(ExecutableFingerprint = "PJRT_Executable_Fingerprint" @ 792 {
    executable: *mut Executable, fingerprint: *const c_char, [fingerprint_size: usize]
});
args!(ExecutableMemoryStats = "PJRT_Executable_GetCompiledMemoryStats" @ 808 {
    executable: *mut Executable, code: i64, arguments: i64, outputs: i64, aliased: i64, temporary: i64,
    host: [i64; 5], peak: i64, total: i64, total_allocation: i64, indefinite_allocations: i64, [peak_unpadded_heap: i64]
});
args!(LoadedDestroy = "PJRT_LoadedExecutable_Destroy" @ 440 { [executable: *mut LoadedExecutable] });
args!(LoadedGetExecutable = "PJRT_LoadedExecutable_GetExecutable" @ 448 { loaded: *mut LoadedExecutable, [executable: *mut Executable] });
args!(LoadedAddressableDevices = "PJRT_LoadedExecutable_AddressableDevices" @ 456 {
    executable: *mut LoadedExecutable, devices: *const *mut Device, [num_devices: usize]
});
args!(LoadedExecute = "PJRT_LoadedExecutable_Execute" @ 480 {
    executable: *mut LoadedExecutable, options: *mut ExecuteOptions, argument_lists: *const *const *mut Buffer,
    num_devices: usize, num_args: usize, output_lists: *const *mut *mut Buffer, complete_events: *mut *mut Event,
    [execute_device: *mut Device]
});
args!(DeserializeAndLoad = "PJRT_Executable_DeserializeAndLoad" @ 488 {
    client: *mut Client, bytes: *const c_char, bytes_size: usize, loaded: *mut LoadedExecutable,
    overridden_options: *const c_char, overridden_options_size: usize, [load_options: *mut c_void]
});

args!(BufferDestroy = "PJRT_Buffer_Destroy" @ 504 { [buffer: *mut Buffer] });
args!(BufferElementType = "PJRT_Buffer_ElementType" @ 512 { buffer: *mut Buffer, [element_type: c_int] });
args!(BufferDimensions = "PJRT_Buffer_Dimensions" @ 520 { buffer: *mut Buffer, dims: *const i64, [num_dims: usize] });
args!(BufferDelete = "PJRT_Buffer_Delete" @ 576 { [buffer: *mut Buffer] });
args!(BufferIsDeleted = "PJRT_Buffer_IsDeleted" @ 584 { buffer: *mut Buffer, [is_deleted: bool] });
args!(BufferCopyToDevice = "PJRT_Buffer_CopyToDevice" @ 592 {
    buffer: *mut Buffer, dst_device: *mut Device, [dst_buffer: *mut Buffer]
});
args!(BufferToHost = "PJRT_Buffer_ToHostBuffer" @ 600 {
    src: *mut Buffer, host_layout: *const MemoryLayout, dst: *mut c_void, dst_size: usize, [event: *mut Event]
});
args!(BufferReadyEvent = "PJRT_Buffer_ReadyEvent" @ 616 { buffer: *mut Buffer, [event: *mut Event] });
args!(BufferIncreaseExternalReferenceCount = "PJRT_Buffer_IncreaseExternalReferenceCount" @ 632 { [buffer: *mut Buffer] });
args!(BufferDecreaseExternalReferenceCount = "PJRT_Buffer_DecreaseExternalReferenceCount" @ 640 { [buffer: *mut Buffer] });
args!(BufferMemoryPointer = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer" @ 648 { buffer: *mut Buffer, [pointer: *mut c_void] });

/// `PJRT_NamedValue`: an option or attribute; `value` is the C union as the low bytes of one word (little-endian hosts only).
#[repr(C)]
pub(crate) struct NamedValue {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) name: *const c_char,
    pub(crate) name_size: usize,
    pub(crate) kind: c_int,
    pub(crate) value: u64,
    pub(crate) value_size: usize,
}

/// `PJRT_Program`.
#[repr(C)]
pub(crate) struct Program {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) code: *const c_char,
    pub(crate) code_size: usize,
    pub(crate) format: *const c_char,
    pub(crate) format_size: usize,
}

/// `PJRT_ExecuteOptions`.
#[repr(C)]
pub(crate) struct ExecuteOptions {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) callbacks: [*mut c_void; 2],
    pub(crate) num_callbacks: [usize; 2],
    pub(crate) launch_id: c_int,
    pub(crate) non_donatable: *const i64,
    pub(crate) num_non_donatable: usize,
    pub(crate) context: *mut c_void,
    pub(crate) call_location: *const c_char,
    pub(crate) num_tasks: usize,
    pub(crate) task_ids: *mut c_int,
    pub(crate) incarnation_ids: *mut i64,
    pub(crate) multi_slice_config: *mut c_void,
    pub(crate) major_to_minor_callbacks: bool,
    pub(crate) hlo_output_callbacks: *mut c_void,
    pub(crate) num_hlo_output_callbacks: usize,
}

/// `PJRT_Buffer_MemoryLayout` holding the tiled member of its union.
#[repr(C)]
pub(crate) struct MemoryLayout {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) tiled: TiledLayout,
    pub(crate) kind: c_int,
}

/// `PJRT_Buffer_MemoryLayout_Tiled`.
#[repr(C)]
pub(crate) struct TiledLayout {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) minor_to_major: *const i64,
    pub(crate) minor_to_major_size: usize,
    pub(crate) tile_dims: *const i64,
    pub(crate) tile_dim_sizes: *const usize,
    pub(crate) num_tiles: usize,
}

/// `PJRT_Extension_Base`, the head of each entry of the plugin's extension list.
#[repr(C)]
pub(crate) struct Extension {
    pub(crate) struct_size: usize,
    pub(crate) kind: c_int,
    pub(crate) next: *const Self,
}

/// `PJRT_FFI_Extension`.
#[repr(C)]
pub(crate) struct FfiExtension {
    pub(crate) base: Extension,
    pub(crate) type_register: *mut c_void,
    pub(crate) user_data_add: *mut c_void,
    pub(crate) register_handler:
        Option<unsafe extern "C" fn(*mut FfiRegisterHandler) -> *mut Error>,
}

/// `PJRT_FFI_Register_Handler_Args`, which has no `extension_start`.
#[repr(C)]
pub(crate) struct FfiRegisterHandler {
    pub(crate) struct_size: usize,
    pub(crate) target_name: *const c_char,
    pub(crate) target_name_size: usize,
    pub(crate) handler: *mut c_void,
    pub(crate) platform_name: *const c_char,
    pub(crate) platform_name_size: usize,
    pub(crate) traits: c_int,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_structs_have_the_sizes_of_the_c_header() {
        let sizes = [
            (ErrorMessage::SIZE, 40),
            (ErrorGetCode::SIZE, 28),
            (PluginInitialize::SIZE, 16),
            (PluginAttributes::SIZE, 32),
            (EventIsReady::SIZE, 25),
            (EventOnReady::SIZE, 40),
            (ClientCreate::SIZE, 88),
            (ClientPlatformName::SIZE, 40),
            (ClientProcessIndex::SIZE, 28),
            (ClientAddressableDevices::SIZE, 40),
            (ClientCompile::SIZE, 56),
            (BufferFromHost::SIZE, 120),
            (DescriptionAttributes::SIZE, 40),
            (DeviceMemoryStats::SIZE, 201),
            (ExecutableSerialize::SIZE, 56),
            (ExecutableOutputDimensions::SIZE, 48),
            (ExecutableMemoryStats::SIZE, 144),
            (LoadedExecute::SIZE, 80),
            (DeserializeAndLoad::SIZE, 72),
            (BufferDimensions::SIZE, 40),
            (BufferToHost::SIZE, 56),
            (BufferReadyEvent::SIZE, 32),
            (BufferIncreaseExternalReferenceCount::SIZE, 24),
            (BufferMemoryPointer::SIZE, 32),
            (size_of::<NamedValue>(), 56),
            (size_of::<Program>(), 48),
            (size_of::<ExecuteOptions>(), 144),
            (size_of::<TiledLayout>(), 56),
            (size_of::<MemoryLayout>(), 80),
            (size_of::<Extension>(), 24),
            (size_of::<FfiExtension>(), 48),
            (offset_of!(FfiRegisterHandler, traits) + 4, 52),
        ];
        for (index, (ours, header)) in sizes.into_iter().enumerate() {
            assert_eq!(ours, header, "row {index}");
        }
    }

    #[test]
    fn fields_have_the_offsets_of_the_c_header() {
        assert_eq!(offset_of!(ClientCreate, client), 64);
        assert_eq!(offset_of!(BufferFromHost, semantics), 72);
        assert_eq!(offset_of!(BufferFromHost, done_with_host_buffer), 104);
        assert_eq!(offset_of!(ExecutableSerialize, deleter), 48);
        assert_eq!(offset_of!(ExecutableMemoryStats, temporary), 56);
        assert_eq!(offset_of!(ExecutableMemoryStats, peak), 104);
        assert_eq!(offset_of!(LoadedExecute, complete_events), 64);
        assert_eq!(offset_of!(DeserializeAndLoad, loaded), 40);
        assert_eq!(offset_of!(ExecuteOptions, launch_id), 48);
        assert_eq!(offset_of!(ExecuteOptions, context), 72);
        assert_eq!(offset_of!(ExecuteOptions, multi_slice_config), 112);
        assert_eq!(offset_of!(NamedValue, value), 40);
        assert_eq!(offset_of!(FfiExtension, register_handler), 40);
        assert_eq!(offset_of!(MemoryLayout, kind), 72);
    }
}
