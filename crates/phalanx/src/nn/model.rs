//! Models: layers, how they are connected, and the variables they ask for.

use phalanx_graph::{DType, Graph, GraphError, HostTensor, Shape, Tensor};

use super::Activation;
use super::context::Cx;
use super::input::{Input, NamedInput};
use super::keras_order::KerasVersion;
use super::layer::{Body, LayerSpec};
use super::masks::WITHOUT_MASK;
use super::names::{Names, check_name};
use super::sharding::Shardings;
use super::sizes::check_dims;
use super::summary::summary;
use super::variable::Variable;
use crate::{Error, Result};

/// Layers and their connections, with the variables they ask for: a function from inputs to outputs.
///
/// Made by [`Sequential`](super::Sequential), [`Network`](super::Network) or [`from_config`](Self::from_config). A
/// model holds no values: [`init`](Self::init) makes the first ones.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) name: String,
    pub(super) inputs: Vec<NamedInput>,
    pub(super) layers: Vec<NamedLayer>,
    /// In an order in which every input is there before it is used.
    pub(super) calls: Vec<Call>,
    pub(super) outputs: Vec<Place>,
    pub(super) variables: Vec<Variable>,
    /// Shapes of the results of each call, for a batch of [`TRACED_ROWS`].
    pub(super) shapes: Vec<Vec<Shape>>,
    /// Of each output whether it has a padding mask.
    pub(super) masked: Vec<bool>,
    /// Which Keras described it as a functional model; the layers are in the order in which that numbers them.
    pub(super) of_keras: Option<KerasVersion>,
}

/// A layer under its name.
#[derive(Clone, Debug)]
pub(super) struct NamedLayer {
    pub(super) name: String,
    pub(super) body: Body,
    pub(super) training: bool,
    pub(super) checkpointed: bool,
    pub(super) shardings: Shardings,
}

/// One use of a layer.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) layer: usize,
    pub(super) inputs: Vec<Place>,
}

/// A value inside a model: the `output`-th result of a node, where nodes are the inputs and then the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) node: usize,
    pub(super) output: usize,
}

/// What a model is made of before names are settled and shapes checked.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) inputs: Vec<Input>,
    pub(super) layers: Vec<LayerSpec>,
    pub(super) calls: Vec<Call>,
    pub(super) outputs: Vec<Place>,
    pub(super) of_keras: Option<KerasVersion>,
}

impl Plan {
    /// Layers that each take the output of the one before.
    pub(super) fn stack(name: String, input: Input, layers: Vec<LayerSpec>) -> Self {
        let first = |node| Place { node, output: 0 };
        let calls = (0..layers.len()).map(|layer| Call {
            layer,
            inputs: vec![first(layer)],
        });
        Self {
            name,
            inputs: vec![input],
            calls: calls.collect(),
            outputs: vec![first(layers.len())],
            layers,
            of_keras: None,
        }
    }
}

/// Rows of the batch with which shapes are found out; 2, because 1 would broadcast where it should not.
const TRACED_ROWS: usize = 2;
/// Variables of one model together may not take more bytes.
const MAX_BYTES: usize = 1 << 42;

/// What a user asks of a model.
impl Model {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name and shape of each input: the dims of one example, without the batch.
    #[must_use]
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = (&str, Shape)> {
        self.inputs
            .iter()
            .map(|input| (input.name.as_str(), input.shape.clone()))
    }

    /// The shape of each output: the dims of one example, without the batch.
    #[must_use]
    pub fn outputs(&self) -> Vec<Shape> {
        let per_example = |&place: &Place| {
            let mut shape = self.shape_at(place);
            if shape.rank() > 0 {
                shape.dims.remove(0);
            }
            shape.with_dtype(shape.dtype.wide())
        };
        self.outputs.iter().map(per_example).collect()
    }

    /// The name of each output: the name of the layer that makes it, numbered when a layer makes several.
    #[must_use]
    pub fn output_names(&self) -> Vec<String> {
        let mut names = Names::default();
        let outputs = self.outputs.iter().map(|&place| self.with_mask(place));
        outputs
            .map(|place| names.settle(None, self.maker(place)))
            .collect()
    }

