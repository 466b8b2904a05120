//! Layers connected freely: several inputs and outputs, shared layers.

use super::input::Input;
use super::layer::LayerSpec;
use super::model::{Call, Model, Place, Plan};
use crate::{Error, Result};

/// Builds a model of layers connected freely: Keras' functional interface.
///
/// ```
/// use phalanx::nn::{Add, Dense, Network, relu};
///
/// let mut net = Network::new();
/// let x = net.input([8]);
/// let hidden = net.add(Dense::new(8).activation(relu), &[x]);
/// let sum = net.add(Add, &[x, hidden]);
/// let shared = net.layer(Dense::new(2));
/// let (a, b) = (net.call(shared, &[hidden]), net.call(shared, &[sum]));
/// let model = net.build(&[x], &[a, b])?;
/// assert_eq!(model.variables().len(), 4);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Network {
    name: String,
    inputs: Vec<Input>,
    layers: Vec<LayerSpec>,
    nodes: Vec<Made>,
}

/// A value in a [`Network`]: an input, or an output of a use of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    place: Place,
}

/// A layer of a [`Network`] that may be used several times, with one set of variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    layer: usize,
}

/// What makes a node.
#[derive(Clone, Debug)]
enum Made {
    Input(usize),
    Call(Call),
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

impl Network {
    /// An empty network.
    #[must_use]
    pub fn new() -> Self {
        Self {
            name: "functional".into(),
            inputs: Vec::new(),
            layers: Vec::new(),
            nodes: Vec::new(),
        }
    }

    /// Sets the name of the model.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds an input of examples of these dims (the batch is not among them), or an [`Input`].
    pub fn input(&mut self, input: impl Into<Input>) -> Node {
        self.inputs.push(input.into());
        self.node(Made::Input(self.inputs.len() - 1))
    }

    /// Adds a layer and applies it; of several outputs this is the first.
    pub fn add(&mut self, layer: impl Into<LayerSpec>, inputs: &[Node]) -> Node {
        let layer = self.layer(layer);
        self.call(layer, inputs)
    }

    /// Adds a layer, to be applied by [`call`](Self::call) as often as wanted.
    pub fn layer(&mut self, layer: impl Into<LayerSpec>) -> Shared {
        self.layers.push(layer.into());
        Shared {
            layer: self.layers.len() - 1,
        }
    }

    /// Applies a layer; of several outputs this is the first.
    pub fn call(&mut self, layer: Shared, inputs: &[Node]) -> Node {
        let inputs = inputs.iter().map(|node| node.place).collect();
        let layer = layer.layer;
        self.node(Made::Call(Call { layer, inputs }))
    }

    /// Applies a layer or a model: all its outputs, of most layers one.
    pub fn call_many(&mut self, layer: Shared, inputs: &[Node]) -> Vec<Node> {
        let Node { place } = self.call(layer, inputs);
        let spec = self.layers.get(layer.layer);
        let count = spec.map_or(1, |spec| spec.body.outputs());
        let node = |output| Node {
            place: Place { output, ..place },
        };
        (0..count).map(node).collect()
    }

    /// The model from `inputs` to `outputs`; layers that no output needs are left out.
    ///
    /// # Errors
    /// When an output needs an input that is not among `inputs`, when shapes do not fit, or two layers have one name.
    pub fn build(&self, inputs: &[Node], outputs: &[Node]) -> Result<Model> {
        let needed = self.needed(outputs)?;
        let mut places: Vec<Option<usize>> = vec![None; self.nodes.len()];
        let mut given = Vec::new();
        for node in inputs {
            let Some(Made::Input(index)) = self.nodes.get(node.place.node) else {
                return Err(Error::user(
                    "an input of the model was not made by `input(..)`",
                ));
            };
            if places[node.place.node].replace(given.len()).is_some() {
                return Err(Error::user("an input of the model is given twice"));
            }
            given.push(self.inputs[*index].clone());
        }
        let mut kept = Kept::default();
        for (index, made) in self
            .nodes
            .iter()
            .enumerate()
            .filter(|&(index, _)| needed[index])
        {
            match made {
                Made::Call(call) => {
                    places[index] = Some(given.len() + kept.calls.len());
                    kept.push(call, &places, &self.layers)?;
                }
                Made::Input(input) if places[index].is_none() => {
                    let name = self.inputs[*input]
                        .name
                        .as_deref()
                        .unwrap_or("without name");
                    return Err(Error::user(format!(
                        "an output depends on input {input} ({name}), which is not among the model's inputs"
                    )));
                }
                Made::Input(_) => {}
            }
        }
        let outputs = outputs.iter().map(|node| settled(&places, node.place));
        let model = Model::build(Plan {
            name: self.name.clone(),
            inputs: given,
            outputs: outputs.collect::<Result<_>>()?,
            layers: kept.layers,
            calls: kept.calls,
            of_keras: None,
        })?;
        model.check_names()?;
        Ok(model)
    }

    fn node(&mut self, made: Made) -> Node {
        self.nodes.push(made);
        let node = self.nodes.len() - 1;
        Node {
            place: Place { node, output: 0 },
        }
    }

    /// Which nodes the outputs depend on. Nodes depend on earlier ones alone, so one pass backwards finds them.
    fn needed(&self, outputs: &[Node]) -> Result<Vec<bool>> {
        let mut needed = vec![false; self.nodes.len()];
        for node in outputs {
            *needed.get_mut(node.place.node).ok_or_else(foreign)? = true;
        }
        for index in (0..self.nodes.len()).rev() {
            if let (true, Made::Call(call)) = (needed[index], &self.nodes[index]) {
                for place in &call.inputs {
                    if place.node >= index {
                        return Err(foreign());
                    }
                    needed[place.node] = true;
                }
            }
        }
        Ok(needed)
    }
}

fn foreign() -> Error {
    Error::user("a node or layer belongs to another network")
}

fn settled(places: &[Option<usize>], place: Place) -> Result<Place> {
    let node = places.get(place.node).copied().flatten();
    let node = node.ok_or_else(foreign)?;
    Ok(Place { node, ..place })
}

/// The layers and calls that outputs need, layers numbered anew.
#[derive(Default)]
struct Kept {
    layers: Vec<LayerSpec>,
    numbers: std::collections::HashMap<usize, usize>,
    calls: Vec<Call>,
}

impl Kept {
    fn push(&mut self, call: &Call, places: &[Option<usize>], layers: &[LayerSpec]) -> Result<()> {
        let spec = layers.get(call.layer).ok_or_else(foreign)?;
        let next = self.layers.len();
        let layer = *self.numbers.entry(call.layer).or_insert(next);
        if layer == next {
            self.layers.push(spec.clone());
        }
        let inputs = call.inputs.iter().map(|&place| settled(places, place));
        let inputs = inputs.collect::<Result<_>>()?;
        self.calls.push(Call { layer, inputs });
        Ok(())
    }
}
