//! The checksum of TFRecord files: CRC32C (Castagnoli), masked.

/// The masked CRC32C of bytes: rotated right by 15 bits, plus a constant, so that the checksum of bytes that
/// hold checksums stays strong (`tensorflow/core/lib/hash/crc32c.h`).
pub(super) fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        // RFC 3720, appendix B.4: 32 zero bytes.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        let crc = 0x8a91_36aau32;
        let masked = ((crc / 0x8000) + (crc << 17)).wrapping_add(0xa282_ead8);
        assert_eq!(masked_crc(&[0; 32]), masked);
    }
}
