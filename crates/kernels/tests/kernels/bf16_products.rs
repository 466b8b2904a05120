//! `phalanx.bf16_product` against sums in f64; the same call on processors with AMX, with other instructions for bf16 and without any. On
//! those without AVX-512, where oneDNN has no such product, the tests pass with a notice.

use phalanx_kernels::Kernels;
use phalanx_pjrt::Client;

use crate::short_floats::rounded;
use crate::{Array, client, kind, run};

/// Batch, rows, columns and depth; whether the operands are transposed; whether the result is bf16.
#[derive(Clone, Copy, Debug)]
struct Product {
    sizes: [i64; 4],
    left: bool,
    right: bool,
    narrow: bool,
}

impl Product {
    fn dims(self) -> [[i64; 3]; 3] {
        let [batch, rows, columns, depth] = self.sizes;
        let turned = |turned: bool, [a, b]: [i64; 2]| match turned {
            true => [batch, b, a],
            false => [batch, a, b],
        };
        [
            turned(self.left, [rows, depth]),
            turned(self.right, [depth, columns]),
            [batch, rows, columns],
        ]
    }

    /// The call between conversions: `run` passes f32.
    fn body(self, replicas: usize) -> String {
        let [left, right, result] = self.dims();
        let wide = [left, right, result].map(|dims| kind(&dims, "f32"));
        let short = [left, right, result].map(|dims| kind(&dims, "bf16"));
        let result = if self.narrow { &short[2] } else { &wide[2] };
        let replicas = match replicas {
            1 => String::new(),
            count => format!("replicas = {count} : i64, "),
        };
        format!(
            "%l = stablehlo.convert %a0 : ({}) -> {}
            %r = stablehlo.convert %a1 : ({}) -> {}
            %y = stablehlo.custom_call @phalanx.bf16_product(%l, %r) {{api_version = 4 : i32,
              backend_config = {{left_transposed = {}, {replicas}right_transposed = {}}}}} : ({}, {}) -> {result}
            %z = stablehlo.convert %y : ({result}) -> {}
            return %z : {}",
            wide[0], short[0], wide[1], short[1], self.left, self.right, short[0], short[1], wide[2], wide[2]
        )
    }

    /// Normal numbers that are bf16.
    fn operands(self) -> [Array; 2] {
        let [left, right, _] = self.dims();
        [Array::gaussian(&left, 21), Array::gaussian(&right, 22)].map(rounded)
    }

    fn run(self, client: &Client, operands: &[Array; 2], replicas: usize) -> Vec<f32> {
        self.tried(client, operands, replicas)
            .unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    fn tried(
        self,
        client: &Client,
        [left, right]: &[Array; 2],
        replicas: usize,
    ) -> Result<Vec<f32>, String> {
        let results = [self.dims()[2].to_vec()];
        let body = self.body(replicas);
        run(client, &[left, right], &results, &body).map(|mut results| results.remove(0))
    }

    /// The sums in f64, and the sums of magnitudes.
    fn expected(self, [left, right]: &[Array; 2]) -> Vec<(f64, f64)> {
        let [batch, rows, columns, depth] = self.sizes.map(|size| size as usize);
        let place = |turned: bool, [a, b]: [usize; 2], [i, j]: [usize; 2]| match turned {
            true => j * a + i,
            false => i * b + j,
        };
        let mut sums = Vec::with_capacity(batch * rows * columns);
        for item in 0..batch {
            let left = &left.values[item * rows * depth..][..rows * depth];
            let right = &right.values[item * depth * columns..][..depth * columns];
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
                let term = |k| {
                    let a = left[place(self.left, [rows, depth], [row, k])];
                    let b = right[place(self.right, [depth, columns], [k, column])];
                    f64::from(a) * f64::from(b)
                };
                let terms = (0..depth).map(term);
                sums.push(terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs())));
            }
        }
        sums
    }
}

/// A client whose programs may multiply bf16 by oneDNN.
fn multiplying() -> Option<&'static (Client, Kernels)> {
    let found = client()?;
    #[cfg(target_arch = "x86_64")]
    let has_products = std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    let has_products = false;
    if !has_products {
        phalanx_testkit::skip("oneDNN has products of bf16 for AVX-512");
    }
    has_products.then_some(found)
}

