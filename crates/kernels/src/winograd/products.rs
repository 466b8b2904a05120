//! Products of matrices in blocks of registers.

use std::arch::x86_64::{
    _mm256_add_ps, _mm256_broadcast_ss, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps,
    _mm256_storeu_ps,
};

/// Rows and columns of a block.
pub(super) const ROWS: usize = 6;
pub(super) const COLUMNS: usize = 16;

/// 16 columns of y, `count` rows `y_row` apart: the rows of x, `x_row` apart, times a kernel `[inputs][16]`.
///
/// # Safety
/// AVX2 and FMA are there, and so are all of these elements.
pub(super) unsafe fn rows(
    x: *const f32,
    x_row: usize,
    kernel: *const f32,
    inputs: usize,
    y: *mut f32,
    y_row: usize,
    count: usize,
) {
    for row in (0..count).step_by(ROWS) {
        // SAFETY: the caller's promise.
        unsafe {
            let (x, y) = (x.add(row * x_row), y.add(row * y_row));
            match count - row {
                1 => block::<1>(x, x_row, kernel, inputs, y, y_row),
                2 => block::<2>(x, x_row, kernel, inputs, y, y_row),
                3 => block::<3>(x, x_row, kernel, inputs, y, y_row),
                4 => block::<4>(x, x_row, kernel, inputs, y, y_row),
                5 => block::<5>(x, x_row, kernel, inputs, y, y_row),
                _ => block::<ROWS>(x, x_row, kernel, inputs, y, y_row),
            }
        }
    }
}

/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx2,fma")]
unsafe fn block<const R: usize>(
    mut x: *const f32,
    x_row: usize,
    mut kernel: *const f32,
    inputs: usize,
    y: *mut f32,
    y_row: usize,
) {
    let mut registers = [[_mm256_setzero_ps(); 2]; R];
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..inputs {
            let (low, high) = (_mm256_loadu_ps(kernel), _mm256_loadu_ps(kernel.add(8)));
            for (row, register) in registers.iter_mut().enumerate() {
                let value = _mm256_broadcast_ss(&*x.add(row * x_row));
                register[0] = _mm256_fmadd_ps(value, low, register[0]);
                register[1] = _mm256_fmadd_ps(value, high, register[1]);
            }
            x = x.wrapping_add(1);
            kernel = kernel.wrapping_add(COLUMNS);
        }
        for (row, register) in registers.iter().enumerate() {
            _mm256_storeu_ps(y.add(row * y_row), register[0]);
            _mm256_storeu_ps(y.add(row * y_row + 8), register[1]);
        }
    }
}

/// Adds to `sums`, `[inputs][16]`, the products of `inputs` columns of x and 16 of y, summed over `count` rows of both.
///
/// # Safety
/// AVX2 and FMA are there, and so are all of these elements.
pub(super) unsafe fn sums(
    x: *const f32,
    x_row: usize,
    y: *const f32,
    y_row: usize,
    count: usize,
    sums: *mut f32,
    inputs: usize,
) {
    for input in (0..inputs).step_by(ROWS) {
        // SAFETY: the caller's promise.
        unsafe {
            let (x, sums) = (x.add(input), sums.add(input * COLUMNS));
            match inputs - input {
                1 => outer::<1>(x, x_row, y, y_row, count, sums),
                2 => outer::<2>(x, x_row, y, y_row, count, sums),
                3 => outer::<3>(x, x_row, y, y_row, count, sums),
                4 => outer::<4>(x, x_row, y, y_row, count, sums),
                5 => outer::<5>(x, x_row, y, y_row, count, sums),
                _ => outer::<ROWS>(x, x_row, y, y_row, count, sums),
            }
        }
    }
}

/// # Safety
/// As for [`sums`].
#[target_feature(enable = "avx2,fma")]
unsafe fn outer<const R: usize>(
    mut x: *const f32,
    x_row: usize,
    mut y: *const f32,
    y_row: usize,
    count: usize,
    sums: *mut f32,
) {
    let mut registers = [[_mm256_setzero_ps(); 2]; R];
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..count {
            let (low, high) = (_mm256_loadu_ps(y), _mm256_loadu_ps(y.add(8)));
            for (row, register) in registers.iter_mut().enumerate() {
                let value = _mm256_broadcast_ss(&*x.add(row));
                register[0] = _mm256_fmadd_ps(value, low, register[0]);
                register[1] = _mm256_fmadd_ps(value, high, register[1]);
            }
            x = x.wrapping_add(x_row);
            y = y.wrapping_add(y_row);
        }
        for (row, register) in registers.iter().enumerate() {
            for (half, value) in register.iter().enumerate() {
                let sum = sums.add(row * COLUMNS + half * 8);
                _mm256_storeu_ps(sum, _mm256_add_ps(_mm256_loadu_ps(sum), *value));
            }
        }
    }
}
