//! Activations that Keras has no right numbers for.

use phalanx::nn::Activation;
use phalanx_graph::{HostTensor, gradients};

use crate::Checks;

/// Two elements have a share: half of 1, and half of their distance more or less.
#[test]
fn a_sparsemax_is_the_nearest_point_whose_elements_add_up_to_1() {
    let mut checks = Checks::default();
    let numbers = [0.5f32, -2.0, 0.25, -0.75, 3.0, 0.1, 1.9, 1.95];
    let x = checks.given(&HostTensor::new([2, 4], &numbers));
    let y = Activation::Sparsemax.apply(&x);
    let shares = [0.625f32, 0.0, 0.375, 0.0, 1.0, 0.0, 0.0, 0.0];
    checks.expect("shares".into(), &y, HostTensor::new([2, 4], &shares));
    let weights = checks.given(&HostTensor::new(
        [2, 4],
        &[1.0f32, 2.0, 5.0, 7.0, 1.0, 2.0, 3.0, 4.0],
    ));
    let slope = gradients(&(&y * &weights).sum_all(), &[&x]).swap_remove(0);
    let slopes = [-2.0f32, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    checks.expect(
        "slope".into(),
        &slope.unwrap(),
        HostTensor::new([2, 4], &slopes),
    );
    checks.verify(1e-6);
}
