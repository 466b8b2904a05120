//! Long short-term memories and gated recurrent units, number by number.

use phalanx_graph::Shape;

use super::machine::take;
use super::noise::Noise;
use super::{Dual, Operand, Outcome};

/// A number and its derivative.
#[derive(Clone, Copy, Default)]
struct DualNumber {
    value: f64,
    slope: f64,
}

impl DualNumber {
    const ONE: Self = Self {
        value: 1.0,
        slope: 0.0,
    };
}

/// Arithmetic with errors.
struct Arithmetic<'a>(&'a Noise);

impl Arithmetic<'_> {
    fn add(&self, a: DualNumber, b: DualNumber) -> DualNumber {
        let (value, slope) = (a.value + b.value, a.slope + b.slope);
        let value = self.0.sum(value, a.value.abs() + b.value.abs());
        DualNumber { value, slope }
    }

    fn mul(&self, a: DualNumber, b: DualNumber) -> DualNumber {
        DualNumber {
            value: self.0.relative(a.value * b.value),
            slope: a.slope * b.value + a.value * b.slope,
        }
    }

    /// The product of all.
    fn product<const N: usize>(&self, factors: [DualNumber; N]) -> DualNumber {
        let all = factors.into_iter();
        all.fold(DualNumber::ONE, |a, b| self.mul(a, b))
    }

    fn minus(&self, a: DualNumber, b: DualNumber) -> DualNumber {
        let (value, slope) = (-b.value, -b.slope);
        self.add(a, DualNumber { value, slope })
    }

    /// The sum of products.
    fn dot(&self, pairs: impl Iterator<Item = (DualNumber, DualNumber)>) -> DualNumber {
        let (mut sum, mut magnitude) = (DualNumber::default(), 0.0);
        for (a, b) in pairs {
            sum.value += a.value * b.value;
            sum.slope += a.slope * b.value + a.value * b.slope;
            magnitude += (a.value * b.value).abs();
        }
        let value = self.0.sum(sum.value, magnitude);
        DualNumber { value, ..sum }
    }

    fn sigmoid(&self, x: DualNumber) -> DualNumber {
        let y = 1.0 / (1.0 + (-x.value).exp());
        DualNumber {
            value: self.0.relative(y),
            slope: y * (1.0 - y) * x.slope,
        }
    }

    fn tanh(&self, x: DualNumber) -> DualNumber {
        let y = x.value.tanh();
        DualNumber {
            value: self.0.relative(y),
            slope: (1.0 - y * y) * x.slope,
        }
    }

    /// `y (1 - y)`, the derivative of a sigmoid that is `y`.
    fn of_sigmoid(&self, y: DualNumber) -> DualNumber {
        self.mul(y, self.minus(DualNumber::ONE, y))
    }

    /// `1 - y^2`, the derivative of a hyperbolic tangent that is `y`.
    fn of_tanh(&self, y: DualNumber) -> DualNumber {
        self.minus(DualNumber::ONE, self.mul(y, y))
    }
}

/// The elements of an operand.
fn numbers(x: &Operand) -> Result<Vec<DualNumber>, String> {
    let values = x.floats()?.iter().enumerate();
    let slope = |i: usize| x.slope().map_or(0.0, |slopes| slopes[i]);
    let each = values.map(|(i, &value)| DualNumber {
        value,
        slope: slope(i),
    });
    Ok(each.collect())
}

fn duals<const N: usize>(results: [Vec<DualNumber>; N], x: &[Operand]) -> Outcome {
    let smooth = x.iter().any(|x| x.slope().is_some());
    let dual = |numbers: Vec<DualNumber>| {
        let values = numbers.iter().map(|number| number.value).collect();
        let slopes = numbers.iter().map(|number| number.slope).collect();
        Dual::floats(values, smooth.then_some(slopes))
    };
    Ok(results.map(dual).into())
}

