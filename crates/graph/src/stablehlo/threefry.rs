//! Random bits: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//!
//! Written out in integer ops, because the bits of the compiler's own generators depend on the shape asked for.

use super::writer::{Operand, Writer, signature};
use crate::{DType, Shape};

const PARITY: f64 = 0x1BD1_1BDA as f64;
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// Calls the function for tensors of these dims, which [`write_functions`] writes later.
pub(super) fn call(w: &mut Writer, key: &Operand, row: &Operand, shape: &Shape) -> Operand {
    w.random.insert(shape.dims.clone());
    let types = signature(&[key.clone(), row.clone()], std::slice::from_ref(shape));
    let name = function_name(&shape.dims);
    let text = format!("func.call @{name}({}, {}) : {types}", key.name, row.name);
    w.line(shape, &text)
}

fn function_name(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("random_bits_{}", dims.join("x"))
}

/// Writes the functions that were called.
pub(super) fn write_functions(w: &mut Writer) {
    for dims in std::mem::take(&mut w.random) {
        let shape = Shape::new(DType::U32, dims);
        w.open_function(&format!(
            "func.func private @{}(%key: tensor<2xui32>, %row: tensor<ui32>) -> {} {{",
            function_name(&shape.dims),
            shape.stablehlo()
        ));
        let bits = body(w, &shape.dims);
        let result = w.reshape(&bits, &shape.dims);
        w.finish_block("return", &[result]);
        w.close("}");
    }
}

/// The first word of the hash of (flat index in the row, row) for each element, as `[rows, elements of a row]`.
fn body(w: &mut Writer, dims: &[usize]) -> Operand {
    let rows = dims.first().copied().unwrap_or(1);
    let inner: usize = dims.iter().skip(1).product();
    let shape = Shape::new(DType::U32, [rows, inner]);
    let key = Operand {
        name: "%key".into(),
        shape: Shape::new(DType::U32, [2]),
    };
    let row = Operand {
        name: "%row".into(),
        shape: Shape::scalar(DType::U32),
    };
    let first = key_word(w, &key, 0, &shape);
    let second = key_word(w, &key, 1, &shape);
    let parity = w.full(&shape, PARITY);
    let both = binary(w, "xor", &first, &second);
    let keys = [first, second, binary(w, "xor", &both, &parity)];

    let column = iota(w, 1, &shape);
    let step = iota(w, 0, &shape);
    let row = w.broadcast(&row, &shape.dims, &[]);
    let row = binary(w, "add", &row, &step);
    let x0 = binary(w, "add", &column, &keys[0]);
    let x1 = binary(w, "add", &row, &keys[1]);
    rounds(w, x0, x1, &keys)
}

fn rounds(w: &mut Writer, mut x0: Operand, mut x1: Operand, keys: &[Operand; 3]) -> Operand {
    for group in 0..5 {
        for rotation in ROTATIONS[group % 2] {
            x0 = binary(w, "add", &x0, &x1);
            x1 = rotate_left(w, &x1, rotation);
            x1 = binary(w, "xor", &x1, &x0);
        }
        x0 = binary(w, "add", &x0, &keys[(group + 1) % 3]);
        let count = w.full(&x1.shape, (group + 1) as f64);
        x1 = binary(w, "add", &x1, &keys[(group + 2) % 3]);
        x1 = binary(w, "add", &x1, &count);
    }
    x0
}

fn key_word(w: &mut Writer, key: &Operand, index: usize, shape: &Shape) -> Operand {
    let one = Shape::new(DType::U32, [1]);
    let text = format!(
        "stablehlo.slice {} [{index}:{}] : (tensor<2xui32>) -> tensor<1xui32>",
        key.name,
        index + 1
    );
    let word = w.line(&one, &text);
    let word = w.reshape(&word, &[]);
    w.broadcast(&word, &shape.dims, &[])
}

fn rotate_left(w: &mut Writer, x: &Operand, by: u32) -> Operand {
    let (left, right) = (
        w.full(&x.shape, by.into()),
        w.full(&x.shape, (32 - by).into()),
    );
    let high = binary(w, "shift_left", x, &left);
    let low = binary(w, "shift_right_logical", x, &right);
    binary(w, "or", &high, &low)
}

fn iota(w: &mut Writer, dim: usize, shape: &Shape) -> Operand {
    let text = format!("stablehlo.iota dim = {dim} : {}", shape.stablehlo());
    w.line(shape, &text)
}

fn binary(w: &mut Writer, name: &str, a: &Operand, b: &Operand) -> Operand {
    let shape = a.shape.clone();
    w.elementwise(name, &[a.clone(), b.clone()], &shape)
}
