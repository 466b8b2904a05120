//! Convolutions of 3x3 in steps of 1 and their two gradients, by Winograd's minimal filtering, in f32, for processors with AVX2.
//!
//! A tile of 2x2 or 4x4 pixels of y depends on 4x4 or 6x6 pixels of x. Of both x and the kernel linear combinations are made, as many as
//! such a tile of x has pixels, so that the combinations of y are their products: 16 or 36 multiplications for each pair of channels
//! where the plain sum has 36 or 144 ([`forms`] has the formulas). Over all channels and many tiles each point of the combinations is a
//! product of matrices, `[tiles, inputs] x [inputs, outputs]`, which [`products`] keep in registers in blocks of 6 x 16.
//!
//! The gradient by the input is the same with the kernel turned around and its channels exchanged. The gradient by the kernel is the
//! transpose of it all: combinations of x and of dy, multiplied and summed over the tiles, then combined to 3x3.
//!
//! Measured on one core with AVX2, 8 images, GFLOP/s that a plain sum would need, forward / by the input / by the kernel, beside
//! oneDNN's direct convolution (by the kernel: [`crate::kernel_gradient`]):
//!
//! | 3x3 | tiles | this | direct |
//! |---|---|---|---|
//! | 56x56, 64 -> 64 | 4x4 | 274 / 275 / 263 | 85 / 98 / 90 |
//! | 28x28, 128 -> 128 | 4x4 | 308 / 308 / 282 | 93 / 101 / 91 |
//! | 14x14, 256 -> 256 | 4x4 | 222 / 225 / 205 | 96 / 98 / 90 |
//! | 7x7, 512 -> 512 | 2x2 | 115 / 128 / 109 | 89 / 94 / 89 |
//! | 128 images of 24x24, 32 -> 64 | 4x4 | 206 / 150 / 171 | - / - / 77 |
//!
//! A pixel that is not finite makes all of its tile's not finite, where a plain sum would have reached its neighbours alone; it never
//! gets lost. Sums of a tile are in the order of its channels: they depend on nothing but the tile.

mod forms;
mod products;
mod tiles;

use std::marker::PhantomData;
use std::ops::Range;

use crate::convolution::{Direction, Key};
use crate::onednn::{Scratch, Type};
use crate::team::{Target, Team};
use forms::{Four, Two};
use products::{COLUMNS, ROWS};
use tiles::{Form, LANES};

/// Most combinations of a tile, and most rows of it.
const MOST_POINTS: usize = 36;
/// Combinations of a block of tiles, about.
const BLOCK_BYTES: usize = 1 << 21;
/// A kernel up to this size is summed by each thread for its own tiles; for larger ones each thread has its own output channels.
const SMALL_KERNEL: usize = 1 << 18;

/// The correlation of x with a 3x3 kernel, in numbers of elements.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    images: usize,
    x: [usize; 2],
    y: [usize; 2],
    low: [usize; 2],
    inputs: usize,
    outputs: usize,
}

/// Whether this is the fastest way to compute it here. It does not depend on the number of images, so that what is computed from one
/// does not either.
pub(crate) fn suits(key: &Key) -> bool {
    let f32s = [key.x, key.kernel, key.y]
        .iter()
        .all(|image| image.element == Type::F32);
    let [height, width, inputs, outputs] = key.kernel.dims;
    let padding = [key.padding_low, key.padding_high];
    f32s
        && (height, width) == (3, 3)
        && key.groups == 1
        && key.strides == [1, 1]
        && key.dilation == [1, 1]
        && padding.iter().flatten().all(|&padding| padding <= 2)
        && [inputs, outputs]
            .iter()
            .all(|&channels| channels >= 16 && channels % LANES as i64 == 0)
        && std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        // Not measured there, where oneDNN's own is faster than here.
        && !std::arch::is_x86_feature_detected!("avx512f")
}

/// Computes y, or dx, of the operands in their order.
///
/// # Panics
/// The key does not suit, or the lengths are not those of its shapes: bugs of the caller.
pub(crate) fn run(
    key: &Key,
    operands: &[&[f32]],
    result: &mut [f32],
    team: &Team,
    scratch: &mut Scratch,
) {
    assert!(suits(key));
    let g = Geometry::new(key);
    if g.prefers_four() {
        g.run::<Four>(key.direction, operands, result, team, scratch);
    } else {
        g.run::<Two>(key.direction, operands, result, team, scratch);
    }
}

/// What a thread works with.
struct Share<'a> {
    tiles: Range<usize>,
    panels: Range<usize>,
    buffer: &'a mut [f32],
}

