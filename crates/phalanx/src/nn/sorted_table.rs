//! Where numbers belong in an ascending table, found within a program.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};

/// For each element of `x`, i32, how many of the numbers of an ascending table `[n]` come before it.
///
/// `is_before(number, x)` holds for the first of the numbers and for none after them. The table is halved at every step, `log2(n)` of them.
#[track_caller]
pub(super) fn count_before(
    table: &HostTensor,
    x: &Tensor,
    is_before: impl Fn(&Tensor, &Tensor) -> Tensor,
) -> Tensor {
    let numbers = table.rows();
    let table = x.graph().constant(table.clone());
    let steps = usize::BITS - numbers.leading_zeros();
    let mut count = x.graph().full(&Shape::new(DType::I32, x.dims()), 0.0);
    for step in (0..steps).rev() {
        let more = &count + f64::from(2u32.pow(step));
        // Beyond the table it is the last number.
        let number = table.gather(&(&more - 1.0), 0);
        count = is_before(&number, x).select(&more, &count);
    }
    count.minimum(&count.like(numbers as f64))
}
