//! The order in which Keras runs the calls of a functional model, which decides who is given a mask that an attention takes off a value.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::read_network::node;

/// What the calls of a model take.
#[derive(Default)]
pub(super) struct CallGraph<'a> {
    /// By the call that makes a value: its layer, and the calls and inputs whose values it takes.
    calls: HashMap<String, (&'a str, Vec<&'a str>)>,
}

impl<'a> CallGraph<'a> {
    /// Adds a call by its name; `inputs` are values.
    pub(super) fn add(
        &mut self,
        call: String,
        layer: &'a str,
        inputs: impl Iterator<Item = &'a String>,
    ) {
        let inputs = inputs.map(|value| node(value)).collect();
        self.calls.insert(call, (layer, inputs));
    }

    /// The calls that lead to the outputs, and inputs, as Keras runs them (`map_graph` in its `ops/function.py`): by their distance to an
    /// output, the furthest first. Those of one distance are in the order in which a walk from the outputs backwards sees them first;
    /// all calls of a layer have at least the distance of the ones that the walk has seen before.
    pub(super) fn run_order(&self, outputs: &'a [String]) -> Vec<&'a str>
    where
        Self: 'a,
    {
        let mut depths: Vec<(&str, usize)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut of_layers: HashMap<&str, usize> = HashMap::new();
        let mut deepen = |call: &'a str, depth: usize| {
            let place = *places.entry(call).or_insert(depths.len());
            if place == depths.len() {
                depths.push((call, 0));
            }
            let known = &mut depths[place].1;
            *known = depth.max(*known);
            *known
        };
        for call in self.topological(outputs).into_iter().rev() {
            let (layer, inputs) = match self.calls.get(call) {
                Some((layer, inputs)) => (*layer, &inputs[..]),
                None => (call, &[][..]),
            };
            let of_layer = of_layers.entry(layer).or_default();
            let depth = deepen(call, *of_layer);
            *of_layer = depth;
            for input in inputs {
                deepen(input, depth + 1);
            }
        }
        depths.sort_by_key(|&(_, depth)| Reverse(depth));
        depths.into_iter().map(|(call, _)| call).collect()
    }

    /// The calls that lead to the outputs, each after those that it takes values of.
    fn topological(&self, outputs: &'a [String]) -> Vec<&'a str>
    where
        Self: 'a,
    {
        let mut order = Vec::new();
        let mut seen: HashSet<&str> = HashSet::new();
        for output in outputs {
            // Not by recursion: files are as deep as they like.
            let mut path = Vec::new();
            let enter = |call| (call, 0);
            if seen.insert(node(output)) {
                path.push(enter(node(output)));
            }
            while let Some((call, next)) = path.last_mut() {
                let inputs = self.calls.get(*call).map(|(_, inputs)| &inputs[..]);
                match inputs.and_then(|inputs| inputs.get(*next)) {
                    Some(input) => {
                        *next += 1;
                        if seen.insert(input) {
                            path.push(enter(input));
                        }
                    }
                    None => {
                        order.push(*call);
                        path.pop();
                    }
                }
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(calls: &[(&str, &[&str])], outputs: &[&str]) -> Vec<String> {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let calls: Vec<(&str, Vec<String>)> = calls.iter().map(|(c, i)| (*c, owned(i))).collect();
        let outputs = owned(outputs);
        let mut graph = CallGraph::default();
        for (call, inputs) in &calls {
            let layer = call.split(':').next().unwrap();
            graph.add((*call).to_owned(), layer, inputs.iter());
        }
        let order = graph.run_order(&outputs);
        order.into_iter().map(str::to_owned).collect()
    }

    /// What Keras 3.15 has in `_nodes_by_depth` of these models.
    #[test]
    fn calls_run_as_in_keras() {
        let branches: &[(&str, &[&str])] = &[
            ("a", &["x", "x"]),
            ("b", &["x", "x"]),
            ("c", &["a"]),
            ("d", &["b"]),
            ("sum", &["c", "d"]),
        ];
        let expected = ["x", "b", "a", "c", "d", "sum"];
        assert_eq!(order(branches, &["sum"]), expected);
        let shared: &[(&str, &[&str])] = &[
            ("a", &["x"]),
            ("b", &["a"]),
            ("a:1", &["b"]),
            ("c", &["x"]),
            ("sum", &["a:1", "c"]),
        ];
        let expected = ["x", "a", "b", "a:1", "c", "sum"];
        assert_eq!(order(shared, &["sum"]), expected);
    }
}
