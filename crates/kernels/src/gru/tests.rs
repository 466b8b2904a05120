//! Against a loop in f64, finite differences of which show that the gradient is one.

use super::*;
use crate::lstm::Sequences;
use crate::lstm::tests::{CASES, compute, gaussian};
use crate::microkernel::Isa;

/// What a call is given.
struct GruGiven {
    sizes: Sizes,
    recurrent: Vec<f32>,
    /// x, the bias and the first state.
    operands: [Vec<f32>; 3],
    /// Weights of the states in the number that is differentiated.
    to_hs: Vec<f32>,
}

impl GruGiven {
    fn new([batch, steps, units]: [usize; 3]) -> Self {
        let sizes = Sizes {
            batch,
            steps,
            units,
        };
        let sequence = batch * steps * units;
        Self {
            sizes,
            recurrent: gaussian(3 * units * units, 2, 1.0 / (units as f32).sqrt()),
            operands: [
                gaussian(3 * sequence, 1, 1.0),
                gaussian(3 * units, 3, 0.5),
                gaussian(batch * units, 4, 0.5),
            ],
            to_hs: gaussian(sequence, 6, 1.0),
        }
    }

    /// States and gates.
    fn forward(&self, isa: Isa, threads: usize) -> [Vec<f32>; 2] {
        let count = self.to_hs.len();
        let mut made = [count, 4 * count].map(|count| vec![f32::NAN; count]);
        let [hs, gates] = &mut made;
        let [x, bias, h] = self.operands.each_ref().map(Vec::as_ptr);
        let arrays = GruArrays {
            x,
            bias,
            h,
            hs: hs.as_mut_ptr(),
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

    /// The gradients by x, by the states' products and by the first state.
    fn backward(&self, isa: Isa, threads: usize, [hs, gates]: &[Vec<f32>; 2]) -> [Vec<f32>; 3] {
        let [x, _, h] = &self.operands;
        let mut made = [x.len(), x.len(), h.len()].map(|count| vec![f32::NAN; count]);
        let [to_x, to_products, to_h] = &mut made;
        let arrays = GruBackArrays {
            to_hs: self.to_hs.as_ptr(),
            h: h.as_ptr(),
            hs: hs.as_ptr(),
            gates: gates.as_ptr(),
            to_x: to_x.as_mut_ptr(),
            to_products: to_products.as_mut_ptr(),
            to_h: to_h.as_mut_ptr(),
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

    /// The states of all sequences, in f64.
    fn expected(&self, [x, bias, h]: &[Vec<f64>; 3]) -> Vec<f64> {
        let Sizes {
            batch,
            steps,
            units,
        } = self.sizes;
        let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
        let mut states = Vec::new();
        for sequence in 0..batch {
            let mut h = h[sequence * units..][..units].to_vec();
            for x in x[sequence * steps * 3 * units..]
                .chunks(3 * units)
                .take(steps)
            {
                let product = |column: usize| {
                    let kernel = self.recurrent.iter().skip(column).step_by(3 * units);
                    let products = h.iter().zip(kernel).map(|(h, &w)| h * f64::from(w));
                    bias[column] + products.sum::<f64>()
                };
                let next = (0..units).map(|unit| {
                    let z = sigmoid(x[unit] + product(unit));
                    let r = sigmoid(x[units + unit] + product(units + unit));
                    let g = (x[2 * units + unit] + r * product(2 * units + unit)).tanh();
                    z * h[unit] + (1.0 - z) * g
                });
                h = next.collect();
                states.extend(&h);
            }
        }
        states
    }

    fn in_f64(&self) -> [Vec<f64>; 3] {
        let wide = |operand: &Vec<f32>| operand.iter().copied().map(f64::from).collect();
        self.operands.each_ref().map(wide)
    }
}

#[test]
fn states_are_as_in_f64() {
    for (isa, case) in Isa::available().flat_map(|isa| CASES.map(|case| (isa, case))) {
        let given = GruGiven::new(case);
        let [hs, _] = given.forward(isa, 2);
        let expected = given.expected(&given.in_f64());
        assert_eq!(hs.len(), expected.len());
        for (at, (found, expected)) in hs.iter().zip(expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(
                error < 3e-6,
                "{isa:?} {case:?} {at}: {found} for {expected}"
            );
        }
    }
}

#[test]
fn gradients_are_finite_differences() {
    const STEP: f64 = 1e-5;
    let small = CASES
        .into_iter()
        .filter(|case| case.iter().product::<usize>() < 600);
    for (isa, case) in small.flat_map(|case| Isa::available().map(move |isa| (isa, case))) {
        let given = GruGiven::new(case);
        let [to_x, to_products, to_h] = given.backward(isa, 2, &given.forward(isa, 2));
        let columns = 3 * case[2];
        let by_bias = |column: usize| to_products.iter().skip(column).step_by(columns).sum();
        let found = [to_x, (0..columns).map(by_bias).collect(), to_h];
        let at = given.in_f64();
        for (which, found) in found.iter().enumerate() {
            for place in (0..found.len()).step_by(1 + found.len() / 25) {
                let moved = |by: f64| {
                    let mut moved = at.clone();
                    moved[which][place] += by;
                    let states = given.expected(&moved).into_iter();
                    let weighted = states.zip(&given.to_hs).map(|(h, &w)| h * f64::from(w));
                    weighted.sum::<f64>()
                };
                let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                let error = (f64::from(found[place]) - expected).abs();
                assert!(
                    error < 2e-5 * expected.abs().max(1.0),
                    "{isa:?} {case:?}, operand {which}, place {place}: {} for {expected}",
                    found[place]
                );
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_gated_units() {
    for isa in Isa::available() {
        let given = GruGiven::new([67, 3, 33]);
        let made = given.forward(isa, 1);
        let back = given.backward(isa, 1, &made);
        for threads in [2, 3, 16, 1000] {
            assert_eq!(given.forward(isa, threads), made, "{isa:?}, {threads}");
            let again = given.backward(isa, threads, &made);
            assert_eq!(again, back, "{isa:?}, {threads}");
        }
    }
}

#[test]
fn steps_whose_update_gate_is_full_keep_the_state_and_pass_its_gradient() {
    let case = [7, 5, 20];
    let [_, steps, units] = case;
    for isa in Isa::available() {
        let mut given = GruGiven::new(case);
        // Of every sequence steps 0, 3 and 4: padding on both ends.
        let is_padding = |step: usize| [0, 3, 4].contains(&step);
        for (place, x) in given.operands[0].chunks_mut(3 * units).enumerate() {
            if is_padding(place % steps) {
                x.fill(0.0);
                x[..units].fill(1e30);
            }
        }
        let made = given.forward(isa, 2);
        let back = given.backward(isa, 2, &made);
        for (place, h) in made[0].chunks(units).enumerate() {
            if is_padding(place % steps) {
                let before = match place % steps {
                    0 => &given.operands[2][place / steps * units..][..units],
                    _ => &made[0][(place - 1) * units..][..units],
                };
                assert_eq!(h, before, "{isa:?}, {place}");
                let own = &back[0][place * 3 * units..][..3 * units];
                assert!(
                    own.iter().all(|&gradient| gradient == 0.0),
                    "{isa:?}, {place}"
                );
            }
        }
        given.operands[0][3 * units] = f32::NAN;
        let made = given.forward(isa, 2);
        let touched = made[0].iter().map(|h| h.is_nan());
        let expected = (0..made[0].len()).map(|at| {
            let (sequence, step, unit) = (at / units / steps, at / units % steps, at % units);
            sequence == 0 && (step > 1 || step == 1 && unit == 0)
        });
        assert!(touched.eq(expected), "{isa:?}");
    }
}
