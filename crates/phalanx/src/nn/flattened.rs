//! Orders of elements: which of PyTorch's each feature of a layer is.
//!
//! PyTorch has channels first, `[channels, height, width]`, and we have them last. Nothing of it is to be seen in the shape of a kernel that
//! reads flattened images: its rows are in another order. So a walk from the inputs to the outputs notes for each value in which order
//! PyTorch has its elements, and for each variable of features the order of its dims. A dense layer may have its outputs in any order; a
//! reshaping to images, or an addition to flattened ones, decides on one, and the layer's columns and bias follow.
//!
//! What PyTorch's layers take tells where it has the channels: convolutions, pools and batch normalization first, dense layers, recurrent ones,
//! attention and layer normalization last. Inputs have them first where they are images or volumes; sequences that nothing looked at are flattened as they are.

mod layers;

use std::collections::HashMap;
use std::sync::Arc;

use super::feature_order::{FeatureOrder, FreeOrders, OrdersDiffer};
use super::layer::{Body, Layer};
use super::model::Model;

/// A dim of a variable, and the number of each place of ours in PyTorch's.
type OrderOfDim = (usize, Arc<[usize]>);

/// For each variable whose features PyTorch has in another order: by dim, the number of each of ours in PyTorch's.
#[derive(Debug, Default)]
pub(crate) struct PytorchOrders {
    by_variable: HashMap<String, Result<Vec<OrderOfDim>, Arc<str>>>,
    /// Layers that PyTorch has otherwise or not at all, and why.
    problems: Vec<(String, Arc<str>)>,
}

impl PytorchOrders {
    /// The dims of a variable that are in another order.
    ///
    /// # Errors
    /// When it cannot be known: which layer reads it, and why.
    pub(crate) fn of(&self, variable: &str) -> Result<&[OrderOfDim], &str> {
        let layer = variable.rsplit_once('/').map_or("", |(layer, _)| layer);
        let is_inside = |path: &str| {
            layer == path
                || layer
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        if let Some((_, problem)) = self.problems.iter().find(|(path, _)| is_inside(path)) {
            return Err(problem);
        }
        match self.by_variable.get(variable) {
            None => Ok(&[]),
            Some(Ok(orders)) => Ok(orders),
            Some(Err(reason)) => Err(reason),
        }
    }

    /// What is wrong with the whole: a layer that computes with values whose orders differ.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problems.first().map(|(_, problem)| &**problem)
    }
}

impl Model {
    /// The orders in which PyTorch has what the variables are of.
    pub(crate) fn pytorch_orders(&self) -> PytorchOrders {
        let mut walk = OrderWalk::default();
        let inputs = self.inputs.iter().map(|input| match input.shape.rank() {
            0 | 1 => ValueOrder::Features(FeatureOrder::Same),
            2 => ValueOrder::Given,
            _ => ValueOrder::Channels,
        });
        let outputs = walk.model("", self, inputs.collect());
        for (order, shape) in outputs.iter().zip(self.outputs()) {
            // As inputs: images have channels first. Where they cannot, no variable is to blame.
            if let (ValueOrder::Elements(order), 3..) = (order, shape.rank()) {
                let _ = walk
                    .free
                    .agree(order, &FeatureOrder::channels_first(&shape.dims));
            }
        }
        walk.finished()
    }
}

/// How PyTorch has the elements of a value `[.., features]` of an example.
#[derive(Clone, Debug)]
enum ValueOrder {
    /// Features last, in this order.
    Features(FeatureOrder),
    /// Channels first.
    Channels,
    /// A sequence as it was given: features last, as long as no layer wants them first.
    Given,
    /// Channels first or features last, for this reason.
    Either(Arc<str>),
    /// For each step of the first dim the same.
    Steps(Box<Self>),
    /// Reshaped from a vector in this order.
    Elements(FeatureOrder),
}

/// A value of an example: how PyTorch has it, and its dims.
#[derive(Clone)]
struct OrderedValue {
    order: ValueOrder,
    dims: Vec<usize>,
}

