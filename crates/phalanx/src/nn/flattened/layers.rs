//! What layers do with the order of their inputs' elements.

use std::sync::Arc;

use serde_json::Value;

use super::super::feature_order::{FeatureOrder, OrdersDiffer};
use super::super::layer::Layer;
use super::super::sizes::feature_dim;
use super::{OrderWalk, OrderedValue, ValueOrder};

/// Layers, a function each.
impl OrderWalk {
    /// A layer for each step.
    pub(super) fn each_step(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        input: &OrderedValue,
        out: &[usize],
    ) -> ValueOrder {
        let (Some(inner), true) = (layer.wrapped(), input.dims.len() > 1 && !out.is_empty()) else {
            return self.any(path, layer.kind(), std::slice::from_ref(input), out);
        };
        let path = format!("{path}/layer");
        let mut step = input.step();
        if let ValueOrder::Elements(elements) = &input.order {
            let (order, of_step) = match step.dims.len() {
                1 => (ValueOrder::Features(FeatureOrder::Same), FeatureOrder::Same),
                _ => (
                    ValueOrder::Channels,
                    FeatureOrder::channels_first(&step.dims),
                ),
            };
            let size = step.dims.iter().product();
            let steps = self.free.repeated(&of_step, input.dims[0], size);
            self.agreed(&path, elements, &steps);
            step.order = order;
        }
        match self.layer(&path, inner, &[step], &out[1..]) {
            ValueOrder::Features(order) => ValueOrder::Features(order),
            order => ValueOrder::Steps(Box::new(order)),
        }
    }

    /// A layer whose kernel is normalized.
    pub(super) fn normalized(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        inputs: &[OrderedValue],
        out: &[usize],
    ) -> ValueOrder {
        match layer.wrapped() {
            Some(inner) => self.layer(&format!("{path}/layer"), inner, inputs, out),
            None => self.any(path, layer.kind(), inputs, out),
        }
    }

    /// Rows in the order of the features, columns in any.
    pub(super) fn dense(&mut self, path: &str, input: &OrderedValue) -> ValueOrder {
        let rows = self.last_features(path, input);
        self.want(path, "kernel", 0, &rows);
        let columns = match self.outputs.get(path) {
            Some(columns) => columns.clone(),
            None => self.free.another(),
        };
        self.outputs.insert(path.to_owned(), columns.clone());
        self.want(path, "kernel", 1, &columns);
        self.want(path, "bias", 0, &columns);
        ValueOrder::Features(columns)
    }

    pub(super) fn convolution(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        input: &OrderedValue,
    ) -> ValueOrder {
        let channels = self.channels(path, input);
        let groups = layer.config().get("groups").and_then(Value::as_u64);
        if groups.is_some_and(|groups| groups > 1) {
            self.same(path, &channels);
        }
        // The last dims are inputs and outputs, exchanged in a transposed convolution.
        let inputs = match layer.kind().ends_with("_transpose") {
            true => input.dims.len(),
            false => input.dims.len().saturating_sub(1),
        };
        self.want(path, "kernel", inputs, &channels);
        ValueOrder::Channels
    }

    /// Batch and group normalization: a number for each channel.
    pub(super) fn channel_norm(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        input: &OrderedValue,
    ) -> ValueOrder {
        let rank = input.dims.len() + 1;
        if last_axis(layer, rank) != Some(true) {
            let features = self.last_features(path, input);
            self.same(path, &features);
            return input.order.clone();
        }
        let channels = match input.places() {
            1 => self.last_features(path, input),
            _ => self.channels(path, input),
        };
        if layer.kind() == "group_norm" {
            self.same(path, &channels);
        }
        for variable in ["gamma", "beta", "moving_mean", "moving_variance"] {
            self.want(path, variable, 0, &channels);
        }
        match input.places() {
            1 => ValueOrder::Features(channels),
            _ => self.behind_channels(layer.kind(), input),
        }
    }

