//! What a group holds.

use super::bytes::{Cursor, FileBytes, terminated};
use super::object_header::{HeaderMessage, LINK, LINK_INFO, SYMBOL_TABLE};
use super::{NOWHERE, ReadResult};

/// More levels than this in a tree are taken for damage.
pub(super) const MAX_LEVELS: u8 = 16;
/// The kind of a name that stands for a path and not for an object.
const SOFT: u32 = 2;
/// Longer names are cut.
const MAX_NAME: usize = 1 << 12;

/// Names and addresses, by name; names that stand for paths and other files are left out.
pub(super) fn children(
    source: &FileBytes<'_>,
    messages: &[HeaderMessage<'_>],
) -> ReadResult<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for message in messages {
        let mut data = Cursor(message.data);
        match message.kind {
            SYMBOL_TABLE => {
                let (tree, heap) = (data.u64()?, data.u64()?);
                let names = heap_data(source, heap)?;
                tree_symbols(source, tree, names, MAX_LEVELS, &mut found)?;
            }
            LINK => found.extend(link(&mut data)?),
            LINK_INFO => check_links(&mut data)?,
            _ => {}
        }
    }
    Ok(found)
}

/// The bytes in which a group keeps names.
fn heap_data<'a>(source: &FileBytes<'a>, address: u64) -> ReadResult<&'a [u8]> {
    let mut heap = source.from(address, 32)?;
    heap.expect("HEAP")?;
    heap.skip(4)?;
    let len = heap.u64()?;
    heap.skip(8)?;
    source.at(heap.u64()?, len)
}

fn tree_symbols(
    source: &FileBytes<'_>,
    address: u64,
    names: &[u8],
    levels: u8,
    found: &mut Vec<(String, u64)>,
) -> ReadResult<()> {
    let mut node = source.from(address, 24)?;
    node.expect("TREE")?;
    let (kind, level, count) = (node.u8()?, node.u8()?, node.u16()?);
    if kind != 0 || level >= levels {
        return Err(format!(
            "a group's tree has a node of kind {kind}, level {level}"
        ));
    }
    let len = u64::from(count) * 16 + 8;
    let mut entries = Cursor(source.at(address.saturating_add(24), len)?);
    for _ in 0..count {
        entries.skip(8)?;
        let child = entries.u64()?;
        match level {
            0 => symbols(source, child, names, found)?,
            _ => tree_symbols(source, child, names, level, found)?,
        }
    }
    Ok(())
}

fn symbols(
    source: &FileBytes<'_>,
    address: u64,
    names: &[u8],
    found: &mut Vec<(String, u64)>,
) -> ReadResult<()> {
    let mut node = source.from(address, 8)?;
    node.expect("SNOD")?;
    node.skip(2)?;
    let count = node.u16()?;
    let mut entries = Cursor(source.at(address.saturating_add(8), u64::from(count) * 40)?);
    for _ in 0..count {
        let (name, object, kind) = (entries.u64()?, entries.u64()?, entries.u32()?);
        entries.skip(20)?;
        let name = usize::try_from(name)
            .ok()
            .and_then(|start| names.get(start..));
        let name = name.ok_or("a name outside its heap")?;
        // Many objects may point at one long name.
        let name = terminated(&name[..name.len().min(MAX_NAME)])?;
        source.charge(name.len() as u64)?;
        if kind != SOFT {
            found.push((name, object));
        }
    }
    Ok(())
}

/// A name in the header itself.
fn link(data: &mut Cursor<'_>) -> ReadResult<Option<(String, u64)>> {
    data.skip(1)?;
    let flags = data.u8()?;
    let kind = if flags & 8 == 0 { 0 } else { data.u8()? };
    data.skip(if flags & 4 == 0 { 0 } else { 8 })?;
    data.skip(if flags & 16 == 0 { 0 } else { 1 })?;
    let len = data.number(1 << (flags & 3))?;
    let len = usize::try_from(len).map_err(|_| "a name too long")?;
    let name = terminated(data.take(len)?)?;
    match kind {
        0 => Ok(Some((name, data.u64()?))),
        _ => Ok(None),
    }
}

/// Refuses names that are kept in a separate heap, as newer files may do.
fn check_links(data: &mut Cursor<'_>) -> ReadResult<()> {
    data.skip(1)?;
    let flags = data.u8()?;
    data.skip(if flags & 1 == 0 { 0 } else { 8 })?;
    match data.u64()? {
        NOWHERE => Ok(()),
        _ => Err(
            "a group whose names lie in a fractal heap; write the file with the earliest format, h5py's default"
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_of_many_objects_is_not_copied_for_each() {
        let mut node = b"SNOD\x01\x00".to_vec();
        node.extend(u16::MAX.to_le_bytes());
        node.resize(8 + 40 * usize::from(u16::MAX), 0);
        let name = vec![b'n'; 1 << 20];
        let (source, mut found) = (FileBytes::new(&node), Vec::new());
        let error = symbols(&source, 0, &name, &mut found).unwrap_err();
        assert!(error.starts_with("its parts refer"), "{error}");
        let letters: usize = found.iter().map(|(name, _)| name.len()).sum();
        assert!(letters < 17 * node.len(), "{letters} bytes of names");
    }
}
