//! Bytes that nobody can foresee.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes of the system that nobody can foresee.
///
/// # Errors
/// The system has none to give.
pub fn draw<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// `N` bytes of [`draw`] as hexadecimal text.
///
/// # Errors
/// The system has none to give.
pub fn draw_hex<const N: usize>() -> io::Result<String> {
    Ok(hex(&draw::<N>()?))
}

/// Bytes as hexadecimal text.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_differs_and_is_as_long_as_was_asked_for() {
        // The system gives more than 256 bytes in several parts where a signal comes between.
        let (first, second) = (draw::<1000>().unwrap(), draw::<1000>().unwrap());
        assert_ne!(first, second);
        assert_ne!(first[900..], [0; 100]);
        let text = draw_hex::<16>().unwrap();
        assert_eq!(text.len(), 32);
        assert_ne!(text, draw_hex::<16>().unwrap());
        assert_eq!(hex(&[0, 0xa5, 0xff]), "00a5ff");
    }
}
