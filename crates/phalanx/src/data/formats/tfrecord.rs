//! TFRecord files: length-prefixed records with checksums, read by index, and their writer.
//!
//! A record is its length (u64, little endian), the masked CRC32C of those 8 bytes, the data, and the masked CRC32C
//! of the data (`tensorflow/core/lib/io/record_writer.h`). Files that are compressed as a
//! whole, by gzip or zlib, are unpacked into a temporary file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use phalanx_summary::masked_crc;

use super::files::{InputFile, files_matching, firsts, io, locate, past_the_end};
use super::tfrecord_index::{INDEX_ENDING, compression, index_of};
use super::unpack::Spool;
use super::{CorruptPolicy, LostBytes, RecordLocation, Records};
use crate::storage::this_process;
use crate::{Error, Result};

/// Bytes before the data of a record: length and its checksum.
pub(super) const HEADER: usize = 12;
/// Bytes of a record that are not data.
pub(super) const FRAME: u64 = 16;
/// Neighbouring records up to this many bytes are read at once: what stays in the cache of a processor until it is used.
const RUN_BYTES: u64 = 1 << 18;
/// Larger buffers are not kept for the next read.
const MAX_KEPT: usize = 1 << 24;

/// How TFRecord files are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TfRecordOptions {
    /// What is done about a record whose length is corrupt: an error, or the rest of the file is left out, since
    /// nothing says where the next record starts ([`Dataset::lost`](crate::data::Dataset::lost)). Corrupt data are found when
    /// the record is read.
    pub corrupt: CorruptPolicy,
    /// Where the index of a file is kept.
    pub index: IndexCache,
    /// The most bytes of one record; a larger one is handled like corrupt data, but at opening.
    pub max_record: u64,
}

impl Default for TfRecordOptions {
    fn default() -> Self {
        Self {
            corrupt: CorruptPolicy::Fail,
            index: IndexCache::Beside,
            max_record: 1 << 30,
        }
    }
}

/// Where the index of a TFRecord file is kept, so that the next run need not walk through the file.
///
/// An index is used if size and time of modification of the file are as they were. Files below 1 MiB have none, and a
/// folder that cannot be written to is no error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IndexCache {
    /// In the folder of the file, with `.phxindex` added to its name.
    #[default]
    Beside,
    /// In this folder.
    Folder(PathBuf),
    /// Nowhere: every opening walks through the file.
    Off,
}

/// The records of TFRecord files, one file after the other.
#[derive(Debug)]
pub struct TfRecords {
    files: Vec<IndexedFile>,
    firsts: Vec<usize>,
    len: usize,
    max_record: u64,
    lost: Vec<LostBytes>,
    /// Buffers of past reads, one for each thread that reads at the same time.
    buffer_pool: Mutex<Vec<Vec<u8>>>,
}

#[derive(Debug)]
struct IndexedFile {
    file: InputFile,
    /// Where each record starts, and where the last ends.
    bounds: Vec<u64>,
}

/// Takes records by their position behind the first, in order.
type Visit<'a> = dyn FnMut(usize, Result<&[u8]>) -> Result<()> + 'a;

impl TfRecords {
    /// Opens the files that a pattern names, kept indexes and files that are being written left out, and finds their records. Files that are compressed by gzip or
    /// zlib as a whole are unpacked, all into one temporary file, which takes the room of their records until this is dropped.
    ///
    /// # Errors
    /// As [`files_matching`], when a file cannot be read, or a length in it is corrupt or too large and the options say to fail;
    /// when there is no room to unpack a file.
    pub fn open(pattern: &str, options: &TfRecordOptions) -> Result<Self> {
        let mut files = Vec::new();
        let mut lost = Vec::new();
        let mut spool = Spool::default();
        let mut paths = files_matching(pattern)?;
        paths.retain(|path| path.extension().is_none_or(|end| end != INDEX_ENDING));
        if paths.len() > 1 {
            paths.retain(|path| !is_partial(path));
        }
        for file in InputFile::open_all(paths)? {
            let (file, damage) = match compression(&file)? {
                Some(compression) => spool.unpack(file, compression)?,
                None => (file, None),
            };
            let index = index_of(&file, damage, options)?;
            lost.extend(index.lost(&file));
            let bounds = index.bounds;
            files.push(IndexedFile { file, bounds });
        }
        let counts = files.iter().map(IndexedFile::len);
        let firsts = firsts(counts.clone());
        Ok(Self {
            len: counts.sum(),
            files,
            firsts,
            max_record: options.max_record,
            lost,
            buffer_pool: Mutex::default(),
        })
    }