    /// The value of which this one is a copy without the padding mask; itself, where it is none.
    fn with_mask(&self, place: Place) -> Place {
        let call = place.node.checked_sub(self.inputs.len());
        let call = call.map(|call| &self.calls[call]);
        let Some((call, &before)) = call.and_then(|call| Some((call, call.inputs.first()?))) else {
            return place;
        };
        let name = self.layers[call.layer].name.trim_end_matches('_');
        match name.ends_with(WITHOUT_MASK) && name.starts_with(self.maker(before)) {
            true => before,
            false => place,
        }
    }

    /// The layer or input that makes a value.
    fn maker(&self, place: Place) -> &str {
        match place.node.checked_sub(self.inputs.len()) {
            Some(call) => &self.layers[self.calls[call].layer].name,
            None => &self.inputs[place.node].name,
        }
    }

    /// The activation that makes each output, where the last layer says so: to tell logits from probabilities.
    #[must_use]
    pub fn output_activations(&self) -> Vec<Option<Activation>> {
        let activation = |place: &Place| {
            let place = self.with_mask(*place);
            let call = self.calls.get(place.node.checked_sub(self.inputs.len())?)?;
            match &self.layers[call.layer].body {
                Body::Layer { layer, .. } => layer.activation(),
                Body::Model(model) => model.output_activations()[place.output],
            }
        };
        self.outputs.iter().map(activation).collect()
    }

    /// Of each output whether it has a padding mask.
    pub(crate) fn masked_outputs(&self) -> &[bool] {
        &self.masked
    }

    /// The paths of the layers, including layers of nested models, as in `backbone/conv2d`.
    #[must_use]
    pub fn layers(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.visit("", &mut |path, _| paths.push(path.to_owned()));
        paths
    }

    /// Every variable, in the order in which layers ask for them.
    #[must_use]
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// First values of the variables, in the order of [`variables`](Self::variables).
    ///
    /// # Errors
    /// When the machine has not the memory for them.
    pub fn init(&self, seed: u64) -> Result<Vec<HostTensor>> {
        let bytes = total_bytes(&self.variables);
        if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
            let name = &self.name;
            return Err(Error::user(format!(
                "the variables of model `{name}` take {bytes} bytes, more than this machine can give; make its layers smaller"
            )));
        }
        let value = |variable: &Variable| {
            let (shape, path) = (&variable.shape, &variable.name);
            variable.initializer.values(shape, seed, path)
        };
        Ok(self.variables.iter().map(value).collect())
    }

    /// Checks that there is a value of the right shape for each variable, in their order.
    pub(crate) fn check_values(&self, values: &[HostTensor]) -> Result<()> {
        let (name, expected, got) = (&self.name, self.variables.len(), values.len());
        if expected != got {
            return Err(Error::user(format!(
                "model `{name}` has {expected} variables, got {got} values; give one for each, in the order of `Model::variables`"
            )));
        }
        for (variable, value) in self.variables.iter().zip(values) {
            if *value.shape() != variable.shape {
                let (variable, expected, got) = (&variable.name, &variable.shape, value.shape());
                return Err(Error::user(format!(
                    "variable `{variable}` of model `{name}` is {expected}, got a value that is {got}; give values in the order of `Model::variables`"
                )));
            }
        }
        Ok(())
    }

    /// The table that Keras prints, in plain Unicode, 80 columns wide.
    #[must_use]
    pub fn summary(&self) -> String {
        self.summary_within(80)
    }

    /// [`summary`](Self::summary) in a number of columns (at least 60).
    #[must_use]
    pub fn summary_within(&self, columns: usize) -> String {
        summary(self, columns)
    }

    /// Builds the outputs for `inputs`, whose first dim is the batch; 16-bit floats become f32.
    ///
    /// Mistakes are recorded on the graph; stand-ins are returned so that building goes on.
    #[must_use]
    #[track_caller]
    pub fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
        if let Some(first) = inputs.first().filter(|first| first.rank() > 0) {
            cx.set_batch_size(first.dim(0));
        }
        let results = self.run(cx, inputs);
        let outputs = results.outputs_of(&self.outputs, cx.graph());
        let wide = |output: &Tensor| cx.converted(output, output.dtype().wide());
        outputs.iter().map(wide).collect()
    }
}

