//! Convolutions and their gradients: one loop, of which one of three tensors is the result.

use phalanx_graph::Shape;
use phalanx_graph::op::{ConvDims, ConvSpec};

use super::contract::{Bilinear, Number, bilinear, ordered};
use super::moving::pick;
use super::noise::Noise;
use super::{Dual, Operand};

/// Which of the three tensors of a convolution is made of the other two.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Role {
    /// Of the input and the kernel.
    Output,
    /// Of the cotangent and the kernel.
    Input,
    /// Of the input and the cotangent.
    Kernel,
}

/// Where a kernel's element meets an input's, for an output's: flat indices over spatial dims.
struct Tap {
    input: usize,
    kernel: usize,
    output: usize,
}

/// The loop over a convolution.
pub(super) struct Loop<'a> {
    role: Role,
    taps: Vec<Tap>,
    /// Input, kernel and output.
    sides: [Side<'a>; 3],
    feature_groups: usize,
    batch_groups: usize,
}

/// One tensor, seen as `[batch, spatial, features]`; a kernel as `[spatial, input features, output features]`.
struct Side<'a> {
    shape: &'a Shape,
    /// Dims in that order.
    order: Vec<usize>,
    sizes: [usize; 3],
}

impl<'a> Side<'a> {
    fn new(shape: &'a Shape, order: [&[usize]; 3]) -> Self {
        let size = |dims: &[usize]| dims.iter().map(|&dim| shape.dims[dim]).product();
        Self {
            shape,
            order: order.concat(),
            sizes: order.map(size),
        }
    }

    fn of_images(shape: &'a Shape, spec: &ConvSpec) -> Self {
        Self::new(shape, [&[spec.batch], &spec.spatial, &[spec.feature]])
    }

    fn of_kernel(shape: &'a Shape, spec: &ConvSpec) -> Self {
        Self::new(shape, [&spec.spatial, &[spec.feature], &[spec.batch]])
    }

    fn read<T: Number>(&self, x: &[T]) -> Vec<T> {
        pick(x, &ordered(self.shape, &[&self.order]))
    }

    fn write<T: Number>(&self, x: &[T]) -> Vec<T> {
        let mut result = vec![T::default(); x.len()];
        let places = ordered(self.shape, &[&self.order]);
        for (&element, place) in x.iter().zip(places) {
            result[place] = element;
        }
        result
    }
}

impl<'a> Loop<'a> {
    pub(super) fn new(dims: &ConvDims, role: Role, [x, kernel, y]: [&'a Shape; 3]) -> Self {
        Self {
            role,
            taps: taps(dims, [x, kernel, y]),
            sides: [
                Side::of_images(x, &dims.input),
                Side::of_kernel(kernel, &dims.kernel),
                Side::of_images(y, &dims.output),
            ],
            feature_groups: dims.feature_groups.max(1),
            batch_groups: dims.batch_groups.max(1),
        }
    }

    /// Calls `visit` with the place of an input's row of features, a kernel's matrix and an output's row.
    fn each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let [input, kernel, output] = &self.sides;
        let [images, outputs, out_features] = output.sizes;
        let groups = self.feature_groups * self.batch_groups;
        let (in_part, out_part) = (kernel.sizes[1], out_features / groups);
        for group in 0..groups {
            let of_features = self.feature_groups > 1;
            let (image, feature) = match of_features {
                true => (0, group * in_part),
                false => (group * images, 0),
            };
            let column = group * out_part;
            for n in 0..images {
                for tap in &self.taps {
                    let x = ((image + n) * input.sizes[1] + tap.input) * input.sizes[2] + feature;
                    let k = tap.kernel * in_part * out_features + column;
                    let y = (n * outputs + tap.output) * out_features + column;
                    visit(x, k, y);
                }
            }
        }
    }
}

/// Every meeting of input, kernel and output, over all spatial dims.
fn taps(dims: &ConvDims, [x, kernel, y]: [&Shape; 3]) -> Vec<Tap> {
    let mut all = vec![Tap {
        input: 0,
        kernel: 0,
        output: 0,
    }];
    for i in 0..dims.strides.len() {
        let sizes = [
            x.dims[dims.input.spatial[i]],
            kernel.dims[dims.kernel.spatial[i]],
            y.dims[dims.output.spatial[i]],
        ];
        let along = taps_along(dims, i, sizes);
        let step = |tap: &Tap, next: &Tap| Tap {
            input: tap.input * sizes[0] + next.input,
            kernel: tap.kernel * sizes[1] + next.kernel,
            output: tap.output * sizes[2] + next.output,
        };
        let steps = |tap| along.iter().map(move |next| step(&tap, next));
        all = all.into_iter().flat_map(steps).collect();
    }
    all
}

fn taps_along(dims: &ConvDims, i: usize, [inputs, kernels, outputs]: [usize; 3]) -> Vec<Tap> {
    let dilation = dims.input_dilation[i] as i64;
    let mut along = Vec::new();
    for output in 0..outputs {
        for kernel in 0..kernels {
            let reach = output * dims.strides[i] + kernel * dims.kernel_dilation[i];
            let place = reach as i64 - dims.padding[i].0;
            let input = place / dilation;
            if place >= 0 && place % dilation == 0 && input < inputs as i64 {
                along.push(Tap {
                    input: input as usize,
                    kernel,
                    output,
                });
            }
        }
    }
    along
}

impl Bilinear for Loop<'_> {
    fn apply<T: Number>(&self, a: &[T], b: &[T]) -> Vec<T> {
        let [input, kernel, output] = &self.sides;
        let (rows, all) = (kernel.sizes[1], kernel.sizes[2]);
        let columns = all / (self.feature_groups * self.batch_groups);
        match self.role {
            Role::Output => {
                let (x, k) = (input.read(a), kernel.read(b));
                let mut sums = vec![T::default(); output.shape.len()];
                self.each(|at, matrix, to| {
                    let sums = &mut sums[to..][..columns];
                    for (row, &x) in x[at..][..rows].iter().enumerate() {
                        add(sums, x, &k[matrix + row * all..][..columns]);
                    }
                });
                output.write(&sums)
            }
            Role::Input => {
                let (g, k) = (output.read(a), kernel.read(b));
                let mut sums = vec![T::default(); input.shape.len()];
                self.each(|to, matrix, at| {
                    let g = &g[at..][..columns];
                    for (row, sum) in sums[to..][..rows].iter_mut().enumerate() {
                        let pairs = g.iter().zip(&k[matrix + row * all..][..columns]);
                        *sum = pairs.fold(*sum, |sum, (&g, &k)| sum.plus_product(g, k));
                    }
                });
                input.write(&sums)
            }
            Role::Kernel => {
                let (x, g) = (input.read(a), output.read(b));
                let mut sums = vec![T::default(); kernel.shape.len()];
                self.each(|at, matrix, from| {
                    let g = &g[from..][..columns];
                    for (row, &x) in x[at..][..rows].iter().enumerate() {
                        add(&mut sums[matrix + row * all..][..columns], x, g);
                    }
                });
                kernel.write(&sums)
            }
        }
    }
}

fn add<T: Number>(sums: &mut [T], factor: T, x: &[T]) {
    for (sum, &x) in sums.iter_mut().zip(x) {
        *sum = sum.plus_product(factor, x);
    }
}

pub(super) fn conv(
    dims: &ConvDims,
    [x, kernel]: &[Operand; 2],
    shape: &Shape,
    noise: &Noise,
) -> Result<Dual, String> {
    let sums = Loop::new(dims, Role::Output, [x.shape, kernel.shape, shape]);
    bilinear(&sums, x, kernel, shape.dtype, noise)
}
