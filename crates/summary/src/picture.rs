//! Pictures made of lines, dots and words, as SVG and as PNG.

use std::fmt::Write;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, RasterizedChar, get_raster};

use crate::chart::{Chart, picture};
use crate::{Image, SummaryError};

/// What is drawn, in pixels of SVG from the upper left corner.
pub(crate) struct Picture {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) marks: Vec<Mark>,
}

/// Something in a picture.
pub(crate) enum Mark {
    /// Straight lines from point to point. Colours are `#rrggbb`.
    Line {
        points: Vec<(f64, f64)>,
        colour: &'static str,
        width: f64,
        is_dashed: bool,
    },
    /// A filled circle.
    Dot {
        at: (f64, f64),
        colour: &'static str,
    },
    /// Words without control characters; `at` is the place of the anchor on their base line.
    Text {
        at: (f64, f64),
        anchor: Anchor,
        is_bold: bool,
        text: String,
    },
}

/// Which part of words is at their place.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// The pieces of a dashed line: drawn, and left out.
const DASHES: (f64, f64) = (5.0, 4.0);
const DOT: f64 = 2.5;
/// The colour of words.
const INK: &str = "#222222";

/// Charts below one another as an SVG picture.
#[must_use]
pub fn svg(charts: &[Chart]) -> String {
    picture(charts).to_svg()
}

/// The same as a PNG picture, of twice as many pixels in width and height. Letters that its font lacks are boxes.
///
/// # Errors
/// As [`Image::new`]: none that we know of.
pub fn png(charts: &[Chart]) -> Result<Image, SummaryError> {
    let picture = picture(charts);
    let mut pixels = Pixels::new(picture.width, picture.height);
    picture.marks.iter().for_each(|mark| pixels.draw(mark));
    Image::new(pixels.width as u32, pixels.height as u32, 3, &pixels.rgb)
}

impl Picture {
    fn to_svg(&self) -> String {
        let (width, height) = (self.width, self.height);
        let mut svg = format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="{INK}"><rect width="100%" height="100%" fill="#ffffff"/>
"##
        );
        self.marks.iter().for_each(|mark| mark.to_svg(&mut svg));
        svg.push_str("</svg>\n");
        svg
    }
}