impl NamedLayer {
    /// The outputs of one use of the layer.
    #[track_caller]
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
        match &self.body {
            Body::Layer {
                layer,
                trainable,
                precision,
            } => {
                let policy = precision.unwrap_or(cx.policy());
                cx.apply(&self.name, layer.as_ref(), *trainable, policy, inputs)
            }
            Body::Model(model) => cx.inside(&self.name, true, cx.policy(), |cx| {
                let inner = model.run(cx, inputs);
                inner.outputs_of(&model.outputs, cx.graph())
            }),
        }
    }
}

/// The results of each node of a call.
pub(super) struct Results(pub(super) Vec<Vec<Tensor>>);

impl Results {
    /// Results that a mistake kept from being built are stood in for.
    fn at(&self, place: Place, graph: &Graph) -> Tensor {
        let found = self.0.get(place.node);
        let found = found.and_then(|node| node.get(place.output)).cloned();
        found.unwrap_or_else(|| graph.scalar(DType::F32, 0.0))
    }

    fn outputs_of(&self, places: &[Place], graph: &Graph) -> Vec<Tensor> {
        places.iter().map(|&place| self.at(place, graph)).collect()
    }
}

/// Tables.
impl Model {
    /// The rows of the smallest table in which an input is looked up directly; none where it is not.
    pub(crate) fn vocabulary(&self, input: usize) -> Option<usize> {
        let uses = self.calls.iter().flat_map(|call| {
            let places = call.inputs.iter().enumerate();
            let uses = places.filter(|(_, place)| place.node == input);
            uses.map(|(at, _)| (&self.layers[call.layer].body, at))
        });
        uses.filter_map(|(body, at)| match body {
            Body::Layer { layer, .. } if layer.kind().ends_with("embedding") => {
                let rows = layer.config().get("input_dim")?.as_u64()?;
                usize::try_from(rows).ok()
            }
            Body::Layer { .. } => None,
            Body::Model(model) => model.vocabulary(at),
        })
        .min()
    }
}

/// Building.
impl Model {
    /// Settles names, calls every layer once in a scratch graph, and keeps the variables they ask for.
    pub(super) fn build(plan: Plan) -> Result<Self> {
        for (what, count) in [
            ("inputs", plan.inputs.len()),
            ("outputs", plan.outputs.len()),
        ] {
            if count == 0 {
                let name = &plan.name;
                return Err(Error::user(format!(
                    "model `{name}` has no {what}; name one or more"
                )));
            }
        }
        let (inputs, layers) = settle_names(&plan)?;
        let mut model = Self {
            name: plan.name,
            inputs,
            layers,
            calls: plan.calls,
            outputs: plan.outputs,
            variables: Vec::new(),
            shapes: Vec::new(),
            masked: Vec::new(),
            of_keras: plan.of_keras,
        };
        model.trace()?;
        model.check_lengths()?;
        Ok(model)
    }

    /// The same layers for inputs of other dims or elements, under the names that they have: for images of another size, say.
    /// Models inside take what they are called with then.
    ///
    /// Keras' `clone_model(model, input_tensors=..)`.
    ///
    /// # Errors
    /// When they are not as many as the model's, the layers do not take them, or would have other variables, as a dense layer of all pixels has.
    pub fn with_inputs(&self, inputs: &[Input]) -> Result<Self> {
        let name = &self.name;
        if inputs.len() != self.inputs.len() {
            let (expected, got) = (self.inputs.len(), inputs.len());
            return Err(Error::user(format!(
                "model `{name}` has {expected} inputs, got {got}; give one for each"
            )));
        }
        let mut model = self.clone();
        for (own, given) in model.inputs.iter_mut().zip(inputs) {
            own.shape = Shape::new(given.dtype, given.dims.clone());
            own.open = given.open;
        }
        model.open_inside();
        model.trace()?;
        model.close_inside(self);
        model.trace()?;
        model.check_lengths()?;
        let mut variables = self.variables.iter().zip(&model.variables);
        match variables.find(|(own, other)| own.shape != other.shape) {
            None => Ok(model),
            Some((own, other)) => Err(Error::user(format!(
                "variable `{}` of model `{name}` is {}, and would be {} for these inputs; give inputs of the dims that the model was made for",
                own.name, own.shape, other.shape
            ))),
        }
    }

