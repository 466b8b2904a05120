//! Checked access to the bytes of a file.

use std::cell::Cell;

use super::ReadResult;

/// The file, and a budget for reading it.
///
/// A damaged or malicious file may send a reader over the same bytes again and again. Every read is paid for from a budget of a
/// few times the size of the file, so that reading always ends.
pub(super) struct FileBytes<'a> {
    bytes: &'a [u8],
    budget: Cell<u64>,
}

/// How often the whole file may be read.
const TIMES: u64 = 16;
/// The cost of each read besides its bytes, and the budget of an empty file.
const LOOK: u64 = 16;
const FIRST: u64 = 1 << 20;

impl<'a> FileBytes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let budget = (bytes.len() as u64).saturating_mul(TIMES) + FIRST;
        Self {
            bytes,
            budget: Cell::new(budget),
        }
    }

    /// `len` bytes at an address.
    pub(super) fn at(&self, address: u64, len: u64) -> ReadResult<&'a [u8]> {
        let all = self.bytes.len() as u64;
        if address > all || len > all - address {
            return Err(format!(
                "{len} bytes at {address} are not in the file, which has {all}; copy it again"
            ));
        }
        self.charge(len)?;
        // Both are within the file, whose length is a usize.
        Ok(&self.bytes[address as usize..][..len as usize])
    }

    /// Takes the cost of reading `len` bytes, or of unpacking to `len` bytes, out of the budget.
    pub(super) fn charge(&self, len: u64) -> ReadResult<()> {
        let left = self.budget.get().checked_sub(len.saturating_add(LOOK));
        let left = left.ok_or("its parts refer to one another without end; save it again")?;
        self.budget.set(left);
        Ok(())
    }

    /// What comes from an address on, to be read by a cursor: at most `len` bytes, fewer at the end of the file.
    pub(super) fn from(&self, address: u64, len: u64) -> ReadResult<Cursor<'a>> {
        let rest = (self.bytes.len() as u64).saturating_sub(address);
        self.at(address, len.min(rest)).map(Cursor)
    }
}

/// Bytes read one after another.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, len: usize) -> ReadResult<&'a [u8]> {
        let Some((taken, rest)) = self.0.split_at_checked(len) else {
            let left = self.0.len();
            return Err(format!("{len} bytes expected where {left} are left"));
        };
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn skip(&mut self, len: usize) -> ReadResult<()> {
        self.take(len).map(|_| ())
    }

    /// A number of `len` bytes, at most 8.
    pub(super) fn number(&mut self, len: usize) -> ReadResult<u64> {
        let bytes = self.take(len)?;
        let digits = bytes.iter().rev();
        Ok(digits.fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    pub(super) fn u8(&mut self) -> ReadResult<u8> {
        Ok(self.number(1)? as u8)
    }

    pub(super) fn u16(&mut self) -> ReadResult<u16> {
        Ok(self.number(2)? as u16)
    }

    pub(super) fn u32(&mut self) -> ReadResult<u32> {
        Ok(self.number(4)? as u32)
    }

    pub(super) fn u64(&mut self) -> ReadResult<u64> {
        self.number(8)
    }

    /// Checks the letters by which a structure begins.
    pub(super) fn expect(&mut self, letters: &str) -> ReadResult<()> {
        match self.take(letters.len())? {
            found if found == letters.as_bytes() => Ok(()),
            _ => Err(format!("expected `{letters}`, and found something else")),
        }
    }
}

/// Text up to the first zero byte.
pub(super) fn terminated(bytes: &[u8]) -> ReadResult<String> {
    let end = bytes.iter().position(|&byte| byte == 0);
    let text = std::str::from_utf8(&bytes[..end.unwrap_or(bytes.len())]);
    text.map(str::to_owned)
        .map_err(|_| "a name is not UTF-8".into())
}
