//! Models of pytorch/examples and of PyTorch's tutorials, as `make_programs.py` has them.

use phalanx::prelude::*;

use crate::torch_layers::{AffineSample, NormedDense, PixelShuffle, ReflectionPad, SpectralDense};

pub(super) fn build(layers: Sequential) -> Model {
    layers.build().unwrap()
}

/// `BatchNorm2d` with its defaults.
pub(super) fn norm() -> BatchNorm {
    let norm = BatchNorm::new().momentum(0.9).epsilon(1e-5);
    norm.synchronized(true)
}

fn leaky() -> ActivationLayer {
    ActivationLayer::new(Activation::LeakyRelu {
        negative_slope: 0.2,
    })
}

/// Gives the states after the last step besides the logits.
pub(super) fn language() -> Model {
    let mut net = Network::new();
    let words = net.input(Input::new([4]).dtype(DType::I32));
    let states = [(); 4].map(|()| net.input([5]));
    let x = net.add(Embedding::new(7, 4), &[words]);
    let [first, second] =
        [(); 2].map(|()| net.layer(Lstm::new(5).return_sequences(true).return_state(true)));
    let first = net.call_many(first, &[x, states[0], states[1]]);
    let second = net.call_many(second, &[first[0], states[2], states[3]]);
    let logits = net.add(Dense::new(7), &[second[0]]);
    let inputs = [&[words], &states[..]].concat();
    let outputs = [logits, first[1], first[2], second[1], second[2]];
    net.build(&inputs, &outputs).unwrap()
}

pub(super) fn super_resolution() -> Model {
    let conv = |filters| Conv2d::new(filters, 3).padding(Padding::Same);
    let layers = Sequential::new([3, 3, 1]).add(conv(4).activation(relu));
    build(layers.add(conv(8)).add(PixelShuffle))
}

pub(super) fn style() -> Model {
    let layers = Sequential::new([6, 6, 2])
        .add(ReflectionPad(1))
        .add(Conv2d::new(3, 3).strides(2).use_bias(false))
        .add(GroupNorm::instance().epsilon(1e-5))
        .add(ActivationLayer::new(relu))
        .add(UpSampling2d::new(2))
        .add(ReflectionPad(2))
        .add(Conv2d::new(2, 5));
    build(layers)
}

/// `ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1)` leaves out the first row and column, not the last.
pub(super) fn generator() -> Model {
    let up = |filters, size| Conv2dTranspose::new(filters, size).use_bias(false);
    let layers = Sequential::new([1, 1, 3])
        .add(up(4, 2))
        .add(norm())
        .add(ActivationLayer::new(relu))
        .add(up(2, 3).strides(2))
        .add(Cropping2d::sides([[1, 0], [1, 0]]))
        .add(norm())
        .add(ActivationLayer::new(relu))
        .add(up(1, 4).strides(2).padding(Padding::Same))
        .add(ActivationLayer::new(tanh));
    build(layers)
}

pub(super) fn critic() -> Model {
    let down = |filters, size| Conv2d::new(filters, size).strides(2).use_bias(false);
    let layers = Sequential::new([8, 8, 1])
        .add(ZeroPadding2d::new(1))
        .add(down(2, 4))
        .add(leaky())
        .add(ZeroPadding2d::new(1))
        .add(down(3, 4))
        .add(norm())
        .add(leaky())
        .add(down(1, 2))
        .add(ActivationLayer::new(sigmoid))
        .add(Flatten);
    build(layers)
}

/// Padding of zeros before a maximum is PyTorch's of the lowest numbers, where all are at least 0.
pub(super) fn classifier() -> Model {
    let layers = Sequential::new([8, 8, 2])
        .add(ZeroPadding2d::new(1))
        .add(Conv2d::new(4, 3).strides(2).use_bias(false))
        .add(norm())
        .add(ActivationLayer::new(relu))
        .add(ZeroPadding2d::new(1))
        .add(MaxPool2d::new(3).strides(2))
        .add(GlobalAveragePool2d::default())
        .add(Dense::new(3));
    build(layers)
}

pub(super) fn sentences() -> Model {
    let layers = Sequential::new(Input::new([4]).dtype(DType::I32))
        .add(Embedding::new(8, 4).mask_zero(true))
        .add(Bidirectional::new(Lstm::new(3)))
        .add(Dense::new(3));
    build(layers)
}

pub(super) fn spatial() -> Model {
    let mut net = Network::new();
    let images = net.input([5, 5, 1]);
    let flat = net.add(Flatten, &[images]);
    let affine = net.add(Dense::new(6), &[flat]);
    let seen = net.add(AffineSample, &[images, affine]);
    let seen = net.add(Flatten, &[seen]);
    let logits = net.add(Dense::new(3), &[seen]);
    net.build(&[images], &[logits]).unwrap()
}

pub(super) fn parametrized() -> Model {
    let layers = Sequential::new([4]).add(SpectralDense);
    build(layers.add(ActivationLayer::new(relu)).add(NormedDense))
}

pub(super) fn normed(norm: BatchNorm) -> Model {
    let layers = Sequential::new([4]).add(Dense::new(6).use_bias(false));
    let layers = layers.add(norm).add(ActivationLayer::new(relu));
    build(layers.add(Dense::new(3)))
}

pub(super) fn with_head() -> Model {
    let layers = Sequential::new([4]).add(Dense::new(6));
    let layers = layers.add(LayerNorm::new().epsilon(1e-5));
    build(
        layers
            .add(ActivationLayer::new(relu))
            .add(Dense::new(3).named("head")),
    )
}
