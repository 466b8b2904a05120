//! Samples of components, and upsampling and colour conversion to rows of the picture.

use super::Idct;
use super::header::{ColorComponent, Colours, Frame, Tables};
use super::idct::factors;
use super::scan::Area;
use crate::image::decode::{Window, lightness};

/// The samples of a component where they are wanted.
pub(super) struct Plane {
    pub(super) samples: Vec<u8>,
    pub(super) stride: usize,
    pub(super) method: Idct,
    /// All 0 until the first scan of the component.
    pub(super) factors: [i16; 64],
    is_quantised: bool,
    /// Where the samples begin in the component.
    x: usize,
    y: usize,
    component: ColorComponent,
    /// How many samples of the picture one of these is, across and down.
    across: usize,
    down: usize,
}

impl Plane {
    /// Room for a component, not quantised yet; `samples` is memory to use again.
    pub(super) fn new(
        frame: &Frame,
        component: &ColorComponent,
        area: &Area,
        method: Idct,
        mut samples: Vec<u8>,
    ) -> Self {
        let (h, v) = (component.h * 8, component.v * 8);
        let stride = area.x.len() * h;
        samples.resize(stride * area.y.len() * v, 0);
        Self {
            samples,
            stride,
            method,
            factors: [0; 64],
            is_quantised: false,
            x: area.x.start * h,
            y: area.y.start * v,
            component: component.clone(),
            across: frame.max_h / component.h,
            down: frame.max_v / component.v,
        }
    }

    /// Keeps the table that holds at the first scan of the component, as libjpeg does; `None` where there is none.
    pub(super) fn quantise(&mut self, tables: &Tables) -> Option<()> {
        if !self.is_quantised {
            let table = tables.quantisation[self.component.quantisation].as_ref()?;
            self.factors = factors(self.method, table);
            self.is_quantised = true;
        }
        Some(())
    }

    /// Samples `x` of row `y`, both counted in the component.
    #[inline(always)]
    fn span(&self, y: usize, x: std::ops::Range<usize>) -> &[u8] {
        let start = (y - self.y) * self.stride;
        &self.samples[start..start + self.stride][x.start - self.x..x.end - self.x]
    }

    /// A row of the window, upsampled to the resolution of the picture.
    #[inline(always)]
    fn row<'a>(&'a self, y: usize, window: &Window, room: &'a mut Room) -> &'a [u8] {
        let (left, right) = (window.x, window.x + window.width);
        let smooth = self.component.width > 2;
        match (self.across, self.down) {
            (1, 1) => self.span(y, left..right),
            (2, 1) if smooth => self.doubled(y, None, window, room),
            (2, 2) if smooth => self.doubled(y / 2, Some(self.beside(y)), window, room),
            (1, 2) => {
                let (near, far) = (
                    self.span(y / 2, left..right),
                    self.span(self.beside(y), left..right),
                );
                let bias = 1 + (y % 2) as u16;
                let mixed = near
                    .iter()
                    .zip(far)
                    .map(|(&n, &f)| ((3 * u16::from(n) + u16::from(f) + bias) >> 2) as u8);
                room.row.clear();
                room.row.extend(mixed);
                &room.row
            }
            (across, down) => {
                let samples = self.span(y / down, left / across..(right - 1) / across + 1);
                let repeated = (left..right).map(|x| samples[x / across - left / across]);
                room.row.clear();
                room.row.extend(repeated);
                &room.row
            }
        }
    }

    /// The second nearest row of samples to row `y` of the picture, where samples have half the vertical resolution.
    fn beside(&self, y: usize) -> usize {
        let row = if y.is_multiple_of(2) {
            (y / 2).saturating_sub(1)
        } else {
            y / 2 + 1
        };
        row.min(self.component.height - 1)
    }

    /// libjpeg's "fancy" upsampling by 2 across: each sample is 3/4 of the nearer and 1/4 of the farther neighbour; with a row
    /// `far` the same is done down first.
    #[inline(always)]
    fn doubled<'a>(
        &self,
        near: usize,
        far: Option<usize>,
        window: &Window,
        room: &'a mut Room,
    ) -> &'a [u8] {
        let (start, last) = (window.x / 2, (window.x + window.width - 1) / 2);
        let columns = start.saturating_sub(1)..(last + 2).min(self.component.width);
        let near = self.span(near, columns.clone());
        let sums = &mut room.sums;
        sums.clear();
        if start == 0 {
            sums.push(0);
        }
        match far {
            Some(far) => {
                let far = self.span(far, columns.clone());
                sums.extend(
                    near.iter()
                        .zip(far)
                        .map(|(&n, &f)| 3 * u16::from(n) + u16::from(f)),
                );
            }
            None => sums.extend(near.iter().map(|&n| u16::from(n))),
        }
        if start == 0 {
            sums[0] = sums[1];
        }
        if columns.end < last + 2 {
            sums.push(sums[sums.len() - 1]);
        }
        let count = last - start + 1;
        room.row.resize(2 * count, 0);
        let rounding = if far.is_some() { (8, 7, 4) } else { (1, 2, 2) };
        double(&sums[..count + 2], rounding, &mut room.row);
        &room.row[window.x - 2 * start..][..window.width]
    }
}

