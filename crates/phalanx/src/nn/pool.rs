//! Pooling of images `[batch, height, width, channels]`, of volumes, and of sequences as images of one row.

use phalanx_graph::op::{ReduceOp, WindowDim};
use phalanx_graph::{Pool2d, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conv1d::{as_row, fits_steps, of_row};
use super::layer::Layer;
use super::position::one_sequence;
use super::precision::widened;
use super::sizes::{SlidingWindow, one_image, one_volume};
use super::{Cx, Padding, Pair, Sizes, Triple, fields};
use crate::config::{self, Component, Described, Field, Kind};

/// The size of a window, and what it slides over: its `N` directions are an image's, or a volume's.
trait WindowSize<const N: usize>: Copy {
    const FIELDS: &[Field];

    fn sizes(self) -> Sizes<N>;

    fn check_fits(window: SlidingWindow<N>, inputs: &[Shape]) -> Result<(), String>;

    /// What `reduce` makes of the windows of an input that [`check_fits`](Self::check_fits) accepts.
    fn pooled(x: &Tensor, window: SlidingWindow<N>, reduce: PoolFunction<N>) -> Tensor;
}

/// What becomes of the windows of an image or a volume.
type PoolFunction<const N: usize> = fn(&Tensor, SlidingWindow<N>) -> Tensor;

const STRIDES_DOC: &str = "step from one window to the next; the size of a window by default";

/// Height and width, over images.
impl WindowSize<2> for Pair {
    const FIELDS: &[Field] = &[
        Field::optional("pool_size", Kind::PAIR, "height and width of a window"),
        fields::STRIDES.doc(STRIDES_DOC),
        fields::PADDING,
    ];

    fn sizes(self) -> Self {
        self
    }

    fn check_fits(window: SlidingWindow<2>, inputs: &[Shape]) -> Result<(), String> {
        window.check_fits(one_image(inputs)?)
    }

    fn pooled(x: &Tensor, window: SlidingWindow<2>, reduce: PoolFunction<2>) -> Tensor {
        reduce(x, window)
    }
}

/// Depth, height and width, over volumes.
impl WindowSize<3> for Triple {
    const FIELDS: &[Field] = &[
        Field::optional(
            "pool_size",
            Kind::TRIPLE,
            "depth, height and width of a window",
        ),
        fields::STRIDES.kind(Kind::TRIPLE).doc(STRIDES_DOC),
        fields::VOLUME_PADDING,
    ];

    fn sizes(self) -> Self {
        self
    }

    fn check_fits(window: SlidingWindow<3>, inputs: &[Shape]) -> Result<(), String> {
        window.check_fits(one_volume(inputs)?)
    }

    fn pooled(x: &Tensor, window: SlidingWindow<3>, reduce: PoolFunction<3>) -> Tensor {
        reduce(x, window)
    }
}

/// Steps, over sequences: images of one row.
impl WindowSize<2> for usize {
    const FIELDS: &[Field] = &[
        Field::optional("pool_size", Kind::SIZE, "number of steps of a window"),
        fields::STRIDES.kind(Kind::SIZE).doc(STRIDES_DOC),
        fields::PADDING.doc(
            "`valid`: windows stay inside the sequence; `same`: they may reach beyond its ends",
        ),
    ];

    fn sizes(self) -> Pair {
        [1, self].into()
    }

    fn check_fits(window: SlidingWindow<2>, inputs: &[Shape]) -> Result<(), String> {
        fits_steps(window, one_sequence(inputs)?.dims[1])
    }

    fn pooled(x: &Tensor, window: SlidingWindow<2>, reduce: PoolFunction<2>) -> Tensor {
        of_row(&reduce(&as_row(x), window))
    }
}

macro_rules! pooling {
    ($(#[$doc:meta])* $name:ident($size:ty, $n:literal, $given:ty), $kind:literal, $about:literal, $reduce:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            pool_size: $size,
            strides: Option<$size>,
            padding: Padding,
        }

        impl $name {
            /// Windows of a size, side by side: a number of steps, or one number for all directions or one for each.
            #[must_use]
            pub fn new(pool_size: $given) -> Self {
                Self {
                    pool_size: pool_size.into(),
                    strides: None,
                    padding: Padding::Valid,
                }
            }

            /// Sets the distance between windows, their size by default.
            #[must_use]
            pub fn strides(mut self, strides: $given) -> Self {
                self.strides = Some(strides.into());
                self
            }

            /// Sets how windows treat the edges.
            #[must_use]
            pub const fn padding(mut self, padding: Padding) -> Self {
                self.padding = padding;
                self
            }

            fn window(&self) -> SlidingWindow<$n> {
                SlidingWindow {
                    size: WindowSize::<$n>::sizes(self.pool_size),
                    strides: WindowSize::<$n>::sizes(self.strides.unwrap_or(self.pool_size)),
                    dilation: 1.into(),
                    padding: self.padding,
                }
            }
        }

        /// Windows of 2 in each direction, as in Keras.
        impl Default for $name {
            fn default() -> Self {
                Self::new(2)
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: <$size as WindowSize<$n>>::FIELDS,
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
                self.window().check("`pool_size`")
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                <$size as WindowSize<$n>>::check_fits(self.window(), inputs)
            }

            fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                <$size as WindowSize<$n>>::pooled(&inputs[0], self.window(), $reduce)
            }
        }
    };
}

