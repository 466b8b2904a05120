//! The loops that add: elements of several ranks, in the order of ranks, a block at a time.
//!
//! Arrays are raw memory: one of the inputs may be the output, other processes read the inputs, and none need be aligned. A block is
//! read whole into an accumulator in the first-level cache before it is written.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::element::{Element, ReduceOp};
use crate::simd::compiled_for_wide_vectors;

/// Elements accumulated at a time.
const BLOCK: usize = 1024;

/// One reduction of a range of elements.
#[derive(Clone, Copy)]
pub(crate) struct Reduction<'a> {
    pub(crate) element: Element,
    pub(crate) op: ReduceOp,
    /// What was reduced before the first input, in the accumulator type.
    pub(crate) partial: Option<*const u8>,
    /// The elements of each rank, in the order of ranks.
    pub(crate) inputs: &'a [*const u8],
    /// Where the result goes; may be `partial` or an input.
    pub(crate) out: *mut u8,
    pub(crate) elements: usize,
    /// Whether this is all: the result is divided where the op is the mean and has the element type. Otherwise it is a partial result.
    pub(crate) last: bool,
    /// Ranks of the group, by which the mean divides.
    pub(crate) ranks: usize,
}

/// # Safety
/// All inputs, the partial result and the output have `elements` elements; nobody writes the inputs meanwhile or touches the output.
/// The output overlaps with an input only if they begin at the same address and have elements of the same size.
pub(crate) unsafe fn reduce(reduction: Reduction<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match reduction.element {
            Element::F32 => by_op::<f32>(reduction),
            Element::F64 => by_op::<f64>(reduction),
            Element::F16 => by_op::<F16>(reduction),
            Element::Bf16 => by_op::<Bf16>(reduction),
            Element::I32 => by_op::<i32>(reduction),
            Element::I64 => by_op::<i64>(reduction),
            Element::U32 => by_op::<u32>(reduction),
            Element::U64 => by_op::<u64>(reduction),
            Element::U8 | Element::Bool => by_op::<u8>(reduction),
            Element::I8 => by_op::<i8>(reduction),
        }
    }
}

/// Reduces parts of equal length, in their order, without another rank: for what one process has several of. Of 16-bit floats the
/// result alone is rounded.
pub fn combine(element: Element, op: ReduceOp, parts: &[&[u8]], out: &mut [u8]) {
    if let [one] = parts {
        return out.copy_from_slice(one);
    }
    let inputs: Vec<*const u8> = parts.iter().map(|part| part.as_ptr()).collect();
    let least = parts.iter().map(|part| part.len()).min();
    let reduction = Reduction {
        element,
        op,
        partial: None,
        inputs: &inputs,
        out: out.as_mut_ptr(),
        elements: least.unwrap_or(0).min(out.len()) / element.size(),
        last: true,
        ranks: parts.len(),
    };
    // SAFETY: all have that many elements and live during the call; the output is borrowed alone.
    unsafe { reduce(reduction) };
}

/// # Safety
/// As [`reduce`].
unsafe fn by_op<L: Lane>(reduction: Reduction<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match reduction.op {
            ReduceOp::Sum | ReduceOp::Mean => blocks::<L, Add>(reduction),
            ReduceOp::Max => blocks::<L, Larger>(reduction),
            ReduceOp::Min => blocks::<L, Smaller>(reduction),
            ReduceOp::And => blocks::<L, Both>(reduction),
        }
    }
}

