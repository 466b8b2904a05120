//! Kernel gradients of depthwise convolutions, whose channels have kernels of their own, in f32.
//!
//! The gradient at a place of the kernel is the sum of x times dy over the pixels of y, each with the pixel of x that the place stands on.
//! oneDNN has a loop for this of kernels of up to three columns; wider ones it takes for groups of one channel, one lane of a vector each,
//! and takes 7 to 11 times as long (decision 77).
//!
//! Channels are the lanes here. A task has some channels and, where there are few, some rows of y. For each row of y, row of the kernel and
//! two vectors of channels it goes along the row with a sum in registers for each column of the kernel, and adds these to the task's.
//!
//! Tasks depend on the shapes alone, and their sums are added in their order: the bits do not depend on the number of threads.

use std::ops::Range;

use crate::convolution::{ConvolutionDesc, Direction};
use crate::lanes::Lanes;
use crate::microkernel::{Isa, SimdKernel};
use crate::openmp::{OutputPointer, ThreadTeam};
use crate::scratchpad::Scratchpad;
use crate::simd;
use crate::simd_row::SimdRow;

/// Channels of a task: lines of the cache that lie side by side.
const TASK_CHANNELS: usize = 64;
/// With fewer tasks the rows of y are divided, too.
const LEAST_TASKS: usize = 16;
/// Fewest numbers of y of a task, where rows are divided.
const LEAST_NUMBERS: usize = 1 << 12;

/// Whether this computes the convolution.
pub(crate) fn takes(key: &ConvolutionDesc) -> bool {
    let channels = key.groups;
    key.direction == Direction::KernelGradient
        && key.is_f32()
        && (key.x.dims[3], key.y.dims[3]) == (channels, channels)
        && simd::has_fma()
}

/// Whether this is the fastest algorithm: see above.
pub(crate) fn suits(key: &ConvolutionDesc) -> bool {
    key.kernel.dims[1] > 3 && takes(key)
}

/// Sizes of rows and columns, and what lies between pixels.
#[derive(Clone, Copy, Debug)]
struct DepthwiseSizes {
    images: usize,
    channels: usize,
    x: [usize; 2],
    y: [usize; 2],
    kernel: [usize; 2],
    strides: [usize; 2],
    dilation: [usize; 2],
    low: [usize; 2],
}

/// Computes the kernel gradient of x and dy.
///
/// # Panics
/// The convolution is not supported, or a length does not match its shape: bugs of the caller.
pub(crate) fn kernel_gradient(
    key: &ConvolutionDesc,
    [x, dy]: [&[f32]; 2],
    result: &mut [f32],
    team: &ThreadTeam,
    scratch: &mut Scratchpad,
) {
    assert!(takes(key));
    let sizes = DepthwiseSizes::new(key);
    let pixels = |[rows, columns]: [usize; 2]| sizes.images * rows * columns * sizes.channels;
    let kernel = sizes.kernel[0] * sizes.kernel[1] * sizes.channels;
    assert_eq!(
        [x.len(), dy.len(), result.len()],
        [pixels(sizes.x), pixels(sizes.y), kernel]
    );
    let rows = sizes.images * sizes.y[0];
    let of_channels = sizes.channels.div_ceil(TASK_CHANNELS);
    let most = dy.len().div_ceil(LEAST_NUMBERS).min(rows).max(1);
    let of_rows = LEAST_TASKS.div_ceil(of_channels).min(most);
    let each = rows.div_ceil(of_rows);
    let sums = scratch.floats(of_rows * kernel);
    sums.fill(0.0);
    let start = OutputPointer(sums.as_mut_ptr());
    let isa = Isa::best_available();
    team.for_each(0..of_rows * of_channels, |task| {
        let (part, first) = (task / of_channels, task % of_channels * TASK_CHANNELS);
        let work = DepthwiseSums {
            sizes,
            x: x.as_ptr(),
            dy: dy.as_ptr(),
            // SAFETY: there are sums for every part of the rows.
            sums: unsafe { start.start().add(part * kernel) },
            rows: (part * each).min(rows)..((part + 1) * each).min(rows),
            channels: first..(first + TASK_CHANNELS).min(sizes.channels),
        };
        // SAFETY: the instructions are there, or `takes` would be false; the arrays have the lengths above, and no two tasks have both a part
        // and a channel in common.
        unsafe { isa.run(work) };
    });
    result.fill(0.0);
    for part in sums.chunks_exact(kernel.max(1)) {
        let pairs = result.iter_mut().zip(part);
        pairs.for_each(|(total, sum)| *total += sum);
    }
}

