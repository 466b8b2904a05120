//! Copies of the operands and results of custom calls to the host and from it, wherever they are.

use std::ops::Range;
use std::time::Duration;

use crate::cuda::{CudaDriver, CudaStream};
use crate::custom_call_frame::{
    CallMemory, CustomCallError, CustomCallFrame, bytes, operand_or_result,
};
use crate::error::StatusCode;
use crate::sys_ffi::{self as ffi, Buffer};

impl CustomCallFrame<'_> {
    /// Copies operands, one behind the other, to the host, when what computes them is done.
    ///
    /// # Errors
    /// There are no such operands, their bytes are not as many as `to` has, or they are not there within this time.
    pub fn copy_operands(
        &self,
        operands: Range<usize>,
        to: &mut [u8],
        within: Duration,
    ) -> Result<(), CustomCallError> {
        let each = buffers(self.operands, operands.clone(), "operand")?;
        let parts = cut(to, &each)?;
        let CallMemory::Cuda(driver) = self.memory else {
            for (index, part) in operands.zip(parts) {
                part.copy_from_slice(self.operand_bytes(index)?);
            }
            return Ok(());
        };
        self.on_stream(driver, within, |stream| {
            for (part, buffer) in parts.into_iter().zip(each) {
                // SAFETY: XLA passes that many bytes of the GPU's memory, alive during the call, at whose end no copy is left.
                unsafe { stream.copy_to_host(buffer.data, part) }?;
            }
            Ok(())
        })
    }

    /// Copies bytes of the host to results, one behind the other; zeros where there are none. Each result can be taken once.
    ///
    /// # Errors
    /// There are no such results, one was taken already, their bytes are not as many as `from` has, or what was begun before is not done
    /// within this time.
    pub fn copy_to_results(
        &mut self,
        results: Range<usize>,
        from: Option<&[u8]>,
        within: Duration,
    ) -> Result<(), CustomCallError> {
        let each = buffers(self.results, results.clone(), "result")?;
        let mut rest = from;
        if let Some(from) = from {
            check_total(from.len(), &each)?;
        }
        let CallMemory::Cuda(driver) = self.memory else {
            for index in results {
                let to = self.result_bytes(index)?;
                match first(&mut rest, to.len()) {
                    Some(part) => to.copy_from_slice(part),
                    None => to.fill(0),
                }
            }
            return Ok(());
        };
        for index in results {
            self.take(index)?;
        }
        self.on_stream(driver, within, |stream| {
            for buffer in each {
                let length = bytes(buffer).map_err(|error| error.message)?;
                let part = first(&mut rest, length);
                // SAFETY: XLA passes that many bytes of the GPU's memory to write, alive during the call, at whose end no copy is left.
                unsafe { stream.copy_to_device(part, buffer.data, length) }?;
            }
            Ok(())
        })
    }

    /// Makes copies in the order of the call's stream, when all before them is done, and waits for them.
    fn on_stream(
        &self,
        driver: &CudaDriver,
        within: Duration,
        copies: impl FnOnce(&CudaStream<'_>) -> Result<(), String>,
    ) -> Result<(), CustomCallError> {
        let none = std::ptr::null_mut();
        let stream = self.context_get(ffi::table::STREAM_GET, none, "stream of a GPU")?;
        let failed = |why: String| CustomCallError::new(StatusCode::Internal, why);
        // SAFETY: it is the stream of this call, which is the driver's.
        let stream = unsafe { CudaStream::enter(driver, stream) }.map_err(failed)?;
        stream.wait(within).map_err(failed)?;
        let copied = copies(&stream);
        // No copy goes on when this returns, whatever has failed.
        let finished = stream.finish();
        copied.and(finished).map_err(failed)
    }
}

fn buffers<'a>(
    all: &'a [*const Buffer],
    range: Range<usize>,
    what: &str,
) -> Result<Vec<&'a Buffer>, CustomCallError> {
    range
        .map(|index| operand_or_result(all, index, what))
        .collect()
}

