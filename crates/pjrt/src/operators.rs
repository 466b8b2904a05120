//! C++'s operators `new` and `delete` for the process, from mimalloc.
//!
//! A quarter of the time in which XLA compiles went to small blocks of glibc's heap, of which there is one for all threads once freed memory
//! is kept (decisions 14 and 56). The plugin asks for small blocks by these operators, and for tensors and scratch by other ways, which stay
//! with glibc. All operators are ours or none is: what one gave, another takes back.

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::c_void;

use libmimalloc_sys::{mi_free, mi_malloc, mi_malloc_aligned};

use crate::large_blocks::Block;

/// What `new` gives when no alignment is asked for.
const ALIGNMENT: usize = 16;

/// `std::nothrow`: says that there may be no memory.
type Nothrow = *const c_void;

/// Ends the program without memory, where C++ has an exception that nobody in XLA catches.
fn given(block: Block, size: usize, alignment: usize) -> Block {
    if block.is_null() {
        let layout = Layout::from_size_align(size, alignment);
        handle_alloc_error(layout.unwrap_or(Layout::new::<Block>()));
    }
    block
}

/// Exports functions by their names, and has all of them in `ALL`, so that a program is linked with each.
macro_rules! exported {
    ($($name:ident($($argument:ident: $type:ty),+) $(-> $result:ty)? { $body:expr })+) => {
        $(
            /// # Safety
            /// What is freed was given by an operator of this module and is not used any more; alignments are powers of two.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the Itanium ABI's spelling")]
            unsafe extern "C" fn $name($($argument: $type),+) $(-> $result)? {
                // SAFETY: the caller's promise.
                unsafe { $body }
            }
        )+
        #[cfg(test)]
        const NAMES: [&str; 20] = [$(stringify!($name)),+];
        fn addresses() -> [*const (); 20] {
            [$($name as *const ()),+]
        }
    };
}

exported! {
    _Znwm(size: usize) -> Block { given(mi_malloc(size), size, ALIGNMENT) }
    _Znam(size: usize) -> Block { given(mi_malloc(size), size, ALIGNMENT) }
    _ZnwmRKSt9nothrow_t(size: usize, _may_fail: Nothrow) -> Block { mi_malloc(size) }
    _ZnamRKSt9nothrow_t(size: usize, _may_fail: Nothrow) -> Block { mi_malloc(size) }
    _ZnwmSt11align_val_t(size: usize, alignment: usize) -> Block { given(mi_malloc_aligned(size, alignment), size, alignment) }
    _ZnamSt11align_val_t(size: usize, alignment: usize) -> Block { given(mi_malloc_aligned(size, alignment), size, alignment) }
    _ZnwmSt11align_val_tRKSt9nothrow_t(size: usize, alignment: usize, _may_fail: Nothrow) -> Block { mi_malloc_aligned(size, alignment) }
    _ZnamSt11align_val_tRKSt9nothrow_t(size: usize, alignment: usize, _may_fail: Nothrow) -> Block { mi_malloc_aligned(size, alignment) }
    _ZdlPv(block: Block) { mi_free(block) }
    _ZdaPv(block: Block) { mi_free(block) }
    _ZdlPvm(block: Block, _size: usize) { mi_free(block) }
    _ZdaPvm(block: Block, _size: usize) { mi_free(block) }
    _ZdlPvRKSt9nothrow_t(block: Block, _may_fail: Nothrow) { mi_free(block) }
    _ZdaPvRKSt9nothrow_t(block: Block, _may_fail: Nothrow) { mi_free(block) }
    _ZdlPvSt11align_val_t(block: Block, _alignment: usize) { mi_free(block) }
    _ZdaPvSt11align_val_t(block: Block, _alignment: usize) { mi_free(block) }
    _ZdlPvmSt11align_val_t(block: Block, _size: usize, _alignment: usize) { mi_free(block) }
    _ZdaPvmSt11align_val_t(block: Block, _size: usize, _alignment: usize) { mi_free(block) }
    _ZdlPvSt11align_val_tRKSt9nothrow_t(block: Block, _alignment: usize, _may_fail: Nothrow) { mi_free(block) }
    _ZdaPvSt11align_val_tRKSt9nothrow_t(block: Block, _alignment: usize, _may_fail: Nothrow) { mi_free(block) }
}

/// Links the program with all operators.
pub(crate) fn link() {
    std::hint::black_box(addresses());
}

/// Gives free pages back to the system, which mimalloc does only after a while.
pub(crate) fn give_back_unused() {
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: mimalloc's function has this type, and may be called at any time.
    unsafe { mi_collect(true) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GNU's linker leaves the C++ library out before it looks at what it has, so that plugins keep the operators of theirs.
    #[test]
    fn libraries_find_all_of_them_or_none() {
        let program = libloading::os::unix::Library::this();
        let is_found = |(name, address): (&str, *const ())| {
            // SAFETY: only its address is looked at.
            let found = unsafe { program.get::<*const ()>(name.as_bytes()) };
            found.is_ok_and(|found| *found == address)
        };
        let found = NAMES
            .into_iter()
            .zip(addresses())
            .filter(|&one| is_found(one));
        let linked = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        // Joined when it runs, for what is written here is in the program too.
        let linker = ["Linker:", "LLD"].join(" ");
        let is_lld = linked
            .windows(linker.len())
            .any(|bytes| bytes == linker.as_bytes());
        assert_eq!(found.count(), if is_lld { NAMES.len() } else { 0 });
    }

    #[test]
    fn blocks_lie_as_they_were_asked_for() {
        for (size, alignment) in [(0, 16), (7, 64), (5 << 20, 4096)] {
            // SAFETY: the block is ours.
            unsafe {
                let block = _ZnwmSt11align_val_t(size, alignment);
                assert!(block.addr().is_multiple_of(alignment));
                _ZdlPvmSt11align_val_t(block, size, alignment);
                let block = _Znam(size);
                assert!(
                    block
                        .addr()
                        .is_multiple_of(ALIGNMENT.min(size.next_power_of_two()))
                );
                _ZdaPv(block);
                assert!(_ZnwmRKSt9nothrow_t(usize::MAX, std::ptr::null()).is_null());
            }
        }
    }
}
