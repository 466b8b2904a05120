//! Readers and writers of file formats, a file each; all read at a position, so that any example can be asked for.

mod crc;
mod files;
mod records;
pub(super) mod tf_example;
pub(super) mod tfrecord;
mod tfrecord_index;
mod wire;

pub use files::files_matching;
pub(super) use files::locate;
pub(super) use records::Parsed;
pub use records::{Corrupt, Place, Records};
pub use tf_example::{Feature, Features};
pub use tfrecord::{
    IndexCache, TfRecordOptions, TfRecordWriter, TfRecords, shard_path, write_tfrecord,
};
