//! Tensors in host memory.

use std::fmt;
use std::sync::Arc;

use half::{bf16, f16};

use crate::{DType, Shape};

/// Bytes of alignment of host tensors: what a CPU device needs to use them without a copy.
pub const HOST_ALIGNMENT: usize = 64;

/// A dense row-major array in host memory; cloning shares the bytes.
#[derive(Clone)]
pub struct HostTensor {
    shape: Shape,
    bytes: HostBytes,
}

/// The bytes of a tensor, in memory that other tensors may share.
#[derive(Clone, Debug)]
pub struct HostBytes {
    memory: Arc<AlignedBytes>,
    start: usize,
    len: usize,
}

impl HostBytes {
    /// The memory that they lie in: it has more bytes where the tensor is rows of another.
    #[must_use]
    pub const fn memory(&self) -> &Arc<AlignedBytes> {
        &self.memory
    }
}

impl From<AlignedBytes> for HostBytes {
    fn from(bytes: AlignedBytes) -> Self {
        Self {
            start: 0,
            len: bytes.len,
            memory: Arc::new(bytes),
        }
    }
}

impl AsRef<[u8]> for HostBytes {
    fn as_ref(&self) -> &[u8] {
        &(*self.memory).as_ref()[self.start..self.start + self.len]
    }
}

/// A byte array whose first byte sits on a [`HOST_ALIGNMENT`] boundary.
#[derive(Debug)]
pub struct AlignedBytes {
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let storage = vec![0u8; len + HOST_ALIGNMENT];
        let start = storage.as_ptr().align_offset(HOST_ALIGNMENT);
        Self {
            storage,
            start,
            len,
        }
    }

    /// A copy of bytes.
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        // Never more than its capacity, so that it stays where it is.
        let mut storage: Vec<u8> = Vec::with_capacity(bytes.len() + HOST_ALIGNMENT);
        let start = storage.as_ptr().align_offset(HOST_ALIGNMENT);
        storage.resize(start, 0);
        storage.extend_from_slice(bytes);
        Self {
            storage,
            start,
            len: bytes.len(),
        }
    }

    /// The bytes, writable.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.len]
    }
}

/// A Rust type that is the host form of a [`DType`].
pub trait Element: Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The element type.
    const DTYPE: DType;
    /// Writes the little-endian bytes of values, until either ends.
    fn write_all(values: &[Self], out: &mut [u8]);
    /// The values of little-endian bytes; bytes at the end that are no whole element count nothing.
    fn read_all(bytes: &[u8]) -> Vec<Self>;
    /// The nearest number; `bool` is 0 or 1.
    fn to_number(self) -> f64;
    /// The nearest value; integers truncate and saturate, and a `bool` is whether the number is not 0.
    fn from_number(number: f64) -> Self;
}

// Loops over arrays of a known size, for each type once: a call for each element is what chunks of slices become where a build does
// not inline the standard library's functions.
macro_rules! element {
    ($($rust:ty => $dtype:ident, $to:expr, $from:expr;)*) => {$(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
            fn write_all(values: &[Self], out: &mut [u8]) {
                let slots = out.as_chunks_mut::<{ size_of::<Self>() }>().0;
                for (slot, value) in slots.iter_mut().zip(values) {
                    *slot = value.to_le_bytes();
                }
            }
            fn read_all(bytes: &[u8]) -> Vec<Self> {
                let elements = bytes.as_chunks::<{ size_of::<Self>() }>().0;
                elements.iter().map(|&bytes| Self::from_le_bytes(bytes)).collect()
            }
            fn to_number(self) -> f64 {
                $to(self)
            }
            fn from_number(number: f64) -> Self {
                $from(number)
            }
        }
    )*};
}
element! {
    f32 => F32, f64::from, |number: f64| number as Self;
    f64 => F64, f64::from, f64::from;
    i32 => I32, f64::from, |number: f64| number as Self;
    i64 => I64, |value: Self| value as f64, |number: f64| number as Self;
    u32 => U32, f64::from, |number: f64| number as Self;
    u8 => U8, f64::from, |number: f64| number as Self;
    f16 => F16, Self::to_f64, |number| Self::from_f32(rounded_to_odd(number));
    bf16 => Bf16, Self::to_f64, |number| Self::from_f32(rounded_to_odd(number));
}

