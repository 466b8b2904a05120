//! Where the records of a TFRecord file start: found by a walk over the lengths, kept for the next time.

use std::fs;
use std::io::{BufReader, Read};
use std::path::PathBuf;

use super::files::{InputFile, io};
use super::tfrecord::{FRAME, HEADER, data_len, too_large};
use super::unpack::Compression;
use super::{CorruptPolicy, IndexCache, LostBytes, TfRecordOptions};
use crate::Result;
use crate::storage::this_process;

/// The ending of a kept index's name.
pub(crate) const INDEX_ENDING: &str = "phxindex";
const MAGIC: &[u8; 8] = b"phxidx01";
/// Smaller files are walked through faster than their index is worth.
const MIN_BYTES: u64 = 1 << 20;

/// What was found in a file.
pub(super) struct RecordIndex {
    /// Where each record starts and the last ends.
    pub(super) bounds: Vec<u64>,
    /// What is wrong after the last record, where the file goes on.
    wrong: Option<String>,
}

impl RecordIndex {
    /// What is behind the last record that was found.
    pub(super) fn lost(&self, file: &InputFile) -> Option<LostBytes> {
        let offset = self.bounds.last().copied().unwrap_or(0);
        // What to do is said where it fails.
        let reason = self.wrong.as_ref()?.split("; ").next().unwrap_or_default();
        Some(LostBytes {
            file: file.name(),
            offset,
            bytes: file.len() - offset,
            reason: reason.to_owned(),
        })
    }
}

/// The records of a file, from the kept index or a walk.
pub(super) fn index_of(
    file: &InputFile,
    damage: Option<String>,
    options: &TfRecordOptions,
) -> Result<RecordIndex> {
    let kept = kept_at(file, &options.index);
    if let Some(bounds) = kept.as_ref().and_then(|path| read_kept(path, file)) {
        check_sizes(file, &bounds, options)?;
        let wrong = None;
        return Ok(RecordIndex { bounds, wrong });
    }
    let index = walk(file, damage, options)?;
    if let Some(path) = kept.filter(|_| index.wrong.is_none()) {
        // The index is only to save time: a folder that refuses it is no error.
        let _ = keep(&path, file, &index.bounds);
    }
    check_sizes(file, &index.bounds, options)?;
    Ok(index)
}

/// Refuses records that are too large, unless they are left out when they are read.
fn check_sizes(file: &InputFile, bounds: &[u64], options: &TfRecordOptions) -> Result<()> {
    if options.corrupt == CorruptPolicy::Skip {
        return Ok(());
    }
    let len = |pair: &[u64]| pair[1] - pair[0] - FRAME;
    let mut pairs = bounds.windows(2).enumerate();
    match pairs.find(|(_, pair)| len(pair) > options.max_record) {
        Some((record, pair)) => {
            let message = too_large(len(pair), options.max_record);
            Err(file.corrupt_record(record, pair[0], &message))
        }
        None => Ok(()),
    }
}

/// The records up to the end of the file or the first mistake; `damage` is why an unpacked file ends where it does.
fn walk(
    file: &InputFile,
    damage: Option<String>,
    options: &TfRecordOptions,
) -> Result<RecordIndex> {
    let mut reader = BufReader::with_capacity(1 << 16, file.reopen()?);
    let (mut bounds, mut offset, mut wrong) = (vec![0], 0, None);
    while offset < file.len() && wrong.is_none() {
        match next(file, &mut reader, offset)? {
            Ok(end) => {
                offset = end;
                bounds.push(end);
            }
            Err(message) => wrong = Some(message),
        }
    }
    wrong = damage.or(wrong);
    if let (Some(message), CorruptPolicy::Fail) = (&wrong, options.corrupt) {
        return Err(file.corrupt_record(bounds.len() - 1, offset, message));
    }
    Ok(RecordIndex { bounds, wrong })
}

