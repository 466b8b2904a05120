//! Convolutions by points of their kernels, which are computed apart: the bits of the calls that transform kernels themselves.

use crate::tiles::TILES;
use crate::{Array, Case, client, kind, run};

/// A kernel that all threads transform together, one whose output channels they share, and one with a rest in the last panel.
const CASES: [Case; 3] = [
    TILES,
    Case {
        name: "many channels",
        batch: 1,
        image: [7, 7],
        channels: [200, 160],
        ..TILES
    },
    Case {
        name: "half a panel",
        batch: 2,
        image: [8, 9],
        channels: [16, 40],
        ..TILES
    },
];

fn points_of(case: &Case) -> i64 {
    let [inputs, outputs] = [case.kernel_dims()[2], case.kernel_dims()[3]];
    (outputs + 15).div_euclid(16) * 36 * (inputs + 1) * 16
}

/// A convolution with a bias and a rectifier by points of the given number, one without, and one with a bias, another array and a rectifier, by
/// the points once more; then the same from the kernel.
fn body(case: &Case, points: i64, replicas: usize) -> String {
    let [x, w, y] =
        [case.x_dims(), case.kernel_dims(), case.y_dims()].map(|dims| kind(&dims, "f32"));
    let b = kind(&case.kernel_dims()[3..], "f32");
    let p = kind(&[points], "f32");
    let attributes = case.attributes();
    let config = |relu: bool, named: &str| {
        format!(
            "{{api_version = 4 : i32, backend_config = {{{attributes}, ceiling = 0.0 : f32, relu = {relu}, replicas = {replicas} : i64{named}}}}}"
        )
    };
    let (ramp, none) = (config(true, ""), config(false, ""));
    let (tiles, plain) = (
        config(true, ", algorithm = \"tiles\""),
        config(false, ", algorithm = \"tiles\""),
    );
    format!(
        "%p = stablehlo.custom_call @phalanx.conv_points(%a1) {{api_version = 4 : i32, backend_config = {{replicas = {replicas} : i64}}}} : ({w}) -> {p}
        %ramp = stablehlo.custom_call @phalanx.conv_by_points(%a0, %p, %a2) {ramp} : ({x}, {p}, {b}) -> {y}
        %y = stablehlo.custom_call @phalanx.conv_by_points(%a0, %p) {none} : ({x}, {p}) -> {y}
        %ramp2 = stablehlo.custom_call @phalanx.conv(%a0, %a1, %a2) {tiles} : ({x}, {w}, {b}) -> {y}
        %y2 = stablehlo.custom_call @phalanx.conv(%a0, %a1) {plain} : ({x}, {w}) -> {y}
        %sum = stablehlo.custom_call @phalanx.conv_by_points(%a0, %p, %a2, %a3) {ramp} : ({x}, {p}, {b}, {y}) -> {y}
        %sum2 = stablehlo.custom_call @phalanx.conv(%a0, %a1, %a2, %a3) {tiles} : ({x}, {w}, {b}, {y}) -> {y}
        return %ramp, %y, %sum, %ramp2, %y2, %sum2, %p : {y}, {y}, {y}, {y}, {y}, {y}, {p}"
    )
}

fn operands(case: &Case) -> [Array; 4] {
    [
        Array::gaussian(&case.x_dims(), 31),
        Array::gaussian(&case.kernel_dims(), 32),
        Array::gaussian(&case.kernel_dims()[3..], 33),
        Array::gaussian(&case.y_dims(), 34),
    ]
}

fn shapes(case: &Case, points: i64) -> Vec<Vec<i64>> {
    let mut shapes = vec![case.y_dims(); 6];
    shapes.push(vec![points]);
    shapes
}

#[test]
fn points_give_the_bits_of_the_kernel() {
    let Some((client, kernels)) = client() else {
        return;
    };
    assert!(kernels.support().tiles || !cfg!(target_arch = "x86_64"));
    for case in CASES {
        let (given, points) = (operands(&case), points_of(&case));
        let mut all = Vec::new();
        for replicas in [1, 1, 64] {
            let body = body(&case, points, replicas);
            let found = run(client, &given.each_ref(), &shapes(&case, points), &body).unwrap();
            assert_eq!(found[..3], found[3..6], "{}", case.name);
            assert_ne!(found[0], found[2], "{}", case.name);
            assert!(found[1].iter().any(|value| *value < 0.0));
            all.push(found);
        }
        assert!(all.iter().all(|found| *found == all[0]), "{}", case.name);
    }
}

#[test]
fn points_keep_a_nan() {
    let Some((client, _)) = client() else { return };
    let case = TILES;
    let points = points_of(&case);
    for operand in 0..4 {
        let mut given = operands(&case);
        given[operand].values[5] = f32::NAN;
        let body = body(&case, points, 1);
        let found = run(client, &given.each_ref(), &shapes(&case, points), &body).unwrap();
        for found in [&found[2], &found[5]] {
            assert!(found.iter().any(|value| value.is_nan()), "{operand}");
        }
    }
}

#[test]
fn points_of_another_length_are_refused() {
    let Some((client, _)) = client() else { return };
    let case = TILES;
    let points = points_of(&case) - 1;
    let body = body(&case, points, 1);
    let error = run(
        client,
        &operands(&case).each_ref(),
        &shapes(&case, points),
        &body,
    );
    let error = error.unwrap_err();
    assert!(
        error.contains("the points of a kernel of [24, 16] channels"),
        "{error}"
    );
}