    /// Calls `visit` with the place in `indices` and the data of each record, in that order, without a copy; neighbours
    /// are read together.
    ///
    /// # Errors
    /// The first error of `visit`, which ends the visit; what is wrong with a record is handed to `visit`.
    pub fn visit(
        &self,
        indices: &[usize],
        mut visit: impl FnMut(usize, Result<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = self.buffer_pool().pop().unwrap_or_default();
        let mut at = 0;
        let mut done = Ok(());
        while at < indices.len() && done.is_ok() {
            let count = self.run(&indices[at..]);
            let mut visit = |k, data: Result<&[u8]>| visit(at + k, data);
            done = self.visit_run(indices[at], count, &mut buffer, &mut visit);
            at += count;
        }
        if buffer.len() <= MAX_KEPT {
            self.buffer_pool().push(buffer);
        }
        done
    }

    fn buffer_pool(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.buffer_pool
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of the indices follow one another in one file, up to the bytes of a run; at least 1.
    fn run(&self, indices: &[usize]) -> usize {
        if indices[0] >= self.len {
            return 1;
        }
        let (file, start) = locate(&self.firsts, indices[0]);
        let bounds = &self.files[file].bounds;
        let follows = |&(k, &i): &(usize, &usize)| {
            let end = bounds.get(start + k + 1);
            i == indices[0] + k && end.is_some_and(|end| end - bounds[start] <= RUN_BYTES)
        };
        let run = indices.iter().enumerate().take_while(follows).count();
        run.max(1)
    }

    fn visit_run(
        &self,
        first: usize,
        count: usize,
        buffer: &mut Vec<u8>,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        if first >= self.len {
            return visit(0, Err(past_the_end("record", first, self.len)));
        }
        let (file, start) = locate(&self.firsts, first);
        let IndexedFile { file, bounds } = &self.files[file];
        let bounds = &bounds[start..=start + count];
        if let (1, Err(error)) = (count, self.check_size(file, start, bounds)) {
            return visit(0, Err(error));
        }
        let bytes = (bounds[count] - bounds[0]) as usize;
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        if let Err(error) = file.read_at(&mut buffer[..bytes], bounds[0]) {
            visit(0, Err(error))?;
            // The others of the run may be readable on their own.
            return (1..count).try_for_each(|k| {
                self.visit_run(first + k, 1, buffer, &mut |_, data| visit(k, data))
            });
        }
        for (k, pair) in bounds.windows(2).enumerate() {
            let frame = &buffer[(pair[0] - bounds[0]) as usize..(pair[1] - bounds[0]) as usize];
            let small = self.check_size(file, start + k, pair);
            let corrupt = |message: String| file.corrupt_record(start + k, pair[0], &message);
            visit(k, small.and_then(|()| checked(frame).map_err(corrupt)))?;
        }
        Ok(())
    }

    /// Refuses a record that is too large, from its first and its last byte.
    fn check_size(&self, file: &InputFile, record: usize, bounds: &[u64]) -> Result<()> {
        let len = bounds[1] - bounds[0] - FRAME;
        if len <= self.max_record {
            return Ok(());
        }
        let message = too_large(len, self.max_record);
        Err(file.corrupt_record(record, bounds[0], &message))
    }
}

impl IndexedFile {
    fn len(&self) -> usize {
        self.bounds.len() - 1
    }
}

impl Records for TfRecords {
    type Item = Vec<u8>;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, i: usize) -> Result<Vec<u8>> {
        self.get_each(&[i]).remove(0)
    }

    fn get_each(&self, indices: &[usize]) -> Vec<Result<Vec<u8>>> {
        let mut records = Vec::with_capacity(indices.len());
        let visited = self.visit(indices, |_, data| {
            records.push(data.map(<[u8]>::to_vec));
            Ok(())
        });
        debug_assert!(visited.is_ok(), "the visitor keeps errors");
        records
    }

    fn per_file(&self) -> Vec<usize> {
        self.files.iter().map(IndexedFile::len).collect()
    }

    fn lost(&self) -> Vec<LostBytes> {
        self.lost.clone()
    }

    fn place(&self, i: usize) -> RecordLocation {
        let (file, record) = locate(&self.firsts, i);
        let IndexedFile { file, bounds } = &self.files[file];
        RecordLocation {
            file: file.name(),
            place: format!("record {record} at byte {}", bounds[record]),
        }
    }
}

/// The data of a whole frame, with both checksums compared.
fn checked(frame: &[u8]) -> std::result::Result<&[u8], String> {
    let (header, rest) = frame.split_at(HEADER);
    if data_len(header)? + FRAME != frame.len() as u64 {
        return Err(
            "the record has another length than when the file was opened; open it again".into(),
        );
    }
    let (data, stored) = rest.split_at(rest.len() - 4);
    compare("data of the record", data, stored)?;
    Ok(data)
}

pub(super) fn too_large(len: u64, most: u64) -> String {
    format!("the record has {len} bytes of data, the most accepted is {most}; raise max_record")
}

/// The length of the data from the 12 bytes before them.
pub(super) fn data_len(header: &[u8]) -> std::result::Result<u64, String> {
    let (len, stored) = header.split_at(8);
    compare("length of the record", len, stored)?;
    Ok(u64::from_le_bytes(len.try_into().expect("8 bytes")))
}

fn compare(what: &str, bytes: &[u8], stored: &[u8]) -> std::result::Result<(), String> {
    let stored = u32::from_le_bytes(stored.try_into().expect("4 bytes"));
    let found = masked_crc(bytes);
    if found == stored {
        return Ok(());
    }
    Err(format!(
        "corrupt record: the checksum of the {what} is {found:08x}, expected {stored:08x}; \
         write the file again, or choose to skip corrupt records"
    ))
}

/// Writes one record with its length and checksums.
///
/// # Errors
/// When the writer refuses.
pub fn write_tfrecord(writer: &mut impl Write, data: &[u8]) -> std::io::Result<()> {
    let len = (data.len() as u64).to_le_bytes();
    writer.write_all(&len)?;
    writer.write_all(&masked_crc(&len).to_le_bytes())?;
    writer.write_all(data)?;
    writer.write_all(&masked_crc(data).to_le_bytes())
}

/// The path of shard `i` of `count`: `name-00000-of-00005.tfrecord`.
#[must_use]
pub fn shard_path(folder: &Path, name: &str, i: usize, count: usize) -> PathBuf {
    folder.join(format!("{name}-{i:05}-of-{count:05}.tfrecord"))
}

/// Writes a TFRecord file, which appears under its name when it is finished.
#[derive(Debug)]
pub struct TfRecordWriter {
    path: PathBuf,
    partial: PathBuf,
    writer: Option<BufWriter<File>>,
    records: u64,
    is_finished: bool,
}

/// In the names of files that are being written, before the process.
const PARTIAL: &str = ".partial-";

/// Whether a file is being written, or was by a process that was killed.
fn is_partial(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let process = name.rsplit_once(PARTIAL).map(|(_, process)| process);
    let is_number = |c: char| c.is_ascii_hexdigit() || c == '-';
    process.is_some_and(|process| !process.is_empty() && process.chars().all(is_number))
}

impl TfRecordWriter {
    /// Starts a file; one of that name is replaced when this is finished.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let mut partial = path.clone().into_os_string();
        partial.push(format!("{PARTIAL}{}", this_process()));
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).map_err(|error| io(&partial, "create", error))?;
        let writer = Some(BufWriter::with_capacity(1 << 18, file));
        Ok(Self {
            path,
            partial,
            writer,
            records: 0,
            is_finished: false,
        })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        let Some(writer) = &mut self.writer else {
            return Err(Error::Bug("a record after the end of a file".into()));
        };
        write_tfrecord(writer, data).map_err(|error| io(&self.partial, "write", error))?;
        self.records += 1;
        Ok(())
    }

    /// Puts the file in its place and gives the number of its records.
    ///
    /// # Errors
    /// When it cannot be written, synchronised or renamed; nothing of it is left then.
    pub fn finish(mut self) -> Result<u64> {
        let refused = |error| io(&self.partial, "write", error);
        if let Some(writer) = self.writer.take() {
            let file = writer
                .into_inner()
                .map_err(|error| refused(error.into_error()))?;
            file.sync_all().map_err(refused)?;
        }
        std::fs::rename(&self.partial, &self.path)
            .map_err(|error| io(&self.path, "write", error))?;
        self.is_finished = true;
        Ok(self.records)
    }
}

