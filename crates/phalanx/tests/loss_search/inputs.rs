//! The numbers of a case, and a program of them that is interpreted.

use phalanx_graph::{Graph, HostTensor, Tensor};
use phalanx_testkit::{Array, Interpreter};
use serde_json::Value;

/// What a loss or a metric is given.
pub(crate) struct Inputs {
    graph: Graph,
    given: Vec<HostTensor>,
    pub(crate) y_true: Tensor,
    pub(crate) y_pred: Tensor,
    pub(crate) weight: Option<Tensor>,
}

impl Inputs {
    /// The inputs of a loss, or of a batch of a metric.
    pub(crate) fn new(case: &Value) -> Self {
        let graph = Graph::default();
        let mut given = Vec::new();
        let mut parameter = |field: &str| {
            let value = array(&case[field])?;
            let tensor = graph.parameter(field, value.shape().clone());
            given.push(value);
            Some(tensor)
        };
        let y_true = parameter("y_true").unwrap();
        let y_pred = parameter("y_pred").unwrap();
        let weight = parameter("sample_weight");
        Self {
            graph,
            given,
            y_true,
            y_pred,
            weight,
        }
    }

    /// The numbers of tensors that were made of the inputs.
    pub(crate) fn run(self, outputs: &[Tensor]) -> Result<Vec<Vec<f64>>, String> {
        let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("y", output)).collect();
        let program = self
            .graph
            .finish(&named)
            .map_err(|error| error.to_string())?;
        let places: Vec<usize> = (0..outputs.len()).collect();
        let found = Interpreter::new(&program).run(&[self.given], &places)?;
        let floats = |array: &Array| match array {
            Array::Floats(numbers) => numbers.clone(),
            Array::Ints(numbers) => numbers.iter().map(|&number| number as f64).collect(),
        };
        Ok(found[0].iter().map(floats).collect())
    }
}

fn array(array: &Value) -> Option<HostTensor> {
    let dims = numbers(array.get("dims")?);
    let dims: Vec<usize> = dims.into_iter().map(|dim| dim as usize).collect();
    let values = numbers(&array["values"]);
    Some(match array["dtype"].as_str().unwrap() {
        "i32" => {
            let values: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
            HostTensor::new(dims, &values)
        }
        _ => HostTensor::new(dims, &values),
    })
}

/// The numbers of a list; NaN for null.
pub(crate) fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().unwrap().iter();
    list.map(|number| number.as_f64().unwrap_or(f64::NAN))
        .collect()
}
