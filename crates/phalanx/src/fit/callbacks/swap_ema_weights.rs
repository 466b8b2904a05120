//! Validation and saving by the moving averages of the variables.

use serde::{Deserialize, Serialize};

use super::{Callback, CallbackContext};
use crate::Result;
use crate::config::{Component, Described, Field, Kind, setters};
use crate::fit::{EpochLogs, Logs};

/// Exchanges the variables and their moving averages ([`Optimizer::ema`](crate::optim::Optimizer::ema)) for validations, evaluations and
/// predictions: Keras' `SwapEMAWeights`, which leaves the averages there after a prediction. Checkpoints have each in its own place whether
/// they are exchanged or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapEmaWeights {
    swap_on_epoch: bool,
}

impl Described for SwapEmaWeights {
    const COMPONENT: Component = Component {
        name: "swap_ema_weights",
        doc: "validates by the moving averages of the variables, which the optimizer's `use_ema` keeps",
        fields: &[Field::optional(
            "swap_on_epoch",
            Kind::Bool,
            "whether callbacks after this one have the averages at the end of an epoch, too",
        )],
    };
}

impl SwapEmaWeights {
    /// Exchanges them for validations alone.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(SwapEmaWeights {
    /// Whether callbacks after this one have the averages at the end of an epoch, too.
    swap_on_epoch: bool,
});

impl Callback for SwapEmaWeights {
    fn kind(&self) -> &'static str {
        Self::COMPONENT.name
    }

    fn on_epoch_begin(&mut self, _: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        cx.use_averages(false)
    }

    fn on_epoch_end(&mut self, _: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        match self.swap_on_epoch {
            true => cx.use_averages(true),
            false => Ok(()),
        }
    }

    fn on_test_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        cx.use_averages(true)
    }

    fn on_test_end(&mut self, _: &Logs, cx: &mut CallbackContext<'_>) -> Result<()> {
        cx.use_averages(false)
    }

    fn on_predict_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        cx.use_averages(true)
    }

    fn on_predict_end(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        cx.use_averages(false)
    }
}
