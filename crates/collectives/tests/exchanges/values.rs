//! What comes out, against plain loops in the order of ranks.

use half::{bf16, f16};
use phalanx_collectives::{Algorithm, Communicator, CommunicatorOptions, Element, ReduceOp, share};
use proptest::prelude::*;

use crate::groups::{Kind, each, group, options};

const KINDS: [Kind; 3] = [Kind::InMemory, Kind::Shared, Kind::Tcp];

/// Bytes of a rank's elements: small numbers that are no powers of two, with some that are not numbers.
fn bytes(element: Element, rank: usize, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed ^ (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut out = Vec::new();
    for _ in 0..count {
        let word = next();
        let value = (word % 20_001) as f64 / 977.0 - 10.0;
        let special = word % 1013 == 0;
        let value = if special { f64::NAN } else { value };
        match element {
            Element::F32 => out.extend((value as f32).to_le_bytes()),
            Element::F64 => out.extend(value.to_le_bytes()),
            Element::F16 => out.extend(f16::from_f64(value).to_le_bytes()),
            Element::Bf16 => out.extend(bf16::from_f64(value).to_le_bytes()),
            Element::Bool => out.push(u8::from(word % 3 > 0)),
            _ => out.extend(
                &(word.wrapping_mul(0x1234_5678_9abc_def1)).to_le_bytes()[..element.size()],
            ),
        }
    }
    out
}

/// Floats of the ranks in their order; a NaN stays one.
fn reduced_floats<T: Copy + PartialOrd + std::ops::Add<Output = T>>(
    op: ReduceOp,
    all: impl Iterator<Item = T>,
    mean: impl Fn(T) -> T,
) -> T {
    let nan = |value: &T| value.partial_cmp(value).is_none();
    let combine = |a: T, b: T| match op {
        ReduceOp::Sum | ReduceOp::Mean => a + b,
        _ if nan(&a) => a,
        _ if nan(&b) => b,
        ReduceOp::Max if a > b => a,
        ReduceOp::Max => b,
        _ if a < b => a,
        _ => b,
    };
    let all = all.reduce(combine).unwrap();
    if op == ReduceOp::Mean { mean(all) } else { all }
}

/// One element of each rank, in order, reduced without any of the library's code.
fn reduced(element: Element, op: ReduceOp, parts: &[&[u8]]) -> Vec<u8> {
    macro_rules! values {
        ($type:ty) => {
            parts
                .iter()
                .map(|part| <$type>::from_le_bytes((*part).try_into().unwrap()))
        };
    }
    macro_rules! integer {
        ($type:ty) => {{
            let all = values!($type).reduce(|a, b| match op {
                ReduceOp::Max => a.max(b),
                ReduceOp::Min => a.min(b),
                ReduceOp::And => a & b,
                _ => a.wrapping_add(b),
            });
            all.unwrap().to_le_bytes().to_vec()
        }};
    }
    let ranks = parts.len() as f32;
    let in_f32 = |all: &mut dyn Iterator<Item = f32>| reduced_floats(op, all, |sum| sum / ranks);
    match element {
        Element::F32 => in_f32(&mut values!(f32)).to_le_bytes().to_vec(),
        Element::F64 => {
            let all = reduced_floats(op, values!(f64), |sum| sum / f64::from(ranks));
            all.to_le_bytes().to_vec()
        }
        Element::F16 => {
            let all = in_f32(&mut values!(f16).map(f16::to_f32));
            f16::from_f32(all).to_le_bytes().to_vec()
        }
        Element::Bf16 => {
            let all = in_f32(&mut values!(bf16).map(bf16::to_f32));
            bf16::from_f32(all).to_le_bytes().to_vec()
        }
        Element::I32 => integer!(i32),
        Element::I64 => integer!(i64),
        Element::U32 => integer!(u32),
        Element::U64 => integer!(u64),
        Element::U8 | Element::Bool => integer!(u8),
        Element::I8 => integer!(i8),
    }
}

fn expected(element: Element, op: ReduceOp, ranks: usize, count: usize, seed: u64) -> Vec<u8> {
    let all: Vec<Vec<u8>> = (0..ranks)
        .map(|rank| bytes(element, rank, count, seed))
        .collect();
    let size = element.size();
    (0..count)
        .flat_map(|index| {
            let parts: Vec<&[u8]> = all
                .iter()
                .map(|a| &a[index * size..(index + 1) * size])
                .collect();
            reduced(element, op, &parts)
        })
        .collect()
}

/// Equal bits, or both not a number.
fn same(element: Element, found: &[u8], expected: &[u8]) -> bool {
    let size = element.size();
    let nan = |part: &[u8]| match element {
        Element::F32 => f32::from_le_bytes(part.try_into().unwrap()).is_nan(),
        Element::F64 => f64::from_le_bytes(part.try_into().unwrap()).is_nan(),
        Element::F16 => f16::from_le_bytes(part.try_into().unwrap()).is_nan(),
        Element::Bf16 => bf16::from_le_bytes(part.try_into().unwrap()).is_nan(),
        _ => false,
    };
    found.len() == expected.len()
        && found
            .chunks(size)
            .zip(expected.chunks(size))
            .all(|(a, b)| a == b || nan(a) && nan(b))
}

fn check_all_reduce(
    ranks: &[Communicator],
    element: Element,
    op: ReduceOp,
    count: usize,
    seed: u64,
) {
    let expected = expected(element, op, ranks.len(), count, seed);
    let found = each(ranks, |rank| {
        let given = bytes(element, rank.rank(), count, seed);
        let mut slice = given.clone();
        rank.all_reduce(&mut slice, element, op).unwrap();
        let mut buffer = rank.buffer(given.len());
        buffer.copy_from_slice(&given);
        rank.all_reduce_buffer(&mut buffer, element, op).unwrap();
        assert!(slice == buffer[..], "{element} {op} {count}");
        let mut scattered = given;
        let share = rank.reduce_scatter(&mut scattered, element, op).unwrap();
        let bytes = share.start * element.size()..share.end * element.size();
        assert!(
            scattered[bytes.clone()] == slice[bytes],
            "{element} {op} {count}"
        );
        slice
    });
    for one in &found {
        assert!(*one == found[0], "ranks differ: {element} {op} {count}");
        assert!(
            same(element, one, &expected),
            "{element} {op} {count} {}",
            ranks.len()
        );
    }
}

/// Every type and reduction, at sizes on both sides of every limit that the algorithms have.
fn check_kind(kind: Kind, ranks: usize, options: &CommunicatorOptions) {
    let group = group(kind, ranks, options);
    for element in Element::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.takes(element)) {
            for count in [0, 1, 17, 1000] {
                check_all_reduce(&group, element, op, count, 7);
            }
        }
    }
    for (element, op, count) in [
        (Element::F32, ReduceOp::Sum, (64 << 10) / 4),
        (Element::F32, ReduceOp::Mean, (64 << 10) / 4 + 1),
        (Element::F32, ReduceOp::Sum, 700_001),
        (Element::Bf16, ReduceOp::Sum, 100_003),
        (Element::F16, ReduceOp::Mean, 70_001),
        (Element::I64, ReduceOp::Max, 50_007),
        (Element::Bool, ReduceOp::And, 130_003),
    ] {
        check_all_reduce(&group, element, op, count, 9);
    }
}

