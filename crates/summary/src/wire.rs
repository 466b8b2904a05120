//! Reading messages in the encoding of protocol buffers, of which nothing is trusted.

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wire<'a> {
    /// A whole number.
    Varint(u64),
    /// Eight bytes.
    Fixed64([u8; 8]),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// Four bytes.
    Fixed32([u8; 4]),
}

impl<'a> Wire<'a> {
    /// Text, bytes or a message; empty where the field is a number.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            _ => &[],
        }
    }

    /// Text without what is not UTF-8.
    #[must_use]
    pub fn text(self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// A whole number; 0 where the field is something else.
    #[must_use]
    pub const fn integer(self) -> u64 {
        match self {
            Self::Varint(value) => value,
            _ => 0,
        }
    }

    /// A number of 64 bits; 0 where the field is something else.
    #[must_use]
    pub const fn double(self) -> f64 {
        match self {
            Self::Fixed64(bytes) => f64::from_le_bytes(bytes),
            _ => 0.0,
        }
    }
}

/// The fields of a message with their numbers, up to the first that is malformed.
#[derive(Clone, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of an encoded message.
    #[must_use]
    pub const fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// The last field of this number, which is the one that counts.
    #[must_use]
    pub fn last(message: &'a [u8], number: u64) -> Option<Wire<'a>> {
        let found = Self(message).filter(|(other, _)| *other == number);
        found.last().map(|(_, value)| value)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for place in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(self.take()?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            5 => Wire::Fixed32(self.take()?),
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Wire<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        field
    }
}
