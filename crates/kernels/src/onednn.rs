//! oneDNN's objects with owners: layouts, plans (primitive descriptors), and operations that are ready to run.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use crate::sys::{self, Api, ExecArgument, Handle, MAX_DIMS, Status, argument};

/// A refusal of oneDNN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("onednn refuses to {doing}: {}", status_text(*status))]
pub(crate) struct Refused {
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

pub(crate) type Result<T> = std::result::Result<T, Refused>;

fn check(doing: &'static str, status: Status) -> Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(Refused { doing, status })
    }
}

/// Element type of a layout, by oneDNN's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Bf16 = 2,
    F32 = 3,
}

/// The library with an engine and a stream; what is made from it runs one at a time, on any thread.
pub(crate) struct OneDnn {
    pub(crate) api: &'static Api,
    engine: Handle,
    stream: Handle,
    /// Of every operation: its scratch memory is ours. The library's own would belong to the thread that made the operation.
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
                (api.attributes_scratch)(attributes, sys::SCRATCH_OF_CALLER),
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
    pub(crate) fn strided(&self, element: Type, dims: &[i64], strides: &[i64]) -> Result<Layout> {
        assert!(dims.len() == strides.len() && dims.len() <= MAX_DIMS);
        self.new_layout(|out| {
            // SAFETY: both lists have the length given.
            unsafe {
                (self.api.layout_with_strides)(
                    out,
                    dims.len() as c_int,
                    dims.as_ptr(),
                    element as c_int,
                    strides.as_ptr(),
                )
            }
        })
    }

    /// A layout that the operation chooses.
    pub(crate) fn any(&self, element: Type, dims: &[i64]) -> Result<Layout> {
        assert!(dims.len() <= MAX_DIMS);
        self.new_layout(|out| {
            // SAFETY: the list has the length given.
            unsafe {
                (self.api.layout_with_tag)(
                    out,
                    dims.len() as c_int,
                    dims.as_ptr(),
                    element as c_int,
                    sys::FORMAT_ANY,
                )
            }
        })
    }

    fn new_layout(&self, make: impl FnOnce(*mut Handle) -> Status) -> Result<Layout> {
        let mut handle = null_mut();
        check("describe a tensor", make(&raw mut handle))?;
        Ok(Layout {
            api: self.api,
            handle,
        })
    }

    /// A plan that `make` creates with this engine and these attributes.
    ///
    /// # Safety
    /// `make` calls one of the functions that create primitive descriptors, with arguments as the header demands, and nothing else.
    pub(crate) unsafe fn plan(
        &self,
        doing: &'static str,
        make: impl FnOnce(*mut Handle, Handle, Handle) -> Status,
    ) -> Result<Plan> {
        let mut handle = null_mut();
        check(doing, make(&raw mut handle, self.engine, self.attributes))?;
        Ok(Plan {
            api: self.api,
            handle,
        })
    }

    /// The plan of a copy from one layout to another.
    fn reorder_plan(&self, from: &Layout, to: &Layout) -> Result<Plan> {
        // SAFETY: two live layouts and the engine.
        unsafe {
            self.plan("change a layout", |out, engine, attributes| {
                (self.api.reorder)(out, from.handle, engine, to.handle, engine, attributes)
            })
        }
    }

    fn memory(&self, layout: &Layout) -> Result<Memory> {
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

/// Where the elements of a tensor are in memory.
pub(crate) struct Layout {
    api: &'static Api,
    handle: Handle,
}

impl Layout {
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: the layout lives.
        unsafe { (self.api.layout_size)(self.handle) }
    }

    fn equals(&self, other: &Self) -> bool {
        // SAFETY: both live.
        unsafe { (self.api.layout_equal)(self.handle, other.handle) != 0 }
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { (self.api.layout_destroy)(self.handle) };
    }
}

/// An operation with its layouts and its implementation chosen.
pub(crate) struct Plan {
    api: &'static Api,
    handle: Handle,
}

impl Plan {
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// The layout that it wants for an argument; empty where it has no such argument.
    pub(crate) fn layout(&self, argument: c_int) -> Result<Layout> {
        self.ask_layout(sys::query::ARGUMENT, argument)
    }

    /// The layout of the scratch memory that it needs; empty where it needs none.
    fn scratch(&self) -> Result<Layout> {
        self.ask_layout(sys::query::SCRATCH, 0)
    }

