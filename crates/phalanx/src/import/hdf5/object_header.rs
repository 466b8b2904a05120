//! Headers of objects: lists of messages.

use super::ReadResult;
use super::bytes::{Cursor, FileBytes};

/// One thing that a header says.
#[derive(Clone, Copy)]
pub(super) struct HeaderMessage<'a> {
    pub(super) kind: u16,
    pub(super) data: &'a [u8],
}

pub(super) const DATASPACE: u16 = 0x01;
pub(super) const LINK_INFO: u16 = 0x02;
pub(super) const DATATYPE: u16 = 0x03;
pub(super) const LINK: u16 = 0x06;
pub(super) const LAYOUT: u16 = 0x08;
pub(super) const FILTERS: u16 = 0x0B;
pub(super) const ATTRIBUTE: u16 = 0x0C;
const CONTINUATION: u16 = 0x10;
pub(super) const SYMBOL_TABLE: u16 = 0x11;

/// More messages than this in one header are taken for damage.
const MAX_MESSAGES: usize = 1 << 16;
/// Messages that are kept elsewhere in the file.
const SHARED: u8 = 2;
const CHECKSUM: usize = 4;

/// The messages of the header at an address, without those that are empty.
pub(super) fn messages<'a>(
    source: &FileBytes<'a>,
    address: u64,
) -> ReadResult<Vec<HeaderMessage<'a>>> {
    let mut start = source.from(address, 64)?;
    match start.0.first() {
        Some(1) => {
            start.skip(8)?;
            let len = start.u32()?;
            let first = source.at(address.saturating_add(16), u64::from(len))?;
            collect(source, first, None)
        }
        _ => {
            start.expect("OHDR")?;
            start.skip(1)?;
            let flags = start.u8()?;
            let times = if flags & 0x20 == 0 { 0 } else { 16 };
            let phase = if flags & 0x10 == 0 { 0 } else { 4 };
            start.skip(times + phase)?;
            let width = 1 << (flags & 3);
            let len = start.number(width)?;
            let before = (6 + times + phase + width) as u64;
            let first = source.at(address.saturating_add(before), len)?;
            collect(source, first, Some(flags))
        }
    }
}

/// The messages of a block and of its continuations; `flags` are given for a header of version 2.
fn collect<'a>(
    source: &FileBytes<'a>,
    first: &'a [u8],
    flags: Option<u8>,
) -> ReadResult<Vec<HeaderMessage<'a>>> {
    let mut blocks = vec![Cursor(first)];
    let mut found = Vec::new();
    while let Some(mut block) = blocks.pop() {
        while let Some(message) = next(&mut block, flags)? {
            if message.kind != CONTINUATION {
                found.push(message);
            } else {
                let mut place = Cursor(message.data);
                let more = source.at(place.u64()?, place.u64()?)?;
                blocks.push(continued(more, flags)?);
            }
            if found.len() + blocks.len() > MAX_MESSAGES {
                return Err(format!("a header of more than {MAX_MESSAGES} messages"));
            }
        }
    }
    Ok(found)
}

/// The messages in a continuation: version 2 puts letters before and a checksum after them.
fn continued(bytes: &[u8], flags: Option<u8>) -> ReadResult<Cursor<'_>> {
    let mut cursor = Cursor(bytes);
    if flags.is_some() {
        cursor.expect("OCHK")?;
        let messages = cursor.0.len().saturating_sub(CHECKSUM);
        cursor = Cursor(cursor.take(messages)?);
    }
    Ok(cursor)
}

/// The next message; `None` at the end, where a few bytes may be left over.
fn next<'a>(block: &mut Cursor<'a>, flags: Option<u8>) -> ReadResult<Option<HeaderMessage<'a>>> {
    let ordered = flags.is_some_and(|flags| flags & 4 != 0);
    let before = match flags {
        None => 8,
        Some(_) if ordered => 6,
        Some(_) => 4,
    };
    if block.0.len() < before {
        return Ok(None);
    }
    let kind = match flags {
        None => block.u16()?,
        Some(_) => u16::from(block.u8()?),
    };
    let len = block.u16()?;
    let message_flags = block.u8()?;
    block.skip(match flags {
        None => 3,
        Some(_) if ordered => 2,
        Some(_) => 0,
    })?;
    let data = block.take(len.into())?;
    if message_flags & SHARED != 0 && kind != ATTRIBUTE {
        return Err("types shared between arrays are not supported".into());
    }
    Ok(Some(HeaderMessage { kind, data }))
}
