use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::options::{LEARNING_RATE, OR_NONE};
use super::rule::{Begun, Step, UpdateRule, Updated, described, moved, named, setters};
use super::{AdamW, ParamSpec};
use crate::config::{Component, Described, Field, Kind, above_zero, at_least_zero, fraction};
use crate::schedules::Schedule;

/// The mean of squared gradients, of variables that Adam updates; of others nothing, in a slot that stays as it is.
const VELOCITY: &str = "velocity";
/// What keeps the division by the norm of a gradient of zeros from being by zero.
const LEAST_NORM: f64 = 1e-7;

/// Muon: steps of momentum whose matrix is made nearly orthogonal, so that small directions of a gradient count as much as large ones
/// (Jordan et al. 2024; scaled after Liu et al. 2025).
///
/// For a variable of two dims, `m = momentum m + g` and `v -= rate 0.2 sqrt(max(rows, columns)) o(g + momentum m)`; `o(x)` is `ns_steps`
/// times `x = a x + (b x x' + c (x x')^2) x` (Newton and Schulz) from `x / |x|`. Tables of embeddings, variables of other dims, and those
/// whose path contains a text of `exclude_layers` (the last layer, by its name) are updated by Adam at `adam_lr_ratio` of the rate.
/// As AdamW it decays weights by default. In Keras the texts are regular expressions, and a table is known by any name on its path.
///
/// ```
/// use phalanx::optim::{Muon, Optimizer};
/// let optimizer = Optimizer::from(Muon::new(0.001).exclude_layers(["logits"]));
/// assert_eq!(optimizer.options().weight_decay, Some(0.004));
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Muon {
    learning_rate: Schedule,
    adam_beta_1: f64,
    adam_beta_2: f64,
    adam_weight_decay: Option<f64>,
    epsilon: f64,
    exclude_layers: Vec<String>,
    exclude_embeddings: bool,
    muon_a: f64,
    muon_b: f64,
    muon_c: f64,
    adam_lr_ratio: f64,
    momentum: f64,
    ns_steps: u64,
    nesterov: bool,
    rms_rate: Option<f64>,
}

impl Described for Muon {
    const COMPONENT: Component = Component {
        name: "muon",
        doc: "momentum whose matrices are made orthogonal, with Adam for what is no matrix",
        fields: &[
            LEARNING_RATE,
            Field::optional(
                "momentum",
                Kind::DECAY,
                "share of the momentum that each step keeps",
            ),
            Field::optional(
                "nesterov",
                Kind::Bool,
                "whether a step looks ahead by the momentum",
            ),
            Field::optional(
                "ns_steps",
                Kind::Whole(1, 100),
                "how often a matrix is brought nearer to an orthogonal one",
            ),
            Field::optional(
                "rms_rate",
                OR_NONE,
                "size of a step beside Adam's, times the root of the longer side; none for steps as they are",
            ),
            Field::optional(
                "exclude_layers",
                Kind::List(&Kind::Text, 0, usize::MAX),
                "texts in the paths of variables that Adam updates: the name of the last layer",
            ),
            Field::optional(
                "exclude_embeddings",
                Kind::Bool,
                "whether Adam updates tables of embeddings",
            ),
            Field::optional("adam_beta_1", Kind::DECAY, "Adam's `beta_1`"),
            Field::optional("adam_beta_2", Kind::DECAY, "Adam's `beta_2`"),
            Field::optional("epsilon", Kind::ABOVE_ZERO, "Adam's `epsilon`"),
            Field::optional(
                "adam_weight_decay",
                OR_NONE,
                "weight decay of the variables that Adam updates",
            ),
            Field::optional(
                "adam_lr_ratio",
                Kind::ABOVE_ZERO,
                "Adam's rate, as a multiple of the rate",
            ),
            Field::optional("muon_a", Kind::REAL, "factor of the matrix"),
            Field::optional("muon_b", Kind::REAL, "factor of its third power"),
            Field::optional("muon_c", Kind::REAL, "factor of its fifth power"),
        ],
    };
}

impl Muon {
    /// Muon with Keras' defaults.
    #[must_use]
    pub fn new(learning_rate: impl Into<Schedule>) -> Self {
        Self {
            learning_rate: learning_rate.into(),
            adam_beta_1: 0.9,
            adam_beta_2: 0.999,
            adam_weight_decay: Some(AdamW::WEIGHT_DECAY),
            epsilon: 1e-7,
            exclude_layers: Vec::new(),
            exclude_embeddings: true,
            muon_a: 3.4445,
            muon_b: -4.7750,
            muon_c: 2.0315,
            adam_lr_ratio: 1.0,
            momentum: 0.95,
            ns_steps: 5,
            nesterov: true,
            rms_rate: Some(0.2),
        }
    }

    /// Has Adam update variables whose path contains one of these texts: the last layer's, by its name.
    #[must_use]
    pub fn exclude_layers<T: Into<String>>(mut self, texts: impl IntoIterator<Item = T>) -> Self {
        self.exclude_layers = texts.into_iter().map(Into::into).collect();
        self
    }

    /// Tables are known by their own name or their layer's, not by the name of a model around it.
    fn is_by_adam(&self, spec: &ParamSpec) -> bool {
        let mut names = spec.name.rsplit('/').take(2);
        let is_table =
            self.exclude_embeddings && names.any(|name| name.to_lowercase().contains("embedding"));
        let mut texts = self.exclude_layers.iter();
        spec.shape.rank() != 2 || is_table || texts.any(|text| spec.name.contains(text))
    }