    /// The output of a layer that takes channels first and leaves it open where the next one does.
    pub(super) fn behind_channels(&self, kind: &str, input: &OrderedValue) -> ValueOrder {
        match &input.order {
            ValueOrder::Features(_) => ValueOrder::Either(
                format!(
                    "PyTorch has channels first in `{kind}`, and features last in what is before it"
                )
                .into(),
            ),
            ValueOrder::Either(reason) => ValueOrder::Either(reason.clone()),
            ValueOrder::Channels
            | ValueOrder::Given
            | ValueOrder::Steps(_)
            | ValueOrder::Elements(_) => ValueOrder::Channels,
        }
    }

    /// A slope for each feature, or one for all; of images PyTorch has one for each channel.
    pub(super) fn slopes(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        input: &OrderedValue,
    ) -> ValueOrder {
        let rank = input.dims.len();
        let config = layer.config();
        let is_last = |axis: &Value| axis.as_u64() == Some(rank as u64);
        let is_shared = match config.get("shared_axes") {
            Some(Value::Array(axes)) => axes.iter().any(is_last),
            axis => axis.is_some_and(is_last),
        };
        if rank == 0 || is_shared {
            return input.order.clone();
        }
        let features = self.channels(path, input);
        self.want(path, "alpha", rank - 1, &features);
        input.order.clone()
    }

    /// PyTorch's GRU resets the state behind the product alone.
    pub(super) fn recurrent(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        inputs: &[OrderedValue],
        out: &[usize],
    ) -> ValueOrder {
        let config = layer.config();
        let settings = match layer.kind() {
            "gru" => Some(&config),
            _ => config.pointer("/layer/gru"),
        };
        let reset_after = settings.and_then(|settings| settings.get("reset_after"));
        if reset_after.and_then(Value::as_bool) == Some(false) {
            let message = format!(
                "layer `{path}` is a gru without `reset_after`, and PyTorch's have their reset gate behind the product with the recurrent kernel; \
                 build it with `reset_after`"
            );
            self.problems.push((path.to_owned(), message.into()));
        }
        self.any(path, layer.kind(), inputs, out)
    }

    pub(super) fn layer_norm(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        input: &OrderedValue,
        variables: &[&str],
    ) -> ValueOrder {
        let rank = input.dims.len() + 1;
        if last_axis(layer, rank) != Some(true) {
            let all = self.flat(input);
            self.same(path, &all);
            return input.order.clone();
        }
        let features = self.last_features(path, input);
        for variable in variables {
            self.want(path, variable, 0, &features);
        }
        match &input.order {
            ValueOrder::Channels | ValueOrder::Steps(_) => ValueOrder::Either(
                "PyTorch has features last in `layer_norm`, and channels first in what is before it".into(),
            ),
            ValueOrder::Either(reason) => ValueOrder::Either(reason.clone()),
            ValueOrder::Features(_) | ValueOrder::Given | ValueOrder::Elements(_) => ValueOrder::Features(features),
        }
    }

    pub(super) fn reshaped(&mut self, input: &OrderedValue, out: &[usize]) -> ValueOrder {
        let keeps_features =
            out.len() > 1 && input.dims.len() > 1 && out.last() == input.dims.last();
        match &input.order {
            // Places are numbered in another way, or one after the other.
            ValueOrder::Channels
            | ValueOrder::Given
            | ValueOrder::Either(_)
            | ValueOrder::Features(_)
                if keeps_features && input.places() > 1 =>
            {
                return input.order.clone();
            }
            _ => {}
        }
        let all = self.flat(input);
        let places: usize = out.iter().rev().skip(1).product();
        match places {
            1 => ValueOrder::Features(all),
            _ => ValueOrder::Elements(all),
        }
    }

