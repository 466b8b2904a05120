//! Large matrix multiplications in f32 for processors with AVX2 or AVX-512: the custom call `phalanx.product`, of matrices of f32 or bf16.
//!
//! XLA's own libraries reach 75 to 90 % of the processor's speed on them, least where the left matrix is transposed, as in gradients of
//! kernels. Here the result is divided into tiles, which are [`SharedWork`]. Each element is summed in an order that does not depend on
//! which thread computes it. Matrices of bf16 are widened while they are packed, and their results rounded once, so that the program needs no copies of
//! them in f32.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use phalanx_pjrt::{Bf16, Client, CustomCallError, CustomCallFrame, ElementType};

use crate::gemm::{self, GemmOperand, PackedMatrix, ResultTile, RightOperand};
use crate::handlers::{expect_dims, flag, invalid, register, replicas};
use crate::library::KernelError;
use crate::microkernel::{Isa, MR, NR};
use crate::scratchpad::AlignedFloats;
use crate::shared_tasks::{self, SharedWork};
use crate::simd;
use crate::simd_element::SimdElement;
use crate::stored::narrow_all;
use crate::sync::lock;

/// Largest tile, in rows and columns: its packed panels stay in the caches and are used often enough to pay for the packing.
const MAX_TILE: [usize; 2] = [528, 1024];
/// Largest tile of a product whose right matrix was packed ahead: as many rows as the inner loop takes at once, so that threads end together.
const MAX_PACKED_TILE: [usize; 2] = [144, 1024];
/// Tiles of each thread, where there would be fewer: threads end together, also where one comes later or has a slower processor.
const TILES_OF_A_THREAD: usize = 4;
/// Fewest columns of a tile that was divided so and whose right matrix was packed ahead.
const MIN_TILE_COLUMNS: usize = 128;
/// Fewest multiplications of another one: both of its sides are packed for it alone.
const MIN_TILE: usize = 1 << 20;
/// Largest right matrix that is packed ahead, in elements: 16 MiB.
const MAX_PACKED: usize = 1 << 22;
/// Largest tile of which all sums are kept before they are rounded: they stay in the caches, too.
const MAX_ROUNDED_TILE: [usize; 2] = [528, 512];

/// Multiplications from which other threads take a part, with vectors of 512 bits and without: half of them last a twentieth to a tenth of a
/// millisecond, as long as it takes to wake a thread up and to wait for it.
const WORTH_SHARING: [usize; 2] = [1 << 25, 1 << 22];

/// Registers `phalanx.product` with this client's plugin for the rest of the process; does nothing when it is registered already.
///
/// # Errors
/// The processor lacks AVX2 or FMA, or the plugin has no custom calls.
pub fn register_matmul(client: &Client) -> Result<(), KernelError> {
    if !simd::has_fma() {
        let reason = "products are for processors with avx2 and fma".to_owned();
        return Err(KernelError::Register { reason });
    }
    let scratch = Arc::new(ScratchPools::default());
    register(client, "phalanx.product", move |call| {
        matmul(&scratch, call)
    })
}

/// Buffers that nothing uses at the moment.
#[derive(Default)]
struct ScratchPool(Mutex<Vec<AlignedFloats>>);

/// Buffers of tiles, and packed right matrices.
#[derive(Default)]
struct ScratchPools {
    tiles: ScratchPool,
    packed: ScratchPool,
}

/// Operands: left matrices, `[.., rows, depth]` or `[.., depth, rows]`, right ones, `[.., depth, columns]` or `[.., columns, depth]`, and what is added to
/// each row of the results, `[columns]`, where there are three: in f32.
fn matmul(
    scratch: &Arc<ScratchPools>,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let elements = [
        call.operand_shape(0)?.0,
        call.operand_shape(1)?.0,
        call.result_shape(0)?.0,
    ];
    match elements {
        [ElementType::F32, ElementType::F32, ElementType::F32] => {
            matmul_of::<f32, f32>(scratch, call)
        }
        [ElementType::Bf16, ElementType::Bf16, ElementType::F32] => {
            matmul_of::<Bf16, f32>(scratch, call)
        }
        [ElementType::Bf16, ElementType::Bf16, ElementType::Bf16] => {
            matmul_of::<Bf16, Bf16>(scratch, call)
        }
        [left, right, result] => Err(invalid(format!(
            "a product is of two f32, or of two bf16 with a result in either, got {left:?} and {right:?} for {result:?}"
        ))),
    }
}

