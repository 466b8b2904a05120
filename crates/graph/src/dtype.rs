//! Element types.

use std::fmt;

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit float, the default of weights and activations.
    F32,
    /// bfloat16: the range of f32 with 8 bits of precision.
    Bf16,
    /// IEEE half precision.
    F16,
    /// 64-bit float, used by gradient checks.
    F64,
    /// Signed 32-bit integer: labels, indices.
    I32,
    /// Signed 64-bit integer: step counters.
    I64,
    /// Unsigned 32-bit integer: random bits, seeds.
    U32,
    /// Unsigned 8-bit integer: image bytes.
    U8,
    /// Truth value, one byte each on the host.
    Bool,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::F64,
        Self::I32,
        Self::I64,
        Self::U32,
        Self::U8,
        Self::Bool,
    ];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether this is a floating-point type, the only kind with gradients.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::Bf16 | Self::F16 | Self::F64)
    }

    /// Whether this is an integer type (`Bool` is not).
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I32 | Self::I64 | Self::U32 | Self::U8)
    }

    /// The type in which sums of this one's numbers are taken: f32 for the 16-bit floats, else the type itself.
    #[must_use]
    pub const fn wide(self) -> Self {
        match self {
            Self::F16 | Self::Bf16 => Self::F32,
            own => own,
        }
    }

    /// The lower-case name of our own formats: `f32`, `bf16`, `bool`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U32 => "u32",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// The type with the given [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// The name in StableHLO text: `f32`, `ui8`, `i1`.
    #[must_use]
    pub const fn stablehlo(self) -> &'static str {
        match self {
            Self::U32 => "ui32",
            Self::U8 => "ui8",
            Self::Bool => "i1",
            other => other.name(),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
