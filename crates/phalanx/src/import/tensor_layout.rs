//! Layouts of tensors: PyTorch's, and how they become ours.

use phalanx_graph::{HostTensor, Shape};

use super::weights_file::Convention;

/// How a variable lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorLayout {
    /// As with us.
    Same,
    /// `[outputs, inputs]`.
    Transposed,
    /// `[outputs, inputs / groups, height, width]`.
    Convolution,
    /// `[outputs, inputs / groups, depth, height, width]`.
    VolumeConvolution,
    /// `[outputs, inputs / groups, steps]`.
    StepConvolution,
    /// `[channels * multiplier, 1, height, width]`.
    Depthwise,
    /// A convolution of each channel of sequences.
    StepDepthwise,
    /// `[heads * size, inputs]` of `[inputs, heads, size]`.
    ToHeads,
    /// `[outputs, heads * size]` of `[heads, size, outputs]`.
    FromHeads,
    /// All dims in one.
    Flat,
    /// `[channels]`, or `[1]`, of dims of which all others are 1.
    Slopes,
    /// Rows of the gates of a GRU: reset, update, candidate; ours are columns: update, reset, candidate.
    Gates,
    /// `[2, columns]`, whose sum ours is.
    SummedBiases,
    /// `[2, columns]` of a GRU, in the order of its gates.
    GateBiases,
}

impl TensorLayout {
    /// The layout of a variable of a layer of some kind.
    pub(super) fn of(convention: Convention, kind: &str, variable: &str) -> Self {
        match (convention, kind, variable) {
            (Convention::Torch, "dense", "kernel") => Self::Transposed,
            // A transposed convolution has inputs and outputs exchanged in both.
            (Convention::Torch, "conv2d" | "conv2d_transpose", "kernel") => Self::Convolution,
            (Convention::Torch, "conv1d" | "conv1d_transpose", "kernel") => Self::StepConvolution,
            (Convention::Torch, "conv3d" | "conv3d_transpose", "kernel") => Self::VolumeConvolution,
            (Convention::Torch, "depthwise_conv1d", "kernel") => Self::StepDepthwise,
            (Convention::Torch, "depthwise_conv2d", "kernel") => Self::Depthwise,
            (Convention::Torch, "to_heads", "kernel") => Self::ToHeads,
            (Convention::Torch, "from_heads", "kernel") => Self::FromHeads,
            (Convention::Torch, "to_heads", "bias") => Self::Flat,
            (Convention::Torch, "p_relu", "alpha") => Self::Slopes,
            (Convention::Torch, "gru", "bias") => Self::GateBiases,
            (Convention::Torch, "gru", _) => Self::Gates,
            (Convention::Torch, "lstm" | "simple_rnn", "bias") => Self::SummedBiases,
            (Convention::Torch, "lstm" | "simple_rnn", _) => Self::Transposed,
            _ => Self::Same,
        }
    }

    /// The dims in the file of a variable with these dims of ours.
    pub(super) fn dims(self, ours: &[usize]) -> Vec<usize> {
        match (self, ours) {
            (Self::Transposed | Self::Gates, &[inputs, outputs]) => vec![outputs, inputs],
            (Self::Convolution, &[height, width, inputs, outputs]) => {
                vec![outputs, inputs, height, width]
            }
            (Self::VolumeConvolution, &[depth, height, width, inputs, outputs]) => {
                vec![outputs, inputs, depth, height, width]
            }
            (Self::StepConvolution, &[steps, inputs, outputs]) => vec![outputs, inputs, steps],
            (Self::Depthwise, &[height, width, channels, multiplier]) => {
                vec![channels * multiplier, 1, height, width]
            }
            (Self::StepDepthwise, &[steps, channels, multiplier]) => {
                vec![channels * multiplier, 1, steps]
            }
            (Self::ToHeads, &[inputs, heads, size]) => vec![heads * size, inputs],
            (Self::FromHeads, &[heads, size, outputs]) => vec![outputs, heads * size],
            (Self::Flat, ours) => vec![ours.iter().product()],
            (Self::Slopes, ours) if ours.iter().filter(|&&size| size != 1).count() < 2 => {
                vec![ours.iter().product()]
            }
            (Self::SummedBiases | Self::GateBiases, &[columns]) => vec![2, columns],
            _ => ours.to_vec(),
        }
    }
}