pooling! {
    /// The largest element of each window; kind `max_pool2d`.
    MaxPool2d(Pair, 2, impl Into<Pair>), "max_pool2d", "the maximum of each window", largest
}
pooling! {
    /// The mean of the elements of each window that lie inside the image; kind `average_pool2d`.
    AveragePool2d(Pair, 2, impl Into<Pair>), "average_pool2d", "the mean of each window", average
}
pooling! {
    /// The largest element of each window of `[batch, depth, height, width, channels]`; kind `max_pool3d`.
    ///
    /// Fields and defaults are Keras'. Of equal elements in a window the first has the gradient, where TensorFlow on a CPU gives it
    /// to all of them.
    ///
    /// ```
    /// use phalanx::nn::{MaxPool3d, Sequential};
    ///
    /// let model = Sequential::new([4, 9, 8, 3]).add(MaxPool3d::new((1, 2, 2))).build()?;
    /// assert_eq!(model.outputs()[0].dims, [4, 4, 4, 3]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    MaxPool3d(Triple, 3, impl Into<Triple>), "max_pool3d", "the maximum of each window of volumes", largest_in_volumes
}
pooling! {
    /// The mean of the elements of each window that lie inside the volume; kind `average_pool3d`.
    ///
    /// `[batch, depth, height, width, channels]`, windows and defaults as in Keras.
    AveragePool3d(Triple, 3, impl Into<Triple>), "average_pool3d", "the mean of each window of volumes", average
}

#[track_caller]
fn largest(x: &Tensor, window: SlidingWindow<2>) -> Tensor {
    x.max_pool2d(Pool2d {
        size: window.size.array(),
        strides: window.strides.array(),
        padding: window.padding(&x.dims()),
    })
}

/// Of each image of the volumes, then over depth: of equal elements it is still the first of the window.
#[track_caller]
fn largest_in_volumes(x: &Tensor, window: SlidingWindow<3>) -> Tensor {
    let mut depth = windows(x, window);
    let [batch, images, height, width, channels] = [0, 1, 2, 3, 4].map(|dim| x.dim(dim));
    let each = x.reshape(&[batch * images, height, width, channels]);
    let each = each.max_pool2d(Pool2d {
        size: [depth[2].size, depth[3].size],
        strides: [depth[2].stride, depth[3].stride],
        padding: [2, 3].map(|dim| (depth[dim].low, depth[dim].high)),
    });
    let volumes = [batch, images, each.dim(1), each.dim(2), channels];
    depth[2..4].fill(WindowDim::identity());
    each.reshape(&volumes).reduce_window(ReduceOp::Max, &depth)
}