compiled_for_wide_vectors! {
    unsafe fn blocks<L: Lane, O: Combine>(reduction: Reduction<'_>) {
        let r = reduction;
        let divisor = (r.last && r.op == ReduceOp::Mean).then_some(r.ranks);
        let mut sums = [L::Sum::default(); BLOCK];
        for start in (0..r.elements).step_by(BLOCK) {
            let count = BLOCK.min(r.elements - start);
            let sums = &mut sums[..count];
            // SAFETY: the block is within the arrays, by the caller's promise.
            unsafe {
                let mut rest = r.inputs;
                if let Some(partial) = r.partial {
                    let from = partial.add(start * size_of::<L::Sum>()).cast();
                    std::ptr::copy_nonoverlapping(from, sums.as_mut_ptr().cast::<u8>(), size_of_val(sums));
                } else if let [first, others @ ..] = r.inputs {
                    L::load(first.add(start * L::SIZE), sums);
                    rest = others;
                }
                for input in rest {
                    L::combine::<O>(input.add(start * L::SIZE), sums);
                }
                if let Some(divisor) = divisor {
                    sums.iter_mut().for_each(|sum| *sum = sum.divided(divisor));
                }
                if r.last {
                    L::store(sums, r.out.add(start * L::SIZE));
                } else {
                    let to = r.out.add(start * size_of::<L::Sum>());
                    std::ptr::copy_nonoverlapping(sums.as_ptr().cast::<u8>(), to, size_of_val(sums));
                }
            }
        }
    }
}

compiled_for_wide_vectors! {
    /// Rounds f32 elements to a 16-bit float.
    ///
    /// # Safety
    /// Both arrays have this number of elements, and do not overlap.
    unsafe fn narrow<L: HalfLane>(from: *const u8, to: *mut u8, elements: usize) {
        let mut block = [0f32; BLOCK];
        for start in (0..elements).step_by(BLOCK) {
            let block = &mut block[..BLOCK.min(elements - start)];
            // SAFETY: the block is within the arrays, by the caller's promise.
            unsafe {
                std::ptr::copy_nonoverlapping(from.add(start * 4), block.as_mut_ptr().cast(), block.len() * 4);
                L::store(block, to.add(start * 2));
            }
        }
    }
}

compiled_for_wide_vectors! {
    /// Widens 16-bit floats to f32.
    ///
    /// # Safety
    /// As [`narrow`].
    unsafe fn widen<L: HalfLane>(from: *const u8, to: *mut u8, elements: usize) {
        let mut block = [0f32; BLOCK];
        for start in (0..elements).step_by(BLOCK) {
            let block = &mut block[..BLOCK.min(elements - start)];
            // SAFETY: the block is within the arrays, by the caller's promise.
            unsafe {
                L::load(from.add(start * 2), block);
                std::ptr::copy_nonoverlapping(block.as_ptr().cast(), to.add(start * 4), block.len() * 4);
            }
        }
    }
}

/// The lanes that are added in f32.
pub(crate) trait HalfLane: Lane<Sum = f32> {}
impl HalfLane for F16 {}
impl HalfLane for Bf16 {}

/// An element as it lies in memory, and the type it is reduced in.
pub(crate) trait Lane {
    const SIZE: usize;
    type Sum: Number;

    /// # Safety
    /// So many elements can be read.
    unsafe fn load(from: *const u8, to: &mut [Self::Sum]);

    /// # Safety
    /// So many elements can be read.
    unsafe fn combine<O: Combine>(from: *const u8, sums: &mut [Self::Sum]);

    /// # Safety
    /// So many elements can be written.
    unsafe fn store(sums: &[Self::Sum], to: *mut u8);
}

impl<N: Number> Lane for N {
    const SIZE: usize = size_of::<N>();
    type Sum = N;

    #[inline(always)]
    unsafe fn load(from: *const u8, to: &mut [N]) {
        // SAFETY: the caller's promise; the accumulator is ours.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast(), size_of_val(to)) }
    }

    #[inline(always)]
    unsafe fn combine<O: Combine>(from: *const u8, sums: &mut [N]) {
        let from = from.cast::<N>();
        for (index, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *sum = O::combine(*sum, unsafe { from.add(index).read_unaligned() });
        }
    }

    #[inline(always)]
    unsafe fn store(sums: &[N], to: *mut u8) {
        // SAFETY: the caller's promise; the accumulator is ours.
        unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr().cast(), to, size_of_val(sums)) }
    }
}