/// The f32 that rounds to the 16-bit float to which the number does: where a number lies between two of f32, the one whose last bit is set,
/// which is no tie of a shorter type (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums: proved algorithms using
/// rounding to odd"). The library's own conversions of f64 forget the last bits of a number, or round twice.
fn rounded_to_odd(number: f64) -> f32 {
    let nearest = number as f32;
    let back = f64::from(nearest);
    if back == number || number.is_nan() {
        return nearest;
    }
    let is_beyond = u32::from(back.abs() > number.abs());
    f32::from_bits((nearest.to_bits() - is_beyond) | 1)
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn write_all(values: &[Self], out: &mut [u8]) {
        for (slot, &value) in out.iter_mut().zip(values) {
            *slot = u8::from(value);
        }
    }
    fn read_all(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&byte| byte != 0).collect()
    }
    fn to_number(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn from_number(number: f64) -> Self {
        number != 0.0
    }
}

impl HostTensor {
    /// A tensor of the given dims and values.
    ///
    /// # Panics
    /// When the number of values is not the product of the dims: a bug of the caller.
    #[must_use]
    pub fn new<T: Element>(dims: impl Into<Vec<usize>>, values: &[T]) -> Self {
        let shape = Shape::new(T::DTYPE, dims);
        assert_eq!(
            shape.len(),
            values.len(),
            "{shape} needs {} values, got {}",
            shape.len(),
            values.len()
        );
        let mut bytes = AlignedBytes::zeroed(shape.byte_len());
        T::write_all(values, bytes.as_mut_slice());
        Self {
            shape,
            bytes: bytes.into(),
        }
    }

    /// A single element.
    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Self {
        Self::new(Vec::new(), &[value])
    }

    /// A tensor of zeros.
    #[must_use]
    pub fn zeros(shape: Shape) -> Self {
        let bytes = AlignedBytes::zeroed(shape.byte_len()).into();
        Self { shape, bytes }
    }

    /// A tensor of one repeated number, converted to the element type.
    #[must_use]
    pub fn full(shape: Shape, value: f64) -> Self {
        let mut element = vec![0u8; shape.dtype.size()];
        write_numbers(shape.dtype, &[value], &mut element);
        let mut bytes = AlignedBytes::zeroed(shape.byte_len());
        for slot in bytes.as_mut_slice().chunks_exact_mut(element.len()) {
            slot.copy_from_slice(&element);
        }
        Self {
            shape,
            bytes: bytes.into(),
        }
    }

    /// A tensor of numbers, converted to the element type (floats to integers truncate, to `Bool`: non-zero).
    ///
    /// # Panics
    /// When the number of values is not the product of the dims: a bug of the caller.
    #[must_use]
    pub fn from_f64(shape: Shape, values: &[f64]) -> Self {
        assert_eq!(shape.len(), values.len(), "values of {shape}");
        let mut bytes = AlignedBytes::zeroed(shape.byte_len());
        write_numbers(shape.dtype, values, bytes.as_mut_slice());
        Self::from_aligned(shape, bytes)
    }

    /// A tensor over little-endian bytes, or `None` when their number does not fit the shape.
    #[must_use]
    pub fn from_bytes(shape: Shape, bytes: &[u8]) -> Option<Self> {
        if shape.checked_byte_len() != Some(bytes.len()) {
            return None;
        }
        Some(Self::from_aligned(shape, AlignedBytes::copied(bytes)))
    }

