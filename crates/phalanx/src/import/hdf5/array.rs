//! Arrays of numbers.

use std::io::Read as _;

use flate2::read::ZlibDecoder;
use phalanx_graph::DType;

use super::bytes::{Cursor, FileBytes};
use super::group::MAX_LEVELS;
use super::object_header::{DATASPACE, DATATYPE, FILTERS, HeaderMessage, LAYOUT};
use super::{NOWHERE, ReadResult};

/// What an array is, without its elements.
pub(crate) struct Array<'a> {
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
    layout: StorageLayout<'a>,
    filters: Vec<Filter>,
}

enum StorageLayout<'a> {
    Compact(&'a [u8]),
    Contiguous { address: u64, len: u64 },
    Chunked { tree: u64, chunk: Vec<usize> },
}

/// What was done to each chunk when it was written.
#[derive(Clone, Copy, PartialEq)]
enum Filter {
    Deflate,
    Shuffle,
    Fletcher32,
}

/// Larger chunks are taken for damage.
const MAX_CHUNK: usize = 1 << 26;
/// Arrays of more dims are none of ours.
const MAX_RANK: usize = 16;
const FLETCHER_BYTES: usize = 4;

/// The array that a header describes; `None` where it describes none.
pub(super) fn array<'a>(messages: &[HeaderMessage<'a>]) -> ReadResult<Option<Array<'a>>> {
    let find = |kind| messages.iter().find(|message| message.kind == kind);
    let data = |kind| find(kind).map(|message| Cursor(message.data));
    let (Some(space), Some(element), Some(layout)) =
        (data(DATASPACE), data(DATATYPE), data(LAYOUT))
    else {
        return Ok(None);
    };
    Ok(Some(Array {
        dims: dims(space)?,
        dtype: dtype(element)?,
        layout: read_layout(layout)?,
        filters: data(FILTERS).map_or(Ok(Vec::new()), filters)?,
    }))
}

/// The dims that a dataspace message gives; none for a scalar.
pub(super) fn dims(mut space: Cursor<'_>) -> ReadResult<Vec<usize>> {
    let (version, rank) = (space.u8()?, usize::from(space.u8()?));
    space.skip(1)?;
    match version {
        1 => space.skip(5)?,
        // Without elements, which is not the same as a scalar.
        2 if space.u8()? == 2 => return Ok(vec![0]),
        2 => {}
        other => return Err(format!("dataspace version {other}")),
    }
    if rank > MAX_RANK {
        return Err(format!("an array of {rank} dims"));
    }
    (0..rank)
        .map(|_| usize::try_from(space.u64()?).map_err(|_| "a dim too large".into()))
        .collect()
}

fn dtype(mut element: Cursor<'_>) -> ReadResult<DType> {
    let class = element.u8()? & 15;
    let bits = element.u8()?;
    element.skip(2)?;
    let size = element.u32()?;
    let signed = bits & 8 != 0;
    let found = match (class, size) {
        // Bytes without a meaning: h5py, and so Keras, knows bfloat16 as nothing else.
        (5, 2) => Some(DType::Bf16),
        _ if bits & 1 != 0 => None,
        (0, 1) if !signed => Some(DType::U8),
        (0, 4) if signed => Some(DType::I32),
        (0, 4) => Some(DType::U32),
        (0, 8) if signed => Some(DType::I64),
        (1, size) => {
            element.skip(5)?;
            let exponent = element.u8()?;
            match (size, exponent) {
                (2, 5) => Some(DType::F16),
                (2, 8) => Some(DType::Bf16),
                (4, 8) => Some(DType::F32),
                (8, 11) => Some(DType::F64),
                _ => None,
            }
        }
        _ => None,
    };
    found.ok_or_else(|| {
        format!("elements of class {class}, {size} bytes each; little-endian numbers are read")
    })
}

