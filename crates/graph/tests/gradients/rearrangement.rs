//! Derivatives of what moves elements: reshapes, paddings, slices, gathers, scatters.

use phalanx_graph::op::{PadDim, SliceDim};
use phalanx_graph::{Graph, HostTensor, Lowering, Platform, Shape, Tensor, gradients};

use crate::{check, ints, scrambled};

#[test]
fn rearrangement() {
    check("reshape", &[scrambled(&[2, 6])], &|x| {
        x[0].reshape(&[3, 4]).square()
    });
    check("transpose", &[scrambled(&[2, 3, 4])], &|x| {
        x[0].transpose(&[2, 0, 1]).square()
    });
    check("broadcast", &[scrambled(&[3])], &|x| {
        x[0].broadcast_in(&[2, 3, 4], &[1]).square()
    });
    check("broadcast of a 1", &[scrambled(&[2, 1])], &|x| {
        x[0].broadcast_to(&[5, 2, 3]).square()
    });
    check(
        "broadcast of a scalar to a scalar",
        &[scrambled(&[])],
        &|x| x[0].broadcast_in(&[], &[]).square(),
    );
    check("broadcast to 1", &[scrambled(&[1])], &|x| {
        x[0].broadcast_in(&[1, 1], &[0]).square()
    });
    check("reverse", &[scrambled(&[2, 3, 2])], &|x| {
        x[0].reverse(&[0, 2]).square()
    });
    check(
        "concat",
        &[scrambled(&[2, 3]), scrambled(&[2, 1]), scrambled(&[2, 2])],
        &|x| Tensor::concat(&[&x[0], &x[1], &x[2], &x[0]], 1).square(),
    );
}

#[test]
fn selections() {
    check("cumsum", &[scrambled(&[2, 5])], &|x| {
        x[0].cumsum(1).square()
    });
    check("top_k", &[scrambled(&[3, 5])], &|x| {
        x[0].top_k(3).0.square()
    });
    check("stack", &[scrambled(&[2, 3]), scrambled(&[2, 3])], &|x| {
        Tensor::stack(&[&x[0], &x[1], &x[0]], 1).square()
    });
    check("roll", &[scrambled(&[2, 5])], &|x| {
        x[0].roll(-2, 1).square()
    });
    check("variance", &[scrambled(&[2, 3, 4])], &|x| {
        x[0].variance(&[0, 2]).square()
    });
}

const PADS: [[PadDim; 2]; 3] = [
    [
        PadDim {
            low: 1,
            high: 2,
            interior: 0,
        },
        PadDim {
            low: 0,
            high: 0,
            interior: 2,
        },
    ],
    [
        PadDim {
            low: -1,
            high: 2,
            interior: 1,
        },
        PadDim {
            low: 2,
            high: -2,
            interior: 0,
        },
    ],
    [
        PadDim {
            low: -1,
            high: -1,
            interior: 1,
        },
        PadDim {
            low: -2,
            high: 3,
            interior: 2,
        },
    ],
];

const SLICES: [[SliceDim; 2]; 2] = [
    [
        SliceDim {
            start: 1,
            limit: 4,
            stride: 2,
        },
        SliceDim {
            start: 0,
            limit: 3,
            stride: 3,
        },
    ],
    [
        SliceDim {
            start: 0,
            limit: 5,
            stride: 1,
        },
        SliceDim {
            start: 2,
            limit: 3,
            stride: 1,
        },
    ],
];

#[test]
fn padding_and_slicing() {
    for (i, pads) in PADS.iter().enumerate() {
        check(&format!("pad {i}"), &[scrambled(&[3, 4])], &|x| {
            x[0].pad(pads, 0.7).square()
        });
    }
    check(
        "pad with a tensor",
        &[scrambled(&[3]), scrambled(&[])],
        &|x| {
            let ones = x[0].zeros_like().exp();
            let edge = [PadDim {
                low: 2,
                high: -1,
                interior: 1,
            }];
            (x[0].pad(&edge, 0.0) + &x[1] * (1.0 - ones.pad(&edge, 0.0))).square()
        },
    );
    for (i, slices) in SLICES.iter().enumerate() {
        check(&format!("slice {i}"), &[scrambled(&[5, 3])], &|x| {
            x[0].slice(slices).square()
        });
    }
}

