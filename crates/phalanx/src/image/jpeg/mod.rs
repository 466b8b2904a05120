//! A JPEG decoder that computes only the wanted window of a picture.
//!
//! Sequential and progressive Huffman-coded files of 8 bits. Inverse DCT, chroma upsampling ("fancy") and colour
//! conversion equal libjpeg's to the bit, which is what TensorFlow and PyTorch use. Huffman codes outside the window must be
//! read, since each follows the one before, but are not transformed; data below the window are not read at all.
//!
//! A file with a single scan of all components goes straight to samples (`read_direct`). A progressive file, or one with a
//! scan per component, sends each coefficient's bits in several scans, so all coefficients are kept until the last scan
//! (`read_stored`) and transformed then. Memory for them is limited before it is allocated, by what the frame announces.

mod bits;
mod header;
mod idct;
mod planes;
mod scan;

use phalanx_kernels::{WideWork, with_wide_vectors};

use header::{Colours, Frame, MAX_SCANS, Marker, Markers, Scan, Tables};
use planes::{Plane, Rows};
use scan::{Area, Coefficients, ScanError};

use super::{DecoderOptions, Window, corrupt};
use crate::Result;

/// Bytes of the coefficients of a block.
const BLOCK_BYTES: usize = 128;
/// How often all scans together may visit the coefficients of the largest picture; the usual ten scans do so 6 times.
const MAX_VISITS: usize = 16;

/// How the cosine transform of JPEG is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idct {
    /// libjpeg's `ifast`, which is TensorFlow's default: off by up to some 4 of 255.
    #[default]
    Fast,
    /// libjpeg's `islow`, which is PyTorch's, Pillow's and TensorFlow's `INTEGER_ACCURATE`.
    Accurate,
}

/// Memory that is reused from one picture to the next.
#[derive(Default)]
pub(super) struct Scratch {
    tables: Tables,
    data: Vec<u8>,
    ends: Vec<usize>,
    samples: Vec<Vec<u8>>,
    rows: Rows,
}

/// A file read up to its frame.
pub(super) struct JpegImage<'a> {
    markers: Markers<'a>,
    frame: Frame,
}

/// The work of [`scan::read_direct`].
struct ReadDirect<'a> {
    frame: &'a Frame,
    scan: &'a Scan,
    tables: &'a Tables,
    entropy: (&'a [u8], &'a [usize]),
    area: &'a Area,
    planes: &'a mut [Plane],
}

impl WideWork for ReadDirect<'_> {
    type Output = std::result::Result<(), ScanError>;

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
struct WriteRows<'a> {
    from: &'a [Plane],
    kind: (Colours, usize),
    window: &'a Window,
    room: &'a mut Rows,
    rows: &'a mut dyn FnMut(usize, &[u8]),
}

impl WideWork for WriteRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.room.give(self.from, self.kind, self.window, self.rows);
    }
}

/// The number of low bits of the first ten coefficients that no scan has sent yet, per component; `None` before its first scan.
#[derive(Default)]
struct UnreadBits([[Option<u32>; 10]; 4]);

impl UnreadBits {
    fn note(&mut self, scan: &Scan) {
        for &(component, ..) in &scan.components {
            let low = self.0[component].iter_mut().take(scan.spectral_end + 1);
            low.skip(scan.spectral_start)
                .for_each(|bits| *bits = Some(scan.approx_low));
        }
    }

    /// Whether libjpeg would guess what is missing: it smooths such pictures, which we do not.
    fn is_coarse(&self, components: usize) -> bool {
        let read = &self.0[..components];
        let has_first = read.iter().all(|bits| bits[0].is_some());
        has_first
            && read
                .iter()
                .flat_map(|bits| &bits[1..])
                .any(|bits| *bits != Some(0))
    }
}

