//! Products of matrices.

use phalanx_graph::op::DotDims;
use phalanx_graph::{DType, Shape};

use super::elementwise::plus;
use super::moving::{pick, places, steps, strides};
use super::noise::Noise;
use super::numbers::{convert, wrap};
use super::{Dual, Operand};

/// An element that is summed and multiplied.
pub(super) trait Number: Copy + Default {
    /// `self + a b`.
    fn plus_product(self, a: Self, b: Self) -> Self;
}

impl Number for f64 {
    fn plus_product(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}

impl Number for i64 {
    fn plus_product(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }
}

/// A function linear in each of two tensors.
pub(super) trait Bilinear {
    fn apply<T: Number>(&self, a: &[T], b: &[T]) -> Vec<T>;
}

/// Value and tangent of a bilinear function whose result has the type `dtype`.
pub(super) fn bilinear(
    f: &impl Bilinear,
    a: &Operand,
    b: &Operand,
    dtype: DType,
    noise: &Noise,
) -> Result<Dual, String> {
    if !dtype.is_float() {
        let sums = f.apply(a.ints()?, b.ints()?);
        return Ok(Dual::ints(
            sums.into_iter().map(|sum| wrap(dtype, sum)).collect(),
        ));
    }
    let (left, right) = (a.floats()?, b.floats()?);
    let mut values = f.apply(left, right);
    noise.sums(&mut values, || f.apply(&absolute(left), &absolute(right)));
    let first = a.slope().map(|tangent| f.apply(tangent, right));
    let second = b.slope().map(|tangent| f.apply(left, tangent));
    Ok(Dual::floats(values, plus(first, second)))
}

fn absolute(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.abs()).collect()
}

/// A batch of products of `[m, k]` and `[k, n]`, and where their elements lie.
struct Product {
    left: Vec<usize>,
    right: Vec<usize>,
    m: usize,
    k: usize,
    n: usize,
    batch: usize,
}

impl Product {
    fn new(dims: &DotDims, a: &Shape, b: &Shape) -> Self {
        let free = |shape: &Shape, batch: &[usize], contract: &[usize]| -> Vec<usize> {
            let is_free = |dim: &usize| !batch.contains(dim) && !contract.contains(dim);
            (0..shape.rank()).filter(is_free).collect()
        };
        let rows = free(a, &dims.lhs_batch, &dims.lhs_contract);
        let columns = free(b, &dims.rhs_batch, &dims.rhs_contract);
        let size =
            |shape: &Shape, dims: &[usize]| dims.iter().map(|&dim| shape.dims[dim]).product();
        Self {
            left: ordered(a, &[&dims.lhs_batch, &rows, &dims.lhs_contract]),
            right: ordered(b, &[&dims.rhs_batch, &dims.rhs_contract, &columns]),
            m: size(a, &rows),
            k: size(a, &dims.lhs_contract),
            n: size(b, &columns),
            batch: size(a, &dims.lhs_batch),
        }
    }
}

/// The places of a tensor's elements when its dims are in this order.
pub(super) fn ordered(shape: &Shape, order: &[&[usize]]) -> Vec<usize> {
    let strides = strides(&shape.dims);
    let dims = order.iter().flat_map(|dims| dims.iter());
    let offsets: Vec<Vec<usize>> = dims
        .map(|&dim| steps(shape.dims[dim], strides[dim]))
        .collect();
    places(&offsets)
}

impl Bilinear for Product {
    fn apply<T: Number>(&self, a: &[T], b: &[T]) -> Vec<T> {
        let (a, b) = (pick(a, &self.left), pick(b, &self.right));
        let (m, k, n) = (self.m, self.k, self.n);
        let mut sums = vec![T::default(); self.batch * m * n];
        for row in 0..self.batch * m {
            let (batch, sums) = (row / m, &mut sums[row * n..][..n]);
            for i in 0..k {
                let factor = a[row * k + i];
                let column = &b[(batch * k + i) * n..][..n];
                for (sum, &b) in sums.iter_mut().zip(column) {
                    *sum = sum.plus_product(factor, b);
                }
            }
        }
        sums
    }
}

pub(super) fn dot(dims: &DotDims, [a, b]: &[Operand; 2], noise: &Noise) -> Result<Dual, String> {
    let product = Product::new(dims, a.shape, b.shape);
    if dims.dtype.is_float() == a.value.is_floats() {
        return bilinear(&product, a, b, dims.dtype, noise);
    }
    let wide = [a, b].map(|x| convert(x, dims.dtype));
    let [a, b] = [(a, &wide[0]), (b, &wide[1])].map(|(x, wide)| Operand {
        value: &wide.value,
        ..*x
    });
    bilinear(&product, &a, &b, dims.dtype, noise)
}