/// States, cells and gates of each step.
pub(super) fn lstm(x: &[Operand], states: &Shape, noise: &Noise) -> Outcome {
    let [inputs, recurrent, bias, h, c] = take(x)?;
    let (inputs, recurrent) = (numbers(&inputs)?, numbers(&recurrent)?);
    let (bias, first_h, first_c) = (numbers(&bias)?, numbers(&h)?, numbers(&c)?);
    let (math, columns) = (Arithmetic(noise), bias.len());
    let [steps, units] = [states.dims[1], states.dims[2]];
    let count = states.len();
    let mut results = [count, count, inputs.len()].map(|count| vec![DualNumber::default(); count]);
    for place in 0..states.dims[0] * steps {
        let (sequence, first) = (place / steps, place % steps == 0);
        let before = |own: &[DualNumber], all: &[DualNumber]| match first {
            true => own[sequence * units..][..units].to_vec(),
            false => all[(place - 1) * units..][..units].to_vec(),
        };
        let (h, c) = (before(&first_h, &results[0]), before(&first_c, &results[1]));
        let z = |column: usize| {
            let kernel = (0..units).map(|unit| recurrent[unit * columns + column]);
            let product = math.dot(h.iter().copied().zip(kernel));
            let input = math.add(inputs[place * columns + column], bias[column]);
            math.add(input, product)
        };
        for unit in 0..units {
            let z = [0, 1, 2, 3].map(|gate| z(gate * units + unit));
            let [i, f, o] = [z[0], z[1], z[3]].map(|z| math.sigmoid(z));
            let g = math.tanh(z[2]);
            let cell = math.add(math.mul(f, c[unit]), math.mul(i, g));
            results[0][place * units + unit] = math.mul(o, math.tanh(cell));
            results[1][place * units + unit] = cell;
            for (gate, value) in [i, f, g, o].into_iter().enumerate() {
                results[2][place * columns + gate * units + unit] = value;
            }
        }
    }
    duals(results, x)
}

/// Gradients by the inputs, the first state and the first cells.
pub(super) fn lstm_gradient(x: &[Operand], to_inputs: &Shape, noise: &Noise) -> Outcome {
    let (given, rest) = x.split_at(x.len().min(5));
    let [to_states, recurrent, c, cells, gates] = take(given)?;
    let (to_states, recurrent) = (numbers(&to_states)?, numbers(&recurrent)?);
    let (first_c, cells, gates) = (numbers(&c)?, numbers(&cells)?, numbers(&gates)?);
    let to_cells = rest.first().map(numbers).transpose()?;
    let math = Arithmetic(noise);
    let (steps, columns) = (to_inputs.dims[1], to_inputs.dims[2]);
    let units = columns / 4;
    let mut results =
        [gates.len(), c.value.len(), c.value.len()].map(|count| vec![DualNumber::default(); count]);
    for step in (0..steps).rev() {
        for sequence in 0..to_inputs.dims[0] {
            let place = sequence * steps + step;
            let own = sequence * units..(sequence + 1) * units;
            for unit in 0..units {
                let (at, kept) = (place * units + unit, sequence * units + unit);
                let [i, f, g, o] =
                    [0, 1, 2, 3].map(|gate| gates[place * columns + gate * units + unit]);
                let to_h = math.add(to_states[at], results[1][kept]);
                let mut to_c = results[2][kept];
                if let Some(more) = &to_cells {
                    to_c = math.add(to_c, more[at]);
                }
                let bounded = math.tanh(cells[at]);
                to_c = math.add(to_c, math.product([to_h, o, math.of_tanh(bounded)]));
                let before = match step {
                    0 => first_c[kept],
                    _ => cells[at - units],
                };
                let to_gates = [
                    math.product([to_c, g, math.of_sigmoid(i)]),
                    math.product([to_c, before, math.of_sigmoid(f)]),
                    math.product([to_c, i, math.of_tanh(g)]),
                    math.product([to_h, bounded, math.of_sigmoid(o)]),
                ];
                results[2][kept] = math.mul(to_c, f);
                for (gate, value) in to_gates.into_iter().enumerate() {
                    results[0][place * columns + gate * units + unit] = value;
                }
            }
            let to_z = &results[0][place * columns..][..columns];
            let products = (0..units).map(|unit| {
                let row = &recurrent[unit * columns..][..columns];
                math.dot(to_z.iter().copied().zip(row.iter().copied()))
            });
            let products: Vec<DualNumber> = products.collect();
            results[1][own].copy_from_slice(&products);
        }
    }
    duals(results, x)
}

