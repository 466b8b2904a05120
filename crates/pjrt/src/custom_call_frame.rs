//! The frame of a custom call as its handler sees it: typed views of operands, results and attributes.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cuda::CudaDriver;
use crate::element::{Element, ElementType};
use crate::error::StatusCode;
use crate::plugin::{slice, text};
use crate::sys_ffi::{self as ffi, CallFrame};

/// The error of a handler, which becomes the error of the execution, with the handler's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CustomCallError {
    /// What kind of failure it is.
    pub code: StatusCode,
    /// What is wrong, for the user.
    pub message: String,
}

impl CustomCallError {
    /// An error of this kind.
    #[must_use]
    pub fn new(code: StatusCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    fn invalid(message: String) -> Self {
        Self::new(StatusCode::InvalidArgument, message)
    }
}

/// Where the operands and results of calls are.
#[derive(Clone, Copy)]
pub(crate) enum CallMemory {
    Host,
    /// In the memory of GPUs of this driver.
    Cuda(&'static CudaDriver),
}

/// One call of a handler: operands, results, attributes.
pub struct CustomCallFrame<'a> {
    frame: &'a CallFrame,
    pub(crate) memory: CallMemory,
    pub(crate) operands: &'a [*const ffi::Buffer],
    pub(crate) results: &'a [*const ffi::Buffer],
    taken: Vec<bool>,
}

/// Value of an attribute of a custom call (a key of its `backend_config`).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CustomCallAttribute<'a> {
    /// An integer of any width.
    Int(i64),
    /// A float of any width.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(&'a str),
    /// An array of integers.
    Ints(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f64>),
}

