//! Which rows are examples, and whose padding mask a tensor has.

use phalanx_graph::Tensor;

use super::Cx;
use super::precision::widened;

/// How a layer is called after the value that it takes a padding mask off, and that it gives otherwise as it is: where Keras loses a mask, and here
/// no layer does.
pub(super) const WITHOUT_MASK: &str = "_without_mask";

impl Cx {
    /// The example mask as a bool for each row of a tensor whose first dim is the batch, or that has several rows for each
    /// of the batch.
    #[track_caller]
    pub(super) fn row_mask(&self, x: &Tensor) -> Option<Tensor> {
        let mask = mask_of_rows(self.example_mask()?, x.dim(0));
        if mask.rank() != 1 || mask.dim(0) != x.dim(0) {
            let (mask, x) = (mask.shape(), x.shape());
            let message = format!("the example mask is {mask}, which does not fit the rows of {x}");
            self.graph().fail("layer", message);
            return None;
        }
        Some(mask.not_equal(&mask.zeros_like()))
    }

    /// A tensor with 0 in rows that do not count, and the number to divide its sum by for a mean over examples; 16-bit floats
    /// become f32.
    ///
    /// The number is of all examples, at least 1, also where only some steps [count](Self::counting): a part of a batch
    /// counts by its examples in the loss.
    #[track_caller]
    pub(super) fn only_examples(&self, x: &Tensor) -> (Tensor, Tensor) {
        let x = widened(x);
        let all = x.like(x.dim(0) as f64);
        let Some(mask) = self.row_mask(&x) else {
            return (x, all);
        };
        let rows = mask.broadcast_in(&x.dims(), &[0]);
        let kept = rows.select(&x, &x.zeros_like());
        let examples = self.examples.as_ref().map(|examples| {
            let examples = mask_of_rows(examples, x.dim(0));
            let is_example = examples.not_equal(&examples.zeros_like());
            let count = is_example.convert(x.dtype()).sum_all();
            count.maximum(&count.like(1.0))
        });
        (kept, examples.unwrap_or(all))
    }
}

/// Parts of a batch.
impl Cx {
    /// Runs `call` with only these rows as examples, `bool[batch]`, of those that are; with all of them where none are given.
    #[track_caller]
    pub(super) fn counting<T>(
        &mut self,
        rows: Option<&Tensor>,
        call: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let Some(rows) = rows else {
            return call(self);
        };
        let both = match self.row_mask(rows) {
            Some(examples) => examples.and(rows),
            None => rows.clone(),
        };
        let before = self.example_mask.replace(both);
        let result = call(self);
        self.example_mask = before;
        result
    }
}

/// Gives the first output of a layer the padding mask of the first input, where the layer keeps it.
pub(super) fn settle_masks(
    cx: &mut Cx,
    keeps: bool,
    (inputs, masks): (&[Tensor], &[Option<Tensor>]),
    outputs: &mut [Tensor],
) {
    if keeps {
        cx.pass_mask(&inputs[0], &outputs[0]);
    }
    for output in &mut outputs[usize::from(keeps)..] {
        if is_unchanged(cx, inputs, masks, output) {
            // Masks are kept by the tensor, and this one is another layer's.
            *output = output.copied();
        }
    }
}

/// Whether an output is one of the inputs and has the padding mask that this input had.
fn is_unchanged(cx: &Cx, inputs: &[Tensor], masks: &[Option<Tensor>], output: &Tensor) -> bool {
    let value = |mask: &Tensor| mask.value();
    let now = cx.padding_mask(output).as_ref().map(value);
    let mut before = inputs.iter().zip(masks);
    now.is_some()
        && before
            .any(|(input, mask)| input.value() == output.value() && mask.as_ref().map(value) == now)
}

/// How many rows there are to each of `rows`, where they are several.
pub(crate) fn rows_to_each(own: usize, rows: usize) -> Option<usize> {
    (rows > 0 && own > rows && own.is_multiple_of(rows)).then(|| own / rows)
}

/// A mask `[batch]` for a tensor of `rows` rows: where these are several to each of the batch, as steps folded into rows are,
/// each has its example's.
#[track_caller]
pub(crate) fn mask_of_rows(mask: &Tensor, rows: usize) -> Tensor {
    match mask
        .dims()
        .first()
        .and_then(|&batch| rows_to_each(rows, batch))
    {
        Some(many) => {
            let each = mask.broadcast_in(&[mask.dim(0), many], &[0]);
            each.reshape(&[rows])
        }
        None => mask.clone(),
    }
}
