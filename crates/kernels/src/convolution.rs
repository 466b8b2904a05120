//! Convolutions and their two gradients.

use std::ptr::null_mut;

use crate::handlers::Image;
use crate::onednn::{Flow, Layout, OneDnn, Operation, Plan, Result, Type};
use crate::sys::{self, argument};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Forward,
    InputGradient,
    KernelGradient,
}

/// One convolution, with a bias or without: x and y are `[batch, height, width, channels]`, the kernel `[height, width, input channels / groups, output channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) direction: Direction,
    pub(crate) x: Image,
    pub(crate) kernel: Image,
    pub(crate) y: Image,
    pub(crate) strides: [i64; 2],
    pub(crate) dilation: [i64; 2],
    pub(crate) padding_low: [i64; 2],
    pub(crate) padding_high: [i64; 2],
    pub(crate) groups: i64,
    /// Whether a number for each output channel is added, forward.
    pub(crate) bias: bool,
}

/// How a convolution is given to oneDNN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The activations as they are.
    Plain,
    /// The activations in the layout that oneDNN likes best, changed before and after.
    Blocked,
    /// As a product of matrices.
    Product,
}

impl Key {
    /// Whether the dimensions fit each other; what remains is oneDNN's to judge.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let [_, _, input, output] = self.kernel.dims;
        let groups = self.groups;
        if groups < 1
            || self.x.dims[3] != input * groups
            || self.y.dims[3] != output
            || output % groups != 0
        {
            return Err(format!(
                "channels and groups do not fit: x {:?}, kernel {:?}, y {:?}, {groups} groups",
                self.x.dims, self.kernel.dims, self.y.dims
            ));
        }
        for side in 0..2 {
            let reach = (self.kernel.dims[side] - 1) * self.dilation[side] + 1;
            let padded = self.x.dims[side + 1] + self.padding_low[side] + self.padding_high[side];
            let positive = self.strides[side] >= 1 && self.dilation[side] >= 1;
            let padding = self.padding_low[side].min(self.padding_high[side]);
            if !positive
                || padding < 0
                || padded < reach
                || (padded - reach) / self.strides[side] + 1 != self.y.dims[side + 1]
            {
                return Err(format!("the window does not fit: {self:?}"));
            }
        }
        Ok(())
    }

    pub(crate) fn operation(&self, onednn: &OneDnn) -> Result<Operation> {
        let form = self.form();
        if form == Form::Product {
            return self.product(onednn);
        }
        let x = image_layout(onednn, &self.x)?;
        let kernel = self.kernel_layout(onednn)?;
        let y = image_layout(onednn, &self.y)?;
        let plan = if form == Form::Blocked {
            let any = |image: &Image| {
                let [batch, height, width, channels] = image.dims;
                onednn.any(image.element, &[batch, channels, height, width])
            };
            self.plan(onednn, &any(&self.x)?, &any(&self.y)?)?
        } else {
            self.plan(onednn, &x, &y)?
        };
        let bias = self.bias_layout(onednn)?;
        let mut arguments = match self.direction {
            Direction::Forward => vec![
                (argument::SRC, Flow::In, &x),
                (argument::WEIGHTS, Flow::In, &kernel),
                (argument::DST, Flow::Out, &y),
            ],
            Direction::InputGradient => vec![
                (argument::DIFF_DST, Flow::In, &y),
                (argument::WEIGHTS, Flow::In, &kernel),
                (argument::DIFF_SRC, Flow::Out, &x),
            ],
            Direction::KernelGradient => vec![
                (argument::SRC, Flow::In, &x),
                (argument::DIFF_DST, Flow::In, &y),
                (argument::DIFF_WEIGHTS, Flow::Out, &kernel),
            ],
        };
        if let Some(bias) = &bias {
            arguments.insert(2, (argument::BIAS, Flow::In, bias));
        }
        Operation::new(onednn, &plan, &arguments)
    }

    /// Which form is fastest where [`crate::kernel_gradient`] does not serve, from measurements on two cores with AVX2 (GFLOP/s of plain / blocked / product, 16 images):
    ///
    /// | kernel gradient | plain | blocked | product |
    /// |---|---|---|---|
    /// | 56x56, 64 -> 64, 3x3 | 97 | 129 | |
    /// | 56x56, 128 -> 128, 3x3 in steps of 2 | 89 | 126 | |
    /// | 28x28, 128 -> 128, 3x3 | 122 | 133 | |
    /// | 32x32, 32 -> 32, 3x3 | 153 | 126 | |
    /// | 7x7, 512 -> 512, 3x3 in steps of 2 | 102 | 86 | |
    /// | 56x56, 256 -> 64, 1x1 | 153 | 105 | 133 |
    /// | 28x28, 128 -> 512, 1x1 | 145 | 134 | 122 |
    /// | 28x28, 192 -> 32, 1x1 | 146 | 106 | 173 |
    /// | 14x14, 256 -> 1024, 1x1 | 107 | 159 | 89 |
    /// | 14x14, 96 -> 576, 1x1 | 159 | 152 | 183 |
    /// | 7x7, 960 -> 160, 1x1 | 140 | 158 | 182 |
    ///
    /// Forward and for the gradient of the input nothing beats the plain form by more than the changes of layout cost, and for
    /// depthwise kernels it is 2 to 10 times as fast as the others. It is one choice for a shape, never timed at run time, so that
    /// results do not differ from run to run.
    fn form(&self) -> Form {
        let [height, width, input, output] = self.kernel.dims;
        let f32s = [self.x, self.kernel, self.y]
            .iter()
            .all(|image| image.element == Type::F32);
        if self.direction != Direction::KernelGradient || self.groups > 1 || !f32s {
            return Form::Plain;
        }
        let [batch, rows, columns, _] = self.y.dims;
        if (height, width) != (1, 1) {
            let blocked = input.min(output) >= 64 && columns >= 14;
            return if blocked { Form::Blocked } else { Form::Plain };
        }
        let (pixels, size) = (batch * rows * columns, input * output);
        let is_product = self.x.dims[..3] == self.y.dims[..3];
        if is_product && (pixels < 1024 || (size < 1 << 16 && pixels <= 1 << 14)) {
            Form::Product
        } else if is_product && size >= 1 << 17 {
            Form::Blocked
        } else {
            Form::Plain
        }
    }

    /// The kernel gradient of 1x1 in steps of 1 as a product of matrices: the pixels of x, turned, times those of dy.
    fn product(&self, onednn: &OneDnn) -> Result<Operation> {
        let [batch, height, width, input] = self.x.dims;
        let (pixels, output) = (batch * height * width, self.y.dims[3]);
        let x = onednn.strided(self.x.element, &[input, pixels], &[1, input])?;
        let dy = onednn.strided(self.y.element, &[pixels, output], &[output, 1])?;
        let kernel = onednn.strided(self.kernel.element, &[input, output], &[output, 1])?;
        let no_bias = null_mut();
        // SAFETY: live layouts, no bias.
        let plan = unsafe {
            onednn.plan("plan a product", |out, engine, attributes| {
                let (x, dy, kernel) = (x.handle(), dy.handle(), kernel.handle());
                (onednn.api.matmul)(out, engine, x, dy, no_bias, kernel, attributes)
            })?
        };
        let arguments = [
            (argument::SRC, Flow::In, &x),
            (argument::WEIGHTS, Flow::In, &dy),
            (argument::DST, Flow::Out, &kernel),
        ];
        Operation::new(onednn, &plan, &arguments)
    }

    /// oneDNN's order of the kernel's dimensions: (groups,) output, input, height, width.
    fn kernel_dims(&self) -> ([i64; 5], usize) {
        let [height, width, input, output] = self.kernel.dims;
        let dims = [self.groups, output / self.groups, input, height, width];
        (dims, usize::from(self.groups == 1))
    }

    fn kernel_layout(&self, onednn: &OneDnn) -> Result<Layout> {
        let [_, width, input, output] = self.kernel.dims;
        let (dims, first) = self.kernel_dims();
        let strides = [
            output / self.groups,
            1,
            output,
            width * input * output,
            input * output,
        ];
        onednn.strided(self.kernel.element, &dims[first..], &strides[first..])
    }

    fn bias_layout(&self, onednn: &OneDnn) -> Result<Option<Layout>> {
        let layout = || onednn.strided(self.kernel.element, &[self.kernel.dims[3]], &[1]);
        self.bias.then(layout).transpose()
    }

    /// The kernel's layout is oneDNN's choice: it is small, and fast implementations exist for what is packed for the registers only.
    fn plan(&self, onednn: &OneDnn, x: &Layout, y: &Layout) -> Result<Plan> {
        let (dims, first) = self.kernel_dims();
        let kernel = onednn.any(self.kernel.element, &dims[first..])?;
        let forward = self.forward_plan(onednn, x, y)?;
        let (w, x, y) = (kernel.handle(), x.handle(), y.handle());
        let dilation = self.dilation.map(|step| step - 1);
        let (strides, dilation) = (self.strides.as_ptr(), dilation.as_ptr());
        let (low, high) = (self.padding_low.as_ptr(), self.padding_high.as_ptr());
        let hint = forward.handle();
        let direct = sys::CONVOLUTION_DIRECT;
        let api = onednn.api;
        // SAFETY: live layouts and plan, pairs for the two spatial dimensions, no bias.
        unsafe {
            match self.direction {
                Direction::Forward => Ok(forward),
                Direction::InputGradient => {
                    onednn.plan("plan an input gradient", |out, engine, attributes| {
                        (api.convolution_input_gradient)(
                            out, engine, direct, x, w, y, strides, dilation, low, high, hint,
                            attributes,
                        )
                    })
                }
                Direction::KernelGradient => {
                    onednn.plan("plan a kernel gradient", |out, engine, attributes| {
                        (api.convolution_kernel_gradient)(
                            out,
                            engine,
                            direct,
                            x,
                            w,
                            null_mut(),
                            y,
                            strides,
                            dilation,
                            low,
                            high,
                            hint,
                            attributes,
                        )
                    })
                }
            }
        }
    }

    /// The forward plan, which the gradients' plans take as a hint.
    fn forward_plan(&self, onednn: &OneDnn, x: &Layout, y: &Layout) -> Result<Plan> {
        let (dims, first) = self.kernel_dims();
        // In a kernel gradient of bf16 only the result may be f32.
        let element = match self.direction {
            Direction::KernelGradient => self.x.element,
            _ => self.kernel.element,
        };
        let kernel = onednn.any(element, &dims[first..])?;
        let bias = self.bias_layout(onednn)?;
        let dilation = self.dilation.map(|step| step - 1);
        // SAFETY: live layouts, no bias or a live one, pairs for the two spatial dimensions.
        unsafe {
            onednn.plan("plan a convolution", |out, engine, attributes| {
                (onednn.api.convolution)(
                    out,
                    engine,
                    sys::FORWARD_TRAINING,
                    sys::CONVOLUTION_DIRECT,
                    x.handle(),
                    kernel.handle(),
                    bias.as_ref().map_or(null_mut(), Layout::handle),
                    y.handle(),
                    self.strides.as_ptr(),
                    dilation.as_ptr(),
                    self.padding_low.as_ptr(),
                    self.padding_high.as_ptr(),
                    attributes,
                )
            })
        }
    }
}

/// The dense `[batch, height, width, channels]` in oneDNN's order: batch, channels, height, width.
fn image_layout(onednn: &OneDnn, image: &Image) -> Result<Layout> {
    nhwc(onednn, image.element, image.dims)
}

fn nhwc(onednn: &OneDnn, element: Type, dims: [i64; 4]) -> Result<Layout> {
    let [batch, height, width, channels] = dims;
    let strides = [height * width * channels, 1, width * channels, channels];
    onednn.strided(element, &[batch, channels, height, width], &strides)
}
