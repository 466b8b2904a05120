//! The matrix products of a point, on the register blocks of [`crate::microkernel`].

use crate::microkernel::{Lhs, PanelGemm, Rhs, SimdKernel, SimdRow};
pub(super) use crate::microkernel::{MR, NR};

/// Computes 16 columns of y, `count` rows `y_row` apart: the rows of x, `x_row` apart, times a kernel `[inputs][16]`. The caller
/// promises that all of these elements exist.
pub(super) struct PointGemm {
    pub(super) x: *const f32,
    pub(super) x_row: usize,
    pub(super) kernel: *const f32,
    pub(super) inputs: usize,
    pub(super) y: *mut f32,
    pub(super) y_row: usize,
    pub(super) count: usize,
}

impl SimdKernel for PointGemm {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        let product = PanelGemm {
            left: Lhs {
                at: self.x,
                row: self.x_row,
                step: 1,
            },
            right: Rhs {
                at: self.kernel,
                step: NR,
            },
            depth: self.inputs,
            rows: self.count,
            to: self.y,
            stride: self.y_row,
            add: false,
        };
        // SAFETY: the caller's promise.
        unsafe { product.compute::<C>() };
    }
}

/// Adds to `sums`, `[inputs][16]`, the products of `inputs` columns of x and 16 of y, summed over `count` rows of both. The
/// caller promises that all of these elements exist.
pub(super) struct PointGemmGradient {
    pub(super) x: *const f32,
    pub(super) x_row: usize,
    pub(super) y: *const f32,
    pub(super) y_row: usize,
    pub(super) count: usize,
    pub(super) sums: *mut f32,
    pub(super) inputs: usize,
}

impl SimdKernel for PointGemmGradient {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        let product = PanelGemm {
            left: Lhs {
                at: self.x,
                row: 1,
                step: self.x_row,
            },
            right: Rhs {
                at: self.y,
                step: self.y_row,
            },
            depth: self.count,
            rows: self.inputs,
            to: self.sums,
            stride: NR,
            add: true,
        };
        // SAFETY: the caller's promise.
        unsafe { product.compute::<C>() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microkernel::Isa;

    /// Small integers: every order of their sums is exact.
    fn integers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| (i * step % 29) as f32 - 14.0).collect()
    }

    const COUNT: usize = 17;
    const INPUTS: usize = 10;

    #[test]
    fn rows_are_products_of_whole_rows_in_every_form() {
        let (x, kernel) = (integers(COUNT * 12, 5), integers(INPUTS * NR, 7));
        for isa in Isa::available() {
            let mut y = vec![f32::NAN; COUNT * NR];
            let work = PointGemm {
                x: x.as_ptr(),
                x_row: 12,
                kernel: kernel.as_ptr(),
                inputs: INPUTS,
                y: y.as_mut_ptr(),
                y_row: NR,
                count: COUNT,
            };
            // SAFETY: the processor supports the ISA; the lengths are those of the matrices.
            unsafe { isa.run(work) };
            for (index, &found) in y.iter().enumerate() {
                let (i, j) = (index / NR, index % NR);
                let products = (0..INPUTS).map(|k| x[i * 12 + k] * kernel[k * NR + j]);
                assert_eq!(found, products.sum::<f32>(), "{isa:?}, {i} {j}");
            }
        }
    }

    #[test]
    fn sums_are_added_over_rows_in_every_form() {
        let (x, y) = (integers(COUNT * 12, 5), integers(COUNT * 24, 7));
        for isa in Isa::available() {
            let mut sums = vec![2.0; INPUTS * NR];
            let work = PointGemmGradient {
                x: x.as_ptr(),
                x_row: 12,
                y: y.as_ptr(),
                y_row: 24,
                count: COUNT,
                sums: sums.as_mut_ptr(),
                inputs: INPUTS,
            };
            // SAFETY: as above.
            unsafe { isa.run(work) };
            for (index, &found) in sums.iter().enumerate() {
                let (i, j) = (index / NR, index % NR);
                let products = (0..COUNT).map(|k| x[k * 12 + i] * y[k * 24 + j]);
                assert_eq!(found, 2.0 + products.sum::<f32>(), "{isa:?}, {i} {j}");
            }
        }
    }
}
