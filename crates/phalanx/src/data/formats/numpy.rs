//! `NumPy`'s files: arrays as `numpy.save` writes them, and archives of them, as `numpy.savez` does.
//!
//! An array is six bytes that name the format, its version, the length of a header, and the header: a dictionary of Python with the element
//! type, the order of the elements and the dims. The values follow. An archive is a zip file with an array, `NAME.npy`, for each name.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use phalanx_graph::{DType, HostTensor, Shape};
use zip::ZipArchive;

use super::files::io;
use super::idx::{checked_len, corrupt, expect_end, read_exactly};
use crate::{Error, Result};

/// What an array begins with.
const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header: numpy's own are below 200 bytes.
const MAX_HEADER: usize = 1 << 16;
/// The most dims of an array.
const MAX_DIMS: usize = 16;

/// Reads an array that `numpy.save` wrote, of at most `max_bytes` bytes, as they are in the file and as they are read.
///
/// Numbers of 8 and 16 bits but `uint8` become i32, `uint32` and `uint64` i64; both orders of bytes and of elements are read.
///
/// # Errors
/// As [`parse_npy`], or when the file cannot be opened.
pub fn read_npy(path: impl AsRef<Path>, max_bytes: u64) -> Result<HostTensor> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| io(path, "open", error))?;
    parse_npy(BufReader::new(file), &path.to_string_lossy(), max_bytes)
}

/// Reads the bytes of [`read_npy`]; `name` is the file's in messages.
///
/// # Errors
/// [`Error::Data`] with the offset when the bytes are no array, are too few or too many, or hold what is no number.
pub fn parse_npy(mut reader: impl Read, name: &str, max_bytes: u64) -> Result<HostTensor> {
    let start = read_exactly(&mut reader, 8, name, 0)?;
    if !start.starts_with(MAGIC) {
        let message = "it does not begin as numpy's arrays do; check that this is a .npy file";
        return Err(corrupt(name, 0, message));
    }
    let width = if start[6] < 2 { 2 } else { 4 };
    let length = read_exactly(&mut reader, width, name, 8)?;
    let length = length
        .iter()
        .rev()
        .fold(0, |sum: usize, &byte| sum << 8 | usize::from(byte));
    let at = 8 + width as u64;
    if length > MAX_HEADER {
        let message =
            format!("its header has {length} bytes, expected at most {MAX_HEADER}; check the file");
        return Err(corrupt(name, 8, &message));
    }
    let header = read_exactly(&mut reader, length, name, at)?;
    let header = String::from_utf8_lossy(&header);
    let header = ArrayHeader::parse(&header).map_err(|message| corrupt(name, at, &message))?;
    let widths = [header.kind.1, header.dtype().size()];
    let bytes = checked_len(&header.dims, widths, max_bytes);
    let bytes = bytes.map_err(|message| corrupt(name, at, &message))?;
    let values = read_exactly(&mut reader, bytes, name, at + length as u64)?;
    expect_end(
        &mut reader,
        &header.dims,
        name,
        at + (length + bytes) as u64,
    )?;
    header
        .tensor(values)
        .map_err(|message| corrupt(name, at, &message))
}

/// An archive that `numpy.savez` or `numpy.savez_compressed` wrote: arrays by their names.
///
/// ```no_run
/// use phalanx::data::{Dataset, Npz};
///
/// let mut mnist = Npz::open("mnist.npz")?;
/// let (x, y) = (mnist.read("x_train", 1 << 30)?, mnist.read("y_train", 1 << 30)?);
/// let train = Dataset::from_arrays(x, y.convert(phalanx::DType::I32))?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Debug)]
pub struct Npz {
    path: PathBuf,
    archive: ZipArchive<BufReader<File>>,
}

impl Npz {
    /// The archive of a path.
    ///
    /// # Errors
    /// When the file cannot be opened, or is no archive.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let file = File::open(&path).map_err(|error| io(&path, "open", error))?;
        let archive = archive(BufReader::new(file), &path.to_string_lossy())?;
        Ok(Self { path, archive })
    }

    /// The names of its arrays, in their order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        names(&self.archive)
    }

    /// An array by its name, of at most `max_bytes` bytes: see [`read_npy`].
    ///
    /// # Errors
    /// When there is none of this name; as [`parse_npy`].
    pub fn read(&mut self, name: &str, max_bytes: u64) -> Result<HostTensor> {
        let path = self.path.to_string_lossy().into_owned();
        read_member(&mut self.archive, name, &path, max_bytes)
    }
}

