//! Changes that all happen or none of which does.

#[path = "support/mod.rs"]
mod support;

use phalanx_graph::{DType, Graph, HostTensor, Program, Shape, Tensor};
use support::{compile, run};

const WIDTH: usize = 4096;

/// How the steps below end: one selection of all changes, each selected by itself, or no selection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Together,
    Apart,
    Always,
}

/// A step of Adam with a bound on its second moments, so that one slot is computed from another, and of a counter.
fn step(end: End) -> Program {
    let g = Graph::new();
    let names = ["variable", "first", "second", "highest", "gradient"];
    let [variable, first, second, highest, gradient] =
        names.map(|name| g.parameter(name, Shape::f32([WIDTH])));
    let count = g.parameter("count", Shape::scalar(DType::F32));
    let condition = g.parameter("condition", Shape::scalar(DType::Bool));
    let new_first = &first * 0.9 + &gradient * 0.1;
    let new_second = &second * 0.999 + gradient.square() * 0.001;
    let new_highest = highest.maximum(&new_second);
    let new_count = &count + 1.0;
    let scale = new_count.broadcast_to(&[WIDTH]) * 0.01;
    let new_variable = &variable - scale * &new_first / (new_highest.sqrt() + 1e-3);
    let changes = [
        (&new_variable, &variable),
        (&new_first, &first),
        (&new_second, &second),
        (&new_highest, &highest),
        (&new_count, &count),
    ];
    let new: Vec<Tensor> = match end {
        End::Together => g.all_or_nothing(&condition, &changes),
        End::Apart => {
            let select = |(new, old): (&Tensor, &Tensor)| condition.select(new, old);
            changes.map(select).to_vec()
        }
        End::Always => changes.map(|(new, _)| new.clone()).to_vec(),
    };
    let outputs: Vec<(&str, &Tensor)> = new.iter().map(|new| ("new", new)).collect();
    let mut program = g.finish(&outputs).unwrap().simplified();
    program.donated = vec![(0, 0), (1, 1), (2, 2), (3, 3), (5, 4)];
    program
}

fn inputs(holds: bool) -> Vec<HostTensor> {
    let values = |seed: usize| {
        let values = (0..WIDTH).map(|i| ((i * 7919 + seed * 37) % 1009) as f32 / 1009.0);
        HostTensor::new([WIDTH], &values.collect::<Vec<f32>>())
    };
    let mut inputs: Vec<HostTensor> = (0..5).map(values).collect();
    inputs.push(HostTensor::new([], &[3.0f32]));
    inputs.push(HostTensor::new([], &[holds]));
    inputs
}

#[test]
fn all_is_new_or_all_is_old() {
    let together = step(End::Together);
    let new = run(&step(End::Always), &inputs(true));
    for (new, expected) in run(&together, &inputs(true)).iter().zip(&new) {
        // Loops that the compiler joins in other ways round in other places.
        let error = phalanx_testkit::largest_difference(&new.to_f64(), &expected.to_f64());
        assert!(error < 1e-6, "{error}");
    }
    let old = inputs(false);
    let expected = [&old[..4], &old[5..6]].concat();
    assert_eq!(run(&together, &inputs(false)), expected);
    assert!(new.iter().zip(&expected).all(|(new, old)| new != old));
}

/// Each selected by itself, the compiler copies what other changes are computed from; that this is so here shows what the first
/// assertion is good for.
#[test]
fn nothing_is_copied() {
    let bytes = |end| compile(&step(end)).memory_stats().unwrap().temporary;
    let all = [End::Always, End::Together, End::Apart].map(bytes);
    println!("temporary bytes: {all:?}");
    assert!(all[1] < all[0] + 4 * WIDTH as i64, "{all:?}");
    assert!(all[2] >= all[0] + 4 * WIDTH as i64, "{all:?}");
}

/// Rows of two tables that belong together, of which only those that are there change.
#[test]
fn no_table_is_copied_for_a_few_rows() {
    const ROWS: usize = 20_000;
    let g = Graph::new();
    let table = Shape::f32([ROWS, 8]);
    let [variable, moment] = ["variable", "moment"].map(|name| g.parameter(name, table.clone()));
    let indices = g.parameter("indices", Shape::new(DType::I32, [3]));
    let gradient = g.parameter("gradient", Shape::f32([3, 8]));
    let condition = g.parameter("condition", Shape::scalar(DType::Bool));
    let moved = moment.gather(&indices, 0) * 0.5 + gradient;
    let new_moment = moment.scatter_set(&indices, &moved, 0);
    let new_variable = variable.gather(&indices, 0) - &moved;
    let new_variable = variable.scatter_set(&indices, &new_variable, 0);
    let changes = [(&new_variable, &variable), (&new_moment, &moment)];
    let new = g.all_or_nothing(&condition, &changes);
    let mut program = g.finish(&[("variable", &new[0]), ("moment", &new[1])]);
    program.as_mut().unwrap().donated = vec![(0, 0), (1, 1)];
    let program = program.unwrap();
    let temporary = compile(&program).memory_stats().unwrap().temporary;
    println!("temporary bytes: {temporary}");
    assert!(temporary < 4 * ROWS as i64, "{temporary}");
    let tables = [1.0f32, 2.0].map(|value| HostTensor::new([ROWS, 8], &vec![value; ROWS * 8]));
    for holds in [true, false] {
        let inputs = [
            tables[0].clone(),
            tables[1].clone(),
            HostTensor::new([3], &[7i32, 0, 19_999]),
            HostTensor::new([3, 8], &[0.25f32; 24]),
            HostTensor::new([], &[holds]),
        ];
        for (table, (old, new)) in run(&program, &inputs)
            .iter()
            .zip([(1.0, -0.25), (2.0, 1.25)])
        {
            let values = table.to_f64();
            let count = |wanted: f64| values.iter().filter(|&&value| value == wanted).count();
            let changed = if holds { 24 } else { 0 };
            assert_eq!((count(new), count(old)), (changed, ROWS * 8 - changed));
        }
    }
}
