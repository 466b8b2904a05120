//! Curves as charts: what a picture of them has, and text for a terminal.

use std::fmt::Write;

use crate::picture::{Anchor, Mark, Picture};

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Places and values in the order of the line; values that are no finite numbers interrupt it.
    pub points: Vec<(f64, f64)>,
    /// Curves of one group have one colour.
    pub group: usize,
    /// Whether the line is dashed, as of validations.
    pub is_dashed: bool,
}

/// Curves over one axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// What stands above it.
    pub title: String,
    /// What the places are, such as `epoch`.
    pub axis: String,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// Colours that people who see red and green alike can tell apart (Okabe and Ito), and that show on white.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];
/// The letters of groups in text.
const LETTERS: &[u8; 26] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// About the width of a letter.
const LETTER: f64 = 7.0;
const HEIGHT: f64 = 300.0;
/// The width of the line of a curve.
const THICK: f64 = 1.8;
/// Where the curves are: left, right, top, bottom.
const FRAME: [f64; 4] = [70.0, 520.0, 34.0, 256.0];

impl Chart {
    /// The least and the greatest place and value; none without a point.
    fn ranges(&self) -> Option<[(f64, f64); 2]> {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        let finite = points.filter(|(place, value)| place.is_finite() && value.is_finite());
        let mut ranges: Option<[(f64, f64); 2]> = None;
        for &(place, value) in finite {
            let [places, values] = ranges.get_or_insert([(place, place), (value, value)]);
            *places = (places.0.min(place), places.1.max(place));
            *values = (values.0.min(value), values.1.max(value));
        }
        ranges.map(|ranges| ranges.map(widened))
    }

    fn colour(curve: &Curve) -> &'static str {
        COLOURS[curve.group % COLOURS.len()]
    }

    /// The chart as lines of text of this size, a letter for each group; small letters are dashed curves.
    #[must_use]
    pub fn to_text(&self, columns: usize, rows: usize) -> String {
        let (columns, rows) = (columns.max(20), rows.max(4));
        let Some([places, values]) = self.ranges() else {
            return format!("{}: nothing to draw\n", self.title);
        };
        let mut grid = vec![vec![b' '; columns]; rows];
        for curve in &self.curves {
            let letter = LETTERS[curve.group % LETTERS.len()];
            let letter = if curve.is_dashed {
                letter.to_ascii_lowercase()
            } else {
                letter
            };
            for &(place, value) in curve.points.iter().filter(|point| point.1.is_finite()) {
                let column = scaled(place, places, 0.0, (columns - 1) as f64).round() as usize;
                let row = scaled(value, values, (rows - 1) as f64, 0.0).round() as usize;
                grid[row.min(rows - 1)][column.min(columns - 1)] = letter;
            }
        }
        let mut text = format!("{}\n", self.title);
        for (row, line) in grid.iter().enumerate() {
            let edge = match row {
                0 => short(values.1),
                row if row == rows - 1 => short(values.0),
                _ => String::new(),
            };
            let line = String::from_utf8_lossy(line);
            let _ = writeln!(text, "{edge:>9} |{}", line.trim_end());
        }
        let (first, last) = (short(places.0), short(places.1));
        let gap = columns.saturating_sub(first.len());
        let _ = writeln!(text, "{:>9} +{}", "", "-".repeat(columns));
        let _ = writeln!(text, "{:>9}  {first}{last:>gap$} {}", "", self.axis);
        text
    }

    /// Draws the chart, whose upper left corner is at this height.
    fn draw(&self, picture: &mut Picture, top: f64) {
        let [left, right, above, below] = FRAME;
        let (above, below) = (above + top, below + top);
        let mut title = text(left, above - 12.0, Anchor::Start, &self.title);
        if let Mark::Text { is_bold, .. } = &mut title {
            *is_bold = true;
        }
        picture.marks.push(title);
        let Some([places, values]) = self.ranges() else {
            let words = text(left, above + 20.0, Anchor::Start, "nothing to draw");
            picture.marks.push(words);
            return;
        };
        for tick in ticks(values) {
            let y = scaled(tick, values, below, above);
            picture.marks.extend([
                line(vec![(left, y), (right, y)], "#dddddd", 1.0),
                text(left - 6.0, y + 4.0, Anchor::End, &short(tick)),
            ]);
        }
        for tick in ticks(places) {
            let x = scaled(tick, places, left, right);
            picture.marks.extend([
                line(vec![(x, below), (x, below + 4.0)], "#444444", 1.0),
                text(x, below + 18.0, Anchor::Middle, &short(tick)),
            ]);
        }
        let frame = vec![(left, above), (left, below), (right, below)];
        picture.marks.extend([
            line(frame, "#444444", 1.0),
            text(right, below + 34.0, Anchor::End, &self.axis),
        ]);
        for (index, curve) in self.curves.iter().enumerate() {
            let place = |x: f64| scaled(x, places, left, right);
            let value = |y: f64| scaled(y, values, below, above);
            curve.draw(picture, place, value);
            curve.draw_legend(picture, above + 8.0 + 18.0 * index as f64);
        }
    }
}

/// Charts below one another.
pub(crate) fn picture(charts: &[Chart]) -> Picture {
    // Legends may be longer than a chart is high.
    let heights = charts
        .iter()
        .map(|chart| HEIGHT.max(60.0 + 18.0 * chart.curves.len() as f64));
    let names = charts.iter().flat_map(|chart| &chart.curves);
    let longest = names.map(|curve| curve.name.chars().count()).max();
    let mut picture = Picture {
        width: FRAME[1] + 50.0 + LETTER * longest.unwrap_or(0) as f64,
        height: heights.clone().sum(),
        marks: Vec::new(),
    };
    let mut top = 0.0;
    for (chart, height) in charts.iter().zip(heights) {
        chart.draw(&mut picture, top);
        top += height;
    }
    picture
}

