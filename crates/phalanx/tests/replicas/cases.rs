//! What is trained: models, data and settings, a case for each family and for each optimizer.

#[path = "noise_case.rs"]
mod noise_case;
#[path = "own_case.rs"]
pub(crate) mod own_case;

use phalanx::models::{
    EncoderHead, MobileNetV2, PositionEncoding, Recommender, RecommenderKind, TransformerEncoder,
};
use phalanx::nn::{Cx, Layer, Model};
use phalanx::optim::{Adadelta, Adagrad, Adamax, Ftrl, Lamb, Lion, Nadam};
use phalanx::prelude::*;
use phalanx_graph::Tensor;
use serde_json::{Value, json};

/// A training that every number of replicas must do alike.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) model: Model,
    pub(crate) data: Dataset,
    /// Rows of a batch: the last one has fewer.
    pub(crate) batch: usize,
    pub(crate) compile: Compile,
    pub(crate) epochs: usize,
    /// Whether it is neither tested nor used to predict.
    pub(crate) only_trains: bool,
    /// Parts of a batch in a pipeline.
    pub(crate) micro_batches: usize,
    /// Whether its gradients, and their sums in whatever order, are numbers that every wire format has.
    pub(crate) is_exact: bool,
    /// What replicas exchange at once: little, so that there are several packs.
    pub(crate) bytes_per_pack: usize,
    /// Whether its programs are compiled without the compiler's last care: there are many, or large ones.
    pub(crate) is_quick: bool,
    /// Whether they compile for so long nevertheless that nothing is done twice with it.
    pub(crate) is_slow: bool,
    /// How much further it goes than others from what it is at full precision when gradients travel at less.
    pub(crate) narrow: f64,
}

/// Numbers between -1 and 1 that look like none in particular.
pub(crate) fn wave(count: usize, step: f32) -> Vec<f32> {
    (0..count)
        .map(|i| ((i as f32 + 1.0) * step).sin())
        .collect()
}

fn classes(rows: usize, classes: usize) -> HostTensor {
    let labels: Vec<i32> = (0..rows).map(|i| (i * i % classes) as i32).collect();
    HostTensor::new([rows], &labels)
}

fn tokens(rows: usize, steps: usize, vocabulary: usize) -> Vec<i32> {
    let word = |i: usize| {
        let (row, step) = (i / steps, i % steps);
        // Rows have from 1 to `steps` words, then padding.
        let used = step <= row % steps;
        if used {
            1 + (i * 7 % (vocabulary - 1)) as i32
        } else {
            0
        }
    };
    (0..rows * steps).map(word).collect()
}

fn classify(optimizer: impl Into<Optimizer>) -> Compile {
    Compile {
        optimizer: optimizer.into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        seed: 7,
        ..Compile::default()
    }
}

pub(crate) fn rows(count: usize) -> Dataset {
    let x = HostTensor::new([count, 6], &wave(count * 6, 0.37));
    Dataset::from_arrays(x, classes(count, 3)).unwrap()
}

fn weights(count: usize) -> HostTensor {
    let weights: Vec<f32> = (0..count).map(|i| (i % 4) as f32 * 0.5).collect();
    HostTensor::new([count], &weights)
}

fn weighted(data: &Dataset, out: Part) -> Dataset {
    let count = data.len().unwrap();
    let weights = out.or(
        Part::Weights,
        weights(count),
        HostTensor::new([count], &vec![1.0f32; count]),
    );
    data.with_weights(&weights).unwrap()
}

/// What a case is unless it says otherwise.
fn plain(name: &'static str, model: Model, data: Dataset, compile: Compile) -> Case {
    Case {
        name,
        model,
        data,
        batch: 6,
        compile,
        epochs: 3,
        only_trains: false,
        micro_batches: 2,
        is_exact: false,
        bytes_per_pack: 64,
        is_quick: false,
        is_slow: false,
        narrow: 1.0,
    }
}

/// Columns over the axis `model` of a mesh, and the rows of the layer behind; elsewhere they are whole.
const COLUMNS: [Option<&str>; 2] = [None, Some("model")];
const ROWS: [Option<&str>; 2] = [Some("model"), None];

fn mlp() -> Model {
    let model = Sequential::new([6])
        .add(Dense::new(8).activation(tanh).sharded("kernel", COLUMNS))
        .add(Dense::new(3).use_bias(false).sharded("kernel", ROWS));
    model.build().unwrap()
}

/// Weights of examples, some of them 0, penalties of weights and of outputs, a constraint, clipping, accumulation over steps, averages.
pub(crate) fn everything() -> Case {
    everything_but(Part::None)
}