/// The name that a variable of a layer of some kind has in a file; none where `PyTorch`'s layout of it is not known, so that a square one
/// is not taken as it lies.
pub(super) fn field<'a>(convention: Convention, kind: &str, variable: &'a str) -> Option<&'a str> {
    if convention != Convention::Torch {
        return Some(variable);
    }
    let layout = TensorLayout::of(convention, kind, variable);
    Some(match (kind, variable) {
        ("lstm" | "gru" | "simple_rnn", "kernel") => "weight_ih",
        ("lstm" | "gru" | "simple_rnn", "recurrent_kernel") => "weight_hh",
        // With the other, `bias_hh`, as its second row.
        ("lstm" | "gru" | "simple_rnn", "bias") => "bias_ih",
        (_, "kernel") if layout == TensorLayout::Same => return None,
        (_, "kernel" | "gamma" | "scale" | "embeddings" | "alpha") => "weight",
        (_, "beta") => "bias",
        (_, "moving_mean") => "running_mean",
        (_, "moving_variance") => "running_var",
        _ => variable,
    })
}

/// A tensor of a file as the value of a variable.
pub(super) fn to_ours(layout: TensorLayout, raw: &HostTensor, shape: &Shape) -> HostTensor {
    let raw = raw.convert(shape.dtype);
    // In the file: outputs, then inputs, then the window. The last dims of ours are inputs and outputs.
    let (outputs, inputs, window) = match (layout, raw.dims()) {
        (
            TensorLayout::Transposed | TensorLayout::ToHeads | TensorLayout::FromHeads,
            &[outputs, inputs],
        ) => (outputs, inputs, 1),
        (TensorLayout::Gates, &[outputs, _]) => {
            let turned = to_ours(TensorLayout::Transposed, &raw, shape);
            return in_order(&turned, 1, &gates(outputs));
        }
        (TensorLayout::GateBiases, &[_, columns]) => return in_order(&raw, 1, &gates(columns)),
        (TensorLayout::SummedBiases, &[_, columns]) => return summed(&raw, columns, shape),
        (TensorLayout::Flat | TensorLayout::Slopes, _) => {
            return HostTensor::from_bytes(shape.clone(), raw.bytes()).unwrap_or(raw);
        }
        (
            TensorLayout::Convolution | TensorLayout::Depthwise,
            &[outputs, inputs, height, width],
        ) => (outputs, inputs, height * width),
        (TensorLayout::VolumeConvolution, &[outputs, inputs, depth, height, width]) => {
            (outputs, inputs, depth * height * width)
        }
        (
            TensorLayout::StepConvolution | TensorLayout::StepDepthwise,
            &[outputs, inputs, steps],
        ) => (outputs, inputs, steps),
        _ => return raw,
    };
    let size = shape.dtype.size();
    let mut bytes = Vec::with_capacity(raw.bytes().len());
    for place in 0..window {
        for input in 0..inputs {
            for output in 0..outputs {
                let from = ((output * inputs + input) * window + place) * size;
                bytes.extend_from_slice(&raw.bytes()[from..from + size]);
            }
        }
    }
    HostTensor::from_bytes(shape.clone(), &bytes).unwrap_or(raw)
}

/// For each column of a GRU, update before reset, which it is in PyTorch's, reset before update.
fn gates(columns: usize) -> Vec<usize> {
    let units = columns / 3;
    (units..2 * units)
        .chain(0..units)
        .chain(2 * units..columns)
        .collect()
}

/// The sum of two rows.
fn summed(rows: &HostTensor, columns: usize, shape: &Shape) -> HostTensor {
    let values = rows.to_f64();
    let (first, second) = values.split_at(columns);
    let sums: Vec<f64> = first.iter().zip(second).map(|(a, b)| a + b).collect();
    HostTensor::from_f64(shape.clone(), &sums)
}

