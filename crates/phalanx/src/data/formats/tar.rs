//! The members of a plain tar file: where the bytes of each are. Nothing is unpacked.

use crate::Result;

const BLOCK: u64 = 512;
/// The most bytes of a long name or of a pax header.
const MAX_HEADER: u64 = 1 << 16;

/// A regular file in a tar file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarMember {
    /// Its path in the archive.
    pub path: String,
    /// Where its bytes start.
    pub offset: u64,
    /// Number of its bytes.
    pub size: u64,
}

/// What is wrong, and at which byte.
pub(super) type TarError = (u64, String);

/// The regular files of an archive, one after the other; ends after the first mistake.
pub(super) struct TarReader<F> {
    len: u64,
    read_at: F,
    offset: u64,
    ended: bool,
    /// From a header before the member's own.
    long_path: Option<String>,
    long_size: Option<u64>,
}

impl<F: Fn(&mut [u8], u64) -> Result<()>> TarReader<F> {
    /// The members of `len` bytes that `read_at` reads.
    pub(super) const fn new(len: u64, read_at: F) -> Self {
        Self {
            len,
            read_at,
            offset: 0,
            ended: false,
            long_path: None,
            long_size: None,
        }
    }

    /// The next regular file; outside is what the reader refuses, inside what is wrong with the bytes.
    fn advance(&mut self) -> Result<std::result::Result<Option<TarMember>, TarError>> {
        while self.offset < self.len {
            let at = self.offset;
            if self.len - at < BLOCK {
                return Ok(Err((
                    at,
                    format!(
                        "{} bytes are left, a header has {BLOCK}; the file was cut, copy it again",
                        self.len - at
                    ),
                )));
            }
            let mut block = [0; BLOCK as usize];
            (self.read_at)(&mut block, at)?;
            if block.iter().all(|&byte| byte == 0) {
                return Ok(Ok(None));
            }
            let (kind, size) = match self.header(&block) {
                Ok(header) => header,
                Err(message) => return Ok(Err((at, message))),
            };
            let start = at + BLOCK;
            if size > self.len - start {
                return Ok(Err((
                    at,
                    format!(
                        "the member has {size} bytes, {} are left; the file was cut, copy it again",
                        self.len - start
                    ),
                )));
            }
            // The padding of the last member may be missing.
            self.offset = (start + size.next_multiple_of(BLOCK)).min(self.len);
            match kind {
                b'0' | 0 | b'7' => {
                    let path = self.long_path.take().unwrap_or_else(|| path_of(&block));
                    return Ok(Ok(Some(TarMember {
                        path,
                        offset: start,
                        size,
                    })));
                }
                b'L' | b'x' => {
                    if let Err(message) = self.extension(kind, start, size)? {
                        return Ok(Err((at, message)));
                    }
                }
                // Global headers, folders, links: no files. What was said of them before is not of the next member.
                b'g' => {}
                _ => self.long_path = None,
            }
        }
        Ok(Ok(None))
    }

    /// The kind of a member and its size.
    fn header(&mut self, block: &[u8; 512]) -> std::result::Result<(u8, u64), String> {
        let stored = number(&block[148..156])
            .ok_or("the checksum is no octal number; check that this is a tar file")?;
        let sum: u64 = block
            .iter()
            .enumerate()
            .map(|(at, &byte)| {
                if (148..156).contains(&at) {
                    32
                } else {
                    u64::from(byte)
                }
            })
            .sum();
        if sum != stored {
            return Err(if block.starts_with(&[0x1f, 0x8b]) {
                "the file is compressed with gzip, expected a plain tar file; decompress it first"
                    .into()
            } else {
                format!(
                    "the checksum of the header is {sum}, expected {stored}; check that this is a tar file, or copy it again"
                )
            });
        }
        let size = number(&block[124..136]).ok_or("the size is no number; write the file again")?;
        let kind = block[156];
        let size = if matches!(kind, b'L' | b'x' | b'g') {
            size
        } else {
            self.long_size.take().unwrap_or(size)
        };
        Ok((kind, size))
    }

