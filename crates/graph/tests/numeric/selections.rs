use phalanx_graph::{DType, Graph, Shape, Tensor};

use crate::cases::{Array, Cases};

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
    let with_nan = [1.0f32, f32::NAN, 3.0, f32::NAN, f32::NEG_INFINITY];
    let (values, places) = cases.list(&[5], &with_nan).top_k(4);
    let is_nan = values.not_equal(&values).convert(DType::F32);
    cases.near(
        "NaN first",
        &is_nan,
        Array::new(&[4], &[1.0, 1.0, 0.0, 0.0]),
        0.0,
    );
    cases.near(
        "NaN in order",
        &places,
        Array::new(&[4], &[1.0, 3.0, 2.0, 0.0]),
        0.0,
    );
    let none = f64::NEG_INFINITY;
    let few = [5.0, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY];
    let (values, places) = cases.list(&[2, 2], &few).top_k(2);
    cases.near(
        "few",
        &values,
        Array::new(&[2, 2], &[5.0, none, none, none]),
        0.0,
    );
    cases.near(
        "each once",
        &places,
        Array::new(&[2, 2], &[0.0, 1.0, 0.0, 1.0]),
        0.0,
    );
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
    let none = told(&|x| x.roll(1, 2));
    assert!(
        none.contains("expected a dim with elements, got 2 of"),
        "{none}"
    );
    let none = told(&|x| x.cumsum(2));
    assert!(
        none.contains("cumsum") && none.contains("expected a dim of"),
        "{none}"
    );
    let whole = told(&|x| x.convert(DType::I32).variance(&[0]));
    assert!(whole.contains("expected floats, got"), "{whole}");
}