impl<'a> JpegImage<'a> {
    pub(super) fn new(bytes: &'a [u8], scratch: &mut Scratch) -> Result<Self> {
        scratch.tables.clear();
        let mut markers = Markers::new(bytes);
        match markers.next(&mut scratch.tables, None)? {
            Marker::Frame(frame) => Ok(Self { markers, frame }),
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

    /// Gives each row of the window.
    pub(super) fn read(
        mut self,
        scratch: &mut Scratch,
        options: &DecoderOptions,
        window: &Window,
        rows: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let area = self.area(window);
        let scan = self
            .next_scan(scratch)?
            .ok_or_else(|| corrupt(self.markers.at, "the file has no scan; get the whole file"))?;
        let most = options.max_coefficient_bytes;
        let is_stored =
            self.frame.progressive || scan.components.len() < self.frame.components.len();
        self.check_first(&scan, scratch.data.len(), is_stored.then_some(most))?;
        let mut planes = self.planes(options.idct, &area, scratch);
        self.quantise(&scan, &scratch.tables, &mut planes)?;
        if is_stored {
            self.read_scans(scan, &area, &mut planes, (scratch, most))?;
        } else {
            let entropy = (&scratch.data[..], &scratch.ends[..]);
            let work = ReadDirect {
                frame: &self.frame,
                scan: &scan,
                tables: &scratch.tables,
                entropy,
                area: &area,
                planes: &mut planes,
            };
            with_wide_vectors(work).map_err(|scan_error| self.scan_error(&scan_error))?;
        }
        let colours = scratch.tables.colours(&self.frame);
        with_wide_vectors(WriteRows {
            from: &planes,
            kind: (colours, options.channels.count()),
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
        let (across, down) = self.frame.mcus();
        let range = |start: usize, len: usize, step: usize, most: usize| {
            let end = (start + len + step).div_ceil(8 * step).min(most);
            start.saturating_sub(step) / (8 * step)..end
        };
        Area {
            x: range(window.x, window.width, h, across),
            y: range(window.y, window.height, v, down),
        }
    }

    /// Before memory is taken for the picture: whether `len` bytes can be all of it, and coefficients of no more than `most`
    /// bytes would be kept.
    fn check_first(&self, scan: &Scan, len: usize, most: Option<usize>) -> Result<()> {
        let bad = |message: &str| Err(corrupt(self.markers.at, message));
        if scan.spectral_start > 0 || scan.approx_high > 0 {
            return bad("the first scan has no first coefficients; save the picture again");
        }
        // A block has a code of a bit at the least.
        if scan.blocks(&self.frame) > len.saturating_mul(8) {
            return bad("the data are too short for the picture; get the whole file");
        }
        let bytes = self.frame.blocks() * BLOCK_BYTES;
        match most {
            Some(most) if bytes > most => bad(&format!(
                "a picture in several scans with {bytes} bytes of coefficients, the most accepted are {most}; \
                 save it without (not progressive), or raise max_coefficient_bytes"
            )),
            _ => Ok(()),
        }
    }

    fn planes(&self, method: Idct, area: &Area, scratch: &mut Scratch) -> Vec<Plane> {
        let mut plane = |component| {
            let samples = scratch.samples.pop().unwrap_or_default();
            Plane::new(&self.frame, component, area, method, samples)
        };
        self.frame.components.iter().map(&mut plane).collect()
    }

    /// Keeps the tables of the components whose first scan this is.
    fn quantise(&self, scan: &Scan, tables: &Tables, planes: &mut [Plane]) -> Result<()> {
        let mut planes = scan
            .components
            .iter()
            .map(|&(c, ..)| planes[c].quantise(tables));
        planes.try_for_each(|found| {
            found.ok_or_else(|| {
                corrupt(
                    self.markers.at,
                    "a quantisation table is missing; the file is damaged, get it again",
                )
            })
        })
    }

    /// The next scan, its data in the scratch.
    fn next_scan(&mut self, scratch: &mut Scratch) -> Result<Option<Scan>> {
        match self.markers.next(&mut scratch.tables, Some(&self.frame))? {
            Marker::Scan(scan) => {
                self.markers.entropy(&mut scratch.data, &mut scratch.ends);
                Ok(Some(scan))
            }
            _ => Ok(None),
        }
    }

    /// Reads all scans, which together have all coefficients, of up to `most` bytes.
    fn read_scans(
        &mut self,
        first: Scan,
        area: &Area,
        planes: &mut [Plane],
        (scratch, most): (&mut Scratch, usize),
    ) -> Result<()> {
        let mut stored = Coefficients::of(&self.frame);
        let mut unread_bits = UnreadBits::default();
        let mut next = Some(first);
        let (mut count, mut blocks) = (0, 0);
        while let Some(scan) = next {
            count += 1;
            blocks += scan.blocks(&self.frame);
            if count > MAX_SCANS || blocks > most.saturating_mul(MAX_VISITS) / BLOCK_BYTES {
                return Err(corrupt(
                    self.markers.at,
                    &format!(
                        "scan {count} is one too many ({MAX_SCANS} are accepted, over {MAX_VISITS} times \
                         max_coefficient_bytes); save the picture again"
                    ),
                ));
            }
            self.quantise(&scan, &scratch.tables, planes)?;
            let entropy = (&scratch.data[..], &scratch.ends[..]);
            scan::read_stored(&self.frame, &scan, &scratch.tables, entropy, &mut stored)
                .map_err(|scan_error| self.scan_error(&scan_error))?;
            unread_bits.note(&scan);
            next = self.next_scan(scratch)?;
        }
        self.check_scans(&unread_bits)?;
        for ((component, stored), plane) in
            self.frame.components.iter().zip(&mut stored).zip(planes)
        {
            stored.transform((component.h, component.v), area, plane);
        }
        Ok(())
    }

    /// After the last scan: whether one is missing. A file of a single scan is whole without the marker of its end; where the
    /// marker is there, what had no scan is gray, as TensorFlow has it.
    fn check_scans(&self, unread_bits: &UnreadBits) -> Result<()> {
        let components = self.frame.components.len();
        let missing = if self.frame.progressive && unread_bits.is_coarse(components) {
            "the scans with the finer parts of the picture are missing"
        } else if !self.markers.has_end {
            "the file has several scans and ends after one of them, without the marker of its end"
        } else {
            return Ok(());
        };
        let message = format!("{missing}; get the whole file");
        Err(corrupt(self.markers.at, &message))
    }

    fn scan_error(&self, scan_error: &ScanError) -> crate::Error {
        let row = scan_error.row * 8 * self.frame.max_v;
        corrupt(
            self.markers.at,
            &format!(
                "{} in the data before, at about row {row} of the picture; get the file again",
                scan_error.reason
            ),
        )
    }
}
