//! Contrast of parts of images stretched, up to a limit.

use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::picture_layer::{ANY, VALUE_RANGE, check_values, of_channels, value_range_setter};
use super::precision::widened;
use super::preprocess::as_float;
use super::sizes::check_range;
use super::tones::{MOST, as_bytes, of_bytes, whole_bins};
use super::{Cx, Pair};
use crate::config::{self, Component, Described, Field, Kind};

/// Values that are counted.
const LEVELS: usize = 256;

/// Makes values about equally frequent in each tile of an image, with less contrast where a limit says so, in prediction, too; kind
/// `contrast_limited_adaptive_histogram_equalization` (Zuiderveld 1994).
///
/// Images `[batch, height, width, channels]` of any element type become floats of the same dims, computed in f32, each channel by itself: values are cut
/// to whole numbers from 0 to 255 before, and pixels between the middles of tiles are linearly between what their tiles make of them. The last tiles
/// are filled up with the image in a mirror. Gradients are 0. Keras gives bytes where it is given bytes, cuts some whole numbers of another range than
/// 0 to 255 to the one below, and fails on TensorFlow where more is to be filled up than there is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContrastLimitedAdaptiveHistogramEqualization {
    value_range: [f64; 2],
    clip_limit: f64,
    tile_grid_size: Pair,
}

/// Keras' defaults.
impl Default for ContrastLimitedAdaptiveHistogramEqualization {
    fn default() -> Self {
        Self::new(4.0, 8)
    }
}

impl ContrastLimitedAdaptiveHistogramEqualization {
    /// No value counts for more than `clip_limit` times an even share, without limit where it is 0 or below, in each of `tile_grid_size` tiles of the height and the width.
    #[must_use]
    pub fn new(clip_limit: f64, tile_grid_size: impl Into<Pair>) -> Self {
        Self {
            value_range: [0.0, MOST],
            clip_limit,
            tile_grid_size: tile_grid_size.into(),
        }
    }

    value_range_setter!();

    #[track_caller]
    fn equalized(&self, x: &Tensor) -> Tensor {
        let grid = self.tile_grid_size.array();
        let tiles = [0, 1].map(|i| Tiles::new(x.dim(i + 1), grid[i]));
        let levels = whole_bins(&as_bytes(x, self.value_range), LEVELS).convert(DType::I32);
        let curves = self.curves(&levels, &tiles);
        let graph = x.graph();
        let at = |rows: bool, columns: bool| {
            let places = [tiles[0].neighbours(rows), tiles[1].neighbours(columns)];
            curves.gather(&(numbers_of_tiles(&levels, grid, &places) + &levels), 0)
        };
        let [down, right] = [0, 1].map(|i| {
            let parts = HostTensor::new([x.dim(i + 1)], &tiles[i].parts());
            graph.constant(parts).broadcast_in(&x.dims(), &[i + 1])
        });
        let row = |rows: bool| at(rows, false) * (1.0 - &right) + at(rows, true) * &right;
        let bytes = row(false) * (1.0 - &down) + row(true) * &down;
        of_bytes(&bytes, self.value_range)
    }

    /// What becomes of each level, for each image, tile and channel in a row: `f32[batch * tiles * channels * 256]`.
    #[track_caller]
    fn curves(&self, levels: &Tensor, tiles: &[Tiles; 2]) -> Tensor {
        let graph = levels.graph();
        let mut filled = levels.clone();
        for (i, tiles) in tiles.iter().enumerate() {
            if tiles.filled() > tiles.size {
                filled = filled.gather(&indices(graph, &tiles.mirrored()), i + 1);
            }
        }
        let grid = tiles.each_ref().map(|tiles| tiles.count);
        let places = tiles.each_ref().map(Tiles::own);
        let number = numbers_of_tiles(&filled, grid, &places) + &filled;
        let rows = levels.dim(0) * grid[0] * grid[1] * levels.dim(3);
        let size: usize = number.dims().iter().product();
        let ones = graph.full(&Shape::f32([size]), 1.0);
        let none = graph.full(&Shape::f32([rows * LEVELS]), 0.0);
        let counts = none.scatter_add(&number.reshape(&[size]), &ones, 0);
        let pixels = (tiles[0].each * tiles[1].each) as f64;
        let counts = self.limited(&counts.reshape(&[rows, LEVELS]), pixels);
        let up_to = counts.cumsum(1);
        let first = up_to.slice_dim(1, 0, 1);
        let rest = pixels - &first;
        let rest = rest
            .equal(&rest.like(0.0))
            .select(&rest.like(1.0).broadcast_to(&rest.dims()), &rest);
        let [first, rest] = [first, rest].map(|part| part.broadcast_to(&up_to.dims()));
        let curves = ((up_to - first) * MOST / rest).clamp(0.0, MOST);
        curves.reshape(&[rows * LEVELS])
    }