#[test]
fn all_reduces_are_sums_in_the_order_of_ranks() {
    for kind in KINDS {
        for ranks in 1..=3 {
            check_kind(kind, ranks, &options());
        }
    }
    check_kind(Kind::InMemory, 5, &options());
    check_kind(Kind::Tcp, 4, &options());
}

#[test]
fn machines_with_several_ranks_give_the_same_bits() {
    check_kind(Kind::Machines(2), 4, &options());
    check_kind(Kind::Machines(3), 3, &options());
}

#[test]
fn every_algorithm_gives_the_same_bits() {
    for algorithm in [Algorithm::Direct, Algorithm::Pairwise, Algorithm::Ring] {
        let options = CommunicatorOptions {
            algorithm,
            ..options()
        };
        for (kind, ranks) in [
            (Kind::InMemory, 3),
            (Kind::Tcp, 4),
            (Kind::Machines(2), 4),
            (Kind::Machines(3), 6),
        ] {
            let group = group(kind, ranks, &options);
            for (element, count) in [
                (Element::F32, 1),
                (Element::F32, 100_003),
                (Element::Bf16, 10_001),
            ] {
                check_all_reduce(&group, element, ReduceOp::Sum, count, 3);
                check_all_reduce(&group, element, ReduceOp::Mean, count, 3);
            }
        }
    }
}

