//! Transforms of one tile, 8 channels at a time: of its columns first, then of its rows.
//!
//! A tile lives in 36 vectors, one per pixel or point, each with the same 8 channels; the transforms of [`super::transforms`] are
//! additions and multiplications by constants of whole vectors. No data moves between lanes, except that a flipped kernel is transposed.
//! Invariant: every function is compiled for AVX2 and for AVX-512 from one source, and both give the same bits.

use std::arch::x86_64::{
    __m256, _CMP_GT_OQ, _mm256_add_ps, _mm256_and_ps, _mm256_cmp_ps, _mm256_max_ps, _mm256_min_ps,
    _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_sub_ps,
};
use std::ops::{Add, Mul, Neg, Range, Sub};

use super::point_gemm::NR;
use super::position::{Pixels, TilePosition};
use super::transforms::{
    InputTransform, KernelGradientTransform, KernelTransform, OutputGradientTransform,
    OutputTransform,
};
use super::{Geometry, OutputEpilogue};
use crate::epilogue::Epilogue;
use crate::openmp::OutputPointer;
use crate::simd;
use crate::simd_element::SimdElement;

/// Channels that are transformed at a time.
pub(super) const LANES: usize = 8;
/// Rows and columns of y in a tile.
pub(super) const TILE_OUTPUT: usize = 4;
/// Rows and columns of x, and of points, in a tile.
pub(super) const TILE_INPUT: usize = TILE_OUTPUT + 2;
/// Points of a tile.
pub(super) const POINTS: usize = TILE_INPUT * TILE_INPUT;

/// 8 f32 lanes, one per channel. Values exist only where the processor has AVX2, so that safe methods may use it.
#[derive(Clone, Copy)]
pub(super) struct F32x8(__m256);

/// A row or column of a tile; unused elements are at the end.
pub(super) type TileRow = [F32x8; TILE_INPUT];

/// A tile in rows.
type Tile = [TileRow; TILE_INPUT];

/// A linear transform of tiles, given by what it does to a row.
pub(super) trait Transform {
    /// Length of a row before.
    const INPUTS: usize;
    /// Length of a row after.
    const OUTPUTS: usize;

    fn row(row: &TileRow) -> TileRow;

    /// Transforms the columns, then the rows.
    #[inline(always)]
    fn apply(tile: &Tile) -> Tile {
        let mut half = *tile;
        for column in 0..Self::INPUTS {
            let mut whole = tile[0];
            for row in 0..Self::INPUTS {
                whole[row] = tile[row][column];
            }
            let combined = Self::row(&whole);
            for row in 0..Self::OUTPUTS {
                half[row][column] = combined[row];
            }
        }
        let mut combined = half;
        for row in 0..Self::OUTPUTS {
            combined[row] = Self::row(&half[row]);
        }
        combined
    }
}

/// Elements of `[inputs][16]` and one cache line more: with a power of two all points would fall into the same set of the caches.
pub(super) const fn point_stride(inputs: usize) -> usize {
    (inputs + 1) * NR
}

/// Compiles a function of this module for AVX2 and for AVX-512, which has twice as many registers for 8 lanes.
macro_rules! for_avx2_and_avx512 {
    ($name:ident<$element:ident>, $inlined:ident, $($argument:ident: $type:ty),*) => {
        /// Calls the inlined function of this name with the best instruction set of the processor.
        ///
        /// # Safety
        /// As there.
        pub(super) unsafe fn $name<$element: SimdElement>($($argument: $type),*) {
            #[target_feature(enable = "avx2,fma")]
            unsafe fn with_avx2<$element: SimdElement>($($argument: $type),*) {
                // SAFETY: the caller's promise.
                unsafe { $inlined($($argument),*) };
            }
            #[target_feature(enable = "avx2,fma,avx512f,avx512vl")]
            unsafe fn with_avx512<$element: SimdElement>($($argument: $type),*) {
                // SAFETY: the caller's promise.
                unsafe { $inlined($($argument),*) };
            }
            // SAFETY: the caller's promise, and that of the processor.
            unsafe {
                match simd::has_avx512() {
                    true => with_avx512($($argument),*),
                    false => with_avx2($($argument),*),
                }
            }
        }
    };
}