fn read_layout(mut layout: Cursor<'_>) -> ReadResult<StorageLayout<'_>> {
    let (version, class) = (layout.u8()?, layout.u8()?);
    match (version, class) {
        (3 | 4, 0) => {
            let len = layout.u16()?;
            Ok(StorageLayout::Compact(layout.take(len.into())?))
        }
        (3 | 4, 1) => Ok(StorageLayout::Contiguous {
            address: layout.u64()?,
            len: layout.u64()?,
        }),
        (3, 2) => {
            let rank = usize::from(layout.u8()?).checked_sub(1);
            let rank = rank.ok_or("chunks without dims")?;
            let tree = layout.u64()?;
            let chunk = (0..rank).map(|_| Ok(layout.u32()? as usize));
            let chunk = chunk.collect::<ReadResult<_>>()?;
            Ok(StorageLayout::Chunked { tree, chunk })
        }
        _ => Err(format!(
            "layout version {version}, class {class}; write the file with the earliest format, h5py's default"
        )),
    }
}

fn filters(mut data: Cursor<'_>) -> ReadResult<Vec<Filter>> {
    let (version, count) = (data.u8()?, data.u8()?);
    data.skip(if version == 1 { 6 } else { 0 })?;
    let mut found = Vec::new();
    for _ in 0..count {
        let id = data.u16()?;
        let named = version == 1 || id >= 256;
        let name = if named { data.u16()? } else { 0 };
        data.skip(2)?;
        let values = usize::from(data.u16()?);
        let name = usize::from(name);
        let padded = version == 1;
        data.skip(if padded {
            name.next_multiple_of(8)
        } else {
            name
        })?;
        data.skip(4 * (values + values % 2 * usize::from(padded)))?;
        let filter = match id {
            1 => Filter::Deflate,
            2 => Filter::Shuffle,
            3 => Filter::Fletcher32,
            other => return Err(format!("filter {other}; deflate and shuffle are read")),
        };
        // What is deflated twice can grow a millionfold.
        if found.contains(&filter) {
            return Err(format!("filter {id} twice, expected once; save it again"));
        }
        found.push(filter);
    }
    Ok(found)
}

impl Array<'_> {
    /// The elements, little-endian and row-major.
    pub(super) fn read(&self, source: &FileBytes<'_>) -> ReadResult<Vec<u8>> {
        let size = self.dtype.size();
        let bytes = self
            .dims
            .iter()
            .try_fold(size, |all: usize, &dim| all.checked_mul(dim));
        let bytes = bytes.ok_or("an array too large")?;
        let short = |got: usize| format!("{got} bytes of elements, expected {bytes}");
        match &self.layout {
            StorageLayout::Compact(data) => {
                let data = data.get(..bytes).ok_or_else(|| short(data.len()))?;
                Ok(data.to_vec())
            }
            StorageLayout::Contiguous { len, .. } if *len < bytes as u64 => {
                Err(short(*len as usize))
            }
            // Never written: the fill value, which is zero for all that Keras writes.
            StorageLayout::Contiguous { address, .. } if *address == NOWHERE => zeros(bytes),
            StorageLayout::Contiguous { address, .. } => {
                Ok(source.at(*address, bytes as u64)?.to_vec())
            }
            StorageLayout::Chunked { tree, chunk } => {
                let mut places = self.places(chunk)?;
                let mut elements = zeros(bytes)?;
                if *tree != NOWHERE && bytes > 0 {
                    let levels = MAX_LEVELS;
                    self.chunks(source, *tree, chunk, levels, &mut places, &mut elements)?;
                }
                Ok(elements)
            }
        }
    }

    /// How many chunks the array has.
    fn places(&self, chunk: &[usize]) -> ReadResult<usize> {
        let is_within = |(&chunk, &dim): (&usize, &usize)| (1..=dim.max(1)).contains(&chunk);
        let fits = chunk.iter().zip(&self.dims).all(is_within);
        if chunk.len() != self.dims.len() || !fits {
            let dims = &self.dims;
            return Err(format!(
                "chunks {chunk:?} of an array {dims:?}; save it again"
            ));
        }
        // At most the number of elements.
        let counts = self.dims.iter().zip(chunk);
        Ok(counts.map(|(dim, chunk)| dim.div_ceil(*chunk)).product())
    }

    /// Copies the chunks below a node of the tree to their places, of which `places` are left.
    fn chunks(
        &self,
        source: &FileBytes<'_>,
        address: u64,
        chunk: &[usize],
        levels: u8,
        places: &mut usize,
        elements: &mut [u8],
    ) -> ReadResult<()> {
        let mut node = source.from(address, 24)?;
        node.expect("TREE")?;
        let (kind, level, count) = (node.u8()?, node.u8()?, node.u16()?);
        if kind != 1 || level >= levels {
            return Err(format!(
                "the tree of chunks has a node of kind {kind}, level {level}"
            ));
        }
        let key = 8 + 8 * (chunk.len() as u64 + 1);
        let len = u64::from(count) * (key + 8) + key;
        let mut entries = Cursor(source.at(address.saturating_add(24), len)?);
        for _ in 0..count {
            let (len, mask) = (entries.u32()?, entries.u32()?);
            let start = chunk
                .iter()
                .map(|_| entries.u64())
                .collect::<ReadResult<Vec<_>>>()?;
            entries.skip(8)?;
            let child = entries.u64()?;
            if level > 0 {
                self.chunks(source, child, chunk, level, places, elements)?;
                continue;
            }
            // A tree of a few bytes may name the same large chunk many times.
            let left = places.checked_sub(1);
            *places = left.ok_or("more chunks than its array has; save it again")?;
            let data = self.unfiltered(source.at(child, len.into())?, mask, chunk)?;
            self.place(&data, &start, chunk, elements)?;
        }
        Ok(())
    }

    /// The elements of a chunk as they were before the filters.
    fn unfiltered(&self, stored: &[u8], mask: u32, chunk: &[usize]) -> ReadResult<Vec<u8>> {
        let size = self.dtype.size();
        let bytes = chunk
            .iter()
            .try_fold(size, |all: usize, &dim| all.checked_mul(dim));
        let bytes = bytes.filter(|&bytes| bytes <= MAX_CHUNK);
        let bytes = bytes.ok_or("a chunk too large")?;
        let mut data = stored.to_vec();
        for (index, filter) in self.filters.iter().enumerate().rev() {
            let skipped = index < 32 && mask >> index & 1 != 0;
            if skipped {
                continue;
            }
            data = match filter {
                Filter::Deflate => inflated(&data, bytes + FLETCHER_BYTES)?,
                Filter::Shuffle => unshuffled(&data, size),
                Filter::Fletcher32 => checked(data)?,
            };
        }
        match data.len() {
            got if got == bytes => Ok(data),
            got => Err(format!("a chunk of {got} bytes, expected {bytes}")),
        }
    }

    /// Copies a chunk into the array, without what reaches over its edges.
    fn place(
        &self,
        data: &[u8],
        start: &[u64],
        chunk: &[usize],
        elements: &mut [u8],
    ) -> ReadResult<()> {
        let size = self.dtype.size();
        let start = start.iter().map(|&start| usize::try_from(start).ok());
        let start = start.collect::<Option<Vec<_>>>();
        let start = start.ok_or("a chunk outside its array")?;
        let inside = |dim: usize| self.dims[dim].saturating_sub(start[dim]).min(chunk[dim]);
        let counts: Vec<usize> = (0..chunk.len()).map(inside).collect();
        if counts.contains(&0) {
            return Ok(());
        }
        let Some((&run, outer)) = counts.split_last() else {
            elements.copy_from_slice(data);
            return Ok(());
        };
        let mut index = vec![0; outer.len()];
        loop {
            let (mut from, mut to) = (0, 0);
            for dim in 0..outer.len() {
                from = from * chunk[dim] + index[dim];
                to = to * self.dims[dim] + start[dim] + index[dim];
            }
            from *= chunk[outer.len()];
            to = to * self.dims[outer.len()] + start[outer.len()];
            let run = run * size;
            elements[to * size..][..run].copy_from_slice(&data[from * size..][..run]);
            if !advance(&mut index, outer) {
                return Ok(());
            }
        }
    }
}