    /// The orthogonal matrix that is near a matrix, nearly.
    fn orthogonal(&self, matrix: &Tensor) -> Tensor {
        let is_tall = matrix.dim(0) > matrix.dim(1);
        let turned = |x: &Tensor| match is_tall {
            true => x.transpose(&[1, 0]),
            false => x.clone(),
        };
        let x = turned(matrix);
        let norm = x.square().sum_all().sqrt();
        let mut x = x / (norm + LEAST_NORM);
        for _ in 0..self.ns_steps {
            let square = x.matmul(&x.transpose(&[1, 0]));
            let fourth = square.matmul(&square);
            let factor = square * self.muon_b + fourth * self.muon_c;
            x = &x * self.muon_a + factor.matmul(&x);
        }
        turned(&x)
    }
}

impl Default for Muon {
    /// Keras' defaults: a rate of 0.001.
    fn default() -> Self {
        Self::new(0.001)
    }
}

setters!(Muon {
    /// The share of Adam's mean of gradients that each step keeps, from 0 to below 1.
    adam_beta_1: f64,
    /// The share of Adam's mean of their squares that each step keeps, from 0 to below 1.
    adam_beta_2: f64,
    /// The weight decay of variables that Adam updates, in place of the one of the others; `None` for none.
    adam_weight_decay: Option<f64>,
    /// What keeps Adam's division from being by zero, above 0.
    epsilon: f64,
    /// Whether Adam updates tables of embeddings, as it does by default.
    exclude_embeddings: bool,
    /// The factor of a matrix in each step of Newton and Schulz.
    muon_a: f64,
    /// The factor of its third power.
    muon_b: f64,
    /// The factor of its fifth power.
    muon_c: f64,
    /// Adam's rate as a multiple of the rate, above 0.
    adam_lr_ratio: f64,
    /// The share of the momentum that each step keeps, from 0 to below 1.
    momentum: f64,
    /// How often a matrix is brought nearer to an orthogonal one, 1 or more.
    ns_steps: u64,
    /// Whether a step looks ahead by the momentum, as it does by default.
    nesterov: bool,
    /// The size of a step, times the root of the longer side of the matrix; `None` leaves steps as they are.
    rms_rate: Option<f64>,
});

impl UpdateRule for Muon {
    described!();

    fn learning_rate(&self) -> &Schedule {
        &self.learning_rate
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("momentum", 0.0), (VELOCITY, 0.0)]
    }

    fn slot_dims(&self, slot: &str, spec: &ParamSpec) -> Vec<usize> {
        match slot == VELOCITY && !self.is_by_adam(spec) {
            true => Vec::new(),
            false => spec.shape.dims.clone(),
        }
    }

    fn weight_decay(&self) -> Option<f64> {
        Some(AdamW::WEIGHT_DECAY)
    }

    fn own_decay(&self, spec: &ParamSpec) -> Option<Option<f64>> {
        self.is_by_adam(spec).then_some(self.adam_weight_decay)
    }

    fn begin(&self, step: &Step) -> Begun {
        let corrected =
            step.correction(self.adam_beta_2).sqrt() / step.correction(self.adam_beta_1);
        let of_adam = &step.rate * self.adam_lr_ratio * corrected;
        Begun::with([step.rate.clone(), of_adam])
    }

    fn update(
        &self,
        _spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        let [rate, of_adam] = named(scalars);
        let [momentum, velocity] = named(slots);
        // Its slots say which update a variable has.
        if param.rank() != 2 || velocity.rank() == 2 {
            let momentum = moved(momentum, gradient, self.adam_beta_1);
            let velocity = moved(velocity, &gradient.square(), self.adam_beta_2);
            let step = &momentum * of_adam / (velocity.sqrt() + self.epsilon);
            return Updated::new(param - step, [momentum, velocity]);
        }
        let momentum = momentum * self.momentum + gradient;
        let ahead = match self.nesterov {
            true => gradient + &momentum * self.momentum,
            false => momentum.clone(),
        };
        let longer = param.dim(0).max(param.dim(1)) as f64;
        let size = self.rms_rate.map_or(1.0, |rate| longer.sqrt() * rate);
        let step = self.orthogonal(&ahead) * (rate * size);
        Updated::new(param - step, [momentum, velocity.clone()])
    }

    fn check(&self) -> Result<(), String> {
        fraction("adam_beta_1", self.adam_beta_1)?;
        fraction("adam_beta_2", self.adam_beta_2)?;
        fraction("momentum", self.momentum)?;
        above_zero("epsilon", self.epsilon)?;
        above_zero("adam_lr_ratio", self.adam_lr_ratio)?;
        if let Some(decay) = self.adam_weight_decay {
            at_least_zero("adam_weight_decay", decay)?;
        }
        if let Some(rate) = self.rms_rate {
            at_least_zero("rms_rate", rate)?;
        }
        if !(1..=100).contains(&self.ns_steps) {
            let got = self.ns_steps;
            return Err(format!("`ns_steps` must be from 1 to 100, got {got}"));
        }
        let factors = [self.muon_a, self.muon_b, self.muon_c];
        match factors.iter().all(|factor| factor.is_finite()) {
            true => Ok(()),
            false => Err(format!(
                "`muon_a`, `muon_b` and `muon_c` must be numbers, got {factors:?}"
            )),
        }
    }
}