for_avx2_and_avx512!(transform_input<T>, transform_input_inlined, pixels: &Pixels<T>, channels: usize, to: *mut f32, point_stride: usize);
for_avx2_and_avx512!(transform_output_gradient<T>, transform_output_gradient_inlined, pixels: &Pixels<T>, channels: Range<usize>, to: *mut f32, point_stride: usize);
for_avx2_and_avx512!(
    store_output<R>, store_output_inlined,
    from: *const f32, point_stride: usize, g: &Geometry, channels: Range<usize>, place: &TilePosition, epilogue: OutputEpilogue<'_>, y: OutputPointer<R>
);
for_avx2_and_avx512!(
    transform_kernel<T>, transform_kernel_inlined,
    kernel: &[T], flipped: bool, channels: [usize; 2], panel: usize, to: &mut [f32]
);
for_avx2_and_avx512!(
    store_kernel_gradient<R>, store_kernel_gradient_inlined,
    from: &[f32], channels: [usize; 2], panel: usize, kernel: OutputPointer<R>
);

/// Transforms the channels of a tile of x; the points are written `point_stride` apart.
///
/// # Safety
/// AVX2 and FMA are there; the pixels and each point have `channels` channels, a multiple of 8.
#[inline(always)]
unsafe fn transform_input_inlined<T: SimdElement>(
    pixels: &Pixels<T>,
    channels: usize,
    to: *mut f32,
    point_stride: usize,
) {
    for c in (0..channels).step_by(LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            let tile = pixels_at(pixels, TILE_INPUT, c);
            let tile = InputTransform::apply(&tile);
            store(&tile, TILE_INPUT, to.add(c), point_stride);
        }
    }
}

/// Transforms the channels of a tile of dy.
///
/// # Safety
/// As for [`transform_input_inlined`].
#[inline(always)]
unsafe fn transform_output_gradient_inlined<T: SimdElement>(
    pixels: &Pixels<T>,
    channels: Range<usize>,
    to: *mut f32,
    point_stride: usize,
) {
    for c in channels.clone().step_by(LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            let tile = pixels_at(pixels, TILE_OUTPUT, c);
            let tile = OutputGradientTransform::apply(&tile);
            store(&tile, TILE_INPUT, to.add(c - channels.start), point_stride);
        }
    }
}

