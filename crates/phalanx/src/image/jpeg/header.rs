//! The markers of a JPEG file: what comes before entropy-coded data.

use super::bits::Huffman;
use super::idct::ZIGZAG;
use crate::Result;
use crate::image::corrupt;

/// The most scans of a file: more are no picture but work for its reader.
pub(super) const MAX_SCANS: usize = 64;

/// How the components make a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    Gray,
    Ycc,
    Rgb,
    /// `inverted`: 255 is no ink, as Adobe writes it.
    Cmyk {
        inverted: bool,
    },
    Ycck {
        inverted: bool,
    },
}

/// A component of the picture.
#[derive(Clone, Debug)]
pub(super) struct ColorComponent {
    pub(super) id: u8,
    /// Samples across and down in the smallest group of blocks that has all components (the MCU), in blocks.
    pub(super) h: usize,
    pub(super) v: usize,
    pub(super) quantisation: usize,
    /// Samples across and down that belong to the picture.
    pub(super) width: usize,
    pub(super) height: usize,
}

/// What the frame marker says.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) progressive: bool,
    pub(super) components: Vec<ColorComponent>,
    pub(super) max_h: usize,
    pub(super) max_v: usize,
}

impl Frame {
    /// Groups of blocks across and down.
    pub(super) const fn mcus(&self) -> (usize, usize) {
        (
            self.width.div_ceil(8 * self.max_h),
            self.height.div_ceil(8 * self.max_v),
        )
    }

    /// Blocks of all components, those beyond the edges included.
    pub(super) fn blocks(&self) -> usize {
        let (across, down) = self.mcus();
        let per_mcu = self.components.iter().map(|c| c.h * c.v).sum::<usize>();
        across * down * per_mcu
    }
}

/// What the scan marker says.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    /// Index of a component, and its DC and AC Huffman tables.
    pub(super) components: Vec<(usize, usize, usize)>,
    pub(super) spectral_start: usize,
    pub(super) spectral_end: usize,
    pub(super) approx_high: u32,
    pub(super) approx_low: u32,
}

impl Scan {
    /// Groups of blocks across and down; alone, a component has blocks for its own size and no groups.
    pub(super) fn mcus(&self, frame: &Frame) -> (usize, usize) {
        match self.components[..] {
            [(c, ..)] => {
                let component = &frame.components[c];
                (component.width.div_ceil(8), component.height.div_ceil(8))
            }
            _ => frame.mcus(),
        }
    }

    /// Blocks that it has something of.
    pub(super) fn blocks(&self, frame: &Frame) -> usize {
        let (across, down) = self.mcus(frame);
        let per_mcu = match self.components[..] {
            [_] => 1,
            _ => self
                .components
                .iter()
                .map(|&(c, ..)| frame.components[c].h * frame.components[c].v)
                .sum(),
        };
        across * down * per_mcu
    }
}

/// What the markers so far have set.
#[derive(Clone, Default)]
pub(super) struct Tables {
    /// In natural order.
    pub(super) quantisation: [Option<[u16; 64]>; 4],
    pub(super) dc: [Option<Huffman>; 4],
    pub(super) ac: [Option<Huffman>; 4],
    pub(super) restart: usize,
    jfif: bool,
    adobe: Option<u8>,
    /// Of the file before: most files have the same.
    spare: Vec<Huffman>,
}

impl Tables {
    /// As at the start of a file.
    pub(super) fn clear(&mut self) {
        let before = std::mem::take(self);
        let tables = before.dc.into_iter().chain(before.ac);
        self.spare = tables.flatten().collect();
    }

    /// As libjpeg guesses it.
    pub(super) fn colours(&self, frame: &Frame) -> Colours {
        let ids: Vec<u8> = frame.components.iter().map(|part| part.id).collect();
        let inverted = self.adobe.is_some();
        match (ids.len(), self.adobe) {
            (1, _) => Colours::Gray,
            (3, _) if self.jfif => Colours::Ycc,
            (3, Some(0)) => Colours::Rgb,
            (3, None) if ids == *b"RGB" => Colours::Rgb,
            (3, _) => Colours::Ycc,
            (_, None | Some(0)) => Colours::Cmyk { inverted },
            _ => Colours::Ycck { inverted },
        }
    }
}

/// A marker that the reader stops at.
pub(super) enum Marker {
    Frame(Frame),
    Scan(Scan),
    End,
}

/// Reads markers from `at` on.
pub(super) struct Markers<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
    /// Whether the marker of the end was read.
    pub(super) has_end: bool,
}

