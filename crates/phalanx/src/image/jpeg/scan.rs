//! Scans: entropy-coded data to coefficients, and coefficients to samples.

use std::ops::Range;

use super::bits::{Bits, Huffman};
use super::header::{Frame, Scan, Tables};
use super::idct::{self, ZIGZAG, block_of, flat};
use super::planes::Plane;

/// Which groups of blocks are wanted.
#[derive(Clone, Debug)]
pub(super) struct Area {
    pub(super) x: Range<usize>,
    pub(super) y: Range<usize>,
}

/// Why a scan could not be read; the row of groups that it happened in.
pub(super) struct ScanError {
    pub(super) row: usize,
    pub(super) reason: &'static str,
}

const NO_CODE: &str = "bits that are no code";
const TOO_SHORT: &str = "the data end too early";
const NO_TABLE: &str = "a table that was not given";

/// The restart intervals of a scan, one after the other.
struct Intervals<'a> {
    data: &'a [u8],
    ends: &'a [usize],
    next: usize,
    restart: usize,
    /// Groups of the scan so far.
    done: usize,
    bits: Bits<'a>,
}

impl<'a> Intervals<'a> {
    fn new(data: &'a [u8], ends: &'a [usize], restart: usize) -> Self {
        let bits = Bits::new(&data[..ends[0]]);
        Self {
            data,
            ends,
            next: 1,
            restart,
            done: 0,
            bits,
        }
    }

    /// Goes to the next group; true where it is the first of another interval.
    fn step(&mut self) -> Result<bool, &'static str> {
        let over = self.restart > 0 && self.done > 0 && self.done.is_multiple_of(self.restart);
        self.done += 1;
        if !over {
            return Ok(false);
        }
        let end = self.ends.get(self.next).filter(|_| !self.bits.is_overrun());
        let start = self.ends[self.next - 1];
        self.bits = Bits::new(&self.data[start..*end.ok_or(TOO_SHORT)?]);
        self.next += 1;
        Ok(true)
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.bits.is_overrun() {
            Err(TOO_SHORT)
        } else {
            Ok(())
        }
    }
}

/// What one component needs while a scan that has all components is read.
struct ComponentDecoder<'a> {
    dc: &'a Huffman,
    ac: &'a Huffman,
    h: usize,
    v: usize,
    plane: usize,
    dc_prediction: i32,
}

/// Reads a scan of all components, straight to samples where they are wanted.
#[inline(always)]
pub(super) fn read_direct(
    frame: &Frame,
    scan: &Scan,
    tables: &Tables,
    (data, ends): (&[u8], &[usize]),
    area: &Area,
    planes: &mut [Plane],
) -> Result<(), ScanError> {
    let at = |row| move |reason| ScanError { row, reason };
    let mut decoders = decoders(frame, scan, tables).map_err(at(0))?;
    let mut intervals = Intervals::new(data, ends, tables.restart);
    for gy in 0..area.y.end {
        for gx in 0..frame.mcus().0 {
            if intervals.step().map_err(at(gy))? {
                decoders
                    .iter_mut()
                    .for_each(|decoder| decoder.dc_prediction = 0);
            }
            let wanted = area.y.contains(&gy) && area.x.contains(&gx);
            for decoder in &mut decoders {
                let bits = &mut intervals.bits;
                let read = if wanted {
                    let mcu = (gx - area.x.start, gy - area.y.start);
                    decoder.read(bits, mcu, &mut planes[decoder.plane])
                } else {
                    decoder.pass(bits)
                };
                read.ok_or(NO_CODE).map_err(at(gy))?;
            }
        }
        intervals.check().map_err(at(gy))?;
    }
    Ok(())
}

fn decoders<'a>(
    frame: &Frame,
    scan: &Scan,
    tables: &'a Tables,
) -> Result<Vec<ComponentDecoder<'a>>, &'static str> {
    let part = |&(component, dc, ac): &(usize, usize, usize)| {
        Some(ComponentDecoder {
            dc: tables.dc[dc].as_ref()?,
            ac: tables.ac[ac].as_ref()?,
            h: frame.components[component].h,
            v: frame.components[component].v,
            plane: component,
            dc_prediction: 0,
        })
    };
    scan.components
        .iter()
        .map(|spec| part(spec).ok_or(NO_TABLE))
        .collect()
}

