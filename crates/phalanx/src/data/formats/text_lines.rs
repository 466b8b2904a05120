//! Lines of text files, by index.

use std::io::{BufRead, BufReader, Read};

use super::files::{InputFile, files_matching, firsts, io, locate, past_the_end};
use super::{RecordLocation, Records};
use crate::Result;

/// The lines of text files, one file after the other, each without its end (LF or CRLF); empty lines count.
#[derive(Debug)]
pub struct TextLines {
    files: Vec<(InputFile, Vec<u64>)>,
    firsts: Vec<usize>,
    len: usize,
}

impl TextLines {
    /// The files that a pattern names, walked through once to find their lines; no line has more than `max_line` bytes.
    ///
    /// # Errors
    /// As [`files_matching`], when a file cannot be read, or has a longer line.
    pub fn open(pattern: &str, max_line: u64) -> Result<Self> {
        let mut files = Vec::new();
        for file in InputFile::open_all(files_matching(pattern)?)? {
            let bounds = bounds(&file, max_line)?;
            files.push((file, bounds));
        }
        let counts = files.iter().map(|(_, bounds)| bounds.len() - 1);
        let (len, firsts) = (counts.clone().sum(), firsts(counts));
        Ok(Self { files, firsts, len })
    }
}

/// Where each line starts, and where the last ends.
fn bounds(file: &InputFile, max_line: u64) -> Result<Vec<u64>> {
    let mut reader = BufReader::with_capacity(1 << 18, file.reopen()?);
    let (mut bounds, mut line, mut offset) = (vec![0], Vec::new(), 0);
    loop {
        line.clear();
        let mut limited = reader.by_ref().take(max_line.saturating_add(2));
        let read = limited
            .read_until(b'\n', &mut line)
            .map_err(|error| io(file.path(), "read", error))?;
        if read == 0 {
            return Ok(bounds);
        }
        if without_end(&line).len() as u64 > max_line {
            let message = format!(
                "a line has more than {max_line} bytes; check that this is text, or raise max_line"
            );
            return Err(file.corrupt(offset, &message));
        }
        offset += read as u64;
        bounds.push(offset);
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

impl Records for TextLines {
    type Item = String;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, i: usize) -> Result<String> {
        if i >= self.len {
            return Err(past_the_end("line", i, self.len));
        }
        let (at, line) = locate(&self.firsts, i);
        let (file, bounds) = &self.files[at];
        let mut bytes = vec![0; (bounds[line + 1] - bounds[line]) as usize];
        file.read_at(&mut bytes, bounds[line])?;
        bytes.truncate(without_end(&bytes).len());
        String::from_utf8(bytes).map_err(|error| {
            let offset = bounds[line] + error.utf8_error().valid_up_to() as u64;
            file.corrupt(
                offset,
                &format!("line {} is not UTF-8; convert the file", line + 1),
            )
        })
    }

    fn per_file(&self) -> Vec<usize> {
        self.files
            .iter()
            .map(|(_, bounds)| bounds.len() - 1)
            .collect()
    }

    fn place(&self, i: usize) -> RecordLocation {
        let (file, line) = locate(&self.firsts, i);
        RecordLocation {
            file: self.files[file].0.name(),
            place: format!("line {}", line + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::test_folder;

    #[test]
    fn lines_are_read_by_index() {
        let folder = test_folder::create("lines");
        std::fs::write(folder.join("a.txt"), "one\n\nthree\r\n").unwrap();
        std::fs::write(folder.join("b.txt"), b"four\n\xff\nlast").unwrap();
        let pattern = folder.join("*.txt").to_string_lossy().into_owned();
        let lines = TextLines::open(&pattern, 5).unwrap();
        let read: Vec<_> = [0, 1, 2, 3, 5].map(|i| lines.get(i).unwrap()).to_vec();
        assert_eq!(read, ["one", "", "three", "four", "last"]);
        assert_eq!((lines.len(), lines.per_file()), (6, vec![3, 3]));
        let error = lines.get(4).unwrap_err().to_string();
        assert!(
            error.contains("b.txt: byte 5: line 2 is not UTF-8"),
            "{error}"
        );
        let error = TextLines::open(&pattern, 4).unwrap_err().to_string();
        assert!(
            error.contains("a.txt: byte 5: a line has more than 4"),
            "{error}"
        );
        assert_eq!(lines.place(4).place, "line 2");
    }
}