/// What a case may be made without, to see that it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    None,
    Weights,
    Penalties,
    Clipping,
    Decay,
    Accumulation,
    Masks,
    Constraints,
}

impl Part {
    /// A number, or one that does nothing, or something else, where this is what is left out.
    fn or<T>(self, part: Self, number: T, none: T) -> T {
        if self == part { none } else { number }
    }
}

pub(crate) fn everything_but(out: Part) -> Case {
    let l2 = Regularizer::L2 {
        l2: out.or(Part::Penalties, 0.01, 0.0),
    };
    let wide = Dense::new(8)
        .activation(tanh)
        .kernel_regularizer(l2)
        .activity_regularizer(l2);
    let longest = Constraint::max_norm(out.or(Part::Constraints, 0.6, 1e3));
    let last = (Dense::new(3).kernel_regularizer(l2)).kernel_constraint(longest);
    let model = Sequential::new([6])
        .add(wide.sharded("kernel", COLUMNS))
        .add(Dropout::new(0.25))
        .add(last.sharded("kernel", ROWS));
    let optimizer = Optimizer::from(Sgd::new(0.1).momentum(0.9))
        .global_clipnorm(out.or(Part::Clipping, 0.3, 1e6))
        .weight_decay(out.or(Part::Decay, 0.01, 1e-9))
        .gradient_accumulation(out.or(Part::Accumulation, 2, 3))
        .ema(0.9);
    let compile = Compile {
        loss: SparseCategoricalCrossentropy::from_logits()
            .ignore_class(1)
            .into(),
        weighted_metrics: vec![Accuracy.into(), MeanIou::default().into()],
        ..classify(optimizer)
    };
    let data = weighted(&rows(24), out);
    Case {
        batch: 7,
        ..plain("everything", model.build().unwrap(), data, compile)
    }
}

/// Adds to the loss what a variational autoencoder does: a number for each example, and once more a mean of its own.
#[derive(Debug)]
struct AddsSquares;

impl Layer for AddsSquares {
    fn kind(&self) -> &'static str {
        "adds_squares"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let each = inputs[0].square().sum(&[1]);
        cx.add_loss(&(&each * 0.5));
        let mean = match cx.example_mask() {
            Some(mask) => {
                let count = mask.sum_all();
                (&each * mask).sum_all() / count.maximum(&count.like(1.0))
            }
            None => each.mean_all(),
        };
        cx.add_loss(&(mean * 0.25));
        inputs[0].clone()
    }
}

/// Losses that layers add, of weights, outputs and examples: parts of a batch have unlike numbers of examples, and some none.
pub(crate) fn added_losses() -> Case {
    let l2 = Regularizer::L2 { l2: 0.01 };
    let dense = Dense::new(8).activation(tanh).kernel_regularizer(l2);
    let model = Sequential::new([6])
        .add(dense.activity_regularizer(l2))
        .add(AddsSquares)
        .add(Dense::new(3));
    let compile = classify(Sgd::new(0.1).momentum(0.9));
    Case {
        batch: 7,
        micro_batches: 4,
        ..plain("added losses", model.build().unwrap(), rows(23), compile)
    }
}

/// Whole numbers, of which the gradients are sums, divided by powers of two: a few bits, which every wire format has.
fn exact() -> Case {
    let x: Vec<f32> = (0..20 * 6).map(|i| (i * i % 9) as f32 - 4.0).collect();
    let y: Vec<f32> = (0..20).map(|i| (i * 3 % 7) as f32 - 2.5).collect();
    // The weights of any batch of 8 or 4 are together as many.
    let weights: Vec<f32> = (0..20).map(|i| [1.0, 0.5, 2.0, 0.5][i % 4]).collect();
    let data = Dataset::from_arrays(HostTensor::new([20, 6], &x), HostTensor::new([20, 1], &y));
    let data = data.unwrap().with_weights(&HostTensor::new([20], &weights));
    let first = Dense::new(1).kernel_initializer(Initializer::Zeros);
    // Two layers are enough for a pipeline.
    let model = Sequential::new([6]).add(Flatten).add(first);
    let compile = Compile {
        optimizer: Sgd::new(0.125).into(),
        loss: MeanAbsoluteError.into(),
        weighted_metrics: vec![RootMeanSquaredError.into(), R2Score::default().into()],
        ..Compile::default()
    };
    Case {
        batch: 8,
        epochs: 4,
        only_trains: true,
        is_exact: true,
        ..plain("exact", model.build().unwrap(), data.unwrap(), compile)
    }
}

