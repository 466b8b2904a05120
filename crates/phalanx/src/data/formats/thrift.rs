//! What the headers of a Parquet file announce, read before any of it is decoded.
//!
//! ThriftReader's compact protocol (`doc/specs/thrift-compact-protocol.md`), stricter than it has to be: the fields of a
//! struct must come in the order of their numbers, as every writer writes them, so that none can be given twice.

/// The most structs and lists within one another.
const MAX_DEPTH: usize = 32;

/// A page of a column, from the header before it (`PageHeader` of `parquet.thrift`).
#[derive(Debug, Default, PartialEq)]
pub(super) struct PageHeader {
    /// Bytes of the header.
    pub(super) len: usize,
    /// Bytes of the page after decompression.
    pub(super) uncompressed: u64,
    /// Bytes of the page in the file.
    pub(super) compressed: u64,
    /// The CRC32 of the bytes in the file.
    pub(super) crc: Option<u32>,
    /// Number of values of a dictionary.
    pub(super) dictionary: u64,
    /// How the values are encoded; `None` of a page that has none.
    pub(super) encoding: Option<i64>,
}

/// The header of the page that starts here; `None` where there is none.
pub(super) fn page_header(bytes: &[u8]) -> Option<PageHeader> {
    let mut thrift = ThriftReader { bytes, at: 0 };
    let (mut head, mut last) = (PageHeader::default(), 0);
    while let Some((id, kind)) = thrift.field(last)? {
        match (id, kind) {
            (2, I32) => head.uncompressed = thrift.size()?,
            (3, I32) => head.compressed = thrift.size()?,
            (4, I32) => head.crc = Some(thrift.int()? as u32),
            (5 | 7 | 8, STRUCT) if head.encoding.is_some() => return None,
            (5, STRUCT) => head.encoding = Some(thrift.values_and_encoding(2)?.1),
            (7, STRUCT) => {
                let (values, encoding) = thrift.values_and_encoding(2)?;
                (head.dictionary, head.encoding) = (values, Some(encoding));
            }
            (8, STRUCT) => head.encoding = Some(thrift.values_and_encoding(4)?.1),
            (2..=5 | 7 | 8, _) => return None,
            _ => thrift.skip(kind, 1)?,
        }
        last = id;
    }
    head.len = thrift.at;
    Some(head)
}

/// Levels of groups in the schema of a footer (`FileMetaData` of `parquet.thrift`), the root's being 1; `None` where
/// the footer is none.
pub(super) fn schema_depth(footer: &[u8]) -> Option<usize> {
    let (mut thrift, mut last, mut depth) = (
        ThriftReader {
            bytes: footer,
            at: 0,
        },
        0,
        None,
    );
    while let Some((id, kind)) = thrift.field(last)? {
        match (id, kind) {
            (2, LIST) => depth = Some(thrift.depth_of_elements()?),
            (2, _) => return None,
            _ => thrift.skip(kind, 1)?,
        }
        last = id;
    }
    depth
}

const I32: u8 = 5;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

struct ThriftReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl ThriftReader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn pass(&mut self, len: u64) -> Option<()> {
        let rest = (self.bytes.len() - self.at) as u64;
        (len <= rest).then(|| self.at += len as usize)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn int(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn size(&mut self) -> Option<u64> {
        let size = i32::try_from(self.int()?).ok()?;
        u64::try_from(size).ok()
    }

    /// Number and type of the next field of a struct, whose last field was `last`; none at its end.
    fn field(&mut self, last: i64) -> Option<Option<(i64, u8)>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        let id = match byte >> 4 {
            0 => self.int()?,
            step => last + i64::from(step),
        };
        (id > last && id < 1 << 15).then_some(Some((id, byte & 15)))
    }

    /// Type and number of the elements of a list.
    fn list(&mut self) -> Option<(u8, u64)> {
        let byte = self.byte()?;
        let len = match byte >> 4 {
            15 => self.varint()?,
            len => u64::from(len),
        };
        Some((byte & 15, len))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            1 | 2 => Some(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.pass(8),
            8 => {
                let len = self.varint()?;
                self.pass(len)
            }
            9 | 10 => self.skip_list(depth),
            STRUCT => self.skip_struct(depth),
            _ => None,
        }
    }

