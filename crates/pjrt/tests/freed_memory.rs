//! A large block that was freed serves the next of its size, though something small lives behind it. By itself, for only the first
//! thread is sure to have glibc's main heap.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn main() {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn malloc(size: usize) -> *mut c_void;
        fn posix_memalign(block: *mut *mut c_void, alignment: usize, size: usize) -> c_int;
        fn free(block: *mut c_void);
    }
    let aligned = || {
        let mut block = std::ptr::null_mut();
        // SAFETY: there is room for the pointer.
        let error = unsafe { posix_memalign(&raw mut block, 64, 300 << 20) };
        assert_eq!(error, 0);
        assert!(block.addr().is_multiple_of(64));
        block
    };
    assert!(phalanx_pjrt::keep_freed_memory());
    let first = aligned();
    // SAFETY: no conditions, and the blocks are ours.
    unsafe {
        let small: Vec<*mut c_void> = (0..1000).map(|i| malloc(16 + i % 128)).collect();
        free(first);
        let second = aligned();
        assert_eq!(first, second, "the heap grew by a block");
        free(second);
        small.into_iter().for_each(|block| free(block));
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn main() {}