/// Makes a tile of y, with what it ends in, from the combinations that are `point_stride` apart.
///
/// # Safety
/// AVX2 and FMA are there; each point and the bias have the channels of y, a multiple of 8; y and the array of the
/// epilogue contain the tile.
#[inline(always)]
unsafe fn store_output_inlined<R: SimdElement>(
    from: *const f32,
    point_stride: usize,
    g: &Geometry,
    channels: Range<usize>,
    place: &TilePosition,
    epilogue: OutputEpilogue<'_>,
    y: OutputPointer<R>,
) {
    let [height, width] = [0, 1].map(|side| TILE_OUTPUT.min(g.y[side] - place.at[side]));
    let pixel = (place.image * g.y[0] + place.at[0]) * g.y[1] + place.at[1];
    let blank = place.blank;
    let [low, high] = match epilogue.activation {
        Epilogue::Relu(ceiling) | Epilogue::Add(_, Some(ceiling)) if ceiling > 0.0 => {
            [0.0, ceiling]
        }
        Epilogue::Relu(_) | Epilogue::Add(_, Some(_)) => [0.0, f32::INFINITY],
        Epilogue::Identity | Epilogue::Add(_, None) | Epilogue::SelectPositive(_) => {
            [f32::NEG_INFINITY, f32::INFINITY]
        }
    };
    for c in channels.clone().step_by(LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            let tile = OutputTransform::apply(&load(
                from.add(c - channels.start),
                TILE_INPUT,
                point_stride,
            ));
            let bias = epilogue.bias;
            let bias = bias.map_or(F32x8::zero(), |bias| F32x8::load(bias[c..].as_ptr()));
            let (low, high) = (F32x8::all(low), F32x8::all(high));
            for (row, line) in tile.iter().enumerate().take(height) {
                for (column, value) in line.iter().enumerate().take(width) {
                    let place = (pixel + row * g.y[1] + column) * g.outputs + c;
                    let is_blank = blank >> (row * TILE_OUTPUT + column) & 1 == 1;
                    // 0 of every number, and what a kernel that is not finite has left stays so.
                    let sum = if is_blank { *value * 0.0 } else { *value };
                    let mut sum = sum + bias;
                    if let Epilogue::Add(array, _) = epilogue.activation {
                        sum = sum + F32x8::load(array.as_ptr().add(place));
                    }
                    let mut value = sum.clamped(low, high);
                    if let Epilogue::SelectPositive(by) = epilogue.activation {
                        value = value.select_positive(F32x8::load(by.as_ptr().add(place)));
                    }
                    value.store(y.0.add(place));
                }
            }
        }
    }
}

/// Transforms the kernel for 16 output channels, `[point][input][16]`, with zeros beyond the last channel. The kernel is
/// `[3, 3, inputs, outputs]`, or where it is flipped `[3, 3, outputs, inputs]` with its taps in the opposite order.
///
/// # Safety
/// AVX2 and FMA are there; these lengths are right, the channels multiples of 8.
#[inline(always)]
unsafe fn transform_kernel_inlined<T: SimdElement>(
    kernel: &[T],
    flipped: bool,
    [inputs, outputs]: [usize; 2],
    panel: usize,
    to: &mut [f32],
) {
    let point_stride = point_stride(inputs);
    for input in (0..inputs).step_by(LANES) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut taps = [[[F32x8::zero(); LANES]; 9]; 2];
            for tap in 0..9 {
                for (half, taps) in taps.iter_mut().enumerate() {
                    let output = panel * NR + half * LANES;
                    if output < outputs && flipped {
                        let at = ((8 - tap) * outputs + output) * inputs + input;
                        taps[tap] = transposed(&load_rows(&kernel[at..], inputs));
                    } else if output < outputs {
                        let at = (tap * inputs + input) * outputs + output;
                        taps[tap] = load_rows(&kernel[at..], outputs);
                    }
                }
            }
            for i in 0..LANES {
                let to = to.as_mut_ptr().add((input + i) * NR);
                for (half, taps) in taps.iter().enumerate() {
                    let tile = KernelTransform::apply(&tile_of(taps, i));
                    store(&tile, TILE_INPUT, to.add(half * LANES), point_stride);
                }
            }
        }
    }
}

/// Computes the kernel's gradient, `[3, 3, inputs, outputs]`, for 16 output channels from sums `[point][input][16]`.
///
/// # Safety
/// As for [`transform_kernel_inlined`]; nobody else uses these channels meanwhile.
#[inline(always)]
unsafe fn store_kernel_gradient_inlined<R: SimdElement>(
    from: &[f32],
    [inputs, outputs]: [usize; 2],
    panel: usize,
    kernel: OutputPointer<R>,
) {
    for input in 0..inputs {
        for half in [0, LANES] {
            let output = panel * NR + half;
            if output >= outputs {
                continue;
            }
            // SAFETY: the caller's promise.
            unsafe {
                let from = from.as_ptr().add(input * NR + half);
                let tile =
                    KernelGradientTransform::apply(&load(from, TILE_INPUT, point_stride(inputs)));
                let kernel = kernel.0.add(input * outputs + output);
                store(&tile, 3, kernel, inputs * outputs);
            }
        }
    }
}

