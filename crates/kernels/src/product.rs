//! Products of large matrices in f32, for processors with AVX2 or AVX-512: the call `phalanx.product`.
//!
//! The plugin's own libraries lose a tenth to a fourth of the processor's speed on them, most where the left matrix is transposed, as in
//! the gradients of kernels. Here the result is divided into tiles; the calling thread computes one after the other, and threads of
//! the plugin that have nothing else to do take some. Every element is summed in one order, whoever computes it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use phalanx_pjrt::{Call, CallAttribute, CallError, Client, Code};

use crate::block::{COLUMNS, Form, ROWS};
use crate::handlers::replicas;
use crate::library::KernelError;
use crate::panels::{self, Lines};
use crate::processor;

/// Most rows and columns of a tile: what is packed of it stays in the caches, and serves long enough to pay.
const TILE: [usize; 2] = [528, 1024];

/// Makes `phalanx.product` callable from programs of this client's plugin, for the rest of the process; where it is already, that serves.
///
/// # Errors
/// The processor lacks AVX2 or FMA, or the plugin has no custom calls.
pub fn register_products(client: &Client) -> Result<(), KernelError> {
    let refused = |reason| KernelError::Register { reason };
    if !processor::has_fma() {
        let reason = "products are for processors with avx2 and fma";
        return Err(refused(reason.to_owned()));
    }
    let scratch = Arc::new(Scratch::default());
    let registered =
        client.register_custom_call("phalanx.product", move |call| product(&scratch, call));
    registered.or_else(|error| match error.code {
        Code::AlreadyExists => Ok(()),
        _ => Err(refused(error.to_string())),
    })
}

/// Memory for tiles that are not computed at the moment.
#[derive(Default)]
struct Scratch(Mutex<Vec<Vec<f32>>>);

/// Operands: the left matrix, `[rows, depth]` or `[depth, rows]`, and the right one, `[depth, columns]` or `[columns, depth]`.
fn product(scratch: &Arc<Scratch>, call: &mut Call<'_>) -> Result<(), CallError> {
    let left = Operand::of(call, 0, !flag(call, "left_transposed")?)?;
    let right = Operand::of(call, 1, flag(call, "right_transposed")?)?;
    let dims = matrix(call.result_shape(0)?.1)?;
    if left.depth != right.depth || dims != [left.count, right.count] {
        return Err(invalid(format!(
            "a product of {left:?} and {right:?} is not {dims:?}"
        )));
    }
    let result: &mut [f32] = call.result(0)?;
    if left.depth == 0 || result.is_empty() {
        result.fill(0.0);
        return Ok(());
    }
    let threads = (call.threads() / replicas(call)?).max(1);
    let job = Arc::new(Job {
        tiles: Tiles::new(dims, threads),
        left,
        right,
        result: result.as_mut_ptr(),
        next: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        panic: Mutex::new(None),
        caller: std::thread::current(),
        scratch: Arc::clone(scratch),
    });
    for _ in 1..threads.min(job.tiles.count()) {
        let job = Arc::clone(&job);
        if !call.schedule(move || job.work()) {
            break;
        }
    }
    job.work();
    job.wait();
    Ok(())
}

/// Where a matrix is, as lines of the length that is summed over.
#[derive(Debug, Clone, Copy)]
struct Operand {
    start: *const f32,
    count: usize,
    depth: usize,
    /// Whether the elements of a line follow one another.
    whole: bool,
}

impl Operand {
    fn of(call: &Call<'_>, index: usize, whole: bool) -> Result<Self, CallError> {
        let [outer, inner] = matrix(call.operand_shape(index)?.1)?;
        let (count, depth) = if whole {
            (outer, inner)
        } else {
            (inner, outer)
        };
        Ok(Self {
            start: call.operand::<f32>(index)?.as_ptr(),
            count,
            depth,
            whole,
        })
    }

    /// # Safety
    /// The matrix is alive and nobody writes to it while the lines are.
    unsafe fn lines<'a>(self) -> Lines<'a> {
        // SAFETY: the pointer is that of a slice of this length, which the caller promises to be alive.
        let values = unsafe { std::slice::from_raw_parts(self.start, self.count * self.depth) };
        Lines::new(values, self.count, self.depth, self.whole)
    }
}

/// A product that several threads compute.
struct Job {
    left: Operand,
    right: Operand,
    result: *mut f32,
    tiles: Tiles,
    /// The first tile that nobody has begun; from the number of tiles on there is none.
    next: AtomicUsize,
    /// Tiles that are computed.
    done: AtomicUsize,
    /// What ended the work on a tile.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
    scratch: Arc<Scratch>,
}