impl Geometry {
    fn new(key: &Key) -> Self {
        let size = |value: i64| usize::try_from(value).expect("a checked key");
        let pair = |values: [i64; 2]| values.map(size);
        Self {
            images: size(key.x.dims[0]),
            x: [size(key.x.dims[1]), size(key.x.dims[2])],
            y: [size(key.y.dims[1]), size(key.y.dims[2])],
            low: pair(key.padding_low),
            inputs: size(key.x.dims[3]),
            outputs: size(key.y.dims[3]),
        }
    }

    /// What gives the gradient by x of this as its y.
    fn turned(self) -> Self {
        Self {
            x: self.y,
            y: self.x,
            low: self.low.map(|low| 2 - low),
            inputs: self.outputs,
            outputs: self.inputs,
            ..self
        }
    }

    fn prefers_four(&self) -> bool {
        self.y[0] * self.y[1] > 64
    }

    fn run<F: Form>(
        self,
        direction: Direction,
        operands: &[&[f32]],
        result: &mut [f32],
        team: &Team,
        scratch: &mut Scratch,
    ) {
        let (x_len, y_len) = (
            self.images * self.x[0] * self.x[1] * self.inputs,
            self.images * self.y[0] * self.y[1] * self.outputs,
        );
        let kernel_len = 9 * self.inputs * self.outputs;
        let bias = operands.get(2).copied();
        let lens = (operands[0].len(), operands[1].len(), result.len());
        match direction {
            Direction::Forward => {
                assert_eq!(lens, (x_len, kernel_len, y_len));
                assert!(bias.is_none_or(|bias| bias.len() == self.outputs));
                self.correlate::<F>(
                    operands[0],
                    (operands[1], false),
                    bias,
                    result,
                    team,
                    scratch,
                );
            }
            Direction::InputGradient => {
                assert_eq!(lens, (y_len, kernel_len, x_len));
                let turned = self.turned();
                turned.correlate::<F>(
                    operands[0],
                    (operands[1], true),
                    None,
                    result,
                    team,
                    scratch,
                );
            }
            Direction::KernelGradient => {
                assert_eq!(lens, (x_len, y_len, kernel_len));
                self.kernel_gradient::<F>(operands[0], operands[1], result, team, scratch);
            }
        }
    }

    /// y of x and a kernel, which is `[3, 3, outputs, inputs]` and the wrong way around where it is turned.
    fn correlate<F: Form>(
        self,
        x: &[f32],
        (kernel, turned): (&[f32], bool),
        bias: Option<&[f32]>,
        y: &mut [f32],
        team: &Team,
        scratch: &mut Scratch,
    ) {
        let panel = F::POINTS * self.inputs * COLUMNS;
        let combined = self.panels() * panel;
        let plan = Plan::<F>::new(self);
        let tiles = self.tiles::<F>();
        let share = tiles.div_ceil(team.threads());
        let own = plan.combinations();
        let floats = scratch.floats(self.zeros() + combined + own * team.threads());
        let (zeros, floats) = floats.split_at_mut(self.zeros());
        let (combined, buffers) = floats.split_at_mut(combined);
        zeros.fill(0.0);
        team.each(combined.chunks_mut(panel).enumerate(), |(index, panel)| {
            // SAFETY: `run` found the instructions; the kernel and the panel have the lengths of the geometry.
            unsafe { F::combine_kernel(kernel, turned, [self.inputs, self.outputs], index, panel) };
        });
        let (zeros, combined) = (&*zeros, &*combined);
        let y = Target(y.as_mut_ptr());
        team.each(buffers.chunks_mut(own).enumerate(), |(index, buffer)| {
            let tiles = (index * share).min(tiles)..((index + 1) * share).min(tiles);
            // SAFETY: the shares have different tiles, whose pixels of y are different.
            unsafe { plan.correlate(x, zeros, combined, bias, tiles, buffer, y) };
        });
    }