/// # Safety
/// AVX2 is there, and 8 numbers at `c` of each of the first `side * side` pixels.
#[inline(always)]
unsafe fn pixels_at<T: SimdElement>(pixels: &Pixels<T>, side: usize, c: usize) -> Tile {
    // SAFETY: the caller's promise.
    unsafe {
        let mut tile = [[F32x8::zero(); TILE_INPUT]; TILE_INPUT];
        for (row, line) in tile.iter_mut().enumerate().take(side) {
            for (column, lanes) in line.iter_mut().enumerate().take(side) {
                *lanes = F32x8::load(pixels[row * side + column].add(c));
            }
        }
        tile
    }
}

/// # Safety
/// AVX2 is there, and `side * side` planes with 8 elements each.
#[inline(always)]
unsafe fn load(from: *const f32, side: usize, point_stride: usize) -> Tile {
    // SAFETY: the caller's promise.
    unsafe {
        let mut tile = [[F32x8::zero(); TILE_INPUT]; TILE_INPUT];
        for (row, line) in tile.iter_mut().enumerate().take(side) {
            for (column, lanes) in line.iter_mut().enumerate().take(side) {
                *lanes = F32x8::load(from.add((row * side + column) * point_stride));
            }
        }
        tile
    }
}

/// The taps of one of 8 input channels.
#[inline(always)]
fn tile_of(taps: &[[F32x8; LANES]; 9], input: usize) -> Tile {
    let mut tile = [[taps[0][input]; TILE_INPUT]; TILE_INPUT];
    for row in 0..3 {
        for column in 0..3 {
            tile[row][column] = taps[row * 3 + column][input];
        }
    }
    tile
}

/// # Safety
/// There are `side * side` planes with 8 elements each.
#[inline(always)]
unsafe fn store<R: SimdElement>(tile: &Tile, side: usize, to: *mut R, point_stride: usize) {
    for (row, line) in tile.iter().enumerate().take(side) {
        for (column, value) in line.iter().enumerate().take(side) {
            // SAFETY: the caller's promise.
            unsafe { value.store(to.add((row * side + column) * point_stride)) };
        }
    }
}

/// # Safety
/// AVX2 is there.
#[inline(always)]
unsafe fn load_rows<T: SimdElement>(from: &[T], row: usize) -> [F32x8; LANES] {
    // SAFETY: AVX is there; the slices are checked.
    unsafe {
        let mut rows = [F32x8::zero(); LANES];
        for (i, lanes) in rows.iter_mut().enumerate() {
            *lanes = F32x8::load(from[i * row..][..LANES].as_ptr());
        }
        rows
    }
}

/// Transposes 8 vectors.
///
/// # Safety
/// AVX2 is there.
#[inline(always)]
unsafe fn transposed(rows: &[F32x8; LANES]) -> [F32x8; LANES] {
    let mut vectors = [rows[0].0; LANES];
    for (vector, row) in vectors.iter_mut().zip(rows) {
        *vector = row.0;
    }
    // SAFETY: the caller's promise.
    let vectors = unsafe { simd::transpose_8x8(vectors) };
    let mut columns = *rows;
    for (column, vector) in columns.iter_mut().zip(vectors) {
        *column = F32x8(vector);
    }
    columns
}

/// A row of fewer than 6 vectors.
#[inline(always)]
pub(super) fn padded_row<const N: usize>(numbers: [F32x8; N]) -> TileRow {
    let mut line = [numbers[0]; TILE_INPUT];
    line[..N].copy_from_slice(&numbers);
    line
}

