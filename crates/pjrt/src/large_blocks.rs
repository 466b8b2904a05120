//! Large blocks of memory for the whole process, kept whole when they are freed.
//!
//! XLA:CPU allocates scratch and results anew for each run, in the same sizes run by run. A general heap splits what is freed and puts
//! something else there, so that blocks of hundreds of megabytes move and the heap grows by them, more in one process than in the next.
//! Here a freed block waits for the next of about its size: it is never split, never joined with its neighbours. What no
//! longer comes back would add up, so a block that finds none to take first gives as many idle bytes back to the system.
//!
//! The blocks lie in one reserved range of addresses, in huge pages where the system has them; so `free`, which this crate exports to the
//! process beside `posix_memalign`, knows them by their address, and hands all others to the allocator behind it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes from which a block is large.
const LARGE: usize = 1 << 20;
/// Blocks begin and end at multiples of this.
const GRAIN: usize = 1 << 16;
/// A block of this size and more begins and ends at huge pages.
const HUGE: usize = 32 << 20;
const HUGE_GRAIN: usize = 2 << 20;

/// For how long a block is waited for that is about to be freed, how often is looked, and from which size on: the pages of a new block of
/// that size take longer than the wait.
const PATIENCE: Duration = Duration::from_millis(5);
const LOOK: Duration = Duration::from_micros(100);
const AWAITED: usize = 64 << 20;

/// What the beginning and the size of a block are multiples of.
const fn grain(size: usize) -> usize {
    if size >= HUGE { HUGE_GRAIN } else { GRAIN }
}

/// Addresses that are reserved, most first: a process may be limited.
const RANGES: [usize; 3] = [1 << 42, 1 << 38, 1 << 35];

const EINVAL: c_int = 22;
const ENOMEM: c_int = 12;
const PROT_NONE: c_int = 0;
const PROT_READ_WRITE: c_int = 3;
/// Private, anonymous, without a reservation of swap.
const MAP_FLAGS: c_int = 0x2 | 0x20 | 0x4000;
const MADV_DONTNEED: c_int = 4;
const MADV_HUGEPAGE: c_int = 14;
const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;

/// What C's functions of memory give and take.
pub(crate) type Block = *mut c_void;

