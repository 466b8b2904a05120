//! Networks as plain data, from which models are built and tests are printed.

use std::fmt::Write as _;

use phalanx::Result;
use phalanx::nn::{Input, Model, Network, layer_from_config};
use phalanx_graph::DType;
use serde_json::Value;

use crate::trial::{Source, Trial};

/// A layer: its kind and its settings as in JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Described {
    pub(crate) kind: &'static str,
    pub(crate) settings: Value,
}

/// One use of a layer. Values are numbered: the inputs of the network first, then what each use gives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Use {
    pub(crate) layer: usize,
    pub(crate) inputs: Vec<usize>,
}

/// A network with what it is tried with; its output is that of the last use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    /// The dims of an example of each input.
    pub(crate) inputs: Vec<Vec<usize>>,
    pub(crate) layers: Vec<Described>,
    pub(crate) uses: Vec<Use>,
    pub(crate) trial: Trial,
}

impl Spec {
    /// Whether steps of an input may be padding.
    pub(crate) fn is_padded(&self) -> bool {
        let is_padded = |source: &Source| {
            matches!(source, Source::Padded | Source::Tokens { padded: true, .. })
        };
        self.trial.sources.iter().any(is_padded)
    }

    /// The model.
    pub(crate) fn model(&self) -> Result<Model> {
        let mut net = Network::new();
        let inputs = self.inputs.iter().zip(&self.trial.sources);
        let inputs: Vec<_> = inputs
            .map(|(dims, source)| net.input(Input::new(dims.clone()).dtype(source.dtype())))
            .collect();
        let mut layers = Vec::new();
        for layer in &self.layers {
            layers.push(net.layer(layer_from_config(layer.kind, &layer.settings)?));
        }
        let mut values = inputs.clone();
        for used in &self.uses {
            let given: Vec<_> = used.inputs.iter().map(|&value| values[value]).collect();
            values.push(net.call(layers[used.layer], &given));
        }
        net.build(&inputs, &values[values.len() - 1..])
    }

    /// The dims of what the last use gives, without the batch.
    pub(crate) fn output(&self) -> Option<Vec<usize>> {
        let model = self.model().ok()?;
        Some(model.outputs()[0].dims.clone())
    }

    /// Adds a layer and a use of it, if it takes these values.
    pub(crate) fn with(&self, layer: Described, inputs: &[usize]) -> Option<(Self, Vec<usize>)> {
        let mut more = self.clone();
        more.layers.push(layer);
        more.using(self.layers.len(), inputs)
    }

    /// Adds a use of a layer that is there, if it takes these values.
    pub(crate) fn using(mut self, layer: usize, inputs: &[usize]) -> Option<(Self, Vec<usize>)> {
        let inputs = inputs.to_vec();
        self.uses.push(Use { layer, inputs });
        let dims = self.output()?;
        Some((self, dims))
    }

    /// The same without the uses that the last does not need, without layers and inputs that are not used.
    pub(crate) fn pruned(&self) -> Option<Self> {
        let first = self.inputs.len();
        let mut needed = vec![false; first + self.uses.len()];
        *needed.last_mut()? = true;
        for (number, used) in self.uses.iter().enumerate().rev() {
            if needed[first + number] {
                for &input in &used.inputs {
                    needed[input] = true;
                }
            }
        }
        let mut place = 0;
        let places: Vec<usize> = (needed.iter())
            .map(|&is_needed| {
                place += usize::from(is_needed);
                place.wrapping_sub(1)
            })
            .collect();
        let mut pruned = Self {
            inputs: Vec::new(),
            layers: Vec::new(),
            uses: Vec::new(),
            trial: Trial {
                sources: Vec::new(),
                ..self.trial.clone()
            },
        };
        for input in (0..first).filter(|&input| needed[input]) {
            pruned.inputs.push(self.inputs[input].clone());
            pruned.trial.sources.push(self.trial.sources[input]);
        }
        let mut numbers = vec![None; self.layers.len()];
        for (_, used) in (self.uses.iter().enumerate()).filter(|(number, _)| needed[first + number])
        {
            let layer = *numbers[used.layer].get_or_insert_with(|| {
                pruned.layers.push(self.layers[used.layer].clone());
                pruned.layers.len() - 1
            });
            let inputs = used.inputs.iter().map(|&value| places[value]).collect();
            pruned.uses.push(Use { layer, inputs });
        }
        (!pruned.inputs.is_empty() && !pruned.uses.is_empty()).then_some(pruned)
    }

    /// A test of this network, to be added to the regressions.
    pub(crate) fn test(&self, name: &str) -> String {
        let mut text = format!("#[test]\nfn {name}() {{\n    let mut net = Network::new();\n");
        let mut line = |text_of: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "    {text_of}");
        };
        for (number, (dims, source)) in self.inputs.iter().zip(&self.trial.sources).enumerate() {
            let dtype = match source.dtype() {
                DType::I32 => ".dtype(DType::I32)",
                _ => "",
            };
            line(format_args!(
                "let x{number} = net.input(Input::new({dims:?}){dtype});"
            ));
        }
        for (number, layer) in self.layers.iter().enumerate() {
            line(format_args!(
                "let layer{number} = net.layer(layer({:?}, &json!({})));",
                layer.kind, layer.settings
            ));
        }
        let value = |number: &usize| format!("x{number}");
        let mut last = self.inputs.len();
        for used in &self.uses {
            let inputs: Vec<String> = used.inputs.iter().map(value).collect();
            let (layer, inputs) = (used.layer, inputs.join(", "));
            line(format_args!(
                "let x{last} = net.call(layer{layer}, &[{inputs}]);"
            ));
            last += 1;
        }
        let inputs: Vec<String> = (0..self.inputs.len()).map(|input| value(&input)).collect();
        let (inputs, last) = (inputs.join(", "), last - 1);
        line(format_args!(
            "let model = net.build(&[{inputs}], &[x{last}]).unwrap();"
        ));
        line(format_args!("check(&model, &{});", self.trial.code()));
        text + "}\n"
    }

    /// The kinds of its layers, for a line of a log.
    pub(crate) fn line(&self) -> String {
        let kinds = self.uses.iter().map(|used| self.layers[used.layer].kind);
        format!(
            "{:?} {} rows {} replicas {:?}: {}",
            self.inputs,
            self.trial.rows,
            self.trial.replicas,
            self.trial.aim,
            kinds.collect::<Vec<_>>().join(" ")
        )
    }
}

/// The source of an input of these dims with which networks begin.
pub(crate) const fn is_tokens(source: Source) -> bool {
    matches!(source, Source::Tokens { .. })
}
