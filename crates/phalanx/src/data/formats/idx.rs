//! IDX files, the format of MNIST: one array, plain or compressed with gzip.
//!
//! Two zero bytes, the element type, the number of dims, each dim as a big-endian u32, and the values, big endian.

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use phalanx_graph::{DType, HostTensor, Shape};

use super::files::{files_of, io};
use crate::data::concat_files::concat_rows;
use crate::{Error, Result};

/// The most dims of an array.
const MAX_DIMS: usize = 8;

/// Reads IDX files by path or pattern, plain or gzip, one after the other: at most `max_bytes` bytes of values, as they are
/// in the files and as they are read.
///
/// The element types are u8, i8 (read as i32), i16 (as i32), i32, f32 and f64.
///
/// # Errors
/// As [`parse_idx`], or when a pattern names no file, a file cannot be opened or its rows have another type or shape than the rows of the first.
pub fn read_idx(path: impl AsRef<Path>, max_bytes: u64) -> Result<HostTensor> {
    let (mut parts, mut left) = (Vec::new(), max_bytes);
    for path in files_of(path.as_ref())? {
        let file = File::open(&path).map_err(|error| io(&path, "open", error))?;
        let name = path.to_string_lossy().into_owned();
        let array = parse_idx(file, &name, left)?;
        left -= array.bytes().len() as u64;
        parts.push((name, vec![array]));
    }
    Ok(concat_rows(parts)?.remove(0))
}

/// Reads IDX data, plain or gzip; `name` is the file name in messages.
///
/// # Errors
/// [`Error::Data`] with the offset (after decompression) when the bytes are no IDX array, are too few or too many.
pub fn parse_idx(mut reader: impl Read, name: &str, max_bytes: u64) -> Result<HostTensor> {
    let mut start = Vec::new();
    let read = reader.by_ref().take(2).read_to_end(&mut start);
    read.map_err(|error| corrupt(name, 0, &format!("cannot be read: {error}; check the file")))?;
    let gzip = start == [0x1f, 0x8b];
    let whole = BufReader::with_capacity(1 << 16, Cursor::new(start).chain(reader));
    if gzip {
        read_array(MultiGzDecoder::new(whole), name, max_bytes)
    } else {
        read_array(whole, name, max_bytes)
    }
}

pub(super) fn corrupt(name: &str, offset: u64, message: &str) -> Error {
    Error::Data {
        source_name: name.to_owned(),
        place: format!("byte {offset}"),
        message: message.to_owned(),
    }
}

fn read_array(mut reader: impl Read, name: &str, max_bytes: u64) -> Result<HostTensor> {
    let magic = read_exactly(&mut reader, 4, name, 0)?;
    let [0, 0, code, rank] = magic[..] else {
        let message = format!(
            "found {magic:02x?}, expected two zero bytes, an element type and a number of dims; check that this is an idx file"
        );
        return Err(corrupt(name, 0, &message));
    };
    let (rank, element) = (usize::from(rank), element(code, name)?);
    if rank > MAX_DIMS {
        return Err(corrupt(
            name,
            3,
            &format!("the array has {rank} dims, expected at most {MAX_DIMS}; check the file"),
        ));
    }
    let dims: Vec<usize> = read_exactly(&mut reader, rank * 4, name, 4)?
        .chunks_exact(4)
        .map(|dim| u32::from_be_bytes(dim.try_into().expect("4 bytes")) as usize)
        .collect();
    let header = 4 + 4 * rank as u64;
    let widths = [element.width(), element.read_width()];
    let len =
        checked_len(&dims, widths, max_bytes).map_err(|message| corrupt(name, 4, &message))?;
    let values = read_exactly(&mut reader, len, name, header)?;
    expect_end(&mut reader, &dims, name, header + len as u64)?;
    Ok(element.tensor(dims, &values))
}

/// Bytes of the values of an array in its file, where they are not too many there and as they are read: of a value there and here.
pub(super) fn checked_len(
    dims: &[usize],
    [width, read_width]: [usize; 2],
    max_bytes: u64,
) -> std::result::Result<usize, String> {
    // A dim of 0 does not make the others harmless: their product is what a row of the array takes.
    let mut all = dims.iter().map(|&dim| dim.max(1));
    let elements = all.try_fold(1usize, usize::checked_mul);
    let most = elements.and_then(|count| count.checked_mul(width.max(read_width)));
    let small = most.is_some_and(|bytes| bytes as u64 <= max_bytes);
    match elements.filter(|_| small) {
        Some(_) if dims.contains(&0) => Ok(0),
        Some(elements) => Ok(elements * width),
        None => Err(format!(
            "an array of dims {dims:?} is larger than {max_bytes} bytes; check the file, or raise max_bytes"
        )),
    }
}

/// Refuses what follows the values of an array.
pub(super) fn expect_end(
    reader: &mut impl Read,
    dims: &[usize],
    name: &str,
    offset: u64,
) -> Result<()> {
    let message = match reader.read(&mut [0]) {
        Ok(0) => return Ok(()),
        Ok(_) => format!("there is more than the values of dims {dims:?}; check the file"),
        Err(error) => format!("cannot be read: {error}; copy the file again"),
    };
    Err(corrupt(name, offset, &message))
}

/// The next `len` bytes; memory grows with what is there, not with what is announced.
pub(super) fn read_exactly(
    reader: &mut impl Read,
    len: usize,
    name: &str,
    offset: u64,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = reader.by_ref().take(len as u64).read_to_end(&mut bytes);
    let found = bytes.len() as u64;
    read.map_err(|error| {
        corrupt(
            name,
            offset + found,
            &format!("cannot be read: {error}; copy the file again"),
        )
    })?;
    if bytes.len() < len {
        let message = format!(
            "the file ends, {} bytes more are expected; copy it again",
            len as u64 - found
        );
        return Err(corrupt(name, offset + found, &message));
    }
    Ok(bytes)
}

