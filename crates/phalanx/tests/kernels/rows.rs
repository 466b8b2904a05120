//! Rows of tables, and sums of them, by calls and by what compilers make of gathers.

use phalanx::engine::{CompileRequest, KernelsMode};
use phalanx_graph::{DType, Graph, HostTensor, Lowering, Shape, Tensor, gradients};
use phalanx_pjrt::Platform;

use super::{session, values};

#[test]
fn rows_of_a_large_table_are_the_same_with_and_without_calls() {
    let (rows, width) = (1 << 18, 16);
    let graph = Graph::new();
    let table = graph.parameter("table", Shape::f32([rows, width]));
    let places = graph.parameter("places", Shape::new(DType::I32, [300]));
    let outputs = [("rows", &table.gather(&places, 0))];
    let program = graph.finish(&outputs).unwrap();
    assert!(program.gains_from_host_rows());
    let places: Vec<i32> = (0..300).map(|i| i * 1931 % 300_000 - 5000).collect();
    let inputs = [values(&[rows, width], 3), HostTensor::new([300], &places)];
    let taken = [KernelsMode::Auto, KernelsMode::Off].map(|kernels| {
        let engine = session(kernels).engine.unwrap();
        let request = CompileRequest::new("rows", &program);
        let compiled = engine.compile(request).unwrap();
        let buffers = inputs.each_ref().map(|x| engine.put(0, x).unwrap());
        let buffers: Vec<_> = buffers.iter().collect();
        let results = compiled.run(&[&buffers]).unwrap().0.remove(0);
        engine.get(&results[0], &Shape::f32([300, width])).unwrap()
    });
    assert_eq!(taken[0], taken[1]);
}

#[test]
fn sums_of_rows_are_the_same_with_and_without_calls() {
    let (rows, width) = (500, 16);
    let graph = Graph::new();
    let table = graph.parameter("table", Shape::f32([rows, width]));
    let indices = graph.parameter("indices", Shape::new(DType::I32, [20, 128]));
    let others = graph.parameter("others", Shape::new(DType::I32, [20, 128]));
    let dims = [20, 128, width];
    let checked = |indices: &Tensor| {
        let taken = table.gather(indices, 0);
        let inside = indices.less(&indices.like(rows as f64));
        let inside = inside.broadcast_in(&dims, &[0, 1]);
        inside.select(&taken, &taken.like(f64::NAN))
    };
    let kept = indices.greater(&indices.like(3.0));
    let taken = checked(&indices);
    let kept = kept.broadcast_in(&dims, &[0, 1]);
    let masked = kept.select(&taken, &taken.zeros_like()).sum(&[1]);
    let weights = others.convert(DType::F32).sin();
    let weighed = (checked(&others) * weights.broadcast_in(&dims, &[0, 1])).sum(&[1]);
    let to_table = gradients(&masked.sin().sum_all(), &[&table]).remove(0);
    let outputs = [masked, weighed, to_table.unwrap()];
    let names = outputs.each_ref().map(|output| ("", output));
    let program = graph.finish(&names).unwrap().simplified();
    let lowering = Lowering {
        host_rows: true,
        ..Lowering::new(Platform::Cpu, "sums")
    };
    let calls = program.to_stablehlo(&lowering);
    assert_eq!(calls.matches("phalanx.row_sums").count(), 2, "{calls}");
    let mut numbers: Vec<i32> = (0..20 * 128).map(|i| i * 1931 % 500).collect();
    numbers[300] = 500;
    let numbers = HostTensor::new([20, 128], &numbers);
    let inputs = [values(&[rows, width], 3), numbers.clone(), numbers];
    let found = [KernelsMode::Auto, KernelsMode::Off].map(|kernels| {
        let engine = session(kernels).engine.unwrap();
        let request = CompileRequest::new("sums", &program);
        let compiled = engine.compile(request).unwrap();
        let buffers = inputs.each_ref().map(|x| engine.put(0, x).unwrap());
        let buffers: Vec<_> = buffers.iter().collect();
        let results = compiled.run(&[&buffers]).unwrap().0.remove(0);
        let shapes = outputs.each_ref().map(Tensor::shape);
        let pairs = results.iter().zip(&shapes);
        let got = pairs.map(|(result, shape)| engine.get(result, shape).unwrap().to_f64());
        got.collect::<Vec<_>>().concat()
    });
    // One sum has an index past the table: its row of both results is NaN, and with it nothing else but what it says of the table.
    let are_nan = found.each_ref().map(|found| {
        let sums = &found[..2 * 20 * width];
        sums.iter().filter(|number| number.is_nan()).count()
    });
    assert_eq!(are_nan, [2 * width; 2]);
    for (with, without) in found[0].iter().zip(&found[1]) {
        let are_near = (with - without).abs() <= 1e-4 * without.abs().max(1.0);
        assert!(
            are_near || with.is_nan() && without.is_nan(),
            "{with}, {without}"
        );
    }
}
