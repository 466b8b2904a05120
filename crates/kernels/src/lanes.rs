//! Arithmetic on whole vector registers, written once for AVX2 and AVX-512, and the functions of gates on them.

use std::arch::x86_64::{
    __m256, __m512, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_add_epi32, _mm256_add_ps,
    _mm256_castsi256_ps, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_round_ps, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps, _mm512_add_epi32,
    _mm512_add_ps, _mm512_castsi512_ps, _mm512_cvtps_epi32, _mm512_div_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_roundscale_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
/// Exponent bits of 1.
const ONE: i32 = 127;
/// Most lanes of a vector.
const MAX_LANES: usize = 16;

/// The f32 lanes of a vector register. Values exist only where the processor has the instructions, so that safe methods may use them.
pub(crate) trait Lanes: Copy {
    /// Number of lanes.
    const LEN: usize;
    /// Most rows of a block that has four vectors of sums in each: as many as there are registers for.
    const ROWS: usize;

    /// The number in every lane.
    ///
    /// # Safety
    /// The instructions are there.
    unsafe fn splat(value: f32) -> Self;

    /// # Safety
    /// The instructions are there, and `LEN` numbers.
    unsafe fn load(from: *const f32) -> Self;

    /// # Safety
    /// There is room for `LEN` numbers.
    unsafe fn store(self, to: *mut f32);

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * by + plus`, rounded once.
    fn mul_add(self, by: Self, plus: Self) -> Self;
    /// The larger of two, either of which may be what is given where one is NaN.
    fn max(self, other: Self) -> Self;
    /// Between two limits; a NaN stays one.
    fn clamp(self, low: Self, high: Self) -> Self;
    /// The nearest integers.
    fn round(self) -> Self;
    /// 2 to the power of integers between -126 and 127, and 0 for -127.
    fn exp2_of_integers(self) -> Self;

    /// `count` numbers, and zeros in the other lanes.
    ///
    /// # Safety
    /// The instructions are there, and the numbers.
    #[inline(always)]
    unsafe fn load_some(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller's promise; the buffer has as many lanes as any vector.
        unsafe {
            if count >= Self::LEN {
                return Self::load(from);
            }
            let mut buffer = [0.0; MAX_LANES];
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), count);
            Self::load(buffer.as_ptr())
        }
    }

    /// Writes the first `count` lanes.
    ///
    /// # Safety
    /// There is room for them.
    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, count: usize) {
        // SAFETY: as in `load_some`.
        unsafe {
            if count >= Self::LEN {
                return self.store(to);
            }
            let mut buffer = [0.0; MAX_LANES];
            self.store(buffer.as_mut_ptr());
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), to, count);
        }
    }

    /// The lanes, and zeros for those that other vectors have.
    #[inline(always)]
    fn numbers(self) -> [f32; MAX_LANES] {
        let mut numbers = [0.0; MAX_LANES];
        // SAFETY: the instructions are there, or `self` would not be; there is room for the lanes of any vector.
        unsafe { self.store(numbers.as_mut_ptr()) };
        numbers
    }

    /// The number in every lane, where a vector shows that the instructions are there.
    #[inline(always)]
    fn like(self, value: f32) -> Self {
        // SAFETY: the instructions are there, or `self` would not be.
        unsafe { Self::splat(value) }
    }
}

/// 8 lanes with AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Lanes8(__m256);

/// 16 lanes with AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Lanes16(__m512);

/// Implements [`Lanes`] by intrinsics that take and give vectors.
macro_rules! lanes {
    ($name:ident, $len:literal, $rows:literal, $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $mul:ident, $div:ident,
     $fma:ident, $min:ident, $max:ident, $round:ident, $to_ints:ident, $add_ints:ident, $splat_int:ident, $shift:ident, $as_float:ident) => {
        impl Lanes for $name {
            const LEN: usize = $len;
            const ROWS: usize = $rows;

            #[inline(always)]
            unsafe fn splat(value: f32) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { $splat(value) })
            }

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { $load(from) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: the caller's promise; the instructions are there, or this would not be.
                unsafe { $store(to, self.0) }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: the instructions are there, or these would not be.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: as in `add`.
                Self(unsafe { $sub(self.0, other.0) })
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: as in `add`.
                Self(unsafe { $mul(self.0, other.0) })
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                // SAFETY: as in `add`.
                Self(unsafe { $div(self.0, other.0) })
            }

            #[inline(always)]
            fn mul_add(self, by: Self, plus: Self) -> Self {
                // SAFETY: as in `add`.
                Self(unsafe { $fma(self.0, by.0, plus.0) })
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // SAFETY: as in `add`.
                Self(unsafe { $max(self.0, other.0) })
            }

            #[inline(always)]
            fn clamp(self, low: Self, high: Self) -> Self {
                // SAFETY: as in `add`. Of a NaN and a number these instructions give the second operand.
                Self(unsafe { $max(low.0, $min(high.0, self.0)) })
            }

            #[inline(always)]
            fn round(self) -> Self {
                // SAFETY: as in `add`.
                Self(unsafe { $round::<NEAREST>(self.0) })
            }

            #[inline(always)]
            fn exp2_of_integers(self) -> Self {
                // SAFETY: as in `add`.
                unsafe {
                    let exponents = $add_ints($to_ints(self.0), $splat_int(ONE));
                    Self($as_float($shift::<23>(exponents)))
                }
            }
        }
    };
}

lanes!(
    Lanes8,
    8,
    3,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_div_ps,
    _mm256_fmadd_ps,
    _mm256_min_ps,
    _mm256_max_ps,
    _mm256_round_ps,
    _mm256_cvtps_epi32,
    _mm256_add_epi32,
    _mm256_set1_epi32,
    _mm256_slli_epi32,
    _mm256_castsi256_ps
);
lanes!(
    Lanes16,
    16,
    6,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_fmadd_ps,
    _mm512_min_ps,
    _mm512_max_ps,
    _mm512_roundscale_ps,
    _mm512_cvtps_epi32,
    _mm512_add_epi32,
    _mm512_set1_epi32,
    _mm512_slli_epi32,
    _mm512_castsi512_ps
);

/// The polynomial with these coefficients, the highest power's first.
#[inline(always)]
fn polynomial<V: Lanes>(x: V, coefficients: &[f32]) -> V {
    let (first, rest) = coefficients.split_first().unwrap_or((&0.0, &[]));
    let mut sum = x.like(*first);
    for &coefficient in rest {
        sum = sum.mul_add(x, x.like(coefficient));
    }
    sum
}

/// `e^x` for `x` from -87.6 to 88; 0 below, and `e^88` above.
///
/// As in Cephes' `expf`: `x` is `n log 2 + r`, and a polynomial has `e^r`.
#[inline(always)]
pub(crate) fn exp<V: Lanes>(x: V) -> V {
    /// `log 2` in two parts, the first of which has products with small integers that are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const SERIES: [f32; 6] = [
        1.987_569_1e-4,
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        5e-1,
    ];
    // The lower limit's power of 2 is 0.
    let x = x.clamp(x.like(-88.0), x.like(88.0));
    let n = x.mul(x.like(std::f32::consts::LOG2_E)).round();
    let r = n.mul_add(x.like(-LN_2[0]), x);
    let r = n.mul_add(x.like(-LN_2[1]), r);
    let power = polynomial(r, &SERIES).mul_add(r.mul(r), r.add(x.like(1.0)));
    power.mul(n.exp2_of_integers())
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<V: Lanes>(x: V) -> V {
    let one = x.like(1.0);
    one.div(one.add(exp(x.like(0.0).sub(x))))
}

/// The hyperbolic tangent, as the quotient of polynomials that Eigen and XLA have.
#[inline(always)]
pub(crate) fn tanh<V: Lanes>(x: V) -> V {
    const ABOVE: [f32; 7] = [
        -2.760_768_4e-16,
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297_2e-8,
        1.485_722_3e-5,
        6.372_619_4e-4,
        4.893_525e-3,
    ];
    const BELOW: [f32; 4] = [
        1.198_258_4e-6,
        1.185_347_1e-4,
        2.268_434_6e-3,
        4.893_525_4e-3,
    ];
    /// From here on the result is 1, exactly what the quotient is here.
    const LIMIT: f32 = 8.99;
    let x = x.clamp(x.like(-LIMIT), x.like(LIMIT));
    let square = x.mul(x);
    let slope = polynomial(square, &ABOVE).div(polynomial(square, &BELOW));
    x.mul(slope).clamp(x.like(-1.0), x.like(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microkernel::{Isa, SimdKernel};
    use crate::simd_row::SimdRow;

    /// Replaces numbers by `f` of them, as many as a whole number of vectors.
    struct Map<'a> {
        values: &'a mut [f32],
        is_tanh: bool,
    }

    impl SimdKernel for Map<'_> {
        #[inline(always)]
        unsafe fn run<C: SimdRow>(self) {
            for values in self.values.chunks_exact_mut(C::Vector::LEN) {
                // SAFETY: the caller's promise; a chunk has a number for each lane.
                unsafe {
                    let x = C::Vector::load(values.as_ptr());
                    let y = if self.is_tanh { tanh(x) } else { sigmoid(x) };
                    y.store(values.as_mut_ptr());
                }
            }
        }
    }

    fn mapped(isa: Isa, is_tanh: bool, values: &[f32]) -> Vec<f32> {
        let mut values = values.to_vec();
        values.resize(values.len().next_multiple_of(MAX_LANES), 0.0);
        let work = Map {
            values: &mut values,
            is_tanh,
        };
        // SAFETY: callers ask for instructions that the processor has.
        unsafe { isa.run(work) };
        values
    }

    #[test]
    fn gates_are_those_of_f64() {
        let small = (1..=37).map(|i| 10f32.powi(-i));
        // Miri takes a thousand times as long.
        let stride = if cfg!(miri) { 1999 } else { 1 };
        let near = (0..200_000).step_by(stride).map(|i| i as f32 * 1e-4);
        let far = [30.0, 80.0, 86.0];
        let x: Vec<f32> = near.chain(small).chain(far).flat_map(|x| [x, -x]).collect();
        for isa in Isa::available() {
            for is_tanh in [true, false] {
                for (&x, found) in x.iter().zip(mapped(isa, is_tanh, &x)) {
                    let wide = f64::from(x);
                    let expected = match is_tanh {
                        true => wide.tanh(),
                        false => 1.0 / (1.0 + (-wide).exp()),
                    };
                    let error = (f64::from(found) - expected).abs() / expected.abs().max(1e-37);
                    assert!(
                        error < 4e-7,
                        "{isa:?} {is_tanh} at {x}: {found} for {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn limits_and_nan_are_kept() {
        let x = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30, -1e30, 0.0];
        for isa in Isa::available() {
            let found = mapped(isa, true, &x);
            assert_eq!(
                [found[0], found[1], found[3], found[4]],
                [1.0, -1.0, 1.0, -1.0]
            );
            assert!(found[2].is_nan() && found[5] == 0.0, "{isa:?}");
            let found = mapped(isa, false, &x);
            assert_eq!([found[0], found[3], found[5]], [1.0, 1.0, 0.5]);
            assert!(
                found[1] < 1e-37 && found[4] < 1e-37 && found[2].is_nan(),
                "{isa:?}"
            );
        }
    }
}
