use phalanx_graph::{DType, Graph, HostTensor, Shape};

use crate::support;

/// Threefry-2x32 with 20 rounds, as its authors define it.
fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD1_1BDA];
    let [mut x, mut y] = [
        counter[0].wrapping_add(keys[0]),
        counter[1].wrapping_add(keys[1]),
    ];
    for round in 0..20u32 {
        let by = [13, 15, 26, 6, 17, 29, 16, 24][round as usize % 8];
        x = x.wrapping_add(y);
        y = y.rotate_left(by) ^ x;
        if round % 4 == 3 {
            let group = round / 4 + 1;
            x = x.wrapping_add(keys[group as usize % 3]);
            y = y
                .wrapping_add(keys[(group as usize + 1) % 3])
                .wrapping_add(group);
        }
    }
    [x, y]
}

fn run(key: [u32; 2], row: u32, dims: &[usize]) -> Vec<u32> {
    let g = Graph::new();
    let k = g.parameter("key", Shape::new(DType::U32, [2]));
    let r = g.parameter("row", Shape::scalar(DType::U32));
    let bits = g.random_bits(&k, &r, dims);
    let program = g.finish(&[("bits", &bits)]).unwrap();
    let out = support::run(
        &program,
        &[HostTensor::new([2], &key), HostTensor::scalar(row)],
    );
    assert_eq!(out[0].dims(), dims);
    out[0].values().unwrap()
}

fn expected(key: [u32; 2], row: u32, dims: &[usize]) -> Vec<u32> {
    let rows = dims.first().copied().unwrap_or(1) as u32;
    let inner: usize = dims.iter().skip(1).product();
    (0..rows)
        .flat_map(|i| (0..inner as u32).map(move |j| threefry(key, [j, row.wrapping_add(i)])[0]))
        .collect()
}

#[test]
fn the_reference_gives_the_published_vectors() {
    assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
    assert_eq!(
        threefry([u32::MAX; 2], [u32::MAX; 2]),
        [0x1cb9_96fc, 0xbb00_2be7]
    );
}

#[test]
fn bits_are_threefry_of_row_and_place() {
    assert_eq!(run([0, 0], 0, &[])[0], 0x6b20_0159);
    let key = [0x1234_5678, 0x9ABC_DEF0];
    let cases: [(u32, &[usize]); 6] = [
        (0, &[5]),
        (7, &[3, 4]),
        (u32::MAX, &[3, 2, 3]),
        (9, &[]),
        (3, &[0, 3]),
        (3, &[3, 0]),
    ];
    for (row, dims) in cases {
        assert_eq!(run(key, row, dims), expected(key, row, dims), "{dims:?}");
    }
}

#[test]
fn a_batch_may_be_cut_between_its_rows() {
    let key = [42, 7];
    let whole = run(key, 100, &[6, 2, 5]);
    let parts = [run(key, 100, &[2, 2, 5]), run(key, 102, &[4, 2, 5])].concat();
    assert_eq!(whole, parts);
}

#[test]
fn bits_are_balanced_and_uncorrelated_between_rows() {
    let bits = run([1, 2], 0, &[64, 64]);
    let ones: u32 = bits.iter().map(|word| word.count_ones()).sum();
    let expected = 64.0 * 64.0 * 16.0;
    let deviation = (f64::from(ones) - expected) / (64.0 * 64.0 * 8.0f64).sqrt();
    assert!(deviation.abs() < 4.0, "{deviation} standard deviations");
    let mut distinct = bits.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > bits.len() - 4);
}
