//! The decoder of images: whatever the bytes are, an error with a place or as many pixels as the header says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::Error;
use phalanx::image::{Decoder, DecoderOptions, Idct, Window};

fuzz_target!(|input: &[u8]| {
    let idct = if input.len().is_multiple_of(2) { Idct::Fast } else { Idct::Accurate };
    let options = DecoderOptions { max_pixels: 1 << 20, idct, ..DecoderOptions::default() };
    let mut decoder = Decoder::new(options);
    match decoder.decode(input) {
        Ok(pixels) => {
            let (height, width) = (pixels.height, pixels.width);
            assert_eq!(pixels.bytes.len(), height * width * pixels.channels);
            // A window is cut from the same pixels.
            let window = Window { x: width / 3, y: height / 3, width: width - width / 3, height: height.div_ceil(2).min(height - height / 3) };
            let mut rows = 0;
            let image = decoder.open(input).expect("it was opened before");
            image.read(&window, |y, row| {
                let start = ((window.y + y) * width + window.x) * 3;
                assert_eq!(row, &pixels.bytes[start..start + window.width * 3]);
                rows += 1;
            }).expect("less is read than before");
            assert_eq!(rows, window.height);
        }
        Err(Error::Data { place, message, .. }) => {
            assert!(place.starts_with("byte "), "{place}: {message}");
            assert!(message.contains("; "), "no next action: {message}");
        }
        Err(error) => panic!("expected an error of the data, got {error}"),
    }
});
