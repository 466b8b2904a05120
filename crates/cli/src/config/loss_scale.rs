//! `loss_scale` of the file.

use std::ops::Bound::Included;

use phalanx::config::{DefaultValue, Field, Kind};
use phalanx::fit::LossScale;
use phalanx::nn::Policy;
use phalanx_yaml::{Node, Value};

use super::reader::{Reader, Section, finite, text, whole};
use super::{Located, TrainConfig};

/// From 1 to where gradients times it are no numbers.
const SCALE: Kind = Kind::Number(Included(1.0), Included(1e37));

/// `loss_scale` in all its forms.
pub(super) const LOSS_SCALE_KIND: Kind = Kind::Worded(
    "off, a number from 1 to 1e37, or settings of one that follows the gradients",
    &Kind::Either(&[Kind::OneOf(&["off"]), SCALE, Kind::Section(LOSS_SCALE)]),
);

/// `loss_scale` that follows the gradients.
pub(crate) const LOSS_SCALE: &[Field] = &[
    Field::new(
        "initial",
        SCALE,
        DefaultValue::Value("32768"),
        "the first scale; Keras' `initial_scale`, PyTorch's `init_scale`",
    )
    .example("1024"),
    Field::new(
        "growth_steps",
        Kind::Whole(1, u32::MAX as i64),
        DefaultValue::Value("2000"),
        "steps in a row without overflow after which the scale is doubled; Keras' `dynamic_growth_steps`, PyTorch's `growth_interval`",
    )
    .example("500"),
];

impl Reader {
    /// What the loss is multiplied by, where the file says it.
    pub(super) fn loss_scale(&mut self, file: &Section<'_>) -> Option<Located<LossScale>> {
        let node = file.node("loss_scale")?;
        let at = node.at;
        if !matches!(node.value, Value::Map(_)) {
            let value = self.value(file, "loss_scale", fixed)?;
            return Some(Located { value, at });
        }
        let section = self.section(node, "loss_scale", LOSS_SCALE)?;
        let initial = self.value(&section, "initial", finite);
        let growth_steps = self.value(&section, "growth_steps", whole);
        let LossScale::Dynamic {
            initial: usual,
            growth_steps: usual_steps,
        } = LossScale::DYNAMIC
        else {
            return None;
        };
        let value = LossScale::Dynamic {
            initial: initial.unwrap_or(usual),
            growth_steps: growth_steps
                .and_then(|steps| u32::try_from(steps).ok())
                .unwrap_or(usual_steps),
        };
        Some(Located { value, at })
    }

    /// Refuses to skip steps by a scale that never skips one.
    pub(super) fn check_loss_scale(&mut self, config: &TrainConfig) {
        if let Some(Located {
            value: LossScale::Fixed(scale),
            at,
        }) = config.loss_scale
            && config.skips_bad_steps()
        {
            self.problem(
                at,
                format!("`loss_scale` is {scale} for all steps, and terminate_on_nan is to skip those that are not finite"),
                "write `loss_scale: {initial: 32768}`, which follows the gradients, or remove one of them",
            );
        }
    }
}

impl TrainConfig {
    /// Whether a callback asks that steps are skipped which are not finite.
    fn skips_bad_steps(&self) -> bool {
        self.callbacks.iter().any(|callback| {
            callback.name == "terminate_on_nan" && callback.settings["policy"] == "skip"
        })
    }

    /// What the loss is multiplied by.
    pub(crate) fn scale_of_loss(&self) -> LossScale {
        let given = self.loss_scale.map_or(LossScale::Auto, |given| given.value);
        let is_scaled = match given {
            LossScale::Auto => self.precision == Policy::MixedFloat16,
            other => other != LossScale::Off,
        };
        // A scale that follows the gradients skips such steps anyway.
        match self.skips_bad_steps() && !is_scaled {
            true => LossScale::SkipNonFinite,
            false => given,
        }
    }
}

fn fixed(node: &Node) -> Option<LossScale> {
    match text(node) {
        Some("off") => Some(LossScale::Off),
        _ => finite(node).map(LossScale::Fixed),
    }
}