    fn skip_list(&mut self, depth: usize) -> Option<()> {
        let (kind, len) = self.list()?;
        // A flag is a byte in a list, and in the type of its field elsewhere.
        let kind = if matches!(kind, 1 | 2) { 3 } else { kind };
        if depth == MAX_DEPTH {
            return None;
        }
        (0..len).try_for_each(|_| self.skip(kind, depth + 1))
    }

    fn skip_struct(&mut self, depth: usize) -> Option<()> {
        let mut last = 0;
        while let Some((id, kind)) = self.field(last)? {
            if depth == MAX_DEPTH {
                return None;
            }
            self.skip(kind, depth + 1)?;
            last = id;
        }
        Some(())
    }

    /// The number of values that the header of a page announces, and their encoding, which is in the field `at`.
    fn values_and_encoding(&mut self, at: i64) -> Option<(u64, i64)> {
        let (mut values, mut encoding, mut last) = (0, None, 0);
        while let Some((id, kind)) = self.field(last)? {
            match (id, kind) {
                (1, I32) => values = self.size()?,
                (id, I32) if id == at => encoding = Some(self.int()?),
                (id, _) if id == 1 || id == at => return None,
                _ => self.skip(kind, 2)?,
            }
            last = id;
        }
        Some((values, encoding?))
    }

    /// Levels of the tree whose nodes are listed parents first.
    fn depth_of_elements(&mut self) -> Option<usize> {
        let (STRUCT, len) = self.list()? else {
            return None;
        };
        let (mut open, mut deepest): (Vec<u64>, _) = (Vec::new(), 0);
        for _ in 0..len {
            let children = self.children()?;
            if let Some(parent) = open.last_mut() {
                *parent -= 1;
            }
            open.push(children);
            deepest = deepest.max(open.len());
            while open.last() == Some(&0) {
                open.pop();
            }
        }
        Some(deepest.saturating_sub(1))
    }

    fn children(&mut self) -> Option<u64> {
        let (mut children, mut last) = (0, 0);
        while let Some((id, kind)) = self.field(last)? {
            match (id, kind) {
                (5, I32) => children = self.size()?,
                (5, _) => return None,
                _ => self.skip(kind, 2)?,
            }
            last = id;
        }
        Some(children)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_announced_by_its_header() {
        // type 2, 300 bytes, 20 in the file, crc -1, a dictionary of 5 values.
        let bytes = [
            0x15, 4, 0x15, 0xd8, 4, 0x15, 40, 0x15, 1, 0x3c, 0x15, 10, 0x15, 0, 0, 0,
        ];
        let head = page_header(&bytes).unwrap();
        let expected = PageHeader {
            len: 16,
            uncompressed: 300,
            compressed: 20,
            crc: Some(u32::MAX),
            dictionary: 5,
            encoding: Some(0),
        };
        assert_eq!(head, expected);
        assert!((0..16).all(|end| page_header(&bytes[..end]).is_none()));
        let (twice, negative) = ([0x15, 4, 0x15, 2, 5, 4, 8, 0], [0x25, 1, 0]);
        assert_eq!((page_header(&twice), page_header(&negative)), (None, None));
    }

    #[test]
    fn the_depth_of_a_schema_is_found() {
        // A root of two columns; a chain of groups.
        let (node, leaf) = (|children| [0x55, children, 0], [0x15, 2, 0]);
        let flat = [&[0x29, 0x3c][..], &node(4), &leaf, &leaf, &[0]].concat();
        let chain = [&[0x29, 0x4c][..], &node(2), &node(2), &node(2), &leaf, &[0]].concat();
        assert_eq!(
            (schema_depth(&flat), schema_depth(&chain)),
            (Some(1), Some(3))
        );
        for deep in [[0x1c].repeat(1 << 20), [0x19].repeat(1 << 20)] {
            assert_eq!((schema_depth(&deep), page_header(&deep)), (None, None));
        }
    }
}
