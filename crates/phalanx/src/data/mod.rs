//! The input pipeline: examples by index, batches by arithmetic, no hidden state.
//!
//! A [`Dataset`] is a length and a function from (epoch, index) to an [`Example`]. Shuffling is a keyed permutation
//! of the indices and a batch is a range of them, so a position in the data is one integer and [`Batches::iter`]
//! resumes anywhere at no cost. Stages apply in the order they are written, as in `tf.data`: `shuffle(s).repeat(n)`
//! reshuffles in each repetition, `shuffle(s).take(n)` takes the first `n` of the shuffled order.
//!
//! Files are read at a position too ([`Records`]): TFRecord, WebDataset, CIFAR, IDX, text, folders of images. Several
//! workers divide the data by arithmetic ([`Batches::shard`]), and training resumes exactly from a [`Position`], also within an epoch and
//! with another number of workers. Data that can only be read from the start are a [`Stream`]; training takes either
//! ([`TrainingData`]).
//!
//! ```
//! use phalanx::data::{Dataset, HostTensor};
//!
//! let x = HostTensor::new([5, 2], &[0.0f32, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]);
//! let y = HostTensor::new([5], &[0i32, 1, 0, 1, 0]);
//! let batches = Dataset::from_arrays(x, y)?.shuffle(42).batch(2).prefetch(2);
//! let rows: Vec<usize> = batches.iter(0, 0).map(|batch| Ok(batch?.rows())).collect::<phalanx::Result<_>>()?;
//! assert_eq!(rows, [2, 2, 1]);
//! # Ok::<(), phalanx::Error>(())
//! ```

mod agreement;
mod batch_builder;
mod batch_iter;
mod batches;
mod bottleneck;
mod bucket_copy;
mod buffer_pool;
mod cache_file;
mod concat_files;
mod csv;
mod csv_header;
mod csv_labels;
mod csv_lines;
mod csv_one_hot;
mod csv_table;
mod dataset;
mod example;
mod formats;
mod from_files;
mod global_batch;
mod length_buckets;
mod mixup;
mod pad;
mod position;
mod prefetch;
mod random_key;
mod shard;
#[cfg(test)]
mod shard_tests;
mod source;
mod stage_stats;
mod stages;
mod stream;
mod stream_batches;
mod stream_reader;
#[cfg(feature = "tokenizers")]
mod subwords;
mod table_file;
#[cfg(test)]
mod test_folder;
mod text_vectorizer;
mod time_series;
mod training_data;
mod vocabulary;

pub(crate) use agreement::Facts;
pub use batch_iter::BatchIter;
pub use batches::Batches;
pub use bottleneck::InputBottleneck;
pub use bucket_copy::BucketCopy;
pub use csv::{
    CsvColumn, CsvColumns, CsvOptions, Header, LabelColumn, LabelKind, MissingValues, parse_csv,
    parse_csv_with,
};
pub use csv_labels::CsvLabel;
pub use csv_one_hot::OneHotColumn;
pub use dataset::Dataset;
pub use example::{Batch, Example};
pub use formats::{
    Cifar, CorruptPolicy, EncodedImage, EncodedImages, Feature, FeatureSpec, Features,
    FixedRecords, ImageFolder, IndexCache, LostBytes, Npz, RecordLocation, Records,
    SequenceExample, TarMember, TextLines, TfRecordOptions, TfRecordWriter, TfRecords, TfdsFeature,
    TfdsFolder, WebDataset, WebSample, files_matching, is_file_pattern, parse_idx, parse_npy,
    parse_npz, read_idx, read_npy, shard_path, tar_members, write_tfrecord,
};
#[cfg(feature = "parquet")]
pub use formats::{Parquet, ParquetOptions};
#[cfg(feature = "parquet")]
pub use from_files::parquet_fields;
pub use from_files::{csv_header, csv_is_missing, csv_label_texts, csv_values, csv_width};
pub use global_batch::{Worker, batch_sizes};
pub use length_buckets::LengthBuckets;
pub use mixup::{cut_mix, mix_up};
pub use pad::Pad;
pub use phalanx_graph::HostTensor;
pub use position::{Position, Segment};
pub use shard::{AutoShardPolicy, WorkerPart};
pub use source::Source;
pub(crate) use stage_stats::STAGES;
pub use stage_stats::StageTime;
pub use stages::ClassWeights;
pub use stream::{Examples, Stream};
pub use stream_batches::{StreamBatches, StreamIter};
#[cfg(feature = "tokenizers")]
pub use subwords::SubwordTokenizer;
pub use text_vectorizer::{TextOptions, TextSplit, TextStandardize, TextVectorizer};
pub use time_series::TimeWindows;
pub use training_data::{EpochBatches, EpochLength, TrainingData};
pub use vocabulary::{Vocabulary, hash_bucket};