// SAFETY: the matrices are used between the beginning and the end of a tile, and the call, which keeps them alive, ends after the last tile;
// each element of the result is of one tile, which one thread computes.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Computes tiles until all are begun.
    fn work(&self) {
        let mut scratch = None;
        loop {
            let tile = self.next.fetch_add(1, Ordering::Relaxed);
            if tile >= self.tiles.count() {
                break;
            }
            let scratch = scratch.get_or_insert_with(|| self.scratch.take(self.tiles.width));
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.compute(tile, scratch))) {
                *lock(&self.panic) = Some(panic);
            }
            if self.done.fetch_add(1, Ordering::Release) + 1 == self.tiles.count() {
                self.caller.unpark();
            }
        }
        if let Some(scratch) = scratch {
            lock(&self.scratch.0).push(scratch);
        }
    }

    fn compute(&self, tile: usize, scratch: &mut [f32]) {
        let [rows, columns] = self.tiles.place(tile);
        // SAFETY: the tile is not done, so that the call waits for it and keeps the matrices; no other thread has this tile.
        unsafe {
            let (left, right) = (self.left.lines(), self.right.lines());
            panels::multiply(
                Form::widest(),
                left,
                right,
                rows,
                columns,
                scratch,
                self.result,
            );
        }
    }

    /// Returns when all tiles are computed; no deadline, for who computes them waits for nothing.
    fn wait(&self) {
        while self.done.load(Ordering::Acquire) < self.tiles.count() {
            std::thread::park();
        }
        if let Some(panic) = lock(&self.panic).take() {
            resume_unwind(panic);
        }
    }
}

/// How a result is divided.
#[derive(Debug, Clone, Copy)]
struct Tiles {
    result: [usize; 2],
    height: usize,
    width: usize,
}

impl Tiles {
    /// Tiles of at most [`TILE`] and about equal size, as many for each thread where the result has so many panels.
    fn new(result: [usize; 2], threads: usize) -> Self {
        let [rows, columns] = result;
        let mut parts = [rows.div_ceil(TILE[0]), columns.div_ceil(TILE[1])];
        for _ in 1..threads {
            if (parts[0] * parts[1]).is_multiple_of(threads) {
                break;
            }
            // Shorter tiles serve what is packed of the right matrix less, narrower ones that of the left.
            let longer = usize::from(columns / parts[1] > rows / parts[0]);
            parts[longer] += 1;
        }
        Self {
            result,
            height: rows.div_ceil(parts[0]).next_multiple_of(ROWS),
            width: columns.div_ceil(parts[1]).next_multiple_of(COLUMNS),
        }
    }

    fn count(&self) -> usize {
        self.result[0].div_ceil(self.height) * self.result[1].div_ceil(self.width)
    }

    /// Rows and columns of a tile.
    fn place(&self, tile: usize) -> [std::ops::Range<usize>; 2] {
        let [rows, columns] = self.result;
        let high = rows.div_ceil(self.height);
        let (row, column) = (tile % high * self.height, tile / high * self.width);
        [
            row..(row + self.height).min(rows),
            column..(column + self.width).min(columns),
        ]
    }
}

impl Scratch {
    /// Memory for a tile of so many columns.
    fn take(&self, columns: usize) -> Vec<f32> {
        let mut scratch = lock(&self.0).pop().unwrap_or_default();
        let size = panels::scratch_len(columns);
        if scratch.len() < size {
            scratch.resize(size, 0.0);
        }
        scratch
    }
}

fn matrix(dims: &[i64]) -> Result<[usize; 2], CallError> {
    let size = |&dim: &i64| usize::try_from(dim).unwrap_or(0);
    match dims {
        [rows, columns] => Ok([size(rows), size(columns)]),
        _ => Err(invalid(format!(
            "a matrix must have 2 dimensions, got {dims:?}"
        ))),
    }
}

fn flag(call: &Call<'_>, name: &str) -> Result<bool, CallError> {
    match call.attribute(name)? {
        CallAttribute::Bool(flag) => Ok(flag),
        other => Err(invalid(format!(
            "the attribute `{name}` must be a boolean, got {other:?}"
        ))),
    }
}

fn invalid(message: String) -> CallError {
    CallError::new(Code::InvalidArgument, message)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_result_once() {
        for threads in [1, 2, 3, 16] {
            for result in [
                [1, 1],
                [5, 40],
                [256, 8000],
                [2048, 256],
                [256, 256],
                [1000, 3000],
            ] {
                let tiles = Tiles::new(result, threads);
                let mut seen = vec![0u8; result[0] * result[1]];
                for tile in 0..tiles.count() {
                    let [rows, columns] = tiles.place(tile);
                    assert!(!rows.is_empty() && rows.len() <= TILE[0].next_multiple_of(ROWS));
                    assert!(!columns.is_empty() && columns.len() <= TILE[1]);
                    for row in rows {
                        for column in columns.clone() {
                            seen[row * result[1] + column] += 1;
                        }
                    }
                }
                assert!(
                    seen.iter().all(|&times| times == 1),
                    "{result:?}, {threads} threads"
                );
            }
        }
    }

    #[test]
    fn two_threads_have_as_many_tiles() {
        for result in [
            [256, 8000],
            [256, 1024],
            [1024, 256],
            [256, 256],
            [2048, 8000],
        ] {
            assert!(
                Tiles::new(result, 2).count().is_multiple_of(2),
                "{result:?}"
            );
        }
    }
}
