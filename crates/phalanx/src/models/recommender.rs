//! Models that score a user's interest in an item.

use phalanx_graph::DType;
use serde::{Deserialize, Serialize};

use crate::nn::{
    Add, Concatenate, Dense, Dot, Embedding, Input, Interaction, Layer, Model, Network, Node, relu,
};
use crate::{Error, Result};

/// How a [`Recommender`] turns features into a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecommenderKind {
    /// Two towers: the first category (the user) and the second (the item) each through separate layers to a
    /// vector; the product of the two vectors is the score (Covington et al. 2016). Numbers go into the user's tower.
    TwoTower,
    /// DLRM: numbers through layers to a vector, the products of every two vectors of categories and numbers, these
    /// and the numbers' vector through the last layers (Naumov et al. 2019).
    Dlrm,
    /// Wide and deep: a weight for each category and number, plus the vectors of categories with the numbers through
    /// layers (Cheng et al. 2016).
    WideAndDeep,
}

/// A model of categories and numbers that ends in one logit `[batch, 1]`.
///
/// Inputs: `category_0`, `category_1`, .., an index for each example, `i32[batch]`; then, when there are any,
/// `numbers` `[batch, numbers]`. [`Vocabulary`](crate::data::Vocabulary) and
/// [`hash_bucket`](crate::data::hash_bucket) make indices of ids and words.
///
/// ```
/// use phalanx::models::{RecommenderKind, Recommender};
///
/// let model = Recommender::new(RecommenderKind::TwoTower, [1000, 200]).build()?;
/// assert_eq!(model.outputs()[0].dims, [1]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recommender {
    interest: RecommenderKind,
    categories: Vec<usize>,
    numbers: usize,
    width: usize,
    hidden: Vec<usize>,
    bottom: Vec<usize>,
    normalize: bool,
}

impl Recommender {
    /// A model of categories with these numbers of values, without numbers, vectors of 32, hidden layers of 64 and 32.
    #[must_use]
    pub fn new(interest: RecommenderKind, categories: impl Into<Vec<usize>>) -> Self {
        Self {
            interest,
            categories: categories.into(),
            numbers: 0,
            width: 32,
            hidden: vec![64, 32],
            bottom: vec![64],
            normalize: false,
        }
    }

    /// Sets how many numbers each example has.
    #[must_use]
    pub const fn numbers(mut self, numbers: usize) -> Self {
        self.numbers = numbers;
        self
    }

    /// Sets the size of the vectors of categories.
    #[must_use]
    pub const fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Sets the units of the hidden layers: of each tower, of DLRM's last layers, of the deep part.
    #[must_use]
    pub fn hidden(mut self, units: impl Into<Vec<usize>>) -> Self {
        self.hidden = units.into();
        self
    }

    /// Sets the units of DLRM's hidden layers from the numbers to their vector.
    #[must_use]
    pub fn bottom(mut self, units: impl Into<Vec<usize>>) -> Self {
        self.bottom = units.into();
        self
    }

    /// Sets whether the score of two towers is the cosine of their vectors; not by default.
    #[must_use]
    pub const fn normalize(mut self, normalize: bool) -> Self {
        self.normalize = normalize;
        self
    }

    /// The model.
    ///
    /// # Errors
    /// When there are too few categories, or a size is 0.
    pub fn build(&self) -> Result<Model> {
        self.check()?;
        let mut net = Network::new().named("recommender");
        let category = |number: usize| {
            let input = Input::new([]).dtype(DType::I32);
            input.named(format!("category_{number}"))
        };
        let count = self.categories.len();
        let mut inputs: Vec<Node> = (0..count).map(|i| net.input(category(i))).collect();
        let given = Input::new([self.numbers]).named("numbers");
        let numbers = (self.numbers > 0).then(|| net.input(given));
        let vectors = self.embedded(&mut net, "embedding", &inputs, self.width);
        let score = match self.interest {
            RecommenderKind::TwoTower => self.two_towers(&mut net, &vectors, numbers),
            RecommenderKind::Dlrm => self.dlrm(&mut net, &vectors, numbers),
            RecommenderKind::WideAndDeep => {
                self.wide_and_deep(&mut net, &inputs, &vectors, numbers)
            }
        };
        inputs.extend(numbers);
        net.build(&inputs, &[score])
    }

