//! Random settings of a training.

use phalanx::fit::callbacks::{SharedCallback, from_config};
use phalanx::losses::Loss;
use phalanx::metrics::Metric;
use phalanx::prelude::*;
use serde_json::{Value, json};

use crate::draw::Draw;
use crate::rows::Target;

/// What a model is compiled with.
pub(crate) fn compile(draw: &Draw, targets: &[Target]) -> phalanx::Result<Compile> {
    let mut losses = Losses::default();
    let mut metrics: Vec<OutputMetric> = Vec::new();
    let mut weighted: Vec<OutputMetric> = Vec::new();
    for (output, &target) in targets.iter().enumerate() {
        let weight = match draw.has("loss weights", 0.3) {
            true => [0.7, 2.0][output],
            false => 1.0,
        };
        let has_loss = output == 0 || !draw.has("output without a loss", 0.15);
        if has_loss {
            losses = losses.and(output, loss(draw, target)?, weight);
        }
        for kind in kinds_of_metrics(target) {
            let metric = Metric::from_config(kind, &json!({}))?;
            metrics.push(OutputMetric::of(output, metric.clone()));
            // Targets belong to what has a loss or a metric.
            if !has_loss || draw.has("weighted metrics", 0.5) {
                weighted.push(OutputMetric::of(output, metric));
            }
        }
    }
    if !draw.has("metrics", 0.6) {
        metrics.clear();
    }
    let precision = match draw.has("half precision", 0.12) {
        true => draw
            .random("policy")
            .of_list(&[Policy::MixedBfloat16, Policy::MixedFloat16]),
        false => Policy::Float32,
    };
    Ok(Compile {
        optimizer: optimizer(draw)?,
        loss: losses,
        metrics,
        weighted_metrics: weighted,
        seed: draw.random("seed").bits() % 1000,
        precision,
        loss_scale: loss_scale(draw, precision),
        steps_per_execution: 1 + usize::from(draw.has("two steps an execution", 0.15)),
    })
}

/// Where sums of 16-bit gradients come near the largest number, whether they overflow is a matter of rounding.
fn loss_scale(draw: &Draw, precision: Policy) -> LossScale {
    let dynamic = |initial| LossScale::Dynamic {
        initial,
        growth_steps: 3,
    };
    if draw.has("loss scale", 0.15) {
        let mut random = draw.random("scale");
        return random.of_list(&[
            LossScale::Fixed(64.0),
            LossScale::SkipNonFinite,
            dynamic(1024.0),
            // Overflows at first.
            dynamic(8e37),
        ]);
    }
    match precision {
        Policy::MixedFloat16 => dynamic(2f64.powi(8)),
        _ => LossScale::Auto,
    }
}

fn loss(draw: &Draw, target: Target) -> phalanx::Result<Loss> {
    let smoothing = match draw.has("label smoothing", 0.4) {
        true => 0.1,
        false => 0.0,
    };
    let other = draw.has("another loss", 0.5);
    let (kind, settings) = match (target, other) {
        (Target::Class(_), false) | (Target::Classes(..), _) => (
            "sparse_categorical_crossentropy",
            json!({"from_logits": true}),
        ),
        (Target::Class(_), true) => (
            "sparse_categorical_crossentropy",
            json!({"from_logits": true, "ignore_class": 1}),
        ),
        (Target::OneHot(_), false) => (
            "categorical_crossentropy",
            json!({"from_logits": true, "label_smoothing": smoothing}),
        ),
        (Target::OneHot(_), true) => (
            "categorical_focal_crossentropy",
            json!({"from_logits": true}),
        ),
        (Target::Binary, false) => (
            "binary_crossentropy",
            json!({"from_logits": false, "label_smoothing": smoothing}),
        ),
        (Target::Binary, true) => (
            "binary_focal_crossentropy",
            json!({"from_logits": false, "apply_class_balancing": true}),
        ),
        (Target::Numbers(_), false) => ("mean_squared_error", json!({})),
        (Target::Numbers(_), true) => {
            let kind = draw
                .random("loss of numbers")
                .of_list(&["huber", "log_cosh"]);
            (kind, json!({}))
        }
    };
    Loss::from_config(kind, &settings)
}

const fn kinds_of_metrics(target: Target) -> &'static [&'static str] {
    match target {
        Target::Class(_) | Target::OneHot(_) | Target::Classes(..) => &["accuracy"],
        Target::Binary => &["accuracy", "auc", "precision"],
        Target::Numbers(_) => &["root_mean_squared_error", "r2_score", "mean_absolute_error"],
    }
}

/// Rules with settings that make little of the rounding of small gradients.
fn rules() -> Vec<(&'static str, Value)> {
    vec![
        ("sgd", json!({})),
        ("sgd", json!({"momentum": 0.9})),
        ("sgd", json!({"momentum": 0.9, "nesterov": true})),
        ("rmsprop", json!({"epsilon": 0.01})),
        (
            "rmsprop",
            json!({"epsilon": 0.01, "centered": true, "momentum": 0.5}),
        ),
        ("adam", json!({"epsilon": 0.01})),
        ("adam", json!({"epsilon": 0.01, "amsgrad": true})),
        ("adamw", json!({"epsilon": 0.01})),
        ("adagrad", json!({"epsilon": 0.01})),
        ("adadelta", json!({"epsilon": 0.01})),
        ("adamax", json!({"epsilon": 0.01})),
        ("nadam", json!({"epsilon": 0.01})),
        (
            "ftrl",
            json!({"l1_regularization_strength": 0.001, "l2_regularization_strength": 0.01}),
        ),
        ("lion", json!({})),
        ("lamb", json!({"epsilon": 0.01})),
        ("adafactor", json!({"epsilon_1": 0.001})),
        ("muon", json!({"epsilon": 0.01})),
    ]
}