    /// Reads a header that belongs to the next member: a GNU long name, or pax records.
    fn extension(
        &mut self,
        kind: u8,
        start: u64,
        size: u64,
    ) -> Result<std::result::Result<(), String>> {
        if size > MAX_HEADER {
            return Ok(Err(format!(
                "a long header has {size} bytes, expected at most {MAX_HEADER}; write the file again"
            )));
        }
        let mut bytes = vec![0; size as usize];
        (self.read_at)(&mut bytes, start)?;
        if kind == b'L' {
            self.long_path = Some(text(&bytes));
            return Ok(Ok(()));
        }
        for record in pax_records(&bytes) {
            let Some((key, value)) = record else {
                return Ok(Err("a pax header is malformed; write the file again".into()));
            };
            match key {
                b"path" => self.long_path = Some(String::from_utf8_lossy(value).into_owned()),
                b"size" => match std::str::from_utf8(value)
                    .ok()
                    .and_then(|size| size.parse().ok())
                {
                    Some(size) => self.long_size = Some(size),
                    None => {
                        return Ok(Err(
                            "the size in a pax header is no number; write the file again".into(),
                        ));
                    }
                },
                _ => {}
            }
        }
        Ok(Ok(()))
    }
}

impl<F: Fn(&mut [u8], u64) -> Result<()>> Iterator for TarReader<F> {
    type Item = Result<std::result::Result<TarMember, TarError>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance();
        self.ended = !matches!(next, Ok(Ok(Some(_))));
        match next {
            Ok(Ok(member)) => member.map(|member| Ok(Ok(member))),
            Ok(Err(wrong)) => Some(Ok(Err(wrong))),
            Err(error) => Some(Err(error)),
        }
    }
}

/// Octal digits between spaces and zero bytes, or big endian after a first bit that is set.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_last_chunk::<8>()?;
        let (first, zeros) = high.split_first()?;
        let none = *first == 0x80 && zeros.iter().all(|&byte| byte == 0);
        return none.then(|| u64::from_be_bytes(*low));
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    if digits.is_empty() {
        return Some(0);
    }
    let octal = digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    octal.then(|| u64::from_str_radix(digits, 8).ok()).flatten()
}

fn path_of(block: &[u8; 512]) -> String {
    let name = text(&block[..100]);
    let prefix = if &block[257..263] == b"ustar\0" {
        text(&block[345..500])
    } else {
        String::new()
    };
    if prefix.is_empty() {
        name
    } else {
        format!("{prefix}/{name}")
    }
}

/// The bytes up to the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Records `LENGTH KEY=VALUE\n`, where the length counts the whole record; `None` for a malformed one.
fn pax_records(mut bytes: &[u8]) -> impl Iterator<Item = Option<(&[u8], &[u8])>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let record = pax_record(bytes);
        bytes = record.map_or(&[], |(_, _, rest)| rest);
        Some(record.map(|(key, value, _)| (key, value)))
    })
}

fn pax_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|&byte| byte == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let (record, rest) = bytes.split_at_checked(len)?;
    let body = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|&byte| byte == b'=')?;
    Some((&body[..equals], &body[equals + 1..], rest))
}

/// The regular files of a tar file in memory.
///
/// # Errors
/// The offset and the reason of the first mistake.
pub fn tar_members(bytes: &[u8]) -> std::result::Result<Vec<TarMember>, (u64, String)> {
    let read = |into: &mut [u8], offset: u64| {
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        Ok(())
    };
    let members = TarReader::new(bytes.len() as u64, read);
    members
        .map(|member| member.expect("memory can be read"))
        .collect()
}

#[cfg(test)]
pub(super) mod testing {
    /// A member with its header, as ustar.
    pub(crate) fn member(path: &str, bytes: &[u8]) -> Vec<u8> {
        of_kind(b'0', path, bytes)
    }