/// Operands of elements `T`, results of elements `R`.
fn matmul_of<T: SimdElement, R: SimdElement>(
    scratch: &Arc<ScratchPools>,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let left = MatricesPointer::<T>::of(call, 0, !flag(call, "left_transposed")?)?;
    let right = MatricesPointer::<T>::of(call, 1, flag(call, "right_transposed")?)?;
    let [batch, rows, heads, columns] = matrices(call.result_shape(0)?.1)?;
    let fits = left.depth == right.depth && [rows, columns] == [left.count, right.count];
    let is_whole = heads == 1 && [left.batch(), right.batch()] == [batch; 2];
    if !fits || !is_whole {
        let dims = call.result_shape(0)?.1;
        return Err(invalid(format!(
            "a product of {left:?} and {right:?} is not {dims:?}"
        )));
    }
    let bias = bias(call, columns)?;
    let result: &mut [R] = call.result(0)?;
    if left.depth == 0 || result.is_empty() {
        for (index, number) in result.iter_mut().enumerate() {
            *number = R::narrow(bias.map_or(0.0, |bias| bias[index % columns]));
        }
        return Ok(());
    }
    let multiplications = left.count * left.depth * right.count * batch;
    let share = (call.threads() / replicas(call)?).max(1);
    let [wide, narrow] = WORTH_SHARING;
    let worth_sharing = if simd::has_avx512() { wide } else { narrow };
    let threads = match multiplications < worth_sharing {
        true => 1,
        false => share,
    };
    let packs_ahead = batch == 1 && packs_ahead([rows, columns, left.depth]);
    let packed = packs_ahead.then(|| pack_right(scratch, call, threads, right));
    let work = ParallelMatmul {
        tiles: TileGrid::of::<R>(
            [rows, columns, left.depth],
            threads.div_ceil(batch),
            packed.is_some(),
        ),
        packed,
        batch,
        left,
        right,
        result: result.as_mut_ptr(),
        bias: bias.map(<[f32]>::as_ptr),
        scratch: Arc::clone(scratch),
    };
    shared_tasks::run(call, threads, work);
    Ok(())
}

/// The third operand, where there is one.
fn bias<'a>(
    call: &CustomCallFrame<'a>,
    columns: usize,
) -> Result<Option<&'a [f32]>, CustomCallError> {
    if call.operands() < 3 {
        return Ok(None);
    }
    expect_dims(call.operand_shape(2)?.1, &[columns as i64])?;
    call.operand(2).map(Some)
}

/// Some [`GemmOperand`]s by address, which can be sent to other threads.
#[derive(Debug, Clone, Copy)]
struct MatricesPointer<T> {
    start: *const T,
    count: usize,
    depth: usize,
    /// Whether the elements of a vector are adjacent in memory.
    k_contiguous: bool,
    /// How many matrices follow each other, and how many have their rows between each other's, as the heads of an attention have.
    matrices: [usize; 2],
}

impl<T: SimdElement> MatricesPointer<T> {
    fn of(
        call: &CustomCallFrame<'_>,
        index: usize,
        k_contiguous: bool,
    ) -> Result<Self, CustomCallError> {
        let [batch, outer, heads, inner] = matrices(call.operand_shape(index)?.1)?;
        let (count, depth) = if k_contiguous {
            (outer, inner)
        } else {
            (inner, outer)
        };
        Ok(Self {
            start: call.operand::<T>(index)?.as_ptr(),
            count,
            depth,
            k_contiguous,
            matrices: [batch, heads],
        })
    }

    fn batch(self) -> usize {
        self.matrices[0] * self.matrices[1]
    }

    /// Matrix number `index`.
    ///
    /// # Safety
    /// The matrices are alive and nobody writes to them while the operand is in use; there are more than `index`.
    unsafe fn operand<'a>(self, index: usize) -> GemmOperand<'a, T> {
        let [_, heads] = self.matrices;
        let [outer, inner] = match self.k_contiguous {
            true => [self.count, self.depth],
            false => [self.depth, self.count],
        };
        let apart = heads * inner;
        let first = index / heads * outer * apart + index % heads * inner;
        let len = (outer - 1) * apart + inner;
        // SAFETY: the pointer is that of a slice with all matrices, which the caller promises to be alive.
        let values = unsafe { std::slice::from_raw_parts(self.start.add(first), len) };
        GemmOperand::strided(values, [self.count, self.depth], self.k_contiguous, apart)
    }
}