impl<'a> CustomCallFrame<'a> {
    /// # Safety
    /// `frame` is a call frame of the execute stage that lives for `'a`.
    pub(crate) unsafe fn new(frame: &'a CallFrame, memory: CallMemory) -> Self {
        // SAFETY: the caller's promise; the lists have the sizes given.
        let list = |buffers: &'a ffi::Buffers| unsafe {
            slice(buffers.values, usize::try_from(buffers.count).unwrap_or(0))
        };
        let (operands, results) = (list(&frame.operands), list(&frame.results));
        Self {
            frame,
            memory,
            operands,
            results,
            taken: vec![false; results.len()],
        }
    }

    /// Number of operands.
    #[must_use]
    pub fn operands(&self) -> usize {
        self.operands.len()
    }

    /// Number of results.
    #[must_use]
    pub fn results(&self) -> usize {
        self.results.len()
    }

    /// Element type and dimensions of an operand.
    ///
    /// # Errors
    /// There is no such operand, or its type is not one of [`ElementType`].
    pub fn operand_shape(&self, index: usize) -> Result<(ElementType, &'a [i64]), CustomCallError> {
        shape(operand_or_result(self.operands, index, "operand")?)
    }

    /// Element type and dimensions of a result.
    ///
    /// # Errors
    /// There is no such result, or its type is not one of [`ElementType`].
    pub fn result_shape(&self, index: usize) -> Result<(ElementType, &'a [i64]), CustomCallError> {
        shape(operand_or_result(self.results, index, "result")?)
    }

    /// Number of bytes of an operand.
    ///
    /// # Errors
    /// As for [`CustomCallFrame::operand_shape`].
    pub fn operand_size(&self, index: usize) -> Result<usize, CustomCallError> {
        bytes(operand_or_result(self.operands, index, "operand")?)
    }

    /// The elements of an operand, row-major.
    ///
    /// # Errors
    /// There is no such operand, its elements are not `T`, it is not in the host's memory, or it shares its memory with a result
    /// (`output_operand_aliases`): then the result holds its contents.
    pub fn operand<T: Element>(&self, index: usize) -> Result<&'a [T], CustomCallError> {
        let buffer = self.unaliased_operand(index)?;
        check_type::<T>(buffer, index, "operand")?;
        let count = count(shape(buffer)?.1);
        check_alignment::<T>(buffer, index, "operand")?;
        // SAFETY: XLA passes that many elements, alive during the call; no `&mut` overlaps (checked in `unaliased_operand`).
        Ok(unsafe { slice(buffer.data.cast::<T>(), count) })
    }

    /// The bytes of an operand of any type.
    ///
    /// # Errors
    /// As for [`CustomCallFrame::operand`].
    pub fn operand_bytes(&self, index: usize) -> Result<&'a [u8], CustomCallError> {
        let buffer = self.unaliased_operand(index)?;
        let bytes = bytes(buffer)?;
        // SAFETY: as in `operand`.
        Ok(unsafe { slice(buffer.data.cast::<u8>(), bytes) })
    }

    /// The elements of a result, row-major, to be written; each result can be taken once.
    ///
    /// # Errors
    /// There is no such result, it was taken already, its elements are not `T`, or it is not in the host's memory.
    pub fn result<T: Element>(&mut self, index: usize) -> Result<&'a mut [T], CustomCallError> {
        self.check_on_host()?;
        let buffer = operand_or_result(self.results, index, "result")?;
        check_type::<T>(buffer, index, "result")?;
        check_alignment::<T>(buffer, index, "result")?;
        let count = count(shape(buffer)?.1);
        self.take(index)?;
        // SAFETY: XLA passes that many elements for us to write; `take` hands each result out once, and operands never overlap it.
        Ok(unsafe { slice_mut(buffer.data.cast::<T>(), count) })
    }

    /// The bytes of a result of any type, to be written; each result can be taken once.
    ///
    /// # Errors
    /// There is no such result, it was taken already, or it is not in the host's memory.
    pub fn result_bytes(&mut self, index: usize) -> Result<&'a mut [u8], CustomCallError> {
        self.check_on_host()?;
        let buffer = operand_or_result(self.results, index, "result")?;
        let bytes = bytes(buffer)?;
        self.take(index)?;
        // SAFETY: as in `result`.
        Ok(unsafe { slice_mut(buffer.data.cast::<u8>(), bytes) })
    }

    /// An attribute.
    ///
    /// # Errors
    /// There is none of this name, or it is of a kind that [`CustomCallAttribute`] lacks.
    pub fn attribute(&self, name: &str) -> Result<CustomCallAttribute<'a>, CustomCallError> {
        self.optional_attribute(name)?.ok_or_else(|| {
            let names = self.attribute_names();
            CustomCallError::invalid(format!("there is no attribute `{name}`, only {names:?}"))
        })
    }

    /// An attribute that a call may lack.
    ///
    /// # Errors
    /// It is of a kind that [`CustomCallAttribute`] lacks.
    pub fn optional_attribute(
        &self,
        name: &str,
    ) -> Result<Option<CustomCallAttribute<'a>>, CustomCallError> {
        let names = self.attribute_names();
        let Some(index) = names.iter().position(|candidate| candidate == name) else {
            return Ok(None);
        };
        let list = &self.frame.attributes;
        // SAFETY: the lists have that length and live during the call; each value has the type that its kind names.
        unsafe {
            let kind = slice(list.kinds, names.len())[index];
            let value = read_attribute(kind, slice(list.values, names.len())[index]);
            let unsupported = || {
                CustomCallError::invalid(format!(
                    "the attribute `{name}` is of an unsupported kind ({kind})"
                ))
            };
            value.ok_or_else(unsupported).map(Some)
        }
    }

    fn attribute_names(&self) -> Vec<String> {
        let list = &self.frame.attributes;
        let count = usize::try_from(list.count).unwrap_or(0);
        // SAFETY: the list has that length and lives during the call.
        unsafe {
            let names = slice(list.names, count).iter();
            names
                .map(|name| text((**name).pointer, (**name).size))
                .collect()
        }
    }

    /// An integer attribute.
    ///
    /// # Errors
    /// There is none of this name, or it is not an integer.
    pub fn int(&self, name: &str) -> Result<i64, CustomCallError> {
        match self.attribute(name)? {
            CustomCallAttribute::Int(value) => Ok(value),
            other => Err(CustomCallError::invalid(format!(
                "the attribute `{name}` must be an integer, got {other:?}"
            ))),
        }
    }

    /// The tag of the execution: on CPU its `launch_id` when that is not zero.
    ///
    /// # Errors
    /// The plugin's own.
    pub fn run_id(&self) -> Result<i64, CustomCallError> {
        self.context_get(ffi::table::RUN_ID_GET, 0i64, "run id")
    }

    /// Id of the device that makes the call.
    ///
    /// # Errors
    /// The plugin's own.
    pub fn device_ordinal(&self) -> Result<i32, CustomCallError> {
        self.context_get(ffi::table::DEVICE_ORDINAL_GET, 0i32, "device ordinal")
    }

    /// Number of the plugin's threads that operations share; 1 where it does not tell.
    #[must_use]
    pub fn threads(&self) -> usize {
        let mut count = 1i64;
        let told = self.context_get(
            ffi::table::THREAD_POOL_NUM_THREADS,
            &raw mut count,
            "threads",
        );
        match told {
            Ok(_) => usize::try_from(count).unwrap_or(1).max(1),
            Err(_) => 1,
        }
    }

    /// Has one of the plugin's threads that operations share run a task when it has nothing else to do, which may be after this call has
    /// returned; whether the plugin took it. A panic of the task is lost.
    #[must_use]
    pub fn schedule(&self, task: impl FnOnce() + Send + 'static) -> bool {
        let task: Box<Task> = Box::new(Box::new(task));
        let data = Box::into_raw(task);
        let mut args = ffi::Schedule {
            struct_size: size_of::<ffi::Schedule>(),
            extension_start: std::ptr::null(),
            context: self.frame.context,
            task: run_task,
            data: data.cast(),
        };
        // SAFETY: the slot is below the table's size, holds a function of this struct, and the context lives during the call.
        let taken = unsafe {
            function(self.frame.api, ffi::table::THREAD_POOL_SCHEDULE).is_some_and(|function| {
                let function: unsafe extern "C" fn(*mut ffi::Schedule) -> *mut c_void =
                    std::mem::transmute(function);
                function(&raw mut args).is_null()
            })
        };
        if !taken {
            // SAFETY: the plugin did not take it, so that it is still ours.
            drop(unsafe { Box::from_raw(data) });
        }
        taken
    }

    pub(crate) fn context_get<T>(
        &self,
        slot: usize,
        zero: T,
        what: &str,
    ) -> Result<T, CustomCallError> {
        let mut args = ffi::ContextGet {
            struct_size: std::mem::offset_of!(ffi::ContextGet<T>, value) + size_of::<T>(),
            extension_start: std::ptr::null(),
            context: self.frame.context,
            value: zero,
        };
        // SAFETY: the slot is below the table's size, holds a function of this struct, and the context lives during the call.
        let failed = unsafe {
            let function = function(self.frame.api, slot).ok_or_else(|| {
                CustomCallError::new(
                    StatusCode::Unimplemented,
                    format!("this plugin has no {what}"),
                )
            })?;
            let function: unsafe extern "C" fn(*mut ffi::ContextGet<T>) -> *mut c_void =
                std::mem::transmute(function);
            !function(&raw mut args).is_null()
        };
        if failed {
            Err(CustomCallError::new(
                StatusCode::Internal,
                format!("the plugin does not tell the {what}"),
            ))
        } else {
            Ok(args.value)
        }
    }

    /// Refuses what reads or writes operands and results where they are.
    fn check_on_host(&self) -> Result<(), CustomCallError> {
        match self.memory {
            CallMemory::Host => Ok(()),
            CallMemory::Cuda(_) => Err(CustomCallError::new(
                StatusCode::Unimplemented,
                "the operands and results of this call are in the memory of a GPU",
            )),
        }
    }

    /// An operand in the host's memory that shares none of it with a result.
    fn unaliased_operand(&self, index: usize) -> Result<&'a ffi::Buffer, CustomCallError> {
        self.check_on_host()?;
        let operand = operand_or_result(self.operands, index, "operand")?;
        let range = range(operand)?;
        for (result_index, result) in self.results.iter().enumerate() {
            // SAFETY: buffers of the frame live during the call.
            let other = self::range(unsafe { &**result })?;
            if range.start < other.end && other.start < range.end {
                return Err(CustomCallError::invalid(format!(
                    "operand {index} shares its memory with result {result_index}: use that"
                )));
            }
        }
        Ok(operand)
    }

    pub(crate) fn take(&mut self, index: usize) -> Result<(), CustomCallError> {
        if std::mem::replace(&mut self.taken[index], true) {
            return Err(CustomCallError::invalid(format!(
                "result {index} was taken already"
            )));
        }
        Ok(())
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// # Safety
/// `data` is a task that [`CustomCallFrame::schedule`] gave away, and this is the only call with it.
unsafe extern "C" fn run_task(data: *mut c_void) {
    // SAFETY: the caller's promise.
    let task = unsafe { Box::from_raw(data.cast::<Task>()) };
    // There is nobody to tell of a panic.
    let _ = catch_unwind(AssertUnwindSafe(*task));
}

pub(crate) fn operand_or_result<'a>(
    buffers: &'a [*const ffi::Buffer],
    index: usize,
    what: &str,
) -> Result<&'a ffi::Buffer, CustomCallError> {
    let missing = || {
        CustomCallError::invalid(format!(
            "there is no {what} {index}: the call has {}",
            buffers.len()
        ))
    };
    // SAFETY: buffers of the frame live during the call.
    buffers
        .get(index)
        .map(|buffer| unsafe { &**buffer })
        .ok_or_else(missing)
}