/// Reads all arrays of an archive, of at most `max_bytes` bytes each; `name` is the file's in messages.
///
/// # Errors
/// As [`Npz::open`] and [`Npz::read`].
pub fn parse_npz(
    reader: impl Read + Seek,
    name: &str,
    max_bytes: u64,
) -> Result<Vec<(String, HostTensor)>> {
    let mut archive = archive(reader, name)?;
    let all = names(&archive);
    let read = |member: String| {
        let array = read_member(&mut archive, &member, name, max_bytes)?;
        Ok((member, array))
    };
    all.into_iter().map(read).collect()
}

fn archive<R: Read + Seek>(reader: R, name: &str) -> Result<ZipArchive<R>> {
    ZipArchive::new(reader).map_err(|error| {
        corrupt(
            name,
            0,
            &format!("it cannot be read as an archive: {error}; check that this is a .npz file"),
        )
    })
}

/// The names of the arrays; empty for one that is no text.
fn names<R: Read + Seek>(archive: &ZipArchive<R>) -> Vec<String> {
    let bare = |file: &str| file.strip_suffix(".npy").unwrap_or(file).to_owned();
    let files = archive.file_names();
    files
        .map(|file| file.map_or_else(|_| String::new(), |file| bare(&file)))
        .collect()
}

fn read_member<R: Read + Seek>(
    archive: &mut ZipArchive<R>,
    name: &str,
    path: &str,
    max_bytes: u64,
) -> Result<HostTensor> {
    let known = names(archive);
    let Some(at) = known.iter().position(|known| known == name) else {
        let shown = known[..known.len().min(20)].join(", ");
        return Err(Error::user(format!(
            "{path} has no array `{name}`; its arrays are {shown}"
        )));
    };
    let shown = format!("{path}: {name}");
    let member = archive.by_index(at);
    let member = member.map_err(|error| {
        corrupt(
            &shown,
            0,
            &format!("cannot be read: {error}; write the archive again by numpy.savez"),
        )
    })?;
    parse_npy(BufReader::new(member), &shown, max_bytes)
}

/// What comes before the values.
struct ArrayHeader {
    /// Whether the bytes of a value are in the order of this machine, the low ones first.
    is_little: bool,
    /// `f`, `i`, `u` or `b`, and bytes of a value.
    kind: (char, usize),
    /// Whether the first dim is the one whose elements lie beside each other.
    is_fortran: bool,
    dims: Vec<usize>,
}

impl ArrayHeader {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let element = after(text, "descr")?;
        let element = quoted(element).ok_or(
            "its elements are structures, expected numbers; write each field as an array of its own",
        )?;
        let (is_little, kind) = element_type(element)?;
        let order = after(text, "fortran_order")?;
        let is_fortran = match order {
            order if order.starts_with("True") => true,
            order if order.starts_with("False") => false,
            _ => {
                return Err("its `fortran_order` is neither True nor False; check the file".into());
            }
        };
        let dims = dims(after(text, "shape")?)?;
        Ok(Self {
            is_little,
            kind,
            is_fortran,
            dims,
        })
    }

    /// The type that the values are read as.
    const fn dtype(&self) -> DType {
        match self.kind {
            ('f', 2) => DType::F16,
            ('f', 4) => DType::F32,
            ('f', _) => DType::F64,
            ('b', _) => DType::Bool,
            ('u', 1) => DType::U8,
            ('u', 4 | 8) | ('i', 8) => DType::I64,
            _ => DType::I32,
        }
    }

    fn tensor(&self, mut values: Vec<u8>) -> std::result::Result<HostTensor, String> {
        let width = self.kind.1;
        if !self.is_little && width > 1 {
            values.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
        if self.is_fortran && self.dims.len() > 1 {
            values = rows_first(&values, &self.dims, width);
        }
        let dims = self.dims.clone();
        let i32s = |value: fn([u8; 2]) -> i32| {
            let values = values.as_chunks::<2>().0.iter();
            HostTensor::new(
                self.dims.clone(),
                &values.map(|bytes| value(*bytes)).collect::<Vec<_>>(),
            )
        };
        Ok(match self.kind {
            ('i', 1) => HostTensor::new(
                dims,
                &values
                    .iter()
                    .map(|&byte| i32::from(byte as i8))
                    .collect::<Vec<_>>(),
            ),
            ('i', 2) => i32s(|bytes| i32::from(i16::from_le_bytes(bytes))),
            ('u', 2) => i32s(|bytes| i32::from(u16::from_le_bytes(bytes))),
            ('u', 4) => {
                let values = values.as_chunks::<4>().0.iter();
                HostTensor::new(
                    dims,
                    &values
                        .map(|bytes| i64::from(u32::from_le_bytes(*bytes)))
                        .collect::<Vec<_>>(),
                )
            }
            ('b', _) => HostTensor::new(
                dims,
                &values.iter().map(|&byte| byte != 0).collect::<Vec<_>>(),
            ),
            ('u', 8)
                if values
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .any(|bytes| bytes[7] > 0x7f) =>
            {
                return Err(
                    "a number of 64 bits is above 9223372036854775807; write the array as int64"
                        .into(),
                );
            }
            _ => HostTensor::from_bytes(Shape::new(self.dtype(), dims), &values)
                .ok_or("its values are not as many as its dims say; check the file")?,
        })
    }
}