/// Some multiplications, computed by several threads.
struct ParallelMatmul<T, R> {
    left: MatricesPointer<T>,
    right: MatricesPointer<T>,
    result: *mut R,
    /// For each column of each.
    bias: Option<*const f32>,
    /// The right matrix, where it was packed ahead.
    packed: Option<PooledFloats>,
    batch: usize,
    /// Of the result of each.
    tiles: TileGrid,
    scratch: Arc<ScratchPools>,
}

// SAFETY: the matrices are used between the beginning and the end of a tile, and the call, which keeps them alive, ends after the last tile;
// each element of the result is of one tile, which one thread computes.
unsafe impl<T, R> Send for ParallelMatmul<T, R> {}
// SAFETY: as above.
unsafe impl<T, R> Sync for ParallelMatmul<T, R> {}

impl<T: SimdElement, R: SimdElement> SharedWork for ParallelMatmul<T, R> {
    type Scratch = AlignedFloats;

    fn tasks(&self) -> usize {
        self.tiles.count() * self.batch
    }

    fn begin(&self) -> AlignedFloats {
        self.scratch.tiles.take(self.tiles.scratch_len::<R>())
    }

    fn compute(&self, task: usize, scratch: &mut AlignedFloats) {
        let (index, tile) = (task / self.tiles.count(), task % self.tiles.count());
        let bounds = self.tiles.tile_bounds(tile);
        let result = self
            .result
            .wrapping_add(index * self.left.count * self.right.count);
        // SAFETY: the tile is not done, so that the call waits for it and keeps the matrices; no other thread has this tile.
        unsafe {
            let (left, right) = (self.left.operand(index), self.right.operand(index));
            let columns = self.right.count;
            let bias = self
                .bias
                .map(|bias| std::slice::from_raw_parts(bias, columns));
            let right = match &self.packed {
                Some(panels) => {
                    RightOperand::Packed(PackedMatrix::new(panels, columns, self.left.depth))
                }
                None => RightOperand::Matrix(right),
            };
            multiply_tile(left, right, bounds, scratch, result, bias, |_, _| {});
        }
    }

    fn end(&self, scratch: AlignedFloats) {
        self.scratch.tiles.give_back(scratch);
    }
}

/// Whether the right matrix is packed once, and not for each tile: where rows have several tiles.
pub(crate) fn packs_ahead([rows, columns, depth]: [usize; 3]) -> bool {
    rows > MAX_TILE[0] && PackedMatrix::len(columns, depth) <= MAX_PACKED
}

/// Packs the right matrix by some threads.
fn pack_right<T: SimdElement>(
    scratch: &Arc<ScratchPools>,
    call: &CustomCallFrame<'_>,
    threads: usize,
    right: MatricesPointer<T>,
) -> PooledFloats {
    let len = PackedMatrix::len(right.count, right.depth);
    let mut packed = PooledFloats {
        floats: scratch.packed.take(len),
        len,
        pools: Arc::clone(scratch),
    };
    let panels = packed.floats.as_mut_ptr();
    shared_tasks::run(call, threads, PackRight { right, panels });
    packed
}

/// A packed right matrix, whose memory is given back.
struct PooledFloats {
    floats: AlignedFloats,
    len: usize,
    pools: Arc<ScratchPools>,
}

impl std::ops::Deref for PooledFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.floats[..self.len]
    }
}

impl Drop for PooledFloats {
    fn drop(&mut self) {
        let floats = std::mem::replace(&mut self.floats, AlignedFloats::zeros(0));
        self.pools.packed.give_back(floats);
    }
}

/// The packing of a right matrix.
struct PackRight<T> {
    right: MatricesPointer<T>,
    panels: *mut f32,
}

// SAFETY: the matrix is read, and the panels are written, between the beginning and the end of a task, and who packs keeps them until the last
// task; each part is of one task, which one thread computes.
unsafe impl<T> Send for PackRight<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for PackRight<T> {}

impl<T: SimdElement> SharedWork for PackRight<T> {
    type Scratch = ();

    fn tasks(&self) -> usize {
        gemm::packed_parts([self.right.count, self.right.depth])
    }

    fn begin(&self) {}

    fn compute(&self, task: usize, (): &mut ()) {
        // SAFETY: the call waits for this task, and keeps the matrix and the panels; it would not have been registered without the instructions.
        unsafe { gemm::pack_part(self.right.operand(0), task, self.panels) };
    }

    fn end(&self, (): ()) {}
}