    fn kernel_gradient<F: Form>(
        self,
        x: &[f32],
        dy: &[f32],
        dw: &mut [f32],
        team: &Team,
        scratch: &mut Scratch,
    ) {
        let plan = Plan::<F>::new(self);
        let (threads, panels, tiles) = (team.threads(), self.panels(), self.tiles::<F>());
        let panel = F::POINTS * self.inputs * COLUMNS;
        let together = dw.len() > SMALL_KERNEL;
        let sums = if together { panels } else { panels * threads };
        let own = plan.combinations();
        let floats = scratch.floats(self.zeros() + sums * panel + own * threads);
        let (zeros, floats) = floats.split_at_mut(self.zeros());
        let (sums, buffers) = floats.split_at_mut(sums * panel);
        zeros.fill(0.0);
        sums.fill(0.0);
        let zeros = &*zeros;
        let count = if together {
            panels.div_ceil(threads)
        } else {
            panels
        };
        let share = if together {
            tiles
        } else {
            tiles.div_ceil(threads)
        };
        let parts = sums
            .chunks_mut(count * panel)
            .zip(buffers.chunks_mut(own))
            .enumerate();
        team.each(parts, |(index, (sums, buffer))| {
            let first = if together { index * count } else { 0 };
            let start = if together { 0 } else { index * share };
            let mut share = Share {
                tiles: start.min(tiles)..(start + share).min(tiles),
                panels: first..first + sums.len() / panel,
                buffer,
            };
            // SAFETY: the lengths were checked; `run` found the instructions.
            unsafe { plan.accumulate(x, dy, zeros, &mut share, sums) };
        });
        let (sums, others) = sums.split_at_mut(panels * panel);
        for other in others.chunks(panels * panel) {
            sums.iter_mut()
                .zip(other)
                .for_each(|(sum, other)| *sum += other);
        }
        let dw = Target(dw.as_mut_ptr());
        team.each(sums.chunks(panel).enumerate(), |(index, panel)| {
            // SAFETY: each panel has output channels of its own.
            unsafe { F::finish_kernel(panel, [self.inputs, self.outputs], index, dw) };
        });
    }

    /// Tiles of all images.
    fn tiles<F: Form>(&self) -> usize {
        self.images * self.y[0].div_ceil(F::OUT) * self.y[1].div_ceil(F::OUT)
    }

    /// Blocks of output channels; the last may be cut off.
    fn panels(&self) -> usize {
        self.outputs.div_ceil(COLUMNS)
    }

    /// Numbers of a pixel that is padding.
    fn zeros(&self) -> usize {
        self.inputs.max(self.outputs).next_multiple_of(COLUMNS)
    }
}

/// How blocks of tiles are gone through.
struct Plan<F> {
    g: Geometry,
    /// Tiles of a block.
    block: usize,
    /// Elements of a row of combinations, of x and of y.
    row: [usize; 2],
    /// Distance between points of combinations, of x and of y: not a power of two, for the sake of the first cache.
    plane: [usize; 2],
    form: PhantomData<fn() -> F>,
}

impl<F: Form> Plan<F> {
    fn new(g: Geometry) -> Self {
        let row = [g.inputs, g.panels() * COLUMNS];
        let tile = F::POINTS * (row[0] + row[1]) * size_of::<f32>();
        let block = (BLOCK_BYTES / tile).clamp(2 * ROWS, g.tiles::<F>().max(2 * ROWS));
        let block = block / ROWS * ROWS;
        Self {
            g,
            block,
            row,
            plane: row.map(|row| (block * row).next_multiple_of(COLUMNS) + COLUMNS),
            form: PhantomData,
        }
    }

    /// Elements of the combinations of x and y of a block.
    fn combinations(&self) -> usize {
        F::POINTS * (self.plane[0] + self.plane[1])
    }

    /// # Safety
    /// AVX2 and FMA are there; the lengths are those of the geometry; nobody else uses these tiles' pixels of `y` meanwhile.
    #[expect(clippy::too_many_arguments, reason = "called once")]
    unsafe fn correlate(
        &self,
        x: &[f32],
        zeros: &[f32],
        kernel: &[f32],
        bias: Option<&[f32]>,
        tiles: Range<usize>,
        buffer: &mut [f32],
        y: Target,
    ) {
        let (of_x, of_y) = buffer.split_at_mut(F::POINTS * self.plane[0]);
        let panel = self.g.inputs * COLUMNS;
        for first in tiles.clone().step_by(self.block) {
            let count = self.block.min(tiles.end - first);
            // SAFETY: the caller's promise; rows, planes and panels lie inside of their arrays.
            unsafe {
                self.combine_x(x, zeros, first, count, of_x);
                for point in 0..F::POINTS {
                    for index in 0..self.g.panels() {
                        let kernel = kernel.as_ptr().add((index * F::POINTS + point) * panel);
                        let x = of_x.as_ptr().add(point * self.plane[0]);
                        let y = of_y
                            .as_mut_ptr()
                            .add(point * self.plane[1] + index * COLUMNS);
                        products::rows(
                            x,
                            self.row[0],
                            kernel,
                            self.g.inputs,
                            y,
                            self.row[1],
                            count,
                        );
                    }
                }
                for i in 0..count {
                    let place = Place::new(&self.g, F::OUT, first + i);
                    let combinations = of_y.as_ptr().add(i * self.row[1]);
                    F::finish_y(combinations, self.plane[1], &self.g, &place, bias, y);
                }
            }
        }
    }

