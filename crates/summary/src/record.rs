//! The framing of TFRecord files.

use std::io::{self, Read};

/// The masked CRC32C of bytes, which stands in event files and in TFRecord files: rotated right by 15 bits, plus a constant, so that the checksum of bytes that
/// hold checksums stays strong (`tensorflow/core/lib/hash/crc32c.h`).
#[must_use]
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

/// A record as it stands in a file: its length, the checksum of the length, the data, and their checksum.
pub(crate) fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_crc(data).to_le_bytes());
    record
}

/// What stands at a place of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Framed {
    /// The data of a record.
    Record(Vec<u8>),
    /// Nothing more.
    End,
    /// A record that is not whole, or whose checksums are of other bytes.
    Damaged,
}

/// Reads the next record.
///
/// # Errors
/// Those of the reader.
pub(crate) fn read_framed(file: &mut impl Read) -> io::Result<Framed> {
    let mut head = Vec::new();
    file.by_ref().take(12).read_to_end(&mut head)?;
    if head.is_empty() {
        return Ok(Framed::End);
    }
    let Some((length, crc)) = head.split_first_chunk::<8>() else {
        return Ok(Framed::Damaged);
    };
    if crc != masked_crc(length).to_le_bytes() {
        return Ok(Framed::Damaged);
    }
    let length = u64::from_le_bytes(*length);
    // Memory grows with what is there, not with what a length promises.
    let mut data = Vec::new();
    file.by_ref()
        .take(length.saturating_add(4))
        .read_to_end(&mut data)?;
    let Some((data, crc)) = data.split_last_chunk::<4>() else {
        return Ok(Framed::Damaged);
    };
    if data.len() as u64 != length || *crc != masked_crc(data).to_le_bytes() {
        return Ok(Framed::Damaged);
    }
    Ok(Framed::Record(data.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_checksums_of_its_length_and_its_data() {
        // RFC 3720, appendix B.4: 32 zero bytes.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        let crc = 0x8a91_36aa_u32;
        let masked = ((crc / 0x8000) + (crc << 17)).wrapping_add(0xa282_ead8);
        let record = framed(&[0; 32]);
        assert_eq!(record.len(), 8 + 4 + 32 + 4);
        assert_eq!(record[..8], 32_u64.to_le_bytes());
        assert_eq!(record[8..12], masked_crc(&record[..8]).to_le_bytes());
        assert_eq!(record[44..], masked.to_le_bytes());
    }
}
