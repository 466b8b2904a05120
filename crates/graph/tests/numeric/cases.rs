//! Tables of cases: a tensor of a graph beside the values it must have.

use phalanx_graph::{DType, Element, Graph, HostTensor, Program, Shape, Tensor};

use crate::support;

/// Plain numbers on the host, row-major.
#[derive(Clone, Debug)]
pub struct Array {
    pub dims: Vec<usize>,
    pub values: Vec<f64>,
}

impl Array {
    /// The array whose element at each index is `value(index)`.
    pub fn build(dims: &[usize], mut value: impl FnMut(&[usize]) -> f64) -> Self {
        let values = indices(dims).iter().map(|index| value(index)).collect();
        Self {
            dims: dims.to_vec(),
            values,
        }
    }

    pub fn new(dims: &[usize], values: &[f64]) -> Self {
        Self {
            dims: dims.to_vec(),
            values: values.to_vec(),
        }
    }

    pub fn scalar(value: f64) -> Self {
        Self::new(&[], &[value])
    }

    pub fn at(&self, index: &[usize]) -> f64 {
        self.values[flat(&self.dims, index)]
    }

    /// The element, or `outside` where some index leaves the array.
    pub fn at_or(&self, index: &[i64], outside: f64) -> f64 {
        let inside = index
            .iter()
            .zip(&self.dims)
            .all(|(&i, &size)| (0..size as i64).contains(&i));
        if !inside {
            return outside;
        }
        let index: Vec<usize> = index.iter().map(|&i| i as usize).collect();
        self.at(&index)
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self {
            dims: self.dims.clone(),
            values: self.values.iter().map(|&x| f(x)).collect(),
        }
    }
}

impl From<&HostTensor> for Array {
    fn from(tensor: &HostTensor) -> Self {
        Self {
            dims: tensor.dims().to_vec(),
            values: tensor.to_f64(),
        }
    }
}

/// Every index of an array, in row-major order.
pub fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &size in dims {
        let extend = |index: Vec<usize>| {
            (0..size).map(move |i| {
                let mut next = index.clone();
                next.push(i);
                next
            })
        };
        all = all.into_iter().flat_map(extend).collect();
    }
    all
}

pub fn flat(dims: &[usize], index: &[usize]) -> usize {
    index
        .iter()
        .zip(dims)
        .fold(0, |flat, (&i, &size)| flat * size + i)
}

/// Numbers in [-2, 2] that only depend on the dims and the seed, exact in every float type of the tests.
pub fn sample(dtype: DType, dims: &[usize], seed: u32) -> HostTensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9) ^ 0x5EED;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from((state >> 16) % 65) / 16.0 - 2.0
    };
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count).map(|_| next()).collect();
    HostTensor::new(dims, &values).convert(dtype)
}

/// A graph under construction and what its outputs must be.
pub struct Cases {
    pub graph: Graph,
    inputs: Vec<HostTensor>,
    expected: Vec<Expected>,
}

struct Expected {
    name: String,
    tensor: Tensor,
    array: Array,
    tolerance: f64,
}

impl Cases {
    pub fn new() -> Self {
        Self {
            graph: Graph::new(),
            inputs: Vec::new(),
            expected: Vec::new(),
        }
    }

    /// A parameter with its value: constants would be folded by the compiler, which is other code.
    pub fn input(&mut self, value: &HostTensor) -> Tensor {
        let name = format!("in{}", self.inputs.len());
        self.inputs.push(value.clone());
        self.graph.parameter(&name, value.shape().clone())
    }

    pub fn list<T: Element>(&mut self, dims: &[usize], values: &[T]) -> Tensor {
        self.input(&HostTensor::new(dims, values))
    }

    /// A parameter of sampled values, and those values.
    pub fn sample(&mut self, dtype: DType, dims: &[usize]) -> (Tensor, Array) {
        let value = sample(dtype, dims, self.inputs.len() as u32 + 1);
        (self.input(&value), Array::from(&value))
    }

    /// The tensor must have these values, up to `tolerance` relative to `1 + |expected|`; NaN equals NaN.
    pub fn near(&mut self, name: &str, tensor: &Tensor, array: Array, tolerance: f64) {
        self.expected.push(Expected {
            name: name.to_owned(),
            tensor: tensor.clone(),
            array,
            tolerance,
        });
    }

    /// The tensor must have exactly these values.
    pub fn exact(&mut self, name: &str, tensor: &Tensor, array: Array) {
        self.near(name, tensor, array, 0.0);
    }

    pub fn program(&self) -> Program {
        let outputs: Vec<(&str, &Tensor)> = self
            .expected
            .iter()
            .map(|case| (case.name.as_str(), &case.tensor))
            .collect();
        self.graph.finish(&outputs).unwrap()
    }

    /// Compiles and runs all cases and reports every one that is wrong.
    pub fn check(&self) {
        let program = self.program();
        self.compare(&support::run(&program, &self.inputs));
    }

    pub fn compare(&self, results: &[HostTensor]) {
        let wrong: Vec<String> = self
            .expected
            .iter()
            .zip(results)
            .filter_map(|(case, result)| case.mistake(result))
            .collect();
        assert_eq!(results.len(), self.expected.len());
        assert!(
            wrong.is_empty(),
            "{} of {} wrong:\n{}",
            wrong.len(),
            results.len(),
            wrong.join("\n")
        );
    }
}

impl Expected {
    fn mistake(&self, result: &HostTensor) -> Option<String> {
        let inferred = self.tensor.shape();
        if *result.shape() != inferred || inferred.dims != self.array.dims {
            let expected = Shape::new(inferred.dtype, self.array.dims.clone());
            return Some(format!(
                "{}: inferred {inferred}, computed {}, expected {expected}",
                self.name,
                result.shape()
            ));
        }
        let differs =
            |&(_, (got, want)): &(usize, (&f64, &f64))| !close(*got, *want, self.tolerance);
        let got = result.to_f64();
        let pairs = got.iter().zip(&self.array.values).enumerate();
        let wrong: Vec<_> = pairs.filter(differs).collect();
        let (place, (got, want)) = *wrong.first()?;
        Some(format!(
            "{}: {} elements differ, first at {place}: got {got:?}, expected {want:?}",
            self.name,
            wrong.len()
        ))
    }
}

pub fn close(got: f64, want: f64, tolerance: f64) -> bool {
    if got.is_nan() || want.is_nan() {
        return got.is_nan() && want.is_nan();
    }
    got == want || (got - want).abs() <= tolerance * (1.0 + want.abs()) && want.is_finite()
}
