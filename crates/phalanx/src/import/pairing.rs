//! Pairing: which layer of a file belongs to which layer of the model.
//!
//! Files of other libraries name layers in their own ways, and no single rule fits all. So every [`MatchRule`] gives each layer
//! of the file and of the model a key (a path, a class with a number, a translated PyTorch name ..), layers with equal keys are
//! paired, and a key that occurs twice on a side pairs nothing. All rules are tried, and the one under which most variables
//! find a tensor of their shape is used; of equal ones the first, so that names win over order. Names that Keras made, such as
//! `dense_1`, do not: they count the layers as they were created, and Keras itself goes by their order.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use phalanx_graph::Shape;

use super::model_layers::{ModelLayer, class, owners};
use super::report::{LoadReport, Mismatch, PairedBy, VariableCounts};
use super::tensor_layout::{TensorLayout, field};
use super::weights_file::{Convention, FileLayer, FileLayers, FileTensor};
use crate::nn::{KerasFile, Model};

/// How layers of a file are paired with the model's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// The rule by which most variables find a value; of equal ones names, but order where Keras made the names, as `dense_1`.
    #[default]
    Auto,
    /// By names: whole paths, with `/` or `_` between their parts, the last part where it is unique, or PyTorch's names of
    /// the same models.
    Names,
    /// By order: in Keras' files the place within the class, as Keras does, else that among all layers, where the file has
    /// one: files of Keras and ours, and safetensors whose layers are called by numbers.
    Order,
}

/// A variable of the model, by position, and the tensor with its value.
pub(super) struct VariableSource<'f> {
    pub(super) variable: usize,
    pub(super) tensor: &'f FileTensor,
    pub(super) layout: TensorLayout,
    pub(super) convention: Convention,
}

/// A rule for pairing layers: layers with equal keys belong together.
#[derive(Clone, Copy)]
enum MatchRule {
    /// Paths are equal.
    Path,
    /// Paths are equal when their parts are joined by `_`, as where Keras has layers and not models in a model.
    Joined,
    /// The last parts of the paths are equal.
    Leaf,
    TorchvisionResNet,
    TorchvisionMobileNet,
    /// PyTorch's names in `nn.TransformerEncoder`.
    TorchTransformer,
    /// Classes are equal, and the numbers within them.
    Place,
    /// The same where stacks in the model are Keras' functional models: a chain of layers says not how it was built.
    FunctionalPlace,
    /// Numbers among all layers are equal.
    Order,
}

impl MatchRule {
    fn of(matching: Matching) -> &'static [Self] {
        const ALL: [MatchRule; 9] = [
            MatchRule::Path,
            MatchRule::Joined,
            MatchRule::Leaf,
            MatchRule::TorchvisionResNet,
            MatchRule::TorchvisionMobileNet,
            MatchRule::TorchTransformer,
            MatchRule::Place,
            MatchRule::FunctionalPlace,
            MatchRule::Order,
        ];
        match matching {
            Matching::Auto => &ALL,
            Matching::Names => &ALL[..6],
            Matching::Order => &ALL[6..],
        }
    }

    fn paired(self) -> PairedBy {
        match self {
            Self::Path | Self::Joined | Self::Leaf => PairedBy::Name,
            Self::TorchvisionResNet | Self::TorchvisionMobileNet | Self::TorchTransformer => {
                PairedBy::Map
            }
            Self::Place | Self::FunctionalPlace | Self::Order => PairedBy::Order,
        }
    }

    fn ours(self, layer: &ModelLayer, index: usize) -> Option<String> {
        match self {
            Self::Path => Some(name_of_keras(&layer.path)),
            Self::Joined => Some(name_of_keras(&layer.path).replace('/', "_")),
            Self::Leaf => Some(last(&name_of_keras(&layer.path)).to_owned()),
            Self::TorchvisionResNet => resnet_name(last(&layer.path)),
            Self::TorchvisionMobileNet => mobilenet_name(last(&layer.path)),
            Self::TorchTransformer => transformer_name(&layer.path),
            Self::Place => Some(layer.place.clone()),
            Self::FunctionalPlace => Some(layer.functional_place.clone()),
            Self::Order => Some(index.to_string()),
        }
    }

    /// `index` is the number among the layers of the file in their order.
    fn theirs(self, layer: &FileLayer, index: usize) -> Option<String> {
        let path = match layer.convention {
            Convention::Torch => name_of_keras(&layer.path.replace('.', "/")),
            Convention::Keras | Convention::Ours => name_of_keras(&layer.path),
        };
        match self {
            Self::Path => Some(path),
            Self::Joined => Some(path.replace('/', "_")),
            Self::Leaf => Some(last(&path).to_owned()),
            Self::TorchvisionResNet | Self::TorchvisionMobileNet => {
                (layer.convention == Convention::Torch).then(|| layer.path.clone())
            }
            Self::TorchTransformer => {
                (layer.convention == Convention::Torch).then(|| within_encoder(&layer.path))
            }
            Self::Place | Self::FunctionalPlace => {
                (!layer.place.is_empty()).then(|| layer.place.clone())
            }
            // A tree of classes has no order but that within each.
            Self::Order => layer.place.is_empty().then(|| index.to_string()),
        }
    }
}

