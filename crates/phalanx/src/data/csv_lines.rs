//! Lines of CSV text and their fields: decompressed, decoded and bounded.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

use super::CsvOptions;
use crate::{Error, Result};

/// A line longer than this many bytes per allowed column is no row of numbers.
const FIELD_BYTES: u64 = 64;
/// The byte-order mark of UTF-8.
const UTF8_MARK: &[u8] = &[0xef, 0xbb, 0xbf];
/// Bytes of a found value that an error shows.
const SHOWN: usize = 40;

/// Where a row stands in its file, for errors.
pub(super) trait RowPlace {
    /// An error at the current row.
    fn error(&self, message: &str) -> Error;

    /// An error at a column of the current row, with the column's name if it has one.
    fn error_at(&self, column: usize, name: &str, message: &str) -> Error;
}

/// Lines of text with their numbers, decompressed and bounded.
pub(super) struct CsvLines<'a> {
    reader: Box<dyn BufRead + 'a>,
    name: &'a str,
    number: u64,
    /// The line where the row begins.
    row: u64,
    /// Blank lines just before it.
    blank: u64,
    bytes: u64,
    max_bytes: u64,
    max_line: u64,
    delimiter: char,
    /// Whether numbers have a comma where others have a point.
    has_decimal_commas: bool,
    gzip: bool,
}

impl<'a> CsvLines<'a> {
    pub(super) fn open(
        mut reader: impl Read + 'a,
        name: &'a str,
        options: &CsvOptions,
    ) -> Result<Self> {
        let mut start = Vec::new();
        reader
            .by_ref()
            .take(2)
            .read_to_end(&mut start)
            .map_err(|source| io_error(name, source))?;
        let gzip = start == [0x1f, 0x8b];
        let whole = BufReader::with_capacity(1 << 16, Cursor::new(start.clone()).chain(reader));
        let lines = Self {
            reader: if gzip {
                Box::new(BufReader::with_capacity(
                    1 << 16,
                    MultiGzDecoder::new(whole),
                ))
            } else {
                Box::new(whole)
            },
            name,
            number: 0,
            row: 0,
            blank: 0,
            has_decimal_commas: options.decimal == ',',
            bytes: 0,
            max_bytes: options.max_bytes,
            max_line: FIELD_BYTES.saturating_mul(options.max_columns.max(1024) as u64),
            delimiter: options.delimiter,
            gzip,
        };
        if name.ends_with(".gz") && !gzip {
            return Err(lines.error("found no gzip data, expected them from the name; rename the file if it is plain text, or compress it"));
        }
        Ok(lines)
    }