impl OrderedValue {
    /// How many features are beside each other.
    fn features(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// How many places have features.
    fn places(&self) -> usize {
        self.dims.iter().rev().skip(1).product()
    }

    /// What a layer applied to each step gets.
    fn step(&self) -> Self {
        let dims = self.dims[1..].to_vec();
        let order = match &self.order {
            ValueOrder::Steps(inner) => (**inner).clone(),
            ValueOrder::Channels | ValueOrder::Given | ValueOrder::Either(_) if dims.len() < 2 => {
                ValueOrder::Features(FeatureOrder::Same)
            }
            order => order.clone(),
        };
        Self { order, dims }
    }
}

/// A walk through the layers of a model.
#[derive(Default)]
struct OrderWalk {
    free: FreeOrders,
    /// The outputs of layers whose order is free, by the layer.
    outputs: HashMap<String, FeatureOrder>,
    /// The order of dims of variables.
    wanted: HashMap<(String, usize), FeatureOrder>,
    problems: Vec<(String, Arc<str>)>,
}

impl OrderWalk {
    fn finished(self) -> PytorchOrders {
        let mut orders = PytorchOrders {
            problems: self.problems,
            ..PytorchOrders::default()
        };
        for ((variable, dim), order) in self.wanted {
            let layer = variable.rsplit_once('/').map_or("", |(layer, _)| layer);
            let numbers = self
                .free
                .numbers(&order)
                .map_err(|reason| unknown(layer, &reason));
            let entry = orders
                .by_variable
                .entry(variable)
                .or_insert_with(|| Ok(Vec::new()));
            match (numbers, &mut *entry) {
                (Ok(Some(numbers)), Ok(dims)) => dims.push((dim, numbers)),
                (Err(message), _) => *entry = Err(message),
                _ => {}
            }
        }
        orders
    }

    /// The outputs of a model.
    fn model(&mut self, path: &str, model: &Model, inputs: Vec<ValueOrder>) -> Vec<ValueOrder> {
        let mut nodes: Vec<Vec<ValueOrder>> = inputs.into_iter().map(|order| vec![order]).collect();
        let dims = |place| {
            model
                .shape_at(place)
                .dims
                .get(1..)
                .unwrap_or_default()
                .to_vec()
        };
        for (call, shapes) in model.calls.iter().zip(&model.shapes) {
            let entry = &model.layers[call.layer];
            let path = match path {
                "" => entry.name.clone(),
                path => format!("{path}/{}", entry.name),
            };
            let operands = call.inputs.iter().map(|&place| OrderedValue {
                order: nodes[place.node][place.output].clone(),
                dims: dims(place),
            });
            let operands: Vec<OrderedValue> = operands.collect();
            let outputs = match &entry.body {
                Body::Model(inner) => {
                    let orders = operands.into_iter().map(|operand| operand.order);
                    self.model(&path, inner, orders.collect())
                }
                Body::Layer { layer, .. } => {
                    let out = shapes[0].dims.get(1..).unwrap_or_default();
                    let first = self.layer(&path, layer.as_ref(), &operands, out);
                    // Others are states, features alone.
                    let others = ValueOrder::Features(FeatureOrder::Same);
                    let others = std::iter::repeat_n(others, shapes.len() - 1);
                    [first].into_iter().chain(others).collect()
                }
            };
            nodes.push(outputs);
        }
        let outputs = model.outputs.iter();
        outputs
            .map(|place| nodes[place.node][place.output].clone())
            .collect()
    }

    /// The output of a layer, whose dims are `out`.
    fn layer(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        inputs: &[OrderedValue],
        out: &[usize],
    ) -> ValueOrder {
        let Some(input) = inputs.first() else {
            return ValueOrder::Features(FeatureOrder::Same);
        };
        let kind = layer.kind();
        match kind {
            "time_distributed" => self.each_step(path, layer, input, out),
            "spectral_norm" => self.normalized(path, layer, inputs, out),
            "dense" => self.dense(path, input),
            "flatten" | "reshape" => self.reshaped(input, out),
            "permute" => self.permuted(path, layer, input, out),
            "repeat_vector" | "unit_norm" | "masking" | "rescaling" | "preprocess"
            | "normalization" | "activation" | "gaussian_noise" | "stochastic_depth" => {
                input.order.clone()
            }
            "p_relu" => self.slopes(path, layer, input),
            "gru" | "bidirectional" => self.recurrent(path, layer, inputs, out),
            "batch_norm" | "group_norm" => self.channel_norm(path, layer, input),
            "layer_norm" => self.layer_norm(path, layer, input, &["gamma", "beta"]),
            "rms_norm" => self.layer_norm(path, layer, input, &["scale"]),
            "add" | "scaled_add" | "multiply" | "average" | "maximum" | "minimum" | "subtract" => {
                self.merged(path, inputs)
            }
            "concatenate" => self.concatenated(path, layer, inputs),
            "embedding" | "embedding_bag" | "category_encoding" | "discretization" | "hashing"
            | "integer_lookup" => ValueOrder::Features(FeatureOrder::Same),
            _ if kind.ends_with("dropout") || kind.starts_with("spatial_dropout") => {
                input.order.clone()
            }
            _ if kind.starts_with("conv_lstm") => self.any(path, kind, inputs, out),
            _ if kind.starts_with("conv") => self.convolution(path, layer, input),
            _ if kind.starts_with("depthwise_conv") || kind.starts_with("separable_conv") => {
                let channels = self.channels(path, input);
                self.same(path, &channels);
                ValueOrder::Channels
            }
            _ if kind.starts_with("global_") => ValueOrder::Features(self.channels(path, input)),
            _ if [
                "max_pool",
                "average_pool",
                "up_sampling",
                "zero_padding",
                "cropping",
            ]
            .iter()
            .any(|start| kind.starts_with(start)) =>
            {
                let channels = self.channels(path, input);
                self.same(path, &channels);
                self.behind_channels(kind, input)
            }
            _ => self.any(path, kind, inputs, out),
        }
    }
}

/// Orders of values, and what layers ask of them.
impl OrderWalk {
    /// The order of all elements of an example.
    fn flat(&mut self, value: &OrderedValue) -> FeatureOrder {
        let (places, features) = (value.places(), value.features());
        match &value.order {
            ValueOrder::Features(order) => self.free.repeated(order, places, features),
            ValueOrder::Channels => FeatureOrder::channels_first(&value.dims),
            ValueOrder::Given => FeatureOrder::Same,
            ValueOrder::Either(_) if places == 1 || features == 1 => FeatureOrder::Same,
            ValueOrder::Either(reason) => FeatureOrder::Lost(reason.clone()),
            ValueOrder::Elements(order) => order.clone(),
            ValueOrder::Steps(_) => {
                let step = value.step();
                let of_step = self.flat(&step);
                self.free
                    .repeated(&of_step, value.dims[0], step.dims.iter().product())
            }
        }
    }

