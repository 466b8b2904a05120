//! Owners of oneDNN's objects: memories, their descriptors, primitives and theirs.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use crate::sys::{self, Api, ExecArgument, Handle, MAX_DIMS, Status};

/// An error status of oneDNN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("onednn refuses to {doing}: {}", status_text(*status))]
pub(crate) struct OneDnnError {
    pub(crate) doing: &'static str,
    pub(crate) status: Status,
}

fn status_text(status: Status) -> String {
    match status {
        1 => "out of memory".into(),
        2 => "invalid arguments".into(),
        sys::UNIMPLEMENTED => "there is no implementation of it for this processor".into(),
        other => format!("status {other}"),
    }
}

pub(crate) type Result<T> = std::result::Result<T, OneDnnError>;

pub(crate) fn check(doing: &'static str, status: Status) -> Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(OneDnnError { doing, status })
    }
}

/// Element type of a layout, by oneDNN's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DataType {
    Bf16 = 2,
    F32 = 3,
}

/// The library with an engine and a stream. Its operations run one at a time, on any thread.
pub(crate) struct OneDnn {
    pub(crate) api: &'static Api,
    engine: Handle,
    pub(crate) stream: Handle,
    /// Attributes of every operation: the caller provides the scratchpad. The library's own would belong to the thread that made the
    /// operation.
    attributes: Handle,
}

impl OneDnn {
    /// Starts the CPU engine.
    pub(crate) fn start(api: &'static Api) -> Result<Self> {
        let (mut engine, mut stream, mut attributes) = (null_mut(), null_mut(), null_mut());
        // SAFETY: valid out pointers; the engine and the attributes that were made are passed on.
        unsafe {
            check(
                "start its engine",
                (api.engine_create)(&raw mut engine, sys::ENGINE_CPU, 0),
            )?;
            check(
                "open a stream",
                (api.stream_create)(&raw mut stream, engine, sys::STREAM_IN_ORDER),
            )?;
            check(
                "make attributes",
                (api.attributes_create)(&raw mut attributes),
            )?;
            check(
                "take scratch memory",
                (api.attributes_set_scratchpad_mode)(attributes, sys::SCRATCHPAD_USER),
            )?;
        }
        Ok(Self {
            api,
            engine,
            stream,
            attributes,
        })
    }

    /// A layout with these strides, in elements.
    pub(crate) fn strided(
        &self,
        element: DataType,
        dims: &[i64],
        strides: &[i64],
    ) -> Result<MemoryDesc> {
        assert!(dims.len() == strides.len() && dims.len() <= MAX_DIMS);
        self.new_layout(|out| {
            // SAFETY: both lists have the length given.
            unsafe {
                (self.api.memory_desc_with_strides)(
                    out,
                    dims.len() as c_int,
                    dims.as_ptr(),
                    element as c_int,
                    strides.as_ptr(),
                )
            }
        })
    }

    /// A memory descriptor whose layout the primitive chooses (`format_tag::any`).
    pub(crate) fn any_layout(&self, element: DataType, dims: &[i64]) -> Result<MemoryDesc> {
        assert!(dims.len() <= MAX_DIMS);
        self.new_layout(|out| {
            // SAFETY: the list has the length given.
            unsafe {
                (self.api.memory_desc_with_tag)(
                    out,
                    dims.len() as c_int,
                    dims.as_ptr(),
                    element as c_int,
                    sys::FORMAT_ANY,
                )
            }
        })
    }

    fn new_layout(&self, make: impl FnOnce(*mut Handle) -> Status) -> Result<MemoryDesc> {
        let mut handle = null_mut();
        check("describe a tensor", make(&raw mut handle))?;
        Ok(MemoryDesc {
            api: self.api,
            handle,
        })
    }

    /// A primitive descriptor that `make` creates with this engine and these attributes.
    ///
    /// # Safety
    /// `make` calls one of the functions that create primitive descriptors, with arguments as the header demands, and nothing else.
    pub(crate) unsafe fn primitive_desc(
        &self,
        doing: &'static str,
        make: impl FnOnce(*mut Handle, Handle, Handle) -> Status,
    ) -> Result<PrimitiveDesc> {
        let mut handle = null_mut();
        check(doing, make(&raw mut handle, self.engine, self.attributes))?;
        Ok(PrimitiveDesc {
            api: self.api,
            handle,
        })
    }

    /// The descriptor of a reorder from one layout to another.
    pub(crate) fn reorder_desc(&self, from: &MemoryDesc, to: &MemoryDesc) -> Result<PrimitiveDesc> {
        // SAFETY: two live layouts and the engine.
        unsafe {
            self.primitive_desc("change a layout", |out, engine, attributes| {
                (self.api.reorder)(out, from.handle, engine, to.handle, engine, attributes)
            })
        }
    }