impl DepthwiseSizes {
    fn new(key: &ConvolutionDesc) -> Self {
        let size = |size: i64| usize::try_from(size).expect("checked sizes are not negative");
        let sides = |dims: [i64; 4]| [size(dims[1]), size(dims[2])];
        Self {
            images: size(key.x.dims[0]),
            channels: size(key.groups),
            x: sides(key.x.dims),
            y: sides(key.y.dims),
            kernel: [size(key.kernel.dims[0]), size(key.kernel.dims[1])],
            strides: key.strides.map(size),
            dilation: key.dilation.map(size),
            low: key.padding_low.map(size),
        }
    }

    /// The place in x, along a side, that a place of the kernel stands on with a pixel of y; none in the padding.
    #[inline(always)]
    fn place(&self, side: usize, of_y: usize, of_kernel: usize) -> Option<usize> {
        let padded = of_y * self.strides[side] + of_kernel * self.dilation[side];
        let place = padded.checked_sub(self.low[side])?;
        (place < self.x[side]).then_some(place)
    }

    /// The columns of y with which `count` columns of the kernel, from one on, all stand on pixels of x.
    #[inline(always)]
    fn inner(&self, first: usize, count: usize) -> Range<usize> {
        let (stride, low) = (self.strides[1], self.low[1]);
        let (first, last) = (
            first * self.dilation[1],
            (first + count - 1) * self.dilation[1],
        );
        let start = low.saturating_sub(first).div_ceil(stride);
        let end = match (self.x[1] + low).checked_sub(last + 1) {
            Some(room) => (room / stride + 1).min(self.y[1]),
            None => 0,
        };
        start.min(end)..end
    }
}

/// The sums of a task.
struct DepthwiseSums {
    sizes: DepthwiseSizes,
    x: *const f32,
    dy: *const f32,
    /// `[rows of the kernel, columns, channels]`; only the task's channels are written.
    sums: *mut f32,
    /// Of all images.
    rows: Range<usize>,
    channels: Range<usize>,
}

/// Some lanes of a pixel: a row of y and one of x, both at a channel.
#[derive(Clone, Copy)]
struct DepthwiseRow {
    dy: *const f32,
    x: *const f32,
}

impl SimdKernel for DepthwiseSums {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.sizes.kernel[1] {
                3 => self.add_rows::<C::Vector, 3>(),
                5 => self.add_rows::<C::Vector, 5>(),
                7 => self.add_rows::<C::Vector, 7>(),
                _ => self.add_rows::<C::Vector, 1>(),
            }
        }
    }
}

impl DepthwiseSums {
    /// Adds all rows, `K` columns of the kernel at a time.
    ///
    /// # Safety
    /// The instructions and the arrays are there.
    #[inline(always)]
    unsafe fn add_rows<V: Lanes, const K: usize>(&self) {
        let sizes = &self.sizes;
        for row in self.rows.clone() {
            let (image, of_y) = (row / sizes.y[0], row % sizes.y[0]);
            for of_kernel in 0..sizes.kernel[0] {
                let Some(of_x) = sizes.place(0, of_y, of_kernel) else {
                    continue;
                };
                let (of_x, channels) = (image * sizes.x[0] + of_x, sizes.channels);
                // SAFETY: the rows are there.
                let rows = unsafe {
                    DepthwiseRow {
                        dy: self.dy.add(row * sizes.y[1] * channels),
                        x: self.x.add(of_x * sizes.x[1] * channels),
                    }
                };
                for first in (0..sizes.kernel[1]).step_by(K) {
                    // SAFETY: the caller's promise.
                    unsafe { self.add_row::<V, K>(rows, of_kernel, first) };
                }
            }
        }
    }

