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

/// One convolution: x and y are `[batch, height, width, channels]`, the kernel `[height, width, input channels / groups, output channels]`.
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
        let x = image_layout(onednn, &self.x)?;
        let kernel = self.kernel_layout(onednn)?;
        let y = image_layout(onednn, &self.y)?;
        let plan = self.plan(onednn, &x, &y)?;
        let arguments: [_; 3] = match self.direction {
            Direction::Forward => [
                (argument::SRC, Flow::In, &x),
                (argument::WEIGHTS, Flow::In, &kernel),
                (argument::DST, Flow::Out, &y),
            ],
            Direction::InputGradient => [
                (argument::DIFF_DST, Flow::In, &y),
                (argument::WEIGHTS, Flow::In, &kernel),
                (argument::DIFF_SRC, Flow::Out, &x),
            ],
            Direction::KernelGradient => [
                (argument::SRC, Flow::In, &x),
                (argument::DIFF_DST, Flow::In, &y),
                (argument::DIFF_WEIGHTS, Flow::Out, &kernel),
            ],
        };
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

    /// The activations stay as they are, the kernel's layout is oneDNN's choice: it is small, and what is packed for the registers is
    /// 1.5 to 3 times as fast as the plain one.
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
        // SAFETY: live layouts and plan, pairs for the two spatial dimensions, no bias and no further attributes.
        unsafe {
            match self.direction {
                Direction::Forward => Ok(forward),
                Direction::InputGradient => onednn.plan("plan an input gradient", |out, engine| {
                    (api.convolution_input_gradient)(
                        out,
                        engine,
                        direct,
                        x,
                        w,
                        y,
                        strides,
                        dilation,
                        low,
                        high,
                        hint,
                        null_mut(),
                    )
                }),
                Direction::KernelGradient => {
                    onednn.plan("plan a kernel gradient", |out, engine| {
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
                            null_mut(),
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
        let dilation = self.dilation.map(|step| step - 1);
        // SAFETY: live layouts, pairs for the two spatial dimensions, no bias and no further attributes.
        unsafe {
            onednn.plan("plan a convolution", |out, engine| {
                (onednn.api.convolution)(
                    out,
                    engine,
                    sys::FORWARD_TRAINING,
                    sys::CONVOLUTION_DIRECT,
                    x.handle(),
                    kernel.handle(),
                    null_mut(),
                    y.handle(),
                    self.strides.as_ptr(),
                    dilation.as_ptr(),
                    self.padding_low.as_ptr(),
                    self.padding_high.as_ptr(),
                    null_mut(),
                )
            })
        }
    }
}

/// The dense `[batch, height, width, channels]` in oneDNN's order: batch, channels, height, width.
pub(crate) fn image_layout(onednn: &OneDnn, image: &Image) -> Result<Layout> {
    nhwc(onednn, image.element, image.dims)
}

pub(crate) fn nhwc(onednn: &OneDnn, element: Type, dims: [i64; 4]) -> Result<Layout> {
    let [batch, height, width, channels] = dims;
    let strides = [height * width * channels, 1, width * channels, channels];
    onednn.strided(element, &[batch, channels, height, width], &strides)
}