    pub(super) fn trace(&mut self) -> Result<()> {
        let graph = Graph::new();
        let mut inputs = Vec::new();
        for input in &self.inputs {
            let what = format!("input `{}`", input.name);
            check_dims(&what, &input.shape.dims).map_err(Error::user)?;
            if let Some(any) = input.any().filter(|_| input.open > input.shape.rank()) {
                let (name, open, rank) = (&self.name, input.open, input.shape.rank());
                return Err(Error::User(format!(
                    "{what} of model `{name}` has {any}, {open} open dims, but its examples have {rank} dims; give it more"
                )));
            }
            let mut shape = input.shape.clone();
            shape.dims.insert(0, TRACED_ROWS);
            inputs.push(graph.parameter(&input.name, shape));
        }
        let mut cx = Cx::recording(&graph);
        cx.set_batch_size(TRACED_ROWS);
        let results = self.run(&mut cx, &inputs);
        if let Some(error) = graph.error() {
            return Err(mistake(&self.name, &error));
        }
        let outputs = results.outputs_of(&self.outputs, &graph);
        let is_masked = |output: &Tensor| cx.padding_mask(output).is_some();
        self.masked = outputs.iter().map(is_masked).collect();
        self.fit_inside(&results)?;
        let calls = results.0.into_iter().skip(self.inputs.len());
        self.shapes = calls
            .map(|outputs| outputs.iter().map(Tensor::shape).collect())
            .collect();
        self.variables = cx.into_variables();
        if total_bytes(&self.variables) > MAX_BYTES {
            let name = &self.name;
            return Err(Error::user(format!(
                "the variables of model `{name}` take more than {MAX_BYTES} bytes; make its layers smaller"
            )));
        }
        self.settle_shardings()
    }

    #[track_caller]
    fn run(&self, cx: &mut Cx, inputs: &[Tensor]) -> Results {
        let graph = cx.graph().clone();
        self.check_inputs(cx, inputs);
        let mut results = Results(inputs.iter().map(|input| vec![input.clone()]).collect());
        for call in &self.calls {
            if graph.error().is_some() {
                break;
            }
            let entry = &self.layers[call.layer];
            let operands = results.outputs_of(&call.inputs, &graph);
            let is_kept_short = entry.checkpointed && cx.training();
            let outputs = cx.while_training(entry.training, |cx| {
                if !is_kept_short {
                    return entry.call(cx, &operands);
                }
                let inputs: Vec<&Tensor> = operands.iter().collect();
                graph.checkpointed(&inputs, || entry.call(cx, &operands))
            });
            results.0.push(outputs);
        }
        results
    }

    #[track_caller]
    fn check_inputs(&self, cx: &Cx, inputs: &[Tensor]) {
        let graph = cx.graph();
        // A model inside another gets what the layers before it computed in.
        let inside = !cx.path().is_empty();
        if inputs.len() != self.inputs.len() {
            let (name, expected, got) = (&self.name, self.inputs.len(), inputs.len());
            graph.fail(
                "layer",
                format!("model `{name}` has {expected} inputs, got {got}"),
            );
        }
        for (input, tensor) in self.inputs.iter().zip(inputs) {
            let shape = tensor.shape();
            let expected = input.shape.dtype;
            let both_floats = shape.dtype.is_float() && expected.is_float();
            let fits = (shape.dtype == expected || inside && both_floats)
                && shape.rank() > 0
                && input.takes(&shape.dims[1..]);
            if !fits {
                let (name, expected) = (&input.name, &input.shape);
                graph.fail(
                    "layer",
                    format!("input `{name}`: expected a batch of {expected}, got {shape}"),
                );
            }
        }
    }

