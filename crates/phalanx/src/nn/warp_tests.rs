//! Where pixels seen from a side come from.

use phalanx_graph::{Graph, HostTensor, gradients};

use super::*;
use crate::engine::{CompileRequest, Engine, EngineOptions};

const FILL: f64 = 7.0;

/// An image of 3 rows and 5 columns whose corners are moved by these parts, and the derivatives by them and by the image.
fn seen_and_gradients(corners: [f32; 4], interpolation: Interpolation) -> Vec<Vec<f64>> {
    let graph = Graph::default();
    let pixels: Vec<f32> = (0..15).map(|at| (10 * (at / 5) + at % 5) as f32).collect();
    let inputs = [HostTensor::new([1, 3, 5, 1], &pixels)]
        .into_iter()
        .chain(corners.map(|part| HostTensor::new([1], &[part])));
    let inputs: Vec<HostTensor> = inputs.collect();
    let given: Vec<Tensor> = inputs
        .iter()
        .enumerate()
        .map(|(at, value)| graph.parameter(&at.to_string(), value.shape().clone()))
        .collect();
    let lookup = Lookup {
        fill_mode: Fill::Constant,
        interpolation,
        fill_value: FILL,
    };
    let corners = [1, 2, 3, 4].map(|at| given[at].clone());
    let seen = seen_from(&given[0], &corners, lookup);
    let found = gradients(&seen.square().sum_all(), &given.iter().collect::<Vec<_>>());
    let found = found.into_iter().flatten();
    let outputs: Vec<Tensor> = [seen].into_iter().chain(found).collect();
    let names: Vec<String> = (0..outputs.len()).map(|at| at.to_string()).collect();
    let outputs: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&outputs).collect();
    let program = graph.finish(&outputs).unwrap();
    let engine = Engine::new(&EngineOptions::default()).unwrap();
    let compiled = engine
        .compile(CompileRequest::new("seen", &program))
        .unwrap();
    let inputs: Vec<_> = inputs.iter().map(|x| engine.put(0, x).unwrap()).collect();
    let results = compiled
        .run(&[&inputs.iter().collect::<Vec<_>>()])
        .unwrap()
        .0;
    let results = results[0].iter().zip(&outputs);
    results
        .map(|(x, (_, output))| engine.get(x, &output.shape()).unwrap().to_f64())
        .collect()
}

/// With these corners `far` is `1 - x / 4`: 0 in the last column.
#[test]
fn a_horizon_inside_an_image_is_beyond_its_edges() {
    let corners = [-0.5, 0.0, -0.5, -0.5];
    for interpolation in [Interpolation::Bilinear, Interpolation::Nearest] {
        let found = seen_and_gradients(corners, interpolation);
        for (at, &seen) in found[0].iter().enumerate() {
            let (row, column) = ((at / 5) as f64, (at % 5) as f64);
            let far = 1.0 - column / 4.0;
            let (mut y, mut x) = (row / far, column / far);
            if interpolation == Interpolation::Nearest {
                (y, x) = (y.round(), x.round());
            }
            let expected = match (y, x) {
                // Between the last row and what is beyond it.
                (y, x) if y > 2.0 && y < 3.0 => (20.0 + x) * (3.0 - y) + FILL * (y - 2.0),
                (y, x) if y <= 2.0 && x <= 4.0 => 10.0 * y + x,
                _ => FILL,
            };
            assert!(
                (seen - expected).abs() < 1e-4,
                "{at}: {seen}, expected {expected}"
            );
        }
        let mut all = found[1..].iter().flatten();
        assert!(all.all(|derivative| derivative.is_finite()), "{found:?}");
    }
}
