use half::bf16;
use phalanx_graph::{DType, Graph, Shape, Tensor};

use crate::cases::{Array, Cases};

#[test]
fn sums_up_to_each_element() {
    let mut cases = Cases::new();
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-13), (DType::I32, 0.0)] {
        for size in [1, 2, 5, 8, 9] {
            let (x, a) = cases.sample(dtype, &[2, size, 3]);
            for dim in 0..3 {
                let expected = Array::build(&a.dims, |index| {
                    let mut at = index.to_vec();
                    let up_to = (0..=index[dim]).map(|place| {
                        at[dim] = place;
                        a.at(&at)
                    });
                    up_to.sum()
                });
                cases.near(
                    &format!("{dtype} {size} {dim}"),
                    &x.cumsum(dim),
                    expected,
                    tolerance,
                );
            }
        }
    }
    // Added in f32: 256 ones are no fewer for a type that has 257 not.
    let ones = cases.list(&[300], &[bf16::ONE; 300]);
    let last = ones.cumsum(0).slice_dim(0, 299, 300);
    cases.near("bf16", &last, Array::new(&[1], &[300.0]), 0.0);
    cases.check();
}

#[test]
fn the_largest_elements_come_in_order_the_first_of_equal_ones_before_others() {
    let mut cases = Cases::new();
    let x = cases.list(
        &[2, 4],
        &[1.0f32, 3.0, 2.0, 3.0, -5.0, f32::NEG_INFINITY, -7.0, -6.0],
    );
    let (values, places) = x.top_k(3);
    cases.near(
        "values",
        &values,
        Array::new(&[2, 3], &[3.0, 3.0, 2.0, -5.0, -6.0, -7.0]),
        0.0,
    );
    cases.near(
        "places",
        &places,
        Array::new(&[2, 3], &[1.0, 3.0, 2.0, 0.0, 3.0, 2.0]),
        0.0,
    );
    let (one, at) = cases.list(&[3], &[1.0f32, 4.0, 2.0]).top_k(1);
    cases.near("one", &one, Array::new(&[1], &[4.0]), 0.0);
    cases.near("at", &at, Array::new(&[1], &[1.0]), 0.0);
    cases.check();
}

#[test]
fn parts_are_put_together_moved_and_measured() {
    let mut cases = Cases::new();
    let (x, a) = cases.sample(DType::F32, &[3, 4]);
    let (y, b) = cases.sample(DType::F32, &[3, 4]);
    for dim in 0..3 {
        let mut dims = vec![3, 4];
        dims.insert(dim, 2);
        let expected = Array::build(&dims, |index| {
            let mut at = index.to_vec();
            match at.remove(dim) {
                0 => a.at(&at),
                _ => b.at(&at),
            }
        });
        cases.near(
            &format!("stack {dim}"),
            &Tensor::stack(&[&x, &y], dim),
            expected,
            0.0,
        );
    }
    for by in [-5i64, -1, 0, 1, 4, 6] {
        let expected = Array::build(&a.dims, |index| {
            let from = (index[1] as i64 - by).rem_euclid(4) as usize;
            a.at(&[index[0], from])
        });
        cases.near(&format!("roll {by}"), &x.roll(by, 1), expected, 0.0);
    }
    let mean = a.values.iter().sum::<f64>() / 12.0;
    let apart = a.values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 12.0;
    cases.near("variance", &x.variance(&[0, 1]), Array::scalar(apart), 1e-6);
    cases.check();
}

#[test]
fn what_there_is_not_is_told() {
    let told = |build: &dyn Fn(&Tensor) -> Tensor| {
        let graph = Graph::new();
        let x = graph.parameter("x", Shape::f32([2, 3]));
        let y = build(&x);
        graph.finish(&[("y", &y)]).unwrap_err().to_string()
    };
    let many = told(&|x| x.top_k(4).0);
    assert!(
        many.contains("expected floats and 1 to 3 of them, got 4 of"),
        "{many}"
    );
    let none = told(&|x| x.cumsum(2));
    assert!(
        none.contains("expected a dim with elements, got 2 of"),
        "{none}"
    );
    let whole = told(&|x| x.convert(DType::I32).variance(&[0]));
    assert!(whole.contains("expected floats, got"), "{whole}");
}
