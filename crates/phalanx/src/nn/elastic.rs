//! Images bent at random in training.

use phalanx_graph::{HostTensor, Tensor};
use serde::{Deserialize, Serialize};

use super::factor::{Factor, drawn};
use super::picture_layer::{
    ANY, CHANCE, VALUE_RANGE, by_chance, check_values, picture_layer, value_range_setter,
};
use super::warp::{Lookup, looked_up, places};
use super::{Cx, Interpolation};
use crate::config::{Component, Described, Field};
use crate::image::Fill;

/// Bends random images as if they were on rubber, in training alone; kind `random_elastic_transform` (Simard et al. 2003).
///
/// Each pixel is seen where noise says that was smoothed by a Gaussian: with `s` drawn for an image, its deviation is `0.05 s` times the shorter
/// side, and the noise is multiplied by that and by `0.1 s` times the longer side. Images `[batch, height, width, channels]` of any element type become
/// floats of the same dims, computed in f32 and clipped to the range. As in Keras the chance of it is drawn for each image. Keras draws `s` once for a
/// batch, moves each pixel as far down as to the right, since both are drawn of one seed, and sees another row than the one at the edge beyond the top and the left
/// where `fill_mode` is reflect; its `mirror`, which fails there, is refused. What is drawn depends on the step's key, the layer and the number of the
/// example, not on how a batch is divided over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomElasticTransform {
    factor: Factor,
    scale: Factor,
    interpolation: Interpolation,
    fill_mode: Fill,
    fill_value: f64,
    value_range: [f64; 2],
}

/// Keras' defaults.
impl Default for RandomElasticTransform {
    fn default() -> Self {
        Self::new(1.0)
    }
}

impl RandomElasticTransform {
    /// Bends by up to this much, at most 1, or between two; half of the images, as in Keras' defaults.
    #[must_use]
    pub fn new(scale: impl Into<Factor>) -> Self {
        let Lookup {
            fill_mode,
            interpolation,
            fill_value,
        } = Lookup::default();
        Self {
            factor: Factor::UpTo(1.0),
            scale: scale.into(),
            interpolation,
            fill_mode,
            fill_value,
            value_range: [0.0, 255.0],
        }
    }

    /// Sets the chance of it, which is drawn up to a number or between two: up to 1 by default.
    #[must_use]
    pub fn factor(mut self, factor: impl Into<Factor>) -> Self {
        self.factor = factor.into();
        self
    }

    /// Sets how the pixels in between are found, bilinear by default.
    #[must_use]
    pub const fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    /// Sets what is seen beyond the edges, the image in a mirror by default.
    #[must_use]
    pub const fn fill_mode(mut self, fill_mode: Fill) -> Self {
        self.fill_mode = fill_mode;
        self
    }

    /// Sets what [`Fill::Constant`] fills with, 0 by default.
    #[must_use]
    pub const fn fill_value(mut self, fill_value: f64) -> Self {
        self.fill_value = fill_value;
        self
    }

    value_range_setter!();

    const fn lookup(&self) -> Lookup {
        Lookup {
            fill_mode: self.fill_mode,
            interpolation: self.interpolation,
            fill_value: self.fill_value,
        }
    }

    fn check_fields(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        self.factor.check("factor", 0.0..=1.0)?;
        self.scale.check("scale", 0.0..=1.0)?;
        self.lookup().check()
    }

    #[track_caller]
    fn bent(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let ends = self.scale.above_zero();
        let scale = drawn(cx, x.dim(0), ends);
        let noise = [(); 2].map(|()| cx.normal(&x.dims()[..3]));
        let bent = displaced(x, &distances(&noise, &scale, ends[1]), self.lookup());
        let [least, most] = self.value_range;
        by_chance(cx, self.factor, x, &bent).clamp(least, most)
    }
}

/// How far each pixel is moved, `[down, right]`, by standard normal noise `f32[batch, height, width]` and scales `f32[batch]` of at most `most`.
#[track_caller]
fn distances(noise: &[Tensor; 2], scale: &Tensor, most: f64) -> [Tensor; 2] {
    let dims = noise[0].dims();
    let (shorter, longer) = (dims[1].min(dims[2]) as f64, dims[1].max(dims[2]) as f64);
    let deviation = scale * (0.05 * shorter);
    let times = &deviation * scale * (0.1 * longer);
    let times = times.broadcast_in(&dims, &[0]);
    let reach = 3 * (0.05 * shorter * most).ceil() as usize;
    let [down, across] = [dims[1], dims[2]].map(|size| weights(&deviation, size, reach));
    noise
        .each_ref()
        .map(|noise| down.matmul(noise).matmul(&across) * &times)
}