#[derive(Clone, Copy)]
enum ElementType {
    U8,
    I8,
    I16,
    I32,
    F32,
    F64,
}

fn element(code: u8, name: &str) -> Result<ElementType> {
    Ok(match code {
        0x08 => ElementType::U8,
        0x09 => ElementType::I8,
        0x0b => ElementType::I16,
        0x0c => ElementType::I32,
        0x0d => ElementType::F32,
        0x0e => ElementType::F64,
        _ => {
            let message = format!(
                "element type {code:#04x}, expected 0x08, 0x09, 0x0b, 0x0c, 0x0d or 0x0e; check that this is an idx file"
            );
            return Err(corrupt(name, 2, &message));
        }
    })
}

impl ElementType {
    const fn width(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Bytes of a value that was read.
    const fn read_width(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::I8 | Self::I16 | Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    fn tensor(self, dims: Vec<usize>, bytes: &[u8]) -> HostTensor {
        match self {
            Self::U8 => HostTensor::from_bytes(Shape::new(DType::U8, dims), bytes)
                .expect("as many bytes as dims say"),
            Self::I8 => HostTensor::new(
                dims,
                &bytes
                    .iter()
                    .map(|&byte| i32::from(byte as i8))
                    .collect::<Vec<_>>(),
            ),
            Self::I16 => HostTensor::new(
                dims,
                &each(bytes, |bytes| i32::from(i16::from_be_bytes(bytes))),
            ),
            Self::I32 => HostTensor::new(dims, &each(bytes, i32::from_be_bytes)),
            Self::F32 => HostTensor::new(dims, &each(bytes, f32::from_be_bytes)),
            Self::F64 => HostTensor::new(dims, &each(bytes, f64::from_be_bytes)),
        }
    }
}

fn each<const N: usize, T>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .as_chunks::<N>()
        .0
        .iter()
        .map(|bytes| value(*bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn parse(bytes: &[u8]) -> Result<HostTensor> {
        parse_idx(bytes, "f.idx", 1 << 20)
    }

    #[test]
    fn arrays_of_every_type_are_read() {
        let head = |code, dim: u32| [&[0, 0, code, 1][..], &dim.to_be_bytes()].concat();
        let of =
            |code, dim, values: &[u8]| parse(&[&head(code, dim)[..], values].concat()).unwrap();
        assert_eq!(of(8, 2, &[3, 255]), HostTensor::new([2], &[3u8, 255]));
        assert_eq!(of(9, 2, &[3, 255]), HostTensor::new([2], &[3i32, -1]));
        assert_eq!(of(0x0b, 1, &[0xff, 0xfe]), HostTensor::new([1], &[-2i32]));
        assert_eq!(of(0x0c, 1, &[0, 0, 1, 0]), HostTensor::new([1], &[256i32]));
        assert_eq!(
            of(0x0d, 1, &1.5f32.to_be_bytes()),
            HostTensor::new([1], &[1.5f32])
        );
        assert_eq!(
            of(0x0e, 1, &1.5f64.to_be_bytes()),
            HostTensor::new([1], &[1.5f64])
        );
        let whole = [&head(8, 3)[..], &[1, 2, 3]].concat();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&whole).unwrap();
        let gzip = gzip.finish().unwrap();
        assert_eq!(parse(&gzip).unwrap(), parse(&whole).unwrap());
        assert!(parse(&gzip[..gzip.len() - 9]).is_err());
    }

    #[test]
    fn the_most_bytes_are_those_of_what_is_read() {
        let file = |code, dims: &[u32], values: usize| {
            let head = [0, 0, code, dims.len() as u8];
            let dims: Vec<u8> = dims.iter().flat_map(|dim| dim.to_be_bytes()).collect();
            [&head[..], &dims, &vec![0; values]].concat()
        };
        let read = |bytes: &[u8]| parse_idx(bytes, "f.idx", 4000);
        assert_eq!(read(&file(8, &[4000], 4000)).unwrap().dims(), [4000]);
        // One byte each in the file and four in memory.
        assert_eq!(read(&file(9, &[1000], 1000)).unwrap().bytes().len(), 4000);
        assert_eq!(read(&file(8, &[0, 28, 28], 0)).unwrap().dims(), [0, 28, 28]);
        let most = u32::MAX;
        for refused in [
            file(9, &[1001], 1001),
            file(0x0b, &[1001], 2002),
            file(8, &[0, most, most, most], 0),
            file(8, &[most, most, most, 0], 0),
            file(8, &[0, 63, 64], 0),
        ] {
            let error = read(&refused).unwrap_err().to_string();
            assert!(
                error.contains("byte 4: an array of dims") && error.contains("larger than 4000"),
                "{error}"
            );
        }
    }

    #[test]
    fn malformed_files_are_refused_with_the_byte() {
        let huge = [&[0, 0, 8, 3][..], &[0xff; 12], &[0; 9]].concat();
        let cases: [(&[u8], &str); 7] = [
            (&[], "byte 0: the file ends, 4"),
            (&[1, 0, 8, 1], "byte 0: found [01, 00, 08, 01]"),
            (&[0, 0, 7, 1], "byte 2: element type 0x07"),
            (&[0, 0, 8, 9], "byte 3: the array has 9 dims"),
            (&huge, "byte 4: an array of dims [4294967295"),
            (
                &[0, 0, 8, 1, 0, 0, 0, 3, 7],
                "byte 9: the file ends, 2 bytes more",
            ),
            (&[0, 0, 8, 1, 0, 0, 0, 1, 7, 7], "byte 9: there is more"),
        ];
        for (bytes, expected) in cases {
            let error = parse(bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