fn of_optimizer((name, optimizer): (&'static str, Optimizer)) -> Case {
    let compile = Compile {
        metrics: Vec::new(),
        ..classify(optimizer)
    };
    Case {
        batch: 7,
        only_trains: true,
        is_quick: true,
        ..plain(name, mlp(), rows(22), compile)
    }
}

pub(crate) fn optimizers() -> Vec<(&'static str, Optimizer)> {
    vec![
        (
            "sgd, nesterov",
            Sgd::new(0.1).momentum(0.9).nesterov(true).into(),
        ),
        (
            "rmsprop, centered",
            RmsProp::new(0.01).centered(true).into(),
        ),
        ("adam, amsgrad", Adam::new(0.01).amsgrad(true).into()),
        ("adamw", AdamW::new(0.01).into()),
        ("adagrad", Adagrad::new(0.1).into()),
        ("adadelta", Adadelta::new(1.0).into()),
        ("adamax", Adamax::new(0.01).into()),
        ("nadam", Nadam::new(0.01).into()),
        ("ftrl", Ftrl::new(0.1).into()),
        ("lion", Lion::new(0.01).into()),
        ("lamb", Lamb::new(0.01).into()),
    ]
}

/// Weighted rows, penalties, clipping of each gradient, accumulation.
pub(crate) fn cnn_but(out: Part) -> Case {
    let l2 = Regularizer::L2 {
        l2: out.or(Part::Penalties, 0.01, 0.0),
    };
    let convolution = Conv2d::new(4, 3).padding(Padding::Same).use_bias(false);
    let filters = [None, None, None, Some("model")];
    let model = Sequential::new([8, 8, 2])
        .add(
            convolution
                .kernel_regularizer(l2)
                .sharded("kernel", filters),
        )
        .add(BatchNorm::new().synchronized(true))
        .add(ActivationLayer::new(tanh))
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dense::new(3).sharded("kernel", ROWS));
    let x = HostTensor::new([24, 8, 8, 2], &wave(24 * 128, 0.31));
    let data = weighted(&Dataset::from_arrays(x, classes(24, 3)).unwrap(), out);
    let optimizer = Optimizer::from(Sgd::new(0.05).momentum(0.9))
        .clipnorm(out.or(Part::Clipping, 0.5, 1e6))
        .gradient_accumulation(out.or(Part::Accumulation, 2, 3));
    Case {
        batch: 7,
        // Statistics are those of a part.
        micro_batches: 1,
        ..plain(
            "cnn with batch normalization",
            model.build().unwrap(),
            data,
            classify(optimizer),
        )
    }
}

/// Weighted rows, clipping by the norm of all gradients, decay, accumulation.
///
/// With a large epsilon, and images that were chosen: a single device that gets the rows of each batch in another order must not
/// go another way either. With Keras' epsilon rounding grows tenfold in a step, from layer to layer of statistics of so few
/// numbers; with any, where the input of a `relu6` is 0 but for rounding, one order passes its gradient and another does
/// not, and whole percents of a weight are gone at once. These images have no such place: weights that differ by 1e-6
/// in the beginning differ by 1e-6 in the end.
///
/// Batches of seven divide by nothing, so that all of them are filled up and there are few programs: it compiles long.
pub(crate) fn mobilenet_but(out: Part) -> Case {
    let model = MobileNetV2::new()
        .input([16, 16, 3])
        .alpha(0.1)
        .epsilon(0.3)
        .classes(4)
        .activation(Activation::Linear)
        .synchronized(true);
    let x = HostTensor::new([12, 16, 16, 3], &wave(12 * 768, 2.3));
    let data = weighted(&Dataset::from_arrays(x, classes(12, 4)).unwrap(), out);
    let optimizer = Optimizer::from(Sgd::new(0.05).momentum(0.9))
        .global_clipnorm(out.or(Part::Clipping, 0.3, 1e6))
        .weight_decay(out.or(Part::Decay, 0.01, 1e-9))
        .gradient_accumulation(out.or(Part::Accumulation, 2, 3));
    Case {
        batch: 7,
        epochs: 5,
        only_trains: true,
        is_quick: true,
        is_slow: true,
        // Statistics are those of a part.
        micro_batches: 1,
        bytes_per_pack: 1 << 16,
        narrow: 4.0,
        ..plain(
            "MobileNetV2",
            model.build().unwrap(),
            data,
            classify(optimizer),
        )
    }
}

