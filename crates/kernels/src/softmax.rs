//! What softmax and the logarithm of it are made of, for each row: the largest number, the exponentials of the differences from it, and their sum. The
//! custom call `phalanx.softmax`.
//!
//! A compiled program makes three passes over memory of it, each over all rows. Here a row is still in the cache for its second pass.

use phalanx_pjrt::{Client, CustomCallError, CustomCallFrame};

use crate::handlers::{expect_dims, invalid, register, replicas};
use crate::lanes::{Lanes, exp};
use crate::library::KernelError;
use crate::microkernel::{Isa, SimdKernel};
use crate::reductions::larger;
use crate::shared_tasks::{self, RowTasks, SharedWork};
use crate::simd;
use crate::simd_row::SimdRow;

/// Elements of a task, which is whole rows.
const TASK: usize = 1 << 15;
/// Vectors of partial results, which are independent of each other.
const PARTS: usize = 4;

/// Registers `phalanx.softmax` with this client's plugin for the rest of the process; does nothing when it is registered already.
///
/// # Errors
/// The processor lacks AVX2 or FMA, or the plugin has no custom calls.
pub fn register_softmax(client: &Client) -> Result<(), KernelError> {
    if !simd::has_fma() {
        let reason = "softmax is for processors with avx2 and fma".to_owned();
        return Err(KernelError::Register { reason });
    }
    register(client, "phalanx.softmax", softmax)
}

fn softmax(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let dims = call.operand_shape(0)?.1;
    let Some((_, rows)) = dims.split_last().filter(|_| !dims.contains(&0)) else {
        return Err(invalid(format!(
            "a softmax is of rows with elements, got {dims:?}"
        )));
    };
    expect_dims(call.result_shape(0)?.1, dims)?;
    expect_dims(call.result_shape(1)?.1, rows)?;
    expect_dims(call.result_shape(2)?.1, rows)?;
    let x = call.operand::<f32>(0)?;
    let results = [0, 1, 2].map(|index| Ok(call.result::<f32>(index)?.as_mut_ptr()));
    let [exponentials, sums, largest] = results;
    let rows: i64 = rows.iter().product();
    let rows = usize::try_from(rows).unwrap_or(0);
    let work = SoftmaxRows {
        isa: Isa::best_available(),
        x: x.as_ptr(),
        exponentials: exponentials?,
        sums: sums?,
        largest: largest?,
        columns: x.len() / rows,
        tasks: RowTasks::new([rows, x.len() / rows], TASK),
    };
    let threads = (call.threads() / replicas(call)?).max(1);
    shared_tasks::run(call, threads, work);
    Ok(())
}

/// A call, computed by several threads.
struct SoftmaxRows {
    isa: Isa,
    x: *const f32,
    exponentials: *mut f32,
    sums: *mut f32,
    largest: *mut f32,
    columns: usize,
    tasks: RowTasks,
}

// SAFETY: the arrays are used between the beginning and the end of a task, and the call, which keeps them alive, ends after the last task;
// each row is of one task, which one thread computes.
unsafe impl Send for SoftmaxRows {}
// SAFETY: as above.
unsafe impl Sync for SoftmaxRows {}

impl SharedWork for SoftmaxRows {
    type Scratch = ();

    fn tasks(&self) -> usize {
        self.tasks.count()
    }

    fn begin(&self) {}

    fn compute(&self, task: usize, (): &mut ()) {
        for row in self.tasks.rows_of(task) {
            let before = row * self.columns;
            // SAFETY: the arrays have this row, which nobody else uses; the processor has the instructions, or the call would not have been
            // registered.
            unsafe {
                let softmax = SoftmaxRow {
                    x: std::slice::from_raw_parts(self.x.add(before), self.columns),
                    exponentials: std::slice::from_raw_parts_mut(
                        self.exponentials.add(before),
                        self.columns,
                    ),
                    sum: &mut *self.sums.add(row),
                    largest: &mut *self.largest.add(row),
                };
                self.isa.run(softmax);
            }
        }
    }

    fn end(&self, (): ()) {}
}

/// A row and what is found of it.
struct SoftmaxRow<'a> {
    x: &'a [f32],
    exponentials: &'a mut [f32],
    sum: &'a mut f32,
    largest: &'a mut f32,
}

impl SimdKernel for SoftmaxRow<'_> {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        // SAFETY: the caller's promise.
        let (largest, sum) = unsafe {
            let largest = largest::<C::Vector>(self.x);
            (
                largest,
                exponentials::<C::Vector>(self.x, largest, self.exponentials),
            )
        };
        (*self.largest, *self.sum) = (largest, sum);
        if sum.is_nan() {
            self.by_numbers();
        }
    }
}

impl SoftmaxRow<'_> {
    /// As the formula has it for NaN, of which vectors do not find the maximum, and infinities.
    fn by_numbers(self) {
        let largest = self.x.iter().copied().fold(f32::NEG_INFINITY, larger);
        for (exponential, x) in self.exponentials.iter_mut().zip(self.x) {
            *exponential = (x - largest).exp();
        }
        (*self.largest, *self.sum) = (largest, self.exponentials.iter().sum());
    }
}

