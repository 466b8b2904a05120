//! Writes HDF5 files in the earliest form of the format, which every reader knows: superblock 0, groups as symbol tables, contiguous
//! arrays.
//!
//! The elements of the arrays come first, right after the superblock, each array at a multiple of 8; what describes them comes
//! behind. So all addresses are known before the first byte is written, and no element is copied. After the "HDF5 File Format
//! Specification Version 3.0" of The HDF Group.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use phalanx_graph::{DType, HostTensor};

use super::object_header::{ATTRIBUTE, DATASPACE, DATATYPE, LAYOUT, SYMBOL_TABLE};
use super::{NOWHERE, SIGNATURE};

/// What a file holds at one place.
pub(crate) enum H5Node<'a> {
    Group(Group<'a>),
    /// Numbers of any type but bf16, which h5py does not know.
    Array(Cow<'a, HostTensor>),
}

/// A group: its children and its attributes of text, by name.
#[derive(Default)]
pub(crate) struct Group<'a> {
    pub(crate) children: BTreeMap<String, H5Node<'a>>,
    pub(crate) texts: BTreeMap<&'static str, String>,
}

impl<'a> Group<'a> {
    /// The group at a path below this one, made with all above it where it is not there; `None` where an array is in the way.
    pub(crate) fn group(&mut self, path: &str) -> Option<&mut Self> {
        path.split('/').try_fold(self, |group, name| {
            let child = group.children.entry(name.to_owned());
            match child.or_insert_with(|| H5Node::Group(Group::default())) {
                H5Node::Group(group) => Some(group),
                H5Node::Array(_) => None,
            }
        })
    }
}

/// A file, ready to be written.
pub(crate) struct Hdf5File<'a> {
    superblock: Vec<u8>,
    /// In the order of the file.
    arrays: Vec<&'a HostTensor>,
    /// All that describes groups and arrays.
    headers: Vec<u8>,
}

/// Bytes of the superblock, with the entry of the root.
const SUPERBLOCK: usize = 96;
/// All addresses and lengths are multiples of it.
const ALIGNMENT: usize = 8;
/// Half of the number of children that a tree's node has; one level of the tree suffices.
const TREE_K: usize = 16;
/// Half of how many symbols a node has, if no group is large.
const LEAF_K: usize = 4;
/// Bytes of a symbol: name, address, what is cached.
const SYMBOL: usize = 40;
/// Of a symbol of which nothing is cached, and of one with the addresses of its tree and heap.
const UNCACHED: u32 = 0;
const CACHED: u32 = 1;
/// There is no free room in a heap.
const NONE_FREE: u64 = 1;

impl<'a> Hdf5File<'a> {
    pub(crate) fn new(root: &'a Group<'a>) -> Self {
        let mut layout = FileLayout {
            leaf_k: LEAF_K.max(largest(root).div_ceil(4 * TREE_K)),
            arrays: Vec::new(),
            start: SUPERBLOCK,
            headers_at: SUPERBLOCK + data_len(root),
            headers: Vec::new(),
        };
        let (header, tree, heap) = layout.group(root);
        let end = layout.headers_at + layout.headers.len();
        let mut superblock = Fields(SIGNATURE.to_vec());
        superblock.bytes(&[0, 0, 0, 0, 0, 8, 8, 0]);
        superblock.u16(layout.leaf_k).u16(TREE_K).u32(0);
        superblock.u64(0).u64(NOWHERE).u64(end as u64).u64(NOWHERE);
        superblock.u64(0).u64(header).u32(CACHED).u32(0);
        superblock.u64(tree).u64(heap);
        Self {
            superblock: superblock.0,
            arrays: layout.arrays,
            headers: layout.headers,
        }
    }

    /// The bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        let data = self.arrays.iter().map(|array| padded(array));
        (self.superblock.len() + data.sum::<usize>() + self.headers.len()) as u64
    }

    /// Writes the file.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.superblock)?;
        for array in &self.arrays {
            let bytes = array.bytes();
            out.write_all(bytes)?;
            out.write_all(&[0; ALIGNMENT][..padded(array) - bytes.len()])?;
        }
        out.write_all(&self.headers)
    }
}

/// The number of children of the largest group.
fn largest(group: &Group<'_>) -> usize {
    let children = group.children.values().map(|child| match child {
        H5Node::Group(group) => largest(group),
        H5Node::Array(_) => 0,
    });
    children.max().unwrap_or(0).max(group.children.len())
}

/// The bytes of all elements in a group.
fn data_len(group: &Group<'_>) -> usize {
    let children = group.children.values().map(|child| match child {
        H5Node::Group(group) => data_len(group),
        H5Node::Array(array) => padded(array),
    });
    children.sum()
}

fn padded(array: &HostTensor) -> usize {
    array.bytes().len().next_multiple_of(ALIGNMENT)
}

/// A file while it is laid out: children before their groups, whose addresses they have then.
struct FileLayout<'a> {
    leaf_k: usize,
    arrays: Vec<&'a HostTensor>,
    /// Where the next array's elements begin.
    start: usize,
    headers_at: usize,
    headers: Vec<u8>,
}