impl ComponentDecoder<'_> {
    /// The blocks of a group, to samples.
    #[inline(always)]
    fn read(
        &mut self,
        bits: &mut Bits<'_>,
        (gx, gy): (usize, usize),
        plane: &mut Plane,
    ) -> Option<()> {
        for v in 0..self.v {
            for h in 0..self.h {
                let start = (gy * self.v + v) * 8 * plane.stride + (gx * self.h + h) * 8;
                let mut block = [0i16; 64];
                let alone = self.block(bits, &plane.factors, &mut block)?;
                let out = &mut plane.samples[start..];
                if alone {
                    let sample = flat(plane.method, block[0]);
                    out.chunks_mut(plane.stride)
                        .take(8)
                        .for_each(|row| row[..8].fill(sample));
                } else {
                    idct::transform(plane.method, &block, out, plane.stride);
                }
            }
        }
        Some(())
    }

    /// The coefficients of a block, which is all zeros before; true when there is none but the first.
    #[inline(always)]
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        factors: &[i16; 64],
        block: &mut [i16; 64],
    ) -> Option<bool> {
        self.dc_prediction = self.dc_prediction.wrapping_add(self.dc.read(bits)?.value);
        block[0] = (self.dc_prediction as i16).wrapping_mul(factors[0]);
        let mut k = 1;
        while k < 64 {
            let coded = self.ac.read(bits)?;
            if coded.size == 0 {
                if coded.run < 15 {
                    return Some(k == 1);
                }
                k += 16;
                continue;
            }
            k += coded.run as usize;
            let at = usize::from(ZIGZAG[k]) & 63;
            block[at] = (coded.value as i16).wrapping_mul(factors[at]);
            k += 1;
        }
        (k == 64).then_some(false)
    }

    /// Goes past the blocks of a group.
    #[inline(always)]
    fn pass(&mut self, bits: &mut Bits<'_>) -> Option<()> {
        for _ in 0..self.v * self.h {
            self.dc_prediction = self.dc_prediction.wrapping_add(self.dc.read(bits)?.value);
            let mut k = 1;
            while k < 64 {
                let coded = self.ac.pass(bits)?;
                match (coded.size, coded.run) {
                    (0, 0..15) => break,
                    (_, run) => k += run as usize + 1,
                }
            }
            if k > 64 {
                return None;
            }
        }
        Some(())
    }
}

/// The coefficients of a component, as the file has them, in natural order.
#[derive(Default)]
pub(super) struct Coefficients {
    pub(super) values: Vec<i16>,
    /// Blocks across.
    stride: usize,
}

impl Coefficients {
    /// Room for each component of a frame.
    pub(super) fn of(frame: &Frame) -> Vec<Self> {
        let (across, down) = frame.mcus();
        let of_component = |h: usize, v: usize| Self {
            values: vec![0; across * h * down * v * 64],
            stride: across * h,
        };
        let components = frame.components.iter();
        components.map(|c| of_component(c.h, c.v)).collect()
    }

    #[inline]
    fn block(&mut self, x: usize, y: usize) -> &mut [i16; 64] {
        let start = (y * self.stride + x) * 64;
        (&mut self.values[start..start + 64])
            .try_into()
            .expect("a block")
    }

    /// Samples of the wanted blocks.
    pub(super) fn transform(&mut self, (h, v): (usize, usize), area: &Area, plane: &mut Plane) {
        for y in area.y.start * v..area.y.end * v {
            for x in area.x.start * h..area.x.end * h {
                let (left, top) = (x - area.x.start * h, y - area.y.start * v);
                let start = top * 8 * plane.stride + left * 8;
                let values = self.block(x, y);
                let block = block_of(|i| values[i].wrapping_mul(plane.factors[i]));
                idct::transform(
                    plane.method,
                    &block,
                    &mut plane.samples[start..],
                    plane.stride,
                );
            }
        }
    }
}

/// Reads any scan into coefficients.
pub(super) fn read_stored(
    frame: &Frame,
    scan: &Scan,
    tables: &Tables,
    (data, ends): (&[u8], &[usize]),
    stored: &mut [Coefficients],
) -> Result<(), ScanError> {
    let mut row = 0;
    let mut read = || -> Result<(), &'static str> {
        let mut intervals = Intervals::new(data, ends, tables.restart);
        let mut state = ProgressiveState::default();
        let (across, down) = scan.mcus(frame);
        for gy in 0..down {
            row = gy;
            for gx in 0..across {
                if intervals.step()? {
                    state = ProgressiveState::default();
                }
                for &(c, dc, ac) in &scan.components {
                    let component = &frame.components[c];
                    let (h, v) = if scan.components.len() == 1 {
                        (1, 1)
                    } else {
                        (component.h, component.v)
                    };
                    let codes = Codes {
                        dc: tables.dc[dc].as_ref(),
                        ac: tables.ac[ac].as_ref(),
                    };
                    for (y, x) in (0..v).flat_map(|y| (0..h).map(move |x| (y, x))) {
                        let block = stored[c].block(gx * h + x, gy * v + y);
                        state.block(frame, scan, &codes, &mut intervals.bits, c, block)?;
                    }
                }
            }
            intervals.check()?;
        }
        Ok(())
    };
    read().map_err(|reason| ScanError { row, reason })
}