    /// A tensor over bytes that are already aligned.
    ///
    /// # Panics
    /// When the number of bytes is not the shape's: a bug of the caller.
    #[must_use]
    pub fn from_aligned(shape: Shape, bytes: AlignedBytes) -> Self {
        assert_eq!(shape.byte_len(), bytes.len, "bytes of {shape}");
        Self {
            shape,
            bytes: bytes.into(),
        }
    }

    /// Element type and dims.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Element type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.shape.dtype
    }

    /// Size of each dim.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.shape.dims
    }

    /// The little-endian bytes, row-major.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The shared bytes, for a device that reads them in place.
    #[must_use]
    pub fn shared_bytes(&self) -> HostBytes {
        self.bytes.clone()
    }

    /// The values, or `None` when `T` is not the element type.
    #[must_use]
    pub fn values<T: Element>(&self) -> Option<Vec<T>> {
        (T::DTYPE == self.dtype()).then(|| T::read_all(self.bytes()))
    }

    /// The values of an f32 tensor.
    ///
    /// # Panics
    /// When the element type is another: a bug of the caller. Use [`to_f64`](Self::to_f64) for any type.
    #[must_use]
    pub fn f32s(&self) -> Vec<f32> {
        self.values()
            .unwrap_or_else(|| panic!("f32 values of {}", self.shape))
    }

    /// The values converted to f64, whatever the element type.
    #[must_use]
    pub fn to_f64(&self) -> Vec<f64> {
        read_numbers(self.dtype(), self.bytes())
    }

    /// The values converted to another element type (floats to integers truncate, to `Bool`: non-zero).
    #[must_use]
    pub fn convert(&self, dtype: DType) -> Self {
        if dtype == self.dtype() {
            return self.clone();
        }
        Self::from_f64(self.shape.with_dtype(dtype), &self.to_f64())
    }

    /// The same bytes under other dims, or `None` when the number of elements differs.
    #[must_use]
    pub fn reshape(&self, dims: impl Into<Vec<usize>>) -> Option<Self> {
        let shape = Shape::new(self.dtype(), dims);
        (shape.checked_byte_len() == Some(self.shape.byte_len())).then(|| Self {
            shape,
            bytes: self.bytes.clone(),
        })
    }

    /// Number of rows: the first dim (1 for a scalar).
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shape.dims.first().copied().unwrap_or(1)
    }

    /// Bytes of one row: one index of the first dim.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        let inner: usize = self.shape.dims.iter().skip(1).product();
        inner * self.dtype().size()
    }

    /// Rows `start..end` of the first dim; they share the bytes where they begin on a [`HOST_ALIGNMENT`] boundary, and are
    /// copied where not.
    ///
    /// # Panics
    /// When the range leaves the tensor or the tensor is a scalar: a bug of the caller.
    #[must_use]
    pub fn slice_rows(&self, start: usize, end: usize) -> Self {
        let mut dims = self.shape.dims.clone();
        dims[0] = end - start;
        let row = self.row_bytes();
        let shape = Shape::new(self.dtype(), dims);
        let rows = &self.bytes()[start * row..end * row];
        // Nothing is not worth keeping the whole alive.
        if !(start * row).is_multiple_of(HOST_ALIGNMENT) || rows.is_empty() {
            return Self::from_bytes(shape, rows).expect("rows in range");
        }
        let bytes = HostBytes {
            memory: Arc::clone(&self.bytes.memory),
            start: self.bytes.start + start * row,
            len: rows.len(),
        };
        Self { shape, bytes }
    }

    /// The tensor without its rows, which keeps a copy of the first as its [`stand_in`](Self::stand_in); itself where it has none.
    ///
    /// # Panics
    /// When the tensor is a scalar: a bug of the caller.
    #[must_use]
    pub fn without_rows(&self) -> Self {
        if self.rows() == 0 {
            return self.clone();
        }
        let mut shape = self.shape.clone();
        shape.dims[0] = 0;
        let row = AlignedBytes::copied(&self.bytes()[..self.row_bytes()]);
        let bytes = HostBytes {
            len: 0,
            ..row.into()
        };
        Self { shape, bytes }
    }

    /// The row, `[1, ..]`, that a tensor [`without_rows`](Self::without_rows) keeps, for programs that compute on some row where there is
    /// none.
    #[must_use]
    pub fn stand_in(&self) -> Option<Self> {
        let row = self.bytes.memory.len;
        if self.rows() > 0 || row == 0 || row != self.row_bytes() {
            return None;
        }
        let mut shape = self.shape.clone();
        shape.dims[0] = 1;
        let bytes = HostBytes {
            len: row,
            ..self.bytes.clone()
        };
        Some(Self { shape, bytes })
    }

    /// The tensor with zero rows appended up to `rows` rows.
    ///
    /// # Panics
    /// When the tensor is a scalar or has more rows already: a bug of the caller.
    #[must_use]
    pub fn pad_rows(&self, rows: usize) -> Self {
        assert!(rows >= self.rows(), "{} padded to {rows} rows", self.shape);
        let mut dims = self.shape.dims.clone();
        dims[0] = rows;
        let mut bytes = AlignedBytes::zeroed(rows * self.row_bytes());
        bytes.as_mut_slice()[..self.bytes().len()].copy_from_slice(self.bytes());
        Self::from_aligned(Shape::new(self.dtype(), dims), bytes)
    }
}

