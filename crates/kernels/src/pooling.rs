//! Maximum pooling and its gradient.
//!
//! These loops are ours, not oneDNN's: its maximum hides NaN, and is -3.4e38 where it should be -inf.

use crate::team::{Team, with_wide_vectors};

/// One pooling of `[batch, height, width, channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) x: [i64; 4],
    pub(crate) y: [i64; 4],
    pub(crate) window: [i64; 2],
    pub(crate) strides: [i64; 2],
    pub(crate) padding_low: [i64; 2],
    pub(crate) padding_high: [i64; 2],
}

pub(crate) struct Forward<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a mut [f32],
    /// Where in the window, row by row, the largest element is; of padding alone: 0.
    pub(crate) place: &'a mut [u8],
}

pub(crate) struct Gradient<'a> {
    pub(crate) place: &'a [u8],
    pub(crate) dy: &'a [f32],
    pub(crate) dx: &'a mut [f32],
}

/// Elements of a window whose place fits into a byte.
const LARGEST_WINDOW: i64 = 256;
/// Bytes of rows that a thread takes at once.
const PART_BYTES: usize = 1 << 17;
/// Channels whose largest elements are kept in registers.
const BLOCK: usize = 16;

impl Pool {
    /// Whether the dimensions fit each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.y[0] != self.x[0] || self.y[3] != self.x[3] {
            return Err(format!("x and y do not fit: {self:?}"));
        }
        let elements = self.window[0].checked_mul(self.window[1]);
        if elements.is_none_or(|elements| elements > LARGEST_WINDOW) {
            return Err(format!(
                "a window has at most {LARGEST_WINDOW} elements, got {:?}",
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

    /// Fills y and the places; the arrays have elements.
    pub(crate) fn forward(&self, job: Forward<'_>, team: &Team) {
        let Forward { x, y, place } = job;
        let len = row_len(self.y);
        let rows = rows_of_part(len);
        let parts = y.chunks_mut(rows * len);
        let parts = parts.zip(place.chunks_mut(rows * len)).enumerate();
        team.each(parts, |(part, (y, place))| {
            let outputs = y.chunks_mut(len).zip(place.chunks_mut(len));
            for (row, (y, place)) in outputs.enumerate() {
                largest_of_row(self, part * rows + row, x, y, place);
            }
        });
    }

    /// Fills dx; the arrays have elements.
    pub(crate) fn gradient(&self, job: Gradient<'_>, team: &Team) {
        let Gradient { place, dy, dx } = job;
        let len = row_len(self.x);
        let rows = rows_of_part(len);
        let parts = dx.chunks_mut(rows * len).enumerate();
        team.each(parts, |(part, dx)| {
            for (row, dx) in dx.chunks_mut(len).enumerate() {
                gradient_of_row(self, part * rows + row, place, dy, dx);
            }
        });
    }

    /// The elements of a window, along one side, that are in the image: from the first to before the last.
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

fn rows_of_part(len: usize) -> usize {
    (PART_BYTES / 4 / len).max(1)
}

with_wide_vectors! {
    /// A row of y and of the places; the row counts through all images.
    fn largest_of_row(pool: &Pool, row: usize, x: &[f32], y: &mut [f32], place: &mut [u8]) {
        let [height, width, channels] = [pool.x[1], pool.x[2], pool.x[3]].map(|dim| dim as usize);
        let (image, oy) = (row / pool.y[1] as usize, row % pool.y[1] as usize);
        let x = &x[image * height * width * channels..][..height * width * channels];
        let (top, bottom) = pool.inside(0, oy);
        let outputs = y.chunks_exact_mut(channels).zip(place.chunks_exact_mut(channels));
        for (ox, (y, place)) in outputs.enumerate() {
            let (left, right) = pool.inside(1, ox);
            let window = Window { pool, x, at: [oy, ox], top, bottom, left, right };
            let mut c = 0;
            while c + BLOCK <= channels {
                window.largest::<BLOCK>(c, y, place);
                c += BLOCK;
            }
            while c < channels {
                window.largest::<1>(c, y, place);
                c += 1;
            }
        }
    }
}

/// The part of a window that is in the image.
struct Window<'a> {
    pool: &'a Pool,
    x: &'a [f32],
    at: [usize; 2],
    top: usize,
    bottom: usize,
    left: usize,
    right: usize,
}

impl Window<'_> {
    /// The largest elements of so many channels; the first NaN is larger than all.
    #[inline(always)]
    fn largest<const CHANNELS: usize>(&self, channel: usize, y: &mut [f32], place: &mut [u8]) {
        let (width, channels) = (self.pool.x[2] as usize, self.pool.x[3] as usize);
        let across = self.pool.window[1] as usize;
        let mut best = [f32::NEG_INFINITY; CHANNELS];
        let empty = self.top == self.bottom || self.left == self.right;
        let first = if empty {
            0
        } else {
            self.top * across + self.left
        };
        let mut found = [first as u32; CHANNELS];
        let start = |side: usize, inside: usize| {
            let reach = self.at[side] * self.pool.strides[side] as usize + inside;
            reach - self.pool.padding_low[side] as usize
        };
        for ky in self.top..self.bottom {
            let row = start(0, ky) * width;
            for kx in self.left..self.right {
                let here = (ky * across + kx) as u32;
                let from = (row + start(1, kx)) * channels + channel;
                let values = &self.x[from..][..CHANNELS];
                for i in 0..CHANNELS {
                    // Larger, or a NaN; but nothing takes the place of a NaN.
                    let larger = (values[i] > best[i]) | values[i].is_nan();
                    let takes = larger & !best[i].is_nan();
                    best[i] = if takes { values[i] } else { best[i] };
                    found[i] = if takes { here } else { found[i] };
                }
            }
        }
        y[channel..][..CHANNELS].copy_from_slice(&best);
        let place = &mut place[channel..][..CHANNELS];
        place
            .iter_mut()
            .zip(found)
            .for_each(|(to, from)| *to = from as u8);
    }
}

with_wide_vectors! {
    /// A row of dx, from the windows over it; the row counts through all images.
    fn gradient_of_row(pool: &Pool, row: usize, place: &[u8], dy: &[f32], dx: &mut [f32]) {
        let channels = pool.x[3] as usize;
        let [y_height, y_width] = [pool.y[1], pool.y[2]].map(|dim| dim as usize);
        let (image, iy) = (row / pool.x[1] as usize, row % pool.x[1] as usize);
        let (stride, low) = (pool.strides[0] as usize, pool.padding_low[0] as usize);
        let across = pool.window[1] as usize;
        dx.fill(0.0);
        for ky in (0..pool.window[0] as usize).rev() {
            let Some(reach) = (iy + low).checked_sub(ky) else { continue };
            if !reach.is_multiple_of(stride) || reach / stride >= y_height {
                continue;
            }
            let from = (image * y_height + reach / stride) * y_width * channels;
            let len = y_width * channels;
            let windows = place[from..][..len].chunks_exact(channels);
            let windows = windows.zip(dy[from..][..len].chunks_exact(channels));
            for (ox, (place, dy)) in windows.enumerate() {
                let (left, right) = pool.inside(1, ox);
                let start = ox * pool.strides[1] as usize;
                for kx in left..right {
                    let ix = start + kx - pool.padding_low[1] as usize;
                    let here = (ky * across + kx) as u8;
                    let dx = &mut dx[ix * channels..][..channels];
                    for i in 0..channels {
                        dx[i] += if place[i] == here { dy[i] } else { 0.0 };
                    }
                }
            }
        }
    }
}