/// Padding masks make the weight of each replica's words another.
pub(crate) fn transformer_but(out: Part) -> Case {
    let model = TransformerEncoder {
        vocabulary: 11,
        length: 5,
        layers: 1,
        width: 8,
        heads: 2,
        feed_forward: 16,
        // Its random numbers compile long, and "everything" has some.
        dropout: 0.0,
        epsilon: 1e-3,
        causal: false,
        mask_zero: out.or(Part::Masks, true, false),
        positions: PositionEncoding::Learned,
        head: EncoderHead::Tokens,
    };
    let x = tokens(24, 5, 11);
    let y: Vec<i32> = x.iter().map(|&word| (word * 3 + 1) % 11).collect();
    let (x, y) = (HostTensor::new([24, 5], &x), HostTensor::new([24, 5], &y));
    let data = weighted(&Dataset::from_arrays(x, y).unwrap(), out);
    let optimizer = Optimizer::from(Sgd::new(0.02))
        .global_clipnorm(out.or(Part::Clipping, 1.0, 1e6))
        .weight_decay(out.or(Part::Decay, 0.01, 1e-9))
        .gradient_accumulation(out.or(Part::Accumulation, 2, 3));
    Case {
        batch: 7,
        ..plain(
            "transformer",
            model.build().unwrap(),
            data,
            classify(optimizer),
        )
    }
}

/// An output for each step, of which padding weighs nothing, and one for the whole sequence, with penalties: some rows are padding alone.
fn two_outputs() -> Case {
    let mut network = Network::new();
    let x = network.input([4, 3]);
    let kept = network.add(Masking::new(0.0), &[x]);
    let penalty = Regularizer::L2 { l2: 0.01 };
    let wide = Dense::new(8).activation(tanh).activity_regularizer(penalty);
    let wide = network.add(wide, &[kept]);
    let tags = network.add(Dense::new(3).named("tags"), &[wide]);
    let pooled = network.add(GlobalAveragePool1d::new(), &[wide]);
    let score = network.add(Dense::new(1).named("score"), &[pooled]);
    let model = network.build(&[x], &[tags, score]).unwrap();
    let mut x = wave(24 * 12, 0.37);
    for (row, steps) in x.chunks_mut(12).enumerate() {
        steps[row % 5 * 3..].fill(0.0);
    }
    let classes: Vec<i32> = (0..24 * 4).map(|i| i * i % 3).collect();
    let targets = vec![
        HostTensor::new([24, 4], &classes),
        HostTensor::new([24, 1], &wave(24, 0.7)),
    ];
    let data = Dataset::from_arrays(vec![HostTensor::new([24, 4, 3], &x)], targets).unwrap();
    let compile = Compile {
        optimizer: Sgd::new(0.1).momentum(0.9).into(),
        loss: Losses::default()
            .and(0, SparseCategoricalCrossentropy::from_logits(), 1.0)
            .and(1, MeanSquaredError, 0.5),
        weighted_metrics: vec![Accuracy.into()],
        ..Compile::default()
    };
    let data = weighted(&data, Part::None);
    Case {
        batch: 7,
        ..plain("two outputs", model, data, compile)
    }
}

