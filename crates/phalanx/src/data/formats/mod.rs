//! Readers and writers of file formats, a file each; all read at a position, so that any example can be asked for.

mod encoded_images;
mod feature_spec;
mod files;
mod fixed;
mod idx;
mod image_folder;
mod numpy;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
mod parquet_column;
#[cfg(feature = "parquet")]
mod parquet_file;
#[cfg(feature = "parquet")]
mod parquet_table;
mod records;
mod sequence_example;
mod tar;
mod text_lines;
pub(super) mod tf_example;
mod tfds;
pub(super) mod tfrecord;
mod tfrecord_index;
#[cfg(feature = "parquet")]
mod thrift;
mod unpack;
mod web_dataset;
mod wire;

pub use encoded_images::EncodedImages;
pub use feature_spec::FeatureSpec;
pub(super) use files::{MATCHING, files_of, io, locate, start_of_pattern};
pub use files::{files_matching, is_file_pattern};
pub use fixed::{Cifar, FixedRecords};
pub use idx::{parse_idx, read_idx};
pub use image_folder::{EncodedImage, ImageFolder};
pub use numpy::{Npz, parse_npy, parse_npz, read_npy};
#[cfg(feature = "parquet")]
pub use parquet::{Parquet, ParquetOptions};
#[cfg(feature = "parquet")]
pub(super) use parquet_table::ParquetTable;
pub use records::{CorruptPolicy, LostBytes, RecordLocation, Records};
pub(super) use records::{ParsedRecords, ParsedTfRecords, placed};
pub use sequence_example::SequenceExample;
pub use tar::{TarMember, tar_members};
pub use text_lines::TextLines;
pub use tf_example::{Feature, Features};
pub use tfds::{TfdsFeature, TfdsFolder};
pub use tfrecord::{
    IndexCache, TfRecordOptions, TfRecordWriter, TfRecords, shard_path, write_tfrecord,
};
pub(super) use tfrecord_index::INDEX_ENDING;
pub use web_dataset::{WebDataset, WebSample};