/// Whether the rate is a number that callbacks may set.
pub(crate) fn has_schedule(draw: &Draw) -> bool {
    draw.has("schedule", 0.35)
}

fn optimizer(draw: &Draw) -> phalanx::Result<Optimizer> {
    let rules = rules();
    let mut random = draw.random("rule");
    let (kind, mut settings) = rules[random.from(0, rules.len() - 1)].clone();
    let rate = match kind {
        "sgd" | "adagrad" | "ftrl" => 0.1,
        "adadelta" => 1.0,
        "lion" => 0.005,
        _ => 0.02,
    };
    settings["learning_rate"] = match has_schedule(draw) {
        true => schedule(draw, rate),
        false => json!(rate),
    };
    if draw.has("clipping", 0.35) {
        let (key, value) = draw.random("clip").of_list(&[
            ("clipnorm", 0.1),
            ("clipvalue", 0.02),
            ("global_clipnorm", 0.2),
        ]);
        settings[key] = json!(value);
    }
    if draw.has("weight decay", 0.3) {
        settings["weight_decay"] = json!(0.1);
        if draw.has("variables without decay", 0.5) {
            settings["exclude_from_weight_decay"] = json!(["bias", "gamma"]);
        }
    }
    if draw.has("accumulation", 0.25) {
        settings["gradient_accumulation_steps"] = json!(draw.random("window").from(2, 3));
    }
    if draw.has("averages", 0.25) {
        settings["use_ema"] = json!(true);
        settings["ema_momentum"] = json!(0.7);
        if draw.has("averages overwrite", 0.5) {
            settings["ema_overwrite_frequency"] = json!(3);
        }
    }
    let is_whole = ["use_ema", "gradient_accumulation_steps"];
    let is_lazy = !is_whole.iter().any(|of| settings.get(of).is_some());
    if is_lazy && !["adafactor", "lamb", "muon"].contains(&kind) && draw.has("lazy", 0.3) {
        settings["lazy"] = json!(true);
    }
    if draw.has("factor of a rate", 0.2) {
        settings["learning_rate_factors"] = json!({"bias": 2.0});
    }
    Optimizer::from_config(kind, &settings)
}

fn schedule(draw: &Draw, rate: f64) -> Value {
    match draw.random("kind of schedule").from(0, 6) {
        0 => json!({"kind": "cosine_decay", "initial_learning_rate": rate, "decay_steps": 9}),
        1 => {
            json!({"kind": "exponential_decay", "initial_learning_rate": rate, "decay_steps": 3, "decay_rate": 0.7})
        }
        2 => {
            json!({"kind": "piecewise_constant_decay", "boundaries": [2, 5], "values": [rate, rate / 2.0, rate / 5.0]})
        }
        3 => json!({"kind": "one_cycle", "max_learning_rate": rate, "total_steps": 40}),
        4 => {
            json!({"kind": "inverse_time_decay", "initial_learning_rate": rate, "decay_steps": 2, "decay_rate": 0.5})
        }
        5 => {
            json!({"kind": "polynomial_decay", "initial_learning_rate": rate, "decay_steps": 4, "power": 2.0, "cycle": true})
        }
        _ => {
            json!({"kind": "cosine_decay_restarts", "initial_learning_rate": rate, "first_decay_steps": 4})
        }
    }
}

/// Callbacks, made anew for each training.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callbacks(Vec<(&'static str, Value)>);

impl Callbacks {
    pub(crate) fn drawn(draw: &Draw) -> Self {
        let mut drawn = Vec::new();
        let monitor = match draw.has("validation", 0.6) {
            true => "val_loss",
            false => "loss",
        };
        if !has_schedule(draw) {
            if draw.has("falling rate", 0.3) {
                let settings = json!({"monitor": monitor, "patience": 1, "factor": 0.5, "min_delta": 0.02, "cooldown": 1});
                drawn.push(("reduce_lr_on_plateau", settings));
            } else if draw.has("scheduler", 0.3) {
                let per = draw.random("per").of_list(&["epoch", "step"]);
                let schedule = json!({"kind": "exponential_decay", "initial_learning_rate": 0.05, "decay_steps": 2, "decay_rate": 0.6});
                let settings = json!({"schedule": schedule, "per": per});
                drawn.push(("learning_rate_scheduler", settings));
            }
        }
        if draw.has("early stopping", 0.35) {
            let restores = draw.has("best epoch is restored", 0.6);
            let settings = json!({"monitor": monitor, "patience": 1, "min_delta": 0.01, "restore_best_weights": restores});
            drawn.push(("early_stopping", settings));
        }
        if draw.has("averages", 0.25) && draw.has("averages are validated", 0.4) {
            drawn.push(("swap_ema_weights", json!({})));
        }
        Self(drawn)
    }

    /// What a `fit` calls.
    pub(crate) fn made(&self) -> phalanx::Result<Vec<SharedCallback>> {
        let made = self
            .0
            .iter()
            .map(|(kind, settings)| from_config(kind, settings));
        made.collect()
    }
}
