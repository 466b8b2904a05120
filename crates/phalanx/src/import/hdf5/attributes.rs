//! Attributes of text.

use super::ReadResult;
use super::array::dims;
use super::bytes::{Cursor, FileBytes, terminated};
use super::object_header::{ATTRIBUTE, HeaderMessage};

/// More texts than this in one attribute are taken for damage.
const MAX_TEXTS: usize = 1 << 16;
/// What a text costs beside its letters, which may be none.
const TEXT: u64 = 8;
const FIXED: u8 = 3;
const VARIABLE: u8 = 9;

/// The texts of the attribute of a name; `None` where there is none, or one of something else than text.
pub(super) fn texts(
    source: &FileBytes<'_>,
    messages: &[HeaderMessage<'_>],
    name: &str,
) -> ReadResult<Option<Vec<String>>> {
    let attributes = messages.iter().filter(|message| message.kind == ATTRIBUTE);
    for message in attributes {
        source.charge(0)?;
        let attribute = Attribute::read(message.data)?;
        if attribute.name == name {
            return attribute.texts(source);
        }
    }
    Ok(None)
}

struct Attribute<'a> {
    name: String,
    datatype: Cursor<'a>,
    dataspace: Cursor<'a>,
    data: Cursor<'a>,
}

impl<'a> Attribute<'a> {
    fn read(message: &'a [u8]) -> ReadResult<Self> {
        let mut cursor = Cursor(message);
        let version = cursor.u8()?;
        cursor.skip(1)?;
        let sizes = [cursor.u16()?, cursor.u16()?, cursor.u16()?];
        cursor.skip(if version == 3 { 1 } else { 0 })?;
        let mut part = |size: u16| {
            let size = usize::from(size);
            let padded = if version == 1 {
                size.next_multiple_of(8)
            } else {
                size
            };
            cursor.take(padded).map(Cursor)
        };
        let [name, datatype, dataspace] = sizes;
        Ok(Self {
            name: terminated(part(name)?.0)?,
            datatype: part(datatype)?,
            dataspace: part(dataspace)?,
            data: cursor,
        })
    }

    fn texts(mut self, source: &FileBytes<'_>) -> ReadResult<Option<Vec<String>>> {
        let dims = dims(self.dataspace)?;
        let count = dims
            .iter()
            .try_fold(1, |all: usize, &dim| all.checked_mul(dim));
        let count = count.filter(|&count| count <= MAX_TEXTS);
        let count = count.ok_or("an attribute of too many texts")?;
        source.charge(count as u64 * TEXT)?;
        let class = self.datatype.u8()? & 15;
        let bits = self.datatype.u8()?;
        self.datatype.skip(2)?;
        let size = self.datatype.u32()? as usize;
        let text = |data: &mut Cursor<'_>| match class {
            FIXED => terminated(data.take(size)?).map(|text| text.trim_end().to_owned()),
            _ => from_heap(source, data),
        };
        match class {
            FIXED => {}
            // The low bits of the second byte say that a sequence is one of letters.
            VARIABLE if bits & 15 == 1 => {}
            _ => return Ok(None),
        }
        (0..count)
            .map(|_| text(&mut self.data))
            .collect::<ReadResult<Vec<_>>>()
            .map(Some)
    }
}

/// A text that lies in a heap of the file: its length, the heap, and its number there.
fn from_heap(source: &FileBytes<'_>, data: &mut Cursor<'_>) -> ReadResult<String> {
    let (len, heap, number) = (data.u32()?, data.u64()?, data.u32()?);
    if len == 0 {
        return Ok(String::new());
    }
    let mut head = source.from(heap, 16)?;
    head.expect("GCOL")?;
    head.skip(4)?;
    let size = head.u64()?.saturating_sub(16);
    let mut objects = Cursor(source.at(heap.saturating_add(16), size)?);
    while objects.0.len() >= 16 {
        let index = objects.u16()?;
        objects.skip(6)?;
        let size = usize::try_from(objects.u64()?).map_err(|_| "a text too long")?;
        if u32::from(index) == number && index != 0 {
            let text = objects.take(size)?;
            let text = text
                .get(..len as usize)
                .ok_or("a text shorter than it says")?;
            return terminated(text);
        }
        let padded = size.checked_next_multiple_of(8).ok_or("a text too long")?;
        objects.skip(padded)?;
    }
    Err(format!("text {number} is not in its heap"))
}
