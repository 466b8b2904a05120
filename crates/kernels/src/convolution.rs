//! Convolutions and their two gradients.

use std::ptr::null_mut;

use crate::bf16_matmul::MatmulDesc;
use crate::handlers::TensorDesc;
use crate::onednn::{DataType, MemoryDesc, OneDnn, PrimitiveDesc, Result};
use crate::operation::{ArgumentKind, CallersLayout, Operation};
use crate::sys::{self, argument};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Forward,
    InputGradient,
    KernelGradient,
}

/// One convolution, with a bias or without: x and y are `[batch, height, width, channels]`, the kernel `[height, width, input channels / groups, output channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConvolutionDesc {
    pub(crate) direction: Direction,
    pub(crate) x: TensorDesc,
    pub(crate) kernel: TensorDesc,
    pub(crate) y: TensorDesc,
    pub(crate) strides: [i64; 2],
    pub(crate) dilation: [i64; 2],
    pub(crate) padding_low: [i64; 2],
    pub(crate) padding_high: [i64; 2],
    pub(crate) groups: i64,
    /// Whether a number for each output channel is added, forward.
    pub(crate) bias: bool,
    /// Whether oneDNN multiplies bf16 by instructions that are faster than f32's; else arrays of bf16 are computed with in f32.
    pub(crate) native_bf16: bool,
    /// What computes it, where the caller chose; otherwise [`ConvolutionDesc::algorithm`] does.
    pub(crate) chosen: Option<Algorithm>,
}

/// What computes a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Algorithm {
    /// oneDNN's convolution with activations in NHWC, as they are.
    Plain,
    /// oneDNN's convolution with activations in the layout that it prefers, reordered before and after.
    Blocked,
    /// oneDNN's matrix multiplication.
    Matmul,
    /// A matrix multiplication of ours, [`crate::pointwise`].
    Product,
    /// Winograd's tiles, [`crate::winograd`].
    Tiles,
    /// Sums of one channel a lane, [`crate::depthwise`].
    Depthwise,
}

impl Algorithm {
    /// All, by the names that calls have for them.
    const NAMES: [(&'static str, Self); 6] = [
        ("plain", Self::Plain),
        ("blocked", Self::Blocked),
        ("matmul", Self::Matmul),
        ("product", Self::Product),
        ("tiles", Self::Tiles),
        ("depthwise", Self::Depthwise),
    ];

    /// The algorithm of a name.
    ///
    /// # Errors
    /// There is none; the text says which there are.
    pub(crate) fn named(name: &str) -> std::result::Result<Self, String> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, algorithm)| algorithm).ok_or_else(|| {
            let known = Self::NAMES.map(|(known, _)| known).join(", ");
            format!("the attribute `algorithm` must be one of {known}, got {name:?}")
        })
    }
}