/// What a rule has paired.
#[derive(Default)]
struct Paired<'f> {
    sources: Vec<VariableSource<'f>>,
    report: LoadReport,
    /// The layer of the file, by the model's layers.
    layers: Vec<Option<usize>>,
}

/// Pairs by the rule that finds most; of equal ones, by the first, but in a file that Keras wrote by order where that gives other layers
/// the names that Keras made. A model that Keras described (`is_described`) has its names, and files that note names go by them: in `.h5`
/// files layers of a model in a model stand in another order where some are frozen.
pub(super) fn pair<'f>(
    model: &Model,
    layers: &'f FileLayers,
    matching: Matching,
    is_described: bool,
) -> (Vec<VariableSource<'f>>, LoadReport) {
    let file = is_of_keras(&layers.all).then_some(KerasFile::Read);
    let owners = owners(model, file);
    let mut best = Paired::default();
    for &way in MatchRule::of(matching) {
        if matches!(way, MatchRule::Order) && !layers.ordered {
            continue;
        }
        let found = by_way(model, &owners, &layers.all, way);
        let is_better = match found.sources.len().cmp(&best.sources.len()) {
            Ordering::Less => false,
            Ordering::Equal => {
                layers.by_keras
                    && !(layers.named && is_described)
                    && found.report.paired == PairedBy::Order
                    && best.report.paired == PairedBy::Name
                    && is_renumbered(model, (&owners, &layers.all), [&best, &found])
            }
            Ordering::Greater => true,
        };
        if is_better || best.layers.is_empty() {
            best = found;
        }
    }
    (best.sources, best.report)
}

/// Whether the file is Keras'.
fn is_of_keras(layers: &[FileLayer]) -> bool {
    layers
        .iter()
        .any(|layer| layer.convention == Convention::Keras)
}

/// Whether by order some layers of the file go to other layers of the model than by names, and the names of these are those that
/// Keras made, equal but for their numbers.
fn is_renumbered(
    model: &Model,
    (owners, layers): (&[ModelLayer], &[FileLayer]),
    [by_name, by_order]: [&Paired<'_>; 2],
) -> bool {
    if by_name.layers == by_order.layers {
        return false;
    }
    let kinds = model.layer_kinds(KerasFile::Read);
    let classes: HashSet<&str> = kinds.iter().map(|(_, kind)| class(kind)).collect();
    let both = by_name.layers.iter().zip(&by_order.layers);
    let mut others = owners.iter().zip(both).filter(|(_, (a, b))| a != b);
    others.all(|(owner, (_, index))| {
        let theirs = index.map(|index| &layers[index].path);
        theirs.is_some_and(|theirs| are_alike(&classes, &name_of_keras(&owner.path), theirs))
    })
}

/// Whether two paths are equal but for the numbers of names that Keras made.
fn are_alike(classes: &HashSet<&str>, ours: &str, theirs: &str) -> bool {
    let is_alike = |(ours, theirs): (&str, &str)| {
        let class = without_number(ours);
        ours == theirs || (class == without_number(theirs) && classes.contains(class))
    };
    ours.split('/').count() == theirs.split('/').count()
        && ours.split('/').zip(theirs.split('/')).all(is_alike)
}

/// A name without the number that Keras puts at the end of names that it makes.
fn without_number(name: &str) -> &str {
    match name.rsplit_once('_') {
        Some((start, number)) if number.parse::<u64>().is_ok() => start,
        _ => name,
    }
}

/// A path with the names that we make as Keras makes them.
fn name_of_keras(path: &str) -> String {
    let names = path.split('/').map(|name| {
        let kind = without_number(name);
        format!("{}{}", class(kind), &name[kind.len()..])
    });
    names.collect::<Vec<_>>().join("/")
}

fn by_way<'f>(
    model: &Model,
    owners: &[ModelLayer],
    layers: &'f [FileLayer],
    way: MatchRule,
) -> Paired<'f> {
    let theirs = unique(
        layers
            .iter()
            .enumerate()
            .map(|(i, layer)| way.theirs(layer, i)),
    );
    let ours = unique(
        owners
            .iter()
            .enumerate()
            .map(|(i, owner)| way.ours(owner, i)),
    );
    let mut matcher = Matcher {
        model,
        pairs: Vec::new(),
        report: LoadReport {
            paired: way.paired(),
            ..LoadReport::default()
        },
    };
    let mut used = vec![false; layers.len()];
    let mut paired = Vec::with_capacity(owners.len());
    for (i, owner) in owners.iter().enumerate() {
        let key = way.ours(owner, i).filter(|key| ours.contains_key(key));
        let index = key.and_then(|key| theirs.get(&key).copied());
        if let Some(index) = index {
            used[index] = true;
        }
        matcher.layer(owner, index.map(|index| &layers[index]));
        paired.push(index);
    }
    let with_use = || layers.iter().zip(&used);
    let taken = with_use().filter(|(_, used)| **used);
    let modules: HashSet<&str> = taken.flat_map(|(layer, _)| modules_of(layer)).collect();
    for (layer, _) in with_use().filter(|(_, used)| !**used) {
        let is_left_over = matches!(way, MatchRule::Order)
            || modules_of(layer).any(|module| modules.contains(module));
        let names = layer.tensors.iter().flat_map(FileTensor::names);
        matcher.unexpected(names, is_left_over);
    }
    Paired {
        sources: matcher.pairs,
        report: matcher.report,
        layers: paired,
    }
}