/// One tensor where a list is asked for.
impl From<HostTensor> for Vec<HostTensor> {
    fn from(tensor: HostTensor) -> Self {
        vec![tensor]
    }
}

impl PartialEq for HostTensor {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.shape.len().min(8) * self.dtype().size();
        let shown = read_numbers(self.dtype(), &self.bytes()[..shown]);
        let more = if self.shape.len() > 8 { ", .." } else { "" };
        write!(f, "{} {shown:?}{more}", self.shape)
    }
}

/// The work for the Rust type of an element type.
macro_rules! of_type {
    ($dtype:expr, $element:ident => $work:expr) => {
        match $dtype {
            DType::F32 => of_type!(@ f32, $element => $work),
            DType::F64 => of_type!(@ f64, $element => $work),
            DType::F16 => of_type!(@ f16, $element => $work),
            DType::Bf16 => of_type!(@ bf16, $element => $work),
            DType::I32 => of_type!(@ i32, $element => $work),
            DType::I64 => of_type!(@ i64, $element => $work),
            DType::U32 => of_type!(@ u32, $element => $work),
            DType::U8 => of_type!(@ u8, $element => $work),
            DType::Bool => of_type!(@ bool, $element => $work),
        }
    };
    (@ $rust:ty, $element:ident => $work:expr) => {{
        type $element = $rust;
        $work
    }};
}

/// The numbers held by the little-endian bytes of elements.
pub(crate) fn read_numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    of_type!(dtype, T => T::read_all(bytes).into_iter().map(T::to_number).collect())
}