impl Drop for TfRecordWriter {
    /// A file that was not finished is removed.
    fn drop(&mut self) {
        self.writer = None;
        if !self.is_finished {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::data::test_folder;

    fn write(path: &Path, records: &[Vec<u8>]) {
        let mut writer = TfRecordWriter::create(path).unwrap();
        records
            .iter()
            .for_each(|record| writer.write(record).unwrap());
        assert_eq!(writer.finish().unwrap(), records.len() as u64);
    }

    fn records(range: std::ops::Range<usize>) -> Vec<Vec<u8>> {
        range.map(|i| vec![i as u8; i * 3]).collect()
    }

    fn pattern(folder: &Path) -> String {
        folder.join("*.tfrecord").to_string_lossy().into_owned()
    }

    #[test]
    fn files_that_are_being_written_are_none_of_a_pattern() {
        let folder = test_folder::create("tfrecord-partial");
        let whole = folder.join("train-00000-of-00001");
        write(&whole, &records(0..5));
        let writer = TfRecordWriter::create(folder.join("train-1")).unwrap();
        let index = folder.join(format!("train-0.{}.{INDEX_ENDING}", this_process()));
        fs::write(index, "half").unwrap();
        let pattern = folder.join("train-*").to_string_lossy().into_owned();
        let found = TfRecords::open(&pattern, &TfRecordOptions::default()).unwrap();
        assert_eq!(found.len(), 5);
        drop(writer);
        fs::remove_dir_all(folder).unwrap();
    }

    fn two_files(name: &str) -> PathBuf {
        let folder = test_folder::create(name);
        write(&shard_path(&folder, "a", 0, 2), &records(0..5));
        write(&shard_path(&folder, "a", 1, 2), &records(5..9));
        folder
    }

    #[test]
    fn records_are_read_by_index_over_files() {
        let folder = two_files("by_index");
        let read = TfRecords::open(&pattern(&folder), &TfRecordOptions::default()).unwrap();
        assert_eq!((read.len(), read.per_file()), (9, vec![5, 4]));
        let one_by_one: Vec<_> = (0..9).map(|i| read.get(i).unwrap()).collect();
        assert_eq!(one_by_one, records(0..9));
        let mixed = [3, 4, 5, 6, 7, 2, 1, 0, 0, 8];
        let each: Vec<_> = read
            .get_each(&mixed)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(each, mixed.map(|i| vec![i as u8; i * 3]));
        assert!(read.get(9).is_err() && read.get_each(&[0, 9]).iter().any(Result::is_err));
        let place = read.place(6);
        assert!(
            place.file.ends_with("a-00001-of-00002.tfrecord")
                && place.place == "record 1 at byte 31",
            "{place:?}"
        );
    }

    /// A file compressed as a whole.
    fn packed(bytes: &[u8], gzip: bool) -> Vec<u8> {
        use flate2::Compression;
        use flate2::write::{GzEncoder, ZlibEncoder};
        if gzip {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            return encoder.finish().unwrap();
        }
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn compressed_files_have_the_records_of_plain_ones() {
        let folder = two_files("compressed");
        let [first, second] = [0, 1].map(|i| shard_path(&folder, "a", i, 2));
        let plain = fs::read(&second).unwrap();
        // A file of two members, one that is plain, and one by zlib.
        let (head, tail) = plain.split_at(plain.len() / 2);
        let members = [packed(head, true), packed(tail, true)].concat();
        fs::write(folder.join("b.tfrecord"), members).unwrap();
        fs::write(folder.join("c.tfrecord"), packed(&plain, false)).unwrap();
        let whole = packed(&fs::read(&first).unwrap(), true);
        fs::write(&first, whole).unwrap();
        for corrupt in [CorruptPolicy::Fail, CorruptPolicy::Skip] {
            let options = TfRecordOptions {
                corrupt,
                ..TfRecordOptions::default()
            };
            let read = TfRecords::open(&pattern(&folder), &options).unwrap();
            assert_eq!((read.per_file(), read.lost()), (vec![5, 4, 4, 4], vec![]));
            let expected = [records(0..9), records(5..9), records(5..9)].concat();
            let all: Vec<usize> = (0..17).rev().collect();
            let each = read.get_each(&all).into_iter().map(Result::unwrap);
            assert_eq!(each.rev().collect::<Vec<_>>(), expected);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 4, "nothing is left");
    }

    #[test]
    fn a_compressed_file_that_was_cut_says_where_or_has_the_records_before() {
        let folder = test_folder::create("compressed_cut");
        let path = folder.join("x.tfrecord");
        let noise = |i: u32| (0..500).map(move |k| (i * 500 + k).wrapping_mul(2_654_435_761));
        let noise = |i| noise(i).map(|x| (x >> 24) as u8).collect::<Vec<u8>>();
        write(&path, &(0..8).map(noise).collect::<Vec<_>>());
        let plain = fs::read(&path).unwrap();
        for (gzip, name) in [(true, "gzip"), (false, "zlib")] {
            let whole = packed(&plain, gzip);
            fs::write(&path, &whole[..whole.len() / 2]).unwrap();
            let open = |corrupt| {
                let options = TfRecordOptions {
                    corrupt,
                    ..TfRecordOptions::default()
                };
                TfRecords::open(&pattern(&folder), &options)
            };
            let read = open(CorruptPolicy::Skip).unwrap();
            assert!((1..8).contains(&read.len()), "{}", read.len());
            for i in 0..read.len() {
                assert_eq!(read.get(i).unwrap(), noise(i as u32));
            }
            let [lost] = &read.lost()[..] else {
                panic!("{:?}", read.lost());
            };
            let what = format!("the {name} data end too early");
            assert!(lost.reason == what, "{lost}");
            let error = open(CorruptPolicy::Fail).unwrap_err().to_string();
            let place = format!("record {} at byte {}: ", read.len(), read.len() * 516);
            assert!(error.contains(&place) && error.contains(&what), "{error}");
        }
    }

    #[test]
    fn a_corrupt_record_fails_with_its_place_or_is_left_out() {
        let folder = two_files("corrupt");
        let path = shard_path(&folder, "a", 0, 2);
        let good = fs::read(&path).unwrap();
        // Records of 0, 3, 6, .. bytes start at 0, 16, 35, 57, 82: data of record 1, then the length of record 2.
        for (at, record, offset, reason, skipped) in [
            (29, 1, 16, "data of the record", 0),
            (36, 2, 35, "length of the record", 75),
        ] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            let options = TfRecordOptions::default();
            let read = TfRecords::open(&pattern(&folder), &options).and_then(|read| read.get(1));
            let error = read.unwrap_err().to_string();
            let place = format!(
                "a-00000-of-00002.tfrecord: record {record} at byte {offset}: corrupt record: the checksum of the {reason}"
            );
            assert!(error.contains(&place), "{error}");
            let options = TfRecordOptions {
                corrupt: CorruptPolicy::Skip,
                ..options
            };
            let read = TfRecords::open(&pattern(&folder), &options).unwrap();
            let lost: Vec<_> = read
                .lost()
                .iter()
                .map(|lost| (lost.offset, lost.bytes))
                .collect();
            let expected = if skipped == 0 {
                vec![]
            } else {
                vec![(offset, skipped)]
            };
            assert_eq!(lost, expected);
            for lost in read.lost() {
                let text = lost.to_string();
                let told = "a-00000-of-00002.tfrecord: the 75 bytes from byte 35 on are left out: corrupt record: the checksum";
                assert!(text.contains(told) && !text.contains("; "), "{text}");
            }
            assert_eq!(read.len(), if skipped == 0 { 9 } else { 6 });
            assert_eq!(read.get(read.len() - 1).unwrap(), vec![8; 24]);
            // A corrupt record in a run does not harm its neighbours.
            let each: Vec<_> = (0..3).collect();
            let good_ones = read
                .get_each(&each)
                .iter()
                .filter(|record| record.is_ok())
                .count();
            assert_eq!(good_ones, if skipped == 0 { 2 } else { 3 });
        }
    }

    #[test]
    fn what_cannot_be_a_tfrecord_file_is_refused() {
        let folder = test_folder::create("refused");
        let path = folder.join("x.tfrecord");
        write(&path, &records(3..5));
        let good = fs::read(&path).unwrap();
        let huge = {
            let len = (1u64 << 60).to_le_bytes();
            [&len[..], &masked_crc(&len).to_le_bytes(), &[0; 40]].concat()
        };
        let gzip = [&[0x1f, 0x8b][..], &[8; 30]].concat();
        let zlib = [&[0x78, 0x9c][..], &[8; 30]].concat();
        let cases = [
            (
                good[..good.len() - 1].to_vec(),
                "record 1 at byte 25: the file was cut: the record has 12 bytes of data, 11",
            ),
            (
                good[..30].to_vec(),
                "record 1 at byte 25: the file was cut: 5 bytes are left",
            ),
            (
                huge,
                "record 0 at byte 0: the file was cut: the record has 1152921504606846976",
            ),
            (gzip, "record 0 at byte 0: the gzip data"),
            (zlib, "record 0 at byte 0: the zlib data"),
        ];
        let skips = TfRecordOptions {
            corrupt: CorruptPolicy::Skip,
            ..TfRecordOptions::default()
        };
        for (bytes, expected) in cases {
            fs::write(&path, bytes).unwrap();
            let error =
                TfRecords::open(&pattern(&folder), &TfRecordOptions::default()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            let skipped = TfRecords::open(&pattern(&folder), &skips).unwrap();
            assert_eq!(skipped.lost().len(), 1, "{expected}");
        }
        fs::write(&path, good).unwrap();
        let options = TfRecordOptions {
            max_record: 11,
            ..TfRecordOptions::default()
        };
        let error = TfRecords::open(&pattern(&folder), &options)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the most accepted is 11; raise max_record"),
            "{error}"
        );
        fs::write(&path, "").unwrap();
        assert_eq!(
            TfRecords::open(&pattern(&folder), &options).unwrap().len(),
            0
        );
    }

    #[test]
    fn a_record_that_is_too_large_is_left_out_alone() {
        let folder = test_folder::create("too_large");
        let big = [vec![1u8; 1 << 20], vec![2; 3 << 20], vec![3; 5]];
        write(&folder.join("x.tfrecord"), &big);
        let open = |corrupt, max_record| {
            let options = TfRecordOptions {
                corrupt,
                max_record,
                ..TfRecordOptions::default()
            };
            TfRecords::open(&pattern(&folder), &options)
        };
        // With an index that was kept by an opening that allowed it.
        assert_eq!(open(CorruptPolicy::Fail, 3 << 20).unwrap().len(), 3);
        assert!(folder.join("x.tfrecord.phxindex").exists());
        for _ in 0..2 {
            let error = open(CorruptPolicy::Fail, 2 << 20).unwrap_err().to_string();
            let place = "x.tfrecord: record 1 at byte 1048592: the record has 3145728 bytes of data, the most accepted is 2097152";
            assert!(error.contains(place), "{error}");
            let read = open(CorruptPolicy::Skip, 2 << 20).unwrap();
            assert_eq!((read.len(), read.lost()), (3, Vec::new()));
            let each: Vec<_> = read
                .get_each(&[0, 1, 2])
                .into_iter()
                .map(Result::ok)
                .collect();
            assert_eq!(each, [Some(big[0].clone()), None, Some(big[2].clone())]);
            // Without the index.
            fs::remove_file(folder.join("x.tfrecord.phxindex")).unwrap_or_default();
        }
        // Small ones are read together.
        write(&folder.join("x.tfrecord"), &records(3..6));
        let read = open(CorruptPolicy::Skip, 12).unwrap();
        let lens: Vec<_> = read
            .get_each(&[0, 1, 2])
            .into_iter()
            .map(|record| record.map_or(0, |record| record.len()))
            .collect();
        assert_eq!(lens, [9, 12, 0]);
    }

    #[test]
    fn the_index_is_kept_and_made_anew_when_the_file_changes() {
        let folder = test_folder::create("index");
        let path = folder.join("x.tfrecord");
        let big = |count: usize| vec![vec![1u8; 1 << 18]; count];
        write(&path, &big(5));
        let kept = folder.join("x.tfrecord.phxindex");
        let open = || TfRecords::open(&pattern(&folder), &TfRecordOptions::default()).unwrap();
        assert_eq!(open().len(), 5);
        let all = folder.join("x*").to_string_lossy().into_owned();
        let all = TfRecords::open(&all, &TfRecordOptions::default()).unwrap();
        assert_eq!(all.len(), 5, "the index is no data");
        let index = fs::read(&kept).unwrap();
        // An index of the same file that says otherwise shows that it is used.
        let mut other = index[..index.len() - 4].to_vec();
        other.drain(32..40);
        other.extend(crc32c::crc32c(&other).to_le_bytes());
        fs::write(&kept, &other).unwrap();
        assert_eq!(open().len(), 4);
        for bad in [&index[..index.len() - 1], &[], &[0; 60]] {
            fs::write(&kept, bad).unwrap();
            assert_eq!(open().len(), 5);
        }
        write(&path, &big(6));
        assert_eq!(open().len(), 6);
        let elsewhere = TfRecordOptions {
            index: IndexCache::Folder(folder.join("kept")),
            ..TfRecordOptions::default()
        };
        assert_eq!(
            TfRecords::open(&pattern(&folder), &elsewhere)
                .unwrap()
                .len(),
            6
        );
        assert_eq!(fs::read_dir(folder.join("kept")).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_nothing() {
        let folder = test_folder::create("unfinished");
        TfRecordWriter::create(folder.join("x"))
            .unwrap()
            .write(b"abc")
            .unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        // What is in the way cannot be replaced by a file.
        let taken = folder.join("y");
        fs::create_dir_all(taken.join("z")).unwrap();
        let writer = TfRecordWriter::create(&taken).unwrap();
        assert!(writer.finish().is_err());
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
    }
}
