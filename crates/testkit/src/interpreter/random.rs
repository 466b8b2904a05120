//! Random bits: Threefry-2x32 with 20 rounds, of counters that no shape changes.

use super::{Dual, Operand};

const TURNS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];

/// Element `(i, j..)` is the first word of the hash of (flat index of `j..`, row + `i`).
pub(super) fn bits(dims: &[usize], [key, row]: &[Operand; 2]) -> Result<Dual, String> {
    let (&[first, second], &[row]) = (key.ints()?, row.ints()?) else {
        return Err("expected a key of two words and one row".into());
    };
    let key = [first as u32, second as u32];
    let rows = dims.first().copied().unwrap_or(1);
    let columns: usize = dims.iter().skip(1).product();
    let mut found = Vec::with_capacity(rows * columns);
    for i in 0..rows {
        let row = (row as u32).wrapping_add(i as u32);
        let word = |column| i64::from(threefry(key, [column as u32, row])[0]);
        found.extend((0..columns).map(word));
    }
    Ok(Dual::ints(found))
}

/// After Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let schedule = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD1_1BDA];
    let mut x = [
        counter[0].wrapping_add(schedule[0]),
        counter[1].wrapping_add(schedule[1]),
    ];
    for round in 0..20usize {
        x[0] = x[0].wrapping_add(x[1]);
        x[1] = x[1].rotate_left(TURNS[round % 8]) ^ x[0];
        if round % 4 == 3 {
            let turn = round / 4 + 1;
            x[0] = x[0].wrapping_add(schedule[turn % 3]);
            x[1] = x[1].wrapping_add(schedule[(turn + 1) % 3]);
            x[1] = x[1].wrapping_add(turn as u32);
        }
    }
    x
}
