//! Models and batches that several programs of the benchmarks train on.

use phalanx::data::Batch;
use phalanx::models::ResNet50;
use phalanx::prelude::*;

pub(crate) const CLASSES: u64 = 10;
pub(crate) const IMAGE: [usize; 3] = [224, 224, 3];

/// ResNet-50 for the classes of the benchmarks.
pub(crate) fn resnet50() -> phalanx::Result<Model> {
    ResNet50::new()
        .activation(Activation::Linear)
        .classes(CLASSES as usize)
        .build()
}

/// Two dense layers.
pub(crate) fn mlp() -> Sequential {
    Sequential::new([784])
        .add(Dense::new(128).activation(relu))
        .add(Dense::new(10))
}

/// Two convolutions, pooling, two dense layers.
pub(crate) fn cnn() -> Sequential {
    cnn_behind(Sequential::new([28, 28, 1]))
}

/// The same behind other layers.
pub(crate) fn cnn_behind(first: Sequential) -> Sequential {
    first
        .add(Conv2d::new(32, 3).activation(relu))
        .add(Conv2d::new(64, 3).activation(relu))
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dense::new(128).activation(relu))
        .add(Dense::new(10))
}

/// A batch of numbers with mean 0 and variance 1, and classes.
pub(crate) fn classified<const N: usize>(batch: usize, dims: [usize; N]) -> phalanx::Result<Batch> {
    let mut next = numbers();
    let count = batch * dims.iter().product::<usize>();
    let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
    let values: Vec<f32> = (0..count)
        .map(|_| (unit(next()) - 0.5) * 12f32.sqrt())
        .collect();
    let classes: Vec<i32> = (0..batch).map(|_| (next() % CLASSES) as i32).collect();
    let x = HostTensor::new([&[batch], &dims[..]].concat(), &values);
    let rows = Dataset::from_arrays(x, HostTensor::new([batch], &classes))?;
    rows.batch(batch).get(0, 0)
}

/// Numbers that look random.
pub(crate) fn numbers() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