/// Tables large enough that their gradients travel as rows, with indices that come again within and across replicas.
pub(crate) fn recommender_but(out: Part) -> Case {
    let model = Recommender::new(RecommenderKind::Dlrm, [500, 300])
        .numbers(3)
        .width(8)
        .hidden([8])
        .bottom([8]);
    let ids = |count: usize, factor: usize| {
        let ids: Vec<i32> = (0..22)
            .map(|i| (i * factor % 9 * (count / 9)) as i32)
            .collect();
        HostTensor::new([22], &ids)
    };
    let numbers = HostTensor::new([22, 3], &wave(66, 0.7));
    let clicked: Vec<f32> = (0..22).map(|i| (i % 3 % 2) as f32).collect();
    let y = HostTensor::new([22, 1], &clicked);
    let data = Dataset::from_arrays(vec![ids(500, 4), ids(300, 7), numbers], y).unwrap();
    let compile = Compile {
        optimizer: Optimizer::from(Adagrad::new(0.05)).global_clipnorm(out.or(
            Part::Clipping,
            0.1,
            1e6,
        )),
        loss: BinaryCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let data = weighted(&data, out);
    plain("recommender", model.build().unwrap(), data, compile)
}

/// Pictures of some moments: statistics of the data, which training keeps, of examples alone, which no division of a batch changes, of each step over all replicas, and
/// dropout of each step.
fn frames() -> Case {
    let conv = Conv2d::new(6, 2).use_bias(false);
    let model = Sequential::new([2, 5, 5, 2])
        .add(Normalization::new())
        .add(TimeDistributed::new(conv))
        .add(TimeDistributed::new(BatchNorm::new().synchronized(true)))
        .add(ActivationLayer::new(tanh))
        .add(GroupNorm::new().groups(3))
        .add(TimeDistributed::new(Flatten))
        .add(TimeDistributed::new(Dropout::new(0.25)))
        .add(GlobalAveragePool1d::new())
        .add(UnitNorm::new())
        .add(Dense::new(3));
    let x = HostTensor::new([22, 2, 5, 5, 2], &wave(22 * 100, 0.31));
    let data = Dataset::from_arrays(x, classes(22, 3)).unwrap();
    let data = weighted(&data, Part::None);
    let optimizer = Optimizer::from(Sgd::new(0.1).momentum(0.9)).global_clipnorm(0.5);
    Case {
        // Statistics are those of a part.
        micro_batches: 1,
        ..plain("frames", model.build().unwrap(), data, classify(optimizer))
    }
}

/// Volumes, with a penalty of a kernel, windows that overlap, and groups of channels.
fn volumes() -> Case {
    let penalty = Regularizer::L2 { l2: 0.01 };
    let slopes = PRelu::new()
        .shared_axes([1, 2])
        .alpha_initializer(Initializer::Constant { value: 0.25 })
        .alpha_regularizer(penalty);
    let model = Sequential::new([4, 5, 5, 2])
        .add(Conv3d::new(6, 2).kernel_regularizer(penalty))
        .add(ActivationLayer::new(tanh))
        .add(ZeroPadding3d::sides([[1, 0], [0, 1], [0, 0]]))
        .add(MaxPool3d::new((2, 3, 3)).strides(1))
        .add(Conv3dTranspose::new(6, (2, 1, 1)).strides((2, 1, 1)))
        .add(Cropping3d::sides([[1, 2], [0, 0], [0, 0]]))
        .add(Conv3d::new(4, (1, 2, 2)).groups(2).padding(Padding::Same))
        .add(slopes)
        .add(LayerScale::new(0.5))
        .add(StochasticDepth::new(0.25))
        .add(AveragePool3d::new(2).strides(1).padding(Padding::Same))
        .add(GlobalAveragePool3d::new())
        .add(Dense::new(3));
    let x = HostTensor::new([22, 4, 5, 5, 2], &wave(22 * 200, 0.31));
    let data = Dataset::from_arrays(x, classes(22, 3)).unwrap();
    let data = weighted(&data, Part::None);
    let optimizer = Optimizer::from(Sgd::new(0.1).momentum(0.9)).global_clipnorm(0.5);
    Case {
        // Maxima change hands where what travels is rounded.
        narrow: 2.0,
        ..plain("volumes", model.build().unwrap(), data, classify(optimizer))
    }
}

/// Examples that are compared with all others of the batch, some of which have no weight.
fn compared() -> Case {
    let model = Sequential::new([6])
        .add(Dense::new(8).activation(tanh).sharded("kernel", COLUMNS))
        .add(Dense::new(4).sharded("kernel", ROWS))
        .add(UnitNorm::new());
    let x = HostTensor::new([24, 6], &wave(24 * 6, 0.37));
    let labels: Vec<i32> = (0..24).map(|i| i * i % 5).collect();
    let data = Dataset::from_arrays(x, HostTensor::new([24], &labels)).unwrap();
    let loss = Circle::default().gamma(2.0);
    let compile = Compile {
        optimizer: Sgd::new(0.02).into(),
        loss: loss.into(),
        weighted_metrics: vec![Loss::from(loss).into()],
        ..Compile::default()
    };
    Case {
        batch: 7,
        micro_batches: 1,
        // Vectors of length 1 turn further than what travels is rounded.
        narrow: 4.0,
        ..plain(
            "compared",
            model.build().unwrap(),
            weighted(&data, Part::None),
            compile,
        )
    }
}

/// All of them.
pub(crate) fn all() -> Vec<Case> {
    let others = [
        everything(),
        exact(),
        cnn_but(Part::None),
        transformer_but(Part::None),
        two_outputs(),
        recommender_but(Part::None),
        mobilenet_but(Part::None),
        frames(),
        volumes(),
        noise_case::noise(),
        compared(),
        own_case::own_parts(),
    ];
    let each = optimizers().into_iter().map(of_optimizer);
    each.chain(others).collect()
}