    pub(crate) fn memory(&self, layout: &MemoryDesc) -> Result<Memory> {
        let mut handle = null_mut();
        // SAFETY: a live layout and engine; no data yet.
        let status = unsafe {
            (self.api.memory_create)(&raw mut handle, layout.handle, self.engine, null_mut())
        };
        check("make a memory", status)?;
        Ok(Memory {
            api: self.api,
            handle,
            bytes: layout.bytes(),
        })
    }
}

impl Drop for OneDnn {
    fn drop(&mut self) {
        // SAFETY: both are ours, and nothing runs.
        unsafe {
            (self.api.attributes_destroy)(self.attributes);
            (self.api.stream_destroy)(self.stream);
            (self.api.engine_destroy)(self.engine);
        }
    }
}

/// A memory descriptor: where the elements of a tensor are.
pub(crate) struct MemoryDesc {
    api: &'static Api,
    handle: Handle,
}

impl MemoryDesc {
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: the layout lives.
        unsafe { (self.api.memory_desc_size)(self.handle) }
    }

    pub(crate) fn equals(&self, other: &Self) -> bool {
        // SAFETY: both live.
        unsafe { (self.api.memory_desc_equal)(self.handle, other.handle) != 0 }
    }
}

impl Drop for MemoryDesc {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { (self.api.memory_desc_destroy)(self.handle) };
    }
}

/// A primitive descriptor: an operation whose layouts and implementation are chosen.
pub(crate) struct PrimitiveDesc {
    api: &'static Api,
    handle: Handle,
}

impl PrimitiveDesc {
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// The layout that it wants for an argument; empty where it has no such argument.
    pub(crate) fn layout(&self, argument: c_int) -> Result<MemoryDesc> {
        self.ask_layout(sys::query::EXEC_ARG_MD, argument)
    }

    /// The layout of the scratchpad that it needs; empty where it needs none.
    pub(crate) fn scratchpad(&self) -> Result<MemoryDesc> {
        self.ask_layout(sys::query::SCRATCHPAD, 0)
    }

    fn ask_layout(&self, question: c_int, index: c_int) -> Result<MemoryDesc> {
        let mut handle = null_mut();
        // SAFETY: the answer lives as long as the descriptor and is cloned at once; it is never null for these questions.
        let status = unsafe {
            let theirs = (self.api.primitive_desc_memory)(self.handle, question, index);
            (self.api.memory_desc_clone)(&raw mut handle, theirs)
        };
        check("tell a layout", status)?;
        Ok(MemoryDesc {
            api: self.api,
            handle,
        })
    }

    /// Name of the implementation, such as `brgconv:avx2`.
    pub(crate) fn implementation(&self) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: this question is answered with a string that lives as long as the descriptor.
        unsafe {
            let status = (self.api.primitive_desc_query)(
                self.handle,
                sys::query::IMPLEMENTATION,
                0,
                (&raw mut name).cast(),
            );
            if status != 0 || name.is_null() {
                return "unknown".into();
            }
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    }

    pub(crate) fn primitive(&self) -> Result<Primitive> {
        let mut handle = null_mut();
        // SAFETY: a live descriptor.
        let status = unsafe { (self.api.primitive_create)(&raw mut handle, self.handle) };
        check("make an operation", status)?;
        Ok(Primitive {
            api: self.api,
            handle,
        })
    }
}

impl Drop for PrimitiveDesc {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { (self.api.primitive_desc_destroy)(self.handle) };
    }
}

pub(crate) struct Primitive {
    api: &'static Api,
    pub(crate) handle: Handle,
}

impl Drop for Primitive {
    fn drop(&mut self) {
        // SAFETY: it is ours, and it does not run.
        unsafe { (self.api.primitive_destroy)(self.handle) };
    }
}

/// A layout with an address, which is set before each use.
pub(crate) struct Memory {
    api: &'static Api,
    handle: Handle,
    pub(crate) bytes: usize,
}

impl Memory {
    pub(crate) fn as_argument(&self, index: c_int) -> ExecArgument {
        ExecArgument {
            index,
            memory: self.handle,
        }
    }

    pub(crate) fn set(&self, data: *mut u8) -> Result<()> {
        // SAFETY: the address is only used by executions, whose callers promise that it is good.
        check("take an address", unsafe {
            (self.api.memory_set_handle)(self.handle, data.cast())
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { (self.api.memory_destroy)(self.handle) };
    }
}