    fn ask_layout(&self, question: c_int, index: c_int) -> Result<Layout> {
        let mut handle = null_mut();
        // SAFETY: the answer lives as long as the plan and is cloned at once; it is never null for these questions.
        let status = unsafe {
            let theirs = (self.api.plan_layout)(self.handle, question, index);
            (self.api.layout_clone)(&raw mut handle, theirs)
        };
        check("tell a layout", status)?;
        Ok(Layout {
            api: self.api,
            handle,
        })
    }

    /// Name of the implementation, such as `brgconv:avx2`.
    pub(crate) fn implementation(&self) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: this question is answered with a string that lives as long as the plan.
        unsafe {
            let status = (self.api.plan_query)(
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
        // SAFETY: a live plan.
        let status = unsafe { (self.api.primitive_create)(&raw mut handle, self.handle) };
        check("make an operation", status)?;
        Ok(Primitive {
            api: self.api,
            handle,
        })
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { (self.api.plan_destroy)(self.handle) };
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
            (self.api.memory_set)(self.handle, data.cast())
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
pub(crate) enum Flow {
    In,
    Out,
}

/// An operation that can be run any number of times: it takes and gives its arguments in the caller's layouts, and changes layouts
/// around itself where it wants others.
pub(crate) struct Operation {
    primitive: Primitive,
    implementation: String,
    arguments: Vec<Argument>,
    /// What the primitive is given; the memories of `arguments`, and of `working`.
    given: Vec<ExecArgument>,
    /// What the primitive, then each change of a layout, works in; they may use the same memory, one after the other.
    working: Vec<Memory>,
    scratch: usize,
}

struct Argument {
    flow: Flow,
    callers: Memory,
    own: Option<Own>,
}

/// The layout that the operation wants, when it is not the caller's.
struct Own {
    memory: Memory,
    reorder: Primitive,
    /// What the change of the layout is given.
    given: Vec<ExecArgument>,
    /// Where it is in the scratch memory.
    offset: usize,
}

/// Alignment of what lies in the scratch memory.
const ALIGNMENT: usize = 64;

impl Operation {
    /// Makes the operation of a plan. `arguments` lists, in the order in which [`Operation::run`] takes them, the index of each, its
    /// direction and the caller's layout of it.
    pub(crate) fn new(
        onednn: &OneDnn,
        plan: &Plan,
        arguments: &[(c_int, Flow, &Layout)],
    ) -> Result<Self> {
        let mut operation = Self {
            primitive: plan.primitive()?,
            implementation: plan.implementation(),
            arguments: Vec::new(),
            given: Vec::new(),
            working: Vec::new(),
            scratch: 0,
        };
        let workspace = operation.workspace(onednn, plan)?;
        operation.given.extend(workspace);
        for &(index, flow, layout) in arguments {
            let argument = operation.argument(onednn, flow, layout, &plan.layout(index)?)?;
            let used = argument
                .own
                .as_ref()
                .map_or(&argument.callers, |own| &own.memory);
            operation.given.push(used.as_argument(index));
            operation.arguments.push(argument);
        }
        Ok(operation)
    }

    /// The scratch memory of a plan as an argument of its executions, where it needs one.
    fn workspace(&mut self, onednn: &OneDnn, plan: &Plan) -> Result<Option<ExecArgument>> {
        let layout = plan.scratch()?;
        if layout.bytes() == 0 {
            return Ok(None);
        }
        let memory = onednn.memory(&layout)?;
        let argument = memory.as_argument(argument::SCRATCH);
        self.working.push(memory);
        Ok(Some(argument))
    }

    fn argument(
        &mut self,
        onednn: &OneDnn,
        flow: Flow,
        callers: &Layout,
        wanted: &Layout,
    ) -> Result<Argument> {
        let memory = onednn.memory(callers)?;
        if callers.equals(wanted) {
            return Ok(Argument {
                flow,
                callers: memory,
                own: None,
            });
        }
        let offset = self.scratch;
        self.scratch += wanted.bytes().next_multiple_of(ALIGNMENT);
        let own = onednn.memory(wanted)?;
        let (from, to, plan) = match flow {
            Flow::In => (&memory, &own, onednn.reorder_plan(callers, wanted)?),
            Flow::Out => (&own, &memory, onednn.reorder_plan(wanted, callers)?),
        };
        let mut given = vec![
            from.as_argument(argument::SRC),
            to.as_argument(argument::DST),
        ];
        given.extend(self.workspace(onednn, &plan)?);
        let reorder = plan.primitive()?;
        let own = Own {
            memory: own,
            reorder,
            given,
            offset,
        };
        Ok(Argument {
            flow,
            callers: memory,
            own: Some(own),
        })
    }

    /// The implementation and how many arguments change their layout.
    pub(crate) fn describe(&self) -> String {
        let own = self
            .arguments
            .iter()
            .filter(|argument| argument.own.is_some());
        format!("{} ({} reordered)", self.implementation, own.count())
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// oneDNN's own.
    ///
    /// # Panics
    /// The lengths are not those of the arguments' layouts, or the scratch memory is too small: bugs of the caller.
    ///
    /// # Safety
    /// Each of `data` points at as many bytes as it says, which nobody else uses meanwhile (inputs: nobody writes).
    pub(crate) unsafe fn run(
        &self,
        onednn: &OneDnn,
        data: &[(*mut u8, usize)],
        scratch: &mut Scratch,
    ) -> Result<()> {
        assert_eq!(
            data.len(),
            self.arguments.len(),
            "arguments of an operation"
        );
        let working = self.working.iter().map(|memory| memory.bytes).max();
        let base = scratch.at_least(self.scratch + working.unwrap_or(0));
        for memory in &self.working {
            memory.set(base.wrapping_add(self.scratch))?;
        }
        for (argument, &(pointer, bytes)) in self.arguments.iter().zip(data) {
            assert_eq!(bytes, argument.callers.bytes, "bytes of an argument");
            argument.callers.set(pointer)?;
            if let Some(own) = &argument.own {
                own.memory.set(base.wrapping_add(own.offset))?;
            }
        }
        // SAFETY: every memory has an address with as many bytes as its layout needs: checked above, and `scratch` covers the offsets.
        unsafe {
            self.change_layouts(onednn, Flow::In)?;
            execute(onednn, &self.primitive, &self.given)?;
            self.change_layouts(onednn, Flow::Out)?;
            check("finish", (onednn.api.stream_wait)(onednn.stream))
        }
    }

    /// # Safety
    /// All memories have good addresses.
    unsafe fn change_layouts(&self, onednn: &OneDnn, flow: Flow) -> Result<()> {
        for argument in self
            .arguments
            .iter()
            .filter(|argument| argument.flow == flow)
        {
            let Some(own) = &argument.own else { continue };
            // SAFETY: the caller's promise.
            unsafe { execute(onednn, &own.reorder, &own.given)? };
        }
        Ok(())
    }
}

/// # Safety
/// The memories fit the primitive and have good addresses.
unsafe fn execute(onednn: &OneDnn, primitive: &Primitive, given: &[ExecArgument]) -> Result<()> {
    // SAFETY: the caller's promise; the list has the length given.
    check("run", unsafe {
        (onednn.api.primitive_execute)(
            primitive.handle,
            onednn.stream,
            given.len() as c_int,
            given.as_ptr(),
        )
    })
}

/// Memory that operations share, one after the other; it only grows.
#[derive(Default)]
pub(crate) struct Scratch(Vec<Line>);

/// Bytes with the alignment that oneDNN likes.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "written through a pointer")] [u8; ALIGNMENT]);

impl Scratch {
    /// So many numbers, of any value.
    pub(crate) fn floats(&mut self, count: usize) -> &mut [f32] {
        let start = self.at_least(count * size_of::<f32>());
        // SAFETY: as in `doubles`.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), count) }
    }

    /// So many numbers, of any value.
    pub(crate) fn doubles(&mut self, count: usize) -> &mut [f64] {
        let start = self.at_least(count * size_of::<f64>());
        // SAFETY: so many bytes are there, aligned, initialised, and borrowed with the scratch; each pattern is a number.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), count) }
    }

    /// The start of at least so many bytes.
    fn at_least(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(ALIGNMENT);
        if self.0.len() < lines {
            // What was there is not needed: freed first, so that both are never there at once.
            self.0 = Vec::new();
            self.0 = vec![Line([0; ALIGNMENT]); lines];
        }
        self.0.as_mut_ptr().cast()
    }
}
