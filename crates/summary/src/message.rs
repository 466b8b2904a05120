//! Messages in the encoding of protocol buffers: fields with their numbers, in the order of these.

/// The fields of a message so far.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// The bytes of a message.
    #[must_use]
    pub fn of(fill: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut message = Self::default();
        fill(&mut message);
        message.0
    }

    const VARINT: u64 = 0;
    const FIXED_64: u64 = 1;
    const LENGTH: u64 = 2;

    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    /// A field of type `int32`, `int64`, `uint64`, `bool` or of an enumeration.
    pub fn integer(&mut self, field: u64, value: u64) {
        self.key(field, Self::VARINT);
        self.varint(value);
    }

    /// A field of type `double`.
    pub fn double(&mut self, field: u64, value: f64) {
        self.key(field, Self::FIXED_64);
        self.0.extend(value.to_le_bytes());
    }

    /// A field of bytes, or an encoded message.
    pub fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, Self::LENGTH);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    /// A field of text that is left out where it is empty.
    pub fn text_if_any(&mut self, field: u64, value: &str) {
        if !value.is_empty() {
            self.text(field, value);
        }
    }

    /// A field of text.
    pub fn text(&mut self, field: u64, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    /// A field that is a message.
    pub fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }
}
