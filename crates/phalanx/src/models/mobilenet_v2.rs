//! MobileNetV2 (Sandler et al. 2018), as Keras has it.

use serde::{Deserialize, Serialize};

use super::batch_norm_settings::{BatchNormSettings, norm_settings};
use super::image_head::{ImageHead, head_settings};
use crate::nn::{
    Activation, ActivationLayer, Add, Conv2d, DepthwiseConv2d, Layer, Model, Network, Node,
    Padding, ZeroPadding2d,
};
use crate::{Error, Result};

use crate::config::{Component, Described, Field, Kind};

/// Filters before `alpha`, and stride, of each block.
const BLOCKS: [(usize, usize); 17] = [
    (16, 1),
    (24, 2),
    (24, 1),
    (32, 2),
    (32, 1),
    (32, 1),
    (64, 2),
    (64, 1),
    (64, 1),
    (64, 1),
    (96, 1),
    (96, 1),
    (96, 1),
    (160, 2),
    (160, 1),
    (160, 1),
    (320, 1),
];
/// The factor on channels inside a block.
const EXPANSION: usize = 6;
/// Filters of the last convolution, which an `alpha` below 1 does not reduce.
const LAST: usize = 1280;

/// MobileNetV2: 3,538,984 parameters with `alpha` 1 and the 1000 classes of ImageNet, 34,112 of them not trainable.
///
/// Keras' `applications.MobileNetV2`, by Keras' layer names, `Conv1`, `expanded_conv_depthwise`,
/// `block_1_expand`. Images are expected as [`Preprocess::tf`](crate::nn::Preprocess::tf) makes them. [`torchvision`](Self::torchvision) is
/// the variant that PyTorch's weights need.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MobileNetV2 {
    #[serde(skip)]
    name: String,
    #[serde(flatten)]
    head: ImageHead,
    alpha: f64,
    symmetric_padding: bool,
    #[serde(flatten)]
    norms: BatchNormSettings,
}

impl Described for MobileNetV2 {
    const COMPONENT: Component = Component {
        name: "mobilenet_v2",
        doc: "MobileNetV2, a small image classifier",
        fields: &[
            Field::optional(
                "alpha",
                Kind::ABOVE_ZERO,
                "how many times as many filters every convolution has",
            ),
            Field::optional(
                "symmetric_padding",
                Kind::Bool,
                "whether convolutions with a stride are padded by 1 on every side, as in torchvision",
            ),
        ],
    };
    const SHARED: &'static [Field] = super::image_head::EVERY_IMAGE_MODEL;
}

impl Default for MobileNetV2 {
    fn default() -> Self {
        Self::new()
    }
}

impl MobileNetV2 {
    /// Keras' model: `alpha` 1, epsilon 0.001, momentum 0.999.
    #[must_use]
    pub fn new() -> Self {
        Self {
            name: "mobilenet_v2".into(),
            head: ImageHead::new(),
            alpha: 1.0,
            symmetric_padding: false,
            norms: BatchNormSettings::new(1e-3, 0.999),
        }
    }

    /// torchvision's `mobilenet_v2`: convolutions with a stride padded by 1 on every side, epsilon 1e-5, momentum 0.9
    /// (which PyTorch calls 0.1), a dropout of 0.2 before the classifier, logits.
    #[must_use]
    pub fn torchvision() -> Self {
        Self {
            symmetric_padding: true,
            norms: BatchNormSettings::new(1e-5, 0.9),
            ..Self::new()
        }
        .dropout(0.2)
        .activation(Activation::Linear)
    }

    head_settings!();

    /// Sets the width: a factor on the filters of every layer, 1 by default.
    #[must_use]
    pub const fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Sets whether convolutions with a stride are padded by 1 on every side; by default an image of even size is
    /// padded at the bottom and on the right alone.
    #[must_use]
    pub const fn symmetric_padding(mut self, symmetric_padding: bool) -> Self {
        self.symmetric_padding = symmetric_padding;
        self
    }

    norm_settings!();

    /// The model.
    ///
    /// # Errors
    /// When the input is no image, or `alpha` is not a number above 0 and at most 100.
    pub fn build(&self) -> Result<Model> {
        let [height, width, _] = self.head.image(&self.name)?;
        if !(self.alpha > 0.0 && self.alpha <= 100.0) {
            return Err(Error::user(format!(
                "model `{}`: `alpha` must be above 0 and at most 100, got {}",
                self.name, self.alpha
            )));
        }
        let mut net = Network::new().named(&self.name);
        let input = net.input(self.head.input.clone());
        let channels = divisible(32.0 * self.alpha);
        let mut map = FeatureMap {
            node: self.stem(&mut net, input, channels),
            size: [height.div_ceil(2), width.div_ceil(2)],
            channels,
        };
        for (block, (filters, stride)) in BLOCKS.into_iter().enumerate() {
            map = self.block(&mut net, map, block, filters, stride);
        }
        let x = self.last(&mut net, map.node);
        let (average, max) = ("global_average_pooling2d", "global_max_pooling2d");
        let output = self.head.end(&mut net, x, average, max);
        net.build(&[input], &[output])
    }