fn shape(buffer: &ffi::Buffer) -> Result<(ElementType, &[i64]), CustomCallError> {
    let unknown = || {
        CustomCallError::invalid(format!(
            "the element type number {} is not supported",
            buffer.element_type
        ))
    };
    let element = ElementType::from_ffi(buffer.element_type).ok_or_else(unknown)?;
    // SAFETY: `dims` has `rank` entries and lives during the call.
    Ok((element, unsafe {
        slice(buffer.dims, usize::try_from(buffer.rank).unwrap_or(0))
    }))
}

fn count(dims: &[i64]) -> usize {
    dims.iter()
        .map(|dim| usize::try_from(*dim).unwrap_or(0))
        .product()
}

pub(crate) fn bytes(buffer: &ffi::Buffer) -> Result<usize, CustomCallError> {
    let (element, dims) = shape(buffer)?;
    Ok(count(dims) * element.bytes())
}

fn range(buffer: &ffi::Buffer) -> Result<std::ops::Range<usize>, CustomCallError> {
    let start = buffer.data as usize;
    Ok(start..start + bytes(buffer)?)
}

fn check_type<T: Element>(
    buffer: &ffi::Buffer,
    index: usize,
    what: &str,
) -> Result<(), CustomCallError> {
    let (element, dims) = shape(buffer)?;
    if element == T::TYPE {
        return Ok(());
    }
    Err(CustomCallError::invalid(format!(
        "{what} {index} has elements of type {element} (dimensions {dims:?}), the handler expects {}",
        T::TYPE
    )))
}

