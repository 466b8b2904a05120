//! Owners of oneDNN's objects: memory descriptors, primitive descriptors, and operations that are ready to run.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use crate::scratchpad::{ALIGNMENT, Scratchpad};
use crate::sys::{self, Api, ExecArgument, Handle, MAX_DIMS, Status, argument};

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

fn check(doing: &'static str, status: Status) -> Result<()> {
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
    stream: Handle,
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
    fn reorder_desc(&self, from: &MemoryDesc, to: &MemoryDesc) -> Result<PrimitiveDesc> {
        // SAFETY: two live layouts and the engine.
        unsafe {
            self.primitive_desc("change a layout", |out, engine, attributes| {
                (self.api.reorder)(out, from.handle, engine, to.handle, engine, attributes)
            })
        }
    }

    fn memory(&self, layout: &MemoryDesc) -> Result<Memory> {
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

    fn equals(&self, other: &Self) -> bool {
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
    fn scratchpad(&self) -> Result<MemoryDesc> {
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

    fn primitive(&self) -> Result<Primitive> {
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

struct Primitive {
    api: &'static Api,
    handle: Handle,
}

impl Drop for Primitive {
    fn drop(&mut self) {
        // SAFETY: it is ours, and it does not run.
        unsafe { (self.api.primitive_destroy)(self.handle) };
    }
}

/// A layout with an address, which is set before each use.
struct Memory {
    api: &'static Api,
    handle: Handle,
    bytes: usize,
}

impl Memory {
    fn as_argument(&self, index: c_int) -> ExecArgument {
        ExecArgument {
            index,
            memory: self.handle,
        }
    }

    fn set(&self, data: *mut u8) -> Result<()> {
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

/// Whether an operation reads or writes an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgumentKind {
    Input,
    Output,
}

/// A primitive that can be run any number of times. It takes its arguments in the caller's layouts, and reorders those for which the
/// primitive wants another one.
pub(crate) struct Operation {
    primitive: Primitive,
    implementation: String,
    arguments: Vec<Argument>,
    /// What the primitive is executed with: the memories of `arguments` and of `workspaces`.
    execution_arguments: Vec<ExecArgument>,
    /// The scratchpads of the primitive and of each reorder; they run one after the other and share the same bytes.
    workspaces: Vec<Memory>,
    scratchpad: usize,
}

struct Argument {
    kind: ArgumentKind,
    callers: Memory,
    reordered: Option<Reordered>,
}

/// An argument in the layout that the primitive wants, where that is not the caller's.
struct Reordered {
    memory: Memory,
    reorder: Primitive,
    /// What the reorder is executed with.
    execution_arguments: Vec<ExecArgument>,
    /// Its offset in the scratchpad.
    offset: usize,
}

impl Operation {
    /// Makes the operation of a primitive descriptor. `arguments` lists, in the order in which [`Operation::run`] takes them, the index of each, its
    /// direction and the caller's layout of it.
    pub(crate) fn new(
        onednn: &OneDnn,
        primitive_desc: &PrimitiveDesc,
        arguments: &[(c_int, ArgumentKind, &MemoryDesc)],
    ) -> Result<Self> {
        let mut operation = Self {
            primitive: primitive_desc.primitive()?,
            implementation: primitive_desc.implementation(),
            arguments: Vec::new(),
            execution_arguments: Vec::new(),
            workspaces: Vec::new(),
            scratchpad: 0,
        };
        let workspace = operation.workspace(onednn, primitive_desc)?;
        operation.execution_arguments.extend(workspace);
        for &(index, kind, layout) in arguments {
            let argument =
                operation.argument(onednn, kind, layout, &primitive_desc.layout(index)?)?;
            let used = argument
                .reordered
                .as_ref()
                .map_or(&argument.callers, |reordered| &reordered.memory);
            operation.execution_arguments.push(used.as_argument(index));
            operation.arguments.push(argument);
        }
        Ok(operation)
    }

    /// The scratchpad of a primitive descriptor as an argument of its executions, where it needs one.
    fn workspace(
        &mut self,
        onednn: &OneDnn,
        primitive_desc: &PrimitiveDesc,
    ) -> Result<Option<ExecArgument>> {
        let layout = primitive_desc.scratchpad()?;
        if layout.bytes() == 0 {
            return Ok(None);
        }
        let memory = onednn.memory(&layout)?;
        let argument = memory.as_argument(argument::SCRATCHPAD);
        self.workspaces.push(memory);
        Ok(Some(argument))
    }

    fn argument(
        &mut self,
        onednn: &OneDnn,
        kind: ArgumentKind,
        callers: &MemoryDesc,
        wanted: &MemoryDesc,
    ) -> Result<Argument> {
        let memory = onednn.memory(callers)?;
        if callers.equals(wanted) {
            return Ok(Argument {
                kind,
                callers: memory,
                reordered: None,
            });
        }
        let offset = self.scratchpad;
        self.scratchpad += wanted.bytes().next_multiple_of(ALIGNMENT);
        let reordered = onednn.memory(wanted)?;
        let (from, to, primitive_desc) = match kind {
            ArgumentKind::Input => (&memory, &reordered, onednn.reorder_desc(callers, wanted)?),
            ArgumentKind::Output => (&reordered, &memory, onednn.reorder_desc(wanted, callers)?),
        };
        let mut execution_arguments = vec![
            from.as_argument(argument::SRC),
            to.as_argument(argument::DST),
        ];
        execution_arguments.extend(self.workspace(onednn, &primitive_desc)?);
        let reorder = primitive_desc.primitive()?;
        let reordered = Reordered {
            memory: reordered,
            reorder,
            execution_arguments,
            offset,
        };
        Ok(Argument {
            kind,
            callers: memory,
            reordered: Some(reordered),
        })
    }

    /// The implementation and how many arguments change their layout.
    pub(crate) fn describe(&self) -> String {
        let reordered = self
            .arguments
            .iter()
            .filter(|argument| argument.reordered.is_some());
        format!("{} ({} reordered)", self.implementation, reordered.count())
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// oneDNN's own.
    ///
    /// # Panics
    /// The lengths do not fit the arguments' layouts, or the scratchpad is too small: bugs of the caller.
    ///
    /// # Safety
    /// Each of `data` points at as many bytes as it says, which nobody else uses meanwhile (inputs: nobody writes).
    pub(crate) unsafe fn run(
        &self,
        onednn: &OneDnn,
        data: &[(*mut u8, usize)],
        scratchpad: &mut Scratchpad,
    ) -> Result<()> {
        assert_eq!(
            data.len(),
            self.arguments.len(),
            "arguments of an operation"
        );
        let workspaces = self.workspaces.iter().map(|memory| memory.bytes).max();
        let base = scratchpad.at_least(self.scratchpad + workspaces.unwrap_or(0));
        for memory in &self.workspaces {
            memory.set(base.wrapping_add(self.scratchpad))?;
        }
        for (argument, &(pointer, bytes)) in self.arguments.iter().zip(data) {
            assert_eq!(bytes, argument.callers.bytes, "bytes of an argument");
            argument.callers.set(pointer)?;
            if let Some(reordered) = &argument.reordered {
                reordered.memory.set(base.wrapping_add(reordered.offset))?;
            }
        }
        // SAFETY: every memory has an address with as many bytes as its layout needs: checked above, and `scratchpad` covers the offsets.
        unsafe {
            self.change_layouts(onednn, ArgumentKind::Input)?;
            execute(onednn, &self.primitive, &self.execution_arguments)?;
            self.change_layouts(onednn, ArgumentKind::Output)?;
            check("finish", (onednn.api.stream_wait)(onednn.stream))
        }
    }

    /// # Safety
    /// All memories have good addresses.
    unsafe fn change_layouts(&self, onednn: &OneDnn, kind: ArgumentKind) -> Result<()> {
        for argument in self
            .arguments
            .iter()
            .filter(|argument| argument.kind == kind)
        {
            let Some(reordered) = &argument.reordered else {
                continue;
            };
            // SAFETY: the caller's promise.
            unsafe { execute(onednn, &reordered.reorder, &reordered.execution_arguments)? };
        }
        Ok(())
    }
}

/// # Safety
/// The memories fit the primitive and have good addresses.
unsafe fn execute(
    onednn: &OneDnn,
    primitive: &Primitive,
    execution_arguments: &[ExecArgument],
) -> Result<()> {
    // SAFETY: the caller's promise; the list has the length given.
    check("run", unsafe {
        (onednn.api.primitive_execute)(
            primitive.handle,
            onednn.stream,
            execution_arguments.len() as c_int,
            execution_arguments.as_ptr(),
        )
    })
}
