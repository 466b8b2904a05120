//! Pooling to as many windows as are asked for, whatever the size of the input.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::position::one_sequence;
use super::precision::widened;
use super::sizes::{one_image, one_volume};
use super::{Cx, Pair, Sizes, Triple};
use crate::config::{self, Component, Described, Field, Kind};

/// The dims of one of the windows along a dim of a size: the first element, and the one after the last.
const fn window(at: usize, size: usize, count: usize) -> [usize; 2] {
    [at * size / count, ((at + 1) * size).div_ceil(count)]
}

/// Which element each place in each window of a dim is, `[windows, most]`: the last one of a window again where it is shorter than others.
fn places(size: usize, count: usize) -> (usize, Vec<i32>) {
    let windows = (0..count).map(|at| window(at, size, count));
    let most = windows.clone().map(|[start, end]| end - start).max();
    let most = most.unwrap_or(1);
    let places = windows
        .flat_map(|[start, end]| (start..start + most).map(move |place| place.min(end - 1) as i32));
    (most, places.collect())
}

/// The elements of each window of a dim, in two dims, `[windows, most]`.
#[track_caller]
fn divided(x: &Tensor, dim: usize, count: usize) -> Tensor {
    let (most, places) = places(x.dim(dim), count);
    let places = x.graph().constant(HostTensor::new([count, most], &places));
    x.gather(&places, dim)
}

/// The largest element of each window of a dim.
#[track_caller]
fn largest(x: &Tensor, dim: usize, count: usize) -> Tensor {
    divided(x, dim, count).max(&[dim + 1])
}

/// The mean of each window of a dim: the means of boxes are the means along one dim after another.
#[track_caller]
fn mean(x: &Tensor, dim: usize, count: usize) -> Tensor {
    let lengths = (0..count).map(|at| {
        let [start, end] = window(at, x.dim(dim), count);
        (end - start) as i32
    });
    let lengths = HostTensor::new([count], &lengths.collect::<Vec<i32>>());
    let lengths = x.graph().constant(lengths);
    let all = divided(x, dim, count);
    // No product with weights: 0 times an infinite element of another window is not a number.
    let place = x.graph().iota(Shape::new(DType::I32, all.dims()), dim + 1);
    let is_first = place.less(&lengths.broadcast_in(&all.dims(), &[dim]));
    let sums = is_first.select(&all, &all.zeros_like()).sum(&[dim + 1]);
    &sums
        / lengths
            .convert(x.dtype())
            .broadcast_in(&sums.dims(), &[dim])
}

/// What becomes of the windows of a dim.
type Pooled = fn(&Tensor, usize, usize) -> Tensor;

#[track_caller]
fn pooled(x: &Tensor, sizes: &[usize], pool: Pooled) -> Tensor {
    let values = widened(x);
    let each = sizes.iter().enumerate();
    let pooled = each.fold(values, |x, (at, &count)| pool(&x, at + 1, count));
    pooled.convert(x.dtype())
}

macro_rules! adaptive_pooling {
    ($(#[$doc:meta])* $name:ident($size:ty, $given:ty), $kind:literal, $about:literal, $sizes:expr, $one_input:ident, $pool:ident) => {
        $(#[$doc])*
        ///
        /// Of `n` elements of a direction window `i` of `k` has those from `i n / k`, rounded down, to `(i + 1) n / k`, rounded up; windows may
        /// overlap, and are as many for every input.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            output_size: $size,
        }

        impl $name {
            /// This many windows: a number of steps, or one number for all directions or one for each.
            #[must_use]
            pub fn new(output_size: $given) -> Self {
                Self { output_size: output_size.into() }
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[Field::required("output_size", $sizes, "how many windows there are in each direction").example("2")],
            };
        }

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check_settings(&self) -> Result<(), String> {
                self.output_size.check("`output_size`")
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                $one_input(inputs).map(|_| ())
            }

            fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                pooled(&inputs[0], &self.output_size.array(), $pool)
            }
        }
    };
}

adaptive_pooling! {
    /// The means of a number of windows of steps, `[batch, steps, features]`; kind `adaptive_average_pool1d`.
    AdaptiveAveragePool1d(Sizes<1>, usize), "adaptive_average_pool1d", "the means of a number of windows of steps", Kind::SIZE, one_sequence, mean
}
adaptive_pooling! {
    /// The means of a number of windows of images, `[batch, height, width, channels]`; kind `adaptive_average_pool2d`.
    AdaptiveAveragePool2d(Pair, impl Into<Pair>), "adaptive_average_pool2d", "the means of a number of windows of images", Kind::PAIR, one_image, mean
}
adaptive_pooling! {
    /// The means of a number of windows of volumes, `[batch, depth, height, width, channels]`; kind `adaptive_average_pool3d`.
    AdaptiveAveragePool3d(Triple, impl Into<Triple>), "adaptive_average_pool3d", "the means of a number of windows of volumes", Kind::TRIPLE, one_volume, mean
}
adaptive_pooling! {
    /// The largest elements of a number of windows of steps, `[batch, steps, features]`; kind `adaptive_max_pool1d`.
    AdaptiveMaxPool1d(Sizes<1>, usize), "adaptive_max_pool1d", "the maxima of a number of windows of steps", Kind::SIZE, one_sequence, largest
}
adaptive_pooling! {
    /// The largest elements of a number of windows of images, `[batch, height, width, channels]`; kind `adaptive_max_pool2d`.
    AdaptiveMaxPool2d(Pair, impl Into<Pair>), "adaptive_max_pool2d", "the maxima of a number of windows of images", Kind::PAIR, one_image, largest
}
adaptive_pooling! {
    /// The largest elements of a number of windows of volumes, `[batch, depth, height, width, channels]`; kind `adaptive_max_pool3d`.
    AdaptiveMaxPool3d(Triple, impl Into<Triple>), "adaptive_max_pool3d", "the maxima of a number of windows of volumes", Kind::TRIPLE, one_volume, largest
}