/// What follows a key of the header's dictionary.
fn after<'a>(text: &'a str, key: &str) -> std::result::Result<&'a str, String> {
    let quotes = ["'", "\""];
    let mut found = quotes.iter().filter_map(|quote| {
        let (_, rest) = text.split_once(&format!("{quote}{key}{quote}"))?;
        Some(rest.trim_start().strip_prefix(':')?.trim_start())
    });
    found
        .next()
        .ok_or_else(|| format!("its header has no `{key}`; check that this is a .npy file"))
}

/// The text in quotes that another begins with.
fn quoted(text: &str) -> Option<&str> {
    let quote = text
        .chars()
        .next()
        .filter(|quote| ['\'', '"'].contains(quote))?;
    Some(text[1..].split_once(quote)?.0)
}

/// Whether the low bytes come first, and what a value is, of `<f4` and the like.
fn element_type(text: &str) -> std::result::Result<(bool, (char, usize)), String> {
    let order = text.chars().next().filter(|order| "<>|=".contains(*order));
    let rest = text.trim_start_matches(['<', '>', '|', '=']);
    let kind = rest.chars().next().unwrap_or(' ');
    let width = rest.get(1..).and_then(|width| width.parse().ok());
    match (kind, width) {
        ('f', Some(width @ (2 | 4 | 8)))
        | ('i' | 'u', Some(width @ (1 | 2 | 4 | 8)))
        | ('b', Some(width @ 1)) => Ok((order != Some('>'), (kind, width))),
        _ => {
            let cut: String = text.chars().take(40).collect();
            Err(format!(
                "its elements are `{cut}`, expected numbers of at most 64 bits; convert the array, such as by astype(\"float32\")"
            ))
        }
    }
}

/// The dims of `(3, 4)`, `(3,)` and `()`.
fn dims(text: &str) -> std::result::Result<Vec<usize>, String> {
    let wrong = || "its `shape` is no list of sizes; check that this is a .npy file".to_owned();
    let (list, _) = text
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'))
        .ok_or_else(wrong)?;
    let sizes = list
        .split(',')
        .map(|size| size.trim().trim_end_matches('L'));
    let dims = sizes.filter(|size| !size.is_empty()).map(str::parse);
    let dims: Vec<usize> = dims
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| wrong())?;
    match dims.len() <= MAX_DIMS {
        true => Ok(dims),
        false => Err(format!(
            "the array has {} dims, expected at most {MAX_DIMS}; reshape it",
            dims.len()
        )),
    }
}

