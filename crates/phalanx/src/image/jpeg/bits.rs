//! The bit reader of entropy-coded data, and Huffman tables.
//!
//! A Huffman code is followed by the bits of its value. The table is indexed by the next 10 bits, which usually hold both, so
//! one look-up gives run, size and value at once; longer codes are found by comparing with the last code of each length.

/// Number of bits that index the look-up table.
const LOOKUP_BITS: u32 = 10;
/// In an entry of a look-up table: the value is part of it.
const HAS_VALUE: u32 = 1 << 6;

/// Entropy-coded data without stuffing, read from the highest bit on; past the end there are zeros.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, the first of them highest.
    ahead: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    pub(super) const fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            at: 0,
            ahead: 0,
            count: 0,
        }
    }

    /// Whether more bits were used than there are.
    pub(super) const fn is_overrun(&self) -> bool {
        self.at * 8 > self.data.len() * 8 + self.count as usize
    }

    /// At least 56 bits ahead.
    #[inline(always)]
    fn refill(&mut self) {
        let word = match self.data.get(self.at..self.at + 8) {
            Some(bytes) => u64::from_be_bytes(bytes.try_into().expect("eight bytes")),
            None => self.tail(),
        };
        self.ahead |= word >> self.count;
        self.at += ((63 - self.count) / 8) as usize;
        self.count |= 56;
    }

    #[cold]
    fn tail(&self) -> u64 {
        let rest = self.data.get(self.at..).unwrap_or(&[]);
        let mut bytes = [0; 8];
        bytes[..rest.len()].copy_from_slice(rest);
        u64::from_be_bytes(bytes)
    }

    /// Enough bits ahead for a code and its value.
    #[inline(always)]
    fn prepare(&mut self) {
        if self.count < 32 {
            self.refill();
        }
    }

    #[inline(always)]
    const fn skip(&mut self, bits: u32) {
        self.ahead <<= bits;
        self.count -= bits;
    }

    /// At most 16 bits as a number.
    #[inline(always)]
    pub(super) fn take(&mut self, bits: u32) -> u32 {
        self.prepare();
        // In two steps, as a shift by 64 is none.
        let value = (self.ahead >> 1 >> (63 - bits)) as u32;
        self.skip(bits);
        value
    }
}

/// A value of `size` bits as JPEG writes it: those that begin with 0 are negative.
#[inline(always)]
const fn extended(bits: u32, size: u32) -> i32 {
    let value = bits as i32;
    if size > 0 && bits >> (size - 1) == 0 {
        value - (1 << size) + 1
    } else {
        value
    }
}

/// A code and the value after it: how many zeros come before, of how many bits it is, and the value.
#[derive(Clone, Copy)]
pub(super) struct RunLengthCode {
    pub(super) run: u32,
    pub(super) size: u32,
    pub(super) value: i32,
}

/// A Huffman table.
#[derive(Clone)]
pub(super) struct Huffman {
    counts: [u8; 16],
    symbols: Vec<u8>,
    /// By the next bits: length of code and value (bits 0 to 5), [`HAS_VALUE`], size (8 to 11), run (12 to 15), value (16 to 31);
    /// 0 where the code is longer.
    lookup: Vec<u32>,
    /// For each length: the end of its codes, left-aligned in 16 bits, and what makes a code the index of its symbol.
    ends: [u32; 17],
    offsets: [i32; 17],
}

