//! The index of tar files: every member lies inside the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::data::tar_members;

fuzz_target!(|input: &[u8]| {
    match tar_members(input) {
        Ok(members) => {
            let len = input.len() as u64;
            assert!(members.iter().all(|member| member.offset + member.size <= len));
        }
        Err((offset, _)) => assert!(offset < input.len() as u64),
    }
});
