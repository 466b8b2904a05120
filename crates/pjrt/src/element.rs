//! Element types of buffers.

/// Type of the elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the element types of StableHLO")]
pub enum ElementType {
    Pred,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    F32,
    F64,
    Bf16,
}

/// One row per type: the type, `PJRT_Buffer_Type`, `XLA_FFI_DataType`, bytes, name in StableHLO text.
const ROWS: [(ElementType, i32, i32, usize, &str); 13] = [
    (ElementType::Pred, 1, 1, 1, "i1"),
    (ElementType::I8, 2, 2, 1, "i8"),
    (ElementType::I16, 3, 3, 2, "i16"),
    (ElementType::I32, 4, 4, 4, "i32"),
    (ElementType::I64, 5, 5, 8, "i64"),
    (ElementType::U8, 6, 6, 1, "ui8"),
    (ElementType::U16, 7, 7, 2, "ui16"),
    (ElementType::U32, 8, 8, 4, "ui32"),
    (ElementType::U64, 9, 9, 8, "ui64"),
    (ElementType::F16, 10, 10, 2, "f16"),
    (ElementType::F32, 11, 11, 4, "f32"),
    (ElementType::F64, 12, 12, 8, "f64"),
    (ElementType::Bf16, 13, 16, 2, "bf16"),
];

impl ElementType {
    /// Bytes of one element in host memory.
    #[must_use]
    pub fn bytes(self) -> usize {
        ROWS[self as usize].3
    }

    /// Name of the type in StableHLO text, such as `ui32`.
    #[must_use]
    pub fn name(self) -> &'static str {
        ROWS[self as usize].4
    }

    /// The type of this name in StableHLO text, if PJRT has it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.4 == name).map(|row| row.0)
    }

    pub(crate) fn to_pjrt(self) -> i32 {
        ROWS[self as usize].1
    }

    pub(crate) fn from_pjrt(value: i32) -> Option<Self> {
        ROWS.iter().find(|row| row.1 == value).map(|row| row.0)
    }

    pub(crate) fn from_ffi(value: i32) -> Option<Self> {
        ROWS.iter().find(|row| row.2 == value).map(|row| row.0)
    }
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type with the memory layout of an element type: every bit pattern is a value.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The element type.
    const TYPE: ElementType;
}

/// A number in the format bfloat16, by its bits: the upper half of an f32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

macro_rules! elements {
    ($($ty:ty: $element:ident),*) => {
        $(impl sealed::Sealed for $ty {}
        impl Element for $ty { const TYPE: ElementType = ElementType::$element; })*
    };
}
elements!(i8: I8, i16: I16, i32: I32, i64: I64, u8: U8, u16: U16, u32: U32, u64: U64, f32: F32, f64: F64, Bf16: Bf16);

/// The bytes of a slice of elements, for [`Client::buffer`](crate::Client::buffer).
#[must_use]
pub fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: an `Element` is a primitive number without padding, and u8 has no alignment requirement.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The elements in `bytes`, copied (native byte order); a remainder shorter than one element is dropped.
#[must_use]
pub fn elements_of<T: Element>(bytes: &[u8]) -> Vec<T> {
    // SAFETY: every bit pattern is a value of an `Element`, the read is unaligned, and each chunk has exactly its size.
    bytes
        .chunks_exact(size_of::<T>())
        .map(|chunk| unsafe { chunk.as_ptr().cast::<T>().read_unaligned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_enum() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.0 as usize, index);
            assert_eq!(ElementType::from_pjrt(row.1), Some(row.0));
            assert_eq!(ElementType::from_ffi(row.2), Some(row.0));
        }
    }

    #[test]
    fn elements_round_trip_through_bytes() {
        let values = [1.5f32, -2.0, f32::MIN_POSITIVE];
        assert_eq!(elements_of::<f32>(bytes_of(&values)), values);
    }
}