struct Codes<'a> {
    dc: Option<&'a Huffman>,
    ac: Option<&'a Huffman>,
}

/// What is kept from block to block of a scan.
#[derive(Default)]
struct ProgressiveState {
    dc_prediction: [i32; 4],
    /// Blocks from here on that have no more coefficients.
    eob_run: u32,
}

impl ProgressiveState {
    fn block(
        &mut self,
        frame: &Frame,
        scan: &Scan,
        codes: &Codes<'_>,
        bits: &mut Bits<'_>,
        component: usize,
        block: &mut [i16; 64],
    ) -> Result<(), &'static str> {
        if scan.spectral_start == 0 {
            if scan.approx_high > 0 {
                block[0] |= (bits.take(1) as i16) << scan.approx_low;
                return Ok(());
            }
            let coded = codes.dc.ok_or(NO_TABLE)?.read(bits).ok_or(NO_CODE)?;
            let dc_prediction = &mut self.dc_prediction[component];
            *dc_prediction = dc_prediction.wrapping_add(coded.value);
            block[0] = (*dc_prediction as i16) << scan.approx_low;
        }
        if scan.spectral_end == 0 {
            return Ok(());
        }
        let table = codes.ac.ok_or(NO_TABLE)?;
        let first = scan.spectral_start.max(1);
        let read = if !frame.progressive || scan.approx_high == 0 {
            self.rest(
                table,
                bits,
                first..scan.spectral_end + 1,
                (scan.approx_low, frame.progressive),
                block,
            )
        } else {
            self.refine(
                table,
                bits,
                first..scan.spectral_end + 1,
                scan.approx_low,
                block,
            )
        };
        read.ok_or(NO_CODE)
    }

    /// Coefficients but the first, in their first scan.
    fn rest(
        &mut self,
        table: &Huffman,
        bits: &mut Bits<'_>,
        range: Range<usize>,
        (low, progressive): (u32, bool),
        block: &mut [i16; 64],
    ) -> Option<()> {
        if self.eob_run > 0 {
            self.eob_run -= 1;
            return Some(());
        }
        let mut k = range.start;
        while k < range.end {
            let coded = table.read(bits)?;
            if coded.size == 0 && coded.run < 15 {
                if progressive {
                    self.eob_run = (1 << coded.run) - 1 + bits.take(coded.run);
                }
                return Some(());
            }
            k += coded.run as usize;
            if coded.size > 0 {
                block[usize::from(*ZIGZAG[..range.end].get(k)?)] = (coded.value as i16) << low;
            }
            k += 1;
        }
        Some(())
    }

    /// Another bit of coefficients that are not 0, and new ones.
    fn refine(
        &mut self,
        table: &Huffman,
        bits: &mut Bits<'_>,
        range: Range<usize>,
        low: u32,
        block: &mut [i16; 64],
    ) -> Option<()> {
        let mut k = range.start;
        while self.eob_run == 0 && k < range.end {
            let coded = table.read(bits)?;
            if coded.size == 0 && coded.run < 15 {
                self.eob_run = (1 << coded.run) + bits.take(coded.run);
                break;
            }
            let mut zeros = coded.run;
            while k < range.end {
                let value = &mut block[usize::from(ZIGZAG[k])];
                k += 1;
                if *value != 0 {
                    refine_one(value, bits, low);
                } else if zeros == 0 {
                    *value = (coded.value.signum() as i16) << low;
                    break;
                } else {
                    zeros -= 1;
                }
            }
        }
        if self.eob_run > 0 {
            for &at in &ZIGZAG[k..range.end] {
                let value = &mut block[usize::from(at)];
                if *value != 0 {
                    refine_one(value, bits, low);
                }
            }
            self.eob_run -= 1;
        }
        Some(())
    }
}

fn refine_one(value: &mut i16, bits: &mut Bits<'_>, low: u32) {
    let bit = 1i16 << low;
    if bits.take(1) == 1 && *value & bit == 0 {
        *value = value.wrapping_add(bit * value.signum());
    }
}
