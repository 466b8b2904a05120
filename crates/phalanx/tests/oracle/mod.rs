//! Golden records of Keras, and programs of many small cases run together.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

#[path = "../any_device/mod.rs"]
pub mod any_device;

use std::path::Path;

use phalanx::engine::{CompileRequest, Compiled, Engine, EngineOptions};
use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor};
use serde_json::Value;

/// The records of a file of `tests/golden/keras`.
pub fn records(file: &str) -> Vec<Value> {
    records_of(file, "records")
}

/// The records of a file that are under a key.
pub fn records_of(file: &str, key: &str) -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/keras");
    let text = std::fs::read_to_string(root.join(file)).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    match document[key].take() {
        Value::Array(records) => records,
        other => panic!("{file}: {key} are {other}"),
    }
}

/// The name of a record.
pub fn name(record: &Value) -> &str {
    record["name"].as_str().unwrap()
}

/// An array of a record, or `None` for null.
pub fn array(value: &Value) -> Option<HostTensor> {
    let dims: Vec<usize> = numbers(value.get("shape")?)
        .map(|dim| dim as usize)
        .collect();
    let data = numbers(&value["data"]);
    let tensor = match value["dtype"].as_str().unwrap() {
        "f32" => HostTensor::new(dims, &data.map(|x| x as f32).collect::<Vec<_>>()),
        "i32" => HostTensor::new(dims, &data.map(|x| x as i32).collect::<Vec<_>>()),
        "bool" => {
            HostTensor::new(dims, &data.map(|x| x as i32).collect::<Vec<_>>()).convert(DType::Bool)
        }
        other => panic!("dtype {other}"),
    };
    Some(tensor)
}

/// The arrays of a list of a record.
pub fn arrays(list: &Value) -> Vec<HostTensor> {
    let list = list.as_array().unwrap().iter();
    list.map(|value| array(value).unwrap()).collect()
}

fn numbers(list: &Value) -> impl Iterator<Item = f64> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap())
}

/// `TopKAccuracy` as `top_k_accuracy`.
pub fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for (i, letter) in name.char_indices() {
        if letter.is_uppercase() && i > 0 {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// A program under construction from many cases: their inputs and outputs in order.
#[derive(Default)]
pub struct Batch {
    pub graph: Graph,
    inputs: Vec<HostTensor>,
    parameters: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Batch {
    /// An input with its first value.
    pub fn input(&mut self, value: HostTensor) -> Tensor {
        let name = format!("x{}", self.inputs.len());
        let tensor = self.graph.parameter(&name, value.shape().clone());
        self.inputs.push(value);
        self.parameters.push(tensor.clone());
        tensor
    }

    /// The input that has this value already, else a new one: what cases share is compiled once.
    pub fn shared(&mut self, value: HostTensor) -> Tensor {
        let same =
            |input: &HostTensor| input.shape() == value.shape() && input.bytes() == value.bytes();
        match self.inputs.iter().position(same) {
            Some(place) => self.parameters[place].clone(),
            None => self.input(value),
        }
    }

    /// Adds a result.
    pub fn output(&mut self, tensor: &Tensor) {
        self.outputs.push(tensor.clone());
    }

    /// Compiles the program, ready to be run on its inputs.
    pub fn compile(self, engine: &Engine) -> Case {
        let named: Vec<(&str, &Tensor)> = self.outputs.iter().map(|t| ("y", t)).collect();
        let program = self.graph.finish(&named).expect("the cases build");
        let compiled = engine
            .compile(CompileRequest::new("oracle", &program))
            .unwrap();
        Case {
            compiled,
            inputs: self.inputs,
            shapes: self.outputs.iter().map(Tensor::shape).collect(),
        }
    }

    /// The results, for programs that are run once.
    pub fn run(self, engine: &Engine) -> Vec<HostTensor> {
        self.compile(engine).run(engine)
    }
}

/// A compiled [`Batch`].
pub struct Case {
    compiled: Compiled,
    pub inputs: Vec<HostTensor>,
    shapes: Vec<Shape>,
}

impl Case {
    /// The results for the present inputs.
    pub fn run(&self, engine: &Engine) -> Vec<HostTensor> {
        let buffers: Vec<_> = self
            .inputs
            .iter()
            .map(|x| engine.put(0, x).unwrap())
            .collect();
        let arguments: Vec<_> = buffers.iter().collect();
        let results = self.compiled.run(&[&arguments]).unwrap().0.swap_remove(0);
        let shapes = results.iter().zip(&self.shapes);
        shapes
            .map(|(buffer, shape)| engine.get(buffer, shape).unwrap())
            .collect()
    }
}

/// The CPU, or what `PHALANX_TEST_PLATFORM` names, without a compile cache.
pub fn engine() -> Engine {
    let options = EngineOptions {
        compile_cache: false,
        ..any_device::options()
    };
    Engine::new(&options).unwrap()
}

/// `count` numbers in [-1, 1): a 32-bit mix of a counter and of the FNV-1a hash of a name.
pub fn uniform(name: &str, count: usize) -> impl Iterator<Item = f64> {
    let mix = |seed: u32, byte: u8| (seed ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let seed = name.bytes().fold(0x811C_9DC5, mix);
    (0..count as u32).map(move |i| {
        let mut h = i.wrapping_mul(0x9E37_79B9).wrapping_add(seed);
        h = (h ^ (h >> 16)).wrapping_mul(0x85EB_CA6B);
        h = (h ^ (h >> 13)).wrapping_mul(0xC2B2_AE35);
        h ^= h >> 16;
        f64::from(h >> 8) / f64::from(1 << 23) - 1.0
    })
}

/// The value of a variable, `layer/variable`, by the formula of `make_models.py`.
pub fn formula_value(path: &str, dims: &[usize]) -> HostTensor {
    let (layer, kind) = path.split_once('/').unwrap();
    let fan_in: usize = match dims.len() {
        4 if layer.contains("depthwise") => dims[..2].iter().product(),
        _ => dims[..dims.len().saturating_sub(1)].iter().product(),
    };
    let last = layer.ends_with("_3_bn") || layer.ends_with("project_BN");
    let scaled = |u: f64| match kind {
        "kernel" => u * (6.0 / fan_in as f64).sqrt(),
        "gamma" => (1.0 + 0.2 * u) * if last { 0.2 } else { 0.5 },
        "beta" if layer.ends_with("project_BN") => 0.1 * u,
        "beta" if last => 0.6 + 0.1 * u,
        "beta" if u < -0.75 => -1.5 + 0.1 * u,
        "beta" => 1.5 + 0.1 * u,
        "moving_variance" | "variance" => 1.0 + 0.5 * u,
        _ => 0.1 * u,
    };
    let values = uniform(path, dims.iter().product());
    let values: Vec<f32> = values.map(|u| scaled(u) as f32).collect();
    HostTensor::new(dims, &values)
}
