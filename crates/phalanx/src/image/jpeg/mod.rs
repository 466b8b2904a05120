//! A JPEG decoder that reads only what is wanted of a picture.
//!
//! Sequential and progressive Huffman-coded files of 8 bits. Transform, enlargement of chroma and colours are those of
//! libjpeg to the bit ("fancy" enlargement), which is what TensorFlow and PyTorch use. Outside the window entropy-coded data
//! are passed over, and below it they are not looked at.

mod bits;
mod header;
mod idct;
mod planes;
mod scan;

use phalanx_kernels::{WideWork, with_wide_vectors};

use header::{Colours, Frame, MOST_SCANS, Markers, Scan, Stop, Tables};
use planes::{Plane, Rows};
use scan::{Area, Coefficients, Damaged};

use super::{Window, corrupt};
use crate::Result;

/// How the cosine transform of JPEG is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idct {
    /// libjpeg's `ifast`, which is TensorFlow's default: off by up to some 4 of 255.
    #[default]
    Fast,
    /// libjpeg's `islow`, which is PyTorch's, Pillow's and TensorFlow's `INTEGER_ACCURATE`.
    Accurate,
}

/// Memory that is used again from one picture to the next.
#[derive(Default)]
pub(super) struct Scratch {
    tables: Tables,
    data: Vec<u8>,
    ends: Vec<usize>,
    samples: Vec<Vec<u8>>,
    rows: Rows,
}

/// A file read up to its frame.
pub(super) struct Opened<'a> {
    markers: Markers<'a>,
    frame: Frame,
}

/// The work of [`scan::read_direct`].
struct Direct<'a> {
    frame: &'a Frame,
    scan: &'a Scan,
    tables: &'a Tables,
    entropy: (&'a [u8], &'a [usize]),
    area: &'a Area,
    planes: &'a mut [Plane],
}

impl WideWork for Direct<'_> {
    type Output = std::result::Result<(), Damaged>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        scan::read_direct(
            self.frame,
            self.scan,
            self.tables,
            self.entropy,
            self.area,
            self.planes,
        )
    }
}

/// The work of [`Rows::give`].
struct Give<'a> {
    from: &'a [Plane],
    kind: (Colours, usize),
    window: &'a Window,
    room: &'a mut Rows,
    rows: &'a mut dyn FnMut(usize, &[u8]),
}

impl WideWork for Give<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.room.give(self.from, self.kind, self.window, self.rows);
    }
}

impl<'a> Opened<'a> {
    pub(super) fn new(bytes: &'a [u8], scratch: &mut Scratch) -> Result<Self> {
        scratch.tables.clear();
        let mut markers = Markers::new(bytes);
        match markers.next(&mut scratch.tables, None)? {
            Stop::Frame(frame) => Ok(Self { markers, frame }),
            _ => Err(corrupt(
                markers.at,
                "the file ends before its picture; get the whole file",
            )),
        }
    }

    /// Height and width.
    pub(super) const fn size(&self) -> (usize, usize) {
        (self.frame.height, self.frame.width)
    }

    /// Gives each row of the window, `channels` (1 or 3) bytes a pixel.
    pub(super) fn read(
        mut self,
        scratch: &mut Scratch,
        (method, channels): (Idct, usize),
        window: &Window,
        rows: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let area = self.area(window);
        let scan = self
            .next_scan(scratch)?
            .ok_or_else(|| corrupt(self.markers.at, "the file has no scan; get the whole file"))?;
        let mut planes = self.planes(method, &area, scratch)?;
        if self.frame.progressive || scan.parts.len() < self.frame.components.len() {
            self.read_scans(scan, &area, &mut planes, scratch)?;
        } else {
            let entropy = (&scratch.data[..], &scratch.ends[..]);
            let work = Direct {
                frame: &self.frame,
                scan: &scan,
                tables: &scratch.tables,
                entropy,
                area: &area,
                planes: &mut planes,
            };
            with_wide_vectors(work).map_err(|damaged| self.damaged(&damaged))?;
        }
        let colours = scratch.tables.colours(&self.frame);
        with_wide_vectors(Give {
            from: &planes,
            kind: (colours, channels),
            window,
            room: &mut scratch.rows,
            rows,
        });
        scratch.samples = planes.into_iter().map(|plane| plane.samples).collect();
        Ok(())
    }

    /// The groups that the window needs: enlargement looks one sample beyond it.
    fn area(&self, window: &Window) -> Area {
        let (h, v) = (self.frame.max_h, self.frame.max_v);
        let (across, down) = self.frame.groups();
        let range = |start: usize, len: usize, step: usize, most: usize| {
            let end = (start + len + step).div_ceil(8 * step).min(most);
            start.saturating_sub(step) / (8 * step)..end
        };
        Area {
            x: range(window.x, window.width, h, across),
            y: range(window.y, window.height, v, down),
        }
    }

    fn planes(&self, method: Idct, area: &Area, scratch: &mut Scratch) -> Result<Vec<Plane>> {
        let mut planes = Vec::new();
        for component in &self.frame.components {
            let table = &scratch.tables.quantisation[component.quantisation];
            let table = table.as_ref().ok_or_else(|| {
                corrupt(
                    self.markers.at,
                    "a quantisation table is missing; the file is damaged, get it again",
                )
            })?;
            let samples = scratch.samples.pop().unwrap_or_default();
            planes.push(Plane::new(
                &self.frame,
                component,
                area,
                (method, table),
                samples,
            ));
        }
        Ok(planes)
    }

    /// The next scan, its data in the scratch.
    fn next_scan(&mut self, scratch: &mut Scratch) -> Result<Option<Scan>> {
        match self.markers.next(&mut scratch.tables, Some(&self.frame))? {
            Stop::Scan(scan) => {
                self.markers.entropy(&mut scratch.data, &mut scratch.ends);
                Ok(Some(scan))
            }
            _ => Ok(None),
        }
    }

    /// Reads all scans, which together have all coefficients.
    fn read_scans(
        &mut self,
        first: Scan,
        area: &Area,
        planes: &mut [Plane],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut stored = Coefficients::of(&self.frame);
        let mut next = Some(first);
        let mut count = 0;
        while let Some(scan) = next {
            count += 1;
            if count > MOST_SCANS {
                return Err(corrupt(
                    self.markers.at,
                    &format!("more than {MOST_SCANS} scans; save the picture again"),
                ));
            }
            let entropy = (&scratch.data[..], &scratch.ends[..]);
            scan::read_stored(&self.frame, &scan, &scratch.tables, entropy, &mut stored)
                .map_err(|damaged| self.damaged(&damaged))?;
            next = self.next_scan(scratch)?;
        }
        for ((component, stored), plane) in
            self.frame.components.iter().zip(&mut stored).zip(planes)
        {
            stored.transform((component.h, component.v), area, plane);
        }
        Ok(())
    }

    fn damaged(&self, damaged: &Damaged) -> crate::Error {
        let row = damaged.row * 8 * self.frame.max_v;
        corrupt(
            self.markers.at,
            &format!(
                "{} in the data before, at about row {row} of the picture; get the file again",
                damaged.reason
            ),
        )
    }
}