    /// Counts `[rows, levels]` of at most the limit, and what is more divided among all levels.
    #[track_caller]
    fn limited(&self, counts: &Tensor, pixels: f64) -> Tensor {
        if self.clip_limit <= 0.0 {
            return counts.clone();
        }
        let limit = counts.like(self.clip_limit * pixels / LEVELS as f64);
        let kept = counts.minimum(&limit);
        let excess = (counts - &kept).sum(&[1]) / LEVELS as f64;
        kept + excess.broadcast_in(&counts.dims(), &[0])
    }
}

/// One dim of an image in tiles.
struct Tiles {
    size: usize,
    count: usize,
    each: usize,
}

impl Tiles {
    const fn new(size: usize, count: usize) -> Self {
        let each = size.div_ceil(count);
        Self { size, count, each }
    }

    /// How long the tiles are together.
    const fn filled(&self) -> usize {
        self.each * self.count
    }

    /// Which pixel stands in each place of the tiles.
    fn mirrored(&self) -> Vec<i32> {
        let mirrored = (0..self.filled()).map(|at| match at % (2 * self.size) {
            at if at < self.size => at as i32,
            at => (2 * self.size - 1 - at) as i32,
        });
        mirrored.collect()
    }

    /// Which tile each place is in.
    fn own(&self) -> Vec<i32> {
        (0..self.filled())
            .map(|at| (at / self.each) as i32)
            .collect()
    }

    /// How many tiles each pixel is behind the middle of the first, in f32 as in Keras.
    fn behind_first(&self) -> impl Iterator<Item = f32> {
        let each = self.each as f32;
        // Keras adds 1 before it takes the fraction, which rounds.
        (0..self.size).map(move |at| (at as f32 - each / 2.0) / each + 1.0)
    }

    /// The last tile whose middle is not behind each pixel, or the one after it; at the edges the same one.
    fn neighbours(&self, is_next: bool) -> Vec<i32> {
        let last = self.count as i32 - 1;
        let at = |from: f32| (from.floor() as i32 - i32::from(!is_next)).clamp(0, last);
        self.behind_first().map(at).collect()
    }

    /// How far each pixel is on the way to the next tile.
    fn parts(&self) -> Vec<f32> {
        self.behind_first()
            .map(|from| from - from.floor())
            .collect()
    }
}

#[track_caller]
fn indices(graph: &Graph, values: &[i32]) -> Tensor {
    graph.constant(HostTensor::new([values.len()], values))
}

/// Where the levels of each pixel's tile begin, for tiles of rows and of columns: `i32` of the pixels' dims `[batch, rows, columns, channels]`.
#[track_caller]
fn numbers_of_tiles(pixels: &Tensor, grid: [usize; 2], places: &[Vec<i32>; 2]) -> Tensor {
    let dims = pixels.dims();
    let graph = pixels.graph();
    let count = |dim: usize| graph.iota(Shape::new(DType::I32, &dims[..]), dim);
    let [down, across] = [0, 1].map(|i| indices(graph, &places[i]).broadcast_in(&dims, &[i + 1]));
    let tile = (count(0) * grid[0] as f64 + down) * grid[1] as f64 + across;
    (tile * dims[3] as f64 + count(3)) * LEVELS as f64
}

impl Described for ContrastLimitedAdaptiveHistogramEqualization {
    const COMPONENT: Component = Component {
        name: "contrast_limited_adaptive_histogram_equalization",
        doc: "makes values about equally frequent in each tile of an image, in prediction, too",
        fields: &[
            VALUE_RANGE,
            Field::optional(
                "clip_limit",
                Kind::REAL,
                "how many times an even share a value counts at most; 0 sets no limit",
            ),
            Field::optional(
                "tile_grid_size",
                Kind::PAIR,
                "how many tiles there are in the height and in the width",
            ),
        ],
    };
}

impl Layer for ContrastLimitedAdaptiveHistogramEqualization {
    fn kind(&self) -> &'static str {
        Self::COMPONENT.name
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    /// Pixels are not rounded before they are changed.
    fn converts_inputs(&self) -> bool {
        false
    }

    fn check_settings(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        check_range("`clip_limit`", self.clip_limit, f64::MIN..=f64::MAX)?;
        let tiles = self.tile_grid_size.array();
        tiles
            .iter()
            .try_for_each(|&count| check_range("`tile_grid_size`", count as f64, 1.0..=1024.0))
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        of_channels(inputs, ANY)
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let kept = as_float(&inputs[0]);
        self.equalized(&widened(&kept)).convert(kept.dtype())
    }
}
