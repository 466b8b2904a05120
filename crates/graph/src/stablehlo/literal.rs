//! Literals: numbers printed so that they are read back bit for bit.

use half::{bf16, f16};

use crate::host::read_numbers;
use crate::{DType, HostTensor};

/// Arrays up to this many elements are printed as numbers, larger ones as the hexadecimal digits of their bytes.
const READABLE: usize = 64;

/// `dense<..>` of a tensor.
pub(super) fn dense(value: &HostTensor) -> String {
    let size = value.dtype().size();
    let mut elements = value.bytes().chunks_exact(size);
    let Some(first) = elements.next() else {
        return "dense<>".into();
    };
    if elements.all(|element| element == first) {
        return format!("dense<{}>", element_text(value.dtype(), first));
    }
    // The hexadecimal form of truth values packs bits in some versions of the parser and bytes in others.
    if value.shape().len() > READABLE && value.dtype() != DType::Bool {
        return format!("dense<\"0x{}\">", hex(value.bytes()));
    }
    let elements: Vec<&[u8]> = value.bytes().chunks_exact(size).collect();
    format!("dense<{}>", nested(value.dtype(), &elements, value.dims()))
}

fn nested(dtype: DType, elements: &[&[u8]], dims: &[usize]) -> String {
    let Some((&count, inner)) = dims.split_first() else {
        return element_text(dtype, elements[0]);
    };
    let rows = elements.chunks_exact(elements.len() / count);
    let rows: Vec<String> = rows.map(|row| nested(dtype, row, inner)).collect();
    format!("[{}]", rows.join(", "))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(DIGITS[usize::from(digit)]));
        }
    }
    text
}

fn element_text(dtype: DType, bytes: &[u8]) -> String {
    let value = read_numbers(dtype, bytes)[0];
    match dtype {
        DType::Bool => (value != 0.0).to_string(),
        // A 64-bit integer may not fit a double.
        DType::I64 => i64::from_le_bytes(bytes.try_into().expect("eight bytes")).to_string(),
        DType::I32 | DType::U32 | DType::U8 => format!("{value:.0}"),
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => float_text(dtype, value, bytes),
    }
}

/// The shortest decimal that reads back as the same bits, or the bits in hexadecimal.
fn float_text(dtype: DType, value: f64, bytes: &[u8]) -> String {
    let text = match dtype {
        DType::F32 => decimal(&format!("{:?}", value as f32)),
        _ => decimal(&format!("{value:?}")),
    };
    let reread: Option<f64> = text.parse().ok();
    let same = value.is_finite()
        && reread.is_some_and(|reread| match dtype {
            DType::F32 => (reread as f32).to_le_bytes() == bytes,
            DType::F16 => f16::from_f64(reread).to_le_bytes() == bytes,
            DType::Bf16 => bf16::from_f64(reread).to_le_bytes() == bytes,
            _ => reread.to_le_bytes() == bytes,
        });
    if same {
        return text;
    }
    let big_endian: Vec<u8> = bytes.iter().rev().copied().collect();
    format!("0x{}", hex(&big_endian))
}

/// MLIR wants a point in every float: `1e-7` becomes `1.0e-7`.
fn decimal(text: &str) -> String {
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text.to_owned(),
    }
}

/// An f32 attribute.
pub(super) fn f32_text(value: f32) -> String {
    float_text(DType::F32, f64::from(value), &value.to_le_bytes())
}

/// `array<i64: 1, 2>`.
pub(super) fn int_array<T: ToString>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    match values.as_slice() {
        [] => "array<i64>".into(),
        values => format!("array<i64: {}>", values.join(", ")),
    }
}

/// `dense<[[0, 1]]> : tensor<1x2xi64>` of rows of pairs or groups.
pub(super) fn int_table<T: ToString>(rows: &[Vec<T>], width: usize) -> String {
    let text = |row: &Vec<T>| {
        let row: Vec<String> = row.iter().map(ToString::to_string).collect();
        format!("[{}]", row.join(", "))
    };
    let text: Vec<String> = rows.iter().map(text).collect();
    let body = if rows.is_empty() {
        String::new()
    } else {
        format!("[{}]", text.join(", "))
    };
    format!("dense<{body}> : tensor<{}x{width}xi64>", rows.len())
}

/// A string in quotes, escaped as MLIR reads it.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | 0..0x20 | 0x7f.. => out.push_str(&format!("\\{byte:02X}")),
            plain => out.push(char::from(plain)),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    #[test]
    fn floats_are_read_back_bit_for_bit() {
        let text = |value: f32| dense(&HostTensor::scalar(value));
        assert_eq!(text(1.0), "dense<1.0>");
        assert_eq!(text(-0.0), "dense<-0.0>");
        assert_eq!(text(1e-7), "dense<1.0e-7>");
        assert_eq!(text(1e30), "dense<1.0e30>");
        assert_eq!(text(f32::NEG_INFINITY), "dense<0xFF800000>");
        assert_eq!(text(f32::from_bits(0x7FC0_0001)), "dense<0x7FC00001>");
        assert_eq!(
            dense(&HostTensor::scalar(f64::NAN)),
            "dense<0x7FF8000000000000>"
        );
        assert_eq!(dense(&HostTensor::scalar(0.1f64)), "dense<0.1>");
        assert_eq!(dense(&HostTensor::scalar(bf16::INFINITY)), "dense<0x7F80>");
    }

    #[test]
    fn arrays_are_splats_lists_or_bytes() {
        assert_eq!(
            dense(&HostTensor::new([2, 2], &[1, 2, 3, 4])),
            "dense<[[1, 2], [3, 4]]>"
        );
        assert_eq!(
            dense(&HostTensor::full(Shape::f32([100]), 2.0)),
            "dense<2.0>"
        );
        assert_eq!(dense(&HostTensor::zeros(Shape::f32([0, 3]))), "dense<>");
        assert_eq!(
            dense(&HostTensor::scalar(i64::MIN)),
            "dense<-9223372036854775808>"
        );
        let bytes: Vec<u8> = (0..65).collect();
        assert!(dense(&HostTensor::new([65], &bytes)).starts_with("dense<\"0x000102"));
        let truths: Vec<bool> = (0..65).map(|i| i % 2 == 0).collect();
        assert!(dense(&HostTensor::new([65], &truths)).starts_with("dense<[true, false"));
    }

    #[test]
    fn strings_are_escaped() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\22b\\5Cc\\0A\"");
    }
}
