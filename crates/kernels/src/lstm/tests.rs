//! Against loops in f64, finite differences of which show that the gradient is one.

use super::*;

pub(crate) const CASES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [1, 7, 128],
    [2, 3, 5],
    [5, 4, 16],
    [7, 3, 33],
    [9, 2, 64],
    [13, 5, 8],
    [16, 2, 100],
    [67, 2, 17],
];

/// What a call is given.
#[derive(Clone)]
pub(crate) struct Given {
    sizes: Sizes,
    x: Vec<f32>,
    recurrent: Vec<f32>,
    bias: Vec<f32>,
    h: Vec<f32>,
    c: Vec<f32>,
    /// Weights of the states and of the cells in the number that is differentiated.
    to_hs: Vec<f32>,
    to_cs: Vec<f32>,
}

/// States, cells and gates.
pub(crate) type Made = [Vec<f32>; 3];

/// Numbers with the density of a bell, by the sum of twelve equal chances.
pub(crate) fn gaussian(count: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut chance = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let mut bell = || (0..12).map(|_| chance()).sum::<f32>() - 6.0;
    (0..count).map(|_| bell() * scale).collect()
}

impl Given {
    pub(crate) fn new([batch, steps, units]: [usize; 3]) -> Self {
        let sizes = Sizes {
            batch,
            steps,
            units,
        };
        let (state, sequence) = (batch * units, batch * steps * units);
        let spread = 1.0 / (units as f32).sqrt();
        Self {
            sizes,
            x: gaussian(4 * sequence, 1, 1.0),
            recurrent: gaussian(4 * units * units, 2, spread),
            bias: gaussian(4 * units, 3, 0.5),
            h: gaussian(state, 4, 0.5),
            c: gaussian(state, 5, 1.0),
            to_hs: gaussian(sequence, 6, 1.0),
            to_cs: gaussian(sequence, 7, 1.0),
        }
    }

    pub(crate) fn forward(&self, isa: Isa, threads: usize) -> Made {
        let sequence = self.to_hs.len();
        let mut made = [sequence, sequence, 4 * sequence].map(|count| vec![f32::NAN; count]);
        let [hs, cs, gates] = &mut made;
        let arrays = ForwardArrays {
            x: self.x.as_ptr(),
            bias: self.bias.as_ptr(),
            h: self.h.as_ptr(),
            c: self.c.as_ptr(),
            hs: hs.as_mut_ptr(),
            cs: cs.as_mut_ptr(),
            gates: gates.as_mut_ptr(),
        };
        compute(&Sequences::new(
            isa,
            threads,
            self.sizes,
            &self.recurrent,
            arrays,
        ));
        made
    }

    /// The gradients by x, by the first state and by the first cells.
    pub(crate) fn backward(
        &self,
        isa: Isa,
        threads: usize,
        [_, cs, gates]: &Made,
        with_cells: bool,
    ) -> Made {
        let counts = [self.x.len(), self.h.len(), self.c.len()];
        let mut made = counts.map(|count| vec![f32::NAN; count]);
        let [to_x, to_h, to_c] = &mut made;
        let arrays = BackwardArrays {
            to_hs: self.to_hs.as_ptr(),
            to_cs: with_cells.then_some(self.to_cs.as_ptr()),
            c: self.c.as_ptr(),
            cs: cs.as_ptr(),
            gates: gates.as_ptr(),
            to_x: to_x.as_mut_ptr(),
            to_h: to_h.as_mut_ptr(),
            to_c: to_c.as_mut_ptr(),
        };
        compute(&Sequences::new(
            isa,
            threads,
            self.sizes,
            &self.recurrent,
            arrays,
        ));
        made
    }

    /// States, cells and gates in f64 of the sequence with this number.
    fn expected(&self, sequence: usize, x: &[f64], h: &[f64], c: &[f64]) -> [Vec<f64>; 3] {
        let Sizes { steps, units, .. } = self.sizes;
        let (mut h, mut c) = (h.to_vec(), c.to_vec());
        let mut made = [Vec::new(), Vec::new(), Vec::new()];
        assert!(sequence < self.sizes.batch && x.len() == steps * 4 * units);
        for x in x.chunks(4 * units) {
            let z: Vec<f64> = (0..4 * units)
                .map(|column| {
                    let kernel = self.recurrent.iter().skip(column).step_by(4 * units);
                    let products = h.iter().zip(kernel).map(|(h, &w)| h * f64::from(w));
                    x[column] + f64::from(self.bias[column]) + products.sum::<f64>()
                })
                .collect();
            let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
            let gate = |number: usize, unit: usize| match z[number * units + unit] {
                z if number == 2 => z.tanh(),
                z => sigmoid(z),
            };
            for unit in 0..units {
                c[unit] = gate(1, unit) * c[unit] + gate(0, unit) * gate(2, unit);
                h[unit] = gate(3, unit) * c[unit].tanh();
            }
            made[0].extend(&h);
            made[1].extend(&c);
            made[2].extend((0..4 * units).map(|at| gate(at / units, at % units)));
        }
        made
    }

    fn part(&self, values: &[f32], sequence: usize) -> Vec<f64> {
        let size = values.len() / self.sizes.batch;
        let values = values[sequence * size..][..size].iter();
        values.copied().map(f64::from).collect()
    }