/// Of each pixel of a row of a size how much it adds to each other one by a Gaussian, up to three deviations in whole pixels away: `f32[batch, size, size]`.
#[track_caller]
fn weights(deviation: &Tensor, size: usize, reach: usize) -> Tensor {
    let gaussian = |distances: Vec<f32>| {
        let dims = [deviation.dim(0), distances.len()];
        let distances = HostTensor::new([distances.len()], &distances);
        let distances = deviation.graph().constant(distances);
        let distances = distances.broadcast_in(&dims, &[1]);
        let wide = deviation.broadcast_in(&dims, &[0]);
        let is_near = (wide.floor() * 3.0).greater_equal(&distances);
        // Below a pixel there is nothing to be added up.
        let powers = (distances / wide.maximum(&wide.like(1e-6))).square() * -0.5;
        is_near.select(&powers.exp(), &powers.zeros_like())
    };
    let both_ways = (0..=2 * reach).map(|at| at.abs_diff(reach) as f32);
    let total = gaussian(both_ways.collect()).sum(&[1]);
    let each = (0..size * size).map(|at| (at / size).abs_diff(at % size) as f32);
    let each = gaussian(each.collect()).reshape(&[deviation.dim(0), size, size]);
    let total = total.broadcast_in(&each.dims(), &[0]);
    each / total
}

/// Images whose pixels are seen so far down and to the right, `f32[batch, height, width]`.
#[track_caller]
fn displaced(images: &Tensor, [down, right]: &[Tensor; 2], lookup: Lookup) -> Tensor {
    let [rows, columns] = places(images);
    let (mut y, mut x) = (rows + down, columns + right);
    if lookup.fill_mode != Fill::Wrap {
        return looked_up(images, [y, x], lookup);
    }
    // Here the first row is one below the last, while the layers that turn images see both at one place.
    let (height, width) = (images.dim(1) as f64, images.dim(2) as f64);
    y = &y - (&y / height).floor() * height;
    x = &x - (&x / width).floor() * width;
    let below = Tensor::concat(&[images, &images.slice_dim(1, 0, 1)], 1);
    let around = Tensor::concat(&[&below, &below.slice_dim(2, 0, 1)], 2);
    let lookup = Lookup {
        fill_mode: Fill::Nearest,
        ..lookup
    };
    looked_up(&around, [y, x], lookup)
}

impl Described for RandomElasticTransform {
    const COMPONENT: Component = Component {
        name: "random_elastic_transform",
        doc: "bends random images as if they were on rubber in training",
        fields: &[
            CHANCE,
            Field::optional(
                "scale",
                Factor::KIND,
                "how much they are bent, which is drawn up to this, or between two",
            ),
            Lookup::FIELDS[0],
            Lookup::FIELDS[1],
            Lookup::FIELDS[2],
            VALUE_RANGE,
        ],
    };
}

picture_layer!(
    RandomElasticTransform,
    "random_elastic_transform",
    ANY,
    bent
);

#[cfg(test)]
mod tests {
    use phalanx_graph::Graph;
    use phalanx_testkit::assert_relatively_close;
    use serde_json::Value;

    use super::*;
    use crate::engine::{CompileRequest, Engine, EngineOptions};

    fn numbers(array: &Value) -> Vec<f32> {
        serde_json::from_value(array["data"].clone()).unwrap()
    }

    /// What becomes of images by given noise and scales, in each of some ways to look them up.
    fn bent(inputs: &[HostTensor; 3], lookups: &[Lookup]) -> Vec<Vec<f32>> {
        let graph = Graph::default();
        let [x, noise, scales] = [0, 1, 2].map(|at| graph.constant(inputs[at].clone()));
        let noise = [0, 1].map(|way| noise.slice_dim(0, way, way + 1).reshape(&x.dims()[..3]));
        let moved = distances(&noise, &scales, 1.0);
        let outputs: Vec<Tensor> = lookups
            .iter()
            .map(|lookup| displaced(&x, &moved, *lookup))
            .collect();
        let names: Vec<String> = (0..outputs.len()).map(|at| at.to_string()).collect();
        let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&outputs).collect();
        let program = graph.finish(&named).unwrap();
        let engine = Engine::new(&EngineOptions::default()).unwrap();
        let request = CompileRequest::new("bent", &program);
        let results = engine.compile(request).unwrap().run(&[&[]]).unwrap().0;
        let results = results[0].iter().zip(&outputs);
        results
            .map(|(found, output)| engine.get(found, &output.shape()).unwrap().f32s())
            .collect()
    }

    #[test]
    fn images_are_bent_as_keras_bends_them() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/keras/image_layers.json"
        );
        let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let is_bent = |record: &&Value| record["layer"] == "RandomElasticTransform";
        let records = all["records"].as_array().unwrap().iter().filter(is_bent);
        let records: Vec<&Value> = records.collect();
        assert_eq!(records.len(), 8);
        let lookup = |record: &&Value| {
            let config = record["config"].clone();
            let layer: RandomElasticTransform =
                crate::config::read("bent", &RandomElasticTransform::default(), &config).unwrap();
            layer.lookup()
        };
        let lookups: Vec<Lookup> = records.iter().map(lookup).collect();
        let scales: Vec<f32> = serde_json::from_value(records[0]["scales"].clone()).unwrap();
        let inputs = [
            HostTensor::new([2, 21, 22, 1], &numbers(&records[0]["input"])),
            HostTensor::new([2, 2, 21, 22], &numbers(&records[0]["noise"])),
            HostTensor::new([2], &scales),
        ];
        for (found, record) in bent(&inputs, &lookups).iter().zip(&records) {
            let name = record["name"].as_str().unwrap();
            let expected = numbers(&record["output"]);
            assert_relatively_close(name, found, &expected, 2e-5, 255.0);
        }
    }
}
