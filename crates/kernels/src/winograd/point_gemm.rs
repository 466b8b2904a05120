//! The matrix products of a point, on the register blocks of [`crate::microkernel`].

use crate::microkernel::{Lhs, PanelGemm, Rhs, SimdKernel, Target};
pub(super) use crate::microkernel::{MR, NR};
use crate::simd_row::SimdRow;

/// Computes panels of 16 columns of y, `count` rows `y_row` apart: the rows of x, `x_row` apart, times kernels `[inputs][16]`, which are
/// `kernel_panel` apart. The caller promises that all of these elements exist.
pub(super) struct PointGemm {
    pub(super) x: *const f32,
    pub(super) x_row: usize,
    pub(super) kernel: *const f32,
    pub(super) kernel_panel: usize,
    pub(super) inputs: usize,
    pub(super) panels: usize,
    pub(super) y: *mut f32,
    pub(super) y_row: usize,
    pub(super) count: usize,
    /// The first panel of the next point's kernel, where kernels come from memory.
    pub(super) next: Option<*const f32>,
}

impl SimdKernel for PointGemm {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        let product = PanelGemm {
            left: Lhs::even(self.x, self.x_row, 1),
            right: Rhs {
                at: self.kernel,
                step: NR,
                panel: self.kernel_panel,
            },
            depth: self.inputs,
            rows: self.count,
            panels: self.panels,
            to: Target {
                at: self.y,
                row: self.y_row,
                panel: NR,
            },
            add: false,
            bias: None,
            next: self.next,
        };
        // SAFETY: the caller's promise.
        unsafe { product.compute::<C>() };
    }
}

/// Adds to panels of sums, `[inputs][16]`, which are `sums_panel` apart, the products of `inputs` columns of x and 16 of y for each, summed
/// over `count` rows of both. The caller promises that all of these elements exist.
pub(super) struct PointGemmGradient {
    pub(super) x: *const f32,
    pub(super) x_row: usize,
    pub(super) y: *const f32,
    pub(super) y_row: usize,
    pub(super) count: usize,
    pub(super) panels: usize,
    pub(super) sums: *mut f32,
    pub(super) sums_panel: usize,
    pub(super) inputs: usize,
}

impl SimdKernel for PointGemmGradient {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        let product = PanelGemm {
            left: Lhs::even(self.x, 1, self.x_row),
            right: Rhs {
                at: self.y,
                step: self.y_row,
                panel: NR,
            },
            depth: self.count,
            rows: self.inputs,
            panels: self.panels,
            to: Target {
                at: self.sums,
                row: NR,
                panel: self.sums_panel,
            },
            add: true,
            bias: None,
            next: None,
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
    const PANELS: usize = 3;
    /// Distance between panels of kernels and of sums.
    const APART: usize = INPUTS * NR + 5;

    #[test]
    fn rows_are_products_of_whole_rows_in_every_form() {
        let (x, kernel) = (integers(COUNT * 12, 5), integers(PANELS * APART, 7));
        for isa in Isa::available() {
            let mut y = vec![f32::NAN; COUNT * PANELS * NR];
            let work = PointGemm {
                next: Some(kernel.as_ptr()),
                x: x.as_ptr(),
                x_row: 12,
                kernel: kernel.as_ptr(),
                kernel_panel: APART,
                inputs: INPUTS,
                panels: PANELS,
                y: y.as_mut_ptr(),
                y_row: PANELS * NR,
                count: COUNT,
            };
            // SAFETY: the processor supports the ISA; the lengths are those of the matrices.
            unsafe { isa.run(work) };
            for (index, &found) in y.iter().enumerate() {
                let (i, j) = (index / (PANELS * NR), index % (PANELS * NR));
                let kernel = |k: usize| kernel[j / NR * APART + k * NR + j % NR];
                let products = (0..INPUTS).map(|k| x[i * 12 + k] * kernel(k));
                assert_eq!(found, products.sum::<f32>(), "{isa:?}, {i} {j}");
            }
        }
    }

    #[test]
    fn sums_are_added_over_rows_in_every_form() {
        let y_row = PANELS * NR + 8;
        let (x, y) = (integers(COUNT * 12, 5), integers(COUNT * y_row, 7));
        for isa in Isa::available() {
            let mut sums = vec![2.0; PANELS * APART];
            let work = PointGemmGradient {
                x: x.as_ptr(),
                x_row: 12,
                y: y.as_ptr(),
                y_row,
                count: COUNT,
                panels: PANELS,
                sums: sums.as_mut_ptr(),
                sums_panel: APART,
                inputs: INPUTS,
            };
            // SAFETY: as above.
            unsafe { isa.run(work) };
            for (index, &found) in sums.iter().enumerate() {
                let (panel, at) = (index / APART, index % APART);
                let (i, j) = (at / NR, panel * NR + at % NR);
                let products = (0..COUNT).map(|k| x[k * 12 + i] * y[k * y_row + j]);
                let expected = match i < INPUTS {
                    true => 2.0 + products.sum::<f32>(),
                    false => 2.0,
                };
                assert_eq!(found, expected, "{isa:?}, {i} {j}");
            }
        }
    }
}
