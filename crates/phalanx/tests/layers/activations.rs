//! Activations that Keras has no right numbers for.

use phalanx::nn::Activation;
use phalanx_graph::{HostTensor, gradients};

use crate::Checks;

/// Two elements have a share: half of 1, and half of their distance more or less.
#[test]
fn a_sparsemax_is_the_nearest_point_whose_elements_add_up_to_1() {
    let mut checks = Checks::default();
    // In the last two rows next to a number there is none within 1.
    let numbers = [
        [0.5f32, -2.0, 0.25, -0.75],
        [3.0, 0.1, 1.9, 1.95],
        [-1e9, -1e9, -2e9, -1e9 - 64.0],
        [16_777_216.0, 16_777_218.0, 0.0, -1.0],
    ];
    let rows = |rows: [[f32; 4]; 4]| HostTensor::new([4, 4], rows.as_flattened());
    let x = checks.given(&rows(numbers));
    let y = Activation::Sparsemax.apply(&x);
    let shares = [
        [0.625, 0.0, 0.375, 0.0],
        [1.0, 0.0, 0.0, 0.0],
        [0.5, 0.5, 0.0, 0.0],
        [0.0, 1.0, 0.0, 0.0],
    ];
    checks.expect("shares".into(), &y, rows(shares));
    let [first, other] = [[1.0, 2.0, 5.0, 7.0], [1.0, 2.0, 3.0, 4.0]];
    let weights = checks.given(&rows([first, other, other, other]));
    let slope = gradients(&(&y * &weights).sum_all(), &[&x]).swap_remove(0);
    let slopes = [
        [-2.0, 0.0, 2.0, 0.0],
        [0.0; 4],
        [-0.5, 0.5, 0.0, 0.0],
        [0.0; 4],
    ];
    checks.expect("slope".into(), &slope.unwrap(), rows(slopes));
    checks.verify(1e-6);
}
