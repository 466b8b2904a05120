//! Maximum pooling and its gradient, of f32 and bf16.
//!
//! These loops are ours, not oneDNN's: its maximum hides NaN, and is -3.4e38 where it should be -inf.

use crate::openmp::ThreadTeam;
use crate::simd::compiled_for_wide_vectors;
use crate::stored::Stored;

/// One pooling of `[batch, height, width, channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaxPool {
    pub(crate) x: [i64; 4],
    pub(crate) y: [i64; 4],
    pub(crate) window: [i64; 2],
    pub(crate) strides: [i64; 2],
    pub(crate) padding_low: [i64; 2],
    pub(crate) padding_high: [i64; 2],
}

pub(crate) struct MaxPoolForward<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) y: &'a mut [T],
    /// Index in the window, row by row, of the largest element; 0 where the window is all padding.
    pub(crate) argmax: &'a mut [u8],
}

pub(crate) struct MaxPoolGradient<'a, T> {
    pub(crate) argmax: &'a [u8],
    pub(crate) dy: &'a [T],
    pub(crate) dx: &'a mut [T],
}

/// Largest window, in elements: indices are bytes.
const MAX_WINDOW: i64 = 256;
/// Bytes of the rows of one task of a thread.
const CHUNK_BYTES: usize = 1 << 17;
/// Channels whose maxima are kept in registers.
const BLOCK: usize = 16;

impl MaxPool {
    /// Whether the dimensions fit each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.y[0] != self.x[0] || self.y[3] != self.x[3] {
            return Err(format!("x and y do not fit: {self:?}"));
        }
        let elements = self.window[0].checked_mul(self.window[1]);
        if elements.is_none_or(|elements| elements > MAX_WINDOW) {
            return Err(format!(
                "a window has at most {MAX_WINDOW} elements, got {:?}",
                self.window
            ));
        }
        for side in 0..2 {
            let (low, high) = (self.padding_low[side], self.padding_high[side]);
            let padded = self.x[side + 1].saturating_add(low).saturating_add(high);
            let (window, stride) = (self.window[side], self.strides[side]);
            let positive = window >= 1 && stride >= 1 && low.min(high) >= 0;
            if !positive || padded < window || (padded - window) / stride + 1 != self.y[side + 1] {
                return Err(format!("the window does not fit: {self:?}"));
            }
        }
        Ok(())
    }

    /// Fills y and the indices; the arrays are not empty.
    pub(crate) fn forward<T: Stored>(&self, job: MaxPoolForward<'_, T>, team: &ThreadTeam) {
        let MaxPoolForward { x, y, argmax } = job;
        let len = row_len(self.y);
        let rows = rows_of_chunk(len);
        let chunks = y.chunks_mut(rows * len);
        let chunks = chunks.zip(argmax.chunks_mut(rows * len)).enumerate();
        team.for_each(chunks, |(chunk, (y, argmax))| {
            let outputs = y.chunks_mut(len).zip(argmax.chunks_mut(len));
            for (row, (y, argmax)) in outputs.enumerate() {
                forward_row(self, chunk * rows + row, x, y, argmax);
            }
        });
    }

    /// Fills dx; the arrays are not empty.
    pub(crate) fn gradient<T: Stored>(&self, job: MaxPoolGradient<'_, T>, team: &ThreadTeam) {
        let MaxPoolGradient { argmax, dy, dx } = job;
        let len = row_len(self.x);
        let rows = rows_of_chunk(len);
        let chunks = dx.chunks_mut(rows * len).enumerate();
        team.for_each(chunks, |(chunk, dx)| {
            let mut buffer = Vec::new();
            for (row, dx) in dx.chunks_mut(len).enumerate() {
                let row = chunk * rows + row;
                T::fill_in_f32(dx, &mut buffer, |dx| {
                    gradient_row(self, row, argmax, dy, dx);
                });
            }
        });
    }

    /// The range of window elements along one side that are inside the image.
    #[inline(always)]
    fn inside(&self, side: usize, at: usize) -> (usize, usize) {
        let start = at as i64 * self.strides[side] - self.padding_low[side];
        let (first, end) = (-start, self.x[side + 1] - start);
        let first = first.clamp(0, self.window[side]);
        (first as usize, end.clamp(first, self.window[side]) as usize)
    }
}

/// Elements of a row of an image.
fn row_len(dims: [i64; 4]) -> usize {
    (dims[2] * dims[3]) as usize
}

fn rows_of_chunk(len: usize) -> usize {
    (CHUNK_BYTES / 4 / len).max(1)
}