/// The next index within `counts`, the last dim first; false after the last one.
fn advance(index: &mut [usize], counts: &[usize]) -> bool {
    for dim in (0..index.len()).rev() {
        index[dim] += 1;
        if index[dim] < counts[dim] {
            return true;
        }
        index[dim] = 0;
    }
    false
}

fn zeros(bytes: usize) -> ReadResult<Vec<u8>> {
    let mut zeros = Vec::new();
    let taken = zeros.try_reserve_exact(bytes);
    taken.map_err(|_| format!("{bytes} bytes of elements are more than this machine can give"))?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}

/// What was deflated, which may not be more than `most` bytes.
fn inflated(data: &[u8], most: usize) -> ReadResult<Vec<u8>> {
    let mut out = Vec::new();
    let mut decoder = ZlibDecoder::new(data).take(most as u64 + 1);
    let read = decoder.read_to_end(&mut out);
    read.map_err(|error| format!("a chunk does not inflate: {error}"))?;
    Ok(out)
}

/// The bytes before a checksum, which they have. Writers before HDF5 1.6.3 exchanged the bytes of each half of it.
fn checked(mut data: Vec<u8>) -> ReadResult<Vec<u8>> {
    let stored = data.split_off(data.len().saturating_sub(FLETCHER_BYTES));
    let [a, b, c, d] = fletcher32(&data).to_le_bytes();
    match stored == [a, b, c, d] || stored == [b, a, d, c] {
        true => Ok(data),
        false => Err("a chunk without its checksum: the file is damaged; copy it again".into()),
    }
}