/// Computes a tile of a product, with the bias of each column. `finish` gets the sums of each of its rows, and the position of the first of them in
/// the result, before they are rounded. `scratch` has what [`TileGrid::scratch_len`] says.
///
/// # Safety
/// The processor has AVX2 and FMA; `result` has room for the whole product, and nobody else uses the elements of this tile meanwhile.
pub(crate) unsafe fn multiply_tile<T: SimdElement, R: SimdElement>(
    left: GemmOperand<'_, T>,
    right: RightOperand<'_, T>,
    [rows, columns]: [Range<usize>; 2],
    scratch: &mut [f32],
    result: *mut R,
    bias: Option<&[f32]>,
    finish: impl Fn(usize, &mut [f32]),
) {
    let ([width, _], across) = (right.dims(), columns.len());
    let kept = if R::IS_F32 { 0 } else { rows.len() * across };
    let (scratch, sums) = scratch.split_at_mut(scratch.len() - kept);
    let (target, target_width) = match R::in_f32(result) {
        Some(result) => (result.cast_mut(), width),
        None => {
            let before = rows.start * across + columns.start;
            (sums.as_mut_ptr().wrapping_sub(before), across)
        }
    };
    let tile = ResultTile {
        rows: rows.clone(),
        columns: columns.clone(),
        result: target,
        width: target_width,
        bias,
    };
    // SAFETY: the caller's promise; the sums are ours, and as many as the tile has elements.
    unsafe { gemm::multiply(Isa::best_available(), left, right, &tile, scratch) };
    for row in rows {
        let start = row * width + columns.start;
        let sums = target.wrapping_add(row * target_width + columns.start);
        // SAFETY: as above.
        let sums = unsafe { std::slice::from_raw_parts_mut(sums, across) };
        finish(start, sums);
        if !R::IS_F32 {
            // SAFETY: the caller's promise.
            narrow_all(sums, unsafe {
                std::slice::from_raw_parts_mut(result.add(start), across)
            });
        }
    }
}

/// How the result is divided into tiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileGrid {
    result: [usize; 2],
    tile_rows: usize,
    tile_columns: usize,
    /// Whether the right matrix was packed ahead.
    is_packed: bool,
}

impl TileGrid {
    /// Tiles of about equal size for results of elements `R`, by whether the right matrix was packed ahead; `dims` are rows, columns and depth.
    pub(crate) fn of<R: SimdElement>(dims: [usize; 3], threads: usize, is_packed: bool) -> Self {
        match is_packed {
            true => Self::of_packed::<R>([dims[0], dims[1]], threads),
            false => Self::new::<R>(dims, threads),
        }
    }

    /// The same number for each thread if the result is large enough.
    fn new<R: SimdElement>([rows, columns, depth]: [usize; 3], threads: usize) -> Self {
        let largest = if R::IS_F32 {
            MAX_TILE
        } else {
            MAX_ROUNDED_TILE
        };
        let mut parts = [rows.div_ceil(largest[0]), columns.div_ceil(largest[1])];
        // Fewer rows reuse the packed right matrix less, fewer columns the packed left one.
        let longer = |parts: &[usize; 2]| usize::from(columns / parts[1] > rows / parts[0]);
        for _ in 1..threads {
            if (parts[0] * parts[1]).is_multiple_of(threads) {
                break;
            }
            parts[longer(&parts)] += 1;
        }
        let most = rows * columns * depth / MIN_TILE;
        while threads > 1 && 2 * parts[0] * parts[1] <= most.min(TILES_OF_A_THREAD * threads) {
            parts[longer(&parts)] *= 2;
        }
        Self {
            result: [rows, columns],
            tile_rows: rows.div_ceil(parts[0]).next_multiple_of(MR),
            tile_columns: columns.div_ceil(parts[1]).next_multiple_of(NR),
            is_packed: false,
        }
    }

    /// Small ones: their columns need not be packed again for each.
    fn of_packed<R: SimdElement>([rows, columns]: [usize; 2], threads: usize) -> Self {
        let widest = match R::IS_F32 {
            true => MAX_PACKED_TILE[1],
            false => MAX_ROUNDED_TILE[1],
        };
        let mut parts = [rows.div_ceil(MAX_PACKED_TILE[0]), columns.div_ceil(widest)];
        while threads > 1
            && parts[0] * parts[1] < TILES_OF_A_THREAD * threads
            && columns / (parts[1] + 1) >= MIN_TILE_COLUMNS
        {
            parts[1] += 1;
        }
        Self {
            result: [rows, columns],
            tile_rows: rows.div_ceil(parts[0]).next_multiple_of(MR),
            tile_columns: columns.div_ceil(parts[1]).next_multiple_of(NR),
            is_packed: true,
        }
    }