impl<'a> Markers<'a> {
    /// The markers of a file that begins as JPEG does.
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 2,
            has_end: false,
        }
    }

    /// The next frame or scan, with what is set on the way in `tables`.
    pub(super) fn next(&mut self, tables: &mut Tables, frame: Option<&Frame>) -> Result<Marker> {
        loop {
            let Some(marker) = self.marker() else {
                return Ok(Marker::End);
            };
            match marker {
                0xd9 => {
                    self.has_end = true;
                    return Ok(Marker::End);
                }
                0x01 | 0xd0..=0xd7 => continue,
                _ => {}
            }
            let start = self.at;
            let body = self.segment()?;
            let bad = |message: &str| corrupt(start, message);
            match marker {
                0xc0..=0xc2 if frame.is_some() => {
                    return Err(bad(
                        "a second frame; only one picture a file is read, write it again",
                    ));
                }
                0xc0..=0xc2 => return Frame::parse(body, marker == 0xc2, start).map(Marker::Frame),
                0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                    return Err(bad(
                        "a lossless, hierarchical or arithmetic-coded JPEG, which is not read; save it as a usual one",
                    ));
                }
                0xc4 => tables.set_huffman(body).ok_or_else(|| {
                    bad("a Huffman table that has no meaning; the file is damaged, get it again")
                })?,
                0xdb => tables.set_quantisation(body).ok_or_else(|| {
                    bad("a quantisation table that has no meaning; the file is damaged, get it again")
                })?,
                0xdd => tables.restart = body.first_chunk::<2>().map_or(0, |n| u16::from_be_bytes(*n).into()),
                0xda => {
                    let frame = frame.ok_or_else(|| {
                        bad("a scan before the frame; the file is damaged, get it again")
                    })?;
                    return Scan::parse(body, frame).map(Marker::Scan).ok_or_else(|| {
                        bad("a scan that does not fit its frame; the file is damaged, get it again")
                    });
                }
                0xe0 if body.len() >= 14 && body.starts_with(b"JFIF\0") => tables.jfif = true,
                0xee if body.len() >= 12 && body.starts_with(b"Adobe") => tables.adobe = Some(body[11]),
                _ => {}
            }
        }
    }

    /// The next marker, with what is between two segments left out as libjpeg does.
    fn marker(&mut self) -> Option<u8> {
        loop {
            let offset = self
                .bytes
                .get(self.at..)?
                .iter()
                .position(|&byte| byte == 0xff)?;
            self.at += offset + 1;
            while *self.bytes.get(self.at)? == 0xff {
                self.at += 1;
            }
            self.at += 1;
            match self.bytes[self.at - 1] {
                0 => {}
                marker => return Some(marker),
            }
        }
    }

    fn segment(&mut self) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let len = rest
            .first_chunk::<2>()
            .map_or(0, |n| u16::from_be_bytes(*n).into());
        let Some(body) = rest.get(2..len) else {
            return Err(self.bad("a segment is longer than the file; get the whole file"));
        };
        self.at += len;
        Ok(body)
    }

    fn bad(&self, message: &str) -> crate::Error {
        corrupt(self.at.min(self.bytes.len()), message)
    }

    /// The entropy-coded data from here on without stuffing, and where each restart interval ends in them.
    pub(super) fn entropy(&mut self, data: &mut Vec<u8>, ends: &mut Vec<usize>) {
        data.clear();
        ends.clear();
        let bytes = self.bytes;
        loop {
            let rest = bytes.get(self.at..).unwrap_or(&[]);
            let plain = find_ff(rest);
            data.extend_from_slice(&rest[..plain]);
            self.at += plain;
            match bytes.get(self.at + 1) {
                Some(0) => {
                    data.push(0xff);
                    self.at += 2;
                }
                Some(0xff) => self.at += 1,
                Some(0xd0..=0xd7) => {
                    ends.push(data.len());
                    self.at += 2;
                }
                _ => break,
            }
        }
        ends.push(data.len());
    }
}

/// The index of the first byte 255, or the length.
fn find_ff(bytes: &[u8]) -> usize {
    let mut at = 0;
    for chunk in bytes.chunks_exact(16) {
        if chunk.iter().fold(0, |most, &byte| most.max(byte)) == 0xff {
            break;
        }
        at += 16;
    }
    let rest = &bytes[at..];
    at + rest
        .iter()
        .position(|&byte| byte == 0xff)
        .unwrap_or(rest.len())
}