    /// Adds a row to the sums of `K` columns of a row of the kernel.
    ///
    /// # Safety
    /// As for `add_rows`.
    #[inline(always)]
    unsafe fn add_row<V: Lanes, const K: usize>(
        &self,
        rows: DepthwiseRow,
        of_kernel: usize,
        first: usize,
    ) {
        let channels = self.sizes.channels;
        let to = (of_kernel * self.sizes.kernel[1] + first) * channels;
        let mut at = self.channels.start;
        // SAFETY: so many channels are left, of which a task writes its own.
        unsafe {
            while at + 2 * V::LEN <= self.channels.end {
                let sums = self.along::<V, 2, K>(rows, at, first, V::LEN);
                for (k, [a, b]) in sums.into_iter().enumerate() {
                    let to = self.sums.add(to + k * channels + at);
                    V::load(to).add(a).store(to);
                    V::load(to.add(V::LEN)).add(b).store(to.add(V::LEN));
                }
                at += 2 * V::LEN;
            }
            while at < self.channels.end {
                let count = V::LEN.min(self.channels.end - at);
                // Whole vectors are faster: the last one begins earlier where there are as many channels, and its first lanes are left out.
                let from = at.min(channels.saturating_sub(V::LEN));
                let sums = match channels < V::LEN {
                    true => self.along::<V, 1, K>(rows, from, first, channels),
                    false => self.along::<V, 1, K>(rows, from, first, V::LEN),
                };
                for (k, [sums]) in sums.into_iter().enumerate() {
                    let to = self.sums.add(to + k * channels + at);
                    let of_task = sums.numbers();
                    for (lane, sum) in of_task[at - from..][..count].iter().enumerate() {
                        *to.add(lane) += sum;
                    }
                }
                at += count;
            }
        }
    }

    /// Sums along a row, of `K` columns of the kernel from `first` on and `R` vectors of channels from `at` on, of which `count` lanes are there.
    ///
    /// # Safety
    /// As for `add_rows`; the channels are there.
    #[inline(always)]
    unsafe fn along<V: Lanes, const R: usize, const K: usize>(
        &self,
        rows: DepthwiseRow,
        at: usize,
        first: usize,
        count: usize,
    ) -> [[V; R]; K] {
        let sizes = &self.sizes;
        let channels = sizes.channels;
        let inner = sizes.inner(first, K);
        // SAFETY: pixels are those of the rows; the vectors are there.
        unsafe {
            let mut sums = [[V::splat(0.0); R]; K];
            let load = |from: *const f32, r: usize| V::load_some(from.add(r * V::LEN), count);
            for column in (0..inner.start).chain(inner.end..sizes.y[1]) {
                let dy = rows.dy.add(column * channels + at);
                for (k, sums) in sums.iter_mut().enumerate() {
                    let Some(place) = sizes.place(1, column, first + k) else {
                        continue;
                    };
                    let x = rows.x.add(place * channels + at);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = load(x, r).mul_add(load(dy, r), *sum);
                    }
                }
            }
            for column in inner {
                let dy = rows.dy.add(column * channels + at);
                let dy: [V; R] = std::array::from_fn(|r| load(dy, r));
                let place = column * sizes.strides[1] + first * sizes.dilation[1] - sizes.low[1];
                for (k, sums) in sums.iter_mut().enumerate() {
                    let x = rows.x.add((place + k * sizes.dilation[1]) * channels + at);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = load(x, r).mul_add(dy[r], *sum);
                    }
                }
            }
            sums
        }
    }
}
