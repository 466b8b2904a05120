//! Operations of oneDNN that are ready to run, with what is done to their arguments before and after.

use std::ffi::c_int;
use std::slice;

use phalanx_pjrt::Bf16;

use crate::onednn::{Memory, MemoryDesc, OneDnn, Primitive, PrimitiveDesc, Result, check};
use crate::openmp::ThreadTeam;
use crate::scratchpad::{ALIGNMENT, Scratchpad};
use crate::stored::{narrow_all, widen_all};
use crate::sys::{ExecArgument, argument};

/// Whether an operation reads or writes an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgumentKind {
    Input,
    Output,
}

/// Where the caller has the elements of an argument.
pub(crate) struct CallersLayout {
    pub(crate) layout: MemoryDesc,
    /// The same places in f32, where the caller's are bf16 and are computed with in f32. They are copied by a loop of ours: oneDNN's
    /// own has no vectors before AVX-512, and takes longer than the convolution.
    pub(crate) in_f32: Option<MemoryDesc>,
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

/// Numbers that a thread converts at a time.
const CONVERTED: usize = 1 << 14;

struct Argument {
    kind: ArgumentKind,
    /// Bytes that the caller has.
    bytes: usize,
    /// In the caller's layout, in f32 where it is widened.
    memory: Memory,
    /// The offset in the scratchpad of an argument that is widened.
    widened: Option<usize>,
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
        arguments: &[(c_int, ArgumentKind, &CallersLayout)],
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
                .map_or(&argument.memory, |reordered| &reordered.memory);
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
        callers: &CallersLayout,
        wanted: &MemoryDesc,
    ) -> Result<Argument> {
        let bytes = callers.layout.bytes();
        let widened = callers.in_f32.as_ref();
        let widened = widened.map(|in_f32| self.reserve(in_f32.bytes()));
        let callers = callers.in_f32.as_ref().unwrap_or(&callers.layout);
        let memory = onednn.memory(callers)?;
        if callers.equals(wanted) {
            return Ok(Argument {
                kind,
                bytes,
                memory,
                widened,
                reordered: None,
            });
        }
        let offset = self.reserve(wanted.bytes());
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
            bytes,
            memory,
            widened,
            reordered: Some(reordered),
        })
    }

    /// The offset of bytes of the scratchpad.
    fn reserve(&mut self, bytes: usize) -> usize {
        let offset = self.scratchpad;
        self.scratchpad += bytes.next_multiple_of(ALIGNMENT);
        offset
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
        team: &ThreadTeam,
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
            assert_eq!(bytes, argument.bytes, "bytes of an argument");
            let place = argument.widened.map(|offset| base.wrapping_add(offset));
            argument.memory.set(place.unwrap_or(pointer))?;
            if let Some(reordered) = &argument.reordered {
                reordered.memory.set(base.wrapping_add(reordered.offset))?;
            }
        }
        // SAFETY: every memory has an address with as many bytes as its layout needs: checked above, and `scratchpad` covers the offsets.
        unsafe {
            self.convert(team, ArgumentKind::Input, data, base);
            self.change_layouts(onednn, ArgumentKind::Input)?;
            execute(onednn, &self.primitive, &self.execution_arguments)?;
            self.change_layouts(onednn, ArgumentKind::Output)?;
            check("finish", (onednn.api.stream_wait)(onednn.stream))?;
            self.convert(team, ArgumentKind::Output, data, base);
        }
        Ok(())
    }

    /// Copies inputs that are widened into the scratchpad at `base`, or outputs back.
    ///
    /// # Safety
    /// As [`Operation::run`]; the scratchpad has the arguments' bytes.
    unsafe fn convert(
        &self,
        team: &ThreadTeam,
        kind: ArgumentKind,
        data: &[(*mut u8, usize)],
        base: *mut u8,
    ) {
        let all = self.arguments.iter().zip(data);
        for (argument, &(callers, bytes)) in all.filter(|(argument, _)| argument.kind == kind) {
            let Some(offset) = argument.widened else {
                continue;
            };
            let count = bytes / size_of::<Bf16>();
            let (callers, wide) = (
                callers.cast::<Bf16>(),
                base.wrapping_add(offset).cast::<f32>(),
            );
            assert!(callers.is_aligned(), "bf16 begins at an odd address");
            // SAFETY: the scratchpad is aligned, and has as many f32 at the offset as the caller has numbers.
            let wide = unsafe { slice::from_raw_parts_mut(wide, count) }.chunks_mut(CONVERTED);
            // SAFETY: the caller's promise, of arrays that are read and of those that are written.
            unsafe {
                if kind == ArgumentKind::Input {
                    let narrow = slice::from_raw_parts(callers, count).chunks(CONVERTED);
                    team.for_each(narrow.zip(wide), |(from, to)| widen_all(from, to));
                } else {
                    let narrow = slice::from_raw_parts_mut(callers, count).chunks_mut(CONVERTED);
                    team.for_each(narrow.zip(wide), |(to, from)| narrow_all(from, to));
                }
            }
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