/// A value whose dim has the elements with these numbers of the given one.
pub(super) fn in_order(value: &HostTensor, dim: usize, numbers: &[usize]) -> HostTensor {
    let dims = value.dims();
    if dims.get(dim) != Some(&numbers.len()) {
        return value.clone();
    }
    let inside: usize = dims[dim + 1..].iter().product();
    let row = inside * value.shape().dtype.size();
    let mut bytes = Vec::with_capacity(value.bytes().len());
    for block in value.bytes().chunks_exact((row * numbers.len()).max(1)) {
        for number in numbers {
            bytes.extend_from_slice(&block[number * row..][..row]);
        }
    }
    HostTensor::from_bytes(value.shape().clone(), &bytes).unwrap_or_else(|| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_are_put_in_order() {
        let value = HostTensor::new([2, 3], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(
            in_order(&value, 0, &[1, 0]).f32s(),
            [3.0, 4.0, 5.0, 0.0, 1.0, 2.0]
        );
        assert_eq!(
            in_order(&value, 1, &[2, 0, 1]).f32s(),
            [2.0, 0.0, 1.0, 5.0, 3.0, 4.0]
        );
    }

    #[test]
    fn kernels_of_volumes_are_turned() {
        let shape = Shape::f32([1, 2, 3, 2, 4]);
        let layout = TensorLayout::of(Convention::Torch, "conv3d", "kernel");
        let dims = layout.dims(&shape.dims);
        assert_eq!(dims, [4, 2, 1, 2, 3]);
        // Element [o, i, z, y, x] of PyTorch's is [z, y, x, i, o] of ours.
        let theirs: Vec<f32> = (0..48).map(|x| x as f32).collect();
        let turned = to_ours(layout, &HostTensor::new(dims, &theirs), &shape);
        let expected = |at: usize| (at % 4 * 12 + at / 4 % 2 * 6 + at / 8) as f32;
        assert_eq!(turned.f32s(), (0..48).map(expected).collect::<Vec<_>>());
        assert_eq!(turned.dims(), [1, 2, 3, 2, 4]);
    }

    #[test]
    fn kernels_of_each_channel_of_sequences_are_turned() {
        let shape = Shape::f32([3, 2, 2]);
        let layout = TensorLayout::of(Convention::Torch, "depthwise_conv1d", "kernel");
        let dims = layout.dims(&shape.dims);
        assert_eq!(dims, [4, 1, 3]);
        // Element [output, 0, step] of PyTorch's is [step, output / 2, output % 2] of ours.
        let theirs: Vec<f32> = (0..12).map(|x| x as f32).collect();
        let turned = to_ours(layout, &HostTensor::new(dims, &theirs), &shape);
        let expected = |at: usize| (at % 4 * 3 + at / 4) as f32;
        assert_eq!(turned.f32s(), (0..12).map(expected).collect::<Vec<_>>());
        assert_eq!(turned.dims(), [3, 2, 2]);
    }

    #[test]
    fn kernels_are_turned() {
        let shape = Shape::f32([1, 2, 3, 2]);
        let ours: Vec<f32> = (0..12).map(|x| x as f32).collect();
        // Element [o, i, y, x] of PyTorch's is [y, x, i, o] of ours.
        let mut theirs = Vec::new();
        for o in 0..2 {
            for i in 0..3 {
                for x in 0..2 {
                    theirs.push(ours[(x * 3 + i) * 2 + o]);
                }
            }
        }
        let dims = TensorLayout::Convolution.dims(&shape.dims);
        assert_eq!(dims, [2, 3, 1, 2]);
        let turned = to_ours(
            TensorLayout::Convolution,
            &HostTensor::new(dims, &theirs),
            &shape,
        );
        assert_eq!((turned.f32s(), turned.dims()), (ours, &[1, 2, 3, 2][..]));
    }
}