    /// The weighted sum of states and cells of a sequence.
    fn loss(&self, sequence: usize, [x, h, c]: &[Vec<f64>; 3]) -> f64 {
        let [hs, cs, _] = self.expected(sequence, x, h, c);
        let weighted = |values: &[f64], weights: &[f32]| -> f64 {
            let weights = self.part(weights, sequence);
            values.iter().zip(weights).map(|(a, b)| a * b).sum()
        };
        weighted(&hs, &self.to_hs) + weighted(&cs, &self.to_cs)
    }
}

pub(crate) fn compute<A: CallArrays>(work: &Sequences<A>)
where
    for<'a> SequenceTask<'a, A>: SimdKernel,
{
    for task in (0..work.tasks()).rev() {
        let mut scratch = work.begin();
        scratch.fill(f32::NAN);
        work.compute(task, &mut scratch);
        work.end(scratch);
    }
}

#[test]
fn states_cells_and_gates_are_those_of_f64() {
    for (isa, case) in Isa::available().flat_map(|isa| CASES.map(|case| (isa, case))) {
        let given = Given::new(case);
        let made = given.forward(isa, 2);
        for sequence in 0..given.sizes.batch {
            let [x, h, c] = [&given.x, &given.h, &given.c].map(|all| given.part(all, sequence));
            let expected = given.expected(sequence, &x, &h, &c);
            for (found, expected) in made.iter().zip(expected) {
                for (at, (found, expected)) in
                    given.part(found, sequence).iter().zip(expected).enumerate()
                {
                    let error = (found - expected).abs();
                    assert!(
                        error < 3e-6 * expected.abs().max(1.0),
                        "{isa:?} {case:?}, sequence {sequence}, place {at}: {found} for {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    const STEP: f64 = 1e-5;
    for (isa, case) in Isa::available().flat_map(|isa| CASES.map(|case| (isa, case))) {
        let given = Given::new(case);
        let made = given.forward(isa, 2);
        let found = given.backward(isa, 2, &made, true);
        for sequence in [0, given.sizes.batch - 1] {
            let at = [&given.x, &given.h, &given.c].map(|all| given.part(all, sequence));
            for (which, found) in found.iter().enumerate() {
                let found = given.part(found, sequence);
                for place in (0..found.len()).step_by(1 + found.len() / 40) {
                    let moved = |by: f64| {
                        let mut moved = at.clone();
                        moved[which][place] += by;
                        given.loss(sequence, &moved)
                    };
                    let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                    let error = (found[place] - expected).abs();
                    assert!(
                        error < 2e-5 * expected.abs().max(1.0),
                        "{isa:?} {case:?}, operand {which}, sequence {sequence}, place {place}: {} for {expected}",
                        found[place]
                    );
                }
            }
        }
    }
}

#[test]
fn no_cotangent_of_the_cells_is_one_of_zeros() {
    for isa in Isa::available() {
        let mut given = Given::new([5, 4, 16]);
        let made = given.forward(isa, 1);
        let without = given.backward(isa, 1, &made, false);
        given.to_cs.fill(0.0);
        assert_eq!(without, given.backward(isa, 1, &made, true), "{isa:?}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for isa in Isa::available() {
        let given = Given::new([67, 3, 33]);
        let made = given.forward(isa, 1);
        let back = given.backward(isa, 1, &made, true);
        for threads in [2, 3, 16, 1000] {
            assert_eq!(given.forward(isa, threads), made, "{isa:?}, {threads}");
            let again = given.backward(isa, threads, &made, true);
            assert_eq!(again, back, "{isa:?}, {threads}");
        }
    }
}

#[test]
fn a_nan_reaches_all_that_follows_in_its_sequence_and_no_other() {
    let case = [7, 5, 20];
    let units = case[2];
    for isa in Isa::available() {
        let mut given = Given::new(case);
        // Of sequence 3 at step 2, the forget gate of unit 6.
        given.x[(3 * 5 + 2) * 4 * units + units + 6] = f32::NAN;
        let made = given.forward(isa, 2);
        for (at, h) in made[0].iter().enumerate() {
            let (sequence, step, unit) = (at / units / 5, at / units % 5, at % units);
            let touched = sequence == 3 && (step > 2 || step == 2 && unit == 6);
            assert_eq!(h.is_nan(), touched, "{isa:?} {sequence} {step} {unit}");
        }
        let back = given.backward(isa, 2, &made, true);
        for (at, gradient) in back[0].iter().enumerate() {
            let sequence = at / (4 * units) / 5;
            assert!(sequence == 3 || !gradient.is_nan(), "{isa:?} {at}");
        }
        // It comes back to all units of the steps before.
        let first = &back[0][3 * 5 * 4 * units..][..4 * units];
        assert!(first.iter().all(|gradient| gradient.is_nan()), "{isa:?}");
    }
}

#[test]
fn large_inputs_saturate_and_stay_finite() {
    for isa in Isa::available() {
        let mut given = Given::new([3, 4, 10]);
        for (at, x) in given.x.iter_mut().enumerate() {
            *x = if at % 2 == 0 { 1e30 } else { -1e30 };
        }
        let made = given.forward(isa, 1);
        assert!(made.iter().flatten().all(|value| value.is_finite()));
        let gates = made[2].iter();
        assert!(
            gates
                .clone()
                .all(|gate| gate.abs() < 1e-30 || gate.abs() == 1.0)
        );
        let back = given.backward(isa, 1, &made, true);
        assert!(back.iter().flatten().all(|value| value.is_finite()));
    }
}