/// The modules of PyTorch that a layer's tensors are of: a recurrent module and an attention are several layers here.
fn modules_of(layer: &FileLayer) -> impl Iterator<Item = &str> {
    let is_of_pytorch = layer.convention == Convention::Torch;
    let tensors = layer.tensors.iter().filter(move |_| is_of_pytorch);
    tensors.filter_map(|tensor| Some(tensor.name.rsplit_once('.')?.0))
}

/// Indices by key, without keys that occur twice.
fn unique(keys: impl Iterator<Item = Option<String>>) -> HashMap<String, usize> {
    let mut counts: HashMap<String, (usize, usize)> = HashMap::new();
    for (index, key) in keys.enumerate() {
        if let Some(key) = key {
            counts.entry(key).or_insert((index, 0)).1 += 1;
        }
    }
    let once = counts.into_iter().filter(|(_, (_, count))| *count == 1);
    once.map(|(key, (index, _))| (key, index)).collect()
}

struct Matcher<'m, 'f> {
    model: &'m Model,
    pairs: Vec<VariableSource<'f>>,
    report: LoadReport,
}

impl<'f> Matcher<'_, 'f> {
    /// Pairs the variables of one layer with the tensors of another.
    fn layer(&mut self, owner: &ModelLayer, layer: Option<&'f FileLayer>) {
        let mut used = Vec::new();
        let counts = layer.and_then(|layer| other_counts(owner, layer));
        let source = layer.filter(|_| counts.is_none());
        self.report.miscounted.extend(counts);
        for (number, &variable) in owner.variables.iter().enumerate() {
            let name = &self.model.variables()[variable].name;
            let tensor = source.and_then(|layer| {
                let index = tensor_of(layer, owner.kind, last(name), number)?;
                used.push(index);
                Some((layer, &layer.tensors[index]))
            });
            match tensor {
                Some((layer, tensor)) => self.variable(owner, variable, layer.convention, tensor),
                None => self.report.missing.push(name.clone()),
            }
        }
        let tensors = layer.map_or(&[][..], |layer| &layer.tensors).iter();
        let left = tensors
            .enumerate()
            .filter(|(index, _)| !used.contains(index));
        let left = left.flat_map(|(_, stored)| stored.names());
        self.unexpected(left, source.is_some());
    }

    /// Notes tensors that no variable takes, and whether the model answers otherwise without them.
    fn unexpected(&mut self, names: impl Iterator<Item = String>, is_left_over: bool) {
        let names: Vec<String> = names.collect();
        if is_left_over {
            self.report.left_over.extend_from_slice(&names);
        }
        self.report.unexpected.extend(names);
    }

    fn variable(
        &mut self,
        owner: &ModelLayer,
        variable: usize,
        convention: Convention,
        tensor: &'f FileTensor,
    ) {
        let spec = &self.model.variables()[variable];
        let layout = TensorLayout::of(convention, owner.kind, last(&spec.name));
        let expected = layout.dims(&spec.shape.dims);
        let (wanted, found) = (spec.shape.dtype, tensor.shape.dtype);
        let converts = wanted == found
            || wanted.is_float() && found.is_float()
            || wanted.is_integer() && found.is_integer();
        if expected == tensor.shape.dims && converts {
            let matched = (spec.name.clone(), tensor.name.clone());
            self.report.matched.push(matched);
            return self.pairs.push(VariableSource {
                variable,
                tensor,
                layout,
                convention,
            });
        }
        self.report.mismatched.push(Mismatch {
            variable: spec.name.clone(),
            tensor: tensor.name.clone(),
            expected: Shape::new(spec.shape.dtype, expected),
            got: tensor.shape.clone(),
        });
    }
}

