//! The fully connected layer.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::settings::{KernelSettings, kernel_output, kernel_settings};
use super::sizes::{check_size, one_float};
use super::{Activation, Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, joined};

/// `activation(x kernel + bias)` along the last dim; kind `dense`.
///
/// Variables: `kernel` `[inputs, units]`, `bias` `[units]`. Fields and defaults are Keras'.
///
/// ```
/// use phalanx::nn::{Dense, Layer, Regularizer, Sequential, relu};
///
/// let dense = Dense::new(10).activation(relu).kernel_regularizer(Regularizer::L2 { l2: 1e-4 });
/// let model = Sequential::new([4]).add(dense).build()?;
/// assert_eq!(model.variables()[0].shape.dims, [4, 10]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dense {
    units: usize,
    #[serde(flatten)]
    settings: KernelSettings,
}

impl Dense {
    /// A layer of `units` outputs, without an activation.
    #[must_use]
    pub const fn new(units: usize) -> Self {
        Self {
            units,
            settings: KernelSettings::new(),
        }
    }

    kernel_settings!();
}

impl Described for Dense {
    const COMPONENT: Component = Component {
        name: "dense",
        doc: "a fully connected layer: the product with a kernel, plus a bias",
        fields: joined!(&[fields::UNITS], KernelSettings::FIELDS),
    };
}

impl Layer for Dense {
    fn kind(&self) -> &'static str {
        "dense"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`units`", self.units)?;
        self.settings.activation.check()
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_float(inputs)?;
        if input.rank() >= 2 {
            return Ok(());
        }
        Err(format!(
            "expected examples with features, got {input}; give the input the dims [1]"
        ))
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let features = x.dim(x.rank() - 1);
        let shape = Shape::new(x.dtype(), [features, self.units]);
        let kernel = self.settings.kernel(cx, shape);
        self.settings.finish(cx, x.matmul(&kernel), self.units)
    }

    kernel_output!();

    fn keeps_mask(&self) -> bool {
        true
    }
}