fn check_alignment<T>(
    buffer: &ffi::Buffer,
    index: usize,
    what: &str,
) -> Result<(), CustomCallError> {
    if buffer.data.cast::<T>().is_aligned() {
        Ok(())
    } else {
        Err(CustomCallError::new(
            StatusCode::Internal,
            format!("{what} {index} is not aligned"),
        ))
    }
}

/// # Safety
/// `pointer` is null or points at `count` values that live for `'a` and that nothing else refers to.
unsafe fn slice_mut<'a, T>(pointer: *mut T, count: usize) -> &'a mut [T] {
    if pointer.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(pointer, count) }
}

/// # Safety
/// `value` points at the C value of an attribute of this kind.
unsafe fn read_attribute<'a>(kind: c_int, value: *const c_void) -> Option<CustomCallAttribute<'a>> {
    // SAFETY: the caller's promise; scalars and arrays hold elements of the type they name.
    unsafe {
        match kind {
            1 => {
                let ffi::Array {
                    element_type,
                    size,
                    data,
                } = value.cast::<ffi::Array>().read();
                if ElementType::from_ffi(element_type).is_some_and(is_float) {
                    return (0..size)
                        .map(|index| float(element_type, data, index))
                        .collect::<Option<_>>()
                        .map(CustomCallAttribute::Floats);
                }
                (0..size)
                    .map(|index| int(element_type, data, index))
                    .collect::<Option<_>>()
                    .map(CustomCallAttribute::Ints)
            }
            3 => {
                let ffi::Scalar {
                    element_type,
                    value,
                } = value.cast::<ffi::Scalar>().read();
                match ElementType::from_ffi(element_type)? {
                    ElementType::Pred => {
                        Some(CustomCallAttribute::Bool(value.cast::<u8>().read() != 0))
                    }
                    element if is_float(element) => {
                        float(element_type, value, 0).map(CustomCallAttribute::Float)
                    }
                    _ => int(element_type, value, 0).map(CustomCallAttribute::Int),
                }
            }
            4 => {
                let ffi::ByteSpan { pointer, size } = value.cast::<ffi::ByteSpan>().read();
                std::str::from_utf8(slice(pointer.cast(), size))
                    .ok()
                    .map(CustomCallAttribute::Text)
            }
            _ => None,
        }
    }
}