/// The counts of a layer's variables and of the tensors in Keras' file, where they differ: by their numbers alone, values would go to the
/// wrong variables, as after a BatchNormalization without `gamma`.
fn other_counts(owner: &ModelLayer, layer: &FileLayer) -> Option<VariableCounts> {
    let (expected, got) = (owner.variables.len(), layer.tensors.len());
    let differ = layer.convention == Convention::Keras && expected != got;
    differ.then(|| VariableCounts {
        layer: owner.path.clone(),
        expected,
        got,
    })
}

/// The tensor of a variable: by name, or in Keras' files, which have as many, by number.
fn tensor_of(layer: &FileLayer, kind: &str, variable: &str, number: usize) -> Option<usize> {
    if layer.convention == Convention::Keras {
        return Some(number);
    }
    let field = field(layer.convention, kind, variable)?;
    let mut tensors = layer.tensors.iter();
    tensors.position(|stored| stored.field == field)
}

/// torchvision's name of a layer of `ResNet50`.
fn resnet_name(layer: &str) -> Option<String> {
    if layer == "predictions" {
        return Some("fc".into());
    }
    let (block, kind) = layer.rsplit_once('_')?;
    if block == "conv1" {
        return Some(if kind == "conv" { "conv1" } else { "bn1" }.into());
    }
    let (stage, rest) = block.strip_prefix("conv")?.split_once("_block")?;
    let (block, part) = rest.split_once('_')?;
    let stage = stage.parse::<usize>().ok()?.checked_sub(1)?;
    let block = block.parse::<usize>().ok()?.checked_sub(1)?;
    Some(match (part, kind) {
        ("0", "conv") => format!("layer{stage}.{block}.downsample.0"),
        ("0", _) => format!("layer{stage}.{block}.downsample.1"),
        (part, kind) => format!("layer{stage}.{block}.{kind}{part}"),
    })
}

/// torchvision's name of a layer of `MobileNetV2`.
fn mobilenet_name(layer: &str) -> Option<String> {
    let fixed = match layer {
        "Conv1" => "features.0.0",
        "bn_Conv1" => "features.0.1",
        "Conv_1" => "features.18.0",
        "Conv_1_bn" => "features.18.1",
        "predictions" => "classifier.1",
        _ => "",
    };
    if !fixed.is_empty() {
        return Some(fixed.into());
    }
    let (block, part) = match layer.strip_prefix("expanded_conv_") {
        Some(part) => (0, part),
        None => {
            let (block, part) = layer.strip_prefix("block_")?.split_once('_')?;
            (block.parse::<usize>().ok()?, part)
        }
    };
    // The first block does not expand, so that its parts come one earlier.
    let first = block == 0;
    let part = match part {
        "expand" => "0.0",
        "expand_BN" => "0.1",
        "depthwise" if first => "0.0",
        "depthwise_BN" if first => "0.1",
        "project" if first => "1",
        "project_BN" if first => "2",
        "depthwise" => "1.0",
        "depthwise_BN" => "1.1",
        "project" => "2",
        "project_BN" => "3",
        _ => return None,
    };
    Some(format!("features.{}.conv.{part}", block + 1))
}

/// PyTorch's name of a layer of `TransformerEncoder` within its own.
fn transformer_name(layer: &str) -> Option<String> {
    let Some((block, part)) = layer
        .strip_prefix("block_")
        .and_then(|rest| rest.split_once('/'))
    else {
        let is_outside = ["embedding", "position", "norm", "logits"].contains(&layer);
        return is_outside.then(|| layer.to_owned());
    };
    let block = block.parse::<usize>().ok()?;
    let part = match part {
        "attention_norm" => "norm1",
        "attention/query" => "self_attn.query",
        "attention/key" => "self_attn.key",
        "attention/value" => "self_attn.value",
        "attention/attention_output" => "self_attn.out_proj",
        "feed_forward_norm" => "norm2",
        "feed_forward" => "linear1",
        "feed_forward_output" => "linear2",
        _ => return None,
    };
    Some(format!("layers.{block}.{part}"))
}

/// What is left of a path of PyTorch without the modules around its encoder: from `layers` on, or the last part.
fn within_encoder(path: &str) -> String {
    let inside = path.match_indices("layers.").map(|(at, _)| at);
    let mut inside = inside.filter(|&at| at == 0 || path[..at].ends_with('.'));
    let own = path.rsplit('.').next().unwrap_or(path);
    inside.next().map_or(own, |at| &path[at..]).to_owned()
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