    fn check(&self) -> Result<()> {
        let (needed, got) = match self.interest {
            RecommenderKind::TwoTower => (2..=2, self.categories.len()),
            RecommenderKind::Dlrm | RecommenderKind::WideAndDeep => {
                (1..=10_000, self.categories.len())
            }
        };
        if needed.contains(&got) {
            return Ok(());
        }
        let expected = match (needed.start(), needed.end()) {
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        };
        let interest = self.interest;
        Err(Error::user(format!(
            "recommender: expected {expected} categories for {interest:?}, got {got}; give the number of values of each"
        )))
    }

    fn embedded(&self, net: &mut Network, name: &str, inputs: &[Node], width: usize) -> Vec<Node> {
        let sizes = inputs.iter().zip(&self.categories).enumerate();
        let table = |(number, (&input, &size)): (usize, (&Node, &usize))| {
            let table = Embedding::new(size, width).named(format!("{name}_{number}"));
            net.add(table, &[input])
        };
        sizes.map(table).collect()
    }

    fn two_towers(&self, net: &mut Network, vectors: &[Node], numbers: Option<Node>) -> Node {
        let user = joined(net, "user_features", &[vectors[0]], numbers);
        let mut tower = |name: &str, x: Node| {
            let hidden = stack(net, name, &self.hidden, x);
            net.add(
                Dense::new(self.width).named(format!("{name}_vector")),
                &[hidden],
            )
        };
        let (user, item) = (tower("user", user), tower("item", vectors[1]));
        net.add(
            Dot::new().normalize(self.normalize).named("score"),
            &[user, item],
        )
    }

    fn dlrm(&self, net: &mut Network, vectors: &[Node], numbers: Option<Node>) -> Node {
        let mut all = vectors.to_vec();
        let numbers = numbers.map(|numbers| {
            let hidden = stack(net, "bottom", &self.bottom, numbers);
            let vector = Dense::new(self.width).activation(relu);
            net.add(vector.named("bottom_vector"), &[hidden])
        });
        all.extend(numbers);
        let features = match all.as_slice() {
            [single] => *single,
            several => {
                let products = net.add(Interaction.named("interaction"), several);
                joined(net, "features", &[products], numbers)
            }
        };
        let hidden = stack(net, "top", &self.hidden, features);
        net.add(Dense::new(1).named("logit"), &[hidden])
    }

    fn wide_and_deep(
        &self,
        net: &mut Network,
        inputs: &[Node],
        vectors: &[Node],
        numbers: Option<Node>,
    ) -> Node {
        let mut terms = self.embedded(net, "wide", inputs, 1);
        terms.extend(numbers.map(|numbers| {
            let weights = Dense::new(1).use_bias(false).named("wide_numbers");
            net.add(weights, &[numbers])
        }));
        let features = joined(net, "features", vectors, numbers);
        let hidden = stack(net, "deep", &self.hidden, features);
        terms.push(net.add(Dense::new(1).named("deep_logit"), &[hidden]));
        net.add(Add.named("logit"), &terms)
    }
}

/// Hidden layers with a relu each.
fn stack(net: &mut Network, name: &str, hidden: &[usize], x: Node) -> Node {
    hidden.iter().enumerate().fold(x, |x, (number, &units)| {
        let layer = Dense::new(units).activation(relu);
        net.add(layer.named(format!("{name}_{number}")), &[x])
    })
}

fn joined(net: &mut Network, name: &str, parts: &[Node], last: Option<Node>) -> Node {
    let all: Vec<Node> = parts.iter().copied().chain(last).collect();
    match all.as_slice() {
        [single] => *single,
        several => net.add(Concatenate::new().named(name), several),
    }
}
