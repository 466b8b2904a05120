//! Files that are compressed as a whole: unpacked into a temporary file when they are opened, so that they too are read by index.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};

use super::files::{InputFile, io};
use crate::{Error, Result};

/// Bytes that are unpacked at a time.
const CHUNK: usize = 1 << 18;
/// Names tried for the temporary file.
const ATTEMPTS: u32 = 100;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zlib,
}

impl Compression {
    /// The compression that the first bytes of a file speak of; other files may begin with the same bytes.
    pub(super) const fn of(start: &[u8]) -> Option<Self> {
        match *start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            // Deflate in a window of up to 32 KiB, and the check of the two bytes.
            [first, second, ..]
                if first & 0x8f == 8 && u16::from_be_bytes([first, second]) % 31 == 0 =>
            {
                Some(Self::Zlib)
            }
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
        }
    }
}

/// The temporary file of one reader, which has no name and goes with its last handle.
#[derive(Default)]
pub(super) struct Spool {
    file: Option<Arc<File>>,
    len: u64,
}

impl Spool {
    /// Unpacks a file behind those before; what is wrong with it, where it breaks off.
    ///
    /// # Errors
    /// When the file cannot be read, or there is no room for it.
    pub(super) fn unpack(
        &mut self,
        file: InputFile,
        compression: Compression,
    ) -> Result<(InputFile, Option<String>)> {
        let spool = match &self.file {
            Some(spool) => Arc::clone(spool),
            None => Arc::new(temporary()?),
        };
        self.file = Some(Arc::clone(&spool));
        let packed = BufReader::with_capacity(CHUNK, file.reopen()?);
        let mut reader: Box<dyn Read> = match compression {
            Compression::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Compression::Zlib => Box::new(ZlibDecoder::new(packed)),
        };
        let (from, mut chunk, mut wrong) = (self.len, vec![0; CHUNK], None);
        loop {
            match reader.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => {
                    let written = spool.write_all_at(&chunk[..count], self.len);
                    written.map_err(no_room)?;
                    self.len += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_damage(&error) => {
                    wrong = Some(damage(compression, &error));
                    break;
                }
                Err(error) => return Err(io(file.path(), "read", error)),
            }
        }
        Ok((file.unpacked(spool, from, self.len - from), wrong))
    }
}

fn is_damage(error: &std::io::Error) -> bool {
    use ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

fn damage(compression: Compression, error: &std::io::Error) -> String {
    let name = compression.name();
    let found = match error.kind() {
        ErrorKind::UnexpectedEof => format!("the {name} data end too early"),
        _ => format!("the {name} data are damaged ({error})"),
    };
    format!("{found}; copy the file again, or choose to skip corrupt records")
}

fn no_room(source: std::io::Error) -> Error {
    io(
        &std::env::temp_dir(),
        "unpack a compressed file into",
        source,
    )
}

/// A file that nobody else can open.
fn temporary() -> Result<File> {
    let folder = std::env::temp_dir();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos());
    let mut refused = None;
    for attempt in 0..ATTEMPTS {
        let name = format!("phalanx-{}-{now:x}-{attempt}", std::process::id());
        let path = folder.join(name);
        let mut options = OpenOptions::new();
        match options.read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path).map_err(|error| io(&path, "remove", error))?;
                return Ok(file);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => refused = Some(error),
            Err(error) => return Err(no_room(error)),
        }
    }
    Err(no_room(refused.unwrap_or_else(|| ErrorKind::Other.into())))
}