    /// Passes over lines, blank ones too.
    pub(super) fn skip(&mut self, count: usize) -> Result<()> {
        let mut bytes = Vec::new();
        for _ in 0..count {
            bytes.clear();
            self.row = self.number + 1;
            if !self.read_bytes(&mut bytes)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads the next line that is not blank, without its end, or the lines of a row whose quoted fields have line breaks; `false` at the end
    /// of the text.
    pub(super) fn read(&mut self, line: &mut String) -> Result<bool> {
        self.blank = 0;
        loop {
            let mut bytes = std::mem::take(line).into_bytes();
            bytes.clear();
            self.row = self.number + 1;
            if !self.read_bytes(&mut bytes)? {
                return Ok(false);
            }
            let breaks = match bytes.contains(&b'"') {
                true => Some(self.read_to_last_quote(&mut bytes)?),
                false => None,
            };
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
            *line = self.decode(bytes)?;
            if breaks.map_or_else(|| line.contains('\r'), |breaks| breaks.has_return) {
                return Err(self.error(
                    "found a carriage return inside the line, expected a line feed after each row; convert the line ends",
                ));
            }
            if !line.trim_matches(' ').is_empty() {
                return Ok(true);
            }
            self.blank += 1;
        }
    }

    /// Does something at each of the blank lines that were passed over before the row.
    pub(super) fn at_blank_lines(
        &mut self,
        mut each: impl FnMut(&Self) -> Result<()>,
    ) -> Result<()> {
        let row = self.row;
        for line in row - self.blank..row {
            self.row = line;
            each(self)?;
        }
        self.row = row;
        Ok(())
    }

    /// Reads on while a quoted field is open at the end of a line.
    fn read_to_last_quote(&mut self, bytes: &mut Vec<u8>) -> Result<LineBreaks> {
        let mut breaks = LineBreaks::default();
        if self.number == 1 && bytes.starts_with(UTF8_MARK) {
            breaks.seen = UTF8_MARK.len();
        }
        while breaks.are_quoted(bytes, self.delimiter) {
            if !self.read_bytes(bytes)? {
                return Err(self.error(
                    "found a quote that is not closed before the end of the text; close it, or double quotes inside a field",
                ));
            }
        }
        Ok(breaks)
    }

    /// Adds the next line, so that a row is never longer than a line may be.
    fn read_bytes(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        self.number += 1;
        let left = self.max_bytes - self.bytes;
        let limit = left.min(self.max_line.saturating_sub(bytes.len() as u64));
        let goes_on = !bytes.is_empty();
        let read = self
            .reader
            .by_ref()
            .take(limit.saturating_add(1))
            .read_until(b'\n', bytes);
        let read = read.map_err(|source| self.read_error(source))? as u64;
        if read > left {
            return Err(self.error(&format!(
                "found more than {} bytes of text; shorten the file, or raise max_bytes",
                self.max_bytes
            )));
        }
        if read > limit && goes_on {
            return Err(self.error(&format!(
                "found a quote that is not closed within {} bytes; close it, or double quotes inside a field",
                self.max_line
            )));
        }
        if read > limit {
            return Err(self.error(&format!(
                "found a line of more than {limit} bytes, expected a row of numbers; \
                 check the line ends and that the file is text, or raise max_columns"
            )));
        }
        self.bytes += read;
        Ok(read > 0)
    }

    fn decode(&self, mut bytes: Vec<u8>) -> Result<String> {
        if self.row == 1 {
            if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
                return Err(
                    self.error("found text in utf-16, expected utf-8; save the file as utf-8")
                );
            }
            if bytes.starts_with(UTF8_MARK) {
                bytes.drain(..UTF8_MARK.len());
            }
        }
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            self.error(&format!(
                "found byte 0x{:02x} at position {}, expected utf-8 text; save the file as utf-8",
                error.as_bytes()[at],
                at + 1
            ))
        })
    }

    /// The fields of a line, quotes removed, and numbers with a point.
    pub(super) fn fields<'l>(&self, line: &'l str) -> Result<Vec<Cow<'l, str>>> {
        let mut fields = self.split(line)?;
        if self.has_decimal_commas {
            for field in &mut fields {
                if let Some(number) = with_point(field) {
                    *field = number.into();
                }
            }
        }
        Ok(fields)
    }

    fn split<'l>(&self, line: &'l str) -> Result<Vec<Cow<'l, str>>> {
        if !line.contains('"') {
            return Ok(line.split(self.delimiter).map(Cow::Borrowed).collect());
        }
        let mut fields = Vec::new();
        let mut rest = Some(line);
        while let Some(text) = rest {
            let (field, after) = match text.strip_prefix('"') {
                Some(quoted) => unquote(quoted, self.delimiter),
                None => Ok(unquoted(text, self.delimiter)),
            }
            .map_err(|message| self.error_at(fields.len(), "", message))?;
            fields.push(field);
            rest = after;
        }
        Ok(fields)
    }

    fn error_in(&self, place: String, message: &str) -> Error {
        Error::Data {
            source_name: self.name.to_owned(),
            place,
            message: message.to_owned(),
        }
    }

    fn read_error(&self, source: std::io::Error) -> Error {
        use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match source.kind() {
            UnexpectedEof if self.gzip => {
                self.error("the gzip data end too early; copy or download the file again")
            }
            InvalidData | InvalidInput if self.gzip => self.error(&format!(
                "the gzip data are damaged ({source}); copy or download the file again"
            )),
            _ => io_error(self.name, source),
        }
    }
}