/// A part for each buffer, which are all of the bytes.
fn cut<'b>(mut all: &'b mut [u8], each: &[&Buffer]) -> Result<Vec<&'b mut [u8]>, CustomCallError> {
    check_total(all.len(), each)?;
    let mut parts = Vec::with_capacity(each.len());
    for buffer in each {
        let (part, rest) = all.split_at_mut(bytes(buffer)?);
        parts.push(part);
        all = rest;
    }
    Ok(parts)
}

/// Takes the first bytes, where there are some.
fn first<'b>(rest: &mut Option<&'b [u8]>, length: usize) -> Option<&'b [u8]> {
    let (part, behind) = rest.take()?.split_at(length);
    *rest = Some(behind);
    Some(part)
}

fn check_total(found: usize, each: &[&Buffer]) -> Result<(), CustomCallError> {
    let lengths = each.iter().map(|buffer| bytes(buffer));
    let expected: usize = lengths.sum::<Result<_, _>>()?;
    if found == expected {
        return Ok(());
    }
    Err(CustomCallError::new(
        StatusCode::Internal,
        format!("{found} bytes are to be copied, the program expects {expected}"),
    ))
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};

    use super::*;
    use crate::cuda::fake::{BUSY, DRIVER, ENTERED, FAILS_WITH};
    use crate::element::bytes_of;
    use crate::sys_ffi::{Attributes, Buffers, CallFrame, ContextGet};

    const LONG: Duration = Duration::from_secs(60);
    /// `XLA_FFI_DataType_F32`, `_PRED`.
    const F32: c_int = 11;
    const PRED: c_int = 1;

    unsafe extern "C" fn stream_get(args: *mut ContextGet<*mut c_void>) -> *mut c_void {
        // SAFETY: XLA's promise, which this test keeps.
        unsafe { (*args).value = std::ptr::without_provenance_mut(2) };
        std::ptr::null_mut()
    }

    /// XLA's table with the stream of a call alone.
    fn table() -> [usize; 24] {
        let mut table = [0; 24];
        table[0] = size_of_val(&table);
        table[ffi::table::STREAM_GET / 8] = stream_get as *const () as usize;
        table
    }

    fn buffer(element_type: c_int, dims: &[i64], data: *mut u8) -> Buffer {
        let _ = data.expose_provenance();
        Buffer {
            struct_size: size_of::<Buffer>(),
            extension_start: std::ptr::null(),
            element_type,
            data: data.cast(),
            rank: dims.len() as i64,
            dims: dims.as_ptr(),
        }
    }

    /// Calls with two arrays of f32, of two elements and one, and a truth value as operands and as results, in this memory.
    fn with_call(memory: CallMemory, work: impl FnOnce(&mut CustomCallFrame<'_>)) -> Vec<Vec<u8>> {
        let dims: [&[i64]; 3] = [&[2], &[1], &[]];
        let types = [F32, F32, PRED];
        let mut given = [
            bytes_of(&[1f32, 2.0]).to_vec(),
            bytes_of(&[3f32]).to_vec(),
            vec![1],
        ];
        let mut taken: Vec<Vec<u8>> = given.iter().map(|bytes| vec![9; bytes.len()]).collect();
        let all = |bytes: &mut [Vec<u8>]| -> Vec<Buffer> {
            let each = bytes.iter_mut().zip(types).zip(dims);
            each.map(|((bytes, element), dims)| buffer(element, dims, bytes.as_mut_ptr()))
                .collect()
        };
        let (operands, results) = (all(&mut given), all(&mut taken));
        let pointers = |all: &[Buffer]| all.iter().map(std::ptr::from_ref).collect::<Vec<_>>();
        let (operands, results) = (pointers(&operands), pointers(&results));
        let list = |of: &[*const Buffer]| Buffers {
            struct_size: size_of::<Buffers>(),
            extension_start: std::ptr::null(),
            count: of.len() as i64,
            kinds: std::ptr::null(),
            values: of.as_ptr(),
        };
        let table = table();
        let frame = CallFrame {
            struct_size: size_of::<CallFrame>(),
            extension_start: std::ptr::null(),
            api: table.as_ptr().cast(),
            context: std::ptr::null_mut(),
            stage: ffi::STAGE_EXECUTE,
            operands: list(&operands),
            results: list(&results),
            attributes: Attributes {
                struct_size: size_of::<Attributes>(),
                extension_start: std::ptr::null(),
                count: 0,
                kinds: std::ptr::null(),
                names: std::ptr::null(),
                values: std::ptr::null(),
            },
            future: std::ptr::null_mut(),
        };
        // SAFETY: all that the frame names lives until the end of this function.
        work(&mut unsafe { CustomCallFrame::new(&frame, memory) });
        taken
    }

    #[test]
    fn operands_and_results_are_copied_end_to_end_wherever_they_are() {
        for memory in [CallMemory::Host, CallMemory::Cuda(&DRIVER)] {
            let copied = with_call(memory, |call| {
                BUSY.set(3);
                let (mut arrays, mut truth) = ([0; 12], [0]);
                call.copy_operands(0..2, &mut arrays, LONG).unwrap();
                assert_eq!(arrays, bytes_of(&[1f32, 2.0, 3.0]));
                call.copy_operands(2..3, &mut truth, LONG).unwrap();
                assert_eq!(truth, [1]);
                let error = call.copy_operands(0..2, &mut truth, LONG).unwrap_err();
                assert!(error.message.contains("1 bytes"), "{error}");
                assert!(call.copy_operands(2..4, &mut arrays, LONG).is_err());
                let from = bytes_of(&[4f32, 5.0]);
                call.copy_to_results(0..1, Some(from), LONG).unwrap();
                call.copy_to_results(1..3, None, LONG).unwrap();
                let error = call.copy_to_results(0..1, None, LONG).unwrap_err();
                assert!(error.message.contains("taken already"), "{error}");
                let error = call.copy_to_results(0..1, Some(&[0]), LONG).unwrap_err();
                assert!(error.message.contains("expects 8"), "{error}");
                BUSY.set(0);
            });
            assert_eq!(copied, [bytes_of(&[4f32, 5.0]), &[0; 4], &[0]]);
            assert_eq!(ENTERED.get(), 0, "every context is left");
        }
    }

    #[test]
    fn what_is_on_a_gpu_is_not_read_where_it_is() {
        with_call(CallMemory::Cuda(&DRIVER), |call| {
            let refused = [
                call.operand::<f32>(0).unwrap_err(),
                call.operand_bytes(0).unwrap_err(),
                call.result::<f32>(0).unwrap_err(),
                call.result_bytes(0).unwrap_err(),
            ];
            for error in refused {
                assert!(error.message.contains("in the memory of a GPU"), "{error}");
            }
        });
    }

    #[test]
    fn a_gpu_that_is_not_done_or_fails_is_an_error() {
        with_call(CallMemory::Cuda(&DRIVER), |call| {
            BUSY.set(usize::MAX);
            let mut truth = [0];
            let error = call.copy_operands(2..3, &mut truth, Duration::from_millis(2));
            let error = error.unwrap_err().message;
            assert!(error.contains("not done after"), "{error}");
            assert_eq!(truth, [0], "nothing is copied before it is there");
            BUSY.set(0);
            FAILS_WITH.set(700);
            let error = call.copy_operands(2..3, &mut truth, LONG).unwrap_err();
            FAILS_WITH.set(0);
            let expected = "the GPU's driver cannot copy to the host: CUDA_ERROR_OF_A_TEST (700)";
            assert_eq!(error.message, expected);
        });
        assert_eq!(ENTERED.get(), 0, "every context is left");
    }
}
