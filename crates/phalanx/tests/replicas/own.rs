//! Parts of a training that a program defines: an update rule, a learning rate and a metric.

use phalanx::losses::weighted;
use phalanx::metrics::{Better, MetricStateSpec, StatefulMetric};
use phalanx::optim::{Begun, ParamSpec, Step, UpdateRule, Updated};
use phalanx::prelude::*;
use phalanx::schedules::LearningRateSchedule;
use serde_json::{Value, json};

/// `first / sqrt(1 + step / steps)`.
#[derive(Debug)]
pub(crate) struct InverseRoot {
    pub(crate) first: f64,
    pub(crate) steps: u64,
}

impl LearningRateSchedule for InverseRoot {
    fn kind(&self) -> &'static str {
        "inverse_root"
    }

    fn config(&self) -> Value {
        json!({"first": self.first, "steps": self.steps})
    }

    fn value(&self, step: u64) -> f64 {
        self.first / (1.0 + step as f64 / self.steps as f64).sqrt()
    }

    fn trace(&self, step: &Tensor) -> Tensor {
        self.first / (step.convert(DType::F32) / self.steps as f64 + 1.0).sqrt()
    }
}

/// Steps of nearly the rate along the mean gradient, shorter where it is small: `m = kept m + (1 - kept) g` and
/// `v -= rate u / (|u| + 0.1)` with `u = m / (1 - kept^t)`, whose power is a slot of the whole; biases twice as far.
#[derive(Debug)]
pub(crate) struct SoftSign {
    learning_rate: Schedule,
    kept: f64,
}

impl SoftSign {
    pub(crate) fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            kept: 0.8,
        }
    }
}

impl UpdateRule for SoftSign {
    fn kind(&self) -> &'static str {
        "soft_sign"
    }

    fn config(&self) -> Value {
        json!({"kept": self.kept})
    }

    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("mean", 0.0)]
    }

    fn own_slots(&self) -> Vec<(&'static str, f64)> {
        vec![("power", 1.0)]
    }

    fn begin(&self, step: &Step) -> Begun {
        let power = &step.own_slots[0] * self.kept;
        Begun {
            scalars: vec![step.rate.clone(), 1.0 - &power],
            own_slots: vec![power],
        }
    }

    fn update(
        &self,
        spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let mean = &slots[0] * self.kept + gradient * (1.0 - self.kept);
        let unbiased = &mean / &scalars[1];
        let step = &unbiased / (unbiased.abs() + 0.1) * &scalars[0];
        let step = match spec.name.contains("bias") {
            true => step * 2.0,
            false => step,
        };
        Updated::new(param - step, [mean])
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

/// The share of examples whose target is within each threshold of the mean of the predictions, and the mean of these shares.
#[derive(Debug)]
pub(crate) struct Within {
    pub(crate) thresholds: Vec<f64>,
}

impl StatefulMetric for Within {
    fn kind(&self) -> &'static str {
        "within"
    }

    fn config(&self) -> Value {
        json!({"thresholds": self.thresholds})
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        let spec = |name, dims: &[usize]| MetricStateSpec {
            name,
            shape: Shape::new(DType::F64, dims),
        };
        vec![spec("hits", &[self.thresholds.len()]), spec("count", &[])]
    }

    fn update(&self, y_true: &Tensor, y_pred: &Tensor, weight: Option<&Tensor>) -> Vec<Tensor> {
        let predicted = y_pred.mean(&[1]);
        let y_true = y_true.convert(DType::F32).reshape(&predicted.dims());
        let error = (y_true - predicted).abs();
        let count = |values: Tensor| weighted(&values, weight).sum_all();
        let hits = self.thresholds.iter().map(|&threshold| {
            let is_hit = error.less_equal(&error.like(threshold));
            count(is_hit.convert(DType::F32)).reshape(&[1])
        });
        let hits: Vec<Tensor> = hits.collect();
        let hits = Tensor::concat(&hits.iter().collect::<Vec<_>>(), 0);
        vec![hits, count(error.zeros_like() + 1.0)]
    }

    fn result(&self, state: &[Vec<f64>]) -> f64 {
        let (hits, count) = (&state[0], state[1][0]);
        if count == 0.0 {
            return 0.0;
        }
        hits.iter().sum::<f64>() / hits.len() as f64 / count
    }

    fn better(&self) -> Option<Better> {
        Some(Better::Higher)
    }
}

pub(crate) fn within() -> Metric {
    Within {
        thresholds: vec![0.1, 0.4, 1.0],
    }
    .into()
}

/// A rule, a schedule and a metric of the program, and what is around a rule.
pub(crate) fn compile() -> Compile {
    let optimizer = Optimizer::custom(SoftSign::new(InverseRoot {
        first: 0.05,
        steps: 3,
    }));
    Compile {
        optimizer: optimizer
            .global_clipnorm(0.5)
            .weight_decay(0.02)
            .ema(0.8)
            .gradient_accumulation(2),
        metrics: vec![within().into()],
        weighted_metrics: vec![within().named("weighted").into()],
        seed: 7,
        ..Compile::default()
    }
}