/// In f32 or more: the sum of a large window is more than f16 holds, and bf16 rounds it.
#[track_caller]
fn average<const N: usize>(x: &Tensor, window: SlidingWindow<N>) -> Tensor {
    mean_of_windows(&widened(x), window).convert(x.dtype())
}

#[track_caller]
fn mean_of_windows<const N: usize>(x: &Tensor, window: SlidingWindow<N>) -> Tensor {
    let dims = windows(x, window);
    let total = x.reduce_window(ReduceOp::Sum, &dims);
    if window.padding == Padding::Valid {
        let elements: usize = window.size.array().iter().product();
        return total / elements as f64;
    }
    let mut inside = x.dims();
    (inside[0], inside[N + 1]) = (1, 1);
    let counts = x
        .graph()
        .full(&Shape::new(x.dtype(), inside), 1.0)
        .reduce_window(ReduceOp::Sum, &dims);
    total / counts
}

/// The windows of each dim, batch and channels included.
fn windows<const N: usize>(x: &Tensor, window: SlidingWindow<N>) -> Vec<WindowDim> {
    let padding = window.padding(&x.dims());
    let dim = |i: usize| WindowDim {
        size: window.size.array()[i],
        stride: window.strides.array()[i],
        dilation: 1,
        low: padding[i].0,
        high: padding[i].1,
    };
    let mut dims = vec![WindowDim::identity()];
    dims.extend((0..N).map(dim));
    dims.push(WindowDim::identity());
    dims
}

pooling! {
    /// The largest number of each feature in each window of `[batch, steps, features]`; kind `max_pool1d`.
    ///
    /// Padding counts as any other step, and the output has no mask, as in Keras.
    MaxPool1d(usize, 2, usize), "max_pool1d", "the maximum of each window of steps", largest
}
pooling! {
    /// The mean of each feature over the steps of each window that lie inside the sequence; kind `average_pool1d`.
    ///
    /// Padding counts as any other step, and the output has no mask, as in Keras.
    AveragePool1d(usize, 2, usize), "average_pool1d", "the mean of each window of steps", average
}

macro_rules! global_pooling {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $about:literal, $reduce:ident, $one_input:ident, $dims:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            keepdims: bool,
        }

        impl $name {
            /// Makes `[batch, channels]`.
            #[must_use]
            pub const fn new() -> Self {
                Self { keepdims: false }
            }

            /// Sets whether the dims between batch and channels stay, as dims of 1.
            #[must_use]
            pub const fn keep_dims(mut self, keep: bool) -> Self {
                self.keepdims = keep;
                self
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[
                    fields::KEEPDIMS,
                ],
            };
        }

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                $one_input(inputs).map(|_| ())
            }

            fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                let pooled = inputs[0].$reduce(&$dims);
                if self.keepdims { pooled.keep_dims(&$dims) } else { pooled }
            }
        }
    };
}

global_pooling! {
    /// The mean of each channel; kind `global_average_pool2d`.
    GlobalAveragePool2d, "global_average_pool2d", "the mean of each channel", mean, one_image, [1, 2]
}
global_pooling! {
    /// The largest element of each channel; kind `global_max_pool2d`.
    GlobalMaxPool2d, "global_max_pool2d", "the maximum of each channel", max, one_image, [1, 2]
}
global_pooling! {
    /// The mean of each channel of `[batch, depth, height, width, channels]`, as in Keras; kind `global_average_pool3d`.
    GlobalAveragePool3d, "global_average_pool3d", "the mean of each channel of volumes", mean, one_volume, [1, 2, 3]
}
global_pooling! {
    /// The largest element of each channel of `[batch, depth, height, width, channels]`, as in Keras; kind `global_max_pool3d`.
    GlobalMaxPool3d, "global_max_pool3d", "the maximum of each channel of volumes", max, one_volume, [1, 2, 3]
}
