//! A model as nodes and the edges between them, for those who draw it.

use super::layer::Body;
use super::model::{Model, Place};

/// A node of the drawing: an input, or one use of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiagramNode {
    /// Its name, with the names of the models around it before it: `encoder/dense`.
    pub(crate) name: String,
    /// What it is, such as `dense`.
    pub(crate) kind: String,
    /// The names of the nodes whose results it takes.
    pub(crate) inputs: Vec<String>,
    /// The dims of its results without the batch.
    pub(crate) shapes: Vec<Vec<usize>>,
}

impl Model {
    /// Its inputs and the uses of its layers, also of models within it, each after what it takes.
    pub(crate) fn diagram(&self) -> Vec<DiagramNode> {
        let mut nodes = Vec::new();
        let inputs = self.inputs.iter().map(|input| {
            nodes.push(DiagramNode {
                name: input.name.clone(),
                kind: "input".into(),
                inputs: Vec::new(),
                shapes: vec![input.shape.dims.clone()],
            });
            input.name.clone()
        });
        let inputs = inputs.collect();
        self.draw("", inputs, &mut nodes);
        nodes
    }

    /// Adds the uses of the layers, given the nodes of the inputs; returns the nodes of the outputs.
    fn draw(&self, prefix: &str, inputs: Vec<String>, nodes: &mut Vec<DiagramNode>) -> Vec<String> {
        // What each node's results are results of in the drawing.
        let mut drawn: Vec<Vec<String>> = inputs.into_iter().map(|name| vec![name]).collect();
        let mut uses = vec![0; self.layers.len()];
        for (index, call) in self.calls.iter().enumerate() {
            let layer = &self.layers[call.layer];
            let name = match uses[call.layer] {
                0 => format!("{prefix}{}", layer.name),
                number => format!("{prefix}{}_use_{}", layer.name, number + 1),
            };
            uses[call.layer] += 1;
            let inputs = sources(&drawn, &call.inputs);
            drawn.push(match &layer.body {
                Body::Model(inner) => inner.draw(&format!("{name}/"), inputs, nodes),
                Body::Layer { .. } => {
                    let dims = |shape: &phalanx_graph::Shape| {
                        shape.dims.get(1..).unwrap_or_default().to_vec()
                    };
                    nodes.push(DiagramNode {
                        name: name.clone(),
                        kind: layer.body.kind().to_owned(),
                        inputs,
                        shapes: self.shapes[index].iter().map(dims).collect(),
                    });
                    vec![name; self.shapes[index].len().max(1)]
                }
            });
        }
        sources(&drawn, &self.outputs)
    }
}

fn sources(drawn: &[Vec<String>], places: &[Place]) -> Vec<String> {
    let name = |place: &Place| drawn.get(place.node)?.get(place.output).cloned();
    places.iter().filter_map(name).collect()
}