#[test]
fn slices_at_computed_places() {
    for start in [-2, 0, 1, 9] {
        let inputs = [scrambled(&[4, 3]), ints(&[], &[start])];
        check("dynamic_slice", &inputs, &|x| {
            let zero = x[1].like(0.0);
            x[0].dynamic_slice(&[&x[1], &zero], &[2, 2]).square()
        });
        let inputs = [scrambled(&[4, 3]), scrambled(&[2, 2]), ints(&[], &[start])];
        check("dynamic_update_slice", &inputs, &|x| {
            let zero = x[2].like(0.0);
            x[0].dynamic_update_slice(&x[1], &[&x[2], &zero]).square()
        });
    }
}

#[test]
fn indexing() {
    // 7 and -1 are out of range: gather clamps, scatter drops.
    let indices = ints(&[2, 2], &[0, 3, 3, 7]);
    check(
        "gather rows",
        &[scrambled(&[4, 3]), indices.clone()],
        &|x| x[0].gather(&x[1], 0).square(),
    );
    check(
        "gather columns",
        &[scrambled(&[2, 4]), ints(&[3], &[1, -1, 1])],
        &|x| x[0].gather(&x[1], 1).square(),
    );
    // What is scattered is added to the gradient of the other use, in its shape.
    check(
        "gather beside another use",
        &[scrambled(&[2, 3]), ints(&[3], &[0, 5, 5])],
        &|x| x[0].reshape(&[6]).gather(&x[1], 0).square().sum_all() + x[0].exp().sum_all(),
    );
    // Always the same elements: some of none, of several, out of range; more than are gathered back.
    for picked in [&[1, -1, 3, 1, 9][..], &[3], &[0, 1, 2, 3], &[2; 12]] {
        let picked = ints(&[picked.len()], picked);
        check("gather the same", &[scrambled(&[2, 4, 3])], &|x| {
            x[0].gather(&x[0].graph().constant(picked.clone()), 1)
                .square()
        });
    }
    check("gather one", &[scrambled(&[4]), ints(&[], &[2])], &|x| {
        x[0].gather(&x[1], 0).square()
    });
    let inputs = [scrambled(&[4, 3]), indices, scrambled(&[2, 2, 3])];
    check("scatter_add rows", &inputs, &|x| {
        x[0].scatter_add(&x[1], &x[2], 0).square()
    });
    let inputs = [
        scrambled(&[2, 4]),
        ints(&[3], &[1, -1, 1]),
        scrambled(&[2, 3]),
    ];
    check("scatter_add columns", &inputs, &|x| {
        x[0].scatter_add(&x[1], &x[2], 1).square()
    });
    check("scatter_set columns", &inputs_of_set(), &|x| {
        x[0].scatter_set(&x[1], &x[2], 1).square()
    });
}

#[test]
fn a_gather_of_the_same_elements_is_derived_without_a_scatter() {
    let scatters = |picked: &[i32], dim| {
        let g = Graph::new();
        let x = g.parameter("x", Shape::f32([4, 4]));
        let picked = g.constant(ints(&[picked.len()], picked));
        let gradient = gradients(&x.gather(&picked, dim).square().sum_all(), &[&x]).remove(0);
        let program = g.finish(&[("gradient", &gradient.unwrap())]).unwrap();
        let text = program.to_stablehlo(&Lowering::new(Platform::Cpu, "gather"));
        text.contains("stablehlo.scatter")
    };
    assert!(!scatters(&[0, 0, 3, 9], 1));
    // Rows, and one element too often.
    assert!(scatters(&[0, 0, 3, 9], 0));
    assert!(scatters(&[2; 9], 1));
}

/// Columns 3, none and 1 of four.
fn inputs_of_set() -> [HostTensor; 3] {
    let indices = ints(&[3], &[3, -1, 1]);
    [scrambled(&[2, 4]), indices, scrambled(&[2, 3])]
}