/// bfloat16 in memory.
pub(crate) struct Bf16;

impl Lane for Bf16 {
    const SIZE: usize = 2;
    type Sum = f32;

    #[inline(always)]
    unsafe fn load(from: *const u8, to: &mut [f32]) {
        let from = from.cast::<u16>();
        for (index, value) in to.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let bits = unsafe { from.add(index).read_unaligned() };
            *value = f32::from_bits(u32::from(bits) << 16);
        }
    }

    #[inline(always)]
    unsafe fn combine<O: Combine>(from: *const u8, sums: &mut [f32]) {
        let from = from.cast::<u16>();
        for (index, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let bits = unsafe { from.add(index).read_unaligned() };
            *sum = O::combine(*sum, f32::from_bits(u32::from(bits) << 16));
        }
    }

    #[inline(always)]
    unsafe fn store(sums: &[f32], to: *mut u8) {
        let to = to.cast::<u16>();
        for (index, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { to.add(index).write_unaligned(bf16_bits(*sum)) };
        }
    }
}

/// Rounds to the nearest, ties to even; what is not a number stays so.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 {
        quiet
    } else {
        rounded
    }) as u16
}

/// IEEE half precision in memory.
pub(crate) struct F16;

impl Lane for F16 {
    const SIZE: usize = 2;
    type Sum = f32;

    #[inline(always)]
    unsafe fn load(from: *const u8, to: &mut [f32]) {
        let mut halves = [f16::ZERO; BLOCK];
        let halves = &mut halves[..to.len()];
        // SAFETY: the caller's promise; the halves are ours.
        unsafe { std::ptr::copy_nonoverlapping(from, halves.as_mut_ptr().cast(), to.len() * 2) };
        halves.convert_to_f32_slice(to);
    }

    #[inline(always)]
    unsafe fn combine<O: Combine>(from: *const u8, sums: &mut [f32]) {
        let mut values = [0f32; BLOCK];
        let values = &mut values[..sums.len()];
        // SAFETY: the caller's promise.
        unsafe { Self::load(from, values) };
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = O::combine(*sum, *value);
        }
    }

    #[inline(always)]
    unsafe fn store(sums: &[f32], to: *mut u8) {
        let mut halves = [f16::ZERO; BLOCK];
        let halves = &mut halves[..sums.len()];
        halves.convert_from_f32_slice(sums);
        // SAFETY: the caller's promise; the halves are ours.
        unsafe { std::ptr::copy_nonoverlapping(halves.as_ptr().cast(), to, sums.len() * 2) };
    }
}

/// A type that is reduced as it is.
pub(crate) trait Number: Copy + Default {
    fn add(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn both(self, other: Self) -> Self;
    fn divided(self, by: usize) -> Self;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Number for $int {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { self.max(other) }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { self.min(other) }
            #[inline(always)]
            fn both(self, other: Self) -> Self { self & other }
            // No mean of integers is asked for: `ReduceOp::takes`.
            #[inline(always)]
            fn divided(self, _by: usize) -> Self { self }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { if self > other || self.is_nan() { self } else { other } }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { if self < other || self.is_nan() { self } else { other } }
            // No bits of floats are asked for: `ReduceOp::takes`.
            #[inline(always)]
            fn both(self, _other: Self) -> Self { self }
            #[inline(always)]
            fn divided(self, by: usize) -> Self { self / by as Self }
        }
    )*};
}
floats!(f32, f64);

/// A reduction of two.
pub(crate) trait Combine {
    fn combine<N: Number>(a: N, b: N) -> N;
}

macro_rules! combinations {
    ($($name:ident $method:ident),*) => {$(
        pub(crate) struct $name;
        impl Combine for $name {
            #[inline(always)]
            fn combine<N: Number>(a: N, b: N) -> N { a.$method(b) }
        }
    )*};
}
combinations!(Add add, Larger larger, Smaller smaller, Both both);