    pub(crate) fn of_kind(kind: u8, path: &str, bytes: &[u8]) -> Vec<u8> {
        let mut header = [0; 512];
        header[..path.len()].copy_from_slice(path.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        header[156] = kind;
        header[257..263].copy_from_slice(b"ustar\0");
        finish(&mut header);
        let padding = bytes.len().next_multiple_of(512) - bytes.len();
        [&header[..], bytes, &vec![0; padding]].concat()
    }

    /// Writes the checksum of a header.
    pub(crate) fn finish(header: &mut [u8]) {
        header[148..156].fill(b' ');
        let sum: u32 = header[..512].iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }

    pub(crate) fn archive(members: &[Vec<u8>]) -> Vec<u8> {
        [&members.concat()[..], &[0; 1024]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{archive, finish, member, of_kind};
    use super::*;

    fn names(bytes: &[u8]) -> Vec<(String, u64)> {
        tar_members(bytes)
            .unwrap()
            .into_iter()
            .map(|member| (member.path, member.size))
            .collect()
    }

    #[test]
    fn long_names_sizes_and_folders_are_understood() {
        let long = "x".repeat(200);
        let mut prefixed = member("name", b"1");
        prefixed[345..350].copy_from_slice(b"a/b/c");
        finish(&mut prefixed);
        let mut binary = member("binary", &[7; 3]);
        binary[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        finish(&mut binary);
        let bytes = archive(&[
            of_kind(b'5', "folder/", b""),
            of_kind(b'L', "././@LongLink", format!("{long}\0").as_bytes()),
            member("short", b"22"),
            of_kind(b'g', "global", b"22 comment=not a file\n"),
            of_kind(
                b'x',
                "pax",
                "19 path=d/\u{e9}\u{e9}.bin\n9 size=4\n".as_bytes(),
            ),
            member("other", b"4444"),
            prefixed,
            binary,
        ]);
        let expected = [
            (&*long, 2),
            ("d/éé.bin", 4),
            ("a/b/c/name", 1),
            ("binary", 3),
        ];
        assert_eq!(
            names(&bytes),
            expected.map(|(path, size)| (path.to_owned(), size))
        );
        // Without the end mark and without the last padding.
        let unpadded = &archive(&[member("a", b"1")])[..513];
        assert_eq!(names(unpadded), [("a".to_owned(), 1)]);
        assert_eq!(names(&[]), []);
    }

    #[test]
    fn malformed_archives_are_refused_with_the_byte() {
        let good = archive(&[member("a", b"1"), member("b", b"2")]);
        let mut flipped = good.clone();
        flipped[1024] ^= 1;
        let mut size = good.clone();
        size[124..136].copy_from_slice(b"77777777777\0");
        finish(&mut size);
        let mut no_number = good.clone();
        no_number[130] = b'9';
        finish(&mut no_number);
        let gzip = [&[0x1f, 0x8b][..], &[b' '; 600]].concat();
        let pax = archive(&[of_kind(b'x', "pax", b"99 path=a\n"), member("a", b"")]);
        let long = archive(&[of_kind(b'L', "long", &vec![b'x'; 70_000]), member("a", b"")]);
        let mut binary_sum = good.clone();
        binary_sum[148] = 0x80;
        let cases = [
            (binary_sum, 0, "the checksum is no octal number; "),
            (flipped, 1024, "the checksum of the header"),
            (good[..1300].to_vec(), 1024, "276 bytes are left"),
            (size, 0, "the member has 8589934591 bytes"),
            (no_number, 0, "the size is no number"),
            (gzip, 0, "compressed with gzip"),
            (pax, 0, "a pax header is malformed"),
            (long, 0, "a long header has 70000"),
        ];
        for (bytes, offset, expected) in cases {
            let (at, message) = tar_members(&bytes).unwrap_err();
            assert!(
                at == offset && message.contains(expected),
                "{at}: {message}"
            );
        }
    }
}
