use half::bf16;
use phalanx_graph::{DType, HostTensor, Shape, Tensor, gradients};

use crate::cases::{Array, Cases};

#[test]
fn while_loops() {
    let mut cases = Cases::new();
    let g = cases.graph.clone();
    let limit = cases.list(&[], &[10i32]);
    let count = cases.list(&[], &[0i32]);
    let (x, a) = cases.sample(DType::F32, &[3]);
    let carried = [&count, &limit, &x];
    let body = |v: &[Tensor]| vec![&v[0] + 1.0, v[1].clone(), &v[2] * 2.0];
    let doubled = g.while_loop(&carried, |v| v[0].less(&v[1]), body);
    cases.exact("doubled ten times", &doubled[2], a.map(|x| x * 1024.0));
    cases.exact("counter", &doubled[0], Array::scalar(10.0));
    let never = g.while_loop(&carried, |v| v[0].greater(&v[1]), body);
    cases.exact("never", &never[2], a.clone());
    // Collatz from 27 takes 111 steps: the length depends on the data.
    let start = cases.list(&[], &[27i32]);
    let zero = cases.list(&[], &[0i32]);
    let steps = g.while_loop(
        &[&start, &zero],
        |v| v[0].not_equal(&v[0].like(1.0)),
        |v| {
            let odd = v[0].and(&v[0].like(1.0)).equal(&v[0].like(1.0));
            vec![
                odd.select(&(&v[0] * 3.0 + 1.0), &(&v[0] / 2.0)),
                &v[1] + 1.0,
            ]
        },
    );
    cases.exact("collatz", &steps[1], Array::scalar(111.0));
    cases.check();
}

#[test]
fn loops_inside_loops() {
    let mut cases = Cases::new();
    let g = cases.graph.clone();
    let (x, a) = cases.sample(DType::F32, &[3, 2]);
    let zero = cases.list(&[], &[0.0f32]);
    // Outer: rows; inner: elements of the row, each added `outer carry` times one.
    let (last, rows) = g.scan(3, &[&zero], &[&x], &[], |carry, row, _| {
        let inner = carry[0].graph();
        let (sum, _) = inner.scan(2, &[&carry[0]], &[&row[0]], &[], |c, x, _| {
            (vec![&c[0] + &x[0]], vec![])
        });
        (sum.clone(), sum)
    });
    let total: f64 = a.values.iter().sum();
    cases.near("sum", &last[0], Array::scalar(total), 1e-6);
    let running = Array::build(&[3], |i| a.values[..2 * (i[0] + 1)].iter().sum());
    cases.near("running", &rows[0], running, 1e-6);
    cases.check();
}

#[test]
fn scans() {
    let mut cases = Cases::new();
    let g = cases.graph.clone();
    let (start, s) = cases.sample(DType::F32, &[2]);
    let (x, a) = cases.sample(DType::F32, &[4, 2]);
    let (factor, f) = cases.sample(DType::F32, &[]);
    let (last, ys) = g.scan(4, &[&start], &[&x], &[&factor], |carry, row, constant| {
        let next = &carry[0] * &constant[0] + &row[0];
        let shifted = &next - 1.0;
        (vec![next], vec![carry[0].clone(), shifted])
    });
    let mut carry = s.values.clone();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for row in 0..4 {
        before.extend(&carry);
        carry = (0..2)
            .map(|j| carry[j] * f.values[0] + a.at(&[row, j]))
            .collect();
        after.extend(carry.iter().map(|c| c - 1.0));
    }
    cases.near("last", &last[0], Array::new(&[2], &carry), 1e-5);
    cases.near("carries", &ys[0], Array::new(&[4, 2], &before), 1e-5);
    cases.near("rows", &ys[1], Array::new(&[4, 2], &after), 1e-5);
    let empty = cases.input(&HostTensor::zeros(Shape::f32([0, 2])));
    let (kept, none) = g.scan(0, &[&start], &[&empty], &[], |c, x, _| {
        (vec![&c[0] + &x[0]], vec![c[0].clone()])
    });
    cases.exact("no steps", &kept[0], s);
    cases.exact("no rows", &none[0], Array::new(&[0, 2], &[]));
    // Without carries: a map over rows; without rows: a repetition.
    let (_, squares) = g.scan(4, &[], &[&x], &[], |_, row, _| {
        (vec![], vec![row[0].square()])
    });
    cases.exact("map", &squares[0], a.map(|x| x * x));
    let (power, _) = g.scan(5, &[&factor], &[], &[], |c, _, _| {
        (vec![&c[0] * 2.0], vec![])
    });
    cases.exact("repeat", &power[0], f.map(|x| x * 32.0));
    cases.check();
}

#[test]
fn cases() {
    let mut cases = Cases::new();
    let g = cases.graph.clone();
    let (x, a) = cases.sample(DType::F32, &[6, 2]);
    // The sum of the first rows: all, four of them, none.
    let rows = [6, 4, 0];
    let sum_of = |index: i32, cases: &mut Cases| {
        let index = cases.list(&[], &[index]);
        let results = g.case(&index, &[&x], rows.len(), |branch, given| {
            let rows = given[0].slice_dim(0, 0, rows[branch]);
            vec![rows.sum_all(), given[0].like(branch as f64)]
        });
        (results[0].clone(), results[1].clone())
    };
    // Beyond the last is the last.
    for (index, branch) in [(0, 0), (1, 1), (2, 2), (3, 2), (-1, 2)] {
        let (sum, number) = sum_of(index, &mut cases);
        let expected: f64 = a.values[..2 * rows[branch]].iter().sum();
        cases.near(&format!("sum {index}"), &sum, Array::scalar(expected), 1e-6);
        let of = Array::scalar(branch as f64);
        cases.exact(&format!("number {index}"), &number, of);
    }
    // One result, and a branch inside a branch.
    let zero = cases.list(&[], &[0i32]);
    let nested = g.case(&zero, &[&x, &zero], 2, |outer, given| {
        let inner = given[0].graph();
        inner.case(&given[1], &[&given[0]], 2, |number, given| {
            vec![&given[0] * (1 + number + 2 * outer) as f64]
        })
    });
    cases.exact("nested", &nested[0], a);
    cases.check();
}

#[test]
fn gradients_of_constants_in_16_bits_are_summed_over_steps_in_f32() {
    let mut cases = Cases::new();
    let g = cases.graph.clone();
    let factor = cases.list(&[], &[bf16::ONE]);
    let rows = cases.list(&[1000], &[bf16::ONE; 1000]);
    let (_, ys) = g.scan(1000, &[], &[&rows], &[&factor], |_, row, constant| {
        (vec![], vec![&row[0] * &constant[0]])
    });
    let total = ys[0].convert(DType::F32).sum_all();
    let slope = gradients(&total, &[&factor]).remove(0).unwrap();
    assert_eq!(slope.dtype(), DType::Bf16);
    cases.exact("a thousand steps", &slope, Array::scalar(1000.0));
    cases.check();
}
