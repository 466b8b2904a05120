//! The readers of NumPy's arrays and of archives of them.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use phalanx::data::{parse_npy, parse_npz};
use phalanx::{Error, HostTensor};

fn check(read: Result<Vec<HostTensor>, Error>) {
    match read {
        Ok(arrays) => arrays.iter().for_each(|array| assert!(array.bytes().len() <= 1 << 20)),
        Err(Error::Data { source_name, place, message }) => {
            assert!(source_name.starts_with("f.np") && place.starts_with("byte "), "{place}: {message}");
            assert!(message.contains("; "), "no next action: {message}");
        }
        // A name that is there twice, or that is no text.
        Err(Error::User(message)) => assert!(message.contains("has no array"), "{message}"),
        Err(error) => panic!("expected an error of the data, got {error}"),
    }
}

fuzz_target!(|input: &[u8]| {
    check(parse_npy(input, "f.npy", 1 << 20).map(|array| vec![array]));
    let all = parse_npz(Cursor::new(input), "f.npz", 1 << 20);
    check(all.map(|all| all.into_iter().map(|(_, array)| array).collect()));
});