impl Mark {
    fn to_svg(&self, svg: &mut String) {
        let _ = match self {
            Self::Line {
                points,
                colour,
                width,
                is_dashed,
            } => {
                let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
                let points: Vec<String> = points.collect();
                let dashes = match is_dashed {
                    true => format!(r#" stroke-dasharray="{} {}""#, DASHES.0, DASHES.1),
                    false => String::new(),
                };
                writeln!(
                    svg,
                    r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>"#,
                    points.join(" ")
                )
            }
            Self::Dot { at: (x, y), colour } => {
                writeln!(
                    svg,
                    r#"<circle cx="{x:.1}" cy="{y:.1}" r="{DOT}" fill="{colour}"/>"#
                )
            }
            Self::Text {
                at: (x, y),
                anchor,
                is_bold,
                text,
            } => {
                let anchor = match anchor {
                    Anchor::Start => "",
                    Anchor::Middle => r#" text-anchor="middle""#,
                    Anchor::End => r#" text-anchor="end""#,
                };
                let weight = if *is_bold {
                    r#" font-weight="bold""#
                } else {
                    ""
                };
                writeln!(
                    svg,
                    r#"<text x="{x:.1}" y="{y:.1}"{anchor}{weight}>{}</text>"#,
                    escaped(text)
                )
            }
        };
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

/// Pixels of a PNG picture for one of SVG.
const SCALE: f64 = 2.0;
/// The letters of 12 pixels of SVG.
const LETTERS: RasterHeight = RasterHeight::Size24;
/// The share of their height that is above the base line.
const ABOVE_LINE: f64 = 0.78;

/// A picture of pixels, at first white.
struct Pixels {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Pixels {
    fn new(width: f64, height: f64) -> Self {
        let pixels = |length: f64| (length * SCALE).ceil().max(1.0) as usize;
        let (width, height) = (pixels(width), pixels(height));
        Self {
            width,
            height,
            rgb: vec![255; width * height * 3],
        }
    }

    fn draw(&mut self, mark: &Mark) {
        let scaled = |(x, y): (f64, f64)| (x * SCALE, y * SCALE);
        match mark {
            Mark::Line {
                points,
                colour,
                width,
                is_dashed,
            } => {
                let points: Vec<(f64, f64)> = points.iter().copied().map(scaled).collect();
                let pieces = match is_dashed {
                    true => dashes(&points),
                    false => points.windows(2).map(|two| (two[0], two[1])).collect(),
                };
                for piece in pieces {
                    self.segment(piece, width * SCALE / 2.0, rgb(colour));
                }
            }
            Mark::Dot { at, colour } => {
                self.segment((scaled(*at), scaled(*at)), DOT * SCALE, rgb(colour));
            }
            Mark::Text {
                at,
                anchor,
                is_bold,
                text,
            } => self.words(scaled(*at), *anchor, *is_bold, text),
        }
    }

    /// A straight line with round ends: each pixel as much as of its middle is within the radius.
    fn segment(&mut self, (from, to): Segment, radius: f64, colour: [u8; 3]) {
        let reach = radius + 1.0;
        let range = |a: f64, b: f64, most: usize| {
            let first = (a.min(b) - reach).floor().max(0.0) as usize;
            let last = (a.max(b) + reach).ceil().max(0.0) as usize;
            first..last.min(most)
        };
        for y in range(from.1, to.1, self.height) {
            for x in range(from.0, to.0, self.width) {
                let middle = (x as f64 + 0.5, y as f64 + 0.5);
                let share = radius + 0.5 - distance(middle, (from, to));
                self.blend(x, y, share, colour);
            }
        }
    }

    fn words(&mut self, (x, y): (f64, f64), anchor: Anchor, is_bold: bool, text: &str) {
        let weight = match is_bold {
            true => FontWeight::Bold,
            false => FontWeight::Regular,
        };
        let letters: Vec<RasterizedChar> = text.chars().map(|c| letter(c, weight)).collect();
        let width: usize = letters.iter().map(RasterizedChar::width).sum();
        let left = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width as f64 / 2.0,
            Anchor::End => x - width as f64,
        };
        let top = y - LETTERS.val() as f64 * ABOVE_LINE;
        let (mut left, top) = (
            left.round().max(0.0) as usize,
            top.round().max(0.0) as usize,
        );
        let ink = rgb(INK);
        for letter in letters {
            for (row, line) in letter.rows().enumerate() {
                for (column, &share) in line.iter().enumerate() {
                    self.blend(left + column, top + row, f64::from(share) / 255.0, ink);
                }
            }
            left += letter.width();
        }
    }

    /// Gives a pixel a share of a colour.
    fn blend(&mut self, x: usize, y: usize, share: f64, colour: [u8; 3]) {
        if x >= self.width || y >= self.height || share <= 0.0 {
            return;
        }
        let share = share.min(1.0);
        let start = (y * self.width + x) * 3;
        for (old, new) in self.rgb[start..start + 3].iter_mut().zip(colour) {
            *old = (f64::from(*old) * (1.0 - share) + f64::from(new) * share).round() as u8;
        }
    }
}

/// The ends of a straight line.
type Segment = ((f64, f64), (f64, f64));

/// A letter, or the box that stands for one that the font lacks.
fn letter(c: char, weight: FontWeight) -> RasterizedChar {
    let shown = |c| get_raster(c, weight, LETTERS);
    shown(c)
        .or_else(|| shown('\u{fffd}'))
        .or_else(|| shown('?'))
        .expect("the font has a question mark")
}

/// The colour of `#rrggbb`.
fn rgb(colour: &str) -> [u8; 3] {
    let number = u32::from_str_radix(colour.trim_start_matches('#'), 16);
    let [_, rgb @ ..] = number.unwrap_or_default().to_be_bytes();
    rgb
}

/// The distance of a point from a line between two others.
fn distance((x, y): (f64, f64), ((x0, y0), (x1, y1)): Segment) -> f64 {
    let (dx, dy) = (x1 - x0, y1 - y0);
    let length = dx * dx + dy * dy;
    let along = match length > 0.0 {
        true => (((x - x0) * dx + (y - y0) * dy) / length).clamp(0.0, 1.0),
        false => 0.0,
    };
    (x - x0 - along * dx).hypot(y - y0 - along * dy)
}

/// What is drawn of a dashed line through these points.
fn dashes(points: &[(f64, f64)]) -> Vec<Segment> {
    let (dash, period) = (DASHES.0 * SCALE, (DASHES.0 + DASHES.1) * SCALE);
    let mut drawn = Vec::new();
    // How far it is along the line.
    let mut begin = 0.0;
    for two in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (two[0], two[1]);
        let length = (x1 - x0).hypot(y1 - y0);
        let at = |along: f64| {
            let share = (along - begin) / length.max(f64::MIN_POSITIVE);
            (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share)
        };
        let end = begin + length;
        let numbers = (begin / period) as usize..=(end / period) as usize;
        for number in numbers {
            let from = (number as f64 * period).max(begin);
            let to = (number as f64 * period + dash).min(end);
            if from < to {
                drawn.push((at(from), at(to)));
            }
        }
        begin = end;
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_go_on_around_corners() {
        // Dashes of 10 pixels, gaps of 8.
        let drawn = dashes(&[(0.0, 0.0), (15.0, 0.0), (15.0, 25.0)]);
        let expected = [
            ((0.0, 0.0), (10.0, 0.0)),
            ((15.0, 3.0), (15.0, 13.0)),
            ((15.0, 21.0), (15.0, 25.0)),
        ];
        assert_eq!(drawn, expected);
        assert_eq!(dashes(&[(1.0, 1.0), (1.0, 1.0)]), []);
    }

    #[test]
    fn lines_dots_and_words_have_their_pixels() {
        let mut pixels = Pixels::new(100.0, 20.0);
        let red = "#ff0000";
        pixels.draw(&Mark::Line {
            points: vec![(10.0, 5.0), (40.0, 5.0)],
            colour: red,
            width: 2.0,
            is_dashed: false,
        });
        let at = |pixels: &Pixels, x: usize, y: usize| {
            let start = (y * pixels.width + x) * 3;
            [0, 1, 2].map(|channel| pixels.rgb[start + channel])
        };
        assert_eq!((pixels.width, pixels.height), (200, 40));
        assert_eq!(at(&pixels, 50, 9), [255, 0, 0]);
        assert_eq!(at(&pixels, 50, 10), [255, 0, 0]);
        assert_eq!(at(&pixels, 50, 13), [255, 255, 255]);
        assert_eq!(at(&pixels, 10, 10), [255, 255, 255]);
        // Half of a pixel at the end of the line.
        let [255, green, blue] = at(&pixels, 18, 10) else {
            panic!("red");
        };
        assert!(green == blue && green > 0 && green < 255, "{green}");
        let ink = |pixels: &Pixels, from: usize, to: usize| {
            let columns = (from..to).flat_map(|x| (20..40).map(move |y| (x, y)));
            columns.filter(|&(x, y)| at(pixels, x, y)[0] < 128).count()
        };
        let words = |anchor| Mark::Text {
            at: (50.0, 18.0),
            anchor,
            is_bold: false,
            text: "loss".into(),
        };
        pixels.draw(&words(Anchor::End));
        assert!(ink(&pixels, 0, 100) > 50 && ink(&pixels, 100, 200) == 0);
        pixels.draw(&words(Anchor::Start));
        assert_eq!(ink(&pixels, 0, 100), ink(&pixels, 100, 200));
        // Outside nothing is drawn, and a letter that the font lacks is not left out.
        let before = pixels.rgb.clone();
        pixels.draw(&Mark::Dot {
            at: (500.0, -50.0),
            colour: red,
        });
        assert!(pixels.rgb == before);
        pixels.draw(&Mark::Text {
            at: (0.0, 18.0),
            anchor: Anchor::Start,
            is_bold: true,
            text: "\u{6f22}".into(),
        });
        assert!(pixels.rgb != before);
    }
}