fn is_float(element: ElementType) -> bool {
    matches!(element, ElementType::F32 | ElementType::F64)
}

/// # Safety
/// `data` points at more than `index` elements of the type.
unsafe fn float(element_type: c_int, data: *const c_void, index: usize) -> Option<f64> {
    // SAFETY: the caller's promise.
    unsafe {
        match ElementType::from_ffi(element_type)? {
            ElementType::F32 => Some(f64::from(data.cast::<f32>().add(index).read_unaligned())),
            ElementType::F64 => Some(data.cast::<f64>().add(index).read_unaligned()),
            _ => None,
        }
    }
}

/// # Safety
/// `data` points at more than `index` elements of the type.
unsafe fn int(element_type: c_int, data: *const c_void, index: usize) -> Option<i64> {
    // SAFETY: the caller's promise.
    unsafe {
        match ElementType::from_ffi(element_type)? {
            ElementType::I8 => Some(data.cast::<i8>().add(index).read().into()),
            ElementType::I16 => Some(data.cast::<i16>().add(index).read_unaligned().into()),
            ElementType::I32 => Some(data.cast::<i32>().add(index).read_unaligned().into()),
            ElementType::I64 => Some(data.cast::<i64>().add(index).read_unaligned()),
            ElementType::U8 | ElementType::Pred => Some(data.cast::<u8>().add(index).read().into()),
            ElementType::U16 => Some(data.cast::<u16>().add(index).read_unaligned().into()),
            ElementType::U32 => Some(data.cast::<u32>().add(index).read_unaligned().into()),
            ElementType::U64 => i64::try_from(data.cast::<u64>().add(index).read_unaligned()).ok(),
            _ => None,
        }
    }
}

/// The function in a slot of `XLA_FFI_Api`, if the table is that long.
///
/// # Safety
/// `api` is an `XLA_FFI_Api*`.
pub(crate) unsafe fn function(api: *const u8, slot: usize) -> Option<*const c_void> {
    // SAFETY: the table starts with its size.
    unsafe {
        let present = !api.is_null() && slot + 8 <= api.cast::<usize>().read();
        present
            .then(|| api.add(slot).cast::<*const c_void>().read())
            .filter(|function| !function.is_null())
    }
}