/// The checksum as HDF5 takes it, of big-endian words of 16 bits: their sum, and the sum of the sums up to each, modulo 65535.
fn fletcher32(data: &[u8]) -> u32 {
    /// Words whose sums of sums stay below 2^32.
    const TOGETHER: usize = 360;
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut sum, mut sums) = (0u32, 0u32);
    for some in data.chunks(2 * TOGETHER) {
        for word in some.chunks(2) {
            sum += u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low));
            sums += sum;
        }
        (sum, sums) = (fold(sum), fold(sums));
    }
    fold(sums) << 16 | fold(sum)
}

/// Elements whose first bytes lie together, then their second ones, and so on.
fn unshuffled(data: &[u8], size: usize) -> Vec<u8> {
    let count = data.len() / size;
    let mut out = data.to_vec();
    for (place, byte) in out[..count * size].iter_mut().enumerate() {
        *byte = data[place % size * count + place / size];
    }
    out
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// What h5py writes behind `i * 37 % 251` of these numbers of bytes.
    #[test]
    fn checksums_are_compared() {
        for (count, sums) in [
            (7, [78, 189, 85, 231]),
            (8, [86, 189, 93, 231]),
            (2000, [143, 34, 227, 221]),
        ] {
            let data: Vec<u8> = (0..count).map(|i| (i * 37 % 251) as u8).collect();
            let stored = [&data[..], &sums].concat();
            assert_eq!(checked(stored.clone()).unwrap(), data);
            for bit in [0, 8 * (count - 1), 8 * count + 9] {
                let mut damaged = stored.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    checked(damaged).unwrap_err().contains("damaged"),
                    "{count}, {bit}"
                );
            }
        }
        assert!(checked(vec![1]).is_err());
    }

    /// A node of a tree of chunks that says `count` times where one of 1 MiB lies, and its array of as many elements.
    fn repeated(count: u16) -> (Vec<u8>, Array<'static>) {
        let mut deflate = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        deflate.write_all(&vec![0; 1 << 20]).unwrap();
        let data = deflate.finish().unwrap();
        let mut bytes = b"TREE\x01\x00".to_vec();
        bytes.extend(count.to_le_bytes());
        bytes.extend([0; 16]);
        let at = 24 + 32 * u64::from(count) + 24;
        for _ in 0..count {
            bytes.extend((data.len() as u32).to_le_bytes());
            bytes.extend([0; 20]);
            bytes.extend(at.to_le_bytes());
        }
        bytes.extend([0; 24]);
        bytes.extend(data);
        let array = Array {
            dims: vec![1 << 20],
            dtype: DType::U8,
            layout: StorageLayout::Chunked {
                tree: 0,
                chunk: vec![1 << 20],
            },
            filters: vec![Filter::Deflate],
        };
        (bytes, array)
    }

    #[test]
    fn a_chunk_is_unpacked_once() {
        let (bytes, array) = repeated(1);
        assert_eq!(array.read(&FileBytes::new(&bytes)).unwrap().len(), 1 << 20);
        let (bytes, array) = repeated(u16::MAX);
        let start = std::time::Instant::now();
        let error = array.read(&FileBytes::new(&bytes)).unwrap_err();
        assert_eq!(error, "more chunks than its array has; save it again");
        assert!(start.elapsed().as_secs() < 10);
    }

    #[test]
    fn chunks_lie_within_their_array() {
        let (bytes, mut array) = repeated(1);
        array.dims = vec![1 << 10];
        let error = array.read(&FileBytes::new(&bytes)).unwrap_err();
        assert_eq!(error, "chunks [1048576] of an array [1024]; save it again");
    }

    #[test]
    fn a_filter_is_applied_once() {
        let filter = |id: u8| [id, 0, 0, 0, 0, 0, 0, 0];
        let message = |ids: &[u8]| {
            let head = [1, ids.len() as u8, 0, 0, 0, 0, 0, 0];
            let all = ids.iter().flat_map(|&id| filter(id));
            head.into_iter().chain(all).collect::<Vec<u8>>()
        };
        assert_eq!(filters(Cursor(&message(&[2, 1, 3]))).unwrap().len(), 3);
        let error = filters(Cursor(&message(&[1; 255]))).err().unwrap();
        assert_eq!(error, "filter 1 twice, expected once; save it again");
    }
}