unsafe extern "C" {
    fn malloc(size: usize) -> Block;
    fn memalign(alignment: usize, size: usize) -> Block;
    fn mmap(at: Block, bytes: usize, access: c_int, flags: c_int, file: c_int, from: i64) -> Block;
    fn mprotect(at: Block, bytes: usize, access: c_int) -> c_int;
    fn madvise(at: Block, bytes: usize, advice: c_int) -> c_int;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The range's first address, or 0 while there is none, and its end.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks::new());

fn blocks() -> MutexGuard<'static, Blocks> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block of at least this size; see [`Blocks::take`].
///
/// XLA says that a run is done before it frees the run's scratch, on another thread. The next run would then take as much again, and the
/// process would keep both. So a size that is in use and has no block to take is waited for a moment.
fn take(size: usize, patience: Duration) -> Option<usize> {
    let start = Instant::now();
    let size = size.checked_next_multiple_of(grain(size))?;
    while size >= AWAITED && blocks().may_come_back(size) && start.elapsed() < patience {
        sleep(LOOK);
    }
    blocks().take(size)
}

/// From now on large blocks come from here, if addresses can be reserved; else all stays as it was.
pub(crate) fn enable() {
    // Named, so that programs are linked with them.
    std::hint::black_box([
        posix_memalign as *const (),
        free as *const (),
        realloc as *const (),
        malloc_usable_size as *const (),
    ]);
    let mut blocks = blocks();
    if START.load(Ordering::Acquire) == 0
        && let Some(reserved) = RANGES.into_iter().find_map(Blocks::reserve)
    {
        END.store(reserved.end, Ordering::Release);
        START.store(reserved.next, Ordering::Release);
        *blocks = reserved;
    }
}

/// Whether an address is of the range.
fn is_ours(block: Block) -> bool {
    let start = START.load(Ordering::Acquire);
    start != 0 && (start..END.load(Ordering::Acquire)).contains(&block.addr())
}

/// All blocks, by their addresses.
struct Blocks {
    /// Where no block has been, and the end of the range.
    next: usize,
    end: usize,
    /// The size of each block in use.
    used: BTreeMap<usize, usize>,
    /// Freed blocks by size, whose pages are here; the last freed is the last.
    idle: BTreeMap<usize, Vec<usize>>,
    /// Freed blocks whose pages are the system's again.
    empty: BTreeMap<usize, Vec<usize>>,
}

impl Blocks {
    const fn new() -> Self {
        Self {
            next: 0,
            end: 0,
            used: BTreeMap::new(),
            idle: BTreeMap::new(),
            empty: BTreeMap::new(),
        }
    }

    /// None yet, in a new range of addresses; `None` where the process may not have this many.
    fn reserve(bytes: usize) -> Option<Self> {
        // SAFETY: a new range of addresses, which nobody can use yet.
        let range = unsafe { mmap(std::ptr::null_mut(), bytes, PROT_NONE, MAP_FLAGS, -1, 0) };
        let start = range.expose_provenance();
        (start != usize::MAX).then(|| Self {
            next: start.next_multiple_of(HUGE_GRAIN),
            end: start + bytes,
            ..Self::new()
        })
    }

    /// A block of at least this size, a multiple of its grain; `None` where the range or the system's memory is at its end.
    fn take(&mut self, size: usize) -> Option<usize> {
        let found = take_about(&mut self.idle, size);
        let found = found.or_else(|| {
            self.give_back(size);
            take_about(&mut self.empty, size)
        });
        let (block, size) = match found {
            Some(found) => found,
            None => (self.extend(size)?, size),
        };
        self.used.insert(block, size);
        Some(block)
    }

    /// Whether no block of about this size is idle, but one is in use.
    fn may_come_back(&self, size: usize) -> bool {
        let sizes = fitting(size);
        self.idle.range(sizes.clone()).next().is_none()
            && self.used.values().any(|used| sizes.contains(used))
    }

    /// A new block at the end of all.
    fn extend(&mut self, size: usize) -> Option<usize> {
        let block = self.next.checked_next_multiple_of(grain(size))?;
        let end = block.checked_add(size).filter(|&end| end <= self.end)?;
        let at = std::ptr::with_exposed_provenance_mut(block);
        // SAFETY: the addresses are of the reserved range, and no block has been there.
        unsafe {
            if mprotect(at, size, PROT_READ_WRITE) != 0 {
                return None;
            }
            // Without huge pages it stays as it is.
            let _ = madvise(at, size, MADV_HUGEPAGE);
        }
        self.next = end;
        Some(block)
    }

    /// Gives pages of idle blocks back to the system, of the largest first, until this many bytes are.
    fn give_back(&mut self, bytes: usize) {
        let mut given = 0;
        while given < bytes {
            let Some(mut largest) = self.idle.last_entry() else {
                return;
            };
            let size = *largest.key();
            let block = largest.get_mut().swap_remove(0);
            if largest.get().is_empty() {
                largest.remove();
            }
            // SAFETY: the block was freed, so nobody looks at what is there.
            let _ = unsafe {
                madvise(
                    std::ptr::with_exposed_provenance_mut(block),
                    size,
                    MADV_DONTNEED,
                )
            };
            self.empty.entry(size).or_default().push(block);
            given += size;
        }
    }

    /// Takes back a block; `false` if it is none of these.
    fn free(&mut self, block: usize) -> bool {
        let size = self.used.remove(&block);
        size.map(|size| self.idle.entry(size).or_default().push(block))
            .is_some()
    }
}

/// The sizes of blocks that serve this one: a quarter more at most.
fn fitting(size: usize) -> RangeInclusive<usize> {
    size..=size.saturating_add(size / 4)
}

/// The smallest block that serves this size.
fn take_about(blocks: &mut BTreeMap<usize, Vec<usize>>, size: usize) -> Option<(usize, usize)> {
    let (&found, list) = blocks.range_mut(fitting(size)).next()?;
    let block = list.pop();
    if list.is_empty() {
        blocks.remove(&found);
    }
    block.map(|block| (block, found))
}

/// A function of this name in the libraries behind this program; null while this thread looks for one, for `dlsym` frees the text of its last
/// error.
fn behind(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    thread_local! {
        static LOOKS: Cell<bool> = const { Cell::new(false) };
    }
    let known = cache.load(Ordering::Acquire);
    if !known.is_null() || LOOKS.replace(true) {
        return known;
    }
    // SAFETY: the name ends with a zero.
    let found = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) };
    LOOKS.set(false);
    cache.store(found, Ordering::Release);
    found
}

