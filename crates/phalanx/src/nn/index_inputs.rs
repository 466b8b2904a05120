//! Inputs of a model whose numbers are indices into a table.

use std::sync::Arc;

use phalanx_graph::HostTensor;

use super::embedding::Embedding;
use super::layer::{Body, Layer};
use super::model::Model;

/// A table whose rows are looked up by inputs, and by nothing else.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    /// The position of its layer in the model.
    layer: usize,
    /// Its position among the variables.
    pub(crate) variable: usize,
    /// The inputs that are its indices, which are nothing else.
    pub(crate) inputs: Vec<usize>,
    /// The number of rows, and of numbers in each.
    pub(crate) rows: usize,
    pub(crate) width: usize,
}

/// An input whose numbers are indices.
#[derive(Clone, Debug)]
pub(crate) struct IndexInput {
    /// Its position among the inputs.
    pub(crate) input: usize,
    /// The layer that looks them up.
    pub(crate) layer: String,
    /// Its setting that gives the number of indices.
    pub(crate) setting: &'static str,
    /// The number of indices, which begin at 0.
    pub(crate) count: usize,
    /// An index that stands for nothing, if there is one.
    pub(crate) padding: Option<i32>,
}

/// The setting of a layer of indices that gives their number.
fn setting(layer: &dyn Layer) -> &'static str {
    match layer.wrapped().unwrap_or(layer).kind() {
        "category_encoding" => "num_tokens",
        _ => "input_dim",
    }
}

impl Model {
    /// The inputs that a layer uses as indices without a change: the input, the name of the layer, the number of indices,
    /// and an index beyond them that stands for nothing.
    pub(crate) fn index_inputs(&self) -> Vec<IndexInput> {
        let mut found = Vec::new();
        for call in &self.calls {
            let entry = &self.layers[call.layer];
            let (inner, ranges, setting) = match &entry.body {
                Body::Model(model) => (model.index_inputs(), None, ""),
                // The second input of a layer, such as the weights of a bag, is none.
                Body::Layer { layer, .. } => {
                    let range = layer.index_range().filter(|_| !self.is_reversed(call));
                    (Vec::new(), range, setting(&**layer))
                }
            };
            let direct = |input: usize| {
                let node = call.inputs.get(input)?.node;
                (node < self.inputs.len()).then_some(node)
            };
            if let (Some((count, padding)), Some(input)) = (ranges, direct(0)) {
                let layer = entry.name.clone();
                found.push(IndexInput {
                    input,
                    layer,
                    setting,
                    count,
                    padding,
                });
            }
            found.extend(inner.into_iter().filter_map(|index| {
                let layer = format!("{}/{}", entry.name, index.layer);
                Some(IndexInput {
                    input: direct(index.input)?,
                    layer,
                    ..index
                })
            }));
        }
        found
    }

    /// The tables of which a step needs the rows that a batch names, and no others.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let layers = 0..self.layers.len();
        layers.filter_map(|layer| self.table_of(layer)).collect()
    }

    fn table_of(&self, layer: usize) -> Option<Table> {
        let entry = &self.layers[layer];
        let Body::Layer { layer: body, .. } = &entry.body else {
            return None;
        };
        let embedding: Embedding = match body.kind() {
            "embedding" => serde_json::from_value(body.config()).ok()?,
            _ => return None,
        };
        if !embedding.looks_up_alone() {
            return None;
        }
        let (own, others): (Vec<_>, Vec<_>) =
            self.calls.iter().partition(|call| call.layer == layer);
        let direct = |node: usize| (node < self.inputs.len()).then_some(node);
        let inputs = own.iter().map(|call| direct(call.inputs.first()?.node));
        let inputs: Vec<usize> = inputs.collect::<Option<_>>()?;
        let elsewhere = others.iter().flat_map(|call| &call.inputs);
        let elsewhere = elsewhere.chain(&self.outputs);
        let mut elsewhere = elsewhere.map(|place| place.node);
        if inputs.is_empty() || elsewhere.any(|node| inputs.contains(&node)) {
            return None;
        }
        let name = format!("{}/embeddings", entry.name);
        let variable = self.variables.iter().position(|v| v.name == name)?;
        let &[rows, width] = &self.variables[variable].shape.dims[..] else {
            return None;
        };
        self.variables[variable].trainable.then_some(Table {
            layer,
            variable,
            inputs,
            rows,
            width,
        })
    }

    /// The model whose tables have these numbers of rows.
    pub(crate) fn with_table_rows(&self, tables: &[(&Table, usize)]) -> Self {
        let mut model = self.clone();
        for &(table, rows) in tables {
            if let Body::Layer { layer, .. } = &mut model.layers[table.layer].body
                && let Ok(embedding) = serde_json::from_value::<Embedding>(layer.config())
            {
                *layer = Arc::new(embedding.with_rows(rows));
                model.variables[table.variable].shape.dims[0] = rows;
            }
        }
        model
    }

    /// First values of the variables; of these tables a row of zeros that stands for them.
    pub(crate) fn init_without(
        &self,
        tables: &[Table],
        seed: u64,
    ) -> crate::Result<Vec<HostTensor>> {
        let ones: Vec<(&Table, usize)> = tables.iter().map(|table| (table, 1)).collect();
        self.with_table_rows(&ones).init(seed)
    }
}