/// Writes numbers as elements; out-of-range integers saturate.
fn write_numbers(dtype: DType, numbers: &[f64], out: &mut [u8]) {
    of_type!(dtype, T => {
        let values: Vec<T> = numbers.iter().map(|&number| T::from_number(number)).collect();
        T::write_all(&values, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_once_to_16_bits() {
        let full = |dtype, number| HostTensor::full(Shape::scalar(dtype), number).to_f64()[0];
        let (bf16, f16) = (DType::Bf16, DType::F16);
        let tie = 1.0 + 2f64.powi(-8);
        for (dtype, number, expected) in [
            (bf16, tie, 1.0),
            (bf16, tie + 2f64.powi(-23), 1.0 + 2f64.powi(-7)),
            (bf16, tie + 2f64.powi(-50), 1.0 + 2f64.powi(-7)),
            (bf16, tie - 2f64.powi(-50), 1.0),
            (f16, 1.0 + 2f64.powi(-11), 1.0),
            (
                f16,
                1.0 + 2f64.powi(-11) + 2f64.powi(-40),
                1.0 + 2f64.powi(-10),
            ),
            (f16, 65519.999, 65504.0),
            (f16, 65520.0, f64::INFINITY),
            (f16, 2f64.powi(-25) + 2f64.powi(-60), 2f64.powi(-24)),
            (bf16, 1e300, f64::INFINITY),
            (bf16, 1e-300, 0.0),
            (bf16, f64::INFINITY, f64::INFINITY),
        ] {
            assert_eq!(full(dtype, number), expected, "{number:?} in {dtype:?}");
            assert_eq!(full(dtype, -number), -expected, "{number:?} in {dtype:?}");
        }
        assert!(full(bf16, f64::NAN).is_nan() && full(f16, f64::NAN).is_nan());
        // All lower halves of an f32, by the rule in integers.
        for lower in 0..=0xffff_u32 {
            let bits = 0x3f80_0000 | lower;
            let nearest = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
            let number = f64::from(f32::from_bits(bits));
            assert_eq!(
                full(bf16, number),
                f64::from(f32::from_bits(nearest)),
                "{bits:x}"
            );
        }
    }

    #[test]
    fn copied_bytes_are_aligned() {
        for length in [0, 1, 63, 64, 65, 4096] {
            let bytes: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut copied = AlignedBytes::copied(&bytes);
            assert_eq!(copied.as_ref(), bytes);
            let place = copied.as_ref().as_ptr();
            assert_eq!(place.align_offset(HOST_ALIGNMENT), 0);
            assert_eq!(copied.as_mut_slice().len(), length);
        }
    }

    #[test]
    fn rows_share_the_bytes_where_they_are_aligned() {
        let values: Vec<f32> = (0..96).map(|i| i as f32).collect();
        let tensor = HostTensor::new([6, 16], &values);
        let rows = tensor.slice_rows(2, 5);
        assert_eq!(rows.f32s(), &values[32..80]);
        assert_eq!(rows.bytes().as_ptr(), tensor.bytes()[128..].as_ptr());
        assert_eq!(rows.shared_bytes().as_ref(), rows.bytes());
        assert_eq!(rows.slice_rows(1, 3).f32s(), &values[48..80]);
        let reshaped = rows.reshape([4, 12]).unwrap();
        assert_eq!(reshaped.f32s(), rows.f32s());
        assert_ne!(
            reshaped.slice_rows(1, 2).bytes().as_ptr(),
            reshaped.bytes()[48..].as_ptr(),
            "not aligned"
        );
        assert_eq!(reshaped.slice_rows(1, 2).f32s(), &values[44..56]);
        assert!(tensor.slice_rows(3, 3).f32s().is_empty());
    }

    #[test]
    fn values_survive_the_round_trip_for_every_dtype() {
        for dtype in DType::ALL {
            let tensor = HostTensor::full(Shape::new(dtype, [3]), 1.0);
            assert_eq!(tensor.to_f64(), [1.0; 3], "{dtype}");
            assert_eq!(tensor.bytes().as_ptr().align_offset(HOST_ALIGNMENT), 0);
        }
    }

    #[test]
    fn bytes_of_the_wrong_length_are_refused() {
        assert!(HostTensor::from_bytes(Shape::f32([2]), &[0; 7]).is_none());
        let huge = Shape::f32([usize::MAX, 2]);
        assert!(HostTensor::from_bytes(huge, &[0; 8]).is_none());
    }

    #[test]
    fn rows_are_sliced_and_padded() {
        let tensor = HostTensor::new([3, 2], &[1i32, 2, 3, 4, 5, 6]);
        assert_eq!(
            tensor.slice_rows(1, 3).values::<i32>().unwrap(),
            [3, 4, 5, 6]
        );
        let padded = tensor.slice_rows(0, 1).pad_rows(2);
        assert_eq!(padded.values::<i32>().unwrap(), [1, 2, 0, 0]);
    }
}