impl<'a> FileLayout<'a> {
    /// Puts a block behind the others; its address.
    fn put(&mut self, block: &Fields) -> u64 {
        let address = self.headers_at + self.headers.len();
        self.headers.extend_from_slice(&block.0);
        let padded = self.headers.len().next_multiple_of(ALIGNMENT);
        self.headers.resize(padded, 0);
        address as u64
    }

    /// The addresses of a group's header, tree and heap.
    fn group(&mut self, group: &'a Group<'a>) -> (u64, u64, u64) {
        let mut names = vec![0; ALIGNMENT];
        let mut symbols = Vec::new();
        for (name, child) in &group.children {
            let header = match child {
                H5Node::Group(group) => self.group(group).0,
                H5Node::Array(array) => self.array(array),
            };
            symbols.push((names.len() as u64, header));
            names.extend_from_slice(name.as_bytes());
            // At least one zero ends a name.
            names.resize((names.len() + 1).next_multiple_of(ALIGNMENT), 0);
        }
        let heap = self.heap(&Fields(names));
        let tree = self.tree(&symbols);
        let mut table = Fields::default();
        table.u64(tree).u64(heap);
        let mut messages = vec![(SYMBOL_TABLE, table)];
        let texts = group.texts.iter();
        messages.extend(texts.map(|(name, text)| (ATTRIBUTE, attribute(name, text))));
        (self.put(&object_header(messages)), tree, heap)
    }

    /// A heap with the names of a group's children.
    fn heap(&mut self, names: &Fields) -> u64 {
        let len = names.0.len() as u64;
        let data = self.put(names);
        let mut heap = Fields(b"HEAP\0\0\0\0".to_vec());
        heap.u64(len).u64(NONE_FREE).u64(data);
        self.put(&heap)
    }

    /// A tree over symbols, which are sorted by name: the places of their names in the heap, and the addresses of their headers.
    fn tree(&mut self, symbols: &[(u64, u64)]) -> u64 {
        let nodes = symbols.chunks(2 * self.leaf_k);
        let mut tree = Fields(b"TREE\0\0".to_vec());
        tree.u16(nodes.len()).u64(NOWHERE).u64(NOWHERE);
        // Each key is the last name before it; the first is empty.
        tree.u64(0);
        for symbols in nodes {
            let mut node = Fields(b"SNOD\x01\0".to_vec());
            node.u16(symbols.len());
            for &(name, header) in symbols {
                node.u64(name).u64(header).u32(UNCACHED).u32(0);
                node.u64(0).u64(0);
            }
            node.0.resize(8 + 2 * self.leaf_k * SYMBOL, 0);
            let last = symbols.last().map_or(0, |&(name, _)| name);
            tree.u64(self.put(&node)).u64(last);
        }
        // Readers take it with room for all the children that it may have.
        tree.0.resize(24 + 8 * (4 * TREE_K + 1), 0);
        self.put(&tree)
    }

    /// The address of an array's header.
    fn array(&mut self, array: &'a HostTensor) -> u64 {
        let len = array.bytes().len();
        let address = if len == 0 { NOWHERE } else { self.start as u64 };
        self.start += padded(array);
        self.arrays.push(array);
        let mut layout = Fields(vec![3, 1]);
        layout.u64(address).u64(len as u64);
        self.put(&object_header(vec![
            (DATASPACE, dataspace(array.dims())),
            (DATATYPE, datatype(array.dtype())),
            (LAYOUT, layout),
        ]))
    }
}