impl Frame {
    fn parse(body: &[u8], progressive: bool, start: usize) -> Result<Self> {
        let bad = |message: &str| corrupt(start, message);
        let damaged = "a frame that has no meaning; the file is damaged, get it again";
        let (head, parts) = body.split_at_checked(6).ok_or_else(|| bad(damaged))?;
        let number = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        let (height, width, count) = (number(1), number(3), usize::from(head[5]));
        if head[0] != 8 {
            return Err(bad(&format!(
                "samples of {} bits; only 8 bits are read, save it so",
                head[0]
            )));
        }
        if height == 0 || width == 0 || !matches!(count, 1 | 3 | 4) || parts.len() < 3 * count {
            return Err(bad(damaged));
        }
        let mut frame = Self {
            width,
            height,
            progressive,
            components: Vec::new(),
            max_h: 1,
            max_v: 1,
        };
        for part in parts.chunks_exact(3).take(count) {
            // One component alone has no group to be sampled in.
            let (h, v) = if count == 1 {
                (1, 1)
            } else {
                (part[1] >> 4, part[1] & 15)
            };
            if !(1..=4).contains(&h) || !(1..=4).contains(&v) || part[2] > 3 {
                return Err(bad(damaged));
            }
            frame.components.push(ColorComponent {
                id: part[0],
                h: h.into(),
                v: v.into(),
                quantisation: part[2].into(),
                width: 0,
                height: 0,
            });
            frame.max_h = frame.max_h.max(h.into());
            frame.max_v = frame.max_v.max(v.into());
        }
        let (max_h, max_v) = (frame.max_h, frame.max_v);
        for part in &mut frame.components {
            if max_h % part.h + max_v % part.v > 0 {
                return Err(bad(
                    "components whose sizes are no whole part of one another, which is not read; save it as 4:2:0 or 4:4:4",
                ));
            }
            part.width = (width * part.h).div_ceil(max_h);
            part.height = (height * part.v).div_ceil(max_v);
        }
        Ok(frame)
    }
}

impl Scan {
    fn parse(body: &[u8], frame: &Frame) -> Option<Self> {
        let count = usize::from(*body.first()?);
        let (parts, rest) = body[1..].split_at_checked(2 * count)?;
        let mut scan = Self::default();
        for part in parts.chunks_exact(2) {
            let component = frame.components.iter().position(|c| c.id == part[0])?;
            let (dc, ac) = (usize::from(part[1] >> 4), usize::from(part[1] & 15));
            let repeated = scan.components.iter().any(|(c, ..)| *c == component);
            if dc > 3 || ac > 3 || repeated {
                return None;
            }
            scan.components.push((component, dc, ac));
        }
        let &[first, last, bits, ..] = rest else {
            return None;
        };
        if frame.progressive {
            scan.spectral_start = first.into();
            scan.spectral_end = last.into();
            scan.approx_high = u32::from(bits >> 4);
            scan.approx_low = u32::from(bits & 15);
        } else {
            scan.spectral_end = 63;
        }
        let whole = scan.spectral_start == 0;
        let fits = scan.spectral_start <= scan.spectral_end
            && scan.spectral_end < 64
            && scan.approx_low < 14
            && (scan.approx_high == 0 || scan.approx_high == scan.approx_low + 1)
            && (!frame.progressive || whole == (scan.spectral_end == 0))
            && (whole || count == 1);
        (count > 0 && fits).then_some(scan)
    }
}

impl Tables {
    fn set_huffman(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((head, rest)) = body.split_at_checked(17) {
            let counts: [u8; 16] = head[1..].try_into().ok()?;
            let total = counts.iter().map(|&count| usize::from(count)).sum();
            let (symbols, rest) = rest.split_at_checked(total)?;
            body = rest;
            let (class, slot) = (head[0] >> 4, usize::from(head[0] & 15));
            let same = self
                .spare
                .iter()
                .position(|table| table.is(counts, symbols));
            let table = match same {
                Some(at) => self.spare.swap_remove(at),
                None => Huffman::new(counts, symbols)?,
            };
            match class {
                0 if symbols.iter().all(|&size| size < 16) => {
                    *self.dc.get_mut(slot)? = Some(table);
                }
                1 => *self.ac.get_mut(slot)? = Some(table),
                _ => return None,
            }
        }
        body.is_empty().then_some(())
    }

    fn set_quantisation(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((&head, rest)) = body.split_first() {
            let size = match head >> 4 {
                0 => 1,
                1 => 2,
                _ => return None,
            };
            let (values, rest) = rest.split_at_checked(64 * size)?;
            body = rest;
            let mut table = [0; 64];
            for (k, value) in values.chunks_exact(size).enumerate() {
                let value = value
                    .iter()
                    .fold(0, |value, &byte| value << 8 | u16::from(byte));
                table[usize::from(ZIGZAG[k])] = value;
            }
            *self.quantisation.get_mut(usize::from(head & 15))? = Some(table);
        }
        Some(())
    }
}