    /// What [`multiply_tile`] needs to compute a tile, in numbers.
    pub(crate) fn scratch_len<R: SimdElement>(&self) -> usize {
        let packing = match self.is_packed {
            true => gemm::left_len(),
            false => gemm::scratch_len(self.tile_columns),
        };
        let sums = self.tile_rows * self.tile_columns;
        packing + if R::IS_F32 { 0 } else { sums }
    }

    pub(crate) fn count(&self) -> usize {
        self.result[0].div_ceil(self.tile_rows) * self.result[1].div_ceil(self.tile_columns)
    }

    /// Rows and columns of a tile.
    pub(crate) fn tile_bounds(&self, tile: usize) -> [Range<usize>; 2] {
        let [rows, columns] = self.result;
        let high = rows.div_ceil(self.tile_rows);
        let (row, column) = (
            tile % high * self.tile_rows,
            tile / high * self.tile_columns,
        );
        [
            row..(row + self.tile_rows).min(rows),
            column..(column + self.tile_columns).min(columns),
        ]
    }
}

impl ScratchPool {
    /// A buffer of at least this size.
    fn take(&self, size: usize) -> AlignedFloats {
        let kept = lock(&self.0).pop();
        kept.filter(|scratch| scratch.len() >= size)
            .unwrap_or_else(|| AlignedFloats::zeros(size))
    }

    fn give_back(&self, scratch: AlignedFloats) {
        lock(&self.0).push(scratch);
    }
}

/// Dimensions of `[rows, columns]`, `[matrices, rows, columns]` or `[matrices, rows, heads, columns]`, as the last of these.
fn matrices(dims: &[i64]) -> Result<[usize; 4], CustomCallError> {
    let size = |&dim: &i64| usize::try_from(dim).unwrap_or(0);
    match dims {
        [rows, columns] => Ok([1, size(rows), 1, size(columns)]),
        [batch, rows, columns] => Ok([size(batch), size(rows), 1, size(columns)]),
        [batch, rows, heads, columns] => Ok([batch, rows, heads, columns].map(size)),
        _ => Err(invalid(format!(
            "matrices must have 2, 3 or 4 dimensions, got {dims:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_result_once() {
        let results = [
            [1, 1],
            [5, 40],
            [256, 8000],
            [2048, 256],
            [256, 256],
            [1000, 3000],
        ];
        for threads in [1, 2, 3, 16] {
            for result in results {
                for depth in [1, 1000] {
                    let dims = [result[0], result[1], depth];
                    cover_once(&TileGrid::new::<f32>(dims, threads), MAX_TILE);
                }
                cover_once(
                    &TileGrid::of_packed::<f32>(result, threads),
                    MAX_PACKED_TILE,
                );
                cover_once(
                    &TileGrid::of_packed::<Bf16>(result, threads),
                    MAX_ROUNDED_TILE,
                );
            }
        }
    }

    fn cover_once(tiles: &TileGrid, largest: [usize; 2]) {
        let [_, width] = tiles.result;
        let mut seen = vec![0u8; tiles.result.iter().product()];
        for tile in 0..tiles.count() {
            let [rows, columns] = tiles.tile_bounds(tile);
            assert!(!rows.is_empty() && rows.len() <= largest[0].next_multiple_of(MR));
            assert!(!columns.is_empty() && columns.len() <= largest[1]);
            assert!(columns.start.is_multiple_of(NR));
            for row in rows {
                for column in columns.clone() {
                    seen[row * width + column] += 1;
                }
            }
        }
        assert!(seen.iter().all(|&times| times == 1), "{tiles:?}");
    }

    #[test]
    fn two_threads_have_as_many_tiles() {
        for (dims, expected) in [
            ([256, 8000, 1], 8),
            ([256, 1024, 1], 2),
            ([1024, 256, 1], 2),
            ([256, 256, 1], 2),
            ([2048, 8000, 1], 32),
            // A layer of 784 numbers with 128 rows, and the gradient of its kernel.
            ([128, 128, 784], 8),
            ([784, 128, 128], 8),
            ([256, 256, 48], 2),
            ([1024, 1024, 1024], 8),
        ] {
            assert_eq!(TileGrid::new::<f32>(dims, 2).count(), expected, "{dims:?}");
        }
    }
}