impl RowPlace for CsvLines<'_> {
    fn error(&self, message: &str) -> Error {
        self.error_in(format!("line {}", self.row.max(1)), message)
    }

    fn error_at(&self, column: usize, name: &str, message: &str) -> Error {
        let named = if name.is_empty() {
            String::new()
        } else {
            format!(" ({})", shown(name))
        };
        self.error_in(
            format!("line {}, column {}{named}", self.row, column + 1),
            message,
        )
    }
}

/// What was seen of the quotes of a row, so that a line break inside of them does not end it.
#[derive(Default)]
struct LineBreaks {
    /// The bytes that were looked at.
    seen: usize,
    quote: Quote,
    /// Whether a carriage return stands outside of quotes and is no part of a line's end.
    has_return: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Quote {
    /// Before a field, where a quote opens it.
    #[default]
    Before,
    Open,
    /// After a quote that closes the field, or is the first of two that stand for one.
    Closed,
    /// In a field without quotes.
    Plain,
}

impl LineBreaks {
    /// Whether the row, of which these bytes are known, ends inside of quotes.
    fn are_quoted(&mut self, row: &[u8], delimiter: char) -> bool {
        while let Some(&byte) = row.get(self.seen) {
            self.seen += 1;
            self.quote = match (self.quote, byte) {
                (Quote::Before | Quote::Closed, b'"') => Quote::Open,
                (Quote::Open, b'"') => Quote::Closed,
                (Quote::Open, _) => Quote::Open,
                (_, byte) if char::from(byte) == delimiter => Quote::Before,
                (_, b'\r') => {
                    let next = row.get(self.seen);
                    self.has_return |= next.is_some_and(|&next| next != b'\n');
                    Quote::Plain
                }
                _ => Quote::Plain,
            };
        }
        self.quote == Quote::Open
    }
}

type SplitField<'l> = std::result::Result<(Cow<'l, str>, Option<&'l str>), &'static str>;

/// The field after an opening quote, and the text after the delimiter that follows it.
fn unquote(text: &str, delimiter: char) -> SplitField<'_> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest
            .split_once('"')
            .ok_or("found a quote that is not closed; close it, or double quotes inside a field")?;
        field.push_str(part);
        if let Some(doubled) = after.strip_prefix('"') {
            field.push('"');
            rest = doubled;
        } else if after.is_empty() {
            return Ok((field.into(), None));
        } else if let Some(next) = after.strip_prefix(delimiter) {
            return Ok((field.into(), Some(next)));
        } else {
            return Err(
                "found text after a closing quote, expected the delimiter; remove the text, or double quotes inside a field",
            );
        }
    }
}

/// The field of a text that does not start with a quote, which may have some (`a 5" screen`).
fn unquoted(text: &str, delimiter: char) -> (Cow<'_, str>, Option<&str>) {
    match text.split_once(delimiter) {
        Some((field, after)) => (field.into(), Some(after)),
        None => (text.into(), None),
    }
}

/// A number with a decimal comma as one with a point: digits, a comma and digits, with a sign and an exponent or without.
fn with_point(field: &str) -> Option<String> {
    let (whole, rest) = field.trim().split_once(',')?;
    let digits = whole.trim_start_matches(['+', '-']);
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = are_digits && rest.starts_with(|first: char| first.is_ascii_digit());
    let number = format!("{whole}.{rest}");
    (is_number && number.parse::<f64>().is_ok()).then_some(number)
}

fn io_error(name: &str, source: std::io::Error) -> Error {
    Error::Io {
        path: name.into(),
        action: "read",
        source,
    }
}

/// A found value as errors show it: quoted, escaped and cut.
pub(super) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN).collect();
    let more = if cut.len() < text.len() { ".." } else { "" };
    format!("{cut:?}{more}")
}