impl Huffman {
    /// The table of a number of codes for each length from 1 to 16 and their symbols; `None` when there are more than fit.
    pub(super) fn new(counts: [u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut table = Self {
            counts,
            symbols: symbols.to_vec(),
            lookup: vec![0; 1 << LOOKUP_BITS],
            ends: [0; 17],
            offsets: [0; 17],
        };
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=16u32 {
            let count = usize::from(counts[length as usize - 1]);
            table.offsets[length as usize] = index as i32 - code as i32;
            for symbol in symbols.get(index..index + count)? {
                if code >= 1 << length {
                    return None;
                }
                table.enter(code, length, *symbol);
                code += 1;
            }
            index += count;
            table.ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Some(table)
    }

    /// Whether it was made of the same codes.
    pub(super) fn is(&self, counts: [u8; 16], symbols: &[u8]) -> bool {
        self.counts == counts && self.symbols == symbols
    }

    fn enter(&mut self, code: u32, length: u32, symbol: u8) {
        let Some(free) = LOOKUP_BITS.checked_sub(length) else {
            return;
        };
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        for rest in 0..1u32 << free {
            let mut entry = (length + size) | size << 8 | run << 12;
            if size <= free {
                let value = extended(rest >> (free - size), size);
                entry |= HAS_VALUE | (value as u32) << 16;
            }
            self.lookup[(code << free | rest) as usize] = entry;
        }
    }

    /// The next code and its value; `None` when no code begins so.
    #[inline(always)]
    pub(super) fn read(&self, bits: &mut Bits<'_>) -> Option<RunLengthCode> {
        bits.prepare();
        let entry = self.lookup[(bits.ahead >> (64 - LOOKUP_BITS)) as usize];
        let (run, size) = (entry >> 12 & 15, entry >> 8 & 15);
        if entry & HAS_VALUE != 0 {
            bits.skip(entry & 63);
            let value = entry as i32 >> 16;
            return Some(RunLengthCode { run, size, value });
        }
        let symbol = self.symbol(bits)?;
        let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        let value = extended(bits.take(size), size);
        Some(RunLengthCode { run, size, value })
    }

    /// Goes past the next code and its value; the value is not looked at.
    #[inline(always)]
    pub(super) fn pass(&self, bits: &mut Bits<'_>) -> Option<RunLengthCode> {
        bits.prepare();
        let entry = self.lookup[(bits.ahead >> (64 - LOOKUP_BITS)) as usize];
        if entry != 0 {
            bits.skip(entry & 63);
            let (run, size) = (entry >> 12 & 15, entry >> 8 & 15);
            return Some(RunLengthCode {
                run,
                size,
                value: 0,
            });
        }
        self.read(bits)
    }

    /// The next symbol alone.
    #[inline(always)]
    pub(super) fn symbol(&self, bits: &mut Bits<'_>) -> Option<u8> {
        bits.prepare();
        let entry = self.lookup[(bits.ahead >> (64 - LOOKUP_BITS)) as usize];
        if entry != 0 {
            let size = entry >> 8 & 15;
            bits.skip((entry & 63) - size);
            return Some((entry >> 8) as u8);
        }
        self.long_symbol(bits)
    }

    #[cold]
    fn long_symbol(&self, bits: &mut Bits<'_>) -> Option<u8> {
        let ahead = (bits.ahead >> 48) as u32;
        let length = (1..=16).find(|&length| ahead < self.ends[length])?;
        let code = (ahead >> (16 - length)) as i32;
        bits.skip(length as u32);
        let index = usize::try_from(code + self.offsets[length]).ok()?;
        self.symbols.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_highest_first_and_then_zeros() {
        let mut bits = Bits::new(&[0b1010_0101, 0xff]);
        assert_eq!([bits.take(1), bits.take(3), bits.take(0)], [1, 2, 0]);
        assert_eq!(bits.take(12), 0x5ff);
        assert!(!bits.is_overrun());
        assert_eq!((bits.take(16), bits.is_overrun()), (0, true));
    }

    #[test]
    fn codes_of_every_length_are_read() {
        // One code of each length: 0, 10, 110, .. with the symbols 0 to 15.
        let symbols: Vec<u8> = (0..16).collect();
        let table = Huffman::new([1; 16], &symbols).unwrap();
        for length in 1..=16u32 {
            let code = 0xfffeu32 >> (16 - length) & 0xffff;
            let code = code & ((1 << length) - 1) & !1;
            let word = (u64::from(code) << (64 - length)).to_be_bytes();
            let mut bits = Bits::new(&word);
            assert_eq!(table.symbol(&mut bits), Some(length as u8 - 1));
            let mut bits = Bits::new(&word);
            let coded = table.read(&mut bits).unwrap();
            let size = length - 1;
            let least = if size == 0 { 0 } else { 1 - (1 << size) };
            assert_eq!((coded.size, coded.value), (size, least));
        }
        assert_eq!(table.symbol(&mut Bits::new(&[0xff; 8])), None);
    }

    #[test]
    fn tables_that_do_not_fit_are_refused() {
        let mut counts = [0; 16];
        counts[0] = 3;
        assert!(Huffman::new(counts, &[0, 1, 2]).is_none());
        counts[0] = 2;
        assert!(Huffman::new(counts, &[0]).is_none());
        assert!(Huffman::new(counts, &[0, 1]).is_some());
    }
}
