//! Maximum pooling and its gradient.

use std::ptr::null_mut;

use crate::convolution::{image_layout, nhwc};
use crate::handlers::Image;
use crate::onednn::{Flow, OneDnn, Operation, Plan, Refused, Result, Type};
use crate::sys::{self, argument};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Forward,
    Gradient,
}

/// One pooling of `[batch, height, width, channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) direction: Direction,
    pub(crate) x: Image,
    pub(crate) y: Image,
    pub(crate) window: [i64; 2],
    pub(crate) strides: [i64; 2],
    pub(crate) padding_low: [i64; 2],
    pub(crate) padding_high: [i64; 2],
}

/// Elements of a window whose place fits into a byte.
const LARGEST_WINDOW: i64 = 256;

impl Key {
    /// Whether the dimensions fit each other.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let [batch, _, _, channels] = self.x.dims;
        if self.y.dims[0] != batch || self.y.dims[3] != channels || self.x.element != self.y.element
        {
            return Err(format!("x and y do not fit: {self:?}"));
        }
        if self.window.iter().product::<i64>() > LARGEST_WINDOW {
            return Err(format!(
                "a window has at most {LARGEST_WINDOW} elements, got {:?}",
                self.window
            ));
        }
        for side in 0..2 {
            let (low, high) = (self.padding_low[side], self.padding_high[side]);
            let padded = self.x.dims[side + 1] + low + high;
            let (window, stride) = (self.window[side], self.strides[side]);
            let positive = window >= 1 && stride >= 1 && low.min(high) >= 0;
            if !positive
                || padded < window
                || (padded - window) / stride + 1 != self.y.dims[side + 1]
            {
                return Err(format!("the window does not fit: {self:?}"));
            }
        }
        Ok(())
    }

    pub(crate) fn operation(&self, onednn: &OneDnn) -> Result<Operation> {
        let x = image_layout(onednn, &self.x)?;
        let y = image_layout(onednn, &self.y)?;
        let place = nhwc(onednn, Type::U8, self.y.dims)?;
        let plan = self.plan(onednn)?;
        if plan.layout(argument::WORKSPACE)?.bytes() != place.bytes() {
            return Err(Refused {
                doing: "keep the places of a pooling in bytes",
                status: sys::UNIMPLEMENTED,
            });
        }
        let arguments: [_; 3] = match self.direction {
            Direction::Forward => [
                (argument::SRC, Flow::In, &x),
                (argument::DST, Flow::Out, &y),
                (argument::WORKSPACE, Flow::Out, &place),
            ],
            Direction::Gradient => [
                (argument::WORKSPACE, Flow::In, &place),
                (argument::DIFF_DST, Flow::In, &y),
                (argument::DIFF_SRC, Flow::Out, &x),
            ],
        };
        Operation::new(onednn, &plan, &arguments)
    }

    fn plan(&self, onednn: &OneDnn) -> Result<Plan> {
        let (x, y) = (
            image_layout(onednn, &self.x)?,
            image_layout(onednn, &self.y)?,
        );
        let (x, y) = (x.handle(), y.handle());
        let (strides, window) = (self.strides.as_ptr(), self.window.as_ptr());
        let (low, high) = (self.padding_low.as_ptr(), self.padding_high.as_ptr());
        let dense = [0i64, 0];
        let (dense, max, api) = (dense.as_ptr(), sys::POOLING_MAX, onednn.api);
        // SAFETY: live layouts, pairs for the two spatial dimensions, and no further attributes.
        let forward = unsafe {
            onednn.plan("plan a pooling", |out, engine| {
                (api.pooling)(
                    out,
                    engine,
                    sys::FORWARD_TRAINING,
                    max,
                    x,
                    y,
                    strides,
                    window,
                    dense,
                    low,
                    high,
                    null_mut(),
                )
            })?
        };
        match self.direction {
            Direction::Forward => Ok(forward),
            // SAFETY: as above, with the forward plan as a hint.
            Direction::Gradient => unsafe {
                onednn.plan("plan the gradient of a pooling", |out, engine| {
                    (api.pooling_gradient)(
                        out,
                        engine,
                        max,
                        x,
                        y,
                        strides,
                        window,
                        dense,
                        low,
                        high,
                        forward.handle(),
                        null_mut(),
                    )
                })
            },
        }
    }
}
