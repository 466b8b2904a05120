//! The wire format of protocol buffers: fields of a message, bounds checked, nothing copied.

/// What is wrong with a message, and where in the whole of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedMessage {
    pub(super) offset: usize,
    pub(super) message: String,
}

/// What is read of a message.
pub(super) type WireResult<T> = Result<T, MalformedMessage>;

/// The fields of a message, one after the other; ends after the first mistake.
pub(super) struct FieldReader<'a> {
    bytes: &'a [u8],
    /// Where `bytes` starts in the whole message.
    offset: usize,
}

/// The value of a field.
#[derive(Clone, Copy)]
pub(super) enum WireField<'a> {
    Varint { value: u64, offset: usize },
    Fixed64 { offset: usize },
    Bytes { bytes: &'a [u8], offset: usize },
    Fixed32 { value: u32, offset: usize },
}

impl<'a> FieldReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// The next number in base 128; `None` at the end.
    pub(super) fn varint(&mut self) -> WireResult<Option<u64>> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let mut value = 0;
        for (i, &byte) in self.bytes.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            if i == 9 && byte > 1 {
                break;
            }
            value |= bits << (7 * i);
            if byte < 0x80 {
                self.skip(i + 1);
                return Ok(Some(value));
            }
        }
        let message = match self.bytes.len() {
            0..10 => "a number is cut off",
            _ => "a number has more than 64 bits",
        };
        Err(self.malformed(message.into()))
    }

    fn some_varint(&mut self, what: &str) -> WireResult<u64> {
        self.varint()?
            .ok_or_else(|| self.malformed(format!("the bytes end before {what}")))
    }

    fn field(&mut self) -> WireResult<Option<(u64, WireField<'a>)>> {
        let start = self.offset;
        let Some(tag) = self.varint()? else {
            return Ok(None);
        };
        let offset = self.offset;
        let number = tag >> 3;
        if number == 0 || number > 0x1fff_ffff {
            let message = format!("field number {number}, expected 1 to 536870911");
            return Err(MalformedMessage {
                offset: start,
                message,
            });
        }
        let field = match tag & 7 {
            0 => WireField::Varint {
                value: self.some_varint("a number")?,
                offset,
            },
            1 => {
                self.take(8)?;
                WireField::Fixed64 { offset }
            }
            2 => {
                let len = self.some_varint("a length")?;
                if len > self.bytes.len() as u64 {
                    let message =
                        format!("{len} bytes are announced, {} are left", self.bytes.len());
                    return Err(MalformedMessage { offset, message });
                }
                let offset = self.offset;
                let bytes = self.take(len as usize)?;
                WireField::Bytes { bytes, offset }
            }
            5 => {
                let bytes = self.take(4)?.try_into().expect("4 bytes");
                WireField::Fixed32 {
                    value: u32::from_le_bytes(bytes),
                    offset,
                }
            }
            wire_type => {
                let message = format!("wire type {wire_type}, expected 0, 1, 2 or 5");
                return Err(MalformedMessage {
                    offset: start,
                    message,
                });
            }
        };
        Ok(Some((number, field)))
    }

    fn take(&mut self, len: usize) -> WireResult<&'a [u8]> {
        let Some((taken, _)) = self.bytes.split_at_checked(len) else {
            return Err(self.malformed(format!(
                "{len} bytes are needed, {} are left",
                self.bytes.len()
            )));
        };
        self.skip(len);
        Ok(taken)
    }

    fn skip(&mut self, len: usize) {
        self.bytes = &self.bytes[len..];
        self.offset += len;
    }

    fn malformed(&self, message: String) -> MalformedMessage {
        let offset = self.offset;
        MalformedMessage { offset, message }
    }
}

impl<'a> Iterator for FieldReader<'a> {
    type Item = WireResult<(u64, WireField<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.field().transpose();
        if matches!(field, Some(Err(_))) {
            self.bytes = &[];
        }
        field
    }
}

impl<'a> WireField<'a> {
    pub(super) fn bytes(self, what: &str) -> WireResult<&'a [u8]> {
        match self {
            WireField::Bytes { bytes, .. } => Ok(bytes),
            other => Err(other.malformed(format!("{what} has a number, expected bytes"))),
        }
    }

    /// The fields of the message that the field holds.
    pub(super) fn message(self, what: &str) -> WireResult<FieldReader<'a>> {
        let bytes = self.bytes(what)?;
        let offset = self.offset();
        Ok(FieldReader { bytes, offset })
    }

    pub(super) fn malformed(self, message: String) -> MalformedMessage {
        let offset = self.offset();
        MalformedMessage { offset, message }
    }

    const fn offset(self) -> usize {
        match self {
            WireField::Varint { offset, .. }
            | WireField::Fixed64 { offset }
            | WireField::Bytes { offset, .. }
            | WireField::Fixed32 { offset, .. } => offset,
        }
    }
}

/// Appends a number in base 128.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes of a number in base 128.
pub(super) const fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Appends a field of bytes.
pub(super) fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(out, u64::from(field << 3 | 2));
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            assert_eq!(FieldReader::new(&bytes).varint(), Ok(Some(value)));
            assert!(
                value < 128
                    || FieldReader::new(&bytes[..bytes.len() - 1])
                        .varint()
                        .is_err()
            );
        }
    }
}