/// The end of the record at `offset`, or what is wrong with it.
fn next(
    file: &InputFile,
    reader: &mut BufReader<fs::File>,
    offset: u64,
) -> Result<std::result::Result<u64, String>> {
    let left = file.len() - offset;
    let mut header = [0; HEADER];
    if left < FRAME {
        return Ok(Err(cut(&format!(
            "{left} bytes are left, a record has at least {FRAME}"
        ))));
    }
    reader
        .read_exact(&mut header)
        .map_err(|error| io(file.path(), "read", error))?;
    let len = match data_len(&header) {
        Ok(len) => len,
        Err(message) => return Ok(Err(message)),
    };
    if len > left - FRAME {
        return Ok(Err(cut(&format!(
            "the record has {len} bytes of data, {} are left",
            left - FRAME
        ))));
    }
    let rest = (len + FRAME) as i64 - HEADER as i64;
    reader
        .seek_relative(rest)
        .map_err(|error| io(file.path(), "read", error))?;
    Ok(Ok(offset + len + FRAME))
}

/// How a file is compressed that does not begin with a record.
pub(super) fn compression(file: &InputFile) -> Result<Option<Compression>> {
    let mut start = vec![0; (file.len() as usize).min(HEADER)];
    file.read_at(&mut start, 0)?;
    let is_record = start.len() == HEADER && data_len(&start).is_ok();
    Ok(Compression::of(&start).filter(|_| !is_record))
}

fn cut(found: &str) -> String {
    format!("the file was cut: {found}; copy it again, or choose to skip corrupt records")
}

fn kept_at(file: &InputFile, cache: &IndexCache) -> Option<PathBuf> {
    let path = match cache {
        _ if file.len() < MIN_BYTES || file.is_unpacked() => return None,
        IndexCache::Off => return None,
        IndexCache::Beside => file.path().to_owned(),
        IndexCache::Folder(folder) => {
            let whole = fs::canonicalize(file.path()).ok()?;
            let key = crc32c::crc32c(whole.as_os_str().as_encoded_bytes());
            let name = file.path().file_name()?.to_string_lossy().into_owned();
            folder.join(format!("{name}-{key:08x}"))
        }
    };
    let mut path = path.into_os_string();
    path.push(".");
    path.push(INDEX_ENDING);
    Some(path.into())
}

/// Magic, size and time of the file, the bounds, and a checksum of all that.
fn keep(path: &PathBuf, file: &InputFile, bounds: &[u64]) -> std::io::Result<()> {
    let stamp = file.stamp();
    let mut bytes = MAGIC.to_vec();
    for number in [stamp.len, stamp.modified].iter().chain(bounds) {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    // With its ending, by which patterns of data leave it out.
    let partial = path.with_extension(format!("{}.{INDEX_ENDING}", this_process()));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let kept = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    if kept.is_err() {
        let _ = fs::remove_file(&partial);
    }
    kept
}

/// The kept bounds, if they are of the file as it is now.
fn read_kept(path: &PathBuf, file: &InputFile) -> Option<Vec<u64>> {
    // The longest index is the one of a file of empty records.
    let most = (file.len() / FRAME + 1) * 8 + 28;
    if fs::metadata(path).ok()?.len() > most {
        return None;
    }
    bounds_in(
        &fs::read(path).ok()?,
        file.stamp().len,
        file.stamp().modified,
    )
}

fn bounds_in(bytes: &[u8], len: u64, modified: u64) -> Option<Vec<u64>> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    let numbers = body.strip_prefix(MAGIC)?;
    if u32::from_le_bytes(*crc) != crc32c::crc32c(body) || numbers.len() % 8 != 0 {
        return None;
    }
    let mut numbers = numbers
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
    let same = numbers.next() == Some(len) && numbers.next() == Some(modified);
    let bounds: Vec<u64> = numbers.collect();
    let apart = bounds
        .windows(2)
        .all(|pair| pair[1] >= pair[0].saturating_add(FRAME));
    let ends = bounds.first() == Some(&0) && bounds.last() == Some(&len);
    (same && apart && ends).then_some(bounds)
}