/// Pairs of samples between their neighbours.
#[inline(always)]
fn double(sums: &[u16], (left, right, shift): (u16, u16, u16), out: &mut [u8]) {
    let middle = &sums[1..sums.len() - 1];
    let (before, after) = (&sums[..middle.len()], &sums[2..]);
    let pairs = out.as_chunks_mut::<2>().0;
    for (((pair, &m), &b), &a) in pairs.iter_mut().zip(middle).zip(before).zip(after) {
        let even = (3 * m + b + left) >> shift;
        let odd = (3 * m + a + right) >> shift;
        *pair = (even | odd << 8).to_le_bytes();
    }
}

/// Memory for rows.
#[derive(Default)]
pub(super) struct Room {
    sums: Vec<u16>,
    row: Vec<u8>,
}

/// Memory for the rows of a picture.
#[derive(Default)]
pub(super) struct Rows {
    rooms: [Room; 4],
    out: Vec<u8>,
}

impl Rows {
    /// Gives each row of the window, from the top.
    #[inline(always)]
    pub(super) fn give(
        &mut self,
        planes: &[Plane],
        (colours, channels): (Colours, usize),
        window: &Window,
        rows: &mut dyn FnMut(usize, &[u8]),
    ) {
        let Self { rooms, out } = self;
        out.resize(window.width * 3, 0);
        for y in 0..window.height {
            let mut rooms = rooms.iter_mut();
            let mut row = |c: usize| {
                let room = rooms.next().expect("at most four components");
                planes[c].row(window.y + y, window, room)
            };
            let luma = channels == 1 && matches!(colours, Colours::Gray | Colours::Ycc);
            if luma {
                rows(y, row(0));
                continue;
            }
            match colours {
                Colours::Gray => repeat(row(0), out),
                Colours::Ycc => ycc(row(0), row(1), row(2), out),
                Colours::Rgb => interleave(row(0), row(1), row(2), out),
                Colours::Cmyk { inverted } => {
                    interleave(row(0), row(1), row(2), out);
                    ink(row(3), inverted, out);
                }
                Colours::Ycck { inverted } => {
                    ycc(row(0), row(1), row(2), out);
                    out.iter_mut().for_each(|value| *value = 255 - *value);
                    ink(row(3), inverted, out);
                }
            }
            if channels == 1 {
                let gray: Vec<u8> = out.chunks_exact(3).map(lightness).collect();
                rows(y, &gray);
            } else {
                rows(y, out);
            }
        }
    }
}

fn repeat(gray: &[u8], out: &mut [u8]) {
    for (pixel, &value) in out.as_chunks_mut::<3>().0.iter_mut().zip(gray) {
        *pixel = [value; 3];
    }
}

#[inline(always)]
fn interleave(r: &[u8], g: &[u8], b: &[u8], out: &mut [u8]) {
    for (((pixel, &r), &g), &b) in out.as_chunks_mut::<3>().0.iter_mut().zip(r).zip(g).zip(b) {
        *pixel = [r, g, b];
    }
}

/// Black over colours, as TensorFlow does it.
fn ink(black: &[u8], inverted: bool, out: &mut [u8]) {
    for (pixel, &k) in out.as_chunks_mut::<3>().0.iter_mut().zip(black) {
        for value in pixel {
            let (c, k) = if inverted {
                (*value, k)
            } else {
                (255 - *value, 255 - k)
            };
            *value = (u16::from(c) * u16::from(k) / 255) as u8;
        }
    }
}

/// Red, green and blue of luma and chroma: 1.402, 0.34414, 0.71414 and 1.772 in 16 bits after the point, rounded as libjpeg.
#[inline(always)]
fn ycc(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    /// The product over 2^16, rounded to nearest.
    #[inline(always)]
    fn share(value: i16, factor: i16) -> i16 {
        ((((i32::from(2 * value) * i32::from(factor)) >> 16) as i16) + 1) >> 1
    }
    for (((pixel, &y), &cb), &cr) in out.as_chunks_mut::<3>().0.iter_mut().zip(y).zip(cb).zip(cr) {
        let (y, cb, cr) = (i16::from(y), i16::from(cb) - 128, i16::from(cr) - 128);
        let green = (i32::from(cb) * -22554 + i32::from(cr) * 18734 + 32768) >> 16;
        let r = y + cr + share(cr, 26345);
        let g = y - cr + green as i16;
        let b = y + 2 * cb + share(cb, -14942);
        let sample = |value: i16| value.clamp(0, 255) as u8;
        *pixel = [sample(r), sample(g), sample(b)];
    }
}
