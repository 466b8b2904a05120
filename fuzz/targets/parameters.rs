//! What workers and parameter servers say to each other: read and written again, nothing else.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert_ne!(phalanx_ps::frame_round_trip(bytes), Some(false));
});