/// The largest of some numbers, if none is NaN.
///
/// # Safety
/// The instructions are there.
#[inline(always)]
unsafe fn largest<V: Lanes>(x: &[f32]) -> f32 {
    let (blocks, rest) = x.split_at(x.len() / (PARTS * V::LEN) * (PARTS * V::LEN));
    // SAFETY: the caller's promise; blocks have `PARTS` vectors.
    let parts = unsafe {
        let mut parts = [V::splat(f32::NEG_INFINITY); PARTS];
        for block in blocks.chunks_exact(PARTS * V::LEN) {
            for (part, number) in parts.iter_mut().zip(0..) {
                *part = part.max(V::load(block.as_ptr().add(number * V::LEN)));
            }
        }
        parts
    };
    let [a, b, c, d] = parts;
    let lanes = a.max(b).max(c.max(d)).numbers();
    let lanes = lanes[..V::LEN].iter().chain(rest);
    lanes.fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

/// Writes the exponentials of the differences from a number, and returns their sum.
///
/// # Safety
/// The instructions are there, and there is room for as many numbers.
#[inline(always)]
unsafe fn exponentials<V: Lanes>(x: &[f32], largest: f32, to: &mut [f32]) -> f32 {
    // SAFETY: the caller's promise; blocks have `PARTS` vectors, and the last one as many lanes as are left.
    unsafe {
        let shift = V::splat(largest);
        let mut sums = [V::splat(0.0); PARTS];
        let whole = x.len() / (PARTS * V::LEN) * (PARTS * V::LEN);
        for start in (0..whole).step_by(PARTS * V::LEN) {
            for (sum, number) in sums.iter_mut().zip(0..) {
                let at = start + number * V::LEN;
                let power = exp(V::load(x.as_ptr().add(at)).sub(shift));
                power.store(to.as_mut_ptr().add(at));
                *sum = sum.add(power);
            }
        }
        let [a, b, c, d] = sums;
        let lanes = a.add(b).add(c.add(d)).numbers();
        let mut sum: f32 = lanes[..V::LEN].iter().sum();
        for start in (whole..x.len()).step_by(V::LEN) {
            let count = V::LEN.min(x.len() - start);
            let power = exp(V::load_some(x.as_ptr().add(start), count).sub(shift));
            power.store_some(to.as_mut_ptr().add(start), count);
            sum += power.numbers()[..count].iter().sum::<f32>();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exponentials, sum and maximum of a row.
    fn found(isa: Isa, x: &[f32]) -> (Vec<f32>, f32, f32) {
        let mut exponentials = vec![7.0; x.len()];
        let (mut sum, mut largest) = (7.0, 7.0);
        let row = SoftmaxRow {
            x,
            exponentials: &mut exponentials,
            sum: &mut sum,
            largest: &mut largest,
        };
        // SAFETY: the processor has the instructions; the row has as many exponentials as numbers.
        unsafe { isa.run(row) };
        (exponentials, sum, largest)
    }

    #[test]
    fn rows_of_every_length_are_those_of_f64() {
        for isa in Isa::available() {
            for count in (1..140).chain([1000, 8000]) {
                let x: Vec<f32> = (0..count)
                    .map(|i| ((i * 7919 % 4001) as f32 - 2000.0) / 25.0)
                    .collect();
                let (exponentials, sum, largest) = found(isa, &x);
                let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(largest, expected, "{isa:?}, {count}");
                let exact = x.iter().map(|&x| f64::from(x - largest).exp());
                let exact: Vec<f64> = exact.collect();
                for (found, exact) in exponentials.iter().zip(&exact) {
                    let error = (f64::from(*found) - exact).abs();
                    assert!(
                        error <= 2e-7 * exact + 2e-38,
                        "{isa:?}: {found} for {exact}"
                    );
                }
                let exact: f64 = exact.iter().sum();
                assert!(
                    (f64::from(sum) / exact - 1.0).abs() < 1e-6,
                    "{isa:?}, {count}"
                );
                assert_eq!(found(isa, &x), (exponentials, sum, largest));
            }
        }
    }

    #[test]
    fn what_is_masked_weighs_nothing() {
        for isa in Isa::available() {
            let mut x = vec![f32::NEG_INFINITY; 50];
            x[3] = -2.0;
            x[40] = -100.0;
            let (exponentials, sum, largest) = found(isa, &x);
            assert_eq!((sum, largest), (1.0, -2.0));
            assert_eq!(exponentials.iter().filter(|&&x| x != 0.0).count(), 1);
            assert_eq!(exponentials[3], 1.0);
        }
    }

    #[test]
    fn nan_and_infinities_are_those_of_the_formula() {
        for isa in Isa::available() {
            for place in [0, 15, 33, 70] {
                let mut x = vec![1.0; 71];
                x[place] = f32::NAN;
                let (exponentials, sum, largest) = found(isa, &x);
                assert!(sum.is_nan() && largest.is_nan(), "{isa:?}, {place}");
                assert!(exponentials.iter().all(|x| x.is_nan()));
                x[place] = f32::INFINITY;
                let (exponentials, sum, largest) = found(isa, &x);
                assert!(sum.is_nan() && largest == f32::INFINITY);
                let nans = exponentials.iter().filter(|x| x.is_nan()).count();
                assert!(nans == 1 && exponentials[place].is_nan());
            }
            let (exponentials, sum, largest) = found(isa, &[f32::NEG_INFINITY; 20]);
            assert!(sum.is_nan() && largest == f32::NEG_INFINITY);
            assert!(exponentials.iter().all(|x| x.is_nan()));
        }
    }
}