/// States and gates of each step.
pub(super) fn gru(x: &[Operand], states: &Shape, noise: &Noise) -> Outcome {
    let [inputs, recurrent, bias, h] = take(x)?;
    let (inputs, recurrent) = (numbers(&inputs)?, numbers(&recurrent)?);
    let (bias, first_h) = (numbers(&bias)?, numbers(&h)?);
    let (math, columns) = (Arithmetic(noise), bias.len());
    let [steps, units] = [states.dims[1], states.dims[2]];
    let count = states.len();
    let mut results = [count, 4 * count].map(|count| vec![DualNumber::default(); count]);
    for place in 0..states.dims[0] * steps {
        let h = match place % steps {
            0 => first_h[place / steps * units..][..units].to_vec(),
            _ => results[0][(place - 1) * units..][..units].to_vec(),
        };
        let product = |column: usize| {
            let kernel = (0..units).map(|unit| recurrent[unit * columns + column]);
            math.add(math.dot(h.iter().copied().zip(kernel)), bias[column])
        };
        for unit in 0..units {
            let at = |gate: usize| gate * units + unit;
            let gate = |gate: usize| {
                math.sigmoid(math.add(inputs[place * columns + at(gate)], product(at(gate))))
            };
            let (z, r, inner) = (gate(0), gate(1), product(at(2)));
            let sum = math.add(inputs[place * columns + at(2)], math.mul(r, inner));
            let g = math.tanh(sum);
            let rest = math.mul(math.minus(DualNumber::ONE, z), g);
            results[0][place * units + unit] = math.add(math.mul(z, h[unit]), rest);
            for (gate, value) in [z, r, g, inner].into_iter().enumerate() {
                results[1][place * 4 * units + at(gate)] = value;
            }
        }
    }
    duals(results, x)
}

/// Gradients by the inputs, by the products of the states, and by the first state.
pub(super) fn gru_gradient(x: &[Operand], to_inputs: &Shape, noise: &Noise) -> Outcome {
    let [to_states, recurrent, h, states, gates] = take(x)?;
    let (to_states, recurrent) = (numbers(&to_states)?, numbers(&recurrent)?);
    let (first_h, states, gates) = (numbers(&h)?, numbers(&states)?, numbers(&gates)?);
    let math = Arithmetic(noise);
    let (steps, columns) = (to_inputs.dims[1], to_inputs.dims[2]);
    let units = columns / 3;
    let wide = to_inputs.len();
    let mut results = [wide, wide, first_h.len()].map(|count| vec![DualNumber::default(); count]);
    for step in (0..steps).rev() {
        for sequence in 0..to_inputs.dims[0] {
            let place = sequence * steps + step;
            let mut passed = Vec::new();
            for unit in 0..units {
                let (at, kept) = (place * units + unit, sequence * units + unit);
                let [z, r, g, inner] =
                    [0, 1, 2, 3].map(|gate| gates[(place * 4 + gate) * units + unit]);
                let to_h = math.add(to_states[at], results[2][kept]);
                let before = match step {
                    0 => first_h[kept],
                    _ => states[at - units],
                };
                let to_z = math.product([to_h, math.minus(before, g), math.of_sigmoid(z)]);
                let rest = math.minus(DualNumber::ONE, z);
                let to_g = math.product([to_h, rest, math.of_tanh(g)]);
                let to_r = math.product([to_g, inner, math.of_sigmoid(r)]);
                let last = [to_g, math.mul(to_g, r)];
                for (result, last) in last.into_iter().enumerate() {
                    for (gate, value) in [to_z, to_r, last].into_iter().enumerate() {
                        results[result][place * columns + gate * units + unit] = value;
                    }
                }
                passed.push(math.mul(to_h, z));
            }
            for (unit, passed) in passed.into_iter().enumerate() {
                let row = recurrent[unit * columns..][..columns].iter().copied();
                let own = results[1][place * columns..][..columns].iter().copied();
                let product = math.dot(own.zip(row));
                results[2][sequence * units + unit] = math.add(product, passed);
            }
        }
    }
    duals(results, x)
}