    pub(super) fn shape_at(&self, place: Place) -> Shape {
        match place.node.checked_sub(self.inputs.len()) {
            Some(call) => self.shapes[call][place.output].clone(),
            None => {
                let mut shape = self.inputs[place.node].shape.clone();
                shape.dims.insert(0, TRACED_ROWS);
                shape
            }
        }
    }
}

fn total_bytes(variables: &[Variable]) -> usize {
    let bytes = |variable: &Variable| variable.shape.byte_len();
    variables.iter().fold(0, |total: usize, variable| {
        total.saturating_add(bytes(variable))
    })
}

/// The error of a model that does not build.
fn mistake(model: &str, error: &GraphError) -> Error {
    let place = error.label.as_ref().map_or_else(
        || format!("model `{model}`"),
        |path| format!("layer `{path}`"),
    );
    let GraphError {
        op,
        message,
        file,
        line,
        ..
    } = error;
    // A mistake that a check found has no place in the source worth telling.
    Error::user(match op.as_str() {
        "layer" => format!("{place}: {}", of_any_batch(message)),
        _ => format!("{place}: {op}: {message}, at {file}:{line}"),
    })
}

/// A message with the shapes of batches as a model sees them, without the number of examples that it is traced with.
fn of_any_batch(message: &str) -> String {
    let types = DType::ALL.iter();
    types.fold(message.to_owned(), |message, dtype| {
        let message = message.replace(
            &format!("{dtype}[{TRACED_ROWS},"),
            &format!("{dtype}[batch,"),
        );
        message.replace(
            &format!("{dtype}[{TRACED_ROWS}]"),
            &format!("{dtype}[batch]"),
        )
    })
}

/// Checks given names and gives the others, as Keras does: `dense`, `dense_1`, ..
fn settle_names(plan: &Plan) -> Result<(Vec<NamedInput>, Vec<NamedLayer>)> {
    check_name(&plan.name)?;
    let mut names = Names::default();
    names.reserve(plan.inputs.iter().map(|input| input.name.as_deref()))?;
    names.reserve(plan.layers.iter().map(|layer| layer.name.as_deref()))?;
    let inputs = plan.inputs.iter().map(|input| NamedInput {
        name: names.settle(input.name.as_deref(), "input"),
        shape: Shape::new(input.dtype, input.dims.clone()),
        open: input.open,
    });
    let inputs = inputs.collect();
    let layers = plan.layers.iter().map(|layer| {
        let name = names.settle(layer.name.as_deref(), automatic_name(layer));
        let body = layer.body.clone().renamed(&name);
        NamedLayer {
            name,
            body,
            training: layer.training,
            checkpointed: layer.checkpointed,
            shardings: layer.shardings.clone(),
        }
    });
    let layers = layers.collect();
    Ok((inputs, layers))
}

/// A model as a layer is called by its own name.
fn automatic_name(layer: &LayerSpec) -> &str {
    match &layer.body {
        Body::Layer { layer, .. } => layer.kind(),
        Body::Model(model) => &model.name,
    }
}

/// What stands for a model where one is compiled: a model, the builder of one, or a saved model with its values.
pub trait IntoModel {
    /// The model, and the values it starts from, in the order of [`Model::variables`], where there are any.
    ///
    /// # Errors
    /// When the layers do not fit together.
    fn into_parts(self) -> Result<(Model, Option<Vec<HostTensor>>)>;
}

impl IntoModel for Model {
    fn into_parts(self) -> Result<(Model, Option<Vec<HostTensor>>)> {
        Ok((self, None))
    }
}

impl<M: IntoModel> IntoModel for Result<M> {
    fn into_parts(self) -> Result<(Model, Option<Vec<HostTensor>>)> {
        self?.into_parts()
    }
}