    pub(super) fn permuted(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        input: &OrderedValue,
        out: &[usize],
    ) -> ValueOrder {
        let config = layer.config();
        let axes = config
            .get("dims")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let axes: Vec<usize> = axes
            .filter_map(Value::as_u64)
            .map(|axis| axis as usize)
            .collect();
        if axes.iter().copied().eq(1..=input.dims.len()) {
            return input.order.clone();
        }
        if input.places() == 1
            || matches!(input.order, ValueOrder::Elements(_) | ValueOrder::Channels)
        {
            let elements = self.flat(input);
            let moved = self.moved(&elements, &input.dims, &axes);
            if moved == FeatureOrder::Same {
                return ValueOrder::Elements(moved);
            }
            if moved == FeatureOrder::channels_first(out)
                && !matches!(input.order, ValueOrder::Channels)
            {
                return ValueOrder::Channels;
            }
        }
        let features = match &input.order {
            ValueOrder::Channels | ValueOrder::Given => FeatureOrder::Same,
            _ => self.last_features(path, input),
        };
        let reason = "it depends on whether PyTorch's model permutes the dims, too";
        match self.free.agree(&features, &FeatureOrder::Same) {
            Ok(_) => ValueOrder::Either(reason.into()),
            Err(OrdersDiffer) => ValueOrder::Elements(FeatureOrder::Lost(reason.into())),
        }
    }

    /// The order of elements whose dims are permuted here alone.
    fn moved(&mut self, elements: &FeatureOrder, dims: &[usize], axes: &[usize]) -> FeatureOrder {
        self.free.fix(elements);
        let numbers = match self.free.numbers(elements) {
            Ok(numbers) => numbers,
            Err(reason) => return FeatureOrder::Lost(reason),
        };
        let sizes: Vec<usize> = axes.iter().map(|axis| dims[axis - 1]).collect();
        let stride = |dim: usize| -> usize { dims[dim + 1..].iter().product() };
        let strides: Vec<usize> = axes.iter().map(|axis| stride(axis - 1)).collect();
        let from = |at: usize| {
            let places = sizes.iter().zip(&strides).rev();
            let (_, from) = places.fold((at, 0), |(rest, from), (size, stride)| {
                (rest / size, from + rest % size * stride)
            });
            numbers.as_ref().map_or(from, |numbers| numbers[from])
        };
        FeatureOrder::of((0..dims.iter().product()).map(from).collect())
    }

    /// Element by element.
    pub(super) fn merged(&mut self, path: &str, inputs: &[OrderedValue]) -> ValueOrder {
        if let Some(steps) = all_steps(inputs) {
            return ValueOrder::Steps(Box::new(self.merged(path, &steps)));
        }
        let order = self.layout(path, inputs);
        let mut features = FeatureOrder::Same;
        let mut is_first = true;
        for input in inputs.iter().filter(|input| input.features() > 1) {
            let own = match (&order, &input.order) {
                (ValueOrder::Elements(_), ValueOrder::Elements(own)) => own.clone(),
                (ValueOrder::Features(_) | ValueOrder::Given, _) => self.last_features(path, input),
                _ => self.channels(path, input),
            };
            if std::mem::take(&mut is_first) {
                features = own;
            } else {
                features = self.agreed(path, &features, &own);
            }
        }
        match order {
            ValueOrder::Features(_) => ValueOrder::Features(features),
            ValueOrder::Elements(_) => ValueOrder::Elements(features),
            order => {
                self.same(path, &features);
                order
            }
        }
    }

