use half::bf16;
use phalanx_graph::{DType, HostTensor};

use crate::cases::{Array, Cases, indices};

#[test]
fn dynamic_slices_clamp() {
    let mut cases = Cases::new();
    let (x, a) = cases.sample(DType::F32, &[4, 5]);
    let (update, u) = cases.sample(DType::F32, &[2, 3]);
    for (row, column) in [(0, 0), (1, 2), (9, 9), (-3, 1), (3, 4)] {
        let starts = [cases.list(&[], &[row]), cases.list(&[], &[column])];
        let starts = [&starts[0], &starts[1]];
        let (r, c) = (row.clamp(0, 2) as usize, column.clamp(0, 2) as usize);
        let expected = Array::build(&[2, 3], |i| a.at(&[i[0] + r, i[1] + c]));
        cases.exact(
            &format!("slice at {row}, {column}"),
            &x.dynamic_slice(&starts, &[2, 3]),
            expected,
        );
        let expected = Array::build(&[4, 5], |i| {
            let inside = (r..r + 2).contains(&i[0]) && (c..c + 3).contains(&i[1]);
            if inside {
                u.at(&[i[0] - r, i[1] - c])
            } else {
                a.at(i)
            }
        });
        cases.exact(
            &format!("update at {row}, {column}"),
            &x.dynamic_update_slice(&update, &starts),
            expected,
        );
        cases.exact("whole", &x.dynamic_slice(&starts, &[4, 5]), a.clone());
        cases.exact(
            "none",
            &x.dynamic_slice(&starts, &[0, 5]),
            Array::new(&[0, 5], &[]),
        );
    }
    let (scalar, s) = cases.sample(DType::F32, &[]);
    cases.exact("scalar", &scalar.dynamic_slice(&[], &[]), s);
    cases.check();
}

/// Splits an index of gathered rows into (indices before `dim`, index into `indices`, indices after).
fn split(index: &[usize], dim: usize, rank: usize) -> (&[usize], &[usize], &[usize]) {
    (&index[..dim], &index[dim..dim + rank], &index[dim + rank..])
}

#[test]
fn gather_clamps_and_scatter_drops() {
    let mut cases = Cases::new();
    let (table, t) = cases.sample(DType::F32, &[4, 3, 2]);
    let places: [(&[usize], &[i32]); 4] = [
        (&[], &[1]),
        (&[5], &[0, 3, 1, 1, -1]),
        (&[2, 2], &[2, 99, -7, 0]),
        (&[0], &[]),
    ];
    for (dims, picks) in places {
        let at = cases.list(dims, picks);
        let pick = Array::new(dims, &picks.iter().map(|&i| i.into()).collect::<Vec<f64>>());
        for dim in 0..3 {
            let size = t.dims[dim] as i64;
            let gathered_dims = [&t.dims[..dim], dims, &t.dims[dim + 1..]].concat();
            let expected = Array::build(&gathered_dims, |index| {
                let (before, middle, after) = split(index, dim, dims.len());
                let row = (pick.at(middle) as i64).clamp(0, size - 1) as usize;
                t.at(&[before, &[row], after].concat())
            });
            let name = format!("dim {dim} at {picks:?}");
            cases.exact(&format!("gather {name}"), &table.gather(&at, dim), expected);

            let (updates, u) = cases.sample(DType::F32, &gathered_dims);
            let mut expected = t.clone();
            for index in indices(&gathered_dims) {
                let (before, middle, after) = split(&index, dim, dims.len());
                let row = pick.at(middle) as i64;
                if (0..size).contains(&row) {
                    let place = [before, &[row as usize], after].concat();
                    expected.values[crate::cases::flat(&t.dims, &place)] += u.at(&index);
                }
            }
            cases.near(
                &format!("scatter {name}"),
                &table.scatter_add(&at, &updates, dim),
                expected,
                1e-6,
            );
        }
    }
    cases.check();
}

#[test]
fn integers_are_scattered_and_narrow_floats_accumulate_in_f32() {
    let mut cases = Cases::new();
    let base = cases.list(&[2], &[10i32, 20]);
    let at = cases.list(&[3], &[1i32, 1, 0]);
    let updates = cases.list(&[3], &[1i32, 2, 3]);
    cases.exact(
        "i32",
        &base.scatter_add(&at, &updates, 0),
        Array::new(&[2], &[13.0, 23.0]),
    );
    // In bf16 arithmetic 256 + 1 is 256: a running sum would stay there.
    let zeros = cases.list(&[1], &[bf16::ZERO]);
    let nowhere = cases.input(&HostTensor::zeros(phalanx_graph::Shape::new(
        DType::I32,
        [512],
    )));
    let ones = cases.input(&HostTensor::full(
        phalanx_graph::Shape::new(DType::Bf16, [512]),
        1.0,
    ));
    cases.exact(
        "bf16",
        &zeros.scatter_add(&nowhere, &ones, 0),
        Array::new(&[1], &[512.0]),
    );
    cases.check();
}
