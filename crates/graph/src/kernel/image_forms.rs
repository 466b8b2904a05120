//! Convolutions that are none of the registered kernels', written by ops that are: transposed ones, and convolutions of volumes.

use std::sync::Arc;

use crate::grad::gradients;
use crate::kernel::{Label, where_positive};
use crate::op::{ConvDims, ConvSpec, Op, PadDim, SliceDim, Subgraph};
use crate::{Graph, Kernel, Shape, Tensor};

/// How a convolution of the dims of an input, a kernel and an output is written.
enum ImageForm {
    /// With the dims of the kernel in this order.
    Reordered(Vec<usize>, ConvDims),
    /// Its input's elements stand apart: the input gradient of this convolution, by the turned kernel.
    Transposed(ConvDims),
    /// Of volumes: what a kernel meets in depth as more channels of images, `depth` windows for each volume.
    Volumes { depth: usize, images: ConvDims },
}

/// The convolution of such inputs to such an output by ops that registered kernels take, where it is none itself.
pub(crate) fn conv(
    dims: &ConvDims,
    inputs: &[Shape],
    output: &Shape,
    label: Label,
) -> Option<Arc<Subgraph>> {
    let form = ImageForm::of(dims, [&inputs[0].dims, &inputs[1].dims, &output.dims])?;
    let write = |x: &[Tensor]| form.conv(dims, &x[0], &x[1], &output.dims);
    Some(body(inputs, label, write))
}

/// The same of the gradients of a convolution, and of one with what follows it.
pub(crate) fn kernel(
    kernel: &Kernel,
    inputs: &[Shape],
    output: &Shape,
    label: Label,
) -> Option<Arc<Subgraph>> {
    match kernel {
        Kernel::ConvInputGradient { dims, input } => {
            let form = ImageForm::of(dims, [input, &inputs[1].dims, &inputs[0].dims])?;
            let write = |x: &[Tensor]| {
                let gradient = form.input_gradient(dims, &x[0], &x[1], input);
                where_positive(&gradient, x.get(2))
            };
            Some(body(inputs, label, write))
        }
        Kernel::ConvKernelGradient { dims, kernel } => {
            let form = ImageForm::of(dims, [&inputs[0].dims, kernel, &inputs[1].dims])?;
            let write = |x: &[Tensor]| form.kernel_gradient(dims, &x[0], &x[1], kernel);
            Some(body(inputs, label, write))
        }
        Kernel::ConvBias { dims, activation } => {
            let form = ImageForm::of(dims, [&inputs[0].dims, &inputs[1].dims, &output.dims])?;
            let ImageForm::Volumes { depth, images } = form else {
                return None;
            };
            let write = |x: &[Tensor]| {
                let op = Kernel::ConvBias {
                    dims: images,
                    activation: *activation,
                };
                let taken = deep(dims, &x[0], x[1].dim(0), depth);
                let added = x.get(3).map(flat_images);
                let operands = [taken, flat(&x[1]), x[2].clone()].into_iter().chain(added);
                let operands: Vec<Tensor> = operands.collect();
                let operands: Vec<&Tensor> = operands.iter().collect();
                let y = x[0].graph().push(Op::Kernel(op), &operands);
                y.reshape(&output.dims)
            };
            Some(body(inputs, label, write))
        }
        _ => None,
    }
}

fn body(inputs: &[Shape], label: Label, write: impl FnOnce(&[Tensor]) -> Tensor) -> Arc<Subgraph> {
    let graph = Graph::new();
    graph.under_label(label, || graph.subgraph(inputs, |x| vec![write(x)]))
}

