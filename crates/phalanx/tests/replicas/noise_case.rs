//! Random numbers in training.

use phalanx::prelude::*;

use super::{Case, Part, classes, classify, plain, wave, weighted};

/// Layers that draw numbers, each example its own whichever replica has it.
pub(super) fn noise() -> Case {
    let model = Sequential::new([2, 4, 5, 2])
        .add(GaussianNoise::new(0.2))
        .add(TimeDistributed::new(RandomRotation::new(0.2)))
        .add(TimeDistributed::new(RandomFlip::default()))
        .add(TimeDistributed::new(SpatialDropout2d::new(0.25)))
        .add(Conv3d::new(6, 2))
        .add(SpatialDropout3d::new(0.25))
        .add(Reshape::new([3, 2, 2, 6]))
        .add(ConvLstm2d::new(6, 2).padding(Padding::Same).dropout(0.25))
        .add(Reshape::new([4, 6]))
        .add(SpatialDropout1d::new(0.25))
        .add(GaussianDropout::new(0.2))
        .add(DepthwiseConv1d::new(3).depth_multiplier(2))
        .add(SeparableConv1d::new(6, 2).strides(2))
        .add(GlobalAveragePool1d::new())
        .add(Dense::new(8).activation(Activation::Selu))
        .add(AlphaDropout::new(0.25))
        .add(Dense::new(3));
    let x = HostTensor::new([22, 2, 4, 5, 2], &wave(22 * 80, 0.31));
    let data = Dataset::from_arrays(x, classes(22, 3)).unwrap();
    let data = weighted(&data, Part::None);
    let optimizer = Optimizer::from(Sgd::new(0.1).momentum(0.9)).global_clipnorm(0.5);
    plain("noise", model.build().unwrap(), data, classify(optimizer))
}