#[test]
fn several_connections_give_the_same_bits() {
    let options = CommunicatorOptions {
        connections: 3,
        ..options()
    };
    let group = group(Kind::Tcp, 3, &options);
    for count in [1, 50_001, 700_001] {
        check_all_reduce(&group, Element::F32, ReduceOp::Sum, count, 5);
    }
}

#[test]
fn a_narrow_wire_rounds_what_goes_in_and_what_comes_out() {
    for wire in [Element::Bf16, Element::F16] {
        let options = CommunicatorOptions {
            wire: Some(wire),
            ..options()
        };
        for kind in KINDS {
            let group = group(kind, 3, &options);
            for count in [5, 40_001] {
                let all: Vec<Vec<u8>> = (0..3)
                    .map(|rank| bytes(Element::F32, rank, count, 2))
                    .collect();
                let round = |value: f32| match wire {
                    Element::Bf16 => bf16::from_f32(value).to_f32(),
                    _ => f16::from_f32(value).to_f32(),
                };
                let at = |rank: usize, i: usize| {
                    round(f32::from_le_bytes(
                        all[rank][4 * i..4 * i + 4].try_into().unwrap(),
                    ))
                };
                let sum = |i| round(at(0, i) + at(1, i) + at(2, i));
                let expected: Vec<u8> = (0..count).flat_map(|i| sum(i).to_le_bytes()).collect();
                for found in each(&group, |rank| {
                    let mut data = all[rank.rank()].clone();
                    rank.all_reduce(&mut data, Element::F32, ReduceOp::Sum)
                        .unwrap();
                    data
                }) {
                    assert!(
                        same(Element::F32, &found, &expected),
                        "{wire} {kind:?} {count}"
                    );
                }
            }
        }
    }
}

#[test]
fn gathers_and_broadcasts_bring_every_array_to_all() {
    for kind in [Kind::InMemory, Kind::Shared, Kind::Tcp, Kind::Machines(2)] {
        let group = group(kind, 4, &options());
        for count in [0, 1, 1000, 70_000, 1_000_001] {
            // Rank 1 has nothing, and the others differ.
            let length = |rank: usize| if rank == 1 { 0 } else { count + rank };
            let all: Vec<Vec<u8>> = (0..4)
                .map(|rank| bytes(Element::U8, rank, length(rank), 4))
                .collect();
            for found in each(&group, |rank| {
                rank.all_gather(&all[rank.rank()], Element::U8).unwrap()
            }) {
                assert!(found == all, "{kind:?} {count}");
            }
            for root in [0, 3] {
                for found in each(&group, |rank| {
                    let mut data = bytes(Element::U8, rank.rank(), count, 5);
                    rank.broadcast(root, &mut data).unwrap();
                    rank.barrier().unwrap();
                    data
                }) {
                    assert!(
                        found == bytes(Element::U8, root, count, 5),
                        "{kind:?} {count} {root}"
                    );
                }
            }
        }
    }
}

#[test]
fn shares_of_all_ranks_are_the_array() {
    let lengths: Vec<usize> = (0..3).map(|rank| share(1000, 3, rank).len()).collect();
    assert_eq!(lengths, [384, 384, 232]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_sequence_of_sizes_and_types_is_right(
        kind in prop::sample::select(vec![Kind::InMemory, Kind::Shared, Kind::Tcp]),
        ranks in 1usize..=4,
        steps in prop::collection::vec((0usize..11, 0usize..5, 0usize..40_000, any::<u64>()), 1..5),
    ) {
        let group = group(kind, ranks, &options());
        for (element, op, count, seed) in steps {
            let (element, op) = (Element::ALL[element], ReduceOp::ALL[op]);
            if op.takes(element) {
                check_all_reduce(&group, element, op, count, seed);
            }
        }
    }
}
