//! Curves as pictures: SVG, and text for a terminal.

use std::fmt::Write;

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

    /// The parts of the chart, whose upper left corner is at this height.
    fn draw(&self, svg: &mut String, top: f64) {
        let [left, right, above, below] = FRAME;
        let (above, below) = (above + top, below + top);
        let title = escaped(&self.title);
        let _ = writeln!(
            svg,
            r##"<text x="{left}" y="{}" font-weight="bold">{title}</text>"##,
            above - 12.0
        );
        let Some([places, values]) = self.ranges() else {
            let _ = writeln!(
                svg,
                r##"<text x="{left}" y="{}">nothing to draw</text>"##,
                above + 20.0
            );
            return;
        };
        for tick in ticks(values) {
            let y = scaled(tick, values, below, above);
            let _ = writeln!(
                svg,
                r##"<path d="M{left} {y:.1}H{right}" stroke="#ddd"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"##,
                left - 6.0,
                y + 4.0,
                short(tick)
            );
        }
        for tick in ticks(places) {
            let x = scaled(tick, places, left, right);
            let _ = writeln!(
                svg,
                r##"<path d="M{x:.1} {below}v4" stroke="#444"/><text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"##,
                below + 18.0,
                short(tick)
            );
        }
        let _ = writeln!(
            svg,
            r##"<path d="M{left} {above}V{below}H{right}" fill="none" stroke="#444"/><text x="{right}" y="{}" text-anchor="end">{}</text>"##,
            below + 34.0,
            escaped(&self.axis)
        );
        for (index, curve) in self.curves.iter().enumerate() {
            let place = |x: f64| scaled(x, places, left, right);
            let value = |y: f64| scaled(y, values, below, above);
            line(svg, curve, place, value);
            legend(svg, curve, above + 8.0 + 18.0 * index as f64);
        }
    }
}

/// Charts below one another as an SVG picture.
#[must_use]
pub fn svg(charts: &[Chart]) -> String {
    // Legends may be longer than a chart is high.
    let heights = charts
        .iter()
        .map(|chart| HEIGHT.max(60.0 + 18.0 * chart.curves.len() as f64));
    let height: f64 = heights.clone().sum();
    let names = charts.iter().flat_map(|chart| &chart.curves);
    let longest = names.map(|curve| curve.name.chars().count()).max();
    let width = FRAME[1] + 50.0 + LETTER * longest.unwrap_or(0) as f64;
    let mut text = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#222"><rect width="100%" height="100%" fill="#fff"/>
"##
    );
    let mut top = 0.0;
    for (chart, height) in charts.iter().zip(heights) {
        chart.draw(&mut text, top);
        top += height;
    }
    text.push_str("</svg>\n");
    text
}

/// The line of a curve, in pieces where a value is no number; a piece of one point is a dot.
fn line(svg: &mut String, curve: &Curve, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) {
    let colour = Chart::colour(curve);
    let dashes = if curve.is_dashed {
        r#" stroke-dasharray="5 4""#
    } else {
        ""
    };
    for piece in curve.points.split(|(_, value)| !value.is_finite()) {
        if let [(place, value)] = piece {
            let _ = writeln!(
                svg,
                r#"<circle cx="{:.1}" cy="{:.1}" r="2.5" fill="{colour}"/>"#,
                x(*place),
                y(*value)
            );
        } else if !piece.is_empty() {
            let points: Vec<String> = piece
                .iter()
                .map(|&(place, value)| format!("{:.1},{:.1}", x(place), y(value)))
                .collect();
            let _ = writeln!(
                svg,
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="1.8"{dashes}/>"#,
                points.join(" ")
            );
        }
    }
}

fn legend(svg: &mut String, curve: &Curve, y: f64) {
    let colour = Chart::colour(curve);
    let dashes = if curve.is_dashed { "5 4" } else { "none" };
    let start = FRAME[1] + 14.0;
    let _ = writeln!(
        svg,
        r#"<path d="M{start} {y}h20" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dashes}"/><text x="{}" y="{}">{}</text>"#,
        start + 26.0,
        y + 4.0,
        escaped(&curve.name)
    );
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

fn escaped(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
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
        let svg = svg(&[chart()]);
        // From the upper left corner to the middle, and a dot where a line of one point is left.
        assert!(svg.contains(r#"points="70.0,34.0 220.0,145.0""#), "{svg}");
        assert!(svg.contains(r#"<circle cx="520.0" cy="200.5""#), "{svg}");
        assert!(svg.contains(r##"points="70.0,34.0 220.0,256.0" fill="none" stroke="#0072b2" stroke-width="1.8" stroke-dasharray"##));
        assert!(svg.contains("a &lt;1>") && !svg.contains("NaN"));
        assert_eq!(svg.matches("<polyline").count(), 2);
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
        assert!(svg(&[none]).contains("nothing to draw"));
        let mut flat = chart();
        flat.curves = vec![Curve {
            points: vec![(1.0, 0.0), (1.0, 0.0)],
            ..Curve::default()
        }];
        assert!(!svg(&[flat]).contains("NaN"));
    }
}