impl ImageForm {
    fn of(dims: &ConvDims, [input, kernel, output]: [&[usize]; 3]) -> Option<Self> {
        let spatial = dims.strides.len();
        let order = [
            &dims.kernel.spatial[..],
            &[dims.kernel.feature, dims.kernel.batch],
        ]
        .concat();
        if !order.is_sorted() {
            let ordered: Vec<usize> = order.iter().map(|&dim| kernel[dim]).collect();
            let dims = ConvDims {
                kernel: ConvSpec::kernel(spatial),
                ..dims.clone()
            };
            let is_taken =
                dims.is_plain_2d(&ordered) || Self::of(&dims, [input, &ordered, output]).is_some();
            return is_taken.then_some(Self::Reordered(order, dims));
        }
        let images = ConvSpec::channels_last(spatial);
        if [&dims.input, &dims.output] != [&images; 2]
            || (dims.feature_groups, dims.batch_groups) != (1, 1)
        {
            return None;
        }
        if dims.input_dilation.iter().any(|&gap| gap > 1) {
            let turned = mirrored(dims, [input, kernel, output])?;
            let is_taken =
                turned.is_plain_2d(kernel) || Self::of(&turned, [output, kernel, input]).is_some();
            return is_taken.then_some(Self::Transposed(turned));
        }
        (spatial == 3).then(|| Self::volumes(dims, kernel, output[1]))?
    }

    fn volumes(dims: &ConvDims, kernel: &[usize], depth: usize) -> Option<Self> {
        let image = ConvSpec::channels_last(2);
        let images = ConvDims {
            input: image.clone(),
            kernel: ConvSpec::kernel(2),
            output: image,
            strides: dims.strides[1..].to_vec(),
            padding: dims.padding[1..].to_vec(),
            input_dilation: vec![1, 1],
            kernel_dilation: dims.kernel_dilation[1..].to_vec(),
            feature_groups: 1,
            batch_groups: 1,
        };
        let is_padded = dims.padding[0].0 >= 0 && dims.padding[0].1 >= 0;
        // The kernel gradient of one place with strides is none of the kernels': decision 31.
        let is_sparse = kernel[1..3] == [1, 1] && images.strides != [1, 1];
        (is_padded && !is_sparse && images.is_plain_2d(&kernel[1..]))
            .then_some(Self::Volumes { depth, images })
    }

    fn conv(&self, dims: &ConvDims, x: &Tensor, kernel: &Tensor, output: &[usize]) -> Tensor {
        match self {
            Self::Reordered(order, dims) => x.conv(&kernel.transpose(order), dims.clone()),
            Self::Transposed(of) => to_input(of, x, &turned(kernel), output),
            Self::Volumes { depth, images } => {
                let y = deep(dims, x, kernel.dim(0), *depth).conv(&flat(kernel), images.clone());
                y.reshape(output)
            }
        }
    }

    fn input_gradient(
        &self,
        dims: &ConvDims,
        g: &Tensor,
        kernel: &Tensor,
        input: &[usize],
    ) -> Tensor {
        let stored = g.dtype();
        match self {
            Self::Reordered(order, dims) => to_input(dims, g, &kernel.transpose(order), input),
            Self::Transposed(of) => g.conv(&turned(kernel), of.clone()),
            Self::Volumes { depth, images } => {
                // What windows in depth have in common is added, in f32, and rounded once: the derivative of taking them.
                let [g, kernel] = [g, kernel].map(|given| given.convert(given.wide()));
                let x = g.graph().full(&Shape::new(g.dtype(), input), 0.0);
                let taken = deep(dims, &x, kernel.dim(0), *depth);
                let to_taken = to_input(images, &flat_images(&g), &flat(&kernel), &taken.dims());
                let sum = (taken * to_taken).sum_all();
                let sum = gradients(&sum, &[&x]).swap_remove(0).unwrap_or(x);
                sum.convert(stored)
            }
        }
    }

    fn kernel_gradient(&self, dims: &ConvDims, x: &Tensor, g: &Tensor, kernel: &[usize]) -> Tensor {
        match self {
            Self::Reordered(order, dims) => {
                let ordered: Vec<usize> = order.iter().map(|&dim| kernel[dim]).collect();
                let found = to_kernel(dims, x, g, &ordered);
                let back = (0..order.len()).map(|dim| order.iter().position(|&from| from == dim));
                found.transpose(&back.flatten().collect::<Vec<_>>())
            }
            Self::Transposed(of) => {
                let n = kernel.len() - 2;
                let exchanged = [&kernel[..n], &[kernel[n + 1], kernel[n]]].concat();
                turned(&to_kernel(of, g, x, &exchanged))
            }
            Self::Volumes { depth, images } => {
                let [size, height, width, channels, filters] =
                    [0, 1, 2, 3, 4].map(|dim| kernel[dim]);
                // Not the copy of the way forward, which would be kept until then.
                let taken = deep(dims, &x.computed_once(), size, *depth);
                let flat = [height, width, size * channels, filters];
                let found = to_kernel(images, &taken, &flat_images(g), &flat);
                let apart = found.reshape(&[height, width, size, channels, filters]);
                apart.transpose(&[2, 0, 1, 3, 4])
            }
        }
    }
}

