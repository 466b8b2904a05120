//! An interpreter of programs in f64: a plain loop per op.
//!
//! It shares neither the lowering nor the derivatives of the compiler, so that what both find is right. Floats of every
//! type are computed in f64 and never rounded; integers wrap to their width. Replicas go in step, node by node. With
//! tangents, every value carries its derivative along one direction (dual numbers), by the conventions that
//! `phalanx_graph::gradients` documents for ties.

mod collectives;
mod contract;
mod convolution;
mod elementwise;
mod kernels;
mod loops;
mod machine;
mod moving;
mod noise;
mod normal;
mod numbers;
mod random;
mod recurrent;
mod window;

use std::rc::Rc;

use phalanx_graph::{HostTensor, Program, Shape, Value};

use machine::{Machine, Plan};
use noise::Noise;

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
    noise: Noise,
}

/// The values of one replica: outputs of a node, operands of one, arguments of a graph.
type Tensors = Vec<Rc<Dual>>;

/// What an op is given.
#[derive(Clone, Copy)]
struct Operand<'a> {
    shape: &'a Shape,
    value: &'a Array,
    /// Empty where it is zero.
    tangent: &'a [f64],
}

/// What an op makes of its operands, or what is wrong with them.
type Outcome = Result<Vec<Dual>, String>;

impl<'a> Interpreter<'a> {
    /// An interpreter without rounding.
    #[must_use]
    pub const fn new(program: &'a Program) -> Self {
        Self {
            program,
            noise: Noise::NONE,
        }
    }

    /// Adds to each result of an inexact op a random error, at most `size` relative to the op's scale.
    ///
    /// The error is a function of the seed and the exact result, as rounding is: the same computation errs the same way
    /// on every replica and wherever it is repeated. Tangents have no errors of their own. Ops that only choose, move or
    /// compare get none.
    #[must_use]
    pub const fn with_noise(mut self, size: f64, seed: u64) -> Self {
        self.noise = Noise { size, seed };
        self
    }

    /// The outputs at the given positions, for each replica, from the inputs of each replica.
    ///
    /// # Errors
    /// Inputs that are not the program's, and ops that have no meaning here, with the op's name.
    pub fn run(
        &self,
        inputs: &[Vec<HostTensor>],
        outputs: &[usize],
    ) -> Result<Vec<Vec<Array>>, String> {
        let none: Vec<Vec<Option<Vec<f64>>>> = vec![Vec::new(); inputs.len()];
        let found = self.run_with_tangents(inputs, &none, outputs)?;
        Ok(values_of(found))
    }

    /// Like [`run`](Self::run), from numbers that need not be representable in the types of the parameters.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_arrays(
        &self,
        inputs: &[Vec<Array>],
        outputs: &[usize],
    ) -> Result<Vec<Vec<Array>>, String> {
        let plain = |value: &Array| Dual::from(value.clone());
        let arguments = inputs.iter().map(|list| list.iter().map(plain).collect());
        let found = self.run_duals(arguments.collect(), outputs)?;
        Ok(values_of(found))
    }

    /// The outputs and their derivatives along `tangents`: for each replica, per parameter, elements or none.
    ///
    /// Parameters beyond the end of a list of tangents have none.
    ///
    /// # Errors
    /// As [`run`](Self::run); and ops without derivative whose operands have a tangent.
    pub fn run_with_tangents(
        &self,
        inputs: &[Vec<HostTensor>],
        tangents: &[Vec<Option<Vec<f64>>>],
        outputs: &[usize],
    ) -> Result<Vec<Vec<Dual>>, String> {
        if tangents.len() != inputs.len() {
            let (got, expected) = (tangents.len(), inputs.len());
            return Err(format!("{got} lists of tangents for {expected} replicas"));
        }
        let arguments = inputs.iter().zip(tangents).map(|(list, tangents)| {
            let dual = |(i, input): (usize, &HostTensor)| Dual {
                value: Array::from(input),
                tangent: tangents.get(i).cloned().flatten().unwrap_or_default(),
            };
            list.iter().enumerate().map(dual).collect()
        });
        self.check_shapes(inputs)?;
        self.run_duals(arguments.collect(), outputs)
    }

    fn check_shapes(&self, inputs: &[Vec<HostTensor>]) -> Result<(), String> {
        let wrong = inputs.iter().find_map(|list| {
            let mut pairs = list.iter().zip(&self.program.parameters);
            pairs.find(|(input, parameter)| *input.shape() != parameter.shape)
        });
        match wrong {
            None => Ok(()),
            Some((input, parameter)) => Err(format!(
                "parameter `{}` is {}, got {}",
                parameter.name,
                parameter.shape,
                input.shape()
            )),
        }
    }

    fn run_duals(
        &self,
        arguments: Vec<Vec<Dual>>,
        outputs: &[usize],
    ) -> Result<Vec<Vec<Dual>>, String> {
        let program = self.program;
        check_arguments(program, &arguments)?;
        let value = |&place: &usize| {
            let found = program.outputs.get(place).map(|(_, value)| *value);
            found.ok_or_else(|| format!("output {place} of {}", program.outputs.len()))
        };
        let wanted: Vec<Value> = outputs.iter().map(value).collect::<Result<_, _>>()?;
        let arguments: Vec<Tensors> = arguments
            .into_iter()
            .map(|list| list.into_iter().map(Rc::new).collect())
            .collect();
        let ranks: Vec<usize> = (0..program.replicas).collect();
        let machine = Machine {
            noise: self.noise,
            replicas: program.replicas,
        };
        let plan = Plan::new(&program.nodes, &wanted);
        let found = machine.run(&plan, &arguments, &ranks)?;
        let owned = |list: Tensors| list.iter().map(|dual| (**dual).clone()).collect();
        Ok(found.into_iter().map(owned).collect())
    }
}

fn values_of(found: Vec<Vec<Dual>>) -> Vec<Vec<Array>> {
    let values = |list: Vec<Dual>| list.into_iter().map(|dual| dual.value).collect();
    found.into_iter().map(values).collect()
}

fn check_arguments(program: &Program, arguments: &[Vec<Dual>]) -> Result<(), String> {
    if arguments.len() != program.replicas {
        let (got, expected) = (arguments.len(), program.replicas);
        return Err(format!("{got} lists of inputs for {expected} replicas"));
    }
    for list in arguments {
        if list.len() != program.parameters.len() {
            let (got, expected) = (list.len(), program.parameters.len());
            return Err(format!("{got} inputs for {expected} parameters"));
        }
        for (dual, parameter) in list.iter().zip(&program.parameters) {
            let (shape, count) = (&parameter.shape, dual.value.len());
            let fits = count == shape.len() && dual.value.is_floats() == shape.dtype.is_float();
            let tangent = dual.tangent.len();
            if !fits || (tangent != 0 && (tangent != count || !shape.dtype.is_float())) {
                return Err(format!(
                    "parameter `{}` is {shape}, got {count} elements with {tangent} derivatives",
                    parameter.name
                ));
            }
        }
    }
    Ok(())
}