/// All layouts and both types of results.
fn forms(sizes: [i64; 4]) -> impl Iterator<Item = Product> {
    (0..8).map(move |form| Product {
        sizes,
        left: form & 1 != 0,
        right: form & 2 != 0,
        narrow: form & 4 != 0,
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Fails where an element is further from its sum than f32 sums of these magnitudes, and a rounding to bf16, may be.
fn assert_summed(product: Product, found: &[f32], expected: &[(f64, f64)]) {
    assert_eq!(found.len(), expected.len(), "{product:?}");
    for (i, (&found, &(sum, size))) in found.iter().zip(expected).enumerate() {
        let short = if product.narrow {
            sum.abs() / 256.0
        } else {
            0.0
        };
        let allowed = short + 4e-6 * size;
        let error = (f64::from(found) - sum).abs();
        assert!(error <= allowed, "{product:?}: {i}: {found}, not {sum}");
    }
}

#[test]
fn products_of_bf16_are_those_of_f64() {
    let Some((client, _)) = multiplying() else {
        return;
    };
    for sizes in [
        [1, 1, 1, 1],
        [1, 1, 1, 77],
        [1, 7, 33, 5],
        [1, 64, 64, 64],
        [1, 130, 71, 301],
        [1, 257, 1, 63],
        [2, 1, 130, 1],
        [3, 65, 31, 47],
        [24, 16, 16, 64],
        [1, 96, 80, 2500],
    ] {
        for product in forms(sizes) {
            let operands = product.operands();
            let found = product.run(client, &operands, 1);
            assert_summed(product, &found, &product.expected(&operands));
        }
    }
}

/// Of the size that programs call it for.
#[test]
fn a_large_product_of_bf16_is_that_of_f64() {
    let Some((client, _)) = multiplying() else {
        return;
    };
    let sizes = [1, 600, 520, 260];
    for product in forms(sizes) {
        let operands = product.operands();
        let found = product.run(client, &operands, 1);
        assert_summed(product, &found, &product.expected(&operands));
    }
}

#[test]
fn bits_of_bf16_products_depend_on_nothing_but_the_operands() {
    let Some((client, kernels)) = multiplying() else {
        return;
    };
    assert!(kernels.threads(1000) == 1);
    for sizes in [[1, 64, 70, 3000], [6, 70, 90, 130]] {
        for product in forms(sizes) {
            let operands = product.operands();
            let whole = bits(&product.run(client, &operands, 1));
            for replicas in [1, 2, 3, 1000] {
                let found = bits(&product.run(client, &operands, replicas));
                assert_eq!(found, whole, "{product:?}: one of {replicas} replicas");
            }
        }
    }
}

#[test]
fn rows_and_columns_of_bf16_keep_their_nan_and_infinities() {
    let Some((client, _)) = multiplying() else {
        return;
    };
    let sizes = [2, 70, 80, 90];
    for product in forms(sizes) {
        let [left, right, _] = product.dims();
        let mut operands = [Array::gaussian(&left, 23), Array::gaussian(&right, 24)].map(rounded);
        operands[1]
            .values
            .iter_mut()
            .for_each(|x| *x = x.abs().max(0.5));
        // Of the second product: row 3 has an infinity, row 69 a NaN, column 79 a NaN at the end of the depth.
        let left_at = |row: usize, k: usize| {
            70 * 90
                + if product.left {
                    k * 70 + row
                } else {
                    row * 90 + k
                }
        };
        let right_at = |k: usize, c: usize| {
            80 * 90
                + if product.right {
                    c * 90 + k
                } else {
                    k * 80 + c
                }
        };
        operands[0].values[left_at(3, 10)] = f32::NEG_INFINITY;
        operands[0].values[left_at(69, 0)] = f32::NAN;
        operands[1].values[right_at(89, 79)] = f32::NAN;
        let found = product.run(client, &operands, 1);
        for (index, value) in found.iter().enumerate() {
            let (item, row, column) = (index / 5600, index / 80 % 70, index % 80);
            let is_nan = item == 1 && (row == 69 || column == 79);
            assert_eq!(
                value.is_nan(),
                is_nan,
                "{product:?}: {item} {row} {column}: {value}"
            );
            let is_infinite = item == 1 && row == 3 && !is_nan;
            assert_eq!(
                *value == f32::NEG_INFINITY,
                is_infinite,
                "{product:?}: {item} {row} {column}: {value}"
            );
        }
    }
}

#[test]
fn bf16_products_of_nothing_are_zero_or_nothing() {
    let Some((client, _)) = client() else { return };
    for (sizes, elements) in [
        ([1, 3, 4, 0], 12),
        ([2, 3, 4, 0], 24),
        ([0, 3, 4, 5], 0),
        ([1, 0, 4, 5], 0),
        ([2, 3, 0, 5], 0),
    ] {
        for product in forms(sizes) {
            let found = product.run(client, &product.operands(), 1);
            assert_eq!(found, vec![0.0; elements], "{product:?}");
        }
    }
}

#[test]
fn wrong_bf16_products_are_refused() {
    let Some((client, _)) = client() else { return };
    let product = Product {
        sizes: [2, 3, 4, 5],
        left: false,
        right: false,
        narrow: true,
    };
    let operands = product.operands();
    let refused = |from: &str, to: &str| {
        let body = product.body(1).replace(from, to);
        let results = [product.dims()[2].to_vec()];
        run(client, &[&operands[0], &operands[1]], &results, &body).unwrap_err()
    };
    let error = refused("left_transposed = false", "left_transposed = true");
    assert!(error.contains("is not [2, 3, 4]"), "{error}");
    let error = refused("right_transposed = false", "right_transposed = 1.0 : f32");
    assert!(error.contains("must be a boolean"), "{error}");
    let error = refused("left_transposed = false, ", "");
    assert!(error.contains("no attribute `left_transposed`"), "{error}");
    let error = refused("xbf16>", "xf16>");
    assert!(error.contains("got f16"), "{error}");
    let error = refused("2x3x5xbf16>", "2x3x5xf32>");
    assert!(error.contains("operands must be bf16"), "{error}");
}