/// Elements whose first dim varies first in the order in which the last one does.
fn rows_first(values: &[u8], dims: &[usize], width: usize) -> Vec<u8> {
    let mut ordered = vec![0; values.len()];
    let mut place = vec![0; dims.len()];
    for element in ordered.chunks_exact_mut(width) {
        let from = place
            .iter()
            .zip(dims)
            .rev()
            .fold(0, |sum, (&at, &dim)| sum * dim + at);
        element.copy_from_slice(&values[from * width..][..width]);
        for (at, &dim) in place.iter_mut().zip(dims).rev() {
            *at += 1;
            if *at < dim {
                break;
            }
            *at = 0;
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn golden(name: &str) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join("../../tests/golden/numpy").join(name)
    }

    fn read(name: &str) -> Result<HostTensor> {
        read_npy(golden(name), 1 << 20)
    }

    #[test]
    fn arrays_of_every_type_are_read() {
        let mut arrays = Npz::open(golden("arrays.npz")).unwrap();
        let counted: Vec<f64> = (0..24).map(f64::from).collect();
        for (name, dtype) in [
            ("f2", DType::F16),
            ("f4", DType::F32),
            ("f8", DType::F64),
            ("i1", DType::I32),
            ("i2", DType::I32),
            ("i4", DType::I32),
            ("i8", DType::I64),
            ("u1", DType::U8),
            ("u2", DType::I32),
            ("u4", DType::I64),
            ("u8", DType::I64),
        ] {
            let array = arrays.read(name, 1 << 20).unwrap();
            assert_eq!(
                (array.dims(), array.dtype()),
                (&[2, 3, 4][..], dtype),
                "{name}"
            );
            assert_eq!(array.to_f64(), counted, "{name}");
        }
        let odd = arrays.read("b1", 24).unwrap();
        assert_eq!(odd.dtype(), DType::Bool);
        assert_eq!(odd.to_f64()[..4], [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(arrays.names().len(), 12);
        let missing = arrays.read("x_train", 1).unwrap_err().to_string();
        assert!(
            missing.contains("has no array `x_train`; its arrays are f2, f4"),
            "{missing}"
        );
    }

    #[test]
    fn other_orders_and_dims_are_read() {
        let counted: Vec<f64> = (0..24).map(f64::from).collect();
        assert_eq!(read("fortran.npy").unwrap().to_f64(), counted);
        let less: Vec<f64> = counted.iter().map(|x| x - 7.0).collect();
        assert_eq!(read("big.npy").unwrap().to_f64(), less);
        assert_eq!(read("scalar.npy").unwrap(), HostTensor::scalar(2.5f64));
        assert_eq!(read("empty.npy").unwrap().dims(), [0, 3]);
        let plain = std::fs::read(golden("plain.npz")).unwrap();
        let plain = parse_npz(Cursor::new(plain), "plain.npz", 1 << 20).unwrap();
        assert_eq!(plain[0].0, "x");
        assert_eq!(plain[0].1.f32s()[23], 23.0 / 8.0);
        assert_eq!(plain[1], ("y".into(), HostTensor::new([2], &[3i64, -1])));
    }

    #[test]
    fn what_is_no_array_is_told() {
        let texts = read("texts.npy").unwrap_err().to_string();
        assert!(
            texts.contains("its elements are `<U2`, expected numbers"),
            "{texts}"
        );
        let fields = read("fields.npy").unwrap_err().to_string();
        assert!(fields.contains("its elements are structures"), "{fields}");
        let large = read_npy(golden("big.npy"), 95).unwrap_err().to_string();
        assert!(
            large.contains("[2, 3, 4] is larger than 95 bytes"),
            "{large}"
        );
        let npy = std::fs::read(golden("scalar.npy")).unwrap();
        let refused = |bytes: &[u8]| parse_npy(bytes, "f.npy", 1 << 20).unwrap_err().to_string();
        assert!(refused(b"").contains("byte 0: the file ends, 8 bytes more"));
        assert!(refused(b"12345678").contains("it does not begin as numpy's arrays do"));
        assert!(refused(&npy[..npy.len() - 1]).contains("the file ends, 1 bytes more"));
        assert!(refused(&[&npy[..], &[0]].concat()).contains("there is more than the values"));
        let with = |header: &str| {
            let length = (header.len() as u16).to_le_bytes();
            refused(&[MAGIC, &[1, 0], &length, header.as_bytes()].concat())
        };
        for (header, expected) in [
            ("{'descr': '<f4'}", "no `fortran_order`"),
            (
                "{'descr': '<f4', 'fortran_order': 0, 'shape': ()}",
                "neither True nor False",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
                "no list of sizes",
            ),
            (
                "{'descr': '<f3', 'fortran_order': False, 'shape': ()}",
                "its elements are `<f3`",
            ),
            (
                "{'descr': 'é4', 'fortran_order': False, 'shape': ()}",
                "its elements are `é4`",
            ),
            (
                "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9999999999, 9999999999)}",
                "is larger than 1048576 bytes",
            ),
        ] {
            let error = with(header);
            assert!(error.contains(expected) && error.contains("; "), "{error}");
        }
        let above = "{'descr': '<u8', 'fortran_order': False, 'shape': ()}";
        let length = (above.len() as u16).to_le_bytes();
        let above = [MAGIC, &[1, 0], &length, above.as_bytes(), &[0xff; 8]].concat();
        assert!(refused(&above).contains("above 9223372036854775807"));
        let archive = parse_npz(Cursor::new(b"PK".to_vec()), "f.npz", 1).unwrap_err();
        assert!(
            archive.to_string().contains("cannot be read as an archive"),
            "{archive}"
        );
    }
}
