//! Products of matrices in blocks of registers.

use crate::block::{BlockWork, Columns, Left, Product, Right};
pub(super) use crate::block::{COLUMNS, ROWS};

/// 16 columns of y, `count` rows `y_row` apart: the rows of x, `x_row` apart, times a kernel `[inputs][16]`. All of these elements
/// must be there.
pub(super) struct Rows {
    pub(super) x: *const f32,
    pub(super) x_row: usize,
    pub(super) kernel: *const f32,
    pub(super) inputs: usize,
    pub(super) y: *mut f32,
    pub(super) y_row: usize,
    pub(super) count: usize,
}

impl BlockWork for Rows {
    #[inline(always)]
    unsafe fn run<C: Columns>(self) {
        let product = Product {
            left: Left {
                at: self.x,
                row: self.x_row,
                step: 1,
            },
            right: Right {
                at: self.kernel,
                step: COLUMNS,
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

/// Adds to `sums`, `[inputs][16]`, the products of `inputs` columns of x and 16 of y, summed over `count` rows of both. All of these
/// elements must be there.
pub(super) struct Sums {
    pub(super) x: *const f32,
    pub(super) x_row: usize,
    pub(super) y: *const f32,
    pub(super) y_row: usize,
    pub(super) count: usize,
    pub(super) sums: *mut f32,
    pub(super) inputs: usize,
}

impl BlockWork for Sums {
    #[inline(always)]
    unsafe fn run<C: Columns>(self) {
        let product = Product {
            left: Left {
                at: self.x,
                row: 1,
                step: self.x_row,
            },
            right: Right {
                at: self.y,
                step: self.y_row,
            },
            depth: self.count,
            rows: self.inputs,
            to: self.sums,
            stride: COLUMNS,
            add: true,
        };
        // SAFETY: the caller's promise.
        unsafe { product.compute::<C>() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Form;

    /// Small integers: every order of their sums is exact.
    fn integers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| (i * step % 29) as f32 - 14.0).collect()
    }

    const COUNT: usize = 17;
    const INPUTS: usize = 10;

    #[test]
    fn rows_are_products_of_whole_rows_in_every_form() {
        let (x, kernel) = (integers(COUNT * 12, 5), integers(INPUTS * COLUMNS, 7));
        for form in Form::all() {
            let mut y = vec![f32::NAN; COUNT * COLUMNS];
            let work = Rows {
                x: x.as_ptr(),
                x_row: 12,
                kernel: kernel.as_ptr(),
                inputs: INPUTS,
                y: y.as_mut_ptr(),
                y_row: COLUMNS,
                count: COUNT,
            };
            // SAFETY: the form is there; the lengths are those of the matrices.
            unsafe { form.run(work) };
            for (index, &found) in y.iter().enumerate() {
                let (i, j) = (index / COLUMNS, index % COLUMNS);
                let products = (0..INPUTS).map(|k| x[i * 12 + k] * kernel[k * COLUMNS + j]);
                assert_eq!(found, products.sum::<f32>(), "{form:?}, {i} {j}");
            }
        }
    }

    #[test]
    fn sums_are_added_over_rows_in_every_form() {
        let (x, y) = (integers(COUNT * 12, 5), integers(COUNT * 24, 7));
        for form in Form::all() {
            let mut sums = vec![2.0; INPUTS * COLUMNS];
            let work = Sums {
                x: x.as_ptr(),
                x_row: 12,
                y: y.as_ptr(),
                y_row: 24,
                count: COUNT,
                sums: sums.as_mut_ptr(),
                inputs: INPUTS,
            };
            // SAFETY: as above.
            unsafe { form.run(work) };
            for (index, &found) in sums.iter().enumerate() {
                let (i, j) = (index / COLUMNS, index % COLUMNS);
                let products = (0..COUNT).map(|k| x[k * 12 + i] * y[k * 24 + j]);
                assert_eq!(found, 2.0 + products.sum::<f32>(), "{form:?}, {i} {j}");
            }
        }
    }
}