    /// How several values lie that PyTorch must have alike; with orders of features that say nothing.
    fn layout(&mut self, path: &str, inputs: &[OrderedValue]) -> ValueOrder {
        let spread: Vec<&OrderedValue> = inputs.iter().filter(|input| input.places() > 1).collect();
        let has = |is: fn(&ValueOrder) -> bool| spread.iter().any(|input| is(&input.order));
        let has_channels =
            has(|order| matches!(order, ValueOrder::Channels | ValueOrder::Steps(_)));
        let has_features = has(|order| matches!(order, ValueOrder::Features(_)));
        let either = spread.iter().find_map(|input| match &input.order {
            ValueOrder::Either(reason) => Some(reason.clone()),
            _ => None,
        });
        let all_elements = spread
            .iter()
            .all(|input| matches!(input.order, ValueOrder::Elements(_)));
        match (has_channels, has_features, either) {
            (_, _, Some(reason)) => ValueOrder::Either(reason),
            (true, true, None) => ValueOrder::Either(
                format!("PyTorch has channels first in one of the inputs of `{path}`, and features last in another").into(),
            ),
            (true, false, None) => ValueOrder::Channels,
            (false, false, None) if !spread.is_empty() && all_elements && spread.len() == inputs.len() => {
                ValueOrder::Elements(FeatureOrder::Same)
            }
            (false, false, None) if spread.iter().any(|input| matches!(input.order, ValueOrder::Given)) => ValueOrder::Given,
            _ => ValueOrder::Features(FeatureOrder::Same),
        }
    }

    /// One after the other.
    pub(super) fn concatenated(
        &mut self,
        path: &str,
        layer: &dyn Layer,
        inputs: &[OrderedValue],
    ) -> ValueOrder {
        let rank = inputs[0].dims.len() + 1;
        if last_axis(layer, rank) != Some(true) {
            return self.merged(path, inputs);
        }
        if let Some(steps) = all_steps(inputs) {
            return ValueOrder::Steps(Box::new(self.concatenated(path, layer, &steps)));
        }
        let mut order = self.layout(path, inputs);
        if let ValueOrder::Elements(_) = order {
            // Sequences have features last, images channels first.
            order = match rank {
                ..=3 => ValueOrder::Features(FeatureOrder::Same),
                _ => ValueOrder::Channels,
            };
        }
        let mut parts = Vec::new();
        for input in inputs {
            let part = match &order {
                ValueOrder::Features(_) => self.last_features(path, input),
                _ => self.channels(path, input),
            };
            parts.push((part, input.features()));
        }
        match order {
            ValueOrder::Features(_) => ValueOrder::Features(FeatureOrder::Joined(parts)),
            order => {
                parts.iter().for_each(|(part, _)| self.same(path, part));
                order
            }
        }
    }

    /// A layer whose variables are in the order of the features that it gets, if there are any.
    pub(super) fn any(
        &mut self,
        path: &str,
        kind: &str,
        inputs: &[OrderedValue],
        out: &[usize],
    ) -> ValueOrder {
        const VECTORS_LAST: [&str; 12] = [
            "lstm",
            "gru",
            "simple_rnn",
            "bidirectional",
            "multi_head_attention",
            "group_query_attention",
            "attention",
            "additive_attention",
            "position_embedding",
            "sinusoidal_position",
            "dot",
            "interaction",
        ];
        for input in inputs {
            let features = self.last_features(path, input);
            self.same(path, &features);
        }
        let is_vector = inputs.iter().all(|input| input.places() == 1) && out.len() < 2;
        if is_vector || VECTORS_LAST.contains(&kind) {
            return ValueOrder::Features(FeatureOrder::Same);
        }
        let reason: Arc<str> = format!("nothing is known of what `{kind}` is in PyTorch").into();
        match out.len() {
            0 | 1 => ValueOrder::Features(FeatureOrder::Lost(reason)),
            _ => ValueOrder::Either(reason),
        }
    }
}

/// Whether `axis` of a layer is the last dim of an input of this rank, and no other.
fn last_axis(layer: &dyn Layer, rank: usize) -> Option<bool> {
    let config = layer.config();
    let axis = match config.get("axis")? {
        Value::Array(axes) => match axes.as_slice() {
            [axis] => axis.as_i64()?,
            _ => return Some(false),
        },
        axis => axis.as_i64()?,
    };
    Some(feature_dim(axis, rank).ok()? + 1 == rank)
}

/// What each step of values is, where all of them are the same for each.
fn all_steps(values: &[OrderedValue]) -> Option<Vec<OrderedValue>> {
    let steps = values.iter().map(|value| match value.order {
        ValueOrder::Steps(_) => Some(value.step()),
        _ => None,
    });
    steps.collect()
}