compiled_for_wide_vectors! {
    /// Computes a row of y and of the indices; rows are counted through all images.
    fn forward_row<T: Stored>(pool: &MaxPool, row: usize, x: &[T], y: &mut [T], argmax: &mut [u8]) {
        let [height, width, channels] = [pool.x[1], pool.x[2], pool.x[3]].map(|dim| dim as usize);
        let (image, oy) = (row / pool.y[1] as usize, row % pool.y[1] as usize);
        let x = &x[image * height * width * channels..][..height * width * channels];
        let (top, bottom) = pool.inside(0, oy);
        let outputs = y.chunks_exact_mut(channels).zip(argmax.chunks_exact_mut(channels));
        for (ox, (y, argmax)) in outputs.enumerate() {
            let (left, right) = pool.inside(1, ox);
            let window = Window { pool, x, at: [oy, ox], top, bottom, left, right };
            let mut c = 0;
            while c + BLOCK <= channels {
                window.max::<BLOCK>(c, y, argmax);
                c += BLOCK;
            }
            while c < channels {
                window.max::<1>(c, y, argmax);
                c += 1;
            }
        }
    }
}

/// The part of a window that is inside the image.
struct Window<'a, T> {
    pool: &'a MaxPool,
    x: &'a [T],
    at: [usize; 2],
    top: usize,
    bottom: usize,
    left: usize,
    right: usize,
}

impl<T: Stored> Window<'_, T> {
    /// The maxima of `CHANNELS` channels; the first NaN counts as the largest.
    #[inline(always)]
    fn max<const CHANNELS: usize>(&self, channel: usize, y: &mut [T], argmax: &mut [u8]) {
        let (width, channels) = (self.pool.x[2] as usize, self.pool.x[3] as usize);
        let window_width = self.pool.window[1] as usize;
        let mut largest = [f32::NEG_INFINITY; CHANNELS];
        let empty = self.top == self.bottom || self.left == self.right;
        let first = if empty {
            0
        } else {
            self.top * window_width + self.left
        };
        let mut found = [first as u32; CHANNELS];
        let start = |side: usize, inside: usize| {
            let reach = self.at[side] * self.pool.strides[side] as usize + inside;
            reach - self.pool.padding_low[side] as usize
        };
        for ky in self.top..self.bottom {
            let row = start(0, ky) * width;
            for kx in self.left..self.right {
                let tap = (ky * window_width + kx) as u32;
                let from = (row + start(1, kx)) * channels + channel;
                let values = &self.x[from..][..CHANNELS];
                for i in 0..CHANNELS {
                    // Larger, or a NaN; but nothing replaces a NaN.
                    let value = values[i].wide();
                    let larger = (value > largest[i]) | value.is_nan();
                    let takes = larger & !largest[i].is_nan();
                    largest[i] = if takes { value } else { largest[i] };
                    found[i] = if takes { tap } else { found[i] };
                }
            }
        }
        let y = &mut y[channel..][..CHANNELS];
        y.iter_mut()
            .zip(largest)
            .for_each(|(to, from)| *to = T::narrow(from));
        let argmax = &mut argmax[channel..][..CHANNELS];
        argmax
            .iter_mut()
            .zip(found)
            .for_each(|(to, from)| *to = from as u8);
    }
}

compiled_for_wide_vectors! {
    /// Computes a row of dx from the windows over it; rows are counted through all images.
    fn gradient_row<T: Stored>(pool: &MaxPool, row: usize, argmax: &[u8], dy: &[T], dx: &mut [f32]) {
        let channels = pool.x[3] as usize;
        let [y_height, y_width] = [pool.y[1], pool.y[2]].map(|dim| dim as usize);
        let (image, iy) = (row / pool.x[1] as usize, row % pool.x[1] as usize);
        let (stride, low) = (pool.strides[0] as usize, pool.padding_low[0] as usize);
        let window_width = pool.window[1] as usize;
        dx.fill(0.0);
        for ky in (0..pool.window[0] as usize).rev() {
            let Some(reach) = (iy + low).checked_sub(ky) else { continue };
            if !reach.is_multiple_of(stride) || reach / stride >= y_height {
                continue;
            }
            let from = (image * y_height + reach / stride) * y_width * channels;
            let len = y_width * channels;
            let windows = argmax[from..][..len].chunks_exact(channels);
            let windows = windows.zip(dy[from..][..len].chunks_exact(channels));
            for (ox, (argmax, dy)) in windows.enumerate() {
                let (left, right) = pool.inside(1, ox);
                let start = ox * pool.strides[1] as usize;
                for kx in left..right {
                    let ix = start + kx - pool.padding_low[1] as usize;
                    let tap = (ky * window_width + kx) as u8;
                    let dx = &mut dx[ix * channels..][..channels];
                    for i in 0..channels {
                        dx[i] += if argmax[i] == tap { dy[i].wide() } else { 0.0 };
                    }
                }
            }
        }
    }
}
