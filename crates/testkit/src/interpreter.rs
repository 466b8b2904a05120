//! An interpreter of programs in f64: a plain loop per op.

use phalanx_graph::{HostTensor, Program};

/// A tensor of the interpreter: floats of every type as f64, integers and booleans as i64.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Elements of a floating-point type.
    Floats(Vec<f64>),
    /// Elements of an integer or boolean type.
    Ints(Vec<i64>),
}

/// A value and its derivative along one direction; integers have no derivative.
#[derive(Clone, Debug, PartialEq)]
pub struct Dual {
    /// The value.
    pub value: Array,
    /// Its derivative, as many elements as the value; empty where it is zero or the value is not floating-point.
    pub tangent: Vec<f64>,
}

/// Runs a program on the host, all replicas in step.
pub struct Interpreter<'a> {
    program: &'a Program,
    noise: Option<(f64, u64)>,
}

impl<'a> Interpreter<'a> {
    /// An interpreter without rounding.
    #[must_use]
    pub const fn new(program: &'a Program) -> Self {
        Self {
            program,
            noise: None,
        }
    }

    /// Adds to each result of an inexact op a random error, at most `size` relative to the op's scale.
    #[must_use]
    pub const fn with_noise(mut self, size: f64, seed: u64) -> Self {
        self.noise = Some((size, seed));
        self
    }

    /// The outputs at the given positions, for each replica, from the inputs of each replica.
    pub fn run(
        &self,
        inputs: &[Vec<HostTensor>],
        outputs: &[usize],
    ) -> Result<Vec<Vec<Array>>, String> {
        let _ = (self.program, self.noise, inputs, outputs);
        Err("not written yet".into())
    }

    /// The outputs and their derivatives along `tangents`: for each replica, per parameter, elements or none.
    pub fn run_with_tangents(
        &self,
        inputs: &[Vec<HostTensor>],
        tangents: &[Vec<Option<Vec<f64>>>],
        outputs: &[usize],
    ) -> Result<Vec<Vec<Dual>>, String> {
        let _ = (inputs, tangents, outputs);
        Err("not written yet".into())
    }
}
