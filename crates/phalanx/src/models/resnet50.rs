//! ResNet-50 (He et al. 2015), version 1 as Keras has it.

use serde::{Deserialize, Serialize};

use super::batch_norm_settings::{BatchNormSettings, norm_settings};
use super::image_head::{ImageHead, head_settings};
use crate::Result;
use crate::nn::{
    Activation, ActivationLayer, Add, Conv2d, Layer, MaxPool2d, Model, Network, Node, Padding,
    ZeroPadding2d,
};

use crate::config::{Component, Described, Field, Kind};

/// Name, filters and blocks of each stage.
const STAGES: [(&str, usize, usize); 4] = [
    ("conv2", 64, 3),
    ("conv3", 128, 4),
    ("conv4", 256, 6),
    ("conv5", 512, 3),
];

/// ResNet-50: 25,636,712 parameters with the 1000 classes of ImageNet, 53,120 of them not trainable.
///
/// Keras' `applications.ResNet50`: convolutions have biases, the first 1x1 convolution of a stage has its stride.
/// Layers go by Keras' names, `conv2_block1_1_conv`, and come in Keras' order. Images are expected as
/// [`Preprocess::caffe`](crate::nn::Preprocess::caffe) makes them. [`torchvision`](Self::torchvision) is the variant that PyTorch's weights need.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResNet50 {
    #[serde(skip)]
    name: String,
    #[serde(flatten)]
    head: ImageHead,
    conv_bias: bool,
    stride_on_3x3: bool,
    #[serde(flatten)]
    norms: BatchNormSettings,
}

impl Described for ResNet50 {
    const COMPONENT: Component = Component {
        name: "resnet50",
        doc: "ResNet-50, an image classifier",
        fields: &[
            Field::optional("conv_bias", Kind::Bool, "whether convolutions have a bias"),
            Field::optional(
                "stride_on_3x3",
                Kind::Bool,
                "whether the stride is on the 3x3 convolution of a block, as in torchvision, not on the first",
            ),
        ],
    };
    const SHARED: &'static [Field] = super::image_head::EVERY_IMAGE_MODEL;
}

impl Default for ResNet50 {
    fn default() -> Self {
        Self::new()
    }
}

impl ResNet50 {
    /// Keras' model: epsilon 1.001e-5, momentum 0.99.
    #[must_use]
    pub fn new() -> Self {
        Self {
            name: "resnet50".into(),
            head: ImageHead::new(),
            conv_bias: true,
            stride_on_3x3: false,
            norms: BatchNormSettings::new(1.001e-5, 0.99),
        }
    }

    /// torchvision's `resnet50`, called version 1.5: no biases in convolutions, the stride on the 3x3 convolution of a
    /// block, epsilon 1e-5, momentum 0.9 (which PyTorch calls 0.1), logits. 25,610,152 parameters, moving statistics counted.
    #[must_use]
    pub fn torchvision() -> Self {
        Self {
            conv_bias: false,
            stride_on_3x3: true,
            norms: BatchNormSettings::new(1e-5, 0.9),
            ..Self::new()
        }
        .activation(Activation::Linear)
    }

    head_settings!();

    /// Sets whether convolutions have biases, as they do by default; batch normalization makes them superfluous.
    #[must_use]
    pub const fn conv_bias(mut self, conv_bias: bool) -> Self {
        self.conv_bias = conv_bias;
        self
    }

    /// Sets whether the stride of a stage is on its first 3x3 convolution, padded by 1 on every side, not on its first 1x1.
    #[must_use]
    pub const fn stride_on_3x3(mut self, stride_on_3x3: bool) -> Self {
        self.stride_on_3x3 = stride_on_3x3;
        self
    }

    norm_settings!();

    /// The model.
    ///
    /// # Errors
    /// When the input is no image, or one smaller than the windows.
    pub fn build(&self) -> Result<Model> {
        self.head.image(&self.name)?;
        let mut net = Network::new().named(&self.name);
        let input = net.input(self.head.input.clone());
        let mut x = self.stem(&mut net, input);
        for (stage, filters, blocks) in STAGES {
            for block in 1..=blocks {
                let first = block == 1;
                let stride = if first && stage != "conv2" { 2 } else { 1 };
                let name = format!("{stage}_block{block}");
                x = self.block(&mut net, x, &name, filters, stride, first);
            }
        }
        let output = self.head.end(&mut net, x, "avg_pool", "max_pool");
        net.build(&[input], &[output])
    }

    /// The padding is a separate layer: Keras pads 3 on every side where `same` would pad 2 and 3.
    fn stem(&self, net: &mut Network, input: Node) -> Node {
        let x = net.add(ZeroPadding2d::new(3).named("conv1_pad"), &[input]);
        let x = self.conv(net, x, "conv1", Conv2d::new(64, 7).strides(2));
        let x = self.bn(net, x, "conv1");
        let x = relu(net, x, "conv1_relu");
        let x = net.add(ZeroPadding2d::new(1).named("pool1_pad"), &[x]);
        net.add(MaxPool2d::new(3).strides(2).named("pool1_pool"), &[x])
    }

    /// A bottleneck; where `projected`, the shortcut has a 1x1 convolution.
    ///
    /// Layers are added in the order in which Keras lists them, which goes by distance from the output.
    fn block(
        &self,
        net: &mut Network,
        input: Node,
        name: &str,
        filters: usize,
        stride: usize,
        projected: bool,
    ) -> Node {
        let part = |part: usize| format!("{name}_{part}");
        let [first, second] = if self.stride_on_3x3 {
            [1, stride]
        } else {
            [stride, 1]
        };
        let conv = Conv2d::new(filters, 1).strides(first);
        let x = self.conv(net, input, &part(1), conv);
        let x = self.bn(net, x, &part(1));
        let x = relu(net, x, &format!("{name}_1_relu"));
        let x = self.middle(net, x, &part(2), filters, second);
        let x = self.bn(net, x, &part(2));
        let x = relu(net, x, &format!("{name}_2_relu"));
        let wide = || Conv2d::new(4 * filters, 1);
        let mut shortcut = input;
        if projected {
            shortcut = self.conv(net, input, &part(0), wide().strides(stride));
        }
        let x = self.conv(net, x, &part(3), wide());
        if projected {
            shortcut = self.bn(net, shortcut, &part(0));
        }
        let x = self.bn(net, x, &part(3));
        let x = net.add(Add.named(format!("{name}_add")), &[shortcut, x]);
        relu(net, x, &format!("{name}_out"))
    }

    /// The 3x3 convolution of a block.
    fn middle(
        &self,
        net: &mut Network,
        x: Node,
        name: &str,
        filters: usize,
        stride: usize,
    ) -> Node {
        let conv = Conv2d::new(filters, 3);
        if stride == 1 {
            return self.conv(net, x, name, conv.padding(Padding::Same));
        }
        let x = net.add(ZeroPadding2d::new(1).named(format!("{name}_pad")), &[x]);
        self.conv(net, x, name, conv.strides(stride))
    }

    fn conv(&self, net: &mut Network, x: Node, name: &str, conv: Conv2d) -> Node {
        let conv = conv.use_bias(self.conv_bias);
        net.add(conv.named(format!("{name}_conv")), &[x])
    }

    fn bn(&self, net: &mut Network, x: Node, name: &str) -> Node {
        net.add(self.norms.layer().named(format!("{name}_bn")), &[x])
    }
}

fn relu(net: &mut Network, x: Node, name: &str) -> Node {
    net.add(ActivationLayer::new(Activation::Relu).named(name), &[x])
}