fn to_input(dims: &ConvDims, g: &Tensor, kernel: &Tensor, input: &[usize]) -> Tensor {
    let (dims, input) = (dims.clone(), input.to_vec());
    let op = Kernel::ConvInputGradient { dims, input };
    g.graph().push(Op::Kernel(op), &[g, kernel])
}

fn to_kernel(dims: &ConvDims, x: &Tensor, g: &Tensor, kernel: &[usize]) -> Tensor {
    let (dims, kernel) = (dims.clone(), kernel.to_vec());
    let op = Kernel::ConvKernelGradient { dims, kernel };
    g.graph().push(Op::Kernel(op), &[x, g])
}

/// The convolution that leads from the output of a transposed one to its input, by the [`turned`] kernel.
fn mirrored(dims: &ConvDims, [input, kernel, output]: [&[usize]; 3]) -> Option<ConvDims> {
    let along = |i: usize| {
        let span = ((kernel[i] - 1) * dims.kernel_dilation[i] + 1) as i64;
        let met = (input[i + 1] as i64 - 1) * dims.input_dilation[i] as i64 + span;
        let low = span - 1 - dims.padding[i].0;
        (low, met - output[i + 1] as i64 - low)
    };
    let is_one_place = kernel[..dims.strides.len()].iter().all(|&size| size == 1);
    let is_dense = dims.strides.iter().all(|&stride| stride == 1);
    // The kernel gradient of one place with strides is none of the kernels': decision 31.
    (is_dense && !is_one_place).then(|| ConvDims {
        strides: dims.input_dilation.clone(),
        padding: (0..dims.strides.len()).map(along).collect(),
        input_dilation: dims.strides.clone(),
        ..dims.clone()
    })
}

/// A kernel read from its end, inputs and outputs exchanged; its own inverse.
fn turned(kernel: &Tensor) -> Tensor {
    let n = kernel.rank() - 2;
    let spatial: Vec<usize> = (0..n).collect();
    let exchanged = [&spatial[..], &[n + 1, n]].concat();
    kernel.reverse(&spatial).transpose(&exchanged)
}

/// Images of the windows in depth of volumes, `[batch * windows, height, width, size * channels]`.
fn deep(dims: &ConvDims, x: &Tensor, size: usize, windows: usize) -> Tensor {
    let (low, high) = dims.padding[0];
    let mut pads = vec![PadDim::default(); 5];
    (pads[1].low, pads[1].high) = (low, high);
    let padded = match (low, high) {
        (0, 0) => x.clone(),
        _ => x.pad(&pads, 0.0),
    };
    let whole = |&limit: &usize| SliceDim {
        start: 0,
        limit,
        stride: 1,
    };
    let at = |place: usize| {
        let (start, stride) = (place * dims.kernel_dilation[0], dims.strides[0]);
        let mut slices: Vec<SliceDim> = padded.dims().iter().map(whole).collect();
        slices[1] = SliceDim {
            start,
            limit: start + (windows - 1) * stride + 1,
            stride,
        };
        padded.slice(&slices)
    };
    let places: Vec<Tensor> = (0..size).map(at).collect();
    flat_images(&Tensor::concat(&places.iter().collect::<Vec<_>>(), 4))
}

/// Volumes as images: `[batch * depth, height, width, channels]`.
fn flat_images(x: &Tensor) -> Tensor {
    let [batch, depth, height, width, channels] = [0, 1, 2, 3, 4].map(|dim| x.dim(dim));
    x.reshape(&[batch * depth, height, width, channels])
}

/// A kernel of volumes for [`deep`] images: `[height, width, depth * channels, filters]`.
fn flat(kernel: &Tensor) -> Tensor {
    let [depth, height, width, channels, filters] = [0, 1, 2, 3, 4].map(|dim| kernel.dim(dim));
    let ordered = kernel.transpose(&[1, 2, 0, 3, 4]);
    ordered.reshape(&[height, width, depth * channels, filters])
}
