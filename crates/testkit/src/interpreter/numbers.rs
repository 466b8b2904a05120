//! Elements: read from tensors of the host, wrapped to their width, converted.

use phalanx_graph::{DType, Element, HostTensor, Shape};

use super::{Array, Dual, Operand};

impl Array {
    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Floats(values) => values.len(),
            Self::Ints(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the elements are of a floating-point type.
    #[must_use]
    pub const fn is_floats(&self) -> bool {
        matches!(self, Self::Floats(_))
    }

    /// The elements as f64, whatever their type.
    #[must_use]
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Self::Floats(values) => values.clone(),
            Self::Ints(values) => values.iter().map(|&value| value as f64).collect(),
        }
    }

    /// Zeros of a type.
    pub(super) fn zeros(dtype: DType, count: usize) -> Self {
        if dtype.is_float() {
            Self::Floats(vec![0.0; count])
        } else {
            Self::Ints(vec![0; count])
        }
    }
}

impl From<&HostTensor> for Array {
    fn from(tensor: &HostTensor) -> Self {
        fn ints<T: Element + Into<i64>>(tensor: &HostTensor) -> Array {
            let values = tensor.values::<T>().unwrap_or_default();
            Array::Ints(values.into_iter().map(Into::into).collect())
        }
        match tensor.dtype() {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => Self::Floats(tensor.to_f64()),
            DType::I32 => ints::<i32>(tensor),
            DType::I64 => ints::<i64>(tensor),
            DType::U32 => ints::<u32>(tensor),
            DType::U8 => ints::<u8>(tensor),
            DType::Bool => ints::<bool>(tensor),
        }
    }
}

impl From<Array> for Dual {
    /// A value without tangent.
    fn from(value: Array) -> Self {
        Self {
            value,
            tangent: Vec::new(),
        }
    }
}

impl Dual {
    /// Floats and their tangent, if any.
    pub(super) fn floats(values: Vec<f64>, tangent: Option<Vec<f64>>) -> Self {
        Self {
            value: Array::Floats(values),
            tangent: tangent.unwrap_or_default(),
        }
    }

    pub(super) const fn ints(values: Vec<i64>) -> Self {
        Self {
            value: Array::Ints(values),
            tangent: Vec::new(),
        }
    }
}

/// What is left of a number in the bits of a type.
pub(super) const fn wrap(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::I32 => value as i32 as i64,
        DType::U32 => value as u32 as i64,
        DType::U8 => value as u8 as i64,
        DType::Bool => value & 1,
        _ => value,
    }
}

/// The smallest and the largest number of a type.
pub(super) const fn range(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        DType::U32 => (0, u32::MAX as i64),
        DType::U8 => (0, u8::MAX as i64),
        DType::Bool => (0, 1),
        _ => (i64::MIN, i64::MAX),
    }
}

/// Bits of a type.
pub(super) const fn width(dtype: DType) -> i64 {
    dtype.size() as i64 * 8
}

/// The same numbers in another type: integers wrap, floats truncate to integers and saturate, and keep their tangent as
/// floats.
pub(super) fn convert(x: &Operand, dtype: DType) -> Dual {
    let (low, high) = range(dtype);
    match x.value {
        Array::Floats(values) if dtype.is_float() => {
            Dual::floats(values.clone(), x.slope().map(<[f64]>::to_vec))
        }
        Array::Floats(values) if dtype == DType::Bool => Dual::ints(
            values
                .iter()
                .map(|&value| i64::from(value != 0.0))
                .collect(),
        ),
        // `as` truncates and saturates; NaN becomes 0.
        Array::Floats(values) => Dual::ints(
            values
                .iter()
                .map(|&value| (value as i64).clamp(low, high))
                .collect(),
        ),
        Array::Ints(values) if dtype.is_float() => {
            Dual::floats(values.iter().map(|&value| value as f64).collect(), None)
        }
        Array::Ints(values) if dtype == DType::Bool => {
            Dual::ints(values.iter().map(|&value| i64::from(value != 0)).collect())
        }
        Array::Ints(values) => Dual::ints(values.iter().map(|&value| wrap(dtype, value)).collect()),
    }
}

/// The same bits as another type of the same size: floats are rounded to their type for it.
pub(super) fn bitcast(x: &Operand, dtype: DType) -> Result<Dual, String> {
    let from = x.shape.dtype;
    let size = from.size();
    let bytes: Vec<u8> = match x.value {
        Array::Floats(values) => {
            let wide = HostTensor::new([values.len()], values);
            wide.convert(from).bytes().to_vec()
        }
        Array::Ints(values) => {
            let low = |value: &i64| value.to_le_bytes().into_iter().take(size);
            values.iter().flat_map(low).collect()
        }
    };
    let shape = Shape::new(dtype, [x.value.len()]);
    let read = HostTensor::from_bytes(shape, &bytes);
    let read = read.ok_or_else(|| format!("{from} and {dtype} differ in size"))?;
    Ok(Dual::from(Array::from(&read)))
}