    fn stem(&self, net: &mut Network, input: Node, filters: usize) -> Node {
        let conv = Conv2d::new(filters, 3).strides(2).use_bias(false);
        let x = if self.symmetric_padding {
            let x = net.add(ZeroPadding2d::new(1).named("Conv1_pad"), &[input]);
            net.add(conv.named("Conv1"), &[x])
        } else {
            net.add(conv.padding(Padding::Same).named("Conv1"), &[input])
        };
        let x = self.bn(net, x, "bn_Conv1");
        relu6(net, x, "Conv1_relu")
    }

    /// An inverted residual: expand, convolve each channel, project.
    fn block(
        &self,
        net: &mut Network,
        input: FeatureMap,
        block: usize,
        filters: usize,
        stride: usize,
    ) -> FeatureMap {
        let prefix = match block {
            0 => "expanded_conv".to_owned(),
            _ => format!("block_{block}"),
        };
        let name = |part: &str| format!("{prefix}_{part}");
        let mut x = input.node;
        if block > 0 {
            x = self.pointwise(net, x, &name("expand"), EXPANSION * input.channels);
            x = relu6(net, x, &name("expand_relu"));
        }
        let mut depthwise = DepthwiseConv2d::new(3).strides(stride).use_bias(false);
        if stride == 1 {
            depthwise = depthwise.padding(Padding::Same);
        } else {
            let padding = ZeroPadding2d::sides(self.sides(input.size));
            x = net.add(padding.named(name("pad")), &[x]);
        }
        x = net.add(depthwise.named(name("depthwise")), &[x]);
        x = self.bn(net, x, &name("depthwise_BN"));
        x = relu6(net, x, &name("depthwise_relu"));
        let channels = divisible((filters as f64 * self.alpha).trunc());
        x = self.pointwise(net, x, &name("project"), channels);
        if stride == 1 && channels == input.channels {
            x = net.add(Add.named(name("add")), &[input.node, x]);
        }
        FeatureMap {
            node: x,
            size: input.size.map(|size| size.div_ceil(stride)),
            channels,
        }
    }

    fn last(&self, net: &mut Network, x: Node) -> Node {
        let filters = if self.alpha > 1.0 {
            divisible(LAST as f64 * self.alpha)
        } else {
            LAST
        };
        let conv = Conv2d::new(filters, 1).use_bias(false);
        let x = net.add(conv.named("Conv_1"), &[x]);
        let x = self.bn(net, x, "Conv_1_bn");
        relu6(net, x, "out_relu")
    }

    fn pointwise(&self, net: &mut Network, x: Node, name: &str, filters: usize) -> Node {
        let conv = Conv2d::new(filters, 1)
            .padding(Padding::Same)
            .use_bias(false);
        let x = net.add(conv.named(name), &[x]);
        self.bn(net, x, &format!("{name}_BN"))
    }

    fn bn(&self, net: &mut Network, x: Node, name: &str) -> Node {
        net.add(self.norms.layer().named(name), &[x])
    }

    /// Zeros before a 3x3 convolution of stride 2: Keras' `correct_pad`, which is none before an even size.
    fn sides(&self, size: [usize; 2]) -> [[usize; 2]; 2] {
        size.map(|size| [if self.symmetric_padding { 1 } else { size % 2 }, 1])
    }
}

/// A feature map while the network is built.
#[derive(Clone, Copy)]
struct FeatureMap {
    node: Node,
    size: [usize; 2],
    channels: usize,
}

fn relu6(net: &mut Network, x: Node, name: &str) -> Node {
    net.add(ActivationLayer::new(Activation::Relu6).named(name), &[x])
}

/// The multiple of 8 nearest to `filters`, at least 8 and not below nine tenths of it.
fn divisible(filters: f64) -> usize {
    const DIVISOR: usize = 8;
    let rounded = (filters + DIVISOR as f64 / 2.0) as usize / DIVISOR * DIVISOR;
    let rounded = rounded.max(DIVISOR);
    if (rounded as f64) < 0.9 * filters {
        rounded + DIVISOR
    } else {
        rounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_rounded_as_in_keras() {
        let cases = [
            (32.0 * 0.35, 16),
            (8.0, 8),
            (3.0, 8),
            (5.0, 8),
            (11.0, 16),
            (33.0, 32),
            (12.0, 16),
            (1280.0 * 1.4, 1792),
        ];
        for (filters, expected) in cases {
            assert_eq!(divisible(filters), expected, "{filters}");
        }
    }
}