/// POSIX' function, in the place of glibc's: programs that this crate is linked into export it, so that plugins call it.
///
/// # Safety
/// There is room for a pointer at `block`; what is written there is to be given to `free`.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(block: *mut Block, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<Block>()) {
        return EINVAL;
    }
    let is_large = size >= LARGE && alignment <= GRAIN && START.load(Ordering::Acquire) != 0;
    let ours = is_large.then(|| take(size, PATIENCE)).flatten();
    let found = match ours {
        Some(found) => std::ptr::with_exposed_provenance_mut(found),
        // SAFETY: it has no conditions but an alignment that is a power of two.
        None => unsafe { memalign(alignment, size) },
    };
    if found.is_null() {
        return ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { block.write(found) };
    0
}

/// C's function, in the place of the allocator's behind it.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: Block) {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if is_ours(block) {
        if !blocks().free(block.addr()) {
            eprintln!("memory was freed twice, or what is no block's beginning");
            std::process::abort();
        }
        return;
    }
    type Free = unsafe extern "C" fn(Block);
    // SAFETY: a function of that name has this type; the rest is the caller's promise.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, Option<Free>>(behind(&NEXT, c"free"));
        // What the search frees itself is left: a line of text.
        if let Some(next) = next {
            next(block);
        }
    }
}

/// C's function, in the place of the allocator's behind it.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: Block, size: usize) -> Block {
    type Realloc = unsafe extern "C" fn(Block, usize) -> Block;
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: functions of these names have these types; the rest is the caller's promise.
    unsafe {
        if !is_ours(block) {
            let next = behind(&NEXT, c"realloc");
            let next = std::mem::transmute::<*mut c_void, Option<Realloc>>(next);
            return next.map_or(std::ptr::null_mut(), |next| next(block, size));
        }
        let moved = malloc(size);
        if !moved.is_null() {
            let kept = malloc_usable_size(block).min(size);
            moved.copy_from_nonoverlapping(block, kept);
            free(block);
        }
        moved
    }
}

