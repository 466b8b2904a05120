//! FarmHash's `Fingerprint64` of bytes (Pike and Alakuijala 2014), as TensorFlow and Keras hash names with it: `farmhashna::Hash64`.

pub(crate) const K0: u64 = 0xc3a5_c85c_97cb_3127;
pub(crate) const K1: u64 = 0xb492_b66f_be98_f273;
pub(crate) const K2: u64 = 0x9ae1_6a3b_2f90_404f;

/// Arithmetic modulo 2^64.
#[derive(Clone, Copy)]
struct Word(u64);

impl std::ops::Add for Word {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }
}

impl std::ops::Mul for Word {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self(self.0.wrapping_mul(other.0))
    }
}

impl std::ops::BitXor for Word {
    type Output = Self;
    fn bitxor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}

impl Word {
    const fn rotated(self, bits: u32) -> Self {
        Self(self.0.rotate_right(bits))
    }

    fn mixed(self) -> Self {
        self ^ Self(self.0 >> 47)
    }
}

/// The fingerprint of some bytes, the same on every machine and in every version.
pub(crate) fn fingerprint64(bytes: &[u8]) -> u64 {
    match bytes.len() {
        0 => Word(K2),
        1..=3 => up_to_3(bytes),
        4..=7 => {
            let first = Word(u64::from(four(bytes, 0)) << 3);
            let last = Word(u64::from(four(bytes, bytes.len() - 4)));
            hash_16(length(bytes) + first, last, factor(bytes))
        }
        8..=16 => up_to_16(bytes),
        17..=32 => up_to_32(bytes),
        33..=64 => up_to_64(bytes),
        _ => longer(bytes),
    }
    .0
}

/// Four bytes from a place on; 0 beyond the end.
fn four(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |found| u32::from_le_bytes(*found))
}

/// Eight bytes from a place on; 0 beyond the end.
fn eight(bytes: &[u8], at: usize) -> Word {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    Word(found.map_or(0, |found| u64::from_le_bytes(*found)))
}

const fn length(bytes: &[u8]) -> Word {
    Word(bytes.len() as u64)
}

fn factor(bytes: &[u8]) -> Word {
    Word(K2) + length(bytes) + length(bytes)
}

fn hash_16(u: Word, v: Word, factor: Word) -> Word {
    let a = ((u ^ v) * factor).mixed();
    ((v ^ a) * factor).mixed() * factor
}

fn up_to_3(bytes: &[u8]) -> Word {
    let at = |place: usize| u64::from(bytes[place]);
    let len = bytes.len();
    let y = Word(at(0) + (at(len >> 1) << 8));
    let z = Word(len as u64 + (at(len - 1) << 2));
    ((y * Word(K2)) ^ (z * Word(K0))).mixed() * Word(K2)
}

fn up_to_16(bytes: &[u8]) -> Word {
    let factor = factor(bytes);
    let a = eight(bytes, 0) + Word(K2);
    let b = eight(bytes, bytes.len() - 8);
    let c = b.rotated(37) * factor + a;
    let d = (a.rotated(25) + b) * factor;
    hash_16(c, d, factor)
}

/// Of the first and the last 16 bytes: their words, and the two sums of which the hash is made.
fn ends(bytes: &[u8], first: u64) -> (Word, Word, Word) {
    let (factor, len) = (factor(bytes), bytes.len());
    let a = eight(bytes, 0) * Word(first);
    let b = eight(bytes, 8);
    let c = eight(bytes, len - 8) * factor;
    let d = eight(bytes, len - 16) * Word(K2);
    let y = (a + b).rotated(43) + c.rotated(30) + d;
    (a, y, a + (b + Word(K2)).rotated(18) + c)
}

fn up_to_32(bytes: &[u8]) -> Word {
    let (_, y, z) = ends(bytes, K1);
    hash_16(y, z, factor(bytes))
}