    /// The order of the last dim, for a layer that has it last in PyTorch, too.
    fn last_features(&mut self, path: &str, value: &OrderedValue) -> FeatureOrder {
        match &value.order {
            ValueOrder::Features(order) => order.clone(),
            ValueOrder::Channels | ValueOrder::Given | ValueOrder::Either(_) => FeatureOrder::Same,
            ValueOrder::Steps(_) => {
                let step = value.step();
                self.last_features(path, &step)
            }
            ValueOrder::Elements(order) if value.places() == 1 => order.clone(),
            ValueOrder::Elements(order) => {
                self.same(path, order);
                FeatureOrder::Same
            }
        }
    }

    /// The order of the last dim, for a layer that has it first in PyTorch.
    fn channels(&mut self, path: &str, value: &OrderedValue) -> FeatureOrder {
        match &value.order {
            ValueOrder::Elements(order) if value.places() > 1 => {
                let images = FeatureOrder::channels_first(&value.dims);
                self.agreed(path, order, &images);
                FeatureOrder::Same
            }
            _ => self.last_features(path, value),
        }
    }

    /// Notes in which order PyTorch has a dim of a variable.
    fn want(&mut self, path: &str, variable: &str, dim: usize, order: &FeatureOrder) {
        let key = (format!("{path}/{variable}"), dim);
        let order = match self.wanted.get(&key).cloned() {
            Some(known) => self.agreed(path, &known, order),
            None => order.clone(),
        };
        self.wanted.insert(key, order);
    }

    /// Both as one, or a problem of the layer.
    fn agreed(&mut self, path: &str, a: &FeatureOrder, b: &FeatureOrder) -> FeatureOrder {
        match self.free.agree(a, b) {
            Ok(FeatureOrder::Lost(reason)) => self.problem(path, reason),
            Ok(order) => order,
            Err(OrdersDiffer) => self.problem(
                path,
                "what it reads was flattened from channels first in PyTorch, and is read there in another way".into(),
            ),
        }
    }

    fn same(&mut self, path: &str, order: &FeatureOrder) {
        self.agreed(path, order, &FeatureOrder::Same);
    }

    fn problem(&mut self, path: &str, reason: Arc<str>) -> FeatureOrder {
        self.problems
            .push((path.to_owned(), unknown(path, &reason)));
        FeatureOrder::Lost(reason)
    }
}

/// What is said of a layer that reads features in an order that cannot be known.
fn unknown(path: &str, reason: &str) -> Arc<str> {
    format!(
        "layer `{path}` reads features whose order in PyTorch cannot be known: {reason}; flatten right behind the layer that has channels first, \
         with a `permute` of the channels before the other dims where PyTorch's model has them so, or give a file with this model's names and orders"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Dense, Flatten, PRelu, Sequential, StochasticDepth};

    #[test]
    fn slopes_of_flattened_images_are_in_their_order() {
        let model = Sequential::new([2, 3, 2])
            .add(Flatten)
            .add(PRelu::new())
            .add(StochasticDepth::new(0.5))
            .add(Dense::new(4))
            .build()
            .unwrap();
        let orders = model.pytorch_orders();
        let [slopes, rows] = ["p_relu/alpha", "dense/kernel"].map(|name| orders.of(name).unwrap());
        let expected: Arc<[usize]> = [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11].into();
        assert_eq!(slopes, [(0, expected)]);
        assert_eq!(rows, slopes);
    }
}