impl F32x8 {
    /// # Safety
    /// AVX2 is there.
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_setzero_ps()) }
    }

    /// # Safety
    /// AVX2 is there, and 8 numbers.
    #[inline(always)]
    unsafe fn load<T: SimdElement>(from: *const T) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(T::load_8(from)) }
    }

    /// # Safety
    /// AVX2 is there.
    #[inline(always)]
    unsafe fn all(number: f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_set1_ps(number)) }
    }

    /// Clamped between two numbers; NaN stays NaN.
    #[inline(always)]
    fn clamped(self, low: Self, high: Self) -> Self {
        // SAFETY: AVX2 is there, or these would not be. With a NaN, both instructions return their second operand.
        unsafe { Self(_mm256_min_ps(high.0, _mm256_max_ps(low.0, self.0))) }
    }

    /// 0 where the other is not positive.
    #[inline(always)]
    fn select_positive(self, other: Self) -> Self {
        // SAFETY: AVX2 is there, or these would not be.
        unsafe {
            let positive = _mm256_cmp_ps::<_CMP_GT_OQ>(other.0, _mm256_setzero_ps());
            Self(_mm256_and_ps(self.0, positive))
        }
    }

    /// # Safety
    /// There is room for 8 numbers.
    #[inline(always)]
    unsafe fn store<R: SimdElement>(self, to: *mut R) {
        // SAFETY: the caller's promise; AVX2 is there, or this would not be.
        unsafe { R::store_8(self.0, to) };
    }
}

impl Add for F32x8 {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: AVX2 is there, or these would not be.
        unsafe { Self(_mm256_add_ps(self.0, other.0)) }
    }
}

impl Sub for F32x8 {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: as in `add`.
        unsafe { Self(_mm256_sub_ps(self.0, other.0)) }
    }
}

impl Neg for F32x8 {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        self * -1.0
    }
}

impl Mul<f32> for F32x8 {
    type Output = Self;

    #[inline(always)]
    fn mul(self, factor: f32) -> Self {
        // SAFETY: as in `add`.
        unsafe { Self(_mm256_mul_ps(self.0, _mm256_set1_ps(factor))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: usize = 16;
    const PLANE: usize = point_stride(INPUTS);

    /// Combinations of a tile of x, and of a kernel of as many channels, and a kernel of these.
    type Found = [Vec<f32>; 3];

    fn numbers(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| (i * 7 % 31) as f32 / 16.0 - 1.0)
            .collect()
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn with_avx2(x: &Pixels<f32>, kernel: &[f32], found: &mut Found) {
        let [of_x, of_kernel, back] = found;
        // SAFETY: the caller's promise.
        unsafe {
            transform_input_inlined(x, INPUTS, of_x.as_mut_ptr(), PLANE);
            transform_kernel_inlined(kernel, true, [INPUTS; 2], 0, of_kernel);
            store_kernel_gradient_inlined(
                of_kernel,
                [INPUTS; 2],
                0,
                OutputPointer(back.as_mut_ptr()),
            );
        }
    }

    #[test]
    fn both_forms_give_the_same_bits() {
        if !simd::has_avx512() {
            return;
        }
        let (x, kernel) = (numbers(POINTS * INPUTS), numbers(9 * INPUTS * INPUTS));
        let pixels: Pixels<f32> = std::array::from_fn(|i| x[i * INPUTS..].as_ptr());
        let zeros = || [POINTS * PLANE, POINTS * PLANE, kernel.len()].map(|count| vec![0.0; count]);
        let (mut narrow, mut wide): (Found, Found) = (zeros(), zeros());
        let [of_x, of_kernel, back] = &mut wide;
        // SAFETY: the instructions are there, and the elements of 16 channels.
        unsafe {
            with_avx2(&pixels, &kernel, &mut narrow);
            transform_input(&pixels, INPUTS, of_x.as_mut_ptr(), PLANE);
            transform_kernel(&kernel, true, [INPUTS; 2], 0, of_kernel);
            store_kernel_gradient(of_kernel, [INPUTS; 2], 0, OutputPointer(back.as_mut_ptr()));
        }
        assert!(narrow == wide);
        assert!(
            wide.iter()
                .all(|numbers| numbers.iter().any(|&number| number != 0.0))
        );
    }
}
