//! HDF5 files, as far as Keras writes them: groups, attributes of text, arrays of numbers. [`writer`] writes them.
//!
//! Read are superblocks 0 to 3, object headers 1 and 2, groups as symbol tables or with their links in the header, arrays that are
//! compact, contiguous, or chunked with a tree of version 1 and the filters deflate, shuffle and Fletcher32. What else
//! the format has is refused by name. Every offset is checked; what is read, named or unpacked is paid from a budget of a
//! few times the file, so that no input makes it panic, loop, or take more memory than an array that was asked for needs. After the "HDF5 File Format Specification Version 3.0" of The HDF Group.

mod array;
mod attributes;
mod bytes;
mod group;
mod object_header;
pub(crate) mod writer;

pub(crate) use array::Array;
use bytes::{Cursor, FileBytes};
use object_header::HeaderMessage;

/// What is wrong with the file, in words.
pub(crate) type ReadResult<T> = Result<T, String>;

/// The first bytes of every file.
pub(super) const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";
/// Where nothing is.
const NOWHERE: u64 = u64::MAX;

/// A file in memory.
pub(crate) struct Hdf5<'a> {
    source: FileBytes<'a>,
    root: u64,
}

/// A group or an array, by what its header says.
pub(crate) struct Object<'a> {
    messages: Vec<HeaderMessage<'a>>,
}

impl<'a> Hdf5<'a> {
    /// Finds the root of a file.
    pub(crate) fn open(bytes: &'a [u8]) -> ReadResult<Self> {
        let mut cursor = Cursor(bytes);
        if cursor.take(SIGNATURE.len())? != SIGNATURE {
            return Err("it does not begin as HDF5 files do".into());
        }
        let version = cursor.u8()?;
        let root = match version {
            0 | 1 => {
                cursor.skip(4)?;
                check_sizes(&mut cursor)?;
                cursor.skip(1 + 2 + 2 + 4)?;
                cursor.skip(if version == 1 { 4 } else { 0 })?;
                check_base(cursor.u64()?)?;
                cursor.skip(4 * 8)?;
                cursor.u64()?
            }
            2 | 3 => {
                check_sizes(&mut cursor)?;
                cursor.skip(1)?;
                check_base(cursor.u64()?)?;
                cursor.skip(2 * 8)?;
                cursor.u64()?
            }
            other => return Err(format!("superblock version {other}, expected 0 to 3")),
        };
        let source = FileBytes::new(bytes);
        Ok(Self { source, root })
    }

    /// The group that holds everything.
    pub(crate) fn root(&self) -> ReadResult<Object<'a>> {
        self.object(self.root)
    }

    /// The object whose header is at an address.
    pub(crate) fn object(&self, address: u64) -> ReadResult<Object<'a>> {
        let messages = object_header::messages(&self.source, address)?;
        Ok(Object { messages })
    }

    /// Names and addresses of what a group holds, by name; of an array, nothing.
    pub(crate) fn children(&self, object: &Object<'a>) -> ReadResult<Vec<(String, u64)>> {
        group::children(&self.source, &object.messages)
    }

    /// What an array is; `None` for a group.
    pub(crate) fn array(&self, object: &Object<'a>) -> ReadResult<Option<Array<'a>>> {
        array::array(&object.messages)
    }

    /// The elements of an array, little-endian and row-major.
    pub(crate) fn read(&self, array: &Array<'a>) -> ReadResult<Vec<u8>> {
        array.read(&self.source)
    }

    /// Pays for `len` bytes made from what the file says, such as the path of an array.
    pub(crate) fn charge(&self, len: usize) -> ReadResult<()> {
        self.source.charge(len as u64)
    }

    /// The texts of an attribute: one, or a list.
    pub(crate) fn texts(&self, object: &Object<'a>, name: &str) -> ReadResult<Option<Vec<String>>> {
        attributes::texts(&self.source, &object.messages, name)
    }
}

fn check_sizes(cursor: &mut Cursor<'_>) -> ReadResult<()> {
    match (cursor.u8()?, cursor.u8()?) {
        (8, 8) => Ok(()),
        (offsets, lengths) => Err(format!(
            "offsets of {offsets} bytes and lengths of {lengths}, expected 8 and 8"
        )),
    }
}

fn check_base(base: u64) -> ReadResult<()> {
    match base {
        0 => Ok(()),
        other => Err(format!("it begins at {other} rather than at 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_graph::{HostTensor, Shape};

    fn golden(file: &str) -> Vec<u8> {
        let root = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/keras/weights/"
        );
        std::fs::read(format!("{root}{file}")).unwrap()
    }

    /// The address of what has a path.
    fn find(file: &Hdf5<'_>, path: &str) -> u64 {
        let mut address = file.root;
        for part in path.split('/') {
            let children = file.children(&file.object(address).unwrap()).unwrap();
            let found = children.into_iter().find(|(name, _)| name == part);
            address = found.unwrap_or_else(|| panic!("no {path}")).1;
        }
        address
    }

    fn values(file: &Hdf5<'_>, path: &str) -> (Vec<usize>, Vec<f64>) {
        let object = file.object(find(file, path)).unwrap();
        let array = file.array(&object).unwrap().unwrap();
        let bytes = file.read(&array).unwrap();
        let shape = Shape::new(array.dtype, array.dims.clone());
        (
            array.dims,
            HostTensor::from_bytes(shape, &bytes).unwrap().to_f64(),
        )
    }

    #[test]
    fn every_form_of_an_array_is_read() {
        let expected = (vec![2, 3, 4], (0..24).map(f64::from).collect::<Vec<_>>());
        for name in ["forms.h5", "forms_latest.h5"] {
            let bytes = golden(name);
            let file = Hdf5::open(&bytes).unwrap();
            for dtype in ["float16", "float32", "float64", "int32", "int64", "uint8"] {
                assert_eq!(
                    values(&file, &format!("plain/{dtype}")),
                    expected,
                    "{name} {dtype}"
                );
            }
            assert_eq!(values(&file, "scalar"), (vec![], vec![3.0]));
            let root = file.root().unwrap();
            let texts = |attribute| file.texts(&root, attribute).unwrap();
            assert_eq!(texts("fixed").unwrap(), ["fixed text"]);
            assert_eq!(texts("variable").unwrap(), ["variable text"]);
            assert_eq!(texts("list").unwrap(), ["one", "two", "three"]);
            assert_eq!(texts("absent"), None);
        }
        let bytes = golden("forms.h5");
        let file = Hdf5::open(&bytes).unwrap();
        assert_eq!(values(&file, "chunked"), expected);
        assert_eq!(values(&file, "deflated"), expected);
        for i in 0..40 {
            assert_eq!(values(&file, &format!("many/{i}")).1, [f64::from(i)]);
        }
        let object = file.object(find(&file, "big_endian")).unwrap();
        let error = file.array(&object).err().unwrap();
        assert_eq!(
            error,
            "elements of class 1, 4 bytes each; little-endian numbers are read"
        );
    }

    #[test]
    fn parts_that_refer_to_one_another_come_to_an_end() {
        let mut bytes = golden("forms.h5");
        let tree = bytes
            .windows(4)
            .position(|letters| letters == b"TREE")
            .unwrap();
        // The first child of the root's tree is the tree, which says that it is above others.
        bytes[tree + 5] = 15;
        let address = (tree as u64).to_le_bytes();
        bytes[tree + 32..tree + 40].copy_from_slice(&address);
        let file = Hdf5::open(&bytes).unwrap();
        let error = file.children(&file.root().unwrap()).unwrap_err();
        assert_eq!(error, "a group's tree has a node of kind 0, level 15");
    }
}