/// glibc's function, in the place of the allocator's behind it.
///
/// # Safety
/// As glibc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: Block) -> usize {
    type Size = unsafe extern "C" fn(Block) -> usize;
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if is_ours(block) {
        return blocks().used.get(&block.addr()).copied().unwrap_or(0);
    }
    let next = behind(&NEXT, c"malloc_usable_size");
    // SAFETY: a function of that name has this type; the rest is the caller's promise.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, Option<Size>>(next);
        next.map_or(0, |next| next(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Pages of a block that the system holds.
    fn resident(block: usize, size: usize) -> usize {
        unsafe extern "C" {
            fn mincore(at: Block, bytes: usize, pages: *mut u8) -> c_int;
        }
        let mut pages = vec![0; size / 4096];
        let at = std::ptr::with_exposed_provenance_mut(block);
        // SAFETY: the addresses are mapped, and there is a byte for each page.
        assert_eq!(unsafe { mincore(at, size, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|&page| page & 1 == 1).count()
    }

    fn touched(blocks: &mut Blocks, size: usize) -> usize {
        let block = blocks.take(size).unwrap();
        // SAFETY: the block is this test's alone.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(block).write_bytes(1, size) };
        block
    }

    #[test]
    fn a_freed_block_waits_for_one_of_about_its_size() {
        let mut blocks = Blocks::reserve(64 * MIB).unwrap();
        let first = touched(&mut blocks, 8 * MIB);
        assert!(blocks.free(first));
        assert!(!blocks.free(first), "twice");
        let half = touched(&mut blocks, 4 * MIB);
        assert_ne!(half, first);
        assert_eq!(blocks.take(7 * MIB), Some(first));
        let other = blocks.take(7 * MIB).unwrap();
        assert!(other >= first + 8 * MIB && other.abs_diff(half) >= 4 * MIB);
        assert_eq!(blocks.take(64 * MIB), None, "the range ends");
    }

    #[test]
    fn blocks_that_come_no_more_give_their_pages_back() {
        let mut blocks = Blocks::reserve(256 * MIB).unwrap();
        let old: Vec<usize> = [8, 12, 16]
            .map(|size| touched(&mut blocks, size * MIB))
            .into();
        old.iter().for_each(|&block| assert!(blocks.free(block)));
        let new = touched(&mut blocks, 20 * MIB);
        assert!(!old.contains(&new));
        // The two largest, which are 28 MiB.
        assert_eq!(resident(old[1], 12 * MIB) + resident(old[2], 16 * MIB), 0);
        assert_eq!(resident(old[0], 8 * MIB), 8 * MIB / 4096);
        // Their addresses are taken again.
        assert_eq!(blocks.take(16 * MIB), Some(old[2]));
    }

    #[test]
    fn a_block_that_is_about_to_be_freed_is_waited_for() {
        enable();
        let size = 96 * MIB;
        let first = take(size, PATIENCE).unwrap();
        let freed = std::thread::spawn(move || {
            sleep(Duration::from_millis(20));
            assert!(blocks().free(first));
        });
        assert_eq!(take(size, Duration::from_secs(60)), Some(first));
        freed.join().unwrap();
        let start = Instant::now();
        let other = take(size, PATIENCE).unwrap();
        assert!(start.elapsed() >= PATIENCE && other != first);
        assert!(blocks().free(first) && blocks().free(other));
    }

    #[test]
    fn the_process_has_these_functions() {
        let aligned = |alignment: usize, size: usize| {
            let mut block = std::ptr::null_mut();
            // SAFETY: there is room for the pointer.
            match unsafe { posix_memalign(&raw mut block, alignment, size) } {
                0 => Ok(block),
                error => Err(error),
            }
        };
        let check = || {
            for (alignment, size) in [
                (8, 0),
                (64, 5),
                (1 << 16, 3 << 20),
                (4096, 1),
                (1 << 21, 3 << 20),
            ] {
                let block = aligned(alignment, size).unwrap();
                assert!(block.addr().is_multiple_of(alignment));
                // SAFETY: the block is ours, and is moved before it is freed.
                unsafe {
                    assert!(malloc_usable_size(block) >= size);
                    block.cast::<u8>().write_bytes(7, size);
                    let moved = realloc(block, 2 * size + 1);
                    let bytes = std::slice::from_raw_parts(moved.cast::<u8>(), size);
                    assert!(bytes.iter().all(|&byte| byte == 7));
                    free(moved);
                }
            }
            assert_eq!(aligned(24, 8), Err(EINVAL));
            assert_eq!(aligned(4, 8), Err(EINVAL));
            for size in [isize::MAX as usize, usize::MAX - (4 << 20), usize::MAX] {
                assert_eq!(aligned(64, size), Err(ENOMEM));
            }
        };
        check();
        enable();
        check();
        let large = aligned(64, 5 << 20).unwrap();
        assert!(is_ours(large));
        // SAFETY: the block is ours.
        unsafe { free(large) };
    }

    #[test]
    fn libraries_find_them() {
        let program = libloading::os::unix::Library::this();
        let all: [(&[u8], *const ()); 4] = [
            (b"posix_memalign\0", posix_memalign as *const ()),
            (b"free\0", free as *const ()),
            (b"realloc\0", realloc as *const ()),
            (b"malloc_usable_size\0", malloc_usable_size as *const ()),
        ];
        for (name, address) in all {
            // SAFETY: only its address is looked at.
            let found = unsafe { program.get::<*const ()>(name) }.unwrap();
            assert_eq!(*found, address);
        }
    }
}
