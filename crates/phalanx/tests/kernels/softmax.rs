use phalanx::engine::{CompileRequest, KernelsMode};
use phalanx_graph::{Graph, Shape, gradients};

use super::{session, values};

/// Softmax, its logarithm and their slopes, of rows with what is masked.
#[test]
fn softmax_is_the_same_with_and_without_calls() {
    let dims = [4, 128, 130];
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32(dims)) * 20.0;
    let is_masked = x.greater(&x.like(12.0));
    let masked = is_masked.select(&x.like(f64::NEG_INFINITY), &x);
    let weights = masked.softmax(2);
    let loss = (&weights * &x).sum_all() + x.log_softmax(2).square().mean_all();
    let slope = gradients(&loss, &[&x]).remove(0).unwrap();
    let outputs = [("weights", &weights), ("slope", &slope), ("loss", &loss)];
    let program = graph.finish(&outputs).unwrap().simplified();
    assert!(program.gains_from_host_softmax());
    let x = values(&dims, 3);
    let [ours, xlas] = [KernelsMode::Auto, KernelsMode::Off].map(|kernels| {
        let engine = session(kernels).engine.unwrap();
        let request = CompileRequest::new("softmax", &program);
        let compiled = engine.compile(request).unwrap();
        let x = engine.put(0, &x).unwrap();
        let results = compiled.run(&[&[&x]]).unwrap().0.remove(0);
        let shapes = [Shape::f32(dims), Shape::f32(dims), Shape::f32([])];
        let pairs = results.iter().zip(&shapes);
        let found = pairs.map(|(result, shape)| engine.get(result, shape).unwrap());
        found.map(|found| found.f32s()).collect::<Vec<_>>()
    });
    let zeros = ours[0].iter().filter(|&&weight| weight == 0.0).count();
    assert!(zeros > 100 && zeros < ours[0].len() / 2, "{zeros}");
    for (index, (ours, xlas)) in ours.iter().zip(&xlas).enumerate() {
        let largest = xlas.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (ours, xlas) in ours.iter().zip(xlas) {
            assert!(
                (ours - xlas).abs() <= 2e-6 * largest,
                "result {index}: {ours} with calls, {xlas} without"
            );
        }
    }
}