fn line(points: Vec<(f64, f64)>, colour: &'static str, width: f64) -> Mark {
    Mark::Line {
        points,
        colour,
        width,
        is_dashed: false,
    }
}

fn text(x: f64, y: f64, anchor: Anchor, text: &str) -> Mark {
    // What a picture cannot show.
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    Mark::Text {
        at: (x, y),
        anchor,
        is_bold: false,
        text: text.chars().map(printable).collect(),
    }
}

impl Curve {
    /// Draws it in pieces where a value is no number; a piece of one point is a dot.
    fn draw(&self, picture: &mut Picture, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) {
        let colour = Chart::colour(self);
        let at = |&(place, value): &(f64, f64)| (x(place), y(value));
        for piece in self.points.split(|(_, value)| !value.is_finite()) {
            match piece {
                [] => {}
                [point] => picture.marks.push(Mark::Dot {
                    at: at(point),
                    colour,
                }),
                _ => picture.marks.push(Mark::Line {
                    points: piece.iter().map(at).collect(),
                    colour,
                    width: THICK,
                    is_dashed: self.is_dashed,
                }),
            }
        }
    }

    fn draw_legend(&self, picture: &mut Picture, y: f64) {
        let start = FRAME[1] + 14.0;
        picture.marks.extend([
            Mark::Line {
                points: vec![(start, y), (start + 20.0, y)],
                colour: Chart::colour(self),
                width: THICK,
                is_dashed: self.is_dashed,
            },
            text(start + 26.0, y + 4.0, Anchor::Start, &self.name),
        ]);
    }
}

/// A range that is not a single place.
fn widened((least, greatest): (f64, f64)) -> (f64, f64) {
    if greatest > least {
        return (least, greatest);
    }
    let margin = least.abs().max(1e-12) * 0.1;
    (least - margin, greatest + margin)
}

fn scaled(value: f64, (least, greatest): (f64, f64), from: f64, to: f64) -> f64 {
    let share = ((value - least) / (greatest - least)).clamp(0.0, 1.0);
    from + share * (to - from)
}

/// About five round places of a range.
fn ticks((least, greatest): (f64, f64)) -> Vec<f64> {
    let rough = (greatest - least) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps
        .into_iter()
        .find(|&step| step >= rough)
        .unwrap_or(rough);
    let first = (least / step).ceil();
    (0..12)
        .map(|index| (first + f64::from(index)) * step)
        .take_while(|&tick| tick <= greatest + step * 1e-9)
        .collect()
}

/// A number in few digits.
fn short(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        return format!("{value:.1e}");
    }
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "" | "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let curve = |name: &str, values: &[f64], group, is_dashed| Curve {
            name: name.into(),
            points: values
                .iter()
                .enumerate()
                .map(|(place, &value)| (place as f64, value))
                .collect(),
            group,
            is_dashed,
        };
        Chart {
            title: "loss".into(),
            axis: "epoch".into(),
            curves: vec![
                curve("a <1>", &[2.0, 1.0, f64::NAN, 0.5], 0, false),
                curve("a validation", &[2.0, 0.0], 0, true),
                curve("b", &[1.0], 1, false),
            ],
        }
    }

    #[test]
    fn curves_are_at_their_places() {
        let svg = crate::svg(&[chart()]);
        // From the upper left corner to the middle, and a dot where a line of one point is left.
        assert!(svg.contains(r#"points="70.0,34.0 220.0,145.0""#), "{svg}");
        assert!(svg.contains(r#"<circle cx="520.0" cy="200.5""#), "{svg}");
        assert!(svg.contains(r##"points="70.0,34.0 220.0,256.0" fill="none" stroke="#0072b2" stroke-width="1.8" stroke-dasharray"##));
        assert!(svg.contains("a &lt;1>") && !svg.contains("NaN"));
        // Two lines, and those of three legends.
        assert_eq!(svg.matches(r#"stroke-width="1.8""#).count(), 2 + 3);
        let png = crate::png(&[chart()]).unwrap();
        assert_eq!(png.size().1, 600);
        let text = chart().to_text(20, 5);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "loss",
                "        2 |a",
                "          |",
                "          |B     A",
                "          |                   A",
                "        0 |      a",
                "          +--------------------",
                "           0                  3 epoch",
            ]
        );
    }

    #[test]
    fn ticks_are_round_and_charts_without_a_number_say_so() {
        assert_eq!(
            ticks((0.0, 1.0)),
            [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
        );
        assert_eq!(ticks((3.0, 42.0)), [10.0, 20.0, 30.0, 40.0]);
        assert_eq!(
            [0.6000000000000001, 1e-5, -0.0, 20.0].map(short),
            ["0.6", "1.0e-5", "0", "20"]
        );
        let none = Chart::default();
        assert!(none.to_text(20, 5).contains("nothing to draw"));
        assert!(crate::svg(&[none]).contains("nothing to draw"));
        let mut flat = chart();
        flat.curves = vec![Curve {
            points: vec![(1.0, 0.0), (1.0, 0.0)],
            ..Curve::default()
        }];
        assert!(!crate::svg(&[flat]).contains("NaN"));
    }
}