/// Numbers one after another, little-endian.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A number that is known to be small.
    fn u16(&mut self, value: usize) -> &mut Self {
        self.bytes(&(value as u16).to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// With zeros up to a multiple of 8 bytes.
    fn aligned(mut self) -> Self {
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
        self
    }
}

/// A header of version 1.
fn object_header(messages: Vec<(u16, Fields)>) -> Fields {
    let count = messages.len();
    let mut body = Fields::default();
    for (kind, data) in messages {
        let data = data.aligned();
        body.u16(kind.into()).u16(data.0.len()).u32(0);
        body.bytes(&data.0);
    }
    let mut header = Fields(vec![1, 0]);
    header.u16(count).u32(1).u32(body.0.len() as u32).u32(0);
    header.bytes(&body.0);
    header
}

fn dataspace(dims: &[usize]) -> Fields {
    let mut space = Fields(vec![1, dims.len() as u8, 0, 0, 0, 0, 0, 0]);
    for &dim in dims {
        space.u64(dim as u64);
    }
    space
}

/// A type of numbers: its class, what it has of signs and padding, its size, and its bits.
fn datatype(dtype: DType) -> Fields {
    const INTEGER: u8 = 0x10;
    const FLOAT: u8 = 0x11;
    const SIGNED: u8 = 0x08;
    /// The highest bit of the mantissa is not stored.
    const IMPLIED: u8 = 0x20;
    let (size, bits) = (dtype.size(), 8 * dtype.size());
    let mut fields = Fields::default();
    let float = match dtype {
        DType::F16 => Some((5_u8, 10_u8)),
        // What h5py does not know is not written.
        DType::Bf16 => Some((8, 7)),
        DType::F32 => Some((8, 23)),
        DType::F64 => Some((11, 52)),
        DType::I32 | DType::I64 | DType::U32 | DType::U8 | DType::Bool => None,
    };
    match float {
        Some((exponent, mantissa)) => {
            fields.bytes(&[FLOAT, IMPLIED, bits as u8 - 1, 0]);
            fields.u32(size as u32).u16(0).u16(bits);
            fields.bytes(&[mantissa, exponent, 0, mantissa]);
            fields.u32((1 << (exponent - 1)) - 1);
        }
        None => {
            let signed = matches!(dtype, DType::I32 | DType::I64);
            fields.bytes(&[INTEGER, if signed { SIGNED } else { 0 }, 0, 0]);
            fields.u32(size as u32).u16(0).u16(bits);
        }
    }
    fields
}

/// An attribute of text, filled up with zeros; at least one is there.
fn attribute(name: &str, text: &str) -> Fields {
    const TEXT: u8 = 0x13;
    const ZERO_PADDED_UTF8: u8 = 0x11;
    let len = text.len() + 1;
    let mut datatype = Fields(vec![TEXT, ZERO_PADDED_UTF8, 0, 0]);
    datatype.u32(len as u32);
    let space = dataspace(&[]);
    let mut fields = Fields(vec![1, 0]);
    fields.u16(name.len() + 1);
    fields.u16(datatype.0.len()).u16(space.0.len());
    let mut named = Fields(name.as_bytes().to_vec());
    named.bytes(&[0]);
    for part in [named, datatype, space] {
        fields.bytes(&part.aligned().0);
    }
    fields.bytes(text.as_bytes()).bytes(&[0]);
    fields
}

#[cfg(test)]
mod tests {
    use phalanx_graph::Shape;

    use super::super::Hdf5;
    use super::*;

    fn written(root: &Group<'_>) -> Vec<u8> {
        let file = Hdf5File::new(root);
        let mut bytes = Vec::new();
        file.write(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, file.len());
        // Readers compare it with the file's length.
        assert_eq!(bytes[40..48], (bytes.len() as u64).to_le_bytes());
        bytes
    }

    fn counted(dtype: DType, dims: &[usize]) -> HostTensor {
        let count: usize = dims.iter().product();
        let values: Vec<u8> = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let single = HostTensor::from_bytes(Shape::new(DType::F32, dims), &values);
        single.unwrap().convert(dtype)
    }

    #[test]
    fn numbers_of_every_type_and_shape_come_back() {
        let mut root = Group::default();
        let types = [
            DType::F16,
            DType::F32,
            DType::F64,
            DType::I32,
            DType::I64,
            DType::U32,
            DType::U8,
        ];
        let shapes = [&[][..], &[3], &[2, 3, 5], &[0, 4]];
        let arrays: Vec<HostTensor> = types
            .iter()
            .flat_map(|&dtype| shapes.map(|dims| counted(dtype, dims)))
            .collect();
        let group = root.group("a/b").unwrap();
        for (number, array) in arrays.iter().enumerate() {
            let array = H5Node::Array(Cow::Borrowed(array));
            group.children.insert(number.to_string(), array);
        }
        assert!(root.group("a/b/3/c").is_none(), "an array is no group");
        let bytes = written(&root);
        let file = Hdf5::open(&bytes).unwrap();
        let mut at = file.root().unwrap();
        for name in ["a", "b"] {
            let children = file.children(&at).unwrap();
            assert_eq!(children[0].0, name);
            at = file.object(children[0].1).unwrap();
        }
        let children = file.children(&at).unwrap();
        assert_eq!(children.len(), arrays.len());
        for (name, address) in children {
            let expected = &arrays[name.parse::<usize>().unwrap()];
            let object = file.object(address).unwrap();
            let array = file.array(&object).unwrap().unwrap();
            assert_eq!(
                (array.dtype, &*array.dims),
                (expected.dtype(), expected.dims())
            );
            assert_eq!(file.read(&array).unwrap(), expected.bytes(), "{name}");
        }
    }

    #[test]
    fn groups_of_any_size_come_back() {
        for count in [0, 1, 8, 9, 256, 257, 3000] {
            let mut root = Group::default();
            for number in 0..count {
                let group = root.group(&format!("g{number}")).unwrap();
                group.texts.insert("name", format!("number {number}"));
            }
            let bytes = written(&root);
            let file = Hdf5::open(&bytes).unwrap();
            let children = file.children(&file.root().unwrap()).unwrap();
            assert_eq!(children.len(), count);
            for (name, address) in children {
                let texts = file.texts(&file.object(address).unwrap(), "name").unwrap();
                assert_eq!(texts.unwrap(), [name.replace('g', "number ")]);
            }
        }
    }
}