fn up_to_64(bytes: &[u8]) -> Word {
    let (factor, len) = (factor(bytes), bytes.len());
    let (a, y, z) = ends(bytes, K2);
    let z = hash_16(y, z, factor);
    let e = eight(bytes, 16) * factor;
    let f = eight(bytes, 24);
    let g = (y + eight(bytes, len - 32)) * factor;
    let h = (z + eight(bytes, len - 24)) * factor;
    let u = (e + f).rotated(43) + g.rotated(30) + h;
    hash_16(u, e + (f + a).rotated(18) + g, factor)
}

/// The state of the hash of a long text.
struct FingerprintState {
    x: Word,
    y: Word,
    z: Word,
    v: [Word; 2],
    w: [Word; 2],
}

impl FingerprintState {
    fn new(bytes: &[u8]) -> Self {
        const SEED: Word = Word(81);
        let y = SEED * Word(K1) + Word(113);
        let z = (y * Word(K2) + Word(113)).mixed() * Word(K2);
        Self {
            x: SEED * Word(K2) + eight(bytes, 0),
            y,
            z,
            v: [Word(0); 2],
            w: [Word(0); 2],
        }
    }

    /// Takes in 64 bytes; the last time some parts count `times` their value.
    fn take(&mut self, bytes: &[u8], factor: Word, times: u64) {
        let at = |place: usize| eight(bytes, place);
        self.x = (self.x + self.y + self.v[0] + at(8)).rotated(37) * factor;
        self.y = (self.y + self.v[1] + at(48)).rotated(42) * factor;
        self.x = self.x ^ (self.w[1] * Word(times));
        self.y = self.y + self.v[0] * Word(times) + at(40);
        self.z = (self.z + self.w[0]).rotated(33) * factor;
        self.v = weak(bytes, 0, self.v[1] * factor, self.x + self.w[0]);
        self.w = weak(bytes, 32, self.z + self.w[1], self.y + at(16));
        std::mem::swap(&mut self.z, &mut self.x);
    }
}

/// The hash of 32 bytes from a place on with two seeds.
fn weak(bytes: &[u8], from: usize, a: Word, b: Word) -> [Word; 2] {
    let at = |place: usize| eight(bytes, from + place);
    let a = a + at(0);
    let b = (b + a + at(24)).rotated(21);
    let sum = a + at(8) + at(16);
    [sum + at(24), b + sum.rotated(44) + a]
}

fn longer(bytes: &[u8]) -> Word {
    let (len, mut state) = (bytes.len(), FingerprintState::new(bytes));
    // All whole blocks but one that ends the text.
    for block in bytes[..(len - 1) / 64 * 64].chunks_exact(64) {
        state.take(block, Word(K1), 1);
    }
    let factor = Word(K1) + Word((state.z.0 & 0xff) << 1);
    state.w[0] = state.w[0] + Word((len as u64 - 1) & 63);
    state.v[0] = state.v[0] + state.w[0];
    state.w[0] = state.w[0] + state.v[0];
    state.take(&bytes[len - 64..], factor, 9);
    let FingerprintState { x, y, z, v, w } = state;
    hash_16(
        hash_16(v[0], w[0], factor) + y.mixed() * Word(K0) + z,
        hash_16(v[1], w[1], factor) + x,
        factor,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_have_tensorflows_numbers() {
        let file = "../../tests/golden/keras/categories.json";
        let golden: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let records = golden["records"].as_array().unwrap();
        let record = records.iter().find(|record| record["name"] == "hashes");
        let pairs = record.unwrap()["hashes"].as_array().unwrap();
        assert!(pairs.len() > 200);
        for pair in pairs {
            let text = pair[0].as_str().unwrap();
            let expected: u64 = pair[1].as_str().unwrap().parse().unwrap();
            // TensorFlow gives no more of it.
            let found = fingerprint64(text.as_bytes()) % i64::MAX.cast_unsigned();
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