    /// Adds the products of the combinations of x and dy to sums, `[panel][point][input][16]`.
    ///
    /// # Safety
    /// AVX2 and FMA are there; the lengths are those of the geometry.
    unsafe fn accumulate(
        &self,
        x: &[f32],
        dy: &[f32],
        zeros: &[f32],
        share: &mut Share<'_>,
        sums: &mut [f32],
    ) {
        let (of_x, of_y) = share.buffer.split_at_mut(F::POINTS * self.plane[0]);
        let panel = self.g.inputs * COLUMNS;
        let channels =
            share.panels.start * COLUMNS..(share.panels.end * COLUMNS).min(self.g.outputs);
        for first in share.tiles.clone().step_by(self.block) {
            let count = self.block.min(share.tiles.end - first);
            // SAFETY: the caller's promise; rows, planes and panels lie inside of their arrays.
            unsafe {
                self.combine_x(x, zeros, first, count, of_x);
                for i in 0..count {
                    let place = Place::new(&self.g, F::OUT, first + i);
                    let pixels = place.pixels_of_y(&self.g, F::OUT, dy, zeros);
                    let to = of_y.as_mut_ptr().add(i * self.row[1]);
                    F::combine_dy(&pixels, channels.clone(), to, self.plane[1]);
                }
                for point in 0..F::POINTS {
                    for (index, of_panel) in share.panels.clone().enumerate() {
                        let x = of_x.as_ptr().add(point * self.plane[0]);
                        let y = of_y
                            .as_ptr()
                            .add(point * self.plane[1] + of_panel * COLUMNS);
                        let sums = sums.as_mut_ptr().add((index * F::POINTS + point) * panel);
                        products::sums(x, self.row[0], y, self.row[1], count, sums, self.g.inputs);
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for [`Plan::correlate`].
    unsafe fn combine_x(
        &self,
        x: &[f32],
        zeros: &[f32],
        first: usize,
        count: usize,
        to: &mut [f32],
    ) {
        for i in 0..count {
            let place = Place::new(&self.g, F::OUT, first + i);
            let pixels = place.pixels_of_x(&self.g, F::SIDE, x, zeros);
            // SAFETY: the caller's promise; each pixel has the channels of x.
            unsafe {
                let to = to.as_mut_ptr().add(i * self.row[0]);
                F::combine_x(&pixels, self.g.inputs, to, self.plane[0]);
            }
        }
    }
}

/// Where a tile of y is.
struct Place {
    image: usize,
    /// Its first row and column.
    at: [usize; 2],
}

/// Where the pixels of a tile are, or where padding is.
type Pixels = [*const f32; MOST_POINTS];

impl Place {
    fn new(g: &Geometry, out: usize, tile: usize) -> Self {
        let [rows, columns] = g.y.map(|side| side.div_ceil(out));
        Self {
            image: tile / (rows * columns),
            at: [tile / columns % rows * out, tile % columns * out],
        }
    }

    fn pixels_of_x(&self, g: &Geometry, side: usize, x: &[f32], zeros: &[f32]) -> Pixels {
        pixels(side, zeros, |row, column| {
            let row = (self.at[0] + row).checked_sub(g.low[0])?;
            let column = (self.at[1] + column).checked_sub(g.low[1])?;
            let inside = row < g.x[0] && column < g.x[1];
            let pixel = (self.image * g.x[0] + row) * g.x[1] + column;
            inside.then(|| &x[pixel * g.inputs..][..g.inputs])
        })
    }

    fn pixels_of_y(&self, g: &Geometry, out: usize, y: &[f32], zeros: &[f32]) -> Pixels {
        pixels(out, zeros, |row, column| {
            let (row, column) = (self.at[0] + row, self.at[1] + column);
            let inside = row < g.y[0] && column < g.y[1];
            let pixel = (self.image * g.y[0] + row) * g.y[1] + column;
            inside.then(|| &y[pixel * g.outputs..][..g.outputs])
        })
    }
}

fn pixels<'a>(
    side: usize,
    zeros: &[f32],
    at: impl Fn(usize, usize) -> Option<&'a [f32]>,
) -> Pixels {
    let mut pixels = [zeros.as_ptr(); MOST_POINTS];
    for (i, pixel) in pixels.iter_mut().take(side * side).enumerate() {
        if let Some(found) = at(i / side, i % side) {
            *pixel = found.as_ptr();
        }
    }
    pixels
}