impl ConvolutionDesc {
    /// Whether the dimensions fit each other; what remains is oneDNN's to judge.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let [_, _, input, output] = self.kernel.dims;
        let groups = self.groups;
        if groups < 1
            || Some(self.x.dims[3]) != input.checked_mul(groups)
            || self.y.dims[3] != output
            || output % groups != 0
        {
            return Err(format!(
                "channels and groups do not fit: x {:?}, kernel {:?}, y {:?}, {groups} groups",
                self.x.dims, self.kernel.dims, self.y.dims
            ));
        }
        let strided = self.strides != [1, 1] && self.kernel.dims[..2] == [1, 1];
        if strided && self.direction == Direction::KernelGradient {
            return Err(format!(
                "oneDNN computes the kernel gradient of a 1x1 convolution with strides {:?} wrongly; slice x and pass strides of 1",
                self.strides
            ));
        }
        for side in 0..2 {
            if self.window_fits(side) != Some(true) {
                return Err(format!("the window does not fit: {self:?}"));
            }
        }
        match self.chosen {
            Some(chosen) if !self.takes(chosen) => {
                Err(format!("{chosen:?} does not compute this: {self:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether an algorithm computes this convolution, fast or not.
    fn takes(&self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Plain => true,
            Algorithm::Blocked => self.groups == 1,
            Algorithm::Matmul => {
                let is_gradient = self.direction == Direction::KernelGradient;
                self.is_pointwise() && is_gradient && !self.widens_bf16()
            }
            #[cfg(target_arch = "x86_64")]
            Algorithm::Product => crate::pointwise::takes(self),
            #[cfg(target_arch = "x86_64")]
            Algorithm::Tiles => crate::winograd::takes(self),
            #[cfg(target_arch = "x86_64")]
            Algorithm::Depthwise => crate::depthwise::takes(self),
            #[cfg(not(target_arch = "x86_64"))]
            Algorithm::Product | Algorithm::Tiles | Algorithm::Depthwise => false,
        }
    }

    /// Whether it is a product of two matrices: a kernel of one place, without strides, padding and groups.
    pub(crate) fn is_pointwise(&self) -> bool {
        self.kernel.dims[..2] == [1, 1]
            && self.strides == [1, 1]
            && self.padding_low == [0, 0]
            && self.groups == 1
            && self.x.dims[..3] == self.y.dims[..3]
    }

    /// Whether all arrays are of f32.
    pub(crate) fn is_f32(&self) -> bool {
        let images = [self.x, self.kernel, self.y];
        images.iter().all(|image| image.element == DataType::F32)
    }

    /// Whether all arrays are computed with in f32.
    fn is_computed_in_f32(&self) -> bool {
        self.is_f32() || !self.native_bf16
    }

    /// Whether arrays of bf16 are computed with in f32.
    fn widens_bf16(&self) -> bool {
        self.is_computed_in_f32() && !self.is_f32()
    }

    /// Itself, computed in f32 where oneDNN 3.2 computes it wrongly by instructions for bf16: decision 69. What it needs is that `check`
    /// has passed.
    pub(crate) fn where_bf16_is_right(self) -> Self {
        let step = self.strides[1];
        let is_wrong = match self.direction {
            // With AMX columns that one step passes over are taken as more channels, and those of a last block of 32 are mixed up.
            Direction::Forward => {
                let is_folded = step > 1 && self.kernel.dims[1] % step == 0;
                is_folded && self.x.dims[3] % 32 != 0
            }
            Direction::InputGradient => false,
            // Gaps in a depthwise kernel are taken for other pixels from 29 columns on, also without AMX. Places of a kernel that meet padding
            // alone are not written.
            Direction::KernelGradient => {
                let has_gaps = self.groups > 1 && self.dilation != [1, 1];
                has_gaps || self.has_place_in_padding(0) || self.has_place_in_padding(1)
            }
        };
        Self {
            native_bf16: self.native_bf16 && !is_wrong,
            ..self
        }
    }

    /// Whether a place of the kernel meets nothing but padding on this side, wherever the window stands.
    fn has_place_in_padding(&self, side: usize) -> bool {
        let (stride, size) = (self.strides[side], self.x.dims[side + 1]);
        let meets = |place: i64| {
            let first = place * self.dilation[side] - self.padding_low[side];
            (0..self.y.dims[side + 1]).any(|window| (0..size).contains(&(first + window * stride)))
        };
        !(0..self.kernel.dims[side]).all(meets)
    }

    /// Element types of the two operands and of the result.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn elements(&self) -> [DataType; 3] {
        let [x, kernel, y] = [self.x, self.kernel, self.y].map(|image| image.element);
        match self.direction {
            Direction::Forward => [x, kernel, y],
            Direction::InputGradient => [y, kernel, x],
            Direction::KernelGradient => [x, y, kernel],
        }
    }

    /// Whether our own loops, which compute in f32, take these elements.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_elements_of_ours(&self) -> bool {
        use DataType::{Bf16, F32};
        matches!(self.elements(), [F32, F32, F32] | [Bf16, Bf16, _])
    }

    /// The convolution of arrays of the type that it is computed in.
    fn computed(&self) -> Self {
        let wide = |image: TensorDesc| TensorDesc {
            element: DataType::F32,
            ..image
        };
        match self.native_bf16 {
            true => *self,
            false => Self {
                x: wide(self.x),
                kernel: wide(self.kernel),
                y: wide(self.y),
                ..*self
            },
        }
    }

    /// Whether the windows of a side are as many as the result has; nothing where a number is too large.
    fn window_fits(&self, side: usize) -> Option<bool> {
        let (low, high) = (self.padding_low[side], self.padding_high[side]);
        if self.strides[side] < 1 || self.dilation[side] < 1 || low.min(high) < 0 {
            return Some(false);
        }
        let kernel = self.kernel.dims[side].checked_sub(1)?;
        let reach = kernel.checked_mul(self.dilation[side])?.checked_add(1)?;
        let padded = self.x.dims[side + 1].checked_add(low)?.checked_add(high)?;
        let left = padded.checked_sub(reach)?;
        Some(left >= 0 && left / self.strides[side] + 1 == self.y.dims[side + 1])
    }

    /// oneDNN's operation for it, by an algorithm of oneDNN's.
    pub(crate) fn operation(&self, algorithm: Algorithm, onednn: &OneDnn) -> Result<Operation> {
        if algorithm == Algorithm::Matmul {
            return self.matmul(onednn);
        }
        // Arguments of other elements are widened, those of other layouts reordered.
        let computed = self.computed();
        let x = self.callers(self.x.element, |of| tensor_desc(onednn, &of.x))?;
        let kernel = self.callers(self.kernel.element, |of| of.kernel_desc(onednn))?;
        let y = self.callers(self.y.element, |of| tensor_desc(onednn, &of.y))?;
        let wanted = |image: &TensorDesc| {
            let [batch, height, width, channels] = image.dims;
            match algorithm {
                Algorithm::Blocked => {
                    onednn.any_layout(image.element, &[batch, channels, height, width])
                }
                _ => tensor_desc(onednn, image),
            }
        };
        let (wanted_x, wanted_y) = (wanted(&computed.x)?, wanted(&computed.y)?);
        let primitive_desc = computed.primitive_desc(onednn, &wanted_x, &wanted_y)?;
        let bias = |of: &Self| of.bias_desc(onednn);
        let bias = self.bias.then(|| self.callers(self.kernel.element, bias));
        let bias = bias.transpose()?;
        let mut arguments = match self.direction {
            Direction::Forward => vec![
                (argument::SRC, ArgumentKind::Input, &x),
                (argument::WEIGHTS, ArgumentKind::Input, &kernel),
                (argument::DST, ArgumentKind::Output, &y),
            ],
            Direction::InputGradient => vec![
                (argument::DIFF_DST, ArgumentKind::Input, &y),
                (argument::WEIGHTS, ArgumentKind::Input, &kernel),
                (argument::DIFF_SRC, ArgumentKind::Output, &x),
            ],
            Direction::KernelGradient => vec![
                (argument::SRC, ArgumentKind::Input, &x),
                (argument::DIFF_DST, ArgumentKind::Input, &y),
                (argument::DIFF_WEIGHTS, ArgumentKind::Output, &kernel),
            ],
        };
        if let Some(bias) = &bias {
            arguments.insert(2, (argument::BIAS, ArgumentKind::Input, bias));
        }
        Operation::new(onednn, &primitive_desc, &arguments)
    }

    /// A layout of the caller's, of an array of these elements.
    fn callers(
        &self,
        element: DataType,
        layout: impl Fn(&Self) -> Result<MemoryDesc>,
    ) -> Result<CallersLayout> {
        let is_widened = element == DataType::Bf16 && !self.native_bf16;
        let in_f32 = is_widened.then(|| layout(&self.computed()));
        Ok(CallersLayout {
            layout: layout(self)?,
            in_f32: in_f32.transpose()?,
        })
    }

    /// The algorithm that the caller chose, else the fastest by measurements: [`crate::winograd`] where that serves, the rule of
    /// [`ConvolutionDesc::by_product`] with AVX-512, else from two cores with AVX2 (GFLOP/s of plain / blocked / matmul, 16 images):
    ///
    /// | kernel gradient | plain | blocked | matmul |
    /// |---|---|---|---|
    /// | 56x56, 64 -> 64, 3x3 | 97 | 129 | |
    /// | 56x56, 128 -> 128, 3x3 with stride 2 | 89 | 126 | |
    /// | 28x28, 128 -> 128, 3x3 | 122 | 133 | |
    /// | 32x32, 32 -> 32, 3x3 | 153 | 126 | |
    /// | 7x7, 512 -> 512, 3x3 with stride 2 | 102 | 86 | |
    /// | 56x56, 256 -> 64, 1x1 | 153 | 105 | 133 |
    /// | 28x28, 128 -> 512, 1x1 | 145 | 134 | 122 |
    /// | 28x28, 192 -> 32, 1x1 | 146 | 106 | 173 |
    /// | 14x14, 256 -> 1024, 1x1 | 107 | 159 | 89 |
    /// | 14x14, 96 -> 576, 1x1 | 159 | 152 | 183 |
    /// | 7x7, 960 -> 160, 1x1 | 140 | 158 | 182 |
    ///
    /// With AVX2, forward and for the gradient of the input nothing of oneDNN's beats the plain algorithm by more than the changes of layout
    /// cost, and for depthwise kernels it is 2 to 10 times as fast as the others. It is one choice for a shape, never timed as a program
    /// runs, so that results do not differ from run to run.
    pub(crate) fn algorithm(&self) -> Algorithm {
        if let Some(chosen) = self.chosen {
            return chosen;
        }
        #[cfg(target_arch = "x86_64")]
        if crate::winograd::suits(self) && self.is_computed_in_f32() {
            return Algorithm::Tiles;
        }
        #[cfg(target_arch = "x86_64")]
        if crate::depthwise::suits(self) {
            return Algorithm::Depthwise;
        }
        self.by_product().unwrap_or_else(|| self.by_convolution())
    }

    /// The fastest algorithm of a large product of matrices with AVX-512, from measurements on an AMD EPYC (Zen 4): decision 48. It
    /// does not depend on the number of images. Arrays of bf16 that are computed with in f32 are no other algorithm's without copies of them in f32.
    #[cfg(target_arch = "x86_64")]
    fn by_product(&self) -> Option<Algorithm> {
        let [_, rows, columns, _] = self.x.dims;
        let [_, _, inputs, outputs] = self.kernel.dims;
        let gains = self.widens_bf16() || crate::simd::has_avx512();
        if !self.is_pointwise() || inputs.min(outputs) < 64 || !gains {
            return None;
        }
        let is_large = rows * columns >= 14 * 14;
        // Where few columns are multiplied by many rows, oneDNN's convolution is 1.1 to 1.2 times as fast: decision 51.
        let width = match self.direction {
            Direction::InputGradient => inputs,
            _ => outputs,
        };
        let is_narrow = width <= 128 && rows * columns >= 28 * 28 && !self.widens_bf16();
        let is_ours = self.takes(Algorithm::Product) && self.is_computed_in_f32();
        match self.direction {
            Direction::KernelGradient if !self.widens_bf16() => Some(Algorithm::Matmul),
            Direction::KernelGradient => is_ours.then_some(Algorithm::Product),
            _ => (is_large && !is_narrow && is_ours).then_some(Algorithm::Product),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn by_product(&self) -> Option<Algorithm> {
        None
    }

    /// The fastest algorithm of oneDNN's with AVX2.
    fn by_convolution(&self) -> Algorithm {
        let [height, width, input, output] = self.kernel.dims;
        let is_gradient = self.direction == Direction::KernelGradient;
        if !is_gradient || self.groups > 1 || !self.is_computed_in_f32() {
            return Algorithm::Plain;
        }
        let [batch, rows, columns, _] = self.y.dims;
        if (height, width) != (1, 1) {
            let blocked = input.min(output) >= 64 && columns >= 14;
            return if blocked {
                Algorithm::Blocked
            } else {
                Algorithm::Plain
            };
        }
        let (pixels, size) = (batch * rows * columns, input * output);
        let is_product = self.is_pointwise();
        if is_product && (pixels < 1024 || (size < 1 << 16 && pixels <= 1 << 14)) {
            match self.takes(Algorithm::Matmul) {
                true => Algorithm::Matmul,
                false => Algorithm::Plain,
            }
        } else if is_product && size >= 1 << 17 {
            Algorithm::Blocked
        } else {
            Algorithm::Plain
        }
    }

    /// The kernel gradient of a 1x1 convolution with stride 1 as a matrix multiplication: the pixels of x, transposed, times the pixels of dy.
    fn matmul(&self, onednn: &OneDnn) -> Result<Operation> {
        let [batch, height, width, input] = self.x.dims;
        let (pixels, output) = (batch * height * width, self.y.dims[3]);
        let product = MatmulDesc {
            batch: 1,
            rows: input,
            columns: output,
            depth: pixels,
            left_transposed: true,
            right_transposed: false,
            elements: [self.x.element, self.y.element, self.kernel.element],
        };
        product.operation(onednn)
    }

    /// oneDNN's order of the kernel's dimensions: (groups,) output, input, height, width.
    fn kernel_dims(&self) -> ([i64; 5], usize) {
        let [height, width, input, output] = self.kernel.dims;
        let dims = [self.groups, output / self.groups, input, height, width];
        (dims, usize::from(self.groups == 1))
    }

    fn kernel_desc(&self, onednn: &OneDnn) -> Result<MemoryDesc> {
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

    fn bias_desc(&self, onednn: &OneDnn) -> Result<MemoryDesc> {
        onednn.strided(self.kernel.element, &[self.kernel.dims[3]], &[1])
    }

    /// The kernel's layout is oneDNN's choice: it is small, and fast implementations exist for what is packed for the registers only.
    fn primitive_desc(
        &self,
        onednn: &OneDnn,
        x: &MemoryDesc,
        y: &MemoryDesc,
    ) -> Result<PrimitiveDesc> {
        let (dims, first) = self.kernel_dims();
        let kernel = onednn.any_layout(self.kernel.element, &dims[first..])?;
        let forward = self.forward_desc(onednn, x, y)?;
        let (w, x, y) = (kernel.handle(), x.handle(), y.handle());
        let dilation = self.dilation.map(|step| step - 1);
        let (strides, dilation) = (self.strides.as_ptr(), dilation.as_ptr());
        let (low, high) = (self.padding_low.as_ptr(), self.padding_high.as_ptr());
        let hint = forward.handle();
        let direct = sys::CONVOLUTION_DIRECT;
        let api = onednn.api;
        // SAFETY: live descriptions of the arrays and of the forward convolution, pairs for the two spatial dimensions, no bias.
        unsafe {
            match self.direction {
                Direction::Forward => Ok(forward),
                Direction::InputGradient => {
                    onednn.primitive_desc("plan an input gradient", |out, engine, attributes| {
                        (api.convolution_input_gradient)(
                            out, engine, direct, x, w, y, strides, dilation, low, high, hint,
                            attributes,
                        )
                    })
                }
                Direction::KernelGradient => {
                    onednn.primitive_desc("plan a kernel gradient", |out, engine, attributes| {
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

    /// The description of the forward convolution, a hint for the descriptions of its gradients.
    fn forward_desc(
        &self,
        onednn: &OneDnn,
        x: &MemoryDesc,
        y: &MemoryDesc,
    ) -> Result<PrimitiveDesc> {
        let (dims, first) = self.kernel_dims();
        // In a kernel gradient of bf16 only the result may be f32.
        let element = match self.direction {
            Direction::KernelGradient => self.x.element,
            _ => self.kernel.element,
        };
        let kernel = onednn.any_layout(element, &dims[first..])?;
        let bias = self.bias.then(|| self.bias_desc(onednn)).transpose()?;
        let dilation = self.dilation.map(|step| step - 1);
        // SAFETY: live layouts, no bias or a live one, pairs for the two spatial dimensions.
        unsafe {
            onednn.primitive_desc("plan a convolution", |out, engine, attributes| {
                (onednn.api.convolution)(
                    out,
                    engine,
                    sys::FORWARD_TRAINING,
                    sys::CONVOLUTION_DIRECT,
                    x.handle(),
                    kernel.handle(),
                    bias.as_ref().map_or(null_mut(), MemoryDesc::handle),
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
fn tensor_desc(onednn: &OneDnn, image: &TensorDesc) -> Result<MemoryDesc> {
    nhwc(onednn, image.element, image.dims)
}

fn nhwc(onednn: &OneDnn, element: DataType, dims: [i64; 4]) -> Result<MemoryDesc> {
    let [batch, height, width, channels] = dims;
    let strides = [height * width * channels, 1, width * channels, channels];
    onednn.strided(element, &[batch, channels, height, width], &strides)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onednn::DataType;

    fn described(stride: i64, dilation: i64, padding: i64) -> ConvolutionDesc {
        let tensor = |dims| TensorDesc {
            element: DataType::F32,
            dims,
        };
        ConvolutionDesc {
            direction: Direction::Forward,
            x: tensor([1, 8, 8, 2]),
            kernel: tensor([3, 3, 2, 4]),
            y: tensor([1, 6, 6, 4]),
            strides: [stride; 2],
            dilation: [dilation; 2],
            padding_low: [padding; 2],
            padding_high: [0; 2],
            groups: 1,
            bias: false,
            native_bf16: false,
            chosen: None,
        }
    }

    #[test]
    fn windows_are_counted_without_wrapping() {
        assert_eq!(described(1, 1, 0).check(), Ok(()));
        let huge = i64::MAX;
        for (stride, dilation, padding) in [
            (1, huge, 0),
            (1, 1, huge),
            (0, 1, 0),
            (huge, 1, 0),
            (1, 2, 0),
        ] {
            let refused = described(stride, dilation, padding).check().unwrap_err();
            assert!(refused.contains("the window does not fit"), "{refused}");
        }
        let channels = ConvolutionDesc {
            groups: huge,
            ..described(1, 1, 0)
        };
        assert!(channels.check().unwrap_err().contains("do not fit"));
    }
}
